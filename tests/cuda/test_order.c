/*
 * Each wait between gathering, copies, conversions and consumers is needed: without it, bytes
 * of another batch are seen. Kernels that spin hold streams back, and a test goes on when
 * nothing moves any more. So what is not ordered goes wrong each time (mutate.py takes the
 * waits away one by one).
 *
 * A real GPU does not tell when nothing moves any more. There a test waits for a moment, which
 * is enough for what is ordered, and nearly always for a mutant (bench/gpu/verify).
 */
#include "loader_helper.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "locked.h"
#include "view.h"
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
static struct device_type held_type; /* converts when it may */

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
    held_type.convert = convert_when_told;
    device->type = gpu ? real : &held_type;
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

START_TEST(a_copy_waits_for_readers_of_the_batch_before)
{
    make(NULL, 400 << 10);
    const struct onepot_batch *b = next();
    const uint8_t *memory = where(b).data;
    use(b, reader);
    quiet();
    memcpy(want, b->data, BATCH_BYTES);
    hold(reader);
    copy(reader, memory, BATCH_BYTES);
    onepot_batch_release(b);
    onepot_batch_release(next_in(memory));
    quiet();
    let_go();
    await(reader);
    ck_assert_mem_eq(got, want, BATCH_BYTES);
    release_kept();
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

/* ---- archives that are locked meanwhile ---- */

static sem_t may_lock;
static bool was_stored;

static int lock_when_told(void *d, const void *memory, size_t bytes, bool is_stored,
                          struct onepot_error *error)
{
    was_stored = is_stored;
    while (sem_wait(&may_lock) < 0)
        ;
    return real->lock(d, memory, bytes, is_stored, error);
}

/* Gathering on the device wins any comparison. */
static int at_once(void *d, void *from, void *to, struct onepot_error *error, uint64_t *ret_ns)
{
    int r = real->elapsed(d, from, to, error, ret_ns);
    *ret_ns = 1;
    return r;
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
    if (b->data)
        ck_assert_mem_eq(b->data, got, b->bytes);
}

START_TEST(the_host_gathers_until_archives_are_locked)
{
    struct device_type type = *real;
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = BATCH,
                                            .world_size = 1,
                                            .threads = 2,
                                            .prefetch = 2,
                                            .device = device};
    struct onepot_error error = {0};
    ck_assert_int_eq(sem_init(&may_lock, 0, 0), 0);
    type.lock = lock_when_told;
    type.elapsed = at_once;
    device->type = &type;
    good(onepot_loader_new(archive, &options, &error, &loader), &error);
    for (unsigned i = 0; i < 2 * FILES / BATCH; i++) {
        const struct onepot_batch *b = next();
        ck_assert_ptr_nonnull(b->data);
        check_on_device(b);
        onepot_batch_release(b);
    }
    sem_post(&may_lock);
    for (bool there = false; !there;) {
        const struct onepot_batch *b = next();
        there = !b->data;
        check_on_device(b);
        onepot_batch_release(b);
    }
    for (unsigned i = 0; i < 2 * FILES / BATCH; i++) {
        const struct onepot_batch *b = next();
        ck_assert_ptr_null(b->data);
        check_on_device(b);
        onepot_batch_release(b);
    }
    onepot_loader_free(loader);
    loader = NULL;
    device->type = real;
    ck_assert_int_eq(was_stored, !source_is_memory(archive->dataset->pots[0]->source));
}
END_TEST

START_TEST(what_is_locked_can_be_given_up_halfway)
{
    struct locked *locked = NULL;
    struct onepot_error error = {0};
    atomic_bool stop = true;
    ck_assert_int_eq(locked_new(device, archive, 1 << 30, &stop, &error, &locked), -ECANCELED);
}
END_TEST

START_TEST(a_driver_that_marks_pages_locks_no_stored_file)
{
    struct onepot_error error = {0};
    struct onepot_device *old = NULL;
    if (!gpu)
        return; /* it is as old as it is */
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    gpu->version = 12070;
    good(onepot_device_open("cuda:0", &error, &old), &error);
    ck_assert_int_eq(old->type->lock(old->device, page, 4096, true, &error), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(error.text, "570"));
    good(old->type->lock(old->device, page, 4096, false, &error), &error);
    old->type->unlock(old->device, page, 4096);
    onepot_device_close(old);
    good(device->type->lock(device->device, page, 4096, true, &error), &error);
    device->type->unlock(device->device, page, 4096);
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

int main(int argc, char **argv)
{
    as_real = argc > 1 && strcmp(argv[1], "real") == 0;
    if (!is_there())
        return 77;
    Suite *s = suite_create("order");
    TCase *c = tcase_create("order");
    tcase_add_unchecked_fixture(c, pack_once, NULL);
    tcase_add_checked_fixture(c, begin, end);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, a_copy_waits_for_readers_of_the_batch_before);
    tcase_add_test(c, a_consumer_waits_for_the_copy);
    tcase_add_test(c, the_host_writes_nothing_that_a_copy_has_yet_to_read);
    tcase_add_test(c, a_consumer_waits_for_the_images);
    tcase_add_test(c, images_wait_for_the_copy);
    tcase_add_test(c, the_next_copy_waits_for_no_images);
    tcase_add_test(c, the_host_gathers_until_archives_are_locked);
    tcase_add_test(c, what_is_locked_can_be_given_up_halfway);
    tcase_add_test(c, a_driver_that_marks_pages_locks_no_stored_file);
    suite_add_tcase(s, c);
    int failed = run_suite(s);
    onepot_archive_close(archive);
    return failed;
}
