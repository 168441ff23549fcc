/*
 * Writes the front of the pipeline's list to an archive: settles links, reports problems,
 * compares sums, shows progress. One thread at a time runs this, without the lock. So all of
 * this happens in the order of the archive, whichever thread read an item.
 */
#include "checksum.h"
#include "pipeline_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static int report(struct pipeline *p, enum pack_report kind, const struct fault *what)
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

static int report_gathered(struct pipeline *p, const struct gathered *g)
{
    if (g->note && S_ISSOCK(g->member.mode))
        p->result->sockets++;
    int r = report(p, PACK_NOTE, g->note);
    return r < 0 ? r : report(p, PACK_PROBLEM, g->problem);
}

/* Another name of a file that is in the archive: becomes a hard link, whatever was read. */
static int make_link(struct gathered *g, const struct link *first)
{
    pax_buffer_free(&g->header);
    g->member.hardlink = true;
    g->member.link = first->path;
    g->member.link_len = first->path_len;
    g->member.sparse = false;
    return pax_encode(&g->member, &g->header);
}

/* The first name of a file with several names: its data is read now. */
static int read_first(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    int fd = -1, r = 0;
    pthread_mutex_lock(&p->lock);
    if (!item->input)
        r = folder_pin(p->set, item->folder, &fd);
    pthread_mutex_unlock(&p->lock);
    if (r < 0) {
        char *path = g->path;
        g->path = NULL;
        gather_free(g);
        return gather_nothing(path, r, g);
    }
    struct gather_from from = pipeline_place(p, item, fd);
    r = gather_data(&from, g);

    pthread_mutex_lock(&p->lock);
    if (!item->input)
        folder_unpin(p->set, item->folder);
    if (r == 0)
        r = pipeline_follow_up(p, item);
    pthread_mutex_unlock(&p->lock);
    return r;
}

/*
 * A file with several names: the first in a shard has the data, the others are links. Names in
 * different shards become separate files, because two processes would have to consult each
 * other to link them.
 */
static int settle_links(struct pipeline *p, struct item *item, const struct link **ret_first)
{
    struct gathered *g = &item->gathered;
    struct links *links = &p->links[item->shard];
    if (g->skip || g->nlink <= 1 || S_ISDIR(g->member.mode))
        return 0;
    int r = 0;
    const struct link *first = links_find(links, g->dev, g->ino);
    if (first)
        r = make_link(g, first);
    else if (g->again)
        r = read_first(p, item);
    if (r == 0 && !first && !g->skip)
        r = links_add(links, g->dev, g->ino, g->path, g->member.path_len);
    *ret_first = first;
    return r;
}

static int write_member(struct pipeline *p, struct item *item)
{
    struct gathered *g = &item->gathered;
    const struct link *first = NULL;
    int r = settle_links(p, item, &first);
    if (r == 0)
        r = report_gathered(p, g);
    if (r < 0 || g->skip)
        return r;
    if (S_ISDIR(g->member.mode))
        return shard_set_add_folder(p->shards, item->folder, item->below, g, p->fault);
    r = shard_set_add(p->shards, item->shard, item->folder, &g->member, &g->header,
                      g->data ? &g->sum : NULL, p->fault);
    if (r == 0 && g->data && !first) {
        uint8_t *data = g->data;
        g->data = NULL;
        p->read_bytes += g->member.size_bytes;
        r = shard_set_data(p->shards, item->shard, data, (size_t)g->member.size_bytes,
                           p->fault);
    }
    return r;
}

/* Pieces come here in order, so their sum is complete at the last one. */
static int check_sum(struct pipeline *p, const struct item *item)
{
    struct stream *s = item->stream;
    if (!s->checksum)
        return 0;
    checksum_add(s->checksum, item->bytes, item->len);
    if (!item->last || s->told || checksum_value(s->checksum) == s->sum)
        return 0;
    struct fault fault = {0};
    gather_sum_fault(s->path, &fault);
    return report(p, PACK_PROBLEM, &fault);
}

static int write_piece(struct pipeline *p, struct item *item)
{
    int r = 0;
    if (!item->stream->told) /* a file that shrank by a terabyte is one problem */
        r = report(p, PACK_PROBLEM, item->problem);
    if (item->problem)
        item->stream->told = true;
    if (r == 0)
        r = check_sum(p, item);
    if (r < 0)
        return r;
    uint8_t *bytes = item->bytes;
    item->bytes = NULL;
    p->read_bytes += item->len;
    return shard_set_data(p->shards, item->shard, bytes, item->len, p->fault);
}

/* Reports progress: in bytes of the input if its size is known, else of the output. */
static void tell_progress(struct pipeline *p, const struct item *item)
{
    const struct pack_options *o = p->options;
    uint64_t offset = p->sources->total_bytes ? p->read_bytes : shard_set_offset(p->shards);
    if (item->kind == ITEM_MEMBER)
        atomic_fetch_add_explicit(&p->progress.members, 1, memory_order_relaxed);
    if (!o->progress || (offset - p->told_offset < (1u << 20) && ++p->silent < 4096))
        return;
    p->silent = 0;
    p->told_offset = offset;
    atomic_store_explicit(&p->progress.bytes_done, offset, memory_order_relaxed);
    o->progress(o->ctx, "packing", &p->progress);
}

int pipeline_write(struct pipeline *p, struct item *item)
{
    int r = item->kind == ITEM_MEMBER ? write_member(p, item) : write_piece(p, item);
    if (r == 0)
        tell_progress(p, item);
    return r;
}
