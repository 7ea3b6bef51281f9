//! Containers: their life, commands in them, resources, usage.

use std::time::{Duration, Instant};

use smolet::cri::{EventService, Runtime as _, RuntimeError, RuntimeEventKind};
use smolet::proto::runtime::v1 as cri;

use crate::common::Stopwatch;

use super::machine::{
    Machine, OCI_RUNTIMES, container_of, create, exec, exited, remove_sandbox, run_container, run_sandbox,
    script, start, status_of, stop_sandbox, until,
};

#[test]
fn a_container_runs_in_its_pod_and_its_end_is_seen_at_once() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("life")).await;
        let ip = status_of(&runtime, &sandbox).await.network.unwrap().ip;
        let events = runtime.subscribe().unwrap();
        let id = create(
            &runtime,
            &sandbox,
            script("app", "hostname; df /dev/shm | tail -n 1; read x < /tmp/fifo; exit 7"),
        )
        .await
        .unwrap();
        let status = container_of(&runtime, &id).await;
        assert_eq!((status.state(), status.started_at), (cri::ContainerState::ContainerCreated, 0));
        let rootfs = machine.root.join("rootfs").join(&id);
        rustix::fs::mkfifoat(rustix::fs::CWD, rootfs.join("tmp/fifo"), rustix::fs::Mode::RWXU).unwrap();
        start(&runtime, &id).await.unwrap();
        let status = container_of(&runtime, &id).await;
        assert_eq!(status.state(), cri::ContainerState::ContainerRunning);
        assert_eq!(
            (&*status.image_ref, &*status.image.unwrap().image),
            ("docker.io/library/busybox@sha256:1", "docker.io/library/busybox:1")
        );
        let shown = exec(&runtime, &id, "cat /etc/hostname /etc/resolv.conf").await.unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).starts_with("life\n"), "{shown:?}");
        let addresses = exec(&runtime, &id, "busybox ip -o address").await.unwrap();
        assert!(String::from_utf8_lossy(&addresses.stdout).contains(&ip), "{addresses:?}");

        let log = machine.root.join("logs/life/app.log");
        until("its output", async || {
            let text = std::fs::read_to_string(&log).unwrap();
            text.contains("stdout F life\n") && text.contains("65536")
        })
        .await;

        let begun = Stopwatch::start();
        std::fs::write(rootfs.join("tmp/fifo"), "\n").unwrap();
        let mut seen = Vec::new();
        while seen.last() != Some(&(RuntimeEventKind::Exited, id.clone())) {
            let event = events.recv().await.unwrap();
            assert_eq!(event.pod.as_ref().map(|pod| pod.as_str()), Some("uid-life"));
            seen.push((event.kind, event.id.to_string()));
        }
        let took = begun.elapsed();
        let status = container_of(&runtime, &id).await;
        assert_eq!(
            (status.state(), status.exit_code, &*status.reason),
            (cri::ContainerState::ContainerExited, 7, "Error")
        );
        assert!(status.finished_at >= status.started_at && status.started_at >= status.created_at);
        assert_eq!(
            seen[..2].iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [RuntimeEventKind::Created, RuntimeEventKind::Started]
        );
        // The shell's end, the monitor's, and one turn of the loop: milliseconds, but for the wait for a processor.
        assert!(took < Duration::from_millis(500), "{took:?}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn ends_are_seen_without_a_poll() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("ends")).await;
        let events = runtime.subscribe().unwrap();
        let mut took = Vec::new();
        for number in 0..10 {
            let mut config = script("app", "read x < /tmp/fifo");
            config.metadata.as_mut().unwrap().attempt = number;
            let id = create(&runtime, &sandbox, config).await.unwrap();
            let fifo = machine.root.join("rootfs").join(&id).join("tmp/fifo");
            rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
            start(&runtime, &id).await.unwrap();
            // Opened as soon as the shell reads.
            let mut fifo = smol::unblock(move || std::fs::File::create(fifo)).await.unwrap();
            let begun = Stopwatch::start();
            std::io::Write::write_all(&mut fifo, b"\n").unwrap();
            loop {
                let event = events.recv().await.unwrap();
                if (event.kind, &*event.id) == (RuntimeEventKind::Exited, &*id) {
                    break;
                }
            }
            took.push(begun.elapsed());
        }
        took.sort_unstable();
        println!("ends seen after {took:?}");
        // The end of the shell included. A poll of any use has a period that its ends, one after the other, cannot all fall short of.
        assert!(took[0] < Duration::from_millis(10) && took[4] < Duration::from_millis(100), "{took:?}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// The agent watches the container's directory for its end.
#[test]
fn a_container_that_opens_its_own_output_changes_nothing_that_is_watched() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("own")).await;
        let words = "read x < /tmp/fifo; for n in 1 2 3; do echo $n >/dev/stdout; done; exec sleep 600";
        let id = create(&runtime, &sandbox, script("app", words)).await.unwrap();
        let fifo = machine.root.join("rootfs").join(&id).join("tmp/fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        start(&runtime, &id).await.unwrap();
        let inotify = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).unwrap();
        let watched = machine.settings.run_dir.join("containers").join(&id);
        let closes = rustix::fs::inotify::WatchFlags::CLOSE_WRITE | rustix::fs::inotify::WatchFlags::ONLYDIR;
        rustix::fs::inotify::add_watch(&inotify, &watched, closes).unwrap();
        smol::unblock(move || std::fs::write(fifo, "\n")).await.unwrap();
        until("its output", async || {
            std::fs::read_to_string(machine.root.join("logs/own/app.log")).unwrap().contains("stdout F 3")
        })
        .await;
        let mut events = [0; 256];
        let read = rustix::io::read(&inotify, &mut events);
        assert_eq!(read, Err(rustix::io::Errno::AGAIN), "{}", String::from_utf8_lossy(&events));
        std::fs::write(watched.join("beside"), "").unwrap();
        assert!(rustix::io::read(&inotify, &mut [0; 256]).is_ok(), "it is watched");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_stop_waits_for_the_grace_period_and_kills_then() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("stop")).await;
        let stop = |id: String, timeout| {
            let runtime = runtime.clone();
            async move {
                let begun = Instant::now();
                let request = cri::StopContainerRequest { container_id: id.clone(), timeout };
                runtime.stop_container_cri(request).await.unwrap();
                (begun.elapsed(), exited(&runtime, &id).await.exit_code)
            }
        };
        let soft = run_container(
            &runtime,
            &sandbox,
            script("soft", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"),
        )
        .await;
        let hard = run_container(
            &runtime,
            &sandbox,
            script("hard", "trap '' TERM; echo up; while :; do sleep 0.05; done"),
        )
        .await;
        for name in ["soft", "hard"] {
            let log = machine.root.join(format!("logs/stop/{name}.log"));
            while !std::fs::read_to_string(&log).unwrap_or_default().contains("up") {
                async_io::Timer::after(Duration::from_millis(10)).await;
            }
        }
        let (took, code) = stop(soft.clone(), 30).await;
        assert!(code == 3 && took < Duration::from_secs(20), "{code} {took:?}");
        let (took, code) = stop(hard.clone(), 1).await;
        assert!(code == 137 && took >= Duration::from_secs(1), "{code} {took:?}");
        // Idempotent, also of one that is not there.
        stop(hard.clone(), 1).await;
        let none = cri::StopContainerRequest { container_id: "none".into(), timeout: 1 };
        runtime.stop_container_cri(none).await.unwrap();
        let again = start(&runtime, &hard).await.unwrap_err();
        assert!(again.to_string().contains("is not created but Exited"), "{again}");
        stop_sandbox(&runtime, &sandbox).await;
        let refused = create(&runtime, &sandbox, script("late", "true")).await.unwrap_err();
        assert!(refused.to_string().contains("the sandbox is not ready"), "{refused}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn commands_have_outputs_exit_codes_and_deadlines() {
    OCI_RUNTIMES.into_iter().for_each(run_commands);
}

fn run_commands(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("exec")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let ran = exec(&runtime, &id, "echo out; echo err >&2; exit 5").await.unwrap();
        assert_eq!((&*ran.stdout, &*ran.stderr, ran.exit_code), (&b"out\n"[..], &b"err\n"[..], 5));
        let much = exec(&runtime, &id, "head -c 20000000 /dev/zero").await.unwrap();
        assert_eq!((much.stdout.len(), much.exit_code), (16 << 20, 0));
        // Neither runs on nor is a zombie by the time that the caller is told; children of the command may be zombies of the
        // container's first process, which does not reap them.
        for (command, zombies) in
            [(&["/bin/sleep", "702"][..], 0), (&["/bin/sh", "-c", "sleep 700 & sleep 701"], 2)]
        {
            let processes = || async {
                let shown = exec(&runtime, &id, "ps -o stat,args").await.unwrap();
                String::from_utf8_lossy(&shown.stdout).into_owned()
            };
            let before = processes().await.lines().count();
            let begun = Stopwatch::start();
            let cmd = command.iter().map(|word| (*word).to_owned()).collect();
            let request = cri::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 1 };
            let late = runtime.exec_sync_cri(request).await.unwrap_err();
            assert!(matches!(late, RuntimeError::DeadlineExceeded(_)), "{late:?}");
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            let after = processes().await;
            assert!(!after.contains("sleep 70") && after.lines().count() <= before + zombies, "{after}");
        }
        let no = cri::ExecSyncRequest { container_id: id.clone(), cmd: vec!["/no/such".into()], timeout: 5 };
        let no = runtime.exec_sync_cri(no).await;
        let says_why = |error: &RuntimeError| error.to_string().to_ascii_lowercase().contains("no such file");
        assert!(no.as_ref().is_err_and(says_why), "{no:?}");
        // crun would end the argument there.
        let no =
            cri::ExecSyncRequest { container_id: id.clone(), cmd: vec!["/bin/true\0".into()], timeout: 5 };
        let no = runtime.exec_sync_cri(no).await;
        assert!(no.as_ref().is_err_and(|error| error.to_string().contains("NUL")), "{no:?}");
        // Ten at once.
        let many =
            (0..10).map(|number| exec(&runtime, &id, Box::leak(format!("echo {number}").into_boxed_str())));
        for (number, ran) in futures(many).await.into_iter().enumerate() {
            assert_eq!(String::from_utf8(ran.unwrap().stdout).unwrap(), format!("{number}\n"));
        }
        let left = std::fs::read_dir(machine.settings.run_dir.join("containers").join(&id)).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        let is_of_exec = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("exec-");
        assert!(!left.iter().any(is_of_exec), "{left:?}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// Whether its process ID is known yet or not.
#[test]
fn a_command_whose_caller_goes_away_is_killed_at_any_instant() {
    OCI_RUNTIMES.into_iter().for_each(leave_commands);
}

fn leave_commands(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("gone")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        for millis in (0..160).step_by(8) {
            let request = cri::ExecSyncRequest {
                container_id: id.clone(),
                cmd: vec!["/bin/sleep".into(), "700".into()],
                timeout: 60,
            };
            let call = async { runtime.exec_sync_cri(request).await.map(drop) };
            let gone = async {
                async_io::Timer::after(Duration::from_millis(millis)).await;
                Ok(())
            };
            smol::future::or(call, gone).await.unwrap();
        }
        // The last one may still be on its way into the container, and its file goes after it.
        until("the end of all commands", async || {
            let shown = exec(&runtime, &id, "ps").await.unwrap();
            let left = std::fs::read_dir(machine.settings.run_dir.join("containers").join(&id)).unwrap();
            let is_of_exec = |name: std::ffi::OsString| name.to_string_lossy().starts_with("exec-");
            !String::from_utf8_lossy(&shown.stdout).contains("sleep 700")
                && !left.map(|entry| entry.unwrap().file_name()).any(is_of_exec)
        })
        .await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// All of them, side by side.
async fn futures<T: 'static>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| Some(Box::pin(one))).collect();
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(move |cx| {
        for (slot, result) in all.iter_mut().zip(&mut done) {
            if let Some(future) = slot
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                (*slot, *result) = (None, Some(value));
            }
        }
        if all.iter().all(Option::is_none) {
            std::task::Poll::Ready(done.iter_mut().map(|value| value.take().unwrap()).collect())
        } else {
            std::task::Poll::Pending
        }
    })
    .await
}

#[test]
fn a_container_that_cannot_start_says_why() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("bad")).await;
        let mut config = script("app", "");
        config.command = vec!["/no/such/program".into()];
        let id = create(&runtime, &sandbox, config).await.unwrap();
        let error = start(&runtime, &id).await.unwrap_err().to_string();
        assert!(error.contains("/no/such/program") && error.contains("no such file"), "{error}");
        let status = container_of(&runtime, &id).await;
        assert_eq!((status.exit_code, &*status.reason, &*status.message), (128, "StartError", &*error));
        let mut absent = script("absent", "");
        absent.image.as_mut().unwrap().image = "nginx:9".into();
        let error = create(&runtime, &sandbox, absent).await.unwrap_err();
        assert!(matches!(&error, RuntimeError::NotFound(text) if text.contains("image \"nginx:9\" is not present")), "{error:?}");
        assert_eq!(runtime.list_containers_cri(Default::default()).await.unwrap().containers.len(), 1);
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn resources_usage_and_lists() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("use")).await;
        let mut config = script("app", "sleep 1000");
        config.linux.as_mut().unwrap().resources = Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            cpu_shares: 512,
            ..Default::default()
        });
        let id = run_container(&runtime, &sandbox, config).await;
        let limit = || {
            let path =
                format!("/sys/fs/cgroup/memory/{}/poduse/{id}/memory.limit_in_bytes", machine.cgroup());
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        assert_eq!(limit().trim(), (64 << 20).to_string());
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(cri::LinuxContainerResources {
                memory_limit_in_bytes: 128 << 20,
                ..Default::default()
            }),
        };
        runtime.update_container_resources_cri(request).await.unwrap();
        assert_eq!(limit().trim(), (128 << 20).to_string());
        let resources = container_of(&runtime, &id).await.resources.unwrap().linux.unwrap();
        assert_eq!((resources.memory_limit_in_bytes, resources.cpu_shares), (128 << 20, 512));
        // Before its start.
        let mut config = script("later", "sleep 1000");
        config.linux.as_mut().unwrap().resources = Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            cpu_shares: 512,
            ..Default::default()
        });
        let later = create(&runtime, &sandbox, config).await.unwrap();
        let request = cri::UpdateContainerResourcesRequest {
            container_id: later.clone(),
            linux: Some(cri::LinuxContainerResources {
                memory_limit_in_bytes: 96 << 20,
                ..Default::default()
            }),
        };
        runtime.update_container_resources_cri(request).await.unwrap();
        start(&runtime, &later).await.unwrap();
        let of_cgroup = |controller: &str, name: &str| {
            let path = format!("/sys/fs/cgroup/{controller}/{}/poduse/{later}/{name}", machine.cgroup());
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        assert_eq!(of_cgroup("memory", "memory.limit_in_bytes").trim(), (96 << 20).to_string());
        assert_eq!(of_cgroup("cpu", "cpu.shares").trim(), "512", "what was not asked for stays");
        runtime.remove_container_cri(cri::RemoveContainerRequest { container_id: later }).await.unwrap();

        let stats = runtime.list_container_stats_cri(Default::default()).await.unwrap().stats;
        assert_eq!((stats.len(), &*stats[0].attributes.as_ref().unwrap().id), (1, &*id));
        let memory = stats[0].memory.unwrap();
        assert!(memory.usage_bytes.unwrap().value >= memory.working_set_bytes.unwrap().value, "{memory:?}");
        assert!(stats[0].cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
        let pod = runtime
            .pod_sandbox_stats_cri(cri::PodSandboxStatsRequest { pod_sandbox_id: sandbox.clone() })
            .await
            .unwrap();
        let linux = pod.stats.unwrap().linux.unwrap();
        assert_eq!(linux.network.unwrap().default_interface.unwrap().name, "eth0");
        assert!(linux.memory.unwrap().usage_bytes.unwrap().value >= memory.usage_bytes.unwrap().value / 2);
        assert_eq!(linux.containers.len(), 1);

        let of = |filter: cri::ContainerFilter| {
            let runtime = runtime.clone();
            async move {
                runtime
                    .list_containers_cri(cri::ListContainersRequest { filter: Some(filter) })
                    .await
                    .unwrap()
                    .containers
                    .len()
            }
        };
        let label = |value: &str| cri::ContainerFilter {
            label_selector: [("container".to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        assert_eq!((of(label("app")).await, of(label("other")).await), (1, 0));
        assert_eq!(
            of(cri::ContainerFilter { pod_sandbox_id: sandbox.clone(), ..Default::default() }).await,
            1
        );

        // The agent's own view of it.
        let mut items = Vec::new();
        runtime.list_containers(None, &mut |item| items.push(item)).await.unwrap();
        assert_eq!((items.len(), &*items[0].name), (1, "app"));
        let refused = runtime.follow_events(EventService::Containerd, &mut |_| {}).await;
        assert!(matches!(refused, Err(RuntimeError::Unimplemented(_))));

        // Its log is rotated.
        let log = machine.root.join("logs/use/app.log");
        std::fs::rename(&log, log.with_extension("old")).unwrap();
        runtime
            .reopen_container_log_cri(cri::ReopenContainerLogRequest { container_id: id.clone() })
            .await
            .unwrap();
        assert!(log.is_file());
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn containers_of_a_pod_share_process_ids_where_it_asks_for_that() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let mut config = machine.pod("shared");
        let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        options.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Pod.into();
        let sandbox = run_sandbox(&runtime, config).await;
        let shares = |name: &str, text: &str| {
            let mut config = script(name, text);
            let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
            options.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Pod.into();
            config
        };
        let one = run_container(&runtime, &sandbox, shares("one", "sleep 601")).await;
        let two = run_container(&runtime, &sandbox, shares("two", "sleep 602 & sleep 603")).await;
        let processes = async || String::from_utf8(exec(&runtime, &one, "ps").await.unwrap().stdout).unwrap();
        until("both containers' processes", async || {
            let processes = processes().await;
            processes.contains("pause") && processes.contains("sleep 602") && processes.contains("sleep 601")
        })
        .await;
        // What outlives a container's first process ends with it.
        let request = cri::StopContainerRequest { container_id: two.clone(), timeout: 0 };
        runtime.stop_container_cri(request).await.unwrap();
        until("the end of all of them, zombies included", async || {
            let processes = processes().await;
            !processes.contains("sleep 602") && !processes.contains("[sleep]")
        })
        .await;
        drop(runtime);
        let runtime = machine.open().await;
        assert_eq!(status_of(&runtime, &sandbox).await.state, 0);
        // A container that looks at another one's processes.
        let mut target = script("target", "ps > /tmp/ps; exit 0");
        let options = target.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        let options = options.namespace_options.as_mut().unwrap();
        (options.pid, options.target_id) = (cri::NamespaceMode::Target.into(), one.clone());
        let target = run_container(&runtime, &sandbox, target).await;
        assert_eq!(exited(&runtime, &target).await.exit_code, 0);
        let seen = std::fs::read_to_string(machine.root.join("rootfs").join(&target).join("tmp/ps")).unwrap();
        assert!(seen.contains("sleep 601"), "{seen}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// What a process has from its container: a command has the same as the first process, whichever OCI runtime starts it.
const SHOW_PROCESS: &str = "id; echo $OF_IMAGE $OF_POD; echo $PATH $HOME; pwd; \
    grep -E '^(NoNewPrivs|Seccomp|Cap...|Groups):' /proc/self/status; umask; \
    grep -E 'open files|core file|processes' /proc/self/limits; cat /proc/self/oom_score_adj";

#[test]
fn a_container_runs_as_its_user_with_what_its_image_says() {
    OCI_RUNTIMES.into_iter().for_each(run_as_user);
}

fn run_as_user(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("user")).await;
        let mut config = script("app", &format!("{SHOW_PROCESS}; sleep 100"));
        config.envs = vec![cri::KeyValue { key: "OF_POD".into(), value: "secret".into() }];
        let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.run_as_username = "web".into();
        context.no_new_privs = true;
        context.supplemental_groups = vec![7777];
        config.linux.as_mut().unwrap().resources =
            Some(cri::LinuxContainerResources { oom_score_adj: 300, ..Default::default() });
        let id = run_container(&runtime, &sandbox, config).await;
        let log = machine.root.join("logs/user/app.log");
        let read = || std::fs::read_to_string(&log).unwrap();
        until("its output", async || read().contains("F 300\n")).await;
        let text = read();
        assert!(text.contains("uid=100(web) gid=101(web) groups=101(web),102(extra),7777"), "{text}");
        assert!(text.contains("F yes secret\n") && text.contains("F /tmp\n"), "{text}");
        let user = container_of(&runtime, &id).await.user.unwrap().linux.unwrap();
        assert_eq!((user.uid, user.gid, user.supplemental_groups.contains(&102)), (100, 101, true));
        let record =
            std::fs::read(machine.settings.root_dir.join("containers").join(&id).join("record")).unwrap();
        assert!(!String::from_utf8_lossy(&record).contains("secret"), "no secret on the disk");
        let own: Vec<&str> = text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap()).collect();
        assert!(own.contains(&"NoNewPrivs:\t1") && own.contains(&"300"), "{own:?}");
        let ran = exec(&runtime, &id, SHOW_PROCESS).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout).lines().collect::<Vec<_>>(), own, "{ran:?}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_container_that_needs_too_much_memory_is_reported() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("oom")).await;
        let mut config = script("app", "x=$(head -c 200000000 /dev/zero | busybox tr '\\0' x); echo ${#x}");
        config.linux.as_mut().unwrap().resources =
            Some(cri::LinuxContainerResources { memory_limit_in_bytes: 20 << 20, ..Default::default() });
        let id = run_container(&runtime, &sandbox, config).await;
        let status = exited(&runtime, &id).await;
        assert_eq!((&*status.reason, status.exit_code), ("OOMKilled", 137), "{status:?}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// The volumes of an image are directories with what the image has there, of the container alone, and go with it.
#[test]
fn volumes_of_the_image_are_the_containers_own() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("volumes")).await;
        let mounted = machine.root.join("mounted");
        std::fs::create_dir_all(&mounted).unwrap();
        std::fs::write(mounted.join("of-the-pod"), "").unwrap();
        let with_volumes = |name: &str| {
            let mut config = script(name, "sleep 1000");
            config.image = Some(cri::ImageSpec { image: "with-volumes".into(), ..Default::default() });
            config.mounts = vec![cri::Mount {
                container_path: "/mounted".into(),
                host_path: mounted.display().to_string(),
                ..Default::default()
            }];
            config
        };
        let one = run_container(&runtime, &sandbox, with_volumes("one")).await;
        let two = run_container(&runtime, &sandbox, with_volumes("two")).await;
        let seen = exec(
            &runtime,
            &one,
            "echo one > /etc/made; touch /none/below/x; ls /etc /none/below /mounted; stat -c %a /data /etc; \
             grep -c ' /etc ' /proc/self/mountinfo; echo gone > /data/x",
        );
        let seen = String::from_utf8(seen.await.unwrap().stdout).unwrap();
        for name in ["passwd", "group", "made", "of-the-pod", "755\n755\n1\n"] {
            assert!(seen.contains(name), "{seen}");
        }
        let seen = exec(&runtime, &two, "ls /etc /data").await.unwrap();
        assert!(!String::from_utf8_lossy(&seen.stdout).contains("made"), "{seen:?}");
        let volumes = machine.settings.root_dir.join("containers").join(&one).join("volumes");
        let made: Vec<_> = std::fs::read_dir(&volumes).unwrap().collect();
        assert_eq!(made.len(), 3, "none for the path of the pod's mount: {made:?}");
        assert!(!machine.root.join("rootfs").join(&one).join("etc/made").exists());
        runtime
            .remove_container_cri(cri::RemoveContainerRequest { container_id: one.clone() })
            .await
            .unwrap();
        assert!(!volumes.exists());
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}
