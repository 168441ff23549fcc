/*
 * Selects from the names of a listing before anything is asked about a file. So files that are
 * not packed cost nothing, and no process opens what another one writes.
 *
 * A list of names is sorted like the members of an archive: depth first. So the names in a
 * directory are contiguous, and a scan finds its children. The text stays where it was read,
 * each name ended by a NUL; the offsets are sorted.
 */
#include "selection.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_UTF8PROC
#include <utf8proc.h>
#endif
#include <xxhash.h>

#include "cleanup.h"
#include "path.h"
#include "text.h"

/* ---- listings ---- */

/*
 * Adds a name, which is copied. -ENOMEM. After the last one listing_sort sets the names' texts,
 * and sorts them if necessary.
 */
static int listing_append(struct listing *l, const char *name, size_t len, unsigned char type,
                          uint32_t number)
{
    struct folder_name entry = {.type = type, .number = number};
    if (vector_reserve(&l->text, len + 1) < 0 || vector_push(l, entry) < 0)
        return -ENOMEM;
    (void)vector_append(&l->text, name, len);
    return vector_push(&l->text, '\0');
}

static int listing_compare(const void *a, const void *b)
{
    const struct folder_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void listing_sort(struct listing *l)
{
    bool sorted = true;
    char *text = l->text.at;
    for (size_t i = 0; i < l->count; i++) {
        l->at[i].name = text;
        text += strlen(text) + 1;
        sorted = sorted && (i == 0 || listing_compare(&l->at[i - 1], &l->at[i]) < 0);
    }
    if (!sorted)
        qsort(l->at, l->count, sizeof(*l->at), listing_compare);
}

int listing_read(int fd, size_t most, struct listing *listing)
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
    const struct dirent *d;
    int r = 0;
    while (r == 0 && (errno = 0, d = readdir(dir)))
        if (!path_is_dots(d->d_name))
            r = listing->count >= most ? -E2BIG
                                       : listing_append(listing, d->d_name, strlen(d->d_name),
                                                        d->d_type, FOLDER_NAME_ALL);
    if (r == 0)
        r = -errno;
    closedir(dir);
    listing_sort(listing);
    return r;
}

/* The children are sorted already. */
int listing_read_index(const struct index *index, uint32_t position, struct listing *listing)
{
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
            r = listing_append(listing, name, len, (unsigned char)IFTODT(child.mode),
                               first + i);
    }
    listing_sort(listing);
    return r;
}

void listing_free(struct listing *listing)
{
    vector_free(&listing->text);
    vector_free(listing);
    *listing = (struct listing){0};
}

/* ---- lists of names ---- */

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

int name_list_children(const struct name_list *list, uint32_t number, size_t path_len,
                       struct listing *ret_listing)
{
    struct listing listing = {0};
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
            listing.at[listing.count - 1].type = DT_DIR;
            continue;
        }
        bool is_folder = part[len] || list->names.at[i] & WHOLE;
        if (listing_append(&listing, part, len, is_folder ? DT_DIR : DT_UNKNOWN, (uint32_t)i) <
            0) {
            listing_free(&listing);
            return -ENOMEM;
        }
        last = part;
        last_len = len;
    }
    listing_sort(&listing);
    *ret_listing = listing;
    return 0;
}

/* ---- patterns ---- */

bool selection_matches(const char *pattern, const char *path, bool is_folder)
{
    size_t len = strlen(pattern);
    bool folders_only = len > 1 && pattern[len - 1] == '/';
    if (folders_only && !is_folder)
        return false;
    auto_free char *cut = folders_only ? strndup(pattern, len - 1) : NULL;
    const char *p = cut ? cut : pattern;
    if (!strchr(p, '/'))
        path = path_base(path);
    p += *p == '/';
    /* Most names end otherwise than their pattern; this finds it faster than fnmatch. */
    const char *last = p + strlen(p), *end = path + strlen(path);
    while (last > p && !strchr("*?[]\\", last[-1]))
        if (end == path || *--end != *--last)
            return false;
    return fnmatch(p, path, 0) == 0;
}

bool selection_excludes(const struct selection *s, const char *path, bool is_folder)
{
    for (size_t i = 0; i < s->exclude_count; i++)
        if (selection_matches(s->excludes[i], path, is_folder))
            return true;
    return false;
}

/* ---- names in Unicode NFC ---- */

static bool selection_is_ascii(const char *text)
{
    while (*text && !(*text & 0x80))
        text++;
    return *text == '\0';
}

/* Adds a name, composed if it is valid UTF-8 and stays short enough for a name. */
static int selection_add_composed(struct text *text, const char *name, size_t len)
{
    uint8_t *nfc = NULL;
    ssize_t n = -1;
#ifdef HAVE_UTF8PROC
    if (len && len < PATH_MAX) { /* a longer one is no file's, and may take long */
        n = utf8proc_map((const uint8_t *)name, (utf8proc_ssize_t)len, &nfc,
                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n == UTF8PROC_ERROR_NOMEM)
            return -ENOMEM;
    }
#endif
    int r = n < 0 || n > (ssize_t)INDEX_NAME_MAX ? vector_append(text, name, len)
                                                 : vector_append(text, nfc, (size_t)n);
    free(nfc);
    return r;
}

int selection_compose(const char *path, char **ret_path)
{
    struct text text = {0};
    int r = 0;
    if (selection_is_ascii(path))
        return 0;
    for (const char *name = path; r == 0; name++) {
        size_t len = strcspn(name, "/");
        r = selection_add_composed(&text, name, len);
        name += len;
        if (r == 0)
            r = vector_push(&text, *name);
        if (!*name)
            break;
    }
    if (r < 0 || strcmp(text.at, path) == 0) {
        vector_free(&text);
        return r;
    }
    *ret_path = text.at;
    return 1;
}

int selection_alike_fault(const struct selection *s, uint64_t count, const char *path,
                          const char *other, struct fault *fault)
{
    if (s->is_nfc)
        return fault_set_advised(
            fault, -EEXIST, path, FAULT_NO_OFFSET, "rename one, or leave it out by --exclude",
            "'%.150s' beside it would get the same name by --normalize", other);
    if (count == 1)
        return fault_set(fault, -EEXIST, path, FAULT_NO_OFFSET,
                         "its name and '%.150s' beside it differ by Unicode normalization only",
                         other);
    return fault_set(fault, -EEXIST, path, FAULT_NO_OFFSET,
                     "is the first of %" PRIu64 " names that differ from one beside them by "
                     "Unicode normalization only, it from '%.120s'",
                     count, other);
}

/* A name of a listing, and what it becomes. */
struct composed_name {
    struct folder_name entry;
    const char *text;
};

static int selection_compare_composed(const void *a, const void *b)
{
    const struct composed_name *x = a, *y = b;
    int r = strcmp(x->text, y->text);
    return r ? r : strcmp(x->entry.name, y->entry.name);
}

/* Puts the names in the order of what they become in the archive, and counts those alike. */
static void selection_order_composed(const struct selection *s, struct composed_name *names,
                                     struct listing *listing)
{
    qsort(names, listing->count, sizeof(*names), selection_compare_composed);
    for (size_t i = 1; i < listing->count; i++) {
        if (strcmp(names[i - 1].text, names[i].text) != 0)
            continue;
        if (listing->alike++ == 0) {
            listing->first_alike[0] = names[i].entry.name;
            listing->first_alike[1] = names[i - 1].entry.name;
        }
    }
    for (size_t i = 0; s->is_nfc && i < listing->count; i++)
        listing->at[i] = names[i].entry;
}

static int selection_find_alike(const struct selection *s, struct listing *listing)
{
    size_t count = 0;
    while (count < listing->count && selection_is_ascii(listing->at[count].name))
        count++;
    if (count == listing->count) /* as almost everywhere */
        return 0;
    struct composed_name *names = calloc(listing->count, sizeof(*names));
    int r = names ? 0 : -ENOMEM;
    for (count = 0; r == 0 && count < listing->count; count++) {
        char *composed;
        names[count].entry = listing->at[count];
        names[count].text = listing->at[count].name;
        r = selection_compose(names[count].text, &composed);
        if (r == 1) {
            names[count].text = composed;
            r = 0;
        }
    }
    if (r == 0)
        selection_order_composed(s, names, listing);
    for (size_t i = 0; i < count; i++)
        if (names[i].text != names[i].entry.name)
            free((char *)names[i].text);
    free(names);
    return r;
}

/* ---- shards ---- */

uint32_t selection_shard(const struct selection *s, const char *path, size_t len)
{
    return s->shards > 1 ? (uint32_t)(XXH3_64bits(path, len) % s->shards) : 0;
}

bool selection_has(const struct selection *s, uint32_t shard)
{
    return s->world <= 1 || shard % s->world == s->rank;
}

/* ---- symbolic links ---- */

int selection_stat_flags(const struct selection *s)
{
    return s->dereference ? 0 : AT_SYMLINK_NOFOLLOW;
}

int selection_open_flags(const struct selection *s)
{
    return O_RDONLY | O_CLOEXEC | (s->dereference ? 0 : O_NOFOLLOW);
}

/* ---- listings ---- */

/*
 * Finds out whether the entry is a directory, if a decision depends on it. For listed names it
 * does not: a directory without listed names below it goes to the shard of its name.
 */
static void selection_find_type(const struct selection *s, int folder_fd, struct folder_name *n)
{
    struct stat st;
    bool matters = s->exclude_count || (s->world > 1 && n->number == FOLDER_NAME_ALL);
    bool is_open = n->type == DT_UNKNOWN || (n->type == DT_LNK && s->dereference);
    if (is_open && matters && folder_fd >= 0 &&
        fstatat(folder_fd, n->name, &st, selection_stat_flags(s)) == 0)
        n->type = (unsigned char)IFTODT(st.st_mode);
}

/* Is an entry of this rank's shards? A folder may have some below it. */
static int selection_is_own(const struct selection *s, const char *path, bool is_folder)
{
    auto_free char *composed = NULL;
    if (is_folder)
        return 1;
    int r = s->is_nfc ? selection_compose(path, &composed) : 0;
    const char *packed = r == 1 ? composed : path;
    return r < 0 ? r : selection_has(s, selection_shard(s, packed, strlen(packed)));
}

/* Drops from the listing what patterns leave out; or with `by_shard` what other ranks pack. */
static int selection_drop(const struct selection *s, const struct selection_folder *f,
                          bool by_shard, struct listing *listing)
{
    struct text path = {0};
    int r = vector_append(&path, f->path, f->path_len);
    size_t kept = 0, in_source = f->root_len + (f->root_len != 0);
    for (size_t i = 0; r >= 0 && i < listing->count; i++) {
        struct folder_name *n = &listing->at[i];
        path.count = f->path_len;
        if ((path.count && vector_push(&path, '/') < 0) ||
            vector_append(&path, n->name, strlen(n->name) + 1) < 0) {
            r = -ENOMEM;
            break;
        }
        selection_find_type(s, f->fd, n);
        r = by_shard ? selection_is_own(s, path.at, n->type == DT_DIR)
                     : !selection_excludes(s, path.at + in_source, n->type == DT_DIR);
        if (r == 1)
            listing->at[kept++] = *n;
    }
    vector_free(&path);
    if (r >= 0)
        listing->count = kept;
    return r < 0 ? r : 0;
}

/* Drops the shards of this run, and returns how many. */
static int selection_drop_outputs(const struct selection *s, const struct selection_folder *f,
                                  struct listing *listing)
{
    size_t kept = 0, count = listing->count;
    if (!s->outputs || !file_id_equal(f->id, s->output_folder))
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!shard_names_match(s->outputs, listing->at[i].name))
            listing->at[kept++] = listing->at[i];
    listing->count = kept;
    return (int)(count - kept);
}

int selection_apply(const struct selection *s, const struct selection_folder *f,
                    struct listing *listing)
{
    int outputs = selection_drop_outputs(s, f, listing);
    int r = s->exclude_count ? selection_drop(s, f, false, listing) : 0;
    if (r == 0)
        r = selection_find_alike(s, listing);
    if (r == 0 && s->world > 1)
        r = selection_drop(s, f, true, listing);
    return r < 0 ? r : outputs;
}
