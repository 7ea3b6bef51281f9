//! The rules of the house, held over the source: who may import whom, which files are PURE, how long a file may be.
//!
//! The text of the source is read, not the compiler's view of it: comments and tests are left out first.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The top-level modules, the lowest layer first. A module imports from layers below its own and from its own layer; no
/// cycle ties modules together.
const LAYERS: [(&str, &str); 8] = [
    (
        "ground: plain types, the file system, sockets; knows no Kubernetes",
        "counters decode executor filesystem http2 kernel_tunables limits mounts netlink paths program proto sorted stream streaming text tree",
    ),
    (
        "model: the vocabulary, and what works on nothing else",
        "clock desired events fair_semaphore model podcmd poison rate tls x509",
    ),
    (
        "rendering, status, the machine's parts",
        "blocking cgroup cni conntrack eviction gc grpc iptables monitor net nftables oci render resolv_conf shutdown status store systemd userns volume",
    ),
    ("the runtime and the API server", "cri image image_store kube logs pleg printers registry runtime"),
    ("decisions about pods and the node", "admit allocation cluster config metrics probe process sync"),
    (
        "sources, checks, servers",
        "addresses certificates cri_server doctor facts flannel hook k3s network_policy node_api server service_proxy source",
    ),
    ("the loop", "node"),
    ("the command line", "cli"),
];

/// Lines of code of a file, without comments, blank lines and tests.
const FILE_LINES_MAX: usize = 600;
/// Written by a compiler.
const GENERATED: [&str; 1] = ["proto/runtime.v1.rs"];

/// What a PURE file does not do: wait, look at a clock, at the environment or at the machine, log.
const IMPURE: [&str; 26] = [
    "async ",
    ".await",
    "Instant::now",
    "SystemTime",
    "SharedClock",
    "std::env",
    "std::process",
    "std::thread",
    "std::fs",
    "fs::",
    "File::",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "rustix::",
    "smol::",
    "async_io::",
    "getrandom",
    "log::",
    "info!(",
    "warn!(",
    "error!(",
    "debug!(",
    "println!(",
    "crate::blocking",
];

/// A file below `src` without its comments and its tests.
struct Source {
    /// Its path below `src`.
    path: String,
    /// The comments at its head.
    head: String,
    code: String,
}

impl Source {
    fn read(root: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let head = text.lines().take_while(|line| line.starts_with("//!"));
        let head = head.map(|line| line.trim_start_matches("//!").trim()).collect::<Vec<_>>().join(" ");
        let mut code = String::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let is_test_module = line == "#[cfg(test)]"
                && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
            if is_test_module {
                break;
            }
            let line = line.split("//").next().unwrap_or_default().trim_end();
            if !line.trim().is_empty() {
                code.push_str(line);
                code.push('\n');
            }
        }
        Self { path: path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), head, code }
    }

    /// The top-level module that it belongs to.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// It says of itself, and not of others, that it is PURE.
    fn is_pure(&self) -> bool {
        self.head.match_indices("PURE").any(|(at, word)| {
            let before = self.head[..at].trim_end();
            let is_sentence = before.is_empty() || before.ends_with(['.', '?', ')', '`', ':']);
            is_sentence && self.head[at + word.len()..].starts_with(['.', ':', ','])
        })
    }
}

/// All files of the source that are no tests.
fn sources() -> Vec<Source> {
    fn walk(root: &Path, directory: &Path, found: &mut Vec<Source>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|name| name == "tests");
            if path.is_dir() && !is_test {
                walk(root, &path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !is_test {
                found.push(Source::read(root, &path));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    assert!(found.len() > 300, "{} files", found.len());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The top-level modules that each top-level module imports from, with a file that does.
fn imports(sources: &[Source]) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let modules: BTreeSet<&str> =
        sources.iter().map(Source::module).filter(|m| !["lib", "main"].contains(m)).collect();
    let mut imports: BTreeMap<&str, BTreeMap<&str, &str>> =
        modules.iter().map(|m| (*m, BTreeMap::new())).collect();
    for source in sources {
        let Some(of) = imports.get_mut(source.module()) else { continue };
        for (at, word) in source.code.match_indices("crate::") {
            let rest = &source.code[at + word.len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            assert!(
                end > 0,
                "src/{}: a `use crate::{{…}}` of several modules; write one `use` for each",
                source.path
            );
            if let Some(name) = modules.get(&rest[..end]).filter(|name| **name != source.module()) {
                of.entry(name).or_insert(&source.path);
            }
        }
    }
    imports
}

#[test]
fn modules_import_from_their_own_layer_and_from_those_below() {
    let sources = sources();
    let imports = imports(&sources);
    let mut layer_of = BTreeMap::new();
    for (layer, (_, modules)) in LAYERS.iter().enumerate() {
        for module in modules.split(' ') {
            assert!(imports.contains_key(module), "LAYERS: there is no module {module}");
            assert_eq!(layer_of.insert(module, layer), None, "LAYERS: {module} stands there twice");
        }
    }
    let mut wrong = Vec::new();
    for (module, imported) in &imports {
        let Some(layer) = layer_of.get(module) else {
            wrong.push(format!("{module} stands in no layer; put it into LAYERS"));
            continue;
        };
        for (other, file) in imported {
            if layer_of.get(other).is_some_and(|below| below > layer) {
                wrong.push(format!("src/{file} imports {other}, which is above {module}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_cycle_ties_modules_together() {
    let sources = sources();
    let mut imports = imports(&sources);
    // What imports nothing that is left stands in no cycle.
    while let Some(leaf) = imports.iter().find(|(_, imported)| imported.is_empty()).map(|(module, _)| *module)
    {
        imports.remove(leaf);
        for imported in imports.values_mut() {
            imported.remove(leaf);
        }
    }
    assert!(imports.is_empty(), "in a cycle, or above one: {imports:#?}");
}

#[test]
fn pure_files_neither_wait_nor_look_at_the_machine() {
    let sources = sources();
    let pure: Vec<&Source> = sources.iter().filter(|source| source.is_pure()).collect();
    assert!(pure.len() > 120, "{} files say that they are PURE", pure.len());
    let mut wrong = Vec::new();
    for source in pure {
        // What is known when the program is compiled is no environment.
        let code = source.code.replace("std::env::consts", "");
        for (line, impure) in code.lines().flat_map(|line| IMPURE.iter().map(move |impure| (line, impure))) {
            // A longer name that ends as the forbidden one is another one.
            let uses = line
                .match_indices(impure)
                .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
            if uses {
                wrong.push(format!("src/{} is PURE and has {impure:?}: {}", source.path, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A socket of the supervisor, or a token, is for the agent alone (`program::command`).
#[test]
fn programs_get_the_environment_that_is_theirs() {
    // A monitor and a keeper have that environment themselves; one is started without any; doctor is a command.
    let others = [
        "monitor/create.rs",
        "monitor/keeper.rs",
        "monitor/process.rs",
        "runtime/users.rs",
        "doctor/facts.rs",
    ];
    let start = |source: &&Source| source.code.contains("Command::new(");
    let sources = sources();
    let mut starting: Vec<&str> = sources.iter().filter(start).map(|source| source.path.as_str()).collect();
    starting.retain(|path| !others.contains(path));
    assert_eq!(starting, ["program.rs"], "programs are started by program::command");
}

#[test]
fn files_are_short_enough_to_own_one_thing() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|source| !GENERATED.contains(&&*source.path))
        .map(|source| (source.code.lines().count(), &source.path))
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, path)| format!("src/{path}: {lines} lines of code, at most {FILE_LINES_MAX}"))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The fields of a struct: all that stands between its braces.
fn fields_of<'a>(sources: &'a [Source], below: &str, name: &str) -> Option<&'a str> {
    sources.iter().filter(|source| source.path.starts_with(below)).find_map(|source| {
        let head = format!("struct {name}");
        let at = source.code.match_indices(&head).map(|(at, _)| &source.code[at + head.len()..]);
        let body = at.filter(|rest| rest.starts_with([' ', '<', ';'])).find_map(|rest| rest.split_once('{'));
        body.and_then(|(_, rest)| rest.split_once("\n}")).map(|(fields, _)| fields)
    })
}

/// The parts of the loop and of a cluster's member keep what they know to themselves: others call them, and nobody reaches in.
#[test]
fn parts_have_no_field_for_others() {
    let sources = sources();
    let mut parts = BTreeSet::new();
    for whole in ["Agent", "Cluster"] {
        let fields =
            fields_of(&sources, "node", whole).unwrap_or_else(|| panic!("no struct {whole} in src/node"));
        let types =
            fields.lines().filter_map(|line| line.split_once(": ")).map(|(_, of)| of.trim_end_matches(','));
        parts.extend(types.map(|of| of.trim_start_matches("Option<").split(['<', '>']).next().unwrap()));
    }
    let own = |part: &&&str| fields_of(&sources, "node/", part).is_some();
    assert!(parts.iter().filter(own).count() > 20, "{parts:?}");
    let open: Vec<_> = parts
        .iter()
        .filter(|part| fields_of(&sources, "node/", part).is_some_and(|of| of.contains("pub")))
        .collect();
    assert!(open.is_empty(), "parts with fields that others reach: {open:?}");
}

/// The parts of a linker's pattern that are ours, outermost first: the length of a name where the pattern has it, and the name or
/// the beginning of it.
fn parts_of(pattern: &str) -> Vec<(Option<usize>, &str)> {
    let mut parts = Vec::new();
    if let Some(mut rest) = pattern.strip_prefix("_ZN6smolet") {
        while let Some(digits) = rest.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0) {
            let length: usize = rest[..digits].parse().unwrap();
            let name = &rest[digits..];
            let end = name.find('*').unwrap_or(name.len()).min(length);
            parts.push(match name[..end].split_once("$LT$") {
                // `Type$LT$R$GT$`.
                Some((of, _)) if of != "_" => (None, of),
                _ => (Some(length), &name[..end]),
            });
            rest = &name[end..];
        }
    } else if let Some((_, rest)) = pattern.split_once("smolet..") {
        for name in rest.trim_end_matches(['*', '.']).split("..") {
            // Of a trait's implementation the trait's or the type's name.
            parts.push((None, name.split('$').next().unwrap_or(name)));
            if name.contains('$') {
                break;
            }
        }
    }
    parts
}

/// Whether the source has what a linker's pattern names: modules by their files, items by their definitions.
fn is_named(root: &Path, parts: &[(Option<usize>, &str)]) -> bool {
    let mut module = root.to_owned();
    for (length, part) in parts {
        let is_whole = length.is_none_or(|length| length == part.len());
        let next = module.join(part);
        if is_whole && (next.is_dir() || next.with_extension("rs").is_file()) {
            module = next;
            continue;
        }
        // A module that begins so, or an item.
        let fits = |name: &str| name.starts_with(part) && length.is_none_or(|length| length == name.len());
        let has_module = fs::read_dir(&module).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.unwrap().path().file_stem().is_some_and(|name| fits(name.to_str().unwrap()))
            })
        });
        let texts = [module.with_extension("rs"), module.join("mod.rs")];
        let text: String = texts.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        // Implementations of traits have names of the compiler's own.
        let is_implementation = part.is_empty() || part.starts_with("_$LT$");
        // `Type$LT$R$GT$`.
        let is_generic = !is_whole && text.contains(&format!("{part}<"));
        return is_implementation
            || is_generic
            || has_module
            || words.collect::<Vec<_>>().iter().any(|word| fits(word));
    }
    true
}

/// `build.rs` puts functions that an agent alone never runs apart from the others, by their names in the linker's words. A name
/// that is gone puts nothing apart, and the resident size grows without a word.
#[test]
fn what_the_linker_puts_apart_is_there() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let build = fs::read_to_string(manifest.join("build.rs")).unwrap();
    let list = |name: &str| -> Vec<&str> {
        let after = build.split(&format!("const {name}:")).nth(1).expect(name);
        after.split("];").next().expect(name).split('"').skip(1).step_by(2).collect()
    };
    for (name, ours_min) in [("NEVER", 50), ("EMBEDDED", 100), ("COMMON", 8)] {
        let patterns = list(name);
        let ours: Vec<&&str> = patterns.iter().filter(|pattern| pattern.contains("smolet")).collect();
        assert!(ours.len() >= ours_min, "{name}: {} patterns of {}", ours.len(), patterns.len());
        let gone: Vec<_> =
            ours.iter().filter(|pattern| !is_named(&manifest.join("src"), &parts_of(pattern))).collect();
        assert!(gone.is_empty(), "build.rs, {name}: nothing in src has these names any more: {gone:#?}");
    }
}

/// Each rule finds what it forbids.
#[test]
fn the_rules_see_what_they_are_to_see() {
    let source =
        |head: &str, code: &str| Source { path: "a/b.rs".into(), head: head.into(), code: code.into() };
    for (head, is_pure) in [
        ("PURE: what goes.", true),
        ("What goes (`gc`). PURE.", true),
        ("A quantity: `500m`. PURE, exact.", true),
        ("May it start again? PURE.", true),
        ("`line` and `choose` are PURE; others are not.", false),
        ("`frame` (PURE) knows SPDY.", false),
        ("What goes. PURE but for the reads.", false),
        ("What [`of`] finds is PURE; the rest is I/O.", false),
    ] {
        assert_eq!(source(head, "").is_pure(), is_pure, "{head}");
    }
    assert_eq!(source("", "").module(), "a");
    let parts = parts_of("_ZN6smolet4node7cluster7Cluster6fai*");
    assert_eq!(parts, [(Some(4), "node"), (Some(7), "cluster"), (Some(7), "Cluster"), (Some(6), "fai")]);
    assert_eq!(parts_of("*smolet..store..offline*"), [(None, "store"), (None, "offline")]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (pattern, is_there) in [
        ("_ZN6smolet5probe4http*", true),
        ("_ZN6smolet5probe4htt*", true),
        ("_ZN6smolet5probe5http*", false),
        ("_ZN6smolet5probe6gopher*", false),
        ("_ZN6smolet4text8start_of*", true),
        ("_ZN6smolet4text9start_off*", false),
        ("_ZN6smolet6sorted19SortedSet*", true),
        ("*smolet..store..heap*", false),
    ] {
        assert_eq!(is_named(&root, &parts_of(pattern)), is_there, "{pattern}");
    }
    let sources = [
        Source { path: "a.rs".into(), head: String::new(), code: "use crate::b::{C, D};".into() },
        Source { path: "b/c.rs".into(), head: String::new(), code: "fn f() { crate::a::g() }".into() },
    ];
    let found = imports(&sources);
    assert_eq!(found["a"], BTreeMap::from([("b", "a.rs")]));
    assert_eq!(found["b"], BTreeMap::from([("a", "b/c.rs")]));
    let open = Source {
        path: "node/d.rs".into(),
        head: String::new(),
        code: "struct Depth {\n    a: u8,\n}\nstruct D<R> {\n    pub(super) b: R,\n}\n".into(),
    };
    assert_eq!(fields_of(&[open], "node/", "D"), Some("\n    pub(super) b: R,"));
}
