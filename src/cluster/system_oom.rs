//! Parses the kernel's log records about processes that it killed because the machine was out of memory (kubelet `oomWatcher`,
//! cAdvisor `oomparser`). PURE.

/// The event's message for a record of `/dev/kmsg`; `None`: it is not an OOM kill, or one by a container's own limit.
///
/// `4,885,1234,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=b,pid=7,uid=0`
pub fn system_oom(record: &str) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    // Facility 0 is the kernel's own. Records of other facilities are written by processes.
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let killed = text.lines().next()?.strip_prefix("oom-kill:").filter(|_| priority < 8)?;
    let of_machine = killed.contains(",global_oom,") || killed.contains(",task_memcg=/,");
    let (_, task) = killed.split_once(",task=").filter(|_| of_machine)?;
    // A task's name may contain commas.
    let (name, rest) = task.rsplit_once(",pid=")?;
    let pid: u32 = rest.split(',').next()?.parse().ok()?;
    Some(format!("System OOM encountered, victim process: {name}, pid: {pid}"))
}

/// Number of OOM kills for whatever limit, from `/proc/vmstat`.
pub fn oom_kills(vmstat: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_of_the_machines_shortage_are_told_and_those_of_a_limit_not() {
        const GLOBAL: &str =
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,";
        const LIMIT: &str = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/a,";
        let message = |name: &str| format!("System OOM encountered, victim process: {name}, pid: 77");
        let end = "pid=77,uid=0\n SUBSYSTEM=x\n";
        for (record, expected) in [
            (
                format!("4,885,1234,-;{GLOBAL}task_memcg=/kubepods/a,task=stress,{end}"),
                Some(message("stress")),
            ),
            (format!("4,885,1234,-;{GLOBAL}task_memcg=/,task=a, pid=b,{end}"), Some(message("a, pid=b"))),
            (format!("4,885,1234,-;{LIMIT}task_memcg=/kubepods/a,task=stress,{end}"), None),
            (format!("12,885,1234,-;{GLOBAL}task_memcg=/,task=stress,{end}"), None),
            ("4,885,1234,-;Out of memory: Killed process 77 (stress)".to_owned(), None),
            (format!("4,885,1234,-;{GLOBAL}task_memcg=/,task=stress"), None),
            (String::new(), None),
        ] {
            assert_eq!(system_oom(&record), expected, "{record}");
        }
        assert_eq!(oom_kills("nr_free_pages 1\noom_kill 12\nthp 1\n"), Some(12));
        assert_eq!(oom_kills("nr_free_pages 1\n"), None);
    }
}
