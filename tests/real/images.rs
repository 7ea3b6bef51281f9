//! Images: pulls with and without logins, and archives.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use smolet::cri::Runtime as _;

use crate::agent::{Agent, PATIENCE, container, is_ready, waits_for};
use crate::registry::{MANIFEST, Registry, STAYS, TestImage, architecture, basic, digest, pack};
use crate::runtime::{Runtime, is_embedded, wait_for};

fn logins(registry: &Registry, login: &str) -> String {
    let (user, password) = login.split_once(':').unwrap();
    format!(
        r#"{{"auths": {{"http://{}": {{"username": "{user}", "password": "{password}"}}}}}}"#,
        registry.address
    )
}

fn pod(registry: &Registry, repository: &str, secret: &str) -> String {
    format!(
        "
  terminationGracePeriodSeconds: 2
  imagePullSecrets: [{{name: {secret}}}]
  containers:
  - {{name: app, image: '{}/{repository}:1', imagePullPolicy: Always, command: {STAYS}}}",
        registry.address
    )
}

fn secret(name: &str, config: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/dockerconfigjson\n\
         stringData: {{.dockerconfigjson: '{config}'}}\n"
    )
}

pub fn private_images_are_pulled_with_the_right_login_only(runtime: &Runtime) {
    const RIGHT: &str = "me:hunter2hunter2";
    const WRONG: &str = "me:swordfish-no-more";
    let agent = Agent::started(runtime, "logins");
    let image = TestImage::new(&agent.dir, "private", architecture());
    let registry = Registry::start(&image, &["open", "private/app"], RIGHT);

    agent.apply_pod("open", &pod(&registry, "open", "absent"));
    let open = agent.running("open");
    let image_id = container(open.status.as_ref().unwrap(), "app").unwrap().image_id.clone();
    assert!(
        image_id.contains(&digest(&image.manifest)) || image_id.contains(&digest(&image.config)),
        "{image_id}"
    );
    let described = agent.ask(&["describe", &agent.full("open")]);
    let described = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(described.contains("Unable to retrieve some image pull secrets (absent)"), "{described}");
    assert!(
        described.contains("Successfully pulled image") && described.contains("including waiting"),
        "{described}"
    );

    let waits = |name: &str| {
        let pod = agent.wait_pod(name, "waiting for its image", |status| {
            matches!(waits_for(status, "app"), Some("ErrImagePull" | "ImagePullBackOff"))
        });
        serde_json::to_string(&pod.status).unwrap()
    };
    agent.apply_pod("none", &pod(&registry, "private/app", "later"));
    waits("none");
    agent.apply("wrong", &secret("wrong", &logins(&registry, WRONG)));
    agent.apply_pod("other", &pod(&registry, "private/app", "wrong"));
    waits("other");
    assert!(registry.seen().iter().any(|(_, login)| *login == basic(WRONG)), "it was tried");
    assert!(registry.seen().iter().all(|(_, login)| *login != basic(RIGHT)), "nobody knows it yet");

    // The pod's own login, then the node's for the pod that has none.
    agent.apply("later", &secret("later", &logins(&registry, RIGHT)));
    let runs = |name: &str| {
        // The back-off of its pulls may have reached 80 s.
        wait_for(&format!("{name} runs"), 3 * PATIENCE, || {
            agent.pod(name)?.status.as_ref().is_some_and(is_ready).then_some(())
        });
    };
    runs("none");
    agent.delete("none");
    agent.wait_gone("none");
    let node_logins = agent.dir.join("root/config.json");
    fs::write(&node_logins, logins(&registry, RIGHT)).unwrap();
    fs::set_permissions(&node_logins, fs::Permissions::from_mode(0o644)).unwrap();
    runs("other");
    let asked = ("/v2/private/app/manifests/1".to_owned(), basic(RIGHT));
    assert!(registry.seen().contains(&asked), "{:?}", registry.seen());

    let log = agent.log();
    assert_eq!(log.matches(&format!("chmod 600 {}", node_logins.display())).count(), 1, "said once");
    for login in [RIGHT, WRONG] {
        let (_, password) = login.split_once(':').unwrap();
        for text in [password, basic(login).trim_start_matches("Basic ")] {
            assert!(!log.contains(text), "the log, at its most talkative, has no login");
        }
    }
    agent.end_pods();
}

/// An OCI layout with that index, put there in one step.
fn oci_archive(agent: &Agent, to: &Path, images: &[&TestImage], index: &Value) {
    let root = agent.dir.join("layout");
    fs::create_dir_all(root.join("blobs/sha256")).unwrap();
    for blob in images.iter().flat_map(|image| image.blobs()) {
        fs::write(root.join("blobs").join(digest(blob).replace(':', "/")), blob).unwrap();
    }
    fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    fs::write(root.join("index.json"), index.to_string()).unwrap();
    put_archive(agent, to, &root);
}

/// As `docker save` writes it.
pub fn docker_archive(agent: &Agent, to: &Path, image: &TestImage, tag: &str) {
    let root = agent.dir.join("save");
    fs::create_dir_all(root.join("0")).unwrap();
    fs::write(root.join("0/layer.tar"), &image.layer).unwrap();
    fs::write(root.join("c.json"), &image.config).unwrap();
    let manifest = json!([{"Config": "c.json", "RepoTags": [tag], "Layers": ["0/layer.tar"]}]);
    fs::write(root.join("manifest.json"), manifest.to_string()).unwrap();
    put_archive(agent, to, &root);
}

fn put_archive(agent: &Agent, to: &Path, root: &Path) {
    let part = agent.dir.join("part");
    pack(root, &part);
    fs::remove_dir_all(root).unwrap();
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::rename(part, to).unwrap();
}

fn never_pulled(image: &str) -> String {
    format!(
        "
  terminationGracePeriodSeconds: 2
  containers:
  - {{name: app, image: '{image}', imagePullPolicy: Never, command: {STAYS}}}"
    )
}

fn named(image: &TestImage, name: &str) -> Value {
    let mut entry = image.descriptor();
    entry["annotations"] = json!({"io.containerd.image.name": name});
    entry
}

/// The labels of an image record, as `ctr` shows them.
fn labels(runtime: &Runtime, name: &str) -> String {
    let list = runtime.ctr(&["images", "ls"]);
    list.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default().to_owned()
}

pub fn archives_are_imported_and_their_pods_start_without_a_registry(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "archives");
    agent.apply_pod("oci", &never_pulled("archive.test/oci:1"));
    agent.apply_pod("saved", &never_pulled("archive-test-saved:2"));
    for name in ["oci", "saved"] {
        agent.wait_pod(name, "waiting for its image", |status| {
            waits_for(status, "app") == Some("ErrImageNeverPull")
        });
    }
    // One that is for another machine stands beside it, and is not in the archive.
    let image = TestImage::new(&agent.dir, "oci", architecture());
    let mut here = image.descriptor();
    here["platform"] = json!({"os": "linux", "architecture": architecture()});
    let other = json!({"mediaType": MANIFEST, "digest": digest(b"other"), "size": 5,
        "platform": {"os": "linux", "architecture": "s390x"}});
    let nested = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [other, here]});
    let nested = TestImage { manifest: nested.to_string().into_bytes(), ..image.clone() };
    let mut entry = named(&nested, "archive.test/oci:1");
    entry["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    let (a, b) = (agent.images().join("a.tar"), agent.images().join("b.tar"));
    oci_archive(&agent, &a, &[&image, &nested], &index);
    docker_archive(&agent, &b, &TestImage::new(&agent.dir, "saved", architecture()), "archive-test-saved:2");
    agent.running("oci");
    agent.running("saved");
    for (name, archive) in
        [("archive.test/oci:1", "a.tar"), ("docker.io/library/archive-test-saved:2", "b.tar")]
    {
        kept_for(runtime, name, archive);
    }
    if !is_embedded() {
        garbage_of_containerd_is_none_of_theirs(runtime);
    }
    agent.end_pods();
    agent.apply_pod("again", &never_pulled("archive.test/oci:1"));
    agent.running("again");
    if !is_embedded() {
        importer_of_containerd_makes_the_same(runtime, &b);
    }

    // What is there is not imported again, what has changed is.
    agent.stop_imports();
    assert_eq!(agent.imports(&[&a, &b]), 2);
    agent.start_imports();
    let changed = TestImage::new(&agent.dir, "changed", architecture());
    docker_archive(&agent, &b, &changed, "archive-test-saved:2");
    wait_for("the changed archive is imported", PATIENCE, || (agent.imports(&[&a, &b]) == 3).then_some(()));
    image_becomes(runtime, "archive-test-saved:2", &changed);

    // An image whose archive is gone is as any other.
    fs::remove_file(a).unwrap();
    wait_for("it is not pinned any more", PATIENCE, || {
        is_as_any_other(runtime, "archive.test/oci:1").then_some(())
    });
    fs::remove_file(b).unwrap();
    agent.end_pods();
}

/// Waits until the runtime's CRI knows this image by that name: containerd's learns of it by an event.
fn image_becomes(runtime: &Runtime, name: &str, image: &TestImage) {
    wait_for(&format!("{name} is the archive's image"), PATIENCE, || {
        runtime.image(name).filter(|found| *found.id == *digest(&image.config)).map(drop)
    });
}

fn kept_for(runtime: &Runtime, name: &str, archive: &str) {
    wait_for(&format!("{name} is kept for {archive}"), PATIENCE, || {
        is_kept_for(runtime, name, archive).then_some(())
    });
}

/// Waits until no import holds a lease of that name.
fn no_lease(runtime: &Runtime, name: &str) {
    wait_for("no lease is left", PATIENCE, || (!runtime.ctr(&["leases", "ls"]).contains(name)).then_some(()));
}

/// The image is pinned for that archive: containerd's record names it, of the embedded runtime the CRI tells that it is pinned.
fn is_kept_for(runtime: &Runtime, name: &str, archive: &str) -> bool {
    if is_embedded() {
        return runtime.image(name).is_some_and(|image| image.pinned);
    }
    let labels = labels(runtime, name);
    labels.contains("io.cri-containerd.pinned=pinned") && labels.contains(&format!("1 {archive}"))
}

fn is_as_any_other(runtime: &Runtime, name: &str) -> bool {
    if is_embedded() {
        return runtime.image(name).is_some_and(|image| !image.pinned);
    }
    let labels = labels(runtime, name);
    !labels.contains("pinned=") && !labels.contains("smolet.io/archive")
}

/// Nothing but the records keeps them now: what containerd takes for garbage is gone when this lease is.
fn garbage_of_containerd_is_none_of_theirs(runtime: &Runtime) {
    no_lease(runtime, "smolet-images");
    runtime.ctr(&["leases", "create", "--id", "collect"]);
    runtime.ctr(&["leases", "delete", "--sync", "collect"]);
    for name in ["archive.test/oci:1", "docker.io/library/archive-test-saved:2"] {
        let check = runtime.ctr(&["images", "check", &format!("name=={name}")]);
        assert!(check.contains("complete (") && !check.contains("incomplete"), "{check}");
    }
}

fn importer_of_containerd_makes_the_same(runtime: &Runtime, archive: &Path) {
    let target = || {
        labels(runtime, "docker.io/library/archive-test-saved:2").split_whitespace().nth(2).map(str::to_owned)
    };
    let ours = target();
    runtime.ctr(&["images", "import", &archive.display().to_string()]);
    assert!(
        ours.as_ref().is_some_and(|digest| digest.starts_with("sha256:")) && target() == ours,
        "{ours:?}"
    );
}

/// Two archives with one image, over restarts of who imports them. With containerd the first life finds what an import that was
/// killed left.
pub fn an_image_in_two_archives_is_that_of_the_last(runtime: &Runtime) {
    const NAME: &str = "twice.test/app:1";
    let mut agent = Agent::new(runtime, "twice");
    if !is_embedded() {
        runtime.ctr(&["leases", "create", "--id", "smolet-images-twice"]);
    }
    let (first, last) = (
        TestImage::new(&agent.dir, "first", architecture()),
        TestImage::new(&agent.dir, "last", architecture()),
    );
    let (a, b) = (agent.images().join("twice-a.tar"), agent.images().join("twice-b.tar"));
    agent.stop_imports();
    docker_archive(&agent, &a, &first, NAME);
    docker_archive(&agent, &b, &last, NAME);
    let imports = |agent: &Agent| agent.imports(&[&a, &b]);
    let told = |agent: &Agent| {
        let line = format!(
            "{}: image {NAME} is also in twice-b.tar; using twice-b.tar, the last by name",
            a.display()
        );
        agent.log_of_imports().matches(&line).count()
    };
    for life in 1..=3 {
        agent.start_imports();
        // The last one is looked at first.
        wait_for("both archives are looked at", PATIENCE, || (told(&agent) == life).then_some(()));
        assert_eq!(imports(&agent), 1, "the last one once, the first one never");
        image_becomes(runtime, NAME, &last);
        if !is_embedded() {
            no_lease(runtime, "smolet-images-twice");
        }
        agent.stop_imports();
    }
    agent.start_imports();
    fs::remove_file(&b).unwrap();
    wait_for("the other archive's image", PATIENCE, || (imports(&agent) == 2).then_some(()));
    image_becomes(runtime, NAME, &first);
    kept_for(runtime, NAME, "twice-a.tar");
    fs::remove_file(&a).unwrap();
    agent.end_pods();
}

pub fn archives_that_cannot_be_imported_are_named(runtime: &Runtime) {
    let agent = Agent::started(runtime, "bad-archives");
    let image = TestImage::new(&agent.dir, "bad", architecture());
    let index = json!({"schemaVersion": 2, "manifests": [named(&image, "bad.test/app:1")]});
    let elsewhere = agent.dir.join("good.tar");
    oci_archive(&agent, &elsewhere, &[&image], &index);
    let good = fs::read(elsewhere).unwrap();
    fs::create_dir_all(agent.images()).unwrap();
    // A layer with one byte changed: the runtime finds out.
    let at = good.windows(14).position(|bytes| bytes == b"bin/busybox\0\0\0").expect("the layer");
    let mut flipped = good.clone();
    flipped[at + 4096] ^= 1;
    let foreign = TestImage::new(&agent.dir, "foreign", "s390x");
    for (name, bytes) in
        [("cut.tar", &good[..good.len() / 2]), ("flipped.tar", &flipped), ("junk.tar", b"junk")]
    {
        let part = agent.dir.join("part");
        fs::write(&part, bytes).unwrap();
        fs::rename(part, agent.images().join(name)).unwrap();
    }
    docker_archive(&agent, &agent.images().join("foreign.tar"), &foreign, "foreign.test/app:1");
    fs::write(agent.images().join("packed.tar.bz2"), [b"BZh".as_slice(), &[0; 600]].concat()).unwrap();
    let flipped =
        if is_embedded() { "content of sha256:" } else { "the runtime refuses it: unexpected commit digest" };
    let archives = [
        ("cut.tar", "is cut off"),
        ("junk.tar", "is cut off"),
        ("foreign.tar", "foreign.test/app:1 is for linux/s390x, and this node is linux/"),
        ("packed.tar.bz2", "is compressed (bzip2), which is not supported; unpack it with bunzip2"),
        ("flipped.tar", flipped),
    ];
    for (name, wanted) in archives {
        let line = format!("{}: {wanted}", agent.images().join(name).display());
        wait_for(&line, PATIENCE, || agent.log_of_imports().contains(&line).then_some(()));
    }
    assert!(runtime.image("bad.test/app:1").is_none());
    if !is_embedded() {
        no_lease(runtime, "smolet-images");
    }
    for (name, _) in archives {
        fs::remove_file(agent.images().join(name)).unwrap();
    }
}

/// As k3s' own: archives of gzip and zstd, and a list of images.
pub fn compressed_archives_are_imported_and_listed_images_are_pulled(runtime: &Runtime) {
    let agent = Agent::started(runtime, "airgap");
    for (program, ending) in [("gzip", "tar.gz"), ("zstd", "tar.zst")] {
        let name = format!("airgap.test/{program}:1");
        let plain = agent.dir.join("plain.tar");
        docker_archive(&agent, &plain, &TestImage::new(&agent.dir, program, architecture()), &name);
        let packed = Command::new(program).args(["-c"]).stdin(File::open(&plain).unwrap()).output();
        let packed = packed.unwrap_or_else(|error| panic!("{program}: {error}")).stdout;
        assert!(
            packed.len() > 1000 && packed.len() < usize::try_from(plain.metadata().unwrap().len()).unwrap()
        );
        let (part, archive) = (agent.dir.join("part"), format!("{program}.{ending}"));
        fs::write(&part, packed).unwrap();
        fs::create_dir_all(agent.images()).unwrap();
        fs::rename(part, agent.images().join(&archive)).unwrap();
        agent.apply_pod(program, &never_pulled(&name));
        agent.running(program);
        kept_for(runtime, &name, &archive);
        wait_for("what it was unpacked to is gone", PATIENCE, || {
            (!agent.dir.join("root/image-archive").exists()).then_some(())
        });
        agent.delete(program);
        fs::remove_file(agent.images().join(archive)).unwrap();
    }
    let image = TestImage::new(&agent.dir, "listed", architecture());
    let registry = Registry::start(&image, &["open"], "me:hunter2hunter2");
    let listed = format!("{}/open:1", registry.address);
    fs::write(agent.images().join("list.txt"), format!("# of this site\n{listed}\nNo Name\n")).unwrap();
    wait_for("the listed image", PATIENCE, || runtime.image(&listed));
    wait_for("the bad line is named", PATIENCE, || {
        agent.log_of_imports().contains("image list: Failed to apply default image tag").then_some(())
    });
    fs::remove_file(agent.images().join("list.txt")).unwrap();
    agent.end_pods();
}

/// containerd reads no `registries.yaml`: it is given files of its own, and logins with the pulls. The embedded runtime is not.
pub fn mirrors_and_logins_of_k3s_reach_containerd(runtime: &Runtime) {
    const LOGIN: &str = "me:hunter2hunter2";
    let mut agent = Agent::new(runtime, "mirrors");
    let image = TestImage::new(&agent.dir, "mirrored", architecture());
    let registry = Registry::start(&image, &["private/app"], LOGIN);
    let (registries, certs) = (agent.dir.join("registries.yaml"), runtime.dir().join("certs.d"));
    let address = registry.address;
    let (user, password) = LOGIN.split_once(':').unwrap();
    let text = format!(
        "mirrors:\n  mirrored.test:\n    endpoint: ['http://{address}']\nconfigs:\n  '{address}':\n    auth:\n      \
         username: {user}\n      password: {password}\n"
    );
    fs::write(&registries, text).unwrap();
    let paths = [&registries, &certs].map(|path| path.clone().into_os_string());
    let [registries_path, certs_path] = paths;
    agent.arguments =
        vec!["--registries".into(), registries_path, "--containerd-certs-dir".into(), certs_path];
    agent.start();
    let spec = never_pulled("mirrored.test/private/app:1").replace("Never", "IfNotPresent");
    agent.apply_pod("mirrored", &spec);
    if is_embedded() {
        agent.wait_pod("mirrored", "waiting for its image", |status| {
            matches!(waits_for(status, "app"), Some("ErrImagePull" | "ImagePullBackOff"))
        });
        assert!(!certs.exists(), "this runtime would not read it");
        agent.end_pods();
        return;
    }
    agent.running("mirrored");
    let asked = ("/v2/private/app/manifests/1".to_owned(), basic(LOGIN));
    assert!(registry.seen().contains(&asked), "{:?}", registry.seen());
    let file = certs.join("mirrored.test/hosts.toml");
    assert!(!fs::read_to_string(&file).unwrap().contains(password) && !agent.log().contains(password));
    agent.end_pods();
    // A registry that the file no longer names.
    agent.stop();
    fs::remove_file(&registries).unwrap();
    agent.start();
    wait_for("its file is gone", PATIENCE, || (!file.exists()).then_some(()));
    agent.end_pods();
}

/// Two containers say what they see of one image, in part and as a whole; a third pod's image needs a login.
pub fn an_image_is_a_volume_where_the_runtime_mounts_images(runtime: &Runtime) {
    const LOGIN: &str = "me:hunter2hunter2";
    let agent = Agent::started(runtime, "mounted");
    let version = runtime.drive(runtime.cri.version()).expect("the runtime tells");
    let can = version.image_volumes();
    let says = |name: &str, script: &str, mount: &str| {
        let script = format!("{{ {script}; }} >/out/{name}.new 2>&1; mv /out/{name}.new /out/{name}");
        format!(
            "  - name: {name}\n    image: smolet.test/busybox:1\n    command: [sh, -c, {script:?}]\n    volumeMounts: \
             [{{name: out, mountPath: /out}}, {{name: image, mountPath: /image, {mount}}}]\n"
        )
    };
    let volumes = |reference: &str, policy: &str| {
        format!(
            "  restartPolicy: Never\n  terminationGracePeriodSeconds: 2\n  volumes:\n  - {{name: out, hostPath: {{path: \
             $OUT}}}}\n  - {{name: image, image: {{reference: '{reference}', pullPolicy: {policy}}}}}\n"
        )
    };
    let whole =
        "cat /image/etc/version; touch /image/new; grep ' /image ' /proc/mounts; /image/bin/echo it runs";
    let of_tests = volumes("smolet.test/busybox:2", "Never");
    agent.apply_pod(
        "whole",
        &format!(
            "{of_tests}  initContainers:\n{}  containers:\n{}",
            says("first", "cat /image/etc/version", ""),
            says("whole", whole, "")
        ),
    );
    agent.apply_pod(
        "part",
        &format!("{of_tests}  containers:\n{}", says("part", "find /image", "subPath: www")),
    );

    let image = TestImage::new(&agent.dir, "mounted", architecture());
    let registry = Registry::start(&image, &["private/model"], LOGIN);
    agent.apply("login", &secret("login", &logins(&registry, LOGIN)));
    let of_registry = volumes(&format!("{}/private/model:1", registry.address), "Always");
    agent.apply_pod(
        "pulled",
        &format!(
            "{of_registry}  imagePullSecrets: [{{name: login}}]\n  containers:\n{}",
            says("pulled", "cat /image/etc/mark", "")
        ),
    );

    let said = |name: &str| {
        let path = agent.out().join(name);
        wait_for(&format!("the words of {name}"), PATIENCE, || path.exists().then(|| agent.read_out(name)))
    };
    let waits = |name: &str, why: &str| {
        let pod = agent.wait_pod(name, "waiting for another runtime", |status| {
            let all = [&status.init_container_statuses, &status.container_statuses];
            let waiting =
                all.into_iter().flatten().flatten().filter_map(|c| c.state.as_ref()?.waiting.as_ref());
            waiting.filter(|waiting| waiting.reason.as_deref() == Some("CreateContainerError")).any(
                |waiting| {
                    let message = waiting.message.as_deref().unwrap_or_default();
                    message.starts_with("ImageVolumeMountFailed: volume \"image\": containerd ")
                        && message.contains(why)
                },
            )
        });
        let full = pod.metadata.name.expect("a name");
        assert!(runtime.containers_of(&full).is_empty(), "nothing of {full} is made");
    };
    if can.whole {
        assert_eq!(said("first"), "2\n");
        let whole = said("whole");
        assert!(whole.starts_with("2\ntouch: /image/new: Read-only file system\n"), "{whole}");
        let options = whole.lines().nth(2).and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        assert!(has("ro"), "{whole}");
        // Whether its programs run is for the runtime to say: the CRI has no word for it.
        assert_eq!(whole.contains("it runs"), !has("noexec"), "{whole}");
        println!(
            "  an image volume is read-only; {}",
            if has("noexec") { "noexec" } else { "its programs run" }
        );
        assert_eq!(said("pulled"), "mounted");
        assert!(registry.seen().iter().any(|(_, login)| *login == basic(LOGIN)), "with the pod's login");
    } else {
        waits("whole", "mounts no images; volumes of images need containerd 2.1");
        waits("pulled", "mounts no images; volumes of images need containerd 2.1");
        assert!(registry.seen().is_empty(), "nothing is pulled that cannot be mounted");
    }
    if can.in_part {
        let mut part: Vec<String> = said("part").lines().map(str::to_owned).collect();
        part.sort();
        assert_eq!(part, ["/image", "/image/index.html"]);
    } else {
        waits("part", if can.whole { "mounts images as a whole only" } else { "mounts no images" });
    }
    println!("  volumes of images on containerd {}: {can:?}", version.runtime_version);
    agent.end_pods();
}

/// A power cut soon after an image was unpacked: containerd's files of its layer are empty in all later boots, and nothing says so.
pub fn layers_that_a_power_cut_may_have_emptied_are_unpacked_again(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "cut");
    let record = agent.dir.join("root/unpacked-layers");
    if is_embedded() {
        assert!(!record.exists(), "its layers are whole or absent");
        return;
    }
    let read = || fs::read_to_string(&record).ok();
    let before = wait_for("what is there is recorded", PATIENCE, read);
    let (image, archive) =
        (TestImage::new(&agent.dir, "cut", architecture()), agent.images().join("cut.tar"));
    docker_archive(&agent, &archive, &image, "cut.test/app:1");
    agent.apply_pod("app", &never_pulled("cut.test/app:1"));
    agent.running("app");
    let layer = digest(&image.layer);
    let is_written = || read().filter(|text| text.lines().any(|line| line == layer));
    let after = wait_for("its layer is on the disk", PATIENCE, is_written);
    assert!(after.lines().next() == before.lines().next() && after.len() > before.len(), "{after}");

    let (_, known) = before.split_once('\n').unwrap();
    let layers = after.lines().filter(|line| !line.contains(' ')).count() - 1;
    // The second time nothing is known, and another agent's sandbox keeps the layer of the sandbox image.
    let foreign = runtime.run_foreign_sandbox("cut-foreign");
    runtime.stop_sandbox(&foreign);
    for (restarts, known, removed) in [(1, known, 1), (2, "", layers - 1)] {
        let marks = files_of_layers(runtime, "fs/etc/mark", "cut");
        let [mark] = marks.as_slice() else { panic!("one layer has it: {marks:?}") };
        agent.stop();
        runtime.stop_sandbox(&runtime.ready_sandbox(&agent.full("app")).id);
        for file in ["etc/mark", "bin/busybox"] {
            fs::write(mark.replace("etc/mark", file), "").unwrap();
        }
        fs::write(&record, format!("another-boot\n{known}")).unwrap();
        agent.start();
        let is_whole = || (files_of_layers(runtime, "fs/etc/mark", "cut").len() == 1).then_some(());
        wait_for("it is unpacked again", PATIENCE, is_whole);
        agent.wait_pod("app", "running again, and counted", |status| {
            is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == restarts)
        });
        let metrics = agent.metrics();
        let line = format!("smolet_layers_removed_total {removed}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
        assert!(agent.log().contains("ImagesUnpackedAgain"), "{}", agent.log());
        let boot = after.lines().next().unwrap();
        wait_for("it is recorded again", PATIENCE, || is_written().filter(|text| text.starts_with(boot)));
    }
    let left = format!("{foreign} is on one of them, and runs or is another agent's");
    assert!(agent.log().contains(&left), "{}", agent.log());
    // The layer below it is doubted on, whatever is written out in this boot.
    let told = || agent.log().lines().any(|line| line.contains("ImagesMayBeDamaged")).then_some(());
    wait_for("the owner is told", PATIENCE, told);
    let doubts =
        |text: String| text.lines().filter_map(|line| line.strip_prefix('?').map(str::to_owned)).collect();
    let doubts: Vec<String> = read().map(doubts).unwrap_or_default();
    assert!(
        !doubts.is_empty() && doubts.iter().all(|line| !after.contains('?') && after.contains(line)),
        "{doubts:?}"
    );
    runtime.remove_sandbox(&foreign);
    fs::remove_file(&archive).unwrap();
    agent.end_pods();
}

/// The files of that name, with that content, in what containerd has unpacked.
fn files_of_layers(runtime: &Runtime, name: &str, content: &str) -> Vec<String> {
    let output = Command::new("find")
        .arg(runtime.dir().join("root"))
        .args(["-path", &format!("*/snapshots/*/{name}")])
        .output()
        .unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    let is_one = |file: &&str| fs::read_to_string(file).is_ok_and(|text| text == content);
    found.lines().filter(is_one).map(str::to_owned).collect()
}
