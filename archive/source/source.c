/*
 * Sources: the part that all share, files and memory, a part of another one, several as one.
 *
 * Each call goes to the outermost source of a chain that has this operation; on the way, slices
 * add where they begin.
 */
#include "source.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "lost_pages.h"
#include "numbers.h"
#include "source_concat.h"
#include "source_ops.h"
#include "source_retry.h"
#include "source_slice.h"
#include "syscalls.h"
#include "write_at.h"

/* Go on to the outermost source with this operation, and to the same byte there. */
#define DESCEND(source, op, offset)                                                            \
    while (!(source)->ops->op) {                                                               \
        *(offset) += (source)->begin;                                                          \
        (source) = (source)->wrapped;                                                          \
    }

void source_wrap(struct source *wrapper, const struct source_ops *ops, struct source **source)
{
    *wrapper = **source;
    wrapper->ops = ops;
    wrapper->wrapped = *source;
    wrapper->begin = 0;
    *source = wrapper;
}

void source_close(struct source *source)
{
    while (source && (!source->ops->close || source->ops->close(source))) {
        struct source *wrapped = source->wrapped;
        if (!wrapped)
            free(source->name);
        free(source);
        source = wrapped;
    }
}

const char *source_name(const struct source *source)
{
    return source->name;
}

bool source_is_by_link(const struct source *source)
{
    return source->is_by_link;
}

uint64_t source_size(const struct source *source)
{
    return source->size_bytes;
}

int source_fd(const struct source *source)
{
    return source->fd;
}

uint64_t source_start(const struct source *source)
{
    return source->start;
}

void source_identity(const struct source *source, struct source_identity *ret_identity)
{
    *ret_identity = source->identity;
}

bool source_identity_equal(const struct source_identity *a, const struct source_identity *b)
{
    return a->dev == b->dev && a->ino == b->ino && source_identity_same(a, b) &&
           a->slice_start == b->slice_start && a->slice_bytes == b->slice_bytes;
}

void source_identity_join(const struct source_identity *all, size_t count,
                          struct source_identity *ret_identity)
{
    struct source_identity joined = {0};
    XXH128_hash_t hash = {0};
    for (size_t i = 0; i < count; i++) {
        const struct source_identity *one = &all[i];
        const uint64_t parts[] = {hash.high64,    hash.low64,      one->dev,
                                  one->ino,       one->size_bytes, (uint64_t)one->mtime_sec,
                                  one->mtime_nsec};
        hash = XXH3_128bits(parts, sizeof(parts));
        joined.size_bytes += one->size_bytes;
        if (i == 0 || one->mtime_sec > joined.mtime_sec ||
            (one->mtime_sec == joined.mtime_sec && one->mtime_nsec > joined.mtime_nsec)) {
            joined.mtime_sec = one->mtime_sec;
            joined.mtime_nsec = one->mtime_nsec;
        }
        if (i == 0 || one->ctime_sec > joined.ctime_sec ||
            (one->ctime_sec == joined.ctime_sec && one->ctime_nsec > joined.ctime_nsec)) {
            joined.ctime_sec = one->ctime_sec;
            joined.ctime_nsec = one->ctime_nsec;
        }
    }
    joined.dev = hash.high64;
    joined.ino = hash.low64;
    *ret_identity = joined;
}

/* ---- its members ---- */

const struct source *source_member(const struct source *source, size_t i)
{
    const struct source *several = source;
    while (several && !several->ops->member)
        several = several->wrapped;
    if (several)
        return several->ops->member(several, i);
    return i == 0 ? source : NULL;
}

const struct source *source_at(const struct source *source, uint64_t *offset)
{
    const struct source *several = source;
    if (source_member(source, 0) == source)
        return source;
    DESCEND(several, at, offset);
    return several->ops->at(several, offset);
}

const struct source *source_file_next(const struct source *source, size_t at[2])
{
    const struct source *member, *file = NULL;
    while (!file && (member = source_member(source, at[0]))) {
        file = source_member(member, at[1]++);
        if (!file) {
            at[0]++;
            at[1] = 0;
        }
    }
    return file;
}

static int file_identity_now(const struct source *file, struct source_identity *ret_identity)
{
    struct stat st;
    if (file->ops->identity_now)
        return file->ops->identity_now(file, ret_identity);
    if (fstat(file->fd, &st) < 0)
        return -errno;
    *ret_identity = source_identity_of(&st);
    if (!S_ISREG(st.st_mode))
        ret_identity->size_bytes = file->identity.size_bytes;
    return 0;
}

int source_identity_now(const struct source *source, struct source_identity *ret_identity)
{
    const struct source *file;
    size_t count = 0;
    int r = 0;
    if (source_member(source, 0) == source)
        return file_identity_now(source, ret_identity);
    for (size_t at[2] = {0}; source_file_next(source, at);)
        count++;
    auto_free struct source_identity *all = calloc(count, sizeof(*all));
    if (!all)
        return -ENOMEM;
    count = 0;
    for (size_t at[2] = {0}; r == 0 && (file = source_file_next(source, at));)
        r = file_identity_now(file, &all[count++]);
    if (r == 0)
        source_identity_join(all, count, ret_identity);
    return r;
}

int source_was_changed(const struct source *source)
{
    const struct source *file;
    struct source_identity now = {0};
    int r = 0;
    for (size_t at[2] = {0}; r == 0 && (file = source_file_next(source, at));) {
        r = file_identity_now(file, &now);
        if (r == 0)
            r = !source_identity_same(&now, &file->identity);
    }
    return r;
}

int source_stat(const struct source *source, struct stat *ret_st)
{
    const struct source *file;
    struct stat all = {0}, st;
    size_t at[2] = {0};
    for (bool is_first = true; (file = source_file_next(source, at)); is_first = false) {
        if (fstat(file->fd, &st) < 0)
            return -errno;
        if (is_first)
            all = st;
        if (all.st_uid != st.st_uid || all.st_gid != st.st_gid) {
            all.st_uid = geteuid();
            all.st_mode &= ~(mode_t)0077;
        }
        all.st_mode &= st.st_mode | S_IFMT;
        all.st_dev = all.st_dev == st.st_dev ? st.st_dev : 0;
        if (st.st_ctim.tv_sec > all.st_ctim.tv_sec)
            all.st_ctim = st.st_ctim;
    }
    *ret_st = all;
    return 0;
}

static bool file_is_ours(const struct source *source)
{
    struct stat st;
    int seals = fcntl(source->fd, F_GET_SEALS), all = F_SEAL_SHRINK | F_SEAL_WRITE;
    if (seals >= 0 && (seals & all) == all)
        return true;
    /* With an ACL, the group bits bound what any of its entries grants. */
    return fstat(source->fd, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           (st.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool source_is_ours(const struct source *source)
{
    const struct source *file;
    bool ours = true;
    for (size_t at[2] = {0}; ours && (file = source_file_next(source, at));)
        ours = file_is_ours(file);
    return ours;
}

static bool source_in_range(const struct source *source, uint64_t len, uint64_t offset)
{
    return offset <= source->size_bytes && len <= source->size_bytes - offset;
}

/* ---- its state ---- */

/* The present state of a source. */
static struct source_state source_state_of(const struct source *source)
{
    struct source_state state;
    while (!source->ops->state)
        source = source->wrapped;
    source->ops->state(source, &state);
    return state;
}

bool source_is_local(const struct source *source)
{
    return source_state_of(source).is_local;
}

bool source_is_memory(const struct source *source)
{
    return source_state_of(source).is_memory;
}

int source_local_fd(const struct source *source, uint64_t *ret_start)
{
    struct source_state state = source_state_of(source);
    struct stat st;
    int fd = state.keeps ? state.kept_fd : source->fd;
    /* With a copy, only the outermost source has its bytes at their own offsets in that. */
    if (!state.is_local || (state.keeps && !source->ops->state) || fd < 0 ||
        fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return -1;
    *ret_start = state.keeps ? 0 : source->start;
    return fd;
}

bool source_keeps(const struct source *source)
{
    return source_state_of(source).keeps;
}

uint64_t source_progress_ns(const struct source *source)
{
    return source_state_of(source).progress_ns;
}

bool source_was_cut(const struct source *source)
{
    return atomic_load_explicit(&source->was_cut, memory_order_relaxed);
}

bool source_is_whole(struct source *source)
{
    const struct source *s = source;
    while (!s->ops->is_whole)
        s = s->wrapped;
    if (!source_was_cut(source) && s->ops->is_whole(s))
        return true;
    atomic_store(&source->was_cut, true);
    return false;
}

bool source_range_is_whole(struct source *source, uint64_t offset, uint64_t len)
{
    const struct source *s = source;
    DESCEND(s, is_whole, &offset);
    return s->ops->range_is_whole && s->ops->range_is_whole(s, offset, len)
               ? true
               : source_is_whole(source);
}

void source_advise(const struct source *source, enum source_advice advice, uint64_t offset,
                   uint64_t len)
{
    if (!source_in_range(source, len, offset))
        return;
    DESCEND(source, advise, &offset);
    source->ops->advise(source, advice, offset, len);
}

/* ---- bytes ---- */

void source_cursor_step(struct source_cursor *cursor, size_t n)
{
    cursor->offset += n;
    iovec_advance(&cursor->iov, &cursor->count, n);
}

int source_read_on(const struct source *source, struct source_cursor *cursor)
{
    uint64_t offset = cursor->offset;
    DESCEND(source, read, &cursor->offset);
    uint64_t skipped = cursor->offset - offset;
    int r = source->ops->read(source, cursor);
    cursor->offset -= skipped;
    return r;
}

int source_readv(const struct source *source, struct iovec *iov, int count, uint64_t offset)
{
    struct source_cursor cursor = {iov, count, offset};
    uint64_t len = 0;
    for (int i = 0; i < count; i++)
        len += iov[i].iov_len;
    source_cursor_step(&cursor, 0);
    return source_in_range(source, len, offset) ? source_read_on(source, &cursor) : -ENODATA;
}

int source_read(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    return source_readv(source, &(struct iovec){buf, len}, 1, offset);
}

int source_read_fault(const struct source *source, void *buf, size_t len, uint64_t offset,
                      struct fault *fault)
{
    int r = source_read(source, buf, len, offset);
    return r < 0 ? fault_set_read(fault, r, NULL, offset) : 0;
}

int source_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    if (!source_in_range(source, len, offset))
        return -ENODATA;
    DESCEND(source, read_cached, &offset);
    return source->ops->read_cached(source, buf, len, offset);
}

const uint8_t *source_map_at(const struct source *source, uint64_t offset, uint64_t len)
{
    if (len == 0 || !source_in_range(source, len, offset))
        return NULL;
    DESCEND(source, map, &offset);
    return source->ops->map(source, offset, len);
}

/* May so much be mapped? Under a limit on addresses (ulimit -v), others need them more. */
static bool source_may_map(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
           bytes <= limit.rlim_cur / 8;
}

bool source_can_map(const struct source *source)
{
    const struct source *outermost = source;
    struct source_state state;
    while (!outermost->ops->map)
        outermost = outermost->wrapped;
    if (!outermost->ops->member)
        return source_map_at(source, 0, source->size_bytes) != NULL;
    state = source_state_of(outermost);
    return outermost->size_bytes > 0 && state.is_local && !state.keeps &&
           source_may_map(outermost->size_bytes);
}

static int source_call_bring(const struct source *source, uint64_t offset, uint64_t len,
                             bool may_wait)
{
    DESCEND(source, bring, &offset);
    return source->ops->bring(source, offset, len, may_wait);
}

bool source_has(const struct source *source, uint64_t offset, uint64_t len)
{
    return source_call_bring(source, offset, len, false) == 0;
}

int source_bring(const struct source *source, uint64_t offset, uint64_t len)
{
    return source_call_bring(source, offset, len, true);
}

/* ---- the fingerprint ---- */

/* The samples are cheap even if each read is a round trip. */
enum {
    FINGERPRINT_END_BYTES = 65536,
    FINGERPRINT_PLACE_BYTES = 4096,
    FINGERPRINT_PLACES = 16,
    SAMPLE_BYTES = 4096,
};

static int file_fingerprint(const struct source *source, uint64_t *ret_fingerprint)
{
    uint64_t size = source->size_bytes;
    uint64_t parts[3 + FINGERPRINT_PLACES] = {htole64(size)};
    auto_free uint8_t *buf = malloc(FINGERPRINT_END_BYTES);
    int r = buf ? 0 : -ENOMEM;
    while (source->wrapped && source_state_of(source).keeps)
        source = source->wrapped; /* what it keeps a copy of */
    /* Both ends, and places in between. */
    for (uint64_t i = 0; r == 0 && i < 2 + FINGERPRINT_PLACES; i++) {
        uint64_t at = i == 0 || size < FINGERPRINT_END_BYTES ? 0 : size - FINGERPRINT_END_BYTES;
        size_t len = FINGERPRINT_END_BYTES;
        if (i >= 2) {
            at = size / (FINGERPRINT_PLACES + 1) * (i - 1);
            len = FINGERPRINT_PLACE_BYTES;
        }
        len = (size_t)min_u64(len, source->size_bytes - at);
        r = source_read(source, buf, len, at);
        if (r == 0)
            parts[1 + i] = htole64(XXH3_64bits(buf, len));
    }
    if (r == 0)
        *ret_fingerprint = XXH3_64bits(parts, sizeof(parts));
    return r;
}

int source_sample(const struct source *file, uint64_t *ret_sample)
{
    uint64_t size = source_size(file), sums[2];
    uint8_t bytes[SAMPLE_BYTES];
    size_t len = min_u64(size, SAMPLE_BYTES);
    int r = source_read(file, bytes, len, 0);
    sums[0] = XXH3_64bits(bytes, r == 0 ? len : 0);
    if (r == 0)
        r = source_read(file, bytes, len, size - len);
    sums[1] = XXH3_64bits(bytes, r == 0 ? len : 0);
    if (r == 0)
        *ret_sample = XXH3_64bits(sums, sizeof(sums));
    return r;
}

int source_fingerprint(const struct source *source, uint64_t *ret_fingerprint)
{
    const struct source *member = source_member(source, 0);
    uint64_t all = 0;
    if (member == source)
        return file_fingerprint(source, ret_fingerprint);
    int r = file_fingerprint(source, &all);
    for (size_t i = 0; r == 0 && (member = source_member(source, i)); i++) {
        uint64_t parts[3] = {htole64(all), htole64(source_size(member))};
        r = source_sample(member, &parts[2]);
        parts[2] = htole64(parts[2]);
        all = XXH3_64bits(parts, sizeof(parts));
    }
    if (r == 0)
        *ret_fingerprint = all;
    return r;
}

/*
 * ---- files, and memory ----
 *
 * The filesystem decides whether a file may be mapped. Only filesystems known to be on this
 * node qualify, since a mapping turns a lost server into a SIGBUS, and page faults over a
 * network are slow. Memory is a sealed memory file, so that it has a descriptor, too.
 */

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

/* ---- a file: requests ---- */

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

/* ---- a file: the filesystem ---- */

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

/* ---- a file: the mapping ---- */

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

/* ---- a file: opening ---- */

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

/* ---- a part of another source ---- */

/* A slice has no operations: DESCEND adds where it begins on the way to the source with them.
 */
static const struct source_ops slice_ops = {0};

int source_slice(struct source **source, uint64_t offset, uint64_t length)
{
    uint64_t size = (*source)->size_bytes;
    if (offset > size || length > size - offset)
        return -ENODATA;
    struct source *slice = calloc(1, sizeof(*slice));
    if (!slice)
        return -ENOMEM;
    source_wrap(slice, &slice_ops, source);
    slice->begin = offset;
    slice->size_bytes = length;
    slice->start += offset;
    slice->identity.slice_start = slice->start;
    slice->identity.slice_bytes = length;
    return 0;
}

void source_unslice(struct source **source)
{
    struct source *slice = *source;
    *source = slice->wrapped;
    free(slice);
}

/*
 * ---- several as one ----
 *
 * A request goes to the member with its first byte, which is found by bisection; one that
 * reaches beyond the member goes on in the next. Nearly all lie in one member: no file of an
 * archive lies in two, and few lie in two pieces of one.
 *
 * Each member has its own mapping, made when bytes of it are asked for: to map a thousand takes
 * longer than all else in opening them, and each is one more to copy in a fork, while small
 * files are never read so.
 */

struct concat_member {
    struct source *source;
    uint64_t base, bytes;
    _Atomic bool is_distrusted;
};

struct source_concat {
    struct source source;
    size_t count;
    struct concat_member members[];
};

/* Its members that change are atomic. */
static struct source_concat *concat_of(const struct source *source)
{
    return (struct source_concat *)(uintptr_t)source;
}

/* A range within one member, or within the gap behind it. */
struct concat_place {
    const struct concat_member *member;
    uint64_t within; /* offset in the member */
    uint64_t length;
    bool is_gap;
};

/* The place of the byte at `offset`, and of at most `len` bytes from there on. */
static struct concat_place concat_find(const struct source_concat *c, uint64_t offset,
                                       uint64_t len)
{
    /* The next one behind the last that begins at or before the offset. */
    size_t next = (size_t)search_first(i, 1, c->count, c->members[i].base > offset);
    const struct concat_member *member = &c->members[next - 1];
    struct concat_place place = {.member = member, .within = offset - member->base};
    uint64_t bytes = member->bytes;
    place.is_gap = place.within >= bytes;
    uint64_t room = place.is_gap
                        ? (next < c->count ? c->members[next].base : UINT64_MAX) - offset
                        : bytes - place.within;
    place.length = min_u64(room, len);
    return place;
}

static uint64_t concat_wanted(const struct source_cursor *cursor)
{
    uint64_t len = 0;
    for (int i = 0; i < cursor->count; i++)
        len += cursor->iov[i].iov_len;
    return len;
}

/* Bytes of one place, by source_read or source_read_cached; a gap reads as zeros. */
static int concat_read_place(const struct concat_place *place, void *to, size_t len,
                             int (*read)(const struct source *, void *, size_t, uint64_t))
{
    if (place->is_gap) {
        memset(to, 0, len);
        return 0;
    }
    return place->member->is_distrusted ? -ESTALE
                                        : read(place->member->source, to, len, place->within);
}

/* All of the request is one member's: its buffers go on to it as they are. */
static int concat_read_all(const struct concat_place *place, struct source_cursor *cursor)
{
    struct source_cursor own = {cursor->iov, cursor->count, place->within};
    if (place->member->is_distrusted)
        return -ESTALE;
    int r = source_read_on(place->member->source, &own);
    *cursor = (struct source_cursor){own.iov, own.count, place->member->base + own.offset};
    return r;
}

static int concat_read(const struct source *source, struct source_cursor *cursor)
{
    const struct source_concat *c = concat_of(source);
    while (cursor->count > 0) {
        uint64_t wanted = concat_wanted(cursor);
        struct concat_place place = concat_find(c, cursor->offset, wanted);
        if (!place.is_gap && place.length == wanted)
            return concat_read_all(&place, cursor);
        size_t n = min_u64(place.length, cursor->iov->iov_len);
        int r = concat_read_place(&place, cursor->iov->iov_base, n, source_read);
        if (r < 0)
            return r;
        source_cursor_step(cursor, n);
    }
    return 0;
}

static int concat_read_cached(const struct source *source, void *buf, size_t len,
                              uint64_t offset)
{
    for (uint8_t *to = buf; len > 0;) {
        struct concat_place place = concat_find(concat_of(source), offset, len);
        int r = concat_read_place(&place, to, place.length, source_read_cached);
        if (r < 0)
            return r;
        to += place.length;
        offset += place.length;
        len -= place.length;
    }
    return 0;
}

static void concat_advise(const struct source *source, enum source_advice advice,
                          uint64_t offset, uint64_t len)
{
    const struct source_concat *c = concat_of(source);
    if (advice == SOURCE_AT_RANDOM) {
        for (size_t i = 0; i < c->count; i++)
            source_advise(c->members[i].source, advice, 0, 0);
        return;
    }
    while (len > 0) {
        struct concat_place place = concat_find(c, offset, len);
        if (!place.is_gap)
            source_advise(place.member->source, advice, place.within, place.length);
        offset += place.length;
        len -= place.length;
    }
}

static const uint8_t *concat_map(const struct source *source, uint64_t offset, uint64_t len)
{
    struct concat_place place = concat_find(concat_of(source), offset, len);
    return place.is_gap || place.length < len || place.member->is_distrusted
               ? NULL
               : source_map_at(place.member->source, place.within, len);
}

static int concat_bring(const struct source *source, uint64_t offset, uint64_t len,
                        bool may_wait)
{
    const struct source_concat *c = concat_of(source);
    int r = 0;
    while (r == 0 && len > 0) {
        struct concat_place place = concat_find(c, offset, len);
        const struct source *member = place.member->source;
        if (!place.is_gap && may_wait)
            r = source_bring(member, place.within, place.length);
        else if (!place.is_gap && !source_has(member, place.within, place.length))
            r = -EAGAIN;
        offset += place.length;
        len -= place.length;
    }
    return r;
}

static bool concat_is_whole(const struct source *source)
{
    const struct source_concat *c = concat_of(source);
    bool whole = true;
    for (size_t i = 0; i < c->count; i++) /* all, since each of them remembers */
        whole &= source_is_whole(c->members[i].source);
    return whole;
}

static bool concat_range_is_whole(const struct source *source, uint64_t offset, uint64_t len)
{
    struct concat_place place = concat_find(concat_of(source), offset, len);
    return place.length == len &&
           (place.is_gap || source_range_is_whole(place.member->source, place.within, len));
}

static void concat_state(const struct source *source, struct source_state *ret_state)
{
    const struct source_concat *c = concat_of(source);
    struct source_state all = {.is_local = true, .is_memory = true};
    for (size_t i = 0; i < c->count; i++) {
        struct source_state state = source_state_of(c->members[i].source);
        all.is_local &= state.is_local;
        all.is_memory &= state.is_memory;
        all.keeps |= state.keeps;
        all.progress_ns = max_u64(all.progress_ns, state.progress_ns);
    }
    *ret_state = all;
}

static const struct source *concat_member(const struct source *source, size_t i)
{
    const struct source_concat *c = concat_of(source);
    return i < c->count ? c->members[i].source : NULL;
}

static const struct source *concat_at(const struct source *source, uint64_t *offset)
{
    struct concat_place place = concat_find(concat_of(source), *offset, 1);
    *offset = place.within;
    return source_at(place.member->source, offset);
}

static bool concat_close(struct source *source)
{
    struct source_concat *c = concat_of(source);
    for (size_t i = 0; i < c->count; i++)
        source_close(c->members[i].source);
    return true;
}

static const struct source_ops concat_ops = {
    .read = concat_read,
    .read_cached = concat_read_cached,
    .map = concat_map,
    .bring = concat_bring,
    .is_whole = concat_is_whole,
    .range_is_whole = concat_range_is_whole,
    .state = concat_state,
    .advise = concat_advise,
    .member = concat_member,
    .at = concat_at,
    .close = concat_close,
};

static int concat_identify(struct source_concat *c)
{
    auto_free struct source_identity *all = calloc(c->count, sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < c->count; i++)
        all[i] = c->members[i].source->identity;
    source_identity_join(all, c->count, &c->source.identity);
    return 0;
}

int source_concat(struct source *const *members, size_t count, bool has_gaps, const char *name,
                  struct source **ret_source)
{
    struct source_concat *c = calloc(1, sizeof(*c) + count * sizeof(c->members[0]));
    if (!c)
        return -ENOMEM;
    c->source.ops = &concat_ops;
    c->source.fd = -1;
    c->count = count;
    uint64_t end = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        bool is_aligned = has_gaps && source_size(members[i]) >= SOURCE_CONCAT_ALIGN;
        uint64_t base = is_aligned ? source_concat_next(end) : end;
        c->members[i].source = members[i];
        c->members[i].base = base;
        c->members[i].bytes = source_size(members[i]);
        if (base > INT64_MAX || source_size(members[i]) > INT64_MAX - base)
            r = -EFBIG;
        end = base + source_size(members[i]);
    }
    c->source.size_bytes = end;
    c->source.name = r == 0 ? strdup(name) : NULL;
    if (r == 0)
        r = c->source.name ? concat_identify(c) : -ENOMEM;
    if (r < 0) {
        free(c->source.name);
        free(c);
        return r;
    }
    *ret_source = &c->source;
    return 0;
}

static struct source_concat *concat_in(const struct source *source)
{
    while (source->ops != &concat_ops)
        source = source->wrapped;
    return concat_of(source);
}

uint64_t source_concat_base(const struct source *concat, size_t i)
{
    return concat_in(concat)->members[i].base;
}

void source_concat_distrust(const struct source *concat, size_t i)
{
    atomic_store(&concat_in(concat)->members[i].is_distrusted, true);
}
