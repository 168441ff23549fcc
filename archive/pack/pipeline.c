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
#include "pipeline.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checksum.h"
#include "cleanup.h"
#include "clock.h"
#include "count.h"
#include "cpus.h"
#include "folder.h"
#include "gather.h"
#include "map.h"
#include "numbers.h"
#include "path.h"
#include "shard_exchange.h"
#include "thread.h"

/*
 * Folders: sorted listings, and descriptors within a budget.
 */

/* ---- listings ---- */

int listing_maker_add(struct listing_maker *m, const char *name, size_t len, unsigned char type,
                      uint32_t number)
{
    struct folder_name entry = {.type = type, .number = number};
    if (vector_reserve(&m->text, len + 1) < 0 || vector_push(&m->names, entry) < 0)
        return -ENOMEM;
    (void)vector_append(&m->text, name, len);
    return vector_push(&m->text, '\0');
}

static int listing_compare(const void *a, const void *b)
{
    const struct folder_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

void listing_maker_finish(struct listing_maker *m, struct listing *ret_listing)
{
    bool sorted = true;
    struct folder_name *names = m->names.at;
    char *text = m->text.at;
    for (size_t i = 0; i < m->names.count; i++) {
        names[i].name = text;
        text += strlen(text) + 1;
        sorted = sorted && (i == 0 || listing_compare(&names[i - 1], &names[i]) < 0);
    }
    if (!sorted)
        qsort(names, m->names.count, sizeof(*names), listing_compare);
    *ret_listing =
        (struct listing){.text = m->text.at, .names = names, .count = m->names.count};
    *m = (struct listing_maker){0};
}

void listing_maker_free(struct listing_maker *m)
{
    vector_free(&m->text);
    vector_free(&m->names);
}

int listing_read(int fd, struct listing *listing)
{
    *listing = (struct listing){0};
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    if (!dir) {
        int r = -errno;
        if (own >= 0)
            close(own);
        return r;
    }
    struct listing_maker maker = {0};
    const struct dirent *d;
    int r = 0;
    while (r == 0 && (errno = 0, d = readdir(dir)))
        if (!path_is_dots(d->d_name))
            r = listing_maker_add(&maker, d->d_name, strlen(d->d_name), d->d_type,
                                  FOLDER_NAME_ALL);
    if (r == 0)
        r = -errno;
    closedir(dir);
    listing_maker_finish(&maker, listing);
    return r;
}

void listing_free(struct listing *listing)
{
    free(listing->text);
    free(listing->names);
    *listing = (struct listing){0};
}

/* ---- descriptors ---- */

static void folder_link(struct folder_set *set, struct folder *f)
{
    f->older = set->newest;
    f->newer = NULL;
    *(f->older ? &f->older->newer : &set->oldest) = f;
    set->newest = f;
    set->open++;
}

static void folder_unlink(struct folder_set *set, struct folder *f)
{
    *(f->older ? &f->older->newer : &set->oldest) = f->newer;
    *(f->newer ? &f->newer->older : &set->newest) = f->older;
    set->open--;
}

/* Closes the oldest folders first: they are nearest to the root and needed last. */
static void folder_close_surplus(struct folder_set *set)
{
    struct folder *f = set->oldest;
    while (f && set->open > set->most) {
        struct folder *newer = f->newer;
        if (f->pins == 0) {
            folder_unlink(set, f);
            close(f->fd);
            f->fd = -1;
        }
        f = newer;
    }
}

/* A root, or a folder right below a folder without a descriptor, can't be opened again. */
static bool folder_is_root(const struct folder *f)
{
    return !f->parent || (!f->parent->parent && f->parent->fd < 0);
}

/* Counts the folder, just opened, among the open ones, and closes others if need be. */
static void folder_opened(struct folder_set *set, struct folder *f)
{
    folder_link(set, f);
    f->pins++;
    folder_close_surplus(set);
    f->pins--;
}

int folder_new(struct folder_set *set, struct folder *parent, const char *name, size_t name_len,
               int fd, struct file_id id, struct listing *listing, struct folder **ret_folder)
{
    struct folder *f = malloc(sizeof(*f) + name_len + 1);
    if (!f) {
        listing_free(listing);
        if (fd >= 0)
            close(fd);
        return -ENOMEM;
    }
    *f = (struct folder){.parent = parent,
                         .listing = *listing,
                         .refs = 1,
                         .fd = fd,
                         .id = id,
                         .name_len = name_len};
    *listing = (struct listing){0};
    memcpy(f->name, name, name_len);
    f->name[name_len] = '\0';
    if (parent)
        parent->refs++;
    if (fd >= 0 && !folder_is_root(f))
        folder_opened(set, f);
    *ret_folder = f;
    return 0;
}

static void folder_ref(struct folder *f)
{
    f->refs++;
}

static void folder_free_pending(struct pending_folder *pending);

void folder_unref(struct folder_set *set, struct folder *f)
{
    while (f && --f->refs == 0) {
        struct folder *parent = f->parent;
        if (f->fd >= 0) {
            if (!folder_is_root(f))
                folder_unlink(set, f);
            close(f->fd);
        }
        listing_free(&f->listing);
        folder_free_pending(f->pending);
        free(f);
        f = parent;
    }
}

/* Opens a folder whose parent is open. */
static int folder_reopen_in(const struct folder_set *set, int parent_fd, struct folder *f)
{
    auto_close int fd =
        openat(parent_fd, f->name,
               O_RDONLY | O_DIRECTORY | O_CLOEXEC | (set->follows ? 0 : O_NOFOLLOW));
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!file_id_equal(file_id_of(&st), f->id))
        return -ESTALE;
    f->fd = steal_fd(&fd);
    return 0;
}

/*
 * Goes down from the nearest open ancestor. Each step opens the highest closed folder, so this
 * is a loop and needs no memory, however deep the tree is.
 */
static int folder_reopen(struct folder_set *set, struct folder *folder)
{
    while (folder->fd < 0) {
        struct folder *f = folder;
        while (f->parent && f->parent->fd < 0)
            f = f->parent;
        if (!f->parent)
            return -ESTALE;
        int r = folder_reopen_in(set, f->parent->fd, f);
        if (r < 0)
            return r;
        folder_opened(set, f);
    }
    return 0;
}

/* The folder's descriptor, open until folder_unpin. -ESTALE, or errors of openat. */
static int folder_pin(struct folder_set *set, struct folder *f, int *ret_fd)
{
    int r = folder_reopen(set, f);
    if (r < 0)
        return r;
    f->pins++;
    *ret_fd = f->fd;
    return 0;
}

static void folder_unpin(struct folder_set *set, struct folder *f)
{
    f->pins--;
    folder_close_surplus(set);
}

/* ---- paths ---- */

int folder_path(const struct folder *folder, const char *name, char **ret_path, size_t *ret_len)
{
    size_t name_len = strlen(name), len = name_len;
    for (const struct folder *f = folder; f; f = f->parent)
        len += f->name_len ? f->name_len + 1 : 0;
    char *path = malloc(len + 1);
    if (!path)
        return -ENOMEM;
    char *end = path + len;
    *end = '\0';
    end -= name_len;
    memcpy(end, name, name_len);
    for (const struct folder *f = folder; f; f = f->parent) {
        if (!f->name_len)
            continue;
        *--end = '/';
        end -= f->name_len;
        memcpy(end, f->name, f->name_len);
    }
    *ret_path = path;
    *ret_len = len;
    return 0;
}

/*
 * Shards: one writer each, and directories that wait for members in them.
 *
 * When a directory comes, it is not known which shards will need it. So it is kept as long as
 * members below it may come, and written right before the first of them in each shard. This
 * keeps the members of a shard in the order that they would have in one archive.
 */

struct shard {
    struct writer *writer; /* NULL: the shard is another process's, or complete */
    struct output *output; /* NULL: the shard is another process's */
    char *path;
};

struct shard_set {
    const struct pack_options *options;
    const struct selection *selection;
    char letters[PARTIAL_LETTER_COUNT + 1];
    uint32_t count;
    uint64_t offset; /* bytes written or queued, in all archives */
    struct shard shard[];
};

/* A directory, and the shards that have it already (one bit each). */
struct pending_folder {
    struct gathered gathered;
    uint8_t written[];
};

/* ---- all together ---- */

/* With several shards the fault must name the shard. */
static int shard_set_name_fault(const struct shard_set *s, uint32_t i, int err,
                                struct fault *fault)
{
    if (err >= 0 || s->count == 1 || !fault || fault->member[0])
        return err;
    fault_set(fault, err, NULL, FAULT_NO_OFFSET, "%s", fault_errno(err));
    strncpy(fault->member, s->shard[i].path, sizeof(fault->member) - 1);
    return err;
}

/* A waiting shard must be able to take this name by a rename. */
static int shard_set_check_path(const char *path, struct fault *fault)
{
    struct stat st;
    if (strlen(path_base(path)) > NAME_MAX - PARTIAL_EXTRA_LEN)
        return fault_set(fault, -ENAMETOOLONG, NULL, FAULT_NO_OFFSET, "name is too long");
    if (lstat(path, &st) < 0 || !S_ISLNK(st.st_mode))
        return 0;
    fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET, "is a symbolic link, which no shard is");
    fault_advise(fault, "remove it, or name another place with -o");
    return -EEXIST;
}

static int shard_set_open_one(struct shard_set *s, uint32_t i, struct compress_pool *pool,
                              struct fault *fault)
{
    const struct pack_options *o = s->options;
    struct shard *shard = &s->shard[i];
    struct writer_options how = o->writer;
    how.pool = pool;
    int r = 0;
    if (s->selection->outputs)
        r = shard_name(s->selection->outputs, i, &shard->path);
    else if (!(shard->path = strdup(o->output)))
        r = -ENOMEM;
    if (r < 0)
        return r;
    r = s->selection->outputs ? shard_set_check_path(shard->path, fault) : 0;
    if (r == 0)
        r = output_open(shard->path, o->overwrite, o->stripes, fault, &shard->output);
    if (r == 0)
        r = writer_new(shard->output, &how, &shard->writer);
    return shard_set_name_fault(s, i, r, fault);
}

int shard_set_open(const struct pack_options *options, const char *letters,
                   const struct selection *selection, struct compress_pool *pool,
                   struct fault *fault, struct shard_set **ret_shards)
{
    uint32_t count = selection->shards > 1 ? selection->shards : 1;
    struct shard_set *s = calloc(1, sizeof(*s) + count * sizeof(s->shard[0]));
    if (!s)
        return -ENOMEM;
    s->options = options;
    s->selection = selection;
    s->count = count;
    strncpy(s->letters, letters, PARTIAL_LETTER_COUNT);
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < count; i++)
        if (selection_has(selection, i))
            r = shard_set_open_one(s, i, pool, fault);
    if (r < 0)
        shard_set_discard(s);
    else
        *ret_shards = s;
    return r;
}

void shard_set_discard(struct shard_set *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->count; i++) {
        writer_discard(s->shard[i].writer);
        output_discard(s->shard[i].output);
        free(s->shard[i].path);
    }
    free(s);
}

/* A file in the shard differs from its source, and a later run must not take it from there. */
static void shard_set_distrust(struct shard_set *s, uint32_t shard)
{
    s->shard[shard].output->begun_sec = 0;
}

static bool shard_set_report_lost(const struct shard_set *s, const struct shard *shard, int err)
{
    struct fault fault = {0};
    fault_set(&fault, err, shard->path, FAULT_NO_OFFSET, "not kept: %s",
              err == -ENODATA ? "a file in it could not be packed as it is, see above"
                              : fault_errno(err));
    if (s->options->report)
        s->options->report(s->options->ctx, PACK_NOTE, &fault);
    return false;
}

static bool shard_set_keep_one(const struct shard_set *s, struct shard *shard)
{
    struct writer_totals totals = {0};
    const bool is_ready = !shard->writer, is_trusted = shard->output->begun_sec;
    if (!is_trusted)
        shard_set_report_lost(s, shard, -ENODATA);
    if (is_ready && (is_trusted || s->selection->world > 1)) { /* other ranks may count on it */
        output_keep(shard->output);
        shard->output = NULL;
        return is_trusted;
    }
    if (is_ready || !is_trusted)
        return false;
    int r = writer_finish(steal_ptr(&shard->writer), NULL, &totals);
    if (r == 0 && totals.files) {
        r = output_keep(shard->output);
        shard->output = NULL;
    }
    return r < 0 ? shard_set_report_lost(s, shard, r) : totals.files;
}

bool shard_set_keep(struct shard_set *s)
{
    bool keeps = false;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->shard[i].output)
            keeps |= shard_set_keep_one(s, &s->shard[i]);
    return keeps;
}

/* Is this an archive being written, one that will be replaced, or one that was kept? */
static bool shard_set_is_output(const struct shard_set *s, struct file_id id)
{
    for (size_t i = 0; i < s->options->kept_count; i++)
        if (file_id_equal(s->options->kept_ids[i], id))
            return true;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->shard[i].output && (file_id_equal(id, s->shard[i].output->id) ||
                                   file_id_equal(id, s->shard[i].output->replaced)))
            return true;
    return false;
}

static void shard_set_add_totals(struct writer_totals *sum, const struct writer_totals *t)
{
    sum->files += t->files;
    sum->data_bytes += t->data_bytes;
    sum->file_bytes += t->file_bytes;
}

static bool shard_set_is_stopped(const struct shard_set *s)
{
    return s->options->stop && atomic_load(s->options->stop);
}

/* Completes the archives. From here on shards wait for each other. */
static int shard_set_finish(struct shard_set *s, struct fault *fault, struct writer_totals *sum)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        struct shard *shard = &s->shard[i];
        struct writer_totals totals;
        if (!shard->writer)
            continue;
        if (shard_set_is_stopped(s))
            return -EINTR;
        r = writer_finish(steal_ptr(&shard->writer), fault, &totals);
        if (r == 0 && s->selection->outputs)
            r = output_ready(shard->output, s->letters, !s->options->no_sync, fault);
        if (r < 0)
            shard_set_name_fault(s, i, r, fault);
        else
            shard_set_add_totals(sum, &totals);
    }
    return r;
}

/* Ends the work on complete shards. With `keep` they stay under their present names. */
static void shard_set_end(struct shard_set *s, bool keep)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct output *output = steal_ptr(&s->shard[i].output);
        if (keep && output)
            output_keep(output);
        else
            output_discard(output);
    }
}

static int shard_set_exchange(struct shard_set *s, struct fault *fault)
{
    struct shard_exchange x;
    const struct pack_options *o = s->options;
    bool alone = s->selection->world <= 1;
    int r = shard_exchange_begin(s->selection->outputs, o->overwrite, o->stop, fault, &x);
    if (r == -EINTR && o->resume)
        return r;
    if (r < 0) {
        shard_set_end(s, !alone); /* without the lock: others may count on ready shards */
        return r;
    }
    r = shard_set_is_stopped(s)
            ? -EINTR
            : shard_exchange_run(&x, s->letters, o->overwrite, !o->no_sync, fault);
    if (r == 0 && alone)
        r = fault_set(fault, -EBUSY, NULL, FAULT_NO_OFFSET,
                      "somebody else removed or replaced what was ready of it");
    if (r != -EINTR || !o->resume)
        shard_set_end(s, r >= 0 || x.committed); /* while the set is locked */
    shard_exchange_end(&x);
    return r;
}

int shard_set_close(struct shard_set *s, struct fault *fault, struct writer_totals *ret_totals)
{
    struct writer_totals sum = {0};
    int r = shard_set_finish(s, fault, &sum);
    if (r == 0 && s->selection->outputs) {
        r = shard_set_exchange(s, fault);
    } else if (r == 0) {
        r = output_commit(steal_ptr(&s->shard[0].output), !s->options->no_sync, fault);
        r = r < 0 ? r : 1;
    }
    if (r >= 0)
        *ret_totals = sum;
    return r;
}

/* ---- members ---- */

static int shard_set_put(struct shard_set *s, uint32_t shard,
                         const struct builder_member *member, struct pax_buffer *header,
                         struct fault *fault)
{
    struct writer *w = s->shard[shard].writer;
    s->offset -= writer_offset(w);
    int r = writer_add(w, member, header, fault);
    s->offset += writer_offset(w);
    return shard_set_name_fault(s, shard, r, fault);
}

static int shard_set_put_pending(struct shard_set *s, uint32_t shard,
                                 struct pending_folder *pending, struct fault *fault)
{
    struct pax_buffer *header = &pending->gathered.header;
    struct pax_buffer copy = {0};
    int r = vector_append(&copy, header->at, header->count);
    if (r == 0)
        r = shard_set_put(s, shard, &pending->gathered.member, &copy, fault);
    vector_free(&copy);
    if (r == 0)
        pending->written[shard / 8] |= (uint8_t)(1u << shard % 8);
    return r;
}

static bool shard_set_misses(const struct folder *f, uint32_t shard)
{
    const struct pending_folder *pending = f ? f->pending : NULL;
    return pending && !(pending->written[shard / 8] >> shard % 8 & 1);
}

/* Adds the directories that lead to the folder's members, unless the shard has them. */
static int shard_set_put_missing(struct shard_set *s, uint32_t shard,
                                 const struct folder *folder, struct fault *fault)
{
    int r = 0;
    while (r == 0 && shard_set_misses(folder, shard)) {
        const struct folder *top = folder;
        while (shard_set_misses(top->parent, shard))
            top = top->parent;
        r = shard_set_put_pending(s, shard, top->pending, fault);
    }
    return r;
}

/* As writer_add and writer_data. `folder` is the folder that the member is in. */
static int shard_set_add(struct shard_set *s, uint32_t shard, const struct folder *folder,
                         const struct builder_member *member, struct pax_buffer *header,
                         struct fault *fault)
{
    int r = shard_set_put_missing(s, shard, folder, fault);
    return r < 0 ? r : shard_set_put(s, shard, member, header, fault);
}

static int shard_set_data(struct shard_set *s, uint32_t shard, void *bytes, size_t len,
                          struct fault *fault)
{
    struct writer *w = s->shard[shard].writer;
    s->offset -= writer_offset(w);
    int r = writer_data(w, bytes, len, fault);
    s->offset += writer_offset(w);
    return shard_set_name_fault(s, shard, r, fault);
}

static void folder_free_pending(struct pending_folder *pending)
{
    if (pending)
        gather_free(&pending->gathered);
    free(pending);
}

/*
 * Adds a directory that is in `folder`: to its own shard now, to others before the first member
 * in it. For that it waits with `below`, its content (NULL: none), and *g becomes empty.
 */
static int shard_set_add_folder(struct shard_set *s, const struct folder *folder,
                                struct folder *below, struct gathered *g, struct fault *fault)
{
    if (s->count == 1)
        return shard_set_put(s, 0, &g->member, &g->header, fault);
    struct pending_folder *pending = calloc(1, sizeof(*pending) + s->count / 8 + 1);
    if (!pending)
        return -ENOMEM;
    pending->gathered = *g;
    *g = (struct gathered){.fd = -1};

    uint32_t own = selection_shard(s->selection, pending->gathered.member.path,
                                   pending->gathered.member.path_len);
    bool root = pending->gathered.member.path_len == 0;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        if (!s->shard[i].writer || (i != own && !root))
            continue;
        r = shard_set_put_missing(s, i, folder, fault);
        if (r == 0)
            r = shard_set_put_pending(s, i, pending, fault);
    }
    if (r == 0 && below) {
        below->pending = pending;
    } else {
        folder_free_pending(pending);
    }
    return r;
}

/* Limits on work in flight: enough that no thread waits for one slow file. */
#define FLIGHT_ITEMS_PER_THREAD 128u
#define FLIGHT_BYTES_PER_THREAD ((size_t)GATHER_PIECE_BYTES)
#define FLIGHT_BYTES_MIN ((size_t)8 << 20)

/*
 * If the caller does not give a number, one thread per CPU starts, two at least and four at
 * most. When more than half of a sample of reads put their thread to sleep, there become four,
 * which is enough for a local disk; and when they sleep for longer than such a disk takes, the
 * number doubles, and so on: a parallel filesystem needs many threads, but where nothing sleeps
 * more threads would only be in each other's way. A read that is slow because the CPUs are busy
 * does not count: the kernel knows the difference.
 */
#define THREADS_FIRST 2u
#define THREADS_OF_A_DISK 4u
#define THREADS_LAST 128u
#define READS_A_SAMPLE 4u
#define SAMPLES 16u
#define SLOW_READ_NS UINT64_C(200000)

#define THREAD_STACK_BYTES ((size_t)2 << 20)

enum item_kind {
    ITEM_MEMBER,
    ITEM_PIECE,    /* of a large file */
    CURSOR_FOLDER, /* names that were not taken yet */
    CURSOR_STREAM, /* the rest of a large file */
};

struct item {
    enum item_kind kind;
    bool ready; /* can be written */
    struct item *before, *after;
    size_t flight_bytes;

    struct folder
        *folder; /* MEMBER: the folder it is in; CURSOR_FOLDER: the folder of the names */
    struct folder *below;    /* MEMBER: a directory's content, or NULL */
    uint32_t shard;          /* the shard it goes to */
    struct gather_from from; /* MEMBER: `folder_fd` is pinned, or -errno */
    struct gathered gathered;

    struct stream *stream; /* PIECE, CURSOR_STREAM; MEMBER whose data come in pieces */
    uint64_t offset;
    size_t len;
    bool last;
    uint8_t *bytes;
    struct fault *problem;
};

struct pipeline {
    const struct pack_options *options;
    const struct pipeline_sources *sources;
    const struct selection *selection;
    struct shard_set *shards;
    struct folder_set *set;

    pthread_mutex_t lock; /* for all below, and for folders and cursors */
    pthread_cond_t wake;
    unsigned waiting;
    int error;
    struct item *first, *last;
    struct item *first_cursor;
    unsigned flight_items;
    size_t flight_bytes;
    bool writing;
    bool in_stream; /* the file that is being written has more pieces */
    pthread_t threads[PACK_THREADS_MAX];
    unsigned started;              /* threads, the caller's included */
    unsigned most_threads;         /* upper limit, if reads turn out to be slow */
    unsigned reads, samples, slow; /* for deciding on more threads */

    /* Used only by the thread that writes. */
    struct map *links; /* for each shard: files with several names, to the first's number */
    VECTOR(char *) first_names;
    uint64_t links_out; /* of the tree; the first one's path: */
    char *first_out;
    uint64_t alike; /* names that are; the first two: */
    char *first_alike[2];
    struct pack_result *result;
    struct fault *fault;
    struct progress progress;
    uint64_t read_bytes; /* of files' data */
    uint64_t reported_offset;
    unsigned silent; /* items since the last progress report */
};

/* ---- the list ---- */

static struct item *pipeline_new_item(enum item_kind kind)
{
    struct item *item = calloc(1, sizeof(*item));
    if (item) {
        item->kind = kind;
        item->from.folder_fd = item->from.opened_fd = item->gathered.fd = -1;
    }
    return item;
}

static bool pipeline_is_cursor(const struct item *item)
{
    return item->kind == CURSOR_FOLDER || item->kind == CURSOR_STREAM;
}

/* Puts an item before another one (NULL: at the end). */
static void pipeline_insert_before(struct pipeline *p, struct item *item, struct item *place)
{
    item->after = place;
    item->before = place ? place->before : p->last;
    *(item->before ? &item->before->after : &p->first) = item;
    *(place ? &place->before : &p->last) = item;
}

static void pipeline_remove_item(struct pipeline *p, struct item *item)
{
    *(item->before ? &item->before->after : &p->first) = item->after;
    *(item->after ? &item->after->before : &p->last) = item->before;
}

/* The first cursor from an item on (may be NULL). */
static struct item *pipeline_next_cursor(struct item *item)
{
    while (item && !pipeline_is_cursor(item))
        item = item->after;
    return item;
}

static void pipeline_insert_cursor(struct pipeline *p, struct item *cursor, struct item *place)
{
    if (pipeline_next_cursor(place) == p->first_cursor)
        p->first_cursor = cursor;
    pipeline_insert_before(p, cursor, place);
}

static void pipeline_unref_stream(struct stream *stream)
{
    if (stream && --stream->refs == 0)
        stream_free(stream);
}

/* The lock is held, and the item is in no list. */
static void pipeline_free_item(struct pipeline *p, struct item *item)
{
    folder_unref(p->set, item->folder);
    folder_unref(p->set, item->below);
    gather_free(&item->gathered);
    pipeline_unref_stream(item->stream);
    if (item->from.opened_fd >= 0)
        close(item->from.opened_fd);
    free(item->bytes);
    free(item->problem);
    free(item);
}

static int pipeline_add_folder_cursor(struct pipeline *p, struct folder *folder,
                                      struct item *place)
{
    struct item *cursor = pipeline_new_item(CURSOR_FOLDER);
    if (!cursor)
        return -ENOMEM;
    folder_ref(folder);
    cursor->folder = folder;
    pipeline_insert_cursor(p, cursor, place);
    return 0;
}

static int pipeline_add_stream_cursor(struct pipeline *p, struct item *member)
{
    struct item *cursor = pipeline_new_item(CURSOR_STREAM);
    if (!cursor)
        return -ENOMEM;
    member->stream = cursor->stream = steal_ptr(&member->gathered.stream);
    cursor->stream->refs = 2;
    cursor->shard = member->shard;
    pipeline_insert_cursor(p, cursor, member->after);
    return 0;
}

/* ---- taking work; the lock is held ---- */

static int pipeline_take_name(struct pipeline *p, struct item *cursor, struct item **ret_item)
{
    struct folder *folder = cursor->folder;
    if (folder->next == folder->listing.count)
        return 0;
    struct item *item = pipeline_new_item(ITEM_MEMBER);
    if (!item)
        return -ENOMEM;
    size_t number = folder->next++;
    const struct folder_name *name = &folder->listing.names[number];
    item->folder = folder;
    folder_ref(folder);
    item->from = (struct gather_from){.selection = p->selection,
                                      .input = folder->input,
                                      .folder_fd = -1,
                                      .opened_fd = -1,
                                      .name = name->name,
                                      .type = name->type,
                                      .number = name->number,
                                      .root_len = folder->root_len,
                                      .is_as_kept = folder->is_as_kept};
    if (folder == p->sources->root) {
        item->from.opened_fd = steal_fd(&p->sources->at[number].fd);
        item->from.input = p->sources->at[number].input;
        item->from.root_len = strlen(name->name);
    } else if (!folder->input) {
        int r = folder_pin(p->set, folder, &item->from.folder_fd);
        if (r < 0)
            item->from.folder_fd = r;
    }
    *ret_item = item;
    return 1;
}

static int pipeline_take_piece(struct item *cursor, struct item **ret_item)
{
    struct item *item = pipeline_new_item(ITEM_PIECE);
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
static bool pipeline_has_room(const struct pipeline *p, unsigned share)
{
    size_t most_bytes = FLIGHT_BYTES_MIN + p->started * FLIGHT_BYTES_PER_THREAD;
    return p->flight_items < p->started * FLIGHT_ITEMS_PER_THREAD / share &&
           p->flight_bytes < most_bytes / share;
}

/* The next item to read, or NULL if there is none now. */
static struct item *pipeline_take(struct pipeline *p)
{
    while (p->first_cursor) {
        struct item *cursor = p->first_cursor, *item;
        if (!pipeline_has_room(p, 1) && cursor->before)
            return NULL;
        int r = cursor->kind == CURSOR_FOLDER ? pipeline_take_name(p, cursor, &item)
                                              : pipeline_take_piece(cursor, &item);
        if (r < 0) {
            p->error = r;
            return NULL;
        }
        if (r > 0) {
            pipeline_insert_before(p, item, cursor);
            p->flight_items++;
            p->flight_bytes += item->flight_bytes;
            return item;
        }
        p->first_cursor = pipeline_next_cursor(cursor->after);
        pipeline_remove_item(p, cursor);
        pipeline_free_item(p, cursor);
    }
    return NULL;
}

/* ---- reading; without the lock ---- */

static int pipeline_read_member(const struct pipeline *p, struct item *item)
{
    char *path;
    size_t len;
    struct gather_from from = item->from;
    int r = folder_path(item->folder, from.name, &path, &len);
    if (r < 0)
        return r;
    if (from.folder_fd < 0 && from.opened_fd < 0 && !from.input)
        return gather_nothing(path, from.folder_fd, &item->gathered);
    item->from.opened_fd = -1;
    r = gather_member(&from, path, len, &item->gathered);
    item->shard = selection_shard(p->selection, item->gathered.member.path,
                                  item->gathered.member.path_len);
    return r;
}

static int pipeline_read_item(const struct pipeline *p, struct item *item)
{
    if (item->kind == ITEM_MEMBER)
        return pipeline_read_member(p, item);
    item->bytes = malloc(item->len);
    if (!item->bytes)
        return -ENOMEM;
    return stream_read(item->stream, item->offset, item->len, item->last, item->bytes,
                       &item->problem);
}

/* ---- what was read; the lock is held ---- */

static int pipeline_open_below(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    struct folder *folder;
    g->is_folder = false;
    int r = folder_new(p->set, item->folder, item->from.name, strlen(item->from.name),
                       steal_fd(&g->fd), g->id, &g->listing, &folder);
    if (r < 0)
        return r;
    folder->input = item->from.input;
    folder->root_len = item->from.root_len;
    folder->is_as_kept = g->is_as_kept;
    item->below = folder;
    return pipeline_add_folder_cursor(p, folder, item->after);
}

/* The archive that is being written must not become a member of itself. */
static int pipeline_leave_out_output(struct gathered *g)
{
    g->skip = true;
    stream_free(g->stream);
    free(g->problem);
    g->stream = NULL;
    g->problem = NULL;
    return gather_fault(&g->note, g->path, -EINVAL,
                        "left out: it is the archive that is being written");
}

/* Does a directory hold itself, as only links can have it? */
static bool pipeline_is_loop(const struct item *item)
{
    const struct folder *f = item->folder;
    while (f && !file_id_equal(f->id, item->gathered.id))
        f = f->parent;
    return f;
}

/* Queues what a member leads to: a directory's names, the rest of a large file. */
static int pipeline_queue_rest(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    int r = 0;
    if (S_ISREG(g->member.mode) && !g->skip && !item->from.input &&
        shard_set_is_output(p->shards, g->id))
        r = pipeline_leave_out_output(g);
    if (p->selection->dereference && g->is_folder && !g->skip && pipeline_is_loop(item))
        r = gather_skip(g, -ELOOP, "left out: it is a link to a directory that holds it");
    if (r == 0 && g->is_folder && !g->skip)
        r = pipeline_open_below(p, item);
    if (r == 0 && g->stream && !g->skip)
        r = pipeline_add_stream_cursor(p, item);
    return r;
}

static void pipeline_finish_reading(struct pipeline *p, struct item *item, int r)
{
    if (item->kind == ITEM_MEMBER) {
        if (item->from.folder_fd >= 0)
            folder_unpin(p->set, item->folder);
        if (r == 0)
            r = pipeline_queue_rest(p, item);
        if (item->gathered.data)
            item->flight_bytes = (size_t)item->gathered.member.size_bytes;
        p->flight_bytes += item->flight_bytes;
    }
    if (r < 0 && !p->error)
        p->error = r;
    item->ready = true;
}

/*
 * ---- writing the front of the list ----
 *
 * One thread at a time does this, without the lock: settles links, reports problems, compares
 * sums, shows progress. So all of it happens in the order of the archive, whichever thread
 * read an item.
 */

static int pipeline_report(struct pipeline *p, enum pack_report kind, const struct fault *what)
{
    const struct pack_options *o = p->options;
    if (!what)
        return 0;
    if (kind == PACK_PROBLEM && o->strict) {
        if (p->fault && !p->fault->err)
            *p->fault = *what;
        return -what->err;
    }
    if (kind == PACK_PROBLEM)
        p->result->problems++;
    if (o->report)
        o->report(o->ctx, kind, what);
    return 0;
}

static int pipeline_report_gathered(struct pipeline *p, const struct gathered *g)
{
    int r = pipeline_report(p, PACK_NOTE, g->note);
    return r < 0 ? r : pipeline_report(p, PACK_PROBLEM, g->problem);
}

/* Another name of a file that is in the archive: becomes a hard link, whatever was read. */
static int pipeline_make_link(struct pipeline *p, struct item *item, const char *first)
{
    struct gathered *g = &item->gathered;
    struct builder_member *m = &g->member;
    if (item->stream) {
        pthread_mutex_lock(&p->lock);
        item->stream->dropped = true;
        pthread_mutex_unlock(&p->lock);
    }
    free(g->data);
    free(g->problem); /* with what was read */
    g->data = NULL;
    m->has_sum = false;
    g->problem = NULL;
    vector_free(&g->header);
    m->is_hardlink = true;
    m->link = first;
    m->link_len = strlen(first);
    m->data = DATA_STORED;
    m->piece_count = m->xattr_count = 0;
    return pax_encode(m, &g->header);
}

/* Later names of the file, in the same shard, will be links to this one. */
static int pipeline_keep_first(struct pipeline *p, struct map *links, const struct gathered *g)
{
    char *path = strdup(g->member.path);
    int r = path ? vector_push(&p->first_names, path) : -ENOMEM;
    if (r < 0) {
        free(path);
        return r;
    }
    r = map_put(links, (struct map_key){g->id.dev, g->id.ino}, p->first_names.count - 1);
    return r == -EEXIST ? 0 : r;
}

/*
 * A file with several names: the first in a shard has the data, the others are links. Which one
 * is the first is known only here, so all were read: most files with several names have the
 * others outside the tree, as a package manager leaves them. Names in different shards become
 * separate files, because two processes would have to consult each other to link them.
 */
static int pipeline_settle_links(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    struct map *links = &p->links[item->shard];
    uint64_t first;
    bool may_repeat = g->nlink > 1 || p->selection->dereference;
    if (g->skip || !may_repeat || S_ISDIR(g->member.mode))
        return 0;
    if (map_get(links, (struct map_key){g->id.dev, g->id.ino}, &first) == 0)
        return pipeline_make_link(p, item, p->first_names.at[first]);
    return pipeline_keep_first(p, links, g);
}

/* Links that lead out of the tree are told in one line at the end. */
static int pipeline_note_link(struct pipeline *p, const struct gathered *g)
{
    if (g->link && path_leads_out(g->path, strlen(g->path), g->link, g->member.link_len) &&
        p->links_out++ == 0)
        p->first_out = strdup(g->path);
    return p->links_out && !p->first_out ? -ENOMEM : 0;
}

static int pipeline_tell_links(struct pipeline *p)
{
    struct fault fault = {0};
    if (!p->links_out)
        return 0;
    fault_set(&fault, -EXDEV, p->first_out, FAULT_NO_OFFSET,
              p->links_out == 1 ? "is a symbolic link that leads out of the tree"
                                : "is the first of %" PRIu64
                                  " symbolic links that lead out of the tree",
              p->links_out);
    fault_advise(&fault, "what %s to is not packed, unless by --dereference",
                 p->links_out == 1 ? "it leads" : "they lead");
    return pipeline_report(p, PACK_NOTE, &fault);
}

/* Names that normalization makes one are an error; all others are told in one line at the end.
 */
static int pipeline_note_alike(struct pipeline *p, const struct folder *folder)
{
    const struct listing *l = &folder->listing;
    size_t ignored;
    if (p->alike == 0) {
        int r = folder_path(folder, l->first_alike[0], &p->first_alike[0], &ignored);
        p->first_alike[1] = strdup(l->first_alike[1]);
        if (r < 0 || !p->first_alike[1])
            return -ENOMEM;
    }
    p->alike += l->alike;
    return p->selection->is_nfc
               ? selection_alike_fault(p->selection, p->alike, p->first_alike[0],
                                       p->first_alike[1], p->fault)
               : 0;
}

/* Each rank lists all folders: the first one tells. */
static int pipeline_tell_alike(struct pipeline *p)
{
    struct fault fault = {0};
    if (!p->alike || p->selection->rank > 0)
        return 0;
    selection_alike_fault(p->selection, p->alike, p->first_alike[0], p->first_alike[1], &fault);
    return pipeline_report(p, PACK_NOTE, &fault);
}

static int pipeline_write_member(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    int r = pipeline_settle_links(p, item);
    if (r == 0)
        r = pipeline_report_gathered(p, g);
    if (r < 0 || g->skip)
        return r;
    if (S_ISREG(g->member.mode) && g->problem)
        shard_set_distrust(p->shards, item->shard);
    if (S_ISLNK(g->member.mode) && !item->from.input)
        r = pipeline_note_link(p, g);
    if (r < 0)
        return r;
    if (item->below && item->below->listing.alike)
        r = pipeline_note_alike(p, item->below);
    if (r < 0)
        return r;
    if (S_ISDIR(g->member.mode))
        return shard_set_add_folder(p->shards, item->folder, item->below, g, p->fault);
    r = shard_set_add(p->shards, item->shard, item->folder, &g->member, &g->header, p->fault);
    if (r == 0 && g->data) {
        p->read_bytes += g->member.size_bytes;
        r = shard_set_data(p->shards, item->shard, steal_ptr(&g->data),
                           (size_t)g->member.size_bytes, p->fault);
    }
    return r;
}

/*
 * A small file is read from its source if what was kept of it can't be used. Of a large one a
 * part is written by then, so that the run ends, and the user decides.
 */
static int pipeline_refuse_kept(struct pipeline *p, const struct stream *s)
{
    const struct input *kept = p->selection->kept;
    int r = fault_set_advised(p->fault, -EBADMSG, s->path, FAULT_NO_OFFSET,
                              "remove this file, or pack without --resume",
                              "kept by an interrupted run, but damaged or unreadable");
    fault_set_file(p->fault, kept->file(kept->ctx, s->file.position));
    return r;
}

/* Pieces come here in order, so their sum is complete at the last one. */
static int pipeline_check_sum(struct pipeline *p, const struct item *item)
{
    struct stream *s = item->stream;
    if (!s->checksum)
        return 0;
    checksum_add(s->checksum, item->bytes, item->len);
    if (!item->last || s->reported || checksum_is(s->checksum, s->sum))
        return 0;
    if (s->file.input == p->selection->kept)
        return pipeline_refuse_kept(p, s);
    struct fault fault = {0};
    gather_sum_fault(s->path, &fault);
    return pipeline_report(p, PACK_PROBLEM, &fault);
}

static int pipeline_write_piece(struct pipeline *p, struct item *item)
{
    int r = 0;
    if (item->stream->dropped)
        return 0;
    if (item->problem && item->stream->file.input &&
        item->stream->file.input == p->selection->kept)
        return pipeline_refuse_kept(p, item->stream);
    if (!item->stream->reported) /* a file that shrank by a terabyte is one problem */
        r = pipeline_report(p, PACK_PROBLEM, item->problem);
    if (item->problem) {
        item->stream->reported = true;
        shard_set_distrust(p->shards, item->shard);
    }
    if (r == 0)
        r = pipeline_check_sum(p, item);
    if (r < 0)
        return r;
    p->read_bytes += item->len;
    return shard_set_data(p->shards, item->shard, steal_ptr(&item->bytes), item->len, p->fault);
}

/* Reports progress: in bytes of the input if its size is known, else of the output. */
static void pipeline_report_progress(struct pipeline *p, const struct item *item)
{
    const struct pack_options *o = p->options;
    uint64_t offset = p->sources->total_bytes ? p->read_bytes : p->shards->offset;
    if (item->kind == ITEM_MEMBER)
        atomic_fetch_add_explicit(&p->progress.members, 1, memory_order_relaxed);
    if (!o->progress || (offset - p->reported_offset < (1u << 20) && ++p->silent < 4096))
        return;
    p->silent = 0;
    p->reported_offset = offset;
    atomic_store_explicit(&p->progress.bytes_done, offset, memory_order_relaxed);
    o->progress(o->ctx, "packing", &p->progress);
}

static int pipeline_write_item(struct pipeline *p, struct item *item)
{
    int r = item->kind == ITEM_MEMBER ? pipeline_write_member(p, item)
                                      : pipeline_write_piece(p, item);
    if (r == 0)
        pipeline_report_progress(p, item);
    return r;
}

/* ---- threads ---- */

/* May the run end here? With `resume` a file that was begun is written to its end. */
static bool pipeline_ends(const struct pipeline *p)
{
    return shard_set_is_stopped(p->shards) &&
           !(p->options->resume && (p->writing || p->in_stream));
}

/* Whether it ends is not asked: a thread that waits since it does would wait for nobody. */
static bool pipeline_may_write(const struct pipeline *p)
{
    return !p->error && !p->writing && p->first && p->first->ready;
}

static bool pipeline_has_more(const struct item *item)
{
    return item->kind == ITEM_PIECE ? !item->last : item->stream && !item->gathered.skip;
}

/* Writes the ready items at the front of the list. The lock is held, but released meanwhile. */
static void pipeline_drain(struct pipeline *p)
{
    bool wrote = false;
    while (pipeline_may_write(p) && !pipeline_ends(p)) {
        struct item *item = p->first;
        p->writing = wrote = true;
        pthread_mutex_unlock(&p->lock);
        int r = pipeline_write_item(p, item);
        pthread_mutex_lock(&p->lock);
        p->writing = false;
        p->in_stream = pipeline_has_more(item) && !item->stream->dropped;
        p->flight_items--;
        p->flight_bytes -= item->flight_bytes;
        pipeline_remove_item(p, item);
        pipeline_free_item(p, item);
        if (r < 0)
            p->error = r;
    }
    if (wrote && p->waiting &&
        (pipeline_has_room(p, 2) || p->error || !p->first || pipeline_is_cursor(p->first)))
        pthread_cond_broadcast(&p->wake);
}

static void *pipeline_run_thread(void *arg);

static void pipeline_start_threads(struct pipeline *p, unsigned count)
{
    while (p->started < count && thread_start(&p->threads[p->started], THREAD_STACK_BYTES,
                                              pipeline_run_thread, p) == 0)
        p->started++;
}

/* A time, and how often this thread had slept by then. */
struct moment {
    uint64_t ns;
    long sleeps;
};

static struct moment moment_now(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (struct moment){now_ns(), usage.ru_nvcsw};
}

/*
 * Counts one more read, from `start` to `end`, and decides on more threads. The lock is held.
 */
static void pipeline_judge_read(struct pipeline *p, const struct moment *start,
                                const struct moment *end)
{
    uint64_t slow_ns = p->started < THREADS_OF_A_DISK ? 0 : SLOW_READ_NS;
    p->slow += end->sleeps != start->sleeps && end->ns - start->ns >= slow_ns;
    if (++p->samples < SAMPLES)
        return;
    if (p->slow > SAMPLES / 2 && !p->error)
        pipeline_start_threads(
            p, min_u32(p->started < THREADS_OF_A_DISK ? THREADS_OF_A_DISK : p->started * 2,
                       p->most_threads));
    p->samples = p->slow = 0;
}

/* Takes, reads and hands on one item. The lock is held, but released while reading. */
static bool pipeline_work(struct pipeline *p)
{
    struct item *item = pipeline_take(p);
    if (!item)
        return false;
    unsigned every = p->started < THREADS_OF_A_DISK ? 1 : READS_A_SAMPLE;
    bool judged = p->started < p->most_threads && p->reads++ % every == 0;
    pthread_mutex_unlock(&p->lock);
    struct moment start = {0}, end = {0};
    if (judged)
        start = moment_now();
    int r = pipeline_read_item(p, item);
    if (judged)
        end = moment_now();
    pthread_mutex_lock(&p->lock);
    if (judged)
        pipeline_judge_read(p, &start, &end);
    const struct item *cursor = p->first_cursor;
    pipeline_finish_reading(p, item, r);
    bool more = p->first_cursor != cursor || (item->after && pipeline_is_cursor(item->after));
    if (p->waiting && (p->error || more))
        pthread_cond_broadcast(&p->wake);
    return true;
}

static void *pipeline_run_thread(void *arg)
{
    struct pipeline *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->error) {
        if (pipeline_ends(p)) {
            p->error = -EINTR;
            break;
        }
        pipeline_drain(p);
        if (p->error || pipeline_work(p) || pipeline_may_write(p))
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
static void pipeline_run_threads(struct pipeline *p, unsigned first)
{
    pthread_mutex_lock(&p->lock);
    p->started = 1;
    pipeline_start_threads(p, first);
    pthread_mutex_unlock(&p->lock);
    pipeline_run_thread(p);
    for (unsigned i = 1; i < p->started; i++)
        pthread_join(p->threads[i], NULL);
}

static void pipeline_free(struct pipeline *p)
{
    while (p->first) {
        struct item *item = p->first;
        pipeline_remove_item(p, item);
        pipeline_free_item(p, item);
    }
    for (uint32_t i = 0; i < p->shards->count; i++)
        map_free(&p->links[i]);
    free(p->links);
    for (size_t i = 0; i < p->first_names.count; i++)
        free(p->first_names.at[i]);
    vector_free(&p->first_names);
    free(p->first_out);
    free(p->first_alike[0]);
    free(p->first_alike[1]);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
}

int pipeline_run(const struct pack_options *options, const struct pipeline_sources *sources,
                 const struct selection *selection, struct shard_set *shards,
                 struct folder_set *set, unsigned max_threads, struct pack_result *result,
                 struct fault *fault)
{
    struct pipeline p = {.options = options,
                         .sources = sources,
                         .selection = selection,
                         .shards = shards,
                         .set = set,
                         .links = calloc(shards->count, sizeof(struct map)),
                         .result = result,
                         .fault = fault};
    if (!p.links)
        return -ENOMEM;
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.wake, NULL);
    atomic_store(&p.progress.bytes_total, sources->total_bytes);
    atomic_store(&p.progress.members_total, sources->total_members);
    sources->root->is_as_kept = selection->kept;
    p.error = pipeline_add_folder_cursor(&p, sources->root, NULL);
    unsigned first = options->writer.threads
                         ? options->writer.threads
                         : min_u32(max_u32(cpus_allowed(), THREADS_FIRST), THREADS_OF_A_DISK);
    unsigned last = options->writer.threads ? options->writer.threads : THREADS_LAST;
    p.most_threads = min_u32(last, max_threads);
    struct count counted = {
        .sources = sources, .selection = selection, .progress = &p.progress};
    if (options->progress && !sources->total_members && !selection->names &&
        !selection->dereference)
        count_start(&counted);
    pipeline_run_threads(&p, min_u32(first, max_threads));
    count_stop(&counted);
    if (p.error == 0)
        p.error = pipeline_tell_links(&p);
    if (p.error == 0)
        p.error = pipeline_tell_alike(&p);
    pipeline_free(&p);
    return p.error;
}
