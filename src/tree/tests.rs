use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::mkdirat;
#[cfg(target_arch = "x86_64")]
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, unmount};

use super::*;

/// The depth that a pod can create in a second or two; a path of it has ten times the bytes that the kernel accepts.
const DEPTH: usize = if cfg!(target_arch = "x86_64") { 21_000 } else { 2_100 };
const WIDTH: usize = if cfg!(target_arch = "x86_64") { 100_000 } else { 10_000 };
/// A sixteenth of a blocking thread's stack (2 MiB).
const STACK_BYTES: usize = 128 << 10;
/// Peak of the heap: a batch, names and descriptors of the held levels, marks.
const HEAP_BYTES_MAX: u64 = 160 << 10;
/// Additional descriptors of the process: the levels', and some of concurrent tests.
const DESCRIPTORS_MAX: usize = TREE_LEVELS_HELD_MAX + 200;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smolet-tree-{name}-{}", std::process::id()));
        let _ = remove(&path, || true);
        fs::create_dir_all(path.join("root")).unwrap();
        fs::create_dir_all(path.join("outside")).unwrap();
        for name in ["1", "2", "3"] {
            fs::write(path.join("outside").join(name), "kept").unwrap();
        }
        Self(path)
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    fn outside(&self) -> PathBuf {
        self.0.join("outside")
    }

    #[track_caller]
    fn is_kept_outside(&self) {
        for name in ["1", "2", "3"] {
            assert_eq!(fs::read_to_string(self.outside().join(name)).unwrap(), "kept");
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove(&self.0, || true);
    }
}

/// Nested directories, each with a file; returns the deepest one.
fn nest(root: &Path, depth: usize) -> OwnedFd {
    let mut dir = openat(CWD, root, DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&dir, "d", Mode::RWXU).unwrap();
        openat(&dir, "file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR).unwrap();
        dir = openat(&dir, "d", DIRECTORY, Mode::empty()).unwrap();
    }
    dir
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs on a thread with a small stack; asserts the peak of the heap.
fn with_little<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let measured = move || {
        let mut result = None;
        let spent = allocation_counter::measure(|| result = Some(work()));
        assert!(spent.bytes_max <= HEAP_BYTES_MAX, "{} bytes of heap", spent.bytes_max);
        println!("{} bytes of heap at the peak", spent.bytes_max);
        result.unwrap()
    };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(measured).unwrap().join().unwrap()
}

fn count(path: &Path) -> (usize, WalkResult) {
    let (mut seen, mut walk) = (0, Walk::new(path, false).unwrap());
    let walked = walk.go_on(|_| {
        seen += 1;
        ControlFlow::Continue(())
    });
    (seen, walked)
}

#[test]
fn a_tree_of_any_depth_is_counted_and_removed() {
    let scratch = Scratch::new("deep");
    let root = scratch.root();
    drop(nest(&root, DEPTH));
    let (before, theirs) = (descriptors(), root.clone());
    let seen = with_little(move || {
        let (mut seen, mut most, mut walk) = (0, 0, Walk::new(&theirs, false).unwrap());
        let walked = walk.go_on(|_| {
            seen += 1;
            if seen % 1000 == 0 {
                most = most.max(descriptors());
            }
            ControlFlow::Continue(())
        });
        (seen, walked, most)
    });
    assert_eq!((seen.0, seen.1), (2 * DEPTH, WalkResult::All));
    assert!(seen.2 < before + DESCRIPTORS_MAX, "{} descriptors, {before} before", seen.2);
    let theirs = root.clone();
    let (gone, most) = with_little(move || {
        let (mut most, mut asked) = (0, 0);
        let gone = remove(&theirs, || {
            asked += 1;
            if asked % 1000 == 0 {
                most = most.max(descriptors());
            }
            true
        });
        (gone.unwrap(), most)
    });
    assert!(most < before + DESCRIPTORS_MAX, "{most} descriptors, {before} before");
    assert!(gone && !root.exists());
}

/// With subdirectories that are not empty, so that the walk leaves the wide directory and returns, and a deep one in the
/// middle.
#[test]
fn a_tree_of_any_width_is_counted_and_removed() {
    let scratch = Scratch::new("wide");
    let root = scratch.root();
    for number in 0..WIDTH {
        fs::File::create(root.join(format!("{number}"))).unwrap();
    }
    for number in 0..1000 {
        fs::create_dir_all(root.join(format!("dir-{number}/below"))).unwrap();
    }
    drop(nest(&root.join("dir-500"), 3 * TREE_MARKS_MAX));
    let theirs = root.clone();
    assert_eq!(with_little(move || count(&theirs)), (WIDTH + 2000 + 6 * TREE_MARKS_MAX, WalkResult::All));
    let theirs = root.clone();
    assert!(with_little(move || remove(&theirs, || true)).unwrap() && !root.exists());
}

#[test]
fn work_continues_where_it_was_stopped() {
    let scratch = Scratch::new("pieces");
    let root = scratch.root();
    drop(nest(&root, 500));
    for number in 0..2000 {
        fs::create_dir_all(root.join(format!("d/wide/{number}/{number}"))).unwrap();
    }
    let (mut seen, mut pieces, mut walk) = (0, 1, Walk::new(&root, false).unwrap());
    while walk.go_on(|_| {
        seen += 1;
        if seen % 7 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }) == WalkResult::Stopped
    {
        pieces += 1;
    }
    assert_eq!((seen, pieces), (5001, 5001 / 7 + 1));
    assert_eq!(walk.go_on(|_| ControlFlow::Continue(())), WalkResult::All, "the walk has ended");
    let mut pieces = 0;
    loop {
        let mut left = 20;
        pieces += 1;
        let gone = remove(&root, || {
            left -= 1;
            left > 0
        });
        if gone.unwrap() {
            break;
        }
    }
    assert!((10..2000).contains(&pieces) && !root.exists(), "{pieces} pieces");
    assert_eq!(remove(&root, || true).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn links_are_removed_and_never_followed() {
    let scratch = Scratch::new("links");
    let (root, outside) = (scratch.root(), scratch.outside());
    fs::create_dir(root.join("d")).unwrap();
    symlink(&outside, root.join("link")).unwrap();
    symlink("../../outside", root.join("d/link")).unwrap();
    fs::hard_link(outside.join("1"), root.join("hard")).unwrap();
    assert_eq!(count(&root), (4, WalkResult::All));
    symlink(&root, scratch.0.join("to-root")).unwrap();
    assert!(
        remove(&scratch.0.join("to-root"), || true).unwrap() && root.exists(),
        "the link itself is removed"
    );
    assert!(Walk::new(&root.join("link"), false).is_err());
    assert!(remove(&root, || true).unwrap() && !root.exists());
    scratch.is_kept_outside();
}

/// A directory of the current path is moved out of the tree while the walk is below it.
#[test]
fn a_directory_moved_away_does_not_lead_a_walk_out() {
    for depth in [3, 100, 3 * TREE_MARKS_MAX] {
        let scratch = Scratch::new(&format!("moved-{depth}"));
        let (root, outside) = (scratch.root(), scratch.outside());
        fs::create_dir_all(root.join("a/b")).unwrap();
        let deepest = nest(&root.join("a/b"), depth);
        openat(&deepest, "last", OFlags::CREATE | OFlags::WRONLY, Mode::WUSR).unwrap();
        let last = statat(&deepest, "last", AtFlags::empty()).unwrap().st_ino;
        drop(deepest);
        let kept = outside.join("1").metadata().unwrap().ino();
        let (mut walk, mut is_seen) = (Walk::new(&root, false).unwrap(), false);
        let walked = walk.go_on(|there| {
            if there.st_ino == last {
                fs::rename(root.join("a"), outside.join("a")).unwrap();
            }
            is_seen |= there.st_ino == kept;
            ControlFlow::Continue(())
        });
        // A few levels are all held: nothing has to be found again.
        let wanted = if depth < TREE_LEVELS_HELD_MAX { WalkResult::All } else { WalkResult::Cut };
        assert!(walked == wanted && !is_seen, "{depth}: {walked:?}");
        assert_eq!(walk.go_on(|_| ControlFlow::Continue(())), WalkResult::All, "the walk has ended");
        fs::rename(outside.join("a"), root.join("a")).unwrap();
        let mut asked = 0;
        let gone = remove(&root, || {
            asked += 1;
            if asked == depth.min(30) {
                fs::rename(root.join("a"), outside.join("a")).unwrap();
            }
            true
        });
        assert!(gone.unwrap() && !root.exists());
        scratch.is_kept_outside();
    }
}

/// Another thread swaps a directory and a link to the outside, and moves directories up and down, while trees are removed.
#[test]
fn concurrent_renames_lead_no_removal_out_of_the_tree() {
    let scratch = Scratch::new("swapped");
    let (root, outside) = (scratch.root(), scratch.outside());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (theirs, to) = (root.clone(), outside.clone());
    let swaps = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let _ = fs::rename(theirs.join("x"), theirs.join("y"));
            let _ = symlink(&to, theirs.join("x"));
            let _ = fs::remove_file(theirs.join("x"));
            let _ = fs::rename(theirs.join("y"), theirs.join("x"));
            let _ = fs::rename(theirs.join("x/d/d"), theirs.join("z"));
            // Otherwise the kernel's lock on the directory would be held nearly all the time.
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    for _ in 0..30 {
        fs::create_dir_all(&root).unwrap();
        // The other thread may have created the name: as a link, or by renaming.
        let created = fs::create_dir(root.join("x")).map_err(|error| error.kind());
        assert!(matches!(created, Ok(()) | Err(io::ErrorKind::AlreadyExists)), "{created:?}");
        for number in 0..10 {
            let _ = fs::create_dir_all(root.join(format!("x/d/d/{number}/{number}")));
        }
        let _ = count(&root);
        // The other thread may recreate a name after the last pass.
        for _ in 0..20 {
            let mut asked = 0;
            let _ = remove(&root, || {
                asked += 1;
                asked < 1000
            });
        }
        scratch.is_kept_outside();
    }
    drop(stop);
    swaps.join().unwrap();
    let removed = remove(&root, || true);
    assert!(!root.exists(), "{removed:?}");
}

/// Mounts of the same file system, which have the same device; emulators without `openat2` cannot detect them.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_mount_in_a_tree_is_not_entered() {
    let scratch = Scratch::new("mounted");
    let (root, outside) = (scratch.root(), scratch.outside());
    let at = root.join("a/mounted");
    fs::create_dir_all(&at).unwrap();
    mount_bind(&outside, &at).expect("mounting needs root");
    let (seen, walked) = count(&root);
    let error = remove(&root, || true).unwrap_err();
    unmount(&at, UnmountFlags::DETACH).unwrap();
    assert!(seen == 2 && walked == WalkResult::All, "{seen}");
    assert!(matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices), "{error}");
    scratch.is_kept_outside();
    // The directory to remove is a mount too.
    rustix::mount::mount("none", &root, "tmpfs", MountFlags::NODEV, None::<&CStr>).unwrap();
    fs::write(root.join("file"), "kept").unwrap();
    let error = remove(&root, || true).unwrap_err();
    assert_eq!(
        (error.kind(), fs::read_to_string(root.join("file")).unwrap()),
        (io::ErrorKind::CrossesDevices, "kept".into())
    );
    unmount(&root, UnmountFlags::DETACH).unwrap();
    assert!(remove(&root, || true).unwrap());
}

/// A name that a removal would use itself exists already.
#[test]
fn an_interrupted_removal_is_continued_by_the_next_one() {
    let scratch = Scratch::new("cut-off");
    let root = scratch.root();
    fs::create_dir_all(root.join(".deep-0/full")).unwrap();
    fs::write(root.join(".deep-1"), "").unwrap();
    drop(nest(&root, 10 * TREE_LEVELS_HELD_MAX));
    let mut left = 100;
    let stopped = remove(&root, || {
        left -= 1;
        left > 0
    });
    assert!(!stopped.unwrap() && root.exists());
    let began = std::time::Instant::now();
    assert!(remove(&root, || true).unwrap() && !root.exists() && began.elapsed() < Duration::from_mins(1));
}
