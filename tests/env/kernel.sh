#!/bin/bash
# Runs a program on Debian's kernel, emulated, for what the kernel of this machine lacks. It sees this machine's files, below a layer that
# is thrown away, as root, with MODULES loaded and SMOLET_TEST_KERNEL in its environment; its exit code is that of this script.
#
#   kernel.sh DIR 'MODULES' PROGRAM ARGUMENTS...
#
# DIR keeps the kernel, which comes from the mirror of the machine's own apt. Root, x86-64; `setup.sh kernel` installs what this needs.
set -euo pipefail

# How long it may take: an emulated processor has a tenth of a real one's speed.
SECONDS_MAX=600

die() {
    echo "kernel: $*" >&2
    exit 1
}

[ $# -ge 3 ] || die "usage: kernel.sh DIR 'MODULES' PROGRAM ARGUMENTS..."
dir=$(realpath -m "$1") modules=$2 program=$3
shift 3

# The kernel's package, unpacked below $dir/root.
kernel() {
    [ ! -e "$dir/.done" ] || return 0
    local package
    rm -rf "$dir/deb" "$dir/root"
    mkdir -p "$dir/deb" "$dir/root"
    apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt-get -o DPkg::Lock::Timeout=300 -qq update >/dev/null
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }') || true
    [ -n "$package" ] || die "apt has no linux-image-amd64, Debian's kernel"
    (cd "$dir/deb" && apt-get -qq download -o APT::Sandbox::User=root "$package")
    dpkg-deb --fsys-tarfile "$dir"/deb/*.deb | tar -x -C "$dir/root" --exclude=./usr/share/doc
    rm -rf "$dir/deb"
    depmod -b "$dir/root" "$(ls "$dir/root/lib/modules")"
    touch "$dir/.done"
}

# copy_modules TO NAME...: the modules with what they need, numbered in the order in which they are loaded.
copy_modules() {
    local to=$1 name file number=100
    shift
    mkdir -p "$to"
    for name; do modprobe -d "$dir/root" -S "$version" --show-depends "$name"; done |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' |
        while read -r file; do
            cp "$file" "$to/$number-${file##*/}"
            number=$((number + 1))
        done
}

kernel
version=$(ls "$dir/root/lib/modules")
work=$(mktemp -d)
machine=
trap '[ -z "$machine" ] || kill "$machine" 2>/dev/null || true; rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{bin,proc,sys,dev,low,up,new}
cp "$(command -v busybox)" "$tree/bin/busybox"
# shellcheck disable=SC2086 # names
copy_modules "$tree/modules" virtio_pci 9p 9pnet_virtio overlay $modules
# Without what is for debuggers it is read in a moment.
strip -o "$tree/program" "$program"
printf '%q ' "$@" >"$tree/arguments"
cat >"$tree/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod "$module"; done
$b mount -t tmpfs up /up && $b mkdir /up/upper /up/work
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144 host /low
$b mount -t overlay -o lowerdir=/low,upperdir=/up/upper,workdir=/up/work root /new
for mounted in proc sys dev; do $b mount --move /$mounted /new/$mounted; done
$b mount -t tmpfs run /new/run && $b mount -t tmpfs tmp /new/tmp
$b cp /program /new/run/program
$b chroot /new /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SMOLET_TEST_KERNEL=1 \
    sh -c "cd /; ip link set lo up; /run/program $($b cat /arguments)"
echo "kernel: exit $?"
$b poweroff -f
INIT
chmod 755 "$tree/init"
(cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"
# With `timeout` in the foreground both end with this script.
timeout --foreground --kill-after=10 "$SECONDS_MAX" qemu-system-x86_64 -M q35 -accel tcg -cpu max -smp 2 -m 1024 \
    -vga none -display none -serial stdio -monitor none -no-reboot \
    -kernel "$dir/root/boot/vmlinuz-$version" -initrd "$work/initrd.gz" -append 'console=ttyS0 quiet panic=-1' \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host </dev/null >"$work/output" 2>&1 &
machine=$!
tail --pid="$machine" -n +1 -f "$work/output" | tr -d '\r' | grep --line-buffered -v '^kernel: exit \|reboot: Power down' || true
ended=0
wait "$machine" || ended=$?
machine=
status=$(tr -d '\r' <"$work/output" | sed -n 's/^kernel: exit //p')
[ "$ended" != 124 ] || die "not done within $SECONDS_MAX s"
[ -n "$status" ] || die "the emulated machine ended with $ended, and without a word of the program"
exit "$status"
