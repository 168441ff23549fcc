/*
 * The index, reading side: paths with symbolic links. As in the kernel, a link's target starts
 * in the directory that holds the link, and ".." is the parent of the directory that was
 * reached. A link costs one level of recursion, which its limit bounds.
 */
#include <errno.h>
#include <sys/stat.h>

#include "index_private.h"
#include "path.h"

#define LINKS_MAX 40u /* as the kernel's MAXSYMLINKS */

static int index_follow_path(const struct index *index, uint32_t directory, const char *path,
                             size_t len, struct index_way *way, uint32_t *ret_position);

static int index_follow_link(const struct index *index, uint32_t link, uint32_t directory,
                             struct index_way *way, uint32_t *ret_position)
{
    const char *target;
    size_t len;
    int r = index_symlink(index, link, &target, &len);
    if (r < 0)
        return r;
    if (way->links >= LINKS_MAX)
        return -ELOOP;
    way->links++;
    if (len == 0)
        return -ENOENT;
    if (target[0] == '/')
        return -EXDEV;
    return index_follow_path(index, directory, target, len, way, ret_position);
}

/* One name of a path. */
static int index_follow_name(const struct index *index, uint32_t directory, const char *name,
                             size_t len, struct index_way *way, uint32_t *ret_position)
{
    struct node node;
    uint32_t position;
    way->steps++;
    if (path_are_dots(name, len))
        return directory == INDEX_ROOT ? -EXDEV : index_parent(index, directory, ret_position);
    int r = index_lookup(index, directory, name, len, &position);
    if (r == 0)
        r = index_node(index, position, &node);
    if (r < 0)
        return r;
    if (S_ISLNK(node.mode))
        return index_follow_link(index, position, directory, way, ret_position);
    *ret_position = position;
    return 0;
}

static int index_follow_path(const struct index *index, uint32_t directory, const char *path,
                             size_t len, struct index_way *way, uint32_t *ret_position)
{
    const char *name;
    size_t name_len;
    while (path_next_name(&path, &len, &name, &name_len)) {
        uint32_t first, count;
        int r = index_follow_name(index, directory, name, name_len, way, &directory);
        if (r == 0 && path != name + name_len) /* a slash follows */
            r = index_children(index, directory, &first, &count);
        if (r < 0)
            return r;
    }
    *ret_position = directory;
    return 0;
}

int index_follow(const struct index *index, uint32_t from, const char *path,
                 struct index_way *way, uint32_t *ret_position)
{
    struct index_way own = {0};
    struct node node;
    uint32_t directory;
    int r = index_node(index, from, &node);
    if (!way)
        way = &own;
    if (r == 0 && S_ISLNK(node.mode)) {
        r = index_parent(index, from, &directory);
        if (r == 0)
            r = index_follow_link(index, from, directory, way, &from);
    }
    return r < 0 ? r : index_follow_path(index, from, path, strlen(path), way, ret_position);
}
