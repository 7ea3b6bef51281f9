//! Golden tables, JSON and YAML, and pods that try to break them.

use serde_json::json;

use super::*;

/// 2026-01-01T01:00:00Z
const NOW: Wall = Wall(1_767_229_200_000_000_000);

fn pod_of(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn container(name: &str, rest: &Value) -> Value {
    let mut value = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0});
    for (key, part) in rest.as_object().unwrap() {
        value[key] = part.clone();
    }
    value
}

fn running(ready: bool) -> Value {
    json!({"ready": ready, "state": {"running": {}}})
}

fn waiting(reason: &str) -> Value {
    json!({"state": {"waiting": {"reason": reason}}})
}

fn ended(exit_code: i32, reason: &str) -> Value {
    json!({"state": {"terminated": {"exitCode": exit_code, "reason": reason}}})
}

/// Its manifest is gone: there is no spec to count the containers of.
#[test]
fn a_pod_without_a_spec_is_as_ready_as_its_status_says() {
    for (containers, shown) in
        [(vec![running(true)], (1, 1)), (vec![running(true), running(false)], (1, 2)), (vec![], (0, 0))]
    {
        let containers: Vec<Value> = containers.iter().map(|rest| container("a", rest)).collect();
        let pod = pod_of(json!({"metadata": {"name": "web"}, "status": {"containerStatuses": containers}}));
        let summary = summarise(&pod);
        assert_eq!((summary.ready, summary.containers), shown);
    }
}

/// One row per rule of kubectl's `printPod`: (init statuses, app statuses, the rest of the pod) → READY, STATUS.
#[test]
fn status_and_ready_are_kubectls() {
    let sidecar =
        |started: bool, ready: bool| json!({"started": started, "ready": ready, "state": {"running": {}}});
    let conditions = |kinds: &[&str]| {
        let list: Vec<_> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        json!({"status": {"conditions": list}})
    };
    let (none, plain) = (vec![], json!({}));
    // i0, i1 are init containers, s is a sidecar.
    for (init, app, rest, expected) in [
        (none.clone(), vec![("a", running(true)), ("b", running(true))], plain.clone(), "2/2 Running"),
        (none.clone(), vec![("a", running(true)), ("b", running(false))], plain.clone(), "1/2 Running"),
        (none.clone(), vec![("a", waiting("ContainerCreating"))], plain.clone(), "0/1 ContainerCreating"),
        (
            none.clone(),
            vec![("a", waiting("CrashLoopBackOff")), ("b", running(true))],
            plain.clone(),
            "1/2 CrashLoopBackOff",
        ),
        (
            none.clone(),
            vec![("a", waiting("ImagePullBackOff")), ("b", waiting("ErrImagePull"))],
            plain.clone(),
            "0/2 ImagePullBackOff",
        ),
        (none.clone(), vec![("a", ended(0, "Completed"))], plain.clone(), "0/1 Completed"),
        (none.clone(), vec![("a", ended(1, "Error"))], plain.clone(), "0/1 Error"),
        (none.clone(), vec![("a", ended(3, ""))], plain.clone(), "0/1 ExitCode:3"),
        (
            none.clone(),
            vec![("a", json!({"state": {"terminated": {"exitCode": 137, "signal": 9}}}))],
            plain.clone(),
            "0/1 Signal:9",
        ),
        (
            none.clone(),
            vec![("a", ended(0, "Completed")), ("b", running(true))],
            plain.clone(),
            "1/2 NotReady",
        ),
        (
            none.clone(),
            vec![("a", ended(0, "Completed")), ("b", running(true))],
            conditions(&["Ready"]),
            "1/2 Running",
        ),
        (
            none.clone(),
            vec![("a", running(true))],
            json!({"status": {"reason": "Evicted", "phase": "Failed"}}),
            "1/1 Evicted",
        ),
        (
            none.clone(),
            vec![("a", running(true))],
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            "1/1 Terminating",
        ),
        (
            none.clone(),
            vec![("a", ended(0, "Completed"))],
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"}}),
            "0/1 Completed",
        ),
        (
            none.clone(),
            vec![("a", running(true))],
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"reason": "NodeLost"}}),
            "1/1 Unknown",
        ),
        (
            vec![("i0", running(false)), ("i1", waiting("PodInitializing"))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 Init:0/2",
        ),
        (
            vec![("i0", ended(0, "Completed")), ("i1", running(false))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 Init:1/2",
        ),
        (
            vec![("i0", waiting("CrashLoopBackOff")), ("i1", waiting("PodInitializing"))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 Init:CrashLoopBackOff",
        ),
        (
            vec![("i0", ended(1, "Error")), ("i1", waiting("PodInitializing"))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 Init:Error",
        ),
        (
            vec![("i0", ended(4, "")), ("i1", waiting("PodInitializing"))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 Init:ExitCode:4",
        ),
        (
            vec![("i0", json!({"state": {"terminated": {"exitCode": 137, "signal": 9}}}))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 Init:Signal:9",
        ),
        (
            vec![("i0", ended(0, "Completed")), ("i1", ended(0, "Completed"))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/1 PodInitializing",
        ),
        (vec![("s", sidecar(true, true))], vec![("a", running(true))], plain.clone(), "2/2 Running"),
        (vec![("s", sidecar(true, false))], vec![("a", running(true))], plain.clone(), "1/2 Running"),
        (
            vec![("s", sidecar(false, false))],
            vec![("a", waiting("PodInitializing"))],
            plain.clone(),
            "0/2 Init:0/1",
        ),
        (
            vec![("s", waiting("CrashLoopBackOff"))],
            vec![("a", running(true))],
            conditions(&["Initialized"]),
            "1/2 Init:CrashLoopBackOff",
        ),
    ] {
        let init_spec = |name: &str| {
            if name == "s" { json!({"name": name, "restartPolicy": "Always"}) } else { json!({"name": name}) }
        };
        let mut value = json!({
            "metadata": {},
            "spec": {
                "initContainers": init.iter().map(|(name, _)| init_spec(name)).collect::<Vec<_>>(),
                "containers": app.iter().map(|(name, _)| json!({"name": name})).collect::<Vec<_>>(),
            },
            "status": {
                "phase": if init.is_empty() { "Running" } else { "Pending" },
                "initContainerStatuses": init.iter().map(|(name, s)| container(name, s)).collect::<Vec<_>>(),
                "containerStatuses": app.iter().map(|(name, s)| container(name, s)).collect::<Vec<_>>(),
            },
        });
        for (part, fields) in rest.as_object().unwrap() {
            for (key, field) in fields.as_object().unwrap() {
                value[part][key] = field.clone();
            }
        }
        if init.iter().any(|(name, s)| *name == "s" && s["started"] == true) {
            value["status"]["phase"] = json!("Running");
        }
        let summary = summarise(&pod_of(value.clone()));
        let found = format!("{}/{} {}", summary.ready, summary.containers, summary.status);
        assert_eq!(found, expected, "{value}");
    }
}

#[test]
fn restarts_count_what_matters_now() {
    let restarted = |count: i32, at: &str, state: Value| {
        json!({
            "restartCount": count,
            "state": state,
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": at}},
        })
    };
    let run = json!({"running": {}});
    let value = |init_state: Value| {
        pod_of(json!({
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}, {"name": "b"}]},
            "status": {
                "initContainerStatuses": [container("i", &restarted(7, "2026-01-01T00:50:00Z", init_state))],
                "containerStatuses": [
                    container("a", &restarted(2, "2026-01-01T00:30:00Z", run.clone())),
                    container("b", &restarted(1, "2026-01-01T00:20:00Z", run.clone())),
                ],
            },
        }))
    };
    let initializing = summarise(&value(json!({"waiting": {"reason": "CrashLoopBackOff"}})));
    assert_eq!((initializing.restarts, age(initializing.last_restart, NOW)), (7, "10m".to_owned()));
    let initialized = summarise(&value(json!({"terminated": {"exitCode": 0}})));
    assert_eq!((initialized.restarts, age(initialized.last_restart, NOW)), (3, "30m".to_owned()));
}

fn two_pods() -> Vec<Pod> {
    vec![
        pod_of(json!({
            "metadata": {"name": "evil\u{1b}[2J\n", "namespace": "a"},
            "spec": {"containers": [{"name": "x"}]},
            "status": {"phase": "Pending", "reason": "\u{202e}x"},
        })),
        pod_of(json!({
            "metadata": {
                "name": "web-gateway",
                "namespace": "default",
                "uid": "f2b5",
                "annotations": {"kubernetes.io/config.source": "file", "smolet.io/source-file": "/etc/m/web.yaml"},
            },
            "spec": {"nodeName": "gateway", "containers": [{"name": "web"}]},
            "status": {
                "phase": "Running",
                "podIP": "10.42.0.5",
                "startTime": "2026-01-01T00:57:00Z",
                "containerStatuses": [container("web", &json!({
                    "ready": true,
                    "restartCount": 2,
                    "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:58:00Z"}},
                }))],
            },
        })),
    ]
}

fn shown(all: &[Pod], format: PodsFormat, style: Style) -> String {
    pods(&mut all.iter().map(Cow::Borrowed), format, NOW, style)
}

#[test]
fn tables_are_golden() {
    assert_eq!(
        shown(&two_pods(), PodsFormat::Table, Style::PLAIN),
        "\
NAMESPACE   NAME              READY   STATUS      RESTARTS     AGE
a           evil\\u{1b}[2J\\n   0/1     \\u{202e}x   0            <unknown>
default     web-gateway       1/1     Running     2 (2m ago)   3m
"
    );
    assert_eq!(
        shown(&two_pods()[1..], PodsFormat::Table, Style::PLAIN.with_tabs()),
        "NAMESPACE\tNAME\tREADY\tSTATUS\tRESTARTS\tAGE\ndefault\tweb-gateway\t1/1\tRunning\t2 (2m ago)\t3m\n",
        "for another program"
    );
    assert_eq!(
        shown(&two_pods()[1..], PodsFormat::Wide, Style::PLAIN),
        "\
NAMESPACE   NAME          READY   STATUS    RESTARTS     AGE   IP          NODE      UID    SOURCE
default     web-gateway   1/1     Running   2 (2m ago)   3m    10.42.0.5   gateway   f2b5   /etc/m/web.yaml
"
    );
    assert_eq!(
        shown(&two_pods()[1..], PodsFormat::Table, Style::for_output(true, None)),
        "\
NAMESPACE   NAME          READY   STATUS    RESTARTS     AGE
default     web-gateway   1/1     \u{1b}[32mRunning\u{1b}[0m   2 (2m ago)   3m
"
    );
    assert_eq!(
        shown(&[], PodsFormat::Table, Style::PLAIN),
        "NAMESPACE   NAME   READY   STATUS   RESTARTS   AGE\n"
    );
}

#[test]
fn machine_formats_read_back_and_stay_harmless() {
    let all = two_pods();
    assert_eq!(shown(&all, PodsFormat::Name, Style::PLAIN), "pod/evil\\u{1b}[2J\\n\npod/web-gateway\n");
    let json_text = shown(&all, PodsFormat::Json, Style::PLAIN);
    let yaml_text = shown(&all, PodsFormat::Yaml, Style::PLAIN);
    for text in [&json_text, &yaml_text] {
        assert!(!text.contains(|c| c != '\n' && is_hostile(c)), "{text}");
    }
    let from_json: Value = serde_json::from_str(&json_text).unwrap();
    let from_yaml: Value = serde_saphyr::from_str(&yaml_text).unwrap();
    assert_eq!(from_json, from_yaml);
    assert_eq!(from_json["items"][0]["metadata"]["name"], "evil\u{1b}[2J\n");
    assert_eq!(from_json["items"][1], serde_json::to_value(&all[1]).unwrap());
    assert!(
        json_text.starts_with("{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n        {\n"),
        "{json_text}"
    );
    assert!(yaml_text.starts_with("apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n"));
    let none = json!({"apiVersion": "v1", "items": [], "kind": "PodList", "metadata": {}});
    let text = shown(&[], PodsFormat::Json, Style::PLAIN);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), none);
    let text = shown(&[], PodsFormat::Yaml, Style::PLAIN);
    assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), none);
    let one = pod(&all[0], PodsFormat::Yaml, NOW, Style::PLAIN);
    assert_eq!(serde_saphyr::from_str::<Value>(&one).unwrap(), from_json["items"][0]);
}

#[test]
fn formats_have_names() {
    for (text, format) in [
        ("", Some(PodsFormat::Table)),
        ("wide", Some(PodsFormat::Wide)),
        ("name", Some(PodsFormat::Name)),
        ("json", Some(PodsFormat::Json)),
        ("yaml", Some(PodsFormat::Yaml)),
        ("jsonpath", None),
    ] {
        assert_eq!(PodsFormat::parse(text), format);
    }
}
