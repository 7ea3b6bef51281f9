//! Set `lifecycle_order`: `newTerminationOrdering`, `setTerminationGracePeriod` and a whole
//! `killContainersWithSyncResult` on a simulated clock.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use smolet::clock::Clock as _;
use smolet::model::{ObservedPod, Seconds, Wall};
use smolet::sync::KillReason;
use smolet::sync::act::{HookCall, HookFuture, Hooks};
use smolet::sync::kill::kill_pod;
use smolet::sync::order::{TerminationOrder, grace_period};

use crate::pod_input::{desired, list, observed, text};
use crate::recorder::{Exit, Recorder, context};
use crate::run_set;

#[test]
fn lifecycle_order() {
    run_set("lifecycle_order", |case| match case.input["kind"].as_str() {
        Some("order") => order(&case.input),
        Some("kill") => kill(&case.input),
        other => panic!("kind {other:?}"),
    });
}

fn order(input: &Value) -> Value {
    let pod = desired(input);
    let running: Vec<&str> = list(input, "running").iter().map(|name| name.as_str().unwrap()).collect();
    let order = TerminationOrder::new(&pod, &running);
    let (mut waits, mut waits_running) = (json!({}), json!({}));
    for container in pod.init_containers().iter().chain(pod.containers()) {
        let Some(order) = &order else { break };
        let sorted = |names: Vec<&str>| {
            let mut names = names;
            names.sort_unstable();
            json!(names)
        };
        waits[&container.name] = sorted(order.waits_for(&container.name).collect());
        waits_running[&container.name] = sorted(order.waits_for_running(&container.name).collect());
    }
    let mut grace = json!({});
    for container in pod.init_containers().iter().chain(pod.containers()) {
        for reason in [
            KillReason::FailedPostStartHook,
            KillReason::LivenessProbe,
            KillReason::StartupProbe,
            KillReason::Unknown,
        ] {
            let seconds = grace_period(&pod, Some(container), reason).0;
            grace[&container.name][reason.to_string()] = json!(seconds);
        }
    }
    json!({
        "orderingUsed": order.is_some(),
        "waitsFor": waits,
        "waitsForRunning": waits_running,
        "gracePeriodByReason": grace,
    })
}

/// Hooks that take as long as the case says and note when they begin.
struct Timed {
    recorder: Rc<Recorder>,
    lengths: BTreeMap<String, Duration>,
}

impl Hooks for Timed {
    fn run<'a>(&'a self, call: HookCall<'a>) -> HookFuture<'a> {
        Box::pin(async move {
            let (id, at) = (call.id.as_str(), self.recorder.elapsed_ms());
            self.recorder.calls.borrow_mut().push(json!({"op": "preStop", "id": id, "atMs": at}));
            self.recorder.clock.sleep(self.lengths[id]).await;
            Ok(None)
        })
    }
}

fn kill(input: &Value) -> Value {
    let ms = |value: &Value, member: &str| Duration::from_millis(value[member].as_u64().unwrap_or_default());
    let mut recorder = Recorder::new(Wall(1_767_225_600_000_000_000));
    let mut lengths = BTreeMap::new();
    let mut records = Vec::new();
    for container in list(input, "runningContainers") {
        let id = text(container, "id");
        let exit =
            Exit { after_term: ms(container, "exitAfterTermMs"), after_kill: ms(input, "killLatencyMs") };
        recorder.exits.insert(id.clone(), exit);
        lengths.insert(id.clone(), ms(container, "preStopMs"));
        records.push(json!({"id": id, "name": text(container, "name"), "state": "running"}));
    }
    let recorder = Rc::new(recorder);
    let pod = desired(input);
    let records = json!({"podStatus": {"containers": records}});
    let observed: ObservedPod = observed(&records, recorder.clock.now());
    let dir = std::env::temp_dir();
    let ctx = context(recorder.clone(), Rc::new(Timed { recorder: recorder.clone(), lengths }), &dir);
    let grace = input["gracePeriodOverride"].as_i64().map(Seconds);
    let outcome = recorder.run(kill_pod(&ctx, &pod.key, Some(&pod), &observed, grace));
    assert!(outcome.is_ok());

    let mut stops: BTreeMap<String, Value> = BTreeMap::new();
    for call in recorder.calls.borrow().iter() {
        let stop = stops.entry(text(call, "id")).or_insert_with(|| json!({}));
        match call["op"].as_str() {
            Some("preStop") => stop["preStopAtMs"] = call["atMs"].clone(),
            Some("StopContainer") => {
                stop["stopAtMs"] = call["atMs"].clone();
                stop["timeoutSeconds"] = call["timeoutSeconds"].clone();
            }
            Some("exited") => stop["exitedAtMs"] = call["atMs"].clone(),
            other => panic!("call {other:?}"),
        }
    }
    let mut stops: Vec<Value> = observed
        .containers
        .iter()
        .map(|status| {
            let mut stop = stops[status.id.as_str()].clone();
            stop["container"] = json!(&*status.name);
            stop
        })
        .collect();
    stops.sort_by_key(|stop| (stop["stopAtMs"].as_u64(), text(stop, "container")));
    json!({"stops": stops, "doneAtMs": recorder.elapsed_ms()})
}
