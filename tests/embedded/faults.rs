//! Faults of what the runtime stands on: OCI runtimes and CNI plugins that fail, hang or are gone, a disk that takes no record, a killed
//! first process of a pod. The wrappers below call the real ones.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use smolet::cri::RuntimeError;
use smolet::executor::Executor;
use smolet::limits::CNI_PLUGIN_TIME;
use smolet::monitor;
use smolet::proto::runtime::v1 as cri;
use smolet::runtime::Embedded;

use crate::common::{Stopwatch, write_program};

use super::machine::{
    Machine, container_of, create, exec, exited, list_sandboxes, output, remove_sandbox, run_container,
    run_sandbox, script, start, status_of, stop_sandbox, until,
};

/// An OCI runtime that does as files in the machine's directory say: `VERB-fails`, `VERB-hangs`, `VERB-hangs-after`, `VERB-fails-after`.
fn with_oci_runtime(machine: &mut Machine, name: &str) {
    let path = machine.root.join(name);
    let text = format!(
        "#!/bin/sh\ncd {}\n\
         for verb; do case $verb in run|kill|delete|state|exec|update|checkpoint|features) break;; esac; done\n\
         [ -e $verb-fails ] && {{ echo \"$verb fails\" >&2; exit 1; }}\n\
         while [ -e $verb-hangs ]; do sleep 0.02; done\n\
         [ -e $verb-hangs-after ] && {{ runc \"$@\"; touch $verb-done; while [ -e $verb-hangs-after ]; do sleep 0.02; done; exit 0; }}\n\
         [ -e $verb-fails-after ] && {{ runc \"$@\"; echo \"$verb fails late\" >&2; exit 1; }}\n\
         exec runc \"$@\"\n",
        machine.root.display()
    );
    write_program(&path, &text);
    machine.settings.handlers.insert("".into(), path);
}

fn set(machine: &Machine, fault: &str) {
    fs::write(machine.root.join(fault), "").unwrap();
}

fn unset(machine: &Machine, fault: &str) {
    fs::remove_file(machine.root.join(fault)).unwrap();
}

async fn pause(milliseconds: u64) {
    async_io::Timer::after(Duration::from_millis(milliseconds)).await;
}

/// What SIGKILL does to an agent: none of its tasks goes on. The programs that it has started do.
fn kill_agent(machine: &mut Machine) {
    machine.executor = Rc::new(Executor::new());
}

/// It is gone afterwards.
fn kill_monitor(dir: &Path) {
    let pid: i32 = fs::read_to_string(dir.join("lock")).unwrap().trim().parse().unwrap();
    let handle = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&handle, Signal::KILL).unwrap();
    poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
}

async fn remove(runtime: &Embedded, sandbox: &str) -> bool {
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox.into() };
    runtime.remove_pod_sandbox_cri(request).await.is_ok()
}

/// A pod whose containers share one PID namespace.
fn shared(mut config: cri::PodSandboxConfig) -> cri::PodSandboxConfig {
    let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    options.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Pod.into();
    config
}

#[test]
fn a_start_that_the_agent_did_not_see_through_goes_on_with_its_exit_code() {
    for fault in ["run-hangs", "run-hangs-after"] {
        let mut machine = Machine::new();
        with_oci_runtime(&mut machine, "oci");
        let (sandbox, id) = machine.run(async {
            let runtime = machine.open().await;
            let sandbox = run_sandbox(&runtime, machine.pod("interrupted")).await;
            let text = "while [ ! -e /end ]; do sleep 0.02; done; exit 7";
            let id = create(&runtime, &sandbox, script("app", text)).await.unwrap();
            set(&machine, fault);
            let is_there = async || {
                let dir = machine.settings.run_dir.join("containers").join(&id);
                monitor::is_alive(&dir).unwrap()
                    && (fault == "run-hangs" || machine.root.join("run-done").exists())
            };
            let wait = async {
                until("its creation", is_there).await;
                pause(300).await;
            };
            smol::future::or(async { drop(start(&runtime, &id).await) }, wait).await;
            (sandbox, id)
        });
        kill_agent(&mut machine);
        unset(&machine, fault);
        machine.run(async {
            let runtime = machine.open().await;
            let state = container_of(&runtime, &id).await.state();
            assert_eq!(state, cri::ContainerState::ContainerRunning, "{fault}");
            fs::write(machine.root.join("rootfs").join(&id).join("end"), "").unwrap();
            assert_eq!(exited(&runtime, &id).await.exit_code, 7, "{fault}");
            remove_sandbox(&runtime, &sandbox).await;
        });
        machine.assert_clean_soon();
    }
}

#[test]
fn a_container_that_the_oci_runtime_does_not_end_is_ended_before_it_counts_as_exited() {
    let mut machine = Machine::new();
    with_oci_runtime(&mut machine, "oci");
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("unruly")).await;
        let id = create(&runtime, &sandbox, script("app", "sleep 1000 & sleep 1000")).await.unwrap();
        for fault in ["run-fails-after", "delete-fails", "kill-fails"] {
            set(&machine, fault);
        }
        let error = start(&runtime, &id).await.unwrap_err().to_string();
        assert!(error.contains("run fails late"), "{error}");
        let status = container_of(&runtime, &id).await;
        assert_eq!((status.exit_code, &*status.reason), (128, "StartError"));
        let processes = Path::new("/sys/fs/cgroup/memory")
            .join(machine.cgroup())
            .join("podunruly")
            .join(&id)
            .join("cgroup.procs");
        assert_eq!(fs::read_to_string(processes).unwrap_or_default(), "");
        for fault in ["run-fails-after", "delete-fails", "kill-fails"] {
            unset(&machine, fault);
        }
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

/// A former agent's file, whose process ID may be anybody's now.
#[test]
fn a_process_id_that_a_former_agent_has_left_is_nobodys() {
    let mut machine = Machine::new();
    with_oci_runtime(&mut machine, "oci");
    let mut bystander = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("left")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let file = machine.settings.run_dir.join("containers").join(&id).join("exec-0.pid");
        fs::write(&file, bystander.id().to_string()).unwrap();
        set(&machine, "exec-hangs");
        let request = cri::ExecSyncRequest { container_id: id.clone(), cmd: vec!["true".into()], timeout: 1 };
        let late = runtime.exec_sync_cri(request).await.unwrap_err();
        assert!(matches!(late, RuntimeError::DeadlineExceeded(_)), "{late}");
        unset(&machine, "exec-hangs");
        fs::write(file.with_file_name("exec-1.pid"), bystander.id().to_string()).unwrap();
        let request = cri::ExecSyncRequest { container_id: id, cmd: vec!["none".into()], timeout: 20 };
        let none = runtime.exec_sync_cri(request).await.unwrap_err().to_string();
        assert!(none.contains("none"), "{none}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    machine.assert_clean_soon();
}

#[test]
fn a_checkpoint_that_does_not_get_its_turn_in_time_is_not_made_later() {
    let mut machine = Machine::new();
    with_oci_runtime(&mut machine, "oci");
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("queue")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let checkpoint = async |name: &str, timeout: i64| {
            let request = cri::CheckpointContainerRequest {
                container_id: id.clone(),
                location: machine.root.join(name).display().to_string(),
                timeout,
            };
            runtime.checkpoint_container_cri(request).await
        };
        set(&machine, "checkpoint-hangs");
        let first = checkpoint("first.tar", 1).await.unwrap_err().to_string();
        assert!(first.contains("more than 1 s; it goes on"), "{first}");
        let second = checkpoint("second.tar", 1).await.unwrap_err().to_string();
        assert!(second.contains("another checkpoint took more than 1 s; try again"), "{second}");
        unset(&machine, "checkpoint-hangs");
        until("the first one", async || machine.root.join("first.tar").exists()).await;
        checkpoint("third.tar", 60).await.unwrap();
        assert!(!machine.root.join("second.tar").exists());
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

/// On a disk that does not give a record any more: another pod's.
#[test]
fn a_record_that_cannot_be_read_is_one_containers_end() {
    let machine = Machine::new();
    let (sandbox, broken, healthy) = machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("records")).await;
        let mut config = script("broken", "sleep 1000");
        config.mounts = vec![cri::Mount {
            container_path: "/volume".into(),
            readonly: true,
            image: Some(cri::ImageSpec { image: "busybox".into(), ..Default::default() }),
            ..Default::default()
        }];
        let broken = run_container(&runtime, &sandbox, config).await;
        assert!(machine.root.join("rootfs").join(format!("{broken}-0")).exists());
        let healthy = run_container(&runtime, &sandbox, script("healthy", "sleep 1000")).await;
        (sandbox, broken, healthy)
    });
    let record = machine.root.join("state/containers").join(&broken).join("record");
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    machine.run(async {
        let runtime = machine.open().await;
        assert_eq!(container_of(&runtime, &healthy).await.state(), cri::ContainerState::ContainerRunning);
        let request = cri::ContainerStatusRequest { container_id: broken, verbose: false };
        assert!(runtime.container_status_cri(request).await.is_err());
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

#[test]
fn containers_keep_the_oci_runtime_with_which_they_were_made() {
    let mut machine = Machine::new();
    with_oci_runtime(&mut machine, "first");
    let (sandbox, ids) = machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, shared(machine.pod("kept"))).await;
        let mut ids = Vec::new();
        for name in ["one", "two"] {
            let text = "trap 'exit 3' TERM; while :; do sleep 0.1; done";
            ids.push(run_container(&runtime, &sandbox, script(name, text)).await);
        }
        (sandbox, ids)
    });
    // Another one, which knows none of them, is the node's by now.
    let other = machine.root.join("other");
    write_program(&other, "#!/bin/sh\necho no such container >&2\nexit 1\n");
    machine.settings.handlers.insert("".into(), other);
    machine.run(async {
        let runtime = machine.open().await;
        assert_eq!(exec(&runtime, &ids[0], "echo here").await.unwrap().stdout, b"here\n");
        let request = cri::StopContainerRequest { container_id: ids[0].clone(), timeout: 10 };
        runtime.stop_container_cri(request).await.unwrap();
        assert_eq!(exited(&runtime, &ids[0]).await.exit_code, 3, "it gets its stop signal");
    });
    // The one that they have is not installed any more, and no handler is left.
    fs::remove_file(machine.root.join("first")).unwrap();
    machine.settings.handlers.clear();
    machine.run(async {
        let runtime = machine.open().await;
        let request = cri::StopContainerRequest { container_id: ids[1].clone(), timeout: 10 };
        runtime.stop_container_cri(request).await.unwrap();
        assert_eq!(exited(&runtime, &ids[1]).await.exit_code, 3, "it gets its stop signal");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

#[test]
fn a_container_runs_on_when_its_monitor_cannot_be_replaced() {
    let mut machine = Machine::new();
    let smolet = machine.settings.program.clone();
    let (sandbox, id) = machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("alone")).await;
        (sandbox.clone(), run_container(&runtime, &sandbox, script("app", "sleep 1000")).await)
    });
    let dir = machine.settings.run_dir.join("containers").join(&id);
    kill_monitor(&dir);
    // It keeps commands, and is no monitor.
    let half = machine.root.join("half");
    let text = format!("#!/bin/sh\n[ \"$2\" != --exec ] || exec {} \"$@\"\nexit 1\n", smolet.display());
    write_program(&half, &text);
    machine.settings.program = half;
    machine.run(async {
        let runtime = machine.open().await;
        assert_eq!(container_of(&runtime, &id).await.state(), cri::ContainerState::ContainerRunning);
        assert!(!monitor::is_alive(&dir).unwrap());
        assert_eq!(exec(&runtime, &id, "echo on").await.unwrap().stdout, b"on\n");
    });
    machine.settings.program = smolet;
    machine.run(async {
        let runtime = machine.open().await;
        until("a new monitor", async || monitor::is_alive(&dir).unwrap()).await;
        assert_eq!(container_of(&runtime, &id).await.state(), cri::ContainerState::ContainerRunning);
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

#[test]
fn a_sandbox_is_not_ready_any_more_when_its_first_process_has_ended() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let pause_of = |sandbox: &str| machine.settings.run_dir.join("sandboxes").join(sandbox).join("pause");
        for has_restarted in [false, true] {
            let sandbox = run_sandbox(&runtime, shared(machine.pod("pause"))).await;
            // Its monitor is replaced.
            kill_monitor(&pause_of(&sandbox));
            let dir = pause_of(&sandbox);
            until("a new monitor", async || monitor::is_alive(&dir).unwrap()).await;
            assert_eq!(status_of(&runtime, &sandbox).await.state, 0);
            let again = if has_restarted { machine.open().await } else { runtime.clone() };
            monitor::init_of(&dir).unwrap().unwrap().signal(Signal::KILL).unwrap();
            until("it is not ready", async || status_of(&again, &sandbox).await.state == 1).await;
            remove_sandbox(&again, &sandbox).await;
            if has_restarted {
                return;
            }
        }
    });
    machine.assert_clean_soon();
}

/// A handler may have a subreaper of its own, which is quicker than the monitor.
#[test]
fn a_first_process_that_is_gone_before_it_was_seen_is_an_end_and_no_failed_start() {
    let mut machine = Machine::new();
    let handler = machine.root.join("handler");
    let text = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --pid-file ] && pid=$2; shift; done\n\
                [ \"$pid\" ] || exit 0\nsh -c 'exit 7' & wait $!\necho $! >\"$pid\"\n";
    write_program(&handler, text);
    machine.settings.handlers.insert("".into(), handler);
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, shared(machine.pod("gone"))).await;
        until("it is not ready", async || status_of(&runtime, &sandbox).await.state == 1).await;
        remove_sandbox(&runtime, &sandbox).await;
        let sandbox = run_sandbox(&runtime, machine.pod("gone")).await;
        let id = run_container(&runtime, &sandbox, script("app", "exit 7")).await;
        assert_eq!(exited(&runtime, &id).await.exit_code, monitor::EXIT_CODE_UNKNOWN);
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

#[test]
fn pods_with_a_first_process_stop_at_the_first_call() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        for attempt in 0..10 {
            let mut config = shared(machine.pod("quick"));
            config.metadata.as_mut().unwrap().attempt = attempt;
            let sandbox = run_sandbox(&runtime, config).await;
            stop_sandbox(&runtime, &sandbox).await;
            remove_sandbox(&runtime, &sandbox).await;
        }
    });
    machine.assert_clean();
}

#[test]
fn what_cannot_be_recorded_is_stopped_and_removed_all_the_same() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("full")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let created = create(&runtime, &sandbox, script("created", "exit 0")).await.unwrap();
        // As on a full disk: nothing can be written beside the record.
        let no_record = |of: &str, id: &str| {
            fs::create_dir(machine.settings.root_dir.join(of).join(id).join("record.new")).unwrap();
        };
        no_record("sandboxes", &sandbox);
        no_record("containers", &id);
        no_record("containers", &created);
        assert!(start(&runtime, &created).await.is_err());
        assert_eq!(container_of(&runtime, &created).await.state(), cri::ContainerState::ContainerCreated);
        let request = cri::StopContainerRequest { container_id: id.clone(), timeout: 0 };
        runtime.stop_container_cri(request).await.unwrap();
        let request = cri::RemoveContainerRequest { container_id: id };
        runtime.remove_container_cri(request).await.unwrap();
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// CNI plugins that do as files in the machine's directory say: `ADD-hangs`, `DEL-fails`; they make `ADD-called`.
fn with_plugins(machine: &mut Machine) {
    let dir = machine.root.join("plugins");
    fs::create_dir_all(&dir).unwrap();
    let real = output(
        std::process::Command::new("sh")
            .args(["-c", "ls -d /opt/cni/bin /usr/lib/cni 2>/dev/null | tail -1"]),
    );
    for name in ["bridge", "portmap", "host-local", "bandwidth"] {
        let text = format!(
            "#!/bin/sh\n: >{0}/$CNI_COMMAND-called\nwhile [ -e {0}/$CNI_COMMAND-hangs ]; do sleep 0.02; done\n\
             [ -e {0}/$CNI_COMMAND-fails ] && {{ echo '{{\"code\": 11, \"msg\": \"not now\"}}'; exit 1; }}\n\
             exec {1}/{name}\n",
            machine.root.display(),
            real.trim()
        );
        write_program(&dir.join(name), &text);
    }
    machine.settings.cni_bin_dirs.insert(0, dir);
}

#[test]
fn a_half_made_sandbox_that_cannot_be_removed_at_the_start_is_listed_and_removed_later() {
    let mut machine = Machine::new();
    with_plugins(&mut machine);
    set(&machine, "ADD-hangs");
    machine.run(async {
        let runtime = machine.open().await;
        let request =
            cri::RunPodSandboxRequest { config: Some(machine.pod("half")), runtime_handler: String::new() };
        let run = async { drop(runtime.run_pod_sandbox_cri(request).await) };
        let called = machine.root.join("ADD-called");
        smol::future::or(run, until("the plugin's call", async || called.exists())).await;
    });
    kill_agent(&mut machine);
    set(&machine, "DEL-fails");
    unset(&machine, "ADD-hangs");
    machine.run(async {
        let runtime = machine.open().await;
        let listed = list_sandboxes(&runtime).await;
        assert_eq!(listed.len(), 1, "it can be seen and removed");
        assert_eq!(listed[0].state, i32::from(cri::PodSandboxState::SandboxNotready));
        assert!(!remove(&runtime, &listed[0].id).await);
        unset(&machine, "DEL-fails");
        // By a client, or by itself.
        until("its removal", async || {
            remove(&runtime, &listed[0].id).await && list_sandboxes(&runtime).await.is_empty()
        })
        .await;
        let sandbox = run_sandbox(&runtime, machine.pod("half")).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

/// A plugin may take a minute: an agent starts without waiting for it.
#[test]
fn a_half_made_sandbox_whose_plugin_hangs_holds_up_no_start() {
    let mut machine = Machine::new();
    with_plugins(&mut machine);
    set(&machine, "ADD-hangs");
    machine.run(async {
        let runtime = machine.open().await;
        let request =
            cri::RunPodSandboxRequest { config: Some(machine.pod("half")), runtime_handler: String::new() };
        let run = async { drop(runtime.run_pod_sandbox_cri(request).await) };
        let called = machine.root.join("ADD-called");
        smol::future::or(run, until("the plugin's call", async || called.exists())).await;
    });
    kill_agent(&mut machine);
    set(&machine, "DEL-hangs");
    machine.run(async {
        let begun = Stopwatch::start();
        let runtime = machine.open().await;
        let took = begun.elapsed();
        assert!(took < CNI_PLUGIN_TIME / 2, "{took:?}");
        let listed = list_sandboxes(&runtime).await;
        assert_eq!(listed.len(), 1, "it can be seen and removed");
        assert_eq!(listed[0].state, i32::from(cri::PodSandboxState::SandboxNotready));
        // Its next attempt does not wait for it.
        let mut next = machine.pod("half");
        next.metadata.as_mut().unwrap().attempt = 1;
        unset(&machine, "ADD-hangs");
        let next = run_sandbox(&runtime, next).await;
        assert_eq!(list_sandboxes(&runtime).await.len(), 2);
        unset(&machine, "DEL-hangs");
        until("its removal", async || list_sandboxes(&runtime).await.len() == 1).await;
        assert_eq!(list_sandboxes(&runtime).await[0].id, next);
        remove_sandbox(&runtime, &next).await;
    });
    machine.assert_clean_soon();
}

/// A program that handles the first signal may end at once by the second. Of several calls the last one's time counts.
#[test]
fn a_stop_signal_is_sent_once() {
    let mut machine = Machine::new();
    let stop = |id: &str, timeout| cri::StopContainerRequest { container_id: id.into(), timeout };
    let log = |machine: &Machine, name: &str| {
        fs::read_to_string(machine.root.join(format!("logs/stops/{name}.log"))).unwrap_or_default()
    };
    const TRAP: &str = "trap 'echo term' TERM; echo up; while :; do sleep 0.05; done";
    let (sandbox, again) = machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("stops")).await;
        // Calls whose callers have gone.
        let dropped = async |id: &str, name: &str, timeout: i64| {
            until("it handles signals", async || log(&machine, name).contains("up")).await;
            let call = async { drop(runtime.stop_container_cri(stop(id, timeout)).await) };
            let sent = until("its signal", async || log(&machine, name).contains("term"));
            smol::future::or(call, sent).await;
        };
        let first = run_container(&runtime, &sandbox, script("first", TRAP)).await;
        dropped(&first, "first", 60).await;
        let begun = Stopwatch::start();
        runtime.stop_container_cri(stop(&first, 1)).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(exited(&runtime, &first).await.exit_code, 137);
        assert_eq!(log(&machine, "first").matches("term").count(), 1);

        let second = run_container(&runtime, &sandbox, script("second", TRAP)).await;
        dropped(&second, "second", 1).await;
        let call = async { drop(runtime.stop_container_cri(stop(&second, 600)).await) };
        let longer = async { _ = async_io::Timer::after(Duration::from_secs(3)).await };
        smol::future::or(call, longer).await;
        let state = container_of(&runtime, &second).await.state;
        assert_eq!(
            state,
            i32::from(cri::ContainerState::ContainerRunning),
            "the second call gave it more time"
        );
        runtime.stop_container_cri(stop(&second, 0)).await.unwrap();
        assert_eq!(log(&machine, "second").matches("term").count(), 1);

        let again = run_container(&runtime, &sandbox, script("again", TRAP)).await;
        dropped(&again, "again", 60).await;
        (sandbox, again)
    });
    kill_agent(&mut machine);
    machine.run(async {
        let runtime = machine.open().await;
        runtime.stop_container_cri(stop(&again, 1)).await.unwrap();
        assert_eq!(exited(&runtime, &again).await.exit_code, 137);
        assert_eq!(log(&machine, "again").matches("term").count(), 1, "of two agents");
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}

#[test]
fn pods_of_two_pod_cidrs_have_their_networks_and_the_last_one_is_kept() {
    let machine = Machine::new();
    let range = |third: u32| format!("10.{}.{}.0/24", 150 + third, machine.number % 250);
    let inside = |ip: &str, range: &str| ip.starts_with(range.strip_suffix("0/24").unwrap());
    machine.run(async {
        let runtime = machine.open().await;
        let ip = async |runtime: &Embedded, name: &str| {
            let sandbox = run_sandbox(runtime, machine.pod(name)).await;
            (status_of(runtime, &sandbox).await.network.unwrap().ip, sandbox)
        };
        let (before, first) = ip(&runtime, "before").await;
        assert!(inside(&before, &machine.settings.subnet));
        let mut sandboxes = vec![first.clone()];
        for number in [0, 1] {
            let network_config = Some(cri::NetworkConfig { pod_cidr: range(number) });
            let runtime_config = Some(cri::RuntimeConfig { network_config });
            runtime
                .update_runtime_config_cri(cri::UpdateRuntimeConfigRequest { runtime_config })
                .await
                .unwrap();
            let (of_range, sandbox) = ip(&runtime, &format!("of{number}")).await;
            assert!(inside(&of_range, &range(number)), "{of_range}");
            sandboxes.push(sandbox);
        }
        // The pod of the former range still reaches its gateway.
        let gateway = machine.inside(&first, "ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'");
        let ping = format!("busybox ping -c 1 -W 5 {} > /dev/null && echo answers", gateway.trim());
        assert_eq!(machine.inside(&first, &ping), "answers\n");
        drop(runtime);
        // Before the node's cluster is reached.
        let runtime = machine.open().await;
        let (of_restart, sandbox) = ip(&runtime, "restart").await;
        assert!(inside(&of_restart, &range(1)), "{of_restart}");
        sandboxes.push(sandbox);
        for sandbox in sandboxes {
            remove_sandbox(&runtime, &sandbox).await;
        }
    });
    machine.assert_clean();
}
