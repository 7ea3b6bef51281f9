use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;

fn pod(spec: &Value, status: &Value) -> Pod {
    let mut spec = spec.clone();
    if spec.get("containers").is_none() {
        spec["containers"] = json!([]);
    }
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
}

fn list(value: &Value) -> Amounts {
    serde_json::from_value(value.clone()).unwrap()
}

/// As one line: `cpu 1 memory 2 disk 3 foo.com/bar 4`.
fn shown(resources: &Resources) -> String {
    let Resources { milli_cpu, memory, ephemeral_storage, pods: _, scalars } = resources;
    let mut text = format!("cpu {milli_cpu} memory {memory} disk {ephemeral_storage}");
    for (name, value) in scalars {
        let _ = write!(text, " {name} {value}");
    }
    text
}

fn taken(pod: &Pod) -> String {
    let mut sum = Resources::default();
    sum.add(&requested(pod));
    shown(&sum)
}

fn container(name: &str, requests: &Value) -> Value {
    json!({"name": name, "resources": {"requests": requests}})
}

fn sidecar(name: &str, requests: &Value) -> Value {
    let mut container = container(name, requests);
    container["restartPolicy"] = json!("Always");
    container
}

#[test]
fn names_that_count() {
    for (name, scalar, extended) in [
        ("cpu", false, false),
        ("pods", false, false),
        ("storage", false, false),
        ("foo", false, false),
        ("foo.com/bar", true, true),
        ("foo.com/bar_B.c-d", true, true),
        ("requests.foo.com/bar", false, false),
        ("foo.com/", false, false),
        ("/bar", false, false),
        ("foo.com/bar/baz", false, false),
        ("Foo.com/bar", false, false),
        ("kubernetes.io/foo", true, false),
        ("foo.kubernetes.io/bar", true, false),
        ("deviceclass.resource.kubernetes.io/gpu", true, false),
        ("hugepages-2Mi", true, false),
        ("hugepages-", true, false),
        ("attachable-volumes-x", true, false),
        ("", false, false),
    ] {
        assert_eq!((is_scalar(name), is_extended(name)), (scalar, extended), "{name}");
    }
}

#[test]
fn an_allocatable_list_is_read_in_whole_numbers() {
    let read = Resources::of(&list(
        &json!({"cpu": "1500m", "memory": "1Gi", "ephemeral-storage": "1.5", "pods": "110",
        "hugepages-2Mi": "4Mi", "foo.com/bar": "3", "foo": "9", "kubernetes.io/lots": "lots"}),
    ));
    assert_eq!(
        shown(&read),
        "cpu 1500 memory 1073741824 disk 2 foo.com/bar 3 hugepages-2Mi 4194304 kubernetes.io/lots 0"
    );
    assert_eq!(read.pods, 110);
}

/// The requests of a new pod, and of the same pod once it runs.
#[test]
fn sums_are_the_schedulers() {
    let cpu = |cpu: &str| json!({"cpu": cpu});
    let one = container("a", &json!({"cpu": "1", "memory": "100"}));
    for (name, spec, expected) in [
        ("nothing", json!({}), "cpu 0 memory 0 disk 0"),
        (
            "app containers run together",
            json!({"containers": [one, container("b", &json!({"cpu": "250m", "ephemeral-storage": "7"}))]}),
            "cpu 1250 memory 100 disk 7",
        ),
        (
            "init containers run one after the other",
            json!({"containers": [one], "initContainers": [
                container("i", &json!({"cpu": "2", "memory": "50"})), container("j", &json!({"cpu": "1500m", "memory": "300"}))]}),
            "cpu 2000 memory 300 disk 0",
        ),
        (
            "sidecars run beside all that comes after them",
            json!({"containers": [one], "initContainers": [
                container("i", &cpu("3")), sidecar("s", &cpu("2")), container("j", &cpu("1500m"))]}),
            "cpu 3500 memory 100 disk 0",
        ),
        (
            "overhead is added",
            json!({"containers": [one], "overhead": {"cpu": "10m", "memory": "5", "foo.com/bar": "1"}}),
            "cpu 1010 memory 105 disk 0 foo.com/bar 1",
        ),
        (
            "the pod's own resources stand for its containers', its overhead comes on top",
            json!({"containers": [container("a", &json!({"cpu": "1", "memory": "100", "hugepages-2Mi": "2Mi"}))],
                "resources": {"requests": {"cpu": "500m", "hugepages-2Mi": "4Mi"}, "limits": {"memory": "1"}},
                "overhead": {"cpu": "1m"}}),
            "cpu 501 memory 100 disk 0 hugepages-2Mi 4194304",
        ),
        (
            "disk cannot be on the pod",
            json!({"containers": [container("a", &json!({"ephemeral-storage": "1"}))],
                "resources": {"requests": {"ephemeral-storage": "9"}}}),
            "cpu 0 memory 0 disk 1",
        ),
        (
            "limits do not count",
            json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}),
            "cpu 0 memory 0 disk 0",
        ),
        (
            "names that count for nothing",
            json!({"containers": [container("a", &json!({"foo": "1", "pods": "5"}))]}),
            "cpu 0 memory 0 disk 0",
        ),
        (
            "fractions are rounded up",
            json!({"containers": [container("a", &json!({"cpu": "0.1m", "memory": "0.1"}))]}),
            "cpu 1 memory 1 disk 0",
        ),
    ] {
        let pod = pod(&spec, &json!({}));
        let there = Resources::of(&list(&json!({"foo.com/bar": "0"})));
        let wanted = wanted(&pod, &there);
        assert_eq!(shown(&wanted), expected, "{name}");
        assert_eq!(taken(&pod), expected, "{name}, of one that is here");
        assert_eq!(wanted.pods, 0, "{name}");
    }
}

#[test]
fn below_nothing_a_pod_wants_nothing() {
    let pod =
        pod(&json!({"containers": [container("a", &json!({"cpu": "-1", "foo.com/bar": "-1"}))]}), &json!({}));
    let there = Resources::of(&list(&json!({"foo.com/bar": "0"})));
    assert_eq!(shown(&wanted(&pod, &there)), "cpu 0 memory 0 disk 0 foo.com/bar 0");
    assert_eq!(taken(&pod), "cpu -1000 memory 0 disk 0 foo.com/bar -1", "as the kubelet");
}

/// The kubelet's own rows (`TestRemoveMissingExtendedResources`).
#[test]
fn extended_resources_that_the_node_has_never_heard_of_do_not_count() {
    let (foo, class) = ("foo.com/bar", "deviceclass.resource.kubernetes.io/bar");
    let claimed = |resource: &str, container: &str| {
        json!({"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [
            {"resourceName": resource, "containerName": container, "requestName": "r"}]}})
    };
    for (name, asked, status, allocatable, counts) in [
        ("the node has it", foo, json!({}), json!({foo: "1"}), true),
        ("the node has another", foo, json!({}), json!({"foo.com/baz": "1"}), false),
        ("the node has none left", foo, json!({}), json!({foo: "0"}), true),
        ("the node has nothing", foo, json!({}), json!({}), false),
        ("devices stand for it, the node has none left", foo, claimed(foo, "a"), json!({foo: "0"}), false),
        ("devices stand for it, and nothing else", foo, claimed(foo, "a"), json!({}), false),
        ("devices of another container", foo, claimed(foo, "b"), json!({foo: "0"}), true),
        ("devices of another name", foo, claimed("foo.com/baz", "a"), json!({foo: "0"}), true),
        ("a class of devices", class, claimed(class, "a"), json!({}), false),
        ("a class of devices that nobody allocated", class, json!({}), json!({}), true),
        (
            "huge pages are no extended resource",
            "hugepages-2Mi",
            claimed("hugepages-2Mi", "a"),
            json!({}),
            true,
        ),
    ] {
        for list_of in ["containers", "initContainers"] {
            let pod = pod(&json!({list_of: [container("a", &json!({asked: "1"}))]}), &status);
            let wanted = wanted(&pod, &Resources::of(&list(&allocatable)));
            assert_eq!(wanted.scalars.contains_key(asked), counts, "{name}, {list_of}");
            assert!(requested(&pod).contains_key(asked), "{name}: it counts of one that is here");
        }
    }
}

#[test]
fn of_a_pod_being_resized_the_most_counts() {
    let spec = json!({"containers": [container("a", &json!({"cpu": "2"}))],
        "initContainers": [container("i", &json!({"cpu": "1"})), sidecar("s", &json!({"cpu": "1"}))]});
    let status = |name: &str, actual: &str, granted: &str| {
        json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": granted}})
    };
    let pending = |reason: &str| json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
    let mut bare = status("a", "9", "9");
    bare.as_object_mut().unwrap().remove("resources");
    for (name, given, expected) in [
        ("nothing is reported", json!({}), 3000),
        ("less is in use", json!({"containerStatuses": [status("a", "1", "1")]}), 3000),
        ("more is in use", json!({"containerStatuses": [status("a", "3", "1")]}), 4000),
        ("more is granted", json!({"containerStatuses": [status("a", "1", "4")]}), 5000),
        ("of another container", json!({"containerStatuses": [status("b", "9", "9")]}), 3000),
        ("a sidecar's", json!({"initContainerStatuses": [status("s", "3", "2")]}), 5000),
        (
            "an init container's does not count",
            json!({"initContainerStatuses": [status("i", "9", "9")]}),
            3000,
        ),
        ("without what is in use nothing is reported", json!({"containerStatuses": [bare]}), 3000),
        (
            "it will be",
            json!({"containerStatuses": [status("a", "1", "1")], "conditions": pending("Deferred")}),
            3000,
        ),
        (
            "it can never be",
            json!({"containerStatuses": [status("a", "1", "1")], "conditions": pending("Infeasible")}),
            2000,
        ),
    ] {
        let pod = pod(&spec, &given);
        assert_eq!(taken(&pod), format!("cpu {expected} memory 0 disk 0"), "{name}");
        assert_eq!(
            wanted(&pod, &Resources::default()).milli_cpu,
            3000,
            "{name}: of one to come the manifest counts"
        );
    }
    let spec = json!({"containers": [container("a", &json!({"memory": "9"}))], "resources": {"requests": {"cpu": "2"}}});
    for (name, given, expected) in [
        ("nothing is reported", json!({}), 2000),
        ("only granted", json!({"allocatedResources": {"cpu": "9"}}), 2000),
        ("in use", json!({"resources": {"requests": {"cpu": "3", "memory": "100"}}}), 3000),
        ("granted", json!({"resources": {}, "allocatedResources": {"cpu": "4"}}), 4000),
        ("it can never be", json!({"resources": {}, "conditions": pending("Infeasible")}), 0),
    ] {
        assert_eq!(
            taken(&pod(&spec, &given)),
            format!("cpu {expected} memory 9 disk 0"),
            "{name}, on the pod"
        );
    }
}

#[test]
fn what_ending_a_pod_gives_back() {
    let own = json!({"cpu": "1", "memory": "100", "ephemeral-storage": "3", "foo.com/bar": "2"});
    let plain = json!({"containers": [container("a", &own), container("b", &own)], "initContainers": [container("i", &json!({"cpu": "5"}))],
        "overhead": {"cpu": "1m", "memory": "1", "hugepages-2Mi": "1"}});
    let mut with_own = plain.clone();
    with_own["resources"] = json!({"requests": {"cpu": "3", "ephemeral-storage": "9"}});
    let mut limits_only = plain.clone();
    limits_only["resources"] = json!({"limits": {"cpu": "3"}});
    for (name, spec, cpu, memory, disk, bar) in [
        ("containers", &plain, 5001, 201, 6, 4),
        ("the pod's own", &with_own, 3001, 0, 0, 0),
        ("limits of the pod's own", &limits_only, 0, 0, 0, 0),
        ("none", &json!({"overhead": {"cpu": "1"}}), 0, 0, 0, 0),
    ] {
        let pod = pod(spec, &json!({}));
        let given = ["cpu", "memory", "ephemeral-storage", "foo.com/bar", "pods", "hugepages-2Mi", ""];
        assert_eq!(given.map(|name| given_back(&pod, name)), [cpu, memory, disk, bar, 1, 0, 0], "{name}");
    }
}

/// Every pair of sums of a small space: a resource is short when less than nothing would be left of it.
#[test]
fn short_is_what_is_asked_for_and_not_left() {
    let amounts = [-1, 0, 1, 2, 3, i64::MAX];
    let names = ["pods", "cpu", "memory", "ephemeral-storage", "foo.com/bar"];
    let set = |all: &mut Resources, name: &str, amount| match name {
        "pods" => all.pods = amount,
        "cpu" => all.milli_cpu = amount,
        "memory" => all.memory = amount,
        "ephemeral-storage" => all.ephemeral_storage = amount,
        other => all.scalars = [(other.into(), amount)].into(),
    };
    let mut short = 0;
    for name in names {
        for (wanted, capacity) in
            amounts.iter().flat_map(|wanted| amounts.map(|capacity| (*wanted, capacity)))
        {
            for used in amounts {
                // One more pod is requested in any case.
                let wanted = if name == "pods" { 1 } else { wanted };
                let mut there = Resources { pods: 1, ..Resources::default() };
                let (mut asked, mut taken) = (Resources::default(), Resources::default());
                set(&mut asked, name, wanted);
                set(&mut there, name, capacity);
                set(&mut taken, name, used);
                let found = shortages(&asked, &there, &taken);
                let lacks = wanted > 0 && i128::from(wanted) + i128::from(used) > i128::from(capacity);
                let shortage = Shortage { resource: name.into(), requested: wanted, used, capacity };
                assert_eq!(
                    found,
                    if lacks { vec![shortage] } else { Vec::new() },
                    "{name} {wanted} {capacity} {used}"
                );
                assert!(found.iter().all(|shortage| shortage.missing() > 0), "{found:?}");
                short += found.len();
            }
        }
    }
    assert!(short > 300, "{short}");
}

#[test]
fn shortages_are_told_in_order() {
    let wanted = Resources::of(&list(
        &json!({"cpu": "1", "memory": "1", "ephemeral-storage": "1", "hugepages-2Mi": "1",
        "foo.com/bar": "1", "foo.com/zero": "0"}),
    ));
    let found = shortages(&wanted, &Resources::default(), &Resources::default());
    let reasons: Vec<Cow<'static, str>> = found.iter().map(|short| short.rejection().reason).collect();
    assert_eq!(
        reasons,
        [
            "OutOfpods",
            "OutOfcpu",
            "OutOfmemory",
            "OutOfephemeral-storage",
            "OutOffoo.com/bar",
            "OutOfhugepages-2Mi"
        ]
    );
}
