//! What happens to the image store when its work is cut off: a removal that ends in its midst, a call that is dropped, a disk that is
//! full, records that cannot be read.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;

use smol::block_on;
use smol::future::poll_once;
use smolet::image::gc::is_no_space;
use smolet::image::import::Inflated;
use smolet::image_store::inflate::inflate;
use smolet::image_store::{Digest, ImageStore, ImageStoreError, RootfsOptions};

use super::images::{
    Folder, dir, docker_archive, entry, file, gzip, import, large_layer, link, listing, names, new_image,
    pull, same, sha256, source, tar, through,
};

fn sh(at: &Path, script: &str) -> String {
    let output = Command::new("sh").arg("-ec").arg(script).current_dir(at).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A layer of many files, two of them in `d`.
fn many_files(salt: &str) -> Vec<u8> {
    let names: Vec<String> = (0..200).map(|index| format!("file-{index}")).collect();
    let mut entries = vec![dir("d/"), file("d/one", salt.as_bytes()), file("d/two", b"2")];
    entries.extend(names.iter().map(|name| file(name, name.as_bytes())));
    tar(&entries)
}

fn files_of(folder: &Folder, layer: &[u8]) -> PathBuf {
    folder.0.join("images/layers").join(sha256(layer)).join("fs")
}

/// Something that cannot be removed lies at the path while this is there: a removal of what it is in ends in its midst.
struct Obstacle(PathBuf);

impl Obstacle {
    fn new(path: PathBuf) -> Self {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &path, "tmpfs", flags, None).unwrap();
        Self(path)
    }
}

impl Drop for Obstacle {
    fn drop(&mut self) {
        // It may have been moved with the directory that it is in.
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn unmount_all(folder: &Folder) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    for point in table.lines().filter_map(|line| line.split(' ').nth(4)) {
        if Path::new(point).starts_with(&folder.0) {
            rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
}

#[test]
fn a_layer_whose_removal_ended_in_its_midst_is_whole_after_the_next_pull() {
    let folder = Folder::new("midst");
    for (round, restarts) in [(0, false), (1, true)] {
        let layer = many_files(&format!("round {round}"));
        let mut store = folder.store();
        pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
        let wanted = listing(&files_of(&folder, &layer));
        let obstacle = Obstacle::new(files_of(&folder, &layer).join("d"));
        block_on(store.remove("pulled:1")).unwrap();
        if restarts {
            drop(store);
            store = folder.store();
        }
        unmount_all(&folder);
        drop(obstacle);
        pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
        same(&wanted, &listing(&files_of(&folder, &layer)));
        block_on(store.remove("pulled:1")).unwrap();
    }
}

#[test]
fn a_partial_layer_whose_removal_ended_in_its_midst_begins_again() {
    let folder = Folder::new("partial");
    let mut random = fastrand::Rng::with_seed(5);
    let big: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(20 << 20).collect();
    let mut entries = vec![dir("d/"), file("d/one", b"1")];
    let names: Vec<String> = (0..200).map(|index| format!("file-{index}")).collect();
    entries.extend(names.iter().map(|name| file(name, name.as_bytes())));
    entries.push(file("big", &big));
    let layer = tar(&entries);
    let store = folder.store();
    pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
    let wanted = listing(&files_of(&folder, &layer));
    block_on(store.remove("pulled:1")).unwrap();

    let source = source(&layer, &layer);
    block_on(async {
        let lease = store.lease();
        let mut writer = lease.layer(source).await.unwrap().unwrap();
        writer.write(&layer[..19 << 20]).await.unwrap();
        let obstacle = Obstacle::new(folder.0.join("images/ingest").join(sha256(&layer)).join("fs/d"));
        // It fails or not: what counts is what the next one finds.
        let _ = writer.restart().await;
        unmount_all(&folder);
        drop(obstacle);
    });
    drop(store);
    let store = folder.store();
    pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
    same(&wanted, &listing(&files_of(&folder, &layer)));
}

/// Writes a whole layer, as a pull that fails afterwards does.
fn write_layer(store: &ImageStore, layer: &[u8]) {
    block_on(async {
        let lease = store.lease();
        let mut writer = lease.layer(source(layer, layer)).await.unwrap().unwrap();
        writer.write(layer).await.unwrap();
        writer.commit().await.unwrap();
    });
}

#[test]
fn whole_layers_of_a_pull_that_failed_are_kept_for_the_next_one() {
    let folder = Folder::new("kept");
    let mut store = folder.store();
    let other = vec![tar(&[file("other", b"image")])];
    let id = import(&folder, &store, &docker_archive("other:1", "", &other)).unwrap();
    let layer = many_files("kept");
    write_layer(&store, &layer);
    for round in 0..2 {
        let image = store.resolve(&id).unwrap();
        block_on(store.rootfs("c1", &image, &RootfsOptions::default())).unwrap();
        block_on(store.remove_rootfs("c1")).unwrap();
        assert!(store.has_layer(&Digest::of(&layer)), "round {round}");
        drop(store);
        store = folder.store();
    }
    // Those of an image that is removed go at once, and only they.
    block_on(store.remove(&id)).unwrap();
    assert_eq!(names(&folder.0.join("images/layers")), [sha256(&layer)]);
    // Used and released, it is kept no longer.
    pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
    block_on(store.remove("pulled:1")).unwrap();
    assert_eq!(names(&folder.0.join("images/layers")), [""; 0]);
}

fn random_file(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
    tar(&[file("data", &data)])
}

fn write_some(store: &ImageStore, layer: &[u8], bytes: usize) -> Result<(), ImageStoreError> {
    block_on(async {
        let lease = store.lease();
        let mut writer = lease.layer(source(layer, layer)).await.unwrap().unwrap();
        writer.write(&layer[..bytes]).await?;
        Ok(())
    })
}

#[test]
fn a_pull_that_fills_the_disk_leaves_it_as_it_was() {
    let folder = Folder::new("full");
    sh(&folder.0, "truncate -s 64M disk && mkfs.ext4 -q disk && mkdir images && mount -o loop disk images");
    let store = folder.store();
    let free = || {
        sh(&folder.0, "sync -f images");
        sh(&folder.0, "stat -f -c '%f %S' images")
            .split(' ')
            .map(|n| n.parse::<u64>().unwrap())
            .product::<u64>()
    };
    let before = free();
    // An earlier pull of another image was interrupted, and another one has left a whole layer.
    let (idle, whole, large) = (random_file(1, 20 << 20), random_file(2, 5 << 20), random_file(3, 60 << 20));
    write_some(&store, &idle, 17 << 20).unwrap();
    write_layer(&store, &whole);
    assert!(free() < before - (20 << 20));
    let error = write_some(&store, &large, large.len()).unwrap_err().to_string();
    assert!(error.to_ascii_lowercase().contains("no s"), "{error}");
    let after = free();
    assert!(after + (2 << 20) > before, "{before} bytes were free, and {after} are after the pull");
    for left in ["ingest", "layers"] {
        assert_eq!(names(&folder.0.join("images").join(left)), [""; 0], "{left}");
    }
    // Nor do those that it had room for keep the disk full.
    let error =
        import(&folder, &store, &docker_archive("large:1", "", &[idle, large])).unwrap_err().to_string();
    assert!(error.to_ascii_lowercase().contains("no s"), "{error}");
    assert_eq!(names(&folder.0.join("images/layers")), [""; 0]);
    // There is room for another one.
    let small = random_file(4, 8 << 20);
    pull(&store, &small, &small, &mut std::iter::empty()).unwrap();
}

/// Others need some of the disk yet; and only in these words is it tried again.
#[test]
fn an_archive_is_inflated_to_a_bound_of_the_disk() {
    let folder = Folder::new("inflated");
    sh(&folder.0, "truncate -s 64M disk && mkfs.ext4 -q disk && mkdir images && mount -o loop disk images");
    let unpack = |megabytes: u64| {
        sh(&folder.0, &format!("head -c {megabytes}M /dev/zero | gzip -1 >packed"));
        let packed = fs::File::open(folder.0.join("packed")).unwrap();
        inflate(&packed, &folder.0.join("images/spool"), true)
    };
    assert!(matches!(unpack(20), Ok(Inflated::File(_))));
    // There would be room for it.
    let error = unpack(45).unwrap_err();
    assert!(is_no_space(&error), "{error}");
}

/// Polls so many times, and drops it.
fn poll_times<T>(work: impl Future<Output = T>, times: usize) -> bool {
    let mut work = pin!(work);
    (0..times).any(|_| block_on(poll_once(work.as_mut())).is_some())
}

#[test]
fn a_call_that_is_dropped_leaves_memory_as_the_disk_is() {
    let folder = Folder::new("dropped");
    let store = folder.store();
    let exists = |path: &str| !names(&folder.0.join("images").join(path)).is_empty();
    for times in 1..=12 {
        let layer = many_files(&format!("{times}"));
        let diff_id = Digest::of(&layer);
        let record = folder.0.join("images/records");
        let lease = store.lease();
        let mut writer = block_on(lease.layer(source(&layer, &layer))).unwrap().unwrap();
        block_on(writer.write(&layer)).unwrap();
        let is_done = poll_times(writer.commit(), times);
        assert_eq!(store.has_layer(&diff_id), exists("layers"), "a layer, {times}");
        assert!(store.has_layer(&diff_id) || !is_done);
        drop(writer);
        drop(lease);
        pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
        block_on(store.remove("pulled:1")).unwrap();
        assert!(!exists("layers") && !exists("records"), "{times}");

        write_layer(&store, &layer);
        let lease = store.lease();
        let is_done = poll_times(store.commit_image(&lease, new_image("pulled:1", &[&layer])), times);
        assert_eq!(store.list().len(), names(&record).len(), "an image, {times}");
        assert!(store.list().len() == 1 || !is_done);
        drop(lease);
        pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();

        let is_done = poll_times(store.remove("pulled:1"), times);
        assert_eq!(store.list().len(), names(&record).len(), "a removal, {times}");
        assert!(store.list().is_empty() || !is_done);
        assert_eq!(store.has_layer(&diff_id), exists("layers"), "the layer of a removal, {times}");
        // Whatever it left undone the next one does.
        block_on(store.remove("pulled:1")).unwrap();
        pull(&store, &layer, &layer, &mut std::iter::empty()).unwrap();
        block_on(store.remove("pulled:1")).unwrap();
        assert!(!exists("layers") && !exists("records") && !exists("blobs/sha256"), "{times}");
    }
}

/// The agent ends in the midst of a layer, several times: what was unpacked is what one that never ended has.
#[test]
fn a_layer_that_is_cut_off_again_and_again_is_unpacked_as_without() {
    let folder = Folder::new("again");
    let mut random = fastrand::Rng::with_seed(23);
    let data: Vec<Vec<u8>> = (0..60).map(|_| (0..400_000).map(|_| random.u8(..)).collect()).collect();
    let (mut entries, mut paths) = (Vec::new(), Vec::new());
    for index in 0..60 {
        // Directories that nothing describes are made between any two restart points.
        paths.push((
            format!("implicit-{index}/in/file"),
            format!("link-{index}"),
            format!("twice-{}", index / 2),
        ));
    }
    for (index, (path, other, twice)) in paths.iter().enumerate() {
        entries.push(file(path, &data[index]));
        entries.push(link(other, b'1', path));
        entries.push(entry(Box::leak(format!("implicit-{index}/.wh.gone").into_boxed_str()), b'0', b""));
        // Replaces an earlier entry each second time, in the first part only: later on no entry is replaced.
        if index < 6 {
            entries.push(file(twice, &[u8::try_from(index).unwrap()]));
            entries.push(link(Box::leak(format!("of-twice-{index}").into_boxed_str()), b'1', twice));
        }
    }
    let layer = tar(&entries);
    let compressed = gzip(&layer);
    let source = source(&layer, &compressed);
    let store = folder.store();
    pull(&store, &layer, &compressed, &mut std::iter::empty()).unwrap();
    // Whiteouts have the time at which they were made.
    let listed = || {
        let lines = listing(&files_of(&folder, &layer)).into_iter();
        let line = |line: String| match line.split_once("/gone c 0 0 0 ") {
            Some((path, _)) => path.to_owned(),
            None => line,
        };
        lines.map(line).collect::<Vec<_>>()
    };
    let wanted = listed();
    let counted = store.usage();
    block_on(store.remove("pulled:1")).unwrap();
    drop(store);
    for round in 0..2 {
        let (mut sent, mut ends) = (0, Vec::new());
        // Beyond the first restart point, then soon after each resumption: no further point is reached.
        for step in [17 << 20, 300_000, 900_000, 700_000, usize::MAX] {
            let store = folder.store();
            let lease = store.lease();
            let mut writer = block_on(lease.layer(source)).unwrap().unwrap();
            let at = usize::try_from(writer.offset()).unwrap();
            let end = at.saturating_add(step).saturating_add(random.usize(..500_000)).min(compressed.len());
            ends.push((at, end));
            for piece in compressed[at..end].chunks(random.usize(1000..300_000)) {
                block_on(writer.write(piece)).unwrap();
            }
            sent += end - at;
            if end == compressed.len() {
                block_on(writer.commit()).unwrap();
                block_on(store.commit_image(&lease, new_image("pulled:1", &[&layer]))).unwrap();
                assert_eq!(store.usage(), counted);
            }
        }
        println!("round {round}: {ends:?}, {sent} of {} bytes", compressed.len());
        same(&wanted, &listed());
        let again: usize = ends.windows(2).map(|two| two[0].1 - two[1].0).sum();
        assert!(again < 8 << 20, "{again} bytes were fetched twice");
        assert!(ends[1..].iter().all(|(at, _)| *at > 0), "the restart point holds: {ends:?}");
        block_on(folder.store().remove("pulled:1")).unwrap();
    }
}

/// A pull that is dropped goes on in the same process where it was, whichever its compression.
#[test]
fn a_layer_whose_pull_was_dropped_goes_on_at_the_very_byte() {
    let folder = Folder::new("parked");
    let mut random = fastrand::Rng::with_seed(29);
    let layer = large_layer(&mut random, 8 << 20);
    let store = folder.store();
    let mut wanted = None;
    for compressed in [through("zstd", &["-c"], &layer), gzip(&layer), layer.clone()] {
        let source = source(&layer, &compressed);
        let cut = compressed.len() / 3;
        for end in [cut, 2 * cut, compressed.len()] {
            let lease = store.lease();
            let mut writer = block_on(lease.layer(source)).unwrap().unwrap();
            let at = usize::try_from(writer.offset()).unwrap();
            assert_eq!(
                at,
                if end == cut {
                    0
                } else if end == 2 * cut {
                    cut
                } else {
                    2 * cut
                }
            );
            block_on(writer.write(&compressed[at..end])).unwrap();
            if end == compressed.len() {
                block_on(writer.commit()).unwrap();
                block_on(store.commit_image(&lease, new_image("pulled:1", &[&layer]))).unwrap();
            }
        }
        let found = listing(&files_of(&folder, &layer));
        same(wanted.get_or_insert(found.clone()), &found);
        block_on(store.remove("pulled:1")).unwrap();
        assert_eq!(names(&folder.0.join("images/ingest")), [""; 0]);
    }
}

#[test]
fn what_was_received_is_kept_by_a_clock_that_is_behind() {
    let folder = Folder::new("clock");
    let (partial, whole) = (random_file(7, 20 << 20), many_files("clock"));
    let mut store = folder.store();
    write_some(&store, &partial, 19 << 20).unwrap();
    write_layer(&store, &whole);
    let dirs = [
        folder.0.join("images/ingest").join(sha256(&partial)),
        folder.0.join("images/layers").join(sha256(&whole)),
    ];
    let stamp = |when: &str| {
        for dir in &dirs {
            assert!(Command::new("touch").args(["-d", when]).arg(dir).status().unwrap().success());
        }
    };
    // The battery of the clock is none: the agent starts in what was the past.
    for (when, kept) in [("+5 hours", true), ("-23 hours", true), ("-25 hours", false)] {
        drop(store);
        stamp(when);
        store = folder.store();
        assert_eq!(dirs.iter().map(|dir| dir.exists()).collect::<Vec<_>>(), [kept; 2], "{when}");
        assert_eq!(store.has_layer(&Digest::of(&whole)), kept);
    }
}

#[test]
fn records_that_cannot_be_read_now_are_left_alone() {
    let folder = Folder::new("unread");
    let root = folder.0.join("images");
    let layers = vec![tar(&[file("shared", b"of all")]), tar(&[file("own", b"1")])];
    let import_it =
        |store: &ImageStore| import(&folder, store, &docker_archive("app:1", "", &layers)).unwrap();
    let id = import_it(&folder.store());
    let hex = id.strip_prefix("sha256:").unwrap();
    let own = sha256(&layers[1]);
    let long_ago = |path: &Path| {
        assert!(Command::new("touch").args(["-d", "-9 days"]).arg(path).status().unwrap().success());
    };
    let version = |path: &Path, version: u8| {
        let mut bytes = fs::read(path).unwrap();
        bytes[7] = version;
        fs::write(path, bytes).unwrap();
    };
    for record in [root.join("records").join(hex), root.join("layers").join(&own).join("layer")] {
        for layer in names(&root.join("layers")) {
            long_ago(&root.join("layers").join(layer));
        }
        // Of another version.
        version(&record, 2);
        let store = folder.store();
        assert!(store.resolve(&id).is_none());
        drop(store);
        version(&record, 1);
        assert!(folder.store().resolve(&id).is_some(), "{} was left alone", record.display());
        // Not readable: a directory, as EIO would be.
        let aside = folder.0.join("aside");
        fs::rename(&record, &aside).unwrap();
        fs::create_dir(&record).unwrap();
        let store = folder.store();
        assert!(store.resolve(&id).is_none());
        assert_eq!(names(&root.join("layers")).len(), 2);
        assert_eq!(names(&root.join("blobs/sha256")).len(), 2);
        drop(store);
        fs::remove_dir(&record).unwrap();
        fs::rename(&aside, &record).unwrap();
        assert!(folder.store().resolve(&id).is_some(), "{}", record.display());
    }
    // A container runs on layers whose image was removed, and its record is damaged.
    let store = folder.store();
    let image = store.resolve(&id).unwrap();
    let made = block_on(store.rootfs("c1", &image, &RootfsOptions::default())).unwrap();
    block_on(store.remove(&id)).unwrap();
    drop(store);
    for layer in names(&root.join("layers")) {
        long_ago(&root.join("layers").join(layer));
    }
    let record = root.join("rootfs/c1/record");
    let good = fs::read(&record).unwrap();
    fs::write(&record, &good[..good.len() - 1]).unwrap();
    let store = folder.store();
    let other = vec![tar(&[file("other", b"image")])];
    let other = import(&folder, &store, &docker_archive("other:1", "", &other)).unwrap();
    block_on(store.remove(&other)).unwrap();
    assert_eq!(fs::read_to_string(made.path.join("own")).unwrap(), "1");
    assert!(root.join("layers").join(&own).exists());
    // The runtime removes it with those that no container has, and then its layers go.
    block_on(store.remove_rootfs("c1")).unwrap();
    assert_eq!(names(&root.join("layers")), [""; 0]);
}

#[test]
fn a_container_runs_on_when_the_record_of_a_layer_is_damaged() {
    let folder = Folder::new("layer-record");
    let root = folder.0.join("images");
    let layers = vec![tar(&[file("own", b"1")])];
    let archive = docker_archive("app:1", "", &layers);
    let store = folder.store();
    let id = import(&folder, &store, &archive).unwrap();
    let image = store.resolve(&id).unwrap();
    let made = block_on(store.rootfs("c1", &image, &RootfsOptions::default())).unwrap();
    drop(store);
    let record = root.join("layers").join(sha256(&layers[0])).join("layer");
    let good = fs::read(&record).unwrap();
    fs::write(&record, &good[..good.len() - 1]).unwrap();
    let store = folder.store();
    assert!(store.resolve(&id).is_none());
    let own = || fs::read_to_string(made.path.join("own")).unwrap();
    assert_eq!(own(), "1");
    // Pulled again, it is there beside the one that is in use.
    let again = import(&folder, &store, &archive).unwrap();
    drop(store);
    let store = folder.store();
    block_on(store.remove(&again)).unwrap();
    assert_eq!(own(), "1");
    block_on(store.remove_rootfs("c1")).unwrap();
    assert_eq!((names(&root.join("layers")), names(&root.join("removed"))), (vec![], vec![]));
}

#[test]
fn a_container_of_an_image_that_was_removed_meanwhile_is_refused() {
    let folder = Folder::new("meanwhile");
    let store = folder.store();
    let layers = vec![tar(&[file("own", b"1")])];
    let id = import(&folder, &store, &docker_archive("app:1", "", &layers)).unwrap();
    let image = store.resolve(&id).unwrap();
    block_on(store.remove(&id)).unwrap();
    let made = block_on(store.rootfs("c1", &image, &RootfsOptions::default()));
    assert!(matches!(made, Err(ImageStoreError::NotFound(_))), "{made:?}");
    assert!(block_on(store.rootfs_names()).unwrap().is_empty());
}

#[test]
fn leftovers_go_when_they_are_old_and_soon_when_the_disk_is_nearly_full() {
    let folder = Folder::new("old");
    sh(&folder.0, "truncate -s 64M disk && mkfs.ext4 -q disk && mkdir images && mount -o loop disk images");
    let touch = |path: &Path, when: &str| {
        assert!(Command::new("touch").args(["-d", when]).arg(path).status().unwrap().success());
    };
    for (when, fill, stays) in [
        ("-23 hours", false, true),
        ("-25 hours", false, false),
        ("-9 minutes", true, true),
        ("-11 minutes", true, false),
    ] {
        let (part, whole) = (random_file(1, 18 << 20), random_file(2, 1 << 20));
        let _ = fs::remove_file(folder.0.join("images/filler"));
        let store = folder.store();
        write_some(&store, &part, 17 << 20).unwrap();
        write_layer(&store, &whole);
        drop(store);
        // With the agent of another time: nothing of it is in memory.
        let store = folder.store();
        let before = store.usage();
        assert!(before.bytes > 16 << 20, "what has arrived of layers is counted: {before:?}");
        let paths = [
            folder.0.join("images/ingest").join(sha256(&part)),
            folder.0.join("images/layers").join(sha256(&whole)),
        ];
        paths.iter().for_each(|path| touch(path, when));
        if fill {
            sh(&folder.0, "fallocate -l $(( $(stat -f -c '%a * %S' images) - 5000000 )) images/filler");
        }
        block_on(store.sweep());
        assert_eq!(paths.iter().map(|path| path.exists()).collect::<Vec<_>>(), [stays; 2], "{when}");
        assert_eq!(store.usage().bytes > 0, stays, "{when}");
        // Called again at once it does not look again.
        paths.iter().filter(|path| path.exists()).for_each(|path| touch(path, "-9 days"));
        block_on(store.sweep());
        assert_eq!(paths[0].exists(), stays);
        drop(store);
        let store = folder.store();
        assert!(!paths[0].exists() && !paths[1].exists() && store.usage().bytes == 0);
        block_on(store.sweep());
        assert_eq!(names(&folder.0.join("images/removed")), [""; 0]);
    }
}

/// What a pull over a bad link has got is kept from its end on, however long it took.
#[test]
fn layers_of_a_pull_count_as_old_from_its_end_on() {
    let folder = Folder::new("slow");
    let store = folder.store();
    import(&folder, &store, &docker_archive("other:1", "", &[tar(&[file("other", b"1")])])).unwrap();
    let layer = tar(&[file("first", b"of a slow pull")]);
    let lease = store.lease();
    block_on(async {
        let mut writer = lease.layer(source(&layer, &layer)).await.unwrap().unwrap();
        writer.write(&layer).await.unwrap();
        writer.commit().await.unwrap();
    });
    let path = folder.0.join("images/layers").join(sha256(&layer));
    assert!(Command::new("touch").args(["-d", "-25 hours"]).arg(&path).status().unwrap().success());
    block_on(store.sweep());
    drop(lease);
    // A removal looks for what nothing needs.
    block_on(store.remove("docker.io/library/other:1")).unwrap();
    assert!(path.exists());
}

/// There a layer begins again after a restart, and is not synced for a point that cannot be had.
#[test]
fn without_times_of_creation_a_layer_is_not_synced_for_restart_points() {
    let folder = Folder::new("no-times");
    sh(
        &folder.0,
        "truncate -s 96M disk && mkfs.ext4 -q -I 128 disk && mkdir images && mount -o loop disk images",
    );
    assert_eq!(sh(&folder.0, "touch images/a && stat -c %W images/a && rm images/a"), "0", "it has none");
    let flushes = || -> u64 {
        let device = sh(&folder.0, "basename $(findmnt -no SOURCE images)");
        let stat = fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    };
    let store = folder.store();
    let layer = random_file(7, 40 << 20);
    let before = flushes();
    write_layer(&store, &layer);
    let made = flushes() - before;
    println!("{made} flushes of the disk for a layer of 40 MiB");
    // One for each MiB after the first 16 would be 24 more than the ten or so of the store.
    assert!(made < 24, "{made}");
    assert!(folder.0.join("images/layers").join(sha256(&layer)).exists());
}
