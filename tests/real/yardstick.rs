//! How quick this machine is: what is promised of CPU time holds for one that is as quick as the yardstick, and for a slower one in
//! proportion.

use std::io::{Read as _, Write as _};

use rustix::time::{ClockId, clock_gettime};

/// CPU time of [`PASSES`] on a machine for which the promises are, in milliseconds.
const PROMISED_MS: f64 = 12.0;
/// Bytes that pass through a pipe, each by two system calls.
const PASSES: usize = 20_000;

/// How many times slower it is than promised; 1 for one that is quicker.
pub fn slowness() -> f64 {
    let best = (0..5).map(|_| measure()).fold(f64::INFINITY, f64::min);
    (best / PROMISED_MS).max(1.0)
}

fn measure() -> f64 {
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let begun = cpu_ms();
    for _ in 0..PASSES {
        writer.write_all(&[1]).expect("it is empty");
        reader.read_exact(&mut [0]).expect("it has a byte");
    }
    cpu_ms() - begun
}

fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
