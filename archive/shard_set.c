/*
 * Shards: a writer each, and directories that wait for something in them.
 *
 * Where a directory will be needed is not known when it comes, and need not be: it is kept
 * as long as members below it may come, and written right before the first of them in each
 * shard. So members of a shard are in the order that they would have in one archive.
 */
#include "shard_set.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

struct shard {
    struct writer *writer; /* NULL: another process's */
    char *path;
};

struct shard_set {
    const struct selection *selection;
    uint32_t count;
    uint64_t offset;
    struct shard shard[];
};

/* A directory, and in which shards it is already (a bit each). */
struct kept_folder {
    struct gathered gathered;
    uint8_t written[];
};

/* ---- all together ---- */

/* With shards the message must tell which. */
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

static int open_shard(struct shard_set *s, uint32_t i, const char *output,
                      const struct shard_names *names, const struct writer_options *options,
                      struct fault *fault)
{
    int r = 0;
    if (names)
        r = shard_name(names, i, &s->shard[i].path);
    else if (!(s->shard[i].path = strdup(output)))
        r = -ENOMEM;
    if (r < 0)
        return r;
    r = writer_open(s->shard[i].path, options, fault, &s->shard[i].writer);
    return r < 0 ? name_fault(s, i, r, fault) : 0;
}

int shard_set_open(const char *output, const struct shard_names *names,
                   const struct selection *selection, const struct writer_options *options,
                   struct fault *fault, struct shard_set **ret_shards)
{
    uint32_t count = selection->shards > 1 ? selection->shards : 1;
    struct shard_set *s = calloc(1, sizeof(*s) + count * sizeof(s->shard[0]));
    if (!s)
        return -ENOMEM;
    s->selection = selection;
    s->count = count;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < count; i++)
        if (selection_has(selection, i))
            r = open_shard(s, i, output, names, options, fault);
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
    for (uint32_t i = 0; i < s->count; i++)
        writer_discard(s->shard[i].writer);
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

int shard_set_close(struct shard_set *s, const _Atomic int *stop, struct fault *fault,
                    struct writer_totals *ret_totals)
{
    struct writer_totals sum = {0}, totals;
    uint32_t done = 0;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        if (!s->shard[i].writer)
            continue;
        r = stop && atomic_load(stop) ? -EINTR : 0;
        if (r < 0)
            break;
        r = writer_close(s->shard[i].writer, fault, &totals);
        s->shard[i].writer = NULL;
        if (r < 0)
            name_fault(s, i, r, fault);
        else
            add_totals(&sum, &totals);
        done = r < 0 ? i : i + 1;
    }
    for (uint32_t i = 0; r < 0 && i < done; i++)
        if (s->shard[i].path)
            unlink(s->shard[i].path);
    if (r == 0)
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

/* The directories that lead to something in the folder; what is there has its own. */
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
