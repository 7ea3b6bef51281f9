//! The table of the KubeletConfiguration's fields has every field of kubelet.config.k8s.io/v1beta1 and no other; a whole file
//! of the kubelet's defaults is accepted; docs/configuration.md has the table. `SMOLET_DOCS=write` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use smolet::config::fields::{Answer, Field, fields};
use smolet::config::{Config, Flags};
use smolet::limits::{ApiRates, Rate};

/// Path, Go type and default of each field; written from the kubelet's `types.go` and its defaulted test data.
const UPSTREAM: &str = include_str!("kubelet_configuration.tsv");

/// Path and default.
fn upstream() -> Vec<(&'static str, &'static str)> {
    let columns = |line: &'static str| {
        let mut columns = line.split('\t');
        let path = columns.next()?;
        Some((path, columns.nth(1)?))
    };
    UPSTREAM.lines().filter(|line| !line.starts_with('#')).filter_map(columns).collect()
}

/// The settings of a KubeletConfiguration with these fields, and of these flags of the kubelet's.
fn load(fields: &str, flags: &[(&str, &str)]) -> Result<Config, String> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("smolet-fields-{}-{}.yaml", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::write(
        &path,
        format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{fields}"),
    )
    .unwrap();
    let kubelet = flags.iter().map(|(flag, text)| ((*flag).to_owned(), (*text).to_owned())).collect();
    let loaded = Config::load(&Flags { config: Some(path.clone()), kubelet, ..Flags::default() }, None);
    std::fs::remove_file(&path).unwrap();
    loaded.map_err(|error| error.0)
}

/// The kubelet's defaults, all fields that have one, as `/configz` tells them.
fn defaulted() -> serde_json::Value {
    let mut all = serde_json::json!({});
    for (path, default) in upstream().into_iter().filter(|(_, default)| *default != "-") {
        let mut at = &mut all;
        for step in path.split('.') {
            at = &mut at[step];
        }
        let quoted = path.contains("infoBufferSize");
        *at = match default {
            "{}" => serde_json::json!({}),
            "pods" => serde_json::json!(["pods"]),
            _ if quoted => default.into(),
            _ => serde_json::from_str(default).unwrap_or_else(|_| default.into()),
        };
    }
    all
}

#[test]
fn every_field_of_the_kubelet_has_a_line_in_its_order() {
    let upstream = upstream();
    let tops: BTreeSet<&str> = upstream.iter().filter_map(|(path, _)| path.split('.').next()).collect();
    assert_eq!(tops.len(), 125);
    let paths: Vec<&str> = fields().map(|field| field.path).collect();
    assert_eq!(paths, upstream.iter().map(|(path, _)| *path).collect::<Vec<_>>());
    let kinds = "bool int long num text time texts map bools headers taints any";
    for (field, (path, default)) in fields().zip(&upstream) {
        assert!(kinds.split(' ').any(|kind| kind == field.kind), "{path}: {}", field.kind);
        let own = field.default.split('|').next().unwrap_or_default();
        // What Go leaves out is the zero value.
        let is_same = own == *default || *default == "-" && ["", "0", "0s", "false"].contains(&own);
        let has_words = !field.words.is_empty() || *path == "evictionHard";
        assert!(is_same || has_words, "{path}: {own}, not {default}, and no words");
        assert!(field.answer == Answer::Honoured || !field.words.is_empty(), "{path}: why?");
    }
}

#[test]
fn a_whole_file_of_the_kubelets_defaults_is_accepted() {
    let all = serde_json::to_string(&defaulted()).unwrap();
    let given = load(&serde_json_as_yaml(&all), &[]).unwrap();
    let default = Config::load(&Flags::default(), None).unwrap();
    let runtime_endpoint = Some("unix:///run/containerd/containerd.sock".to_owned());
    assert_eq!(given.runtime_endpoint, runtime_endpoint);
    assert!(given.fail_swap_on && !default.fail_swap_on);
    let process = default.process;
    let as_usual = Config {
        given: default.given.clone(),
        runtime_endpoint: None,
        fail_swap_on: false,
        process,
        ..given
    };
    assert_eq!(as_usual, default);
}

/// One line a field: JSON is YAML.
fn serde_json_as_yaml(json: &str) -> String {
    let all: BTreeMap<String, serde_json::Value> = serde_json::from_str(json).unwrap();
    all.iter().fold(String::new(), |mut out, (key, value)| {
        writeln!(out, "{key}: {value}").unwrap();
        out
    })
}

#[test]
fn what_is_fixed_is_refused_by_name_with_its_reason() {
    for field in fields().filter(|field| field.answer == Answer::Fixed) {
        let other = match field.kind {
            "bool" => {
                if field.default == "true" {
                    "false"
                } else {
                    "true"
                }
            }
            "int" | "long" | "num" => "7",
            "time" => "7s",
            "texts" | "taints" => "[x]",
            "map" => "{x: z}",
            "headers" => "{x: [z]}",
            _ => "x",
        };
        let mut text = other.to_owned();
        for step in field.path.rsplit('.') {
            text = format!("{{{step}: {text}}}");
        }
        let refused = load(&text[1..text.len() - 1], &[]).expect_err(field.path);
        let found = refused.contains(&format!("{}: ", field.path)) && refused.ends_with(field.words);
        assert!(found, "{}: {refused}", field.path);
    }
}

#[test]
fn any_value_of_a_field_without_effect_is_accepted() {
    for (text, path) in [
        ("syncFrequency: 0s", "syncFrequency"),
        ("hairpinMode: none", "hairpinMode"),
        ("cpuManagerReconcilePeriod: 5s", "cpuManagerReconcilePeriod"),
        ("contentType: application/json", "contentType"),
        ("imagePullCredentialsVerificationPolicy: NeverVerify", "imagePullCredentialsVerificationPolicy"),
        ("memoryThrottlingFactor: 0.8", "memoryThrottlingFactor"),
    ] {
        assert!(load(text, &[]).is_ok(), "{path}");
    }
}

#[test]
fn the_kubelets_flags_are_stronger_than_the_file() {
    let file = "maxPods: 50\nclusterDNS: [10.0.0.1]\nevictionHard: {memory.available: 1Gi}\nresolvConf: /a\n";
    let flags = [
        ("max-pods", "20"),
        ("cluster-dns", "10.0.0.10,10.0.0.11"),
        ("cluster-domain", "cluster.local"),
        ("eviction-hard", "nodefs.available<5%"),
        ("image-gc-high-threshold", "90"),
        ("resolv-conf", "/b"),
        ("kube-reserved", "cpu=200m,memory=64Mi"),
        ("feature-gates", "SidecarContainers=true,MemoryQoS=false"),
        ("rotate-certificates", ""),
        ("read-only-port", "0"),
        ("fail-swap-on", "false"),
        ("authorization-mode", "AlwaysAllow"),
        ("node-status-update-frequency", "20s"),
    ];
    let config = load(file, &flags).unwrap();
    assert_eq!(config.max_pods, 20);
    assert_eq!(config.cluster_dns, ["10.0.0.10", "10.0.0.11"]);
    assert_eq!(config.cluster_domain, "cluster.local");
    assert_eq!(config.eviction.thresholds.len(), 1);
    assert_eq!(config.image_gc.unwrap().high_percent, 90);
    assert_eq!(config.resolv_conf, Path::new("/b"));
    assert_eq!(
        (config.registration.reserved.milli_cpu, config.registration.reserved.memory),
        (200, 64 << 20)
    );
    assert!(config.rotate_certificates);
    assert_eq!(config.registration.periods.look.as_secs(), 20);
    for (flag, text, why) in [
        ("max-pods", "many", "--max-pods: \"many\": must be an integer"),
        ("cpu-manager-policy", "static", "--cpu-manager-policy: \"static\": must be none: "),
        ("eviction-hard", "memory.available", "--eviction-hard: \"memory.available\": must be a map"),
        ("feature-gates", "MemoryQoS=true", "featureGates.MemoryQoS: true: must be false"),
        ("feature-gates", "SidecarContainers=false", "featureGates.SidecarContainers: false: must be true"),
    ] {
        let refused = load("", &[(flag, text)]).unwrap_err();
        assert!(refused.starts_with(why), "{refused}");
    }
    let joined = load("", &[("cluster-dns", "10.0.0.10"), ("cluster-dns", "10.0.0.11")]).unwrap();
    assert_eq!(joined.cluster_dns, ["10.0.0.10", "10.0.0.11"]);
}

#[test]
fn default_thresholds_are_merged_when_the_file_says_so() {
    let signals = |merge: bool| {
        let text = format!(
            "evictionHard: {{memory.available: 1Gi, nodefs.available: 0%}}\nmergeDefaultEvictionSettings: {merge}\n"
        );
        let thresholds = load(&text, &[]).unwrap().eviction.thresholds;
        thresholds.iter().map(|threshold| threshold.signal.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(signals(false), ["memory.available"]);
    assert_eq!(
        signals(true),
        ["memory.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"]
    );
}

#[cfg(feature = "tls")]
#[test]
fn configz_tells_every_field_and_what_is_in_force() {
    let told = |fields: &str, flags: &[(&str, &str)]| -> serde_json::Value {
        serde_json::from_str(&load(fields, flags).unwrap().configz()).unwrap()
    };
    let default = told("", &[]);
    // Each default of the kubelet's is told, but where the default here is another.
    fn lacks(told: &serde_json::Value, wanted: &serde_json::Value, at: &str, out: &mut Vec<String>) {
        match wanted {
            serde_json::Value::Object(fields) => {
                for (key, wanted) in fields {
                    lacks(&told[key], wanted, &format!("{at}.{key}"), out);
                }
            }
            other if told != other => out.push(format!("{at}: {told} for {other}")),
            _ => {}
        }
    }
    let mut out = Vec::new();
    lacks(&default["kubeletconfig"], &defaulted(), "", &mut out);
    let known = [".containerRuntimeEndpoint", ".failCgroupV1", ".failSwapOn"];
    out.retain(|line| !known.iter().any(|path| line.starts_with(&format!("{path}: "))));
    assert_eq!(out, [""; 0]);
    assert_eq!(default["kubeletconfig"]["kind"], "KubeletConfiguration");
    let other = told(
        "maxPods: 50\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n",
        &[("max-pods", "20")],
    );
    assert_eq!(other["kubeletconfig"]["maxPods"], 20);
    assert_eq!(other["kubeletconfig"]["evictionSoft"]["memory.available"], "1Gi");
    // But for what is nobody's business.
    let header = [("manifest-url-header", "X-Key:hunter2,X-Key:hunter3")];
    let other = told("staticPodURL: http://host/pods\n", &header);
    assert_eq!(other["kubeletconfig"]["staticPodURL"], "http://host/pods");
    assert_eq!(other["kubeletconfig"]["staticPodURLHeader"], serde_json::json!({"X-Key": ["<masked>"]}));
    let refused = load("", &[("manifest-url-header", "hunter2")]).unwrap_err();
    assert!(
        refused.starts_with("--manifest-url-header: must be a map") && !refused.contains("hunter2"),
        "{refused}"
    );
}

#[test]
fn the_page_has_the_table() {
    crate::page::compare(
        "docs/configuration.md",
        "src/config/fields.txt",
        &table_text(&fields().collect::<Vec<_>>()),
    );
}

fn table_text(table: &[Field]) -> String {
    let mut out = String::new();
    let count = |answer| table.iter().filter(|field| field.answer == answer).count();
    let _ = writeln!(
        out,
        "{} fields are honoured, {} accepted, {} fixed.\n\n| field | default | kubelet's flag | | |\n|---|---|---|---|---|",
        count(Answer::Honoured),
        count(Answer::Taken),
        count(Answer::Fixed)
    );
    let code = |text: &str| match text {
        "" => String::new(),
        text => format!("`{}`", text.replace('|', "` or `").replace(',', ", ")),
    };
    for field in table {
        let answer = match field.answer {
            Answer::Honoured => "honoured",
            Answer::Taken => "accepted",
            Answer::Fixed => "fixed",
        };
        let flag = if field.flag.is_empty() { String::new() } else { format!("`--{}`", field.flag) };
        let _ = writeln!(
            out,
            "| `{}` | {} | {flag} | {answer} | {} |",
            field.path,
            code(field.default),
            field.words
        );
    }
    out
}

#[test]
fn what_is_honoured_is_in_the_settings() {
    let text = "podPidsLimit: 100\npodsPerCore: 3\nnodeStatusMaxImages: 7\nmaxOpenFiles: 4096\noomScoreAdj: 500\n\
                memorySwap: {swapBehavior: LimitedSwap}\nsingleProcessOOMKill: true\nregistryPullQPS: 2\nregistryBurst: 0\n\
                tlsMinVersion: VersionTLS13\ntlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\nfailSwapOn: true\n\
                protectKernelDefaults: true\nmakeIPTablesUtilChains: false\nenforceNodeAllocatable: [none]\n";
    let config = load(text, &[]).unwrap();
    assert_eq!((config.pod_pids_limit, config.pods_per_core, config.node_images), (Some(100), Some(3), 7));
    assert_eq!((config.process.open_files, config.process.oom_score_adj), (Some(4096), Some(500)));
    assert_eq!(config.memory_swap, smolet::render::SwapBehavior::LimitedSwap);
    assert!(config.single_process_oom_kill && config.fail_swap_on && config.protect_kernel_defaults);
    assert!(!config.make_iptables_util_chains && config.node_api.tls13_only);
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    assert_eq!((config.pull_rate, config.node_api.cipher_suites.len()), (rate(2, 10), 1));
    let node = smolet::facts::node_settings(&config, "gw");
    assert_eq!((node.pod_pids_limit, node.single_process_oom_kill), (Some(100), true));
    assert_eq!(node.memory_swap, smolet::render::SwapBehavior::LimitedSwap);
    assert_eq!(load("registryPullQPS: 0", &[]).unwrap().pull_rate, None);
    let idle = |text| load(text, &[]).unwrap().node_api.stream_idle_max.as_secs();
    assert_eq!(idle("streamingConnectionIdleTimeout: 90s"), 90);
    assert_eq!(idle("streamingConnectionIdleTimeout: 0s"), 4 * 3600);
    for (text, requests, events) in [
        ("", rate(50, 100), rate(50, 100)),
        ("kubeAPIQPS: 20\nkubeAPIBurst: 0\neventRecordQPS: 3\neventBurst: 7", rate(20, 100), rate(3, 7)),
        // As client-go, which has a default of its own.
        ("kubeAPIQPS: 0\nkubeAPIBurst: 30\neventRecordQPS: 0", rate(5, 30), None),
    ] {
        assert_eq!(load(text, &[]).unwrap().api_rates, ApiRates { requests, events }, "{text}");
    }
    assert!(load("enforceNodeAllocatable: []", &[]).is_ok());
    for (text, why) in [
        ("oomScoreAdj: 1001", "oomScoreAdj: 1001: must be between -1000 and 1000"),
        ("nodeStatusMaxImages: -1", "nodeStatusMaxImages: -1: must be between 0 and 50"),
        ("podsPerCore: -1", "podsPerCore: -1: must be between 0"),
        ("registryBurst: -1", "registryBurst: -1: must be between 0"),
        ("kubeAPIQPS: -1", "kubeAPIQPS: -1: must be between 0"),
        ("eventBurst: -1", "eventBurst: -1: must be between 0"),
        (
            "memorySwap: {swapBehavior: Some}",
            "memorySwap.swapBehavior: \"Some\": must be NoSwap or LimitedSwap",
        ),
        (
            "tlsMinVersion: VersionTLS10",
            "tlsMinVersion: \"VersionTLS10\": must be VersionTLS12 or VersionTLS13",
        ),
        ("tlsCipherSuites: [AES]", "tlsCipherSuites: \"AES\": is no suite that the kubelet knows"),
        (
            "staticPodURL: http://host/\nhttpCheckFrequency: 1ms",
            "httpCheckFrequency: 0.001 s: must be between 1 s",
        ),
        (
            "enforceNodeAllocatable: [pods, kube-reserved]",
            "enforceNodeAllocatable: a list of 2: must be pods or none: ",
        ),
    ] {
        let refused = load(text, &[]).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}
