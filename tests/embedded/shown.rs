//! What the CRI shows of pods and containers: verbose statuses, volumes that are images.

use serde_json::Value;
use smolet::cri::RuntimeError;
use smolet::proto::runtime::v1 as cri;
use smolet::runtime::Embedded;

use super::machine::{
    Machine, container_of, create, exec, remove_sandbox, run_container, run_sandbox, script, stop_sandbox,
};

async fn info_of(runtime: &Embedded, container: &str) -> Value {
    let request = cri::ContainerStatusRequest { container_id: container.into(), verbose: true };
    let info = runtime.container_status_cri(request).await.unwrap().info;
    serde_json::from_str(&info["info"]).unwrap()
}

async fn sandbox_info_of(runtime: &Embedded, sandbox: &str) -> Value {
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.into(), verbose: true };
    let info = runtime.pod_sandbox_status_cri(request).await.unwrap().info;
    serde_json::from_str(&info["info"]).unwrap()
}

#[test]
fn verbose_statuses_name_processes_namespaces_and_the_configuration() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("shown")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let info = info_of(&runtime, &id).await;
        // The process is the container's: it is in the cgroup that its spec names.
        let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", info["pid"])).unwrap();
        let spec = &info["runtimeSpec"];
        assert!(cgroups.contains(spec["linux"]["cgroupsPath"].as_str().unwrap()), "{cgroups} {info}");
        assert_eq!(spec["process"]["args"][2], "sleep 1000");
        assert_eq!(info["sandboxID"], sandbox.as_str());

        let info = sandbox_info_of(&runtime, &sandbox).await;
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().unwrap();
        let network = namespaces.iter().find(|of| of["type"] == "network").unwrap();
        // nsenter takes it, as tools do that look into pods.
        let entered = std::process::Command::new("nsenter")
            .args([&format!("--net={}", network["path"].as_str().unwrap()), "ip", "-o", "address"])
            .output()
            .unwrap();
        let address = info["cniResult"]["ips"][0]["address"].as_str().unwrap();
        assert!(String::from_utf8_lossy(&entered.stdout).contains(address), "{entered:?} {info}");
        assert_eq!((&info["pid"], &info["netNamespaceClosed"]), (&Value::from(0), &Value::from(false)));

        let status = runtime.status_cri(cri::StatusRequest { verbose: true }).await.unwrap();
        let config: Value = serde_json::from_str(&status.info["config"]).unwrap();
        assert_eq!(config["stateDir"], machine.settings.run_dir.to_str().unwrap());
        assert_eq!(status.info["lastCNILoadStatus"], "\"OK\"");
        assert!(runtime.status_cri(cri::StatusRequest { verbose: false }).await.unwrap().info.is_empty());

        stop_sandbox(&runtime, &sandbox).await;
        assert_eq!(info_of(&runtime, &id).await["pid"], 0);
        assert_eq!(
            sandbox_info_of(&runtime, &sandbox).await["runtimeSpec"]["linux"]["namespaces"],
            Value::Array(vec![])
        );
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn an_image_is_a_volume_that_is_read_only_and_named_by_its_id() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("volume")).await;
        let with = |change: fn(&mut cri::Mount)| {
            let mut mount = cri::Mount {
                container_path: "/volume".into(),
                readonly: true,
                image: Some(cri::ImageSpec { image: "busybox".into(), ..Default::default() }),
                image_sub_path: "etc".into(),
                ..Default::default()
            };
            change(&mut mount);
            cri::ContainerConfig { mounts: vec![mount], ..script("app", "sleep 1000") }
        };
        let id = run_container(&runtime, &sandbox, with(|_| ())).await;
        let mounts = container_of(&runtime, &id).await.mounts;
        let image = mounts[0].image.as_ref().unwrap();
        assert_eq!(
            (&*image.image, &*image.image_ref, &*mounts[0].host_path),
            ("busybox", "sha256:busybox", "")
        );
        let shown = exec(&runtime, &id, "cat /volume/group; touch /volume/new").await.unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains("extra:x:102:web"), "{shown:?}");
        assert!(String::from_utf8_lossy(&shown.stderr).contains("Read-only file system"), "{shown:?}");
        for (change, why) in [
            ((|mount| mount.readonly = false) as fn(&mut cri::Mount), "set readonly"),
            (|mount| mount.host_path = "/etc".into(), "has a host_path too"),
            (|mount| mount.image_sub_path = "none".into(), "image_sub_path \"none\""),
            (|mount| mount.image_sub_path = "../..".into(), "image_sub_path"),
            (
                |mount| mount.image.as_mut().unwrap().image = "none".into(),
                "volume image \"none\" is not present",
            ),
        ] {
            let mut config = with(change);
            config.metadata.as_mut().unwrap().name = "refused".into();
            let refused: RuntimeError = create(&runtime, &sandbox, config).await.unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn metrics_of_pods_and_containers_have_the_names_and_labels_of_cadvisor() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("metrics")).await;
        let mut config = script("app", "nc -l -p 80 & wait");
        config.linux.as_mut().unwrap().resources =
            Some(cri::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() });
        let id = run_container(&runtime, &sandbox, config).await;
        while exec(&runtime, &id, "busybox netstat -ltn | busybox grep -q :80").await.unwrap().exit_code != 0
        {
            async_io::Timer::after(std::time::Duration::from_millis(50)).await;
        }
        let described =
            runtime.list_metric_descriptors_cri(cri::ListMetricDescriptorsRequest {}).await.unwrap();
        let request = cri::ListPodSandboxMetricsRequest {};
        let pods = runtime.list_pod_sandbox_metrics_cri(request).await.unwrap().pod_metrics;
        assert_eq!((pods.len(), &*pods[0].pod_sandbox_id), (1, &*sandbox));
        let containers = &pods[0].container_metrics;
        assert_eq!((containers.len(), &*containers[0].container_id), (1, &*id));
        let label = |metric: &cri::Metric, key: &str| {
            let described = described.descriptors.iter().find(|of| of.name == metric.name).unwrap();
            assert_eq!(described.label_keys.len(), metric.label_values.len(), "{metric:?}");
            let at = described.label_keys.iter().position(|of| of == key).unwrap();
            metric.label_values[at].clone()
        };
        let find = |all: &[cri::Metric], name: &str| all.iter().find(|of| of.name == name).unwrap().clone();
        for (name, expected) in [
            // The shell and nc.
            ("container_processes", 2),
            ("container_threads", 2),
            ("container_sockets", 1),
            ("container_spec_memory_limit_bytes", 64 << 20),
            ("container_fs_usage_bytes", 4096),
        ] {
            let metric = find(&containers[0].metrics, name);
            assert_eq!(metric.value.unwrap().value, expected, "{metric:?}");
            assert_eq!((&*label(&metric, "container"), &*label(&metric, "pod")), ("app", "metrics"));
        }
        assert!(find(&containers[0].metrics, "container_memory_rss").value.unwrap().value > 0);
        let sent = find(&pods[0].metrics, "container_network_transmit_packets_total");
        assert_eq!((&*label(&sent, "interface"), &*label(&sent, "namespace")), ("eth0", "default"));
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}
