//! examples/gateway: the manifests as they are, with stand-ins for their images (tests/env/stand-ins), all in one agent.
//!
//! What the manifests name of the node is there: an empty /srv, which nobody else sees, and, a little later, a serial
//! adapter with a meter behind it. The stand-ins look at what they are given and say what they find; ports, files and logs are looked at here.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::agent::{Agent, PATIENCE, WATCHED, bridge_address, container, id_of, ip_of, is_release, text};
use crate::finding::Finding;
use crate::runtime::{Kind, Runtime, alone, http_get, wait_for};

/// What ten pods may cost; docs/promises.md promises it.
const RESIDENT_KIB_MAX: u64 = 5 * 1024 + 256;

/// A pod's name and what is to be seen of it.
type Step = (&'static str, fn(&Agent));

pub fn ten_manifests_of_a_gateway_run_unchanged(runtime: &Runtime) {
    runtime.import_gateway_images();
    let _ports_and_adapter = alone("examples");
    let _srv = prepared_srv();
    for address in ["127.0.0.1:9090", "127.0.0.1:9100"] {
        let free = TcpListener::bind(address);
        assert!(free.is_ok(), "{address}, which an example listens on, is taken: {free:?}");
    }
    let mut agent = Agent::new(runtime, "gateway");
    agent.config = WATCHED.into();
    // As it is shipped.
    agent.log_level = "info";
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gateway");
    let files: Vec<PathBuf> = fs::read_dir(manifests)
        .expect("the examples")
        .map(|entry| entry.expect("an example").path())
        .collect();
    assert_eq!(files.len(), 10);
    for file in &files {
        let copy = agent.manifests().join(file.file_name().expect("a name"));
        fs::write(&copy, example(file)).expect("copied");
        fs::set_permissions(copy, Permissions::from_mode(0o600)).expect("as the examples ask for");
    }
    let at = Instant::now();
    agent.start();

    // The pod waits for it, and looks again after some seconds.
    wait_for("the pod without its adapter says so", PATIENCE, || {
        let missing =
            format!("hostPath type check failed: {}/{} does not exist", Adapter::DIR, Adapter::NAME);
        described(&agent, "modbus-reader").contains(&missing).then_some(())
    });
    let adapter = Adapter::plug_in();

    let steps: [Step; 9] = [
        ("mqtt-broker", broker),
        ("node-exporter", node_exporter),
        ("log-shipper", log_shipper),
        ("readings-db", readings_db),
        ("dashboard", dashboard),
        ("collector", collector),
        ("prometheus", prometheus),
        ("node-red", node_red),
        ("fetch-model", fetch_model),
    ];
    let done = |name: &str| {
        println!("  {name} is as it should be {:.1} s after the start", at.elapsed().as_secs_f64())
    };
    for (name, step) in steps {
        step(&agent);
        done(name);
    }
    modbus_reader(&agent, &adapter);
    done("modbus-reader");

    let log = agent.log();
    assert!(!log.contains("change-me") && !log.contains("$7$"), "no value of a Secret is logged");
    let finding = Finding::of(agent.pid());
    println!("  {} KiB resident, {} of them anonymous", finding.resident_kib, finding.anonymous_kib);
    // A debug build is another program.
    if is_release() {
        // The promise is for containerd. With CRI-O's events it runs some of what is next to what it never runs.
        let more = if Kind::chosen() == Kind::CriO { 512 } else { 0 };
        assert!(finding.resident_kib <= RESIDENT_KIB_MAX + more, "{finding:?}");
    }
    // Its last words come after its manifest has gone, and its directory goes with it.
    let mut shipped = File::open(log_file(&agent, "log-shipper", "fluent-bit", 0)).expect("a log");
    agent.end_pods();
    let mut words = String::new();
    shipped.read_to_string(&mut words).expect("read");
    assert!(words.contains("{\"event\": \"stopped\"}"), "the sidecar outlives the program: {words}");
    assert!(!words.contains("too early"), "it is asked to end when the program has ended: {words}");
    println!("  all gone {:.1} s after the start", at.elapsed().as_secs_f64());
}

/// Only containerd takes a stand-in for an image with a digest, which others verify: there the tag is the image's name.
fn example(file: &Path) -> String {
    const DIGITS: usize = 64;
    let text = text(file);
    match text.split_once("@sha256:").filter(|_| Kind::chosen() != Kind::Containerd) {
        Some((before, after)) => format!("{before}{}", &after[DIGITS..]),
        None => text,
    }
}

fn broker(agent: &Agent) {
    let pod = agent.running("mqtt-broker");
    says(agent, "mqtt-broker", "mosquitto", 0, "listens on 1883");
    for words in
        ["runs as 1883:1883, groups 1883", "password file: mode 440, owner 0:1883", "the store is new"]
    {
        says(agent, "mqtt-broker", "mosquitto", 0, words);
    }
    let data = fs::metadata("/srv/mosquitto").expect("DirectoryOrCreate made it");
    assert_eq!((data.uid(), data.gid(), data.mode() & 0o7777), (1883, 1883, 0o755));
    // Both ways in, by the pod's port and the node's.
    for address in [ip_of(&pod), bridge_address(&ip_of(&pod))] {
        let address = format!("{address}:1883");
        assert_eq!(mqtt_connect(&address, "collector"), [0x20, 2, 0, 0], "{address}: accepted");
        assert_eq!(mqtt_connect(&address, "stranger"), [0x20, 2, 0, 5], "{address}: not authorized");
    }
}

/// What the broker answers to a CONNECT of that user.
fn mqtt_connect(address: &str, user: &str) -> Vec<u8> {
    let mut body = b"\x00\x04MQTT\x04\xc2\x00\x0a".to_vec();
    for text in ["test", user, "change-me"] {
        body.extend([0, u8::try_from(text.len()).expect("short")]);
        body.extend(text.bytes());
    }
    let mut packet = vec![0x10, u8::try_from(body.len()).expect("short")];
    packet.extend(body);
    let connect = || TcpStream::connect(address).ok();
    let mut stream = wait_for(&format!("{address} can be connected to"), PATIENCE, connect);
    stream.set_read_timeout(Some(Duration::from_secs(PATIENCE))).expect("set");
    stream.write_all(&packet).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    answer
}

fn node_exporter(agent: &Agent) {
    let pod = agent.running("node-exporter");
    assert_eq!(
        Some(ip_of(&pod)),
        pod.status.as_ref().and_then(|status| status.host_ip.clone()),
        "the node's network"
    );
    let metrics = http_get("127.0.0.1:9100", "/metrics");
    assert!(metrics.contains("node_uid 65534\n") && metrics.contains("node_uptime_seconds "), "{metrics}");
    let us = format!("node_process{{pid=\"{}\"}} 1\n", agent.pid());
    assert!(metrics.contains(&us), "it sees the node's processes: {us} in {metrics}");

    // What comes to the node's mounts later comes to the container's.
    let pid = metrics
        .lines()
        .find_map(|line| line.strip_prefix("node_pid "))
        .expect("its PID, as the node knows it");
    let mounts = || text(&Path::new("/proc").join(pid).join("mountinfo"));
    let root =
        mounts().lines().find(|line| line.split(' ').nth(4) == Some("/host")).expect("mounted").to_owned();
    assert!(root.split(' ').nth(5).is_some_and(|options| options.starts_with("ro")), "{root}");
    let later = Mounted::tmpfs(&agent.dir.join("later"));
    let path = format!(" /host{} ", later.0.display());
    wait_for("the new mount is seen in the container", PATIENCE, || mounts().contains(&path).then_some(()));
}

fn modbus_reader(agent: &Agent, adapter: &Adapter) {
    let pod = agent.running("modbus-reader");
    says(agent, "modbus-reader", "mbmd", 0, "runs as 65534:65534, groups 65534 20");
    says(agent, "modbus-reader", "mbmd", 0, "device 1 at 9600 baud answers 010404436633335afa");
    let page = http_get(&format!("{}:8080", ip_of(&pod)), "/api/last");
    assert!(page.contains("010404436633335afa"), "{page}");
    assert_eq!(adapter.questions.load(Ordering::Relaxed), 1, "the meter was asked");
}

fn log_shipper(agent: &Agent) {
    agent.running("log-shipper");
    says(agent, "log-shipper", "fluent-bit", 0, "ships /var/log/app/counter.log");
    says(agent, "log-shipper", "fluent-bit", 0, "{\"event\": \"counted\", \"n\": 1}");
    says(agent, "log-shipper", "fluent-bit", 0, "{\"event\": \"counted\", \"n\": 2}");
    let started = |name: &str| {
        let of = agent.runtime.running_container(&agent.full("log-shipper"), name);
        agent.runtime.container_status(&of.id).started_at
    };
    assert!(started("fluent-bit") < started("counter"), "the sidecar is started first");
}

fn readings_db(agent: &Agent) {
    let served = |pod: &Pod| {
        let page = http_get(&format!("{}:8001", ip_of(pod)), "/readings.db");
        page.split_once("\r\n\r\n").expect("a body").1.to_owned()
    };
    let pod = agent.running("readings-db");
    for step in ["schema 1", "schema 2"] {
        says(agent, "readings-db", "migrate", 0, step);
    }
    let database = served(&pod);
    let versions: Vec<&str> =
        database.lines().filter(|line| line.starts_with("PRAGMA user_version = ")).collect();
    assert_eq!(versions, ["PRAGMA user_version = 1;", "PRAGMA user_version = 2;"]);

    // Taken away and put back: the database stays, and nothing is done twice.
    let aside = agent.dir.join("readings-db.yaml");
    fs::rename(agent.manifest("readings-db"), &aside).expect("moved");
    agent.wait_gone("readings-db");
    fs::rename(aside, agent.manifest("readings-db")).expect("moved back");
    let pod = agent.running("readings-db");
    assert_eq!(served(&pod), database);
    let log = text(&log_file(agent, "readings-db", "migrate", 0));
    assert!(!log.contains("schema"), "{log}");
}

fn node_red(agent: &Agent) {
    let pod = agent.wait_pod("node-red", "running again", |status| {
        container(status, "node-red").is_some_and(|container| container.restart_count == 1 && container.ready)
    });
    let status = container(pod.status.as_ref().expect("a status"), "node-red").expect("its status");
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref()).expect("how it ended");
    assert_eq!((last.reason.as_deref(), last.exit_code), (Some("OOMKilled"), 137), "{last:?}");
    says(agent, "node-red", "node-red", 1, "start 2 with --max-old-space-size=192");
    let page = http_get(&format!("{}:1880", bridge_address(&ip_of(&pod))), "/starts");
    assert!(page.ends_with("start\nstart\n"), "its data has stayed: {page}");
    let described = described(agent, "node-red");
    assert!(described.contains("OOMKilled"), "{described}");
}

fn dashboard(agent: &Agent) {
    let pod = agent.running("dashboard");
    let host =
        pod.status.as_ref().and_then(|status| status.host_ip.clone()).expect("the node has an address");
    says(agent, "dashboard", "nginx", 0, &format!("proxies to http://{host}:1880/"));
    // "Bearer " and the token.
    says(agent, "dashboard", "nginx", 0, "Authorization: 16 characters");
    let log = text(&log_file(agent, "dashboard", "nginx", 0));
    // CAP_CHOWN, SETGID, SETUID and NET_BIND_SERVICE.
    for words in ["CapBnd:\t00000000000004c1", "CapEff:\t00000000000004c1", "NoNewPrivs:\t1"] {
        assert!(log.contains(words), "{words} in {log}");
    }
    for path in ["/etc/nginx/conf.d", "/var/cache/nginx", "/run", "/tmp"] {
        let line = log.lines().find(|line| line.contains(&format!(" tmpfs {path} tmpfs ")));
        assert!(line.is_some_and(|line| line.contains("size=16384k")), "{path}: {log}");
    }
    let address = format!("{}:8080", bridge_address(&ip_of(&pod)));
    assert!(http_get(&address, "/").contains("<h1>Gateway</h1>"));
    assert!(http_get(&address, "/about/pod").ends_with(&agent.full("dashboard")));
    assert!(http_get(&address, "/about/labels").contains("site=\"hall-3\""));
}

fn collector(agent: &Agent) {
    let pod = agent.running("collector");
    let host =
        pod.status.as_ref().and_then(|status| status.host_ip.clone()).expect("the node has an address");
    let wanted = [
        &format!("on gateway at {} of {host}, GOMEMLIMIT=134217728 GOMAXPROCS=1", ip_of(&pod)),
        "resolvers: search plant.example;nameserver 192.168.1.1;nameserver 9.9.9.9;options ndots:1 timeout:2;",
        // The broker of the first example knows it.
        &format!("tcp://{host}:1883 answers 20020000"),
    ];
    for words in wanted {
        says(agent, "collector", "telegraf", 0, words);
    }
    assert!(text(Path::new("/srv/mosquitto/mosquitto.db")).contains("telegraf"));
}

fn fetch_model(agent: &Agent) {
    let pod =
        agent.wait_pod("fetch-model", "succeeded", |status| status.phase.as_deref() == Some("Succeeded"));
    let status = container(pod.status.as_ref().expect("a status"), "curl").expect("its status");
    assert_eq!(status.restart_count, 1, "the first attempt failed");
    assert_eq!(text(Path::new("/srv/models/anomaly-3.onnx")), "the first half, the second half\n");
}

fn prometheus(agent: &Agent) {
    let before = agent.running("prometheus");
    let config = || http_get("127.0.0.1:9090", "/api/v1/status/config");
    assert!(config().contains("scrape_interval: 30s"));
    let manifest = text(&agent.manifest("prometheus"));
    agent.apply("prometheus", &manifest.replace("scrape_interval: 30s", "scrape_interval: 10s"));
    wait_for("the new configuration is in force", PATIENCE, || {
        config().contains("scrape_interval: 10s").then_some(())
    });
    says(agent, "prometheus", "reloader", 0, "reloaded");
    let after = agent.running("prometheus");
    for name in ["prometheus", "reloader"] {
        assert_eq!(id_of(&after, name), id_of(&before, name), "nothing was started again");
    }
}

/// The log of a container's n-th start.
fn log_file(agent: &Agent, pod: &str, container: &str, n: u32) -> PathBuf {
    let dir = agent.log_dir(pod).unwrap_or_else(|| panic!("{pod} has a log directory"));
    dir.join(format!("{container}/{n}.log"))
}

/// Waits for a line in a container's log that ends in these words.
fn says(agent: &Agent, pod: &str, container: &str, n: u32, words: &str) {
    wait_for(&format!("{container} of {pod} says {words:?}"), PATIENCE, || {
        let log = fs::read_to_string(log_file(agent, pod, container, n)).unwrap_or_default();
        log.lines().any(|line| line.ends_with(words)).then_some(())
    });
}

/// `smolet describe`.
fn described(agent: &Agent, pod: &str) -> String {
    String::from_utf8_lossy(&agent.ask(&["describe", &agent.full(pod)]).stdout).into_owned()
}

/// An empty /srv, but for what a manifest asks of the owner.
fn prepared_srv() -> Mounted {
    let srv = Mounted::tmpfs(Path::new("/srv"));
    fs::create_dir("/srv/node-red").expect("made");
    chown("/srv/node-red", Some(1000), Some(1000)).expect("made over");
    srv
}

/// A tmpfs until it is dropped; for this program and its children alone.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(path: &Path) -> Self {
        fs::create_dir_all(path).expect("a place for it");
        mount("tmpfs", path, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, None).expect("mounted");
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A serial adapter under the name that the manifest has for it, and a meter behind it: a pseudo-terminal.
struct Adapter {
    /// How often the meter was asked.
    questions: Arc<AtomicU32>,
    unplugged: Arc<AtomicBool>,
    meter: Option<JoinHandle<()>>,
}

impl Adapter {
    const DIR: &str = "/dev/serial/by-id";
    const NAME: &str = "usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0";
    /// Modbus: device 1, input registers, two from the first; and 230.2 as the answer.
    const QUESTION: [u8; 8] = [1, 4, 0, 0, 0, 2, 0x71, 0xcb];
    const ANSWER: [u8; 9] = [1, 4, 4, 0x43, 0x66, 0x33, 0x33, 0x5a, 0xfa];

    fn plug_in() -> Self {
        let line = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a pseudo-terminal");
        grantpt(&line).expect("granted");
        unlockpt(&line).expect("unlocked");
        let device = ptsname(&line, Vec::new()).expect("its name");
        let device = Path::new(std::ffi::OsStr::from_bytes(device.as_bytes())).to_owned();
        // As udev makes serial adapters: root's and dialout's.
        chown(&device, Some(0), Some(20)).expect("made over");
        fs::set_permissions(&device, Permissions::from_mode(0o660)).expect("a mode");
        fs::create_dir_all(Self::DIR).expect("made");
        let link = Path::new(Self::DIR).join(Self::NAME);
        // One that a killed run has left.
        let _ = fs::remove_file(&link);
        symlink(&device, link).expect("linked");

        let (questions, unplugged) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (asked, end) = (questions.clone(), unplugged.clone());
        // While one end is open here, a reader that leaves does not hang up the line.
        let other_end =
            open(&device, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("opened");
        let meter = thread::spawn(move || {
            let mut line = File::from(line);
            let mut heard = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let mut ready = [PollFd::new(&line, PollFlags::IN)];
                if poll(&mut ready, Some(&tick)).expect("polled") == 0 {
                    continue;
                }
                let mut bytes = [0; 64];
                let count = line.read(&mut bytes).expect("read");
                heard.extend_from_slice(&bytes[..count]);
                if heard.ends_with(&Self::QUESTION) {
                    heard.clear();
                    asked.fetch_add(1, Ordering::Relaxed);
                    line.write_all(&Self::ANSWER).expect("answered");
                }
            }
            drop(other_end);
        });
        Self { questions, unplugged, meter: Some(meter) }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.unplugged.store(true, Ordering::Relaxed);
        let _ = self.meter.take().map(JoinHandle::join);
        let _ = fs::remove_file(Path::new(Self::DIR).join(Self::NAME));
        // Gone unless they hold other adapters.
        let _ = fs::remove_dir(Self::DIR);
        let _ = fs::remove_dir("/dev/serial");
    }
}
