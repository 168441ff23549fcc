/*
 * An order from a text that a person or a program wrote, perhaps for another version of the
 * data. So lines that name no file are left out and counted, and the first of them is reported.
 * Where they outnumber the others, the text is not a list of this archive's files.
 */
#include "known_reads.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "list_paths.h"

struct parse {
    struct list_paths paths;
    struct folder_files *numbered; /* lines are numbers in this folder; NULL: they are paths */
    uint64_t most;
    struct fault *fault;
    struct list_text text;
    struct fault first; /* the first line that was left out */
    uint64_t left_out;

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

/* Note what the line says, fit for a message, and what is wrong with it. */
static int leave_out(struct parse *p, const char *line, size_t len, const char *what)
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
        return leave_out(p, line, len, "is no number, as the first line is");
    for (size_t i = 0; i < len; i++)
        number = 10 * number + (uint64_t)(line[i] - '0');
    if (number >= folder_files_count(p->numbered))
        return leave_out(p, line, len, "is more than there are files");
    return add_line(p, folder_files_at(p->numbered, (uint32_t)number));
}

static int parse_path(struct parse *p, const char *line, size_t len)
{
    uint32_t position;
    struct node node;
    int r = list_paths_resolve(&p->paths, line, len, &position);

    if (r == 0)
        r = index_node(p->paths.index, position, &node);
    if (r == -ENOENT || r == -ENOTDIR || r == -EINVAL || r == -ENAMETOOLONG)
        return leave_out(p, line, len, "is not in the archive");
    if (r < 0)
        return r;
    if (S_ISDIR(node.mode))
        return leave_out(p, line, len, "is a directory");
    return add_line(p, S_ISREG(node.mode) ? node.position : FOLDER_NO_FILE);
}

/* Numbers refer to the folder that training code would make of the mount point. */
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
static int decide(struct parse *p)
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
        return number_files(p);
    list_paths_find(&p->paths, index, p->paths.root, &p->text);
    return 0;
}

static int parse_lines(struct parse *p)
{
    const char *line;
    size_t len;
    int r = decide(p);

    while (r == 0 && list_text_next(&p->text, &line, &len))
        r = p->numbered ? parse_number(p, line, without_return(line, len))
                        : parse_path(p, line, len);
    return r;
}

/* At least half of the lines must name files of this archive. */
static int check_known(struct parse *p)
{
    if (p->count == 0 && p->left_out == 0)
        return fault_set(p->fault, -EINVAL, NULL, FAULT_NO_OFFSET, "it names no file");
    if (p->count >= p->left_out)
        return 0;
    unsigned long long left_out = p->left_out, lines = left_out + p->count;
    fault_set(p->fault, -EINVAL, NULL, FAULT_NO_OFFSET, "%s, and so are %llu of %llu lines",
              p->first.what, left_out, lines);
    fault_advise(p->fault, "each line is the path of a file below the mount point, or each "
                           "is a number");
    return -EINVAL;
}

int read_list_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                    uint64_t most, struct fault *fault, struct read_list_lines *ret_lines,
                    struct known_reads **ret_order)
{
    struct parse p = {.paths = {.index = index, .root = root, .directory = root},
                      .most = most,
                      .fault = fault};

    list_text_init(&p.text, text, len);
    int r = parse_lines(&p);
    if (r == 0)
        r = check_known(&p);
    folder_files_free(p.numbered);
    if (r < 0) {
        free(p.positions);
        return r;
    }
    *ret_lines = (struct read_list_lines){p.count, p.left_out, p.first};
    return known_reads_listed(p.positions, p.count, ret_order);
}
