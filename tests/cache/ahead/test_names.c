/* Which names are listed before readers look them up, and when. */
#include <errno.h>

#include "index_helper.h"
#include "chooser.h"
#include "suite.h"

#define MS UINT64_C(1000000)
#define CHUNK (1u << NAMES_CHUNK_BITS)
#define CHUNKS 40u
#define FILES (CHUNKS * CHUNK)
#define FIRST_FILE 2u /* after the root and the directory */

static struct index *index_of_files;
static struct ahead_options options;
static void *names;
static uint64_t now_ns;

static uint64_t the_time(void)
{
    return now_ns;
}

/* Entries that were listed, and how often. */
static uint8_t listed[FILES + 64];
static unsigned batches;

static void begin(struct index *index)
{
    if (names)
        names_chooser.free(names);
    index_close(index_of_files);
    index_of_files = index;
    options = (struct ahead_options){.index = index};
    now_ns = 1000 * MS;
    memset(listed, 0, sizeof(listed));
    batches = 0;
    ck_assert_int_eq(names_chooser.make(&options, &names), 0);
}

/* `folders` directories of `files` files each. */
static void make_folders(unsigned folders, unsigned files)
{
    struct builder *b = new_builder();
    char path[32];

    for (unsigned d = 0; d < folders; d++) {
        snprintf(path, sizeof(path), "d%03u", d);
        add_dir(b, path, 0755);
        for (unsigned i = 0; i < files; i++) {
            snprintf(path, sizeof(path), "d%03u/%05u", d, i);
            add_file(b, path, 512, 10);
        }
    }
    begin(build(b, &tar_header));
}

static void make_files(void)
{
    make_folders(1, FILES);
}

static void teardown(void)
{
    names_chooser.free(names);
    names = NULL;
    index_close(index_of_files);
    index_of_files = NULL;
}

static void look_up(uint32_t position)
{
    const struct observation o = {
        .time_ns = now_ns, .kind = OBSERVED_LOOKUP, .position = position};

    ck_assert(names_chooser.observe(names, &o, true));
}

static void look_up_times(unsigned count, uint32_t position)
{
    while (count-- > 0)
        look_up(position);
}

static void list(uint32_t from, uint32_t to, bool names_only)
{
    const struct observation o = {.time_ns = now_ns,
                                  .kind = OBSERVED_LISTING,
                                  .position = 1,
                                  .offset = from,
                                  .len = to - from,
                                  .names_only = names_only};

    ck_assert(!names_chooser.observe(names, &o, false));
}

/* All that is wanted for now. Returns how many entries. */
static unsigned run(int result)
{
    struct reader_want wants[64];
    uint32_t first, count;
    unsigned entries = 0;
    size_t n;

    while (!names_chooser.is_lost(names, now_ns) &&
           (n = names_chooser.take(names, wants, 64)) > 0) {
        batches++;
        for (size_t i = 0; i < n; i++) {
            ck_assert_int_eq(index_children(index_of_files, wants[i].position, &first, &count),
                             0);
            ck_assert_uint_le(wants[i].offset + wants[i].len, count);
            for (uint64_t at = first + wants[i].offset, k = 0; k < wants[i].len; k++)
                ck_assert_uint_eq(listed[at + k]++, 0);
            entries += (unsigned)wants[i].len;
        }
        names_chooser.finished(names, wants, n, result);
    }
    return entries;
}

START_TEST(few_look_ups_list_nothing)
{
    look_up_times(NAMES_FIRST - 1, FIRST_FILE);
    ck_assert_uint_eq(run(0), 0);
    look_up(FIRST_FILE);
    ck_assert_uint_gt(run(0), 0);
}
END_TEST

START_TEST(a_look_up_pays_for_a_part_of_a_chunk)
{
    look_up_times(NAMES_FIRST, 20 * CHUNK);
    ck_assert_uint_eq(run(0), NAMES_FIRST * NAMES_PER_LOOKUP);
    look_up_times(CHUNK / NAMES_PER_LOOKUP - 1, 20 * CHUNK);
    ck_assert_uint_eq(run(0), 0);
    look_up(20 * CHUNK);
    ck_assert_uint_eq(run(0), CHUNK);
}
END_TEST

START_TEST(the_chunk_looked_at_last_comes_first_and_then_the_rest_in_order)
{
    look_up_times(NAMES_FIRST - 1, FIRST_FILE);
    look_up(20 * CHUNK + 7);
    ck_assert_uint_eq(run(0), NAMES_FIRST * NAMES_PER_LOOKUP);
    for (uint32_t i = 0; i < FILES; i++)
        ck_assert_uint_eq(listed[i],
                          i >= 20 * CHUNK && i < 20 * CHUNK + NAMES_FIRST * NAMES_PER_LOOKUP);
    look_up_times(CHUNK / NAMES_PER_LOOKUP, 3 * CHUNK);
    ck_assert_uint_eq(run(0), CHUNK);
    ck_assert_uint_eq(listed[3 * CHUNK], 1);
}
END_TEST

START_TEST(all_is_listed_once_and_then_nothing)
{
    for (unsigned i = 0; i < 2 * FILES / NAMES_PER_LOOKUP; i++) {
        look_up(FIRST_FILE + i * 37 % FILES);
        run(0);
    }
    for (uint32_t i = FIRST_FILE; i < FILES + FIRST_FILE; i++)
        ck_assert_uint_eq(listed[i], 1);
    unsigned all = batches;
    look_up_times(FILES, FIRST_FILE);
    ck_assert_uint_eq(run(0), 0);
    ck_assert_uint_eq(batches, all);
}
END_TEST

START_TEST(what_a_reader_lists_is_not_listed_again)
{
    list(FIRST_FILE, FIRST_FILE + FILES / 2, false);
    look_up_times(NAMES_FIRST, FIRST_FILE + FILES / 2 - CHUNK);
    ck_assert_uint_gt(run(0), 0);
    for (uint32_t i = 0; i < FILES / 2 / CHUNK * CHUNK; i++)
        ck_assert_uint_eq(listed[i], 0);
}
END_TEST

START_TEST(it_ends_when_readers_rest)
{
    look_up_times(2 * NAMES_FIRST, 20 * CHUNK);
    now_ns += 301 * MS;
    ck_assert_uint_eq(run(0), 0);
    look_up_times(NAMES_FIRST - 1, 20 * CHUNK); /* it begins anew */
    ck_assert_uint_eq(run(0), 0);
    look_up(20 * CHUNK);
    ck_assert_uint_eq(run(0), NAMES_FIRST * NAMES_PER_LOOKUP);
}
END_TEST

START_TEST(it_ends_for_good_without_attributes_or_without_a_mount)
{
    look_up_times(NAMES_FIRST, FIRST_FILE);
    list(FIRST_FILE, FIRST_FILE + 10, true);
    ck_assert_uint_eq(run(0), 0);
    make_files();
    look_up_times(NAMES_FIRST, 20 * CHUNK);
    ck_assert_uint_eq(run(-ENOTCONN), CHUNK);
    look_up_times(NAMES_FIRST, FIRST_FILE);
    ck_assert_uint_eq(run(0), 0);
}
END_TEST

/* Nobody looks a name up: all of them come, once the program has had its time to start. */
static void make_all_names(void)
{
    make_files();
    names_chooser.free(names);
    options.all_names = true;
    options.now_ns = the_time;
    ck_assert_int_eq(names_chooser.make(&options, &names), 0);
}

START_TEST(all_is_listed_while_a_program_starts)
{
    make_all_names();
    now_ns += NAMES_BEGIN_NS - 1;
    ck_assert_uint_eq(run(0), 0);
    now_ns++;
    look_up_times(NAMES_FIRST - 1, FIRST_FILE);
    ck_assert_uint_eq(run(0), FILES);
    for (uint32_t i = FIRST_FILE; i < FILES + FIRST_FILE; i++)
        ck_assert_uint_eq(listed[i], 1);
    make_files();
    now_ns += NAMES_BEGIN_NS;
    ck_assert_uint_eq(run(0), 0);
}
END_TEST

START_TEST(what_our_own_process_lists_is_no_sign_of_a_reader)
{
    const struct observation own = {.time_ns = now_ns,
                                    .kind = OBSERVED_LISTING,
                                    .position = 1,
                                    .offset = FIRST_FILE,
                                    .len = CHUNK,
                                    .own = true};

    make_all_names();
    names_chooser.observe(names, &own, false);
    now_ns += NAMES_BEGIN_NS;
    ck_assert_uint_gt(run(0), FILES - 2 * CHUNK);
}
END_TEST

START_TEST(a_program_that_has_begun_gets_what_it_pays_for)
{
    make_all_names();
    look_up_times(NAMES_FIRST, 20 * CHUNK);
    now_ns += NAMES_BEGIN_NS;
    ck_assert_uint_eq(run(0), NAMES_FIRST * NAMES_PER_LOOKUP);
    make_all_names();
    list(FIRST_FILE, FIRST_FILE + 10, false);
    now_ns += NAMES_BEGIN_NS;
    ck_assert_uint_eq(run(0), 0);
}
END_TEST

/* While it is listed, umount(8) does not end the mount. */
START_TEST(what_nobody_asked_for_is_listed_for_a_moment_only)
{
    struct reader_want wants[64];

    make_all_names();
    now_ns += NAMES_BEGIN_NS;
    ck_assert(!names_chooser.is_lost(names, now_ns));
    ck_assert_uint_gt(names_chooser.take(names, wants, 64), 0);
    now_ns += 2000 * MS;
    ck_assert(!names_chooser.is_lost(names, now_ns));
    now_ns++;
    ck_assert_uint_eq(run(0), 0);
}
END_TEST

START_TEST(small_folders_are_passed_over)
{
    unsigned entries = 0;

    make_folders(800, 5);
    for (unsigned i = 0; i < 4000; i++) {
        look_up(801 + i);
        entries += run(0);
    }
    ck_assert_uint_le(entries, 800); /* the folders themselves are entries of the root */
    for (unsigned i = 0; i < 4000; i++)
        ck_assert_uint_eq(listed[801 + i], 0);
    make_folders(100, 16);
    look_up_times(100, 101);
    run(0);
    for (unsigned i = 0; i < 1600; i++)
        ck_assert_uint_eq(listed[101 + i], 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("names");
    TCase *tc = tcase_create("names");
    tcase_add_checked_fixture(tc, make_files, teardown);
    tcase_add_test(tc, few_look_ups_list_nothing);
    tcase_add_test(tc, a_look_up_pays_for_a_part_of_a_chunk);
    tcase_add_test(tc, the_chunk_looked_at_last_comes_first_and_then_the_rest_in_order);
    tcase_add_test(tc, all_is_listed_once_and_then_nothing);
    tcase_add_test(tc, what_a_reader_lists_is_not_listed_again);
    tcase_add_test(tc, it_ends_when_readers_rest);
    tcase_add_test(tc, it_ends_for_good_without_attributes_or_without_a_mount);
    tcase_add_test(tc, all_is_listed_while_a_program_starts);
    tcase_add_test(tc, what_our_own_process_lists_is_no_sign_of_a_reader);
    tcase_add_test(tc, a_program_that_has_begun_gets_what_it_pays_for);
    tcase_add_test(tc, what_nobody_asked_for_is_listed_for_a_moment_only);
    tcase_add_test(tc, small_folders_are_passed_over);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
