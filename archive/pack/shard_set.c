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
#include "shard_exchange.h"

struct shard {
    struct writer *writer; /* NULL: the shard is another process's, or complete */
    struct output *output;
    char *path;
};

struct shard_set {
    const struct selection *selection;
    char letters[PARTIAL_LETTER_COUNT + 1];
    bool overwrite, sync;
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
static int name_fault(const struct shard_set *s, uint32_t i, int err, struct fault *fault)
{
    if (s->count > 1 && fault && !fault->member[0]) {
        char text[128];
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "%s",
                  strerror_r(-err, text, sizeof(text)));
        strncpy(fault->member, s->shard[i].path, sizeof(fault->member) - 1);
    }
    return err;
}

/* A waiting shard must be able to take this name by a rename. */
static int check_path(const char *path, struct fault *fault)
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    if (strlen(slash ? slash + 1 : path) > NAME_MAX - PARTIAL_EXTRA_LEN)
        return fault_set(fault, -ENAMETOOLONG, NULL, FAULT_NO_OFFSET, "name is too long");
    if (lstat(path, &st) < 0 || !S_ISLNK(st.st_mode))
        return 0;
    fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET, "is a symbolic link, which no shard is");
    fault_advise(fault, "remove it, or name another place with -o");
    return -EEXIST;
}

static int open_shard(struct shard_set *s, uint32_t i, const char *output,
                      const struct writer_options *options, struct fault *fault)
{
    int r = 0;
    if (s->selection->outputs)
        r = shard_name(s->selection->outputs, i, &s->shard[i].path);
    else if (!(s->shard[i].path = strdup(output)))
        r = -ENOMEM;
    if (r < 0)
        return r;
    r = s->selection->outputs ? check_path(s->shard[i].path, fault) : 0;
    if (r == 0)
        r = writer_open(s->shard[i].path, options, fault, &s->shard[i].writer);
    return r < 0 ? name_fault(s, i, r, fault) : 0;
}

int shard_set_open(const char *output, const char *letters, const struct selection *selection,
                   const struct writer_options *options, struct fault *fault,
                   struct shard_set **ret_shards)
{
    uint32_t count = selection->shards > 1 ? selection->shards : 1;
    struct shard_set *s = calloc(1, sizeof(*s) + count * sizeof(s->shard[0]));
    if (!s)
        return -ENOMEM;
    s->selection = selection;
    s->overwrite = options->overwrite;
    s->sync = !options->no_sync;
    s->count = count;
    strncpy(s->letters, letters, PARTIAL_LETTER_COUNT);
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < count; i++)
        if (selection_has(selection, i))
            r = open_shard(s, i, output, options, fault);
    if (r < 0)
        shard_set_discard(s);
    else
        *ret_shards = s;
    return r;
}

static void shard_set_free(struct shard_set *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        free(s->shard[i].path);
    free(s);
}

void shard_set_discard(struct shard_set *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->count; i++) {
        writer_discard(s->shard[i].writer);
        output_discard(s->shard[i].output);
    }
    shard_set_free(s);
}

bool shard_set_is_output(const struct shard_set *s, uint64_t dev, uint64_t ino)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->shard[i].writer && writer_is_output(s->shard[i].writer, dev, ino))
            return true;
    return false;
}

uint64_t shard_set_offset(const struct shard_set *s)
{
    return s->offset;
}

static void add_totals(struct writer_totals *sum, const struct writer_totals *t)
{
    uint64_t members = sum->members + t->members, files = sum->files + t->files;
    uint64_t directories = sum->directories + t->directories;
    uint64_t hardlinks = sum->hardlinks + t->hardlinks;
    uint64_t data_bytes = sum->data_bytes + t->data_bytes;
    uint64_t index_bytes = sum->index_bytes + t->index_bytes;
    uint64_t file_bytes = sum->file_bytes + t->file_bytes;
    *sum = *t;
    sum->members = members;
    sum->files = files;
    sum->directories = directories;
    sum->hardlinks = hardlinks;
    sum->data_bytes = data_bytes;
    sum->index_bytes = index_bytes;
    sum->file_bytes = file_bytes;
}

static bool is_stopped(const _Atomic int *stop)
{
    return stop && atomic_load(stop);
}

/* Completes the archives. From here on shards wait for each other. */
static int finish_shards(struct shard_set *s, const _Atomic int *stop, struct fault *fault,
                         struct writer_totals *sum)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        struct shard *shard = &s->shard[i];
        struct writer_totals totals;
        if (!shard->writer)
            continue;
        if (is_stopped(stop))
            return -EINTR;
        r = writer_finish(steal_ptr(&shard->writer), fault, &totals, &shard->output);
        if (r == 0 && s->selection->outputs)
            r = output_ready(shard->output, s->letters, s->sync, fault);
        if (r < 0)
            name_fault(s, i, r, fault);
        else
            add_totals(sum, &totals);
    }
    return r;
}

/* Lets go of the archives, which stay on the disk under their present names. */
static void release_shards(struct shard_set *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->shard[i].output)
            output_release(s->shard[i].output);
        s->shard[i].output = NULL;
    }
}

static int exchange(struct shard_set *s, const _Atomic int *stop, struct fault *fault)
{
    struct shard_exchange x;
    bool alone = s->selection->world <= 1;
    int r = shard_exchange_begin(s->selection->outputs, stop, fault, &x);
    if (r < 0) {
        if (!alone) /* without the lock ready shards stay: others may count on them */
            release_shards(s);
        return r;
    }
    r = is_stopped(stop) ? -EINTR
                         : shard_exchange_run(&x, s->letters, s->overwrite, s->sync, fault);
    if (r == 0 && alone)
        r = fault_set(fault, -EBUSY, NULL, FAULT_NO_OFFSET,
                      "somebody else removed or replaced what was ready of it");
    if (r >= 0 || x.committed)
        release_shards(s);
    for (uint32_t i = 0; i < s->count; i++) { /* while the set is locked */
        output_discard(s->shard[i].output);
        s->shard[i].output = NULL;
    }
    shard_exchange_end(&x);
    return r;
}

int shard_set_close(struct shard_set *s, const _Atomic int *stop, struct fault *fault,
                    struct writer_totals *ret_totals)
{
    struct writer_totals sum = {0};
    int r = finish_shards(s, stop, fault, &sum);
    if (r == 0 && s->selection->outputs) {
        r = exchange(s, stop, fault);
    } else if (r == 0) {
        r = output_commit(steal_ptr(&s->shard[0].output), s->sync, fault);
        r = r < 0 ? r : 1;
    }
    if (r >= 0)
        *ret_totals = sum;
    shard_set_discard(s);
    return r;
}

/* ---- members ---- */

static int add(struct shard_set *s, uint32_t shard, const struct pax_member *member,
               struct pax_buffer *header, const uint64_t *sum, struct fault *fault)
{
    struct writer *w = s->shard[shard].writer;
    uint64_t before = writer_offset(w);
    int r = writer_add(w, member, header, sum, fault);
    s->offset += writer_offset(w) - before;
    return r < 0 ? name_fault(s, shard, r, fault) : 0;
}

static int add_kept(struct shard_set *s, uint32_t shard, struct kept_folder *kept,
                    struct fault *fault)
{
    struct pax_buffer *header = &kept->gathered.header;
    struct pax_buffer copy = {malloc(header->len), header->len, header->len};
    if (!copy.bytes)
        return -ENOMEM;
    memcpy(copy.bytes, header->bytes, header->len);
    int r = add(s, shard, &kept->gathered.member, &copy, NULL, fault);
    pax_buffer_free(&copy);
    if (r == 0)
        kept->written[shard / 8] |= (uint8_t)(1u << shard % 8);
    return r;
}

static bool is_missing(const struct folder *f, uint32_t shard)
{
    const struct kept_folder *kept = f ? f->kept : NULL;
    return kept && !(kept->written[shard / 8] >> shard % 8 & 1);
}

/* Adds the directories that lead to the folder's members, unless the shard has them. */
static int add_missing_folders(struct shard_set *s, uint32_t shard, const struct folder *folder,
                               struct fault *fault)
{
    int r = 0;
    while (r == 0 && is_missing(folder, shard)) {
        const struct folder *top = folder;
        while (is_missing(top->parent, shard))
            top = top->parent;
        r = add_kept(s, shard, top->kept, fault);
    }
    return r;
}

int shard_set_add(struct shard_set *s, uint32_t shard, const struct folder *folder,
                  const struct pax_member *member, struct pax_buffer *header,
                  const uint64_t *sum, struct fault *fault)
{
    int r = add_missing_folders(s, shard, folder, fault);
    return r < 0 ? r : add(s, shard, member, header, sum, fault);
}

int shard_set_data(struct shard_set *s, uint32_t shard, void *bytes, size_t len,
                   struct fault *fault)
{
    struct writer *w = s->shard[shard].writer;
    uint64_t before = writer_offset(w);
    int r = writer_data(w, bytes, len, fault);
    s->offset += writer_offset(w) - before;
    return r < 0 ? name_fault(s, shard, r, fault) : 0;
}

static void free_kept(void *p)
{
    struct kept_folder *kept = p;
    gather_free(&kept->gathered);
    free(kept);
}

int shard_set_add_folder(struct shard_set *s, const struct folder *folder, struct folder *below,
                         struct gathered *g, struct fault *fault)
{
    if (s->count == 1)
        return add(s, 0, &g->member, &g->header, NULL, fault);
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
        r = add_missing_folders(s, i, folder, fault);
        if (r == 0)
            r = add_kept(s, i, kept, fault);
    }
    if (r == 0 && below) {
        below->kept = kept;
        below->free_kept = free_kept;
    } else {
        free_kept(kept);
    }
    return r;
}
