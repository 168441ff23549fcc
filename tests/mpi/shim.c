/*
 * Linked to onepot-mpi in tests: the collective of number AT (from 1, which agrees on shapes)
 * does WHAT in the process of rank RANK, if the environment has SHIM=WHAT:RANK:AT.
 * SHIM=linger:N:0 keeps the first N ranks in MPI_Finalize, until their alarm, which rings
 * early.
 * SHIM=stall:RANK:0 keeps one from starting MPI.
 * SHIM=halt:RANK:AT stops the onepot of one, until MPI ends.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

static int calls;

static bool shim_is_due(MPI_Comm comm, const char *what)
{
    int rank, at, own, size;
    char wanted[16];
    const char *text = getenv("SHIM");
    PMPI_Comm_rank(MPI_COMM_WORLD, &own); /* in a group of fewer nodes it has another one */
    PMPI_Comm_size(comm, &size);
    own = size > 1 ? own : 0;
    return text && sscanf(text, "%15[a-z]:%d:%d", wanted, &rank, &at) == 3 && rank == own &&
           at == calls && strcmp(what, wanted) == 0;
}

static void shim_signal_onepot(int number)
{
    char path[64];
    int pid;
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    while (f && fscanf(f, "%d", &pid) == 1)
        kill(pid, number);
}

static int shim(MPI_Comm comm, char *own_block, int count)
{
    calls++;
    if (shim_is_due(comm, "kill"))
        raise(SIGKILL);
    if (shim_is_due(comm, "stop"))
        raise(SIGSTOP);
    if (shim_is_due(comm, "orphan"))
        shim_signal_onepot(SIGKILL);
    if (shim_is_due(comm, "halt"))
        shim_signal_onepot(SIGSTOP);
    if (shim_is_due(comm, "damage") && own_block)
        own_block[count / 2] ^= 1;
    return shim_is_due(comm, "fail") ? MPI_ERR_OTHER : MPI_SUCCESS;
}

int MPI_Iallgather(const void *mine, int mine_count, MPI_Datatype mine_type, void *all,
                   int count, MPI_Datatype type, MPI_Comm comm, MPI_Request *request)
{
    int rank;
    PMPI_Comm_rank(comm, &rank);
    int r = shim(comm, mine == MPI_IN_PLACE ? (char *)all + (size_t)rank * count : NULL, count);
    return r ? r
             : PMPI_Iallgather(mine, mine_count, mine_type, all, count, type, comm, request);
}

int MPI_Ibcast(void *bytes, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request *request)
{
    int rank;
    PMPI_Comm_rank(comm, &rank);
    int r = shim(comm, rank == root ? bytes : NULL, count);
    return r ? r : PMPI_Ibcast(bytes, count, type, root, comm, request);
}

int MPI_Finalize(void)
{
    int rank, ranks;
    const char *text = getenv("SHIM");
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    shim_signal_onepot(SIGCONT);
    if (!text || sscanf(text, "linger:%d", &ranks) != 1 || rank >= ranks)
        return PMPI_Finalize();
    alarm(1);
    for (;;)
        pause();
}

int MPI_Init(int *argc, char ***argv)
{
    const char *text = getenv("SHIM"), *own = getenv("PMI_RANK");
    int rank;
    own = own ? own : getenv("OMPI_COMM_WORLD_RANK");
    while (text && own && sscanf(text, "stall:%d", &rank) == 1 && rank == atoi(own))
        pause();
    return PMPI_Init(argc, argv);
}
