//! Bytes of what a node of a cluster keeps: of a file, of a pod's tree, of each kind of object. Read whole or refused; what
//! was read is within its limits, and is written and read again as the same.

use smolet::limits;
use smolet::model::{ObjectKey, ObjectKind, Side};
use smolet::store::offline::{content, record, tree};

use super::checkpoint::crc32;

const KINDS: [ObjectKind; 6] = [
    ObjectKind::ConfigMap,
    ObjectKind::Secret,
    ObjectKind::Token,
    ObjectKind::Services,
    ObjectKind::RuntimeClass,
    ObjectKind::Claim,
];

pub fn run(data: &[u8]) {
    // As it stands, and with the head that makes a sound file of it: no fuzzer guesses a checksum.
    file(data);
    file(&[b"smokub\x01".as_slice(), &crc32(data).to_le_bytes(), data].concat());
    if let Ok(read) = tree::decode(data) {
        assert!(read.weigh().0 <= 2 * limits::POD_NODES_MAX);
        assert_eq!(tree::decode(&tree::encode(&read)).ok(), Some(read));
    }
    if let Ok(node) = content::decode_node(data) {
        assert_eq!(content::decode_node(&content::encode_node(&node)).ok(), Some(node));
    }
    for kind in KINDS {
        let key = ObjectKey::new(Side::ApiServer, kind, "default", "web");
        if let Ok(object) = content::decode(&key, data) {
            // What was kept is kept again.
            let bytes = content::encode(object.as_ref()).unwrap_or_default();
            assert!(content::decode(&key, &bytes).is_ok_and(|again| again == object));
        }
    }
}

fn file(bytes: &[u8]) {
    let Ok(read) = record::from_bytes(bytes) else { return };
    assert!(bytes.len() <= limits::OFFLINE_RECORD_BYTES_MAX);
    assert_eq!(record::from_bytes(&record::to_bytes(&read)), Ok(read));
}
