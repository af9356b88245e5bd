#!/bin/bash
# Checks that every test, file and mutant that docs/known-bugs.md names exists, and that every mutant is named.
set -euo pipefail
cd "$(dirname "$0")/.."

table=docs/known-bugs.md
wrong=0

complain() {
    echo "$table: $*" >&2
    wrong=1
}

# Whether there is a test, or a module of tests, of this name.
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
    elif [[ ${words[0]} =~ ^(acl|backend|core|engine|log|server|tls|wire)$ ]]; then
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
    [ ${#words[@]} -gt 0 ] && grep -qs "fn $last(" "$at.rs" "$at/mod.rs" && return
    [ -e "$at/$last.rs" ] || [ -d "$at/$last" ]
}

# The code in the column of the tests, without its quotes.
tests=$(awk -F'|' '/^\|/ { print $4 }' $table | grep -o '`[^`]*`' | tr -d '`')
for test in $tests; do
    is_there "$test" || complain "there is no test $test"
done

named=$(awk -F'|' '/^\|/ { print $5 }' $table | grep -o '\*\*[^*]*\*\*' | tr -d '*' | sort -u)
patches=$(basename -s .patch tests/mutants/*.patch)
for mutant in $(comm -3 <(echo "$named") <(sort <<<"$patches")); do
    complain "$mutant is named here or in tests/mutants, and not in both"
done

# A change that is told in words names the file to be changed.
for file in $(awk -F'|' '/^\|/ { print $5 }' $table | grep -o '`[^` ]*\.rs`' | tr -d '`' | sort -u); do
    [ -n "$(find src recipes/src cli/src -path "*/$file" -print -quit)" ] || complain "there is no file $file"
done

while read -r row; do
    complain "this row has not four columns: $row"
done < <(awk -F'|' '/^\|/ && NF != 6' $table)
rows=$(grep -c '^| [^f-]' $table)
if [ $wrong -ne 0 ]; then exit 1; fi
echo "$table: $rows rows, $(wc -w <<<"$tests") tests, $(wc -w <<<"$named") mutants, all there"
