#include "list_paths.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_MOST (2 * PATH_MAX + 3u) /* a quoted path; a longer line names no file */
#define SAMPLE_LINES 64u
#define PREFIXES_MAX 32u
#define DIRECTORIES_MAX 256u
#define ENTRIES_MAX 4096u /* of the root, searched for directories */

/* ---- lines ---- */

void list_text_init(struct list_text *t, const char *bytes, size_t len)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, as Windows programs write it */
    bool marked = len >= 3 && memcmp(bytes, mark, 3) == 0;

    *t = (struct list_text){.text = bytes, .len = len, .at = marked ? 3 : 0};
    t->separator = len && memchr(bytes, '\0', len) ? '\0' : '\n';
}

bool list_text_next(struct list_text *t, const char **ret_line, size_t *ret_len)
{
    while (t->at < t->len) {
        const char *line = t->text + t->at;
        const char *end = memchr(line, t->separator, t->len - t->at);
        size_t n = end ? (size_t)(end - line) : t->len - t->at;
        t->at += n + 1;
        t->line++;
        if (n == 0 || (n == 1 && line[0] == '\r'))
            continue;
        *ret_line = line;
        *ret_len = n;
        return true;
    }
    return false;
}

/* ---- quoting ---- */

static const char escaped[] = "\\\"\n\r", letters[] = "\\\"nr";

bool list_path_is_odd(const char *path, size_t len)
{
    return len > 0 && (path[0] == '"' || path[len - 1] == '\r' || memchr(path, '\n', len));
}

size_t list_path_quote(const char *path, size_t len, char *ret_quoted)
{
    char *out = ret_quoted;

    *out++ = '"';
    for (size_t i = 0; i < len; i++) {
        const char *known = path[i] ? strchr(escaped, path[i]) : NULL;
        if (known)
            *out++ = '\\';
        *out++ = known ? letters[known - escaped] : path[i];
    }
    *out++ = '"';
    return (size_t)(out - ret_quoted);
}

/* -EINVAL: the line is not quoted, or not correctly. */
static int list_path_unquote(const char *line, size_t len, char ret_path[PATH_MAX],
                             size_t *ret_len)
{
    size_t n = 0;

    if (len < 2 || line[0] != '"' || line[len - 1] != '"')
        return -EINVAL;
    for (size_t i = 1; i < len - 1; i++) {
        char c = line[i];
        if (c == '\\') {
            const char *letter = i + 1 < len - 1 ? strchr(letters, line[i + 1]) : NULL;
            if (!letter || !*letter)
                return -EINVAL;
            c = escaped[letter - letters];
            i++;
        }
        if (n == PATH_MAX)
            return -ENAMETOOLONG;
        ret_path[n++] = c;
    }
    *ret_len = n;
    return 0;
}

/* ---- paths ---- */

static int list_paths_resolve_one(const struct list_paths *p, const char *path, size_t len,
                                  uint32_t *ret_position)
{
    if (p->prefix_len && len > p->prefix_len && memcmp(path, p->prefix, p->prefix_len) == 0 &&
        index_resolve_from(p->index, p->root, path + p->prefix_len, len - p->prefix_len,
                           ret_position) == 0)
        return 0;
    return index_resolve_from(p->index, p->directory, path, len, ret_position);
}

int list_paths_resolve(const struct list_paths *p, const char *line, size_t len,
                       uint32_t *ret_position)
{
    bool returns = len > 0 && line[len - 1] == '\r';
    char path[PATH_MAX];
    size_t path_len;

    if (len > LINE_MOST)
        return -ENAMETOOLONG;
    if (list_path_unquote(line, len - returns, path, &path_len) == 0 &&
        list_paths_resolve_one(p, path, path_len, ret_position) == 0)
        return 0;
    int r = list_paths_resolve_one(p, line, len, ret_position);
    if (r < 0 && returns && list_paths_resolve_one(p, line, len - 1, ret_position) == 0)
        return 0;
    return r;
}

/* ---- how to read the paths ---- */

/* How many of the first lines name a file if they are read this way. */
static unsigned list_paths_count_known(const struct list_paths *p, struct list_text text,
                                       unsigned *ret_lines)
{
    const char *line;
    uint32_t position;
    unsigned known = 0;
    struct node node;
    size_t len;

    for (*ret_lines = 0; *ret_lines < SAMPLE_LINES && list_text_next(&text, &line, &len);
         (*ret_lines)++)
        known += list_paths_resolve(p, line, len, &position) == 0 &&
                 index_node(p->index, position, &node) == 0 && !S_ISDIR(node.mode);
    return known;
}

struct search {
    struct list_paths *best;
    const struct list_text *text;
    unsigned known, lines;
};

static void list_paths_try(struct search *s, const struct list_paths *way)
{
    unsigned known = list_paths_count_known(way, *s->text, &s->lines);

    if (known <= s->known)
        return;
    s->known = known;
    *s->best = *way;
}

/* Try the first line's directories as prefixes, one after the other. */
static void list_paths_try_prefixes(struct search *s, struct list_paths way)
{
    struct list_text text = *s->text;
    unsigned tried = 0;
    size_t len;

    if (!list_text_next(&text, &way.prefix, &len))
        return;
    if (way.prefix[0] == '"') { /* paths are compared without the mark */
        way.prefix++;
        len--;
    }
    for (size_t i = 1; i < len && tried < PREFIXES_MAX && s->known < s->lines; i++) {
        if (way.prefix[i] != '/')
            continue;
        way.prefix_len = i + 1;
        list_paths_try(s, &way);
        tried++;
    }
}

static void list_paths_try_directories(struct search *s, struct list_paths way)
{
    uint32_t first, count, tried = 0;
    struct node node;

    if (index_children(way.index, way.root, &first, &count) < 0)
        return;
    count = count < ENTRIES_MAX ? count : ENTRIES_MAX;
    for (uint32_t i = first;
         i < first + count && tried < DIRECTORIES_MAX && s->known < s->lines; i++) {
        if (index_node(way.index, i, &node) < 0 || !S_ISDIR(node.mode))
            continue;
        way.directory = node.position;
        list_paths_try(s, &way);
        tried++;
    }
}

void list_paths_find(struct list_paths *paths, const struct index *index, uint32_t root,
                     const struct list_text *text)
{
    struct search s = {.best = paths, .text = text};

    *paths = (struct list_paths){.index = index, .root = root, .directory = root};
    const struct list_paths plain = *paths;
    list_paths_try(&s, &plain);
    if (s.known < s.lines)
        list_paths_try_prefixes(&s, plain);
    if (s.known < s.lines)
        list_paths_try_directories(&s, plain);
}
