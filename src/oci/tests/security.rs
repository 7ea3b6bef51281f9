//! Privileges, seccomp, `AppArmor` and `SELinux`.

use super::*;

#[test]
fn a_privileged_container_is_not_confined() {
    let mut case = Case::new();
    case.sandbox.linux.as_mut().unwrap().security_context =
        Some(proto::LinuxSandboxSecurityContext { privileged: true, ..Default::default() });
    case.apparmor = Some(format!("{APPARMOR_PROFILE_NAME} (enforce)\n"));
    *case.context() = LinuxContainerSecurityContext {
        privileged: true,
        namespace_options: case.context().namespace_options.clone(),
        masked_paths: words("/proc/kcore"),
        readonly_paths: words("/proc/sys"),
        seccomp: Some(profile(ProfileType::RuntimeDefault, "")),
        apparmor: Some(profile(ProfileType::RuntimeDefault, "")),
        ..Default::default()
    };
    let spec = case.spec().unwrap();
    assert_eq!(spec.process.capabilities.bounding.len(), 41);
    assert!(spec.linux.seccomp.is_none() && spec.process.apparmor_profile.is_empty());
    assert!(spec.linux.masked_paths.is_empty() && spec.linux.readonly_paths.is_empty());
    assert!(spec.linux.namespaces.iter().all(|namespace| namespace.kind != "cgroup"));
    for at in [5, 6] {
        let options = &spec.mounts[at].options;
        assert!(options.contains(&"rw".into()) && !options.contains(&"ro".into()), "{:?}", spec.mounts[at]);
    }
    case.node.mountinfo = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
        2 1 0:2 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot,x"
        .into();
    let options = case.at("/mounts/6/options").to_string();
    assert!(options.ends_with(r#""relatime","rw","nsdelegate","memory_recursiveprot"]"#), "{options}");
    case.context().privileged = false;
    assert!(!case.at("/mounts/6/options").to_string().contains("nsdelegate"));
    assert_eq!(case.at("/linux/maskedPaths"), json!(["/proc/kcore"]));
    assert_eq!(case.at("/linux/readonlyPaths"), json!(["/proc/sys"]));
    assert_eq!(case.at("/process/apparmorProfile"), json!(APPARMOR_PROFILE_NAME));
}

fn profile(kind: ProfileType, name: &str) -> proto::SecurityProfile {
    proto::SecurityProfile { profile_type: kind.into(), localhost_ref: name.into() }
}

#[test]
fn seccomp_profiles() {
    let mut case = Case::new();
    let set = |case: &mut Case, kind, name: &str| case.context().seccomp = Some(profile(kind, name));
    assert_eq!(case.at("/linux/seccomp"), Value::Null);
    case.context().seccomp_profile_path = "unconfined".into();
    assert_eq!(case.at("/linux/seccomp"), Value::Null);
    case.context().seccomp_profile_path = "runtime/default".into();
    assert_eq!(case.at("/linux/seccomp/defaultAction"), json!("SCMP_ACT_ERRNO"));
    case.context().seccomp_profile_path = "odd".into();
    case.refused("\"odd\" is not runtime/default");
    set(&mut case, ProfileType::Unconfined, "");
    assert_eq!(case.at("/linux/seccomp"), Value::Null);
    set(&mut case, ProfileType::RuntimeDefault, "x");
    case.refused("localhost_ref is set");
    set(&mut case, ProfileType::Localhost, "/var/lib/smolet/seccomp/a.json");
    case.refused("not to be found");
    case.seccomp_profile = Some("{");
    case.refused("profile \"/var/lib/smolet/seccomp/a.json\": EOF");
    case.seccomp_profile = Some(
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": null, "syscalls": [
            {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5, "comment": "x", "args": [
                {"index": 1, "value": 18446744073709551615, "valueTwo": 2, "op": "SCMP_CMP_EQ"}]}]}"#,
    );
    assert_eq!(
        case.at("/linux/seccomp"),
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{
            "names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5,
            "args": [{"index": 1, "value": u64::MAX, "valueTwo": 2, "op": "SCMP_CMP_EQ"}]}]})
    );
    case.node.seccomp = false;
    case.refused("the kernel has no seccomp filters");
}

#[test]
fn apparmor_profiles() {
    use ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let whole = apparmor_profile(|_| true);
    assert!(whole.contains(&format!("\nprofile {APPARMOR_PROFILE_NAME} ")));
    assert_eq!(whole.matches("#include").count(), 2);
    let bare = apparmor_profile(|_| false);
    assert!(!bare.contains("#include") && bare.starts_with("@{PROC}=/proc/\n"), "{bare}");
    let both = "smolet-default (enforce)\nmine (complain)\n";
    for (loaded, asked, expected) in [
        (None, None, Ok("")),
        (None, Some((Unconfined, "")), Ok("")),
        (None, Some((RuntimeDefault, "")), Err("not enabled")),
        (None, Some((Localhost, "mine")), Err("not enabled")),
        (Some(both), None, Ok("smolet-default")),
        (Some(both), Some((RuntimeDefault, "")), Ok("smolet-default")),
        (Some(both), Some((Unconfined, "")), Ok("")),
        (Some(both), Some((Localhost, "mine")), Ok("mine")),
        (Some(both), Some((Localhost, "localhost/mine")), Ok("mine")),
        (Some(both), Some((Localhost, "min")), Err("no AppArmor profile \"min\"")),
        (Some(both), Some((Localhost, "")), Err("no AppArmor profile \"\"")),
        (Some(""), None, Ok("")),
        (Some(""), Some((RuntimeDefault, "")), Err("is not loaded")),
    ] {
        let mut case = Case::new();
        case.apparmor = loaded.map(str::to_owned);
        case.context().apparmor = asked.map(|(kind, name)| profile(kind, name));
        let may_want = asked.is_none_or(|(kind, _)| kind == RuntimeDefault);
        assert_eq!(may_want_default_apparmor(case.context()), may_want, "{asked:?}");
        match expected {
            Ok(expected) => assert_eq!(case.spec().unwrap().process.apparmor_profile, expected),
            Err(shown) => case.refused(shown),
        }
    }
    let mut case = Case::new();
    case.apparmor = Some(both.into());
    case.context().apparmor_profile = "localhost/mine".into();
    assert_eq!(case.at("/process/apparmorProfile"), json!("mine"));
}

#[test]
fn selinux_labels_are_those_that_are_given() {
    let mut case = Case::new();
    let spec = case.spec().unwrap();
    assert!(spec.process.selinux_label.is_empty() && spec.linux.mount_label.is_empty());
    case.selinux = Some(SelinuxLabels { process: "u:r:t:l".into(), mount: "u:r:f:l".into() });
    assert_eq!(case.at("/process/selinuxLabel"), json!("u:r:t:l"));
    assert_eq!(case.at("/linux/mountLabel"), json!("u:r:f:l"));
}
