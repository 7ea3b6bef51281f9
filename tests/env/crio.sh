# A private CRI-O in the place of containerd; runtime.sh has this file's functions and sets its variables. Debian has no package of
# it: $CRIO names the program, as it comes from its sources or releases, with pinns and conmon beside it.
#
# It has no store that an archive could be imported into: the test images come from a registry on loopback (registry.py), which
# lives no longer than that.

# The port of that registry, for each instance its own.
crio_port() { echo $((20000 + 0x${ID: -4} % 10000)); }

crio_attach() { echo "/run/$ID"; }

# The OCI runtime, which is not asked for what a machine may refuse: limits of huge pages where the controller is not mounted, a
# score lower than ours, the right to that.
crio_runtime() {
    cat >"$DIR/oci" <<E
#!/bin/sh
bundle= before=
for word; do
    case \$before in --bundle | -b) bundle=\$word ;; esac
    before=\$word
done
[ -z "\$bundle" ] || sed -z -i -E 's/"hugepageLimits":\s*\[[^]]*\],?//; s/"oomScoreAdj":\s*-[0-9]+/"oomScoreAdj": 0/
    s/\s*"CAP_SYS_RESOURCE",?//g; s/,(\s*[]}])/\1/g' "\$bundle/config.json"
exec $(command -v runc) "\$@"
E
    chmod +x "$DIR/oci"
}

# crio_handler NAME: a runtime handler of its.
crio_handler() {
    cat <<E
[crio.runtime.runtimes.$1]
runtime_path = "$DIR/oci"
runtime_type = "oci"
runtime_root = "$DIR/run/$1"
monitor_path = "$(dirname "$CRIO")/conmon"
monitor_cgroup = "pod"
monitor_env = ["PATH=$PATH"]
# As little as others take.
container_min_memory = "4MiB"
E
}

configure_crio() {
    local cni_bin=/usr/lib/cni driver=vfs host handler
    [ -x $cni_bin/bridge ] || cni_bin=/opt/cni/bin
    mkdir -p "$DIR"/{run,exits,ns,hooks,policies,keys,auth,log,cdi,tmp}
    [ "$(snapshotter)" != overlayfs ] || driver=overlay
    echo "$CRIO" >"$DIR/crio"
    crio_runtime
    cni_network
    echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$DIR/policy.json"
    printf 'short-name-mode = "disabled"\nunqualified-search-registries = ["docker.io"]\n' >"$DIR/registries.conf"
    for host in smolet.test docker.io; do
        printf '[[registry]]\nprefix = "%s"\nlocation = "127.0.0.1:%s"\ninsecure = true\n' "$host" "$(crio_port)"
    done >>"$DIR/registries.conf"
    # As containerd takes a registry on loopback.
    printf '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n' >>"$DIR/registries.conf"
    cat >"$CONFIG" <<E
[crio]
root = "$DIR/root"
runroot = "$DIR/run/storage"
storage_driver = "$driver"
log_dir = "$DIR/log"
version_file = "$DIR/run/version"
version_file_persist = "$DIR/version"
clean_shutdown_file = "$DIR/clean.shutdown"
[crio.api]
listen = "$SOCKET"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = ""
apparmor_profile = "unconfined"
decryption_keys_path = "$DIR/keys"
irqbalance_config_file = "$DIR/irqbalance"
irqbalance_config_restore_file = "disable"
hooks_dir = ["$DIR/hooks"]
cdi_spec_dirs = ["$DIR/cdi"]
container_exits_dir = "$DIR/exits"
# Sockets with the container's id in their path, which may be 108 bytes long.
container_attach_socket_dir = "$(crio_attach)"
namespaces_dir = "$DIR/ns"
pinns_path = "$(dirname "$CRIO")/pinns"
enable_criu_support = false
enable_pod_events = ${CRIO_EVENTS:-true}
default_runtime = "runc"
# containerd's.
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"]
[crio.image]
pause_image = "smolet.test/pause:1"
pause_command = ""
signature_policy = "$DIR/policy.json"
signature_policy_dir = "$DIR/policies"
namespaced_auth_dir = "$DIR/auth"
big_files_temporary_dir = "$DIR/tmp"
[crio.network]
network_dir = "$DIR/cni/conf"
plugin_dirs = ["$cni_bin"]
[crio.nri]
enable_nri = false
E
    # crun is among its defaults, and would be looked for.
    for handler in runc crun other; do crio_handler $handler >>"$CONFIG"; done
}

# start_crio REDIRECTIONS
start_crio() {
    rm -f "$SOCKET"
    eval "env -i PATH='$PATH' HOME='$DIR' CONTAINERS_STORAGE_CONF=/dev/null TMPDIR='$DIR/tmp' setsid '$CRIO' --config '$CONFIG' \
        --config-dir '' --registries-conf '$DIR/registries.conf' </dev/null >>'$DIR/containerd.log' 2>&1 $1 &"
    echo $! >"$DIR/containerd.pid"
    within $START_SECONDS [ -S "$SOCKET" ] || {
        tail -n 20 "$DIR/containerd.log" >&2
        die "CRI-O does not listen on $SOCKET after $START_SECONDS s; the end of its log stands above"
    }
}

# import_into_crio ARCHIVE NAME...: pulls these images, which the archive has.
import_into_crio() {
    local archive=$1 registry name
    shift
    python3 "$here/registry.py" "$archive" "$(crio_port)" </dev/null >"$DIR/registry.log" 2>&1 &
    registry=$!
    for name; do
        # No registry has other content under a digest than its own.
        [[ $name != *@sha256:* ]] || continue
        within $START_SECONDS "${SMOLET:?names the binary that pulls the images}" image pull "$name" --runtime-endpoint "$ENDPOINT" || {
            kill $registry
            die "CRI-O does not pull $name: $(tail -n 5 "$DIR/registry.log" "$DIR/containerd.log")"
        }
    done
    kill $registry
}
