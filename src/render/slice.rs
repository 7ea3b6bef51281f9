//! The systemd units for a pod's cgroup settings, with the systemd cgroup driver. PURE.
//! Follows libcontainer's `systemd/v1.go` and `v2.go` (`Apply`, `genV1ResourcesProperties`, `genV2ResourcesProperties`).
//!
//! Settings for which systemd has no property (huge pages) are written to the cgroup's files directly, as libcontainer does.

use super::cgroup_settings::CgroupSettings;
use super::node::CgroupVersion;

/// A slice unit to request from systemd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The unit's name, `kubepods-burstable.slice`.
    pub name: Box<str>,
    /// The parent slice.
    pub parent: Box<str>,
    /// The property that enables I/O accounting: systemd has one for each cgroup version.
    pub io_accounting: &'static str,
    /// Its other properties; all numbers.
    pub properties: Vec<(&'static str, u64)>,
}

/// The unit of the cgroup with that absolute name; `None` for the root.
pub fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').next().filter(|name| !name.is_empty())
}

/// The slices that must exist for this one, the outermost first and itself last: their cgroups, and the units to request.
/// Parent slices get no properties.
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
