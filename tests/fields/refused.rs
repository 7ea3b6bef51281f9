//! What the table calls refused is refused, with an error at that field.

use std::sync::Arc;

use serde_json::{Value, json};
use smolet::model::Wall;
use smolet::source::NodeName;
use smolet::source::manifest::parse;
use smolet::source::validate::fields::{Answer, fields};

use crate::{api, set};

/// What has to be set where a field is refused with some values only, or stands in what the pod has not.
fn particular<'a>(path: &'a str, full: &Value) -> Option<(&'a str, Value)> {
    if let Some(field) = path.strip_prefix("spec.volumes[*].projected.sources[*].") {
        return Some(("spec.volumes[*].projected", json!({"sources": [{field: sample(full, path)}]})));
    }
    let (field, value) = match path {
        "metadata.annotations[kubernetes.io/config.mirror]" => {
            ("metadata.annotations", json!({"kubernetes.io/config.mirror": "x"}))
        }
        "metadata.annotations[container.apparmor.security.beta.kubernetes.io/CONTAINER]" => (
            "metadata.annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
        ),
        "spec.containers[*].resources.limits[DOMAIN/NAME]" => {
            ("spec.containers[*].resources", json!({"limits": {"example.com/gpu": "1"}}))
        }
        "spec.containers[*].securityContext.procMount" => (path, json!("Unmasked")),
        "spec.hostUsers" => (path, json!(false)),
        _ => return None,
    };
    Some((field, value))
}

/// The value that `path` has in a pod in which every field is set.
fn sample<'a>(full: &'a Value, path: &str) -> &'a Value {
    let pointer = format!("/{}", path.replace("[*]", "/0").replace('.', "/"));
    full.pointer(&pointer).unwrap_or_else(|| panic!("{path} is a field of the API"))
}

/// As little as a pod needs that has an item in each list that a refused field may stand in.
fn minimal() -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": "x", "env": [{"name": "E"}], "resources": {}, "securityContext": {},
            "lifecycle": {}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    };
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {
            "initContainers": [container("i")], "containers": [container("c")], "volumes": [{"name": "v"}],
            "resources": {}, "securityContext": {},
        },
    });
    // A sidecar may have all that a container may.
    assert!(set(&mut pod, "spec.initContainers[*].restartPolicy", &json!("Always")));
    pod
}

/// The fields with an error, and what it says.
fn problems(manifest: &Value) -> Vec<(String, String)> {
    let bytes = manifest.to_string().into_bytes();
    let parsed = parse(&Arc::from("f.json"), &bytes, &NodeName::new("n"), Wall(0), 1 << 20);
    let problem = |p: &smolet::source::Problem| {
        (p.field.as_deref().unwrap_or_default().to_owned(), p.message.to_string())
    };
    parsed.problems.iter().map(problem).collect()
}

#[test]
fn what_the_table_calls_refused_is_refused_where_it_stands() {
    assert_eq!(problems(&minimal()), Vec::new(), "nothing else is wrong with the pod");
    let (_, full) = api();
    let mut wrong = Vec::new();
    let mut refused = 0;
    for line in fields().iter().filter(|line| line.answer == Answer::Refused) {
        for list in ["containers", "initContainers"] {
            let here = |path: &str| path.replace("spec.containers[*]", &format!("spec.{list}[*]"));
            let (path, value) = match particular(&line.path, &full) {
                Some((field, value)) => (here(field), value),
                None => (here(&line.path), sample(&full, &line.path).clone()),
            };
            let mut pod = minimal();
            assert!(set(&mut pod, &path, &value), "{path}");
            let at = here(&line.path).replace("[*]", "[0]");
            let found = problems(&pod);
            let says = format!("Forbidden: is not supported by this version: {}", line.words);
            if !found.contains(&(at, says)) {
                wrong.push(format!("{} = {value}: {found:?}", line.path));
            }
        }
        refused += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("fields refused: {refused}");
    assert!(refused > 20, "{refused}");
}
