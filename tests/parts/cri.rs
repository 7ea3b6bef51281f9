//! `GrpcRuntime` against the fake runtime: every method of the trait, over a real socket.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::common::fake::{BreakOff, Exec, Fake, Program, Services};
use smolet::clock::{SharedClock, VirtualClock};
use smolet::cri::endpoint::{self, Candidates, EndpointError, Origin};
use smolet::cri::shims::{Shim, orphaned};
use smolet::cri::{CpuSample, GrpcRuntime, Runtime, RuntimeError};
use smolet::executor::Executor;
use smolet::limits::{self, GRPC_CALLS_MAX};
use smolet::model::{ContainerId, ContainerState, PodUid, SandboxId, SandboxState, Seconds, Wall};
use smolet::proto::runtime::v1 as cri;

const START: Wall = Wall(1_770_000_000_000_000_000);

/// A fake, a client of it, and the clock both live by.
struct World {
    fake: Fake,
    clock: VirtualClock,
    executor: Rc<Executor>,
    runtime: GrpcRuntime,
}

impl World {
    fn new() -> Self {
        let clock = VirtualClock::new(START);
        let fake = Fake::start(clock.clone());
        let executor = Rc::new(Executor::new());
        let shared: SharedClock = Rc::new(clock.clone());
        let runtime = GrpcRuntime::new(fake.socket(), &executor, shared);
        Self { fake, clock, executor, runtime }
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    fn shared_clock(&self) -> SharedClock {
        Rc::new(self.clock.clone())
    }

    /// Moves the clock by `step` every few milliseconds, from the fake's next call of `method` until `work` is done. Not while the
    /// fake answers: on a busy machine that may take longer than the client's time.
    fn run_while_time_passes<T>(&self, method: &str, step: Duration, work: impl Future<Output = T>) -> T {
        let before = self.fake.count(method);
        let passing = async {
            while self.fake.count(method) == before {
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            loop {
                async_io::Timer::after(Duration::from_millis(3)).await;
                if self.fake.is_idle() {
                    self.clock.advance(step);
                }
            }
        };
        self.run(smol::future::or(work, passing))
    }

    /// Calls until the runtime's absence is noticed and one attempt to connect has failed.
    fn until_refused(&self) {
        for _ in 0..1000 {
            let error = self.run(self.runtime.version()).unwrap_err();
            assert!(matches!(error, RuntimeError::Unavailable(_)), "{error:?}");
            if error.to_string().contains("Connection refused") {
                return;
            }
            self.run(async_io::Timer::after(Duration::from_millis(1)));
        }
        panic!("the lost connection is never noticed");
    }

    fn pod(&self, name: &str) -> SandboxId {
        self.run(self.runtime.run_pod_sandbox(&sandbox_config(name), "")).expect("the sandbox starts")
    }

    fn container(&self, sandbox: &SandboxId, pod: &str, name: &str, attempt: u32) -> ContainerId {
        self.fake.add_image("busybox");
        let config = container_config(pod, name, attempt);
        self.run(async {
            let id =
                self.runtime.create_container(sandbox, &config, &sandbox_config(pod)).await.expect("created");
            self.runtime.start_container(&id).await.expect("started");
            id
        })
    }
}

fn labels(pod: &str) -> BTreeMap<String, String> {
    [("name", pod), ("namespace", "default"), ("uid", &format!("uid-{pod}"))]
        .map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned()))
        .into()
}

/// The UID of `web`.
fn uid() -> PodUid {
    PodUid::from("uid-web")
}

fn sandbox_config(pod: &str) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.into(),
            uid: format!("uid-{pod}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        labels: labels(pod),
        annotations: BTreeMap::from([("smolet.io/node".into(), "gateway".into())]),
        ..Default::default()
    }
}

fn container_config(pod: &str, name: &str, attempt: u32) -> cri::ContainerConfig {
    let mut labels = labels(pod);
    labels.insert("io.kubernetes.container.name".into(), name.into());
    let annotations = BTreeMap::from([
        ("io.kubernetes.container.hash".into(), "1f".into()),
        ("io.kubernetes.container.restartCount".into(), attempt.to_string()),
        ("io.kubernetes.pod.terminationGracePeriod".into(), "30".into()),
    ]);
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: name.into(), attempt }),
        image: Some(cri::ImageSpec { image: "busybox".into(), ..Default::default() }),
        labels,
        annotations,
        ..Default::default()
    }
}

#[test]
fn a_pod_lives_and_dies() {
    let world = World::new();
    let sandbox = world.pod("web");
    let status = world.run(world.runtime.pod_sandbox_status(&sandbox)).unwrap();
    assert_eq!(status.state, SandboxState::Ready);
    assert_eq!(&*status.network.unwrap().ip, "10.88.0.3");
    assert_eq!(status.created_at, START);

    let id = world.container(&sandbox, "web", "app", 2);
    world.clock.advance(Duration::from_secs(5));
    let running = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!((running.state, &*running.name), (ContainerState::Running, "app"));
    assert_eq!((running.started_at, running.finished_at), (Some(START), None));
    assert_eq!((running.meta.hash, running.meta.restart_count), (0x1f, 2));
    assert_eq!(running.meta.termination_grace_period, Some(30));

    world.run(world.runtime.stop_container(&uid(), &id, Seconds(30))).unwrap();
    let exited = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!((exited.state, exited.exit_code, &*exited.reason), (ContainerState::Exited, 143, "Error"));
    assert_eq!(exited.finished_at, Some(Wall(START.0 + 5_000_000_000)));

    world.run(async {
        world.runtime.remove_container(&id).await.unwrap();
        world.runtime.stop_pod_sandbox(&uid(), &sandbox).await.unwrap();
        let status = world.runtime.pod_sandbox_status(&sandbox).await.unwrap();
        assert_eq!(status.state, SandboxState::NotReady);
        world.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
        let gone = world.runtime.pod_sandbox_status(&sandbox).await.unwrap_err();
        assert!(matches!(gone, RuntimeError::NotFound(_)), "{gone:?}");
        let gone = world.runtime.container_status(&id).await.unwrap_err();
        assert!(matches!(gone, RuntimeError::NotFound(_)), "{gone:?}");
    });
    assert_eq!(
        world.fake.actions(),
        [
            "RunPodSandbox web#0",
            "CreateContainer web/app#2",
            "StartContainer web/app#2",
            "StopContainer web/app#2 grace=30",
            "RemoveContainer web/app#2",
            "StopPodSandbox web#0",
            "RemovePodSandbox web#0",
        ]
    );
    assert_eq!(world.fake.connections(), 1, "all calls share one connection");
}

#[test]
fn lists_are_of_one_pod_or_of_all() {
    let world = World::new();
    let web = world.pod("web");
    let db = world.pod("db");
    let app = world.container(&web, "web", "app", 0);
    world.container(&db, "db", "postgres", 1);
    world.run(async {
        let mut all = Vec::new();
        world.runtime.list_pod_sandboxes(None, &mut |item| all.push(item)).await.unwrap();
        assert_eq!(all.iter().map(|item| item.id.clone()).collect::<Vec<_>>(), [web.clone(), db.clone()]);
        assert_eq!(all[0].node.as_deref(), Some("gateway"));
        assert_eq!(all[0].pod.to_string(), "default/web");

        let mut one = Vec::new();
        let uid = PodUid::from("uid-web");
        world.runtime.list_pod_sandboxes(Some(&uid), &mut |item| one.push(item.id)).await.unwrap();
        assert_eq!(one, [web]);

        let mut containers = Vec::new();
        world.runtime.list_containers(Some(&uid), &mut |item| containers.push(item)).await.unwrap();
        assert_eq!(containers.len(), 1);
        assert_eq!((&containers[0].id, &*containers[0].name), (&app, "app"));
        assert_eq!(containers[0].state, ContainerState::Running);
        assert_eq!(containers[0].pod.as_ref().unwrap().uid, uid);
        assert!(containers[0].image.starts_with("sha256:"));

        let mut count = 0;
        world.runtime.list_containers(None, &mut |_| count += 1).await.unwrap();
        assert_eq!(count, 2);
    });
}

#[test]
fn an_item_too_large_is_skipped_in_the_whole_list_and_an_error_in_the_pods() {
    let world = World::new();
    let web = world.pod("web");
    world.container(&web, "web", "app", 0);
    world.container(&web, "web", "big", 0);
    let id = world.fake.state().container("big").unwrap().id.clone();
    let huge = "x".repeat(limits::CRI_ITEM_BYTES_MAX);
    let annotations = BTreeMap::from([("huge".to_owned(), huge)]);
    world.fake.state().containers.get_mut(&id).unwrap().config.annotations = annotations;
    world.run(async {
        let mut names = Vec::new();
        world.runtime.list_containers(None, &mut |item| names.push(item.name.to_string())).await.unwrap();
        assert_eq!(names, ["app"]);
        let uid = PodUid::from("uid-web");
        let error = world.runtime.list_containers(Some(&uid), &mut |_| ()).await.unwrap_err();
        assert!(matches!(&error, RuntimeError::Protocol(m) if m.contains("over the limit")), "{error:?}");
        // The connection is as good as before.
        world.runtime.version().await.unwrap();
    });
    assert_eq!(world.fake.connections(), 1);
}

#[test]
fn lists_are_streamed_where_the_runtime_can() {
    let world = World::new();
    for pod in ["a", "b", "c"] {
        let sandbox = world.pod(pod);
        world.container(&sandbox, pod, "app", 0);
    }
    let lists = || {
        world.run(async {
            let (mut sandboxes, mut containers, mut images) = (Vec::new(), Vec::new(), 0);
            world.runtime.list_pod_sandboxes(None, &mut |item| sandboxes.push(item.id)).await.unwrap();
            world.runtime.list_containers(None, &mut |item| containers.push(item.id)).await.unwrap();
            world.runtime.list_images(&mut |_| images += 1).await.unwrap();
            let (uid, mut one) = (PodUid::from("uid-b"), 0);
            world.runtime.list_containers(Some(&uid), &mut |_| one += 1).await.unwrap();
            let nobody = PodUid::from("nobody");
            world.runtime.list_containers(Some(&nobody), &mut |_| one += 100).await.unwrap();
            assert_eq!((images, one), (1, 1));
            (sandboxes, containers)
        })
    };
    let listed = || {
        let calls = ["List", "Stream"].map(|kind| {
            let of_kind = |call: &&String| call.starts_with(kind);
            world.fake.calls().iter().filter(of_kind).count()
        });
        world.fake.clear_calls();
        calls
    };
    listed();
    let whole = lists();
    assert_eq!((whole.0.len(), whole.1.len()), (3, 3));
    assert_eq!(listed(), [5, 3], "each streaming call is tried once");
    assert_eq!(lists(), whole);
    assert_eq!(listed(), [5, 0], "and not again over this connection");

    // The runtime is upgraded: it comes back with streaming.
    world.fake.state().streams_lists = true;
    assert_eq!(lists(), whole);
    assert_eq!(listed(), [5, 0]);
    world.fake.drop_connections();
    while world.run(world.runtime.version()).is_err() {}
    listed();
    assert_eq!(lists(), whole);
    assert_eq!(listed(), [0, 5], "another connection may lead to another runtime");
    assert_eq!(lists(), whole);
    assert_eq!(listed(), [0, 5]);

    // Any other error is the list's own.
    world.fake.fail("StreamContainers", 1, 8, "too much");
    let failed = world.run(world.runtime.list_containers(None, &mut |_| panic!("no item")));
    assert!(matches!(&failed, Err(RuntimeError::Failed { code: 8, .. })), "{failed:?}");
    world.fake.lose_answer("StreamContainers", 1);
    let lost = world.run(world.runtime.list_containers(None, &mut |_| panic!("no item")));
    assert!(matches!(&lost, Err(RuntimeError::Unavailable(_))), "{lost:?}");
    // A stream that never ends has the deadline of a list.
    while world.run(world.runtime.version()).is_err() {}
    world.fake.hang("StreamContainers");
    let hung = world.run_while_time_passes(
        "StreamContainers",
        Duration::from_secs(10),
        world.runtime.list_containers(None, &mut |_| panic!("no item")),
    );
    assert!(matches!(&hung, Err(RuntimeError::DeadlineExceeded(_))), "{hung:?}");
}

#[test]
fn a_streamed_list_that_is_cut_off_after_some_items_is_no_list() {
    const METHOD: &str = "StreamContainers";
    let world = World::new();
    world.fake.state().streams_lists = true;
    for pod in ["a", "b", "c", "d"] {
        let sandbox = world.pod(pod);
        world.container(&sandbox, pod, "app", 0);
    }
    // What the list ends with, after how many items; `cut` = the connection is lost then.
    let list = |how: BreakOff, cut: bool| {
        world.fake.break_off(METHOD, how);
        let mut items = 0;
        let mut each = |_| {
            items += 1;
            if cut && items == 2 {
                world.fake.drop_connections();
            }
        };
        let listing = world.runtime.list_containers(None, &mut each);
        // Only its deadline ends a stream that became silent.
        let silent = matches!(how, BreakOff::Silence) && !cut;
        let listed = if silent {
            world.run_while_time_passes(METHOD, Duration::from_secs(10), listing)
        } else {
            world.run(listing)
        };
        (items, listed.expect_err("half a list is none"))
    };
    let (items, error) = list(BreakOff::NoStatus, false);
    assert!(items == 2 && matches!(&error, RuntimeError::Protocol(_)), "{items}, {error:?}");
    let (items, error) = list(BreakOff::Status(13), false);
    assert!(items == 2 && matches!(&error, RuntimeError::Failed { code: 13, .. }), "{items}, {error:?}");
    let (items, error) = list(BreakOff::WithinMessage, false);
    assert!(items == 1 && matches!(&error, RuntimeError::Protocol(_)), "{items}, {error:?}");
    let (items, error) = list(BreakOff::Silence, false);
    assert!(items == 2 && matches!(&error, RuntimeError::DeadlineExceeded(_)), "{items}, {error:?}");
    let (items, error) = list(BreakOff::Silence, true);
    assert!(items == 2 && matches!(&error, RuntimeError::Unavailable(_)), "{items}, {error:?}");
    while world.run(world.runtime.version()).is_err() {}
    // Not even when the runtime says, that late, that it has no such call: the items would come twice.
    world.fake.clear_calls();
    let (items, error) = list(BreakOff::Status(12), false);
    assert!(items == 2 && matches!(&error, RuntimeError::Protocol(_)), "{items}, {error:?}");
    assert_eq!(world.fake.count("ListContainers"), 0);

    let mut items = 0;
    world.run(world.runtime.list_containers(None, &mut |_| items += 1)).expect("the next list is whole");
    assert_eq!(items, 4);
}

#[test]
fn what_running_containers_use_is_listed() {
    for streams in [false, true] {
        let world = World::new();
        world.fake.state().streams_lists = streams;
        let sandbox = world.pod("web");
        let id = world.container(&sandbox, "web", "app", 0);
        world.container(&sandbox, "web", "ended", 0);
        world.fake.exit("web/ended", 0, "", "");
        world.clock.advance(Duration::from_secs(8));
        let mut all = Vec::new();
        world.run(world.runtime.list_container_stats(&mut |stats| all.push(stats))).unwrap();
        let [stats] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&stats.id, stats.pod.as_ref().map(|pod| &*pod.name)), (&id, Some("web")));
        // A quarter of a core and 5 MiB.
        let cpu = CpuSample { at: Wall(START.0 + 8_000_000_000), nanos: 2_000_000_000 };
        assert_eq!((stats.cpu, stats.nano_cores, stats.memory_bytes), (Some(cpu), None, Some(5 << 20)));
        assert_eq!(world.fake.count("ListContainerStats"), usize::from(!streams));
    }
}

#[test]
fn images_come_and_go() {
    let world = World::new();
    world.fake.missing_image("nothing:1");
    let sandbox = sandbox_config("web");
    world.run(async {
        let runtime = &world.runtime;
        assert_eq!(runtime.image_status("nginx").await.unwrap(), None);
        let id = runtime.pull_image("nginx", None, &sandbox).await.unwrap();
        let image = runtime.image_status("nginx").await.unwrap().expect("pulled");
        assert_eq!((&image.id, &*image.repo_tags[0]), (&id, "docker.io/library/nginx:latest"));

        let error = runtime.pull_image("nothing:1", None, &sandbox).await.unwrap_err();
        assert!(
            matches!(&error, RuntimeError::NotFound(m) if m.contains("nothing:1: not found")),
            "{error:?}"
        );

        let mut sizes = 0;
        runtime.list_images(&mut |image| sizes += image.size_bytes).await.unwrap();
        let usage = runtime.image_fs_info().await.unwrap();
        assert_eq!((&*usage[0].mountpoint, usage[0].used_bytes), ("/var/lib/fake", sizes));
        assert_eq!(usage[0].timestamp, START);
        runtime.remove_image(&id).await.unwrap();
        runtime.remove_image(&id).await.unwrap();
        assert_eq!(runtime.image_status("nginx").await.unwrap(), None);
    });
}

#[test]
fn exec_keeps_the_beginning_of_what_a_command_prints() {
    let world = World::new();
    let sandbox = world.pod("web");
    let id = world.container(&sandbox, "web", "app", 0);
    // Far over what a whole answer may have.
    let stdout = vec![b'o'; 3 * limits::GRPC_ANSWER_BYTES_MAX];
    world.fake.exec("check", Exec { code: -7, stdout, stderr: b"oops".to_vec() });
    world.run(async {
        let command = ["/bin/check".to_owned(), "--now".to_owned()];
        let output = world.runtime.exec_sync(&id, &command, Duration::from_secs(1)).await.unwrap();
        assert_eq!(output.stdout, vec![b'o'; limits::EXEC_OUTPUT_BYTES_MAX]);
        assert_eq!((&*output.stderr, output.exit_code), (&b"oops"[..], -7));
        let other = world.runtime.exec_sync(&id, &["true".to_owned()], Duration::ZERO).await.unwrap();
        assert_eq!((other.exit_code, other.stdout.len()), (0, 0));
    });
    assert!(world.fake.calls().contains(&"ExecSync web/app#0 /bin/check --now".to_owned()));
}

#[test]
fn programs_end_on_the_fakes_clock() {
    let world = World::new();
    world.fake.program("job", Program::exits(3, Duration::from_secs(10)));
    let sandbox = world.pod("web");
    let id = world.container(&sandbox, "web", "job", 0);
    world.clock.advance(Duration::from_secs(9));
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!(status.state, ContainerState::Running);
    world.clock.advance(Duration::from_secs(5));
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 3));
    assert_eq!(
        status.finished_at,
        Some(Wall(START.0 + 10_000_000_000)),
        "when it ended, not when it was seen"
    );
}

#[test]
fn a_stubborn_container_is_killed_after_its_grace_period() {
    let world = World::new();
    world.fake.program("app", Program::STUBBORN);
    let sandbox = world.pod("web");
    let id = world.container(&sandbox, "web", "app", 0);
    // The grace period is longer than the usual deadline: StopContainer adds it.
    let grace = Seconds(300);
    world
        .run_while_time_passes(
            "StopContainer",
            Duration::from_secs(1),
            world.runtime.stop_container(&uid(), &id, grace),
        )
        .expect("no deadline passes");
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!(status.exit_code, 137);
    assert!(status.finished_at.unwrap().0 >= START.0 + 300_000_000_000);
}

#[test]
fn deadlines_are_the_kubelets() {
    // A method hangs; the time at which the client gives up is its deadline.
    let deadline = |method: &str, call: &dyn Fn(&World) -> Result<(), RuntimeError>| {
        let world = World::new();
        world.fake.hang(method);
        let error = call(&world).unwrap_err();
        assert!(matches!(error, RuntimeError::DeadlineExceeded(_)), "{method}: {error:?}");
        assert!(error.to_string().contains(method), "{error}");
        use smolet::clock::Clock;
        let told = world.fake.state().calls.last().unwrap().timeout.clone();
        let told: i64 = told.as_deref().and_then(|header| header.strip_suffix('m')).unwrap().parse().unwrap();
        ((world.clock.now().wall.0 - START.0) / 1_000_000_000, told / 1000)
    };
    let second = Duration::from_secs(1);
    let id = ContainerId::from("c");
    for (method, seconds, call) in [
        (
            "Version",
            120,
            Box::new(|w: &World| w.run_while_time_passes("Version", second, w.runtime.version()).map(drop))
                as Box<dyn Fn(&World) -> Result<(), RuntimeError>>,
        ),
        (
            "RunPodSandbox",
            240,
            Box::new(|w: &World| {
                w.run_while_time_passes(
                    "RunPodSandbox",
                    second,
                    w.runtime.run_pod_sandbox(&sandbox_config("p"), ""),
                )
                .map(drop)
            }),
        ),
        (
            "StopContainer",
            150,
            Box::new(|w: &World| {
                w.run_while_time_passes(
                    "StopContainer",
                    second,
                    w.runtime.stop_container(&uid(), &id, Seconds(30)),
                )
            }),
        ),
        (
            "ExecSync",
            125,
            Box::new(|w: &World| {
                w.run_while_time_passes(
                    "ExecSync",
                    second,
                    w.runtime.exec_sync(&id, &[], Duration::from_secs(5)),
                )
                .map(drop)
            }),
        ),
    ] {
        let (gave_up, told) = deadline(method, &*call);
        assert_eq!(told, seconds, "{method}: grpc-timeout");
        assert!((seconds..seconds + 5).contains(&gave_up), "{method} gave up after {gave_up} s");
    }
}

#[test]
fn a_pull_has_no_deadline_and_can_be_dropped() {
    let world = World::new();
    world.fake.hang("PullImage");
    let sandbox = sandbox_config("web");
    world.run(async {
        let pull = async { Some(world.runtime.pull_image("nginx", None, &sandbox).await) };
        let days = async {
            while world.fake.count("PullImage") == 0 {
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            for _ in 0..20 {
                async_io::Timer::after(Duration::from_millis(2)).await;
                world.clock.advance(Duration::from_hours(24));
            }
            None
        };
        assert_eq!(smol::future::or(pull, days).await, None, "still pulling after 20 days");
        world.runtime.version().await.expect("the connection goes on");
    });
    assert_eq!(world.fake.connections(), 1);
}

#[test]
fn stuck_calls_hold_up_nobody() {
    let world = World::new();
    let sandbox = world.pod("web");
    let stuck = world.container(&sandbox, "web", "stuck", 0);
    let fine = world.container(&sandbox, "web", "fine", 0);
    world.fake.hang_on("ContainerStatus", "stuck");
    let runtime = world.runtime.clone();
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let (runtime, stuck) = (runtime.clone(), stuck.clone());
            world.executor.spawn("test", async move { runtime.container_status(&stuck).await })
        })
        .collect();
    world.run(async {
        for _ in 0..200 {
            assert_eq!(world.runtime.container_status(&fine).await.unwrap().id, fine);
        }
        assert!(waiting.iter().all(|task| !task.is_finished()));
        world.fake.heal("ContainerStatus");
        for task in waiting {
            assert_eq!(task.await.unwrap().id, stuck);
        }
    });
    assert_eq!(world.fake.connections(), 2, "one that stays, one for the calls over its number");
}

#[test]
fn more_hanging_stops_and_pulls_than_calls_there_may_be_hold_up_nothing_else() {
    let world = World::new();
    let sandbox = world.pod("web");
    let container = world.container(&sandbox, "web", "app", 0);
    world.fake.hang_on("StopContainer", "web");
    world.fake.hang_on("StopPodSandbox", "web");
    world.fake.hang_on("PullImage", "slow");
    let pulls: Vec<_> = (0..2 * GRPC_CALLS_MAX)
        .map(|n| {
            let (runtime, image) = (world.runtime.clone(), format!("slow:{n}"));
            world
                .executor
                .spawn("test", async move { runtime.pull_image(&image, None, &sandbox_config("web")).await })
        })
        .collect();
    let stops: Vec<_> = (0..2 * GRPC_CALLS_MAX)
        .map(|n| {
            let (runtime, sandbox, container) = (world.runtime.clone(), sandbox.clone(), container.clone());
            world.executor.spawn("test", async move {
                if n % 2 == 0 {
                    runtime.stop_container(&uid(), &container, Seconds(3600)).await
                } else {
                    runtime.stop_pod_sandbox(&uid(), &sandbox).await
                }
            })
        })
        .collect();
    world.run(async {
        for _ in 0..20 {
            assert_eq!(world.runtime.container_status(&container).await.unwrap().id, container);
        }
        assert!(stops.iter().all(|stop| !stop.is_finished()));
        let config = sandbox_config("other");
        let other = world.runtime.run_pod_sandbox(&config, "").await.expect("another pod begins");
        world.runtime.pull_image("quick", None, &config).await.expect("it pulls");
        world.runtime.stop_pod_sandbox(&PodUid::from("uid-other"), &other).await.expect("it ends");
        // Pulls go on hanging.
        world.fake.heal("StopContainer");
        world.fake.heal("StopPodSandbox");
        for stop in stops {
            stop.await.expect("it comes to its turn");
        }
        assert!(pulls.iter().all(|pull| !pull.is_finished()));
    });
}

#[test]
fn faults_come_as_scripted() {
    let world = World::new();
    world.fake.fail("RunPodSandbox", 2, 2, "failed to set up network: 100% of addresses in use\nretry later");
    world.run(async {
        for _ in 0..2 {
            let error = world.runtime.run_pod_sandbox(&sandbox_config("web"), "").await.unwrap_err();
            let message = "failed to set up network: 100% of addresses in use\nretry later".to_owned();
            assert_eq!(error, RuntimeError::Failed { code: 2, message });
        }
    });
    let sandbox = world.pod("web");
    let id = world.container(&sandbox, "web", "app", 0);
    world.fake.exit("web/app", 137, "OOMKilled", "memory");
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!((status.exit_code, &*status.reason, &*status.message), (137, "OOMKilled", "memory"));

    let id = world.container(&sandbox, "web", "app", 1);
    world.fake.report_unknown("app");
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!(status.state, ContainerState::Unknown);
    world.fake.forget_container("app");
    let gone = world.run(world.runtime.container_status(&id)).unwrap_err();
    assert!(matches!(gone, RuntimeError::NotFound(_)));

    world.fake.stop_sandbox("web");
    let status = world.run(world.runtime.pod_sandbox_status(&sandbox)).unwrap();
    assert_eq!(status.state, SandboxState::NotReady);

    // Names are reserved as containerd reserves them.
    let error = world.run(world.runtime.run_pod_sandbox(&sandbox_config("web"), "")).unwrap_err();
    assert!(error.to_string().contains("is reserved for \"sandbox-0001\""), "{error}");
}

#[test]
fn a_lost_answer_is_unavailable_though_the_work_is_done() {
    let world = World::new();
    world.run(world.runtime.version()).unwrap();
    world.fake.lose_answer("RunPodSandbox", 1);
    let error = world.run(world.runtime.run_pod_sandbox(&sandbox_config("web"), "")).unwrap_err();
    assert!(matches!(&error, RuntimeError::Unavailable(m) if m.starts_with("RunPodSandbox: ")), "{error:?}");
    assert_eq!(world.fake.state().sandboxes.len(), 1);
    assert_eq!(world.fake.count("RunPodSandbox"), 1, "not repeated: it may have been done");
    world.run(world.runtime.version()).expect("connects again at once");
    assert_eq!(world.fake.connections(), 2);
}

#[test]
fn a_runtime_that_is_down_is_tried_with_back_off() {
    let world = World::new();
    world.run(world.runtime.version()).unwrap();
    world.fake.refuse_connections();
    let refused = |message: &str| {
        let error = world.run(world.runtime.version()).unwrap_err();
        assert!(matches!(&error, RuntimeError::Unavailable(m) if m.contains(message)), "{error:?}");
    };
    // The connection that broke, then the first attempt: at once.
    world.until_refused();
    refused("next attempt in 100 ms");
    world.fake.accept_connections();
    refused("next attempt in 100 ms");
    world.clock.advance(Duration::from_millis(100));
    world.run(world.runtime.version()).expect("the back-off is over");
    assert_eq!(world.fake.connections(), 2);

    // The wait doubles up to 3 s.
    world.fake.refuse_connections();
    for wait in [100, 200, 400, 800, 1600, 3000, 3000] {
        world.until_refused();
        refused(&format!("next attempt in {wait} ms"));
        world.clock.advance(Duration::from_millis(wait));
    }
}

#[test]
fn the_endpoint_says_what_is_wrong() {
    let world = World::new();
    let named = |path: &std::path::Path| Candidates { origin: Origin::Flag, sockets: vec![path.into()] };
    let find = |candidates: &Candidates| {
        world
            .run_while_time_passes(
                "Version",
                Duration::from_millis(100),
                endpoint::find(candidates, &world.executor, &world.shared_clock()),
            )
            .map(|found| found.version)
    };
    let socket = world.fake.socket();
    let here = named(socket);
    assert_eq!(&*find(&here).expect("a runtime").runtime_name, "fake");

    for (services, error, sentence) in [
        (
            Services::ContainerdWithoutCri,
            EndpointError::CriDisabled(socket.into()),
            "remove \"cri\" from disabled_plugins in /etc/containerd/config.toml",
        ),
        (Services::CriV1alpha2, EndpointError::CriTooOld(socket.into()), "update it"),
        (Services::Other, EndpointError::NotCri(socket.into()), "has no CRI v1 runtime service"),
    ] {
        world.fake.state().services = services;
        let found = find(&here).unwrap_err();
        assert_eq!(found, error);
        assert!(found.to_string().contains(sentence), "{found}");
    }
    world.fake.state().services = Services::CriV1;

    world.fake.hang("Version");
    assert_eq!(find(&here).unwrap_err(), EndpointError::Silent(socket.into()));
    world.fake.heal("Version");
    world.fake.fail("Version", 1, 2, "boltdb is broken");
    assert_eq!(find(&here).unwrap_err(), EndpointError::Failed(socket.into(), "boltdb is broken".into()));

    world.fake.refuse_connections();
    assert_eq!(find(&here).unwrap_err(), EndpointError::Refused(socket.into()));
    world.fake.accept_connections();

    let folder = crate::common::TempDir::new();
    let missing = folder.path().join("none.sock");
    assert_eq!(find(&named(&missing)).unwrap_err(), EndpointError::Missing(missing.clone()));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(find(&named(&file)).unwrap_err(), EndpointError::NotASocket(file));

    // Among the usual sockets the first that answers wins; else each one's trouble is told.
    let usual = |sockets: &[&std::path::Path]| Candidates {
        origin: Origin::Usual,
        sockets: sockets.iter().map(Into::into).collect(),
    };
    assert!(find(&usual(&[&missing, socket])).is_ok());
    let none = find(&usual(&[&missing])).unwrap_err().to_string();
    assert!(
        none.starts_with(&format!("no container runtime answers ({}: no such socket)", missing.display()))
    );
}

#[test]
fn a_runtime_that_is_not_ready_says_why() {
    let world = World::new();
    world.run(endpoint::ready(&world.runtime)).expect("ready");
    world.fake.condition("NetworkReady", "NetworkPluginNotReady", "cni plugin not initialized");
    let error = world.run(endpoint::ready(&world.runtime)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the runtime's pod network is not ready (NetworkPluginNotReady: cni plugin not initialized): put a CNI \
         configuration into /etc/cni/net.d"
    );
    world.fake.condition("RuntimeReady", "Starting", "loading");
    let error = world.run(endpoint::ready(&world.runtime)).unwrap_err().to_string();
    assert!(error.contains("RuntimeReady does not hold (Starting: loading)"), "{error}");
    world.fake.condition("RuntimeReady", "", "");
    world.fake.condition("NetworkReady", "", "");
    world.run(endpoint::ready(&world.runtime)).expect("ready again");
}

#[test]
fn after_a_reboot_nothing_runs() {
    let world = World::new();
    let sandbox = world.pod("web");
    let id = world.container(&sandbox, "web", "app", 0);
    world.fake.wait_for("the container", Duration::from_secs(1), |state| state.running() == ["web/app#0"]);
    world.fake.reboot();
    world.run(async {
        let status = world.runtime.container_status(&id).await.unwrap();
        assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 255));
        let status = world.runtime.pod_sandbox_status(&sandbox).await.unwrap();
        assert_eq!(status.state, SandboxState::NotReady);
        let config = container_config("web", "app", 1);
        let error =
            world.runtime.create_container(&sandbox, &config, &sandbox_config("web")).await.unwrap_err();
        assert!(error.to_string().contains("is not running"), "{error}");
    });
}

#[test]
fn a_containers_last_word_is_its_message() {
    let world = World::new();
    let folder = crate::common::TempDir::new();
    let sandbox = world.pod("web");
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    world.fake.state().sandboxes.get_mut(sandbox.as_str()).unwrap().config.log_directory =
        logs.to_str().unwrap().into();
    let log = "T stdout F starting\nT stderr F no such file\n";
    let file = folder.path().join("message");
    let mut attempt = 0;
    // (policy, exit code, the runtime's message, the file, the log) → message
    for (policy, code, runtime, written, logged, message) in [
        ("File", 1, "", Some("disk full"), None, "disk full"),
        ("File", 0, "", Some("done"), None, "done"),
        ("File", 1, "OCI says no", Some("disk full"), None, "OCI says no: disk full"),
        ("File", 1, "OCI says no", Some(""), Some(log), "OCI says no"),
        ("File", 1, "", None, Some(log), ""),
        ("FallbackToLogsOnError", 1, "", Some(""), Some(log), "starting\nno such file\n"),
        ("FallbackToLogsOnError", 1, "", None, Some(log), "starting\nno such file\n"),
        ("FallbackToLogsOnError", 0, "", Some(""), Some(log), ""),
        ("FallbackToLogsOnError", 1, "", Some("disk full"), Some(log), "disk full"),
        (
            "FallbackToLogsOnError",
            1,
            "",
            None,
            None,
            "Error on reading termination message from logs: No such file or directory (os error 2)",
        ),
    ] {
        let _ = std::fs::remove_file(&file);
        let _ = std::fs::remove_file(logs.join("app.log"));
        for (path, text) in [(file.clone(), written), (logs.join("app.log"), logged)] {
            if let Some(text) = text {
                std::fs::write(path, text).unwrap();
            }
        }
        attempt += 1;
        let id = world.container(&sandbox, "web", "app", attempt);
        {
            let mut state = world.fake.state();
            let config = &mut state.containers.get_mut(id.as_str()).unwrap().config;
            config.log_path = "app.log".into();
            config.mounts = vec![cri::Mount {
                container_path: "/dev/termination-log".into(),
                host_path: file.to_str().unwrap().into(),
                ..Default::default()
            }];
            let prefix = "io.kubernetes.container.terminationMessage";
            config.annotations.insert(format!("{prefix}Path"), "/dev/termination-log".into());
            config.annotations.insert(format!("{prefix}Policy"), policy.into());
        }
        let status = world.run(world.runtime.container_status(&id)).unwrap();
        assert_eq!(&*status.message, "", "while it runs");
        world.fake.exit(id.as_str(), code, "", runtime);
        let status = world.run(world.runtime.container_status(&id)).unwrap();
        assert_eq!(&*status.message, message, "{policy}, exit {code}, {runtime:?}, {written:?}");
    }

    // The last 4096 bytes; never through a link.
    let id = world.fake.state().container("app").unwrap().id.clone();
    let id = ContainerId::from(id);
    std::fs::write(&file, format!("lost{}", "x".repeat(4096))).unwrap();
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!(&*status.message, "x".repeat(4096));
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    let status = world.run(world.runtime.container_status(&id)).unwrap();
    assert!(status.message.starts_with("Error on reading termination log "), "{}", status.message);
    assert!(!status.message.contains("root:"));
}

#[test]
fn a_shim_is_orphaned_when_its_sandbox_is_not_listed_and_it_stays() {
    let world = World::new();
    let sandbox = world.pod("web");
    let shim = |pid, sandbox: &str| Shim { pid, sandbox: sandbox.into() };
    let found = |looks: [Vec<Shim>; 2]| {
        let mut looks = looks.into_iter();
        let clock = world.shared_clock();
        let work = orphaned(&world.runtime, &clock, async || looks.next().expect("two looks at most"));
        world.run_while_time_passes("ListPodSandbox", Duration::from_secs(1), work).expect("it is listed")
    };
    let (served, gone, leaving) = (shim(1, sandbox.as_str()), shim(2, "gone"), shim(3, "leaving"));
    let all = vec![served.clone(), gone.clone(), leaving.clone()];
    // One that came meanwhile has a sandbox that was not listed.
    assert_eq!(found([all, vec![served.clone(), gone.clone(), shim(4, "new")]]), std::slice::from_ref(&gone));
    assert_eq!(found([vec![served.clone()], vec![]]), []);
    // Another process with the PID of one that has ended.
    assert_eq!(found([vec![gone], vec![shim(2, "other")]]), []);
}
