#!/bin/bash
# An emulated board of the tests' own: board-image.sh's system under qemu-system-aarch64 (or -arm), without KVM. Root is not needed.
#
#   board.sh up DIR [QEMU-ARG...]   boots the board of DIR, which keeps its disk from one boot to the next; prints the emulator's PID
#   board.sh wait DIR [SECONDS]     until ssh answers; prints how many seconds after the emulator's start that was
#   board.sh in DIR COMMAND...      a command there, by a connection that all share
#   board.sh cut DIR                a power cut: the emulator is killed, and what the disk had not flushed is lost
#   board.sh down DIR               ends it and removes DIR; of a run that was killed too
#
# In the environment of `up`: IMAGE (the one of DIR's last boot, else .cache/board/bookworm-$ARCH), ARCH (arm64), MEMORY in MiB (1024), CPUS (2),
# APPEND (words for the kernel), SELINUX=1 (the kernel's security module).
# The console is in DIR/console.log, the emulator's monitor at DIR/monitor; ssh is at a free port of 127.0.0.1.
#
# What the disk loses: each boot writes to an overlay of its own with clusters of 4 KiB. Where a cluster is in it is written
# to the file when the board flushes its disk, and is in the emulator's memory until then. So a cut takes every write with it
# that no flush followed, but one to a cluster that the same boot had flushed before, as a flash disk with a volatile cache
# loses some writes and not others, in any order. cache=unsafe only spares the fsync on this machine, which keeps running.
set -euo pipefail
export LC_ALL=C
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ARCH=${ARCH:-arm64}

die() {
    echo "board.sh: $*" >&2
    exit 1
}

# Its PID, if it runs; a PID that another program has got meanwhile is not ours.
pid() {
    local pid
    pid=$(cat pid 2>/dev/null) || return 1
    [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$DIR" ] || return 1
    echo "$pid"
}

up() {
    local emulator port tries=20 child
    case $ARCH in
    arm64) emulator=(qemu-system-aarch64 -M "virt,gic-version=3" -cpu cortex-a53) ;;
    armhf) emulator=(qemu-system-arm -M "virt,highmem=off" -cpu cortex-a15) ;;
    *) die "unknown architecture $ARCH; one of: arm64 armhf" ;;
    esac
    [ -e "$IMAGE/recipe" ] || die "no image in $IMAGE; tests/env/board-image.sh makes it"
    ! pid >/dev/null || die "$DIR: it runs"
    echo "$IMAGE" >image
    [ -e disk.qcow2 ] || overlay disk "$IMAGE/base.img" raw
    fold
    overlay run disk.qcow2 qcow2
    # The emulator takes a port or says that somebody else has it.
    while [ $((tries--)) -gt 0 ]; do
        port=$((20000 + RANDOM % 12000))
        rm -f pid monitor console.log
        date +%s.%N >started
        "${emulator[@]}" -accel tcg,thread=multi -smp "${CPUS:-2}" -m "${MEMORY:-1024}" -nographic -nodefaults \
            -kernel "$IMAGE/vmlinuz" -initrd "$IMAGE/initrd" \
            -append "root=/dev/vda rw console=ttyAMA0 loglevel=5 panic=10 ${SELINUX:+security=selinux} ${APPEND:-}" \
            -drive file=run.qcow2,if=none,id=disk,format=qcow2,cache=unsafe -device virtio-blk-pci,drive=disk \
            -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,id=nic,netdev=net,romfile= \
            -device virtio-rng-pci -serial file:console.log -monitor unix:monitor,server,nowait \
            -pidfile pid "$@" </dev/null >qemu.log 2>&1 &
        child=$!
        until [ -S monitor ] && pid >/dev/null; do
            kill -0 $child 2>/dev/null || break
            sleep 0.05
        done
        if pid >/dev/null; then
            echo "$port" >port
            pid
            return
        fi
        grep -q 'host forwarding rule' qemu.log || break
    done
    die "the emulator does not start: $(cat qemu.log)"
}

# overlay NAME BELOW FORMAT
overlay() { qemu-img create -q -f qcow2 -o cluster_size=4k -b "$2" -F "$3" "$1.qcow2"; }

# What the last boot has flushed becomes the disk.
fold() {
    [ -e run.qcow2 ] || return 0
    qemu-img commit -q -t unsafe run.qcow2
    rm -f run.qcow2
}

wait() {
    local until=$(($(date +%s) + ${1:-600}))
    until in_board true 2>/dev/null; do
        pid >/dev/null || die "the emulator has ended: $(cat qemu.log)"
        [ "$(date +%s)" -lt "$until" ] || die "ssh does not answer; the console's last lines: $(tail -n 5 console.log)"
        sleep 0.5
    done
    awk -v a="$(cat started)" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f\n", b - a }'
}

in_board() {
    ssh -q -i "$IMAGE/key" -p "$(cat port)" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o ConnectTimeout=5 -o ServerAliveInterval=10 -o ServerAliveCountMax=6 \
        -o ControlMaster=auto -o ControlPath=ssh -o ControlPersist=600 root@127.0.0.1 "$@"
}

# The connection that all share ends with it; its process would wait for the dead board otherwise.
cut() {
    local pid tries=200
    if pid=$(pid); then
        kill -KILL "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null && [ $((tries--)) -gt 0 ]; do sleep 0.05; done
    fi
    ssh -q -o ControlPath=ssh -O exit root@127.0.0.1 >/dev/null 2>&1 || true
    rm -f pid monitor ssh
}

[ $# -ge 2 ] || die "usage: $0 up|wait|in|cut|down DIR ..."
command=$1
DIR=$(realpath -m "$2")
shift 2
[ "$command" = up ] || [ -d "$DIR" ] || { [ "$command" = down ] && exit 0; } || die "$DIR is not there"
mkdir -p "$DIR"
IMAGE=$(realpath -m "${IMAGE:-$(cat "$DIR/image" 2>/dev/null || echo "$repo/.cache/board/bookworm-$ARCH")}")
# Sockets have short names there, wherever it is.
cd "$DIR"
case $command in
up | wait | cut) $command "$@" ;;
in) in_board "$@" ;;
down)
    cut
    cd / && rm -rf --one-file-system "$DIR"
    ;;
*) die "unknown command $command" ;;
esac
