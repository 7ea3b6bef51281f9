//! What a pull costs: bytes on the disk, and bytes over a link that is cut every thirty seconds.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use smolet::image_store::Digest;

use crate::finding::Finding;
use crate::registry::{Auth, Faults, Registry};
use crate::runtime::Runtime;

/// Files of the image whose pull is written, by their number and size: many small ones, some large, as in a distribution's root.
const FILES: [(usize, usize); 3] = [(1000, 6_000), (400, 40_000), (30, 1_200_000)];
/// What a file system takes for the smallest file: nothing can write less.
const BLOCK: usize = 4096;
/// Bytes of the layer that comes over the bad link.
const LONG: usize = 96 << 20;
/// What that link carries in a second, in pieces of 16 KiB.
const LINK: u64 = 1 << 20;
/// It is cut after so many seconds.
const CUT_AFTER: u64 = 30;

/// One pull over the bad link.
pub struct OverLink {
    /// Bytes that the registry sent, over those of the image.
    pub sent: f64,
    /// Seconds, over those that the bytes alone take.
    pub time: f64,
    pub cuts: usize,
}

/// What was measured of a runtime.
pub struct Pulls {
    /// Bytes that the runtime's process wrote to the disk, over those of the unpacked files in [`BLOCK`]s, as `du` and the CRI's usage
    /// count them; or why there are none.
    pub written: Result<f64, String>,
    pub over_link: Result<OverLink, String>,
}

impl Pulls {
    pub fn of(runtime: &Runtime, binary: &Path) -> Self {
        eprintln!("pulls ...");
        Self { written: written(runtime, binary), over_link: over_link(runtime, binary) }
    }
}

/// A registry with an image of one gzip layer.
fn registry(layer: &[u8]) -> (Registry, String, u64) {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(layer).expect("memory takes it");
    let packed = gzip.finish().expect("memory takes it");
    let size = packed.len() as u64;
    let registry = Registry::start();
    registry.put_layers("bench/pull", "1", &[("amd64", "")], &[(packed, Digest::of(layer))]);
    let image = format!("{}/bench/pull:1", registry.host());
    (registry, image, size)
}

/// Bytes that are half chance: they become some two thirds by gzip, as programs do.
fn content(random: &mut fastrand::Rng, size: usize) -> Vec<u8> {
    std::iter::repeat_with(|| if random.bool() { random.u8(..) } else { random.u8(0..16) })
        .take(size)
        .collect()
}

/// An archive of files with that content, which were below that directory for a while.
fn archive(directory: &Path, files: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    for (number, bytes) in files.enumerate() {
        let part = directory.join(format!("usr/lib/{}", number % 40));
        fs::create_dir_all(&part).expect("a directory can be made");
        fs::write(part.join(number.to_string()), bytes).expect("a file can be written");
    }
    let mut tar = Command::new("tar");
    let output = tar.arg("-C").arg(directory).args(["-cf", "-", "usr"]).output().expect("tar can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::remove_dir_all(directory).expect("a directory can be removed");
    output.stdout
}

fn pull(runtime: &Runtime, binary: &Path, image: &str) -> Result<(), String> {
    let mut command = Command::new(binary);
    command.args(["image", "pull", image, "--runtime-endpoint", &runtime.endpoint()]);
    let output = command.output().expect("smolet can be run");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn remove(runtime: &Runtime, binary: &Path, image: &str) {
    let mut command = Command::new(binary);
    command.args(["image", "rm", image, "--runtime-endpoint", &runtime.endpoint()]);
    assert!(command.status().expect("smolet can be run").success());
}

fn written(runtime: &Runtime, binary: &Path) -> Result<f64, String> {
    let mut random = fastrand::Rng::with_seed(19);
    let sizes = FILES.iter().flat_map(|(files, size)| std::iter::repeat_n(*size, *files));
    let unpacked: usize = sizes.clone().map(|size| size.next_multiple_of(BLOCK)).sum();
    let (_registry, image, _) =
        registry(&archive(&runtime.dir().join("layer"), sizes.map(|size| content(&mut random, size))));
    let before = Finding::of(runtime.pid()).disk_bytes;
    pull(runtime, binary, &image)?;
    rustix::fs::sync();
    let written = Finding::of(runtime.pid()).disk_bytes - before;
    remove(runtime, binary, &image);
    Ok(written as f64 / unpacked as f64)
}

fn over_link(runtime: &Runtime, binary: &Path) -> Result<OverLink, String> {
    let mut random = fastrand::Rng::with_seed(20);
    let bytes = std::iter::repeat_with(|| random.u8(..)).take(LONG).collect();
    let (registry, image, size) = registry(&archive(&runtime.dir().join("layer"), std::iter::once(bytes)));
    let piece = Duration::from_secs(1) / u32::try_from(LINK / (16 << 10)).expect("a few");
    let cut = Some((LINK * CUT_AFTER, u32::MAX));
    registry.set(Auth::Anyone, Faults { cut, slow: Some(piece), ..Faults::default() });
    let begun = Instant::now();
    pull(runtime, binary, &image)?;
    let took = begun.elapsed().as_secs_f64();
    remove(runtime, binary, &image);
    let cuts = registry.log().iter().filter(|request| request.headers.contains_key("range")).count();
    let (sent, ideal) = (registry.sent() as f64, size as f64 / LINK as f64);
    Ok(OverLink { sent: sent / size as f64, time: took / ideal, cuts })
}
