/*
 * One thread checks the tree first. Then members and windows of the file are handed out to all
 * threads. A window comes after the members that begin in it, so that its bytes need not be
 * read from the disk again. One thread checks a whole member, as its sum is over its bytes in
 * order.
 */
#include "verify.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "backend.h"
#include "bytes.h"
#include "codec.h"
#include "content.h"
#include "numbers.h"
#include "onepot_format.h"
#include "workers.h"

enum {
    /* Marks of a window. */
    VERIFY_DIFFERS = 1,    /* its sum does */
    VERIFY_UNREADABLE = 2, /* it can't be read */
    VERIFY_TOLD = 4,       /* a member in it was reported */
};

/* Positions of work items that are no members, but windows, or parts that the back end knows;
 * `piece` is their number. */
#define VERIFY_A_WINDOW UINT32_MAX
#define VERIFY_A_PART (UINT32_MAX - 1)

struct verification {
    struct workers workers;
    bool trailer_is_good; /* see verify_run */
    const struct index *index;
    uint64_t data_end; /* end of the last stored data, or block */
    uint64_t links_out;
    struct archive_end end; /* set by check_end */
    uint64_t windows;       /* of the archive, that have a sum; 0: none has */
    _Atomic uint8_t *marks; /* [windows]: VERIFY_DIFFERS and the like */
    _Atomic uint64_t files, file_bytes;
};

static_assert(INDEX_WINDOW_BYTES >= ARCHIVE_PART_BYTES, "workers have one buffer for both");

/* ---- problems ---- */

/* Report and count a problem. */
static void verify_report(void *ctx, const struct fault *fault)
{
    struct verification *v = ctx;
    workers_report(&v->workers, fault, false);
}

static void member_path(const struct index *index, uint32_t position, char *buf, size_t size)
{
    size_t len;
    if (index_path(index, position, buf, size, &len) < 0)
        snprintf(buf, size, "entry %" PRIu32, position);
    else if (len == 0)
        snprintf(buf, size, ".");
}

static void report_member(struct verification *v, uint32_t position, int err, uint64_t offset,
                          const char *what)
{
    char path[8192];
    struct fault fault = {0};
    member_path(v->index, position, path, sizeof(path));
    fault_set(&fault, err, path, offset, "%s", what);
    verify_report(v, &fault);
}

/* ---- the tree ---- */

static int check_xattrs(const struct index *index, uint32_t position)
{
    uint64_t cursor = 0;
    struct xattr xattr;
    int r;
    while ((r = index_xattr_next(index, position, &cursor, &xattr)) == 0)
        ;
    return r == -ENOENT ? 0 : r;
}

static int check_extents(struct verification *v, uint32_t position)
{
    uint64_t offset = 0;
    struct extent extent;
    int r;
    while ((r = index_extent(v->index, position, offset, &extent)) == 0) {
        offset += extent.length;
        uint64_t bytes = extent.kind == EXTENT_STORED  ? extent.length
                         : extent.kind == EXTENT_BLOCK ? extent.packed_bytes
                                                       : 0;
        if (bytes && extent.source_offset + bytes > v->data_end)
            v->data_end = extent.source_offset + bytes;
    }
    return r == -ENXIO ? 0 : r;
}

/* Check everything that the index says of one entry. */
static int check_entry(struct verification *v, uint32_t position, const char **ret_what)
{
    const struct index *index = v->index;
    const char *text;
    struct node node;
    size_t len;
    *ret_what = "its name is damaged in the index";
    int r = index_name(index, position, &text, &len);
    if (r < 0)
        return r;
    *ret_what = "it is damaged in the index";
    r = index_node(index, position, &node);
    if (r < 0)
        return r;
    if (S_ISLNK(node.mode))
        r = index_symlink(index, position, &text, &len);
    v->links_out += S_ISLNK(node.mode) && index_leads_out(index, position);
    if (r == 0 && node.has_xattrs)
        r = check_xattrs(index, position);
    if (r < 0 || !S_ISREG(node.mode) || node.position != position)
        return r;
    *ret_what = "its data does not lie within the archive";
    r = check_extents(v, position);
    if (r == 0) {
        atomic_fetch_add(&v->workers.progress.bytes_total, node.data_bytes);
        uint64_t key = worklist_key(index, position, 0, 0);
        r = worklist_add(&v->workers, (struct work_item){key, position, 0});
    }
    return r;
}

static int verify_compare_names(const struct index *index, uint32_t a, uint32_t b)
{
    const char *x, *y;
    size_t x_len, y_len;
    if (index_name(index, a, &x, &x_len) < 0 || index_name(index, b, &y, &y_len) < 0)
        return -1; /* already reported */
    return bytes_compare(x, x_len, y, y_len);
}

/* A directory's children follow the children of the directories before it, sorted. */
static int check_directory(const struct index *index, uint32_t position, uint32_t *next)
{
    uint32_t first, count;
    int r = index_children(index, position, &first, &count);
    if (r == -ENOTDIR)
        return 0;
    if (r == 0 && count > 0 && first != *next)
        r = -EUCLEAN;
    for (uint32_t i = 1; r == 0 && i < count; i++)
        if (verify_compare_names(index, first + i - 1, first + i) >= 0)
            r = -EUCLEAN;
    if (r == 0)
        *next += count;
    return r;
}

/* Members that are in the archive but not in the tree. */
static void report_left_out(struct verification *v)
{
    uint64_t count = index_left_out(v->index), cursor = 0, told = 0;
    struct fault why;
    while (index_left_out_next(v->index, &cursor, &why) == 0) {
        fault_advise(&why, "it is left out");
        verify_report(v, &why);
        told++;
    }
    if (count <= told)
        return;
    why = (struct fault){0};
    fault_set(&why, -EUCLEAN, NULL, FAULT_NO_OFFSET,
              "%" PRIu64 " more members can't be shown, and are left out", count - told);
    verify_report(v, &why);
}

static int check_tree(struct verification *v)
{
    report_left_out(v);
    uint32_t entries = index_info(v->index)->entries, next = 1;
    for (uint32_t i = 0; i < entries && !workers_stopped(&v->workers); i++) {
        const char *what;
        int r = check_entry(v, i, &what);
        if (r == -ENOMEM)
            return r;
        if (r < 0)
            report_member(v, i, r, FAULT_NO_OFFSET, what);
        r = check_directory(v->index, i, &next);
        if (r < 0)
            report_member(v, i, r, FAULT_NO_OFFSET,
                          "its list of entries is damaged in the index");
    }
    if (!workers_stopped(&v->workers) && next != entries && v->workers.problems == 0)
        report_member(v, INDEX_ROOT, -EUCLEAN, FAULT_NO_OFFSET,
                      "the index has entries that are in no directory");
    return 0;
}

/* ---- data ---- */

static int take_bytes(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct worker *w = ctx;
    struct verification *v = w->workers->job;
    (void)offset;
    if (workers_stopped(&v->workers))
        return -EINTR;
    if (w->hash)
        checksum_add(w->hash, bytes, len);
    atomic_fetch_add_explicit(&v->workers.progress.bytes_done, len, memory_order_relaxed);
    atomic_fetch_add_explicit(&v->file_bytes, len, memory_order_relaxed);
    return 0;
}

static const char *verify_describe(int err)
{
    switch (-err) {
    case ENODATA:
        return "the archive ends before it does";
    case EUCLEAN:
        return "it can't be decompressed: the archive is damaged here";
    case ENOTSUP:
        return CODEC_UNSUPPORTED;
    default:
        return "it can't be read: input/output error";
    }
}

/* True also of a file that has no sum. */
static bool has_its_sum(const struct verification *v, const struct checksum *hash,
                        uint32_t position)
{
    uint64_t sum;
    int r = index_sum(v->index, position, &sum);
    return r == -ENODATA || (r == 0 && checksum_is(hash, sum));
}

/* The windows in which a member's data lie tell nothing new if the member is reported. */
static void mark_windows(struct verification *v, uint32_t position)
{
    struct extent e;
    for (uint64_t offset = 0; v->marks && index_extent(v->index, position, offset, &e) == 0;
         offset += e.length) {
        uint64_t bytes = e.kind == EXTENT_HOLE     ? 0
                         : e.kind == EXTENT_STORED ? e.length
                                                   : e.packed_bytes;
        for (uint64_t i = e.source_offset / INDEX_WINDOW_BYTES;
             i < v->windows && i * INDEX_WINDOW_BYTES < e.source_offset + bytes; i++)
            atomic_fetch_or(&v->marks[i], VERIFY_TOLD);
    }
}

static void check_member(struct worker *w, uint32_t position)
{
    struct verification *v = w->workers->job;
    struct node node;
    uint64_t where = FAULT_NO_OFFSET;
    if (w->hash)
        checksum_reset(w->hash);
    int r = index_node(v->index, position, &node);
    if (r == 0)
        r = content_read(w->content, position, 0, node.size_bytes, take_bytes, w, &where);
    if (r == -EINTR)
        return;
    if (r < 0) {
        mark_windows(v, position);
        report_member(v, position, r, where, verify_describe(r));
    } else if (!has_its_sum(v, w->hash, position)) {
        where = worklist_key(v->index, position, 0, FAULT_NO_OFFSET);
        mark_windows(v, position);
        report_member(v, position, -EBADMSG, where,
                      "its bytes do not have the sum that they were packed with");
    }
    atomic_fetch_add_explicit(&v->files, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&v->workers.progress.members, 1, memory_order_relaxed);
}

/* ---- windows ---- */

static uint64_t window_end(const struct verification *v, uint64_t window)
{
    return min_u64((window + 1) * INDEX_WINDOW_BYTES, index_info(v->index)->archive_bytes);
}

static void check_window(struct worker *w, uint64_t window)
{
    struct verification *v = w->workers->job;
    uint64_t sum, from = window * INDEX_WINDOW_BYTES;
    size_t len = (size_t)(window_end(v, window) - from);
    if (source_read(v->workers.fileset->source, w->buffer, len, from) < 0)
        atomic_fetch_or(&v->marks[window], VERIFY_UNREADABLE);
    else if (index_window_sum(v->index, window, &sum) < 0 || XXH3_64bits(w->buffer, len) != sum)
        atomic_fetch_or(&v->marks[window], VERIFY_DIFFERS);
}

/* Report the damage that no member has shown. */
static void report_windows(struct verification *v)
{
    for (uint64_t i = 0; i < v->windows; i++) {
        struct fault fault = {0};
        uint8_t marks = atomic_load(&v->marks[i]);
        if (!marks || (marks & VERIFY_TOLD))
            continue;
        fault_set(
            &fault, marks & VERIFY_DIFFERS ? -EUCLEAN : -EIO, NULL, i * INDEX_WINDOW_BYTES,
            "headers, padding or data between here and %" PRIu64 " %s", window_end(v, i),
            marks & VERIFY_DIFFERS ? "do not have the sum they should have" : "can't be read");
        verify_report(v, &fault);
    }
}

/* ---- the end ---- */

static int verify_end_add_part(void *ctx, uint64_t offset, uint32_t number, uint64_t bytes)
{
    struct verification *v = ctx;
    atomic_fetch_add(&v->workers.progress.bytes_total, bytes);
    return worklist_add(&v->workers, (struct work_item){offset, VERIFY_A_PART, number});
}

static void check_part(struct worker *w, uint64_t offset, uint32_t number)
{
    struct verification *v = w->workers->job;
    v->workers.fileset->backend->trailer->check_part(&v->end, offset, number, w->buffer,
                                                     &v->workers.progress.bytes_done);
}

/*
 * Nothing before an archive's end shows that something was cut off there. Ask the back ends,
 * which know what to look for, and which parts they want to check. -errno: it can't be read.
 */
static int check_end(struct verification *v)
{
    v->end = (struct archive_end){
        .source = v->workers.fileset->source,
        .path = v->workers.fileset->path,
        .compression = v->workers.fileset->compression,
        .info = index_info(v->index),
        .data_end = v->data_end,
        .stop = v->workers.options->stop,
        .report = verify_report,
        .add_part = verify_end_add_part,
        .ctx = v,
    };
    int r = 0;
    for (size_t i = 0; r == 0 && v->trailer_is_good && backend_registry[i]; i++) {
        const struct backend_trailer *trailer = backend_registry[i]->trailer;
        const struct backend *counts_as = backend_registry[i];
        if (trailer && trailer->without_index)
            counts_as = trailer->without_index;
        if (trailer && trailer->check_end && counts_as == v->workers.fileset->backend)
            r = trailer->check_end(&v->end);
    }
    return r;
}

/* ---- one item ---- */

static void verify_do_item(struct worker *w, const struct work_item *item)
{
    if (item->position == VERIFY_A_WINDOW)
        check_window(w, item->piece);
    else if (item->position == VERIFY_A_PART)
        check_part(w, item->key, item->piece);
    else
        check_member(w, item->position);
}

/* ---- the archive as a whole ---- */

static int check_digest(struct verification *v)
{
    const struct index_info *info = index_info(v->index);
    uint8_t digest[INDEX_DIGEST_BYTES];
    enum digest_kind kind;
    if (info->digest_kind <= DIGEST_EARLIER)
        return 0;
    int r = index_digest(v->index, NULL, digest, &kind);
    if (r == -ENOMEM)
        return r;
    if (r < 0 || kind != info->digest_kind || memcmp(digest, info->digest, sizeof(digest)) != 0)
        report_member(v, INDEX_ROOT, -EUCLEAN, FAULT_NO_OFFSET,
                      "names and sums do not make the digest that the index has");
    return 0;
}

/* Checks for onepot's own archives only. */
static int check_whole(struct verification *v)
{
    struct fault fault = {0};
    int r = onepot_check_trailer(v->workers.fileset->source, v->index, &fault);
    if (r < 0 && r != -ENOENT) {
        fault_set_errno(&fault, r, NULL, "its index can't be read");
        verify_report(v, &fault);
    }
    if (!index_info(v->index)->has_sums)
        return 0;
    v->windows = index_windows(v->index);
    if (v->windows != index_windows_of(index_info(v->index)->archive_bytes)) {
        v->windows = 0;
        fault = (struct fault){0};
        fault_set(&fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                  "the index lacks sums of the archive's bytes");
        verify_report(v, &fault);
    }
    return check_digest(v);
}

static int add_windows(struct verification *v)
{
    int r = v->windows < UINT32_MAX ? 0 : -EFBIG;
    if (r == 0 && v->windows > 0 && !(v->marks = calloc(v->windows, sizeof(*v->marks))))
        r = -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < v->windows; i++)
        r = worklist_add(&v->workers, (struct work_item){(i + 1) * INDEX_WINDOW_BYTES - 1,
                                                         VERIFY_A_WINDOW, (uint32_t)i});
    return r;
}

static int verify_check_all(struct verification *v)
{
    int r = v->workers.fileset->origin == FILESET_INDEX_EMBEDDED ? check_whole(v) : 0;
    if (r == 0)
        r = check_tree(v);
    if (r == 0)
        r = check_end(v);
    if (r == 0)
        r = add_windows(v);
    if (r == 0)
        r = workers_run(&v->workers);
    if (r == 0 && !workers_stopped(&v->workers))
        report_windows(v);
    return r == 0 && workers_stopped(&v->workers) ? -EINTR : r;
}

int verify_run(struct fileset *fileset, const struct work_options *work, bool trailer_is_good,
               struct fault *fault, struct verify_result *ret_result)
{
    struct verification v = {
        .workers = {.options = work,
                    .fileset = fileset,
                    .buffer_bytes = INDEX_WINDOW_BYTES,
                    .doing = "verifying",
                    .work = verify_do_item,
                    .job = &v},
        .trailer_is_good = trailer_is_good,
        .index = fileset->index,
    };
    int r = workers_init(&v.workers, fault);
    if (r == 0)
        r = verify_check_all(&v);
    if (r < 0)
        fault_set_errno(fault, r, NULL, "can't be verified");
    struct fileset_sums sums = {0};
    if (r == 0)
        r = fileset_sums(fileset, &sums);
    *ret_result = (struct verify_result){
        .sums = sums,
        .files = v.files,
        .bytes = v.file_bytes,
        .links_out = v.links_out,
        .whole = v.windows > 0,
        .problems = v.workers.problems,
    };
    free(v.marks);
    workers_free(&v.workers);
    return r;
}

/* ---- trailers ---- */

/* Does any format recognize the remains of an index that it no longer finds? */
static int verify_lost_index(const struct source *source, struct fault *fault)
{
    int r = 0;
    for (size_t i = 0; r == 0 && backend_registry[i]; i++) {
        const struct backend_trailer *trailer = backend_registry[i]->trailer;
        if (trailer && trailer->check_lost)
            r = trailer->check_lost(source, fault);
    }
    return r;
}

int verify_trailer(const char *path, uint64_t offset, struct fault *fault)
{
    struct source *source;
    const struct backend *backend;
    struct embedded_index where;
    struct container container;
    int r = fileset_open_source(path, offset, NULL, &container, &source);
    if (r < 0)
        return 0; /* fileset_open reports that */
    struct index *index = NULL;
    r = backend_find(source, NULL, &backend, NULL);
    if (r == 0)
        r = backend->trailer && backend->trailer->find
                ? backend->trailer->find(source, fault, &where)
                : -ENOENT;
    if (r == 0)
        r = index_open(source, where.offset, where.length, fault, &index);
    index_close(index);
    if (r == -ENOENT)
        r = verify_lost_index(source, fault);
    if (r == -ENOMSG)
        r = 0;
    source_close(source);
    return r < 0 ? fault_set_errno(fault, r, NULL, "its trailer can't be read") : 0;
}
