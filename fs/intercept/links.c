/*
 * The mounts that this process reads from. A link is made by the first call that meets a file
 * of an unknown mount, and read without locks from then on. If it can't be made, the mount
 * answers, and is asked again after a while: a copy on this node may be complete by then.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>

#include "io_private.h"
#include "preload.h"

#ifndef FUSE_SUPER_MAGIC /* headers before Linux 5.9 */
#define FUSE_SUPER_MAGIC 0x65735546
#endif

#define OVERFLOW_UID 65534 /* unless the system says another */
#define LINKS 8u
#define REFUSED 8u
#define ASK_AGAIN_NS UINT64_C(2000000000)
#define ANSWER_S 2   /* a daemon that is stopped does not stop its readers for longer */
#define FD_LEAST 900 /* above the numbers that programs count on */
#define FD_LEFT 32

#ifndef OVERLAYFS_SUPER_MAGIC /* headers before Linux 5.8 */
#define OVERLAYFS_SUPER_MAGIC 0x794c7630
#endif

static struct link links[LINKS];
static _Atomic uint32_t link_count;
static _Atomic bool is_making; /* somebody makes a link or renews one */
static _Atomic uint32_t slot_number;

/*
 * Devices, by their minor number, that are no FUSE filesystems. They are asked once, as that
 * may be a request to a server. If such a number becomes a mount's later, the mount answers.
 */
#define DEVICES 65536u
static _Atomic uint32_t foreign[DEVICES / 32];

/* FUSE filesystems that are no mounts of ours, or offer nothing now. */
static struct refused {
    _Atomic uint64_t dev;
    _Atomic uint64_t until_ns;
} refused[REFUSED];

/* The mount below a layer; magic 0: there is none. */
static struct intercept_id covered;

/* ---- times ---- */

static bool is_made(const struct timespec *t, const struct timespec *made)
{
    return made->tv_sec == t->tv_sec && made->tv_nsec == t->tv_nsec;
}

/* ---- the mount below a layer ---- */

void link_begin(void)
{
    const char *text = getenv(LAYER_VARIABLE);
    struct intercept_id id = {.magic = INTERCEPT_MAGIC};

    if (!text)
        return;
    id.made.tv_sec = (time_t)io_number(text, &text);
    id.made.tv_nsec = (long)io_number(text, &text);
    id.key = io_number(text, &text);
    size_t len = strlen(text += *text == ' ');
    if (len == 0 || len >= sizeof(id.name))
        return;
    memcpy(id.name, text, len);
    covered = id;
}

/* Does the layer show a file of the mount below, and no copy? */
static bool is_below_layer(int fd, const struct stat *st)
{
    struct statfs fs;
    return covered.magic && is_made(&st->st_atim, &covered.made) &&
           is_made(&st->st_ctim, &covered.made) && io_call(SYS_fstatfs, fd, &fs) >= 0 &&
           fs.f_type == OVERLAYFS_SUPER_MAGIC;
}

/* ---- the protocol ---- */

struct answer {
    struct intercept_offer offer;
    int fds[1 + INTERCEPT_FILES_MAX]; /* -1: none */
};

static void close_fd(int fd)
{
    if (fd >= 0)
        io_call(SYS_close, fd);
}

static void answer_close(struct answer *answer)
{
    for (size_t i = 0; i < 1 + INTERCEPT_FILES_MAX; i++)
        close_fd(answer->fds[i]);
}

/*
 * Is it this process's user? In a user namespace all users who have no number there show as the
 * same one, unless the namespace has a number for everybody.
 */
static bool is_this_user(uid_t uid)
{
    char text[64];
    const char *at = text;

    if (uid != (uid_t)io_call(SYS_geteuid))
        return false;
    io_read_text("/proc/sys/kernel/overflowuid", text, sizeof(text));
    if (uid != (text[0] ? io_number(text, NULL) : OVERFLOW_UID))
        return true;
    io_read_text("/proc/self/uid_map", text, sizeof(text));
    io_number(at, &at);
    io_number(at, &at);
    return io_number(at, NULL) == UINT32_MAX;
}

/* A socket to the daemon that the mount names; it must be this user's. */
static int link_connect(const struct intercept_id *id)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = ANSWER_S};
    struct ucred who;
    socklen_t who_len = sizeof(who);
    size_t len = strnlen(id->name, sizeof(id->name));
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);

    memcpy(address.sun_path + 1, id->name, len);
    int fd = (int)io_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    if (io_call(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
        io_call(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
        io_call(SYS_connect, fd, &address, bytes) < 0 ||
        io_call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &who, &who_len) < 0 ||
        !is_this_user(who.uid)) {
        close_fd(fd);
        return -ECONNREFUSED;
    }
    return fd;
}

/* Take the descriptors that came, as many as there should be. */
static bool take_fds(struct msghdr *message, struct answer *answer)
{
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(message);
    size_t count = 0;

    if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS) {
        count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(answer->fds, CMSG_DATA(cmsg), count * sizeof(int));
    }
    return count >= 2 && answer->offer.files == count - 1;
}

static bool link_receive(int sock, uint64_t key, struct answer *answer)
{
    struct iovec iov = {&answer->offer, sizeof(answer->offer)};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(answer->fds))];
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    long n;

    do
        n = io_call(SYS_recvmsg, sock, &message, MSG_CMSG_CLOEXEC);
    while (n == -EINTR);
    return n >= 0 && take_fds(&message, answer) && n == sizeof(answer->offer) &&
           answer->offer.magic == INTERCEPT_MAGIC && answer->offer.key == key;
}

/* Ask the mount with the file `fd`. False: it offers nothing; there is nothing to close. */
static bool link_ask(int fd, const struct stat *st, struct answer *ret_answer)
{
    struct intercept_id id = {0};

    memset(ret_answer->fds, 0xff, sizeof(ret_answer->fds));
    if (is_below_layer(fd, st))
        id = covered;
    else if (io_call(SYS_ioctl, fd, INTERCEPT_IOCTL, &id) < 0)
        return false;
    if (id.magic != INTERCEPT_MAGIC || !is_made(&st->st_atim, &id.made))
        return false;
    int sock = link_connect(&id);
    if (sock < 0)
        return false;
    bool is_good = link_receive(sock, id.key, ret_answer);
    close_fd(sock);
    if (!is_good)
        answer_close(ret_answer);
    return is_good;
}

/* ---- descriptors of the archive ---- */

/* Move it to where no program looks for its own. Closes `fd`. */
static int fd_set_aside(int fd)
{
    struct rlimit limit = {.rlim_cur = 1024};

    io_call(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit);
    long most = limit.rlim_cur < KNOWN_MAX ? (long)limit.rlim_cur : KNOWN_MAX;
    long least = most - FD_LEFT < FD_LEAST ? most - FD_LEFT : FD_LEAST;
    int aside = least > 3 ? (int)io_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, least) : -1;
    close_fd(fd);
    return aside;
}

/*
 * An open file of this process's own, as one shared by all readers of a node would have its
 * lines in the caches of all CPUs.
 */
static int fd_of_our_own(int fd)
{
    char path[32];

    io_fd_path(fd, path);
    int own = (int)io_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (own < 0)
        return fd_set_aside(fd);
    close_fd(fd);
    return fd_set_aside(own);
}

bool link_fd_is_good(const struct link *link, unsigned file, int fd)
{
    const struct intercept_file *is = &link->file[file].is;
    struct stat st;

    return io_call(SYS_fstat, fd, &st) == 0 && st.st_dev == is->dev && st.st_ino == is->ino &&
           (uint64_t)st.st_size == is->size_bytes && st.st_ctim.tv_sec == is->ctime_sec &&
           (uint64_t)st.st_ctim.tv_nsec == is->ctime_nsec;
}

/* Keep the descriptors of files that the process lacks; close the others. */
static void link_take_fds(struct link *link, struct answer *answer)
{
    for (unsigned i = 0; i < link->files; i++) {
        int *fd = &answer->fds[1 + i];
        if (link_fd_is_good(link, i, atomic_load(&link->file[i].fd)) ||
            !link_fd_is_good(link, i, *fd))
            continue;
        int own = fd_of_our_own(*fd);
        *fd = -1;
        known_set(own, KNOWN_OWN);
        atomic_store(&link->file[i].fd, own);
    }
    answer_close(answer);
}

/* ---- making a link ---- */

/* Counters and marks may be written, words only read: a stray write must not reach others. */
static bool link_map(struct link *link, int fd)
{
    struct stat st;
    size_t bytes = link->entries * sizeof(uint64_t);
    size_t head_bytes = INTERCEPT_HEAD_BYTES + intercept_marks_bytes(link->entries);

    long seals = io_call(SYS_fcntl, fd, F_GET_SEALS); /* < 0: a file that can't be sealed */
    if (io_call(SYS_fstat, fd, &st) < 0 || link->entries > UINT32_MAX ||
        (uint64_t)st.st_size < head_bytes + bytes || seals < 0 || !(seals & F_SEAL_SHRINK))
        return false;
    long head =
        io_call(SYS_mmap, NULL, head_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)0);
    long words = io_call(SYS_mmap, NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)head_bytes);
    if (head < 0 && head > -4096)
        return false;
    if (words < 0 && words > -4096) {
        io_call(SYS_munmap, head, head_bytes);
        return false;
    }
    io_call(SYS_madvise, words, bytes, MADV_DONTDUMP);
    link->head = (struct intercept_head *)head;
    link->marks = (_Atomic uint32_t *)(head + INTERCEPT_HEAD_BYTES);
    link->words = (const _Atomic uint64_t *)words;
    return true;
}

static struct link *link_make(int fd, const struct stat *st)
{
    uint32_t count = atomic_load(&link_count);
    static struct answer answer; /* is_making guards it */

    if (count == LINKS || !link_ask(fd, st, &answer))
        return NULL;
    struct link *link = &links[count];
    link->dev = st->st_dev;
    link->is_covered = is_below_layer(fd, st);
    link->made = st->st_atim;
    link->entries = answer.offer.entries;
    link->files = answer.offer.files;
    for (unsigned i = 0; i < INTERCEPT_FILES_MAX; i++) {
        link->file[i].is = answer.offer.file[i];
        atomic_store(&link->file[i].fd, -1);
    }
    if (!link_map(link, answer.fds[0])) {
        answer_close(&answer);
        return NULL;
    }
    link_take_fds(link, &answer);
    atomic_store(&slot_number, (uint32_t)io_call(SYS_getpid));
    atomic_store(&link_count, count + 1);
    return link;
}

/* ---- finding one ---- */

/* Is `st` of this mount, and not of a copy in the layer above it? */
static bool link_is(const struct link *link, const struct stat *st)
{
    /* An overlay shows its directories by its own device. */
    bool is_there = link->dev == st->st_dev || (link->is_covered && S_ISDIR(st->st_mode));

    return is_there && is_made(&st->st_atim, &link->made) &&
           (!link->is_covered || is_made(&st->st_ctim, &link->made));
}

static struct link *link_known(const struct stat *st)
{
    uint32_t count = atomic_load_explicit(&link_count, memory_order_acquire);

    for (uint32_t i = 0; i < count; i++)
        if (link_is(&links[i], st))
            return &links[i];
    return NULL;
}

static bool is_foreign(uint64_t dev)
{
    unsigned number = minor(dev);
    return major(dev) != 0 || number >= DEVICES ||
           atomic_load_explicit(&foreign[number / 32], memory_order_relaxed) >> number % 32 & 1;
}

/* Filesystems without a device of their own, as FUSE, have major number 0. */
static bool ask_foreign(int fd, uint64_t dev)
{
    unsigned number = minor(dev);
    struct statfs fs;

    if (io_call(SYS_fstatfs, fd, &fs) >= 0 &&
        (fs.f_type == FUSE_SUPER_MAGIC ||
         (covered.magic && fs.f_type == OVERLAYFS_SUPER_MAGIC)))
        return false;
    atomic_fetch_or(&foreign[number / 32], UINT32_C(1) << number % 32);
    return true;
}

static bool is_refused(uint64_t dev)
{
    for (unsigned i = 0; i < REFUSED; i++)
        if (atomic_load_explicit(&refused[i].dev, memory_order_relaxed) == dev)
            return io_now_ns() <
                   atomic_load_explicit(&refused[i].until_ns, memory_order_relaxed);
    return false;
}

static void refuse(uint64_t dev)
{
    static unsigned next;
    unsigned at = 0;

    while (at < REFUSED && atomic_load(&refused[at].dev) != dev)
        at++;
    struct refused *entry = &refused[at < REFUSED ? at : next++ % REFUSED];
    atomic_store(&entry->until_ns, io_now_ns() + ASK_AGAIN_NS);
    atomic_store(&entry->dev, dev);
}

struct link *link_find(int fd, const struct stat *st)
{
    bool nobody = false;
    struct link *link = link_known(st);

    if (link || is_foreign(st->st_dev) || is_refused(st->st_dev) ||
        !atomic_compare_exchange_strong(&is_making, &nobody, true))
        return link;
    link = link_known(st);
    if (!link && !ask_foreign(fd, st->st_dev)) {
        link = link_make(fd, st);
        if (!link)
            refuse(st->st_dev);
    }
    atomic_store(&is_making, false);
    return link;
}

bool link_renew(struct link *link, int fd)
{
    static struct answer answer; /* is_making guards it */
    struct stat st;
    bool nobody = false;

    if (io_call(SYS_fstat, fd, &st) < 0 || is_refused(st.st_dev) ||
        !atomic_compare_exchange_strong(&is_making, &nobody, true))
        return false;
    bool is_new = link_is(link, &st) && link_ask(fd, &st, &answer);
    if (is_new && answer.offer.files == link->files)
        link_take_fds(link, &answer);
    else if (is_new)
        answer_close(&answer);
    refuse(st.st_dev); /* not for each read, if the archive was changed */
    atomic_store(&is_making, false);
    return is_new;
}

void link_saw_refusal(int dir, const char *path)
{
    char folder[PATH_MAX];
    struct stat st;

    if (!io_folder_of(path, folder, sizeof(folder)))
        return;
    int fd = (int)io_call(SYS_openat, dir, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct link *link = fd >= 0 && io_call(SYS_fstat, fd, &st) >= 0 ? link_find(fd, &st) : NULL;
    if (link)
        atomic_store_explicit(&link->head->has_refused, 1, memory_order_relaxed);
    close_fd(fd);
}

/* One that any code has closed unseen, and whose number is another file's, is left alone. */
static void link_close_fds(struct link *link)
{
    struct stat st;

    for (unsigned i = 0; i < link->files; i++) {
        const struct intercept_file *is = &link->file[i].is;
        int fd = atomic_exchange(&link->file[i].fd, -1);
        if (io_call(SYS_fstat, fd, &st) < 0 || st.st_dev != is->dev || st.st_ino != is->ino)
            continue;
        flight_closing(fd);
        close_fd(fd);
        flight_closed(fd);
    }
}

/*
 * They would keep the space of a copy that was deleted with its mount. A child of vfork has its
 * own descriptors but its parent's memory: it leaves them to the parent.
 */
static bool link_leave(struct link *link)
{
    return (uint32_t)io_call(SYS_getpid) == atomic_load(&slot_number) &&
           !atomic_exchange(&link->is_left, true);
}

/* Close the descriptors of mounts that have ended. */
static void link_leave_ended(void)
{
    uint32_t count = atomic_load_explicit(&link_count, memory_order_acquire);

    for (struct link *link = links; link < links + count; link++)
        if (atomic_load_explicit(&link->head->has_ended, memory_order_relaxed) &&
            !atomic_load_explicit(&link->is_left, memory_order_relaxed) && link_leave(link))
            link_close_fds(link);
}

/* ---- listing ---- */

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

static void list_by_and_by(int dir, const char *path, int fd, uint64_t took_ns)
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

void link_saw_open(int dir, const char *path, int fd, uint64_t took_ns)
{
    list_by_and_by(dir, path, fd, took_ns);
    link_leave_ended();
}

struct intercept_slot *link_slot(const struct link *link)
{
    uint32_t number = atomic_load_explicit(&slot_number, memory_order_relaxed);
    return &link->head->slots[(number + io_thread()) % INTERCEPT_SLOTS];
}

void link_forked(void)
{
    atomic_store(&slot_number, (uint32_t)io_call(SYS_getpid));
    atomic_store(&is_making, false); /* it may have been another thread */
    atomic_store(&is_listing, false);
}
