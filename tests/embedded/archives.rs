//! Archives of a directory into the image store on the disk: a disk that is full, new versions of an archive.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_io::Timer;
use smol::channel::Receiver;
use smol::{LocalExecutor, block_on};
use smolet::clock::{Clock as _, VirtualClock};
use smolet::image::archive_store::{ArchiveImages as _, ArchiveStore};
use smolet::image::import::{Importer, Inflate, Inflated};
use smolet::image::lists::ListedImages;
use smolet::image_store::inflate::inflate;
use smolet::image_store::{ImageStore, StoredImage};
use smolet::model::Wall;

use super::images::{Folder, docker_archive, file, tar};

const APP: &str = "docker.io/library/app:1";

/// An importer at work.
struct World<'a> {
    executor: LocalExecutor<'a>,
    clock: VirtualClock,
    store: ImageStore,
    archives: PathBuf,
    imported: Receiver<Vec<String>>,
}

impl World<'_> {
    /// `read` is called for each archive that is read.
    fn start(folder: &Folder, read: Inflate) -> Self {
        let (executor, clock) = (LocalExecutor::new(), VirtualClock::new(Wall(1_770_000_000_000_000_000)));
        let (store, archives) = (folder.store(), folder.0.join("archives"));
        let (sender, imported) = smol::channel::unbounded();
        let target = ArchiveStore::Embedded(Rc::new(store.clone()));
        let inflate = (read, folder.0.join("spool"));
        let (listed, _) = ListedImages::new();
        let importer = Importer::new(&archives, target, Rc::new(clock.clone()), sender, inflate, listed);
        executor.spawn(importer.run()).detach();
        Self { executor, clock, store, archives, imported }
    }

    /// Puts an archive with that image in its place whole.
    fn put(&self, name: &str, image: &str, content: &[u8]) {
        put(&self.archives, name, image, content);
    }

    /// Until it is so; a change of the directory is looked at after a time without another one.
    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        block_on(self.executor.run(async {
            while !is_so(self) {
                assert!(began.elapsed() < Duration::from_mins(2), "waited too long until: {what}");
                Timer::after(Duration::from_millis(5)).await;
                if self.clock.next_sleeper().is_some_and(|at| at.since(self.clock.now().mono) <= SOON) {
                    self.clock.advance(SOON);
                }
            }
        }));
    }

    fn run_for(&self, time: Duration) {
        block_on(self.executor.run(async { _ = Timer::after(time).await }));
    }

    fn image(&self, name: &str) -> Option<StoredImage> {
        self.store.resolve(name)
    }
}

/// Longer than a directory is to be quiet, shorter than any retry.
const SOON: Duration = Duration::from_secs(5);

fn put(archives: &Path, name: &str, image: &str, content: &[u8]) {
    fs::create_dir_all(archives).unwrap();
    let part = archives.join(format!(".{name}"));
    fs::write(&part, docker_archive(image, "", &[tar(&[file("content", content)])])).unwrap();
    fs::rename(&part, archives.join(name)).unwrap();
}

#[test]
fn an_archive_without_room_is_tried_every_ten_minutes_and_holds_up_no_other() {
    static READ: AtomicUsize = AtomicUsize::new(0);
    fn count(_: &File, path: &Path, _: bool) -> Result<Inflated, String> {
        assert!(!path.exists());
        READ.fetch_add(1, Ordering::SeqCst);
        Ok(Inflated::Plain)
    }
    let folder = Folder::new("archive-room");
    let made = "truncate -s 96M disk && mkfs.ext4 -q disk && mkdir images && mount -o loop disk images";
    assert!(Command::new("sh").arg("-ec").arg(made).current_dir(&folder.0).status().unwrap().success());
    let mut random = fastrand::Rng::with_seed(3);
    let large: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(100 << 20).collect();
    // The last by name is imported first.
    put(&folder.0.join("archives"), "b.tar", "large:1", &large);
    put(&folder.0.join("archives"), "a.tar", "app:1", b"small");
    let world = World::start(&folder, count);
    world.until("the other one is imported", |world| !world.imported.is_empty());
    assert_eq!(block_on(world.imported.recv()).unwrap(), [APP]);
    let reads = || READ.load(Ordering::SeqCst);
    world.run_for(Duration::from_millis(300));
    assert_eq!(reads(), 2);
    world.clock.advance(Duration::from_secs(500));
    world.run_for(Duration::from_millis(300));
    assert_eq!(reads(), 2, "it is not tried again soon");
    world.clock.advance(Duration::from_secs(101));
    world.until("it is tried again", |_| reads() == 3);
    world.run_for(Duration::from_millis(300));
    let app = world.image(APP).expect("what was imported stays");
    assert!(app.pinned && world.image("docker.io/library/large:1").is_none());
    assert_eq!(reads(), 3);
}

#[test]
fn a_new_version_of_an_archive_takes_the_pin_from_the_image_before() {
    let folder = Folder::new("archive-version");
    let world = World::start(&folder, inflate);
    world.until("it looks at the directory", |world| world.archives.is_dir());
    let mut ids = Vec::new();
    for content in ["first", "second, which is another one"] {
        world.put("app.tar", "app:1", content.as_bytes());
        world.until(content, |world| !world.imported.is_empty());
        assert_eq!(block_on(world.imported.recv()).unwrap(), [APP]);
        ids.push(world.image(APP).expect(content).id);
    }
    let of = |world: &World<'_>, id| world.store.list().into_iter().find(|image| image.id == id).unwrap();
    let (first, second) = (of(&world, ids[0]), of(&world, ids[1]));
    assert!(!first.pinned && first.labels.is_empty(), "{first:?}");
    assert!(second.pinned && second.labels.len() == 1, "{second:?}");

    // As a store has them where both images were left with the label: the one that has the name counts.
    let stale = vec![(second.labels[0].0.clone(), "1 2.000000003 1 app.tar".to_owned())];
    block_on(world.store.pin(&first.id.to_string(), true, stale)).unwrap();
    assert_eq!(world.store.labelled(), [(APP.to_owned(), second.labels[0].1.clone())]);
    drop(world);
    let world = World::start(&folder, inflate);
    world.run_for(Duration::from_millis(300));
    assert!(world.imported.is_empty(), "it is imported already");
    fs::remove_file(world.archives.join("app.tar")).unwrap();
    world.until("neither is pinned", |world| world.store.list().iter().all(|image| !image.pinned));
    assert!(world.store.labelled().is_empty());
}

/// A pull over a bad link may have all memory of windows for hours.
#[test]
fn only_an_archive_of_zstd_waits_for_the_memory_of_windows() {
    let folder = Folder::new("archive-window");
    let world = World::start(&folder, inflate);
    let held = block_on(world.store.archive_window());
    world.until("it looks at the directory", |world| world.archives.is_dir());
    world.put("plain.tar", "app:1", b"plain");
    world.until("the one that is not compressed is imported", |world| !world.imported.is_empty());
    assert_eq!(block_on(world.imported.recv()).unwrap(), [APP]);
    put(&folder.0, "packed.tar", "packed:1", b"packed");
    let pack = "zstd -q packed.tar && mv packed.tar.zst archives/";
    assert!(Command::new("sh").arg("-ec").arg(pack).current_dir(&folder.0).status().unwrap().success());
    world.run_for(Duration::from_millis(500));
    assert!(world.imported.is_empty(), "it waits");
    drop(held);
    world.until("the one of zstd is imported", |world| !world.imported.is_empty());
    assert_eq!(block_on(world.imported.recv()).unwrap(), ["docker.io/library/packed:1"]);
}
