"""A mount of a million files: time to ready and private memory, where both must not grow
with the number of files. A foreign archive is indexed by the first mount. The members are small:
nothing is read but the index."""

import shutil
from statistics import median

from archives import KINDS, make_archive, run_quiet, warm
from contenders import Contender, ONEPOT
from measure import memory_of
from mounts import Mount

ROUNDS = 5
NAMES = {"onepot": "onepot archive", "tar": "onepot tar", "zip-stored": "onepot zip",
         "union": "onepot union", "nested": "onepot nested"}


def make_archives(store, folder, files, kinds):
    """Packs a temporary tree; only the archives stay until the figures are taken."""
    folder.mkdir()
    source, listing = folder / "files", folder / "files.list"
    run_quiet([str(store.tools / "mkdata"), "--files", str(files), "--dirs", "1000",
               "--mean", "100", str(source), str(listing)])
    for kind in kinds:
        make_archive(store.program(KINDS[kind][0]), store.program("onepot"), kind, source,
                     folder / f"{kind}.img")
    shutil.rmtree(source)
    with open(listing, encoding="ascii") as lines:
        return lines.readline().split("\t")[0]


def measure_kind(store, folder, kind, probe):
    command = (*ONEPOT, "--nested") if kind == "nested" else ONEPOT
    contender = Contender(NAMES[kind], (), kind, "onepot", command)
    archive, ready, memory = folder / "million" / f"{kind}.img", [], []
    cache = {"XDG_CACHE_HOME": str(folder / "million")}
    for _ in range(ROUNDS):
        warm(archive)
        with Mount(contender, archive, store.program("onepot"), str(folder), probe,
                   cache) as mount:
            ready.append(mount.ready_seconds)
            memory.append(memory_of(mount.pids)[0])
    print(f"  {contender.name}: ready in {ready[0] * 1000:.1f} ms the first time, then in "
          f"{median(ready[1:]) * 1000:.1f} ms, "
          f"{median(memory) / 2**20:.1f} MB private")
    return {"ready": ready, "memory": memory}


def run(store, folder, say, files):
    say(f"packing {files} files")
    kinds = [kind for kind in NAMES if store.program(KINDS[kind][0])]
    place = store.folder / "million"
    shutil.rmtree(place, ignore_errors=True)
    try:
        probe = make_archives(store, place, files, kinds)
        print(f"\n== {files} files, 1,000 directories (wanted of onepot's archive: 20 ms, 16 MB; of "
              "a zip the first time 1 s,\n   of a union whose archives have their indexes 100 ms)")
        return {kind: measure_kind(store, store.folder, kind, probe) for kind in kinds}
    finally:
        shutil.rmtree(place, ignore_errors=True)
