//! Pulls from a registry of the tests into the image store on the disk.

#[path = "../common/registry.rs"]
mod server;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use smol::block_on;
use smolet::blocking::Blocking;
use smolet::clock::{Clock, SharedClock, Sleep, SystemClock};
use smolet::image_store::{Digest, ImageStore, LayerSource, RootfsOptions};
use smolet::model::{Mono, Now};
use smolet::registry::{Hosts, Platform, Registries};

use server::{Auth, Faults, LOGIN, Registry};

/// A directory below /var/tmp, with its mounts removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        for point in points.filter(|point| point.starts_with(&self.0)).collect::<Vec<_>>().iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An agent's side: dropped and made again, it has what is on the disk.
fn agent(root: &Path) -> (ImageStore, Registries) {
    let blocking = Rc::new(Blocking::on_this_thread());
    let store = block_on(ImageStore::open(&root.join("images"), blocking.clone())).unwrap();
    let clock: SharedClock = Rc::new(SystemClock);
    (store, Registries::new(Hosts::default(), Platform::new("linux", "amd64", ""), clock, blocking))
}

/// The archive of a layer with that file.
fn archive(root: &Path, name: &str, bytes: &[u8]) -> Vec<u8> {
    let directory = root.join(format!("layer-{name}"));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(name), bytes).unwrap();
    let tar = Command::new("tar")
        .args(["--owner=0", "--group=0", "-C"])
        .arg(&directory)
        .args(["-cf", "-", name])
        .output()
        .unwrap();
    assert!(tar.status.success());
    tar.stdout
}

/// A gzip layer with that file, and the digest of its archive.
fn layer(root: &Path, name: &str, bytes: &[u8]) -> (Vec<u8>, Digest) {
    let archive = archive(root, name, bytes);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&archive).unwrap();
    (gzip.finish().unwrap(), Digest::of(&archive))
}

/// Its waits are ten times as short.
struct Quick;

impl Clock for Quick {
    fn now(&self) -> Now {
        SystemClock.now()
    }

    fn sleep_until(&self, at: Mono) -> Sleep {
        let now = SystemClock.now().mono;
        SystemClock.sleep_until(now + at.since(now) / 10)
    }

    fn boot_id(&self) -> Box<str> {
        SystemClock.boot_id()
    }
}

/// The registry would cut it.
#[test]
fn a_layer_that_waits_for_memory_holds_no_connection() {
    let folder = Folder(PathBuf::from(format!("/var/tmp/smolet-registry-waits-{}", std::process::id())));
    let root = folder.0.as_path();
    fs::create_dir_all(root).unwrap();
    // Its window is larger than what zstd layers have together: it is alone in memory.
    let zstd = |name: &str, seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(2 << 20).collect();
        let (archive, packed) = (archive(root, name, &data), root.join("layer.zst"));
        let mut program = Command::new("zstd")
            .args(["-q", "-f", "-1", "--long=25", "-o"])
            .arg(&packed)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        program.stdin.take().unwrap().write_all(&archive).unwrap();
        assert!(program.wait().unwrap().success());
        (fs::read(&packed).unwrap(), Digest::of(&archive))
    };
    let (held, pulled) = (zstd("held", 1), zstd("pulled", 2));
    let registry = Registry::start();
    registry.put_layers("team/app", "1", &[("amd64", "")], std::slice::from_ref(&pulled));
    let (store, _) = agent(root);
    let blocking = Rc::new(Blocking::on_this_thread());
    let registries =
        Registries::new(Hosts::default(), Platform::new("linux", "amd64", ""), Rc::new(Quick), blocking);
    let image = format!("{}/team/app:1", registry.host());
    block_on(async {
        let lease = store.lease();
        let size = held.0.len() as u64;
        let source = LayerSource { digest: Digest::of(&held.0), size, diff_id: held.1 };
        let mut writer = lease.layer(source).await.unwrap().unwrap();
        writer.write(&held.0[..1 << 20]).await.unwrap();
        let later = async {
            // Longer than `REGISTRY_STALL_TIME` by that clock.
            async_io::Timer::after(Duration::from_secs(4)).await;
            drop(writer);
            std::future::pending().await
        };
        smol::future::or(registries.pull(&store, &image, None), later).await.unwrap();
    });
    assert!(store.has_layer(&pulled.1));
    let blob = format!("/blobs/{}", Digest::of(&pulled.0));
    let of_layer = registry.log().into_iter().filter(|request| request.target.contains(&blob));
    let asked: Vec<_> = of_layer.map(|request| request.headers.get("range").cloned()).collect();
    assert!(asked.len() == 2 && asked[0].is_none() && asked[1].is_some(), "{asked:?}");
}

#[test]
fn a_pull_over_a_cut_link_goes_on_after_a_restart_of_the_agent() {
    let folder = Folder(PathBuf::from(format!("/var/tmp/smolet-registry-{}", std::process::id())));
    let root = folder.0.as_path();
    fs::create_dir_all(root).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let large: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(40 << 20).collect();
    let layers = [layer(root, "large", &large), layer(root, "small", b"hello")];
    let size: u64 = layers.iter().map(|(bytes, _)| bytes.len() as u64).sum();
    let registry = Registry::start();
    let target = registry.put_layers("team/app", "1", &[("amd64", "")], &layers);
    let image = format!("{}/team/app:1", registry.host());
    let auth = smolet::proto::runtime::v1::AuthConfig {
        username: LOGIN.0.into(),
        password: LOGIN.1.into(),
        ..Default::default()
    };
    let faults = Faults { cut: Some((3_000_000, u32::MAX)), ..Faults::default() };
    registry.set(Auth::TokenForLogin, faults.clone());

    let (store, registries) = agent(root);
    let dropped_at = block_on(async {
        let pull = async { Err(registries.pull(&store, &image, Some(&auth)).await) };
        let enough = async {
            loop {
                let received: u64 = registries
                    .running()
                    .iter()
                    .flat_map(|(_, layers)| layers)
                    .map(|layer| layer.received)
                    .sum();
                if received > 30 << 20 {
                    return Ok(received);
                }
                async_io::Timer::after(Duration::from_millis(5)).await;
            }
        };
        smol::future::or(enough, pull).await
    });
    let dropped_at = dropped_at.expect("it is dropped in its midst");
    assert!(registries.running().is_empty());
    assert!(store.resolve(&image).is_none(), "nothing is seen of the image");
    drop((store, registries));
    let before = registry.sent();

    let (store, registries) = agent(root);
    registry.set(Auth::TokenForLogin, faults);
    let pulled = block_on(registries.pull(&store, &image, Some(&auth))).unwrap();
    let again = registry.sent();
    println!("{dropped_at} bytes had arrived, {before} and {again} were sent of {size}");
    // The last restart point is at most 16 MiB back.
    assert!(again < size - (12 << 20), "{again} of {size}");
    assert!(pulled.repo_digest.ends_with(&format!("/team/app@{target}")));
    let stored = store.resolve(&image).expect("the image");
    assert_eq!(stored.id.to_string(), pulled.id);
    let made = block_on(store.rootfs("c1", &stored, &RootfsOptions::default())).unwrap();
    assert!(fs::read(made.path.join("large")).unwrap() == large);
    assert_eq!(fs::read(made.path.join("small")).unwrap(), b"hello");
    block_on(store.remove_rootfs("c1")).unwrap();

    registry.set(Auth::TokenForLogin, Faults::default());
    assert_eq!(block_on(registries.pull(&store, &image, Some(&auth))).unwrap(), pulled);
    assert_eq!(registry.sent(), 0, "it is there");
    registry.set(Auth::Anyone, Faults::default());
    let other = image.replace(":1", ":2");
    registry.put_layers("team/app", "2", &[("amd64", "")], &layers);
    block_on(registries.pull(&store, &other, None)).unwrap();
    assert_eq!(store.resolve(&other).unwrap().id, stored.id, "a further tag");
    assert_eq!(registry.sent(), 0);
}

/// A copy that is damaged in its midst is told by the decoder before its digest could be.
#[test]
fn a_mirrors_damaged_layer_comes_from_the_registry() {
    let folder = Folder(PathBuf::from(format!("/var/tmp/smolet-registry-mirror-{}", std::process::id())));
    let root = folder.0.as_path();
    fs::create_dir_all(root).unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    let text: Vec<u8> = std::iter::repeat_with(|| random.alphabetic() as u8).take(2 << 20).collect();
    let good = layer(root, "text", &text);
    let (origin, mirror) = (Registry::start(), Registry::start());
    let mut damaged = good.clone();
    // Behind gzip's header: no block begins so.
    damaged.0[10..].fill(0xff);
    origin.put_layers("team/app", "1", &[("amd64", "")], std::slice::from_ref(&good));
    mirror.put_layers("team/app", "1", &[("amd64", "")], std::slice::from_ref(&good));
    mirror.replace_blob("team/app", &Digest::of(&good.0), &damaged.0);
    let certs = root.join("certs.d");
    let hosts = certs.join(origin.host().replace(':', "_") + "_/hosts.toml");
    fs::create_dir_all(hosts.parent().unwrap()).unwrap();
    fs::write(&hosts, format!("[host.\"http://{}\"]\n", mirror.host())).unwrap();
    let blocking = Rc::new(Blocking::on_this_thread());
    let store = block_on(ImageStore::open(&root.join("images"), blocking.clone())).unwrap();
    let clock: SharedClock = Rc::new(SystemClock);
    let from = Hosts { directories: vec![certs], ..Hosts::default() };
    let registries = Registries::new(from, Platform::new("linux", "amd64", ""), clock, blocking);
    let image = format!("{}/team/app:1", origin.host());
    block_on(registries.pull(&store, &image, None)).unwrap();
    let made =
        block_on(store.rootfs("c1", &store.resolve(&image).unwrap(), &RootfsOptions::default())).unwrap();
    assert!(fs::read(made.path.join("text")).unwrap() == text);
    block_on(store.remove_rootfs("c1")).unwrap();
    block_on(store.remove(&image)).unwrap();

    // Each host is asked for it once, and the error says what is wrong.
    origin.replace_blob("team/app", &Digest::of(&good.0), &damaged.0);
    let told = block_on(registries.pull(&store, &image, None)).unwrap_err().to_string();
    assert!(told.contains(&mirror.host()) && told.contains("compressed data are damaged"), "{told}");
    let layers = |registry: &Registry| {
        let blob = format!("/blobs/{}", Digest::of(&good.0));
        registry.log().iter().filter(|request| request.target.contains(&blob)).count()
    };
    assert_eq!((layers(&mirror), layers(&origin)), (2, 2), "in two pulls");
}

#[test]
fn an_image_without_room_leaves_none_of_its_layers() {
    let folder = Folder(PathBuf::from(format!("/var/tmp/smolet-registry-room-{}", std::process::id())));
    let root = folder.0.as_path();
    fs::create_dir_all(root.join("images")).unwrap();
    let disk = "truncate -s 64M disk && mkfs.ext4 -q disk && mount -o loop disk images";
    assert!(Command::new("sh").args(["-c", disk]).current_dir(root).status().unwrap().success());
    let random = |seed, bytes| {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| random.u8(..)).take(bytes).collect::<Vec<_>>()
    };
    let layers = [("one", 15 << 20), ("two", 15 << 20), ("three", 50 << 20)];
    let layers: Vec<_> =
        (0..).zip(layers).map(|(seed, (name, bytes))| layer(root, name, &random(seed, bytes))).collect();
    let registry = Registry::start();
    registry.put_layers("team/large", "1", &[("amd64", "")], &layers);
    registry.put_layers("team/small", "1", &[("amd64", "")], &layers[..2]);
    let (store, registries) = agent(root);
    let left =
        || ["ingest", "layers"].map(|name| fs::read_dir(root.join("images").join(name)).unwrap().count());
    // Whatever is there of it would be there at the next try too, and keep the disk full for as long as its pod is there.
    for _ in 0..2 {
        let large = block_on(registries.pull(&store, &format!("{}/team/large:1", registry.host()), None));
        let error = large.unwrap_err().to_string();
        assert!(error.to_ascii_lowercase().contains("no s"), "{error}");
        assert_eq!(left(), [0, 0]);
    }
    block_on(registries.pull(&store, &format!("{}/team/small:1", registry.host()), None)).unwrap();
    assert_eq!(left(), [0, 2]);
}
