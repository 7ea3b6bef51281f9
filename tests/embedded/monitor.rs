//! The monitor of a container, with a real OCI runtime: containers of a busybox, each in cgroups of its own name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::limits::{ATTACH_CLIENTS_MAX, ATTACH_STALL_TIME, LOG_LINE_BYTES_MAX, MONITOR_IDLE_TIME};
use smolet::monitor::attach::{self, Event, Stream, Streams};
use smolet::monitor::{self, Arguments, EXIT_CODE_UNKNOWN, Exit, MonitorError, control};

use crate::common::{Stopwatch, TempDir, write_program};

const PATIENCE: Duration = Duration::from_secs(120);

/// A container of a busybox, deleted when dropped.
struct Container {
    root: TempDir,
    arguments: Arguments,
}

fn program() -> PathBuf {
    std::env::var_os("SMOLET_BIN").map_or_else(|| env!("CARGO_BIN_EXE_smolet").into(), PathBuf::from)
}

/// A configuration as the OCI runtime itself suggests one, with that command.
fn configuration(bundle: &Path, id: &str, script: &str, tty: bool) -> Value {
    let made =
        Command::new("runc").args(["spec", "--bundle"]).arg(bundle).status().expect("runc is installed");
    assert!(made.success());
    let mut config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    config["process"]["args"] = json!(["/bin/busybox", "sh", "-c", script]);
    config["process"]["terminal"] = json!(tty);
    config["process"]["oomScoreAdj"] = json!(500);
    config["root"] = json!({"path": "rootfs", "readonly": false});
    // With no parent that tests would make and remove beside each other.
    config["linux"]["cgroupsPath"] = json!(format!("/{id}"));
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|namespace| namespace["type"] != "network");
    config
}

impl Container {
    fn new(script: &str, change: impl FnOnce(&mut Arguments, &mut Value)) -> Self {
        let root = TempDir::new();
        let name = root.path().file_name().unwrap().to_string_lossy().into_owned();
        let id = format!("{name}-{}", std::process::id());
        let bundle = root.path().join("bundle");
        for directory in ["bundle/rootfs/bin", "bundle/rootfs/proc", "container", "logs"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        fs::copy("/bin/busybox", bundle.join("rootfs/bin/busybox")).expect("busybox-static is installed");
        let mut arguments = Arguments {
            id: id.clone(),
            bundle: bundle.clone(),
            runtime: "/usr/bin/runc".into(),
            runtime_arguments: vec!["--root".into(), root.path().join("state").display().to_string()],
            log: Some(root.path().join("logs/0.log")),
            ..Arguments::default()
        };
        let mut config = configuration(&bundle, &id, script, false);
        change(&mut arguments, &mut config);
        config["process"]["terminal"] = json!(arguments.tty);
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        monitor::write_arguments(&root.path().join("container"), &arguments).unwrap();
        Self { root, arguments }
    }

    fn plain(script: &str) -> Self {
        Self::new(script, |_, _| {})
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("container")
    }

    fn run(&self) -> monitor::Created {
        monitor::spawn(&program(), &self.directory()).unwrap()
    }

    fn runc(&self, arguments: &[&str]) {
        let mut command = Command::new("runc");
        let done = command.args(&self.arguments.runtime_arguments).args(arguments).output().unwrap();
        assert!(done.status.success(), "runc {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn kill(&self, signal: &str) {
        self.runc(&["kill", &self.arguments.id, signal]);
    }

    fn exit(&self) -> Exit {
        until("the container ends", || monitor::exit_of(&self.directory()).unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("logs/0.log")).unwrap_or_default()
    }

    /// Stream, tag and text of the log's entries.
    fn entries(&self) -> Vec<(String, String, String)> {
        entries(&self.log())
    }

    fn until_logged(&self, text: &str) {
        until(text, || self.log().contains(text).then_some(()));
    }
}

fn entries(log: &str) -> Vec<(String, String, String)> {
    let entry = |line: &str| {
        let mut fields = line.splitn(4, ' ');
        let time = fields.next().unwrap();
        assert!(time.len() == 30 && time.ends_with('Z'), "{line}");
        let mut next = || fields.next().unwrap().to_owned();
        (next(), next(), next())
    };
    log.lines().map(entry).collect()
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut command = Command::new("runc");
        let _ = command
            .args(&self.arguments.runtime_arguments)
            .args(["delete", "--force", &self.arguments.id])
            .output();
        let gone = || (!monitor::is_alive(&self.directory()).unwrap()).then_some(());
        if std::thread::panicking() {
            return;
        }
        until("the monitor ends", gone);
        // The runtime leaves them where a process took too long to exit.
        let gone = || {
            let left: Vec<PathBuf> =
                cgroups(&self.arguments.id).into_iter().filter(|path| path.exists()).collect();
            left.iter().for_each(|path| drop(fs::remove_dir(path)));
            left.is_empty().then_some(())
        };
        until("its cgroups are gone", gone);
    }
}

/// Where a container's cgroup may be: in each hierarchy, or in the one.
fn cgroups(id: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).unwrap().flatten().map(|entry| entry.path());
    hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(id)).collect()
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited too long until: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn entry(stream: &str, tag: &str, text: &str) -> (String, String, String) {
    (stream.into(), tag.into(), text.into())
}

#[test]
fn both_streams_are_logged_and_the_exit_is_recorded() {
    let container = Container::plain(&format!("{WAIT}; echo out; echo err >&2; echo -n part; exit 3"));
    let created = container.run();
    assert!(monitor::is_alive(&container.directory()).unwrap());
    assert_eq!(monitor::monitor_of(&container.directory()).unwrap(), Some(created.monitor));
    let init = monitor::init_of(&container.directory()).unwrap().unwrap();
    assert!(init.pid == created.pid && init.is_there());
    assert_eq!(monitor::exit_of(&container.directory()).unwrap(), None);
    let score = |pid: u32| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(score(created.pid).trim(), "500");
    // A machine may withhold CAP_SYS_RESOURCE.
    let may = Command::new("sh").args(["-c", "echo -999 >/proc/self/oom_score_adj"]).output().unwrap();
    if may.status.success() {
        assert_eq!(score(created.monitor).trim(), "-999");
    }
    container.go();
    let exit = container.exit();
    assert_eq!((exit.code, exit.oom_killed), (3, false));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    assert!(now - exit.finished_at < 10_000_000_000 && exit.finished_at < now, "{exit:?}");
    let mut entries = container.entries();
    entries.sort();
    assert_eq!(
        entries,
        [entry("stderr", "F", "err"), entry("stdout", "F", "out"), entry("stdout", "P", "part")]
    );
    let mode = fs::metadata(container.root.path().join("logs/0.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    until("the monitor ends", || (!monitor::is_alive(&container.directory()).unwrap()).then_some(()));
    let mut left: Vec<_> =
        fs::read_dir(container.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["exit", "lock", "monitor.json", "pid"]);
    assert!(!init.is_there());
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    for (script, signal, code) in
        [("exit 0", None, 0), ("exit 255", None, 255), ("exec busybox sleep 60", Some("KILL"), 137)]
    {
        let container = Container::plain(script);
        container.run();
        if let Some(signal) = signal {
            container.kill(signal);
        }
        assert_eq!(container.exit().code, code, "{script}");
    }
}

/// The counter of the container's cgroup.
fn oom_events(id: &str) -> PathBuf {
    let v1 = PathBuf::from(format!("/sys/fs/cgroup/memory/{id}/memory.oom_control"));
    let v2 = PathBuf::from(format!("/sys/fs/cgroup/{id}/memory.events"));
    if Path::new("/sys/fs/cgroup/memory").is_dir() { v1 } else { v2 }
}

#[test]
fn a_process_killed_for_want_of_memory_is_recorded() {
    let container = Container::new("exec busybox tail /dev/zero", |arguments, config| {
        config["linux"]["resources"]["memory"] = json!({"limit": 16 << 20});
        arguments.oom_events = Some(oom_events(&arguments.id));
    });
    container.run();
    let exit = container.exit();
    assert_eq!((exit.code, exit.oom_killed), (137, true));
}

/// systemd removes the empty cgroup, and the counter with it, while the last output is written. Here the log takes the counter away: with an
/// entry behind it the counter is no number any more.
#[test]
fn a_counter_that_goes_while_the_last_output_is_written_was_read_before() {
    let container = Container::new(&format!("{WAIT}; echo last words"), |arguments, _| {
        let log = arguments.log.clone().unwrap();
        fs::write(&log, "oom_kill 1").unwrap();
        arguments.oom_events = Some(log);
    });
    let created = container.run();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &created.monitor.to_string()]).status().unwrap();
        assert!(sent.success());
    };
    let is_in = |pid: u32, state: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(&format!(") {state} ")).then_some(())
    };
    // When it goes on it finds the output and the end at once.
    signal("-STOP");
    until("the monitor stands still", || is_in(created.monitor, "T"));
    container.go();
    until("the container ends", || is_in(created.pid, "Z"));
    signal("-CONT");
    let exit = container.exit();
    assert_eq!((exit.code, exit.oom_killed), (0, true));
    assert!(container.log().starts_with("oom_kill 12") && container.log().contains("last words"));
}

/// A handler may have a subreaper of its own: the first process is no child of the monitor, which cannot wait for it.
#[test]
fn the_end_of_a_process_that_another_one_reaps_is_recorded() {
    let mut process = Command::new("sleep").arg("600").spawn().unwrap();
    let container = Container::new("", |arguments, _| {
        let handler = arguments.bundle.join("handler");
        let script = format!(
            "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --pid-file ] && echo {} >\"$2\"; shift; done\n",
            process.id()
        );
        write_program(&handler, &script);
        arguments.runtime = handler;
    });
    let created = container.run();
    assert_eq!(created.pid, process.id());
    process.kill().unwrap();
    // Until it is reaped its status stands in /proc.
    assert_eq!(container.exit().code, 137);
    process.wait().unwrap();
}

/// It may even be gone before the monitor looks at it.
#[test]
fn a_process_that_another_one_has_reaped_already_has_ended() {
    let container = Container::new("", |arguments, _| {
        let handler = arguments.bundle.join("handler");
        // The shell reaps what it has started.
        let script = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --pid-file ] && pid=$2; shift; done\n\
                      [ \"$pid\" ] || exit 0\nsh -c 'echo said; exit 7' & wait $!\necho $! >\"$pid\"\n";
        write_program(&handler, script);
        arguments.runtime = handler;
    });
    let created = container.run();
    // Nobody saw its exit code. What it said is in the log.
    assert_eq!(container.exit().code, EXIT_CODE_UNKNOWN);
    assert_eq!(container.entries(), [entry("stdout", "F", "said")]);
    let init = monitor::init_of(&container.directory()).unwrap().unwrap();
    assert!(init.pid == created.pid && !init.is_there() && init.exits_within(Duration::ZERO), "{init:?}");
}

#[test]
fn long_lines_come_in_parts() {
    let container =
        Container::plain("busybox head -c 20000 /dev/zero | busybox tr '\\0' x; echo; echo short");
    container.run();
    container.exit();
    assert_eq!(
        container.entries(),
        [
            entry("stdout", "P", &"x".repeat(LOG_LINE_BYTES_MAX)),
            entry("stdout", "F", &"x".repeat(20_000 - LOG_LINE_BYTES_MAX)),
            entry("stdout", "F", "short")
        ]
    );
}

#[test]
fn a_container_without_a_log_runs() {
    let container = Container::new("busybox seq 100000; exit 5", |arguments, _| arguments.log = None);
    container.run();
    assert_eq!(container.exit().code, 5);
    assert_eq!(container.log(), "");
}

/// Waits for the file `/go` of its root file system.
const WAIT: &str = "while [ ! -e /go ]; do busybox sleep 0.01; done";

impl Container {
    fn go(&self) {
        fs::write(self.arguments.bundle.join("rootfs/go"), "").unwrap();
    }
}

#[test]
fn a_rotated_log_is_opened_again() {
    let container = Container::plain(&format!("echo one; {WAIT}; echo two"));
    container.run();
    container.until_logged("one");
    let (now, before) =
        (container.root.path().join("logs/0.log"), container.root.path().join("logs/0.log.1"));
    fs::rename(&now, &before).unwrap();
    monitor::reopen_log(&container.directory()).unwrap();
    assert_eq!(container.log(), "");
    container.go();
    container.exit();
    assert_eq!(entries(&fs::read_to_string(before).unwrap()), [entry("stdout", "F", "one")]);
    assert_eq!(container.entries(), [entry("stdout", "F", "two")]);
    until("no monitor answers", || monitor::reopen_log(&container.directory()).err());
}

#[test]
fn a_log_that_cannot_be_opened_again_goes_on_in_the_old_file() {
    let container = Container::plain(&format!("echo one; {WAIT}; echo two"));
    container.run();
    container.until_logged("one");
    let logs = container.root.path().join("logs");
    fs::rename(&logs, container.root.path().join("moved")).unwrap();
    let error = monitor::reopen_log(&container.directory()).unwrap_err().to_string();
    assert!(error.contains("No such file or directory"), "{error}");
    fs::rename(container.root.path().join("moved"), &logs).unwrap();
    container.go();
    container.exit();
    assert_eq!(container.entries(), [entry("stdout", "F", "one"), entry("stdout", "F", "two")]);
}

/// Receives until the text has come, or the end; all that came.
async fn received_until(receiver: &mut attach::Receiver, text: &str) -> String {
    let (mut all, mut bytes) = (String::new(), Vec::new());
    while !all.contains(text) {
        match receiver.next(&mut bytes).await.unwrap() {
            Event::Output(_) => all.push_str(&String::from_utf8_lossy(&bytes)),
            Event::End => break,
        }
    }
    all
}

/// No output has it: everything is read.
const NEVER: &str = "\u{0}";
const ALL: Streams = Streams { stdin: true, stdout: true, stderr: true };
const NO_INPUT: Streams = Streams { stdin: false, ..ALL };

#[test]
fn two_clients_see_the_output_and_the_first_one_with_input_closes_it() {
    let container = Container::new("busybox cat; echo end >&2; exit 7", |arguments, _| {
        (arguments.stdin, arguments.stdin_once) = (true, true);
    });
    container.run();
    let directory = container.directory();
    smol::block_on(async {
        let (mut watching, watcher) = attach::connect(&directory, NO_INPUT).await.unwrap();
        let (mut third, third_sender) = attach::connect(&directory, NO_INPUT).await.unwrap();
        let (mut receiver, sender) = attach::connect(&directory, ALL).await.unwrap();
        sender.send(b"hello\n").await.unwrap();
        assert_eq!(received_until(&mut receiver, "\n").await, "hello\n");
        assert_eq!(received_until(&mut watching, "\n").await, "hello\n");
        assert_eq!(received_until(&mut third, "\n").await, "hello\n");
        // Without input it closes nothing.
        drop((third, third_sender));
        // More than all buffers between have.
        let long = vec![b'z'; 1 << 20];
        let ((), back) = smol::future::zip(
            async {
                sender.send(&long).await.unwrap();
                sender.end().await.unwrap();
            },
            async {
                // The end of the error stream may come before the rest of the other one.
                smol::future::zip(received_until(&mut receiver, NEVER), received_until(&mut watching, NEVER))
                    .await
            },
        )
        .await;
        for all in [back.0, back.1] {
            assert_eq!(all.matches('z').count(), long.len());
            assert!(all.contains("end\n"), "the end is missing");
        }
        drop(watcher);
    });
    assert_eq!(container.exit().code, 7);
}

#[test]
fn input_stays_open_for_the_next_client_and_once_closes_it() {
    for once in [false, true] {
        let container =
            Container::new("while read -r line; do echo got $line; done; echo over", |arguments, _| {
                (arguments.stdin, arguments.stdin_once) = (true, once);
            });
        container.run();
        let directory = container.directory();
        smol::block_on(async {
            let (mut receiver, sender) = attach::connect(&directory, ALL).await.unwrap();
            sender.send(b"first\n").await.unwrap();
            received_until(&mut receiver, "got first\n").await;
            if !once {
                sender.end().await.unwrap();
            }
            drop((receiver, sender));
            if once {
                return;
            }
            let (mut receiver, sender) = attach::connect(&directory, ALL).await.unwrap();
            sender.send(b"second\n").await.unwrap();
            assert_eq!(received_until(&mut receiver, "second\n").await, "got second\n");
        });
        if !once {
            assert_eq!(monitor::exit_of(&directory).unwrap(), None);
            container.kill("KILL");
        }
        assert_eq!(container.exit().code, if once { 0 } else { 137 });
        assert_eq!(container.log().contains("over"), once);
    }
}

#[test]
fn a_terminal_has_the_size_that_clients_set() {
    let container =
        Container::new("read a; busybox stty size; read a; busybox stty size; tty", |arguments, _| {
            (arguments.stdin, arguments.tty) = (true, true);
        });
    container.run();
    let directory = container.directory();
    smol::block_on(async {
        let (mut receiver, sender) = attach::connect(&directory, ALL).await.unwrap();
        sender.resize(120, 40).await.unwrap();
        sender.send(b"\n").await.unwrap();
        let first = received_until(&mut receiver, "40 120\r\n").await;
        assert!(first.contains("40 120\r\n"), "{first:?}");
        control::resize(&directory, 81, 25).unwrap();
        sender.send(b"\n").await.unwrap();
        let second = received_until(&mut receiver, "25 81\r\n").await;
        assert!(second.contains("25 81\r\n"), "{second:?}");
    });
    assert_ne!(container.exit().code, EXIT_CODE_UNKNOWN);
    assert!(container.log().contains("stdout F 40 120\r\n"), "{}", container.log());
}

#[test]
fn clients_beyond_the_limit_are_refused() {
    let container = Container::plain(WAIT);
    container.run();
    let directory = container.directory();
    smol::block_on(async {
        let mut clients = Vec::new();
        for _ in 0..ATTACH_CLIENTS_MAX {
            clients.push(attach::connect(&directory, NO_INPUT).await.unwrap());
        }
        let error = attach::connect(&directory, NO_INPUT).await.unwrap_err().to_string();
        assert!(error.contains("too many clients"), "{error}");
        clients.pop();
        let began = Instant::now();
        while attach::connect(&directory, NO_INPUT).await.is_err() {
            assert!(began.elapsed() < PATIENCE);
        }
    });
    container.go();
    container.exit();
}

/// One client reads slowly, and gets everything; one reads nothing, and goes; the log has everything.
#[test]
fn slow_clients_hold_the_container_for_a_bounded_time() {
    const BYTES: usize = 100_000_000;
    let line = "0123456789".repeat(10);
    let container = Container::plain(&format!("{WAIT}; busybox yes {line} | busybox head -c {BYTES}"));
    container.run();
    let directory = container.directory();
    let (attached, both) = std::sync::mpsc::channel();
    let slow = {
        let (directory, attached) = (directory.clone(), attached.clone());
        std::thread::spawn(move || {
            smol::block_on(async {
                let (mut receiver, _sender) = attach::connect(&directory, NO_INPUT).await.unwrap();
                attached.send(()).unwrap();
                let (mut bytes, mut count, mut last) = (Vec::new(), 0, 0);
                while let Event::Output(stream) = receiver.next(&mut bytes).await.unwrap() {
                    assert_eq!(stream, Stream::Stdout);
                    count += bytes.len();
                    if count - last > 5_000_000 {
                        std::thread::sleep(Duration::from_millis(50));
                        last = count;
                    }
                }
                count
            })
        })
    };
    let deaf = std::thread::spawn(move || {
        smol::block_on(async {
            let client = attach::connect(&directory, NO_INPUT).await.unwrap();
            attached.send(()).unwrap();
            until("the container ends", || monitor::exit_of(&directory).unwrap());
            drop(client);
        });
    });
    both.recv().unwrap();
    both.recv().unwrap();
    let began = Instant::now();
    container.go();
    assert_eq!(container.exit().code, 0);
    assert!(began.elapsed() > ATTACH_STALL_TIME, "the deaf client did not hold it");
    deaf.join().unwrap();
    assert_eq!(slow.join().unwrap(), BYTES);
    let logged: usize = container.log().lines().map(|entry| entry.len() - 40).sum();
    // Without the ends of lines; the last line is cut.
    assert_eq!(logged + BYTES / (line.len() + 1), BYTES);
}

/// Somebody holds its outputs meanwhile, as the agent does.
#[must_use]
fn kill_monitor(container: &Container, created: monitor::Created) -> monitor::HeldOutputs {
    let held = monitor::hold_outputs(&container.directory());
    let killed = Command::new("kill").args(["-9", &created.monitor.to_string()]).status().unwrap();
    assert!(killed.success());
    until("the monitor is gone", || (!monitor::is_alive(&container.directory()).unwrap()).then_some(()));
    held
}

/// tail of coreutils 8.32 and Python's asyncio take an output from which something can be read for one whose reader is gone.
#[test]
fn outputs_are_for_writing_alone() {
    let container = Container::plain(&format!("echo started; {WAIT}"));
    let created = container.run();
    container.until_logged("started");
    for number in [1, 2] {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", created.pid)).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        assert_eq!(u32::from_str_radix(flags, 8).unwrap() & 3, 1, "O_WRONLY: {info}");
    }
    container.go();
    assert_eq!(container.exit().code, 0);
}

/// The agent's directory of runtime state is full: nobody else knows the code.
#[test]
fn an_exit_waits_for_space() {
    let container = Container::plain(&format!("{WAIT}; exit 6"));
    let _small = Small::over(container.directory(), "64k");
    monitor::write_arguments(&container.directory(), &container.arguments).unwrap();
    container.run();
    let init = monitor::init_of(&container.directory()).unwrap().unwrap();
    let fill = container.directory().join("fill");
    fs::write(&fill, vec![0; 1 << 20]).unwrap_err();
    container.go();
    until("it ends", || (!init.is_there()).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    assert!(monitor::is_alive(&container.directory()).unwrap());
    fs::remove_file(&fill).unwrap();
    assert_eq!(container.exit().code, 6);
}

#[test]
fn a_container_outlives_its_monitor_and_is_adopted() {
    let container =
        Container::plain(&format!("echo one; {WAIT}; echo two; busybox rm /go; {WAIT}; echo three"));
    let created = container.run();
    container.until_logged("one");
    let _held = kill_monitor(&container, created);
    // Nobody reads, and nothing breaks.
    container.go();
    until("the container went on", || (!container.arguments.bundle.join("rootfs/go").exists()).then_some(()));
    assert!(monitor::init_of(&container.directory()).unwrap().unwrap().is_there());
    let adopted = monitor::adopt(&program(), &container.directory()).unwrap();
    assert_eq!(adopted.pid, created.pid);
    assert_ne!(adopted.monitor, created.monitor);
    container.until_logged("two");
    let error = monitor::adopt(&program(), &container.directory()).unwrap_err().to_string();
    assert!(error.contains("has a living monitor"), "{error}");
    container.go();
    // Nobody but the machine's init learns the code.
    assert!([0, EXIT_CODE_UNKNOWN].contains(&container.exit().code));
    let texts: Vec<String> = container.entries().into_iter().map(|(_, _, text)| text).collect();
    assert_eq!(texts, ["one", "two", "three"]);
}

#[test]
fn a_container_that_ended_without_its_monitor_is_reported() {
    let container = Container::plain(&format!("{WAIT}; exit 9"));
    let created = container.run();
    let init = monitor::init_of(&container.directory()).unwrap().unwrap();
    let _held = kill_monitor(&container, created);
    container.go();
    until("it ends", || (!init.is_there()).then_some(()));
    monitor::adopt(&program(), &container.directory()).unwrap();
    assert_eq!(container.exit().code, EXIT_CODE_UNKNOWN);
}

#[test]
fn an_exit_that_is_recorded_stays() {
    let container = Container::plain("exit 9");
    let created = container.run();
    assert_eq!(container.exit().code, 9);
    until("its monitor ends", || (!monitor::is_alive(&container.directory()).unwrap()).then_some(()));
    // The agent has looked for the monitor after its end, and for the exit before.
    let error = monitor::adopt(&program(), &container.directory()).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    assert_eq!(container.exit().code, 9, "{created:?}");
}

#[test]
fn a_monitor_goes_on_without_the_log_that_cannot_be_opened() {
    let container =
        Container::plain(&format!("echo one; {WAIT}; echo two; busybox rm /go; {WAIT}; echo three"));
    let created = container.run();
    container.until_logged("one");
    let _held = kill_monitor(&container, created);
    let (log, beside) = (container.root.path().join("logs/0.log"), container.root.path().join("logs/beside"));
    fs::rename(&log, &beside).unwrap();
    fs::create_dir(&log).unwrap();
    monitor::adopt(&program(), &container.directory()).unwrap();
    container.go();
    until("the container went on", || (!container.arguments.bundle.join("rootfs/go").exists()).then_some(()));
    fs::remove_dir(&log).unwrap();
    fs::rename(&beside, &log).unwrap();
    monitor::reopen_log(&container.directory()).unwrap();
    container.go();
    container.until_logged("three");
    container.exit();
}

#[test]
fn a_terminal_hangs_up_with_its_monitor() {
    let container = Container::new("read line; exit 8", |arguments, _| arguments.tty = true);
    let created = container.run();
    let init = monitor::init_of(&container.directory()).unwrap().unwrap();
    let _held = kill_monitor(&container, created);
    until("it reads the end", || (!init.is_there()).then_some(()));
    monitor::adopt(&program(), &container.directory()).unwrap();
    assert_eq!(container.exit().code, EXIT_CODE_UNKNOWN);
}

/// As getty and systemd close theirs.
#[test]
fn a_terminal_that_nobody_has_open_for_a_moment_is_read_on() {
    let text = "echo one; exec </dev/null >/dev/null 2>&1; busybox sleep 1; echo two >/dev/tty; exit 4";
    let container = Container::new(text, |arguments, _| arguments.tty = true);
    container.run();
    assert_eq!(container.exit().code, 4);
    let texts: Vec<String> = container.entries().into_iter().map(|(_, _, text)| text).collect();
    assert_eq!(texts.iter().map(|text| text.trim_end()).collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn input_that_stays_open_outlives_the_monitor() {
    let container =
        Container::new("while read -r line; do echo got $line; done; echo over", |arguments, _| {
            arguments.stdin = true;
        });
    let created = container.run();
    let directory = container.directory();
    let _held = kill_monitor(&container, created);
    monitor::adopt(&program(), &directory).unwrap();
    smol::block_on(async {
        let (mut receiver, sender) = attach::connect(&directory, ALL).await.unwrap();
        sender.send(b"first\n").await.unwrap();
        assert_eq!(received_until(&mut receiver, "\n").await, "got first\n");
    });
    assert!(!container.log().contains("over"));
}

/// The last words of a container are in its log also when a client holds its output: they stand in its pipes then.
#[test]
fn a_client_that_does_not_read_keeps_no_last_words_from_the_log() {
    const LINES: usize = 10_000;
    let container = Container::plain(&format!(
        "{WAIT}; busybox seq 1000000 & busybox sleep 2; busybox seq {LINES} >&2; exit 3"
    ));
    container.run();
    let directory = container.directory();
    let client = smol::block_on(attach::connect(&directory, NO_INPUT)).unwrap();
    container.go();
    let began = Stopwatch::start();
    assert_eq!(container.exit().code, 3);
    assert!(began.elapsed() < Duration::from_secs(2) + ATTACH_STALL_TIME, "{:?}", began.elapsed());
    let of = |stream: &str| {
        let entries = container.entries().into_iter();
        entries.filter(|entry| entry.0 == stream).map(|entry| entry.2).collect::<Vec<_>>()
    };
    assert!(of("stderr").into_iter().eq((1..=LINES).map(|number| number.to_string())));
    // And all that its process could print, which was killed in the middle of it.
    let printed = of("stdout");
    assert!(printed.len() < 1_000_000, "the client did not hold it");
    let whole = printed.len().saturating_sub(1);
    assert!(printed.into_iter().take(whole).eq((1..=whole).map(|number| number.to_string())));
    drop(client);
}

/// A process that the container leaves behind holds its output for a bounded time; one that ends is reaped.
#[test]
fn with_the_nodes_process_ids_orphans_are_reaped_and_hold_no_exit() {
    let orphan = WAIT.replace("/go", "/leave");
    let container = Container::new(
        &format!("({orphan} &); {WAIT}; echo -n last; busybox sleep 60 & exit 2"),
        |_, config| {
            let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
            namespaces.retain(|namespace| namespace["type"] != "pid");
        },
    );
    let created = container.run();
    let children =
        || fs::read_to_string(format!("/proc/{0}/task/{0}/children", created.monitor)).unwrap_or_default();
    until("it has an orphan", || (children().split_whitespace().count() == 2).then_some(()));
    fs::write(container.arguments.bundle.join("rootfs/leave"), "").unwrap();
    until("the orphan is reaped", || (children().trim() == created.pid.to_string()).then_some(()));
    container.go();
    let began = Stopwatch::start();
    assert_eq!(container.exit().code, 2);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(container.entries(), [entry("stdout", "P", "last")]);
}

/// As with containerd: it does not hold the output that the container's last words are read from.
#[test]
fn what_shares_its_process_ids_and_is_left_ends_with_the_container() {
    let container = Container::new(
        &format!("{WAIT}; echo last; (while :; do echo more; busybox usleep 10000; done) & exit 2"),
        |arguments, config| {
            arguments.oom_events = Some(oom_events(&arguments.id));
            let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
            namespaces.retain(|namespace| namespace["type"] != "pid");
        },
    );
    container.run();
    container.go();
    assert_eq!(container.exit().code, 2);
    let processes = oom_events(&container.arguments.id).with_file_name("cgroup.procs");
    until("nothing is left", || fs::read_to_string(&processes).unwrap().is_empty().then_some(()));
    // While it lived its output was read for OUTPUT_DRAIN_TIME, 5 s.
    let entries = container.entries();
    assert_eq!(entries[0], entry("stdout", "F", "last"));
    assert!(entries.len() < 100, "{}", entries.len());
}

/// crun leaves the process that has started the container to whoever reaps it.
#[test]
fn what_the_oci_runtime_leaves_is_reaped_while_the_container_runs() {
    let container = Container::new(&format!("{WAIT}; exit 2"), |arguments, _| {
        let leaving = arguments.bundle.join("leaving-runtime");
        let script = "#!/bin/sh\nrunc \"$@\" || exit\nsleep 2 3<&- >/dev/null 2>&1 </dev/null &\n";
        write_program(&leaving, script);
        arguments.runtime = leaving;
    });
    let created = container.run();
    let children =
        || fs::read_to_string(format!("/proc/{0}/task/{0}/children", created.monitor)).unwrap_or_default();
    until("what was left is seen", || (children().split_whitespace().count() == 2).then_some(()));
    until("it is reaped", || (children().trim() == created.pid.to_string()).then_some(()));
    container.go();
    assert_eq!(container.exit().code, 2);
}

#[test]
fn the_spawner_may_be_killed_meanwhile() {
    let container = Container::new("echo here; exit 4", |arguments, _| {
        let slow = arguments.bundle.join("slow-runtime");
        write_program(&slow, "#!/bin/sh\nsleep 0.3\nexec runc \"$@\"\n");
        arguments.runtime = slow;
    });
    let mut first = Command::new(program())
        .args(["monitor".as_ref(), container.directory().as_os_str()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The end of the pipe is closed, as when the agent is killed.
    drop(first.stdout.take());
    assert!(first.wait().unwrap().success());
    until("it has started", || monitor::init_of(&container.directory()).unwrap());
    assert_eq!(container.exit().code, 4);
    assert_eq!(container.entries(), [entry("stdout", "F", "here")]);
}

#[test]
fn the_runtimes_refusal_is_told_and_nothing_is_left() {
    for tty in [false, true] {
        let container = Container::new("", |arguments, config| {
            config["process"]["args"] = json!(["/no/such/program"]);
            (arguments.stdin, arguments.tty) = (true, tty);
        });
        let error = monitor::spawn(&program(), &container.directory()).unwrap_err();
        assert!(
            matches!(&error, MonitorError::Refused(message) if message.contains("/no/such/program")),
            "{error}"
        );
        until("the monitor ends", || (!monitor::is_alive(&container.directory()).unwrap()).then_some(()));
        let mut left: Vec<_> =
            fs::read_dir(container.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "monitor.json"]);
        let error = monitor::adopt(&program(), &container.directory()).unwrap_err().to_string();
        assert!(error.contains("the container was not created"), "{error}");
    }
    let container = Container::new("", |arguments, _| arguments.runtime = "/no/runtime".into());
    let error = monitor::spawn(&program(), &container.directory()).unwrap_err().to_string();
    assert!(error.starts_with("OCI runtime: /no/runtime could not be executed: No such file"), "{error}");
}

/// A file system of that size over the directory of the logs.
struct Small(PathBuf);

impl Small {
    fn over(path: PathBuf, size: &str) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(&path)
            .status();
        assert!(mounted.unwrap().success());
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_holds_no_container_and_the_loss_is_told() {
    let container = Container::plain(&format!("busybox seq 100000; : >/printed; {WAIT}; echo after; exit 6"));
    let logs = container.root.path().join("logs");
    let _small = Small::over(logs.clone(), "64k");
    container.run();
    until("the disk is full", || (container.log().len() > 40_000).then_some(()));
    let printed = container.arguments.bundle.join("rootfs/printed");
    until("it has printed all", || printed.exists().then_some(()));
    // The rest of it is read.
    let quiet = || {
        let before = container.log().len();
        std::thread::sleep(Duration::from_millis(300));
        (container.log().len() == before).then_some(())
    };
    until("it waits", quiet);
    let whole = container.log();
    assert!(whole.ends_with('\n'));
    let mut last = Some(0);
    for (_, tag, text) in entries(&whole) {
        assert_eq!(tag, "F");
        let number: Option<u32> = text.parse().ok();
        match (last, number) {
            (Some(last), Some(number)) => assert_eq!(number, last + 1),
            // What was lost is told in its place.
            (Some(_), None) => assert!(text.contains("bytes of this log were lost"), "{text}"),
            (None, _) => {}
        }
        last = number;
    }
    fs::remove_file(logs.join("0.log")).unwrap();
    monitor::reopen_log(&container.directory()).unwrap();
    container.go();
    assert_eq!(container.exit().code, 6);
    let texts: Vec<String> = container.entries().into_iter().map(|(_, _, text)| text).collect();
    let [.., lost, after] = &texts[..] else { panic!("{texts:?}") };
    assert!(lost.contains("bytes of this log were lost"), "{texts:?}");
    assert_eq!(after, "after");
}

/// Of the release binary: a debug build's code is not what devices get. 188 KiB of it are what the start-up code corrects in a program
/// that can lie anywhere; the code that all of them run lies together (build.rs).
#[test]
fn ten_monitors_of_the_release_binary_are_small() {
    const PSS_KIB_MAX: usize = 400;
    if std::env::var_os("SMOLET_BIN").is_none() {
        return;
    }
    let containers: Vec<Container> =
        (0..10).map(|_| Container::plain(&format!("echo hello; {WAIT}"))).collect();
    let created: Vec<_> = containers.iter().map(Container::run).collect();
    for container in &containers {
        container.until_logged("hello");
    }
    // They give their buffers back.
    std::thread::sleep(2 * MONITOR_IDLE_TIME);
    let kib = |name: &str| {
        let of = |monitor: u32| {
            let text = fs::read_to_string(format!("/proc/{monitor}/smaps_rollup")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
            line.trim_end_matches("kB").trim().parse::<usize>().unwrap()
        };
        created.iter().map(|created| of(created.monitor)).sum::<usize>() / created.len()
    };
    // On a busy machine later.
    let began = Instant::now();
    while kib("Pss:") > PSS_KIB_MAX && began.elapsed() < PATIENCE {
        std::thread::sleep(MONITOR_IDLE_TIME);
    }
    let (pss, private) = (kib("Pss:"), kib("Private_Dirty:"));
    println!("a monitor: {pss} KiB of proportional set size, {private} KiB of its own");
    assert!(pss <= PSS_KIB_MAX, "{pss} KiB, {private} KiB of its own");
    containers.iter().for_each(Container::go);
    for container in &containers {
        assert_eq!(container.exit().code, 0);
    }
}
