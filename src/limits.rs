//! Every bound in one place. Each says what happens when it is reached; const assertions hold the relations.

use std::time::Duration;

/// One KiB.
pub const KIB: usize = 1024;
/// One MiB.
pub const MIB: usize = 1024 * KIB;

// ---- pods ------------------------------------------------------------------------------------------------

/// Pods one node runs (kubelet `maxPods`). Full: a further manifest's pod is refused with a message, what runs stays.
pub const PODS_MAX: usize = 110;

// ---- source ----------------------------------------------------------------------------------------------

// ---- sync ------------------------------------------------------------------------------------------------

// ---- grpc and cri ----------------------------------------------------------------------------------------

/// Kept bytes of each output of an `ExecSync`. Full: the rest is cut.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 16 * KIB;

// ---- images ----------------------------------------------------------------------------------------------

// ---- status and store ------------------------------------------------------------------------------------

// ---- node loop -------------------------------------------------------------------------------------------

// ---- local server ----------------------------------------------------------------------------------------

// ---- time ------------------------------------------------------------------------------------------------

/// How long any call to the runtime may take when it has no rule of its own (kubelet `runtimeRequestTimeout`).
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
