//! A pod's life: start, init containers, exits, changes, the end.

use std::time::Duration;

use smolet::model::ContainerState;

use crate::agent::{Agent, PATIENCE, bridge_address, container, id_of, ip_of, is_ready, text, waits_for};
use crate::runtime::{Runtime, alone, cgroup_of, http_get, wait_for};

/// Waits for SIGTERM in a container of the test images.
const STAYS: &str = "[sh, -c, exec forever]";

pub fn a_pod_runs_with_address_log_and_volume(runtime: &Runtime) {
    let _host_port = alone("host-port");
    let agent = Agent::started(runtime, "start");
    agent.apply_pod(
        "web",
        r#"
  hostname: door
  # busybox's httpd is deaf to SIGTERM as PID 1.
  terminationGracePeriodSeconds: 2
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: out, hostPath: {path: $OUT, type: Directory}}
  containers:
  - name: web
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo "$GREETING from $(hostname)"; echo warned >&2; echo $POD_NAME >/out/name; exec httpd -f -p 8080 -h /www']
    env:
    - {name: GREETING, value: hello}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    ports: [{containerPort: 8080, hostPort: 18431}]
    volumeMounts: [{name: out, mountPath: /out}, {name: shared, mountPath: /shared}]
  - name: other
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo seen >/shared/mark; exec forever']
    resources: {limits: {memory: 32Mi, cpu: 500m}}
    volumeMounts: [{name: shared, mountPath: /shared}]
"#,
    );
    let pod = agent.running("web");
    let full = agent.full("web");
    let sandbox = runtime.ready_sandbox(&full);
    assert_eq!(ip_of(&pod), runtime.ip(&sandbox.id), "the status shows the sandbox's address");
    assert_eq!(id_of(&pod, "web"), runtime.running_container(&full, "web").id.as_str());
    assert_eq!(agent.wait_out("name").trim(), full, "the downward API knows the pod's name");

    // Two ways in: the pod's address, and the host port that the runtime maps.
    for address in [format!("{}:8080", ip_of(&pod)), format!("{}:18431", bridge_address(&ip_of(&pod)))] {
        assert!(
            http_get(&address, "/").contains("smolet test page 1"),
            "the web server answers on {address}"
        );
    }

    let log = agent.log_dir("web").expect("a log directory").join("web/0.log");
    wait_for("the container's output is in its log", PATIENCE, || {
        let log = text(&log);
        (log.contains("stdout F hello from door") && log.contains("stderr F warned")).then_some(())
    });
    let id = id_of(&pod, "web");
    let link = agent.container_logs().join(format!("{full}_default_web-{id}.log"));
    wait_for("log collectors find it under /var/log/containers", PATIENCE, || {
        std::fs::read(&link).is_ok_and(|bytes| bytes == text(&log).into_bytes()).then_some(())
    });

    let mark = agent.dir.join("root/pods").join(&*sandbox.pod.uid.to_string());
    let mark = mark.join("volumes/kubernetes.io~empty-dir/shared/mark");
    wait_for("an emptyDir lies where the kubelet puts it", PATIENCE, || {
        std::fs::read(&mark).is_ok_and(|bytes| bytes == b"seen\n").then_some(())
    });

    let limit = runtime.container_status(&runtime.running_container(&full, "other").id).resources;
    let limit = limit.map(|resources| resources.memory_limit_in_bytes);
    // containerd before 1.7 does not report resources: then the cgroup tells.
    let limit =
        limit.filter(|bytes| *bytes != 0).unwrap_or_else(|| memory_limit(runtime, &id_of(&pod, "other")));
    assert_eq!(limit, 32 << 20, "the memory limit is in force");

    let wide = agent.ask(&["pods", "-o", "wide"]);
    let wide = String::from_utf8_lossy(&wide.stdout).into_owned();
    let row =
        wide.lines().find(|line| line.contains(&full)).unwrap_or_else(|| panic!("no row of {full}: {wide}"));
    assert!(row.contains("Running") && row.contains("2/2") && row.contains(&ip_of(&pod)), "{row}");
    let described = agent.ask(&["describe", &full]);
    let described = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(described.contains("smolet.test/busybox:1") && described.contains(&full), "{described}");
    agent.end_pods();
    agent.wait_gone("web");
    wait_for("the link is gone with its log", PATIENCE, || (!link.is_symlink()).then_some(()));
    wait_for("the emptyDir is gone with its pod", PATIENCE, || (!mark.exists()).then_some(()));
}

/// The limit of a container's memory cgroup, version 1 or 2.
fn memory_limit(runtime: &Runtime, id: &str) -> i64 {
    let found = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-path", &format!("*{}*/{}/memory*", runtime.cgroup_root, cgroup_of(id))])
        .args(["(", "-name", "memory.limit_in_bytes", "-o", "-name", "memory.max", ")"])
        .output()
        .expect("find runs");
    let path = String::from_utf8(found.stdout).expect("a path");
    text(path.trim().as_ref()).trim().parse().expect("a number of bytes")
}

pub fn init_containers_run_in_order_and_a_sidecar_stays(runtime: &Runtime) {
    let agent = Agent::started(runtime, "init");
    agent.apply_pod(
        "ordered",
        r"
  volumes: [{name: out, hostPath: {path: $OUT}}]
  initContainers:
  - name: first
    image: smolet.test/busybox:1
    command: [sh, -c, 'sleep 0.3; echo first >>/out/order']
    volumeMounts: [{name: out, mountPath: /out}]
  - name: side
    image: smolet.test/busybox:1
    restartPolicy: Always
    command: [sh, -c, 'echo side >>/out/order; exec forever']
    volumeMounts: [{name: out, mountPath: /out}]
  - name: second
    image: smolet.test/busybox:1
    command: [sh, -c, 'sleep 0.3; echo second >>/out/order']
    volumeMounts: [{name: out, mountPath: /out}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo app >>/out/order; exec forever']
    volumeMounts: [{name: out, mountPath: /out}]
",
    );
    let pod = agent.running("ordered");
    // The sidecar need only have started, not got as far as its first command, before the next init container.
    let order = wait_for("all four have written", PATIENCE, || {
        let order = agent.read_out("order");
        (order.lines().count() == 4).then_some(order)
    });
    let at =
        |word: &str| order.lines().position(|line| line == word).unwrap_or_else(|| panic!("{word}: {order}"));
    assert!(at("first") < at("side") && at("first") < at("second") && at("second") < at("app"), "{order}");

    let status = pod.status.as_ref().expect("a status");
    let init = status.init_container_statuses.as_deref().expect("init container statuses");
    for (name, exits) in [("first", true), ("side", false), ("second", true)] {
        let state = init.iter().find(|c| c.name == name).and_then(|c| c.state.as_ref()).expect("a state");
        let exit_code = state.terminated.as_ref().map(|terminated| terminated.exit_code);
        assert_eq!(
            (exit_code, state.running.is_some()),
            (exits.then_some(0), !exits),
            "init container {name}"
        );
    }
    runtime.running_container(&agent.full("ordered"), "side");
    agent.end_pods();
}

pub fn a_pod_that_ends_is_not_started_again(runtime: &Runtime) {
    let agent = Agent::started(runtime, "ends");
    for (name, policy, code) in [("job", "Never", 0), ("broken", "Never", 3), ("once", "OnFailure", 0)] {
        agent.apply_pod(
            name,
            &format!(
                "
  restartPolicy: {policy}
  containers:
  - name: work
    image: smolet.test/busybox:1
    command: [sh, -c, 'exit {code}']"
            ),
        );
    }
    for (name, phase, code) in [("job", "Succeeded", 0), ("broken", "Failed", 3), ("once", "Succeeded", 0)] {
        let pod = agent.wait_pod(name, phase, |status| status.phase.as_deref() == Some(phase));
        let status = pod.status.expect("a status");
        let state = container(&status, "work").and_then(|c| c.state.clone()).expect("a state");
        assert_eq!(state.terminated.map(|terminated| terminated.exit_code), Some(code), "pod {name}");
    }
    // It stays that way when nothing happens, and when the agent starts anew.
    let mut agent = agent;
    agent.stop();
    agent.start();
    agent.wait_pod("job", "Succeeded after a restart", |status| status.phase.as_deref() == Some("Succeeded"));
    std::thread::sleep(Duration::from_secs(2));
    for name in ["job", "broken", "once"] {
        let attempts: Vec<u32> = runtime.containers_of(&agent.full(name)).iter().map(|c| c.attempt).collect();
        assert!(attempts.iter().all(|attempt| *attempt == 0), "pod {name} was started again: {attempts:?}");
    }
    agent.end_pods();
}

pub fn an_exit_is_followed_by_restarts_with_back_off(runtime: &Runtime) {
    let agent = Agent::started(runtime, "crash");
    agent.apply_pod(
        "crash",
        r"
  volumes: [{name: out, hostPath: {path: $OUT}}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'cut -d\  -f1 /proc/uptime >>/out/starts; exit 7']
    volumeMounts: [{name: out, mountPath: /out}]
  - name: calm
    image: smolet.test/busybox:1
    command: [sh, -c, exec forever]
    volumeMounts: [{name: out, mountPath: /out}]
",
    );
    let pod = agent.wait_pod("crash", "in CrashLoopBackOff", |status| {
        waits_for(status, "app") == Some("CrashLoopBackOff")
    });
    let status = pod.status.as_ref().expect("a status");
    let app = container(status, "app").expect("a container status");
    let waiting = app.state.as_ref().and_then(|state| state.waiting.as_ref()).expect("it waits");
    let message = waiting.message.as_deref().unwrap_or_default();
    assert!(message.contains("back-off 10s restarting failed container=app pod=crash-crash"), "{message}");
    let last = app.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    assert_eq!(last.map(|terminated| terminated.exit_code), Some(7), "the last end is shown");
    let calm = id_of(&pod, "calm");

    let starts = wait_for("three starts", PATIENCE, || {
        let text = agent.read_out("starts");
        let starts: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        (starts.len() >= 3).then_some(starts)
    });
    let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    println!("  starts after an exit: {:.2} s, {:.2} s", gaps[0], gaps[1]);
    // doBackOff: at once after the first exit, then 10 s after the end of the last run.
    // A back-off would be 10 s for the one, and is 20 s for the third restart.
    assert!(gaps[0] < 9.0, "the first restart waits for nothing: {gaps:?}");
    assert!((10.0..19.0).contains(&gaps[1]), "the second restart comes after 10 s: {gaps:?}");
    let pod = agent.wait_pod("crash", "restarted twice", |status| {
        container(status, "app").is_some_and(|app| app.restart_count >= 2)
    });
    assert_eq!(id_of(&pod, "calm"), calm, "the other container was left alone");
    assert_eq!(runtime.sandboxes_of(&agent.full("crash")).len(), 1, "the sandbox was kept");
    agent.end_pods();
}

pub fn a_new_image_restarts_that_container_in_place(runtime: &Runtime) {
    let agent = Agent::started(runtime, "image");
    let spec = |tag: u32| {
        format!(
            "
  containers:
  - {{name: changes, image: 'smolet.test/version:{tag}'}}
  - {{name: stays, image: 'smolet.test/busybox:1', command: {STAYS}}}"
        )
    };
    agent.apply_pod("web", &spec(1));
    let before = agent.running("web");
    let full = agent.full("web");
    let sandbox = runtime.ready_sandbox(&full);

    agent.apply_pod("web", &spec(2));
    let after = agent.wait_pod("web", "ready with the new image", |status| {
        is_ready(status)
            && container(status, "changes").is_some_and(|c| c.image.contains(":2") && c.restart_count == 1)
    });
    assert_eq!(runtime.ready_sandbox(&full).id, sandbox.id, "the sandbox is the same");
    assert_eq!(runtime.sandboxes_of(&full).len(), 1);
    assert_eq!(after.metadata.uid, before.metadata.uid, "the pod is the same");
    assert_eq!(ip_of(&after), ip_of(&before), "its address is the same");
    assert_eq!(id_of(&after, "stays"), id_of(&before, "stays"), "the other container was left alone");
    assert_ne!(id_of(&after, "changes"), id_of(&before, "changes"));
    let log = agent.log_dir("web").expect("a log directory").join("changes/1.log");
    wait_for("the new image's output", PATIENCE, || text(&log).contains("version 2").then_some(()));
    agent.end_pods();
}

pub fn another_change_replaces_the_pod(runtime: &Runtime) {
    let agent = Agent::started(runtime, "change");
    let spec = |value: u32| {
        format!(
            "
  terminationGracePeriodSeconds: 5
  containers:
  - name: app
    image: smolet.test/busybox:1
    env: [{{name: GENERATION, value: '{value}'}}]
    command: {STAYS}"
        )
    };
    agent.apply_pod("app", &spec(1));
    let before = agent.running("app");
    agent.apply_pod("app", &spec(2));
    let after = wait_for("a new pod runs", PATIENCE, || {
        let pod = agent.pod("app").filter(|pod| pod.metadata.uid != before.metadata.uid)?;
        pod.status.as_ref().is_some_and(is_ready).then_some(pod)
    });
    let sandbox = runtime.ready_sandbox(&agent.full("app"));
    assert_eq!(Some(&*sandbox.pod.uid.to_string()), after.metadata.uid.as_deref());
    wait_for("the old pod is gone", PATIENCE, || {
        (runtime.sandboxes_of(&agent.full("app")).len() == 1).then_some(())
    });
    agent.end_pods();
}

pub fn a_removed_manifest_ends_the_pod_gracefully(runtime: &Runtime) {
    let agent = Agent::started(runtime, "remove");
    agent.apply_pod(
        "gone",
        r#"
  terminationGracePeriodSeconds: 3
  volumes: [{name: out, hostPath: {path: $OUT}}]
  containers:
  - name: polite
    image: smolet.test/busybox:1
    command: [sh, -c, 'trap "echo polite >>/out/term; exit 0" TERM; echo up >>/out/up; while :; do read -r _ <>/run/forever; done']
    volumeMounts: [{name: out, mountPath: /out}]
  - name: stubborn
    image: smolet.test/busybox:1
    command: [sh, -c, 'trap "cut -d. -f1 /proc/uptime >>/out/asked" TERM; echo up >>/out/up; while :; do cut -d. -f1 /proc/uptime >>/out/alive; sleep 0.2; done']
    volumeMounts: [{name: out, mountPath: /out}]
"#,
    );
    agent.running("gone");
    wait_for("both containers have set their traps", PATIENCE, || {
        (agent.read_out("up").lines().count() == 2).then_some(())
    });
    let uptime = text("/proc/uptime".as_ref());
    agent.delete("gone");
    agent.wait_gone("gone");
    assert_eq!(agent.read_out("term"), "polite\n", "SIGTERM was sent, once");
    let seconds = |text: &str| text.trim().parse::<i64>().expect("seconds of uptime");
    let (alive, asked) = (agent.read_out("alive"), seconds(&agent.read_out("asked")));
    let alive = seconds(alive.lines().last().expect("it lived"));
    // A shell that waits for a processor says late that it was asked, and is killed late; the default is 30 s.
    let before = seconds(uptime.split('.').next().expect("seconds"));
    let grace = (alive - before, alive - asked);
    assert!(grace.0 >= 2 && grace.1 <= 12, "the grace period of 3 s was granted, then ended: {grace:?} s");
}

pub fn a_missing_image_is_named(runtime: &Runtime) {
    let agent = Agent::started(runtime, "image-missing");
    for (name, policy) in [("never", "Never"), ("pull", "IfNotPresent")] {
        agent.apply_pod(
            name,
            &format!(
                "
  containers:
  - {{name: app, image: 'localhost:1/none:9', imagePullPolicy: {policy}}}"
            ),
        );
    }
    agent.wait_pod("never", "waiting for an image that is never pulled", |status| {
        waits_for(status, "app") == Some("ErrImageNeverPull")
    });
    let pod = agent.wait_pod("pull", "waiting for an image that cannot be pulled", |status| {
        matches!(waits_for(status, "app"), Some("ErrImagePull" | "ImagePullBackOff"))
    });
    let described = agent.ask(&["describe", &agent.full("pull")]);
    let described = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(described.contains("localhost:1/none:9"), "{described}");
    // A right image mends it, in the same sandbox.
    let uid = pod.metadata.uid.clone();
    let fixed =
        "\n  containers:\n  - {name: app, image: 'smolet.test/version:1', imagePullPolicy: IfNotPresent}";
    agent.apply_pod("pull", fixed);
    assert_eq!(agent.running("pull").metadata.uid, uid, "a changed image keeps the pod");
    let states: Vec<ContainerState> =
        runtime.containers_of(&agent.full("pull")).iter().map(|container| container.state).collect();
    assert_eq!(states, [ContainerState::Running]);
    agent.end_pods();
}
