/*
 * onepot ls: list an archive's contents, from its index alone.
 *
 * Names come in the order of the index: byte order within a directory. With -R every line is a
 * path, so that a script can use the lines unchanged.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "json.h"

static int ls_main(int argc, char **argv);

const struct cli_command command_ls = {
    "ls", ls_main, "list the contents of an archive",
    "[-l] [-R] [-0] [--json] ARCHIVE... [[--] PATH...]",
    "List the contents of archives: their top directories, or the files and directories "
    "PATH...\n"
    "in them. Behind the first archive, the first word that names no file here is a PATH, and\n"
    "so are all words after it, or after '--'.\n"};

struct listing {
    bool is_long, recursive, ends_with_nul, as_json;
    struct cli_paths words;
    bool printed;
    struct json json;
    /* About the archive being listed: */
    const char *archive;
    const struct index *index;
};

/* ---- one entry ---- */

/* 'd', and "directory". */
static char type_of(uint32_t mode, const char **ret_name)
{
    static const struct {
        uint32_t mode; /* S_IFMT */
        char letter;
        const char *name;
    } types[] = {
        {S_IFDIR, 'd', "directory"},
        {S_IFLNK, 'l', "symlink"},
        {S_IFIFO, 'p', "fifo"},
        {S_IFSOCK, 's', "socket"},
        {S_IFCHR, 'c', "character device"},
        {S_IFBLK, 'b', "block device"},
        {S_IFREG, '-', "file"},
    };
    size_t i = 0;
    while (types[i].mode != S_IFREG && types[i].mode != (mode & S_IFMT))
        i++;
    *ret_name = types[i].name;
    return types[i].letter;
}

static void format_mode(uint32_t mode, char text[11])
{
    const char *name;
    text[0] = type_of(mode, &name);
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

/* On a terminal as for a person; else the name's own bytes, as find(1) prints them. */
static void print_name(const char *bytes, size_t len)
{
    /* Looked up once: a listing has millions of names. */
    static int stdout_is_terminal = -1;
    if (stdout_is_terminal < 0)
        stdout_is_terminal = isatty(STDOUT_FILENO);
    if (stdout_is_terminal)
        cli_print_safe(stdout, bytes, len);
    else
        fwrite(bytes, 1, len, stdout);
}

static void command_ls_json(struct listing *l, const char *path, size_t len,
                            const struct node *node, const char *target, size_t target_len)
{
    struct json *j = &l->json;
    const char *type;
    char mode[8];
    snprintf(mode, sizeof(mode), "%04o", (unsigned)(node->mode & 07777));
    json_open(j, NULL, '{');
    json_text(j, "archive", l->archive, SIZE_MAX);
    json_text(j, "path", path, len);
    type_of(node->mode, &type);
    json_text(j, "type", type, SIZE_MAX);
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
    print_name(path, len);
    l->printed = true;
    if (l->is_long && S_ISLNK(node->mode)) {
        fputs(" -> ", stdout);
        print_name(target, target_len);
    }
    fputc(l->ends_with_nul ? '\0' : '\n', stdout);
    return 0;
}

/* List a directory, and with -R each one in it behind its name. */
static int list_directory(struct listing *l, uint32_t directory)
{
    struct index_walk w = {
        .index = l->index, .position = directory, .enters = true, .has_paths = true};
    struct node node;
    int r = 0;
    while (r == 0 && !ferror(stdout) && (r = index_walk_next(&w)) > 0) {
        r = index_node(l->index, w.position, &node);
        if (r == 0)
            r = print_entry(l, w.path.at, w.path.count - 1, w.position, &node);
        w.enters = r == 0 && l->recursive && S_ISDIR(node.mode);
    }
    index_walk_free(&w);
    return r;
}

/* ---- archives ---- */

static void print_heading(struct listing *l, const char *name)
{
    if (l->as_json || l->ends_with_nul)
        return;
    if (l->printed)
        putchar('\n');
    l->printed = true;
    print_name(name, strlen(name));
    fputs(":\n", stdout);
}

/* The paths, or all. A path that this archive lacks may be in another. */
static int list_archive(struct listing *l, size_t number)
{
    const struct fileset_options options = {.names_only = true};
    int status = CLI_OK;
    struct fileset *fileset;
    if (cli_open_words(&l->words, number, 1, &options, &fileset) < 0)
        return CLI_FAILED;
    l->archive = l->words.archives[number];
    l->index = fileset->index;
    if (l->words.archive_count > 1)
        print_heading(l, l->archive);
    if (l->words.path_count == 0) {
        int r = list_directory(l, INDEX_ROOT);
        status = r < 0 ? cli_fail(l->archive, r, NULL) : CLI_OK;
    }
    for (size_t i = 0; i < l->words.path_count; i++) {
        const char *path = l->words.paths[i];
        struct fault fault = {0};
        uint32_t position;
        struct node node;
        int r = index_follow(l->index, INDEX_ROOT, path, NULL, &position);
        if (r == 0)
            r = index_node(l->index, position, &node);
        if (r == 0 && !S_ISDIR(node.mode)) {
            r = print_entry(l, path, strlen(path), position, &node);
        } else if (r == 0) {
            if (l->words.path_count > 1)
                print_heading(l, path);
            r = list_directory(l, position);
        }
        l->words.found[i] |= r != -ENOENT; /* another fault is told here */
        if (r == 0 || r == -ENOENT)
            continue;
        if (cli_path_error(r))
            fault_set(&fault, r, path, FAULT_NO_OFFSET, "%s", cli_path_error(r));
        status = cli_fail(l->archive, r, &fault);
    }
    fileset_close(fileset);
    return status;
}

static int ls_main(int argc, char **argv)
{
    struct listing l = {.json = {.out = stdout, .lines = 1}};
    const struct cli_option options[] = {
        {"-l, --long", "also type, mode, links, owner, size and time", .flag = &l.is_long},
        {"-R, --recursive", "everything below, one path a line", .flag = &l.recursive},
        {"-0, --null", "end each name with a NUL byte, not a newline",
         .flag = &l.ends_with_nul},
        {"--json", "print one array of objects", .flag = &l.as_json},
        CLI_PATH(&l.words),
        CLI_ARCHIVES,
        {NULL},
    };
    int status = cli_parse_paths(&command_ls, options, argc, argv, &l.words);
    if (status != CLI_GO_ON) {
        cli_paths_free(&l.words);
        return status;
    }
    status = CLI_OK;
    if (l.as_json)
        json_open(&l.json, NULL, '[');
    for (size_t i = 0; i < l.words.archive_count; i++)
        if (list_archive(&l, i) != CLI_OK)
            status = CLI_FAILED;
    if (l.as_json)
        json_close(&l.json, ']');
    if (status == CLI_OK)
        status = cli_paths_check(&l.words);
    cli_paths_free(&l.words);
    return status;
}
