//! Many pods, and what an agent costs while nothing happens.

use std::time::{Duration, Instant};

use crate::agent::{Agent, PATIENCE, is_ready, is_release};
use crate::finding::Finding;
use crate::runtime::{Runtime, wait_for};

/// `SMOLET_PODS` in the environment measures with another number.
const PODS: usize = 30;
/// How long the idle agent is watched.
const IDLE: Duration = Duration::from_secs(20);
/// What the release build may take with [`PODS`] pods while nothing happens.
const RESIDENT_KIB_MAX: u64 = 8 * 1024;
/// The same for its CPU time, a minute. The room above what is measured is for a busy test machine.
const CPU_MILLIS_MAX: f64 = 150.0;

pub fn thirty_pods_at_once_and_an_idle_minute(runtime: &Runtime) {
    let pods = std::env::var("SMOLET_PODS").map_or(PODS, |n| n.parse().expect("SMOLET_PODS is a number"));
    let mut agent = Agent::new(runtime, "many");
    let spec = "
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: 'smolet.test/version:1'}";
    (0..pods).for_each(|n| agent.apply_pod(&format!("p{n}"), spec));
    let at = Instant::now();
    agent.start();
    wait_for("all pods run", PATIENCE, || {
        let ready = agent.pods().iter().filter(|pod| pod.status.as_ref().is_some_and(is_ready)).count();
        (ready == pods).then_some(())
    });
    println!("  {pods} pods run {:.2} s after the agent's start", at.elapsed().as_secs_f64());
    assert_eq!((runtime.sandboxes().len(), runtime.containers().len()), (pods, pods));

    // The start's last statuses are written out by then.
    std::thread::sleep(Duration::from_secs(5));
    let before = Finding::of(agent.pid());
    std::thread::sleep(IDLE);
    let after = Finding::of(agent.pid());
    let cpu = (after.cpu.saturating_sub(before.cpu)).as_secs_f64() * 60.0 / IDLE.as_secs_f64() * 1e3;
    let disk = after.disk_bytes - before.disk_bytes;
    let wakeups = (after.wakeups - before.wakeups) as f64 * 60.0 / IDLE.as_secs_f64();
    println!(
        "  idle with {pods} pods: {} KiB resident (at most {} KiB), {} threads, {cpu:.1} ms of CPU and \
         {wakeups:.0} wake-ups a minute, {disk} bytes written",
        after.resident_kib, after.resident_kib_max, after.threads
    );
    assert_eq!(disk, 0, "nothing is written while nothing happens");
    // A debug build is another program.
    if is_release() && pods == PODS {
        assert!(after.resident_kib <= RESIDENT_KIB_MAX, "{after:?}");
        assert!(cpu <= CPU_MILLIS_MAX, "{cpu} ms of CPU a minute");
    }

    let at = Instant::now();
    agent.end_pods();
    println!("  all {pods} gone {:.2} s after their manifests", at.elapsed().as_secs_f64());
}
