//! Our CRI messages as protojson, the form the vectors have them in.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;

/// `proto/`, compiled again at run time: the generated messages carry no descriptors.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile([format!("{root}/runtime.v1.proto")], [root]).expect("proto/ compiles");
    DescriptorPool::from_file_descriptor_set(files).expect("a complete descriptor set")
});

/// The message with the default options: 64-bit integers as text, default values left out, bytes in base64.
pub fn protojson(name: &str, message: &impl Message) -> Value {
    let descriptor = POOL.get_message_by_name(&format!("runtime.v1.{name}")).expect("a message of proto/");
    let dynamic =
        DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).expect("its own bytes");
    serde_json::to_value(&dynamic).expect("protojson")
}
