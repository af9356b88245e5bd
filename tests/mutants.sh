#!/bin/bash
# Applies one fault at a time to a copy of the code, and checks that the test meant for it fails.
#
#   tests/mutants.sh           all of proof/mutants
#   tests/mutants.sh NAME…     these only
#   tests/mutants.sh --check   only checks that each patch fits the code, as tests/run does
#
# tests/schemata.py runs them under the simulation, all in one build.
#
# A mutant is a patch. Its header has `Fault:`, what it breaks, and `Test:`, the test binary and the tests that must
# fail. The binaries are `unit` (unit tests of the store), `locks` (of the recipes), `commands` (of the command),
# `lockkeeper` (its own) and `sim` (of the simulation). A test that hangs has failed too.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
code=$root/target/mutants/code
export CARGO_TARGET_DIR=$root/target/mutants/build
# The copy is inside this repository but no part of it.
export GIT_CEILING_DIRECTORIES=$root/target/mutants
export LOCKKEEPER_SECONDS=10 RUST_BACKTRACE=0
# Builds are faster without symbols, and we do not debug mutants.
export CARGO_PROFILE_DEV_DEBUG=0
longest=30

if [ "${1:-}" = --check ]; then
    stale=0
    for patch in proof/mutants/*.patch; do
        git apply --check "$patch" || stale=$((stale + 1))
    done
    echo "proof/mutants: $stale of $(ls proof/mutants | wc -l) patches do not fit the code"
    exit $((stale > 0))
fi

mutants=("$@")
if [ $# -eq 0 ]; then
    for patch in proof/mutants/*.patch; do mutants+=("$(basename "$patch" .patch)"); done
fi

field() {
    sed -n "s/^$1: //p" "$root/proof/mutants/$2.patch"
}

# Builds the test binary $1 of the copy and prints its path.
binary() {
    local what=(-p lockkeeper --test "$1") name=$1
    if [ "$1" = store ]; then what=(-p lockkeeper-store --test store); fi
    if [ "$1" = commands ]; then what=(-p lockkeeper-cli --test commands); fi
    if [ "$1" = sim ]; then what=(-p lockkeeper-sim --bin lockkeeper-sim) name=lockkeeper-sim; fi
    if [ "$1" = lockkeeper ]; then what=(-p lockkeeper-cli --bin lockkeeper); fi
    if [ "$1" = locks ]; then what=(-p lockkeeper --lib) name=lockkeeper; fi
    if [ "$1" = unit ]; then what=(-p lockkeeper-store --lib) name=lockkeeper_store; fi
    (cd "$code" && cargo test -q "${what[@]}" --all-features --no-run --message-format=json) |
        sed -n "s/.*\"name\":\"$name\".*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1
}

# Runs the tests of mutant $1 in the current copy.
run_tests() {
    local test filters executable
    read -r test filters <<<"$(field Test "$1")"
    executable=$(binary "$test")
    # shellcheck disable=SC2086  # several filters are several words
    (cd "$code/$([ "$test" = recipes ] && echo recipes || echo .)" &&
        timeout $longest "$executable" $filters) >"$root/target/mutants/log" 2>&1
}

rm -rf "$code"
mkdir -p "$code"
# With a new time stamp, because cargo would take what the last mutant left built for up to date.
git ls-files -z | xargs -0 cp --parents -t "$code"

survivors=0
for mutant in "${mutants[@]}"; do
    if ! run_tests "$mutant"; then
        cat target/mutants/log
        echo "$mutant: its tests fail without it" >&2
        exit 1
    fi
    if ! grep -q '^test .* ok$' target/mutants/log; then
        echo "$mutant: there is no such test: $(field Test "$mutant")" >&2
        exit 1
    fi
done
for mutant in "${mutants[@]}"; do
    start=$SECONDS
    (cd "$code" && git apply "$root/proof/mutants/$mutant.patch")
    read -r test _ <<<"$(field Test "$mutant")"
    if ! binary "$test" >/dev/null; then
        echo "$mutant: the mutant does not compile" >&2
        exit 1
    fi
    verdict=caught
    if run_tests "$mutant"; then
        verdict=SURVIVED
        survivors=$((survivors + 1))
    fi
    (cd "$code" && git apply -R "$root/proof/mutants/$mutant.patch")
    printf '%-9s %-34s %3d s  %s\n' $verdict "$mutant" $((SECONDS - start)) "$(field Fault "$mutant")"
done
if [ $survivors -gt 0 ]; then
    echo "$survivors of ${#mutants[@]} mutants survived" >&2
    exit 1
fi
echo "${#mutants[@]} mutants, all caught"
