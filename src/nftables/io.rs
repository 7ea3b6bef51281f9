//! Asks the kernel for changes of tables, and what is there. I/O, blocking.

use std::io;

use super::{Batch, Family, GET_CHAIN, GET_ELEMENT, GET_GENERATION, GET_TABLE, SUBSYSTEM, name};
use crate::limits::NFTABLES_CHAINS_READ_MAX;
use crate::netlink::{BatchError, DUMP, Message, Netlink, attribute, attributes};

fn header(family: Family) -> [u8; 4] {
    [family.number(), 0, 0, 0]
}

/// Makes the changes of a batch, all or none.
///
/// # Errors
/// The kernel's first one.
pub fn run(netlink: &mut Netlink, batch: Batch) -> Result<(), BatchError> {
    netlink.batch(batch.finish())
}

/// Names of the table's chains; of a table that does not exist none.
///
/// # Errors
/// The kernel's; more than `limits::NFTABLES_CHAINS_READ_MAX` chains.
pub fn chains(netlink: &mut Netlink, family: Family, table: &str) -> io::Result<Vec<Box<str>>> {
    let request = Message::new(SUBSYSTEM << 8 | GET_CHAIN, DUMP, &header(family));
    let found = netlink.collect(&request, &mut |found: &mut Vec<Box<str>>, _, content| {
        let attributes = content.get(4..).unwrap_or_default();
        let text = |kind| attribute(attributes, kind).and_then(|name| name.strip_suffix(b"\0"));
        if text(1) != Some(table.as_bytes()) {
            return;
        }
        // The first of too many is kept, and shows that there are.
        if let Some(chain) = text(3).and_then(|chain| std::str::from_utf8(chain).ok())
            && found.len() <= NFTABLES_CHAINS_READ_MAX
        {
            found.push(chain.into());
        }
    })?;
    if found.len() > NFTABLES_CHAINS_READ_MAX {
        return Err(io::Error::other(format!(
            "table {table} has more than {NFTABLES_CHAINS_READ_MAX} chains"
        )));
    }
    Ok(found)
}

/// The keys of a set's elements for which `is_wanted` holds, one behind the other, until they have so many bytes.
///
/// # Errors
/// The kernel's.
pub fn keys(
    netlink: &mut Netlink,
    family: Family,
    (table, set): (&str, &str),
    bytes_max: usize,
    is_wanted: &dyn Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let mut request = Message::default();
    let at = request.begin(SUBSYSTEM << 8 | GET_ELEMENT, DUMP, &header(family));
    name(&mut request, 1, table);
    name(&mut request, 2, set);
    request.end(at);
    netlink.collect(&request, &mut |keys: &mut Vec<u8>, _, content| {
        let list = attribute(content.get(4..).unwrap_or_default(), 3).unwrap_or_default();
        for (_, element) in attributes(list) {
            if let Some(key) = attribute(element, 1).and_then(|key| attribute(key, 1))
                && keys.len() + key.len() <= bytes_max
                && is_wanted(key)
            {
                keys.extend(key);
            }
        }
    })
}

/// A number that changes whenever somebody changes any table of the network namespace.
///
/// # Errors
/// The kernel's.
pub fn generation(netlink: &mut Netlink) -> io::Result<u32> {
    let mut found = None;
    // Answered by one message, and an acknowledgement as its end.
    let request = Message::new(SUBSYSTEM << 8 | GET_GENERATION, crate::netlink::ACKNOWLEDGE, &[0; 4]);
    netlink.dump(&request, &mut |_, content| {
        let id = attribute(content.get(4..).unwrap_or_default(), 1);
        found = id.and_then(|id| id.try_into().ok()).map(u32::from_be_bytes);
    })?;
    found.ok_or_else(|| io::Error::other("the kernel names no generation of its rules"))
}

/// Whether the table exists.
///
/// # Errors
/// The kernel's.
pub fn table_exists(netlink: &mut Netlink, family: Family, table: &str) -> io::Result<bool> {
    let mut request = Message::default();
    let flags = crate::netlink::ACKNOWLEDGE;
    let at = request.begin(SUBSYSTEM << 8 | GET_TABLE, flags, &header(family));
    name(&mut request, 1, table);
    request.end(at);
    match netlink.dump(&request, &mut |_, _| {}) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
