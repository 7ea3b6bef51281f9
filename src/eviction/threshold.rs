//! Eviction signals and thresholds (`ParseThresholdConfig`). PURE.

use std::time::Duration;

use super::{NodeCondition, Observations};
use crate::model::quantity::Quantity;

/// A measured quantity (`evictionapi.Signal`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory that is free or reclaimable at once.
    MemoryAvailable,
    /// Bytes on the file system of the agent's root directory.
    NodeFsAvailable,
    /// Inodes on that file system.
    NodeFsInodesFree,
    /// Bytes on the images' file system.
    ImageFsAvailable,
    /// Inodes on that file system.
    ImageFsInodesFree,
    /// Free process IDs.
    PidAvailable,
}

/// A starved resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `memory`.
    Memory,
    /// `ephemeral-storage`.
    EphemeralStorage,
    /// `inodes`.
    Inodes,
    /// `pids`.
    Pids,
}

impl Resource {
    /// The name in events and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// True for resources of a disk, which the removal of dead containers and unused images frees.
    pub const fn is_on_disk(self) -> bool {
        match self {
            Self::EphemeralStorage | Self::Inodes => true,
            Self::Memory | Self::Pids => false,
        }
    }
}

impl Signal {
    /// All of them, in the order of `as usize`.
    pub const ALL: [Self; 6] = [
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::PidAvailable,
    ];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The node condition of the signal (`signalToNodeCondition`).
    pub fn condition(self) -> NodeCondition {
        match self {
            Self::MemoryAvailable => NodeCondition::Memory,
            Self::NodeFsAvailable
            | Self::NodeFsInodesFree
            | Self::ImageFsAvailable
            | Self::ImageFsInodesFree => NodeCondition::Disk,
            Self::PidAvailable => NodeCondition::Pid,
        }
    }

    /// The resource of the signal (`signalToResource`).
    pub fn resource(self) -> Resource {
        match self {
            Self::MemoryAvailable => Resource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable => Resource::EphemeralStorage,
            Self::NodeFsInodesFree | Self::ImageFsInodesFree => Resource::Inodes,
            Self::PidAvailable => Resource::Pids,
        }
    }
}

/// A quantity, or a fraction of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes, inodes or process IDs.
    Quantity(u64),
    /// Millionths of the capacity, at most a million.
    Share(u32),
}

impl Amount {
    /// Parses `100Mi` or `10%` (`parseThresholdStatement`); `None` for `0%` and `100%`, which disable the threshold.
    ///
    /// # Errors
    /// What has to be written instead.
    pub fn parse(text: &str) -> Result<Option<Self>, &'static str> {
        if let Some(percent) = text.strip_suffix('%') {
            if percent == "0" || percent == "100" {
                return Ok(None);
            }
            let wrong = "must be between 0% and 100%, or a quantity such as 100Mi";
            // Millionths are ten thousandths of a percent.
            let number = Quantity::parse(percent).map_err(|_| wrong)?.billionths() / 100_000;
            return match u32::try_from(number) {
                Ok(share) if share <= 1_000_000 => Ok(Some(Self::Share(share))),
                Ok(_) | Err(_) => Err(wrong),
            };
        }
        let wrong = "must be a quantity greater than 0 such as 100Mi, or a part such as 10%";
        let value = Quantity::parse(text).map_err(|_| wrong)?.value();
        match u64::try_from(value) {
            Ok(value) if value > 0 => Ok(Some(Self::Quantity(value))),
            Ok(_) | Err(_) => Err(wrong),
        }
    }

    /// The quantity for this capacity (`GetThresholdQuantity`), rounded down.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Quantity(quantity) => quantity,
            Self::Share(share) => {
                u64::try_from(u128::from(capacity) * u128::from(share) / 1_000_000).unwrap_or(u64::MAX)
            }
        }
    }
}

/// An eviction threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Its signal.
    pub signal: Signal,
    /// It is met when less than this is available.
    pub at: Amount,
    /// How long it has to be met without interruption before a pod is evicted; zero: at once, and without a grace period for
    /// the pod (hard).
    pub grace: Duration,
    /// How much more has to be available before it is no longer met (`evictionMinimumReclaim`).
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// `isHardEvictionThreshold`.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// True when it is met; with `reclaims`, while the minimum is not reclaimed either (`thresholdsMet`).
    pub fn is_met(&self, seen: &Observations, reclaims: bool) -> bool {
        seen[self.signal as usize].is_some_and(|seen| {
            let more = self.min_reclaim.filter(|_| reclaims).map_or(0, |more| more.of(seen.capacity));
            seen.available < self.at.of(seen.capacity).saturating_add(more)
        })
    }

    /// True when less than `times` its quantity is available.
    pub fn is_near(&self, seen: &Observations, times: u64) -> bool {
        seen[self.signal as usize]
            .is_some_and(|seen| seen.available < self.at.of(seen.capacity).saturating_mul(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_in_the_order_of_their_numbers() {
        for (number, signal) in Signal::ALL.into_iter().enumerate() {
            assert_eq!(signal as usize, number);
        }
    }

    #[test]
    fn thresholds_are_quantities_or_parts() {
        for (text, wanted) in [
            ("100Mi", Ok(Some(Amount::Quantity(100 << 20)))),
            ("1500M", Ok(Some(Amount::Quantity(1_500_000_000)))),
            ("10%", Ok(Some(Amount::Share(100_000)))),
            ("7.5%", Ok(Some(Amount::Share(75_000)))),
            ("0.0001%", Ok(Some(Amount::Share(1)))),
            ("0%", Ok(None)),
            ("100%", Ok(None)),
            ("101%", Err(())),
            ("-1%", Err(())),
            ("%", Err(())),
            ("0", Err(())),
            ("-5", Err(())),
            ("many", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(Amount::parse(text).map_err(|_| ()), wanted, "{text:?}");
        }
        assert_eq!(Amount::Share(100_000).of(u64::MAX), u64::MAX / 10);
        assert_eq!(Amount::Share(150_000).of(1000), 150);
    }
}
