#include "rank_share.h"

#include <stdlib.h>

#include "budget.h"
#include "cpus.h"

uint32_t rank_share_ranks(void)
{
    static const char *const names[] = {
        "LOCAL_WORLD_SIZE",          "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MV2_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",           "SLURM_STEP_TASKS_PER_NODE"}; /* "4(x2)": 4 */
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        unsigned long n = text ? strtoul(text, NULL, 10) : 0;
        if (n > 0 && n < 100000)
            return (uint32_t)n;
    }
    return 1;
}

/*
 * A bound rank may use only its own CPUs, so the node has at least ranks times as many. A rank
 * that is not bound sees the CPUs of all ranks.
 */
uint32_t rank_share_cpus(void)
{
    struct cpus cpus;
    uint32_t ranks = rank_share_ranks(), allowed = cpus_allowed();
    cpus_look("", &cpus);
    uint32_t all = cpus.cpuset ? cpus.cpuset : cpus.online;
    if (cpus.mask > 0 && (uint64_t)cpus.mask * ranks <= all)
        return allowed;
    return allowed > ranks ? allowed / ranks : 1;
}

uint64_t rank_share_bytes(void)
{
    return budget_memory_bytes("") / 4 / rank_share_ranks();
}
