//! `act`, `kill_pod`, `remove_pod` and image pulls against the fake runtime over a real socket, with real files.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::common::TempDir;
use crate::common::fake::{Fake, Program};
use serde_json::{Value, json};
use smolet::addresses::NodeAddresses;
use smolet::clock::{Clock as _, SharedClock, VirtualClock};
use smolet::cri::GrpcRuntime;
use smolet::events::{About, EventKind};
use smolet::executor::Executor;
use smolet::hook::HookRunner;
use smolet::image::pull::ImagePuller;
use smolet::limits::{CRASH_BACKOFF_MAX, PULLS_AT_ONCE};
use smolet::model::backoff::Backoff;
use smolet::model::{DesiredPod, ObservedPod, PodKey, Wall};
use smolet::net::Lookups;
use smolet::pleg;
use smolet::probe::run::Tools;
use smolet::render::{ManifestObjects, NodeSettings};
use smolet::sync::Probes;
use smolet::sync::act::{ActContext, NoCgroups, NoVolumes, RuntimeManager, act, remove_pod};
use smolet::sync::kill::kill_pod;
use smolet::sync::outcome::{Outcome, SyncError};
use smolet::sync::plan::{PlanInput, PodAction, plan};

const START: Wall = Wall(1_770_000_000_000_000_000);

/// A fake runtime, an agent's context in a folder of its own, and what the loop would hold.
struct World {
    fake: Fake,
    clock: VirtualClock,
    executor: Rc<Executor>,
    ctx: ActContext<GrpcRuntime>,
    backoff: RefCell<Backoff>,
    notes: Rc<RefCell<Vec<String>>>,
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        let clock = VirtualClock::new(START);
        let shared: SharedClock = Rc::new(clock.clone());
        let fake = Fake::start(clock.clone());
        let executor = Rc::new(Executor::new());
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(dir.path().join("containers")).unwrap();
        let mut node = NodeSettings::new("gateway", &path("state"));
        node.pod_logs_dir = path("logs").into();
        let notes: Rc<RefCell<Vec<String>>> = Rc::default();
        let seen = notes.clone();
        let note = move |_: About<'_>, _: EventKind, reason: &'static str, message: &str| {
            seen.borrow_mut().push(format!("{reason}: {message}"));
        };
        let runtime = Rc::new(GrpcRuntime::new(fake.socket(), &executor, shared.clone()));
        let tools = Tools { runtime: runtime.clone(), clock: shared.clone(), lookups: Lookups::default() };
        let manager = RuntimeManager {
            runtime,
            clock: shared.clone(),
            handlers: Box::default(),
            images: ImagePuller::new(shared.clone(), PULLS_AT_ONCE),
            volumes: Box::new(NoVolumes),
            network: Box::new(smolet::sync::act::NoPodNetwork),
            cgroups: Box::new(NoCgroups),
            hooks: Rc::new(HookRunner::new(tools, NodeAddresses::default())),
            notes: Box::new(note),
            container_logs_dir: dir.path().join("containers").into(),
            hosts_file: dir.path().join("hosts").into(),
            resolver: None,
            blocking: Rc::new(smolet::blocking::Blocking::on_threads(shared.clone(), dir.path())),
            starts: smolet::sync::start_limiter::StartLimiter::new(1),
        };
        let ctx = ActContext::new(manager, Rc::new(node), Rc::new(ManifestObjects::default()));
        let backoff = RefCell::new(Backoff::new(clock.now().mono, CRASH_BACKOFF_MAX));
        Self { fake, clock, executor, ctx, backoff, notes, dir }
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    fn read(&self, key: &PodKey, old: Option<&ObservedPod>) -> ObservedPod {
        let mut observed =
            self.run(pleg::read_pod(&*self.ctx.manager.runtime, key)).expect("the pod can be read");
        pleg::fix_times(&mut observed, old, self.clock.now());
        observed
    }

    /// One round as the loop makes it: read, plan, act, lengthen the back-offs.
    fn sync(&self, pod: &DesiredPod) -> Outcome {
        let observed = self.read(&pod.key, None);
        let made = plan(&PlanInput {
            pod,
            observed: &observed,
            probes: &Probes::default(),
            backoff: &self.backoff.borrow(),
            now: self.clock.now(),
            restart_all: false,
            resizing: false,
        });
        let outcome = self.run(act(&self.ctx, pod, &observed, &made));
        for attempt in &outcome.attempts {
            self.backoff.borrow_mut().next(attempt.crash.key, attempt.crash.finished, attempt.at);
        }
        outcome
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn has_note(&self, note: &str) -> bool {
        self.notes.borrow().iter().any(|seen| seen.starts_with(note))
    }
}

fn container(name: &str, image: &str) -> Value {
    json!({"name": name, "image": image, "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log"})
}

fn pod(name: &str, spec: Value) -> DesiredPod {
    let mut spec = spec;
    spec["enableServiceLinks"] = json!(true);
    spec["terminationGracePeriodSeconds"] = json!(30);
    spec["securityContext"] = json!({});
    let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")}, "spec": spec});
    DesiredPod::new(serde_json::from_value(pod).expect("a pod"))
}

#[test]
fn a_new_pod_starts_with_its_files_and_goes_without_a_trace() {
    let world = World::new();
    let web = pod("web", json!({"containers": [container("app", "busybox")]}));
    assert_eq!(world.sync(&web).error(), None);
    let actions = [
        "RunPodSandbox web#0",
        "PullImage busybox:latest",
        "CreateContainer web/app#0",
        "StartContainer web/app#0",
    ];
    assert_eq!(world.fake.actions(), actions);
    {
        let state = world.fake.state();
        let sandbox = state.sandbox("web").expect("it runs");
        assert_eq!(sandbox.config.annotations["smolet.io/node"], "gateway");
        let mounts = &state.container("web/app").expect("it runs").config.mounts;
        let host =
            |target: &str| mounts.iter().find(|m| m.container_path == target).unwrap().host_path.clone();
        let hosts = std::fs::read_to_string(host("/etc/hosts")).unwrap();
        assert!(hosts.contains(&format!("{}\tweb\n", sandbox.ip)), "{hosts}");
        let last_words = std::fs::metadata(host("/dev/termination-log")).unwrap();
        assert_eq!((last_words.permissions().mode() & 0o777, last_words.len()), (0o666, 0));
    }
    for note in ["Pulling: Pulling image \"busybox\"", "Pulled: Successfully pulled", "Created:", "Started:"]
    {
        assert!(world.has_note(note), "{note} in {:?}", world.notes);
    }
    assert!(world.path("logs/default_web_uid-web/app").is_dir());

    // The next start writes 1.log; its link stands where collectors look.
    let link = || std::fs::read_dir(world.path("containers")).unwrap().count();
    assert_eq!(link(), 0, "no log, no link");
    std::fs::write(world.path("logs/default_web_uid-web/app/1.log"), "").unwrap();
    world.fake.exit("web/app", 1, "Error", "");
    assert_eq!(world.sync(&web).error(), None);
    assert_eq!(link(), 1);

    let observed = world.read(&web.key, None);
    assert_eq!(observed.containers[0].meta.restart_count, 1);
    world.fake.clear_calls();
    let killed = world.run(kill_pod(&world.ctx, &web.key, Some(&web), &observed, None));
    assert_eq!(killed.error(), None);
    assert_eq!(world.fake.actions(), ["StopContainer web/app#1 grace=30", "StopPodSandbox web#0"]);

    let observed = world.read(&web.key, None);
    world.run(remove_pod(&world.ctx, &web.key, &observed)).unwrap();
    assert!(world.read(&web.key, None).is_empty());
    assert_eq!((link(), world.path("logs/default_web_uid-web").exists()), (0, false));
    assert!(world.path("state/pods/uid-web").is_dir(), "the directory goes last, with the volumes");
    world.run(remove_pod(&world.ctx, &web.key, &observed)).expect("it may be repeated");
}

#[test]
fn a_container_without_a_record_goes_on_from_its_logs() {
    let world = World::new();
    std::fs::create_dir_all(world.path("logs/default_web_uid-web/app")).unwrap();
    std::fs::write(world.path("logs/default_web_uid-web/app/4.log"), "").unwrap();
    let web = pod("web", json!({"containers": [container("app", "busybox")]}));
    assert_eq!(world.sync(&web).error(), None);
    assert_eq!(world.fake.state().container("web/app").unwrap().attempt(), 5);
}

#[test]
fn a_crashing_container_waits_and_says_so() {
    let world = World::new();
    world.fake.program("app", Program::exits(1, Duration::ZERO));
    let web = pod("web", json!({"containers": [container("app", "busybox")]}));
    assert_eq!(world.sync(&web).error(), None);
    assert_eq!(world.sync(&web).error(), None, "the first restart is at once");
    for seconds in [10, 20, 40] {
        let held = world.sync(&web);
        assert!(held.only_waits() && !held.is_ok());
        let (name, failure) = held.starts().next().unwrap();
        let failure = failure.unwrap();
        let message = format!("back-off {seconds}s restarting failed container=app pod=web_default(uid-web)");
        assert_eq!(
            (&**name, failure.error, &failure.message),
            ("app", SyncError::CrashLoopBackOff, &message)
        );
        let until = held.wake_at().unwrap();
        assert_eq!(until.since(world.clock.now().mono), Duration::from_secs(seconds));
        world.clock.advance(Duration::from_secs(seconds));
        assert_eq!(world.sync(&web).error(), None);
    }
    assert_eq!(world.fake.count("StartContainer"), 5);
    assert!(world.has_note("BackOff: Back-off restarting failed container app in pod web_default(uid-web)"));
}

#[test]
fn a_failed_pull_backs_off_and_keeps_its_cause() {
    let world = World::new();
    world.fake.missing_image("nowhere:1");
    let twins = json!({"containers": [container("a", "nowhere:1"), container("b", "nowhere:1")]});
    let web = pod("web", twins);
    let outcome = world.sync(&web);
    let failures: Vec<_> = outcome.starts().map(|(_, failure)| failure.unwrap().clone()).collect();
    assert_eq!(failures[0].error.to_string(), "ErrImagePull");
    assert_eq!(failures[1].error.to_string(), "ImagePullBackOff", "seen within the same sync");
    let cause = format!("Back-off pulling image \"nowhere:1\": ErrImagePull: {}", failures[0].message);
    assert_eq!(failures[1].message, cause);
    assert_eq!(world.fake.count("PullImage"), 1);
    let until = outcome.wake_at().expect("it is tried again");
    assert_eq!(until.since(world.clock.now().mono), Duration::from_secs(10));

    world.clock.advance(Duration::from_secs(9));
    world.sync(&web);
    assert_eq!(world.fake.count("PullImage"), 1);
    world.fake.state().missing.clear();
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.sync(&web).error(), None);
    assert_eq!(world.fake.count("PullImage"), 2, "the second container finds the image there");
}

#[test]
fn the_pull_policy_and_the_name_decide_before_any_pull() {
    let world = World::new();
    let mut never = container("never", "absent:1");
    never["imagePullPolicy"] = json!("Never");
    let mut always = container("always", "here:1");
    always["imagePullPolicy"] = json!("Always");
    world.fake.add_image("here:1");
    let web = pod(
        "web",
        json!({"containers": [never, container("bad", "UPPER:1"), container("here", "here:1"), always]}),
    );
    let outcome = world.sync(&web);
    let shown: Vec<_> = outcome
        .starts()
        .map(|(name, failure)| (&**name, failure.map(|failure| failure.error.to_string())))
        .collect();
    let expected = [
        ("never", Some("ErrImageNeverPull".to_owned())),
        ("bad", Some("InvalidImageName".to_owned())),
        ("here", None),
        ("always", None),
    ];
    assert_eq!(shown, expected);
    assert_eq!(world.fake.calls().iter().filter(|call| call.starts_with("PullImage")).count(), 1);
}

#[test]
fn a_stuck_pull_holds_up_no_pod_whose_image_is_there() {
    let world = World::new();
    world.fake.add_image("here:1");
    world.fake.hang_on("PullImage", "slow");
    let slow = pod("slow", json!({"containers": [container("app", "slow:1")]}));
    let other = pod("other", json!({"containers": [container("app", "other:1")]}));
    let here = pod("here", json!({"containers": [container("app", "here:1")]}));
    let job = |pod: &DesiredPod| {
        let (ctx, pod, now) = (world.ctx.clone(), pod.clone(), world.clock.now());
        async move {
            let observed = ObservedPod::default();
            let backoff = Backoff::new(now.mono, CRASH_BACKOFF_MAX);
            let probes = Probes::default();
            let made = plan(&PlanInput {
                pod: &pod,
                observed: &observed,
                probes: &probes,
                backoff: &backoff,
                now,
                restart_all: false,
                resizing: false,
            });
            act(&ctx, &pod, &observed, &made).await
        }
    };
    let stuck = world.executor.spawn("test", job(&slow));
    world.run(async {
        while world.fake.count("PullImage") == 0 {
            async_io::Timer::after(Duration::from_millis(2)).await;
        }
    });
    let waiting = world.executor.spawn("test", job(&other));
    assert_eq!(world.run(job(&here)).error(), None);
    assert_eq!(world.fake.count("PullImage"), 1, "pulls take start_limiter");
    assert!(!waiting.is_finished());
    // The stuck task is dropped, as the loop does when its pod goes: the turn passes on.
    world.run(stuck.cancel());
    assert_eq!(world.run(waiting).error(), None);
    assert!(world.fake.state().container("other/app").unwrap().running());
}

#[test]
fn a_sync_cut_off_anywhere_is_finished_by_the_next() {
    let spec = json!({"containers": [container("a", "busybox"), container("b", "busybox")],
        "initContainers": [{"name": "s", "image": "busybox", "restartPolicy": "Always", "imagePullPolicy": "IfNotPresent"}]});
    for method in
        ["RunPodSandbox", "PodSandboxStatus", "PullImage", "ImageStatus", "CreateContainer", "StartContainer"]
    {
        let world = World::new();
        let web = pod("web", spec.clone());
        world.fake.lose_answer(method, 1);
        for _ in 0..8 {
            world.sync(&web);
            world.clock.advance(Duration::from_secs(301));
        }
        assert_eq!(world.sync(&web).error(), None, "{method}");
        let running = world.fake.state().running();
        assert_eq!(running.len(), 3, "{method}: {running:?}");
        let ready = world.fake.state().sandboxes.values().filter(|sandbox| sandbox.ready).count();
        assert_eq!(ready, 1, "{method}: one sandbox lives");
    }
}

#[test]
fn a_failing_sandbox_is_reported_and_nothing_starts() {
    let world = World::new();
    let web = pod("web", json!({"containers": [container("app", "busybox")]}));
    world.fake.fail("RunPodSandbox", 1, 2, "cni failed");
    let outcome = world.sync(&web);
    let error = "failed to \"CreatePodSandbox\" for \"web_default(uid-web)\" with CreatePodSandboxError: \
                 \"Failed to create sandbox for pod \\\"web_default(uid-web)\\\": cni failed\"";
    assert_eq!(outcome.error().as_deref(), Some(error));
    assert!(!outcome.only_waits());
    assert!(world.has_note("FailedCreatePodSandBox: Failed to create pod sandbox: cni failed"));
    assert_eq!(world.fake.count("CreateContainer"), 0);
    assert_eq!(world.sync(&web).error(), None);
}

#[test]
fn a_pod_nobody_knows_is_stopped_by_what_is_written_on_it() {
    let world = World::new();
    let web = pod("web", json!({"containers": [container("app", "busybox")]}));
    assert_eq!(world.sync(&web).error(), None);
    let observed = world.read(&web.key, None);
    world.fake.clear_calls();
    let outcome = world.run(kill_pod(&world.ctx, &web.key, None, &observed, None));
    assert!(outcome.is_ok());
    assert_eq!(world.fake.actions(), ["StopContainer web/app#0 grace=30", "StopPodSandbox web#0"]);

    // What is gone is stopped: the runtime says NOT_FOUND.
    world.fake.forget_container("web/app");
    assert!(world.run(kill_pod(&world.ctx, &web.key, None, &observed, None)).is_ok());
}

#[test]
fn a_changed_image_restarts_one_container_in_place() {
    let world = World::new();
    let spec = |image: &str| json!({"containers": [container("a", image), container("b", "busybox")]});
    assert_eq!(world.sync(&pod("web", spec("busybox"))).error(), None);
    world.fake.clear_calls();
    let web = pod("web", spec("busybox:2"));
    assert_eq!(world.sync(&web).error(), None);
    let expected = [
        "StopContainer web/a#0 grace=30",
        "PullImage busybox:2",
        "CreateContainer web/a#1",
        "StartContainer web/a#1",
    ];
    assert_eq!(world.fake.actions(), expected);
    assert!(world.has_note("Killing: Container a definition changed, will be restarted"));
    let observed = world.read(&web.key, None);
    let idle = plan(&PlanInput {
        pod: &web,
        observed: &observed,
        probes: &Probes::default(),
        backoff: &world.backoff.borrow(),
        now: world.clock.now(),
        restart_all: false,
        resizing: false,
    });
    assert!(matches!(idle.action, PodAction::Keep { .. }) && idle.is_idle());
}

#[test]
fn a_volume_nobody_makes_keeps_its_container_waiting() {
    let world = World::new();
    let mut app = container("app", "busybox");
    app["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let outcome = world.sync(&pod("web", json!({"containers": [app]})));
    let (_, failure) = outcome.starts().next().unwrap();
    assert_eq!(failure.unwrap().error, SyncError::CreateContainerConfig);
    assert_eq!(world.fake.count("CreateContainer"), 0);
}
