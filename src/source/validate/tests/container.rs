//! Containers: image, ports, variables, restart rules.

use super::*;

#[test]
fn containers() {
    let c = |rest: &str| format!("{C}{rest}");
    each_gives_its_error(vec![
        ("/spec/containers".into(), json!([]), "spec.containers: is required"),
        (c("/name"), json!("A"), "spec.containers[0].name: \"A\": must be at most 63 lower case"),
        (c("/name"), json!(""), "spec.containers[0].name: is required"),
        ("/spec/containers/1/name".into(), json!("a"), "spec.containers[1].name: \"a\": must be unique"),
        (
            "/spec/initContainers/0/name".into(),
            json!("a"),
            "spec.initContainers[0].name: \"a\": must be unique",
        ),
        (c("/image"), Value::Null, "spec.containers[0].image: is required"),
        (c("/image"), json!(" x"), "spec.containers[0].image: \" x\": must not have blanks"),
        (
            c("/imagePullPolicy"),
            json!("x"),
            "spec.containers[0].imagePullPolicy: \"x\": must be one of Always,",
        ),
        (
            c("/terminationMessagePolicy"),
            json!("x"),
            "spec.containers[0].terminationMessagePolicy: \"x\": must be one of F",
        ),
        (
            c("/ports/0/containerPort"),
            json!(99999),
            "spec.containers[0].ports[0].containerPort: 99999: must be between 1 and 65535",
        ),
        (c("/ports/0/containerPort"), json!(0), "spec.containers[0].ports[0].containerPort: is required"),
        (c("/ports/0/hostPort"), json!(-1), "spec.containers[0].ports[0].hostPort: -1: must be between"),
        (
            c("/ports/0/protocol"),
            json!("tcp"),
            "spec.containers[0].ports[0].protocol: \"tcp\": must be one of TCP, UDP, SCTP",
        ),
        (c("/ports/0/name"), json!("a--b"), "spec.containers[0].ports[0].name: \"a--b\": must be at most 15"),
        (
            c("/ports/-"),
            json!({"name": "http", "containerPort": 81}),
            "spec.containers[0].ports[1].name: \"http\": must be unique",
        ),
        (
            "/spec/containers/1/ports".into(),
            json!([{"containerPort": 1, "hostPort": 8080}]),
            "spec.containers[1].ports[0].hostPort: 8080: must be unique",
        ),
        ("/spec/initContainers/0/ports".into(), json!([{"containerPort": 1, "hostPort": 8080}]), ""),
        (c("/env/0/name"), json!("A=B"), "spec.containers[0].env[0].name: \"A=B\": must be printable"),
        (c("/env/0/name"), json!(""), "spec.containers[0].env[0].name: is required"),
        (c("/env/1/value"), json!("x"), "spec.containers[0].env[1].valueFrom: may not be given beside value"),
        (c("/env/1/valueFrom"), json!({}), "spec.containers[0].env[1].valueFrom: must name a source"),
        (
            c("/env/1/valueFrom/resourceFieldRef"),
            json!({"resource": "limits.cpu"}),
            "spec.containers[0].env[1].valueFrom: must name one source only",
        ),
        (
            c("/env/1/valueFrom/fieldRef/fieldPath"),
            json!("metadata.nam"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: \"metadata.nam\": must be one of metadata.name",
        ),
        (
            c("/env/1/valueFrom/fieldRef/fieldPath"),
            json!("metadata.name['a']"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: \"metadata.name['a']\": has a subscript",
        ),
        (
            c("/env/1/valueFrom/fieldRef/apiVersion"),
            json!("v2"),
            "spec.containers[0].env[1].valueFrom.fieldRef.apiVersion: \"v2\": must be one of v1",
        ),
        (
            c("/env/2/valueFrom/resourceFieldRef/resource"),
            json!("limits.x"),
            "spec.containers[0].env[2].valueFrom.resourceFieldRef.resource: \"limits.x\": must be one of",
        ),
        (
            c("/env/2/valueFrom/resourceFieldRef/divisor"),
            json!("3"),
            "spec.containers[0].env[2].valueFrom.resourceFieldRef.divisor: \"3\": must be one of 1, 1k",
        ),
        (
            c("/env/3/valueFrom/configMapKeyRef/key"),
            json!(""),
            "spec.containers[0].env[3].valueFrom.configMapKeyRef.key: is r",
        ),
        (c("/envFrom/0"), json!({}), "spec.containers[0].envFrom[0]: must name a source"),
        (c("/envFrom/0/prefix"), json!("="), "spec.containers[0].envFrom[0].prefix: \"=\": must be"),
        (
            c("/restartPolicy"),
            json!("x"),
            "spec.containers[0].restartPolicy: \"x\": must be one of Always, OnFailure",
        ),
        (
            c("/restartPolicy"),
            Value::Null,
            "spec.containers[0].restartPolicy: is required: restartPolicyRules",
        ),
        (
            c("/restartPolicyRules/0/action"),
            json!("x"),
            "spec.containers[0].restartPolicyRules[0].action: \"x\": must be one",
        ),
        (
            c("/restartPolicyRules/0/exitCodes"),
            Value::Null,
            "spec.containers[0].restartPolicyRules[0].exitCodes: is req",
        ),
        (
            c("/restartPolicyRules/0/exitCodes/operator"),
            json!("x"),
            "spec.containers[0].restartPolicyRules[0].exitCodes.operator: \"x\": must be one of In, NotIn",
        ),
        (
            c("/restartPolicyRules"),
            json!(vec![json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}); 21]),
            "spec.containers[0].restartPolicyRules: 21: must be at most 20 rules",
        ),
        (
            c("/resizePolicy"),
            json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
            "spec.containers[0].resizePolicy[0].resourceName: \"disk\": must be one of cpu, memory",
        ),
        (
            "/spec/initContainers/0/resizePolicy".into(),
            json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
            "spec.initContainers[0].resizePolicy[0].restartPolicy: \"RestartContainer\": may not be given",
        ),
    ]);
}

#[test]
fn an_ephemeral_container_that_is_added() {
    use crate::model::Debugger;

    let mut pod: Pod = serde_json::from_value(good()).expect("a pod by type");
    let first =
        Debugger { name: "d", image: "x", pull_policy: "Always", target: Some("s"), ..Debugger::default() };
    let spec = pod.spec.as_mut().expect("it has one");
    spec.ephemeral_containers = Some(vec![first.container()]);
    for (added, says) in [
        (Debugger { name: "e", ..first.clone() }, ""),
        (Debugger { name: "e", target: Some("a"), ..first.clone() }, ""),
        (Debugger { name: "e", target: Some(""), ..first.clone() }, ""),
        (Debugger { name: "a", ..first.clone() }, "spec.ephemeralContainers[1].name: \"a\": must be unique"),
        (Debugger { name: "i", ..first.clone() }, "spec.ephemeralContainers[1].name: \"i\": must be unique"),
        (first.clone(), "spec.ephemeralContainers[1].name: \"d\": must be unique"),
        (Debugger { name: "E", ..first.clone() }, "spec.ephemeralContainers[1].name: \"E\": must be at most"),
        (
            Debugger { name: "e", image: "", ..first.clone() },
            "spec.ephemeralContainers[1].image: is required",
        ),
        (
            Debugger { name: "e", pull_policy: "x", ..first.clone() },
            "spec.ephemeralContainers[1].imagePullPolicy: \"x\": must be one of",
        ),
        (
            Debugger { name: "e", target: Some("d"), ..first.clone() },
            "spec.ephemeralContainers[1].targetContainerName: \"d\": names no container or init container",
        ),
    ] {
        let errors = ephemeral_container(spec, &added.container());
        let line = |error: &FieldError| match &error.value {
            Some(value) => format!("{}: {value}: {}", error.path, error.message),
            None => format!("{}: {}", error.path, error.message),
        };
        let got: Vec<String> = errors.iter().map(line).collect();
        assert_eq!(got.len(), usize::from(!says.is_empty()), "{added:?}: {got:?}");
        assert!(got.iter().all(|line| line.starts_with(says)), "{added:?}: {got:?}");
    }
}
