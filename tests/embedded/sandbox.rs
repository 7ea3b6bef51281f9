//! Sandboxes: namespaces, network, files, and their life.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

use smolet::proto::runtime::v1 as cri;

use super::machine::{
    Machine, changed_networks, list_sandboxes, pod, remove_sandbox, run_sandbox, status_of, stop_sandbox,
    until,
};

#[test]
fn a_pod_has_its_network_host_name_sysctls_and_files() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let mut config = pod("web");
        config.linux.as_mut().unwrap().sysctls = [
            ("net.core.somaxconn".to_owned(), "77".to_owned()),
            ("kernel.msgmax".to_owned(), "9000".to_owned()),
            // Of the interface, which is not there before the pod is in its network.
            ("net.ipv4.conf.eth0.route_localnet".to_owned(), "1".to_owned()),
        ]
        .into();
        config.dns_config = Some(cri::DnsConfig {
            servers: vec!["10.0.0.10".into()],
            searches: vec!["a.local".into()],
            options: vec!["ndots:5".into()],
        });
        let id = run_sandbox(&runtime, config.clone()).await;
        assert_eq!(id.len(), 64);
        let status = status_of(&runtime, &id).await;
        assert_eq!(status.state, i32::from(cri::PodSandboxState::SandboxReady));
        assert_eq!(
            (status.labels, status.metadata.clone()),
            (config.labels.clone(), config.metadata.clone())
        );
        let ip = status.network.unwrap().ip;
        let shown = machine.inside(
            &id,
            "hostname; cat /proc/sys/net/core/somaxconn /proc/sys/kernel/msgmax \
             /proc/sys/net/ipv4/ip_unprivileged_port_start; ip -o address",
        );
        assert!(shown.starts_with("web\n77\n9000\n0\n"), "{shown}");
        assert_eq!(machine.inside(&id, "cat /proc/sys/net/ipv4/conf/eth0/route_localnet").trim(), "1");
        assert!(shown.contains(&format!("eth0    inet {ip}/24")) && shown.contains("127.0.0.1/8"), "{shown}");
        let file = machine.settings.root_dir.join("sandboxes").join(&id).join("resolv.conf");
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, "search a.local\nnameserver 10.0.0.10\noptions ndots:5\n");
        assert_eq!(changed_networks(&runtime).await, [""; 0]);

        // Its pod has one sandbox of an attempt.
        let again = cri::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
        let refused = runtime.run_pod_sandbox_cri(again).await.unwrap_err().to_string();
        assert!(refused.contains("is attempt 0 of pod default/web already"), "{refused}");

        let of = |filter: cri::PodSandboxFilter| {
            let runtime = runtime.clone();
            async move {
                let request = cri::ListPodSandboxRequest { filter: Some(filter) };
                runtime.list_pod_sandbox_cri(request).await.unwrap().items.len()
            }
        };
        let label = |value: &str| cri::PodSandboxFilter {
            label_selector: [("app".to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        assert_eq!((of(label("web")).await, of(label("other")).await), (1, 0));
        assert_eq!(of(cri::PodSandboxFilter { id: id[..12].into(), ..Default::default() }).await, 1);
        let not_ready = Some(cri::PodSandboxStateValue { state: 1 });
        assert_eq!(of(cri::PodSandboxFilter { state: not_ready, ..Default::default() }).await, 0);

        stop_sandbox(&runtime, &id).await;
        stop_sandbox(&runtime, &id).await;
        assert_eq!(of(cri::PodSandboxFilter { state: not_ready, ..Default::default() }).await, 1);
        assert!(machine.leases().is_empty());
        remove_sandbox(&runtime, &id).await;
        remove_sandbox(&runtime, &id).await;
        assert!(list_sandboxes(&runtime).await.is_empty());
    });
    machine.assert_clean();
}

/// A process that ends with the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn pods_reach_each_other_and_a_port_of_the_node_reaches_its_pod() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let mut config = pod("server");
        let host_port = 20_000 + i32::try_from(machine.number).unwrap();
        config.port_mappings = vec![cri::PortMapping {
            protocol: cri::Protocol::Tcp.into(),
            container_port: 80,
            host_port,
            host_ip: String::new(),
        }];
        let server = run_sandbox(&runtime, config).await;
        let client = run_sandbox(&runtime, pod("client")).await;
        let ip = status_of(&runtime, &server).await.network.unwrap().ip;
        let net = machine.settings.run_dir.join("sandboxes").join(&server).join("net");
        let _serving = Killed(
            std::process::Command::new("nsenter")
                .arg(format!("--net={}", net.display()))
                .args(["busybox", "nc", "-ll", "-p", "80", "-e", "echo", "answer"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap(),
        );
        let script =
            format!("for i in $(seq 300); do busybox nc {ip} 80 </dev/null && exit; sleep 0.1; done");
        assert_eq!(machine.inside(&client, &script), "answer\n");
        let node = std::process::Command::new("ip")
            .args(["-4", "-o", "address", "show", "scope", "global"])
            .output();
        let node = String::from_utf8(node.unwrap().stdout).unwrap();
        let own = format!(" {} ", machine.settings.bridge);
        let line =
            node.lines().find(|line| !line.contains(&own) && !line.contains("smt")).unwrap_or_default();
        let address =
            line.split_whitespace().nth(3).and_then(|net| net.split('/').next()).unwrap_or("127.0.0.1");
        let target = format!("{address}:{host_port}").parse().unwrap();
        let mut through = TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap();
        let mut answer = String::new();
        through.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer\n");
        for id in [server, client] {
            remove_sandbox(&runtime, &id).await;
        }
    });
    machine.assert_clean();
}

#[test]
fn a_pod_in_the_nodes_network_has_no_address_and_refused_pods_leave_nothing() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let mut config = pod("node");
        let options = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        let options = options.namespace_options.as_mut().unwrap();
        (options.network, options.ipc) = (cri::NamespaceMode::Node.into(), cri::NamespaceMode::Node.into());
        let id = run_sandbox(&runtime, config).await;
        assert_eq!(status_of(&runtime, &id).await.network.unwrap().ip, "");
        assert_eq!(
            std::fs::read_dir(machine.settings.run_dir.join("sandboxes").join(&id)).unwrap().count(),
            0
        );
        remove_sandbox(&runtime, &id).await;

        let refused = |change: fn(&mut cri::PodSandboxConfig)| {
            let mut config = pod("refused");
            change(&mut config);
            let request = cri::RunPodSandboxRequest { config: Some(config), ..Default::default() };
            let runtime = runtime.clone();
            async move { runtime.run_pod_sandbox_cri(request).await.unwrap_err().to_string() }
        };
        let sysctl = refused(|config| {
            config.linux.as_mut().unwrap().sysctls = [("kernel.panic".to_owned(), "1".to_owned())].into();
        });
        assert!(sysctl.await.contains("linux.sysctls: kernel.panic is not of a namespace"));
        // Fails in the middle: the namespaces are there, and are released again.
        let sysctl = refused(|config| {
            config.linux.as_mut().unwrap().sysctls = [("net.no.such".to_owned(), "1".to_owned())].into();
        });
        assert!(sysctl.await.contains("sysctl net/no/such=1: No such file"));
        let sysctl = refused(|config| {
            config.linux.as_mut().unwrap().sysctls =
                [("net.ipv4.conf.eth0.no_such".to_owned(), "1".to_owned())].into();
        });
        assert!(sysctl.await.contains("sysctl net/ipv4/conf/eth0/no_such=1: No such file"));
        let request = cri::RunPodSandboxRequest { config: Some(pod("x")), runtime_handler: "kata".into() };
        let error = runtime.run_pod_sandbox_cri(request).await.unwrap_err().to_string();
        assert_eq!(error, "sandbox of pod default/x: runtime handler \"kata\" is not configured");
        assert!(list_sandboxes(&runtime).await.is_empty());
    });
    machine.assert_clean();
}

#[test]
fn a_sandbox_without_a_host_name_has_the_nodes() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let id =
            run_sandbox(&runtime, cri::PodSandboxConfig { hostname: String::new(), ..pod("plain") }).await;
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert_eq!(machine.inside(&id, "hostname").trim(), node);
        // It may be changed there without the node's.
        assert_eq!(machine.inside(&id, "hostname other && hostname").trim(), "other");
        assert_eq!(rustix::system::uname().nodename().to_string_lossy(), node);
        remove_sandbox(&runtime, &id).await;
    });
    machine.assert_clean();
}

#[test]
fn the_address_of_a_torn_record_is_released_as_soon_as_the_configuration_can_be_read() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let id = run_sandbox(&runtime, pod("torn")).await;
        drop(runtime);
        std::fs::write(machine.settings.root_dir.join("sandboxes").join(&id).join("record"), "").unwrap();
        let broken = machine.settings.cni_conf_dir.join("10-broken.conflist");
        std::fs::write(&broken, "{").unwrap();
        let runtime = machine.open().await;
        assert_eq!(list_sandboxes(&runtime).await.len(), 1);
        std::fs::remove_file(&broken).unwrap();
        until("the end of the torn one", async || list_sandboxes(&runtime).await.is_empty()).await;
    });
    machine.assert_clean();
}

#[test]
fn sandboxes_are_found_after_a_restart_and_are_not_ready_after_a_reboot() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let (kept, rebooted) =
            (run_sandbox(&runtime, pod("kept")).await, run_sandbox(&runtime, pod("rebooted")).await);
        let address = status_of(&runtime, &kept).await.network;
        drop(runtime);
        // What a reboot leaves of a sandbox: its record, and no namespace.
        let net = machine.settings.run_dir.join("sandboxes").join(&rebooted).join("net");
        rustix::mount::unmount(&net, rustix::mount::UnmountFlags::DETACH).unwrap();
        // A record that was torn by a power cut.
        let torn = machine.settings.root_dir.join("sandboxes").join("a".repeat(64));
        std::fs::create_dir(&torn).unwrap();
        std::fs::write(torn.join("record"), "").unwrap();
        let runtime = machine.open().await;
        let status = status_of(&runtime, &kept).await;
        assert_eq!((status.state, status.network), (0, address));
        assert_eq!(status_of(&runtime, &rebooted).await.state, 1);
        // It holds up nobody.
        until("the end of the torn one", async || list_sandboxes(&runtime).await.len() == 2).await;
        assert!(!torn.exists());
        for id in [kept, rebooted] {
            stop_sandbox(&runtime, &id).await;
            remove_sandbox(&runtime, &id).await;
        }
    });
    // Those of the sandbox whose namespace was gone, as its plugin could not know its addresses.
    machine.remove_rules();
    machine.assert_clean();
}
