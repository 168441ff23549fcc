#!/usr/bin/env bash
# The C library's interface: libonepot.so exports what loader/onepot.map says, by version, and is
# what programs expect that were linked with the last release (tests/data/libonepot-*.abi).
#
# Usage: abi.sh LIBRARY SOURCE_ROOT
set -euo pipefail

library=$1 root=$2
work=$(mktemp -d "${ONEPOT_TESTS_MEMORY:-/tmp}/onepot-abi.XXXXXX")
trap 'rm -rf "$work"' EXIT

command -v nm >/dev/null || {
    echo 'skipped: there is no nm'
    exit 77
}
awk '/^ONEPOT_[0-9.]+ \{/ { version = $1 } /^ *onepot_[a-z0-9_]+;$/ { gsub(/[ ;]/, ""); print $0 "@@" version }' \
    "$root/loader/onepot.map" | sort >"$work/wanted"
nm -D --defined-only --with-symbol-versions "$library" |
    awk '$2 != "A" && $NF !~ /^ONEPOT_/ { print $NF }' | sort >"$work/found"
diff "$work/wanted" "$work/found" || {
    echo 'FAILED: < is in loader/onepot.map alone, > in the library alone'
    exit 1
}
soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = libonepot.so.0 ] || {
    echo "FAILED: the soname is $soname"
    exit 1
}
echo "symbols: $(wc -l <"$work/found") as they should be"

if ! compgen -G "$root/tests/data/libonepot-*.abi" >/dev/null; then
    echo 'left out: the types, as there was no release yet'
elif ! command -v abidiff >/dev/null; then
    echo 'left out: the types, as there is no abidiff (abigail-tools)'
elif ! readelf -SW "$library" | grep -q debug_info; then
    echo 'left out: the types, as the library has no debug information'
elif [ "$(uname -m)" != x86_64 ]; then
    echo 'left out: the types, which are recorded for x86_64'
else
    # A structure that begins with its size may grow at its end: then this asks for a
    # '[suppress_type] name = ...' in a file for --suppressions, and for a careful look.
    # Of both, what the headers show. (Comparing a file with a library, abidiff of Debian 12 crashes.)
    facts=(--headers-dir "$root/loader/base" --no-show-locs --no-corpus-path --no-comp-dir-path
        --no-elf-needed --drop-private-types --type-id-style hash --exported-interfaces-only)
    abidw "${facts[@]}" --out-file "$work/now.abi" "$library"
    for released in "$root"/tests/data/libonepot-*.abi; do
        abidiff --no-added-syms "$released" "$work/now.abi" >"$work/said" || {
            cat "$work/said"
            echo "FAILED: ${released##*/}: programs that were linked with it would break"
            exit 1
        }
        echo "${released##*/}: ok"
    done
fi
exit 0

# A release adds $work/now.abi, made on x86_64, as tests/data/libonepot-VERSION.abi.
