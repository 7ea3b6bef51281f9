//! What smolet costs and how quick it is on a real containerd: one table from one run, and the promises of docs/promises.md
//! held against it. Exits non-zero when one is broken.
//!
//! `make bench` runs it: root, a private containerd (tests/env/runtime.sh), the release binary in `SMOLET_BIN`. Beside
//! smolet stands the floor: the same CRI calls with the same configurations, made directly one after another, in turn
//! with smolet's, so that a machine that is slow for a while is slow for both. With a kubelet's path in `KUBELET` the
//! same is measured of that kubelet, on the same containerd with the same pods; then of smolet with the embedded runtime. `PICTURE` names a file for the chart.
//! The argument `quick` watches and repeats less, to try things out; `embedded-times` measures the embedded runtime's times alone,
//! `pulls` what pulls cost.
//!
//! Times end at the CRI's `started_at` and begin with the clock it is taken from.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "the table is the result")]

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the tests on a real containerd use all of it")]
#[path = "../../tests/real/finding.rs"]
mod finding;
mod floor;
#[path = "../../tests/common/kubelet.rs"]
mod kubelet;
mod picture;
mod pulls;
#[path = "../../tests/common/registry.rs"]
mod registry;
mod report;
#[allow(dead_code, reason = "as above")]
#[path = "../../tests/real/runtime.rs"]
mod runtime;
mod subject;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use smolet::limits::{CLEAN_UP_PAUSE, CRASH_BACKOFF_MAX};
use smolet::model::backoff::Backoff;
use smolet::model::{ContainerId, ContainerState, Wall};
use smolet::sync::Probes;
use smolet::sync::plan::{PlanInput, plan};

use finding::Idle;
use floor::{Floor, RawPod, ms};
use pulls::Pulls;
use report::{Figures, Floored, Report, Times};
use runtime::Runtime;
use subject::{Kind, PATIENCE, Subject, now};

/// Idle agents are watched with so many pods.
pub const PODS: [usize; 4] = [0, 10, 50, 110];
/// Pods that start at once.
const BURST: usize = 30;
/// How many of the floor's pods start at once: the best of these counts.
const AT_ONCE: [usize; 5] = [1, 2, 4, 8, BURST];

/// After pods have started: a checkpoint is written within ten seconds, and is no write at rest.
const SETTLE: Duration = Duration::from_secs(13);

/// How long and how often.
struct Effort {
    idle: Duration,
    settle: Duration,
    starts: usize,
    restarts: usize,
    bursts: usize,
}

const FULL: Effort =
    Effort { idle: Duration::from_mins(1), settle: SETTLE, starts: 25, restarts: 25, bursts: 5 };
const QUICK: Effort =
    Effort { idle: Duration::from_secs(10), settle: SETTLE, starts: 5, restarts: 5, bursts: 1 };

fn main() -> ExitCode {
    let effort = if std::env::args().any(|word| word == "quick") { QUICK } else { FULL };
    let binary = PathBuf::from(std::env::var_os("SMOLET_BIN").expect("SMOLET_BIN names the release binary"));
    let kubelet = std::env::var_os("KUBELET").map(PathBuf::from);

    let runtime = Runtime::up("bench");
    let floor = Floor::new(&runtime);
    if std::env::args().any(|word| word == "embedded-times") {
        println!("{}", embedded_times(&floor, binary, &effort));
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|word| word == "pulls") {
        let embedded = Runtime::up_as("bench-embedded", runtime::Kind::Embedded);
        let pulls = [Pulls::of(&embedded, &binary), Pulls::of(&runtime, &binary)];
        println!("{}", report::table_of_pulls(&pulls));
        return ExitCode::SUCCESS;
    }
    let measured = |kind: Kind, runtime: &Runtime, floor: Option<&Floor<'_>>| {
        let subject = Subject::start(runtime, kind);
        let (idle, node_pss_kib) = idle(&subject, &effort);
        let (start, raw_start) = starts(&subject, floor, &effort);
        let (restart, raw_restart) = restarts(&subject, floor, &effort);
        let (burst, raw_burst) = bursts(&subject, floor, &effort);
        let probe_ms = probes(&subject, &effort);
        (
            Figures { idle, node_pss_kib, start, restart, burst, probe_ms },
            Floored { start: raw_start, restart: raw_restart, burst: raw_burst },
        )
    };
    let (smolet, raw) = measured(Kind::Smolet(binary.clone()), &runtime, Some(&floor));
    let kubelet = kubelet.map(|kubelet| measured(Kind::Kubelet(kubelet), &runtime, None).0);
    // In turn with containerd's raw calls, as smolet with containerd.
    let runtime_embedded = Runtime::up_as("bench-embedded", runtime::Kind::Embedded);
    let (embedded, embedded_raw) = measured(Kind::Embedded(binary.clone()), &runtime_embedded, Some(&floor));
    eprintln!("{}", embedded_raw.beside(&embedded.start, &embedded.restart, &embedded.burst));
    let pulls = [Pulls::of(&runtime_embedded, &binary), Pulls::of(&runtime, &binary)];

    let binary_bytes = fs::metadata(&binary).expect("the binary is there").len();
    let report =
        Report { smolet, raw, kubelet, embedded, embedded_raw, pulls, binary_bytes, plan_us: plan_us() };
    println!("{}", report.table());
    if let Some(path) = std::env::var_os("PICTURE") {
        fs::write(&path, picture::svg(&report)).expect("the picture can be written");
    }
    let promises = report.promises();
    promises.iter().for_each(|promise| println!("{promise}"));
    if promises.iter().all(report::Promise::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the embedded runtime's quickness is judged by, in a few minutes.
fn embedded_times(floor: &Floor<'_>, binary: PathBuf, effort: &Effort) -> String {
    let runtime = Runtime::up_as("bench-embedded", runtime::Kind::Embedded);
    let subject = Subject::start(&runtime, Kind::Embedded(binary));
    let (start, raw_start) = starts(&subject, Some(floor), effort);
    let (restart, raw_restart) = restarts(&subject, Some(floor), effort);
    let (burst, raw_burst) = bursts(&subject, Some(floor), effort);
    let raw = Floored { start: raw_start, restart: raw_restart, burst: raw_burst };
    raw.beside(&start, &restart, &burst)
}

/// A pod that runs until it is told to end.
fn plain(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - {{name: app, image: 'smolet.test/version:1'}}
"
    )
}

/// A pod that is probed once a second.
fn probed(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [forever]
    livenessProbe: {{exec: {{command: ['true']}}, periodSeconds: 1, timeoutSeconds: 20}}
"
    )
}

/// A pod whose container ends when somebody writes to `OUT/NAME.fifo`, and runs on once it is started again.
fn ends_once(name: &str, out: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 2
  volumes:
  - {{name: out, hostPath: {{path: {out}, type: Directory}}}}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'test -e /out/{name}.done && exec forever; touch /out/{name}.done; read _ </out/{name}.fifo; exit 1']
    volumeMounts: [{{name: out, mountPath: /out}}]
"
    )
}

fn named(
    prefix: &str,
    from: usize,
    to: usize,
    text: impl Fn(&str) -> String,
) -> (Vec<String>, Vec<(String, String)>) {
    let names: Vec<String> = (from..to).map(|n| format!("{prefix}{n}")).collect();
    let manifests = names.iter().map(|name| (name.clone(), text(name))).collect();
    (names, manifests)
}

fn say(what: &str) {
    eprintln!("{what} ...");
}

/// The idle agent, and the KiB of the whole node, for each number of pods.
fn idle(subject: &Subject<'_>, effort: &Effort) -> (Vec<Idle>, Vec<u64>) {
    let mut had = 0;
    let watched = PODS.iter().map(|&pods| {
        say(&format!("{pods} idle pods"));
        let (names, manifests) = named("idle", had, pods, plain);
        had = pods;
        subject.apply(&manifests);
        subject.running(&names);
        std::thread::sleep(effort.settle);
        (Idle::watch(subject.pid(), effort.idle), subject.node_pss_kib())
    });
    let watched = watched.unzip();
    subject.end_pods();
    watched
}

/// Manifest → running, one pod after another.
fn starts(subject: &Subject<'_>, floor: Option<&Floor<'_>>, effort: &Effort) -> (report::Starts, Times) {
    say("one pod at a time");
    let (mut figures, mut raw) = (report::Starts::default(), Times::default());
    for n in 0..effort.starts {
        if let Some(floor) = floor {
            let pod = [floor.prepare(&plain(&format!("start{n}")))];
            raw.add(floor.start(&pod[0]).1);
            floor.end(&pod);
        }
        let (names, manifests) = named("start", n, n + 1, plain);
        let at = subject.apply(&manifests);
        // Not looked at while it starts: looking costs the runtime time too.
        std::thread::sleep(Duration::from_millis(400));
        let started = subject.running(&names)[0];
        figures.total.add(ms(at, started));
        if subject.is_smolet() {
            let seen = subject.seen(&names)[0];
            figures.source.add(ms(at, seen));
            figures.agent.add(ms(seen, started));
        }
        subject.end_pods();
    }
    (figures, raw)
}

/// Exit → restarted, one pod after another.
fn restarts(subject: &Subject<'_>, floor: Option<&Floor<'_>>, effort: &Effort) -> (report::Restarts, Times) {
    say("one restart at a time");
    let (mut figures, mut raw) = (report::Restarts::default(), Times::default());
    let out = subject.out().display().to_string();
    let (names, manifests) = named("once", 0, effort.restarts, |name| ends_once(name, &out));
    names.iter().for_each(|name| make_fifo(&out, name));
    subject.apply(&manifests);
    subject.running(&names);
    // What follows the starts is over.
    std::thread::sleep(effort.settle);
    for name in &names {
        // What is done of the last one's end behind the caller's back is over.
        std::thread::sleep(CLEAN_UP_PAUSE + Duration::from_millis(500));
        if let Some(floor) = floor {
            let out = floor.out().display().to_string();
            make_fifo(&out, name);
            let pods = [floor.prepare(&ends_once(name, &out))];
            let (id, _) = floor.start(&pods[0]);
            end_container(floor.runtime(), &format!("{out}/{name}.fifo"), &id);
            raw.add(floor.restart(&pods[0]));
            floor.end(&pods);
        }
        let runtime = subject.runtime();
        let id = runtime.containers_of(&subject.full(name))[0].id.clone();
        let shown = end_container(runtime, &format!("{out}/{name}.fifo"), &id);
        let exited = runtime.container_status(&id).finished_at.expect("it exited");
        std::thread::sleep(Duration::from_millis(100));
        let started = subject.running(std::slice::from_ref(name))[0];
        figures.total.add(ms(exited, started));
        figures.shown.add(ms(exited, shown));
        figures.agent.add(ms(shown, started));
    }
    subject.end_pods();
    (figures, raw)
}

/// What a pod of [`ends_once`] reads, without what an earlier one of that name has left.
fn make_fifo(out: &str, name: &str) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let (fifo, done) = (format!("{out}/{name}.fifo"), format!("{out}/{name}.done"));
    for left in [&fifo, &done] {
        match fs::remove_file(left) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{left}: {error}"),
            Ok(()) | Err(_) => {}
        }
    }
    mknodat(CWD, fifo, FileType::Fifo, Mode::from(0o666), 0).expect("a FIFO can be made");
}

/// Ends the container that reads there, and says when the CRI first showed that.
fn end_container(runtime: &Runtime, fifo: &str, id: &ContainerId) -> Wall {
    fs::write(fifo, "x\n").expect("the container reads");
    let patience = Instant::now() + Duration::from_secs(PATIENCE);
    while runtime.container_status(id).state != ContainerState::Exited {
        assert!(Instant::now() < patience, "the container does not exit");
        std::thread::sleep(Duration::from_millis(2));
    }
    now()
}

/// Many pods at once.
fn bursts(
    subject: &Subject<'_>,
    floor: Option<&Floor<'_>>,
    effort: &Effort,
) -> (report::Bursts, Vec<(usize, Times)>) {
    say("many pods at once");
    let mut figures = report::Bursts::default();
    let mut raw: Vec<(usize, Times)> = AT_ONCE.iter().map(|&at_once| (at_once, Times::default())).collect();
    for round in 0..effort.bursts {
        if let Some(floor) = floor {
            for (at_once, times) in &mut raw {
                let (_, manifests) = named("burst", 0, BURST, plain);
                let pods: Vec<RawPod> = manifests.iter().map(|(_, text)| floor.prepare(text)).collect();
                times.add(floor.burst(&pods, *at_once));
                floor.end(&pods);
            }
        }
        let (names, manifests) = named(&format!("burst{round}-"), 0, BURST, plain);
        let at = subject.apply(&manifests);
        std::thread::sleep(Duration::from_secs(1));
        let last = subject.running(&names).into_iter().max().expect("a pod");
        figures.total.add(ms(at, last));
        if subject.is_smolet() {
            let first = subject.seen(&names).into_iter().min().expect("a pod");
            figures.agent.add(ms(first, last));
        }
        subject.end_pods();
    }
    (figures, raw)
}

/// CPU of the whole node for each exec probe, in milliseconds.
fn probes(subject: &Subject<'_>, effort: &Effort) -> f64 {
    const PROBED: usize = 10;
    say("exec probes");
    let (names, manifests) = named("probed", 0, PROBED, probed);
    subject.apply(&manifests);
    subject.running(&names);
    std::thread::sleep(effort.settle);
    let (before, at) = (subject.node_cpu_ms(), Instant::now());
    std::thread::sleep(effort.idle);
    let (took, seconds) = (subject.node_cpu_ms() - before, at.elapsed().as_secs_f64());
    subject.end_pods();
    took / (PROBED as f64 * seconds)
}

/// Microseconds of one plan of a pod that nothing is to be done for; the median of many batches.
fn plan_us() -> f64 {
    let (pod, observed) = common::pod();
    let (probes, backoff) = (Probes::default(), Backoff::new(smolet::model::Mono(0), CRASH_BACKOFF_MAX));
    let input = PlanInput {
        pod: &pod,
        observed: &observed,
        probes: &probes,
        backoff: &backoff,
        now: common::NOW,
        restart_all: false,
        resizing: false,
    };
    const PLANS: u32 = 10_000;
    let mut times = Times::default();
    for _ in 0..50 {
        let at = Instant::now();
        for _ in 0..PLANS {
            std::hint::black_box(plan(std::hint::black_box(&input)));
        }
        times.add(at.elapsed().as_secs_f64() * 1e6 / f64::from(PLANS));
    }
    times.median()
}
