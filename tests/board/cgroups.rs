//! What the kernel has of pods and containers in cgroups of version 2, under both drivers.

use crate::board::{Board, Container};
use crate::runtime;

/// A process limit of pods, so that there is one to see.
const PIDS_MAX: &str = "200";

/// Name, resources of the one container, and what is to be seen.
struct Case {
    name: &'static str,
    class: &'static str,
    resources: &'static str,
    shares: u64,
    cpu_max: &'static str,
    memory_max: &'static str,
    memory_request: u64,
}

const CASES: [Case; 3] = [
    Case {
        name: "guaranteed",
        class: "",
        resources: "limits: {cpu: 250m, memory: 32Mi}",
        shares: 256,
        cpu_max: "25000 100000",
        memory_max: "33554432",
        memory_request: 0,
    },
    Case {
        name: "burstable",
        class: "burstable",
        resources: "requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 500m, memory: 96Mi}",
        shares: 102,
        cpu_max: "50000 100000",
        memory_max: "100663296",
        memory_request: 64 << 20,
    },
    Case {
        name: "besteffort",
        class: "besteffort",
        resources: "",
        shares: 2,
        cpu_max: "max 100000",
        memory_max: "max",
        memory_request: 0,
    },
];

impl Case {
    /// As runc and the kubelet make it of shares.
    fn weight(&self) -> String {
        (1 + (self.shares - 2) * 9999 / 262_142).to_string()
    }

    /// The kubelet's GetContainerOOMScoreAdjust.
    fn oom_score_adj(&self, capacity: u64) -> u64 {
        (1000 - 1000 * self.memory_request / capacity).clamp(3, 999)
    }

    fn pod_cgroup(&self, systemd: bool, uid: &str) -> String {
        let (root, class) = ("/sys/fs/cgroup", self.class);
        if systemd {
            let uid = uid.replace('-', "_");
            return match class {
                "" => format!("{root}/kubepods.slice/kubepods-pod{uid}.slice"),
                _ => format!("{root}/kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{uid}.slice"),
            };
        }
        format!("{root}/kubepods{}{class}/pod{uid}", if class.is_empty() { "" } else { "/" })
    }
}

fn look(board: &Board, systemd: bool) {
    let saved = board.run("cat /etc/smolet/config.yaml");
    board.write(
        "/etc/smolet/config.yaml",
        &format!(
            "{saved}\npodPidsLimit: {PIDS_MAX}\n{}",
            if systemd { "cgroupDriver: systemd\n" } else { "" }
        ),
    );
    board.run("systemctl restart smolet");
    for case in &CASES {
        let spec = format!(
            "terminationGracePeriodSeconds: 2, containers: [{{name: c, image: 'smolet.test/busybox:1', command: [forever], resources: {{{}}}}}]",
            case.resources
        );
        board.put_pod(case.name, &spec);
    }
    board.wait_for_pods();
    // systemd gives a scope a limit of its own.
    let tasks_max =
        if systemd { board.run("systemctl show --value -p DefaultTasksMax") } else { "max".into() };
    let capacity: u64 = board.run("awk '/^MemTotal/ { print $2 * 1024 }' /proc/meminfo").parse().unwrap();
    for case in &CASES {
        let Container { uid, id, .. } = board.container(case.name);
        let pod = case.pod_cgroup(systemd, &uid);
        let container =
            if systemd { format!("{pod}/{}", runtime::scope(&id)) } else { format!("{pod}/{id}") };
        let pid = runtime::pid_of(board, &id);
        let found = board.run(&format!(
            "for dir in {pod} {container}; do cat $dir/cpu.weight $dir/cpu.max $dir/memory.max $dir/pids.max; done; \
             cat /proc/{pid}/oom_score_adj"
        ));
        let weight = case.weight();
        let (settings, score) = found.rsplit_once('\n').unwrap();
        let own = [&*weight, case.cpu_max, case.memory_max];
        let expected = [&own[..], &[PIDS_MAX], &own[..], &[&*tasks_max]].concat().join("\n");
        assert_eq!(settings, expected, "{}", case.name);
        let expected: i64 = match case.class {
            "" => -997,
            "besteffort" => 1000,
            _ => case.oom_score_adj(capacity).try_into().unwrap(),
        };
        assert_eq!(score.parse::<i64>().unwrap(), expected, "{}", case.name);
    }
    // The class of burstable pods weighs as all of them together, that of the others as little as can be.
    let root = if systemd { "/sys/fs/cgroup/kubepods.slice" } else { "/sys/fs/cgroup/kubepods" };
    let (burstable, besteffort) = if systemd {
        ("kubepods-burstable.slice", "kubepods-besteffort.slice")
    } else {
        ("burstable", "besteffort")
    };
    let weights = board.run(&format!("cat {root}/{burstable}/cpu.weight {root}/{besteffort}/cpu.weight"));
    let shares: u64 = board
        .list()
        .iter()
        .filter(|pod| pod["status"]["qosClass"] == "Burstable")
        .flat_map(|pod| pod["spec"]["containers"].as_array().unwrap().clone())
        .filter_map(|container| {
            container["resources"]["requests"]["cpu"].as_str()?.strip_suffix('m')?.parse::<u64>().ok()
        })
        .map(|milli| milli * 1024 / 1000)
        .sum();
    assert_eq!(weights, format!("{}\n1", 1 + (shares.max(2) - 2) * 9999 / 262_142));
    board.remove(&CASES.map(|case| case.name));
    let left = board.run(&format!(
        "find {root} -type d -name '*pod*' | wc -l; ls -d {root}/*guaranteed* 2>/dev/null | wc -l"
    ));
    assert!(left.ends_with("\n0"), "{left}");
    board.write("/etc/smolet/config.yaml", &saved);
}

pub fn cgroupfs(board: &Board) {
    look(board, false);
    board.run("systemctl restart smolet");
    board.wait_for_pods();
}

/// Both have to change, without pods; before the agent has followed, it says what is wrong. With the embedded runtime they are one.
pub fn systemd(board: &Board) {
    board.set_aside();
    if runtime::is_embedded() {
        look(board, true);
        board.run("systemctl restart smolet");
        board.put_back();
        return;
    }
    let saved = board.run("cat /etc/containerd/config.toml");
    // Debian's file sets other things of the same plugin only.
    let runc = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc";
    let text = format!(
        "{saved}\n{runc}]\nruntime_type = \"io.containerd.runc.v2\"\n{runc}.options]\nSystemdCgroup = true\n"
    );
    board.write("/etc/containerd/config.toml", &text);
    board.run("systemctl restart containerd");
    let mut said = board.wait_for("doctor sees it", 60, || {
        let said = board.run("smolet doctor || true");
        said.contains("cgroupDriver").then_some(said)
    });
    said.make_ascii_lowercase();
    assert!(said.contains("systemd") && !said.lines().any(|line| line.starts_with("0 problems")), "{said}");
    look(board, true);
    board.write("/etc/containerd/config.toml", &saved);
    board.run("systemctl restart containerd smolet");
    board.put_back();
}
