/*
 * Uploads on a device that only writes down what it is asked for: which tasks and events are
 * queued for a slab, in which order, from its first batch to its end.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "device.h"
#include "error.h"
#include "suite.h"
#include "upload.h"

#define SAMPLE_BYTES 60u /* an image of 4 by 5 pixels */

/* Streams and events are numbers: stream 1 is the upload's, the first events are those around
 * the copy (1, 2) and the one behind everything (3). */
static struct written {
    char text[1024];
    size_t len;
    uintptr_t streams, events;
    int kept; /* streams, events and pieces of memory that are not given back */
    int record_all, copy, is_done;
    void *captures; /* a stream; NULL: none does */
    void *lost;     /* nothing can be recorded on this stream, */
    int why;        /* with this error */
    int wait_all;   /* what a wait for everything returns, */
    unsigned waits; /* and how often it was asked for */
    unsigned ends;  /* it does no more when it has been asked so often; 0: it goes on */
} written;

static void note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n =
        vsnprintf(written.text + written.len, sizeof(written.text) - written.len, format, args);
    va_end(args);
    written.len += (size_t)n;
    ck_assert_uint_lt(written.len, sizeof(written.text));
}

/* What was asked for since the last call. */
static void check_written(const char *wanted)
{
    ck_assert_str_eq(written.text, wanted);
    written.len = 0;
    written.text[0] = '\0';
}

static int number(const void *p)
{
    return (int)(uintptr_t)p;
}

static int noted_stream_new(void *d, bool is_urgent, struct onepot_error *error,
                            void **ret_stream)
{
    (void)d, (void)error;
    ck_assert(is_urgent);
    written.kept++;
    *ret_stream = (void *)++written.streams;
    return 0;
}

static void noted_stream_free(void *d, void *stream)
{
    (void)d, (void)stream;
    written.kept--;
}

static int noted_stream_wait(void *d, void *stream, struct onepot_error *error)
{
    (void)d, (void)error;
    note("await stream %d; ", number(stream));
    return 0;
}

static int noted_stream_check(void *d, void *stream, struct onepot_error *error)
{
    (void)d;
    if (stream != written.captures)
        return 0;
    if (written.ends && --written.ends == 0)
        written.captures = NULL;
    return error_set(error, -EBUSY, "it captures");
}

static int noted_event_new(void *d, bool has_time, struct onepot_error *error, void **ret_event)
{
    (void)d, (void)error;
    ck_assert_int_eq(has_time, written.events < 2);
    written.kept++;
    *ret_event = (void *)++written.events;
    return 0;
}

static void noted_event_free(void *d, void *event)
{
    (void)d, (void)event;
    written.kept--;
}

static int noted_record(void *d, void *event, void *stream, struct onepot_error *error)
{
    int r = noted_stream_check(d, stream, error);
    if (r < 0)
        return r;
    if (stream == written.lost)
        return error_set(error, written.why, "it is lost");
    note("record %d in %d; ", number(event), number(stream));
    return 0;
}

static int noted_follow(void *d, void *stream, void *event, struct onepot_error *error)
{
    (void)d, (void)error;
    note("%d follows %d; ", number(stream), number(event));
    return 0;
}

static int noted_is_done(void *d, void *event, struct onepot_error *error)
{
    (void)d, (void)event, (void)error;
    return written.is_done;
}

static int noted_event_wait(void *d, void *event, struct onepot_error *error)
{
    (void)d, (void)error;
    note("await %d; ", number(event));
    return 0;
}

static int noted_elapsed(void *d, void *from, void *to, struct onepot_error *error,
                         uint64_t *ret_ns)
{
    (void)d, (void)from, (void)to, (void)error;
    *ret_ns = 1000;
    return 0;
}

static int noted_record_all(void *d, void *event, struct onepot_error *error)
{
    (void)d;
    note("record %d behind all; ", number(event));
    return error_set(error, written.record_all, "no such event");
}

static int noted_wait_all(void *d, struct onepot_error *error)
{
    (void)d;
    if (written.wait_all < 0) {
        written.waits++;
        return error_set(error, written.wait_all, "it captures");
    }
    note("await all; ");
    return 0;
}

static int noted_copy(void *d, void *stream, void *to, const void *from, size_t bytes,
                      struct onepot_error *error)
{
    (void)d, (void)to, (void)from, (void)bytes;
    note("copy in %d; ", number(stream));
    return error_set(error, written.copy, "the copy fails");
}

static int noted_convert(void *d, void *stream, const struct onepot_conversion *images,
                         uint64_t count, const uint8_t *from, void *to,
                         struct onepot_error *error)
{
    (void)d, (void)images, (void)from, (void)to, (void)error;
    note("convert %d in %d; ", (int)count, number(stream));
    return 0;
}

static int noted_allocate(void *d, enum device_memory where, size_t bytes,
                          struct onepot_error *error, void **ret_memory)
{
    (void)d, (void)where, (void)error;
    written.kept++;
    *ret_memory = calloc(1, bytes);
    return 0;
}

static void noted_release(void *d, enum device_memory where, void *memory, size_t bytes)
{
    (void)d, (void)where, (void)bytes;
    written.kept--;
    free(memory);
}

static void noted_range(const char *name)
{
    (void)name;
}

static const struct device_type noted = {
    .kind = "noted",
    .allocate = noted_allocate,
    .release = noted_release,
    .stream_new = noted_stream_new,
    .stream_free = noted_stream_free,
    .stream_check = noted_stream_check,
    .stream_wait = noted_stream_wait,
    .event_new = noted_event_new,
    .event_free = noted_event_free,
    .record = noted_record,
    .follow = noted_follow,
    .is_done = noted_is_done,
    .event_wait = noted_event_wait,
    .elapsed = noted_elapsed,
    .record_all = noted_record_all,
    .wait_all = noted_wait_all,
    .copy = noted_copy,
    .convert = noted_convert,
    .range = noted_range,
};

/* ---- a slab, as an engine would treat it ---- */

static struct onepot_device device;
static struct upload *upload;
static struct slab slab;

static void make_slab(const struct onepot_conversion *images)
{
    written = (struct written){.is_done = 1};
    device =
        (struct onepot_device){.type = &noted, .name = "noted:0", .pid = getpid(), .users = 1};
    slab = (struct slab){.capacity = 4096};
    ck_assert_int_eq(upload_new(&device, images, 1, NULL, &upload), 0);
    ck_assert_int_eq(upload_memory.allocate(&slab, slab.capacity, upload), 0);
    slab_begin(&slab, 1, SAMPLE_BYTES);
    check_written("");
}

static void begin(void)
{
    make_slab(NULL);
}

static void end(void)
{
    upload_memory.release(&slab, upload);
    upload_memory.close(upload);
    ck_assert_int_eq(written.kept, 0);
}

static void send_slab(void)
{
    ck_assert_int_eq(upload_memory.send(&slab, upload), 0);
}

static void use_slab(uintptr_t stream)
{
    ck_assert_int_eq(onepot_batch_use(&slab.batch, (void *)stream, NULL), 0);
}

START_TEST(a_copy_lies_between_two_events)
{
    send_slab();
    check_written("record 1 in 1; copy in 1; record 2 in 1; ");
}
END_TEST

START_TEST(a_consumer_follows_the_copy_and_the_next_copy_all_consumers)
{
    send_slab();
    check_written("record 1 in 1; copy in 1; record 2 in 1; ");
    use_slab(20);
    use_slab(30);
    use_slab(20); /* known */
    check_written("20 follows 2; 30 follows 2; 20 follows 2; ");
    upload_memory.retire(&slab, upload);
    check_written("record 4 in 20; record 5 in 30; ");
    send_slab();
    check_written("1 follows 4; 1 follows 5; record 1 in 1; copy in 1; record 2 in 1; ");
    upload_memory.retire(&slab, upload);
    send_slab(); /* nobody used that batch */
    check_written("record 1 in 1; copy in 1; record 2 in 1; ");
}
END_TEST

START_TEST(events_of_consumers_are_used_again)
{
    for (unsigned i = 0; i < 3; i++) {
        send_slab();
        use_slab(20 + i);
        use_slab(30 + i);
        upload_memory.retire(&slab, upload);
    }
    ck_assert_uint_eq(written.events, 5);
}
END_TEST

START_TEST(a_batch_that_was_not_sent_leaves_the_consumers_of_the_one_before)
{
    send_slab();
    use_slab(20);
    upload_memory.retire(&slab, upload);
    upload_memory.retire(&slab, upload);
    written.len = 0;
    send_slab();
    check_written("1 follows 4; record 1 in 1; copy in 1; record 2 in 1; ");
}
END_TEST

START_TEST(behind_a_batch_that_was_lent_the_next_copy_follows_everything)
{
    send_slab();
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, ONEPOT_NO_STREAM, NULL), 0);
    written.len = 0;
    upload_memory.retire(&slab, upload);
    check_written("record 3 behind all; ");
    send_slab();
    check_written("1 follows 3; record 1 in 1; copy in 1; record 2 in 1; ");
}
END_TEST

START_TEST(a_stream_that_was_lent_to_follows_the_copy_and_is_let_be)
{
    send_slab();
    written.len = 0;
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, (void *)20, NULL), 0);
    check_written("20 follows 2; ");
    upload_memory.retire(&slab, upload);
    check_written("record 3 behind all; ");
}
END_TEST

/* -EINVAL: a green context's, which is no error. */
START_TEST(a_stream_that_nothing_can_be_recorded_on_counts_as_unknown)
{
    static const int errors[] = {-EINVAL, -EIO};
    for (unsigned i = 0; i < 2; i++) {
        send_slab();
        use_slab(20);
        use_slab(30);
        written.lost = (void *)20;
        written.why = errors[i];
        written.len = 0;
        upload_memory.retire(&slab, upload);
        check_written("record 5 in 30; record 3 behind all; ");
        send_slab();
        check_written("1 follows 3; record 1 in 1; copy in 1; record 2 in 1; ");
        ck_assert_int_eq(upload_error(upload, NULL), i ? -EIO : 0);
    }
}
END_TEST

START_TEST(a_copy_for_the_consumer_is_followed_and_its_stream_let_be)
{
    struct onepot_duplicate *there = NULL, *here = NULL;
    struct onepot_device_batch where = {.size = sizeof(where)};
    void *memory;
    send_slab();
    ck_assert_int_eq(onepot_batch_on_device(&slab.batch, &where), 0);
    written.len = 0;
    written.captures = written.lost = (void *)40; /* NULL is a stream here */
    ck_assert_int_eq(onepot_batch_duplicate(&slab.batch, false, (void *)20, where.data, 8, NULL,
                                            &there, &memory),
                     0);
    check_written("20 follows 2; copy in 20; record 4 in 20; ");
    ck_assert_int_eq(
        onepot_batch_duplicate(&slab.batch, true, NULL, where.data, 8, NULL, &here, &memory),
        0);
    check_written("0 follows 2; copy in 0; record 5 in 0; await stream 0; ");
    written.captures = (void *)20; /* by now, or it is gone */
    upload_memory.retire(&slab, upload);
    check_written("");
    send_slab();
    check_written("1 follows 4; 1 follows 5; record 1 in 1; copy in 1; record 2 in 1; ");
    onepot_duplicate_free(there);
    onepot_duplicate_free(here);
}
END_TEST

START_TEST(or_a_thread_waits_for_everything)
{
    written.record_all = -ENOTSUP;
    send_slab();
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, (void *)20, NULL), 0);
    upload_memory.retire(&slab, upload);
    written.len = 0;
    send_slab();
    check_written("await all; record 1 in 1; copy in 1; record 2 in 1; ");
}
END_TEST

/* Each wait for everything breaks a capture: few are tried. */
START_TEST(the_end_of_a_capture_is_waited_for_ever_longer)
{
    _Atomic uint64_t ns = 0;
    written.record_all = -ENOTSUP;
    send_slab();
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, ONEPOT_NO_STREAM, NULL), 0);
    upload_memory.retire(&slab, upload);
    upload->pause.test_ns = &ns;
    written.wait_all = -EBUSY;
    ck_assert_int_eq(upload_memory.send(&slab, upload), -EBUSY);
    ck_assert_uint_ge(ns, UINT64_C(10000000000));
    ck_assert_uint_le(written.waits, 11);
    written.wait_all = 0;
    send_slab();
}
END_TEST

START_TEST(nothing_is_recorded_on_a_stream_that_captures)
{
    send_slab();
    written.len = 0;
    written.text[0] = '\0';
    written.captures = (void *)20;
    ck_assert_int_eq(onepot_batch_use(&slab.batch, (void *)20, NULL), -EBUSY);
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, (void *)20, NULL), -EBUSY);
    ck_assert_int_eq(upload_error(upload, NULL), 0);
    upload_memory.retire(&slab, upload);
    check_written("");
}
END_TEST

/* Nothing that concerns the whole device, which would break the capture. */
START_TEST(one_that_captures_by_the_end_of_the_batch_is_followed_when_that_is_over)
{
    for (unsigned lent = 0; lent < 2; lent++) {
        send_slab();
        use_slab(20);
        if (lent)
            ck_assert_int_eq(onepot_batch_lend(&slab.batch, ONEPOT_NO_STREAM, NULL), 0);
        written.captures = (void *)20;
        written.ends = 3;
        written.len = 0;
        written.text[0] = '\0';
        upload_memory.retire(&slab, upload);
        check_written("");
        send_slab();
        check_written(lent ? "record 4 in 20; record 3 behind all; 1 follows 3; "
                             "record 1 in 1; copy in 1; record 2 in 1; "
                           : "record 4 in 20; 1 follows 4; "
                             "record 1 in 1; copy in 1; record 2 in 1; ");
        ck_assert_ptr_null(written.captures);
    }
}
END_TEST

/* The memory may go meanwhile: the device's own call waits for what it was given. */
START_TEST(memory_goes_also_while_one_captures)
{
    send_slab();
    use_slab(20);
    written.captures = (void *)20;
    upload_memory.retire(&slab, upload);
    written.len = 0;
    end();
    check_written("await 2; await stream 1; ");
    begin();
}
END_TEST

START_TEST(what_was_followed_once_is_not_followed_again)
{
    send_slab();
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, ONEPOT_NO_STREAM, NULL), 0);
    upload_memory.retire(&slab, upload);
    send_slab();
    upload_memory.retire(&slab, upload);
    written.len = 0;
    written.text[0] = '\0';
    send_slab();
    check_written("record 1 in 1; copy in 1; record 2 in 1; ");
}
END_TEST

START_TEST(a_stream_that_was_told_before_is_not_lent)
{
    send_slab();
    use_slab(20);
    ck_assert_int_eq(onepot_batch_lend(&slab.batch, (void *)20, NULL), 0);
    written.len = 0;
    upload_memory.retire(&slab, upload);
    check_written("record 4 in 20; ");
}
END_TEST

START_TEST(the_host_writes_again_when_the_copy_is_done_or_was_waited_for)
{
    send_slab();
    ck_assert(upload_memory.is_settled(&slab, upload));
    written.is_done = 0;
    ck_assert(!upload_memory.is_settled(&slab, upload));
    written.is_done = -EIO; /* it may still run */
    ck_assert(!upload_memory.is_settled(&slab, upload));
    written.len = 0;
    upload_memory.settle(&slab, upload);
    check_written("await 2; ");
    ck_assert(upload_memory.is_settled(&slab, upload));
    send_slab();
    ck_assert(!upload_memory.is_settled(&slab, upload));
}
END_TEST

START_TEST(a_copy_that_fails_is_told_and_counts_nowhere)
{
    struct onepot_error error = {0};
    struct onepot_transfer transfer;
    written.copy = -EIO;
    ck_assert_int_eq(upload_memory.send(&slab, upload), -EIO);
    ck_assert_int_eq(upload_error(upload, &error), -EIO);
    ck_assert_str_eq(error.text, "noted:0: the copy fails");
    upload_transfer(upload, false, &transfer);
    ck_assert_uint_eq(transfer.batches, 0);
    written.copy = 0;
    send_slab();
    upload_transfer(upload, false, &transfer);
    ck_assert_uint_eq(transfer.batches, 1);
    ck_assert_uint_eq(transfer.copy_bytes, SAMPLE_BYTES);
    ck_assert_uint_eq(transfer.copy_ns, 1000);
}
END_TEST

/* So that the next copy does not wait for them, unless it goes into the same slab. */
START_TEST(images_are_made_in_a_stream_of_their_own)
{
    const struct onepot_conversion images = {
        .size = sizeof(images), .height = 4, .width = 5, .channels = 3, .type = ONEPOT_FLOAT};
    end();
    make_slab(&images);
    send_slab();
    check_written("1 follows 4; record 1 in 1; copy in 1; record 2 in 1; "
                  "2 follows 2; convert 1 in 2; record 4 in 2; ");
    use_slab(20);
    ck_assert_int_eq(onepot_batch_wait(&slab.batch, NULL), 0);
    check_written("20 follows 4; await 4; ");
    upload_memory.retire(&slab, upload);
    check_written("record 5 in 20; ");
    send_slab();
    check_written("1 follows 4; 1 follows 5; record 1 in 1; copy in 1; record 2 in 1; "
                  "2 follows 2; convert 1 in 2; record 4 in 2; ");
}
END_TEST

START_TEST(memory_goes_when_nobody_uses_it)
{
    send_slab();
    use_slab(20);
    upload_memory.retire(&slab, upload);
    written.len = 0;
    end();
    check_written("await 2; await 4; await stream 1; ");
    begin();
}
END_TEST

/* In each way in which it was lent. */
START_TEST(nor_while_a_consumer_may_read_it)
{
    for (unsigned i = 0; i < 2; i++) {
        written.record_all = i ? -ENOTSUP : 0;
        send_slab();
        ck_assert_int_eq(onepot_batch_lend(&slab.batch, ONEPOT_NO_STREAM, NULL), 0);
        upload_memory.retire(&slab, upload);
        written.len = 0;
        end();
        check_written(i ? "await 2; await all; await stream 1; "
                        : "await 2; await 3; await stream 1; ");
        begin();
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("upload");
    TCase *t = tcase_create("upload");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, a_copy_lies_between_two_events);
    tcase_add_test(t, a_consumer_follows_the_copy_and_the_next_copy_all_consumers);
    tcase_add_test(t, events_of_consumers_are_used_again);
    tcase_add_test(t, a_batch_that_was_not_sent_leaves_the_consumers_of_the_one_before);
    tcase_add_test(t, behind_a_batch_that_was_lent_the_next_copy_follows_everything);
    tcase_add_test(t, a_stream_that_was_lent_to_follows_the_copy_and_is_let_be);
    tcase_add_test(t, a_stream_that_nothing_can_be_recorded_on_counts_as_unknown);
    tcase_add_test(t, or_a_thread_waits_for_everything);
    tcase_add_test(t, a_copy_for_the_consumer_is_followed_and_its_stream_let_be);
    tcase_add_test(t, the_end_of_a_capture_is_waited_for_ever_longer);
    tcase_add_test(t, nothing_is_recorded_on_a_stream_that_captures);
    tcase_add_test(t, one_that_captures_by_the_end_of_the_batch_is_followed_when_that_is_over);
    tcase_add_test(t, memory_goes_also_while_one_captures);
    tcase_add_test(t, what_was_followed_once_is_not_followed_again);
    tcase_add_test(t, a_stream_that_was_told_before_is_not_lent);
    tcase_add_test(t, the_host_writes_again_when_the_copy_is_done_or_was_waited_for);
    tcase_add_test(t, a_copy_that_fails_is_told_and_counts_nowhere);
    tcase_add_test(t, images_are_made_in_a_stream_of_their_own);
    tcase_add_test(t, memory_goes_when_nobody_uses_it);
    tcase_add_test(t, nor_while_a_consumer_may_read_it);
    suite_add_tcase(s, t);
    return run_suite(s);
}
