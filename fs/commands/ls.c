/*
 * onepot ls: list an archive's contents, from its index alone.
 *
 * Names come in the order of the index: byte order within a directory. With -R every line is a
 * path, so that a script can use the lines unchanged. The walk keeps its own stack on the heap,
 * since an archive may be deeper than a call stack allows. It ends, because index_children
 * gives no entry to two directories.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "cli.h"
#include "commands.h"
#include "resolve.h"

static const struct cli_usage usage = {
    "ls", "[-l] [-R] [-0] [--json] [--path PATH] ARCHIVE...",
    "List what archives hold.\n"
    "\n"
    "  -l, --long            also type, mode, links, owner, size and time\n"
    "  -R, --recursive       everything below, one path a line\n"
    "  -0, --null            end each name with a NUL byte, not a newline\n"
    "      --json            one array of objects\n"
    "      --path PATH       the directory or file PATH of the archive, not all of it\n"
    "      --progress=WHEN   show progress: auto, always or never\n" CLI_ARCHIVE_OPTIONS_HELP};

struct listing {
    bool is_long, recursive, json;
    char end; /* of each line */
    const char *path;
    enum cli_progress_mode progress;
    bool json_begun;
    /* About the archive being listed: */
    const char *archive;
    const struct index *index;
};

/* ---- one entry ---- */

static char type_letter(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return 'd';
    case S_IFLNK:
        return 'l';
    case S_IFIFO:
        return 'p';
    case S_IFSOCK:
        return 's';
    case S_IFCHR:
        return 'c';
    case S_IFBLK:
        return 'b';
    default:
        return '-';
    }
}

static const char *type_name(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "symlink";
    case S_IFIFO:
        return "fifo";
    case S_IFSOCK:
        return "socket";
    case S_IFCHR:
        return "character device";
    case S_IFBLK:
        return "block device";
    default:
        return "file";
    }
}

static void format_mode(uint32_t mode, char text[11])
{
    text[0] = type_letter(mode);
    for (unsigned i = 0; i < 9; i++)
        text[1 + i] = mode & (0400u >> i) ? "rwx"[i % 3] : '-';
    if (mode & S_ISUID)
        text[3] = mode & S_IXUSR ? 's' : 'S';
    if (mode & S_ISGID)
        text[6] = mode & S_IXGRP ? 's' : 'S';
    if (mode & S_ISVTX)
        text[9] = mode & S_IXOTH ? 't' : 'T';
    text[10] = '\0';
}

/* Local time, or the plain number if the time is beyond all years. */
static void format_mtime(const struct node *node, char text[CLI_TEXT_LEN])
{
    time_t t = (time_t)node->mtime_sec;
    struct tm tm;
    if (!localtime_r(&t, &tm) || strftime(text, CLI_TEXT_LEN, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(text, CLI_TEXT_LEN, "@%" PRId64, node->mtime_sec);
}

static bool is_device(const struct node *node)
{
    return S_ISCHR(node->mode) || S_ISBLK(node->mode);
}

static void print_long(const struct node *node)
{
    char mode[11], mtime[CLI_TEXT_LEN], size[CLI_TEXT_LEN], owner[CLI_TEXT_LEN];
    format_mode(node->mode, mode);
    format_mtime(node, mtime);
    snprintf(owner, sizeof(owner), "%" PRIu32 "/%" PRIu32, node->uid, node->gid);
    if (is_device(node))
        snprintf(size, sizeof(size), "%" PRIu32 ",%" PRIu32, node->rdev_major,
                 node->rdev_minor);
    else
        snprintf(size, sizeof(size), "%" PRIu64, node->size_bytes);
    printf("%s %2" PRIu32 " %-11s %11s %s ", mode, node->nlink, owner, size, mtime);
}

static void print_json(struct listing *l, const char *path, size_t len, const struct node *node,
                       const char *target, size_t target_len)
{
    fputs(l->json_begun ? ",\n" : "\n", stdout);
    l->json_begun = true;
    fputs("{\"archive\": ", stdout);
    cli_json_string(stdout, l->archive, strlen(l->archive));
    fputs(", \"path\": ", stdout);
    cli_json_string(stdout, path, len);
    printf(", \"type\": \"%s\", \"mode\": \"%04o\", \"uid\": %" PRIu32 ", \"gid\": %" PRIu32
           ", \"size\": %" PRIu64 ", \"mtime\": %" PRId64 ", \"mtime_nsec\": %" PRIu32
           ", \"nlink\": %" PRIu32 ", \"inode\": %" PRIu64,
           type_name(node->mode), (unsigned)(node->mode & 07777), node->uid, node->gid,
           node->size_bytes, node->mtime_sec, node->mtime_nsec, node->nlink,
           (uint64_t)node->position + 1);
    if (is_device(node))
        printf(", \"major\": %" PRIu32 ", \"minor\": %" PRIu32, node->rdev_major,
               node->rdev_minor);
    if (S_ISLNK(node->mode)) {
        fputs(", \"target\": ", stdout);
        cli_json_string(stdout, target, target_len);
    }
    fputc('}', stdout);
}

static int print_entry(struct listing *l, const char *path, size_t len, uint32_t position,
                       const struct node *node)
{
    const char *target = "";
    size_t target_len = 0;
    if (S_ISLNK(node->mode) && (l->json || l->is_long)) {
        int r = index_symlink(l->index, position, &target, &target_len);
        if (r < 0)
            return r;
    }
    if (l->json) {
        print_json(l, path, len, node, target, target_len);
        return 0;
    }
    if (l->is_long)
        print_long(node);
    cli_print_name(stdout, path, len);
    if (l->is_long && S_ISLNK(node->mode)) {
        fputs(" -> ", stdout);
        cli_print_name(stdout, target, target_len);
    }
    fputc(l->end, stdout);
    return 0;
}

/* ---- the walk ---- */

struct level {
    uint32_t next, end; /* children still to be listed */
    size_t path_len;    /* of the directory itself, its slash included */
};

struct walk {
    struct level *levels;
    size_t depth, levels_size;
    char *path;
    size_t path_size;
};

static int walk_enter(struct walk *w, const struct index *index, uint32_t directory,
                      size_t path_len)
{
    if (w->depth == w->levels_size) {
        size_t size = w->levels_size ? w->levels_size * 2 : 16;
        struct level *levels = reallocarray(w->levels, size, sizeof(*levels));
        if (!levels)
            return -ENOMEM;
        w->levels = levels;
        w->levels_size = size;
    }
    uint32_t first, count;
    int r = index_children(index, directory, &first, &count);
    if (r < 0)
        return r;
    w->levels[w->depth++] = (struct level){first, first + count, path_len};
    return 0;
}

/* Append `name` and room for a slash to the path of the current level. */
static int walk_name(struct walk *w, size_t path_len, const char *name, size_t len)
{
    if (path_len + len + 1 > w->path_size) {
        size_t size = (path_len + len + 1) * 2;
        char *path = realloc(w->path, size);
        if (!path)
            return -ENOMEM;
        w->path = path;
        w->path_size = size;
    }
    memcpy(w->path + path_len, name, len);
    w->path[path_len + len] = '/';
    return 0;
}

/* List the next child of the innermost directory, and descend into it with -R. */
static int walk_step(struct walk *w, struct listing *l)
{
    struct level *level = &w->levels[w->depth - 1];
    if (level->next == level->end) {
        w->depth--;
        return 0;
    }
    uint32_t position = level->next++;
    size_t path_len = level->path_len, len;
    const char *name;
    struct node node;
    int r = index_name(l->index, position, &name, &len);
    if (r == 0)
        r = index_node(l->index, position, &node);
    if (r == 0)
        r = walk_name(w, path_len, name, len);
    if (r == 0)
        r = print_entry(l, w->path, path_len + len, position, &node);
    if (r == 0 && l->recursive && S_ISDIR(node.mode))
        r = walk_enter(w, l->index, position, path_len + len + 1);
    return r;
}

static int list_directory(struct listing *l, uint32_t directory)
{
    struct walk w = {0};
    int r = walk_enter(&w, l->index, directory, 0);
    while (r == 0 && w.depth > 0 && !ferror(stdout))
        r = walk_step(&w, l);
    free(w.levels);
    free(w.path);
    return r;
}

/* ---- archives ---- */

static int list_path(struct listing *l)
{
    uint32_t position;
    struct node node;
    int r = resolve_path(l->index, l->path, &position);
    if (r == 0)
        r = index_node(l->index, position, &node);
    if (r == 0)
        r = S_ISDIR(node.mode) ? list_directory(l, position)
                               : print_entry(l, l->path, strlen(l->path), position, &node);
    if (r == 0)
        return CLI_OK;

    struct fault fault = {0};
    const char *why = resolve_error(r);
    if (why)
        fault_set(&fault, r, l->path, FAULT_NO_OFFSET, "%s", why);
    return cli_fail(l->archive, r, &fault);
}

static int list_archive(struct listing *l, const char *archive, bool heading)
{
    const struct pot_options options = {.names_only = true};
    struct pot *pot;
    if (cli_open_pot(archive, &options, l->progress, &pot) < 0)
        return CLI_FAILED;
    l->archive = archive;
    l->index = pot->index;
    if (heading) {
        cli_print_name(stdout, archive, strlen(archive));
        fputs(":\n", stdout);
    }
    int status = list_path(l);
    pot_close(pot);
    return status;
}

static int list_archives(struct listing *l, char **archives, int count)
{
    int status = CLI_OK;
    bool headings = count > 1 && !l->json && l->end == '\n';
    if (l->json)
        fputc('[', stdout);
    for (int i = 0; i < count; i++) {
        if (headings && i > 0)
            fputc('\n', stdout);
        if (list_archive(l, archives[i], headings) != CLI_OK)
            status = CLI_FAILED;
    }
    if (l->json)
        fputs(l->json_begun ? "\n]\n" : "]\n", stdout);
    return status;
}

enum { OPTION_JSON = CLI_OPTION_OWN, OPTION_PATH, OPTION_PROGRESS };

int command_ls(int argc, char **argv)
{
    static const struct option longs[] = {
        {"long", no_argument, NULL, 'l'},
        {"recursive", no_argument, NULL, 'R'},
        {"null", no_argument, NULL, '0'},
        {"json", no_argument, NULL, OPTION_JSON},
        {"path", required_argument, NULL, OPTION_PATH},
        {"progress", required_argument, NULL, OPTION_PROGRESS},
        CLI_ARCHIVE_OPTIONS_END,
    };
    struct listing l = {.end = '\n', .path = ""};
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "lR0", longs, &status)) != -1) {
        switch (opt) {
        case 'l':
            l.is_long = true;
            break;
        case 'R':
            l.recursive = true;
            break;
        case '0':
            l.end = '\0';
            break;
        case OPTION_JSON:
            l.json = true;
            break;
        case OPTION_PATH:
            l.path = optarg;
            break;
        case OPTION_PROGRESS:
            if (cli_progress_option(&usage, optarg, &l.progress) != 0)
                return CLI_USAGE;
            break;
        }
    }
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&usage, "no archive was named");
    return list_archives(&l, argv + optind, argc - optind);
}
