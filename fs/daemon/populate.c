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
 * readers (why processes: helper.c). Each chunk is populated by one of them.
 *
 * Choice of files. The index is cut into chunks of 256 entries; neighbours in a directory are
 * neighbours there. A chunk is wanted if a reader read from it, or from one of the few before
 * it. Population begins only after a part of all files was read cold, so a job that reads a few
 * files pays nothing. A job that reads at random what it will not read again pays for at most
 * POPULATE_RATIO files per read, at half of the price of reading one, and only until the
 * allowance, a part of the free memory, is used up.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "budget.h"
#include "clock.h"
#include "futex.h"
#include "internal.h"
#include "thread.h"

#define CHUNK_BITS 8
#define CHUNK_ENTRIES (1u << CHUNK_BITS)
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
#define STACK_BYTES (256u << 10)

/* Shared by the daemon and its children. */
struct ledger {
    _Atomic uint64_t files, bytes;
    size_t chunks;
    _Atomic uint64_t *touched; /* bitmaps, by chunk */
    _Atomic uint64_t *listed;
    _Atomic uint64_t *taken; /* claimed by a child, which populates it or gives it back */
};

struct populate {
    struct session *session;
    pthread_t thread;
    bool started;
    uint64_t most_bytes; /* --readahead */
    struct ledger *ledger;
    size_t ledger_bytes;

    _Atomic uint32_t asleep; /* futex */
    _Atomic uint64_t wanted; /* total of reads at which it should wake */
    unsigned child_count;
    uint64_t child_allowance;
};

static bool take_bit(_Atomic uint64_t *bits, size_t i)
{
    uint64_t bit = UINT64_C(1) << (i % 64);

    return !(atomic_fetch_or(&bits[i / 64], bit) & bit);
}

static void clear_bit(_Atomic uint64_t *bits, size_t i)
{
    atomic_fetch_and(&bits[i / 64], ~(UINT64_C(1) << (i % 64)));
}

static bool get_bit(const _Atomic uint64_t *bits, size_t i)
{
    return atomic_load_explicit(&bits[i / 64], memory_order_relaxed) >> (i % 64) & 1;
}

static void set_bit(_Atomic uint64_t *bits, size_t i)
{
    if (!get_bit(bits, i))
        atomic_fetch_or_explicit(&bits[i / 64], UINT64_C(1) << (i % 64), memory_order_relaxed);
}

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
    struct ledger *ledger;
    int root_fd;
    uint64_t allowance; /* bytes, of this run */
    uint64_t used;
    unsigned batch_files;
    uint64_t batch_bytes;
    uint64_t reads, reads_ns; /* total of reads when last seen, and when it last grew */
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

/* After each batch: continue? */
static void judge(struct child *c)
{
    uint64_t reads = cold_reads(c->session), now = now_ns();

    if (reads != c->reads) {
        c->reads = reads;
        c->reads_ns = now;
    }
    if (c->used > c->allowance)
        end_with(c, HELPER_FULL);
    else if (now - c->reads_ns > QUIET_NS ||
             atomic_load(&c->ledger->files) > reads * POPULATE_RATIO)
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
    atomic_fetch_add_explicit(&c->ledger->files, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->ledger->bytes, size, memory_order_relaxed);
    c->used += size + INODE_BYTES;
    c->batch_bytes += size;
    if (++c->batch_files >= BATCH_FILES || c->batch_bytes >= BATCH_BYTES) {
        ssize_t n = pread(fd, &last, 1, (off_t)size - 1);
        (void)n; /* a reader will get the error itself */
        c->batch_files = 0;
        c->batch_bytes = 0;
        judge(c);
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
    if (!get_bit(c->ledger->listed, from >> CHUNK_BITS))
        list_range(c, fd, first, from, to);
    for (uint32_t i = from; i < to && !c->stop; i++)
        if (is_wanted(c, i, &size))
            populate_file(c, fd, size);
    close(fd);
}

static void populate_chunk(struct child *c, size_t chunk)
{
    const struct index *index = c->session->index;
    uint32_t entries = index_info(index)->entries, i = (uint32_t)(chunk << CHUNK_BITS);
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
        clear_bit(c->ledger->taken, chunk);
}

static bool chunk_is_wanted(const struct ledger *l, size_t chunk)
{
    if (get_bit(l->taken, chunk))
        return false;
    for (size_t i = 0; i <= CHUNKS_AHEAD && i <= chunk; i++)
        if (get_bit(l->touched, chunk - i))
            return true;
    return false;
}

/* One pass over all chunks. True if there was anything to do. */
static bool populate_once(struct child *c)
{
    bool any = false;

    for (size_t i = 0; i < c->ledger->chunks && !c->stop; i++) {
        if (!chunk_is_wanted(c->ledger, i) || !take_bit(c->ledger->taken, i))
            continue;
        any = true;
        populate_chunk(c, i);
    }
    return any;
}

static bool is_complete(const struct ledger *l)
{
    for (size_t i = 0; i < l->chunks; i++)
        if (!get_bit(l->taken, i))
            return false;
    return true;
}

static enum helper_outcome populate_work(void *arg, int root_fd)
{
    static struct child c; /* each process has its own copy */
    const struct populate *p = arg;

    c = (struct child){.session = p->session,
                       .ledger = p->ledger,
                       .root_fd = root_fd,
                       .allowance = p->child_allowance,
                       .reads = cold_reads(p->session),
                       .reads_ns = now_ns()};
    while (!c.stop && populate_once(&c))
        ;
    if (!c.stop)
        c.outcome = is_complete(p->ledger) ? HELPER_DONE : HELPER_PAUSED;
    return c.outcome;
}

/* ---- the thread that runs the children ---- */

static void sleep_until_wanted(struct populate *p, uint64_t more)
{
    atomic_store(&p->wanted, cold_reads(p->session) + more);
    atomic_store(&p->asleep, 1);
    while (atomic_load(&p->asleep) && !atomic_load(&p->session->ended))
        futex_wait(&p->asleep, 1, FUTEX_OF_PROCESS, NULL);
}

/* How many bytes may be brought in now. */
static uint64_t allowance_of(const struct populate *p)
{
    uint64_t used = atomic_load(&p->ledger->bytes), room = budget_room_bytes("") / ROOM_SHARE;
    uint64_t left = p->most_bytes > used ? p->most_bytes - used : 0;

    return room < ROOM_LEAST ? 0 : left < room ? left : room;
}

static unsigned least_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* True if there may be more to do later. */
static bool run_children(struct populate *p, uint64_t allowance)
{
    bool more = false;

    p->child_count = least_of(p->session->running_max, HELPERS_POPULATE);
    p->child_allowance = allowance / p->child_count;
    for (unsigned i = 0; i < p->child_count; i++)
        helper_start(p->session, i, populate_work, p);
    for (unsigned i = 0; i < p->child_count; i++) {
        enum helper_outcome outcome = helper_await(p->session, i);
        more |= outcome == HELPER_PAUSED || outcome == HELPER_FULL;
    }
    return more;
}

static void *populate_thread(void *arg)
{
    struct populate *p = arg;
    uint64_t files = index_info(p->session->index)->files, allowance;
    uint64_t more = files / READS_SHARE > READS_FIRST ? files / READS_SHARE : READS_FIRST;

    for (;;) {
        sleep_until_wanted(p, more);
        if (!source_is_local(p->session->config.pot->source) &&
            !atomic_load(&p->session->ended)) {
            more = READS_FIRST; /* a copy is in progress: the rest is still far away */
            continue;
        }
        allowance = allowance_of(p);
        if (atomic_load(&p->session->ended) || !allowance || !run_children(p, allowance))
            return NULL;
        more = READS_AGAIN;
    }
}

/* ---- reports from workers, on the path of a request ---- */

/*
 * While a stream is unpacked, population would keep as many requests waiting as the kernel
 * allows.
 */
static bool is_unpacking(const struct session *s)
{
    return s->config.stage && stage_stream_progress_ns(s->config.stage) != 0;
}

void populate_note_read(struct worker *w, uint32_t position)
{
    struct populate *p = w->session->populate;

    if (!p)
        return;
    set_bit(p->ledger->touched, position >> CHUNK_BITS);
    if (++w->reads_noted % READS_AGAIN == 0 &&
        atomic_load_explicit(&p->asleep, memory_order_relaxed) &&
        cold_reads(w->session) >= atomic_load_explicit(&p->wanted, memory_order_relaxed) &&
        !is_unpacking(w->session) && atomic_exchange(&p->asleep, 0))
        futex_wake(&p->asleep, 1, FUTEX_OF_PROCESS);
}

void populate_note_listing(const struct session *s, uint32_t from, uint32_t to)
{
    if (!s->populate)
        return;
    for (uint32_t i = from | (CHUNK_ENTRIES - 1); i < to; i += CHUNK_ENTRIES)
        set_bit(s->populate->ledger->listed, i >> CHUNK_BITS);
}

/* ---- start and end ---- */

static int make_ledger(struct populate *p)
{
    size_t chunks = (index_info(p->session->index)->entries >> CHUNK_BITS) + 1;
    size_t words = (chunks + 63) / 64;
    struct ledger *l;

    p->ledger_bytes = sizeof(*l) + 3 * words * sizeof(uint64_t);
    l = mmap(NULL, p->ledger_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l == MAP_FAILED)
        return -errno;
    l->chunks = chunks;
    l->touched = (void *)(l + 1);
    l->listed = l->touched + words;
    l->taken = l->listed + words;
    p->ledger = l;
    return 0;
}

static void populate_free(struct populate *p)
{
    if (p->ledger)
        munmap(p->ledger, p->ledger_bytes);
    free(p);
}

int populate_start(struct session *s)
{
    const struct session_config *config = &s->config;
    pthread_attr_t attr;
    struct populate *p;
    int r;

    if (!config->readahead_bytes || !config->mountpoint || config->order ||
        !(config->stage || source_is_local(config->pot->source)) ||
        index_info(s->index)->files < 2 * READS_FIRST)
        return 0;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->session = s;
    p->most_bytes = config->readahead_bytes;
    r = make_ledger(p);
    if (r < 0) {
        populate_free(p);
        return r;
    }
    s->populate = p;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    r = -pthread_create(&p->thread, &attr, populate_thread, p);
    pthread_attr_destroy(&attr);
    p->started = r == 0;
    return r;
}

void populate_end(struct session *s)
{
    struct populate *p = s->populate;

    if (!p)
        return;
    atomic_store(&p->asleep, 0);
    futex_wake(&p->asleep, 1, FUTEX_OF_PROCESS);
}

int populate_join(struct session *s, const struct timespec *until)
{
    struct populate *p = s->populate;

    return p && p->started ? thread_join_until(p->thread, until) : 0;
}

void populate_release(struct session *s)
{
    if (s->populate)
        populate_free(s->populate);
    s->populate = NULL;
}
