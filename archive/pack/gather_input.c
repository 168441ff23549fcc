/*
 * Gathers members of an archive by its index. Everything that the archive has about a file goes
 * into the new one, all extended attributes included.
 *
 * If the archive has checksums they are compared on the way. Otherwise damaged data would get a
 * new sum that fits.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gather.h"

static int input_xattrs(const struct index *index, uint32_t position, struct gathered *g)
{
    struct xattr x;
    uint64_t cursor = 0;
    int r;
    while ((r = index_xattr_next(index, position, &cursor, &x)) == 0)
        if (pax_xattrs_add(&g->xattrs, x.name, x.name_len, x.value, x.value_len) < 0)
            return -ENOMEM;
    gather_end_xattrs(g);
    return r == -ENOENT ? 0 : r;
}

static void input_attributes(struct gathered *g, const struct input *input,
                             const struct node *n)
{
    struct pax_member *m = &g->member;
    m->mode = n->mode;
    m->uid = n->uid;
    m->gid = n->gid;
    m->mtime_sec = n->mtime_sec;
    m->mtime_nsec = n->mtime_nsec;
    if (S_ISCHR(n->mode) || S_ISBLK(n->mode)) {
        m->rdev_major = n->rdev_major;
        m->rdev_minor = n->rdev_minor;
    }
    if (S_ISREG(n->mode))
        m->size_bytes = n->size_bytes;
    g->id = (struct file_id){(uintptr_t)input, n->position}; /* unique in a run */
    g->nlink = n->nlink;
}

static int input_link(const struct index *index, uint32_t position, struct gathered *g)
{
    const char *target;
    size_t len;
    int r = index_symlink(index, position, &target, &len);
    if (r < 0)
        return r;
    g->link = strndup(target, len);
    if (!g->link)
        return -ENOMEM;
    g->member.link = g->link;
    g->member.link_len = len;
    return 0;
}

/* The children are sorted already. */
static int input_listing(const struct index *index, uint32_t position, struct listing *listing)
{
    struct listing_maker maker = {0};
    uint32_t first, count;
    int r = index_children(index, position, &first, &count);
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        struct node child;
        const char *name;
        size_t len;
        r = index_node(index, first + i, &child);
        if (r == 0)
            r = index_name(index, first + i, &name, &len);
        if (r == 0)
            r = listing_maker_add(&maker, name, len, (unsigned char)IFTODT(child.mode),
                                  first + i);
    }
    listing_maker_finish(&maker, listing);
    return r;
}

static int input_folder(const struct gather_from *from, struct gathered *g)
{
    g->is_folder = true;
    int r = input_listing(from->input->index, from->number, &g->listing);
    if (r < 0)
        return r;
    struct selection_folder folder = {g->path, g->member.path_len, from->root_len, .fd = -1};
    r = selection_apply(from->selection, &folder, &g->listing);
    return r < 0 ? r : 0;
}

/* Finds where the file has data; merges neighbouring extents. */
static int input_extents(const struct index *index, uint32_t position, uint64_t size,
                         gather_extents *list)
{
    struct extent e;
    for (uint64_t at = 0; at < size; at += e.length) {
        int r = index_extent(index, position, at, &e);
        if (r == 0 && e.length == 0)
            r = -EUCLEAN;
        if (r < 0)
            return r;
        if (e.kind == EXTENT_HOLE)
            continue;
        struct pax_extent *last = list->count ? &list->at[list->count - 1] : NULL;
        if (last && last->offset + last->length == at)
            last->length += e.length;
        else if (vector_push(list, (struct pax_extent){at, e.length}) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int input_regular(const struct gather_from *from, const struct node *n,
                         struct gathered *g)
{
    struct gather_file file = {-1, from->input, n->position};
    gather_extents list = {0};
    int r = 0;
    g->member.sparse = n->has_holes;
    if (n->has_holes)
        r = input_extents(from->input->index, n->position, n->size_bytes, &list);
    if (r < 0)
        vector_free(&list);
    return r < 0 ? r : gather_content(g, &file, &list);
}

static int input_node(const struct gather_from *from, struct gathered *g)
{
    struct node n;
    int r = index_node(from->input->index, from->number, &n);
    if (r < 0)
        return r;
    input_attributes(g, from->input, &n);
    if (n.has_xattrs)
        r = input_xattrs(from->input->index, n.position, g);
    if (r == 0 && S_ISDIR(n.mode))
        r = input_folder(from, g);
    else if (r == 0 && S_ISLNK(n.mode))
        r = input_link(from->input->index, n.position, g);
    else if (r == 0 && S_ISREG(n.mode))
        r = input_regular(from, &n, g);
    return r;
}

int gather_from_input(const struct gather_from *from, struct gathered *g)
{
    int r = input_node(from, g);
    if (r == 0 || r == -ENOMEM)
        return r;
    g->is_folder = false;
    return gather_leave_out(g, r, "its entry in the archive's index can't be used");
}
