/*
 * Selects from the names of a listing before anything is asked about a file. So files that are
 * not packed cost nothing, and no process opens what another one writes.
 */
#include "selection.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "cleanup.h"
#include "path.h"

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

static bool selection_wants(const struct selection *s, const struct selection_path *p,
                            size_t root_len, const struct folder_name *n)
{
    const char *in_source = p->text.at + root_len + (root_len != 0);
    if (selection_excludes(s, in_source, n->type == DT_DIR))
        return false;
    return n->type == DT_DIR ||
           selection_has(s, selection_shard(s, p->text.at, p->text.count - 1));
}

static bool selection_is_output_folder(const struct selection *s,
                                       const struct selection_folder *f)
{
    return s->outputs && file_id_equal(f->id, s->output_folder);
}

int selection_apply(const struct selection *s, const struct selection_folder *f,
                    struct listing *listing)
{
    struct selection_path p;
    bool has_outputs = selection_is_output_folder(s, f);
    if (!s->exclude_count && s->world <= 1 && !has_outputs)
        return 0;
    int r = selection_start_path(&p, f->path, f->path_len), outputs = 0;
    size_t kept = 0;
    for (size_t i = 0; r == 0 && i < listing->count; i++) {
        struct folder_name *n = &listing->names[i];
        if (has_outputs && shard_names_match(s->outputs, n->name)) {
            outputs++;
            continue;
        }
        r = selection_set_name(&p, n->name);
        if (r < 0)
            break;
        selection_find_type(s, f->fd, n);
        if (selection_wants(s, &p, f->root_len, n))
            listing->names[kept++] = *n;
    }
    vector_free(&p.text);
    if (r < 0)
        return r;
    listing->count = kept;
    return outputs;
}
