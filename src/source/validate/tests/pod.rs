//! Metadata and the pod's own fields.

use super::*;

#[test]
fn metadata_and_spec() {
    each_gives_its_error(vec![
        ("/metadata/name".into(), Value::Null, "metadata.name: Required value"),
        (
            "/metadata/name".into(),
            json!("Web"),
            "metadata.name: Invalid value: \"Web\": must be at most 253 lower case",
        ),
        ("/metadata/name".into(), json!("a".repeat(251)), "metadata.name: Invalid value: \"aaaaaaaa"),
        ("/metadata/uid".into(), json!("../etc"), "metadata.uid: Invalid value: \"../etc\": must be"),
        ("/metadata/namespace".into(), json!("a.b"), "metadata.namespace: Invalid value: \"a.b\": must be"),
        ("/metadata/labels/-x".into(), json!("a"), "metadata.labels: Invalid value: \"-x\": must be"),
        (
            "/metadata/labels/app".into(),
            json!("a b"),
            "metadata.labels.app: Invalid value: \"a b\": must be empty or",
        ),
        (
            "/metadata/annotations/a b".into(),
            json!("x"),
            "metadata.annotations: Invalid value: \"a b\": must be",
        ),
        (
            "/metadata/annotations/big".into(),
            json!("x".repeat(262_144)),
            "metadata.annotations: Invalid value: 262265: must be at most 262144 bytes together",
        ),
        ("/spec".into(), Value::Null, "spec: Required value"),
        (
            "/spec/terminationGracePeriodSeconds".into(),
            json!(-1),
            "spec.terminationGracePeriodSeconds: Invalid value: -1: must be 0",
        ),
        (
            "/spec/restartPolicy".into(),
            json!("Sometimes"),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnF",
        ),
        (
            "/spec/dnsPolicy".into(),
            json!("x"),
            "spec.dnsPolicy: Unsupported value: \"x\": supported values: \"ClusterFirst\"",
        ),
        ("/spec/dnsPolicy".into(), json!("None"), ""),
        (
            "/spec/dnsConfig/nameservers/0".into(),
            json!("dns"),
            "spec.dnsConfig.nameservers[0]: Invalid value: \"dns\": must be an IP",
        ),
        (
            "/spec/dnsConfig/nameservers".into(),
            json!(["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]),
            "spec.dnsConfig.nameservers: Invalid value: 4: must be at most 3",
        ),
        (
            "/spec/dnsConfig/searches/0".into(),
            json!("a b"),
            "spec.dnsConfig.searches[0]: Invalid value: \"a b\": must be a DNS name",
        ),
        (
            "/spec/dnsConfig/options/0/name".into(),
            Value::Null,
            "spec.dnsConfig.options[0].name: Required value",
        ),
        ("/spec/hostname".into(), json!("a.b"), "spec.hostname: Invalid value: \"a.b\": must be"),
        ("/spec/subdomain".into(), json!("A"), "spec.subdomain: Invalid value: \"A\": must be"),
        (
            "/spec/hostnameOverride".into(),
            json!("a_b"),
            "spec.hostnameOverride: Invalid value: \"a_b\": must be",
        ),
        (
            "/spec/priorityClassName".into(),
            json!("A B"),
            "spec.priorityClassName: Invalid value: \"A B\": must be",
        ),
        (
            "/spec/preemptionPolicy".into(),
            json!("x"),
            "spec.preemptionPolicy: Unsupported value: \"x\": supported values: \"PreemptL",
        ),
        (
            "/spec/os/name".into(),
            json!("windows"),
            "spec.os.name: Unsupported value: \"windows\": supported values: \"linux\"",
        ),
        (
            "/spec/tolerations/0/operator".into(),
            json!("x"),
            "spec.tolerations[0].operator: Unsupported value: \"x\": supported values: \"Equal\"",
        ),
        (
            "/spec/tolerations/0/key".into(),
            json!("-"),
            "spec.tolerations[0].key: Invalid value: \"-\": must be",
        ),
        (
            "/spec/tolerations/0/effect".into(),
            json!("x"),
            "spec.tolerations[0].effect: Unsupported value: \"x\": supported values: \"NoSch",
        ),
        (
            "/spec/tolerations/0/value".into(),
            json!("x"),
            "spec.tolerations[0].value: Invalid value: \"x\": must be empty when",
        ),
        (
            "/spec/tolerations/0/tolerationSeconds".into(),
            json!(1),
            "spec.tolerations[0].effect: Invalid value: \"\": must be NoExecute",
        ),
        ("/spec/shareProcessNamespace".into(), json!(true), ""),
    ]);
}
