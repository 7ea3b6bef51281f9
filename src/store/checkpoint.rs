//! PURE: the checkpoint and its encoding. It holds only what the runtime does not store.
//!
//! ```text
//!     "smolet" │ version │ CRC-32 of the body, little endian │ body (minicbor)
//!     boot, instant of the write                     the boot, and the time within it
//!     pods:   uid, key, status record, active for    restart counts, last ends, phase, conditions
//!             debuggers                              containers added by `smolet debug`
//!             sizes                                  allocated and actual CPU and memory (in-place resize)
//!     crashes, pulls: key, wait, age                 back-offs
//!     images: reference, first seen, last used       for garbage collection
//! ```
//!
//! Ages and remaining durations are stored. Read in the same boot, the time since the write is added; after a reboot it is
//! unknown, and they continue from the agent's start. Only the ages of back-offs count by the wall clock then: nothing is
//! written while nothing changes, so that after quiet days the failure before them would look seconds old. A wrong clock ends a
//! wait early, or not at all.

use std::time::Duration;

use minicbor::{Decode, Encode};

use super::codec;
use crate::limits::{
    BACKOFF_ENTRIES_MAX, CHECKPOINT_BYTES_MAX, CHECKPOINT_PODS_MAX, CHECKPOINT_SIZES_MAX,
    CHECKPOINT_TEXT_BYTES_MAX, DEBUGGER_BYTES_MAX, DEBUGGER_WORDS_MAX, DEBUGGERS_MAX, DEBUGGERS_PER_POD_MAX,
    IMAGES_SEEN_MAX, RESTORED_RESTART_COUNT_MAX,
};
use crate::model::{Debugger, Mono, Now, Wall};

/// Magic number at the file's beginning.
const MAGIC: &[u8; 6] = b"smolet";
/// Format version. Fields are numbered and may be added without a new version; it is raised when a field's meaning changes.
const VERSION: u8 = 1;
const SUM_BYTES: usize = size_of::<u32>();
const HEAD_BYTES: usize = MAGIC.len() + 1 + SUM_BYTES;
/// Approximate bytes of a pod besides its status.
const POD_BYTES: usize = 160;

/// A checkpoint. It borrows from the state that is written, or from the bytes that were read: nothing is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Checkpoint<'a> {
    /// The boot it was written in (`/proc/sys/kernel/random/boot_id`).
    #[b(0)]
    pub boot: &'a str,
    /// Time of the write, in milliseconds since that boot.
    #[n(1)]
    pub written_ms: u64,
    /// Pods with a status.
    #[b(2)]
    pub pods: Vec<PodCheckpoint<'a>>,
    /// Crash-loop back-offs.
    #[n(3)]
    pub crashes: Vec<BackoffCheckpoint>,
    /// Back-offs of image pulls.
    #[n(4)]
    pub pulls: Vec<BackoffCheckpoint>,
    /// Images that were detected.
    #[b(5)]
    pub images: Vec<ImageCheckpoint<'a>>,
    /// Time of the write on the wall clock, in milliseconds since 1970; `None` in files of earlier releases.
    #[n(6)]
    pub written_wall_ms: Option<u64>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct PodCheckpoint<'a> {
    /// `metadata.uid`.
    #[b(0)]
    pub uid: &'a str,
    /// `metadata.namespace`.
    #[b(1)]
    pub namespace: &'a str,
    /// `metadata.name`.
    #[b(2)]
    pub name: &'a str,
    /// Its status ([`codec`]).
    #[cbor(b(3), with = "minicbor::bytes")]
    pub status: &'a [u8],
    /// How long it has been active, in milliseconds.
    #[n(4)]
    pub active_ms: Option<u64>,
    /// Its containers from `smolet debug`; `None` = none.
    #[b(5)]
    pub debuggers: Option<Vec<Debugger<'a>>>,
    /// It was terminated by the node's shutdown.
    #[n(6)]
    pub shut_down: Option<bool>,
    /// Its allocated resources, and the actual ones of its resized containers; `None` = as created.
    #[b(7)]
    pub sizes: Option<Vec<SizesCheckpoint<'a>>>,
}

/// CPU and memory of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SizesCheckpoint<'a> {
    /// The container's name for allocated resources, its id in the runtime for actual ones.
    #[b(0)]
    pub name: &'a str,
    /// Actual resources, not allocated ones.
    #[n(1)]
    pub runs: bool,
    /// CPU request and limit in millicores, memory request and limit in bytes; 0 = not set.
    #[n(2)]
    pub sizes: [i64; 4],
}

/// An entry of a back-off table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct BackoffCheckpoint {
    /// Its key in the table.
    #[n(0)]
    pub key: u64,
    /// The wait, in milliseconds.
    #[n(1)]
    pub wait_ms: u64,
    /// Time since its last update, in milliseconds.
    #[n(2)]
    pub age_ms: u64,
}

/// An image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ImageCheckpoint<'a> {
    /// Its id, or a container's `imageRef`.
    #[b(0)]
    pub image: &'a str,
    /// Time since it was first detected, in milliseconds.
    #[n(1)]
    pub first_ms: u64,
    /// Time since it was last used, in milliseconds.
    #[n(2)]
    pub last_ms: u64,
}

/// Why bytes are not a valid checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Of a newer version.
    Newer,
    /// Truncated, corrupted, or not a checkpoint.
    Damaged,
}

/// Encodes a checkpoint.
pub fn to_bytes(checkpoint: &Checkpoint<'_>) -> Vec<u8> {
    // Most of it are the pods' records: with this capacity the buffer does not grow step by step.
    let records: usize = checkpoint.pods.iter().map(|pod| pod.status.len() + POD_BYTES).sum();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + records);
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.extend_from_slice(&[0; SUM_BYTES]);
    // `Infallible`: writing to a vector does not fail.
    let _ = minicbor::encode(checkpoint, &mut bytes);
    let sum = crc32(&bytes[HEAD_BYTES..]).to_le_bytes();
    bytes[HEAD_BYTES - SUM_BYTES..HEAD_BYTES].copy_from_slice(&sum);
    bytes
}

/// Decodes a checkpoint, whole or not at all.
///
/// # Errors
/// The bytes are damaged, of a newer version, or exceed a limit.
pub fn from_bytes(bytes: &[u8]) -> Result<Checkpoint<'_>, Unreadable> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Unreadable::Damaged)?;
    let (version, rest) = rest.split_first().ok_or(Unreadable::Damaged)?;
    if *version > VERSION {
        return Err(Unreadable::Newer);
    }
    let (sum, body) = rest.split_first_chunk::<SUM_BYTES>().ok_or(Unreadable::Damaged)?;
    if *version != VERSION || bytes.len() > CHECKPOINT_BYTES_MAX || crc32(body) != u32::from_le_bytes(*sum) {
        return Err(Unreadable::Damaged);
    }
    let mut decoder = minicbor::Decoder::new(body);
    let checkpoint: Checkpoint = decoder.decode().map_err(|_| Unreadable::Damaged)?;
    if decoder.position() < body.len() || !checkpoint.is_within_limits() {
        return Err(Unreadable::Damaged);
    }
    Ok(checkpoint)
}

impl Checkpoint<'_> {
    fn is_within_limits(&self) -> bool {
        let short = |text: &str| text.len() <= CHECKPOINT_TEXT_BYTES_MAX;
        let pod = |pod: &PodCheckpoint<'_>| {
            let debuggers = pod.debuggers.as_deref().unwrap_or_default();
            [pod.uid, pod.namespace, pod.name].into_iter().all(short)
                && codec::decode(pod.status).is_ok()
                && debuggers.len() <= DEBUGGERS_PER_POD_MAX
                && debuggers.iter().all(is_within_limits)
                && pod.sizes.iter().flatten().all(|sizes| short(sizes.name))
        };
        let debuggers = self.pods.iter().filter_map(|pod| pod.debuggers.as_ref()).map(Vec::len);
        self.pods.len() <= CHECKPOINT_PODS_MAX
            && self.crashes.len() <= BACKOFF_ENTRIES_MAX
            && self.pulls.len() <= BACKOFF_ENTRIES_MAX
            && self.images.len() <= IMAGES_SEEN_MAX
            && debuggers.sum::<usize>() <= DEBUGGERS_MAX
            && self.pods.iter().flat_map(|pod| &pod.sizes).map(Vec::len).sum::<usize>()
                <= CHECKPOINT_SIZES_MAX
            && short(self.boot)
            && self.images.iter().all(|image| short(image.image))
            && self.pods.iter().all(pod)
    }

    /// Time to add to the stored ages: none after a reboot.
    pub fn elapsed(&self, boot: &str, now: Mono) -> Duration {
        if boot.is_empty() || self.boot != boot {
            return Duration::ZERO;
        }
        now.since(Mono(0)).saturating_sub(Duration::from_millis(self.written_ms))
    }

    /// Time to add to the ages of back-offs: in another boot that on the wall clock, none where it is behind the write.
    pub fn backoffs_elapsed(&self, boot: &str, now: Now) -> Duration {
        let Some(written) = self.written_wall_ms.filter(|_| boot.is_empty() || self.boot != boot) else {
            return self.elapsed(boot, now.mono);
        };
        Duration::from_millis(wall_millis(now.wall).saturating_sub(written))
    }
}

/// True when it is within the limits of the local socket's requests.
fn is_within_limits(debugger: &Debugger<'_>) -> bool {
    let words: usize = debugger.command.iter().map(|word| word.len() + 1).sum();
    let names = [debugger.name, debugger.pull_policy, debugger.target.unwrap_or_default()];
    debugger.image.len() + 1 + words <= DEBUGGER_BYTES_MAX
        && debugger.command.len() <= DEBUGGER_WORDS_MAX
        && names.into_iter().all(|name| name.len() <= CHECKPOINT_TEXT_BYTES_MAX)
}

/// The pod's status as restored: restart counts out of range are reduced, so that they can still increase.
pub fn restored_status(pod: &PodCheckpoint<'_>) -> Option<k8s_openapi::api::core::v1::PodStatus> {
    let mut status = codec::decode(pod.status).ok()?;
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        container.restart_count = container.restart_count.clamp(0, RESTORED_RESTART_COUNT_MAX);
    }
    Some(status)
}

/// Whole milliseconds of a duration, as stored.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A wall time as stored; zero before 1970.
pub fn wall_millis(at: Wall) -> u64 {
    u64::try_from(at.0 / 1_000_000).unwrap_or(0)
}

/// CRC-32 (IEEE 802.3), four bits at a time with a table of sixteen words.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 16] = [
        0x0000_0000,
        0x1db7_1064,
        0x3b6e_20c8,
        0x26d9_30ac,
        0x76dc_4190,
        0x6b6b_51f4,
        0x4db2_6158,
        0x5005_713c,
        0xedb8_8320,
        0xf00f_9344,
        0xd6d6_a3e8,
        0xcb61_b38c,
        0x9b64_c2b0,
        0x86d3_d2d4,
        0xa00a_e278,
        0xbdbd_f21c,
    ];
    let step = |crc: u32, bits: u8| TABLE[usize::from((crc.to_le_bytes()[0] ^ bits) & 0xf)] ^ (crc >> 4);
    !bytes.iter().fold(u32::MAX, |crc, byte| step(step(crc, *byte), *byte >> 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodStatus;

    fn status() -> Vec<u8> {
        let status: PodStatus = serde_json::from_value(serde_json::json!({
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady",
                "lastTransitionTime": "2026-01-01T00:00:05Z"}],
            "containerStatuses": [{
                "name": "app", "image": "busybox:1", "imageID": "sha256:abc", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 7, "reason": "Error", "message": "no disk",
                    "finishedAt": "2026-01-01T00:00:05Z", "containerID": "containerd://0123"}},
            }],
        }))
        .unwrap();
        codec::encode(&status)
    }

    fn kept(status: &[u8]) -> Checkpoint<'_> {
        Checkpoint {
            boot: "5f9dbe1c-8a0c-4a0e-a3a5-0a4b6bb7f7a1",
            written_ms: 86_400_000,
            pods: vec![PodCheckpoint {
                uid: "u1",
                namespace: "default",
                name: "web-gw",
                status,
                active_ms: Some(90_000),
                debuggers: None,
                shut_down: None,
                sizes: None,
            }],
            crashes: vec![BackoffCheckpoint { key: 0x0123_4567_89ab_cdef, wait_ms: 40_000, age_ms: 1_500 }],
            pulls: vec![BackoffCheckpoint { key: 7, wait_ms: 10_000, age_ms: 0 }],
            images: vec![ImageCheckpoint { image: "sha256:abc", first_ms: 95_000, last_ms: 0 }],
            written_wall_ms: None,
        }
    }

    /// A file of version 1 as it is on devices: it stays readable, and is written in the same way until the version changes.
    #[test]
    fn the_format_is_the_golden_file() {
        let golden = include_bytes!("../../tests/golden/checkpoint-v1");
        let status = status();
        assert_eq!(from_bytes(golden), Ok(kept(&status)));
        assert_eq!(to_bytes(&kept(&status)), golden);
        let restored = restored_status(&kept(&status).pods[0]).unwrap();
        assert_eq!(restored.container_statuses.unwrap()[0].restart_count, 3);
    }

    #[test]
    fn a_file_truncated_or_with_a_flipped_bit_is_refused() {
        let bytes = to_bytes(&kept(&status()));
        for end in 0..bytes.len() {
            assert_eq!(from_bytes(&bytes[..end]), Err(Unreadable::Damaged), "cut at {end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(from_bytes(&flipped).is_err(), "bit {bit}");
        }
        for start in 1..bytes.len() {
            let mut zeroed = bytes.clone();
            zeroed[start..].fill(0);
            assert!(from_bytes(&zeroed).is_err() || zeroed == bytes, "zeroes from {start}");
        }
        let mut newer = bytes.clone();
        newer[MAGIC.len()] = VERSION + 1;
        assert_eq!(from_bytes(&newer), Err(Unreadable::Newer));
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(from_bytes(&longer), Err(Unreadable::Damaged));
    }

    #[test]
    fn a_valid_file_beyond_a_limit_is_refused() {
        let (status, long) = (status(), "n".repeat(CHECKPOINT_TEXT_BYTES_MAX + 1));
        let sound = kept(&status);
        let (pod, crash, image) = (&sound.pods[0], sound.crashes[0], sound.images[0]);
        let debugger = Debugger { name: "d", image: "busybox:1", ..Debugger::default() };
        let debugged = |debuggers| PodCheckpoint { debuggers: Some(debuggers), ..pod.clone() };
        let few = debugged(vec![debugger.clone(); DEBUGGERS_PER_POD_MAX]);
        let full =
            Checkpoint { pods: vec![few.clone(); DEBUGGERS_MAX / DEBUGGERS_PER_POD_MAX], ..kept(&status) };
        assert_eq!(from_bytes(&to_bytes(&full)), Ok(full.clone()));
        let sized = |name, number| PodCheckpoint {
            sizes: Some(vec![SizesCheckpoint { name, runs: true, sizes: [1; 4] }; number]),
            ..pod.clone()
        };
        let resized = Checkpoint { pods: vec![sized("c", CHECKPOINT_SIZES_MAX)], ..kept(&status) };
        assert_eq!(from_bytes(&to_bytes(&resized)), Ok(resized.clone()));
        let more = [full.pods.clone(), vec![debugged(vec![debugger.clone()])]].concat();
        let wordy = Debugger { command: vec!["w"; DEBUGGER_WORDS_MAX + 1], ..debugger.clone() };
        let (longer, named) = ("x".repeat(DEBUGGER_BYTES_MAX), "n".repeat(CHECKPOINT_TEXT_BYTES_MAX + 1));
        for beyond in [
            Checkpoint {
                pods: vec![debugged(vec![debugger.clone(); DEBUGGERS_PER_POD_MAX + 1])],
                ..kept(&status)
            },
            Checkpoint { pods: more, ..kept(&status) },
            Checkpoint { pods: vec![debugged(vec![wordy])], ..kept(&status) },
            Checkpoint {
                pods: vec![debugged(vec![Debugger { image: &longer, ..debugger.clone() }])],
                ..kept(&status)
            },
            Checkpoint { pods: vec![debugged(vec![Debugger { name: &named, ..debugger }])], ..kept(&status) },
            Checkpoint { pods: vec![pod.clone(); CHECKPOINT_PODS_MAX + 1], ..kept(&status) },
            Checkpoint { pods: vec![sized("c", CHECKPOINT_SIZES_MAX + 1)], ..kept(&status) },
            Checkpoint { pods: vec![sized(&long, 1)], ..kept(&status) },
            Checkpoint { crashes: vec![crash; BACKOFF_ENTRIES_MAX + 1], ..kept(&status) },
            Checkpoint { images: vec![image; IMAGES_SEEN_MAX + 1], ..kept(&status) },
            Checkpoint { pods: vec![PodCheckpoint { name: &long, ..pod.clone() }], ..kept(&status) },
            Checkpoint { pods: vec![PodCheckpoint { status: &status[..5], ..pod.clone() }], ..kept(&status) },
        ] {
            assert_eq!(from_bytes(&to_bytes(&beyond)), Err(Unreadable::Damaged));
        }
    }

    #[test]
    fn a_restart_count_out_of_range_is_reduced_and_can_increase() {
        let status = status();
        let pod = kept(&status).pods[0].clone();
        for (count, kept) in [(i32::MAX, RESTORED_RESTART_COUNT_MAX), (-5, 0), (12, 12)] {
            let mut poisoned = codec::decode(pod.status).unwrap();
            poisoned.container_statuses.as_mut().unwrap()[0].restart_count = count;
            let restored =
                restored_status(&PodCheckpoint { status: &codec::encode(&poisoned), ..pod.clone() }).unwrap();
            assert_eq!(restored.container_statuses.unwrap()[0].restart_count, kept);
        }
    }

    #[test]
    fn elapsed_time_counts_only_in_the_boot_of_the_write() {
        let status = status();
        let (kept, day) = (kept(&status), 86_400_000_000_000);
        assert_eq!(kept.elapsed(kept.boot, Mono(day + 5_000_000_000)), Duration::from_secs(5));
        assert_eq!(kept.elapsed(kept.boot, Mono(day / 2)), Duration::ZERO);
        assert_eq!(kept.elapsed("another", Mono(2 * day)), Duration::ZERO);
        assert_eq!(
            Checkpoint::default().elapsed("", Mono(day)),
            Duration::ZERO,
            "an unknown boot is another one"
        );
    }

    #[test]
    fn the_age_of_a_back_off_counts_by_the_wall_clock_in_another_boot() {
        let status = status();
        let at = |seconds: i64| Wall(1_770_000_000_000_000_000 + seconds * 1_000_000_000);
        let dated = Checkpoint { written_wall_ms: Some(wall_millis(at(0))), ..kept(&status) };
        let after_boot = Mono(60_000_000_000);
        for (checkpoint, boot, wall, seconds) in [
            (&dated, "another", at(3 * 86_400), 3 * 86_400),
            (&dated, "another", at(-5), 0),
            (&dated, "another", Wall(0), 0),
            (&dated, "another", Wall(-1), 0),
            (&dated, "", at(7), 7),
            // In the same boot the wall clock does not count.
            (&dated, dated.boot, at(3 * 86_400), 0),
            // Of an earlier release.
            (&kept(&status), "another", at(3 * 86_400), 0),
        ] {
            let elapsed = checkpoint.backoffs_elapsed(boot, Now { mono: after_boot, wall });
            assert_eq!(elapsed, Duration::from_secs(seconds), "{boot:?} {wall:?}");
        }
        assert_eq!(from_bytes(&to_bytes(&dated)), Ok(dated.clone()));
    }

    #[test]
    fn the_checksum_is_crc_32() {
        assert_eq!((crc32(b""), crc32(b"123456789")), (0, 0xcbf4_3926));
    }
}
