//! The folder and its files: what is written is read, and a modified file is not used.

#![allow(clippy::unwrap_used, reason = "tests")]
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::json;

use super::super::checkpoint::Unreadable;
use super::content::{self, OfflineNode, decode, decode_node, encode, encode_node, key_of, name_of};
use super::folder::{Content, FileName, Folder, OfflineState, Owner, Put, Written};
use super::record::{Kind, Name, Record, from_bytes, to_bytes};
use super::tree;
use crate::decode::Node;
use crate::limits::{OFFLINE_BYTES_MAX, OFFLINE_RECORD_BYTES_MAX, PODS_BYTES_MAX};
use crate::model::NfsExport;
use crate::model::object::{Claim, ClaimedVolume, RuntimeClass, Services, Token, VolumeSource};
use crate::model::{Object, ObjectKey, ObjectKind, Side};
use crate::model::{SortedMap, SortedSet};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("smolet-keep-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn folder(&self) -> Folder {
        Folder::new(&self.0)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join("cluster").join(name)
    }

    /// The objects' files by kind.
    fn files(&self) -> SortedMap<Kind, PathBuf> {
        let entries = fs::read_dir(self.0.join("cluster")).unwrap().flatten().map(|entry| entry.path());
        let files = entries.filter(|path| path.file_name().unwrap().len() == 32);
        files.map(|path| (from_bytes(&fs::read(&path).unwrap()).unwrap().kind, path)).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SECRET: &str = "hunter2-hunter2";

fn ours() -> Owner {
    Owner::new("gw", b"the authority")
}

fn object(kind: ObjectKind) -> Object {
    let text = || "web".to_owned();
    let data = |value: &str| Some([("k".to_owned(), ByteString(value.as_bytes().to_vec()))].into());
    let metadata =
        serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": "web", "namespace": "default"}}));
    let metadata = metadata.unwrap().metadata;
    match kind {
        ObjectKind::ConfigMap => Object::ConfigMap(Arc::new(ConfigMap {
            metadata,
            data: Some([("word".to_owned(), "hello".to_owned())].into()),
            binary_data: data("\0\u{7f}"),
            immutable: Some(true),
        })),
        ObjectKind::Secret => Object::Secret(Arc::new(Secret {
            metadata,
            data: data(SECRET),
            string_data: None,
            type_: Some("Opaque".to_owned()),
            immutable: None,
        })),
        ObjectKind::Token => Object::Token(Arc::new(Token {
            namespace: "default".into(),
            name: "uid/default/3607/".into(),
            value: format!("{SECRET}-token").into(),
        })),
        ObjectKind::Services => {
            let list = serde_json::from_value(json!([{"metadata": {"name": "queue", "namespace": "default"},
                "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "amqp", "port": 5672, "protocol": "TCP"}, {"port": 1}]}}]));
            Object::Services(Arc::new(Services {
                namespace: "default".into(),
                name: "".into(),
                list: list.unwrap(),
            }))
        }
        ObjectKind::RuntimeClass => {
            Object::RuntimeClass(Arc::new(RuntimeClass { name: text().into(), handler: "kata".into() }))
        }
        ObjectKind::Claim => {
            let nodes = serde_json::from_value(json!({"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gw"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}, {}]}));
            let volume = ClaimedVolume {
                name: "pv".into(),
                source: VolumeSource::Path { path: "/data".into(), kind: "Directory".into() },
                nodes: Some(nodes.unwrap()),
            };
            claim(volume)
        }
    }
}

fn claim(volume: ClaimedVolume) -> Object {
    let (namespace, name) = ("default".into(), "data/uid".into());
    Object::Claim(Arc::new(Claim { namespace, name, volume: Ok(Arc::new(volume)) }))
}

const KINDS: [ObjectKind; 6] = [
    ObjectKind::ConfigMap,
    ObjectKind::Secret,
    ObjectKind::Token,
    ObjectKind::Services,
    ObjectKind::RuntimeClass,
    ObjectKind::Claim,
];

fn pod() -> Node {
    let spec = Node::Map(vec![("nodeName".into(), Node::Text("gw".into()))]);
    Node::Map(vec![("spec".into(), spec)])
}

fn offline_node() -> OfflineNode {
    let taints = serde_json::from_value(
        json!([{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]),
    );
    OfflineNode {
        labels: [("zone".to_owned(), "shed".to_owned())].into(),
        taints: taints.unwrap(),
        pod_cidrs: vec!["10.1.0.0/24".into()],
    }
}

fn of_pod(uid: &str) -> Name {
    Name { kind: Kind::Pod, namespace: "".into(), name: uid.into() }
}

/// One object of each kind, by file name.
fn all() -> SortedMap<FileName, Put> {
    let node = Name { kind: Kind::Node, namespace: "".into(), name: "gw".into() };
    let fixed = [
        Put { name: of_pod("uid"), content: Content::Bytes(tree::encode(&pod())) },
        Put { name: node, content: Content::Bytes(encode_node(&offline_node())) },
    ];
    let objects = KINDS.map(object).map(|object| Put {
        name: name_of(&object.key(Side::ApiServer)),
        content: Content::Object(Some(object)),
    });
    let absent = ObjectKey::new(Side::ApiServer, ObjectKind::ConfigMap, "default", "absent");
    let absent = Put { name: name_of(&absent), content: Content::Object(None) };
    let puts = fixed.into_iter().chain(objects).chain([absent]);
    puts.map(|put| (FileName::of(&put.name), put)).collect()
}

fn names(of: &SortedMap<FileName, Put>) -> SortedSet<FileName> {
    of.keys().copied().collect()
}

fn shown(kept: &OfflineState) -> String {
    let objects =
        kept.objects.iter().map(|(key, object)| format!("{key}{}", if object.is_some() { "" } else { " -" }));
    let objects: Vec<String> = objects.collect();
    format!("{} pods, {} node, {}", kept.pods.len(), u8::from(kept.node.is_some()), objects.join(", "))
}

#[test]
fn every_kind_of_object_reads_back_equal() {
    for kind in KINDS {
        let object = object(kind);
        let bytes = encode(Some(&object)).expect("kept");
        assert_eq!(key_of(&name_of(&object.key(Side::ApiServer))), Some(object.key(Side::ApiServer)));
        assert!(
            decode(&object.key(Side::ApiServer), &bytes).is_ok_and(|read| read == Some(object.clone())),
            "{kind}"
        );
        for end in 0..bytes.len() {
            assert!(decode(&object.key(Side::ApiServer), &bytes[..end]).is_err(), "{kind} cut at {end}");
        }
        let nothing = encode(None).expect("kept");
        assert!(decode(&object.key(Side::ApiServer), &nothing).is_ok_and(|read| read.is_none()));
    }
    assert_eq!(decode_node(&encode_node(&offline_node())).ok(), Some(offline_node()));
    let export = NfsExport::new("fd00::7", "/data", ["hard", "nfsvers=4.1"].into_iter()).unwrap();
    let nfs =
        claim(ClaimedVolume { name: "pv".into(), source: VolumeSource::Nfs(export.clone()), nodes: None });
    let bytes = encode(Some(&nfs)).expect("kept");
    assert!(decode(&nfs.key(Side::ApiServer), &bytes).is_ok_and(|read| read == Some(nfs.clone())));
    for end in 0..bytes.len() {
        assert!(decode(&nfs.key(Side::ApiServer), &bytes[..end]).is_err(), "cut at {end}");
    }
    let changed = NfsExport { server: "-o".into(), ..export };
    let changed = claim(ClaimedVolume { name: "pv".into(), source: VolumeSource::Nfs(changed), nodes: None });
    let refused = decode(&changed.key(Side::ApiServer), &encode(Some(&changed)).expect("kept"));
    assert!(
        refused.is_err_and(|error| error.to_string().contains("nfs.server")),
        "a stored object is checked too"
    );
    let waiting = Claim { namespace: "".into(), name: "".into(), volume: Err("PVC is not bound".into()) };
    assert_eq!(
        content::encode(Some(&Object::Claim(Arc::new(waiting)))),
        None,
        "an unbound claim is not stored"
    );
}

/// Files of version 1 as they are on devices: they stay readable, and are written in the same way until the version changes.
#[test]
fn the_format_is_the_golden_files() {
    let map = encode(Some(&object(ObjectKind::ConfigMap))).expect("kept");
    let node = encode_node(&offline_node());
    let pod = tree::encode(&pod());
    for (golden, kind, name, content) in [
        (include_bytes!("../../../tests/golden/kept-pod-v1").as_slice(), Kind::Pod, "uid", &pod),
        (include_bytes!("../../../tests/golden/kept-node-v1").as_slice(), Kind::Node, "gw", &node),
        (include_bytes!("../../../tests/golden/kept-configmap-v1").as_slice(), Kind::ConfigMap, "web", &map),
    ] {
        let namespace = if kind == Kind::ConfigMap { "default" } else { "" };
        let record = Record { owner: *b"0123456789abcdef", kind, namespace, name, content };
        assert_eq!(from_bytes(golden), Ok(record.clone()), "{kind:?}");
        assert_eq!(to_bytes(&record), golden, "{kind:?}");
    }
}

#[test]
fn a_file_truncated_or_with_a_flipped_bit_is_refused() {
    let content = encode(Some(&object(ObjectKind::ConfigMap))).expect("kept");
    let record = Record {
        owner: [7; 16],
        kind: Kind::ConfigMap,
        namespace: "default",
        name: "web",
        content: &content,
    };
    let bytes = to_bytes(&record);
    for end in 0..bytes.len() {
        assert_eq!(from_bytes(&bytes[..end]), Err(Unreadable::Damaged), "cut at {end}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(from_bytes(&flipped).is_err(), "bit {bit}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(from_bytes(&longer), Err(Unreadable::Damaged));
}

#[test]
fn stored_objects_are_read_and_unchanged_ones_are_not_rewritten() {
    let (place, puts) = (Scratch::new(), all());
    assert_eq!(shown(&place.folder().read(ours())), "0 pods, 0 node, ", "nothing was stored");
    let written = place.folder().write(ours(), &names(&puts), &puts).expect("written");
    assert_eq!(written, Written { files: 9, ..Written::default() });
    let kept = place.folder().read(ours());
    assert_eq!(
        shown(&kept),
        "1 pods, 1 node, ConfigMap default/absent -, ConfigMap default/web, Secret default/web, Token default/uid/default/3607/, \
         Services default/, RuntimeClass web, PersistentVolumeClaim default/data/uid"
    );
    for kind in KINDS {
        let object = object(kind);
        assert!(kept.objects[&object.key(Side::ApiServer)].as_ref() == Some(&object), "{kind}");
    }
    assert_eq!(tree::decode(&kept.pods[0]).ok(), Some(pod()));
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(place.0.join("cluster")), 0o700);
    assert_eq!(mode(place.path("key")), 0o600);
    // Neither an unchanged object nor a renewed token is written.
    let inodes =
        || place.files().into_values().map(|path| fs::metadata(path).unwrap().ino()).collect::<Vec<_>>();
    let before = inodes();
    let mut again = all();
    let token =
        Token { namespace: "default".into(), name: "uid/default/3607/".into(), value: "renewed".into() };
    let token = Object::Token(Arc::new(token));
    let file = FileName::of(&name_of(&token.key(Side::ApiServer)));
    again.get_mut(&file).unwrap().content = Content::Object(Some(token));
    assert_eq!(place.folder().write(ours(), &names(&again), &again).expect("written"), Written::default());
    assert_eq!(inodes(), before);
    for path in place.files().into_values() {
        assert_eq!(mode(path.clone()), 0o600);
        let bytes = fs::read(path).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "plain");
    }
    // Files that are no longer wanted are removed.
    let pod = SortedSet::from([FileName::of(&of_pod("uid"))]);
    place.folder().write(ours(), &pod, &SortedMap::new()).expect("written");
    assert_eq!(shown(&place.folder().read(ours())), "1 pods, 0 node, ");
}

#[test]
fn another_owners_files_are_not_used() {
    let (place, puts) = (Scratch::new(), all());
    place.folder().write(ours(), &names(&puts), &puts).expect("written");
    for other in [Owner::new("gw", b"another authority"), Owner::new("gw2", b"the authority")] {
        assert_eq!(shown(&place.folder().read(other)), "0 pods, 0 node, ");
    }
    assert!(shown(&place.folder().read(ours())).starts_with("1 pods"), "they stay");
    let theirs = Owner::new("gw", b"another authority");
    let written = place.folder().write(theirs, &names(&puts), &puts).expect("written");
    assert_eq!(written.files, 9, "its objects replace them");
    assert_eq!(shown(&place.folder().read(ours())), "0 pods, 0 node, ");
}

#[test]
fn an_unreadable_file_is_set_aside_and_the_others_are_read() {
    let (place, puts) = (Scratch::new(), all());
    let write = || drop(place.folder().write(ours(), &names(&puts), &puts).expect("written"));
    write();
    let pod = place.files()[&Kind::Pod].clone();
    let whole = fs::read(&pod).unwrap();
    for end in 0..whole.len() {
        fs::write(&pod, &whole[..end]).unwrap();
        assert!(shown(&place.folder().read(ours())).starts_with("0 pods, 1 node, ConfigMap"), "cut at {end}");
        assert_eq!(fs::read(place.path("damaged")).unwrap(), whole[..end]);
        assert!(!pod.exists());
    }
    let mut newer = whole.clone();
    newer[6] += 1;
    fs::write(&pod, &newer).unwrap();
    assert!(shown(&place.folder().read(ours())).starts_with("0 pods"));
    assert_eq!(fs::read(place.path("newer")).unwrap(), newer);
    write();
    assert_eq!(fs::read(&pod).unwrap(), whole, "it is written again");
    // Files that were swapped.
    let files = place.files();
    let (map, class) = (&files[&Kind::RuntimeClass], &files[&Kind::Services]);
    let bytes = (fs::read(map).unwrap(), fs::read(class).unwrap());
    fs::write(map, bytes.1).unwrap();
    fs::write(class, bytes.0).unwrap();
    let kept = shown(&place.folder().read(ours()));
    assert!(
        !kept.contains("RuntimeClass") && !kept.contains("Services") && kept.contains("Secret"),
        "{kept}"
    );
}

#[test]
fn a_secret_is_decrypted_only_with_its_key_and_under_its_name() {
    let (place, puts) = (Scratch::new(), all());
    place.folder().write(ours(), &names(&puts), &puts).expect("written");
    let key = fs::read(place.path("key")).unwrap();
    let secrets = |kept: &OfflineState| {
        kept.objects.values().flatten().filter(|of| matches!(of, Object::Secret(_))).count()
    };
    let refused = |what: &str| {
        let kept = place.folder().read(ours());
        assert_eq!(secrets(&kept), 0, "{what}");
        assert_eq!(kept.objects.len(), 5, "{what}: the others are read");
        assert!(!place.path("damaged").exists(), "{what}: the key may return");
    };
    fs::rename(place.path("key"), place.path("elsewhere")).unwrap();
    refused("no key");
    fs::write(place.path("key"), [1; 32]).unwrap();
    refused("another key");
    fs::write(place.path("key"), &key[..31]).unwrap();
    refused("half a key");
    let secret = place.files()[&Kind::Secret].clone();
    let before = fs::read(&secret).unwrap();
    let written = place.folder().write(ours(), &names(&puts), &puts).expect("written");
    assert!(written.no_key.is_some_and(|why| why.ends_with("key: must have 32 bytes")));
    assert_eq!(fs::read(&secret).unwrap(), before);
    // The key was moved away, and its link is dangling: no new one is created.
    fs::remove_file(place.path("key")).unwrap();
    symlink("away", place.path("key")).unwrap();
    refused("a dangling link");
    let written = place.folder().write(ours(), &names(&puts), &puts).expect("written");
    assert!(written.no_key.is_some() && !place.path("away").exists());
    fs::rename(place.path("elsewhere"), place.path("away")).unwrap();
    assert_eq!(secrets(&place.folder().read(ours())), 1);
    // The same bytes in the file of another object.
    let record = fs::read(&secret).unwrap();
    let record = from_bytes(&record).unwrap();
    let other = Name { name: "other".into(), ..record.of() };
    let forged = to_bytes(&Record { name: "other", ..record.clone() });
    let path = place.0.join("cluster");
    let twin = SortedMap::from([(FileName::of(&other), Put { name: other, content: Content::Object(None) })]);
    place.folder().write(ours(), &names(&twin), &twin).expect("written");
    let file = fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path());
    let file = file.into_iter().find(|path| path.file_name().unwrap().len() == 32).expect("its file");
    fs::write(file, forged).unwrap();
    assert_eq!(shown(&place.folder().read(ours())), "0 pods, 0 node, ");
}

#[test]
fn an_object_beyond_the_limit_is_left_out_with_its_earlier_version() {
    let place = Scratch::new();
    let big = |uid: &str, bytes: usize| {
        let put = Put { name: of_pod(uid), content: Content::Bytes(vec![0; bytes]) };
        (FileName::of(&put.name), put)
    };
    let half = OFFLINE_RECORD_BYTES_MAX - 1024;
    let first: SortedMap<_, _> = [big("a", half), big("b", half), big("c", 10)].into();
    let written = place.folder().write(ours(), &names(&first), &first).expect("written");
    assert_eq!(written, Written { files: 3, ..Written::default() });
    let second: SortedMap<_, _> = [big("c", OFFLINE_BYTES_MAX - 2 * half)].into();
    let written = place.folder().write(ours(), &names(&first), &second).expect("written");
    assert_eq!(written, Written { left_out: 1, ..Written::default() });
    assert_eq!(place.files().len(), 1, "of one kind");
    let files = fs::read_dir(place.0.join("cluster")).unwrap().flatten();
    assert_eq!(files.count(), 2, "the earlier version is removed");
    let long: SortedMap<_, _> = [big("c", PODS_BYTES_MAX)].into();
    assert_eq!(place.folder().write(ours(), &names(&long), &long).expect("written").left_out, 1);
}

#[test]
fn a_failed_write_leaves_the_existing_files() {
    let (place, puts) = (Scratch::new(), all());
    place.folder().write(ours(), &names(&puts), &puts).expect("written");
    // A directory in its path stands for a full disk.
    fs::create_dir(place.path("new")).unwrap();
    let mut changed = all();
    let file = FileName::of(&of_pod("uid"));
    changed.get_mut(&file).unwrap().content = Content::Bytes(tree::encode(&Node::Null));
    assert!(place.folder().write(ours(), &names(&changed), &changed).is_err());
    assert_eq!(tree::decode(&place.folder().read(ours()).pods[0]).ok(), Some(pod()));
}
