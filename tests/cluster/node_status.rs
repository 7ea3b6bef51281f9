//! What the Node says of the machine, of the runtime and of the agent, and the events on it.

use std::time::Duration;

use serde_json::{Value, json};
use smolet::config::{Config, Periods, Registration};
use smolet::model::Seconds;
use smolet::node::Stop;
use smolet::shutdown::{ShutdownGroup, ShutdownGroups};

use crate::world::{NODE, World, app};

/// A node that looks, and tells what changed, each second.
fn quick(world: &World) -> Config {
    let periods = Periods { look: Duration::from_secs(1), ..Periods::default() };
    let config = world.config();
    Config { registration: Registration { periods, ..config.registration.clone() }, ..config }
}

fn ready(world: &World) -> (String, String) {
    let node = world.node().unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap_or_default();
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

fn is_ready(world: &World) -> bool {
    ready(world).0 == "True"
}

/// The messages of the Node's events with that reason.
fn events(world: &World, reason: &str) -> Vec<String> {
    let all = world.api.list("events", "default");
    let of_node = |event: &&Value| event["involvedObject"]["kind"] == "Node" && event["reason"] == reason;
    all.iter().filter(of_node).map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_status_of_the_runtime_that_fails_or_hangs_is_patiently_waited_for() {
    let world = World::without_agent();
    world.start_with(quick(&world));
    world.until("the node is ready", is_ready);
    let asked = |world: &World| world.fake.count("Status");
    let before = asked(&world);
    world.fake.fail("Status", 3, 14, "the runtime restarts");
    world.until("it is asked again and again", |world| asked(world) >= before + 6);
    assert!(is_ready(&world) && events(&world, "NodeNotReady").is_empty(), "one that fails for a while");
    world.fake.hang("Status");
    world.until("one that hangs is down after a while", |world| {
        ready(world) == ("False".to_owned(), "container runtime is down".to_owned())
    });
    world.until("an event says so", |world| {
        events(world, "NodeNotReady") == [format!("Node {NODE} status is now: NodeNotReady")]
    });
    world.fake.heal("Status");
    world.fake.drop_connections();
    world.until("it is ready again", is_ready);
}

#[test]
fn the_version_of_a_runtime_that_was_upgraded_is_told() {
    let world = World::without_agent();
    world.start_with(quick(&world));
    let version = |world: &World| {
        let node = world.node().unwrap_or_default();
        node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap_or_default().to_owned()
    };
    world.until("the node is ready", |world| is_ready(world) && version(world) == "fake://1.0.0");
    world.fake.state().version = Some(("fake", "2.0.0"));
    world.fake.fail("Status", 1, 14, "the runtime restarts");
    world.until("the new version", |world| version(world) == "fake://2.0.0");
}

#[test]
fn a_node_that_shuts_down_is_not_ready_at_once() {
    let world = World::without_agent();
    let groups = vec![ShutdownGroup { priority: 0, grace: Seconds(30) }];
    world.start_with(Config { shutdown: ShutdownGroups::of_priorities(groups).unwrap(), ..world.config() });
    world.until("the node is ready", is_ready);
    world.tell(Stop::Prepare(None));
    world.until("it is not, for it shuts down", |world| {
        ready(world) == ("False".to_owned(), "node is shutting down".to_owned())
    });
    world.tell(Stop::Cancelled);
    world.until("it does not after all", is_ready);
    world.tell(Stop::Pods);
    world.until("it does", |world| ready(world).1 == "node is shutting down");
}

#[test]
fn a_start_is_told_by_events() {
    let world = World::without_agent();
    // Which knows no name servers of the cluster.
    world.start_with(world.config());
    world.until("the node is ready", is_ready);
    for reason in ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"] {
        world
            .until(reason, |world| events(world, reason) == [format!("Node {NODE} status is now: {reason}")]);
    }
    assert_eq!(events(&world, "Starting"), ["Starting kubelet."]);
    assert!(events(&world, "Rebooted").is_empty());
    world.bind("web", app());
    world.until("that there are no name servers of the cluster", |world| {
        !events(world, "MissingClusterDNS").is_empty()
    });
    let all = world.api.list("events", "default");
    let of_pod =
        |event: &&Value| event["reason"] == "MissingClusterDNS" && event["involvedObject"]["name"] == "web";
    let message = world.wait("an event of the pod", |world| {
        let all = world.api.list("events", "default");
        Some(all.iter().find(of_pod)?["message"].as_str().unwrap_or_default().to_owned())
    });
    assert!(message.starts_with("pod: \"web_default("), "{message} {all:?}");
    assert!(message.ends_with("Falling back to \"Default\" policy."), "{message}");
}

/// A Node that another agent has left.
fn left(status: Value) -> Value {
    json!({"metadata": {"name": NODE}, "status": status})
}

#[test]
fn as_many_pods_and_images_are_told_as_the_settings_have_it() {
    let world = World::without_agent();
    let config = Config { pods_per_core: Some(1), node_images: 1, ..quick(&world) };
    world.start_with(Config { cluster_dns: vec!["10.43.0.10".to_owned()], ..config });
    let node = world.wait("its images", |world| {
        world
            .node()
            .filter(|node| node["status"]["images"].as_array().is_some_and(|images| !images.is_empty()))
    });
    let status = &node["status"];
    assert_eq!(status["images"].as_array().map(Vec::len), Some(1), "of two");
    assert_eq!(status["capacity"]["pods"], status["capacity"]["cpu"]);
    let cpus: usize = status["capacity"]["cpu"].as_str().unwrap().parse().unwrap();
    let names: Vec<String> = (0..=cpus.min(109)).map(|number| format!("web{number}")).collect();
    for name in &names {
        world.bind(name, app());
    }
    let reason = |world: &World, name: &str| world.pod(name).unwrap()["status"]["reason"].clone();
    world.until("one is too many", |world| {
        names.iter().filter(|name| reason(world, name) == "OutOfpods").count() == 1
    });
    world.until("the others run", |world| {
        names.iter().filter(|name| world.is_ready(name)).count() == names.len() - 1
    });
}

#[test]
fn a_node_that_was_rebooted_says_so() {
    let world = World::without_agent();
    world.api.create("nodes", left(json!({"nodeInfo": {"bootID": "another", "kubeletVersion": "v1.36.2"}})));
    world.start();
    world.until("an event", |world| events(world, "Rebooted").len() == 1);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let expected = format!("Node {NODE} has been rebooted, boot id: {}", boot_id.trim());
    assert_eq!(events(&world, "Rebooted"), [expected]);
    world.stop();
    world.start();
    world.until("it has started twice", |world| world.api.count("POST", "/api/v1/nodes") >= 2);
    world.until("it is ready", is_ready);
    assert_eq!(events(&world, "Rebooted").len(), 1);
}

#[test]
fn extended_resources_of_a_former_kubelet_go_and_an_administrators_stay() {
    let world = World::without_agent();
    let amounts = json!({"cpu": "1", "example.com/gpu": "2", "hugepages-16Gi": "0"});
    let info = json!({"kubeletVersion": "v1.36.2"});
    world.api.create("nodes", left(json!({"capacity": amounts, "allocatable": amounts, "nodeInfo": info})));
    world.start_with(quick(&world));
    let has = |world: &World, name: &str| {
        let status = world.node().unwrap_or_default()["status"].clone();
        (status["capacity"][name].clone(), status["allocatable"][name].clone())
    };
    world.until("they are zeroed", |world| {
        is_ready(world) && has(world, "example.com/gpu") == (json!("0"), json!("0"))
    });
    assert_eq!(has(&world, "hugepages-16Gi"), (Value::Null, Value::Null), "no kernel has pages of that size");
    let given = json!({"status": {"capacity": {"example.com/dongle": "4"}}});
    world.api.patch("nodes", "", NODE, &given);
    world.stop();
    world.start_with(quick(&world));
    world.until("it is registered again, and its status told", |world| {
        let requests = world.api.requests();
        let of = |method: &str, path: &str| -> Vec<u64> {
            let fits = requests.iter().filter(|request| request.method == method && request.path == path);
            fits.map(|request| request.number).collect()
        };
        let registered = of("POST", "/api/v1/nodes").get(1).copied();
        let told = of("PATCH", &format!("/api/v1/nodes/{NODE}/status")).last().copied();
        registered.is_some() && told > registered
    });
    assert_eq!(has(&world, "example.com/dongle").0, "4");
}

#[test]
fn the_addresses_of_a_node_in_a_cloud_are_left_to_its_controller() {
    let world = World::without_agent();
    let config = quick(&world);
    let periods = Periods { report: Duration::from_secs(1), ..config.registration.periods };
    let addresses = vec!["10.1.2.3".parse().unwrap()];
    let registration =
        Registration { external_cloud: true, addresses, periods, ..config.registration.clone() };
    world.start_with(Config { registration, ..config });
    let told = |world: &World| world.api.count("PATCH", &format!("/api/v1/nodes/{NODE}/status"));
    world.until("it is told of", |world| told(world) > 0);
    let node = world.node().unwrap();
    assert_eq!(node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"], "10.1.2.3");
    let taint = &node["spec"]["taints"][0];
    assert_eq!(taint["key"], "node.cloudprovider.kubernetes.io/uninitialized");
    assert_eq!((&taint["value"], &taint["effect"]), (&json!("true"), &json!("NoSchedule")));
    assert_eq!(node["status"]["addresses"][0], json!({"type": "InternalIP", "address": "10.1.2.3"}));
    let addresses = json!([{"type": "ExternalIP", "address": "203.0.113.5"}]);
    world.api.patch("nodes", "", NODE, &json!({"status": {"addresses": addresses}}));
    let before = told(&world);
    world.until("it is told of again", |world| told(world) >= before + 2);
    let node = world.node().unwrap();
    assert_eq!(node["status"]["addresses"], json!([{"type": "ExternalIP", "address": "203.0.113.5"}]));
}

#[test]
fn the_machine_is_told_of_as_it_is() {
    let world = World::new();
    world.until("the node is ready", is_ready);
    let node = world.wait("the runtime's features", |world| {
        world.node().filter(|node| node["status"]["features"]["supplementalGroupsPolicy"].is_boolean())
    });
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let cpus: usize = online
        .trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            last.parse::<usize>().unwrap() - first.parse::<usize>().unwrap() + 1
        })
        .sum();
    assert_eq!(node["status"]["capacity"]["cpu"], cpus.to_string());
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").map_or(0, Iterator::count);
    let capacity = node["status"]["capacity"].as_object().unwrap();
    assert_eq!(capacity.keys().filter(|name| name.starts_with("hugepages-")).count(), sizes);
}
