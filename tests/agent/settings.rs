//! Runtime settings that a test machine may not have (SELinux, user namespaces, handlers, CDI …): checked in the CRI request;
//! and pods that this node cannot run. tests/real/settings.rs checks the others inside containers.

use smolet::proto::runtime::v1 as cri;

use crate::world::{World, full};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";

/// The newest container's configuration.
fn config(world: &World, name: &str) -> cri::ContainerConfig {
    world.fake.state().container(&format!("{}/{name}", full("web"))).expect("the container").config.clone()
}

fn security(world: &World, name: &str) -> cri::LinuxContainerSecurityContext {
    config(world, name).linux.unwrap().security_context.unwrap()
}

fn sandbox_security(world: &World) -> cri::LinuxSandboxSecurityContext {
    world.sandbox("web", |sandbox| sandbox.config.linux.clone().unwrap().security_context.unwrap())
}

fn waits(world: &World, spec: &str, reason: &str, message: &str) {
    world.put("web", spec);
    world.until(reason, |world| world.waiting("web", "app") == (reason.to_owned(), message.to_owned()));
    assert_eq!(world.actions(), [""; 0], "nothing of it is created");
    let described = world.describe("web-gw");
    assert!(described.contains(reason) && described.contains(message), "{described}");
}

#[test]
fn a_pod_that_the_node_cannot_run_waits_with_the_kubelets_reason() {
    for (spec, reason, message) in [
        (
            format!("securityContext: {{sysctls: [{{name: kernel.msgmax, value: '1'}}]}}, {APP}"),
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            format!("hostUsers: false, {APP}"),
            "CreatePodSandboxError",
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
        ),
        (
            format!("securityContext: {{supplementalGroupsPolicy: Strict}}, {APP}"),
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
    ] {
        waits(&World::new(), &spec, reason, message);
    }
}

#[test]
fn an_init_container_waits_with_the_reason_and_the_others_for_it() {
    let world = World::new();
    world
        .put("web", &format!("hostUsers: false, initContainers: [{{name: one, image: 'busybox:1'}}], {APP}"));
    world.until("the refusal", |world| world.waiting("web", "one").0 == "CreatePodSandboxError");
    assert_eq!(world.waiting("web", "app").0, "PodInitializing");
}

#[test]
fn a_pod_starts_when_the_runtime_supports_it() {
    let world = World::new();
    let handlers = |names: &[(&str, bool)]| {
        world.fake.state().handlers =
            names.iter().map(|(name, users)| ((*name).to_owned(), *users)).collect();
    };
    handlers(&[("", true), ("runc", true)]);
    let spec = format!(
        "runtimeClassName: kata, hostUsers: false, securityContext: {{supplementalGroupsPolicy: Strict}}, {APP}"
    );
    waits(
        &world,
        &spec,
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    );
    world.fake.state().strict_groups = true;
    let missing =
        "RuntimeClass \"kata\" not found: it has to be the name of one of the runtime's handlers, runc";
    world.until("the class is missed", |world| {
        world.waiting("web", "app") == ("RuntimeClassNotFound".to_owned(), missing.to_owned())
    });
    handlers(&[("", true), ("runc", true), ("kata", false)]);
    world.until("the users are missed", |world| world.waiting("web", "app").0 == "CreatePodSandboxError");
    handlers(&[("", true), ("runc", true), ("kata", true)]);
    world.until("it runs", |world| world.running() == ["web/app#0"]);
    assert_eq!(world.sandbox("web", |sandbox| sandbox.handler.clone()), "kata");
    assert_eq!(
        sandbox_security(&world).supplemental_groups_policy,
        cri::SupplementalGroupsPolicy::Strict as i32
    );
}

#[test]
fn a_class_is_passed_to_a_runtime_that_lists_no_handlers() {
    let world = World::new();
    world.run("web", &format!("runtimeClassName: crun, {APP}"));
    assert_eq!(world.sandbox("web", |sandbox| sandbox.handler.clone()), "crun");
}

/// The range of user ids that a pod's containers, its sandbox and its directory have in common.
fn users(world: &World, name: &str) -> u32 {
    let of = |options: cri::NamespaceOption| {
        let users = options.userns_options.expect("users of its own");
        assert_eq!((users.mode, &users.uids), (cri::NamespaceMode::Pod as i32, &users.gids));
        let [mapping] = users.uids.as_slice() else { panic!("one mapping: {users:?}") };
        assert_eq!((mapping.container_id, mapping.length), (0, 65_536));
        mapping.host_id
    };
    let sandbox = world.sandbox(name, |s| s.config.linux.clone().unwrap().security_context.unwrap());
    let first = of(sandbox.namespace_options.unwrap());
    let app = format!("{}/app", full(name));
    let container = world.fake.state().container(&app).expect("the container").config.clone();
    assert_eq!(of(container.linux.unwrap().security_context.unwrap().namespace_options.unwrap()), first);
    assert!(!container.mounts.is_empty());
    for mount in &container.mounts {
        assert_eq!(
            (mount.uid_mappings[0].host_id, mount.gid_mappings[0].host_id),
            (first, first),
            "{mount:?}"
        );
    }
    let file = std::fs::read_to_string(world.pod_dir(name).join("userns")).unwrap();
    assert!(file.contains(&format!("\"hostId\":{first}")), "{file}");
    first
}

#[test]
fn each_pod_with_a_user_namespace_has_its_own_range() {
    let world = World::new();
    world.fake.state().handlers = vec![(String::new(), true)];
    let spec = format!("hostUsers: false, {APP}");
    for name in ["web", "db", "mq"] {
        world.put(name, &spec);
    }
    world.until("all run", |world| world.running().len() == 3);
    let mut ranges = ["web", "db", "mq"].map(|name| users(&world, name));
    let of_web = ranges[0];
    ranges.sort_unstable();
    assert_eq!(ranges, [65_536, 131_072, 196_608]);

    // Kept by another sandbox and another agent.
    world.fake.stop_sandbox("web-gw");
    world.until("another sandbox", |world| {
        world.count("RunPodSandbox web#1") == 1 && world.running().len() == 3
    });
    assert_eq!(users(&world, "web"), of_web);
    world.stop();
    world.start();
    world.fake.exit("web-gw/app", 1, "Error", "");
    world.until("the container again", |world| world.running().contains(&"web/app#2".to_owned()));
    assert_eq!(users(&world, "web"), of_web);

    // Free when the pod is removed.
    world.remove("web");
    world.until("its end", |world| world.pod("web").is_none());
    world.run("next", &spec);
    assert_eq!(users(&world, "next"), of_web);
}

#[test]
fn settings_reach_the_request() {
    let world = World::new();
    {
        let mut state = world.fake.state();
        state.handlers = vec![(String::new(), true)];
        state.stop_signals = true;
    }
    world.put_text(
        "web",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations:\n    cdi.k8s.io/gpu: v.example/gpu=0\n\
         \x20   container.apparmor.security.beta.kubernetes.io/side: unconfined\nspec:\n  hostUsers: false\n\
         \x20 os: {name: linux}\n  securityContext:\n    seLinuxOptions: {user: u, role: r, type: t, level: 's0:c1'}\n\
         \x20   seLinuxChangePolicy: Recursive\n    appArmorProfile: {type: Unconfined}\n  containers:\n  - name: app\n\
         \x20   image: busybox:1\n    lifecycle: {stopSignal: SIGQUIT}\n    securityContext:\n      procMount: Unmasked\n\
         \x20     seLinuxOptions: {type: spc_t}\n      seccompProfile: {type: Localhost, localhostProfile: a/b.json}\n\
         \x20 - name: side\n    image: busybox:1\n",
    );
    world.until("both run", |world| world.running().len() == 2);
    let label = |user: &str, role: &str, kind: &str, level: &str| {
        Some(cri::SeLinuxOption {
            user: user.to_owned(),
            role: role.to_owned(),
            r#type: kind.to_owned(),
            level: level.to_owned(),
        })
    };
    assert_eq!(sandbox_security(&world).selinux_options, label("u", "r", "t", "s0:c1"));
    let (app, side) = (security(&world, "app"), security(&world, "side"));
    assert_eq!(app.selinux_options, label("", "", "spc_t", ""), "only the container's own");
    assert_eq!(side.selinux_options, label("u", "r", "t", "s0:c1"));
    for context in [&app, &side] {
        let profile = context.apparmor.clone().unwrap().profile_type;
        assert_eq!(profile, cri::security_profile::ProfileType::Unconfined as i32);
    }
    assert!(app.masked_paths.is_empty() && app.readonly_paths.is_empty(), "procMount: Unmasked");
    assert!(!side.masked_paths.is_empty());
    let seccomp = app.seccomp.unwrap();
    assert_eq!(seccomp.profile_type, cri::security_profile::ProfileType::Localhost as i32);
    assert_eq!(seccomp.localhost_ref, world.path("root/seccomp/a/b.json").to_string_lossy());
    for name in ["app", "side"] {
        assert_eq!(config(&world, name).annotations["cdi.k8s.io/gpu"], "v.example/gpu=0");
    }
    assert_eq!(config(&world, "app").stop_signal, cri::Signal::Sigquit as i32);
    assert_eq!(config(&world, "side").stop_signal, 0);
    assert!(!world.describe("web-gw").contains("StopSignalIgnored"));
}

#[test]
fn a_stop_signal_that_the_runtime_ignores_is_reported() {
    let world = World::new();
    world.run(
        "web",
        "os: {name: linux}, containers: [{name: app, image: 'busybox:1', lifecycle: {stopSignal: SIGQUIT}}]",
    );
    world.until("the event", |world| world.describe("web-gw").contains("StopSignalIgnored"));
}

#[test]
fn invalid_resolver_settings_are_left_out_and_reported() {
    let world = World::new();
    std::fs::write(world.path("resolv.conf"), "nameserver 9.9.9.9\nnameserver 8.8.8.8\n").unwrap();
    let mut config = world.config();
    world.stop();
    config.resolv_conf = world.path("resolv.conf");
    world.spawn(config, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    world.run(
        "web",
        &format!(
            "dnsPolicy: Default, dnsConfig: {{nameservers: [1.1.1.1, 2.2.2.2], searches: [a.example]}}, {APP}"
        ),
    );
    let dns = world.sandbox("web", |sandbox| sandbox.config.dns_config.clone().unwrap());
    assert_eq!(dns.servers, ["9.9.9.9", "8.8.8.8", "1.1.1.1"]);
    let described = world.describe("web-gw");
    let told = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: \
                9.9.9.9 8.8.8.8 1.1.1.1";
    assert!(described.contains("DNSConfigForming") && described.contains(told), "{described}");
    assert!(!described.contains("Search Line"), "{described}");

    // The node's resolver configuration has changed: the next sandbox has the new one.
    std::fs::write(world.path("resolv.conf"), "nameserver 7.7.7.7\n").unwrap();
    world.fake.stop_sandbox("web-gw");
    world.until("another sandbox", |world| world.count("RunPodSandbox web#1") == 1);
    let dns = world.sandbox("web", |sandbox| sandbox.config.dns_config.clone().unwrap());
    assert_eq!(dns.servers, ["7.7.7.7", "1.1.1.1", "2.2.2.2"]);
}

#[test]
fn a_resolver_on_loopback_reaches_no_pod_with_a_network_of_its_own() {
    let world = World::new();
    let [own, upstream] = ["resolv.conf", "upstream.conf"].map(|name| world.path(name));
    std::fs::write(&own, "nameserver 127.0.0.53\nsearch lan\n").unwrap();
    std::fs::write(&upstream, "nameserver 192.168.1.1\nsearch home\n").unwrap();
    let mut config = world.config();
    world.stop();
    (config.resolv_conf, config.upstream_resolv_conf) = (own.clone(), Some(upstream.clone()));
    world.spawn(config, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    let dns = |pod: &str| {
        let dns = world.sandbox(pod, |sandbox| sandbox.config.dns_config.clone().unwrap());
        format!("{} | {}", dns.servers.join(" "), dns.searches.join(" "))
    };
    // CoreDNS asks these servers: its own address among them would be a loop.
    world.run("dns", &format!("dnsPolicy: Default, {APP}"));
    assert_eq!(dns("dns"), "192.168.1.1 | home");
    world.run("host", &format!("dnsPolicy: Default, hostNetwork: true, {APP}"));
    assert_eq!(dns("host"), "127.0.0.53 | lan");
    std::fs::remove_file(&upstream).unwrap();
    world.run("public", &format!("dnsPolicy: Default, {APP}"));
    assert_eq!(dns("public"), "8.8.8.8 | lan");
    std::fs::write(&own, "search lan\n").unwrap();
    world.run("none", &format!("dnsPolicy: Default, {APP}"));
    assert_eq!(dns("none"), "8.8.8.8 | lan");
}

#[test]
fn mounts_are_recursively_read_only_if_the_runtime_supports_it() {
    let world = World::new();
    let spec = |mode: &str| {
        format!(
            "volumes: [{{name: v, emptyDir: {{}}}}], containers: [{{name: app, image: 'busybox:1', \
             volumeMounts: [{{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: {mode}}}]}}]"
        )
    };
    let is_recursive = |world: &World| {
        let mounts = config(world, "app").mounts;
        mounts.iter().find(|mount| mount.container_path == "/v").expect("the mount").recursive_read_only
    };
    world.run("web", &spec("IfPossible"));
    assert!(!is_recursive(&world));
    world.put("web", &spec("Enabled"));
    let message = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, \
                   but it is not supported by the runtime";
    let refused = ("CreateContainerConfigError".to_owned(), message.to_owned());
    world.until("the refusal", |world| world.waiting("web", "app") == refused);
    // A newer runtime is detected by the next agent.
    world.kill();
    world.fake.state().handlers = vec![(String::new(), true)];
    world.start();
    world.until("it runs", |world| world.running() == ["web/app#0"]);
    assert!(is_recursive(&world));
    assert!(world.ask("/pods").1.contains("\"recursiveReadOnly\": \"Enabled\""), "{}", world.ask("/pods").1);
}
