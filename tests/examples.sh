#!/bin/sh
# Runs the examples against one store, and checks what they say of themselves.
#
#   tests/examples.sh [URL]          URL is memory: (default), file:PATH or zookeeper://host:port[/chroot]
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
# Ledgers that went wrong on purpose are kept: here, not in the system's folder.
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

# holds PYTHON-EXPRESSION: over the summary's fields, on the last line of the output.
holds() {
    tail -n 1 "$work/out" | python3 -c '
import json, sys
summary = json.loads(sys.stdin.read())
sys.exit(not eval(sys.argv[1], {}, summary))' "$1" || fail "not so: $1"
}

says() {
    cat "$work/out" "$work/err" | grep -qF -- "$1" || fail "nothing said of: $1"
}

right='balances_correct and applied == transfers and surplus == overlaps == token_regressions == order_violations == arrivals_unseen == 0'

# The input that the repository carries is what its generator makes.
python3 examples/data/generate.py "$work"
for file in accounts.csv transfers.csv; do
    cmp -s "examples/data/$file" "$work/$file" || fail "$file is not what generate.py makes"
done

# The main job, and everything that it says of itself.
expect 0 ledger --url "$url" --json
holds "$right and transfers == grants == 3000 and workers == 8 and crashed == 0 and url == '$url'"
holds '0 <= wait_p50_us <= wait_p99_us'
says 'acquired at once'
says 'acquired after'
says 'queued behind'
says 'from here on one line a second'
[ "$(grep -cE 'acquired (at once|after)' "$work/out")" = 40 ] || fail 'not the first 40 grants in full'

# Quiet, all events, and a ledger that is gone on with.
python3 examples/data/generate.py "$work" 100
set -- --url "$url" --json --accounts "$work/accounts.csv" --transfers "$work/transfers.csv"
expect 0 ledger "$@" --quiet --ledger "$work/kept.json"
holds "$right and grants == 100"
! grep -q 'acquired' "$work/out" || fail 'it is not quiet'
expect 0 ledger "$@" --quiet --ledger "$work/kept.json"
holds "$right and grants == 0 and posted_before == 100"
says '100 of 100, 100 of them before this run'
expect 0 ledger "$@" --events all
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

# The command line cannot be meant.
expect 2 ledger --workers 0
expect 2 ledger --workers 3 --crash 3
says '--crash must be below the number of workers'

# The other example checks itself.
expect 0 lock_events --url "$url"
says 'All events came as expected.'

# Nobody sees half a report, but for who does without the lock.
expect 0 report_cache --url "$url"
says 'is read over by its writer, with the same token, beside others'
says 'Every report was whole, and nobody had to wait out of turn.'
expect 1 report_cache --url "$url" --without-lock --editions 5
says 'HALF A REPORT'
expect 2 report_cache --readers 0
# Several locks at once.
expect 0 transfer --url "$url"
says 'nobody was stuck, and the sum is what it was: 400000 cents'
expect 0 batch_jobs --url "$url"
says 'and it was not done: did it'
says 'All 12 jobs are done, each once.'

# Elections.
expect 0 leader_election --url "$url"
says 'All is right: they led in the order of arrival'
says 'writes too late, and is refused'
expect 2 leader_election --candidates 2
expect 2 leader_election --processes --url memory:
expect 0 leader_election_service --url "$url" --path "/election/$$/demo" --demo
says 'The second took over from the first'
expect 0 leader_election_service --url "$url" --path "/election/$$/brief" --for 0.2
says 'stopping: the time is over'
expect 2 leader_election_service --for -1

# start NAME: an instance of the service, in the background; its pid is in $pid.
start() {
    : >"$work/$1"
    "$EXAMPLES/leader_election_service" --url "$url" --path "/election/$$/signals" --name "$1" \
        >"$work/$1" 2>&1 &
    pid=$!
    started="${started:-} $pid"
}
trap 'kill -9 ${started:-} 2>/dev/null || :; rm -rf "$work"' EXIT

# until_says NAME TEXT: waits until the instance has said so.
until_says() {
    tries=0
    until grep -qF -- "$2" "$work/$1"; do
        cp "$work/$1" "$work/out"
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$1 has not said: $2"
        sleep 0.05
    done
}

# stop NAME PID: by SIGTERM; it ends cleanly.
stop() {
    kill -TERM "$2"
    status=0
    wait "$2" || status=$?
    cp "$work/$1" "$work/out"
    [ "$status" = 0 ] || fail "$1 ended with status $status"
    for text in 'stopping: SIGTERM' "$1: stopped"; do says "$text"; done
}

# A leader that is told to stop resigns; so does one that never led.
start one
one=$pid
until_says one ready
until_says one 'one: leading epoch'
if [ "${url#zookeeper:}" != "$url" ]; then
    start two
    two=$pid
    until_says two 'two: standing by'
    start three
    three=$pid
    until_says three 'three: standing by'
    start four
    four=$pid
    until_says four 'four: standing by'
    stop four "$four"
    stop one "$one"
    until_says two 'two: leading epoch'
    # And one that is killed is followed by the next when its session has expired.
    kill -9 "$two"
    until_says three 'three: leading epoch'
    stop three "$three"
    epochs=$(for name in one two three; do grep -F 'leading epoch' "$work/$name"; done | grep -o '[0-9]*$')
    [ "$epochs" = "$(echo "$epochs" | sort -nu)" ] || fail "the epochs do not grow: $epochs"

    expect 0 leader_election --url "$url" --processes
    says 'All is right: they led in the order of arrival'
    says 'director: kills process 1, pid'
else
    stop one "$one"
fi
# The quota is kept while it changes.
expect 0 api_quota --url "$url"
says 'lowered from 4 to 2 while they work'
says 'No call was refused, and nothing is left behind.'

# What all have in common: help that names every option, and clear words for what cannot be.
all='api_quota batch_jobs leader_election leader_election_service ledger lock_events report_cache transfer'
for program in $all; do
    for option in --help -h; do
        expect 0 "$program" $option
        says "cargo run --release --example $program"
        says 'memory: (default), file:PATH'
        says 'or zookeeper://host:port[/chroot]'
        says 'Exit status: 0'
    done
    expect 2 "$program" --no-such-option
    says "$program: invalid option '--no-such-option' (see --help)"
    expect 2 "$program" leftover
    says 'leftover'
    expect 2 "$program" --url
    says "missing argument for option '--url'"
    expect 2 "$program" --url redis://127.0.0.1
    says 'unknown scheme "redis"'
    [ ! -s "$work/out" ] || fail 'something was done first'
done

# Nobody is there: it takes the connect timeout of 10 s to find out, for all at once.
if [ "$url" = memory: ]; then
    for program in $all; do
        (
            status=0
            timeout 30 "$EXAMPLES/$program" --url zookeeper://127.0.0.1:1 \
                >"$work/$program.out" 2>"$work/$program.err" || status=$?
            echo $status >"$work/$program.status"
        ) &
        started="${started:-} $!"
        absent="${absent:-} $!"
    done
    # shellcheck disable=SC2086
    wait $absent
    for program in $all; do
        cp "$work/$program.out" "$work/out"
        cp "$work/$program.err" "$work/err"
        [ "$(cat "$work/$program.status")" = 1 ] || fail "$program goes on where nobody is there"
        says "$program: no server gave a session at zookeeper://127.0.0.1:1"
    done
fi

echo "examples at $url: all as expected"
