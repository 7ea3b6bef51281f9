//! What no agent may ever do, looked at after every call that changes something.
//!
//! The fake's own `State::check` holds what can be seen at one instant (two instances, two ready sandboxes, two pods of
//! a name); here is what needs a memory: restart counts, the order of init containers, back-off, other agents' pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prost::Message;
use smolet::limits::{BACKOFF_INITIAL, BACKOFF_RESET, CRASH_BACKOFF_MAX};
use smolet::model::{Mono, Now};
use smolet::proto::runtime::v1 as cri;
use smolet::proto::runtime::v1::ContainerState;

use crate::common::fake::{Container, State};

#[derive(Default)]
pub struct Rules {
    pub violations: Vec<String>,
    /// Regular init containers of each pod that was ever wanted, by UID, in their order.
    inits: BTreeMap<String, Vec<String>>,
    /// The last restart count of each container, by UID and name.
    counts: BTreeMap<(String, String), u32>,
    /// Init containers that ran to a good end, by sandbox and name.
    done: BTreeSet<(String, String)>,
    /// The starts of one agent's life, by sandbox, name and hash.
    starts: BTreeMap<(String, String, String), Vec<Mono>>,
    foreign: Vec<String>,
    /// Nobody starts those again that a reboot has ended.
    booted: bool,
}

impl Rules {
    /// A source wants the pod (again): its history begins.
    pub fn wanted(&mut self, uid: &str, inits: Vec<String>) {
        self.inits.insert(uid.to_owned(), inits);
        self.forget_counts(uid);
    }

    /// No source wants it any more: its history ends.
    pub fn unwanted(&mut self, uid: &str) {
        self.forget_counts(uid);
    }

    fn forget_counts(&mut self, uid: &str) {
        self.counts.retain(|(of, _), _| of != uid);
    }

    /// Another agent lives: back-offs begin anew.
    pub fn new_life(&mut self) {
        self.starts.clear();
    }

    /// What runs now belongs to others.
    pub fn note_foreign(&mut self, state: &State) {
        self.foreign = state.containers.keys().cloned().collect();
    }

    /// The machine booted.
    pub fn booted(&mut self) {
        self.booted = true;
    }

    /// Remembers which init containers have done their work.
    pub fn note_done(&mut self, state: &State) {
        for container in state.containers.values() {
            if container.name().starts_with("init") && container.exit_code == 0 && ended(container) {
                self.done.insert((container.sandbox_id.clone(), container.name().to_owned()));
            }
        }
    }

    /// A call went well.
    pub fn note_call(&mut self, state: &State, method: &str, request: &[u8], answer: &[u8], now: Now) {
        match method {
            "CreateContainer" => {
                let id =
                    cri::CreateContainerResponse::decode(answer).expect("the fake's answer").container_id;
                self.created(&state.containers[&id]);
            }
            "StartContainer" => {
                let id = cri::StartContainerRequest::decode(request).expect("a request").container_id;
                self.started(&state.containers[&id], now.mono);
            }
            _ => {}
        }
    }

    fn created(&mut self, container: &Container) {
        let count: u32 =
            container.config.annotations["io.kubernetes.container.restartCount"].parse().expect("a number");
        let key = (uid(container), container.name().to_owned());
        let last = self.counts.insert(key, count).unwrap_or(0);
        if count < last {
            self.violations.push(format!("{}: restart count {last} became {count}", label(container)));
        }
    }

    fn started(&mut self, container: &Container, now: Mono) {
        let inits = self.inits.get(&uid(container)).cloned().unwrap_or_default();
        let name = container.name().to_owned();
        // Init containers stand in the order of their names, the sidecar between the first and the second.
        let before = |init: &&String| match &*name {
            "side" => init.as_str() == "init-a",
            name if name.starts_with("init") => init.as_str() < name,
            _ => true,
        };
        for init in inits.iter().filter(before) {
            if !self.done.contains(&(container.sandbox_id.clone(), init.clone())) {
                self.violations.push(format!("{} started before {init} was done", label(container)));
            }
        }
        let hash = container.config.annotations["io.kubernetes.container.hash"].clone();
        let starts = self.starts.entry((container.sandbox_id.clone(), name, hash)).or_default();
        if starts.last().is_some_and(|last| now.since(*last) > BACKOFF_RESET) {
            starts.clear();
        }
        starts.push(now);
        // The first restart comes at once; the waits before the others double.
        if let [.., last, now] = starts[..]
            && starts.len() > 2
        {
            let doublings = u32::try_from(starts.len() - 3).unwrap_or(u32::MAX).min(10);
            let wait = (BACKOFF_INITIAL * 2_u32.pow(doublings)).min(CRASH_BACKOFF_MAX);
            let gap = now.since(last);
            // A container that ran for a while may have its wait behind it already.
            if gap < wait {
                self.violations.push(format!("{} restarted after {gap:?}, not {wait:?}", label(container)));
            }
        }
    }

    /// Other agents' pods are as they were.
    pub fn check(&mut self, state: &State, method: &str, target: &str) {
        let untouched = |id: &String| {
            state.containers.get(id).is_some_and(|container| {
                let runs = container.running() != self.booted;
                runs && state.sandboxes.get(&container.sandbox_id).is_some_and(|s| s.ready != self.booted)
            })
        };
        if let Some(id) = self.foreign.iter().find(|id| !untouched(id)) {
            self.violations.push(format!("another agent's {id} is gone after {method} {target}"));
        }
    }

    /// The containers of other agents.
    pub fn foreign(&self) -> &[String] {
        &self.foreign
    }

    /// The container's back-off may begin anew: something happened to it that is no crash.
    pub fn excuse(&mut self, sandbox: &str) {
        self.starts.retain(|(of, ..), _| of != sandbox);
    }
}

fn ended(container: &Container) -> bool {
    container.state == ContainerState::ContainerExited
}

fn uid(container: &Container) -> String {
    container.config.labels["io.kubernetes.pod.uid"].clone()
}

fn label(container: &Container) -> String {
    let pod = &container.config.labels["io.kubernetes.pod.name"];
    format!("{pod}/{}#{} ({})", container.name(), container.attempt(), container.id)
}

/// How long everything that an agent waits for can take.
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(700);
