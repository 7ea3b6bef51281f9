//! The demo's pods and the gateway's, and the commands that look into them.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use crate::board::{AT_ONCE, Board, PODS_SECONDS, root};
use crate::runtime;

fn manifests(below: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(root().join(below)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn name(file: &std::path::Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}

pub fn demo(board: &Board) {
    let begun = Instant::now();
    for file in manifests("tests/manifests") {
        let text = fs::read_to_string(&file).unwrap();
        let wanted = text.lines().find_map(|line| line.strip_prefix("# Expected: ")).unwrap().to_owned();
        board.put(&name(&file), &text, Some(wanted));
    }
    board.wait_for_pods();
    board.figure(
        "the demo's five manifests → all as expected, first time",
        format!("{:.0} s", begun.elapsed().as_secs_f64()),
    );
}

pub fn commands(board: &Board) {
    let page = board.run("smolet exec web -- cat /www/index.html");
    assert_eq!(page, "smolet test page 1");
    assert_eq!(board.run("echo word | smolet exec -i web -- cat"), "word");
    assert_eq!(board.run("smolet exec web -- sh -c 'exit 7' || echo $?").lines().last(), Some("7"));
    assert!(board.run("smolet logs crash 2>&1").contains("cannot go on"));
    assert_eq!(board.run("smolet logs job"), "2");
    let top = board.run("smolet top");
    assert!(top.contains("web-board") && !top.contains("<unknown>"), "{top}");
    let got = board.run(
        "smolet port-forward web 18080:8080 >/run/forward 2>&1 & forward=$!; \
         for n in $(seq 60); do grep -q 18080 /run/forward && break; sleep 0.5; done; \
         bash -c 'exec 3<>/dev/tcp/127.0.0.1/18080; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3'; kill $forward",
    );
    assert!(got.contains("smolet test page 1"), "{got}");
    let debugged = board.run(
        "smolet debug web --image smolet.test/busybox:2 -c looks -- cat /etc/version; \
         for n in $(seq 60); do smolet logs web -c looks 2>/dev/null | grep . && break; sleep 0.5; done",
    );
    assert!(debugged.lines().any(|line| line == "2"), "{debugged}");
    let described = board.run("smolet describe web");
    assert!(described.contains("smolet.test/busybox:1"), "{described}");
}

pub fn gateway(board: &Board) {
    board.run("mkdir -p /srv/node-red && chown 1000:1000 /srv/node-red");
    for some in manifests("examples/gateway").chunks(AT_ONCE) {
        for file in some {
            let wanted = match &*name(file) {
                "fetch-model" => Some("0/1 Completed"),
                "log-shipper" | "prometheus" => Some("2/2 Running"),
                // No serial adapter is plugged into this board.
                "modbus-reader" => None,
                _ => Some("1/1 Running"),
            };
            let text = fs::read_to_string(file).unwrap();
            board.put(&name(file), &runtime::with_stand_ins(&text), wanted.map(str::to_owned));
        }
        board.wait_for_pods();
    }
    let waits = board.run("smolet describe modbus-reader");
    assert!(waits.contains("hostPath type check failed"), "{waits}");

    // Its program takes more memory than it may, once.
    let node_red = board.wait_for("the OOM kill", PODS_SECONDS, || {
        let list = board.list();
        let pod = list.iter().find(|pod| pod["metadata"]["name"] == "node-red-board")?;
        let status = pod["status"]["containerStatuses"][0].clone();
        (status["restartCount"] == 1 && status["ready"] == true).then_some(status)
    });
    let last = &node_red["lastState"]["terminated"];
    assert_eq!(
        (last["reason"].as_str(), last["exitCode"].as_u64()),
        (Some("OOMKilled"), Some(137)),
        "{last}"
    );
    // Its program may still begin.
    let get = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/9100; printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3'";
    let metrics = board.wait_for("the node's metrics", 60, || board.try_run(get).ok());
    assert!(metrics.contains("node_uid 65534"), "{metrics}");
    board.figure(
        "resident with the demo's and the gateway's pods",
        format!("{:.1} MiB", crate::idle::resident_mib(board)),
    );
}
