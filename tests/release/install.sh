#!/usr/bin/env bash
# README's `meson setup build --prefix ~/.local && meson install -C build`, in a home of its own:
# Debian's Python, or whichever there is, finds the module without being told where, so does an
# environment (venv) that it is built for, and pkg-config's flags compile a program that runs.
#
# Usage: install.sh SOURCE_ROOT
set -euo pipefail

root=$1
work=$(mktemp -d "${ONEPOT_TESTS_MEMORY:-/tmp}/onepot-install.XXXXXX")
trap 'rm -rf "$work"' EXIT

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    cat "$work/log" 2>/dev/null || true
    echo "FAILED: $*"
    exit 1
}

python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || skip 'no python3'
pkg-config --exists python3 || skip 'no headers of Python'
[ "$("$python" -c 'import site; print(site.ENABLE_USER_SITE)')" = True ] ||
    skip 'this Python does not look into ~/.local'

if command -v ccache >/dev/null; then
    CCACHE_DIR=$(ccache -k cache_dir)
    export CCACHE_DIR
fi
export HOME=$work/home PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH PYTHONUSERBASE PYTHONHOME
mkdir "$HOME" "$work/tree"
tar -C "$root" -c --exclude='./build*' --exclude=./.git . | tar -C "$work/tree" -x
cd "$work/tree"

# As README has it, but for what takes long and is not asked for here. With the flags of the build
# beside this, whose objects ccache may have.
meson setup build --prefix ~/.local -Dtests=disabled -Dbench=false -Dman=false -Dfuse=disabled \
    -Dcuda-home=none -Dwerror="${WERROR:-false}" -Dpython=enabled -Dpython-name="$python" >"$work/log" 2>&1 ||
    fail 'meson setup'
meson install -C build >"$work/log" 2>&1 || fail 'meson install'

# Samples of an archive, by a module that lies below the given directory.
try_module() {
    (cd "$work" && "$1" -c '
import os, sys
import onepot
assert os.path.realpath(onepot.__file__).startswith(os.path.realpath(sys.argv[1])), onepot.__file__
assert [bytes(sample) for sample in onepot.Archive("a.tar")] == [b"hello\n"]
' "$2") >"$work/log" 2>&1 || fail "$1 does not import onepot from $2"
}

mkdir "$work/data"
echo hello >"$work/data/a"
~/.local/bin/onepot pack -o "$work/a.tar" "$work/data" 2>"$work/log" || fail 'the program does not run'
if readelf -d ~/.local/bin/onepot 2>/dev/null | grep -E 'NEEDED.*lib(jpeg|png)' >"$work/log"; then
    fail 'the program asks for what only the library has a use for'
fi
try_module "$python" ~/.local

PKG_CONFIG_PATH=$(dirname "$(find ~/.local -name onepot.pc)")
export PKG_CONFIG_PATH
read -ra flags < <(pkg-config --cflags --libs onepot)
"${CC:-cc}" -o "$work/loader" examples/loader.c "${flags[@]}" \
    -Wl,-rpath,"$(pkg-config --variable=libdir onepot)" >"$work/log" 2>&1 || fail 'examples/loader.c'
RANK=0 WORLD_SIZE=1 "$work/loader" "$work/a.tar" 1 "$work/state" >"$work/log" 2>&1 || fail 'loader.c'
grep -q 'epoch 0: 1 samples' "$work/log" || fail 'loader.c read something else'

# The system's directories.
place=$("$python" loader/python/site_dir.py /usr/local 2>/dev/null)
case $("$python" -c 'import site; print(*site.getsitepackages(), sep="\n")') in
*/usr/local/*) "$python" -c 'import site, sys; sys.exit(sys.argv[1] not in site.getsitepackages())' \
    "$place" || fail "this Python does not look into $place" ;;
esac

"$python" -m venv --without-pip "$work/env" >/dev/null 2>&1 || {
    echo 'left out: an environment (python3-venv is not there)'
    exit 0
}
meson configure build -Dpython-name="$work/env/bin/python" >"$work/log" 2>&1 || fail 'meson configure'
meson install -C build >"$work/log" 2>&1 || fail 'meson install into an environment'
try_module "$work/env/bin/python" "$work/env"
