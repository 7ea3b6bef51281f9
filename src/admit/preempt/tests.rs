use serde_json::{Value, json};

use super::*;

/// The pods of the kubelet's own tests (`getTestPods`): their requests in thousandths of a CPU and MiB.
fn pod(kind: &str) -> Pod {
    let (asked, priority) = match kind {
        "cluster-critical" => (100, Some(2_000_000_000)),
        "node-critical" => (100, Some(2_000_000_100)),
        "best-effort" => (0, None),
        "tiny" => (1, None),
        "burstable" | "guaranteed" => (100, None),
        "high-burstable" | "high-guaranteed" => (300, None),
        _ => panic!("no such pod: {kind}"),
    };
    let list = json!({"cpu": format!("{asked}m"), "memory": format!("{asked}Mi")});
    let resources = match kind {
        "best-effort" => json!({}),
        "guaranteed" | "high-guaranteed" => json!({"requests": list, "limits": list}),
        _ => json!({"requests": list}),
    };
    of(&json!({"priority": priority, "containers": [{"name": "c", "resources": resources}]}))
}

fn of(spec: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
}

fn asking(cpu_milli: i64, memory: i64) -> Pod {
    let requests = json!({"cpu": format!("{cpu_milli}m"), "memory": memory.to_string()});
    of(&json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
}

/// Missing CPU, MiB and pods.
fn missing(cpu_milli: i64, mib: i64, pods: i64) -> Vec<Shortage> {
    let all = [("cpu", cpu_milli), ("memory", mib << 20), ("pods", pods)];
    let all = all.into_iter().filter(|(_, requested)| *requested > 0);
    let short =
        |(name, requested): (&str, i64)| Shortage { resource: name.into(), requested, used: 7, capacity: 7 };
    all.map(short).collect()
}

/// The kubelet's own rows (`TestGetPodsToPreempt`): missing CPU, MiB and pods, the running pods, the preempted pods.
const ROWS: &str = "
    cluster-critical | 0 0 0     |                                                                     |
    cluster-critical | 0 0 1     |                                                                     | nobody will do
    cluster-critical | 100 100 1 | burstable                                                           | burstable
    cluster-critical | 200 200 2 | burstable                                                           | nobody will do
    cluster-critical | 0 0 1     | burstable best-effort                                               | best-effort
    cluster-critical | 0 0 1     | burstable guaranteed                                                | burstable
    cluster-critical | 100 100 0 | best-effort high-burstable burstable                                | burstable
    cluster-critical | 150 150 0 | best-effort burstable high-burstable                                | high-burstable
    cluster-critical | 350 350 0 | best-effort burstable high-burstable guaranteed high-guaranteed     | high-burstable burstable
    cluster-critical | 0 550 0   | best-effort burstable high-burstable guaranteed high-guaranteed     | high-burstable high-guaranteed
    node-critical    | 100 0 0   | cluster-critical                                                    | cluster-critical
    cluster-critical | 100 0 0   | node-critical                                                       | nobody will do
    cluster-critical | 0 0 1     | cluster-critical                                                    | nobody will do
    cluster-critical | 0 1 0     | best-effort                                                         | nobody will do
    burstable        | 0 0 1     | best-effort                                                         | nobody will do
    cluster-critical | 3 0 0     | tiny tiny tiny tiny                                                 | tiny tiny tiny
    cluster-critical | 0 0 3     | guaranteed best-effort burstable                                    | best-effort burstable guaranteed
";

#[test]
fn the_kubelets_choices() {
    for row in ROWS.trim().lines() {
        let [preemptor, short, there, goes] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let amounts: Vec<i64> = short.split(' ').map(|amount| amount.parse().unwrap()).collect();
        let kinds: Vec<&str> = there.split_whitespace().collect();
        let pods: Vec<Pod> = kinds.iter().map(|kind| pod(kind)).collect();
        let others: Vec<&Pod> = pods.iter().collect();
        let shortages = missing(amounts[0], amounts[1], amounts[2]);
        let ours = match victims(&pod(preemptor), &others, &shortages) {
            Ok(chosen) => chosen.into_iter().map(|place| kinds[place]).collect::<Vec<_>>().join(" "),
            Err(_) => "nobody will do".to_owned(),
        };
        assert_eq!(ours, goes, "{row}");
    }
}

#[test]
fn where_nobody_will_do_the_pod_is_rejected_for_what_stays_missing() {
    let there = [pod("burstable"), pod("node-critical")];
    let others: Vec<&Pod> = there.iter().collect();
    let ours = victims(&pod("cluster-critical"), &others, &missing(200, 100, 2));
    let rejection = ours.unwrap_err();
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    assert_eq!(
        rejection.message,
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods \
         to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 100), (res: pods, q: 1), ]"
    );
    assert_eq!(rejection.remedy, super::super::Remedy::None);
}

/// A static pod or one of system priority is critical; an equal priority is not enough.
#[test]
fn whom_a_pod_may_end() {
    let with = |priority: Option<i32>, source: Option<&str>| {
        let mut pod = of(&json!({"priority": priority, "containers": []}));
        pod.metadata.annotations =
            source.map(|source| [("kubernetes.io/config.source".to_owned(), source.to_owned())].into());
        pod
    };
    let pods = [
        with(None, None),
        with(Some(0), Some("api")),
        with(Some(5), None),
        with(Some(2_000_000_000), None),
        with(None, Some("file")),
        with(Some(2_000_001_000), Some("file")),
    ];
    let table = [
        "no  no  no  no  no  no",
        "no  no  no  no  no  no",
        "no  yes no  no  no  no",
        "yes yes yes no  no  no",
        "yes yes yes no  no  no",
        "yes yes yes yes no  no",
    ];
    for (preemptor, row) in pods.iter().zip(table) {
        for (other, expected) in pods.iter().zip(row.split_whitespace()) {
            assert_eq!(preemptable(preemptor, other), expected == "yes", "{row}");
        }
    }
}

#[test]
fn of_equally_near_pods_the_smallest_goes_and_of_equal_ones_the_last() {
    let critical = pod("cluster-critical");
    let chosen = |pods: &[Pod], shortages: &[Shortage]| {
        let others: Vec<&Pod> = pods.iter().collect();
        victims(&critical, &others, shortages).unwrap()
    };
    let one = missing(0, 0, 1);
    assert_eq!(chosen(&[asking(5, 9), asking(9, 5), asking(1, 9)], &one), [1], "memory before CPU");
    assert_eq!(chosen(&[asking(5, 5), asking(1, 5), asking(9, 5)], &one), [1], "CPU then");
    assert_eq!(chosen(&[asking(5, 5), asking(5, 5), asking(5, 5)], &one), [2]);
    assert_eq!(chosen(&[asking(5, 5), asking(5, 5), asking(9, 9)], &missing(0, 0, 2)), [1, 0]);
    // The first frees half of each, the second all of one: by squares the first is nearer.
    let both = [
        Shortage { resource: "cpu".into(), requested: 10, used: 0, capacity: 0 },
        Shortage { resource: "memory".into(), requested: 10, used: 0, capacity: 0 },
    ];
    assert_eq!(chosen(&[asking(10, 1), asking(5, 5), asking(5, 5)], &both), [2, 1]);
}

/// Every four pods of a small space, for some needs: the preempted pods suffice, none is preempted in vain, and when none is
/// preempted all together do not suffice.
#[test]
fn who_ends_is_enough_and_nobody_ends_for_nothing() {
    let kinds =
        ["best-effort", "burstable", "high-burstable", "guaranteed", "high-guaranteed", "node-critical"];
    let pods = kinds.map(pod);
    let critical = pod("cluster-critical");
    let needs = [(0, 0, 3), (301, 0, 1), (150, 350, 0), (450, 1, 2)];
    let (mut ended, mut refused) = (0, 0);
    for mut set in 0..kinds.len().pow(4) {
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(&pods[set % kinds.len()]);
            set /= kinds.len();
        }
        for (cpu, mib, count) in needs {
            let shortages = missing(cpu, mib, count);
            let enough = |places: &[usize]| {
                shortages.iter().all(|short| {
                    let back: i64 =
                        places.iter().map(|place| given_back(others[*place], &short.resource)).sum();
                    back >= short.missing()
                })
            };
            let may: Vec<usize> = (0..4).filter(|place| preemptable(&critical, others[*place])).collect();
            if let Ok(chosen) = victims(&critical, &others, &shortages) {
                assert!(enough(&chosen) && chosen.iter().all(|place| may.contains(place)), "{chosen:?}");
                for spared in &chosen {
                    let class = pod_qos(others[*spared]);
                    let rest: Vec<usize> = chosen.iter().copied().filter(|place| place != spared).collect();
                    // The kubelet's choice may have one too many of a class, but never of a single class.
                    let alone = chosen.iter().filter(|place| pod_qos(others[**place]) == class).count() == 1;
                    assert!(!alone || !enough(&rest), "{chosen:?} without {spared}");
                }
                ended += 1;
            } else {
                assert!(!enough(&may));
                refused += 1;
            }
        }
    }
    assert_eq!(ended + refused, 1296 * 4);
    assert!(ended > 500 && refused > 500, "{ended} {refused}");
}
