/*
 * Finds what killed processes left. Between creating a file and locking it there is a moment
 * in which another process may find it unlocked and remove it. So both sides check after
 * locking whether the file still has its name.
 */
#include "leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "path.h"
#include "file_id.h"
#include "source.h"

/* A file on a network counts as left behind after so many seconds without a change. */
#define STILL_SECONDS 600

void partial_letters(uint64_t number, char ret_letters[PARTIAL_LETTER_COUNT + 1])
{
    for (unsigned i = 0; i < PARTIAL_LETTER_COUNT; i++)
        ret_letters[i] = PARTIAL_LETTERS[number >> 5 * i & 31];
    ret_letters[PARTIAL_LETTER_COUNT] = '\0';
}

bool partial_name_parse(const char *name, size_t *ret_len)
{
    const char *suffix = strrchr(name, '.');
    if (!suffix || (strcmp(suffix, PARTIAL_SUFFIX) != 0 && strcmp(suffix, READY_SUFFIX) != 0 &&
                    strcmp(suffix, KEPT_SUFFIX) != 0))
        return false;
    size_t len = (size_t)(suffix - name);
    if (len <= PARTIAL_LETTER_COUNT + 1)
        return false;
    const char *letters = suffix - PARTIAL_LETTER_COUNT;
    if (letters[-1] != '.' || strspn(letters, PARTIAL_LETTERS) != PARTIAL_LETTER_COUNT)
        return false;
    *ret_len = len - PARTIAL_LETTER_COUNT - 1;
    return true;
}

int leftovers_claim(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : 0;
    return fstat(fd, &st) == 0 && st.st_nlink == 0 ? -EAGAIN : 0;
}

/* Does the name still lead to the open file, and does the file belong to this user? */
static bool leftover_is_ours(int folder_fd, const char *name, int fd, struct stat *ret_st)
{
    return file_is_named(folder_fd, name, fd, ret_st) == 1 && S_ISREG(ret_st->st_mode) &&
           ret_st->st_uid == geteuid();
}

/* May the file have a writer on another node, where the lock does not hold? */
static bool leftover_may_be_written(int fd, const struct stat *st)
{
    struct timespec now;
    const char *remote = getenv("ONEPOT_ASSUME_REMOTE"); /* for tests */
    if (storage_of(fd).is_local && !(remote && strcmp(remote, "1") == 0))
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - st->st_mtim.tv_sec < STILL_SECONDS;
}

static bool leftover_ends_with(const char *name, const char *suffix)
{
    return strcmp(strrchr(name, '.'), suffix) == 0;
}

/* NAME.XXXXXX.ready becomes NAME.XXXXXX.kept: 1. */
static int leftover_keep(int folder_fd, const char *name)
{
    auto_free char *kept = NULL;
    int len = (int)(strlen(name) - strlen(READY_SUFFIX));
    if (asprintf(&kept, "%.*s" KEPT_SUFFIX, len, name) < 0) {
        kept = NULL;
        return -ENOMEM;
    }
    return renameat(folder_fd, name, folder_fd, kept) < 0 ? -errno : 1;
}

/* 0 and the action taken; 1: it is kept; an error: the file is not ours, or gone. */
static int leftover_examine(int folder_fd, const char *name, enum leftovers_kind kind,
                            enum leftover *ret_what)
{
    struct stat st = {0};
    auto_close int fd =
        openat(folder_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (!leftover_is_ours(folder_fd, name, fd, &st))
        return -ENOENT;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        *ret_what = errno == EWOULDBLOCK ? LEFTOVER_BUSY : LEFTOVER_UNKNOWN;
        return 0;
    }
    if (!leftover_is_ours(folder_fd, name, fd, &st))
        return -ENOENT;
    bool is_partial = leftover_ends_with(name, PARTIAL_SUFFIX);
    if (!is_partial && kind == LEFTOVERS_TO_RESUME)
        return leftover_keep(folder_fd, name);
    *ret_what =
        is_partial && leftover_may_be_written(fd, &st) ? LEFTOVER_UNKNOWN : LEFTOVER_REMOVED;
    return *ret_what == LEFTOVER_REMOVED && unlinkat(folder_fd, name, 0) < 0 ? -errno : 0;
}

void leftovers_remove(int folder_fd, const struct leftovers *l)
{
    auto_closedir DIR *dir = path_list(folder_fd);
    if (!dir)
        return;
    const struct dirent *entry;
    while ((entry = readdir(dir))) {
        size_t len;
        enum leftover what = LEFTOVER_UNKNOWN;
        if (!partial_name_parse(entry->d_name, &len) ||
            !l->match(l->match_ctx, entry->d_name, len) ||
            (l->kind != LEFTOVERS_ALL &&
             leftover_ends_with(entry->d_name, KEPT_SUFFIX) != (l->kind == LEFTOVERS_KEPT)))
            continue;
        if (leftover_examine(folder_fd, entry->d_name, l->kind, &what) == 0 && l->found)
            l->found(l->ctx, what, entry->d_name);
    }
}
