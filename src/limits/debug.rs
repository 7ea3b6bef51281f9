//! Bounds of `smolet debug`.

use std::time::Duration;

use super::{CONTAINER_BYTES, KIB, PODS_BYTES_MAX, STREAM_COMMAND_BYTES_MAX};

/// Debug containers of one pod. Full: the oldest that has exited is replaced; while all run, a further one is refused.
pub const DEBUGGERS_PER_POD_MAX: usize = 8;
/// Debug containers of all pods. Full: as with one pod.
pub const DEBUGGERS_MAX: usize = 16;
/// Bytes of a debug container's image and command. Longer: refused.
pub const DEBUGGER_BYTES_MAX: usize = 4 * KIB;
/// Arguments of a debug container's command. More: refused.
pub const DEBUGGER_WORDS_MAX: usize = 64;
/// Memory of a debug container: its typed object with its strings.
pub const DEBUGGER_MEMORY_BYTES: usize = CONTAINER_BYTES + DEBUGGER_BYTES_MAX + 40 * DEBUGGER_WORDS_MAX;
/// Memory of the pods that have debug containers, by the cost of their manifests: each is kept a second time, with its debug
/// containers. Full: a further pod gets none.
pub const DEBUGGED_PODS_BYTES_MAX: usize = 256 * KIB;
/// How often `smolet debug` polls whether its container runs. The wait has no deadline; the user ends it.
pub const DEBUG_WAIT: Duration = Duration::from_millis(250);

const _: () = assert!(DEBUGGERS_PER_POD_MAX <= DEBUGGERS_MAX);
const _: () = assert!(DEBUGGER_BYTES_MAX <= STREAM_COMMAND_BYTES_MAX);
const _: () = assert!(DEBUGGED_PODS_BYTES_MAX <= PODS_BYTES_MAX);
