//! Bounds of probes, and of lifecycle hooks where they share them.

use std::time::Duration;

use super::{
    CONTAINER_BYTES, EVENT_MESSAGE_BYTES_MAX, EXEC_OUTPUT_BYTES_MAX, KIB, PODS_BYTES_MAX, PODS_IN_HAND_MAX,
    Share,
};

/// Probes of the containers of managed pods. All that [`PODS_BYTES_MAX`] admits fit; terminating pods may still have theirs.
/// Full: the probes of a further pod are not run, with a message, and it is not ready, until there is space.
pub const PROBERS_MAX: usize = 3 * (PODS_BYTES_MAX / CONTAINER_BYTES);
/// Bytes of one prober, its entry included; the container's id is shared.
pub const PROBER_BYTES_MAX: usize = 128;
/// Probes that run at once: each of this many pods has a permit of its own, and a share of the common ones. Full: further ones wait
/// in the order of their due times; those that start late are counted.
pub const PROBES: Share = Share { own: 24, common: 5 };
/// Greatest number of running probes.
pub const PROBES_AT_ONCE_MAX: usize = PROBES.most();
/// Exec lifecycle hooks that run at once: each pod has a permit of its own, and a share of the common ones. Full: a further one
/// waits; a preStop hook within its grace period.
pub const HOOKS_EXEC: Share = Share { own: PODS_IN_HAND_MAX, common: 40 };
/// A probe that starts this long after its due time is late.
pub const PROBE_LATE: Duration = Duration::from_secs(1);
/// Attempts of a probe that cannot be run (kubelet `maxProbeRetries`).
pub const PROBE_TRIES_MAX: u32 = 3;
/// Bytes kept of a probe's output: as many as an event's message has. Longer: cut.
pub const PROBE_OUTPUT_BYTES_MAX: usize = EVENT_MESSAGE_BYTES_MAX;
/// Bytes of a body that are read (kubelet `maxRespBodyLength`). Longer: the rest is not read.
pub const PROBE_BODY_BYTES_MAX: usize = 10 * KIB;
/// Bytes of a response's head. Longer: the probe fails.
pub const PROBE_HEAD_BYTES_MAX: usize = 16 * KIB;
/// Bytes that a server may send without TLS, those of HTTP/2's frames and of chunks included. More: the probe fails.
pub const PROBE_ANSWER_BYTES_MAX: usize = 128 * KIB;
/// Bytes that a server may send before its TLS handshake is done, most of them its certificates. More: the probe fails.
pub const TLS_HANDSHAKE_BYTES_MAX: usize = 16 * KIB;
/// Bytes that it may send after the handshake, as they are on the wire. More: the probe fails.
pub const TLS_DATA_BYTES_MAX: usize = PROBE_HEAD_BYTES_MAX + PROBE_BODY_BYTES_MAX + 16 * KIB;
/// Bytes of a TLS connection besides its received data: its configuration and keys.
const TLS_STATE_BYTES_MAX: usize = 8 * KIB;
/// Requests of one probe: the first, and one for each redirect on its host (Go's `http.Client`). More: the probe fails.
pub const PROBE_REQUESTS_MAX: usize = 10;
/// Host names that are resolved at once, one thread for each; as many again for hooks, and for each server of the agent's own.
/// Six pods whose resolvers do not answer hold two threads, or one each. Full: a further one waits, within its probe's timeout.
pub const LOOKUPS: Share = Share { own: 6, common: 2 };
/// Addresses of one host that are tried. More: the rest is not.
pub const ADDRESSES_TRIED_MAX: usize = 4;
/// Addresses of a name that are looked at: of them the tried ones are chosen, of both families. More: the rest is ignored.
pub const ADDRESSES_READ_MAX: usize = 64;
/// How long an address may not accept before the next one is tried beside it.
pub const CONNECT_HEAD_START: Duration = Duration::from_millis(300);
/// Bytes of a running probe: all that TLS receives, as records or as the response's head and body; or an exec's two outputs; and
/// the final message.
pub const PROBE_BYTES_MAX: usize =
    TLS_STATE_BYTES_MAX + TLS_HANDSHAKE_BYTES_MAX + TLS_DATA_BYTES_MAX + PROBE_OUTPUT_BYTES_MAX;
const _: () = assert!(2 * EXEC_OUTPUT_BYTES_MAX + PROBE_OUTPUT_BYTES_MAX <= PROBE_BYTES_MAX);
