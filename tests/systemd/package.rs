//! The Debian package (dist/): what is in it, installing it into a root of its own, and the service as it is installed, in a
//! systemd's world over whose /usr and /etc the package's files are laid; there OpenRC's script too. `SMOLET_PACKAGE` names the
//! package; `make systemd` builds it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

pub fn package() -> PathBuf {
    std::env::var_os("SMOLET_PACKAGE")
        .expect("SMOLET_PACKAGE names a package; make systemd builds one")
        .into()
}

/// Another package of the same program and version, by the end of its name.
pub fn beside_package(end: &str) -> PathBuf {
    let package = package();
    let name = package.file_name().unwrap().to_str().unwrap().strip_suffix("_amd64.deb").unwrap().to_owned();
    package.with_file_name(name + end)
}

/// The program that is tested elsewhere, of which the package is made.
pub fn tested_program() -> PathBuf {
    std::env::var_os("SMOLET_BIN")
        .expect("SMOLET_BIN names the release binary; make systemd builds it")
        .into()
}

/// A root that has nothing but what a package needs to be installed, and the package; gone when dropped.
pub struct Root(pub PathBuf);

impl Root {
    pub fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&root);
        for directory in ["bin", "var/lib/dpkg/info", "var/lib/dpkg/updates", "tmp"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
        // The package's scripts are run by it.
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for applet in ["sh", "grep", "rm", "rmdir", "sed"] {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        Self(root)
    }

    /// What it says.
    fn dpkg(&self, words: &[&str]) -> String {
        text(&self.dpkg_output(words))
    }

    fn dpkg_output(&self, words: &[&str]) -> Output {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root")
            .arg(&self.0)
            .arg("--log=/dev/null")
            .args(words)
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        dpkg.output().unwrap()
    }

    fn install(&self) {
        self.dpkg(&["--install", package().to_str().unwrap()]);
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Files and directories that are the package's own: path → mode and owner, as `tar` shows them.
fn contents() -> BTreeMap<String, String> {
    let listing = text(&Command::new("dpkg-deb").arg("--contents").arg(package()).output().unwrap());
    let entries = listing.lines().map(|line| {
        let mut words = line.split_whitespace();
        let what = format!("{} {}", words.next().unwrap(), words.next().unwrap());
        (words.nth(3).unwrap().trim_start_matches('.').to_owned(), what)
    });
    entries.collect()
}

#[test]
fn a_package_holds_what_it_should_and_no_more() {
    let contents = contents();
    let (file, program) = ("-rw-r--r-- root/root", "-rwxr-xr-x root/root");
    // It may hold a token.
    let secret = "-rw------- root/root";
    for (path, expected) in [
        ("/usr/bin/smolet", program),
        ("/usr/lib/systemd/system/smolet.service", file),
        ("/etc/smolet/config.yaml", secret),
        ("/etc/default/smolet", file),
        ("/etc/smolet/manifests/", "drwx------ root/root"),
        ("/var/lib/smolet/", "drwxr-x--- root/root"),
        ("/usr/share/bash-completion/completions/smolet", file),
        ("/usr/share/zsh/vendor-completions/_smolet", file),
        ("/usr/share/fish/vendor_completions.d/smolet.fish", file),
        ("/usr/share/man/man8/smolet.8.gz", file),
        ("/usr/share/man/man8/smolet-run.8.gz", file),
        ("/usr/share/man/man8/smolet-port-forward.8.gz", file),
        ("/usr/share/doc/smolet/copyright", file),
        ("/usr/share/doc/smolet/README.md.gz", file),
        ("/usr/share/doc/smolet/changelog.gz", file),
        ("/usr/share/smolet/openrc/smolet", program),
        ("/usr/share/smolet/openrc/logrotate", file),
        ("/usr/share/smolet/systemd/embedded.conf", file),
        ("/usr/share/smolet/systemd/k3s.conf", file),
    ] {
        assert_eq!(contents.get(path).map(String::as_str), Some(expected), "{path}");
    }
    for page in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        let path = format!("/usr/share/doc/smolet/docs/{name}.gz");
        assert_eq!(contents.get(&path).map(String::as_str), Some(file), "{path}");
    }
    // What a machine may leave out (dpkg's path-exclude) holds nothing that a feature needs.
    let documents = contents.keys().filter_map(|path| path.strip_prefix("/usr/share/doc/smolet/"));
    let is_document = |path: &str| {
        ["docs/", "examples/"].iter().any(|start| path.starts_with(start)) || !path.contains('/')
    };
    assert_eq!(documents.filter(|path| !is_document(path)).collect::<Vec<_>>(), [""; 0]);
    for (path, what) in &contents {
        let plain =
            ["drwxr-xr-x root/root", file, program, secret, "drwx------ root/root", "drwxr-x--- root/root"];
        assert!(plain.contains(&what.as_str()), "{path}: {what}");
        let ours = ["/usr/", "/etc/", "/var/"].iter().any(|start| path.starts_with(start));
        assert!((ours || path == "/") && !path.ends_with('~'), "{path}");
        let is_program = path == "/usr/bin/smolet" || path.ends_with("/openrc/smolet");
        assert_eq!(what == program, is_program, "{path}");
        assert_eq!(what == secret, path == "/etc/smolet/config.yaml", "{path}");
    }

    let root = Root::new("package-contents");
    root.install();
    assert!(
        fs::read(tested_program()).unwrap() == fs::read(root.path("/usr/bin/smolet")).unwrap(),
        "another program"
    );
    let copyright = fs::read_to_string(root.path("/usr/share/doc/smolet/copyright")).unwrap();
    // One whose licence wants its text beside the program, and one whose licence Debian has.
    for part in ["\n---- hyper v1.", "Sean McArthur", "\nserde_json v1.", "Rich Felker"] {
        assert!(copyright.contains(part), "{part}: {copyright}");
    }
    for other in ["---- serde_json", "serde_derive", "divan", "(/", env!("CARGO_MANIFEST_DIR")] {
        assert!(!copyright.contains(other), "{other}: {copyright}");
    }
}

fn build(architecture: &str, out: &Path) -> Output {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(repository.join("dist/build.sh"));
    build.arg(architecture).arg(tested_program()).arg(repository.join("target/pages")).arg(out);
    build.output().unwrap()
}

#[test]
fn the_same_input_makes_the_same_package_and_the_wrong_program_none() {
    let out = Root::new("package-again");
    let again = text(&build("amd64", &out.0));
    assert!(fs::read(again.trim()).unwrap() == fs::read(package()).unwrap(), "other bytes");
    for architecture in ["arm64", "armhf", "armel"] {
        let refused = build(architecture, &out.0);
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && why.contains(&format!("is not for {architecture}")), "{why}");
    }
}

/// Targets that every unit names, and that a root or a world of a test has not.
pub fn target_stubs(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for target in ["sysinit", "basic", "shutdown"] {
        fs::write(directory.join(format!("{target}.target")), "[Unit]\nDefaultDependencies=no\n").unwrap();
    }
}

#[test]
fn it_is_installed_upgraded_removed_and_purged() {
    let root = Root::new("package-life");
    // Not beside the archive's, wherever that is.
    let unit = root.path("/etc/systemd/system/smolet.service");
    fs::create_dir_all(unit.parent().unwrap()).unwrap();
    for prefix in ["/usr/local", "/opt/x"] {
        let archive = root.path(prefix).join("lib/smolet");
        fs::create_dir_all(&archive).unwrap();
        fs::write(archive.join("installed"), "").unwrap();
        fs::write(&unit, format!("[Service]\nExecStart={prefix}/bin/smolet run\n")).unwrap();
        let refused = root.dpkg_output(&["--install", package().to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let first = format!("{prefix}/lib/smolet/install.sh --uninstall first");
        assert!(!refused.status.success() && said.contains(&first), "{said}");
        assert!(!root.path("/usr/bin/smolet").exists());
        fs::remove_dir_all(root.path(prefix)).unwrap();
    }
    fs::remove_file(unit).unwrap();
    root.install();
    assert_eq!(root.dpkg(&["--verify", "smolet"]), "");
    let status = root.dpkg(&["--status", "smolet"]);
    assert!(status.contains("Status: install ok installed"), "{status}");
    for conffile in ["/etc/smolet/config.yaml", "/etc/default/smolet"] {
        assert!(status.contains(&format!(" {conffile} ")), "{conffile} is a conffile: {status}");
    }
    let mut smolet = Command::new("chroot");
    // Nothing there is wrong.
    text(&smolet.arg(&root.0).args(["/usr/bin/smolet", "check", "/etc/smolet/manifests"]).output().unwrap());

    target_stubs(&root.path("/etc/systemd/system"));
    let mut verify = Command::new("systemd-analyze");
    let verify =
        verify.arg("--root").arg(&root.0).args(["--man=no", "verify", "smolet.service"]).output().unwrap();
    let about_us = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines().filter(|line| line.contains("smolet")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(about_us(&verify), [""; 0]);

    // What the user has written stays through an upgrade, a removal and a new installation, until it is purged.
    let config = root.path("/etc/smolet/config.yaml");
    let mine = fs::read_to_string(&config).unwrap() + "maxPods: 7\n";
    fs::write(&config, &mine).unwrap();
    fs::write(root.path("/etc/smolet/manifests/web.yaml"), "mine").unwrap();
    fs::write(root.path("/var/lib/smolet/identity.cbor"), "state").unwrap();
    root.install();
    assert_eq!(fs::read_to_string(&config).unwrap(), mine);
    assert_eq!(
        fs::metadata(root.path("/etc/smolet/manifests")).unwrap().permissions().mode() & 0o7777,
        0o700
    );
    // A board that was taken over would have no agent any more, and no way back.
    let taken_over = root.path("/etc/systemd/system/k3s-agent.service.d/smolet.conf");
    fs::create_dir_all(taken_over.parent().unwrap()).unwrap();
    let command = "[Service]\nExecStart=\nExecStart=/usr/bin/smolet agent '--node-name' 'gw'\n";
    fs::write(&taken_over, command).unwrap();
    for word in ["--remove", "--purge"] {
        let refused = root.dpkg_output(&[word, "smolet"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let first = "; first: /usr/bin/smolet k3s takeover --back\n";
        assert!(!refused.status.success() && said.contains(first), "{said}");
        for kept in ["/usr/bin/smolet", "/usr/lib/systemd/system/smolet.service"] {
            assert!(root.path(kept).exists(), "{kept}");
        }
        assert_eq!(fs::read_to_string(&config).unwrap(), mine);
    }
    root.install();
    // Another program, of the archive's in its time.
    fs::write(&taken_over, "[Service]\nExecStart=\nExecStart=/usr/local/bin/smolet agent \n").unwrap();
    root.dpkg(&["--remove", "smolet"]);
    assert!(!root.path("/usr/bin/smolet").exists());
    assert!(!root.path("/usr/lib/systemd/system/smolet.service").exists());
    assert_eq!(fs::read_to_string(&config).unwrap(), mine);
    assert!(root.path("/var/lib/smolet/identity.cbor").exists());
    root.dpkg(&["--purge", "smolet"]);
    assert!(!config.exists() && !root.path("/etc/default/smolet").exists());
    assert!(!root.path("/var/lib/smolet").exists());
    assert!(root.path("/etc/smolet/manifests/web.yaml").exists(), "manifests are the user's");

    // What the user has put into the state directory is not the package's.
    root.install();
    let mine = ["images/web.tar.zst", "seccomp/web/strict.json", "config.json"];
    let theirs = ["identity.cbor", "checkpoint", "runtime/containers/c/record", ".lock"];
    for file in mine.iter().chain(&theirs) {
        let path = root.path("/var/lib/smolet").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    root.dpkg(&["--purge", "smolet"]);
    for file in mine {
        assert!(root.path("/var/lib/smolet").join(file).exists(), "{file}");
    }
    let left = fs::read_dir(root.path("/var/lib/smolet")).unwrap().count();
    assert_eq!(left, mine.len(), "and nothing else");
    fs::remove_dir_all(root.path("/var/lib/smolet")).unwrap();

    root.install();
    let volume = root.path("/var/lib/smolet/pods/u-1/volumes");
    fs::create_dir_all(&volume).unwrap();
    root.dpkg(&["--purge", "smolet"]);
    assert!(volume.exists(), "pods are left");
}

/// Its settings and its state are the archive's that is installed after it was removed; a later purge finds nothing of it.
#[test]
fn a_package_that_was_removed_takes_nothing_from_an_archives_program() {
    let root = Root::new("package-archive");
    root.install();
    let mine = [
        (
            "/etc/smolet/config.yaml",
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 7\n",
        ),
        ("/etc/default/smolet", "SMOLET_EXTRA_ARGS=--mine\n"),
        ("/var/lib/smolet/identity.cbor", "state"),
    ];
    for (path, text) in mine {
        fs::write(root.path(path), text).unwrap();
    }
    root.dpkg(&["--remove", "smolet"]);
    // As deb-systemd-helper remembers the package's service; another one's stays.
    let remembered = |file: &str| root.path("/var/lib/systemd").join(format!("deb-systemd-helper-{file}"));
    let of_package = [
        "enabled/smolet.service.dsh-also",
        "enabled/multi-user.target.wants/smolet.service",
        "masked/smolet.service",
    ];
    let of_another = "enabled/multi-user.target.wants/other.service";
    for file in of_package.into_iter().chain([of_another]) {
        fs::create_dir_all(remembered(file).parent().unwrap()).unwrap();
        fs::write(remembered(file), "").unwrap();
    }
    let unpacked = super::archive::unpacked(&root.path("/tmp"));
    let mut installer = Command::new("sh");
    let installer = installer.arg(unpacked.join("install.sh")).arg("--root").arg(&root.0);
    text(&installer.arg("--init=systemd").env("LC_ALL", "C").output().unwrap());
    let is_whole = || {
        for (path, text) in mine {
            assert_eq!(fs::read_to_string(root.path(path)).unwrap(), text, "{path}");
        }
        assert!(root.path("/usr/local/bin/smolet").exists() && root.path("/etc/smolet/manifests").is_dir());
        let wanted = root.path("/etc/systemd/system/multi-user.target.wants/smolet.service");
        assert!(wanted.symlink_metadata().is_ok(), "it starts at boot");
    };
    is_whole();
    let status = fs::read_to_string(root.path("/var/lib/dpkg/status")).unwrap();
    assert!(!status.contains("Package: smolet"), "{status}");
    for file in of_package {
        assert!(!remembered(file).exists(), "{file}: a later package would take its service for disabled");
    }
    assert!(remembered(of_another).exists());
    root.dpkg(&["--purge", "smolet"]);
    is_whole();
}

/// A systemd that has its units where packages have them, and a dpkg without packages: both with the machine's own programs.
fn world_with_dpkg(name: &str) -> World {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let up = script("up", &dir).args([version(), "packages"]).stderr(Stdio::inherit()).output().unwrap();
    let world = World { pid: text(&up).trim().parse().unwrap(), dir };
    super::archive::lay_writable(&world, &[]);
    let (units, vendor) = (world.dir.join("units"), world.dir.join("vendor"));
    // A container's policy-rc.d would keep every service from starting.
    let words = format!(
        "mount --bind {} /etc/systemd/system && mount --bind {} /usr/lib/systemd/system && rm -f /usr/sbin/policy-rc.d && \
         mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates && : >/var/lib/dpkg/status",
        units.display(),
        vendor.display()
    );
    text(&world.program("sh").args(["-c", &words]).output().unwrap());
    target_stubs(&units);
    let log = world.dir.join("service.log");
    let mut more = format!("[Service]\nStandardOutput=append:{0}\nStandardError=append:{0}\n", log.display());
    if !lowers_oom_scores(&world) {
        more.push_str("OOMScoreAdjust=0\n");
    }
    for unit in ["smolet", "k3s-agent"] {
        let own = units.join(format!("{unit}.service.d"));
        fs::create_dir(&own).unwrap();
        fs::write(own.join("test.conf"), &more).unwrap();
    }
    text(&world.program("systemctl").arg("daemon-reload").output().unwrap());
    world
}

/// As dpkg and deb-systemd-helper do it on a machine that runs.
#[test]
fn its_service_follows_the_package_and_so_does_that_of_a_board_that_was_taken_over() {
    let world = world_with_dpkg("systemd-package-dpkg");
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    let archive = super::archive::unpacked(&world.dir.join("unpacked"));
    let installer = archive.join("install.sh").display().to_string();
    let of_package = package().display().to_string();
    let install = || run("dpkg", &["--install", &of_package]);
    // What its first process runs, and whether it starts at boot.
    let state = |unit: &str| {
        let pid = world.show(unit, &["MainPID"]).remove(0);
        let said = |program: &str, words: &[&str]| {
            let output = world.program(program).args(words).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        (said("readlink", &[&format!("/proc/{pid}/exe")]), said("systemctl", &["is-enabled", unit]))
    };
    let is = |program: &str, enabled: &str| (program.to_owned(), enabled.to_owned());

    // The package, then the archive, then the package.
    install();
    assert_eq!(state("smolet.service"), is("/usr/bin/smolet", "enabled"));
    run("dpkg", &["--remove", "smolet"]);
    assert_eq!(state("smolet.service"), is("", "masked"));
    run("sh", &[&installer]);
    assert_eq!(state("smolet.service"), is("/usr/local/bin/smolet", "enabled"));
    run("sh", &["/usr/local/lib/smolet/install.sh", "--uninstall"]);
    install();
    assert_eq!(state("smolet.service"), is("/usr/bin/smolet", "enabled"));
    // One that its owner has disabled stays so.
    run("systemctl", &["disable", "--now", "smolet.service"]);
    install();
    assert_eq!(state("smolet.service"), is("", "disabled"));

    let units = world.dir.join("units");
    fs::write(
        units.join("k3s-agent.service"),
        "[Install]\nWantedBy=multi-user.target\n[Service]\nType=exec\nKillMode=process\nRestart=always\nRestartSec=5s\nTimeoutStartSec=0\n\
         ExecStart=/usr/local/bin/k3s agent --server https://127.0.0.1:6443 --token x\n",
    )
    .unwrap();
    let drop_in = units.join("k3s-agent.service.d/smolet.conf");
    fs::write(
        &drop_in,
        "[Service]\nType=notify\nExecStart=\nExecStart=/usr/bin/smolet agent '--server' 'https://127.0.0.1:6443' '--token' 'x'\n",
    )
    .unwrap();
    let main = || world.show("k3s-agent.service", &["ActiveState", "MainPID"]);
    for first in ["/usr/bin/smolet k3s takeover --back", "systemctl disable --now k3s-agent.service"] {
        if first.starts_with("systemctl") {
            // By a link in the place of k3s.
            fs::remove_file(&drop_in).unwrap();
            run("ln", &["-s", "/usr/bin/smolet", "/usr/local/bin/k3s"]);
        }
        run("systemctl", &["daemon-reload"]);
        run("systemctl", &["restart", "k3s-agent.service"]);
        let before = main();
        install();
        let after = main();
        assert!(after[0] == "active" && after[1] != before[1], "another one: {before:?} {after:?}");
        assert_eq!(state("k3s-agent.service").0, "/usr/bin/smolet");
        let refused = world.program("dpkg").args(["--remove", "smolet"]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(&format!("; first: {first}\n")), "{said}");
        assert_eq!(main(), after, "nothing has changed");
        assert_eq!(state("k3s-agent.service").0, "/usr/bin/smolet");
        assert_eq!(state("smolet.service"), is("", "disabled"));
    }
    run("systemctl", &["disable", "--now", "k3s-agent.service"]);
    run("dpkg", &["--remove", "smolet"]);
    assert!(!world.path("/usr/bin/smolet").exists());
}

/// Has a Secret, memory and a group: what the agent mounts and whose modes it sets, seen from inside.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: word}
stringData: {word: sesame}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4321}
  volumes:
  - {name: secret, secret: {secretName: word}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: disk, emptyDir: {}}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo "$(cat /secret/word) $(stat -c %g /memory) $(stat -c %g-%a /disk) $(stat -f -c %T /memory)"; exec sleep 100000']
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts:
    - {name: secret, mountPath: /secret}
    - {name: memory, mountPath: /memory}
    - {name: disk, mountPath: /disk, subPath: below}
"#;

/// The service in that world.
struct Service<'w>(&'w World);

impl Service<'_> {
    fn systemctl(&self, words: &[&str]) {
        let output = self.0.program("systemctl").args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", self.log());
    }

    fn show(&self, property: &str) -> String {
        self.0.show("smolet.service", &[property]).remove(0)
    }

    /// What it has said of itself.
    fn sentence(&self) -> String {
        let words = ["show", "--property=StatusText", "--value", "smolet.service"];
        text(&self.0.program("systemctl").args(words).output().unwrap()).trim().to_owned()
    }

    fn ask(&self, words: &[&str]) -> String {
        let output = self.0.program("/usr/bin/smolet").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn main(&self) -> String {
        self.show("MainPID")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.dir.join("service.log")).unwrap_or_default()
    }

    /// The container's id, when the pod is ready.
    fn ready(&self) -> String {
        wait_for(&format!("the pod is ready; {}", self.log()), || {
            let list: Value = serde_json::from_str(&self.ask(&["pods", "-o", "json"])).ok()?;
            let status = list["items"][0]["status"]["containerStatuses"][0].clone();
            (status["ready"] == true).then(|| status["containerID"].as_str().unwrap().to_owned())
        })
    }
}

/// Lays what is installed over the machine's own, in that world alone; nothing is written there.
pub fn lay_over(world: &World, roots: &[&Path]) {
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    for below in ["usr", "etc"] {
        let above: Vec<_> = roots.iter().map(|root| root.join(below).display().to_string()).collect();
        let layers = format!("lowerdir={}:/{below}", above.join(":"));
        run("mount", &["-t", "overlay", "-o", &layers, "smolet-test", &format!("/{below}")]);
    }
    for below in ["/var/lib", "/var/log"] {
        run("mount", &["-t", "tmpfs", "-o", "mode=755", "smolet-test", below]);
    }
    run("mkdir", &["-m", "750", "/var/lib/smolet"]);
}

/// Of a process with these `limits`: how large a core dump may become, and the most that it may be set to.
fn core_limits(limits: &Path) -> [String; 2] {
    let limits = fs::read_to_string(limits).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    [words.next().unwrap(), words.next().unwrap()]
}

/// False where the machine lets nobody lower an OOM score: what sets one is not shown then.
pub fn lowers_oom_scores(world: &World) -> bool {
    let lowered = world.program("sh").args(["-c", "echo -999 >/proc/self/oom_score_adj"]).output().unwrap();
    if !lowered.status.success() {
        println!("==== this machine lets nobody lower an OOM score: that of the service IS NOT SHOWN ====");
    }
    lowered.status.success()
}

/// The process that OpenRC supervises for the service, as that world counts processes.
pub fn supervised(world: &World) -> Option<String> {
    let pid = fs::read_to_string(world.path("/run/openrc/options/smolet/child_pid")).ok()?;
    // It is written in place.
    (!pid.trim().is_empty()).then_some(pid)
}

/// A program of these lines.
pub fn program_file(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub fn version() -> &'static str {
    if has_version_1() { "v1" } else { "v2" }
}

#[test]
fn the_service_runs_as_it_is_installed() {
    let root = Root::new("package-service");
    root.install();
    let world = World::up("systemd-package", version());
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    // Before its files are laid over others: what changes below a mounted overlay may not be seen.
    let endpoint = format!("unix://{}", world.dir.join("rt/smolet-test.sock").display());
    let arguments = format!("--node-name gw --cgroup-driver systemd --runtime-endpoint {endpoint}");
    fs::write(root.path("/etc/default/smolet"), format!("SMOLET_EXTRA_ARGS=\"{arguments}\"\n")).unwrap();
    fs::write(root.path("/etc/smolet/manifests/web.yaml"), MANIFEST).unwrap();
    // How full the machine's memory and disk are is another test's subject (tests/env/calm.yaml).
    let calm = "evictionHard: {memory.available: 0%}\nimageGCHighThresholdPercent: 100\n";
    let config = root.path("/etc/smolet/config.yaml");
    fs::write(&config, fs::read_to_string(&config).unwrap() + calm).unwrap();
    lay_over(&world, &[&root.0]);

    // The unit as it is, and what a test needs beside it: the targets that it names, and where the log is.
    let units = world.dir.join("units");
    fs::copy(root.path("/usr/lib/systemd/system/smolet.service"), units.join("smolet.service")).unwrap();
    target_stubs(&units);
    let own = units.join("smolet.service.d");
    fs::create_dir(&own).unwrap();
    let log = world.dir.join("service.log");
    let mut more = format!("[Service]\nStandardOutput=append:{0}\nStandardError=append:{0}\n", log.display());
    let lowers = lowers_oom_scores(&world);
    if !lowers {
        more.push_str("OOMScoreAdjust=0\n");
    }
    fs::write(own.join("test.conf"), more).unwrap();

    // `start` lasts until the agent has said that it is ready. A runtime that is not there keeps nobody waiting.
    let service = Service(&world);
    service.systemctl(&["daemon-reload"]);
    service.systemctl(&["start", "smolet.service"]);
    assert_eq!(service.show("ActiveState"), "active");
    wait_for("it says what it waits for", || service.sentence().contains(&endpoint[7..]).then_some(()));

    world.start_runtime();
    service.systemctl(&["restart", "smolet.service"]);
    let container = service.ready();
    assert_eq!(service.sentence(), "");
    // It is ready as soon as it runs, before it has said anything.
    let said = wait_for("its words", || {
        let said = service.ask(&["logs", "web"]).trim().to_owned();
        (!said.is_empty()).then_some(said)
    });
    assert_eq!(said, "sesame 4321 4321-2777 tmpfs", "{}", service.log());

    let main = service.main();
    let proc = |file: &str| world.path(&format!("/proc/{main}/{file}"));
    let of_first = fs::read_link(world.path("/proc/1/ns/mnt")).unwrap();
    assert_eq!(fs::read_link(proc("ns/mnt")).unwrap(), of_first, "what it mounts is seen by the runtime");
    let status = fs::read_to_string(proc("status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}")).trim().to_owned()
    };
    assert_eq!([field("NoNewPrivs:"), field("Seccomp:")], ["1", "2"]);
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL: 0, 1, 3, 4, 5; NET_ADMIN, NET_RAW, SYS_PTRACE, SYS_ADMIN, SYSLOG: 12, 13, 19, 21, 34.
    assert_eq!(u64::from_str_radix(&field("CapBnd:"), 16).unwrap(), 0x4_0028_303b);
    wait_for("what the runtime has written", || {
        service.ask(&["top", "--self"]).contains("\nruntime: ").then_some(())
    });
    assert_eq!(core_limits(&proc("limits")), ["0", "0"]);
    if lowers {
        assert_eq!(fs::read_to_string(proc("oom_score_adj")).unwrap().trim(), "-999");
    }

    // It gives signs of life. One that stands still gives none, and another takes its place; its pods do not notice.
    fs::write(own.join("watchdog.conf"), "[Service]\nWatchdogSec=4\nRestartSec=100ms\n").unwrap();
    service.systemctl(&["daemon-reload"]);
    service.systemctl(&["restart", "smolet.service"]);
    let sign = service.show("WatchdogTimestampMonotonic");
    wait_for("another sign of life", || (service.show("WatchdogTimestampMonotonic") != sign).then_some(()));
    assert_eq!(service.ready(), container, "it outlives a restart");
    let (stopped, restarts) = (service.main(), service.show("NRestarts"));
    assert_ne!(stopped, main);
    run("sh", &["-c", &format!("kill -STOP {stopped}")]);
    wait_for("another one in its place", || (service.show("NRestarts") != restarts).then_some(()));
    wait_for("it is ready", || (service.show("ActiveState") == "active").then_some(()));
    assert_ne!(service.main(), stopped);
    assert_eq!(service.ready(), container, "it outlives an agent that hangs");

    // Ended, and the container runs on.
    service.systemctl(&["stop", "smolet.service"]);
    assert_eq!([service.show("ActiveState"), service.show("Result")], ["inactive", "success"]);
    let id = container.rsplit('/').next().unwrap();
    let tasks = run(RUNTIME, &["ctr", world.dir.join("rt").to_str().unwrap(), "task", "ls"]);
    assert!(tasks.lines().any(|line| line.starts_with(id) && line.contains("RUNNING")), "{tasks}");
    assert!(!world.path("/run/smolet/smolet.sock").exists());
}

#[test]
fn it_runs_under_openrc() {
    let openrc = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tools/openrc");
    assert!(openrc.join("usr/sbin/openrc-run").exists(), "tests/env/setup.sh openrc unpacks it");
    let root = Root::new("package-openrc");
    root.install();
    for directory in ["/etc/init.d", "/etc/conf.d", "/etc/logrotate.d"] {
        fs::create_dir_all(root.path(directory)).unwrap();
    }
    // As its first lines say; with little patience.
    fs::copy(root.path("/usr/share/smolet/openrc/smolet"), root.path("/etc/init.d/smolet")).unwrap();
    fs::copy(root.path("/usr/share/smolet/openrc/logrotate"), root.path("/etc/logrotate.d/smolet")).unwrap();
    let settings = "SMOLET_EXTRA_ARGS='--node-name gw --log-level debug'\n\
                    respawn_delay=1\nhealthcheck_delay=1\nhealthcheck_timer=1\nretry=SIGTERM/5/SIGKILL/5\n";
    fs::write(root.path("/etc/conf.d/smolet"), settings).unwrap();
    let world = World::up("systemd-openrc", version());
    lay_over(&world, &[&root.0, &openrc]);
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    // As if OpenRC had started the machine.
    for directory in ["daemons", "exclusive", "options", "starting", "started", "stopping"] {
        run("mkdir", &["-p", &format!("/run/openrc/{directory}")]);
    }
    run("mkdir", &["-p", "/var/lib/logrotate"]);
    run("touch", &["/run/openrc/softlevel"]);
    let service = |word: &str| world.program("/etc/init.d/smolet").args(["--nodeps", word]).output().unwrap();
    let log = || fs::read_to_string(world.path("/var/log/smolet.log")).unwrap_or_default();
    let answers = || {
        let asked = world.program("/usr/bin/smolet").arg("pods").output().unwrap();
        String::from_utf8_lossy(&asked.stderr).contains("container runtime").then_some(())
    };
    let main = || supervised(&world);

    text(&service("start"));
    wait_for(&format!("it answers; {}", log()), answers);
    text(&service("status"));
    let first = wait_for("its process is known", main);
    let arguments = fs::read_to_string(world.path(&format!("/proc/{}/cmdline", first.trim()))).unwrap();
    let arguments: Vec<_> = arguments.split_terminator('\0').collect();
    let expected = "/usr/bin/smolet run --config /etc/smolet/config.yaml --node-name gw --log-level debug";
    assert_eq!(arguments.join(" "), expected);
    assert_eq!(core_limits(&world.path(&format!("/proc/{}/limits", first.trim()))), ["0", "0"]);
    if lowers_oom_scores(&world) {
        let score = fs::read_to_string(world.path(&format!("/proc/{}/oom_score_adj", first.trim()))).unwrap();
        assert_eq!(score.trim(), "-999");
    }

    // One that gives no answer is found out, and another takes its place.
    run("sh", &["-c", &format!("kill -STOP {first}")]);
    wait_for("another one in its place", || main().filter(|now| *now != first));
    wait_for(&format!("it answers; {}", log()), answers);

    // A log of two megabytes is put aside, and the agent writes on where the new one begins.
    let path = world.path("/var/log/smolet.log");
    let line = b"a line of a log as long as many\n";
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&line.repeat(2 << 15)).unwrap();
    run("logrotate", &["/etc/logrotate.d/smolet"]);
    assert!(world.path("/var/log/smolet.log.1.gz").exists());
    assert!(log().len() < line.len() << 10, "{}", log());

    text(&service("stop"));
    assert!(!world.path("/run/smolet/smolet.sock").exists(), "{}", log());
    assert!(log().contains("stopping"), "it says that it ends; {}", log());
    assert!(!service("status").status.success());
}
