#!/bin/bash
# Packing containers that nothing else of onepot reads: 7z, cpio, ISO 9660 and so on, from files
# and streams; and what a mount says of them.
#
#     pack_container.sh ONEPOT SOURCE_ROOT
set -u
# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"

mkdir there
list() {
    "$onepot" ls -lR "$1" | sed 's/ 20[0-9-]* [0-9:]*//'
}

# refused PATTERN COMMAND...: one line, and nothing is left.
refused() {
    local pattern=$1
    shift
    run 1 "$@"
    says "$pattern"
    one_line "'$*'"
    nothing there "'$*'"
}

# ---- files of several names in a cpio, and small archives of other formats ----
"$python" - <<'END'
import struct, zlib
def newc(out, name, data=b"", mode=0o100644, ino=1, links=1, sizes=None):
    name = name.encode() + b"\0"
    fields = (ino, mode, 7, 8, links, 1000000000, len(data), 0, 0, 0, 0, len(name), 0)
    out += b"070701" + b"".join(b"%08X" % f for f in fields) + name
    out += b"\0" * (-len(out) % 4)
    out += data
    out += b"\0" * (-len(out) % 4)
def trailer(out):
    newc(out, "TRAILER!!!", ino=0)
    return out
out = bytearray()
newc(out, "d", mode=0o040755, ino=1, links=2)
newc(out, "d/first", ino=2, links=3)
newc(out, "d/other", b"alone", ino=3)
newc(out, "./d/second", ino=2, links=3)
newc(out, "/third", b"the data of three names", ino=2, links=3)
newc(out, "e/1", ino=4, links=2)
newc(out, "e/2", ino=4, links=2)
newc(out, "link", b"d/first", mode=0o120777, ino=5)
newc(out, "pipe", mode=0o010600, ino=6)
open("links.cpio", "wb").write(trailer(out))
out = bytearray()
newc(out, "../up", b"out", ino=1)
newc(out, "file", b"1", ino=2)
newc(out, "file/below", b"no", ino=3)
newc(out, "twice", b"first", ino=4)
newc(out, "twice", b"second", ino=5)
open("hostile.cpio", "wb").write(trailer(out))
out = bytearray()
newc(out, "marked", b"\x53\xef" * 1500)
open("marked.cpio", "wb").write(trailer(out))
out = bytearray()
newc(out, "cut", b"x" * 100000)
open("cut.cpio", "wb").write(out[:60000])

def crc16(data):
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
def lha(name, data):
    name = name.encode()
    rest = b"-lh0-" + struct.pack("<IIIBB", len(data), len(data), 0x2A000000, 0x20, 0) + \
        bytes([len(name)]) + name + struct.pack("<H", crc16(data))
    return bytes([len(rest), sum(rest) & 255]) + rest + data
open("s.lha", "wb").write(lha("a", b"hello") + lha("b", b"x" * 5000) + b"\0")
broken = bytearray(lha("a", b"hello") + lha("b", b"x" * 5000) + b"\0")
broken[-100] ^= 1
open("broken.lha", "wb").write(broken)

def cab(files):
    data = b"".join(d for _, d in files)
    entries, at = b"", 0
    for name, d in files:
        entries += struct.pack("<IIHHHH", len(d), at, 0, 0x3421, 0, 0x20) + name.encode() + b"\0"
        at += len(d)
    start = 36 + 8 + len(entries)
    blocks = struct.pack("<IHH", 0, len(data), len(data)) + data
    return b"MSCF" + struct.pack("<IIIIIBBHHHHH", 0, start + len(blocks), 0, 44, 0, 3, 1, 1,
                                 len(files), 0, 0, 0) + \
        struct.pack("<IHH", start, 1, 0) + entries + blocks
open("s.cab", "wb").write(cab([("a", b"hello"), ("d\\b", b"x" * 5000)]))

def vint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])
def block(body):
    body = vint(len(body)) + body
    return struct.pack("<I", zlib.crc32(body)) + body
def rar(files, flags=0):
    out = b"Rar!\x1a\x07\x01\0" + block(vint(1) + vint(0) + vint(flags))
    for name, data in files:
        head = vint(2) + vint(2) + vint(len(data)) + vint(4) + vint(len(data)) + vint(0o100644) + \
            struct.pack("<I", zlib.crc32(data)) + vint(0) + vint(1) + vint(len(name)) + name
        out += block(head) + data
    return out + block(vint(5) + vint(0) + vint(0))
files = [("a\u00e9".encode(), b"hello"), (b"d/b", b"x" * 5000)]
open("s.rar", "wb").write(rar(files))
for cut in 8, 30, 70, -1:
    open("cut%d.rar" % cut, "wb").write(rar(files)[:cut])
members = b"".join(b"%-16s%-12d%-6d%-6d%-8o%-10d`\n" % (name, 0, 0, 0, 0o100644, 6) + b"hello\n"
                   for name in (b"a/", b"b/"))
open("s.ar", "wb").write(b"!<arch>\n" + members)
open("cut.ar", "wb").write(b"!<arch>\n" + members[:100])
open("s.part1.rar", "wb").write(rar(files, 1))
main = struct.pack("<BHH", 0x73, 0x111, 13) + bytes(6)
open("old.part1.rar", "wb").write(b"Rar!\x1a\x07\0" + struct.pack("<H", zlib.crc32(main) & 0xffff) + main)
for number in range(3):
    open("s.7z.%03d" % (number + 1), "wb").write((b"7z\xbc\xaf\x27\x1c" + bytes(300))[number * 100:][:100])
END
run 0 "$onepot" pack -q -o links.tar links.cpio
"$onepot" verify links.tar >/dev/null || fail 'links.tar is damaged'
for name in d/first d/second third; do
    [ "$("$onepot" cat links.tar $name)" = 'the data of three names' ] ||
        fail "$name of the cpio is '$("$onepot" cat links.tar $name)'"
done
cat >wanted <<'END'
drwxr-xr-x  2 7/8                   0 d
-rw-r--r--  3 7/8                  23 d/first
-rw-r--r--  1 7/8                   5 d/other
-rw-r--r--  3 7/8                  23 d/second
END
list links.tar | head -4 >got
sed -i 's/ 2001-09-09 01:46:40//; s/  *[0-9]* d$/ d/' got wanted
same got wanted 'the list of the cpio'
[ "$(list links.tar | grep -c ' 2 7/8 .* e/[12]$')" -eq 2 ] || fail "two empty names: $(list links.tar)"
tar -xOf links.tar third | cmp -s - <(printf 'the data of three names') || fail 'tar reads another third'

# The mark of an ext2 image is two bytes, which a member may have there.
run 0 "$onepot" pack -q -o marked.tar marked.cpio
[ "$("$onepot" cat marked.tar marked | wc -c)" = 3000 ] || fail 'a cpio with the mark of ext2 is not packed whole'

run 1 "$onepot" pack -f -o b.tar hostile.cpio
says '^onepot: hostile.cpio: \.\./up: ' '^onepot: hostile.cpio: file/below: ' 'complete but for 2 problems'
[ "$("$onepot" cat b.tar twice)" = second ] || fail 'the last of two names does not count'
refused "^onepot: cut.cpio: cut: its data can.t be read, after [0-9]* of 100000" \
    "$onepot" pack -o there/a.tar cut.cpio

for name in lha cab rar; do
    run 0 "$onepot" pack -q -f -o b.tar s.$name
    "$onepot" verify b.tar >/dev/null || fail "the archive of s.$name is damaged"
    [ "$("$onepot" cat b.tar "$("$onepot" ls -R b.tar | grep '^a')")" = hello ] ||
        fail "a of s.$name: $("$onepot" ls -lR b.tar)"
    # shellcheck disable=SC2002 # a pipe is what this is about
    cat s.$name | "$onepot" pack -q -f -o c.tar - || fail "a stream of s.$name"
    same b.tar c.tar "s.$name from a file and from a stream"
done
[ "$("$onepot" cat b.tar "$(printf 'a\303\251')")" = hello ] || fail "a name in UTF-8: $("$onepot" ls b.tar)"
refused '^onepot: broken.lha: b: .*can.t be read' "$onepot" pack -o there/a.tar broken.lha
# libarchive says nothing of an end that is missing.
run 0 "$onepot" pack -q -o ar.tar s.ar
[ "$("$onepot" cat ar.tar a b)" = $'hello\nhello' ] || fail 'members of the ar'
for cut in 8 30; do
    refused '^onepot: cut.*.rar: is a damaged rar: its end is missing' "$onepot" pack -o there/a.tar "cut$cut.rar"
done
refused '^onepot: cut70.rar: aé: is followed by a damaged part of the rar: its end is missing (offset 70)' \
    "$onepot" pack -o there/a.tar cut70.rar
refused '^onepot: cut-1.rar: d/b: .*: its end is missing' "$onepot" pack -o there/a.tar cut-1.rar
refused '^onepot: standard input: d/b: .*: its end is missing' bash -c \
    "'$onepot' pack -o there/a.tar - <cut-1.rar"
refused '^onepot: cut.ar: a: is followed by a damaged part of the ar: its end is missing (offset 108)' \
    "$onepot" pack -o there/a.tar cut.ar

refused '^onepot: s.rar: is a RAR archive; make an archive of it: onepot pack -o NEW.tar FILE' \
    "$onepot" ls s.rar
for name in s old; do
    refused "^onepot: $name.part1.rar: is one of several volumes of a RAR archive, which are not read together; extract" \
        "$onepot" pack -o there/a.tar $name.part1.rar
done
for number in 001 003; do
    refused "^onepot: s.7z.$number: is a 7z archive; join its parts first (cat PARTS >FILE), and make" \
        "$onepot" pack -o there/a.tar s.7z.$number
done
gzip -k s.lha
refused '^onepot: s.lha.gz: is gzip data of a lha archive; make an archive of it: onepot pack -o NEW.tar - <FILE' \
    "$onepot" ls s.lha.gz
run 0 "$onepot" pack -q links.cpio
[ -e links.cpio.onepot.tar ] || fail 'a file of a container gives its archive no name'
run 2 "$onepot" pack -o there/a.tar links.cpio s.rar
says 'links.cpio is packed alone'
run 2 "$onepot" pack --shards 2 links.cpio
says '--shards can.t be had of links.cpio'

# ---- what bsdtar writes ----
if ! command -v bsdtar >/dev/null; then
    echo 'not tested: 7z, ISO 9660, xar and ar (no bsdtar)'
    finish
fi
mkdir -p tree/d
echo hello >tree/d/a
ln tree/d/a tree/d/b
ln -s d/a tree/l
head -c 3000000 /dev/urandom >tree/big
echo x >"tree/$(printf '\303\251')"
touch -d @1000000000 tree/*
for format in 7zip iso9660 xar ar; do
    (cd tree && LC_ALL=C.UTF-8 bsdtar --format $format -cf ../s.$format .) 2>/dev/null
    run 0 "$onepot" pack -q -f -o b.tar s.$format
    "$onepot" verify b.tar >/dev/null || fail "the archive of $format is damaged"
    for name in big d/a d/b l "$(printf '\303\251')"; do
        [ "$format" != ar ] || name=${name##*/}
        [ "$format/$name" != ar/l ] || continue
        case $name in
        l) [ "$("$onepot" ls -l b.tar | grep -c 'l -> d/a$')" -eq 1 ] || fail "$format has no link" ;;
        a | b) "$onepot" cat b.tar "$name" | cmp -s - "tree/d/$name" || fail "$name of $format differs" ;;
        *) "$onepot" cat b.tar "$name" | cmp -s - "tree/$name" || fail "$name of $format differs" ;;
        esac
    done
    head -c 2000000 s.$format >short
    refused '^onepot: short: ' "$onepot" pack -o there/a.tar short
    [ "$format" != 7zip ] || continue
    # shellcheck disable=SC2002
    cat s.$format | "$onepot" pack -q -f -o c.tar - || fail "a stream of $format"
    same b.tar c.tar "$format from a file and from a stream"
done
run 1 "$onepot" pack -o there/a.tar <(cat s.7zip)
says 'is a 7z archive, whose directory is at its end; save it in a file and pack that'

finish
