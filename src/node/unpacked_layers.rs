//! Layers of images that a power cut may have damaged are unpacked again.
//!
//! containerd syncs its blobs and its database, but not the files of the layers that it unpacks: cut off within half a minute, they are
//! empty ever after, in all containers of the image, and nothing says so.
//!
//! ```text
//!     disk written out (`image_sync`) ──► `unpacked-layers`: the boot, and the layers that were there before
//!     start in another boot ──► layers that are not in it ──► what is left on them is removed, then they ──► containerd unpacks them
//!                                                                                    from its blobs when a container needs them
//!     those that cannot be removed ──► a `?` in `unpacked-layers`: not recorded in this boot, told by an event, removed in the next
//! ```
//!
//! No registry is asked. Not in the kubelet; CRI-O repairs its own store, the embedded runtime's layers are whole or absent.

use std::io;
use std::path::{Path, PathBuf};

use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::store::{ImageStore, Snapshot, SnapshotKind};
use crate::cri::{GrpcRuntime, Runtime as _, RuntimeError};
use crate::filesystem::{read_linked, replace};
use crate::image_store::Digest;
use crate::limits::{
    BLOBS_MAX, LAYERS_NAMED_MAX, SNAPSHOT_TRIES, SNAPSHOTS_DEPTH_MAX, SNAPSHOTS_MAX, TORN_CNI_WAIT,
    UNPACKED_LAYERS_BYTES_MAX,
};
use crate::metrics::Counter;
use crate::model::{ContainerId, ContainerItem, ContainerState, SandboxId, SandboxItem, SandboxState};

/// The layers that were unpacked when the disk was last written out: the boot in the first line, then a name in each line, then the
/// names again, each with when it was made. Versions without the times read, and wrote, the names alone. Those that are doubted and
/// could not be removed follow, as [`doubt`] has them: no other version takes them for known.
#[derive(Clone, Debug)]
pub(super) struct LayerRecord {
    path: PathBuf,
    boot: Box<str>,
}

impl LayerRecord {
    /// The record in that state directory, for this boot.
    pub(super) fn new(root_dir: &Path, boot: Box<str>) -> Self {
        Self { path: root_dir.join("unpacked-layers"), boot }
    }

    /// The layers as they were recorded in an earlier boot, one a line. `None`: in this one, or never. Blocks.
    fn of_earlier_boot(&self) -> Option<String> {
        let text = self.read()?;
        let (boot, names) = text.split_once('\n')?;
        (boot != &*self.boot).then(|| names.to_owned())
    }

    /// The file, unless it cannot be read. Blocks.
    fn read(&self) -> Option<String> {
        String::from_utf8(read_linked(&self.path, UNPACKED_LAYERS_BYTES_MAX).ok()?).ok()
    }

    /// Notes what `remove_doubted` has left, in the place of what it left before: a [`doubt`] each, or [`ALL_DOUBTED`]. Blocks.
    fn note_left(&self, left: &str) -> io::Result<()> {
        let there = self.read().unwrap_or_default();
        let known = there.lines().filter(|line| !line.starts_with('?'));
        self.put(&(known.flat_map(|line| [line, "\n"]).collect::<String>() + left))
    }

    /// Records them, unless the file says so already; those that are doubted stay so. Returns what their owner has to know and do;
    /// empty if none is. Blocks.
    pub(super) fn write(&self, layers: &[Snapshot]) -> io::Result<String> {
        let there = self.read().unwrap_or_default();
        let left: Vec<&str> = there.lines().filter(|line| line.starts_with('?')).collect();
        let all = left.contains(&ALL_DOUBTED.trim_end());
        let (mut names, mut times, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
        for layer in layers.iter().filter(|layer| layer.is_committed()) {
            let line = doubt(layer);
            if left.contains(&line.trim_end()) || (all && !is_known(&there, layer)) {
                doubts.push(line);
            } else {
                names.push(&*layer.name);
                times.push(line[1..].to_owned());
            }
        }
        names.sort_unstable();
        times.sort_unstable();
        doubts.sort_unstable();
        let known = format!("{}\n{}\n{}", self.boot, names.join("\n"), times.concat());
        self.put(&(known.clone() + &doubts.concat()))?;
        Ok(if doubts.is_empty() { String::new() } else { advice(&doubted(layers, &known)) })
    }

    /// Replaces the content, unless it is the same. Blocks.
    fn put(&self, text: &str) -> io::Result<()> {
        if text.len() > UNPACKED_LAYERS_BYTES_MAX {
            return Err(io::Error::other("more layers than are recorded"));
        }
        if read_linked(&self.path, UNPACKED_LAYERS_BYTES_MAX).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        replace(&self.path, &self.path.with_extension("new"), text.as_bytes())
    }
}

/// The line of a layer that is doubted. One that is unpacked again is another one. PURE.
fn doubt(layer: &Snapshot) -> String {
    format!("?{} {}\n", layer.name, layer.made_at)
}

/// In the place of such lines: the layers could not be listed, and none is known but the recorded ones.
const ALL_DOUBTED: &str = "?\n";

/// What is to be done about layers that stay doubted, by what [`doubted`] says of them. PURE.
fn advice(doubted: &[&Snapshot]) -> String {
    let of_kind = |is_layer| {
        let names = doubted.iter().filter(move |of| of.is_committed() == is_layer).map(|of| &*of.name);
        let shown = names.clone().take(LAYERS_NAMED_MAX).collect::<Vec<_>>().join(", ");
        (names.count(), shown)
    };
    let ((layers, shown), (others, on_top)) = (of_kind(true), of_kind(false));
    let users = if others == 0 { String::new() } else { format!(", used by {others}: {on_top}") };
    format!(
        "a power cut may have emptied files of {layers} image layers, which could not be removed: {shown}{users}; remove the containers and \
         sandboxes on them (crictl rm, crictl rmp) and reboot, or remove the images (crictl rmi)"
    )
}

/// The snapshotter whose directory that is, if its layers are files of this machine that containerd can unpack from its blobs. PURE.
pub(super) fn snapshotter(mountpoint: &str) -> Option<&str> {
    let (_, name) = mountpoint.rsplit_once("/io.containerd.snapshotter.v1.")?;
    ["overlayfs", "native", "fuse-overlayfs"].contains(&name).then_some(name)
}

/// Whether the record has that layer, and not an earlier one of its name that was removed since: an image that is pulled again. PURE.
fn is_known(record: &str, layer: &Snapshot) -> bool {
    let (mut is_named, mut is_other) = (false, false);
    for rest in record.lines().filter_map(|line| line.strip_prefix(&*layer.name)) {
        match rest.strip_prefix(' ') {
            Some(made_at) => is_other = made_at.parse() != Ok(layer.made_at),
            None => is_named |= rest.is_empty(),
        }
    }
    is_named && !is_other
}

/// The layers that are not known, and whatever is on one of them: what is on another before that. PURE.
fn doubted<'a>(snapshots: &'a [Snapshot], known: &str) -> Vec<&'a Snapshot> {
    // Each name is looked for once: there may be thousands.
    let places: Vec<(Option<usize>, bool)> = snapshots
        .iter()
        .map(|of| {
            let parent = snapshots.iter().position(|other| other.name == of.parent);
            (parent, of.is_committed() && !is_known(known, of))
        })
        .collect();
    // How many each has below it, itself included; 0 for one that is known and on known ones. A circle ends at the limit.
    let depth_of = |at| {
        let below = || std::iter::successors(Some(at), |at: &usize| places[*at].0).take(SNAPSHOTS_DEPTH_MAX);
        if below().any(|at| places[at].1) { below().count() } else { 0 }
    };
    let depths: Vec<usize> = (0..snapshots.len()).map(depth_of).collect();
    let from_the_top = (1..=SNAPSHOTS_DEPTH_MAX).rev();
    let of_depth = |depth| snapshots.iter().zip(&depths).filter(move |(_, of)| **of == depth);
    from_the_top.flat_map(of_depth).map(|(snapshot, _)| snapshot).collect()
}

/// Removes the layers that were unpacked after the disk was last written out in an earlier boot, before anything is started on
/// them. What fails is logged, and noted so that it is not recorded as known: the pods run all the same.
pub(super) async fn remove_doubted(
    runtime: &GrpcRuntime,
    record: LayerRecord,
    removed: &Counter,
    blocking: &Blocking,
    clock: &SharedClock,
) {
    let earlier = record.clone();
    let Some(known) = blocking.run(move || earlier.of_earlier_boot()).await else { return };
    let store = runtime.image_store("");
    let (mut failure, mut left) = (None, ALL_DOUBTED.to_owned());
    for again in 0..SNAPSHOT_TRIES {
        if again > 0 {
            // Torn results of CNI, for which a sandbox cannot be stopped, are removed meanwhile.
            clock.sleep(TORN_CNI_WAIT * 2).await;
        }
        // Boxed: it ends before the pods' tasks begin.
        failure = Box::pin(try_remove(runtime, &store, &known, removed, blocking, &mut left)).await.err();
        if failure.is_none() {
            break;
        }
    }
    if let Some(error) = failure {
        log::warn!(
            "layers that were unpacked when the power was cut could not be removed: {error}; their images may be damaged: crictl rmi IMAGE"
        );
    } else {
        left.clear();
    }
    if let Err(error) = blocking.run(move || record.note_left(&left)).await {
        log::warn!(
            "unpacked-layers: not written: {error}; layers that could not be removed count as undamaged: crictl rmi IMAGE"
        );
    }
}

/// Digests of containerd's blobs and of the archives that they are the compressed form of.
async fn archives(store: &ImageStore) -> Result<Vec<Digest>, String> {
    let mut archives = Vec::new();
    let each = |digest: &str| {
        if archives.len() < BLOBS_MAX
            && let Some(digest) = Digest::parse(digest)
        {
            archives.push(digest);
        }
    };
    store.archives(each).await.map_err(|error| error.to_string())?;
    Ok(archives)
}

/// Whether containerd can unpack that layer from one of these again. Its name is its chain ID (OCI image-spec): the digest of its archive,
/// on other layers that of the name of the one below and of its archive's digest. PURE.
fn has_archive(layer: &Snapshot, archives: &[Digest]) -> bool {
    let Some(name) = Digest::parse(&layer.name) else { return false };
    let chain_id = |archive: &Digest| match &*layer.parent {
        "" => *archive,
        parent => Digest::of(format!("{parent} {archive}").as_bytes()),
    };
    archives.iter().any(|archive| chain_id(archive) == name)
}

/// Names of those of the layers that containerd cannot unpack again, sorted. PURE.
fn without_archive(mut layers: Vec<Snapshot>, archives: &[Digest]) -> Vec<Box<str>> {
    layers.retain(|layer| layer.is_committed() && !has_archive(layer, archives));
    let mut names: Vec<Box<str>> = layers.into_iter().map(|layer| layer.name).collect();
    names.sort_unstable();
    names
}

/// Whether somebody may have written what is in it. Where it is no container of the CRI, that is another program's (`ctr run`, nerdctl), but for
/// what containerd was interrupted in unpacking. PURE.
fn is_written(of: &Snapshot) -> bool {
    of.kind == SnapshotKind::Active && !of.name.starts_with("extract-")
}

/// `left`: the layers that are not removed, a [`doubt`] each; as it was where they cannot be listed.
async fn try_remove(
    runtime: &GrpcRuntime,
    store: &ImageStore,
    known: &str,
    removed: &Counter,
    blocking: &Blocking,
    left: &mut String,
) -> Result<(), String> {
    let text = |error: RuntimeError| error.to_string();
    let filesystems = runtime.image_fs_info().await.map_err(text)?;
    let Some(snapshotter) = filesystems.first().and_then(|disk| snapshotter(&disk.mountpoint)) else {
        return Ok(());
    };
    let snapshots = store.snapshots(snapshotter).await.map_err(text)?;
    let doubted = doubted(&snapshots, known);
    *left = doubted.iter().filter(|of| of.is_committed()).map(|of| doubt(of)).collect();
    if doubted.is_empty() {
        return Ok(());
    }
    let archives = archives(store).await?;
    let layers: Vec<Snapshot> = doubted.iter().copied().cloned().collect();
    let lost = blocking.run(move || without_archive(layers, &archives)).await;
    let unless_of_the_cri = |of: &&Snapshot| if is_written(of) { OnTop::Left } else { OnTop::Nothing };
    let mut on_top: Vec<OnTop> = doubted.iter().map(unless_of_the_cri).collect();
    let place = |id: &str| doubted.iter().position(|snapshot| *snapshot.name == *id);
    let mut foreign = Vec::new();
    let mut sandbox = |of: SandboxItem| {
        let is_left = of.node.is_none() || of.state == SandboxState::Ready;
        if let Some(at) = place(of.id.as_str()) {
            on_top[at] = if is_left { OnTop::Left } else { OnTop::Sandbox };
        }
        if of.node.is_none() && foreign.len() < SNAPSHOTS_MAX {
            foreign.push(of.id);
        }
    };
    runtime.list_pod_sandboxes(None, &mut sandbox).await.map_err(text)?;
    let mut container = |of: ContainerItem| {
        if let Some(at) = place(of.id.as_str()) {
            let is_left = of.state == ContainerState::Running || foreign.contains(&of.sandbox_id);
            on_top[at] = if is_left { OnTop::Left } else { OnTop::Container };
        }
    };
    runtime.list_containers(None, &mut container).await.map_err(text)?;
    let mut failure = Ok(());
    left.clear();
    for (snapshot, on_top) in doubted.into_iter().zip(&on_top) {
        let (name, is_committed) = (&snapshot.name, snapshot.is_committed());
        let done = match on_top {
            _ if lost.binary_search(name).is_ok() => {
                Err(format!("{name}: containerd keeps no blob to unpack it from (discard_unpacked_layers)"))
            }
            // For nothing: the layer below it stays.
            _ if !is_committed && lost.binary_search(&snapshot.parent).is_ok() => Ok(()),
            OnTop::Left => Err(format!("{name} is on one of them, and runs or is another agent's")),
            OnTop::Container => runtime.remove_container(&ContainerId::from(&**name)).await.map_err(text),
            // Which stops it too.
            OnTop::Sandbox => runtime.remove_pod_sandbox(&SandboxId::from(&**name)).await.map_err(text),
            OnTop::Nothing => store.remove_snapshot(snapshotter, name).await.map_err(text),
        };
        match &done {
            Ok(()) if is_committed => removed.inc(),
            Err(_) if is_committed => left.push_str(&doubt(snapshot)),
            Ok(()) | Err(_) => {}
        }
        failure = failure.and(done);
    }
    failure
}

/// What has a snapshot as its writable layer.
enum OnTop {
    Nothing,
    Container,
    Sandbox,
    /// One that runs, or that is not smolet's.
    Left,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(name: &str, parent: &str, is_committed: bool) -> Snapshot {
        let kind = if is_committed { SnapshotKind::Committed } else { SnapshotKind::Active };
        Snapshot { name: name.into(), parent: parent.into(), kind, made_at: 7 }
    }

    #[test]
    fn what_is_not_known_goes_with_all_that_is_on_it_from_the_top() {
        let snapshots = [
            snapshot("base", "", true),
            snapshot("app", "base", true),
            snapshot("new", "base", true),
            snapshot("newer", "new", true),
            snapshot("of-app", "app", false),
            snapshot("of-newer", "newer", false),
            snapshot("of-new", "new", false),
            snapshot("extract", "", false),
        ];
        let doubted_with = |known: &[&str]| {
            doubted(&snapshots, &known.join("\n")).iter().map(|of| of.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(doubted_with(&["base", "app"]), ["of-newer", "newer", "of-new", "new"]);
        assert!(doubted_with(&["base", "app", "new", "newer", "gone"]).is_empty());
        let all = doubted_with(&[]);
        assert_eq!((all.len(), all.last().map(|name| &**name)), (7, Some("base")));
        // Unpacked again since: its name is known, and what it has is not on the disk for sure.
        let of = |names: &[&str]| doubted_with(names).len();
        assert_eq!(of(&["base", "app", "new", "newer", "base 7", "app 7", "new 7", "newer 7"]), 0);
        assert_eq!(doubted_with(&["base", "app", "new", "newer", "new 6", "base 7"])[3..], ["new"]);
        // A runtime that names a layer as its own parent.
        let circle = [snapshot("a", "b", true), snapshot("b", "a", true)];
        assert_eq!(doubted(&circle, "").len(), 2);
    }

    #[test]
    fn a_layer_has_the_archive_whose_chain_id_is_its_name() {
        let [base, app, other] = ["base", "app", "other"].map(|name| Digest::of(name.as_bytes()));
        let on_base = Digest::of(format!("{base} {app}").as_bytes()).to_string();
        let lowest = snapshot(&base.to_string(), "", true);
        let upper = snapshot(&on_base, &base.to_string(), true);
        for (archives, expected) in [
            (vec![base, app, other], [true, true]),
            (vec![base, other], [true, false]),
            (vec![app], [false, true]),
        ] {
            assert_eq!(
                [&lowest, &upper].map(|layer| has_archive(layer, &archives)),
                expected,
                "{archives:?}"
            );
        }
        assert!(!has_archive(&snapshot("base", "", true), &[base]), "no chain ID");
        let container = snapshot("container", &on_base, false);
        assert_eq!(without_archive(vec![lowest, upper, container], &[base]), [on_base.into()]);
    }

    #[test]
    fn what_no_container_of_the_cri_has_written_stays() {
        let of = |name, kind| Snapshot { kind, ..snapshot(name, "sha256:1", false) };
        for (snapshot, expected) in [
            (of("nerdctls", SnapshotKind::Active), true),
            (of("extract-1-a sha256:2", SnapshotKind::Active), false),
            (of("an image as a volume", SnapshotKind::View), false),
            (of("sha256:2", SnapshotKind::Committed), false),
        ] {
            assert_eq!(is_written(&snapshot), expected, "{snapshot:?}");
        }
    }

    #[test]
    fn the_snapshotter_is_the_directorys_unless_it_fetches_layers_itself() {
        for (mountpoint, expected) in [
            ("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs", Some("overlayfs")),
            ("/data/io.containerd.snapshotter.v1.native", Some("native")),
            ("/var/lib/containerd/io.containerd.snapshotter.v1.stargz", None),
            ("/var/lib/containers/storage/overlay-images", None),
            ("", None),
        ] {
            assert_eq!(snapshotter(mountpoint), expected, "{mountpoint}");
        }
    }

    #[test]
    fn a_record_is_of_the_boot_that_wrote_it() {
        let root = std::env::temp_dir().join(format!("smolet-layers-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("made");
        let of = |boot: &str| LayerRecord::new(&root, boot.into());
        assert_eq!(of("first").of_earlier_boot(), None, "nothing was ever recorded");
        let layers = [snapshot("b", "a", true), snapshot("a", "", true), snapshot("c1", "b", false)];
        of("first").write(&layers).expect("written");
        let file = root.join("unpacked-layers");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "first\na\nb\na 7\nb 7\n");
        assert_eq!(of("first").of_earlier_boot(), None);
        assert_eq!(of("second").of_earlier_boot(), Some("a\nb\na 7\nb 7\n".to_owned()));
        let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&file).expect("there"));
        let before = inode();
        assert_eq!(of("first").write(&layers).expect("written"), "");
        assert_eq!(inode(), before, "the same is not written again");
        std::fs::write(&file, "torn").expect("written");
        assert_eq!(of("second").of_earlier_boot(), None);
        std::fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn layers_that_could_not_be_removed_are_not_recorded_and_are_told() {
        let root = std::env::temp_dir().join(format!("smolet-layers-left-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("made");
        let of = |boot: &str| LayerRecord::new(&root, boot.into());
        let text = || std::fs::read_to_string(root.join("unpacked-layers")).expect("read");
        let [base, mut left] = [snapshot("base", "", true), snapshot("left", "base", true)];
        of("first").write(std::slice::from_ref(&base)).expect("written");
        of("second").note_left(&doubt(&left)).expect("written");
        assert_eq!(text(), "first\nbase\nbase 7\n?left 7\n");

        // Whatever is written in this boot, by this agent or another start of it.
        let mut all = vec![base, left.clone(), snapshot("new", "base", true), snapshot("c1", "left", false)];
        for _ in 0..2 {
            let told = of("second").write(&all).expect("written");
            assert_eq!(text(), "second\nbase\nnew\nbase 7\nnew 7\n?left 7\n");
            let names = " 1 image layers, which could not be removed: left, used by 1: c1; remove ";
            assert!(told.contains(names) && told.ends_with("(crictl rmi)"), "{told}");
        }
        // The next boot doubts it again.
        let known = of("third").of_earlier_boot().expect("of another boot");
        assert_eq!(doubted(&all, &known).iter().map(|of| &*of.name).collect::<Vec<_>>(), ["c1", "left"]);
        // Its image was removed and pulled again.
        left.made_at = 8;
        all[1] = left;
        assert_eq!(of("second").write(&all).expect("written"), "");
        assert_eq!(text(), "second\nbase\nleft\nnew\nbase 7\nleft 8\nnew 7\n");

        // Not even listed.
        all.push(snapshot("newer", "new", true));
        of("third").note_left(ALL_DOUBTED).expect("written");
        assert!(of("third").write(&all).expect("written").contains("removed: newer; "));
        assert!(text().starts_with("third\n") && text().ends_with("new 7\n?newer 7\n"), "{}", text());
        // Removed at a later start.
        of("fourth").note_left("").expect("written");
        assert!(text().starts_with("third\n") && text().ends_with("new 7\n"), "{}", text());
        std::fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn of_many_layers_that_are_left_some_are_named() {
        let layers: Vec<Snapshot> = (0..9).map(|at| snapshot(&format!("l{at}"), "", true)).collect();
        let told = advice(&layers.iter().collect::<Vec<_>>());
        assert!(told.contains(" 9 image layers, which could not be removed: l0, l1, l2; remove "), "{told}");
    }
}
