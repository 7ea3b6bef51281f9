//! Compiles `proto/` into prost messages without an installed protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/runtime.v1.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    // Maps keep their order, so that requests, hashes and tests are the same every time.
    config.btree_map(["."]);
    config.compile_fds(descriptors)?;
    Ok(())
}
