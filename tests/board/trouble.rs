//! Ends of the agent and of containerd; a disk that is read-only or full; too little memory.

use std::time::Instant;

use serde_json::Value;

use crate::board::{Board, Container, PODS_SECONDS};
use crate::runtime;

/// The other one runs and the containers are those of before.
fn untouched(board: &Board, before: &[Container], agent: &str) -> String {
    let now = board.wait_for("another agent", 120, || {
        let now = board.try_run("smolet pods >/dev/null && systemctl show --value -p MainPID smolet").ok()?;
        let now = now.trim().to_owned();
        (now != agent && now != "0").then_some(now)
    });
    board.wait_for_pods();
    assert_eq!(board.running(), before);
    now
}

pub fn kills(board: &Board) {
    board.wait_for_pods();
    let before = board.running();
    let mut agent = board.agent();
    let begun = Instant::now();
    board.run(&format!("kill -KILL {agent}"));
    agent = untouched(board, &before, &agent);
    board.figure(
        "agent killed → another one knows all pods",
        format!("{:.0} s", begun.elapsed().as_secs_f64()),
    );
    board.run("systemctl restart smolet");
    untouched(board, &before, &agent);
    board.run("systemctl stop smolet");
    // Nobody watches it die.
    runtime::kill(board, board_container(&before, "web"));
    board.run("systemctl start smolet");
    restarted(board, &before, "web");

    let before = board.running();
    if !runtime::is_embedded() {
        // A crash of containerd: its shims live on.
        board.run("systemctl kill --kill-whom=main -s KILL containerd");
        board.wait_for("containerd", 120, || {
            board.run("systemctl is-active containerd || true").starts_with("active").then_some(())
        });
        board.wait_for_pods();
        assert_eq!(board.running(), before, "no container is touched");
    }
    let begun = Instant::now();
    runtime::kill(board, board_container(&before, "web"));
    restarted(board, &before, "web");
    board.figure(
        "container killed → its pod is ready again",
        format!("{:.0} s", begun.elapsed().as_secs_f64()),
    );
    runtime::restart(board);
    board.wait_for_pods();
}

fn board_container<'c>(all: &'c [Container], pod: &str) -> &'c Container {
    all.iter().find(|container| container.pod == pod).unwrap_or_else(|| panic!("{pod} runs"))
}

/// This pod's container runs once more, and no other one.
fn restarted(board: &Board, before: &[Container], pod: &str) {
    let count = board_container(before, pod).restarts + 1;
    board.wait_for(&format!("{pod} with {count} restarts"), PODS_SECONDS, || {
        board.containers().iter().any(|c| c.pod == pod && c.restarts == count && c.ready).then_some(())
    });
    board.wait_for_pods();
    let others = |all: &[Container]| all.iter().filter(|c| c.pod != pod).cloned().collect::<Vec<_>>();
    assert_eq!(others(&board.running()), others(before));
}

/// The container of before was started again. On such a disk a runtime may learn of its death later.
fn again(board: &Board, before: &Container) {
    board.wait_for(&format!("{} again", before.pod), PODS_SECONDS, || {
        let all = board.containers();
        all.iter().any(|c| c.pod == before.pod && c.restarts > before.restarts && c.ready).then_some(())
    });
}

/// The kernel's own word for it: files that are open for writing do not keep it from it.
pub fn read_only(board: &Board) {
    board.wait_for_pods();
    let before = board.running();
    let agent = board.agent();
    board.run("sync; echo u >/proc/sysrq-trigger; sleep 3; ! touch /probe 2>/dev/null");
    runtime::kill(board, board_container(&before, "web"));
    std::thread::sleep(std::time::Duration::from_secs(60));
    assert_eq!(board.agent(), agent, "the agent runs on");
    let others = |all: Vec<Container>| all.into_iter().filter(|c| c.pod != "web").collect::<Vec<_>>();
    assert_eq!(others(board.running()), others(before.clone()), "and so do the pods");
    board.run("mount -o remount,rw /; touch /probe; rm /probe");
    board.wait_for_pods();
    assert_eq!(board.agent(), agent);
    again(board, board_container(&before, "web"));
    assert_eq!(others(board.running()), others(before));
}

/// Without eviction, whose subject this is otherwise, and without a byte for root either.
pub fn full_disk(board: &Board) {
    board.wait_for_pods();
    let saved = board.run("cat /etc/smolet/config.yaml");
    let calm = "evictionHard: {memory.available: 50Mi}\nimageGCHighThresholdPercent: 100\n";
    board.write("/etc/smolet/config.yaml", &format!("{saved}\n{calm}"));
    board.run("systemctl restart smolet");
    board.wait_for_pods();
    let before = board.running();
    let agent = board.agent();
    board.run("fallocate -l $(($(stat -f -c '%f * %S' /))) /fill || true; cat /dev/zero >/fill-too 2>/dev/null || true; sync");
    assert_eq!(board.run("df --output=avail / | tail -n 1"), "0");
    runtime::kill(board, board_container(&before, "web"));
    std::thread::sleep(std::time::Duration::from_secs(60));
    assert_eq!(board.agent(), agent, "the agent runs on");
    let others = |all: Vec<Container>| all.into_iter().filter(|c| c.pod != "web").collect::<Vec<_>>();
    assert_eq!(others(board.running()), others(before.clone()), "and so do the pods");
    board.run("rm -f /fill /fill-too");
    board.wait_for_pods();
    again(board, board_container(&before, "web"));
    // And what is written then is whole.
    board.write("/etc/smolet/config.yaml", &saved);
    board.run("systemctl restart smolet");
    board.wait_for_pods();
    assert_eq!(others(board.running()), others(before));
    assert!(!board.log().contains("is damaged"), "{}", board.log());
}

/// Pods that take all there is go, and the others stay.
pub fn memory(board: &Board) {
    // Nobody has to wait for five minutes afterwards. On 100 MiB an emulated board reads its programs from the disk again and again, and
    // containerd does not answer in time.
    let saved = board.run("cat /etc/smolet/config.yaml");
    let settings = "evictionPressureTransitionPeriod: 10s\nevictionHard: {memory.available: 20%}\n";
    board.write("/etc/smolet/config.yaml", &format!("{saved}\n{settings}"));
    board.run("systemctl restart smolet");
    board.wait_for_pods();
    let before = board.running();
    let agent = board.agent();

    // Faster than any agent looks: the kernel kills the process that has most.
    let all_at_once = "dd if=/dev/zero of=/dev/null count=1 bs=$(awk \"/^MemTotal/ { print int(\\$2 * 0.95) }\" /proc/meminfo)k";
    let spec = format!(
        "restartPolicy: Never, terminationGracePeriodSeconds: 1, containers: [{{name: c, image: 'smolet.test/busybox:1', \
         command: [sh, -c, '{all_at_once}']}}]"
    );
    let why = end_of(board, "hog", &spec);
    board.figure("a pod that takes all memory at once ends", why);
    assert_eq!(board.agent(), agent);
    assert_eq!(board.running(), before, "the others stay");

    // What a process has written into memory does not go with it: there the agent has to see it in time, which looks every ten
    // seconds then. More than the threshold in that time would be too fast for it.
    let by_and_by = "first=$(awk \"/^MemTotal/ { all = \\$2 } /^MemAvailable/ { print int((\\$2 - all * 0.3) / 1024) }\" /proc/meminfo); \
                     dd if=/dev/zero of=/memory/first bs=1M count=$first; \
                     n=0; while sleep 1; do dd if=/dev/zero of=/memory/$n bs=1M count=2; n=$((n + 1)); done";
    let spec = format!(
        "restartPolicy: Never, terminationGracePeriodSeconds: 1, volumes: [{{name: memory, emptyDir: {{medium: Memory}}}}], containers: \
         [{{name: c, image: 'smolet.test/busybox:1', command: [sh, -c, '{by_and_by}'], \
         volumeMounts: [{{name: memory, mountPath: /memory}}]}}]"
    );
    let why = end_of(board, "hoarder", &spec);
    assert!(why.contains("Evicted"), "{why}");
    board.figure("a pod that fills an emptyDir of memory with 2 MiB a second ends", why);
    assert_eq!(board.agent(), agent);
    assert_eq!(board.running(), before, "the others stay");

    board.write("/etc/smolet/config.yaml", &saved);
    board.run("sleep 15; systemctl restart smolet");
    board.wait_for_pods();
}

/// Until this pod has failed; then it is removed.
fn end_of(board: &Board, name: &str, spec: &str) -> String {
    let text = format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n");
    board.put(name, &text, None);
    let begun = Instant::now();
    // Without memory the board may not answer for a while.
    let why = board.wait_for(&format!("the end of {name}"), PODS_SECONDS, || {
        let list = board.try_run("smolet pods -o json").ok()?;
        let list: Value = serde_json::from_str(&list).unwrap();
        let pod = list["items"]
            .as_array()?
            .iter()
            .find(|pod| pod["metadata"]["name"] == format!("{name}-board"))?;
        let status = &pod["status"];
        let why = [&status["reason"], &status["containerStatuses"][0]["state"]["terminated"]["reason"]];
        (status["phase"] == "Failed").then(|| why.map(ToString::to_string).join(" "))
    });
    let seconds = begun.elapsed().as_secs();
    board.remove(&[name]);
    board.wait_for_pods();
    format!("after {seconds} s: {}", why.replace('"', ""))
}
