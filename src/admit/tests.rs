use serde_json::{Value, json};

use super::*;

fn pod(uid: &str, metadata: &Value, spec: &Value) -> Pod {
    let (mut metadata, mut spec) = (metadata.clone(), spec.clone());
    metadata["uid"] = json!(uid);
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn asking(list: &Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": list}}]})
}

/// A node with 10 thousandths of a CPU, 20 bytes of memory and of disk, 32 pods, five of another resource and a taint.
struct Node {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    allocatable: Resources,
}

fn node() -> Node {
    let list = json!({"cpu": "10m", "memory": "20", "ephemeral-storage": "20", "pods": "32", "foo.com/bar": "5",
        "hugepages-2Mi": "4Mi"});
    let taint = |key: &str, effect: &str| Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    Node {
        labels: [("zone", "a"), ("kubernetes.io/os", "linux")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        taints: vec![taint("soft", "NoSchedule"), taint("softer", "PreferNoSchedule")],
        allocatable: Resources::of(&serde_json::from_value(list).unwrap()),
    }
}

impl Node {
    fn view(&self) -> NodeView<'_> {
        NodeView {
            name: "machine1",
            labels: &self.labels,
            taints: &self.taints,
            allocatable: &self.allocatable,
            declared_features: &["RestartAllContainersOnContainerExits"],
        }
    }

    fn admit(&self, pod: &Pod, others: &[Pod]) -> Result<(), Rejection> {
        admit(pod, &self.view(), &mut others.iter())
    }
}

/// Reason, message, and remedy.
fn words(result: Result<(), Rejection>) -> String {
    match result {
        Ok(()) => "admitted".to_owned(),
        Err(Rejection { reason, message, remedy }) => {
            let remedy = match remedy {
                Remedy::None => "",
                Remedy::FreshNode => " (look at the node)",
                Remedy::Preemption(_) => " (preempt)",
            };
            format!("{reason}: {message}{remedy}")
        }
    }
}

#[test]
fn each_rule_has_the_kubelets_words() {
    let none = json!({});
    let port =
        |port: i32| json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": port}]}]});
    let here = [
        pod("a", &none, &asking(&json!({"cpu": "5m", "memory": "19", "foo.com/bar": "3"}))),
        pod("b", &none, &port(123)),
    ];
    let no_execute = Taint { key: "hard".to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() };
    let plain = node();
    let mut tainted = node();
    tainted.taints.push(no_execute);
    let mut full = node();
    full.allocatable.pods = 2;
    let selector = |zone: &str| json!({"nodeSelector": {"zone": zone}});
    let os_label = |os: &str| json!({"labels": {"kubernetes.io/os": os}});
    let static_pod = json!({"annotations": {"kubernetes.io/config.source": "file"}});
    let restart_all = json!({"initContainers": [{"name": "i", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]}]});
    let users = json!({"hostNetwork": true, "hostUsers": false});
    let rows: [(&str, &Node, Value, Value, &str); 37] = [
        ("nothing asked for", &plain, none.clone(), none.clone(), "admitted"),
        (
            "all that is left",
            &plain,
            none.clone(),
            asking(
                &json!({"cpu": "5m", "memory": "1", "ephemeral-storage": "20", "foo.com/bar": "2", "hugepages-2Mi": "4Mi"}),
            ),
            "admitted",
        ),
        (
            "too much CPU and memory: CPU is reported",
            &plain,
            none.clone(),
            asking(&json!({"cpu": "8m", "memory": "10"})),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 8, used: 5, capacity: 10",
        ),
        (
            "too much memory",
            &plain,
            none.clone(),
            asking(&json!({"memory": "2"})),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 2, used: 19, capacity: 20",
        ),
        (
            "too much disk",
            &plain,
            none.clone(),
            asking(&json!({"ephemeral-storage": "21"})),
            "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 21, used: 0, capacity: 20",
        ),
        (
            "too many pods, which is reported first",
            &full,
            none.clone(),
            asking(&json!({"cpu": "8m"})),
            "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
        ),
        (
            "too much of an extended resource",
            &plain,
            none.clone(),
            asking(&json!({"foo.com/bar": "3"})),
            "OutOffoo.com/bar: Node didn't have enough resource: foo.com/bar, requested: 3, used: 3, capacity: 5",
        ),
        (
            "an extended resource unknown here",
            &plain,
            none.clone(),
            asking(&json!({"foo.com/baz": "3"})),
            "admitted",
        ),
        (
            "huge pages the node does not have",
            &plain,
            none.clone(),
            asking(&json!({"hugepages-1Gi": "1Gi"})),
            "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0",
        ),
        ("a selector that matches", &plain, none.clone(), selector("a"), "admitted"),
        (
            "a selector that does not",
            &plain,
            none.clone(),
            selector("b"),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector (look at the node)",
        ),
        (
            "an affinity that does not match",
            &plain,
            none.clone(),
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["machine2"]}]}]}}}}),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector (look at the node)",
        ),
        (
            "a selector and another node's name: the node's labels are not all",
            &plain,
            none.clone(),
            json!({"nodeSelector": {"zone": "b"}, "nodeName": "machine2"}),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            "a selector and too much CPU",
            &plain,
            none.clone(),
            json!({"nodeSelector": {"zone": "b"}, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 5, capacity: 10",
        ),
        ("bound to this node", &plain, none.clone(), json!({"nodeName": "machine1"}), "admitted"),
        ("an empty name is any node's", &plain, none.clone(), json!({"nodeName": ""}), "admitted"),
        (
            "bound to another node",
            &plain,
            none.clone(),
            json!({"nodeName": "machine2"}),
            "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        ("a port that is free", &plain, none.clone(), port(124), "admitted"),
        (
            "a port that is taken",
            &plain,
            none.clone(),
            port(123),
            "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
        (
            "a taint that is not tolerated",
            &tainted,
            none.clone(),
            none.clone(),
            "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
        (
            "a taint that is tolerated",
            &tainted,
            none.clone(),
            json!({"tolerations": [{"key": "hard"}]}),
            "admitted",
        ),
        ("a static pod, whatever the taints", &tainted, static_pod.clone(), none.clone(), "admitted"),
        (
            "a static pod too has to match",
            &plain,
            static_pod.clone(),
            selector("b"),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector (look at the node)",
        ),
        (
            "a static pod is critical",
            &plain,
            static_pod,
            asking(&json!({"cpu": "6m"})),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 6, used: 5, capacity: 10 (preempt)",
        ),
        (
            "a critical pod that lacks resources only",
            &full,
            none.clone(),
            json!({"priority": 2_000_000_000, "containers": [{"name": "c", "resources": {"requests": {"memory": "2"}}}]}),
            "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2 (preempt)",
        ),
        (
            "one that nearly is critical",
            &full,
            none.clone(),
            json!({"priority": 1_999_999_999}),
            "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
        ),
        (
            "a critical pod that does not match either",
            &full,
            none.clone(),
            json!({"priority": 2_000_000_000, "nodeSelector": {"zone": "b"}}),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        ("the label of this system", &plain, os_label("linux"), none.clone(), "admitted"),
        (
            "the label of another system, before all else",
            &full,
            os_label("windows"),
            json!({"os": {"name": "windows"}}),
            "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        ("for this system", &plain, none.clone(), json!({"os": {"name": "linux"}}), "admitted"),
        (
            "for another system, before all else",
            &full,
            none.clone(),
            json!({"os": {"name": "windows"}, "nodeName": "machine2"}),
            "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
        ),
        ("a feature the node declares", &plain, none.clone(), restart_all, "admitted"),
        (
            "a feature the node does not declare",
            &plain,
            none.clone(),
            users.clone(),
            "PodFeatureUnsupported: Pod requires node features that are not available: UserNamespacesHostNetworkSupport",
        ),
        ("its halves are no feature", &plain, none.clone(), json!({"hostNetwork": true}), "admitted"),
        ("its halves are no feature either", &plain, none.clone(), json!({"hostUsers": false}), "admitted"),
        (
            "a feature, after all else",
            &plain,
            none.clone(),
            json!({"hostNetwork": true, "hostUsers": false, "nodeName": "machine2"}),
            "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (
            "a feature, before anybody ends for the pod",
            &full,
            none,
            json!({"hostNetwork": true, "hostUsers": false, "priority": 2_000_000_000}),
            "PodFeatureUnsupported: Pod requires node features that are not available: UserNamespacesHostNetworkSupport",
        ),
    ];
    for (name, node, metadata, spec, expected) in rows {
        assert_eq!(words(node.admit(&pod("new", &metadata, &spec), &here)), expected, "{name}");
    }
    let mut needs_both = users;
    needs_both["containers"] =
        json!([{"name": "c", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]);
    let bare = NodeView { declared_features: &[], ..plain.view() };
    let both = admit(&pod("new", &json!({}), &needs_both), &bare, &mut std::iter::empty());
    assert_eq!(
        words(both),
        "PodFeatureUnsupported: Pod requires node features that are not available: \
         RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport"
    );
}

/// Every subset of failing rules, for both kinds of pods: which of them is reported, and the remedy.
#[test]
fn of_all_that_fails_one_is_told() {
    let names = [
        "OutOfpods",
        "OutOfcpu",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "PodFeatureUnsupported",
    ];
    for set in 0..1 << names.len() {
        let fails =
            |name: &str| names.iter().position(|known| *known == name).is_some_and(|bit| set >> bit & 1 == 1);
        for critical in [false, true] {
            let mut node = node();
            if fails("OutOfpods") {
                node.allocatable.pods = 1;
            }
            if fails("TaintToleration") {
                node.taints.push(Taint { effect: "NoExecute".to_owned(), ..Taint::default() });
            }
            let cpu = if fails("OutOfcpu") { "11m" } else { "10m" };
            let port = if fails("NodePorts") { 80 } else { 81 };
            let mut spec = json!({"priority": if critical { 2_000_000_000 } else { 0 },
                "nodeName": if fails("NodeName") { "machine2" } else { "machine1" },
                "nodeSelector": {"zone": if fails("NodeAffinity") { "b" } else { "a" }},
                "containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": port}],
                    "resources": {"requests": {"cpu": cpu}}}]});
            if fails("PodFeatureUnsupported") {
                spec["hostNetwork"] = json!(true);
                spec["hostUsers"] = json!(false);
            }
            let other =
                json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]});
            let result = node.admit(&pod("new", &json!({}), &spec), &[pod("a", &json!({}), &other)]);
            let failed: Vec<&str> = names.iter().copied().filter(|name| fails(name)).collect();
            let others = failed.iter().copied().find(|name| !name.starts_with("OutOf"));
            let expected =
                if critical { others.or(failed.first().copied()) } else { failed.first().copied() };
            assert_eq!(
                result.as_ref().err().map(|rejection| &*rejection.reason),
                expected,
                "{failed:?} {critical}"
            );
            let Err(rejection) = result else { continue };
            let short = failed.iter().filter(|name| name.starts_with("OutOf")).count();
            // The kubelet checks features only after the other rules: they do not prevent it from reading the node again.
            let labels = failed.iter().all(|name| ["NodeAffinity", "PodFeatureUnsupported"].contains(name))
                && fails("NodeAffinity");
            match rejection.remedy {
                Remedy::None => {
                    assert!(!(labels || critical && short == failed.len()), "{failed:?} {critical}");
                }
                Remedy::FreshNode => assert!(labels, "{failed:?} {critical}"),
                Remedy::Preemption(shortages) => {
                    assert!(critical && short == failed.len() && shortages.len() == short, "{failed:?}");
                }
            }
        }
    }
}

#[test]
fn the_pod_itself_is_none_of_the_others() {
    let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "6m"}},
        "ports": [{"containerPort": 1, "hostPort": 80}]}]});
    let node = node();
    let new = pod("new", &json!({}), &spec);
    assert_eq!(words(node.admit(&new, std::slice::from_ref(&new))), "admitted");
    let twin = pod("twin", &json!({}), &spec);
    let rejection = words(node.admit(&new, &[new.clone(), twin]));
    assert_eq!(
        rejection,
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 6, used: 6, capacity: 10"
    );
}

#[test]
fn a_pod_is_short_as_long_as_others_have_what_it_needs() {
    let node = node();
    let new = pod(
        "new",
        &json!({"annotations": {"kubernetes.io/config.source": "file"}}),
        &asking(&json!({"cpu": "6m"})),
    );
    let mut others = vec![
        pod("a", &json!({}), &asking(&json!({"cpu": "2m"}))),
        pod("b", &json!({}), &asking(&json!({"cpu": "3m"}))),
    ];
    let Err(Rejection { remedy: Remedy::Preemption(shortages), .. }) = node.admit(&new, &others) else {
        panic!("it is critical and does not fit")
    };
    let seen: Vec<&Pod> = others.iter().collect();
    assert_eq!(preempt::victims(&new, &seen, &shortages), Ok(vec![0]));
    others.remove(0);
    assert_eq!(words(node.admit(&new, &others)), "admitted");
}

#[test]
fn a_rejected_pod_has_failed_with_the_words() {
    let node = node();
    let new = pod("new", &json!({}), &asking(&json!({"cpu": "1"})));
    let rejection = node.admit(&new, &[]).unwrap_err();
    let status = serde_json::to_value(rejection.status(&new)).unwrap();
    let expected = json!({"qosClass": "Burstable", "phase": "Failed", "reason": "OutOfcpu",
        "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 0, capacity: 10"});
    assert_eq!(status, expected);
}

#[test]
fn who_is_asked_about_and_when() {
    for (phase, ended) in [
        (json!(null), false),
        (json!("Pending"), false),
        (json!("Running"), false),
        (json!("Unknown"), false),
        (json!("Failed"), true),
        (json!("Succeeded"), true),
    ] {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "status": {"phase": phase}})).unwrap();
        assert_eq!(is_ended(&pod), ended, "{phase}");
    }
    let made = |time: Option<&str>| pod("p", &json!({"creationTimestamp": time}), &json!({}));
    let mut pods = [made(Some("2026-01-02T00:00:00Z")), made(Some("2026-01-01T23:59:59Z")), made(None)];
    pods.sort_by(first_come);
    let times = pods.map(|pod| pod.metadata.creation_timestamp.map(|time| time.0.to_string()));
    assert_eq!(
        times,
        [None, Some("2026-01-01T23:59:59Z".to_owned()), Some("2026-01-02T00:00:00Z".to_owned())]
    );
}

#[test]
fn a_pod_without_a_manifest_asks_for_nothing() {
    assert_eq!(words(node().admit(&Pod::default(), &[Pod::default()])), "admitted");
    let mut full = node();
    full.allocatable.pods = 0;
    assert!(full.admit(&Pod::default(), &[]).is_err());
}

/// Outside input of any text never causes a panic.
#[test]
fn hostile_text_is_survived() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let alphabet: Vec<char> = "/.-_+019aeEiKmMGnZé\u{2028}\0".chars().collect();
    let words = [
        "In",
        "NotIn",
        "Gt",
        "Lt",
        "Exists",
        "Equal",
        "NoExecute",
        "hugepages-",
        "foo.com/bar",
        "kubernetes.io/os",
        "9223372036854775807",
        "-9223372036854775808",
        "1e99",
        "Always",
        "metadata.name",
        "UDP",
        "0.0.0.0",
        "cpu",
        "memory",
    ];
    for _ in 0..crate::cases(1000) {
        let mut text = || {
            if random.u8(..3) > 0 {
                return words[random.usize(..words.len())].to_owned();
            }
            let length = random.usize(..12);
            (0..length).map(|_| alphabet[random.usize(..alphabet.len())]).collect()
        };
        let mut list = || json!({text(): text(), "cpu": text(), "memory": text(), "foo.com/bar": text(), "pods": text()});
        let lists: Vec<Value> = (0..8).map(|_| list()).collect();
        let mut requirement = || json!({"key": text(), "operator": text(), "values": [text()]});
        let (expression, field) = (requirement(), requirement());
        let port =
            i32::from_ne_bytes(text().bytes().chain([0; 4]).take(4).collect::<Vec<_>>().try_into().unwrap());
        let container = |name: &str, policy: String, requests: &Value| {
            json!({"name": name, "restartPolicy": policy, "resources": {"requests": requests, "limits": requests},
                "ports": [{"containerPort": port, "hostPort": port, "protocol": name, "hostIP": name}],
                "restartPolicyRules": [{"action": name}]})
        };
        let reported = json!([{"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": {"requests": lists[0]}, "allocatedResources": lists[1]}]);
        let made = json!({
            "metadata": {"uid": text(), "labels": {text(): text()}, "annotations": {"kubernetes.io/config.source": text()}},
            "spec": {"nodeName": text(), "nodeSelector": {text(): text()}, "priority": port, "os": {"name": "linux"},
                "containers": [container("a", text(), &lists[2]), container("b", text(), &lists[3])],
                "initContainers": [container("i", text(), &lists[4])], "overhead": lists[5],
                "resources": {"requests": lists[6]},
                "tolerations": [{"key": text(), "operator": text(), "value": text(), "effect": text()}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [expression], "matchFields": [field]}]}}}},
            "status": {"phase": text(), "qosClass": text(), "containerStatuses": reported, "resources": {"requests": lists[0]},
                "allocatedResources": lists[1], "conditions": [{"type": text(), "status": text()}]}
        });
        let made: Pod = serde_json::from_value(made).unwrap();
        let mut other = made.clone();
        other.metadata.uid = Some("other".to_owned());
        other.metadata.annotations = None;
        other.spec.as_mut().unwrap().priority = None;
        let allocatable = Resources::of(&serde_json::from_value(lists[7].clone()).unwrap());
        let labels = [(text(), text())].into();
        let taints = [Taint { key: text(), value: Some(text()), effect: text(), time_added: None }];
        let (labels, taints, allocatable) = (&labels, &taints, &allocatable);
        let view = NodeView { name: "n", labels, taints, allocatable, declared_features: &[] };
        if let Err(rejection) = admit(&made, &view, &mut [&other, &other].into_iter()) {
            let _ = rejection.status(&made);
        }
        let short = |resource: &String| Shortage {
            resource: resource.as_str().into(),
            requested: i64::from(port),
            used: i64::MAX,
            capacity: i64::MIN,
        };
        let shortages: Vec<Shortage> = lists[2].as_object().unwrap().keys().map(short).collect();
        let _ = preempt::victims(&made, &[&other, &other, &made], &shortages);
    }
}
