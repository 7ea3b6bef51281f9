//! smolet on an emulated ARM board: Debian 12 with systemd, cgroup v2, AppArmor and Debian's containerd, made by
//! tests/env/board-image.sh and booted by tests/env/board.sh. `make board` runs it; docs/board.md says what it holds.
//!
//! One board goes through all steps in order, as a device goes through its life: installed, used, tormented, purged. A step that fails
//! ends itself, not the run, unless the board no longer answers. `SMOLET_PACKAGE` names the package, `SMOLET_BOARD_SHORT=1` takes the steps
//! of the short form only, `SMOLET_BOARD_CUTS` says how often the power is cut, `SMOLET_BOARD_SEED` repeats a run's
//! instants, `SMOLET_BOARD_RUNTIME=embedded` is a board without containerd, `SELINUX=1` is a board with SELinux. Arguments are parts of names of steps.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "figures, and what the board said last")]

mod board;
mod boots;
mod cgroups;
mod cuts;
mod idle;
mod package;
mod pods;
mod rights;
mod runtime;
mod trouble;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use board::Board;

/// In which forms a step is taken.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// In both, and whatever steps are named: the others need it.
    Base,
    Both,
    Long,
    /// Only where its name is given: it takes longer than all others.
    Named,
}
use Form::{Base, Both, Long, Named};

type Step = (&'static str, Form, fn(&Board));

const STEPS: &[Step] = &[
    ("the package is installed as the README says", Base, package::installed),
    ("doctor finds nothing wrong", Both, package::doctor),
    ("an agent without pods", Long, idle::without_pods),
    ("the demo's pods run from image archives", Base, pods::demo),
    ("logs, exec, top, port-forward, debug", Both, pods::commands),
    ("cgroups of every class, driver cgroupfs", Both, cgroups::cgroupfs),
    ("cgroups of every class, driver systemd", Long, cgroups::systemd),
    ("AppArmor, seccomp, fsGroup, sysctls", Long, rights::all),
    ("SELinux", Long, rights::selinux),
    ("a pod with users of its own", Long, rights::users),
    ("the agent killed, stopped, restarted; containerd killed", Long, trouble::kills),
    ("a reboot ends the pods first", Both, boots::graceful),
    ("the gateway's pods run from image archives", Long, pods::gateway),
    ("an idle minute with 5, 10 and 20 pods", Long, idle::with_pods),
    ("an hour of rest", Named, idle::hour),
    ("the clock is stepped while pods run", Long, boots::clock_steps),
    ("no network at boot, in 2038", Long, boots::without_network),
    ("a boot in 1970", Long, boots::in_1970),
    ("a read-only root file system", Long, trouble::read_only),
    ("a full disk", Long, trouble::full_disk),
    ("memory pressure", Long, trouble::memory),
    ("power cuts", Both, cuts::all),
    ("power cuts after an image's import", Long, cuts::after_import),
    ("the package is upgraded, removed and purged", Long, package::purged),
];

/// Not the short form.
fn is_long() -> bool {
    std::env::var_os("SMOLET_BOARD_SHORT").is_none()
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let taken = |(name, form, _): &Step| {
        let is_named =
            wanted.is_empty() && *form != Named || wanted.iter().any(|word| name.contains(word.as_str()));
        let is_possible = match *name {
            "SELinux" => runtime::has_selinux() && runtime::is_embedded(),
            name => !name.starts_with("AppArmor") || !runtime::has_selinux(),
        };
        *form == Base || is_named && is_possible && (is_long() || *form == Both)
    };
    let board = Board::new();
    let mut failed = Vec::new();
    for (name, form, run) in STEPS.iter().filter(|step| taken(step)) {
        let (begun, names) = (Instant::now(), board.names());
        println!("{name} ...");
        let done = catch_unwind(AssertUnwindSafe(|| run(&board))).is_ok();
        let seconds = begun.elapsed().as_secs();
        println!("{name}: {} ({seconds} s)", if done { "ok" } else { "FAILED" });
        if !done {
            failed.push(*name);
            board.last_words();
            if *form == Base || !board.settle(&names) {
                break;
            }
        }
    }
    board.print_figures();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join("; "));
    ExitCode::FAILURE
}
