/*
 * An order from a text that somebody wrote, perhaps a program: each line is checked, and the
 * first that is wrong is the answer.
 */
#include "read_order.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct parse {
    const struct index *index;
    uint32_t root;
    struct folder_order *numbered; /* lines are numbers of this one; NULL: they are paths */
    uint64_t most;
    struct fault *fault;
    char separator;

    uint64_t line; /* counted from 1 */
    uint32_t *positions;
    uint64_t count, room;
};

static bool is_number(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!isdigit((unsigned char)line[i]))
            return false;
    return len > 0 && len <= 10;
}

/* What the line says, fit for a message, and what is wrong with it. */
static int bad_line(struct parse *p, const char *line, size_t len, const char *what)
{
    char shown[96];
    size_t n = len < sizeof(shown) - 1 ? len : sizeof(shown) - 1;

    for (size_t i = 0; i < n; i++)
        shown[i] = isprint((unsigned char)line[i]) ? line[i] : '?';
    shown[n] = '\0';
    fault_set(p->fault, -EINVAL, NULL, FAULT_NO_OFFSET, "line %llu: '%s' %s",
              (unsigned long long)p->line, shown, what);
    fault_advise(p->fault, "each line is the path of a file below the mount point, or each "
                           "is a number");
    return -EINVAL;
}

/* The entry at a path below the root of the mount. */
static int resolve(const struct parse *p, const char *line, size_t len, uint32_t *ret_position)
{
    uint32_t at = p->root;

    while (len > 0) {
        const char *slash = memchr(line, '/', len);
        size_t part = slash ? (size_t)(slash - line) : len;
        if (part == 2 && memcmp(line, "..", 2) == 0)
            return -EINVAL;
        if (part > 0 && !(part == 1 && line[0] == '.')) {
            int r = index_lookup(p->index, at, line, part, &at);
            if (r < 0)
                return r;
        }
        line += part + (slash != NULL);
        len -= part + (slash != NULL);
    }
    *ret_position = at;
    return 0;
}

static int add_line(struct parse *p, uint32_t position)
{
    if (p->count == p->most)
        return fault_set(p->fault, -E2BIG, NULL, FAULT_NO_OFFSET, "it has more than %llu lines",
                         (unsigned long long)p->most);
    if (p->count == p->room) {
        uint64_t room = p->room ? p->room + p->room / 2 : 4096;
        uint32_t *positions = realloc(p->positions, room * sizeof(*positions));
        if (!positions)
            return -ENOMEM;
        p->positions = positions;
        p->room = room;
    }
    p->positions[p->count++] = position;
    return 0;
}

static int parse_number(struct parse *p, const char *line, size_t len)
{
    uint64_t number = 0;

    if (!is_number(line, len))
        return bad_line(p, line, len, "is no number, as the lines before it are");
    for (size_t i = 0; i < len; i++)
        number = 10 * number + (uint64_t)(line[i] - '0');
    if (number >= folder_order_count(p->numbered))
        return bad_line(p, line, len, "is more than there are files");
    return add_line(p, folder_order_file(p->numbered, (uint32_t)number));
}

static int parse_path(struct parse *p, const char *line, size_t len)
{
    uint32_t position;
    struct node node;
    int r = resolve(p, line, len, &position);

    if (r == 0)
        r = index_node(p->index, position, &node);
    if (r == -ENOENT || r == -ENOTDIR || r == -EINVAL || r == -ENAMETOOLONG)
        return bad_line(p, line, len, "is not in the archive");
    if (r < 0)
        return r;
    if (S_ISDIR(node.mode))
        return bad_line(p, line, len, "is a directory");
    return add_line(p, S_ISREG(node.mode) ? node.position : FOLDER_NO_FILE);
}

/* Numbers are of the folder that training code would make of the mount point. */
static int number_files(struct parse *p)
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
        folder_order_free(p->numbered);
        p->numbered = NULL;
        r = folder_order_new(p->index, p->root, ways[i].kind, ways[i].images, UINT32_MAX - 1,
                             &p->numbered);
        if (r == 0 && folder_order_count(p->numbered))
            break;
    }
    return r;
}

/* The first line decides what lines are. */
static int decide(struct parse *p, const char *line, size_t len)
{
    uint32_t position;

    return is_number(line, len) && resolve(p, line, len, &position) == -ENOENT ? number_files(p)
                                                                               : 0;
}

static int parse_lines(struct parse *p, const char *text, size_t len)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < len;) {
        const char *end = memchr(text + i, p->separator, len - i);
        size_t n = end ? (size_t)(end - text) - i : len - i;
        p->line++;
        if (n > 0 && p->count == 0)
            r = decide(p, text + i, n);
        if (r == 0 && n > 0)
            r = p->numbered ? parse_number(p, text + i, n) : parse_path(p, text + i, n);
        i += n + 1;
    }
    return r;
}

int read_order_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                     uint64_t most, struct fault *fault, struct read_order **ret_order)
{
    struct parse p = {.index = index, .root = root, .most = most, .fault = fault};

    p.separator = len && memchr(text, '\0', len) ? '\0' : '\n';
    int r = parse_lines(&p, text, len);
    if (r == 0 && p.count == 0)
        r = fault_set(fault, -EINVAL, NULL, FAULT_NO_OFFSET, "it names no file");
    folder_order_free(p.numbered);
    if (r < 0) {
        free(p.positions);
        return r;
    }
    return read_order_listed(p.positions, p.count, ret_order);
}
