//! Volumes and where containers see them.

use super::*;

#[test]
fn volumes_and_mounts() {
    let c = |rest: &str| format!("{C}{rest}");
    each_gives_its_error(vec![
        (
            "/spec/volumes/-".into(),
            json!({"name": "V"}),
            "spec.volumes[2].name: Invalid value: \"V\": must be",
        ),
        ("/spec/volumes/-".into(), json!({"name": "v"}), "spec.volumes[2].name: Duplicate value: \"v\""),
        ("/spec/volumes/-".into(), json!({"emptyDir": {}}), "spec.volumes[2].name: Required value"),
        (
            "/spec/volumes/0/hostPath".into(),
            json!({"path": "/x"}),
            "spec.volumes[0]: Invalid value: must be of one kind, not of 2 (emptyDir, hostPath)",
        ),
        ("/spec/volumes/1/hostPath/path".into(), json!(""), "spec.volumes[1].hostPath.path: Required value"),
        (
            "/spec/volumes/1/hostPath/path".into(),
            json!("/a/../b"),
            "spec.volumes[1].hostPath.path: Invalid value: \"/a/../b\": must not",
        ),
        (
            "/spec/volumes/1/hostPath/type".into(),
            json!("Dir"),
            "spec.volumes[1].hostPath.type: Unsupported value: \"Dir\": supported values: \"",
        ),
        ("/spec/volumes/0".into(), json!({"name": "v", "image": {"reference": "model:1"}}), ""),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "image": {"pullPolicy": "Never"}}),
            "spec.volumes[0].image.reference: Required value: the image's name",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "image": {"reference": "model:1", "pullPolicy": "Sometimes"}}),
            "spec.volumes[0].image.pullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            "/spec/volumes/0/image".into(),
            json!({"reference": "model:1"}),
            "spec.volumes[0]: Invalid value: must be of one kind, not of 2 (emptyDir, image)",
        ),
        ("/spec/volumes/0".into(), json!({"name": "v", "nfs": {"server": "fd00::7", "path": "/data"}}), ""),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "nas", "path": ""}}),
            "spec.volumes[0].nfs.path: Required value: the directory",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "nas", "path": "/a/../b"}}),
            "spec.volumes[0].nfs.path: Invalid value: \"/a/../b\": must be an absolute path on the server",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "", "path": "/"}}),
            "spec.volumes[0].nfs.server: Required value: the server's name",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "-osuid", "path": "/"}}),
            "spec.volumes[0].nfs.server: Invalid value: \"-osuid\": must be a host's name or an address",
        ),
        (
            c("/volumeMounts/0/name"),
            json!("w"),
            "spec.containers[0].volumeMounts[0].name: Invalid value: \"w\": names no volume",
        ),
        (c("/volumeMounts/0/name"), json!(""), "spec.containers[0].volumeMounts[0].name: Required value"),
        (
            c("/volumeMounts/0/mountPath"),
            json!(""),
            "spec.containers[0].volumeMounts[0].mountPath: Required value",
        ),
        (
            c("/volumeMounts/1/mountPath"),
            json!("/v"),
            "spec.containers[0].volumeMounts[1].mountPath: Duplicate value: \"/v\"",
        ),
        (
            c("/volumeMounts/0/mountPropagation"),
            json!("Bidirectional"),
            "spec.containers[0].volumeMounts[0].mountPropagation: Invalid value: \"Bidirectional\": is for privileged",
        ),
        (
            c("/volumeMounts/0/mountPropagation"),
            json!("x"),
            "spec.containers[0].volumeMounts[0].mountPropagation: Unsupported value: \"x\": supported values: \"None\"",
        ),
        (
            c("/volumeMounts/0/recursiveReadOnly"),
            json!("Enabled"),
            "spec.containers[0].volumeMounts[0].recursiveReadOnly: Invalid value: \"Enabled\": may only be given when readOnly",
        ),
    ]);
}
