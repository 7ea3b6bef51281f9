//! Deterministic simulation: the real loop on virtual time and an in-memory runtime, with seeded trouble of every kind.
//!
//! One thread, no socket: the same seed does the same, call for call. A failure prints its seed;
//! `SMOLET_TEST_SEEDS=1000..2000` runs other ones, `SMOLET_TEST_LOG=1` shows the agent's log.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "the seed, and what was simulated")]

#[path = "../common/mod.rs"]
mod common;
mod poison;
mod rules;
mod runtime;
mod scenario;
mod world;

use std::io::Write as _;
use std::time::Duration;

use scenario::Scenario;

/// Seeds of an ordinary run.
const SEEDS: std::ops::Range<u64> = 0..6;
/// What these come to at least.
const HOURS_MIN: u64 = 2_000;
const TROUBLED_HOURS_MIN: u64 = 100;

#[test]
fn after_any_trouble_exactly_what_is_wanted_runs() {
    let seeds = common::seeds::to_run(SEEDS);
    // Two cores, two seeds at a time: each has its own world.
    let halves = std::thread::scope(|scope| {
        let half = |odd: u64| {
            seeds.clone().filter(move |seed| seed % 2 == odd).map(Scenario::run).collect::<Vec<_>>()
        };
        let odd = scope.spawn(move || half(1));
        let mut ended = half(0);
        ended.extend(odd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended
    });
    let (mut lived, mut quiet, mut calls, mut events, mut lives) = (Duration::ZERO, Duration::ZERO, 0, 0, 0);
    for ended in halves {
        lived += ended.lived;
        quiet += ended.quiet;
        calls += ended.calls;
        events += ended.events;
        lives += ended.lives;
    }
    let (hours, troubled) = (lived.as_secs() / 3600, (lived - quiet).as_secs() / 3600);
    // Not `println`: it is to be seen of a test that passes, too.
    let _ = writeln!(
        std::io::stdout(),
        "simulated, seeds {seeds:?}: {hours} node-hours, {troubled} of them in trouble, {lives} lives of the agent, {calls} \
         calls, {events} events"
    );
    if seeds == SEEDS {
        assert!(hours >= HOURS_MIN && troubled >= TROUBLED_HOURS_MIN, "docs/promises.md promises more");
    }
}

#[test]
fn the_same_seed_does_the_same() {
    let [first, second, other] = [1, 1, 6].map(|seed| Scenario::run(seed).digest);
    assert_eq!(first, second);
    assert_ne!(first, other, "another seed does something else");
}
