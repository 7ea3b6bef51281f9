//! The types of the OCI runtime-spec (`config.json`), as much of them as a Linux container of the CRI has. PURE.
//!
//! They are our own and not those of the crate `oci-spec`: that one brings regular expressions, `thiserror`, `strum` and three
//! procedural macros for builders and accessors, for a file that we write and hardly read. What is not set is not written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the runtime-spec that is written. 1.1 is what runc 1.2 and crun know; older ones accept it, as they compare the
/// major number alone, and the fields of 1.1 are used only where the runtime is known to have them.
pub const VERSION: &str = "1.1.0";

/// A map that is written in the order of its keys, so that equal containers have equal files.
pub type Map = BTreeMap<String, String>;

/// `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Spec {
    pub oci_version: &'static str,
    pub process: Process,
    pub root: Root,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    pub mounts: Vec<Mount>,
    #[serde(skip_serializing_if = "Hooks::is_empty")]
    pub hooks: Hooks,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
    pub linux: Linux,
}

/// `process`: a container's first process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Process {
    #[serde(skip_serializing_if = "is_false")]
    pub terminal: bool,
    pub user: User,
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: String,
    pub capabilities: Capabilities,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    #[serde(skip_serializing_if = "is_false")]
    pub no_new_privileges: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apparmor_profile: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selinux_label: String,
}

/// `process.user`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// `process.capabilities`: `CAP_...`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Capabilities {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bounding: Vec<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effective: Vec<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permitted: Vec<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inheritable: Vec<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ambient: Vec<Cow<'static, str>>,
}

/// `process.rlimits[]`: `RLIMIT_NOFILE` ...
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Rlimit {
    #[serde(rename = "type")]
    pub kind: String,
    pub hard: u64,
    pub soft: u64,
}

/// `root`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Root {
    pub path: String,
    #[serde(skip_serializing_if = "is_false")]
    pub readonly: bool,
}

/// `mounts[]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Mount {
    pub destination: String,
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    pub kind: Cow<'static, str>,
    pub source: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
}

/// A range of user or group ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct IdMapping {
    #[serde(rename = "containerID")]
    pub container_id: u32,
    #[serde(rename = "hostID")]
    pub host_id: u32,
    pub size: u32,
}

/// `hooks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Hooks {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prestart: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub create_runtime: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub create_container: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub start_container: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub poststart: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub poststop: Vec<Hook>,
}

impl Hooks {
    /// Whether there is no hook at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One hook: a program of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Hook {
    pub path: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

/// `linux`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Linux {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub sysctl: Map,
    pub resources: Resources,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroups_path: String,
    pub namespaces: Vec<Namespace>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<Seccomp>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub rootfs_propagation: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_paths: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readonly_paths: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mount_label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
}

/// `linux.namespaces[]`: one of the container's own, or that of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Namespace {
    #[serde(rename = "type")]
    pub kind: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// `linux.devices[]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Device {
    #[serde(rename = "type")]
    pub kind: DeviceKind,
    pub path: String,
    pub major: u32,
    pub minor: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// What a device node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DeviceKind {
    /// A block device.
    #[serde(rename = "b")]
    Block,
    /// A character device.
    #[serde(rename = "c")]
    Character,
    /// A named pipe.
    #[serde(rename = "p")]
    Fifo,
}

/// `linux.resources`, and what `runc update --resources` reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Resources {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceRule>,
    #[serde(skip_serializing_if = "Memory::is_empty")]
    pub memory: Memory,
    #[serde(skip_serializing_if = "Cpu::is_empty")]
    pub cpu: Cpu,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<Pids>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hugepage_limits: Vec<HugepageLimit>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub unified: Map,
}

/// `linux.resources.devices[]`: a rule of the device cgroup. Without numbers it is for all of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct DeviceRule {
    pub allow: bool,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    pub access: String,
}

/// `linux.resources.memory`: bytes; −1 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<i64>,
}

impl Memory {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `linux.resources.cpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Cpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// Microseconds in a period; −1 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<i64>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mems: String,
}

impl Cpu {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `linux.resources.pids`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Pids {
    pub limit: i64,
}

/// `linux.resources.hugepageLimits[]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct HugepageLimit {
    /// `2MB`.
    pub page_size: String,
    /// Bytes.
    pub limit: u64,
}

/// `linux.intelRdt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct IntelRdt {
    #[serde(rename = "closID", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
}

/// `linux.seccomp`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Seccomp {
    pub default_action: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<Cow<'static, str>>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Cow<'static, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener_metadata: Option<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub syscalls: Vec<Syscalls>,
}

/// `linux.seccomp.syscalls[]`: an action for calls of these names, where all of the conditions hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct Syscalls {
    pub names: Vec<Cow<'static, str>>,
    pub action: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<SyscallArg>,
}

/// `linux.seccomp.syscalls[].args[]`: a condition on one argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are the runtime-spec's")]
pub struct SyscallArg {
    pub index: u32,
    pub value: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub value_two: u64,
    pub op: Cow<'static, str>,
}

/// `null` is as good as nothing, as in Go.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}
