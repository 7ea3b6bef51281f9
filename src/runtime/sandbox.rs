//! A sandbox: what is known of it, and what the CRI is told. [`Sandboxes`](super::sandboxes::Sandboxes) are all of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smol::lock::{Mutex, MutexGuard, RwLock};

use super::records::{SandboxPhase, SandboxRecord};
use super::stats::Rate;
use super::users::Users;
use crate::model::SandboxId;
use crate::oci::SelinuxLabels;
use crate::proto::runtime::v1 as cri;

/// Files of a sandbox that its containers have mounted.
pub(super) const RESOLV_CONF: &str = "resolv.conf";
pub(super) const HOSTNAME: &str = "hostname";
pub(super) const HOSTS: &str = "hosts";

/// One sandbox.
pub(super) struct Sandbox {
    id: SandboxId,
    pub(super) record: RefCell<SandboxRecord>,
    /// Programs of a former agent may still make it. They end before it is stopped.
    pub(super) has_makers: Cell<bool>,
    /// Written to by its stop and removal; creations of containers in it read.
    turn: RwLock<()>,
    /// Held while its record is written.
    writing: Mutex<()>,
    /// Held while its first process is looked at.
    looking: Mutex<()>,
    /// Somebody waits for that, and will look.
    is_look_expected: Cell<bool>,
    rate: Rate,
}

impl Sandbox {
    pub(super) fn new(id: SandboxId, record: SandboxRecord) -> Rc<Self> {
        Rc::new(Self {
            id,
            record: RefCell::new(record),
            has_makers: Cell::new(false),
            turn: RwLock::new(()),
            writing: Mutex::new(()),
            looking: Mutex::new(()),
            is_look_expected: Cell::new(false),
            rate: Rate::default(),
        })
    }

    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The configuration of its creation.
    pub(super) fn config(&self) -> cri::PodSandboxConfig {
        self.record.borrow().config()
    }

    pub(super) fn handler(&self) -> Box<str> {
        self.record.borrow().handler.clone()
    }

    /// The OCI runtime of its first process.
    pub(super) fn oci_runtime(&self) -> Box<str> {
        self.record.borrow().oci_runtime.clone()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.record.borrow().phase == SandboxPhase::Ready
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.record.borrow().phase == SandboxPhase::NotReady
    }

    pub(super) fn shares_pids(&self) -> bool {
        self.record.borrow().shares_pids
    }

    /// Of its CPU time.
    pub(super) fn rate(&self) -> &Rate {
        &self.rate
    }

    /// Held while containers are created in it: it is neither stopped nor removed meanwhile.
    pub(super) fn turn(&self) -> &RwLock<()> {
        &self.turn
    }

    /// Held while its record is written.
    pub(super) fn writing(&self) -> &Mutex<()> {
        &self.writing
    }

    /// Says that somebody will look at its first process. `true`: somebody else has said so.
    pub(super) fn expect_look(&self) -> bool {
        self.is_look_expected.replace(true)
    }

    /// Held while its first process is looked at.
    pub(super) async fn begin_look(&self) -> MutexGuard<'_, ()> {
        let looking = self.looking.lock().await;
        self.is_look_expected.set(false);
        looking
    }

    /// Its user namespace.
    pub(super) fn users(&self) -> Option<Users> {
        // It was checked when it was made.
        Users::of(&self.config()).unwrap_or_default()
    }

    /// Its `SELinux` labels, if it has any.
    pub(super) fn selinux(&self) -> Option<SelinuxLabels> {
        let record = self.record.borrow();
        let labels = SelinuxLabels {
            process: record.process_label.to_string(),
            mount: record.mount_label.to_string(),
        };
        (!labels.mount.is_empty()).then_some(labels)
    }

    /// The UID of its pod.
    pub(super) fn pod_uid(&self) -> String {
        self.config().metadata.map(|metadata| metadata.uid).unwrap_or_default()
    }

    /// `PodSandboxStatus`.
    pub(super) fn status(&self) -> cri::PodSandboxStatus {
        let record = self.record.borrow();
        let config = record.config();
        let context = config.linux.and_then(|linux| linux.security_context);
        let options = context.and_then(|context| context.namespace_options).unwrap_or_default();
        let mut addresses = record.addresses.iter().map(ToString::to_string);
        cri::PodSandboxStatus {
            id: self.id.to_string(),
            metadata: config.metadata,
            state: state_of(&record).into(),
            created_at: record.created_at,
            network: Some(cri::PodSandboxNetworkStatus {
                ip: addresses.next().unwrap_or_default(),
                additional_ips: addresses.map(|ip| cri::PodIp { ip }).collect(),
            }),
            linux: Some(cri::LinuxPodSandboxStatus {
                namespaces: Some(cri::Namespace { options: Some(options) }),
            }),
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: record.handler.to_string(),
        }
    }

    /// Its item of `ListPodSandbox`, if it passes; a half-made one is not listed.
    pub(super) fn item(&self, filter: Option<&cri::PodSandboxFilter>) -> Option<cri::PodSandbox> {
        let record = self.record.borrow();
        if record.phase == SandboxPhase::Making {
            return None;
        }
        let config = record.config();
        let state = state_of(&record);
        let passes = filter.is_none_or(|filter| {
            self.id.as_str().starts_with(&filter.id)
                && filter.state.is_none_or(|wanted| wanted.state == i32::from(state))
                && filter.label_selector.iter().all(|(key, value)| config.labels.get(key) == Some(value))
        });
        passes.then(|| cri::PodSandbox {
            id: self.id.to_string(),
            metadata: config.metadata,
            state: state.into(),
            created_at: record.created_at,
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: record.handler.to_string(),
        })
    }
}

fn state_of(record: &SandboxRecord) -> cri::PodSandboxState {
    match record.phase {
        SandboxPhase::Ready => cri::PodSandboxState::SandboxReady,
        SandboxPhase::Making | SandboxPhase::NotReady => cri::PodSandboxState::SandboxNotready,
    }
}
