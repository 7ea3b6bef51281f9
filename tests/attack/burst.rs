//! Memory of a node of a cluster, in a process that has lived through a burst: what came and went leaves no more behind than
//! the promise has room for.

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, CALM};
use crate::common::TempDir;
use crate::common::apiserver::ApiServer;
use crate::common::fake::{Fake, Program};

/// The promise: resident memory with 10 pods, whatever was before.
const TEN_PODS_KIB_MAX: u64 = 8 * 1024;
/// The same with 110 pods.
const ALL_PODS_KIB_MAX: u64 = 11 * 1024;
/// What a burst leaves to be done is done by then: the last statuses told, the checkpoint written, connections closed.
const SETTLE: Duration = Duration::from_secs(20);

struct Node {
    api: ApiServer,
    agent: Agent,
    _kubeconfig: TempDir,
}

impl Node {
    fn join() -> Self {
        let api = ApiServer::start();
        api.authorize_nodes();
        api.admit_accounts();
        let folder = TempDir::new();
        let kubeconfig = api.kubeconfig(folder.path(), "system:node:gw");
        let kubeconfig = kubeconfig.to_str().expect("a path of text");
        let fake = Fake::start_on_real_time();
        fake.state().writes_logs = true;
        fake.program("job", Program::exits(0, Duration::from_millis(10)));
        // A loopback address of its own for each: the port is the same.
        static NODES: AtomicU8 = AtomicU8::new(1);
        let address = format!("127.10.250.{}", NODES.fetch_add(1, Ordering::Relaxed));
        let flags = ["--kubeconfig", kubeconfig, "--address", &address, "--cluster-dns", "10.43.0.10"];
        let calm = fs::read_to_string(CALM).expect("it is there");
        let configuration = folder.path().join("calm.yaml");
        fs::write(&configuration, calm + "healthzPort: 0\n").expect("a file");
        let agent = Agent::with(fake, configuration.to_str().expect("a path of text"), &flags);
        Self { api, agent, _kubeconfig: folder }
    }

    /// A pod as a controller and the scheduler make it.
    fn bind(&self, name: &str, container: &str) {
        let restarts = if container == "job" { "Never" } else { "Always" };
        let manager = |manager: &str, operation: &str| {
            json!({"manager": manager, "operation": operation, "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {
                "f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}, "f:ownerReferences": {}},
                "f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                    "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                    "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {},
                    "f:securityContext": {}, "f:terminationGracePeriodSeconds": {}}}})
        };
        self.api.create("pods", json!({
            "metadata": {"name": name, "namespace": "default", "generateName": "web-5d9c6b9c4b-",
                "labels": {"app": container, "pod-template-hash": "5d9c6b9c4b"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9c6b9c4b", "controller": true,
                    "uid": "0b7e0a52-4a0c-4c62-9f0b-3d8b1b4a1c55", "blockOwnerDeletion": true}],
                "managedFields": [manager("kube-controller-manager", "Update"), manager("kubelet", "Update")]},
            "spec": {"nodeName": "gw", "restartPolicy": restarts, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": container, "image": "busybox:1"}],
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
        }));
    }

    /// Pods come or go until there are so many beside the good one.
    fn scale(&mut self, from: usize, to: usize) {
        (from..to).for_each(|number| self.bind(&format!("web-5d9c6b9c4b-{number:03}"), "app"));
        for number in to..from {
            self.api.delete("pods", "default", &format!("web-5d9c6b9c4b-{number:03}"), Some(1));
        }
        let api = &self.api;
        self.agent.wait("as many pods as are wanted", |_| api.list("pods", "default").len() == to + 1);
        let api = &self.api;
        self.agent.wait("their readiness", |_| ready(api) == to + 1);
    }

    /// Jobs come, succeed, and are deleted.
    fn jobs(&mut self, names: &[String]) {
        names.iter().for_each(|name| self.bind(name, "job"));
        let api = &self.api;
        let phase =
            |name: &String| api.get("pods", "default", name).map(|pod| pod["status"]["phase"].clone());
        self.agent.wait("their end", |_| names.iter().all(|name| phase(name) == Some("Succeeded".into())));
        for name in names {
            self.api.delete("pods", "default", name, Some(1));
        }
        let api = &self.api;
        self.agent
            .wait("their deletion", |_| names.iter().all(|name| api.get("pods", "default", name).is_none()));
    }

    /// Memory when nothing happens any more is within this.
    fn settles_within(&self, kib_max: u64, when: &str) {
        std::thread::sleep(SETTLE);
        let (anonymous, all) = self.agent.memory_at_worst_kib();
        println!("{when}: {all} KiB with all of the program, {anonymous} KiB of it anonymous");
        assert!(all <= kib_max, "{when}: {all} KiB\n{}", self.agent.ask("/top"));
    }
}

fn ready(api: &ApiServer) -> usize {
    let is_ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    api.list("pods", "default").iter().filter(|pod| is_ready(pod)).count()
}

#[test]
fn a_burst_of_pods_leaves_no_more_than_promised() {
    let mut node = Node::join();
    node.scale(0, 9);
    node.settles_within(TEN_PODS_KIB_MAX, "10 pods");
    node.scale(9, 109);
    node.settles_within(ALL_PODS_KIB_MAX, "110 pods");
    node.scale(109, 9);
    node.settles_within(TEN_PODS_KIB_MAX, "10 pods after 110");
}

#[test]
fn five_hundred_jobs_leave_no_more_than_promised() {
    let mut node = Node::join();
    node.scale(0, 29);
    for wave in 0..10 {
        let names: Vec<String> = (0..50).map(|number| format!("job-{wave}-{number:02}")).collect();
        node.jobs(&names);
    }
    node.scale(29, 9);
    node.settles_within(TEN_PODS_KIB_MAX, "10 pods after 500 jobs");
}
