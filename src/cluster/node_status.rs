//! When the Node is registered and its status reported, with what, and the events of that (`kubelet_node_status.go`,
//! `setters.go`). PURE.
//!
//! ```text
//!     every nodeStatusUpdateFrequency ─► the runtime is asked: status, images
//!        it has answered, or RUNTIME_STATUS_WAIT is over ─► register, or report
//!        its status comes later, and has other errors    ─► the next look, at once
//!        the Node is not ready, shortly after the start  ─► the next look, an eighth of the time since later (`fastStatusUpdateOnce`)
//! ```
//!
//! | the Node | what is sent (`tryUpdateNodeStatus`) |
//! |---|---|
//! | is not registered, or was deleted | it is registered (`registerWithAPIServer`); its status follows at once |
//! | nothing was reported yet, something changed that the look has to show, or nodeStatusReportFrequency is over | the status |
//! | else | the status if it is another than the last one reported (`nodeStatusHasChanged`) |
//!
//! | the runtime, the machine | Ready (`ReadyCondition`) |
//! |---|---|
//! | has not been ready for `RUNTIME_PATIENCE` (30 s), or never | False |
//! | its last status has RuntimeReady or NetworkReady not true | False |
//! | the machine shuts down | False |
//! | else, also while the runtime does not answer | True |

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::node_images::NodeImage;
use super::node_object::{Health, Machine};
use super::runtime_state::RuntimeState;
use super::task::Task;
use crate::events::EventKind;
use crate::eviction::NodeCondition;
use crate::limits::{NODE_IMAGES_PERIOD, NODE_UNREADY_PART, NODE_UNREADY_UPDATE_PERIOD, RUNTIME_STATUS_WAIT};
use crate::model::runtime::RuntimeStatus;
use crate::model::{Mono, SortedMap};

/// `ShutdownStatus`.
const SHUTTING_DOWN: &str = "node is shutting down";

/// The state of `syncNodeStatus`.
#[derive(Debug)]
pub struct NodeStatusSync {
    /// From the look to the server's response.
    task: Task,
    /// Until then the runtime's responses are waited for.
    waits_until: Option<Mono>,
    runtime: RuntimeState,
    asks_status: bool,
    asks_images: bool,
    images: Rc<[NodeImage]>,
    /// When they were last asked for.
    images_at: Option<Mono>,
    /// The digest of the status that was reported last, and when; `None`: the next one is reported whatever it is.
    reported: Option<(u64, Mono)>,
    /// Something changed while a report was in flight: which of the two came first is not known.
    report_again: bool,
    /// As the Node has them.
    conditions: Vec<Value>,
    /// The events of a start were noted.
    started: bool,
    /// The start: shortly after it a Node that is not ready is looked at more often.
    began: Mono,
}

/// What the runtime is asked at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeQuery {
    /// Its status; not while the last question is unanswered.
    pub status: bool,
    /// Its images and version; likewise, and every [`NODE_IMAGES_PERIOD`] only.
    pub images: bool,
}

/// The Node once it is registered.
#[derive(Clone, Debug)]
pub struct Registered {
    /// Its UID.
    pub uid: Box<str>,
    /// Its conditions.
    pub conditions: Vec<Value>,
    /// The boot id in its status, if it existed before.
    pub former_boot_id: Option<Box<str>>,
}

/// How a report ended.
#[derive(Clone, Debug)]
pub enum ReportEnd {
    /// The status was the one that was reported last, and was not sent.
    Unchanged,
    /// It was sent: its digest, and its conditions.
    Reported(u64, Vec<Value>),
    /// The server did not take it.
    Failed,
}

/// An event of the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Its type.
    pub kind: EventKind,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

impl NodeStatusSync {
    /// One whose first look is due now. `seed` spreads retries of different nodes.
    pub fn new(now: Mono, seed: u64) -> Self {
        Self {
            task: Task::new(now, seed),
            waits_until: None,
            runtime: RuntimeState::default(),
            asks_status: false,
            asks_images: false,
            images: Rc::default(),
            images_at: None,
            reported: None,
            report_again: false,
            conditions: Vec::new(),
            started: false,
            began: now,
        }
    }

    /// The images of the last response.
    pub fn images(&self) -> &[NodeImage] {
        &self.images
    }

    /// The conditions that the Node has.
    pub fn conditions(&self) -> &[Value] {
        &self.conditions
    }

    /// When [`Self::query_runtime`] or [`Self::begin_report`] has something to do; `None` while a call is in flight.
    pub fn due(&self) -> Option<Mono> {
        self.waits_until.or_else(|| self.task.due())
    }

    /// Something changed that has to be reported: at once.
    pub fn report_now(&mut self, now: Mono) {
        self.report_again |= self.task.due().is_none() && self.waits_until.is_none();
        self.reported = None;
        if self.task.due().is_some() {
            self.task.at = now;
        }
    }

    /// The last report has all that had to be reported.
    pub fn is_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// The Node has these conditions, by type. When they are not those of the last report, they are reported at once: a node that
    /// is silent for a while is marked as unknown (`monitorNodeHealth`), and stays so until it reports.
    pub fn compare_conditions(&mut self, there: &SortedMap<Box<str>, Box<str>>, now: Mono) {
        let is_as_reported = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            there.get(text("type")).is_some_and(|status| **status == *text("status"))
        };
        if !self.conditions.iter().all(is_as_reported) {
            self.report_now(now);
        }
    }

    /// A look begins, if one is due: the runtime is asked.
    pub fn query_runtime(&mut self, now: Mono) -> Option<RuntimeQuery> {
        if !self.task.begin_if_due(now) {
            return None;
        }
        self.waits_until = Some(now + RUNTIME_STATUS_WAIT);
        let lists = self.images_at.is_none_or(|at| now.since(at) >= NODE_IMAGES_PERIOD);
        let query = RuntimeQuery { status: !self.asks_status, images: lists && !self.asks_images };
        if query.images {
            self.images_at = Some(now);
        }
        self.asks_status = true;
        self.asks_images |= query.images;
        Some(query)
    }

    /// The look ends, if the runtime has answered or is waited for no longer: the Node is to be registered or reported.
    pub fn begin_report(&mut self, now: Mono) -> bool {
        let is_known = !self.asks_status && !self.asks_images;
        self.waits_until.take_if(|until| is_known || *until <= now).is_some()
    }

    /// The changing part of the status: pods' resources are under this pressure, and the machine shuts down, or not.
    pub fn health(&self, pressure: Vec<NodeCondition>, is_closing: bool, now: Mono) -> Health {
        let mut not_ready = self.runtime.errors(now);
        if is_closing {
            not_ready.push(SHUTTING_DOWN.to_owned());
        }
        Health { pressure, not_ready, images: self.images.clone() }
    }

    /// The digest of the status that need not be reported again (`nodeStatusHasChanged`); `None`: whatever it is.
    pub fn reported_digest(&self, period: Duration, now: Mono) -> Option<u64> {
        self.reported.filter(|(_, at)| now.since(*at) < period).map(|(digest, _)| digest)
    }

    /// The runtime says how it is; `None`: it does not.
    pub fn take_runtime_status(&mut self, said: Option<&RuntimeStatus>, now: Mono) {
        self.asks_status = false;
        let Some(said) = said else {
            // One that comes back may have another version.
            self.images_at = None;
            return;
        };
        let before = self.runtime.errors(now);
        self.runtime.answered(said, now);
        // It came too late for the last report.
        if self.waits_until.is_none() && self.runtime.errors(now) != before {
            self.report_now(now);
        }
    }

    /// The runtime has these images; `None`: it did not say.
    pub fn set_images(&mut self, images: Option<Rc<[NodeImage]>>) {
        self.asks_images = false;
        if let Some(images) = images {
            self.images = images;
        }
    }

    /// A call failed: it is repeated after a wait of at most the period.
    pub fn failed(&mut self, period: Duration, now: Mono) {
        self.task.ended(false, now, period);
    }

    /// The Node was registered: its status is reported at once, for the server's was not this one. Returns its events.
    pub fn registered(&mut self, there: Registered, machine: &Machine, now: Mono) -> Vec<NodeEvent> {
        self.task.ended(true, now, machine.periods.look);
        self.task.at = now;
        self.report_again = false;
        let is_created = there.former_boot_id.is_none();
        let is_ready = is_created && ready_of(&there.conditions) == Some("True");
        self.conditions = there.conditions;
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.started, true) {
            // The kubelet's Node is new to it at each start: conditions that nobody has told are news.
            let sufficient = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
            events.extend(sufficient.map(|reason| status_event(machine, reason)));
            let boot_id = &*machine.boot_id;
            if there.former_boot_id.is_some_and(|former| !former.is_empty() && *former != *boot_id) {
                let message = format!("Node {} has been rebooted, boot id: {boot_id}", machine.name);
                events.push(NodeEvent { kind: EventKind::Warning, reason: "Rebooted", message });
            }
        }
        if is_ready {
            events.push(status_event(machine, "NodeReady"));
        }
        events
    }

    /// A report ended. Returns its event.
    pub fn reported(&mut self, end: ReportEnd, machine: &Machine, now: Mono) -> Option<NodeEvent> {
        let look = machine.periods.look;
        let mut news = None;
        match end {
            ReportEnd::Failed => {
                self.failed(look, now);
                return None;
            }
            ReportEnd::Unchanged => {}
            ReportEnd::Reported(digest, conditions) => {
                self.reported = Some((digest, now));
                news = match (ready_of(&self.conditions), ready_of(&conditions)) {
                    (Some(was), Some(is)) if was == is => None,
                    (Some(_), Some("True")) => Some("NodeReady"),
                    (Some(_), Some(_)) => Some("NodeNotReady"),
                    (None, _) | (_, None) => None,
                };
                self.conditions = conditions;
            }
        }
        let period = if ready_of(&self.conditions) == Some("True") {
            look
        } else {
            look.min(NODE_UNREADY_UPDATE_PERIOD.max(now.since(self.began) / NODE_UNREADY_PART))
        };
        self.task.ended(true, now, period);
        if std::mem::take(&mut self.report_again) {
            self.reported = None;
            self.task.at = now;
        }
        news.map(|reason| status_event(machine, reason))
    }
}

/// `recordNodeStatusEvent`.
fn status_event(machine: &Machine, reason: &'static str) -> NodeEvent {
    let message = format!("Node {} status is now: {reason}", machine.name);
    NodeEvent { kind: EventKind::Normal, reason, message }
}

/// The status of the Ready condition among these.
fn ready_of(conditions: &[Value]) -> Option<&str> {
    conditions.iter().find(|condition| condition["type"] == "Ready")?["status"].as_str()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::config::Periods;
    use crate::model::runtime::RuntimeCondition;

    const LOOK: Duration = Duration::from_secs(10);
    const REPORT: Duration = Duration::from_mins(5);

    fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn machine() -> Machine {
        let periods = Periods { look: LOOK, report: REPORT, ..Periods::default() };
        Machine { name: "n".into(), boot_id: "now".into(), periods, ..Machine::default() }
    }

    /// `R` and `N`: `RuntimeReady` and `NetworkReady` are true.
    fn runtime(ready: &str) -> RuntimeStatus {
        let condition = |kind: &str, letter| RuntimeCondition {
            kind: kind.into(),
            status: ready.contains(letter),
            reason: "Why".into(),
            message: "so".into(),
        };
        let conditions = vec![condition("RuntimeReady", 'R'), condition("NetworkReady", 'N')];
        RuntimeStatus { conditions, ..RuntimeStatus::default() }
    }

    fn ready(status: &str) -> Vec<Value> {
        vec![json!({"type": "MemoryPressure", "status": "False"}), json!({"type": "Ready", "status": status})]
    }

    fn registered(former: Option<&str>, status: &str) -> Registered {
        Registered { uid: "u".into(), conditions: ready(status), former_boot_id: former.map(Box::from) }
    }

    /// The runtime's words with their seconds, the second of the question, the machine shuts down; why it is not ready.
    type ReadyRow<'a> = (&'a [(i64, Option<&'a str>)], i64, bool, &'a str);

    #[test]
    fn when_the_node_is_ready() {
        #[rustfmt::skip]
        let rows: [ReadyRow<'_>; 12] = [
            (&[], 0, false, "container runtime status check may not have completed yet, network state unknown"),
            (&[(0, Some("RN"))], 0, false, ""),
            (&[(0, Some("RN"))], 29, false, ""),
            (&[(0, Some("RN"))], 30, false, "container runtime is down"),
            // A word that does not come takes nothing back, and gives no time.
            (&[(0, Some("RN")), (20, None)], 29, false, ""),
            (&[(0, Some("RN")), (20, None)], 30, false, "container runtime is down"),
            (&[(0, Some("RN")), (20, Some("RN"))], 49, false, ""),
            (&[(0, Some("RN")), (20, Some("R"))], 49, false, "container runtime network not ready: NetworkReady=false reason:Why message:so"),
            (&[(0, Some("RN")), (20, Some("N"))], 29, false, "container runtime not ready: RuntimeReady=false reason:Why message:so"),
            (&[(0, Some("RN")), (20, Some("N"))], 30, false,
                "container runtime is down, container runtime not ready: RuntimeReady=false reason:Why message:so"),
            (&[(0, Some("RN"))], 0, true, "node is shutting down"),
            (&[(0, Some("RN"))], 30, true, "container runtime is down, node is shutting down"),
        ];
        for (words, second, is_closing, want) in rows {
            let mut sync = NodeStatusSync::new(at(0), 1);
            for (second, said) in words {
                sync.take_runtime_status(said.map(runtime).as_ref(), at(*second));
            }
            let health = sync.health(vec![NodeCondition::Disk], is_closing, at(second));
            assert_eq!(health.not_ready.join(", "), want, "{words:?} {second} {is_closing}");
            assert_eq!(health.pressure, [NodeCondition::Disk]);
        }
    }

    /// The questions and calls that follow from these steps, with the second of each.
    ///
    /// Steps: `status`, `broken`, `silent` and `images` are the runtime's answers; `registered`, `sent`, `unready`, `same`, `failed`
    /// and `missing` the server's; `tell`, `deleted`, `Ready=STATUS` are what the watch or another part says; a number waits so many
    /// seconds, with one turn at their end. Calls: `ask:s`, `ask:si`, `ask:`, `register`, `report`, and `compare` of a
    /// status that is reported only when it is another one.
    fn calls(steps: &str) -> String {
        let (machine, mut now, mut log) = (machine(), 0, Vec::new());
        let (mut sync, mut is_registered) = (NodeStatusSync::new(at(0), 1), false);
        for step in std::iter::once("0").chain(steps.split_whitespace()) {
            let mono = at(now);
            match step {
                "status" => sync.take_runtime_status(Some(&runtime("RN")), mono),
                "broken" => sync.take_runtime_status(Some(&runtime("R")), mono),
                "silent" => sync.take_runtime_status(None, mono),
                "images" => sync.set_images(Some(Rc::default())),
                "registered" => {
                    is_registered = true;
                    sync.registered(registered(Some("now"), "True"), &machine, mono);
                }
                "sent" => drop(sync.reported(ReportEnd::Reported(7, ready("True")), &machine, mono)),
                "unready" => drop(sync.reported(ReportEnd::Reported(7, ready("False")), &machine, mono)),
                "same" => drop(sync.reported(ReportEnd::Unchanged, &machine, mono)),
                "failed" if is_registered => drop(sync.reported(ReportEnd::Failed, &machine, mono)),
                "failed" => sync.failed(LOOK, mono),
                "missing" => {
                    sync.reported(ReportEnd::Failed, &machine, mono);
                    is_registered = false;
                    sync.report_now(mono);
                }
                "deleted" => {
                    is_registered = false;
                    sync.report_now(mono);
                }
                "tell" => sync.report_now(mono),
                _ if step.starts_with("Ready=") => {
                    let there = [("MemoryPressure", "False"), ("Ready", &step[6..])];
                    let there = there.map(|(kind, status)| (kind.into(), status.into()));
                    sync.compare_conditions(&SortedMap::from(there), mono);
                }
                wait => now += wait.parse::<i64>().expect("seconds"),
            }
            let mono = at(now);
            let is_due = sync.due().is_some_and(|at| at <= mono);
            let before = log.len();
            if let Some(RuntimeQuery { status, images }) = sync.query_runtime(mono) {
                let what = [(status, "s"), (images, "i")].map(|(is, word)| if is { word } else { "" });
                log.push(format!("ask:{}@{now}", what.concat()));
            }
            if sync.begin_report(mono) {
                let what = match (is_registered, sync.reported_digest(REPORT, mono)) {
                    (false, _) => "register",
                    (true, None) => "report",
                    (true, Some(last)) => {
                        assert_eq!(last, 7, "what was told last");
                        "compare"
                    }
                };
                log.push(format!("{what}@{now}"));
            }
            // An answer of the runtime ends a wait before it is due.
            assert!(
                is_due || log.len() == before || !step.starts_with(|c: char| c.is_ascii_digit()),
                "{steps}"
            );
        }
        log.join(" ")
    }

    #[test]
    fn when_the_node_is_registered_and_reported() {
        const UP: &str = "status images registered status sent";
        let up = |steps: &str| calls(&format!("{UP} {steps}"));
        let begin = "ask:si@0 register@0 ask:s@0 report@0";
        #[rustfmt::skip]
        let starts = [
            ("", "ask:si@0"),
            // Both answers are waited for, and not for long.
            ("status", "ask:si@0"),
            ("images", "ask:si@0"),
            ("status images", "ask:si@0 register@0"),
            ("silent images", "ask:si@0 register@0"),
            ("1", "ask:si@0"),
            ("2", "ask:si@0 register@2"),
            ("status 2", "ask:si@0 register@2"),
            // Its status is reported as soon as it is registered.
            ("status images registered", "ask:si@0 register@0 ask:s@0"),
            ("status images registered status", begin),
            // A registration that failed is repeated.
            ("status images failed", "ask:si@0 register@0"),
            ("status images failed 10 status", "ask:si@0 register@0 ask:s@10 register@10"),
            // What is not answered yet is not asked again.
            ("2 failed 8", "ask:si@0 register@2 ask:@10"),
            ("2 failed 8 2", "ask:si@0 register@2 ask:@10 register@12"),
            ("2 failed 60", "ask:si@0 register@2 ask:@62"),
            ("2 registered", "ask:si@0 register@2 ask:@2"),
            ("2 registered status images", "ask:si@0 register@2 ask:@2 report@2"),
        ];
        #[rustfmt::skip]
        let unready = [
            // A Node that is not ready is looked at more often, until it is, and shortly after the start.
            ("unready 1", "ask:s@1"),
            ("unready 1 broken same 1", "ask:s@1 compare@1 ask:s@2"),
            ("unready 1 status sent 9", "ask:s@1 compare@1"),
            ("unready 1 status sent 10", "ask:s@1 compare@1 ask:s@11"),
            ("unready 1 broken failed 9 broken", "ask:s@1 compare@1 ask:s@10 compare@10"),
            ("unready 16 broken same 1", "ask:s@16 compare@16"),
            ("unready 16 broken same 2", "ask:s@16 compare@16 ask:s@18"),
            ("unready 119 broken images same 9", "ask:si@119 compare@119"),
            ("unready 119 broken images same 10", "ask:si@119 compare@119 ask:s@129"),
        ];
        for (steps, want) in unready {
            let all = format!("broken images registered broken {steps}");
            assert_eq!(calls(&all), format!("{begin} {want}"), "{steps}");
        }
        for (steps, want) in starts {
            assert_eq!(calls(steps), want, "{steps}");
        }
        #[rustfmt::skip]
        let rows = [
            // A look every 10 s, which reports what changed; after nodeStatusReportFrequency whatever there is.
            ("9", ""),
            ("10", "ask:s@10"),
            ("10 status", "ask:s@10 compare@10"),
            ("10 status same 10 status", "ask:s@10 compare@10 ask:s@20 compare@20"),
            ("299 status images", "ask:si@299 compare@299"),
            ("300 status images", "ask:si@300 report@300"),
            ("59 status same", "ask:s@59 compare@59"),
            ("60 status", "ask:si@60"),
            ("60 status images", "ask:si@60 compare@60"),
            // A runtime that was away may have another version.
            ("10 silent", "ask:s@10 compare@10"),
            ("10 silent same 10", "ask:s@10 compare@10 ask:si@20"),
            // A report that failed is repeated.
            ("10 status failed 9 status", "ask:s@10 compare@10 ask:s@19 compare@19"),
            // What has to be reported is, at once.
            ("tell", "ask:s@0"),
            ("3 tell status", "ask:s@3 report@3"),
            ("3 tell status sent 10 status", "ask:s@3 report@3 ask:s@13 compare@13"),
            // During a look that look reports it; during a report the next one.
            ("10 tell status", "ask:s@10 report@10"),
            ("10 status tell", "ask:s@10 compare@10"),
            ("10 status tell same", "ask:s@10 compare@10 ask:s@10"),
            ("10 status tell sent status", "ask:s@10 compare@10 ask:s@10 report@10"),
            ("10 status tell failed 10 status", "ask:s@10 compare@10 ask:s@20 report@20"),
            // An answer that comes too late and says something else.
            ("10 2 broken", "ask:s@10 compare@12"),
            ("10 2 broken same status", "ask:s@10 compare@12 ask:s@12 report@12"),
            ("10 2 status same", "ask:s@10 compare@12"),
            ("10 broken", "ask:s@10 compare@10"),
            ("10 2 same 5 broken", "ask:s@10 compare@12 ask:s@17"),
            // The Node's conditions in the watch.
            ("3 Ready=True", ""),
            ("3 Ready=Unknown", "ask:s@3"),
            ("3 Ready=Unknown status", "ask:s@3 report@3"),
            // It was deleted: it is registered, and its status reported.
            ("3 deleted status", "ask:s@3 register@3"),
            ("3 deleted status registered status", "ask:s@3 register@3 ask:s@3 report@3"),
            ("10 status missing status", "ask:s@10 compare@10 ask:s@10 register@10"),
            ("10 status tell missing status registered status sent 9", "ask:s@10 compare@10 ask:s@10 register@10 ask:s@10 report@10"),
        ];
        for (steps, want) in rows {
            assert_eq!(up(steps), format!("{begin} {want}").trim_end(), "{steps}");
        }
    }

    #[test]
    fn the_last_report_is_remembered() {
        let (machine, mut sync) = (machine(), NodeStatusSync::new(at(0), 1));
        assert!(!sync.is_reported());
        sync.reported(ReportEnd::Unchanged, &machine, at(0));
        assert!(!sync.is_reported());
        sync.reported(ReportEnd::Reported(7, ready("True")), &machine, at(0));
        assert!(sync.is_reported() && sync.conditions() == ready("True"));
        sync.reported(ReportEnd::Failed, &machine, at(1));
        assert!(sync.is_reported());
        sync.report_now(at(2));
        assert!(!sync.is_reported());
    }

    #[test]
    fn events_of_a_registration() {
        const SUFFICIENT: &str = "NodeHasSufficientMemory NodeHasNoDiskPressure NodeHasSufficientPID";
        // the first of this process, the boot id that was there, Ready → events after those of sufficient resources
        #[rustfmt::skip]
        let rows = [
            (true, None, "True", "NodeReady"),
            (true, None, "False", ""),
            (true, Some("now"), "True", ""),
            (true, Some("before"), "True", "Rebooted"),
            (true, Some("before"), "False", "Rebooted"),
            (true, Some(""), "True", ""),
            (false, None, "True", "NodeReady"),
            (false, Some("before"), "True", ""),
        ];
        for (is_first, former, status, want) in rows {
            let (machine, mut sync) = (machine(), NodeStatusSync::new(at(0), 1));
            if !is_first {
                sync.registered(registered(Some("now"), "True"), &machine, at(0));
            }
            let events = sync.registered(registered(former, status), &machine, at(0));
            let reasons: Vec<_> = events.iter().map(|event| event.reason).collect();
            let want = if is_first { format!("{SUFFICIENT} {want}") } else { want.to_owned() };
            assert_eq!(reasons.join(" "), want.trim_end(), "{is_first} {former:?} {status}");
            let warnings = events.iter().filter(|event| event.kind == EventKind::Warning);
            assert_eq!(warnings.count(), usize::from(reasons.contains(&"Rebooted")));
        }
    }

    #[test]
    fn events_of_a_report() {
        let rows = [
            ("True", "True", None),
            ("True", "False", Some("NodeNotReady")),
            ("False", "True", Some("NodeReady")),
            ("False", "False", None),
            ("Unknown", "True", Some("NodeReady")),
            ("Unknown", "False", Some("NodeNotReady")),
        ];
        for (was, is, want) in rows {
            let (machine, mut sync) = (machine(), NodeStatusSync::new(at(0), 1));
            sync.registered(registered(Some("now"), was), &machine, at(0));
            let event = sync.reported(ReportEnd::Reported(7, ready(is)), &machine, at(0));
            let message = want.map(|reason| format!("Node n status is now: {reason}"));
            assert_eq!(event.as_ref().map(|event| event.reason), want, "{was} {is}");
            assert_eq!(event.map(|event| event.message), message, "{was} {is}");
        }
        // Conditions of which none was there are no news.
        let mut sync = NodeStatusSync::new(at(0), 1);
        assert_eq!(sync.reported(ReportEnd::Reported(7, ready("True")), &machine(), at(0)), None);
        assert_eq!(sync.reported(ReportEnd::Unchanged, &machine(), at(0)), None);
    }
}
