//! A k3s cluster of two nodes, and what its controllers would do: the ranges of pods, taints, endpoints of Services. In a network
//! namespace of its own, to which the nodes are linked.
//!
//! ```text
//!     the test: API server, supervisor, clients outside     192.168.7.254
//!         lan ─┬─ node a: agent, pods 10.42.1.0/24          192.168.7.1
//!              └─ node b: agent, pods 10.42.2.0/24          192.168.7.2
//! ```

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::TempDir;
use crate::common::apiserver::ApiServer;
use crate::common::fake::FakeClock;
use crate::common::namespace::ip;
use crate::node::{LAN, Node, waits_until};
use crate::pod::Pod;
use crate::supervisor::K3s;

/// Of the servers, and of clients outside.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 254);
const IMAGE: &str = "smolet.test/busybox:1";
/// Ports on which each pod of the tests tells its name and who asks.
pub const PORTS: [u16; 2] = [8080, 8081];
/// Lines of an agent's log that are shown when a test fails.
const LOG_LINES: usize = 40;

/// In the order in which it ends.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub k3s: K3s,
    pub api: ApiServer,
    /// An archive.
    images: PathBuf,
    _dir: TempDir,
}

impl Cluster {
    /// With the pods' network by that backend of flannel; both nodes are ready.
    pub fn start(backend: &str) -> Self {
        let begun = Instant::now();
        ip(&format!("link add {LAN} type bridge"));
        ip(&format!("address add {OUTSIDE}/24 dev {LAN}"));
        ip(&format!("link set {LAN} up"));
        let api = ApiServer::start_at(OUTSIDE, FakeClock::System);
        api.authorize_nodes();
        api.admit_accounts();
        let listener = TcpListener::bind((OUTSIDE, 0)).unwrap();
        let k3s = K3s::start_on(listener, &api, api.address().port());
        // 10.42.0.0/16, as Go writes it.
        let range = json!({"IP": "10.42.0.0", "Mask": "//8AAA=="});
        k3s.state().settings = json!({"FlannelBackend": backend, "ClusterIPRange": range, "ClusterIPRanges": [range], "ClusterDomain": "cluster.local",
                "ClusterDNS": "10.43.0.10", "ClusterDNSs": ["10.43.0.10"]});
        let dir = TempDir::in_memory();
        let images = archive(dir.path());
        let mut cluster = Self { nodes: Vec::new(), k3s, api, images, _dir: dir };
        // The API server's own Service, as it keeps it itself.
        let server = json!([{"addresses": [OUTSIDE.to_string()], "conditions": {"ready": true}}]);
        let port = cluster.api.address().port();
        cluster.api.create("endpointslices", slice("kubernetes", ("https", port), &server));
        cluster.join(&["a", "b"]);
        println!("{backend}: two nodes are ready after {} ms", begun.elapsed().as_millis());
        cluster
    }

    /// New machines of these names join, and are ready.
    pub fn join(&mut self, names: &[&'static str]) {
        for name in names {
            let address = Ipv4Addr::new(192, 168, 7, number(name));
            self.nodes.push(Node::start(name, address, OUTSIDE, &self.images));
            self.start_agent(name);
        }
        for name in names {
            self.until("the node has joined", |cluster| cluster.api.get("nodes", "", name).is_some());
            self.give_range(name, number(name));
        }
        for name in names {
            self.until("the node is ready", |cluster| {
                cluster.api.get("nodes", "", name).is_some_and(|node| is_ready(&node))
            });
        }
    }

    /// What the controllers of nodes and of the cloud do for a new Node; its pods are in 10.42.`third`.0/24.
    fn give_range(&self, node: &str, third: u8) {
        let cidr = format!("10.42.{third}.0/24");
        let spec = json!({"spec": {"podCIDR": cidr, "podCIDRs": [cidr], "taints": null}});
        self.api.patch("nodes", "", node, &spec);
    }

    /// `kubectl delete node`, while its agent runs: the Node comes again, with another range.
    pub fn delete_node(&mut self, node: &str, third: u8) {
        let uid = |cluster: &Self| Some(cluster.api.get("nodes", "", node)?["metadata"]["uid"].clone());
        let former = uid(self).expect("it is there");
        self.api.delete("nodes", "", node, None);
        self.until("the Node is registered again", |cluster| uid(cluster).is_some_and(|uid| uid != former));
        self.give_range(node, third);
        self.until("it is ready", |cluster| {
            cluster.api.get("nodes", "", node).is_some_and(|node| is_ready(&node))
        });
    }

    pub fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).expect("it is switched on")
    }

    /// Of a node that has joined it goes on.
    pub fn start_agent(&mut self, node: &str) {
        let (url, token) = (self.k3s.url(), self.k3s.token());
        self.node_mut(node).start_agent(&url, &token);
    }

    pub fn kill_agent(&mut self, node: &str) {
        self.node_mut(node).kill_agent();
    }

    /// Its power is cut and comes again; its agent starts, and reaches nobody.
    pub fn reboot_alone(&mut self, node: &str) {
        self.node_mut(node).reboot();
        self.start_agent(node);
    }

    /// It ends without a word, and nothing of it is left. Its Node and pods are deleted, as by the controllers.
    pub fn lose(&mut self, node: &str) {
        self.nodes.retain(|of| of.name != node);
        for pod in self.api.list("pods", "default").iter().filter(|pod| pod["spec"]["nodeName"] == node) {
            self.api.delete("pods", "default", pod["metadata"]["name"].as_str().unwrap(), Some(0));
        }
        self.api.delete("nodes", "", node, None);
        // With it goes its password: another machine may have its name.
        self.k3s.state().passwords.remove(node);
    }

    fn node_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).expect("it is switched on")
    }

    /// Waits until it holds; the logs tell what was there instead.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let in_time = waits_until(|| {
            let failed = self.nodes.iter_mut().any(Node::has_failed);
            assert!(!failed, "an agent ended while waiting for this: {what}\n{}", self.logs());
            holds(self)
        });
        assert!(in_time, "waited for this: {what}\n{}", self.logs());
    }

    fn logs(&self) -> String {
        let log = |node: &Node| {
            let log = node.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            format!("node {}:\n{}\n", node.name, last.join("\n"))
        };
        self.nodes.iter().map(log).collect()
    }

    // ---- pods ----------------------------------------------------------------------------------------------

    /// Runs these pods, with node, name and labels of each, until all are ready. Each serves its name.
    pub fn run<const N: usize>(&mut self, pods: [(&str, &'static str, Value); N]) -> [Pod; N] {
        for (node, name, labels) in &pods {
            let probe = json!({"tcpSocket": {"port": PORTS[0]}, "periodSeconds": 1});
            let container = json!({"name": "app", "image": IMAGE, "readinessProbe": probe,
                "command": ["sh", "-c", script(name)],
                "ports": [{"name": "web", "containerPort": PORTS[0]}, {"name": "other", "containerPort": PORTS[1]}]});
            self.api.create(
                "pods",
                json!({"metadata": {"namespace": "default", "name": name, "labels": labels},
                "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}}),
            );
        }
        pods.map(|(node, name, _)| {
            self.until(&format!("pod {name} is ready"), |cluster| {
                cluster.api.get("pods", "default", name).is_some_and(|pod| is_ready(&pod))
            });
            self.known(node, name, &self.pod(name))
        })
    }

    /// The pod as the node itself has it, when it is ready.
    pub fn pod_of_node(&mut self, node: &str, name: &'static str) -> Pod {
        let shown = |cluster: &Self| {
            let pods: Value =
                serde_json::from_str(&cluster.node(node).shown(&["pods", "-o", "json"])?).ok()?;
            let mut pods = pods["items"].as_array()?.iter();
            pods.find(|pod| pod["metadata"]["name"] == name && is_ready(pod)).cloned()
        };
        self.until(&format!("node {node} has pod {name} ready"), |cluster| shown(cluster).is_some());
        self.known(node, name, &shown(self).expect("it stays ready"))
    }

    fn known(&self, node: &str, name: &'static str, pod: &Value) -> Pod {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let process = self.node(node).process_of(uid).expect("its container runs");
        Pod::new(name, pod["status"]["podIP"].as_str().unwrap().parse().unwrap(), process)
    }

    /// As `kubectl delete pod`, until its node has ended it.
    pub fn end(&mut self, pod: &str) {
        self.api.delete("pods", "default", pod, None);
        self.until("the pod has ended", |cluster| cluster.api.get("pods", "default", pod).is_none());
    }

    pub fn pod(&self, name: &str) -> Value {
        self.api.get("pods", "default", name).expect("nobody has deleted it")
    }

    pub fn label(&self, pod: &str, labels: &Value) {
        self.api.patch("pods", "default", pod, &json!({"metadata": {"labels": labels}}));
    }

    // ---- services ------------------------------------------------------------------------------------------

    /// As [`Cluster::serve`], on port 53 for datagrams, at that port of the pods.
    pub fn serve_datagrams(&self, name: &str, cluster_ip: &str, port: u16) {
        let spec = json!({"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "type": "ClusterIP", "selector": {"app": name},
            "ports": [{"port": 53, "targetPort": port, "protocol": "UDP"}]});
        self.api
            .create("services", json!({"metadata": {"namespace": "default", "name": name}, "spec": spec}));
        let mut slice = slice(name, ("", port), &self.endpoints(name));
        slice["ports"][0]["protocol"] = json!("UDP");
        self.api.create("endpointslices", slice);
    }

    /// A Service for the pods with its name as their label `app`, on port 80; `more` goes into its `spec`.
    pub fn serve(&self, name: &str, cluster_ip: &str, more: &Value) {
        let mut spec = json!({"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "type": "ClusterIP",
            "selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORTS[0], "protocol": "TCP"}]});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        self.api
            .create("services", json!({"metadata": {"namespace": "default", "name": name}, "spec": spec}));
        self.api.create("endpointslices", slice(name, ("", PORTS[0]), &self.endpoints(name)));
    }

    /// The endpoints of the Service become those that it has, as by the controller of EndpointSlices.
    pub fn publish(&self, service: &str) {
        let name = format!("{service}-abcde");
        self.api.patch("endpointslices", "default", &name, &json!({"endpoints": self.endpoints(service)}));
    }

    fn endpoints(&self, service: &str) -> Value {
        let pods = self.api.list("pods", "default").into_iter();
        let of_service = pods.filter(|pod| {
            pod["metadata"]["labels"]["app"] == service
                && pod["metadata"]["deletionTimestamp"].is_null()
                && is_ready(pod)
        });
        of_service
            .map(|pod| {
                json!({"addresses": [pod["status"]["podIP"]], "nodeName": pod["spec"]["nodeName"],
                    "conditions": {"ready": true, "serving": true, "terminating": false}})
            })
            .collect()
    }

    // ---- policies ------------------------------------------------------------------------------------------

    /// Makes or changes a NetworkPolicy.
    pub fn policy(&self, name: &str, spec: &Value) {
        let object = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
        if self.api.get("networkpolicies", "default", name).is_some() {
            self.api.update("networkpolicies", object);
        } else {
            self.api.create("networkpolicies", object);
        }
    }
}

/// Of a pod or a node.
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The last part of a node's address, and the third one of its pods'.
fn number(node: &str) -> u8 {
    node.as_bytes()[0] - b'a' + 1
}

fn slice(service: &str, (port, number): (&str, u16), endpoints: &Value) -> Value {
    json!({"metadata": {"namespace": "default", "name": format!("{service}-abcde"),
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": port, "port": number, "protocol": "TCP"}], "endpoints": endpoints})
}

/// A pod that tells whoever asks its name and the client's address, and has a file of a megabyte.
fn script(name: &str) -> String {
    let [first, second] = PORTS;
    format!(
        "mkdir /www/cgi-bin && printf '#!/bin/sh\\necho\\necho \"{name} $REMOTE_ADDR\"\\n' >/www/cgi-bin/who && chmod +x /www/cgi-bin/who && \
         head -c 1000000 /dev/zero >/www/megabyte && httpd -p 0.0.0.0:{second} -h /www && exec httpd -f -p 0.0.0.0:{first} -h /www"
    )
}

/// An archive with the image of the pods.
fn archive(dir: &Path) -> PathBuf {
    let archive = dir.join("images.tar");
    let script = format!(
        "set -euo pipefail; DIR=$1 here=$2; . \"$here/images.sh\"; \
         own() {{ image {IMAGE} '\"Env\":[\"PATH=/bin\"],\"Cmd\":[\"sh\"]' \"$1\"; }}; archive own \"$3\""
    );
    let made = Command::new("bash")
        .args(["-c", &script, "images"])
        .args([dir, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env")), &archive])
        .stdin(Stdio::null())
        .status()
        .expect("bash is there");
    assert!(made.success(), "the images: {made}");
    archive
}
