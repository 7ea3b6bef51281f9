//! Memory under hostile input: a runtime full of foreign containers with large labels. It runs again in a process of its own,
//! because it measures the process.

#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used, clippy::pedantic)]
#![allow(clippy::print_stdout, reason = "what it measured")]

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::rc::Rc;

use crate::common::runner;
use crate::peer::Peer;
use prost::Message;
use smolet::clock::SystemClock;
use smolet::cri::{GrpcRuntime, Runtime};
use smolet::executor::Executor;
use smolet::proto::runtime::v1 as cri;

const CONTAINERS: usize = 5000;
const LABEL_BYTES: usize = 10_000;

/// The most memory this process ever had, in KiB.
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn container(number: usize) -> cri::Container {
    cri::Container {
        id: format!("foreign-{number}"),
        labels: BTreeMap::from([("noise".to_owned(), "x".repeat(LABEL_BYTES))]),
        ..cri::Container::default()
    }
}

/// Set in the process that is measured.
const ALONE: &str = "SMOLET_TEST_ALONE";

#[test]
fn five_thousand_foreign_containers_cost_the_memory_of_one() {
    if std::env::var_os(ALONE).is_some() {
        return list_and_measure();
    }
    let output = runner::command(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "grpc_memory::five_thousand_foreign_containers_cost_the_memory_of_one",
            "--nocapture",
        ])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // A name that fits no test would pass too.
    assert!(output.status.success() && said.contains("KiB more at the peak"), "{said}");
    println!("{said}");
}

fn list_and_measure() {
    let socket = std::env::temp_dir().join(format!("smolet-memory-{}", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let peer = std::thread::spawn(move || {
        let mut peer = Peer::accept(&listener);
        let mut sent = 0;
        for count in [100, CONTAINERS] {
            let (stream, _) = peer.request();
            peer.head(stream);
            let item =
                |number| cri::ListContainersResponse { containers: vec![container(number)] }.encode_to_vec();
            let length: usize = (0..count).map(|number| item(number).len()).sum();
            peer.data(stream, &[&[0], &u32::try_from(length).unwrap().to_be_bytes()[..]].concat());
            (0..count).for_each(|number| peer.data(stream, &item(number)));
            peer.trailers(stream, 0, "");
            sent = length;
        }
        peer.until_quiet();
        sent
    });

    let executor = Rc::new(Executor::new());
    let runtime = GrpcRuntime::new(&socket, &executor, Rc::new(SystemClock));
    smol::block_on(executor.run(async {
        let mut seen = 0;
        runtime.list_containers(None, &mut |_| seen += 1).await.unwrap();
        assert_eq!(seen, 100);
        let before = peak_kib();
        let mut seen = 0;
        let mut each = |item: smolet::model::ContainerItem| {
            assert_eq!(item.id.as_str(), format!("foreign-{seen}"));
            assert_eq!(item.pod, None);
            seen += 1;
        };
        runtime.list_containers(None, &mut each).await.unwrap();
        assert_eq!(seen, CONTAINERS);
        let grown = peak_kib() - before;
        println!("{CONTAINERS} containers with labels of {LABEL_BYTES} bytes: {grown} KiB more at the peak");
        assert!(grown <= 2048, "the list took {grown} KiB");
    }));
    assert!(peer.join().unwrap() >= CONTAINERS * LABEL_BYTES);
    let _ = std::fs::remove_file(&socket);
}
