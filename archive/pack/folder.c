/*
 * Folders: sorted listings, and descriptors within a budget.
 */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "path.h"

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
    *ret_listing = (struct listing){m->text.at, names, m->names.count};
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

void folder_ref(struct folder *f)
{
    f->refs++;
}

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
        if (f->kept)
            f->free_kept(f->kept);
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

int folder_pin(struct folder_set *set, struct folder *f, int *ret_fd)
{
    int r = folder_reopen(set, f);
    if (r < 0)
        return r;
    f->pins++;
    *ret_fd = f->fd;
    return 0;
}

void folder_unpin(struct folder_set *set, struct folder *f)
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
