//! What the agent costs while nothing happens: the numbers that docs/promises.md promises, held for the whole release process.

use std::time::{Duration, Instant};

use smolet::limits::RELIST_PERIOD_MAX;

use crate::agent::{Agent, WATCHED, is_ready, is_release};
use crate::finding::{Finding, Idle, settle};
use crate::runtime::{Runtime, wait_for};

/// How long the idle agent is watched: one relist is in it.
const WATCH: Duration = RELIST_PERIOD_MAX;
/// How often, while it costs more CPU than promised: what others compute beside makes that dearer, and never cheaper.
const WATCHES_MAX: usize = 3;
/// What the start leaves to be done is done when nothing was written for that long: the checkpoint's last write waits for ten seconds after
/// the one before.
const SETTLE: Duration = Duration::from_secs(15);
/// Seconds until all pods run, or all are gone, on a slow and busy machine.
const PATIENCE: u64 = 300;

/// What may not be passed with so many pods.
struct Limits {
    pods: usize,
    resident_kib: u64,
    /// The room above what is measured is for a busy test machine.
    cpu_ms_per_minute: f64,
    wakeups_per_minute: f64,
}

const LIMITS: [Limits; 2] = [
    Limits { pods: 10, resident_kib: 5 * 1024, cpu_ms_per_minute: 10.0, wakeups_per_minute: 400.0 },
    Limits { pods: 110, resident_kib: 8 * 1024, cpu_ms_per_minute: 40.0, wakeups_per_minute: 400.0 },
];
/// Anonymous memory when all pods are gone again, above that with ten.
const KEPT_KIB: u64 = 1536;
/// The loop's thread and the reactor's.
const THREADS_MAX: u64 = 2;

pub fn an_idle_agent_costs_no_more_than_promised(runtime: &Runtime) {
    let mut agent = Agent::new(runtime, "idle");
    agent.config = WATCHED.into();
    // As it is shipped: a debug log would be written by every relist.
    agent.log_level = "info";
    let spec = "
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: 'smolet.test/version:1'}";
    agent.start();
    let mut anonymous_kib = Vec::new();
    for limits in &LIMITS {
        let had = agent.pods().len();
        let at = Instant::now();
        (had..limits.pods).for_each(|n| agent.apply_pod(&format!("p{n}"), spec));
        wait_for("all pods run", PATIENCE, || {
            let ready = agent.pods().iter().filter(|pod| pod.status.as_ref().is_some_and(is_ready)).count();
            (ready == limits.pods).then_some(())
        });
        println!(
            "  {} more pods run {:.2} s after their manifests",
            limits.pods - had,
            at.elapsed().as_secs_f64()
        );
        assert_eq!((runtime.sandboxes().len(), runtime.containers().len()), (limits.pods, limits.pods));

        settle(agent.pid(), SETTLE);
        let mut idle = Idle::watch(agent.pid(), WATCH);
        for _ in 1..WATCHES_MAX {
            // The first list of all images, five minutes after the start, is recorded once.
            if idle.cpu_ms_per_minute <= limits.cpu_ms_per_minute && idle.disk_bytes == 0 {
                break;
            }
            println!(
                "  {:.1} ms of CPU, {} bytes written: watched again",
                idle.cpu_ms_per_minute, idle.disk_bytes
            );
            idle = Idle::watch(agent.pid(), WATCH);
        }
        println!(
            "  idle with {} pods: {} KiB resident, {} of them anonymous, {} threads, {:.1} ms of CPU and {:.0} wake-ups \
             a minute, {} bytes written",
            limits.pods,
            idle.end.resident_kib,
            idle.end.anonymous_kib,
            idle.end.threads,
            idle.cpu_ms_per_minute,
            idle.wakeups_per_minute,
            idle.disk_bytes
        );
        anonymous_kib.push(idle.end.anonymous_kib);
        assert_eq!(idle.disk_bytes, 0, "nothing is written while nothing happens");
        assert!(idle.end.threads <= THREADS_MAX, "{idle:?}");
        assert!(idle.wakeups_per_minute <= limits.wakeups_per_minute, "{idle:?}");
        // A debug build is another program.
        if is_release() {
            assert!(idle.end.resident_kib <= limits.resident_kib, "{idle:?}");
            assert!(idle.cpu_ms_per_minute <= limits.cpu_ms_per_minute, "{idle:?}");
        }
    }
    let at = Instant::now();
    agent.end_pods();
    println!("  all gone {:.2} s after their manifests", at.elapsed().as_secs_f64());

    std::thread::sleep(SETTLE);
    let end = Finding::of(agent.pid());
    println!("  then {} KiB resident, {} of them anonymous", end.resident_kib, end.anonymous_kib);
    if is_release() {
        assert!(end.anonymous_kib <= anonymous_kib[0] + KEPT_KIB, "{anonymous_kib:?} {end:?}");
    }
}
