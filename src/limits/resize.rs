//! Limits of pods whose CPU and memory change while they run.

use super::KIB;

/// Containers that run with other CPU and memory than they were made with. Full: a further pod waits to be resized until one of
/// them starts anew.
pub const RESIZES_NOTED_MAX: usize = 512;
/// Memory of one: its id and four numbers.
pub const RESIZE_NOTE_BYTES: usize = 160;
/// CPU and memory of containers in the checkpoint, of all pods that were resized while they ran: what each was granted, and what
/// it runs with. Full: of a further pod nothing is kept; after a restart of the agent it is resized once more, to the same.
pub const KEPT_SIZES_MAX: usize = 1024;
/// Memory of pods that wait to be resized, as their manifests' cost says: each is there once more, as it was granted. Full: a
/// further one is not asked whether there is room, and is resized at once.
pub const RESIZES_WAITING_BYTES_MAX: usize = 512 * KIB;
