//! Bytes of a gRPC answer, in pieces as the first byte says: found as messages, taken apart into fields, decoded as each
//! message of the CRI and of containerd's events that is read, and converted. Nothing depends on where the pieces end,
//! and nothing is kept over its limit.

use prost::Message;
use smolet::cri::{RuntimeEvent, convert, events};
use smolet::grpc::{Deframer, Field, Fields, Sink, Value, WholeMessage};
use smolet::limits;
use smolet::proto::runtime::v1 as cri;

/// Of a field.
const CAP: usize = 1024;

pub fn run(data: &[u8]) {
    let Some((&size, answer)) = data.split_first() else { return };
    let size = usize::from(size).max(1);
    let messages = whole(answer, size);
    assert_eq!(messages, whole(answer, answer.len()));
    let items = fields(answer, size);
    assert_eq!(items, fields(answer, answer.len()));
    for message in messages.iter().chain(&items).map(Vec::as_slice).chain([answer]) {
        converted(message);
    }
}

/// The messages in `bytes`.
fn whole(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut whole = WholeMessage::default();
    feed(bytes, size, &mut whole, |sink| messages.extend(sink.take()));
    messages
}

/// The values of the fields in the messages in `bytes`: numbers as their bytes.
fn fields(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let mut items = Vec::new();
    let mut each = |field: Field<'_>| {
        assert_ne!(field.number, 0);
        items.push(match field.value {
            Value::Varint(number) => number.to_be_bytes().to_vec(),
            Value::Bytes { kept, length } => {
                assert_eq!(kept.len() as u64, length.min(CAP as u64));
                kept.to_vec()
            }
        });
        Ok(())
    };
    feed(bytes, size, &mut Fields::new(CAP, &mut each), |_| {});
    items
}

/// All messages in `bytes`, in pieces of `size`, up to the first error.
fn feed<S: Sink>(bytes: &[u8], size: usize, sink: &mut S, mut ended: impl FnMut(&mut S)) {
    let mut deframer = Deframer::default();
    for mut piece in bytes.chunks(size.max(1)) {
        while !piece.is_empty() {
            let Ok((taken, end)) = deframer.feed(piece, sink) else { return };
            assert!(taken > 0 && taken <= piece.len());
            assert!(end || taken == piece.len());
            piece = &piece[taken..];
            if end {
                assert!(deframer.between_messages());
                ended(sink);
            }
        }
    }
}

fn converted(bytes: &[u8]) {
    fn of<M: Message + Default>(bytes: &[u8]) -> Option<M> {
        M::decode(bytes).ok()
    }
    let id = |id: &str| assert!(!id.is_empty() && id.len() <= limits::CRI_ID_BYTES_MAX);
    let short = |text: &str| assert!(text.len() <= limits::CRI_MESSAGE_BYTES_MAX);
    if let Some(item) = of(bytes).and_then(convert::sandbox_item) {
        id(item.id.as_str());
    }
    if let Some(item) = of(bytes).and_then(convert::container_item) {
        id(item.id.as_str());
        short(&item.name);
    }
    if let Some(status) = of(bytes).and_then(convert::sandbox_status) {
        id(status.id.as_str());
        assert!(status.network.is_none_or(|network| network.additional_ips.len() <= limits::CRI_ENTRIES_MAX));
    }
    if let Some(status) = of(bytes).and_then(convert::container_status) {
        id(status.id.as_str());
        short(&status.message);
        short(&status.reason);
    }
    if let Some(image) = of::<cri::Image>(bytes).and_then(convert::image) {
        assert!(image.repo_tags.len() <= limits::CRI_ENTRIES_MAX);
    }
    if let Some(status) = of(bytes) {
        assert!(convert::runtime_status(status).conditions.len() <= limits::CRI_ENTRIES_MAX);
    }
    if let Some(stats) = of(bytes).and_then(convert::container_stats) {
        id(stats.id.as_str());
    }
    if let Some(info) = of(bytes) {
        assert!(convert::filesystems(info).len() <= limits::CRI_ENTRIES_MAX);
    }
    for RuntimeEvent { id: of, pod, .. } in
        events::of_cri(bytes).into_iter().chain(events::of_containerd(bytes))
    {
        id(&of);
        if let Some(pod) = pod {
            id(pod.as_str());
        }
    }
}
