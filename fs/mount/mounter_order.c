/*
 * --order and --record: files named by the user. They are opened before there is a daemon, so
 * that errors show on the command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "mounter_private.h"
#include "read_list.h"

#define ORDER_BYTES_MOST (UINT64_C(4) << 30)
#define ORDER_LINES_MOST (UINT64_C(1) << 28) /* a gigabyte of positions */
/* This many epochs, of lines this long on average, are more than any order needs. */
#define ORDER_EPOCHS_MOST 64u
#define ORDER_LINE_BYTES 256u
#define ORDER_BYTES_LEAST (UINT64_C(1) << 20)

/*
 * How large an order of this archive may be. It is held in memory, and a wrong file (a device,
 * a pipe that never ends, the archive itself) must not use up the job's memory.
 */
static uint64_t bytes_allowed(const struct mounter *m)
{
    uint64_t entries = index_info(m->pot->index)->entries;
    uint64_t bytes = ORDER_BYTES_LEAST + entries * ORDER_EPOCHS_MOST * ORDER_LINE_BYTES;
    uint64_t room = budget_room_bytes("") / 2;

    bytes = bytes < ORDER_BYTES_MOST ? bytes : ORDER_BYTES_MOST;
    return bytes < room || room < ORDER_BYTES_LEAST ? bytes : room;
}

/* Read the whole file. -EFBIG: more than `most` bytes. */
static int read_all(int fd, uint64_t most, char **ret_text, size_t *ret_len)
{
    size_t room = 1u << 16, len = 0;
    auto_free char *text = malloc(room);

    while (text) {
        ssize_t n = read(fd, text + len, room - len);
        if (n < 0 && errno == EINTR && !mounter_caught())
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) {
            *ret_text = steal_ptr(&text);
            *ret_len = len;
            return 0;
        }
        len += (size_t)n;
        if (len > most)
            return -EFBIG;
        if (len == room) {
            char *larger = realloc(text, room *= 2);
            if (!larger)
                return -ENOMEM;
            (void)steal_ptr(&text);
            text = larger;
        }
    }
    return -ENOMEM;
}

static int read_order_file(const char *path, uint64_t most, char **ret_text, size_t *ret_len)
{
    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, most, ret_text, ret_len);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    return fd < 0 ? -errno : read_all(fd, most, ret_text, ret_len);
}

static void tell_left_out(const char *path, const struct read_list_lines *lines)
{
    unsigned long long left_out = lines->left_out, all = left_out + lines->used;
    if (left_out)
        cli_note("%s: %s; %llu of %llu lines are left out", path, lines->first.what, left_out,
                 all);
}

static int open_order(struct mounter *m)
{
    const char *path = m->options->order, *name = path;
    struct read_list_lines lines = {0};
    auto_free char *text = NULL;
    struct fault fault = {0};
    size_t len = 0;

    if (!path)
        return 0;
    if (strcmp(path, "-") == 0)
        name = "standard input";
    uint64_t most = bytes_allowed(m);
    int r = read_order_file(path, most, &text, &len);
    if (r == -EFBIG) {
        fault_set(&fault, r, NULL, FAULT_NO_OFFSET,
                  "it has more than the %llu bytes that an order of %u entries may have",
                  (unsigned long long)most, index_info(m->pot->index)->entries);
        fault_advise(&fault, "one epoch is enough, each file once");
    }
    if (r == 0)
        r = read_list_parse(m->pot->index, m->root, text, len, ORDER_LINES_MOST, &fault, &lines,
                            &m->order);
    if (r < 0)
        return cli_fail(name, r, &fault);
    tell_left_out(name, &lines);
    return 0;
}

/* The daemon works in another directory: make the path absolute. The file may not exist yet. */
static int absolute_path(const char *path, char ret_path[PATH_MAX])
{
    auto_free char *copy = strdup(path);
    char *slash = copy ? strrchr(copy, '/') : NULL;
    const char *name = slash ? slash + 1 : path;

    if (!copy)
        return -ENOMEM;
    if (!*name)
        return -EISDIR;
    if (slash)
        *slash = '\0';
    auto_free char *folder = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    if (!folder)
        return -errno;
    int n = snprintf(ret_path, PATH_MAX, "%s/%s", folder[1] ? folder : "", name);
    return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int open_record(struct mounter *m)
{
    const char *given = m->options->record;
    char path[PATH_MAX];
    struct stat st;

    if (!given)
        return 0;
    int r = absolute_path(given, path);
    if (r == 0 && stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        r = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    if (r == 0)
        r = recorder_new(path, m->pot->index, m->root, &m->recorder);
    return r < 0 ? cli_fail(given, r, NULL) : 0;
}

int mounter_open_orders(struct mounter *m)
{
    int r = open_order(m);

    return r == 0 ? open_record(m) : r;
}
