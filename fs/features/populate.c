/*
 * Population: when readers go through many files of an archive, the files near those they read
 * are brought into the kernel's page cache before readers ask for them.
 *
 * A file that is read cold costs its reader a round trip or two, with two changes of process
 * each. Files that one process requests in a row, without waiting for each, cost half of that,
 * and reads from the page cache then cost no request at all. So a process of our own goes
 * through the mount like any reader: it lists a directory, opens its files and announces to the
 * kernel that it will need them (posix_fadvise). It works in the order of the archive, which
 * also suits a device or a decompressor best.
 *
 * There are two such processes, so that they get a fair share of the CPUs beside several
 * readers (why processes: helper.h). Each chunk is populated by one of them.
 *
 * Choice of files. The index is cut into chunks of 256 entries; neighbours in a directory are
 * neighbours there. A chunk is wanted if a reader read from it, or from one of the few before
 * it. Population begins only after a part of all files was read cold, so a job that reads a few
 * files pays nothing. A job that reads at random what it will not read again pays for at most
 * POPULATE_RATIO files per read, at half of the price of reading one, and only until the
 * allowance, a part of the free memory, is used up.
 */
#include "populate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bits.h"
#include "budget.h"
#include "clock.h"
#include "helper.h"
#include "numbers.h"

#define CHUNK_ENTRIES (1u << POPULATE_CHUNK_BITS)
#define CHUNKS_AHEAD 4u /* chunks after one that is read from, for readers that go in order */

#define READS_FIRST 2048u  /* cold reads before population begins */
#define READS_SHARE 32u    /* or this part of all files, if that is more */
#define READS_AGAIN 16u    /* cold reads before it resumes after a pause */
#define POPULATE_RATIO 16u /* files at most for each cold read */
#define FILE_MOST (4u << 20)
#define QUIET_NS 20000000u

/* Work under way at once: a reader's own request queues up behind it. */
#define BATCH_FILES 32u /* of each child */
#define BATCH_BYTES (1u << 20)

#define INODE_BYTES 1200u /* of kernel memory for an inode and its name */
#define ROOM_SHARE 2u     /* the part of the free memory that may be used */
#define ROOM_LEAST (UINT64_C(32) << 20)

struct populate {
    struct helper helper; /* shares the ledger */
    struct populate_ledger ledger;
    _Atomic uint64_t wanted; /* total of reads at which it should wake */
    uint64_t child_allowance;
};

/* Files that readers had to ask for. */
static uint64_t cold_reads(const struct session *s)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        sum += atomic_load_explicit(&s->config.counters->slots[i].read_files,
                                    memory_order_relaxed);
    return sum;
}

/* ---- the child ---- */

struct child {
    const struct session *session;
    struct populate_ledger *ledger;
    int root_fd;
    uint64_t allowance; /* bytes, of this run */
    uint64_t used;
    unsigned batch_files;
    uint64_t batch_bytes;
    struct populate_pace pace;
    enum helper_outcome outcome;
    bool stop;
    char name[INDEX_NAME_MAX + 1];
    _Alignas(struct dirent64) char dirents[16u << 10];
};

static void end_with(struct child *c, enum helper_outcome outcome)
{
    c->outcome = outcome;
    c->stop = true;
}

bool populate_pace_is_lost(struct populate_pace *pace, uint64_t reads, uint64_t files,
                           uint64_t now)
{
    if (reads != pace->reads)
        *pace = (struct populate_pace){.reads = reads, .grown_ns = now};
    return now - pace->grown_ns > QUIET_NS || files > reads * POPULATE_RATIO;
}

/* After each batch: continue? */
static void judge_batch(struct child *c)
{
    if (c->used > c->allowance)
        end_with(c, HELPER_FULL);
    else if (populate_pace_is_lost(&c->pace, cold_reads(c->session),
                                   atomic_load(&c->ledger->at->files), now_ns()))
        end_with(c, HELPER_PAUSED);
}

/* Make the kernel ask for the file's bytes, and wait for them once in a while. */
static void populate_file(struct child *c, int dir_fd, uint64_t size)
{
    int fd = openat(dir_fd, c->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char last;

    if (fd < 0) {
        if (errno == ENOTCONN || errno == ECONNABORTED)
            end_with(c, HELPER_DONE);
        return;
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    atomic_fetch_add_explicit(&c->ledger->at->files, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->ledger->at->bytes, size, memory_order_relaxed);
    c->used += size + INODE_BYTES;
    c->batch_bytes += size;
    if (++c->batch_files >= BATCH_FILES || c->batch_bytes >= BATCH_BYTES) {
        ssize_t n = pread(fd, &last, 1, (off_t)size - 1);
        (void)n; /* a reader will get the error itself */
        c->batch_files = 0;
        c->batch_bytes = 0;
        judge_batch(c);
    }
    close(fd);
}

/* Worth populating: a regular file with bytes, by its first name. */
static bool is_wanted(struct child *c, uint32_t position, uint64_t *ret_size)
{
    const struct index *index = c->session->index;
    const char *name;
    struct node node;
    size_t len;

    if (index_node(index, position, &node) < 0 || !S_ISREG(node.mode) ||
        node.position != position || node.data_bytes == 0 || node.size_bytes > FILE_MOST ||
        index_name(index, position, &name, &len) < 0 || len > INDEX_NAME_MAX)
        return false;
    memcpy(c->name, name, len);
    c->name[len] = '\0';
    *ret_size = node.size_bytes;
    return true;
}

/* One listing gives the kernel the names and attributes of [from, to). */
static void list_range(struct child *c, int dir_fd, uint32_t first, uint32_t from, uint32_t to)
{
    uint32_t left = to - from;
    long n;

    if (lseek(dir_fd, (off_t)(from - first) + 2, SEEK_SET) < 0)
        return;
    while (left && (n = syscall(SYS_getdents64, dir_fd, c->dirents, sizeof(c->dirents))) > 0)
        for (long i = 0; i < n && left; left--)
            i += ((const struct dirent64 *)(const void *)(c->dirents + i))->d_reclen;
}

/* Entries [from, to) of a directory whose children begin at `first`. */
static void populate_range(struct child *c, uint32_t directory, uint32_t first, uint32_t from,
                           uint32_t to)
{
    int fd = helper_open_directory(c->session, c->root_fd, directory);
    uint64_t size;

    if (fd < 0)
        return;
    if (!bit_get(c->ledger->listed, from >> POPULATE_CHUNK_BITS))
        list_range(c, fd, first, from, to);
    for (uint32_t i = from; i < to && !c->stop; i++)
        if (is_wanted(c, i, &size))
            populate_file(c, fd, size);
    close(fd);
}

static void populate_chunk(struct child *c, size_t chunk)
{
    const struct index *index = c->session->index;
    uint32_t entries = index_info(index)->entries, i = (uint32_t)(chunk << POPULATE_CHUNK_BITS);
    uint32_t end = entries - i > CHUNK_ENTRIES ? i + CHUNK_ENTRIES : entries;

    while (i < end && !c->stop) {
        uint32_t directory, first, count, to;

        if (index_parent(index, i, &directory) < 0 ||
            index_children(index, directory, &first, &count) < 0 || i < first ||
            i - first >= count) {
            i++; /* the root, or damage */
            continue;
        }
        to = count - (i - first) > end - i ? end : first + count;
        populate_range(c, directory, first, i, to);
        i = to;
    }
    if (c->stop)
        bit_clear(c->ledger->taken, chunk);
}

bool populate_wants(const struct populate_ledger *l, size_t chunk)
{
    if (bit_get(l->taken, chunk))
        return false;
    for (size_t i = 0; i <= CHUNKS_AHEAD && i <= chunk; i++)
        if (bit_get(l->touched, chunk - i))
            return true;
    return false;
}

/* One pass over all chunks. True if there was anything to do. */
static bool populate_once(struct child *c)
{
    bool any = false;

    for (size_t i = 0; i < c->ledger->chunks && !c->stop; i++) {
        if (!populate_wants(c->ledger, i) || !bit_take(c->ledger->taken, i))
            continue;
        any = true;
        populate_chunk(c, i);
    }
    return any;
}

static bool is_complete(const struct populate_ledger *l)
{
    for (size_t i = 0; i < l->chunks; i++)
        if (!bit_get(l->taken, i))
            return false;
    return true;
}

static enum helper_outcome populate_work(struct helper *h, int root_fd)
{
    static struct child c; /* each process has its own copy */
    struct populate *p = (struct populate *)(void *)h;

    c = (struct child){.session = h->session,
                       .ledger = &p->ledger,
                       .root_fd = root_fd,
                       .allowance = p->child_allowance,
                       .pace = {.reads = cold_reads(h->session), .grown_ns = now_ns()}};
    while (!c.stop && populate_once(&c))
        ;
    if (!c.stop)
        c.outcome = is_complete(&p->ledger) ? HELPER_DONE : HELPER_PAUSED;
    return c.outcome;
}

/* ---- the daemon ---- */

/* Sleep until there are so many more reads. False: the session has ended. */
static bool populate_sleep(struct populate *p, uint64_t more)
{
    atomic_store(&p->wanted, cold_reads(p->helper.session) + more);
    return helper_sleep(&p->helper);
}

/* How many bytes may be brought in now. */
static uint64_t allowance_of(const struct populate *p)
{
    uint64_t most = p->helper.session->config.readahead_bytes;
    uint64_t used = atomic_load(&p->ledger.at->bytes),
             room = budget_room_bytes("") / ROOM_SHARE;

    return room < ROOM_LEAST || used > most ? 0 : min_u64(most - used, room);
}

static void *populate_run(void *arg)
{
    struct populate *p = arg;
    const struct session *s = p->helper.session;
    uint64_t more = max_u64(index_info(s->index)->files / READS_SHARE, READS_FIRST);

    while (populate_sleep(p, more)) {
        if (!source_is_local(s->config.pot->source)) {
            more = READS_FIRST; /* a copy is in progress: the rest is still far away */
            continue;
        }
        unsigned children = min_u32(s->loop.running_max, HELPER_POPULATE_MAX);
        p->child_allowance = allowance_of(p) / children;
        if (!p->child_allowance ||
            helper_run(&p->helper, children, populate_work) < HELPER_FULL)
            break;
        more = READS_AGAIN;
    }
    return NULL;
}

/*
 * While a stream is unpacked, population would keep as many requests waiting as the kernel
 * allows.
 */
static bool is_unpacking(const struct session *s)
{
    return s->config.stage && stage_stream_progress_ns(s->config.stage) != 0;
}

/* A reader had to ask for a file. */
static void populate_after_read(void *state, struct read *read)
{
    struct populate *p = state;
    const struct session *s = p->helper.session;
    const struct counter_slot *slot = read->rq->worker->slot;

    if (read->result < 0 || read->offset > 0 || read->rq->own)
        return;
    bit_take(p->ledger.touched, read->position >> POPULATE_CHUNK_BITS);
    if (atomic_load_explicit(&slot->read_files, memory_order_relaxed) % READS_AGAIN == 0 &&
        helper_is_asleep(&p->helper) &&
        cold_reads(s) >= atomic_load_explicit(&p->wanted, memory_order_relaxed) &&
        !is_unpacking(s))
        helper_wake(&p->helper);
}

static void populate_after_listing(void *state, uint32_t from, uint32_t to)
{
    struct populate *p = state;

    for (uint32_t i = from | (CHUNK_ENTRIES - 1); i < to; i += CHUNK_ENTRIES)
        bit_take(p->ledger.listed, i >> POPULATE_CHUNK_BITS);
}

size_t populate_ledger_bytes(uint32_t entries)
{
    size_t chunks = (entries >> POPULATE_CHUNK_BITS) + 1;

    return sizeof(struct populate_totals) + 3 * ((chunks + 63) / 64) * sizeof(uint64_t);
}

struct populate_ledger populate_ledger_at(void *shared, uint32_t entries)
{
    struct populate_totals *at = shared;
    struct populate_ledger l = {.at = at, .chunks = (entries >> POPULATE_CHUNK_BITS) + 1};
    size_t words = (l.chunks + 63) / 64;

    l.touched = (void *)(at + 1);
    l.listed = l.touched + words;
    l.taken = l.listed + words;
    return l;
}

static int populate_start(struct session *s, void **ret_state)
{
    const struct session_config *config = &s->config;
    const struct index_info *info = index_info(s->index);
    struct populate *p;

    if (!config->readahead_bytes || !config->mountpoint || config->order ||
        !(config->stage || source_is_local(config->pot->source)) ||
        info->files < 2 * READS_FIRST)
        return 0;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    *ret_state = p;
    int r = helper_init(&p->helper, s, HELPER_POPULATE, HELPER_POPULATE_MAX,
                        populate_ledger_bytes(info->entries));
    if (r < 0)
        return r;
    p->ledger = populate_ledger_at(p->helper.shared, info->entries);
    return helper_start(&p->helper, populate_run);
}

const struct feature populate_feature = {
    .start = populate_start,
    .after_read = populate_after_read,
    .after_listing = populate_after_listing,
    .end = helper_end,
    .join = helper_join,
    .free = helper_free,
};
