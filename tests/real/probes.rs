//! Probes of each kind, in real containers; how soon a hung container is replaced, and what probing costs.

use std::time::{Duration, UNIX_EPOCH};

use smolet::cri::Runtime as _;
use smolet::model::ContainerState;

use crate::agent::{Agent, PATIENCE, WATCHED, container, is_ready, is_release};
use crate::finding::{Idle, settle};
use crate::runtime::{Runtime, wait_for};

/// busybox's httpd, with a probe and what else stands behind it.
fn web(probe: &str) -> String {
    format!(
        "
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'exec httpd -f -p 8080 -h /www']
    ports: [{{name: web, containerPort: 8080}}]
    {probe}
"
    )
}

/// Runs a command in the pod's container.
fn exec(runtime: &Runtime, pod: &str, command: &[&str]) {
    let id = runtime.running_container(pod, "app").id;
    let command: Vec<String> = command.iter().map(ToString::to_string).collect();
    let done = runtime.drive(runtime.cri.exec_sync(&id, &command, Duration::from_secs(30)));
    assert_eq!(done.expect("it can be run").exit_code, 0, "{command:?}");
}

fn described(agent: &Agent, pod: &str) -> String {
    String::from_utf8_lossy(&agent.ask(&["describe", pod]).stdout).into_owned()
}

pub fn each_kind_of_probe_tells_a_good_container_from_a_bad_one(runtime: &Runtime) {
    let agent = Agent::started(runtime, "probes");
    let probe = |how: &str| format!("readinessProbe: {{{how}, periodSeconds: 1, timeoutSeconds: 20}}");
    for (name, good, bad, why) in [
        (
            "exec",
            "exec: {command: [sh, -c, 'test -f /www/index.html']}",
            "exec: {command: [sh, -c, 'echo there is nothing; exit 7']}",
            "Readiness probe failed: there is nothing",
        ),
        (
            "http",
            "httpGet: {port: web, path: /, httpHeaders: [{name: X-A, value: b}]}",
            "httpGet: {port: web, path: /none}",
            "Readiness probe failed: HTTP probe failed with statuscode: 404",
        ),
        ("tcp", "tcpSocket: {port: web}", "tcpSocket: {port: 81}", "connect: connection refused"),
    ] {
        let (good_name, bad_name) = (format!("{name}-good"), format!("{name}-bad"));
        agent.apply_pod(&good_name, &web(&probe(good)));
        agent.apply_pod(&bad_name, &web(&probe(bad)));
        agent.running(&good_name);
        let bad_name = agent.full(&bad_name);
        wait_for("the reason", PATIENCE, || described(&agent, &bad_name).contains(why).then_some(()));
        let is_bad = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.name.as_deref() == Some(&bad_name);
        let bad = agent.pods().into_iter().find(is_bad).and_then(|pod| pod.status).expect("a status");
        assert!(!is_ready(&bad) && bad.phase.as_deref() == Some("Running"), "{name}: {bad:?}");
        agent.end_pods();
    }
}

/// The answer of a gRPC server whose health is SERVING, for the first call of a connection: settings, the head, a message,
/// the trailers. There is no gRPC server in busybox.
const SERVING: &str = concat!(
    r"\000\000\000\004\000\000\000\000\000",
    r"\000\000\000\004\001\000\000\000\000",
    r"\000\000\024\001\004\000\000\000\001\210\017\020\020application/grpc",
    r"\000\000\007\000\000\000\000\000\001\000\000\000\000\002\010\001",
    r"\000\000\017\001\005\000\000\000\001\000\013grpc-status\0010",
);

pub fn a_grpc_server_is_asked_for_its_health(runtime: &Runtime) {
    let agent = Agent::started(runtime, "probes-grpc");
    // It answers when it has been asked.
    let serve = r"sleep 0.5\ncat /answer\nexec cat >/dev/null\n";
    agent.apply_pod(
        "health",
        &format!(
            r"
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command:
    - sh
    - -c
    - |
      printf '{SERVING}' >/answer
      printf '#!/bin/sh\n{serve}' >/serve
      chmod +x /serve
      exec nc -ll -p 50051 -e /serve
    readinessProbe: {{grpc: {{port: 50051}}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 99}}
"
        ),
    );
    agent.running("health");
    agent.end_pods();
}

pub fn a_container_that_hangs_is_replaced_at_once(runtime: &Runtime) {
    let agent = Agent::started(runtime, "liveness");
    agent.apply_pod(
        "sick",
        r"
  terminationGracePeriodSeconds: 5
  volumes: [{name: out, hostPath: {path: $OUT}}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, exec forever]
    volumeMounts: [{name: out, mountPath: /out}]
    livenessProbe:
      exec: {command: [sh, -c, 'test ! -e /sick || { touch /out/failed; exit 1; }']}
      periodSeconds: 1
      failureThreshold: 1
      timeoutSeconds: 20
",
    );
    agent.running("sick");
    let full = agent.full("sick");
    let first = runtime.running_container(&full, "app").id;
    exec(runtime, &full, &["touch", "/sick"]);
    agent.wait_pod("sick", "restarted", |status| {
        is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == 1)
    });
    let failed = std::fs::metadata(agent.out().join("failed")).and_then(|file| file.modified());
    let failed = failed.expect("the probe left a mark").duration_since(UNIX_EPOCH).expect("after 1970");
    let failed = i64::try_from(failed.as_nanos()).expect("before 2262");
    let old = runtime.container_status(&first);
    let new = runtime.container_status(&runtime.running_container(&full, "app").id);
    assert_eq!((old.state, new.state), (ContainerState::Exited, ContainerState::Running));
    let millis = |from: i64, to: i64| (to - from) as f64 / 1e6;
    let (ended, started) = (old.finished_at.expect("it ended").0, new.started_at.expect("it started").0);
    println!(
        "  from the failed liveness probe to the end of the container {:.0} ms, to the start of the next {:.0} ms",
        millis(failed, ended),
        millis(failed, started)
    );
    assert!(failed <= ended && ended <= started, "{failed} {ended} {started}");
    assert!(described(&agent, &full).contains("Container app failed liveness probe, will be restarted"));
    agent.end_pods();
}

/// Pods that are probed while the agent is watched. What is measured is a quarter of what may not be passed.
const PODS: usize = 30;
const WATCH: Duration = Duration::from_mins(1);
/// What the start leaves to be done is done when nothing was written for that long.
const SETTLE: Duration = Duration::from_secs(15);

pub fn probing_thirty_pods_costs_little(runtime: &Runtime) {
    for (name, how, cpu_ms_max) in
        [("exec", "exec: {command: ['true']}", 300.0), ("httpGet", "httpGet: {port: web, path: /}", 300.0)]
    {
        let mut agent = Agent::new(runtime, &format!("cost-{}", name.to_ascii_lowercase()));
        agent.config = WATCHED.into();
        agent.log_level = "info";
        agent.start();
        let probe = format!("readinessProbe: {{{how}, periodSeconds: 10, timeoutSeconds: 10}}");
        (0..PODS).for_each(|n| agent.apply_pod(&format!("p{n}"), &web(&probe)));
        wait_for("all pods are ready", PATIENCE * 2, || {
            let ready = agent.pods().iter().filter(|pod| pod.status.as_ref().is_some_and(is_ready)).count();
            (ready == PODS).then_some(())
        });
        settle(agent.pid(), SETTLE);
        let answers = |agent: &Agent| {
            let page = agent.metrics();
            let line = "prober_probe_total{probe_type=\"Readiness\",result=\"successful\"} ";
            let count = page.lines().find_map(|text| text.strip_prefix(line)?.parse::<usize>().ok());
            count.unwrap_or_else(|| panic!("no probes: {page}"))
        };
        let before = answers(&agent);
        let cost = Idle::watch(agent.pid(), WATCH);
        let probes = answers(&agent) - before;
        println!(
            "  {PODS} pods, {name} every 10 s: {probes} probes, {:.0} ms of CPU and {:.0} wake-ups a minute, {} KiB \
             resident, {} threads, {} bytes written",
            cost.cpu_ms_per_minute,
            cost.wakeups_per_minute,
            cost.end.resident_kib,
            cost.end.threads,
            cost.disk_bytes
        );
        assert!((PODS * 5..=PODS * 7).contains(&probes), "{probes} probes in a minute");
        assert_eq!(cost.disk_bytes, 0, "nothing changes");
        if is_release() {
            assert!(cost.cpu_ms_per_minute <= cpu_ms_max, "{cost:?}");
        }
        agent.end_pods();
    }
}
