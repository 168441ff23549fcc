/*
 * Each wait between gathering, copies, conversions and consumers is needed: without it, bytes
 * of another batch are seen. Kernels that spin hold streams back, and a test goes on when
 * nothing moves any more. So what is not ordered goes wrong each time: with a wait's name as
 * argument, the device is not asked for that wait, and the test of it has to fail.
 *
 * A real GPU does not tell when nothing moves any more. There a test waits for a moment, which
 * is enough for what is ordered, and nearly always for a mutant.
 */
#include "loader_helper.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "dataset.h"
#include "onepot_device.h"
#include "played.h"
#include "suite.h"

#define FILES 120u
#define SAMPLE_BYTES 60u /* an image of 4 by 5 pixels */
#define BATCH 8u
#define BATCH_BYTES (BATCH * SAMPLE_BYTES)
#define KEPT_MAX 16u

static struct onepot_archive *archive;
static struct played *gpu; /* NULL: a real one, */
static bool as_real;       /* or one that is treated so */
static struct onepot_device *device;
static struct onepot_loader *loader;
static void *reader, *slow;           /* streams */
static void *got;                     /* locked memory that is read into */
static uint8_t want[4 * BATCH_BYTES]; /* and what should be there */
static const struct onepot_batch *kept[KEPT_MAX];
static unsigned kept_count;

static const struct onepot_conversion floats = {.size = sizeof(floats),
                                                .height = 4,
                                                .width = 5,
                                                .channels = 3,
                                                .type = ONEPOT_FLOAT,
                                                .scale = {1, 1, 1}};

static size_t size_of(unsigned i)
{
    (void)i;
    return SAMPLE_BYTES;
}

static void pack_once(void)
{
    struct tree tree;
    if (archive)
        return;
    archive = tree_open_numbered(&tree, FILES, 4, size_of);
    tree_end(&tree);
}

static void good(int r, const struct onepot_error *error)
{
    ck_assert_msg(r >= 0, "%s", error->text);
}

/* ---- streams that are held back ---- */

#define MOMENT_NS 30000000
#define POLLS 300 /* of a millisecond: then the loader waits */

static atomic_uint gates, open_gates; /* on a real GPU */
static atomic_bool images_held;
static unsigned polls;
static const struct device_type *real;
static struct device_type held_type; /* converts when it may, and waits for less */

static void moment(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void stand(void *gate)
{
    while ((uintptr_t)gate > atomic_load(&open_gates))
        moment(100000);
}

static void stand_for_images(void *unused)
{
    (void)unused;
    while (atomic_load(&images_held))
        moment(100000);
}

static int convert_when_told(void *d, void *stream, const struct onepot_conversion *images,
                             uint64_t count, const uint8_t *from, void *to,
                             struct onepot_error *error)
{
    int r = real->call(d, stream, stand_for_images, NULL, error);
    return r < 0 ? r : real->convert(d, stream, images, count, from, to, error);
}

/* ---- without one of the waits ---- */

static const char *without = "";   /* its name, below */
static void *copying, *converting; /* the loader's streams */
static void *sent;                 /* the event behind the latest copy */

static bool is_without(const char *wait)
{
    return strcmp(without, wait) == 0;
}

/* The loader's first stream copies, the second one converts; both are urgent. */
static int note_stream(void *d, bool is_urgent, struct onepot_error *error, void **ret_stream)
{
    int r = real->stream_new(d, is_urgent, error, ret_stream);
    if (r == 0 && is_urgent)
        *(copying ? &converting : &copying) = *ret_stream;
    return r;
}

static int note_sent(void *d, void *event, void *stream, struct onepot_error *error)
{
    if (stream == copying)
        sent = event;
    return real->record(d, event, stream, error);
}

static int follow_less(void *d, void *stream, void *event, struct onepot_error *error)
{
    bool is_consumer = stream != copying && stream != converting;
    if ((stream == copying && is_without("follow_users")) ||
        (stream == converting && is_without("follow_copy")) ||
        (is_consumer && is_without("follow_arrival")))
        return 0;
    return real->follow(d, stream, is_consumer && is_without("converted") ? sent : event,
                        error);
}

static int is_done_at_once(void *d, void *event, struct onepot_error *error)
{
    return is_without("settle") ? 1 : real->is_done(d, event, error);
}

static void take_waits_away(struct device_type *type)
{
    copying = converting = NULL;
    type->stream_new = note_stream;
    type->record = note_sent;
    type->follow = follow_less;
    type->is_done = is_done_at_once;
}

/* ---- the device ---- */

static void hold(void *stream)
{
    struct onepot_error error = {0};
    if (gpu)
        gpu->spin(stream);
    else
        good(onepot_device_call(device, stream, stand,
                                (void *)(uintptr_t)(atomic_fetch_add(&gates, 1) + 1), &error),
             &error);
}

static void let_go(void)
{
    if (gpu)
        gpu->release();
    else
        atomic_store(&open_gates, atomic_load(&gates));
}

static void hold_images(bool held)
{
    if (gpu)
        gpu->hold_kernels(held);
    else
        atomic_store(&images_held, held);
}

/* Until nothing moves any more. */
static void quiet(void)
{
    if (gpu)
        gpu->quiet();
    else
        moment(MOMENT_NS);
}

/* Does a thread of the loader wait for the GPU? */
static bool is_waited_for(void)
{
    return gpu ? gpu->waiting() : ++polls > POLLS;
}

static void begin(void)
{
    struct onepot_error error = {0};
    gpu = as_real ? NULL : played_find();
    kept_count = polls = 0;
    good(onepot_device_open("cuda:0", &error, &device), &error);
    real = device->type;
    held_type = *real;
    if (!gpu)
        held_type.convert = convert_when_told;
    take_waits_away(&held_type);
    device->type = &held_type;
    good(onepot_device_stream_new(device, &error, &reader), &error);
    good(onepot_device_stream_new(device, &error, &slow), &error);
    good(device->type->allocate(device->device, DEVICE_MEMORY_LOCKED, sizeof(want), &error,
                                &got),
         &error);
}

static void end(void)
{
    onepot_loader_free(loader);
    device->type->release(device->device, DEVICE_MEMORY_LOCKED, got, sizeof(want));
    onepot_device_stream_free(device, reader);
    onepot_device_stream_free(device, slow);
    onepot_device_close(device);
}

static void make(const struct onepot_conversion *convert, uint64_t memory_bytes)
{
    struct onepot_error error = {0};
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = BATCH,
                                            .world_size = 1,
                                            .threads = 2,
                                            .prefetch = 2,
                                            .memory_bytes = memory_bytes,
                                            .device = device,
                                            .gather = ONEPOT_GATHER_HOST,
                                            .convert = convert};
    good(onepot_loader_new(archive, &options, &error, &loader), &error);
}

static const struct onepot_batch *next(void)
{
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    int r = onepot_loader_next(loader, 60000, &error, &b);
    good(r, &error);
    return r > 0 ? b : next(); /* of the next epoch */
}

static struct onepot_device_batch where(const struct onepot_batch *b)
{
    struct onepot_device_batch w = {.size = sizeof(w)};
    ck_assert_int_eq(onepot_batch_on_device(b, &w), 0);
    return w;
}

static void use(const struct onepot_batch *b, void *stream)
{
    struct onepot_error error = {0};
    good(onepot_batch_use(b, stream, &error), &error);
}

static void copy(void *stream, const void *from, size_t bytes)
{
    struct onepot_error error = {0};
    good(onepot_device_copy(device, stream, got, from, bytes, &error), &error);
}

static void await(void *stream)
{
    struct onepot_error error = {0};
    good(onepot_device_stream_wait(device, stream, &error), &error);
}

/* The batch that comes into the same memory next. Those between are kept until release_kept. */
static const struct onepot_batch *next_in(const uint8_t *memory)
{
    const struct onepot_batch *b = next();
    while (where(b).data != memory) {
        ck_assert_uint_lt(kept_count, KEPT_MAX);
        kept[kept_count++] = b;
        b = next();
    }
    return b;
}

static void release_kept(void)
{
    while (kept_count)
        onepot_batch_release(kept[--kept_count]);
}

/* A batch whose copy is held back until gpu->release: a kernel still reads the one before. */
static const struct onepot_batch *held_batch(void)
{
    const struct onepot_batch *b = next();
    const uint8_t *memory = where(b).data;
    use(b, slow);
    quiet();
    hold(slow);
    onepot_batch_release(b);
    b = next_in(memory);
    memcpy(want, b->data, BATCH_BYTES);
    return b;
}

static void check_that_a_copy_waits_for(void *stream)
{
    make(NULL, 400 << 10);
    const struct onepot_batch *b = next();
    const uint8_t *memory = where(b).data;
    use(b, stream);
    quiet();
    memcpy(want, b->data, BATCH_BYTES);
    hold(stream);
    copy(stream, memory, BATCH_BYTES);
    onepot_batch_release(b);
    onepot_batch_release(next_in(memory));
    quiet();
    let_go();
    if (stream == reader)
        await(reader);
    quiet();
    ck_assert_mem_eq(got, want, BATCH_BYTES);
    release_kept();
}

START_TEST(a_copy_waits_for_readers_of_the_batch_before)
{
    check_that_a_copy_waits_for(reader);
}
END_TEST

/* CUDA's documents do not say whether it takes an event of ours there: the played one does not.
 */
START_TEST(a_copy_waits_for_the_stream_of_a_green_context)
{
    if (gpu) /* this program makes no other */
        check_that_a_copy_waits_for(gpu->green_stream());
}
END_TEST

START_TEST(a_consumer_waits_for_the_copy)
{
    make(NULL, 400 << 10);
    const struct onepot_batch *b = held_batch();
    use(b, reader);
    copy(reader, where(b).data, BATCH_BYTES);
    quiet();
    let_go();
    await(reader);
    ck_assert_mem_eq(got, want, BATCH_BYTES);
    onepot_batch_release(b);
    release_kept();
}
END_TEST

/* Until the loader has no memory that it may write to, or has gone on without minding. */
START_TEST(the_host_writes_nothing_that_a_copy_has_yet_to_read)
{
    make(NULL, 400 << 10);
    const struct onepot_batch *b = held_batch();
    struct onepot_error error = {0};
    use(b, reader);
    copy(reader, where(b).data, BATCH_BYTES);
    onepot_batch_release(b);
    release_kept();
    for (unsigned n = 0; n < FILES && !is_waited_for();) {
        int r = onepot_loader_next(loader, 1, &error, &b);
        if (r > 0)
            onepot_batch_release(b);
        ck_assert(r >= 0 || r == -ETIMEDOUT);
        n += r > 0;
    }
    let_go();
    await(reader);
    ck_assert_mem_eq(got, want, BATCH_BYTES);
}
END_TEST

static void want_images(const struct onepot_batch *b)
{
    convert_host(&floats, BATCH, b->data, want);
}

START_TEST(a_consumer_waits_for_the_images)
{
    hold_images(true);
    make(&floats, 4 << 20);
    const struct onepot_batch *b = next();
    want_images(b);
    use(b, reader);
    copy(reader, where(b).images, sizeof(want));
    quiet();
    hold_images(false);
    await(reader);
    ck_assert_mem_eq(got, want, sizeof(want));
    onepot_batch_release(b);
}
END_TEST

START_TEST(images_wait_for_the_copy)
{
    make(&floats, 4 << 20);
    const struct onepot_batch *b = held_batch();
    want_images(b);
    use(b, reader);
    copy(reader, where(b).images, sizeof(want));
    quiet();
    let_go();
    await(reader);
    ck_assert_mem_eq(got, want, sizeof(want));
    onepot_batch_release(b);
    release_kept();
}
END_TEST

/* While kernels of the job keep the GPU busy, data still goes over the link. */
START_TEST(the_next_copy_waits_for_no_images)
{
    hold_images(true);
    make(&floats, 4 << 20);
    const struct onepot_batch *a = next(), *b = next();
    quiet();
    copy(reader, where(b).data, BATCH_BYTES); /* unordered, but what is queued is done */
    await(reader);
    ck_assert_mem_eq(got, b->data, BATCH_BYTES);
    hold_images(false);
    onepot_batch_release(a);
    onepot_batch_release(b);
    ck_assert(!gpu || gpu->urgent_streams > 0);
}
END_TEST

/* ---- archives that are locked ---- */

static bool was_stored;

static int lock_and_note(void *d, const void *memory, size_t bytes, bool is_stored,
                         struct onepot_error *error)
{
    was_stored = is_stored;
    return real->lock(d, memory, bytes, is_stored, error);
}

static void check_on_device(const struct onepot_batch *b)
{
    struct onepot_device_batch w = where(b);
    use(b, reader);
    copy(reader, w.data, b->bytes);
    await(reader);
    for (uint64_t i = 0; i < b->samples; i++)
        for (uint64_t j = 0; j < b->sizes[i]; j += 4) {
            uint32_t found;
            memcpy(&found, (uint8_t *)got + b->offsets[i] + j, 4);
            ck_assert_uint_eq(found, b->indices[i]);
        }
}

START_TEST(a_device_that_gathers_locks_the_archive_and_gets_tables_alone)
{
    struct device_type type = *real;
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = BATCH,
                                            .world_size = 1,
                                            .threads = 2,
                                            .prefetch = 2,
                                            .gather = ONEPOT_GATHER_DEVICE,
                                            .device = device};
    struct onepot_error error = {0};
    type.lock = lock_and_note;
    device->type = &type;
    good(onepot_loader_new(archive, &options, &error, &loader), &error);
    for (unsigned i = 0; i < 2 * FILES / BATCH; i++) {
        const struct onepot_batch *b = next();
        ck_assert_ptr_null(b->data);
        check_on_device(b);
        onepot_batch_release(b);
    }
    onepot_loader_free(loader);
    loader = NULL;
    device->type = &held_type;
    ck_assert_int_eq(was_stored, !source_is_memory(archive->dataset->filesets[0]->source));
    ck_assert(!gpu || gpu->urgent_streams == 1); /* a busy GPU begins with that kernel */
}
END_TEST

START_TEST(a_driver_that_marks_pages_locks_no_stored_file)
{
    struct onepot_error error = {0};
    struct onepot_device *old = NULL;
    if (!gpu)
        return; /* it is as old as it is */
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char path[] = "/tmp/onepot-module.XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_eq(write(file, "565.77\n", 7), 7);
    close(file);
    gpu->module = path;
    good(onepot_device_open("cuda:0", &error, &old), &error);
    ck_assert_int_eq(old->type->lock(old->device, page, 4096, true, &error), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(error.text, "570"));
    good(old->type->lock(old->device, page, 4096, false, &error), &error);
    old->type->unlock(old->device, page, 4096);
    onepot_device_close(old);
    unlink(path);
    good(onepot_device_open("cuda:0", &error, &old), &error); /* nobody knows its version */
    ck_assert_int_eq(old->type->lock(old->device, page, 4096, true, &error), -ENOTSUP);
    onepot_device_close(old);
    good(device->type->lock(device->device, page, 4096, true, &error), &error);
    device->type->unlock(device->device, page, 4096);
}
END_TEST

START_TEST(a_device_that_registers_nothing_locks_no_archive)
{
    struct onepot_error error = {0};
    struct onepot_device *other = NULL;
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!gpu)
        return;
    gpu->no_registering = true;
    good(onepot_device_open("cuda:0", &error, &other), &error);
    ck_assert_int_eq(other->type->lock(other->device, page, 4096, false, &error), -ENOTSUP);
    onepot_device_close(other);
}
END_TEST

/* In a child: a driver that was begun does not survive a fork, and each test is one. */
static bool is_there(void)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct onepot_error error = {0};
        int r = onepot_device_open("cuda:0", &error, &device);
        if (r < 0)
            printf("skipped: no GPU: %s\n", error.text);
        fflush(stdout);
        _exit(r < 0);
    }
    return waitpid(pid, &status, 0) == pid && status == 0;
}

/* [real] [the wait that is left out]: then 0 means that the test of it failed. */
int main(int argc, char **argv)
{
    const struct {
        const char *name;
        const TTest *test;
    } waits[] = {{"follow_users", a_copy_waits_for_readers_of_the_batch_before},
                 {"follow_arrival", a_consumer_waits_for_the_copy},
                 {"settle", the_host_writes_nothing_that_a_copy_has_yet_to_read},
                 {"converted", a_consumer_waits_for_the_images},
                 {"follow_copy", images_wait_for_the_copy}};
    Suite *s = suite_create("order");
    TCase *c = tcase_create("order");
    as_real = argc > 1 && strcmp(argv[1], "real") == 0;
    without = argc > 1 + as_real ? argv[1 + as_real] : "";
    if (!is_there())
        return 77;
    suite_add_tcase(s, c);
    tcase_add_unchecked_fixture(c, pack_once, NULL);
    tcase_add_checked_fixture(c, begin, end);
    tcase_set_timeout(c, 120);
    unsigned added = 0;
    for (unsigned i = 0; i < sizeof(waits) / sizeof(*waits); i++)
        if (!*without || is_without(waits[i].name)) {
            tcase_add_test(c, waits[i].test);
            added++;
        }
    if (*without) {
        setenv("CK_VERBOSITY", "silent", 1); /* the failure is what is wanted */
        bool unnoticed = run_suite(s) == 0 || !added;
        onepot_archive_close(archive);
        printf("%s without %s\n", unnoticed ? "FAILED: nothing fails" : "noticed:", without);
        return unnoticed;
    }
    tcase_add_test(c, a_copy_waits_for_the_stream_of_a_green_context);
    tcase_add_test(c, the_next_copy_waits_for_no_images);
    tcase_add_test(c, a_device_that_gathers_locks_the_archive_and_gets_tables_alone);
    tcase_add_test(c, a_driver_that_marks_pages_locks_no_stored_file);
    tcase_add_test(c, a_device_that_registers_nothing_locks_no_archive);
    int failed = run_suite(s);
    onepot_archive_close(archive);
    return failed;
}
