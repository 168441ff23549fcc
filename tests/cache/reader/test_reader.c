/*
 * The read path, over archives made in memory: stored ranges, holes, blocks and
 * shared blocks; each read both as a span and as a copy, and compared with what was put in.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zstd.h>

#include "block_packers.h"
#include "builder.h"
#include "codec.h"
#include "format_numbers.h"
#include "reader.h"
#include "source_ops.h"
#include "suite.h"
#include "permits.h"

#define BLOCK 131072u
#define ARCHIVE_MAX (32u << 20)
#define FILES_MAX 16

/* An archive that grows, what its files hold, and all that reading it needs. */
struct fixture {
    uint8_t *archive;
    size_t archive_bytes;
    struct builder *builder;
    struct {
        const char *name;
        uint8_t *content;
        size_t size;
        uint32_t position;
    } files[FILES_MAX];
    unsigned file_count;
    unsigned seed;
    enum codec codec;
    uint32_t block_bytes; /* 0: BLOCK */
    bool cache_stored, is_kept_above;
    size_t missing; /* bytes of the archive that the index knows and the source lacks */
    char path[64];  /* of the archive, if it lies in a file */
    const struct source_ops *pages; /* NULL: as the system has them */
    struct fileset fileset;
    struct reader *reader;
    struct reader_scratch *scratch;
};

static void begin(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->archive = calloc(1, ARCHIVE_MAX);
    f->archive_bytes = 512;
    f->seed = 5;
    f->codec = CODEC_ZSTD;
    ck_assert_int_eq(builder_new(&f->builder), 0);
}

static uint64_t append(struct fixture *f, const void *bytes, size_t len)
{
    uint64_t at = f->archive_bytes;
    ck_assert_uint_le(at + len, ARCHIVE_MAX);
    memcpy(f->archive + at, bytes, len);
    f->archive_bytes += len;
    return at;
}

/* Bytes that zstd can do something with. */
static uint8_t *make_content(struct fixture *f, size_t size)
{
    uint8_t *content = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        content[i] = (uint8_t)(rand_r(&f->seed) % 5 ? 'a' + (int)(i % 13) : rand_r(&f->seed));
    return content;
}

static uint32_t add_file(struct fixture *f, const char *name, uint8_t *content, size_t size,
                         bool has_pieces, uint64_t offset)
{
    struct node member = {.mode = S_IFREG | 0644,
                          .size_bytes = size,
                          .has_pieces = has_pieces,
                          .data_offset = offset};
    uint32_t inode;
    ck_assert_int_eq(builder_add(f->builder, name, strlen(name), &member, NULL, &inode), 0);
    f->files[f->file_count].name = name;
    f->files[f->file_count].content = content;
    f->files[f->file_count++].size = size;
    return inode;
}

static void add_stored(struct fixture *f, const char *name, size_t size)
{
    uint8_t *content = make_content(f, size);
    add_file(f, name, content, size, false, append(f, content, size));
}

/* A file of `count` ranges of `len` bytes with a hole of `gap` before each, and one after. */
static void add_sparse(struct fixture *f, const char *name, unsigned count, size_t len,
                       size_t gap)
{
    size_t size = count * (len + gap) + gap;
    uint8_t *content = make_content(f, size);
    memset(content, 0, gap);
    uint32_t inode = add_file(f, name, content, size, true, 0);
    struct builder_piece *pieces = calloc(count + 1, sizeof(*pieces));
    for (unsigned i = 0; i < count; i++) {
        size_t at = i * (len + gap) + gap;
        append(f, "between", 7); /* so that ranges are not neighbours */
        uint64_t offset = append(f, content + at, len);
        memset(content + at + len, 0, gap);
        pieces[i] = (struct builder_piece){at, len, offset, BUILDER_NO_BLOCK};
    }
    ck_assert_int_eq(builder_set_pieces(f->builder, inode, pieces, count), 0);
    free(pieces);
}

/* Store the bytes, or compress them as a block, which holds at most `most`. */
static struct builder_piece add_block(struct fixture *f, const uint8_t *bytes, size_t len,
                                      uint32_t most, bool stored)
{
    if (stored)
        return (struct builder_piece){0, len, append(f, bytes, len), BUILDER_NO_BLOCK};
    size_t size = ZSTD_compressBound(len);
    uint8_t *packed = malloc(size);
    struct builder_block block = {.block_bytes = most};
    struct builder_piece piece = {.length = len};
    block.packed_bytes = (uint32_t)ZSTD_compress(packed, size, bytes, len, 1);
    block.source_offset = append(f, packed, block.packed_bytes);
    free(packed);
    ck_assert_int_eq(builder_add_block(f->builder, &block, &piece.block), 0);
    return piece;
}

static uint32_t block_bytes(const struct fixture *f)
{
    return f->block_bytes ? f->block_bytes : BLOCK;
}

/*
 * A file in blocks: every fifth is a hole, every seventh is stored. Its tail, if `tail` is
 * given, lies at `tail_offset` of what that piece is of; else in a short last block.
 */
static void add_blocks(struct fixture *f, const char *name, size_t size,
                       const struct builder_piece *shared, uint32_t tail_offset, uint8_t *tail)
{
    uint8_t *content = make_content(f, size);
    struct builder_piece pieces[64];
    uint32_t count = 0, number = 0;
    for (size_t at = 0; at < size; at += block_bytes(f), number++) {
        size_t len = size - at < block_bytes(f) ? size - at : block_bytes(f);
        if (shared && len < block_bytes(f)) {
            memcpy(content + at, tail, len);
            pieces[count] = *shared;
            pieces[count].length = len;
            pieces[count].source_offset += tail_offset;
            pieces[count].block_offset = shared->block == BUILDER_NO_BLOCK ? 0 : tail_offset;
            pieces[count++].offset = at;
        } else if (number % 5 == 4) {
            memset(content + at, 0, len);
        } else {
            pieces[count] = add_block(f, content + at, len, (uint32_t)len, number % 7 == 6);
            pieces[count++].offset = at;
        }
    }
    uint32_t inode = add_file(f, name, content, size, true, 0);
    ck_assert_int_eq(builder_set_pieces(f->builder, inode, pieces, count), 0);
}

/* One file of each kind. */
static void add_everything(struct fixture *f)
{
    static uint8_t bytes[2][BLOCK];
    struct builder_piece shared[2];
    for (unsigned i = 0; i < 2; i++) {
        uint8_t *content = make_content(f, BLOCK);
        memcpy(bytes[i], content, BLOCK);
        free(content);
        shared[i] = add_block(f, bytes[i], BLOCK, BLOCK, i == 1);
    }
    add_stored(f, "stored", 300000);
    add_stored(f, "small", 20000);
    add_stored(f, "empty", 0);
    add_sparse(f, "sparse", 20, 5000, 70000);
    add_sparse(f, "ranges", 300, 1000, 0);
    add_sparse(f, "hole", 0, 0, 3000000);
    add_blocks(f, "blocks", 20 * BLOCK + 777, NULL, 0, NULL);
    add_blocks(f, "tail", 8 * BLOCK + 5000, &shared[0], 100, bytes[0] + 100);
    add_blocks(f, "small tail", 30000, &shared[0], 6000, bytes[0] + 6000);
    add_blocks(f, "stored tail", 2 * BLOCK + 99, &shared[1], 50000, bytes[1] + 50000);
}

/* Write the archive to a file in /tmp, or keep it in memory. */
static void open_source(struct fixture *f, bool in_file)
{
    if (!in_file) {
        ck_assert_int_eq(
            source_from_memory(f->archive, f->archive_bytes, "archive", &f->fileset.source), 0);
        return;
    }
    const char *folder = getenv("TMPDIR");
    snprintf(f->path, sizeof(f->path), "%.40s/onepot-test-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(f->path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, f->archive, f->archive_bytes), (ssize_t)f->archive_bytes);
    ck_assert_int_eq(fsync(fd), 0);
    close(fd);
    ck_assert_int_eq(source_open(f->path, NULL, &f->fileset.source), 0);
}

static void finish_in(struct fixture *f, bool in_file, uint64_t cache_bytes)
{
    struct builder_header header = {.format = FORMAT_SQUASHFS,
                                    .codec = f->codec,
                                    .block_bytes = block_bytes(f),
                                    .archive_bytes = f->archive_bytes};
    uint64_t image_bytes;
    struct source *image;
    struct fault fault = {0};
    int fd = memfd_create("index", MFD_CLOEXEC);
    ck_assert_int_eq(builder_write(f->builder, &header, fd, 0, &fault, &image_bytes), 0);
    builder_free(f->builder);
    ck_assert_int_eq(source_from_fd(fd, "index", &image), 0);
    ck_assert_int_eq(index_open(image, 0, image_bytes, &fault, &f->fileset.index), 0);
    source_close(image);
    for (unsigned i = 0; i < f->file_count; i++)
        ck_assert_int_eq(
            index_resolve(f->fileset.index, f->files[i].name, &f->files[i].position), 0);
    f->archive_bytes -= f->missing;
    open_source(f, in_file);
    if (f->pages) {
        struct source *wrapper = calloc(1, sizeof(*wrapper));
        ck_assert_ptr_nonnull(wrapper);
        source_wrap(wrapper, f->pages, &f->fileset.source);
    }
    struct reader_options options = {.cache_bytes = cache_bytes,
                                     .cache_stored = f->cache_stored,
                                     .is_kept_above = f->is_kept_above};
    ck_assert_int_eq(reader_new(&f->fileset, &options, &fault, &f->reader), 0);
    ck_assert_int_eq(reader_scratch_new(f->reader, &f->scratch), 0);
}

static void finish(struct fixture *f)
{
    finish_in(f, false, 8u << 20);
}

static void end(struct fixture *f)
{
    reader_scratch_free(f->scratch);
    reader_free(f->reader);
    index_close(f->fileset.index);
    source_close(f->fileset.source);
    for (unsigned i = 0; i < f->file_count; i++)
        free(f->files[i].content);
    free(f->archive);
    if (f->path[0])
        unlink(f->path);
}

/* Does a read of a file give its content, and of the right length? */
static bool read_is_right(struct fixture *f, struct reader_scratch *scratch, unsigned file,
                          uint64_t offset, size_t len)
{
    const uint8_t *content = f->files[file].content;
    size_t size = f->files[file].size;
    size_t expect = offset >= size ? 0 : size - offset < len ? size - offset : len;
    if (expect > READER_SPAN_MAX)
        expect = READER_SPAN_MAX;
    struct span span;
    if (reader_get(f->reader, scratch, f->files[file].position, offset, len, &span) < 0 ||
        span.bytes != expect || span.iov_count > READER_IOV_MAX)
        return false;
    size_t at = 0;
    bool same = true;
    for (int i = 0; i < span.iov_count; i++) {
        same = same &&
               memcmp(span.iov[i].iov_base, content + offset + at, span.iov[i].iov_len) == 0;
        at += span.iov[i].iov_len;
    }
    reader_put(f->reader, &span);
    return same && at == expect;
}

static bool copy_is_right(struct fixture *f, struct reader_scratch *scratch, unsigned file,
                          uint64_t offset, size_t len)
{
    size_t size = f->files[file].size, copied = 0;
    size_t expect = offset >= size ? 0 : size - offset < len ? size - offset : len;
    uint8_t *buf = malloc(len + 1);
    bool right = reader_copy(f->reader, scratch, f->files[file].position, offset, buf, len,
                             &copied) == 0 &&
                 copied == expect &&
                 (expect == 0 || memcmp(buf, f->files[file].content + offset, expect) == 0);
    free(buf);
    return right;
}

/* Read everything in order and at random, as spans and as copies. */
static unsigned count_wrong(struct fixture *f, struct reader_scratch *scratch, unsigned seed,
                            unsigned random_reads)
{
    unsigned wrong = 0;
    for (unsigned file = 0; file < f->file_count; file++) {
        for (size_t at = 0; at <= f->files[file].size; at += BLOCK)
            wrong += !read_is_right(f, scratch, file, at, BLOCK);
        wrong += !read_is_right(f, scratch, file, 0, READER_SPAN_MAX);
        wrong += !copy_is_right(f, scratch, file, 0, f->files[file].size + 10);
    }
    for (unsigned i = 0; i < random_reads; i++) {
        unsigned file = (unsigned)rand_r(&seed) % f->file_count;
        uint64_t offset = (uint64_t)rand_r(&seed) % (f->files[file].size + 10);
        size_t len = (size_t)rand_r(&seed) % (i % 10 ? 40000 : 2000000);
        wrong += !read_is_right(f, scratch, file, offset, len);
        wrong += !copy_is_right(f, scratch, file, offset, len);
    }
    return wrong;
}

START_TEST(every_kind_of_file_reads_back)
{
    static const uint64_t budgets[] = {0, 500000, 64u << 20};
    for (unsigned i = 0; i < 3; i++) {
        struct fixture f;
        begin(&f);
        add_everything(&f);
        finish_in(&f, _i == 1, budgets[i]);
        ck_assert_ptr_nonnull(source_map(f.fileset.source));
        ck_assert_uint_eq(count_wrong(&f, f.scratch, 1, 300), 0);
        end(&f);
    }
}
END_TEST

START_TEST(sources_that_are_not_mapped_read_the_same)
{
    struct fixture f;
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    static const uint64_t budgets[] = {0, 1u << 20, 64u << 20};
    begin(&f);
    f.cache_stored = _i > 0;
    add_everything(&f);
    finish_in(&f, true, budgets[_i % 3]);
    ck_assert_ptr_null(source_map(f.fileset.source));
    ck_assert_uint_eq(count_wrong(&f, f.scratch, 2, 300), 0);
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

struct source_stats {
    uint64_t reads, bytes;
};

static struct source_stats source_stats_of(const struct fixture *f)
{
    struct block_cache_stats cache;
    struct source_stats stats;
    reader_stats(f->reader, &cache, &stats.reads, &stats.bytes);
    return stats;
}

static struct block_cache_stats cache_stats_of(const struct fixture *f)
{
    struct block_cache_stats stats;
    uint64_t reads, bytes;
    reader_stats(f->reader, &stats, &reads, &bytes);
    return stats;
}

START_TEST(what_is_read_through_the_mapping_counts)
{
    struct fixture f;
    begin(&f);
    add_stored(&f, "large", 8000000);
    finish_in(&f, true, 1u << 20);
    ck_assert_ptr_nonnull(source_map(f.fileset.source));
    struct source_stats before = source_stats_of(&f);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 1u << 20));
    ck_assert(read_is_right(&f, f.scratch, 0, 1u << 20, 4096));
    ck_assert_uint_eq(source_stats_of(&f).bytes - before.bytes, (1u << 20) + 4096);
    end(&f);
}
END_TEST

/* An archive that is not mapped, whose stored bytes are cached. */
static void finish_remote(struct fixture *f, uint64_t cache_bytes)
{
    f->cache_stored = true;
    finish_in(f, true, cache_bytes);
}

START_TEST(what_is_read_of_a_remote_archive_is_what_was_asked)
{
    struct fixture f;
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    add_stored(&f, "small", 20000);
    add_stored(&f, "other", 20000);
    add_stored(&f, "large", 8000000);
    finish_remote(&f, 64u << 20);
    struct source_stats before = source_stats_of(&f);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 4096));
    ck_assert(read_is_right(&f, f.scratch, 0, 4096, 100000));
    ck_assert(copy_is_right(&f, f.scratch, 0, 0, 20000));
    struct source_stats after = source_stats_of(&f);
    ck_assert_uint_eq(after.reads - before.reads, 1);
    ck_assert_uint_eq(after.bytes - before.bytes, 20000);
    /* A few bytes somewhere in a large file are not a megabyte. */
    for (unsigned i = 0; i < 10; i++)
        ck_assert(read_is_right(&f, f.scratch, 2, i * 700000 + 100, 4096));
    before = after;
    after = source_stats_of(&f);
    ck_assert_uint_le(after.bytes - before.bytes, 10 * 2 * READER_PIECE_BYTES);
    /* And a megabyte in a row is one read, less what is there. */
    ck_assert(read_is_right(&f, f.scratch, 2, 6400000, 1u << 20));
    before = after;
    after = source_stats_of(&f);
    ck_assert_uint_le(after.reads - before.reads, 2);
    ck_assert(copy_is_right(&f, f.scratch, 2, 100, 8000000)); /* more than PIECES_MAX pieces */
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

/* Storage is asked for whole pages: one that two reads share would be asked for twice. */
START_TEST(reads_of_a_large_remote_file_end_where_pages_of_the_archive_do)
{
    struct fixture f;
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    add_stored(&f, "large", 6u << 20);
    finish_remote(&f, 64u << 20);
    const uint64_t megabyte = 1u << 20, whole = megabyte - 512; /* where the archive has one */
    struct source_stats before = source_stats_of(&f);
    ck_assert(read_is_right(&f, f.scratch, 0, whole + 3 * megabyte, megabyte));
    const struct reader_want want = {f.files[0].position, whole, megabyte, BLOCK_DUE_UNKNOWN};
    ck_assert_int_eq(reader_prefetch(f.reader, f.scratch, &want, 1), 0);
    ck_assert(read_is_right(&f, f.scratch, 0, whole, megabyte));
    struct source_stats after = source_stats_of(&f);
    ck_assert_uint_eq(after.reads - before.reads, 2);
    ck_assert_uint_eq(after.bytes - before.bytes, 2 * megabyte);
    /* The first piece is what is left of one. */
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 1));
    before = source_stats_of(&f);
    ck_assert_uint_eq(before.bytes - after.bytes, READER_PIECE_BYTES - 512);
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

START_TEST(prefetched_files_are_read_without_the_source)
{
    struct fixture f;
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    add_everything(&f);
    finish_remote(&f, 64u << 20);
    for (unsigned i = 0; i < f.file_count; i++) {
        const struct reader_want all = {f.files[i].position, 0, UINT64_MAX, i};
        ck_assert_int_eq(reader_prefetch(f.reader, f.scratch, &all, 1), 0);
    }
    struct source_stats before = source_stats_of(&f);
    for (unsigned i = 0; i < f.file_count; i++) {
        for (uint64_t at = 0; at < f.files[i].size; at += READER_SPAN_MAX)
            ck_assert(read_is_right(&f, f.scratch, i, at, READER_SPAN_MAX));
    }
    struct source_stats after = source_stats_of(&f);
    ck_assert_uint_eq(after.reads, before.reads);
    struct block_cache_stats stats;
    stats = cache_stats_of(&f);
    ck_assert_uint_gt(stats.ahead, 0);
    ck_assert_uint_eq(stats.ahead, stats.ahead_used);
    ck_assert_uint_eq(stats.ahead_bytes, 0);
    ck_assert_uint_eq(stats.misses, 0);
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

START_TEST(files_that_lie_together_are_prefetched_by_one_read)
{
    struct fixture f;
    struct reader_want wants[10];
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    for (unsigned i = 0; i < 10; i++) {
        add_stored(&f, names[i], 20000);
        append(&f, "between", 7);
    }
    finish_remote(&f, 64u << 20);
    for (unsigned i = 0; i < 10; i++)
        wants[i] = (struct reader_want){f.files[i].position, 0, 20000, BLOCK_DUE_UNKNOWN};
    struct source_stats before = source_stats_of(&f);
    ck_assert_int_eq(reader_prefetch(f.reader, f.scratch, wants, 10), 0);
    ck_assert_uint_eq(source_stats_of(&f).reads - before.reads, 1);
    for (unsigned i = 0; i < 10; i++)
        ck_assert(read_is_right(&f, f.scratch, i, 0, 20000));
    ck_assert_uint_eq(source_stats_of(&f).reads - before.reads, 1);
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

START_TEST(stored_bytes_are_handed_out_where_they_lie)
{
    struct fixture f;
    struct span span;
    begin(&f);
    add_stored(&f, "file", 300000);
    finish(&f);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, f.files[0].position, 1000, BLOCK, &span),
                     0);
    ck_assert_int_eq(span.iov_count, 1);
    ck_assert_ptr_eq(span.iov[0].iov_base, source_map(f.fileset.source) + 512 + 1000);
    reader_put(f.reader, &span);
    end(&f);
}
END_TEST

START_TEST(answers_are_copies_if_so_wanted_and_can_be_cut)
{
    const struct reader_options options = {.copies = true};
    struct fixture f;
    struct fault fault = {0};
    struct span span;
    begin(&f);
    add_stored(&f, "file", 300000);
    finish(&f);
    reader_scratch_free(f.scratch);
    reader_free(f.reader);
    ck_assert_int_eq(reader_new(&f.fileset, &options, &fault, &f.reader), 0);
    ck_assert_int_eq(reader_scratch_new(f.reader, &f.scratch), 0);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, f.files[0].position, 1000, BLOCK, &span),
                     0);
    const uint8_t *map = source_map(f.fileset.source), *at = span.iov[0].iov_base;
    ck_assert(at < map || at >= map + source_size(f.fileset.source));
    ck_assert_mem_eq(at, map + 512 + 1000, BLOCK);
    reader_cut(&span, 5000, 300);
    ck_assert_int_eq(span.iov_count, 1);
    ck_assert_uint_eq(span.bytes, 300);
    ck_assert_ptr_eq(span.iov[0].iov_base, at + 5000);
    reader_cut(&span, 300, 1);
    ck_assert_int_eq(span.iov_count, 0);
    ck_assert_uint_eq(span.bytes, 0);
    reader_put(f.reader, &span);
    end(&f);
}
END_TEST

START_TEST(blocks_are_decompressed_once)
{
    struct fixture f;
    struct block_cache_stats stats;
    begin(&f);
    add_blocks(&f, "file", 4 * BLOCK, NULL, 0, NULL);
    finish(&f);
    for (unsigned i = 0; i < 3; i++)
        for (size_t at = 0; at < 4 * BLOCK; at += 10000)
            ck_assert(read_is_right(&f, f.scratch, 0, at, 10000));
    stats = cache_stats_of(&f);
    ck_assert_uint_eq(stats.misses, 4);
    ck_assert_uint_eq(stats.blocks, 4);
    end(&f);
}
END_TEST

START_TEST(block_read_whole_is_not_kept_twice)
{
    struct fixture f;
    struct block_cache_stats stats;
    begin(&f);
    f.is_kept_above = true;
    add_blocks(&f, "file", 2 * BLOCK, NULL, 0, NULL);
    finish_in(&f, true, 8u << 20);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 2 * BLOCK));
    stats = cache_stats_of(&f);
    ck_assert_uint_eq(stats.misses, 2);
    ck_assert_uint_eq(stats.blocks, 0);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, BLOCK / 2)); /* the other half may follow */
    stats = cache_stats_of(&f);
    ck_assert_uint_eq(stats.blocks, 1);
    end(&f);
}
END_TEST

START_TEST(span_keeps_its_blocks)
{
    struct fixture f;
    struct span span;
    struct reader_scratch *other;
    begin(&f);
    add_blocks(&f, "file", 20 * BLOCK, NULL, 0, NULL);
    finish_in(&f, false, 0);
    ck_assert_int_eq(reader_scratch_new(f.reader, &other), 0);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, f.files[0].position, 5, 300000, &span), 0);
    ck_assert_int_gt(span.pinned_count, 1);
    for (size_t at = 0; at < 20 * BLOCK; at += BLOCK)
        ck_assert(read_is_right(&f, other, 0, at, BLOCK));
    size_t at = 5;
    for (int i = 0; i < span.iov_count; at += span.iov[i++].iov_len)
        ck_assert_mem_eq(span.iov[i].iov_base, f.files[0].content + at, span.iov[i].iov_len);
    reader_put(f.reader, &span);
    reader_scratch_free(other);
    end(&f);
}
END_TEST

START_TEST(many_ranges_fit_one_span)
{
    struct fixture f;
    struct span span;
    begin(&f);
    add_sparse(&f, "ranges", 1000, 900, 100);
    finish(&f);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, f.files[0].position, 0, 1000000, &span),
                     0);
    ck_assert_int_eq(span.iov_count, READER_IOV_MAX);
    ck_assert_uint_eq(span.bytes, 1000000);
    reader_put(f.reader, &span);
    ck_assert_uint_eq(count_wrong(&f, f.scratch, 3, 200), 0);
    end(&f);
}
END_TEST

START_TEST(reads_past_the_end_are_empty)
{
    static const uint64_t offsets[] = {20000, 20001, 1u << 30, UINT64_MAX - 5, UINT64_MAX};
    struct fixture f;
    struct span span;
    size_t copied;
    char buf[10];
    begin(&f);
    add_stored(&f, "file", 20000);
    finish(&f);
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(
            reader_get(f.reader, f.scratch, f.files[0].position, offsets[i], 10, &span), 0);
        ck_assert_uint_eq(span.bytes, 0);
        ck_assert_int_eq(span.iov_count, 0);
        reader_put(f.reader, &span);
        ck_assert_int_eq(
            reader_copy(f.reader, f.scratch, f.files[0].position, offsets[i], buf, 10, &copied),
            0);
        ck_assert_uint_eq(copied, 0);
    }
    ck_assert_int_eq(reader_get(f.reader, f.scratch, f.files[0].position, 0, 0, &span), 0);
    ck_assert_uint_eq(span.bytes, 0);
    end(&f);
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
    struct fixture f;
    struct span span;
    begin(&f);
    add_stored(&f, "file", 20000);
    finish(&f);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, INDEX_ROOT, 0, 10, &span), -EINVAL);
    ck_assert_int_lt(reader_get(f.reader, f.scratch, 12345, 0, 10, &span), 0);
    end(&f);
}
END_TEST

START_TEST(truncated_archive_is_an_error_and_no_signal)
{
    struct fixture f;
    struct span span;
    size_t copied;
    static char buf[400000];
    if (_i == 1)
        setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    add_stored(&f, "first", 20000);
    add_stored(&f, "last", 300000);
    add_blocks(&f, "blocks", BLOCK, NULL, 0, NULL);
    finish_in(&f, true, 0);
    ck_assert_uint_eq(count_wrong(&f, f.scratch, 1, 0), 0);
    ck_assert_int_eq(truncate(f.path, 100000), 0);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 20000));
    for (unsigned i = 1; i < 3; i++) {
        uint32_t position = f.files[i].position;
        ck_assert_int_eq(reader_get(f.reader, f.scratch, position, 0, 300000, &span), -ENODATA);
        ck_assert_int_eq(reader_copy(f.reader, f.scratch, position, 0, buf, 300000, &copied),
                         -ENODATA);
    }
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

/* A copy that is whole: nothing asks the file, which may be mapped beyond its end. */
static void kept_state(const struct source *s, struct source_state *ret_state)
{
    (void)s;
    *ret_state = (struct source_state){.is_local = true, .keeps = true, .kept_fd = -1};
}

static int kept_bring(const struct source *s, uint64_t offset, uint64_t len, bool may_wait)
{
    (void)s, (void)offset, (void)len, (void)may_wait;
    return 0;
}

static bool kept_close(struct source *s)
{
    (void)s;
    return true;
}

static const struct source_ops kept_source = {
    .state = kept_state, .bring = kept_bring, .close = kept_close};

START_TEST(index_of_a_larger_archive_leads_to_no_byte_behind_this_one)
{
    struct fixture f;
    struct span span;
    if (_i == 2)
        setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    add_stored(&f, "first", 20000);
    add_stored(&f, "last", 300000);
    f.missing = 1;
    if (_i == 3)
        f.pages = &kept_source;
    finish_in(&f, _i > 0, 8u << 20);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 20000));
    ck_assert(read_is_right(&f, f.scratch, 1, 0, 100000));
    ck_assert_int_eq(
        reader_get(f.reader, f.scratch, f.files[1].position, 100000, 200000, &span), -ENODATA);
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

START_TEST(damaged_block_is_an_error_for_itself_alone)
{
    struct fixture f;
    struct span span;
    begin(&f);
    add_blocks(&f, "good", BLOCK, NULL, 0, NULL);
    size_t at = f.archive_bytes;
    add_blocks(&f, "bad", 2 * BLOCK, NULL, 0, NULL);
    f.archive[at] ^= 1;
    finish(&f);
    uint32_t position = f.files[1].position;
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(reader_get(f.reader, f.scratch, position, 0, 10, &span), -EUCLEAN);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, position, BLOCK - 5, 10, &span), -EUCLEAN);
    ck_assert(read_is_right(&f, f.scratch, 1, BLOCK, BLOCK));
    ck_assert(read_is_right(&f, f.scratch, 0, 0, BLOCK));
    end(&f);
}
END_TEST

START_TEST(block_that_holds_less_than_its_file_is_an_error)
{
    struct fixture f;
    struct span span;
    begin(&f);
    uint8_t *content = make_content(&f, BLOCK);
    struct builder_piece piece = add_block(&f, content, 5000, BLOCK, false);
    piece.length = BLOCK;
    uint32_t inode = add_file(&f, "short", content, BLOCK, true, 0);
    ck_assert_int_eq(builder_set_pieces(f.builder, inode, &piece, 1), 0);
    finish(&f);
    uint32_t position = f.files[0].position;
    ck_assert_int_eq(reader_get(f.reader, f.scratch, position, 0, BLOCK, &span), -EUCLEAN);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, position, 4000, 2000, &span), -EUCLEAN);
    ck_assert_int_eq(reader_get(f.reader, f.scratch, position, 9000, 1, &span), -EUCLEAN);
    ck_assert(read_is_right(&f, f.scratch, 0, 4000, 1000));
    end(&f);
}
END_TEST

/* A reader for an index that names this codec and such blocks: 0 or -ENOTSUP. */
static int open_with(enum codec codec, uint32_t block_bytes)
{
    struct fixture f;
    struct fault fault = {0};
    struct reader *reader = NULL;
    struct reader_options options = {0};
    uint64_t image_bytes;
    struct source *image;
    begin(&f);
    add_stored(&f, "file", 100);
    struct builder_header header = {.format = FORMAT_SQUASHFS,
                                    .codec = codec,
                                    .block_bytes = block_bytes,
                                    .archive_bytes = f.archive_bytes};
    int fd = memfd_create("index", MFD_CLOEXEC);
    ck_assert_int_eq(builder_write(f.builder, &header, fd, 0, NULL, &image_bytes), 0);
    builder_free(f.builder);
    ck_assert_int_eq(source_from_fd(fd, "index", &image), 0);
    open_source(&f, false);
    int r = index_open(image, 0, image_bytes, &fault, &f.fileset.index);
    if (r == 0)
        r = reader_new(&f.fileset, &options, &fault, &reader);
    ck_assert_int_eq(r < 0, *fault.what != '\0');
    ck_assert_int_eq(r == 0, reader != NULL);
    reader_free(reader);
    source_close(image);
    end(&f);
    return r;
}

START_TEST(each_block_may_have_its_own_codec)
{
    struct fixture f;
    begin(&f);
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8"};
    ck_assert_int_le(PACKERS, sizeof(names) / sizeof(names[0]));
    uint8_t *packed = malloc(PACKED_MAX);
    for (int i = 0; i < PACKERS; i++) {
        uint8_t *content = make_content(&f, BLOCK);
        struct builder_block block = {.block_bytes = BLOCK, .codec = packers[i].codec};
        block.packed_bytes = (uint32_t)packers[i].pack(content, BLOCK, packed);
        block.source_offset = append(&f, packed, block.packed_bytes);
        uint32_t number, inode;
        ck_assert_int_eq(builder_add_block(f.builder, &block, &number), 0);
        inode = add_file(&f, names[i], content, BLOCK, true, 0);
        struct builder_piece piece = {.length = BLOCK, .block = number};
        ck_assert_int_eq(builder_set_pieces(f.builder, inode, &piece, 1), 0);
    }
    free(packed);
    f.codec = CODEC_NONE;
    finish(&f);
    for (int i = 0; i < PACKERS; i++) {
        ck_assert(index_info(f.fileset.index)->codecs & 1u << packers[i].codec);
        ck_assert(read_is_right(&f, f.scratch, i, 100, BLOCK - 100));
    }
    end(&f);
}
END_TEST

START_TEST(codec_that_is_not_there_is_refused)
{
    ck_assert_int_eq(open_with(CODEC_LZMA, BLOCK), -ENOTSUP);
}
END_TEST

START_TEST(blocks_that_take_too_long_are_refused)
{
    ck_assert_int_eq(open_with(CODEC_ZSTD, 64u << 20), 0);
    ck_assert_int_eq(open_with(CODEC_ZSTD, (64u << 20) + 1), -ENOTSUP);
    ck_assert_int_eq(open_with(CODEC_NONE, (64u << 20) + 1), -ENOTSUP);
    ck_assert_int_eq(open_with(CODEC_LZO, 1u << 20), codec_available(CODEC_LZO) ? 0 : -ENOTSUP);
    ck_assert_int_eq(open_with(CODEC_LZO, (1u << 20) + 1), -ENOTSUP);
}
END_TEST

static void count_call(void *ctx)
{
    ++*(unsigned *)ctx;
}

START_TEST(hook_is_not_called_for_what_keeps_a_cpu_busy)
{
    struct fixture f;
    struct span span;
    unsigned calls = 0;
    begin(&f);
    add_blocks(&f, "blocks", 4 * BLOCK, NULL, 0, NULL);
    add_stored(&f, "stored", 50000);
    finish(&f);
    reader_scratch_hooks(f.scratch, count_call, NULL, &calls);
    char byte;
    if (source_read_cached(f.fileset.source, &byte, 1, 0) == -EAGAIN) {
        printf("skipped: this kernel's memory files do not tell what is cached\n");
        end(&f);
        return;
    }
    ck_assert_int_eq(reader_get(f.reader, f.scratch, f.files[0].position, 0, 4 * BLOCK, &span),
                     0);
    reader_put(f.reader, &span);
    ck_assert(read_is_right(&f, f.scratch, 1, 0, 50000));
    ck_assert_uint_eq(calls, 0); /* four blocks were decompressed, and nothing waited */
    end(&f);
}
END_TEST

/* What a scratch says of unpacking: 1 when it begins, 2 when it ends. */
static void note_unpacking(void *ctx, bool begins)
{
    unsigned *said = ctx;
    *said = *said * 10 + (begins ? 1 : 2);
}

START_TEST(large_blocks_are_said_to_unpack_and_small_ones_are_not)
{
    struct fixture f;
    unsigned said = 0;
    begin(&f);
    f.block_bytes = _i ? 2u << 20 : BLOCK;
    add_blocks(&f, "blocks", 2 * (size_t)block_bytes(&f), NULL, 0, NULL);
    finish(&f);
    reader_limit_unpacking(f.reader, 1);
    reader_scratch_hooks(f.scratch, NULL, note_unpacking, &said);
    ck_assert(read_is_right(&f, f.scratch, 0, 100, 1000));
    ck_assert(read_is_right(&f, f.scratch, 0, block_bytes(&f) + 100, 1000));
    ck_assert_uint_eq(said, _i ? 1212 : 0);
    ck_assert(read_is_right(&f, f.scratch, 0, 100, 1000));
    ck_assert_uint_eq(said, _i ? 1212 : 0);
    end(&f);
}
END_TEST

static void *take_permit(void *permits)
{
    permits_take(permits, true);
    return NULL;
}

START_TEST(no_more_permits_than_allowed_are_taken_at_once)
{
    struct permits permits;
    pthread_t thread;
    permits_init(&permits);
    ck_assert(permits_take(&permits, false) &&
              permits_take(&permits, false)); /* no limit yet */
    permits_limit(&permits, 2);
    ck_assert(!permits_take(&permits, false));
    pthread_create(&thread, NULL, take_permit, &permits);
    permits_end(&permits);
    pthread_join(thread, NULL);
    ck_assert(!permits_take(&permits, false));
    permits_limit(&permits, 3);
    ck_assert(permits_take(&permits, false) && !permits_take(&permits, false));
    permits_free(&permits);
}
END_TEST

/* A page cache that the test plays: it has everything, or nothing. */
static bool pages_are_cold;

static int played_read_cached(const struct source *s, void *buf, size_t len, uint64_t offset)
{
    return pages_are_cold ? -EAGAIN : source_read(s->wrapped, buf, len, offset);
}

static bool played_close(struct source *s)
{
    (void)s;
    return true;
}

static const struct source_ops played_pages = {.read_cached = played_read_cached,
                                               .close = played_close};

START_TEST(hook_is_called_before_a_read_that_is_not_cached)
{
    struct fixture f;
    unsigned calls = 0;
    if (_i == 1)
        setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    f.pages = &played_pages;
    add_stored(&f, "file", 3000000);
    finish_in(&f, true, 0);
    reader_scratch_hooks(f.scratch, count_call, NULL, &calls);
    ck_assert(read_is_right(&f, f.scratch, 0, 0, 1000000));
    ck_assert_uint_eq(calls, 0);
    pages_are_cold = true;
    ck_assert(read_is_right(&f, f.scratch, 0, 1000000, 700000));
    ck_assert_uint_eq(calls, 1);
    pages_are_cold = false;
    ck_assert(read_is_right(&f, f.scratch, 0, 1000000, 700000));
    ck_assert_uint_eq(calls, 1);
    pages_are_cold = true;
    ck_assert(copy_is_right(&f, f.scratch, 0, 1000000, 700000));
    ck_assert_uint_eq(calls, 2);
    end(&f);
    pages_are_cold = false;
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

struct worker {
    struct fixture *f;
    unsigned seed, wrong;
};

/* Threads that bring in what others read: in an order, or in none, or by many at once. */
static void *bring_in(void *arg)
{
    struct worker *worker = arg;
    struct fixture *f = worker->f;
    struct reader_scratch *scratch;
    if (reader_scratch_new(f->reader, &scratch) < 0)
        return NULL;
    for (unsigned i = 0; i < 200; i++) {
        struct reader_want wants[4];
        for (unsigned k = 0; k < 4; k++) {
            unsigned file = (unsigned)rand_r(&worker->seed) % f->file_count;
            wants[k] = (struct reader_want){f->files[file].position,
                                            (uint64_t)rand_r(&worker->seed) % 1000000, 100000,
                                            i % 3 ? i * 4 + k : BLOCK_DUE_UNKNOWN};
        }
        int r = reader_prefetch(f->reader, scratch, wants, 4);
        worker->wrong += r < 0 && r != -ENOBUFS;
        if (i % 50 == 49)
            reader_passed(f->reader, 0, true);
        if (i % 70 == 69)
            reader_set_budget(f->reader, i % 20 ? 1u << 20 : 64u << 20);
    }
    reader_scratch_free(scratch);
    return NULL;
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct reader_scratch *scratch;
    if (reader_scratch_new(worker->f->reader, &scratch) < 0)
        return NULL;
    worker->wrong = count_wrong(worker->f, scratch, worker->seed, 400);
    reader_scratch_free(scratch);
    return NULL;
}

START_TEST(threads_read_while_others_bring_in)
{
    struct fixture f;
    struct worker workers[8];
    pthread_t threads[8];
    if (_i == 1)
        setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    begin(&f);
    f.cache_stored = true;
    add_everything(&f);
    finish_in(&f, true, 2u << 20);
    for (unsigned i = 0; i < 8; i++) {
        workers[i] = (struct worker){&f, i + 1, 0};
        pthread_create(&threads[i], NULL, i % 2 ? bring_in : work, &workers[i]);
    }
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(workers[i].wrong, 0);
    }
    end(&f);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

START_TEST(many_threads_read_at_once)
{
    static const uint64_t budgets[] = {0, 1u << 20, 64u << 20};
    struct fixture f;
    struct worker workers[8];
    pthread_t threads[8];
    begin(&f);
    add_everything(&f);
    finish_in(&f, false, budgets[_i]);
    for (unsigned i = 0; i < 8; i++) {
        workers[i] = (struct worker){&f, i, 1};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(workers[i].wrong, 0);
    }
    struct block_cache_stats stats;
    stats = cache_stats_of(&f);
    ck_assert_uint_le(stats.bytes, budgets[_i]);
    end(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reader");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_kind_of_file_reads_back, 0, 2);
    tcase_add_loop_test(tests, sources_that_are_not_mapped_read_the_same, 0, 6);
    tcase_add_test(tests, what_is_read_through_the_mapping_counts);
    tcase_add_test(tests, what_is_read_of_a_remote_archive_is_what_was_asked);
    tcase_add_test(tests, reads_of_a_large_remote_file_end_where_pages_of_the_archive_do);
    tcase_add_test(tests, prefetched_files_are_read_without_the_source);
    tcase_add_test(tests, files_that_lie_together_are_prefetched_by_one_read);
    tcase_add_test(tests, stored_bytes_are_handed_out_where_they_lie);
    tcase_add_test(tests, answers_are_copies_if_so_wanted_and_can_be_cut);
    tcase_add_test(tests, blocks_are_decompressed_once);
    tcase_add_test(tests, block_read_whole_is_not_kept_twice);
    tcase_add_test(tests, span_keeps_its_blocks);
    tcase_add_test(tests, many_ranges_fit_one_span);
    tcase_add_test(tests, reads_past_the_end_are_empty);
    tcase_add_test(tests, what_is_no_file_is_refused);
    tcase_add_loop_test(tests, truncated_archive_is_an_error_and_no_signal, 0, 2);
    tcase_add_loop_test(tests, index_of_a_larger_archive_leads_to_no_byte_behind_this_one, 0,
                        4);
    tcase_add_test(tests, damaged_block_is_an_error_for_itself_alone);
    tcase_add_test(tests, block_that_holds_less_than_its_file_is_an_error);
    tcase_add_test(tests, each_block_may_have_its_own_codec);
    tcase_add_test(tests, codec_that_is_not_there_is_refused);
    tcase_add_test(tests, blocks_that_take_too_long_are_refused);
    tcase_add_test(tests, hook_is_not_called_for_what_keeps_a_cpu_busy);
    tcase_add_loop_test(tests, large_blocks_are_said_to_unpack_and_small_ones_are_not, 0, 2);
    tcase_add_test(tests, no_more_permits_than_allowed_are_taken_at_once);
    tcase_add_loop_test(tests, hook_is_called_before_a_read_that_is_not_cached, 0, 2);
    tcase_add_loop_test(tests, many_threads_read_at_once, 0, 3);
    tcase_add_loop_test(tests, threads_read_while_others_bring_in, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
