//! AppArmor or SELinux, seccomp, groups of volumes and sysctls, as a container sees them on Debian's kernel.

use crate::board::Board;
use crate::runtime;

const PROFILE: &str = "#include <tunables/global>\nprofile board-no-www flags=(attach_disconnected) {\n  #include <abstractions/base>\n  \
                       file,\n  deny /www/** r,\n}\n";

/// Pod's security context and what is behind its containers; container's; what it says of itself, where `RUNTIMES` is the runtime's own
/// profile.
const CASES: [(&str, &str, &str, &str); 5] = [
    ("rights-usual", "", "", "RUNTIMES (enforce) 0"),
    (
        "rights-default",
        "seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: RuntimeDefault}, fsGroup: 4321, \
         sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '80'}, {name: kernel.shm_rmid_forced, value: '1'}]",
        "",
        "RUNTIMES (enforce) 2",
    ),
    (
        "rights-local",
        "seccompProfile: {type: Localhost, localhostProfile: none-of-mkdir.json}",
        "appArmorProfile: {type: Localhost, localhostProfile: board-no-www}",
        "board-no-www (enforce) 2",
    ),
    ("rights-privileges", "", "allowPrivilegeEscalation: false", "RUNTIMES (enforce) 0"),
    (
        "rights-none",
        "seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}",
        "",
        "unconfined 0",
    ),
];

pub fn all(board: &Board) {
    board.write("/etc/apparmor.d/board-no-www", PROFILE);
    board.run("apparmor_parser -r /etc/apparmor.d/board-no-www; mkdir -p /var/lib/smolet/seccomp");
    let refuses = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}"#;
    board.write("/var/lib/smolet/seccomp/none-of-mkdir.json", refuses);
    for (name, pod, container, _) in CASES {
        let spec = format!(
            "terminationGracePeriodSeconds: 2, securityContext: {{{pod}}}, volumes: [{{name: v, emptyDir: {{}}}}], containers: \
             [{{name: c, image: 'smolet.test/busybox:1', command: [sh, -c, 'sleep 1000 & kill $! && echo sent; exec forever'], \
             securityContext: {{{container}}}, \
             volumeMounts: [{{name: v, mountPath: /v}}]}}]"
        );
        board.put_pod(name, &spec);
    }
    board.wait_for_pods();
    let inside =
        |name: &str, script: &str| board.run(&format!("smolet exec {name} -- sh -c '{script}' 2>&1 || true"));
    for (name, _, _, expected) in CASES {
        let pid = runtime::pid_of(board, &board.container(name).id);
        let found = board.run(&format!(
            "echo $(cat /proc/{pid}/attr/current) $(awk '/^Seccomp:/ {{ print $2 }}' /proc/{pid}/status)"
        ));
        let expected = expected.replace("RUNTIMES", runtime::apparmor_profile());
        // Debian 13 gives the OCI runtime a name that confines nothing.
        let found =
            found.replace("crun (unconfined)", "unconfined").replace("runc (unconfined)", "unconfined");
        // crun keeps it beside ours where a container may not gain rights.
        let found =
            found.strip_prefix("crun//&").map_or(found.clone(), |of| of.replace("(mixed)", "(enforce)"));
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(
        inside(
            "rights-default",
            "stat -c %g-%a /v; cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced"
        ),
        "4321-2777\n80\n1"
    );
    // Whatever confines them, processes of a container may end each other, and its first process too.
    for (name, ..) in CASES {
        let said = inside(name, "sleep 1000 & kill -0 1 && kill $! && echo sent");
        assert_eq!(said, "sent", "{name}");
        assert_eq!(board.run(&format!("smolet logs {name}")), "sent", "{name}");
    }
    assert!(inside("rights-local", "mkdir /v/d").contains("Operation not permitted"));
    assert!(inside("rights-local", "cat /www/index.html").contains("Permission denied"));
    assert!(inside("rights-none", "mkdir /v/d; cat /www/index.html").contains("smolet test page 1"));
    board.remove(&CASES.map(|case| case.0));
    board.run("rm -r /var/lib/smolet/seccomp");
}

/// A pod with users of its own (`hostUsers: false`): its root is nobody on the node, and its volumes are its root's all the same. Debian 13's
/// crun maps the ids of mounts, older ones and Debian's runc do not: there the pod is refused.
pub fn users(board: &Board) {
    let maps_ids = runtime::is_embedded() && board.run(". /etc/os-release; echo $VERSION_ID") == "13";
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: users}\ndata: {word: mapped}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: users}\n\
                spec:\n  hostUsers: false\n  terminationGracePeriodSeconds: 2\n  volumes:\n  - {name: disk, emptyDir: {}}\n  \
                - {name: memory, emptyDir: {medium: Memory}}\n  - {name: map, configMap: {name: users}}\n  \
                - {name: host, hostPath: {path: /srv/users, type: DirectoryOrCreate}}\n  containers:\n  - name: c\n    \
                image: smolet.test/busybox:1\n    command: [forever]\n    volumeMounts:\n    - {name: disk, mountPath: /disk}\n    \
                - {name: memory, mountPath: /memory}\n    - {name: map, mountPath: /map}\n    - {name: host, mountPath: /host}\n";
    if !maps_ids {
        board.put("users", text, None);
        board.wait_for("the refusal", 120, || {
            let said = board.try_run("smolet describe users").ok()?;
            said.contains("does not support user namespaces").then_some(())
        });
        board.remove(&["users"]);
        return;
    }
    board.put("users", text, Some("1/1 Running".into()));
    board.wait_for_pods();
    let inside = |script: &str| board.run(&format!("smolet exec users -- sh -c '{script}'"));
    let pid = runtime::pid_of(board, &board.container("users").id);
    let on_node: u32 =
        board.run(&format!("awk '/^Uid:/ {{ print $2 }}' /proc/{pid}/status")).parse().unwrap();
    assert!(on_node >= 65536 && inside("id -u") == "0", "{on_node} on the node");
    assert_eq!(
        inside("cat /proc/self/uid_map").split_whitespace().collect::<Vec<_>>(),
        ["0", &*on_node.to_string(), "65536"]
    );
    assert_eq!(inside("stat -c %u /disk /memory /map/word /host /etc/hosts"), "0\n0\n0\n0\n0");
    assert_eq!(
        inside(
            "cat /map/word; echo; for at in disk memory host; do echo word >/$at/made && cat /$at/made; done"
        ),
        "mapped\nword\nword\nword"
    );
    assert_eq!(
        board.run("stat -c %u /srv/users/made"),
        "0",
        "on the disk it is the node's root's, as without such users"
    );
    board.remove(&["users"]);
    assert_eq!(board.run("findmnt -n -o TARGET | grep -c users || true"), "0");
}

const CONTAINER: &str = "system_u:system_r:container_t:";
const FILE: &str = "system_u:object_r:container_file_t:";

/// Labels of containers and of their files: one level for each pod, that of the options where there are some. Without the flag there are none,
/// and `doctor` says so.
pub fn selinux(board: &Board) {
    assert_eq!(board.run("getenforce"), "Permissive");
    let doctor = || board.run("smolet doctor || true");
    let said = doctor();
    assert!(said.contains("--selinux is not given: containers get no labels"), "{said}");
    let set = |arguments: &str| {
        let line = format!("s/^SMOLET_EXTRA_ARGS=.*/SMOLET_EXTRA_ARGS=\"{arguments}\"/");
        board.run(&format!("sed -i '{line}' /etc/default/smolet && systemctl restart smolet"));
    };
    set("--selinux");
    board.wait_for("doctor to find nothing wrong", 60, || (!doctor().contains("SELinux")).then_some(()));

    let pod = |name: &str, of_pod: &str, container: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{word: {name}}}\n---\napiVersion: v1\nkind: Pod\n\
             metadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 2\n  {of_pod}\n  volumes:\n  - {{name: disk, emptyDir: {{}}}}\n  \
             - {{name: memory, emptyDir: {{medium: Memory}}}}\n  - {{name: map, configMap: {{name: {name}}}}}\n  \
             - {{name: host, hostPath: {{path: /srv/{name}, type: DirectoryOrCreate}}}}\n  containers:\n  - name: c\n    \
             image: smolet.test/busybox:1\n    command: [forever]\n    securityContext: {{{container}}}\n    volumeMounts:\n    \
             - {{name: disk, mountPath: /disk}}\n    - {{name: memory, mountPath: /memory}}\n    - {{name: map, mountPath: /map}}\n    \
             - {{name: host, mountPath: /host}}\n"
        );
        board.put(name, &text, Some("1/1 Running".into()));
    };
    let names = ["label-a", "label-b", "label-options", "label-shared", "label-privileged"];
    pod(names[0], "", "");
    pod(names[1], "", "");
    pod(names[2], "securityContext: {seLinuxOptions: {level: 's0:c7,c8'}}", "seLinuxOptions: {type: spc_t}");
    board.wait_for_pods();
    pod(names[3], "shareProcessNamespace: true", "");
    pod(names[4], "", "privileged: true");
    board.wait_for_pods();

    let pid = |name: &str| runtime::pid_of(board, &board.container(name).id);
    let process = |name: &str| board.run(&format!("tr -d '\\0' </proc/{}/attr/current", pid(name)));
    let files = |name: &str, paths: &str| {
        board.run(&format!("cd /proc/{}/root && stat -c %C {paths} | sort -u", pid(name)))
    };
    let ours = ". bin/busybox disk memory map map/..data/word etc/hosts etc/hostname etc/resolv.conf dev/shm dev/termination-log";
    let mut levels = Vec::new();
    for name in [names[0], names[1], names[3]] {
        let label = process(name);
        let level = label.strip_prefix(CONTAINER).unwrap_or_else(|| panic!("{name}: {label}")).to_owned();
        assert_eq!(files(name, ours), format!("{FILE}{level}"), "{name}");
        assert_eq!(
            board.run(&format!("smolet exec {name} -- cat /proc/self/attr/current | tr -d '\\0'")),
            label
        );
        assert!(!files(name, "host").contains("container_file_t"), "a hostPath is the node's");
        levels.push(level);
    }
    assert!(levels[0] != levels[1] && levels[1] != levels[2] && levels[0] != levels[2], "{levels:?}");
    assert_eq!(process(names[2]), "system_u:system_r:spc_t:s0:c7,c8");
    assert_eq!(files(names[2], ours), format!("{FILE}s0:c7,c8"));
    assert!(!process(names[4]).contains("container_t"), "{}", process(names[4]));
    assert!(files(names[4], ours).starts_with(FILE));

    let stdout = board.container(names[0]).id;
    assert_eq!(
        board.run(&format!("stat -c %C /run/smolet/runtime/containers/{stdout}/stdout")),
        format!("{FILE}{}", levels[0]),
        "a container writes to its standard output"
    );

    // What is written later, by a container that is started anew, too.
    board.run(&format!("smolet exec {} -- sh -c 'echo 1 >/disk/new; echo 1 >/new'", names[0]));
    runtime::kill(board, &board.container(names[0]));
    board.run("systemctl restart smolet");
    board.wait_for_pods();
    assert_eq!(process(names[0]), format!("{CONTAINER}{}", levels[0]));
    assert_eq!(files(names[0], "disk/new"), format!("{FILE}{}", levels[0]));

    let unknown = "terminationGracePeriodSeconds: 2, containers: [{name: c, image: 'smolet.test/busybox:1', command: [forever], \
                   securityContext: {seLinuxOptions: {type: no_such_t}}}]";
    board.put_pod("label-unknown", unknown);
    board.wait_for("the refusal", 120, || {
        let said = board.try_run("smolet describe label-unknown").ok()?;
        said.contains("the node's policy does not know the label system_u:system_r:no_such_t:").then_some(())
    });
    board.remove(&["label-unknown"]);
    board.remove(&names);
    set("");
    board.run("rm -r /srv/label-*");
}
