#!/bin/bash
# The system image of an emulated board: Debian with systemd, cgroup v2, AppArmor, Debian's containerd, runc and crun, and the images
# of the tests as archives in its /root/images.
#
#   board-image.sh arm64|armhf DIR    makes DIR/{base.img,vmlinuz,initrd,key} unless they are of this recipe; Debian 12, root
#
# In the environment: SUITE, Debian's name of the board's release (bookworm); RUNTIME=embedded, without containerd, runc and a network of
# the pods; SELINUX=1, with Debian's policy of SELinux, permissive, in the place of AppArmor.
#
# The mirror is the one of this machine's apt. Everything that can be done without the emulator is done here: the kernel is
# unpacked and not installed, and the initrd is a busybox with the modules of the disk (update-initramfs takes six times as
# long). mke2fs fills the file system itself, so that no loop device is needed.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DISK_SIZE=4G
SUITE=${SUITE:-bookworm}

die() {
    echo "board-image.sh: $*" >&2
    exit 1
}

[ $# -ge 2 ] || die "usage: board-image.sh arm64|armhf DIR"
arch=$1 out=$(realpath -m "$2")
case $arch in
arm64) kernel=linux-image-arm64 handler=qemu-aarch64 machine=aarch64 ;;
armhf) kernel=linux-image-armmp-lpae handler=qemu-arm machine=armv7l ;;
*) die "unknown architecture $arch; one of: arm64 armhf" ;;
esac

# "SUITE URI" of each suite that apt has here, with the board's release in the place of Debian 12.
suites() {
    apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
        awk '$1 == "Packages" && $2 ~ /^bookworm(-updates|-security)?$/ && $3 == "main" { print $2, $4 }' |
        sort -u | sed "s/^bookworm/$SUITE/"
}

# Lists of its own below $work/apt: this machine does not become one of two architectures. A suite whose lists are not whole, as while its
# mirror is being synchronised, is left out, but not the release itself.
foreign_apt() {
    local lists=$work/apt by="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" suite uri
    mkdir -p "$lists/state/lists/partial" "$lists/cache/archives/partial"
    : >"$lists/status"
    apt_options=(-o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State=$lists/state" -o "Dir::State::status=$lists/status" -o "Dir::Cache=$lists/cache"
        -o APT::Sandbox::User=root -o "APT::Architecture=$arch" -o "APT::Architectures=$arch")
    mirrors=()
    while read -r suite uri; do
        echo "deb $by $uri $suite main" >"$lists/sources.list"
        if apt-get "${apt_options[@]}" -o APT::Get::List-Cleanup=0 -qq update >"$lists/log" 2>&1; then
            mirrors+=("deb $uri $suite main")
        elif [ "$suite" = "$SUITE" ]; then
            die "the lists of $suite: $(cat "$lists/log")"
        else
            echo "board: without $suite, whose lists are not whole: $(head -n 1 "$lists/log")"
        fi
    done < <(suites)
    [ ${#mirrors[@]} -gt 0 ] || die "apt has no Debian 12 here"
    printf '%s\n' "${mirrors[@]/#deb/deb $by}" >"$lists/sources.list"
}

# The kernel and busybox-static of that architecture, below $work/debs.
downloads() {
    foreign_apt
    package=$(apt-cache "${apt_options[@]}" depends $kernel | awk '/Depends: linux-image-/ { print $2; exit }')
    mkdir -p "$work/debs" "$work/bin"
    (cd "$work/debs" && apt-get "${apt_options[@]}" -qq download "$package" busybox-static)
    dpkg-deb --fsys-tarfile "$work"/debs/busybox-static_*.deb | tar -x -C "$work/bin" --wildcards --transform='s,.*/,,' './*bin/busybox'
}

# The archives of images.sh, with that architecture's busybox. $1: the name that the board's containerd has for its sandbox image.
image_archives() {
    local pause=$1 dir=$2
    mkdir -p "$dir"
    (
        PATH=$work/bin:$PATH
        hash -r
        uname() { echo "$machine"; }
        DIR=$work
        # shellcheck source=tests/env/images.sh
        . "$here/images.sh"
        pause_image() { image "$pause" '"Env":["PATH=/bin"],"Cmd":["/bin/forever"]' "$1"; }
        archive pause_image "$dir/pause.tar"
        archive test_images "$dir/test.tar"
        archive gateway_images "$dir/gateway.tar"
    )
}

# initrd VERSION ROOT: a busybox that loads the modules of the disk and mounts it. The journal is replayed by the mount.
initrd() {
    local version=$1 root=$2 tree=$work/initrd module to n=100
    mkdir -p "$tree"/{bin,dev,proc,sys,root,lib/modules}
    cp "$work/bin/busybox" "$tree/bin/"
    while read -r module; do
        to=$tree/lib/modules/$((n++))-${module##*/}
        case $module in *.xz) xz -dc "$module" >"${to%.xz}" ;; *) cp "$module" "$to" ;; esac
    done < <(modprobe -d "$root" -S "$version" --show-depends -a virtio_pci virtio_mmio virtio_blk ext4 crc32c_generic |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }')
    cat >"$tree/init" <<'E'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /lib/modules/*; do insmod "$module"; done
n=0
until [ -b /dev/vda ] || [ $n = 300 ]; do sleep 0.1; n=$((n + 1)); done
mount -t ext4 -o rw /dev/vda /root || exec sh
mount --move /dev /root/dev
umount /sys /proc
exec switch_root /root /sbin/init
E
    chmod 755 "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"
}

# The network of the pods.
pods_network() {
    mkdir -p "$1/etc/cni/net.d"
    cat >"$1/etc/cni/net.d/10-pods.conflist" <<'E'
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] } },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
E
}

# What mmdebstrap has done of the system; the rest of it.
customize() {
    local root=$1 pause version
    echo board >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n127.0.1.1 board\n::1 localhost\n' >"$root/etc/hosts"
    printf '/dev/vda / ext4 errors=remount-ro 0 1\n' >"$root/etc/fstab"
    printf '[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n' >"$root/etc/systemd/network/wired.network"
    printf 'nameserver 10.0.2.3\n' >"$root/etc/resolv.conf"
    install -D -m 600 "$out/key.pub" "$root/root/.ssh/authorized_keys"
    chmod 700 "$root/root/.ssh"
    chroot "$root" systemctl -q enable systemd-networkd ssh
    if [ -n "${SELINUX:-}" ]; then
        printf 'SELINUX=permissive\nSELINUXTYPE=default\n' >"$root/etc/selinux/config"
    fi
    # What would run by itself while something is measured.
    chroot "$root" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer man-db.timer e2scrub_all.timer \
        e2scrub_reap.service dpkg-db-backup.timer fstrim.timer
    # Debian 13 has a hundred profiles for programs that are not here: the emulator needs half a minute for them at each boot.
    if [ -d "$root/etc/apparmor.d" ]; then
        find "$root/etc/apparmor.d" -maxdepth 1 -type f ! -name crun ! -name runc ! -name unix-chkpwd ! -name unprivileged_userns -delete
    fi
    # Look-ups of names cost seconds in an emulator.
    printf 'UseDNS no\nGSSAPIAuthentication no\n' >"$root/etc/ssh/sshd_config.d/board.conf"
    # The embedded runtime makes its own.
    [ "${RUNTIME:-}" = embedded ] || pods_network "$root"
    pause=$(chroot "$root" containerd config default 2>/dev/null | sed -n 's/.*sandbox_image = "\(.*\)"/\1/p') || true
    image_archives "${pause:-registry.k8s.io/pause:3.10}" "$root/root/images"
    dpkg-deb --fsys-tarfile "$work/debs"/linux-image-*.deb |
        tar -x --keep-directory-symlink -C "$root" --exclude=./usr/share/doc
    version=$(cd "$root/lib/modules" && echo *)
    depmod -b "$root" "$version"
    cp "$root/boot/vmlinuz-$version" "$work/vmlinuz"
    initrd "$version" "$root"
    rm -rf "$root"/var/cache/apt/*.bin "$root"/var/lib/apt/lists/*
}

# mmdebstrap runs this file for the part above.
if [ "${3:-}" = customize ]; then
    work=$4
    customize "$5"
    exit
fi

recipe=$({ cat "$here/board-image.sh" "$here/images.sh"; tar -C "$here" --sort=name --mtime=@0 -c stand-ins; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$out/recipe" 2>/dev/null)" != "$recipe" ] || exit 0
echo "board: making $out; some minutes"
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
ssh-keygen -q -t ed25519 -N '' -C board -f "$out/key"

# Programs of that architecture run by themselves. With the flag F the handler works in any root.
if ! arch-test "$arch" >/dev/null 2>&1; then
    mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    update-binfmts --enable $handler
fi

packages=systemd-sysv,udev,dbus,libpam-systemd,openssh-server,crun,containernetworking-plugins,iptables
packages+=,procps,iproute2,kmod,netbase
[ "${RUNTIME:-}" = embedded ] || packages+=,containerd,runc
if [ -n "${SELINUX:-}" ]; then packages+=,selinux-policy-default; else packages+=,apparmor; fi
downloads
# What it mounts ends with it.
unshare --mount --propagation private mmdebstrap --quiet --mode=root --variant=minbase --architectures="$arch" --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt=force-unsafe-io \
    --customize-hook="'$here/${BASH_SOURCE[0]##*/}' $arch '$out' customize '$work' \"\$1\"" \
    "$SUITE" "$work/tree" "${mirrors[@]}"
truncate -s $DISK_SIZE "$work/base.img"
# Nothing is left for the board itself to write later.
mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 -L board -d "$work/tree" "$work/base.img"
mv "$work/base.img" "$work/vmlinuz" "$out/"
mv "$work/initrd.gz" "$out/initrd"
echo "$recipe" >"$out/recipe"
echo "board: it takes $(du -h "$out/base.img" | cut -f1)"
