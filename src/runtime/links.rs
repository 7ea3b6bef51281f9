//! Network interfaces, by netlink: removes a bridge of smolet's own that no pod is attached to, gives a bridge a hardware address, sets a
//! pod's loopback up. I/O, blocking.

use std::io;
use std::path::Path;

use rustix::rand::GetRandomFlags;

use crate::filesystem::read_start;
use crate::netlink::{Message, Netlink, Protocol};

/// Where the kernel shows interfaces.
const SYS: &str = "/sys/class/net";
/// An interface without a hardware address.
const NO_ADDRESS: &[u8] = b"00:00:00:00:00:00";
/// `RTM_NEWLINK`.
const NEW_LINK: u16 = 16;
/// `RTM_DELLINK`.
const DELETE_LINK: u16 = 17;

/// Gives a bridge a random hardware address if it has none. The kernel takes it away with the last interface that is detached, unless
/// somebody has set it, and the `bridge` plugin, which sets it at the end of ADD, refuses a bridge without one: after an ADD that was
/// killed before, no pod of the node would start. Idempotent.
///
/// # Errors
/// The kernel's.
pub(super) fn give_address(bridge: &str) -> io::Result<()> {
    const HARDWARE_ADDRESS: u16 = 1;
    let dir = Path::new(SYS).join(bridge);
    if !dir.join("brif").is_dir() || read_start(&dir.join("address"), 32)?.trim_ascii() != NO_ADDRESS {
        return Ok(());
    }
    let mut address = [0; 6];
    rustix::rand::getrandom(&mut address, GetRandomFlags::empty())?;
    // Of one host, administered locally.
    address[0] = address[0] & !1 | 2;
    request([index_of(&dir)?, 0, 0], NEW_LINK, Some((HARDWARE_ADDRESS, &address)))
}

/// Removes the bridge, with its address and route, unless an interface is attached to it. Idempotent.
///
/// # Errors
/// The kernel's.
pub(super) fn remove_idle_bridge(name: &str) -> io::Result<()> {
    let dir = Path::new(SYS).join(name);
    let mut ports = match std::fs::read_dir(dir.join("brif")) {
        Ok(ports) => ports,
        // It does not exist, or is no bridge.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if ports.next().is_some() {
        return Ok(());
    }
    request([index_of(&dir)?, 0, 0], DELETE_LINK, None)
}

/// The interface's number, by its directory in [`SYS`].
fn index_of(dir: &Path) -> io::Result<u32> {
    let text = read_start(&dir.join("ifindex"), 32)?;
    let index = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<u32>().ok());
    index.ok_or_else(|| io::Error::other("its ifindex is no number"))
}

/// `RTM_NEWLINK` for interface 1 of the thread's network namespace, which each of them has as `lo`. The kernel gives it its addresses.
///
/// # Errors
/// The kernel's.
pub(super) fn set_loopback_up() -> io::Result<()> {
    const UP: u32 = 1;
    request([1, UP, UP], NEW_LINK, None)
}

/// A request about an interface: its index, its flags, which of them change, and an attribute.
fn request(interface: [u32; 3], kind: u16, attribute: Option<(u16, &[u8])>) -> io::Result<()> {
    // struct ifinfomsg: family, type, index, flags, mask of changes.
    let [index, flags, changes] = interface;
    let header = [0, index, flags, changes].map(u32::to_ne_bytes).concat();
    let mut message = Message::new(kind, 0, &header);
    if let Some((name, value)) = attribute {
        message.attribute(name, value);
        message.end(0);
    }
    Netlink::open(Protocol::Route)?.request(&message)
}
