#!/usr/bin/env python3
"""How long the nodes of a job take until all have an archive, by three ways, and if one fails. Prints a table.

alone     each reads all of it:                    bytes / min(node, storage / nodes)
chain     one reads, each hands on to the next:    bytes / min(node, storage, network, own) + nodes pieces of 1 MiB
together  each reads a part (scatter), and all exchange their parts (allgather): the slowest of
          reading     bytes / min(nodes * node, storage)
          exchange    bytes * (nodes - 1) / nodes / network
          taking      bytes / own
          and, as the first group is read before it can be exchanged, one group's reading and exchange; and MPI's start
          (dbcast of mpiFileUtils is of this kind, too: its ranks read slices of the file, and hand them on)

straggler              the same, where one node reads, sends and takes at a quarter of the rate: all go at its pace
one onepot  the same, when half is done and one node's onepot ends: the others lack its share of the rest. What a node
          lacks it reads from a moment within 10 s on, by 4 streams of 28:  10 s + bytes / min(node * 4 / 28, storage / nodes)
stopped   as one onepot, but it hangs: its engine gives it up after 15 s
one rank  the same, when half is done and one node's rank dies: the others make a group, and go on together
lost      or they can't, since MPI ends, or torch's store was at that rank: each lacks half

storage: bytes/s of all together; node: of one node's reads; network: into one node, which sends as
much meanwhile, without others in between; own: what a node can pass through its engine, compare
with its sum and write to memory. Nobody else uses storage or network.

own is measured (RESULTS.md has the seconds of CPU): of what can't be done by several threads at once, a copy's writes
to memory take longest, 0.34 to 0.46 s of a CPU per GB; MPI's thread takes 0.44 over TCP.
"""

import argparse
import sys
from dataclasses import dataclass

MIB = 1 << 20
SCATTER_S, GENTLE = 10, 4 / 28  # of a copier whose job broke
SILENT_S, STRAGGLE = 15, 1 / 4
REGROUP_S = 7  # by torch: 5 to wait for all nodes that are left; by MPI (ULFM) less than one
MEMORY_MIB, RUN_MOST = 64, 16  # of the stage: blocks in flight, and the longest run of chunks


@dataclass
class Site:
    storage: float
    node: float
    network: float = float("inf")
    own: float = float("inf")
    start: float = 0


def alone(site, nodes, size):
    return size / min(site.node, site.storage / nodes)


def chain(site, nodes, size):
    rate = min(site.node, site.storage, site.network, site.own)
    return size / rate + nodes * MIB / rate


def group_bytes(nodes):
    return nodes * MIB * max(1, min(RUN_MOST, MEMORY_MIB // (2 * (nodes + 1))))


def together(site, nodes, size):
    reads, part = min(nodes * site.node, site.storage), (nodes - 1) / nodes
    group = min(size, group_bytes(nodes))
    return (site.start + max(size / reads, size * part / site.network, size / site.own)
            + min(group / reads, group * part / site.network + group / site.own))


def straggler(site, nodes, size):
    slow = Site(min(site.storage, nodes * site.node * STRAGGLE), site.node, site.network * STRAGGLE,
                site.own * STRAGGLE, site.start)
    return together(slow, nodes, size)


def rest(site, nodes, size):
    return SCATTER_S + size / min(site.node * GENTLE, site.storage / nodes)


def one_onepot(site, nodes, size):
    return together(site, nodes, size) + rest(site, nodes, size / 2 / nodes)


def stopped(site, nodes, size):
    return SILENT_S + one_onepot(site, nodes, size)


def one_rank(site, nodes, size):
    return together(site, nodes, size) / 2 + REGROUP_S + together(site, nodes - 1, size / 2)


def lost(site, nodes, size):
    return together(site, nodes, size) / 2 + rest(site, nodes, size / 2)


WAYS = {"alone": alone, "chain": chain, "together": together, "straggler": straggler, "one onepot": one_onepot,
        "stopped": stopped, "one rank": one_rank, "lost": lost}


def numbers(text):
    return [float(word) for word in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=numbers, default=[8, 64, 512, 4096])
    parser.add_argument("--gb", type=numbers, default=[150, 1500], help="of the archive")
    parser.add_argument("--storage", type=numbers, default=[100, 400], help="GB/s in all")
    parser.add_argument("--node", type=float, default=2, help="GB/s that one node reads")
    parser.add_argument("--network", type=numbers, default=[25, 200], help="Gb/s of a node")
    parser.add_argument("--own", type=float, default=2.2, help="GB/s that one node takes (2.2)")
    parser.add_argument("--start", type=float, default=0.5, help="seconds until MPI has started (0.5, as by mpirun on "
                        "one machine; on many nodes it takes longer)")
    return parser.parse_args()


def main():
    args = parse()
    print(f"{'GB':>6}{'GB/s':>6}{'Gb/s':>6}{'nodes':>7}" + "".join(f"{way + ' s':>14}" for way in WAYS))
    for size in args.gb:
        for storage in args.storage:
            for network in args.network:
                site = Site(storage * 1e9, args.node * 1e9, network / 8 * 1e9, args.own * 1e9, args.start)
                for nodes in map(int, args.nodes):
                    cells = "".join(f"{way(site, nodes, size * 1e9):14.0f}" for way in WAYS.values())
                    print(f"{size:6g}{storage:6g}{network:6g}{nodes:7}{cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
