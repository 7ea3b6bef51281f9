//! Restarts of the agent, killed monitors, and SIGKILL at any instant.

use rustix::process::{Pid, Signal, kill_process};
use smolet::proto::runtime::v1 as cri;

use super::machine::{
    Machine, container_of, create, exec, exited, list_sandboxes, remove_sandbox, run_container, run_sandbox,
    script, until,
};

/// A file of the container's monitor.
fn monitor_file(machine: &Machine, id: &str, name: &str) -> String {
    std::fs::read_to_string(machine.settings.run_dir.join("containers").join(id).join(name)).unwrap()
}

fn kill_monitor(machine: &Machine, id: &str) {
    let pid: i32 = monitor_file(machine, id, "lock").trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_restart_finds_what_runs_and_what_has_ended() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("restart")).await;
        let runs = run_container(&runtime, &sandbox, script("runs", "sleep 1000")).await;
        let ended = run_container(&runtime, &sandbox, script("ended", "exit 4")).await;
        exited(&runtime, &ended).await;
        let away = run_container(&runtime, &sandbox, script("away", "sleep 0.4; exit 5")).await;
        let created = create(&runtime, &sandbox, script("created", "exit 6")).await.unwrap();
        drop(runtime);
        let dir = machine.settings.run_dir.join("containers").join(&away);
        until("the end while nobody looks", async || smolet::monitor::exit_of(&dir).unwrap().is_some()).await;
        let runtime = machine.open().await;
        assert_eq!(container_of(&runtime, &runs).await.state(), cri::ContainerState::ContainerRunning);
        for (id, code) in [(&ended, 4), (&away, 5)] {
            let status = container_of(&runtime, id).await;
            assert_eq!((status.state(), status.exit_code), (cri::ContainerState::ContainerExited, code));
        }
        assert_eq!(exec(&runtime, &runs, "echo still").await.unwrap().stdout, b"still\n");
        super::machine::start(&runtime, &created).await.unwrap();
        assert_eq!(exited(&runtime, &created).await.exit_code, 6);
        // The end of one that was found is seen too.
        exec(&runtime, &runs, "kill -9 1; kill 1").await.unwrap();
        let request = cri::StopContainerRequest { container_id: runs.clone(), timeout: 0 };
        runtime.stop_container_cri(request).await.unwrap();
        assert_eq!(exited(&runtime, &runs).await.exit_code, 137);
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_killed_monitor_is_replaced_while_the_agent_runs_and_after_its_restart() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("monitors")).await;
        let one =
            run_container(&runtime, &sandbox, script("one", "while :; do echo tick; sleep 0.1; done")).await;
        let two = run_container(&runtime, &sandbox, script("two", "sleep 1000")).await;
        let alive = |id: &str| {
            smolet::monitor::is_alive(&machine.settings.run_dir.join("containers").join(id)).unwrap()
        };
        let was = monitor_file(&machine, &one, "lock");
        kill_monitor(&machine, &one);
        until("a new monitor", async || alive(&one) && monitor_file(&machine, &one, "lock") != was).await;
        assert_eq!(container_of(&runtime, &one).await.state(), cri::ContainerState::ContainerRunning);
        drop(runtime);
        kill_monitor(&machine, &two);
        until("the end of its monitor", async || !alive(&two)).await;
        let runtime = machine.open().await;
        assert!(alive(&two));
        // Their ends are seen, with the code if the new monitor could read it.
        for id in [&one, &two] {
            let request = cri::StopContainerRequest { container_id: id.clone(), timeout: 0 };
            runtime.stop_container_cri(request).await.unwrap();
            assert!([137, 255].contains(&exited(&runtime, id).await.exit_code));
        }
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn after_a_reboot_containers_have_ended_and_nothing_is_left_of_removed_pods() {
    let mut machine = Machine::new();
    // The state of the disk alone survives.
    let (sandbox, id) = machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("reboot")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let request = cri::StopContainerRequest { container_id: id.clone(), timeout: 0 };
        runtime.stop_container_cri(request).await.unwrap();
        exited(&runtime, &id).await;
        let other = run_container(&runtime, &sandbox, script("other", "sleep 1000")).await;
        (sandbox, [id, other])
    });
    machine.reboot();
    machine.run(async {
        let runtime = machine.open().await;
        assert_eq!(list_sandboxes(&runtime).await[0].state, i32::from(cri::PodSandboxState::SandboxNotready));
        let (known, unknown) = (container_of(&runtime, &id[0]).await, container_of(&runtime, &id[1]).await);
        assert_eq!((known.exit_code, &*known.reason), (137, "Error"));
        assert_eq!(
            (unknown.state(), unknown.exit_code, &*unknown.reason),
            (cri::ContainerState::ContainerExited, 255, "Unknown")
        );
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}
