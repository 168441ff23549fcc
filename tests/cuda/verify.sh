#!/usr/bin/env bash
# bench/gpu/verify says what works, what fails and what is missing, as words, JSON and exit status.
# The GPU is played (played.h).
#
# Usage: verify.sh SOURCE_ROOT BUILD PYTHON
set -euo pipefail

verify=$1/bench/gpu/verify build=$2 python=$3
work=$(mktemp -d "${ONEPOT_TESTS_MEMORY:-/tmp}/onepot-verify.XXXXXX")
trap 'rm -rf "$work"' EXIT

# run STATUS ARGUMENT...: what it says is in $work/said.
run() {
    local wanted=$1 status=0
    shift
    "$python" "$verify" --json "$work/json" "$@" "$build" >"$work/said" 2>&1 || status=$?
    [ "$status" -eq "$wanted" ] || {
        cat "$work/said"
        echo "FAILED: the status is $status, not $wanted"
        exit 1
    }
}

says() {
    grep -Eq "$1" "$work/said" || {
        cat "$work/said"
        echo "FAILED: it does not say $1"
        exit 1
    }
}

run 0 --only environment,reopen,exit,overwrite,several
says '^ok +reopen \(onepot\) +opened and closed three times, 1024 samples'
says '^ok +exit \(onepot\) .* 2 live batches'
says '^(ok|left out) +overwrite \(torch\)'
says '^ok +several \(onepot\) +32 batches on two GPUs in turn'
"$python" -c 'import json, sys
said = json.load(open(sys.argv[1]))
assert said["failed"] == [], said
assert {v["verdict"] for v in said["verdicts"]} <= {"ok", "left out"}, said' "$work/json"

run 1 --only reopen --device cuda:7
says '^FAILED +reopen .*no device 7'
says '^1 of 1 checks failed'

# What others write meanwhile counts, too: the verdict is not asked for here.
"$python" "$verify" --json "$work/json" --only locking "$build" >"$work/said" 2>&1 || true
says 'locking .*(gathered by the device: True|Dirty: grew by)'

PLAYED_DEVICES=1 run 0 --only several
says '^left out +several .*two GPUs are needed: .*device 1'

ONEPOT_CUDA=/nowhere run 77
says '^nothing to verify: no GPU'
echo 'verdicts as they should be'
