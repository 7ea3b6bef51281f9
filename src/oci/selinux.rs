//! `SELinux` labels of pods and containers. PURE. Follows `InitLabels` and `uniqMcs` of opencontainers/selinux, as containerd uses them.
//!
//! ```text
//!     lxc_contexts of the node's policy ─► labels of the sandbox: two categories that no other has ─► labels of its containers
//! ```

use crate::proto::runtime::v1::{LinuxContainerSecurityContext, SeLinuxOption};

/// Categories of a policy: `c0` to `c1023`.
const CATEGORIES: u32 = 1024;
/// Pairs of two different ones.
const PAIRS: u32 = CATEGORIES * (CATEGORIES - 1) / 2;

/// Labels of processes and of their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelinuxLabels {
    /// `system_u:system_r:container_t:s0:c1,c2`; empty: that of the OCI runtime.
    pub process: String,
    /// `system_u:object_r:container_file_t:s0:c1,c2`.
    pub mount: String,
}

impl SelinuxLabels {
    /// Those of containers in the policy's `lxc_contexts`; `None`: it does not name both.
    pub fn of_policy(text: &str) -> Option<Self> {
        let value = |key: &str| value_of(text, key).filter(|label| label.split(':').count() >= 3);
        Some(Self { process: value("process")?, mount: value("file")? })
    }

    /// Those of a sandbox: with its options, and with a level that no other sandbox has where the policy has levels and the options name
    /// none. The search begins where `start` says.
    #[must_use]
    pub fn of_sandbox(
        &self,
        options: Option<&SeLinuxOption>,
        is_taken: impl Fn(&str) -> bool,
        start: u32,
    ) -> Self {
        let mut labels = self.clone();
        let [.., level] = parts(&self.process);
        let named = options.is_some_and(|options| !options.level.is_empty());
        if !level.is_empty() && !named {
            let sensitivity = level.split(':').next().unwrap_or_default();
            let mut candidates = (0..PAIRS).map(|step| (start % PAIRS + step) % PAIRS).map(|index| {
                let (low, high) = categories(index);
                format!("{sensitivity}:c{low},c{high}")
            });
            // There are far more pairs than sandboxes.
            let level = candidates.find(|level| !is_taken(level)).unwrap_or_default();
            let option = SeLinuxOption { level, ..SeLinuxOption::default() };
            labels.apply(&option);
        }
        if let Some(options) = options {
            labels.apply(options);
        }
        labels
    }

    /// Those of a container in a sandbox with these labels. The processes of a privileged one are not confined, and its files are the pod's.
    #[must_use]
    pub fn of_container(&self, context: &LinuxContainerSecurityContext) -> Self {
        let mut labels = self.clone();
        if let Some(options) = &context.selinux_options {
            labels.apply(options);
        }
        if context.privileged {
            labels.process.clear();
        }
        labels
    }

    /// The level: what tells the files of two pods apart.
    pub fn level(&self) -> &str {
        let [.., level] = parts(&self.mount);
        level
    }

    /// What the options name. User and level count for the files too, as with containerd.
    fn apply(&mut self, options: &SeLinuxOption) {
        let [user, role, kind, level] = [&*options.user, &*options.role, &*options.r#type, &*options.level];
        self.process = with(&self.process, [user, role, kind, level]);
        self.mount = with(&self.mount, [user, "", "", level]);
    }
}

/// The pair of categories with that number below [`PAIRS`], the lower one first.
fn categories(mut index: u32) -> (u32, u32) {
    let mut low = 0;
    while index >= CATEGORIES - 1 - low {
        index -= CATEGORIES - 1 - low;
        low += 1;
    }
    (low, low + 1 + index)
}

/// The value of a key in one of `SELinux`' files: `key = "value"`, or `KEY=value`.
pub fn value_of(text: &str, key: &str) -> Option<String> {
    let pairs = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut values = pairs.filter_map(|line| line.split_once('=')).filter(|(name, _)| name.trim() == key);
    values.next().map(|(_, value)| value.trim().trim_matches('"').to_owned())
}

/// User, role, type and level of a label; a policy without levels has none.
fn parts(label: &str) -> [&str; 4] {
    let mut fields = label.splitn(4, ':');
    std::array::from_fn(|_| fields.next().unwrap_or_default())
}

fn with(label: &str, options: [&str; 4]) -> String {
    let mut parts = parts(label);
    for (part, option) in parts.iter_mut().zip(options) {
        if !option.is_empty() {
            *part = option;
        }
    }
    parts.join(":").trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXTS: &str = "# of the policy\nprocess = \"system_u:system_r:container_t:s0\"\n\
        file = \"system_u:object_r:container_file_t:s0\"\nro_file=\"x\"\n";

    fn policy() -> SelinuxLabels {
        SelinuxLabels::of_policy(CONTEXTS).unwrap()
    }

    #[test]
    fn labels_come_from_the_policy() {
        assert_eq!(policy().process, "system_u:system_r:container_t:s0");
        assert_eq!(policy().mount, "system_u:object_r:container_file_t:s0");
        for text in
            ["", "process = \"a:b:c\"", "file = \"a:b:c\"", "process=\nfile=", "process=a\nfile=a:b:c"]
        {
            assert_eq!(SelinuxLabels::of_policy(text), None, "{text}");
        }
        assert_eq!(
            value_of("SELINUX=enforcing\n#SELINUXTYPE=x\nSELINUXTYPE=mls\n", "SELINUXTYPE").unwrap(),
            "mls"
        );
    }

    #[test]
    fn a_sandbox_has_categories_of_its_own() {
        let free = |_: &str| false;
        let at = |start| policy().of_sandbox(None, free, start);
        for (start, level) in [
            (0, "s0:c0,c1"),
            (1022, "s0:c0,c1023"),
            (1023, "s0:c1,c2"),
            (PAIRS - 1, "s0:c1022,c1023"),
            (PAIRS, "s0:c0,c1"),
        ] {
            assert_eq!(at(start).level(), level);
            assert_eq!(at(start).process, format!("system_u:system_r:container_t:{level}"));
            assert_eq!(at(start).mount, format!("system_u:object_r:container_file_t:{level}"));
        }
        let taken = ["s0:c1022,c1023", "s0:c0,c1"];
        let next = policy().of_sandbox(None, |level| taken.contains(&level), PAIRS - 1);
        assert_eq!(next.level(), "s0:c0,c2", "the search goes on at the beginning");

        let options = SeLinuxOption { level: "s0:c7".into(), r#type: "my_t".into(), ..Default::default() };
        let named = policy().of_sandbox(Some(&options), |_| true, 0);
        assert_eq!(named.process, "system_u:system_r:my_t:s0:c7");
        assert_eq!(named.mount, "system_u:object_r:container_file_t:s0:c7");

        let flat = SelinuxLabels { process: "u:r:t".into(), mount: "u:r:f".into() };
        assert_eq!(flat.of_sandbox(None, free, 5), flat, "a policy without levels");
    }

    #[test]
    fn a_container_has_its_pods_labels_but_for_its_options() {
        let pod = policy().of_sandbox(None, |_| false, 0);
        let mut context = LinuxContainerSecurityContext::default();
        assert_eq!(pod.of_container(&context), pod);
        let options = SeLinuxOption { user: "u".into(), r#type: "spc_t".into(), ..Default::default() };
        context.selinux_options = Some(options);
        let own = pod.of_container(&context);
        assert_eq!(own.process, "u:system_r:spc_t:s0:c0,c1");
        assert_eq!(own.mount, "u:object_r:container_file_t:s0:c0,c1");
        context.privileged = true;
        assert_eq!(pod.of_container(&context), SelinuxLabels { process: String::new(), ..own });
    }
}
