/*
 * Batches without a loader, samples that may be written to, how many of them fit, and what of
 * the job's memory they leave to others; and the writer: archives from memory.
 */
#include "loader_helper.h"

#include <stdatomic.h>
#include <sys/wait.h>

#include "suite.h"

static size_t size_of(unsigned i)
{
    return i % 13 * 37;
}

#define FILES 500

static const uint8_t zeros[4096];

/* Batches of different lengths and alignments, against reads of single samples. */
static void check_gathering(const struct onepot_archive *a, uint32_t align)
{
    uint64_t samples[FILES], offsets[FILES], sizes[FILES], bytes;
    for (uint64_t count = 0; count <= FILES; count += 83) {
        for (uint64_t i = 0; i < count; i++)
            samples[i] = (i * 7 + count) % FILES;
        ck_assert_int_eq(
            onepot_archive_places(a, samples, count, align, offsets, sizes, &bytes), 0);
        uint8_t *buf = malloc(bytes + 1);
        struct onepot_error error = {0};
        memset(buf, 0xee, bytes + 1);
        int r = onepot_archive_gather(a, samples, count, align, buf, bytes, &error);
        ck_assert_msg(r == 0, "%s", error.text);
        ck_assert_uint_eq(buf[bytes], 0xee);
        uint64_t at = 0;
        for (uint64_t i = 0; i < count; i++) {
            uint8_t alone[1024];
            size_t got;
            ck_assert_uint_eq(offsets[i] % (align ? align : 64), 0);
            ck_assert_mem_eq(buf + at, zeros, offsets[i] - at);
            at = offsets[i];
            ck_assert_int_eq(
                onepot_archive_read(a, samples[i], 0, alone, sizeof(alone), NULL, &got), 0);
            ck_assert_uint_eq(got, sizes[i]);
            ck_assert_mem_eq(buf + at, alone, got);
            at += got;
        }
        free(buf);
    }
}

START_TEST(a_batch_can_be_gathered_without_a_loader)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, FILES, 3, size_of);
    if (tree_pack(&t, (enum packing)_i)) {
        struct onepot_archive *a = tree_open(&t, NULL);
        check_gathering(a, 0);
        check_gathering(a, 1);
        onepot_archive_close(a);
        setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
        a = tree_open(&t, NULL); /* by reads, of several threads */
        check_gathering(a, 4096);
        onepot_archive_close(a);
        unsetenv("ONEPOT_ASSUME_REMOTE");
    }
    tree_end(&t);
}
END_TEST

START_TEST(what_can_not_be_gathered_is_an_error)
{
    struct tree t;
    uint64_t samples[] = {1, FILES}, offsets[2], sizes[2], bytes;
    uint8_t buf[8192];
    struct onepot_error error;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 3, size_of);
    ck_assert_int_eq(onepot_archive_places(a, samples, 2, 0, offsets, sizes, &bytes), -ERANGE);
    ck_assert_int_eq(onepot_archive_gather(a, samples, 2, 0, buf, sizeof(buf), &error),
                     -ERANGE);
    ck_assert_int_eq(onepot_archive_places(a, samples, 1, 3, offsets, sizes, &bytes), -EINVAL);
    ck_assert_int_eq(onepot_archive_gather(a, samples, 1, 0, buf, 1, &error), -EINVAL);
    ck_assert_int_eq(truncate(t.archive, 1024), 0);
    ck_assert_int_eq(onepot_archive_gather(a, samples, 1, 0, buf, sizeof(buf), &error),
                     -ENODATA);
    ck_assert_msg(strstr(error.text, "onepot.tar"), "%s", error.text);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(a_budget_tells_how_many_samples_fit)
{
    static char large[4096];
    struct tree t;
    uint64_t mean, worst;
    tree_begin(&t);
    for (int i = 0; i < 9; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        tree_file(&t, name, "small", 5); /* 64 and 33 bytes */
    }
    tree_file(&t, "large", large, sizeof(large)); /* 4096 and 33 */
    tree_pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL);
    const struct {
        uint64_t bytes, mean, worst;
    } cases[] = {{0, 0, 0},
                 {97, 0, 0},
                 {4128, 8, 0},
                 {4129, 8, 1},
                 {4129 + 97, 8, 2},
                 {5002, 10, 10},
                 {4129 + 9 * 97 - 1, 9, 9},
                 {1 << 30, 10, 10}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(onepot_archive_batch_for(a, cases[i].bytes, 0, &mean, &worst), 0);
        ck_assert_msg(mean == cases[i].mean && worst == cases[i].worst, "%d bytes: %d, %d",
                      (int)cases[i].bytes, (int)mean, (int)worst);
    }
    ck_assert_uint_eq(onepot_archive_common_size(a), 0);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

/* ---- memory that several loaders share ---- */

/* Bytes of memory that nobody of the job uses, as loaders are told; 0: as it is. */
static _Atomic uint64_t unused_bytes;

uint64_t __real_budget_free_bytes(const char *root);
uint64_t __wrap_budget_free_bytes(const char *root);
uint64_t __wrap_budget_free_bytes(const char *root)
{
    return unused_bytes ? unused_bytes : __real_budget_free_bytes(root);
}

/* Take batches and keep them until there is no room; how many that were. */
static unsigned keep_batches(struct onepot_loader *loader, const struct onepot_batch **kept,
                             unsigned most)
{
    struct onepot_error error = {0};
    unsigned n = 0;
    while (n < most) {
        int r = onepot_loader_next(loader, -1, &error, &kept[n]);
        if (r == -ENOBUFS)
            break;
        ck_assert_msg(r == 1, "%d: %s", r, error.text);
        n++;
    }
    return n;
}

START_TEST(batches_that_are_kept_leave_memory_to_others_of_the_job)
{
    struct tree t;
    const struct onepot_batch *kept[FILES];
    struct onepot_loader *loader = NULL;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 3, size_of);
    const struct onepot_loader_options options = {.size = sizeof(options),
                                                  .batch_size = 10,
                                                  .world_size = 1,
                                                  .no_shuffle = true,
                                                  .threads = 1,
                                                  .prefetch = 2};
    unused_bytes = 1; /* the others have the rest */
    ck_assert_int_eq(onepot_loader_new(a, &options, NULL, &loader), 0);
    unsigned n = keep_batches(loader, kept, FILES / 10);
    ck_assert_uint_ge(n, 3); /* the ring, and what its consumer holds */
    ck_assert_uint_lt(n, 10);
    onepot_batch_release(kept[--n]); /* what is given back is used again */
    ck_assert_uint_ge(keep_batches(loader, kept + n, 1), 1);
    n++;
    unused_bytes = UINT64_MAX;                               /* the others went */
    n += keep_batches(loader, kept + n, FILES / 10 - 1 - n); /* may still tell what was */
    n += keep_batches(loader, kept + n, FILES / 10 - 1 - n);
    ck_assert_uint_eq(n, FILES / 10 - 1);
    for (unsigned i = 0; i < n; i++)
        onepot_batch_release(kept[i]);
    onepot_loader_free(loader);
    unused_bytes = 0;
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

/* ---- writer ---- */

static struct onepot_writer *begin(const char *path, const struct onepot_writer_options *o)
{
    struct onepot_writer *writer = NULL;
    struct onepot_error error = {0};
    int r = onepot_writer_new(path, o, &error, &writer);
    ck_assert_msg(r == 0, "%s", error.text);
    return writer;
}

START_TEST(a_written_archive_holds_what_was_added)
{
    const struct onepot_writer_options ways[] = {
        {.size = sizeof(ways[0])},
        {.size = sizeof(ways[0]), .zstd = 3, .block = 4096, .threads = 2},
        {.size = sizeof(ways[0]), .align = 4096}};
    const struct onepot_file file = {.size = sizeof(file), .mode = 0600, .mtime_sec = -5};
    struct tree t;
    struct onepot_error error = {0};
    tree_begin(&t);
    snprintf(t.archive, sizeof(t.archive), "%s/new.tar", t.path);
    struct onepot_writer *w = begin(t.archive, &ways[_i]);
    for (unsigned i = 0; i < FILES; i++) {
        char name[64], bytes[1024];
        memset(bytes, 'a' + i % 26, sizeof(bytes));
        snprintf(name, sizeof(name), "c%u/%04u", i / 100, i);
        int r = onepot_writer_add(w, name, bytes, size_of(i), i % 2 ? &file : NULL, &error);
        ck_assert_msg(r == 0, "%s", error.text);
    }
    ck_assert_int_eq(access(t.archive, F_OK), -1); /* not before it is finished */
    ck_assert_msg(onepot_writer_finish(w, &error) == 0, "%s", error.text);
    struct onepot_archive *a = tree_open(&t, NULL);
    ck_assert_uint_eq(onepot_archive_samples(a), FILES);
    ck_assert_uint_eq(onepot_archive_classes(a), 5);
    for (unsigned i = 0; i < FILES; i++) {
        char bytes[1024], expected[1024];
        size_t got;
        memset(expected, 'a' + i % 26, sizeof(expected));
        ck_assert_int_eq(onepot_archive_read(a, i, 0, bytes, sizeof(bytes), NULL, &got), 0);
        ck_assert_uint_eq(got, size_of(i));
        ck_assert_mem_eq(bytes, expected, got);
    }
    onepot_archive_close(a);
    ck_assert_int_eq(onepot_writer_new(t.archive, NULL, &error, &w), -EEXIST);
    tree_end(&t);
}
END_TEST

START_TEST(a_bad_name_spoils_nothing)
{
    const char *const bad[] = {"", "/", "/a", "a/", "a//b", "..", "a/..", ".", "./a", "a/../b"};
    struct tree t;
    struct onepot_error error;
    tree_begin(&t);
    snprintf(t.archive, sizeof(t.archive), "%s/new.tar", t.path);
    struct onepot_writer *w = begin(t.archive, NULL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(onepot_writer_add(w, bad[i], "x", 1, NULL, &error), -EINVAL);
    const struct onepot_file file = {.size = sizeof(file), .mode = 0100644};
    ck_assert_int_eq(onepot_writer_add(w, "x", "x", 1, &file, &error), -EINVAL);
    ck_assert_int_eq(onepot_writer_add(w, "..a/...", "good", 4, NULL, &error), 0);
    const char *const taken[] = {"..a/...", "..a", "..a/.../below"};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        ck_assert_int_eq(onepot_writer_add(w, taken[i], "x", 1, NULL, &error), -EEXIST);
        ck_assert_ptr_nonnull(strstr(error.text, taken[i]));
    }
    ck_assert_int_eq(onepot_writer_finish(w, &error), 0);
    struct onepot_archive *a = tree_open(&t, NULL);
    ck_assert_uint_eq(onepot_archive_samples(a), 1);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(nothing_is_left_of_what_was_given_up_and_a_child_ends_nothing)
{
    struct tree t;
    struct onepot_error error;
    tree_begin(&t);
    snprintf(t.archive, sizeof(t.archive), "%s/new.tar", t.path);
    struct onepot_writer *w = begin(t.archive, NULL);
    ck_assert_int_eq(onepot_writer_add(w, "a", "x", 1, NULL, &error), 0);
    pid_t child = fork();
    if (child == 0) {
        int r = onepot_writer_add(w, "b", "x", 1, NULL, &error);
        onepot_writer_discard(w);
        _exit(r == -EINVAL ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(onepot_writer_finish(w, &error), 0);
    ck_assert_int_eq(unlink(t.archive), 0);
    onepot_writer_discard(begin(t.archive, NULL));
    onepot_writer_discard(NULL);
    run_shell("rmdir '%s/tree' && [ -z \"$(ls -A '%s')\" ]", t.path, t.path);
    tree_end(&t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("gather");
    TCase *c = tcase_create("gather");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, a_batch_can_be_gathered_without_a_loader, 0, PACKINGS);
    tcase_add_test(c, what_can_not_be_gathered_is_an_error);
    tcase_add_test(c, a_budget_tells_how_many_samples_fit);
    tcase_add_test(c, batches_that_are_kept_leave_memory_to_others_of_the_job);
    tcase_add_loop_test(c, a_written_archive_holds_what_was_added, 0, 3);
    tcase_add_test(c, a_bad_name_spoils_nothing);
    tcase_add_test(c, nothing_is_left_of_what_was_given_up_and_a_child_ends_nothing);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
