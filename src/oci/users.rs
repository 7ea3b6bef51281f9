//! Accounts of an image: `/etc/passwd` and `/etc/group`, as `github.com/moby/sys/user` reads them. PURE.
//!
//! Lines that are no accounts are passed over: an image's owner may write what he likes, and other lines are still good.

use std::str;

use super::SpecError;
use crate::limits::{SUPPLEMENTAL_GROUPS_MAX, USER_DATABASE_BYTES_MAX};

/// runc accepts no greater id.
const ID_MAX: u32 = i32::MAX.unsigned_abs();

/// A line of `/etc/passwd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account<'a> {
    /// The login name.
    pub name: &'a str,
    /// The user id.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The home directory.
    pub home: &'a str,
}

/// The accounts and groups of a root file system.
#[derive(Clone, Copy, Debug)]
pub struct Database<'a> {
    passwd: &'a [u8],
    group: &'a [u8],
}

/// The ids that a process starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
}

impl<'a> Database<'a> {
    /// Of the texts of `/etc/passwd` and `/etc/group`; empty where the root file system has none.
    ///
    /// # Errors
    /// One of them is longer than `limits::USER_DATABASE_BYTES_MAX`.
    pub fn new(passwd: &'a [u8], group: &'a [u8]) -> Result<Self, SpecError> {
        SpecError::at_most("bytes of the image's /etc/passwd", passwd.len(), USER_DATABASE_BYTES_MAX)?;
        SpecError::at_most("bytes of the image's /etc/group", group.len(), USER_DATABASE_BYTES_MAX)?;
        Ok(Self { passwd, group })
    }

    /// The accounts, in the file's order.
    pub fn accounts(self) -> impl Iterator<Item = Account<'a>> {
        lines(self.passwd).filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _password, uid, gid) =
                (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let home = fields.nth(1).unwrap_or_default();
            Some(Account { name, uid: uid.trim().parse().ok()?, gid: gid.trim().parse().ok()?, home })
        })
    }

    /// Name, id and members of the groups, in the file's order.
    fn groups(self) -> impl Iterator<Item = (&'a str, u32, &'a str)> {
        lines(self.group).filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _password, gid) = (fields.next()?, fields.next()?, fields.next()?);
            Some((name, gid.trim().parse().ok()?, fields.next().unwrap_or_default()))
        })
    }

    /// The account of this id.
    pub fn by_uid(self, uid: u32) -> Option<Account<'a>> {
        self.accounts().find(|account| account.uid == uid)
    }

    /// The account of this name.
    pub fn by_name(self, name: &str) -> Option<Account<'a>> {
        self.accounts().find(|account| account.name == name)
    }

    /// The ids of `USER`, `USER:GROUP`, each a number or a name (containerd's `WithUser`). Without a group it is the account's,
    /// 0 for a number that no account has.
    ///
    /// # Errors
    /// A name that is in no file, a number that no process can have, or another form.
    pub fn resolve(self, field: &'static str, user: &str) -> Result<Ids, SpecError> {
        let (name, group) = match user.split_once(':') {
            None => (user, None),
            Some((_, group)) if group.contains(':') => {
                return Err(SpecError::invalid(field, format!("{user:?} is not USER or USER:GROUP")));
            }
            Some((name, group)) => (name, Some(group)),
        };
        let account = match number(field, name)? {
            Some(uid) => self.by_uid(uid).unwrap_or(Account { name: "", uid, gid: 0, home: "" }),
            None => self.by_name(name).ok_or_else(|| {
                SpecError::invalid(
                    field,
                    format!("the image's /etc/passwd has no user {name:?}; give its number"),
                )
            })?,
        };
        let gid = match group {
            None => account.gid,
            Some(group) => match number(field, group)? {
                Some(gid) => gid,
                None => self.groups().find(|(name, ..)| *name == group).map(|(_, gid, _)| gid).ok_or_else(
                    || {
                        SpecError::invalid(
                            field,
                            format!("the image's /etc/group has no group {group:?}; give its number"),
                        )
                    },
                )?,
            },
        };
        Ok(Ids { uid: account.uid, gid })
    }

    /// The groups that name this user (a number or a name) as a member, but for that of the user's own name (containerd's
    /// `WithAdditionalGIDs`).
    ///
    /// # Errors
    /// More than `limits::SUPPLEMENTAL_GROUPS_MAX`.
    pub fn groups_of(self, user: &str) -> Result<Vec<u32>, SpecError> {
        let name = match user.parse::<u32>() {
            Ok(uid) => match self.by_uid(uid) {
                Some(account) => account.name,
                None => return Ok(Vec::new()),
            },
            Err(_) => user,
        };
        let mut gids = Vec::new();
        for (group, gid, members) in self.groups() {
            if group != name && members.split(',').any(|member| member.trim() == name) {
                gids.push(gid);
                SpecError::at_most(
                    "supplementary groups of the image's user",
                    gids.len(),
                    SUPPLEMENTAL_GROUPS_MAX,
                )?;
            }
        }
        Ok(gids)
    }
}

/// The id, when the text is a number.
fn number(field: &'static str, text: &str) -> Result<Option<u32>, SpecError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let id = text.parse::<u32>().ok().filter(|id| *id <= ID_MAX);
    id.map(Some)
        .ok_or_else(|| SpecError::invalid(field, format!("{text} is out of range; ids are 0 to {ID_MAX}")))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok()).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n\n# comment\nbad\nodd:x:no:1::/:\n\xff:x:5:5::/:\n\
        app:x:1000:1001:An app:/home/app:/bin/sh\nalso:x:1000:7::/:\nlast:x:12:13";
    const GROUP: &[u8] =
        b"root:x:0:root\nwheel:x:10:root,app\napp:x:1001:app\naudio:x:29: app ,other\nshort:x\n\
        last:x:77:last";

    fn database() -> Database<'static> {
        Database::new(PASSWD, GROUP).unwrap()
    }

    #[test]
    fn users_of_an_image() {
        for (user, ids) in [
            ("0", Ok((0, 0))),
            ("root", Ok((0, 0))),
            ("app", Ok((1000, 1001))),
            ("1000", Ok((1000, 1001))),
            ("4711", Ok((4711, 0))),
            ("last", Ok((12, 13))),
            ("app:wheel", Ok((1000, 10))),
            ("app:5", Ok((1000, 5))),
            ("1000:5", Ok((1000, 5))),
            ("4711:audio", Ok((4711, 29))),
            ("2147483647", Ok((2_147_483_647, 0))),
            ("2147483648", Err("out of range")),
            ("99999999999999999999", Err("out of range")),
            ("-1", Err("out of range")),
            ("1:-1", Err("out of range")),
            ("nobody", Err("no user \"nobody\"")),
            ("odd", Err("no user \"odd\"")),
            ("app:nogroup", Err("no group \"nogroup\"")),
            ("a:b:c", Err("is not USER or USER:GROUP")),
            ("", Err("no user \"\"")),
        ] {
            match (database().resolve("user", user), ids) {
                (Ok(found), Ok((uid, gid))) => assert_eq!(found, Ids { uid, gid }, "{user}"),
                (Err(error), Err(shown)) => assert!(error.to_string().contains(shown), "{user}: {error}"),
                (found, expected) => panic!("{user}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn groups_of_a_user_are_those_that_name_it_but_its_own() {
        for (user, gids) in [
            ("app", &[10, 29][..]),
            ("1000", &[10, 29]),
            ("root", &[10]),
            ("0", &[10]),
            ("last", &[]),
            ("12", &[]),
            ("other", &[29]),
            ("4711", &[]),
        ] {
            assert_eq!(database().groups_of(user).unwrap(), gids, "{user}");
        }
    }

    #[test]
    fn long_files_are_refused() {
        let long = vec![b'\n'; USER_DATABASE_BYTES_MAX + 1];
        assert!(Database::new(&long, b"").unwrap_err().to_string().contains("/etc/passwd"));
        assert!(Database::new(b"", &long).unwrap_err().to_string().contains("/etc/group"));
    }
}
