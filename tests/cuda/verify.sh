#!/usr/bin/env bash
# bench/gpu/verify says what works, what fails and what is missing, as words, JSON and exit status.
# The GPU is played (played.h).
#
# Usage: verify.sh SOURCE_ROOT BUILD PYTHON
set -euo pipefail

verify=$1/bench/gpu/verify build=$2 python=$3
work=$(mktemp -d "${ONEPOT_TESTS_MEMORY:-/tmp}/onepot-verify.XXXXXX")
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

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

run 0 --only environment,order,mutants,reopen,exit,overwrite,several
says '^ok +environment .*played GPU 0'
says '^ok +order .*Failures: 0'
says '^ok +mutants +5 of them were noticed'
says '^ok +reopen \(onepot\) +opened and closed three times, 1024 samples'
says '^ok +exit \(onepot\) .* 2 live batches'
says '^(ok|left out) +overwrite \(torch\)'
says '^ok +several \(onepot\) +32 batches on two GPUs in turn'
"$python" -c 'import json, sys
said = json.load(open(sys.argv[1]))
assert said["failed"] == [], said
assert {v["verdict"] for v in said["verdicts"]} <= {"ok", "left out"}, said' "$work/json"

run 1 --only reopen --device cuda:7 --json /nowhere/at-all.json
says '/nowhere/at-all.json: No such file or directory; it goes to'
says '^FAILED +reopen .*no device 7'
says '^1 of 1 checks failed'
"$python" -c 'import json, sys
reopen, = json.load(open(sys.argv[1]))["verdicts"]
assert "Traceback" in reopen["output"], reopen' "$TMPDIR/at-all.json"

run 2 --only reopen,nothing
says "no check is called 'nothing'; there are "

# What is carried to another machine is small, and runs there.
"$python" "$verify" --carry "$work/carried" "$build"
[ "$(du -s --apparent-size --block-size=1M "$work/carried" | cut -f 1)" -lt 64 ]
verify=$work/carried/bench/gpu/verify build=$work/carried/build \
    run 0 --only order,mutants,reopen
says '^ok +mutants +5 of them were noticed'
says '^ok +reopen '

# A check that hangs ends with all that it started, and leaves what it printed.
"$python" -c 'import os, sys, types
verify = types.ModuleType("verify")
verify.__file__ = sys.argv[1]
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), vars(verify))
try:
    verify.said_by(["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"], seconds=2)
    raise AssertionError("it did not hang")
except verify.Failed as e:
    assert str(e) == "it took longer than 2 s", e
    assert not os.path.exists("/proc/%s/exe" % e.output), e.output' "$verify"

# An interrupted run tells what it found until then.
"$python" "$verify" --json "$work/json" "$build" >"$work/said" 2>&1 &
until grep -q '^ok  *environment' "$work/said"; do kill -0 $! && sleep 0.05; done
kill -TERM $!
status=0
wait $! || status=$?
[ "$status" -eq 130 ]
says '^interrupted'
"$python" -c 'import json, sys
verdicts = json.load(open(sys.argv[1]))["verdicts"]
assert verdicts[0]["name"] == "environment" and verdicts[-1]["said"] == "interrupted", verdicts' \
    "$work/json"

# What others write meanwhile counts, too: the verdict is not asked for here.
"$python" "$verify" --json "$work/json" --only locking "$build" >"$work/said" 2>&1 || true
says 'locking .*(gathered by the device: True|Dirty: grew by)'

PLAYED_DEVICES=1 run 0 --only several
says '^left out +several .*two GPUs are needed: .*device 1'

ONEPOT_CUDA=/nowhere run 77
says '^nothing to verify: no GPU'
echo 'verdicts as they should be'
