//! Container logs: reports to the rotation, and the paths for `smolet logs`.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use super::pods::Pods;
use super::pods::Record;
use crate::cri::Runtime;
use crate::logs::choose::container_id;
use crate::model::ContainerState;
use crate::podcmd::DEFAULT_CONTAINER;
use crate::server::Answer;

/// Where the logs of a pod's containers are, or why there are none: JSON, for `smolet logs` to choose from.
pub(super) fn show_logs<R: Runtime + 'static>(pods: &Pods<R>, name: &str, namespace: Option<&str>) -> Answer {
    let record = match pods.find_record(name, namespace) {
        Ok(record) => record,
        Err(why) => return Answer::NotFound(why),
    };
    let key = record.worker().key();
    let status = pods.statuses().status(&key.uid).unwrap_or_default();
    let PodStatus { init_container_statuses, container_statuses, ephemeral_container_statuses, .. } = status;
    // In the spec's order; of a pod that only the runtime knows there is no spec.
    let pod = record.worker().pod();
    let lists = [
        ("init", pod.map(|pod| names(pod.init_containers(), |c| &c.name)), init_container_statuses),
        ("app", pod.map(|pod| names(pod.containers(), |c| &c.name)), container_statuses),
        (
            "ephem",
            pod.map(|pod| names(pod.ephemeral_containers(), |c| &c.name)),
            ephemeral_container_statuses,
        ),
    ];
    let mut containers: Vec<Value> = Vec::new();
    for (kind, wanted, statuses) in lists {
        let statuses = statuses.unwrap_or_default();
        for name in wanted.unwrap_or_else(|| names(&statuses, |status| &status.name)) {
            let status = statuses.iter().find(|status| status.name == name);
            let log = |previous| {
                let missing = || format!("container {name:?} in pod {:?} is not available", &*key.name);
                let id =
                    status.ok_or_else(missing).and_then(|status| container_id(&key.name, status, previous));
                shown_log(pods, record, id)
            };
            containers.push(json!({"name": name, "kind": kind, "log": log(false), "previous": log(true)}));
        }
    }
    let annotations = record.worker().pod().and_then(|pod| pod.pod.metadata.annotations.as_ref());
    let default = annotations.and_then(|all| all.get(DEFAULT_CONTAINER));
    Answer::Found(json!({"pod": &*key.name, "default": default, "containers": containers}).to_string())
}

/// The log of the container with that id, or why there is none.
fn shown_log<R: Runtime + 'static>(pods: &Pods<R>, record: &Record, id: Result<&str, String>) -> Value {
    let id = match id {
        Ok(id) => id,
        Err(why) => return json!({"why": why}),
    };
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
    let observed = record.worker().observed().into_iter().flat_map(|observed| &observed.containers);
    match observed.into_iter().find(|container| container.id.as_str() == bare) {
        Some(container) => json!({
            "path": pods.log_path(record, container),
            "running": container.state == ContainerState::Running,
        }),
        // The kubelet's message for a container that the runtime no longer has.
        None => json!({"why": format!("unable to retrieve container logs for {id}")}),
    }
}

fn names<T>(of: &[T], name: impl Fn(&T) -> &String) -> Vec<String> {
    of.iter().map(|of| name(of).clone()).collect()
}
