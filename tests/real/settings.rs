//! Runtime settings as a container sees them: names, resolver, namespaces, users, rights, limits, last words.
//!
//! Each container writes what it sees into a file of its own in the agent's `out` directory; many pods of a test run side
//! by side. What this machine cannot show is tested to the CRI request (tests/agent/settings.rs) and named by
//! [`what_this_machine_cannot_show_is_named`].

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use k8s_openapi::api::core::v1::PodStatus;
use smolet::cri::{Runtime as _, RuntimeStatus};

use crate::agent::{Agent, PATIENCE, container, id_of, ip_of, text, waits_for};
use crate::runtime::{Kind, Runtime, cgroup_of, is_embedded, wait_for};

/// An agent whose `out` directory is for every user.
fn agent<'r>(runtime: &'r Runtime, name: &str) -> Agent<'r> {
    let mut agent = Agent::new(runtime, name);
    let config = agent.dir.join("kubelet.yaml");
    fs::write(
        &config,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDomain: cluster.local\n\
         allowedUnsafeSysctls: ['net.core.*']\nevictionHard: {memory.available: 0%}\n",
    )
    .expect("a file");
    agent.config = config;
    fs::set_permissions(agent.out(), fs::Permissions::from_mode(0o777)).expect("a mode");
    agent.start();
    agent
}

/// A container that writes what `script` prints into its file and ends. `more` is YAML, its other fields.
fn says(name: &str, script: &str, more: &str) -> String {
    says_and(name, script, "exit", more)
}

/// The same, with something else to do at the end.
fn says_and(name: &str, script: &str, then: &str, more: &str) -> String {
    let script = format!("{{ {script}\n}} >/out/{name}.new 2>&1; mv /out/{name}.new /out/{name}; {then}");
    let script = serde_json::to_string(&script).expect("text");
    format!(
        "  - name: {name}\n    image: smolet.test/busybox:1\n    command: [sh, -c, {script}]\n    volumeMounts: \
         [{{name: out, mountPath: /out}}]\n{more}\n"
    )
}

/// A pod of such containers, with `spec` before them.
fn pod(agent: &Agent<'_>, name: &str, spec: &str, containers: &[String]) {
    let containers = containers.concat();
    agent.apply_pod(
        name,
        &format!(
            "{spec}\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 2\n  volumes:\n  - {{name: out, hostPath: \
             {{path: $OUT}}}}\n  containers:\n{containers}"
        ),
    );
}

/// What the container of that name wrote.
fn said(agent: &Agent<'_>, name: &str) -> String {
    wait_for(&format!("the words of container {name}"), PATIENCE, || {
        let path = agent.out().join(name);
        path.exists().then(|| text(&path))
    })
}

fn uname() -> String {
    text(Path::new("/proc/sys/kernel/hostname")).trim().to_owned()
}

fn runtime_status(runtime: &Runtime) -> RuntimeStatus {
    runtime.drive(runtime.cri.status()).expect("the runtime tells")
}

/// The message an app container waits with.
fn waiting_message(status: &PodStatus, name: &str) -> String {
    let waiting = container(status, name).and_then(|c| c.state.as_ref()?.waiting.as_ref());
    waiting.and_then(|waiting| waiting.message.clone()).unwrap_or_default()
}

fn waits(agent: &Agent<'_>, pod: &str, name: &str, reason: &str, message: &str) {
    agent.wait_pod(pod, &format!("waiting for {reason}"), |status| {
        waits_for(status, name) == Some(reason) && waiting_message(status, name).contains(message)
    });
}

pub fn names_hosts_and_resolver_are_as_the_pod_says(runtime: &Runtime) {
    let agent = agent(runtime, "names");
    let aliases = "  hostAliases:\n  - {ip: 10.9.8.7, hostnames: [broker, broker.local]}\n  - {ip: 'fd00::7', hostnames: [six]}";
    pod(
        &agent,
        "named",
        &format!("  hostname: door\n  subdomain: house\n{aliases}"),
        // It stays: a pod that has ended has no address.
        &[says_and(
            "named",
            "uname -n; cat /etc/hosts; ping -c 1 -W 1 broker 2>&1 | head -n 1",
            "exec forever",
            "",
        )],
    );
    pod(
        &agent,
        "full",
        "  hostname: door\n  subdomain: house\n  setHostnameAsFQDN: true",
        &[says("full", "uname -n", "")],
    );
    pod(
        &agent,
        "other",
        "  hostnameOverride: other.example",
        &[says("other", "uname -n; cat /etc/hosts", "")],
    );
    pod(
        &agent,
        "resolver",
        "  dnsPolicy: None\n  dnsConfig:\n    nameservers: [192.0.2.53, 192.0.2.54]\n    searches: [a.example, b.example]\n    \
         options: [{name: ndots, value: '2'}, {name: rotate}]",
        &[says("resolver", "cat /etc/resolv.conf", "")],
    );
    pod(
        &agent,
        "hostnet",
        &format!("  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n{aliases}"),
        &[says("hostnet", "uname -n; cat /etc/hosts", "")],
    );

    let named = said(&agent, "named");
    // It may have written before the agent has looked at it.
    let ip = ip_of(&agent.wait_pod("named", "known by its address", |status| status.pod_ip.is_some()));
    for line in [
        "door".to_owned(),
        "# Kubernetes-managed hosts file.".to_owned(),
        "127.0.0.1\tlocalhost".to_owned(),
        format!("{ip}\tdoor.house.default.svc.cluster.local\tdoor"),
        "10.9.8.7\tbroker\tbroker.local".to_owned(),
        "fd00::7\tsix".to_owned(),
    ] {
        assert!(named.lines().any(|l| l == line), "{line} in\n{named}");
    }
    assert!(named.contains("PING broker (10.9.8.7)"), "the name resolves: {named}");
    assert_eq!(said(&agent, "full").trim(), "door.house.default.svc.cluster.local");
    let other = said(&agent, "other");
    assert!(other.starts_with("other.example\n") && other.contains("\tother.example\n"), "{other}");
    let resolver = said(&agent, "resolver");
    for line in [
        "search a.example b.example",
        "nameserver 192.0.2.53",
        "nameserver 192.0.2.54",
        "options ndots:2 rotate",
    ] {
        assert!(resolver.lines().any(|l| l == line), "{line} in\n{resolver}");
    }
    let hostnet = said(&agent, "hostnet");
    let of_node = text(Path::new("/etc/hosts"));
    assert!(
        hostnet.starts_with(&format!("{}\n# Kubernetes-managed hosts file (host network).\n", uname())),
        "{hostnet}"
    );
    assert!(hostnet.contains(of_node.trim_end()), "the node's own names: {hostnet}");
    assert!(hostnet.contains("10.9.8.7\tbroker\tbroker.local\n"), "{hostnet}");
    agent.end_pods();
}

pub fn namespaces_are_the_nodes_the_pods_or_the_containers(runtime: &Runtime) {
    let agent = agent(runtime, "spaces");
    let spaces = "for n in pid ipc net; do readlink /proc/self/ns/$n; done; tr '\\0' ' ' </proc/1/cmdline";
    pod(&agent, "host", "  hostPID: true\n  hostIPC: true\n  hostNetwork: true", &[says("host", spaces, "")]);
    // The first one stays: the kernel gives the number of a namespace that is gone to the next one.
    let both = |one: &str, two: &str| [says_and(one, spaces, "exec forever", ""), says(two, spaces, "")];
    pod(&agent, "apart", "", &both("apart1", "apart2"));
    pod(&agent, "shared", "  shareProcessNamespace: true", &both("shared1", "shared2"));

    let of_host = ["pid", "ipc", "net"]
        .map(|name| fs::read_link(format!("/proc/self/ns/{name}")).expect("a link").display().to_string());
    let of = |name: &str| -> Vec<String> { said(&agent, name).lines().map(str::to_owned).collect() };
    assert_eq!(of("host")[..3], of_host);
    let (one, two) = (of("apart1"), of("apart2"));
    assert!(one.iter().zip(&of_host).all(|(ours, hosts)| ours != hosts), "{one:?}");
    assert_ne!(one[0], two[0], "each container has processes of its own");
    assert_eq!(one[1..3], two[1..3], "and the pod's IPC and network");
    assert!(one[3].starts_with("sh "), "its command is PID 1: {one:?}");
    let (one, two) = (of("shared1"), of("shared2"));
    assert_eq!(one[..3], two[..3]);
    assert_ne!(one[0], of_host[0]);
    let first = if is_embedded() { "smolet pause" } else { "forever" };
    assert!(one[3].contains(first), "the sandbox's process is PID 1: {one:?}");
    agent.end_pods();
}

/// Denies one system call and no other.
const NO_MKDIR: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;

pub fn users_and_rights_are_as_the_security_context_says(runtime: &Runtime) {
    let agent = agent(runtime, "rights");
    let profiles = agent.dir.join("root/seccomp/own");
    fs::create_dir_all(&profiles).expect("a directory");
    fs::write(profiles.join("no-mkdir.json"), NO_MKDIR).expect("a profile");
    let context = |fields: &str| format!("    securityContext: {{{fields}}}");
    let state = |field: &str| format!("grep '^{field}:' /proc/self/status | tr -d '\\t '");
    pod(
        &agent,
        "ids",
        "  securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000]}",
        &[
            says("ids", "id -u; id -g; id -G", ""),
            says("own", "id -u; id -g", &context("runAsUser: 1001, runAsGroup: 3001")),
        ],
    );
    pod(
        &agent,
        "rights",
        "  securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '81'}, {name: \
         net.core.somaxconn, value: '77'}]}",
        &[
            says("default", &[state("CapEff"), state("NoNewPrivs"), state("Seccomp")].join("; "), ""),
            says("bare", &state("CapEff"), &context("capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}")),
            says("more", &state("CapEff"), &context("capabilities: {add: [SYS_TIME]}")),
            says(
                "privileged",
                &[state("CapEff"), "grep -c ' /proc/' /proc/mounts".into()].join("; "),
                &context("privileged: true"),
            ),
            says("masked", "cut -d ' ' -f 2 /proc/mounts | grep ^/proc/", ""),
            says("stiff", "touch /new || echo refused", &context("readOnlyRootFilesystem: true")),
            says("soft", "touch /new && echo written", ""),
            says("lowered", &state("NoNewPrivs"), &context("allowPrivilegeEscalation: false")),
            says(
                "sysctls",
                "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/core/somaxconn",
                "",
            ),
            says(
                "filtered",
                &format!(
                    "{}; mkdir /tmp/new || echo refused; touch /tmp/file && echo written",
                    state("Seccomp")
                ),
                &context("seccompProfile: {type: Localhost, localhostProfile: own/no-mkdir.json}"),
            ),
            says("limits", "grep -E '^Max (core|processes|open)' /proc/self/limits | tr -s ' '", ""),
            says("usual", &state("Seccomp"), &context("seccompProfile: {type: RuntimeDefault}")),
            says("open", &state("Seccomp"), &context("seccompProfile: {type: Unconfined}")),
        ],
    );
    // Only these three do not start.
    pod(&agent, "root", "  securityContext: {runAsNonRoot: true}", &[says("root", "id -u", "")]);
    let nobody = says("nobody", "id -u", &context("runAsUser: 65534"));
    pod(&agent, "nobody", "  securityContext: {runAsNonRoot: true}", &[nobody]);
    let lost = context("seccompProfile: {type: Localhost, localhostProfile: lost.json}");
    pod(&agent, "lost", "", &[says("lost", "true", &lost)]);
    let forbidden = "  securityContext: {sysctls: [{name: kernel.msgmax, value: '65536'}]}";
    pod(&agent, "forbidden", forbidden, &[says("forbidden", "true", "")]);

    assert_eq!(said(&agent, "ids"), "1000\n3000\n3000 2000 4000\n");
    assert_eq!(said(&agent, "own"), "1001\n3001\n");
    // Docker's fourteen.
    assert_eq!(said(&agent, "default"), "CapEff:00000000a80425fb\nNoNewPrivs:0\nSeccomp:0\n");
    assert_eq!(said(&agent, "bare").trim(), "CapEff:0000000000000400");
    assert_eq!(said(&agent, "more").trim(), "CapEff:00000000aa0425fb");
    let privileged = said(&agent, "privileged");
    assert!(privileged.starts_with("CapEff:0") && !privileged.contains("a80425fb"), "{privileged}");
    assert!(privileged.ends_with("\n0\n"), "nothing is masked: {privileged}");
    let masked = said(&agent, "masked");
    let covers = |path: &str| masked.lines().any(|line| line == path);
    assert!(covers("/proc/sys") && (covers("/proc/keys") || covers("/proc/timer_list")), "{masked}");
    assert!(said(&agent, "stiff").ends_with("refused\n"));
    assert_eq!(said(&agent, "soft"), "written\n");
    assert_eq!(said(&agent, "lowered"), "NoNewPrivs:1\n");
    assert_eq!(said(&agent, "sysctls"), "81\n77\n");
    let filtered = said(&agent, "filtered");
    assert!(filtered.starts_with("Seccomp:2\n") && filtered.ends_with("refused\nwritten\n"), "{filtered}");
    // Those of containerd are what its starter has. The embedded runtime's agent was started with lower soft limits.
    let limits = said(&agent, "limits");
    let is_raised = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.len() - 3] == words[words.len() - 2]
    };
    assert_eq!(limits.lines().count(), 3, "{limits}");
    assert!(!is_embedded() || limits.lines().all(is_raised), "{limits}");
    assert_eq!((&*said(&agent, "usual"), &*said(&agent, "open")), ("Seccomp:2\n", "Seccomp:0\n"));
    assert_eq!(said(&agent, "nobody"), "65534\n");
    waits(&agent, "root", "root", "CreateContainerConfigError", "image will run as root");
    let missing = agent.dir.join("root/seccomp/lost.json");
    waits(&agent, "lost", "lost", "CreateContainerError", &missing.display().to_string());
    waits(
        &agent,
        "forbidden",
        "forbidden",
        "SysctlForbidden",
        "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
    );
    agent.end_pods();
}

pub fn cgroups_of_pods_and_classes_are_the_kubelets(runtime: &Runtime) {
    let agent = agent(runtime, "cgroups");
    // What a container sees of its own limits.
    let see = "cd /sys/fs/cgroup; for f in memory/memory.limit_in_bytes memory.max cpu/cpu.shares cpu/cpu.cfs_quota_us; do \
               [ ! -e $f ] || echo \"$f=$(cat $f)\"; done";
    let resources = |fields: &str| format!("    resources: {{{fields}}}");
    let stays = |name: &str, spec: &str, more: &str| {
        pod(&agent, name, spec, &[says_and(name, see, "exec forever", more)]);
    };
    stays("strict", "", &resources("limits: {cpu: 500m, memory: 64Mi}"));
    stays("elastic", "", &resources("requests: {cpu: 250m, memory: 16Mi}, limits: {memory: 48Mi}"));
    stays("free", "", "");
    stays("whole", "  resources: {requests: {cpu: 500m}, limits: {cpu: '1', memory: 96Mi}}", "");

    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let kubepods = |controller: &str, below: &str| {
        let root = Path::new("/sys/fs/cgroup").join(if v2 { "" } else { controller });
        root.join(runtime.cgroup_root.trim_start_matches('/')).join("kubepods").join(below)
    };
    let read = |directory: &Path, file: &str| text(&directory.join(file)).trim().to_owned();
    let weight = |shares: i64| if v2 { 1 + (shares - 2) * 9999 / 262_142 } else { shares }.to_string();
    let weight_file = if v2 { "cpu.weight" } else { "cpu.shares" };
    let mut parents = Vec::new();
    for (name, class, shares, quota, memory) in [
        ("strict", "", 512, Some(50_000), Some(64 << 20)),
        ("elastic", "burstable/", 256, None, Some(48 << 20)),
        ("free", "besteffort/", 2, None, None),
        ("whole", "burstable/", 512, Some(100_000), Some(96_u64 << 20)),
    ] {
        let of = agent.running(name);
        let own = format!("{class}pod{}", of.metadata.uid.as_deref().expect("a UID"));
        let [cpu, mem] = ["cpu", "memory"].map(|controller| kubepods(controller, &own));
        assert!(cpu.join(cgroup_of(&id_of(&of, name))).is_dir(), "its container is in {}", cpu.display());
        assert_eq!(read(&cpu, weight_file), weight(shares), "{name}");
        if v2 {
            let max = quota.map_or("max 100000".to_owned(), |quota: i64| format!("{quota} 100000"));
            assert_eq!(read(&cpu, "cpu.max"), max, "{name}");
            let max = memory.map_or("max".to_owned(), |bytes| bytes.to_string());
            assert_eq!(read(&mem, "memory.max"), max, "{name}");
        } else {
            assert_eq!(read(&cpu, "cpu.cfs_quota_us"), quota.unwrap_or(-1).to_string(), "{name}");
            let limit: u64 = read(&mem, "memory.limit_in_bytes").parse().expect("bytes");
            match memory {
                Some(bytes) => assert_eq!(limit, bytes, "{name}"),
                None => assert!(limit > 1 << 60, "{name}: {limit}"),
            }
        }
        parents.push([cpu, mem]);
    }
    // From inside: the container's own.
    let strict = said(&agent, "strict");
    for line in ["memory/memory.limit_in_bytes=67108864", "cpu/cpu.shares=512", "cpu/cpu.cfs_quota_us=50000"]
    {
        assert!(v2 || strict.lines().any(|l| l == line), "{line} in {strict}");
    }
    assert!(!v2 || strict.lines().any(|l| l == "memory.max=67108864"), "{strict}");

    let class = |name: &str| read(&kubepods("cpu", name), weight_file);
    assert_eq!(class("burstable"), weight(768), "250m and 500m");
    assert_eq!(class("besteffort"), weight(2));
    agent.delete("whole");
    agent.wait_gone("whole");
    wait_for("the class weighs less", PATIENCE, || (class("burstable") == weight(256)).then_some(()));
    agent.end_pods();
    wait_for("the pods' cgroups are gone", PATIENCE, || {
        parents.iter().flatten().all(|parent| !parent.exists()).then_some(())
    });
}

pub fn a_runtime_class_is_a_handler_of_the_runtime(runtime: &Runtime) {
    let agent = agent(runtime, "classes");
    agent.apply_pod(
        "stays",
        "  runtimeClassName: other\n  containers: [{name: stays, image: 'smolet.test/version:1'}]",
    );
    agent.apply_pod(
        "none",
        "  runtimeClassName: none-such\n  containers: [{name: none, image: 'smolet.test/version:1'}]",
    );
    // The handler "other" is a runc with a directory of its own, or one that writes down what it is called with.
    let id = id_of(&agent.running("stays"), "stays");
    let is_of_other = if is_embedded() {
        let calls = text(&runtime.dir().join("other-runc.log"));
        // Of what runtime.sh starts the agent with, it has what is not for the agent alone.
        let environment = text(&runtime.dir().join("other-runc.env"));
        let has = |variable: &str| environment.lines().any(|line| line.starts_with(variable));
        assert!(has("PATH=") && !has("NOTIFY_SOCKET=") && !has("K3S_TOKEN="), "{environment}");
        calls.lines().any(|call| call.ends_with(&id))
    } else {
        let root = if Kind::chosen() == Kind::CriO { "run/other" } else { "runc-other/k8s.io" };
        runtime.dir().join(root).join(&id).is_dir()
    };
    assert!(is_of_other, "{id} is the other handler's");
    if runtime_status(runtime).handlers.is_empty() {
        // A runtime that lists no handlers says it itself.
        wait_for("the runtime's word", PATIENCE, || {
            let page = agent.ask(&["describe", &agent.full("none")]).stdout;
            String::from_utf8_lossy(&page)
                .contains("no runtime for \"none-such\" is configured")
                .then_some(())
        });
    } else {
        waits(&agent, "none", "none", "RuntimeClassNotFound", "RuntimeClass \"none-such\" not found");
    }
    agent.end_pods();
}

pub fn last_words_are_kept_within_their_limits(runtime: &Runtime) {
    let agent = agent(runtime, "words");
    let end = |name: &str, script: &str, more: &str| {
        agent.apply_pod(
            name,
            &format!(
                "  restartPolicy: Never\n  containers:\n  - name: {name}\n    image: smolet.test/busybox:1\n    command: \
                 [sh, -c, {script:?}]\n{more}"
            ),
        );
    };
    let fallback = "    terminationMessagePolicy: FallbackToLogsOnError";
    end("file", "echo done >/run/last; exit 3", "    terminationMessagePath: /run/last");
    end("long", "head -c 9000 /dev/zero | tr '\\0' x >/dev/termination-log; exit 3", "");
    end("lines", "for i in $(seq 200); do echo line $i; done; exit 3", fallback);
    end("bytes", "for i in $(seq 60); do head -c 99 /dev/zero | tr '\\0' y; echo; done; exit 3", fallback);
    end("well", "echo chatter; exit 0", fallback);
    end("spoken", "echo chatter; echo word >/dev/termination-log; exit 3", fallback);

    let message = |name: &str| {
        let ended = |status: &PodStatus| matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
        let status = agent.wait_pod(name, "ended", ended).status.expect("a status");
        let state = container(&status, name).and_then(|c| c.state.clone());
        state.and_then(|state| state.terminated).expect("it ended").message.unwrap_or_default()
    };
    assert_eq!(message("file"), "done\n");
    assert_eq!(message("long"), "x".repeat(4096));
    let lines = message("lines");
    assert_eq!(
        (lines.lines().next(), lines.lines().last()),
        (Some("line 121"), Some("line 200")),
        "80 lines"
    );
    let bytes = message("bytes");
    assert!(bytes.len() == 2048 && bytes.ends_with("y\n"), "{} bytes", bytes.len());
    assert_eq!(message("well"), "");
    assert_eq!(message("spoken"), "word\n");
    agent.end_pods();
}

pub fn a_stop_signal_is_the_containers_or_its_neglect_is_told(runtime: &Runtime) {
    let agent = agent(runtime, "signals");
    agent.apply_pod(
        "signal",
        "  os: {name: linux}\n  terminationGracePeriodSeconds: 5\n  volumes: [{name: out, hostPath: {path: $OUT}}]\n  \
         containers:\n  - name: signal\n    image: smolet.test/busybox:1\n    lifecycle: {stopSignal: SIGUSR1}\n    command: \
         [sh, -c, \"trap 'echo usr1 >/out/signal; exit' USR1; trap 'echo term >/out/signal; exit' TERM; echo up >/out/up; while :; do read -r _ \
         <>/run/forever; done\"]\n    volumeMounts: [{name: out, mountPath: /out}]",
    );
    agent.running("signal");
    agent.wait_out("up");
    let page = agent.ask(&["describe", &agent.full("signal")]).stdout;
    let neglected = String::from_utf8_lossy(&page).contains("StopSignalIgnored");
    agent.end_pods();
    assert_eq!(agent.read_out("signal").trim(), if neglected { "term" } else { "usr1" });
    println!(
        "  lifecycle.stopSignal: {}",
        if neglected { "not known to this runtime, and told" } else { "kept" }
    );
}

/// Rows that need what this machine has not got; each is refused with its reason here, and reaches the CRI request in
/// tests/agent/settings.rs.
pub fn what_this_machine_cannot_show_is_named(runtime: &Runtime) {
    let agent = agent(runtime, "cannot");
    let status = runtime_status(runtime);
    let mut not_shown =
        vec!["securityContext.seLinuxOptions", "annotations cdi.k8s.io/*", "procMount: Unmasked"];
    let app = |name: &str| [says(name, "id -G; cat /proc/self/uid_map", "")];

    pod(&agent, "armor", "  securityContext: {appArmorProfile: {type: RuntimeDefault}}", &app("armor"));
    if Path::new("/sys/kernel/security/apparmor").exists() {
        said(&agent, "armor");
    } else {
        not_shown.push("appArmorProfile");
        let why = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        waits(&agent, "armor", "armor", "AppArmor", why);
    }
    let groups =
        "  securityContext: {runAsUser: 65534, supplementalGroupsPolicy: Strict, supplementalGroups: [4000]}";
    pod(&agent, "strict", groups, &app("strict"));
    if status.supplemental_groups_policy {
        assert!(said(&agent, "strict").starts_with("65534 4000\n"));
    } else {
        not_shown.push("supplementalGroupsPolicy: Strict");
        waits(&agent, "strict", "strict", "SupplementalGroupsPolicyNotSupported", "Strict is not supported");
    }
    pod(&agent, "users", "  hostUsers: false", &app("users"));
    if status.handlers.iter().any(|handler| handler.name.is_empty() && handler.user_namespaces) {
        let map = said(&agent, "users");
        let map: Vec<&str> = map.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(map, ["0", "65536", "65536"]);
    } else {
        not_shown.push("hostUsers: false");
        waits(&agent, "users", "users", "CreatePodSandboxError", "runtime does not support user namespaces");
    }
    let pages = "    resources: {limits: {memory: 16Mi, hugepages-2Mi: 4Mi}}";
    pod(&agent, "pages", "", &[says("pages", "true", pages)]);
    // As in the kubelet, a kernel that does not count huge pages is no obstacle.
    said(&agent, "pages");
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    if !v2 && !text(Path::new("/proc/mounts")).contains("hugetlb") {
        not_shown.push("hugepages limits");
    }
    println!("  to the CRI request only: {}", not_shown.join(", "));
    agent.end_pods();
}
