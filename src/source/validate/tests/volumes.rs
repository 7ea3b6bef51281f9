//! Volumes and where containers see them.

use super::*;

#[test]
fn volumes_and_mounts() {
    let c = |rest: &str| format!("{C}{rest}");
    each_gives_its_error(vec![
        ("/spec/volumes/-".into(), json!({"name": "V"}), "spec.volumes[2].name: \"V\": must be"),
        ("/spec/volumes/-".into(), json!({"name": "v"}), "spec.volumes[2].name: \"v\": must be unique"),
        ("/spec/volumes/-".into(), json!({"emptyDir": {}}), "spec.volumes[2].name: is required"),
        (
            "/spec/volumes/0/hostPath".into(),
            json!({"path": "/x"}),
            "spec.volumes[0]: must be of one kind, not of 2 (emptyDir, hostPath)",
        ),
        ("/spec/volumes/1/hostPath/path".into(), json!(""), "spec.volumes[1].hostPath.path: is required"),
        (
            "/spec/volumes/1/hostPath/path".into(),
            json!("/a/../b"),
            "spec.volumes[1].hostPath.path: \"/a/../b\": must not",
        ),
        (
            "/spec/volumes/1/hostPath/type".into(),
            json!("Dir"),
            "spec.volumes[1].hostPath.type: \"Dir\": must be one of",
        ),
        ("/spec/volumes/0".into(), json!({"name": "v", "image": {"reference": "model:1"}}), ""),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "image": {"pullPolicy": "Never"}}),
            "spec.volumes[0].image.reference: is required: the image's name",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "image": {"reference": "model:1", "pullPolicy": "Sometimes"}}),
            "spec.volumes[0].image.pullPolicy: \"Sometimes\": must be one of Always, IfNotPresent, Never",
        ),
        (
            "/spec/volumes/0/image".into(),
            json!({"reference": "model:1"}),
            "spec.volumes[0]: must be of one kind, not of 2 (emptyDir, image)",
        ),
        ("/spec/volumes/0".into(), json!({"name": "v", "nfs": {"server": "fd00::7", "path": "/data"}}), ""),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "nas", "path": ""}}),
            "spec.volumes[0].nfs.path: is required: the directory",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "nas", "path": "/a/../b"}}),
            "spec.volumes[0].nfs.path: \"/a/../b\": must be an absolute path on the server",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "", "path": "/"}}),
            "spec.volumes[0].nfs.server: is required: the server's name",
        ),
        (
            "/spec/volumes/0".into(),
            json!({"name": "v", "nfs": {"server": "-osuid", "path": "/"}}),
            "spec.volumes[0].nfs.server: \"-osuid\": must be a host's name or an address",
        ),
        (
            c("/volumeMounts/0/name"),
            json!("w"),
            "spec.containers[0].volumeMounts[0].name: \"w\": names no volume",
        ),
        (c("/volumeMounts/0/name"), json!(""), "spec.containers[0].volumeMounts[0].name: is required"),
        (
            c("/volumeMounts/0/mountPath"),
            json!(""),
            "spec.containers[0].volumeMounts[0].mountPath: is required",
        ),
        (
            c("/volumeMounts/1/mountPath"),
            json!("/v"),
            "spec.containers[0].volumeMounts[1].mountPath: \"/v\": must be unique",
        ),
        (
            c("/volumeMounts/0/mountPropagation"),
            json!("Bidirectional"),
            "spec.containers[0].volumeMounts[0].mountPropagation: \"Bidirectional\": is for privileged",
        ),
        (
            c("/volumeMounts/0/mountPropagation"),
            json!("x"),
            "spec.containers[0].volumeMounts[0].mountPropagation: \"x\": must be one of None",
        ),
        (
            c("/volumeMounts/0/recursiveReadOnly"),
            json!("Enabled"),
            "spec.containers[0].volumeMounts[0].recursiveReadOnly: \"Enabled\": may only be given when readOnly",
        ),
    ]);
}
