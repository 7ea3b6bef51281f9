//! Images: pulls with and without logins.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::agent::{Agent, container, waits_for};
use crate::registry::{Registry, STAYS, TestImage, architecture, basic, digest};
use crate::runtime::Runtime;

fn logins(registry: &Registry, login: &str) -> String {
    let (user, password) = login.split_once(':').unwrap();
    format!(
        r#"{{"auths": {{"http://{}": {{"username": "{user}", "password": "{password}"}}}}}}"#,
        registry.address
    )
}

fn pod(registry: &Registry, repository: &str, secret: &str) -> String {
    format!(
        "
  terminationGracePeriodSeconds: 2
  imagePullSecrets: [{{name: {secret}}}]
  containers:
  - {{name: app, image: '{}/{repository}:1', imagePullPolicy: Always, command: {STAYS}}}",
        registry.address
    )
}

fn secret(name: &str, config: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/dockerconfigjson\n\
         stringData: {{.dockerconfigjson: '{config}'}}\n"
    )
}

pub fn private_images_are_pulled_with_the_right_login_only(runtime: &Runtime) {
    const RIGHT: &str = "me:hunter2hunter2";
    const WRONG: &str = "me:swordfish-no-more";
    let agent = Agent::started(runtime, "logins");
    let image = TestImage::new(&agent.dir, "private", architecture());
    let registry = Registry::start(&image, &["open", "private/app"], RIGHT);

    agent.apply_pod("open", &pod(&registry, "open", "absent"));
    let open = agent.running("open");
    let image_id = container(open.status.as_ref().unwrap(), "app").unwrap().image_id.clone();
    assert!(
        image_id.contains(&digest(&image.manifest)) || image_id.contains(&digest(&image.config)),
        "{image_id}"
    );
    let described = agent.ask(&["describe", &agent.full("open")]);
    let described = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(described.contains("Unable to retrieve some image pull secrets (absent)"), "{described}");
    assert!(
        described.contains("Successfully pulled image") && described.contains("including waiting"),
        "{described}"
    );

    let waits = |name: &str| {
        let pod = agent.wait_pod(name, "waiting for its image", |status| {
            matches!(waits_for(status, "app"), Some("ErrImagePull" | "ImagePullBackOff"))
        });
        serde_json::to_string(&pod.status).unwrap()
    };
    agent.apply_pod("none", &pod(&registry, "private/app", "later"));
    waits("none");
    agent.apply("wrong", &secret("wrong", &logins(&registry, WRONG)));
    agent.apply_pod("other", &pod(&registry, "private/app", "wrong"));
    waits("other");
    assert!(registry.seen().iter().any(|(_, login)| *login == basic(WRONG)), "it was tried");
    assert!(registry.seen().iter().all(|(_, login)| *login != basic(RIGHT)), "nobody knows it yet");

    // The pod's own login, then the node's for the pod that has none.
    agent.apply("later", &secret("later", &logins(&registry, RIGHT)));
    agent.running("none");
    agent.delete("none");
    agent.wait_gone("none");
    let node_logins = agent.dir.join("root/config.json");
    fs::write(&node_logins, logins(&registry, RIGHT)).unwrap();
    fs::set_permissions(&node_logins, fs::Permissions::from_mode(0o644)).unwrap();
    agent.running("other");
    let asked = ("/v2/private/app/manifests/1".to_owned(), basic(RIGHT));
    assert!(registry.seen().contains(&asked), "{:?}", registry.seen());

    let log = agent.log();
    assert_eq!(log.matches(&format!("chmod 600 {}", node_logins.display())).count(), 1, "said once");
    for login in [RIGHT, WRONG] {
        let (_, password) = login.split_once(':').unwrap();
        for text in [password, basic(login).trim_start_matches("Basic ")] {
            assert!(!log.contains(text), "the log, at its most talkative, has no login");
        }
    }
    agent.end_pods();
}
