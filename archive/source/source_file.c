/*
 * Files, and memory. The filesystem decides whether a file may be mapped. Only filesystems
 * known to be on this node qualify, since a mapping turns a lost server into a SIGBUS, and page
 * faults over a network are slow. Memory is a sealed memory file, so that it has a descriptor,
 * too.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "lost_pages.h"
#include "numbers.h"
#include "source_ops.h"
#include "source_retry.h"
#include "write_at.h"
#include "syscalls.h"

struct source_file {
    struct source source;
    bool is_local;
    bool is_memory;               /* the pages are the storage: no device to wait for */
    _Atomic bool no_cached_reads; /* the filesystem lacks RWF_NOWAIT */
    _Atomic bool map_failed;
    struct lost_pages *_Atomic map; /* the mapping, guarded */
};

/* Its members that change are atomic. */
static struct source_file *file_of(const struct source *source)
{
    return (struct source_file *)(uintptr_t)source;
}

/* ---- requests ---- */

static _Atomic uint64_t requests_count, requests_bytes;

struct source_requests source_requests(void)
{
    return (struct source_requests){
        atomic_load_explicit(&requests_count, memory_order_relaxed),
        atomic_load_explicit(&requests_bytes, memory_order_relaxed),
    };
}

void source_add_requests(struct source_requests of_child)
{
    atomic_fetch_add_explicit(&requests_count, of_child.count, memory_order_relaxed);
    atomic_fetch_add_explicit(&requests_bytes, of_child.bytes, memory_order_relaxed);
}

static void file_count(const struct source_file *file, ssize_t bytes)
{
    if (!file->is_local)
        source_add_requests((struct source_requests){1, bytes > 0 ? (uint64_t)bytes : 0});
}

/* ---- the filesystem ---- */

struct storage storage_of(int fd)
{
    static const struct {
        uint32_t type;
        bool is_memory;
    } local[] = {
        {TMPFS_MAGIC, true},
        {(uint32_t)RAMFS_MAGIC, true},
        {(uint32_t)HUGETLBFS_MAGIC, true},
        {EXT4_SUPER_MAGIC, false}, /* also ext2, ext3 */
        {SQUASHFS_MAGIC, false},
        {REISERFS_SUPER_MAGIC, false},
        {NILFS_SUPER_MAGIC, false},
        {MSDOS_SUPER_MAGIC, false},
        {ISOFS_SUPER_MAGIC, false},
        {CRAMFS_MAGIC, false},
        /* Missing from <linux/magic.h> of older systems: */
        {0x58465342, false}, /* XFS */
        {0x9123683e, false}, /* Btrfs */
        {0xf2f52010, false}, /* F2FS */
        {0x2fc12fc1, false}, /* ZFS */
        {0xca451a4e, false}, /* bcachefs */
        {0x794c7630, false}, /* overlayfs */
        {0xe0f5e1e2, false}, /* EROFS */
        {0x3153464a, false}, /* JFS */
        {0x2011bab0, false}, /* exFAT */
        {0x7366746e, false}, /* NTFS */
        {0x15013346, false}, /* UDF */
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        fs.f_type = 0;
    /* f_type is signed and its width varies; the magic numbers are 32 bits. */
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (local[i].type == (uint32_t)fs.f_type)
            return (struct storage){.is_local = true, .is_memory = local[i].is_memory};
    return (struct storage){0}; /* unknown: treated as a network */
}

/* ---- the mapping ---- */

static const uint8_t *file_start_of(const struct lost_pages *map)
{
    return (const uint8_t *)atomic_load_explicit(&map->start, memory_order_relaxed);
}

static void file_unmap(struct lost_pages *map, uint64_t bytes)
{
    const uint8_t *start = file_start_of(map);
    lost_pages_release(map);
    munmap((void *)(uintptr_t)start, bytes);
}

static const uint8_t *file_map(const struct source *source, uint64_t offset, uint64_t len)
{
    struct source_file *file = file_of(source);
    uint64_t bytes = source->size_bytes;
    struct lost_pages *map = atomic_load_explicit(&file->map, memory_order_acquire);
    (void)len;
    if (map)
        return file_start_of(map) + offset;
    if (!file->is_local || bytes == 0 || atomic_load(&file->map_failed))
        return NULL;

    /* No lock: a process forked now would inherit it locked for ever. */
    void *made = source_may_map(bytes) ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, source->fd, 0)
                                       : MAP_FAILED;
    struct lost_pages *guard = made == MAP_FAILED ? NULL : lost_pages_guard(made, bytes);
    if (!guard) {
        if (made != MAP_FAILED)
            munmap(made, bytes);
        atomic_store(&file->map_failed, true);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&file->map, &map, guard))
        return (const uint8_t *)made + offset;
    file_unmap(guard, bytes);
    return file_start_of(map) + offset;
}

/* Also checks the length, as the last page reads as zeros past the file's end. */
static bool file_is_whole(const struct source *source)
{
    struct stat st;
    const struct lost_pages *map = atomic_load(&file_of(source)->map);
    if (lost_pages_any(map))
        return false;
    if (fstat(source->fd, &st) < 0)
        return !map; /* reads will tell */
    return !S_ISREG(st.st_mode) || (uint64_t)st.st_size >= source->size_bytes;
}

/*
 * Where a file was cut, bytes of its new last page read as zeros. By then the old last page is
 * out of reach, and a look at it is a fault, which marks the mapping. Only within that page
 * the length alone tells.
 */
static bool file_range_is_whole(const struct source *source, uint64_t offset, uint64_t len)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const struct lost_pages *map =
        atomic_load_explicit(&file_of(source)->map, memory_order_acquire);
    uint64_t last = source->size_bytes - 1;
    if (!map || offset + len > last - last % page)
        return false; /* ask */
    atomic_signal_fence(memory_order_seq_cst);
    (void)*(const volatile uint8_t *)(file_start_of(map) + last);
    return !lost_pages_any(map);
}

/* All of a mapping is there. */
static int file_bring(const struct source *source, uint64_t offset, uint64_t len, bool may_wait)
{
    (void)source, (void)offset, (void)len, (void)may_wait;
    return 0;
}

/* ---- reads ---- */

static int file_read(const struct source *source, struct source_cursor *cursor)
{
    while (cursor->count > 0) {
        ssize_t n = preadv(source->fd, cursor->iov, cursor->count, (off_t)cursor->offset);
        if (n < 0 && errno == EINTR)
            continue;
        file_count(file_of(source), n);
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        source_cursor_step(cursor, (size_t)n);
    }
    return 0;
}

static int file_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    struct source_file *file = file_of(source);
    struct iovec iov = {buf, len};
    struct source_cursor cursor = {&iov, len > 0, offset};
    while (cursor.count > 0) {
        if (file->is_memory) /* never waits, and not asked in vain: a tmpfs lacks RWF_NOWAIT */
            return file_read(source, &cursor);
        if (atomic_load_explicit(&file->no_cached_reads, memory_order_relaxed))
            return -EAGAIN;
        ssize_t n = preadv2(source->fd, &iov, 1, (off_t)cursor.offset, RWF_NOWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EOPNOTSUPP || syscall_is_missing(errno) || errno == EINVAL)) {
            atomic_store_explicit(&file->no_cached_reads, true, memory_order_relaxed);
            continue;
        }
        if (n < 0) /* a read that may wait will retry */
            return source_error_may_pass(-errno) ? -EAGAIN : -errno;
        if (n == 0)
            return -ENODATA;
        source_cursor_step(&cursor, (size_t)n);
    }
    return 0;
}

/* ---- the rest ---- */

static void file_state(const struct source *source, struct source_state *ret_state)
{
    *ret_state = (struct source_state){.is_local = file_of(source)->is_local,
                                       .is_memory = file_of(source)->is_memory};
}

static void file_advise(const struct source *source, enum source_advice advice, uint64_t offset,
                        uint64_t len)
{
    static const int advices[] = {[SOURCE_AT_RANDOM] = POSIX_FADV_RANDOM,
                                  [SOURCE_DROP] = POSIX_FADV_DONTNEED,
                                  [SOURCE_SOON] = POSIX_FADV_WILLNEED,
                                  [SOURCE_WRONG] = POSIX_FADV_DONTNEED};
    if (file_of(source)->is_memory ||
        (advice == SOURCE_AT_RANDOM && file_map(source, 0, source->size_bytes)))
        return;
    if (advices[advice] ==
        POSIX_FADV_DONTNEED) { /* the kernel would leave pages that lie partly in the range */
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
        len = (offset + len + page - 1) / page * page - first;
        offset = first;
    }
    posix_fadvise(source->fd, (off_t)offset, (off_t)len, advices[advice]);
}

static bool file_close(struct source *source)
{
    struct lost_pages *map = atomic_load(&file_of(source)->map);
    if (map)
        file_unmap(map, source->size_bytes);
    close(source->fd);
    return true;
}

static const struct source_ops file_ops = {
    .read = file_read,
    .read_cached = file_read_cached,
    .map = file_map,
    .bring = file_bring,
    .is_whole = file_is_whole,
    .range_is_whole = file_range_is_whole,
    .state = file_state,
    .advise = file_advise,
    .close = file_close,
};

/* ---- opening ---- */

/* Takes over fd. */
static int file_new(int fd, const char *name, struct source_file **ret_file)
{
    struct source_file *file = calloc(1, sizeof(*file));
    struct stat st;
    if (!file) {
        close(fd);
        return -ENOMEM;
    }
    file->source.ops = &file_ops;
    file->source.fd = fd;
    file->source.name = strdup(name);
    int r = file->source.name ? 0 : -ENOMEM;
    if (r == 0 && fstat(fd, &st) < 0)
        r = -errno;
    if (r == 0 && !S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode))
        r = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    off_t end = r < 0 ? 0 : S_ISBLK(st.st_mode) ? lseek(fd, 0, SEEK_END) : st.st_size;
    if (end < 0)
        r = -errno;
    if (r < 0) {
        source_close(&file->source);
        return r;
    }
    file->source.identity = source_identity_of(&st);
    file->source.size_bytes = file->source.identity.size_bytes = (uint64_t)end;
    *ret_file = file;
    return 0;
}

int source_from_fd(int fd, const char *name, struct source **ret_source)
{
    struct source_file *file;
    const char *remote = getenv("ONEPOT_ASSUME_REMOTE"); /* for tests */
    int r = file_new(fd, name, &file);
    if (r < 0)
        return r;
    if (!remote || strcmp(remote, "1") != 0) {
        struct storage storage = storage_of(fd);
        file->is_local = storage.is_local;
        file->is_memory = storage.is_memory;
    }
    file_count(file, 0);
    struct source *source = &file->source;
    r = source_retry(&source);
    if (r < 0) {
        source_close(source);
        return r;
    }
    *ret_source = source;
    return 0;
}

int source_open_fault(const char *path, struct fault *fault, int err)
{
    switch (-err) {
    case EISDIR:
        return fault_set_advised(fault, err, NULL, FAULT_NO_OFFSET,
                                 "make an archive of it with 'onepot pack'",
                                 "is a directory, not an archive");
    case EINVAL:
    case ENXIO:
        return fault_set_advised(fault, err, NULL, FAULT_NO_OFFSET,
                                 "archives are read at random: save it as a file first",
                                 "is not a regular file");
    case ENOENT:
        return fault_set_advised(
            fault, err, NULL, FAULT_NO_OFFSET,
            strstr(path, "://") ? "a URL is not a path: copy the archive to a filesystem first"
                                : "check the path; a job may see other filesystems than you do",
            "no such file");
    case EACCES:
    case EPERM:
        return fault_set_advised(fault, err, NULL, FAULT_NO_OFFSET,
                                 "ask its owner for read permission on it and on its folders",
                                 "permission denied");
    default:
        return fault_set_errno(fault, err, NULL, "can't be opened");
    }
}

int source_open(const char *path, struct fault *fault, struct source **ret_source)
{
    /* O_NONBLOCK makes a fifo an error instead of a wait. */
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    int fd = open(path, flags | O_NOFOLLOW);
    bool is_by_link = fd < 0 && errno == ELOOP;
    if (is_by_link)
        fd = open(path, flags);
    int r = fd < 0 ? -errno : source_from_fd(fd, path, ret_source);
    if (r < 0)
        return fault ? source_open_fault(path, fault, r) : r;
    (*ret_source)->is_by_link = is_by_link;
    fcntl(fd, F_SETFL, O_RDONLY);
    return 0;
}

void source_expect(size_t count)
{
    enum { OTHER_FILES = 32, FILES_OF_ANY_PROCESS = 64 };
    if (count + OTHER_FILES <= FILES_OF_ANY_PROCESS)
        return;
    int fd = open("/", O_PATH | O_CLOEXEC);
    int last = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, (int)min_u64(count + OTHER_FILES, INT_MAX))
                       : -1; /* above the limit it fails, and so will the opening */
    if (last >= 0)
        close(last);
    if (fd >= 0)
        close(fd);
}

int source_from_memory(const void *bytes, size_t len, const char *name,
                       struct source **ret_source)
{
    struct source_file *file;
    auto_close int fd = syscall_memfd("onepot-source", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fd;
    int r = write_at(fd, bytes, len, 0);
    if (r < 0)
        return r;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    r = file_new(steal_fd(&fd), name, &file);
    if (r < 0)
        return r;
    file->is_local = file->is_memory = true;
    file->source.identity = (struct source_identity){0};
    *ret_source = &file->source;
    return 0;
}
