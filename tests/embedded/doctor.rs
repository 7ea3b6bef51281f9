//! `smolet doctor` beside an agent that runs its pods itself, and without one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use serde_json::Value;
use smolet::clock::SystemClock;
use smolet::cri_server::CriServer;

use super::machine::{Machine, output, remove_sandbox, run_sandbox, stop_sandbox};

/// What it says of one check on a node with that state directory: level, message and mend of each finding.
async fn findings(machine: &Machine, root: &Path, check: &str) -> Vec<[String; 3]> {
    let mut command = Command::new(&machine.settings.program);
    command.args(["doctor", "--output", "json", "--runtime-endpoint", "embedded", "--socket"]);
    command.arg(machine.root.join("smolet.sock")).arg("--root-dir").arg(root);
    let output = smol::unblock(move || command.output()).await.unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let of = said["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check);
    of.map(|finding| ["level", "message", "mend"].map(|name| finding[name].as_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn pods_whose_network_is_not_as_it_was_made_are_named() {
    let machine = Machine::new();
    let root = machine.root.join("state");
    machine.run(async {
        let runtime = machine.open().await;
        let server = CriServer::bind(&machine.root.join("cri.sock")).unwrap();
        let serving = server.run(Rc::new(runtime.clone()), machine.executor.clone(), Rc::new(SystemClock));
        let serving = machine.executor.spawn("CRI server", serving);
        let mut pods = Vec::new();
        for name in ["whole", "no-link", "no-address", "ended"] {
            pods.push(run_sandbox(&runtime, machine.pod(name)).await);
        }
        assert!(findings(&machine, &root, "pod network").await.is_empty());
        machine.inside(&pods[1], "ip link delete eth0");
        machine.inside(&pods[2], "ip address flush dev eth0");
        machine.inside(&pods[3], "ip link delete eth0");
        stop_sandbox(&runtime, &pods[3]).await;
        let mut named = findings(&machine, &root, "pod network").await;
        named.sort();
        println!("{named:#?}");
        for ([level, message, mend], pod) in named.iter().zip([2, 1]) {
            let name = ["", "no-link", "no-address"][pod];
            let begin = format!("pod default/{name}: sandbox {}: CNI plugin bridge of network", pods[pod]);
            assert!(
                level == "problem" && message.starts_with(&begin) && message.contains(": CHECK: "),
                "{message}"
            );
            assert!(mend.contains("new sandbox"), "{mend}");
        }
        assert_eq!(named.len(), 2);
        for pod in &pods {
            remove_sandbox(&runtime, pod).await;
        }
        drop(serving);
    });
    // The plugin reads the addresses of its rules from the interface.
    machine.remove_rules();
    machine.assert_clean();
}

#[test]
fn without_an_agent_it_is_found_out_whether_overlays_can_be_mounted() {
    let machine = Machine::new();
    let at = |name: &str| machine.root.join(name);
    for name in ["lower", "upper", "work", "over"] {
        fs::create_dir(at(name)).unwrap();
    }
    // The upper directory of an overlay cannot be on an overlay.
    let options = ["lower", "upper", "work"].map(|name| at(name).display().to_string());
    let options = format!("lowerdir={},upperdir={},workdir={}", options[0], options[1], options[2]);
    output(Command::new("mount").args(["-t", "overlay", "none", "-o", &options]).arg(at("over")));
    machine.run(async {
        let found = findings(&machine, &at("over").join("root"), "overlayfs").await;
        let [[level, message, mend]] = &found[..] else { panic!("{found:?}") };
        assert!(level == "warning" && message.contains("gets a full copy of its image"), "{message}");
        assert!(mend.contains("modprobe overlay") && mend.contains("CONFIG_OVERLAY_FS"), "{mend}");
        assert!(findings(&machine, &at("there/root"), "overlayfs").await.is_empty());
    });
    let names =
        |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert!(names(&at("over")).is_empty(), "nothing of it stays");
    assert!(names(&machine.root).iter().all(|name| !name.to_string_lossy().starts_with('.')));
    output(Command::new("umount").arg("--lazy").arg(at("over")));
    machine.assert_clean();
}
