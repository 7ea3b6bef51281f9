//! Set `cpu_memory_conversion`: shares, quotas, classes, out-of-memory scores and pod cgroups.

use serde_json::{Map, Value, json};
use smolet::render::{qos, resources};

use crate::{Case, run_set};

#[test]
fn cpu_memory_conversion() {
    run_set("cpu_memory_conversion", |case| {
        let number = |name: &str| case.input[name].as_i64().unwrap_or_default();
        match case.input["kind"].as_str() {
            Some("milliCPU") => json!({
                "shares": resources::milli_cpu_to_shares(number("milliCPU")),
                "quotaUs": resources::milli_cpu_to_quota(number("milliCPU"), number("periodUs")),
            }),
            Some("shares") => json!({"milliCPU": resources::shares_to_milli_cpu(number("shares"))}),
            Some("quota") => {
                json!({"milliCPU": resources::quota_to_milli_cpu(number("quotaUs"), number("periodUs"))})
            }
            _ => pod(case),
        }
    });
}

fn pod(case: &Case) -> Value {
    let pod = serde_json::from_value(case.input["pod"].clone()).expect("a pod");
    let number = |name: &str| case.input[name].as_i64().unwrap_or_default();
    let spec = smolet::model::DesiredPod::new(pod);
    let pod = &*spec.pod;
    let score = |container| qos::oom_score_adjust(pod, container, number("memoryCapacityBytes"));
    let scores: Map<String, Value> = spec
        .init_containers()
        .iter()
        .chain(spec.containers())
        .map(|container| (container.name.clone(), json!(score(container))))
        .collect();
    let enforce = case.input["enforceCPULimits"].as_bool().unwrap_or_default();
    let cgroup = resources::pod_cgroup(pod, enforce, number("cpuPeriodUs"));
    let huge: Map<String, Value> =
        cgroup.huge_page_limit_bytes.iter().map(|(size, limit)| (size.to_string(), json!(limit))).collect();
    json!({
        "qosClass": qos::pod_qos(pod).as_str(),
        "computedQOSClass": qos::compute_pod_qos(pod).as_str(),
        "critical": qos::is_critical_pod(pod),
        "nodeCritical": qos::is_node_critical_pod(pod),
        "oomScoreAdj": scores,
        "podCgroup": {
            "cpuShares": cgroup.cpu_shares,
            "cpuQuotaUs": cgroup.cpu_quota_us,
            "cpuPeriodUs": cgroup.cpu_period_us,
            "memoryLimitBytes": cgroup.memory_limit_bytes,
            "hugePageLimitBytes": (!huge.is_empty()).then_some(huge),
        },
    })
}
