//! containerd's own stores behind the CRI, on the same socket: blobs, image records and snapshots. CRI-O has no such services.
//!
//! ```text
//! |     lease ─► blobs, referenced ones first ─► image records ─► end of the lease
//! ```
//!
//! Until a record refers to a blob, only the lease keeps it from containerd's garbage collector.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::client::blame;
use super::events::each_field;
use super::{RuntimeError, RuntimeResult};
use crate::clock::SharedClock;
use crate::grpc::{Channel, Code, Field, GrpcError, Sender, Streaming, Value};
use crate::limits::{IMAGE_RECORD_BYTES_MAX, IMAGE_RECORDS_MAX, SNAPSHOTS_MAX};
use crate::proto::containerd::images as proto;
use prost::Message as _;

/// The namespace of the CRI's images and containers.
const NAMESPACE: &str = "k8s.io";

macro_rules! method {
    ($package:literal, $name:literal) => {
        concat!("/containerd.services.", $package, ".v1.", $name)
    };
}

const WRITE: &str = method!("content", "Content/Write");
const LIST_CONTENT: &str = method!("content", "Content/List");
const UPDATE_CONTENT: &str = method!("content", "Content/Update");
const CREATE_LEASE: &str = method!("leases", "Leases/Create");
const DELETE_LEASE: &str = method!("leases", "Leases/Delete");
const CREATE_IMAGE: &str = method!("images", "Images/Create");
const UPDATE_IMAGE: &str = method!("images", "Images/Update");
const LIST_IMAGES: &str = method!("images", "Images/List");
const LIST_SNAPSHOTS: &str = method!("snapshots", "Snapshots/List");
const REMOVE_SNAPSHOT: &str = method!("snapshots", "Snapshots/Remove");

/// Values of a snapshot's `Kind`.
const VIEW: u64 = 1;
const COMMITTED: u64 = 3;
/// Label of a blob that was unpacked: the digest of the archive that it is the compressed form of.
const UNCOMPRESSED: &str = "containerd.io/uncompressed";

/// Labels of a blob or an image record.
pub type Labels = BTreeMap<String, String>;

/// The target of an image record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The manifest's or index's media type.
    pub media_type: &'a str,
    /// Its digest.
    pub digest: &'a str,
    /// Its size in bytes.
    pub size: u64,
}

/// A layer of images, or what a container or sandbox has on top of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its key: a layer's chain ID; the id of the container or sandbox.
    pub name: Box<str>,
    /// The key of the one below; empty for none.
    pub parent: Box<str>,
    /// What it is.
    pub kind: SnapshotKind,
    /// When it was made, by the wall clock, in nanoseconds: one that is unpacked again has the same name and another time.
    pub made_at: u64,
}

/// What a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// A layer that was unpacked to its end.
    Committed,
    /// What is written on top of one, or a layer while it is unpacked.
    Active,
    /// A read-only mount: an image that is a volume.
    View,
}

impl Snapshot {
    /// A layer that was unpacked to its end.
    pub fn is_committed(&self) -> bool {
        self.kind == SnapshotKind::Committed
    }
}

/// containerd's image store.
#[derive(Clone)]
pub struct ImageStore {
    /// Calls outside the lease.
    plain: Channel,
    leased: Channel,
    lease: Box<str>,
    timeout: Duration,
}

impl ImageStore {
    pub(super) fn new(channel: &Channel, lease: &str, timeout: Duration) -> Self {
        let namespace = ("containerd-namespace", NAMESPACE);
        Self {
            plain: channel.with_metadata(&[namespace]),
            leased: channel.with_metadata(&[namespace, ("containerd-lease", lease)]),
            lease: lease.into(),
            timeout,
        }
    }

    /// Path of containerd's socket.
    pub fn socket(&self) -> &Path {
        self.plain.path()
    }

    /// Creates the lease; an existing one is reused.
    pub async fn take_lease(&self) -> RuntimeResult<()> {
        let request = proto::CreateRequest { id: self.lease.to_string() };
        match self.plain.unary::<()>(CREATE_LEASE, &request, Some(self.timeout)).await {
            Err(error) if !is(&error, Code::ALREADY_EXISTS) => Err(blame(CREATE_LEASE, error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Deletes the lease: blobs without a reference from a record become garbage then.
    pub async fn end_lease(&self) -> RuntimeResult<()> {
        let request = proto::DeleteRequest { id: self.lease.to_string() };
        match self.plain.unary::<()>(DELETE_LEASE, &request, Some(self.timeout)).await {
            Err(error) if !is(&error, Code::NOT_FOUND) => Err(blame(DELETE_LEASE, error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Begins to upload a blob. `None`: it exists already, and is added to the lease.
    pub async fn write(&self, digest: &str, size: u64) -> RuntimeResult<Option<Upload>> {
        let opened = self.leased.bidirectional(WRITE, None).await;
        let (sender, answers) = opened.map_err(|error| blame(WRITE, error))?;
        let (clock, timeout) = (self.leased.clock().clone(), self.timeout);
        let mut upload = Upload { sender, answers, clock, timeout, size, offset: 0 };
        let first = proto::WriteContentRequest {
            action: proto::WriteAction::Stat.into(),
            r#ref: format!("smolet-{digest}"),
            total: signed(size),
            expected: digest.to_owned(),
            ..Default::default()
        };
        match upload.exchange(&first).await {
            // Data of an earlier upload is overwritten.
            Ok(_) => Ok(Some(upload)),
            Err(error) if is(&error, Code::ALREADY_EXISTS) => Ok(None),
            Err(error) => Err(blame(WRITE, error)),
        }
    }

    /// Adds labels to an existing blob.
    pub async fn label(&self, digest: &str, labels: &Labels) -> RuntimeResult<()> {
        let request = proto::UpdateRequest {
            info: Some(proto::Info { digest: digest.to_owned(), labels: labels.clone() }),
            update_mask: Some(proto::FieldMask { paths: paths(labels).collect() }),
        };
        let answer = self.leased.unary::<()>(UPDATE_CONTENT, &request, Some(self.timeout)).await;
        answer.map_err(|error| blame(UPDATE_CONTENT, error))
    }

    /// Creates or replaces the record of an image name.
    pub async fn name(&self, name: &str, target: &Target<'_>, labels: &Labels) -> RuntimeResult<()> {
        let target = proto::Descriptor {
            media_type: target.media_type.to_owned(),
            digest: target.digest.to_owned(),
            size: signed(target.size),
        };
        let image = proto::Image { name: name.to_owned(), labels: labels.clone(), target: Some(target) };
        let request = proto::CreateImageRequest { image: Some(image.clone()) };
        match self.leased.unary::<()>(CREATE_IMAGE, &request, Some(self.timeout)).await {
            Err(error) if is(&error, Code::ALREADY_EXISTS) => {
                let paths = paths(labels).chain(["target".to_owned()]).collect();
                self.update_image(image, paths).await
            }
            answer => answer.map_err(|error| blame(CREATE_IMAGE, error)),
        }
    }

    /// Removes labels from a record; a missing record is no error.
    pub async fn unlabel(&self, name: &str, labels: &[&str]) -> RuntimeResult<()> {
        let (image, paths) = without(name, labels);
        match self.update_image(image, paths).await {
            Err(RuntimeError::NotFound(_)) => Ok(()),
            done => done,
        }
    }

    async fn update_image(&self, image: proto::Image, paths: Vec<String>) -> RuntimeResult<()> {
        let update_mask = Some(proto::FieldMask { paths });
        let request = proto::UpdateImageRequest { image: Some(image), update_mask };
        let answer = self.leased.unary::<()>(UPDATE_IMAGE, &request, Some(self.timeout)).await;
        answer.map_err(|error| blame(UPDATE_IMAGE, error))
    }

    /// The records with that label: name and the label's value, at most `limits::IMAGE_RECORDS_MAX`.
    pub async fn labelled(&self, label: &str) -> RuntimeResult<Vec<(String, String)>> {
        let request = proto::ListImagesRequest { filters: vec![format!("labels.\"{label}\"")] };
        let mut found = Vec::new();
        let mut each = |field: Field<'_>| {
            let Field { number: 1, value: Value::Bytes { kept, length } } = field else { return Ok(()) };
            if kept.len() as u64 == length
                && found.len() < IMAGE_RECORDS_MAX
                && let Ok(mut image) = proto::Image::decode(kept)
                && let Some(value) = image.labels.remove(label).filter(|value| !value.is_empty())
            {
                found.push((image.name, value));
            }
            Ok(())
        };
        let (timeout, cap) = (Some(self.timeout), IMAGE_RECORD_BYTES_MAX);
        let listed = self.plain.unary_fields(LIST_IMAGES, &request, timeout, cap, &mut each).await;
        listed.map_err(|error| blame(LIST_IMAGES, error))?;
        Ok(found)
    }

    /// All snapshots of that snapshotter, at most `limits::SNAPSHOTS_MAX`; an error when there are more.
    pub async fn snapshots(&self, snapshotter: &str) -> RuntimeResult<Vec<Snapshot>> {
        let request = proto::ListSnapshotsRequest { snapshotter: snapshotter.to_owned() };
        let mut found = Vec::new();
        let mut each =
            |field: Field<'_>| {
                let Field { number: 1, value: Value::Bytes { kept, length } } = field else { return Ok(()) };
                let snapshot = snapshot(kept).filter(|_| kept.len() as u64 == length);
                let snapshot = snapshot.filter(|_| found.len() < SNAPSHOTS_MAX);
                found.push(snapshot.ok_or_else(|| {
                    GrpcError::Protocol("more or longer snapshots than are kept".to_owned())
                })?);
                Ok(())
            };
        let (timeout, cap) = (Some(self.timeout), IMAGE_RECORD_BYTES_MAX);
        let listed = self.plain.stream_fields(LIST_SNAPSHOTS, &request, timeout, cap, &mut each).await;
        listed.map_err(|error| blame(LIST_SNAPSHOTS, error))?;
        Ok(found)
    }

    /// Tells `each` the digest of every blob, and of the archive that a blob is the compressed form of, where it was unpacked once.
    pub async fn archives(&self, mut each: impl FnMut(&str)) -> RuntimeResult<()> {
        let mut info = |field: Field<'_>| {
            if let Field { number: 1, value: Value::Bytes { kept, length } } = field
                && kept.len() as u64 == length
                && let Ok(blob) = proto::Info::decode(kept)
            {
                each(&blob.digest);
                if let Some(archive) = blob.labels.get(UNCOMPRESSED) {
                    each(archive);
                }
            }
            Ok(())
        };
        let (request, timeout) = (proto::ListContentRequest::default(), Some(self.timeout));
        let listed =
            self.plain.stream_fields(LIST_CONTENT, &request, timeout, IMAGE_RECORD_BYTES_MAX, &mut info);
        listed.await.map_err(|error| blame(LIST_CONTENT, error))
    }

    /// Removes a snapshot that nothing is on; a missing one is no error.
    pub async fn remove_snapshot(&self, snapshotter: &str, name: &str) -> RuntimeResult<()> {
        let request =
            proto::RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: name.to_owned() };
        match self.plain.unary::<()>(REMOVE_SNAPSHOT, &request, Some(self.timeout)).await {
            Err(error) if !is(&error, Code::NOT_FOUND) => Err(blame(REMOVE_SNAPSHOT, error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// An `Info` of the snapshots service. PURE.
fn snapshot(bytes: &[u8]) -> Option<Snapshot> {
    let (mut name, mut parent, mut kind, mut made_at) = (None, None, 0, 0_u64);
    each_field(bytes, &mut |field| match (field.number, field.value) {
        (1, Value::Bytes { kept, .. }) => name = std::str::from_utf8(kept).ok().map(Box::from),
        (2, Value::Bytes { kept, .. }) => parent = std::str::from_utf8(kept).ok().map(Box::from),
        (3, Value::Varint(value)) => kind = value,
        // Seconds and nanoseconds.
        (4, Value::Bytes { kept, .. }) => {
            let _ = each_field(kept, &mut |part| match (part.number, part.value) {
                (1, Value::Varint(seconds)) => {
                    made_at = made_at.wrapping_add(seconds.wrapping_mul(1_000_000_000));
                }
                (2, Value::Varint(nanos)) => made_at = made_at.wrapping_add(nanos),
                _ => {}
            });
        }
        _ => {}
    })?;
    let kind = match kind {
        COMMITTED => SnapshotKind::Committed,
        VIEW => SnapshotKind::View,
        _ => SnapshotKind::Active,
    };
    Some(Snapshot { name: name?, parent: parent.unwrap_or_default(), kind, made_at })
}

/// An upload of a blob: one piece at a time, each after the previous one is confirmed.
pub struct Upload {
    sender: Sender,
    answers: Streaming,
    clock: SharedClock,
    timeout: Duration,
    size: u64,
    offset: u64,
}

impl Upload {
    /// Sends the next piece.
    pub async fn put(&mut self, data: Vec<u8>) -> RuntimeResult<()> {
        let sent = self.offset + data.len() as u64;
        let request = proto::WriteContentRequest {
            action: proto::WriteAction::Write.into(),
            offset: signed(self.offset),
            data,
            ..Default::default()
        };
        let answer = self.exchange(&request).await.map_err(|error| blame(WRITE, error))?;
        if answer.offset != signed(sent) {
            let message = format!("Write: the runtime is at {} where {sent} bytes were sent", answer.offset);
            return Err(RuntimeError::Protocol(message));
        }
        self.offset = sent;
        Ok(())
    }

    /// Completes the upload: the runtime verifies size and digest. A blob that another client has written meanwhile is no
    /// error.
    pub async fn commit(mut self, labels: &Labels) -> RuntimeResult<()> {
        let request = proto::WriteContentRequest {
            action: proto::WriteAction::Commit.into(),
            total: signed(self.size),
            offset: signed(self.offset),
            labels: labels.clone(),
            ..Default::default()
        };
        match self.exchange(&request).await {
            Err(error) if !is(&error, Code::ALREADY_EXISTS) => Err(blame(WRITE, error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn exchange(
        &mut self,
        request: &proto::WriteContentRequest,
    ) -> Result<proto::WriteContentResponse, GrpcError> {
        let Self { sender, answers, clock, timeout, .. } = self;
        let exchange = async {
            // When the call has ended, its response says why.
            let _ = sender.send(request).await;
            let answer = answers.next().await?;
            answer.ok_or_else(|| GrpcError::Protocol("Write: the runtime ended the call".to_owned()))
        };
        let late = async {
            clock.sleep(*timeout).await;
            let seconds = timeout.as_secs();
            Err(GrpcError::DeadlineExceeded(format!("Write: no answer within {seconds} s")))
        };
        smol::future::or(exchange, late).await
    }
}

fn is(error: &GrpcError, wanted: Code) -> bool {
    matches!(error, GrpcError::Status { code, .. } if *code == wanted)
}

fn paths(labels: &Labels) -> impl Iterator<Item = String> {
    labels.keys().map(|label| format!("labels.{label}"))
}

/// A record without these labels, and the field paths to update.
fn without(name: &str, labels: &[&str]) -> (proto::Image, Vec<String>) {
    // An empty value removes the label.
    let labels: Labels = labels.iter().map(|label| ((*label).to_owned(), String::new())).collect();
    let paths = paths(&labels).collect();
    // Not updated, as no path names it, but required: containerd since 1.7 reads its fields first, and panics on a nil
    // pointer.
    let target = Some(proto::Descriptor::default());
    (proto::Image { name: name.to_owned(), labels, target }, paths)
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_of_labels_alone_has_a_target_all_the_same() {
        let (image, paths) = without("a:1", &["b", "c"]);
        assert!(image.target.is_some(), "containerd would end without it");
        assert_eq!(paths, ["labels.b", "labels.c"]);
        assert!(image.labels.len() == 2 && image.labels.values().all(String::is_empty));
    }
}
