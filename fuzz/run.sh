#!/bin/bash
# Fuzzing with libFuzzer on the stable compiler: the flags below are what cargo-fuzz gives, less the address sanitizer,
# which needs a nightly one (the code has no `unsafe` of its own).
#   run.sh build            builds the targets
#   run.sh for SECONDS      runs each target for so long
#   run.sh smaller BYTES    replaces fuzz/corpus by the fewest inputs of at most so many bytes that reach as much
# TARGETS="http grpc" takes these only. New inputs go to target/fuzz/corpus; a finding ends the run, is said with its
# file, and stays in target/fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra targets <<<"${TARGETS:-manifests grpc log_lines http checkpoint kept archive spdy websocket x509 heads api_json tls}"
host=$(rustc -vV | sed -n 's/^host: //p')
build=target/fuzz

# fuzz TARGET OPTION... CORPUS...
fuzz() {
    local target=$1 options=()
    shift
    [ ! -f "fuzz/dictionaries/$target" ] || options=(-dict="fuzz/dictionaries/$target")
    mkdir -p "$build/artifacts/$target"
    "$build/$host/release/$target" "${options[@]}" -timeout=20 -rss_limit_mb=1024 -max_len=8192 \
        -artifact_prefix="$build/artifacts/$target/" "$@" >"$build/$target.log" 2>&1 || {
        tail -n 40 "$build/$target.log"
        return 1
    }
}

case ${1:-} in
build)
    # --target keeps the flags from build scripts.
    RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4" \
        cargo build --manifest-path fuzz/Cargo.toml --locked --release --quiet \
        --target "$host" --target-dir "$build"
    ;;
for)
    for target in "${targets[@]}"; do
        mkdir -p "$build/corpus/$target"
        # New inputs go to the first directory.
        fuzz "$target" -print_final_stats=1 -max_total_time="$2" "$build/corpus/$target" "fuzz/corpus/$target"
        printf '%-10s %9s executions in %s s, no finding\n' "$target" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")" "$2"
    done
    ;;
smaller)
    for target in "${targets[@]}"; do
        new=$build/smaller/$target
        rm -rf "$new"
        mkdir -p "$new"
        fuzz "$target" -merge=1 -max_len="$2" "$new" "fuzz/corpus/$target" "$build/corpus/$target"
        rm "fuzz/corpus/$target/"*
        # Short names: .gitignore passes over the ones that cargo-fuzz gives.
        for input in "$new"/*; do
            name=${input##*/}
            mv "$input" "fuzz/corpus/$target/${name:0:12}"
        done
    done
    ;;
*)
    sed -n '2,8s/^# \?//p' "$0"
    exit 2
    ;;
esac
