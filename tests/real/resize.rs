//! CPU and memory of a running pod change: what the runtime takes, and what the kernel has then.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PodStatus;

use crate::agent::{Agent, PATIENCE, container, id_of};
use crate::runtime::{Runtime, wait_for};

/// Of a manifest that gives its UID, so that it stays the same pod.
const UID: &str = "5a2e0c1e-0000-4000-8000-000000000001";

/// One that is resized while it runs, and one that starts anew for it.
fn pod(cpu: [&str; 2], memory: [&str; 2]) -> String {
    let one = |name: &str, policy: &str| {
        format!(
            "  - name: {name}\n    image: smolet.test/busybox:1\n    command: [sh, -c, 'exec forever']\n    resizePolicy: \
             [{{resourceName: cpu, restartPolicy: {policy}}}]\n    resources: {{requests: {{cpu: {}, memory: {}}}, limits: \
             {{cpu: {}, memory: {}}}}}\n",
            cpu[0], memory[0], cpu[1], memory[1]
        )
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: grows, uid: {UID}}}\nspec:\n  terminationGracePeriodSeconds: 2\n  \
         containers:\n{}{}",
        one("stays", "NotRequired"),
        one("restarts", "RestartContainer")
    )
}

/// A cgroup's limits: quota of CPU, weight of CPU, memory.
fn limits(runtime: &Runtime, below: &str) -> [String; 3] {
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let directory = |controller: &str| -> PathBuf {
        let root = Path::new("/sys/fs/cgroup").join(if v2 { "" } else { controller });
        let kubepods = root.join(runtime.cgroup_root.trim_start_matches('/')).join("kubepods");
        kubepods.join(format!("burstable/pod{UID}")).join(below)
    };
    // One that was replaced meanwhile has none.
    let read = |controller: &str, file: &str| {
        std::fs::read_to_string(directory(controller).join(file)).unwrap_or_default().trim().to_owned()
    };
    if v2 {
        let max = read("cpu", "cpu.max");
        let weight: i64 = read("cpu", "cpu.weight").parse().unwrap_or_default();
        // As version 1 has it, as far as that can be said.
        let shares = ((weight - 1) * 262_142 / 9999 + 2).to_string();
        [max.split(' ').next().unwrap_or_default().to_owned(), shares, read("memory", "memory.max")]
    } else {
        let [quota, shares] = ["cpu.cfs_quota_us", "cpu.shares"].map(|file| read("cpu", file));
        [quota, shares, read("memory", "memory.limit_in_bytes")]
    }
}

/// These limits; weights within what a conversion leaves of them.
fn has(runtime: &Runtime, below: &str, quota: i64, shares: i64, memory: i64) -> bool {
    let [q, s, m] = limits(runtime, below);
    let about = s.parse::<i64>().is_ok_and(|s| (s - shares).abs() <= 28);
    (q, m) == (quota.to_string(), memory.to_string()) && about
}

pub fn a_running_pod_gets_other_cpu_and_memory(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "resize");
    agent.apply("grows", &pod(["100m", "200m"], ["32Mi", "64Mi"]));
    let before = agent.running("grows");
    let (stays, restarts) = (id_of(&before, "stays"), id_of(&before, "restarts"));
    assert!(has(runtime, &stays, 20_000, 102, 64 << 20), "{:?}", limits(runtime, &stays));
    assert!(has(runtime, "", 40_000, 204, 128 << 20), "{:?}", limits(runtime, ""));

    for (cpu, memory, [quota, shares, bytes]) in [
        (["200m", "400m"], ["32Mi", "96Mi"], [40_000, 204, 96 << 20]),
        // One way and the other.
        (["300m", "500m"], ["16Mi", "48Mi"], [50_000, 307, 48 << 20]),
        (["50m", "100m"], ["16Mi", "48Mi"], [10_000, 51, 48 << 20]),
    ] {
        agent.apply("grows", &pod(cpu, memory));
        wait_for("the containers and their pod have it", PATIENCE, || {
            let again = agent.pod("grows").filter(|pod| {
                let status = pod.status.as_ref();
                let running = |name: &str| {
                    status.and_then(|status| container(status, name)).is_some_and(|container| container.ready)
                };
                running("stays") && running("restarts")
            })?;
            let other = id_of(&again, "restarts");
            let done = has(runtime, &stays, quota, shares, bytes)
                && has(runtime, &other, quota, shares, bytes)
                && has(runtime, "", 2 * quota, 2 * shares, 2 * bytes);
            done.then_some(())
        });
    }
    let after = agent.wait_pod("grows", "it is done", |status| {
        let of = |name: &str| container(status, name).and_then(|container| container.resources.clone());
        let told = |kind: &str| status.conditions.iter().flatten().any(|one| one.type_ == kind);
        !told("PodResizeInProgress")
            && ["stays", "restarts"].iter().all(|name| {
                let limits = of(name).and_then(|resources| resources.limits).unwrap_or_default();
                limits.get("cpu").is_some_and(|cpu| cpu.0 == "100m")
            })
    });
    let status = after.status.clone().unwrap_or_default();
    assert_eq!(id_of(&after, "stays"), stays, "it ran on");
    assert_ne!(id_of(&after, "restarts"), restarts);
    let count = |name: &str| container(&status, name).map(|container| container.restart_count);
    assert_eq!((count("stays"), count("restarts")), (Some(0), Some(3)));

    // Another agent finds it as it is, whatever the checkpoint had when the one before was killed.
    agent.kill();
    agent.start();
    let id = |status: &PodStatus| container(status, "restarts").and_then(|of| of.container_id.clone());
    let last = id(&status);
    agent.wait_pod("grows", "it is found", |found| id(found) == last);
    assert!(has(runtime, &stays, 10_000, 51, 48 << 20), "{:?}", limits(runtime, &stays));

    // Less than it uses is not set.
    agent.apply("grows", &pod(["50m", "100m"], ["4Ki", "8Ki"]));
    let told = agent.wait_pod("grows", "it is told", |status| {
        let conditions = status.conditions.iter().flatten();
        let told = conditions.filter(|one| one.type_ == "PodResizeInProgress");
        told.into_iter().any(|one| {
            one.message.as_deref().is_some_and(|words| words.starts_with("cannot decrease memory limits: "))
        })
    });
    assert_eq!(id_of(&told, "stays"), stays);
    let count = |name: &str| container(told.status.as_ref()?, name).map(|container| container.restart_count);
    assert_eq!((count("stays"), count("restarts")), (Some(0), Some(3)), "none was started anew for it");
    assert!(has(runtime, &stays, 10_000, 51, 48 << 20), "{:?}", limits(runtime, &stays));
    agent.end_pods();
}
