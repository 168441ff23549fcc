/*
 * Lines that name no file are left out and counted, and the first of them is reported. Where
 * they outnumber the others, the text is not a list of this archive's files.
 */
#include "read_list.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "vector.h"

#define LINE_MOST (2 * PATH_MAX + 3u) /* a quoted path; a longer line names no file */
#define SAMPLE_LINES 64u
#define PREFIXES_MAX 32u
#define DIRECTORIES_MAX 256u
#define ENTRIES_MAX 4096u /* of the root, searched for directories */

/* ---- lines ---- */

static void list_text_init(struct list_text *t, const char *bytes, size_t len)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, as Windows programs write it */
    bool marked = len >= 3 && memcmp(bytes, mark, 3) == 0;

    *t = (struct list_text){.text = bytes, .len = len, .at = marked ? 3 : 0};
    t->separator = len && memchr(bytes, '\0', len) ? '\0' : '\n';
}

/* The next line that is not empty. False: there are no more. */
static bool list_text_next(struct list_text *t, const char **ret_line, size_t *ret_len)
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

/* Paths below `root`, read in the way that fits most of the first lines of the text. */
static void list_paths_find(struct list_paths *paths, const struct index *index, uint32_t root,
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

struct list_parse {
    struct list_paths paths;
    struct folder_files *numbered; /* lines are numbers in this folder; NULL: they are paths */
    uint64_t most;
    struct fault *fault;
    struct list_text text;
    struct fault first; /* the first line that was left out */
    uint64_t left_out;

    VECTOR(uint32_t) positions;
};

static bool is_number(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!isdigit((unsigned char)line[i]))
            return false;
    return len > 0 && len <= 10;
}

/* Note the line, fit for a message, and its fault. */
static int list_leave_out(struct list_parse *p, const char *line, size_t len, const char *what)
{
    char shown[96];
    size_t n = len < sizeof(shown) - 1 ? len : sizeof(shown) - 1;

    if (p->left_out++ > 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        shown[i] = isprint((unsigned char)line[i]) ? line[i] : '?';
    shown[n] = '\0';
    fault_set(&p->first, -EINVAL, NULL, FAULT_NO_OFFSET, "line %llu: '%s' %s",
              (unsigned long long)p->text.line, shown, what);
    return 0;
}

static int list_add(struct list_parse *p, uint32_t position)
{
    if (p->positions.count == p->most)
        return fault_set(p->fault, -E2BIG, NULL, FAULT_NO_OFFSET, "it has more than %llu lines",
                         (unsigned long long)p->most);
    return vector_push(&p->positions, position);
}

static int list_parse_number(struct list_parse *p, const char *line, size_t len)
{
    uint64_t number = 0;

    if (!is_number(line, len))
        return list_leave_out(p, line, len, "is not a number, but the first line is");
    for (size_t i = 0; i < len; i++)
        number = 10 * number + (uint64_t)(line[i] - '0');
    if (number >= folder_files_count(p->numbered))
        return list_leave_out(p, line, len, "is more than there are files");
    return list_add(p, folder_files_at(p->numbered, (uint32_t)number));
}

static int list_parse_path(struct list_parse *p, const char *line, size_t len)
{
    uint32_t position;
    struct node node;
    int r = list_paths_resolve(&p->paths, line, len, &position);

    if (r == 0)
        r = index_node(p->paths.index, position, &node);
    if (r == -ENOENT || r == -ENOTDIR || r == -EINVAL || r == -ENAMETOOLONG)
        return list_leave_out(p, line, len, "is not in the archive");
    if (r < 0)
        return r;
    if (S_ISDIR(node.mode))
        return list_leave_out(p, line, len, "is a directory");
    return list_add(p, S_ISREG(node.mode) ? node.position : FOLDER_NO_FILE);
}

/* Numbers refer to the folder that training code would make of the mount point. */
static int list_number_files(struct list_parse *p)
{
    static const struct {
        enum folder_kind kind;
        bool images;
    } ways[] = {{FOLDER_CLASSES, true},
                {FOLDER_CLASSES, false},
                {FOLDER_FLAT, true},
                {FOLDER_FLAT, false}};
    int r = 0;

    for (unsigned i = 0; r == 0 && i < sizeof(ways) / sizeof(ways[0]); i++) {
        folder_files_free(p->numbered);
        p->numbered = NULL;
        r = folder_files_new(p->paths.index, p->paths.root, ways[i].kind, ways[i].images,
                             UINT32_MAX - 1, &p->numbered);
        if (r == 0 && folder_files_count(p->numbered))
            break;
    }
    return r;
}

static size_t without_return(const char *line, size_t len)
{
    return len > 0 && line[len - 1] == '\r' ? len - 1 : len;
}

/* The first line decides whether lines are numbers or paths. */
static int list_decide(struct list_parse *p)
{
    struct list_text text = p->text;
    const struct index *index = p->paths.index;
    const char *line;
    uint32_t position;
    size_t len;

    if (!list_text_next(&text, &line, &len))
        return 0;
    len = without_return(line, len);
    if (is_number(line, len) &&
        index_lookup(index, p->paths.root, line, len, &position) == -ENOENT)
        return list_number_files(p);
    list_paths_find(&p->paths, index, p->paths.root, &p->text);
    return 0;
}

static int list_parse_lines(struct list_parse *p)
{
    const char *line;
    size_t len;
    int r = list_decide(p);

    while (r == 0 && list_text_next(&p->text, &line, &len))
        r = p->numbered ? list_parse_number(p, line, without_return(line, len))
                        : list_parse_path(p, line, len);
    return r;
}

/* At least half of the lines must name files of this archive. */
static int list_check_known(struct list_parse *p)
{
    unsigned long long left_out = p->left_out, lines = left_out + p->positions.count;

    if (lines == 0)
        return fault_set(p->fault, -EINVAL, NULL, FAULT_NO_OFFSET, "it names no file");
    if (p->positions.count >= left_out)
        return 0;
    return fault_set_advised(
        p->fault, -EINVAL, NULL, FAULT_NO_OFFSET,
        "each line is the path of a file below the mount point, or each is a number",
        "%s; %llu of %llu lines name no file", p->first.what, left_out, lines);
}

int read_list_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                    uint64_t most, struct fault *fault, struct read_list_lines *ret_lines,
                    struct known_reads **ret_order)
{
    struct list_parse p = {.paths = {.index = index, .root = root, .directory = root},
                           .most = most,
                           .fault = fault};

    list_text_init(&p.text, text, len);
    int r = list_parse_lines(&p);
    if (r == 0)
        r = list_check_known(&p);
    folder_files_free(p.numbered);
    if (r < 0) {
        vector_free(&p.positions);
        return r;
    }
    *ret_lines = (struct read_list_lines){p.positions.count, p.left_out, p.first};
    return known_reads_listed(p.positions.at, p.positions.count, ret_order);
}
