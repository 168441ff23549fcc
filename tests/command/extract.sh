#!/usr/bin/env bash
# onepot extract as a person meets it: that files come back as they were, in every respect
# and whoever extracts them; that nothing leads out of the directory; what is left when
# something goes wrong.
#
# Usage: extract.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"
umask 022

# list DIR FILE FIELD...: but for the time of the top folder, which is not always restored.
list() {
    local dir=$1 file=$2
    shift 2
    "$python" "$tests/pack_tree.py" list "$dir" "$@" | sed '/"path": "\."/d' >"$file"
}

fresh() {
    chmod -R u+rwX x 2>/dev/null || true
    rm -rf x
}

# ---- everything comes back ----
"$python" "$tests/pack_tree.py" make tree 2>/dev/null
head -c 6M /dev/urandom >tree/large
cp tree/large tree/large_with_hole
truncate -s 9M tree/large_with_hole
run 0 "$onepot" pack -q -o a.tar tree
without=()
if [ "$(id -u)" -ne 0 ]; then
    echo 'not compared, since this is not root: owners, capabilities, devices'
    without=(uid gid)
fi
list tree tree.list "${without[@]}"
for jobs in 1 2 7; do
    fresh
    run 0 "$onepot" extract -q --privileged -j $jobs -C x a.tar
    list x x.list "${without[@]}"
    same tree.list x.list "what comes back with -j $jobs"
done
if [ -s err ] || [ -s out ]; then fail "extract -q is not silent: $(cat out err)"; fi

# ---- what tar makes of a foreign archive ----
tar -C tree --format=pax --xattrs -Scf foreign.tar . 2>/dev/null
mkdir by_tar
tar --xattrs --xattrs-include='*' --numeric-owner -C by_tar -xpf foreign.tar 2>/dev/null
list by_tar tar.list "${without[@]}" nlink
fresh
run 0 "$onepot" extract -q --privileged -C x foreign.tar
list x x.list "${without[@]}" nlink
same tar.list x.list 'a foreign tar'
chmod -R u+rwX by_tar
rm -rf by_tar
if has_squashfs; then
    # It reads each byte of holes of gigabytes.
    mksquashfs tree squash.img -quiet -no-progress -e sp/all sp/mid >/dev/null 2>&1
    list tree whole.list mtime_ns "${without[@]}"
    fresh
    run 0 "$onepot" extract -q --privileged -C x squash.img
    list x x.list mtime_ns "${without[@]}"
    # mksquashfs has its own mind on where holes are.
    sed -i '/"path": "\(sp\/\|large_with\)/d' whole.list x.list
    same whole.list x.list 'a SquashFS image'
    for file in sp/many sp/big large_with_hole; do
        same "tree/$file" "x/$file" "holes of a SquashFS image in $file"
    done
    [ "$(stat -c %Y x/size/512)" = "$(stat -c %Y tree/size/512)" ] || fail 'times of SquashFS'
else
    echo 'not tested: SquashFS (no mksquashfs, or onepot was built without it)'
fi

# ---- what gives rights ----
"$python" - <<'END'
import io, struct, tarfile
capability = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0).decode("latin-1")
with tarfile.open("rights.tar", "w", format=tarfile.PAX_FORMAT, encoding="latin-1") as tar:
    def add(name, kind=tarfile.REGTYPE, mode=0o755, link="", **pax):
        member = tarfile.TarInfo(name)
        member.type, member.mode, member.linkname, member.pax_headers = kind, mode, link, pax
        member.uid, member.gid, member.devmajor, member.devminor = os_uid, os_gid, 1, 3
        tar.addfile(member)
    import os
    os_uid, os_gid = os.getuid(), os.getgid()
    add("plain")
    add("dir", tarfile.DIRTYPE, 0o2755)
    add("setid", mode=0o6755)
    add("able", **{"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.k": "v"})
    add("null", tarfile.CHRTYPE, 0o666)
    add("null2", tarfile.LNKTYPE, link="null")
END
fresh
run 0 "$onepot" extract -p -C x rights.tar
says 'rights.tar: set-id bits, device nodes and attributes of the system are left out (of 4 members); --privileged'
[ "$(stat -c '%n %a' x/* | tr '\n' ,)" = 'x/able 755,x/dir 2755,x/plain 755,x/setid 755,' ] ||
    fail "without --privileged: $(stat -c '%n %a' x/* | tr '\n' ,)"
"$python" -c 'import os, sys; sys.exit("security.capability" in os.listxattr("x/able"))' ||
    fail 'a capability without --privileged'
fresh
run 0 "$onepot" extract --privileged -C x rights.tar -- plain setid
[ "$(stat -c %a x/setid)" = 6755 ] || fail "--privileged: $(stat -c %a x/setid)"
if [ "$(id -u)" -eq 0 ] && mknod probe.null c 1 3 2>/dev/null; then
    fresh
    run 0 "$onepot" extract --privileged -C x rights.tar
    grep -q 'left out' err && fail '--privileged leaves something out'
    if ! [ -c x/null ] || ! [ x/null -ef x/null2 ]; then fail 'a device by --privileged'; fi
fi

# ---- a part ----
fresh
run 0 "$onepot" extract -q -C x a.tar -- size/511 hl/b
( cd x && find . -type f | sort ) >out
printf './hl/b\n./size/511\n' >expected
same out expected 'two files of many'
same x/hl/b tree/hl/b 'a further name, alone'
[ "$(stat -c '%a %Y' x/size)" = "$(stat -c '%a %Y' tree/size)" ] || fail 'folders on the way'
fresh
run 0 "$onepot" extract -q -C x --path=sp --path hl/a a.tar
if [ ! -s x/sp/many ] || [ -e x/size ] || [ ! -e x/hl/a ]; then fail 'a folder and a file'; fi
fresh
run 1 "$onepot" extract -q -C x a.tar -- size/511 no/such
says 'onepot: a.tar: no/such: no such file or directory in the archive'
[ -e x/size/511 ] || fail 'the path that is there was not extracted'
run 1 "$onepot" extract -q -C x a.tar -- ../tree
fresh
run 0 "$onepot" extract -q -C x a.tar size/511
[ -e x/size/511 ] || fail 'a path without -- was not extracted'
run 1 "$onepot" extract -q -C x a.tar no-archive.tar
says 'no-archive.tar: no such file or directory in the archive, and no archive here'
run 2 "$onepot" extract -C x
run 2 "$onepot" extract -C x -- a.tar
run 2 "$onepot" extract -j 0 a.tar

# ---- several archives ----
mkdir -p one/dir two/dir
echo 1 >one/dir/a
echo 2 >two/dir/b
run 0 "$onepot" pack -q one
run 0 "$onepot" pack -q two
fresh
run 0 "$onepot" extract -C x one.onepot.tar two.onepot.tar
says 'onepot: one.onepot.tar and 1 more: 2 files,'
[ "$(cat x/dir/a x/dir/b | tr '\n' ,)" = 1,2, ] || fail 'two archives'
run 0 "$onepot" extract -q -f -C x one.onepot.tar two.onepot.tar -- dir/b
run 1 "$onepot" extract -q -f -C x one.onepot.tar two.onepot.tar -- dir/c
says 'dir/c: no such file or directory in the archives'

# They are one tree, as in a mount, whether words name them, a pattern, a list or a folder.
mkdir -p set three/dir
echo 3 >three/dir/a
tar -C one -cf set/1.tar dir
tar -C three -cf set/3.tar dir
printf '%s\n' set/1.tar set/3.tar >set.list
for words in 'set/1.tar set/3.tar' 'set' '@set.list' 'set/[13].tar'; do
    IFS=' ' read -ra words <<<"$words"
    fresh
    run 1 "$onepot" extract -C x "${words[@]}" --
    says "dir/a: is in 'set/1.tar' and in 'set/3.tar'; choose one with --on-conflict"
    [ ! -e x ] || fail "${words[*]}: something was extracted in spite of a conflict"
    for which in first:1 last:3; do
        for jobs in 1 7; do
            fresh
            run 0 "$onepot" extract -q -j $jobs --on-conflict=${which%:*} -C x "${words[@]}" --
            [ "$(cat x/dir/a)" = ${which#*:} ] || fail "${words[*]}: $which"
            run 1 "$onepot" extract -q --on-conflict=first -C x "${words[@]}" --
            says 'dir/a: can.*it exists already'
        done
    done
    fresh
    run 0 "$onepot" extract -q --each -C x "${words[@]}" -- 3
    if [ "$(cat x/3/dir/a)" != 3 ] || [ -e x/1 ]; then fail "${words[*]}: a path with --each"; fi
done
mkdir outer
cp set/1.tar outer/in.tar
tar -C outer -cf outer.tar in.tar
fresh
run 0 "$onepot" extract -q --nested --on-conflict=last -C x outer.tar set/3.tar
[ "$(cat x/in/dir/a x/dir/a | tr '\n' ,)" = 1,3, ] || fail 'two archives with --nested'
head -c 5000 /dev/urandom >set/2.tar
fresh
run 1 "$onepot" extract -C x set/1.tar set/2.tar two.onepot.tar
says 'set/2.tar: is not an archive'
[ ! -e x ] || fail 'something was extracted beside a damaged archive'
run 0 "$onepot" extract -q --skip-damaged -C x set/1.tar set/2.tar two.onepot.tar
[ "$(cat x/dir/a x/dir/b | tr '\n' ,)" = 1,2, ] || fail '--skip-damaged'

# ---- what is there already ----
fresh
mkdir -p x/dir
echo mine >x/dir/a
ln x/dir/a other_name
run 1 "$onepot" extract -C x one.onepot.tar
says 'onepot: one.onepot.tar: dir/a: can'
says 'replace what is there with -f'
[ "$(cat x/dir/a)" = mine ] || fail 'a file that was there was changed'
run 0 "$onepot" extract -q -f -C x one.onepot.tar
[ "$(cat x/dir/a other_name | tr '\n' ,)" = 1,mine, ] || fail 'what -f makes of it'
rm -rf x/dir/a && mkdir x/dir/a
run 1 "$onepot" extract -f -C x one.onepot.tar
says 'a directory is in its place'
rm other_name

# ---- nothing leads out ----
mkdir outside
fresh
mkdir x
ln -s ../outside x/dir
run 1 "$onepot" extract -C x one.onepot.tar
says 'dir: the directory can'
[ -z "$(ls -A outside)" ] || fail 'a symbolic link in place of a folder was followed'
run 0 "$onepot" extract -q -f -C x one.onepot.tar
if [ -L x/dir ] || [ -n "$(ls -A outside)" ]; then fail '-f followed a symbolic link'; fi
fresh
mkdir -p x/dir
echo untouched >outside/file
ln -s ../../outside/file x/dir/a
run 1 "$onepot" extract -q -C x one.onepot.tar
run 0 "$onepot" extract -q -f -C x one.onepot.tar
if [ -L x/dir/a ] || [ "$(cat outside/file)" != untouched ]; then fail 'a link was written through'; fi
"$python" - <<'END'
import io, tarfile
with tarfile.open("hostile.tar", "w") as t:
    def add(name, kind=tarfile.REGTYPE, link="", data=b"bad"):
        i = tarfile.TarInfo(name)
        i.type, i.linkname, i.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
        t.addfile(i, io.BytesIO(data))
    add("good", data=b"good")
    add("lnk", tarfile.SYMTYPE, "../outside")
    add("lnk/through")
END
fresh
run_status=0
"$onepot" extract -q -C x hostile.tar 2>/dev/null || run_status=$?
if [ "$(ls outside)" != file ] || [ "$run_status" -gt 1 ]; then fail 'a link of the archive was followed'; fi
for name in ../outside/evil /tmp/onepot-evil-absolute; do
    "$python" - "$name" <<'END'
import io, sys, tarfile
with tarfile.open("hostile.tar", "w") as t:
    i = tarfile.TarInfo(sys.argv[1])
    i.size = 3
    t.addfile(i, io.BytesIO(b"bad"))
END
    fresh
    "$onepot" extract -q -C x hostile.tar 2>/dev/null || true
    if [ -e outside/evil ] || [ -e /tmp/onepot-evil-absolute ]; then fail "$name was made"; fi
done
rm -f one.onepot.tar
run 0 "$onepot" pack -q one
mkdir self
cp one.onepot.tar self/self
run 0 "$onepot" pack -q -o self.tar self
cp self.tar self/self
rm -rf inplace && mkdir inplace && cp self.tar inplace/self
run 1 "$onepot" extract -f -C inplace inplace/self
says 'the archive itself is in its place'
same inplace/self self.tar 'the archive after it was extracted over itself'
gzip -k one.onepot.tar
for archives in 'one.onepot.tar inplace/self' 'inplace/self one.onepot.tar.gz'; do
    IFS=' ' read -ra archives <<<"$archives"
    run 1 "$onepot" extract -f -C inplace "${archives[@]}"
    says 'self: can.*the archive itself is in its place'
    same inplace/self self.tar 'one of two archives after it was extracted over itself'
done

# ---- damage ----
cp a.tar damaged.tar
"$python" - <<'END'
data = open("tree/size/10240", "rb").read()
big = open("tree/large", "rb").read()
archive = bytearray(open("damaged.tar", "rb").read())
for content, at in ((data, 5000), (big, 4 << 20)):
    place = archive.find(content[:4096])
    archive[place + at] ^= 4
open("damaged.tar", "wb").write(archive)
END
fresh
run 1 "$onepot" extract -C x damaged.tar
says 'size/10240: its bytes do not have the sum that they were packed with (offset '
says ': large: its bytes do not have the sum'
if [ "$(grep -c 'do not have the sum' err)" -ne 2 ]; then fail "damage: $(cat err)"; fi
if [ -e x/size/10240 ] || [ -e x/large ] || [ ! -e x/size/1024 ]; then fail 'a damaged file was left'; fi
offset=$(sed -n 's/.*: size\/10240: .*(\(offset [0-9]*\)).*/\1/p' err)
fresh
run 1 "$onepot" extract -C x one.onepot.tar damaged.tar
says "onepot: damaged.tar: size/10240: its bytes do not have the sum .*($offset)"

# ---- a full disk, and signals ----
mkdir disk
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=5M none disk 2>/dev/null; then
    mounted=$work/disk
    run 1 "$onepot" extract -C disk/x a.tar
    if [ "$(wc -l <err)" -ne 1 ] || ! grep -q 'a.tar: .*No space left on device; .*space' err; then
        fail "a full disk says: $(cat err)"
    fi
    if [ -e disk/x/large ] || [ -e disk/x/large_with_hole ]; then
        fail 'a full disk has an unfinished file'
    fi
    umount disk
    mounted=
else
    echo 'not tested: a full disk (it takes a mount of tmpfs)'
fi
mkdir many
for i in {1..16}; do cp tree/large "many/$i"; done
run 0 "$onepot" pack -q many
for signal in TERM HUP; do
    fresh
    mkdir x
    "$onepot" extract -C x many.onepot.tar 2>err &
    pid=$!
    until [ -n "$(ls -A x)" ] || ! kill -0 $pid 2>/dev/null; do :; done
    kill -$signal $pid 2>/dev/null || true
    status=0
    wait $pid 2>/dev/null || status=$?
    if [ $status -ne 0 ]; then
        [ $status -eq $((128 + $(kill -l $signal))) ] || fail "SIG$signal made the status $status"
        says 'unfinished ones were removed'
    fi
    for file in x/*; do
        [ ! -e "$file" ] || cmp -s "$file" tree/large || fail "SIG$signal left a part of $file"
    done
done

# ---- deep trees ----
# No program can name what lies deeper than a path is long: such members are left out.
"$python" - <<'END'
import tarfile
def make(name, *members):
    with tarfile.open(name, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in members:
            tar.addfile(tarfile.TarInfo(path))
make("deep.tar", "d/" * 2047 + "f", "d/" * 2047 + "fg", "e/" * 120000 + "f", "ok")
make("chains.tar", *(f"{i}/" + "d/" * 1500 + "f" for i in range(10)))
END
fresh
run 1 "$onepot" extract -C x deep.tar
says 'has a path of more than 4095 bytes, which no program can name (offset .*left out, and so is 1 more'
[ "$(find x | wc -l)" = 2050 ] || fail "the deepest tree has $(find x | wc -l) entries"
run 0 "$onepot" ls -R deep.tar
[ "$(tail -n 2 out | head -n 1 | wc -c)" = 4096 ] || fail "the deepest name: $(tail -n 2 out | cut -c1-50)"
run 1 "$onepot" verify deep.tar
says ': 2 problems'
mkdir under
"$python" -c '
import os
os.chdir("under")
for _ in range(2048):
    os.mkdir("d")
    os.chdir("d")
open("f", "w").close()'
run 1 "$onepot" pack -o under.tar under
says 'has a path of more than 4095 bytes'
rm -rf under
# Interrupted while folders get their attributes, of which the top is the last.
fresh
"$onepot" extract -q -C x chains.tar 2>err &
pid=$!
last=x/0/$(printf 'd/%.0s' {1..1500})
until [ "$(stat -c %Y "$last" 2>/dev/null)" = 0 ] || ! kill -0 $pid 2>/dev/null; do :; done
kill -TERM $pid 2>/dev/null || true
status=0
wait $pid 2>/dev/null || status=$?
if [ $status -eq 0 ]; then
    echo 'not tested: SIGTERM while folders get their attributes (they had them already)'
elif [ $status -ne 143 ] || [ "$(stat -c %a x)" != 700 ]; then
    fail "SIGTERM made the status $status and the mode $(stat -c %a x): $(cut -c1-300 err)"
fi
fresh

# ---- attributes of what can't be opened ----
"$python" - <<'END'
import tarfile
with tarfile.open("specials.tar", "w", format=tarfile.PAX_FORMAT) as tar:
    for name, kind in (("link", tarfile.SYMTYPE), ("fifo", tarfile.FIFOTYPE)):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "nowhere"
        member.pax_headers = {"SCHILY.xattr.trusted.k": name}
        tar.addfile(member)
END
if "$python" -c 'import os; os.symlink("x", "l"); os.setxattr("l", "trusted.k", b"v", follow_symlinks=False)' 2>err; then
    run 0 "$onepot" extract --privileged -C specials specials.tar
    grep -q 'lack extended attributes' err && fail 'attributes of links and fifos are lost'
    "$python" -c '
import os
for name in ("link", "fifo"):
    assert os.getxattr(f"specials/{name}", "trusted.k", follow_symlinks=False) == name.encode()
' || fail 'attributes of links and fifos'
else
    echo "not tested: attributes of links ($(tail -n 1 err))"
fi

# ---- who extracts ----
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    mkdir -p closed/none closed/readonly closed/deep/er
    echo secret >closed/none/file
    echo fixed >closed/readonly/file
    echo deep >closed/deep/er/file
    printf x >closed/setuid
    printf y >closed/unwritable
    chmod 0 closed/none
    chmod 555 closed/readonly closed/deep
    chmod 311 closed/deep/er
    chmod 4775 closed/setuid
    chmod 400 closed/unwritable
    setfattr -n user.k -v v closed/unwritable 2>/dev/null ||
        "$python" -c 'import os; os.setxattr("closed/unwritable", "user.k", b"v")' || true
    touch -d '2001-02-03 04:05:06.789' closed/none closed/readonly
    run 0 "$onepot" pack -q closed
    mkdir nobody
    chown 65534:65534 nobody
    chmod 755 .
    user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    run 0 "${user[@]}" "$onepot" extract -q -C nobody/x closed.onepot.tar
    (cd closed && find . -printf '%P %#m %T@ %y\n' | sort | sed '1d;s/^setuid 04775/setuid 0755/') >expected
    (cd nobody/x && find . -printf '%P %#m %T@ %y\n' | sort | sed 1d) >out
    same out expected 'what a user gets'
    [ "$(cat nobody/x/none/file)" = secret ] || fail 'a file in a closed folder'
    "$python" -c 'import os,sys; sys.exit(os.getxattr("nobody/x/unwritable", "user.k") != b"v")' ||
        echo 'not compared: attributes of a file that may not be written'
    [ "$(stat -c %u nobody/x/readonly/file)" = 65534 ] || fail 'the owner of what a user extracts'
    run 0 "${user[@]}" "$onepot" extract -q -p -C nobody/p closed.onepot.tar
    [ "$(stat -c %a nobody/p/setuid)" = 775 ] || fail "-p: the mode of another one's program"
    run 0 "${user[@]}" "$onepot" extract -q -f -C nobody/x closed.onepot.tar
    # The top directory of several archives is as they have it, also where it can't be written.
    chmod 555 closed
    touch -d '2001-02-03' closed
    run 0 "$onepot" pack -q --shards 3 -o 'closed-%d.tar' closed
    run 0 "${user[@]}" "$onepot" extract -q -C nobody/s closed-0.tar closed-1.tar closed-2.tar
    [ "$(stat -c '%a %Y' nobody/s)" = "$(stat -c '%a %Y' closed)" ] || fail 'the directory of shards'
    run 0 "$onepot" extract -q --no-same-owner -C mine a.tar -- owner/2 mode/4755
    [ "$(stat -c %u mine/owner/2)" = 0 ] || fail '--no-same-owner'
    run 1 "${user[@]}" "$onepot" extract -q --privileged -C nobody/dev a.tar -- chr
    says 'chr: can'
else
    echo 'not tested: another user (it takes root and setpriv)'
fi

finish
