//! Settings of the agent's own process, and the check for swap: `oomScoreAdj`, `maxOpenFiles`, `failSwapOn`; no core dump; what
//! containers inherit. I/O, once at start.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use crate::config::Config;

/// As in containerd's unit; the kernel's own bound (`fs.nr_open`) is the same.
const OPEN_FILES_OF_CONTAINERS: u64 = 1 << 20;

/// Makes the process not dumpable, before it has read any secret: its memory has Secrets, tokens and the node's key. There is
/// no core dump of it at any limit and `core_pattern` (a pipe handler gets a dump at any limit), and only a process with
/// `CAP_SYS_PTRACE` can read its memory. Programs that it executes are dumpable as usual.
pub(crate) fn forbid_dumps() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log::warn!("disabling core dumps failed: {error}; a core dump of the agent would contain Secrets");
    }
}

/// Applies the settings to the process. A setting that is not permitted is logged, as by the kubelet (`RunKubelet`).
///
/// # Errors
/// A message, when the node has swap and `failSwapOn` is set (`NewContainerManager`).
pub(crate) fn settle(config: &Config) -> Result<(), String> {
    may_run(config, &std::fs::read_to_string("/proc/swaps").unwrap_or_default())?;
    if let Some(adj) = config.process.oom_score_adj
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", adj.to_string())
    {
        log::warn!("oomScoreAdj: setting {adj} failed: {error}; the agent's OOM score is unchanged");
    }
    if let Some(files) = config.process.open_files {
        let maximum = getrlimit(Resource::Nofile).maximum.map_or(files, |maximum| maximum.max(files));
        // Raising the hard limit needs a capability, lowering it does not.
        let both = Rlimit { current: Some(files), maximum: Some(maximum) };
        if let Err(error) = setrlimit(Resource::Nofile, both) {
            log::warn!("maxOpenFiles: setting {files} failed: {error}; the agent's limit is unchanged");
        }
    }
    Ok(())
}

/// Raises the limits that containers of the embedded runtime have from it to those that they have from containerd's unit, or, where
/// that is not permitted, to the hard limit: an init system that knows of the agent alone gives it less. There is no core dump of the
/// agent at any limit.
pub(crate) fn raise_limits_of_containers() {
    for (resource, most) in
        [(Resource::Nofile, Some(OPEN_FILES_OF_CONTAINERS)), (Resource::Nproc, None), (Resource::Core, None)]
    {
        let hard = getrlimit(resource).maximum;
        let maximum = hard.zip(most).map(|(hard, most)| hard.max(most));
        let raised = setrlimit(resource, Rlimit { current: maximum, maximum });
        if let Err(error) = raised.or_else(|_| setrlimit(resource, Rlimit { current: hard, maximum: hard })) {
            log::warn!("limit {resource:?}: raising it failed: {error}; containers have the agent's");
        }
    }
}

/// Whether the agent may run on a node with this `/proc/swaps`.
fn may_run(config: &Config, swaps: &str) -> Result<(), String> {
    if config.fail_swap_on && is_swap_on(swaps) {
        return Err("failSwapOn: the node has swap; switch it off (swapoff -a, and its line in /etc/fstab), or set failSwapOn to \
                    false"
            .to_owned());
    }
    Ok(())
}

/// `/proc/swaps` has a heading and a line for each swap (`swap.IsSwapOn`).
fn is_swap_on(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    #[test]
    fn swap_is_on_when_the_kernel_lists_one() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!is_swap_on(heading));
        assert!(!is_swap_on(""));
        let swaps = format!("{heading}/dev/zram0 partition 524284 0 100\n");
        assert!(is_swap_on(&swaps));
        let default = Config::load(&Flags::default(), None).expect("defaults are valid");
        let strict = Config { fail_swap_on: true, ..default.clone() };
        assert!(may_run(&default, &swaps).is_ok() && may_run(&strict, heading).is_ok());
        let why = may_run(&strict, &swaps).expect_err("it has swap");
        assert!(why.starts_with("failSwapOn: the node has swap; switch it off"), "{why}");
    }
}
