//! `smolet debug`: a container more in a pod that runs, on a terminal and without one.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use crate::agent::{Agent, PATIENCE, id_of};
use crate::exec::{Terminal, command, run};
use crate::runtime::{Runtime, wait_for};

const POD: &str = r#"
  terminationGracePeriodSeconds: 2
  initContainers:
  - name: side
    image: smolet.test/busybox:1
    command: [sh, -c, 'exec forever']
    restartPolicy: Always
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'exec httpd -f -p 8080 -h /www']
"#;

const IMAGE: [&str; 2] = ["--image", "smolet.test/busybox:1"];

/// `smolet debug web --image …` with these words behind.
fn words<'w>(more: &[&'w str]) -> Vec<&'w str> {
    [&["debug", "web"], &IMAGE[..], more].concat()
}

/// The exit code of that ephemeral container once it has ended.
fn exit_code(agent: &Agent, name: &str) -> i32 {
    wait_for("the end of the container", PATIENCE, || {
        let statuses = agent.pod("web")?.status?.ephemeral_container_statuses?;
        let status = statuses.into_iter().find(|status| status.name == name)?;
        Some(status.state?.terminated?.exit_code)
    })
}

pub fn a_container_looks_into_a_pod_that_runs(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "debug");
    agent.apply_pod("web", POD);
    let app = id_of(&agent.running("web"), "app");

    // On a terminal: the pod's network, and the processes of the container that is named.
    let shell = words(&["-it", "--target", "app", "-c", "shell", "--", "sh"]);
    let mut terminal = Terminal::start(&command(&agent, &shell));
    terminal.types_until("echo $((40 + 2))\r", "42");
    terminal.types_until("wget -q -O - http://127.0.0.1:8080/index.html\r", "smolet test page 1");
    terminal.types_until("cat /proc/1/cmdline | tr '\\0' ' '; echo\r", "httpd -f -p 8080");
    // Its files too, which takes the right to trace (profile general).
    terminal.types_until("ls /proc/1/root/www/index.html && echo files-$((30 + 3))\r", "files-33");
    assert!(terminal.seen().contains("Targeting container \"app\"."), "{}", terminal.seen());

    // An agent that dies and comes again knows it.
    agent.kill();
    agent.start();
    terminal.types_until("echo $((50 + 1))\r", "51");
    wait_for("the agent", PATIENCE, || {
        let (code, said, _) = run(&agent, &["exec", "-q", "-c", "shell", "web", "--", "hostname"]);
        (code == Some(0) && said.trim() == agent.full("web")).then_some(())
    });
    terminal.types("exit 7\r");
    assert!(terminal.ends().code().is_some());
    assert!(terminal.is_as_before(), "the terminal is as it was");
    let ended = "the ephemeral container will not be restarted";
    wait_for("what is to be known of it", PATIENCE, || terminal.seen().contains(ended).then_some(()));
    assert_eq!(exit_code(&agent, "shell"), 7);

    // Without a terminal the command ends at once and the container has a name of its own.
    let (code, out, said) = run(&agent, &words(&["--", "sh", "-c", "echo looked; exit 3"]));
    assert_eq!((code, &*out), (Some(0), ""), "{said}");
    let name =
        said.strip_prefix("Defaulting debug container name to ").and_then(|rest| rest.strip_suffix(".\n"));
    let name = name.unwrap_or_else(|| panic!("{said}")).to_owned();
    assert_eq!(exit_code(&agent, &name), 3);
    assert_eq!(run(&agent, &["logs", "-c", &name, "web"]).1, "looked\n");

    // Input goes in without a terminal too.
    let head = words(&["-q", "-i", "-c", "head", "--", "head", "-n", "1"]);
    let mut command = command(&agent, &head);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("smolet can be run");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"first\nsecond\n").expect("it takes input");
    let mut out = [0; 6];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut out).expect("output");
    assert_eq!(&out, b"first\n");
    assert_eq!(exit_code(&agent, "head"), 0);
    assert!(child.wait().expect("our own child").success());
    drop(stdin);

    // A container that is there, and what no node without an API server has.
    for (more, why) in [
        (&["-c", "app"][..], "spec.ephemeralContainers[3].name: Duplicate value: \"app\""),
        (
            &["--target", "head"],
            "targetContainerName: Invalid value: \"head\": names no container or init container",
        ),
        (&["--copy-to", "other"], "--copy-to is not supported: pods come from manifests here"),
    ] {
        let (code, _, said) = run(&agent, &words(more));
        assert!(code == Some(1) && said.contains(why), "{more:?}: {said}");
    }
    assert_eq!(id_of(&agent.running("web"), "app"), app, "nothing else was touched");
    agent.end_pods();
}
