//! Set `container_hash`: `kubecontainer.HashContainer`.

use serde_json::json;

use crate::run_set;

#[test]
fn container_hash() {
    run_set("container_hash", |case| {
        let container = &case.input["container"];
        let text = |field: &str| container[field].as_str().unwrap_or_default().to_owned();
        let hash = smolet::model::container_hash(&text("name"), &text("image"));
        let mut ours = json!({"hash": hash, "hashHex": format!("{hash:x}")});
        // Shown for the first cases only, as an explanation; not an output of the function.
        for shown in ["hashedJSON", "hashedText"] {
            if let Some(text) = case.expected.get(shown) {
                ours[shown] = text.clone();
            }
        }
        ours
    });
}
