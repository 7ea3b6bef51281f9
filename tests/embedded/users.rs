//! Pods with user namespaces (`hostUsers: false`).

use std::os::unix::fs::MetadataExt as _;

use smolet::proto::runtime::v1 as cri;

use super::machine::{
    Machine, OCI_RUNTIMES, container_of, create, exec, exited, remove_sandbox, run_container, run_sandbox,
    script, until,
};

/// The node's ids of the pod's root.
const UID: u32 = 131_072;
const GID: u32 = 196_608;

fn users() -> cri::UserNamespace {
    let range = |host_id| vec![cri::IdMapping { host_id, container_id: 0, length: 65_536 }];
    cri::UserNamespace { mode: cri::NamespaceMode::Pod.into(), uids: range(UID), gids: range(GID) }
}

pub fn pod(machine: &Machine, name: &str) -> cri::PodSandboxConfig {
    let mut config = machine.pod(name);
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().userns_options = Some(users());
    config
}

pub fn container(name: &str, line: &str) -> cri::ContainerConfig {
    let mut config = script(name, line);
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().userns_options = Some(users());
    config
}

async fn seen(runtime: &smolet::runtime::Embedded, id: &str, line: &str) -> String {
    let ran = exec(runtime, id, line).await.unwrap();
    assert_eq!(ran.exit_code, 0, "{line}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn root_of_a_pod_is_nobody_on_the_node() {
    OCI_RUNTIMES.into_iter().for_each(run_as_nobody);
}

fn run_as_nobody(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = machine.open().await;
        let mut config = pod(&machine, "users");
        config.linux.as_mut().unwrap().sysctls = [("net.core.somaxconn".to_owned(), "77".to_owned())].into();
        let sandbox = run_sandbox(&runtime, config).await;
        let line = "echo by-name > /dev/stdout; touch /made; sleep 1000";
        let id = run_container(&runtime, &sandbox, container("app", line)).await;
        for name in ["uid_map", "gid_map"] {
            let map = seen(&runtime, &id, &format!("cat /proc/self/{name}")).await;
            let first = if name == "uid_map" { UID } else { GID };
            let fields: Vec<&str> = map.split_whitespace().collect();
            assert_eq!(fields, ["0", &first.to_string(), "65536"]);
        }
        assert_eq!(seen(&runtime, &id, "id -u; hostname").await, "0\nusers\n");
        assert_eq!(seen(&runtime, &id, "cat /proc/sys/net/core/somaxconn").await, "77\n");
        // Root of its network, and of nothing of the node.
        let addresses = seen(&runtime, &id, "busybox ip -o address").await;
        let ip = super::machine::status_of(&runtime, &sandbox).await.network.unwrap().ip;
        assert!(addresses.contains(&ip), "{addresses}");
        let dir = machine.settings.run_dir.join("containers").join(&id);
        let init: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("pid")).unwrap()).unwrap();
        let process = std::fs::metadata(format!("/proc/{}", init["pid"])).unwrap();
        assert_eq!((process.uid(), process.gid()), (UID, GID));
        let made = machine.root.join("rootfs").join(&id).join("made");
        until("its file", async || made.exists()).await;
        let made = std::fs::metadata(made).unwrap();
        assert_eq!((made.uid(), made.gid()), (UID, GID));
        // The pod's files are its root's, and so are the ends of its pipes.
        assert_eq!(
            seen(&runtime, &id, "stat -c %u /etc/hostname /etc/hosts /etc/resolv.conf").await,
            "0\n0\n0\n"
        );
        assert_eq!(seen(&runtime, &id, "echo out > /dev/stdout").await, "out\n");
        let log = machine.root.join("logs/users/app.log");
        let read = || std::fs::read_to_string(&log).unwrap();
        until("its output", async || read().contains("stdout F by-name")).await;

        // One namespace for all containers, also for those that are made after a restart of the agent.
        drop(runtime);
        let runtime = machine.open().await;
        let other = run_container(&runtime, &sandbox, container("other", "sleep 1000")).await;
        for kind in ["user", "net", "ipc", "uts"] {
            let link = format!("readlink /proc/self/ns/{kind}");
            let (one, two) = (seen(&runtime, &id, &link).await, seen(&runtime, &other, &link).await);
            assert_eq!(one, two);
            let of_node = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert_ne!(one.trim(), of_node.display().to_string());
        }
        let ended = run_container(&runtime, &sandbox, container("ended", "exit 5")).await;
        assert_eq!(exited(&runtime, &ended).await.exit_code, 5);
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_user_namespace_with_a_shared_pid_namespace() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let mut config = pod(&machine, "shared");
        let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Pod.into();
        let sandbox = run_sandbox(&runtime, config).await;
        let mut config = container("app", "sleep 1000");
        let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.namespace_options.as_mut().unwrap().pid = cri::NamespaceMode::Pod.into();
        let id = run_container(&runtime, &sandbox, config).await;
        let first =
            seen(&runtime, &id, "cat /proc/1/cmdline | busybox tr '\\0' ' '; stat -c %u /proc/1").await;
        assert!(
            first.contains("smolet pause") && first.ends_with("\n0\n") || first.ends_with(" 0\n"),
            "{first}"
        );
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// Volumes need mounts with mapped ids, which older OCI runtimes do not have; the agent refuses the pod before, as the kubelet does.
#[test]
fn the_status_says_whether_volumes_can_be_mapped() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let status = runtime.status_cri(cri::StatusRequest { verbose: false }).await.unwrap();
        let is_supported = status.runtime_handlers[0].features.as_ref().unwrap().user_namespaces;
        let volume = machine.root.join("volume");
        std::fs::create_dir_all(&volume).unwrap();
        let sandbox = run_sandbox(&runtime, pod(&machine, "volume")).await;
        let mut config = container("app", "sleep 1000");
        config.mounts = vec![cri::Mount {
            container_path: "/data".into(),
            host_path: volume.display().to_string(),
            uid_mappings: users().uids,
            gid_mappings: users().gids,
            ..Default::default()
        }];
        match create(&runtime, &sandbox, config).await {
            Ok(id) => {
                assert!(is_supported);
                super::machine::start(&runtime, &id).await.unwrap();
                seen(&runtime, &id, "touch /data/made").await;
                let made = std::fs::metadata(volume.join("made")).unwrap();
                assert_eq!((made.uid(), made.gid()), (0, 0), "the volume stays the node's");
                assert_eq!(container_of(&runtime, &id).await.state(), cri::ContainerState::ContainerRunning);
            }
            Err(error) => {
                assert!(!is_supported);
                let error = error.to_string();
                assert!(
                    error.contains("has no id-mapped mounts (runc 1.2 or crun 1.9, Linux 5.12)"),
                    "{error}"
                );
            }
        }
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}
