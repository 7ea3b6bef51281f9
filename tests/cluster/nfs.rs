//! Volumes on NFS servers: the machine's own `mount` and `umount`, the whole way. They find their helpers in /sbin, so each test
//! runs in a mount namespace of its own, where something else lies there; nothing of the machine's is written.
//!
//! On real time: `mount` and `umount` are processes, some of which hang.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use smolet::limits::OUTSIDE_JOBS_MAX;

use crate::common::{Stopwatch, TempDir, write_program};
use crate::world::{World, app};

/// Where the helpers lie, in the process that has its own namespace.
const HELPERS: &str = "SMOLET_TEST_HELPERS";

/// Runs the test of that name once more, in a process with a mount namespace of its own; there it answers the helpers' directory.
fn apart(name: &str) -> Option<PathBuf> {
    if let Some(helpers) = std::env::var_os(HELPERS) {
        let helpers = PathBuf::from(helpers);
        let (sbin, own) = (Path::new("/sbin").metadata().unwrap(), helpers.metadata().unwrap());
        assert_eq!((sbin.dev(), sbin.ino()), (own.dev(), own.ino()), "/sbin is the test's own");
        return Some(helpers);
    }
    let folder = TempDir::new();
    let bound = "mount --bind \"$0\" /sbin && exec \"$@\"";
    let run = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c", bound])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("nfs::{name}"), "--nocapture"])
        .env(HELPERS, folder.path())
        .output()
        .expect("unshare is there");
    let said = String::from_utf8_lossy(&run.stdout);
    let complains = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("1 passed"), "{said}\n{complains}");
    None
}

/// What stands in for NFS: servers whose exports are file systems in memory, and the helpers that mount them.
struct Servers {
    helpers: PathBuf,
    folder: TempDir,
}

impl Servers {
    /// Without the helper that mounts.
    fn new(helpers: PathBuf) -> Self {
        let servers = Self { helpers, folder: TempDir::new() };
        for name in ["calls", "pids"] {
            std::fs::write(servers.path(name), "").unwrap();
        }
        // `umount` looks for a helper of the type that the kernel's table shows.
        servers.write(
            "umount.tmpfs",
            "echo \"umount $*\" >> $all/calls\n\
             case $* in *kubernetes.io~nfs*) ;; *) exec umount -i \"$@\" ;; esac\n\
             hang() { echo $$ >> $all/pids; exec sleep 600; }\n\
             case \" $* \" in\n\
             *' -f '*) ;;\n\
             *) [ ! -e $all/slow ] || hang ;;\n\
             esac\n\
             case $1 in */v) [ ! -e $all/dead ] || hang ;; esac\n\
             exec umount -i \"$1\"\n",
        );
        servers
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, helper: &str, script: &str) {
        let script = format!("#!/bin/sh\nall={}\n{script}", self.path("").display());
        write_program(&self.helpers.join(helper), &script);
    }

    /// As `apt install nfs-common`.
    fn install(&self) {
        self.write(
            "mount.nfs",
            "echo \"$*\" >> $all/calls\n\
             case $1 in\n\
             away:*) echo $$ >> $all/pids; exec sleep 600 ;;\n\
             liar:*) exit 0 ;;\n\
             esac\n\
             export=$all/$(echo \"$1\" | tr / _)\n\
             if [ ! -d \"$export\" ]; then\n\
             echo \"mount.nfs: access denied by server while mounting $1\" >&2; exit 32\n\
             fi\n\
             exec mount -i --bind \"$export\" \"$2\"\n",
        );
    }

    /// A directory that a server exports, with a file in it.
    fn export(&self, source: &str) -> PathBuf {
        let path = self.path(&source.replace('/', "_"));
        std::fs::create_dir(&path).unwrap();
        let done = Command::new("mount").args(["-i", "-t", "tmpfs", source]).arg(&path).status().unwrap();
        assert!(done.success());
        std::fs::write(path.join("kept"), "x").unwrap();
        path
    }

    /// What the helpers were called with.
    fn calls(&self) -> Vec<String> {
        std::fs::read_to_string(self.path("calls")).unwrap().lines().map(str::to_owned).collect()
    }

    /// Helpers that hang.
    fn hanging(&self) -> Vec<String> {
        let pids = std::fs::read_to_string(self.path("pids")).unwrap();
        let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        pids.lines().filter(|pid| stat(pid).contains("(sleep) S")).map(str::to_owned).collect()
    }
}

/// What is mounted for this world's pods.
fn mount_points(world: &World) -> Vec<String> {
    let pods = world.path("root/pods");
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().map(|line| line.split(' ').nth(4).unwrap_or_default().to_owned());
    points.filter(|point| Path::new(point).starts_with(&pods)).collect()
}

fn with_nfs(nfs: Value, part: &str) -> Value {
    with(json!({"name": "v", "nfs": nfs}), part)
}

fn with(volume: Value, part: &str) -> Value {
    let mut spec = app();
    spec["volumes"] = json!([volume]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data", "subPath": part}]);
    spec
}

fn claimed(name: &str, read_only: bool) -> Value {
    with(json!({"name": "v", "persistentVolumeClaim": {"claimName": name, "readOnly": read_only}}), "")
}

/// A claim and its volume.
fn claim(world: &World, name: &str, spec: Value) {
    let claim = json!({"metadata": {"name": name}, "spec": {"volumeName": format!("pv-{name}")}, "status": {"phase": "Bound"}});
    let claim = world.api.create("persistentvolumeclaims", claim);
    let mut spec = spec;
    spec["claimRef"] = json!({"namespace": "default", "name": name, "uid": claim["metadata"]["uid"]});
    world.api.create("persistentvolumes", json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec}));
}

fn has_event(world: &World, reason: &str, words: &str) -> bool {
    let is_it = |event: &Value| {
        event["reason"] == reason && event["message"].as_str().is_some_and(|message| message.contains(words))
    };
    world.api.list("events", "default").iter().any(is_it)
}

fn mounted(world: &World, container: &str) -> (String, bool) {
    let state = world.fake.state();
    let config = &state.container(container).expect("the container").config;
    let mount = config.mounts.iter().find(|mount| mount.container_path == "/data").expect("a mount");
    (mount.host_path.clone(), mount.readonly)
}

fn pod_dir(world: &World, pod: &Value) -> PathBuf {
    world.path("root").join("pods").join(pod["metadata"]["uid"].as_str().unwrap())
}

#[test]
fn volumes_are_mounted_once_and_unmounted_with_their_pods() {
    let Some(helpers) = apart("volumes_are_mounted_once_and_unmounted_with_their_pods") else { return };
    let servers = Servers::new(helpers);
    servers.install();
    let (data, six) = (servers.export("nas:/data"), servers.export("[fd00::7]:/six"));
    let world = World::on_real_time();
    claim(
        &world,
        "data",
        json!({"nfs": {"server": "nas", "path": "/data"}, "mountOptions": ["nfsvers=4.1", "hard"]}),
    );
    let claimed = (world.bind("web", claimed("data", false)), world.bind("reader", claimed("data", true)));
    let inline =
        world.bind("six", with_nfs(json!({"server": "fd00::7", "path": "/six", "readOnly": true}), ""));
    let part = world.bind("part", with_nfs(json!({"server": "nas", "path": "/data"}), "deep/er"));
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static", "uid": "of-file"},
        "spec": with_nfs(json!({"server": "nas", "path": "/data"}), "")});
    std::fs::write(world.path("manifests/static.yaml"), manifest.to_string()).unwrap();
    for name in ["web", "reader", "six", "part"] {
        world.until("it is ready", |world| world.is_ready(name));
    }
    let in_static = "static-gw/app";
    world.until("the static one runs", |world| world.fake.state().container(in_static).is_some());

    let at = |pod: &Value, name: &str| {
        pod_dir(&world, pod).join("volumes/kubernetes.io~nfs").join(name).display().to_string()
    };
    assert_eq!(mounted(&world, "web/app"), (at(&claimed.0, "pv-data"), false));
    assert_eq!(mounted(&world, "reader/app"), (at(&claimed.1, "pv-data"), true));
    assert_eq!(mounted(&world, "six/app"), (at(&inline, "v"), true));
    let of_part = pod_dir(&world, &part).join("volume-subpaths/v/app/0").display().to_string();
    assert_eq!(mounted(&world, "part/app"), (of_part.clone(), false));
    assert!(data.join("deep/er").is_dir(), "it is a part of the server's");
    let static_at = world.path("root/pods/of-file/volumes/kubernetes.io~nfs/v").display().to_string();
    assert_eq!(mounted(&world, in_static), (static_at.clone(), false));

    // As the helper gets it from mount.
    let mut wanted = vec![
        format!("nas:/data {} -o rw,hard,nfsvers=4.1", at(&claimed.0, "pv-data")),
        format!("nas:/data {} -o ro,hard,nfsvers=4.1", at(&claimed.1, "pv-data")),
        format!("[fd00::7]:/six {} -o ro", at(&inline, "v")),
        format!("nas:/data {} -o rw", at(&part, "v")),
        format!("nas:/data {static_at} -o rw"),
    ];
    let mut calls = servers.calls();
    calls.sort();
    wanted.sort();
    assert_eq!(calls, wanted);
    let mut points = mount_points(&world);
    let mut all: Vec<String> =
        wanted.iter().map(|call| call.split(' ').nth(1).unwrap().to_owned()).chain([of_part]).collect();
    points.sort();
    all.sort();
    assert_eq!(points, all);
    let plugin = Path::new(&static_at).parent().unwrap().metadata().unwrap();
    assert_eq!(plugin.permissions().mode() & 0o777, 0o750);

    // Neither a container that begins again nor another agent mounts anything more.
    world.kill();
    world.start();
    world.fake.exit("web/app", 1, "Error", "");
    world.until("it began again", |world| {
        world.fake.state().running().iter().any(|container| container == "web/app#1")
    });
    assert_eq!(servers.calls().len(), wanted.len());

    std::fs::remove_file(world.path("manifests/static.yaml")).unwrap();
    for name in ["web", "reader", "six", "part"] {
        world.api.delete("pods", "default", name, None);
        world.until("it is gone", |world| world.pod(name).is_none());
    }
    world.until("the static one is gone", |world| !world.path("root/pods/of-file").exists());
    assert_eq!(mount_points(&world), Vec::<String>::new());
    world.until("no pod's directory is left", |world| {
        std::fs::read_dir(world.path("root/pods")).unwrap().count() == 0
    });
    for export in [&data, &six] {
        assert!(export.join("kept").exists(), "what is on the server stays");
    }
    let unmounts = servers.calls().iter().filter(|call| call.starts_with("umount")).count();
    assert_eq!(unmounts, 6, "by the machine's program: {:?}", servers.calls());
}

#[test]
fn what_cannot_be_mounted_keeps_its_pod_waiting_and_says_why() {
    let Some(helpers) = apart("what_cannot_be_mounted_keeps_its_pod_waiting_and_says_why") else { return };
    let servers = Servers::new(helpers);
    let data = servers.export("nas:/data");
    let world = World::on_real_time();
    let pod = world.bind("web", with_nfs(json!({"server": "nas", "path": "/data"}), ""));
    let missing = "MountVolume.SetUp failed for volume \"v\" : this machine has no NFS client, there is no /sbin/mount.nfs: \
                   install nfs-common (Debian) or nfs-utils";
    world.until("what is missing is told", |world| has_event(world, "FailedMount", missing));
    assert!(world.fake.state().running().is_empty() && mount_points(&world).is_empty());
    servers.install();
    world.until("it runs when that is there", |world| world.is_ready("web"));

    let denied = world.bind("denied", with_nfs(json!({"server": "nas", "path": "/secret"}), ""));
    let at = pod_dir(&world, &denied).join("volumes/kubernetes.io~nfs/v");
    let words = format!(
        "MountVolume.SetUp failed for volume \"v\" : mount failed: exit status 32\nMounting command: mount\n\
         Mounting arguments: -t nfs nas:/secret {}\nOutput: mount.nfs: access denied by server while mounting nas:/secret",
        at.display()
    );
    world.until("the program's words", |world| has_event(world, "FailedMount", &words));
    // Another try may be under way by now.
    world.until("its directory goes, as the kubelet's does", |_| !at.exists());
    servers.export("nas:/secret");
    world.until("it is tried again", |world| world.is_ready("denied"));

    world.bind("liar", with_nfs(json!({"server": "liar", "path": "/x"}), ""));
    let words = "mount failed: it exited successfully, and nothing is mounted";
    world.until("what only said so", |world| has_event(world, "FailedMount", words));

    // What would mean something else on the command line comes to none.
    let before = servers.calls().len();
    claim(
        &world,
        "options",
        json!({"nfs": {"server": "nas", "path": "/data"}, "mountOptions": ["hard,bind"]}),
    );
    claim(&world, "server", json!({"nfs": {"server": "-obind", "path": "/data"}}));
    for (name, spec, words) in [
        (
            "options",
            claimed("options", false),
            "volume pv-options: mountOptions \"hard,bind\": must be one option",
        ),
        (
            "server",
            claimed("server", false),
            "volume pv-server: nfs.server \"-obind\": must be a host's name",
        ),
        (
            "path",
            with_nfs(json!({"server": "nas", "path": "/data/../etc"}), ""),
            "MountVolume.SetUp failed for volume \"v\" : nfs.path \"/data/../etc\": must be an absolute path",
        ),
    ] {
        world.bind(name, spec);
        world.until("it is refused by name", |world| has_event(world, "FailedMount", words));
        assert!(!world.is_ready(name));
    }
    let liars = |call: &&String| !call.starts_with("liar:");
    assert_eq!(servers.calls()[before..].iter().filter(liars).count(), 0);

    // Somebody's own mount in a volume is not ours to take away, nor what is behind it.
    let usb = pod_dir(&world, &pod).join("volumes/kubernetes.io~nfs/v/usb");
    std::fs::create_dir(&usb).unwrap();
    let foreign = |arguments: &[&str]| {
        assert!(Command::new(arguments[0]).args(&arguments[1..]).arg(&usb).status().unwrap().success());
    };
    foreign(&["mount", "-i", "-t", "ramfs", "stick"]);
    std::fs::write(usb.join("own"), "x").unwrap();
    world.api.delete("pods", "default", "web", None);
    let words = format!("{} is still mounted; unmount it", usb.display());
    world.until("it is said", |world| has_event(world, "FailedRemove", &words));
    assert!(usb.join("own").exists() && data.join("kept").exists() && world.pod("web").is_some());
    foreign(&["umount"]);
    world.until("it is gone", |world| world.pod("web").is_none());
    assert!(data.join("kept").exists());
}

#[test]
fn a_server_that_does_not_answer_holds_up_none_but_its_own_pods() {
    let Some(helpers) = apart("a_server_that_does_not_answer_holds_up_none_but_its_own_pods") else { return };
    let servers = Servers::new(helpers);
    servers.install();
    let _data = servers.export("nas:/data");
    let world = World::on_real_time();
    let away: Vec<String> = (0..=OUTSIDE_JOBS_MAX).map(|n| format!("away{n}")).collect();
    for name in &away {
        world.bind(name, with_nfs(json!({"server": "away", "path": format!("/{name}")}), ""));
    }
    world.until("one mount hangs", |_| !servers.hanging().is_empty());
    let begun = Stopwatch::start();
    world.bind("web", with_nfs(json!({"server": "nas", "path": "/data"}), "part"));
    let path = world.path("typed");
    world.bind(
        "typed",
        with(json!({"name": "v", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}), "part"),
    );
    for name in ["web", "typed"] {
        world.until("it runs", |world| world.is_ready(name));
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    for name in &away {
        let words =
            format!("MountVolume.SetUp failed for volume \"v\" : away:/{name} does not answer within 10 s: ");
        world.until("all of them are told", |world| has_event(world, "FailedMount", &words));
    }
    assert_eq!(servers.hanging().len(), 1, "one at a time");
    // Its pod goes, and its program with it; then another one has its try.
    let hanging = servers.hanging();
    let calls = servers.calls();
    let of = calls.iter().find_map(|call| call.strip_prefix("away:/")?.split(' ').next()).unwrap();
    let begun = Stopwatch::start();
    world.api.delete("pods", "default", of, None);
    world.until("it is gone", |world| world.pod(of).is_none() && servers.hanging() != hanging);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    for name in away.iter().filter(|name| *name != of) {
        world.api.delete("pods", "default", name, None);
    }
    world.until("all are gone", |world| away.iter().all(|name| world.pod(name).is_none()));
    assert_eq!(servers.hanging(), Vec::<String>::new(), "nothing is left of them");
}

#[test]
fn a_volume_whose_server_is_away_stays_until_it_can_be_unmounted() {
    let Some(helpers) = apart("a_volume_whose_server_is_away_stays_until_it_can_be_unmounted") else {
        return;
    };
    let servers = Servers::new(helpers);
    servers.install();
    let (data, other) = (servers.export("nas:/data"), servers.export("nas2:/data"));
    let world = World::on_real_time();
    let mut spec = with_nfs(json!({"server": "nas", "path": "/data"}), "");
    spec["volumes"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"name": "w", "nfs": {"server": "nas2", "path": "/data"}}));
    let pod = world.bind("web", spec);
    world.bind("slow", with_nfs(json!({"server": "nas2", "path": "/data"}), ""));
    for name in ["web", "slow"] {
        world.until("it runs", |world| world.is_ready(name));
    }
    assert_eq!(mount_points(&world).len(), 3);

    // It answers no usual unmount; one by force goes.
    std::fs::write(servers.path("slow"), "").unwrap();
    world.api.delete("pods", "default", "slow", None);
    world.until("it is gone", |world| world.pod("slow").is_none());
    let calls = servers.calls();
    let forced = calls.iter().filter(|call| call.starts_with("umount ") && call.contains(" -f")).count();
    assert!(forced == 1 && other.join("kept").exists(), "{calls:?}");
    std::fs::remove_file(servers.path("slow")).unwrap();

    // It answers neither.
    std::fs::write(servers.path("dead"), "").unwrap();
    world.api.delete("pods", "default", "web", None);
    let at = pod_dir(&world, &pod).join("volumes/kubernetes.io~nfs/v");
    let begun = Stopwatch::start();
    world.run("app");
    assert!(begun.elapsed() < Duration::from_secs(10), "others begin meanwhile");
    let words = format!(
        "UnmountVolume.TearDown failed for volume \"v\" : unmount failed: not finished after 20 s; killed\n\
         Unmounting arguments: -f {}\nRestore the server nas, or give up unwritten data: umount -l",
        at.display()
    );
    world.until("it is said", |world| has_event(world, "FailedRemove", &words));
    assert!(world.pod("web").is_some() && at.exists() && servers.hanging().len() <= 1);

    // The agent is killed, and the pod forgotten by everybody else.
    world.kill();
    world.api.delete("pods", "default", "web", Some(0));
    assert!(world.pod("web").is_none());
    assert!(mount_points(&world).iter().any(|point| Path::new(point) == at));
    let begun = Stopwatch::start();
    world.start();
    world.run("after");
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "nobody waits for what is left: {:?}",
        begun.elapsed()
    );
    std::fs::remove_file(servers.path("dead")).unwrap();
    world.until("what is left goes", |world| !pod_dir(world, &pod).exists());
    assert_eq!(mount_points(&world), Vec::<String>::new());
    assert!(data.join("kept").exists() && other.join("kept").exists());
}
