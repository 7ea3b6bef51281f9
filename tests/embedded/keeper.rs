//! What keeps a command in a container in the place of its OCI runtime, `smolet monitor --exec`.

use rustix::process::{Pid, Signal, kill_process};
use smolet::proto::runtime::v1 as cri;

use super::machine::{
    Machine, OCI_RUNTIMES, PATIENCE, exec, processes_of, remove_sandbox, run_container, run_sandbox, script,
    stop_sandbox, until,
};
use super::streams::{Ran, command, of_url, open, run};

/// The test's end, when something waits for ever.
async fn late<T>(what: &str) -> T {
    async_io::Timer::after(PATIENCE).await;
    panic!("{what} does not end")
}

/// With the node's process IDs crun's own `exec` waits for all that a command leaves behind.
#[test]
fn a_command_ends_without_what_it_leaves_behind() {
    OCI_RUNTIMES.into_iter().for_each(leave_behind);
}

fn leave_behind(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = open(&machine).await;
        let mut config = machine.pod("node");
        let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        options.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Node.into();
        let sandbox = run_sandbox(&runtime, config).await;
        let mut config = script("app", "sleep 1000");
        let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        options.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Node.into();
        let id = run_container(&runtime, &sandbox, config).await;
        let text = "sleep 1000 </dev/null >/dev/null 2>&1 & echo done; exit 4";
        let output = smol::future::or(exec(&runtime, &id, text), late("a command")).await.unwrap();
        assert_eq!((output.exit_code, &*output.stdout), (4, &b"done\n"[..]), "{oci_runtime}");
        let streams =
            async { run(of_url(&runtime, command(&id, text, false, false)).await, None, None).await };
        let Ran { ending, stdout, .. } = smol::future::or(streams, late("a command with streams")).await;
        assert_eq!((ending, &*stdout), (Ok(smolet::streaming::command::Ending::Exit(4)), &b"done\n"[..]));
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

fn keepers(machine: &Machine, id: &str) -> Vec<Pid> {
    processes_of(machine, |words| words.get(2) == Some(&"--exec") && words.contains(&id))
}

#[test]
fn a_command_is_ended_when_its_keeper_is_killed() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("killed")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let runs = async || String::from_utf8(exec(&runtime, &id, "ps").await.unwrap().stdout).unwrap();
        let killed = async |name: &str| {
            until("the command runs", async || runs().await.contains(name)).await;
            for keeper in keepers(&machine, &id) {
                kill_process(keeper, Signal::KILL).unwrap();
            }
            std::future::pending::<Result<(), String>>().await
        };
        let ran = async {
            exec(&runtime, &id, "exec sleep 4243").await.map(drop).map_err(|error| error.to_string())
        };
        let why = smol::future::or(ran, killed("sleep 4243")).await.unwrap_err();
        assert!(why.contains("was killed") && why.contains("/bin/sh"), "{why}");
        let streams = async {
            let ran = of_url(&runtime, command(&id, "exec sleep 4244", false, false)).await;
            run(ran, None, None).await.ending.map(drop)
        };
        let why = smol::future::or(streams, killed("sleep 4244")).await.unwrap_err();
        assert!(why.contains("was killed") && why.contains("/bin/sh"), "{why}");
        let left = runs().await;
        assert!(!left.contains("sleep 424"), "{left}");
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// The OCI runtime does not stay beside a command that runs, and what does is as small as a monitor: of ten, as theirs are counted.
#[test]
fn what_stays_beside_a_command_is_small() {
    const COMMANDS: usize = 10;
    const PSS_KIB_MAX: usize = 400;
    let machine = Machine::new();
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("small")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let commands = (0..COMMANDS).map(|_| {
            let (runtime, id) = (runtime.clone(), id.clone());
            machine.executor.spawn("command", async move { exec(&runtime, &id, "exec sleep 1000").await })
        });
        let commands: Vec<_> = commands.collect();
        let mut found = Vec::new();
        until("keepers alone", async || {
            // The OCI runtimes that start the commands have these words too.
            let with = processes_of(&machine, |words| words.contains(&"exec") && words.contains(&&*id));
            found = keepers(&machine, &id);
            found.len() == COMMANDS && found == with
        })
        .await;
        let pss = |keeper: &Pid| {
            let rollup =
                std::fs::read_to_string(format!("/proc/{}/smaps_rollup", keeper.as_raw_pid())).unwrap();
            let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
            pss.trim_end_matches("kB").trim().parse::<usize>().unwrap()
        };
        let pss_kib = found.iter().map(pss).sum::<usize>() / COMMANDS;
        println!("beside a command: {pss_kib} KiB");
        assert!((1..=PSS_KIB_MAX).contains(&pss_kib), "{pss_kib} KiB");
        drop(commands);
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}
