//! SIGKILL at any instant: of the process that works with the runtime, of OCI runtimes, of monitors. The next start finds or removes
//! what was made, and after the removal of the pods nothing is left. With runc and with crun, one after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use smolet::cri::{Runtime as _, StreamRequest};
use smolet::proto::runtime::v1 as cri;
use smolet::streaming::command::{self, Streams};
use smolet::streaming::upgrade::{COMMAND_PROTOCOL, connect};

use super::machine::{
    Machine, OCI_RUNTIMES, create, exited, list_sandboxes, processes_of, remove_sandbox, run_container,
    run_sandbox, script, start, until,
};
use super::users;

/// Set in a process that is killed while it works: the machine's number, its OCI runtime and its directory.
const VICTIM: &str = "SMOLET_TEST_VICTIM";

/// The same of one with commands in a container.
const COMMANDS: &str = "SMOLET_TEST_COMMANDS";

/// Instants at which it is killed, with each OCI runtime.
const ROUNDS: u64 = 20;

/// Begins a process that is to be killed: that test, with the machine in that variable.
fn begin(test: &str, variable: &str, machine: &Machine, oci_runtime: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("crash::{test}"), "--nocapture"])
        .env(variable, format!("{} {oci_runtime} {}", machine.number, machine.root.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The machine that such a process works with.
fn of_parent(variable: &str) -> Option<ManuallyDrop<Machine>> {
    let place = std::env::var(variable).ok()?;
    let [number, oci_runtime, root] = place.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let mut machine = Machine::beside(PathBuf::from(root), number.parse().unwrap());
    machine.use_oci_runtime(oci_runtime);
    Some(machine)
}

/// Not a test of its own: what the process does that [`a_killed_agent_leaves_nothing_behind`] kills.
#[test]
fn victim() {
    let Some(machine) = of_parent(VICTIM) else { return };
    machine.run(async {
        let runtime = machine.open().await;
        // Those of other victims are removed meanwhile, or not yet.
        let mut attempt = std::process::id() * 100;
        loop {
            attempt += 1;
            // Each second one has a user namespace.
            let (mut config, container): (_, fn(&str, &str) -> cri::ContainerConfig) =
                if attempt.is_multiple_of(2) {
                    (users::pod(&machine, "crash"), users::container)
                } else {
                    (machine.pod("crash"), script)
                };
            config.metadata.as_mut().unwrap().attempt = attempt;
            // Every other pod has a first process.
            if attempt.is_multiple_of(2) {
                let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
                options.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Pod.into();
            }
            let id = run_sandbox(&runtime, config).await;
            let quick = create(&runtime, &id, container("quick", "exit 3")).await.unwrap();
            let long = create(&runtime, &id, container("long", "sleep 1000")).await.unwrap();
            start(&runtime, &quick).await.unwrap();
            start(&runtime, &long).await.unwrap();
            assert_eq!(exited(&runtime, &quick).await.exit_code, 3);
            let request = cri::StopContainerRequest { container_id: long.clone(), timeout: 0 };
            runtime.stop_container_cri(request).await.unwrap();
            remove_sandbox(&runtime, &id).await;
        }
    });
}

/// Not a test of its own: a process that is killed while two commands run in a container, one of them with a terminal.
#[test]
fn victim_with_commands() {
    let Some(machine) = of_parent(COMMANDS) else { return };
    machine.run(async {
        let runtime = machine.open().await;
        let serve = runtime.serve_streams(&machine.executor).unwrap();
        machine.executor.spawn("streaming server", serve).detach();
        let sandbox = run_sandbox(&runtime, machine.pod("commands")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let request = cri::ExecRequest {
            container_id: id.clone(),
            cmd: sleep_of(&machine),
            tty: true,
            stdin: true,
            stdout: true,
            stderr: false,
        };
        let url = runtime.streaming_url(StreamRequest::Exec(request)).await.unwrap();
        let connection = connect(&url, COMMAND_PROTOCOL).await.unwrap();
        let (_to_stdin, stdin) = smol::channel::bounded(1);
        let (stdout, _out) = smol::channel::bounded(1);
        let (_to_sizes, sizes) = smol::channel::bounded(1);
        let streams = Streams { stdin: Some(stdin), stdout, stderr: None, sizes: Some(sizes) };
        let request = cri::ExecSyncRequest { container_id: id.clone(), cmd: sleep_of(&machine), timeout: 0 };
        let sync = runtime.exec_sync_cri(request);
        drop(smol::future::zip(command::run(connection, streams), sync).await);
    });
}

/// A command of the machine's own.
fn sleep_of(machine: &Machine) -> Vec<String> {
    vec!["/bin/sleep".to_owned(), format!("77{:04}", machine.number)]
}

/// Nobody reads their output any more, or waits for their deadline.
#[test]
fn commands_in_containers_end_with_the_agent_that_was_killed() {
    for oci_runtime in OCI_RUNTIMES {
        let machine = Machine::with_oci_runtime(oci_runtime);
        let mut victim = begin("victim_with_commands", COMMANDS, &machine, oci_runtime);
        let sleep = sleep_of(&machine).join("\0");
        let commands = || {
            let lines = std::fs::read_dir("/proc").unwrap().flatten();
            let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
            lines.filter(|line| String::from_utf8_lossy(line).starts_with(&sleep)).count()
        };
        let execs = || processes_of(&machine, |words| words.contains(&"--exec")).len();
        let begun = Instant::now();
        while commands() < 2 || execs() < 2 {
            assert!(begun.elapsed() < Duration::from_mins(1), "{oci_runtime}: {} {}", commands(), execs());
            std::thread::sleep(Duration::from_millis(20));
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        machine.run(async {
            let runtime = machine.open().await;
            until("the commands end", async || commands() == 0 && execs() == 0).await;
            let [sandbox] = &*list_sandboxes(&runtime).await else { panic!("one sandbox") };
            let containers = runtime.list_containers_cri(Default::default()).await.unwrap().containers;
            assert_eq!(containers[0].state, i32::from(cri::ContainerState::ContainerRunning));
            let dir = machine.settings.run_dir.join("containers").join(&containers[0].id);
            let left: Vec<_> =
                std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            let is_of_command = |name: &std::ffi::OsString| {
                ["exec-", "stream-"].iter().any(|of| name.to_string_lossy().starts_with(of))
            };
            assert!(!left.iter().any(is_of_command), "{left:?}");
            remove_sandbox(&runtime, &sandbox.id).await;
        });
        machine.assert_clean_soon();
    }
}

#[test]
fn a_killed_agent_leaves_nothing_behind() {
    OCI_RUNTIMES.into_iter().for_each(kill_agents);
}

fn kill_agents(oci_runtime: &str) {
    let mut machine = Machine::new();
    machine.use_oci_runtime(oci_runtime);
    for round in 0..ROUNDS {
        let mut victim = begin("victim", VICTIM, &machine, oci_runtime);
        // A pod's whole life takes some 600 ms: the instants are spread over it.
        std::thread::sleep(Duration::from_millis(40 + (round * 67) % 700));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    machine.run(async {
        let runtime = machine.open().await;
        for sandbox in list_sandboxes(&runtime).await {
            remove_sandbox(&runtime, &sandbox.id).await;
        }
        assert!(runtime.list_containers_cri(Default::default()).await.unwrap().containers.is_empty());
        drop(runtime);
    });
    machine.assert_clean_soon();
}

/// Ends the thread that kills, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn killed_oci_runtimes_and_monitors_fail_one_call_and_leave_nothing_behind() {
    OCI_RUNTIMES.into_iter().for_each(kill_oci_runtimes_and_monitors);
}

fn kill_oci_runtimes_and_monitors(oci_runtime: &str) {
    /// Pods, at least; and at most, until there was a kill of each kind.
    const PODS: [u32; 2] = [6, 100];
    /// Monitors of one container: one is started for each that is killed, and needs a moment to record an end.
    const MONITORS_MAX: u32 = 3;
    /// How long an OCI runtime is looked for: crun ends within some milliseconds.
    const LOOK: Duration = Duration::from_millis(150);
    let mut machine = Machine::new();
    machine.use_oci_runtime(oci_runtime);
    let over = AtomicBool::new(false);
    // Of OCI runtimes, and of monitors.
    let kills = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|threads| {
        let _over = Over(&over);
        let (root, number, over, kills) = (&machine.root, machine.number, &over, &kills);
        threads.spawn(move || {
            let machine = Machine::beside(root.clone(), number);
            let of_containers = RefCell::new(BTreeMap::<String, u32>::new());
            let is_monitor = |words: &[&str]| {
                let ["smolet", "monitor", mode, directory, ..] = words else { return false };
                if !mode.starts_with("--held") {
                    return false;
                }
                let mut all = of_containers.borrow_mut();
                let of_one = all.entry((*directory).to_owned()).or_default();
                *of_one += 1;
                *of_one <= MONITORS_MAX
            };
            for round in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (kind, found) = if round.is_multiple_of(2) {
                    let (begun, mut found) = (Instant::now(), Vec::new());
                    while found.is_empty() && begun.elapsed() < LOOK {
                        found = processes_of(&machine, |words| words[0].ends_with(oci_runtime));
                    }
                    (0, found)
                } else {
                    (1, processes_of(&machine, is_monitor))
                };
                let killed = found.into_iter().filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count();
                kills[kind].fetch_add(killed, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20 + (round * 31) % 150));
            }
        });
        machine.run(async {
            let runtime = machine.open().await;
            let were_killed = || kills.iter().all(|of| of.load(Ordering::Relaxed) > 0);
            for attempt in 0..PODS[1] {
                if attempt >= PODS[0] && were_killed() {
                    break;
                }
                let mut config = machine.pod("kill");
                config.metadata.as_mut().unwrap().attempt = attempt;
                let id = run_sandbox(&runtime, config).await;
                let app = create(&runtime, &id, script("app", "sleep 1000")).await.unwrap();
                if start(&runtime, &app).await.is_ok() {
                    let request = cri::StopContainerRequest { container_id: app.clone(), timeout: 0 };
                    if runtime.stop_container_cri(request).await.is_ok() {
                        // Unknown where its monitor was killed, and init has reaped it before the next one has looked.
                        let code = exited(&runtime, &app).await.exit_code;
                        assert!([137, 255].contains(&code), "exit code {code}");
                    }
                }
                let mut removed = Err(());
                for _ in 0..50 {
                    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
                    removed = runtime.remove_pod_sandbox_cri(request).await.map(drop).map_err(drop);
                    if removed.is_ok() {
                        break;
                    }
                }
                assert!(removed.is_ok());
            }
        });
    });
    let [runtimes, monitors] = kills.map(AtomicUsize::into_inner);
    assert!(runtimes > 0 && monitors > 0, "killed with {oci_runtime}: {runtimes} of it, {monitors} monitors");
    // What a killed OCI runtime left is found at the next start at the latest.
    machine.run(async {
        drop(machine.open().await);
    });
    machine.assert_clean_soon();
}
