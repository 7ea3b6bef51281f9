//! Readiness gates: conditions that others set.

use serde_json::{Value, json};

use crate::world::{World, app};

const GATE: &str = "example.com/balanced";

fn conditions(world: &World) -> Vec<Value> {
    world.pod("web").unwrap_or_default()["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

fn condition(world: &World, kind: &str) -> Value {
    conditions(world).into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// As a controller of the cluster: the condition, with a word of its own.
fn set(world: &World, status: Option<&str>) {
    let mut all = conditions(world);
    all.retain(|condition| condition["type"] != GATE);
    all.extend(status.map(|status| json!({"type": GATE, "status": status, "reason": "TheController"})));
    world.api.patch("pods", "default", "web", &json!({"status": {"conditions": all}}));
}

fn ready_is(world: &World, status: &str, message: &str) {
    world.until(&format!("Ready is {status}: {message}"), |world| {
        let ready = condition(world, "Ready");
        ready["status"] == status && ready["message"].as_str().unwrap_or_default() == message
    });
}

#[test]
fn a_pod_is_ready_when_its_gates_are_open() {
    let world = World::new();
    let mut spec = app();
    spec["readinessGates"] = json!([{"conditionType": GATE}]);
    world.bind("web", spec);
    world.until("its containers are ready", |world| condition(world, "ContainersReady")["status"] == "True");
    let missing = format!("corresponding condition of pod readiness gate {GATE:?} does not exist.");
    let closed = format!("the status of pod readiness gate {GATE:?} is not \"True\", but False");
    ready_is(&world, "False", &missing);
    assert_eq!(condition(&world, "Ready")["reason"], "ReadinessGatesNotReady");
    let before = world.fake.actions();

    set(&world, Some("False"));
    ready_is(&world, "False", &closed);
    set(&world, Some("True"));
    ready_is(&world, "True", "");
    assert_eq!(condition(&world, GATE)["reason"], "TheController", "what others set stays");
    // The next agent knows it from the server, and what it tells leaves it there.
    world.kill();
    world.api.clear_requests();
    world.start();
    world.until("its status is told again", |world| {
        world.api.count("PATCH", "/api/v1/namespaces/default/pods/web/status") > 0
    });
    assert_eq!(condition(&world, "Ready")["status"], "True");
    assert_eq!(condition(&world, GATE)["reason"], "TheController");

    set(&world, None);
    ready_is(&world, "False", &missing);
    assert_eq!(world.fake.actions(), before, "nothing was done to its containers");
}

#[test]
fn a_gate_opens_when_the_container_comes_back() {
    let world = World::new();
    let mut spec = app();
    spec["readinessGates"] = json!([{"conditionType": GATE}]);
    world.bind("web", spec);
    set(&world, Some("True"));
    ready_is(&world, "True", "");
    world.fake.exit("web/app", 1, "Error", "");
    world.until("it is ready after its restart", |world| {
        let restarts = world.pod("web").unwrap()["status"]["containerStatuses"][0]["restartCount"].as_u64();
        restarts == Some(1) && condition(world, "Ready")["status"] == "True"
    });
    assert_eq!(condition(&world, GATE)["status"], "True");
}
