//! Mounts, and what the OCI runtime lacks for them.

use super::*;

/// `DESTINATION OPTIONS` of the mounts that are bound.
fn bound(case: &Case) -> Vec<String> {
    let mounts = case.spec().unwrap().mounts.into_iter().filter(|mount| mount.kind == "bind");
    mounts
        .map(|mount| format!("{} {} {}", mount.destination, mount.source, mount.options.join(",")))
        .collect()
}

#[test]
fn mounts_are_sorted_and_replace_those_of_the_pod_and_the_system() {
    let mut case = Case::new();
    case.files = SandboxFiles {
        hostname: Some("/s/hostname".into()),
        hosts: Some("/s/hosts".into()),
        resolv_conf: Some("/s/resolv.conf".into()),
        shm: Some("/s/shm".into()),
    };
    case.config.mounts =
        vec![mount("/a/b/c", "/1"), mount("/etc/hosts/", "/2"), mount("/a", "/3"), mount("b", "/4")];
    case.image.volumes = words("/data /a /v/../w / /etc/hosts");
    let paths = image_volume_paths(&case.config, &case.image);
    assert_eq!(paths, ["/data", "/w"]);
    case.volumes = paths
        .into_iter()
        .map(|path| Volume { host_path: format!("/vol{path}"), container_path: path })
        .collect();
    assert_eq!(
        bound(&case),
        [
            "/a /3 rbind,rprivate,rw",
            "/b /4 rbind,rprivate,rw",
            "/data /vol/data rbind,rprivate,rw",
            "/w /vol/w rbind,rprivate,rw",
            "/etc/hosts /2 rbind,rprivate,rw",
            "/etc/hostname /s/hostname rbind,rprivate,rw",
            "/etc/resolv.conf /s/resolv.conf rbind,rprivate,rw",
            "/dev/shm /s/shm rbind,rprivate,rw",
            "/a/b/c /1 rbind,rprivate,rw",
        ]
    );
    case.context().readonly_rootfs = true;
    assert_eq!(case.at("/root/readonly"), json!(true));
    assert!(bound(&case).contains(&"/etc/hostname /s/hostname rbind,rprivate,ro".to_owned()));
    assert!(bound(&case).contains(&"/dev/shm /s/shm rbind,rprivate,rw".to_owned()));
    // With the machine's /dev nothing else is mounted below it.
    case.config.mounts.push(mount("/dev", "/dev"));
    case.files.shm = None;
    let destinations = case.spec().unwrap().mounts.into_iter().map(|mount| mount.destination);
    assert_eq!(destinations.filter(|path| path.starts_with("/dev")).collect::<Vec<_>>(), ["/dev"]);
}

#[test]
fn options_of_mounts() {
    use proto::MountPropagation::{PropagationBidirectional as Both, PropagationHostToContainer as Slave};
    type Change = fn(&mut proto::Mount);
    type Row<'a> = (Change, Result<(&'a str, &'a str), &'a str>);
    let rows: [Row<'_>; 11] = [
        (|m| m.readonly = true, Ok(("ro", ""))),
        (|m| m.propagation = Slave.into(), Ok(("rslave", "rslave"))),
        (|m| m.propagation = Both.into(), Ok(("rshared", "rshared"))),
        (|m| m.propagation = 8, Err("no propagation has the number 8")),
        (|m| (m.readonly, m.recursive_read_only) = (true, true), Ok(("rro", ""))),
        (|m| m.recursive_read_only = true, Err("cannot be writable and recursively")),
        (
            |m| (m.readonly, m.recursive_read_only, m.propagation) = (true, true, Slave.into()),
            Err("needs private propagation"),
        ),
        (|m| m.host_path = "data".into(), Err("is not absolute")),
        (|m| m.container_path = "/x/..".into(), Err("take the place of the root file system")),
        (|m| m.image = Some(proto::ImageSpec { image: "i".into(), ..Default::default() }), Ok(("ro", ""))),
        (|m| m.host_path = "/private/x".into(), Ok(("rprivate", ""))),
    ];
    for (change, expected) in rows {
        let mut case = Case::new();
        case.node.mountinfo = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
            2 1 8:1 / /private rw - ext4 /dev/a rw\n3 1 8:1 / /sl\\040ave rw master:1 - ext4 /dev/a rw"
            .into();
        case.config.mounts = vec![mount("/data", "/data")];
        change(&mut case.config.mounts[0]);
        match expected {
            Ok((option, propagation)) => {
                let bound = bound(&case);
                assert!(bound[0].split([' ', ',']).any(|one| one == option), "{bound:?}");
                assert_eq!(case.spec().unwrap().linux.rootfs_propagation, propagation);
            }
            Err(shown) => case.refused(shown),
        }
    }
}

#[test]
fn sources_that_do_not_propagate() {
    use proto::MountPropagation::{PropagationBidirectional as Both, PropagationHostToContainer as Slave};
    for (source, propagation, shown) in [
        (
            "/private/x",
            Slave,
            Some("/private/x is mounted on /private, which is not a shared or slave mount"),
        ),
        ("/private", Both, Some("is not a shared mount; run mount --make-rshared /private")),
        ("/sl ave/x", Slave, None),
        ("/sl ave/x", Both, Some("/sl ave")),
        ("/privateer", Both, None),
    ] {
        let mut case = Case::new();
        case.node.mountinfo = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
            2 1 8:1 / /private rw - ext4 /dev/a rw\n3 1 8:1 / /sl\\040ave rw master:1 - ext4 /dev/a rw"
            .into();
        case.config.mounts = vec![proto::Mount { propagation: propagation.into(), ..mount("/data", source) }];
        match shown {
            Some(shown) => case.refused(shown),
            None => drop(case.spec().unwrap()),
        }
    }
}

#[test]
fn what_the_oci_runtime_lacks_is_refused() {
    let mut case = Case::new();
    case.node.runtime.recursive_read_only = false;
    case.node.runtime.id_mapped_mounts = false;
    case.config.mounts =
        vec![proto::Mount { readonly: true, recursive_read_only: true, ..mount("/a", "/a") }];
    case.refused("recursive_read_only is not supported here");
    let uid_mappings = vec![proto::IdMapping { host_id: 5, container_id: 0, length: 9 }];
    case.config.mounts = vec![proto::Mount { uid_mappings, ..mount("/a", "/a") }];
    case.refused("uid_mappings is not supported here");
    case.node.runtime.id_mapped_mounts = true;
    assert_eq!(case.at("/mounts/7/uidMappings"), json!([{"containerID": 0, "hostID": 5, "size": 9}]));
}
