use super::*;

fn file(fields: &str) -> Result<FileSettings, String> {
    let head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
    FileSettings::parse(format!("{head}{fields}").as_bytes())
}

#[test]
fn defaults_are_the_conventions() {
    let config = Config::join(&Flags::default(), None, FileSettings::default()).expect("defaults are valid");
    assert_eq!(config.manifests, Path::new("/etc/smolet/manifests"));
    assert_eq!(config.file_check_frequency, Duration::from_secs(20));
    assert_eq!(config.images_dir, Path::new("/var/lib/smolet/images"));
    assert_eq!(config.max_pods, 110);
    assert_eq!(config.cgroup_driver, CgroupDriver::Cgroupfs);
}

#[test]
fn a_kubeconfig_is_an_absolute_path_in_a_build_that_can_use_it() {
    let joined = |path: &str| {
        let flags = Flags { kubeconfig: Some(path.into()), ..Flags::default() };
        Config::join(&flags, None, FileSettings::default()).map_err(|error| error.0)
    };
    if cfg!(feature = "tls") {
        assert_eq!(joined("/etc/k").expect("valid").kubeconfig.as_deref(), Some(Path::new("/etc/k")));
        let error = joined("k").expect_err("relative");
        assert_eq!(error, "--kubeconfig: k: must be an absolute path");
    } else {
        let error = joined("/etc/k").expect_err("no TLS");
        assert!(
            error.ends_with("has no TLS and joins no cluster; use one made without --no-default-features"),
            "{error}"
        );
    }
}

#[test]
fn a_flag_beats_the_file_and_the_file_beats_the_default() {
    let settings = file(
        "staticPodPath: /from/file\nmaxPods: 7\nfileCheckFrequency: 1m30s\n\
         crashLoopBackOff: {maxContainerRestartPeriod: 30s}\n",
    )
    .expect("valid file");
    let flags = Flags { manifests: Some("/from/flag".into()), ..Flags::default() };
    let config = Config::join(&flags, None, settings.clone()).expect("valid");
    assert_eq!(config.manifests, Path::new("/from/flag"));
    assert_eq!(config.max_pods, 7);
    assert_eq!(config.file_check_frequency, Duration::from_secs(90));
    assert_eq!(config.max_container_restart_period, Duration::from_secs(30));
    let config = Config::join(&Flags::default(), None, settings).expect("valid");
    assert_eq!(config.manifests, Path::new("/from/file"));
}

/// What `k3s agent` sets where nobody else does.
#[cfg(feature = "tls")]
#[test]
fn a_node_of_k3s_has_the_defaults_of_k3s() {
    let flags = Flags {
        server: Some("https://10.0.0.1:6443".to_owned()),
        token_file: Some("/etc/token".into()),
        ..Flags::default()
    };
    let of = |fields: &str| Config::join(&flags, None, file(fields).unwrap()).unwrap();
    let thresholds = |config: &Config| {
        let shown = config.eviction.thresholds.iter().map(|threshold| {
            format!("{} {:?} {:?}", threshold.signal.as_str(), threshold.at, threshold.min_reclaim)
        });
        shown.collect::<Vec<_>>()
    };
    let found = of("");
    assert_eq!(found.image_pulls, limits::PULLS_AT_ONCE_MAX);
    let shown = thresholds(&found).join(", ");
    let wanted =
        ["memory.available", "nodefs.available", "imagefs.available"].map(|signal| shown.contains(signal));
    assert_eq!((wanted, found.eviction.thresholds.len()), ([true; 3], 3), "{shown}");
    let given = of("evictionHard: {imagefs.available: 5%, nodefs.available: 5%, memory.available: 100Mi}\n\
            evictionMinimumReclaim: {imagefs.available: 10%, nodefs.available: 10%}\n");
    assert_eq!(thresholds(&given), thresholds(&found));
    // What is set counts, field by field.
    let given = of("evictionHard: {nodefs.available: 2%}\nserializeImagePulls: true\n");
    assert_eq!((given.eviction.thresholds.len(), given.image_pulls), (1, 1));
    let plain = Config::join(&Flags::default(), None, FileSettings::default()).unwrap();
    assert!(plain.image_pulls == 1 && plain.eviction != found.eviction, "the kubelet's");
}

#[test]
fn image_pulls_are_serial_unless_the_file_says_otherwise() {
    let pulls = |fields: &str| {
        let config = Config::join(&Flags::default(), None, file(fields).expect("of the right type"));
        config.map(|config| config.image_pulls).map_err(|error| error.0)
    };
    for (fields, wanted) in [
        ("", Ok(1)),
        ("serializeImagePulls: true\n", Ok(1)),
        ("serializeImagePulls: false\n", Ok(limits::PULLS_AT_ONCE_MAX)),
        ("maxParallelImagePulls: 1\n", Ok(1)),
        ("maxParallelImagePulls: 3\n", Ok(3)),
        ("serializeImagePulls: false\nmaxParallelImagePulls: 16\n", Ok(16)),
        ("serializeImagePulls: true\nmaxParallelImagePulls: 1\n", Ok(1)),
        (
            "serializeImagePulls: true\nmaxParallelImagePulls: 2\n",
            Err("maxParallelImagePulls: 2: more than one"),
        ),
        ("maxParallelImagePulls: 0\n", Err("maxParallelImagePulls: 0: must be between 1 and 16")),
        ("maxParallelImagePulls: -1\n", Err("maxParallelImagePulls: -1: must be between 1 and 16")),
        ("maxParallelImagePulls: 17\n", Err("maxParallelImagePulls: 17: must be between 1 and 16")),
    ] {
        match (pulls(fields), wanted) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{fields}"),
            (Err(found), Err(wanted)) => assert!(found.starts_with(wanted), "{fields}: {found}"),
            (found, _) => panic!("{fields}: {found:?}"),
        }
    }
}

#[test]
fn logs_are_rotated_as_the_file_or_a_flag_says() {
    let rotation = |fields: &str, size: Option<&str>| {
        let flags = Flags { container_log_max_size: size.map(str::to_owned), ..Flags::default() };
        let config = Config::join(&flags, None, file(fields).expect("of the right type"));
        config
            .map(|config| config.log_rotation.map(|r| (r.size_max, r.files_max, r.check_max.as_secs())))
            .map_err(|e| e.0)
    };
    for (fields, size, wanted) in [
        ("", None, Ok(Some((10 << 20, 5, 10)))),
        ("containerLogMaxSize: 1Mi\ncontainerLogMaxFiles: 3\n", None, Ok(Some((1 << 20, 3, 10)))),
        (
            "containerLogMaxSize: 1Mi\ncontainerLogMonitorInterval: 3s\n",
            Some("20M"),
            Ok(Some((20_000_000, 5, 3))),
        ),
        ("containerLogMaxSize: \"-1\"\n", None, Ok(None)),
        ("", Some("-1"), Ok(None)),
        ("containerLogMaxFiles: 1\n", None, Err("containerLogMaxFiles: 1: must be between 2 and 1000")),
        ("", Some("0"), Err("containerLogMaxSize: \"0\": must be 4096 bytes or more")),
        ("", Some("ten"), Err("containerLogMaxSize: \"ten\": must be a quantity")),
        (
            "containerLogMonitorInterval: 2s\n",
            None,
            Err("containerLogMonitorInterval: 2 s: must be between 3 s"),
        ),
    ] {
        match (rotation(fields, size), wanted) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{fields}"),
            (Err(found), Err(wanted)) => assert!(found.starts_with(wanted), "{fields}: {found}"),
            (found, _) => panic!("{fields}: {found:?}"),
        }
    }
}

#[test]
fn pods_end_with_the_node_as_the_file_or_a_flag_says() {
    let shutdown = |fields: &str, period: Option<&str>, critical: Option<&str>, on_sigterm| {
        let flags = Flags {
            shutdown_grace_period: period.map(str::to_owned),
            shutdown_grace_period_critical_pods: critical.map(str::to_owned),
            shutdown_on_sigterm: on_sigterm,
            ..Flags::default()
        };
        let config = Config::join(&flags, None, file(fields).expect("of the right type"));
        let shown = |groups: &ShutdownGroups| {
            let groups = (0..).map_while(|place| groups.get(place));
            groups.map(|group| (group.priority, group.grace.0)).collect::<Vec<_>>()
        };
        config.map(|config| shown(&config.shutdown)).map_err(|error| error.0)
    };
    let by_priority =
        "shutdownGracePeriodByPodPriority: [{priority: 9, shutdownGracePeriodSeconds: 3}, {priority: 1}]\n";
    let both = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n";
    for (fields, period, critical, on_sigterm, wanted) in [
        ("", None, None, false, Ok(vec![])),
        (both, None, None, true, Ok(vec![(0, 20), (2_000_000_000, 10)])),
        (both, Some("1m"), None, false, Ok(vec![(0, 50), (2_000_000_000, 10)])),
        ("", Some("20s"), Some("5s"), true, Ok(vec![(0, 15), (2_000_000_000, 5)])),
        (by_priority, None, None, false, Ok(vec![(1, 0), (9, 3)])),
        (
            by_priority,
            Some("20s"),
            None,
            false,
            Err("shutdownGracePeriodByPodPriority: may not be given beside"),
        ),
        ("", Some("5s"), Some("6s"), false, Err("shutdownGracePeriodCriticalPods: 6 s: must be at most")),
        ("", Some("soon"), None, false, Err("--shutdown-grace-period: \"soon\": must be a duration")),
        ("", None, None, true, Err("--shutdown-on-sigterm: needs the time that pods may take")),
    ] {
        match (shutdown(fields, period, critical, on_sigterm), wanted) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{fields}"),
            (Err(found), Err(wanted)) => assert!(found.starts_with(wanted), "{fields}: {found}"),
            (found, _) => panic!("{fields}: {found:?}"),
        }
    }
}

#[test]
fn unknown_and_unsupported_fields_are_named_in_one_message() {
    let error = file("cpuManagerPolicy: static\nstaticPodPaht: /x\ncrashLoopBackOff: {max: 1s}\n")
        .expect_err("must be refused");
    for name in ["cpuManagerPolicy", "staticPodPaht", "crashLoopBackOff.max"] {
        assert!(error.contains(name), "{name} is named: {error}");
    }
}

#[test]
fn bad_values_name_their_field() {
    for (fields, field) in [
        ("maxPods: many\n", "maxPods"),
        ("fileCheckFrequency: soon\n", "fileCheckFrequency"),
        ("clusterDNS: 10.0.0.1\n", "clusterDNS"),
    ] {
        let error = file(fields).expect_err("must be refused");
        assert!(error.contains(field), "{error}");
    }
    for (fields, said) in [
        ("maxPods: 0\n", "maxPods: 0: must be between 1 and 110"),
        ("maxPods: -1\n", "maxPods: -1: must be between 1 and 110"),
        ("maxPods: 111\n", "maxPods: 111: must be between 1 and 110"),
        ("staticPodPath: manifests\n", "--manifests (staticPodPath): manifests: must be an absolute path"),
        ("resolvConf: resolv.conf\n", "resolvConf: resolv.conf: must be an absolute path"),
        ("fileCheckFrequency: 500ms\n", "fileCheckFrequency: 0.5 s: must be between 1 s and 86400 s"),
        ("clusterDomain: a b\n", "clusterDomain: \"a b\": "),
        (
            "allowedUnsafeSysctls: [net.*, vm.swappiness]\n",
            "allowedUnsafeSysctls: \"vm.swappiness\": must begin",
        ),
    ] {
        let settings = file(fields).expect("of the right type");
        let error = Config::join(&Flags::default(), None, settings).expect_err("must be refused");
        assert!(error.0.starts_with(said), "{error}");
    }
    for (bytes, fits) in [(0, false), ((1 << 20) - 1, false), (1 << 20, true), ((16 << 20) + 1, false)] {
        let flags = Flags { status_store_bytes: Some(bytes), ..Flags::default() };
        let error = Config::join(&flags, None, FileSettings::default()).err();
        assert_eq!(error.is_none(), fits, "{bytes}: {error:?}");
        let named = error.is_none_or(|error| error.0.starts_with("--status-store-bytes: "));
        assert!(named, "{bytes}");
    }
    let none = file("resolvConf: \"\"\n").expect("of the right type");
    assert!(Config::join(&Flags::default(), None, none).is_ok(), "no resolver configuration at all");
    let error = FileSettings::parse(b"kind: Pod\napiVersion: v1\n").expect_err("must be refused");
    assert!(error.contains("kind"), "{error}");
    let flags = Flags { root_dir: Some("relative".into()), ..Flags::default() };
    let error = Config::join(&flags, None, FileSettings::default()).expect_err("must be refused");
    assert!(error.0.contains("--root-dir"), "{error}");
}

#[test]
fn a_file_without_an_end_is_not_read() {
    let error = FileSettings::read(Path::new("/dev/zero")).expect_err("must be refused");
    assert!(error.0.starts_with("/dev/zero: is no regular file"), "{error}");
    // Its size is 0, but reading it returns bytes.
    let error = FileSettings::read(Path::new("/proc/self/status")).expect_err("must be refused");
    assert!(error.0.starts_with("/proc/self/status: "), "{error}");
}

/// As `kubeadm join` of 1.36 writes it to `/var/lib/kubelet/config.yaml`.
const KUBEADM: &str = r#"
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json: {infoBufferSize: "0"}
    text: {infoBufferSize: "0"}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"#;

fn config(text: &str) -> Result<Config, String> {
    let file = file(text)?;
    Config::join(&Flags::default(), None, file).map_err(|error| error.0)
}

#[test]
fn what_kubeadm_writes_is_taken_and_its_zeros_are_defaults() {
    let (given, default) = (config(KUBEADM).expect("taken"), config("").expect("valid"));
    assert_eq!(given.file_check_frequency, default.file_check_frequency);
    assert_eq!(given.runtime_request_timeout, default.runtime_request_timeout);
    assert_eq!(given.eviction, default.eviction);
    assert_eq!(given.image_gc, default.image_gc);
    assert_eq!(given.node_api.authorization, default.node_api.authorization);
    assert_eq!(given.node_api.token_ttl, default.node_api.token_ttl);
    assert_eq!(given.registration, default.registration);
    assert!(given.rotate_certificates && !default.rotate_certificates);
}

#[test]
fn another_value_is_refused_by_name() {
    for (text, field) in [
        ("syncFrequency: 10s", "syncFrequency: \"10s\": must be 1m0s: "),
        ("logging: {format: json}", "logging.format: \"json\": must be text"),
        ("logging: {verbosity: 4}", "logging.verbosity: 4: must be 0"),
        (
            "logging: {options: {text: {infoBufferSize: 1Mi}}}",
            "logging.options.text.infoBufferSize: \"1Mi\": must be 0",
        ),
    ] {
        let error = config(text).expect_err("refused");
        assert!(error.starts_with(field), "{error}");
    }
    assert!(config("logging: {flushFrequency: 5s}").is_ok(), "nothing is held back");
}

#[test]
fn who_may_use_an_image_that_is_here_is_set_as_in_the_kubelet() {
    use crate::image::pulled::policy::VerificationPolicy;
    let load = |policy: &str, list: &str| {
        let fields = format!(
            "imagePullCredentialsVerificationPolicy: '{policy}'\npreloadedImagesVerificationAllowlist: {list}\n"
        );
        let config = Config::join(&Flags::default(), None, file(&fields).expect("of the right type"));
        config.map(|config| config.pull_verification).map_err(|error| error.0)
    };
    assert_eq!(load("", "[]"), Ok(VerificationPolicy::NotPreloaded));
    assert_eq!(load("NeverVerify", "[]"), Ok(VerificationPolicy::Never));
    assert_eq!(load("AlwaysVerify", "[]"), Ok(VerificationPolicy::Always));
    assert!(matches!(
        load("NeverVerifyAllowlistedImages", "[r.io/a/*]"),
        Ok(VerificationPolicy::NotListed(_))
    ));
    for (policy, list, wanted) in [
        ("Sometimes", "[]", "must be NeverVerify, NeverVerifyPreloadedImages"),
        (
            "AlwaysVerify",
            "[r.io/a]",
            "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
        ),
        ("NeverVerifyAllowlistedImages", "['r.io/a:1']", "\"r.io/a:1\": may have neither a tag nor a digest"),
    ] {
        let error = load(policy, list).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn logs_in_memory_need_rotation_and_have_their_bounds() {
    let of = |memory: Option<&str>, period: Option<&str>, fields: &str| {
        let flags = Flags {
            pod_logs_memory: memory.map(str::to_owned),
            pod_logs_flush_period: period.map(str::to_owned),
            ..Flags::default()
        };
        let joined = Config::join(&flags, None, file(fields).expect("valid file"));
        let memory = joined.map(|config| config.log_memory);
        memory.map(|of| (of.bytes, of.flush_period.map(|period| period.as_secs()))).map_err(|error| error.0)
    };
    assert_eq!(of(None, None, ""), Ok((None, Some(3600))));
    assert_eq!(of(Some("1Mi"), Some("0"), ""), Ok((Some(1 << 20), None)));
    assert_eq!(of(Some("0"), Some("10m"), "containerLogMaxSize: \"-1\"\n"), Ok((None, Some(600))));
    for (memory, period, fields, why) in [
        (
            Some("32Ki"),
            None,
            "",
            "--pod-logs-memory: \"32Ki\": must be 0, for logs on the disk, or a quantity",
        ),
        (
            Some("1Mi"),
            None,
            "containerLogMaxSize: \"-1\"\n",
            "--pod-logs-memory: \"1Mi\": logs in memory are rotated; set containerLogMaxSize",
        ),
        (
            None,
            Some("1s"),
            "",
            "--pod-logs-flush-period: \"1s\": must be 0, or a duration between 1m and 24h",
        ),
        (None, Some("soon"), "", "--pod-logs-flush-period: \"soon\": must be 0"),
    ] {
        let error = of(memory, period, fields).expect_err(why);
        assert!(error.starts_with(why), "{error}");
    }
}
