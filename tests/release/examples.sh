#!/usr/bin/env bash
# The job scripts in examples/, with a small srun of our own: the command reads the files,
# its status is the job's, TERM reaches it, and no mount is left.
#
# Usage: examples.sh ONEPOT SOURCE_ROOT
set -euo pipefail

# shellcheck source=tests/lib/mountable.sh
. "$2/tests/lib/mountable.sh"
examples=$(realpath "$2")/examples

work=$(mktemp -d)
export ONEPOT_RUNTIME_DIR=$work/runtime XDG_CACHE_HOME=$work/cache TMPDIR=$work
leave() {
    "$onepot" umount --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap leave EXIT
mkdir "$work/bin" "$work/data" "$work/runtime" "$work/cache"
chmod 700 "$work/runtime"
ln -s "$onepot" "$work/bin/onepot"
PATH=$work/bin:$PATH
for i in 1 2 3; do echo "sample $i" >"$work/data/$i"; done
"$onepot" pack -o "$work/data.tar" "$work/data" >/dev/null

# A job on one node, with a srun that starts four ranks.
export SLURM_JOB_ID=4711 SLURM_NTASKS=4 SLURM_JOB_NUM_NODES=1
cat >"$work/bin/srun" <<'SRUN'
#!/usr/bin/env bash
pids=() tasks=$SLURM_NTASKS
while [[ $1 == --* ]]; do
    if [ "$1" = --ntasks-per-node=1 ]; then tasks=1; fi
    shift
done
trap 'kill "${pids[@]}"' TERM
for ((rank = 0; rank < tasks; rank++)); do
    SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" &
    pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
SRUN
cat >"$work/bin/sbcast" <<'SBCAST'
#!/usr/bin/env bash
# sbcast -p ARCHIVE COPY, of which a part arrives if BREAK is set.
if [ "${BREAK:-}" ]; then head -c 1000 "$2" >"$3"; exit 1; fi
exec cp -p "$2" "$3"
SBCAST
chmod +x "$work/bin/srun" "$work/bin/sbcast"

fail() {
    echo "FAILED: $*"
    exit 1
}

no_mount_left() {
    if grep -q " $work/" /proc/self/mountinfo; then fail "$1 left a mount"; fi
}

cat >"$work/bin/reader" <<'READER'
#!/usr/bin/env bash
# reader OUT STATUS MOUNT: what a job does.
cat "$3"/* >"$1.${SLURM_PROCID:-0}" || exit 99
exit "$2"
READER
chmod +x "$work/bin/reader"

for script in one-node-mount one-node-run one-node-stage multi-node; do
    for wanted in 0 3; do
        status=0
        rm -f "$work"/out.*
        bash "$examples/$script.sbatch" "$work/data.tar" reader "$work/out" "$wanted" \
            >"$work/log" 2>&1 || status=$?
        if [ "$status" -ne "$wanted" ]; then
            cat "$work/log"
            fail "$script ended with $status, and should with $wanted"
        fi
        ranks=1
        if [ "$script" = multi-node ]; then ranks=4; fi
        for ((rank = 0; rank < ranks; rank++)); do
            cat "$work"/data/* | cmp - "$work/out.$rank" || fail "$script, rank $rank read other bytes"
        done
        no_mount_left "$script"
    done
    echo "$script: ok"
done

# Several nodes, to which sbcast copies the archive.
for broken in '' yes; do
    rm -f "$work"/out.*
    BREAK=$broken bash "$examples/multi-node.sbatch" --stage "$work/data.tar" reader \
        "$work/out" 0 >"$work/log" 2>&1 || fail "multi-node --stage: $(cat "$work/log")"
    for rank in 0 1 2 3; do
        cat "$work"/data/* | cmp - "$work/out.$rank" || fail "multi-node --stage, rank $rank read other bytes"
    done
    if [ "$broken" ]; then
        grep -q 'another size than the archive' "$work/log" || fail "a broken copy: $(cat "$work/log")"
    # An ordinary user's temporary folder is no place for the library, which onepot says.
    elif grep -v -e 'nothing to save$' -e ' bytes read in ' -e ': no place for libonepot-io.so: ' \
        "$work/log"; then
        fail "multi-node --stage said: $(cat "$work/log")"
    fi
    if [ -e /dev/shm/onepot-4711.copy ]; then fail 'multi-node --stage left its copy'; fi
    no_mount_left 'multi-node --stage'
done
echo 'multi-node --stage: ok'

# Several nodes that copy together, of which there is one. MPI itself is tried in mpi.sh.
cat >"$work/bin/onepot-mpi" <<'MPI'
#!/usr/bin/env bash
exec onepot "$@"
MPI
chmod +x "$work/bin/onepot-mpi"
for wanted in 0 3; do
    status=0
    rm -f "$work"/out.*
    bash "$examples/multi-node.sbatch" --stage=mpi "$work/data.tar" reader "$work/out" "$wanted" \
        >"$work/log" 2>&1 || status=$?
    [ "$status" -eq "$wanted" ] || fail "multi-node --stage=mpi: $status, $(cat "$work/log")"
    for rank in 0 1 2 3; do
        cat "$work"/data/* | cmp - "$work/out.$rank" || fail "multi-node --stage=mpi, rank $rank read other bytes"
    done
    no_mount_left 'multi-node --stage=mpi'
done
echo 'multi-node --stage=mpi: ok'

# TERM: the command gets it, may still read, and the mount goes only then.
cat >"$work/bin/trainer" <<'TRAINER'
#!/usr/bin/env bash
# trainer OUT MOUNT: on TERM, reads once more and ends.
trap 'cat "$2"/1 >"$1.checkpoint"; exit 0' TERM
echo ready >"$1.ready"
while :; do sleep 0.05; done
TRAINER
chmod +x "$work/bin/trainer"

for script in one-node-mount one-node-run one-node-stage; do
    rm -f "$work"/out.*
    bash "$examples/$script.sbatch" "$work/data.tar" trainer "$work/out" >"$work/log" 2>&1 &
    job=$!
    for ((i = 0; i < 2400; i++)); do
        if [ -e "$work/out.ready" ]; then break; fi
        sleep 0.05
    done
    kill -TERM "$job"
    wait "$job" || true
    cmp "$work/data/1" "$work/out.checkpoint" || fail "$script: no checkpoint after TERM"
    no_mount_left "$script"
    echo "$script: TERM: ok"
done

# An environment of Python, at the path that it was made at.
if python3 -m venv --without-pip "$work/envs/train" >/dev/null 2>&1; then
    site=$("$work/envs/train/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo 'answer = 42' >"$site/packed_module.py"
    "$onepot" pack -q -o "$work/envs/train.tar" "$work/envs/train"
    mv "$work/envs/train" "$work/envs/train.made"
    bash "$examples/venv.sbatch" "$work/envs/train.tar" "$work/envs/train" python -c \
        'import packed_module, sys; print(packed_module.answer, sys.prefix)' >"$work/log" 2>"$work/said" ||
        fail "venv.sbatch: $(cat "$work/said")"
    [ "$(cat "$work/log")" = "42 $work/envs/train" ] || fail "venv.sbatch: $(cat "$work/log")"
    no_mount_left venv
    echo 'venv: ok'
else
    echo 'left out: venv.sbatch (no python3 that can make an environment)'
fi
