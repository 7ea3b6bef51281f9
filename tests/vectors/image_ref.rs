//! Set `image_ref`: `parsers.ParseImageName`, `applyDefaultImageTag`, `SetDefaults_Container`.

use serde_json::json;
use smolet::image::name::{ImageName, default_pull_policy, for_runtime};

use crate::run_set;

#[test]
fn image_ref() {
    run_set("image_ref", |case| {
        let image = case.input["image"].as_str().expect("an image");
        let policy = default_pull_policy(image);
        match ImageName::parse(image) {
            Ok(name) => json!({
                "repository": name.repository,
                "tag": name.tag,
                "digest": name.digest,
                "imageForRuntime": for_runtime(image).expect("it was parsed"),
                "defaultPullPolicy": policy,
            }),
            Err(error) => json!({"error": error, "defaultPullPolicy": policy}),
        }
    });
}
