//! What the agent and the whole board cost while nothing happens.

use std::thread::sleep;
use std::time::Duration;

use crate::board::{AT_ONCE, Board};
use crate::runtime;

/// What is promised of x86-64 (docs/promises.md) is held here too: with 10 pods. With the embedded runtime, which is in the same process then:
/// of the whole node.
pub fn resident_mib_max() -> f64 {
    if runtime::is_embedded() { 6.5 } else { 5.0 }
}
/// Proportional set size of the whole node with [`PROMISED_PODS`], with the embedded runtime.
const NODE_PSS_MIB_MAX: f64 = 12.0;
/// Up to so many pods memory and wake-ups are promised.
const PROMISED_PODS: usize = 10;
/// Of all threads in a minute.
const WAKE_UPS_MAX: u64 = 400;
/// Written to the disk by the whole board, by everything that runs on it.
const DISK_KIB_A_DAY_MAX: f64 = 1024.0;
/// What a boot does by itself is over then: systemd's last timer of it fires after a quarter of an hour.
const SETTLED: Duration = Duration::from_secs(20 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);
/// How late the second look may be; a login before it would be counted.
const LOOKS: Duration = Duration::from_secs(180);

pub fn resident_mib(board: &Board) -> f64 {
    let kib: f64 = board
        .run("awk '/^VmRSS/ { print $2 }' /proc/$(systemctl show --value -p MainPID smolet)/status")
        .parse()
        .unwrap();
    kib / 1024.0
}

/// What a minute of rest has cost: agent's wake-ups, its CPU in ms, its bytes written, and the bytes that the whole disk was given.
struct Minute {
    wake_ups: u64,
    cpu_ms: u64,
    written: u64,
    disk_written: u64,
}

/// Sums before and after a minute in which no command runs there.
fn minute(board: &Board) -> Minute {
    let sums = "sums() { cat /proc/$pid/task/*/status | awk '/ctxt_switches/ { n += $2 } END { print n }'; \
         awk '{ print ($14 + $15) * 10 }' /proc/$pid/stat; awk '/^write_bytes/ { print $2 }' /proc/$pid/io; \
         awk '$3 == \"vda\" { print $10 * 512 }' /proc/diskstats; }; \
         pid=$(systemctl show --value -p MainPID smolet); sync; sleep 5; sums; sleep 60; sums";
    let found = board.run(sums);
    let numbers: Vec<u64> = found.lines().map(|line| line.parse().unwrap()).collect();
    let [wake_ups, cpu_ms, written, disk_written] = [0, 1, 2, 3].map(|at| numbers[4 + at] - numbers[at]);
    Minute { wake_ups, cpu_ms, written, disk_written }
}

fn measure(board: &Board, pods: usize) {
    let minute = minute(board);
    let resident = resident_mib(board);
    let Minute { wake_ups, cpu_ms, written, disk_written } = minute;
    board.figure(
        &format!("{pods} pods, an idle minute: resident; wake-ups; emulated CPU; written by the agent; by the whole board"),
        format!("{resident:.1} MiB; {wake_ups}; {cpu_ms} ms; {written} B; {} KiB", disk_written / 1024),
    );
    assert_eq!(written, 0, "the agent writes nothing");
    if pods > PROMISED_PODS {
        return;
    }
    assert!(wake_ups <= WAKE_UPS_MAX, "{wake_ups} wake-ups");
    assert!(resident <= resident_mib_max(), "{resident:.2} MiB resident");
}

pub fn without_pods(board: &Board) {
    // Of a fresh process: an import has passed through this one.
    board.run("systemctl restart smolet");
    measure(board, 0);
}

fn put_sleepers(board: &Board, sleepers: &[String]) {
    for some in sleepers.chunks(AT_ONCE) {
        for name in some {
            board.put_pod(name, "terminationGracePeriodSeconds: 2, containers: [{name: c, image: 'smolet.test/busybox:1', command: [forever]}]");
        }
        board.wait_for_pods();
    }
}

/// What flash gets in an hour, by the disk's own count, with ten pods that sleep. No connection is open meanwhile: sshd logs them.
pub fn hour(board: &Board) {
    board.set_aside();
    put_sleepers(board, &(0..10).map(|n| format!("sleeper-{n}")).collect::<Vec<_>>());
    // The disk first: what is read of each process takes seconds here.
    let looks = format!(
        "look() {{ awk '$3 == \"vda\" {{ print $10 / 2 }}' /proc/diskstats; \
         for at in /proc/[0-9]*; do echo \"$(cat $at/comm) $(awk '/^write_bytes/ {{ print $2 / 1024 }}' $at/io)\"; done 2>/dev/null; }}; \
         sleep {}; look >/run/before; sleep {}; look >/run/after.part; mv /run/after.part /run/after",
        SETTLED.as_secs(),
        HOUR.as_secs()
    );
    board.write("/run/looks", &looks);
    board.run("setsid sh /run/looks </dev/null >/dev/null 2>&1 &");
    sleep(SETTLED + HOUR + LOOKS);
    board.wait_for("the second look", 600, || {
        (board.run("ls /run/after 2>/dev/null || true") == "/run/after").then_some(())
    });
    let kib = |file: &str| board.run(&format!("head -n 1 /run/{file}")).parse::<f64>().unwrap();
    let disk = kib("after") - kib("before");
    let by_process = board.run(
        "awk 'FNR == 1 { file++; next } { kib[$1] += file == 1 ? -$NF : $NF } END { for (name in kib) if (kib[name] > 0) print name, kib[name] \" KiB\" }' \
         /run/before /run/after | sort | paste -sd ';'",
    );
    board.figure(
        "10 pods, an idle hour: written by the whole board; that is, a day; by process",
        format!("{disk:.0} KiB; {:.0} KiB; {by_process}", disk * 24.0),
    );
    assert!(!by_process.contains("smolet"), "the agent writes nothing: {by_process}");
    assert!(disk * 24.0 <= DISK_KIB_A_DAY_MAX, "{disk:.0} KiB in an hour");
    board.remove_all();
    board.put_back();
}

/// Nothing but pods that sleep.
pub fn with_pods(board: &Board) {
    board.set_aside();
    let sleepers: Vec<String> = (0..20).map(|n| format!("sleeper-{n}")).collect();
    for some in [&sleepers[..5], &sleepers[5..PROMISED_PODS], &sleepers[PROMISED_PODS..]] {
        put_sleepers(board, some);
        board.run("systemctl restart smolet");
        board.wait_for_pods();
        let pods = board.names().len();
        measure(board, pods);
        if pods >= PROMISED_PODS {
            whole_node(board, pods);
        }
    }
    board.remove_all();
    board.put_back();
}

fn whole_node(board: &Board, pods: usize) {
    let pss = board.run(&format!(
        "for name in smolet {}; do for pid in $(pgrep -x \"$(echo $name | cut -c1-15)\"); do \
         awk '/^Pss:/ {{ print $2 }}' /proc/$pid/smaps_rollup; done | awk -v n=$name '{{ kib += $1 }} END {{ printf \"%s %.1f, \", n, kib / 1024 }}'; done",
        runtime::processes()
    ));
    board.figure(&format!("proportional set size with {pods} pods, MiB"), pss.trim_end_matches([',', ' ']));
    let mib = |of: &str| of.split_whitespace().last().and_then(|mib| mib.parse::<f64>().ok());
    let node: f64 = pss.split(',').filter_map(mib).sum();
    assert!(!runtime::is_embedded() || pods > PROMISED_PODS || node <= NODE_PSS_MIB_MAX, "{pss}");
}
