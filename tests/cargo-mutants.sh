#!/bin/bash
# Has cargo-mutants change the code, one expression or function at a time, and shows which changes no test notices.
#
#   tests/cargo-mutants.sh PART                 all mutants of a part: core, lease or queue
#   tests/cargo-mutants.sh PART --shard 3/40    one part of forty of them
#   tests/cargo-mutants.sh PART --list          lists them
#
# Other arguments are cargo-mutants' own. The mutants of tests/mutants are faults that somebody has thought of, and
# tests/mutants.sh runs those; these are of a tool that knows nothing of the code. Each takes a build, so a run over all
# of a part takes hours.
#
# core    src/core, by its own unit tests
# lease   src/backend/status.rs and lease.rs, by the unit tests of these
# queue   recipes/src/queue, by the tests of the mutex, the read-write lock and the semaphore, without a ZooKeeper
set -euo pipefail
cd "$(dirname "$0")/.."

# From crates.io.
version=27.1.0

part=${1:-}
shift || true
case $part in
core)
    mutants=(--package lockkeeper-store --file src/core.rs --file 'src/core/**')
    features=(--no-default-features --features 'file,server,test-util')
    tests=(--lib core::)
    ;;
lease)
    mutants=(--package lockkeeper-store --file src/backend/status.rs --file src/backend/lease.rs)
    features=(--no-default-features --features 'client,file,server,test-util')
    tests=(--lib backend::)
    ;;
queue)
    mutants=(--package lockkeeper --file recipes/src/queue.rs --file 'recipes/src/queue/**')
    features=(--no-default-features --features 'client,file,server,test-util')
    tests=(--lib --test recipes -- mutex:: rwlock:: semaphore:: cancel:: --skip model)
    ;;
*)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
    ;;
esac

# Nobody debugs a mutant, and without the symbols each is built sooner.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
export LOCKKEEPER_SECONDS=5 RUST_BACKTRACE=0
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
unset CARGO_TARGET_DIR
export PATH=$target/tools/bin:$PATH
if ! command -v cargo-mutants >/dev/null; then
    cargo install --locked "cargo-mutants@$version" --root "$target/tools"
fi
mkdir -p "$target/cargo-mutants/$part"
# A test that hangs has noticed the mutant, too.
exec cargo mutants --output "$target/cargo-mutants/$part" --timeout 20 \
    "${mutants[@]}" "${features[@]}" "$@" -- "${tests[@]}"
