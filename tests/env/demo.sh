#!/bin/bash
# The demo: smolet on a private containerd, with the pods of a manifest directory; with RUNTIME=embedded it runs them itself.
#
#   demo.sh SMOLET DIR MANIFESTS    stays until Ctrl-C; with ONCE=1 it ends when every pod is as its manifest's
#                                   "# Expected: READY STATUS" line says: exit code 0, or 1 when one is not in time
#
# Everything lies in DIR and is removed at the end.
set -euo pipefail
export LC_ALL=C

[ $# -eq 3 ] || {
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
    exit 2
}
smolet=$(realpath "$1")
dir=$(realpath -m "$2")
manifests=$(realpath "$3")
runtime=$(cd "$(dirname "$0")" && pwd)/runtime.sh
readonly smolet dir runtime
readonly SECONDS_MAX=60
node=demo
log=$dir/agent.log
agent=

cleanup() {
    local code=$?
    trap '' INT TERM
    trap - EXIT
    if [ -n "$agent" ] && kill -s TERM "$agent" 2>/dev/null; then
        wait "$agent" 2>/dev/null || true
    fi
    if [ "$code" -ne 0 ] && [ -e "$log" ]; then
        echo "demo: the agent's last words:" >&2
        tail -n 40 "$log" >&2
    fi
    "$runtime" down "$dir"
    exit "$code"
}
trap cleanup EXIT
# Ctrl-C is how the demo ends.
trap 'exit 0' INT
trap 'exit 143' TERM

pods() { "$smolet" pods --socket "$dir/smolet.sock" "$@"; }

# "NAME-NODE READY STATUS" of each manifest.
expected() {
    local file
    for file in "$manifests"/*.yaml; do
        echo "$(basename "$file" .yaml)-$node $(sed -n 's/^# Expected: //p' "$file")"
    done | sort
}

# The same as the agent tells it; RESTARTS and AGE differ from run to run.
actual() {
    pods 2>/dev/null | awk '
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        { print $column["NAME"], $column["READY"], $column["STATUS"] }' | sort
}

if [ "${RUNTIME:-}" = embedded ]; then
    # The runtime is the agent, which has its manifests in DIR.
    SMOLET=$smolet "$runtime" up-embedded "$dir"
    eval "$("$runtime" env "$dir")"
    agent=$PID node=${CGROUP_ROOT#/} log=$dir/containerd.log
    started=$EPOCHREALTIME
    cp "$manifests"/*.yaml "$dir/manifests"
    manifests=$dir/manifests
else
    "$runtime" up "$dir"
    eval "$("$runtime" env "$dir")"
    started=$EPOCHREALTIME
    "$smolet" run --manifests "$manifests" --root-dir "$dir/smolet" --socket "$dir/smolet.sock" \
        --runtime-endpoint "$ENDPOINT" --cgroup-root "$CGROUP_ROOT" --node-name "$node" \
        --pod-logs-dir "$dir/logs/pods" --container-logs-dir "$dir/logs/containers" \
        </dev/null >"$log" 2>&1 &
    agent=$!
fi

# A crash-looping pod runs for a moment between its waits: the expected picture need only be seen once.
until [ "$(actual)" = "$(expected)" ]; do
    kill -0 "$agent" 2>/dev/null || { echo "demo: the agent ended" >&2; exit 1; }
    if [ "$(awk "BEGIN { print ($EPOCHREALTIME - $started > $SECONDS_MAX) }")" = 1 ]; then
        echo "demo: not as expected within $SECONDS_MAX s (< expected, > actual):" >&2
        diff <(expected) <(actual) >&2 || true
        exit 1
    fi
    sleep 0.1
done
pods -o wide
awk "BEGIN { printf \"\nall as expected after %.1f s\n\", $EPOCHREALTIME - $started }"

# A word from inside a pod: its address answers.
address=$(pods -o wide | grep -E "[[:space:]]web-$node[[:space:]]" | grep -oE '\b10(\.[0-9]+){3}\b')
exec 3<>"/dev/tcp/$address/8080"
printf 'GET / HTTP/1.0\r\n\r\n' >&3
page=$(tail -n 1 <&3)
exec 3>&-
echo "http://$address:8080/ says: $page"

[ "${ONCE:-}" != 1 ] || exit 0
cat <<E

The agent runs; change $manifests and watch:
  $smolet pods -o wide --socket $dir/smolet.sock
  $smolet describe crash-$node --socket $dir/smolet.sock
  tail -f $log
Ctrl-C ends it and removes everything.
E
# It is no child of ours where it is the runtime.
while kill -0 "$agent" 2>/dev/null; do sleep 1; done
