#!/bin/bash
# Stripes of archives on Lustre, with a stand-in for its program lfs: what is set, shown and
# advised, and an lfs that fails.
#
#     stripes.sh ONEPOT SOURCE_ROOT
set -u
# shellcheck source=tests/lib/script.sh
. "$2/tests/lib/script.sh"

# It keeps the layout of each file by its inode number, and of all others in "default".
mkdir bin layouts tree there
cat >bin/lfs <<'EOF'
#!/bin/sh
layouts=$(dirname "$0")/../layouts
layout() { echo "$layouts/$(stat -c %i "$1")"; }
[ -z "${LFS_SAYS+x}" ] || { echo "$LFS_SAYS"; exit "${LFS_STATUS:-0}"; }
case "$1 $2 $3 ${4:-}" in
'getstripe -dc ./ ') cat "$layouts/default" ;;
'getstripe -c ./'*) cat "$(layout "$3")" 2>/dev/null || cat "$layouts/default" ;;
'setstripe -c '*' ./'*) [ ! -e "$4" ] && (umask 022; : >"$4") && echo "$3" >"$(layout "$4")" ;;
*) echo "lfs: what is '$*'?" >&2; exit 1 ;;
esac
EOF
chmod +x bin/lfs
export PATH=$work/bin:$PATH ONEPOT_ASSUME_LUSTRE=1000
echo 1 >layouts/default
head -c 5000 /dev/urandom >tree/file

# stripes ARCHIVE NUMBER: as info and doctor show it, and its layout is.
stripes() {
    run 0 "$onepot" info "$1"
    says "stripes  *$2 storage target"
    run 0 "$onepot" info --json "$1"
    says "\"stripes\": $2\\b"
    "$onepot" doctor "$1" >out 2>err
    says "lies on $2 storage target"
    "$onepot" verify "$1" >verify.out 2>&1 || fail "$1 is damaged"
}

# ---- advice ----
run 0 "$onepot" pack -o there/a.tar tree
says "there/a.tar: all of it lies on one storage target; 'lfs migrate -c 8 there/a.tar'"
stripes there/a.tar 1
"$onepot" doctor there/a.tar >out 2>err
says 'lfs migrate -c 8 .*there/a.tar'
run 0 "$onepot" pack --dry-run -o there/b.tar tree
says '^next: onepot pack --stripe=8 -o there/b.tar tree$'
for layout in 4 -1; do # more, or all
    echo "$layout" >layouts/default
    run 0 "$onepot" pack --dry-run -o there/b.tar tree
    says '^next: onepot pack -o there/b.tar tree$'
done
echo 2 >layouts/default
run 0 "$onepot" pack -o there/b.tar tree
if grep -q migrate out err; then fail "advice where there are two: $(cat err)"; fi
stripes there/b.tar 2
echo 1 >layouts/default
ONEPOT_ASSUME_LUSTRE=1000000 run 0 "$onepot" pack -o there/small.tar tree
if grep -q migrate out err; then fail "advice for a small archive: $(cat err)"; fi

# ---- set before the first byte ----
umask 002
# shellcheck disable=SC2016 # a name
for name in c.tar -d.tar ' e $(touch no) "'; do
    run 0 "$onepot" pack --stripe=4 -o "there/$name" tree
    if grep -q migrate out err; then fail "advice for $name: $(cat err)"; fi
    stripes "there/$name" 4
    [ "$(stat -c %a "there/$name")" = 664 ] || fail "the mode of $name is $(stat -c %a "there/$name")"
done
[ ! -e no ] || fail 'a name was a command'
cmp there/a.tar there/c.tar || fail 'the bytes depend on the layout'
(cd there && run 0 "$onepot" pack --stripe=5 -f -o ./-d.tar ../tree)
stripes there/-d.tar 5
run 1 "$onepot" pack --stripe=5 -o there/c.tar tree
says 'already exists'
tar cf - tree | "$onepot" pack -q --stripe=3 -o there/stream.tar - || fail 'a stream'
stripes there/stream.tar 3
run 0 "$onepot" pack --stripe=3 --shards 2 -o there/s.tar tree
for shard in there/s-*.tar; do stripes "$shard" 3; done
run 2 "$onepot" pack --stripe=0 -o there/x.tar tree

# ---- an lfs that fails, and none ----
# refused PATTERN: a line, and no file.
refused() {
    run 1 "$onepot" pack -q --stripe=2 -o there/x.tar tree
    says "$1"
    [ "$(wc -l <err)" -eq 1 ] || fail "more than a line: $(cat err)"
    left=$(find there -name 'x.tar*')
    [ -z "$left" ] || fail "left: $left"
}
LFS_SAYS='error on ioctl' LFS_STATUS=3 refused "its stripes can't be set: error on ioctl"
LFS_SAYS='' refused "can't be created"
for says in '' nonsense 0 -7 99999 "$(head -c 100000 /dev/zero | tr '\0' x)"; do
    LFS_SAYS=$says run 0 "$onepot" info there/a.tar
    if grep -q 'stripes  ' out; then fail "stripes of '${says:0:20}': $(cat out)"; fi
done
PATH=${PATH#*:} refused 'not on Lustre, or there is no lfs'
(cd bin && PATH=.:${PATH#*:} run 0 "$onepot" info ../there/a.tar && ! grep -q 'stripes  ' "$work/out") ||
    fail "lfs of the folder that it is started in was run"
unset ONEPOT_ASSUME_LUSTRE
refused 'not on Lustre, or there is no lfs'

finish
