//! What may stand below us: hyper and h2 bring one foreign runtime's crate along for its channels and I/O traits, and
//! nothing of its runtime may ever slip in, neither through a feature nor through code of ours. Licences, sources and versions
//! are as `deny.toml` says, of this machine's dependencies by what cargo itself knows; `make deny` looks at all targets.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The crate this file is about; put together, so that the search below does not find this file.
const RUNTIME: &str = concat!("tok", "io");
const ALLOWED_FEATURES: [&str; 4] = ["default", "bytes", "io-util", "sync"];

/// `cargo metadata` with the features of the whole tree resolved, dev-dependencies included, for this machine.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let version =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output();
    let version = String::from_utf8(version.expect("rustc runs").stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--format-version", "1", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn texts(value: &Value) -> BTreeSet<String> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn only_channels_and_io_traits_come_along() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let named =
        |id: &Value| packages.iter().find(|package| package["id"] == *id).unwrap()["name"].as_str().unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let found: Vec<_> = nodes.iter().filter(|node| named(&node["id"]) == RUNTIME).collect();
    assert_eq!(found.len(), 1, "one version below hyper and h2");
    let allowed = BTreeSet::from(ALLOWED_FEATURES.map(str::to_owned));
    let features = texts(&found[0]["features"]);
    assert!(features.is_subset(&allowed), "features {features:?}, allowed {allowed:?}");

    // Its relatives: the codec that h2 needs, and no other.
    let family: BTreeSet<_> =
        nodes.iter().map(|node| named(&node["id"])).filter(|n| n.starts_with(RUNTIME)).collect();
    assert_eq!(family, BTreeSet::from([RUNTIME, &*format!("{RUNTIME}-util")]));
    for stranger in ["mio", "tonic", "hyper-util", "async-std"] {
        assert!(nodes.iter().all(|node| named(&node["id"]) != stranger), "{stranger} is in the tree");
    }
}

#[test]
fn it_is_no_direct_dependency_of_ours() {
    let metadata = metadata();
    let ours = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "smolet");
    let dependencies = ours.expect("this package")["dependencies"].as_array().unwrap();
    assert!(dependencies.len() > 10);
    for dependency in dependencies {
        let name = dependency["name"].as_str().unwrap();
        assert!(!name.starts_with(RUNTIME), "Cargo.toml names {name} ({})", dependency["kind"]);
    }
}

#[test]
fn cargo_lock_has_one_version_of_it() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).unwrap();
    let line = format!("name = \"{RUNTIME}\"");
    assert_eq!(lock.lines().filter(|found| **found == line).count(), 1);
}

#[test]
fn no_code_of_ours_names_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    let mut found = Vec::new();
    for folder in ["src", "tests", "benches", "examples", "fuzz"] {
        search(&root.join(folder), &mut files, &mut found);
    }
    look_at(&root.join("build.rs"), &mut files, &mut found);
    assert!(files > 30, "only {files} files looked at");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// `make test` does not build the fuzz targets, whose own code the tests of parts have: a dependency that came or went here is
/// in their lock file too.
#[test]
fn the_fuzz_targets_have_our_dependencies() {
    let metadata = metadata();
    let ours = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "smolet");
    let all = ours.expect("this package")["dependencies"].as_array().unwrap().iter();
    let names: BTreeSet<_> =
        all.filter(|one| one["kind"] != "dev").map(|one| one["name"].as_str().unwrap().to_owned()).collect();
    let lock = include_str!("../../fuzz/Cargo.lock");
    let entry = lock.split_once("name = \"smolet\"").expect("smolet").1;
    let list = entry.split_once("dependencies = [").expect("its dependencies").1.split_once(']').unwrap().0;
    // A name, or a name and a version.
    let locked: BTreeSet<_> = list
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split([' ', '"']).next().map(str::to_owned))
        .collect();
    assert_eq!(
        names, locked,
        "fuzz/Cargo.lock: run `cargo update --workspace --manifest-path fuzz/Cargo.toml`"
    );
}

/// The texts of the list that begins behind `head` in `deny.toml`.
fn denied(head: &str) -> BTreeSet<String> {
    let text = include_str!("../../deny.toml");
    let list = text.split_once(head).unwrap_or_else(|| panic!("{head} in deny.toml")).1;
    let list = list.split_once("\n]").map_or(list, |(list, _)| list);
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    let texts: BTreeSet<String> = lines
        .flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert!(texts.len() > 3, "{head}: {texts:?}");
    texts
}

/// Whether one of the ways in which the licence may be taken is allowed: names with `OR`, `AND` (which binds) and brackets.
fn may_be_taken(licence: &str, allowed: &BTreeSet<String>) -> bool {
    fn any(
        tokens: &mut std::iter::Peekable<std::slice::Iter<'_, String>>,
        allowed: &BTreeSet<String>,
    ) -> bool {
        let mut taken = all(tokens, allowed);
        while tokens.next_if(|token| *token == "OR").is_some() {
            taken |= all(tokens, allowed);
        }
        taken
    }
    fn all(
        tokens: &mut std::iter::Peekable<std::slice::Iter<'_, String>>,
        allowed: &BTreeSet<String>,
    ) -> bool {
        let mut taken = one(tokens, allowed);
        while tokens.next_if(|token| *token == "AND").is_some() {
            taken &= one(tokens, allowed);
        }
        taken
    }
    fn one(
        tokens: &mut std::iter::Peekable<std::slice::Iter<'_, String>>,
        allowed: &BTreeSet<String>,
    ) -> bool {
        let first = tokens.next().expect("a licence");
        if first == "(" {
            let taken = any(tokens, allowed);
            assert_eq!(tokens.next().map(String::as_str), Some(")"));
            return taken;
        }
        let exception = tokens.next_if(|token| *token == "WITH").and_then(|_| tokens.next());
        let name = exception.map_or_else(|| first.clone(), |exception| format!("{first} WITH {exception}"));
        allowed.contains(&name)
    }
    let spaced = licence.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let mut tokens = tokens.iter().peekable();
    let taken = any(&mut tokens, allowed);
    assert!(tokens.next().is_none(), "{licence}");
    taken
}

#[test]
fn licences_are_read_as_they_are_meant() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned));
    for (licence, taken) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("GPL-3.0 OR ISC AND GPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
    ] {
        assert_eq!(may_be_taken(licence, &allowed), taken, "{licence}");
    }
}

/// The packages that the binary is made of.
fn in_the_binary(metadata: &Value) -> BTreeSet<&str> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let mut found = BTreeSet::new();
    let mut next = vec![metadata["resolve"]["root"].as_str().unwrap()];
    while let Some(id) = next.pop() {
        if !found.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == *id).unwrap();
        let linked = node["deps"].as_array().unwrap().iter().filter(|dependency| {
            dependency["dep_kinds"].as_array().unwrap().iter().any(|of| of["kind"].is_null())
        });
        next.extend(linked.map(|dependency| dependency["pkg"].as_str().unwrap()));
    }
    found
}

#[test]
fn licences_sources_and_versions_are_those_that_are_allowed() {
    let (allowed, banned) = (denied("\nallow = ["), denied("\ndeny = ["));
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} names no licence"));
        assert!(may_be_taken(licence, &allowed), "{name}: {licence}");
        assert!(!banned.contains(name), "{name} is banned");
        let source = package["source"].as_str();
        let is_ours = name == "smolet" && source.is_none();
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert!(is_ours || source == Some(registry), "{name}: {source:?}");
    }
    // Two versions of what only the tests have are let be, and of syn, which only macros have.
    let mut seen = BTreeSet::new();
    for id in in_the_binary(&metadata) {
        let package = packages.iter().find(|package| package["id"] == *id).unwrap();
        let name = package["name"].as_str().unwrap();
        assert!(seen.insert(name) || name == "syn", "two versions of {name}");
    }
    assert!(seen.len() > 80, "{}", seen.len());
}

fn search(folder: &Path, files: &mut usize, found: &mut Vec<String>) {
    // benches, examples and fuzz need not exist.
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            search(&path, files, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look_at(&path, files, found);
        }
    }
}

/// Comments may name it; code may not.
fn look_at(path: &Path, files: &mut usize, found: &mut Vec<String>) {
    *files += 1;
    let text = std::fs::read_to_string(path).unwrap();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if code.contains(RUNTIME) {
            found.push(format!("{}:{}: {line}", path.display(), number + 1));
        }
    }
}
