#!/bin/bash
# Builds smolet for ARM Linux and runs its tests under qemu-user, on Debian 12 x86-64 (root, apt).
# No `rustup target add`, no containers, no foreign architecture: std is built once per target, from the sources of the
# machine's own compiler: rustup's component rust-src, or the package rust-src of that version from the backports of
# Debian's next release. Where neither is, Debian's rustc-web and its sources are unpacked (not installed), a compiler half as
# quick. zig (ziglang on PyPI) links musl, qemu-user runs the tests. The machine's own cargo drives it, with RUSTC set. With
# the public `cross` tool instead: see cross/Cross.toml.
#
#   arm.sh check TARGET...        all of the following for each target, and a table of sizes and test counts
#   arm.sh build TARGET...        its first half: the release binary and the tests
#   arm.sh tests TARGET [NAME]    the tests alone, or those of one program: lib, agent, parts, program
#   arm.sh release TARGET...      the release binary alone
#   arm.sh setup [TARGET...]      tools, and std for each target (a minute for the first, half of one for each other)
#   arm.sh cargo TARGET ARG...    cargo ARG... for that target: build, test, run
#   arm.sh env TARGET             prints the exports, for: eval "$(cross/arm.sh env TARGET)"
#   arm.sh path TARGET            prints the target's build folder
#
# Targets: aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf arm-unknown-linux-musleabihf (armv6, Pi Zero)
#          arm-unknown-linux-musleabi (armv6 without a FPU) x86_64-unknown-linux-musl aarch64-unknown-linux-gnu
#          armv7-unknown-linux-gnueabihf
# ARM_HOME: where everything goes (default: .cache/arm of the repository). STD_OPT: opt-level of std (default "z").
# ARM_TESTS: integration tests. ARM_BRIEF: targets that have those of the program alone, which need no build of their own.
# TEST_SECONDS: how long one program's tests may take.
# ARM_PLAIN: targets that `build` and `check` take without TLS. SIZE_MAX, SIZE_MAX_PLAIN: bytes a release binary may have, for check.
# Tests that start ARM programs put the words of SMOLET_TEST_RUNNER before them; the machine's binfmt is not touched.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ARM_HOME=$(realpath -m "${ARM_HOME:-$repo/.cache/arm}")
STD_OPT=${STD_OPT:-z}
TEST_SECONDS=${TEST_SECONDS:-420}
ZIG_VERSION=0.15.2
TARGETS=(aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf arm-unknown-linux-musleabihf arm-unknown-linux-musleabi
    x86_64-unknown-linux-musl aarch64-unknown-linux-gnu armv7-unknown-linux-gnueabihf)
# Not here: repository (Cargo.lock, proto/ and the source are the same everywhere), sim (minutes under an emulator), attack (it
# would measure the emulator's memory), real (a machine of the target with containerd). `make arm-all` has more: vectors,
# hostile manifests, and LONG.
read -ra TESTS <<<"${ARM_TESTS:-agent parts program}"
# Modules of these that are not here for the same reasons: they time servers and lives of a process, or measure memory, or take
# minutes.
NOT_HERE=(--skip probe:: --skip streaming:: --skip crash::
    --skip allocations:: --skip grpc_memory:: --skip plan_space:: --skip pod_memory::)
# Targets whose binary is tested, and none of its parts.
BRIEF=${ARM_BRIEF:-}
PLAIN=${ARM_PLAIN:-aarch64-unknown-linux-musl}
# Tests that fill every structure: of the agent's two of them take three fifths of the time, of the library's six, with two that
# time cryptography, more than half. ARM_LONG=1 runs them.
LONG=(--skip full_structures_stay_within_their_limits --skip orphans_beyond_the_limit_of_a_relist_are_terminated_after_the_others
    --skip network_policy::tests::what_does_not_fit_is_named_once_and_denied
    --skip service_proxy::tests::endpoints_that_do_not_fit_are_left_out_and_their_service_named
    --skip service_proxy::tests::ten_thousand_services_fit
    --skip service_proxy::tests::services_that_do_not_fit_are_left_out_and_named
    --skip events::tests::a_full_ring_drops_entries_of_the_pod_with_the_most
    --skip events::tests::what_the_entries_of_pods_that_are_gone_have_left_is_left_out
    --skip node_api::peers::tests::handshakes_cost_no_more_than_the_share_of_an_address_and_that_of_all
    --skip tls::tests::verification_is_fast_however_the_certificates_are_linked)
[ -z "${ARM_LONG:-}" ] || LONG=()

# apt_packages TARGET...: only what those targets need.
apt_packages() {
    local need=() p want=(binutils qemu-user-static libz3-4 libedit2 libxml2)
    case " $* " in *aarch64-*-gnu\ *) want+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross) ;; esac
    case " $* " in *-gnueabihf\ *) want+=(gcc-arm-linux-gnueabihf libc6-dev-armhf-cross) ;; esac
    python3 -m pip --version >/dev/null 2>&1 || want+=(python3-pip)
    for p in "${want[@]}"; do
        dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || need+=("$p")
    done
    if [ ${#need[@]} -gt 0 ] || ! apt-cache show rust-web-src >/dev/null 2>&1; then
        apt-get -o DPkg::Lock::Timeout=300 -qq update >/dev/null
    fi
    if [ ${#need[@]} -gt 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y -qq \
            --no-install-recommends install "${need[@]}" >/dev/null
    fi
}

# Where the compiler and what is built for it lie; a compiler of another version takes another place.
SYSROOT=$ARM_HOME/tc-$(rustc --version | cut -d' ' -f2)/usr

# wrap PROGRAM PATH: bin/PROGRAM is the one at PATH, with the targets built here, after the words of ENVIRONMENT.
wrap() {
    printf '#!/bin/sh\n%sexec %s --sysroot %s "$@"\n' "${ENVIRONMENT:-}" "$2" "$SYSROOT" >"$ARM_HOME/bin/$1"
    chmod +x "$ARM_HOME/bin/$1"
}

compiler() {
    [ -e "$SYSROOT/.done" ] && return
    rm -rf "$ARM_HOME"/tc-* "$ARM_HOME/debs"
    mkdir -p "$SYSROOT/lib/rustlib" "$ARM_HOME/debs" "$ARM_HOME/bin"
    own_compiler || debian_compiler
    rm -rf "$ARM_HOME/debs"
    "$ARM_HOME/bin/rustc" --version
    touch "$SYSROOT/.done"
}

# The machine's own compiler, if the sources of its std are to be had.
own_compiler() {
    local version sysroot host program
    version=$(rustc --version | cut -d' ' -f2)
    sysroot=$(rustc --print sysroot)
    host=$(rustc -vV | sed -n 's/^host: //p')
    mkdir -p "$SYSROOT/lib/rustlib/src"
    if [ -e "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ]; then
        ln -sfn "$sysroot/lib/rustlib/src/rust" "$SYSROOT/lib/rustlib/src/rust"
    else
        debian_sources "$version" || return
        dpkg-deb --fsys-tarfile "$ARM_HOME"/debs/rust-src_*.deb |
            tar -x -C "$SYSROOT/.." --wildcards "./usr/src/rustc-$version/library" './usr/lib/rustlib/src' || return
    fi
    ln -sfn "$sysroot/lib/rustlib/$host" "$SYSROOT/lib/rustlib/$host"
    for program in rustc rustdoc; do wrap "$program" "$sysroot/bin/$program"; done
}

# debian_sources VERSION: downloads the package rust-src of that version, if the backports of the next release still have it:
# where a newer compiler comes first, and the sources of the ones before stay for a while. Lists of apt's own are not touched.
debian_sources() {
    local lists=$ARM_HOME/debs/apt mirror version options
    mirror=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
        awk '$1 == "Packages" && $2 == "bookworm" && $3 == "main" { print $4; exit }')
    [ -n "$mirror" ] || return
    mkdir -p "$lists/state/lists/partial" "$lists/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie-backports main" >"$lists/sources.list"
    options=(-o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State=$lists/state"
        -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" -qq update >/dev/null 2>&1 || return
    version=$(apt-cache "${options[@]}" madison rust-src | awk -v want="$1+" 'index($3, want) == 1 { print $3; exit }')
    [ -n "$version" ] || return
    (cd "$ARM_HOME/debs" && apt-get "${options[@]}" -qq download "rust-src=$version" >/dev/null 2>&1)
}

debian_compiler() {
    local v lib llvm f libraries
    v=$(apt-cache policy rustc-web | awk '/Candidate:/{print $2}')
    lib=$(apt-cache show "libstd-rust-web-dev=$v" | grep -o 'libstd-rust-web-[0-9][0-9.]*' | sort -u | tail -n 1)
    llvm=$(apt-cache show "$lib=$v" | grep -o 'libllvm[0-9]*' | sort -u | tail -n 1)
    rm -rf "$SYSROOT"; mkdir -p "$SYSROOT"
    (cd "$ARM_HOME/debs" && apt-get download -o APT::Sandbox::User=root "rustc-web=$v" "libstd-rust-web-dev=$v" "$lib=$v" "rust-web-src=$v" "$llvm" >/dev/null)
    for f in "$ARM_HOME"/debs/*.deb; do
        case $f in
        */rust-web-src_*) dpkg-deb --fsys-tarfile "$f" |
            tar -x -C "$SYSROOT/.." --wildcards './usr/src/rustc-*/library' './usr/lib/rustlib/src' ;;
        *) dpkg -x "$f" "$SYSROOT/.." ;;
        esac
    done
    libraries="LD_LIBRARY_PATH=$SYSROOT/lib/x86_64-linux-gnu "
    for f in rustc rustdoc; do ENVIRONMENT=$libraries wrap "$f" "$SYSROOT/bin/$f"; done
}

zig() {
    [ "$ARM_HOME/bin/zig-ar" -nt "$repo/cross/arm.sh" ] && return
    if [ ! -e "$ARM_HOME/zig/.$ZIG_VERSION" ]; then
        rm -rf "$ARM_HOME/zig"
        python3 -m pip install -q --no-deps --root-user-action=ignore --target "$ARM_HOME/zig" "ziglang==$ZIG_VERSION"
        touch "$ARM_HOME/zig/.$ZIG_VERSION"
    fi
    cat >"$ARM_HOME/bin/zig-cc" <<'E'
#!/bin/sh
# zig-cc HOME RUST_TARGET ARG...: `zig cc` for that target, without the flags that it refuses
home=$1; t=$2; shift 2
case $t in
aarch64-unknown-linux-musl) z="-target aarch64-linux-musl" ;;
armv7-unknown-linux-musleabihf) z="-target arm-linux-musleabihf -mcpu=generic+v7a+vfp3d16+thumb2" ;;
arm-unknown-linux-musleabihf) z="-target arm-linux-musleabihf -mcpu=arm1176jzf_s" ;;
arm-unknown-linux-musleabi) z="-target arm-linux-musleabi -mcpu=arm1176jz_s" ;;
x86_64-unknown-linux-musl) z="-target x86_64-linux-musl" ;;
*) echo "zig-cc: unknown target $t" >&2; exit 1 ;;
esac
n=$#
while [ "$n" -gt 0 ]; do
    a=$1; shift; n=$((n - 1))
    case $a in
    --target=*|-march=*|-mcpu=*|-mfpu=*|-mfloat-abi=*|-marm|-mthumb|-lgcc|-lgcc_eh|-lgcc_s) ;;
    -static-pie) set -- "$@" -static -pie ;;
    *) set -- "$@" "$a" ;;
    esac
done
export ZIG_GLOBAL_CACHE_DIR="$home/zig-cache" ZIG_LOCAL_CACHE_DIR="$home/zig-cache"
zig=$home/zig/ziglang/zig
case " $* " in *" -c "*) ZIG_LINK= ;; esac
[ -n "${ZIG_LINK:-}" ] || exec "$zig" cc $z "$@"
# build.rs leaves out the tables by which one unwinds. A backtrace is empty then, and libunwind, with the printf that it brings,
# serves nothing: what std would call does nothing instead.
for name in Backtrace GetIP GetIPInfo GetCFA GetGR SetGR SetIP GetLanguageSpecificData GetRegionStart GetTextRelBase \
    GetDataRelBase FindEnclosingFunction VRS_Get VRS_Set; do
    ZIG_LINK="$ZIG_LINK --defsym=_Unwind_$name=getpid"
done
for name in Resume RaiseException DeleteException; do ZIG_LINK="$ZIG_LINK --defsym=_Unwind_$name=abort"; done
# zig refuses options that its linker has: it says with which words it calls that, and they are put behind those.
said=$("$zig" cc $z "$@" -v 2>&1) || { echo "$said" >&2; exit 1; }
exec "$zig" $(echo "$said" | sed -n '/^ld\.lld /h; ${x;p}') $ZIG_LINK
E
    # What panics names file and line of smolet, and of others' crates the file; for x86-64, whose code is the longest, neither: the
    # message alone. `{:?}` of others' types says which variant it is, without its fields: nothing that smolet says has those, and
    # they were a hundredth of the binary.
    # For that alone a stable compiler is told to take unstable flags, and only for the targets' crates, so that no build
    # script takes it for a nightly one.
    cat >"$ARM_HOME/bin/rustc-places" <<'E'
#!/bin/sh
case " $* " in *" -C metadata="*) ;; *) exec "$@" ;; esac
case " $* " in *" --target "*) ;; *) exec "$@" ;; esac
case " $* " in
*" --crate-name smolet "*" x86_64-"*) places=none ;;
*" --crate-name smolet "*) places=file,line ;;
*" x86_64-"*) places=none debug=-Zfmt-debug=shallow ;;
*) places=file debug=-Zfmt-debug=shallow ;;
esac
# Symbols as without that: build.rs goes by their names.
RUSTC_BOOTSTRAP=1 exec "$@" -Zlocation-detail=$places $debug -Zunstable-options -Csymbol-mangling-version=legacy
E
    local t
    for t in "${TARGETS[@]}"; do
        case $t in *musl*) printf '#!/bin/sh\nexec %s/bin/zig-cc %s %s "$@"\n' "$ARM_HOME" "$ARM_HOME" "$t" >"$ARM_HOME/bin/cc-$t" ;; esac
    done
    printf '#!/bin/sh\nexec %s/zig/ziglang/zig ar "$@"\n' "$ARM_HOME" >"$ARM_HOME/bin/zig-ar"
    chmod +x "$ARM_HOME"/bin/*
}

std() { # builds std for one target and puts it into the unpacked compiler's sysroot
    local t=$1 lib=$SYSROOT/lib/rustlib/$1/lib w=$ARM_HOME/std/$1 done=.opt-$STD_OPT-small-places places=file
    [ -e "$lib/$done" ] && return
    case $t in x86_64-*) places=none ;; esac
    rm -rf "$w" "$lib"; mkdir -p "$w/src"
    echo '#![no_std]' >"$w/src/lib.rs"
    local opt=$STD_OPT; case $opt in s|z) opt="\"$opt\"" ;; esac
    cat >"$w/Cargo.toml" <<E
cargo-features = ["profile-rustflags"]
[package]
name = "stdshim"
version = "0.0.0"
edition = "2021"
[workspace]
[profile.release]
opt-level = $opt
codegen-units = 1
debug = false
[profile.release.package.panic_abort]
rustflags = ["-Cpanic=abort"]
E
    (cd "$w" && RUSTC=$ARM_HOME/bin/rustc RUSTC_BOOTSTRAP=1 __CARGO_DEFAULT_LIB_METADATA=stdshim RUSTFLAGS="-Cembed-bitcode=yes -Zlocation-detail=$places --remap-path-prefix=$SYSROOT/lib/rustlib/src/rust/=$(short_paths)" \
        cargo build -q --release --target "$t" --target-dir "$w/target" \
        -Zbuild-std=std,panic_abort,panic_unwind,test,proc_macro \
        -Zbuild-std-features=panic-unwind,optimize_for_size) # no names in backtraces, which stripped binaries have none of
    # What was built with another std does not fit this one, and cargo does not see that.
    rm -rf "${ARM_TARGET_DIR:-$ARM_HOME/target}/$t"
    mkdir -p "$lib"
    cp "$w/target/$t/release/deps/"*.rlib "$lib/"
    rm -rf "$lib"/libstdshim-* "$w"
    touch "$lib/$done"
}

# Flags by which what panics names a crate and its file, and not where this machine has them: no path of its, and 20 KB.
short_paths() {
    local sources=${CARGO_HOME:-$HOME/.cargo}/registry/src registry
    # The sources are fetched once, so that all builds have the same flags.
    [ -d "$sources" ] || (cd "$repo" && cargo fetch --quiet --locked)
    for registry in "$sources"/*/; do printf ' --remap-path-prefix=%s=' "$registry"; done
}

exports() {
    local t=$1 U u cc ar run= flags=
    U=$(tr a-z- A-Z_ <<<"$t"); u=${t//-/_}
    case $t in
    aarch64-*-gnu) cc=aarch64-linux-gnu-gcc ar=aarch64-linux-gnu-ar ;;
    armv7-*-gnueabihf) cc=arm-linux-gnueabihf-gcc ar=arm-linux-gnueabihf-ar ;;
    *) cc=$ARM_HOME/bin/cc-$t ar=$ARM_HOME/bin/zig-ar flags="-Clink-self-contained=no -Ctarget-feature=+crt-static" ;;
    esac
    flags+=$(short_paths)
    # Instructions that many functions have in a row stand there once, as a function: a twenty-fifth of the binary. For
    # aarch64 LLVM does so of its own accord where it optimises for size.
    case $t in x86_64-*) flags+=" -Cllvm-args=-enable-machine-outliner=always" ;; esac
    case $t in
    aarch64-*) run="qemu-aarch64-static -cpu cortex-a53" ;;
    armv7-*) run="qemu-arm-static -cpu cortex-a7" ;;
    arm-*) run="qemu-arm-static -cpu arm1176" ;;
    esac
    case $t in # the dynamic loader and libraries, for binaries that are not static
    aarch64-*-gnu) echo "export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu" ;;
    armv7-*-gnueabihf) echo "export QEMU_LD_PREFIX=/usr/arm-linux-gnueabihf" ;;
    esac
    echo "export RUSTC='$ARM_HOME/bin/rustc' RUSTDOC='$ARM_HOME/bin/rustdoc' CARGO_BUILD_TARGET=$t"
    echo "export CARGO_TARGET_${U}_LINKER='$cc' CC_$u='$cc' AR_$u='$ar'"
    echo "export CARGO_TARGET_${U}_RUSTFLAGS='$flags'"
    if [ -n "$run" ]; then echo "export CARGO_TARGET_${U}_RUNNER='$run' SMOLET_TEST_RUNNER='$run'"; fi
    # Another compiler to cargo: a target folder of its own keeps the two from rebuilding each other's work
    echo "export CARGO_TARGET_DIR='${ARM_TARGET_DIR:-$ARM_HOME/target}'"
}

# alone WHAT COMMAND...: while no other process does it.
alone() {
    local what=$1
    shift
    (flock 9; "$@") 9>"$ARM_HOME/$what.lock"
}

setup() {
    local t
    mkdir -p "$ARM_HOME/bin"
    alone apt apt_packages "$@"
    alone compiler compiler
    alone zig zig
    for t in "$@"; do echo "std for $t"; alone "std-$t" std "$t"; done
}

# Crates that cost much to optimise and are not where the tests' time goes.
UNOPTIMISED=(annotate-snippets clap_builder divan encoding_rs jiff k8s-openapi rustix serde-saphyr)

# names_of TARGET: the programs with tests that run for it.
names_of() {
    local name
    for name in lib "${TESTS[@]}"; do
        case " $BRIEF " in *" $1 "*) [ "$name" = program ] || continue ;; esac
        echo "$name"
    done
}

# run_tests TARGET NAME [--no-run]: the tests of that program. Some optimisation, since the emulator pays for each instruction, but
# not across codegen units, which costs more than it brings, and of smolet itself only where its tests take longer than that:
# of the agent's tests. Nothing for a debugger or a second build.
run_tests() {
    local t=$1 test=$2 name level=0 which=() common=()
    shift 2
    # What starts the release binary under the emulator is the machine's own program, as `make test` has built it.
    if [ "$test" = program ]; then
        if is_plain "$t"; then export SMOLET_TEST_PLAIN=1; fi
        export SMOLET_BIN=${SMOLET_BIN:-$CARGO_TARGET_DIR/$t/release/smolet}
        [ -e "$SMOLET_BIN" ] || { echo "arm.sh: $SMOLET_BIN is not there: arm.sh release $t" >&2; return 1; }
        env -u RUSTC -u RUSTDOC -u CARGO_BUILD_TARGET -u CARGO_TARGET_DIR \
            cargo test --locked --quiet --test program "$@" -- "${NOT_HERE[@]}"
        return
    fi
    # With the agent's tests the others are built in the same way, or smolet would be built twice.
    case "$test $(names_of "$t" | tr '\n' ' ')" in lib\ *) ;; *" agent "*) level=1 ;; esac
    if [ "$test" = lib ]; then which=(--lib); else which=(--test "$test"); fi
    if is_plain "$t"; then common+=(--no-default-features); fi
    for name in "${UNOPTIMISED[@]}"; do common+=(--config "profile.dev.package.$name.opt-level=0"); done
    export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_LTO=off CARGO_INCREMENTAL=0
    # Of the tests that take seeds, two each.
    export SMOLET_TEST_SEEDS=${SMOLET_TEST_SEEDS:-0..2}
    common+=(--config "profile.dev.package.smolet.opt-level=$level")
    if [ "$test" = lib ]; then
        cargo test --locked --quiet "${common[@]}" "${which[@]}" "$@" -- "${LONG[@]}"
    else
        cargo test --locked --quiet "${common[@]}" "${which[@]}" "$@" -- "${LONG[@]}" "${NOT_HERE[@]}"
    fi
}

# release ARG... -- TARGET...: all in one go: host crates are compiled once. ARG: cargo's.
release() {
    local t args=()
    while [ "$1" != -- ]; do args+=("$1"); shift; done
    shift
    for t in "$@"; do
        eval "$(exports "$t")"
        args+=(--target "$t")
    done
    export RUSTC_WRAPPER=$ARM_HOME/bin/rustc-places
    # The addresses that start-up code corrects as bits and not as 24 bytes each; functions that are the same once.
    (cd "$repo" && ZIG_LINK="--pack-dyn-relocs=relr --icf=all" cargo build --release --locked --quiet "${args[@]}")
}

# is_plain TARGET: whether that one is built without TLS.
is_plain() {
    case " $PLAIN " in *" $1 "*) ;; *) return 1 ;; esac
}

# releases TARGET...: those with TLS, then those without.
releases() {
    local t tls=() plain=()
    for t in "$@"; do if is_plain "$t"; then plain+=("$t"); else tls+=("$t"); fi; done
    [ ${#tls[@]} = 0 ] || release -- "${tls[@]}" || return 1
    [ ${#plain[@]} = 0 ] || release --no-default-features -- "${plain[@]}"
}

# build TARGET...: the release binaries and the tests, beside each other: much of both is one core's work.
build() {
    local t name release good=0
    setup "$@"
    cd "$repo"
    (releases "$@") &
    release=$!
    # In shells of their own: one target's exports are not the next one's.
    for t in "$@"; do
        # The machine's own program is left to its test: two builds into one folder would wait for each other.
        (eval "$(exports "$t")" && for name in $(names_of "$t"); do
            [ "$name" = program ] || run_tests "$t" "$name" --no-run || exit 1
        done) || good=1
    done
    wait "$release" && return "$good"
}

# check_one TARGET, which is built: its binary within SIZE_MAX, then the tests on it; a line of the table into
# $ARM_HOME/row-TARGET. In a shell of its own: one target's exports are not the next one's.
check_one() {
    local t=$1 start=$SECONDS max=${SIZE_MAX:-} binary size log tests name try status
    if is_plain "$t"; then max=${SIZE_MAX_PLAIN:-}; fi
    eval "$(exports "$t")"
    cd "$repo"
    binary=$CARGO_TARGET_DIR/$t/release/smolet
    size=$(stat -c %s "$binary")
    if [ "$size" -gt "${max:-$size}" ]; then
        echo "arm.sh: $binary: $size bytes, more than $max" >&2
        return 1
    fi
    rm -f "$ARM_HOME/test-$t"-*.log
    for name in $(names_of "$t"); do
        log=$ARM_HOME/test-$t-$name.log
        # An emulator of programs with threads can stop for good: such a run counts as none, is shown, and is done once more.
        for try in 1 2; do
            status=0
            SMOLET_BIN=$binary timeout --kill-after=10 "$TEST_SECONDS" "$repo/cross/arm.sh" tests "$t" "$name" >"$log" 2>&1 || status=$?
            [ "$status" != 0 ] || break
            cat "$log" >&2
            [ "$status" = 124 ] && [ "$try" = 1 ] || return 1
            echo "arm.sh: $t: the tests of $name were not done within $TEST_SECONDS s; they run once more" >&2
        done
    done
    tests=$(awk '/^test result: ok/ { n += $4 } END { print n }' "$ARM_HOME/test-$t"-*.log)
    # shellcheck disable=SC2059
    printf "$ROW" "$t" "$size" "$tests" $((SECONDS - start)) >"$ARM_HOME/row-$t"
}

ROW='%-32s %9s %13s %8s\n'

check() {
    build "$@"
    local t
    # One after the other: beside each other on two cores they would wait for each other.
    for t in "$@"; do (check_one "$t"); done
    # shellcheck disable=SC2059
    printf "$ROW" TARGET BYTES 'TESTS PASSED' 'TEST s'
    for t in "$@"; do cat "$ARM_HOME/row-$t"; done
}

cmd=${1:-}; shift || true
case $cmd in
build) [ $# -gt 0 ] || set -- "${TARGETS[@]}"; build "$@" ;;
check) [ $# -gt 0 ] || set -- "${TARGETS[@]}"; check "$@" ;;
tests)
    t=$1
    eval "$(exports "$t")"
    cd "$repo"
    for name in ${2:-$(names_of "$t")}; do run_tests "$t" "$name"; done
    ;;
release) [ $# -gt 0 ] || set -- "${TARGETS[@]}"; setup "$@"; release -- "$@" ;;
setup) [ $# -gt 0 ] || set -- "${TARGETS[@]}"; setup "$@" ;;
env) exports "$1" ;;
cargo) t=$1; shift; eval "$(exports "$t")"; exec cargo "$@" ;;
path) echo "${ARM_TARGET_DIR:-$ARM_HOME/target}/$1" ;;
*)
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
    exit 2
    ;;
esac
