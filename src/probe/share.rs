//! PURE: which of the probes that are due begin, so that a pod whose probes hang holds up its own only.
//!
//! The kubelet has a goroutine for each prober (`prober.worker`) and no such bound.

use crate::limits::PROBES_AT_ONCE_MAX;

/// A pod with so many probes running may begin one more while so many run in all: it never holds more turns than are left
/// free behind it. Alone a pod has half of them, the next one half of the others, and a pod without any may always have the
/// last one.
pub fn may_begin(of_pod: usize, running: usize) -> bool {
    running < PROBES_AT_ONCE_MAX && of_pod < PROBES_AT_ONCE_MAX - running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_holds_a_share_of_the_turns() {
        // How many probes hang of each pod, one pod after the other: what they get.
        for (wanted, expected) in [
            (&[40][..], &[8][..]),
            (&[3, 40], &[3, 7]),
            (&[40, 40], &[8, 4]),
            (&[40, 40, 40, 1, 1], &[8, 4, 2, 1, 1]),
            (&[1; 20], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]),
        ] {
            let mut running = 0;
            let mut got = Vec::new();
            for wanted in wanted {
                let mut of_pod = 0;
                while of_pod < *wanted && may_begin(of_pod, running) {
                    of_pod += 1;
                    running += 1;
                }
                got.push(of_pod);
            }
            assert_eq!(got, expected, "{wanted:?}");
            assert!(running <= PROBES_AT_ONCE_MAX);
        }
    }
}
