#!/bin/bash
# A systemd of the tests' own: the first process of namespaces of its own (processes, mounts, cgroups, network, names), so that
# it neither sees nor touches the machine's. It has no units but what it is asked for.
#
#   systemd.sh up DIR [v1|v2]   starts it, with the machine's cgroups of version 1 (the default) or 2 below one of its own; prints
#                               its PID as the machine sees it. A third word, `packages`: it has units where packages and their
#                               scripts have them, DIR/units as /etc/systemd/system and DIR/vendor as /usr/lib/systemd/system
#   systemd.sh in DIR ARG...    runs a program there
#   systemd.sh down DIR         ends it and everything that runs there, and removes DIR; of a run that was killed too
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
    local version=${1:-v1} units=${2:-} root file first namespace
    # What a run that was killed has left; should some of it stay, it is below the same cgroup and ends with this one.
    down || true
    mkdir -p "$DIR/units" "$DIR/vendor"
    printf '[Unit]\nDescription=Nothing\nDefaultDependencies=no\n' >"$DIR/units/nothing.target"
    for root in $(hierarchies); do
        delegate "$root"
        mkdir -p "$root/$ID"
        for file in cpuset.cpus cpuset.mems; do
            # Empty in a new cgroup of version 1, where no process may go then.
            [ ! -e "$root/$file" ] || cat "$root/$file" >"$root/$ID/$file" 2>/dev/null || true
        done
    done
    (
        place "$BASHPID"
        exec setsid unshare --pid --fork --kill-child --mount --cgroup --net --uts --ipc --propagation private \
            "$0" inside "$DIR" "$version" "$units" </dev/null >"$DIR/log" 2>&1
    ) &
    local outer=$! tries=1200
    until listens; do
        [ $((tries--)) -gt 0 ] || {
            tail -n 20 "$DIR/log" >&2
            down || true
            die "it does not come up within 60 s; the end of its log stands above"
        }
        if [ ! -e "$DIR/go" ]; then
            # The child of `unshare` is the first process there, and its cgroup the root there. Other children it has before.
            first=$(cut -d' ' -f1 "/proc/$outer/task/$outer/children" 2>/dev/null) || first=
            namespace=$(readlink "/proc/${first:-none}/ns/pid") || namespace=
            if [ -n "$namespace" ] && [ "$namespace" != "$(readlink /proc/self/ns/pid)" ]; then
                echo "$first" >"$DIR/pid"
                place "$outer" aside
                touch "$DIR/go"
            fi
        fi
        sleep 0.05
    done
    pid
}

# True when its socket is there. Until it has a /run of its own the machine's is seen there, with the machine's socket.
listens() {
    local first
    first=$(pid) || return 1
    [ "$(cat "/proc/$first/comm" 2>/dev/null)" = systemd ] || return 1
    [ "$(stat -L -c %d "/proc/$first/root/run" 2>/dev/null || stat -L -c %d /run)" != "$(stat -L -c %d /run)" ] || return 1
    [ -S "/proc/$first/root/run/systemd/private" ]
}

# Version 2: what is below it may have the controllers that are here. One that cannot be had is nobody's mistake yet.
delegate() {
    local controller
    [ -e "$1/cgroup.subtree_control" ] || return 0
    for controller in $(cat "$1/cgroup.controllers"); do
        echo "+$controller" >"$1/cgroup.subtree_control" 2>/dev/null || true
    done
}

# place PID [BELOW]: puts a process below its cgroups, whose root is the root there. With version 2 into a cgroup below: one
# with processes of its own has none below it that the controllers know, so none stays in the root there.
place() {
    local root path
    for root in $(hierarchies); do
        path=$root/$ID
        [ ! -e "$path/cgroup.subtree_control" ] || path=$path${2:+/$2}
        mkdir -p "$path"
        echo "$1" >"$path/cgroup.procs"
    done
}

# The first process of the new namespaces.
inside() {
    local version=$1 units=$2 root options tries=1200
    until [ -e "$DIR/go" ]; do
        [ $((tries--)) -gt 0 ] || die "nobody says that it may go on"
        sleep 0.05
    done
    mount -t proc proc /proc
    local old
    old=$(version_1 </proc/mounts)
    mount -t sysfs sysfs /sys
    mount -t tmpfs -o mode=755 tmpfs /run
    # It would raise the machine's own bounds.
    mount --bind /proc/sys/fs /proc/sys/fs
    mount -o remount,bind,ro /proc/sys/fs
    if [ "$version" = v2 ]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    else
        [ -n "$old" ] || die "this machine has no cgroups of version 1"
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
        while read -r root options; do
            mkdir "$root"
            # Of the options the controllers, or the name.
            mount -t cgroup -o "$(tr , '\n' <<<"$options" | grep -vE '^(rw|ro|nosuid|nodev|noexec|(no|rel)atime|xattr|release_agent=.*)$' | paste -sd,)" \
                cgroup "$root"
        done <<<"$old"
    fi
    # Where it keeps what it is asked for, and nothing of the machine's.
    local path=/run/systemd/system.control:/run/systemd/transient
    if [ "$units" = packages ]; then
        mount --bind "$DIR/units" /etc/systemd/system
        mount --bind "$DIR/vendor" /usr/lib/systemd/system
        path+=:/etc/systemd/system:/lib/systemd/system:/usr/lib/systemd/system
    else
        path+=:$DIR/units
    fi
    ip link set lo up
    hostname smolet-test
    exec env -i PATH="$PATH" container=smolet-test SYSTEMD_UNIT_PATH="$path" SYSTEMD_GENERATOR_PATH= \
        "$(systemd)" --system --unit=nothing.target --log-target=console --log-level=info --show-status=no
}

# Of /proc/mounts the hierarchies of version 1, with their options.
version_1() { awk '$3 == "cgroup" { print $2, $4 }'; }

systemd() {
    local path
    for path in /lib/systemd/systemd /usr/lib/systemd/systemd; do
        [ ! -x $path ] || { echo $path; return; }
    done
    die "no systemd is installed; run tests/env/setup.sh systemd"
}

# The processes below its cgroups of any hierarchy. One that ends is there until it is a zombie, whose parent has yet to wait;
# the first one of its namespace lasts until its last other one is reaped, and is in no cgroup.procs by then.
processes() {
    { grep -lsE "/$ID(/| \(deleted\)|\$)" /proc/[0-9]*/cgroup || true; } | cut -d/ -f3 | while read -r pid; do
        ! grep -qs '^State:.[^ZX]' "/proc/$pid/status" || echo "$pid"
    done
}

cgroups() {
    local root
    for root in $(hierarchies); do
        [ ! -d "$root/$ID" ] || find "$root/$ID" -depth -type d 2>/dev/null || true
    done
}

# The cgroups say what runs there, whoever wrote a PID where. What cannot be removed keeps nothing else.
down() {
    local pid path left tries=1200
    while left=$(processes) && [ -n "$left" ] && [ $((tries--)) -gt 0 ]; do
        for pid in $left; do
            kill -KILL "$pid" 2>/dev/null || true
        done
        sleep 0.05
    done
    while left=$(cgroups) && [ -n "$left" ]; do
        for path in $left; do
            rmdir "$path" 2>/dev/null || true
        done
        [ $((tries--)) -gt 0 ] || break
        [ -z "$(cgroups)" ] || sleep 0.05
    done
    rm -rf --one-file-system "$DIR"
    left=$(processes; cgroups)
    [ -z "$left" ] || {
        echo "systemd.sh: left of $DIR:"$'\n'"$left" >&2
        return 1
    }
}

[ $# -ge 2 ] || die "usage: $0 up|in|down DIR ..."
command=$1
names "$2"
shift 2
case $command in
up | inside | down) $command "$@" ;;
in)
    pid=$(pid) || die "$DIR: no systemd runs there"
    place "$BASHPID" aside
    exec nsenter --target "$pid" --all -- "$@"
    ;;
*) die "unknown command $command" ;;
esac
