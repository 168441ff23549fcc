/*
 * Format of the record: a sum in hexadecimal digits, then these fields, each ended by a zero
 * byte: letters, number of shards, number after the last shard of the old set, digits, and the
 * parts before and after the number in a shard's name. If the sum is wrong the record was
 * incomplete, and nothing has been renamed yet. Each step that follows can be repeated.
 */
#include "shard_exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "file_id.h"
#include "output.h"
#include "path.h"

#define RECORD_BYTES_MAX 1024
#define SUM_DIGITS 16
#define DIGITS "0123456789"

/* The content of a record. */
struct exchange_plan {
    char text[RECORD_BYTES_MAX + 1];
    const char *letters;
    struct shard_names names;
    uint32_t
        end; /* shards from names.count up to here belong to the old set, and are removed */
};

/* ---- names ---- */

static char *exchange_ready_name(const struct shard_names *names, uint32_t number,
                                 const char *letters)
{
    auto_free char *name = NULL;
    char *ready;
    if (shard_name(names, number, &name) < 0)
        return NULL;
    return asprintf(&ready, "%s.%s" READY_SUFFIX, name, letters) < 0 ? NULL : ready;
}

/* The same names without folders. The texts are not copied. */
static struct shard_names exchange_base_names(const struct shard_names *names)
{
    struct shard_names base = *names;
    base.before = (char *)path_base(names->before);
    return base;
}

/* ---- the record ---- */

static int exchange_read(int fd, struct exchange_plan *plan)
{
    *plan = (struct exchange_plan){.letters = NULL};
    ssize_t len = pread(fd, plan->text, RECORD_BYTES_MAX, 0);
    if (len < 0)
        return -errno;
    char sum[SUM_DIGITS + 1], *field[6], *at = plan->text + SUM_DIGITS;
    if (len <= SUM_DIGITS)
        return -ENODATA;
    snprintf(sum, sizeof(sum), "%016llx",
             (unsigned long long)XXH3_64bits(at, (size_t)len - SUM_DIGITS));
    if (memcmp(sum, plan->text, SUM_DIGITS) != 0)
        return -ENODATA;
    for (size_t i = 0; i < 6; i++) {
        field[i] = at;
        at += strlen(at) + 1;
        if (at > plan->text + len)
            return -ENODATA;
    }
    plan->letters = field[0];
    plan->names = (struct shard_names){.before = field[4],
                                       .after = field[5],
                                       .digits = (unsigned)strtoul(field[3], NULL, 10),
                                       .count = (uint32_t)strtoul(field[1], NULL, 10)};
    plan->end = (uint32_t)strtoul(field[2], NULL, 10);
    bool folders = strchr(field[0], '/') || strchr(field[4], '/') || strchr(field[5], '/');
    return folders || plan->names.digits > NAME_MAX ? -ENODATA : 0;
}

static int exchange_write(const struct shard_exchange *x, const char *letters, uint32_t end,
                          bool sync)
{
    char text[RECORD_BYTES_MAX], sum[SUM_DIGITS + 1];
    const struct shard_names *n = &x->names;
    int len = snprintf(text + SUM_DIGITS, sizeof(text) - SUM_DIGITS, "%s%c%u%c%u%c%u%c%s%c%s",
                       letters, 0, n->count, 0, end, 0, n->digits, 0, n->before, 0, n->after);
    size_t bytes = SUM_DIGITS + (size_t)len + 1; /* includes the last zero byte */
    if (len < 0 || bytes > sizeof(text))
        return -ENAMETOOLONG;
    snprintf(sum, sizeof(sum), "%016llx",
             (unsigned long long)XXH3_64bits(text + SUM_DIGITS, bytes - SUM_DIGITS));
    memcpy(text, sum, SUM_DIGITS);
    ssize_t done = pwrite(x->fd, text, bytes, 0);
    int r = done < 0 ? -errno : (size_t)done < bytes ? -ENOSPC : 0;
    if (r == 0 && sync && fsync(x->fd) < 0)
        r = -errno;
    if (r < 0 && ftruncate(x->fd, 0) < 0)
        unlinkat(x->folder_fd, x->record, 0);
    return r;
}

/* ---- the lock ---- */

static int exchange_lock(int fd, int how, const _Atomic int *stop)
{
    while (flock(fd, how) < 0 && errno == EINTR)
        if (stop && atomic_load(stop))
            return -EINTR;
    return 0;
}

/* May this user's process act on another user's record? Not where the folder protects names. */
static bool exchange_trusts(int folder_fd, const struct stat *record)
{
    struct stat folder;
    return S_ISREG(record->st_mode) &&
           (record->st_uid == geteuid() ||
            (fstat(folder_fd, &folder) == 0 && !(folder.st_mode & S_ISVTX)));
}

/* Open the record and lock it. With `create` it is created if missing; else that is -ENOENT. */
static int exchange_lock_record(int folder_fd, const char *record, bool create,
                                const _Atomic int *stop, int *ret_fd)
{
    for (;;) {
        struct stat st;
        auto_close int fd = openat(folder_fd, record,
                                   O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC |
                                       (create ? O_CREAT : 0),
                                   0666);
        if (fd < 0 || fstat(fd, &st) < 0)
            return -errno;
        if (!exchange_trusts(folder_fd, &st)) /* another user might never release the lock */
            return -EPERM;
        if (exchange_lock(fd, LOCK_EX, stop) < 0)
            return -EINTR;
        if (file_is_named(folder_fd, record, fd, NULL) == 1) {
            *ret_fd = steal_fd(&fd);
            return 0;
        } /* else its owner finished and removed it */
    }
}

/* ---- the exchange ---- */

/* Give a shard of the new set its name, or remove one of the old set. */
static int exchange_place(int folder_fd, const struct exchange_plan *plan, uint32_t number,
                          struct fault *fault)
{
    auto_free char *name = NULL, *ready = NULL;
    bool is_new = number < plan->names.count;
    if (is_new)
        ready = exchange_ready_name(&plan->names, number, plan->letters);
    if ((is_new && !ready) || shard_name(&plan->names, number, &name) < 0)
        return -ENOMEM;
    if ((is_new ? renameat(folder_fd, ready, folder_fd, name) : unlinkat(folder_fd, name, 0)) ==
            0 ||
        errno == ENOENT)
        return 0;
    return fault_set_errno(fault, -errno, name,
                           is_new ? "can't be given its name" : "can't be removed");
}

/* Do the remaining steps that a complete record demands. */
static int exchange_roll_forward(int folder_fd, const struct exchange_plan *plan,
                                 struct fault *fault)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < plan->end; i++)
        r = exchange_place(folder_fd, plan, i, fault);
    if (r < 0)
        fault_advise(fault, "the new set is complete: mend that, then open a shard or pack "
                            "again, which does the rest");
    else
        output_sync_folder(folder_fd);
    return r;
}

int shard_exchange_begin(const struct shard_names *names, const _Atomic int *stop,
                         struct fault *fault, struct shard_exchange *ret_exchange)
{
    struct exchange_plan plan;
    auto_close int folder_fd = path_open_folder(names->before), fd = -1;
    if (folder_fd < 0)
        return fault_set_errno(fault, folder_fd, NULL, "its folder can't be opened");
    struct shard_names base = exchange_base_names(names);
    auto_free char *record = shard_record_name(base.before, strlen(base.before), base.after);
    int r = record ? exchange_lock_record(folder_fd, record, true, stop, &fd) : -ENOMEM;
    if (r < 0)
        return r == -EINTR ? r
                           : fault_set_errno(fault, r, record, "can't be created and locked");
    r = exchange_read(fd, &plan);
    if (r == 0) {
        r = exchange_roll_forward(folder_fd, &plan, fault);
        if (r == 0 && ftruncate(fd, 0) < 0)
            r = fault_set_errno(fault, -errno, record, "can't be emptied");
    } else if (r != -ENODATA) {
        r = fault_set_errno(fault, r, record, "can't be read");
    } else {
        r = 0; /* never complete: the old set counts */
    }
    if (r == 0)
        *ret_exchange = (struct shard_exchange){.names = base,
                                                .folder_fd = steal_fd(&folder_fd),
                                                .fd = steal_fd(&fd),
                                                .record = steal_ptr(&record)};
    return r;
}

void shard_exchange_end(struct shard_exchange *x)
{
    if (!x->committed)
        unlinkat(x->folder_fd, x->record, 0);
    close(x->fd);
    close(x->folder_fd);
    free(x->record);
}

void shard_exchange_withdraw(const struct shard_exchange *x, uint32_t number,
                             const char *letters)
{
    auto_free char *ready = exchange_ready_name(&x->names, number, letters);
    if (ready)
        unlinkat(x->folder_fd, ready, 0);
}

static bool exchange_is_ready(const struct shard_exchange *x, const char *letters)
{
    for (uint32_t i = 0; i < x->names.count; i++) {
        struct stat st;
        auto_free char *ready = exchange_ready_name(&x->names, i, letters);
        if (!ready || fstatat(x->folder_fd, ready, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(st.st_mode))
            return false;
    }
    return true;
}

/*
 * 1: the shard's name is taken by a file that may be replaced; 0: it is free. Any failure that
 * can be foreseen must be found before the record is written.
 */
static int exchange_check_place(const struct shard_exchange *x, uint32_t number, bool overwrite,
                                struct fault *fault)
{
    auto_free char *name = NULL;
    struct stat st, folder;
    if (shard_name(&x->names, number, &name) < 0)
        return -ENOMEM;
    if (fstatat(x->folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fault_set_errno(fault, -errno, name, "can't be examined");
    if (!S_ISREG(st.st_mode))
        return fault_set(fault, -EEXIST, name, FAULT_NO_OFFSET, "is not a regular file");
    if (!overwrite)
        return fault_set(fault, -EEXIST, name, FAULT_NO_OFFSET, "already exists");
    uid_t me = geteuid();
    if (me != 0 && st.st_uid != me && fstat(x->folder_fd, &folder) == 0 &&
        (folder.st_mode & S_ISVTX) && folder.st_uid != me)
        return fault_set_errno(fault, -EPERM, name, "can't be replaced");
    return 1;
}

/* The number after the last shard of the old set, or the new set's count if that is larger. */
static int exchange_find_end(const struct shard_exchange *x, bool overwrite,
                             struct fault *fault, uint32_t *ret_end)
{
    int r = 0;
    uint32_t end = x->names.count;
    for (uint32_t i = 0; r >= 0 && i < x->names.count; i++)
        r = exchange_check_place(x, i, overwrite, fault);
    while (r >= 0 && overwrite && (r = exchange_check_place(x, end, true, fault)) > 0)
        end++;
    *ret_end = end;
    return r < 0 ? r : 0;
}

int shard_exchange_run(struct shard_exchange *x, const char *letters, bool overwrite, bool sync,
                       struct fault *fault)
{
    struct exchange_plan plan = {.letters = letters, .names = x->names};
    if (!exchange_is_ready(x, letters))
        return 0;
    int r = exchange_find_end(x, overwrite, fault, &plan.end);
    if (r < 0)
        return r;
    if (sync)
        output_sync_folder(
            x->folder_fd); /* ready shards must be on disk no later than the record */
    r = exchange_write(x, letters, plan.end, sync);
    if (r < 0)
        return fault_set_errno(fault, r, x->record, "can't be written");
    x->committed = true;
    r = exchange_roll_forward(x->folder_fd, &plan, fault);
    if (r < 0)
        return r;
    x->committed = false; /* done, so the record may be removed */
    return 1;
}

/* ---- those who open a shard ---- */

/* Wait for the owner of another user's record. */
static int exchange_wait(int folder_fd, const char *record, int fd, struct fault *fault)
{
    struct stat st = {0};
    exchange_lock(fd, LOCK_SH, NULL);
    if (file_is_named(folder_fd, record, fd, &st) != 1)
        return 1;
    fault_set(fault, -EBUSY, NULL, FAULT_NO_OFFSET,
              "the exchange of its set of shards was interrupted, and can't be finished by "
              "this user");
    fault_advise(fault, "have user %u open it, or pack it again: see %s beside it",
                 (unsigned)st.st_uid, record);
    return -EBUSY;
}

/* Does the record concern a reader of the file? */
static bool exchange_concerns(int folder_fd, const struct exchange_plan *plan, const char *file,
                              int record_fd)
{
    struct shard_names names = plan->names;
    struct stat st, own;
    uint32_t number;
    names.count = plan->end;
    if (!shard_names_find(&names, file, strlen(file), &number) || fstat(record_fd, &st) < 0)
        return false;
    return exchange_trusts(folder_fd, &st) || /* or one user owns both record and file */
           (fstatat(folder_fd, file, &own, AT_SYMLINK_NOFOLLOW) == 0 &&
            own.st_uid == st.st_uid);
}

static int exchange_settle(int folder_fd, const char *record, const char *file,
                           struct fault *fault)
{
    struct exchange_plan plan;
    auto_close int seen =
        openat(folder_fd, record, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (seen < 0 || exchange_read(seen, &plan) < 0 ||
        !exchange_concerns(folder_fd, &plan, file, seen))
        return 0;
    auto_close int fd = -1;
    int r = exchange_lock_record(folder_fd, record, false, NULL, &fd);
    if (r == -ENOENT)
        return 1;
    if (r < 0)
        return exchange_wait(folder_fd, record, seen, fault);
    if (exchange_read(fd, &plan) == 0)
        r = exchange_roll_forward(folder_fd, &plan, fault);
    if (r == 0)
        unlinkat(folder_fd, record, 0);
    return r < 0 ? r : 1;
}

/* ---- archives to be opened ---- */

/* The file that a link leads to. NULL: it is no link, or it leads nowhere. */
static char *settle_followed(const char *path)
{
    char byte;
    return readlink(path, &byte, 1) < 0 ? NULL : realpath(path, NULL);
}

/* The folder of the path's file; opened unless it is the last one's. */
static int settle_enter(struct shard_settler *s, const char *path)
{
    size_t len = (size_t)(path_base(path) - path);
    if (s->folder && strlen(s->folder) == len && memcmp(s->folder, path, len) == 0)
        return s->folder_fd;
    shard_settler_end(s);
    s->folder = strndup(path, len);
    s->folder_fd = s->folder ? path_open_folder(path) : -ENOMEM;
    return s->folder_fd;
}

/* Is there no such record, and is that known? Else the name is remembered. Takes it over. */
static bool settle_is_absent(struct shard_settler *s, char *record)
{
    for (size_t i = 0; i < SHARD_SETTLER_NAMES; i++)
        if (s->absent[i] && strcmp(s->absent[i], record) == 0) {
            free(record);
            return true;
        }
    char **at = &s->absent[s->next++ % SHARD_SETTLER_NAMES];
    free(*at);
    *at = record;
    return faccessat(s->folder_fd, record, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

static int settle_record(struct shard_settler *s, const char *file, const char *digits,
                         struct fault *fault)
{
    char *record = shard_record_name(file, (size_t)(digits - file), digits);
    if (!record)
        return -ENOMEM;
    if (settle_is_absent(s, record))
        return 0;
    int r = exchange_settle(s->folder_fd, record, file, fault);
    for (size_t i = 0; i < SHARD_SETTLER_NAMES; i++) /* it is there, or was just now */
        if (s->absent[i] == record)
            s->absent[i] = NULL;
    free(record);
    return r;
}

int shard_settler_next(struct shard_settler *s, const char *path, bool may_be_link,
                       struct fault *fault)
{
    auto_free char *followed = may_be_link ? settle_followed(path) : NULL;
    const char *file = path_base(followed ? followed : path);
    const char *at = file + strcspn(file, DIGITS);
    int r = 0;
    if (*at && settle_enter(s, followed ? followed : path) < 0)
        return 0;
    for (; r == 0 && *at; at += strcspn(at, DIGITS)) {
        r = settle_record(s, file, at, fault);
        at += strspn(at, DIGITS);
    }
    return r;
}

void shard_settler_end(struct shard_settler *s)
{
    if (s->folder && s->folder_fd >= 0)
        close(s->folder_fd);
    free(s->folder);
    for (size_t i = 0; i < SHARD_SETTLER_NAMES; i++)
        free(s->absent[i]);
    *s = (struct shard_settler){0};
}

int shard_exchange_settle(const char *path, struct fault *fault)
{
    struct shard_settler settler = {0};
    int r = shard_settler_next(&settler, path, true, fault);
    shard_settler_end(&settler);
    return r;
}
