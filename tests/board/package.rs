//! The package on a device: installed, upgraded, removed, purged.

use std::path::PathBuf;
use std::time::Instant;

use crate::board::Board;
use crate::runtime;

fn package() -> PathBuf {
    std::env::var_os("SMOLET_PACKAGE")
        .expect("SMOLET_PACKAGE names the package of the board's architecture")
        .into()
}

pub fn installed(board: &Board) {
    board.up(&[]);
    board.wait();
    board.figure("kernel's start → ssh answers, first boot", format!("{:.0} s", board.seconds_to_ssh()));
    assert_eq!(board.run("stat -f -c %T /sys/fs/cgroup"), "cgroup2fs");
    let package = package();
    board.upload(&package, "/root/smolet.deb");
    let bytes = std::fs::metadata(&package).unwrap().len();
    board.figure(
        "package; what it installs",
        format!("{:.1} MiB; {}", bytes as f64 / 1_048_576.0, {
            let kib: u64 = board.run("dpkg-deb -f /root/smolet.deb Installed-Size").parse().unwrap();
            format!("{:.1} MiB", kib as f64 / 1024.0)
        }),
    );
    let begun = Instant::now();
    board.run("DEBIAN_FRONTEND=noninteractive apt-get install -y /root/smolet.deb");
    board.figure("installation of the package", format!("{:.0} s", begun.elapsed().as_secs_f64()));
    assert_eq!(board.run("systemctl is-active smolet; systemctl is-enabled smolet"), "active\nenabled");
    runtime::permit(board);
    board.keep_settings();
    // As docs/images.md says.
    board.run("for archive in /root/images/*.tar; do smolet image import $archive; done");
    board.wait_for("the images", 120, || {
        board.run("smolet image ls").contains("smolet.test/version").then_some(())
    });
}

pub fn doctor(board: &Board) {
    let said = board.run("smolet doctor");
    assert!(said.lines().any(|line| line.starts_with("0 problems")), "{said}");
    assert!(said.contains("cgroup"), "{said}");
    let log = board.log();
    let warnings: Vec<&str> =
        log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    assert_eq!(warnings, [""; 0]);
}

/// The same version over itself takes the way of an upgrade.
pub fn purged(board: &Board) {
    board.wait_for_pods();
    let before = board.running();
    let agent = board.agent();
    let begun = Instant::now();
    board.run("DEBIAN_FRONTEND=noninteractive apt-get install -y --reinstall /root/smolet.deb");
    board.figure("upgrade of the package", format!("{:.0} s", begun.elapsed().as_secs_f64()));
    assert_ne!(board.agent(), agent, "the new agent runs");
    board.wait_for_pods();
    assert_eq!(board.running(), before, "its pods run on");

    board.run("apt-get remove -y smolet");
    for container in &before {
        assert_ne!(runtime::pid_of(board, &container.id), "", "{container:?} runs");
    }
    board.run("apt-get install -y /root/smolet.deb");
    board.wait_for_pods();
    assert_eq!(board.running(), before, "and are found again");

    board.remove_all();
    board.run("apt-get purge -y smolet");
    let left = board.run("ls -d /usr/bin/smolet /etc/default/smolet /etc/smolet/config.yaml /run/smolet /var/lib/smolet/* 2>/dev/null || true");
    assert_eq!(left, "/var/lib/smolet/images", "archives are the user's, and nothing else stays");
    let cgroups = board.run("find /sys/fs/cgroup -type d -name 'pod*' -path '*kubepods*'");
    assert_eq!(cgroups, "", "no cgroup of a pod stays");
    assert_eq!(board.run(runtime::left()), "");
}
