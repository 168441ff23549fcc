# shellcheck shell=bash
# What has to be installed, and how to install it; read by tests/run, .ci/run and
# examples/quickstart, each of which asks for the lists that it needs.
#
# A line is "KIND:NAME PACKAGE": NAME is looked for in a way that does not depend on the
# distribution (command, pkg-config module, file, module of Debian's Python); PACKAGE is
# what Debian and Ubuntu call it.

# shellcheck disable=SC2034 # used by those who read this file
build_needs='
command:cc gcc
command:meson meson
command:ninja ninja-build
command:pkg-config pkg-config
pkg:libxxhash libxxhash-dev
pkg:libarchive libarchive-dev
pkg:libzstd libzstd-dev
file:/usr/include/linux/fuse.h linux-libc-dev
command:fusermount3 fuse3
pkg:squashfuse libsquashfuse-dev
pkg:libdeflate libdeflate-dev
pkg:zlib zlib1g-dev
pkg:libisal libisal-dev
pkg:lzo2 liblzo2-dev
pkg:liblz4 liblz4-dev
pkg:liblzma liblzma-dev
file:/usr/include/bzlib.h libbz2-dev
pkg:libutf8proc libutf8proc-dev
pkg:libjpeg libjpeg62-turbo-dev
pkg:libpng libpng-dev
'

# shellcheck disable=SC2034
test_needs='
pkg:fuse3 libfuse3-dev
pkg:check check
file:/usr/bin/python3 python3
pkg:python3 python3-dev
command:tar tar
command:bsdtar libarchive-tools
command:mksquashfs squashfs-tools
command:gzip gzip
command:bzip2 bzip2
command:xz xz-utils
command:zstd zstd
command:lz4 lz4
command:setfattr attr
command:rsync rsync
command:mandoc mandoc
command:git git
command:mypy mypy
'

# Modules of Debian's own Python, for tests with software that was never changed for us.
# shellcheck disable=SC2034
python_needs='
python:numpy python3-numpy
python:PIL python3-pil
python:torch python3-torch
python:torchvision python3-torchvision
python:ensurepip python3-venv
'

# Nobody has to have it. With it (meson finds it by itself) the tests of pip and of the
# installation, which build in other folders, take the objects of the build beside them.
# shellcheck disable=SC2034
build_helps='
command:ccache ccache
'
export CCACHE_NOHASHDIR=1

# MPIs, for onepot-mpi and its tests.
# shellcheck disable=SC2034
mpi_helps='
command:mpicc.mpich libmpich-dev
command:mpirun.mpich mpich
command:mpicc.openmpi libopenmpi-dev
command:mpirun.openmpi openmpi-bin
'

# For .ci/nightly: a batch system on this node (tests/mpi/slurm).
# shellcheck disable=SC2034
slurm_helps='
command:slurmd slurm-wlm
command:munged munge
command:ip iproute2
'

# shellcheck disable=SC2034
check_needs='
command:clang clang
command:clang-tidy clang-tidy
command:clang-format clang-format
command:cppcheck cppcheck
command:shellcheck shellcheck
command:valgrind valgrind
command:debootstrap debootstrap
command:abidiff abigail-tools
command:ch-run charliecloud
command:zsh zsh
command:fish fish
'

is_there() {
    local kind=${1%%:*} name=${1#*:}
    case $kind in
    command) command -v "$name" >/dev/null ;;
    pkg) pkg-config --exists "$name" 2>/dev/null ;;
    file) [ -e "$name" ] ;;
    python) /usr/bin/python3 -c "import importlib.util, sys
sys.exit(importlib.util.find_spec('$name') is None)" 2>/dev/null ;;
    esac
}

# missing_packages LIST...: the packages whose things are not there, one a line.
missing_packages() {
    local need package
    while read -r need package; do
        if [ -n "$need" ] && ! is_there "$need"; then printf '%s\n' "$package"; fi
    done < <(printf '%s\n' "$@")
}

# configure_build BUILD SOURCE [MESON_ARGUMENT...]: set up a build; and let it look again for everything
# when something that was missing is there by now (or the other way round). meson by itself asks once, so that
# what was built before a package came would lack a part for ever.
configure_build() {
    local missing
    missing=$(missing_packages "$build_needs" "$test_needs")
    if [ ! -e "$1/build.ninja" ]; then
        meson setup "$@" || return 1
    elif [ "$missing" != "$(cat "$1/missing-packages" 2>/dev/null || echo unknown)" ]; then
        meson configure --clearcache "$1" && meson setup --reconfigure "$1" "$2" || return 1
    fi
    printf '%s\n' "$missing" >"$1/missing-packages"
}

# install_helpful LIST: what may be missing is asked for by root alone, and need not come.
install_helpful() {
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        install_missing "$@" || echo 'It goes on without.'
    fi
}

# install_missing LIST...: ask apt for what is missing, and for nothing else. Without the
# right to install, print the one command that would do it, and fail.
install_missing() {
    local packages as_root=()
    mapfile -t packages < <(missing_packages "$@")
    if [ ${#packages[@]} -eq 0 ]; then return 0; fi
    if ! command -v apt-get >/dev/null; then
        echo "Missing here, by their Debian names: ${packages[*]}" >&2
        echo "Please install them by this system's means, and start again." >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "Some packages are missing. Please run this command, and start again:" >&2
            echo "    sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
            return 1
        fi
        as_root=(sudo -n)
    fi
    echo "Installing with apt-get: ${packages[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null >/dev/null &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
            --no-install-recommends "${packages[@]}" </dev/null >/dev/null
}
