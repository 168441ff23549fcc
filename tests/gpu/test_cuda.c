/*
 * What goes wrong on a GPU, played: a device that is lost, memory that is not there, pages that
 * can't be locked. Each is one clear error, or the next best way; nothing hangs, and the
 * thread's own context is as it was.
 */
#include "loader_helper.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "onepot_device.h"
#include "played.h"
#include "suite.h"

#define FILES 120u

static struct onepot_archive *archive;
static struct played *gpu;
static struct onepot_device *device;

static size_t size_of(unsigned i)
{
    return 4 * (1 + 37 * (i % 53));
}

static void pack_once(void)
{
    struct tree tree;
    if (archive)
        return;
    tree_begin(&tree);
    tree_numbered(&tree, FILES, 4, size_of);
    ck_assert(tree_pack(&tree, PACKING_ONEPOT));
    archive = tree_open(&tree, NULL);
    tree_end(&tree);
}

static void begin(void)
{
    gpu = played_find();
    ck_assert_ptr_nonnull(gpu);
    device = NULL;
}

static void end(void)
{
    onepot_device_close(device);
    ck_assert_ptr_null(gpu->current());
    ck_assert_uint_eq(gpu->contexts, 0);
}

static void open_device(const char *name)
{
    struct onepot_error error = {0};
    int r = onepot_device_open(name, &error, &device);
    ck_assert_msg(r == 0, "%s", error.text);
}

static int make(enum onepot_gather gather, uint64_t memory_bytes, struct onepot_error *error,
                struct onepot_loader **ret_loader)
{
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = 8,
                                            .world_size = 1,
                                            .threads = 2,
                                            .prefetch = 2,
                                            .memory_bytes = memory_bytes,
                                            .device = device,
                                            .gather = gather};
    return onepot_loader_new(archive, &options, error, ret_loader);
}

/* An epoch, each batch copied back and looked at. */
static void check_epoch(struct onepot_loader *loader)
{
    const struct onepot_batch *b;
    struct onepot_error error = {0};
    unsigned samples = 0;
    int r;
    while ((r = onepot_loader_next(loader, 60000, &error, &b)) > 0) {
        struct onepot_device_batch w = {.size = sizeof(w)};
        ck_assert_int_eq(onepot_batch_on_device(b, &w), 0);
        uint8_t *data = malloc(w.bytes);
        ck_assert_int_eq(onepot_batch_use(b, NULL, &error), 0);
        ck_assert_int_eq(onepot_device_copy(device, NULL, data, w.data, w.bytes, &error), 0);
        ck_assert_int_eq(onepot_device_stream_wait(device, NULL, &error), 0);
        for (uint64_t i = 0; i < b->samples; i++)
            for (uint64_t j = 0; j < b->sizes[i]; j += 4) {
                uint32_t found;
                memcpy(&found, data + b->offsets[i] + j, 4);
                ck_assert_uint_eq(found, b->indices[i]);
            }
        samples += (unsigned)b->samples;
        free(data);
        onepot_batch_release(b);
    }
    ck_assert_msg(r == 0, "%s", error.text);
    ck_assert_uint_eq(samples, FILES);
}

START_TEST(several_devices_are_told_apart)
{
    struct onepot_error error = {0};
    struct onepot_device_info info = {.size = sizeof(info)};
    struct onepot_device *d = NULL;
    gpu->devices = 2;
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "3", 1);
    open_device("cuda");
    ck_assert_int_eq(onepot_device_info(device, &error, &info), 0);
    ck_assert_uint_eq(info.index, 1);
    ck_assert_str_eq(info.name, "played GPU 1");
    ck_assert_int_eq(onepot_device_open("cuda:2", &error, &d), -ENODEV);
    ck_assert_ptr_nonnull(strstr(error.text, "sees 2"));
}
END_TEST

START_TEST(a_driver_without_a_device_is_no_fault_of_it)
{
    struct onepot_error error = {0};
    uint32_t count = 9;
    gpu->devices = -1;
    ck_assert_int_eq(onepot_device_count("cuda", &error, &count), 0);
    ck_assert_uint_eq(count, 0);
    ck_assert_int_eq(onepot_device_open("cuda:0", &error, &device), -ENODEV);
    ck_assert_ptr_nonnull(strstr(error.text, "no cuda device"));
}
END_TEST

START_TEST(a_lost_device_is_one_error_and_an_end)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    int r = 1;
    open_device("cuda:0");
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 1);
    __atomic_store_n(&gpu->lost, true, __ATOMIC_RELEASE);
    ck_assert_int_eq(onepot_batch_use(b, NULL, &error), -EIO);
    ck_assert_ptr_nonnull(strstr(error.text, "cudaErrorIllegalAddress"));
    onepot_batch_release(b);
    for (unsigned i = 0; i < FILES && r > 0; i++) {
        memset(&error, 0, sizeof(error));
        r = onepot_loader_next(loader, 60000, &error, &b);
        if (r > 0)
            onepot_batch_release(b);
    }
    ck_assert_int_eq(r, -EIO);
    ck_assert_ptr_nonnull(strstr(error.text, "CUDA"));
    onepot_loader_free(loader);
}
END_TEST

START_TEST(a_device_without_room_is_an_error_that_says_so)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    open_device("cuda:0");
    gpu->memory_bytes = 4096;
    int r = make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader);
    if (r == 0)
        r = onepot_loader_next(loader, 60000, &error, &b);
    ck_assert_int_eq(r, -ENOMEM);
    ck_assert_ptr_nonnull(strstr(error.text, "smaller batches"));
    onepot_loader_free(loader);
}
END_TEST

static void check_gathering(void)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    struct onepot_transfer t = {.size = sizeof(t)};
    int r = make(ONEPOT_GATHER_DEVICE, 0, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    check_epoch(loader);
    ck_assert_int_eq(onepot_loader_transfer(loader, false, &error, &t), 0);
    ck_assert(t.gathers);
    ck_assert_uint_gt(gpu->kernels, 0);
    onepot_loader_free(loader);
}

START_TEST(the_device_gathers_from_the_archive)
{
    open_device("cuda:0");
    check_gathering();
    ck_assert_uint_eq(gpu->read_only_locks, 1);
}
END_TEST

START_TEST(also_where_its_page_tables_are_the_host_s)
{
    gpu->no_read_only = true;
    gpu->host_tables = true;
    open_device("cuda:0");
    check_gathering();
    ck_assert_uint_eq(gpu->read_only_locks, 1);
}
END_TEST

START_TEST(or_from_a_copy_where_only_that_can_be_locked)
{
    gpu->no_read_only = true;
    open_device("cuda:0");
    check_gathering();
    ck_assert_uint_eq(gpu->read_only_locks, 0);
}
END_TEST

START_TEST(where_nothing_can_be_locked_gathering_is_refused)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    gpu->locked_bytes = 450 << 10; /* less than the archive, and more than some slabs */
    open_device("cuda:0");
    ck_assert_int_eq(make(ONEPOT_GATHER_DEVICE, 300 << 10, &error, &loader), -ENOMEM);
}
END_TEST

START_TEST(the_host_gathers_unless_the_device_is_asked_to)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    struct onepot_transfer t = {.size = sizeof(t)};
    open_device("cuda:0");
    int r = make(ONEPOT_GATHER_AUTO, 0, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    for (unsigned i = 0; i < 20; i++)
        check_epoch(loader);
    ck_assert_int_eq(onepot_loader_transfer(loader, false, &error, &t), 0);
    ck_assert(!t.gathers);
    ck_assert_uint_eq(gpu->kernels, 0);
    ck_assert_uint_eq(gpu->read_only_locks, 0);
    onepot_loader_free(loader);
}
END_TEST

/* A mapping can be locked once only; both devices see it, and the last one unlocks it. */
START_TEST(loaders_of_several_devices_share_what_is_locked)
{
    struct onepot_loader *loaders[3] = {NULL};
    struct onepot_device *first, *second;
    struct onepot_error error = {0};
    gpu->devices = 2;
    open_device("cuda:0");
    first = device;
    gpu->locked_bytes = 1200 << 10; /* no room for copies */
    check_gathering();
    ck_assert_int_eq(make(ONEPOT_GATHER_DEVICE, 0, &error, &loaders[0]), 0);
    ck_assert_int_eq(make(ONEPOT_GATHER_DEVICE, 0, &error, &loaders[1]), 0);
    open_device("cuda:1");
    second = device;
    int r = make(ONEPOT_GATHER_DEVICE, 0, &error, &loaders[2]);
    ck_assert_msg(r == 0, "%s", error.text);
    device = first;
    check_epoch(loaders[1]);
    onepot_loader_free(loaders[0]);
    onepot_loader_free(loaders[1]);
    onepot_device_close(first);
    device = second;
    check_epoch(loaders[2]);
    onepot_loader_free(loaders[2]);
    ck_assert_uint_eq(gpu->read_only_locks, 2); /* once for the one before, once for three */
}
END_TEST

/* A sample over the border of two parts; the device's memory has the tables behind it. */
static void gather_over_parts(const uint8_t *locked, size_t at, size_t bytes)
{
    const struct device_type *type = device->type;
    struct onepot_error error = {0};
    void *host, *memory, *stream = gpu->stream(false);
    uint64_t from;
    uint8_t got[256];
    ck_assert_int_eq(type->allocate(device->device, DEVICE_MEMORY_LOCKED, 24, &error, &host),
                     0);
    ck_assert_int_eq(type->allocate(device->device, DEVICE_MEMORY_OWN, 512, &error, &memory),
                     0);
    uint64_t *table = host, *there = (uint64_t *)memory + 32;
    ck_assert_int_eq(type->address(device->device, locked, &error, &from), 0);
    table[0] = from + at;
    table[1] = 0;
    table[2] = bytes;
    struct device_gather gather = {memory, bytes, 1, there, there + 1, there + 2};
    ck_assert_int_eq(type->copy(device->device, stream, there, host, 24, &error), 0);
    ck_assert_int_eq(type->gather(device->device, stream, &gather, &error), 0);
    ck_assert_int_eq(type->copy(device->device, stream, got, memory, bytes, &error), 0);
    ck_assert_int_eq(type->stream_wait(device->device, stream, &error), 0);
    ck_assert_mem_eq(got, locked + at, bytes);
    type->release(device->device, DEVICE_MEMORY_LOCKED, host, 24);
    type->release(device->device, DEVICE_MEMORY_OWN, memory, 512);
}

START_TEST(an_archive_is_locked_in_parts_that_kernels_see_as_one)
{
    enum { PARTS = 4, BYTES = (3 << 20) + 5000 };
    struct onepot_error error = {0};
    size_t pages = (BYTES + 4095) & ~(size_t)4095;
    uint8_t *memory =
        mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < BYTES; i++)
        memory[i] = (uint8_t)(i * 7 % 251);
    ck_assert_int_eq(mprotect(memory, pages, PROT_READ), 0);
    open_device("cuda:0");
    const struct device_type *type = device->type;
    ck_assert_int_eq(type->lock(device->device, memory, BYTES, false, &error), 0);
    ck_assert_uint_eq(gpu->read_only_locks, PARTS);
    gather_over_parts(memory, (1 << 20) - 100, 200);
    gather_over_parts(memory, BYTES - 150, 150);
    type->unlock(device->device, memory, BYTES);
    gpu->apart = true;
    ck_assert_int_eq(type->lock(device->device, memory, BYTES, false, &error), -ENOTSUP);
    gpu->apart = false;
    gpu->locked_bytes = 2 << 20;
    ck_assert_int_eq(type->lock(device->device, memory, BYTES, false, &error), -ENOMEM);
    gpu->locked_bytes = 4 << 20; /* what was locked of it is no more */
    ck_assert_int_eq(type->lock(device->device, memory, BYTES, false, &error), 0);
    type->unlock(device->device, memory, BYTES);
    munmap(memory, pages);
}
END_TEST

static void *release(void *batch)
{
    onepot_batch_release(batch);
    return NULL;
}

/* cudaStreamPerThread is another stream in each of them. */
START_TEST(a_thread_s_own_stream_is_followed_also_if_another_thread_releases)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    void *per_thread = (void *)2;
    pthread_t thread;
    int r;
    open_device("cuda:0");
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    while ((r = onepot_loader_next(loader, 60000, &error, &b)) > 0) {
        ck_assert_int_eq(onepot_batch_use(b, per_thread, &error), 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, release, (void *)(uintptr_t)b), 0);
        pthread_join(thread, NULL);
    }
    ck_assert_msg(r == 0, "%s", error.text);
    onepot_loader_free(loader);
}
END_TEST

/* An epoch that is lent to who names a stream, and one to who names none. */
static void lend_epochs(void)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    void *names[] = {NULL, ONEPOT_NO_STREAM};
    int r = make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    for (unsigned i = 0; i < 2; i++) {
        while ((r = onepot_loader_next(loader, 60000, &error, &b)) > 0) {
            ck_assert_int_eq(onepot_batch_lend(b, names[i], &error), 0);
            onepot_batch_release(b);
        }
        ck_assert_msg(r == 0, "%s", error.text);
    }
    onepot_loader_free(loader);
}

START_TEST(what_is_lent_is_followed_over_the_whole_context)
{
    open_device("cuda:0");
    lend_epochs();
    ck_assert_uint_eq(gpu->context_events, 2 * (FILES / 8));
    ck_assert_uint_eq(gpu->context_waits, 0);
}
END_TEST

START_TEST(a_driver_that_can_not_follow_it_is_waited_for_and_only_then)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    gpu->no_context_events = true;
    open_device("cuda:0");
    lend_epochs();
    ck_assert_uint_eq(gpu->context_events, 0);
    ck_assert_uint_gt(gpu->context_waits, 0);
    gpu->context_waits = 0;
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    check_epoch(loader);
    onepot_loader_free(loader);
    ck_assert_uint_eq(gpu->context_waits, 0);
}
END_TEST

START_TEST(a_driver_that_is_too_old_is_told_with_its_version)
{
    struct onepot_error error = {0};
    gpu->old = true;
    ck_assert_int_eq(onepot_device_open("cuda:0", &error, &device), -ENODEV);
    ck_assert_ptr_nonnull(strstr(error.text, "the driver has CUDA 11.4"));
    ck_assert_ptr_nonnull(strstr(error.text, "newer driver"));
}
END_TEST

/* Exit status 3 for the error that says so, 4 for another. */
START_TEST(a_child_of_a_process_that_began_cuda_without_us_is_told_so)
{
    int (*init)(unsigned), status;
    void *entry = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
    ck_assert_ptr_nonnull(entry);
    memcpy(&init, &entry, sizeof(init));
    ck_assert_int_eq(init(0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct onepot_error error = {0};
        int r = onepot_device_open("cuda:0", &error, &device);
        _exit(r == -ENODEV && strstr(error.text, "spawn") ? 3 : 4);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 3 << 8);
    open_device("cuda:0");
}
END_TEST

static struct onepot_loader *late;
static const struct onepot_batch *late_batch;
static int late_status = 4;

/* The last of the handlers: what a leak checker does behind it is not asked for. */
static void end_now(void)
{
    _exit(late_status);
}

static void give_back(void)
{
    onepot_batch_release(late_batch);
    onepot_loader_free(late);
    onepot_device_close(device);
}

/* As objects of C++ do that are there until the program ends. */
START_TEST(what_is_given_back_after_the_end_of_main_does_no_harm)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct onepot_error error = {0};
        atexit(end_now);
        atexit(give_back);
        open_device("cuda:0");
        int r = make(ONEPOT_GATHER_DEVICE, 0, &error, &late);
        if (r == 0)
            r = onepot_loader_next(late, 60000, &error, &late_batch);
        if (r > 0)
            r = onepot_batch_use(late_batch, NULL, &error);
        late_status = r == 0 ? 3 : 4;
        exit(1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 3 << 8);
}
END_TEST

static void nap(void *ctx)
{
    (void)ctx;
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

static void give_back_early(void)
{
    give_back();
    nap(NULL), nap(NULL), nap(NULL);
}

static void leave_while_copies_wait(void)
{
    struct onepot_error error = {0};
    void *stream = NULL;
    int r = make(ONEPOT_GATHER_HOST, 600 << 10, &error, &late);
    if (r == 0)
        r = onepot_device_stream_new(device, &error, &stream);
    for (unsigned i = 0; i < 6 && r == 0; i++) {
        r = onepot_loader_next(late, 60000, &error, &late_batch) > 0 ? 0 : -EIO;
        if (r == 0)
            r = onepot_batch_use(late_batch, stream, &error);
        if (r == 0)
            r = onepot_device_call(device, stream, nap, NULL, &error);
        if (r == 0)
            onepot_batch_release(late_batch);
    }
    late_batch = NULL;
    late_status = r == 0 ? 3 : 4;
}

/* Nobody can wait for a copy then: what it reads stays. */
START_TEST(nor_to_copies_that_were_not_done_then)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        atexit(end_now);
        atexit(give_back_early);
        open_device("cuda:0");
        leave_while_copies_wait();
        exit(1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 3 << 8);
}
END_TEST

START_TEST(a_gpu_that_no_kernel_was_compiled_for_is_offered_no_images)
{
    const struct onepot_conversion images = {
        .size = sizeof(images), .height = 1, .width = 1, .channels = 3};
    struct onepot_device_info info = {.size = sizeof(info)};
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    gpu->no_image = true;
    open_device("cuda:0");
    ck_assert_int_eq(onepot_device_info(device, &error, &info), 0);
    ck_assert_uint_eq(info.kernels, 0);
    ck_assert_int_eq(make(ONEPOT_GATHER_DEVICE, 0, &error, &loader), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(error.text, "no kernels for it"));
    ck_assert_int_lt(onepot_device_convert(device, NULL, &images, 1, NULL, NULL, &error), 0);
    int r = make(ONEPOT_GATHER_AUTO, 0, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    check_epoch(loader);
    onepot_loader_free(loader);
}
END_TEST

/* Another stream captures meanwhile, as torch does for a graph: the loader goes on around it.
 */
START_TEST(a_capture_is_neither_broken_nor_joined)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    bool broken = true;
    open_device("cuda:0");
    void *captures = gpu->stream(true), *reads = gpu->stream(false);
    gpu->begin_capture(captures);
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    for (unsigned i = 0; i < FILES / 8; i++) {
        ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 1);
        ck_assert_int_eq(onepot_batch_use(b, captures, &error), -EBUSY);
        ck_assert_ptr_nonnull(strstr(error.text, "captures a graph"));
        ck_assert_int_eq(onepot_batch_lend(b, captures, &error), -EBUSY);
        ck_assert_int_eq(onepot_batch_use(b, NULL, &error), -EBUSY); /* would break it */
        ck_assert_int_eq(onepot_batch_use(b, reads, &error), 0);
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(gpu->end_capture(captures, &broken), 0);
    ck_assert(!broken);
    onepot_loader_free(loader);
}
END_TEST

/* A batch is given back while a stream of it captures, which leaves no mark on that. Who wants
 * the memory meanwhile waits, and then copies behind what the stream did before. */
START_TEST(memory_that_a_capture_may_have_used_comes_back_after_it)
{
    for (unsigned lent = 0; lent < 2; lent++) {
        struct onepot_loader *loader = NULL;
        struct onepot_error error = {0};
        const struct onepot_batch *b;
        bool broken = true;
        int r = 1;
        open_device("cuda:0");
        void *stream = gpu->stream(false);
        ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
        ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 1);
        ck_assert_int_eq(onepot_batch_use(b, stream, &error), 0);
        if (lent)
            ck_assert_int_eq(onepot_batch_lend(b, ONEPOT_NO_STREAM, &error), 0);
        gpu->begin_capture(stream);
        onepot_batch_release(b);
        for (unsigned i = 0; i < 2 * FILES / 8 && r != -ETIMEDOUT; i++) {
            r = onepot_loader_next(loader, 50, &error, &b);
            ck_assert_msg(r >= 0 || r == -ETIMEDOUT, "%s", error.text);
            if (r > 0)
                onepot_batch_release(b);
        }
        ck_assert_uint_eq(gpu->end_capture(stream, &broken), 0);
        ck_assert(!broken);
        for (unsigned i = 0; i < 2 * FILES / 8; i++) {
            r = onepot_loader_next(loader, 60000, &error, &b);
            ck_assert_msg(r >= 0, "%s", error.text);
            if (r > 0)
                onepot_batch_release(b);
        }
        onepot_loader_free(loader);
        onepot_device_close(device);
        device = NULL;
    }
}
END_TEST

/* What a thread may break is its own business: no call of ours leaves that changed. */
START_TEST(a_thread_minds_captures_as_it_did_before)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    open_device("cuda:0");
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 1);
    ck_assert_int_eq(onepot_batch_use(b, gpu->stream(false), &error), 0);
    ck_assert(!gpu->is_relaxed());
    onepot_batch_release(b);
    ck_assert(!gpu->is_relaxed());
    ck_assert_ptr_null(gpu->current());
    onepot_loader_free(loader);
}
END_TEST

/* Its consumer may have destroyed the stream before: an event behind everything covers it. */
START_TEST(a_stream_that_was_lent_to_is_not_touched_at_the_release)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    void *stream;
    open_device("cuda:0");
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    for (unsigned i = 0; i < FILES / 8; i++) {
        ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 1);
        ck_assert_int_eq(onepot_device_stream_new(device, &error, &stream), 0);
        ck_assert_int_eq(onepot_batch_lend(b, stream, &error), 0);
        onepot_device_stream_free(device, stream);
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(gpu->context_events, FILES / 8);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(a_stream_of_another_device_is_refused)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    gpu->devices = 2;
    open_device("cuda:1");
    ck_assert_int_eq(make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader), 0);
    ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 1);
    ck_assert_int_eq(onepot_batch_use(b, gpu->stream(false), &error), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "another GPU"));
    onepot_batch_release(b);
    onepot_loader_free(loader);
}
END_TEST

static size_t grown(unsigned i)
{
    return i < FILES / 2 ? 1000 : 20000;
}

/* cudaFree waits for all that the GPU was given; that is no reason for anybody else to wait. */
START_TEST(memory_that_is_given_up_keeps_nobody_waiting)
{
    struct onepot_loader *loader = NULL;
    struct onepot_stats stats = {.size = sizeof(stats)};
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    open_device("cuda:0");
    struct tree tree;
    struct onepot_archive *two_sizes = tree_open_numbered(&tree, FILES, 4, grown);
    tree_end(&tree);
    /* Slabs of the first half of an epoch are too small for the second. */
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = 8,
                                            .world_size = 1,
                                            .no_shuffle = true,
                                            .threads = 2,
                                            .prefetch = 2,
                                            .memory_bytes = 700 << 10,
                                            .device = device,
                                            .gather = ONEPOT_GATHER_HOST};
    ck_assert_int_eq(onepot_loader_new(two_sizes, &options, &error, &loader), 0);
    gpu->spin(gpu->stream(false));
    int r = 1;
    /* On a busy machine more than one call may time out before it is given up. */
    for (unsigned i = 0; r >= 0 ? i < 4 * FILES : r == -ETIMEDOUT && gpu->frees_waiting() == 0;
         i++) {
        r = onepot_loader_next(loader, 20, &error, &b);
        if (r > 0)
            onepot_batch_release(b);
        onepot_loader_stats(loader, &stats);
    }
    ck_assert_msg(r >= 0 || r == -ETIMEDOUT, "%s", error.text);
    ck_assert_uint_gt(gpu->frees_waiting(), 0);
    gpu->release();
    ck_assert_int_eq(onepot_loader_set_epoch(loader, 9), 0);
    check_epoch(loader);
    onepot_loader_free(loader);
    onepot_archive_close(two_sizes);
}
END_TEST

/* More slabs would fit into the loader's memory, but can't be locked: those that are there do.
 */
START_TEST(slabs_that_there_is_no_memory_for_are_not_missed)
{
    struct onepot_loader *loader = NULL;
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = 8,
                                            .world_size = 1,
                                            .threads = 2,
                                            .prefetch = 16,
                                            .memory_bytes = 64 << 20};
    struct onepot_error error = {0};
    const struct onepot_batch *b, *before = NULL;
    open_device("cuda:0");
    gpu->locked_bytes = 700 << 10;
    options.device = device;
    ck_assert_int_eq(onepot_loader_new(archive, &options, &error, &loader), 0);
    for (unsigned i = 0; i < 40 * (FILES / 8 + 1); i++) {
        int r = onepot_loader_next(loader, 60000, &error, &b);
        ck_assert_msg(r >= 0, "batch %u: %s", i, error.text);
        onepot_batch_release(before); /* as a loop of Python does, which keeps one */
        before = r > 0 ? b : NULL;
    }
    onepot_batch_release(before);
    /* A consumer that keeps them all is told that it does. */
    const struct onepot_batch *kept[16];
    unsigned count = 0;
    int r = onepot_loader_set_epoch(loader, 99);
    while (r >= 0 && count < 16)
        if ((r = onepot_loader_next(loader, 60000, &error, &b)) > 0)
            kept[count++] = b;
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_ge(count, 4);
    while (count > 0)
        onepot_batch_release(kept[--count]);
    onepot_loader_free(loader);
}
END_TEST

static const struct device_type *real_type;
static atomic_int locked_left; /* pieces that may be locked; then each waits, and fails */
static sem_t is_locking, may_fail;

static int lock_late_and_fail(void *d, enum device_memory where, size_t bytes,
                              struct onepot_error *error, void **ret_memory)
{
    if (where == DEVICE_MEMORY_OWN || atomic_fetch_sub(&locked_left, 1) > 0)
        return real_type->allocate(d, where, bytes, error, ret_memory);
    sem_post(&is_locking);
    sem_wait(&may_fail);
    sem_post(&may_fail);
    error->code = -ENOMEM;
    return -ENOMEM;
}

START_TEST(a_slab_that_comes_back_while_another_can_not_be_made_is_used)
{
    struct onepot_loader *loader = NULL;
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = 8,
                                            .world_size = 1,
                                            .threads = 1,
                                            .prefetch = 16,
                                            .memory_bytes = 64 << 20};
    struct onepot_error error = {0};
    const struct onepot_batch *b[5];
    open_device("cuda:0");
    struct device_type type = *(real_type = device->type);
    type.allocate = lock_late_and_fail;
    device->type = &type;
    locked_left = 4;
    sem_init(&is_locking, 0, 0);
    sem_init(&may_fail, 0, 0);
    options.device = device;
    ck_assert_int_eq(onepot_loader_new(archive, &options, &error, &loader), 0);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b[i]), 1);
    sem_wait(&is_locking);
    onepot_batch_release(b[0]);
    sem_post(&may_fail);
    int r = onepot_loader_next(loader, 60000, &error, &b[4]);
    ck_assert_msg(r == 1, "%s", error.text);
    for (unsigned i = 1; i < 5; i++)
        onepot_batch_release(b[i]);
    onepot_loader_free(loader);
    device->type = real_type;
}
END_TEST

START_TEST(memory_that_can_not_be_locked_is_named)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    open_device("cuda:0");
    gpu->no_locking = true;
    int r = make(ONEPOT_GATHER_HOST, 600 << 10, &error, &loader);
    if (r == 0)
        r = onepot_loader_next(loader, 60000, &error, &b);
    ck_assert_int_eq(r, -ENOMEM);
    ck_assert_ptr_nonnull(strstr(error.text, "page-locked"));
    onepot_loader_free(loader);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda");
    TCase *c = tcase_create("faults");
    tcase_add_unchecked_fixture(c, pack_once, NULL);
    tcase_add_checked_fixture(c, begin, end);
    tcase_set_timeout(c, 240);
    tcase_add_test(c, several_devices_are_told_apart);
    tcase_add_test(c, a_driver_without_a_device_is_no_fault_of_it);
    tcase_add_test(c, a_lost_device_is_one_error_and_an_end);
    tcase_add_test(c, a_device_without_room_is_an_error_that_says_so);
    tcase_add_test(c, the_device_gathers_from_the_archive);
    tcase_add_test(c, also_where_its_page_tables_are_the_host_s);
    tcase_add_test(c, or_from_a_copy_where_only_that_can_be_locked);
    tcase_add_test(c, where_nothing_can_be_locked_gathering_is_refused);
    tcase_add_test(c, the_host_gathers_unless_the_device_is_asked_to);
    tcase_add_test(c, loaders_of_several_devices_share_what_is_locked);
    tcase_add_test(c, an_archive_is_locked_in_parts_that_kernels_see_as_one);
    tcase_add_test(c, a_thread_s_own_stream_is_followed_also_if_another_thread_releases);
    tcase_add_test(c, what_is_lent_is_followed_over_the_whole_context);
    tcase_add_test(c, a_driver_that_can_not_follow_it_is_waited_for_and_only_then);
    tcase_add_test(c, a_driver_that_is_too_old_is_told_with_its_version);
    tcase_add_test(c, a_child_of_a_process_that_began_cuda_without_us_is_told_so);
    tcase_add_test(c, what_is_given_back_after_the_end_of_main_does_no_harm);
    tcase_add_test(c, nor_to_copies_that_were_not_done_then);
    tcase_add_test(c, a_gpu_that_no_kernel_was_compiled_for_is_offered_no_images);
    tcase_add_test(c, a_capture_is_neither_broken_nor_joined);
    tcase_add_test(c, memory_that_a_capture_may_have_used_comes_back_after_it);
    tcase_add_test(c, a_thread_minds_captures_as_it_did_before);
    tcase_add_test(c, a_stream_that_was_lent_to_is_not_touched_at_the_release);
    tcase_add_test(c, a_stream_of_another_device_is_refused);
    tcase_add_test(c, memory_that_is_given_up_keeps_nobody_waiting);
    tcase_add_test(c, slabs_that_there_is_no_memory_for_are_not_missed);
    tcase_add_test(c, a_slab_that_comes_back_while_another_can_not_be_made_is_used);
    tcase_add_test(c, memory_that_can_not_be_locked_is_named);
    suite_add_tcase(s, c);
    int failed = run_suite(s);
    onepot_archive_close(archive);
    return failed;
}
