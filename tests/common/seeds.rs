//! The seeds of a test.

use std::ops::Range;

/// The seeds in `SMOLET_TEST_SEEDS=1000..2000`, else the usual ones. A test with one seed takes the first.
///
/// # Panics
/// The variable has no valid range, or an empty one: a typo must run neither the usual seeds nor none.
pub fn to_run(usual: Range<u64>) -> Range<u64> {
    let Some(text) = std::env::var_os("SMOLET_TEST_SEEDS") else { return usual };
    let text = text.to_string_lossy();
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    match range {
        Some(range) if !range.is_empty() => range,
        _ => panic!("SMOLET_TEST_SEEDS={text} names no seeds; write 1000..2000 for 1000 to 1999"),
    }
}
