//! Hooks in real containers: when they run, and what a failing one leads to.

use crate::agent::{Agent, PATIENCE, waits_for};
use crate::runtime::{Runtime, wait_for};

pub fn hooks_run_after_the_start_and_before_the_stop(runtime: &Runtime) {
    let agent = Agent::started(runtime, "hooks");
    agent.apply_pod(
        "web",
        "
  terminationGracePeriodSeconds: 20
  volumes:
  - {name: out, hostPath: {path: $OUT, type: Directory}}
  initContainers:
  - name: side
    image: smolet.test/busybox:1
    restartPolicy: Always
    command: [sh, -c, 'trap \"echo side ends >> /out/order; exit 0\" TERM; while :; do sleep 0.1; done']
    volumeMounts: [{name: out, mountPath: /out}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'trap \"echo app ends >> /out/order; exit 0\" TERM; mkdir /www; echo hi > /www/index.html; httpd -f -p 8080 -h /www & while :; do sleep 0.1; done']
    ports: [{name: web, containerPort: 8080}]
    volumeMounts: [{name: out, mountPath: /out}]
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'sleep 1; echo app started >> /out/order']}}
      preStop: {exec: {command: [sh, -c, 'sleep 1; echo app stops >> /out/order']}}
  - name: last
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo last runs >> /out/order; exec forever']
    volumeMounts: [{name: out, mountPath: /out}]
    lifecycle:
      preStop: {sleep: {seconds: 2}}
  - name: asked
    image: smolet.test/busybox:1
    command: [forever]
    ports: [{name: web, containerPort: 8080}]
    lifecycle:
      postStart: {httpGet: {port: web, path: /}}
      preStop: {tcpSocket: {port: 8080}}
",
    );
    agent.running("web");
    wait_for("two have written", PATIENCE, || (agent.read_out("order").lines().count() == 2).then_some(()));
    agent.delete("web");
    agent.wait_gone("web");
    let order = agent.read_out("order");
    let lines: Vec<&str> = order.lines().collect();
    assert_eq!(lines, ["app started", "last runs", "app stops", "app ends", "side ends"]);
    let log = agent.log();
    assert!(!log.contains("FailedP"), "{log}");

    agent.apply_pod(
        "bad",
        "
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sleep, '1000']
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'echo because of me; exit 3']}}
",
    );
    let said = "Exec lifecycle hook ([sh -c echo because of me; exit 3]) for Container \"app\" in Pod ";
    let name = agent.full("bad");
    wait_for("the reason", PATIENCE, || {
        let pod = agent.pods().into_iter().find(|pod| pod.metadata.name.as_deref() == Some(&*name))?;
        let why = waits_for(&pod.status?, "app")?.to_owned();
        (why == "PostStartHookError" || why == "CrashLoopBackOff").then_some(())
    });
    let shown = String::from_utf8_lossy(&agent.ask(&["describe", &name]).stdout).into_owned();
    assert!(shown.contains("FailedPostStartHook"), "{shown}");
    assert!(!shown.contains("PostStartHookError") || shown.contains(said), "{shown}");
    agent.end_pods();
}
