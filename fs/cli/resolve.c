/*
 * Follows a path through the index, component by component. As in the kernel, a symbolic link's
 * target replaces the link in the rest of the path.
 */
#include "resolve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINKS_MAX 40 /* as the kernel's MAXSYMLINKS */

struct walk {
    const struct index *index;
    uint32_t directory; /* the walk's current directory */
    uint32_t found;     /* the entry that it reached */
    char *text;         /* of the last link, owned */
    const char *rest;   /* the rest of the path, in `text` or in the caller's path */
    unsigned links;
};

static int follow_link(struct walk *w)
{
    const char *target;
    size_t len;
    int r = index_symlink(w->index, w->found, &target, &len);
    if (r < 0)
        return r;
    if (++w->links > LINKS_MAX)
        return -ELOOP;
    if (len == 0)
        return -ENOENT;
    if (target[0] == '/')
        return -EXDEV;
    char *text;
    if (asprintf(&text, "%.*s%s", (int)len, target, w->rest) < 0)
        return -ENOMEM;
    free(w->text);
    w->text = text;
    w->rest = text;
    w->found = w->directory;
    return 0;
}

static int step_up(struct walk *w)
{
    if (w->directory == INDEX_ROOT)
        return -EXDEV;
    int r = index_parent(w->index, w->directory, &w->directory);
    w->found = w->directory;
    return r;
}

static int step_down(struct walk *w, const char *name, size_t len)
{
    struct node node;
    int r = index_lookup(w->index, w->directory, name, len, &w->found);
    if (r < 0)
        return r;
    r = index_node(w->index, w->found, &node);
    if (r < 0)
        return r;
    if (S_ISLNK(node.mode))
        return follow_link(w);
    if (S_ISDIR(node.mode))
        w->directory = w->found;
    else if (*w->rest)
        return -ENOTDIR;
    return 0;
}

static int walk_all(struct walk *w)
{
    int r = 0;
    while (r == 0) {
        w->rest += strspn(w->rest, "/");
        if (!*w->rest)
            break;
        const char *name = w->rest;
        size_t len = strcspn(name, "/");
        w->rest += len;
        if (len == 2 && memcmp(name, "..", 2) == 0)
            r = step_up(w);
        else if (len != 1 || name[0] != '.')
            r = step_down(w, name, len);
    }
    return r;
}

int resolve_path(const struct index *index, const char *path, uint32_t *ret_position)
{
    struct walk w = {
        .index = index, .directory = INDEX_ROOT, .found = INDEX_ROOT, .rest = path};
    int r = walk_all(&w);
    free(w.text);
    if (r == 0)
        *ret_position = w.found;
    return r;
}

const char *resolve_error(int err)
{
    switch (err < 0 ? -err : err) {
    case ENOENT:
        return "no such file or directory in the archive";
    case ENOTDIR:
        return "a component of the path is not a directory";
    case ELOOP:
        return "too many symbolic links";
    case EXDEV:
        return "a symbolic link or '..' leads out of the archive";
    default:
        return NULL;
    }
}
