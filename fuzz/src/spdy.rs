//! Bytes of a streaming server, in pieces as the first byte says: nothing depends on where they end, every byte of data is one
//! that came, and whatever is read is read to its end or refused.

use smolet::streaming::frame::{Frame, Reader};

pub fn run(data: &[u8]) {
    let Some((&size, said)) = data.split_first() else { return };
    let size = usize::from(size).max(1);
    let (frames, bytes) = read(said, size);
    assert_eq!(frames, read(said, said.len().max(1)).0);
    assert!(bytes <= said.len());
}

/// The frames, data put together, and how many bytes of data there were.
fn read(said: &[u8], size: usize) -> (Vec<String>, usize) {
    let (mut reader, mut frames, mut bytes) = (Reader::default(), Vec::new(), 0);
    let mut data: Option<(u32, Vec<u8>)> = None;
    for mut piece in said.chunks(size) {
        loop {
            let found = match reader.next(&mut piece) {
                Ok(Some(Frame::Data(stream, part))) => {
                    assert!(!part.is_empty());
                    bytes += part.len();
                    match &mut data {
                        Some((of, before)) if *of == stream.0 => before.extend_from_slice(part),
                        _ => frames
                            .extend(data.replace((stream.0, part.to_vec())).map(|data| format!("{data:?}"))),
                    }
                    continue;
                }
                Ok(Some(frame)) => format!("{frame:?}"),
                Ok(None) => break,
                Err(error) => format!("{error}"),
            };
            let refused = found.contains("is not SPDY");
            frames.extend(data.take().map(|data| format!("{data:?}")));
            frames.push(found);
            if refused {
                return (frames, bytes);
            }
        }
        assert!(piece.is_empty());
    }
    frames.extend(data.map(|data| format!("{data:?}")));
    (frames, bytes)
}
