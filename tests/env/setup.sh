#!/bin/bash
# Installs what the build, the tests and the demo need on Debian 12 and is not there yet; quiet and idempotent.
#
#   setup.sh runtime     containerd, runc, CNI plugins, static busybox, iptables, nftables, zstd
#   setup.sh systemd     systemd, its tools and a bus daemon, not started
#   setup.sh board       what makes and emulates a board of ARM
#   setup.sh kernel      what emulates a machine with Debian's kernel
#   setup.sh crun        crun, the other OCI runtime
#   setup.sh criu        CRIU of Debian 13, unpacked into .cache/tools: that of Debian 12 knows no kernel after 6.11
#   setup.sh openrc      OpenRC and logrotate, unpacked into .cache/tools
#   setup.sh rust        a C linker, and Debian's Rust when no cargo is in PATH
#   setup.sh fuzz        a C++ compiler, which builds libFuzzer
#   setup.sh sign        minisign and signify, for the signatures of releases
#   setup.sh sbom        CycloneDX' library, which validates a release's list of parts, from PyPI into .cache/tools
#   setup.sh cargo-deny  the licence and dependency check, built from crates.io into .cache/tools
#
# A program that is already there, from whatever source, is kept: only missing ones are installed.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)

RUST_MIN=1.95

die() {
    echo "setup: $*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# install PACKAGE...: `apt-get update` only when something is to be installed.
install() {
    [ $# -gt 0 ] || return 0
    has apt-get || die "missing: $*. Without apt they have to be installed by hand"
    [ "$(id -u)" = 0 ] || die "missing: $*. Install them, or run this as root"
    echo "setup: installing $*"
    local log
    log=$(mktemp)
    if ! { apt-get -o DPkg::Lock::Timeout=300 -qq update &&
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y -qq \
            --no-install-recommends install "$@"; } >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "apt-get could not install $*; its output stands above"
    fi
    rm -f "$log"
}

runtime() {
    local need=()
    has containerd || need+=(containerd)
    has runc || need+=(runc)
    [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || need+=(containernetworking-plugins)
    has iptables || need+=(iptables)
    has ip || need+=(iproute2)
    # The tests look at the rules of smolet's own with it.
    has nft || need+=(nftables)
    # Images are made of it: a dynamic busybox would find no libc there.
    [ -n "$(busybox_static)" ] || need+=(busybox-static)
    # Some of their layers and archives are compressed with it.
    has zstd || need+=(zstd)
    install "${need[@]}"
}

systemd() {
    local need=()
    has systemctl || need+=(systemd)
    # The bus that logind is on.
    has dbus-daemon || need+=(dbus-daemon)
    [ -e /usr/share/dbus-1/system.conf ] || need+=(dbus-system-bus-common)
    has nsenter || need+=(util-linux)
    # It reads Yocto's recipe as BitBake does.
    has python3 || need+=(python3)
    install "${need[@]}"
}

board() {
    local need=()
    has mmdebstrap || need+=(mmdebstrap)
    # Both of one version: another one's qemu-utils, of a newer release say, cannot be there beside the emulator.
    if ! has qemu-system-aarch64 || ! has qemu-img; then
        local version
        version=$(apt-cache policy qemu-system-arm 2>/dev/null | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }')
        need+=(--allow-downgrades qemu-system-arm "qemu-utils${version:+=$version}")
    fi
    has qemu-aarch64-static || need+=(qemu-user-static)
    has update-binfmts || need+=(binfmt-support)
    has arch-test || need+=(arch-test)
    has mke2fs || need+=(e2fsprogs)
    has ssh || need+=(openssh-client)
    has depmod || need+=(kmod)
    has cpio || need+=(cpio)
    has xz || need+=(xz-utils)
    install "${need[@]}"
}

kernel() {
    local need=()
    has qemu-system-x86_64 || need+=(qemu-system-x86)
    has depmod || need+=(kmod)
    has cpio || need+=(cpio)
    [ -n "$(busybox_static)" ] || need+=(busybox-static)
    has ip || need+=(iproute2)
    has nft || need+=(nftables)
    install "${need[@]}"
}

# Not installed: the machine keeps the services it has.
openrc() {
    local root=$repo/.cache/tools/openrc debs file
    [ ! -e "$root/.done" ] || return 0
    has apt-get || die "missing: openrc. Without apt it cannot be had"
    apt-cache show openrc >/dev/null 2>&1 || apt-get -o DPkg::Lock::Timeout=300 -qq update >/dev/null
    debs=$(mktemp -d)
    (cd "$debs" && apt-get -qq download -o APT::Sandbox::User=root openrc libeinfo1 librc1 logrotate libpopt0 >/dev/null)
    rm -rf "$root"
    mkdir -p "$root"
    for file in "$debs"/*.deb; do
        # As on a machine that has /bin, /lib and /sbin in /usr.
        dpkg-deb --fsys-tarfile "$file" | tar -x -C "$root" --transform 's,^\./\(bin\|lib\|sbin\)/,./usr/\1/,'
    done
    rm -rf "$debs"
    touch "$root/.done"
}

crun() {
    local need=()
    # The program, not this function.
    type -P crun >/dev/null || need+=(crun)
    install "${need[@]}"
}

# With the libraries of its release, and their loader: nothing of it is installed.
criu() {
    local to=$repo/.cache/tools/criu apt uri options packages file
    [ ! -e "$to/.done" ] || return 0
    has apt-get || die "missing: criu. Without apt it cannot be had"
    apt=$to/apt
    rm -rf "$to"
    mkdir -p "$to/bin" "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
    : >"$apt/status"
    uri=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
        awk '$1 == "Packages" && $2 ~ /^(bookworm|trixie)$/ && $3 == "main" { print $4; exit }')
    [ -n "$uri" ] || die "apt has neither Debian 12 nor 13 here, from whose mirror CRIU comes"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri trixie main" >"$apt/sources.list"
    options=(-o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State=$apt/state"
        -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    echo "setup: unpacking CRIU"
    apt-get "${options[@]}" -qq update
    packages=$(apt-get "${options[@]}" -qq --simulate --no-install-recommends install criu | awk '$1 == "Inst" { print $2 }')
    # shellcheck disable=SC2086 # names
    (cd "$apt/debs" && apt-get "${options[@]}" -qq download $packages)
    for file in "$apt"/debs/*.deb; do dpkg-deb -x "$file" "$to/root"; done
    rm -rf "$apt"
    cat >"$to/bin/criu" <<E
#!/bin/sh
lib=$to/root/usr/lib/x86_64-linux-gnu
exec "\$lib/ld-linux-x86-64.so.2" --library-path "\$lib" $to/root/usr/sbin/criu "\$@"
E
    chmod 755 "$to/bin/criu"
    touch "$to/.done"
}

# The path of a statically linked busybox, if there is one.
busybox_static() {
    local path
    path=$(command -v busybox) || return 0
    # ELF programs name their loader in the first bytes; a static one has none.
    head -c 4096 "$path" | grep -qa 'ld-linux\|ld-musl' || echo "$path"
}

rust() {
    local need=()
    has cc || need+=(gcc libc6-dev)
    has git || need+=(git)
    # The server of the probes by HTTPS.
    has openssl || need+=(openssl)
    if ! has cargo; then
        if [ -x "$HOME/.cargo/bin/cargo" ]; then
            die "cargo is in $HOME/.cargo/bin but not in PATH; run '. $HOME/.cargo/env' first"
        fi
        need+=(cargo-web rustc-web rust-web-clippy rustfmt-web)
        install "${need[@]}" || true
    else
        install "${need[@]}"
    fi
    has cargo || die "no Rust toolchain: Debian's cargo-web could not be had; install one with https://rustup.rs"
    local version
    version=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" != "$RUST_MIN" ]; then
        die "rustc $version is too old; smolet needs $RUST_MIN or newer: rustup update stable"
    fi
}

fuzz() {
    local need=()
    has c++ || need+=(g++)
    install "${need[@]}"
}

# Not optimised: it is built in half the time, and used for a second.
cargo_deny() {
    local tools=$repo/.cache/tools
    [ -x "$tools/bin/cargo-deny" ] || has cargo-deny ||
        CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root "$tools" cargo-deny
}

sign() {
    local need=()
    has minisign || need+=(minisign)
    has signify-openbsd || has signify || need+=(signify-openbsd)
    has openssl || need+=(openssl)
    install "${need[@]}"
}

sbom() {
    local to=$repo/.cache/tools/sbom need=()
    [ ! -e "$to/.done" ] || return 0
    python3 -m pip --version >/dev/null 2>&1 || need+=(python3-pip)
    install "${need[@]}"
    rm -rf "$to"
    # What else is installed on the machine and wants other versions is not touched: pip says so, for nothing.
    python3 -m pip install -q --root-user-action=ignore --target "$to" 'cyclonedx-python-lib[json-validation]==11.6.0' 2>/dev/null ||
        die "pip cannot install cyclonedx-python-lib; python3 -m pip install says why"
    touch "$to/.done"
}

[ $# -gt 0 ] || set -- runtime rust
for part; do
    case $part in
    runtime) runtime ;;
    systemd) systemd ;;
    board) board ;;
    kernel) kernel ;;
    crun) crun ;;
    criu) criu ;;
    openrc) openrc ;;
    rust) rust ;;
    fuzz) fuzz ;;
    sign) sign ;;
    sbom) sbom ;;
    cargo-deny) cargo_deny ;;
    *) die "unknown part $part; one of: runtime systemd board kernel crun criu openrc rust fuzz sign sbom cargo-deny" ;;
    esac
done
