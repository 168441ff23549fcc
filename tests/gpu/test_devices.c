/*
 * A loader with several devices: which batch is on which, whose memory it has, and what one of
 * them can do to the others. Memory of the played devices belongs to one of them each, and a
 * task that reaches for another's ends the process.
 */
#include "loader_helper.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"
#include "forks.h"
#include "onepot_device.h"
#include "played.h"
#include "suite.h"

#define FILES 120u
#define SAMPLE_BYTES 60u /* an image of 4 by 5 pixels */
#define BATCH 8u
#define BATCHES                                                                                \
    (FILES / BATCH) /* odd, so that epochs end on another device than they begin               \
                     */
#define DEVICES_MAX 4u
#define SLAB_BYTES (64u << 10)
#define SLABS_MAX 64u

static struct onepot_archive *archive;
static struct played *gpu;
static struct onepot_device *devices[DEVICES_MAX];
static void *streams[DEVICES_MAX]; /* one of each */
static uint32_t count;
static struct onepot_loader *loader;

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

static void begin(void)
{
    gpu = played_find();
    ck_assert_ptr_nonnull(gpu);
    loader = NULL;
    count = 0;
}

static void open_devices(uint32_t wanted)
{
    struct onepot_error error = {0};
    char name[16];
    gpu->devices = (int)wanted;
    for (count = 0; count < wanted; count++) {
        snprintf(name, sizeof(name), "cuda:%u", count);
        good(onepot_device_open(name, &error, &devices[count]), &error);
        streams[count] = gpu->stream_on((int)count, false);
    }
}

static void close_devices(void)
{
    for (uint32_t i = 0; i < count; i++)
        onepot_device_close(devices[i]);
    count = 0;
}

static void end(void)
{
    onepot_loader_free(loader);
    close_devices();
    ck_assert_ptr_null(gpu->current());
    ck_assert_uint_eq(gpu->contexts, 0);
}

static struct onepot_loader_options options_of(uint64_t memory_bytes)
{
    return (struct onepot_loader_options){.size = sizeof(struct onepot_loader_options),
                                          .batch_size = BATCH,
                                          .world_size = 1,
                                          .seed = 7,
                                          .threads = 2,
                                          .memory_bytes = memory_bytes,
                                          .gather = ONEPOT_GATHER_HOST,
                                          .devices = devices,
                                          .device_count = count};
}

static struct onepot_loader *make(const struct onepot_loader_options *options)
{
    struct onepot_error error = {0};
    struct onepot_loader *l = NULL;
    good(onepot_loader_new(archive, options, &error, &l), &error);
    return l;
}

/* NULL: the epoch is over. */
static const struct onepot_batch *next_of(struct onepot_loader *l)
{
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    int r = onepot_loader_next(l, 60000, &error, &b);
    good(r, &error);
    return r > 0 ? b : NULL;
}

static struct onepot_device_batch where(const struct onepot_batch *b)
{
    struct onepot_device_batch w = {.size = sizeof(w)};
    ck_assert_int_eq(onepot_batch_on_device(b, &w), 0);
    return w;
}

/* Copy what a stream of the batch's device sees. */
static void read_back(const struct onepot_batch *b, void *to, const void *from, size_t bytes)
{
    struct onepot_error error = {0};
    uint32_t d = where(b).device;
    good(onepot_batch_use(b, streams[d], &error), &error);
    good(onepot_device_copy(devices[d], streams[d], to, from, bytes, &error), &error);
    good(onepot_device_stream_wait(devices[d], streams[d], &error), &error);
}

/* It is where its place in the epoch says, all of it, and is what it should be. */
static void check_batch(const struct onepot_batch *b)
{
    struct onepot_device_batch w = where(b);
    uint8_t data[BATCH * 2 * SAMPLE_BYTES];
    uint64_t indices[BATCH];
    int device = (int)(b->first / BATCH % count);
    ck_assert_uint_eq(w.device, device);
    ck_assert_uint_eq(w.index, device);
    ck_assert_int_eq(gpu->device_of(w.data), device);
    ck_assert_int_eq(gpu->device_of(w.indices), device);
    ck_assert_uint_le(w.bytes, sizeof(data));
    read_back(b, data, w.data, w.bytes);
    read_back(b, indices, w.indices, b->samples * sizeof(*indices));
    for (uint64_t i = 0; i < b->samples; i++) {
        uint32_t found;
        memcpy(&found, data + b->offsets[i], 4);
        ck_assert_uint_eq(found, b->indices[i]);
        ck_assert_uint_eq(indices[i], b->indices[i]);
    }
}

START_TEST(batch_after_batch_goes_to_the_next_device)
{
    for (uint32_t n = 1; n <= 3; n++) {
        open_devices(n);
        struct onepot_loader_options options = options_of(0), plain = options;
        plain.devices = NULL;
        plain.device_count = 0;
        struct onepot_loader *on_host = make(&plain);
        loader = make(&options);
        for (unsigned epoch = 0; epoch < 3; epoch++) {
            for (unsigned i = 0; i < BATCHES; i++) {
                const struct onepot_batch *b = next_of(loader), *want = next_of(on_host);
                ck_assert_uint_eq(b->first, i * BATCH);
                ck_assert_mem_eq(b->indices, want->indices, BATCH * sizeof(*b->indices));
                check_batch(b);
                onepot_batch_release(b);
                onepot_batch_release(want);
            }
            ck_assert_ptr_null(next_of(loader));
            ck_assert_ptr_null(next_of(on_host));
        }
        onepot_loader_free(on_host);
        onepot_loader_free(loader);
        loader = NULL;
        close_devices();
    }
}
END_TEST

/* Also in the middle of a round, and after the loader went to another epoch. */
START_TEST(a_resume_goes_on_with_the_device_that_comes_next)
{
    struct onepot_error error = {0};
    open_devices(3);
    struct onepot_loader_options options = options_of(0);
    for (unsigned done = 0; done < 5; done++) {
        struct onepot_state state = {.size = sizeof(state)};
        uint64_t want[BATCH];
        loader = make(&options);
        good(onepot_loader_set_epoch(loader, 1), &error);
        for (unsigned i = 0; i < done; i++)
            onepot_batch_release(next_of(loader));
        good(onepot_loader_state(loader, &error, &state), &error);
        const struct onepot_batch *b = next_of(loader);
        memcpy(want, b->indices, sizeof(want));
        onepot_batch_release(b);
        onepot_loader_free(loader);

        loader = make(&options);
        onepot_batch_release(next_of(loader)); /* it has slabs and batches of its own */
        good(onepot_loader_restore(loader, &state, &error), &error);
        for (unsigned i = done; i < BATCHES; i++) {
            b = next_of(loader);
            ck_assert_uint_eq(b->first, i * BATCH);
            ck_assert(i > done || memcmp(b->indices, want, sizeof(want)) == 0);
            check_batch(b);
            onepot_batch_release(b);
        }
        onepot_loader_free(loader);
        loader = NULL;
    }
}
END_TEST

/* The batches of one step, by ranks with some devices each, up to another place in the epoch.
 */
static void deliver(uint32_t ranks, uint32_t device_count, const struct onepot_state *from,
                    unsigned steps, struct onepot_state *ret_state,
                    struct onepot_delivered *delivered)
{
    struct onepot_error error = {0};
    open_devices(device_count);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct onepot_loader_options options = options_of(0);
        struct onepot_delivered part;
        options.batch_size = 2 * BATCH / ranks;
        options.rank = rank;
        options.world_size = ranks;
        loader = make(&options);
        if (from)
            good(onepot_loader_restore(loader, from, &error), &error);
        for (unsigned i = 0; i < steps; i++) {
            const struct onepot_batch *b = next_of(loader);
            ck_assert_ptr_nonnull(b);
            ck_assert_uint_eq(where(b).device, b->first / options.batch_size % count);
            onepot_batch_release(b);
        }
        good(onepot_loader_state(loader, &error, ret_state), &error);
        onepot_loader_delivered(loader, &part);
        onepot_delivered_add(delivered, &part);
        onepot_loader_free(loader);
        loader = NULL;
    }
    close_devices();
}

START_TEST(a_resume_may_have_other_ranks_and_other_devices)
{
    static const struct {
        uint32_t ranks, devices;
    } jobs[] = {{1, 3}, {2, 2}, {4, 1}, {2, 4}};
    for (unsigned i = 0; i < 16; i++) {
        struct onepot_state half = {.size = sizeof(half)}, whole = half;
        struct onepot_delivered sum = {0}, all;
        deliver(jobs[i / 4].ranks, jobs[i / 4].devices, NULL, 3, &half, &sum);
        ck_assert_uint_eq(half.done, 3 * 2 * BATCH);
        deliver(jobs[i % 4].ranks, jobs[i % 4].devices, &half, 5, &whole, &sum);
        onepot_archive_all(archive, &all);
        ck_assert_mem_eq(&sum, &all, sizeof(all));
    }
}
END_TEST

START_TEST(other_ranks_with_another_global_batch_are_told_so)
{
    struct onepot_state state = {.size = sizeof(state)};
    struct onepot_error error = {0};
    open_devices(2);
    struct onepot_loader_options options = options_of(0);
    loader = make(&options);
    onepot_batch_release(next_of(loader));
    good(onepot_loader_state(loader, &error, &state), &error);
    onepot_loader_free(loader);
    options.world_size = 3;
    loader = make(&options);
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "the global batch must be the same"), "%s", error.text);
    const struct onepot_batch *b = next_of(loader); /* and it goes on where it was */
    ck_assert_uint_eq(b->first, 0);
    onepot_batch_release(b);
}
END_TEST

/* As a worker of torch's DataLoader that was forked. Exit status 3: it says what to do. */
START_TEST(a_forked_child_is_told_so_and_the_parent_goes_on_with_all)
{
    open_devices(3);
    struct onepot_loader_options options = options_of(0);
    loader = make(&options);
    const struct onepot_batch *kept = next_of(loader), *b;
    pid_t pid = FORKS_WITH_THREADS ? fork() : -1;
    if (pid == 0) {
        struct onepot_error error = {0};
        for (unsigned i = 0; i < 2; i++)
            if (onepot_loader_next(loader, 60000, &error, &b) != -ENODEV ||
                !strstr(error.text, "spawn"))
                _exit(4);
        onepot_batch_release(kept); /* the parent's: nothing of CUDA may be called */
        onepot_loader_free(loader);
        for (uint32_t i = 0; i < count; i++)
            onepot_device_close(devices[i]);
        _exit(3);
    }
    int status = 3 << 8;
    ck_assert(!FORKS_WITH_THREADS || waitpid(pid, &status, 0) == pid);
    ck_assert_int_eq(status, 3 << 8);
    check_batch(kept);
    onepot_batch_release(kept);
    for (unsigned i = 1; i < BATCHES; i++) {
        b = next_of(loader);
        ck_assert_uint_eq(b->first, i * BATCH);
        check_batch(b);
        onepot_batch_release(b);
    }
}
END_TEST

static void use(const struct onepot_batch *b, void *stream)
{
    struct onepot_error error = {0};
    good(onepot_batch_use(b, stream, &error), &error);
}

/* Locked memory of the host belongs to a device, too: its node, and events of its context. */
START_TEST(no_device_gets_memory_of_another)
{
    const uint8_t *seen[SLABS_MAX];
    uint32_t of[SLABS_MAX];
    unsigned n = 0, again = 0;
    open_devices(2);
    struct onepot_loader_options options = options_of(6 * SLAB_BYTES);
    loader = make(&options);
    for (unsigned i = 0; i < 4 * BATCHES; i++) {
        const struct onepot_batch *b = next_of(loader);
        unsigned at = 0;
        if (!b)
            continue;
        while (at < n && seen[at] != b->data)
            at++;
        if (at == n) {
            ck_assert_uint_lt(n, SLABS_MAX);
            seen[n] = b->data;
            of[n++] = where(b).device;
        } else {
            again++;
        }
        ck_assert_uint_eq(of[at], where(b).device);
        check_batch(b);
        onepot_batch_release(b);
    }
    ck_assert_uint_gt(again, n);
    ck_assert_uint_le(n, 6);
}
END_TEST

static uint64_t used_on(uint32_t device)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct onepot_error error = {0};
    good(onepot_device_info(devices[device], &error, &info), &error);
    return info.total_bytes - info.free_bytes;
}

/* The consumer keeps what it gets, until a device has no more: it can't have the other's. */
START_TEST(each_device_has_its_part_of_the_memory)
{
    const struct onepot_batch *kept[BATCHES], *b = NULL;
    struct onepot_stats stats = {.size = sizeof(stats)};
    struct onepot_error error = {0};
    unsigned n = 0;
    int r;
    open_devices(2);
    struct onepot_loader_options options = options_of(6 * SLAB_BYTES);
    loader = make(&options);
    while ((r = onepot_loader_next(loader, 60000, &error, &kept[n])) > 0)
        n++;
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_eq(n, 6);
    ck_assert_ptr_nonnull(strstr(error.text, "on cuda:0"));
    onepot_loader_stats(loader, &stats);
    ck_assert_uint_eq(stats.slab_bytes, 6 * SLAB_BYTES);
    ck_assert_uint_eq(used_on(0), used_on(1));
    onepot_batch_release(kept[1]); /* of the other device: that does not help */
    ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), -ENOBUFS);
    onepot_batch_release(kept[2]);
    b = next_of(loader);
    ck_assert_uint_eq(b->first, n * BATCH);
    check_batch(b);
    onepot_batch_release(b);
    b = next_of(loader); /* in what kept[1] had */
    check_batch(b);
    onepot_batch_release(b);
    onepot_loader_stats(loader, &stats);
    ck_assert_uint_eq(stats.slab_bytes, 6 * SLAB_BYTES);
    for (unsigned i = 0; i < n; i++)
        if (i != 1 && i != 2)
            onepot_batch_release(kept[i]);
}
END_TEST

/* Also where the consumer gives all of the other device's back. */
START_TEST(no_device_has_more_than_its_part)
{
    const struct onepot_batch *kept[BATCHES], *b = NULL;
    struct onepot_error error = {0};
    unsigned n = 0;
    int r;
    open_devices(2);
    struct onepot_loader_options options = options_of(6 * SLAB_BYTES);
    options.prefetch = 1;
    loader = make(&options);
    while ((r = onepot_loader_next(loader, 60000, &error, &b)) > 0)
        if (where(b).device == 0)
            kept[n++] = b;
        else
            onepot_batch_release(b);
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_eq(n, 3);
    while (n)
        onepot_batch_release(kept[--n]);
}
END_TEST

START_TEST(six_batches_are_ahead_or_two_of_each_device)
{
    static const uint32_t ahead[] = {0, 6, 6, 6, 8};
    for (uint32_t n = 2; n <= 4; n++) {
        struct onepot_stats stats = {.size = sizeof(stats)};
        open_devices(n);
        struct onepot_loader_options options = options_of(0);
        options.batch_size = 2; /* many, for the threads' sake */
        loader = make(&options);
        onepot_loader_stats(loader, &stats);
        ck_assert_uint_eq(stats.prefetch, ahead[n]);
        onepot_loader_free(loader);
        loader = NULL;
        close_devices();
    }
}
END_TEST

START_TEST(one_lost_device_is_named_and_the_others_go_on)
{
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    unsigned failed = 0, arrived = 0;
    int r;
    open_devices(2);
    struct onepot_loader_options options = options_of(0);
    loader = make(&options);
    while ((r = onepot_loader_next(loader, 60000, &error, &b)) > 0)
        onepot_batch_release(b); /* an epoch, so that there is memory for all batches */
    good(r, &error);
    check_batch(b = next_of(loader));
    onepot_batch_release(b);
    __atomic_store_n(&gpu->lost_devices, 1u << 1, __ATOMIC_RELEASE);
    while ((r = onepot_loader_next(loader, 60000, &error, &b)) != 0) {
        if (r > 0 && where(b).device == 0) {
            check_batch(b);
            arrived++;
        } else if (r < 0) {
            ck_assert_int_eq(r, -EIO);
            ck_assert_ptr_nonnull(strstr(error.text, "cuda:1: "));
            ck_assert_ptr_nonnull(strstr(error.text, "cudaErrorIllegalAddress"));
            ck_assert_uint_le(++failed, BATCHES);
        }
        if (r > 0)
            onepot_batch_release(b);
    }
    ck_assert_uint_eq(arrived, BATCHES / 2);
    ck_assert_uint_gt(failed, 0);
}
END_TEST

START_TEST(a_device_without_room_is_named)
{
    struct onepot_error error = {0};
    const struct onepot_batch *b = NULL;
    void *hog;
    open_devices(2);
    const struct device_type *type = devices[1]->type;
    gpu->memory_bytes = 8 << 20;
    size_t bytes = (8 << 20) - (64 << 10);
    good(type->allocate(devices[1]->device, DEVICE_MEMORY_OWN, bytes - 256, &error, &hog),
         &error);
    struct onepot_loader_options options = options_of(6 * SLAB_BYTES);
    loader = make(&options);
    check_batch(b = next_of(loader));
    onepot_batch_release(b);
    ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(error.text, "cuda:1: "));
    type->release(devices[1]->device, DEVICE_MEMORY_OWN, hog, bytes - 256);
    /* Of failures that are older than the room one may be known, and one on its way. */
    int r = -ENOMEM;
    for (unsigned i = 0; i < 3 && r == -ENOMEM; i++)
        r = onepot_loader_next(loader, 60000, &error, &b);
    good(r, &error);
    check_batch(b);
    ck_assert_uint_eq(b->first, BATCH);
    onepot_batch_release(b);
}
END_TEST

START_TEST(streams_are_those_of_the_batch_s_device)
{
    struct onepot_error error = {0};
    open_devices(2);
    struct onepot_loader_options options = options_of(0);
    loader = make(&options);
    for (unsigned i = 0; i < BATCHES; i++) {
        const struct onepot_batch *b = next_of(loader);
        uint32_t device = where(b).device;
        char name[16];
        snprintf(name, sizeof(name), "cuda:%u: ", device);
        ck_assert_int_eq(onepot_batch_use(b, streams[!device], &error), -EINVAL);
        ck_assert_ptr_nonnull(strstr(error.text, name));
        ck_assert_ptr_nonnull(strstr(error.text, "another GPU"));
        ck_assert_int_eq(onepot_batch_lend(b, streams[!device], &error), -EINVAL);
        use(b, NULL); /* the default stream of its own device */
        good(onepot_batch_lend(b, streams[device], &error), &error);
        onepot_batch_release(b);
    }
}
END_TEST

/* A graph on one device: its streams are refused, the other device's are as ever. */
START_TEST(a_capture_concerns_its_own_device)
{
    struct onepot_error error = {0};
    bool broken = true;
    open_devices(2);
    struct onepot_loader_options options = options_of(0);
    void *captures = gpu->stream_on(0, true);
    loader = make(&options);
    gpu->begin_capture(captures);
    for (unsigned i = 0; i < BATCHES; i++) {
        const struct onepot_batch *b = next_of(loader);
        bool first = where(b).device == 0;
        ck_assert_int_eq(onepot_batch_use(b, captures, &error), -EBUSY);
        ck_assert_int_eq(onepot_batch_use(b, NULL, &error), first ? -EBUSY : 0);
        check_batch(b);
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(gpu->end_capture(captures, &broken), 0);
    ck_assert(!broken);
}
END_TEST

/* Kernels read all that the first device was given, for long; copies to it wait for them. */
START_TEST(a_device_that_is_busy_keeps_no_other_s_copies_back)
{
    struct onepot_error error = {0};
    const struct onepot_batch *kept[4], *b, *late;
    open_devices(2);
    struct onepot_loader_options options = options_of(4 * SLAB_BYTES);
    loader = make(&options);
    void *busy = gpu->stream_on(0, false);
    for (unsigned i = 0; i < 4; i++) /* all the memory that there is */
        kept[i] = next_of(loader);
    for (unsigned i = 0; i < 4; i++) {
        if (where(kept[i]).device == 0) {
            use(kept[i], busy);
            gpu->spin(busy);
        }
        onepot_batch_release(kept[i]);
    }
    late = next_of(loader);
    check_batch(b = next_of(loader)); /* it arrives */
    ck_assert_uint_eq(where(b).device, 1);
    onepot_batch_release(b);
    use(late, streams[0]); /* which waits for the copy, and that for the kernels */
    gpu->release();
    check_batch(late);
    onepot_batch_release(late);
    good(onepot_device_stream_wait(devices[0], busy, &error), &error);
}
END_TEST

/* Give back what was copied behind kernels that are held back: nobody may write to it yet. */
static void give_back_unsettled(void)
{
    const struct onepot_batch *b[4];
    for (unsigned i = 0; i < 4; i++)
        b[i] = next_of(loader);
    for (unsigned i = 4; i-- > 0;) /* one of the second device is the oldest */
        onepot_batch_release(b[i]);
}

/* Memory of the first device is waited for; the second's would be free earlier or later. */
START_TEST(the_wait_for_memory_is_for_that_of_the_next_device)
{
    struct onepot_error error = {0};
    const struct onepot_batch *kept[4], *b = NULL;
    void *memory;
    int r;
    open_devices(2);
    good(devices[0]->type->allocate(devices[0]->device, DEVICE_MEMORY_OWN, SLAB_BYTES, &error,
                                    &memory),
         &error);
    struct onepot_loader_options options = options_of(4 * SLAB_BYTES);
    options.prefetch = 1; /* so that the second device's memory is not wanted afterwards */
    loader = make(&options);
    gpu->hold_kernels(true);
    for (unsigned i = 0; i < 4; i++) {
        use(kept[i] = next_of(loader), streams[i % 2]);
        if (i % 2)
            gpu->spin(streams[1]);
        else
            good(onepot_device_convert(devices[0], streams[0], &floats, 1, memory,
                                       (uint8_t *)memory + 4096, &error),
                 &error);
    }
    for (unsigned i = 0; i < 4; i++)
        onepot_batch_release(kept[i]);
    give_back_unsettled();
    while ((r = onepot_loader_next(loader, 1, &error, &b)) == -ETIMEDOUT && !gpu->waiting())
        ;
    ck_assert_int_eq(r, -ETIMEDOUT);
    gpu->hold_kernels(false);
    while (gpu->waiting()) /* else until the suite's time is up */
        sched_yield();
    check_batch(b = next_of(loader));
    ck_assert_uint_eq(where(b).device, 0);
    onepot_batch_release(b);
    gpu->release();
    onepot_loader_free(loader);
    loader = NULL;
    devices[0]->type->release(devices[0]->device, DEVICE_MEMORY_OWN, memory, SLAB_BYTES);
}
END_TEST

START_TEST(images_are_made_on_each_device)
{
    open_devices(2);
    struct onepot_loader_options options = options_of(0);
    options.convert = &floats;
    options.align = 1;
    loader = make(&options);
    for (unsigned i = 0; i < BATCHES; i++) {
        const struct onepot_batch *b = next_of(loader);
        struct onepot_device_batch w = where(b);
        float want[BATCH * SAMPLE_BYTES], got[BATCH * SAMPLE_BYTES];
        ck_assert_int_eq(gpu->device_of(w.images), (int)(i % 2));
        ck_assert_uint_eq(w.image_bytes, sizeof(want));
        convert_host(&floats, BATCH, b->data, want);
        read_back(b, got, w.images, sizeof(got));
        ck_assert_mem_eq(got, want, sizeof(got));
        onepot_batch_release(b);
    }
}
END_TEST

/* Into memory of the batch's device; of which the rest becomes 0. */
START_TEST(copies_are_made_on_the_batch_s_device)
{
    struct onepot_error error = {0};
    uint8_t got[SLAB_BYTES / 64], zeros[SLAB_BYTES / 64] = {0};
    void *to[2];
    open_devices(2);
    for (uint32_t i = 0; i < 2; i++)
        good(devices[i]->type->allocate(devices[i]->device, DEVICE_MEMORY_OWN, sizeof(got),
                                        &error, &to[i]),
             &error);
    struct onepot_loader_options options = options_of(0);
    loader = make(&options);
    for (unsigned i = 0; i < BATCHES; i++) {
        const struct onepot_batch *b = next_of(loader);
        uint32_t d = where(b).device;
        good(onepot_batch_copy(b, streams[d], to[d], sizeof(got), where(b).data, b->bytes,
                               &error),
             &error);
        ck_assert_int_eq(onepot_batch_copy(b, streams[!d], to[d], sizeof(got), where(b).data,
                                           b->bytes, &error),
                         -EINVAL);
        read_back(b, got, to[d], sizeof(got));
        ck_assert_mem_eq(got, b->data, b->bytes);
        ck_assert_mem_eq(got + b->bytes, zeros, sizeof(got) - b->bytes);
        onepot_batch_release(b);
    }
    for (uint32_t i = 0; i < 2; i++)
        devices[i]->type->release(devices[i]->device, DEVICE_MEMORY_OWN, to[i], sizeof(got));
}
END_TEST

static void check_gathering(unsigned long read_only_locks)
{
    struct onepot_transfer t = {.size = sizeof(t)};
    struct onepot_error error = {0};
    open_devices(2);
    struct onepot_loader_options options = options_of(0);
    options.gather = ONEPOT_GATHER_DEVICE;
    loader = make(&options);
    for (unsigned i = 0; i < BATCHES; i++) {
        const struct onepot_batch *b = next_of(loader);
        ck_assert_ptr_null(b->data);
        check_batch(b);
        onepot_batch_release(b);
    }
    good(onepot_loader_transfer(loader, false, &error, &t), &error);
    ck_assert_uint_eq(t.gathers, 1);
    ck_assert_uint_gt(t.peak_bytes_per_second, 0);
    ck_assert_uint_gt(t.batches, BATCHES / 2); /* more than one device's */
    ck_assert_uint_eq(gpu->read_only_locks, read_only_locks);
}

/* The archives are locked once, for all. */
START_TEST(all_devices_gather_from_what_is_locked)
{
    check_gathering(1);
}
END_TEST

START_TEST(or_from_one_copy_of_it)
{
    gpu->no_read_only = true;
    check_gathering(0);
}
END_TEST

static void open_kept(struct onepot_loader **ret, const struct onepot_batch **kept)
{
    struct onepot_error error = {0};
    open_devices(3);
    struct onepot_loader_options options = options_of(0);
    options.gather = ONEPOT_GATHER_DEVICE;
    *ret = make(&options);
    for (unsigned i = 0; i < 4; i++) {
        kept[i] = next_of(*ret);
        good(onepot_batch_use(kept[i], streams[where(kept[i]).device], &error), &error);
    }
}

/* `end` looks whether all was given back. */
START_TEST(loader_devices_and_batches_end_in_any_order)
{
    static const unsigned orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    for (unsigned i = 0; i < 9; i++) {
        const struct onepot_batch *kept[4];
        struct onepot_loader *l;
        open_kept(&l, kept);
        if (i < 3)
            close_devices();
        for (unsigned j = 0; j < 4; j++) {
            if (j == 2 && i % 2)
                onepot_loader_free(l);
            onepot_batch_release(kept[orders[i % 3][j]]);
        }
        if (i >= 3 && i < 6)
            close_devices();
        if (i % 2 == 0)
            onepot_loader_free(l);
        close_devices();
        ck_assert_uint_eq(gpu->contexts, 0);
    }
}
END_TEST

static void refused(const struct onepot_loader_options *options, const char *why)
{
    struct onepot_error error = {0};
    struct onepot_loader *l = NULL;
    ck_assert_int_eq(onepot_loader_new(archive, options, &error, &l), -EINVAL);
    ck_assert_msg(strstr(error.text, why) != NULL, "%s", error.text);
}

START_TEST(devices_that_make_no_sense_are_refused)
{
    struct onepot_device *several[65] = {NULL}, *host = NULL, *again = NULL;
    struct onepot_error error = {0};
    open_devices(2);
    struct onepot_loader_options good_one = options_of(0), options = good_one;
    good(onepot_device_open("host", &error, &host), &error);
    good(onepot_device_open("cuda:1", &error, &again), &error);

    options.device = devices[0];
    refused(&options, "exclude each other");
    options = good_one;
    options.device_count = 0;
    refused(&options, "at least one");
    options = good_one;
    options.devices = NULL;
    refused(&options, "at least one");
    options = good_one;
    options.devices = several;
    options.device_count = 65;
    refused(&options, "more than 64");
    options.device_count = 2;
    refused(&options, "NULL");
    several[0] = devices[1];
    several[1] = again;
    refused(&options, "cuda:1 is there twice");
    several[1] = host;
    refused(&options, "cuda:1 and host:0");
    onepot_device_close(host);
    onepot_device_close(again);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("devices");
    TCase *c = tcase_create("devices");
    tcase_add_unchecked_fixture(c, pack_once, NULL);
    tcase_add_checked_fixture(c, begin, end);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, batch_after_batch_goes_to_the_next_device);
    tcase_add_test(c, a_resume_goes_on_with_the_device_that_comes_next);
    tcase_add_test(c, a_resume_may_have_other_ranks_and_other_devices);
    tcase_add_test(c, other_ranks_with_another_global_batch_are_told_so);
    tcase_add_test(c, a_forked_child_is_told_so_and_the_parent_goes_on_with_all);
    tcase_add_test(c, no_device_gets_memory_of_another);
    tcase_add_test(c, each_device_has_its_part_of_the_memory);
    tcase_add_test(c, no_device_has_more_than_its_part);
    tcase_add_test(c, the_wait_for_memory_is_for_that_of_the_next_device);
    tcase_add_test(c, six_batches_are_ahead_or_two_of_each_device);
    tcase_add_test(c, one_lost_device_is_named_and_the_others_go_on);
    tcase_add_test(c, a_device_without_room_is_named);
    tcase_add_test(c, streams_are_those_of_the_batch_s_device);
    tcase_add_test(c, a_capture_concerns_its_own_device);
    tcase_add_test(c, a_device_that_is_busy_keeps_no_other_s_copies_back);
    tcase_add_test(c, images_are_made_on_each_device);
    tcase_add_test(c, copies_are_made_on_the_batch_s_device);
    tcase_add_test(c, all_devices_gather_from_what_is_locked);
    tcase_add_test(c, or_from_one_copy_of_it);
    tcase_add_test(c, loader_devices_and_batches_end_in_any_order);
    tcase_add_test(c, devices_that_make_no_sense_are_refused);
    suite_add_tcase(s, c);
    int failed = run_suite(s);
    onepot_archive_close(archive);
    return failed;
}
