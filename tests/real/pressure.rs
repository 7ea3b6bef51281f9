//! The node is short of disk or memory: thresholds that are met on every machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::PodStatus;
use smolet::cri::Runtime as _;

use crate::agent::{Agent, container};
use crate::images::docker_archive;
use crate::registry::{Registry, STAYS, TestImage, architecture};
use crate::runtime::{Runtime, wait_for};

/// Stays whatever the node is short of.
const CRITICAL: &str = "priorityClassName: system-node-critical";

/// A KubeletConfiguration that ends pods as this says.
fn config(agent: &Agent, eviction: &str) -> PathBuf {
    let file = agent.dir.join("eviction.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimageGCHighThresholdPercent: 100\n\
         imageMinimumGCAge: 1ms\nevictionPressureTransitionPeriod: 1s\nevictionHard: {{{eviction}}}\n"
    );
    fs::write(&file, text).unwrap();
    file
}

/// One container of busybox that does this and stays.
fn pod(script: &str, more: &str) -> String {
    format!(
        "
  {more}
  terminationGracePeriodSeconds: 2
  volumes: [{{name: data, emptyDir: {{}}}}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, '{script}; touch /data/done; while :; do sleep 1; done']
    readinessProbe: {{exec: {{command: [test, -e, /data/done]}}, periodSeconds: 1, timeoutSeconds: 20}}
    volumeMounts: [{{name: data, mountPath: /data}}]"
    )
}

fn is_evicted(status: &PodStatus) -> bool {
    (status.phase.as_deref(), status.reason.as_deref()) == (Some("Failed"), Some("Evicted"))
}

/// The names of all images, or their ids.
fn images(runtime: &Runtime) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut add = |image: smolet::cri::Image| {
        names.insert(image.repo_tags.first().unwrap_or(&image.id).to_string());
    };
    runtime.drive(runtime.cri.list_images(&mut add)).unwrap();
    names
}

pub fn short_of_disk_what_nobody_needs_goes_and_then_who_has_written_most(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "short-of-disk");
    let image = TestImage::new(&agent.dir, "gone", architecture());
    let registry = Registry::start(&image, &["open"], "me:unasked");
    let gone = format!("{}/open:1", registry.address);
    agent.apply_pod("user", &format!("  containers: [{{name: app, image: '{gone}', command: {STAYS}}}]"));
    agent.running("user");
    let saved = TestImage::new(&agent.dir, "kept", architecture());
    docker_archive(&agent, &agent.images().join("kept.tar"), &saved, "archive-test-kept:1");
    wait_for("the import", 60, || runtime.image("archive-test-kept:1"));
    agent.delete("user");
    agent.wait_gone("user");

    // All others, those of other tests included, are named by a pod whose turn never comes.
    let before = images(runtime);
    assert!(before.contains(&gone), "{before:?}");
    let imported = "docker.io/library/archive-test-kept:1";
    let named = before.iter().filter(|name| **name != gone && *name != imported);
    let containers: Vec<String> = named
        .enumerate()
        .map(|(n, name)| format!("  - {{name: c{n}, image: '{name}', imagePullPolicy: Never}}\n"))
        .collect();
    let first = format!("{{name: first, image: 'smolet.test/busybox:1', command: {STAYS}}}");
    agent.apply_pod(
        "keeper",
        &format!("  {CRITICAL}\n  initContainers: [{first}]\n  containers:\n{}", containers.concat()),
    );
    agent.apply_pod("little", &pod("true", ""));
    agent.apply_pod("much", &pod("head -c 50000000 /dev/zero >/data/big", ""));
    for name in ["little", "much"] {
        agent.running(name);
    }
    let init = |status: &PodStatus| {
        let first = status.init_container_statuses.iter().flatten().next();
        first.and_then(|first| first.state.as_ref()).is_some_and(|state| state.running.is_some())
    };
    agent.wait_pod("keeper", "in its first container", init);

    agent.stop();
    agent.config = config(&agent, "nodefs.available: 100Ti");
    agent.start();
    wait_for("the image that nobody needs is gone", 60, || runtime.image(&gone).is_none().then_some(()));
    let evicted = agent.wait_pod("much", "evicted", is_evicted).status.unwrap();
    let message = evicted.message.unwrap_or_default();
    assert!(
        message.starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: 100Ti"),
        "{message}"
    );
    // The next one would go ten seconds later.
    assert_eq!(agent.pod("little").unwrap().status.unwrap().phase.as_deref(), Some("Running"));
    let mut left = before;
    left.remove(&gone);
    assert_eq!(images(runtime), left);
    agent.wait_pod("keeper", "in its first container", init);
    agent.end_pods();
}

pub fn short_of_memory_the_ranked_pod_goes_and_comes_again(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "short-of-memory");
    let fill = |bytes: u32| format!("x=$(head -c {bytes} /dev/zero | tr \"\\\\0\" a)");
    agent.apply_pod("much", &pod(&fill(40_000_000), ""));
    agent.apply_pod("little", &pod(&fill(1_000_000), ""));
    agent.apply_pod("system", &pod(&fill(60_000_000), CRITICAL));
    for name in ["much", "little", "system"] {
        agent.running(name);
    }
    agent.stop();
    agent.config = config(&agent, "memory.available: 100Ti");
    agent.start();
    let evicted = agent.wait_pod("much", "evicted", is_evicted).status.unwrap();
    let message = evicted.message.unwrap_or_default();
    assert!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 100Ti, available: ")
            && message.contains("Container app was using ")
            && message.ends_with(", request is 0, has larger consumption of memory. "),
        "{message}"
    );
    // The next one would go ten seconds later.
    assert_eq!(agent.pod("little").unwrap().status.unwrap().phase.as_deref(), Some("Running"));
    agent.wait_pod("little", "evicted", is_evicted);
    agent.apply_pod("late", &pod("true", ""));
    let waits = |status: &PodStatus| {
        let waiting = container(status, "app").and_then(|app| app.state.as_ref()?.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("Evicted"))
    };
    agent.wait_pod("late", "held back", waits);

    agent.stop();
    agent.config = config(&agent, "memory.available: 1Mi");
    agent.start();
    for name in ["much", "little", "late", "system"] {
        agent.running(name);
    }
    assert_eq!(
        container(agent.pod("system").unwrap().status.as_ref().unwrap(), "app").unwrap().restart_count,
        0
    );
    agent.end_pods();
}
