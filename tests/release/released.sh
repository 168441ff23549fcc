#!/usr/bin/env bash
# Archives and saved indexes of every released version open with this one, by their own indexes;
# those of a later version are read without them, with a line that says what to do.
#
# tests/data/released/VERSION has what that version made of one tree: add a folder with each
# release (the commands are at the end of this file), and change none.
#
# Usage: released.sh ONEPOT SOURCE_ROOT
set -euo pipefail

onepot=$1
data=$2/tests/data/released
work=$(mktemp -d "${ONEPOT_TESTS_MEMORY:-/tmp}/onepot-released.XXXXXX")
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache

fail() {
    echo "FAILED: $*"
    exit 1
}

# reads ARCHIVE: what is in it is what was packed.
reads() {
    [ "$("$onepot" cat "$1" hello 2>>"$work/said")" = hello ] || fail "$1: hello"
    "$onepot" cat "$1" dir/numbers 2>>"$work/said" | cmp - <(seq 2000) || fail "$1: dir/numbers"
    "$onepot" ls "$1" 2>>"$work/said" | grep -qx empty || fail "$1: ls"
}

formats=$("$onepot" --version --json)

# Can this build read it? A codec or format may have been left out.
can_read() {
    local word
    case $1 in
    *.zip) word='"deflate"' ;;
    *.sqsh) word=SquashFS ;;
    *.gz) word='"gzip members"' ;;
    *.bz2) word='"bzip2 blocks"' ;;
    *) word='"tar"' ;;
    esac
    case $formats in *"$word"*) return 0 ;; esac
    echo "left out, since this build lacks $word: ${1##*/}"
    return 1
}

for version in "$data"/[0-9]*; do
    mkdir "$work/${version##*/}"
    cp "$version"/* "$work/${version##*/}/"
    for archive in "$work/${version##*/}"/*; do
        case $archive in *.onepot-index) continue ;; esac
        if ! can_read "$archive"; then continue; fi
        touch -d @1000000000 "$archive" # as its index has it
        : >"$work/said"
        reads "$archive"
        "$onepot" verify -q "$archive" 2>>"$work/said" || fail "$archive: verify"
        [ ! -s "$work/said" ] || fail "$archive: $(cat "$work/said")"
        # "embedded" or "saved": the index that it came with
        "$onepot" info --json "$archive" | grep -qE '"index_origin": "(embedded|saved)"' ||
            fail "$archive: its index is not used: $("$onepot" info --json "$archive" | grep origin)"
    done
    echo "${version##*/}: ok"
done

# later ARCHIVE: read all the same, and each command says in one line what to do.
later() {
    local name=${1##*/} command
    : >"$work/said"
    reads "$1"
    "$onepot" verify -q "$1" >>"$work/said" 2>&1 || : # that of this version says that it is a problem
    for command in ls info; do
        "$onepot" "$command" "$1" 2>"$work/once" >/dev/null || fail "$command of a later version: $name"
        [ "$(grep -c 'made by a later .*; .*use ' "$work/once")" = 1 ] ||
            fail "$command of a later version: $name: $(cat "$work/once")"
    done
    grep -q 'made by a later .*; .*use ' "$work/said" || fail "of a later version: $name: $(cat "$work/said")"
}

cp "$data"/newer/* "$work/"
for archive in footer.tar index.tar; do later "$work/$archive"; done
if can_read "$work/index.tar.zst"; then later "$work/index.tar.zst"; fi

# What leads to places in streams that this build can't enter is for others, too.
for archive in "$data"/0.1/*.bz2; do
    if can_read "$archive" >"$work/said"; then continue; fi
    cp "$archive" "$archive.onepot-index" "$work/"
    touch -d @1000000000 "$work/${archive##*/}"
    later "$work/${archive##*/}"
    cmp "$work/${archive##*/}.onepot-index" "$archive.onepot-index" || fail 'an index of points was replaced'
done

# A saved index is left to those who use that version, until somebody asks for another.
cp "$data/0.1/foreign.tar" "$work/"
touch -d @1000000000 "$work/foreign.tar"
later "$work/foreign.tar"
cmp "$work/foreign.tar.onepot-index" "$data/newer/foreign.tar.onepot-index" || fail 'a later index was replaced'
"$onepot" index "$work/foreign.tar" >/dev/null 2>&1
: >"$work/said"
reads "$work/foreign.tar"
[ ! -s "$work/said" ] || fail "a later index is not replaced: $(cat "$work/said")"
echo 'a later version: ok'
exit 0

# How a folder is made, with the tree in src:
#     onepot pack -o plain.tar src; onepot pack --zstd -o compressed.tar.zst src
#     tar -C src -cf foreign.tar .; gzip and bzip2 of the same; mksquashfs src foreign.sqsh; foreign.zip
#     touch -d @1000000000 foreign.*; onepot index foreign.*
