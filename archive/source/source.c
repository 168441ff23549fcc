/*
 * Sources: an archive's bytes from a file or from memory.
 *
 * Memory is a sealed memory file, so that both kinds have a descriptor and share one code
 * path. The filesystem decides whether a file may be mapped. Only filesystems known to be on
 * this node qualify, since a mapping turns a lost server into a SIGBUS, and page faults over a
 * network are slow.
 */
#include "source.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "lost_pages.h"
#include "source_guard.h"
#include "write_at.h"

struct source {
    int fd;
    struct source_guard *guard; /* handles failed reads */
    char *name;
    struct source_identity identity;
    uint64_t size_bytes;
    bool is_local;
    bool is_memory;               /* the pages are the storage: no device to wait for */
    _Atomic bool no_cached_reads; /* the filesystem lacks RWF_NOWAIT */
    _Atomic bool map_failed;
    struct lost_pages *_Atomic map; /* the mapping, guarded */
    _Atomic bool map_was_cut;
    bool has_copy;
    struct source_copy copy;
};

/* Magic numbers missing from <linux/magic.h> of older systems. */
enum {
    MAGIC_XFS = 0x58465342,
    MAGIC_F2FS = (int)0xf2f52010,
    MAGIC_ZFS = 0x2fc12fc1,
    MAGIC_EROFS = (int)0xe0f5e1e2,
    MAGIC_BCACHEFS = (int)0xca451a4e,
    MAGIC_OVERLAY = 0x794c7630,
    MAGIC_BTRFS = (int)0x9123683e,
    MAGIC_NTFS3 = 0x7366746e,
    MAGIC_EXFAT = 0x2011bab0,
    MAGIC_UDF = 0x15013346,
    MAGIC_JFS = 0x3153464a,
};

static bool is_memory_filesystem(uint32_t type)
{
    return type == TMPFS_MAGIC || type == (uint32_t)RAMFS_MAGIC ||
           type == (uint32_t)HUGETLBFS_MAGIC;
}

static bool is_local_filesystem(uint32_t type)
{
    static const uint32_t local[] = {
        EXT4_SUPER_MAGIC /* also ext2, ext3 */,
        (uint32_t)MAGIC_XFS,
        (uint32_t)MAGIC_BTRFS,
        (uint32_t)MAGIC_F2FS,
        (uint32_t)MAGIC_ZFS,
        (uint32_t)MAGIC_BCACHEFS,
        (uint32_t)MAGIC_OVERLAY,
        SQUASHFS_MAGIC,
        (uint32_t)MAGIC_EROFS,
        REISERFS_SUPER_MAGIC,
        (uint32_t)MAGIC_JFS,
        NILFS_SUPER_MAGIC,
        MSDOS_SUPER_MAGIC,
        (uint32_t)MAGIC_EXFAT,
        (uint32_t)MAGIC_NTFS3,
        ISOFS_SUPER_MAGIC,
        (uint32_t)MAGIC_UDF,
        CRAMFS_MAGIC,
    };
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (local[i] == type)
            return true;
    return is_memory_filesystem(type);
}

struct storage storage_of(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        return (struct storage){0}; /* unknown: treated as a network */
    /* f_type is signed and its width varies; the magic numbers are 32 bits. */
    uint32_t type = (uint32_t)fs.f_type;
    return (struct storage){is_local_filesystem(type), is_memory_filesystem(type)};
}

static void find_storage(struct source *source)
{
    struct storage storage = storage_of(source->fd);
    source->is_memory = storage.is_memory;
    source->is_local = storage.is_local;

    const char *remote = getenv("ONEPOT_ASSUME_REMOTE"); /* for tests */
    if (remote && strcmp(remote, "1") == 0)
        source->is_local = source->is_memory = false;
}

static int find_size(struct source *source)
{
    struct stat st;
    if (fstat(source->fd, &st) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (S_ISBLK(st.st_mode)) {
        off_t end = lseek(source->fd, 0, SEEK_END);
        if (end < 0)
            return -errno;
        source->size_bytes = (uint64_t)end;
    } else if (S_ISREG(st.st_mode)) {
        source->size_bytes = (uint64_t)st.st_size;
    } else {
        return -EINVAL;
    }
    source->identity = (struct source_identity){
        .dev = st.st_dev,
        .ino = st.st_ino,
        .size_bytes = source->size_bytes,
        .mtime_sec = st.st_mtim.tv_sec,
        .mtime_nsec = (uint32_t)st.st_mtim.tv_nsec,
    };
    return 0;
}

int source_from_fd(int fd, const char *name, struct source **ret_source)
{
    struct source *source = calloc(1, sizeof(*source));
    if (!source) {
        close(fd);
        return -ENOMEM;
    }
    source->fd = fd;
    source->name = strdup(name);
    int r = source->name ? find_size(source) : -ENOMEM;
    if (r == 0)
        r = source_guard_new(fd, &source->identity, &source->guard);
    if (r < 0) {
        source_close(source);
        return r;
    }
    find_storage(source);
    *ret_source = source;
    return 0;
}

int source_open_fault(const char *path, struct fault *fault, int err)
{
    switch (-err) {
    case EISDIR:
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "is a directory, not an archive");
        fault_advise(fault, "make an archive of it with 'onepot pack'");
        break;
    case EINVAL:
    case ENXIO:
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "is no regular file");
        fault_advise(fault, "archives are read at random: save it as a file first");
        break;
    case ENOENT:
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "no such file");
        fault_advise(fault,
                     strstr(path, "://")
                         ? "a URL is no path: copy the archive to a filesystem first"
                         : "check the path; a job may see other filesystems than you do");
        break;
    case EACCES:
    case EPERM:
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "permission denied");
        fault_advise(fault, "ask its owner for read permission on it and on its folders");
        break;
    default: {
        char text[128];
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "can't be opened: %s",
                  strerror_r(-err, text, sizeof(text)));
    }
    }
    return err;
}

int source_open(const char *path, struct fault *fault, struct source **ret_source)
{
    /* O_NONBLOCK makes a fifo an error instead of a wait. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return source_open_fault(path, fault, -errno);
    int r = source_from_fd(fd, path, ret_source);
    if (r < 0)
        return source_open_fault(path, fault, r);
    fcntl(fd, F_SETFL, O_RDONLY);
    return 0;
}

int source_from_memory(const void *bytes, size_t len, const char *name,
                       struct source **ret_source)
{
    auto_close int fd = memfd_create("onepot-source", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    int r = write_at(fd, bytes, len, 0);
    if (r < 0)
        return r;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    struct source *source = NULL;
    r = source_from_fd(steal_fd(&fd), name, &source);
    if (r < 0)
        return r;
    source->is_local = source->is_memory = true;
    source->identity = (struct source_identity){0};
    *ret_source = source;
    return 0;
}

static const uint8_t *start_of(const struct lost_pages *map)
{
    return (const uint8_t *)atomic_load_explicit(&map->start, memory_order_relaxed);
}

static void unmap(struct lost_pages *map, uint64_t bytes)
{
    const uint8_t *start = start_of(map);
    lost_pages_release(map);
    munmap((void *)(uintptr_t)start, bytes);
}

void source_close(struct source *source)
{
    if (!source ||
        (source->has_copy && source->copy.release && !source->copy.release(source->copy.ctx)))
        return;
    struct lost_pages *map = atomic_load(&source->map);
    if (map)
        unmap(map, source->size_bytes);
    source_guard_free(source->guard);
    if (source->fd >= 0)
        close(source->fd);
    free(source->name);
    free(source);
}

const char *source_name(const struct source *source)
{
    return source->name;
}

uint64_t source_size(const struct source *source)
{
    return source->size_bytes;
}

int source_fd(const struct source *source)
{
    return source->fd;
}

void source_identity(const struct source *source, struct source_identity *ret_identity)
{
    *ret_identity = source->identity;
}

bool source_is_local(const struct source *source)
{
    return source->has_copy ? source->copy.is_whole(source->copy.ctx) : source->is_local;
}

bool source_is_ours(const struct source *source)
{
    struct stat st;
    int seals = fcntl(source->fd, F_GET_SEALS), all = F_SEAL_SHRINK | F_SEAL_WRITE;
    if (seals >= 0 && (seals & all) == all)
        return true;
    /* With an ACL, the group bits bound what any of its entries grants. */
    return fstat(source->fd, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           (st.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

int source_map_fd(const struct source *source)
{
    return source->has_copy ? source->copy.fd : source->fd;
}

/* ---- a copy ---- */

void source_set_copy(struct source *source, const struct source_copy *copy)
{
    source->copy = *copy;
    source->has_copy = true;
}

bool source_has(const struct source *source, uint64_t offset, uint64_t len)
{
    return !source->has_copy || source->copy.has(source->copy.ctx, offset, len);
}

int source_bring(const struct source *source, uint64_t offset, uint64_t len)
{
    return source->has_copy ? source->copy.bring(source->copy.ctx, offset, len) : 0;
}

bool source_is_staged(const struct source *source)
{
    return source->has_copy;
}

bool source_is_copied(const struct source *source)
{
    return source->has_copy && source->copy.is_whole(source->copy.ctx);
}

uint64_t source_further_ns(const struct source *source)
{
    return source->has_copy && source->copy.further_ns
               ? source->copy.further_ns(source->copy.ctx)
               : 0;
}

/* Under a limit on addresses (ulimit -v), others need them more. */
static bool may_be_mapped(const struct source *source)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
           source->size_bytes <= limit.rlim_cur / 8;
}

const uint8_t *source_map(struct source *source)
{
    if (source->has_copy)
        return source->copy.map;
    struct lost_pages *map = atomic_load_explicit(&source->map, memory_order_acquire);
    if (map)
        return start_of(map);
    if (!source->is_local || source->size_bytes == 0 || atomic_load(&source->map_failed))
        return NULL;

    /* No lock: a process forked now would inherit it locked for ever. */
    void *made = may_be_mapped(source)
                     ? mmap(NULL, source->size_bytes, PROT_READ, MAP_SHARED, source->fd, 0)
                     : MAP_FAILED;
    struct lost_pages *guard =
        made == MAP_FAILED ? NULL : lost_pages_guard(made, source->size_bytes);
    if (!guard) {
        if (made != MAP_FAILED)
            munmap(made, source->size_bytes);
        atomic_store(&source->map_failed, true);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&source->map, &map, guard))
        return made;
    unmap(guard, source->size_bytes);
    return start_of(map);
}

bool source_map_was_cut(const struct source *source)
{
    return atomic_load_explicit(&source->map_was_cut, memory_order_relaxed);
}

/* Also checks the length, as the last page reads as zeros past the file's end. */
bool source_map_is_whole(struct source *source)
{
    struct stat st;
    const struct lost_pages *map = atomic_load(&source->map);
    if (source->has_copy || !map)
        return true;
    if (!source_map_was_cut(source) && !lost_pages_any(map) && fstat(source->fd, &st) == 0 &&
        (!S_ISREG(st.st_mode) || (uint64_t)st.st_size >= source->size_bytes))
        return true;
    atomic_store(&source->map_was_cut, true);
    return false;
}

static bool in_range(const struct source *source, size_t len, uint64_t offset)
{
    return offset <= source->size_bytes && len <= source->size_bytes - offset;
}

/* The buffers that remain to be filled, in order. */
struct pieces {
    struct iovec *iov;
    int count;
    uint64_t offset;
};

static void step_on(struct pieces *p, size_t n)
{
    p->offset += n;
    for (; p->count > 0 && n >= p->iov->iov_len; p->iov++, p->count--)
        n -= p->iov->iov_len;
    if (p->count > 0) {
        p->iov->iov_base = (uint8_t *)p->iov->iov_base + n;
        p->iov->iov_len -= n;
    }
}

/* Read as far as possible: 0, or the error that stopped it. */
static int read_on(const struct source *source, struct pieces *p)
{
    step_on(p, 0); /* skip empty buffers */
    while (p->count > 0) {
        ssize_t n = preadv(source->fd, p->iov, p->count, (off_t)p->offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        step_on(p, (size_t)n);
    }
    return 0;
}

/* With as many retries as needed, or as allowed. */
static int read_guarded(const struct source *source, struct iovec *iov, int count,
                        uint64_t offset)
{
    struct source_attempt attempt = source_guard_begin(source->guard);
    struct pieces pieces = {iov, count, offset};
    int r;
    while ((r = read_on(source, &pieces)) < 0 &&
           source_guard_again(source->guard, &attempt, r, pieces.offset))
        ;
    if (r == 0)
        source_guard_succeeded(source->guard);
    return r;
}

int source_read_origin(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    struct iovec iov = {buf, len};
    return in_range(source, len, offset) ? read_guarded(source, &iov, 1, offset) : -ENODATA;
}

int source_read(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    if (!source->has_copy)
        return source_read_origin(source, buf, len, offset);
    return in_range(source, len, offset)
               ? source->copy.read(source->copy.ctx, buf, len, offset, true)
               : -ENODATA;
}

/* Read from a copy, one buffer at a time: the copy is memory, or being read elsewhere. */
static int readv_copy(const struct source *source, const struct iovec *iov, int count,
                      uint64_t offset)
{
    int r = 0;
    for (int i = 0; r == 0 && i < count; offset += iov[i++].iov_len)
        r = source_read(source, iov[i].iov_base, iov[i].iov_len, offset);
    return r;
}

int source_readv(const struct source *source, struct iovec *iov, int count, uint64_t offset)
{
    return source->has_copy ? readv_copy(source, iov, count, offset)
                            : read_guarded(source, iov, count, offset);
}

void source_use_at_random(struct source *source)
{
    if (!source->is_memory && !source->has_copy && !source_map(source))
        source_guard_use_at_random(source->guard);
}

void source_drop_pages(const struct source *source, uint64_t offset, uint64_t len)
{
    /* The kernel would leave pages alone that lie only partly in the range. */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    if (!source->is_memory && !source->has_copy)
        posix_fadvise(source->fd, (off_t)first,
                      (off_t)((offset + len + page - 1) / page * page - first),
                      POSIX_FADV_DONTNEED);
}

void source_expect(const struct source *source, uint64_t offset, uint64_t len)
{
    if (!source->is_memory && !source->has_copy && in_range(source, len, offset))
        posix_fadvise(source->fd, (off_t)offset, (off_t)len, POSIX_FADV_WILLNEED);
}

int source_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    if (!in_range(source, len, offset))
        return -ENODATA;
    if (source->has_copy)
        return source->copy.read(source->copy.ctx, buf, len, offset, false);
    _Atomic bool *no_cached_reads = (_Atomic bool *)&source->no_cached_reads;
    uint8_t *p = buf;
    while (len > 0) {
        if (atomic_load_explicit(no_cached_reads, memory_order_relaxed))
            return source->is_memory ? source_read(source, p, len, offset) : -EAGAIN;
        struct iovec iov = {.iov_base = p, .iov_len = len};
        ssize_t n = preadv2(source->fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) {
            atomic_store_explicit(no_cached_reads, true, memory_order_relaxed);
            continue;
        }
        if (n < 0) /* retries are for reads that may wait */
            return source_error_may_pass(-errno) ? -EAGAIN : -errno;
        if (n == 0)
            return -ENODATA;
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* The samples of the fingerprint: cheap even if each read is a round trip. */
enum {
    FINGERPRINT_END_BYTES = 65536,
    FINGERPRINT_PLACE_BYTES = 4096,
    FINGERPRINT_PLACES = 16,
};

static int hash_range(const struct source *source, uint8_t *buf, uint64_t offset, size_t len,
                      uint64_t *ret_hash)
{
    if (len > source->size_bytes - offset)
        len = (size_t)(source->size_bytes - offset);
    int r = source_read_origin(source, buf, len, offset);
    if (r < 0)
        return r;
    *ret_hash = htole64(XXH3_64bits(buf, len));
    return 0;
}

int source_fingerprint(const struct source *source, uint64_t *ret_fingerprint)
{
    uint64_t size = source->size_bytes;
    uint64_t parts[3 + FINGERPRINT_PLACES] = {htole64(size)};
    auto_free uint8_t *buf = malloc(FINGERPRINT_END_BYTES);
    if (!buf)
        return -ENOMEM;

    int r = hash_range(source, buf, 0, FINGERPRINT_END_BYTES, &parts[1]);
    if (r < 0)
        return r;
    uint64_t last = size > FINGERPRINT_END_BYTES ? size - FINGERPRINT_END_BYTES : 0;
    r = hash_range(source, buf, last, FINGERPRINT_END_BYTES, &parts[2]);
    if (r < 0)
        return r;
    for (uint64_t i = 0; i < FINGERPRINT_PLACES; i++) {
        uint64_t offset = size / (FINGERPRINT_PLACES + 1) * (i + 1);
        r = hash_range(source, buf, offset, FINGERPRINT_PLACE_BYTES, &parts[3 + i]);
        if (r < 0)
            return r;
    }
    *ret_fingerprint = XXH3_64bits(parts, sizeof(parts));
    return 0;
}

void source_set_retries(struct source *source, unsigned retries)
{
    source_guard_set_retries(source->guard, retries);
}

void source_cancel_retries(struct source *source)
{
    source_guard_cancel(source->guard);
}

void source_on_trouble(struct source *source, source_trouble_hook *hook, void *ctx)
{
    source_guard_on_trouble(source->guard, hook, ctx);
}

void source_troubles(const struct source *source, struct source_troubles *ret_troubles)
{
    source_guard_troubles(source->guard, ret_troubles);
}
