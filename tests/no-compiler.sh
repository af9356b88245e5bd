#!/bin/sh
# Replaces another system's C compiler and archiver where Rust code is only checked. Creates the requested file empty,
# because nothing is linked.
#
# Called as `cc … -o FILE …` and `ar … FILE.a …`.
while [ $# -gt 0 ]; do
    case $1 in
    -o) : >"$2" ;;
    *.a) : >"$1" ;;
    esac
    shift
done
