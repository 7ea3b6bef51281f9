//! An ephemeral container of `smolet debug`, as stored in the checkpoint. PURE.

use k8s_openapi::api::core::v1::{Capabilities, EphemeralContainer, SecurityContext};
use minicbor::{Decode, Encode};

/// The fields that differ between debug containers. Fields are numbered for the checkpoint and may be added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Debugger<'a> {
    /// `name`.
    #[b(0)]
    pub name: &'a str,
    /// `image`.
    #[b(1)]
    pub image: &'a str,
    /// `imagePullPolicy`.
    #[b(2)]
    pub pull_policy: &'a str,
    /// `command`; empty = the image's.
    #[b(3)]
    pub command: Vec<&'a str>,
    /// `targetContainerName`.
    #[b(4)]
    pub target: Option<&'a str>,
    /// `stdin`.
    #[n(5)]
    pub stdin: bool,
    /// `tty`.
    #[n(6)]
    pub tty: bool,
}

impl<'a> Debugger<'a> {
    /// The fields of that container.
    pub fn of(container: &'a EphemeralContainer) -> Self {
        let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
        Self {
            name: &container.name,
            image: text(&container.image),
            pull_policy: text(&container.image_pull_policy),
            command: container.command.iter().flatten().map(String::as_str).collect(),
            target: container.target_container_name.as_deref(),
            stdin: container.stdin == Some(true),
            tty: container.tty == Some(true),
        }
    }

    /// The container, as kubectl creates it (`generateDebugContainer`, profile `general`) with the API server's defaults.
    pub fn container(&self) -> EphemeralContainer {
        let command = self.command.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let capabilities = Capabilities { add: Some(vec!["SYS_PTRACE".to_owned()]), drop: None };
        EphemeralContainer {
            name: self.name.to_owned(),
            image: Some(self.image.to_owned()),
            image_pull_policy: Some(self.pull_policy.to_owned()),
            command: (!command.is_empty()).then_some(command),
            target_container_name: self.target.map(str::to_owned),
            stdin: self.stdin.then_some(true),
            tty: self.tty.then_some(true),
            termination_message_path: Some("/dev/termination-log".to_owned()),
            termination_message_policy: Some("File".to_owned()),
            security_context: Some(SecurityContext {
                capabilities: Some(capabilities),
                ..SecurityContext::default()
            }),
            ..EphemeralContainer::default()
        }
    }
}

/// Suffix of a generated name `debugger-…`: five letters from Kubernetes' alphabet for random names, which has no vowels.
pub fn name_suffix(seed: u64) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // splitmix64: neighbouring seeds give independent suffixes.
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let mut suffix = String::with_capacity(5);
    for _ in 0..5 {
        let at = usize::try_from(bits % 27).unwrap_or_default();
        suffix.push(char::from(LETTERS[at]));
        bits /= 27;
    }
    suffix
}

#[cfg(test)]
mod tests {
    use crate::model::SortedSet;

    use super::*;

    #[test]
    fn a_stored_container_is_restored() {
        for said in [
            Debugger { name: "debugger-x", image: "busybox:1", pull_policy: "Always", ..Debugger::default() },
            Debugger {
                name: "shell",
                image: "reg.example/tools@sha256:0",
                pull_policy: "Never",
                command: vec!["sh", "-c", ""],
                target: Some("app"),
                stdin: true,
                tty: true,
            },
        ] {
            let made = said.container();
            assert_eq!(Debugger::of(&made), said);
            assert_eq!(Debugger::of(&made).container(), made);
        }
    }

    #[test]
    fn generated_names_use_kubernetes_alphabet_and_differ() {
        let names: SortedSet<String> = (0..1000).map(name_suffix).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 5 && name.bytes().all(|b| b.is_ascii_alphanumeric())));
    }
}
