//! An image made by the test, and a registry on loopback that serves it: HTTP/1.1 on plain threads, with Basic logins.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Runs until SIGTERM in a container of such an image.
pub const STAYS: &str =
    "[/bin/busybox, sh, -c, 'trap \"exit 0\" TERM; while :; do /bin/busybox sleep 0.2; done']";

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// Manifests and configurations are shorter.
const HELD_BYTES_MIN: usize = 1 << 20;
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// busybox with a file `/etc/mark` that makes it another image than any before.
#[derive(Clone)]
pub struct TestImage {
    pub config: Vec<u8>,
    pub layer: Vec<u8>,
    pub manifest: Vec<u8>,
}

impl TestImage {
    /// Made in `dir`, which is left empty.
    pub fn new(dir: &Path, mark: &str, architecture: &str) -> Self {
        let (root, tar) = (dir.join("rootfs"), dir.join("layer.tar"));
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        let which = Command::new("sh").args(["-c", "command -v busybox"]).output().unwrap().stdout;
        fs::copy(String::from_utf8(which).unwrap().trim(), root.join("bin/busybox"))
            .expect("busybox-static is there");
        fs::write(root.join("etc/mark"), mark).unwrap();
        pack(&root, &tar);
        let layer = fs::read(&tar).unwrap();
        fs::remove_dir_all(root).unwrap();
        fs::remove_file(tar).unwrap();
        Self::of(architecture, &digest(&layer), LAYER, layer)
    }

    /// The same with a file of `content` more, and zstd's layer, whose window is as large as smolet has memory for all layers'.
    pub fn of_zstd(dir: &Path, architecture: &str, content: &[u8]) -> Self {
        let root = dir.join("rootfs");
        fs::create_dir_all(root.join("data")).unwrap();
        fs::write(root.join("data/content"), content).unwrap();
        let image = Self::new(dir, "zstd", architecture);
        let tar = dir.join("layer.tar");
        fs::write(&tar, &image.layer).unwrap();
        let packed = Command::new("zstd").args(["-q", "-c", "-1", "--long=23"]).arg(&tar).output();
        fs::remove_file(tar).unwrap();
        Self::of(architecture, &digest(&image.layer), LAYER_ZSTD, packed.expect("zstd is there").stdout)
    }

    /// Of one layer, with the digest of its archive.
    fn of(architecture: &str, diff_id: &str, kind: &str, layer: Vec<u8>) -> Self {
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {"Cmd": ["/bin/busybox"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        });
        let config = config.to_string().into_bytes();
        let blob = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()});
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": blob(CONFIG, &config),
            "layers": [blob(kind, &layer)]});
        Self { manifest: manifest.to_string().into_bytes(), config, layer }
    }

    /// What it refers to in an index.
    pub fn descriptor(&self) -> Value {
        json!({"mediaType": MANIFEST, "digest": digest(&self.manifest), "size": self.manifest.len()})
    }

    /// All its blobs.
    pub fn blobs(&self) -> [&[u8]; 3] {
        [&self.config, &self.layer, &self.manifest]
    }
}

/// The machine's architecture as images name it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A tar of what is in a directory.
pub fn pack(dir: &Path, tar: &Path) {
    let status = Command::new("tar")
        .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-C"])
        .arg(dir)
        .arg("-cf")
        .arg(tar)
        .arg(".")
        .status();
    assert!(status.expect("tar can be run").success());
}

/// `user:password` as Basic writes it.
pub fn basic(login: &str) -> String {
    let encoded = serde_json::to_value(k8s_openapi::ByteString(login.as_bytes().to_vec())).unwrap();
    format!("Basic {}", encoded.as_str().unwrap())
}

/// Serves until dropped. Repositories that begin with `private/` want the login.
pub struct Registry {
    pub address: SocketAddr,
    served: Arc<Served>,
    thread: Option<JoinHandle<()>>,
}

struct Served {
    /// Content type and bytes by path.
    files: BTreeMap<String, (&'static str, Vec<u8>)>,
    /// The header that opens what is private.
    login: String,
    /// Path and login of each request.
    seen: Mutex<Vec<(String, String)>>,
    /// What is longer than [`HELD_BYTES_MIN`] stops in its middle for so long.
    holds: AtomicBool,
    ends: AtomicBool,
}

impl Registry {
    /// The image as tag 1 of these repositories.
    pub fn start(image: &TestImage, repositories: &[&str], login: &str) -> Self {
        let mut files = BTreeMap::from([("/v2/".to_owned(), ("application/json", b"{}".to_vec()))]);
        for repository in repositories {
            for name in ["1", &digest(&image.manifest)] {
                files
                    .insert(format!("/v2/{repository}/manifests/{name}"), (MANIFEST, image.manifest.clone()));
            }
            for blob in image.blobs() {
                let path = format!("/v2/{repository}/blobs/{}", digest(blob));
                files.insert(path, ("application/octet-stream", blob.to_vec()));
            }
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().unwrap();
        let (seen, holds, ends) = Default::default();
        let served = Arc::new(Served { files, login: basic(login), seen, holds, ends });
        let shared = served.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let shared = shared.clone();
                // Each ends with its connection, which containerd closes, or with ours below.
                std::thread::spawn(move || stream.map(|stream| shared.serve(&stream)));
            }
        });
        Self { address, served, thread: Some(thread) }
    }

    /// Layers stop in their middle until this is taken back.
    pub fn hold(&self, holds: bool) {
        self.served.holds.store(holds, Ordering::SeqCst);
    }

    /// Path and login of each request so far.
    pub fn seen(&self) -> Vec<(String, String)> {
        self.served.seen.lock().unwrap().clone()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.served.ends.store(true, Ordering::SeqCst);
        // Wakes it.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Served {
    /// One request: the connection is closed behind its answer.
    fn serve(&self, mut stream: &TcpStream) {
        // containerd 2 tries TLS first, on loopback too, and goes by a plain answer to its greeting.
        let mut greeting = [0; 16 << 10];
        if stream.peek(&mut greeting).is_ok_and(|count| count > 0 && greeting[0] == 0x16) {
            let _ = stream.read(&mut greeting);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            return;
        }
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let Some(request) = lines.next() else { return };
        let mut login = String::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("authorization")
            {
                value.trim().clone_into(&mut login);
            }
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = path.split('?').next().unwrap_or_default();
        self.seen.lock().unwrap().push((path.to_owned(), login.clone()));
        // As registries do: whoever asks what this is, as CRI-O does, learns that there are logins.
        let is_private = |path: &str| path.starts_with("/v2/private/");
        let asks = is_private(path) || path == "/v2/" && self.files.keys().any(|file| is_private(file));
        let unauthorized = asks && login != self.login;
        let (status, kind, body): (_, _, &[u8]) = if unauthorized {
            ("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"test\"", "application/json", b"{}")
        } else {
            match self.files.get(path) {
                Some((kind, body)) => ("200 OK", *kind, body),
                None => ("404 Not Found", "application/json", b"{}"),
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {}\r\n\
             Connection: close\r\n\r\n",
            body.len(),
            digest(body)
        );
        let body = if method == "HEAD" { &[][..] } else { body };
        let is_on = |what: &AtomicBool| what.load(Ordering::SeqCst);
        let is_held = body.len() > HELD_BYTES_MIN && is_on(&self.holds);
        let (first, rest) = body.split_at(if is_held { body.len() / 2 } else { body.len() });
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(first)).is_ok() {
            while is_held && is_on(&self.holds) && !is_on(&self.ends) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = stream.write_all(rest);
        }
        let _ = stream.shutdown(Shutdown::Write);
    }
}
