#!/bin/bash
# Measures the time that the command takes from its start to its end: by itself, and with one question to a server.
#
#   cargo build --release -p lockkeeper-cli && benches/start.sh [COMMAND]
#
# Goal: 25 ms each. It needs perf. Nothing fails here: the figures depend on the machine, so a person compares them.
set -euo pipefail
command=$(realpath "${1:-$(dirname "$0")/../target/release/lockkeeper}")
runs=100

folder=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT

# Prints the mean time of a run, and the processor's part of it.
measure() {
    local name=$1
    shift
    LC_ALL=C perf stat -x, -r "$runs" -e task-clock -o "$folder/perf" "$@" >"$folder/out"
    local processor elapsed
    processor=$(awk -F, '/task-clock/ { print $1 }' "$folder/perf")
    local from=${EPOCHREALTIME/[.,]/}
    for ((run = 0; run < runs; run++)); do "$@" >"$folder/out"; done
    elapsed=$(((${EPOCHREALTIME/[.,]/} - from) / runs))
    printf '%-42s %6d.%03d ms, of which %s ms of the processor\n' \
        "$name" $((elapsed / 1000)) $((elapsed % 1000)) "$processor"
}

"$command" serve --data "$folder/data" --listen 127.0.0.1:0 --listen "unix:$folder/socket" \
    >"$folder/ready" 2>"$folder/log" &
server=$!
until grep -q ready "$folder/ready"; do
    kill -0 "$server" || { cat "$folder/log" >&2; exit 1; }
    sleep 0.05
done
read -r _ _ address _ <"$folder/ready"

measure "lockkeeper --version" "$command" --version
measure "lockkeeper who, TCP" "$command" who orders --url "lockkeeper://$address"
measure "lockkeeper who, Unix socket" "$command" who orders --url "lockkeeper+unix://$folder/socket"
