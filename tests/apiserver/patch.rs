//! Patches, against the table of the RFC and the rules of Kubernetes.

use serde_json::{Value, json};

use crate::common::apiserver::patch::{PatchKind, patched};

fn strategically(object: &Value, patch: &Value) -> Value {
    patched(object, patch, PatchKind::Strategic).expect("a good patch")
}

#[test]
fn a_merge_patch_does_as_its_rfc_says() {
    // The table at the end of RFC 7386.
    for (object, patch, wanted) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        assert_eq!(patched(&object, &patch, PatchKind::Merge).as_ref(), Ok(&wanted), "{object} {patch}");
    }
}

#[test]
fn lists_with_a_key_are_merged_and_others_replaced() {
    let pod = json!({"status": {
        "conditions": [{"type": "Ready", "status": "False", "reason": "Old"}, {"type": "Other", "status": "True"}],
        "podIPs": [{"ip": "10.0.0.1"}],
        "containerStatuses": [{"name": "a"}, {"name": "b"}],
    }});
    let patch = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True", "reason": null}, {"type": "New", "status": "True", "reason": null}],
        "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}],
        "containerStatuses": [{"name": "b"}],
    }});
    let wanted = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}, {"type": "New", "status": "True"}],
        "podIPs": [{"ip": "10.0.0.2"}],
        "containerStatuses": [{"name": "b"}],
    }});
    assert_eq!(strategically(&pod, &patch), wanted);
}

#[test]
fn directives_are_followed_and_not_kept() {
    let node =
        json!({"addresses": [{"type": "InternalIP", "address": "1"}, {"type": "Hostname", "address": "a"}]});
    for (patch, wanted) in [
        (
            json!({"addresses": [{"type": "InternalIP", "address": "2"}, {"$patch": "replace"}]}),
            json!({"addresses": [{"type": "InternalIP", "address": "2"}]}),
        ),
        (json!({"$patch": "replace", "b": 1}), json!({"b": 1})),
        (json!({"$patch": "delete"}), json!({})),
        (json!({"addresses": null}), json!({})),
        (
            json!({"$setElementOrder/addresses": [{"type": "Hostname"}, {"type": "New"}, {"type": "InternalIP"}],
                "addresses": [{"type": "New", "address": "n"}]}),
            json!({"addresses": [{"type": "Hostname", "address": "a"}, {"type": "New", "address": "n"},
                {"type": "InternalIP", "address": "1"}]}),
        ),
    ] {
        assert_eq!(strategically(&node, &patch), wanted, "{patch}");
    }
    let meta = json!({"finalizers": ["a", "b"], "volume": {"name": "v", "emptyDir": {}}});
    let patch = json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c", "b"],
        "volume": {"$retainKeys": ["name", "secret"], "secret": {}}});
    assert_eq!(
        strategically(&meta, &patch),
        json!({"finalizers": ["b", "c"], "volume": {"name": "v", "secret": {}}})
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    for patch in [json!(1), json!({"$patch": "improve"}), json!({"conditions": [{"status": "True"}]})] {
        assert!(patched(&json!({"conditions": []}), &patch, PatchKind::Strategic).is_err(), "{patch}");
    }
}
