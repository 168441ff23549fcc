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

#include "text.h"
#include "vector.h"

/* Flag in the offset of a name: the name ended with a slash. */
#define WHOLE (UINT64_C(1) << 63)

struct name_list {
    struct text text;
    VECTOR(uint64_t) names; /* offsets in the text */
};

/* Where names go that can't be right, and what they may be relative to. */
struct name_reader {
    struct name_list *list;
    const char *root;
    name_list_report *report;
    void *ctx;
};

void name_list_free(struct name_list *list)
{
    if (!list)
        return;
    vector_free(&list->text);
    vector_free(&list->names);
    free(list);
}

uint64_t name_list_count(const struct name_list *list)
{
    return list->names.count;
}

/* ---- names in one form ---- */

static int name_refuse(const struct name_reader *r, const char *name, const char *why,
                       const char *advice)
{
    struct fault fault = {0};
    fault_set_advised(&fault, -EINVAL, name, FAULT_NO_OFFSET, advice, "%s", why);
    return r->report(r->ctx, &fault);
}

/* The part of an absolute name below the directory; NULL if the name is not in it. */
static char *name_below_root(char *name, const char *root)
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
static int name_normalise(char *name, bool *ret_whole)
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

static int name_add(const struct name_reader *r, char *name)
{
    bool whole;
    char *relative = name[0] == '/' ? name_below_root(name, r->root) : name;
    if (!relative)
        return name_refuse(r, name, "it is not in the directory", "name it relative to that");
    if (!name_normalise(relative, &whole))
        return name_refuse(r, name, "its name has '..' in it", "name it without");
    if (!*relative && !whole)
        return 0; /* the directory itself is always packed */
    uint64_t offset = (uint64_t)(relative - r->list->text.at);
    return vector_push(&r->list->names, offset | (whole ? WHOLE : 0));
}

static int name_add_all(const struct name_reader *reader, char separator)
{
    struct name_list *list = reader->list;
    if (vector_push(&list->text, separator) < 0)
        return -ENOMEM;
    char *end = list->text.at + list->text.count;
    for (char *name = list->text.at; name < end;) {
        char *stop = memchr(name, separator, (size_t)(end - name));
        *stop = '\0';
        int r = *name ? name_add(reader, name) : 0;
        if (r < 0)
            return r;
        name = stop + 1;
    }
    return list->names.count >= UINT32_MAX - 300 ? -E2BIG : 0;
}

/* ---- order ---- */

/* Order: the end of a name, then a slash, then all other bytes. */
static int name_weight(char c)
{
    return c == '\0' ? 0 : c == '/' ? 1 : (unsigned char)c + 2;
}

static const char *name_text(const struct name_list *list, size_t number)
{
    return list->text.at + (list->names.at[number] & ~WHOLE);
}

static int name_compare(const void *a, const void *b, void *ctx)
{
    const char *text = ctx;
    const char *x = text + (*(const uint64_t *)a & ~WHOLE);
    const char *y = text + (*(const uint64_t *)b & ~WHOLE);
    while (*x && *x == *y) {
        x++;
        y++;
    }
    return name_weight(*x) - name_weight(*y);
}

/* A list that a program made often is. */
static bool name_list_is_sorted(const struct name_list *list)
{
    for (size_t i = 1; i < list->names.count; i++)
        if (name_compare(&list->names.at[i - 1], &list->names.at[i], list->text.at) > 0)
            return false;
    return true;
}

/* Is `name` the directory `folder`, or in it? */
static bool name_is_within(const char *name, const char *folder, size_t folder_len)
{
    return strncmp(name, folder, folder_len) == 0 &&
           (!folder_len || name[folder_len] == '/' || !name[folder_len]);
}

/* Drops repeated names, and names in a directory that is packed whole. */
static void name_list_drop_repeated(struct name_list *list)
{
    size_t kept = 0, count = list->names.count;
    uint64_t *names = list->names.at;
    for (size_t i = 0; i < count;) {
        const char *name = name_text(list, i);
        size_t len = strlen(name), next = i + 1;
        uint64_t whole = names[i] & WHOLE;
        while (next < count && strcmp(name_text(list, next), name) == 0)
            whole |= names[next++] & WHOLE;
        while (whole && next < count && name_is_within(name_text(list, next), name, len))
            next++;
        names[kept++] = (uint64_t)(name - list->text.at) | whole;
        i = next;
    }
    list->names.count = kept;
}

int name_list_read(int fd, bool nul, const char *root, name_list_report *report, void *ctx,
                   struct name_list **ret_list)
{
    struct name_list *list = calloc(1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    struct name_reader reader = {list, root, report, ctx};
    int r = text_read(fd, TEXT_BYTES_MOST, &list->text);
    if (r == 0 && list->text.count) {
        bool has_nul = memchr(list->text.at, '\0', list->text.count) != NULL;
        r = name_add_all(&reader, nul || has_nul ? '\0' : '\n');
    }
    if (r < 0) {
        name_list_free(list);
        return r;
    }
    if (!name_list_is_sorted(list))
        qsort_r(list->names.at, list->names.count, sizeof(*list->names.at), name_compare,
                list->text.at);
    name_list_drop_repeated(list);
    *ret_list = list;
    return 0;
}

const char *name_list_name(const struct name_list *list, size_t number, bool *ret_whole)
{
    *ret_whole = list->names.at[number] & WHOLE;
    return name_text(list, number);
}

/* ---- directories ---- */

int name_list_children(const struct name_list *list, uint32_t number, size_t path_len,
                       struct listing *ret_listing)
{
    struct listing_maker maker = {0};
    const char *folder = number < list->names.count ? name_text(list, number) : "",
               *last = NULL;
    size_t last_len = 0, i = number;
    if (i < list->names.count && folder[path_len] == '\0') {
        if (list->names.at[i] & WHOLE)
            return 1;
        i++; /* itself */
    }
    for (; i < list->names.count && name_is_within(name_text(list, i), folder, path_len); i++) {
        const char *part = name_text(list, i) + path_len + (path_len != 0);
        size_t len = strcspn(part, "/");
        if (last && len == last_len && memcmp(part, last, len) == 0) {
            maker.names.at[maker.names.count - 1].type = DT_DIR;
            continue;
        }
        bool is_folder = part[len] || list->names.at[i] & WHOLE;
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
