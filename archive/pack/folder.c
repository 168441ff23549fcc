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

/* ---- listings ---- */

static int more_names(struct listing_maker *m)
{
    size_t capacity = m->capacity ? m->capacity * 2 : 64;
    struct folder_name *names = reallocarray(m->names, capacity, sizeof(*names));
    if (!names)
        return -ENOMEM;
    m->names = names;
    size_t *offsets = reallocarray(m->offsets, capacity, sizeof(*offsets));
    if (!offsets)
        return -ENOMEM;
    m->offsets = offsets;
    m->capacity = capacity;
    return 0;
}

int listing_maker_add(struct listing_maker *m, const char *name, size_t len, unsigned char type,
                      uint32_t number)
{
    if (m->count == m->capacity && more_names(m) < 0)
        return -ENOMEM;
    if (len + 1 > m->text_capacity - m->text_len) {
        size_t capacity = m->text_capacity ? m->text_capacity * 2 : 2048;
        while (len + 1 > capacity - m->text_len)
            capacity *= 2;
        char *text = realloc(m->text, capacity);
        if (!text)
            return -ENOMEM;
        m->text = text;
        m->text_capacity = capacity;
    }
    memcpy(m->text + m->text_len, name, len);
    m->text[m->text_len + len] = '\0';
    m->offsets[m->count] = m->text_len;
    m->names[m->count++] = (struct folder_name){.type = type, .number = number};
    m->text_len += len + 1;
    return 0;
}

struct folder_name *listing_maker_last(struct listing_maker *m)
{
    return &m->names[m->count - 1];
}

static int compare_names(const void *a, const void *b)
{
    const struct folder_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

void listing_maker_finish(struct listing_maker *m, struct listing *ret_listing)
{
    bool sorted = true;
    for (size_t i = 0; i < m->count; i++) {
        m->names[i].name = m->text + m->offsets[i];
        sorted = sorted && (i == 0 || compare_names(&m->names[i - 1], &m->names[i]) < 0);
    }
    if (!sorted)
        qsort(m->names, m->count, sizeof(m->names[0]), compare_names);
    free(m->offsets);
    *ret_listing = (struct listing){m->text, m->names, m->count};
    *m = (struct listing_maker){0};
}

void listing_maker_free(struct listing_maker *m)
{
    free(m->text);
    free(m->names);
    free(m->offsets);
    *m = (struct listing_maker){0};
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
    int r = 0;
    for (;;) {
        errno = 0;
        const struct dirent *d = readdir(dir);
        if (!d) {
            r = -errno;
            break;
        }
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        r = listing_maker_add(&maker, d->d_name, strlen(d->d_name), d->d_type, FOLDER_NAME_ALL);
        if (r < 0)
            break;
    }
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

static void link_open(struct folder_set *set, struct folder *f)
{
    f->older = set->newest;
    f->newer = NULL;
    if (set->newest)
        set->newest->newer = f;
    else
        set->oldest = f;
    set->newest = f;
    set->open++;
}

static void unlink_open(struct folder_set *set, struct folder *f)
{
    if (f->older)
        f->older->newer = f->newer;
    else
        set->oldest = f->newer;
    if (f->newer)
        f->newer->older = f->older;
    else
        set->newest = f->older;
    set->open--;
}

/* Closes the oldest folders first: they are nearest to the root and needed last. */
static void close_surplus(struct folder_set *set)
{
    struct folder *f = set->oldest;
    while (f && set->open > set->most) {
        struct folder *newer = f->newer;
        if (f->pins == 0) {
            unlink_open(set, f);
            close(f->fd);
            f->fd = -1;
        }
        f = newer;
    }
}

/* A root, or a folder right below a folder without a descriptor, can't be opened again. */
static bool is_root(const struct folder *f)
{
    return !f->parent || (!f->parent->parent && f->parent->fd < 0);
}

int folder_new(struct folder_set *set, struct folder *parent, const char *name, size_t name_len,
               int fd, uint64_t dev, uint64_t ino, struct listing *listing,
               struct folder **ret_folder)
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
                         .dev = dev,
                         .ino = ino,
                         .name_len = name_len};
    *listing = (struct listing){0};
    memcpy(f->name, name, name_len);
    f->name[name_len] = '\0';
    if (parent)
        parent->refs++;
    if (fd >= 0 && !is_root(f)) {
        link_open(set, f);
        f->pins++;
        close_surplus(set);
        f->pins--;
    }
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
            if (!is_root(f))
                unlink_open(set, f);
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
static int reopen_in(int parent_fd, struct folder *f)
{
    auto_close int fd =
        openat(parent_fd, f->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (st.st_dev != f->dev || st.st_ino != f->ino)
        return -ESTALE;
    f->fd = steal_fd(&fd);
    return 0;
}

/*
 * Goes down from the nearest open ancestor. Each step opens the highest closed folder, so this
 * is a loop and needs no memory, however deep the tree is.
 */
static int reopen(struct folder_set *set, struct folder *folder)
{
    while (folder->fd < 0) {
        struct folder *f = folder;
        while (f->parent && f->parent->fd < 0)
            f = f->parent;
        if (!f->parent)
            return -ESTALE;
        int r = reopen_in(f->parent->fd, f);
        if (r < 0)
            return r;
        link_open(set, f);
        f->pins++; /* the next step needs it */
        close_surplus(set);
        f->pins--;
    }
    return 0;
}

int folder_pin(struct folder_set *set, struct folder *f, int *ret_fd)
{
    int r = reopen(set, f);
    if (r < 0)
        return r;
    f->pins++;
    *ret_fd = f->fd;
    return 0;
}

void folder_unpin(struct folder_set *set, struct folder *f)
{
    f->pins--;
    if (set->open > set->most)
        close_surplus(set);
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
