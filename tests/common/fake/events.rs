//! The fake's event streams: CRI `GetContainerEvents` or containerd's `Subscribe`, with faults.
//!
//! Events are derived by comparing the state with the last reported one, at every access to the state.

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

use super::state::{Container, Sandbox, State};

/// Faults of events, in percent; seeded.
#[derive(Clone, Debug, Default)]
pub struct EventFaults {
    pub seed: u64,
    pub lost: u8,
    pub doubled: u8,
    /// Reordered with the next one.
    pub late: u8,
    /// Maximum delay of an event.
    pub delay: Duration,
    /// Streams stay open without events.
    pub hang: bool,
}

/// The event service, its subscribers, and the last reported state.
#[derive(Default)]
pub struct EventSource {
    pub(super) service: Option<EventService>,
    pub(super) faults: EventFaults,
    streams: Vec<Sender<Vec<u8>>>,
    /// Messages that are not sent yet.
    telling: Arc<AtomicUsize>,
    told: BTreeMap<String, Seen>,
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

impl EventSource {
    pub(super) fn has(&self, service: &str) -> bool {
        self.service == Some(EventService::Containerd) && service == "containerd.services.events.v1.Events"
    }

    /// A new stream, if the service of `method` is available.
    pub(super) fn follow(&mut self, method: &str) -> Option<EventStream> {
        let service = self.service?;
        if !service.method().ends_with(&format!("/{method}")) {
            return None;
        }
        let (sender, receiver) = unbounded();
        self.streams.push(sender);
        Some(EventStream { receiver: Box::pin(receiver), telling: self.telling.clone(), carries: false })
    }

    pub(super) fn telling(&self) -> usize {
        self.telling.load(Ordering::SeqCst)
    }

    pub(super) fn end(&mut self) {
        self.streams.clear();
    }

    pub(super) fn streams(&mut self) -> usize {
        self.streams.retain(|stream| !stream.is_closed());
        self.streams.len()
    }

    /// Reports the changes.
    pub(super) fn tell(
        &mut self,
        sandboxes: &BTreeMap<String, Sandbox>,
        containers: &BTreeMap<String, Container>,
        now: Mono,
    ) {
        let uid_of = |sandbox: &Sandbox| sandbox.config.metadata.as_ref().map_or("", |m| &m.uid).to_owned();
        let mut news = Vec::new();
        let mut look = |id: &String, seen: Seen, uid: &dyn Fn() -> String| {
            let before = self.told.get(id).copied();
            if before != Some(seen) {
                news.push((id.clone(), before, seen, uid()));
            }
        };
        for container in containers.values() {
            let seen = match container.state {
                cri::ContainerState::ContainerCreated => Seen::Created,
                // Without an event.
                cri::ContainerState::ContainerRunning | cri::ContainerState::ContainerUnknown => {
                    Seen::Running
                }
                cri::ContainerState::ContainerExited => Seen::Exited,
            };
            look(&container.id, seen, &|| {
                sandboxes.get(&container.sandbox_id).map(uid_of).unwrap_or_default()
            });
        }
        for sandbox in sandboxes.values() {
            let seen = if sandbox.ready { Seen::Running } else { Seen::Exited };
            look(&sandbox.id, seen, &|| uid_of(sandbox));
        }
        for (id, before, seen, uid) in news {
            let steps = [
                (RuntimeEventKind::Created, Seen::Created),
                (RuntimeEventKind::Started, Seen::Running),
                (RuntimeEventKind::Exited, Seen::Exited),
            ];
            for (kind, step) in steps {
                if step <= seen && before.is_none_or(|before| before < step) {
                    self.event(kind, &id, &uid, now);
                }
            }
            self.told.insert(id, seen);
        }
        if self.told.len() > sandboxes.len() + containers.len() {
            let is_gone = |id: &&String| !containers.contains_key(*id) && !sandboxes.contains_key(*id);
            for id in self.told.keys().filter(is_gone).cloned().collect::<Vec<_>>() {
                self.told.remove(&id);
                // The CRI's event of a removed sandbox does not have its pod.
                self.event(RuntimeEventKind::Deleted, &id, "", now);
            }
        }
        let due: Vec<_> = self.held.iter().filter(|(at, _)| *at <= now).map(|(_, m)| m.clone()).collect();
        self.held.retain(|(at, _)| *at > now);
        due.into_iter().for_each(|message| self.send(&message));
    }

    pub(super) fn event(&mut self, kind: RuntimeEventKind, id: &str, uid: &str, now: Mono) {
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

    /// The streams are cut; pending messages are lost.
    fn cut(&mut self) {
        self.streams.clear();
        self.held.clear();
        self.after_next = None;
    }

    pub(super) fn send(&mut self, message: &[u8]) {
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

/// Events of a runtime without a socket.
#[allow(dead_code, reason = "each test binary uses other parts")]
impl State {
    /// From now on this service reports events; without this there is none.
    pub fn tell_events(&mut self, service: EventService) {
        self.teller.service = Some(service);
    }

    pub fn event_faults(&mut self, faults: EventFaults) {
        self.teller.faults = faults;
    }

    /// A new stream of the service, if it is available.
    pub fn follow_events(&mut self, service: EventService) -> Option<EventStream> {
        self.teller.follow(service.method().rsplit('/').next()?)
    }

    /// Ends every stream orderly.
    pub fn end_event_streams(&mut self) {
        self.teller.end();
    }

    /// All connections are lost.
    pub fn cut_event_streams(&mut self) {
        self.teller.cut();
    }

    pub fn event_streams(&mut self) -> usize {
        self.teller.streams()
    }

    /// When the next delayed event is due.
    pub fn next_held_event(&self) -> Option<Mono> {
        self.teller.held.iter().map(|(at, _)| *at).min()
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
        ..Default::default()
    };
    event.encode_to_vec()
}

fn containerd_event(kind: RuntimeEventKind, id: &str) -> Option<Vec<u8>> {
    let container_id = id.to_owned();
    let (topic, value) = match kind {
        // Without subscribers.
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

/// The messages of a stream. A message counts as pending until the next one is requested.
pub struct EventStream {
    receiver: Pin<Box<Receiver<Vec<u8>>>>,
    telling: Arc<AtomicUsize>,
    carries: bool,
}

impl EventStream {
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if std::mem::take(&mut self.carries) {
            self.telling.fetch_sub(1, Ordering::SeqCst);
        }
        let next = pin!(&mut self.receiver).poll_next(cx);
        self.carries = matches!(next, Poll::Ready(Some(_)));
        next
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.receiver.close();
        let mut left = usize::from(self.carries);
        while self.receiver.try_recv().is_ok() {
            left += 1;
        }
        self.telling.fetch_sub(left, Ordering::SeqCst);
    }
}
