//! PURE: `v1.PodStatus` ⇄ one compact minicbor record.
//!
//! ```text
//!     PodStatus { phase: "Running", pod_ip: "10.0.0.1", … }  ⇄  {_ 0: 2, 5: "10.0.0.1", … }
//! ```
//!
//! Objects are maps with numbers as keys, without absent fields; a word of the API's vocabulary is its index in [`WORDS`];
//! times are seconds. Decoding returns an equal status. Fields that this agent neither sets nor keeps are left out: resource
//! claim statuses, device health, image volume digests.
//!
//! Numbers never change, because records are in checkpoint files. A new field gets a new number, which older agents skip.

use std::collections::BTreeMap;
use std::convert::Infallible;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, HostIP, LinuxContainerUser, PodCondition, PodIP, PodStatus, ResourceClaim,
    ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};

use crate::limits::LIST_ITEMS_MAX;

/// Why bytes are not a record.
pub type DecodeError = minicbor::decode::Error;
/// Writing to memory does not fail.
type Written = Result<(), minicbor::encode::Error<Infallible>>;
type Writer = Encoder<Vec<u8>>;

/// Encodes a status as a record.
pub fn encode(status: &PodStatus) -> Vec<u8> {
    let mut writer = Encoder::new(Vec::new());
    // `Infallible`: writing to a vector does not fail.
    let _ = status.write(&mut writer);
    writer.into_writer()
}

/// Decodes a record.
///
/// # Errors
/// The bytes are not exactly one record.
pub fn decode(record: &[u8]) -> Result<PodStatus, DecodeError> {
    let mut reader = Decoder::new(record);
    let status = PodStatus::read(&mut reader)?;
    if reader.position() < record.len() {
        return Err(DecodeError::message("bytes after the record"));
    }
    Ok(status)
}

/// Words of the API that are encoded as their index in this list. Only appended to.
const WORDS: [&str; 54] = [
    "",
    "Pending",
    "Running",
    "Succeeded",
    "Failed",
    "Unknown",
    "True",
    "False",
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "AllContainersRestarting",
    "DisruptionTarget",
    "ContainersNotReady",
    "ContainersNotInitialized",
    "PodCompleted",
    "PodFailed",
    "ReadinessGatesNotReady",
    "RestartAllContainersStarted",
    "Completed",
    "Error",
    "OOMKilled",
    "ContainerStatusUnknown",
    "RestartingAllContainers",
    "ContainerCreating",
    "PodInitializing",
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "Evicted",
    "DeadlineExceeded",
    "Guaranteed",
    "Burstable",
    "BestEffort",
    "cpu",
    "memory",
    "ephemeral-storage",
    "Enabled",
    "Disabled",
    "StartError",
    "ContainerCannotRun",
    "Preempting",
    "TerminationByKubelet",
    "PreStopHookError",
    "PostStartHookError",
];

/// A value of the API in a record.
trait Value: Sized {
    /// True when its key is left out; decoding then yields the default.
    fn is_absent(&self) -> bool {
        false
    }
    fn write(&self, out: &mut Writer) -> Written;
    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

/// An API object as a map from numbers to its fields.
macro_rules! object {
    ($name:ident { $($key:literal: $field:ident),+ $(,)? }, left out: { $($other:ident),* }) => {
        impl Value for $name {
            fn write(&self, out: &mut Writer) -> Written {
                // Destructured, so that a new field of the API causes a compile error here.
                let $name { $($field,)+ $($other: _,)* } = self;
                out.begin_map()?;
                $(
                    if !$field.is_absent() {
                        out.u8($key)?;
                        $field.write(out)?;
                    }
                )+
                out.end()?;
                Ok(())
            }

            fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                let mut object = $name::default();
                open(from.map()?)?;
                while !closed(from)? {
                    match from.u8()? {
                        $($key => object.$field = Value::read(from)?,)+
                        _ => from.skip()?,
                    }
                }
                Ok(object)
            }
        }
    };
}

object!(PodStatus {
    0: phase,
    1: reason,
    2: message,
    3: start_time,
    4: observed_generation,
    5: pod_ip,
    6: pod_ips,
    7: host_ip,
    8: host_ips,
    9: qos_class,
    10: conditions,
    11: container_statuses,
    12: init_container_statuses,
    13: ephemeral_container_statuses,
    14: resources,
    15: allocated_resources,
    16: nominated_node_name,
    17: resize,
}, left out: {
    extended_resource_claim_status, node_allocatable_resource_claim_statuses, resource_claim_statuses
});

object!(PodCondition {
    0: type_,
    1: status,
    2: last_transition_time,
    3: reason,
    4: message,
    5: observed_generation,
    6: last_probe_time,
}, left out: {});

object!(ContainerStatus {
    0: name,
    1: state,
    2: last_state,
    3: ready,
    4: restart_count,
    5: image,
    6: image_id,
    7: container_id,
    8: started,
    9: allocated_resources,
    10: resources,
    11: volume_mounts,
    12: user,
    13: stop_signal,
}, left out: { allocated_resources_status });

object!(ContainerState { 0: waiting, 1: running, 2: terminated }, left out: {});
object!(ContainerStateWaiting { 0: reason, 1: message }, left out: {});
object!(ContainerStateRunning { 0: started_at }, left out: {});
object!(ContainerStateTerminated {
    0: exit_code,
    1: signal,
    2: reason,
    3: message,
    4: started_at,
    5: finished_at,
    6: container_id,
}, left out: {});
object!(ContainerUser { 0: linux }, left out: {});
object!(LinuxContainerUser { 0: uid, 1: gid, 2: supplemental_groups }, left out: {});
object!(VolumeMountStatus { 0: name, 1: mount_path, 2: read_only, 3: recursive_read_only }, left out: { volume_status });
object!(ResourceRequirements { 0: requests, 1: limits, 2: claims }, left out: {});
object!(ResourceClaim { 0: name, 1: request }, left out: {});
object!(PodIP { 0: ip }, left out: {});
object!(HostIP { 0: ip }, left out: {});

/// Maps and lists have indefinite length.
fn open(length: Option<u64>) -> Result<(), DecodeError> {
    match length {
        None => Ok(()),
        Some(_) => Err(DecodeError::message("a map or list with a counted length")),
    }
}

/// True at the end of a map or list, which is consumed.
fn closed(from: &mut Decoder<'_>) -> Result<bool, DecodeError> {
    if from.datatype()? != Type::Break {
        return Ok(false);
    }
    from.skip()?;
    Ok(true)
}

fn is_number(kind: Type) -> bool {
    matches!(kind, Type::U8 | Type::U16 | Type::U32 | Type::U64)
}

impl Value for String {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn write(&self, out: &mut Writer) -> Written {
        match (0_u8..).zip(WORDS).find(|(_, word)| word == self) {
            Some((number, _)) => out.u8(number)?,
            None => out.str(self)?,
        };
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        if !is_number(from.datatype()?) {
            return Ok(from.str()?.to_owned());
        }
        let number = usize::from(from.u8()?);
        WORDS
            .get(number)
            .map(|word| (*word).to_owned())
            .ok_or_else(|| DecodeError::message("an unknown word"))
    }
}

impl Value for bool {
    fn is_absent(&self) -> bool {
        !self
    }

    fn write(&self, out: &mut Writer) -> Written {
        out.bool(*self)?;
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.bool()
    }
}

impl Value for i64 {
    fn is_absent(&self) -> bool {
        *self == 0
    }

    fn write(&self, out: &mut Writer) -> Written {
        out.i64(*self)?;
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.i64()
    }
}

impl Value for i32 {
    fn is_absent(&self) -> bool {
        *self == 0
    }

    fn write(&self, out: &mut Writer) -> Written {
        out.i32(*self)?;
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // Clamped: the file may hold any number.
        let number = from.i64()?.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
        Ok(i32::try_from(number).unwrap_or_default())
    }
}

/// Seconds since the epoch; with nanoseconds when there are any.
impl Value for Time {
    fn write(&self, out: &mut Writer) -> Written {
        let (seconds, nanos) = (self.0.as_second(), self.0.subsec_nanosecond());
        if nanos != 0 {
            out.array(2)?.i64(seconds)?.i32(nanos)?;
        } else {
            out.i64(seconds)?;
        }
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (seconds, nanos) = match from.datatype()? {
            Type::Array if from.array()? == Some(2) => (from.i64()?, from.i32()?),
            _ => (from.i64()?, 0),
        };
        Timestamp::new(seconds, nanos).map(Time).map_err(|_| DecodeError::message("a time out of range"))
    }
}

impl Value for Quantity {
    fn write(&self, out: &mut Writer) -> Written {
        self.0.write(out)
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        String::read(from).map(Quantity)
    }
}

impl<T: Value> Value for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn write(&self, out: &mut Writer) -> Written {
        self.iter().try_for_each(|value| value.write(out))
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        T::read(from).map(Some)
    }
}

/// At most `LIST_ITEMS_MAX` items: no list of a pod is longer.
impl<T: Value> Value for Vec<T> {
    fn write(&self, out: &mut Writer) -> Written {
        out.begin_array()?;
        self.iter().take(LIST_ITEMS_MAX).try_for_each(|item| item.write(out))?;
        out.end()?;
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut items = Vec::new();
        open(from.array()?)?;
        while !closed(from)? {
            room(items.len())?;
            items.push(T::read(from)?);
        }
        Ok(items)
    }
}

/// At most `LIST_ITEMS_MAX` entries, as lists.
impl Value for BTreeMap<String, Quantity> {
    fn write(&self, out: &mut Writer) -> Written {
        out.begin_map()?;
        for (name, quantity) in self.iter().take(LIST_ITEMS_MAX) {
            name.write(out)?;
            quantity.write(out)?;
        }
        out.end()?;
        Ok(())
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut map = BTreeMap::new();
        open(from.map()?)?;
        while !closed(from)? {
            room(map.len())?;
            let name = String::read(from)?;
            map.insert(name, Quantity::read(from)?);
        }
        Ok(map)
    }
}

/// Two bytes of a file may become half a kilobyte of memory.
fn room(items: usize) -> Result<(), DecodeError> {
    if items < LIST_ITEMS_MAX { Ok(()) } else { Err(DecodeError::message("too many items")) }
}
