//! Every place of the source that touches a file, a directory or a path stands in `files.tsv`: whose it is, on which thread it is
//! touched, and what bounds that. A new place has to be classified, and what a container can reach is never touched on the loop.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Calls that resolve a path, or ask for what is there.
const CALLS: [&str; 62] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::copy(",
    "fs::hard_link(",
    "fs::rename(",
    "fs::create_dir(",
    "fs::create_dir_all(",
    "fs::remove_dir(",
    "fs::remove_dir_all(",
    "fs::remove_file(",
    "fs::set_permissions(",
    "fs::canonicalize(",
    "fs::metadata(",
    "fs::symlink_metadata(",
    "fs::read_dir(",
    "fs::read_link(",
    "fs::exists(",
    "fs::open(",
    "File::open(",
    "File::create(",
    "File::create_new(",
    "File::options(",
    "OpenOptions::new(",
    "DirBuilder::new(",
    ".metadata()",
    ".symlink_metadata()",
    ".exists()",
    ".try_exists()",
    ".is_dir()",
    ".is_file()",
    ".is_symlink()",
    ".canonicalize()",
    ".read_link()",
    ".read_dir()",
    "Path::exists",
    "Path::is_dir",
    "Path::is_file",
    "openat(",
    "openat2(",
    "statat(",
    "statx(",
    "statfs(",
    "statvfs(",
    "accessat(",
    "mkdirat(",
    "mkfifoat(",
    "mknodat(",
    "unlinkat(",
    "renameat(",
    "renameat_with(",
    "readlinkat(",
    "symlink(",
    "chown(",
    "mount(",
    "unmount(",
    "add_watch(",
    "open_regular(",
    "open_linked(",
    "read_bounded(",
    "read_linked(",
    "read_start(",
];
/// The same, of modules that take it from rustix by its bare name.
const BARE_OPEN: &str = "open(";
/// Those of them that follow links, wait for a FIFO's writer, and read or write whatever is there; unless they make the file.
const PLAIN: [&str; 6] =
    ["fs::read(", "fs::read_to_string(", "fs::write(", "File::open(", "File::options(", "OpenOptions::new("];

const OWNERS: [&str; 5] = ["kernel", "agent", "owner", "runtime", "container"];
const THREADS: [&str; 6] = ["start", "loop", "pool", "outside", "alone", "command"];

/// A row of the table.
struct Row<'a> {
    file: &'a str,
    calls: usize,
    plain: usize,
    owner: &'a str,
    thread: &'a str,
    what: &'a str,
    bounds: &'a str,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let row = |line| {
        let fields: Vec<&str> = str::split(line, '\t').collect();
        let [file, calls, plain, owner, thread, what, bounds] = fields[..] else {
            panic!("seven fields: {line}")
        };
        let (calls, plain) = (calls.parse().expect(line), plain.parse().expect(line));
        Row { file, calls, plain, owner, thread, what, bounds }
    };
    lines.map(row).collect()
}

/// The source without its tests and comments.
fn code(text: &str) -> String {
    let (mut kept, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        let line = line.trim();
        if line == "#[cfg(test)]" {
            // Up to the end of the item: where as many braces are closed as were opened.
            let mut depth = 0_i64;
            for line in lines.by_ref() {
                let braces = |brace| i64::try_from(line.matches(brace).count()).unwrap();
                let before = depth;
                depth += braces('{') - braces('}');
                if depth == 0 && (before > 0 || line.contains('}') || line.trim_end().ends_with(';')) {
                    break;
                }
            }
        } else if !line.starts_with("//") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// How often the call stands in the line, as a call of that very name that is not defined there.
fn count(line: &str, call: &str) -> usize {
    let is_own = |at: usize| {
        let before = &line[..at];
        let named = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let method = !call.contains(['.', ':']) && before.ends_with('.');
        call.starts_with('.') || !(named || method || before.ends_with("fn "))
    };
    line.match_indices(call).filter(|(at, _)| is_own(*at)).count()
}

/// Calls and plain ones of each file that has some.
fn found(dir: &Path, at: &str, all: &mut BTreeMap<String, (usize, usize)>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let (path, shown) = (entry.path(), format!("{at}/{name}"));
        if path.is_dir() {
            if name != "tests" && shown != "src/proto" {
                found(&path, &shown, all);
            }
            continue;
        }
        let is_source = path.extension().is_some_and(|ending| ending == "rs");
        if !is_source || name == "tests.rs" || shown == "src/proto.rs" {
            continue;
        }
        let code = code(&fs::read_to_string(&path).unwrap());
        let opens = code.lines().any(|line| line.contains("rustix::fs::{") && line.contains(" open,"));
        let (mut calls, mut plain) = (0, 0);
        for line in code.lines().filter(|line| !line.starts_with("use ")) {
            calls += CALLS.iter().map(|call| count(line, call)).sum::<usize>();
            calls += if opens { count(line, BARE_OPEN) } else { 0 };
            if !line.contains("create_new(") {
                plain += PLAIN.iter().map(|call| count(line, call)).sum::<usize>();
            }
        }
        if calls > 0 {
            all.insert(shown, (calls, plain));
        }
    }
}

#[test]
fn every_file_that_is_touched_is_classified_and_nothing_of_a_container_is_on_the_loop() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut there = BTreeMap::new();
    found(&root.join("src"), "src", &mut there);
    let table = fs::read_to_string(root.join("tests/files.tsv")).expect("the table");
    let (mut told, mut wrong) = (BTreeMap::<String, (usize, usize)>::new(), Vec::new());
    for Row { file, calls, plain, owner, thread, what, bounds } in rows(&table) {
        let sum = told.entry(file.to_owned()).or_default();
        *sum = (sum.0 + calls, sum.1 + plain);
        let mut refuse = |why: &str| wrong.push(format!("{file}, {what}: {why}"));
        if !OWNERS.contains(&owner) || !THREADS.contains(&thread) || what.is_empty() || bounds.is_empty() {
            refuse("whose, on which thread, what and its bounds are said");
        }
        if thread == "loop" && owner != "kernel" {
            refuse("the loop waits for no disk: only what the kernel makes in memory is read there");
        }
        if ["container", "runtime"].contains(&owner) {
            if thread == "start" {
                refuse("a container may have a hand in it while the agent starts");
            }
            if plain > 0 {
                refuse(
                    "it is opened by way of src/filesystem.rs: regular files alone, and no more than a limit of them",
                );
            }
        }
    }
    let all: std::collections::BTreeSet<&String> = there.keys().chain(told.keys()).collect();
    for file in all {
        let (is, said) = (there.get(file), told.get(file));
        if is != said {
            wrong
                .push(format!("{file}: has {is:?} calls and plain ones among them, the table says {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "classify what is new in tests/files.tsv:\n{}", wrong.join("\n"));
}

#[test]
fn the_counting_sees_what_it_is_to_see() {
    let text = "use std::fs;\n/// fs::read(\nfn open() { std::fs::read(a); x.open(b); }\n#[cfg(test)]\nmod tests {\n    \
                fn f() { fs::read(b) }\n}\nfn g() { theirs.mount(c); mount(d); unmount(e); p.exists() }\n";
    let code = code(text);
    let counted = |call: &str| code.lines().map(|line| count(line, call)).sum::<usize>();
    assert_eq!([counted("fs::read("), counted("mount("), counted("unmount("), counted(".exists()")], [1; 4]);
    assert_eq!(counted("open("), 0, "neither a definition nor a method");
}

/// One function cuts text of others, and one makes files: none is readable by more people for an instant than it is to be.
#[test]
fn text_is_cut_in_one_place_and_no_file_is_made_with_whatever_mode() {
    fn texts(dir: &Path, all: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                texts(&path, all);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                all.push((path.display().to_string(), code(&fs::read_to_string(&path).unwrap())));
            }
        }
    }
    let mut all = Vec::new();
    texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    for (file, code) in all.iter().filter(|(file, _)| !file.ends_with("tests.rs")) {
        assert!(
            file.ends_with("src/text.rs") || !code.contains("_char_boundary("),
            "{file}: see src/text.rs"
        );
        // Its mode is what the umask leaves of 0666.
        assert!(!code.contains("File::create("), "{file}: say with which mode, as store::file::replace does");
    }
}

/// All Rust text below that directory.
fn rust_text(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            text.push_str(&rust_text(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    text
}

/// Limits, functions and tests that `docs/security.md` names.
#[test]
fn what_the_page_on_security_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (source, tests) = (rust_text(&root.join("src")), rust_text(&root.join("tests")));
    let is_word = |name: &str| name.chars().all(is_word_letter);
    let (mut looked, mut missing) = (0, Vec::new());
    for name in page.split('`').skip(1).step_by(2) {
        let last = name.rsplit("::").next().unwrap();
        let is_limit = is_word(name)
            && name.contains('_')
            && name == name.to_ascii_uppercase()
            && !["CAP_", "NET_"].iter().any(|other| name.starts_with(other));
        let is_there = if is_limit {
            source.contains(&format!("pub const {name}:"))
        } else if is_word(name) && name.matches('_').count() >= 3 && !name.starts_with("smolet_") {
            source.contains(&format!("fn {name}(")) || tests.contains(&format!("fn {name}("))
        } else if name.contains("::") && is_word(last) {
            ["fn", "mod", "struct", "enum", "const", "static"].iter().any(|kind| {
                source.split(&format!("{kind} {last}")).skip(1).any(|rest| !rest.starts_with(is_word_letter))
            })
        } else {
            continue;
        };
        looked += 1;
        if !is_there {
            missing.push(name);
        }
    }
    // `LIMIT` VALUE, with K and M for KiB and MiB, where the source has a plain number.
    let limits =
        rust_text(&root.join("src/limits")) + &fs::read_to_string(root.join("src/limits.rs")).unwrap();
    let mut compared = 0;
    for (name, rest) in limits.split("pub const ").skip(1).filter_map(|of| of.split_once(": ")) {
        let Some(value) = rest.split(';').next().and_then(|typed| number(typed.split_once(" = ")?.1)) else {
            continue;
        };
        for shown in page.split(&format!("`{name}` ")).skip(1) {
            let end = shown.find(|c: char| !c.is_ascii_digit()).unwrap_or(shown.len());
            let Ok(number) = shown[..end].parse::<u64>() else { continue };
            let unit = match shown[end..].trim_start().split(|c: char| !c.is_ascii_alphabetic()).next() {
                Some("K") => 1024,
                Some("M") => 1024 * 1024,
                _ => 1,
            };
            compared += 1;
            if number * unit != value {
                missing.push(name);
            }
        }
    }
    assert!(compared > 50, "{compared} values only");
    assert!(looked > 150, "{looked} names only");
    assert!(
        missing.is_empty(),
        "docs/security.md names what is not there, or has another value: {missing:?}"
    );
}

/// A number of the source's: digits, and KIB or MIB behind them.
fn number(text: &str) -> Option<u64> {
    let (factor, unit) = text.split_once(" * ").unwrap_or((text, "1"));
    let unit = match (text, unit) {
        ("KIB", _) => return Some(1024),
        ("MIB", _) => return Some(1024 * 1024),
        (_, "KIB") => 1024,
        (_, "MIB") => 1024 * 1024,
        (_, "1") => 1,
        _ => return None,
    };
    Some(factor.replace('_', "").parse::<u64>().ok()? * unit)
}

fn is_word_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}
