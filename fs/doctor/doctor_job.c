/*
 * Findings about a job of several nodes that read one archive: whether they can copy it
 * together, so that storage gives it once and not once for each node.
 */
#include "cli.h"
#include "doctor.h"
#include "job.h"

static void see_together(struct findings *f, const char *path, uint64_t bytes, unsigned nodes,
                         const char *place)
{
    finding_add(f, FINDING_GOOD, path,
                "the nodes can copy it together to %s: storage then gives %s, and not %s",
                place, cli_bytes(bytes), cli_bytes(bytes * nodes));
    finding_advise(f,
                   "'srun -N %u -n %u onepot-mpi stage %s', stage=\"job\" in Python, or "
                   "sbcast and 'onepot stage --adopt'; then 'onepot run --stage'",
                   nodes, nodes, path);
}

void doctor_job(struct findings *f, const char *path, const struct doctor_archive *archive,
                const char *place)
{
    const char *variable;
    unsigned nodes = job_nodes(&variable);
    if (nodes < 2 || archive->bytes == 0)
        return;
    f->section = "job";
    finding_add(f, FINDING_FACT, "nodes", "%u, by %s", nodes, variable);
    if (archive->is_local) {
        finding_add(f, FINDING_FACT, path, "is on this node, and read here by this node alone");
    } else if (archive->is_packed) {
        finding_add(f, FINDING_WARNING, path,
                    "each node reads all of it: compressed in one piece, it is not copied "
                    "together");
        finding_advise(f, "make an onepot archive of it with 'onepot pack'");
    } else if (place) {
        see_together(f, path, archive->bytes, nodes, place);
    } else {
        finding_add(f, FINDING_WARNING, path,
                    "a copy fits in no place of this node: each node reads its samples from "
                    "storage");
        finding_advise(f, "set $TMPDIR to a disk of the node that has room. Else let the order "
                          "be known, so that a node reads ahead what its ranks want, and no "
                          "more: onepot.Loader, or --order with a list by 'onepot order'");
    }
}
