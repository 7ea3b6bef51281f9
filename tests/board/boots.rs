//! Reboots, clocks and a network that comes later.

use std::time::{Duration, Instant};

use crate::board::{Board, Container, DEMO};
use crate::idle;
use crate::runtime;

/// The pods end within it; logind waits for no longer than it is told.
const GRACE_SECONDS: u64 = 30;

/// Ended first, the pods, and then the machine, without a process that it has to wait for; then all run again.
pub fn graceful(board: &Board) {
    board.wait_for_pods();
    let saved = board.run("cat /etc/smolet/config.yaml");
    board.write("/etc/smolet/config.yaml", &format!("{saved}\nshutdownGracePeriod: {GRACE_SECONDS}s\n"));
    board.run(&format!(
        "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\\nInhibitDelayMaxSec={}\\n' >/etc/systemd/logind.conf.d/smolet.conf && \
         systemctl restart systemd-logind smolet",
        GRACE_SECONDS + 5
    ));
    board.put_pod(
        "deaf",
        "containers: [{name: c, image: 'smolet.test/busybox:1', command: [sh, -c, 'trap \"\" TERM; while :; do sleep 1; done']}]",
    );
    let says_so = "terminationGracePeriodSeconds: 10, volumes: [{name: out, hostPath: {path: /var/ends, type: DirectoryOrCreate}}], \
                   containers: [{name: c, image: 'smolet.test/busybox:1', volumeMounts: [{name: out, mountPath: /out}], \
                   command: [sh, -c, 'trap \"echo its end | tee -a /out/ends; exit 0\" TERM; echo its begin; \
                   while :; do sleep 0.2; done']}]";
    let polite = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: polite, annotations: {{smolet.io/log-memory: 256Ki}}}}, spec: {{{says_so}}}}}\n"
    );
    board.put("polite", &polite, Some("1/1 Running".into()));
    board.wait_for_pods();
    board.wait_for("the lock", 60, || {
        board.run("systemd-inhibit --list --no-legend").contains("smolet").then_some(())
    });
    let counts = counts(board);
    let boot = board.run("cat /proc/sys/kernel/random/boot_id");
    let begun = Instant::now();
    let _ = board.try_run("systemctl reboot");
    // The kernel says so when it begins anew.
    let down = board.wait_for("the machine's end", 300, || {
        let console = board.console();
        console.contains("reboot: Restarting system").then(|| (begun.elapsed(), console))
    });
    let next = board.wait_for("the next boot", 600, || {
        board.try_run("cat /proc/sys/kernel/random/boot_id").ok().filter(|now| now.trim() != boot)
    });
    board.figure(
        "reboot: order → kernel restarts; → ssh answers",
        format!("{:.0} s; {:.0} s", down.0.as_secs_f64(), begun.elapsed().as_secs_f64()),
    );
    assert_ne!(next, boot);
    let waited: Vec<&str> = down.1.lines().filter(|line| line.contains("Waiting for process")).collect();
    assert_eq!(waited, [""; 0], "no process is left for the machine to wait for");
    assert!(down.0 < Duration::from_secs(GRACE_SECONDS + 60), "{:?}", down.0);
    assert_eq!(board.run("cat /var/ends/ends"), "its end", "it was asked to end, once");
    all_again(board, &counts);
    let logs = "/var/log/pods/default_polite-board_*";
    assert_eq!(board.run(&format!("findmnt -n -o FSTYPE {logs}")), "tmpfs", "its logs are in memory");
    assert_eq!(board.run("smolet logs polite --previous"), "its begin\nits end", "of the last boot");
    assert_eq!(board.run("smolet logs polite"), "its begin");
    board.figure(
        "kernel's start → the last of the demo's pods runs",
        format!("{} s", board.seconds_until_demo_ran()),
    );
    std::thread::sleep(Duration::from_secs(30));
    let resident = idle::resident_mib(board);
    board.figure("resident half a minute after a reboot, 7 pods", format!("{resident:.1} MiB"));
    assert!(resident <= idle::resident_mib_max(), "{resident:.2} MiB resident");
    board.remove(&["deaf", "polite"]);
    board.write("/etc/smolet/config.yaml", &saved);
    board.run("systemctl restart smolet");
    board.wait_for_pods();
}

/// How often each container was started again.
fn counts(board: &Board) -> Vec<(String, u64)> {
    board.containers().into_iter().map(|c| (format!("{}/{}", c.uid, c.name), c.restarts)).collect()
}

/// All pods are as wanted, and none counts fewer restarts.
fn all_again(board: &Board, before: &[(String, u64)]) {
    board.wait_for_pods();
    let now = counts(board);
    for (name, count) in before {
        let found = now.iter().find(|(known, _)| known == name);
        assert!(found.is_some_and(|(_, now)| now >= count), "{name}: {count} restarts before, {found:?} now");
    }
}

/// Nothing but the clock changes; who dies then is started again.
pub fn clock_steps(board: &Board) {
    board.wait_for_pods();
    let agent = board.agent();
    let now = board.run("date +%s");
    for time in ["1970-01-02 00:00:00", "2038-01-19 03:14:30", &format!("@{now}")] {
        let before = board.running();
        board.run(&format!("date -u -s '{time}'"));
        std::thread::sleep(Duration::from_secs(20));
        board.wait_for_pods();
        assert_eq!(board.running(), before, "at {time}");
        let web = before.iter().find(|container| container.pod == "web").unwrap();
        runtime::kill(board, web);
        let begun = Instant::now();
        board.wait_for(&format!("web again at {time}"), 120, || {
            board
                .containers()
                .iter()
                .any(|c| c.pod == "web" && c.restarts == web.restarts + 1 && c.ready)
                .then_some(())
        });
        println!("  at {time} a killed container ran again after {:.0} s", begun.elapsed().as_secs_f64());
        let others = |all: Vec<Container>| all.into_iter().filter(|c| c.pod != "web").collect::<Vec<_>>();
        assert_eq!(others(board.running()), others(before));
        // A back-off that a step had stretched would keep the next one waiting.
        board.run("sleep 1");
    }
    assert_eq!(board.agent(), agent, "the agent is the same");
    // The pod that ends again and again may have ended while the clock was ahead: that is `<invalid> ago`, as kubectl says it.
    let list = board.run("smolet pods | grep -v crash-board");
    assert!(!list.contains("-1") && !list.contains("invalid"), "{list}");
}

/// Without a network the board says at its console when the demo's pods run: others may need the node's address.
fn tell_when_pods_run(board: &Board) {
    let ready = "$4 == \"Running\" { split($3, n, \"/\"); ready += n[1] == n[2] } END { print ready + 0 }";
    let script = format!(
        "until [ \"$(smolet pods | grep -E '({})-board' | awk '{ready}')\" -ge {} ]\ndo sleep 3; done\n\
         echo board: the pods run >/dev/console\n",
        DEMO.join("|"),
        DEMO.len()
    );
    board.write("/root/tells.sh", &script);
    let unit = "[Unit]\nAfter=smolet.service\n[Service]\nExecStart=/bin/sh /root/tells.sh\n[Install]\nWantedBy=multi-user.target\n";
    board.write("/etc/systemd/system/tells.service", unit);
    board.run("systemctl enable tells");
}

/// The emulator's cable is out; the pods run before anybody plugs it in.
pub fn without_network(board: &Board) {
    let counts = counts(board);
    tell_when_pods_run(board);
    board.power_off();
    board.up(&["-rtc", "base=2038-01-19T03:13:00"]);
    board.monitor("set_link nic off");
    board.wait_for("the pods of a board without a network", 600, || {
        board.console().contains("board: the pods run").then_some(())
    });
    board.monitor("set_link nic on");
    let plugged = Instant::now();
    board.wait();
    let uptime: f64 = board.run("cut -d' ' -f1 /proc/uptime").parse().unwrap();
    let plugged_at = uptime - plugged.elapsed().as_secs_f64();
    all_again(board, &counts);
    let ran = board.seconds_until_demo_ran();
    assert!(
        (ran as f64) < plugged_at,
        "the last pod ran {ran} s after the start, the cable was in after {plugged_at:.0} s"
    );
    assert!(board.run("date +%Y") == "2038", "the clock is what the hardware says");
    board.figure(
        "no network at boot, in 2038: the last pod runs; the network comes",
        format!("{ran} s; {plugged_at:.0} s"),
    );
    board.run("systemctl disable tells; rm /etc/systemd/system/tells.service");
    let address = board.run("ip -4 -o addr show dev $(ip -o route show default | awk '{ print $5 }') | awk '{ print $4 }' | cut -d/ -f1");
    board.wait_for("the node's new address", 60, || {
        board.list().iter().any(|pod| pod["status"]["hostIP"].as_str() == Some(&*address)).then_some(())
    });
}

/// systemd sets a clock that is older than itself to its own time.
pub fn in_1970(board: &Board) {
    let counts = counts(board);
    board.power_off();
    board.up(&["-rtc", "base=1970-01-01T00:00:10"]);
    board.wait();
    all_again(board, &counts);
    let ran = board.seconds_until_demo_ran();
    board.figure(
        "boot in 1970: the last pod runs",
        format!("{ran} s, the clock says {}", board.run("date +%Y")),
    );
    // The right time comes from the network, later.
    let before = board.running();
    board.run("date -s '2026-06-01 12:00:00'");
    std::thread::sleep(Duration::from_secs(20));
    board.wait_for_pods();
    assert_eq!(board.running(), before);
}
