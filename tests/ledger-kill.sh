#!/bin/bash
# Kills the ledger example (SIGKILL) at random moments, with its locks in a directory, and restarts it
# until all transfers are done. The balances must be right, and no token may be refused, because
# each life opens the same store, whose tokens only grow.
#
#   tests/ledger-kill.sh [KILLS]          up to so many kills (default 10), while there is work left
#   EXAMPLES=DIR tests/ledger-kill.sh     uses the program in DIR instead of building it
set -euo pipefail

cd "$(dirname "$0")/.."
kills=${1:-10}
if ! [[ $kills =~ ^[1-9][0-9]*$ ]]; then
    sed -n '5,8s/^# *//p' "$0" >&2
    exit 2
fi
each=100 # transfers a kill
if [ -z "${EXAMPLES:-}" ]; then
    cargo build --quiet --release --example ledger
    EXAMPLES=${CARGO_TARGET_DIR:-target}/release/examples
    each=1000 # it is faster
fi
transfers=$((kills * each))
work=$(mktemp -d)
pid=
trap 'if [ -n "$pid" ]; then kill -9 "$pid" 2>/dev/null || :; fi; rm -rf "$work"' EXIT

fail() {
    echo "tests/ledger-kill.sh: after $killed kills: $*" >&2
    sed 's/^/    /' "$work/out" "$work/err" >&2
    exit 1
}

# field NAME: prints a field of the ledger on disk, or 0 if it is missing.
field() {
    python3 -c '
import json, sys
try:
    book = json.load(open(sys.argv[1]))
except FileNotFoundError:
    book = {}
value = book.get(sys.argv[2], 0)
print(len(value) if isinstance(value, list) else value)' "$work/ledger.json" "$1"
}

python3 examples/data/generate.py "$work" "$transfers"
options=(--url "file:$work/store" --ledger "$work/ledger.json" --quiet --json)
options+=(--accounts "$work/accounts.csv" --transfers "$work/transfers.csv")

# start: starts another life in the background, with its pid in $pid.
start() {
    "$EXAMPLES/ledger" "${options[@]}" >"$work/out" 2>"$work/err" &
    pid=$!
}

killed=0 lives=0
while [ "$killed" -lt "$kills" ]; do
    posted=$(field posted)
    start
    lives=$((lives + 1))
    # Every second life makes some progress and is killed in the middle of its work. The others may be killed anywhere,
    # even while the store is opened.
    if [ $((lives % 2)) = 0 ]; then
        until [ "$(field posted)" -gt $((posted + RANDOM % 100)) ]; do
            kill -0 "$pid" 2>/dev/null || break
        done
    fi
    sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
    if kill -9 "$pid" 2>/dev/null; then killed=$((killed + 1)); fi
    status=0
    { wait "$pid"; } 2>/dev/null || status=$?
    pid=
    case $status in
    137) ;;
    0) break ;; # all is through before it could be killed so often
    *) fail "a life ended with status $status" ;;
    esac
    [ ! -s "$work/err" ] || fail 'a life complained'
done

before=$(field grants)
status=0
start
wait "$pid" || status=$?
pid=
[ "$status" = 0 ] || fail "the last life ended with status $status"
[ ! -s "$work/err" ] || fail 'the last life complained'
tail -n 1 "$work/out" | python3 -c '
import json, sys
summary = json.loads(sys.stdin.read()) | {"wanted": int(sys.argv[1])}
wanted = "balances_correct and applied == transfers == wanted and surplus == overlaps == token_regressions == 0"
sys.exit(not eval(wanted, {}, summary))' "$transfers" || fail 'the summary is not right'

# A grant counts when its token is recorded. A killed life may have had one more than it posted.
grants=$(field grants) posted=$(field posted)
[ "$posted" = "$transfers" ] || fail "$posted transfers are posted"
[ "$grants" -ge "$transfers" ] && [ "$grants" -le $((transfers + killed)) ] ||
    fail "$grants grants for $transfers transfers, over $killed kills"
echo "ledger-kill: $killed kills in $((lives + 1)) lives; $transfers transfers, each once; $grants grants, \
$((grants - before)) of them in the last life; no token refused"
