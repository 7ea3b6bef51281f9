#!/bin/bash
# Makes the Debian package of one architecture from a release binary and the pages that tests/repository/pages.rs writes.
#
#   build.sh amd64|arm64|armhf BINARY PAGES OUT    prints the package's path, below OUT
#
# armhf is the build for ARMv6 with hardware floating point: Raspberry Pi OS calls that armhf too, and it runs on every Pi.
# dpkg-deb alone, which every Debian has: it needs no registry, where cargo-deb is 200 crates more to build, and it takes the
# binaries from wherever cross/arm.sh has put them. The same input gives the same bytes.
# ARM_HOME: where cross/arm.sh has its tools (default: .cache/arm of the repository).
set -euo pipefail
export LC_ALL=C
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dist=$repo/dist
zig=${ARM_HOME:-$repo/.cache/arm}/zig/ziglang

die() {
    echo "build.sh: $*" >&2
    exit 1
}

[ $# = 4 ] || die "usage: build.sh amd64|arm64|armhf BINARY PAGES OUT"
arch=$1 binary=$2 pages=$3 out=$4
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$repo/Cargo.toml" | head -n 1)
# The time of all files: that of the commit, or of the binary without git.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct 2>/dev/null || stat -c %Y "$binary")}
export SOURCE_DATE_EPOCH

# The wrong binary would install without a word.
header=$(readelf -hA "$binary")
is() { grep -q "$1" <<<"$header" || die "$binary is not for $arch: no $1 in its header"; }
case $arch in
amd64) triple=x86_64-unknown-linux-musl; is 'Machine: .*X86-64' ;;
arm64) triple=aarch64-unknown-linux-musl; is 'Machine: .*AArch64' ;;
armhf) triple=arm-unknown-linux-musleabihf; is 'Machine: .*ARM$'; is 'hard-float ABI'; is 'Tag_CPU_arch: v6' ;;
*) die "unknown architecture $arch; one of: amd64 arm64 armhf" ;;
esac
if readelf -lW "$binary" | grep -q INTERP; then die "$binary needs a shared C library"; fi

# Of which parts the program is made, and the texts that their licences want beside it. Debian has the Apache License's.
copyright() {
    local crates manifests manifest name version licence file
    # What only the build has (proc macros) is not in the program.
    crates=$(cd "$repo" && cargo tree --locked --offline --quiet --edges normal,no-proc-macro --target "$triple" \
        --prefix none --no-dedupe --format '{p} {l}')
    crates=$(sed '/^smolet /d' <<<"$crates" | sort -u)
    manifests=$(cd "$repo" && cargo metadata --locked --offline --format-version 1 --filter-platform "$triple")
    manifests=$(grep -o '"manifest_path":"[^"]*"' <<<"$manifests" | cut -d'"' -f4)
    cat <<E
smolet is under the Apache License, version 2.0: /usr/share/common-licenses/Apache-2.0

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

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022

# put MODE FILE PATH
put() { install -D -m "$1" "$2" "$root$3"; }
# pack FILE PATH: as `put`, compressed, without the time.
pack() {
    mkdir -p "$(dirname "$root$2")"
    gzip -9n <"$1" >"$root$2"
}

put 755 "$binary" /usr/bin/smolet
put 644 "$dist/systemd/smolet.service" /usr/lib/systemd/system/smolet.service
put 644 "$dist/config.yaml" /etc/smolet/config.yaml
put 644 "$dist/default" /etc/default/smolet
# Manifests may be Secrets.
install -d -m 700 "$root/etc/smolet/manifests"
install -d -m 750 "$root/var/lib/smolet"
put 644 "$pages/smolet.bash" /usr/share/bash-completion/completions/smolet
put 644 "$pages/_smolet" /usr/share/zsh/vendor-completions/_smolet
put 644 "$pages/smolet.fish" /usr/share/fish/vendor_completions.d/smolet.fish
for page in "$pages"/*.8; do
    pack "$page" "/usr/share/man/man8/${page##*/}.gz"
done
doc=/usr/share/doc/smolet
pack "$repo/README.md" "$doc/README.md.gz"
pack "$repo/CHANGELOG.md" "$doc/changelog.gz"
for page in "$repo"/docs/*.md; do
    pack "$page" "$doc/docs/${page##*/}.gz"
done
put 644 "$dist/systemd/embedded.conf" "$doc/systemd/embedded.conf"
put 644 "$dist/systemd/k3s.conf" "$doc/systemd/k3s.conf"
put 755 "$dist/openrc/smolet" "$doc/openrc/smolet"
put 644 "$dist/openrc/logrotate" "$doc/openrc/logrotate"
for example in "$repo"/examples/gateway/*.yaml; do
    put 644 "$example" "$doc/examples/${example##*/}"
done
copyright >"$root$doc/copyright"

mkdir "$root/DEBIAN"
install -m 755 "$dist"/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
# dpkg keeps the sums of what is the user's to change by itself.
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
cat >"$root/DEBIAN/control" <<E
Package: smolet
Version: $version
Architecture: $arch
Maintainer: smolet maintainers <maintainers@smolet.invalid>
Installed-Size: $(du -k --apparent-size -s --exclude=DEBIAN "$root" | cut -f1)
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

# Directories that tell nothing of when or by whom this ran.
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
package=$out/smolet_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
