//! smolet's pure core against the kubelet's own answers, set by set.
//!
//! The vectors come from `SMOLET_VECTORS`, else from `../shared/vectors`, else from the compact part in
//! `tests/vectors/data`. A missing set is a failure; each set prints its "agree/total". Two sets need a protobuf library that
//! tests under an emulator go without.

#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;

mod compute_pod_actions;
mod compute_pod_actions_restart_all;
#[cfg(target_arch = "x86_64")]
mod container_config;
mod container_hash;
mod container_statuses;
mod cpu_memory_conversion;
mod crash_backoff;
mod env_expand;
#[cfg(target_arch = "x86_64")]
mod fixture;
mod gc;
mod image_ref;
mod labels_annotations;
mod lifecycle_order;
mod pod_input;
#[cfg(target_arch = "x86_64")]
mod protojson;
mod recorder;
#[cfg(target_arch = "x86_64")]
mod sandbox_config;
mod sync_pod_calls;

/// Where the vectors are.
fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("SMOLET_VECTORS") {
        return PathBuf::from(folder);
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let shared = root.join("../shared/vectors");
    if shared.is_dir() { shared } else { root.join("tests/vectors/data") }
}

/// One case of a set, with its index over all generated cases.
pub struct Case {
    pub number: u64,
    pub input: Value,
    pub expected: Value,
}

/// Runs every case of `set`. `answer` computes our output in the vectors' shape; `normal` brings both sides to a
/// common form (absent = empty). Panics after the last case with each difference when any disagrees.
pub fn run_set(set: &str, answer: impl Fn(&Case) -> Value) {
    let path = folder().join(format!("{set}.jsonl"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("set {set} is missing: {}: {e}", path.display()));
    let (mut total, mut agree, mut report) = (0, 0, String::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut row: Value = serde_json::from_str(line).expect("a vector is one JSON object a line");
        let case = Case {
            number: row["case"].as_u64().expect("a vector has a case number"),
            input: row["in"].take(),
            expected: normal(row["out"].take()),
        };
        total += 1;
        let ours = normal(answer(&case));
        if ours == case.expected {
            agree += 1;
        } else if report.len() < 20_000 {
            let short: String = case.input.to_string().chars().take(1500).collect();
            let _ = writeln!(
                report,
                "\n{set} case {}\n  in     {short}\n  kubelet {}\n  smolet  {ours}",
                case.number, case.expected
            );
        }
    }
    println!("vectors {set}: {agree}/{total}");
    assert!(total > 0, "set {set} holds no case");
    assert!(agree == total, "{set}: {agree}/{total} agree{report}");
}

/// The fixtures of the `container_config` and `sandbox_config` sets.
#[cfg(target_arch = "x86_64")]
pub fn fixtures() -> Value {
    let path = folder().join("config_fixtures.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("fixtures are JSON")
}

/// Absent, null and empty arrays are alike in the vectors (their README, "Conventions").
fn normal(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, normal(value)))
                .filter(|(_, value)| !value.is_null() && value.as_array().is_none_or(|a| !a.is_empty()))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(normal).collect()),
        other => other,
    }
}

/// An outsider's clone has the compact part only: it must hold every set, in little space.
#[test]
fn the_compact_part_holds_every_set_in_two_megabytes() {
    const BYTES_MAX: u64 = 2_000_000;
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/data");
    let files = |folder: PathBuf| -> std::collections::BTreeMap<String, u64> {
        std::fs::read_dir(&folder)
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "jsonl"))
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect()
    };
    let (compact, whole) = (files(data), files(folder()));
    assert_eq!(compact.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
    assert_eq!(compact.len(), 14);
    assert!(compact.values().all(|bytes| *bytes > 1000));
    assert!(compact.values().sum::<u64>() <= BYTES_MAX);
}
