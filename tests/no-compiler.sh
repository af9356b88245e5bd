#!/bin/sh
# Stands for the C compiler and the archiver of another system where Rust code is only checked: creates the file that it
# is asked for, empty, since nothing is linked.
#
# As `cc … -o FILE …` and `ar … FILE.a …`.
while [ $# -gt 0 ]; do
    case $1 in
    -o) : >"$2" ;;
    *.a) : >"$1" ;;
    esac
    shift
done
