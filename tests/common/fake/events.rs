//! What the fake tells by itself: CRI `GetContainerEvents` or containerd's `Subscribe`, and what goes wrong on the way.
//!
//! Events come of a comparison of the state with what was told before, whenever anyone looks at the state.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use prost::Message;
use smol::channel::{Receiver, Sender, unbounded};
use smol::stream::Stream;
use smolet::cri::{EventService, RuntimeEventKind};
use smolet::model::Mono;
use smolet::proto::containerd::events as containerd;
use smolet::proto::runtime::v1 as cri;

use super::state::{Container, Sandbox};

/// What becomes of events, in percent of them; seeded.
#[derive(Clone, Debug, Default)]
pub struct EventFaults {
    pub seed: u64,
    pub lost: u8,
    pub doubled: u8,
    /// Told after the next one.
    pub late: u8,
    /// How much later events are told, at most.
    pub delay: Duration,
    /// Streams stay open, and nothing comes.
    pub hang: bool,
}

/// Who tells, to whom, and what was told.
#[derive(Default)]
pub struct Teller {
    pub(super) service: Option<EventService>,
    pub(super) faults: EventFaults,
    streams: Vec<Sender<Vec<u8>>>,
    /// Messages that are not on the wire yet.
    telling: Arc<AtomicUsize>,
    told: BTreeMap<String, (Seen, String)>,
    held: Vec<(Mono, Vec<u8>)>,
    after_next: Option<Vec<u8>>,
    rolls: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Created,
    Running,
    Exited,
}

impl Teller {
    pub(super) fn has(&self, service: &str) -> bool {
        self.service == Some(EventService::Containerd) && service == "containerd.services.events.v1.Events"
    }

    /// A new stream, when `method` is one that is there.
    pub(super) fn follow(&mut self, method: &str) -> Option<Told> {
        let service = self.service?;
        if !service.method().ends_with(&format!("/{method}")) {
            return None;
        }
        let (sender, receiver) = unbounded();
        self.streams.push(sender);
        Some(Told { receiver: Box::pin(receiver), telling: self.telling.clone(), carries: false })
    }

    pub(super) fn is_telling(&self) -> bool {
        self.telling.load(Ordering::SeqCst) > 0
    }

    pub(super) fn end(&mut self) {
        self.streams.clear();
    }

    pub(super) fn streams(&mut self) -> usize {
        self.streams.retain(|stream| !stream.is_closed());
        self.streams.len()
    }

    /// Tells what changed.
    pub(super) fn tell(
        &mut self,
        sandboxes: &BTreeMap<String, Sandbox>,
        containers: &BTreeMap<String, Container>,
        now: Mono,
    ) {
        let uid = |sandbox: &Sandbox| sandbox.config.metadata.clone().unwrap_or_default().uid;
        let mut are = BTreeMap::new();
        for sandbox in sandboxes.values() {
            let seen = if sandbox.ready { Seen::Running } else { Seen::Exited };
            are.insert(sandbox.id.clone(), (seen, uid(sandbox)));
        }
        for container in containers.values() {
            let seen = match container.state {
                cri::ContainerState::ContainerCreated => Seen::Created,
                // No event tells of it.
                cri::ContainerState::ContainerRunning | cri::ContainerState::ContainerUnknown => {
                    Seen::Running
                }
                cri::ContainerState::ContainerExited => Seen::Exited,
            };
            let uid = sandboxes.get(&container.sandbox_id).map(uid).unwrap_or_default();
            are.insert(container.id.clone(), (seen, uid));
        }
        let were = std::mem::replace(&mut self.told, are.clone());
        for (id, (seen, uid)) in &are {
            let before = were.get(id).map(|(seen, _)| *seen);
            let steps = [
                (RuntimeEventKind::Created, Seen::Created),
                (RuntimeEventKind::Started, Seen::Running),
                (RuntimeEventKind::Exited, Seen::Exited),
            ];
            for (kind, step) in steps {
                if step <= *seen && before.is_none_or(|before| before < step) {
                    self.event(kind, id, uid, now);
                }
            }
        }
        for id in were.keys().filter(|id| !are.contains_key(*id)) {
            // The CRI's event of a sandbox that is gone says nothing of the pod.
            self.event(RuntimeEventKind::Deleted, id, "", now);
        }
        let due: Vec<_> = self.held.iter().filter(|(at, _)| *at <= now).map(|(_, m)| m.clone()).collect();
        self.held.retain(|(at, _)| *at > now);
        due.into_iter().for_each(|message| self.send(&message));
    }

    fn event(&mut self, kind: RuntimeEventKind, id: &str, uid: &str, now: Mono) {
        let message = match self.service {
            None => return,
            Some(EventService::Cri) => Some(cri_event(kind, id, uid)),
            Some(EventService::Containerd) => containerd_event(kind, id),
        };
        let Some(message) = message else { return };
        self.rolls += 1;
        let mut rng = Rng::with_seed(self.faults.seed.wrapping_mul(7919).wrapping_add(self.rolls));
        if rng.u8(..100) < self.faults.lost {
            return;
        }
        if rng.u8(..100) < self.faults.late && self.after_next.is_none() {
            self.after_next = Some(message);
            return;
        }
        let times = if rng.u8(..100) < self.faults.doubled { 2 } else { 1 };
        for _ in 0..times {
            let wait = self.faults.delay.mul_f64(rng.f64());
            if wait.is_zero() {
                self.send(&message);
            } else {
                self.held.push((now + wait, message.clone()));
            }
        }
        if let Some(late) = self.after_next.take() {
            self.held.push((now + self.faults.delay, late));
        }
    }

    fn send(&mut self, message: &[u8]) {
        if self.faults.hang {
            return;
        }
        for stream in &self.streams {
            self.telling.fetch_add(1, Ordering::SeqCst);
            if stream.try_send(message.to_vec()).is_err() {
                self.telling.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

fn cri_event(kind: RuntimeEventKind, id: &str, uid: &str) -> Vec<u8> {
    use cri::ContainerEventType;
    let kind = match kind {
        RuntimeEventKind::Created => ContainerEventType::ContainerCreatedEvent,
        RuntimeEventKind::Started => ContainerEventType::ContainerStartedEvent,
        RuntimeEventKind::Exited | RuntimeEventKind::OutOfMemory => ContainerEventType::ContainerStoppedEvent,
        RuntimeEventKind::Deleted => ContainerEventType::ContainerDeletedEvent,
    };
    let metadata = cri::PodSandboxMetadata { uid: uid.to_owned(), ..Default::default() };
    let status = cri::PodSandboxStatus { metadata: Some(metadata), ..Default::default() };
    let event = cri::ContainerEventResponse {
        container_id: id.to_owned(),
        container_event_type: kind.into(),
        pod_sandbox_status: (!uid.is_empty()).then_some(status),
    };
    event.encode_to_vec()
}

fn containerd_event(kind: RuntimeEventKind, id: &str) -> Option<Vec<u8>> {
    let container_id = id.to_owned();
    let (topic, value) = match kind {
        // Nobody subscribes to it.
        RuntimeEventKind::Created => return None,
        RuntimeEventKind::Started => ("/tasks/start", containerd::TaskStart { container_id }.encode_to_vec()),
        RuntimeEventKind::Exited => {
            ("/tasks/exit", containerd::TaskExit { id: container_id.clone(), container_id }.encode_to_vec())
        }
        RuntimeEventKind::OutOfMemory => ("/tasks/oom", containerd::TaskOom { container_id }.encode_to_vec()),
        RuntimeEventKind::Deleted => {
            ("/containers/delete", containerd::ContainerDelete { id: container_id }.encode_to_vec())
        }
    };
    let event = Some(containerd::Any { value });
    let envelope = containerd::Envelope { namespace: "k8s.io".into(), topic: topic.into(), event };
    Some(envelope.encode_to_vec())
}

/// The messages of one stream. A message counts as being told until the next one is asked for.
pub struct Told {
    receiver: Pin<Box<Receiver<Vec<u8>>>>,
    telling: Arc<AtomicUsize>,
    carries: bool,
}

impl Told {
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if std::mem::take(&mut self.carries) {
            self.telling.fetch_sub(1, Ordering::SeqCst);
        }
        let next = pin!(&mut self.receiver).poll_next(cx);
        self.carries = matches!(next, Poll::Ready(Some(_)));
        next
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.receiver.close();
        let mut left = usize::from(self.carries);
        while self.receiver.try_recv().is_ok() {
            left += 1;
        }
        self.telling.fetch_sub(left, Ordering::SeqCst);
    }
}
