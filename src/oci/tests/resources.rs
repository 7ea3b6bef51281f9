//! Resources, cgroups and devices.

use super::*;

#[test]
fn resources_of_both_hierarchies() {
    let mut case = Case::new();
    *case.resources() = proto::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 20,
        oom_score_adj: 900,
        cpuset_cpus: "0-1".into(),
        cpuset_mems: "0".into(),
        hugepage_limits: vec![proto::HugepageLimit { page_size: "2MB".into(), limit: 0 }],
        unified: [("memory.high".to_owned(), "9".to_owned())].into(),
        memory_swap_limit_in_bytes: 0,
    };
    assert_eq!(
        case.at("/linux/resources"),
        json!({
            "devices": [{"allow": false, "access": "rwm"}],
            "memory": {"limit": 1_048_576, "swap": 1_048_576},
            "cpu": {"shares": 512, "quota": 50_000, "period": 100_000, "cpus": "0-1", "mems": "0"},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
            "unified": {"memory.high": "9"},
        })
    );
    assert_eq!(case.at("/process/oomScoreAdj"), json!(900));
    case.node.oom_score_adj_min = 950;
    assert_eq!(case.at("/process/oomScoreAdj"), json!(950));
    case.resources().memory_swap_limit_in_bytes = 3 << 20;
    assert_eq!(case.at("/linux/resources/memory/swap"), json!(3 << 20));
    case.node.cgroup = CgroupVersion::V2 { swap_controller: false };
    case.node.hugetlb = false;
    case.node.pids_limit = Some(77);
    assert_eq!(case.at("/linux/resources/memory/swap"), Value::Null);
    assert_eq!(case.at("/linux/resources/hugepageLimits"), Value::Null);
    assert_eq!(case.at("/linux/resources/pids/limit"), json!(77));
    case.node.cgroup = CgroupVersion::V1 { swap_controller: true };
    case.refused("unified is not supported here");
    case.resources().unified.clear();
    case.resources().cpu_shares = -1;
    case.refused("cpu_shares: -1 is negative");
    case.resources().cpu_shares = 0;
    case.resources().oom_score_adj = 1001;
    case.refused("oom_score_adj: 1001");
}

#[test]
fn an_update_says_what_is_given_alone() {
    let asked = proto::LinuxContainerResources { cpu_quota: -1, ..Default::default() };
    let update = |asked| serde_json::to_value(update(asked, &node()).unwrap()).unwrap();
    assert_eq!(update(&asked), json!({"cpu": {"quota": -1}}));
    assert_eq!(update(&proto::LinuxContainerResources::default()), json!({}));
}

#[test]
fn cgroup_paths() {
    for (parent, path) in [
        ("", "/smolet/c"),
        ("/", "/smolet/c"),
        ("/kubepods/besteffort/pod1", "/kubepods/besteffort/pod1/c"),
        ("kubepods/", "/kubepods/c"),
        ("/kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice:smolet:c"),
        ("kubepods.slice", "kubepods.slice:smolet:c"),
    ] {
        assert_eq!(cgroups_path(parent, "c"), path);
    }
}

#[test]
fn devices_of_the_cri_and_of_a_privileged_container() {
    let asked = |host: &str, container: &str, permissions: &str| proto::Device {
        container_path: container.into(),
        host_path: host.into(),
        permissions: permissions.into(),
    };
    let mut case = Case::new();
    case.devices = vec![
        device("/dev/sda", DeviceKind::Block, 8, 0),
        device("/dev/sda1", DeviceKind::Block, 8, 1),
        device("/dev/snd/pcm", DeviceKind::Character, 116, 1),
        device("/dev/snd/by-path/x", DeviceKind::Character, 116, 2),
        device("/dev/console", DeviceKind::Character, 5, 1),
        device("/dev/pts/0", DeviceKind::Character, 136, 0),
        device("/dev/fifo", DeviceKind::Fifo, 0, 0),
    ];
    case.config.devices = vec![asked("/dev/sda", "/dev/disk", "rw"), asked("/dev/snd", "", "rwm")];
    let paths = |case: &Case| {
        let devices = case.spec().unwrap().linux.devices;
        devices.into_iter().map(|device| device.path).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(paths(&case), "/dev/disk /dev/snd/pcm /dev/snd/by-path/x");
    assert_eq!(
        case.at("/linux/devices/0"),
        json!({"type": "b", "path": "/dev/disk", "major": 8, "minor": 0, "fileMode": 432, "uid": 0, "gid": 5})
    );
    assert_eq!(
        case.at("/linux/resources/devices"),
        json!([
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "b", "major": 8, "minor": 0, "access": "rw"},
            {"allow": true, "type": "c", "major": 116, "minor": 1, "access": "rwm"},
            {"allow": true, "type": "c", "major": 116, "minor": 2, "access": "rwm"},
        ])
    );
    case.config.devices = vec![asked("/dev/none", "/dev/none", "r")];
    case.refused("/dev/none is no device of this machine");
    for permissions in ["", "rx"] {
        case.config.devices = vec![asked("/dev/sda", "/dev/sda", permissions)];
        case.refused("are not of r, w and m");
    }
    case.config.devices = vec![asked("/dev/sda", "/dev/sda1", "r")];
    case.context().privileged = true;
    case.refused("the pod's sandbox is not privileged");
    case.sandbox.linux.as_mut().unwrap().security_context =
        Some(proto::LinuxSandboxSecurityContext { privileged: true, ..Default::default() });
    assert_eq!(paths(&case), "/dev/sda1 /dev/sda /dev/snd/pcm /dev/snd/by-path/x");
    assert_eq!(case.at("/linux/resources/devices"), json!([{"allow": true, "access": "rwm"}]));
}
