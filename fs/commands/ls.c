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
#include "json.h"
#include "vector.h"
#include "resolve.h"

static const struct cli_usage usage = {"ls", "[-l] [-R] [-0] [--json] [--path PATH] ARCHIVE...",
                                       "List the contents of archives.\n"};

struct listing {
    bool is_long, recursive, ends_with_nul, as_json;
    const char *path;
    enum cli_progress_mode progress;
    struct json json;
    /* About the archive being listed: */
    const char *archive;
    const struct index *index;
};

/* ---- one entry ---- */

struct type {
    uint32_t mode; /* S_IFMT */
    char letter;
    const char *name;
};

static const struct type *command_ls_type_of(uint32_t mode)
{
    static const struct type types[] = {
        {S_IFDIR, 'd', "directory"},
        {S_IFLNK, 'l', "symlink"},
        {S_IFIFO, 'p', "fifo"},
        {S_IFSOCK, 's', "socket"},
        {S_IFCHR, 'c', "character device"},
        {S_IFBLK, 'b', "block device"},
        {S_IFREG, '-', "file"},
    };
    const struct type *type = types;
    while (type->mode != S_IFREG && type->mode != (mode & S_IFMT))
        type++;
    return type;
}

static void format_mode(uint32_t mode, char text[11])
{
    text[0] = command_ls_type_of(mode)->letter;
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

static void command_ls_json(struct listing *l, const char *path, size_t len,
                            const struct node *node, const char *target, size_t target_len)
{
    struct json *j = &l->json;
    char mode[8];
    snprintf(mode, sizeof(mode), "%04o", (unsigned)(node->mode & 07777));
    json_open(j, NULL, '{');
    json_text(j, "archive", l->archive, SIZE_MAX);
    json_text(j, "path", path, len);
    json_text(j, "type", command_ls_type_of(node->mode)->name, SIZE_MAX);
    json_text(j, "mode", mode, SIZE_MAX);
    json_number(j, "uid", node->uid);
    json_number(j, "gid", node->gid);
    json_number(j, "size", node->size_bytes);
    json_signed(j, "mtime", node->mtime_sec);
    json_number(j, "mtime_nsec", node->mtime_nsec);
    json_number(j, "nlink", node->nlink);
    json_number(j, "inode", (uint64_t)node->position + 1);
    if (is_device(node)) {
        json_number(j, "major", node->rdev_major);
        json_number(j, "minor", node->rdev_minor);
    }
    if (S_ISLNK(node->mode))
        json_text(j, "target", target, target_len);
    json_close(j, '}');
}

static int print_entry(struct listing *l, const char *path, size_t len, uint32_t position,
                       const struct node *node)
{
    const char *target = "";
    size_t target_len = 0;
    if (S_ISLNK(node->mode) && (l->as_json || l->is_long)) {
        int r = index_symlink(l->index, position, &target, &target_len);
        if (r < 0)
            return r;
    }
    if (l->as_json) {
        command_ls_json(l, path, len, node, target, target_len);
        return 0;
    }
    if (l->is_long)
        print_long(node);
    cli_print_name(stdout, path, len);
    if (l->is_long && S_ISLNK(node->mode)) {
        fputs(" -> ", stdout);
        cli_print_name(stdout, target, target_len);
    }
    fputc(l->ends_with_nul ? '\0' : '\n', stdout);
    return 0;
}

/* ---- the walk ---- */

struct level {
    uint32_t next, end; /* children still to be listed */
    size_t path_len;    /* of the directory itself, its slash included */
};

struct walk {
    VECTOR(struct level) levels;
    VECTOR(char) path;
};

static int walk_enter(struct walk *w, const struct index *index, uint32_t directory,
                      size_t path_len)
{
    uint32_t first, count;
    int r = index_children(index, directory, &first, &count);
    return r < 0 ? r : vector_push(&w->levels, (struct level){first, first + count, path_len});
}

/* Make the path `name` in the current level, and a slash behind it. */
static int walk_name(struct walk *w, size_t path_len, const char *name, size_t len)
{
    w->path.count = path_len;
    int r = vector_append(&w->path, name, len);
    return r < 0 ? r : vector_push(&w->path, '/');
}

/* List the next child of the innermost directory, and descend into it with -R. */
static int walk_step(struct walk *w, struct listing *l)
{
    struct level *level = &w->levels.at[w->levels.count - 1];
    if (level->next == level->end) {
        w->levels.count--;
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
        r = print_entry(l, w->path.at, path_len + len, position, &node);
    if (r == 0 && l->recursive && S_ISDIR(node.mode))
        r = walk_enter(w, l->index, position, path_len + len + 1);
    return r;
}

static int list_directory(struct listing *l, uint32_t directory)
{
    struct walk w = {0};
    int r = walk_enter(&w, l->index, directory, 0);
    while (r == 0 && w.levels.count > 0 && !ferror(stdout))
        r = walk_step(&w, l);
    vector_free(&w.levels);
    vector_free(&w.path);
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
    bool headings = count > 1 && !l->as_json && !l->ends_with_nul;
    if (l->as_json)
        json_open(&l->json, NULL, '[');
    for (int i = 0; i < count; i++) {
        if (headings && i > 0)
            fputc('\n', stdout);
        if (list_archive(l, archives[i], headings) != CLI_OK)
            status = CLI_FAILED;
    }
    if (l->as_json) {
        json_close(&l->json, ']');
        putchar('\n');
    }
    return status;
}

int command_ls(int argc, char **argv)
{
    struct listing l = {.path = "", .json = {.out = stdout, .lines = 1}};
    const struct cli_option options[] = {
        {"-l, --long", "also type, mode, links, owner, size and time", .flag = &l.is_long},
        {"-R, --recursive", "everything below, one path a line", .flag = &l.recursive},
        {"-0, --null", "end each name with a NUL byte, not a newline",
         .flag = &l.ends_with_nul},
        {"--json", "print one array of objects", .flag = &l.as_json},
        {"--path=PATH", "only the directory or file PATH of the archive", .text = &l.path},
        CLI_ARCHIVES(&l.progress),
        {NULL},
    };
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&usage, "no archive was named");
    return list_archives(&l, argv + optind, argc - optind);
}
