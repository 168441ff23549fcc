#!/usr/bin/env bash
# onepot verify: that it finds every damage, and none where there is none.
#
# Usage: verify.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"

# ---- good archives of every kind ----
"$python" "$tests/pack_tree.py" make tree 2>/dev/null
run 0 "$onepot" pack -q -o a.tar tree
tar -C tree --format=pax -Scf foreign.tar . 2>/dev/null
gzip -k foreign.tar
archives=(a.tar foreign.tar foreign.tar.gz)
if has_squashfs; then
    # It reads each byte of holes of gigabytes.
    mksquashfs tree squash.img -quiet -no-progress -e sp/all sp/mid >/dev/null 2>&1
    archives+=(squash.img)
else
    echo 'not tested: SquashFS (no mksquashfs, or onepot was built without it)'
fi
for jobs in 1 3; do
    run 0 "$onepot" verify -j $jobs "${archives[@]}"
    [ "$(grep -c ': good: ' out)" -eq "${#archives[@]}" ] || fail "good archives: $(cat out)"
done
grep -q '^a.tar: good: .*every byte of the archive has the sum' out || fail "a.tar: $(cat out)"
run 0 "$onepot" verify -q a.tar
if [ -s out ] || [ -s err ]; then fail 'verify -q is not silent'; fi
run 0 "$onepot" verify --json a.tar foreign.tar
"$python" - <<'END' || fail 'verify --json'
import json
own, foreign = json.load(open("out"))
assert own["good"] and own["has_sums"] and own["whole"] and own["problems"] == [], own
assert foreign["good"] and not foreign["has_sums"] and foreign["format"] == "tar", foreign
assert own["files"] == foreign["files"] > 50, (own, foreign)
END

# ---- what an archive has no sums of, by its own name ----
mkdir -p sums/both sums/all sums/packed
echo x >sums/packed/x
"$python" - <<'END'
import tarfile, zipfile
zipfile.ZipFile("sums/empty.zip", "w").close()
for name in "both", "all":
    with zipfile.ZipFile("sums/%s/a.zip" % name, "w") as z:
        z.writestr("in.zip", b"1")
with tarfile.open("sums/both/b.tar", "w") as t:
    t.add("tree", "tree", recursive=False)
    t.add("out", "out")
END
run 0 "$onepot" pack -q -o sums/all/b.tar sums/packed
run 0 "$onepot" verify sums/empty.zip foreign.tar
says 'sums/empty.zip: good: 0 files, .*; there are no files$'
says 'foreign.tar: good: .*; a tar has no sums of its files$'
says_packed() {
    run 0 "$onepot" verify "$1"
    says "$1: good: .*the sums that its compression names; a tar has no sums of its files$"
    run 0 "$onepot" info "$1"
    says "checksums  *none: a tar has no sums of its files; 'onepot verify' compares those of its compression$"
}
for packed in foreign.tar.*; do says_packed "$packed"; done
run 0 "$onepot" info sums/empty.zip
says 'checksums  *none: there are no files$'
if has_squashfs; then
    run 0 "$onepot" verify squash.img
    says 'squash.img: good: .*; a SquashFS image has no sums of its files$'
    run 0 "$onepot" info squash.img
    says 'checksums  *none: a SquashFS image has no sums of its files$'
fi
run 0 "$onepot" info sums/all/a.zip
if grep -q 'of every file (CRC-32)' out; then
    run 0 "$onepot" info --each sums/both
    says 'checksums  *of 1 of 2 files (CRC-32)$'
    run 0 "$onepot" verify --each sums/both
    says 'there are sums of 1 of 2 files (CRC-32)$'
    run 0 "$onepot" info --each sums/all
    says 'checksums  *of every file (XXH3-64, CRC-32)$'
    run 0 "$onepot" verify --each --json sums/all
    says '"has_sums": true'
else
    says 'checksums  *none: this onepot was built without CRC-32$'
fi

# ---- what options show: the files of archives in an archive, and a part ----
mkdir shown
"$python" - <<'END'
import io, zipfile
inner = io.BytesIO()
with zipfile.ZipFile(inner, "w") as z:
    z.writestr("one", b"1" * 3000)
    z.writestr("two", b"2" * 3000)
data = inner.getvalue()
for name, bad in ("good", b""), ("bad", b"2222"):
    with zipfile.ZipFile("shown/%s.zip" % name, "w") as z:
        z.writestr("in.zip", data.replace(bad, b"2223", 1) if bad else data)
        z.writestr(name, b"")
END
run 0 "$onepot" verify shown/bad.zip
run 0 "$onepot" verify --nested shown/good.zip
says 'shown/good.zip: good: 3 files, .*every file shown'
if grep -q 'built without CRC-32\|no sums of' out; then
    echo 'not tested: sums of zips (this onepot was built without zlib)'
else
    run 1 "$onepot" verify --nested --include '*/two' shown/bad.zip
    says 'shown/bad.zip: in/two: .*do not have the sum'
    run 0 "$onepot" verify --nested --include '*/one' shown/bad.zip
    says 'shown/bad.zip: good: 1 file, .*every file shown has the sum'
    run 1 "$onepot" verify --nested --each --include '*/two' shown
    says 'shown/bad.zip: bad/in/two: .*do not have the sum'
fi
run 0 "$onepot" verify --nested --each --exclude 'bad/in/two' shown
echo in/three >shown.list
run 1 "$onepot" verify --nested --files-from shown.list shown/good.zip
says 'in/three: the archive does not have it'
for option in --nested --include=x --exclude=x --files-from=x --map=x; do
    run 2 "$onepot" stage $option shown/good.zip
    says 'a copy is of whole archives'
done

# ---- damage where no file has any data (sanitizers look at the search for what lies there) ----
mkdir nothing
run 0 "$onepot" pack -q -o nothing.tar nothing
printf 'X' | dd of=nothing.tar bs=1 seek=600 conv=notrunc status=none
run 1 "$onepot" verify nothing.tar
says 'nothing.tar: headers, padding .*do not have the sum'

# ---- every flipped bit of a small archive ----
mkdir -p small/folder
head -c 3000 /dev/urandom >small/one
printf x >small/two
: >small/empty
truncate -s 1M small/hole
printf 'y' | dd of=small/hole bs=1 seek=500000 conv=notrunc status=none
ln small/one small/folder/again
ln -s one small/link
setfattr -n user.k -v v small/two 2>/dev/null || true
kinds=(plain)
run 0 "$onepot" pack -q -o plain.tar small
for option in --zstd --align=4096; do
    if "$onepot" pack -q "$option" -o "kind$option.tar" small 2>/dev/null; then
        mv "kind$option.tar" "${option:2:5}.tar"
        kinds+=("${option:2:5}")
    else
        echo "not tested: $option (this onepot does not pack so)"
    fi
done
cat >flip.py <<'END'
import os, random, subprocess, sys
onepot, archive = sys.argv[1:]
original = open(archive, "rb").read()
rng = random.Random(7)
size = len(original)
places = [rng.randrange(size * 8) for _ in range(150)]
# Each byte of the footer; the first and last bytes of each block in turn.
places += [8 * (size - 512 + i) + i % 8 for i in range(512)]
places += [8 * (i + d) + i % 7 for i in range(0, size, 512) for d in (0, 511) if i + d < size]
one = original.find(open("small/one", "rb").read())
missed, unnamed = [], []
AT_ONCE = 25  # of each it must be told by its name; to start a program for each takes minutes
for begin in range(0, len(places), AT_ONCE):
    names = {f"flipped-{place}": place for place in places[begin:begin + AT_ONCE]}
    for name, place in names.items():
        changed = bytearray(original)
        changed[place // 8] ^= 1 << place % 8
        with open(name, "wb") as f:
            f.write(changed)
    p = subprocess.run([onepot, "verify", "-j1", *names], capture_output=True)
    lines = p.stderr.split(b"\n")
    for name, place in names.items():
        said = [line for line in lines if line.startswith(b"onepot: %s: " % name.encode())]
        if p.returncode != 1 or not said or name.encode() + b": good" in p.stdout:
            missed.append((place, p.returncode, p.stdout, p.stderr))
        # A hard link's name may be that of the inode.
        elif one >= 0 and one <= place // 8 < one + 3000 and b": one: " not in b"".join(said):
            unnamed.append((place, said))
        os.unlink(name)
print((missed + unnamed)[:5] if missed or unnamed else "all found")
END
for kind in "${kinds[@]}"; do
    run 0 "$onepot" verify "$kind.tar"
    "$python" flip.py "$onepot" "$kind.tar" >flip.out
    if [ "$(cat flip.out)" != 'all found' ]; then
        fail "flipped bits of $kind.tar that are not found: $(cat flip.out)"
    fi
done

# ---- what else may happen to an archive ----
head -c -512 plain.tar >cut.tar
run 1 "$onepot" verify cut.tar
says 'onepot: cut.tar: '
# Between two frames: it is whole to every program, and lacks its footer.
case " ${kinds[*]} " in *' zstd '*)
    head -c -520 zstd.tar >cut.tar.zst
    run 1 "$onepot" verify cut.tar.zst
    says 'cut.tar.zst: there is an index behind the tar, but no footer'
    run 0 "$onepot" pack -q --zstd --block=4K -o frames.tar small
    head -c -520 frames.tar >cut.tar.zst
    run 1 "$onepot" verify cut.tar.zst
    says 'cut.tar.zst: there is an index behind the tar, but no footer'
    ;;
esac
cp plain.tar appended.tar
tar rf appended.tar small/two
run 1 "$onepot" verify appended.tar
says 'appended'
# Its new index makes it a tar like any other, whose old index lies behind the end.
run 0 "$onepot" index appended.tar
run 0 "$onepot" verify appended.tar
says 'appended.tar: good'
truncate -s -512 appended.tar
run 1 "$onepot" verify appended.tar
says 'appended.tar: there is an index behind the tar, but no footer'
rm appended.tar.onepot-index
run 1 "$onepot" verify plain.tar nowhere.tar
says 'plain.tar: good'
says 'onepot: nowhere.tar: no such file'
head -c 20000 foreign.tar >cut_foreign.tar
run 1 "$onepot" verify cut_foreign.tar
# Cut off between two members: tar programs take that for the end.
tar --format=ustar -cf two.tar small/one small/two
head -c 3584 two.tar >cut.tar
run 1 "$onepot" verify cut.tar
says 'cut.tar: it has no end-of-archive marker'
run 0 "$onepot" verify two.tar
head -c 20000 foreign.tar.gz >cut.tar.gz
run 1 "$onepot" verify cut.tar.gz
if [ -e squash.img ]; then
    mkdir text
    seq 200000 >text/numbers
    mksquashfs text text.img -quiet -no-progress >/dev/null 2>&1
    "$python" - <<'END'
data = bytearray(open("text.img", "rb").read())
for at in range(1000, 100000, 5000):
    data[at] ^= 0x10
open("bad.img", "wb").write(data)
END
    run 1 "$onepot" verify bad.img
    says "can't be decompressed"
fi
run 2 "$onepot" verify
run 2 "$onepot" verify -j 0 a.tar

finish
