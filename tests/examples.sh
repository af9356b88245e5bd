#!/bin/sh
# Runs the examples against one store, and checks their output.
#
#   tests/examples.sh [URL]          URL is memory: (default), file:PATH, lockkeeper://HOST:PORT or zookeeper://HOST:PORT
#   EXAMPLES=DIR tests/examples.sh   uses the programs in DIR instead of building them
set -eu

cd "$(dirname "$0")/.."
url=${1:-memory:}
if [ -z "${EXAMPLES:-}" ]; then
    cargo build --quiet --release --package lockkeeper --features file --examples
    EXAMPLES=${CARGO_TARGET_DIR:-target}/release/examples
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Ledgers that fail on purpose are kept, so keep them here and not in the system's directory.
export TMPDIR="$work"

fail() {
    echo "tests/examples.sh: $url: $*" >&2
    sed 's/^/    /' "$work/out" "$work/err" >&2
    exit 1
}

# expect STATUS PROGRAM ARGUMENT...
expect() {
    wanted=$1 program=$2 status=0
    shift 2
    "$EXAMPLES/$program" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = "$wanted" ] || fail "$program $*: exit status $status, not $wanted"
}

# holds PYTHON-EXPRESSION: checks the summary's fields, on the last line of the output.
holds() {
    tail -n 1 "$work/out" | python3 -c '
import json, sys
summary = json.loads(sys.stdin.read())
sys.exit(not eval(sys.argv[1], {}, summary))' "$1" || fail "not so: $1"
}

says() {
    cat "$work/out" "$work/err" | grep -qF -- "$1" || fail "nothing said of: $1"
}

right='balances_correct and applied == transfers and surplus == overlaps == token_regressions == 0'

# The checked-in input equals the generator's output.
python3 examples/data/generate.py "$work"
for file in accounts.csv transfers.csv; do
    cmp -s "examples/data/$file" "$work/$file" || fail "$file is not what generate.py makes"
done

# The main job, and its complete summary.
expect 0 ledger --url "$url" --json
holds "$right and transfers == grants == 3000 and workers == 8 and crashed == 0 and url == '$url'"
holds '0 <= wait_p50_us <= wait_p99_us'
says 'acquired at once'
says 'acquired after'
says 'queued behind'
says 'from here on one line a second'
[ "$(grep -cE 'acquired (at once|after)' "$work/out")" = 40 ] || fail 'not the first 40 grants in full'

# With --quiet, with all events, and continuing a ledger.
python3 examples/data/generate.py "$work" 100
set -- --url "$url" --json --accounts "$work/accounts.csv" --transfers "$work/transfers.csv"
expect 0 ledger "$@" --quiet --ledger "$work/kept.json"
holds "$right and grants == 100"
! grep -q 'acquired' "$work/out" || fail 'it is not quiet'
expect 0 ledger "$@" --quiet --ledger "$work/kept.json"
holds "$right and grants == 0 and posted_before == 100"
says '100 of 100, 100 of them before this run'
expect 0 ledger "$@" --all-events
holds "$right"
[ "$(grep -cE 'acquired (at once|after)' "$work/out")" = 100 ] || fail 'not all grants in full'
[ "$(grep -c ' released$' "$work/out")" = 100 ] || fail 'not all releases in full'

# Holders die in the middle of a write.
expect 0 ledger "$@" --crash 3
holds "$right and crashed == late_writes_refused == 3 and grants == 103"
says 'DIES while it holds the lock'
says 'its late write arrives and is refused'

# Without a lock it goes wrong.
expect 1 ledger "$@" --quiet --without-lock
holds 'overlaps > 0 and not balances_correct and applied < transfers'

# Malformed input is refused before anything is locked.
refused() {
    expect 1 ledger "$@"
    [ ! -s "$work/out" ] || fail 'something was done first'
}
malformed() {
    file=$1 line=$2 says=$3 text=$4
    cp "$work/accounts.csv" "$work/bad-accounts.csv"
    cp "$work/transfers.csv" "$work/bad-transfers.csv"
    sed -i "${line}s/.*/$text/" "$work/bad-$file.csv"
    refused --url "$url" --accounts "$work/bad-accounts.csv" --transfers "$work/bad-transfers.csv"
    says "bad-$file.csv, line $line: expected $says"
}
malformed transfers 1 'the header id,from,to,cents' 'id,from,to'
malformed transfers 4 '4 fields' '3,ACC-0001,ACC-0002'
malformed transfers 5 '4 fields' ''
malformed transfers 6 'id as a whole number' 'x,ACC-0001,ACC-0002,5'
malformed transfers 7 'an id of its own' '1,ACC-0001,ACC-0002,5'
malformed transfers 8 'an account that the accounts file opens' '7,ACC-0001,ACC-9999,5'
malformed transfers 9 'two different accounts' '8,ACC-0001,ACC-0001,5'
malformed transfers 10 'cents as a whole number from 1' '9,ACC-0001,ACC-0002,0'
malformed transfers 11 'cents as a whole number from 1' '10,ACC-0001,ACC-0002,1.5'
malformed transfers 101 'cents as a whole number from 1' '100,ACC-0001,ACC-0002,99999999999999999999'
malformed accounts 1 'the header account,cents' 'name,cents'
malformed accounts 2 'an account of 1 to 64' ',5'
malformed accounts 3 'each account once' 'ACC-0001,5'
malformed accounts 4 'cents as a whole number' 'ACC-0003,+5'
refused --url "$url" --transfers "$work/no-such-file.csv"
says 'no-such-file.csv: No such file'

# Invalid command lines.
expect 2 ledger --workers 0
expect 2 ledger --workers 3 --crash 3
says '--crash must be below the number of workers'
expect 2 ledger --without-lock --crash 1
expect 2 ledger --without-lock --workers 1

# The short examples print the output in their file headers, except for tokens and epochs.
short='leader_election lock_all lock_events mutex rwlock semaphore'
for program in $short; do
    expect 0 "$program" "$url"
    sed -E 's/(token|epoch) [0-9]+/\1 N/' "$work/out" >"$work/seen"
    sed -n '/^\/\/! Output/,/^use/p' "examples/$program.rs" |
        sed -n '/^\/\/! ```text/,/^\/\/! ```$/p' | sed -E '/```/d; s/^\/\/! ?//' >"$work/shown"
    [ -s "$work/shown" ] || fail "the head of $program shows no output"
    diff "$work/shown" "$work/seen" >"$work/err" || fail "$program prints something else"
done

# start NAME: starts a service instance with leader election in the background, with its pid in $pid.
start() {
    : >"$work/$1"
    "$EXAMPLES/leader_election" "$url" "$1" >"$work/$1" 2>&1 &
    pid=$!
    started="${started:-} $pid"
}
trap 'kill -9 ${started:-} 2>/dev/null || :; rm -rf "$work"' EXIT

# until_says NAME TEXT: waits until the instance has printed the text.
until_says() {
    tries=0
    until grep -qF -- "$2" "$work/$1"; do
        cp "$work/$1" "$work/out"
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$1 has not said: $2"
        sleep 0.05
    done
}

# stop NAME PID: sends SIGTERM, and checks that it exits cleanly.
stop() {
    kill -TERM "$2"
    status=0
    wait "$2" || status=$?
    cp "$work/$1" "$work/out"
    [ "$status" = 0 ] || fail "$1 ended with status $status"
    says "$1: stops"
}

# A leader resigns on SIGTERM, and an instance that never led leaves too.
start one
one=$pid
until_says one 'one: leads, epoch'
if [ "${url#*://}" != "$url" ]; then
    start two
    two=$pid
    until_says two 'two: stands by'
    start three
    three=$pid
    until_says three 'three: stands by'
    start four
    four=$pid
    until_says four 'four: stands by'
    stop four "$four"
    stop one "$one"
    until_says two 'two: leads, epoch'
    # After a leader is killed, the next one follows when its session has expired.
    kill -9 "$two"
    until_says three 'three: leads, epoch'
    stop three "$three"
    epochs=$(for name in one two three; do grep -F 'leads, epoch' "$work/$name"; done | grep -o '[0-9]*$')
    [ "$epochs" = "$(echo "$epochs" | sort -nu)" ] || fail "the epochs do not grow: $epochs"
else
    stop one "$one"
fi

# The ledger's help names every option, and invalid options are refused before anything is done.
for option in --help -h; do
    expect 0 ledger $option
    for text in --url --workers --transfers --accounts --ledger --crash --without-lock --all-events --quiet --json; do
        says "$text"
    done
done
expect 2 ledger --no-such-option
says "unexpected argument '--no-such-option'"
expect 2 ledger leftover
says 'leftover'
expect 2 ledger --url
says "a value is required for '--url"
expect 2 ledger --url redis://127.0.0.1
says 'unknown scheme "redis"'
[ ! -s "$work/out" ] || fail 'something was done first'
for program in $short; do
    expect 1 "$program" redis://127.0.0.1
    says 'redis'
    [ ! -s "$work/out" ] || fail 'something was done first'
done

# No server: each takes the connect timeout of 10 s to notice, so run them in parallel.
if [ "$url" = memory: ]; then
    for program in $short ledger; do
        set -- zookeeper://127.0.0.1:1
        [ "$program" != ledger ] || set -- --url "$@"
        (
            status=0
            timeout 30 "$EXAMPLES/$program" "$@" \
                >"$work/$program.out" 2>"$work/$program.err" || status=$?
            echo $status >"$work/$program.status"
        ) &
        started="${started:-} $!"
        absent="${absent:-} $!"
    done
    # shellcheck disable=SC2086
    wait $absent
    for program in $short ledger; do
        cp "$work/$program.out" "$work/out"
        cp "$work/$program.err" "$work/err"
        [ "$(cat "$work/$program.status")" = 1 ] || fail "$program goes on where nobody is there"
        says 127.0.0.1:1
    done
    says 'ledger: cannot connect to zookeeper://127.0.0.1:1'
fi

echo "examples at $url: all as expected"
