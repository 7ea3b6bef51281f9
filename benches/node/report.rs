//! The figures as a table, and the promises held against them.

use std::fmt::{self, Write as _};

use crate::PODS;
use crate::finding::Idle;
use crate::pulls::Pulls;

/// Some milliseconds, or other numbers of one thing.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<f64>);

impl Times {
    pub fn add(&mut self, time: f64) {
        let at = self.0.partition_point(|known| *known < time);
        self.0.insert(at, time);
    }

    /// The value that share of the others is not above; not a number without any.
    fn share(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1) as f64;
        self.0.get((last * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    pub fn median(&self) -> f64 {
        self.share(0.5)
    }

    /// With fewer than a hundred values the highest.
    pub fn p99(&self) -> f64 {
        self.share(0.99)
    }
}

/// One pod's start.
#[derive(Default)]
pub struct Starts {
    /// From the manifest's rename to the container's start.
    pub total: Times,
    /// Of that, until the source hands the pod over: quiet time after a change, by design.
    pub source: Times,
    /// From there on.
    pub agent: Times,
}

/// One container's restart.
#[derive(Default)]
pub struct Restarts {
    /// From the exit to the replacement's start.
    pub total: Times,
    /// Of that, until the CRI shows the exit.
    pub shown: Times,
    /// From there on.
    pub agent: Times,
}

/// Many pods' start.
#[derive(Default)]
pub struct Bursts {
    /// From the first manifest's rename to the last container's start.
    pub total: Times,
    /// The same from where the source hands the first pod over.
    pub agent: Times,
}

/// What was measured of one agent.
pub struct Figures {
    pub idle: Vec<Idle>,
    /// The whole node but for the containers' processes, by number of pods.
    pub node_pss_kib: Vec<u64>,
    pub start: Starts,
    pub restart: Restarts,
    pub burst: Bursts,
    /// CPU of the whole node for an exec probe.
    pub probe_ms: f64,
}

/// What was measured of the calls alone.
pub struct Floored {
    pub start: Times,
    pub restart: Times,
    /// By how many pods started at once.
    pub burst: Vec<(usize, Times)>,
}

impl Floored {
    /// The quickest way to start many pods: how many at once, and how long it took.
    pub fn best_burst(&self) -> (usize, f64) {
        let medians = self.burst.iter().map(|(at_once, times)| (*at_once, times.median()));
        medians.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::NAN))
    }
}

impl Floored {
    /// Times of the embedded runtime as multiples of these.
    pub fn beside(&self, start: &Starts, restart: &Restarts, burst: &Bursts) -> String {
        let (at_once, best) = self.best_burst();
        let row = |what: &str, ours: &Times, raw: f64| {
            format!("{what}: {} ms, raw calls {raw:.0} ms: {:.2}", both(ours), ours.median() / raw)
        };
        [
            row("seen → running", &start.agent, self.start.median()),
            row("exit shown → restarted", &restart.agent, self.restart.median()),
            row(&format!("30 pods at once, raw calls of {at_once}"), &burst.agent, best),
        ]
        .join("\n")
    }
}

/// All of one run.
pub struct Report {
    pub smolet: Figures,
    pub raw: Floored,
    pub kubelet: Option<Figures>,
    /// smolet with the embedded runtime.
    pub embedded: Figures,
    /// containerd's raw calls meanwhile.
    pub embedded_raw: Floored,
    /// With the embedded runtime, and with containerd.
    pub pulls: [Pulls; 2],
    pub binary_bytes: u64,
    pub plan_us: f64,
}

pub fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

impl Report {
    /// Markdown.
    pub fn table(&self) -> String {
        let mut out = String::new();
        self.table_at_rest(&mut out);
        out.push('\n');
        self.table_of_times(&mut out);
        out.push('\n');
        self.table_of_the_node(&mut out);
        out.push('\n');
        out.push_str(&table_of_pulls(&self.pulls));
        out
    }

    /// smolet with its own runtime beside smolet with containerd.
    fn table_of_the_node(&self, out: &mut String) {
        let (embedded, raw) = (&self.embedded, &self.embedded_raw);
        out.push_str("| the whole node | embedded | containerd |\n|---|--:|--:|\n");
        let mut row = |what: &str, embedded: &str, beside: &str| {
            let _ = writeln!(out, "| {what} | {embedded} | {beside} |");
        };
        for (at, pods) in PODS.iter().enumerate() {
            let of = |figures: &Figures| format!("{:.1}", mib(figures.node_pss_kib[at]));
            row(&format!("PSS with {pods} pods, MiB"), &of(embedded), &of(&self.smolet));
            let idle = |figures: &Figures| {
                let idle = &figures.idle[at];
                format!("{:.1}; {:.0}", mib(idle.end.resident_kib), idle.cpu_ms_per_minute)
            };
            row("– of it the agent, resident MiB; CPU ms/min", &idle(embedded), &idle(&self.smolet));
        }
        row("seen → running, ms (beside: raw calls)", &both(&embedded.start.agent), &both(&raw.start));
        row(
            "exit shown → restarted, ms (beside: raw calls)",
            &both(&embedded.restart.agent),
            &both(&raw.restart),
        );
        let (at_once, best) = raw.best_burst();
        let best = format!("{best:.0} ({at_once} at once)");
        row("30 pods at once, ms (beside: raw calls)", &both(&embedded.burst.agent), &best);
        let probe = |figures: &Figures| format!("{:.1}", figures.probe_ms);
        row("an exec probe, CPU ms (beside: smolet with containerd)", &probe(embedded), &probe(&self.smolet));
    }

    fn table_at_rest(&self, out: &mut String) {
        let agents =
            [Some(("smolet", &self.smolet)), self.kubelet.as_ref().map(|kubelet| ("kubelet", kubelet))];
        out.push_str("| at rest | pods | resident MiB | of it anonymous | threads | CPU ms/min | wake-ups/min | bytes written |\n");
        out.push_str("|---|--:|--:|--:|--:|--:|--:|--:|\n");
        for (name, figures) in agents.into_iter().flatten() {
            for (pods, idle) in PODS.iter().zip(&figures.idle) {
                let _ = writeln!(
                    out,
                    "| {name} | {pods} | {:.1} | {:.1} | {} | {:.1} | {:.0} | {} |",
                    mib(idle.end.resident_kib),
                    mib(idle.end.anonymous_kib),
                    idle.end.threads,
                    idle.cpu_ms_per_minute,
                    idle.wakeups_per_minute,
                    idle.disk_bytes,
                );
            }
        }
    }

    fn table_of_times(&self, out: &mut String) {
        let (smolet, raw) = (&self.smolet, &self.raw);
        let of_kubelet = |pick: fn(&Figures) -> &Times| match &self.kubelet {
            Some(kubelet) => both(pick(kubelet)),
            None => String::new(),
        };
        let (at_once, best) = raw.best_burst();
        out.push_str("| median / p99 in ms | smolet | raw CRI calls | kubelet |\n|---|--:|--:|--:|\n");
        let mut row = |what: &str, smolet: &str, raw: &str, kubelet: &str| {
            let _ = writeln!(out, "| {what} | {smolet} | {raw} | {kubelet} |");
        };
        row("manifest → running", &both(&smolet.start.total), "", &of_kubelet(|k| &k.start.total));
        row("– of it until the source hands the pod over", &both(&smolet.start.source), "", "");
        row("– from there to running", &both(&smolet.start.agent), &both(&raw.start), "");
        row("exit → restarted", &both(&smolet.restart.total), "", &of_kubelet(|k| &k.restart.total));
        row(
            "– of it until the CRI shows the exit",
            &both(&smolet.restart.shown),
            "",
            &of_kubelet(|k| &k.restart.shown),
        );
        row(
            "– from there to started again",
            &both(&smolet.restart.agent),
            &both(&raw.restart),
            &of_kubelet(|k| &k.restart.agent),
        );
        row(
            "30 manifests at once → all running",
            &both(&smolet.burst.total),
            "",
            &of_kubelet(|k| &k.burst.total),
        );
        row(
            "– from where the source hands them over",
            &both(&smolet.burst.agent),
            &format!("{best:.0} ({at_once} at once)"),
            "",
        );
        let others: Vec<String> =
            raw.burst.iter().map(|(at_once, times)| format!("{at_once}: {:.0}", times.median())).collect();
        let _ = writeln!(
            out,
            "\nraw calls of 30 pods by how many start at once, median ms: {}",
            others.join(", ")
        );
        let _ = writeln!(
            out,
            "plan of an unchanged pod: {:.2} µs; binary: {} bytes",
            self.plan_us, self.binary_bytes
        );
    }

    /// Every promise that this run can judge.
    pub fn promises(&self) -> Vec<Promise> {
        let (smolet, raw) = (&self.smolet, &self.raw);
        let idle = |pods| {
            let at = PODS.iter().position(|known| *known == pods).expect("a number of pods that is watched");
            &smolet.idle[at]
        };
        let node = |pods| {
            let at = PODS.iter().position(|known| *known == pods).expect("a number of pods that is watched");
            mib(self.embedded.node_pss_kib[at])
        };
        let most = |of: fn(&Idle) -> f64| smolet.idle.iter().map(of).fold(0.0, f64::max);
        let promise = |what, unit, measured, limit| Promise { what, unit, measured, limit };
        vec![
            promise("threads", "", most(|idle| idle.end.threads as f64), 2.0),
            promise("wake-ups at rest", "a minute", most(|idle| idle.wakeups_per_minute), 400.0),
            promise("resident memory, 10 pods", "MiB", mib(idle(10).end.resident_kib), 5.0),
            promise("resident memory, 110 pods", "MiB", mib(idle(110).end.resident_kib), 8.0),
            promise("CPU at rest, 10 pods", "ms/min", idle(10).cpu_ms_per_minute, 10.0),
            promise("CPU at rest, 110 pods", "ms/min", idle(110).cpu_ms_per_minute, 40.0),
            promise("written at rest", "bytes", most(|idle| idle.disk_bytes as f64), 0.0),
            promise("a manifest's rename until it is read", "ms", smolet.start.source.median(), 5.0),
            promise(
                "delay added to a pod's start",
                "ms",
                smolet.start.agent.median() - raw.start.median(),
                10.0,
            ),
            promise(
                "delay added to a restart once the CRI shows the exit",
                "ms",
                smolet.restart.agent.median() - raw.restart.median(),
                20.0,
            ),
            promise(
                "30 pods at once, as a multiple of the raw calls at their best",
                "",
                smolet.burst.agent.median() / raw.best_burst().1,
                1.1,
            ),
            promise("plan of an unchanged pod", "µs", self.plan_us, 2.0),
            promise("release binary", "MiB", self.binary_bytes as f64 / 1_048_576.0, 6.5),
            promise("embedded: PSS of the node, 10 pods", "MiB", node(10), 12.0),
            promise("embedded: PSS of the node, 110 pods", "MiB", node(110), 70.0),
            promise(
                "embedded: a pod's start, as a multiple of containerd's raw calls",
                "",
                self.embedded.start.agent.median() / self.embedded_raw.start.median(),
                0.6,
            ),
            promise(
                "embedded: a restart, as a multiple of containerd's raw calls",
                "",
                self.embedded.restart.agent.median() / self.embedded_raw.restart.median(),
                0.6,
            ),
            promise(
                "embedded: 30 pods at once, as a multiple of containerd's raw calls at their best",
                "",
                self.embedded.burst.agent.median() / self.embedded_raw.best_burst().1,
                0.6,
            ),
            promise(
                "embedded: a pull writes, as a multiple of the files on the disk",
                "",
                *self.pulls[0].written.as_ref().unwrap_or(&f64::NAN),
                1.05,
            ),
            promise(
                "embedded: a pull over a link that is cut every 30 s, as a multiple of the image's bytes",
                "",
                self.pulls[0].over_link.as_ref().map_or(f64::NAN, |link| link.sent),
                1.05,
            ),
        ]
    }
}

/// With the embedded runtime beside containerd.
pub fn table_of_pulls(pulls: &[Pulls; 2]) -> String {
    let written = |pulls: &Pulls| match &pulls.written {
        Ok(ratio) => format!("{ratio:.3}"),
        Err(why) => format!("fails: {why}"),
    };
    let link = |pulls: &Pulls| match &pulls.over_link {
        Ok(link) => format!("{:.3}; {:.2} ({} cuts)", link.sent, link.time, link.cuts),
        Err(why) => format!("fails: {why}"),
    };
    let row = |what: &str, of: &dyn Fn(&Pulls) -> String| {
        format!("| {what} | {} | {} |\n", of(&pulls[0]), of(&pulls[1]))
    };
    [
        "| a pull | embedded | containerd |\n|---|--:|--:|\n".to_owned(),
        row("bytes written by the runtime, over those of the files on the disk", &written),
        row("over a link that is cut every 30 s: bytes, and time, over those of the image alone", &link),
    ]
    .concat()
}

fn both(times: &Times) -> String {
    format!("{:.0} / {:.0}", times.median(), times.p99())
}

/// A number that may not be passed.
pub struct Promise {
    what: &'static str,
    unit: &'static str,
    measured: f64,
    limit: f64,
}

impl Promise {
    /// What is not a number holds nothing.
    pub fn holds(&self) -> bool {
        self.measured <= self.limit
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, unit, measured, limit } = self;
        let word = if self.holds() { "kept  " } else { "BROKEN" };
        write!(f, "promise {word} {what}: {measured:.2} of at most {limit} {unit}")
    }
}
