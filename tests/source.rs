//! The manifest directory against a real file system: what is read, when, and what is left alone.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use smolet::clock::{Clock, SystemClock};
use smolet::desired::{Change, Desired};
use smolet::model::Wall;
use smolet::source::{FileSource, NodeName, SourceUpdate};

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

struct Agent {
    source: FileSource,
    desired: Desired,
}

/// What one update brought.
#[derive(Debug)]
struct Told {
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
        let source = FileSource::new(dir, NodeName::new("Gw"), Rc::new(SystemClock), rescan);
        Self { source, desired: Desired::new(&["file"]) }
    }

    fn update(&mut self, within: Duration) -> Option<SourceUpdate> {
        let source = &mut self.source;
        smol::block_on(smol::future::or(async { Some(source.next().await) }, async {
            SystemClock.sleep(within).await;
            None
        }))
    }

    /// The next update, within 3 s.
    fn told(&mut self) -> Told {
        let update = self.update(Duration::from_secs(3)).expect("an update within 3 s");
        self.take(update)
    }

    fn take(&mut self, update: SourceUpdate) -> Told {
        let complete = update.complete;
        let changes = self.desired.apply(update, |_| false);
        let mut changes: Vec<String> = changes
            .iter()
            .map(|change| match change {
                Change::Removed(key) => format!("-{}", key.name),
                Change::Changed(pod) => format!("~{}", pod.key.name),
                Change::Added(pod) => format!("+{}", pod.key.name),
            })
            .collect();
        changes.sort();
        Told { changes, fresh: self.desired.fresh_problems().map(ToString::to_string).collect(), complete }
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

    let started = Instant::now();
    dir.write("web.yaml", &pod("web", "x:2"));
    assert_eq!(agent.told().changes, ["~web-gw"], "an app container's image changes in place");
    assert!(started.elapsed() < Duration::from_millis(900), "inotify told: {:?}", started.elapsed());

    dir.remove("two.yml");
    assert_eq!(agent.told().changes, ["-a-gw", "-b-gw"]);
    dir.write("new.yaml", &pod("new", "x"));
    assert_eq!(agent.told().changes, ["+new-gw"]);
    agent.quiet();
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
        .filter(|name| name != "identities.txt")
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
