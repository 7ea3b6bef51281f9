//! Set `crash_backoff`: `doBackOff` on a `flowcontrol.Backoff`.

use std::time::Duration;

use serde_json::{Value, json};
use smolet::model::backoff::{Backoff, BackoffKey};
use smolet::model::{
    ContainerKind, ContainerState, DesiredPod, Mono, Now, ObservedPod, SandboxState, SandboxStatus, Wall,
};
use smolet::sync::Probes;
use smolet::sync::plan::{PlanInput, StartWhen, plan};

use crate::pod_input::{list, text};
use crate::run_set;

#[test]
fn crash_backoff() {
    run_set("crash_backoff", |case| run(&case.input));
}

fn run(input: &Value) -> Value {
    let ms = |value: &Value| value.as_i64().expect("a time in milliseconds");
    let length = |member: &str| Duration::from_millis(input[member].as_u64().expect("a length"));
    let mut backoff = Backoff::new(Mono(0), length("maxMs"));
    assert_eq!(length("initialMs"), length("maxMs").min(Duration::from_secs(10)));
    assert_eq!(length("resetAfterMs"), Duration::from_mins(10));
    let mut image = text(input, "image");
    let mut exited: Option<Mono> = None;
    let mut out = Vec::new();
    for event in list(input, "events") {
        let now = Mono(ms(&event["atMs"]) * 1_000_000);
        match event["op"].as_str() {
            Some("exit") => exited = Some(now),
            Some("gc") => backoff.collect(now),
            Some("setImage") => image = text(event, "image"),
            Some("sync") => out.push(sync(input, event, &image, exited, now, &mut backoff)),
            other => panic!("event {other:?}"),
        }
    }
    Value::Array(out)
}

fn sync(
    input: &Value,
    event: &Value,
    image: &str,
    exited: Option<Mono>,
    now: Mono,
    backoff: &mut Backoff,
) -> Value {
    let name = text(input, "container");
    let pod = DesiredPod::new(
        serde_json::from_value(json!({
            "metadata": {"name": text(input, "podName"), "namespace": text(input, "podNamespace"),
                "uid": text(input, "podUID")},
            "spec": {"restartPolicy": "Always", "containers": [{"name": name, "image": image}]},
        }))
        .expect("a pod"),
    );
    let clock = Now { mono: now, wall: Wall(now.0) };
    let mut observed = ObservedPod {
        sandboxes: vec![SandboxStatus {
            id: "sb".into(),
            attempt: 0,
            state: SandboxState::Ready,
            created_at: Wall(0),
            network_namespace: None,
            network: None,
        }],
        ..ObservedPod::default()
    };
    if let Some(at) = exited {
        let record = json!({"podStatus": {"containers": [{
            "id": "old", "name": name, "sandboxID": "sb", "state": "exited", "exitCode": 1, "finishedAt": at.0,
        }]}});
        observed.containers = crate::pod_input::observed(&record, clock).containers;
    }
    // The newer container in that state changes nothing for doBackOff; only one that runs would need no start.
    match event["latest"].as_str() {
        None | Some("running" | "exited") => {}
        Some(state) => {
            let mut newer = observed.containers.first().expect("an older record").clone();
            newer.id = "new".into();
            newer.state = match state {
                "created" => ContainerState::Created,
                "unknown" => ContainerState::Unknown,
                other => panic!("state {other}"),
            };
            observed.containers.insert(0, newer);
        }
    }
    let plan = plan(&PlanInput {
        pod: &pod,
        observed: &observed,
        probes: &Probes::default(),
        backoff,
        now: clock,
        restart_all: false,
        resizing: false,
    });
    let start = &plan.starts()[0];
    assert_eq!((start.kind, start.index, plan.starts().len()), (ContainerKind::App, 0, 1));
    let mut out = json!({"atMs": event["atMs"]});
    match &start.when {
        StartWhen::First => out["inBackOff"] = json!(false),
        StartWhen::Again(crash) => {
            backoff.next(crash.key, crash.finished, now);
            out["inBackOff"] = json!(false);
        }
        StartWhen::Held { until, message } => {
            assert_eq!(plan.wake_at, Some(*until));
            out["inBackOff"] = json!(true);
            out["untilMs"] = json!(until.0 / 1_000_000);
            out["message"] = json!(message);
        }
    }
    let key = BackoffKey::container(&pod, &pod.containers()[0]);
    out["currentBackoffMs"] = json!(u64::try_from(backoff.wait(key).as_millis()).unwrap());
    out
}
