//! Set `container_statuses`: `Kubelet.generateAPIPodStatus` and `getPhase`, with the prober manager's update.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use smolet::model::{
    ContainerMeta, ContainerState, ContainerStatus, ContainerUser, NamespaceMode, ObservedPod,
    SandboxNetwork, SandboxState, SandboxStatus, Wall,
};
use smolet::status::{
    ActualResources, PodCgroup, StatusFacts, StatusInput, StatusProbe, phase_from_containers, pod_status,
};
use smolet::store::codec::{decode, encode};

use crate::run_set;

/// The vectors' start failures, probe results and workers, and the runtime's resources as quantities.
struct Facts<'a> {
    input: &'a Value,
    actual: HashMap<String, ActualResources>,
}

impl StatusFacts for Facts<'_> {
    fn start_failure(&self, container: &str) -> Option<(&str, &str)> {
        let failure = self.input["reasonCache"].get(container)?;
        Some((text(&failure["reason"]), text(&failure["message"])))
    }

    fn probe_result(&self, probe: StatusProbe, container_id: &str) -> Option<bool> {
        let results = match probe {
            StatusProbe::Readiness => &self.input["probes"]["readiness"],
            StatusProbe::Startup => &self.input["probes"]["startup"],
        };
        results.get(container_id).map(|result| result == "success")
    }

    /// `AddPod` makes a worker for each probe of app containers and sidecars.
    fn probe_worker(&self, probe: StatusProbe, container: &str) -> bool {
        let field = match probe {
            StatusProbe::Readiness => "readinessProbe",
            StatusProbe::Startup => "startupProbe",
        };
        let spec = &self.input["pod"]["spec"];
        let sidecars = items(&spec["initContainers"]).iter().filter(|c| c["restartPolicy"] == "Always");
        self.input["probes"]["workersExist"] == true
            && items(&spec["containers"])
                .iter()
                .chain(sidecars)
                .any(|c| c["name"] == container && c.get(field).is_some())
    }

    fn actual_resources(&self, container: &ContainerStatus) -> Option<ActualResources> {
        self.actual.get(container.id.as_str()).cloned()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn wall(value: &Value) -> Wall {
    let time: Time = serde_json::from_value(value.clone()).expect("a time");
    Wall(i64::try_from(time.0.as_nanosecond()).expect("a time of our days"))
}

fn container(value: &Value) -> ContainerStatus {
    let at = |field: &str| value[field].as_i64().map(Wall);
    ContainerStatus {
        id: text(&value["id"]).into(),
        name: text(&value["name"]).into(),
        sandbox_id: text(&value["sandboxID"]).into(),
        state: match text(&value["state"]) {
            "created" => ContainerState::Created,
            "running" => ContainerState::Running,
            "exited" => ContainerState::Exited,
            "unknown" => ContainerState::Unknown,
            other => panic!("container state {other}"),
        },
        created_at: at("createdAt").unwrap_or_default(),
        started_at: at("startedAt"),
        finished_at: at("finishedAt"),
        exit_code: i32::try_from(value["exitCode"].as_i64().unwrap_or(0)).expect("an exit code"),
        reason: text(&value["reason"]).into(),
        message: text(&value["message"]).into(),
        image: text(&value["image"]).into(),
        image_ref: text(&value["imageRef"]).into(),
        user: value.get("user").map(|user| ContainerUser {
            uid: user["uid"].as_i64().unwrap_or(0),
            gid: user["gid"].as_i64().unwrap_or(0),
            supplemental_groups: items(&user["supplementalGroups"])
                .iter()
                .filter_map(Value::as_i64)
                .collect(),
        }),
        meta: ContainerMeta {
            restart_count: u32::try_from(value["restartCount"].as_u64().unwrap_or(0)).expect("a count"),
            ..ContainerMeta::default()
        },
        ..ContainerStatus::default()
    }
}

fn sandbox(value: &Value) -> SandboxStatus {
    SandboxStatus {
        id: text(&value["id"]).into(),
        attempt: u32::try_from(value["attempt"].as_u64().unwrap_or(0)).expect("an attempt"),
        state: match text(&value["state"]) {
            "ready" => SandboxState::Ready,
            "notready" => SandboxState::NotReady,
            other => panic!("sandbox state {other}"),
        },
        created_at: Wall(value["createdAt"].as_i64().unwrap_or(0)),
        network_namespace: value.get("networkNamespace").map(|mode| match text(mode) {
            "POD" => NamespaceMode::Pod,
            "NODE" => NamespaceMode::Node,
            other => panic!("namespace mode {other}"),
        }),
        network: value.get("network").map(|network| SandboxNetwork {
            ip: text(&network["ip"]).into(),
            additional_ips: items(&network["additionalIPs"]).iter().map(|ip| text(ip).into()).collect(),
        }),
    }
}

fn actual(value: &Value) -> ActualResources {
    let quantity = |field: &str| value.get(field).map(|q| Quantity(text(q).to_owned()));
    ActualResources {
        cpu_request: quantity("cpuRequest"),
        cpu_limit: quantity("cpuLimit"),
        memory_request: quantity("memoryRequest"),
        memory_limit: quantity("memoryLimit"),
    }
}

#[test]
fn container_statuses() {
    run_set("container_statuses", |case| {
        let input = &case.input;
        let pod: Pod = serde_json::from_value(input["pod"].clone()).expect("a pod");
        let previous: Option<PodStatus> =
            input.get("statusManagerStatus").map(|s| serde_json::from_value(s.clone()).expect("a status"));
        let reported = &input["podStatus"];
        let observed = ObservedPod {
            ips: items(&reported["ips"]).iter().map(|ip| text(ip).into()).collect(),
            sandboxes: items(&reported["sandboxes"]).iter().map(sandbox).collect(),
            containers: items(&reported["containers"]).iter().map(container).collect(),
        };
        let facts = Facts {
            input,
            actual: items(&reported["containers"])
                .iter()
                .filter_map(|c| Some((text(&c["id"]).to_owned(), actual(c.get("resources")?))))
                .collect(),
        };
        let start_time = previous.as_ref().or(pod.status.as_ref()).and_then(|s| s.start_time.as_ref());
        let now = wall(&input["now"]);
        let active_for = start_time.map(|start| {
            let nanos = i128::from(now.0) - start.0.as_nanosecond();
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
        });
        let host_ips: Vec<IpAddr> = vec![text(&input["nodeIP"]).parse().expect("an address")];
        let number = |field: &str| input["podCgroup"][field].as_i64().expect("a number");
        let terminal = input["podIsTerminal"] == true;
        let input = StatusInput {
            pod: &pod,
            observed: &observed,
            previous: previous.as_ref(),
            facts: &facts,
            is_terminal: terminal,
            resizes: &[],
            active_for,
            pod_cgroup: input.get("podCgroup").map(|_| PodCgroup {
                cpu_quota_us: number("cpuQuotaUs"),
                cpu_period_us: number("cpuPeriodUs"),
                cpu_shares: number("cpuShares"),
                memory_limit_bytes: number("memoryLimitBytes"),
            }),
            agent_start: wall(&input["kubeletStart"]),
            host_ips: &host_ips,
            ipv6_first: false,
            runtime_name: "containerd",
            recursive_read_only: false,
        };
        let status = pod_status(&input);
        for status in [Some(&status), input.previous].into_iter().flatten() {
            let kept = decode(&encode(status)).expect("a record");
            assert_eq!(kept, *status, "case {}: what is stored reads back equal", case.number);
        }
        json!({"phaseFromContainers": phase_from_containers(&input).as_str(), "status": status})
    });
}
