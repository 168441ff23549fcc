/* Several sources as one: bytes, gaps, the mapping, and that trouble stays with its member. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source_concat.h"
#include "source_slice.h"
#include "source_ops.h"
#include "source_retry.h"
#include "suite.h"

#define ALIGN SOURCE_CONCAT_ALIGN

/* Members: shorter than a page, empty, an exact multiple of the alignment, a bit more. */
static const size_t sizes[] = {100, 0, ALIGN, ALIGN + 1};
enum { MEMBERS = 4 };
static const uint64_t bases[MEMBERS] = {0, 100, ALIGN, 2 * ALIGN};

static char folder[64], paths[MEMBERS][128];
static struct source *members[MEMBERS], *source;

static uint8_t byte_of(size_t member, uint64_t offset)
{
    return (uint8_t)(1 + (member * 77 + offset * 13 + offset / 256) % 255);
}

/* What is expected at an offset of the whole. */
static uint8_t expected(uint64_t offset)
{
    for (size_t i = MEMBERS; i-- > 0;)
        if (sizes[i] && offset >= bases[i])
            return offset - bases[i] < sizes[i] ? byte_of(i, offset - bases[i]) : 0;
    ck_abort();
}

static void check_bytes(const uint8_t *bytes, uint64_t offset, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != expected(offset + i))
            ck_abort_msg("byte %llu", (unsigned long long)offset + i);
}

static void write_member(size_t i)
{
    snprintf(paths[i], sizeof(paths[i]), "%s/shard-%zu", folder, i);
    FILE *f = fopen(paths[i], "w");
    ck_assert_ptr_nonnull(f);
    for (uint64_t at = 0; at < sizes[i]; at++)
        putc(byte_of(i, at), f);
    ck_assert_int_eq(fclose(f), 0);
}

static void open_members(void)
{
    for (size_t i = 0; i < MEMBERS; i++)
        ck_assert_int_eq(source_open(paths[i], NULL, &members[i]), 0);
    ck_assert_int_eq(source_concat(members, MEMBERS, true, "all", &source), 0);
}

static void setup(void)
{
    suite_make_folder("concat", folder, sizeof(folder));
    for (size_t i = 0; i < MEMBERS; i++)
        write_member(i);
    open_members();
}

static void teardown(void)
{
    source_close(source);
    for (size_t i = 0; i < MEMBERS; i++)
        unlink(paths[i]);
    ck_assert_int_eq(rmdir(folder), 0);
}

START_TEST(members_lie_behind_each_other)
{
    ck_assert_str_eq(source_name(source), "all");
    ck_assert_uint_eq(source_size(source), bases[3] + sizes[3]);
    for (size_t i = 0; i < MEMBERS; i++) {
        ck_assert_uint_eq(source_concat_base(source, i), bases[i]);
        ck_assert_ptr_eq(source_member(source, i), members[i]);
    }
    ck_assert_ptr_null(source_member(source, MEMBERS));
    ck_assert_ptr_eq(source_member(members[0], 0), members[0]);
    ck_assert_ptr_null(source_member(members[0], 1));
}
END_TEST

START_TEST(a_byte_has_its_member)
{
    static const struct {
        uint64_t offset, within;
        size_t member;
    } places[] = {{0, 0, 0},         {99, 99, 0},
                  {ALIGN, 0, 2},     {2 * ALIGN - 1, ALIGN - 1, 2},
                  {2 * ALIGN, 0, 3}, {3 * ALIGN, ALIGN, 3}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        uint64_t offset = places[i].offset;
        ck_assert_ptr_eq(source_at(source, &offset), members[places[i].member]);
        ck_assert_uint_eq(offset, places[i].within);
    }
    uint64_t offset = 7;
    ck_assert_ptr_eq(source_at(members[3], &offset), members[3]);
    ck_assert_uint_eq(offset, 7);
}
END_TEST

/* Ranges that begin and end on both sides of every edge. */
static void each_range(void (*check)(uint64_t offset, size_t len))
{
    uint64_t edges[] = {0, 100, ALIGN, 2 * ALIGN, 3 * ALIGN, 3 * ALIGN + 1};
    const size_t count = sizeof(edges) / sizeof(edges[0]);
    for (size_t i = 0; i < count; i++)
        for (size_t j = i; j < count; j++)
            for (int a = -1; a <= 1; a++)
                for (int b = -1; b <= 1; b++) {
                    uint64_t from = edges[i] + (uint64_t)a, to = edges[j] + (uint64_t)b;
                    if (from <= to && to <= source_size(source))
                        check(from, to - from);
                }
}

static void check_read(uint64_t offset, size_t len)
{
    uint8_t *bytes = malloc(len + 1);
    ck_assert_int_eq(source_read(source, bytes, len, offset), 0);
    check_bytes(bytes, offset, len);
    memset(bytes, 0xee, len);
    ck_assert_int_eq(source_read_cached(source, bytes, len, offset), 0);
    check_bytes(bytes, offset, len);
    free(bytes);
}

START_TEST(any_range_is_read)
{
    each_range(check_read);
}
END_TEST

static void check_pieces(uint64_t offset, size_t len)
{
    uint8_t *bytes = malloc(len + 1);
    size_t first = len / 3, second = len / 2 - first;
    struct iovec iov[] = {{bytes, first},
                          {bytes + first, 0},
                          {bytes + first, second},
                          {bytes + first + second, len - first - second}};
    ck_assert_int_eq(source_readv(source, iov, 4, offset), 0);
    check_bytes(bytes, offset, len);
    free(bytes);
}

START_TEST(any_range_is_read_into_several_buffers)
{
    each_range(check_pieces);
}
END_TEST

START_TEST(nothing_is_read_beyond_the_end)
{
    uint8_t bytes[2];
    uint64_t size = source_size(source);
    ck_assert_int_eq(source_read(source, bytes, 2, size - 1), -ENODATA);
    ck_assert_int_eq(source_read(source, bytes, 1, UINT64_MAX), -ENODATA);
    ck_assert_int_eq(source_read_cached(source, bytes, 2, size - 1), -ENODATA);
    ck_assert_int_eq(source_read(source, bytes, 0, size), 0);
}
END_TEST

START_TEST(each_member_is_mapped)
{
    ck_assert(source_can_map(source));
    ck_assert_ptr_null(source_map(source)); /* they are several */
    ck_assert(source_has(source, 0, source_size(source)));
    ck_assert_int_eq(source_bring(source, 0, source_size(source)), 0);
    for (size_t i = 0; i < MEMBERS; i++) {
        const uint8_t *map = source_map_at(source, bases[i], sizes[i]);
        ck_assert(sizes[i] > 0 ? map != NULL : map == NULL);
        if (!map)
            continue;
        check_bytes(map, bases[i], sizes[i]);
        ck_assert_ptr_eq(source_map_at(source, bases[i] + sizes[i] - 1, 1), map + sizes[i] - 1);
    }
    ck_assert(source_is_whole(source));
    ck_assert(!source_was_cut(source));
}
END_TEST

START_TEST(what_lies_in_no_single_member_is_not_mapped)
{
    ck_assert_ptr_null(source_map_at(source, bases[2], sizes[2] + 1));
    ck_assert_ptr_null(source_map_at(source, sizes[0], 1)); /* a gap */
    ck_assert_ptr_null(source_map_at(source, sizes[0] - 1, 2));
    ck_assert_ptr_null(source_map_at(source, source_size(source) - 1, 2));
    ck_assert_ptr_null(source_map_at(source, UINT64_MAX, 2));
    source_concat_distrust(source, 2);
    ck_assert_ptr_null(source_map_at(source, bases[2], 1));
    ck_assert_ptr_nonnull(source_map_at(source, bases[3], 1));
}
END_TEST

START_TEST(a_slice_is_mapped_wherever_it_begins)
{
    struct source *slices[2], *concat;
    ck_assert_int_eq(source_open(paths[2], NULL, &slices[0]), 0);
    ck_assert_int_eq(source_open(paths[3], NULL, &slices[1]), 0);
    ck_assert_int_eq(source_slice(&slices[0], ALIGN / 2 + 1, 1000), 0);
    ck_assert_int_eq(source_concat(slices, 2, true, "slices", &concat), 0);
    ck_assert(source_can_map(concat));
    const uint8_t *map = source_map_at(concat, 0, 1000);
    ck_assert_ptr_nonnull(map);
    for (size_t i = 0; i < 1000; i++)
        ck_assert_uint_eq(map[i], byte_of(2, ALIGN / 2 + 1 + i));
    source_close(concat);
}
END_TEST

START_TEST(one_that_is_not_mapped_keeps_all_from_being_mapped)
{
    source_close(source);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    ck_assert_int_eq(source_open(paths[2], NULL, &members[2]), 0);
    unsetenv("ONEPOT_ASSUME_REMOTE");
    for (size_t i = 0; i < MEMBERS; i++)
        if (i != 2)
            ck_assert_int_eq(source_open(paths[i], NULL, &members[i]), 0);
    ck_assert_int_eq(source_concat(members, MEMBERS, true, "all", &source), 0);
    ck_assert(!source_is_local(source));
    ck_assert(!source_can_map(source));
    each_range(check_pieces);
}
END_TEST

START_TEST(a_cut_member_fails_alone)
{
    uint8_t bytes[16];
    ck_assert_int_eq(truncate(paths[2], 4096), 0);
    ck_assert_int_eq(source_read(source, bytes, 16, bases[2] + 8192), -ENODATA);
    ck_assert_int_eq(source_read_cached(source, bytes, 1, bases[2] + 8192), -ENODATA);
    ck_assert_int_eq(source_read(source, bytes, 16, bases[2]), 0);
    ck_assert_int_eq(source_read(source, bytes, 16, 0), 0);
    ck_assert_int_eq(source_read(source, bytes, 16, bases[3] + ALIGN - 15), 0);
    check_bytes(bytes, bases[3] + ALIGN - 15, 16);
    ck_assert_int_eq(source_was_changed(source), 1);
    ck_assert(!source_is_whole(source));
    ck_assert(!source_was_cut(members[0]));
    ck_assert(source_was_cut(members[2]));
    ck_assert(!source_was_cut(members[3]));
}
END_TEST

START_TEST(lost_pages_of_one_member_are_noticed)
{
    const volatile uint8_t *cut = source_map_at(source, bases[3], 1);
    const uint8_t *other = source_map_at(source, bases[2], 1);
    ck_assert(cut && other);
    ck_assert_int_eq(truncate(paths[3], 0), 0);
    ck_assert_uint_eq(*cut, 0);
    ck_assert_uint_eq(*other, expected(bases[2]));
    ck_assert(!source_is_whole(source));
    ck_assert(source_was_cut(source));
}
END_TEST

START_TEST(a_changed_member_is_noticed)
{
    ck_assert_int_eq(source_was_changed(source), 0);
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    ck_assert_int_eq(utimensat(AT_FDCWD, paths[1], times, 0), 0);
    ck_assert_int_eq(source_was_changed(source), 1);
}
END_TEST

START_TEST(its_identity_is_that_of_all)
{
    struct source_identity before, after;
    uint64_t samples, others;
    source_identity(source, &before);
    ck_assert_uint_eq(before.size_bytes, 100 + 2 * ALIGN + 1);
    ck_assert_int_eq(source_fingerprint(source, &samples), 0);
    source_close(source);
    open_members();
    source_identity(source, &after);
    ck_assert(source_identity_equal(&before, &after));
    source_close(source);

    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    ck_assert_int_eq(utimensat(AT_FDCWD, paths[0], times, 0), 0);
    open_members();
    source_identity(source, &after);
    ck_assert(!source_identity_equal(&before, &after));
    ck_assert_int_eq(source_fingerprint(source, &others), 0);
    ck_assert_uint_eq(samples, others);
    source_close(source);

    ck_assert_int_eq(truncate(paths[3], 7), 0);
    open_members();
    ck_assert_int_eq(source_fingerprint(source, &others), 0);
    ck_assert_uint_ne(samples, others);
}
END_TEST

START_TEST(advice_goes_to_each)
{
    source_advise(source, SOURCE_AT_RANDOM, 0, 0);
    source_advise(source, SOURCE_SOON, 50, 2 * ALIGN);
    source_advise(source, SOURCE_DROP, 0, source_size(source));
    source_advise(source, SOURCE_DROP, source_size(source), 1); /* not in range: ignored */
    check_read(0, source_size(source));
}
END_TEST

/* ---- members that fail ---- */

static unsigned failing_reads;
static char failed_name[16];

static int failing_read(const struct source *s, struct source_cursor *cursor)
{
    (void)s, (void)cursor;
    failing_reads++;
    return -EIO;
}

static bool failing_close(struct source *s)
{
    (void)s;
    return true;
}

static void failing_state(const struct source *s, struct source_state *ret_state)
{
    (void)s;
    *ret_state = (struct source_state){.progress_ns = 5};
}

static const struct source_ops failing_ops = {
    .read = failing_read, .close = failing_close, .state = failing_state};

static void hear(void *ctx, const char *name, enum source_error what, int err, uint64_t offset)
{
    ck_assert_ptr_eq(ctx, &failing_reads);
    ck_assert_int_eq(what, SOURCE_RETRIED);
    ck_assert_int_eq(err, -EIO);
    ck_assert_uint_eq(offset, 3);
    strcpy(failed_name, name);
}

START_TEST(each_member_is_retried_by_itself)
{
    struct source *bad = calloc(1, sizeof(*bad)), *both[2], *concat;
    uint8_t byte;
    *bad =
        (struct source){.ops = &failing_ops, .size_bytes = 10, .name = strdup("bad"), .fd = -1};
    both[1] = bad;
    ck_assert_int_eq(source_retry(&both[1]), 0);
    ck_assert_int_eq(source_open(paths[0], NULL, &both[0]), 0);
    ck_assert_int_eq(source_concat(both, 2, true, "all", &concat), 0);
    ck_assert_uint_eq(source_progress_ns(concat), 5);
    ck_assert(!source_is_memory(concat));
    source_on_error(concat, hear, &failing_reads);
    source_set_retries(concat, 1);
    ck_assert_int_eq(source_read(concat, &byte, 1, source_concat_base(concat, 1) + 3), -EIO);
    ck_assert_uint_eq(failing_reads, 2);
    ck_assert_str_eq(failed_name, "bad");
    ck_assert_int_eq(source_read(concat, &byte, 1, 3), 0);
    ck_assert_uint_eq(byte, expected(3));
    ck_assert_uint_eq(source_error_counts(concat).failed, 1);
    ck_assert_uint_eq(source_error_counts(concat).retried, 1);
    source_cancel_retries(concat);
    ck_assert_int_eq(source_read(concat, &byte, 1, source_concat_base(concat, 1) + 3), -EIO);
    ck_assert_uint_eq(failing_reads, 3);
    source_on_error(concat, NULL, NULL);
    source_close(concat);
}
END_TEST

START_TEST(more_bytes_than_a_file_can_have_are_refused)
{
    struct source big = {.ops = &failing_ops, .size_bytes = INT64_MAX - 5, .fd = -1};
    struct source *both[] = {&big, &big}, *concat = NULL;
    ck_assert_int_eq(source_concat(both, 2, true, "all", &concat), -EFBIG);
    ck_assert_ptr_null(concat);
    ck_assert_uint_eq(source_concat_next(UINT64_MAX), UINT64_MAX);
    ck_assert_uint_eq(source_concat_next(0), 0);
    ck_assert_uint_eq(source_concat_next(1), ALIGN);
    ck_assert_uint_eq(source_concat_next(ALIGN), ALIGN);
}
END_TEST

START_TEST(nothing_but_empty_members_is_empty)
{
    struct source *both[2], *concat;
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(source_from_memory("", 0, "empty", &both[i]), 0);
    ck_assert_int_eq(source_concat(both, 2, true, "all", &concat), 0);
    ck_assert_uint_eq(source_size(concat), 0);
    ck_assert(!source_can_map(concat));
    ck_assert_int_eq(source_read(concat, NULL, 0, 0), 0);
    ck_assert(source_is_whole(concat));
    ck_assert(source_is_memory(concat));
    source_close(concat);
}
END_TEST

#define MANY 1000u

START_TEST(a_thousand_members)
{
    static struct source *many[MANY];
    struct source *concat;
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (unsigned i = 0; i < MANY; i++) {
        char text[16];
        int len = snprintf(text, sizeof(text), "member %u", i);
        ck_assert_int_eq(source_from_memory(text, (size_t)len, text, &many[i]), 0);
    }
    ck_assert_int_eq(source_concat(many, MANY, true, "all", &concat), 0);
    for (unsigned i = 0; i < MANY; i++) {
        char text[16];
        uint64_t base = source_concat_base(concat, i), offset = base + 2;
        int len = snprintf(text, sizeof(text), "member %u", i);
        const uint8_t *map = source_map_at(concat, base, (uint64_t)len);
        ck_assert_ptr_nonnull(map);
        ck_assert_mem_eq(map, text, (size_t)len);
        ck_assert_str_eq(source_name(source_at(concat, &offset)), text);
        ck_assert_uint_eq(offset, 2);
    }
    source_close(concat);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("source_concat");
    TCase *tcase = tcase_create("source_concat");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, members_lie_behind_each_other);
    tcase_add_test(tcase, a_byte_has_its_member);
    tcase_add_test(tcase, any_range_is_read);
    tcase_add_test(tcase, any_range_is_read_into_several_buffers);
    tcase_add_test(tcase, nothing_is_read_beyond_the_end);
    tcase_add_test(tcase, each_member_is_mapped);
    tcase_add_test(tcase, what_lies_in_no_single_member_is_not_mapped);
    tcase_add_test(tcase, a_slice_is_mapped_wherever_it_begins);
    tcase_add_test(tcase, one_that_is_not_mapped_keeps_all_from_being_mapped);
    tcase_add_test(tcase, a_cut_member_fails_alone);
    tcase_add_test(tcase, lost_pages_of_one_member_are_noticed);
    tcase_add_test(tcase, a_changed_member_is_noticed);
    tcase_add_test(tcase, its_identity_is_that_of_all);
    tcase_add_test(tcase, advice_goes_to_each);
    tcase_add_test(tcase, each_member_is_retried_by_itself);
    tcase_add_test(tcase, more_bytes_than_a_file_can_have_are_refused);
    tcase_add_test(tcase, nothing_but_empty_members_is_empty);
    tcase_add_test(tcase, a_thousand_members);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
