//! The kernel settings of a node (kubelet `setupKernelTunables`): memory overcommit, no panic on OOM, reboot on a panic or an
//! oops, and enough keys for many containers. I/O, small; blocking.

pub mod network;

use std::fs;
use std::io;
use std::path::Path;

/// A setting below `/proc/sys`, and its required value.
const TUNABLES: [(&str, u64); 6] = [
    ("kernel/keys/root_maxbytes", 25_000_000),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
];

/// A setting with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// Its `sysctl` name, `vm.overcommit_memory`.
    pub name: String,
    /// The present value.
    pub actual: u64,
    /// The kubelet's value.
    pub wanted: u64,
}

/// Settings below `root`, `/proc/sys`, that differ from the kubelet's. One that this kernel does not have is left out.
pub fn differing(root: &Path) -> Vec<Differing> {
    let differs = |(path, wanted): (&str, u64)| {
        let actual = fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()?;
        (actual != wanted).then(|| Differing { name: path.replace('/', "."), actual, wanted })
    };
    TUNABLES.into_iter().filter_map(differs).collect()
}

/// Sets them, or with `protect` (`protectKernelDefaults`) only checks them.
///
/// # Errors
/// With `protect`: one message that names the settings that differ, and the remedy.
pub fn set_up(root: &Path, protect: bool) -> Result<(), String> {
    let differing = differing(root);
    if protect && !differing.is_empty() {
        let all = differing.iter().map(|Differing { name, actual, wanted }| {
            format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}")
        });
        let (all, mend) = (all.collect::<Vec<_>>().join("; "), command(&differing));
        return Err(format!("protectKernelDefaults: {all}: run {mend}, or leave the field out"));
    }
    for Differing { name, actual, wanted } in &differing {
        match set(&root.join(name.replace('.', "/")), *wanted) {
            Ok(()) => log::info!("kernel setting {name}: was {actual}, set to {wanted}"),
            // The kubelet does not start then: here pods run all the same, as on a node without the setting.
            Err(error) => {
                log::warn!("kernel setting {name}: is {actual}, setting it to {wanted} failed: {error}");
            }
        }
    }
    Ok(())
}

/// The command that sets them.
pub fn command(differing: &[Differing]) -> String {
    let settings = differing.iter().map(|of| format!(" {}={}", of.name, of.wanted));
    format!("sysctl -w{}", settings.collect::<String>())
}

fn set(path: &Path, value: u64) -> io::Result<()> {
    io::Write::write_all(&mut fs::File::options().write(true).open(path)?, value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_set_or_refused() {
        let root = std::env::temp_dir().join(format!("smolet-tunables-{}", std::process::id()));
        for (path, value) in TUNABLES {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), format!("{value}\n")).unwrap();
        }
        assert_eq!((differing(&root), set_up(&root, true)), (Vec::new(), Ok(())));
        fs::write(root.join("kernel/panic"), "0\n").unwrap();
        fs::write(root.join("vm/overcommit_memory"), "2\n").unwrap();
        fs::remove_file(root.join("kernel/panic_on_oops")).unwrap();
        assert_eq!(
            set_up(&root, true),
            Err("protectKernelDefaults: invalid kernel flag: kernel.panic, expected value: 10, actual value: 0; invalid kernel \
                 flag: vm.overcommit_memory, expected value: 1, actual value: 2: run sysctl -w kernel.panic=10 \
                 vm.overcommit_memory=1, or leave the field out"
                .to_owned())
        );
        assert_eq!(fs::read_to_string(root.join("kernel/panic")).unwrap(), "0\n", "only looked at");
        assert_eq!(set_up(&root, false), Ok(()));
        assert_eq!(differing(&root), Vec::new());
        fs::remove_dir_all(root).unwrap();
    }
}
