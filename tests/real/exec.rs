//! `smolet exec`, `attach` and `port-forward` through containerd's own streaming server.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::agent::{Agent, PATIENCE, smolet, text, wait_until};
use crate::runtime::{Kind, Runtime, http_get, wait_for};

const PODS: &str = r#"
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'exec httpd -f -p 8080 -h /www']
    ports: [{name: http, containerPort: 8080}]
  - name: shell
    image: smolet.test/busybox:1
    command: [sh]
    stdin: true
    tty: true
  - name: talks
    image: smolet.test/busybox:1
    command: [sh, -c, 'while read line; do echo "heard $line"; echo "not $line" >&2; done; exec forever']
    stdin: true
"#;

/// What is sent through: no two parts of it are alike.
const BYTES: usize = 50_000_000;

fn pod<'r>(runtime: &'r Runtime, name: &str) -> Agent<'r> {
    let agent = Agent::started(runtime, name);
    agent.apply_pod("web", PODS);
    agent.running("web");
    agent
}

pub fn command(agent: &Agent, words: &[&str]) -> Command {
    let (first, rest) = words.split_first().expect("a subcommand");
    let mut command = smolet();
    command.arg(first).arg("--socket").arg(agent.socket()).args(rest);
    command
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

pub fn run(agent: &Agent, words: &[&str]) -> (Option<i32>, String, String) {
    said(&command(agent, words).stdin(Stdio::null()).output().expect("smolet can be run"))
}

/// The same with that input; all outputs are read meanwhile.
fn run_with(agent: &Agent, words: &[&str], input: &[u8]) -> Output {
    let mut command = command(agent, words);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("smolet can be run");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that ends early takes no more.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().expect("our own child")
    })
}

fn bytes() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    (0..BYTES).map(|_| next()).collect()
}

pub fn a_command_has_its_outputs_and_its_exit_code(runtime: &Runtime) {
    let agent = pod(runtime, "exec-code");
    let note = "Defaulted container \"app\" out of: app, shell, talks\n";
    let both = ["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    assert_eq!(
        run(&agent, &both),
        (Some(7), "out\n".to_owned(), format!("{note}err\ncommand terminated with exit code 7\n"))
    );
    assert_eq!(
        run(&agent, &["exec", "-q", "default/web", "-c", "talks", "--", "hostname"]),
        (Some(0), format!("{}\n", agent.full("web")), String::new())
    );
    // One that a signal ends, arguments as they are, a container's own files.
    assert_eq!(run(&agent, &["exec", "-c", "app", "web", "--", "sh", "-c", "kill -9 $$"]).0, Some(137));
    let words = ["exec", "-c", "app", "web", "--", "printf", "%s|", "a b", "", "ä'\"$x"];
    assert_eq!(run(&agent, &words).1, "a b||ä'\"$x|");
    assert!(
        run(&agent, &["exec", "-c", "app", "web", "--", "cat", "/www/index.html"])
            .1
            .contains("smolet test page 1")
    );

    let (code, _, why) = run(&agent, &["exec", "-c", "app", "web", "--", "no-such-program"]);
    // What becomes of a program that is not there CRI-O takes for the program's end.
    let never = if Kind::chosen() == Kind::CriO { 255 } else { 1 };
    assert!(code == Some(never) && why.contains("no-such-program") && why.contains("not found"), "{why}");
    for (words, why) in [
        (
            ["exec", "web", "-c", "nope", "--", "ls"],
            "smolet: container nope is not valid for pod web-exec-code out of: app, shell, talks\n",
        ),
        (["exec", "nobody", "-c", "app", "--", "ls"], "smolet: there is no pod nobody\n"),
    ] {
        assert_eq!(run(&agent, &words), (Some(1), String::new(), why.to_owned()));
    }
    agent.end_pods();
}

pub fn input_goes_in_to_its_end_and_fifty_megabytes_come_back(runtime: &Runtime) {
    let agent = pod(runtime, "exec-input");
    let bytes = bytes();
    let back = run_with(&agent, &["exec", "-i", "-c", "app", "web", "--", "cat"], &bytes);
    assert!(
        back.status.success() && back.stdout == bytes,
        "{} of {BYTES} bytes came back",
        back.stdout.len()
    );

    // A tree of files goes in as an archive and comes out as one.
    let tree = agent.dir.join("tree");
    std::fs::create_dir_all(tree.join("below")).expect("a directory");
    std::fs::write(tree.join("big"), &bytes[..3_000_000]).expect("a file");
    std::fs::write(tree.join("below/small"), "small").expect("a file");
    let tar = |words: &[&str], from: Stdio| {
        let output = Command::new("tar").args(words).current_dir(&tree).stdin(from).output().expect("tar");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let unpack = ["exec", "-i", "-c", "app", "web", "--", "sh", "-c", "mkdir /tmp/t && cd /tmp/t && tar x"];
    let unpacked = run_with(&agent, &unpack, &tar(&["c", "."], Stdio::null()));
    assert!(unpacked.status.success(), "tar ends with its input: {unpacked:?}");
    let packed = run_with(&agent, &["exec", "-c", "app", "web", "--", "tar", "c", "-C", "/tmp/t", "."], b"");
    std::fs::remove_dir_all(&tree).expect("ours");
    std::fs::create_dir(&tree).expect("a directory");
    let archive = agent.dir.join("back.tar");
    std::fs::write(&archive, packed.stdout).expect("a file");
    tar(&["x"], File::open(archive).expect("a file").into());
    assert_eq!(std::fs::read(tree.join("big")).expect("it came back"), bytes[..3_000_000]);
    assert_eq!(text(&tree.join("below/small")), "small");

    // A file and nothing at all are inputs with an end too.
    let file = File::open(tree.join("big")).expect("a file");
    let counted = command(&agent, &["exec", "-i", "-c", "app", "web", "--", "wc", "-c"]).stdin(file).output();
    assert_eq!(said(&counted.expect("smolet can be run")).1.trim(), "3000000");
    assert_eq!(run(&agent, &["exec", "-i", "-c", "app", "web", "--", "wc", "-c"]).1.trim(), "0");
    agent.end_pods();
}

pub fn a_reader_that_has_enough_ends_the_command_quietly(runtime: &Runtime) {
    let agent = pod(runtime, "exec-pipe");
    let mut command = command(&agent, &["exec", "-c", "app", "web", "--", "yes"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("smolet");
    let mut first = [0; 4];
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut first).expect("output");
    drop(stdout);
    let output = child.wait_with_output().expect("our own child");
    // As a shell says it of a program that SIGPIPE has ended.
    assert_eq!((&first, output.status.code(), output.stderr.len()), (b"y\ny\n", Some(141), 0));
    agent.end_pods();
}

/// A program on a terminal of its own.
pub struct Terminal {
    near: OwnedFd,
    far: OwnedFd,
    child: Child,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    pub fn start(program: &Command) -> Self {
        let near =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&near).and_then(|()| unlockpt(&near)).expect("a terminal");
        let name = ptsname(&near, Vec::new()).expect("its name");
        let far = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
            .expect("its far end");
        let end = || Stdio::from(far.try_clone().expect("a handle"));
        // Sizes are told to the processes whose terminal it is.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(program.get_program())
            .args(program.get_args())
            .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid");
        let seen = Arc::new(Mutex::new(String::new()));
        let (theirs, mut output) = (seen.clone(), File::from(near.try_clone().expect("a handle")));
        // Ends when both ends of the terminal are closed.
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut part) {
                theirs.lock().expect("whole").push_str(&String::from_utf8_lossy(&part[..read]));
            }
        });
        let terminal = Self { near, far, child, seen };
        terminal.resize(101, 33);
        terminal
    }

    fn resize(&self, width: u16, height: u16) {
        let size = Winsize { ws_col: width, ws_row: height, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.near, size).expect("a size");
    }

    pub fn types(&self, keys: &str) {
        File::from(self.near.try_clone().expect("a handle")).write_all(keys.as_bytes()).expect("keys");
    }

    pub fn seen(&self) -> String {
        self.seen.lock().expect("whole").clone()
    }

    /// Types the line until what it brings about is seen.
    pub fn types_until(&self, line: &str, expected: &str) {
        let answered = wait_until(Duration::from_secs(PATIENCE), || {
            self.types(line);
            wait_until(Duration::from_secs(2), || self.seen().contains(expected).then_some(()))
        });
        assert!(answered.is_some(), "no {expected:?} on the terminal: {}", self.seen());
    }

    pub fn ends(&mut self) -> ExitStatus {
        let ended =
            wait_until(Duration::from_secs(PATIENCE), || self.child.try_wait().expect("our own child"));
        ended.unwrap_or_else(|| panic!("it does not end: {}", self.seen()))
    }

    /// Keys are shown and make signals, as before.
    pub fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.far).expect("a terminal").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ISIG | LocalModes::ICANON)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Ended already, as a rule.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn a_terminal_has_the_size_of_ours_and_is_given_back(runtime: &Runtime) {
    let agent = pod(runtime, "exec-tty");
    let shell = command(&agent, &["exec", "-it", "-c", "app", "web", "--", "sh"]);
    let mut terminal = Terminal::start(&shell);
    terminal.types_until("stty size\r", "33 101");
    assert!(!terminal.is_as_before(), "keys go to the container as they are");
    terminal.resize(120, 40);
    terminal.types_until("stty size\r", "40 120");
    // Ctrl-C is the container's, not ours.
    terminal.types("sleep 1000\r");
    terminal.types_until("\x03", "^C");
    terminal.types_until("tty; echo $((40 + 2))\r", "42");
    assert!(terminal.seen().contains("/dev/pts/"), "{}", terminal.seen());
    terminal.types("exit 5\r");
    assert_eq!(terminal.ends().code(), Some(5));
    assert!(terminal.is_as_before());
    // What it has written last is read a little later.
    let code = "command terminated with exit code 5";
    wait_for("its exit code is told", PATIENCE, || terminal.seen().contains(code).then_some(()));

    let mut terminal = Terminal::start(&shell);
    terminal.types_until("echo $((40 + 2))\r", "42");
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).expect("our own child");
    assert_eq!(terminal.ends().code(), Some(128 + 15));
    assert!(terminal.is_as_before(), "a signal leaves the terminal as it was");

    // Without a terminal on our side there is none on the other.
    let (code, said, why) = run(&agent, &["exec", "-it", "-c", "app", "web", "--", "tty"]);
    assert_eq!((code, &*said), (Some(1), "not a tty\n"));
    assert!(why.contains("Unable to use a TTY - input is not a terminal or the right kind of file"), "{why}");
    // Left as a test that fails would leave it: nothing here changes the terminal of who runs us.
    tcsetattr(&terminal.far, OptionalActions::Now, &tcgetattr(&terminal.far).expect("a terminal"))
        .expect("still there");
    agent.end_pods();
}

pub fn the_main_process_is_joined_and_left(runtime: &Runtime) {
    let agent = pod(runtime, "attach");
    let mut terminal = Terminal::start(&command(&agent, &["attach", "-it", "-c", "shell", "web"]));
    if Kind::chosen() == Kind::CriO {
        // Of the two sizes at the begin, sent at once so that the program draws itself anew, it may keep the first.
        terminal.types_until("X=joined; echo $((40 + 2))\r", "42");
        terminal.resize(100, 33);
        terminal.types_until("stty size\r", "33 100");
    } else {
        terminal.types_until("X=joined; stty size\r", "33 101");
    }
    assert!(terminal.seen().contains("If you don't see a command prompt, try pressing enter."));
    // Ctrl-P, Ctrl-Q.
    terminal.types("\x10\x11");
    assert_eq!(terminal.ends().code(), Some(0));
    let again = format!("'smolet attach {} -c shell -n default -i -t'", agent.full("web"));
    assert!(terminal.is_as_before(), "the terminal is as it was");
    wait_for("how to join it again", PATIENCE, || terminal.seen().contains(&again).then_some(()));
    // It is the same shell.
    let mut terminal = Terminal::start(&command(&agent, &["attach", "-it", "-c", "shell", "web"]));
    terminal.types_until("echo still $X\r", "still joined");
    terminal.types("\x10\x11");
    assert_eq!(terminal.ends().code(), Some(0));

    let mut command = command(&agent, &["attach", "-q", "-i", "-c", "talks", "web"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("smolet can be run");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"one\n").expect("it takes input");
    let (mut out, mut err) = ([0; 10], [0; 8]);
    child.stdout.as_mut().expect("a pipe").read_exact(&mut out).expect("output");
    child.stderr.as_mut().expect("a pipe").read_exact(&mut err).expect("errors");
    assert_eq!((&out, &err), (b"heard one\n", b"not one\n"));
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    agent.end_pods();
}

pub fn ports_of_a_pod_are_reached_by_many_at_once(runtime: &Runtime) {
    let agent = pod(runtime, "forward");
    let mut command = command(&agent, &["port-forward", "web", ":http", ":9", ":8081"]);
    let out = agent.dir.join("forward.out");
    let file = File::create(&out).expect("a file");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a handle"))
        .stderr(file)
        .spawn()
        .expect("smolet can be run");
    let local = |remote: u16| {
        wait_for(&format!("a port for {remote}"), PATIENCE, || {
            let text = text(&out);
            let end = format!(" -> {remote}");
            let line =
                text.lines().find_map(|l| l.strip_prefix("Forwarding from 127.0.0.1:")?.strip_suffix(&*end));
            line.map(|port| port.parse::<u16>().expect("a port"))
        })
    };
    let http = local(8080);
    assert!(http_get(&format!("127.0.0.1:{http}"), "/").contains("smolet test page 1"));
    // Some that say nothing hold up nobody.
    let idle: Vec<TcpStream> =
        (0..5).map(|_| TcpStream::connect(("127.0.0.1", http)).expect("accepted")).collect();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                assert!(http_get(&format!("127.0.0.1:{http}"), "/").contains("smolet test page 1"))
            });
        }
    });
    drop(idle);

    // Nobody listens there: that connection ends with a word, and the others go on.
    let mut refused = TcpStream::connect(("127.0.0.1", local(9))).expect("accepted");
    assert_eq!(refused.read(&mut [0]).unwrap_or(0), 0);
    wait_for("the reason", PATIENCE, || text(&out).contains("connection refused").then_some(()));
    assert!(
        text(&out).contains(&format!("an error occurred forwarding {} -> 9: ", local(9))),
        "{}",
        text(&out)
    );

    // Bytes both ways, to the end.
    let listens = ["exec", "-c", "app", "web", "--", "sh", "-c", "nc -l -p 8081 -e cat"];
    let mut server = self::command(&agent, &listens).stdin(Stdio::null()).spawn().expect("smolet can be run");
    let sent = &bytes()[..5_000_000];
    let back = wait_for("what was sent comes back", PATIENCE, || {
        let mut stream = TcpStream::connect(("127.0.0.1", local(8081))).expect("accepted");
        let mut reader = stream.try_clone().expect("a handle");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = stream.write_all(sent);
                let _ = stream.shutdown(Shutdown::Write);
            });
            let mut back = Vec::new();
            let _ = reader.read_to_end(&mut back);
            // It may not listen yet.
            (!back.is_empty()).then_some(back)
        })
    });
    assert!(back == sent, "{} bytes came back", back.len());
    server.wait().expect("our own child");
    assert!(text(&out).contains(&format!("Handling connection for {http}")));

    kill_process(Pid::from_child(&child), Signal::INT).expect("our own child");
    let ended = wait_until(Duration::from_secs(PATIENCE), || child.try_wait().expect("our own child"));
    assert!(ended.expect("Ctrl-C ends it").success());
    agent.end_pods();
}
