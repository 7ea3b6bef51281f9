//! The `WireGuard` link of a family: its key, its port and its peers. I/O, blocking.

use std::fs;
use std::io;
use std::path::Path;

use super::Wanted;
use crate::filesystem::{read_bounded, replace};
use crate::flannel::wireguard::{self, Device, PORTS, PrivateKey};
use crate::flannel::{LinkData, PeerSpec};
use crate::limits::FLANNEL_KEY_FILE_BYTES_MAX;
use crate::model::Network;
use crate::netlink::{Netlink, Protocol};

/// `EADDRINUSE`.
const IN_USE: i32 = 98;

/// What others have to know of the link, its peers, and what was changed and refused of them.
pub(super) struct MadeWireguard {
    pub(super) data: LinkData,
    pub(super) peers: Vec<PeerSpec>,
    pub(super) changes: usize,
    pub(super) refused: Option<String>,
}

/// Gives the link its key, its port and its peers.
///
/// # Errors
/// A sentence that says what the kernel refused of the link.
pub(super) fn bring_up(
    wanted: &Wanted,
    of: usize,
    (link, name): (u32, &str),
    own: Network,
    key: &PrivateKey,
) -> Result<MadeWireguard, String> {
    let port = PORTS[of];
    let refused = |error: io::Error| match error.raw_os_error() {
        Some(IN_USE) => {
            format!(
                "link {name}: UDP port {port} is another one's (ss -ulnp, wg show); give that one another port"
            )
        }
        _ => format!("link {name}: WireGuard: {error}"),
    };
    let mut netlink = Netlink::open(Protocol::Generic).map_err(refused)?;
    let mut family_id = None;
    let asked =
        netlink.ask(&wireguard::family_id(), &mut |answer| family_id = wireguard::read_family_id(answer));
    asked.map_err(refused)?;
    let family_id = family_id.ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
    let read = |netlink: &mut Netlink| {
        let question = wireguard::device(family_id, link);
        let device = netlink.collect(&question, &mut |device: &mut Device, _, answer| device.read(answer));
        device.map_err(refused)
    };
    let (mut device, mut changes) = (read(&mut netlink)?, 0);
    if device.private_key.as_ref() != Some(key) || device.port != port || device.mark != 0 {
        netlink.request(&wireguard::set_device(family_id, link, key, port)).map_err(refused)?;
        device = read(&mut netlink)?;
        changes += 1;
    }
    let public = device.public_key.ok_or_else(|| format!("link {name}: the kernel gave it no key"))?;
    let mut made =
        MadeWireguard { data: LinkData::Wireguard(public, port), peers: Vec::new(), changes, refused: None };
    // They are not known yet: those of the kernel stay.
    let Some(ways) = &wanted.peers else { return Ok(made) };
    made.peers = wireguard::wanted(of, ways, wanted.networks[of], own, public);
    let last: Vec<PeerSpec> = wanted.set.iter().filter(|peer| peer.is_of(of)).copied().collect();
    let changes = wireguard::changes(&made.peers, &device, &last, super::now());
    made.changes += changes.len();
    for (message, some) in wireguard::set_peers(family_id, link, &changes) {
        if netlink.request(&message).is_ok() {
            continue;
        }
        // The kernel stops at the first that it does not take: the others are tried.
        for one in some {
            for (message, _) in wireguard::set_peers(family_id, link, std::slice::from_ref(one)) {
                if let Err(error) = netlink.request(&message) {
                    made.refused = Some(format!("link {name}: {one}: {error}"));
                }
            }
        }
    }
    if made.refused.is_some() {
        made.peers = last;
    }
    Ok(made)
}

/// The key in flannel's file, which is gone with the boot; a new one where there is none.
///
/// # Errors
/// A sentence that says what is wrong with the file.
pub(super) fn private_key(file: &Path) -> Result<PrivateKey, String> {
    let at = |why: String| format!("key of WireGuard in {}: {why}", file.display());
    match read_bounded(file, FLANNEL_KEY_FILE_BYTES_MAX) {
        Ok(text) => PrivateKey::parse(&text)
            .ok_or_else(|| at("it is none; remove the file, and a new one is made".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut random = [0; 32];
            let got = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
            got.map_err(|error| at(format!("no random numbers: {error}")))?;
            let key = PrivateKey::of(random);
            write(file, &key).map_err(|error| at(format!("it cannot be written: {error}")))?;
            Ok(key)
        }
        Err(error) => Err(at(error.to_string())),
    }
}

/// Writes it for root alone.
fn write(file: &Path, key: &PrivateKey) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    replace(file, &file.with_extension("new"), key.text().as_bytes())
}
