#!/bin/bash
# Makes the package of one architecture from a release binary and the pages that tests/repository/pages.rs writes.
#
#   build.sh amd64|arm64|armhf|armel BINARY PAGES OUT [FORMAT]    prints the package's path, below OUT
#
# FORMAT is deb (the default), archive (a tar archive with an installer), apk (Alpine) or ipk (OpenWrt).
#
# armhf is the build for ARMv6 with hardware floating point: Raspberry Pi OS calls that armhf too, and it runs on every Pi. armel
# is the one for ARMv6 without.
# No tool but dpkg-deb, GNU tar and Python: they need no registry, where cargo-deb is 200 crates more to build, and they take the
# binaries from wherever cross/arm.sh has put them. The same input gives the same bytes.
# ARM_HOME: where cross/arm.sh has its tools (default: .cache/arm of the repository).
# MINISIGN_KEY: minisign's secret key, which signs what an archive holds (dist/sign.sh). APK_KEY: an RSA key in PEM that signs
# Alpine's package. Keys stay outside of the repository. PARTS: a directory with ARCH.copyright, made before: then no cargo is needed.
set -euo pipefail
export LC_ALL=C
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dist=$repo/dist
zig=${ARM_HOME:-$repo/.cache/arm}/zig/ziglang

die() {
    echo "build.sh: $*" >&2
    exit 1
}

[ $# = 4 ] || [ $# = 5 ] || die "usage: build.sh amd64|arm64|armhf|armel BINARY PAGES OUT [deb|archive|apk|ipk]"
arch=$1 binary=$2 pages=$3 out=$4 format=${5:-deb}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$repo/Cargo.toml" | head -n 1)
# The time of all files: that of the commit, or of the binary without git.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct 2>/dev/null || stat -c %Y "$binary")}
export SOURCE_DATE_EPOCH

# The wrong binary would install without a word. machines: what `uname -m` says where it runs.
header=$(readelf -hA "$binary")
is() { grep -q "$1" <<<"$header" || die "$binary is not for $arch: no $1 in its header"; }
arm='armv6l armv7l armv8l aarch64'
case $arch in
amd64) triple=x86_64-unknown-linux-musl machines=x86_64; is 'Machine: .*X86-64' ;;
arm64) triple=aarch64-unknown-linux-musl machines=aarch64; is 'Machine: .*AArch64' ;;
armhf) triple=arm-unknown-linux-musleabihf machines=$arm; is 'Machine: .*ARM$'; is 'hard-float ABI'; is 'Tag_CPU_arch: v6' ;;
armel) triple=arm-unknown-linux-musleabi machines=$arm; is 'Machine: .*ARM$'; is 'soft-float ABI'; is 'Tag_CPU_arch: v6' ;;
*) die "unknown architecture $arch; one of: amd64 arm64 armhf armel" ;;
esac
if readelf -lW "$binary" | grep -q INTERP; then die "$binary needs a shared C library"; fi

# copyright LICENSE: of which parts the program is made, and the texts that their licences want beside it, but for that of the
# Apache License, which is at LICENSE.
copyright() {
    local license=$1 crates manifests manifest name version licence file first='smolet is under the Apache License, version 2.0'
    if [ -n "${PARTS:-}" ]; then
        sed "1s|.*|$first: $license|" "$PARTS/$arch.copyright"
        return
    fi
    # What only the build has (proc macros) is not in the program.
    crates=$(cd "$repo" && cargo tree --locked --offline --quiet --edges normal,no-proc-macro --target "$triple" \
        --prefix none --no-dedupe --format '{p} {l}')
    crates=$(sed '/^smolet /d' <<<"$crates" | sort -u)
    manifests=$(cd "$repo" && cargo metadata --locked --offline --format-version 1 --filter-platform "$triple")
    manifests=$(grep -o '"manifest_path":"[^"]*"' <<<"$manifests" | cut -d'"' -f4)
    cat <<E
$first: $license

Its program holds Rust's standard library (MIT OR Apache-2.0), musl (MIT), the compiler's routines of Zig (MIT), and these
crates, under these licences:

$crates
E
    while read -r name version licence; do
        case $licence in
        *AND*) ;;
        *Apache-2.0*) continue ;;
        esac
        manifest=$(grep -F "/$name-${version#v}/Cargo.toml" <<<"$manifests") || die "the sources of $name $version are not there"
        printf '\n---- %s %s\n' "$name" "$version"
        for file in "${manifest%/*}"/{LICENSE,LICENCE,COPYING,NOTICE}*; do
            case $file in
            *'*' | *APACHE*) ;;
            *) echo && cat "$file" ;;
            esac
        done
    done <<<"$crates"
    printf '\n---- musl\n\n' && cat "$zig/lib/libc/musl/COPYRIGHT"
    printf '\n---- Zig\n\n' && cat "$zig/LICENSE"
}

work=$(mktemp -d)
# What is made there would have a set-group-ID bit of its parent's.
chmod g-s "$work"
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/root
mkdir "$root"

# put MODE FILE PATH
put() { install -D -m "$1" "$2" "$root$3"; }
# pack FILE PATH: as `put`, compressed, without the time.
pack() {
    mkdir -p "$(dirname "$root$2")"
    gzip -9n <"$1" >"$root$2"
}
# script FILE PATH: a package's script, with what several of them have, and with what differs by architecture.
script() {
    mkdir -p "$(dirname "$2")"
    sed -e "s/@ARCH@/$arch/g; s/@MACHINES@/$machines/g" -e "/^#include state.sh\$/{r $dist/state.sh" -e 'd}' "$1" >"$2"
    chmod 755 "$2"
}
# pack_tar DIRECTORY OUT NAME...: a compressed tar archive of these names there, which tells nothing of when or by whom this ran.
pack_tar() {
    local directory=$1 to=$2
    shift 2
    tar --create --format=ustar --sort=name --owner=root:0 --group=root:0 --mtime="@$SOURCE_DATE_EPOCH" \
        -C "$directory" "$@" | gzip -9n >"$to"
}
# in_bytes DIRECTORY: of all files there.
in_bytes() { find "$1" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }'; }
# in_kib DIRECTORY: as dpkg-gencontrol counts, which does not ask the file system how large its directories are.
in_kib() { find "$1" -path "$1/DEBIAN" -prune -o -printf '%y %s\n' | awk '{ n += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print n }'; }

# What every package has in the same place.
common() {
    put 755 "$binary" /usr/bin/smolet
    # A header of staticPodURL may hold a token.
    put 600 "$dist/config.yaml" /etc/smolet/config.yaml
    # Manifests may be Secrets.
    install -d -m 700 "$root/etc/smolet/manifests"
    drop_ins /usr/share/smolet/systemd
}
# drop_ins DIRECTORY: what the owner of systemd's unit copies for a feature. No documents, which a machine may leave out.
drop_ins() {
    put 644 "$dist/systemd/embedded.conf" "$1/embedded.conf"
    put 644 "$dist/systemd/k3s.conf" "$1/k3s.conf"
}
man_pages() {
    local page
    for page in "$pages"/*.8; do
        pack "$page" "$1/${page##*/}.gz"
    done
}
completions() {
    put 644 "$pages/smolet.bash" /usr/share/bash-completion/completions/smolet
    put 644 "$pages/_smolet" "/usr/share/zsh/$1/_smolet"
    put 644 "$pages/smolet.fish" /usr/share/fish/vendor_completions.d/smolet.fish
}
# documents DIRECTORY: pages and examples.
documents() {
    local page example
    pack "$repo/README.md" "$1/README.md.gz"
    pack "$repo/CHANGELOG.md" "$1/changelog.gz"
    for page in "$repo"/docs/*.md; do
        pack "$page" "$1/docs/${page##*/}.gz"
    done
    for example in "$repo"/examples/gateway/*.yaml; do
        put 644 "$example" "$1/examples/${example##*/}"
    done
}

deb() {
    common
    put 644 "$dist/systemd/smolet.service" /usr/lib/systemd/system/smolet.service
    put 644 "$dist/default" /etc/default/smolet
    # For who has OpenRC on Debian.
    put 755 "$dist/openrc/smolet" /usr/share/smolet/openrc/smolet
    put 644 "$dist/openrc/logrotate" /usr/share/smolet/openrc/logrotate
    install -d -m 750 "$root/var/lib/smolet"
    completions vendor-completions
    man_pages /usr/share/man/man8
    documents /usr/share/doc/smolet
    copyright /usr/share/common-licenses/Apache-2.0 >"$root/usr/share/doc/smolet/copyright"
    local name
    for name in preinst postinst prerm postrm; do script "$dist/debian/$name" "$root/DEBIAN/$name"; done
    # dpkg keeps the sums of what is the user's to change by itself.
    (cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    cat >"$root/DEBIAN/control" <<E
Package: smolet
Version: $version
Architecture: $arch
Maintainer: smolet maintainers <maintainers@smolet.invalid>
Installed-Size: $(in_kib "$root")
Recommends: containerd | containerd.io | cri-o | crun | runc, crun | runc, containernetworking-plugins, iptables
Suggests: nfs-common
Section: admin
Priority: optional
Description: Kubernetes node agent for ARM gateways
 Keeps the pods of a manifest directory running on any container runtime that
 speaks CRI v1 (containerd, CRI-O), or by itself through crun or runc and CNI
 plugins, as the kubelet does, in a few megabytes.
 .
 It is started with its package and waits for a runtime. Manifests go to
 /etc/smolet/manifests, settings stand in /etc/smolet/config.yaml.
E
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    package=$out/smolet_${version}_$arch.deb
    dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
}

# For a machine whose package manager is none of the others: dist/install.sh installs it.
archive() {
    local name=smolet_${version}_linux_$arch page
    root=$work/root/$name
    put 755 "$binary" /bin/smolet
    script "$dist/install.sh" "$root/install.sh"
    printf 'version=%s\narch=%s\n' "$version" "$arch" >"$root/ABOUT"
    put 644 "$repo/LICENSE" /LICENSE
    copyright LICENSE >"$root/copyright"
    put 644 "$dist/config.yaml" /config.yaml
    put 644 "$dist/default" /default
    put 644 "$dist/systemd/smolet.service" /systemd/smolet.service
    drop_ins /systemd
    put 755 "$dist/openrc/smolet" /openrc/smolet
    put 644 "$dist/openrc/conf.d" /openrc/conf.d
    put 644 "$dist/openrc/logrotate" /openrc/logrotate
    put 755 "$dist/procd/smolet" /procd/smolet
    put 644 "$dist/openwrt/keep" /procd/keep
    man_pages /man
    for page in smolet.bash _smolet smolet.fish; do
        put 644 "$pages/$page" "/completions/$page"
    done
    documents /doc
    (cd "$root" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$work/SHA256SUMS"
    put 644 "$work/SHA256SUMS" /SHA256SUMS
    if [ -n "${MINISIGN_KEY:-}" ]; then "$dist/sign.sh" minisign "$root/SHA256SUMS"; fi
    package=$out/$name.tar.gz
    pack_tar "$work/root" "$package" "$name"
}

# Alpine's: one package, without the split into documents, completions and scripts that its own have.
apk() {
    local of hook
    case $arch in
    amd64) of=x86_64 ;;
    arm64) of=aarch64 ;;
    armhf) of=armhf ;;
    *) die "Alpine has no $arch: its 32-bit ARM is armhf (ARMv6) and armv7, with hardware floating point" ;;
    esac
    common
    put 755 "$dist/openrc/smolet" /etc/init.d/smolet
    put 644 "$dist/openrc/conf.d" /etc/conf.d/smolet
    put 644 "$dist/openrc/logrotate" /etc/logrotate.d/smolet
    install -d -m 750 "$root/var/lib/smolet"
    completions site-functions
    man_pages /usr/share/man/man8
    documents /usr/share/doc/smolet
    put 644 "$repo/LICENSE" /usr/share/licenses/smolet/LICENSE
    copyright /usr/share/licenses/smolet/LICENSE >"$root/usr/share/licenses/smolet/copyright"
    for hook in pre-install post-install post-upgrade pre-deinstall; do script "$dist/alpine/$hook" "$work/scripts/$hook"; done
    cat >"$work/PKGINFO" <<E
pkgname = smolet
pkgver = $version-r0
pkgdesc = Kubernetes node agent for ARM gateways
url = https://smolet.invalid
packager = smolet maintainers <maintainers@smolet.invalid>
arch = $of
origin = smolet
license = Apache-2.0
provides = cmd:smolet=$version-r0
E
    # A repository has a directory for each architecture, and in it apk's names.
    mkdir -p "$out/alpine/$of"
    package=$out/alpine/$of/smolet-$version-r0.apk
    "$dist/apk.py" "$root" "$work/PKGINFO" "$work/scripts" "$package" ${APK_KEY:+"$APK_KEY"}
}

# OpenWrt's, for flash of a few megabytes: without documents.
ipk() {
    local hook
    common
    put 755 "$dist/procd/smolet" /etc/init.d/smolet
    put 644 "$dist/default" /etc/default/smolet
    put 644 "$dist/openwrt/keep" /lib/upgrade/keep.d/smolet
    install -d -m 750 "$root/srv/smolet"
    pack "$repo/LICENSE" /usr/share/licenses/smolet/LICENSE.gz
    copyright /usr/share/licenses/smolet/LICENSE.gz >"$work/copyright"
    pack "$work/copyright" /usr/share/licenses/smolet/copyright.gz
    for hook in preinst postinst prerm; do script "$dist/openwrt/$hook" "$work/control/$hook"; done
    printf '/etc/smolet/config.yaml\n/etc/default/smolet\n' >"$work/control/conffiles"
    cat >"$work/control/control" <<E
Package: smolet
Version: $version-1
Architecture: all
Maintainer: smolet maintainers <maintainers@smolet.invalid>
License: Apache-2.0
Section: utils
Priority: optional
Installed-Size: $(in_bytes "$root")
Description: Kubernetes node agent for ARM gateways, for $machines.
 Pods need namespaces and control groups of the kernel that most images lack:
 smolet doctor names what is missing.
E
    mkdir "$work/ipk"
    echo 2.0 >"$work/ipk/debian-binary"
    pack_tar "$work/control" "$work/ipk/control.tar.gz" .
    pack_tar "$root" "$work/ipk/data.tar.gz" .
    package=$out/smolet_$version-1_$arch.ipk
    pack_tar "$work/ipk" "$package" ./debian-binary ./control.tar.gz ./data.tar.gz
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
case $format in
deb | archive | apk | ipk) $format ;;
*) die "unknown format $format; one of: deb archive apk ipk" ;;
esac
echo "$package"
