# shellcheck shell=bash
# What the tests of packing and extracting in shell share; sourced by them with the program
# as $1 and the root of the source as $2. Makes a private folder, $work, and goes there; at the
# end nothing is left of it, of a mount ($mounted) or a process ($background).
#
# A test says what it does with run, says, same and so on, which count in `failed`, and ends
# with `finish`.

onepot=$(realpath "$1")
# shellcheck disable=SC2034 # used by those who read this file
tests=$2/tests/command
python=/usr/bin/python3
[ -x "$python" ] || python=python3
work=$(TMPDIR=${ONEPOT_TESTS_MEMORY:-${TMPDIR:-/tmp}} mktemp -d)
mounted=    # by a test: where
background= # the process that a test has there
failed=0
cleanup() {
    [ "$BASHPID" = $$ ] || return 0 # a child that a signal met before its program
    [ -z "$background" ] || kill "$background" 2>/dev/null || true
    [ -z "$mounted" ] || umount "$mounted" || true
    chmod -R u+rwX "$work" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
export TZ=UTC LC_ALL=C XDG_CACHE_HOME=$work/cache PYTHONDONTWRITEBYTECODE=1
cd "$work" || exit 1

has_squashfs() {
    mkdir -p probe.d
    command -v mksquashfs >/dev/null &&
        mksquashfs probe.d probe.img -quiet -no-progress -noappend >/dev/null 2>&1 &&
        "$onepot" ls probe.img >/dev/null 2>&1
}

fail() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# [input=FILE] run WANTED_STATUS COMMAND...: what it prints goes to $work/out and $work/err.
run() {
    local wanted=$1 status=0
    shift
    "$@" >"$work/out" 2>"$work/err" <"${input:-/dev/null}" || status=$?
    if [ "$status" -ne "$wanted" ]; then
        fail "'$*' ended with $status, and should with $wanted: $(head -c 500 "$work/out" "$work/err")"
    fi
}

# says PATTERN...: what the last run printed has each of them, in a line.
says() {
    local pattern
    for pattern; do
        if ! grep -q -e "$pattern" "$work/out" "$work/err"; then
            fail "no '$pattern' in: $(head -c 500 "$work/out" "$work/err")"
        fi
    done
}

silent() {
    if [ -s "$work/err" ] || [ -s "$work/out" ]; then
        fail "$1 is not silent: $(head -c 300 "$work/out" "$work/err")"
    fi
}

# one_line WHAT: the last run complained in one.
one_line() {
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$1 says more than one line: $(head -c 500 "$work/err")"
}

# same A B WHAT
same() {
    if ! cmp -s "$1" "$2"; then
        fail "$3: $1 and $2 differ: $(diff "$1" "$2" | cut -c1-300 | head -c 1000 || true)"
    fi
}

# nothing DIR WHAT: neither an archive nor a part of one.
nothing() {
    local left
    left=$(find "$1" -maxdepth 1 -name '*.tar*')
    if [ -n "$left" ]; then
        fail "$2 left $left"
    fi
}

finish() {
    if [ "$failed" -gt 0 ]; then
        echo "$failed failed"
        exit 1
    fi
    echo 'all as it should be'
    exit 0
}
