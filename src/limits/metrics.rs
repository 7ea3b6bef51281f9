//! Bounds of what is counted by words that are not ours.

/// Ways in which containers ended: exit codes and reasons, each a line of `/metrics`. Full: further ways are counted as `other`.
pub const TERMINATIONS_MAX: usize = 128;
/// Bytes of such a reason. Longer: counted as `other`.
pub const TERMINATION_REASON_BYTES_MAX: usize = 40;
