#!/usr/bin/env bash
# The commands that need no mount, as a person or a script calls them: ls, cat, info,
# index, help, exit statuses; with names that no terminal should see.
#
# Usage: cli.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/isolated.sh
. "$2/tests/lib/isolated.sh"
onepot=$(realpath "$1")
work=$(mktemp -d)
trap 'chmod -R u+rwX "$work"; rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache TZ=UTC LC_ALL=C
python=/usr/bin/python3
[ -x "$python" ] || python=python3
cd "$work"
failed=0

fail() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# run WANTED_STATUS COMMAND...: output in $work/out and $work/err.
run() {
    local wanted=$1 status=0
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    if [ "$status" -ne "$wanted" ]; then
        fail "'$*' ended with $status, and should with $wanted: $(head -c 500 "$work/err")"
    fi
}

# says FILE TEXT: the file holds the text.
says() {
    if ! grep -qF -e "$2" "$work/$1"; then
        fail "no '$2' in std$1: $(head -c 500 "$work/$1")"
    fi
}

# equal FILE EXPECTED_FILE WHAT
equal() {
    if ! cmp -s "$1" "$2"; then
        fail "$3: $(head -c 500 "$1"), and should be $(head -c 500 "$2")"
    fi
}

# An error is exactly one line that starts with the program's name.
one_line() {
    if [ "$(wc -l <"$work/err")" -ne 1 ] || ! grep -q '^onepot' "$work/err"; then
        fail "the error of '$*' is no single line: $(cat "$work/err")"
    fi
}

# ---- a tree with everything ----
newline=$'new\nline'
latin=$'caf\xe9'
escape=$'esc\e[31m'
mkdir -p tree/dir/sub tree/empty
echo plain >tree/plain
echo 'in a directory' >tree/dir/file
echo deep >tree/dir/sub/deep
echo newline >"tree/$newline"
echo latin >"tree/$latin"
echo escape >"tree/$escape"
: >tree/nothing
head -c 3000000 /dev/urandom >tree/large
truncate -s 200000 tree/sparse
echo tail >>tree/sparse
ln tree/plain tree/hard
ln -s dir/file tree/link
ln -s sub/../../plain tree/dir/up
ln -s dir tree/linked_dir
ln -s /etc/hostname tree/absolute
ln -s ../outside tree/escaping
ln -s loop_b tree/loop_a
ln -s loop_a tree/loop_b
ln -s nowhere tree/dangling
mkfifo tree/fifo
chmod 640 tree/plain
chmod 4755 tree/dir/file
touch -d '2001-02-03 04:05:06.789' tree/plain
tar -C tree --format=pax -S -cf tree.tar .

# ---- ls ----
find tree -mindepth 1 -maxdepth 1 -printf '%P\0' | sort -z >names0
find tree -mindepth 1 -printf '%P\0' | sort -z >paths0
run 0 "$onepot" ls -0 tree.tar
sort -z out >sorted
equal sorted names0 'ls -0'
equal out names0 'the order of ls is byte order'
run 0 "$onepot" ls -R0 tree.tar
sort -z out >sorted
equal sorted paths0 'ls -R0'
run 0 "$onepot" ls tree.tar
tr '\0' '\n' <names0 >expected
equal out expected 'ls in a pipe prints raw names'
run 0 "$onepot" ls tree.tar --path dir
printf 'file\nsub\nup\n' >expected
equal out expected 'ls --path of a directory'
run 0 "$onepot" ls --path /linked_dir/sub/../ tree.tar
equal out expected 'ls --path follows links, and knows dot dot'
run 0 "$onepot" ls -l --path dir/file tree.tar
grep -qE "^-rwsr-xr-x  1 $(id -u)/$(id -g) +15 .* dir/file$" out || fail "ls -l: $(cat out)"
run 0 "$onepot" ls -l tree.tar
grep -qE "^-rw-r-----  2 .* 2001-02-03 04:05:06 plain$" out || fail "ls -l plain: $(cat out)"
says out ' link -> dir/file'
grep -q '^prw' out || fail 'ls -l shows no fifo'
run 1 "$onepot" ls --path nowhere tree.tar
says err 'onepot: tree.tar: nowhere: no such file or directory in the archive'
run 1 "$onepot" ls --path plain/x tree.tar
says err 'is not a directory'

# Parts of a job: this node's, of how many, and from which chunk on.
for part in 4/4 1 0/4/ 0/4/x 0/4/-1 0/4/1/1; do
    run 2 "$onepot" stage --node=$part --ring=3 tree.tar
    says err "'$part' is not RANK/SIZE"
done
run 0 "$onepot" ls tree.tar dir
printf 'file\nsub\nup\n' >expected
equal out expected 'ls of a directory in an archive'
run 0 "$onepot" ls tree.tar dir/file plain
printf 'dir/file\nplain\n' >expected
equal out expected 'ls of two files in an archive'
run 0 "$onepot" ls tree.tar plain linked_dir/sub
printf 'plain\n\nlinked_dir/sub:\ndeep\n' >expected
equal out expected 'ls of a file and a directory in an archive'
run 1 "$onepot" ls tree.tar nowhere plain
one_line 'ls of a path that is not there'
says err 'tree.tar: nowhere: no such file or directory in the archive, and no archive here'
says out plain
cp tree.tar other.tar
run 0 "$onepot" ls tree.tar other.tar plain
printf 'tree.tar:\nplain\n\nother.tar:\nplain\n' >expected
equal out expected 'ls of one path in two archives'
echo text >plain
run 1 "$onepot" ls tree.tar plain
says err "onepot: plain: is not an archive of a known format; if it is a path in the archive before it"
run 0 "$onepot" ls tree.tar -- plain
printf 'plain\n' >expected
equal out expected "ls of a path behind '--' that is a file here, too"
run 2 "$onepot" ls -- tree.tar
rm plain other.tar
run 1 "$onepot" ls absent.tar tree.tar
one_line 'ls of an absent archive'
says out 'plain'
run 0 "$onepot" ls tree.tar tree.tar
if [ "$(grep -c '^tree.tar:$' out)" -ne 2 ]; then fail 'ls of two archives has no headings'; fi
if command -v script >/dev/null; then
    script -qec "'$onepot' ls tree.tar" /dev/null </dev/null >terminal || true
    if grep -q $'\e\\[31m' terminal; then fail 'an escape sequence reached a terminal'; fi
    grep -qF 'esc\x1b[31m' terminal || fail "ls on a terminal: $(cat terminal)"
    grep -qF 'caf\xe9' terminal || fail 'a byte that is no UTF-8 reached a terminal'
fi

run 0 "$onepot" ls -R --json tree.tar
"$python" - out <<'PYTHON' || fail 'ls --json'
import json, os, sys
with open(sys.argv[1], "rb") as f:
    entries = json.loads(f.read().decode())
found = {os.fsencode(e["path"]): e for e in entries}
expected = {}
for folder, folders, files in os.walk(b"tree"):
    for name in folders + files:
        path = os.path.join(folder, name)
        expected[os.path.relpath(path, b"tree")] = os.lstat(path)
assert set(found) == set(expected), set(found) ^ set(expected)
for path, st in expected.items():
    e = found[path]
    assert int(e["mode"], 8) == st.st_mode & 0o7777, path
    assert (e["uid"], e["gid"]) == (st.st_uid, st.st_gid), path
    assert e["mtime"] * 10**9 + e["mtime_nsec"] == st.st_mtime_ns, path
    if e["type"] == "file":
        assert (e["size"], e["nlink"]) == (st.st_size, st.st_nlink), path
assert found[b"plain"]["inode"] == found[b"hard"]["inode"]
assert found[b"link"]["target"] == "dir/file"
assert found[b"fifo"]["type"] == "fifo"
PYTHON
run 1 "$onepot" ls --json absent.tar
"$python" -c 'import json; assert json.load(open("out")) == []' || fail 'ls --json of nothing'

# ---- cat ----
for file in plain hard dir/sub/deep "$newline" "$latin" "$escape" nothing large sparse; do
    run 0 "$onepot" cat tree.tar "$file"
    equal out "tree/$file" "cat $file"
done
run 0 "$onepot" cat tree.tar link dir/up linked_dir/file ./dir//file
cat tree/dir/file tree/plain tree/dir/file tree/dir/file >expected
equal out expected 'cat of several, through links'
for path in absent dir absolute escaping loop_a dangling fifo ../tree.tar plain/ plain/x; do
    run 1 "$onepot" cat tree.tar "$path"
    one_line "cat $path"
done
run 1 "$onepot" cat tree.tar absent plain
equal out tree/plain 'cat goes on after an error'
status=0
"$onepot" cat tree.tar large >/dev/full 2>err || status=$?
if [ "$status" -ne 1 ]; then fail "cat to a full device ended with $status"; fi
says err 'standard output: No space left on device'
# A reader that goes away: SIGPIPE ends cat, or where that is ignored, an error does.
"$python" - "$onepot" <<'PYTHON' || fail 'cat into a closed pipe'
import os, subprocess, sys
for restore in (True, False):  # restore: SIGPIPE as usual; else ignored
    r, w = os.pipe()
    p = subprocess.Popen([sys.argv[1], "cat", "tree.tar", "large"], stdout=w,
                         stderr=subprocess.PIPE, restore_signals=restore)
    os.close(w)
    os.close(r)
    err = p.communicate(timeout=60)[1]
    assert p.returncode == (-13 if restore else 1), (restore, p.returncode, err)
    assert restore or b"standard output: Broken pipe" in err, err
PYTHON

# ---- info ----
run 0 "$onepot" info tree.tar
says out 'tree.tar:'
says out 'tar'
run 0 "$onepot" info --batch-for 1M tree.tar
grep -q 'batch .*1.0 MiB hold [0-9]* files on average, [0-9]* of the largest' out || fail 'info --batch-for'
run 2 "$onepot" info --batch-for much tree.tar
if "$onepot" info --help | grep -q -e --gpu; then
    run 0 "$onepot" info --gpu
    grep -qE '^(no GPU: .|cuda:0: )' out || fail 'info --gpu'
    run 0 env ONEPOT_CUDA=/nowhere/part.so "$onepot" info --gpu tree.tar
    { head -n 1 out | grep -qE '^no GPU: .*/nowhere/part.so' && grep -q '^tree.tar:' out; } || fail 'info --gpu ARCHIVE'
    run 2 "$onepot" info --gpu --json tree.tar
fi
run 0 "$onepot" info --json --batch-for 10K tree.tar
"$python" -c 'import json; i = json.load(open("out"))[0]
assert i["batch_bytes"] == 10240 and i["batch_mean"] >= i["batch_worst"], i' || fail 'info --json --batch-for'
rm -f tree.tar.onepot-index # one is saved where reading the archive took more than a second
run 0 "$onepot" info --json tree.tar
"$python" - <<'PYTHON' || fail 'info --json'
import json, os
(info,) = json.load(open("out"))
files = sum(len([n for n in names if os.path.isfile(os.path.join(d, n))
                 and not os.path.islink(os.path.join(d, n))]) for d, _, names in os.walk(b"tree"))
assert info["files"] == files, (info["files"], files)
assert info["directories"] == 4, info
assert info["size_bytes"] == os.stat("tree.tar").st_size
assert info["has_hardlinks"] and info["has_holes"], info
assert info["index_origin"] == "built", info
assert info["entries"] == info["files"] + info["directories"] + info["others"], info
PYTHON

# ---- index ----
rm -f tree.tar.onepot-index
run 0 "$onepot" index tree.tar
says out 'tree.tar: saved in '
[ -e tree.tar.onepot-index ] || fail 'index saved nothing beside the archive'
run 0 "$onepot" index tree.tar
says out 'still right'
run 0 "$onepot" info --json tree.tar
says out '"index_origin": "saved"'
run 0 "$onepot" index -f tree.tar
says out 'saved in'
run 0 "$onepot" ls -R0 tree.tar
sort -z out >sorted
equal sorted paths0 'ls -R0 from a saved index'
run 0 "$onepot" cat tree.tar large
equal out tree/large 'cat from a saved index'
# The archive changes: the index is made anew.
rm tree/nothing
tar -C tree --format=pax -cf tree.tar plain dir
run 0 "$onepot" ls tree.tar
printf 'dir\nplain\n' >expected
equal out expected 'ls of an archive that changed under its index'
printf 'no archive at all, but some text\n' >text
run 1 "$onepot" index text
one_line 'index of a text'
run 1 "$onepot" info text tree.tar
says out 'tree.tar:'

# ---- small files that hold much ----
"$python" - <<'PYTHON'
import tarfile
def block(size, kind, data, last=0): # of a frame of zstd: 0 as it is, 1 one byte over and over
    return (last | kind << 1 | size << 3).to_bytes(3, "little") + data
for name, byte in ("bomb", b"A"), ("zeros", bytes(1)):
    member = tarfile.TarInfo("a")
    member.size = 257 << 20
    with open(name + ".tar.zst", "wb") as out:
        out.write(bytes.fromhex("28b52ffd0068") + block(512, 0, member.tobuf()))
        out.write(block(1 << 17, 1, byte) * (member.size >> 17) + block(10240, 1, bytes(1), last=1))
PYTHON
run 1 "$onepot" ls bomb.tar.zst
says err 'bomb.tar.zst: unpacks to more than 256 MiB, '
says err 'if you trust it, allow more: --max-ratio=N or off'
one_line 'a bomb'
run 1 "$onepot" verify --max-ratio=2 bomb.tar.zst
run 0 "$onepot" ls --max-ratio=40000 bomb.tar.zst
run 0 "$onepot" index --max-ratio off bomb.tar.zst
run 1 "$onepot" cat bomb.tar.zst a
run 0 "$onepot" ls zeros.tar.zst
run 2 "$onepot" ls --max-ratio=0 zeros.tar.zst
run 2 "$onepot" ls --max-ratio=much zeros.tar.zst
rm -f bomb.tar.zst* zeros.tar.zst

# ---- onepot's own archive ----
if "$onepot" pack --help >/dev/null 2>&1; then
    "$onepot" pack -o own.tar tree
    run 0 "$onepot" index own.tar
    says err 'carries its own index'
    [ ! -e own.tar.onepot-index ] || fail 'index saved an index of an archive that has one'
    run 0 "$onepot" info --json own.tar
    says out '"index_origin": "embedded"'
    find tree -mindepth 1 -printf '%P\0' | sort -z >paths0
    run 0 "$onepot" ls -R0 own.tar
    sort -z out >sorted
    equal sorted paths0 'ls -R0 of a packed archive'
    run 0 "$onepot" cat own.tar "$latin" large
    cat "tree/$latin" tree/large >expected
    equal out expected 'cat of a packed archive'
fi

# ---- help, versions, wrong command lines ----
run 0 "$onepot" --help
says out 'Usage: onepot COMMAND'
run 0 "$onepot" --version
grep -qE '^onepot [0-9]+\.[0-9]+' out || fail "--version: $(cat out)"
run 0 "$onepot" --version --json
grep -q '"formats": \[.*"tar"' out || fail "--version --json: $(cat out)"
"$onepot" --help >all_help
sed -n 's/^  \([a-z-]*\) .*/\1/p' all_help | while read -r command; do
    for option in -h --help --version; do
        [ "$command $option" != 'pack -h' ] || continue # which is --dereference there
        if ! "$onepot" "$command" "$option" >out 2>err || [ -s err ] || [ ! -s out ]; then
            echo "FAILED: onepot $command $option"
            exit 1
        fi
    done
    "$onepot" help "$command" >out || exit 1
    if command -v mandoc >/dev/null; then
        grep -q "^ONEPOT-${command^^}(1)" out || exit 1
    else
        grep -q "^Usage: onepot $command" out || exit 1
    fi
done || fail 'help of a command'
for page in onepot $(sed -n 's/^  \([a-z-]*\) .*/\1/p' all_help); do
    "$onepot" help "$page" | sed -n "s/.*onepot-\([a-z-]*\)(1).*/\1 $page/p"
done | sort -u -k 1,1 >named
while read -r name page; do
    case $name in
    mount | umount | run | clean | squashfuse) continue ;; # all pages build on mounts
    esac
    "$onepot" help "$name" >out 2>err || fail "the page '$page' names $name, which is not in this build"
done <named
if "$onepot" run --help >out 2>err && ! grep -q -e --intercept out; then
    for page in onepot mount run stat doctor; do
        if "$onepot" help $page | grep -iE 'preload|intercept' >out; then fail "the page '$page' names the library that is left out"; fi
    done
fi
if ! "$onepot" version --json | grep -qE 'from points|(bzip2|xz) blocks'; then
    for page in onepot mount index verify; do
        if "$onepot" help $page | grep -E 'in bzip2|xz of several|has points|of a gzip file' >out; then
            fail "the page '$page' tells of streams that this build can't enter"
        fi
    done
fi
run 0 "$onepot" help onepot
run 0 "$onepot" help
equal out all_help 'help'
run 2 "$onepot" help frobnicate
# Where there was no mandoc: why, and what there is instead.
for page in onepot convert; do
    if [ $page = convert ] && ! "$onepot" help convert >out 2>err; then continue; fi
    run 0 "$ONEPOT_WITHOUT_PAGES" help $page
    says err mandoc
    equal out all_help "help $page, without pages"
done
"$onepot" ls --help >expected
run 0 "$ONEPOT_WITHOUT_PAGES" help ls
says err mandoc
equal out expected 'help ls, without pages'
run 2 "$ONEPOT_WITHOUT_PAGES" help frobnicate
run 0 "$onepot" licences
says out 'Apache License'

# ---- completions, as bash makes them ----
# completes LINE WORD...: what the end of a command line may become.
completes() {
    (
        # shellcheck disable=SC2317 # the completion calls it
        compopt() { if [ "$2" != nospace ]; then echo "($2)"; fi; }
        # shellcheck source=/dev/null
        . "$work/completion"
        PATH=${onepot%/*}:$PATH COMP_LINE="onepot $1" COMP_POINT=$((${#1} + 7))
        _onepot onepot "${COMP_LINE##*[ =]}"
        printf '%s\n' "${COMPREPLY[@]}"
    ) >out 2>err
    printf '%s\n' "${@:2}" >expected
    equal out expected "completion of '$1'"
    if [ -s err ]; then fail "completion of '$1' complains: $(cat err)"; fi
}
run 0 "$onepot" completions bash
mv out completion
completes 'ca' cat
if "$onepot" clean --help >/dev/null 2>&1; then completes 'clean ' ''; fi
completes 'ls --js' --json
completes 'cat --prog' --progress=
completes 'ls --progress=al' always
completes 'ls --progress al' always
completes 'ls --progress=' auto always never
completes 'completions ' bash zsh fish
completes 'help verif' verify
completes 'help verify l' ''
completes 'extract -C tre' '(dirnames)' ''
completes 'extract -fC tre' '(dirnames)' ''
completes 'cat names' '(default)' ''
completes 'pack -o paths' '(default)' ''
if grep -q '^  order ' all_help; then completes 'order --se' --seed=; fi
sed -n 's/^  \([a-z-]*\) .*/\1/p' all_help | while read -r command; do
    "$onepot" "$command" --help | grep -oE '^ +(-., )?--[a-z-]+' | grep -oE -e '--[a-z-]+' | sort >expected
    "$onepot" completions fish -- "$command" -- | grep -oE -e '^--[a-z-]+' | sort >out
    cmp -s out expected || exit 1
done || fail "the completion's options are not those of the commands"
for shell in zsh fish; do
    run 0 "$onepot" completions $shell
    if command -v $shell >/dev/null; then $shell -n out || fail "the completion for $shell"; fi
done
run 0 "$onepot" completions fish -- index --for
says out $'--force\tmake it anew, even where a saved one still fits'
run 2 "$onepot" completions csh
completes 'ls -h' -h
completes 'pack -h' -h
run 0 "$onepot" completions fish -- pack -h
if [ "$(grep -c '^-h' out)" -ne 1 ]; then fail "completion of a command's own -h: $(cat out)"; fi
# The words are only looked at, whatever they ask for.
run 0 "$onepot" completions fish -- ls --version --help --progress=bad --files-from=absent --absent --path
printf '%s\n' words $'--path=\tthe same as PATH behind \'--\'; may be repeated' >expected
equal out expected 'completion behind wrong options'
if [ -s err ]; then fail "completion behind wrong options complains: $(cat err)"; fi
run 0 "$onepot" completions fish -- pack -f -o packed_by_completion.tar tree ''
if [ -s err ] || [ -e packed_by_completion.tar ]; then fail "completion ran a command: $(cat err)"; fi

# ---- members ----
mkdir members members/'a b'
touch members/'a b'/one members/'a b'/$'t\two' members/'a b'/$'\xff' members/'a b'/$'new\nline'
touch members/-rf members/x=1 members/x=2 members/y1 members/y\* members/d\$1 members/d\'2 members/\'q
run 0 "$onepot" pack -o members.tar members
completes 'cat members.tar a' 'a\ b/'
completes "cat members.tar 'a" 'a b/'
completes 'cat members.tar d' "d\\\$1" "d\\'2"
completes "cat members.tar 'd" "d\$1"
completes 'cat members.tar "d' "d'2"
completes "cat members.tar \\'" "\\'q"
run 0 "$onepot" completions fish -- cat members.tar 'a b/'
printf '%s\n' words 'a b/one' >expected
equal out expected 'completion of names with control bytes'
mkdir 'two words'
cp members.tar 'two words'
for word in "'two words/members.tar'" '"two words/members.tar"' 'two\ words/members.tar' \~/members.tar \$WORK/members.tar; do
    HOME=$work WORK=$work completes "cat $word x=" 1 2
done
completes 'cat members.tar x=' 1 2
completes 'cat members.tar -r' ''
completes 'ls members.tar -- -r' -rf
completes 'ls members.tar -- memb' ''
# A name that begins with a dash would be an option, unless it is behind '--'.
run 0 "$onepot" completions fish -- ls members.tar ''
if grep -q '^-rf' out; then fail "completion of names that would be options: $(cat out)"; fi
run 0 "$onepot" completions fish -- ls members.tar -- ''
grep -qx -e -rf out || fail "completion of a name behind '--': $(cat out)"
completes 'info members.tar --exclude=x' x=1 x=2
completes 'info members.tar --exclude x=' 1 2
# In a pattern these characters have a meaning of their own.
completes 'info members.tar --exclude=y' y1
completes 'ls members.tar --path=y' 'y\*' y1
completes 'ls members.tar memb' '(default)' ''
completes 'cat absent.tar a' '(default)' ''
# The first archive among the words has them.
completes 'ls all_help absent.tar . members.tar x=' 1 2
completes 'ls --files-from all_help members.tar x=' 1 2
# Of very many, the first ones and the last one.
mkdir many
(cd many && seq -f n%05g 3000 | xargs touch)
run 0 "$onepot" pack -o many.tar many
# shellcheck disable=SC2046 # names without spaces
completes 'cat many.tar n' $(seq -f n%05g 1000) n03000
# No index is made of an archive that has none: one that is saved is used.
tar -C members -cf foreign.tar .
completes 'cat foreign.tar x' ''
run 0 "$onepot" index foreign.tar
completes 'cat foreign.tar x' x=1 x=2

# ---- self-test ----
mkdir "$work/run"
export ONEPOT_RUNTIME_DIR=$work/run
if "$onepot" mount --help >/dev/null 2>&1 && [ ! -w /dev/fuse ]; then
    run 1 "$onepot" self-test --dir "$work"
    says out '2 of 7 do not work here'
else
    run 0 "$onepot" self-test --dir "$work"
    says out 'everything works'
fi
if "$onepot" mount --help >/dev/null 2>&1; then
    run 1 env ONEPOT_MOUNT_METHODS=namespace "$onepot" self-test --dir "$work"
    if [ "$(grep -c 'it leaves no way' out)" -ne 1 ]; then fail "self-test repeats: $(cat out)"; fi
    says out 'FAILED the same of the compressed archive, for the same reason'
fi
if compgen -G "$work/onepot-self-test-*" >/dev/null; then fail 'self-test left something'; fi
run 1 "$onepot" self-test --dir "$work/absent"
one_line 'self-test in an absent directory'
run 2 "$onepot"
run 2 "$onepot" frobnicate
run 2 "$onepot" --frobnicate
run 2 "$onepot" sl
says err "did you mean 'ls'?"
run 2 "$onepot" tree.tar
one_line 'an archive in place of a command'
says err "onepot mount tree.tar'"
says err "onepot run tree.tar -- COMMAND"
run 2 "$onepot" absent.tar
says err "onepot mount absent.tar'"
run 2 "$onepot" tree
says err "onepot pack tree'"
run 2 "$onepot" pack -z tree
says err "there is no option '-z', did you mean '--zstd'?"
"$onepot" --version >expected
for word in version -V; do
    run 0 "$onepot" "$word"
    equal out expected "onepot $word"
done
for arguments in 'ls' 'ls --jsn x' 'cat' 'cat tree.tar' 'info' 'index' 'ls --path' 'ls -z tree.tar' \
    'info --progress=often tree.tar' 'stat a b'; do
    # shellcheck disable=SC2086 # the words are the arguments
    run 2 "$onepot" $arguments
    one_line "$arguments"
    says err "--help'"
done
status=0
"$onepot" ls tree.tar >&- 2>err || status=$?
if [ "$status" -ne 1 ]; then fail "ls with a closed standard output ended with $status"; fi

# ---- a name that forges a line ----
forged=$'a\nb\xc2\x9b.tar'
cp tree.tar "$forged"
for command in verify index info 'info --json' 'verify --json'; do
    # shellcheck disable=SC2086 # the words are the arguments
    run 0 "$onepot" $command "$forged"
    if grep -q '^b' out || grep -q $'\x9b' out; then
        fail "$command prints the name of an archive raw into a pipe: $(head -c 300 out)"
    fi
done
run 0 "$onepot" verify "$forged"
says out 'a\x0ab\xc2\x9b.tar: good'
run 0 "$onepot" ls --json "$forged"
says out '"a\u000ab\u009b.tar"'
rm -f "$forged" "$forged".onepot-index

if [ "$failed" -gt 0 ]; then
    echo "$failed failures"
    exit 1
fi
echo 'all commands behave'
