/* Which files near those that are read are fetched, and until when. */
#include <errno.h>

#include "index_helper.h"
#include "chooser.h"
#include "suite.h"

#define MS UINT64_C(1000000)
#define CHUNK (1u << NEARBY_CHUNK_BITS)
#define FILES (100u * CHUNK)
#define MANY (150u * CHUNK)
#define FIRST_FILE 2u /* after the root and the directory */

static struct index *index_of_files;
static struct ahead_options options;
static void *nearby;
static uint64_t now_ns, room;
static unsigned rooms; /* how often it was asked for */

/* A mount that only notes what is fetched. */
static struct {
    uint64_t file_ns, file_reads; /* go by with each file */
    int error;                    /* of each batch */
    bool fetched[MANY];
    unsigned files, batches, lists;
    uint32_t listed; /* entries up to here */
} mount;

static uint64_t free_room(void *ctx)
{
    (void)ctx;
    rooms++;
    return room;
}

static void saw_read(uint32_t position)
{
    const struct observation o = {.time_ns = now_ns, .position = position, .len = 4096};

    ck_assert(!nearby_chooser.observe(nearby, &o, false));
}

/* So many more that tell nothing new. */
static void saw_reads(uint64_t count, uint32_t position)
{
    while (count-- > 0)
        saw_read(position);
}

static void saw_listing(uint32_t from, uint32_t to, bool names_only)
{
    const struct observation o = {.time_ns = now_ns,
                                  .kind = OBSERVED_LISTING,
                                  .position = 1,
                                  .offset = from,
                                  .len = to - from,
                                  .names_only = names_only};

    ck_assert(nearby_chooser.observe(nearby, &o, true));
}

static void fetch(const struct reader_want *want, uint32_t *position)
{
    if (want->position <= 1) {
        mount.lists++;
        mount.listed = (uint32_t)(want->offset + want->len);
        return;
    }
    unsigned number = want->position - FIRST_FILE;
    ck_assert(!mount.fetched[number]);
    ck_assert_uint_gt(want->len, 0);
    mount.fetched[number] = true;
    mount.files++;
    now_ns += mount.file_ns;
    saw_reads(mount.file_reads, *position = want->position);
}

/* All that is wanted for now. */
static void run(void)
{
    struct reader_want wants[64];
    uint32_t position = 0;
    size_t n;

    while (!nearby_chooser.is_lost(nearby, now_ns) &&
           (n = nearby_chooser.take(nearby, wants, 64)) > 0) {
        mount.batches++;
        for (size_t i = 0; i < n; i++)
            fetch(&wants[i], &position);
        nearby_chooser.finished(nearby, wants, n, mount.error);
    }
}

/* Files of a directory; `size` of each. */
static struct index *make_index(unsigned files, uint64_t size)
{
    struct builder *b = new_builder();
    char path[16];

    add_dir(b, "d", 0755);
    for (unsigned i = 0; i < files; i++) {
        snprintf(path, sizeof(path), "d/%05u", i);
        add_file(b, path, 512, size);
    }
    return build(b, &tar_header);
}

static void cover(struct index *index)
{
    options = (struct ahead_options){
        .index = index, .nearby_bytes = UINT64_MAX, .room_bytes = free_room};
    now_ns = 1000 * MS;
    room = UINT64_MAX;
    rooms = 0;
    memset(&mount, 0, sizeof(mount));
    ck_assert_int_eq(nearby_chooser.make(&options, &nearby), 0);
}

static void make_files(void)
{
    index_of_files = make_index(FILES, 1000);
}

static void free_files(void)
{
    index_close(index_of_files);
}

static void setup(void)
{
    cover(index_of_files);
}

static void teardown(void)
{
    nearby_chooser.free(nearby);
}

/* Exactly the files of the chunks [from, to) were fetched. */
static void check_fetched(size_t from, size_t to)
{
    for (unsigned i = 0; i < FILES; i++) {
        size_t chunk = (i + FIRST_FILE) / CHUNK;
        ck_assert_msg(mount.fetched[i] == (chunk >= from && chunk < to), "file %u", i);
    }
}

START_TEST(a_job_that_reads_little_pays_nothing)
{
    saw_reads(NEARBY_READS_FIRST - 1, 60 * CHUNK);
    run();
    ck_assert_uint_eq(mount.batches, 0);
    ck_assert_uint_eq(rooms, 0);
    saw_read(60 * CHUNK + 7);
    run();
    check_fetched(60, 65);
}
END_TEST

START_TEST(a_read_wants_its_chunk_and_the_next_four)
{
    saw_reads(NEARBY_READS_FIRST, 60 * CHUNK + 7);
    run();
    check_fetched(60, 65);
    run(); /* once */
    ck_assert_uint_eq(mount.files, 5 * CHUNK);
    saw_read(20 * CHUNK);
    run();
    ck_assert_uint_eq(mount.files, 10 * CHUNK);
}
END_TEST

START_TEST(the_last_chunk_has_none_behind_it)
{
    saw_reads(NEARBY_READS_FIRST, 100 * CHUNK);
    run();
    check_fetched(100, 101);
    ck_assert_uint_eq(mount.files, FIRST_FILE);
}
END_TEST

START_TEST(fetchers_work_on_a_chunk_each)
{
    struct reader_want one[64], two[64], none[64];
    size_t n, m;

    saw_reads(NEARBY_READS_FIRST, 60 * CHUNK);
    ck_assert(!nearby_chooser.is_lost(nearby, now_ns));
    n = nearby_chooser.take(nearby, one, 64);
    m = nearby_chooser.take(nearby, two, 64);
    ck_assert_uint_eq(n, 33); /* names of its chunk, and files */
    ck_assert_uint_eq(m, 33);
    ck_assert_uint_eq(one[0].offset + FIRST_FILE, 60 * CHUNK);
    ck_assert_uint_eq(two[0].offset + FIRST_FILE, 61 * CHUNK);
    ck_assert_uint_eq(two[0].len, CHUNK);
    ck_assert_uint_eq(nearby_chooser.take(nearby, none, 64), 0);
    nearby_chooser.finished(nearby, two, m, 0);
    ck_assert_uint_eq(nearby_chooser.take(nearby, two, 64), 32);
}
END_TEST

START_TEST(all_is_fetched_once)
{
    saw_reads(NEARBY_READS_FIRST, 0);
    for (uint32_t i = 0; i <= 100; i++)
        saw_read(i * CHUNK);
    run();
    check_fetched(0, 101);
    run();
    ck_assert_uint_eq(mount.files, FILES);
}
END_TEST

START_TEST(what_the_kernel_has_is_not_listed_again)
{
    saw_reads(NEARBY_READS_FIRST, 10 * CHUNK);
    saw_listing(10 * CHUNK, 12 * CHUNK - 1, false); /* the second one not to its end */
    saw_listing(12 * CHUNK, 13 * CHUNK, true);      /* names do not tell what a look-up does */
    run();
    check_fetched(10, 15);
    ck_assert_uint_eq(mount.lists, 4);
    ck_assert_uint_eq(mount.listed + FIRST_FILE, 15 * CHUNK);
}
END_TEST

START_TEST(it_pauses_when_readers_do)
{
    saw_reads(NEARBY_READS_FIRST, 2 * CHUNK);
    mount.file_ns = 20 * MS / 32;
    run();
    ck_assert_uint_eq(mount.files, 64); /* after 20 ms it went on, after 40 no more */
    mount.file_ns = 0;
    saw_reads(NEARBY_READS_AGAIN - 1, 2 * CHUNK);
    run();
    ck_assert_uint_eq(mount.files, 64);
    saw_read(2 * CHUNK);
    run();
    check_fetched(2, 7);
}
END_TEST

START_TEST(while_they_read_it_goes_on)
{
    saw_reads(NEARBY_READS_FIRST, 2 * CHUNK);
    mount.file_ns = 20 * MS / 32;
    mount.file_reads = 1;
    run();
    ck_assert_uint_gt(mount.files, 5 * CHUNK);
}
END_TEST

START_TEST(it_fetches_sixteen_files_a_read_at_most)
{
    struct index *index = make_index(MANY, 1000);

    teardown();
    cover(index);
    saw_reads(NEARBY_READS_FIRST - MANY / CHUNK, 0);
    for (uint32_t i = 0; i < MANY / CHUNK; i++)
        saw_read(i * CHUNK);
    run();
    ck_assert_uint_eq(mount.files, 16 * NEARBY_READS_FIRST + 30); /* looked at after each 32 */
    index_close(index);
}
END_TEST

START_TEST(its_allowance_is_a_part_of_the_free_memory)
{
    room = 64u << 20;
    options.nearby_bytes = 64000;
    saw_reads(NEARBY_READS_FIRST, 60 * CHUNK);
    run();
    ck_assert_uint_eq(mount.files, 32); /* at 2,200 bytes each, looked at after each 32 */
    options.nearby_bytes = UINT64_MAX;
    saw_reads(NEARBY_READS_AGAIN, 60 * CHUNK);
    run();
    check_fetched(60, 65); /* it went on where it was */
    ck_assert_uint_eq(rooms, 2);
}
END_TEST

START_TEST(where_too_little_memory_is_free_it_waits_for_long)
{
    room = (64u << 20) - 2;
    saw_reads(NEARBY_READS_FIRST, 60 * CHUNK);
    run();
    room = UINT64_MAX;
    saw_reads(NEARBY_READS_FIRST - 1, 60 * CHUNK);
    run();
    ck_assert_uint_eq(mount.files, 0);
    ck_assert_uint_eq(rooms, 1);
    saw_read(60 * CHUNK);
    run();
    check_fetched(60, 65);
}
END_TEST

START_TEST(at_the_end_of_the_mount_it_is_done)
{
    saw_reads(NEARBY_READS_FIRST, 60 * CHUNK);
    mount.error = -ENOTCONN;
    run();
    ck_assert_uint_eq(mount.batches, 1);
    saw_reads(NEARBY_READS_FIRST, 70 * CHUNK);
    run();
    ck_assert_uint_eq(mount.batches, 1);
}
END_TEST

START_TEST(a_megabyte_is_a_batch)
{
    struct index *index = make_index(FILES, 400000);

    teardown();
    cover(index);
    saw_reads(NEARBY_READS_FIRST, 99 * CHUNK);
    run();
    ck_assert_uint_eq(mount.files, CHUNK + FIRST_FILE);
    ck_assert_uint_eq(mount.batches, (CHUNK + 2) / 3 + 1);
    index_close(index);
}
END_TEST

START_TEST(large_and_empty_files_are_not_wanted)
{
    static const uint64_t sizes[] = {0, (4u << 20) + 1};

    for (unsigned i = 0; i < 2; i++) {
        struct index *index = make_index(FILES, sizes[i]);
        teardown();
        cover(index);
        saw_reads(NEARBY_READS_FIRST, 60 * CHUNK);
        run();
        ck_assert_uint_eq(mount.files, 0);
        index_close(index);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nearby");
    TCase *tc = tcase_create("nearby");
    tcase_add_unchecked_fixture(tc, make_files, free_files);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_job_that_reads_little_pays_nothing);
    tcase_add_test(tc, a_read_wants_its_chunk_and_the_next_four);
    tcase_add_test(tc, the_last_chunk_has_none_behind_it);
    tcase_add_test(tc, fetchers_work_on_a_chunk_each);
    tcase_add_test(tc, all_is_fetched_once);
    tcase_add_test(tc, what_the_kernel_has_is_not_listed_again);
    tcase_add_test(tc, it_pauses_when_readers_do);
    tcase_add_test(tc, while_they_read_it_goes_on);
    tcase_add_test(tc, it_fetches_sixteen_files_a_read_at_most);
    tcase_add_test(tc, its_allowance_is_a_part_of_the_free_memory);
    tcase_add_test(tc, where_too_little_memory_is_free_it_waits_for_long);
    tcase_add_test(tc, at_the_end_of_the_mount_it_is_done);
    tcase_add_test(tc, a_megabyte_is_a_batch);
    tcase_add_test(tc, large_and_empty_files_are_not_wanted);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
