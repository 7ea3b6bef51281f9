//! The CRI's messages about the runtime and its images as plain data. PURE.

/// An item of CRI `RuntimeStatus.conditions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// `RuntimeReady`, `NetworkReady` ...
    pub kind: Box<str>,
    /// True when it holds.
    pub status: bool,
    /// The runtime's reason when it does not hold.
    pub reason: Box<str>,
    /// The runtime's message when it does not hold.
    pub message: Box<str>,
}

/// CRI `RuntimeHandler`: a configuration for running pods (runc, kata …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Its name; empty for the default one, which may also be listed by name.
    pub name: Box<str>,
    /// It supports user namespaces.
    pub user_namespaces: bool,
    /// It supports recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
}

/// CRI `StatusResponse`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `RuntimeReady`, `NetworkReady` ...
    pub conditions: Vec<RuntimeCondition>,
    /// Its handlers; none when the runtime does not report them (containerd before 2.0).
    pub handlers: Vec<RuntimeHandler>,
    /// It supports `supplementalGroupsPolicy: Strict`.
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
    /// The numeric user in the image's configuration.
    pub uid: Option<i64>,
    /// The user's name, when no numeric one is set.
    pub username: Box<str>,
    /// The runtime excludes it from garbage collection.
    pub pinned: bool,
}

impl Image {
    /// Its names, with tags and with digests.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.repo_tags.iter().chain(&self.repo_digests).map(|name| &**name)
    }
}
