/*
 * The first open of a file that the kernel does not know costs a look-up by the daemon, some
 * twenty times the time of an open. A listing brings the names around it for a twentieth of
 * that each, but is wasted if they are never opened. So a directory is listed by and by: for
 * each slow open in it, names for a few times as long as that took. A program that opens a few
 * files loses little, and one that opens all of them is soon ahead. No directory is too large
 * for that. Where the mount lists names ahead (cache/ahead/names.c), which costs the reader
 * nothing, nothing is listed here: so this serves where the daemon can't have a child in the
 * mount, as without user namespaces.
 *
 * An open was slow if it took long: nothing else tells. Whatever becomes of the listing, the
 * results of calls are the same.
 */
#include <fcntl.h>
#include <string.h>

#include "io_private.h"

#define SLOW_NS 9000u        /* the kernel alone takes a few microseconds */
#define BEGIN_NS 200000u     /* of slow opens in one directory */
#define LIST_TIMES 3u        /* as long as the opens took */
#define LIST_MAX_NS 3000000u /* at one open */
#define FOLDERS 64u
#define PATH_BYTES 1024
#define LISTING_BYTES 16384 /* about a hundred names */

/* Directories in which opens were slow, by a hash of how they were named. */
static struct folder {
    uint64_t key, slow_ns;
    bool is_listed; /* opens that are slow all the same waited for something else */
} folders[FOLDERS];
static char entries[LISTING_BYTES];
static _Atomic bool is_listing; /* guards both; nobody waits for it */

static struct folder *folder_find(const struct link *link, int dir, const char *path)
{
    uint64_t key = (uint64_t)(unsigned)dir + (uintptr_t)link;

    for (; *path; path++)
        key = (key ^ (uint8_t)*path) * UINT64_C(1099511628211);
    struct folder *folder = &folders[key % FOLDERS];
    if (folder->key != key)
        *folder = (struct folder){.key = key};
    return folder;
}

static struct intercept_listed *listed_of(const struct link *link, uint64_t ino)
{
    struct intercept_listed *listed = &link->head->listed[ino % INTERCEPT_LISTED];

    if (atomic_load_explicit(&listed->ino, memory_order_relaxed) != ino) {
        atomic_store_explicit(&listed->next, 0, memory_order_relaxed);
        atomic_store_explicit(&listed->ino, ino, memory_order_relaxed);
    }
    return listed;
}

/* The offset of the entry behind these in the directory: d_off of the last one. */
static uint64_t listing_end(long len)
{
    uint64_t next = 0;
    uint16_t reclen;

    for (long at = 0; at + 19 <= len; at += reclen) {
        memcpy(&next, entries + at + 8, sizeof(next));
        memcpy(&reclen, entries + at + 16, sizeof(reclen));
        if (reclen == 0)
            break;
    }
    return next;
}

/* List for so long; others may have listed a part. True: all of it is listed. */
static bool folder_list(int fd, struct intercept_listed *listed, uint64_t budget_ns)
{
    uint64_t until_ns = io_now_ns() + budget_ns;
    uint64_t next = atomic_load_explicit(&listed->next, memory_order_relaxed);

    if (next == INTERCEPT_LISTED_ALL)
        return true;
    if (io_call(SYS_lseek, fd, (off_t)next, SEEK_SET) < 0)
        return false;
    while (next != INTERCEPT_LISTED_ALL && io_now_ns() < until_ns) {
        long len = io_call(SYS_getdents64, fd, entries, (size_t)LISTING_BYTES);
        next = len > 0 ? listing_end(len) : INTERCEPT_LISTED_ALL;
        atomic_store_explicit(&listed->next, next, memory_order_relaxed);
    }
    return next == INTERCEPT_LISTED_ALL;
}

static bool folder_open(const struct link *link, int dir, const char *path, uint64_t budget_ns)
{
    struct stat st;
    bool is_listed = false;
    int fd = (int)io_call(SYS_openat, dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return false;
    if (io_call(SYS_fstat, fd, &st) == 0 && link_is(link, &st))
        is_listed = folder_list(fd, listed_of(link, st.st_ino), budget_ns);
    io_call(SYS_close, fd);
    return is_listed;
}

static void folder_saw_open(const struct link *link, int dir, const char *path,
                            uint64_t took_ns)
{
    struct folder *folder = folder_find(link, dir, path);
    uint64_t budget_ns = took_ns * LIST_TIMES;

    folder->slow_ns += took_ns;
    if (folder->slow_ns < BEGIN_NS || folder->is_listed)
        return;
    bool is_listed =
        folder_open(link, dir, path, budget_ns < LIST_MAX_NS ? budget_ns : LIST_MAX_NS);
    folder->is_listed = is_listed && path[0] == '/'; /* other names may mean another one */
}

void listing_saw_open(int dir, const char *path, int fd, uint64_t took_ns)
{
    static char folder_path[PATH_BYTES]; /* is_listing guards it */
    struct stat st;
    bool nobody = false;

    if (took_ns < SLOW_NS || io_call(SYS_fstat, fd, &st) < 0 || !S_ISREG(st.st_mode) ||
        !atomic_compare_exchange_strong(&is_listing, &nobody, true))
        return;
    const struct link *link = link_find(fd, &st);
    if (link && !atomic_load_explicit(&link->head->lists_ahead, memory_order_relaxed) &&
        io_folder_of(path, folder_path, sizeof(folder_path)))
        folder_saw_open(link, dir, folder_path, took_ns);
    atomic_store(&is_listing, false);
}

void listing_forked(void)
{
    atomic_store(&is_listing, false); /* it may have been another thread */
}
