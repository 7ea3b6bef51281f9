//! PURE: an object's tree ⇄ CBOR, each value as CBOR's own type. It decodes to an equal tree, so that a pod of the offline copy
//! has the same hash as the server's.

use minicbor::data::Type;
use minicbor::{Decoder, Encoder};

use crate::decode::Node;
use crate::limits::{OFFLINE_DEPTH_MAX, POD_NODES_MAX};

/// Why bytes are not a tree.
pub type DecodeError = minicbor::decode::Error;

/// Encodes a tree.
pub fn encode(tree: &Node) -> Vec<u8> {
    let mut writer = Encoder::new(Vec::new());
    // `Infallible`: writing to a vector does not fail.
    let _ = write(&mut writer, tree);
    writer.into_writer()
}

type Written = Result<(), minicbor::encode::Error<std::convert::Infallible>>;

fn write(to: &mut Encoder<Vec<u8>>, tree: &Node) -> Written {
    match tree {
        Node::Null => to.null()?,
        Node::Bool(value) => to.bool(*value)?,
        Node::Int(value) => to.i64(*value)?,
        Node::Float(value) => to.f64(*value)?,
        Node::Text(text) => to.str(text)?,
        Node::List(items) => {
            to.array(items.len() as u64)?;
            for item in items {
                write(to, item)?;
            }
            to
        }
        Node::Map(entries) => {
            to.map(entries.len() as u64)?;
            for (key, value) in entries {
                write(to.str(key)?, value)?;
            }
            to
        }
    };
    Ok(())
}

/// Decodes a tree.
///
/// # Errors
/// The bytes are not an encoded tree, or exceed a pod's limits.
pub fn decode(bytes: &[u8]) -> Result<Node, DecodeError> {
    let mut reader = Decoder::new(bytes);
    let tree = read(&mut reader, &mut 0, 0)?;
    if reader.position() < bytes.len() {
        return Err(DecodeError::message("bytes behind the tree"));
    }
    Ok(tree)
}

fn read(from: &mut Decoder<'_>, values: &mut usize, depth: usize) -> Result<Node, DecodeError> {
    *values += 1;
    if *values > POD_NODES_MAX || depth > OFFLINE_DEPTH_MAX {
        return Err(DecodeError::message("more than a pod may be"));
    }
    let sized = |size: Option<u64>| size.ok_or(DecodeError::message("a length is missing"));
    Ok(match from.datatype()? {
        Type::Null => {
            from.null()?;
            Node::Null
        }
        Type::Bool => Node::Bool(from.bool()?),
        Type::F64 => match from.f64()? {
            value if value.is_finite() => Node::Float(value),
            _ => return Err(DecodeError::message("no number")),
        },
        Type::String => Node::Text(from.str()?.into()),
        // The capacity does not depend on the claimed length.
        Type::Array => {
            let size = sized(from.array()?)?;
            let mut items = Vec::new();
            for _ in 0..size {
                items.push(read(from, values, depth + 1)?);
            }
            Node::List(items)
        }
        Type::Map => {
            let size = sized(from.map()?)?;
            let mut entries = Vec::new();
            for _ in 0..size {
                entries.push((from.str()?.into(), read(from, values, depth + 1)?));
            }
            Node::Map(entries)
        }
        _ => Node::Int(from.i64()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Node {
        let text = |text: &str| Node::Text(text.into());
        Node::Map(vec![
            ("z".into(), Node::List(vec![Node::Null, Node::Bool(true), Node::Int(i64::MIN), Node::Int(-1)])),
            ("a".into(), Node::Map(vec![("".into(), text("grün\0")), ("f".into(), Node::Float(-0.5))])),
            ("i".into(), Node::Int(i64::MAX)),
            ("e".into(), Node::List(Vec::new())),
            ("m".into(), Node::Map(Vec::new())),
        ])
    }

    #[test]
    fn a_tree_reads_back_equal_and_in_order() {
        let bytes = encode(&sample());
        assert_eq!(decode(&bytes).ok(), Some(sample()));
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert!(decode(&[&*bytes, &[0]].concat()).is_err(), "something behind it");
    }

    #[test]
    fn neither_depth_nor_lengths_that_are_claimed_take_memory() {
        assert!(decode(&vec![0x81; 100_000]).is_err(), "lists in lists");
        assert!(decode(&[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).is_err(), "a long list");
        assert!(decode(&[0x9f, 0xff]).is_err(), "a list without a length");
        assert!(decode(&encode(&Node::Float(f64::NAN))).is_err(), "no number");
        let wide = Node::List(vec![Node::Null; POD_NODES_MAX]);
        assert!(decode(&encode(&wide)).is_err());
        let Node::List(mut items) = wide else { panic!("a list") };
        items.pop();
        assert!(decode(&encode(&Node::List(items))).is_ok());
    }
}
