#!/usr/bin/env bash
# onepot pack as a person meets it: what other programs extract from its archives, what a
# reader that knows only the manual makes of them, and that no half archive is ever left.
#
# Usage: pack.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"

# ---- the archive, and a reader that was written from its manual ----
"$python" "$tests/pack_tree.py" make tree
run 0 "$onepot" pack -o a.tar tree
if [ -s out ] || ! grep -q 'socket: left out: it is a socket' err; then
    fail "pack says: $(cat out err)"
fi
for jobs in 1 2 5; do
    run 0 "$onepot" pack -q -f -j $jobs -o again.tar tree
    same a.tar again.tar "the bytes with -j $jobs"
done

"$python" "$tests/pack_tree.py" list tree >tree.list
"$python" "$tests/onepot_reader.py" list a.tar >reader.list || fail 'the reader failed'
same tree.list reader.list 'what the reader finds'
run 0 "$python" "$tests/onepot_reader.py" verify a.tar
run 0 "$onepot" cat a.tar hl/a
same out tree/hl/a 'onepot cat'

# ---- where there is no file, there are sums all the same ----
mkdir -p nofile/dir/empty none
ln -s nowhere nofile/dir/link
for tree in nofile none; do
    for zstd in '' --zstd; do
        run 0 "$onepot" pack -q -f $zstd -o nofile.tar $tree
        run 0 "$python" "$tests/onepot_reader.py" verify nofile.tar
        run 0 "$onepot" verify -q nofile.tar
        run 0 "$onepot" info --json nofile.tar
        grep -qE '"digest": "[0-9a-f]{32}"' out || fail "no digest: $(cat out)"
    done
done

# ---- every flipped bit of a small archive is found ----
mkdir small
head -c 3000 /dev/urandom >small/one
printf 'x' >small/two
: >small/empty
truncate -s 1M small/hole
printf 'y' | dd of=small/hole bs=1 seek=500000 conv=notrunc status=none
run 0 "$onepot" pack -q small
[ -e small.onepot.tar ] || fail 'the default name is another one'
cat >flip.py <<'END'
import os, random, subprocess, sys
sys.path.insert(0, sys.argv[1])
sys.argv[0] = "onepot_reader"
import onepot_reader
original = open("small.onepot.tar", "rb").read()
rng = random.Random(7)
onepot_reader.Archive("small.onepot.tar").verify()
places = [rng.randrange(len(original) * 8) for _ in range(1500)]
places += [8 * (len(original) - 512 + i) for i in range(512)]
missed = []
for place in places:
    changed = bytearray(original)
    changed[place // 8] ^= 1 << place % 8
    with open("flipped.tar", "wb") as f:
        f.write(changed)
    try:
        onepot_reader.Archive("flipped.tar").verify()
        missed.append(place)
    except Exception:
        pass
print(missed if missed else "all found")
END
PYTHONDONTWRITEBYTECODE=1 "$python" flip.py "$tests" >flip.out
if [ "$(cat flip.out)" != 'all found' ]; then
    fail "bits that can be flipped: $(cat flip.out)"
fi

# ---- what other programs extract ----
# extracted NAME WITHOUT...: compare x with the tree, without these fields.
extracted() {
    local name=$1
    shift
    "$python" "$tests/pack_tree.py" list tree "$@" >tree.list
    "$python" "$tests/pack_tree.py" list x "$@" >x.list
    # bsdtar does not restore the time of the folder that it extracts into.
    sed -i '/"path": "\."/d' tree.list x.list
    if [ "$name" = bsdtar ]; then
        sed -i '/"path": "before1970/d' tree.list x.list
    fi
    same tree.list x.list "what $name extracts"
    chmod -R u+rwX x
    rm -rf x
    mkdir x
}
mkdir x
root_only=()
if [ "$(id -u)" -ne 0 ]; then
    echo 'not compared, since this is not root: owners, capabilities, devices'
    root_only=(uid gid)
fi
for locale in C C.UTF-8; do
    export LC_ALL=$locale
    run 0 tar --warning=no-timestamp --xattrs --xattrs-include='*' --numeric-owner -xpf a.tar -C x
    silent "tar in $locale"
    extracted tar "${root_only[@]}"

    if command -v bsdtar >/dev/null; then
        run 0 bsdtar --numeric-owner -xpSf a.tar -C x
        silent "bsdtar in $locale"
        extracted bsdtar "${root_only[@]}"
    else
        echo 'not compared: there is no bsdtar'
    fi

    # Times as floating point, no attributes, links to links as copies.
    run 0 "$python" -c 'import sys, tarfile
with tarfile.open(sys.argv[1]) as t: t.extractall("x", numeric_owner=True)' a.tar
    silent "tarfile in $locale"
    extracted tarfile mtime_ns xattrs nlink:symlink "${root_only[@]}"
done
export LC_ALL=C
run 0 tar -xOf a.tar size/10240
same out tree/size/10240 'tar of one member'

# ---- appended to, it is a tar like any other ----
for size in 0 5000 200000; do
    cp a.tar appended.tar
    head -c $size /dev/zero >new.file
    run 0 tar rf appended.tar new.file
    run 0 "$onepot" ls appended.tar
    grep -q '^new.file$' out || fail "$size bytes that tar appended are not seen"
done

# ---- no half archive ----
mkdir big target
for i in 1 2 3 4 5 6; do
    head -c 20M /dev/zero >big/$i
done
for signal in KILL TERM INT; do
    for _ in 1 2 3; do
        "$onepot" pack -q -o target/b.tar big 2>err &
        pid=$!
        until [ -n "$(ls -A target)" ] || ! kill -0 $pid 2>/dev/null; do :; done
        kill -$signal $pid 2>/dev/null || true
        status=0
        wait $pid 2>/dev/null || status=$?
        if [ -e target/b.tar ]; then
            run 0 "$python" "$tests/onepot_reader.py" verify target/b.tar
        elif [ $signal != KILL ]; then
            nothing target "SIG$signal"
            # Background jobs of a script ignore SIGINT.
            [ $signal = INT ] || [ $status -eq 143 ] || fail "SIG$signal made the status $status"
        fi
        rm -f target/*
    done
done

# ---- what a killed run left is removed by the next one ----
"$onepot" pack -q --zstd=22 -o target/k.tar.zst /usr/bin 2>err &
background=$!
until [ -n "$(ls -A target)" ] || ! kill -0 $background 2>/dev/null; do :; done
for _ in $(seq 600); do # until it is locked, too
    sleep 0.1
    ! grep -q ":$(stat -c %i target/*.partial) " /proc/locks || break
done
run 0 "$onepot" pack -q -o target/k.tar.zst small
says 'k.tar.zst.*partial: another process is writing the same archive'
[ "$(find target -name '*.partial' | wc -l)" -eq 1 ] || fail 'a partial file in use was removed'
kill -KILL $background
wait $background 2>/dev/null || true
background=
touch target/k.tar.zst.abc1ef.partial target/l.tar.zst.abcdef.partial
ln -s nowhere target/k.tar.zst.abcdef.partial
run 0 "$onepot" pack -q -f -o target/k.tar.zst small
says 'k.tar.zst.*partial: removed'
left=$(cd target && echo *)
[ "$left" = 'k.tar.zst k.tar.zst.abc1ef.partial k.tar.zst.abcdef.partial l.tar.zst.abcdef.partial' ] ||
    fail "what is left besides the archive: $left"
rm -f target/*
touch target/s-00000-of-00002.tar.abcdef.partial target/s-00001-of-00002.tar.abcdef.partial
run 0 "$onepot" pack -q --shards 2 --rank 0 --world 2 -o target/s.tar small
case $(cd target && echo *) in
's-00000-of-00002.tar.'??????'.ready s-00001-of-00002.tar.abcdef.partial') ;;
*) fail "a rank removes: $(cd target && echo *)" ;;
esac
# Where locks may hold on one node alone, a young file stays.
run 0 env ONEPOT_ASSUME_REMOTE=1 "$onepot" pack -q --shards 2 --rank 1 --world 2 -o target/s.tar small
says 'written on another node'
touch -d '20 minutes ago' target/s-00001-of-00002.tar.abcdef.partial
run 0 env ONEPOT_ASSUME_REMOTE=1 "$onepot" pack -qf --shards 2 --rank 1 --world 2 -o target/s.tar small
says 'partial: removed'
nothing_partial=$(find target -name '*.partial')
[ -z "$nothing_partial" ] || fail "left: $nothing_partial"
rm -f target/*

mkdir disk
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=30M none disk 2>/dev/null; then
    mounted=$work/disk
    run 1 "$onepot" pack -o disk/b.tar big
    nothing disk 'a full disk'
    if [ "$(wc -l <err)" -ne 1 ] || ! grep -q 'disk/b.tar: .*No space left on device.*; .*space' err; then
        fail "a full disk says: $(cat err)"
    fi
    # Full only when the index is written.
    used=$(stat -c %s a.tar)
    mount -o remount,size=$(((used - 20000) / 4096 * 4096)) disk
    run 1 "$onepot" pack -q -o disk/a.tar tree
    nothing disk 'a disk without room for the index'
    umount disk
    mounted=
else
    echo 'not tested: a full disk (it takes a mount of tmpfs)'
fi

# ---- what there is to pack ----
# dry ARGUMENT...: nothing is written, the archive is as large as was told, within 2 %, and the
# next command makes it.
dry() {
    local said next before
    before=$(echo * .*)
    run 0 "$onepot" pack --dry-run "$@"
    [ "$before" = "$(echo * .*)" ] || fail "--dry-run wrote: $(echo * .*)"
    next=$(sed -n 's/^next: onepot pack//p' out)
    said=$(sed -n 's/^packed: about \([0-9.]*\) MiB.*/\1/p' out)
    run 0 bash -c "exec \"\$0\" pack -q$next" "$onepot"
    awk -v said="$said" -v bytes="$(stat -c %s "${!#}")" 'BEGIN {
        part = said * 1048576 / bytes
        exit !(part > 0.98 && part < 1.02) }' ||
        fail "--dry-run tells of $said MiB, the archive has $(stat -c %s "${!#}") bytes"
}
mkdir -p "dry/deep/it's" dry/deep/b dry/deep/c/d
for i in $(seq 300); do head -c 9000 /dev/zero >"dry/deep/it's/$i"; done
ln "dry/deep/it's/1" "dry/deep/it's/again"
touch dry/deep/b/x dry/deep/c/d/1 dry/deep/c/2 dry/of.pyc
dry --exclude '*.pyc' "dry" -o "a name's.tar"
run 0 "$onepot" pack --dry-run --exclude '*.pyc' dry
inodes=$(find dry ! -name '*.pyc' -printf '%i\n' | sort -u | wc -l)
files=$(find dry ! -type d ! -name '*.pyc' | wc -l)
grep -q "^$files files, 2.6 MiB, $inodes inodes\$" out || fail "--dry-run says: $(cat out)"
awk 'NR > 2 && /bytes  |MiB  / { print $1, $NF }' out >found
printf '%s\n' "301 deep/it's" '4 deep/c' '2 deep/b' >expected
same expected found 'the folders'
run 0 "$onepot" pack --dry-run -o two.tar dry small
awk 'NR > 2 && /bytes  |MiB  |KiB  / { print $NF }' out | sort >found
printf '%s\n' dry small >expected
same expected found 'the sources'
run 2 "$onepot" pack --dry-run a.tar
says '--dry-run is for directories'
run 2 "$onepot" pack --dry-run --files-from x dry
run 1 "$onepot" pack --dry-run nowhere
if [ "$(id -u)" -ne 0 ]; then
    mkdir -m 0 dry/closed
    run 1 "$onepot" pack --dry-run dry
    says 'closed: can.t be read'
    rmdir dry/closed
else
    echo 'not tested: a folder that can not be read (root reads all)'
fi

# ---- refusals ----
run 1 "$onepot" pack small
grep -q 'small.onepot.tar: already exists; .*-f' err || fail "an existing name says: $(cat err)"
run 0 "$onepot" pack -f small
run 2 "$onepot" pack
run 2 "$onepot" pack -o - small
run 2 "$onepot" pack small tree
grep -q 'name the archive with -o' err || fail "two sources say: $(cat err)"
for option in --zstd=0 --zstd=23 --zstd=x --align=511 --align=3000 --block=1M '--zstd --block=3000' \
    '--zstd --block=16M' '--zstd --align=4096'; do
    # shellcheck disable=SC2086
    run 2 "$onepot" pack $option small
done
if [ -s /proc/version ] || [ -z "$(head -c 1 /proc/version 2>/dev/null)" ]; then
    echo 'not tested: a file of size 0 with something in it (/proc/version is none)'
else
    echo version >version.list
    run 1 "$onepot" pack -q -o version.tar --files-from version.list /proc
    says 'version: packed as empty'
    run 0 "$onepot" verify -q version.tar
fi
run 1 bash -c 'ulimit -f 10 && exec "$@"' - "$onepot" pack -q -o limit.tar big
says 'limit.tar: .*ulimit -f'
[ ! -e limit.tar ] || fail 'a limit on the size of files left an archive'
run 1 "$onepot" pack -o there.tar nowhere
if [ "$(wc -l <err)" -ne 1 ] || ! grep -q '^onepot: nowhere: ' err; then
    fail "a source that is not there says: $(cat err)"
fi
[ ! -e there.tar ] || fail 'a source that is not there made an archive'

# ---- a link in the place of what is written ----
mkdir real sticky
echo old >real/precious
chmod 600 real/precious
ln -s "$PWD/real/precious" link.tar
run 0 "$onepot" pack -q -f -o link.tar small
[ -L link.tar ] || fail 'a link of the user is replaced, and not what it leads to'
same real/precious small.onepot.tar 'what is packed onto a link'
if [ "$(id -u)" -ne 0 ] || [ "$(cat /proc/sys/fs/protected_symlinks)" != 1 ]; then
    echo 'not tested: links of others (it takes root, and fs.protected_symlinks=1)'
else
    mkdir real/dir
    chmod 1777 sticky
    chmod 755 .
    ln -s "$PWD/real/precious" sticky/o.tar
    ln -s "$PWD/real/dir" sticky/dir
    ln -s "$PWD/real/new" sticky/new
    ln -s dir sticky/twice
    chown -h 54321:54321 sticky/*
    chown -h 0:0 sticky/twice # its target is still another user's link
    tar -cf small.tar small
    echo old >real/precious
    chmod 600 real/precious
    for source in small small.tar; do
        run 1 "$onepot" pack -q -f -o sticky/o.tar "$source"
        says 'sticky/o.tar: can.t be followed to a file: Permission denied'
    done
    for name in dir twice; do
        run 1 "$onepot" mount --at "sticky/$name" small.onepot.tar
        says 'sticky/.*link of another user\|another user.s symbolic link'
        run 1 "$onepot" umount "sticky/$name"
        run 1 "$onepot" mount --writable="sticky/$name" small.onepot.tar
        says 'Permission denied'
        run 1 "$onepot" stage --dir="sticky/$name" small.onepot.tar
        run 1 "$onepot" self-test --dir="sticky/$name"
        TMPDIR=$PWD/sticky/$name ONEPOT_RUNTIME_DIR=$PWD/sticky/$name run 1 "$onepot" mount small.onepot.tar
    done
    run 1 "$onepot" mount --log=sticky/new small.onepot.tar
    run 1 "$onepot" extract -C sticky/dir small.onepot.tar
    if [ "$(cat real/precious)" != old ] || [ "$(stat -c %a real/precious)" != 600 ] ||
        [ -n "$(ls -A real/dir)" ] || [ -e real/new ]; then
        fail "a link of another user was written through: $(ls -lA real real/dir)"
    fi
fi

finish
