//! SIGTERM that means the machine's end: pods end, hooks included, and come back with the next agent.

use crate::agent::{Agent, PATIENCE};
use crate::runtime::{Runtime, wait_for};
use smolet::model::ContainerState;

const POD: &str = r#"
  terminationGracePeriodSeconds: 8
  initContainers:
  - name: side
    image: smolet.test/busybox:1
    command: [sh, -c, 'trap "echo side >>/out/ends; exit 0" TERM; echo side >>/out/up; while :; do sleep 0.1; done']
    restartPolicy: Always
    volumeMounts: [{name: out, mountPath: /out}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'trap "echo app >>/out/ends; exit 0" TERM; echo app >>/out/up; while :; do sleep 0.1; done']
    volumeMounts: [{name: out, mountPath: /out}]
    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo hook >>/out/ends']}}}
  volumes:
  - {name: out, hostPath: {path: $OUT}}
"#;

pub fn pods_end_with_the_machine_and_come_back(runtime: &Runtime) {
    let mut agent = Agent::new(runtime, "machine-end");
    agent.arguments = ["--shutdown-grace-period", "12s", "--shutdown-on-sigterm"].map(Into::into).to_vec();
    agent.start();
    agent.apply_pod("web", POD);
    agent.running("web");
    wait_for("both have set their traps", PATIENCE, || {
        (agent.read_out("up").lines().count() == 2).then_some(())
    });
    assert!(agent.stop().success());
    assert_eq!(agent.read_out("ends"), "hook\napp\nside\n", "the hook first, the sidecar last");
    let full = agent.full("web");
    let states = runtime.containers_of(&full);
    assert!(
        !states.is_empty() && states.iter().all(|container| container.state != ContainerState::Running),
        "{states:?}"
    );

    // As after a boot.
    agent.start();
    let pod = agent.running("web");
    assert_eq!(pod.status.expect("a status").reason, None);

    // An agent that is told of no end of the machine leaves them.
    agent.arguments.clear();
    // This one still ends them.
    assert!(agent.stop().success());
    agent.start();
    agent.running("web");
    std::fs::write(agent.out().join("ends"), "").expect("a file");
    assert!(agent.stop().success());
    assert_eq!(agent.read_out("ends"), "");
    agent.start();
    agent.end_pods();
}
