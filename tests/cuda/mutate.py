#!/usr/bin/env python3
"""The upload without one of its waits, and the tests that have to notice.

Usage: mutate.py SOURCE.C MUTANT OUTPUT
       mutate.py --run TEST_ORDER_WITHOUT_MUTANT...
"""
import os
import subprocess
import sys

# name: (what is replaced, by what, the test that fails then)
MUTANTS = {
    "follow_users": (
        "    for (size_t i = 0; i < t->retired && r == 0; i++)\n"
        "        r = u->type->follow(u->device, u->stream, t->uses.at[i].event, error);\n",
        "", "a_copy_waits_for_readers_of_the_batch_before"),
    "settle": (
        "    return slab->twin->settled ||",
        "    return true || slab->twin->settled ||",
        "the_host_writes_nothing_that_a_copy_has_yet_to_read"),
    "follow_arrival": (
        "        r = u->type->follow(u->device, stream, upload_arrival(t), &why);\n",
        "        r = 0;\n", "a_consumer_waits_for_the_copy"),
    "converted": (
        "return t->images ? t->converted : t->sent;",
        "return t->sent;", "a_consumer_waits_for_the_images"),
    "decode_follows": (
        "    if (r == 0)\n        r = follow_users(u, t, &error);\n"
        "    pthread_mutex_unlock(&u->lock);\n",
        "    pthread_mutex_unlock(&u->lock);\n",
        "decoding_waits_for_readers_of_the_batch_before"),
    "decode_settles": (
        "    return slab->twin->settled ||",
        "    return true || slab->twin->settled ||",
        "files_stay_until_they_are_decoded"),
    "decompress_follows": (
        "    if (r == 0)\n        r = follow_users(u, t, &error);\n"
        "    pthread_mutex_unlock(&u->lock);\n",
        "    pthread_mutex_unlock(&u->lock);\n",
        "decompression_waits_for_readers_of_the_batch_before"),
    "decompress_waits": (
        "    r = u->type->event_wait(u->device, slab->twin->sent, &error);\n    if (r == 0)\n",
        "    if (r == 0)\n", "a_batch_waits_until_its_blocks_were_compared"),
    "follow_copy": (
        "    r = u->type->follow(u->device, u->converting, t->sent, error);\n",
        "", "images_wait_for_the_copy"),
}


def mutate(source, name, output):
    with open(source) as f:
        text = f.read()
    old, new, _ = MUTANTS[name]
    if text.count(old) != 1:
        sys.exit("%s: %r is there %d times" % (source, old, text.count(old)))
    with open(output, "w") as f:
        f.write(text.replace(old, new))


def mutant_of(program):
    return os.path.basename(program).split("_without_")[1]


def failures(said):
    """The tests that failed, from what Check printed (CK_VERBOSITY=normal)."""
    return {line.split(":")[4] for line in said.splitlines()
            if line.count(":") > 4 and line.split(":")[2] in ("F", "E")}


def run(programs):
    bad = 0
    for program in programs:
        name = mutant_of(program)
        test = MUTANTS[name][2]
        done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(os.environ, CK_VERBOSITY="normal"))
        said = done.stdout.decode(errors="replace")
        failed = failures(said)
        print("without %s: %s" % (name, ", ".join(sorted(failed)) or "no test fails"))
        if test not in failed:
            print("%s should have failed:\n%s" % (test, said))
            bad += 1
    return bad > 0


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        sys.exit(run(sys.argv[2:]))
    mutate(*sys.argv[1:])
