//! The archive and its installer (dist/install.sh): in a root that has a shell and a few tools, refused where it does not fit, as a
//! service of systemd and of OpenRC, and staged for an image. It lies beside `SMOLET_PACKAGE`.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::time::SystemTime;

use super::package::{
    Root, beside_package, lowers_oom_scores, program_file, supervised, target_stubs, version,
};
use super::*;

/// The unpacked archive, below a directory.
pub fn unpacked(below: &Path) -> PathBuf {
    fs::create_dir_all(below).unwrap();
    let archive = beside_package("_linux_amd64.tar.gz");
    text(&Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(below).output().unwrap());
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap();
    below.join(name)
}

/// Writes the sums of an archive that a test has changed.
fn sum_again(archive: &Path) {
    let sum = "find . -type f ! -name 'SHA256SUMS*' | sort | xargs sha256sum >SHA256SUMS";
    text(&Command::new("sh").args(["-c", sum]).current_dir(archive).output().unwrap());
}

/// Makes it the archive of a later version: the settings and the services have changed, and a page is gone.
fn make_newer(archive: &Path) {
    for file in ["config.yaml", "default", "openrc/conf.d", "openrc/smolet", "systemd/smolet.service"] {
        let path = archive.join(file);
        fs::write(&path, fs::read_to_string(&path).unwrap() + "# New.\n").unwrap();
    }
    fs::write(archive.join("ABOUT"), "version=99.0.0\narch=amd64\n").unwrap();
    fs::remove_file(archive.join("doc/docs/logs.md.gz")).unwrap();
    sum_again(archive);
}

/// A root with busybox' tools, in which a program can be run.
pub struct Bare(pub Root);

impl Bare {
    pub fn new(name: &str) -> Self {
        let root = Root::new(name);
        for directory in ["dev", "etc"] {
            fs::create_dir(root.path(directory)).unwrap();
        }
        let run = |words: &[&str]| text(&Command::new(words[0]).args(&words[1..]).output().unwrap());
        run(&["mknod", "-m", "666", root.path("dev/null").to_str().unwrap(), "c", "1", "3"]);
        run(&["chroot", root.0.to_str().unwrap(), "/bin/busybox", "--install", "-s", "/bin"]);
        // Debian's sh too, with its libraries.
        run(&["cp", "/bin/dash", root.path("bin/dash").to_str().unwrap()]);
        for word in run(&["ldd", "/bin/dash"]).split_whitespace().filter(|word| word.starts_with('/')) {
            let to = root.path(word);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(word, to).unwrap();
        }
        Self(root)
    }

    pub fn run(&self, words: &[&str]) -> Output {
        let mut chroot = Command::new("chroot");
        chroot.arg(&self.0.0).args(["/bin/busybox", "env", "-i", "PATH=/sbin:/bin"]).args(words);
        chroot.stdin(Stdio::null()).output().unwrap()
    }

    /// What is there, but for /tmp.
    fn all(&self) -> BTreeSet<String> {
        let mut find = Command::new("find");
        find.current_dir(&self.0.0).args([".", "-path", "./tmp", "-prune", "-o", "-printf", "/%P\\n"]);
        text(&find.output().unwrap()).lines().map(str::to_owned).collect()
    }
}

/// What it says as it refuses.
fn refusal(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn with_any_shell_it_installs_upgrades_and_leaves_nothing() {
    for shell in ["/bin/sh", "/bin/dash"] {
        let bare = Bare::new(&format!("archive-bare{}", shell.replace('/', "-")));
        let archive = unpacked(&bare.0.path("/tmp"));
        let inside = format!("/tmp/{}", archive.file_name().unwrap().to_str().unwrap());
        let installer = format!("{inside}/install.sh");
        let before = bare.all();
        let said = text(&bare.run(&[shell, &installer]));
        assert!(said.contains("start it with: /usr/local/bin/smolet run"), "{said}");
        text(&bare.run(&["/usr/local/bin/smolet", "check", "/etc/smolet/manifests"]));
        let program = fs::read(bare.0.path("/usr/local/bin/smolet")).unwrap();
        assert!(program == fs::read(super::package::tested_program()).unwrap(), "another program");
        let modes = text(&bare.run(&[
            "stat",
            "-c",
            "%a",
            "/etc/smolet/manifests",
            "/var/lib/smolet",
            "/etc/smolet/config.yaml",
        ]));
        assert_eq!(modes.split_whitespace().collect::<Vec<_>>(), ["700", "750", "600"]);
        for path in
            ["/usr/local/share/man/man8/smolet-run.8.gz", "/usr/local/share/doc/smolet/docs/install.md.gz"]
        {
            assert!(bare.0.path(path).exists(), "{path}");
        }
        let drop_ins = bare.0.path("/usr/local/share/smolet/systemd");
        assert!(drop_ins.join("embedded.conf").exists());
        let drop_in = fs::read_to_string(drop_ins.join("k3s.conf")).unwrap();
        assert!(drop_in.contains("\nExecStart=/usr/local/bin/smolet agent\n"), "{drop_in}");

        // Again: nothing is written.
        let times = || -> Vec<(String, SystemTime)> {
            let files = text(&bare.run(&["find", "/usr/local", "/etc", "-type", "f"]));
            let time = |path: &str| bare.0.path(path).symlink_metadata().unwrap().modified().unwrap();
            files.lines().map(|path| (path.to_owned(), time(path))).collect()
        };
        let installed = times();
        text(&bare.run(&[shell, &installer]));
        assert_eq!(times(), installed);

        // A later version: what the owner has changed stays, and the new one is beside it once.
        let config = bare.0.path("/etc/smolet/config.yaml");
        let mine = fs::read_to_string(&config).unwrap() + "maxPods: 7\n";
        fs::write(&config, &mine).unwrap();
        make_newer(&archive);
        let said = text(&bare.run(&[shell, &installer, "--no-start"]));
        assert!(said.contains("smolet 99.0.0 is installed"), "{said}");
        assert!(said.contains("/etc/smolet/config.yaml is as you have changed it"), "{said}");
        assert_eq!(fs::read_to_string(&config).unwrap(), mine);
        let new = bare.0.path("/etc/smolet/config.yaml.new");
        assert!(fs::read_to_string(&new).unwrap().ends_with("# New.\n"));
        assert!(!bare.0.path("/usr/local/share/doc/smolet/docs/logs.md.gz").exists(), "a page that is gone");
        fs::remove_file(&new).unwrap();
        assert!(!text(&bare.run(&[shell, &installer])).contains("as you have changed it"));
        assert!(!new.exists());
        // One that its owner has removed stays away.
        fs::remove_file(&config).unwrap();
        text(&bare.run(&[shell, &installer]));
        assert!(!config.exists());
        fs::write(&config, &mine).unwrap();

        // A board that was taken over would have no agent any more, and no way back.
        let own = "/usr/local/lib/smolet/install.sh";
        let taken_over = bare.0.path("/etc/systemd/system/k3s-agent.service.d/smolet.conf");
        fs::create_dir_all(taken_over.parent().unwrap()).unwrap();
        fs::write(&taken_over, "[Service]\nExecStart=\nExecStart=/usr/local/bin/smolet agent \n").unwrap();
        let all = bare.all();
        for words in [&["--uninstall"][..], &["--uninstall", "--purge"]] {
            let said = refusal(&bare.run(&[&[shell, own], words].concat()));
            assert!(said.ends_with("; first: /usr/local/bin/smolet k3s takeover --back\n"), "{said}");
            assert_eq!(bare.all(), all);
        }
        fs::remove_dir_all(bare.0.path("/etc/systemd")).unwrap();
        text(&bare.run(&[shell, own, "--uninstall"]));
        let left = |bare: &Bare| bare.all().difference(&before).cloned().collect::<Vec<_>>();
        let state =
            ["/var", "/var/lib", "/var/lib/smolet"].into_iter().filter(|path| !before.contains(*path));
        let kept = ["/etc/smolet", "/etc/smolet/config.yaml", "/etc/smolet/manifests"];
        assert_eq!(left(&bare), kept.into_iter().chain(state).collect::<Vec<_>>());
        assert!(
            refusal(&bare.run(&[shell, &installer, "--uninstall"])).contains("smolet is not installed in")
        );

        // Purged: what the owner has put there stays, and what is left of pods.
        text(&bare.run(&[shell, &installer]));
        fs::write(bare.0.path("/etc/smolet/manifests/web.yaml"), "mine").unwrap();
        let volume = bare.0.path("/var/lib/smolet/pods/u-1");
        fs::create_dir_all(&volume).unwrap();
        let of_embedded = bare.0.path("/var/lib/smolet/runtime");
        fs::create_dir(&of_embedded).unwrap();
        let output = bare.run(&[shell, own, "--uninstall", "--purge"]);
        text(&output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Who would end the embedded runtime's is gone.
        assert!(said.contains("pods are left") && said.contains("Reboot, which ends them"), "{said}");
        fs::remove_dir(&of_embedded).unwrap();
        assert!(volume.exists() && !bare.0.path("/usr/local").exists());
        fs::remove_dir(&volume).unwrap();
        text(&bare.run(&[shell, &installer]));
        for file in
            ["images/web.tar.zst", "seccomp/web.json", "config.json", "checkpoint", "runtime/c/record"]
        {
            let path = bare.0.path("/var/lib/smolet").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        text(&bare.run(&[shell, own, "--uninstall", "--purge"]));
        let files = ["/etc/smolet/manifests/web.yaml", "/var/lib/smolet/config.json"]
            .into_iter()
            .chain(["/var/lib/smolet/images/web.tar.zst", "/var/lib/smolet/seccomp/web.json"]);
        let left = left(&bare).into_iter().filter(|path| bare.0.path(path).is_file()).collect::<Vec<_>>();
        assert_eq!(left, files.collect::<Vec<_>>());
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_installed() {
    let bare = Bare::new("archive-refused");
    let archive = unpacked(&bare.0.path("/tmp"));
    let name = archive.file_name().unwrap().to_str().unwrap().to_owned();
    let installer = format!("/tmp/{name}/install.sh");
    let before = bare.all();
    let refused = |words: &[&str], why: &str| {
        let mut all = vec!["sh", &*installer];
        all.extend(words);
        let said = refusal(&bare.run(&all));
        assert!(said.contains(why), "{words:?}: {said}");
        assert_eq!(bare.all(), before, "{words:?}");
    };
    refused(&["--prefix"], "--prefix needs a value");
    refused(&["--prefix", "usr"], "an absolute path is needed");
    for prefix in ["/opt/a b", "/opt/a&b", "/opt/a|b", "/opt/a%b", "/opt/a$b", "/opt/a\\b"] {
        refused(&["--prefix", prefix], "letters, digits");
    }
    refused(&["--init=upstart"], "upstart is none of systemd, openrc, procd, none");
    refused(&["--purge"], "--purge goes with --uninstall");
    refused(&["--force"], "unknown option --force");
    refused(&["--root", "/nowhere"], "/nowhere: no such directory");
    refused(&["--from", "/tmp"], "/tmp is not an unpacked archive");
    refused(&["--key", "/bin/sh"], "this archive is not signed; nothing is installed");
    let as_user = Command::new("chroot")
        .args(["--userspec=1000:1000", bare.0.0.to_str().unwrap(), "/bin/sh", &installer])
        .output()
        .unwrap();
    assert!(refusal(&as_user).contains("run this as root"));

    // Another machine than this one.
    fs::create_dir(bare.0.path("/sbin")).unwrap();
    let machine = bare.0.path("/sbin/uname");
    for (word, why) in [
        ("aarch64", "take smolet_0.1.0_linux_arm64.tar.gz"),
        ("armv6l", "take smolet_0.1.0_linux_armhf.tar.gz"),
        ("riscv64", "and this machine is riscv64, for which smolet is not built"),
    ] {
        program_file(&machine, &format!("#!/bin/sh\necho {word}\n"));
        // busybox' shell would take its own.
        let said = refusal(&bare.run(&["dash", &installer]));
        let why = why.replace("0.1.0", env!("CARGO_PKG_VERSION"));
        assert!(said.contains(&why) && said.contains("this archive is for amd64"), "{said}");
    }
    // For an image it may be another one.
    fs::create_dir(bare.0.path("/tmp/image")).unwrap();
    text(&bare.run(&["sh", &installer, "--root", "/tmp/image"]));
    fs::remove_dir_all(bare.0.path("/sbin")).unwrap();
    // And its own installer, run beside it, removes nothing of this machine's.
    let of_image = "/tmp/image/usr/local/lib/smolet/install.sh";
    let said = refusal(&bare.run(&["sh", of_image, "--uninstall", "--purge"]));
    assert!(said.contains("name it with --root"), "{said}");
    assert!(bare.0.path("/tmp/image/usr/local/bin/smolet").exists());
    assert_eq!(bare.all(), before);
    text(&bare.run(&["sh", of_image, "--uninstall", "--purge", "--root", "/tmp/image"]));
    assert!(!bare.0.path("/tmp/image/usr").exists());

    // Where it is installed as a package.
    let status = bare.0.path("/var/lib/dpkg/status");
    let there = "Package: other\nStatus: install ok installed\n\nPackage: smolet\nStatus: install ok installed\nVersion: 1\n\n";
    fs::write(&status, there).unwrap();
    let said = refusal(&bare.run(&["sh", &installer]));
    assert!(said.contains("installed as a package: apt remove smolet first"), "{said}");
    // One that is removed and not purged has settings and state: see below.
    fs::write(
        &status,
        there.replace("smolet\nStatus: install ok installed", "smolet\nStatus: deinstall ok config-files"),
    )
    .unwrap();

    // A place where programs do not run, and one where nothing can be written.
    fs::create_dir(bare.0.path("/opt")).unwrap();
    for (options, why) in [("noexec", "is it mounted noexec?"), ("ro", "is the file system read-only")] {
        let words = format!(
            "mount -t tmpfs -o {options} smolet-test {0}/opt && exec chroot {0} /bin/sh {installer} --prefix /opt",
            bare.0.0.display()
        );
        let output = Command::new("unshare").args(["--mount", "sh", "-c", &words]).output().unwrap();
        let said = refusal(&output);
        assert!(said.contains(why), "{options}: {said}");
    }
    fs::remove_dir(bare.0.path("/opt")).unwrap();
    assert_eq!(bare.all(), before);

    // Damaged, with a file too many, and without one.
    let config = archive.join("config.yaml");
    let whole = fs::read_to_string(&config).unwrap();
    fs::write(&config, whole.replacen('#', "%", 1)).unwrap();
    refused(&[], "damaged: ./config.yaml: FAILED");
    fs::write(&config, &whole).unwrap();
    fs::write(archive.join("doc/more"), "").unwrap();
    refused(&[], "other files than SHA256SUMS lists");
    fs::remove_file(archive.join("doc/more")).unwrap();
    fs::write(archive.join("man/SHA256SUMS.8"), "").unwrap();
    refused(&[], "other files than SHA256SUMS lists");
    fs::remove_file(archive.join("man/SHA256SUMS.8")).unwrap();
    // A link, with the sum of what it shows here.
    let sums = fs::read(archive.join("SHA256SUMS")).unwrap();
    symlink("../LICENSE", archive.join("man/other.8")).unwrap();
    refused(&[], "other files than SHA256SUMS lists");
    let listed = "find . ! -type d ! -name 'SHA256SUMS*' | sort | xargs sha256sum >SHA256SUMS";
    text(&Command::new("sh").args(["-c", listed]).current_dir(&archive).output().unwrap());
    refused(&[], "the archive has links or devices");
    fs::remove_file(archive.join("man/other.8")).unwrap();
    fs::write(archive.join("SHA256SUMS"), sums).unwrap();
    fs::remove_file(&config).unwrap();
    refused(&[], "damaged: ./config.yaml: FAILED");
    fs::write(&config, &whole).unwrap();
    // A sha256sum that computes sums and cannot check them.
    fs::create_dir(bare.0.path("/sbin")).unwrap();
    program_file(
        &bare.0.path("/sbin/sha256sum"),
        "#!/bin/sh\ncase $1 in -*) echo 'unrecognized option' >&2; exit 1 ;; esac\nexec busybox sha256sum \"$@\"\n",
    );
    let said = refusal(&bare.run(&["dash", &installer]));
    assert!(said.contains("damaged: sha256sum -c does not check"), "{said}");
    fs::remove_dir_all(bare.0.path("/sbin")).unwrap();
    assert_eq!(bare.all(), before);
    // An image is written out by who makes it; and where this machine's disks cannot be, it is installed all the same.
    let synced = bare.0.path("/tmp/synced");
    fs::create_dir(bare.0.path("/sbin")).unwrap();
    for program in ["sync", "xargs"] {
        program_file(&bare.0.path("/sbin").join(program), "#!/bin/sh\necho >>/tmp/synced\nexit 1\n");
    }
    let _ = fs::remove_dir_all(bare.0.path("/tmp/image"));
    fs::create_dir(bare.0.path("/tmp/image")).unwrap();
    text(&bare.run(&["dash", &installer, "--root", "/tmp/image"]));
    assert!(!synced.exists() && bare.0.path("/tmp/image/usr/local/bin/smolet").exists());
    text(&bare.run(&["dash", &installer, "--no-docs"]));
    assert!(synced.exists());
    fs::remove_dir_all(bare.0.path("/sbin")).unwrap();
    assert!(!bare.0.path("/usr/local/share/man").exists() && !bare.0.path("/usr/local/share/doc").exists());
    // No documents.
    assert!(bare.0.path("/usr/local/share/smolet/systemd/embedded.conf").exists());
}

/// A key pair of minisign's, without a password: the public and the secret key.
fn key_pair(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (public, secret) = (directory.join(format!("{name}.pub")), directory.join(format!("{name}.key")));
    let mut minisign = Command::new("minisign");
    minisign.args(["-G", "-W", "-p"]).arg(&public).arg("-s").arg(&secret).stdin(Stdio::null());
    text(&minisign.output().unwrap());
    (public, secret)
}

#[test]
fn signatures_are_verified_with_what_is_there() {
    let own = Root::new("archive-signed");
    let ((public, secret), (other, _)) = (key_pair(&own.0, "release"), key_pair(&own.0, "other"));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(repository.join("dist/build.sh"));
    build.arg("amd64").arg(super::package::tested_program()).arg(repository.join("target/pages"));
    let built = text(&build.arg(&own.0).arg("archive").env("MINISIGN_KEY", &secret).output().unwrap());
    text(&Command::new("tar").arg("-xzf").arg(built.trim()).arg("-C").arg(&own.0).output().unwrap());
    let archive = PathBuf::from(built.trim().strip_suffix(".tar.gz").unwrap());
    // The sums are those of the archive without a signature.
    let unsigned = unpacked(&own.0.join("unsigned"));
    let sums = |archive: &Path| fs::read_to_string(archive.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&archive), sums(&unsigned));

    // busybox' tools, and one of these.
    let tools = own.0.join("tools");
    let verifier = |name: &str, program: &str| {
        let _ = fs::remove_dir_all(&tools);
        fs::create_dir(&tools).unwrap();
        text(&Command::new("/bin/busybox").args(["--install", "-s"]).arg(&tools).output().unwrap());
        if !name.is_empty() {
            symlink(program, tools.join(name)).unwrap();
        }
    };
    let image = own.0.join("image");
    let install = |archive: &Path, key: &Path| {
        let _ = fs::remove_dir_all(&image);
        fs::create_dir(&image).unwrap();
        let mut sh = Command::new(tools.join("sh"));
        sh.arg(unsigned.join("install.sh"))
            .arg("--root")
            .arg(&image)
            .arg("--from")
            .arg(archive)
            .arg("--key")
            .arg(key);
        sh.env_clear().env("PATH", &tools).output().unwrap()
    };
    for (name, program) in
        [("minisign", "/usr/bin/minisign"), ("signify-openbsd", "/usr/bin/signify-openbsd")]
    {
        verifier(name, program);
        text(&install(&archive, &public));
        assert!(image.join("usr/local/bin/smolet").exists(), "{name}");
        for (archive, key, why) in [
            (&archive, &other, "the archive is not signed with the key of"),
            (&unsigned, &public, "this archive is not signed"),
        ] {
            let said = refusal(&install(archive, key));
            assert!(said.contains(why) && said.contains("nothing is installed"), "{name}: {said}");
            assert_eq!(fs::read_dir(&image).unwrap().count(), 0, "{name}");
        }
    }
    verifier("", "");
    assert!(refusal(&install(&archive, &public)).contains("none of minisign, signify and usign is there"));
    // Whole, and its sums are others than those that were signed.
    verifier("minisign", "/usr/bin/minisign");
    make_newer(&archive);
    assert!(refusal(&install(&archive, &public)).contains("not signed with the key"));
}

/// /usr and /etc of that world can be written, with what is written apart from the machine's own, and /var/lib and /var/log are
/// its own. `more`: what lies over the machine's own.
pub fn lay_writable(world: &World, more: &[&Path]) -> PathBuf {
    let over = world.dir.join("over");
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    run("mkdir", &[over.to_str().unwrap()]);
    run("mount", &["-t", "tmpfs", "smolet-test", over.to_str().unwrap()]);
    for below in ["usr", "etc"] {
        let [up, work] = ["up", "work"].map(|name| over.join(below).join(name).display().to_string());
        run("mkdir", &["-p", &up, &work]);
        let mut lower: Vec<_> = more.iter().map(|root| root.join(below).display().to_string()).collect();
        lower.push(format!("/{below}"));
        let layers = format!("lowerdir={},upperdir={up},workdir={work}", lower.join(":"));
        run("mount", &["-t", "overlay", "-o", &layers, "smolet-test", &format!("/{below}")]);
    }
    for below in ["/var/lib", "/var/log"] {
        run("mount", &["-t", "tmpfs", "-o", "mode=755", "smolet-test", below]);
    }
    over
}

/// Files that were written there, by the path that they have in that world; what is gone of the machine's counts too.
fn written(world: &World, over: &Path) -> Vec<String> {
    let [usr, etc] = ["usr/up", "etc/up"].map(|name| over.join(name).display().to_string());
    let found =
        world.program("find").args([&*usr, &etc, "/var/lib", "/var/log"]).args(["!", "-type", "d"]).output();
    let found = text(&found.unwrap()).replace(&usr, "/usr").replace(&etc, "/etc");
    let mut found: Vec<String> = found.lines().map(str::to_owned).collect();
    found.sort();
    found
}

#[test]
fn it_is_a_service_of_systemd() {
    let world = World::up("systemd-archive", version());
    let archive = unpacked(&world.dir.join("unpacked"));
    let over = lay_writable(&world, &[]);
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    let units = world.dir.join("units");
    target_stubs(&units);
    run("mkdir", &["-p", "/etc/systemd/system"]);
    run("mount", &["--bind", units.to_str().unwrap(), "/etc/systemd/system"]);
    let installer = archive.join("install.sh");
    let install = |words: &[&str]| {
        let mut all = vec![installer.to_str().unwrap()];
        all.extend(words);
        run("sh", &all)
    };
    let show = |property: &str| world.show("smolet.service", &[property]).remove(0);

    let said = install(&["--no-start"]);
    assert!(said.contains("the service is systemd's"), "{said}");
    assert!(units.join("multi-user.target.wants/smolet.service").symlink_metadata().is_ok(), "enabled");
    assert_eq!([show("ActiveState"), show("MainPID")], ["inactive", "0"]);
    let own = units.join("smolet.service.d");
    fs::create_dir(&own).unwrap();
    let log = world.dir.join("service.log");
    let mut more = format!("[Service]\nStandardOutput=append:{0}\nStandardError=append:{0}\n", log.display());
    if !lowers_oom_scores(&world) {
        more.push_str("OOMScoreAdjust=0\n");
    }
    fs::write(own.join("test.conf"), more).unwrap();
    run("sh", &["-c", "echo 'SMOLET_EXTRA_ARGS=\"--node-name gw\"' >/etc/default/smolet"]);
    run("systemctl", &["daemon-reload"]);
    run("systemctl", &["start", "smolet.service"]);
    let first = show("MainPID");
    let arguments = fs::read_to_string(world.path(&format!("/proc/{first}/cmdline"))).unwrap();
    let expected = "/usr/local/bin/smolet run --config /etc/smolet/config.yaml --node-name gw";
    assert_eq!(arguments.trim_end_matches('\0').replace('\0', " "), expected);

    // On a board that was taken over another unit runs the program too. What it does there is another test's subject, and two agents
    // would have one socket.
    let board = units.join("k3s-agent.service.d");
    fs::create_dir(&board).unwrap();
    fs::write(units.join("k3s-agent.service"), "[Service]\nExecStart=/usr/local/bin/k3s agent\n").unwrap();
    let runs = "ExecStart=\nExecStart=/usr/local/bin/smolet agent '--node-name' 'gw'\nExecStart=\nExecStart=sleep 100000\n";
    fs::write(board.join("smolet.conf"), format!("[Service]\n{runs}")).unwrap();
    run("systemctl", &["daemon-reload"]);
    run("systemctl", &["start", "k3s-agent.service"]);
    let of_board = || world.show("k3s-agent.service", &["ActiveState", "MainPID"]);
    let first_of_board = of_board();

    // Again: it runs on. A later version: another one in its place.
    install(&[]);
    assert_eq!((show("MainPID"), of_board()), (first.clone(), first_of_board.clone()));
    make_newer(&archive);
    let said = install(&[]);
    assert!(said.contains("/etc/default/smolet is as you have changed it"), "{said}");
    assert_eq!(show("ActiveState"), "active");
    assert_ne!(show("MainPID"), first);
    let upgraded = of_board();
    assert!(upgraded[0] == "active" && upgraded[1] != first_of_board[1], "{upgraded:?}");
    let uninstaller = ["/usr/local/lib/smolet/install.sh", "--uninstall"];
    let said = refusal(&world.program("sh").args(uninstaller).output().unwrap());
    assert!(said.ends_with("; first: /usr/local/bin/smolet k3s takeover --back\n"), "{said}");
    assert_eq!((show("ActiveState").as_str(), of_board()), ("active", upgraded), "nothing has changed");
    run("systemctl", &["stop", "k3s-agent.service"]);
    fs::remove_dir_all(board).unwrap();
    fs::remove_file(units.join("k3s-agent.service")).unwrap();
    assert!(run("cat", &["/etc/smolet/config.yaml"]).ends_with("# New.\n"), "nobody has changed it");
    // One that was stopped stays so.
    run("systemctl", &["stop", "smolet.service"]);
    fs::write(archive.join("systemd/smolet.service"), fs::read(units.join("smolet.service")).unwrap())
        .unwrap();
    fs::write(archive.join("ABOUT"), "version=99.0.1\narch=amd64\n").unwrap();
    sum_again(&archive);
    install(&[]);
    assert_eq!(show("ActiveState"), "inactive");
    run("systemctl", &["start", "smolet.service"]);

    run("sh", &uninstaller);
    assert_eq!([show("ActiveState"), show("MainPID")], ["inactive", "0"]);
    let expected = ["/etc/default/smolet", "/etc/default/smolet.new", "/etc/smolet/config.yaml"];
    let state = ["/var/lib/smolet/identity.cbor", "/var/lib/smolet/lock"];
    assert_eq!(written(&world, &over), expected.into_iter().chain(state).collect::<Vec<_>>());
    assert!(!units.join("smolet.service").exists());
    assert!(!units.join("multi-user.target.wants").exists());

    // Installed anew it starts by itself; purged it leaves nothing.
    install(&[]);
    assert_eq!(show("ActiveState"), "active");
    run("sh", &["/usr/local/lib/smolet/install.sh", "--uninstall", "--purge"]);
    assert_eq!(written(&world, &over), [""; 0]);
    assert!(run("journalctl", &["--version"]).contains("systemd"), "the machine's own programs are there");
}

/// OpenRC's programs over that world, as if it had started the machine; with a service that smolet's needs.
pub fn openrc(world: &World, roots: &[&Path]) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tools/openrc");
    assert!(tools.join("usr/sbin/openrc-run").exists(), "tests/env/setup.sh openrc unpacks it");
    let more: Vec<&Path> = roots.iter().copied().chain([&*tools]).collect();
    let over = lay_writable(world, &more);
    let words = "for name in daemons exclusive options starting started stopping; do mkdir -p /run/openrc/$name; done
        echo default >/run/openrc/softlevel; mkdir -p /etc/init.d /etc/runlevels/default; : >/etc/insserv.conf
        printf '#!/sbin/openrc-run\\nstart() { :; }\\n' >/etc/init.d/localmount; chmod 755 /etc/init.d/localmount";
    text(&world.program("sh").args(["-c", words]).output().unwrap());
    over
}

#[test]
fn it_is_a_service_of_openrc() {
    let world = World::up("systemd-archive-openrc", version());
    let archive = unpacked(&world.dir.join("unpacked"));
    let over = openrc(&world, &[]);
    let before = written(&world, &over);
    let run = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    let installer = archive.join("install.sh").display().to_string();
    let main = || supervised(&world);
    let is_started = || world.program("/etc/init.d/smolet").arg("status").output().unwrap().status.success();

    // The first process there is a systemd, which would be found.
    let said = run("sh", &[&installer, "--init", "openrc", "--prefix", "/usr"]);
    assert!(said.contains("the service is openrc's"), "{said}");
    assert!(is_started() && world.path("/etc/runlevels/default/smolet").symlink_metadata().is_ok());
    let first = wait_for("its process is known", main);
    run("sh", &[&installer, "--prefix=/usr"]);
    assert_eq!(main().as_ref(), Some(&first), "it runs on");
    make_newer(&archive);
    run("sh", &[&installer, "--prefix=/usr"]);
    wait_for("another one in its place", || main().filter(|now| *now != first));
    run("sh", &["/usr/lib/smolet/install.sh", "--uninstall"]);
    assert!(!world.path("/run/smolet/smolet.sock").exists());
    let left: Vec<_> = written(&world, &over).into_iter().filter(|path| !before.contains(path)).collect();
    let expected = ["/etc/conf.d/smolet", "/etc/smolet/config.yaml", "/var/lib/smolet/identity.cbor"];
    assert_eq!(
        left,
        expected.into_iter().chain(["/var/lib/smolet/lock", "/var/log/smolet.log"]).collect::<Vec<_>>()
    );

    run("sh", &[&installer, "--init=openrc", "--prefix=/usr"]);
    assert!(is_started());
    run("sh", &["/usr/lib/smolet/install.sh", "--uninstall", "--purge"]);
    assert_eq!(written(&world, &over), before);
}

/// A build of Jenkins and of Yocto is in such directories.
#[test]
fn places_may_have_the_characters_of_builds() {
    let own = Root::new("archive-job@2");
    let archive = unpacked(&own.0.join("1.0+git~rc1"));
    let prefix = "/opt/smolet@2+git~rc1";
    let services = [
        ("systemd", "etc/systemd/system/smolet.service", format!("\nExecStart={prefix}/bin/smolet run ")),
        ("openrc", "etc/init.d/smolet", format!("\ncommand=\"{prefix}/bin/smolet\"\n")),
        ("procd", "etc/init.d/smolet", format!("\tprocd_set_param command {prefix}/bin/smolet run ")),
    ];
    for shell in [&["dash"][..], &["busybox", "sh"]] {
        for (init, service, line) in &services {
            let image = own.0.join(format!("{}~{init}+1", shell[0]));
            fs::create_dir(&image).unwrap();
            let run = |installer: &Path, words: &[&str]| {
                let mut command = Command::new(shell[0]);
                command.args(&shell[1..]).arg(installer).arg("--root").arg(&image).args(words);
                text(&command.output().unwrap())
            };
            let words = ["--init", init, "--prefix", prefix];
            run(&archive.join("install.sh"), &words);
            let service = fs::read_to_string(image.join(service)).unwrap();
            assert!(service.contains(line), "{line}: {service}");
            // Of a version that has fewer pages.
            run(&archive.join("install.sh"), &[&words[..], &["--no-docs"]].concat());
            let below = image.join(&prefix[1..]);
            assert!(below.join("bin/smolet").exists());
            assert!(!below.join("share/doc/smolet/docs/install.md.gz").exists());
            run(&below.join("lib/smolet/install.sh"), &["--uninstall", "--purge", "--prefix", prefix]);
            assert_eq!(fs::read_dir(&image).unwrap().count(), 0, "{init}");
        }
    }
}

/// What an image has for the service managers that are found in it, before anything runs there.
#[test]
fn it_is_staged_for_an_image() {
    let own = Root::new("archive-staged");
    let archive = unpacked(&own.0);
    for (found, init, expected) in [
        ("usr/lib/systemd/systemd", "systemd", "etc/systemd/system/multi-user.target.wants/smolet.service"),
        ("sbin/openrc-run", "openrc", "etc/runlevels/default/smolet"),
        ("sbin/procd", "procd", "etc/rc.d/S95smolet"),
        ("bin/true", "none", "usr/bin/smolet"),
    ] {
        let image = own.0.join("image");
        let _ = fs::remove_dir_all(&image);
        fs::create_dir_all(image.join(found).parent().unwrap()).unwrap();
        program_file(&image.join(found), "");
        let mut install = Command::new("sh");
        install.arg(archive.join("install.sh")).arg("--root").arg(&image).args(["--prefix", "/usr"]);
        text(&install.output().unwrap());
        let record = fs::read_to_string(image.join("usr/lib/smolet/installed")).unwrap();
        assert!(record.lines().any(|line| line == format!("init {init}")), "{record}");
        assert!(image.join(expected).symlink_metadata().is_ok(), "{init}");
        let state = if init == "procd" { "srv/smolet" } else { "var/lib/smolet" };
        assert!(image.join(state).is_dir(), "{init}");
        let at_the_owners = image.join("etc/systemd/system/smolet.service").exists();
        let at_the_packages = image.join("usr/lib/systemd/system/smolet.service").exists();
        assert_eq!([at_the_owners, at_the_packages], [false, init == "systemd"], "{init}");
        let mut uninstall = Command::new("sh");
        uninstall
            .arg(image.join("usr/lib/smolet/install.sh"))
            .args(["--uninstall", "--purge", "--root"])
            .arg(&image);
        text(&uninstall.output().unwrap());
        let mut find = Command::new("find");
        let left = text(&find.arg(&image).args(["!", "-type", "d", "-printf", "%P\\n"]).output().unwrap());
        assert_eq!(left.trim(), found, "{init}");
    }
}
