/*
 * Reading members whole, through blocks of the reader's cache and through a content's own:
 * both ways every byte comes once, in order, whether files share a block or span several.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "content.h"
#include "pack.h"
#include "suite.h"

#define BLOCK 65536u
#define FILES 40u

struct fixture {
    char path[64], tree[96], archive[96];
    struct fileset *fileset;
    struct reader *reader;
};

/* Files of 0 to 12 blocks, small ones mostly, that zstd makes smaller. */
static size_t size_of(unsigned file)
{
    return file % 8 == 7 ? (size_t)file * 20011 : file % 5 == 0 ? 0 : (size_t)file * 811;
}

static uint8_t byte_of(unsigned file, size_t at)
{
    return (uint8_t)((at >> 3) * (file + 1) + (at & 1));
}

static void make_tree(struct fixture *f)
{
    suite_make_folder("content", f->path, sizeof(f->path));
    snprintf(f->tree, sizeof(f->tree), "%s/tree", f->path);
    snprintf(f->archive, sizeof(f->archive), "%s/archive", f->path);
    ck_assert_int_eq(mkdir(f->tree, 0755), 0);
    for (unsigned i = 0; i < FILES; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%02u", f->tree, i);
        FILE *file = fopen(path, "w");
        ck_assert_ptr_nonnull(file);
        for (size_t at = 0; at < size_of(i); at++)
            putc(byte_of(i, at), file);
        ck_assert_int_eq(fclose(file), 0);
    }
}

static void pack_tree(struct fixture *f, int zstd_level)
{
    const char *const sources[] = {f->tree};
    struct pack_options options = {.sources = sources,
                                   .source_count = 1,
                                   .output = f->archive,
                                   .writer.threads = 1,
                                   .no_sync = true,
                                   .writer.zstd_level = zstd_level,
                                   .writer.block_bytes = zstd_level ? BLOCK : 0};
    struct pack_result result;
    struct fault fault = {0};
    ck_assert_int_eq(pack_run(&options, &fault, &result), 0);
}

static void begin(struct fixture *f, int zstd_level)
{
    make_tree(f);
    pack_tree(f, zstd_level);
}

static void open_it(struct fixture *f)
{
    struct reader_options options = {.cache_bytes = 1u << 20};
    struct fault fault = {0};
    ck_assert_int_eq(
        fileset_open(f->archive, &(struct fileset_options){0}, &fault, &f->fileset), 0);
    ck_assert_int_eq(reader_new(f->fileset, &options, &fault, &f->reader), 0);
}

static void end(struct fixture *f)
{
    char path[128];
    reader_free(f->reader);
    fileset_close(f->fileset);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "%s/%02u", f->tree, i);
        unlink(path);
    }
    unlink(f->archive);
    rmdir(f->tree);
    rmdir(f->path);
}

static uint32_t find(struct fixture *f, unsigned file)
{
    char name[8];
    uint32_t position;
    snprintf(name, sizeof(name), "%02u", file);
    ck_assert_int_eq(index_resolve(f->fileset->index, name, &position), 0);
    return position;
}

/* What a sink saw. */
struct seen {
    unsigned file;
    uint64_t next;
    bool right;
};

static int see(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct seen *seen = ctx;
    const uint8_t *b = bytes;
    seen->right &= offset == seen->next;
    for (size_t i = 0; i < len; i++)
        seen->right &= b[i] == byte_of(seen->file, offset + i);
    seen->next = offset + len;
    return 0;
}

static void read_and_check(struct fixture *f, struct content *content, unsigned file,
                           uint64_t from, uint64_t to)
{
    struct seen seen = {file, from, true};
    uint64_t where = FAULT_NO_OFFSET;
    ck_assert_int_eq(content_read(content, find(f, file), from, to, see, &seen, &where), 0);
    ck_assert(seen.right);
    ck_assert_uint_eq(seen.next, to);
}

START_TEST(every_byte_comes_once)
{
    struct fixture f;
    begin(&f, _i & 1 ? 3 : 0);
    open_it(&f);
    struct content *content;
    ck_assert_int_eq(content_new(f.fileset, f.reader,
                                 _i & 2 ? CONTENT_THREAD_BLOCKS : CONTENT_SHARED_BLOCKS,
                                 &content),
                     0);
    for (unsigned i = 0; i < FILES; i++)
        read_and_check(&f, content, i, 0, size_of(i));
    for (unsigned i = FILES; i-- > 0;) /* not in the order of the archive */
        read_and_check(&f, content, i, size_of(i) / 3, size_of(i));
    content_free(content);
    end(&f);
}
END_TEST

START_TEST(thread_blocks_leave_the_cache_alone)
{
    struct fixture f;
    begin(&f, 3);
    open_it(&f);
    struct content *content;
    struct block_cache_stats stats;
    uint64_t reads, bytes;
    ck_assert_int_eq(content_new(f.fileset, f.reader, CONTENT_THREAD_BLOCKS, &content), 0);
    for (unsigned i = 0; i < FILES; i++)
        read_and_check(&f, content, i, 0, size_of(i));
    reader_stats(f.reader, &stats, &reads, &bytes);
    ck_assert_uint_eq(stats.misses, 0);
    content_free(content);
    end(&f);
}
END_TEST

static void damage(struct fixture *f, uint64_t offset)
{
    int fd = open(f->archive, O_RDWR);
    uint8_t byte;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

START_TEST(a_damaged_block_is_an_error_for_its_files_alone)
{
    struct fixture f;
    begin(&f, 3);
    open_it(&f);
    struct extent extent;
    struct content *content;
    struct seen seen = {0};
    uint64_t where = FAULT_NO_OFFSET;
    ck_assert_int_eq(index_extent(f.fileset->index, find(&f, 39), 0, &extent), 0);
    ck_assert_int_eq(extent.kind, EXTENT_BLOCK);
    damage(&f, extent.source_offset + extent.packed_bytes / 2);
    ck_assert_int_eq(content_new(f.fileset, f.reader,
                                 _i ? CONTENT_THREAD_BLOCKS : CONTENT_SHARED_BLOCKS, &content),
                     0);
    for (unsigned i = 0; i < 2; i++) { /* what failed is not taken for good later */
        ck_assert_int_eq(
            content_read(content, find(&f, 39), 0, size_of(39), see, &seen, &where), -EUCLEAN);
        ck_assert_uint_eq(where, extent.source_offset);
        read_and_check(&f, content, 31, 0, size_of(31));
    }
    content_free(content);
    end(&f);
}
END_TEST

static int ignore(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    (void)ctx, (void)bytes, (void)len, (void)offset;
    return 0;
}

/* Where the files' own sums tell, those files of a damaged block that are whole are not lost.
 */
START_TEST(files_before_the_damage_of_a_block_come_without_its_sum)
{
    struct fixture f;
    begin(&f, 3);
    open_it(&f);
    struct extent extent, first;
    struct content *content;
    uint64_t where;
    unsigned last = 6; /* in one block with the small ones before it */
    ck_assert_int_eq(index_extent(f.fileset->index, find(&f, last), 0, &extent), 0);
    ck_assert_int_eq(index_extent(f.fileset->index, find(&f, 1), 0, &first), 0);
    ck_assert_uint_eq(extent.source_offset, first.source_offset);
    damage(&f, extent.source_offset + extent.packed_bytes - 2); /* the block's own sum */
    for (int skip = 0; skip < 2; skip++) {
        ck_assert_int_eq(content_new(f.fileset, f.reader, CONTENT_THREAD_BLOCKS, &content), 0);
        if (skip)
            content_skip_sums(content);
        int r = content_read(content, find(&f, 1), 0, size_of(1), ignore, NULL, &where);
        ck_assert_int_eq(r, skip ? 0 : -EUCLEAN);
        if (skip)
            read_and_check(&f, content, last, 0, size_of(last));
        content_free(content);
    }
    end(&f);
}
END_TEST

/* Bytes behind the window are read when they are wanted. */
START_TEST(what_is_expected_comes_with_the_first_read_as_far_as_the_window_goes)
{
    struct fixture f;
    struct content *content;
    struct extent extent;
    begin(&f, 0);
    open_it(&f);
    ck_assert_int_eq(content_new(f.fileset, f.reader, CONTENT_SHARED_BLOCKS, &content), 0);
    ck_assert_int_eq(index_extent(f.fileset->index, find(&f, 6), 0, &extent), 0);
    content_expect(content, extent.source_offset + 2 * (uint64_t)CONTENT_NEAR_BYTES);
    read_and_check(&f, content, 6, 0, size_of(6));

    int fd = open(f.archive, O_RDWR | O_CLOEXEC);
    const uint64_t ends = extent.source_offset + CONTENT_NEAR_BYTES;
    for (uint64_t at = extent.source_offset; at < ends + CONTENT_NEAR_BYTES; at++)
        if (at == extent.source_offset || at >= ends)
            ck_assert_int_eq(pwrite(fd, "\xff", 1, (off_t)at), 1);
    close(fd);
    read_and_check(&f, content, 6, 0, size_of(6)); /* not read anew */
    read_and_check(&f, content, 7, 0, size_of(7));
    struct seen seen = {15, 0, true};
    uint64_t where;
    ck_assert_int_eq(content_read(content, find(&f, 15), 0, size_of(15), see, &seen, &where),
                     0);
    ck_assert(!seen.right);
    content_free(content);
    end(&f);
}
END_TEST

START_TEST(what_the_source_says_of_itself_is_an_io_error)
{
    struct fixture f;
    struct content *content;
    struct seen seen = {7, 0, true};
    uint64_t where = FAULT_NO_OFFSET;
    begin(&f, 0);
    open_it(&f);
    ck_assert_int_eq(content_new(f.fileset, f.reader, CONTENT_SHARED_BLOCKS, &content), 0);
    int folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(dup2(folder, source_fd(f.fileset->source)), 0);
    close(folder);
    ck_assert_int_eq(content_read(content, find(&f, 7), 0, size_of(7), see, &seen, &where),
                     -EIO);
    ck_assert_uint_ne(where, FAULT_NO_OFFSET);
    content_free(content);
    end(&f);
}
END_TEST

#define SPARSE_BYTES (UINT64_C(64) << 30) /* seconds of hashing */

struct giving_up {
    _Atomic bool cancelled;
    uint64_t total;
};

static void give_up(void *ctx, const char *doing, const struct progress *progress)
{
    struct giving_up *g = ctx;
    ck_assert_str_eq(doing, "reading for the digest");
    g->total = progress->bytes_total;
    if (progress->bytes_done)
        g->cancelled = true;
}

START_TEST(a_digest_of_holes_shows_progress_and_ends_on_demand)
{
    struct fixture f;
    struct fault fault = {0};
    struct giving_up g = {0};
    const struct fileset_options how = {
        .progress = give_up, .cancelled = &g.cancelled, .ctx = &g};
    uint8_t digest[INDEX_DIGEST_BYTES];
    char path[128];
    make_tree(&f);
    snprintf(path, sizeof(path), "%s/00", f.tree);
    ck_assert_int_eq(truncate(path, (off_t)SPARSE_BYTES), 0);
    pack_tree(&f, 0);
    open_it(&f);
    ck_assert_int_eq(content_digest(f.fileset, 2, &how, &fault, digest), -ECANCELED);
    ck_assert_uint_eq(g.total, SPARSE_BYTES);
    end(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("content");
    TCase *tests = tcase_create("content");
    tcase_add_loop_test(tests, every_byte_comes_once, 0, 4);
    tcase_add_test(tests, thread_blocks_leave_the_cache_alone);
    tcase_add_loop_test(tests, a_damaged_block_is_an_error_for_its_files_alone, 0, 2);
    tcase_add_test(tests, files_before_the_damage_of_a_block_come_without_its_sum);
    tcase_add_test(tests, what_is_expected_comes_with_the_first_read_as_far_as_the_window_goes);
    tcase_add_test(tests, what_the_source_says_of_itself_is_an_io_error);
    tcase_add_test(tests, a_digest_of_holes_shows_progress_and_ends_on_demand);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
