"""A mount of a million files: time to ready and private memory, where both must not grow
with the number of files. The members are small: nothing is read but the index."""

import shutil
from statistics import median

from archives import KINDS, run_quiet, warm
from contenders import Contender, ONEPOT
from measure import memory_of
from mounts import Mount

FILES, ROUNDS = 1000000, 5
NAMES = {"onepot": "onepot archive", "tar": "onepot tar"}


def make_archives(store, folder):
    """Packs a temporary tree; only the archives stay until the figures are taken."""
    folder.mkdir()
    source, listing = folder / "files", folder / "files.list"
    run_quiet([str(store.tools / "mkdata"), "--files", str(FILES), "--dirs", "1000",
               "--mean", "100", str(source), str(listing)])
    for kind in NAMES:
        program, arguments = KINDS[kind]
        places = {"src": str(source), "out": str(folder / kind)}
        run_quiet([store.program(program), *(a.format(**places) for a in arguments)])
    shutil.rmtree(source)
    with open(listing, encoding="ascii") as lines:
        return lines.readline().split("\t")[0]


def measure_kind(store, folder, kind, probe):
    contender = Contender(NAMES[kind], (), kind, "onepot", ONEPOT)
    archive, ready, memory = folder / "million" / kind, [], []
    for _ in range(ROUNDS):
        warm(archive)
        with Mount(contender, archive, store.program("onepot"), str(folder), probe) as mount:
            ready.append(mount.ready_seconds)
            memory.append(memory_of(mount.pids)[0])
    print(f"  {contender.name}: ready in {median(ready) * 1000:.1f} ms, "
          f"{median(memory) / 2**20:.1f} MB private")
    return {"ready": ready, "memory": memory}


def run(store, folder, say):
    say("packing a million files")
    place = store.folder / "million"
    shutil.rmtree(place, ignore_errors=True)
    try:
        probe = make_archives(store, place)
        print(f"\n== {FILES} files (wanted of onepot's archive: 20 ms, 16 MB)")
        return {kind: measure_kind(store, store.folder, kind, probe) for kind in NAMES}
    finally:
        shutil.rmtree(place, ignore_errors=True)
