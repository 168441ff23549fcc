/* Which files near those that are read are fetched, and until when. */
#include "index_helper.h"
#include "nearby.h"
#include "suite.h"

#define MS UINT64_C(1000000)
#define CHUNK (1u << NEARBY_CHUNK_BITS)
#define FILES (100u * CHUNK)
#define FIRST_FILE 2u /* after the root and the directory */
#define PLENTY UINT64_MAX

static struct index *index_of_files;
static struct nearby nearby;

/* A mount that only notes what is fetched. */
static struct {
    struct mount_readers readers;
    uint64_t file_ns, file_reads; /* go by with each file */
    int error;                    /* of each file */
    bool fetched[FILES];
    unsigned files, waits, lists;
    uint32_t listed; /* entries up to here */
} mount;

static bool mount_open(void *ctx, uint32_t directory, uint32_t skip)
{
    (void)ctx;
    ck_assert_uint_le(directory, 1);
    mount.listed = skip;
    return true;
}

static uint32_t mount_list(void *ctx, size_t buffer_bytes)
{
    (void)ctx;
    ck_assert_uint_le(buffer_bytes, MOUNT_FETCHER_LIST_BYTES);
    mount.lists++;
    mount.listed += 100;
    return 100;
}

static int mount_read(void *ctx, const char *name, uint64_t size_bytes, bool wait)
{
    unsigned number = (unsigned)strtoul(name, NULL, 10);

    (void)ctx;
    if (mount.error)
        return mount.error;
    ck_assert(!mount.fetched[number]);
    ck_assert_uint_gt(size_bytes, 0);
    mount.fetched[number] = true;
    mount.files++;
    mount.waits += wait;
    mount.readers.now_ns += mount.file_ns;
    mount.readers.cold_reads += mount.file_reads;
    return 0;
}

static void mount_close(void *ctx)
{
    (void)ctx;
}

static struct mount_readers mount_look(void *ctx)
{
    (void)ctx;
    return mount.readers;
}

static const struct mount_fetcher fetcher = {
    .open = mount_open,
    .list = mount_list,
    .read = mount_read,
    .close = mount_close,
    .readers = mount_look,
};

/* Files of a directory; `size` of each. */
static struct index *make_index(uint64_t size)
{
    struct builder *b = new_builder();
    char path[16];

    add_dir(b, "d", 0755);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "d/%05u", i);
        add_file(b, path, 512, size);
    }
    return build(b, &tar_header);
}

static void cover(struct index *index)
{
    void *shared = calloc(1, nearby_bytes(index));

    ck_assert_ptr_nonnull(shared);
    nearby_init(&nearby, index, shared);
    memset(&mount, 0, sizeof(mount));
    mount.readers.cold_reads = 1u << 20;
}

static void make_files(void)
{
    index_of_files = make_index(1000);
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
    free(nearby.at);
}

static enum mount_fetch run(uint64_t allowance)
{
    return nearby_run(&nearby, allowance, &fetcher, NULL);
}

/* Exactly the files of the chunks [from, to) were fetched. */
static void check_fetched(size_t from, size_t to)
{
    for (unsigned i = 0; i < FILES; i++) {
        size_t chunk = (i + FIRST_FILE) / CHUNK;
        ck_assert_msg(mount.fetched[i] == (chunk >= from && chunk < to), "file %u", i);
    }
}

START_TEST(at_first_nothing_is_wanted)
{
    ck_assert_uint_eq(nearby.chunks, 101);
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(0, 0);
}
END_TEST

START_TEST(a_read_wants_its_chunk_and_the_next_four)
{
    nearby_saw_read(&nearby, 60 * CHUNK + 7);
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(60, 65);
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED); /* once */
    ck_assert_uint_eq(mount.files, 5 * CHUNK);
}
END_TEST

START_TEST(the_last_chunk_has_none_behind_it)
{
    nearby_saw_read(&nearby, 100 * CHUNK);
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(100, 101);
    ck_assert_uint_eq(mount.files, FIRST_FILE);
}
END_TEST

START_TEST(what_another_process_has_taken_is_not_wanted)
{
    nearby_saw_read(&nearby, 60 * CHUNK);
    nearby.taken[0] |= UINT64_C(1) << 60;
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(61, 65);
}
END_TEST

START_TEST(when_all_is_fetched_it_is_done)
{
    for (uint32_t i = 0; i < nearby.chunks; i++)
        nearby_saw_read(&nearby, i * CHUNK);
    ck_assert_uint_eq(nearby.listed[0], 0);
    ck_assert_uint_eq(nearby.taken[0], 0);
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_DONE);
    check_fetched(0, 101);
}
END_TEST

START_TEST(what_the_kernel_has_is_not_listed_again)
{
    nearby_saw_read(&nearby, 10 * CHUNK);
    nearby_saw_listing(&nearby, 10 * CHUNK, 12 * CHUNK - 1); /* the second one not to its end */
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(10, 15);
    ck_assert_uint_eq(mount.lists, 4 * 3);
    ck_assert_uint_ge(mount.listed + FIRST_FILE, 15 * CHUNK);
}
END_TEST

START_TEST(it_pauses_when_readers_do)
{
    nearby_saw_read(&nearby, 0);
    mount.file_ns = 20 * MS / 32;
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.files, 64); /* after 20 ms it went on, after 40 no more */
    ck_assert_uint_eq(mount.waits, 2);
}
END_TEST

START_TEST(while_they_read_it_goes_on)
{
    nearby_saw_read(&nearby, 0);
    mount.file_ns = 20 * MS / 32;
    mount.file_reads = 1;
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(0, 5);
}
END_TEST

START_TEST(it_fetches_sixteen_files_a_read_at_most)
{
    nearby_saw_read(&nearby, 0);
    mount.readers.cold_reads = 8;
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.files, 128 + 32); /* looked at after each 32 */
}
END_TEST

START_TEST(at_the_end_of_its_allowance_a_chunk_is_given_back)
{
    nearby_saw_read(&nearby, 60 * CHUNK);
    ck_assert_int_eq(run(100000), MOUNT_FETCH_FULL);
    ck_assert_uint_eq(mount.files, 64); /* at 2,200 bytes each, looked at after each 32 */
    ck_assert_uint_eq(nearby.at->bytes, 64000);
    memset(mount.fetched, 0, sizeof(mount.fetched));
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    check_fetched(60, 65);
}
END_TEST

START_TEST(at_the_end_of_the_mount_it_is_done)
{
    nearby_saw_read(&nearby, 60 * CHUNK);
    mount.error = -ENOTCONN;
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_DONE);
    ck_assert_uint_eq(nearby.at->files, 0);
}
END_TEST

START_TEST(a_file_that_cannot_be_opened_is_left_to_its_reader)
{
    nearby_saw_read(&nearby, 60 * CHUNK);
    mount.error = -EACCES;
    ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(nearby.at->files, 0);
}
END_TEST

START_TEST(a_megabyte_is_waited_for)
{
    struct index *index = make_index(400000);

    teardown();
    cover(index);
    nearby_saw_read(&nearby, 100 * CHUNK);
    nearby_saw_read(&nearby, 99 * CHUNK);
    run(PLENTY);
    ck_assert_uint_eq(mount.files, CHUNK + FIRST_FILE);
    ck_assert_uint_eq(mount.waits, (CHUNK + FIRST_FILE) / 3);
    index_close(index);
}
END_TEST

START_TEST(large_and_empty_files_are_not_wanted)
{
    static const uint64_t sizes[] = {0, (4u << 20) + 1};

    for (unsigned i = 0; i < 2; i++) {
        struct index *index = make_index(sizes[i]);
        teardown();
        cover(index);
        nearby_saw_read(&nearby, 60 * CHUNK);
        ck_assert_int_eq(run(PLENTY), MOUNT_FETCH_PAUSED);
        ck_assert_uint_eq(mount.files, 0);
        index_close(index);
    }
}
END_TEST

START_TEST(the_allowance_is_a_part_of_the_free_memory)
{
    const uint64_t mib = 1u << 20;

    ck_assert_uint_eq(nearby_allowance(&nearby, 1000 * mib, 400 * mib), 200 * mib);
    ck_assert_uint_eq(nearby_allowance(&nearby, 100 * mib, 400 * mib), 100 * mib);
    ck_assert_uint_eq(nearby_allowance(&nearby, 1000 * mib, 64 * mib - 2), 0);
    nearby.at->bytes = 90 * mib;
    ck_assert_uint_eq(nearby_allowance(&nearby, 100 * mib, 400 * mib), 10 * mib);
    nearby.at->bytes = 101 * mib;
    ck_assert_uint_eq(nearby_allowance(&nearby, 100 * mib, 400 * mib), 0);
    ck_assert_uint_eq(nearby_reads_needed(&nearby), NEARBY_READS_FIRST);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nearby");
    TCase *tc = tcase_create("nearby");
    tcase_add_unchecked_fixture(tc, make_files, free_files);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, at_first_nothing_is_wanted);
    tcase_add_test(tc, a_read_wants_its_chunk_and_the_next_four);
    tcase_add_test(tc, the_last_chunk_has_none_behind_it);
    tcase_add_test(tc, what_another_process_has_taken_is_not_wanted);
    tcase_add_test(tc, when_all_is_fetched_it_is_done);
    tcase_add_test(tc, what_the_kernel_has_is_not_listed_again);
    tcase_add_test(tc, it_pauses_when_readers_do);
    tcase_add_test(tc, while_they_read_it_goes_on);
    tcase_add_test(tc, it_fetches_sixteen_files_a_read_at_most);
    tcase_add_test(tc, at_the_end_of_its_allowance_a_chunk_is_given_back);
    tcase_add_test(tc, at_the_end_of_the_mount_it_is_done);
    tcase_add_test(tc, a_file_that_cannot_be_opened_is_left_to_its_reader);
    tcase_add_test(tc, a_megabyte_is_waited_for);
    tcase_add_test(tc, large_and_empty_files_are_not_wanted);
    tcase_add_test(tc, the_allowance_is_a_part_of_the_free_memory);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
