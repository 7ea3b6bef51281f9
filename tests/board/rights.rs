//! AppArmor, seccomp, groups of volumes and sysctls, as a container sees them on Debian's kernel.

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
