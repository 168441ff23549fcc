/*
 * A list of names, sorted like the members of an archive: depth first. So the names in a
 * directory are contiguous, and a scan finds its children.
 *
 * The text stays where it was read, each name ended by a NUL; the offsets are sorted.
 */
#include "name_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Flag in the offset of a name: the name ended with a slash. */
#define WHOLE (UINT64_C(1) << 63)

struct name_list {
    char *text;
    size_t text_len, text_capacity;
    uint64_t *names; /* offsets in the text */
    size_t count, capacity;
};

void name_list_free(struct name_list *list)
{
    if (!list)
        return;
    free(list->text);
    free(list->names);
    free(list);
}

uint64_t name_list_count(const struct name_list *list)
{
    return list->count;
}

/* ---- reading ---- */

static int read_text(struct name_list *list, int fd)
{
    for (;;) {
        if (list->text_capacity - list->text_len < 2) {
            size_t capacity =
                list->text_capacity ? list->text_capacity + list->text_capacity / 2 : 1 << 16;
            char *text = realloc(list->text, capacity);
            if (!text)
                return -ENOMEM;
            list->text = text;
            list->text_capacity = capacity;
        }
        ssize_t n = read(fd, list->text + list->text_len,
                         list->text_capacity - list->text_len - 1); /* room for a last NUL */
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        list->text_len += (size_t)n;
    }
}

/* ---- names in one form ---- */

static int refuse(const char *name, const char *why, const char *advice,
                  name_list_report *report, void *ctx)
{
    struct fault fault = {0};
    fault_set(&fault, -EINVAL, name, FAULT_NO_OFFSET, "left out: %s", why);
    fault_advise(&fault, "%s", advice);
    return report(ctx, &fault);
}

/* The part of an absolute name below the directory; NULL if the name is not in it. */
static char *below_root(char *name, const char *root)
{
    size_t len = root ? strlen(root) : 0;
    while (len > 1 && root[len - 1] == '/')
        len--;
    if (!len || strncmp(name, root, len) != 0)
        return NULL;
    if (len == 1)
        return name + 1;
    return name[len] == '/' || !name[len] ? name + len : NULL;
}

/*
 * Removes "." and double slashes, in place. Returns 1, or 0 if the name has "..". A slash at
 * the end is removed, too, and sets *ret_whole.
 */
static int normalise(char *name, bool *ret_whole)
{
    char *to = name;
    bool whole = false;
    for (const char *from = name; *from;) {
        size_t len = strcspn(from, "/");
        const char *part = from;
        from += len;
        whole = *from == '/';
        from += whole;
        if (len == 0 || (len == 1 && part[0] == '.'))
            continue;
        if (len == 2 && part[0] == '.' && part[1] == '.')
            return 0;
        if (to != name)
            *to++ = '/';
        memmove(to, part, len);
        to += len;
    }
    *to = '\0';
    *ret_whole = whole;
    return 1;
}

static int add_offset(struct name_list *list, uint64_t offset)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity + list->capacity / 2 : 1024;
        uint64_t *names = reallocarray(list->names, capacity, sizeof(*names));
        if (!names)
            return -ENOMEM;
        list->names = names;
        list->capacity = capacity;
    }
    list->names[list->count++] = offset;
    return 0;
}

static int add_name(struct name_list *list, char *name, const char *root,
                    name_list_report *report, void *ctx)
{
    char *relative = name;
    bool whole;
    if (name[0] == '/')
        relative = below_root(name, root);
    if (!relative)
        return refuse(name, "it is not in the directory", "name it relative to that", report,
                      ctx);
    if (!normalise(relative, &whole))
        return refuse(name, "its name has '..' in it", "name it without", report, ctx);
    if (!*relative && !whole)
        return 0; /* the directory itself is always packed */
    return add_offset(list, (uint64_t)(relative - list->text) | (whole ? WHOLE : 0));
}

static int add_names(struct name_list *list, char separator, const char *root,
                     name_list_report *report, void *ctx)
{
    char *end = list->text + list->text_len;
    *end = separator;
    for (char *name = list->text; name < end;) {
        char *stop = memchr(name, separator, (size_t)(end - name) + 1);
        *stop = '\0';
        int r = *name ? add_name(list, name, root, report, ctx) : 0;
        if (r < 0)
            return r;
        name = stop + 1;
    }
    return list->count >= UINT32_MAX - 300 ? -E2BIG : 0;
}

/* ---- order ---- */

/* Order: the end of a name, then a slash, then all other bytes. */
static int weight(char c)
{
    return c == '\0' ? 0 : c == '/' ? 1 : (unsigned char)c + 2;
}

static const char *text_of(const struct name_list *list, size_t number)
{
    return list->text + (list->names[number] & ~WHOLE);
}

static int compare(const void *a, const void *b, void *ctx)
{
    const char *text = ctx;
    const char *x = text + (*(const uint64_t *)a & ~WHOLE);
    const char *y = text + (*(const uint64_t *)b & ~WHOLE);
    while (*x && *x == *y) {
        x++;
        y++;
    }
    return weight(*x) - weight(*y);
}

/* Is `name` the directory `folder`, or in it? */
static bool is_within(const char *name, const char *folder, size_t folder_len)
{
    return strncmp(name, folder, folder_len) == 0 &&
           (!folder_len || name[folder_len] == '/' || !name[folder_len]);
}

/* Drops repeated names, and names in a directory that is packed whole. */
static void drop_repeated(struct name_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count;) {
        const char *name = text_of(list, i);
        size_t len = strlen(name), next = i + 1;
        uint64_t whole = list->names[i] & WHOLE;
        while (next < list->count && strcmp(text_of(list, next), name) == 0)
            whole |= list->names[next++] & WHOLE;
        while (whole && next < list->count && is_within(text_of(list, next), name, len))
            next++;
        list->names[kept++] = (uint64_t)(name - list->text) | whole;
        i = next;
    }
    list->count = kept;
}

int name_list_read(int fd, bool nul, const char *root, name_list_report *report, void *ctx,
                   struct name_list **ret_list)
{
    struct name_list *list = calloc(1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    int r = read_text(list, fd);
    if (r == 0 && list->text_len) {
        bool has_nul = memchr(list->text, '\0', list->text_len) != NULL;
        r = add_names(list, nul || has_nul ? '\0' : '\n', root, report, ctx);
    }
    if (r < 0) {
        name_list_free(list);
        return r;
    }
    if (list->count)
        qsort_r(list->names, list->count, sizeof(*list->names), compare, list->text);
    drop_repeated(list);
    *ret_list = list;
    return 0;
}

/* ---- directories ---- */

/* The length of a path's first component. */
static size_t first_part(const char *path)
{
    return strcspn(path, "/");
}

int name_list_children(const struct name_list *list, uint32_t number, size_t path_len,
                       struct listing *ret_listing)
{
    struct listing_maker maker = {0};
    const char *folder = number < list->count ? text_of(list, number) : "", *last = NULL;
    size_t last_len = 0, i = number;
    if (i < list->count && folder[path_len] == '\0') {
        if (list->names[i] & WHOLE)
            return 1;
        i++; /* itself */
    }
    for (; i < list->count && is_within(text_of(list, i), folder, path_len); i++) {
        const char *part = text_of(list, i) + path_len + (path_len != 0);
        size_t len = first_part(part);
        if (last && len == last_len && memcmp(part, last, len) == 0) {
            listing_maker_last(&maker)->type = DT_DIR;
            continue;
        }
        bool is_folder = part[len] || list->names[i] & WHOLE;
        if (listing_maker_add(&maker, part, len, is_folder ? DT_DIR : DT_UNKNOWN, (uint32_t)i) <
            0) {
            listing_maker_free(&maker);
            return -ENOMEM;
        }
        last = part;
        last_len = len;
    }
    listing_maker_finish(&maker, ret_listing);
    return 0;
}
