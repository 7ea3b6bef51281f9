#!/bin/bash
# A systemd of the tests' own: the first process of namespaces of its own (processes, mounts, cgroups, network, names), so that
# it neither sees nor touches the machine's. It has no units but what it is asked for.
#
#   systemd.sh up DIR [v1|v2]   starts it, with the machine's cgroups of version 1 (the default) or 2 below one of its own; prints
#                               its PID as the machine sees it
#   systemd.sh in DIR ARG...    runs a program there
#   systemd.sh down DIR         ends it and everything that runs there, and removes DIR
#
# What the tests look at is seen from outside too: /proc/PID/root/run/systemd/private is its socket. Root only.
set -euo pipefail
export LC_ALL=C

die() {
    echo "systemd.sh: $*" >&2
    exit 1
}

names() {
    DIR=$(realpath -m "$1")
    ID=smolet-test-$(printf '%s' "$DIR" | sha256sum | cut -c1-8)-systemd
}

# The mount points of the machine's cgroup hierarchies.
hierarchies() { awk '$3 ~ /^cgroup2?$/ && $2 ~ "^/sys/fs/cgroup" { print $2 }' /proc/mounts | sort -u; }

# Its PID, if it runs; a PID that another program has got meanwhile is not ours.
pid() {
    local pid
    pid=$(cat "$DIR/pid" 2>/dev/null) || return 1
    grep -qs "/$ID\(/\|$\)" "/proc/$pid/cgroup" || return 1
    echo "$pid"
}

up() {
    local version=${1:-v1} root file
    down
    mkdir -p "$DIR/units"
    printf '[Unit]\nDescription=Nothing\nDefaultDependencies=no\n' >"$DIR/units/nothing.target"
    for root in $(hierarchies); do
        mkdir -p "$root/$ID"
        for file in cpuset.cpus cpuset.mems; do
            # Empty in a new cgroup of version 1, where no process may go then.
            [ ! -e "$root/$file" ] || cat "$root/$file" >"$root/$ID/$file"
        done
    done
    (
        enter
        exec setsid unshare --pid --fork --kill-child --mount --cgroup --net --uts --ipc --propagation private \
            "$0" inside "$DIR" "$version" </dev/null >"$DIR/log" 2>&1
    ) &
    local outer=$! tries=200
    until [ -S "/proc/$(cat "$DIR/pid" 2>/dev/null || echo none)/root/run/systemd/private" ]; do
        [ $((tries--)) -gt 0 ] || { tail -n 20 "$DIR/log" >&2; die "it does not come up within 10 s; the end of its log stands above"; }
        # The child of `unshare` is the first process there.
        cat "/proc/$outer/task/$outer/children" 2>/dev/null | cut -d' ' -f1 >"$DIR/pid" || true
        sleep 0.05
    done
    pid
}

# Puts this process below its cgroups, whose root is the root there.
enter() {
    local root
    for root in $(hierarchies); do
        echo "$BASHPID" >"$root/$ID/cgroup.procs"
    done
}

# The first process of the new namespaces.
inside() {
    local version=$1 root options
    mount -t proc proc /proc
    local old
    old=$(awk '$3 == "cgroup" { print $2, $4 }' /proc/mounts)
    mount -t sysfs sysfs /sys
    mount -t tmpfs -o mode=755 tmpfs /run
    # It would raise the machine's own bounds.
    mount --bind /proc/sys/fs /proc/sys/fs
    mount -o remount,bind,ro /proc/sys/fs
    if [ "$version" = v2 ]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    else
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
        while read -r root options; do
            mkdir "$root"
            # Of the options the controllers, or the name.
            mount -t cgroup -o "$(tr , '\n' <<<"$options" | grep -vE '^(rw|ro|nosuid|nodev|noexec|(no|rel)atime|xattr|release_agent=.*)$' | paste -sd,)" \
                cgroup "$root"
        done <<<"$old"
    fi
    # Where it keeps what it is asked for, and nothing of the machine's.
    local path=/run/systemd/system.control:/run/systemd/transient:$DIR/units
    ip link set lo up
    hostname smolet-test
    exec env -i PATH="$PATH" container=smolet-test SYSTEMD_UNIT_PATH="$path" SYSTEMD_GENERATOR_PATH= \
        "$(systemd)" --system --unit=nothing.target --log-target=console --log-level=info --show-status=no
}

systemd() {
    local path
    for path in /lib/systemd/systemd /usr/lib/systemd/systemd; do
        [ ! -x $path ] || { echo $path; return; }
    done
    die "no systemd is installed; run tests/env/setup.sh systemd"
}

down() {
    local pid root tries=200
    if pid=$(pid); then
        kill -KILL "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null && [ $((tries--)) -gt 0 ]; do sleep 0.05; done
    fi
    for root in $(hierarchies); do
        [ ! -d "$root/$ID" ] || find "$root/$ID" -depth -type d -exec rmdir {} +
    done
    rm -rf --one-file-system "$DIR"
}

[ $# -ge 2 ] || die "usage: $0 up|in|down DIR ..."
command=$1
names "$2"
shift 2
case $command in
up | inside | down) $command "$@" ;;
in)
    pid=$(pid) || die "$DIR: no systemd runs there"
    enter
    exec nsenter --target "$pid" --all -- "$@"
    ;;
*) die "unknown command $command" ;;
esac
