//! What all of a node of k3s costs, as `smolet agent` runs it: agent, service proxy, flannel and network policies in one process, with
//! ten pods in a cluster of a thousand Services. In a network namespace of its own, on the kernel's real tables and links.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::cri::EventService;

use crate::agent::{Agent, PATIENCE, WATCHED};
use crate::common::TempDir;
use crate::common::apiserver::ApiServer;
use crate::common::fake::Fake;
use crate::common::namespace::{in_namespaces, lease, make_link};
use crate::supervisor::K3s;

/// The promises.
const MEMORY_KIB_MAX: u64 = 12 * 1024;
const IDLE_CPU_MAX: Duration = Duration::from_millis(120);
const CHANGE_CPU_MAX: Duration = Duration::from_millis(10);

const SERVICES: usize = 1000;
const ENDPOINTS: usize = 10;
/// Besides this one.
const NODES: usize = 5;
const POLICIES: usize = 5;
/// On other nodes, in the namespace of the policies.
const OTHER_PODS: usize = 500;
/// Of this node, one of them by a manifest.
const PODS: usize = 10;
/// What the start leaves to be done is done by then.
const SETTLE: Duration = Duration::from_secs(12);
const QUIET: Duration = Duration::from_mins(1);
/// Changes of an EndpointSlice that are measured.
const CHANGES: usize = 40;
/// Resolution of the kernel's account of a process.
const TICK: Duration = Duration::from_millis(10);

/// What controllers leave in an object.
fn managed(fields: &Value) -> Value {
    json!([{"manager": "k3s", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": fields}])
}

fn service(number: usize) -> Value {
    let (name, ip) = (format!("web-{number:04}"), format!("10.43.{}.{}", 1 + number / 250, 1 + number % 250));
    json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": name, "tier": "backend"},
            "managedFields": managed(&json!({"f:spec": {"f:internalTrafficPolicy": {}, "f:ports": {
                "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}},
                "f:selector": {}, "f:sessionAffinity": {}, "f:type": {}}}))},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "type": "ClusterIP", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}})
}

/// An endpoint of a Service, on one of the other nodes.
fn endpoint(service: usize, number: usize) -> Value {
    let of = service * ENDPOINTS + number;
    let node = of % NODES;
    json!({"addresses": [format!("10.42.{}.{}", 2 + of / 250, 1 + of % 250)],
        "conditions": {"ready": true, "serving": true, "terminating": false}, "nodeName": format!("other-{node}"), "zone": "home",
        "targetRef": {"kind": "Pod", "namespace": "shop", "name": format!("web-{service:04}-7c9d8b6f5-{number:05}"),
            "uid": format!("0b7e0a52-4a0c-4c62-9f0b-{of:012}")}})
}

fn slice(number: usize) -> Value {
    let name = format!("web-{number:04}");
    let endpoints: Vec<Value> = (0..ENDPOINTS).map(|of| endpoint(number, of)).collect();
    json!({"metadata": {"namespace": "shop", "name": slice_name(number), "generateName": format!("{name}-"),
            "labels": {"kubernetes.io/service-name": name, "app": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name, "controller": true, "blockOwnerDeletion": true,
                "uid": format!("8f0e6f52-4a0c-4c62-9f0b-{number:012}")}],
            "managedFields": managed(&json!({"f:addressType": {}, "f:endpoints": {}, "f:metadata": {"f:labels": {}}, "f:ports": {}}))},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints})
}

fn slice_name(number: usize) -> String {
    format!("web-{number:04}-x7k2p")
}

/// As flanneld leaves it.
fn node(number: usize) -> Value {
    let prefix = "flannel.alpha.coreos.com/";
    let annotations = json!({
        format!("{prefix}backend-data"): format!(r#"{{"VNI":1,"VtepMAC":"5a:00:00:00:00:0{number}"}}"#),
        format!("{prefix}backend-type"): "vxlan",
        format!("{prefix}kube-subnet-manager"): "true",
        format!("{prefix}public-ip"): format!("192.168.7.{}", 2 + number)});
    let cidr = format!("10.42.{}.0/24", 100 + number);
    json!({"metadata": {"name": format!("other-{number}"), "annotations": annotations},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}})
}

fn policy(number: usize) -> Value {
    json!({"metadata": {"namespace": "default", "name": format!("allow-{number}")},
        "spec": {"podSelector": {"matchLabels": {"app": "own"}}, "policyTypes": ["Ingress"], "ingress": [{
            "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": format!("other-{number}")}}}],
            "ports": [{"port": 8080 + number, "protocol": "TCP"}]}]}})
}

fn fill(api: &ApiServer) {
    (0..SERVICES).for_each(|number| {
        api.create("services", service(number));
        api.create("endpointslices", slice(number));
    });
    (0..NODES).for_each(|number| drop(api.create("nodes", node(number))));
    (0..POLICIES).for_each(|number| drop(api.create("networkpolicies", policy(number))));
    for number in 0..OTHER_PODS {
        let (ip, name) =
            (format!("10.42.{}.{}", 100 + number % NODES, 2 + number / NODES), format!("other-{number}"));
        api.create("pods", json!({"metadata": {"namespace": "default", "name": name, "labels": {
                "app": format!("other-{}", number % POLICIES), "pod-template-hash": "5d9c6b9c4b"}},
            "spec": {"nodeName": format!("other-{}", number % NODES), "containers": [{"name": "app", "image": "busybox:1"}]}}));
        api.update_status(
            "pods",
            "default",
            &name,
            json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}),
        );
    }
}

/// The whole of a node, with what is around it.
struct Whole {
    agent: Agent,
    api: ApiServer,
    _k3s: K3s,
    _folder: TempDir,
}

impl Whole {
    fn join() -> Self {
        make_link();
        lease("192.168.7.1", "192.168.7.254");
        // The node's password and flannel's file have their places there.
        for dir in ["/etc", "/run"] {
            let mounted =
                Command::new("mount").args(["-t", "tmpfs", "tmpfs", dir]).status().expect("mount is there");
            assert!(mounted.success(), "{dir}: {mounted}");
        }
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").unwrap();
        let api = ApiServer::start();
        api.authorize_nodes();
        api.admit_accounts();
        fill(&api);
        let k3s = K3s::start(&api);
        // 10.42.0.0/16, as Go writes it.
        let range = json!({"IP": "10.42.0.0", "Mask": "//8AAA=="});
        k3s.state().settings =
            json!({"FlannelBackend": "vxlan", "ClusterIPRange": range, "ClusterIPRanges": [range]});
        let folder = TempDir::new();
        let path = |name: &str| folder.path().join(name).to_str().expect("a path of text").to_owned();
        fs::write(path("token"), k3s.token()).unwrap();
        // A kernel that has everything.
        for (setting, value) in
            [("bridge/bridge-nf-call-iptables", "1"), ("netfilter/nf_conntrack_max", "9999999")]
        {
            let file = folder.path().join("sys/net").join(setting);
            fs::create_dir_all(file.parent().expect("below a folder")).unwrap();
            fs::write(file, value).unwrap();
        }
        let (url, token, sys, cni) = (k3s.url(), path("token"), path("sys"), path("cni"));
        let flags = [
            "--server",
            &url,
            "--token-file",
            &token,
            "--service-proxy",
            "--flannel",
            "--network-policy",
            "--sysctl-root",
            &sys,
            "--cni-conf-dir",
            &cni,
        ];
        let fake = Fake::start_on_real_time();
        fake.tell_events(EventService::Containerd);
        fake.state().writes_logs = true;
        let agent = Agent::with(fake, WATCHED, &flags);
        let mut whole = Self { agent, api, _k3s: k3s, _folder: folder };
        whole.settle();
        whole
    }

    /// All of it is up, and the pods run.
    fn settle(&mut self) {
        let api = &self.api;
        self.agent.wait("its Node", |_| api.get("nodes", "", "gw").is_some());
        self.api.patch(
            "nodes",
            "",
            "gw",
            &json!({"spec": {"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24"]}}),
        );
        for number in 1..PODS {
            self.api.create(
                "pods",
                json!({"metadata": {"namespace": "default", "name": format!("own-{number}"),
                    "labels": {"app": "own"}},
                "spec": {"nodeName": "gw", "containers": [{"name": "app", "image": "busybox:1"}]}}),
            );
        }
        self.agent.wait("its pods", |agent| agent.fake.state().running().len() == PODS);
        let (services, endpoints) = (SERVICES + 1, SERVICES * ENDPOINTS);
        let line = format!("{services} services with {endpoints} endpoints are served");
        self.agent.wait("its services", |agent| agent.log().contains(&line));
        self.agent.wait("flannel's network", |_| {
            (0..NODES).all(|number| {
                shown("ip", &format!("route show 10.42.{}.0/24", 100 + number)).contains("flannel.1")
            })
        });
        self.agent.wait("network policies", |_| {
            shown("nft", "list table inet smolet-policy").matches("goto pods-").count() >= PODS - 1
        });
    }

    /// Processor time of the process, its ended threads included.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.agent.pid())).expect("it runs");
        // The name may hold spaces; behind it `utime` and `stime` are the 12th and 13th.
        let rest = stat.rsplit_once(')').expect("a name").1;
        let ticks =
            rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u32>().expect("ticks"));
        TICK * ticks.sum::<u32>()
    }
}

fn shown(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().expect("it is there");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Changes of the kernel's rules as nft(8) tells them, each line with its instant.
struct Monitor {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Monitor {
    fn start() -> Self {
        let mut child =
            Command::new("nft").arg("monitor").stdout(Stdio::piped()).spawn().expect("nftables is there");
        let (told, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = told.send((Instant::now(), line));
            }
        });
        Self { child, lines }
    }

    fn next(&self, time: Duration) -> Option<(Instant, String)> {
        self.lines.recv_timeout(time).ok()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_node_of_a_cluster_of_a_thousand_services_costs_no_more_than_promised() {
    let test = "cluster::a_node_of_a_cluster_of_a_thousand_services_costs_no_more_than_promised";
    if !in_namespaces(test, &["--net", "--mount"]) {
        return;
    }
    let begun = Instant::now();
    let whole = Whole::join();
    std::thread::sleep(SETTLE);
    let start = whole.cpu();
    println!(
        "{SERVICES} services: up after {} ms, {} ms of the processor",
        begun.elapsed().as_millis(),
        start.as_millis()
    );
    memory(&whole, "at rest");

    std::thread::sleep(QUIET);
    let idle = whole.cpu() - start;
    println!("{SERVICES} services: {} ms of the processor in a quiet minute", idle.as_millis());
    assert!(idle <= IDLE_CPU_MAX, "{idle:?}\n{}", whole.agent.ask("/top"));

    changes(&whole);
    memory(&whole, "after changes");
    let Whole { agent, api: _api, _k3s, _folder } = whole;
    agent.withstood("a thousand services");
}

fn memory(whole: &Whole, when: &str) {
    let (anonymous, all) = whole.agent.memory_at_worst_kib();
    println!(
        "{SERVICES} services: {when} {all} KiB with all of the program, {anonymous} KiB of it anonymous"
    );
    assert!(all <= MEMORY_KIB_MAX, "{when}: {all} KiB\n{}", whole.agent.ask("/top"));
}

/// An endpoint of a Service becomes another one, of one Service after the other.
fn changes(whole: &Whole) {
    let monitor = Monitor::start();
    // It reads all that is there before it tells of anything.
    let begun = Instant::now();
    let mut number = CHANGES;
    while monitor.next(Duration::from_millis(500)).is_none() {
        assert!(begun.elapsed() < PATIENCE, "nft tells of changes");
        replace(whole, number);
        number += 1;
    }
    while monitor.next(Duration::from_secs(1)).is_some() {}

    let before = whole.cpu();
    let (mut times, mut transactions) = (Vec::new(), 0);
    for number in 0..CHANGES {
        let at = Instant::now();
        let address = replace(whole, number);
        loop {
            let (told, line) = monitor.next(PATIENCE).expect("the kernel's rules change");
            if line.contains(&address) {
                times.push(told - at);
            }
            if line.contains("new generation") {
                transactions += 1;
                break;
            }
        }
    }
    while let Some((_, line)) = monitor.next(Duration::from_secs(1)) {
        transactions += usize::from(line.contains("new generation"));
    }
    let cpu = (whole.cpu() - before) / u32::try_from(CHANGES).expect("few");
    times.sort_unstable();
    println!(
        "{SERVICES} services: a change of an endpoint is in the kernel after {:.1} ms (median), {:.1} ms (longest); {:.2} ms of \
         the processor for each, {transactions} transactions for {CHANGES}",
        times[times.len() / 2].as_secs_f64() * 1e3,
        times[times.len() - 1].as_secs_f64() * 1e3,
        cpu.as_secs_f64() * 1e3
    );
    assert_eq!((times.len(), transactions), (CHANGES, CHANGES));
    assert!(cpu <= CHANGE_CPU_MAX, "{cpu:?} for each change");
}

/// One endpoint of that Service gets the address that is returned.
fn replace(whole: &Whole, number: usize) -> String {
    let mut endpoints: Vec<Value> = (0..ENDPOINTS).map(|of| endpoint(number, of)).collect();
    let address = format!("10.42.99.{}", 1 + number);
    endpoints[3]["addresses"] = json!([address]);
    whole.api.patch("endpointslices", "shop", &slice_name(number), &json!({"endpoints": endpoints}));
    address
}
