//! The node's lease (`component-helpers/apimachinery/lease`). PURE.

use serde_json::{Value, json};

use crate::model::Wall;

/// The namespace of all nodes' leases.
pub const NAMESPACE: &str = "kube-node-lease";

/// The lease of that node, renewed at `now` for `seconds`. `version` is the resource version of the lease that it replaces, if
/// there is one; `uid` that of the Node which owns it.
pub fn lease(node: &str, seconds: u16, uid: Option<&str>, version: Option<&str>, now: Wall) -> Value {
    let mut metadata = json!({"name": node, "namespace": NAMESPACE});
    if let Some(version) = version {
        metadata["resourceVersion"] = version.into();
    }
    if let Some(uid) = uid {
        metadata["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]);
    }
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
        "spec": {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": micro(now)},
    })
}

/// `v1.MicroTime`.
fn micro(at: Wall) -> String {
    let whole = at.to_string();
    let micros = at.0.rem_euclid(1_000_000_000) / 1_000;
    format!("{}.{micros:06}Z", whole.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_the_nodes_and_goes_with_it() {
        let at = Wall::of_civil(2026, 1, 2, 3 * 3600 + 4 * 60 + 5);
        let lease = lease("gw", 40, Some("u"), Some("7"), Wall(at.0 + 6_789_000));
        assert_eq!(lease["spec"]["renewTime"], "2026-01-02T03:04:05.006789Z");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
        assert_eq!(lease["metadata"]["resourceVersion"], "7");
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(
            super::lease("gw", 40, None, None, at)["metadata"],
            json!({"name": "gw", "namespace": NAMESPACE})
        );
    }
}
