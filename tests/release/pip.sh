#!/usr/bin/env bash
# `pip install .` in a clone: the wheel holds the package and nothing else, and works in a
# fresh environment. Skipped where that can't be made, or meson-python can't be had.
#
# Usage: pip.sh ONEPOT SOURCE_ROOT
set -euo pipefail

onepot=$1 root=$2
work=$(mktemp -d "${ONEPOT_TESTS_MEMORY:-/tmp}/onepot-pip.XXXXXX")
trap 'rm -rf "$work"' EXIT

skip() {
    echo "skipped: $*"
    exit 77
}

python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" -m venv "$work/env" >/dev/null 2>&1 || skip 'no python3 that can make an environment (python3-venv)'
pkg-config --exists python3 || skip 'no headers of Python'
timeout 100 "$work/env/bin/pip" install -q --retries 0 --timeout 10 meson-python ninja \
    >"$work/log" 2>&1 || skip "meson-python can't be had: $(tail -n 1 "$work/log")"

# A copy, for the build leaves nothing in the tree of others.
mkdir "$work/tree"
tar -C "$root" -c --exclude='./build*' --exclude=./.git . | tar -C "$work/tree" -x
# In a folder and with flags as those of the build beside this, whose objects ccache may have.
# (Not every pip hands on two settings of one name.)
sed -i "s/\"-Dbuildtype=release\"/\"-Dwerror=${WERROR:-false}\"/" "$work/tree/pyproject.toml"
PATH="$work/env/bin:$PATH" "$work/env/bin/pip" wheel -q --no-build-isolation --no-deps \
    --config-settings=build-dir=build --config-settings=setup-args=-Dbuildtype=debugoptimized \
    -w "$work" "$work/tree" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
wheels=("$work"/onepot_fs-*.whl)
[ ${#wheels[@]} -eq 1 ]
"$work/env/bin/pip" install -q --no-deps --no-index "${wheels[0]}"

# Nothing but the package.
"$work/env/bin/python" -m zipfile -l "${wheels[0]}" >"$work/list"
others=$(awk 'NR > 1 { print $1 }' "$work/list" | grep -vE '^onepot(_fs-[^/]*\.dist-info)?/' || true)
[ -z "$others" ] || {
    echo "the wheel holds more than the package: $others"
    exit 1
}

# With the part for CUDA where the build beside this has it.
if [ -e "${onepot%/fs/onepot}/loader/gpu/cuda/libonepot-cuda.so" ]; then
    grep -q '^onepot/libonepot-cuda.so' "$work/list" || {
        echo 'the wheel lacks libonepot-cuda.so'
        exit 1
    }
fi

mkdir "$work/data"
echo hello >"$work/data/a"
"$onepot" pack -o "$work/a.tar" "$work/data"
(cd "$work" && env -u PYTHONPATH "$work/env/bin/python" -c '
import onepot
archive = onepot.Archive("a.tar")
assert bytes(archive[0]) == b"hello\n"
assert [len(batch) for batch in onepot.Loader(archive, 4, 0, 1)] == [1]
from importlib.metadata import version
assert version("onepot-fs") == onepot.__version__
print("onepot-fs", onepot.__version__, "works as installed by pip")')
