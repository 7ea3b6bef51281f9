//! The runtime's event streams: CRI `GetContainerEvents`, or containerd's own event service on the same socket.
//!
//! An event says which sandbox or container to read again, never its state. containerd 1.6 and older has only its own
//! service; CRI-O has only the CRI's, and sends nothing unless configured to (`enable_pod_events`).

use std::fmt;

use prost::Message;

use super::convert;
use crate::grpc::{Channel, Field, Fields, GrpcError, Sink as _, Value};
use crate::limits::GRPC_ANSWER_BYTES_MAX;
use crate::model::PodUid;
use crate::proto::containerd::events as containerd;
use crate::proto::runtime::v1 as cri;

/// An event service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventService {
    /// CRI `GetContainerEvents`. When the event arrives the runtime's status shows the change already.
    Cri,
    /// `containerd.services.events.v1.Events/Subscribe`. The CRI's status shows the change some 10 to 100 ms later.
    Containerd,
}

impl EventService {
    /// The other service.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Cri => Self::Containerd,
            Self::Containerd => Self::Cri,
        }
    }

    /// The gRPC method.
    pub fn method(self) -> &'static str {
        match self {
            Self::Cri => "/runtime.v1.RuntimeService/GetContainerEvents",
            Self::Containerd => "/containerd.services.events.v1.Events/Subscribe",
        }
    }
}

impl fmt::Display for EventService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cri => "the CRI's",
            Self::Containerd => "containerd's",
        })
    }
}

/// Kind of an event of a sandbox or container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeEventKind {
    /// It was created.
    Created,
    /// Its first process runs.
    Started,
    /// Its first process has exited.
    Exited,
    /// The OOM killer killed one of its processes.
    OutOfMemory,
    /// It was removed.
    Deleted,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEvent {
    /// The kind.
    pub kind: RuntimeEventKind,
    /// The container's id, or the sandbox's; at most `limits::CRI_ID_BYTES_MAX`.
    pub id: Box<str>,
    /// Its pod; `None` when the service does not report it.
    pub pod: Option<PodUid>,
}

/// The relevant topics, in the namespace of the CRI's containers: an event passes when any filter matches.
const FILTERS: [&str; 4] = [
    r#"namespace=="k8s.io",topic=="/tasks/start""#,
    r#"namespace=="k8s.io",topic=="/tasks/exit""#,
    r#"namespace=="k8s.io",topic=="/tasks/oom""#,
    r#"namespace=="k8s.io",topic=="/containers/delete""#,
];

/// Passes every event to `each` until the stream ends. Messages of other kinds are skipped.
pub(super) async fn follow(
    channel: &Channel,
    service: EventService,
    each: &mut dyn FnMut(RuntimeEvent),
) -> Result<(), GrpcError> {
    let method = service.method();
    let mut stream = match service {
        EventService::Cri => channel.server_stream(method, &cri::GetEventsRequest {}, None).await?,
        EventService::Containerd => {
            let filters = FILTERS.map(str::to_owned).into();
            channel.server_stream(method, &containerd::SubscribeRequest { filters }, None).await?
        }
    };
    while let Some(bytes) = stream.next_bytes().await? {
        let event = match service {
            EventService::Cri => of_cri(&bytes),
            EventService::Containerd => of_containerd(&bytes),
        };
        event.into_iter().for_each(&mut *each);
    }
    Ok(())
}

/// PURE: parses a `ContainerEventResponse`; `None` for one without an id, or of an unknown type.
///
/// Parsed field by field: of the statuses in it only the pod's UID is used, and a megabyte of small labels would take ten
/// when decoded.
pub fn of_cri(bytes: &[u8]) -> Option<RuntimeEvent> {
    use cri::ContainerEventType;
    let (mut id, mut kind, mut pod) = (None, ContainerEventType::ContainerCreatedEvent as u64, None);
    each_field(bytes, &mut |field| match (field.number, field.value) {
        (1, Value::Bytes { kept, .. }) => id = std::str::from_utf8(kept).ok().map(str::to_owned),
        (2, Value::Varint(value)) => kind = value,
        // The status is missing when the sandbox was removed first.
        (4, Value::Bytes { kept, .. }) => pod = pod_of(kept),
        _ => {}
    })?;
    let kind = match ContainerEventType::try_from(i32::try_from(kind).ok()?).ok()? {
        ContainerEventType::ContainerCreatedEvent => RuntimeEventKind::Created,
        ContainerEventType::ContainerStartedEvent => RuntimeEventKind::Started,
        ContainerEventType::ContainerStoppedEvent => RuntimeEventKind::Exited,
        ContainerEventType::ContainerDeletedEvent => RuntimeEventKind::Deleted,
    };
    Some(RuntimeEvent { kind, id: convert::id(id?)?.into(), pod })
}

/// The UID in a `PodSandboxStatus`: its metadata is field 2.
fn pod_of(status: &[u8]) -> Option<PodUid> {
    let mut metadata = None;
    each_field(status, &mut |field| {
        if let (2, Value::Bytes { kept, .. }) = (field.number, field.value) {
            metadata = cri::PodSandboxMetadata::decode(kept).ok();
        }
    })?;
    convert::id(metadata?.uid).map(PodUid::from)
}

/// `None` when the message is malformed.
pub(super) fn each_field(message: &[u8], take: &mut dyn FnMut(Field<'_>)) -> Option<()> {
    let mut each = |field: Field<'_>| {
        take(field);
        Ok(())
    };
    let mut fields = Fields::new(GRPC_ANSWER_BYTES_MAX, &mut each);
    fields.piece(message).and_then(|()| fields.end()).ok()
}

/// PURE: parses an `Envelope`; `None` for another topic, and for the exit of an exec process.
pub fn of_containerd(bytes: &[u8]) -> Option<RuntimeEvent> {
    let envelope = containerd::Envelope::decode(bytes).ok()?;
    let event = &*envelope.event?.value;
    let (kind, id) = match &*envelope.topic {
        "/tasks/start" => {
            (RuntimeEventKind::Started, containerd::TaskStart::decode(event).ok()?.container_id)
        }
        "/tasks/exit" => {
            let exit = containerd::TaskExit::decode(event).ok()?;
            (RuntimeEventKind::Exited, Some(exit.container_id).filter(|id| *id == exit.id)?)
        }
        "/tasks/oom" => {
            (RuntimeEventKind::OutOfMemory, containerd::TaskOom::decode(event).ok()?.container_id)
        }
        "/containers/delete" => {
            (RuntimeEventKind::Deleted, containerd::ContainerDelete::decode(event).ok()?.id)
        }
        _ => return None,
    };
    Some(RuntimeEvent { kind, id: convert::id(id)?.into(), pod: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(topic: &str, event: &impl Message) -> Vec<u8> {
        let event = Some(containerd::Any { value: event.encode_to_vec() });
        let envelope = containerd::Envelope { namespace: "k8s.io".into(), topic: topic.into(), event };
        envelope.encode_to_vec()
    }

    #[test]
    fn containerds_events_name_a_container() {
        let exit = |id: &str| containerd::TaskExit { container_id: "c1".into(), id: id.into() };
        let of =
            |bytes: &[u8]| of_containerd(bytes).map(|event| (event.kind, event.id.to_string(), event.pod));
        let exited = Some((RuntimeEventKind::Exited, "c1".to_owned(), None));
        assert_eq!(of(&envelope("/tasks/exit", &exit("c1"))), exited);
        assert_eq!(of(&envelope("/tasks/exit", &exit("a-command"))), None, "the container runs on");
        assert_eq!(of(&envelope("/tasks/paused", &exit("c1"))), None);
        let deleted = Some((RuntimeEventKind::Deleted, "c1".to_owned(), None));
        let delete = containerd::ContainerDelete { id: "c1".into() };
        assert_eq!(of(&envelope("/containers/delete", &delete)), deleted);
        assert_eq!(of(&envelope("/tasks/start", &containerd::TaskStart::default())), None, "no id");
        assert_eq!(of(b"\xff\xff"), None);
    }

    #[test]
    fn the_cris_events_name_the_pod_when_they_can() {
        let event = |kind: i32, uid: Option<&str>| {
            let metadata = uid.map(|uid| cri::PodSandboxMetadata { uid: uid.into(), ..Default::default() });
            let event = cri::ContainerEventResponse {
                container_id: "c1".into(),
                container_event_type: kind,
                pod_sandbox_status: metadata
                    .map(|of| cri::PodSandboxStatus { metadata: Some(of), ..Default::default() }),
                ..Default::default()
            };
            of_cri(&event.encode_to_vec()).map(|event| (event.kind, event.pod))
        };
        assert_eq!(event(2, Some("u1")), Some((RuntimeEventKind::Exited, Some(PodUid::from("u1")))));
        assert_eq!(event(3, None), Some((RuntimeEventKind::Deleted, None)));
        assert_eq!(event(9, Some("u1")), None, "a type of a later version");
    }
}
