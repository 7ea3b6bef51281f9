//! The decision core: docs/promises.md promises 2 µs and no allocation for the plan of an unchanged pod.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{NOW, pod};
use divan::{AllocProfiler, Bencher, black_box};
use smolet::limits::{BACKOFF_ENTRIES_MAX, CRASH_BACKOFF_MAX};
use smolet::model::backoff::{Backoff, BackoffKey};
use smolet::model::{DesiredPod, Mono, ObservedPod};
use smolet::sync::Probes;
use smolet::sync::plan::{PlanInput, plan};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

fn bench_plan(bencher: Bencher<'_, '_>, observed: &ObservedPod, pod: &DesiredPod) {
    let (probes, backoff) = (Probes::default(), full_table());
    let input = PlanInput {
        pod,
        observed,
        probes: &probes,
        backoff: &backoff,
        now: NOW,
        restart_all: false,
        resizing: false,
    };
    bencher.bench_local(|| plan(black_box(&input)));
}

#[divan::bench]
fn unchanged_pod_of_three_containers(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    bench_plan(bencher, &observed, &pod);
}

#[divan::bench]
fn pod_of_three_crashed_containers(bencher: Bencher<'_, '_>) {
    let (pod, mut observed) = pod();
    observed.containers.drain(..3);
    bench_plan(bencher, &observed, &pod);
}

fn key(n: usize) -> BackoffKey {
    BackoffKey::image(&"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0".into(), &n.to_string())
}

fn full_table() -> Backoff {
    let mut table = Backoff::new(Mono(0), CRASH_BACKOFF_MAX);
    for n in 0..BACKOFF_ENTRIES_MAX {
        table.restore(key(n), Duration::from_mins(5), NOW.mono);
    }
    table
}

#[divan::bench]
fn backoff_lookup_in_a_full_table(bencher: Bencher<'_, '_>) {
    let (table, key) = (full_table(), key(500));
    bencher.bench_local(|| table.held_since(black_box(key), Some(NOW.mono), NOW.mono));
}

#[divan::bench]
fn backoff_next_in_a_full_table(bencher: Bencher<'_, '_>) {
    let (mut table, key) = (full_table(), key(500));
    bencher.bench_local(|| table.next(black_box(key), Some(NOW.mono), NOW.mono));
}

#[divan::bench]
fn backoff_key(bencher: Bencher<'_, '_>) {
    let (pod, _) = pod();
    bencher.bench_local(|| BackoffKey::container(black_box(&pod), &pod.containers()[0]));
}
