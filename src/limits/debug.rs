//! Bounds of `smolet debug`.

use std::time::Duration;

use super::{CONTAINER_BYTES, KIB, PODS_BYTES_MAX, STREAM_COMMAND_BYTES_MAX};

/// Debug containers of one pod. Full: the oldest that has ended makes room; while all run, a further one is refused.
pub const DEBUGGERS_PER_POD_MAX: usize = 8;
/// Debug containers of all pods. Full: as with one pod.
pub const DEBUGGERS_MAX: usize = 16;
/// Bytes of a debug container's image and command. Longer: refused.
pub const DEBUGGER_BYTES_MAX: usize = 4 * KIB;
/// Words of its command. More: refused.
pub const DEBUGGER_WORDS_MAX: usize = 64;
/// Memory of a debug container: its typed object with its texts.
pub const DEBUGGER_MEMORY_BYTES: usize = CONTAINER_BYTES + DEBUGGER_BYTES_MAX + 40 * DEBUGGER_WORDS_MAX;
/// Memory of the pods that have debug containers, as their manifests' cost says: each is there once more, with them.
/// Full: a further pod gets none.
pub const DEBUGGED_PODS_BYTES_MAX: usize = 256 * KIB;
/// How often `smolet debug` asks whether the container runs that it waits for. There is no end to the wait but its user's.
pub const DEBUG_WAIT: Duration = Duration::from_millis(250);

const _: () = assert!(DEBUGGERS_PER_POD_MAX <= DEBUGGERS_MAX);
const _: () = assert!(DEBUGGER_BYTES_MAX <= STREAM_COMMAND_BYTES_MAX);
const _: () = assert!(DEBUGGED_PODS_BYTES_MAX <= PODS_BYTES_MAX);
