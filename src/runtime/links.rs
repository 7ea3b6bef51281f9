//! Network interfaces, by netlink: removes a bridge of smolet's own that no pod is attached to, sets a pod's loopback up. I/O, blocking.

use std::io;
use std::path::Path;

use crate::filesystem::read_start;
use crate::netlink::{Message, Netlink, Protocol};

/// Where the kernel shows interfaces.
const SYS: &str = "/sys/class/net";

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
    let text = read_start(&dir.join("ifindex"), 32)?;
    let index = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<u32>().ok());
    delete(index.ok_or_else(|| io::Error::other("its ifindex is no number"))?)
}

/// `RTM_DELLINK`.
fn delete(index: u32) -> io::Result<()> {
    const DELETE_LINK: u16 = 17;
    request(DELETE_LINK, [index, 0, 0])
}

/// `RTM_NEWLINK` for interface 1 of the thread's network namespace, which each of them has as `lo`. The kernel gives it its addresses.
///
/// # Errors
/// The kernel's.
pub(super) fn set_loopback_up() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    const UP: u32 = 1;
    request(NEW_LINK, [1, UP, UP])
}

/// A request about an interface: its index, its flags, and which of them change.
fn request(kind: u16, interface: [u32; 3]) -> io::Result<()> {
    // struct ifinfomsg: family, type, index, flags, mask of changes.
    let [index, flags, changes] = interface;
    let header = [0, index, flags, changes].map(u32::to_ne_bytes).concat();
    Netlink::open(Protocol::Route)?.request(&Message::new(kind, 0, &header))
}
