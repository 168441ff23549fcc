/*
 * The pipeline is one list, in the order of the archive.
 *
 * The list has items (members, and pieces of large files) that are being read or ready to be
 * written. Between them are cursors: places where more items will come from, namely the names
 * of a folder that were not taken yet, and the rest of a large file.
 *
 *     [a/] [a/1] [a/2] (rest of a/) [b/] (names of b/) [c] (rest of the root)
 *      ready  busy         ^                      ^
 *      first of the list   next item comes from here, or if that is empty from here
 *
 * A thread takes the next item from the first cursor that has one, reads it without a lock, and
 * marks it ready. If the item is a directory or a large file, a cursor for it is put right
 * behind it. So the order is fixed whichever thread does the work, and directories are listed
 * ahead of being packed. A thread that finds the first item ready writes it, and all ready
 * items behind it, while the others read on. No thread waits for another unless there is
 * nothing to do, and with one thread there are no hand-overs at all.
 *
 * Memory: when too much is in flight, only the first in the list is taken, which the writer
 * needs; everything in flight before it will be written.
 */
#include "pipeline_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "clock.h"
#include "gather.h"
#include "links.h"

/* Limits on what is in flight: enough that no thread waits for one slow file. */
#define FLIGHT_ITEMS_PER_THREAD 128u
#define FLIGHT_BYTES_PER_THREAD ((size_t)GATHER_PIECE_BYTES)
#define FLIGHT_BYTES_MIN ((size_t)8 << 20)

/*
 * If the caller does not give a number, a few threads start. When more than half of a sample of
 * reads put their thread to sleep, for longer than a local disk takes, the number doubles, and
 * so on: a parallel filesystem needs many threads, but where nothing sleeps more threads would
 * only be in each other's way. A read that is slow because the CPUs are busy does not count:
 * the kernel knows the difference.
 */
#define THREADS_FIRST 4u
#define THREADS_LAST 128u
#define READS_A_SAMPLE 4u
#define SAMPLES 16u
#define SLOW_READ_NS UINT64_C(200000)

/* ---- the list ---- */

static struct item *new_item(enum kind kind)
{
    struct item *item = calloc(1, sizeof(*item));
    if (item) {
        item->kind = kind;
        item->folder_fd = item->source_fd = item->gathered.fd = -1;
    }
    return item;
}

static bool is_cursor(const struct item *item)
{
    return item->kind == CURSOR_FOLDER || item->kind == CURSOR_STREAM;
}

/* Puts an item before another one (NULL: at the end). */
static void insert_before(struct pipeline *p, struct item *item, struct item *place)
{
    item->after = place;
    item->before = place ? place->before : p->last;
    *(item->before ? &item->before->after : &p->first) = item;
    *(place ? &place->before : &p->last) = item;
}

static void remove_item(struct pipeline *p, struct item *item)
{
    *(item->before ? &item->before->after : &p->first) = item->after;
    *(item->after ? &item->after->before : &p->last) = item->before;
}

static void insert_cursor(struct pipeline *p, struct item *cursor, struct item *place)
{
    insert_before(p, cursor, place);
    struct item *next = place;
    while (next && !is_cursor(next))
        next = next->after;
    struct item *previous = next ? next->cursor_before : NULL;
    if (!next) {
        previous = p->first_cursor;
        while (previous && previous->cursor_after)
            previous = previous->cursor_after;
    }
    cursor->cursor_after = next;
    cursor->cursor_before = previous;
    *(previous ? &previous->cursor_after : &p->first_cursor) = cursor;
    if (next)
        next->cursor_before = cursor;
}

static void unref_stream(struct stream *stream)
{
    if (stream && --stream->refs == 0)
        stream_free(stream);
}

/* The lock is held, and the item is in no list. */
static void free_item(struct pipeline *p, struct item *item)
{
    folder_unref(p->set, item->folder);
    folder_unref(p->set, item->below);
    gather_free(&item->gathered);
    unref_stream(item->stream);
    if (item->source_fd >= 0)
        close(item->source_fd);
    free(item->bytes);
    free(item->problem);
    free(item);
}

static void remove_cursor(struct pipeline *p, struct item *cursor)
{
    *(cursor->cursor_before ? &cursor->cursor_before->cursor_after : &p->first_cursor) =
        cursor->cursor_after;
    if (cursor->cursor_after)
        cursor->cursor_after->cursor_before = cursor->cursor_before;
    remove_item(p, cursor);
    free_item(p, cursor);
}

static int add_folder_cursor(struct pipeline *p, struct folder *folder, struct item *place)
{
    struct item *cursor = new_item(CURSOR_FOLDER);
    if (!cursor)
        return -ENOMEM;
    folder_ref(folder);
    cursor->folder = folder;
    insert_cursor(p, cursor, place);
    return 0;
}

/* Takes the stream. */
static int add_stream_cursor(struct pipeline *p, struct stream *stream, uint32_t shard,
                             struct item *place)
{
    struct item *cursor = new_item(CURSOR_STREAM);
    if (!cursor) {
        stream_free(stream);
        return -ENOMEM;
    }
    stream->refs = 1;
    cursor->stream = stream;
    cursor->shard = shard;
    insert_cursor(p, cursor, place);
    return 0;
}

/* ---- taking work; the lock is held ---- */

static int take_name(struct pipeline *p, struct item *cursor, struct item **ret_item)
{
    struct folder *folder = cursor->folder;
    if (folder->next == folder->listing.count)
        return 0;
    struct item *item = new_item(ITEM_MEMBER);
    if (!item)
        return -ENOMEM;
    size_t number = folder->next++;
    item->name = &folder->listing.names[number];
    item->folder = folder;
    folder_ref(folder);
    item->input = folder->input;
    if (folder == p->sources->root) {
        item->source_fd = p->sources->fds[number];
        item->input = p->sources->inputs[number];
        p->sources->fds[number] = -1;
    } else if (!folder->input) {
        int r = folder_pin(p->set, folder, &item->folder_fd);
        if (r < 0)
            item->folder_fd = r;
    }
    *ret_item = item;
    return 1;
}

static int take_piece(struct item *cursor, struct item **ret_item)
{
    struct item *item = new_item(ITEM_PIECE);
    if (!item)
        return -ENOMEM;
    if (!stream_next(cursor->stream, &item->offset, &item->len, &item->last)) {
        free(item);
        return 0;
    }
    item->stream = cursor->stream;
    item->shard = cursor->shard;
    item->stream->refs++;
    item->flight_bytes = item->len;
    *ret_item = item;
    return 1;
}

/* Is less in flight than the limit, divided by `share`? */
static bool has_room(const struct pipeline *p, unsigned share)
{
    size_t most_bytes = FLIGHT_BYTES_MIN + p->started * FLIGHT_BYTES_PER_THREAD;
    return p->flight_items < p->started * FLIGHT_ITEMS_PER_THREAD / share &&
           p->flight_bytes < most_bytes / share;
}

/* The next item to read, or NULL if there is none now. */
static struct item *take(struct pipeline *p)
{
    while (p->first_cursor) {
        struct item *cursor = p->first_cursor, *item;
        if (!has_room(p, 1) && cursor->before)
            return NULL;
        int r = cursor->kind == CURSOR_FOLDER ? take_name(p, cursor, &item)
                                              : take_piece(cursor, &item);
        if (r < 0)
            p->error = r;
        if (r < 0)
            return NULL;
        if (r > 0) {
            insert_before(p, item, cursor);
            p->flight_items++;
            p->flight_bytes += item->flight_bytes;
            return item;
        }
        remove_cursor(p, cursor);
    }
    return NULL;
}

/* ---- reading; without the lock ---- */

struct gather_from pipeline_place(const struct pipeline *p, const struct item *item,
                                  int folder_fd)
{
    bool source = item->folder == p->sources->root;
    return (struct gather_from){
        .selection = p->selection,
        .input = item->input,
        .folder_fd = folder_fd,
        .opened_fd = -1,
        .name = item->name->name,
        .type = item->name->type,
        .number = item->name->number,
        .root_len = source ? strlen(item->name->name) : item->folder->root_len,
    };
}

static int read_member(const struct pipeline *p, struct item *item)
{
    char *path;
    size_t len;
    int r = folder_path(item->folder, item->name->name, &path, &len);
    if (r < 0)
        return r;
    item->shard = selection_shard(p->selection, path, len);
    if (item->folder_fd < 0 && item->source_fd < 0 && !item->input)
        return gather_nothing(path, item->folder_fd, &item->gathered);
    struct gather_from from = pipeline_place(p, item, item->folder_fd);
    from.opened_fd = item->source_fd;
    item->source_fd = -1;
    return gather_member(&from, path, len, &item->gathered);
}

static int read_item(const struct pipeline *p, struct item *item)
{
    if (item->kind == ITEM_MEMBER)
        return read_member(p, item);
    item->bytes = malloc(item->len);
    if (!item->bytes)
        return -ENOMEM;
    return stream_read(item->stream, item->offset, item->len, item->last, item->bytes,
                       &item->problem);
}

/* ---- what was read; the lock is held ---- */

static int open_below(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    struct folder *folder;
    int fd = g->fd;
    g->fd = -1;
    g->is_folder = false;
    int r = folder_new(p->set, item->folder, item->name->name, strlen(item->name->name), fd,
                       g->dev, g->ino, &g->listing, &folder);
    if (r < 0)
        return r;
    folder->input = item->input;
    folder->root_len =
        item->folder == p->sources->root ? strlen(item->name->name) : item->folder->root_len;
    item->below = folder;
    return add_folder_cursor(p, folder, item->after);
}

/* The archive that is being written must not become a member of itself. */
static int leave_out_output(struct gathered *g)
{
    g->skip = true;
    g->again = false;
    stream_free(g->stream);
    g->stream = NULL;
    free(g->problem);
    g->problem = NULL;
    g->note = calloc(1, sizeof(*g->note));
    if (!g->note)
        return -ENOMEM;
    fault_set(g->note, -EINVAL, g->path, FAULT_NO_OFFSET,
              "left out: it is the archive that is being written");
    return 0;
}

/* Queues what a member leads to. */
int pipeline_follow_up(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    int r = 0;
    if (S_ISREG(g->member.mode) && !g->skip && !item->input &&
        shard_set_is_output(p->shards, g->dev, g->ino))
        r = leave_out_output(g);
    if (r == 0 && g->is_folder && !g->skip)
        r = open_below(p, item);
    if (r == 0 && g->stream && !g->skip) {
        r = add_stream_cursor(p, g->stream, item->shard, item->after);
        g->stream = NULL;
    }
    return r;
}

static void finish_reading(struct pipeline *p, struct item *item, int r)
{
    if (item->kind == ITEM_MEMBER) {
        if (item->folder_fd >= 0)
            folder_unpin(p->set, item->folder);
        if (r == 0)
            r = pipeline_follow_up(p, item);
        if (item->gathered.data)
            item->flight_bytes = (size_t)item->gathered.member.size_bytes;
        p->flight_bytes += item->flight_bytes;
    }
    if (r < 0 && !p->error)
        p->error = r;
    item->ready = true;
}

/* ---- threads ---- */

static bool stopped(const struct pipeline *p)
{
    const _Atomic int *stop = p->options->stop;
    return stop && atomic_load_explicit(stop, memory_order_relaxed);
}

static bool may_write(const struct pipeline *p)
{
    return !p->error && !p->writing && p->first && p->first->ready;
}

/* Writes the ready items at the front of the list. The lock is held, but released meanwhile. */
static void drain(struct pipeline *p)
{
    bool wrote = false;
    while (may_write(p)) {
        struct item *item = p->first;
        p->writing = wrote = true;
        pthread_mutex_unlock(&p->lock);
        int r = pipeline_write(p, item);
        pthread_mutex_lock(&p->lock);
        p->writing = false;
        p->flight_items--;
        p->flight_bytes -= item->flight_bytes;
        remove_item(p, item);
        free_item(p, item);
        if (r < 0)
            p->error = r;
    }
    if (wrote && p->waiting && (has_room(p, 2) || p->error || !p->first || is_cursor(p->first)))
        pthread_cond_broadcast(&p->wake);
}

static void *run_thread(void *arg);

static void start_threads(struct pipeline *p, unsigned count)
{
    while (p->started < count &&
           pthread_create(&p->threads[p->started], NULL, run_thread, p) == 0)
        p->started++;
}

/* A time, and how often this thread had slept by then. */
struct moment {
    uint64_t ns;
    long sleeps;
};

static struct moment now(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (struct moment){now_ns(), usage.ru_nvcsw};
}

/*
 * Counts one more read, from `start` to `end`, and decides on more threads. The lock is held.
 */
static void judge_read(struct pipeline *p, const struct moment *start, const struct moment *end)
{
    p->slow += end->sleeps != start->sleeps && end->ns - start->ns >= SLOW_READ_NS;
    if (++p->samples < SAMPLES)
        return;
    if (p->slow > SAMPLES / 2 && !p->error)
        start_threads(p, p->started * 2 < p->most_threads ? p->started * 2 : p->most_threads);
    p->samples = p->slow = 0;
}

/* Takes, reads and hands on one item. The lock is held, but released while reading. */
static bool work(struct pipeline *p)
{
    struct item *item = take(p);
    if (!item)
        return false;
    bool judged = p->started < p->most_threads && p->reads++ % READS_A_SAMPLE == 0;
    pthread_mutex_unlock(&p->lock);
    struct moment start = {0}, end = {0};
    if (judged)
        start = now();
    int r = read_item(p, item);
    if (judged)
        end = now();
    pthread_mutex_lock(&p->lock);
    if (judged)
        judge_read(p, &start, &end);
    const struct item *cursor = p->first_cursor;
    finish_reading(p, item, r);
    bool more = p->first_cursor != cursor || (item->after && is_cursor(item->after));
    if (p->waiting && (p->error || more))
        pthread_cond_broadcast(&p->wake);
    return true;
}

static void *run_thread(void *arg)
{
    struct pipeline *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->error) {
        if (stopped(p)) {
            p->error = -EINTR;
            break;
        }
        drain(p);
        if (p->error || work(p) || may_write(p))
            continue;
        if (!p->first)
            break;
        p->waiting++;
        pthread_cond_wait(&p->wake, &p->lock);
        p->waiting--;
    }
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/*
 * When the caller's own thread has finished, no item is left that could start another thread.
 */
static void run_threads(struct pipeline *p, unsigned first)
{
    pthread_mutex_lock(&p->lock);
    p->started = 1;
    start_threads(p, first);
    pthread_mutex_unlock(&p->lock);
    run_thread(p);
    for (unsigned i = 1; i < p->started; i++)
        pthread_join(p->threads[i], NULL);
}

static void free_list(struct pipeline *p)
{
    while (p->first) {
        struct item *item = p->first;
        remove_item(p, item);
        free_item(p, item);
    }
    p->first_cursor = NULL;
}

int pipeline_run(const struct pack_options *options, const struct pipeline_sources *sources,
                 const struct selection *selection, struct shard_set *shards,
                 struct folder_set *set, unsigned max_threads, struct pack_result *result,
                 struct fault *fault)
{
    uint32_t count = selection->shards > 1 ? selection->shards : 1;
    struct pipeline p = {.options = options,
                         .sources = sources,
                         .selection = selection,
                         .shards = shards,
                         .set = set,
                         .links = calloc(count, sizeof(struct links)),
                         .result = result,
                         .fault = fault};
    if (!p.links)
        return -ENOMEM;
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.wake, NULL);
    atomic_store(&p.progress.bytes_total, sources->total_bytes);
    atomic_store(&p.progress.members_total, sources->total_members);
    p.error = add_folder_cursor(&p, sources->root, NULL);
    unsigned first = options->threads ? options->threads : THREADS_FIRST;
    unsigned last = options->threads ? options->threads : THREADS_LAST;
    p.most_threads = last < max_threads ? last : max_threads;
    run_threads(&p, first < max_threads ? first : max_threads);
    free_list(&p);
    for (uint32_t i = 0; i < count; i++)
        links_free(&p.links[i]);
    free(p.links);
    pthread_cond_destroy(&p.wake);
    pthread_mutex_destroy(&p.lock);
    return p.error;
}
