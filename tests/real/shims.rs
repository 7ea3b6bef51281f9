//! Whom the runtime keeps for a pod (containerd's shims, monitors of the embedded runtime, CRI-O's conmon): none outlives its pod.

use std::time::Duration;

use crate::agent::{Agent, PATIENCE, is_ready, wait_until};
use crate::runtime::{Runtime, wait_for};

const PODS: usize = 10;

/// By hand `SMOLET_TEST_LIVES=1000`, on a containerd 2.x above all (containerd#12560).
pub fn many_lives_of_pods_leave_no_shim(runtime: &Runtime) {
    let lives = std::env::var("SMOLET_TEST_LIVES").map_or(50, |text| text.parse().expect("a number"));
    let keepers = || runtime.processes().len() - 1;
    assert_eq!(keepers(), 0, "no pod is there yet");
    let mut agent = Agent::new(runtime, "lives");
    agent.log_level = "warn";
    agent.start();
    let mut of_ten = 0;
    for round in 0..lives / PODS {
        // In turn another image, which restarts the container in its sandbox, and another variable, which replaces the pod.
        let (generation, version) = (round.div_ceil(2), 1 + round / 2 % 2);
        for pod in 0..PODS {
            let spec = format!(
                "
  terminationGracePeriodSeconds: 20
  volumes: [{{name: out, hostPath: {{path: $OUT}}}}]
  containers:
  - name: app
    image: smolet.test/busybox:{version}
    command: [sh, -c, 'echo $GENERATION $(cat /etc/version) >/out/$POD; exec forever']
    env: [{{name: GENERATION, value: '{generation}'}}, {{name: POD, value: '{pod}'}}]
    volumeMounts: [{{name: out, mountPath: /out}}]"
            );
            agent.apply_pod(&format!("p{pod}"), &spec);
        }
        // In the midst of it, at another moment each time.
        if round % 5 == 4 {
            std::thread::sleep(Duration::from_millis(40 * (round as u64 % 50)));
            agent.kill();
            agent.start();
        }
        let wanted = format!("{generation} {version}\n");
        wait_for(&format!("round {round}: all pods run and are ready"), 3 * PATIENCE, || {
            let pods = agent.pods();
            let ready = pods.iter().filter(|pod| pod.status.as_ref().is_some_and(is_ready));
            let is_it =
                ready.count() == PODS && (0..PODS).all(|pod| agent.read_out(&pod.to_string()) == wanted);
            is_it.then_some(())
        });
        if round == 0 {
            of_ten = keepers();
            assert!(of_ten >= PODS, "{of_ten} processes keep {PODS} pods");
        }
        // A sandbox whose start was interrupted is collected like other dead ones, once a minute.
        let ended = wait_until(Duration::from_secs(3 * PATIENCE), || {
            (runtime.sandboxes().len() == PODS && keepers() == of_ten).then_some(())
        });
        assert!(ended.is_some(), "round {round}: {} processes keep {:#?}", keepers(), runtime.sandboxes());
    }
    agent.end_pods();
    wait_for("nobody is left who kept a pod", PATIENCE, || (keepers() == 0).then_some(()));
    println!("  {PODS} pods, {lives} lives, each kept by {} processes, and none is left", of_ten / PODS);
}
