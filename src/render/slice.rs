//! What systemd is asked for with the cgroup driver systemd: the units that a pod's cgroup settings become. PURE.
//! Follows libcontainer's `systemd/v1.go` and `v2.go` (`Apply`, `genV1ResourcesProperties`, `genV2ResourcesProperties`).
//!
//! What systemd has no property for (huge pages) is written to the cgroup's files behind its back, there as here.

use super::cgroup_settings::CgroupSettings;
use super::node::CgroupVersion;

/// A slice, as systemd is asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The unit's name, `kubepods-burstable.slice`.
    pub name: Box<str>,
    /// The slice around it.
    pub parent: Box<str>,
    /// The property that has the kernel count what is read and written: systemd has one for each version of cgroups.
    pub io_accounting: &'static str,
    /// What else it is given; all of them numbers.
    pub properties: Vec<(&'static str, u64)>,
}

/// The unit that is the cgroup of that absolute name; nothing for the root.
pub fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').next().filter(|name| !name.is_empty())
}

/// The slices that have to be there for this one, the outermost first and it last: their cgroups, and what to ask for.
/// Those around it are given nothing.
pub fn slices(version: CgroupVersion, of: &CgroupSettings) -> Vec<(String, Slice)> {
    let io_accounting = match version {
        CgroupVersion::V1 { .. } => "BlockIOAccounting",
        CgroupVersion::V2 { .. } => "IOAccounting",
    };
    let (mut cgroup, mut parent) = (String::new(), "-.slice");
    let mut slices = Vec::new();
    for name in of.name.split('/').filter(|part| !part.is_empty()) {
        cgroup.push('/');
        cgroup.push_str(name);
        let slice = Slice { name: name.into(), parent: parent.into(), io_accounting, properties: Vec::new() };
        slices.push((cgroup.clone(), slice));
        parent = name;
    }
    if let Some((_, own)) = slices.last_mut() {
        own.properties.clone_from(&of.properties);
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_stands_in_those_its_name_begins_with() {
        let settings = CgroupSettings {
            name: "/a.slice/a-kubepods.slice/a-kubepods-podu_1.slice".to_owned(),
            files: Vec::new(),
            properties: vec![("CPUWeight", 39)],
        };
        let v1 = slices(CgroupVersion::V1 { swap_controller: false }, &settings);
        let of: Vec<_> =
            v1.iter().map(|(cgroup, s)| (&**cgroup, &*s.name, &*s.parent, s.properties.len())).collect();
        let expected = [
            ("/a.slice", "a.slice", "-.slice", 0),
            ("/a.slice/a-kubepods.slice", "a-kubepods.slice", "a.slice", 0),
            (&*settings.name, "a-kubepods-podu_1.slice", "a-kubepods.slice", 1),
        ];
        assert_eq!(of, expected);
        assert_eq!(v1[0].1.io_accounting, "BlockIOAccounting");
        assert_eq!(
            slices(CgroupVersion::V2 { swap_controller: false }, &settings)[0].1.io_accounting,
            "IOAccounting"
        );
        assert_eq!((unit_of(&settings.name), unit_of("/")), (Some("a-kubepods-podu_1.slice"), None));
    }
}
