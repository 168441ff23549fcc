/*
 * Selects from the names of a listing before anything is asked about a file. So files that are
 * not packed cost nothing, and no process opens what another one writes.
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

#ifdef HAVE_UTF8PROC
#include <utf8proc.h>
#endif
#include <xxhash.h>

#include "cleanup.h"
#include "path.h"
#include "text.h"

/* ---- patterns ---- */

/* Most names end otherwise than their pattern, which is found out faster than by fnmatch. */
static bool selection_ends_alike(const char *pattern, const char *path)
{
    const char *p = pattern + strlen(pattern), *end = path + strlen(path);
    while (p > pattern && !strchr("*?[]\\", p[-1]))
        if (end == path || *--end != *--p)
            return false;
    return true;
}

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
    return selection_ends_alike(p, path) && fnmatch(p, path, 0) == 0;
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
        listing->names[i] = names[i].entry;
}

static int selection_find_alike(const struct selection *s, struct listing *listing)
{
    size_t count = 0;
    while (count < listing->count && selection_is_ascii(listing->names[count].name))
        count++;
    if (count == listing->count) /* as almost everywhere */
        return 0;
    struct composed_name *names = calloc(listing->count, sizeof(*names));
    int r = names ? 0 : -ENOMEM;
    for (count = 0; r == 0 && count < listing->count; count++) {
        char *composed;
        names[count].entry = listing->names[count];
        names[count].text = listing->names[count].name;
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

/* A path whose last component is replaced by one name after another. */
struct selection_path {
    VECTOR(char) text;
    size_t folder_len; /* with its slash */
};

static int selection_set_name(struct selection_path *p, const char *name)
{
    p->text.count = p->folder_len;
    return vector_append(&p->text, name, strlen(name) + 1);
}

static int selection_start_path(struct selection_path *p, const char *folder, size_t len)
{
    *p = (struct selection_path){.folder_len = len + (len != 0)};
    return vector_append(&p->text, folder, len) < 0 || vector_push(&p->text, '/') < 0 ? -ENOMEM
                                                                                      : 0;
}

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
    struct selection_path p;
    int r = selection_start_path(&p, f->path, f->path_len);
    size_t kept = 0, in_source = f->root_len + (f->root_len != 0);
    for (size_t i = 0; r >= 0 && i < listing->count; i++) {
        struct folder_name *n = &listing->names[i];
        r = selection_set_name(&p, n->name);
        if (r < 0)
            break;
        selection_find_type(s, f->fd, n);
        r = by_shard ? selection_is_own(s, p.text.at, n->type == DT_DIR)
                     : !selection_excludes(s, p.text.at + in_source, n->type == DT_DIR);
        if (r == 1)
            listing->names[kept++] = *n;
    }
    vector_free(&p.text);
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
        if (!shard_names_match(s->outputs, listing->names[i].name))
            listing->names[kept++] = listing->names[i];
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
