//! Images on the disk: archives that the tests build, real overlay mounts, devices, attributes, hostile layers.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use sha2::{Digest as _, Sha256};
use smol::block_on;
use smolet::blocking::Blocking;
use smolet::clock::{SharedClock, SystemClock};
use smolet::image_store::{
    Digest, IdMapping, ImageStore, ImageStoreError, LayerSource, NewImage, RootfsOptions, Snapshotter,
};
use smolet::limits::{LAYER_IMPLICIT_BYTES_MAX, LAYER_IMPLICIT_DIRS_MAX, LAYERS_ARRIVING_MAX};
use smolet::registry::{Hosts, Platform, Registries};
use smolet::runtime::{Images as _, StoredImages};

/// A directory below /var/tmp, with its mounts removed at the end.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/var/tmp/smolet-images-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn store(&self) -> ImageStore {
        block_on(ImageStore::open(&self.0.join("images"), Rc::new(Blocking::on_this_thread()))).unwrap()
    }
}

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

/// An entry of a layer.
#[derive(Clone)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) kind: u8,
    pub(super) link: &'a str,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) device: (u32, u32),
    pub(super) pax: Vec<(&'a str, &'a [u8])>,
    pub(super) data: Vec<u8>,
}

pub(super) fn entry<'a>(name: &'a str, kind: u8, data: &[u8]) -> Entry<'a> {
    let mode = if kind == b'5' { 0o755 } else { 0o644 };
    Entry { name, kind, link: "", mode, owner: (0, 0), device: (0, 0), pax: Vec::new(), data: data.to_vec() }
}

pub(super) fn file<'a>(name: &'a str, data: &[u8]) -> Entry<'a> {
    entry(name, b'0', data)
}

pub(super) fn dir(name: &str) -> Entry<'_> {
    entry(name, b'5', b"")
}

pub(super) fn link<'a>(name: &'a str, kind: u8, to: &'a str) -> Entry<'a> {
    Entry { link: to, ..entry(name, kind, b"") }
}

fn block(name: &str, kind: u8, size: usize, of: &Entry<'_>) -> Vec<u8> {
    let mut block = vec![0_u8; 512];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{:07o}", of.mode));
    put(108, &format!("{:07o}", of.owner.0));
    put(116, &format!("{:07o}", of.owner.1));
    put(124, &format!("{size:011o}"));
    put(136, &format!("{:011o}", 1_600_000_000));
    put(148, "        ");
    put(157, of.link);
    put(257, "ustar\u{0}00");
    put(329, &format!("{:07o}", of.device.0));
    put(337, &format!("{:07o}", of.device.1));
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\u{0} ").as_bytes());
    block
}

pub(super) fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |mut head: Vec<u8>, data: &[u8]| {
        head.extend_from_slice(data);
        head.resize(head.len().next_multiple_of(512), 0);
        bytes.append(&mut head);
    };
    for of in entries {
        let mut pax = Vec::new();
        for (key, value) in &of.pax {
            let rest = key.len() + value.len() + 3;
            let length = (1..99_999).find(|n: &usize| n.to_string().len() + rest == *n).unwrap();
            pax.extend_from_slice(format!("{length} {key}=").as_bytes());
            pax.extend_from_slice(value);
            pax.push(b'\n');
        }
        if !pax.is_empty() {
            put(block("pax", b'x', pax.len(), of), &pax);
        }
        put(block(of.name, of.kind, of.data.len(), of), &of.data);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    through("gzip", &["-c"], bytes)
}

pub(super) fn through(program: &str, arguments: &[&str], bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, bytes) = (child.stdin.take().unwrap(), bytes.to_vec());
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output.stdout
}

/// An archive as `docker save` writes it.
pub(super) fn docker_archive(name: &str, user: &str, layers: &[Vec<u8>]) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| format!("\"sha256:{}\"", sha256(layer))).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = format!(
        r#"{{"architecture":"{architecture}","os":"linux","config":{{"User":"{user}","Cmd":["sh"]}},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        diff_ids.join(",")
    );
    let names: Vec<String> = (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
    let listed: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    let manifest =
        format!(r#"[{{"Config":"config.json","RepoTags":["{name}"],"Layers":[{}]}}]"#, listed.join(","));
    let mut entries =
        vec![file("config.json", config.as_bytes()), file("manifest.json", manifest.as_bytes())];
    entries.extend(names.iter().zip(layers).map(|(name, layer)| file(name, layer)));
    tar(&entries)
}

fn busybox() -> Vec<Entry<'static>> {
    let program = fs::read("/bin/busybox").expect("busybox (apt install busybox-static)");
    let mut entries = vec![dir("bin/"), Entry { mode: 0o4755, ..file("bin/busybox", &program) }];
    entries.extend(
        ["sh", "cat", "ls", "id"]
            .map(|name| link(Box::leak(format!("bin/{name}").into_boxed_str()), b'2', "busybox")),
    );
    entries
}

fn layers() -> Vec<Vec<u8>> {
    let base = [
        busybox(),
        vec![
            dir("etc/"),
            file("etc/passwd", b"root:x:0:0::/:/bin/sh\nweb:x:1000:1000::/:/bin/sh\n"),
            file("etc/group", b"root:x:0:\nweb:x:1000:\nextra:x:2000:web\n"),
            file("etc/gone", b"of the base"),
            dir("data/"),
            file("data/one", b"1"),
            file("data/two", b"2"),
            dir("other/"),
            file("other/one", b"1"),
            Entry { mode: 0o1777, ..dir("tmp/") },
            dir("dev/"),
            Entry { device: (1, 3), mode: 0o666, ..entry("dev/null", b'3', b"") },
            Entry { device: (7, 5), mode: 0o660, owner: (0, 6), ..entry("dev/loop5", b'4', b"") },
            entry("run.fifo", b'6', b""),
            Entry { owner: (1000, 1000), mode: 0o600, ..file("own", b"mine") },
            link("hard", b'1', "own"),
            link("soft", b'2', "/etc/passwd"),
            Entry {
                pax: vec![("SCHILY.xattr.user.note", &b"a\0b\n"[..]), ("mtime", b"1500000000.25")],
                ..file("attributes", b"x")
            },
            Entry {
                pax: vec![(
                    "SCHILY.xattr.security.capability",
                    // cap_net_bind_service=ep
                    &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
                )],
                ..file("capable", b"x")
            },
        ],
    ]
    .concat();
    let above = vec![
        entry("etc/.wh.gone", b'0', b""),
        dir("data/"),
        entry("data/.wh..wh..opq", b'0', b""),
        file("data/three", b"3"),
        file("tmp/implicit", b"the base describes tmp"),
        entry(".wh.other", b'0', b""),
        file("etc/hostname", b"made by the second layer"),
    ];
    vec![tar(&base), tar(&above)]
}

pub(super) fn import(folder: &Folder, store: &ImageStore, archive: &[u8]) -> Result<String, ImageStoreError> {
    let path = folder.0.join("archive.tar");
    fs::write(&path, archive).unwrap();
    block_on(store.import_archive(&path, &|_| true)).map(|stored| stored[0].1.id.to_string())
}

pub(super) fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn run_in(root: &Path, command: &[&str]) -> String {
    let output = Command::new("chroot").arg(root).args(command).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// What the layers are together, whichever way they were put together.
fn check_root(root: &Path) {
    assert_eq!(names(&root.join("etc")), ["group", "hostname", "passwd"]);
    assert_eq!(names(&root.join("data")), ["three"]);
    assert!(!root.join("other").exists(), "a whiteout hides a directory");
    let stat = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    assert_eq!(
        stat("tmp").permissions().mode() & 0o7777,
        0o1777,
        "the base describes it, not the layer above"
    );
    assert_eq!(stat("bin/busybox").permissions().mode() & 0o7777, 0o4755);
    assert_eq!((stat("own").uid(), stat("own").gid(), stat("own").mode() & 0o7777), (1000, 1000, 0o600));
    assert_eq!((stat("hard").ino(), stat("hard").nlink()), (stat("own").ino(), 2));
    assert_eq!(fs::read_link(root.join("soft")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(stat("etc/passwd").mtime(), 1_600_000_000);
    assert_eq!((stat("attributes").mtime(), stat("attributes").mtime_nsec()), (1_500_000_000, 250_000_000));
    assert!(stat("dev/null").file_type().is_char_device() && stat("run.fifo").file_type().is_fifo());
    assert_eq!(stat("dev/null").rdev(), rustix::fs::makedev(1, 3));
    assert_eq!((stat("dev/loop5").rdev(), stat("dev/loop5").gid()), (rustix::fs::makedev(7, 5), 6));
    let mut value = [0; 64];
    let read = |name: &str, xattr: &str, value: &mut [u8; 64]| {
        rustix::fs::lgetxattr(root.join(name), xattr, &mut value[..]).unwrap()
    };
    let length = read("attributes", "user.note", &mut value);
    assert_eq!(&value[..length], b"a\0b\n");
    assert_eq!(read("capable", "security.capability", &mut value), 20);
    assert_eq!(run_in(root, &["/bin/cat", "/soft"]), "root:x:0:0::/:/bin/sh\nweb:x:1000:1000::/:/bin/sh");
}

#[test]
fn an_archive_becomes_an_image_and_the_image_a_root_file_system() {
    let folder = Folder::new("overlay");
    let store = folder.store();
    assert_eq!(store.snapshotter(), Snapshotter::Overlay);
    let id = import(&folder, &store, &docker_archive("busybox:1", "web", &layers())).unwrap();
    let image = store.resolve("docker.io/library/busybox:1").unwrap();
    assert_eq!(store.resolve(&id).as_ref(), Some(&image));
    assert_eq!(store.resolve(&id[..20]).as_ref(), Some(&image));
    let model = image.to_model();
    assert_eq!(
        (&*model.repo_tags[0], model.uid, &*model.username),
        ("docker.io/library/busybox:1", None, "web")
    );
    assert!(model.repo_digests[0].starts_with("docker.io/library/busybox@sha256:"));

    let made = block_on(store.rootfs("c1", &image, &RootfsOptions::default())).unwrap();
    check_root(&made.path);
    let read = |name: &str| fs::read_to_string(made.path.join("etc").join(name)).unwrap();
    assert!(read("passwd").ends_with("/bin/sh\n") && read("group").ends_with("web\n"));
    let before = block_on(store.rootfs_usage("c1")).unwrap();
    fs::write(made.path.join("written"), vec![1; 100_000]).unwrap();
    let after = block_on(store.rootfs_usage("c1")).unwrap();
    assert!(
        after.bytes >= before.bytes + 100_000 && after.inodes == before.inodes + 1,
        "{before:?} {after:?}"
    );

    // Another one does not see it, nor does a view, which cannot be written to.
    let second = block_on(store.rootfs("c2", &image, &RootfsOptions::default())).unwrap();
    let read_only = RootfsOptions { read_only: true, ..RootfsOptions::default() };
    let view = block_on(store.rootfs("v1", &image, &read_only)).unwrap();
    for root in [&second.path, &view.path] {
        assert!(!root.join("written").exists());
    }
    check_root(&view.path);
    assert!(fs::write(view.path.join("written"), "no").is_err());

    // The agent starts again: mounts and images are there, and the image's removal leaves what containers use.
    drop(store);
    let store = folder.store();
    assert_eq!(block_on(store.rootfs("c1", &image, &RootfsOptions::default())).unwrap(), made);
    assert!(made.path.join("written").exists());
    block_on(store.remove("busybox:1")).unwrap();
    assert!(store.resolve(&id).is_none() && store.list().is_empty());
    check_root(&second.path);
    // One that was not made to the end has no record.
    fs::create_dir_all(folder.0.join("images/rootfs/torn/merged")).unwrap();
    for name in block_on(store.rootfs_names()).unwrap() {
        if name != "c2" {
            block_on(store.remove_rootfs(&name)).unwrap();
        }
    }
    assert_eq!(names(&folder.0.join("images/rootfs")), ["c2"]);
    assert_eq!(names(&folder.0.join("images/layers")).len(), 2);
    block_on(store.remove_rootfs("c2")).unwrap();
    for left in ["rootfs", "layers", "records", "blobs/sha256", "ingest"] {
        assert_eq!(names(&folder.0.join("images").join(left)), [""; 0], "{left}");
    }
}

/// A layer that is pulled, and the image that has it alone.
pub(super) fn pull(
    store: &ImageStore,
    layer: &[u8],
    compressed: &[u8],
    pieces: &mut dyn Iterator<Item = usize>,
) -> Result<(), ImageStoreError> {
    let source = source(layer, compressed);
    block_on(async {
        let lease = store.lease();
        if let Some(mut writer) = lease.layer(source).await? {
            while writer.offset() < compressed.len() as u64 {
                let at = usize::try_from(writer.offset()).unwrap();
                let size = pieces.next().unwrap_or(usize::MAX).min(compressed.len() - at);
                writer.write(&compressed[at..at + size]).await?;
            }
            writer.commit().await?;
        }
        store.commit_image(&lease, new_image("pulled:1", &[layer])).await
    })
    .map(drop)
}

pub(super) fn source(layer: &[u8], compressed: &[u8]) -> LayerSource {
    LayerSource { digest: Digest::of(compressed), size: compressed.len() as u64, diff_id: Digest::of(layer) }
}

pub(super) fn new_image(name: &str, layers: &[&[u8]]) -> NewImage {
    let diff_ids: Vec<String> = layers.iter().map(|layer| format!("\"sha256:{}\"", sha256(layer))).collect();
    let config = format!(r#"{{"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#, diff_ids.join(","));
    let (manifest, config) = (format!("manifest of {config}").into_bytes(), config.into_bytes());
    NewImage { name: name.to_owned(), manifest, config, ..NewImage::default() }
}

/// Everything below a directory: paths, types, owners, modes, times, contents, attributes.
pub(super) fn listing(root: &Path) -> Vec<String> {
    let script = "cd \"$1\" && find . -printf '%p %y %m %U %G %T@ %s %n %l\\n' | sort && find . -type f | sort | xargs -d '\\n' sha256sum && getfattr -R -d -m - . 2>/dev/null | sort";
    let output = Command::new("sh").args(["-c", script, "sh"]).arg(root).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The sizes of directories are the file system's affair.
    text.lines()
        .map(|line| if line.contains(" d ") { line.rsplitn(4, ' ').last().unwrap() } else { line }.to_owned())
        .collect()
}

pub(super) fn same(wanted: &[String], found: &[String]) {
    let first = wanted.iter().zip(found).find(|(wanted, found)| wanted != found);
    assert!(first.is_none() && wanted.len() == found.len(), "{first:?}");
}

/// A layer of some megabytes with files of all sizes, of which gzip makes many blocks.
pub(super) fn large_layer(random: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    let mut entries = vec![dir("d/")];
    let names: Vec<String> = (0..200).map(|index| format!("d/{}/{index}", index % 7)).collect();
    for name in &names {
        let size = random.usize(..bytes / 100);
        let data: Vec<u8> = (0..size).map(|_| random.u8(b'a'..b'p')).collect();
        entries.push(Entry { owner: (random.u32(..9), 7), ..file(name, &data) });
    }
    tar(&entries)
}

/// zstd's form with a window of 32 MiB.
fn large_window(bytes: &[u8]) -> Vec<u8> {
    with_window(25, bytes)
}

/// The same with a window of two to that power.
fn with_window(log: u32, bytes: &[u8]) -> Vec<u8> {
    through("zstd", &["-c", "-1", &format!("--long={log}")], bytes)
}

/// Whether it waits for something that does not come by itself.
async fn waits<T>(work: &mut (impl Future<Output = T> + Unpin)) -> bool {
    for _ in 0..100 {
        if smol::future::poll_once(&mut *work).await.is_some() {
            return false;
        }
        smol::future::yield_now().await;
    }
    true
}

/// Whichever layers arrive at once, and whatever was left of others: all their windows have `ZSTD_WINDOWS_BYTES_MAX` together.
#[test]
fn windows_of_layers_have_no_more_memory_together_than_one_of_zstds_usual() {
    let folder = Folder::new("budget");
    let store = folder.store();
    let (usual, small, medium) = (23, 21, 22);
    let mut seed = 0;
    let mut layer = |log| {
        seed += 1;
        let layer = large_layer(&mut fastrand::Rng::with_seed(seed), 3 << 20);
        let packed = with_window(log, &layer);
        (source(&layer, &packed), packed)
    };
    let half = 600 << 10;
    block_on(async {
        let lease = store.lease();
        let open = async |layer: &(LayerSource, Vec<u8>)| lease.layer(layer.0).await.unwrap().unwrap();
        // One after the other, the first that comes first: three of an image arrive at once.
        let layers = [layer(usual), layer(usual), layer(small)];
        let [mut first, mut second, mut third] =
            [open(&layers[0]).await, open(&layers[1]).await, open(&layers[2]).await];
        first.write(&layers[0].1[..half]).await.unwrap();
        {
            let mut second_waits = Box::pin(second.write(&layers[1].1));
            assert!(waits(&mut second_waits).await, "8 MiB are there");
            let mut third_waits = Box::pin(third.write(&layers[2].1));
            assert!(waits(&mut third_waits).await);
            first.write(&layers[0].1[half..]).await.unwrap();
            first.commit().await.unwrap();
            assert!(waits(&mut third_waits).await, "the second one is first");
            second_waits.await.unwrap();
            assert!(waits(&mut third_waits).await);
            second.commit().await.unwrap();
            third_waits.await.unwrap();
        }
        third.commit().await.unwrap();
        drop((first, second, third));

        // Small ones beside each other. A call that was dropped waits for nothing.
        let layers: Vec<_> = (0..5).map(|_| layer(small)).collect();
        let mut writers = Vec::new();
        for layer in &layers[..4] {
            let mut writer = open(layer).await;
            writer.write(&layer.1[..half]).await.unwrap();
            writers.push(writer);
        }
        let mut last = open(&layers[4]).await;
        assert!(waits(&mut Box::pin(last.write(&layers[4].1[..half]))).await);
        drop(last);
        writers.truncate(1);
        drop(writers.pop());
        // Three are parked, the first one last: there is room for two of them beside this one, and for none beside the next.
        let other = layer(medium);
        let mut writer = open(&other).await;
        writer.write(&other.1[..half]).await.unwrap();
        let begins_at = async |layer: &(LayerSource, Vec<u8>)| open(layer).await.offset();
        assert_eq!(begins_at(&layers[2]).await, 0, "the one that was left first");
        assert_eq!(begins_at(&layers[0]).await, half as u64);
        writer.write(&other.1[half..]).await.unwrap();
        writer.commit().await.unwrap();
        let other = layer(usual);
        let mut writer = open(&other).await;
        writer.write(&other.1[..half]).await.unwrap();
        assert_eq!(begins_at(&layers[0]).await, 0);
        writer.write(&other.1[half..]).await.unwrap();
        writer.commit().await.unwrap();
    });
}

/// Of the 16 MiB that the agent has they leave it what it needs itself.
#[test]
fn as_many_layers_as_may_arrive_at_once_take_the_memory_of_one_window() {
    let folder = Folder::new("memory");
    let store = folder.store();
    let layer = |seed| {
        let layer = large_layer(&mut fastrand::Rng::with_seed(seed), 3 << 20);
        let packed = with_window(23, &layer);
        (source(&layer, &packed), packed)
    };
    let layers: Vec<_> = (0..LAYERS_ARRIVING_MAX as u64).map(layer).collect();
    let taken = allocation_counter::measure(|| {
        let (lease, executor) = (store.lease(), smol::LocalExecutor::new());
        let arrives = async |(source, packed): &(LayerSource, Vec<u8>)| {
            let mut writer = lease.layer(*source).await.unwrap().unwrap();
            for piece in packed.chunks(16 << 10) {
                writer.write(piece).await.unwrap();
            }
            // The others arrive meanwhile.
            for _ in 0..100 {
                smol::future::yield_now().await;
            }
            writer.commit().await.unwrap();
        };
        let tasks: Vec<_> = layers.iter().map(|layer| executor.spawn(arrives(layer))).collect();
        block_on(executor.run(async {
            for task in tasks {
                task.await;
            }
        }));
    });
    assert!(layers.iter().all(|(source, _)| store.has_layer(&source.diff_id)));
    println!("{} layers: {} bytes at most", layers.len(), taken.bytes_max);
    assert!((8 << 20..12 << 20).contains(&taken.bytes_max), "{}", taken.bytes_max);
}

#[test]
fn one_layer_at_a_time_has_a_large_window() {
    let folder = Folder::new("windows");
    let store = folder.store();
    let layers = [1, 2].map(|seed| large_layer(&mut fastrand::Rng::with_seed(seed), 3 << 20));
    let packed = [large_window(&layers[0]), large_window(&layers[1])];
    let half = 600 << 10;
    assert!(packed.iter().all(|packed| packed.len() > 2 * half), "more than is collected before it is fed");
    block_on(async {
        let lease = store.lease();
        let open = async |index: usize| {
            let opened = lease.layer(source(&layers[index], &packed[index])).await;
            opened.unwrap().expect("is not there")
        };
        let mut first = open(0).await;
        first.write(&packed[0][..half]).await.unwrap();
        let mut second = open(1).await;
        {
            let mut waits = Box::pin(second.write(&packed[1]));
            for _ in 0..100 {
                assert!(smol::future::poll_once(&mut waits).await.is_none(), "the first one has it");
                smol::future::yield_now().await;
            }
            // What is left of an interrupted pull goes on at the very byte while nobody has taken its window.
            drop(first);
            first = open(0).await;
            assert_eq!(first.offset(), half as u64);
            first.write(&packed[0][half..2 * half]).await.unwrap();
            assert!(smol::future::poll_once(&mut waits).await.is_none(), "it has it again");
            drop(first);
            waits.await.unwrap();
        }
        first = open(0).await;
        assert_eq!(first.offset(), 0, "one window is in memory");
        second.commit().await.unwrap();
        drop(second);
        first.write(&packed[0]).await.unwrap();
        first.commit().await.unwrap();
    });
    assert!(layers.iter().all(|layer| store.has_layer(&Digest::of(layer))));
}

#[test]
fn zeros_become_a_hole_and_are_no_bomb() {
    let folder = Folder::new("zeros");
    let store = folder.store();
    let layer = tar(&[file("disk.img", &vec![0; 90 << 20])]);
    for compressed in [gzip(&layer), through("zstd", &["-c"], &layer)] {
        pull(&store, &layer, &compressed, &mut std::iter::empty()).unwrap();
        let found = folder.0.join("images/layers").join(sha256(&layer)).join("fs/disk.img");
        let found = fs::metadata(found).unwrap();
        assert_eq!(found.len(), 90 << 20);
        assert!(found.blocks() * 512 < 4 << 20, "{} blocks", found.blocks());
        block_on(store.remove("pulled:1")).unwrap();
    }
}

#[test]
fn layers_of_every_compression_arrive_in_any_pieces() {
    let folder = Folder::new("pieces");
    let mut random = fastrand::Rng::with_seed(7);
    let layer = large_layer(&mut random, 1 << 20);
    let half = layer.len() / 2;
    let mut wanted = None;
    let members = [gzip(&layer[..half]), gzip(&layer[half..]), vec![0; 512]].concat();
    let skippable = [&b"\x50\x2a\x4d\x18\x05\0\0\0hello"[..], &through("zstd", &["-c"], &layer)].concat();
    let frames =
        [through("zstd", &["-c"], &layer[..half]), through("zstd", &["-19", "--no-check"], &layer[half..])];
    for compressed in [
        layer.clone(),
        gzip(&layer),
        through("gzip", &["-1", "-n"], &layer),
        members,
        through("zstd", &["-c"], &layer),
        skippable,
        frames.concat(),
        // A frame with a usual window, then one as large as Go's encoder has it at its highest level.
        [through("zstd", &["-c"], &layer[..half]), large_window(&layer[half..])].concat(),
    ] {
        for size in [usize::MAX, 4096, 7] {
            let store = folder.store();
            let some = if size < 10 { 2000 } else { usize::MAX };
            let mut pieces = std::iter::repeat_n(size, some);
            pull(&store, &layer, &compressed, &mut pieces).unwrap();
            let files = folder.0.join("images/layers").join(sha256(&layer)).join("fs");
            let found = listing(&files);
            assert!(found.len() > 400);
            same(wanted.get_or_insert(found.clone()), &found);
            block_on(store.remove("pulled:1")).unwrap();
            assert!(!files.exists());
        }
    }
}

#[test]
fn a_layer_goes_on_at_its_restart_point_whenever_the_agent_ended() {
    let folder = Folder::new("restart");
    let mut random = fastrand::Rng::with_seed(11);
    let layer = large_layer(&mut random, 40 << 20);
    let files = folder.0.join("images/layers").join(sha256(&layer)).join("fs");
    let mut wanted = None;
    for compressed in [gzip(&layer), layer.clone()] {
        for cut in [0, 1, 3] {
            let source = source(&layer, &compressed);
            let (mut sent, mut starts) = (0, Vec::new());
            loop {
                let store = folder.store();
                let lease = store.lease();
                let mut writer = block_on(lease.layer(source)).unwrap().unwrap();
                let at = usize::try_from(writer.offset()).unwrap();
                starts.push(at);
                let most = if starts.len() > cut { usize::MAX } else { random.usize(..compressed.len()) };
                let end = at.saturating_add(most).min(compressed.len());
                for piece in compressed[at..end].chunks(random.usize(1000..300_000)) {
                    block_on(writer.write(piece)).unwrap();
                }
                sent += end - at;
                if end == compressed.len() {
                    block_on(writer.commit()).unwrap();
                    block_on(store.commit_image(&lease, new_image("pulled:1", &[&layer]))).unwrap();
                    break;
                }
            }
            println!("{cut} cuts: began at {starts:?}, {sent} of {} bytes", compressed.len());
            // A restart costs what lies between two points, and a block of the compressed layer.
            let between = 18 * (1 << 20) * compressed.len() / layer.len();
            assert!(sent <= compressed.len() + cut * between, "{sent}");
            let found = listing(&files);
            same(wanted.get_or_insert(found.clone()), &found);
            block_on(folder.store().remove("pulled:1")).unwrap();
        }
    }
}

#[test]
fn hostile_and_damaged_layers_are_refused_and_nothing_of_them_stays() {
    let folder = Folder::new("hostile");
    let store = folder.store();
    let outside = folder.0.join("outside");
    fs::create_dir(&outside).unwrap();
    let outward: &'static str = Box::leak(outside.to_str().unwrap().to_owned().into_boxed_str());
    let deep: &'static str = Box::leak("d/".repeat(200).into_boxed_str());
    let long: &'static str = Box::leak("n".repeat(256).into_boxed_str());
    let pax = |name: &'static str, pax: Vec<(&'static str, &'static [u8])>| Entry { pax, ..file(name, b"x") };
    for (entries, at, reason) in [
        (vec![file("../up", b"x")], "../up", "leads upwards"),
        (vec![file("a/../../up", b"x")], "a/../../up", "leads upwards"),
        (vec![pax("x", vec![("path", b"/a/../b")])], "/a/../b", "leads upwards"),
        (vec![link("out", b'2', outward), file("out/x", b"x")], "out/x", "leads nowhere"),
        (
            vec![link("out", b'2', "../../../../../../../../.."), link("h", b'1', "out/etc/passwd")],
            "h",
            "does not have",
        ),
        (vec![link("h", b'1', "/etc/passwd")], "h", "does not have"),
        (vec![link("h", b'1', "../../etc/passwd")], "h", "leads upwards"),
        (vec![link("l", b'2', "l"), file("l/x", b"x")], "l/x", "leads nowhere"),
        (vec![file("f", b"x"), file("f/x", b"x")], "f/x", "no directory"),
        (vec![pax("x", vec![("path", deep.as_bytes())])], "d/d/", "directories"),
        (vec![pax("x", vec![("path", long.as_bytes())])], "nnn", "256 bytes"),
        (vec![pax("x", vec![("SCHILY.xattr.", b"v")])], "", "extended attribute"),
        (vec![pax("x", vec![("uid", b"99999999999")])], "", "owner"),
        (vec![pax("x", vec![("GNU.sparse.map", b"0,1,0,1"), ("GNU.sparse.size", b"9")])], "x", "sparse map"),
        (vec![entry("t", b'X', b"")], "", "type 'X'"),
        (vec![Entry { device: (0o7777777, 0), ..entry("dev", b'3', b"") }], "dev", "device number"),
        (vec![link("s", b'2', "")], "s", "to nothing"),
        (vec![entry(".wh..", b'0', b"")], ".wh..", "no name"),
        (vec![entry(".wh...", b'0', b"")], ".wh...", "no name"),
    ] {
        let layer = tar(&entries);
        let error = pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap_err();
        let text = error.to_string();
        assert!(error.is_final() && text.contains(reason) && text.contains(at), "{at} {reason}: {text}");
        assert!(text.contains(&sha256(&layer)), "{text}");
        for left in ["layers", "records", "blobs/sha256", "ingest"] {
            assert_eq!(names(&folder.0.join("images").join(left)), [""; 0], "{at}: {left}");
        }
    }
    assert_eq!(names(&outside), [""; 0]);

    let layer = tar(&[file("a", &vec![b'a'; 100_000])]);
    let compressed = gzip(&layer);
    let mut flipped = compressed.clone();
    let at = flipped.len() / 2;
    flipped[at] ^= 1;
    let bomb = gzip(&tar(&[file("same", &vec![b'a'; 200 << 20])]));
    // Of an input that zstd reads at once the window is as small.
    let wide = through("zstd", &["-c", "-1", "--long=26"], &vec![0; 1 << 20]);
    let digest = |compressed: &[u8], diff_id: &[u8]| source(diff_id, compressed);
    for (source, bytes, reason) in [
        (digest(&compressed, b"another"), compressed.clone(), "has the digest"),
        (digest(b"another", &layer), compressed.clone(), "more than the 7 bytes"),
        (
            LayerSource { digest: Digest::of(b"another"), ..digest(&compressed, &layer) },
            compressed.clone(),
            "has the digest",
        ),
        (digest(&compressed, &layer), flipped.clone(), "damaged"),
        (digest(&compressed[..at], &layer), compressed[..at].to_vec(), "cut off"),
        (digest(&layer[..1000], &layer), layer[..1000].to_vec(), "cut off"),
        (digest(&bomb, &layer), bomb.clone(), "200 times its size"),
        (digest(&wide, &layer), wide.clone(), "need a window of more than 32 MiB"),
        (digest(b"BZh91AYxx", &layer), b"BZh91AYxx".to_vec(), "bzip2"),
        (
            digest(b"no archive at all".repeat(99).as_slice(), &layer),
            b"no archive at all".repeat(99),
            "no tar archive",
        ),
    ] {
        let result = block_on(async {
            let mut writer = store.lease().layer(source).await?.expect("is not there");
            writer.write(&bytes).await?;
            writer.commit().await?;
            Ok::<(), ImageStoreError>(())
        });
        let text = result.unwrap_err().to_string();
        assert!(text.contains(reason), "{reason}: {text}");
        assert_eq!(names(&folder.0.join("images/ingest")), [""; 0], "{reason}");
    }
    // The same writer begins again when another mirror has the bytes.
    block_on(async {
        let mut writer = store.lease().layer(digest(&compressed, &layer)).await.unwrap().unwrap();
        writer.write(&vec![0; compressed.len()]).await.unwrap();
        assert!(matches!(writer.commit().await, Err(ImageStoreError::Digest { .. })));
        writer.restart().await.unwrap();
        assert_eq!(writer.offset(), 0);
        writer.write(&compressed).await.unwrap();
        writer.commit().await.unwrap();
    });
    assert!(store.has_layer(&Digest::of(&layer)));
}

/// The store as the runtime has it.
fn images_of(store: &ImageStore) -> Rc<StoredImages> {
    let clock: SharedClock = Rc::new(SystemClock);
    let blocking = Rc::new(Blocking::on_this_thread());
    let platform = Platform::new("linux", "amd64", "");
    let registries = Registries::new(Hosts::default(), platform, clock.clone(), blocking);
    StoredImages::new(store.clone(), registries, clock)
}

/// Bytes and inodes of images, and of what containers have, as `ImageFsInfo` tells them.
fn fs_info(store: &ImageStore) -> [(u64, u64); 2] {
    let told = block_on(images_of(store).image_fs_info()).unwrap();
    [told.image_filesystems, told.container_filesystems].map(|filesystems| {
        let [of] = &filesystems[..] else { panic!("{filesystems:?}") };
        assert!(of.fs_id.as_ref().unwrap().mountpoint.ends_with("/images"));
        (of.used_bytes.unwrap().value, of.inodes_used.unwrap().value)
    })
}

#[test]
fn what_containers_have_written_is_counted_apart_from_images() {
    let folder = Folder::new("written");
    let store = folder.store();
    let id = import(&folder, &store, &docker_archive("busybox:1", "", &layers())).unwrap();
    let image = store.resolve(&id).unwrap();
    let [images, none] = fs_info(&store);
    assert_eq!(none, (0, 0));
    for (container, read_only) in [("c1", false), ("c2", false), ("view", true)] {
        let options = RootfsOptions { read_only, ..RootfsOptions::default() };
        let made = block_on(store.rootfs(container, &image, &options)).unwrap();
        if !read_only {
            fs::write(made.path.join("written"), vec![1; 1 << 20]).unwrap();
        }
    }
    let [same, both] = fs_info(&store);
    assert_eq!(same, images);
    assert_eq!(both, (2 << 20, 2));
    // The trees are not walked again soon, but for the metrics, whose count is taken.
    fs::write(folder.0.join("images/rootfs/c1/merged/more"), vec![1; 4 << 20]).unwrap();
    assert_eq!(fs_info(&store)[1], both);
    block_on(store.rootfs_usage("c1")).unwrap();
    let [_, more] = fs_info(&store);
    assert_eq!(more, (6 << 20, 3));
    for container in ["c1", "c2", "view"] {
        block_on(store.remove_rootfs(container)).unwrap();
    }
    assert_eq!(fs_info(&store), [images, (0, 0)]);
}

/// A directory whose images are where no overlay can be mounted.
pub(super) fn without_overlays(name: &str) -> Folder {
    let folder = Folder::new(name);
    // The upper directory of an overlay cannot be on an overlay.
    for name in ["lower", "upper", "work", "images"] {
        fs::create_dir(folder.0.join(name)).unwrap();
    }
    let at = |name: &str| folder.0.join(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let options = std::ffi::CString::new(options).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("overlay", folder.0.join("images"), "overlay", flags, Some(&*options)).unwrap();
    folder
}

#[test]
fn containers_get_copies_where_overlayfs_cannot_be_mounted() {
    let folder = without_overlays("native");
    let store = folder.store();
    assert_eq!(store.snapshotter(), Snapshotter::Native);
    let makes_copies = |store: &ImageStore| images_of(store).makes_copies();
    assert!(makes_copies(&store) && !makes_copies(&Folder::new("no-copies").store()));
    let id = import(&folder, &store, &docker_archive("busybox:1", "1000", &layers())).unwrap();
    let image = store.resolve(&id).unwrap();
    let made = block_on(store.rootfs("c1", &image, &RootfsOptions::default())).unwrap();
    check_root(&made.path);
    let [of_images, of_containers] = fs_info(&store);
    assert!(of_containers.0 > 500_000 && of_containers != of_images, "{of_containers:?} {of_images:?}");
    assert!(block_on(store.rootfs_usage("c1")).unwrap().bytes > 0);
    block_on(store.remove_rootfs("c1")).unwrap();
    assert!(!made.path.exists());
    let plain = vec![tar(&busybox()), tar(&[file("more", b"more")])];
    let plain = import(&folder, &store, &docker_archive("plain:1", "1000", &plain)).unwrap();

    // The kernel has overlayfs again: only layers that remove files are copied still.
    drop(store);
    // Programs that other tests start at this moment hold its files until they are executed.
    let is_busy = || {
        let done = rustix::mount::unmount(folder.0.join("images"), rustix::mount::UnmountFlags::empty());
        done == Err(rustix::io::Errno::BUSY)
    };
    for _ in 0..500 {
        if !is_busy() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs::remove_dir(folder.0.join("images")).unwrap();
    fs::rename(folder.0.join("upper"), folder.0.join("images")).unwrap();
    let store = folder.store();
    assert_eq!(store.snapshotter(), Snapshotter::Overlay);
    for (container, image, is_copied) in [("c2", &id, true), ("c3", &plain, false)] {
        let image = store.resolve(image).unwrap();
        let made = block_on(store.rootfs(container, &image, &RootfsOptions::default())).unwrap();
        assert!(run_in(&made.path, &["/bin/busybox"]).contains("BusyBox"));
        let used = block_on(store.rootfs_usage(container)).unwrap().bytes;
        assert_eq!(used > 500_000, is_copied, "{container}: {used}");
        if is_copied {
            check_root(&made.path);
        }
        block_on(store.remove_rootfs(container)).unwrap();
    }
}

#[test]
fn a_user_namespace_owns_its_root_file_system_without_a_copy_of_the_data() {
    let folder = Folder::new("userns");
    let store = folder.store();
    let id = import(&folder, &store, &docker_archive("busybox:1", "", &layers())).unwrap();
    let image = store.resolve(&id).unwrap();
    let mapping = vec![IdMapping { container_id: 0, host_id: 100_000, size: 65_536 }];
    let options = RootfsOptions { uids: mapping.clone(), gids: mapping, ..RootfsOptions::default() };
    let made = block_on(store.rootfs("c1", &image, &options)).unwrap();
    let owner = |name: &str| {
        let stat = fs::symlink_metadata(made.path.join(name)).unwrap();
        (stat.uid(), stat.gid(), stat.mode() & 0o7777)
    };
    assert_eq!(owner("bin/busybox"), (100_000, 100_000, 0o4755));
    assert_eq!((owner("own"), owner("hard")), ((101_000, 101_000, 0o600), (101_000, 101_000, 0o600)));
    assert_eq!(owner("soft").0, 100_000);
    // Its capabilities are those of the namespace's root: revision 3, which names it.
    let mut value = [0; 64];
    let length =
        rustix::fs::lgetxattr(made.path.join("capable"), "security.capability", &mut value[..]).unwrap();
    let mut expected = [1, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    expected.extend(100_000_u32.to_le_bytes());
    assert_eq!(&value[..length], expected);
    let usage = block_on(store.rootfs_usage("c1")).unwrap();
    assert!(usage.bytes < 400_000, "no data was copied: {usage:?}");
    // Other containers of the image keep the node's owners.
    let plain = block_on(store.rootfs("c2", &image, &RootfsOptions::default())).unwrap();
    check_root(&plain.path);
}

#[test]
fn an_image_of_as_many_layers_as_docker_builds_is_mounted() {
    let folder = Folder::new("many");
    let store = folder.store();
    let mut layers: Vec<Vec<u8>> = vec![tar(&busybox())];
    let names: Vec<String> = (0..126).map(|index| format!("layer-{index}")).collect();
    layers
        .extend(names.iter().map(|name| tar(&[file(name, name.as_bytes()), file("last", name.as_bytes())])));
    // One is there twice, as empty layers are.
    layers.insert(60, layers[30].clone());
    layers[0] = tar(&[vec![Entry { mode: 0o711, ..dir("./") }], busybox()].concat());
    let id = import(&folder, &store, &docker_archive("many:1", "", &layers)).unwrap();
    let made = block_on(store.rootfs("c1", &store.resolve(&id).unwrap(), &RootfsOptions::default())).unwrap();
    assert_eq!(run_in(&made.path, &["/bin/cat", "/layer-0"]), "layer-0");
    assert_eq!(run_in(&made.path, &["/bin/cat", "/last"]), "layer-125");
    let root = fs::metadata(&made.path).unwrap();
    assert_eq!(root.permissions().mode() & 0o7777, 0o711, "only the lowest layer describes the root");
}

/// Whatever of the store's own files a power cut or a bad card tears: the store opens, and an image is whole or absent.
#[test]
fn a_torn_store_opens_and_an_image_is_whole_or_absent() {
    let folder = Folder::new("torn");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let layers = |index: usize| {
        vec![tar(&[file("shared", b"of all")]), tar(&[file("own", index.to_string().as_bytes())])]
    };
    let good = folder.0.join("good");
    let store = block_on(ImageStore::open(&good, Rc::new(Blocking::on_this_thread()))).unwrap();
    for index in 0..3 {
        import(&folder, &store, &docker_archive(&format!("image:{index}"), "", &layers(index))).unwrap();
    }
    drop(store);
    let own_files = |root: &Path| {
        let output = Command::new("find")
            .arg(root)
            .args(["-mindepth", "1", "-not", "-path", "*/fs/*"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(PathBuf::from).collect::<Vec<_>>()
    };
    let (mut whole, mut absent) = (0, 0);
    for _ in 0..150 {
        let root = folder.0.join("images");
        let _ = fs::remove_dir_all(&root);
        assert!(Command::new("cp").arg("-a").arg(&good).arg(&root).status().unwrap().success());
        for _ in 0..random.usize(1..4) {
            let files = own_files(&root);
            let torn = &files[random.usize(..files.len())];
            let length = fs::metadata(torn).unwrap().len();
            match random.u8(..4) {
                0 if torn.is_dir() => fs::remove_dir_all(torn).unwrap(),
                _ if torn.is_dir() => fs::write(torn.join("garbage"), "x").unwrap(),
                1 => fs::remove_file(torn).unwrap(),
                // Torn before.
                _ if length == 0 => fs::write(torn, "x").unwrap(),
                2 => {
                    fs::File::options().write(true).open(torn).unwrap().set_len(random.u64(..length)).unwrap()
                }
                _ => {
                    let mut bytes = fs::read(torn).unwrap();
                    let at = random.usize(..bytes.len());
                    bytes[at] ^= 1 << random.u8(..8);
                    fs::write(torn, bytes).unwrap();
                }
            }
        }
        let store = folder.store();
        for index in 0..3 {
            let Some(image) = store.resolve(&format!("image:{index}")) else {
                absent += 1;
                continue;
            };
            whole += 1;
            assert!(!block_on(store.config(&image)).unwrap().is_empty());
            let made = block_on(store.rootfs("c", &image, &RootfsOptions::default())).unwrap();
            assert_eq!(fs::read_to_string(made.path.join("own")).unwrap(), index.to_string());
            assert_eq!(fs::read_to_string(made.path.join("shared")).unwrap(), "of all");
            block_on(store.remove_rootfs("c")).unwrap();
        }
        // What is absent comes back with the next pull.
        for index in 0..3 {
            import(&folder, &store, &docker_archive(&format!("image:{index}"), "", &layers(index))).unwrap();
        }
        assert_eq!(store.list().len(), 3);
    }
    println!("{whole} whole, {absent} absent");
    assert!(whole > 100 && absent > 20, "{whole} whole, {absent} absent");
}

fn shown_of(store: &ImageStore, reference: &str) -> Option<String> {
    store.resolve(reference).map(|image| image.id.to_string())
}

/// A disk of its own, whose writes are counted.
#[test]
fn a_pull_writes_little_more_than_the_unpacked_layer() {
    let folder = Folder::new("written");
    let sh = |script: &str| {
        let output = Command::new("sh").arg("-ec").arg(script).current_dir(&folder.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    // The kernel does not write by itself, neither what mkfs has left to do nor what waits for the next sync.
    sh(
        "truncate -s 256M disk && mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 disk && mkdir images && \
        mount -o loop,noinit_itable,commit=600 disk images",
    );
    let device = sh("findmnt -n -o SOURCE images");
    let sectors = || {
        sh("sync -f images");
        let stat =
            fs::read_to_string(format!("/sys/block/{}/stat", device.trim_start_matches("/dev/"))).unwrap();
        stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap()
    };
    let mut random = fastrand::Rng::with_seed(3);
    let layer = large_layer(&mut random, 40 << 20);
    let compressed = gzip(&layer);
    let store = folder.store();
    let before = sectors();
    pull(&store, &layer, &compressed, &mut std::iter::repeat(200_000)).unwrap();
    let written = (sectors() - before) * 512;
    println!("{written} bytes written for {} unpacked, {} compressed", layer.len(), compressed.len());
    assert!(written * 100 <= layer.len() as u64 * 105, "{written} of {}", layer.len());
}

#[test]
fn a_further_name_comes_with_the_digest_that_was_asked_for() {
    let folder = Folder::new("digests");
    let store = folder.store();
    let id = import(&folder, &store, &docker_archive("a.io/app:1", "", &layers())).unwrap();
    let first = store.resolve(&id).unwrap().digests[0].clone();
    let (_, digest) = first.split_once('@').unwrap();
    // The same image in another repository, by another manifest.
    let (image, lease) = (store.resolve(&id).unwrap(), store.lease());
    let mut manifest = block_on(store.blob(image.manifest)).unwrap();
    manifest.push(b' ');
    let other = Digest::of(&manifest);
    let config = block_on(store.blob(image.id)).unwrap();
    let new =
        NewImage { name: "b.io/app:1".into(), target: Some(other), manifest, config, ..NewImage::default() };
    block_on(store.commit_image(&lease, new)).unwrap();
    block_on(store.tag(&format!("a.io/app@{digest}"), "a.io/app:2")).unwrap();
    let mut digests = store.resolve("a.io/app:2").unwrap().digests;
    digests.sort();
    assert_eq!(digests, [first, format!("b.io/app@{other}")]);
}

/// Paths of directories without an entry are in the record alone, and their number and their bytes are bounded.
#[test]
fn a_layer_has_as_many_directories_without_an_entry_as_images_have_and_no_more() {
    let folder = Folder::new("implicit");
    let store = folder.store();
    let below = tar(&[Entry { mode: 0o750, ..dir("d/") }]);
    let above = |count: usize, name: &str| {
        let files: Vec<String> = (1..count).map(|index| format!("d/{name}{index}/f")).collect();
        let long = |path| Entry { pax: vec![("path", path)], ..file("f", b"") };
        tar(&files.iter().map(|path| long(path.as_bytes())).collect::<Vec<_>>())
    };
    let import = |name: &str, layers: &[Vec<u8>]| import(&folder, &store, &docker_archive(name, "", layers));
    let id = import("wide:1", &[below.clone(), above(2000, "")]).unwrap();
    let made = block_on(store.rootfs("c1", &store.resolve(&id).unwrap(), &RootfsOptions::default())).unwrap();
    assert_eq!(fs::metadata(made.path.join("d")).unwrap().permissions().mode() & 0o7777, 0o750);
    let why =
        import("wider:1", &[below.clone(), above(LAYER_IMPLICIT_DIRS_MAX, "")]).unwrap_err().to_string();
    assert!(why.contains("more than 8192 directories without an entry"), "{why}");
    let long = format!("{}/", "x".repeat(200)).repeat(4);
    let count = LAYER_IMPLICIT_BYTES_MAX / long.len() + 10;
    let why = import("long:1", &[below, above(count, &long)]).unwrap_err().to_string();
    assert!(why.contains("or their paths have more than"), "{why}");
}

#[test]
fn names_move_between_images_and_pins_and_layers_in_use_are_kept() {
    let folder = Folder::new("names");
    let store = folder.store();
    let layer = |index: u8| vec![tar(&[file("shared", b"of all")]), tar(&[file("own", &[index])])];
    let first = import(&folder, &store, &docker_archive("app:latest", "", &layer(1))).unwrap();
    let second = import(&folder, &store, &docker_archive("app", "7:8", &layer(2))).unwrap();
    let shown = |reference: &str| store.resolve(reference).map(|image| image.id.to_string());
    assert_eq!(shown("app:latest"), Some(second.clone()));
    let old = store.resolve(&first).unwrap();
    assert_eq!(old.to_model().repo_tags.len(), 0);
    assert_eq!(shown(&old.digests[0]), Some(first.clone()));
    assert_eq!(
        shown(&format!("app:other@{}", old.digests[0].split_once('@').unwrap().1)),
        Some(first.clone())
    );
    assert_eq!((shown("app:2"), shown(""), shown("sha256:00"), shown("/")), (None, None, None, None));
    let model = store.resolve(&second).unwrap().to_model();
    assert_eq!((model.uid, &*model.username, model.pinned), (Some(7), "", false));
    block_on(store.pin(&second, true, vec![("key".into(), "value".into())])).unwrap();
    assert!(block_on(store.pin("none:1", true, Vec::new())).is_err());
    assert!(store.usage().bytes > 0 && store.usage().inodes == 3, "{:?}", store.usage());

    drop(store);
    let store = folder.store();
    let pinned = store.resolve("app").unwrap();
    assert!(pinned.to_model().pinned && pinned.labels == [("key".to_owned(), "value".to_owned())]);
    block_on(store.tag(&first, "other.io/name:tag")).unwrap();
    assert_eq!(shown_of(&store, "other.io/name:tag"), Some(first.clone()));
    assert_eq!(shown_of(&store, "app:latest"), Some(second.clone()));
    // Builds that change nothing are tagged without end: the oldest tags are forgotten.
    for number in 0..200 {
        block_on(store.tag(&first, &format!("app:build-{number}"))).unwrap();
    }
    drop(store);
    let store = folder.store();
    assert_eq!(shown_of(&store, "app:build-199"), Some(first.clone()));
    assert_eq!(shown_of(&store, "app:build-0"), None);
    assert_eq!(shown_of(&store, &old.digests[0]), Some(first.clone()));
    assert_eq!(shown_of(&store, "app:latest"), Some(second.clone()));
    // A pull under way holds the layer that it found.
    let shared = Digest::of(&layer(1)[0]);
    let lease = store.lease();
    let source = LayerSource { digest: shared, size: 0, diff_id: shared };
    assert!(block_on(lease.layer(source)).unwrap().is_none());
    block_on(store.remove(&first)).unwrap();
    block_on(store.remove(&second)).unwrap();
    assert!(store.has_layer(&shared) && store.list().is_empty());
    drop(lease);
    block_on(store.remove_rootfs("none")).unwrap();
    let again = import(&folder, &store, &docker_archive("app", "", &layer(1))).unwrap();
    assert_eq!(again, first);
    block_on(store.remove(&again)).unwrap();
    assert_eq!(names(&folder.0.join("images/layers")), [""; 0]);
}
