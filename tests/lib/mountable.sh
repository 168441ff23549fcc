# shellcheck shell=bash
# What the tests in shell that mount share; sourced by them with the program as $1 and the root of
# the source as $2. Where nothing can be mounted they end here.

# shellcheck source=tests/lib/isolated.sh
. "$2/tests/lib/isolated.sh"

onepot=$(realpath "$1")
if ! "$onepot" mount --help >/dev/null 2>&1; then
    echo 'skipped: this onepot was built without FUSE'
    exit 77
fi
if [ ! -e /dev/fuse ]; then
    echo 'skipped: there is no /dev/fuse'
    exit 77
fi
capabilities=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
if [ "$(id -u)" -eq 0 ] && ((! (0x${capabilities:-0} >> 21 & 1))); then
    echo 'skipped: root may not mount here (no CAP_SYS_ADMIN)'
    exit 77
fi
