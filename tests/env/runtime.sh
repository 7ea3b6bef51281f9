#!/bin/bash
# A private containerd for the tests, the demo and developers; nothing of the machine's own runtime is touched.
#
#   runtime.sh up DIR, up-embedded DIR, up-crio DIR
#                              installs what is missing, starts a runtime in DIR, imports the test images
#   runtime.sh env DIR         prints its shell variables: SOCKET, ENDPOINT, CGROUP_ROOT, BRIDGE, SUBNET, PID
#   runtime.sh ctr DIR ARG...  `ctr` in the CRI's namespace of that containerd
#   runtime.sh kill DIR        ends containerd with SIGKILL; pods run on
#   runtime.sh start DIR       starts containerd again after kill
#   runtime.sh gateway DIR     imports stand-ins for the images of examples/gateway
#   runtime.sh down DIR        ends pods and containerd, and removes everything `up` and the pods made, DIR included
#   runtime.sh leftovers [DIR] fails and names what is there of DIR, or of any instance whose containerd has ended,
#                              and agents that outlived their test
#   runtime.sh sweep           removes what test runs left here that were killed: `leftovers` then tells of later ones alone
#
# Each DIR is an instance with its own root, state, socket, bridge, subnet and cgroup: several run side by side.
# `up` is idempotent and clears what a crashed run left in DIR. All names begin with smolet-test (the bridge with
# smt), so that nothing else is ever taken for ours. Root only. One pod sandbox network: bridge + host-local + portmap.
#
# `up-embedded` starts no containerd but the smolet that $SMOLET names, without manifests, with the embedded runtime behind its CRI
# socket: the same tests run on both. It has no `ctr`. $SMOLET_CONFIG is its KubeletConfiguration, if not calm.yaml.
#
# `up-crio` starts the CRI-O that $CRIO names (crio.sh), whose images $SMOLET pulls. It has no `ctr` either.
#
# With CONTAINERD=PATH in the environment another containerd than the machine's is started, with the shim beside it; with
# SYSTEMD_CGROUP=true its containers are systemd's units.
#
# Its images need no registry: images.sh says what they are.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly REGISTRY=/run/smolet-test           # one file per instance: its DIR
readonly START_SECONDS=120 STOP_SECONDS=30   # for a machine that has much else to do

die() {
    echo "runtime.sh: $*" >&2
    exit 1
}

# within SECONDS COMMAND...: until it succeeds; fails when it has not in time.
within() {
    local tries=$(($1 * 20))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.05
    done
}

# Names of the instance in DIR ($1).
names() {
    DIR=$(realpath -m "$1")
    local hash
    hash=$(printf '%s' "$DIR" | sha256sum | cut -c1-8)
    ID=smolet-test-$hash
    BRIDGE=smt$hash
    CGROUP_ROOT=/$ID
    SOCKET=$DIR/smolet-test.sock
    # The smolet whose embedded runtime it is, in an instance of that kind.
    EMBEDDED=$(cat "$DIR/embedded" 2>/dev/null) || EMBEDDED=
    [ "$command" != up-embedded ] || EMBEDDED=${SMOLET:?names the binary}
    [ -z "$EMBEDDED" ] || SOCKET=$DIR/cri.sock
    # The CRI-O, likewise.
    if [ "$command" != up-crio ]; then
        CRIO=$(cat "$DIR/crio" 2>/dev/null) || CRIO=
    elif [ ! -x "${CRIO:-}" ]; then
        die "CRIO names no program: build CRI-O, and put pinns and conmon beside it"
    fi
    ENDPOINT=unix://$SOCKET
    CONFIG=$DIR/smolet-test.toml
    # A /24 of 10.192.0.0/11 for each instance; ten instances meet with a chance of 1 in 180.
    SUBNET=10.$((192 + 0x${hash:0:2} % 32)).$((0x${hash:2:2})).0/24
    # sun_path holds 108 bytes, ".ttrpc" and the end included.
    [ ${#SOCKET} -le 100 ] || die "$DIR: the path is too long for a socket; choose a shorter one"
}

ctr() { command ctr -a "$SOCKET" -n k8s.io "$@"; }

# ---- containerd ------------------------------------------------------------------------------------------------

# The PID of our containerd, if it runs; a PID that another program has got meanwhile is not ours.
containerd_pid() {
    local pid
    pid=$(cat "$DIR/containerd.pid" 2>/dev/null) || return 1
    [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qE -- "(-c|--config) $CONFIG " || return 1
    # A zombie answers nothing and waits for its parent only.
    ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || return 1
    echo "$pid"
}

not_running() { ! containerd_pid; }

# The configuration of the pods' network.
cni_network() {
    mkdir -p "$DIR"/cni/{conf,ipam}
    cat >"$DIR/cni/conf/10-smolet-test.conflist" <<E
{
  "cniVersion": "0.4.0",
  "name": "$ID",
  "plugins": [
    {
      "type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "$DIR/cni/ipam",
        "ranges": [[{ "subnet": "$SUBNET" }]], "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
E
}

# The embedded runtime: an agent that is given nothing to run.
configure_embedded() {
    mkdir -p "$DIR"/{root/images,manifests}
    echo "$EMBEDDED" >"$DIR/embedded"
    cp "${SMOLET_CONFIG:-$here/calm.yaml}" "$CONFIG"
    # The second handler, for pods with a runtime class: it writes down what it is called with, and in which environment.
    cat >"$DIR/other-runc" <<E
#!/bin/sh
echo "\$*" >>'$DIR/other-runc.log'
env >>'$DIR/other-runc.env'
exec $(command -v runc) "\$@"
E
    chmod +x "$DIR/other-runc"
    cni_network
}

snapshotter() {
    # overlayfs does not stack on overlayfs (a developer's container): plain copies do everywhere.
    local probe=$DIR/overlay-probe kind=native
    mkdir -p "$probe"/{l,u,w,m}
    if mount -t overlay smolet-test -o "lowerdir=$probe/l,upperdir=$probe/u,workdir=$probe/w" "$probe/m" 2>/dev/null; then
        umount "$probe/m"
        kind=overlayfs
    fi
    rm -rf "$probe"
    echo "$kind"
}

configure() {
    local cni_bin=/usr/lib/cni
    [ -x $cni_bin/bridge ] || cni_bin=/opt/cni/bin
    mkdir -p "$DIR"/{root,state,opt}
    cat >"$CONFIG" <<E
version = 2
root = "$DIR/root"
state = "$DIR/state"
oom_score = 0
# Of no use here; each would cost a warning or a connection attempt at every start.
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$SOCKET"
[ttrpc]
  address = "$SOCKET.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "$DIR/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "smolet.test/pause:1"
  # A machine without CAP_SYS_RESOURCE may not lower a score; runc would fail.
  restrict_oom_score_adj = true
  # Under our state directory nothing is overlooked when it is removed.
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "$DIR/certs.d"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$cni_bin"
  conf_dir = "$DIR/cni/conf"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$(snapshotter)"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "$DIR/runc"
  SystemdCgroup = ${SYSTEMD_CGROUP:-false}
# A second handler, for pods with a runtime class.
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]
  Root = "$DIR/runc-other"
E
    cni_network
}

# The bridge plugin makes it too, but two sandboxes at once that both find none fall over each other ("could not set
# bridge's mac: invalid argument"). A fixed hardware address, or it changes with the pods.
bridge() {
    ! ip link show "$BRIDGE" >/dev/null 2>&1 || return 0
    local hash=${ID##*-}
    ip link add "$BRIDGE" address "02:00:${hash:0:2}:${hash:2:2}:${hash:4:2}:${hash:6:2}" type bridge
    ip address add "${SUBNET%.0/24}.1/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
}

start() {
    ! containerd_pid >/dev/null || return 0
    [ -e "$CONFIG" ] || die "$DIR holds no instance; run: $0 up $DIR"
    bridge
    local fd fds=
    # A caller that reads our output to its end must not wait for containerd, which inherits every open file.
    for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        [ "$fd" -le 2 ] || fds="$fds $fd>&-"
    done
    if [ -n "$EMBEDDED" ]; then
        rm -f "$SOCKET"
        # As a service, whose environment is not that of what it executes.
        eval "NOTIFY_SOCKET='@$ID' K3S_TOKEN=of-the-agent setsid prlimit --core=0: --nofile=10000: --nproc=10000: '$EMBEDDED' run --config '$CONFIG' --runtime-endpoint embedded --node-name '$ID' --manifests '$DIR/manifests' \
            --root-dir '$DIR/root' --socket '$DIR/smolet.sock' --pod-logs-dir '$DIR/logs/pods' --container-logs-dir '$DIR/logs/containers' \
            --cgroup-root '$CGROUP_ROOT' --cni-conf-dir '$DIR/cni/conf' --oci-runtime 'other=$DIR/other-runc' \
            </dev/null >>'$DIR/containerd.log' 2>&1 $fds &"
        echo $! >"$DIR/containerd.pid"
        within $START_SECONDS [ -S "$SOCKET" ] || {
            tail -n 20 "$DIR/containerd.log" >&2
            die "the embedded runtime does not listen on $SOCKET after $START_SECONDS s; the end of its log stands above"
        }
        return
    fi
    if [ -n "$CRIO" ]; then
        start_crio "$fds"
        return
    fi
    # Its shim stands beside it.
    local containerd=${CONTAINERD:-containerd} path=$PATH
    [ -z "${CONTAINERD:-}" ] || path=$(dirname "$CONTAINERD"):$PATH
    eval "PATH='$path' setsid '$containerd' -c '$CONFIG' </dev/null >>'$DIR/containerd.log' 2>&1 $fds &"
    echo $! >"$DIR/containerd.pid"
    within $START_SECONDS ctr version || {
        tail -n 20 "$DIR/containerd.log" >&2
        die "containerd does not answer on $SOCKET after $START_SECONDS s; the end of its log stands above"
    }
}

# end_containerd SIGNAL
end_containerd() {
    local pid
    if pid=$(containerd_pid); then
        kill -s "$1" "$pid" 2>/dev/null || true
        within $STOP_SECONDS not_running || kill -s KILL "$pid" 2>/dev/null || true
        within $STOP_SECONDS not_running || die "containerd (PID $pid) does not end"
    fi
    rm -f "$DIR/containerd.pid"
}

# ---- images ----------------------------------------------------------------------------------------------------

# shellcheck source=tests/env/images.sh
. "$here/images.sh"
# shellcheck source=tests/env/crio.sh
. "$here/crio.sh"

# The CRI plugin learns of an image through an event and labels it: before that, it does not know it.
images_known() {
    local name list
    list=$(ctr images ls) || return 1
    for name; do
        grep -F "$name " <<<"$list" | grep -q 'io.cri-containerd.image=managed' || return 1
    done
}

# import_images FUNCTION NAME...: these images, of which the function makes an archive.
import_images() {
    local build=$1 archive
    shift
    if [ -n "$EMBEDDED" ]; then
        archive=$DIR/root/images/$build.tar
        [ ! -e "$archive" ] || return 0
        archive "$build" "$archive.part"
        mv "$archive.part" "$archive"
        within $START_SECONDS grep -qF "$archive: imported" "$DIR/containerd.log" ||
            die "the embedded runtime does not import $archive: $(tail -n 5 "$DIR/containerd.log")"
        return
    fi
    [ -n "$CRIO" ] || ! images_known "$@" || return 0
    archive "$build" "$DIR/images.tar"
    if [ -n "$CRIO" ]; then
        import_into_crio "$DIR/images.tar" "$@"
        rm -f "$DIR/images.tar"
        return
    fi
    ctr images import "$DIR/images.tar" >/dev/null
    rm -f "$DIR/images.tar"
    within $START_SECONDS images_known "$@" ||
        die "the CRI plugin does not know the imported images: $(ctr images ls -q | tr '\n' ' ')"
}

# ---- the machine's shared state ----------------------------------------------------------------------------------

# CNI plugins switch forwarding on and share iptables chains: the last instance puts both back.
register() {
    mkdir -p "$REGISTRY"
    (
        flock 9
        [ -e "$REGISTRY/ip_forward" ] || cp /proc/sys/net/ipv4/ip_forward "$REGISTRY/ip_forward"
        echo "$DIR" >"$REGISTRY/$ID"
    ) 9>"$REGISTRY.lock"
}

unregister() {
    (
        flock 9
        rm -f "$REGISTRY/$ID"
        # A test beside us without an instance may be mapping ports just now: another instance's end will do.
        if [ -e "$REGISTRY/ip_forward" ] && [ -z "$(ls "$REGISTRY" | grep -v '^ip_forward$')" ] && [ -z "$(bridges)" ]; then
            remove_shared_chains
            cat "$REGISTRY/ip_forward" >/proc/sys/net/ipv4/ip_forward
            rm -r "$REGISTRY"
        fi
    ) 9>"$REGISTRY.lock"
}

# Of instances, and of the embedded runtime's tests.
bridges() { ip -o link show type bridge 2>/dev/null | grep -oE '\bsmt[0-9a-f]+\b' | sort -u || true; }

nat() { iptables -w 10 -t nat "$@"; }

# portmap's own chains, unless another network's port mappings are in them.
remove_shared_chains() {
    # To the end of the list: with -q a long one would end by SIGPIPE, which counts as none.
    ! nat -S CNI-HOSTPORT-DNAT 2>/dev/null | grep '^-A' >/dev/null || return 0
    local rule chain
    { nat -S 2>/dev/null | grep -E '^-A (PREROUTING|OUTPUT|POSTROUTING) .*-j CNI-HOSTPORT-(DNAT|MASQ)$' || true; } | while read -r rule; do
        eval "nat -D ${rule#-A }"
    done
    for chain in CNI-HOSTPORT-DNAT CNI-HOSTPORT-MASQ CNI-HOSTPORT-SETMARK; do
        nat -F $chain 2>/dev/null && nat -X $chain || true
    done
}

# Rules that the CNI plugins made for our network carry its name in their comment; each jumps to a chain of its pod.
remove_rules() {
    local rule chain
    { nat -S 2>/dev/null | grep -F "name: \\\"$ID\\\"" || true; } | while read -r rule; do
        # iptables -S prints words quoted as a shell reads them.
        eval "nat -D ${rule#-A }" 2>/dev/null || true
        chain=$(sed -n 's/.* -j \(CNI-[A-Z0-9a-z-]*\)$/\1/p' <<<"$rule")
        case $chain in
        '' | CNI-HOSTPORT-*) ;;
        *) nat -F "$chain" 2>/dev/null && nat -X "$chain" 2>/dev/null || true ;;
        esac
    done
}

# ---- the end ---------------------------------------------------------------------------------------------------

# alive: of the /proc files on stdin, the PIDs of processes. A zombie is gone but for its parent's wait.
alive() {
    cut -d/ -f3 | sort -u | while read -r pid; do
        grep -qs '^State:.[^ZX]' "/proc/$pid/status" && echo "$pid" || true
    done
}

# Containers, by their cgroup.
containers() {
    local dir path in_cgroup=(-e "^[^/]*$CGROUP_ROOT(/|\$)")
    # Those that were created without a cgroup parent.
    for dir in "$DIR"/state/io.containerd.runtime.v2.task/k8s.io/*/; do
        path=${dir%/}
        [ ! -d "$dir" ] || in_cgroup+=(-e "/${path##*/}(/|\$)")
    done
    { grep -lE "${in_cgroup[@]}" /proc/[0-9]*/cgroup 2>/dev/null || true; } | alive
}

# Shims and agents, by the socket in their arguments.
callers() {
    { grep -lzxF -e "$SOCKET" -e "$SOCKET.ttrpc" -e "$ENDPOINT" /proc/[0-9]*/cmdline 2>/dev/null || true; } | alive
}

# Monitors of the embedded runtime or of CRI-O, and what they execute, by the paths in their arguments.
monitors() {
    [ -n "$EMBEDDED$CRIO" ] || return 0
    { grep -lzE "^$DIR/(root|run)" /proc/[0-9]*/cmdline 2>/dev/null || true; } | alive
}

# Agents alone.
agents() {
    { grep -lzxF -e "$ENDPOINT" /proc/[0-9]*/cmdline 2>/dev/null || true; } | alive
}

# Agents that outlived the test that started them. A test's agents are its children, and their paths lie in its folder
# smolet-test-PID-N (tests/common/mod.rs), with its PID as it sees it: the last NSpid, should it run in a container.
# Those that went while we looked are no matter.
orphans() {
    local pid maker parent
    { grep -lzxF -e run /proc/[0-9]*/cmdline 2>/dev/null || true; } | alive | while read -r pid; do
        maker=$(sed -zn 's|^/.*/smolet-test-\([0-9]*\)-[0-9]*/.*|\1|p;T;q' "/proc/$pid/cmdline" 2>/dev/null | tr -d '\0') || true
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) || true
        [ -n "$maker" ] && [ -n "$parent" ] || continue
        parent=$(sed -n 's/^NSpid:.*[[:space:]]//p' "/proc/$parent/status" 2>/dev/null) || true
        [ "$parent" = "$maker" ] || echo "/proc/$pid"
    done | alive
}

none() { [ -z "$("$1")" ]; }

# kill_all agents|containers|callers: until none is left, as a process may start another while we look.
kill_all() {
    local pid tries=$STOP_SECONDS
    until none "$1" || [ $tries = 0 ]; do
        for pid in $("$1"); do
            kill -s KILL "$pid" 2>/dev/null || true
        done
        tries=$((tries - 1))
        within 1 none "$1" || true
    done
}

# Ours, the deepest first.
mounts() { cut -d' ' -f5 /proc/self/mountinfo | grep -E -- "^$DIR/" | sort -r || true; }

# Ours, the innermost first.
cgroups() { find /sys/fs/cgroup -depth -type d -path "*$CGROUP_ROOT*" 2>/dev/null || true; }

down() {
    if [ ! -e "$CONFIG" ] && [ ! -e "$REGISTRY/$ID" ]; then
        return 0
    fi
    end_containerd TERM
    local path shims
    shims=$(cat "$DIR"/state/io.containerd.runtime.v2.task/k8s.io/*/address 2>/dev/null || true)
    # An agent would start the pods again. Then the containers while their shims still reap them: a PID namespace
    # lasts until its last process is reaped, and a machine's PID 1 may take seconds.
    kill_all agents
    kill_all containers
    kill_all callers
    kill_all monitors
    # A killed shim leaves its socket.
    for path in ${shims//unix:\/\// }; do
        rm -f "$path"
    done
    for path in $(mounts); do
        umount -l "$path" 2>/dev/null || true
    done
    remove_rules
    ip link delete "$BRIDGE" 2>/dev/null || true
    rm -f /var/lib/cni/results/"$ID"-*
    for path in $(cgroups); do
        rmdir "$path" 2>/dev/null || true
    done
    rm -rf --one-file-system "$DIR" "$(crio_attach)"
    local left
    left=$(remains)
    [ -z "$left" ] || die "left of $DIR:"$'\n'"$left"
    unregister
}

# What is left of one instance, a line each.
remains() {
    local pid
    for pid in $(containers) $(callers) $(monitors); do echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"; done
    mounts | sed 's/^/mount /'
    ip -o link show "$BRIDGE" 2>/dev/null | sed 's/^/bridge /' || true
    nat -S 2>/dev/null | grep -F "$ID" | sed 's/^/iptables rule /' || true
    ls -d /var/lib/cni/results/"$ID"-* 2>/dev/null | sed 's/^/CNI state /' || true
    cgroups | grep -- "$CGROUP_ROOT\$" | sed 's/^/cgroup /' || true
    [ ! -e "$DIR" ] || echo "directory $DIR"
}

# What this machine has of instances that do not run, by our names; instances that run are in use.
leftovers() {
    local file in_use=(-e '^$') left
    for file in "$REGISTRY"/smolet-test-*; do
        [ -e "$file" ] || continue
        names "$(cat "$file")"
        ! containerd_pid >/dev/null || in_use+=(-e "$ID" -e "$DIR/" -e "$BRIDGE" -e "instance $DIR\$")
    done
    left=$(
        for file in "$REGISTRY"/smolet-test-*; do
            [ -e "$file" ] || continue
            echo "instance $(cat "$file")"
        done
        for file in $(grep -lzE -- '/smolet-test\.(sock|toml)(\.ttrpc)?$' /proc/[0-9]*/cmdline 2>/dev/null); do
            echo "process $(cut -d/ -f3 <<<"$file"): $(tr '\0' ' ' <"$file" 2>/dev/null)"
        done
        for file in $(orphans); do
            echo "process $file: $(tr '\0' ' ' <"/proc/$file/cmdline" 2>/dev/null)"
        done
        for file in $({ grep -lE -- ':/smolet-test-' /proc/[0-9]*/cgroup 2>/dev/null || true; } | alive); do
            echo "process $file in cgroup $(grep -m 1 -oE 'smolet-test-.*' "/proc/$file/cgroup" 2>/dev/null)"
        done
        cut -d' ' -f5 /proc/self/mountinfo | grep smolet-test | sed 's/^/mount /' || true
        ip -o link show type bridge 2>/dev/null | grep -oE '\bsmt[0-9a-f]{8}\b' | sort -u | sed 's/^/bridge /' || true
        nat -S 2>/dev/null | grep -F smolet-test | sed 's/^/iptables rule /' || true
        ls -d /var/lib/cni/results/smolet-test-* 2>/dev/null | sed 's/^/CNI state /' || true
        find /sys/fs/cgroup -type d -name 'smolet-test-*' 2>/dev/null | sed 's/^/cgroup /' || true
    )
    left=$(grep -v "${in_use[@]}" <<<"$left") || true
    [ -z "$left" ] || die "left on this machine (runtime.sh down DIR removes an instance):"$'\n'"$left"
}

# The test that made the folder smolet-test-PID-N (tests/common/mod.rs) where this path is, or the folder itself, runs: its PID may
# be another program's by now.
in_use() {
    local maker
    maker=$(sed -n 's|^.*/smolet-test-\([0-9]*\)-[0-9]*\(/.*\)\?$|\1|p' <<<"$1")
    [ -z "$maker" ] || [[ $(readlink "/proc/$maker/exe" 2>/dev/null) == */deps/* ]]
}

# Of runs that were killed before they could clean up.
sweep() {
    local file
    for file in "$REGISTRY"/smolet-test-*; do
        [ -e "$file" ] || continue
        # Another run may start or end an instance meanwhile.
        (names "$(cat "$file")" && { containerd_pid >/dev/null || down; }) || true
    done
    kill_all orphans
    for file in $(cut -d' ' -f5 /proc/self/mountinfo | grep smolet-test- | sort -r); do
        in_use "$file" || umount -l "$file" || true
    done
    for file in "${TMPDIR:-/tmp}"/smolet-test-* /dev/shm/smolet-test-*; do
        in_use "$file" || rm -rf --one-file-system "$file"
    done
    for file in $(find /sys/fs/cgroup -depth -type d -path '*/smolet-test-[0-9]*-[0-9]*' 2>/dev/null); do
        in_use "$file" || rmdir "$file" 2>/dev/null || true
    done
}

# ---- commands --------------------------------------------------------------------------------------------------

up() {
    if [ -e "$DIR" ] && [ ! -e "$CONFIG" ] && [ -n "$(ls -A "$DIR")" ]; then
        die "$DIR is there and holds no instance; choose another directory"
    fi
    "$here/setup.sh" runtime
    # A crashed run, or another boot's: its pods are of no use to anyone.
    if ! containerd_pid >/dev/null; then
        down
    fi
    register
    if [ ! -e "$CONFIG" ]; then
        mkdir -p "$DIR"
        if [ -n "$EMBEDDED" ]; then configure_embedded; elif [ -n "$CRIO" ]; then configure_crio; else configure; fi
    fi
    start
    import_images test_images $TEST_IMAGES
}

command=${1:-}
case $command in
up | up-embedded | up-crio | env | ctr | kill | start | gateway | down)
    [ $# -ge 2 ] || die "$command needs a directory"
    [ "$(id -u)" = 0 ] || die "containers need root"
    names "$2"
    shift 2
    ;;
esac
case $command in
up | up-embedded | up-crio) up ;;
env)
    for name in SOCKET ENDPOINT CGROUP_ROOT BRIDGE SUBNET; do printf '%s=%q\n' "$name" "${!name}"; done
    echo "PID=$(containerd_pid || true)"
    ;;
ctr) ctr "$@" ;;
kill) end_containerd KILL ;;
start) start ;;
gateway) import_images gateway_images $(cut -d' ' -f1 <<<"$GATEWAY_IMAGES") ;;
down) down ;;
sweep)
    [ "$(id -u)" != 0 ] || sweep
    ;;
leftovers)
    if [ $# -ge 2 ]; then
        names "$2"
        left=$(remains)
        [ -z "$left" ] || die "left of $DIR:"$'\n'"$left"
    else
        leftovers
    fi
    ;;
*)
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
    exit 2
    ;;
esac
