#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "read_list.h"
#include "write_at.h"

#define BUFFER_BYTES (64u << 10)

struct recorder {
    const struct index *index;
    char root[PATH_MAX];
    size_t root_len;
    uint32_t entries;
    uint8_t *times; /* by position */
    int fd, error;
    uint64_t written; /* bytes */
    size_t used;      /* of the buffer */
    char path[PATH_MAX], part[PATH_MAX];
    char buffer[BUFFER_BYTES];
};

int recorder_new(const char *path, const struct index *index, uint32_t root,
                 struct recorder **ret_recorder)
{
    struct recorder *rec = calloc(1, sizeof(*rec));
    int r;

    if (!rec)
        return -ENOMEM;
    rec->fd = -1;
    rec->index = index;
    rec->entries = index_info(index)->entries;
    rec->times = calloc(rec->entries, 1);
    r = rec->times ? index_path(index, root, rec->root, sizeof(rec->root), &rec->root_len)
                   : -ENOMEM;
    if (r == 0 &&
        (snprintf(rec->path, sizeof(rec->path), "%s", path) >= (int)sizeof(rec->path) ||
         snprintf(rec->part, sizeof(rec->part), "%s.part", path) >= (int)sizeof(rec->part)))
        r = -ENAMETOOLONG;
    if (r == 0) {
        rec->fd = open(rec->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        r = rec->fd < 0 ? -errno : 0;
    }
    if (r < 0) {
        recorder_abandon(rec);
        return r;
    }
    *ret_recorder = rec;
    return 0;
}

void recorder_flush(struct recorder *rec)
{
    if (!rec->error)
        rec->error = write_at(rec->fd, rec->buffer, rec->used, rec->written);
    rec->written += rec->used;
    rec->used = 0;
}

/* The path below the root. NULL: the name leads elsewhere. */
static const char *recorder_below_root(const struct recorder *rec, const char *path, size_t len)
{
    if (rec->root_len == 0)
        return path;
    if (len <= rec->root_len || memcmp(path, rec->root, rec->root_len) != 0 ||
        path[rec->root_len] != '/')
        return NULL;
    return path + rec->root_len + 1;
}

static void recorder_write(struct recorder *rec, const char *line, size_t len)
{
    if (rec->used + len + 1 > sizeof(rec->buffer))
        recorder_flush(rec);
    memcpy(rec->buffer + rec->used, line, len);
    rec->buffer[rec->used + len] = '\n';
    rec->used += len + 1;
}

void recorder_note(struct recorder *rec, uint32_t position)
{
    char path[PATH_MAX], quoted[2 * PATH_MAX + 2];
    size_t len;

    if (position >= rec->entries || rec->times[position] == RECORDER_TIMES ||
        index_path(rec->index, position, path, sizeof(path), &len) < 0)
        return;
    rec->times[position]++;
    const char *line = recorder_below_root(rec, path, len);
    if (!line)
        return;
    len = strlen(line);
    if (list_path_is_odd(line, len))
        recorder_write(rec, quoted, list_path_quote(line, len, quoted));
    else
        recorder_write(rec, line, len);
}

static void recorder_free(struct recorder *rec)
{
    if (rec->fd >= 0)
        close(rec->fd);
    free(rec->times);
    free(rec);
}

void recorder_abandon(struct recorder *rec)
{
    if (!rec)
        return;
    if (rec->fd >= 0)
        unlink(rec->part);
    recorder_free(rec);
}

int recorder_finish(struct recorder *rec)
{
    if (rec->written + rec->used == 0) { /* no file was read */
        recorder_abandon(rec);
        return 0;
    }
    recorder_flush(rec);
    int r = rec->error;
    if (r == 0 && rename(rec->part, rec->path) < 0)
        r = -errno;
    recorder_free(rec);
    return r;
}

void recorder_forget(struct recorder *rec)
{
    if (rec)
        recorder_free(rec);
}
