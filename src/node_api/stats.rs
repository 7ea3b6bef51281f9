//! Resource usage of the node, its pods and containers, for Prometheus (`/metrics/resource`) and for the summary API
//! (`/stats/summary`, older metrics-servers). PURE.

use std::fmt::Write as _;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use crate::cri::CpuSample;
use crate::filesystem::Filesystem;
use crate::model::{PodKey, Wall};

/// One sample of the usage.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) node: NodeUse,
    pub(crate) pods: Vec<PodUse>,
    /// The runtime's stats call failed.
    pub(crate) failed: bool,
}

/// The machine's usage.
#[derive(Debug, Default)]
pub(crate) struct NodeUse {
    pub(crate) name: Box<str>,
    /// Boot time of the machine.
    pub(crate) booted: Wall,
    /// Time of the sample.
    pub(crate) at: Wall,
    /// CPU time of all cores since boot, in nanoseconds.
    pub(crate) cpu_nanos: Option<u64>,
    /// Bytes of memory: total and available.
    pub(crate) memory: Option<(u64, u64)>,
    /// Bytes of anonymous memory (the root's `rss`).
    pub(crate) anonymous: Option<u64>,
    /// Bytes of swap in use.
    pub(crate) swap: Option<u64>,
    /// The file system of the pods' directories.
    pub(crate) disk: Option<Filesystem>,
}

/// A pod's usage: the sum of its containers.
#[derive(Debug)]
pub(crate) struct PodUse {
    pub(crate) key: PodKey,
    /// Creation time of its sandbox.
    pub(crate) started: Wall,
    pub(crate) containers: Vec<ContainerUse>,
}

/// A running container's usage.
#[derive(Debug)]
pub(crate) struct ContainerUse {
    pub(crate) name: Rc<str>,
    pub(crate) started: Option<Wall>,
    pub(crate) cpu: Option<CpuSample>,
    pub(crate) nano_cores: Option<u64>,
    /// The working set.
    pub(crate) memory: Option<u64>,
    /// Bytes and inodes of its writable layer.
    pub(crate) written: Option<(u64, u64)>,
}

impl NodeUse {
    /// Parses `/proc/stat` and `/proc/meminfo`.
    pub(crate) fn read(&mut self, stat: &str, meminfo: &str) {
        // User, nice, system; not idle and iowait; irq, softirq: in hundredths of a second.
        let busy = stat.lines().find_map(|line| line.strip_prefix("cpu ")).map(|line| {
            let ticks = line.split_whitespace().map(|ticks| ticks.parse::<u64>().unwrap_or(0));
            ticks
                .enumerate()
                .filter(|(at, _)| matches!(at, 0..=2 | 5 | 6))
                .map(|(_, ticks)| ticks)
                .fold(0, u64::saturating_add)
        });
        self.cpu_nanos = busy.map(|ticks| ticks.saturating_mul(10_000_000));
        let seconds = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        self.booted = Wall(seconds.unwrap_or_default().saturating_mul(1_000_000_000));
        let bytes = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().split(' ').next()?.parse::<u64>().ok()?.saturating_mul(1024))
        };
        self.memory = bytes("MemTotal").zip(bytes("MemAvailable"));
        self.anonymous = bytes("AnonPages");
        self.swap = bytes("SwapTotal").zip(bytes("SwapFree")).map(|(all, free)| all.saturating_sub(free));
    }

    /// Working set, as `memory.available` computes it.
    fn working_set(&self) -> Option<u64> {
        self.memory.map(|(all, available)| all.saturating_sub(available))
    }
}

impl PodUse {
    /// CPU time at the earliest of the samples, when every container has one.
    fn cpu(&self) -> Option<CpuSample> {
        self.containers.iter().map(|container| container.cpu).reduce(|sum, cpu| {
            let (sum, cpu) = sum.zip(cpu)?;
            Some(CpuSample { at: sum.at.min(cpu.at), nanos: sum.nanos.saturating_add(cpu.nanos) })
        })?
    }

    fn sum(&self, of: impl Fn(&ContainerUse) -> Option<u64>) -> Option<u64> {
        self.containers.iter().map(of).reduce(|sum, more| Some(sum?.saturating_add(more?)))?
    }
}

impl Uses {
    /// Prometheus text with the times of the samples (kubelet `resourceMetricsCollector`).
    pub(crate) fn resources(&self) -> String {
        let mut page = String::new();
        let at = self.node.at;
        let named = |pod: &PodUse, name: Option<&str>| {
            let container = name.map(|name| format!("container=\"{name}\",")).unwrap_or_default();
            // Kubernetes names need no escapes.
            format!("{{{container}namespace=\"{}\",pod=\"{}\"}}", pod.key.namespace, pod.key.name)
        };
        let containers = || {
            let of = |pod| move |container| (pod, container);
            self.pods.iter().flat_map(move |pod: &PodUse| pod.containers.iter().map(of(pod)))
        };
        let rows = containers().filter_map(|(pod, container): (&PodUse, &ContainerUse)| {
            Some((named(pod, Some(&container.name)), seconds(container.cpu?.nanos), Some(container.cpu?.at)))
        });
        let help = "Cumulative cpu time consumed by the container in core-seconds";
        family(&mut page, "container_cpu_usage_seconds_total", "counter", help, rows);
        let rows = containers().filter_map(|(pod, container)| {
            Some((named(pod, Some(&container.name)), container.memory?.to_string(), Some(at)))
        });
        let help = "Current working set of the container in bytes";
        family(&mut page, "container_memory_working_set_bytes", "gauge", help, rows);
        let rows = containers().filter_map(|(pod, container)| {
            let started = u64::try_from(container.started?.0).ok()?;
            Some((named(pod, Some(&container.name)), seconds(started), None))
        });
        let help = "Start time of the container since unix epoch in seconds";
        family(&mut page, "container_start_time_seconds", "gauge", help, rows);
        let node = |value: Option<String>| value.map(|value| (String::new(), value, Some(at))).into_iter();
        let help = "Cumulative cpu time consumed by the node in core-seconds";
        let rows = node(self.node.cpu_nanos.map(seconds));
        family(&mut page, "node_cpu_usage_seconds_total", "counter", help, rows);
        let help = "Current working set of the node in bytes";
        let rows = node(self.node.working_set().map(|bytes| bytes.to_string()));
        family(&mut page, "node_memory_working_set_bytes", "gauge", help, rows);
        let help = "Current swap usage of the node in bytes. Reported only on non-windows systems";
        let rows = node(self.node.swap.map(|bytes| bytes.to_string()));
        family(&mut page, "node_swap_usage_bytes", "gauge", help, rows);
        let rows = self.pods.iter().filter_map(|pod| {
            let cpu = pod.cpu()?;
            Some((named(pod, None), seconds(cpu.nanos), Some(cpu.at)))
        });
        let help = "Cumulative cpu time consumed by the pod in core-seconds";
        family(&mut page, "pod_cpu_usage_seconds_total", "counter", help, rows);
        let rows = self.pods.iter().filter_map(|pod| {
            Some((named(pod, None), pod.sum(|container| container.memory)?.to_string(), Some(at)))
        });
        let help = "Current working set of the pod in bytes";
        family(&mut page, "pod_memory_working_set_bytes", "gauge", help, rows);
        let help = "1 if there was an error while getting container metrics, 0 otherwise";
        for name in ["resource_scrape_error", "scrape_error"] {
            let row = (String::new(), u8::from(self.failed).to_string(), None);
            family(&mut page, name, "gauge", help, [row].into_iter());
        }
        page
    }

    /// The kubelet's `v1alpha1.Summary`.
    pub(crate) fn summary(&self, only_cpu_and_memory: bool) -> String {
        let NodeUse { name, booted, at, cpu_nanos, memory, anonymous, disk, .. } = &self.node;
        let mut node = json!({"nodeName": &**name, "startTime": booted.to_string()});
        if let Some(nanos) = cpu_nanos {
            node["cpu"] = json!({"time": at.to_string(), "usageCoreNanoSeconds": nanos});
        }
        if let Some((all, available)) = memory {
            let used = all.saturating_sub(*available);
            node["memory"] = json!({
                "time": at.to_string(), "availableBytes": available, "usageBytes": used, "workingSetBytes": used,
            });
            // Clients read it without checking that it is present (upstream's e2e framework among them).
            if let Some(bytes) = anonymous {
                node["memory"]["rssBytes"] = (*bytes).into();
            }
        }
        if let Some(disk) = disk.filter(|_| !only_cpu_and_memory) {
            node["fs"] = json!({
                "time": at.to_string(), "capacityBytes": disk.bytes, "availableBytes": disk.bytes_free,
                "usedBytes": disk.bytes.saturating_sub(disk.bytes_free), "inodes": disk.inodes,
                "inodesFree": disk.inodes_free, "inodesUsed": disk.inodes.saturating_sub(disk.inodes_free),
            });
        }
        // Pod by pod: the JSON tree of all pods would need many times the bytes of its text.
        let mut text = format!("{{\"node\":{node},\"pods\":[");
        for (index, pod) in self.pods.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(text, "{comma}{}", self.pod(pod, only_cpu_and_memory));
        }
        text.push_str("]}");
        text
    }

    fn pod(&self, pod: &PodUse, only_cpu_and_memory: bool) -> Value {
        let mut containers: Vec<Value> = Vec::with_capacity(pod.containers.len());
        for container in &pod.containers {
            let mut value = self.uses(container.cpu, container.nano_cores, container.memory);
            value.insert("name".to_owned(), (*container.name).into());
            if let Some(started) = container.started {
                value.insert("startTime".to_owned(), started.to_string().into());
            }
            if let Some((bytes, inodes)) = container.written.filter(|_| !only_cpu_and_memory) {
                let written =
                    json!({"time": self.node.at.to_string(), "usedBytes": bytes, "inodesUsed": inodes});
                value.insert("rootfs".to_owned(), written);
            }
            containers.push(value.into());
        }
        let nano_cores = pod.sum(|container| container.nano_cores);
        let mut value = self.uses(pod.cpu(), nano_cores, pod.sum(|container| container.memory));
        let PodKey { namespace, name, uid } = &pod.key;
        value.insert(
            "podRef".to_owned(),
            json!({"name": &**name, "namespace": &**namespace, "uid": uid.as_str()}),
        );
        value.insert("startTime".to_owned(), pod.started.to_string().into());
        value.insert("containers".to_owned(), containers.into());
        value.into()
    }

    fn uses(
        &self,
        cpu: Option<CpuSample>,
        nano_cores: Option<u64>,
        memory: Option<u64>,
    ) -> Map<String, Value> {
        let mut value = Map::new();
        if let Some(cpu) = cpu {
            let mut of = json!({"time": cpu.at.to_string(), "usageCoreNanoSeconds": cpu.nanos});
            if let Some(cores) = nano_cores {
                of["usageNanoCores"] = cores.into();
            }
            value.insert("cpu".to_owned(), of);
        }
        if let Some(bytes) = memory {
            let of = json!({"time": self.node.at.to_string(), "workingSetBytes": bytes});
            value.insert("memory".to_owned(), of);
        }
        value
    }
}

/// Labels, value and timestamp of a row.
type Row = (String, String, Option<Wall>);

fn family(page: &mut String, name: &str, kind: &str, help: &str, rows: impl Iterator<Item = Row>) {
    let mut is_first = true;
    for (labels, value, at) in rows {
        if std::mem::take(&mut is_first) {
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        let _ = match at {
            Some(at) => writeln!(page, "{name}{labels} {value} {}", at.0 / 1_000_000),
            None => writeln!(page, "{name}{labels} {value}"),
        };
    }
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, nanos: Option<u64>, memory: Option<u64>) -> ContainerUse {
        ContainerUse {
            name: name.into(),
            started: Some(Wall(5_000_000_000)),
            cpu: nanos.map(|nanos| CpuSample { at: Wall(7_000_000_000), nanos }),
            nano_cores: Some(2_000_000),
            memory,
            written: Some((100, 3)),
        }
    }

    fn uses(containers: Vec<ContainerUse>) -> Uses {
        let key = PodKey { namespace: "prod".into(), name: "web".into(), uid: "0-1".into() };
        let mut node = NodeUse { name: "gw".into(), at: Wall(8_000_000_000), ..NodeUse::default() };
        node.read(
            "cpu  100 10 20 999 99 3 2 7 0 0\ncpu0 1 1\nbtime 1000\n",
            "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n\
             AnonPages: 300 kB\n",
        );
        let pods = vec![PodUse { key, started: Wall(4_000_000_000), containers }];
        Uses { node, pods, failed: false }
    }

    #[test]
    fn prometheus_gets_what_the_kubelet_gives() {
        let page = uses(vec![
            container("app", Some(1_500_000_000), Some(4096)),
            container("side", Some(500_000_000), Some(1024)),
        ]);
        let page = page.resources();
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter",
            "container_cpu_usage_seconds_total{container=\"app\",namespace=\"prod\",pod=\"web\"} 1.500000000 7000",
            "container_memory_working_set_bytes{container=\"side\",namespace=\"prod\",pod=\"web\"} 1024 8000",
            "container_start_time_seconds{container=\"app\",namespace=\"prod\",pod=\"web\"} 5.000000000",
            "node_cpu_usage_seconds_total 1.350000000 8000",
            "node_memory_working_set_bytes 614400 8000",
            "node_swap_usage_bytes 6144 8000",
            "pod_cpu_usage_seconds_total{namespace=\"prod\",pod=\"web\"} 2.000000000 7000",
            "pod_memory_working_set_bytes{namespace=\"prod\",pod=\"web\"} 5120 8000",
            "resource_scrape_error 0",
            "scrape_error 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
    }

    #[test]
    fn what_is_not_known_is_left_out_and_no_sum_is_made_of_it() {
        let page =
            uses(vec![container("app", None, Some(4096)), container("side", Some(1), None)]).resources();
        for name in ["pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"] {
            assert!(!page.contains(name), "{name} in\n{page}");
        }
        let failed = Uses { failed: true, ..Uses::default() };
        assert!(failed.resources().contains("\nresource_scrape_error 1\n"));
        let _: Value = serde_json::from_str(&failed.summary(false)).unwrap();
    }

    #[test]
    fn the_summary_is_the_kubelets() {
        let mut uses = uses(vec![container("app", Some(1_500_000_000), Some(4096))]);
        uses.node.disk = Some(Filesystem {
            bytes: 100,
            bytes_free: 40,
            inodes: 10,
            inodes_free: 4,
            ..Filesystem::default()
        });
        let whole: Value = serde_json::from_str(&uses.summary(false)).unwrap();
        let time = |seconds: u32| format!("1970-01-01T00:00:{seconds:02}Z");
        assert_eq!(whole["node"]["memory"]["workingSetBytes"], 614_400);
        assert_eq!(whole["node"]["memory"]["rssBytes"], 307_200);
        assert_eq!(whole["node"]["fs"]["usedBytes"], 60);
        assert_eq!(
            whole["pods"][0],
            json!({
                "podRef": {"name": "web", "namespace": "prod", "uid": "0-1"}, "startTime": time(4),
                "cpu": {"time": time(7), "usageNanoCores": 2_000_000, "usageCoreNanoSeconds": 1_500_000_000},
                "memory": {"time": time(8), "workingSetBytes": 4096},
                "containers": [{
                    "name": "app", "startTime": time(5),
                    "cpu": {"time": time(7), "usageNanoCores": 2_000_000, "usageCoreNanoSeconds": 1_500_000_000},
                    "memory": {"time": time(8), "workingSetBytes": 4096},
                    "rootfs": {"time": time(8), "usedBytes": 100, "inodesUsed": 3},
                }],
            })
        );
        let part: Value = serde_json::from_str(&uses.summary(true)).unwrap();
        assert!(part["node"]["fs"].is_null() && part["pods"][0]["containers"][0]["rootfs"].is_null());
        assert_eq!(part["node"]["cpu"], whole["node"]["cpu"]);
    }
}
