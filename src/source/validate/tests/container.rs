//! Containers: image, ports, variables, restart rules.

use super::*;

#[test]
fn containers() {
    let c = |rest: &str| format!("{C}{rest}");
    each_gives_its_error(vec![
        ("/spec/containers".into(), json!([]), "spec.containers: Required value"),
        (
            c("/name"),
            json!("A"),
            "spec.containers[0].name: Invalid value: \"A\": must be at most 63 lower case",
        ),
        (c("/name"), json!(""), "spec.containers[0].name: Required value"),
        ("/spec/containers/1/name".into(), json!("a"), "spec.containers[1].name: Duplicate value: \"a\""),
        (
            "/spec/initContainers/0/name".into(),
            json!("a"),
            "spec.initContainers[0].name: Duplicate value: \"a\"",
        ),
        (c("/image"), Value::Null, "spec.containers[0].image: Required value"),
        (c("/image"), json!(" x"), "spec.containers[0].image: Invalid value: \" x\": must not have blanks"),
        (
            c("/imagePullPolicy"),
            json!("x"),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"x\": supported values: \"Always\"",
        ),
        (
            c("/terminationMessagePolicy"),
            json!("x"),
            "spec.containers[0].terminationMessagePolicy: Unsupported value: \"x\": supported values: \"F",
        ),
        (
            c("/ports/0/containerPort"),
            json!(99999),
            "spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535",
        ),
        (c("/ports/0/containerPort"), json!(0), "spec.containers[0].ports[0].containerPort: Required value"),
        (
            c("/ports/0/hostPort"),
            json!(-1),
            "spec.containers[0].ports[0].hostPort: Invalid value: -1: must be between",
        ),
        (
            c("/ports/0/protocol"),
            json!("tcp"),
            "spec.containers[0].ports[0].protocol: Unsupported value: \"tcp\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
        ),
        (
            c("/ports/0/name"),
            json!("a--b"),
            "spec.containers[0].ports[0].name: Invalid value: \"a--b\": must be at most 15",
        ),
        (
            c("/ports/-"),
            json!({"name": "http", "containerPort": 81}),
            "spec.containers[0].ports[1].name: Duplicate value: \"http\"",
        ),
        (
            "/spec/containers/1/ports".into(),
            json!([{"containerPort": 1, "hostPort": 8080}]),
            "spec.containers[1].ports[0].hostPort: Duplicate value: 8080",
        ),
        ("/spec/initContainers/0/ports".into(), json!([{"containerPort": 1, "hostPort": 8080}]), ""),
        (
            c("/env/0/name"),
            json!("A=B"),
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": must be printable",
        ),
        (c("/env/0/name"), json!(""), "spec.containers[0].env[0].name: Required value"),
        (
            c("/env/1/value"),
            json!("x"),
            "spec.containers[0].env[1].valueFrom: Forbidden: may not be given beside value",
        ),
        (
            c("/env/1/valueFrom"),
            json!({}),
            "spec.containers[0].env[1].valueFrom: Invalid value: must name a source",
        ),
        (
            c("/env/1/valueFrom/resourceFieldRef"),
            json!({"resource": "limits.cpu"}),
            "spec.containers[0].env[1].valueFrom: Invalid value: must name one source only",
        ),
        (
            c("/env/1/valueFrom/fieldRef/fieldPath"),
            json!("metadata.nam"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.nam\": supported values: \"metadata.name\"",
        ),
        (
            c("/env/1/valueFrom/fieldRef/fieldPath"),
            json!("metadata.name['a']"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.name['a']\": has a subscript",
        ),
        (
            c("/env/1/valueFrom/fieldRef/apiVersion"),
            json!("v2"),
            "spec.containers[0].env[1].valueFrom.fieldRef.apiVersion: Unsupported value: \"v2\": supported values: \"v1\"",
        ),
        (
            c("/env/2/valueFrom/resourceFieldRef/resource"),
            json!("limits.x"),
            "spec.containers[0].env[2].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.x\": supported values: \"",
        ),
        (
            c("/env/2/valueFrom/resourceFieldRef/divisor"),
            json!("3"),
            "spec.containers[0].env[2].valueFrom.resourceFieldRef.divisor: Unsupported value: \"3\": supported values: \"1\", \"1k\"",
        ),
        (
            c("/env/3/valueFrom/configMapKeyRef/key"),
            json!(""),
            "spec.containers[0].env[3].valueFrom.configMapKeyRef.key: Required value",
        ),
        (c("/envFrom/0"), json!({}), "spec.containers[0].envFrom[0]: Invalid value: must name a source"),
        (
            c("/envFrom/0/prefix"),
            json!("="),
            "spec.containers[0].envFrom[0].prefix: Invalid value: \"=\": must be",
        ),
        (
            c("/restartPolicy"),
            json!("x"),
            "spec.containers[0].restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnFailure\"",
        ),
        (
            c("/restartPolicy"),
            Value::Null,
            "spec.containers[0].restartPolicy: Required value: restartPolicyRules",
        ),
        (
            c("/restartPolicyRules/0/action"),
            json!("x"),
            "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"x\": supported values: \"",
        ),
        (
            c("/restartPolicyRules/0/exitCodes"),
            Value::Null,
            "spec.containers[0].restartPolicyRules[0].exitCodes: Required value",
        ),
        (
            c("/restartPolicyRules/0/exitCodes/operator"),
            json!("x"),
            "spec.containers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: \"x\": supported values: \"In\", \"NotIn\"",
        ),
        (
            c("/restartPolicyRules"),
            json!(vec![json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}); 21]),
            "spec.containers[0].restartPolicyRules: Invalid value: 21: must be at most 20 rules",
        ),
        (
            c("/resizePolicy"),
            json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
            "spec.containers[0].resizePolicy[0].resourceName: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
        ),
        (
            "/spec/initContainers/0/resizePolicy".into(),
            json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
            "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": may not be given",
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
        (Debugger { name: "a", ..first.clone() }, "spec.ephemeralContainers[1].name: Duplicate value: \"a\""),
        (Debugger { name: "i", ..first.clone() }, "spec.ephemeralContainers[1].name: Duplicate value: \"i\""),
        (first.clone(), "spec.ephemeralContainers[1].name: Duplicate value: \"d\""),
        (
            Debugger { name: "E", ..first.clone() },
            "spec.ephemeralContainers[1].name: Invalid value: \"E\": must be at most",
        ),
        (
            Debugger { name: "e", image: "", ..first.clone() },
            "spec.ephemeralContainers[1].image: Required value",
        ),
        (
            Debugger { name: "e", pull_policy: "x", ..first.clone() },
            "spec.ephemeralContainers[1].imagePullPolicy: Unsupported value: \"x\": supported values: \"",
        ),
        (
            Debugger { name: "e", target: Some("d"), ..first.clone() },
            "spec.ephemeralContainers[1].targetContainerName: Invalid value: \"d\": names no container or init container",
        ),
    ] {
        let errors = ephemeral_container(spec, &added.container());
        let got: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(got.len(), usize::from(!says.is_empty()), "{added:?}: {got:?}");
        assert!(got.iter().all(|line| line.starts_with(says)), "{added:?}: {got:?}");
    }
}
