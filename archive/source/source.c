/*
 * The part that all sources share. Each call goes to the outermost source of a chain that has
 * this operation; on the way, slices add where they begin.
 */
#include "source.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "numbers.h"
#include "source_concat.h"
#include "source_ops.h"
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

/* The source of several within this one, or NULL. */
static const struct source *several_in(const struct source *source)
{
    while (source && !source->ops->member)
        source = source->wrapped;
    return source;
}

const struct source *source_member(const struct source *source, size_t i)
{
    const struct source *several = several_in(source);
    if (several)
        return several->ops->member(several, i);
    return i == 0 ? source : NULL;
}

const struct source *source_at(const struct source *source, uint64_t *offset)
{
    const struct source *several = source;
    if (!several_in(source))
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

struct source_state source_state_of(const struct source *source)
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

bool source_may_map(uint64_t bytes)
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

static int source_hash_range(const struct source *source, uint8_t *buf, uint64_t offset,
                             size_t len, uint64_t *ret_hash)
{
    len = (size_t)min_u64(len, source->size_bytes - offset);
    int r = source_read(source, buf, len, offset);
    if (r == 0)
        *ret_hash = htole64(XXH3_64bits(buf, len));
    return r;
}

static int file_fingerprint(const struct source *source, uint64_t *ret_fingerprint)
{
    uint64_t size = source->size_bytes;
    uint64_t parts[3 + FINGERPRINT_PLACES] = {htole64(size)};
    auto_free uint8_t *buf = malloc(FINGERPRINT_END_BYTES);
    if (!buf)
        return -ENOMEM;

    while (source->wrapped && source_state_of(source).keeps)
        source = source->wrapped; /* what it keeps a copy of */
    int r = source_hash_range(source, buf, 0, FINGERPRINT_END_BYTES, &parts[1]);
    uint64_t last = size > FINGERPRINT_END_BYTES ? size - FINGERPRINT_END_BYTES : 0;
    if (r == 0)
        r = source_hash_range(source, buf, last, FINGERPRINT_END_BYTES, &parts[2]);
    for (uint64_t i = 0; r == 0 && i < FINGERPRINT_PLACES; i++)
        r = source_hash_range(source, buf, size / (FINGERPRINT_PLACES + 1) * (i + 1),
                              FINGERPRINT_PLACE_BYTES, &parts[3 + i]);
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
