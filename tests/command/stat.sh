#!/usr/bin/env bash
# onepot stat: it counts what was read, and answers also when the daemon was stopped or
# killed.
#
# Usage: stat.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/mountable.sh
. "$2/tests/lib/mountable.sh"
python=/usr/bin/python3
[ -x "$python" ] || python=python3

work=$(mktemp -d)
export ONEPOT_RUNTIME_DIR=$work/runtime XDG_CACHE_HOME=$work/cache
pid=
leave() {
    if [ -n "$pid" ]; then kill -CONT "$pid" 2>/dev/null || true; fi
    "$onepot" umount --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap leave EXIT
cd "$work"
mkdir -m 700 runtime
mkdir data
for i in $(seq 20); do head -c 10000 /dev/urandom >"data/$i"; done
tar -C data -cf data.tar .

fail() {
    echo "FAILED: $*"
    exit 1
}

# is EXPRESSION: true of the object `s` that stat --json prints, sooner or later: who reads may
# be a moment ahead of the count of what he read.
is() {
    local turn
    for turn in $(seq 600); do
        timeout 60 "$onepot" stat --json "$mount" >stat.json || fail "stat ended with $?"
        if "$python" -c "import json, sys; s = json.load(open('stat.json')); sys.exit(not ($1))"; then
            return
        fi
        sleep 0.1
    done
    fail "not so after $turn looks: $1: $(cat stat.json)"
}

# has_row PATTERN: sooner or later the file `rows` has such a line.
has_row() {
    local turn
    for turn in $(seq 600); do
        if grep -q "$1" rows; then return; fi
        sleep 0.1
    done
    fail "not in rows after $turn looks: $1: $(cat rows)"
}

mount=$("$onepot" mount data.tar)
printf '%s\n' words "$mount" >expected
"$onepot" completions fish -- stat "${mount%/*}/" | cmp - expected || fail "the mount point is not completed"
is "s['state'] == 'serving' and s['mountpoint'] == '$mount'"
is "s['archive'].endswith('data.tar') and s['files'] == 20 and s['total_bytes'] == 200000"
is "s['read_files'] == 0 and s['read_bytes'] == 0 and s['errors'] == 0"
pid=$("$python" -c "import json; print(json.load(open('stat.json'))['daemon_pid'])")

cat "$mount"/* | cmp - <(cat data/*) || fail 'the mount has other bytes'
# A page that the kernel drops before its reader has it is read again.
is "20 <= s['read_files'] <= 60 and 200000 <= s['read_bytes'] <= 600000 and s['requests']['READ'] >= 20"
files=$("$python" -c "import json; print(json.load(open('stat.json'))['read_files'])")
is "s['read_wait_ns'] > 0 and sum(b['reads'] for b in s['read_wait_histogram']) == s['requests']['READ']"
is "s['requests_total'] == sum(s['requests'].values())"
"$onepot" stat "$mount" >text
grep -q "read  *$files files" text || fail "the summary: $(cat text)"
(cd "$mount/.." && "$onepot" stat "$(basename "$mount")/" >text) || fail 'stat of a relative path'
"$onepot" stat --json >all.json
"$python" -c "import json; (s,) = json.load(open('all.json')); assert s['read_files'] == $files" ||
    fail 'stat without a mount point'

# A row for each second, while it is there.
"$onepot" stat --every 1 "$mount" >rows 2>watched &
watcher=$!
has_row '^time  *files/s  *MiB/s  *waiting  *cached  *job  *archive$'
has_row '^20..-..-.. ..:..:.. .* 0 %  .*data\.tar$'

kill -STOP "$pid"
until grep -q '^State:.T' "/proc/$pid/status"; do sleep 0.02; done
is "s['state'] == 'stopped' and s['read_files'] == $files"
has_row ' stopped .*data\.tar$'
kill -CONT "$pid"
while grep -q '^State:.T' "/proc/$pid/status"; do sleep 0.02; done
is "s['state'] == 'serving'"
kill -KILL "$pid"
until ! state=$(cat "/proc/$pid/status" 2>/dev/null) || grep -q '^State:.[ZX]' <<<"$state"; do
    sleep 0.05
done
pid=
is "s['state'] == 'dead' and s['read_files'] == $files"
timeout 60 "$onepot" stat "$mount" >text || fail "stat of a dead mount ended with $?"
grep -q 'dead' text || fail "the summary of a dead mount: $(cat text)"

status=0
wait "$watcher" || status=$?
if [ "$status" -ne 1 ]; then fail "stat --every of a mount that died ended with $status"; fi
tail -n 1 rows | grep -q ' dead .*data\.tar$' || fail "rows of a mount that was killed: $(cat rows)"
grep -q "^onepot: $mount: its daemon was killed; 'onepot umount'" watched || fail "its end: $(cat watched)"

"$onepot" umount "$mount" || fail 'umount of a dead mount'
status=0
"$onepot" stat "$mount" 2>err || status=$?
if [ "$status" -ne 1 ]; then fail "stat of no mount ended with $status"; fi
grep -q "^onepot: $mount: you have no onepot mount there" err || fail "stat of no mount: $(cat err)"

# What was read since the last row is in one more, when the mount ends.
mount=$("$onepot" mount data.tar)
"$onepot" stat --watch --every 3600 "$mount" >rows &
watcher=$!
"$onepot" stat --json --every 1 "$mount" >rows.json &
json_watcher=$!
has_row '^time '
cat "$mount"/* >/dev/null
is "s['read_files'] == 20"
"$onepot" umount "$mount" 2>/dev/null
wait "$watcher" || fail "stat --watch of a mount that has ended: $?"
wait "$json_watcher" || fail "stat --json --every 1 of a mount that has ended: $?"
if [ "$(wc -l <rows)" -ne 2 ] || ! tail -n 1 rows | grep -q ':..  *[1-9].* % .*data\.tar$'; then
    fail "rows of a short mount: $(cat rows)"
fi
"$python" -c "import json; a = [json.loads(line) for line in open('rows.json')]
assert a[-1]['read_files'] == 20 and a[-1]['state'] == 'ended', a" || fail 'rows as JSON'
status=0
"$onepot" stat --watch 2>err || status=$?
if [ "$status" -ne 2 ]; then fail "stat --watch without a mount point ended with $status"; fi
echo 'stat tells what happened'
