//! What a container runtime tells of itself and of its images: the CRI's messages as plain data. PURE.

/// One of CRI `RuntimeStatus.conditions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// `RuntimeReady`, `NetworkReady` ...
    pub kind: Box<str>,
    /// Holds or not.
    pub status: bool,
    /// The runtime's word when it does not.
    pub reason: Box<str>,
    /// The runtime's sentence when it does not.
    pub message: Box<str>,
}

/// CRI `RuntimeHandler`: one way to run pods (runc, kata …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Its name; empty for the default one, which may be listed by its name too.
    pub name: Box<str>,
    /// It runs pods with users of their own.
    pub user_namespaces: bool,
    /// It makes mounts read-only with all that is mounted below them.
    pub recursive_read_only_mounts: bool,
}

/// CRI `StatusResponse`: what the runtime says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `RuntimeReady`, `NetworkReady` ...
    pub conditions: Vec<RuntimeCondition>,
    /// Its handlers; none from a runtime that does not tell (containerd before 2.0).
    pub handlers: Vec<RuntimeHandler>,
    /// It knows `supplementalGroupsPolicy: Strict`.
    pub supplemental_groups_policy: bool,
}

/// CRI `ImageStatusResponse.image` and the items of `ListImages`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The image's id (its configuration's digest).
    pub id: Box<str>,
    /// Names with tags.
    pub repo_tags: Vec<Box<str>>,
    /// Names with digests.
    pub repo_digests: Vec<Box<str>>,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// The numeric user the image asks for.
    pub uid: Option<i64>,
    /// The user by name, when no numeric one is set.
    pub username: Box<str>,
    /// The runtime asks to keep it from garbage collection.
    pub pinned: bool,
}

impl Image {
    /// Its names, with tags and with digests.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.repo_tags.iter().chain(&self.repo_digests).map(|name| &**name)
    }
}
