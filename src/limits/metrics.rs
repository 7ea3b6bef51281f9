//! Bounds of metric labels whose values come from outside.

/// Terminations by exit code and reason, each a line of `/metrics`. Full: further ones are counted as `other`.
pub const TERMINATIONS_MAX: usize = 128;
/// Bytes of a termination reason. Longer: counted as `other`.
pub const TERMINATION_REASON_BYTES_MAX: usize = 40;
