//! SIGKILL at any instant: of the process that works with the runtime, of OCI runtimes, of monitors. The next start finds or removes
//! what was made, and after the removal of the pods nothing is left. With runc and with crun, one after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use smolet::proto::runtime::v1 as cri;

use super::machine::{
    Machine, OCI_RUNTIMES, create, exited, list_sandboxes, remove_sandbox, run_sandbox, script, start,
};
use super::users;

/// Set in a process that is killed while it works: the machine's number, its OCI runtime and its directory.
const VICTIM: &str = "SMOLET_TEST_VICTIM";

/// Instants at which it is killed, with each OCI runtime.
const ROUNDS: u64 = 20;

/// Not a test of its own: what the process does that [`a_killed_agent_leaves_nothing_behind`] kills.
#[test]
fn victim() {
    let Ok(place) = std::env::var(VICTIM) else { return };
    let [number, oci_runtime, root] = place.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let mut machine = Machine::at(PathBuf::from(root), number.parse().unwrap());
    machine.use_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = machine.open().await;
        let mut attempt = u32::try_from(list_sandboxes(&runtime).await.len()).unwrap() * 100;
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
            if attempt % 2 == 0 {
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

#[test]
fn a_killed_agent_leaves_nothing_behind() {
    OCI_RUNTIMES.into_iter().for_each(kill_agents);
}

fn kill_agents(oci_runtime: &str) {
    let mut machine = Machine::new();
    machine.use_oci_runtime(oci_runtime);
    for round in 0..ROUNDS {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::victim", "--nocapture"])
            .env(VICTIM, format!("{} {oci_runtime} {}", machine.number, machine.root.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
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

/// Processes that work for the machine and whose arguments are such.
fn processes_of(machine: &Machine, is_one: impl Fn(&[&str]) -> bool) -> Vec<Pid> {
    let root = machine.root.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        // No other test's: the directory is the machine's own.
        if line.contains(&root) && is_one(&line.split('\0').collect::<Vec<_>>()) {
            found.push(pid);
        }
    }
    found
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
                let ["smolet", "monitor", _, directory, ..] = words else { return false };
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
