#!/bin/bash
# Checks that names in docs/ exist: tests in a column "test" or "tests", mutants in bold, and invariants of
# ARCHITECTURE.md in a column "invariant".
set -euo pipefail
cd "$(dirname "$0")/.."

mutants=$(basename -s .patch proof/mutants/*.patch | sort)
wrong=0

complain() {
    echo "$page: $*" >&2
    wrong=1
}

# Prints the cells below a heading (a pattern) in all tables of the page.
cells() {
    awk -F' *[|] *' -v heading="^($1)\$" '
        !/^\|/ { row = 0; next }
        ++row == 1 { column = 0; for (i = 2; i < NF; i++) if ($i ~ heading) column = i }
        row > 2 && column { print $column }' "$page"
}

# Prints each match of a pattern once, without quotes. No match is no failure.
names() {
    { grep -oE "$1" || true; } | tr -d '`*' | sort -u
}

# Returns 0 if a test or a module of tests has this name.
is_there() {
    local at=tests/recipes words word last
    read -ra words <<<"${1//::/ }"
    if [ "${words[0]}" = store ]; then
        at=tests/store
        words=("${words[@]:1}")
    elif [[ ${words[0]} =~ ^(hostile|commands)$ ]]; then
        at=cli/tests
    elif [ "${words[0]}" = lockkeeper ]; then
        at=cli/src
        words=("${words[@]:1}")
    elif [ "${words[0]}" = testkit ]; then
        at=tests/testkit/src
        words=("${words[@]:1}")
    elif [ "${words[0]}" = lockkeeper_sim ]; then
        at=proof/sim/src
        words=("${words[@]:1}")
    elif [ "${words[0]}" = queue_model ]; then
        at=proof/model/tests
    elif [ "${words[0]}" = queue ]; then
        at=recipes/src
    elif [[ ${words[0]} =~ ^(backend|client|core|engine|log|model|runtime|server|tls|wire)$ ]]; then
        at=src
    fi
    last=${words[-1]}
    unset 'words[-1]'
    for word in "${words[@]}"; do
        if [ -e "$at/$word.rs" ] || [ -d "$at/$word" ]; then
            at=$at/$word
        elif ! grep -q "^mod $word {" "$at.rs"; then
            return 1
        fi
    done
    [ ${#words[@]} -gt 0 ] && grep -qsE "fn $last\(|^mod $last \{" "$at.rs" "$at/mod.rs" && return
    [ -e "$at/$last.rs" ] || [ -d "$at/$last" ]
}

for page in docs/known-bugs.md docs/guarantees.md docs/proof.md; do
    tests=$(cells 'tests?' | names '`[^`]*`')
    for test in $tests; do
        is_there "$test" || complain "there is no test $test"
    done

    named=$(names '\*\*[a-z0-9]+(-[a-z0-9]+)+\*\*' <"$page")
    for mutant in $(comm -23 <(echo "$named") <(echo "$mutants")); do
        complain "there is no mutant $mutant"
    done

    for invariant in $(cells 'invariants?' | names '[0-9]+'); do
        grep -q "^$invariant\. \*\*" ARCHITECTURE.md || complain "there is no invariant $invariant"
    done

    while read -r row; do
        complain "this row has not as many columns as its heading: $row"
    done < <(awk -F'|' '!/^\|/ { row = 0; next } ++row == 1 { columns = NF } NF != columns' "$page")

    # Otherwise tables under other headings would pass unread.
    [ -n "$tests" ] || complain "no test is named"
    echo "$page: $(wc -w <<<"$tests") tests, $(wc -w <<<"$named") mutants"
done
exit $wrong
