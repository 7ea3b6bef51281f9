#!/bin/bash
# Puts a release together: every package of each architecture, the source, the layer for Yocto, the changes, what the programs are
# made of, sums and signatures.
#
#   release.sh PAGES OUT ARCH=TARGET=BINARY...
#
# The same commit and programs give the same bytes. MINISIGN_KEY, COSIGN_KEY, APK_KEY: the keys that sign, see dist/sign.sh and
# dist/build.sh; without them nothing is signed. cosign's signatures differ each time, as ECDSA's do. PARTS: a directory with the SBOMs, made and
# validated before, and a copyright of each architecture (dist/build.sh); then neither a compiler nor a program of others runs where the keys are,
# but Debian's.
set -euo pipefail
export LC_ALL=C
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dist=$repo/dist

die() {
    echo "release.sh: $*" >&2
    exit 1
}

[ $# -ge 3 ] || die "usage: release.sh PAGES OUT ARCH=TARGET=BINARY..."
pages=$1 out=$2
shift 2
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$repo/Cargo.toml" | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
# What is made there would have a set-group-ID bit of its parent's.
chmod g-s "$work"
trap 'rm -rf "$work"' EXIT
umask 022

# packed DIRECTORY NAME FILE: as dist/build.sh packs.
packed() {
    # The modes of a checkout are those of whoever made it.
    chmod -R u=rwX,go=rX "$1/$2"
    tar --create --format=ustar --sort=name --owner=root:0 --group=root:0 --mtime="@$SOURCE_DATE_EPOCH" -C "$1" "$2" | gzip -9n >"$3"
}

sums=
for one; do
    IFS='=' read -r arch target binary <<<"$one"
    for format in deb archive apk ipk; do
        # Of the architectures Alpine lacks one.
        [ "$format" != apk ] || [ "$arch" != armel ] || continue
        # The names of a published release have no directories: Alpine's are packed.
        to=$out
        [ "$format" != apk ] || to=$work
        "$dist/build.sh" "$arch" "$binary" "$pages" "$to" "$format" >/dev/null
    done
    sbom=smolet_${version}_$arch.cdx.json
    if [ -n "${PARTS:-}" ]; then cp "$PARTS/$sbom" "$out/"; else
        (cd "$repo" && "$dist/sbom.py" "$target" "$(rustc --version | cut -d' ' -f2)") >"$out/$sbom"
    fi
    sum=$(sha256sum <"$out/smolet_${version}_linux_$arch.tar.gz" | cut -d' ' -f1)
    sums+="SRC_URI[$arch.sha256sum] = \"$sum\""$'\n'
done
# What a machine can say of them by their own schema, before anyone else finds it wrong.
[ -n "${PARTS:-}" ] || PYTHONPATH=$repo/.cache/tools/sbom "$dist/sbom.py" --validate "$out"/*.cdx.json

# What is committed, and nothing else.
git -C "$repo" -c tar.umask=0022 archive --format=tar --prefix="smolet-$version/" HEAD | gzip -9n >"$out/smolet_${version}_source.tar.gz"

# fill FILE TO: a recipe with this release's version and sums.
fill() {
    while IFS= read -r line; do
        line=${line//@VERSION@/$version}
        line=${line//@LICENSE_MD5@/$license}
        line=${line//@SHA512@/$source}
        [ "$line" != @SUMS@ ] || line=${sums%$'\n'}
        printf '%s\n' "$line"
    done <"$1" >"$2"
}
license=$(md5sum <"$repo/LICENSE" | cut -d' ' -f1)
source=$(sha512sum <"$out/smolet_${version}_source.tar.gz" | cut -d' ' -f1)
cp -r "$dist/yocto/meta-smolet" "$work/"
recipe=$work/meta-smolet/recipes-containers/smolet
fill "$recipe/smolet-bin.bb.in" "$recipe/smolet-bin_$version.bb"
rm "$recipe/smolet-bin.bb.in"
cp "$repo/LICENSE" "$work/meta-smolet/"
packed "$work" meta-smolet "$out/smolet_${version}_yocto.tar.gz"
fill "$dist/alpine/APKBUILD.in" "$work/alpine/APKBUILD"
for hook in pre-install post-install post-upgrade pre-deinstall; do
    sed -e "/^#include state.sh\$/{r $dist/state.sh" -e 'd}' "$dist/alpine/$hook" >"$work/alpine/smolet.$hook"
    chmod 755 "$work/alpine/smolet.$hook"
done
packed "$work" alpine "$out/smolet_${version}_alpine.tar.gz"

# Of the changelog this version's part, and what is not released yet.
awk -v version="$version" '/^## / { inside = $2 == version || $2 == "Unreleased" } inside' "$repo/CHANGELOG.md" >"$out/CHANGES.md"
[ -s "$out/CHANGES.md" ] || die "CHANGELOG.md has no part about $version"

(cd "$out" && find . -type f ! -name 'SHA256SUMS*' -printf '%P\0' | sort -z | xargs -0 sha256sum) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$out/SHA256SUMS"
if [ -n "${MINISIGN_KEY:-}" ]; then "$dist/sign.sh" minisign "$out/SHA256SUMS"; fi
if [ -n "${COSIGN_KEY:-}" ]; then "$dist/sign.sh" cosign "$out/SHA256SUMS"; fi
