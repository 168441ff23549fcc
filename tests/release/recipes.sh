#!/usr/bin/env bash
# Recipes for other package managers leave nothing out by accident: each enables all features, and
# disables only those that are named here; each names the libraries of the others, and a CUDA.
#
# Usage: recipes.sh ONEPOT SOURCE_ROOT
set -euo pipefail
cd "$2/examples/packaging"

recipes=(meta.yaml package.py onepot.spec onepot-*.eb debian/rules)
may_be_off='tests|bench|mpi|python|isal' # Spack's variants: python. A site compiles onepot-mpi for its MPI.
failed=0

complain() {
    echo "$*"
    failed=1
}

for recipe in "${recipes[@]}"; do
    text=$recipe
    if [ "$recipe" = debian/rules ]; then text=debian/control; fi
    grep -q -- '-Dauto_features=enabled' "$recipe" || complain "$recipe: without -Dauto_features=enabled"
    while read -r option; do
        [[ $option =~ ^($may_be_off)$ ]] || complain "$recipe: leaves $option out"
    done < <(grep -oE -- '-D[a-z0-9_]+=(disabled|auto|false)' "$recipe" | sed 's/^-D//; s/=.*//')
    for library in archive squashfuse zstd xxhash deflate lzo lz4 'xz\b|lzma' 'bzip2|bz2' utf8proc jpeg png zlib; do
        grep -qiE -- "$library" "$text" || complain "$text: does not name $library"
    done
    grep -q -- '-Dcuda-home=[^n]' "$recipe" || complain "$recipe: leaves the part for GPUs out"
    version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" ../../meson.build | head -n 1)
    [ "$recipe" = debian/rules ] || grep -qF -- "$version" "$recipe" || complain "$recipe: is not of version $version"
done
[ "$failed" = 0 ] && echo "${#recipes[@]} recipes enable all features"
exit "$failed"
