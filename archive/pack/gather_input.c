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

#include <xxhash.h>

#include "checksum.h"
#include "gather_private.h"

ssize_t gather_read_input(const struct input *input, uint32_t position, uint8_t *bytes,
                          size_t len, uint64_t offset)
{
    size_t done;
    int r = input->read(input->ctx, position, offset, bytes, len, &done);
    return r < 0 ? r : (ssize_t)done;
}

/* Puts name and value in one piece of memory that the attribute owns, as in add_xattr. */
static int copy_xattr(struct gathered *g, const struct xattr *x)
{
    char *bytes = malloc(x->name_len + x->value_len + 1);
    if (!bytes)
        return -ENOMEM;
    memcpy(bytes, x->name, x->name_len);
    memcpy(bytes + x->name_len, x->value, x->value_len);
    g->xattrs[g->member.xattr_count++] =
        (struct pax_xattr){bytes, x->name_len, bytes + x->name_len, x->value_len};
    return 0;
}

static int compare_xattrs(const void *a, const void *b)
{
    const struct pax_xattr *x = a, *y = b;
    size_t len = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp(x->name, y->name, len);
    return order ? order : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static int copy_xattrs(const struct index *index, uint32_t position, struct gathered *g)
{
    struct xattr x;
    uint64_t cursor = 0;
    size_t count = 0;
    int r;
    while ((r = index_xattr_next(index, position, &cursor, &x)) == 0)
        count++;
    if (r != -ENOENT || !count)
        return r == -ENOENT ? 0 : r;
    g->xattrs = calloc(count, sizeof(*g->xattrs));
    if (!g->xattrs)
        return -ENOMEM;
    g->member.xattrs = g->xattrs;
    cursor = 0;
    for (r = 0; r == 0 && g->member.xattr_count < count;)
        if ((r = index_xattr_next(index, position, &cursor, &x)) == 0)
            r = copy_xattr(g, &x);
    qsort(g->xattrs, g->member.xattr_count, sizeof(*g->xattrs), compare_xattrs);
    return r;
}

static void take_node(struct gathered *g, const struct input *input, const struct node *n)
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
    g->dev = (uintptr_t)input; /* unique among the sources of a run */
    g->ino = n->position;
    g->nlink = n->nlink;
}

static int copy_link(const struct index *index, uint32_t position, struct gathered *g)
{
    const char *target;
    size_t len;
    int r = index_symlink(index, position, &target, &len);
    if (r < 0)
        return r;
    g->link = malloc(len + 1);
    if (!g->link)
        return -ENOMEM;
    memcpy(g->link, target, len);
    g->link[len] = '\0';
    g->member.link = g->link;
    g->member.link_len = len;
    return 0;
}

/* The children are sorted already. */
static int list_input(const struct index *index, uint32_t position, struct listing *listing)
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

static int gather_input_folder(const struct gather_from *from, struct gathered *g)
{
    g->is_folder = true;
    int r = list_input(from->input->index, from->number, &g->listing);
    if (r < 0)
        return r;
    struct selection_folder folder = {g->path, g->member.path_len, from->root_len, -1, 0, 0};
    r = selection_apply(from->selection, &folder, &g->listing);
    return r < 0 ? r : 0;
}

/* Finds where the file has data; merges neighbouring extents. */
static int find_input_extents(const struct index *index, uint32_t position, uint64_t size,
                              struct extent_list *list)
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
        struct pax_extent *last = list->count ? &list->extents[list->count - 1] : NULL;
        if (last && last->offset + last->length == at)
            last->length += e.length;
        else if (gather_add_extent(list, at, at + e.length) < 0)
            return -ENOMEM;
    }
    return 0;
}

void gather_sum_fault(const char *path, struct fault *fault)
{
    fault_set(fault, -EBADMSG, path, FAULT_NO_OFFSET,
              "is damaged: its data do not match their checksum in the archive");
}

static int damaged_sum(const char *path, struct fault **problem)
{
    free(*problem);
    *problem = calloc(1, sizeof(**problem));
    if (!*problem)
        return -ENOMEM;
    gather_sum_fault(path, *problem);
    return 0;
}

static int read_input_inline(const struct gather_from *from, struct gathered *g)
{
    size_t size = (size_t)g->member.size_bytes;
    uint64_t sum;
    if (!size)
        return 0;
    g->data = malloc(size);
    if (!g->data)
        return -ENOMEM;
    ssize_t n = gather_read_input(from->input, (uint32_t)g->ino, g->data, size, 0);
    int r = 0;
    if (n != (ssize_t)size)
        r = gather_fill_up(g->path, g->data, size, n, 0, &g->problem);
    g->sum = XXH3_64bits(g->data, size);
    enum sum_kind kind = index_info(from->input->index)->sum_kind;
    if (r == 0 && !g->problem && index_sum(from->input->index, (uint32_t)g->ino, &sum) == 0 &&
        sum != (kind == SUM_XXH3 ? g->sum : checksum_of(kind, g->data, size)))
        r = damaged_sum(g->path, &g->problem);
    return r;
}

static int open_input_stream(const struct gather_from *from, struct gathered *g,
                             struct extent_list *list)
{
    int none = -1;
    int r = gather_open_stream(g, &none, list);
    if (r < 0)
        return r;
    g->stream->input = from->input;
    g->stream->position = (uint32_t)g->ino;
    if (index_sum(from->input->index, (uint32_t)g->ino, &g->stream->sum) < 0)
        return 0;
    return checksum_new(index_info(from->input->index)->sum_kind, &g->stream->checksum);
}

static int gather_input_regular(const struct gather_from *from, const struct node *n,
                                struct gathered *g)
{
    struct extent_list list = {0};
    int r = 0;
    g->member.sparse = n->has_holes;
    if (n->has_holes)
        r = find_input_extents(from->input->index, n->position, n->size_bytes, &list);
    bool hollow = n->has_holes && list.count == 0;
    if (r == 0 && !hollow && (n->has_holes || n->size_bytes > GATHER_PIECE_BYTES))
        r = open_input_stream(from, g, &list);
    else if (r == 0 && !hollow)
        r = read_input_inline(from, g);
    free(list.extents);
    return r;
}

static int gather_node(const struct gather_from *from, struct gathered *g, bool has_turn)
{
    struct node n;
    int r = index_node(from->input->index, from->number, &n);
    if (r < 0)
        return r;
    take_node(g, from->input, &n);
    g->again = S_ISREG(n.mode) && n.nlink > 1 && !has_turn;
    if (g->again)
        return 0;
    if (n.has_xattrs)
        r = copy_xattrs(from->input->index, n.position, g);
    if (r == 0 && S_ISDIR(n.mode))
        r = gather_input_folder(from, g);
    else if (r == 0 && S_ISLNK(n.mode))
        r = copy_link(from->input->index, n.position, g);
    else if (r == 0 && S_ISREG(n.mode))
        r = gather_input_regular(from, &n, g);
    return r;
}

int gather_from_input(const struct gather_from *from, struct gathered *g, bool has_turn)
{
    int r = gather_node(from, g, has_turn);
    if (r == 0 || r == -ENOMEM)
        return r;
    g->is_folder = false;
    return gather_leave_out(g, r, "its entry in the archive's index can't be used");
}
