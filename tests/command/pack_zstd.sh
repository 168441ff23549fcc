#!/usr/bin/env bash
# Compressed and aligned archives: what other programs extract from them, what a reader that
# knows only the manual makes of them, that they are the same for any -j, and that a damaged
# trailer leaves a compressed tar.
#
# Usage: pack_zstd.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"

# What gets smaller and what does not, over and below a block, one behind the other.
"$python" "$tests/pack_tree.py" make tree 2>/dev/null
mkdir tree/mixed
for i in 1 2 3 4 5; do
    yes "line $i" | head -c 300000 >tree/mixed/a$i || true
    head -c $((i * 30000)) /dev/urandom >tree/mixed/b$i
    yes "small $i" | head -c 2000 >tree/mixed/c$i || true
    head -c 5000 /dev/urandom >tree/mixed/d$i
done
{
    yes 'this gets smaller' | head -c 3000000
    head -c 3000000 /dev/urandom
    yes 'and this' | head -c 1000000
} >tree/mixed/large 2>/dev/null || true
truncate -s 20M tree/mixed/sparse
tr '\0' a </dev/zero | head -c 3000000 | dd of=tree/mixed/sparse bs=1M seek=1 conv=notrunc status=none || true
head -c 1500000 /dev/urandom | dd of=tree/mixed/sparse bs=1M seek=10 conv=notrunc status=none
"$python" "$tests/pack_tree.py" list tree >tree.list

root_only=()
if [ "$(id -u)" -ne 0 ]; then
    root_only=(uid gid)
fi

# extracted WHAT FIELD...: compare x with the tree, without these fields.
extracted() {
    local what=$1
    shift
    "$python" "$tests/pack_tree.py" list tree "$@" "${root_only[@]}" >tree.some
    "$python" "$tests/pack_tree.py" list x "$@" "${root_only[@]}" >x.some
    sed -i -e '/"path": "\."/d' -e '/"path": "before1970/d' tree.some x.some
    same tree.some x.some "$what"
    chmod -R u+rwX x
    rm -rf x
    mkdir x
}
mkdir x

digest=
for options in '' --align=4096 --zstd '--zstd=1 --block=4K' '--zstd=5 --block=64K'; do
    name=a.tar
    case $options in *zstd*) name=a.tar.zst ;; esac
    for jobs in 1 2 8; do
        # shellcheck disable=SC2086
        run 0 "$onepot" pack -q -f -j $jobs $options -o $jobs.tar tree
    done
    same 1.tar 2.tar "the bytes with $options -j 2"
    same 1.tar 8.tar "the bytes with $options -j 8"
    mv 1.tar $name

    run 0 "$python" "$tests/onepot_reader.py" verify $name
    "$python" "$tests/onepot_reader.py" list $name >reader.list || fail 'the reader failed'
    same tree.list reader.list "what the reader finds with $options"
    run 0 "$onepot" verify $name
    found=$("$python" -c 'import sys
sys.path.insert(0, sys.argv[1])
import onepot_reader
print(onepot_reader.Archive(sys.argv[2]).image[208:224].hex())' "$tests" $name)
    [ -n "$digest" ] || digest=$found
    [ "$found" = "$digest" ] || fail "the digest with $options is another one"

    run 0 tar --warning=no-timestamp --xattrs --xattrs-include='*' --numeric-owner -xpf $name -C x
    silent "tar, $options"
    extracted "what tar extracts with $options"
    if command -v bsdtar >/dev/null; then
        run 0 bsdtar --numeric-owner -xpSf $name -C x
        silent "bsdtar, $options"
        extracted "what bsdtar extracts with $options"
    fi
    plain=$name
    if [ $name = a.tar.zst ]; then
        run 0 zstd -q -t $name
        silent "zstd -t, $options"
        run 0 zstd -q -d -f $name -o unpacked.tar
        plain=unpacked.tar
    fi
    run 0 "$python" -c 'import sys, tarfile
with tarfile.open(sys.argv[1]) as t: t.extractall("x", numeric_owner=True)' $plain
    silent "tarfile, $options"
    extracted "what tarfile extracts with $options" mtime_ns xattrs nlink:symlink
done

# ---- a damaged trailer ----
run 0 "$onepot" ls -R a.tar.zst
cp out whole.list
size=$(stat -c %s a.tar.zst)
cp a.tar.zst damaged.tar.zst
printf 'X' | dd of=damaged.tar.zst bs=1 seek=$((size - 100)) conv=notrunc status=none
run 0 "$onepot" ls -R damaged.tar.zst
same whole.list out 'what is left with a damaged footer'
cat a.tar.zst a.tar.zst >twice.tar.zst
run 0 "$onepot" ls -R twice.tar.zst
same whole.list out 'what is in an archive to which another was appended'

finish
