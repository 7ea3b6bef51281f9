//! Our compact `proto/` against upstream's CRI v1 and containerd's services: each message, field and enum value we have
//! must have upstream's number, type and label. `cri_fields.tsv` was taken from upstream's `api.proto`,
//! `containerd_fields.tsv` from containerd's files, whole messages at a time. And `src/proto/` is what `proto/` compiles to;
//! with `SMOLET_PROTO=write` it becomes that.

#![cfg(target_arch = "x86_64")]
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind};

/// (message, field) → (number, type, label); (enum, value) → (number, "enum", "-").
type Table = BTreeMap<(String, String), (String, String, String)>;

fn upstream() -> Table {
    table(include_str!("../cri_fields.tsv"))
}

fn table(text: &str) -> Table {
    let rows = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let columns: Vec<_> = line.split('\t').map(str::to_owned).collect();
        let [owner, name, number, kind, label] = columns.try_into().expect("five columns");
        ((owner, name), (number, kind, label))
    });
    rows.collect()
}

fn pool() -> DescriptorPool {
    pool_of("runtime.v1")
}

fn pool_of(package: &str) -> DescriptorPool {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile([format!("{root}/{package}.proto")], [root]).expect("proto/ compiles");
    DescriptorPool::from_file_descriptor_set(files).expect("proto/ is whole")
}

fn short(name: &str) -> String {
    let of = |package| name.strip_prefix(package);
    of("runtime.v1.").or_else(|| of("containerd.images.")).expect("our packages").to_owned()
}

fn kind(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(message) if field.is_map() => {
            let part = |part: FieldDescriptor| kind(&part);
            format!("map<{},{}>", part(message.map_entry_key_field()), part(message.map_entry_value_field()))
        }
        Kind::Message(message) => short(message.full_name()),
        Kind::Enum(values) => short(values.full_name()),
        scalar => format!("{scalar:?}"),
    }
}

#[test]
fn the_kept_messages_are_what_proto_compiles_to() {
    const PACKAGES: [&str; 3] = ["runtime.v1", "containerd.events", "containerd.images"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = PACKAGES.map(|package| root.join(format!("proto/{package}.proto")));
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proto");
    std::fs::create_dir_all(&made).unwrap();
    let descriptors = protox::compile(files, [root.join("proto")]).expect("proto/ compiles");
    let mut config = prost_build::Config::new();
    // Maps keep their order, so that requests, hashes and tests are the same every time.
    config.btree_map(["."]);
    // Credentials: src/proto.rs writes a Debug that shows none.
    config.skip_debug([".runtime.v1.AuthConfig"]);
    config.out_dir(&made).compile_fds(descriptors).unwrap();
    for package in PACKAGES {
        let (made, kept) = (made.join(format!("{package}.rs")), root.join(format!("src/proto/{package}.rs")));
        if std::env::var_os("SMOLET_PROTO").is_some_and(|word| word == "write") {
            std::fs::copy(&made, &kept).unwrap();
        }
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        assert!(read(made) == read(kept.clone()), "{} is out of date: make proto", kept.display());
    }
}

#[test]
fn our_messages_are_upstreams() {
    let (messages, fields) = compare(&upstream(), &pool());
    println!("{messages} messages, {fields} fields and enum values compared");
    assert!(messages >= 90 && fields >= 300, "{messages} messages, {fields} fields");
}

#[test]
fn containerds_messages_and_methods_are_upstreams() {
    let upstream = table(include_str!("../containerd_fields.tsv"));
    let (messages, fields) = compare(&upstream, &pool_of("containerd.images"));
    println!("{messages} messages, {fields} fields and enum values compared");
    assert!(messages >= 12 && fields >= 30, "{messages} messages, {fields} fields");
    let client = include_str!("../../src/cri/store.rs");
    let mut called = 0;
    for call in client.split("method!(\"").skip(1) {
        let (package, rest) = call.split_once("\", \"").expect("method!(package, service/name)");
        let (service, name) = rest.split_once('"').unwrap().0.split_once('/').unwrap();
        let method = upstream.get(&(format!("{package}.v1.{service}"), name.to_owned()));
        assert!(method.is_some(), "upstream has no {package}.v1.{service}/{name}");
        called += 1;
    }
    assert_eq!(called, 10);
}

/// How many messages and fields were compared.
fn compare(upstream: &Table, pool: &DescriptorPool) -> (usize, usize) {
    let (mut fields, mut wrong) = (0, Vec::new());
    let mut check = |owner: String, name: &str, ours: (String, String, String)| {
        fields += 1;
        let theirs = upstream.get(&(owner.clone(), name.to_owned()));
        if theirs != Some(&ours) {
            wrong.push(format!("{owner}.{name}: ours {ours:?}, upstream {theirs:?}"));
        }
    };
    let mut messages = 0;
    for message in pool.all_messages().filter(|message| !message.is_map_entry()) {
        messages += 1;
        let owner = short(message.full_name());
        for field in message.fields() {
            let label = match field.cardinality() {
                _ if field.is_map() => "map",
                Cardinality::Repeated => "repeated",
                Cardinality::Optional | Cardinality::Required => "one",
            };
            let ours = (field.number().to_string(), kind(&field), label.to_owned());
            check(owner.clone(), field.name(), ours);
        }
        if message.fields().len() == 0 {
            check(owner, "-", ("0".into(), "-".into(), "-".into()));
        }
    }
    for values in pool.all_enums() {
        for value in values.values() {
            let ours = (value.number().to_string(), "enum".into(), "-".into());
            check(short(values.full_name()), value.name(), ours);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    (messages, fields)
}

#[test]
fn our_enums_are_whole() {
    // A value that is missing here would be read as a number without a name.
    let ours: BTreeSet<_> = pool()
        .all_enums()
        .flat_map(|e| e.values().map(|v| (short(e.full_name()), v.name().to_owned())).collect::<Vec<_>>())
        .collect();
    let theirs: BTreeSet<_> =
        upstream().into_iter().filter(|(_, (_, kind, _))| kind == "enum").map(|(key, _)| key).collect();
    assert_eq!(ours, theirs);
}

#[test]
fn the_methods_we_call_are_upstreams() {
    let upstream = upstream();
    let (client, callers) = (include_str!("../../src/cri/client.rs"), include_str!("../../src/cri/mod.rs"));
    let requests = include_str!("../../src/cri/requests.rs");
    let mut called = BTreeSet::new();
    // Number, type and label of a message's fields, in order: all that is on the wire.
    let wire = |message: &str| -> BTreeSet<_> {
        upstream.iter().filter(|((owner, _), _)| owner == message).map(|(_, field)| field.clone()).collect()
    };
    let mut before = "";
    for call in client.split("method!(\"").skip(1) {
        let (service, rest) = call.split_once("\", \"").expect("method!(service, name)");
        let (name, _) = rest.split_once('"').unwrap();
        let (_, request, answer) = upstream
            .get(&(format!("{service}Service"), name.to_owned()))
            .unwrap_or_else(|| panic!("upstream has no {service}Service/{name}"));
        let many = if name.starts_with("Stream") { "stream " } else { "" };
        assert_eq!((request, answer), (&format!("{name}Request"), &format!("{many}{name}Response")));
        if name.starts_with("Stream") {
            // The streamed form of the list before it: the same request, and answers of the same items.
            assert!(before.starts_with("List"), "{name} after {before}");
            for part in ["Request", "Response"] {
                let streamed = wire(&format!("{name}{part}"));
                assert_eq!(streamed, wire(&format!("{before}{part}")), "{name}{part}");
                assert_eq!(streamed.len(), 1, "{name}{part}");
            }
            called.insert(name);
            continue;
        }
        before = name;
        let made = [client, requests].iter().any(|text| {
            text.contains(&format!("cri::{request} {{")) || text.contains(&format!("cri::{request}::"))
        });
        // Of a stream's request the caller makes the message.
        assert!(made || callers.contains(&format!(" {name}({request}),")), "{request}");
        called.insert(name);
    }
    assert!(called.len() >= 22, "{called:?}");
}

#[test]
fn the_events_we_follow_are_upstreams() {
    let method = smolet::cri::EventService::Cri.method();
    let name = method.rsplit('/').next().unwrap().to_owned();
    assert_eq!(method, format!("/runtime.v1.RuntimeService/{name}"));
    let (_, request, answer) = &upstream()[&("RuntimeService".to_owned(), name)];
    assert_eq!((&**request, &**answer), ("GetEventsRequest", "stream ContainerEventResponse"));
}
