//! What this version does not do.

use super::*;

#[test]
fn what_this_version_does_not_do_is_refused() {
    for (pointer, to, field) in [
        ("/metadata/generateName", json!("a"), "metadata.generateName"),
        ("/metadata/finalizers", json!(["a.b/c"]), "metadata.finalizers"),
        (
            "/metadata/annotations/kubernetes.io~1config.mirror",
            json!("x"),
            "metadata.annotations[kubernetes.io/config.mirror]",
        ),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), "metadata.deletionTimestamp"),
        ("/spec/ephemeralContainers", json!([{"name": "e", "image": "x"}]), "spec.ephemeralContainers"),
        ("/spec/serviceAccountName", json!("s"), "spec.serviceAccountName"),
        ("/spec/serviceAccount", json!("s"), "spec.serviceAccount"),
        ("/spec/resourceClaims", json!([{"name": "s"}]), "spec.resourceClaims"),
        ("/spec/overhead", json!({"cpu": "1"}), "spec.overhead"),
        ("/spec/schedulingGates", json!([{"name": "a.b/c"}]), "spec.schedulingGates"),
        ("/spec/readinessGates", json!([{"conditionType": "a.b/c"}]), "spec.readinessGates"),
        ("/spec/resources", json!({"claims": [{"name": "x"}]}), "spec.resources.claims"),
        (
            "/spec/containers/0/volumeDevices",
            json!([{"name": "v", "devicePath": "/dev/x"}]),
            "spec.containers[0].volumeDevices",
        ),
        (
            "/spec/containers/0/resources/claims",
            json!([{"name": "x"}]),
            "spec.containers[0].resources.claims",
        ),
        (
            "/spec/containers/0/resources/limits/a.b~1gpu",
            json!("1"),
            "spec.containers[0].resources.limits[DOMAIN/NAME]",
        ),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        ),
        ("/spec/volumes/0", json!({"name": "v", "cephfs": {"monitors": ["x"]}}), "spec.volumes[0].cephfs"),
    ] {
        let mut pod = good();
        change(&mut pod, pointer, to);
        let got = errors(pod);
        assert_eq!(got.len(), 1, "{pointer}: {got:?}");
        let wanted = format!("{field}: Forbidden: is not supported by this version: ");
        assert!(got[0].starts_with(&wanted), "{pointer}: {got:?}");
    }
}

/// What a controller would make anew for ever when it failed, and what this node ignores, is taken from an API server.
#[test]
fn of_a_pod_of_an_api_server_nothing_is_refused() {
    for (pointer, to) in [
        ("/spec/securityContext/windowsOptions", json!({"runAsUserName": "x", "hostProcess": true})),
        (
            "/spec/containers/0/securityContext",
            json!({"windowsOptions": {"runAsUserName": "x", "hostProcess": true}}),
        ),
        ("/spec/os", json!({"name": "windows"})),
        ("/spec/resourceClaims", json!([{"name": "s"}])),
        ("/spec/containers/0/volumeDevices", json!([{"name": "v", "devicePath": "/dev/x"}])),
        ("/spec/volumes/0", json!({"name": "v", "csi": {"driver": "x"}})),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "t"}}]}}),
        ),
        ("/spec/containers/0/resources/limits/a.b~1gpu", json!("1")),
    ] {
        let mut pod = good();
        change(&mut pod, pointer, to);
        let pod = serde_json::from_value(pod).expect("a pod");
        let found: Vec<String> = super::super::bound(&pod).into_iter().map(|error| error.path).collect();
        assert_eq!(found, Vec::<String>::new(), "{pointer}");
    }
}
