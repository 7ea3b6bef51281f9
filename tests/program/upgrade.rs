//! From the state that the release 0.1.0 leaves to this version, and back (docs/stability.md): files as 0.1.0 declares them, and the
//! program as it is. With `SMOLET_LAST=PROGRAM`, a program of that release, it is shown with that one, too.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "what is not shown")]

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Crc;
use minicbor::{Decode, Decoder, Encode};

use crate::binary::{Node, Process, text};
use crate::common::agent::{Home, PATIENCE};
use crate::common::fake::Fake;
use crate::common::runner;

const MANIFEST: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  \
                        - {name: app, image: 'busybox:1'}\n";
/// What the agent keeps of its own.
const FILES: [&str; 2] = ["checkpoint", "identity.cbor"];

fn this_version() -> OsString {
    std::env::var_os("SMOLET_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_smolet").into())
}

/// A node whose runtime has nothing, with this state.
fn node(state: Option<&Path>) -> Node {
    let node = Node { fake: Fake::start_on_real_time(), home: Home::before_an_agent() };
    node.fake.add_image("busybox:1");
    node.home.put("web", MANIFEST);
    std::fs::create_dir(node.home.path("root")).unwrap();
    for file in state.iter().flat_map(|_| FILES) {
        std::fs::copy(state.unwrap().join(file), node.home.path("root").join(file)).unwrap();
    }
    node
}

/// The agent of that program there, which is not told its node's name.
fn run(node: &Node, program: &OsString, words: &[&str]) -> Command {
    let mut command = runner::command(program);
    let all = node.home.words(&node.fake);
    let named = all.iter().position(|word| word == "--node-name").unwrap();
    command.args(&all[..named]).args(&all[named + 2..]).args(words).stdin(Stdio::null());
    command.args(["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/calm.yaml")]);
    command
}

fn runs(node: &Node, container: &str) {
    node.fake.wait_for(container, PATIENCE, |state| state.running() == [container]);
}

/// The pod's UID and its container's restart count, as the agent says.
fn pod(node: &Node) -> (String, i64) {
    let start = Instant::now();
    loop {
        let said = node.ask(&["pods", "-o", "json"]).stdout;
        let list: serde_json::Value = serde_json::from_slice(&said).unwrap_or_default();
        let pod = &list["items"][0];
        let status = &pod["status"]["containerStatuses"][0];
        if status["state"]["running"].is_object() {
            assert_eq!(pod["metadata"]["name"], "web-gw");
            return (
                pod["metadata"]["uid"].as_str().unwrap().to_owned(),
                status["restartCount"].as_i64().unwrap(),
            );
        }
        assert!(start.elapsed() < PATIENCE, "{list}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The state of that program, with a pod whose container was restarted once, below `to`; returns the pod's UID.
fn leave(program: &OsString, to: &Path) -> String {
    let node = node(None);
    let mut agent = Process::start(&mut run(&node, program, &["--node-name", "gw"]));
    runs(&node, "web-gw/app#0");
    node.fake.exit("web-gw/app", 7, "Error", "no disk");
    runs(&node, "web-gw/app#1");
    let (uid, restarts) = pod(&node);
    assert_eq!(restarts, 1);
    assert!(agent.stop());
    std::fs::create_dir_all(to).unwrap();
    for file in FILES {
        std::fs::copy(node.home.path("root").join(file), to.join(file)).unwrap();
    }
    uid
}

/// That program goes on with the state: the node's name, the pod's UID, and the restarts, of which the runtime has forgotten all.
fn goes_on(program: &OsString, state: &Path, uid: &str) {
    let node = node(Some(state));
    let mut agent = Process::start(&mut run(&node, program, &[]));
    runs(&node, "web-gw/app#2");
    assert_eq!(pod(&node), (uid.to_owned(), 2));
    assert!(agent.stop());
}

// The checkpoint as 0.1.0 declares it, but for what a pod like this one has not; what it does not know it passes over.

#[derive(Encode, Decode)]
#[cbor(map)]
struct Checkpoint<'a> {
    #[b(0)]
    boot: &'a str,
    #[n(1)]
    written_ms: u64,
    #[b(2)]
    pods: Vec<KeptPod<'a>>,
    #[n(3)]
    crashes: Vec<KeptWait>,
    #[n(4)]
    pulls: Vec<KeptWait>,
    #[b(5)]
    images: Vec<KeptImage<'a>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct KeptPod<'a> {
    #[b(0)]
    uid: &'a str,
    #[b(1)]
    namespace: &'a str,
    #[b(2)]
    name: &'a str,
    #[cbor(b(3), with = "minicbor::bytes")]
    status: &'a [u8],
    #[n(4)]
    active_ms: Option<u64>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct KeptWait {
    #[n(0)]
    key: u64,
    #[n(1)]
    wait_ms: u64,
    #[n(2)]
    age_ms: u64,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct KeptImage<'a> {
    #[b(0)]
    image: &'a str,
    #[n(1)]
    first_ms: u64,
    #[n(2)]
    last_ms: u64,
}

#[derive(Encode, Decode)]
struct Identity {
    #[n(0)]
    version: u8,
    #[n(1)]
    node_name: String,
    #[n(2)]
    adopted: Vec<String>,
    #[n(3)]
    kept: Vec<(String, String)>,
}

/// Name and number of the format, and the sum of what follows it.
const HEAD: usize = 11;

/// Reads the state as 0.1.0 does, and writes it as 0.1.0 does: what it does not know is gone.
fn as_0_1_0(state: &Path, uid: &str) {
    let bytes = std::fs::read(state.join("checkpoint")).unwrap();
    assert_eq!(&bytes[..7], b"smolet\x01");
    let mut decoder = Decoder::new(&bytes[HEAD..]);
    let kept: Checkpoint = decoder.decode().unwrap();
    assert_eq!(decoder.position(), bytes.len() - HEAD, "nothing is behind it");
    assert!(kept.boot.len() == 36 && kept.written_ms > 0);
    assert_eq!((kept.pods.len(), kept.pulls.len()), (1, 0));
    let pod = &kept.pods[0];
    assert_eq!((pod.uid, pod.namespace, pod.name), (uid, "default", "web-gw"));
    assert!(!pod.status.is_empty());
    assert_eq!(kept.crashes.iter().map(|wait| wait.wait_ms).collect::<Vec<_>>(), [10_000]);
    assert!(kept.images.iter().all(|image| !image.image.is_empty()) && !kept.images.is_empty());
    let body = minicbor::to_vec(&kept).unwrap();
    let mut sum = Crc::new();
    sum.update(&body);
    let written = [&bytes[..7], &sum.sum().to_le_bytes(), &body].concat();
    assert!(written.len() < bytes.len(), "this version writes more");
    std::fs::write(state.join("checkpoint"), written).unwrap();

    let path = state.join("identity.cbor");
    let identity: Identity = minicbor::decode(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((identity.version, &*identity.node_name, identity.adopted.len()), (1, "gw", 0));
    std::fs::write(path, minicbor::to_vec(&identity).unwrap()).unwrap();
}

#[test]
fn state_goes_to_0_1_0_and_comes_back() {
    let home = Home::before_an_agent();
    let state = home.path("state");
    let uid = leave(&this_version(), &state);
    if let Some(last) = std::env::var_os("SMOLET_LAST") {
        goes_on(&last, &state, &uid);
        let of_last = home.path("last");
        assert_eq!(leave(&last, &of_last), uid);
        goes_on(&this_version(), &of_last, &uid);
    } else {
        println!("==== SMOLET_LAST names no program of 0.1.0: what that one itself does IS NOT SHOWN ====");
    }
    as_0_1_0(&state, &uid);
    goes_on(&this_version(), &state, &uid);
}

#[test]
fn state_of_a_later_version_is_set_aside_or_refused() {
    let home = Home::before_an_agent();
    let later = home.path("later");
    let uid = leave(&this_version(), &later);
    let mut bytes = std::fs::read(later.join("checkpoint")).unwrap();
    bytes[6] = 2;
    std::fs::write(later.join("checkpoint"), &bytes).unwrap();
    let first = node(Some(&later));
    let mut agent = Process::start(&mut run(&first, &this_version(), &[]));
    // As on a machine where nothing is known of it: what runs, and how often it did, is the runtime's to say.
    runs(&first, "web-gw/app#0");
    assert_eq!(pod(&first), (uid, 0));
    assert_eq!(std::fs::read(first.home.path("root/checkpoint.newer")).unwrap(), bytes);
    assert!(agent.stop());

    let mut bytes = std::fs::read(later.join("identity.cbor")).unwrap();
    assert_eq!(bytes[1], 1, "its version");
    bytes[1] = 2;
    std::fs::write(later.join("identity.cbor"), bytes).unwrap();
    let second = node(Some(&later));
    let (well, _, why) = text(&run(&second, &this_version(), &[]).output().unwrap());
    assert!(!well && why.contains("identity.cbor: was written by another version; move it away"), "{why}");
}
