//! Devices of CDI.

use super::*;

const CAMERA: &str = r"
cdiVersion: 0.6.0
kind: vendor.com/camera
containerEdits:
  env: [VENDOR=1]
devices:
- name: front
  containerEdits:
    env: ['CAMERA=front', 'PATH=/cam']
    deviceNodes:
    - path: /dev/cam
      hostPath: /dev/video0
      permissions: r
    - {path: /dev/made, type: c, major: 9, minor: 3, fileMode: 384, uid: 7}
    mounts:
    - {hostPath: /opt/cam, containerPath: /cam/lib, options: [ro, nosuid, bind]}
    hooks:
    - {hookName: createContainer, path: /usr/bin/ldcache, args: [ldcache, update], timeout: 5}
    additionalGids: [44]
- name: back
  containerEdits: {env: [CAMERA=back]}
";

#[test]
fn cdi_devices_edit_the_spec() {
    let mut case = Case::new();
    case.cdi = vec![("/etc/cdi/camera.yaml", CAMERA.into())];
    case.devices = vec![device("/dev/video0", DeviceKind::Character, 81, 0)];
    case.image.user = "app".into();
    case.config.cdi_devices = vec![proto::CdiDevice { name: "vendor.com/camera=front".into() }];
    case.config.mounts = vec![mount("/cam/lib/x/y", "/x")];
    assert_eq!(case.at("/process/env"), json!(["PATH=/cam", "HOSTNAME=pod", "VENDOR=1", "CAMERA=front"]));
    assert_eq!(
        case.at("/linux/devices"),
        json!([
            {"type": "c", "path": "/dev/cam", "major": 81, "minor": 0, "fileMode": 432, "uid": 1000, "gid": 1001},
            {"type": "c", "path": "/dev/made", "major": 9, "minor": 3, "fileMode": 384, "uid": 7, "gid": 1001},
        ])
    );
    assert_eq!(
        case.at("/linux/resources/devices/1"),
        json!({"allow": true, "type": "c", "major": 81, "minor": 0, "access": "r"})
    );
    assert_eq!(case.at("/linux/resources/devices/2/access"), json!("rwm"));
    assert_eq!(
        case.at("/hooks"),
        json!({"createContainer": [{"path": "/usr/bin/ldcache", "args": ["ldcache", "update"], "timeout": 5}]})
    );
    assert_eq!(case.at("/process/user/additionalGids"), json!([10, 1001, 44]));
    let destinations: Vec<_> =
        case.spec().unwrap().mounts.into_iter().map(|mount| mount.destination).collect();
    assert_eq!(destinations.last().unwrap(), "/cam/lib/x/y");
    assert!(destinations.contains(&"/cam/lib".to_owned()));
    // By an annotation, as JSON, from the later file; what is for all devices comes once.
    let json = CAMERA_JSON.replace("OTHER", "later");
    case.cdi.push(("/var/run/cdi/camera.json", json));
    case.config.annotations =
        [("cdi.k8s.io/x".to_owned(), "vendor.com/camera=back,vendor.com/camera=front".to_owned())].into();
    case.config.cdi_devices.clear();
    assert_eq!(case.at("/process/env"), json!(["PATH=/cam", "HOSTNAME=pod", "CAMERA=front", "VENDOR=1"]));
}

const CAMERA_JSON: &str = r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/camera", "devices": [
    {"name": "back", "containerEdits": {"env": ["CAMERA=OTHER"]}}]}"#;

#[test]
fn cdi_files_and_devices_that_cannot_be() {
    for (file, shown) in [
        ("", "has the device \"v/c=d\"; see /etc/cdi and /var/run/cdi; /etc/cdi/x: it is empty"),
        ("a: [", "/etc/cdi/x: line"),
        ("cdiVersion: 2.0.0\nkind: v/c", "cdiVersion \"2.0.0\" is not known"),
        ("cdiVersion: 0.6.0\nkind: c", "kind \"c\" is not VENDOR/CLASS"),
        ("cdiVersion: 0.6.0\nkind: v/c", "no CDI specification of the node has the device"),
        ("cdiVersion: 0.6.0\nkind: v/c\ndevices: 5", "/etc/cdi/x: "),
        (
            "cdiVersion: 0.6.0\nkind: v/c\ndevices: [{name: d, containerEdits: {env: [A]}}]",
            "is not NAME=VALUE",
        ),
        (
            "cdiVersion: 0.6.0\nkind: v/c\ndevices: [{name: d, containerEdits: {deviceNodes: [{path: /dev/no}]}}]",
            "/dev/no is no device of this machine",
        ),
        (
            "cdiVersion: 0.6.0\nkind: v/c\ndevices: [{name: d, containerEdits: {hooks: [{hookName: x, path: /y}]}}]",
            "there is no hook \"x\"",
        ),
        (
            "cdiVersion: 1.1.0\nkind: v/c\ndevices: [{name: d, containerEdits: {netDevices: [{hostInterfaceName: e}]}}]",
            "network device \"e\"",
        ),
    ] {
        let mut case = Case::new();
        case.config.cdi_devices = vec![proto::CdiDevice { name: "v/c=d".into() }];
        case.cdi = vec![("/etc/cdi/x", file.into())];
        case.refused(shown);
    }
}
