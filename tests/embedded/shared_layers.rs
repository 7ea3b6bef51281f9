//! Layers that several images have, on other layers: what such a layer does not describe is each image's own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use smol::block_on;
use smolet::image_store::{ImageStore, RootfsOptions};

use super::images::{
    Entry, Folder, dir, docker_archive, entry, file, import, link, names, tar, without_overlays,
};

/// A base in which `d`, `d/in` and `etc` are whoever's that owner is, with that mode.
fn base(own: &[u8], mode: u32, owner: (u32, u32)) -> Vec<u8> {
    let of = |name| Entry { mode, owner, ..dir(name) };
    let pax = if own.is_empty() { Vec::new() } else { vec![("SCHILY.xattr.user.of", own)] };
    let marked = Entry { pax, ..of("d/") };
    tar(&[
        marked,
        of("d/in/"),
        of("etc/"),
        file("d/gone", b"removed"),
        file("etc/old", b"hidden"),
        file("own", own),
    ])
}

/// A layer that describes none of its directories but `etc`, which is opaque.
fn shared() -> Vec<u8> {
    tar(&[
        file("d/in/file", b"of all"),
        link("d/in/same", b'1', "d/in/file"),
        entry("d/.wh.gone", b'0', b""),
        file("new/file", b"of all"),
        dir("etc/"),
        entry("etc/.wh..wh..opq", b'0', b""),
        file("etc/new", b"seen"),
        file("etc/deep/file", b"seen"),
        file("was/dir/file", b"gone"),
        link("was/dir", b'2', "../d"),
    ])
}

/// Mode, owner and the attribute of a directory.
fn attributes(dir: &Path) -> (u32, u32, String) {
    let mut value = [0; 16];
    let length = rustix::fs::lgetxattr(dir, "user.of", &mut value[..]).unwrap_or_default();
    let there = fs::metadata(dir).unwrap();
    (there.mode() & 0o7777, there.uid(), String::from_utf8_lossy(&value[..length]).into_owned())
}

/// What a container of the image sees.
fn check(store: &ImageStore, image: &str, (mode, owner, own): (u32, u32, &str)) {
    let stored = store.resolve(image).unwrap();
    let root = block_on(store.rootfs("seen", &stored, &RootfsOptions::default())).unwrap().path;
    assert_eq!(attributes(&root.join("d")), (mode, owner, own.to_owned()), "{image}");
    assert_eq!(attributes(&root.join("d/in")), (mode, owner, String::new()), "{image}");
    assert_eq!(attributes(&root.join("new")), (0o755, 0, String::new()), "{image}");
    assert_eq!(names(&root.join("d")), ["in"]);
    // The layer describes it.
    assert_eq!(attributes(&root.join("etc")), (0o755, 0, String::new()), "{image}");
    assert_eq!(fs::metadata(root.join("etc")).unwrap().mtime(), 1_600_000_000);
    assert_eq!(names(&root.join("etc")), ["deep", "new"]);
    assert_eq!(fs::read_link(root.join("was/dir")).unwrap(), Path::new("../d"));
    let of = |name: &str| {
        let there = fs::metadata(root.join(name)).unwrap();
        (there.ino(), there.nlink())
    };
    assert_eq!((of("d/in/file"), of("d/in/file").1), (of("d/in/same"), 2));
    assert_eq!(fs::read(root.join("d/in/file")).unwrap(), b"of all");
    block_on(store.remove_rootfs("seen")).unwrap();
}

fn each_image_has_its_own(folder: &Folder) {
    let store = folder.store();
    let load =
        |name: &str, layers: &[Vec<u8>]| import(folder, &store, &docker_archive(name, "", layers)).unwrap();
    let layers_there = || names(&folder.0.join("images/layers")).len();
    let (open, closed) = ((0o777, 7, "open"), (0o700, 0, "closed"));
    let opens = base(b"open", 0o777, (7, 7));
    let closes = base(b"closed", 0o700, (0, 0));
    load("open:1", &[opens.clone(), shared()]);
    assert_eq!(layers_there(), 2);
    load("closed:1", &[closes.clone(), shared()]);
    check(&store, "open:1", open);
    check(&store, "closed:1", closed);
    assert_eq!(layers_there(), 4, "a base, and the directories");
    // The layer is on the disk once.
    let [closed_layers, open_layers] =
        ["closed:1", "open:1"].map(|image| store.resolve(image).unwrap().layers);
    assert_eq!((closed_layers.len(), open_layers.len(), closed_layers[1]), (3, 2, open_layers[1]));
    let own = folder.0.join("images/layers").join(closed_layers[2].hex()).join("fs");
    assert_eq!(names(&own), ["d", "etc", "new", "was"]);
    assert_eq!(names(&own.join("d")), ["in"]);
    assert_eq!((names(&own.join("d/in")), names(&own.join("etc"))), (Vec::new(), vec!["deep".to_owned()]));
    // Others on both of them use it, whichever came before; and where nothing lies below, nothing of others is there.
    load("more:1", &[closes.clone(), shared(), tar(&[file("more", b"more")])]);
    load("also-open:1", &[opens.clone(), shared(), tar(&[file("also", b"also")])]);
    assert_eq!(layers_there(), 6);
    check(&store, "more:1", closed);
    check(&store, "also-open:1", open);
    load("alone:1", &[shared()]);
    let alone = store.resolve("alone:1").unwrap();
    let root = block_on(store.rootfs("alone", &alone, &RootfsOptions::default())).unwrap().path;
    for dir in ["d", "d/in"] {
        assert_eq!(attributes(&root.join(dir)), (0o755, 0, String::new()));
    }
    block_on(store.remove_rootfs("alone")).unwrap();
    // A base that says the same of them takes the layer as it is.
    let (plain, other) = (base(b"", 0o750, (3, 3)), tar(&[file("d/in/other", b"of two")]));
    load("plain:1", &[plain.clone(), other.clone()]);
    let before = layers_there();
    load("like-plain:1", &[plain, tar(&[file("x", b"x")]), other]);
    assert_eq!(layers_there(), before + 1);

    // The image that had the layer first goes, and what is left is as it was, after a restart too.
    for gone in ["open:1", "also-open:1", "plain:1", "like-plain:1", "more:1", "alone:1"] {
        block_on(store.remove(gone)).unwrap();
    }
    assert_eq!(layers_there(), 3);
    drop(store);
    let store = folder.store();
    check(&store, "closed:1", closed);
    block_on(store.tag("closed:1", "closed:2")).unwrap();
    block_on(store.remove("closed:1")).unwrap();
    assert!(store.list().is_empty());
    assert_eq!(layers_there(), 0);

    // Who comes first says nothing.
    let load =
        |name: &str, layers: &[Vec<u8>]| import(folder, &store, &docker_archive(name, "", layers)).unwrap();
    load("closed:1", &[closes, shared()]);
    load("open:1", &[opens, shared()]);
    check(&store, "closed:1", closed);
    check(&store, "open:1", open);
    // The same image again, of which the layer by its configuration's name is another's.
    block_on(store.remove("closed:1")).unwrap();
    load("again:1", &[base(b"open", 0o777, (7, 7)), shared()]);
    check(&store, "again:1", open);
    assert_eq!(names(&folder.0.join("images/ingest")), [""; 0]);
}

#[test]
fn a_layer_on_other_layers_has_directories_of_its_own() {
    each_image_has_its_own(&Folder::new("shared"));
}

#[test]
fn a_layer_that_is_copied_has_them_too() {
    each_image_has_its_own(&without_overlays("shared-native"));
}

/// A layer is described, and its image finds no space for its record: the next one that has it sees nothing of that.
#[test]
fn what_an_image_that_was_not_stored_has_described_is_described_anew() {
    let folder = Folder::new("undone");
    let store = folder.store();
    // A file in the place of the record.
    let archive = docker_archive("open:1", "", &[base(b"open", 0o777, (7, 7)), shared()]);
    import(&folder, &store, &archive).unwrap();
    let id = store.resolve("open:1").unwrap().id.hex();
    block_on(store.remove("open:1")).unwrap();
    fs::create_dir(folder.0.join("images/records").join(&id)).unwrap();
    fs::write(folder.0.join("images/records").join(&id).join("in-the-way"), "").unwrap();
    import(&folder, &store, &archive).unwrap_err();
    assert!(store.list().is_empty());
    import(&folder, &store, &docker_archive("alone:1", "", &[shared()])).unwrap();
    let alone = store.resolve("alone:1").unwrap();
    let root = block_on(store.rootfs("alone", &alone, &RootfsOptions::default())).unwrap().path;
    for dir in ["d", "d/in"] {
        assert_eq!(attributes(&root.join(dir)), (0o755, 0, String::new()));
    }
    block_on(store.remove_rootfs("alone")).unwrap();
}
