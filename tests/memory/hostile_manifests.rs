//! Hostile manifests: each gives one clear line, a good manifest beside it comes through, and memory stays bounded.
//!
//! Memory is measured in a process of its own for each.

#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::format_push_string,
    clippy::format_collect,
    clippy::print_stdout
)]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::common::runner;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use smolet::clock::{Clock, SystemClock};
use smolet::limits;
use smolet::source::{FileSource, NodeName, SourceUpdate};

/// More than this and the agent's promise (16 MiB under hostile input) is in danger.
const GROWTH_KIB_MAX: u64 = 8 * 1024;
const LINE_CHARS_MAX: usize = 300;

/// How to put one hostile manifest at a path.
type Make = Box<dyn Fn(&Path)>;

struct Case {
    /// The file's name.
    name: &'static str,
    /// What its line must say.
    says: &'static str,
    make: Make,
}

fn text(name: &'static str, says: &'static str, text: impl Into<Vec<u8>>) -> Case {
    let bytes: Vec<u8> = text.into();
    Case { name, says, make: Box::new(move |path| fs::write(path, &bytes).expect("a file")) }
}

/// A text made when it is needed, so that it does not count as memory all the time.
fn made(name: &'static str, says: &'static str, make: fn() -> String) -> Case {
    Case { name, says, make: Box::new(move |path| fs::write(path, make()).expect("a file")) }
}

fn other(name: &'static str, says: &'static str, make: fn(&Path)) -> Case {
    Case { name, says, make: Box::new(make) }
}

/// A pod whose spec is `spec`.
fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: bad}}\nspec: {spec}\n")
}

/// A pod with one container that has `more` beside name and image.
fn container(more: &str) -> String {
    pod(&format!("{{containers: [{{name: a, image: x, {more}}}]}}"))
}

fn laughs() -> String {
    let mut text = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    text
}

fn cases() -> Vec<Case> {
    let good =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: a, image: x}]}\n";
    vec![
        // What is in the file.
        text("empty.yaml", "is empty", ""),
        text("comments.yaml", "is empty", "# nothing\n# here\n"),
        text("separators.yaml", "is empty", "---\n---\n---\n"),
        text("binary.yaml", "is no UTF-8 text", (0..=255u8).cycle().take(4096).collect::<Vec<_>>()),
        text("elf.yaml", "is no UTF-8 text", b"\x7fELF\x02\x01\x01\0\0\xff\xfe".to_vec()),
        text("utf8.yaml", "line 2: is no UTF-8 text", b"kind: Pod\nname: \xff\xfe\n".to_vec()),
        text("utf16.yaml", "is no UTF-8 text", b"\xff\xfek\0i\0n\0d\0".to_vec()),
        text("nul.yaml", "holds NUL bytes", "kind: Pod\0\n"),
        text("control.yaml", "", "kind: \x01\x02\n"),
        text("scalar.yaml", "is no Kubernetes object", "just text\n"),
        text("list.yaml", "is no Kubernetes object", "- a\n- b\n"),
        text("html.yaml", "is no", "<!DOCTYPE html>\n<html><body>404</body></html>\n"),
        text("json-cut.json", "is no YAML", r#"{"apiVersion": "v1", "kind": "Pod", "meta"#),
        text("merge-conflict.yaml", "is no YAML", format!("{good}<<<<<<< HEAD\nx: [\n=======\n>>>>>>> b\n")),
        text("tabs.yaml", "is no YAML", "apiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n"),
        text("quote.yaml", "is no YAML", "apiVersion: v1\nkind: \"Pod\nmetadata: {name: a}\n"),
        text("bracket.yaml", "is no YAML", "apiVersion: v1\nkind: Pod\nspec: {containers: [\n"),
        text("indent.yaml", "is no YAML", "apiVersion: v1\nkind: Pod\n metadata: {name: a}\n"),
        text("unknown-alias.yaml", "unknown anchor", "kind: *nothing\n"),
        text("self-alias.yaml", "is part of what it stands for", "kind: &a [*a]\n"),
        text("map-alias.yaml", "is part of what it stands for", "a: &a {b: {c: *a}}\n"),
        text("python.yaml", "tag", "!!python/object/apply:os.system [\"touch /tmp/x\"]\n"),
        text("tag.yaml", "tag", "kind: !Ref Pod\n"),
        text("duplicate.yaml", "key \"kind\" is given twice", "kind: Pod\nkind: Pod\n"),
        text("duplicate-deep.yaml", "key \"name\" is given twice", container("env: [{name: A, name: B}]")),
        text("nan.yaml", "no number that JSON has", container("ports: [{containerPort: .nan}]")),
        text("inf.yaml", "no number that JSON has", pod("{terminationGracePeriodSeconds: -.inf}")),
        text("complex-key.yaml", "a key must be text", "? {a: b}\n: c\n"),
        text("null-key.yaml", "key is null", "~: c\n"),
        text("merge-scalar.yaml", "merge key << takes a map", "spec: {<<: 5}\n"),
        // How much is in the file.
        made("laughs.yaml", "values (aliases count each time)", laughs),
        made("laughs-text.yaml", "bytes of text", || {
            let mut text = format!("a: &a \"{}\"\n", "x".repeat(100_000));
            (0..50).for_each(|n| text.push_str(&format!("b{n}: *a\n")));
            text
        }),
        made("flow-deep.yaml", "nested deeper", || "[".repeat(100_000)),
        made("map-deep.yaml", "nested deeper", || "{a: ".repeat(100_000)),
        made("block-deep.yaml", "nested deeper", || "- ".repeat(100_000)),
        made("indent-deep.yaml", "nested deeper", || {
            (0..500).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>()
        }),
        made("alias-deep.yaml", "nested deeper", || {
            let mut text = String::from("a0: &a0 [x]\n");
            (1..5000).for_each(|n| text.push_str(&format!("a{n}: &a{n} [*a{}]\n", n - 1)));
            text
        }),
        made("flow-long.yaml", "values", || format!("[{}]", "a,".repeat(400_000))),
        made("maps-long.yaml", "values", || format!("[{}]", "{a: b},".repeat(100_000))),
        made("keys-long.yaml", "values", || (0..100_000).map(|n| format!("k{n}: 1\n")).collect::<String>()),
        made("merge-long.yaml", "values", || {
            let keys: String = (0..2000).map(|n| format!("k{n}: 1, ")).collect();
            let mut text = format!("a: &a {{{keys}}}\n");
            (0..200).for_each(|n| text.push_str(&format!("b{n}: {{<<: *a, x{n}: 1}}\n")));
            text
        }),
        made("documents.yaml", "documents; spread them", || "---\n".repeat(10_000)),
        made("pods.yaml", "values", || {
            let item = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a, image: x}]}},";
            format!("apiVersion: v1\nkind: List\nitems: [{}]\n", item.repeat(9_000))
        }),
        made("containers.yaml", "must have at most 64 items", || {
            pod(&format!("{{containers: [{}]}}", "{},".repeat(8_000)))
        }),
        made("volumes.yaml", "must have at most 256 items", || {
            pod(&format!("{{volumes: [{}]}}", "{},".repeat(8_000)))
        }),
        made("typed-bomb.yaml", "a pod may have 8192", || {
            let container = format!("{{env: [{}]}},", "{},".repeat(400));
            pod(&format!("{{containers: [{}]}}", container.repeat(60)))
        }),
        made("status-bomb.yaml", "spec: Required value", || {
            let statuses = "{},".repeat(7_000);
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: bad}}\nstatus: {{containerStatuses: [{statuses}]}}\n"
            )
        }),
        made("ports.yaml", "must have at most 1024 items", || {
            container(&format!("ports: [{}]", "{containerPort: 1},".repeat(2_000)))
        }),
        made("unclosed.yaml", "is no YAML", || format!("a: \"{}", "x".repeat(900_000))),
        made("long-line.yaml", "is no Kubernetes object", || "x".repeat(1_000_000)),
        made("long-anchor.yaml", "", || format!("&{} a", "x".repeat(900_000))),
        made("long-tag.yaml", "tag", || format!("!{} a", "x".repeat(900_000))),
        made("long-directive.yaml", "is no YAML", || format!("%{} a\n---\na\n", "x".repeat(900_000))),
        made("too-large.yaml", "is too large", || "# padding\n".repeat(200_000)),
        // What the file says.
        text(
            "deployment.yaml",
            "kind: Invalid value: \"Deployment\": must be Pod, ConfigMap, Secret or List",
            "apiVersion: apps/v1\nkind: Deployment\n",
        ),
        text("no-kind.yaml", "kind: Required value", "apiVersion: v1\nmetadata: {name: a}\n"),
        text(
            "kind-list.yaml",
            "kind: Invalid value: a list of 1: must be Pod, ConfigMap",
            "apiVersion: v1\nkind: [Pod]\n",
        ),
        text("no-version.yaml", "apiVersion: Required value", "kind: Pod\nmetadata: {name: a}\n"),
        text(
            "v1beta3.yaml",
            "apiVersion: Invalid value: \"v1beta3\": must be v1",
            "apiVersion: v1beta3\nkind: Pod\n",
        ),
        text(
            "list-in-list.yaml",
            "items[0].kind: Invalid value: \"List\": a list in a list",
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: []}]\n",
        ),
        text(
            "list-of-text.yaml",
            "items[0].kind: Required value",
            "apiVersion: v1\nkind: List\nitems: [a]\n",
        ),
        text("list-no-items.yaml", "items: Required value", "apiVersion: v1\nkind: List\n"),
        text("no-spec.yaml", "spec: Required value", "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\n"),
        text(
            "no-name.yaml",
            "metadata.name: Required value",
            "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: x}]}\n",
        ),
        text(
            "metadata-list.yaml",
            "metadata: Invalid value: a list of 1: must be an object",
            "apiVersion: v1\nkind: Pod\nmetadata: [a]\nspec: {containers: [{name: a, image: x}]}\n",
        ),
        made("long-name.yaml", "(10000 characters): must be", || {
            let name = "a".repeat(10_000);
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: a, image: x}}]}}\n"
            )
        }),
        made("long-field.yaml", "unknown field", || {
            format!(
                "apiVersion: v1\nkind: Pod\n{}: 1\nmetadata: {{name: a}}\nspec: {{containers: [{{name: a, image: x}}]}}\n",
                "k".repeat(1_000)
            )
        }),
        made("many-errors.yaml", "items[0].kind: Required value", || {
            String::from("apiVersion: v1\nkind: List\nitems: [{}]\n")
        }),
        text(
            "escape-uid.yaml",
            "metadata.uid: Invalid value: \"../../etc\"",
            good.replace("name: bad", "name: bad, uid: ../../etc"),
        ),
        text(
            "newline-name.yaml",
            "metadata.name",
            good.replace("name: bad", "name: \"a\\n\\e[31mroot: ok\""),
        ),
        text(
            "string-port.yaml",
            "containerPort: Invalid value: \"80\": must be an integer",
            container("ports: [{containerPort: \"80\"}]"),
        ),
        text(
            "negative-port.yaml",
            "containerPort: Invalid value: -1: must be between 1",
            container("ports: [{containerPort: -1}]"),
        ),
        text(
            "huge-port.yaml",
            "containerPort: Invalid value: 1e30: must be an integer",
            container("ports: [{containerPort: 1000000000000000000000000000000}]"),
        ),
        text(
            "float-port.yaml",
            "containerPort: Invalid value: 80.5: must be an integer",
            container("ports: [{containerPort: 80.5}]"),
        ),
        text(
            "bool-env.yaml",
            "env[0].value: Invalid value: true: must be a string",
            container("env: [{name: A, value: yes}]"),
        ),
        text(
            "number-image.yaml",
            "image: Invalid value: 5: must be a string",
            pod("{containers: [{name: a, image: 5}]}"),
        ),
        text(
            "huge-quantity.yaml",
            "is too large for a number",
            container("resources: {limits: {cpu: 1e999}}"),
        ),
        text(
            "bad-quantity.yaml",
            "limits.cpu: Invalid value: \"lots\": must be a quantity",
            container("resources: {limits: {cpu: lots}}"),
        ),
        text("typo.yaml", "did you mean containers?", pod("{contaners: [{name: a, image: x}]}")),
        // What the file is.
        other("directory.yaml", "is a directory", |path| fs::create_dir(path).expect("a directory")),
        other("fifo.yaml", "is a FIFO", |path| {
            mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
        }),
        other("socket.yaml", "is a socket", |path| drop(UnixListener::bind(path).expect("a socket"))),
        other("zero.yaml", "is a device", |path| symlink("/dev/zero", path).expect("a link")),
        other("loop.yaml", "leads back to itself", |path| symlink(path, path).expect("a link")),
        other("dangling.yaml", "symbolic link to nothing", |path| {
            symlink("/nowhere/at/all", path).expect("a link");
        }),
        other("link-to-dir.yaml", "is a directory", |path| symlink("/", path).expect("a link")),
        other("sparse.yaml", "is too large: 104857600 bytes", |path| {
            File::create(path).and_then(|file| file.set_len(100 << 20)).expect("a sparse file");
        }),
        other("sparse-fits.yaml", "holds NUL bytes", |path| {
            File::create(path).and_then(|file| file.set_len(1 << 20)).expect("a sparse file");
        }),
        other("endless.yaml", "", |path| symlink("/proc/self/environ", path).expect("a link")),
    ]
}

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smolet-hostile-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        let good =
            "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec: {containers: [{name: a, image: x}]}\n";
        File::create(path.join("good.yaml"))
            .and_then(|mut file| file.write_all(good.as_bytes()))
            .expect("a file");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The first look at a directory; a manifest that could make it wait fails the test instead.
fn read(dir: &Path) -> SourceUpdate {
    let mut source = FileSource::new(dir, NodeName::new("gw"), Rc::new(SystemClock), Duration::from_secs(20));
    smol::block_on(smol::future::or(source.next(), async {
        SystemClock.sleep(Duration::from_mins(2)).await;
        panic!("no answer within 2 min: {}", dir.display())
    }))
}

fn memory_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with(field)).expect("the field");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of KiB")
}

/// What a process of its own found in a directory.
#[derive(Default)]
struct Look {
    pods: Vec<String>,
    /// The file and the line of each problem.
    problems: Vec<(String, String)>,
    complete: bool,
    /// How far memory grew at its peak above what a look at one good manifest takes.
    growth_kib: u64,
}

impl Look {
    fn lines_of(&self, file: &Path) -> Vec<String> {
        let file = file.to_string_lossy();
        self.problems.iter().filter(|(name, _)| *name == file).map(|(_, line)| line.clone()).collect()
    }
}

const DIR: &str = "SMOLET_HOSTILE_DIR";
const WARM: &str = "SMOLET_HOSTILE_WARM";

/// Looks at `dir` in a fresh process, so that nothing an earlier case left in the allocator hides what this one takes.
fn look(warm: &Path, dir: &Path) -> Look {
    let output = runner::command(std::env::current_exe().expect("this test"))
        .args([
            "--exact",
            "hostile_manifests::each_hostile_manifest_gives_one_clear_line_and_costs_little",
            "--nocapture",
        ])
        .env(DIR, dir)
        .env(WARM, warm)
        .output()
        .expect("this test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}: {text}\n{}",
        dir.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let mut look = Look::default();
    for line in text.split('\u{1e}') {
        let mut words = line.split('\u{1f}');
        let mut word = || words.next().unwrap_or_default().to_owned();
        match word().as_str() {
            "pod" => look.pods.push(word()),
            "problem" => look.problems.push((word(), word())),
            "end" => (look.complete, look.growth_kib) = (word() == "true", word().parse().expect("a number")),
            _ => {}
        }
    }
    look
}

/// An emulator's memory grows with the code that it translates, so that it says nothing of the program's.
fn grew_too_far(growth_kib: u64) -> bool {
    growth_kib > GROWTH_KIB_MAX && !runner::is_emulated()
}

/// The other side of [`look`].
fn look_here(warm: &Path, dir: &Path) {
    // Threads, buffers and code that any look needs.
    assert!(read(warm).complete);
    let level = memory_kib("VmRSS");
    let update = read(dir);
    let growth = memory_kib("VmHWM").saturating_sub(level);
    for pod in &update.pods {
        println!("\u{1e}pod\u{1f}{}\u{1e}", pod.pod.key);
    }
    for problem in &update.problems {
        println!("\u{1e}problem\u{1f}{}\u{1f}{problem}\u{1e}", problem.file);
    }
    println!("\u{1e}end\u{1f}{}\u{1f}{growth}\u{1e}", update.complete);
}

fn judge(case: &Case, lines: &[String], wrong: &mut Vec<String>) {
    let name = case.name;
    if lines.len() != 1 {
        return wrong.push(format!("{name}: {} lines: {lines:#?}", lines.len()));
    }
    let line = &lines[0];
    if !line.contains(case.says) {
        wrong.push(format!("{name}: does not say {:?}: {line}", case.says));
    }
    if line.chars().count() > LINE_CHARS_MAX || line.chars().any(char::is_control) {
        wrong.push(format!("{name}: no clear line: {line:?}"));
    }
}

#[test]
fn each_hostile_manifest_gives_one_clear_line_and_costs_little() {
    if let (Some(dir), Some(warm)) = (std::env::var_os(DIR), std::env::var_os(WARM)) {
        return look_here(Path::new(&warm), Path::new(&dir));
    }
    let cases = cases();
    let mut wrong = Vec::new();
    let mut largest = (0, "none");
    let warm = Dir::new("warm");

    for case in &cases {
        let dir = Dir::new(case.name);
        let file = dir.0.join(case.name);
        (case.make)(&file);
        let found = look(&warm.0, &dir.0);
        if found.pods != ["default/good-gw"] || found.complete {
            wrong.push(format!("{}: pods {:?}, complete {}", case.name, found.pods, found.complete));
        }
        judge(case, &found.lines_of(&file), &mut wrong);
        if grew_too_far(found.growth_kib) {
            wrong.push(format!("{}: memory grew by {} KiB", case.name, found.growth_kib));
        }
        largest = largest.max((found.growth_kib, case.name));
    }

    // All of them in one directory: none may hide another or the good one.
    let dir = Dir::new("all");
    for case in &cases {
        (case.make)(&dir.0.join(case.name));
    }
    let all = look(&warm.0, &dir.0);
    assert_eq!(all.pods, ["default/good-gw"]);
    for case in &cases {
        let lines = all.lines_of(&dir.0.join(case.name));
        if lines.len() != 1 {
            wrong.push(format!("together: {}: {lines:?}", case.name));
        }
    }

    // Valid, but each as large as it may be: some run, the others are refused.
    let dir = Dir::new("huge");
    for n in 0..limits::PODS_MAX {
        let env = format!("{{name: A, value: \"{}\"}},", "v".repeat(50)).repeat(1_000);
        let text = container(&format!("env: [{env}]")).replace("name: bad", &format!("name: huge{n}"));
        fs::write(dir.0.join(format!("huge{n}.yaml")), text).expect("a file");
    }
    let huge = look(&warm.0, &dir.0);
    assert_eq!(huge.pods.len() + huge.problems.len(), limits::PODS_MAX + 1);
    assert!(huge.pods.len() > 2, "{} pods", huge.pods.len());
    assert!(huge.problems.iter().all(|(_, line)| line.contains("does not fit")));

    for (what, found) in [("together", &all), ("valid but huge", &huge)] {
        if grew_too_far(found.growth_kib) {
            wrong.push(format!("{what}: memory grew by {} KiB", found.growth_kib));
        }
    }
    println!(
        "{} hostile manifests: memory grew by at most {} KiB ({}), by {} KiB for all together, by {} KiB for {} huge pods",
        cases.len(),
        largest.0,
        largest.1,
        all.growth_kib,
        huge.growth_kib,
        huge.pods.len() - 1,
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
