//! ConfigMaps and Secrets, and volumes as containers see them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use smolet::model::ContainerState;

use crate::agent::{Agent, PATIENCE, id_of, text, waits_for};
use crate::runtime::{Runtime, wait_for};

pub fn variables_come_from_config_maps_and_secrets(runtime: &Runtime) {
    let agent = Agent::started(runtime, "objects");
    agent.apply_pod(
        "app",
        r#"
  volumes:
  - {name: out, hostPath: {path: $OUT, type: Directory}}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'env >/out/env; exec forever']
    env:
    - {name: LEVEL, valueFrom: {configMapKeyRef: {name: app, key: level}}}
    - {name: URL, value: 'mqtt://$(USER_name)@$(HOST)'}
    - {name: NONE, valueFrom: {secretKeyRef: {name: login, key: absent, optional: true}}}
    envFrom:
    - {configMapRef: {name: app}}
    - {secretRef: {name: login}, prefix: USER_}
    - {configMapRef: {name: absent, optional: true}}
    volumeMounts: [{name: out, mountPath: /out}]
"#,
    );
    agent.wait_pod("app", "waiting for its ConfigMap", |status| {
        waits_for(status, "app") == Some("CreateContainerConfigError")
    });
    agent.apply(
        "objects",
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {level: debug, HOST: broker.local}}\n\
         - {apiVersion: v1, kind: Secret, metadata: {name: login}, data: {word: aHVudGVyMg==}, stringData: {name: ann}}\n",
    );
    agent.running("app");
    let env = agent.wait_out("env");
    for line in [
        "LEVEL=debug",
        "level=debug",
        "HOST=broker.local",
        "USER_name=ann",
        "USER_word=hunter2",
        "URL=mqtt://ann@broker.local",
    ] {
        assert!(env.lines().any(|l| l == line), "{line} in\n{env}");
    }
    assert!(!env.contains("NONE="), "{env}");
    let log = agent.log();
    assert!(log.contains("objects.yaml: contains a Secret and is readable by others"), "{log}");
    assert!(!log.contains("hunter2") && !log.contains("aHVudGVyMg"), "no value of a Secret is logged");
    agent.end_pods();
}

pub fn files_come_from_config_maps_and_secrets_and_follow_them(runtime: &Runtime) {
    let agent = Agent::started(runtime, "files");
    let objects = |level: &str| {
        agent.apply(
            "objects",
            &format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{level: {level}}}}}\n---\n\
                 {{apiVersion: v1, kind: Secret, metadata: {{name: login}}, stringData: {{word: hunter2}}}}\n"
            ),
        );
    };
    objects("debug");
    agent.apply_pod(
        "app",
        r#"
  terminationGracePeriodSeconds: 2
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}
  volumes:
  - {name: out, hostPath: {path: $OUT, type: Directory}}
  - {name: conf, configMap: {name: app, items: [{key: level, path: app/level}]}}
  - {name: login, secret: {secretName: login, defaultMode: 0400}}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command:
    - sh
    - -c
    - |
      { cat /login/word; echo; stat -c '%a %g' /login/..data/word; grep ' /login ' /proc/mounts; id -G
        echo x >/login/new || echo read-only; } >/out/login 2>&1
      while :; do cat /conf/app/level >/out/level; sleep 0.1; done
    volumeMounts:
    - {name: out, mountPath: /out}
    - {name: conf, mountPath: /conf}
    - {name: login, mountPath: /login}
"#,
    );
    // The container's user writes there.
    fs::set_permissions(agent.out(), fs::Permissions::from_mode(0o777)).expect("a mode");
    let pod = agent.running("app");
    let level = |wanted: &str| {
        wait_for(&format!("the container reads {wanted}"), PATIENCE, || {
            (agent.read_out("level").trim() == wanted).then_some(())
        });
    };
    level("debug");
    let login = agent.read_out("login");
    for part in ["hunter2", "440 2000", "tmpfs", "read-only"] {
        assert!(login.contains(part), "{part} in {login}");
    }
    objects("info");
    level("info");
    assert_eq!(id_of(&agent.running("app"), "app"), id_of(&pod, "app"), "it was not restarted");

    let uid = pod.metadata.uid.as_ref().expect("a UID");
    let secrets = agent.dir.join("root/pods").join(uid).join("volumes/kubernetes.io~secret");
    let mode = secrets.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(!agent.log().contains("hunter2"), "no value of a Secret is logged");
    agent.end_pods();
    agent.wait_gone("app");
    wait_for("the pod's directory is gone, with the memory mounted in it", PATIENCE, || {
        (!secrets.exists() && !text(Path::new("/proc/self/mountinfo")).contains(uid.as_str())).then_some(())
    });
}

/// Everything a volume can be, as the container sees it.
pub fn volumes_are_what_the_spec_says(runtime: &Runtime) {
    let agent = Agent::started(runtime, "volumes");
    let objects = "{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {level: debug}}\n---\n\
                   {apiVersion: v1, kind: Secret, metadata: {name: login}, stringData: {word: hunter2}}\n";
    agent.apply("objects", objects);
    let manifest = |label: &str| {
        let spec = r#"
  terminationGracePeriodSeconds: 2
  volumes:
  - {name: out, hostPath: {path: $OUT, type: Directory}}
  - {name: mem, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: env, emptyDir: {}}
  - name: me
    downwardAPI:
      items:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: deep/limit, mode: 0400, resourceFieldRef: {containerName: app, resource: limits.memory, divisor: 1Mi}}
  - name: all
    projected:
      defaultMode: 0440
      sources:
      - {configMap: {name: app}}
      - {secret: {name: login, items: [{key: word, path: secret/word, mode: 0400}]}}
      - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  initContainers:
  - name: writes-variables
    image: smolet.test/busybox:1
    command: [sh, -c, "echo \"TOKEN='from-a-file'\" >/env/vars"]
    volumeMounts: [{name: env, mountPath: /env}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    resources: {limits: {memory: 32Mi}}
    env:
    - {name: WHO, value: ann}
    - {name: TOKEN, valueFrom: {fileKeyRef: {volumeName: env, path: vars, key: TOKEN}}}
    command:
    - sh
    - -c
    - |
      { echo "token $TOKEN"
        df -k /mem | tail -n 1
        dd if=/dev/zero of=/mem/x bs=1k count=2000 2>/dev/null || echo full
        cat /me/deep/limit; echo " MiB"; stat -c '%a' /me/..data/deep/limit
        cat /all/level /all/secret/word /all/name; echo
        stat -c '%a' /all/..data/level /all/..data/secret/word
        grep -E ' /(me|all|mem) ' /proc/mounts
        echo "part $(cat /part)"; pwd -P; ls -ld /own | cut -c1-10; touch /own/mark
      } >/out/told 2>&1
      while :; do cp /me/labels /out/labels; sleep 0.1; done
    volumeMounts:
    - {name: out, mountPath: /out}
    - {name: mem, mountPath: /mem}
    - {name: me, mountPath: /me}
    - {name: all, mountPath: /all}
    - {name: all, mountPath: /part, subPath: level}
    - {name: env, mountPath: /own, subPathExpr: users/$(WHO)}
"#;
        agent
            .pod_text("app", spec)
            .replace("  name: app\n", &format!("  name: app\n  labels: {{color: {label}}}\n"))
    };
    agent.apply("app", &manifest("red"));
    let pod = agent.running("app");
    let labels = |wanted: &str| {
        wait_for(&format!("the container reads {wanted}"), PATIENCE, || {
            agent.read_out("labels").contains(&format!("color={wanted:?}")).then_some(())
        });
    };
    labels("red");
    let told = agent.read_out("told");
    let name = agent.full("app");
    for line in [
        "token from-a-file",
        "tmpfs                     1024         0      1024   0% /mem",
        "full",
        "32 MiB",
        "400",
        &format!("debughunter2{name}"),
        "440",
        "part debug",
        "drwxrwxrwx",
    ] {
        assert!(told.lines().any(|l| l == line), "{line:?} in\n{told}");
    }
    let mounts: Vec<&str> = told.lines().filter(|line| line.starts_with("tmpfs /")).collect();
    assert_eq!(mounts.len(), 3, "{told}");
    for (at, mode) in [("/me ", "ro,"), ("/all ", "ro,"), ("/mem ", "rw,")] {
        assert!(
            mounts.iter().any(|line| line.contains(&format!(" {at}tmpfs {mode}"))),
            "{at}{mode} in {mounts:?}"
        );
    }

    agent.apply("app", &manifest("blue"));
    labels("blue");
    assert_eq!(id_of(&agent.running("app"), "app"), id_of(&pod, "app"), "a new label restarts nothing");

    let uid = pod.metadata.uid.as_ref().expect("a UID");
    let pod_dir = agent.dir.join("root/pods").join(uid);
    assert!(pod_dir.join("volumes/kubernetes.io~empty-dir/env/users/ann/mark").exists());
    assert!(pod_dir.join("volume-subpaths/env/app/5").is_dir());
    agent.end_pods();
    agent.wait_gone("app");
    wait_for("the pod's directory is gone, with all that was mounted in it", PATIENCE, || {
        (!pod_dir.exists() && !text(Path::new("/proc/self/mountinfo")).contains(uid.as_str())).then_some(())
    });
}

/// A pod that writes links into its own volume does not get at the node's files.
pub fn a_sub_path_leads_nowhere_outside_its_volume(runtime: &Runtime) {
    let agent = Agent::started(runtime, "escapes");
    let secret = agent.dir.join("secret");
    fs::create_dir_all(&secret).expect("made");
    fs::write(secret.join("key"), "of the node").expect("written");
    // What an attacker's earlier container may have left.
    let parts = [("absolute", "absolute"), ("parent", "parent/secret"), ("dangling", "dangling/new")];
    symlink(&secret, agent.out().join("absolute")).expect("linked");
    symlink("..", agent.out().join("parent")).expect("linked");
    symlink("../secret/new", agent.out().join("dangling")).expect("linked");
    fs::create_dir(agent.out().join("fine")).expect("made");
    symlink("fine", agent.out().join("inside")).expect("linked");
    let pod = |name: &str, part: &str| {
        agent.apply_pod(
            name,
            &format!(
                r#"
  terminationGracePeriodSeconds: 2
  volumes: [{{name: out, hostPath: {{path: $OUT}}}}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'touch /x/mark; exec forever']
    volumeMounts: [{{name: out, mountPath: /x, subPath: {part}}}]
"#
            ),
        );
    };
    for (name, part) in parts {
        pod(name, part);
    }
    pod("inside", "inside");
    agent.running("inside");
    wait_for("a link within the volume is followed", PATIENCE, || {
        agent.out().join("fine/mark").exists().then_some(())
    });
    for (name, _) in parts {
        let pod = agent.wait_pod(name, "refused", |status| {
            waits_for(status, "app") == Some("CreateContainerConfigError")
        });
        let status = serde_json::to_string(&pod.status).expect("a status is JSON");
        assert!(status.contains("for volumeMount \\\"out\\\" of container \\\"app\\\""), "{status}");
        assert!(!status.contains("secret"), "nothing is told of the node's files: {status}");
    }
    let left: Vec<_> =
        fs::read_dir(&secret).expect("there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["key"], "nothing was written there");
    agent.end_pods();
}

/// A pod that writes more into an emptyDir than it may ends for good, and gives back the room.
pub fn an_empty_dir_that_outgrows_its_limit_ends_its_pod(runtime: &Runtime) {
    let agent = Agent::started(runtime, "outgrown");
    agent.apply_pod(
        "app",
        r#"
  terminationGracePeriodSeconds: 600
  volumes:
  - {name: data, emptyDir: {sizeLimit: 50Mi}}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'trap "" TERM; dd if=/dev/zero of=/data/x bs=1M count=200; exec forever']
    volumeMounts: [{name: data, mountPath: /data}]
"#,
    );
    agent.running("app");
    let pod = agent.wait_pod("app", "evicted", |status| {
        status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted")
    });
    let message = pod.status.and_then(|status| status.message).expect("a message");
    assert_eq!(message, "Usage of EmptyDir volume \"data\" exceeds the limit \"50Mi\". ");
    let full = agent.full("app");
    let runs =
        || runtime.containers_of(&full).iter().any(|container| container.state == ContainerState::Running);
    wait_for("nothing of it runs, though it ends by SIGKILL only", PATIENCE, || (!runs()).then_some(()));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!runs(), "it is not started again");
    agent.end_pods();
    agent.wait_gone("app");
}

/// What a container writes to its root is told by the runtime, and held against its limit; the one beside it keeps to its own.
pub fn a_pod_that_takes_more_disk_than_it_may_fails_for_good(runtime: &Runtime) {
    let agent = Agent::started(runtime, "ephemeral-storage");
    for (name, mib) in [("modest", 5), ("greedy", 60)] {
        let spec = format!(
            "
  terminationGracePeriodSeconds: 2
  restartPolicy: OnFailure
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'dd if=/dev/zero of=/x bs=1M count={mib}; while :; do sleep 1; done']
    resources: {{limits: {{ephemeral-storage: 20Mi}}}}
"
        );
        agent.apply_pod(name, &spec);
    }
    agent.running("modest");
    let pod = agent.wait_pod("greedy", "evicted", |status| {
        status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted")
    });
    let message = pod.status.and_then(|status| status.message).expect("a message");
    assert_eq!(message, "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ");
    let runs = |name: &str| {
        let all = runtime.containers_of(&agent.full(name));
        all.iter().any(|container| container.state == ContainerState::Running)
    };
    wait_for("nothing of it runs", PATIENCE, || (!runs("greedy")).then_some(()));
    // As long as a look at what they use takes to come.
    std::thread::sleep(std::time::Duration::from_secs(15));
    assert!(!runs("greedy") && runs("modest"), "it is not started again, and the other one stays");
    agent.end_pods();
    agent.wait_gone("greedy");
}
