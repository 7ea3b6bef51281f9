//! Images: missing, slow, corrected.

use smolet::config::Config;
use smolet::limits::Rate;

use crate::common::TempDir;
use crate::world::World;

const SLOW: &str = "containers: [{name: app, image: 'slow:1'}]";
const LOCAL: &str = "containers: [{name: app, image: 'busybox:1'}]";

#[test]
fn a_missing_image_is_retried_after_ten_seconds_with_doubling_back_off() {
    let world = World::new();
    world.fake.missing_image("docker.io/library/nothere:1");
    world.fake.missing_image("nothere:1");
    world.put("web", "containers: [{name: app, image: 'nothere:1'}]");
    world.until("the error", |world| world.waiting("web", "app").0 == "ErrImagePull");
    assert!(world.waiting("web", "app").1.contains("nothere:1"));
    world.until("the back-off", |world| world.waiting("web", "app").0 == "ImagePullBackOff");
    let (_, message) = world.waiting("web", "app");
    assert!(message.starts_with("Back-off pulling image \"nothere:1\""), "{message}");
    world.until("three more pulls", |world| world.times("PullImage").len() == 4);
    let times = world.times("PullImage");
    let gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, wanted) in gaps.iter().zip([10, 20, 40]) {
        assert!((wanted..=wanted + 3).contains(gap), "{gaps:?}");
    }
    let shown = world.describe("web");
    assert!(shown.contains("Failed to pull image"), "{shown}");
    assert_eq!(world.count("CreateContainer"), 0);
    // The pod starts by itself once the registry has the image.
    world.fake.state().missing.clear();
    world.until("the pod", |world| world.phase("web") == "Running");
}

#[test]
fn a_pull_that_hangs_delays_no_pod_whose_image_is_present() {
    let world = World::new();
    world.fake.hang_on("PullImage", "slow");
    world.put("web", SLOW);
    world.until("the pull", |world| world.count("PullImage") == 1);
    world.run("other", LOCAL);
    world.fake.exit("other-gw/app", 1, "", "");
    world.until("its restart", |world| world.running() == ["other/app#1"]);
    world.pass(60);
    assert_eq!(world.count("PullImage"), 1, "a pull has no deadline");
    world.fake.heal("PullImage");
    world.until("the slow one", |world| world.phase("web") == "Running");
    assert_eq!(world.count("PullImage"), 1);
}

#[test]
fn a_pull_that_hangs_is_cancelled_with_its_manifest() {
    let world = World::new();
    world.fake.hang_on("PullImage", "slow");
    world.put("web", SLOW);
    world.until("the pull", |world| world.count("PullImage") == 1);
    // Waits for a permit behind the one that hangs.
    world.put("next", "containers: [{name: app, image: 'fast:1'}]");
    world.until("its sandbox", |world| world.count("RunPodSandbox next#0") == 1);
    world.pass(3);
    assert_eq!(world.count("PullImage"), 1, "one at a time");
    world.remove("web");
    world.until("its end", |world| world.pod("web").is_none());
    world.until("the next one", |world| world.phase("next") == "Running");
    assert_eq!(world.running(), ["next/app#0"]);
    assert_eq!(world.fake.state().sandboxes.len(), 1);
}

#[test]
fn a_pull_beyond_the_rate_is_reported_and_retried() {
    let world = World::without_agent();
    let config = Config { pull_rate: Some(Rate { per_second: 1, burst: 1 }), ..world.config() };
    world.put("a", SLOW);
    world.put("b", "containers: [{name: app, image: 'fast:1'}]");
    world.start_with(config);
    let late =
        |world: &World| ["a", "b"].into_iter().find(|name| world.waiting(name, "app").0 == "ErrImagePull");
    world.until("one is too soon", |world| late(world).is_some());
    let late = late(&world).unwrap();
    assert_eq!(world.waiting(late, "app").1, "pull QPS exceeded");
    assert!(world.describe(late).contains("pull QPS exceeded"));
    world.until("both run", |world| world.running().len() == 2);
    assert_eq!(world.count("PullImage"), 2, "the runtime was not called");
}

#[test]
fn a_pull_that_hangs_is_cancelled_when_the_image_is_corrected() {
    let world = World::new();
    world.fake.hang_on("PullImage", "slow");
    world.put("web", SLOW);
    world.until("the pull", |world| world.count("PullImage") == 1);
    world.put("web", LOCAL);
    world.until("the pod", |world| world.phase("web") == "Running");
    assert_eq!(world.running(), ["web/app#0"]);
    assert_eq!(world.count("RunPodSandbox"), 1, "the sandbox is kept");
}

#[test]
fn a_corrected_image_is_pulled_at_once_despite_the_old_ones_back_off() {
    let world = World::new();
    world.fake.missing_image("nothere:1");
    world.put("web", "containers: [{name: app, image: 'nothere:1'}]");
    world.until("three pulls", |world| world.times("PullImage").len() == 3);
    world.pass(2);
    world.put("web", LOCAL);
    world.pass(4);
    assert_eq!(world.running(), ["web/app#0"]);
}

#[test]
fn an_image_that_must_not_be_pulled_is_reported() {
    let world = World::new();
    world.put("web", "containers: [{name: app, image: 'slow:1', imagePullPolicy: Never}]");
    world.until("the reason", |world| world.waiting("web", "app").0 == "ErrImageNeverPull");
    assert_eq!(world.count("PullImage"), 0);
    world.fake.add_image("slow:1");
    world.until("the pod", |world| world.phase("web") == "Running");
}

#[test]
fn one_image_for_many_pods_is_pulled_once() {
    let world = World::without_agent();
    for index in 0..8 {
        world.put(&format!("web{index}"), SLOW);
    }
    world.start();
    world.until("all", |world| world.running().len() == 8);
    assert!(world.count("PullImage") <= 8, "{}", world.trace());
}

#[test]
fn a_pull_that_hangs_keeps_other_pulls_waiting_for_a_minute_only() {
    let world = World::new();
    world.fake.hang_on("PullImage", "slow");
    world.put("web", SLOW);
    world.until("the pull", |world| world.count("PullImage") == 1);
    let began = world.seconds();
    world.put("next", "containers: [{name: app, image: 'fast:1'}]");
    world.until("the next one", |world| world.phase("next") == "Running");
    let waited = world.seconds() - began;
    assert!((50..=65).contains(&waited), "{waited} s");
    world.fake.heal("PullImage");
    world.until("the slow one", |world| world.phase("web") == "Running");
    assert_eq!(world.count("PullImage"), 2, "the first pull continued beside the second");
}

#[test]
fn a_pod_restored_during_its_termination_pulls_at_once() {
    let of_volume = "volumes: [{name: v, image: {reference: 'slow:1'}}], \
                     containers: [{name: app, image: 'busybox:1', volumeMounts: [{name: v, mountPath: /v}]}]";
    for spec in [SLOW, of_volume] {
        restored_while_it_ends(spec);
    }
}

fn restored_while_it_ends(spec: &str) {
    let world = World::new();
    world.fake.missing_image("slow:1");
    world.put("web", spec);
    world.until("the back-off", |world| world.waiting("web", "app").0 == "ImagePullBackOff");
    // Pulls at 0, 10 and 30 s: the next would be at 70 s.
    world.pass(32);
    let pulls = world.count("PullImage");
    world.fake.hang("StopPodSandbox");
    world.remove("web");
    world.until("its end begins", |world| world.count("StopPodSandbox") > 0);
    // It is in the registry now, not on the node.
    world.fake.state().missing.clear();
    world.put("web", spec);
    world.pass(2);
    world.fake.heal("StopPodSandbox");
    let begun = world.seconds();
    world.until("the pod", |world| world.phase("web") == "Running");
    assert!(world.seconds() - begun <= 5, "{} s", world.seconds() - begun);
    assert_eq!(world.count("PullImage"), pulls + 1);
}

/// The pulls so far: image and user.
fn pulls(world: &World) -> Vec<String> {
    let pulls =
        world.actions().into_iter().filter_map(|call| Some(call.strip_prefix("PullImage ")?.to_owned()));
    pulls.collect()
}

fn logins(registry: &str, user: &str, password: &str) -> String {
    format!(r#"{{"auths": {{"{registry}": {{"username": "{user}", "password": "{password}"}}}}}}"#)
}

/// A pull secret of that name.
fn pull_secret(name: &str, registry: &str, user: &str, password: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/dockerconfigjson\n\
         stringData: {{.dockerconfigjson: '{}'}}\n",
        logins(registry, user, password)
    )
}

const PRIVATE: &str = "r.io/team/app:1";
const WITH_SECRETS: &str = "imagePullSecrets: [{name: a}, {name: ''}, {name: b}], \
                            containers: [{name: app, image: 'r.io/team/app:1'}]";

fn private_image() -> World {
    let world = World::new();
    world.fake.state().private.insert(PRIVATE.into(), ("me".into(), "hunter2hunter2".into()));
    world
}

/// The text is in no output and no file.
fn nowhere(world: &World, text: &str) {
    for path in ["/pods", "/pods?output=yaml", "/pods?output=table", "/describe?pod=web-gw", "/metrics"] {
        let (_, body) = world.ask(path);
        assert!(!body.contains(text), "{path} shows {text}: {body}");
    }
    let mut dirs = vec![world.path("root")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().unwrap() != "config.json" {
                let kept = std::fs::read(&path).unwrap();
                assert!(!kept.windows(text.len()).any(|part| part == text.as_bytes()), "{}", path.display());
            }
        }
    }
}

#[test]
fn a_corrected_pull_secret_gives_access_at_once() {
    let world = private_image();
    world.put("web", WITH_SECRETS);
    world.until("the error", |world| world.waiting("web", "app").0 == "ErrImagePull");
    let missing =
        "Unable to retrieve some image pull secrets (a, b); attempting to pull the image may not succeed.";
    let shown = world.describe("web");
    assert!(shown.contains("FailedToRetrieveImagePullSecret") && shown.contains(missing), "{shown}");
    assert_eq!(pulls(&world), [PRIVATE], "anonymous");

    world.put_text("b", &pull_secret("b", "r.io", "me", "wrong-word"));
    world.until("the wrong login is tried", |world| pulls(world).len() == 2);
    // Until then it may be that of the previous pull.
    world.until("the back-off", |world| {
        let (reason, message) = world.waiting("web", "app");
        reason == "ImagePullBackOff" && message.contains("pull access denied, \"[a login]\" may not")
    });

    let before = world.seconds();
    world.put_text("a", &pull_secret("a", "r.io/team", "me", "hunter2hunter2"));
    world.until("the pod", |world| world.running() == ["web/app#0"]);
    assert!(world.seconds() - before < 5, "no back-off from other credentials");
    let me = format!("{PRIVATE} as me");
    assert_eq!(pulls(&world), [PRIVATE, &me, &me], "the longer path first");
    nowhere(&world, "hunter2hunter2");
    nowhere(&world, "wrong-word");
}

#[test]
fn the_nodes_credentials_come_after_the_pods() {
    let world = private_image();
    std::fs::write(world.path("root").join("config.json"), logins("*.io", "me", "hunter2hunter2")).unwrap();
    world.put_text("a", &pull_secret("a", "r.io", "other", "word"));
    world.put_text("b", &pull_secret("b", "elsewhere.io", "third", "word"));
    world.run("web", WITH_SECRETS);
    assert_eq!(pulls(&world), [format!("{PRIVATE} as other"), format!("{PRIVATE} as me")]);
    world.run("next", "containers: [{name: app, image: 'docker.org/app:1'}]");
    assert_eq!(pulls(&world).last().unwrap(), "docker.org/app:1", "no credentials match");
    nowhere(&world, "hunter2hunter2");
}

#[test]
fn all_credentials_that_failed_are_reported() {
    let world = private_image();
    std::fs::write(world.path("root").join("config.json"), logins("r.io", "me", "second")).unwrap();
    world.put_text("a", &pull_secret("a", "r.io", "me", "ab"));
    world.put("web", WITH_SECRETS);
    world.until("the error", |world| world.waiting("web", "app").0 == "ErrImagePull");
    let (_, message) = world.waiting("web", "app");
    assert!(
        message.starts_with("[failed to resolve reference") && message.matches("denied").count() == 2,
        "{message}"
    );
}

/// A pod with that name's pull secret; the default policy of a tag is `IfNotPresent`.
fn with_secret(name: &str) -> String {
    format!("imagePullSecrets: [{{name: {name}}}], containers: [{{name: app, image: '{PRIVATE}'}}]")
}

const WITHOUT_SECRET: &str = "containers: [{name: app, image: 'r.io/team/app:1'}]";

/// KEP-2535: a present image is not available to every pod.
#[test]
fn a_present_private_image_is_only_for_pods_that_may_pull_it() {
    let world = private_image();
    world.put_text("a", &pull_secret("a", "r.io", "me", "hunter2hunter2"));
    world.put_text("same", &pull_secret("same", "r.io", "me", "hunter2hunter2"));
    world.put_text("wrong", &pull_secret("wrong", "r.io", "me", "a-wrong-word"));
    world.run("web", &with_secret("a"));
    let me = format!("{PRIVATE} as me");
    assert_eq!(pulls(&world), [&*me]);

    world.put("none", WITHOUT_SECRET);
    world.put("wrong-one", &with_secret("wrong"));
    world.put("never", &WITHOUT_SECRET.replace("image:", "imagePullPolicy: Never, image:"));
    for name in ["none", "wrong-one"] {
        world.until(name, |world| world.waiting(name, "app").0 == "ErrImagePull");
    }
    world.until("never", |world| world.waiting("never", "app").0 == "ErrImageNeverPull");
    assert_eq!(pulls(&world)[1..].len(), 2, "each is pulled once");
    assert!(world.waiting("never", "app").1.contains("is not present"), "its presence is not disclosed");
    for name in ["none", "wrong-one", "never"] {
        world.remove(name);
    }

    // The same credentials from another Secret, and the same Secret after a restart of the agent: no pull.
    world.run("friend", &with_secret("same"));
    world.kill();
    world.start();
    world.fake.exit("web-gw/app", 1, "Error", "");
    world.until("its restart", |world| world.running().contains(&"web/app#1".to_owned()));
    world.run("later", &with_secret("same"));
    assert_eq!(world.count("PullImage"), 0, "{}", world.trace());
    world.put("none", WITHOUT_SECRET);
    world.until("none", |world| world.waiting("none", "app").0 == "ErrImagePull");
    nowhere(&world, "hunter2hunter2");
}

#[test]
fn a_preloaded_image_is_for_all_pods_unless_the_policy_verifies_it() {
    use smolet::image::pulled::policy::{Allowlist, VerificationPolicy};
    let listed = Allowlist::parse(&["r.io/team/*".to_owned()]).unwrap();
    let elsewhere = Allowlist::parse(&["r.io/other/*".to_owned()]).unwrap();
    for (policy, is_for_all) in [
        (VerificationPolicy::NotPreloaded, true),
        (VerificationPolicy::Never, true),
        (VerificationPolicy::NotListed(listed), true),
        (VerificationPolicy::NotListed(elsewhere), false),
        (VerificationPolicy::Always, false),
    ] {
        let world = World::without_agent();
        world.fake.state().private.insert(PRIVATE.into(), ("me".into(), "hunter2hunter2".into()));
        world.fake.add_image(PRIVATE);
        world.start_with(Config { pull_verification: policy.clone(), ..world.config() });
        world.put("web", WITHOUT_SECRET);
        if is_for_all {
            world.until("the pod", |world| world.running() == ["web/app#0"]);
            assert_eq!(world.count("PullImage"), 0, "{policy:?}");
        } else {
            world.until("the error", |world| world.waiting("web", "app").0 == "ErrImagePull");
        }
    }
}

/// An image that was pulled anonymously, or with the node's own credentials, is available to every pod.
#[test]
fn an_image_pulled_without_a_pods_credentials_is_for_all() {
    let world = private_image();
    std::fs::write(world.path("root").join("config.json"), logins("r.io", "me", "hunter2hunter2")).unwrap();
    world.run("web", WITHOUT_SECRET);
    world.put("public", "containers: [{name: app, image: 'r.io/public:1'}]");
    world.until("both", |world| world.running().len() == 2);
    std::fs::remove_file(world.path("root").join("config.json")).unwrap();
    world.run("next", WITHOUT_SECRET);
    world.run("public-too", "containers: [{name: app, image: 'r.io/public:1'}]");
    assert_eq!(world.count("PullImage"), 2, "{}", world.trace());
}

/// The agent is killed during a pull that completes: the image counts as pulled with unknown credentials.
#[test]
fn an_image_whose_pull_outlived_the_agent_is_verified() {
    for name in ["r.io/team/app:1", "app:1"] {
        let world = World::new();
        world.fake.state().private.insert(name.into(), ("me".into(), "hunter2hunter2".into()));
        let spec = format!("imagePullSecrets: [{{name: a}}], containers: [{{name: app, image: '{name}'}}]");
        world.put_text("a", &pull_secret("a", "*.io", "me", "hunter2hunter2"));
        world.fake.hang_on("PullImage", name);
        world.put("web", &spec);
        world.until("the pull", |world| world.count("PullImage") == 1);
        world.kill();
        world.remove("web");
        world.fake.add_image(name);
        world.fake.heal("PullImage");
        world.start();
        world.put("none", &spec.replace("imagePullSecrets: [{name: a}], ", ""));
        world.until("the error", |world| world.waiting("none", "app").0 == "ErrImagePull");
        let manager = world.path("root").join("image_manager");
        let named = |dir: &str| std::fs::read_dir(manager.join(dir)).map_or(0, |files| files.count());
        assert_eq!((named("pulling"), named("pulled")), (0, 1), "{name}: its intent became a record");
    }
}

/// A failed or cancelled pull leaves no record: an image that is imported afterwards is preloaded.
#[test]
fn a_failed_pull_leaves_no_record() {
    let world = private_image();
    world.put("web", WITHOUT_SECRET);
    world.until("the error", |world| world.waiting("web", "app").0 == "ErrImagePull");
    world.fake.hang_on("PullImage", "r.io/slow:1");
    world.put("slow", "containers: [{name: app, image: 'r.io/slow:1'}]");
    world.until("the pull", |world| world.times("PullImage r.io/slow:1").len() == 1);
    world.remove("slow");
    world.until("its end", |world| world.pod("slow").is_none());
    world.fake.add_image(PRIVATE);
    world.fake.add_image("r.io/slow:1");
    world.put("again", "containers: [{name: app, image: 'r.io/slow:1'}]");
    world.until("both", |world| world.running().len() == 2);
    assert_eq!(world.count("PullImage"), 2, "{}", world.trace());
}

/// What containerd has unpacked is on the disk soon, however many pods use it, and nothing is written for what is there.
#[test]
fn an_image_is_written_out_when_it_is_first_used() {
    let world = World::new();
    // Where writing out takes no time: syncfs waits for all that others write to a disk.
    let disk = TempDir::in_memory();
    world.fake.state().image_mountpoint = Some(disk.path().to_string_lossy().into_owned());
    let writes = || world.fake.count("ImageFsInfo");
    let before = writes();
    world.run("one", "containers: [{name: app, image: 'one:1'}]");
    world.run("two", "containers: [{name: app, image: 'two:1'}, {name: more, image: 'two:2'}]");
    world.pass(10);
    let after = writes();
    assert!((1..=3).contains(&(after - before)), "{} for three images", after - before);
    world.run("again", "containers: [{name: app, image: 'two:1'}]");
    world.pass(10);
    assert_eq!(writes(), after, "its image has long been on the disk");
    world.run("other", "containers: [{name: app, image: 'three:1'}]");
    world.pass(10);
    assert_eq!(writes(), after + 1);
    // Meanwhile it may have been removed, and come back.
    world.remove("other");
    world.until("its end", |world| world.fake.state().sandbox("other").is_none());
    world.pass(10);
    assert_eq!(writes(), after + 1);
    world.run("other", "containers: [{name: app, image: 'three:1'}]");
    world.pass(10);
    assert_eq!(writes(), after + 2);
}
