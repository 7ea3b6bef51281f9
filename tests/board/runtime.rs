//! What a board has below the agent: Debian's containerd, or with `SMOLET_BOARD_RUNTIME=embedded` no containerd but crun alone.

use crate::board::{Board, Container};

/// The containers are run by smolet itself.
pub fn is_embedded() -> bool {
    std::env::var_os("SMOLET_BOARD_RUNTIME").is_some_and(|runtime| runtime == "embedded")
}

/// The kernel confines with SELinux in the place of AppArmor.
pub fn has_selinux() -> bool {
    std::env::var_os("SELINUX").is_some_and(|value| !value.is_empty())
}

/// After the package is installed, as docs/embedded.md says; until then the node is not ready, and says so. The embedded runtime is the
/// default where no other one is.
pub fn permit(board: &Board) {
    if !is_embedded() {
        return;
    }
    board.wait_for("the reason why the node is not ready", 60, || {
        board
            .run("systemctl show --value -p StatusText smolet")
            .contains("is denied to make namespaces")
            .then_some(())
    });
    let said = board.run("smolet doctor || true");
    assert!(
        said.contains("smolet's service is denied CAP_")
            && !said.lines().any(|line| line.starts_with("0 problems")),
        "{said}"
    );
    board.run(
        "install -D -m 644 /usr/share/smolet/systemd/embedded.conf /etc/systemd/system/smolet.service.d/embedded.conf && \
         systemctl daemon-reload && systemctl restart smolet",
    );
}

/// Restarts what runs the containers, and the agent.
pub fn restart(board: &Board) {
    board.run(if is_embedded() { "systemctl restart smolet" } else { "systemctl restart containerd smolet" });
}

/// The first process of a container that runs. crun has it in a cgroup below that of the driver systemd.
pub fn pid_of(board: &Board, id: &str) -> String {
    board.run(&format!("cat $(find /sys/fs/cgroup -path '*{id}*' -name cgroup.procs) | sort -n | head -n 1"))
}

/// Ends a container's first process, behind the agent's back.
pub fn kill(board: &Board, container: &Container) {
    let pid = pid_of(board, &container.id);
    board.run(&format!("kill -KILL {pid}"));
}

/// A container's cgroup of the driver systemd, within its pod's.
pub fn scope(id: &str) -> String {
    let prefix = if is_embedded() { "smolet" } else { "cri-containerd" };
    format!("{prefix}-{id}.scope")
}

/// The runtime's own profile of AppArmor.
pub fn apparmor_profile() -> &'static str {
    if is_embedded() { "smolet-default" } else { "cri-containerd.apparmor.d" }
}

/// Processes of a runtime, for its proportional set size.
pub fn processes() -> &'static str {
    if is_embedded() { "smolet-monitor" } else { "containerd containerd-shim" }
}

/// Prints how many sandboxes, network namespaces and addresses there are, a line each.
pub fn counts() -> &'static str {
    if is_embedded() {
        "echo sandboxes $(ls /var/lib/smolet/runtime/sandboxes | wc -l); \
         echo namespaces $(findmnt -n -o TARGET -t nsfs | grep -c '/net$'); \
         echo addresses $(find /run/smolet/runtime/cni -name '10.87.*' | wc -l)"
    } else {
        "echo sandboxes $(ctr -n k8s.io containers ls | grep -c pause); \
         echo namespaces $(ls /run/netns | wc -l); \
         echo addresses $(ls /var/lib/cni/networks/pods | grep -c '^10\\.')"
    }
}

/// Where the layers of images are, each with its files in `fs`.
pub fn layers() -> &'static str {
    if is_embedded() {
        "/var/lib/smolet/runtime/images/layers"
    } else {
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
    }
}

/// Has what nothing refers to any more removed: with containerd's next garbage collection, which the end of a lease brings.
pub fn collect_layers(board: &Board) {
    if !is_embedded() {
        board.run("ctr -n k8s.io leases create --id board >/dev/null && ctr -n k8s.io leases delete --sync board >/dev/null");
    }
}

/// A manifest whose images have stand-ins: the embedded runtime takes none for an image with a digest, which it verifies.
pub fn with_stand_ins(manifest: &str) -> String {
    match manifest.split_once("@sha256:").filter(|_| is_embedded()) {
        Some((before, after)) => {
            before.to_owned() + after.trim_start_matches(|c: char| c.is_ascii_hexdigit())
        }
        None => manifest.to_owned(),
    }
}

/// Prints what is left of pods when none is wanted.
pub fn left() -> &'static str {
    if is_embedded() {
        "pgrep -x smolet-monitor || true; findmnt -n -o TARGET -t nsfs,overlay || true"
    } else {
        "ctr -n k8s.io containers ls -q"
    }
}
