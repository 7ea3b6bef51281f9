//! A pod's object that is decoded while it is in use, and packed as text while it is not.
//!
//! The generated types are large even when almost nothing is set (a `Volume` takes 3.2 kB): a pod of 50 volumes takes 190 kB as
//! an object and 11 kB as JSON. A reader of a [`PackedPod`] gets a `Pod`; the first read decodes it, and all readers share the
//! object. An owner that does not use it packs it again.
//!
//! PURE.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::{Rc, Weak};

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::Side;
use crate::decode::{Node, Path, json, typed};
use crate::limits::{CONTAINER_BYTES, POD_OPENED_BYTES};

/// A pod's object. Clones share it.
#[derive(Clone)]
pub struct PackedPod {
    shared: Rc<Shared>,
    /// Empty: this clone is packed; others may be open.
    opened: OnceCell<Rc<Pod>>,
}

struct Shared {
    /// The JSON without the status, made when it is first packed; `None` when it does not decode to an equal object.
    text: OnceCell<Option<Box<[u8]>>>,
    opened: RefCell<Weak<Pod>>,
    /// See [`PackedPod::conditions`].
    status: Option<Box<PodStatus>>,
    /// See [`PackedPod::side`].
    side: Side,
    /// See [`opened_bytes`].
    bytes: usize,
}

impl From<Pod> for PackedPod {
    fn from(pod: Pod) -> Self {
        let (bytes, side) = (opened_bytes(&pod), Side::of(&pod));
        let status = pod.status.clone().map(Box::new);
        let opened = Rc::new(pod);
        let shared = Shared {
            text: OnceCell::new(),
            opened: RefCell::new(Rc::downgrade(&opened)),
            status,
            side,
            bytes,
        };
        Self { shared: Rc::new(shared), opened: opened.into() }
    }
}

impl Deref for PackedPod {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        self.opened.get_or_init(|| self.open())
    }
}

impl fmt::Debug for PackedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedPod").finish_non_exhaustive()
    }
}

impl PackedPod {
    /// Decodes the object, for as long as the result is held; a packed one stays packed.
    pub fn open(&self) -> Rc<Pod> {
        if let Some(opened) = self.opened.get() {
            return opened.clone();
        }
        if let Some(opened) = self.shared.opened.borrow().upgrade() {
            return opened;
        }
        // `pack` drops the object only after the text was decoded successfully.
        let text = self.shared.text.get().and_then(Option::as_deref);
        let mut pod = text.and_then(|text| read(text, true)).unwrap_or_default();
        pod.status = self.shared.status.as_deref().cloned();
        let opened = Rc::new(pod);
        *self.shared.opened.borrow_mut() = Rc::downgrade(&opened);
        opened
    }

    /// The object without its volumes if it is large and packed, to avoid decoding them when they are not needed.
    pub fn without_volumes(&self) -> Rc<Pod> {
        if !self.is_large() {
            return self.open();
        }
        let Some(text) = self.text() else { return self.open() };
        let mut pod = read(text, false).unwrap_or_default();
        pod.status = self.shared.status.as_deref().cloned();
        Rc::new(pod)
    }

    /// Drops the object if it is large; the next read decodes it again. A small one stays: it takes little memory, and decoding
    /// takes time.
    pub fn pack(&mut self) {
        if self.is_large() && self.opened.get().is_some() && self.text().is_some() {
            self.opened.take();
            // The object stays in memory while other readers hold it.
            let mut opened = self.shared.opened.borrow_mut();
            if opened.strong_count() == 0 {
                *opened = Weak::new();
            }
        }
    }

    /// Approximate memory that [`PackedPod::pack`] would free: 0 when it is packed or stays open.
    pub fn opened_bytes(&self) -> usize {
        if self.is_large() && self.opened.get().is_some() { self.shared.bytes } else { 0 }
    }

    /// The conditions of the object's status, without decoding it.
    pub fn conditions(&self) -> &[PodCondition] {
        self.shared.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
    }

    /// Its side, without decoding the object.
    pub fn side(&self) -> Side {
        self.shared.side
    }

    /// The same as `annotations::is_of_api_server`, without decoding the object.
    pub fn is_of_api_server(&self) -> bool {
        self.shared.side == Side::ApiServer
    }

    fn is_large(&self) -> bool {
        self.shared.bytes > POD_OPENED_BYTES
    }

    fn text(&self) -> Option<&[u8]> {
        let made = || {
            let text = text_of(&self.open());
            // Decoded before the object is dropped: a pod that does not decode to an equal object stays open.
            let is_whole = read(&text, true).is_some_and(|back| text_of(&back) == text);
            is_whole.then_some(text)
        };
        self.shared.text.get_or_init(made).as_deref()
    }
}

fn text_of(pod: &Pod) -> Box<[u8]> {
    let mut value = serde_json::to_value(pod).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    value.to_string().into_bytes().into()
}

fn read(text: &[u8], volumes: bool) -> Option<Pod> {
    let mut tree = json::read(text).ok()?;
    if !volumes {
        leave_out(&mut tree, "spec", "volumes");
    }
    unpacked(&tree)
}

/// Decodes a packed pod; `None` when the text is invalid.
fn unpacked(tree: &Node) -> Option<Pod> {
    let read = typed::read_known::<PodManifest>(tree, Path::default()).ok()?;
    Some(Pod { metadata: read.metadata, spec: read.spec, status: None })
}

/// Removes `field` from the map in `of`.
pub(crate) fn leave_out(tree: &mut Node, of: &str, field: &str) {
    let Node::Map(entries) = tree else { return };
    if let Some((_, Node::Map(entries))) = entries.iter_mut().find(|(key, _)| &**key == of) {
        entries.retain(|(key, _)| &**key != field);
    }
}

/// `v1.Pod` without its status, which a manifest does not set: the code for the status types would cost tens of kilobytes of
/// the binary.
#[derive(Deserialize)]
#[serde(rename = "Pod", rename_all = "camelCase")]
pub(crate) struct PodManifest {
    /// Checked before (`version_error`); only its type is checked here.
    #[serde(rename = "apiVersion", default)]
    _api_version: Option<String>,
    /// As `apiVersion`.
    #[serde(rename = "kind", default)]
    _kind: Option<String>,
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: Option<PodSpec>,
}

/// Approximate memory of the typed object: its lists of large items, and a usual amount besides.
pub fn opened_bytes(pod: &Pod) -> usize {
    const POD: usize = 5 * 1024;
    const VOLUME: usize = 3456;
    const MOUNT: usize = 256;
    const VARIABLE: usize = 384;
    let Some(spec) = &pod.spec else { return POD };
    let of = |mounts: Option<usize>, variables: Option<usize>| {
        CONTAINER_BYTES + 512 + mounts.unwrap_or_default() * MOUNT + variables.unwrap_or_default() * VARIABLE
    };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let containers =
        containers.map(|c| of(c.volume_mounts.as_ref().map(Vec::len), c.env.as_ref().map(Vec::len)));
    let debuggers = spec.ephemeral_containers.iter().flatten();
    let debuggers =
        debuggers.map(|c| of(c.volume_mounts.as_ref().map(Vec::len), c.env.as_ref().map(Vec::len)));
    let volumes = spec.volumes.as_ref().map_or(0, Vec::len);
    let texts = pod.metadata.annotations.iter().chain(&pod.metadata.labels).flatten();
    // Strings are as long in the JSON: packing frees only their headers.
    let texts = texts.count() * 64;
    POD + texts + volumes * VOLUME + containers.chain(debuggers).sum::<usize>()
}
