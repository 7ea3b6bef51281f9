//! Our seccomp profile, `RuntimeDefault`: what containerd's default profile (`contrib/seccomp/seccomp_default.go`, 2.2) allows, as
//! tables. PURE.
//!
//! Every other system call fails with EPERM, and `clone3` without `CAP_SYS_ADMIN` with ENOSYS, upon which the C libraries fall back to
//! `clone`, whose flags a filter can see. Names that the OCI runtime's libseccomp does not know are passed over by it.

use std::borrow::Cow;

use super::runtime_spec::{Seccomp, SyscallArg, Syscalls};

const ALLOW: &str = "SCMP_ACT_ALLOW";
const ERRNO: &str = "SCMP_ACT_ERRNO";
const ENOSYS: u32 = 38;

/// The processor that the containers run on. Others have their own calls alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    Amd64,
    Arm64,
    Arm,
    Riscv64,
    Other,
}

impl Architecture {
    const OURS: Self = if cfg!(target_arch = "x86_64") {
        Self::Amd64
    } else if cfg!(target_arch = "aarch64") {
        Self::Arm64
    } else if cfg!(target_arch = "arm") {
        Self::Arm
    } else if cfg!(target_arch = "riscv64") {
        Self::Riscv64
    } else {
        Self::Other
    };

    /// Instruction sets whose calls are filtered: the machine's, and older ones that it runs too. A call of another one kills the
    /// process.
    fn filtered(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            Self::Arm64 => &["SCMP_ARCH_ARM", "SCMP_ARCH_AARCH64"],
            Self::Riscv64 => &["SCMP_ARCH_RISCV64"],
            Self::Arm | Self::Other => &[],
        }
    }

    /// Calls that this architecture has in addition.
    fn own_calls(self) -> &'static str {
        match self {
            Self::Amd64 => "arch_prctl modify_ldt",
            Self::Arm | Self::Arm64 => {
                "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2"
            }
            Self::Riscv64 => "riscv_flush_icache riscv_hwprobe",
            Self::Other => "",
        }
    }
}

/// For every container. `ptrace` and those that read another process are among them: since Linux 4.8 they cannot be used to go
/// around the filter. `io_uring_*`, `keyctl`, `userfaultfd`, `kexec_*`, `swapon` and the like are for nobody.
const BASE: &str = include_str!("seccomp_calls.txt");

/// Since Linux 4.8 (see [`BASE`]).
const TRACING: &str = "process_vm_readv process_vm_writev ptrace";

/// For containers with a capability in their bounding set.
const BY_CAPABILITY: [(&str, &str); 13] = [
    ("CAP_BPF", "bpf"),
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    ("CAP_PERFMON", "perf_event_open"),
    (
        "CAP_SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount \
         open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module finit_module init_module"),
    ("CAP_SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("CAP_SYS_PACCT", "acct"),
    ("CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("CAP_SYS_RAWIO", "ioperm iopl"),
    ("CAP_SYS_TIME", "clock_settime clock_settime64 settimeofday stime"),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
];
/// `syslog` alone.
const SYSLOG: (&str, &str) = ("CAP_SYSLOG", "syslog");

/// `CLONE_NEWNS`, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: without `CAP_SYS_ADMIN` nobody makes a namespace.
const CLONE_NAMESPACES: u64 =
    0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000;

/// `PER_LINUX`, `PER_LINUX32`, `UNAME26` with both, and the question for the current one.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

const AF_ALG: u64 = 38;
const AF_VSOCK: u64 = 40;
/// All address families but the kernel's cryptography and the hypervisor's. Three rules of one condition each: the OCI runtimes
/// make several conditions on one argument into alternatives.
const SOCKETS: [(&str, u64); 3] =
    [("SCMP_CMP_LT", AF_ALG), ("SCMP_CMP_EQ", AF_ALG + 1), ("SCMP_CMP_GT", AF_VSOCK)];

/// The profile for a process with this bounding set.
pub(super) fn default_profile(bounding: &[Cow<'static, str>]) -> Seccomp {
    profile_on(Architecture::OURS, bounding)
}

fn profile_on(architecture: Architecture, bounding: &[Cow<'static, str>]) -> Seccomp {
    let has = |capability: &str| bounding.iter().any(|held| held == capability);
    let mut syscalls = vec![allowed([BASE, TRACING, architecture.own_calls()])];
    let of_capabilities = BY_CAPABILITY.iter().chain([&SYSLOG]).filter(|(capability, _)| has(capability));
    syscalls.extend(of_capabilities.map(|(_, calls)| allowed([calls, "", ""])));
    syscalls.extend(SOCKETS.map(|(op, family)| allowed_where("socket", 0, family, op)));
    syscalls.extend(PERSONALITIES.map(|persona| allowed_where("personality", 0, persona, "SCMP_CMP_EQ")));
    if !has("CAP_SYS_ADMIN") {
        // With the value two, 0: none of these flags.
        syscalls.push(allowed_where("clone", 0, CLONE_NAMESPACES, "SCMP_CMP_MASKED_EQ"));
        syscalls.push(Syscalls {
            names: vec!["clone3".into()],
            action: ERRNO.into(),
            errno_ret: Some(ENOSYS),
            args: Vec::new(),
        });
    }
    Seccomp {
        default_action: ERRNO.into(),
        default_errno_ret: None,
        architectures: super::borrowed(architecture.filtered()),
        flags: Vec::new(),
        listener_path: None,
        listener_metadata: None,
        syscalls,
    }
}

fn allowed(calls: [&'static str; 3]) -> Syscalls {
    let names = calls.into_iter().flat_map(str::split_ascii_whitespace).map(Cow::Borrowed).collect();
    Syscalls { names, action: ALLOW.into(), errno_ret: None, args: Vec::new() }
}

fn allowed_where(name: &'static str, index: u32, value: u64, op: &'static str) -> Syscalls {
    let args = vec![SyscallArg { index, value, value_two: 0, op: op.into() }];
    Syscalls { names: vec![name.into()], action: ALLOW.into(), errno_ret: None, args }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls that are allowed whatever their arguments.
    fn calls(architecture: Architecture, capabilities: &[&'static str]) -> Vec<Cow<'static, str>> {
        let bounding = super::super::borrowed(capabilities);
        let rules = profile_on(architecture, &bounding).syscalls;
        let open = rules.into_iter().filter(|rule| rule.args.is_empty() && rule.action == ALLOW);
        open.flat_map(|rule| rule.names).collect()
    }

    #[test]
    fn calls_by_capability_and_architecture() {
        use Architecture::{Amd64, Arm, Arm64, Other};
        for (architecture, capability, call, is_allowed) in [
            (Amd64, "", "openat", true),
            (Amd64, "", "ptrace", true),
            (Amd64, "", "mount", false),
            (Amd64, "CAP_SYS_ADMIN", "mount", true),
            (Amd64, "CAP_SYS_ADMIN", "clone3", true),
            (Amd64, "", "clone3", false),
            (Amd64, "", "clone", false),
            (Amd64, "", "socket", false),
            (Amd64, "", "keyctl", false),
            (Amd64, "CAP_SYS_ADMIN", "keyctl", false),
            (Amd64, "", "io_uring_setup", false),
            (Amd64, "", "chroot", false),
            (Amd64, "CAP_SYS_CHROOT", "chroot", true),
            (Amd64, "CAP_SYS_TIME", "clock_settime64", true),
            (Amd64, "CAP_SYSLOG", "syslog", true),
            (Amd64, "CAP_BPF", "bpf", true),
            (Amd64, "", "arch_prctl", true),
            (Arm64, "", "arch_prctl", false),
            (Arm64, "", "cacheflush", true),
            (Arm, "", "arm_fadvise64_64", true),
            (Other, "", "cacheflush", false),
        ] {
            let calls = calls(architecture, &[capability]);
            assert_eq!(calls.contains(&call.into()), is_allowed, "{architecture:?} {capability} {call}");
        }
    }

    #[test]
    fn no_name_is_there_twice() {
        let mut calls = calls(Architecture::Amd64, &[]);
        let count = calls.len();
        calls.sort();
        calls.dedup();
        assert_eq!((count, calls.len()), (BASE_CALLS + 5, BASE_CALLS + 5));
    }
    const BASE_CALLS: usize = 363;

    #[test]
    fn clone_without_namespaces_for_those_who_are_no_administrators() {
        let rules = |capabilities: &[&'static str]| {
            let rules = profile_on(Architecture::Arm, &super::super::borrowed(capabilities)).syscalls;
            rules.into_iter().filter(|rule| rule.names[0].starts_with("clone")).collect::<Vec<_>>()
        };
        assert!(rules(&["CAP_SYS_ADMIN"]).is_empty());
        let [clone, clone3] = &rules(&[])[..] else { panic!() };
        assert_eq!((clone.args[0].value, clone.args[0].value_two, &*clone.action), (2_114_060_288, 0, ALLOW));
        assert_eq!((&*clone3.action, clone3.errno_ret), (ERRNO, Some(ENOSYS)));
    }
}
