//! Metadata and the pod's own fields.

use super::*;

#[test]
fn metadata_and_spec() {
    each_gives_its_error(vec![
        ("/metadata/name".into(), Value::Null, "metadata.name: is required"),
        ("/metadata/name".into(), json!("Web"), "metadata.name: \"Web\": must be lower case letters"),
        ("/metadata/name".into(), json!("a".repeat(251)), "metadata.name: \"aaaaaaaa"),
        ("/metadata/uid".into(), json!("../etc"), "metadata.uid: \"../etc\": must be"),
        ("/metadata/namespace".into(), json!("a.b"), "metadata.namespace: \"a.b\": must be"),
        ("/metadata/labels/-x".into(), json!("a"), "metadata.labels: \"-x\": must be"),
        ("/metadata/labels/app".into(), json!("a b"), "metadata.labels.app: \"a b\": must be empty or"),
        ("/metadata/annotations/a b".into(), json!("x"), "metadata.annotations: \"a b\": must be"),
        ("/metadata/annotations/big".into(), json!("x".repeat(262_144)), "metadata.annotations: hold 26"),
        ("/spec".into(), Value::Null, "spec: is required"),
        (
            "/spec/terminationGracePeriodSeconds".into(),
            json!(-1),
            "spec.terminationGracePeriodSeconds: -1: must be 0",
        ),
        (
            "/spec/restartPolicy".into(),
            json!("Sometimes"),
            "spec.restartPolicy: \"Sometimes\": must be one of Always, OnF",
        ),
        ("/spec/dnsPolicy".into(), json!("x"), "spec.dnsPolicy: \"x\": must be one of ClusterFirst,"),
        ("/spec/dnsPolicy".into(), json!("None"), ""),
        (
            "/spec/dnsConfig/nameservers/0".into(),
            json!("dns"),
            "spec.dnsConfig.nameservers[0]: \"dns\": must be an IP",
        ),
        (
            "/spec/dnsConfig/nameservers".into(),
            json!(["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]),
            "spec.dnsConfig.nameservers: 4: must be at most 3",
        ),
        (
            "/spec/dnsConfig/searches/0".into(),
            json!("a b"),
            "spec.dnsConfig.searches[0]: \"a b\": must be a DNS name",
        ),
        ("/spec/dnsConfig/options/0/name".into(), Value::Null, "spec.dnsConfig.options[0].name: is required"),
        ("/spec/hostname".into(), json!("a.b"), "spec.hostname: \"a.b\": must be"),
        ("/spec/subdomain".into(), json!("A"), "spec.subdomain: \"A\": must be"),
        ("/spec/hostnameOverride".into(), json!("a_b"), "spec.hostnameOverride: \"a_b\": must be"),
        ("/spec/priorityClassName".into(), json!("A B"), "spec.priorityClassName: \"A B\": must be"),
        (
            "/spec/preemptionPolicy".into(),
            json!("x"),
            "spec.preemptionPolicy: \"x\": must be one of PreemptL",
        ),
        ("/spec/os/name".into(), json!("windows"), "spec.os.name: \"windows\": must be one of linux"),
        (
            "/spec/tolerations/0/operator".into(),
            json!("x"),
            "spec.tolerations[0].operator: \"x\": must be one of Equal",
        ),
        ("/spec/tolerations/0/key".into(), json!("-"), "spec.tolerations[0].key: \"-\": must be"),
        (
            "/spec/tolerations/0/effect".into(),
            json!("x"),
            "spec.tolerations[0].effect: \"x\": must be one of NoSch",
        ),
        (
            "/spec/tolerations/0/value".into(),
            json!("x"),
            "spec.tolerations[0].value: \"x\": must be empty when",
        ),
        (
            "/spec/tolerations/0/tolerationSeconds".into(),
            json!(1),
            "spec.tolerations[0].effect: \"\": must be NoExecute",
        ),
        ("/spec/shareProcessNamespace".into(), json!(true), ""),
    ]);
}
