//! Namespaces of a test's own: what it changes of the network ends with its process.

use std::process::Command;

/// Runs the test of that name, with its module's, once more in a network namespace of its own, which ends with the process. True inside.
pub fn in_namespace(test: &str) -> bool {
    in_namespaces(test, &["--net"])
}

/// The same with other namespaces besides, as flags of `unshare`.
pub fn in_namespaces(test: &str, namespaces: &[&str]) -> bool {
    const INSIDE: &str = "SMOLET_TEST_IN_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        return true;
    }
    let exe = std::env::current_exe().unwrap();
    let ended = Command::new("unshare")
        .args(namespaces)
        .args([exe.to_str().unwrap(), "--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare of util-linux is there");
    assert!(ended.success(), "{test}, in a network namespace (needs root): {ended}");
    false
}

pub fn ip(arguments: &str) {
    let ended = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is there");
    assert!(ended.success(), "ip {arguments}: {ended}");
}

/// The namespace has this address and a default route, as from DHCP.
pub fn lease(address: &str, router: &str) {
    ip(&format!("address add {address}/24 dev up0"));
    ip(&format!("route replace default via {router} dev up0"));
}

pub fn make_link() {
    ip("link add up0 type veth peer name up1");
    ip("link set up0 up");
    ip("link set up1 up");
}
