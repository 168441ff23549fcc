#!/bin/bash
# What can be packed, and which part of it: archives, lists of names, patterns, shards and
# ranks; and what happens when the source changes under the packer.
#
#     pack_input.sh ONEPOT SOURCE_ROOT
set -u
# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"
unset RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS PMI_RANK PMIX_RANK \
    OMPI_COMM_WORLD_RANK MV2_COMM_WORLD_RANK HOROVOD_RANK FLUX_TASK_RANK PALS_RANKID

verify() {
    "$onepot" verify "$1" >verify.out 2>&1 || fail "$1 is damaged: $(head -c 300 verify.out)"
}

"$python" "$tests/pack_tree.py" make tree
rm -f tree/socket
run 0 "$onepot" pack -q -o a.tar tree

# ---- symbolic links that lead out of the tree ----
mkdir -p full/n1 full/n2/deep subset/own
echo 1 >full/n1/a
ln full/n1/a full/n1/a2
echo 22 >full/n2/deep/b
ln -s "$work/full/n1" subset/k1 # as a subset of ImageNet is made
ln -s ../full/n2 subset/k2
ln -s ../k2 subset/own/within
ln -s ../../full/n1/a subset/own/file
run 0 "$onepot" pack -q -f -o b.tar subset
says '^onepot: k1: is the first of 3 symbolic links that lead out of the tree; what they lead to is not packed, unless by --dereference$'
[ "$(wc -l <err)" -eq 1 ] || fail "not one line: $(cat err)"
run 0 "$onepot" pack -q -f -o c.tar subset/own
says '^onepot: file: is the first of 2 '
run 0 "$onepot" pack -q -f -o c.tar full subset
says '^onepot: subset/k1: is a symbolic link that leads out of the tree; what it leads to' # the others do not
run 0 "$onepot" pack -q -f -o c.tar b.tar
[ ! -s err ] || fail "it says of an archive's links: $(cat err)"
followed() { # ARCHIVE...: extracted, they have what tar -h packs
    rm -rf ours theirs
    mkdir ours theirs
    for archive; do tar -xf "$archive" -C ours; done
    tar -C subset -chf - . 2>/dev/null | tar -xf - -C theirs
    diff -r ours theirs >differs || fail "$* is other than by tar: $(head -5 differs)"
    [ -z "$(find ours -type l)" ] || fail "links in $*"
}
for option in -h --dereference; do
    run 0 "$onepot" pack -q "$option" -f -o b.tar subset
    [ ! -s err ] || fail "with $option: $(cat err)"
    verify b.tar
    followed b.tar
done
[ "$(stat -c %h ours/k1/a ours/own/file | sort -u)" = "$(stat -c %h theirs/k1/a theirs/own/file | sort -u)" ] ||
    fail 'a file that is reached twice is no hard link, as by tar'
run 0 "$onepot" pack --dry-run -h subset
says '^packed: about'
grep -q '^5 files, 5 bytes, 9 inodes' out || fail "files that links lead to are not counted: $(cat out)"
for rank in 0 1; do
    run 0 "$onepot" pack -q -h -f --shards 3 --rank $rank --world 2 -o s-%d.tar subset
done
followed s-0.tar s-1.tar s-2.tar
printf 'k1/a\nown/within/\n' >names
run 0 "$onepot" pack -q -h -f --files-from names -o b.tar subset
[ "$("$onepot" ls -R b.tar | grep -cE 'k1/a$|deep/b$')" -eq 2 ] || fail "by a list: $("$onepot" ls -R b.tar)"
run 0 "$onepot" pack -q -h -f --exclude 'k*/' -o b.tar subset
[ "$("$onepot" ls b.tar)" = own ] || fail 'a folder behind a link is not excluded'
ln -s . subset/self
ln -s ../../subset full/n1/back
ln -s nowhere subset/nothing
ln -s c2 subset/c1
ln -s c1 subset/c2
run 1 "$onepot" pack -q -h -f -o b.tar subset
says '^onepot: self: left out: it is a link to a directory that holds it' '^onepot: k1/back: left out: it is a link to' \
    '^onepot: nothing: left out: it is a link that leads to nothing' '^onepot: c1: left out: its links lead in a circle'
rm subset/self full/n1/back subset/nothing subset/c1 subset/c2
run 1 "$onepot" pack -h -f -o d.tar subset/missing
run 2 "$onepot" pack -h -f -o d.tar b.tar
says '--dereference is for directories'
rm -rf full subset ours theirs s-?.tar b.tar c.tar names

# ---- archives ----
run 0 "$onepot" pack -q -o b.tar a.tar
same a.tar b.tar 'an archive of an archive'
run 0 "$onepot" pack -q -j 1 -f -o b.tar a.tar
same a.tar b.tar 'with one thread'

# What tar can say of a file: GNU tar stores fifos once a name, and misses times before 1970.
cp -a tree plain
rm -rf plain/fifo plain/hl/fifo plain/before1970 plain/time/5
"$python" -c 'import os
for name in "a=b", "%", "%3D=": os.setxattr("plain/hl/a", "user." + name, b"v")' 2>/dev/null ||
    echo 'not tested: names of attributes that GNU tar writes in another way'
run 0 "$onepot" pack -q -o plain.onepot.tar plain
tar --format=pax --xattrs --xattrs-include='*' -S -cf plain.tar -C plain .
run 0 "$onepot" pack -q -f -o b.tar plain.tar
same plain.onepot.tar b.tar 'a directory and a tar of it'
gzip -k plain.tar
run 0 "$onepot" pack -q -f -o b.tar plain.tar.gz
same plain.onepot.tar b.tar 'a directory and a compressed tar of it'
mkdir names
(cd names && run 0 "$onepot" pack -q ../plain.tar.gz && [ -e plain.onepot.tar ]) ||
    fail 'the default name of an archive is another one'
run 0 "$onepot" pack -q -f -o b.tar plain.tar tree
run 0 "$onepot" ls b.tar
printf 'plain\ntree\n' | cmp -s - out || fail "two sources make: $(cat out)"
# Several archives as one, and archives in them.
mkdir set
tar -cf set/inner.tar -C plain time
tar -cf set/1.tar -C set inner.tar
tar -cf set/2.tar -C plain size
mkdir both both/inner
cp -a plain/size both
cp -a plain/time both/inner
for options in --nested '--nested=inner.*'; do
    run 0 "$onepot" pack -q -f "$options" -o b.tar 'set/[12].tar'
    run 0 "$onepot" ls -R b.tar
    (cd both && find . -mindepth 1 -printf '%P\n' | sort) >wanted
    sort out | cmp -s - wanted || fail "$options of two archives: $(diff <(sort out) wanted | head -5)"
done
printf '%s\n' set/1.tar set/2.tar >list
run 0 "$onepot" pack -q -f --each --nested --include '1/*' -o b.tar @list
run 0 "$onepot" ls b.tar
[ "$(cat out)" = 1 ] || fail "one of each: $(cat out)"
run 2 "$onepot" pack -q 'set/[12].tar'
says 'stands for several archives: name the new one'
run 2 "$onepot" pack -q -o c.tar 'set/[12].tar' a.tar
says 'stands for several archives: pack it alone'
run 2 "$onepot" pack -q --nested -o c.tar tree
says 'are for archives; tree is none'
run 1 "$onepot" pack -q -o c.tar 'set/[89].tar'
says 'no file matches'
if has_squashfs; then
    mkdir -p whole/d
    for i in 1 2 3; do
        head -c $((i * 70000)) /dev/urandom >whole/d/$i
        touch -d @1000000$i whole/d/$i
    done
    ln -s d/1 whole/link
    touch -h -d @5 whole/link whole/d whole
    mksquashfs whole whole.sqfs -quiet -no-progress >/dev/null 2>&1
    run 0 "$onepot" pack -q -o c.tar whole
    run 0 "$onepot" pack -q -o d.tar whole.sqfs
    same c.tar d.tar 'a directory and a SquashFS of it'
else
    echo 'not tested: SquashFS (no mksquashfs, or onepot was built without it)'
fi
head -c 5000 /dev/urandom >noise
run 1 "$onepot" pack -o there.tar noise
[ ! -e there.tar ] || fail 'what is no archive made one'

# A damaged member is told, and what is around it is there.
"$python" - <<'END'
data = bytearray(open("a.tar", "rb").read())
content = open("tree/size/10240", "rb").read()
for name in ("tree/size/10240", "tree/size/3145735"):
    content = open(name, "rb").read()
    data[data.index(content) + len(content) // 2] ^= 1
open("damaged.tar", "wb").write(data)
END
run 1 "$onepot" pack -o b2.tar damaged.tar
says 'size/10240: is damaged' 'size/3145735: is damaged' 'complete but for 2 problems'
verify b2.tar
run 1 "$onepot" pack --strict -o b3.tar damaged.tar
[ ! -e b3.tar ] || fail '--strict made an archive of a damaged one'

# ---- lists of names ----
(cd tree && find . -print0 | sort -z -R) >list
run 0 "$onepot" pack -q -f -o b.tar --files-from list tree
same a.tar b.tar 'a list of all names'
printf '/' | cat - /dev/null >all
printf './\n' >all
run 0 "$onepot" pack -q -f -o b.tar --files-from all tree
same a.tar b.tar 'the directory as a list'
find "$work/tree" -print0 >list
(cd tree && "$onepot" pack -q -f -o ../b.tar --files-from - <../list) || fail 'no source'
same a.tar b.tar 'absolute names, here'
printf 'size/10240\n./hl//a\nnope\nsize/nope\n../x\nlnup/size\nxa\nmode/\nhl/a\nhl/b\n' >list
run 1 "$onepot" pack -o l.tar --files-from list tree
says '^onepot: nope: left out: .* not exist' '^onepot: size/nope: ' '^onepot: \.\./x: ' \
    '^onepot: lnup: .* not a directory' 'for 4 problems' '^onepot: xa: packed without'
run 0 "$onepot" ls -R l.tar
(cd tree && printf '%s\n' hl hl/a hl/b mode mode/* size size/10240 xa) | sort >expected
sort out | cmp -s - expected || fail "a list makes: $(cat out)"
run 0 tar -tvf l.tar
grep -q 'hl/b link to hl/a' out || fail 'two names in a list are no hard link'
run 1 "$onepot" pack -o there.tar --files-from list a.tar
says '^onepot: list: \.\./x: its name has '
run 2 "$onepot" pack --null tree
run 2 "$onepot" pack -o there.tar --files-from all --files-from list tree
says 'can be given once'
touch "$(printf 'two\nlines')"
tar -cf odd.tar "$(printf 'two\nlines')"
printf 'two\nlines' >odd.list
run 1 "$onepot" pack -o odd.onepot.tar --files-from odd.list odd.tar
run 0 "$onepot" pack -q -o odd.onepot.tar --null --files-from odd.list odd.tar
run 0 "$onepot" cat odd.onepot.tar "$(printf 'two\nlines')"
run 1 "$onepot" pack -o there.tar --files-from nowhere tree
says '^onepot: nowhere: '
run 1 "$onepot" pack --strict -o there.tar --files-from list tree
[ ! -e there.tar ] || fail '--strict ignored the list'

# ---- patterns ----
run 0 "$onepot" pack -q -f -o b.tar --exclude size/ --exclude '/hl/L*' --exclude 'empty*' tree
run 0 "$onepot" ls -R b.tar
"$onepot" ls -R a.tar | grep -v -e '^size' -e '^hl/L' -e '^empty' -e '/empty' >expected
same out expected 'what is excluded'
run 0 "$onepot" pack -q -o b2.tar -f --exclude size/ --exclude '/hl/L*' --exclude 'empty*' a.tar
same b.tar b2.tar 'what is excluded from an archive'

# ---- what macOS adds, and how it spells ----
mkdir -p mac/a mac/__MACOSX/a
for name in ._x .DS_Store a/._y a/Thumbs.db __MACOSX/a/._z __MACOSX/real; do echo junk >"mac/$name"; done
for name in x a/y a/.x a/__MACOSX a/_.DS_Store; do echo real >"mac/$name"; done
tar -cf mac.tar -C mac .
printf '%s\n' a a/.x a/_.DS_Store a/__MACOSX a/y x >expected
for source in mac mac.tar -; do
    "$onepot" pack -q -f --drop-junk -o b.tar "$source" <mac.tar || fail "--drop-junk $source"
    run 0 "$onepot" ls -R b.tar
    same out expected "what is no junk in $source"
done
run 0 "$onepot" pack -q -f --drop-junk --exclude .x -o b.tar mac
grep -vx a/.x expected >fewer
"$onepot" ls -R b.tar >out
same out fewer '--exclude beside --drop-junk'


# mac_tree DIRECTORY E: with names that have that e with an acute accent, and links to them. One name is no UTF-8.
mac_tree() {
    mkdir -p "$1/caf$2/sub" "$1/empty$2" "$1/z"
    echo real >"$1/caf$2/sub/$2"
    echo bad >"$1/$(printf 'bad\xffe\xcc\x81')"
    for name in cafz cafe z/plain caf"$2"/._x; do echo plain >"$1/$name"; done
    ln "$1/caf$2/sub/$2" "$1/z/hard$2"
    ln -s "../caf$2/sub/$2" "$1/z/link"
    ln -s "../caf$2//sub/" "$1/z/folder"
    ln -s "../../$(printf 'e\xcc\x81')" "$1/z/out"
    find "$1" -exec touch -h -d @1000000000 {} +
}
decomposed=$(printf 'e\xcc\x81')
composed=$(printf '\xc3\xa9')
mac_tree composed "$composed"
mac_tree decomposed "$decomposed"
tar -C decomposed --format=posix --sort=name -cf decomposed.tar .
if "$onepot" pack --normalize=NFC -q -f -o b.tar composed 2>err; then
    rm -rf mac && mkdir mac
    run 0 "$onepot" pack -q -f -o nfc.tar composed
    for source in decomposed decomposed.tar composed; do
        run 0 "$onepot" pack -q -f --normalize=NFC -o b.tar $source
        same nfc.tar b.tar "composed names of $source"
    done
    "$onepot" ls -lR nfc.tar | sort >expected
    input=decomposed.tar run 0 "$onepot" pack -q -f --normalize=NFC -o b.tar -
    "$onepot" ls -lR b.tar | sort >out
    same out expected 'composed names of a stream'
    run 0 "$onepot" verify -q b.tar

    # With the options that pick, name and spread members.
    for options in --drop-junk "--exclude=*/sub" --dereference "--shards=3 -j1"; do
        for names in composed decomposed; do
            # shellcheck disable=SC2086,SC2046 # several words; a link leads to nothing
            run $([ "$options" = --dereference ] && echo 1 || echo 0) "$onepot" pack -q -f --normalize=NFC $options -o "$names-%d.tar" $names
            cat $names-*.tar >$names.all
        done
        same composed.all decomposed.all "composed names with $options"
    done
    for rank in 0 1 2; do
        run 0 "$onepot" pack -q -f --normalize=NFC --shards=3 --rank=$rank --world=3 -o 'rank-%d.tar' decomposed
    done
    for shard in 0 1 2; do same composed-$shard.tar rank-$shard.tar "composed names in a rank's shard"; done
    printf 'caf%s/sub/\n' "$decomposed" >list
    for source in decomposed decomposed.tar; do
        run 0 "$onepot" pack -q -f --normalize=NFC --files-from list -o b.tar $source
        "$onepot" ls -R b.tar >out
        printf '%s\n' "caf$composed" "caf$composed/sub" "caf$composed/sub/$composed" >expected
        same out expected "composed names of a list for $source"
    done
    printf 'caf%s/sub/%s\tnew/%s\n' "$decomposed" "$decomposed" "o$(printf '\xcc\x88')" >names.tsv
    run 0 "$onepot" pack -q -f --normalize=NFC --map names.tsv -o b.tar decomposed.tar
    run 0 "$onepot" cat b.tar "new/$(printf '\xc3\xb6')"
    mkdir "mac/b$decomposed" mac/c
    run 0 "$onepot" pack -q -f --normalize=NFC -o b.tar "mac/b$decomposed" mac/c
    "$onepot" ls -R b.tar >out
    printf '%s\n' "b$composed" c >expected
    same out expected 'composed names of sources'

    # One name that two get is an error, and nothing is lost; without the option a line tells.
    mkdir "mac/c/b$composed"
    run 1 "$onepot" pack -q --normalize=NFC -o lost.tar "mac/b$decomposed" "mac/c/b$composed"
    says "^onepot: .*: another source has the same name, 'b$composed'"
    rmdir "mac/c/b$composed"
    echo one >"mac/b$decomposed/$decomposed"
    echo other >"mac/b$decomposed/$composed"
    printf 'K' >"mac/$(printf '\xe2\x84\xaa')" # a Kelvin sign
    printf 'k' >mac/K
    tar -cf mac.tar -C mac .
    tar -cf reverse.tar -C mac K "$(printf '\xe2\x84\xaa')" "b$decomposed/$decomposed" "b$decomposed/$composed" \
        "b$decomposed/$composed" "b$decomposed/$decomposed"
    for source in mac mac.tar - reverse.tar; do
        stream=mac.tar
        if [ $source = reverse.tar ]; then source=- stream=reverse.tar; fi
        for options in '' --shards=3; do
            if [ "$source$options" = ---shards=3 ]; then continue; fi
            # shellcheck disable=SC2086
            input=$stream run 1 "$onepot" pack -q --normalize=NFC $options -o lost.tar $source
            says "^onepot: .*: '.*' beside it would get the same name by --normalize; rename one"
            if compgen -G 'lost*' >out; then fail "an archive is left: $(cat out)"; fi
        done
        input=$stream run 0 "$onepot" pack -q -f -o c.tar $source
        says "^onepot: .*is the first of 2 names that differ from one beside them by Unicode normalization only, it from '"
        [ "$(wc -l <err)" = 1 ] || fail "more is told: $(cat err)"
        run 0 "$onepot" cat c.tar "b$decomposed/$composed"
    done
    run 1 "$onepot" pack --dry-run --normalize=NFC mac
    says "^onepot: b$decomposed/$decomposed\|^onepot: b$decomposed/$composed"
    run 0 "$onepot" pack --dry-run mac
    for rank in 0 1; do
        run 0 "$onepot" pack -q --shards=2 --rank=$rank --world=2 -o 'told-%d.tar' mac
        [ $rank = "$(wc -l <err | sed 's/1/x/; s/0/1/; s/x/0/')" ] || fail "rank $rank tells: $(cat err)"
    done
    rm "mac/b$decomposed/$composed" mac/K
    run 0 "$onepot" pack -q -f -o c.tar mac
    [ ! -s err ] || fail "names that are alike: $(cat err)"

    # A name that would become too long for a directory stays.
    long=$("$python" -c "print('\u0958' * 80)")
    mkdir long && echo x >"long/$long"
    run 0 "$onepot" pack -q -f --normalize=NFC -o b.tar long
    run 0 "$onepot" cat b.tar "$long"
else
    grep -qx 'onepot: --normalize: this onepot was built without libutf8proc' err || fail "--normalize says: $(cat err)"
    echo 'names in NFC were left out: this onepot was built without libutf8proc'
fi
for form in nfc NFD none; do
    run 2 "$onepot" pack --normalize=$form -f -o b.tar composed
    says "^onepot pack: --normalize takes NFC, not '$form'"
done

# ---- a dataset that grows: what is new is another archive, and all can become one ----
mkdir -p grown/a/old grown/b/new grown/all
for i in $(seq 40); do echo "old $i" >"grown/a/old/$i"; done
cp -a grown/a/old grown/b/
rm grown/b/old/[1-5]
echo changed >grown/b/old/7
echo new >grown/b/new/1
touch -d @1000000000 grown/a grown/b grown/a/old grown/b/old
cp -a grown/a/. grown/b/. grown/all/
touch -d @1000000000 grown/all grown/all/old
for part in a b all; do run 0 "$onepot" pack -q -o "grown/$part.tar" "grown/$part"; done
mv grown/a.tar grown/train-1.tar && mv grown/b.tar grown/train-2.tar
run 0 "$onepot" pack -q -o grown/one.tar --on-conflict=last grown/train-*.tar
same grown/one.tar grown/all.tar 'the archive of all'
run 0 "$onepot" pack -q -f -o grown/one.tar --on-conflict=last 'grown/train-*.tar'
same grown/one.tar grown/all.tar 'the archive of a pattern'
run 0 "$onepot" pack -q -f -o grown/one.tar --on-conflict=first grown/train-2.tar grown/train-1.tar
same grown/one.tar grown/all.tar 'the archive of all, the first one counting'
run 0 "$onepot" pack -q -f -o grown/one.tar grown/train-*.tar
run 0 "$onepot" cat grown/one.tar train-1/old/7
run 2 "$onepot" pack -f -o grown/one.tar --on-conflict=last grown/train-1.tar
run 2 "$onepot" pack -f -o grown/one.tar --on-conflict=last grown/train-1.tar grown/a

# ---- shards and ranks ----
mkdir one four
run 0 "$onepot" pack -q --shards 7 -o one/x.onepot.tar tree
for rank in 0 1 2 3; do
    run 0 env SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_NTASKS=4 \
        "$onepot" pack --shards 7 -o four/x.onepot.tar tree
    says "rank $rank of 4 by Slurm"
done
run 0 "$onepot" pack -q --shards 7 --rank 9 --world 10 -o 'four/none-%d' tree
for shard in one/*; do
    same "$shard" "four/${shard#one/}" 'a shard by another number of ranks'
    verify "$shard"
    "$onepot" ls -R "$shard"
done | sort -u >out
[ "$(find four -type f | wc -l)" -eq 7 ] || fail "ranks wrote: $(ls four)"
"$onepot" ls -R a.tar | sort | cmp -s - out || fail 'the shards are not all of the tree'
# Each file in one shard.
for shard in one/*; do
    "$python" "$tests/onepot_reader.py" list "$shard"
done | grep -v '"mode": "4' | sed 's/"nlink": [0-9]*, //' | sort >shards.list
"$python" "$tests/onepot_reader.py" list a.tar | grep -v '"mode": "4' |
    sed 's/"nlink": [0-9]*, //' | sort >expected
same shards.list expected 'files of all shards'
run 0 "$onepot" pack -q --shards 7 -o 'from-%d.tar' a.tar
for i in 0 1 2 3 4 5 6; do
    same from-$i.tar one/x-0000$i-of-00007.onepot.tar 'a shard of an archive'
done
# A batch script is task 0, but no step: it has to do all.
run 0 env SLURM_PROCID=0 SLURM_NTASKS=4 "$onepot" pack -q --shards 2 -o 'batch-%d.tar' tree
[ -e batch-1.tar ] || fail 'a batch script wrote a share only'
run 1 env RANK=x WORLD_SIZE=2 "$onepot" pack --shards 2 tree
says '^onepot: RANK: '
run 2 "$onepot" pack --rank 0 --shards 2 tree
run 2 "$onepot" pack --rank 2 --world 2 --shards 2 tree
run 2 "$onepot" pack --shards 0 tree
run 1 "$onepot" pack --shards 2 -o 'x%d/y.tar' tree
# Shards in the source, of this run, of another rank, and of a run that was killed.
cp -a tree inside
touch "inside/z-00001-of-00003.tar.abcdef.partial"
for rank in 0 1 2 0 1 2; do
    run 0 "$onepot" pack -f --shards 3 --rank $rank --world 3 -o inside/z.tar inside
done
for i in 0 1 2; do
    run 0 "$onepot" ls -R inside/z-0000$i-of-00003.tar
    ! grep -q '^z-0' out || fail "a shard holds a shard: $(grep '^z-0' out)"
done

# ---- what a failure leaves ----
mkdir target big
for i in 1 2 3 4 5 6 7 8; do
    head -c 4M /dev/urandom >big/$i
done
for moment in 0.002 0.005 0.01 0.02 0.03 0.05 0.08; do
    for what in 'big' 'big --shards 3' 'big.tar' '--files-from big.list big'; do
        [ -e big.tar ] || "$onepot" pack -q -o big.tar big
        seq 8 >big.list
        # shellcheck disable=SC2086
        setsid "$onepot" pack -o target/b.tar $what >out 2>err &
        background=$!
        sleep $moment
        # As timeout(1) does, at one moment: that is no second request.
        kill -TERM $background $background 2>/dev/null
        status=0
        wait $background 2>/dev/null || status=$?
        complete=$(find target -name '*.tar' | wc -l)
        if [ $status -eq 0 ]; then
            [ "$complete" -gt 0 ] || fail "$what: success, and nothing"
        else
            nothing target "SIGTERM after $moment s of $what"
            [ ! -s err ] || [ "$complete" -gt 0 ] || says 'nothing is left'
        fi
        rm -f target/*
    done
done
mkdir disk
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=10M none disk 2>/dev/null; then
    mounted=$work/disk
    for what in 'big' 'big --shards 3' 'big.tar' '--files-from big.list big'; do
        # shellcheck disable=SC2086
        run 1 "$onepot" pack -o disk/b.tar $what
        says 'No space left on device'
        [ -z "$(ls -A disk)" ] || fail "a full disk, $what: left $(ls disk)"
    done
    run 1 "$onepot" pack --shards 3 -o disk/b.tar big
    says '^onepot: disk/b-0000[012]-of-00003.tar: '
    umount disk
    mounted=
else
    echo 'not tested: a full disk (it takes a mount of tmpfs)'
fi
: >target/b-00001-of-00003.tar
run 1 "$onepot" pack --shards 3 -o target/b.tar tree
says 'b-00001-of-00003.tar: already exists'
[ "$(ls target)" = b-00001-of-00003.tar ] || fail "a shard that exists: left $(ls target)"

# ---- a partial file that can't be removed ----
mkdir -p kept
if chattr +a kept 2>/dev/null; then # files can be made in it, and not removed
    run 1 sh -c 'ulimit -f 1000; exec "$@"' - "$onepot" pack -o kept/k.tar big
    says "can't be written" "its partial file 'k.tar\..*\.partial' could not be removed"
    chattr -a kept
else
    echo "not tested: a partial file that can't be removed (it takes root and chattr +a)"
fi
rm -rf kept

# ---- not to be read ----
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    mkdir -p locked/dir locked/open
    echo a >locked/file
    for i in 1 2 3 4 5 6 7 8; do
        echo $i >locked/open/$i
    done
    echo c >locked/dir/file
    chmod 000 locked/file locked/dir
    chown -R nobody locked
    chmod 755 "$work"
    mkdir nobodys
    chown nobody nobodys
    for what in '' '--shards 2'; do
        # shellcheck disable=SC2086
        run 1 setpriv --reuid nobody --clear-groups "$onepot" pack -f $what \
            -o nobodys/l.tar locked
        says '^onepot: file: left out: .*ermission denied' '^onepot: dir: left empty' \
            'for 2 problems'
    done
    for shard in nobodys/*; do
        verify "$shard"
    done
else
    echo 'not tested: files that may not be read (it takes root and setpriv)'
fi

# ---- a source that changes all the time ----
cat >change.py <<'END'
"""Change files in the folder until killed. Nothing follows the links that it makes."""
import os, random, sys
os.chdir(sys.argv[1])
rng = random.Random(5)

def opened(name, flags):
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | flags, 0o644)
    return os.fdopen(fd, "wb", closefd=True)

while True:
    name = "f%d" % rng.randrange(40)
    what = rng.randrange(6)
    try:
        if what == 0:
            with opened(name, 0) as f:
                os.ftruncate(f.fileno(), rng.randrange(2 << 20))
        elif what == 1:
            os.unlink(name)
        elif what == 2:
            os.unlink(name)
            os.symlink("../secret", name)
        elif what == 3:
            os.unlink(name)
            os.mkdir(name)
        elif what == 4:
            os.rmdir(name)
        else:
            with opened(name, os.O_CREAT | os.O_APPEND) as f:
                f.write(bytes(rng.randrange(3 << 20)))
    except OSError:
        pass
END
mkdir changing
echo "not to be packed" >secret
chmod 444 secret
"$python" change.py changing &
background=$!
seq -f f%g 0 39 >names.list
for i in 1 2 3 4 5 6; do
    for what in 'changing' 'changing --shards 2' '--files-from names.list changing'; do
        rm -f target/*
        status=0
        # shellcheck disable=SC2086
        timeout 60 "$onepot" pack -q --no-sync -o target/c.tar $what >out 2>err || status=$?
        [ $status -le 1 ] || fail "status $status of a source that changes"
        for archive in target/*; do
            verify "$archive"
            if tar -xOf "$archive" 2>/dev/null | grep -aq '^not to be packed'; then
                fail 'a symbolic link was followed'
            fi
        done
    done
done
kill "$background"
wait "$background" 2>/dev/null
background=
[ "$(cat secret)" = "not to be packed" ] || fail "the test wrote through a link"

finish
