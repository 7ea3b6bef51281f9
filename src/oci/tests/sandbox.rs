//! Processes of exec, sysctls, and the first process of a PID namespace that containers share.

use super::*;

#[test]
fn processes_of_exec_are_as_the_first_one() {
    let mut case = Case::new();
    case.image.user = "app".into();
    case.context().no_new_privs = true;
    let json = case.spec().unwrap().to_json().unwrap();
    let first = case.spec().unwrap().process;
    let document = |json: &[u8], command: &[String], tty| {
        exec_process(json, command, tty).map(|text| serde_json::from_slice::<Value>(&text).unwrap())
    };
    let with = |args: &str, terminal, env: Vec<String>| {
        let process = runtime_spec::Process { args: words(args), terminal, env, ..first.clone() };
        let mut process = serde_json::to_value(&process).unwrap();
        process["terminal"] = terminal.into();
        process
    };
    assert_eq!(document(&json, &words("ls -l"), false).unwrap(), with("ls -l", false, first.env.clone()));
    assert_eq!(first.user.uid, 1000, "not root, which crun has where nothing is said");
    let env = [first.env.clone(), words("TERM=xterm")].concat();
    assert_eq!(document(&json, &words("sh"), true).unwrap(), with("sh", true, env));
    assert!(document(&json, &[], true).is_err());
    assert!(document(&json, &["sh\0".to_owned()], false).is_err());
    assert!(document(b"{}", &words("sh"), true).is_err());
    // What a later agent writes into it is kept, and a terminal's TERM is the client's.
    let own = json!({"process": {"ioPriority": {"class": "IOPRIO_CLASS_IDLE"}, "env": ["TERM=dumb", "A=b"]}, "linux": {}});
    let later = document(own.to_string().as_bytes(), &words("sh"), true).unwrap();
    assert_eq!(
        later,
        json!({"ioPriority": {"class": "IOPRIO_CLASS_IDLE"}, "env": ["A=b", "TERM=xterm"], "args": ["sh"], "terminal": true})
    );
    for process in [json!([]), json!({"env": 1})] {
        assert!(document(json!({"process": process}).to_string().as_bytes(), &words("sh"), true).is_err());
    }
}

#[test]
fn sysctls_of_the_pods_own_namespaces() {
    let mut config = Case::new().sandbox;
    let of = |config: &mut PodSandboxConfig, name: &str| {
        config.linux.as_mut().unwrap().sysctls = [(name.to_owned(), "7".to_owned())].into();
        let paths = sysctls(config).map_err(|error| error.to_string())?;
        Ok::<_, String>(
            paths.into_iter().map(|(path, value)| format!("{path}={value}")).collect::<Vec<_>>().join(" "),
        )
    };
    const DEFAULTS: &str = "net/ipv4/ip_unprivileged_port_start=0 net/ipv4/ping_group_range=0 2147483647";
    for (name, on_node, expected) in [
        ("kernel.shm_rmid_forced", false, Ok("kernel/shm_rmid_forced=7 ")),
        ("kernel/sem", false, Ok("kernel/sem=7 ")),
        ("fs.mqueue.msg_max", false, Ok("fs/mqueue/msg_max=7 ")),
        ("kernel.domainname", false, Ok("kernel/domainname=7 ")),
        ("net.ipv4.conf.eth0/1.forwarding", false, Ok("net/ipv4/conf/eth0.1/forwarding=7 ")),
        ("net.core.somaxconn", true, Err("is not of a namespace of the pod's own")),
        ("kernel.sem", true, Err("is not of a namespace")),
        ("kernel.core_pattern", false, Err("is not of a namespace")),
        ("vm.swappiness", false, Err("is not of a namespace")),
        ("net/../kernel/core_pattern", false, Err("is no name")),
        ("net.//.kernel", false, Err("is no name")),
        ("net//x", false, Err("is no name")),
        ("", false, Err("is no name")),
    ] {
        let mode = if on_node { NamespaceMode::Node } else { NamespaceMode::Pod } as i32;
        config.linux.as_mut().unwrap().security_context = Some(proto::LinuxSandboxSecurityContext {
            namespace_options: Some(proto::NamespaceOption {
                network: mode,
                ipc: mode,
                ..Default::default()
            }),
            ..Default::default()
        });
        match (of(&mut config, name), expected) {
            (Ok(found), Ok(first)) => {
                assert!(
                    found.contains(first.trim()) && found.contains(DEFAULTS.split_once(' ').unwrap().0),
                    "{found}"
                );
            }
            (Err(error), Err(shown)) => assert!(error.contains(shown), "{error}"),
            (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
        }
    }
    config.linux = None;
    assert_eq!(sysctls(&config).unwrap().len(), 2);
}

/// The runtime-spec of a pod's first process.
fn first_process(case: &Case, selinux: Option<&SelinuxLabels>) -> Value {
    let input = SandboxInput {
        id: "5a4db0",
        sandbox_id: "5a4db0",
        config: &case.sandbox,
        rootfs: "/run/smolet/runtime/pause",
        pause: "/usr/bin/smolet",
        libraries: &[],
        namespaces: &case.namespaces,
        selinux,
        node: &case.node,
    };
    serde_json::to_value(sandbox_spec(&input).unwrap()).unwrap()
}

#[test]
fn the_init_of_a_shared_pid_namespace() {
    let case = Case::new();
    let labels = SelinuxLabels { process: "u:r:t:l".into(), mount: "u:r:f:l".into() };
    let json = first_process(&case, Some(&labels));
    assert_eq!(json["process"]["args"], json!(["/smolet", "pause"]));
    assert_eq!(json["process"]["capabilities"], json!({}));
    assert_eq!(
        (&json["process"]["selinuxLabel"], &json["linux"]["mountLabel"]),
        (&json!("u:r:t:l"), &json!("u:r:f:l"))
    );
    assert_eq!(json["process"]["oomScoreAdj"], json!(-998));
    assert_eq!(json["linux"]["namespaces"][0], json!({"type": "pid"}));
    assert_eq!(json["linux"]["resources"], json!({"cpu": {"shares": 2}}));
    assert_eq!(
        json["mounts"][3],
        json!({"destination": "/smolet", "type": "bind", "source": "/usr/bin/smolet",
            "options": ["rbind", "rprivate", "ro", "nosuid", "nodev"]})
    );
    assert_eq!(json["annotations"]["io.kubernetes.cri.container-type"], json!("sandbox"));
    assert_eq!(json["annotations"].get("run.oci.systemd.subgroup"), None);
}

/// crun has a cgroup of its own below the scope where nothing is said.
#[test]
fn processes_are_in_the_scope_that_systemd_makes() {
    const SUBGROUP: &str = "run.oci.systemd.subgroup";
    for (parent, expected) in [
        ("/kubepods/podu-1", None),
        ("", None),
        ("/kubepods.slice/kubepods-podu_1.slice", Some(json!(""))),
        ("kubepods-podu_1.slice/", Some(json!(""))),
    ] {
        let mut case = Case::new();
        case.sandbox.linux.as_mut().unwrap().cgroup_parent = parent.into();
        let container = serde_json::to_value(case.spec().unwrap()).unwrap();
        assert_eq!(container["annotations"].get(SUBGROUP), expected.as_ref(), "{parent}");
        let first = first_process(&case, None);
        assert_eq!(first["annotations"].get(SUBGROUP), expected.as_ref(), "{parent}");
        let is_of_scope = container["linux"]["cgroupsPath"].as_str().unwrap().contains(':');
        assert_eq!(is_of_scope, expected.is_some(), "{parent}");
    }
}
