//! PURE: the checkpoint's content and its bytes. What the runtime forgets stands in it, and nothing else.
//!
//! ```text
//!     "smolet" │ version │ CRC-32 of the body, little endian │ body (minicbor)
//!     boot, instant of the write                     in which boot, and when in it
//!     pods:   uid, key, status record, active for    restart counts, last ends, phase, conditions
//!             debuggers                              containers that `smolet debug` added
//!             sizes                                  CPU and memory of what was resized while it ran
//!     crashes, pulls: key, wait, age                 back-offs
//!     images: reference, first seen, last used       for garbage collection
//! ```
//!
//! No wall-clock time decides anything: ages and remaining durations are kept. Read in the boot it was written in,
//! the time since then has passed; read in another one it has not: what is left counts from the agent's start.

use std::time::Duration;

use minicbor::{Decode, Encode};

use super::codec;
use crate::limits::{
    BACKOFF_ENTRIES_MAX, CHECKPOINT_BYTES_MAX, CHECKPOINT_PODS_MAX, CHECKPOINT_TEXT_BYTES_MAX,
    DEBUGGER_BYTES_MAX, DEBUGGER_WORDS_MAX, DEBUGGERS_MAX, DEBUGGERS_PER_POD_MAX, IMAGES_SEEN_MAX,
    KEPT_SIZES_MAX, RESTORED_RESTART_COUNT_MAX,
};
use crate::model::{Debugger, Mono};

/// What the file begins with.
const MAGIC: &[u8; 6] = b"smolet";
/// The format. Fields are numbered and may be added without a new version; it changes with their meaning.
const VERSION: u8 = 1;
const SUM_BYTES: usize = size_of::<u32>();
const HEAD_BYTES: usize = MAGIC.len() + 1 + SUM_BYTES;
/// What a pod takes beside its status, about.
const POD_BYTES: usize = 160;

/// Everything that is kept. It borrows from the state that is written, or from the bytes that were read: nothing is
/// there twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Checkpoint<'a> {
    /// The boot it was written in (`/proc/sys/kernel/random/boot_id`).
    #[b(0)]
    pub boot: &'a str,
    /// When in that boot, in milliseconds.
    #[n(1)]
    pub written_ms: u64,
    /// The pods that have a status.
    #[b(2)]
    pub pods: Vec<KeptPod<'a>>,
    /// Crash-loop back-offs.
    #[n(3)]
    pub crashes: Vec<KeptWait>,
    /// Back-offs of image pulls.
    #[n(4)]
    pub pulls: Vec<KeptWait>,
    /// The images that were seen.
    #[b(5)]
    pub images: Vec<KeptImage<'a>>,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct KeptPod<'a> {
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
    /// What `smolet debug` added to it; `None` = nothing.
    #[b(5)]
    pub debuggers: Option<Vec<Debugger<'a>>>,
    /// The node's shutdown has ended it: it is kept again.
    #[n(6)]
    pub shut_down: Option<bool>,
    /// The CPU and memory that it was granted, and that its containers were given since they were made; `None` = as they were
    /// made.
    #[b(7)]
    pub sizes: Option<Vec<KeptSizes<'a>>>,
}

/// CPU and memory of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct KeptSizes<'a> {
    /// The container's name, for what it was granted; its id in the runtime, for what it runs with.
    #[b(0)]
    pub name: &'a str,
    /// It is what that one runs with.
    #[n(1)]
    pub runs: bool,
    /// CPU request and limit in thousandths, memory request and limit in bytes; 0 = not set.
    #[n(2)]
    pub sizes: [i64; 4],
}

/// One entry of a back-off table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct KeptWait {
    /// The table's key.
    #[n(0)]
    pub key: u64,
    /// The wait, in milliseconds.
    #[n(1)]
    pub wait_ms: u64,
    /// Since its last update, in milliseconds.
    #[n(2)]
    pub age_ms: u64,
}

/// One image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct KeptImage<'a> {
    /// Its id, or how a container names it (`imageRef`).
    #[b(0)]
    pub image: &'a str,
    /// Since it was seen first, in milliseconds.
    #[n(1)]
    pub first_ms: u64,
    /// Since it was used last, in milliseconds.
    #[n(2)]
    pub last_ms: u64,
}

/// Why bytes are no checkpoint of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Of a later version of this agent.
    Newer,
    /// Torn, flipped, or never one.
    Damaged,
}

/// The file's bytes.
pub fn to_bytes(checkpoint: &Checkpoint<'_>) -> Vec<u8> {
    // Most of it is the pods' records: with room for these it does not grow piece by piece.
    let records: usize = checkpoint.pods.iter().map(|pod| pod.status.len() + POD_BYTES).sum();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + records);
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.extend_from_slice(&[0; SUM_BYTES]);
    // `Infallible`: a vector takes what it is given.
    let _ = minicbor::encode(checkpoint, &mut bytes);
    let sum = crc32(&bytes[HEAD_BYTES..]).to_le_bytes();
    bytes[HEAD_BYTES - SUM_BYTES..HEAD_BYTES].copy_from_slice(&sum);
    bytes
}

/// What the file says; all of it or nothing.
///
/// # Errors
/// When it is not whole, of a later version, or beyond a limit that it was written under.
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
        let pod = |pod: &KeptPod<'_>| {
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
            && self.pods.iter().flat_map(|pod| &pod.sizes).map(Vec::len).sum::<usize>() <= KEPT_SIZES_MAX
            && short(self.boot)
            && self.images.iter().all(|image| short(image.image))
            && self.pods.iter().all(pod)
    }

    /// How much time has passed since the write that counts: none after a reboot.
    pub fn elapsed(&self, boot: &str, now: Mono) -> Duration {
        if boot.is_empty() || self.boot != boot {
            return Duration::ZERO;
        }
        now.since(Mono(0)).saturating_sub(Duration::from_millis(self.written_ms))
    }
}

/// It is not larger than one that is taken from the local socket.
fn is_within_limits(debugger: &Debugger<'_>) -> bool {
    let words: usize = debugger.command.iter().map(|word| word.len() + 1).sum();
    let names = [debugger.name, debugger.pull_policy, debugger.target.unwrap_or_default()];
    debugger.image.len() + 1 + words <= DEBUGGER_BYTES_MAX
        && debugger.command.len() <= DEBUGGER_WORDS_MAX
        && names.into_iter().all(|name| name.len() <= CHECKPOINT_TEXT_BYTES_MAX)
}

/// A status as it is restored: counts that no container reaches are cut down, so that they still can rise.
pub fn restored_status(pod: &KeptPod<'_>) -> Option<k8s_openapi::api::core::v1::PodStatus> {
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

/// Whole milliseconds of a duration, as kept.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// CRC-32 (IEEE 802.3), four bits at a time: sixteen words of table.
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
            pods: vec![KeptPod {
                uid: "u1",
                namespace: "default",
                name: "web-gw",
                status,
                active_ms: Some(90_000),
                debuggers: None,
                shut_down: None,
                sizes: None,
            }],
            crashes: vec![KeptWait { key: 0x0123_4567_89ab_cdef, wait_ms: 40_000, age_ms: 1_500 }],
            pulls: vec![KeptWait { key: 7, wait_ms: 10_000, age_ms: 0 }],
            images: vec![KeptImage { image: "sha256:abc", first_ms: 95_000, last_ms: 0 }],
        }
    }

    /// The file of version 1 as it is on devices: it is read for ever, and written so until the version changes.
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
    fn a_torn_or_flipped_file_is_refused_at_every_byte_and_bit() {
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
    fn a_sound_file_beyond_a_limit_is_refused_whole() {
        let (status, long) = (status(), "n".repeat(CHECKPOINT_TEXT_BYTES_MAX + 1));
        let sound = kept(&status);
        let (pod, crash, image) = (&sound.pods[0], sound.crashes[0], sound.images[0]);
        let debugger = Debugger { name: "d", image: "busybox:1", ..Debugger::default() };
        let debugged = |debuggers| KeptPod { debuggers: Some(debuggers), ..pod.clone() };
        let few = debugged(vec![debugger.clone(); DEBUGGERS_PER_POD_MAX]);
        let full =
            Checkpoint { pods: vec![few.clone(); DEBUGGERS_MAX / DEBUGGERS_PER_POD_MAX], ..kept(&status) };
        assert_eq!(from_bytes(&to_bytes(&full)), Ok(full.clone()));
        let sized = |name, number| KeptPod {
            sizes: Some(vec![KeptSizes { name, runs: true, sizes: [1; 4] }; number]),
            ..pod.clone()
        };
        let resized = Checkpoint { pods: vec![sized("c", KEPT_SIZES_MAX)], ..kept(&status) };
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
            Checkpoint { pods: vec![sized("c", KEPT_SIZES_MAX + 1)], ..kept(&status) },
            Checkpoint { pods: vec![sized(&long, 1)], ..kept(&status) },
            Checkpoint { crashes: vec![crash; BACKOFF_ENTRIES_MAX + 1], ..kept(&status) },
            Checkpoint { images: vec![image; IMAGES_SEEN_MAX + 1], ..kept(&status) },
            Checkpoint { pods: vec![KeptPod { name: &long, ..pod.clone() }], ..kept(&status) },
            Checkpoint { pods: vec![KeptPod { status: &status[..5], ..pod.clone() }], ..kept(&status) },
        ] {
            assert_eq!(from_bytes(&to_bytes(&beyond)), Err(Unreadable::Damaged));
        }
    }

    #[test]
    fn a_poisoned_count_is_cut_down_and_can_rise() {
        let status = status();
        let pod = kept(&status).pods[0].clone();
        for (count, kept) in [(i32::MAX, RESTORED_RESTART_COUNT_MAX), (-5, 0), (12, 12)] {
            let mut poisoned = codec::decode(pod.status).unwrap();
            poisoned.container_statuses.as_mut().unwrap()[0].restart_count = count;
            let restored =
                restored_status(&KeptPod { status: &codec::encode(&poisoned), ..pod.clone() }).unwrap();
            assert_eq!(restored.container_statuses.unwrap()[0].restart_count, kept);
        }
    }

    #[test]
    fn time_passes_in_the_boot_of_the_write_alone() {
        let status = status();
        let (kept, day) = (kept(&status), 86_400_000_000_000);
        assert_eq!(kept.elapsed(kept.boot, Mono(day + 5_000_000_000)), Duration::from_secs(5));
        assert_eq!(kept.elapsed(kept.boot, Mono(day / 2)), Duration::ZERO);
        assert_eq!(kept.elapsed("another", Mono(2 * day)), Duration::ZERO);
        assert_eq!(
            Checkpoint::default().elapsed("", Mono(day)),
            Duration::ZERO,
            "an unknown boot is another"
        );
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!((crc32(b""), crc32(b"123456789")), (0, 0xcbf4_3926));
    }
}
