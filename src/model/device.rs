//! Device nodes of the machine that containers have through their volumes. PURE.

use std::fmt;
use std::rc::Rc;

use super::DesiredPod;
use crate::limits::{CONTAINER_DEVICES_OPENED_MAX, DEVICE_PATH_BYTES_MAX};
use crate::text::quoted;

/// smolet's own annotation on pods: what is done with running containers when another device is behind a device volume.
pub const DEVICE_CHANGE_ANNOTATION: &str = "smolet.io/device-change";

/// True when the pod's running containers are to be given other devices, where that is possible; false: they are restarted.
///
/// # Errors
/// The annotation has another value than `restart`, which is the default, or `update`.
pub fn updates_devices(pod: &DesiredPod) -> Result<bool, String> {
    let annotations = pod.pod.metadata.annotations.as_ref();
    match annotations.and_then(|all| all.get(DEVICE_CHANGE_ANNOTATION)).map(String::as_str) {
        None | Some("restart") => Ok(false),
        Some("update") => Ok(true),
        Some(text) => {
            Err(format!("annotation {DEVICE_CHANGE_ANNOTATION}: {}: must be restart or update", quoted(text)))
        }
    }
}

/// Type and numbers of a device node, written as `c 188:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    /// A block device; else a character device.
    pub is_block: bool,
    /// The driver's number.
    pub major: u32,
    /// The device's number in its driver.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_block { 'b' } else { 'c' };
        write!(f, "{kind} {}:{}", self.major, self.minor)
    }
}

impl DeviceNumber {
    fn parse(kind: &str, numbers: &str) -> Option<Self> {
        let is_block = match kind {
            "b" => true,
            "c" => false,
            _ => return None,
        };
        let (major, minor) = numbers.split_once(':')?;
        Some(Self { is_block, major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

/// A device volume of a container: the volume's path on the node, and the device that it was when the container was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDevice {
    /// `hostPath.path`.
    pub path: Box<str>,
    /// The device behind it.
    pub number: DeviceNumber,
}

/// The text of a container's device volumes, a line each: `c 188:0 /dev/ttyUSB0`.
pub fn device_lines(devices: &[ContainerDevice]) -> String {
    let line = |device: &ContainerDevice| format!("{} {}\n", device.number, device.path);
    devices.iter().map(line).collect()
}

/// Parses [`device_lines`]; `None` for none, and for a text that smolet did not write.
pub fn parse_device_lines(text: &str) -> Option<Rc<[ContainerDevice]>> {
    let lines = text.lines().take(CONTAINER_DEVICES_OPENED_MAX).map(|line| {
        let (kind, rest) = line.split_once(' ')?;
        let (numbers, path) = rest.split_once(' ').filter(|(_, path)| path.len() <= DEVICE_PATH_BYTES_MAX)?;
        Some(ContainerDevice { path: path.into(), number: DeviceNumber::parse(kind, numbers)? })
    });
    let found: Rc<[ContainerDevice]> = lines.collect::<Option<_>>()?;
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_containers_get_other_devices_where_their_pod_says_so() {
        let of = |annotations: serde_json::Value| {
            let pod = serde_json::json!({"metadata": {"name": "p", "annotations": annotations},
                "spec": {"containers": []}});
            updates_devices(&DesiredPod::new(serde_json::from_value(pod).unwrap()))
        };
        let with = |value: &str| of(serde_json::json!({DEVICE_CHANGE_ANNOTATION: value}));
        assert_eq!(of(serde_json::json!({})), Ok(false));
        assert_eq!((with("restart"), with("update")), (Ok(false), Ok(true)));
        let why = "annotation smolet.io/device-change: \"Update\": must be restart or update";
        assert_eq!(with("Update"), Err(why.to_owned()));
    }

    #[test]
    fn the_lines_of_devices_are_read_as_they_are_written() {
        let device = |is_block, major, minor, path: &str| ContainerDevice {
            path: path.into(),
            number: DeviceNumber { is_block, major, minor },
        };
        let devices =
            [device(false, 188, 0, "/dev/serial/by-id/a b"), device(true, 7, 1_048_575, "/dev/loop0")];
        let text = device_lines(&devices);
        assert_eq!(text, "c 188:0 /dev/serial/by-id/a b\nb 7:1048575 /dev/loop0\n");
        assert_eq!(parse_device_lines(&text).as_deref(), Some(&devices[..]));
        for foreign in ["", "c 188 /dev/x", "x 1:2 /dev/x", "c 1:2", "c 1:2 /dev/x\nc -1:2 /dev/y"] {
            assert_eq!(parse_device_lines(foreign), None, "{foreign:?}");
        }
        let long = format!("c 1:2 /{}", "x".repeat(DEVICE_PATH_BYTES_MAX));
        assert_eq!(parse_device_lines(&long), None);
        let many = "c 1:2 /dev/x\n".repeat(CONTAINER_DEVICES_OPENED_MAX + 1);
        assert_eq!(parse_device_lines(&many).map(|all| all.len()), Some(CONTAINER_DEVICES_OPENED_MAX));
    }
}
