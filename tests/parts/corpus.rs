//! What fuzzing has found worth keeping (`fuzz/corpus`), through the fuzz targets' own code once more. `make fuzz` looks
//! for more.

#![allow(clippy::print_stdout, reason = "the input that fails")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod targets;

/// Every input of that target's corpus; there are some.
fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let inputs: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!inputs.is_empty());
    for input in inputs {
        // Shown when it fails.
        println!("{}", input.display());
        run(&std::fs::read(input).unwrap());
    }
}

#[test]
fn manifests() {
    replay("manifests", targets::manifests::run);
}

#[test]
fn grpc() {
    replay("grpc", targets::grpc::run);
}

#[test]
fn log_lines() {
    replay("log_lines", targets::log_lines::run);
}

#[test]
fn http() {
    replay("http", targets::http::run);
}

#[test]
fn checkpoint() {
    replay("checkpoint", targets::checkpoint::run);
}

#[test]
fn kept() {
    replay("kept", targets::kept::run);
}

#[test]
fn archive() {
    replay("archive", targets::archive::run);
}

#[test]
fn spdy() {
    replay("spdy", targets::spdy::run);
}

#[cfg(feature = "tls")]
#[test]
fn websocket() {
    replay("websocket", targets::websocket::run);
}

#[cfg(feature = "tls")]
#[test]
fn x509() {
    replay("x509", targets::x509::run);
}

#[cfg(feature = "tls")]
#[test]
fn heads() {
    replay("heads", targets::heads::run);
}

#[cfg(feature = "tls")]
#[test]
fn api_json() {
    replay("api_json", targets::api_json::run);
}

#[cfg(feature = "tls")]
#[test]
fn tls() {
    replay("tls", targets::tls::run);
}
