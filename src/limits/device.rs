//! Bounds of devices that containers have through their volumes.

use std::time::Duration;

/// Paths of devices that are watched, of all pods. Full: a further one is opened to its containers all the same, but a device that
/// comes back there as another one restarts nothing.
pub const DEVICES_WATCHED_MAX: usize = 64;
/// Bytes of a device's path. Longer: its container does not start.
pub const DEVICE_PATH_BYTES_MAX: usize = 512;
/// Device volumes of a container. More: it does not start.
pub const CONTAINER_DEVICES_OPENED_MAX: usize = 16;
/// Links that are followed from a device's path, as by the kernel. More: what is behind them is not watched.
pub const DEVICE_LINKS_MAX: usize = 40;
/// Time from a change in a directory of devices until its devices are looked at, and the least between two looks: udev makes several
/// links for one device.
pub const DEVICE_SETTLE: Duration = Duration::from_millis(250);
/// Wait after a change until its devices are looked at once more, for containers that were created at that moment.
pub const DEVICE_LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Wait before devices are looked at again that could not be looked at, or not be watched.
pub const DEVICE_RETRY: Duration = Duration::from_secs(10);
