//! PURE: fields that the server sets in a created pod: defaults, its initial status, and, when a test requests it, the volume
//! with the service account's token.

use serde_json::{Map, Value, json};

use super::pki::base64;

/// Mount path of the token.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of an admitted token; the odd number is the real server's, which marks these tokens by it.
const TOKEN_SECONDS: i64 = 3607;

/// Sets the defaults of `SetDefaults_Pod` that a node reads, and the initial status.
pub fn pod(pod: &mut Value) {
    let qos = qos(pod);
    // A mirror pod has no service account.
    let mirror = pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    put(
        spec,
        &json!({
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "enableServiceLinks": true,
        }),
    );
    if !mirror {
        put(spec, &json!({"serviceAccountName": "default"}));
        let account = spec["serviceAccountName"].clone();
        spec.entry("serviceAccount").or_insert(account);
    }
    for container in containers(spec) {
        // An image with a mutable tag is pulled always.
        let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
        let name = image.rsplit('/').next().unwrap_or_default();
        let moves = !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
        put(
            container,
            &json!({
                "imagePullPolicy": if moves { "Always" } else { "IfNotPresent" },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "resources": {},
            }),
        );
    }
    pod["status"] = json!({"phase": "Pending", "qosClass": qos});
}

/// Moves a Secret's `stringData` into `data`.
pub fn secret(secret: &mut Value) {
    let Some(fields) = secret.as_object_mut() else { return };
    let texts = fields.remove("stringData");
    let data = fields.entry("data").or_insert_with(|| json!({}));
    let Some(data) = data.as_object_mut() else { return };
    for (key, text) in texts.as_ref().and_then(Value::as_object).into_iter().flatten() {
        data.insert(key.clone(), base64(text.as_str().unwrap_or_default().as_bytes()).into());
    }
    put(fields, &json!({"type": "Opaque"}));
}

/// Fields that the admission plugin `ServiceAccount` sets.
pub fn service_account_token(pod: &mut Value, volume: &str) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("automountServiceAccountToken") == Some(&Value::Bool(false)) {
        return;
    }
    let mut mounted = false;
    for container in containers(spec) {
        let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
        let Some(mounts) = mounts.as_array_mut() else { continue };
        if mounts.iter().all(|mount| mount["mountPath"] != TOKEN_PATH) {
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
            mounted = true;
        }
    }
    if !mounted {
        return;
    }
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]);
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    if let Some(volumes) = volumes.as_array_mut() {
        volumes.push(json!({"name": volume, "projected": {"sources": sources, "defaultMode": 420}}));
    }
}

/// All containers with these fields, init containers included.
fn containers(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let lists = spec.iter_mut().filter(|(key, _)| matches!(key.as_str(), "containers" | "initContainers"));
    lists.filter_map(|(_, list)| list.as_array_mut()).flatten().filter_map(Value::as_object_mut)
}

/// Adds missing fields.
fn put(object: &mut Map<String, Value>, defaults: &Value) {
    for (key, value) in defaults.as_object().into_iter().flatten() {
        object.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// `ComputePodQOS`, for equal quantities with equal notation.
fn qos(pod: &Value) -> &'static str {
    let lists = ["/spec/containers", "/spec/initContainers"];
    let containers: Vec<&Value> =
        lists.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten().collect();
    let of = |container: &Value, kind: &str, what: &str| {
        container["resources"][kind].get(what).cloned().filter(|quantity| !is_zero(quantity))
    };
    let (mut any, mut all) = (false, true);
    for container in containers {
        for what in ["cpu", "memory"] {
            let limit = of(container, "limits", what);
            let request = of(container, "requests", what).or(limit.clone());
            any |= request.is_some();
            all &= limit.is_some() && limit == request;
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

fn is_zero(quantity: &Value) -> bool {
    match quantity {
        Value::String(text) => text.trim_end_matches(char::is_alphabetic).trim_matches('0').is_empty(),
        other => other.as_f64() == Some(0.0),
    }
}
