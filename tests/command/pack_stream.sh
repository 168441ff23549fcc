#!/bin/bash
# Packing what can only be read front to back: tars from standard input and pipes, compressed or
# not; what is cut off, damaged or hostile; and what a stream can't have.
#
#     pack_stream.sh ONEPOT SOURCE_ROOT
set -u
# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"

# stream WANTED_STATUS FILE OPTION...: packs what FILE has, through a pipe.
stream() {
    local wanted=$1 file=$2 status
    shift 2
    # shellcheck disable=SC2002 # a pipe is what this is about
    cat "$file" 2>/dev/null | "$onepot" pack "$@" - >out 2>err
    status=$?
    [ "$status" -eq "$wanted" ] ||
        fail "pack $* of $file ended with $status, and should with $wanted: $(head -c 500 out err)"
}

# refused FILE PATTERN...: one line, and nothing is left.
refused() {
    local file=$1
    shift
    stream 1 "$file" -o there/a.tar
    says "$@"
    one_line "$file"
    nothing there "$file"
}

verify() {
    "$onepot" verify "$1" >verify.out 2>&1 || fail "$1 is damaged: $(head -c 300 verify.out)"
}

mkdir there
"$python" "$tests/pack_tree.py" make tree
rm -f tree/socket

# ---- the same archive ----
run 0 "$onepot" pack -q -o a.tar tree
stream 0 a.tar -q -o b.tar
silent 'packing a stream'
same a.tar b.tar 'a stream in the order of pack'
run 0 "$onepot" pack -q --zstd -o a.tar.zst tree
stream 0 a.tar.zst -q --zstd -o b.tar.zst
same a.tar.zst b.tar.zst 'compressed'
stream 0 a.tar.zst -q -f -o b.tar
same a.tar b.tar 'of what pack compressed'
run 0 "$onepot" pack -q --align 4096 -f -o b.tar tree
stream 0 a.tar -q --align 4096 -o c.tar
same b.tar c.tar 'aligned'
"$onepot" pack -q -f -o b.tar <(cat a.tar) || fail 'a substituted process'
same a.tar b.tar 'from a substituted process'
mkfifo fifo
cat a.tar >fifo &
run 0 "$onepot" pack -q -f -o b.tar fifo
same a.tar b.tar 'from a fifo'
rm fifo
# However the bytes come.
"$python" -c '
import random, sys
data = open("a.tar", "rb").read()
at, random = 0, random.Random(1)
while at < len(data):
    n = random.choice((1, 7, 100, 511, 513, 4096, 300000))
    sys.stdout.buffer.write(data[at : at + n])
    sys.stdout.buffer.flush()
    at += n' | "$onepot" pack -q -f -o b.tar - || fail 'odd pieces'
same a.tar b.tar 'from odd pieces'

# GNU tar's form and order: what the mount shows is as if the file had been packed.
tar --format=pax --xattrs --xattrs-include='*' -S -cf plain.tar -C tree .
tar --format=gnu -S -cf gnu.tar -C tree .
for name in plain gnu; do
    run 0 "$onepot" pack -q -f -o file.tar $name.tar
    stream 0 $name.tar -q -f -o b.tar
    verify b.tar
    "$onepot" ls -lR file.tar >file.ls
    "$onepot" ls -lR b.tar >b.ls
    same file.ls b.ls "the list of $name.tar"
done
# What this build can decompress.
head -c 10240 /dev/zero >zeros
hows=
for how in gzip bzip2 xz zstd lz4 lzip; do
    command -v $how >/dev/null && $how -c zeros | "$onepot" pack -q -f -o c.tar - 2>/dev/null &&
        hows="$hows $how"
done
# At the fastest level, and without what is large: both are a matter of the programs, and slow.
tar --format=gnu -S -cf gnu.tar -C tree --exclude=big? --exclude=sp/big --exclude=size/3145735 .
stream 0 gnu.tar -q -f -o b.tar
for how in $hows; do
    $how -1 -c gnu.tar >"gnu.$how"
    stream 0 "gnu.$how" -q -f -o c.tar
    same b.tar c.tar "a stream of $how"
done
if [[ $hows == *gzip* ]]; then
    cat <(head -c 1000000 gnu.tar | gzip -1) <(tail -c +1000001 gnu.tar | gzip -1) >packed
    stream 0 packed -q -f -o c.tar
    same b.tar c.tar 'two gzip members'
else
    echo 'not tested: gzip (zlib was not built in)'
fi
# A window beyond libarchive's is read where memory allows it, and a dictionary is no damage. Memory of the
# process stands for the job's, of which a window may take half.
if [[ $hows == *zstd* ]]; then
    seq 60000 >words
    split -b 1000 words word.
    zstd -q --train word.* -o dictionary 2>/dev/null
    zstd -q -1 -D dictionary -c gnu.tar >dictionary.tar.zst
    zstd -q -1 --long=28 -c <gnu.tar >long.tar.zst
    stream 0 long.tar.zst -q -f -o c.tar
    same b.tar c.tar 'a stream of zstd --long=28'
    run 0 "$onepot" ls long.tar.zst
    "$python" - <<'END'
with open("long.tar.zst", "rb+") as f:
    f.seek(5)
    f.write(b"\xa8") # 2 GiB, as of --long=31, which takes them
END
    limited=yes
    if ! (ulimit -d 1500000 && ASAN_OPTIONS='' "$onepot" --version) >/dev/null 2>&1; then
        echo 'not tested: windows larger than memory (a sanitizer needs more)'
        limited=
    fi
    for archive in long dictionary; do
        [ -n "$limited" ] || break
        want='its zstd data has a larger window (zstd --long) than memory allows (offset 0); where .*zstd -dc --long=31 FILE'
        [ $archive = long ] || want='its zstd data needs the dictionary that it was made with (zstd -D) (offset 0); .zstd -dc -D '
        (
            ulimit -d 1500000
            run 1 "$onepot" ls $archive.tar.zst
            says "$archive.tar.zst: $want"
            stream 1 $archive.tar.zst -q -f -o c.tar
            says "standard input: $want"
            [ "$failed" -eq 0 ]
        ) || fail "of $archive.tar.zst"
    done
    rm -f word.*
else
    echo 'not tested: windows and dictionaries of zstd (there is none)'
fi
stream 0 gnu.tar -q -f --exclude 'size' --exclude '*.x' --exclude '/time/' -o b.tar
run 0 "$onepot" pack -q -f --exclude 'size' --exclude '*.x' --exclude '/time/' -o file.tar gnu.tar
"$onepot" ls -lR file.tar >file.ls
"$onepot" ls -lR b.tar >b.ls
same file.ls b.ls 'what was not excluded'
mkdir -p links/hl
echo b >links/hl/b
ln links/hl/b links/a
tar -cf links.tar -C links hl a
stream 1 links.tar -f --exclude 'hl/' -o b.tar
says "a: is a hard link to 'hl/b', which no member before it is"
(git init -q g && cd g && git -c user.name=a -c user.email=a commit -q --allow-empty -m a &&
    git archive HEAD) >empty.tar 2>/dev/null && stream 0 empty.tar -q -f -o b.tar
stream 0 zeros -q -f -o b.tar
verify b.tar

# ---- what is cut off or damaged ----
: >empty
refused empty 'standard input: is empty'
"$python" - <<'END'
import tarfile
data = open("plain.tar", "rb").read()
members = tarfile.open("plain.tar").getmembers()
big = next(m for m in members if m.size > 100000)
for name, end in ("header", big.offset + 100), ("data", big.offset_data + 5000), \
        ("between", big.offset), ("unended", len(data.rstrip(b"\0")) + 511 & ~511):
    open("cut." + name, "wb").write(data[:end])
damaged = bytearray(data)
damaged[members[9].offset + 5] ^= 1
open("damaged.header", "wb").write(damaged)
END
# Headers that are longer than this libarchive takes are no damage.
"$python" - <<'END'
import io, tarfile
many = {"SCHILY.xattr.user.%d" % i: "v" * 60000 for i in range(25)}
for kind, form, headers, name in ("dumpdir", tarfile.PAX_FORMAT, {"GNU.dumpdir": "Nname\0" * 250000}, "f"), \
        ("xattrs", tarfile.PAX_FORMAT, many, "f"), ("name", tarfile.GNU_FORMAT, {}, "f/" * 600000):
    with tarfile.open(f"long.{kind}", "w", format=form) as t:
        t.addfile(tarfile.TarInfo("before"))
        member = tarfile.TarInfo(name)
        member.pax_headers = headers
        member.size = 3
        t.addfile(member, io.BytesIO(b"abc"))
END
for kind in dumpdir xattrs name; do
    gzip -c long.$kind >long.$kind.gz
    "$onepot" cat long.$kind f 2>/dev/null | grep -q abc && continue # a newer libarchive
    refused long.$kind 'before: is followed by extended headers that are longer than libarchive .* allows .offset 512.*format=gnu'
    for archive in long.$kind long.$kind.gz; do
        run 1 "$onepot" verify "$archive"
        says 'before: is followed by extended headers that are longer than libarchive .* allows .offset 512.*format=gnu'
    done
done
refused cut.header 'standard input: .*truncated'
refused cut.data 'standard input: .*its data can.t be read, after [0-9]* of'
refused cut.between 'without an end-of-archive marker: the stream was cut off .offset [0-9]*.; send it again'
refused cut.unended 'without an end-of-archive marker'
refused damaged.header 'standard input: .*is followed by something other than a tar header'
for how in $hows; do
    case $how in lz*) continue ;; esac
    size=$(stat -c %s "gnu.$how")
    for part in $((size / 2)) $((size - 3)); do
        head -c $part "gnu.$how" >short
        refused short "standard input: .*\($how\|can.t be read\|truncated\)"
    done
    "$python" - <<END
data = bytearray(open("gnu.$how", "rb").read())
data[len(data) // 2] ^= 4
open("damaged", "wb").write(data)
END
    refused damaged 'standard input: '
done
# The sum behind the last byte of a tar that is whole.
if [[ $hows == *gzip* ]]; then
    "$python" - <<'END'
data = bytearray(open("gnu.gzip", "rb").read())
data[-6] ^= 1
open("damaged", "wb").write(data)
END
    refused damaged 'standard input: damaged gzip data: incorrect data check'
fi
cat <(head -c 100000 /dev/zero) <(head -c 5000 /dev/urandom) >noise
refused noise 'begins with zeros, as an empty tar does'
head -c 5000 /dev/urandom >noise
refused noise 'is nothing that can be packed from a stream'
gzip -c noise >packed
[[ $hows != *gzip* ]] || refused packed 'is gzip data, but of nothing that can be packed'
for how in $hows; do
    case $how in
    bzip2 | xz | lz4)
        $how -c </dev/null >packed
        refused packed "is $how data of nothing"
        ;;
    esac
done
cat gnu.tar gnu.tar >twice
stream 1 twice -f -o b.tar
says 'standard input: .*: lies behind an end-of-archive mark, and so do [0-9]* more members: --ignore-zeros'
stream 0 twice --ignore-zeros -f -o b.tar

# ---- hostile members ----
"$python" - <<'END'
import io, tarfile
t = tarfile.open("hostile.tar", "w", format=tarfile.PAX_FORMAT)
def add(name, data=b"", **more):
    m = tarfile.TarInfo(name)
    m.size = len(data)
    for key, value in more.items():
        setattr(m, key, value)
    t.addfile(m, io.BytesIO(data))
add("/absolute", b"1")
add("../up", b"out")
add("a/../../up", b"out")
add("./file", b"2")
add("twice", b"first")
add("hard", type=tarfile.LNKTYPE, linkname="./twice")
add("twice", b"second, and longer")
add("file/below", b"no")
add("n" * 300, b"too long")
add("to-etc", type=tarfile.SYMTYPE, linkname="/etc")
add("to-etc/passwd", b"no")
add("to-nothing", type=tarfile.LNKTYPE, linkname="nothing")
add("two\nlines \x1b[2J", b"3")
add("d", type=tarfile.DIRTYPE)
add("d/x", b"4")
add("d", b"no")
add("last", b"5" * 3000000)
t.close()
END
stream 1 hostile.tar -f -o b.tar
says '^onepot: standard input: \.\./up: ' '^onepot: standard input: a/\.\./\.\./up: ' \
    '^onepot: standard input: file/below: ' '^onepot: standard input: nnn.*has a name of 300 bytes' \
    '^onepot: standard input: to-etc/passwd: ' '^onepot: standard input: to-nothing: ' \
    'b.tar: complete but for 7 problems'
verify b.tar
[ "$("$onepot" cat b.tar hard)" = first ] || fail "hard is '$("$onepot" cat b.tar hard)'"
[ "$("$onepot" cat b.tar twice)" = 'second, and longer' ] || fail 'the last of two names does not count'
run 1 "$onepot" pack -q -f -o file.tar hostile.tar
"$onepot" ls -lR file.tar >file.ls
"$onepot" ls -lR b.tar >b.ls
same file.ls b.ls 'the list of hostile members'
run 0 tar -xOf b.tar last
if [ -e ../up ] || [ -e up ]; then fail 'a name led out'; fi
stream 1 hostile.tar -o there/a.tar --strict
says '^onepot: standard input: \.\./up: '
[ ! -e there/a.tar ] || fail '--strict made an archive'

# ---- the output ----
stream 1 gnu.tar -o b.tar
says '^onepot: b.tar: already exists'
(failed=0 && ulimit -f 2000 && stream 1 gnu.tar -o there/a.tar && says '^onepot: there/a.tar: .*written' &&
    exit "$failed") || fail 'a file that may not grow'
nothing there 'a file that may not grow'
# A signal ends it, while the stream waits for its writer. So much that some of it is written by then.
mkfifo fifo
"$onepot" pack -o there/a.tar fifo >out 2>err &
background=$!
exec 7>fifo
head -c 6000000 plain.tar >&7
while [ -z "$(find there -name '*.partial' -size +100k)" ]; do
    kill -0 $background 2>/dev/null || break
    sleep 0.01
done
kill -TERM $background
wait $background
status=$?
[ $status -eq 143 ] || fail "the signal ended it with $status"
background=
exec 7>&-
says 'interrupted; nothing is left of it'
nothing there SIGTERM

# ---- what a stream can't have ----
run 2 "$onepot" pack -
says 'standard input has no name: name the archive with -o'
run 2 "$onepot" pack -o there/a.tar - tree
says 'standard input is packed alone'
for option in --shards=2 --dry-run --files-from=list --include=x --nested; do
    run 2 "$onepot" pack -o there/a.tar $option -
    says "${option%%=*}.* can.t be had of standard input"
done
nothing there 'what a stream can not have'

finish
