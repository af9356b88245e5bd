#!/bin/bash
# Checks that the packages required by the design are direct dependencies and used by code.
set -euo pipefail
cd "$(dirname "$0")/.."

named=(zookeeper-client tokio async-stream thiserror tracing proptest)
direct=$(cargo tree --workspace --all-features --edges normal,dev --depth 1 --no-dedupe --prefix none --format '{p}' | cut -d' ' -f1)
wrong=0
for package in "${named[@]}"; do
    if ! grep -qx "$package" <<<"$direct"; then
        echo "no member of the workspace depends on $package" >&2
        wrong=1
    fi
    # A path into it, outside of comments.
    if ! grep -rqE --include='*.rs' "^([^/]|/[^/])*\b${package//-/_}(::| as )" src recipes cli zookeeper-client tests examples benches; then
        echo "no code uses $package" >&2
        wrong=1
    fi
done
if [ $wrong -ne 0 ]; then exit 1; fi
echo "${named[*]}: all used"
