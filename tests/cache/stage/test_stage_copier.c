/*
 * The copier and a stream's retries: what they do about storage that fails. Nothing sleeps, as
 * time passes by pauses alone.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "source_ops.h"
#include "stage_job.h"
#include "stage_private.h"
#include "suite.h"

#define CHUNKS 70u
#define LAST_BYTES 1000u
#define BYTES ((CHUNKS - 1) * (uint64_t)STAGE_CHUNK_BYTES + LAST_BYTES)
#define SECOND UINT64_C(1000000000)

static char folder[64];
static struct source *source;
static struct stage *stage;
static _Atomic uint64_t clock_ns;
static unsigned notes;
static uint64_t job_chunk; /* while it is read, the job's other nodes bring chunks again */
static uint64_t read_ns[CHUNKS]; /* when each chunk was last read */

/* Reads of one chunk fail, or of all of them. */
static struct failing {
    uint64_t first, end; /* chunks */
    int err;
    _Atomic unsigned most; /* so many reads fail; the next ones don't */
    _Atomic unsigned reads;
} failing;

static int failing_read(const struct source *s, struct source_cursor *cursor)
{
    uint64_t chunk = cursor->offset / STAGE_CHUNK_BYTES;
    read_ns[chunk] = atomic_load(&clock_ns);
    if (chunk == job_chunk)
        atomic_store(&stage->state->job_ns, read_ns[chunk]);
    bool is_meant = chunk >= failing.first && chunk < failing.end;
    if (is_meant && atomic_fetch_add(&failing.reads, 1) < atomic_load(&failing.most))
        return failing.err;
    return source_read_on(s->wrapped, cursor);
}

static bool failing_close(struct source *s)
{
    (void)s;
    return true;
}

static const struct source_ops failing_ops = {.read = failing_read, .close = failing_close};

static void fail_reads(uint64_t first, uint64_t end, int err, unsigned most)
{
    failing.first = first;
    failing.end = end;
    failing.err = err;
    atomic_store(&failing.most, most);
    atomic_store(&failing.reads, 0);
}

static void count_note(void *ctx, const char *line)
{
    (void)ctx, (void)line;
    notes++;
}

static void setup(void)
{
    char path[128];
    suite_make_folder("copier", folder, sizeof(folder));
    snprintf(path, sizeof(path), "%s/archive", folder);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(ftruncate(fileno(f), (off_t)BYTES), 0);
    ck_assert_int_eq(fclose(f), 0);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    ck_assert_int_eq(source_open(path, NULL, &source), 0);
    fail_reads(0, 0, 0, 0);
    job_chunk = CHUNKS;
    struct source *wrapper = calloc(1, sizeof(*wrapper));
    ck_assert_ptr_nonnull(wrapper);
    source_wrap(wrapper, &failing_ops, &source);
    const struct stage_options options = {.place = folder, .threads = 1, .note = count_note};
    ck_assert_int_eq(stage_open(source, &options, NULL, &stage), 0);
    atomic_store(&clock_ns, 1000 * SECOND);
    stage->pause.test_ns = &clock_ns;
    notes = 0;
}

static void teardown(void)
{
    char line[128];
    source_close(source);
    stage_close(stage);
    snprintf(line, sizeof(line), "rm -rf '%s'", folder);
    ck_assert_int_eq(system(line), 0);
}

static int failure(void)
{
    return atomic_load(&stage->state->failure);
}

START_TEST(storage_that_does_not_fail_is_copied_in_one_pass)
{
    uint64_t begun_ns = atomic_load(&clock_ns);
    stage_copy(stage);
    ck_assert(atomic_load(&stage->state->whole));
    ck_assert_uint_eq(atomic_load(&stage->state->copied_bytes), BYTES);
    ck_assert_uint_eq(atomic_load(&clock_ns), begun_ns);
}
END_TEST

START_TEST(chunk_that_fails_for_a_while_is_copied_in_a_later_pass)
{
    uint64_t begun_ns = atomic_load(&clock_ns);
    fail_reads(3, 4, -EIO, 2);
    stage_copy(stage);
    ck_assert(atomic_load(&stage->state->whole));
    ck_assert_uint_eq(atomic_load(&failing.reads), 3);
    ck_assert_uint_eq(atomic_load(&clock_ns) - begun_ns, SECOND / 2);
    ck_assert_int_eq(failure(), 0);
}
END_TEST

START_TEST(chunk_that_fails_always_is_left_to_readers_after_four_passes)
{
    fail_reads(3, 4, -EIO, UINT32_MAX);
    stage_copy(stage);
    ck_assert(!atomic_load(&stage->state->whole));
    ck_assert_int_eq(failure(), EIO);
    ck_assert_uint_eq(atomic_load(&failing.reads), 4);
    ck_assert_uint_eq(notes, 1);
    ck_assert_uint_eq(stage_bytes_here(stage->state), BYTES - STAGE_CHUNK_BYTES);
}
END_TEST

START_TEST(storage_that_is_gone_ends_the_copy_within_one_pass)
{
    fail_reads(0, CHUNKS, -EIO, UINT32_MAX);
    stage_copy(stage);
    ck_assert_int_eq(failure(), EIO);
    ck_assert_uint_eq(atomic_load(&failing.reads), 64);
}
END_TEST

START_TEST(chunk_that_a_reader_makes_is_waited_for)
{
    fail_reads(0, 0, 0, 0);
    ck_assert(stage_claim_demand(stage->state, 5));
    pause_end(&stage->pause); /* so that the copier makes no second pass */
    stage_copy(stage);
    ck_assert_uint_eq(stage_bytes_here(stage->state), 0);
    atomic_store(&stage->pause.ended, false);
    stage_settle(stage->state, 5, CHUNK_ABSENT);
    stage_copy(stage);
    ck_assert(atomic_load(&stage->state->whole));
}
END_TEST

START_TEST(archive_that_changes_meanwhile_is_not_whole)
{
    ck_assert_int_eq(ftruncate(source_fd(source), 0), -1); /* it is open for reading alone */
    char path[128];
    snprintf(path, sizeof(path), "%s/archive", folder);
    ck_assert_int_eq(truncate(path, (off_t)BYTES + 1), 0);
    stage_copy(stage);
    ck_assert_int_eq(failure(), ESTALE);
    ck_assert(!atomic_load(&stage->state->whole));
}
END_TEST

/* Else all nodes that a job has lost would ask storage at the same moment. */
START_TEST(copying_begins_after_a_random_moment_each_time_that_a_job_breaks)
{
    uint64_t begun_ns = atomic_load(&clock_ns);
    job_chunk = 3;
    atomic_store(&stage->state->job_ns, STAGE_JOB_LOST);
    stage_copy(stage);
    ck_assert(atomic_load(&stage->state->whole));
    ck_assert_uint_ge(read_ns[0] - begun_ns, SECOND / 10);
    ck_assert_uint_le(read_ns[0] - begun_ns, 10 * SECOND);
    /* First a pause after the pass, and the silence after which the job counts as broken. */
    uint64_t silence_ns = STAGE_JOB_SILENT_S * SECOND + SECOND / 100;
    ck_assert_uint_ge(read_ns[4] - read_ns[3], silence_ns + SECOND / 10);
    ck_assert_uint_le(read_ns[4] - read_ns[3], silence_ns + 10 * SECOND);
}
END_TEST

/* ---- a stream's retries ---- */

static void as_stream(void)
{
    stage->stream = (struct fileset_stream){.packed = source, .bytes = BYTES};
}

static bool retry(int err, uint64_t chunk)
{
    return stage_retry(stage, err, chunk, chunk * STAGE_CHUNK_BYTES);
}

START_TEST(stream_goes_on_when_its_storage_answers)
{
    as_stream();
    fail_reads(0, CHUNKS, -EIO, 3); /* of probes: those of their children are not counted */
    uint64_t begun_ns = atomic_load(&clock_ns);
    ck_assert(retry(-EIO, 2));
    ck_assert_uint_eq(atomic_load(&failing.reads), 3);
    ck_assert_uint_eq(atomic_load(&clock_ns) - begun_ns, SECOND * 15 / 4); /* 1/4, 1/2, 1, 2 */
    ck_assert_int_eq(atomic_load(&stage->state->away), EIO);
    ck_assert_uint_eq(notes, 1);
}
END_TEST

START_TEST(stream_ends_when_patience_does_not_help)
{
    char path[128];
    as_stream();
    ck_assert(!retry(-EUCLEAN, 2)); /* no error of storage */
    fail_reads(0, CHUNKS, -EACCES, UINT32_MAX);
    ck_assert(!retry(-EIO, 2)); /* the storage answers with another error */
    fail_reads(0, CHUNKS, -EIO, UINT32_MAX);
    pause_end(&stage->pause);
    ck_assert(!retry(-EIO, 2)); /* the end was asked for */
    atomic_store(&stage->pause.ended, false);
    fail_reads(0, 0, 0, 0);
    snprintf(path, sizeof(path), "%s/archive", folder);
    ck_assert_int_eq(truncate(path, 1), 0);
    ck_assert(!retry(-EIO, 2)); /* it was changed */
}
END_TEST

START_TEST(stream_that_never_passes_a_chunk_ends)
{
    unsigned tries = 0;
    as_stream();
    while (retry(-EIO, 7))
        tries++;
    ck_assert_uint_eq(tries, 11);
    ck_assert(retry(-EIO, 8)); /* it came further */
}
END_TEST

/* ---- readers of a stream ---- */

START_TEST(reader_of_a_stream_waits_five_seconds_for_somebody_to_unpack_it)
{
    uint64_t begun_ns = atomic_load(&clock_ns);
    stage->expands = true;
    ck_assert(!stage_await_stream(stage, 1));
    ck_assert_uint_ge(atomic_load(&clock_ns) - begun_ns, 5 * SECOND);
    ck_assert_uint_le(atomic_load(&clock_ns) - begun_ns, 6 * SECOND);
}
END_TEST

START_TEST(reader_of_a_stream_gives_up_half_a_minute_after_the_last_progress)
{
    uint64_t begun_ns = atomic_load(&clock_ns);
    stage->expands = true;
    atomic_store(&stage->state->copier_pid, (int32_t)getpid());
    atomic_store(&stage->state->progress_ns, begun_ns);
    atomic_store(&stage->state->away, EIO);
    ck_assert(!stage_await_stream(stage, 1));
    ck_assert_uint_ge(atomic_load(&clock_ns) - begun_ns, 30 * SECOND);
    ck_assert_uint_le(atomic_load(&clock_ns) - begun_ns, 31 * SECOND);
    atomic_store(&stage->state->copier_pid, 0);
}
END_TEST

START_TEST(reader_of_a_stream_has_what_was_unpacked_and_no_more_after_its_end)
{
    stage->expands = true;
    stage_settle(stage->state, 1, CHUNK_HERE);
    ck_assert(stage_await_stream(stage, 1));
    atomic_store(&stage->state->failure, EUCLEAN);
    ck_assert(!stage_await_stream(stage, 2));
    atomic_store(&stage->state->failure, 0);
    pause_end(&stage->pause);
    ck_assert(!stage_await_stream(stage, 2));
    ck_assert(stage_await_stream(stage, 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage_copier");
    TCase *tc = tcase_create("stage_copier");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, storage_that_does_not_fail_is_copied_in_one_pass);
    tcase_add_test(tc, chunk_that_fails_for_a_while_is_copied_in_a_later_pass);
    tcase_add_test(tc, chunk_that_fails_always_is_left_to_readers_after_four_passes);
    tcase_add_test(tc, storage_that_is_gone_ends_the_copy_within_one_pass);
    tcase_add_test(tc, chunk_that_a_reader_makes_is_waited_for);
    tcase_add_test(tc, archive_that_changes_meanwhile_is_not_whole);
    tcase_add_test(tc, copying_begins_after_a_random_moment_each_time_that_a_job_breaks);
    tcase_add_test(tc, stream_goes_on_when_its_storage_answers);
    tcase_add_test(tc, stream_ends_when_patience_does_not_help);
    tcase_add_test(tc, stream_that_never_passes_a_chunk_ends);
    tcase_add_test(tc, reader_of_a_stream_waits_five_seconds_for_somebody_to_unpack_it);
    tcase_add_test(tc, reader_of_a_stream_gives_up_half_a_minute_after_the_last_progress);
    tcase_add_test(tc, reader_of_a_stream_has_what_was_unpacked_and_no_more_after_its_end);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
