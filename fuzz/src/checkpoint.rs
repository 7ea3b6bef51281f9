//! Bytes of a stored status and of a checkpoint: read whole or refused. What was read is within its limits, can be
//! restored, and is written and read again as the same.

use smolet::limits;
use smolet::store::checkpoint::{from_bytes, restored_status, to_bytes};
use smolet::store::codec;

pub fn run(data: &[u8]) {
    if let Ok(status) = codec::decode(data) {
        assert_eq!(codec::decode(&codec::encode(&status)).ok(), Some(status));
    }
    // As it stands, and with the head that makes a sound file of it: no fuzzer guesses a checksum.
    file(data);
    file(&[b"smolet\x01".as_slice(), &crc32(data).to_le_bytes(), data].concat());
}

fn file(bytes: &[u8]) {
    let Ok(checkpoint) = from_bytes(bytes) else { return };
    assert!(checkpoint.pods.len() <= limits::CHECKPOINT_PODS_MAX);
    assert!(checkpoint.images.len() <= limits::IMAGES_SEEN_MAX);
    assert!(checkpoint.crashes.len().max(checkpoint.pulls.len()) <= limits::BACKOFF_ENTRIES_MAX);
    for pod in &checkpoint.pods {
        let status = restored_status(pod);
        let counts = status.iter().flat_map(|status| &status.container_statuses).flatten();
        for container in counts {
            assert!((0..=limits::RESTORED_RESTART_COUNT_MAX).contains(&container.restart_count));
        }
        assert!(status.is_some());
    }
    assert_eq!(from_bytes(&to_bytes(&checkpoint)), Ok(checkpoint));
}

/// CRC-32 (IEEE 802.3), bit by bit.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
