/*
 * onepot-mpi stage ARCHIVE: the nodes of an MPI job copy an archive together, reading storage
 * once. This file knows MPI, two pipes and a ring in shared memory, nothing else of onepot, so
 * that it compiles with any MPI 3:
 *
 *     mpicc -O2 -o onepot-mpi onepot-mpi.c
 *
 * One process of each node takes part. It starts `onepot stage --node`, which reads this
 * node's share of every group of chunks from storage, and keeps what the other nodes read
 * (onepot-stage(1) has the protocol). That process is no process of MPI, and leads its own
 * session: it outlives an abort of the job where the system lets it, and goes on with storage.
 *
 * Blocks are exchanged in steps: a step gathers all blocks of a group, or, where two groups
 * do not fit into memory, broadcasts one block. Each step has a slot of the ring:
 *
 *     onepot makes this node's block -> the step begins -> it is done -> onepot takes its
 * blocks
 *
 * A step begins as soon as its slot is free, so that one passes the network while onepot takes
 * another. All nodes begin the same steps, because each begins a group only when its onepot has
 * made a block of it, and they all end at the same group. If a node's onepot ends early, or is
 * silent for so long that the other nodes would soon give up all, its name and zeros take the
 * place of its blocks from then on, and the others go on.
 *
 * If MPI reports that a process is lost and goes on (ULFM: Open MPI 5, by mpirun --with-ft
 * ulfm), the nodes that are left make another group. Each tells a second onepot, which waits
 * since before MPI's start, its part of the rest of the same copy.
 *
 * MPI waits by spinning. Here one thread tests, and sleeps between tests in steps that grow.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mpi.h>
#if defined(OPEN_MPI) && OPEN_MPI && defined(__has_include)
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
#define REGROUPS 2 /* groups after the first one */
#else
#define REGROUPS 0
#endif

#ifndef RING_BYTES
#define RING_BYTES (UINT64_C(64) << 20)
#endif
#define RING_FD 3               /* in the node's onepot */
#define OWN (UINT64_C(1) << 63) /* a word that asks for a block */
#define REPLACED UINT64_MAX     /* another onepot goes on */
#define SLOTS_MAX 16            /* broadcasts on their way */
#define SLEEP_LEAST_NS 50000
#define SLEEP_MOST_NS 20000000
#define FLOW_NS 10000 /* a test that moves bytes takes longer */
#define PATIENCE_S 20
#ifndef OWN_PATIENCE_S
#define OWN_PATIENCE_S 15 /* the onepots of other nodes wait for 20 s */
#endif
#define NAME_BYTES 64 /* of a node, before zeros */

#ifndef START_S
#define START_S 20
#endif
#define FIGURES_S 10 /* for the rest of a node's copy; then it tells its own */

enum { IS_DONE, WANTS_LINE, STORAGE, DEMAND, OTHER_NODES, ARCHIVE_BYTES, FIGURES };

struct engine {
    MPI_Comm nodes, node; /* a process of each node; all processes of this one */
    int rank, size;       /* of the nodes */
    uint64_t block_bytes, groups;
    uint64_t first; /* chunk of the first group */

    int from, to, ring_fd; /* this node's onepot */
    uint8_t *ring;
    bool has_left; /* it neither makes nor takes blocks */

    uint64_t steps_per_group; /* 1: a gather; or a broadcast by each node */
    uint64_t slots;
    MPI_Request request[SLOTS_MAX];

    uint64_t group;             /* whose own block comes next */
    bool is_asked, is_there;    /* that block */
    uint64_t begun, done, told; /* steps */
    uint64_t taken;             /* blocks of all steps */
    bool is_over, is_broken;    /* no more groups; MPI has failed, or the others hang */
    bool has_lost;              /* a process, and MPI goes on without it */
    int is_well;                /* at the end of the exchange, on all nodes */

    uint64_t begun_ns, moved_ns; /* when it began, and something last went on */
    long sleep_ns;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- the node's onepot ---- */

/* onepot beside this program, or else the one in PATH. */
static void become_onepot(char **argv)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("onepot"));
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    if (slash) {
        strcpy(slash + 1, "onepot");
        execv(path, argv);
    }
    execvp("onepot", argv);
    fprintf(stderr, "onepot-mpi: onepot is neither beside this program nor in PATH: %s\n",
            strerror(errno));
    _exit(1);
}

/* "RANK/SIZE/CHUNK" of this node. False: MPI has not started, and may never do. */
static bool wait_for_part(int from, char *part, size_t size, bool is_spare)
{
    struct pollfd p = {.fd = from, .events = POLLIN};
    if (poll(&p, 1, is_spare ? -1 : START_S * 1000) == 0) {
        fprintf(stderr,
                "onepot-mpi: MPI has not started on all nodes within %d s: this one goes on "
                "with storage\n",
                START_S);
        return false;
    }
    if (read(from, part, size) != (ssize_t)size)
        _exit(0); /* another process of the node takes part */
    return true;
}

/* Without a part it goes on as one of a job that broke: alone, slowly, and with its own line.
 */
static void wait_and_stage(int from, int to, int ring, int argc, char **argv, bool is_spare)
{
    char part[64] = "", *own[] = {"onepot", "stage", "--owner=job", "--node", part, "--ring=3"};
    const size_t own_count = sizeof(own) / sizeof(own[0]);
    char **words = calloc(own_count + (size_t)argc, sizeof(*words));
    setsid();
    signal(SIGCHLD, SIG_DFL);
    if (!words || dup2(from, STDIN_FILENO) < 0 || dup2(to, STDOUT_FILENO) < 0 ||
        dup2(ring, RING_FD) < 0)
        _exit(1);
    fcntl(RING_FD, F_SETFD, 0);
    for (int fd = RING_FD + 1; fd < 4096;
         fd++) /* what the launcher has left open, and pipes of others */
        close(fd);
    if (!wait_for_part(STDIN_FILENO, part, sizeof(part), is_spare)) {
        strcpy(part, "0/1");
        from = open("/dev/full", O_RDWR | O_CLOEXEC); /* which takes no word */
        if (dup2(from, STDIN_FILENO) < 0 || dup2(from, STDOUT_FILENO) < 0)
            _exit(1);
    }
    memcpy(words, own, sizeof(own));
    memcpy(words + own_count, argv + 2, (size_t)(argc - 1) * sizeof(*argv)); /* with the NULL */
    become_onepot(words);
}

/* Started before MPI is, whose libraries do not survive a fork on every network. */
static pid_t start_child(struct engine *e, int argc, char **argv, bool is_spare)
{
    int in[2], out[2];
    e->sleep_ns = SLEEP_LEAST_NS;
    e->ring_fd = memfd_create("onepot-mpi", MFD_CLOEXEC);
    if (e->ring_fd < 0 || pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        close(in[1]); /* or it would never see the end */
        wait_and_stage(in[0], out[1], e->ring_fd, argc, argv, is_spare);
    }
    close(in[0]);
    close(out[1]);
    e->to = in[1];
    e->from = out[0];
    fcntl(e->to, F_SETFL, O_NONBLOCK);
    fcntl(e->from, F_SETFL, O_NONBLOCK);
    return pid;
}

/* The words written never fill a pipe: a word for each block that fits into the ring. */
static void tell(struct engine *e, const void *bytes, size_t len)
{
    if (!e->has_left && write(e->to, bytes, len) != (ssize_t)len)
        e->has_left = true;
}

static void tell_word(struct engine *e, uint64_t word)
{
    tell(e, &word, sizeof(word));
}

/* All answers, but not the figures, which come after the last one. */
static bool hear(struct engine *e)
{
    uint8_t answer;
    bool heard = false;
    while (!e->has_left && e->from >= 0) {
        ssize_t n = read(e->from, &answer, 1);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        heard = true;
        e->is_there |= n > 0 && answer == 1;
        e->taken += n > 0 && answer == 3;
        e->is_over |= n > 0 && answer == 0;
        e->has_left = n <= 0 || answer == 0 || answer == 2;
    }
    return heard;
}

static int wait_for_child(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- waiting ---- */

/*
 * Until onepot has something to say, or until the next test if there is a request to test.
 * False: onepot has left, and the other nodes do not answer.
 */
static bool rest(struct engine *e, bool tests)
{
    struct pollfd p = {.fd = e->has_left ? -1 : e->from, .events = POLLIN};
    struct timespec t = {.tv_sec = !tests, .tv_nsec = tests ? e->sleep_ns : 0};
    ppoll(&p, 1, &t, NULL);
    e->sleep_ns = e->sleep_ns < SLEEP_MOST_NS / 2 ? e->sleep_ns * 2 : SLEEP_MOST_NS;
    return !e->has_left || now_ns() - e->moved_ns < PATIENCE_S * UINT64_C(1000000000);
}

static bool fails(struct engine *e, int r)
{
#if REGROUPS > 0
    int class = MPI_SUCCESS;
    MPI_Error_class(r, &class);
    e->has_lost |= class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED;
#endif
    e->is_broken |= r != MPI_SUCCESS;
    return r != MPI_SUCCESS;
}

/*
 * 1: complete; 0: not yet; -1: it failed. While bytes flow, which takes a test its time, sleep
 * is short. A first test may be long after sleep alone.
 */
static int test(struct engine *e, MPI_Request *request)
{
    int complete = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t begun_ns = now_ns();
        if (fails(e, MPI_Test(request, &complete, MPI_STATUS_IGNORE)))
            return -1;
        if (complete || now_ns() - begun_ns < FLOW_NS)
            return complete;
    }
    e->sleep_ns = SLEEP_LEAST_NS;
    return 0;
}

/* Wait for a request outside of the exchange, which began with the result r. */
static void finish(struct engine *e, int r, MPI_Request *request)
{
    int complete = r == MPI_SUCCESS ? 0 : -1;
    e->moved_ns = now_ns();
    while (complete == 0 && (complete = test(e, request)) == 0 && rest(e, true))
        hear(e); /* it may have left */
    e->is_broken |= complete <= 0;
}

/* ---- the exchange ---- */

static uint64_t blocks_of_step(const struct engine *e)
{
    return e->steps_per_group == 1 ? (uint64_t)e->size : 1;
}

static uint64_t handed(const struct engine *e)
{
    return e->taken / blocks_of_step(e);
}

/* Places are offsets in the ring. An own block lies in the gather's slot, or beside all slots.
 */
static uint64_t own_place(const struct engine *e, uint64_t group)
{
    return (e->steps_per_group == 1 ? group % e->slots * e->size + e->rank
                                    : e->slots + group % 2) *
           e->block_bytes;
}

static uint64_t step_place(const struct engine *e, uint64_t step)
{
    bool is_own = e->steps_per_group > 1 && step % e->steps_per_group == (uint64_t)e->rank;
    return is_own ? own_place(e, step / e->steps_per_group)
                  : step % e->slots * blocks_of_step(e) * e->block_bytes;
}

/* Ask for the own block as soon as its place is free. */
static bool ask(struct engine *e)
{
    bool is_free = e->group < 2 || handed(e) >= (e->group - 1) * e->steps_per_group;
    if (e->is_there || e->is_over || e->group == e->groups || !is_free)
        return false;
    if (e->has_left) {
        memset(e->ring + own_place(e, e->group), 0, e->block_bytes);
        gethostname((char *)e->ring + own_place(e, e->group), NAME_BYTES - 1);
        return e->is_there = true;
    }
    if (e->is_asked)
        return false;
    tell_word(e, OWN | own_place(e, e->group));
    return e->is_asked = true;
}

static int begin_step(struct engine *e)
{
    MPI_Request *request = &e->request[e->begun % e->slots];
    uint8_t *bytes = e->ring + step_place(e, e->begun);
    int count = (int)e->block_bytes;
    if (e->steps_per_group == 1)
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes, count, MPI_BYTE,
                              e->nodes, request);
    return MPI_Ibcast(bytes, count, MPI_BYTE, (int)(e->begun % e->steps_per_group), e->nodes,
                      request);
}

static bool begin_steps(struct engine *e)
{
    uint64_t before = e->begun;
    while (e->is_there && e->begun < handed(e) + e->slots) {
        if (fails(e, begin_step(e)))
            break;
        if (++e->begun % e->steps_per_group == 0) {
            e->group++;
            e->is_asked = e->is_there = false;
        }
    }
    return e->begun > before;
}

static bool test_step(struct engine *e)
{
    if (e->done == e->begun)
        return false;
    int complete = test(e, &e->request[e->done % e->slots]);
    e->is_broken |= complete < 0;
    e->done += complete > 0;
    return complete > 0;
}

static bool tell_step(struct engine *e)
{
    if (e->has_left)
        e->taken = e->done * blocks_of_step(e);
    if (e->told == e->done)
        return false;
    for (uint64_t i = 0; i < blocks_of_step(e); i++)
        tell_word(e, step_place(e, e->told) + i * e->block_bytes);
    e->told++;
    return true;
}

/* Chooses gathers or broadcasts, too. */
static size_t ring_bytes(struct engine *e)
{
    uint64_t blocks = 2 * (uint64_t)e->size;
    e->steps_per_group = 1;
    e->slots = 2;
    if (blocks * e->block_bytes > RING_BYTES) {
        e->steps_per_group = (uint64_t)e->size;
        e->slots = SLOTS_MAX;
        blocks = SLOTS_MAX + 2;
    }
    return blocks * e->block_bytes;
}

/* Does onepot owe a block, or the taking of some? Before the first step, it is waited for. */
static bool is_owed(const struct engine *e)
{
    return !e->has_left && e->done > 0 &&
           ((e->is_asked && !e->is_there) || handed(e) < e->told);
}

/*
 * Perhaps it was stopped, or its storage hangs. One day it may go on with the blocks that it
 * knows of, so these stay as they are: later steps use other memory.
 */
static void leave_behind(struct engine *e)
{
    void *ring =
        mmap(NULL, ring_bytes(e), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fprintf(stderr,
            "onepot-mpi: onepot of node %d was silent for %d s: the others go on without it\n",
            e->rank, OWN_PATIENCE_S);
    close(e->to);
    close(e->from);
    e->to = e->from = -1;
    e->has_left = true;
    e->is_asked = e->is_there = false;
    e->is_broken = ring == MAP_FAILED;
    e->ring = ring;
    e->moved_ns = now_ns();
}

static void exchange(struct engine *e)
{
    while (!e->is_broken && !(e->is_over && e->done == e->begun) &&
           !(e->group == e->groups && handed(e) == e->begun)) {
        bool moved = ask(e);
        moved |= begin_steps(e);
        moved |= test_step(e);
        moved |= tell_step(e);
        moved |= hear(e);
        if (moved) {
            e->moved_ns = now_ns();
            e->sleep_ns = SLEEP_LEAST_NS;
        } else {
            e->is_broken |= !rest(e, e->done < e->begun);
            if (is_owed(e) && now_ns() - e->moved_ns > OWN_PATIENCE_S * UINT64_C(1000000000))
                leave_behind(e);
        }
    }
}

/* "onepot-job 1 BLOCK_BYTES GROUPS"; blocks of no bytes: there is no archive to copy. */
static void read_hello(struct engine *e)
{
    char line[97] = "";
    for (size_t n = 0; n < sizeof(line) - 1 && !strchr(line, '\n');) {
        struct pollfd p = {.fd = e->from, .events = POLLIN};
        poll(&p, 1, -1);
        ssize_t got = read(e->from, line + n, 1);
        if (got == 0)
            break;
        n += got > 0;
    }
    if (sscanf(line, "onepot-job 1 %" SCNu64 " %" SCNu64, &e->block_bytes, &e->groups) != 2)
        e->block_bytes = 0;
}

static bool make_ring(struct engine *e)
{
    size_t len = ring_bytes(e);
    if (len == 0 || ftruncate(e->ring_fd, (off_t)len) < 0)
        return false;
    e->ring = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, e->ring_fd, 0);
    return e->ring != MAP_FAILED;
}

/* True: all nodes have blocks of one size. Archives that differ end in the first group. */
static bool agree(struct engine *e)
{
    uint64_t mine[2] = {make_ring(e) ? e->block_bytes : 0, e->groups};
    uint64_t *all = calloc((size_t)e->size, sizeof(mine));
    MPI_Request request;
    bool same = mine[0] > 0;
    if (!all) {
        e->is_broken = true;
        return false;
    }
    int r = MPI_Iallgather(mine, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, e->nodes, &request);
    finish(e, r, &request);
    for (int i = 0; i < e->size && !e->is_broken; i++) {
        same &= all[2 * i] == mine[0];
        e->groups = all[2 * i + 1] == mine[1] ? e->groups : 1;
    }
    free(all);
    return same && !e->is_broken;
}

/* ---- a lost node ---- */

#if REGROUPS > 0
/* The group of nodes that are left, and whose onepot can be joined by another one. */
static bool find_rest(struct engine *e, struct engine *next)
{
    MPI_Comm left;
    bool goes_on = (e->is_over || !e->has_left) && next;
    uint64_t chunk =
        e->first + e->taken / (uint64_t)e->size * (uint64_t)e->size * (e->block_bytes >> 20);
    if (MPIX_Comm_shrink(e->nodes, &left) != MPI_SUCCESS)
        return false;
    MPI_Comm_set_errhandler(left, MPI_ERRORS_RETURN);
    MPI_Comm rest;
    if (MPI_Comm_split(left, goes_on ? 0 : MPI_UNDEFINED, e->rank, &rest) != MPI_SUCCESS ||
        !goes_on)
        return false;
    MPI_Comm_set_errhandler(rest, MPI_ERRORS_RETURN);
    next->nodes = rest;
    MPI_Comm_rank(rest, &next->rank);
    MPI_Comm_size(rest, &next->size);
    return next->size > 1 &&
           MPI_Allreduce(&chunk, &next->first, 1, MPI_UINT64_T, MPI_MIN, rest) == MPI_SUCCESS;
}

/*
 * All nodes come here after each exchange, also those that have all blocks. True: one was lost,
 * and the others go on with `next`, if it is not NULL.
 */
static bool regroup(struct engine *e, struct engine *next)
{
    MPI_Request request;
    if (e->is_broken && !e->has_lost)
        return false;
    if (e->has_lost)
        MPIX_Comm_revoke(e->nodes);
    e->is_well = !e->has_lost;
    e->is_broken = false;
    finish(e, MPIX_Comm_iagree(e->nodes, &e->is_well, &request), &request);
    if (!e->is_broken && e->is_well)
        return false;
    bool has_rest = (e->has_lost || !e->is_broken) && find_rest(e, next);
    e->is_broken = true;
    if (has_rest && next->rank == 0)
        fprintf(stderr, "onepot-mpi: MPI lost a node: %d of %d nodes go on together\n",
                next->size, e->size);
    return has_rest;
}
#else
static bool regroup(struct engine *e, struct engine *next)
{
    (void)e;
    (void)next;
    return false;
}
#endif

/* ---- the figures of all nodes ---- */

/* This node's: "onepot-job done STORAGE DEMAND NODES BYTES UNTIL", if they come soon. */
static void hear_figures(struct engine *e, char *line, size_t size)
{
    uint64_t end_ns = now_ns() + FIGURES_S * UINT64_C(1000000000);
    size_t n = 0;
    while (e->from >= 0 && n < size - 1 && !memchr(line, '\n', n) && now_ns() < end_ns) {
        struct pollfd p = {.fd = e->from, .events = POLLIN};
        ssize_t got = poll(&p, 1, 100) > 0 ? read(e->from, line + n, 1) : -1;
        if (got == 0)
            break;
        n += got > 0 && line[n] > 3; /* not an answer, if the exchange did not wait for all */
    }
    line[n] = 0;
}

/* The first node that wants it prints one line for all. */
static void print_figures(const struct engine *e, const uint64_t *all, const char *until,
                          const char *archive)
{
    uint64_t sum[FIGURES] = {0};
    int speaker = -1;
    for (int i = 0; i < e->size; i++) {
        const uint64_t *of = all + i * FIGURES;
        for (int k = 0; k < FIGURES; k++)
            sum[k] += of[k];
        speaker = speaker < 0 && of[WANTS_LINE] ? i : speaker;
    }
    if (speaker != e->rank)
        return;
    fprintf(stderr,
            "onepot: %s: %" PRIu64 " of %d nodes staged it together in %.1f s: %.1f MB from "
            "storage (%.2f of the archive), %.1f MB of that for readers on demand, and %.1f MB "
            "from other nodes; it stays until %s\n",
            archive, sum[IS_DONE], e->size, (double)(now_ns() - e->begun_ns) / 1e9,
            (double)sum[STORAGE] / 1e6,
            (double)sum[STORAGE] / (double)all[e->rank * FIGURES + ARCHIVE_BYTES],
            (double)sum[DEMAND] / 1e6, (double)sum[OTHER_NODES] / 1e6, until);
}

static void add_up(struct engine *e, const char *archive)
{
    char line[4096], until[4096] = "";
    uint64_t mine[FIGURES] = {0}, *all = calloc((size_t)e->size, sizeof(mine));
    MPI_Request request;
    hear_figures(e, line, sizeof(line));
    int words = sscanf(
        line, "onepot-job done %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %4095[^\n]",
        &mine[STORAGE], &mine[DEMAND], &mine[OTHER_NODES], &mine[ARCHIVE_BYTES], until);
    mine[IS_DONE] = words >= 4;
    mine[WANTS_LINE] = words == 5 && mine[ARCHIVE_BYTES] > 0;
    e->has_left = true; /* from now on nobody waits long for the others */
    if (!all) {
        e->is_broken = true;
        return;
    }
    int r = MPI_Iallgather(mine, FIGURES, MPI_UINT64_T, all, FIGURES, MPI_UINT64_T, e->nodes,
                           &request);
    finish(e, r, &request);
    if (!e->is_broken)
        print_figures(e, all, until, archive);
    free(all);
}

static void begin(struct engine *e)
{
    char part[64] = "";
    e->begun_ns = now_ns();
    snprintf(part, sizeof(part), "%d/%d/%" PRIu64, e->rank, e->size, e->first);
    tell(e, part, sizeof(part));
    read_hello(e);
}

/* engines: one for each group of nodes that there may be. Returns the last one. */
static struct engine *stage(struct engine *engines, const char *archive)
{
    struct engine *e = engines;
    begin(e);
    if (agree(e))
        exchange(e);
    while (regroup(e, e < engines + REGROUPS ? e + 1 : NULL)) {
        begin(e + 1);
        tell_word(e, REPLACED);
        close(e->to);
        e++->to = -1;
        if (agree(e))
            exchange(e);
    }
    e->begun_ns = engines->begun_ns;
    if (e->is_broken)
        fprintf(stderr, "onepot-mpi: node %d of %d lost the others, and goes on with storage\n",
                e->rank, e->size);
    else
        add_up(e, archive);
    return e;
}

/* ---- the program ---- */

/* One process of each node takes part; in tests each process can be a node. */
static void find_nodes(struct engine *e)
{
    int rank;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (getenv("ONEPOT_MPI_RANKS_ARE_NODES"))
        MPI_Comm_dup(MPI_COMM_SELF, &e->node);
    else
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &e->node);
    MPI_Comm_set_errhandler(e->node, MPI_ERRORS_RETURN);
    MPI_Comm_rank(e->node, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : MPI_UNDEFINED, 0, &e->nodes);
    if (e->nodes == MPI_COMM_NULL)
        return;
    MPI_Comm_set_errhandler(e->nodes, MPI_ERRORS_RETURN);
    MPI_Comm_rank(e->nodes, &e->rank);
    MPI_Comm_size(e->nodes, &e->size);
}

static pid_t child, spare[REGROUPS + 1];

/* It had its copy before MPI started, and nothing is left to do. */
static void end_with_child(int number)
{
    siginfo_t ended = {0};
    (void)number;
    if (waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid)
        _exit(wait_for_child(child));
}

/* Whatever becomes of MPI, the exit status is that of this node's onepot. */
static void end_without_mpi(int number)
{
    (void)number;
    _exit(wait_for_child(child));
}

/*
 * MPI_Finalize spins until all processes call it, so that they wait for each other before: on
 * each node for the one that takes part, then for other nodes. If one hangs, it is left out. It
 * may hang by itself, too: then this process ends without it.
 */
static void end_mpi(struct engine *e)
{
    MPI_Request request;
    int broken = e->is_broken;
    finish(e, MPI_Ibcast(&broken, 1, MPI_INT, 0, e->node, &request), &request);
    e->is_broken |= broken;
    if (e->is_broken)
        return;
    e->has_left = true;
    finish(e, MPI_Ibarrier(MPI_COMM_WORLD, &request), &request);
    if (e->is_broken)
        return;
    signal(SIGALRM, end_without_mpi);
    signal(SIGTERM, end_without_mpi); /* from mpirun, as another one did this before */
    alarm(PATIENCE_S);
    MPI_Finalize();
    alarm(0);
}

static void pass_on(int number)
{
    kill(child, number);
    for (int i = 0; i < REGROUPS; i++)
        kill(spare[i], number);
}

int main(int argc, char **argv)
{
    struct engine engines[1 + REGROUPS] = {{0}}, *e = engines;
    if (argc < 3 || strcmp(argv[1], "stage") != 0) {
        fputs("Usage: onepot-mpi stage [OPTION...] ARCHIVE\n"
              "Copy an archive to all nodes of an MPI job, reading storage once; options are "
              "those of\n"
              "'onepot stage'. In a job script of 4 nodes: srun -N 4 -n 4 onepot-mpi stage "
              "train.tar\n",
              stderr);
        return 2;
    }
    child = start_child(e, argc, argv, false);
    for (int i = 0; i < REGROUPS && child > 0; i++)
        spare[i] = start_child(&engines[1 + i], argc, argv, true);
    if (child < 0) {
        perror("onepot-mpi");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, pass_on);
    signal(SIGCHLD, end_with_child);
    MPI_Init(NULL, NULL);
    find_nodes(e);
    signal(SIGCHLD, SIG_DFL);
    if (e->nodes != MPI_COMM_NULL)
        e = stage(engines, argv[argc - 1]);
    for (int i = 0; i <= REGROUPS; i++)
        close(engines[i].to);
    close(e->from); /* not of one that was replaced, which would tell its figures */
    e->from = -1;
    e->node = engines->node;
    end_mpi(e);
    if (e->is_broken)
        end_without_mpi(0);
    return wait_for_child(child);
}
