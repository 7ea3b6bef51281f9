//! The packages of Alpine and OpenWrt as their package managers read them, the layer for Yocto, and a whole release (dist/release.sh).
//! Neither apk nor opkg is in Debian: what they would do is done here, step by step.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::symlink;

use flate2::bufread::GzDecoder;

use super::archive::{Bare, openrc, unpacked};
use super::package::{Root, beside_package, package, program_file, supervised, tested_program, version};
use super::*;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(words: &[&str]) -> String {
    text(&Command::new(words[0]).args(&words[1..]).output().unwrap())
}

/// The sum of a file, by coreutils' program of that name.
fn sum(program: &str, path: &Path) -> String {
    let said = run(&[program, path.to_str().unwrap()]);
    said.split_whitespace().next().unwrap().to_owned()
}

/// The gzip streams that a file is made of: where each begins, and what is in it.
fn streams(file: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (mut rest, mut found) = (file, Vec::new());
    while !rest.is_empty() {
        let begins = file.len() - rest.len();
        let mut decoder = GzDecoder::new(rest);
        let mut content = Vec::new();
        decoder.read_to_end(&mut content).unwrap();
        rest = decoder.into_inner();
        found.push((begins, content));
    }
    found
}

/// An entry of a tar archive: its name, its mode, and the fields of the extended header before it.
struct Entry {
    name: String,
    mode: u32,
    fields: BTreeMap<String, String>,
    content: Vec<u8>,
}

/// The entries of a tar archive, and whether it has an end.
fn entries(mut tar: &[u8]) -> (Vec<Entry>, bool) {
    let (mut found, mut fields) = (Vec::new(), BTreeMap::new());
    while !tar.is_empty() {
        let (header, rest) = tar.split_at(512);
        if header.iter().all(|byte| *byte == 0) {
            return (found, true);
        }
        let word = |from: usize, to: usize| {
            let field = &header[from..to];
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8(field[..end].to_vec()).unwrap()
        };
        let octal = |from: usize, to: usize| usize::from_str_radix(word(from, to).trim(), 8).unwrap();
        assert_eq!([octal(108, 116), octal(116, 124)], [0, 0], "root's");
        let size = octal(124, 136);
        let (content, after) = rest.split_at(size.next_multiple_of(512));
        let content = content[..size].to_vec();
        tar = after;
        if header[156] == b'x' {
            // LENGTH NAME=VALUE\n of each field.
            for line in String::from_utf8(content).unwrap().lines() {
                let (name, value) = line.split_once(' ').unwrap().1.split_once('=').unwrap();
                fields.insert(name.to_owned(), value.to_owned());
            }
            continue;
        }
        let name = format!("{}{}", word(345, 500), word(0, 100));
        let mode = u32::try_from(octal(100, 108)).unwrap();
        found.push(Entry { name, mode, fields: std::mem::take(&mut fields), content });
    }
    (found, false)
}

#[test]
fn alpines_package_is_as_apk_reads_it() {
    let directory = package().with_file_name("alpine").join("x86_64");
    let path = directory.join(format!("smolet-{}-r0.apk", env!("CARGO_PKG_VERSION")));
    let file = fs::read(&path).unwrap();
    let streams = streams(&file);
    assert_eq!(streams.len(), 2, "control and data: it is not signed");
    let (control, ends) = entries(&streams[0].1);
    assert!(!ends, "the two are one archive, which an end would cut");
    let names: Vec<&str> = control.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, [".PKGINFO", ".post-install", ".post-upgrade", ".pre-deinstall", ".pre-install"]);
    let own = Root::new("formats-apk");
    let info = String::from_utf8(control[0].content.clone()).unwrap();
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
        line.unwrap_or_else(|| panic!("{name}: {info}")).to_owned()
    };
    let pkgver = concat!(env!("CARGO_PKG_VERSION"), "-r0");
    assert_eq!([field("pkgname"), field("pkgver"), field("arch")], ["smolet", pkgver, "x86_64"]);
    let data_file = own.0.join("data.gz");
    fs::write(&data_file, &file[streams[1].0..]).unwrap();
    assert_eq!(field("datahash"), sum("sha256sum", &data_file));

    let (data, ends) = entries(&streams[1].1);
    assert!(ends);
    let scratch = own.0.join("one");
    let mut size = 0;
    for entry in data.iter().filter(|entry| !entry.content.is_empty()) {
        fs::write(&scratch, &entry.content).unwrap();
        let told = entry.fields.get("APK-TOOLS.checksum.SHA1");
        assert_eq!(told, Some(&sum("sha1sum", &scratch)), "{}", entry.name);
        size += entry.content.len();
    }
    assert_eq!(field("size"), size.to_string());
    for (name, mode) in [
        ("usr/bin/smolet", 0o755),
        ("etc/init.d/smolet", 0o755),
        ("etc/conf.d/smolet", 0o644),
        ("etc/smolet/config.yaml", 0o600),
        ("etc/smolet/manifests", 0o700),
        ("var/lib/smolet", 0o750),
        ("usr/share/licenses/smolet/copyright", 0o644),
        ("usr/share/smolet/systemd/embedded.conf", 0o644),
        ("usr/share/man/man8/smolet.8.gz", 0o644),
    ] {
        let found = data.iter().find(|entry| entry.name.trim_end_matches('/') == name);
        assert_eq!(found.map(|entry| entry.mode), Some(mode), "{name}");
    }

    // Signed with a key whose public half is where apk looks for it.
    let key = own.0.join("maintainers.rsa");
    run(&["openssl", "genrsa", "-out", key.to_str().unwrap(), "2048"]);
    let mut build = build("apk", &own.0);
    text(&build.env("APK_KEY", &key).output().unwrap());
    let signed = fs::read(own.0.join("alpine/x86_64").join(path.file_name().unwrap())).unwrap();
    let parts = self::streams(&signed);
    assert_eq!(parts.len(), 3);
    assert!(signed[parts[1].0..] == file[..], "behind the signature it is the same");
    let (signature, ends) = entries(&parts[0].1);
    assert_eq!((signature.len(), &*signature[0].name, ends), (1, ".SIGN.RSA.maintainers.rsa.pub", false));
    let (signed_part, written) = (own.0.join("control.gz"), own.0.join("signature"));
    fs::write(&signed_part, &signed[parts[1].0..parts[2].0]).unwrap();
    fs::write(&written, &signature[0].content).unwrap();
    let mut verify = Command::new("openssl");
    verify.args(["dgst", "-sha1", "-prverify"]).arg(&key).arg("-signature").arg(&written).arg(&signed_part);
    text(&verify.output().unwrap());
}

/// dist/build.sh of that format, from the tested program, into a directory.
fn build(format: &str, out: &Path) -> Command {
    let mut build = Command::new(repository().join("dist/build.sh"));
    build.arg("amd64").arg(tested_program()).arg(repository().join("target/pages")).arg(out).arg(format);
    build
}

#[test]
fn alpines_package_runs_under_openrc() {
    let root = Root::new("formats-apk-openrc");
    let directory = package().with_file_name("alpine").join("x86_64");
    let path = directory.join(format!("smolet-{}-r0.apk", env!("CARGO_PKG_VERSION")));
    run(&["tar", "-xzf", path.to_str().unwrap(), "--ignore-zeros", "-C", root.0.to_str().unwrap()]);
    let world = World::up("systemd-apk", version());
    // apk runs the scripts from a place of its own.
    let script = |name: &str| root.path(&format!(".{name}")).display().to_string();
    openrc(&world, &[&root.0]);
    let there = |program: &str, words: &[&str]| text(&world.program(program).args(words).output().unwrap());
    there("mkdir", &["-m", "750", "/var/lib/smolet"]);
    let service = |word: &str| world.program("/etc/init.d/smolet").arg(word).output().unwrap();
    let main = || supervised(&world);

    assert_eq!(there(&script("pre-install"), &[]), "");
    let said = there(&script("post-install"), &[]);
    assert!(said.contains("rc-update add smolet default"), "{said}");
    there("rc-update", &["add", "smolet", "default"]);
    assert!(world.path("/etc/runlevels/default/smolet").symlink_metadata().is_ok());
    there(&script("post-upgrade"), &[]);
    assert!(!service("status").status.success(), "an upgrade starts nothing that did not run");
    text(&service("start"));
    let first = wait_for("its process is known", main);
    wait_for("it answers", || world.path("/run/smolet/smolet.sock").exists().then_some(()));
    there(&script("post-upgrade"), &[]);
    wait_for("another one in its place", || main().filter(|now| *now != first));
    // The way back for a board that was taken over: apk removes the program whatever the script says.
    let taken_over =
        "mkdir -p /etc/systemd/system/k3s-agent.service.d && cd /etc/systemd/system/k3s-agent.service.d &&
        printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/smolet agent \\n' >smolet.conf";
    there("sh", &["-c", taken_over]);
    there(&script("pre-deinstall"), &[]);
    assert!(!world.path("/etc/systemd/system/k3s-agent.service.d").exists(), "k3s agent has its unit again");
    let is_enabled = || world.path("/etc/runlevels/default/smolet").symlink_metadata().is_ok();
    assert!(!service("status").status.success() && !is_enabled());

    // The archive's installation gives way: apk installs whatever the script says. Before that nothing of the package is there.
    let own = ["/usr/bin/smolet", "/etc/init.d/smolet", "/etc/logrotate.d/smolet"];
    there("rm", &own);
    let archive = unpacked(&world.dir.join("unpacked"));
    there("sh", &[archive.join("install.sh").to_str().unwrap(), "--init", "openrc"]);
    there("sh", &["-c", "echo '# Mine.' >>/etc/conf.d/smolet"]);
    let runs = |program: &str| {
        wait_for(&format!("{program} runs"), || {
            let link = format!("/proc/{}/exe", main()?.trim());
            let found = world.program("readlink").arg(link).output().unwrap();
            (String::from_utf8_lossy(&found.stdout).trim() == program).then_some(())
        });
    };
    runs("/usr/local/bin/smolet");
    assert!(is_enabled());
    there(&script("pre-install"), &[]);
    assert!(!service("status").status.success());
    for gone in ["/usr/local/lib/smolet", "/usr/local/bin/smolet", "/etc/init.d/smolet"] {
        assert!(!world.path(gone).exists(), "{gone}");
    }
    for path in own {
        there("cp", &["-p", root.path(path).to_str().unwrap(), path]);
    }
    let said = there(&script("post-install"), &[]);
    assert!(!said.contains("rc-update add"), "{said}");
    runs("/usr/bin/smolet");
    assert!(service("status").status.success() && is_enabled());
    assert!(there("cat", &["/etc/conf.d/smolet"]).ends_with("# Mine.\n"), "settings stay");
    assert!(!world.path("/run/smolet-was-started").exists());

    // One that does not give way keeps its service when the package goes.
    there("mkdir", &["-p", "/usr/local/lib/smolet"]);
    fs::write(world.path("/usr/local/lib/smolet/installed"), "").unwrap();
    let refused = world.program(&script("pre-install")).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let mend = "run /usr/local/lib/smolet/install.sh --uninstall, and apk fix smolet";
    assert!(!refused.status.success() && said.contains(mend), "{said}");
    there(&script("pre-deinstall"), &[]);
    assert!(service("status").status.success() && is_enabled());
    fs::remove_dir_all(world.path("/usr/local/lib/smolet")).unwrap();
    there(&script("pre-deinstall"), &[]);
    assert!(!service("status").status.success() && !is_enabled());
}

/// What /etc/rc.common of OpenWrt does with a service's script, as far as that script uses it: procd is told what the words say.
const RC_COMMON: &str = r#"#!/bin/sh
initscript=$1 action=$2
procd_open_instance() { echo open; }
procd_close_instance() { echo close; }
procd_set_param() { echo "$*"; }
enable() { ln -sf "../init.d/smolet" "/etc/rc.d/S$START"smolet; ln -sf ../init.d/smolet "/etc/rc.d/K$STOP"smolet; }
disable() { rm -f /etc/rc.d/???smolet; }
enabled() { [ -L "/etc/rc.d/S$START"smolet ]; }
procd_kill() { [ -z "$ends" ] || kill "$ends"; }
stop() { echo stop; stop_service; procd_kill; service_stopped; }
restart() { echo restart; start_service; }
start() { start_service; }
. "$initscript"
$action
"#;

#[test]
fn openwrts_package_is_as_opkg_reads_it() {
    let bare = Bare::new("formats-ipk");
    let root = &bare.0;
    let package = beside_package("-1_amd64.ipk");
    let inside = |path: &str| root.path(path).display().to_string();
    fs::create_dir_all(root.path("/tmp/ipk/control")).unwrap();
    run(&["tar", "-xzf", package.to_str().unwrap(), "-C", &inside("/tmp/ipk")]);
    assert_eq!(fs::read_to_string(root.path("/tmp/ipk/debian-binary")).unwrap(), "2.0\n");
    run(&["tar", "-xzf", &inside("/tmp/ipk/control.tar.gz"), "-C", &inside("/tmp/ipk/control")]);
    let control = fs::read_to_string(root.path("/tmp/ipk/control/control")).unwrap();
    let version = concat!("Version: ", env!("CARGO_PKG_VERSION"), "-1");
    for line in ["Package: smolet", version, "Architecture: all", "License: Apache-2.0"] {
        assert!(control.lines().any(|found| found == line), "{line}: {control}");
    }
    let (data, _) = entries(&streams(&fs::read(root.path("/tmp/ipk/data.tar.gz")).unwrap())[0].1);
    let bytes: usize = data.iter().map(|entry| entry.content.len()).sum();
    assert!(control.contains(&format!("Installed-Size: {bytes}\n")), "{control}");
    for name in fs::read_to_string(root.path("/tmp/ipk/control/conffiles")).unwrap().lines() {
        assert!(data.iter().any(|entry| entry.name == format!(".{name}")), "{name}");
    }

    assert!(data.iter().any(|entry| entry.name == "./usr/share/smolet/systemd/embedded.conf"));

    // In the order in which opkg does it, in a root of its own.
    let there = |words: &[&str]| bare.run(words);
    fs::create_dir(root.path("/sbin")).unwrap();
    let machine = root.path("/sbin/uname");
    program_file(&machine, "#!/bin/sh\necho mips\n");
    // busybox' shell would take its own.
    let refused = there(&["dash", "/tmp/ipk/control/preinst"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success()
            && said.contains("this package is for amd64 (x86_64), and this machine is mips"),
        "{said}"
    );
    fs::remove_file(machine).unwrap();
    text(&there(&["sh", "/tmp/ipk/control/preinst"]));
    run(&["tar", "-xzf", &inside("/tmp/ipk/data.tar.gz"), "-C", root.0.to_str().unwrap()]);
    fs::create_dir(root.path("/etc/rc.d")).unwrap();
    program_file(&root.path("/etc/rc.common"), RC_COMMON);
    text(&there(&["env", "IPKG_INSTROOT=/", "sh", "/tmp/ipk/control/postinst"]));
    assert!(!root.path("/etc/rc.d/S95smolet").is_symlink(), "an image is not this machine");
    let told = text(&there(&["sh", "/tmp/ipk/control/postinst"]));
    let command = "command /usr/bin/smolet run --config /etc/smolet/config.yaml --oom-score-adj -999 --root-dir /srv/smolet \
        --container-log-max-size 256Ki --container-log-max-files 2";
    assert_eq!(told.lines().map(str::trim).take(3).collect::<Vec<_>>(), ["restart", "open", command]);
    assert!(told.contains("\nrespawn 3600 5 0\n") && told.ends_with("close\n"), "{told}");
    assert!(root.path("/etc/rc.d/S95smolet").is_symlink() && root.path("/etc/rc.d/K05smolet").is_symlink());
    let disabled =
        text(&there(&["sh", "-c", "/etc/init.d/smolet disable; PKG_UPGRADE=1 /tmp/ipk/control/postinst"]));
    assert!(disabled.is_empty() && !root.path("/etc/rc.d/S95smolet").is_symlink(), "stays so: {disabled}");
    text(&there(&["sh", "-c", "/etc/init.d/smolet enable; PKG_UPGRADE=1 /tmp/ipk/control/postinst"]));
    // The program has these arguments, and another place of the state is the owner's to say.
    let words = [
        "run",
        "--config",
        "/etc/smolet/config.yaml",
        "--oom-score-adj",
        "-999",
        "--root-dir",
        "/srv/smolet",
        "--container-log-max-size",
        "256Ki",
        "--container-log-max-files",
        "2",
        "--help",
    ];
    text(&there(&[&["/usr/bin/smolet"], &words[..]].concat()));
    fs::write(root.path("/etc/default/smolet"), "SMOLET_EXTRA_ARGS='--root-dir=/mnt/sda1/smolet'\n").unwrap();
    let told = text(&there(&["/etc/init.d/smolet", "start"]));
    let logs = "--container-log-max-size 256Ki --container-log-max-files 2";
    let expected = format!("config.yaml --oom-score-adj -999 {logs} --root-dir=/mnt/sda1/smolet\n");
    assert!(told.contains(&expected) && told.contains("\nterm_timeout 30\n"), "{told}");
    fs::write(root.path("/etc/smolet/config.yaml"), "oomScoreAdj: -500\ncontainerLogMaxSize: 1Mi\n").unwrap();
    let arguments = "SMOLET_EXTRA_ARGS='--shutdown-on-sigterm --root-dir=/mnt/sda1/smolet'\n";
    fs::write(root.path("/etc/default/smolet"), arguments).unwrap();
    let told = text(&there(&["/etc/init.d/smolet", "start"]));
    let expected =
        "config.yaml --container-log-max-files 2 --shutdown-on-sigterm --root-dir=/mnt/sda1/smolet\n";
    assert!(told.contains(expected) && told.contains("\nterm_timeout 300\n"), "{told}");
    // procd itself would not wait for the end of its pods.
    let ends = "mkdir -p /var/run; (sh -c 'trap \"sleep 1; exit\" TERM; while :; do sleep 0.1; done' & echo $! >/var/run/smolet.pid); \
                sleep 0.3; /etc/init.d/smolet stop; kill -0 $(cat /var/run/smolet.pid) 2>/dev/null || echo ended";
    assert_eq!(text(&there(&["sh", "-c", ends])), "stop\nended\n");
    // What an upgrade of the firmware keeps.
    let kept = fs::read_to_string(root.path("/lib/upgrade/keep.d/smolet")).unwrap();
    // A node that has joined k3s is known by its password, and its name may have a part of that directory.
    let to_keep = ["/etc/smolet/", "/etc/default/smolet", "/srv/smolet/k3s/", "/etc/rancher/node/"];
    assert!(to_keep.iter().all(|path| kept.lines().any(|line| line == *path)), "{kept}");
    // Beside the archive's there is no package.
    fs::create_dir_all(root.path("/usr/local/lib/smolet")).unwrap();
    fs::write(root.path("/usr/local/lib/smolet/installed"), "").unwrap();
    let refused = there(&["sh", "/tmp/ipk/control/preinst"]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--uninstall first")
    );
    fs::remove_dir_all(root.path("/usr/local/lib/smolet")).unwrap();
    let told = text(&there(&["sh", "/tmp/ipk/control/prerm"]));
    assert!(told.contains("stop") && !root.path("/etc/rc.d/S95smolet").is_symlink(), "{told}");
}

/// What BitBake lets a task call of the build machine's programs (`HOSTTOOLS` of OpenEmbedded-Core's `bitbake.conf`).
const HOSTTOOLS: &str = "[ ar as awk basename bash bunzip2 bzip2 cat chgrp chmod chown chrpath cmp comm cp cpio cpp cut date dd diff \
    diffstat dirname du echo egrep env expand expr false fgrep file find flock g++ gawk gcc getconf getopt git grep gunzip gzip \
    head hostname iconv id install ld ldd ln ls lz4 make md5sum mkdir mkfifo mknod mktemp mv nm objcopy objdump od patch perl pr \
    printf pwd python3 pzstd ranlib readelf readlink realpath rm rmdir rpcgen sed seq sh sha1sum sha224sum sha256sum sha384sum \
    sha512sum sleep sort split stat strings strip tail tar tee test touch tr true truncate uname uniq unzstd wc wget which xargs zstd";

/// A directory with those of them that are here.
fn host_tools(below: &Path) -> PathBuf {
    let tools = below.join("hosttools");
    fs::create_dir(&tools).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in HOSTTOOLS.split_whitespace() {
        if let Some(found) = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists())
        {
            symlink(found, tools.join(name)).unwrap();
        }
    }
    tools
}

/// What BitBake makes of a recipe, as far as this one uses it: `python3 -c BITBAKE RECIPE VERSION ARCHIVES LAYERS` prints what is
/// recommended, then runs what follows the fetch, for an archive that is a file.
const BITBAKE: &str = r#"
import hashlib, re, sys

recipe = open(sys.argv[1]).read()
values = dict(zip(("PV", "SMOLET_ARCHIVES", "BBFILE_COLLECTIONS"), sys.argv[2:]), SMOLET_ARCH="amd64")
assigned = {}
for name, more, value in re.findall(r'^(\S+) (\+?)= "(.*)"$', recipe, re.M):
    assigned[name] = f"{assigned[name]} {value}" if more and name in assigned else value

class d:
    def getVar(name):
        if name in values:
            return values[name]
        text = re.sub(r"\$\{@(.*?)\}", lambda found: eval(found[1]), assigned[name])
        return re.sub(r"\$\{(\w+)\}", lambda found: d.getVar(found[1]), text)
    def getVarFlag(name, flag):
        return assigned.get(f"{name}[{flag}]")

class bb:
    class utils:
        def contains(name, word, yes, no, d):
            return yes if word in d.getVar(name).split() else no
        def sha256_file(path):
            return hashlib.sha256(open(path, "rb").read()).hexdigest()
    class fetch2:
        class Fetch:
            def __init__(self, urls, d):
                self.urls = urls
            def localpaths(self):
                return [url.split(";")[0].removeprefix("file://") for url in self.urls]
    fatal = sys.exit

print(d.getVar("RRECOMMENDS:${PN}"))
for name in assigned["do_fetch[postfuncs]"].split():
    exec("def run():\n" + re.search(r"^python %s\(\) \{\n(.*?)^\}" % name, recipe, re.M | re.S)[1])
    run()
"#;

/// Of a shell function of a recipe the lines between its braces.
fn body(recipe: &str, function: &str) -> String {
    let (_, rest) = recipe.split_once(&format!("{function}() {{\n")).unwrap();
    rest.split_once("\n}\n").unwrap().0.to_owned()
}

#[test]
fn a_release_is_whole_and_the_same_again() {
    let own = Root::new("formats-release");
    let out = own.0.join("dist");
    let triple = "x86_64-unknown-linux-musl";
    let secret = own.0.join("cosign.pem");
    run(&[
        "openssl",
        "ecparam",
        "-name",
        "prime256v1",
        "-genkey",
        "-noout",
        "-out",
        secret.to_str().unwrap(),
    ]);
    // Of these nothing is seen in what comes out.
    let release = |out: &Path, umask: &str, zone: &str, scratch: &Path, parts: Option<&Path>| {
        let mut release = Command::new("sh");
        release.args(["-c", "umask $0 && exec \"$@\"", umask]).arg(repository().join("dist/release.sh"));
        release.arg(repository().join("target/pages")).arg(out);
        release.arg(format!("amd64={triple}={}", tested_program().display()));
        release.env("TZ", zone).env("COSIGN_KEY", &secret).env("TMPDIR", scratch).current_dir("/");
        if let Some(parts) = parts {
            // Without the compiler, also where the machine has it as a package.
            let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", own.0.join("no-compiler").display());
            release.env("PARTS", parts).env("PATH", path);
        }
        text(&release.output().unwrap());
    };
    release(&out, "022", "Asia/Tokyo", &own.0.join("tmp"), None);
    let parts = own.0.join("parts");
    let made = format!(
        "mkdir {0} && cp {1}/*.cdx.json {0}/ && tar -xzOf {1}/smolet_*_linux_amd64.tar.gz --wildcards '*/copyright' >{0}/amd64.copyright",
        parts.display(),
        out.display()
    );
    run(&["sh", "-c", &made]);
    let refuse = "mkdir $0 && for name in cargo rustc zig; do printf '#!/bin/sh\nexit 1\n' >$0/$name && chmod 755 $0/$name; done";
    run(&["sh", "-c", refuse, own.0.join("no-compiler").to_str().unwrap()]);
    // Another file system, whose directories have other sizes; and of parts that are there, as where a release is signed.
    let (again, scratch) =
        (own.0.join("again"), Path::new("/dev/shm").join(format!("smolet-release-{}", std::process::id())));
    fs::create_dir(&scratch).unwrap();
    release(&again, "077", "America/Lima", &scratch, Some(&parts));
    fs::remove_dir(&scratch).expect("nothing is left there");
    for entry in fs::read_dir(&out).unwrap() {
        let name = entry.unwrap().file_name();
        let is_same = fs::read(out.join(&name)).unwrap() == fs::read(again.join(&name)).unwrap();
        // ECDSA's signatures differ each time.
        assert!(is_same || name == "SHA256SUMS.sig", "{}: other bytes the second time", name.display());
    }

    let version = env!("CARGO_PKG_VERSION");
    let name = |end: &str| out.join(format!("smolet_{version}{end}"));
    // `make package` has built the packages before.
    for end in ["_amd64.deb", "_linux_amd64.tar.gz", "-1_amd64.ipk"] {
        assert!(fs::read(name(end)).unwrap() == fs::read(beside_package(end)).unwrap(), "{end}: other bytes");
    }
    let apk = format!("alpine/x86_64/smolet-{version}-r0.apk");
    run(&["tar", "-xzf", name("_alpine.tar.gz").to_str().unwrap(), "-C", own.0.to_str().unwrap()]);
    assert!(
        fs::read(own.0.join(&apk)).unwrap() == fs::read(package().with_file_name(&apk)).unwrap(),
        "other bytes"
    );
    text(
        &Command::new("sha256sum").args(["--quiet", "-c", "SHA256SUMS"]).current_dir(&out).output().unwrap(),
    );
    let sums = fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    let listed: Vec<&str> = sums.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    let found = Command::new("find").args([".", "-type", "f", "-printf", "%P\\n"]).current_dir(&out).output();
    let found = text(&found.unwrap());
    assert!(
        !found.contains('/'),
        "a published file's name has no directory, and its sum has to name it: {found}"
    );
    let mut found: Vec<&str> = found.lines().filter(|name| !name.starts_with("SHA256SUMS")).collect();
    found.sort_unstable();
    assert_eq!(listed, found);
    assert!(fs::read_to_string(out.join("CHANGES.md")).unwrap().contains(&format!("## {version}")));
    // cosign's signature of a file, with a key: the DER of ECDSA over its SHA-256, in base64.
    let signature = own.0.join("signature");
    let decoded = Command::new("base64").arg("-d").arg(out.join("SHA256SUMS.sig")).output().unwrap();
    fs::write(&signature, decoded.stdout).unwrap();
    let mut verify = Command::new("openssl");
    verify.args(["dgst", "-sha256", "-prverify"]).arg(&secret).arg("-signature").arg(&signature);
    text(&verify.arg(out.join("SHA256SUMS")).output().unwrap());

    // What the program is made of: every crate of the licences' list, with its sum, and nothing that only the build has.
    let list: Value = serde_json::from_slice(&fs::read(name("_amd64.cdx.json")).unwrap()).unwrap();
    let components = list["components"].as_array().unwrap();
    let copyright = run(&[
        "tar",
        "-xOzf",
        name("_linux_amd64.tar.gz").to_str().unwrap(),
        &format!("smolet_{version}_linux_amd64/copyright"),
    ]);
    let (_, crates) = copyright.split_once("under these licences:\n\n").unwrap();
    let crates: Vec<&str> = crates.lines().take_while(|line| !line.is_empty()).collect();
    assert!(crates.len() > 60, "{crates:?}");
    assert_eq!(components.len(), crates.len() + 3, "and std, musl and the compiler's routines");
    for line in crates {
        let mut words = line.split(' ');
        let purl = format!("pkg:cargo/{}@{}", words.next().unwrap(), &words.next().unwrap()[1..]);
        let component = components.iter().find(|component| component["purl"] == *purl);
        let component = component.unwrap_or_else(|| panic!("{purl}"));
        let hash = component["hashes"][0]["content"].as_str().unwrap();
        assert!(hash.len() == 64 && component["licenses"][0]["expression"].is_string(), "{component}");
    }

    // The layer for Yocto: its recipe has the archive's sum, and what it does with the archive is done here.
    let layer = own.0.join("layer");
    fs::create_dir(&layer).unwrap();
    run(&["tar", "-xzf", name("_yocto.tar.gz").to_str().unwrap(), "-C", layer.to_str().unwrap()]);
    let recipes = layer.join("meta-smolet/recipes-containers/smolet");
    let recipe = fs::read_to_string(recipes.join(format!("smolet-bin_{version}.bb"))).unwrap();
    let archive_sum =
        format!("SRC_URI[amd64.sha256sum] = \"{}\"\n", sum("sha256sum", &name("_linux_amd64.tar.gz")));
    assert!(recipe.contains(&archive_sum), "{recipe}");
    let license = sum("md5sum", &repository().join("LICENSE"));
    assert!(recipe.contains(&format!("file://LICENSE;md5={license}\"")), "{recipe}");
    assert!(!recipe.contains("\n@") && !recipe.contains("=@"), "what was to be filled in: {recipe}");
    // The archive of another release, or one that is damaged, is not built from.
    let bitbake = |archives: &Path, layers: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", BITBAKE]).arg(recipes.join(format!("smolet-bin_{version}.bb"))).arg(version);
        python.arg(format!("file://{}", archives.display())).arg(layers).output().unwrap()
    };
    let recommended = text(&bitbake(&out, "core smolet"));
    assert!(
        !recommended.contains("cni") && recommended.contains("iptables"),
        "no layer has it: {recommended}"
    );
    assert!(text(&bitbake(&out, "core virtualization-layer smolet")).trim().ends_with(" cni"));
    let damaged = own.0.join("damaged");
    fs::create_dir(&damaged).unwrap();
    let archive = name("_linux_amd64.tar.gz");
    let mut other = fs::read(&archive).unwrap();
    other.push(0);
    fs::write(damaged.join(archive.file_name().unwrap()), other).unwrap();
    let refused = bitbake(&damaged, "core smolet");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("not the archive of this release"), "{said}");
    let source = unpacked(&own.0.join("source"));
    let tools = host_tools(&own.0);
    let install_to = |name: &str, units: &str| {
        let destination = own.0.join(name);
        fs::create_dir(&destination).unwrap();
        let (s, d, body) = (source.display(), destination.display(), body(&recipe, "do_install"));
        let mut sh = Command::new(tools.join("sh"));
        sh.args(["-c", &format!("set -eu\nS={s} D={d} systemd_system_unitdir={units}\n{body}")]);
        text(&sh.env("PATH", &tools).output().unwrap());
        destination
    };
    // Where /lib is no link to /usr/lib, systemd's class looks for units there.
    let split = install_to("split", "/lib/systemd/system");
    assert!(
        split.join("lib/systemd/system/smolet.service").exists() && !split.join("usr/lib/systemd").exists()
    );
    let destination = install_to("image", "/usr/lib/systemd/system");
    let mut find = Command::new("find");
    let staged = text(
        &find.args([".", "!", "-type", "d", "-printf", "/%P\\n"]).current_dir(&destination).output().unwrap(),
    );
    for path in [
        "/usr/bin/smolet",
        "/usr/lib/systemd/system/smolet.service",
        "/usr/lib/tmpfiles.d/smolet.conf",
        "/usr/share/smolet/systemd/embedded.conf",
        "/etc/smolet/config.yaml",
    ] {
        assert!(staged.lines().any(|found| found == path), "{path}: {staged}");
    }
    assert!(
        !staged.contains("/var/") && !staged.contains("wants") && !destination.join("var").exists(),
        "{staged}"
    );

    // Alpine's recipe has the source's sum, and the source is what is committed.
    let recipe = fs::read_to_string(own.0.join("alpine/APKBUILD")).unwrap();
    let source = name("_source.tar.gz");
    assert!(
        recipe.contains(&format!("\n{}  smolet_{version}_source.tar.gz\n", sum("sha512sum", &source))),
        "{recipe}"
    );
    run(&["sh", "-n", own.0.join("alpine/APKBUILD").to_str().unwrap()]);
    let listed = run(&["tar", "-tzf", source.to_str().unwrap()]);
    for file in ["Cargo.toml", "Cargo.lock", "proto/", "dist/openrc/smolet", "build.rs"] {
        assert!(listed.lines().any(|found| found == format!("smolet-{version}/{file}")), "{file}");
    }
}

#[test]
fn what_cannot_be_built_or_signed_is_refused() {
    let own = Root::new("formats-refused");
    let refused = |command: &mut Command, why: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    refused(&mut build("rpm", &own.0), "unknown format rpm; one of: deb archive apk ipk");
    let sign = |kind: &str, variable: &str, key: &Path| {
        let mut sign = Command::new(repository().join("dist/sign.sh"));
        sign.arg(kind).arg(own.0.join("file")).env(variable, key);
        sign
    };
    fs::write(own.0.join("file"), "text").unwrap();
    let key = own.0.join("key");
    refused(&mut sign("minisign", "MINISIGN_KEY", &key), "MINISIGN_KEY names no secret key of minisign");
    refused(&mut sign("gpg", "GPG_KEY", &key), "unknown kind gpg; one of: minisign cosign");
    refused(&mut sign("cosign", "COSIGN_KEY", &key), "COSIGN_KEY names no secret key");
    fs::write(&key, "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n").unwrap();
    refused(
        sign("cosign", "COSIGN_KEY", &key).env("PATH", "/bin:/usr/bin"),
        "is a key of cosign's own kind, and cosign is not there",
    );
    run(&["openssl", "genrsa", "-out", key.to_str().unwrap(), "2048"]);
    refused(&mut sign("cosign", "COSIGN_KEY", &key), "is no EC P-256 key in PEM");
    assert!(!own.0.join("file.sig").exists());
}

#[test]
fn the_workflow_that_publishes_runs_in_bash_and_breaks_no_json() {
    let workflow = fs::read_to_string(repository().join(".github/workflows/release.yml")).unwrap();
    // In a container the default is its sh, which is dash.
    assert!(workflow.contains("\ndefaults:\n  run:\n    shell: bash\n"), "{workflow}");
    assert_eq!(workflow.matches("shell:").count(), 1, "one for all steps");
    // A shell's echo may make a line's end of \n, where a text of JSON ends.
    let pipes: Vec<&str> = workflow.lines().filter(|line| line.contains("| jq")).collect();
    assert!(!pipes.is_empty() && pipes.iter().all(|line| !line.contains("echo ")), "{pipes:?}");
}
