//! What fuzzing has found worth keeping (`fuzz/corpus`), through the fuzz targets' own code once more, and thousands of
//! changed inputs, the same ones each time. `make fuzz` looks for more, with an eye to what of the code they reach.

#![allow(clippy::print_stdout, reason = "the input that fails")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::common::{runner, seeds};

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod targets;

/// Changed inputs of each target and seed; under an emulator there is time for few.
const CHANGED: usize = 10_000;
const CHANGED_EMULATED: usize = 50;
/// Changes of one input, one after the other: 1 to so many.
const CHANGES_MAX: usize = 5;
/// No input is longer, as in fuzz/run.sh.
const LENGTH_MAX: usize = 8 << 10;
/// Numbers at which code decides: signs, lengths, ends.
const EDGES: [u8; 10] = [0, 1, 0x0a, 0x20, 0x30, 0x7f, 0x80, 0xbf, 0xfe, 0xff];

/// Says which input it was when what it is given to panics.
struct Shown<'a>(&'a str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: b\"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

/// Every input of that target's corpus, of which there are some, then what changes make of them.
fn replay(target: &str, run: fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let mut names: Vec<PathBuf> = std::fs::read_dir(fuzz.join("corpus").join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!names.is_empty());
    // The same order everywhere: what a seed does depends on it.
    names.sort();
    let corpus: Vec<Vec<u8>> = names.iter().map(|name| std::fs::read(name).unwrap()).collect();
    for (name, input) in names.iter().zip(&corpus) {
        let _shown = Shown(&name.display().to_string(), input);
        run(input);
    }
    let words = dictionary(&fuzz.join("dictionaries").join(target));
    for seed in seeds::to_run(0..1) {
        let mut random = Rng::with_seed(seed);
        for _ in 0..if runner::is_emulated() { CHANGED_EMULATED } else { CHANGED } {
            let input = changed(&mut random, &corpus, &words);
            let _shown = Shown(target, &input);
            run(&input);
        }
    }
}

/// The words of libFuzzer's dictionary at `path`, which not every target has.
fn dictionary(path: &Path) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let quoted = text.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix('"'));
    quoted.map(unescaped).collect()
}

/// Without the escapes of a dictionary's word: `\\`, `\"` and `\x0a`.
fn unescaped(word: &str) -> Vec<u8> {
    let mut bytes = word.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next().unwrap() {
                b'x' => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                itself => itself,
            },
            plain => plain,
        });
    }
    plain
}

/// One of `corpus` after a few changes of libFuzzer's kinds.
fn changed(random: &mut Rng, corpus: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..random.usize(1..=CHANGES_MAX) {
        let at = random.usize(..=input.len());
        let end = at + random.usize(..=(input.len() - at).min(64));
        match random.u8(..8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            3 => {
                let other = &corpus[random.usize(..corpus.len())];
                let from = random.usize(..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            4 if !words.is_empty() => {
                input.splice(at..at, words[random.usize(..words.len())].iter().copied());
            }
            5 if at < input.len() => input[at] ^= 1 << random.u8(..8),
            6 if at < input.len() => input[at] = EDGES[random.usize(..EDGES.len())],
            _ => input.insert(at, random.u8(..)),
        }
        input.truncate(LENGTH_MAX);
    }
    input
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
