//! CNI: configurations of the node, chains that fail in the middle, CHECK, GC.

use smolet::proto::runtime::v1 as cri;

use crate::common::write_program;

use super::machine::{
    Machine, changed_networks, list_sandboxes, output, pod, remove_sandbox, run_sandbox, status_of,
    stop_sandbox,
};

/// A plugin that appends what it is told to a file, and answers with what it was given.
fn plugin(machine: &Machine, name: &str, body: &str) {
    let dir = machine.root.join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    let log = machine.root.join("calls").display().to_string();
    let script =
        format!("#!/bin/sh\ninput=$(cat)\necho \"{name} $CNI_COMMAND $CNI_ARGS $input\" >> {log}\n{body}\n");
    write_program(&dir.join(name), &script);
}

fn calls(machine: &Machine) -> Vec<String> {
    std::fs::read_to_string(machine.root.join("calls"))
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// That call of a kind, from 0, once it was made.
async fn nth_call(machine: &Machine, kind: &str, nth: usize) -> String {
    for _ in 0..500 {
        if let Some(call) = calls(machine).into_iter().filter(|call| call.starts_with(kind)).nth(nth) {
            return call;
        }
        async_io::Timer::after(std::time::Duration::from_millis(20)).await;
    }
    panic!("{kind} was not called {} times within 10 s: {:?}", nth + 1, calls(machine));
}

#[test]
fn the_nodes_configuration_is_used_and_a_failed_chain_is_taken_back() {
    let mut machine = Machine::new();
    machine.settings.cni_bin_dirs.insert(0, machine.root.join("bin"));
    let subnet = &machine.settings.subnet;
    let leases = machine.settings.run_dir.join("cni");
    let conf = format!(
        r#"{{"cniVersion": "1.0.0", "name": "{0}", "plugins": [
            {{"type": "bridge", "bridge": "{0}", "isGateway": true,
              "ipam": {{"type": "host-local", "dataDir": "{1}", "subnet": "{subnet}"}}}},
            {{"type": "second", "capabilities": {{"aliases": true}}}}]}}"#,
        machine.settings.bridge,
        leases.display()
    );
    std::fs::write(machine.root.join("net.d/20-later.conflist"), "{}").unwrap();
    std::fs::write(machine.root.join("net.d/10-first.conflist"), conf).unwrap();
    plugin(
        &machine,
        "second",
        r#"[ $CNI_COMMAND = ADD ] && echo '{"msg": "no", "details": "today"}' && exit 1; exit 0"#,
    );
    machine.run(async {
        let runtime = machine.open().await;
        let request = cri::RunPodSandboxRequest { config: Some(pod("a")), ..Default::default() };
        let error = runtime.run_pod_sandbox_cri(request).await.unwrap_err().to_string();
        let wanted = format!(
            "sandbox of pod default/a: CNI plugin second of network {}: ADD: no; today",
            machine.settings.bridge
        );
        assert_eq!(error, wanted);
        assert!(list_sandboxes(&runtime).await.is_empty());
        machine.assert_clean();
        let made = calls(&machine);
        assert!(made[0].contains("second ADD IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;"), "{made:?}");
        assert!(made[0].contains(r#""runtimeConfig":{"aliases":["a"]}"#) && made[0].contains("prevResult"), "{made:?}");
        assert!(made[1].starts_with("second DEL") && made.len() == 2, "{made:?}");

        // It passes on what it was given.
        plugin(
            &machine,
            "second",
            r#"[ $CNI_COMMAND = ADD ] && echo "$input" | sed 's/.*"prevResult"://; s/,"runtimeConfig".*//; s/,"type":"second"}$//'; exit 0"#,
        );
        let id = run_sandbox(&runtime, pod("a")).await;
        assert!(!status_of(&runtime, &id).await.network.unwrap().ip.is_empty());
        assert_eq!(changed_networks(&runtime).await, [""; 0]);
        // The network goes on from the record, whatever the node's configuration is by then.
        std::fs::remove_file(machine.root.join("net.d/10-first.conflist")).unwrap();
        drop(runtime);
        let runtime = machine.open().await;
        remove_sandbox(&runtime, &id).await;
        let made = calls(&machine);
        assert!(made.last().unwrap().starts_with("second DEL") && made.iter().any(|call| call.starts_with("second CHECK")));
        let status = runtime.status_cri(cri::StatusRequest::default()).await.unwrap().status.unwrap();
        assert!(status.conditions[0].status, "{status:?}");
        assert!(status.conditions[1].message.contains("20-later.conflist: name"), "{status:?}");
    });
    machine.assert_clean();
}

#[test]
fn a_network_that_cannot_be_released_keeps_no_pod_from_its_end() {
    let mut machine = Machine::new();
    machine.settings.cni_bin_dirs.insert(0, machine.root.join("bin"));
    let conf = machine.root.join("net.d/10.conflist");
    let of = |plugin: &str| {
        let text = format!(r#"{{"cniVersion": "1.0.0", "name": "n", "plugins": [{{"type": "{plugin}"}}]}}"#);
        std::fs::write(&conf, text).unwrap();
    };
    let fails = r#"echo '{"msg": "bad range"}'; exit 1"#;
    let works = r#"[ $CNI_COMMAND = ADD ] && echo '{"ips":[{"address":"192.0.2.7/24"}]}'; exit 0"#;
    machine.run(async {
        let runtime = machine.open().await;
        // Neither ADD nor DEL works: nothing was attached.
        of("broken");
        plugin(&machine, "broken", fails);
        let request = cri::RunPodSandboxRequest { config: Some(pod("a")), ..Default::default() };
        let error = runtime.run_pod_sandbox_cri(request).await.unwrap_err().to_string();
        assert!(error.ends_with("ADD: bad range"), "{error}");
        let left = list_sandboxes(&runtime).await;
        assert_eq!(left.len(), 1, "its plugin is asked again");
        // The owner has changed the network, and removed its plugin.
        of("former");
        plugin(&machine, "former", works);
        remove_sandbox(&runtime, &left[0].id).await;
        let (first, second) = (run_sandbox(&runtime, pod("a")).await, run_sandbox(&runtime, pod("b")).await);
        let removed = machine.root.join("bin/former");
        std::fs::remove_file(&removed).unwrap();
        let refused =
            runtime.stop_pod_sandbox_cri(cri::StopPodSandboxRequest { pod_sandbox_id: first.clone() }).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("former of network n is not in"), "it is the node's network: {refused}");
        of("latter");
        plugin(&machine, "latter", works);
        remove_sandbox(&runtime, &first).await;
        // One that fails is asked again: it may have something.
        plugin(&machine, "former", fails);
        let refused =
            runtime.stop_pod_sandbox_cri(cri::StopPodSandboxRequest { pod_sandbox_id: second.clone() }).await;
        assert!(refused.unwrap_err().to_string().ends_with("DEL: bad range"));
        plugin(&machine, "former", works);
        remove_sandbox(&runtime, &second).await;
    });
    machine.assert_clean();
}

#[test]
fn networks_are_checked_unless_their_configuration_has_no_check() {
    for (head, is_checked) in [
        (r#""cniVersion": "0.4.0""#, true),
        (r#""cniVersion": "0.3.1""#, false),
        (r#""cniVersion": "1.0.0", "disableCheck": true"#, false),
    ] {
        let mut machine = Machine::new();
        machine.settings.cni_bin_dirs = vec![machine.root.join("bin")];
        let conf = format!(r#"{{{head}, "name": "n", "plugins": [{{"type": "only"}}]}}"#);
        std::fs::write(machine.root.join("net.d/10.conflist"), conf).unwrap();
        plugin(
            &machine,
            "only",
            r#"[ $CNI_COMMAND = ADD ] && echo '{"ips":[{"address":"192.0.2.7/24"}]}'
               [ $CNI_COMMAND = CHECK ] && echo '{"msg": "no eth0"}' && exit 1; exit 0"#,
        );
        machine.run(async {
            let runtime = machine.open().await;
            let id = run_sandbox(&runtime, pod("a")).await;
            let wanted = format!("pod default/a: sandbox {id}: CNI plugin only of network n: CHECK: no eth0");
            let wanted = if is_checked { vec![wanted] } else { Vec::new() };
            assert_eq!(changed_networks(&runtime).await, wanted, "{head}");
            let of_checks = |call: &String| call.starts_with("only CHECK");
            assert_eq!(calls(&machine).iter().filter(|call| of_checks(call)).count(), wanted.len());
            stop_sandbox(&runtime, &id).await;
            assert_eq!(changed_networks(&runtime).await, [""; 0], "it has none any more");
            remove_sandbox(&runtime, &id).await;
        });
        machine.assert_clean();
    }
}

#[test]
fn plugins_of_version_1_1_collect_garbage_at_the_start() {
    let mut machine = Machine::new();
    machine.settings.cni_bin_dirs = vec![machine.root.join("bin")];
    let conf = r#"{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "only"}]}"#;
    std::fs::write(machine.root.join("net.d/10.conflist"), conf).unwrap();
    plugin(
        &machine,
        "only",
        &format!(
            r#"[ $CNI_COMMAND = ADD ] && echo '{{"cniVersion":"1.1.0","ips":[{{"address":"192.0.2.7/24"}}]}}'
               [ $CNI_COMMAND = GC ] && sleep 0.5 && echo "only end of GC" >> {}; exit 0"#,
            machine.root.join("calls").display()
        ),
    );
    machine.run(async {
        let runtime = machine.open().await;
        nth_call(&machine, "only GC", 0).await;
        let id = run_sandbox(&runtime, pod("a")).await;
        assert_eq!(status_of(&runtime, &id).await.network.unwrap().ip, "192.0.2.7");
        let before: Vec<_> =
            calls(&machine).iter().map(|call| call.chars().take(8).collect::<String>()).collect();
        assert_eq!(
            before,
            ["only GC ", "only end", "only ADD"],
            "nothing is attached while garbage is collected"
        );
        drop(runtime);
        let runtime = machine.open().await;
        let collected = nth_call(&machine, "only GC", 1).await;
        let valid = format!(r#""cni.dev/valid-attachments":[{{"containerID":"{id}","ifname":"eth0"}}]"#);
        assert!(collected.contains(&valid), "{collected}");
        remove_sandbox(&runtime, &id).await;
    });
    machine.assert_clean();
}

/// As on the first boot with `--flannel` or a network of a DaemonSet.
#[test]
fn garbage_is_collected_once_with_each_configuration_that_comes_later() {
    let mut machine = Machine::new();
    machine.settings.cni_bin_dirs = vec![machine.root.join("bin")];
    machine.settings.has_own_network = false;
    plugin(
        &machine,
        "only",
        r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.7/24"}]}'; exit 0"#,
    );
    machine.run(async {
        let runtime = machine.open().await;
        let request = cri::RunPodSandboxRequest { config: Some(pod("a")), ..Default::default() };
        let refused = runtime.run_pod_sandbox_cri(request).await.unwrap_err().to_string();
        assert!(refused.contains("no CNI configuration"), "{refused}");
        let mut ids = Vec::new();
        for (name, nth) in [("one", 0), ("two", 1)] {
            let conf =
                format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "only"}}]}}"#);
            std::fs::write(machine.root.join("net.d/10.conflist"), conf).unwrap();
            ids.push(run_sandbox(&runtime, pod(name)).await);
            let collected = nth_call(&machine, "only GC", nth).await;
            assert!(collected.contains(&format!(r#""name":"{name}""#)), "{collected}");
            assert!(nth == 0 || collected.contains(&ids[0]), "those of the former one are kept: {collected}");
            ids.push(run_sandbox(&runtime, pod(&format!("{name}-more"))).await);
            let count = || calls(&machine).iter().filter(|call| call.starts_with("only GC")).count();
            assert_eq!(count(), nth + 1, "no more often than needed");
        }
        for id in &ids {
            remove_sandbox(&runtime, id).await;
        }
    });
    machine.assert_clean();
}

/// What remains of an ADD that was killed before it set the bridge's address, and of the DEL behind it.
#[test]
fn a_bridge_without_a_hardware_address_gets_one() {
    let machine = Machine::new();
    let (bridge, port) = (&*machine.settings.bridge, format!("{}p", machine.settings.bridge));
    let address = || std::fs::read_to_string(format!("/sys/class/net/{bridge}/address")).unwrap();
    for arguments in [
        format!("link add {bridge} type bridge"),
        format!("link add {port} type veth peer name {port}1"),
        format!("link set {port} master {bridge}"),
        format!("link delete {port}"),
    ] {
        output(std::process::Command::new("ip").args(arguments.split(' ')));
    }
    assert_eq!(address(), "00:00:00:00:00:00\n");
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("first")).await;
        let given = address();
        // One of its own, which the port that is the first one does not take away.
        remove_sandbox(&runtime, &sandbox).await;
        assert_eq!((address(), given.len()), (given, 18));
    });
    machine.assert_clean();
}
