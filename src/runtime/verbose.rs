//! What verbose requests are told beside the status (`info`): JSON with the keys of containerd and CRI-O, for `crictl inspect`,
//! `crictl inspectp` and `crictl info`. PURE.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::namespaces::{IPC, NET, UTS};
use super::records::{ContainerPhase, ContainerRecord, SandboxRecord};
use super::settings::Settings;
use crate::render::CgroupDriver;

/// The map of a verbose response.
pub(super) type Info = BTreeMap<String, String>;

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn info(values: &Value) -> Info {
    Info::from([("info".to_owned(), values.to_string())])
}

/// A container's: the process ID of its first process, 0 when it does not run, and the runtime-spec in its bundle, if that is there.
pub(super) fn container(record: &ContainerRecord, pid: u32, spec: Option<&[u8]>) -> Info {
    let config = record.config();
    let context = config.linux.and_then(|linux| linux.security_context);
    let mut values = json!({
        "sandboxID": record.sandbox,
        "pid": pid,
        "removing": record.phase == ContainerPhase::Removing,
        "privileged": context.is_some_and(|context| context.privileged),
    });
    let spec = spec.and_then(|spec| serde_json::from_slice::<Value>(spec).ok());
    if let Some(spec) = spec {
        values["runtimeSpec"] = spec;
    }
    info(&values)
}

/// A sandbox's. It has no runtime-spec but that of its pause process; in its place are its namespaces, where tools look for them.
pub(super) fn sandbox(
    record: &SandboxRecord,
    pid: u32,
    run_dir: &Path,
    is_pinned: impl Fn(&Path) -> bool,
) -> Info {
    let pinned =
        [("network", NET), ("ipc", IPC), ("uts", UTS)].map(|(kind, name)| (kind, run_dir.join(name)));
    let namespaces: Vec<Value> = pinned
        .iter()
        .filter(|(_, path)| is_pinned(path))
        .map(|(kind, path)| json!({ "type": kind, "path": shown(path) }))
        .collect();
    let network = &pinned[0].1;
    let cgroup = record.config().linux.map(|linux| linux.cgroup_parent).unwrap_or_default();
    info(&json!({
        "pid": pid,
        "netNamespaceClosed": !record.network.is_empty() && !is_pinned(network),
        "runtimeHandler": record.handler,
        "cniResult": serde_json::from_str::<Value>(&record.network_result).ok(),
        "runtimeSpec": { "linux": { "namespaces": namespaces, "cgroupsPath": cgroup } },
    }))
}

/// An image's: its configuration.
pub(super) fn image(config: &[u8]) -> Info {
    let spec = serde_json::from_slice::<Value>(config).ok();
    info(&json!({ "imageSpec": spec }))
}

/// The runtime's: its configuration.
pub(super) fn runtime(settings: &Settings, network: Result<String, String>) -> Info {
    let handlers: Map<String, Value> = settings
        .handlers
        .iter()
        // containerd's name of the handler that is taken without one.
        .map(|(name, path)| {
            (if name.is_empty() { "default" } else { name }.to_owned(), json!({ "path": shown(path) }))
        })
        .collect();
    let driver = match settings.cgroup_driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    };
    let plugins: Vec<String> = settings.cni_bin_dirs.iter().map(|dir| shown(dir)).collect();
    let config = json!({
        "cni": { "confDir": shown(&settings.cni_conf_dir), "binDirs": plugins },
        "rootDir": shown(&settings.root_dir),
        "stateDir": shown(&settings.run_dir),
        "runtimes": handlers,
        "cgroupDriver": driver,
        "cgroupMounts": shown(&settings.cgroup_mounts),
        "bridge": { "name": settings.bridge, "subnet": settings.subnet },
    });
    let (status, networks) = match network {
        Ok(text) => {
            let config = serde_json::from_str::<Value>(&text).unwrap_or_default();
            ("OK".to_owned(), vec![json!({ "Config": config })])
        }
        Err(error) => (error, Vec::new()),
    };
    let network = json!({
        "PluginDirs": plugins,
        "PluginConfDir": shown(&settings.cni_conf_dir),
        "Networks": networks,
    });
    Info::from([
        ("config".to_owned(), config.to_string()),
        ("cniconfig".to_owned(), network.to_string()),
        // A JSON text each, as crictl reads them.
        ("lastCNILoadStatus".to_owned(), Value::from(status).to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::runtime::v1 as cri;

    fn read(info: &Info, name: &str) -> Value {
        serde_json::from_str(&info[name]).unwrap()
    }

    #[test]
    fn the_runtimes_is_read_as_any_runtimes_configuration() {
        let mut settings =
            Settings::of_machine(Path::new("/a"), Path::new("/b"), Path::new("/c"), Path::new("/"));
        settings.cni_conf_dir = "/d/net.d".into();
        settings.cni_bin_dirs = vec!["/d/one".into(), "/d/two".into()];
        let told = runtime(&settings, Err("none".to_owned()));
        let read = crate::cni::RuntimeSettings::parse(told.get("config").map(String::as_str));
        assert_eq!(read.cni_conf_dir, "/d/net.d");
        assert_eq!(read.cni_bin_dirs, ["/d/one", "/d/two"]);
    }

    #[test]
    fn a_container_shows_its_process_and_its_spec() {
        let security = cri::LinuxContainerSecurityContext { privileged: true, ..Default::default() };
        let linux = cri::LinuxContainerConfig { security_context: Some(security), ..Default::default() };
        let config = cri::ContainerConfig { linux: Some(linux), ..Default::default() };
        let record = ContainerRecord {
            phase: ContainerPhase::Running,
            config: config.encode_to_vec(),
            sandbox: "s1".into(),
            ..Default::default()
        };
        let shown = read(&container(&record, 7, Some(br#"{"ociVersion": "1.0.2"}"#)), "info");
        assert_eq!(
            shown,
            json!({ "sandboxID": "s1", "pid": 7, "removing": false, "privileged": true, "runtimeSpec": { "ociVersion": "1.0.2" } })
        );
        // A bundle that is not there any more, or is torn.
        for spec in [None, Some(&b"{"[..])] {
            assert_eq!(read(&container(&record, 0, spec), "info").get("runtimeSpec"), None);
        }
    }

    #[test]
    fn a_sandbox_shows_its_network() {
        let linux = cri::LinuxPodSandboxConfig { cgroup_parent: "/pod1".into(), ..Default::default() };
        let config = cri::PodSandboxConfig { linux: Some(linux), ..Default::default() };
        let record = SandboxRecord {
            config: config.encode_to_vec(),
            network: "{}".into(),
            network_result: r#"{"ips": []}"#.into(),
            ..Default::default()
        };
        let shown = |is_pinned: fn(&Path) -> bool| {
            read(&sandbox(&record, 0, Path::new("/run/s1"), is_pinned), "info")
        };
        let ready = shown(|path| path.ends_with("net"));
        assert_eq!(
            ready["runtimeSpec"]["linux"],
            json!({ "namespaces": [{ "type": "network", "path": "/run/s1/net" }], "cgroupsPath": "/pod1" })
        );
        assert_eq!(
            (&ready["netNamespaceClosed"], &ready["cniResult"]),
            (&json!(false), &json!({ "ips": [] }))
        );
        assert_eq!(shown(|_| false)["netNamespaceClosed"], json!(true));
    }

    #[test]
    fn the_runtime_shows_its_configuration() {
        let mut settings = Settings::of_machine(
            Path::new("/var/r"),
            Path::new("/run/r"),
            Path::new("/bin/true"),
            Path::new("/cg"),
        );
        settings.handlers = [("".into(), "/usr/bin/crun".into())].into_iter().collect();
        let good = runtime(&settings, Ok(r#"{"name": "pods"}"#.to_owned()));
        let config = read(&good, "config");
        assert_eq!(
            (&config["stateDir"], &config["runtimes"]["default"]["path"]),
            (&json!("/run/r"), &json!("/usr/bin/crun"))
        );
        assert_eq!(read(&good, "cniconfig")["Networks"][0]["Config"]["name"], "pods");
        assert_eq!(read(&good, "lastCNILoadStatus"), "OK");
        let bad = runtime(&settings, Err("no such plugin".to_owned()));
        assert_eq!(read(&bad, "lastCNILoadStatus"), "no such plugin");
    }

    #[test]
    fn an_image_shows_its_configuration() {
        assert_eq!(read(&image(br#"{"os": "linux"}"#), "info"), json!({ "imageSpec": { "os": "linux" } }));
    }
}
