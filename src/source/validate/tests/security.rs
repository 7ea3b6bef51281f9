//! Security contexts, profiles, users, and what the runtime is asked for.

use super::*;

#[test]
fn security_contexts() {
    let c = |rest: &str| format!("{C}{rest}");
    each_gives_its_error(vec![
        (
            c("/securityContext/runAsUser"),
            json!(-1),
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0",
        ),
        (
            c("/securityContext/runAsGroup"),
            json!(1i64 << 40),
            "spec.containers[0].securityContext.runAsGroup: Invalid value: 109951",
        ),
        (
            c("/securityContext/seccompProfile"),
            json!({"type": "Localhost"}),
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: type is Localhost",
        ),
        (
            c("/securityContext/seccompProfile"),
            json!({"type": "Localhost", "localhostProfile": "../x"}),
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: \"../x\": must not contain",
        ),
        (
            c("/securityContext/seccompProfile/type"),
            json!("x"),
            "spec.containers[0].securityContext.seccompProfile.type: Unsupported value: \"x\": supported values: \"Runtime",
        ),
        (
            c("/securityContext"),
            json!({"privileged": true, "allowPrivilegeEscalation": false}),
            "spec.containers[0].securityContext.allowPrivilegeEscalation: Invalid value: false: may not be false beside privileged",
        ),
        (
            c("/securityContext"),
            json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": false}),
            "spec.containers[0].securityContext.allowPrivilegeEscalation: Invalid value: false: may not be false beside the cap",
        ),
        (
            "/spec/securityContext/windowsOptions".into(),
            json!({"runAsUserName": "x"}),
            "spec.securityContext.windowsOptions: Forbidden: may not be given when os.name is linux",
        ),
        (
            "/spec/securityContext/fsGroup".into(),
            json!(-5),
            "spec.securityContext.fsGroup: Invalid value: -5: must be between 0",
        ),
        (
            "/spec/securityContext/supplementalGroups".into(),
            json!([-5]),
            "spec.securityContext.supplementalGroups[0]: Invalid value: -5: m",
        ),
        (
            "/spec/securityContext/fsGroupChangePolicy".into(),
            json!("x"),
            "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"x\"",
        ),
        (
            "/spec/securityContext/sysctls/0/name".into(),
            json!("a b"),
            "spec.securityContext.sysctls[0].name: Invalid value: \"a b\": must",
        ),
        (
            "/spec/securityContext/sysctls/-".into(),
            json!({"name": "net.ipv4.tcp_syncookies", "value": "1"}),
            "spec.securityContext.sysctls[1].name: Duplicate value: \"net.ipv4.tcp_syncookies\"",
        ),
        (c("/securityContext/appArmorProfile"), json!({"type": "Unconfined"}), ""),
        (
            c("/securityContext/appArmorProfile"),
            json!({"type": "Localhost"}),
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Required value: type is Localhost",
        ),
        (
            c("/securityContext/appArmorProfile"),
            json!({"type": "Localhost", "localhostProfile": " x"}),
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: \" x\": must have",
        ),
        (
            "/spec/securityContext/appArmorProfile".into(),
            json!({"type": "x"}),
            "spec.securityContext.appArmorProfile.type: Unsupported value: \"x\": supported values: \"Localhost\", \"Runt",
        ),
        (
            "/spec/securityContext/appArmorProfile".into(),
            json!({"type": "Unconfined", "localhostProfile": "x"}),
            "spec.securityContext.appArmorProfile.localhostProfile: Invalid value: \"x\": may only be given when type",
        ),
        (
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1a".into(),
            json!("unconfined"),
            "",
        ),
        (
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1a".into(),
            json!("x"),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: Invalid value: \"x\": must be runtime/default",
        ),
        (
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1z".into(),
            json!("unconfined"),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/z]: Invalid value: names no container",
        ),
        ("/metadata/annotations/cdi.k8s.io~1gpu".into(), json!("v.example/gpu=0,v.example/gpu=1"), ""),
        (
            "/metadata/annotations/cdi.k8s.io~1gpu".into(),
            json!("v.example/gpu=0,gpu"),
            "metadata.annotations[cdi.k8s.io/gpu]: Invalid value: \"v.example/gpu=0,gpu\": must be devices",
        ),
        ("/spec/securityContext/seLinuxOptions".into(), json!({"level": "s0:c1,c2"}), ""),
        (c("/securityContext/seLinuxOptions"), json!({"type": "spc_t"}), ""),
        (
            "/spec/securityContext/seLinuxChangePolicy".into(),
            json!("x"),
            "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"x\": supported values: \"MountOption\", \"Recursive\"",
        ),
        ("/spec/hostAliases".into(), json!([{"ip": "10.0.0.1", "hostnames": ["a"]}]), ""),
        (
            "/spec/hostAliases".into(),
            json!([{"ip": "x"}]),
            "spec.hostAliases[0].ip: Invalid value: \"x\": must be an IP",
        ),
        ("/spec/runtimeClassName".into(), json!("kata"), ""),
        (
            "/spec/runtimeClassName".into(),
            json!("K"),
            "spec.runtimeClassName: Invalid value: \"K\": must be at most 253 lower case",
        ),
        ("/spec/hostUsers".into(), json!(false), ""),
        (c("/lifecycle"), json!({"stopSignal": "SIGRTMIN+3"}), ""),
        (
            c("/lifecycle"),
            json!({"stopSignal": "HUP"}),
            "spec.containers[0].lifecycle.stopSignal: Invalid value: \"HUP\": must be a signal's name",
        ),
    ]);
}
