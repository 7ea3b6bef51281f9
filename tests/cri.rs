//! `GrpcRuntime` against the fake runtime: every method of the trait, over a real socket.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use common::fake::Fake;
use smol::LocalExecutor;
use smolet::clock::{SharedClock, VirtualClock};
use smolet::cri::{GrpcRuntime, Runtime, RuntimeError};
use smolet::model::{ContainerId, ContainerState, SandboxId, SandboxState, Seconds, Wall};
use smolet::proto::runtime::v1 as cri;

const START: Wall = Wall(1_770_000_000_000_000_000);

/// A fake, a client of it, and the clock both live by.
struct World {
    fake: Fake,
    clock: VirtualClock,
    executor: Rc<LocalExecutor<'static>>,
    runtime: GrpcRuntime,
}

impl World {
    fn new() -> Self {
        let clock = VirtualClock::new(START);
        let fake = Fake::start(clock.clone());
        let executor = Rc::new(LocalExecutor::new());
        let shared: SharedClock = Rc::new(clock.clone());
        let runtime = GrpcRuntime::new(fake.socket(), &executor, shared);
        Self { fake, clock, executor, runtime }
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
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

    world.run(world.runtime.stop_container(&id, Seconds(30))).unwrap();
    let exited = world.run(world.runtime.container_status(&id)).unwrap();
    assert_eq!((exited.state, exited.exit_code, &*exited.reason), (ContainerState::Exited, 143, "Error"));
    assert_eq!(exited.finished_at, Some(Wall(START.0 + 5_000_000_000)));

    world.run(async {
        world.runtime.remove_container(&id).await.unwrap();
        world.runtime.stop_pod_sandbox(&sandbox).await.unwrap();
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
