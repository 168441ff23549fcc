/*
 * Shards: one writer each, and directories that wait for members in them.
 *
 * When a directory comes, it is not known which shards will need it. So it is kept as long as
 * members below it may come, and written right before the first of them in each shard. This
 * keeps the members of a shard in the order that they would have in one archive.
 */
#include "shard_set.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "path.h"
#include "shard_exchange.h"

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
    uint64_t offset;
    struct shard shard[];
};

/* A directory, and the shards that have it already (one bit each). */
struct kept_folder {
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

bool shard_set_is_output(const struct shard_set *s, struct file_id id)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->shard[i].output && output_is(s->shard[i].output, id))
            return true;
    return false;
}

uint64_t shard_set_offset(const struct shard_set *s)
{
    return s->offset;
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
            output_release(output);
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
    shard_set_discard(s);
    return r;
}

/* ---- members ---- */

static int shard_set_put(struct shard_set *s, uint32_t shard, const struct pax_member *member,
                         struct pax_buffer *header, const uint64_t *sum, struct fault *fault)
{
    struct writer *w = s->shard[shard].writer;
    s->offset -= writer_offset(w);
    int r = writer_add(w, member, header, sum, fault);
    s->offset += writer_offset(w);
    return shard_set_name_fault(s, shard, r, fault);
}

static int shard_set_put_kept(struct shard_set *s, uint32_t shard, struct kept_folder *kept,
                              struct fault *fault)
{
    struct pax_buffer *header = &kept->gathered.header;
    struct pax_buffer copy = {0};
    int r = vector_append(&copy, header->at, header->count);
    if (r == 0)
        r = shard_set_put(s, shard, &kept->gathered.member, &copy, NULL, fault);
    vector_free(&copy);
    if (r == 0)
        kept->written[shard / 8] |= (uint8_t)(1u << shard % 8);
    return r;
}

static bool shard_set_misses(const struct folder *f, uint32_t shard)
{
    const struct kept_folder *kept = f ? f->kept : NULL;
    return kept && !(kept->written[shard / 8] >> shard % 8 & 1);
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
        r = shard_set_put_kept(s, shard, top->kept, fault);
    }
    return r;
}

int shard_set_add(struct shard_set *s, uint32_t shard, const struct folder *folder,
                  const struct pax_member *member, struct pax_buffer *header,
                  const uint64_t *sum, struct fault *fault)
{
    int r = shard_set_put_missing(s, shard, folder, fault);
    return r < 0 ? r : shard_set_put(s, shard, member, header, sum, fault);
}

int shard_set_data(struct shard_set *s, uint32_t shard, void *bytes, size_t len,
                   struct fault *fault)
{
    struct writer *w = s->shard[shard].writer;
    s->offset -= writer_offset(w);
    int r = writer_data(w, bytes, len, fault);
    s->offset += writer_offset(w);
    return shard_set_name_fault(s, shard, r, fault);
}

static void shard_set_free_kept(void *p)
{
    struct kept_folder *kept = p;
    gather_free(&kept->gathered);
    free(kept);
}

int shard_set_add_folder(struct shard_set *s, const struct folder *folder, struct folder *below,
                         struct gathered *g, struct fault *fault)
{
    if (s->count == 1)
        return shard_set_put(s, 0, &g->member, &g->header, NULL, fault);
    struct kept_folder *kept = calloc(1, sizeof(*kept) + s->count / 8 + 1);
    if (!kept)
        return -ENOMEM;
    kept->gathered = *g;
    *g = (struct gathered){.fd = -1};

    uint32_t own =
        selection_shard(s->selection, kept->gathered.path, kept->gathered.member.path_len);
    bool root = kept->gathered.member.path_len == 0;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        if (!s->shard[i].writer || (i != own && !root))
            continue;
        r = shard_set_put_missing(s, i, folder, fault);
        if (r == 0)
            r = shard_set_put_kept(s, i, kept, fault);
    }
    if (r == 0 && below) {
        below->kept = kept;
        below->free_kept = shard_set_free_kept;
    } else {
        shard_set_free_kept(kept);
    }
    return r;
}
