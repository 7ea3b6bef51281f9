//! The kubelet's flags for fields of the KubeletConfiguration, removed from a command line before it is parsed: `--max-pods=50`,
//! `--max-pods 50`, and switches without a value (`AddKubeletConfigFlags`). They are known from the table of the fields.

use std::ffi::OsString;

use crate::config::fields;

/// The remaining arguments, and the flags with their values. `is_own` is true for smolet's own flags.
pub(super) fn split(
    args: impl Iterator<Item = OsString>,
    is_own: impl Fn(&str) -> bool,
) -> (Vec<OsString>, Vec<(String, String)>) {
    let (mut left, mut taken) = (Vec::new(), Vec::new());
    let mut args = args;
    while let Some(arg) = args.next() {
        let given = arg.to_str().and_then(|text| text.strip_prefix("--"));
        let (name, value) = match given.map(|given| (given, given.split_once('='))) {
            Some((_, Some((name, value)))) => (name, Some(value.to_owned())),
            Some((name, None)) => (name, None),
            None => ("", None),
        };
        match fields::of_flag(name).filter(|field| !is_own(field.flag)) {
            None => {
                let ends = given == Some("");
                left.push(arg);
                if ends {
                    left.extend(args.by_ref());
                }
            }
            Some(field) => {
                let mut next = || args.next().map(|next| next.to_string_lossy().into_owned());
                let value = value.or_else(|| if field.is_switch() { None } else { next() });
                taken.push((field.flag.to_owned(), value.unwrap_or_default()));
            }
        }
    }
    (left, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_flags_are_taken_off_and_smolets_are_left() {
        let args = [
            "smolet",
            "run",
            "--max-pods=50",
            "--manifests",
            "/m",
            "--cluster-dns",
            "10.0.0.10",
            "--rotate-certificates",
            "--fail-swap-on=false",
            "--cgroup-driver",
            "systemd",
            "--eviction-hard=memory.available<5%",
            "--unknown=1",
            "--",
            "--max-pods=1",
        ];
        let own = |flag: &str| flag == "cgroup-driver";
        let (left, taken) = split(args.into_iter().map(OsString::from), own);
        let wanted = [
            "smolet",
            "run",
            "--manifests",
            "/m",
            "--cgroup-driver",
            "systemd",
            "--unknown=1",
            "--",
            "--max-pods=1",
        ];
        assert_eq!(left, wanted);
        let taken: Vec<(&str, &str)> = taken.iter().map(|(flag, value)| (&**flag, &**value)).collect();
        let wanted = [
            ("max-pods", "50"),
            ("cluster-dns", "10.0.0.10"),
            ("rotate-certificates", ""),
            ("fail-swap-on", "false"),
            ("eviction-hard", "memory.available<5%"),
        ];
        assert_eq!(taken, wanted);
    }
}
