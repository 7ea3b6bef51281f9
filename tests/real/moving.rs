//! A node moves to the embedded runtime (`--drain-runtime`): its pods end in the runtime that it leaves, with all that they had there, and
//! run in the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::agent::{Agent, PATIENCE, is_ready, is_release, smolet, text};
use crate::finding::{Finding, settle};
use crate::registry::{Registry, STAYS, TestImage, architecture};
use crate::runtime::{Runtime, is_embedded, wait_for};

/// The container says that it was started.
fn pod(name: &str, settings: &str) -> String {
    format!(
        "
  terminationGracePeriodSeconds: 2
  {settings}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo started >/out/{name}; exec forever']
    volumeMounts: [{{name: out, mountPath: /out}}]
  volumes: [{{name: out, hostPath: {{path: $OUT}}}}]
"
    )
}

/// What a node of 10 pods has resident that is its own runtime.
const NODE_RESIDENT_KIB_MAX: u64 = 6 * 1024 + 512;
/// What the start leaves to be done is done when nothing was written for that long.
const SETTLE: Duration = Duration::from_secs(15);

/// The same while layers arrive whose windows take all of the 8 MiB that there are for them (docs/promises.md).
const RESIDENT_KIB_MAX: u64 = 18 * 1024;
/// Pods whose images come from a registry, and what their layer is made of.
const PULLED: [&str; 2] = ["pulled", "pulled-too"];
const CONTENT_BYTES: usize = 32 << 20;

const PODS: [(&str, &str); 3] =
    [("web", "hostNetwork: false"), ("shared", "shareProcessNamespace: true"), ("host", "hostNetwork: true")];

/// Of the processes: each with its command line, whose words end with NUL.
fn processes() -> Vec<(String, String)> {
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    // One that has ended meanwhile has none.
    pids.map(|pid| (fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default(), pid))
        .map(|(line, pid)| (pid, String::from_utf8_lossy(&line).into_owned()))
        .collect()
}

/// Monitors of the embedded runtime with that directory.
fn monitors(dir: &Path) -> Vec<String> {
    let dir = format!("\0{}/", dir.display());
    let is_one = |line: &String| line.contains("\0monitor\0") && line.contains(&dir);
    processes().into_iter().map(|(_, line)| line).filter(is_one).collect()
}

/// What stays with a pod: shims of this containerd, or monitors.
fn attendants(runtime: &Runtime) -> Vec<String> {
    if is_embedded() {
        return monitors(&runtime.dir().join("runtime"));
    }
    let socket = format!("\0{}\0", runtime.cri.socket().display());
    let is_one = |line: &String| line.contains("containerd-shim") && line.contains(&socket);
    processes().into_iter().map(|(_, line)| line).filter(is_one).collect()
}

/// Mounts below these directories, of network namespaces too.
fn mounts(dirs: &[&Path]) -> Vec<String> {
    let all = fs::read_to_string("/proc/self/mountinfo").expect("/proc");
    let point = |line: &str| line.split(' ').nth(4).map(PathBuf::from).expect("a mount point");
    let is_below = |line: &&str| dirs.iter().any(|dir| point(line).starts_with(dir));
    all.lines().filter(is_below).map(str::to_owned).collect()
}

/// Processes in cgroups of these sandboxes and containers.
fn in_cgroups(ids: &[String]) -> Vec<String> {
    let is_in = |pid: &str| {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        ids.iter().any(|id| cgroups.contains(&**id))
    };
    processes().into_iter().filter(|(pid, _)| is_in(pid)).map(|(_, line)| line).collect()
}

/// Addresses that are held for these sandboxes, and their rules.
fn network_of(runtime: &Runtime, sandboxes: &[String]) -> Vec<String> {
    let is_one = |text: &str| sandboxes.iter().any(|id| text.contains(&**id));
    let networks = fs::read_dir(runtime.dir().join("cni/ipam")).expect("the network's directory").flatten();
    let leases = networks.flat_map(|network| fs::read_dir(network.path()).into_iter().flatten().flatten());
    let leases = leases.map(|lease| format!("{}: {}", lease.path().display(), text(&lease.path())));
    let rules = Command::new("iptables").args(["-w", "-t", "nat", "-S"]).output().expect("iptables");
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    leases.chain(rules.lines().map(str::to_owned)).filter(|line| is_one(line)).collect()
}

pub fn pods_end_in_the_runtime_that_a_node_leaves_and_run_embedded(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "moving");
    for (name, settings) in PODS {
        agent.apply_pod(name, &pod(name, settings));
    }
    for (name, _) in PODS {
        agent.running(name);
        agent.wait_out(name);
        fs::remove_file(agent.out().join(name)).expect("it was written");
    }
    let mut ids: Vec<String> = runtime.sandboxes().iter().map(|sandbox| sandbox.id.to_string()).collect();
    ids.extend(runtime.containers().iter().map(|container| container.id.to_string()));
    assert_eq!(ids.len(), 2 * PODS.len());
    let own: Vec<_> = ["state", "root", "runtime"].map(|name| runtime.dir().join(name)).into();
    let own: Vec<&Path> = own.iter().map(|path| &**path).collect();
    assert!(mounts(&own).iter().filter(|mount| mount.contains(" net:[")).count() >= 2, "{:?}", mounts(&own));
    for had in [attendants(runtime), network_of(runtime, &ids), in_cgroups(&ids)] {
        assert!(had.len() >= 2, "{had:?}");
    }
    let foreign = runtime.run_foreign_sandbox("stranger");
    agent.stop();

    // An image is taken along, as the documentation says.
    fs::create_dir_all(agent.dir.join("root/images")).expect("the directory of archives");
    let archive = agent.dir.join("root/images/busybox.tar");
    if is_embedded() {
        fs::copy(runtime.dir().join("root/images/test_images.tar"), &archive).expect("the tests' images");
    } else {
        let archive = archive.display().to_string();
        runtime.ctr(&["images", "export", &archive, "smolet.test/busybox:1"]);
    }
    let network = runtime.dir().join("cni/conf");
    agent.endpoint = "embedded".to_owned();
    agent.arguments =
        ["--drain-runtime".into(), runtime.endpoint().into(), "--cni-conf-dir".into(), network.into()].into();
    agent.start();
    let begun = std::time::Instant::now();
    for (name, _) in PODS {
        agent.running(name);
    }
    println!("the pods run embedded after {:.1} s", begun.elapsed().as_secs_f64());

    assert_eq!(text(&agent.dir.join("root/runtime-kind")), "embedded\n");
    let log = agent.log();
    assert!(log.contains(": 3 pods ended and removed; 1 pods of others stay"), "{log}");
    assert_eq!(runtime.ready_sandbox("stranger").id, foreign);
    runtime.stop_sandbox(&foreign);
    runtime.remove_sandbox(&foreign);
    runtime.assert_empty();
    wait_for("nothing is left in the runtime that the node left", PATIENCE, || {
        let left = [attendants(runtime), mounts(&own), network_of(runtime, &ids), in_cgroups(&ids)].concat();
        left.is_empty().then_some(())
    });

    // They run here.
    let run_dir = agent.dir.join("runtime");
    assert!(monitors(&run_dir).len() >= PODS.len(), "{:?}", monitors(&run_dir));
    for (name, _) in PODS {
        assert_eq!(agent.wait_out(name), "started\n");
    }
    let socket = agent.socket().display().to_string();
    let words = ["exec", "--socket", &socket, "web", "--", "cat", "/etc/version"];
    let said = smolet().args(words).output().expect("smolet can be run");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "1\n", "{said:?}");

    let further: Vec<String> = (PODS.len()..10).map(|number| format!("further-{number}")).collect();
    further.iter().for_each(|name| agent.apply_pod(name, &pod(name, "hostNetwork: false")));
    further.iter().for_each(|name| drop(agent.running(name)));
    // A process through which no import has passed.
    agent.stop();
    agent.start();
    wait_for("all pods are known again", PATIENCE, || {
        let ready = agent.pods().iter().filter(|pod| pod.status.as_ref().is_some_and(is_ready)).count();
        (ready == PODS.len() + further.len()).then_some(())
    });
    settle(agent.pid(), SETTLE);
    let resident_kib = Finding::of(agent.pid()).resident_kib;
    println!("with 10 pods, as their runtime too: {resident_kib} KiB resident");
    // A debug build is another program.
    assert!(!is_release() || resident_kib <= NODE_RESIDENT_KIB_MAX, "{resident_kib} KiB");
    large_layers_are_pulled(&agent);

    let names = || PODS.iter().map(|(name, _)| *name).chain(further.iter().map(String::as_str)).chain(PULLED);
    names().for_each(|name| agent.delete(name));
    wait_for("the pods have ended", PATIENCE, || {
        let log_dirs = names().any(|name| agent.log_dir(name).is_some());
        (agent.pods().is_empty() && !log_dirs).then_some(())
    });
    agent.stop();
    wait_for("nothing is left of them", PATIENCE, || {
        (monitors(&run_dir).is_empty() && mounts(&[&agent.dir]).is_empty()).then_some(())
    });
}

/// `bytes` that zstd makes no smaller: xorshift64.
fn noise(mut seed: u64, bytes: usize) -> Vec<u8> {
    let word = |_| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    (0..bytes / 8).flat_map(word).collect()
}

/// Each of these layers needs all the memory that layers have together: how far one is can be seen, and the whole agent, with what it
/// knows of 10 pods, keeps to its promise.
fn large_layers_are_pulled(agent: &Agent) {
    let serve = |(number, name): (usize, &'static str)| {
        let image = TestImage::of_zstd(&agent.dir, architecture(), &noise(number as u64 + 1, CONTENT_BYTES));
        let registry = Registry::start(&image, &[name], "");
        registry.hold(true);
        let spec = format!(
            "\n  terminationGracePeriodSeconds: 2\n  containers:\n  - {{name: app, image: '{}/{name}:1', command: {STAYS}}}",
            registry.address
        );
        agent.apply_pod(name, &spec);
        let megabytes = |bytes: usize| format!("{}.{}", bytes / 1_000_000, bytes % 1_000_000 / 100_000);
        // The first one holds the memory.
        let received = if number == 0 { image.layer.len() / 2 } else { 0 };
        let [received, all] = [received, image.layer.len()].map(megabytes);
        let shown = format!("/{name}:1: {received} of {all} MB, 0 of 1 layers");
        wait_for(&shown, PATIENCE, || {
            let described = agent.ask(&["describe", &agent.full(name)]);
            String::from_utf8_lossy(&described.stdout).contains(&shown).then_some(())
        });
        registry
    };
    let served: Vec<Registry> = PULLED.into_iter().enumerate().map(serve).collect();
    served.iter().for_each(|registry| registry.hold(false));
    PULLED.iter().for_each(|name| drop(agent.running(name)));
    let resident_kib_max = Finding::of(agent.pid()).resident_kib_max;
    println!("at most, pulling layers of zstd: {resident_kib_max} KiB resident");
    assert!(!is_release() || resident_kib_max <= RESIDENT_KIB_MAX, "{resident_kib_max} KiB");
}
