//! The whole small space of plans, and random lives of pods.
//!
//! The space: restart policy × sandbox × every state, probe result and definition of one container and of two.
//! The lives: plan → simulated act → observe, disturbed at random and then left alone, which has to settle.
//! `SMOLET_SEED` repeats one life, `SMOLET_LIVES` sets their number.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use smolet::limits::CRASH_BACKOFF_MAX;
use smolet::model::backoff::Backoff;
use smolet::model::{
    ContainerKind, ContainerMeta, ContainerState, ContainerStatus, DesiredPod, Mono, NamespaceMode, Now,
    ObservedPod, SandboxNetwork, SandboxState, SandboxStatus, Wall,
};
use smolet::sync::plan::{Kill, Plan, PlanInput, PodAction, Start, StartWhen, plan};
use smolet::sync::{ProbeResult, Probes};

const NOW: Now = Now { mono: Mono(1_000_000_000_000), wall: Wall(1_000_000_000_000) };
const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

// ---- the space -------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    None,
    Created,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

/// One container's situation.
#[derive(Clone, Copy, Debug)]
struct Situation {
    record: Record,
    /// Of the liveness (`true`) or the startup probe.
    probe: Option<(bool, ProbeResult)>,
    same_hash: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SandboxCase {
    None,
    Ready,
    NotReady,
    TwoReady,
    OtherNetwork,
    NoAddress,
}

const SANDBOXES: [SandboxCase; 6] = [
    SandboxCase::None,
    SandboxCase::Ready,
    SandboxCase::NotReady,
    SandboxCase::TwoReady,
    SandboxCase::OtherNetwork,
    SandboxCase::NoAddress,
];

fn situations() -> Vec<Situation> {
    let results = [ProbeResult::Success, ProbeResult::Failure, ProbeResult::Unknown];
    let probes: Vec<_> = std::iter::once(None)
        .chain([true, false].into_iter().flat_map(|kind| results.map(|result| Some((kind, result)))))
        .collect();
    let mut all = Vec::new();
    for record in
        [Record::None, Record::Created, Record::Running, Record::Succeeded, Record::Failed, Record::Unknown]
    {
        for &probe in &probes {
            for same_hash in [true, false] {
                all.push(Situation { record, probe, same_hash });
            }
        }
    }
    all
}

fn sandboxes(case: SandboxCase) -> Vec<SandboxStatus> {
    let one = |id: &str, attempt, state| SandboxStatus {
        id: id.into(),
        attempt,
        state,
        created_at: Wall(0),
        network_namespace: Some(NamespaceMode::Pod),
        network: Some(SandboxNetwork { ip: "10.0.0.1".into(), additional_ips: Vec::new() }),
    };
    let ready = || one("sb1", 1, SandboxState::Ready);
    match case {
        SandboxCase::None => Vec::new(),
        SandboxCase::Ready => vec![ready()],
        SandboxCase::NotReady => vec![one("sb1", 1, SandboxState::NotReady)],
        SandboxCase::TwoReady => vec![ready(), one("sb0", 0, SandboxState::Ready)],
        SandboxCase::OtherNetwork => {
            vec![SandboxStatus { network_namespace: Some(NamespaceMode::Node), ..ready() }]
        }
        SandboxCase::NoAddress => {
            vec![SandboxStatus { network: Some(SandboxNetwork::default()), ..ready() }]
        }
    }
}

fn record(name: &str, hash: u32, situation: Situation) -> Option<ContainerStatus> {
    let (state, exit_code) = match situation.record {
        Record::None => return None,
        Record::Created => (ContainerState::Created, 0),
        Record::Running => (ContainerState::Running, 0),
        Record::Succeeded => (ContainerState::Exited, 0),
        Record::Failed => (ContainerState::Exited, 1),
        Record::Unknown => (ContainerState::Unknown, 0),
    };
    let hash = if situation.same_hash { hash } else { hash ^ 1 };
    Some(status(&format!("id-{name}"), name, state, exit_code, hash, 0))
}

fn status(
    id: &str,
    name: &str,
    state: ContainerState,
    exit_code: i32,
    hash: u32,
    count: u32,
) -> ContainerStatus {
    let ended = state == ContainerState::Exited;
    ContainerStatus {
        id: id.into(),
        name: name.into(),
        sandbox_id: "sb1".into(),
        state,
        finished_at: ended.then_some(NOW.wall),
        finished_mono: ended.then_some(NOW.mono),
        exit_code,
        meta: ContainerMeta { hash: u64::from(hash), restart_count: count, ..ContainerMeta::default() },
        ..ContainerStatus::default()
    }
}

/// Every combination for pods whose containers stand in the given lists; returns how many there were.
fn walk(shape: &[(&str, ContainerKind)], containers: &Value) -> usize {
    let situations = situations();
    let backoff = Backoff::new(Mono(0), CRASH_BACKOFF_MAX);
    let mut count = 0;
    for policy in POLICIES {
        let mut spec = containers.clone();
        spec["restartPolicy"] = json!(policy);
        let pod = desired(&json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}));
        let mut places = vec![0; shape.len()];
        loop {
            let chosen: Vec<Situation> = places.iter().map(|&place| situations[place]).collect();
            let mut observed = ObservedPod::default();
            let mut probes = Probes::default();
            for ((name, kind), situation) in shape.iter().zip(&chosen) {
                let hash = match kind {
                    ContainerKind::Init => pod.init_hashes[0],
                    ContainerKind::App => {
                        pod.app_hashes[pod.containers().iter().position(|c| c.name == *name).unwrap()]
                    }
                    ContainerKind::Ephemeral => 0,
                };
                let Some(status) = record(name, hash, *situation) else { continue };
                if let Some((liveness, result)) = situation.probe {
                    let results = if liveness { &mut probes.liveness } else { &mut probes.startup };
                    results.set(&status.id, result);
                }
                observed.containers.push(status);
            }
            for case in SANDBOXES {
                observed.sandboxes = sandboxes(case);
                let input = PlanInput {
                    pod: &pod,
                    observed: &observed,
                    probes: &probes,
                    backoff: &backoff,
                    now: NOW,
                    restart_all: false,
                    resizing: false,
                };
                let made = plan(&input);
                let context = || format!("{policy} {case:?} {chosen:?}\n{made:#?}");
                check(&input, &made, &context);
                let healthy = case == SandboxCase::Ready
                    && chosen.iter().all(|s| {
                        s.record == Record::Running
                            && s.same_hash
                            && s.probe.is_none_or(|(_, result)| result == ProbeResult::Success)
                    });
                if healthy {
                    assert!(made.is_idle(), "a healthy pod is left alone: {}", context());
                    let spent = allocation_counter::measure(|| {
                        std::hint::black_box(plan(&input));
                    });
                    assert_eq!(spent.count_total, 0, "the plan of a healthy pod allocates: {}", context());
                }
                count += 1;
            }
            // The next combination, like an odometer.
            let Some(place) = places.iter().rposition(|&place| place + 1 < situations.len()) else { break };
            places[place] += 1;
            places[place + 1..].fill(0);
        }
    }
    count
}

/// What holds of every plan.
fn check(input: &PlanInput<'_>, made: &Plan, context: &dyn Fn() -> String) {
    assert_eq!(*made, plan(input), "same input, same plan: {}", context());
    let (kills, starts): (&[Kill], &[Start]) = match &made.action {
        PodAction::Keep { kills, starts, sandbox, attempt } => {
            let newest = &input.observed.sandboxes[0];
            assert_eq!((sandbox, attempt), (&newest.id, &newest.attempt), "{}", context());
            (kills, starts)
        }
        PodAction::Recreate { starts, attempt, .. } => {
            let next = input.observed.sandboxes.first().map_or(0, |newest| newest.attempt + 1);
            assert_eq!(*attempt, next, "{}", context());
            (&[], starts)
        }
        PodAction::End { kills, debuggers, .. } => {
            let ephemeral = debuggers.iter().all(|start| start.kind == ContainerKind::Ephemeral);
            assert!(ephemeral, "an ended pod starts nothing of its own: {}", context());
            (kills, debuggers)
        }
        PodAction::RestartAll { .. } => panic!("nobody asked for it: {}", context()),
    };
    let mut seen = BTreeSet::new();
    for kill in kills {
        assert!(seen.insert(kill.id.as_str()), "killed once: {}", context());
        let status = input.observed.containers.iter().find(|status| status.id == kill.id).unwrap();
        let live = matches!(status.state, ContainerState::Running | ContainerState::Unknown);
        assert!(live, "only what may live is killed: {}", context());
    }
    let mut seen = BTreeSet::new();
    for start in starts {
        assert!(seen.insert((start.kind, start.index)), "started once: {}", context());
        let name = name(input.pod, start);
        let newest = input.observed.container(name);
        let live =
            newest.filter(|status| matches!(status.state, ContainerState::Running | ContainerState::Unknown));
        // In a new sandbox everything older is stopped first.
        if let (Some(live), PodAction::Keep { .. }) = (live, &made.action) {
            let killed = kills.iter().any(|kill| kill.id == live.id);
            assert!(killed, "never two live instances of {name}: {}", context());
        }
        if let StartWhen::Held { until, message } = &start.when {
            assert!(*until > input.now.mono && !message.is_empty(), "{}", context());
        }
    }
    if let Some(at) = made.wake_at {
        let held = |start: &Start| matches!(start.when, StartWhen::Held { until, .. } if until == at);
        assert!(starts.iter().any(held), "woken for a held start: {}", context());
    }
}

fn name<'a>(pod: &'a DesiredPod, start: &Start) -> &'a str {
    match start.kind {
        ContainerKind::Init => &pod.init_containers()[start.index].name,
        ContainerKind::App => &pod.containers()[start.index].name,
        ContainerKind::Ephemeral => &pod.ephemeral_containers()[start.index].name,
    }
}

fn desired(pod: &Value) -> DesiredPod {
    DesiredPod::new(serde_json::from_value(pod.clone()).unwrap())
}

fn container(name: &str) -> Value {
    let probe = json!({"exec": {"command": ["true"]}});
    json!({"name": name, "image": "i:1", "livenessProbe": probe})
}

#[test]
fn every_plan_for_one_container() {
    let count = walk(&[("a", ContainerKind::App)], &json!({"containers": [container("a")]}));
    assert_eq!(count, 3 * 6 * 84);
}

/// Another device behind a volume restarts what may be started again, and nothing else.
#[test]
fn a_running_container_with_another_device_is_restarted() {
    let spec = json!({"initContainers": [{"name": "s", "image": "i:1", "restartPolicy": "Always"}],
        "containers": [container("a"), container("b")]});
    let backoff = Backoff::new(Mono(0), CRASH_BACKOFF_MAX);
    for (policy, changed, wanted) in [
        ("Always", "a", "a"),
        ("OnFailure", "b", "b"),
        ("Never", "a", ""),
        ("Never", "s", "s"),
        ("Always", "", ""),
    ] {
        let mut spec = spec.clone();
        spec["restartPolicy"] = json!(policy);
        let pod = desired(&json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}));
        let (mut observed, mut probes) = (ObservedPod::default(), Probes::default());
        observed.sandboxes = sandboxes(SandboxCase::Ready);
        let hashes = [("s", pod.init_hashes[0]), ("a", pod.app_hashes[0]), ("b", pod.app_hashes[1])];
        for (name, hash) in hashes {
            observed.containers.push(status(name, name, ContainerState::Running, 0, hash, 0));
        }
        if !changed.is_empty() {
            probes.devices.set(&changed.into(), ProbeResult::Failure);
        }
        let made = plan(&PlanInput {
            pod: &pod,
            observed: &observed,
            probes: &probes,
            backoff: &backoff,
            now: NOW,
            restart_all: false,
            resizing: false,
        });
        let PodAction::Keep { kills, starts, .. } = &made.action else {
            panic!("{policy} {changed}: {made:#?}")
        };
        let killed: Vec<&str> = kills.iter().map(|kill| kill.id.as_str()).collect();
        assert_eq!(killed.concat(), wanted, "{policy} {changed}");
        assert_eq!(starts.len(), killed.len(), "{policy} {changed}");
        assert!(kills.iter().all(|kill| kill.message.contains("another device")), "{kills:#?}");
    }
}

#[test]
fn every_plan_for_two_containers() {
    let both = json!({"containers": [container("a"), container("b")]});
    let mut count = walk(&[("a", ContainerKind::App), ("b", ContainerKind::App)], &both);
    let mut sidecar = container("s");
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = json!({"exec": {"command": ["true"]}});
    for init in [json!({"name": "s", "image": "i:1"}), sidecar] {
        let pod = json!({"containers": [container("a")], "initContainers": [init]});
        // A sidecar whose startup probe has not spoken is waited for: so that counts as unchanged too.
        count += walk(&[("s", ContainerKind::Init), ("a", ContainerKind::App)], &pod);
    }
    assert_eq!(count, 3 * 3 * 6 * 84 * 84);
}

// ---- lives -----------------------------------------------------------------------------------------------

/// A pod, the runtime's view of it, and time.
struct Life {
    rng: Rng,
    spec: Value,
    pod: DesiredPod,
    observed: ObservedPod,
    probes: Probes,
    backoff: Backoff,
    now: Now,
    made: u32,
    log: Vec<String>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let one = |name: String, rng: &mut Rng| {
            let mut value = json!({"name": name, "image": "i:1"});
            if rng.u8(..4) == 0 {
                value["livenessProbe"] = json!({"exec": {"command": ["true"]}});
            }
            value
        };
        let mut inits = Vec::new();
        for n in 0..rng.usize(..3) {
            let mut init = one(format!("i{n}"), &mut rng);
            if rng.bool() {
                init["restartPolicy"] = json!("Always");
                if rng.bool() {
                    init["startupProbe"] = json!({"exec": {"command": ["true"]}});
                }
            }
            inits.push(init);
        }
        let mut apps = Vec::new();
        for n in 0..rng.usize(1..4) {
            let mut app = one(format!("c{n}"), &mut rng);
            if rng.u8(..4) == 0 {
                app["restartPolicy"] = json!(POLICIES[rng.usize(..3)]);
                if rng.bool() {
                    let codes = json!({"operator": "In", "values": [1]});
                    app["restartPolicyRules"] = json!([{"action": "Restart", "exitCodes": codes}]);
                }
            }
            apps.push(app);
        }
        let spec = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"restartPolicy": POLICIES[rng.usize(..3)], "initContainers": inits, "containers": apps},
        });
        Self {
            pod: desired(&spec),
            spec,
            rng,
            observed: ObservedPod::default(),
            probes: Probes::default(),
            backoff: Backoff::new(NOW.mono, CRASH_BACKOFF_MAX),
            now: NOW,
            made: 0,
            log: Vec::new(),
        }
    }

    fn plan(&self) -> Plan {
        let input = PlanInput {
            pod: &self.pod,
            observed: &self.observed,
            probes: &self.probes,
            backoff: &self.backoff,
            now: self.now,
            restart_all: false,
            resizing: false,
        };
        let made = plan(&input);
        check(&input, &made, &|| format!("{made:#?}\n{}", self.story()));
        made
    }

    fn story(&self) -> String {
        format!("{}\n{}", self.spec, self.log.join("\n"))
    }

    fn pass(&mut self, time: Duration) {
        self.now.mono = self.now.mono + time;
        self.now.wall = Wall(self.now.mono.0);
    }

    fn end(&mut self, at: usize, code: i32) {
        let now = self.now;
        let status = &mut self.observed.containers[at];
        status.state = ContainerState::Exited;
        status.exit_code = code;
        status.finished_at = Some(now.wall);
        status.finished_mono = Some(now.mono);
        let id = status.id.clone();
        self.probes.liveness.forget(&id);
        self.probes.startup.forget(&id);
    }

    fn end_all(&mut self) {
        for at in 0..self.observed.containers.len() {
            if self.observed.containers[at].state != ContainerState::Exited {
                self.end(at, 137);
            }
        }
    }

    /// `act`, as the runtime would answer it; `faults` makes some creates and starts fail.
    fn act(&mut self, made: &Plan, faults: bool) {
        match &made.action {
            PodAction::Keep { kills, .. } => {
                for kill in kills {
                    let at = self.observed.containers.iter().position(|status| status.id == kill.id).unwrap();
                    self.end(at, 137);
                }
            }
            PodAction::Recreate { attempt, .. } => {
                self.end_all();
                for sandbox in &mut self.observed.sandboxes {
                    sandbox.state = SandboxState::NotReady;
                }
                if faults && self.rng.u8(..4) == 0 {
                    return;
                }
                let mut sandbox = sandboxes(SandboxCase::Ready).remove(0);
                sandbox.attempt = *attempt;
                sandbox.id = format!("sb{attempt}").into();
                self.observed.sandboxes.insert(0, sandbox);
            }
            PodAction::End { .. } => {
                self.end_all();
                for sandbox in &mut self.observed.sandboxes {
                    sandbox.state = SandboxState::NotReady;
                }
            }
            PodAction::RestartAll { .. } => panic!("nobody asked for it"),
        }
        self.observed.containers.retain(|status| !made.prunes.contains(&status.id));
        for start in made.starts() {
            let plain_init = start.kind == ContainerKind::Init
                && self.pod.init_containers()[start.index].restart_policy.is_none();
            match &start.when {
                StartWhen::Held { .. } if plain_init => return,
                StartWhen::Held { .. } => continue,
                StartWhen::First => {}
                StartWhen::Again(crash) => self.backoff.next(crash.key, crash.finished, self.now.mono),
            }
            let fault = if faults { self.rng.u8(..8) } else { 7 };
            if fault == 0 {
                if plain_init {
                    return;
                }
                continue;
            }
            let name = name(&self.pod, start).to_owned();
            let others = self.observed.containers.iter().filter(|status| *status.name == *name);
            for other in others {
                let live = other.state == ContainerState::Running;
                assert!(!live, "two live instances of {name}\n{}", self.story());
            }
            let count = self.observed.container(&name).map_or(0, |status| status.meta.restart_count + 1);
            let hash = match start.kind {
                ContainerKind::Init => self.pod.init_hashes[start.index],
                ContainerKind::App => self.pod.app_hashes[start.index],
                ContainerKind::Ephemeral => 0,
            };
            self.made += 1;
            let state = if fault == 1 { ContainerState::Created } else { ContainerState::Running };
            let id = format!("k{}", self.made);
            let made = status(&id, &name, state, 0, hash, count);
            if state == ContainerState::Running {
                self.probes.startup.set(&made.id, ProbeResult::Success);
            }
            self.observed.containers.insert(0, made);
            if state == ContainerState::Created && plain_init {
                return;
            }
        }
    }

    fn disturb(&mut self) {
        let count = self.observed.containers.len();
        let any = if count == 0 { None } else { Some(self.rng.usize(..count)) };
        let what = self.rng.u8(..9);
        self.log.push(format!("disturb {what} at {any:?}, {count} containers"));
        match (what, any) {
            (0 | 1, Some(at)) if self.observed.containers[at].state == ContainerState::Running => {
                let code = i32::from(self.rng.bool());
                self.end(at, code);
            }
            (2, Some(at)) => self.observed.containers[at].state = ContainerState::Unknown,
            (3, Some(at)) if self.observed.containers[at].state == ContainerState::Running => {
                let id = self.observed.containers[at].id.clone();
                self.probes.liveness.set(&id, ProbeResult::Failure);
            }
            (4, _) => {
                // The node was rebooted.
                self.end_all();
                for sandbox in &mut self.observed.sandboxes {
                    sandbox.state = SandboxState::NotReady;
                }
            }
            (5, Some(at)) if self.observed.containers[at].state == ContainerState::Exited => {
                self.observed.containers.remove(at);
            }
            (6, _) => {
                self.spec["spec"]["containers"][0]["image"] = json!(format!("i:{}", self.rng.u8(..)));
                self.pod = desired(&self.spec);
            }
            (7, _) => {
                if let Some(sandbox) = self.observed.sandboxes.first_mut() {
                    sandbox.network = Some(SandboxNetwork::default());
                }
            }
            _ => {
                let time = Duration::from_secs(self.rng.u64(..400));
                self.pass(time);
            }
        }
    }

    /// Left alone: init containers succeed, everything else runs on.
    fn calm(&mut self, made: &Plan) {
        for at in 0..self.observed.containers.len() {
            let status = &self.observed.containers[at];
            let plain_init = self
                .pod
                .init_containers()
                .iter()
                .any(|init| *init.name == *status.name && init.restart_policy.is_none());
            if plain_init && status.state == ContainerState::Running {
                self.end(at, 0);
            }
        }
        let wait = made.wake_at.map_or(Duration::from_secs(1), |at| at.since(self.now.mono));
        self.pass(wait);
    }

    fn run(&mut self) {
        for _ in 0..30 {
            self.disturb();
            let made = self.plan();
            self.log.push(format!("plan {:?}", made.action));
            self.act(&made, true);
            self.pass(Duration::from_secs(1));
        }
        for _ in 0..40 {
            let made = self.plan();
            self.log.push(format!("calm {:?}", made.action));
            self.act(&made, false);
            let waits = made.starts().iter().any(|start| matches!(start.when, StartWhen::Held { .. }));
            let runs = self.observed.containers.iter().any(|s| s.state == ContainerState::Running);
            let inits_left = self.pod.init_containers().iter().any(|init| {
                init.restart_policy.is_none()
                    && self
                        .observed
                        .container(&init.name)
                        .is_some_and(|status| status.state == ContainerState::Running)
            });
            let ended = matches!(made.action, PodAction::End { .. }) && !runs;
            if ended || (made.is_idle() && !waits && !inits_left) {
                return;
            }
            self.calm(&made);
        }
        panic!("it never settles\n{}", self.story());
    }
}

#[test]
fn every_life_settles() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SMOLET_SEED") {
        return Life::new(seed).run();
    }
    let first = fastrand::u64(..);
    let lives = number("SMOLET_LIVES").unwrap_or(2_000);
    println!("seeds {first} to {}", first.wrapping_add(lives));
    for seed in (0..lives).map(|n| first.wrapping_add(n)) {
        let lived = std::panic::catch_unwind(|| Life::new(seed).run());
        assert!(lived.is_ok(), "repeat with SMOLET_SEED={seed}");
    }
}
