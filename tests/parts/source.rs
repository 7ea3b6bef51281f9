//! The manifest directory against a real file system: what is read, when, and what is left alone.

#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::format_push_string,
    clippy::format_collect
)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::runner;
use smolet::clock::{Clock, SharedClock, SystemClock, VirtualClock};
use smolet::desired::{Change, Desired};
use smolet::limits;
use smolet::model::Wall;
use smolet::source::{FileSource, NodeName, SourceUpdate};

/// How long anything may take, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_mins(1);

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("smolet-source-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("a manifest is written");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.join(name)).expect("a manifest is removed");
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: a, image: {image}}}\n"
    )
}

#[allow(clippy::useless_conversion, reason = "32-bit targets have smaller fields")]
fn thread_cpu_ms() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    i64::from(time.tv_sec) * 1000 + i64::from(time.tv_nsec) / 1_000_000
}

struct Agent {
    source: FileSource,
    desired: Desired,
}

/// What one update brought.
#[derive(Debug)]
struct UpdateResult {
    /// `+NAME`, `~NAME`, `-NAME`, sorted.
    changes: Vec<String>,
    /// The fresh problems' lines.
    fresh: Vec<String>,
    complete: bool,
}

impl Agent {
    fn new(dir: &Path) -> Self {
        Self::with_rescan(dir, Duration::from_secs(20))
    }

    fn with_rescan(dir: &Path, rescan: Duration) -> Self {
        Self::with_clock(dir, Rc::new(SystemClock), rescan)
    }

    fn with_clock(dir: &Path, clock: SharedClock, rescan: Duration) -> Self {
        let source = FileSource::new(dir, NodeName::new("Gw"), clock, rescan);
        Self { source, desired: Desired::new(&["file"]) }
    }

    fn update(&mut self, within: Duration) -> Option<SourceUpdate> {
        let source = &mut self.source;
        let before = thread_cpu_ms();
        let update = smol::block_on(smol::future::or(async { Some(source.next().await) }, async {
            SystemClock.sleep(within).await;
            None
        }));
        // Files are read on other threads; whoever waits in a circle is seen here.
        let spent = thread_cpu_ms() - before;
        let spent_max = if runner::is_emulated() { 600 } else { 60 };
        assert!(spent < spent_max, "waiting took {spent} ms of this thread");
        update
    }

    /// The next update.
    fn told(&mut self) -> UpdateResult {
        let update = self.update(PATIENCE).expect("an update");
        self.take(update)
    }

    fn take(&mut self, update: SourceUpdate) -> UpdateResult {
        let complete = update.complete;
        let changes = self.desired.apply(update, |_| false);
        let mut changes: Vec<String> = changes
            .iter()
            .map(|change| match change {
                Change::Removed(key) => format!("-{}", key.name),
                Change::Changed(pod) => format!("~{}", pod.key.name),
                Change::Added(pod) => format!("+{}", pod.key.name),
                Change::Object(key) => key.to_string(),
            })
            .collect();
        changes.sort();
        let fresh =
            self.desired.problems().filter(|problem| problem.fresh).map(ToString::to_string).collect();
        UpdateResult { changes, fresh, complete }
    }

    /// Nothing is told for a while.
    fn quiet(&mut self) {
        let update = self.update(Duration::from_millis(900));
        assert!(update.is_none(), "{update:?}");
    }
}

#[test]
fn pods_come_change_and_go() {
    let dir = Dir::new();
    dir.write("web.yaml", &pod("web", "x:1"));
    dir.write("two.yml", &format!("{}---\n{}", pod("a", "x:1"), pod("b", "x:1")));
    dir.write(
        "list.json",
        r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}, "spec": {"containers": [{"name": "a", "image": "x"}]}}
        ]}"#,
    );
    let mut agent = Agent::new(&dir.0);
    let told = agent.told();
    assert_eq!(told.changes, ["+a-gw", "+b-gw", "+c-gw", "+web-gw"]);
    assert!(told.complete && told.fresh.is_empty(), "{told:?}");
    agent.quiet();

    dir.write("web.yaml", &pod("web", "x:2"));
    assert_eq!(agent.told().changes, ["~web-gw"], "an app container's image changes in place");

    dir.remove("two.yml");
    assert_eq!(agent.told().changes, ["-a-gw", "-b-gw"]);
    dir.write("new.yaml", &pod("new", "x"));
    assert_eq!(agent.told().changes, ["+new-gw"]);
    agent.quiet();
}

/// Time stands still: what is told is told without waiting.
#[test]
fn whole_files_are_read_at_once() {
    let dir = Dir::new();
    let clock = VirtualClock::new(Wall(0));
    let mut agent = Agent::with_clock(&dir.0, Rc::new(clock.clone()), Duration::from_secs(20));
    assert_eq!(agent.told().changes, [""; 0]);
    let into_place = |name: &str, text: &str| {
        dir.write(&format!(".{name}.tmp"), text);
        fs::rename(dir.0.join(format!(".{name}.tmp")), dir.0.join(name)).expect("a rename");
    };
    into_place("web.yaml", &pod("web", "x:1"));
    assert_eq!(agent.told().changes, ["+web-gw"], "a new file, renamed into place");
    dir.write("db.yaml", &pod("db", "x:1"));
    assert_eq!(agent.told().changes, ["+db-gw"], "a new file, closed after writing");

    let debounce = limits::MANIFEST_DEBOUNCE;
    let second = |agent: &mut Agent, what: &str| {
        agent.quiet();
        clock.advance(debounce);
        assert_eq!(agent.told().changes, ["~web-gw"], "{what}");
    };
    // Changed again at once, and over what runs: it may be a part.
    into_place("web.yaml", &pod("web", "x:2"));
    second(&mut agent, "changed again");
    clock.advance(debounce);
    dir.write("web.yaml", &pod("web", "x:3"));
    second(&mut agent, "written over");
    clock.advance(debounce);
    into_place("web.yaml", &pod("web", "x:4"));
    assert_eq!(agent.told().changes, ["~web-gw"], "another version, renamed into place");

    // A pod that its file does not name any more may be on its way to another file.
    clock.advance(debounce);
    into_place("web.yaml", &format!("{}---\n{}", pod("web", "x:4"), pod("more", "x:1")));
    assert_eq!(agent.told().changes, ["+more-gw"]);
    clock.advance(debounce);
    into_place("web.yaml", &pod("web", "x:4"));
    agent.quiet();
    into_place("more.yaml", &pod("more", "x:1"));
    agent.quiet();
    clock.advance(limits::MANIFEST_GRACE);
    let told = agent.told();
    assert_eq!((told.changes, told.fresh), (vec![], vec![]), "it was in neither for a moment");
}

#[test]
fn a_file_that_turns_invalid_keeps_its_pods_and_says_so_once() {
    let dir = Dir::new();
    dir.write("web.yaml", &pod("web", "x:1"));
    dir.write("db.yaml", &pod("db", "x:1"));
    let mut agent = Agent::new(&dir.0);
    assert_eq!(agent.told().changes, ["+db-gw", "+web-gw"]);

    dir.write("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {contaners: []}\n");
    let told = agent.told();
    assert_eq!(told.changes, [""; 0], "the pod stays");
    assert_eq!(told.fresh.len(), 1, "{told:?}");
    assert!(
        told.fresh[0].contains("web.yaml: document 1: pod default/web: spec.contaners: unknown field"),
        "{told:?}"
    );
    assert!(!agent.desired.may_terminate_orphans());
    agent.quiet();

    // An agent that starts now must not take the pod down either.
    let mut restarted = Agent::new(&dir.0);
    assert_eq!(restarted.told().changes, ["+db-gw"]);
    assert!(!restarted.desired.may_terminate_orphans());

    dir.write("web.yaml", &pod("web", "x:2"));
    assert_eq!(agent.told().changes, ["~web-gw"]);
    assert!(agent.desired.may_terminate_orphans());
}

/// The UIDs and hashes of fixed manifests on a fixed node never change: a new agent must find its pods.
#[test]
fn golden_identities() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let golden = fs::read_to_string(folder.join("identities.txt")).expect("the golden file");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .expect("the golden folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| [".yaml", ".json"].iter().any(|end| name.ends_with(end)))
        .collect();
    names.sort();
    let mut got = String::from("# FILE NAMESPACE/NAME UID CONFIG-HASH, on the node Gateway-7\n");
    for name in names {
        let report = smolet::source::check(&[folder.join(&name)], &NodeName::new("Gateway-7"), Wall(0));
        assert!(report.is_good(), "{report}");
        let pod = &report.pods[0];
        got.push_str(&format!("{name} {} {} {}\n", pod.pod.key, pod.pod.key.uid, pod.config_hash));
    }
    assert_eq!(got, golden, "\n{got}");
}

#[test]
fn a_half_written_file_is_waited_for() {
    let dir = Dir::new();
    dir.write("web.yaml", &pod("web", "x:1"));
    let clock = VirtualClock::new(Wall(0));
    let mut agent = Agent::with_clock(&dir.0, Rc::new(clock.clone()), Duration::from_secs(20));
    assert_eq!(agent.told().changes, ["+web-gw"]);

    // A writer that holds the file open for longer than the debounce and the grace together.
    let text = pod("web", "x:2");
    let (head, tail) = text.split_at(text.len() / 2);
    let mut file = fs::File::create(dir.0.join("web.yaml")).expect("the manifest opens");
    file.write_all(head.as_bytes()).expect("the first half");
    for wait in [limits::MANIFEST_DEBOUNCE, limits::MANIFEST_GRACE, limits::MANIFEST_GRACE] {
        agent.quiet();
        clock.advance(wait);
    }
    agent.quiet();
    file.write_all(tail.as_bytes()).expect("the second half");
    drop(file);
    agent.quiet();
    clock.advance(limits::MANIFEST_DEBOUNCE);
    let told = agent.told();
    assert_eq!((told.changes, told.fresh.len()), (vec!["~web-gw".to_owned()], 0), "no word of the half");
}

#[test]
fn editors_ways_of_writing_are_one_change() {
    let dir = Dir::new();
    dir.write("web.yaml", &pod("web", "x:1"));
    let clock = VirtualClock::new(Wall(0));
    let mut agent = Agent::with_clock(&dir.0, Rc::new(clock.clone()), Duration::from_secs(20));
    agent.told();
    let path = |name: &str| dir.0.join(name);
    // Longer than the debounce, shorter than the grace: the agent looks while the file is away or empty.
    let pause = |agent: &mut Agent| {
        for _ in 0..2 {
            agent.quiet();
            clock.advance(limits::MANIFEST_DEBOUNCE);
        }
        agent.quiet();
    };
    let by_rename = |_: &mut Agent| {
        dir.write(".web.yaml.swp", "b0VIM");
        dir.write("4913", "");
        dir.write(".web.yaml.tmp", &pod("web", "x:2"));
        fs::rename(path(".web.yaml.tmp"), path("web.yaml")).expect("a rename");
        dir.remove("4913");
    };
    let with_backup = |agent: &mut Agent| {
        fs::rename(path("web.yaml"), path("web.yaml~")).expect("a rename");
        pause(agent);
        dir.write("web.yaml", &pod("web", "x:3"));
    };
    let in_place = |agent: &mut Agent| {
        dir.write("web.yaml", "");
        pause(agent);
        dir.write("web.yaml", &pod("web", "x:4"));
    };
    type Way<'a> = (&'a str, &'a dyn Fn(&mut Agent));
    let ways: [Way<'_>; 3] = [
        ("rename over it", &by_rename),
        ("rename away, write anew", &with_backup),
        ("truncate, then write", &in_place),
    ];
    for (way, write) in ways {
        write(&mut agent);
        if way != "rename over it" {
            agent.quiet();
            clock.advance(limits::MANIFEST_DEBOUNCE);
        }
        let told = agent.told();
        clock.advance(limits::MANIFEST_DEBOUNCE);
        assert_eq!((told.changes, told.fresh.len()), (vec!["~web-gw".to_owned()], 0), "{way}");
    }
    agent.quiet();
}

#[test]
fn copies_and_other_files_are_left_alone() {
    let dir = Dir::new();
    dir.write("web.yaml", &pod("web", "x:1"));
    for name in [
        ".web.yaml",
        "web.yaml~",
        "#web.yaml#",
        "web.yaml.backup",
        "web.yaml.bak",
        "web.yaml.dpkg-old",
        "README",
    ] {
        dir.write(name, &pod("web", "x:9"));
    }
    let mut agent = Agent::new(&dir.0);
    let told = agent.told();
    assert_eq!((told.changes, told.complete), (vec!["+web-gw".to_owned()], true));
    dir.write("web.yaml.backup", &pod("web", "x:10"));
    agent.quiet();
}

#[test]
fn two_files_for_one_pod_are_an_error_that_names_both() {
    let dir = Dir::new();
    dir.write("b.yaml", &pod("web", "x:1"));
    let mut agent = Agent::new(&dir.0);
    assert_eq!(agent.told().changes, ["+web-gw"]);
    dir.write("a.yaml", &pod("web", "x:2"));
    let told = agent.told();
    assert_eq!(told.changes, [""; 0], "the one already running stays");
    assert_eq!(told.fresh.len(), 1);
    assert!(
        told.fresh[0].contains("a.yaml: document 1: pod default/web-gw: is in ")
            && told.fresh[0].contains("b.yaml")
    );
    dir.remove("b.yaml");
    let told = agent.told();
    // Images do not count for the UID: it is the same pod, changed in place.
    assert_eq!((told.changes, told.fresh.len()), (vec!["~web-gw".to_owned()], 0));
}

#[test]
fn a_removal_waits_while_another_manifest_is_invalid() {
    let dir = Dir::new();
    dir.write("a.yaml", &pod("a", "x:1"));
    dir.write("b.yaml", &pod("b", "x:1"));
    let mut agent = Agent::new(&dir.0);
    agent.told();
    dir.write("a.yaml", "kind: [");
    assert_eq!(agent.told().fresh.len(), 1);
    dir.remove("b.yaml");
    let told = agent.told();
    assert_eq!(told.changes, [""; 0]);
    assert!(told.fresh[0].contains("pod default/b-gw: is in no valid manifest now"), "{told:?}");
    dir.write("a.yaml", &pod("a", "x:1"));
    assert_eq!(agent.told().changes, ["-b-gw"]);
}

#[test]
fn a_directory_that_comes_goes_and_is_replaced() {
    let dir = Dir::new();
    let inner = Dir(dir.0.join("manifests"));
    let mut agent = Agent::with_rescan(&inner.0, Duration::from_secs(3));
    let told = agent.told();
    assert!(
        !told.complete && told.fresh[0].ends_with("does not exist; create it and put the manifests there"),
        "{told:?}"
    );
    assert!(!agent.desired.may_terminate_orphans());
    agent.quiet();

    fs::create_dir(&inner.0).expect("the directory");
    inner.write("web.yaml", &pod("web", "x:1"));
    let told = agent.told();
    assert_eq!((told.changes, told.complete), (vec!["+web-gw".to_owned()], true));

    fs::rename(&inner.0, dir.0.join("old")).expect("a rename");
    let told = agent.told();
    assert_eq!((told.changes.len(), told.complete, told.fresh.len()), (0, false, 1), "its pods stay");
    fs::create_dir(&inner.0).expect("the directory");
    inner.write("web.yaml", &pod("web", "x:2"));
    assert_eq!(agent.told().changes, ["~web-gw"]);

    // The new directory is watched, not the old one.
    inner.write("web.yaml", &pod("web", "x:3"));
    assert_eq!(agent.told().changes, ["~web-gw"]);

    let file = Dir(dir.0.join("file"));
    fs::write(&file.0, "").expect("a file");
    assert!(Agent::new(&file.0).told().fresh[0].contains("is no directory"));
}

#[test]
fn links_are_followed_to_files() {
    let dir = Dir::new();
    let data = Dir::new();
    for version in ["v1", "v2"] {
        fs::create_dir(data.0.join(version)).expect("a directory");
        let image = format!("x:{}", &version[1..]);
        fs::write(data.0.join(version).join("web.yaml"), pod("web", &image)).expect("a manifest");
    }
    // As a mounted ConfigMap is laid out: web.yaml → ..data/web.yaml, ..data → the version.
    std::os::unix::fs::symlink(data.0.join("v1"), dir.0.join("..data")).expect("a link");
    std::os::unix::fs::symlink("..data/web.yaml", dir.0.join("web.yaml")).expect("a link");
    let mut agent = Agent::new(&dir.0);
    assert_eq!(agent.told().changes, ["+web-gw"]);
    std::os::unix::fs::symlink(data.0.join("v2"), dir.0.join("..new")).expect("a link");
    fs::rename(dir.0.join("..new"), dir.0.join("..data")).expect("a rename");
    assert_eq!(agent.told().changes, ["~web-gw"]);
}

#[test]
fn without_events_the_rescan_finds_changes() {
    // A hard link's other name is in another directory: writing through it makes no event here.
    let dir = Dir::new();
    let other = Dir::new();
    other.write("web.yaml", &pod("web", "x:1"));
    std::os::unix::fs::symlink(other.0.join("web.yaml"), dir.0.join("web.yaml")).expect("a link");
    let mut agent = Agent::with_rescan(&dir.0, Duration::from_millis(500));
    assert_eq!(agent.told().changes, ["+web-gw"]);
    other.write("web.yaml", &pod("web", "x:2"));
    assert_eq!(agent.told().changes, ["~web-gw"]);
}

#[test]
fn check_reads_what_it_is_given() {
    let dir = Dir::new();
    dir.write("good.yaml", &pod("good", "x:1"));
    dir.write("copy.yaml.backup", &pod("good", "x:1"));
    dir.write(
        "bad.yaml",
        &pod("bad", "x:1").replace("image: x:1", "image: x:1, ports: [{containerPort: 99999}]"),
    );
    let check = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| dir.0.join(name)).collect();
        let report = smolet::source::check(&paths, &NodeName::new("gw"), Wall(0));
        report.to_string().replace(&*dir.0.to_string_lossy(), "DIR")
    };
    assert_eq!(
        check(&["bad.yaml"]),
        "DIR/bad.yaml: document 1: pod default/bad: spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between \
         1 and 65535\n"
    );
    // A directory is read as the agent reads it; a file named by hand whatever its name.
    assert_eq!(check(&[""]).lines().count(), 2);
    assert!(
        check(&["copy.yaml.backup"])
            .starts_with("DIR/copy.yaml.backup: document 1: pod default/good-gw: ok, uid ")
    );
    let both = check(&["good.yaml", "copy.yaml.backup"]);
    assert!(both.starts_with(
        "DIR/copy.yaml.backup: document 1: pod default/good-gw: is in DIR/good.yaml (document 1) too"
    ));
    assert!(check(&["gone.yaml"]).contains("does not exist"));
    fs::create_dir(dir.0.join("empty")).unwrap();
    assert!(check(&["empty"]).starts_with("no manifest is there: "));
    let broken = "kind: Pod\n---\n".repeat(limits::PROBLEMS_PER_FILE_MAX);
    let names: Vec<String> = (0..=limits::PROBLEMS_MAX / limits::PROBLEMS_PER_FILE_MAX)
        .map(|number| format!("broken-{number}.yaml"))
        .collect();
    for name in &names {
        dir.write(name, &broken);
    }
    let many = check(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(many.lines().count(), limits::PROBLEMS_MAX);
    assert!(
        many.ends_with(&format!("all files: {} more problems\n", limits::PROBLEMS_PER_FILE_MAX + 1)),
        "{many}"
    );
}

#[test]
fn check_lists_all_errors_of_a_document() {
    let dir = Dir::new();
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: Bad, namespace: B, labels: {a: 1}}\nspec:\n  hostNetwork: \
                \"true\"\n  restartPolicy: Sometimes\n  volumes: {}\n  containers:\n  - {name: a, imagee: x, ports: \
                [{containerPort: \"80\"}, {containerPort: 99999}], volumeMounts: [{name: v, mountPath: /v}]}\n  \
                - {name: b, image: x, resources: {limits: {cpu: [1]}, requests: {cpu: 2}}}\n";
    dir.write("bad.yaml", text);
    let report = smolet::source::check(&[dir.0.join("bad.yaml")], &NodeName::new("gw"), Wall(0)).to_string();
    let prefix = format!("{}/bad.yaml: document 1: pod B/Bad: ", dir.0.display());
    let lines: Vec<&str> =
        report.lines().map(|line| line.strip_prefix(&prefix).expect("an error of the pod")).collect();
    assert_eq!(
        lines,
        [
            "metadata.labels.a: Invalid value: 1: must be a string; put it in quotes",
            "spec.hostNetwork: Invalid value: \"true\": must be true or false without quotes",
            "spec.volumes: Invalid value: {}: must be a list",
            "spec.containers[0].imagee: unknown field; did you mean image?",
            "spec.containers[0].ports[0].containerPort: Invalid value: \"80\": must be an integer without quotes",
            "spec.containers[1].resources.limits.cpu: Invalid value: a list of 1: must be Quantity",
            "metadata.name: Invalid value: \"Bad\": must be at most 253 lower case letters and digits, with '-' or \
             single '.' between them",
            "metadata.namespace: Invalid value: \"B\": must be at most 63 lower case letters, digits or '-', with a letter or digit \
             at both ends",
            "spec.containers[0].ports[1].containerPort: Invalid value: 99999: must be between 1 and 65535",
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ]
    );
    // Beyond the bound they are counted.
    let unknown: String = (0..100).map(|n| format!("  zz{n}: 1\n")).collect();
    dir.write("bad.yaml", &format!("{}{unknown}", pod("a", "x:1")));
    let report = smolet::source::check(&[dir.0.join("bad.yaml")], &NodeName::new("gw"), Wall(0)).to_string();
    assert_eq!(report.lines().count(), limits::FIELD_ERRORS_MAX + 1);
    let more = 100 - limits::FIELD_ERRORS_MAX;
    assert!(report.ends_with(&format!(": pod default/a: and {more} more errors\n")), "{report}");
}

#[test]
fn nothing_spins_while_files_and_directory_go() {
    for broken in [false, true] {
        let dir = Dir::new();
        let inner = Dir(dir.0.join("manifests"));
        fs::create_dir(&inner.0).expect("the directory");
        inner.write("a.yaml", &pod("a", "x:1"));
        inner.write("b.yaml", &pod("b", "x:1"));
        let clock = VirtualClock::new(Wall(0));
        let mut agent = Agent::with_clock(&inner.0, Rc::new(clock.clone()), Duration::from_secs(20));
        agent.told();
        if broken {
            inner.write("a.yaml", "kind: [");
        } else {
            inner.remove("a.yaml");
        }
        // In its grace now.
        for wait in [limits::MANIFEST_DEBOUNCE, limits::MANIFEST_DEBOUNCE] {
            assert!(agent.update(Duration::from_millis(300)).is_none());
            clock.advance(wait);
        }
        fs::remove_dir_all(&inner.0).expect("the directory goes");
        assert!(agent.update(Duration::from_millis(300)).is_none());
        clock.advance(limits::MANIFEST_DEBOUNCE);
        let told = agent.told();
        assert_eq!((told.changes.len(), told.complete, told.fresh.len()), (0, false, 1), "{told:?}");
        agent.quiet();
    }
}

#[test]
fn a_file_that_is_written_all_the_time_holds_up_no_other() {
    let dir = Dir::new();
    dir.write("web.yaml", &pod("web", "x:1"));
    let mut agent = Agent::new(&dir.0);
    agent.told();
    let path = dir.0.join("log.yaml");
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let done = done.clone();
        move || {
            use std::io::Write as _;
            let mut file = fs::File::create(path).expect("the file opens");
            while !done.load(Ordering::Relaxed) {
                file.write_all(b"[\n").expect("a line");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    dir.write("web.yaml", &pod("web", "x:2"));
    let update = agent.update(PATIENCE).expect("told although the directory never settles");
    let told = agent.take(update);
    done.store(true, Ordering::Relaxed);
    writer.join().expect("the writer ends");
    assert_eq!((told.changes, told.complete), (vec!["~web-gw".to_owned()], false));
    let told = agent.told();
    assert_eq!(
        (told.complete, told.fresh.len()),
        (false, 1),
        "settled, and what was written is invalid: {told:?}"
    );
}

/// Whatever is done to a manifest's bytes: it is read or refused with clear lines, and nothing panics.
#[test]
fn mutated_manifests_are_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let originals: Vec<Vec<u8>> = ["always.yaml", "always.json", "never.yaml"]
        .map(|name| fs::read(folder.join(name)).expect("a golden manifest"))
        .into();
    let file: std::sync::Arc<str> = "mutated.yaml".into();
    let seed = std::env::var("SMOLET_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SMOLET_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut pods, mut refused) = (0, 0);
    for _ in 0..3_000 {
        let mut bytes = originals[random.usize(..originals.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..5) {
                0 => bytes[at] = random.u8(..),
                1 => {
                    let special = b"{}[]:,&*!|>'\"#%@`-?~\n\t 0";
                    bytes[at] = special[random.usize(..special.len())];
                }
                2 if bytes.len() > 2 => drop(bytes.remove(at)),
                3 => bytes.truncate(at.max(2)),
                _ => {
                    let end = random.usize(at..bytes.len());
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        let parsed = smolet::source::manifest::parse(&file, &bytes, &NodeName::new("gw"), Wall(0), 1 << 20);
        assert!(
            !parsed.pods.is_empty() || !parsed.problems.is_empty(),
            "{:?}",
            String::from_utf8_lossy(&bytes)
        );
        pods += parsed.pods.len();
        refused += parsed.problems.len();
        for problem in &parsed.problems {
            let line = problem.to_string();
            assert!(line.chars().count() <= 350 && !line.chars().any(char::is_control), "{line:?}");
        }
    }
    assert!(pods > 100 && refused > 100, "{pods} pods, {refused} problems");
}

/// tests/real/examples.rs runs them.
#[test]
fn the_examples_are_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gateway");
    let files = fs::read_dir(&examples).unwrap().count();
    let report = smolet::source::check(&[examples], &NodeName::new("gw"), Wall(0));
    assert!(report.is_good(), "{report}");
    assert_eq!((files, report.pods.len()), (10, 10), "a pod each");
}
