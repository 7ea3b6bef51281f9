//! The first hour of two boards, as their owner has it: they join, a Deployment runs on both, Services of both kinds and names lead
//! to it, a server and a board start again. Each step's time is printed. What k3s' controllers and CoreDNS do, the test does.

use std::time::Instant;

use serde_json::{Value, json};

use crate::cluster::{Cluster, is_ready};
use crate::common::client::Client;
use crate::common::namespace::in_namespaces;
use crate::pod::{self, Pod, at};

const WEB: &str = "10.43.0.80";
/// Of CoreDNS, as k3s gives it.
const DNS: &str = "10.43.0.10";
const NODES: [(&str, &str); 2] = [("a", "192.168.7.1"), ("b", "192.168.7.2")];
/// What the whole agent's side may have in memory, in KiB; of the binary that is shipped.
const AGENT_KIB_MAX: u64 = 12 * 1024;

/// Says how long each step took.
struct Steps(Instant);

impl Steps {
    fn done(&mut self, step: &str) {
        println!("{:>6} ms  {step}", self.0.elapsed().as_millis());
        self.0 = Instant::now();
    }
}

/// As k3s' servicelb makes it for a Service on port 80 (`svclb-…`), with the node's iptables.
fn balancer(node: &str) -> Value {
    let script = format!(
        "iptables() {{ /usr/sbin/xtables-nft-multi iptables -w \"$@\"; }}; set -e; [ $(cat /proc/sys/net/ipv4/ip_forward) = 1 ]; \
         iptables -t nat -I PREROUTING -p tcp --dport 80 -j DNAT --to {WEB}:80; \
         iptables -t nat -I POSTROUTING -d {WEB}/32 -p tcp -j MASQUERADE; exec sleep 1000000"
    );
    let (paths, volumes): (Vec<_>, Vec<_>) = [("usr", "/usr"), ("lib", "/lib"), ("lib64", "/lib64")]
        .iter()
        .map(|(name, path)| {
            let mount = json!({"name": name, "mountPath": path, "readOnly": true});
            (mount, json!({"name": name, "hostPath": {"path": std::fs::canonicalize(path).unwrap()}}))
        })
        .unzip();
    json!({"metadata": {"namespace": "default", "name": format!("svclb-{node}")},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "volumes": volumes,
            "securityContext": {"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]},
            "containers": [{"name": "lb-tcp-80", "image": "smolet.test/busybox:1", "command": ["sh", "-c", script],
                "ports": [{"name": "lb-tcp-80", "containerPort": 80, "hostPort": 80}],
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}, "volumeMounts": paths}]}})
}

#[test]
fn what_two_boards_do_in_their_first_hour() {
    if !in_namespaces("first_hour::what_two_boards_do_in_their_first_hour", &["--net", "--mount"]) {
        return;
    }
    let mut steps = Steps(Instant::now());
    let mut cluster = Cluster::start("vxlan");
    steps.done("two nodes join, and are ready");

    let web = || json!({"app": "web"});
    let [_, _, client_a, client_b, dns] = cluster.run([
        ("a", "web-a", web()),
        ("b", "web-b", web()),
        ("a", "client-a", json!({})),
        ("b", "client-b", json!({})),
        ("a", "dns", json!({"app": "dns"})),
    ]);
    steps.done("a Deployment runs on both");

    let both = || Ok(["web-a", "web-b"].map(str::to_owned).to_vec());
    cluster.serve("web", WEB, &json!({}));
    for client in [&client_a, &client_b] {
        cluster.until("a pod of each node reaches both", |_| client.servers(at(WEB, 80)) == both());
    }
    steps.done("its ClusterIP serves pods of both nodes");

    let _names = dns.serve_name("web.default.svc.cluster.local", WEB.parse().unwrap());
    cluster.serve_datagrams("dns", DNS, 53);
    for (node, client) in [("a", "client-a"), ("b", "client-b")] {
        let ask = ["exec", client, "--", "wget", "-qO-", "http://web/cgi-bin/who"];
        cluster.until("a pod finds the Service by its name", |cluster| {
            cluster.node(node).shown(&ask).is_some_and(|said| said.starts_with("web-"))
        });
    }
    steps.done("its name leads pods of both nodes to it");

    for (node, _) in NODES {
        cluster.api.create("pods", balancer(node));
    }
    for (node, address) in NODES {
        cluster
            .until("the balancer's pod is ready", |cluster| is_ready(&cluster.pod(&format!("svclb-{node}"))));
        cluster.until("the balancer leads to both", |_| pod::servers(at(address, 80)) == both());
    }
    let ingress: Vec<_> = NODES.iter().map(|(_, address)| json!({"ip": address, "ipMode": "VIP"})).collect();
    cluster.api.patch("services", "default", "web", &json!({"spec": {"type": "LoadBalancer"}}));
    cluster.api.update_status("services", "default", "web", json!({"loadBalancer": {"ingress": ingress}}));
    for (_, address) in NODES {
        cluster.until("the Service's own address too", |_| pod::servers(at(address, 80)) == both());
    }
    steps.done("a LoadBalancer serves clients outside, on both nodes");

    // As kubectl has them: the server comes through the node's tunnel.
    cluster.api.allow_access("kube-apiserver", "*", "*");
    let server = cluster.api.identity("kube-apiserver", &[], None);
    let ask = |cluster: &Cluster, node: &'static str, method: &str, path: &str| {
        let through = cluster.k3s.forward(node, "127.0.0.1:10250");
        let mut client = Client::connect_to_node(node, through, &cluster.api.ca_pem(), &server).unwrap();
        client.send(
            format!("{method} {path} HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        client.rest()
    };
    for (node, web) in [("a", "web-a"), ("b", "web-b")] {
        let said = ask(&cluster, node, "POST", &format!("/run/default/{web}/app?cmd=cat%20/etc/hostname"));
        assert_eq!((said.status, said.body.trim()), (200, web));
        assert_eq!(ask(&cluster, node, "GET", &format!("/containerLogs/default/{web}/app")).status, 200);
    }
    steps.done("exec and logs through the server, on both nodes");

    let mut kib = 0;
    for (node, _) in NODES {
        let found = cluster.node(node).agent_kib();
        println!("           node {node}: the agent and its monitors have {found} KiB");
        kib = found.max(kib);
    }
    assert!(!crate::node::is_release() || kib <= AGENT_KIB_MAX, "{kib} KiB");

    // The server starts again, while the Service is asked.
    let traffic = [client_a.keep_asking(at(WEB, 80)), client_b.keep_asking(at(WEB, 80))];
    cluster.api.stop_listening();
    cluster.api.cut_connections();
    cluster.k3s.cut_tunnels();
    let watches = |cluster: &Cluster| cluster.api.open_watches();
    cluster.until("nobody is connected", |cluster| watches(cluster) == 0);
    steps.done("the server ends");
    cluster.api.listen_again();
    let [late] = cluster.run([("b", "late", web())]);
    cluster.publish("web");
    cluster.until("what is new is served", |_| client_a.servers(at(WEB, 80)).is_ok_and(|all| all.len() == 3));
    for traffic in traffic {
        let tally = traffic.stop();
        assert!(tally.failed.is_empty() && tally.answered > 0, "{tally:?}");
    }
    for (node, _) in NODES {
        cluster.until("its tunnel is open again", |cluster| cluster.k3s.has_tunnel(node));
    }
    steps.done("it starts again: a new pod is served, the tunnels are open, no request was lost");

    // A board starts again.
    cluster.end(late.name);
    cluster.reboot_alone("b");
    cluster.node("b").plug_in();
    let [web_b, client_b] = ["web-b", "client-b"].map(|name| cluster.pod_of_node("b", name));
    steps.done("a board starts again: its pods are ready");
    let ip = |pod: &Pod| pod.ip.to_string();
    cluster.until("the server sees its pods", |cluster| {
        [&web_b, &client_b].iter().all(|of| cluster.pod(of.name)["status"]["podIP"] == ip(of))
    });
    cluster.publish("web");
    for client in [&client_a, &client_b] {
        cluster.until("the Service is whole again", |_| client.servers(at(WEB, 80)) == both());
    }
    for (_, address) in NODES {
        cluster.until("from outside too", |_| pod::servers(at(address, 80)) == both());
    }
    assert_eq!(ask(&cluster, "b", "GET", "/containerLogs/default/web-b/app?previous=true").status, 200);
    steps.done("and the Service, from both nodes and from outside");
}
