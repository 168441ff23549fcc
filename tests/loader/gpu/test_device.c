/*
 * Batches on a device: what arrives is what was gathered, in the order of the sampler; a slab
 * that is used again never changes under somebody who still reads it; floats are the same
 * bits everywhere.
 *
 * Usage: test_device [DEVICE]: "host" without one. Exit status 77 where there is none.
 */
#include "loader_helper.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "device.h"
#include "share.h"
#include "error.h"
#include "upload.h"
#include "suite.h"

#define FILES 120u
#define CLASSES 4u

static const char *device_name = "host";
static struct tree tree;
static struct onepot_archive *ragged_archive, *image_archive;
static struct onepot_device *device;

static size_t ragged(unsigned i)
{
    return 4 * (1 + 37 * (i % 53));
}

/* 4 * 5 pixels of 3 bytes */
static size_t image(unsigned i)
{
    (void)i;
    return 60;
}

static struct onepot_archive *pack_files(size_t (*size)(unsigned))
{
    run_shell("rm -rf '%s/tree'; mkdir '%s/tree'", tree.path, tree.path);
    tree_numbered(&tree, FILES, CLASSES, size);
    ck_assert(tree_pack(&tree, PACKING_ONEPOT));
    struct onepot_archive *archive = tree_open(&tree, NULL);
    return archive;
}

/* Once, in the process of which each test is a fork: archives outlive that, and their files. */
static void pack_all(void)
{
    if (ragged_archive)
        return;
    tree_begin(&tree);
    ragged_archive = pack_files(ragged);
    image_archive = pack_files(image);
    tree_end(&tree);
}

static void begin(void)
{
    struct onepot_error error = {0};
    int r = onepot_device_open(device_name, &error, &device);
    ck_assert_msg(r == 0, "%s", error.text);
}

static void end(void)
{
    onepot_device_close(device);
}

static void good(int r, const struct onepot_error *error)
{
    ck_assert_msg(r >= 0, "%s", error->text);
}

static void *new_stream(void)
{
    struct onepot_error error = {0};
    void *stream = NULL;
    good(onepot_device_stream_new(device, &error, &stream), &error);
    return stream;
}

static void wait_stream(void *stream)
{
    struct onepot_error error = {0};
    good(onepot_device_stream_wait(device, stream, &error), &error);
}

static void queue_copy(void *stream, void *to, const void *from, size_t bytes)
{
    struct onepot_error error = {0};
    good(onepot_device_copy(device, stream, to, from, bytes, &error), &error);
}

static void queue_call(void *stream, void (*function)(void *), void *ctx)
{
    struct onepot_error error = {0};
    good(onepot_device_call(device, stream, function, ctx, &error), &error);
}

static void take_time(void *ctx)
{
    long ms = (long)(intptr_t)ctx;
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void use(const struct onepot_batch *batch, void *stream)
{
    struct onepot_error error = {0};
    good(onepot_batch_use(batch, stream, &error), &error);
}

static void lend(const struct onepot_batch *batch, void *stream)
{
    struct onepot_error error = {0};
    good(onepot_batch_lend(batch, stream, &error), &error);
    good(onepot_batch_wait(batch, &error), &error); /* what reads it elsewhere has to know */
}

static struct onepot_device_batch where(const struct onepot_batch *batch)
{
    struct onepot_device_batch w = {.size = sizeof(w)};
    ck_assert_int_eq(onepot_batch_on_device(batch, &w), 0);
    return w;
}

static struct onepot_loader *make(const struct onepot_archive *archive,
                                  struct onepot_loader_options options)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    options.size = sizeof(options);
    options.world_size = 1;
    if (!options.batch_size)
        options.batch_size = 16;
    good(onepot_loader_new(archive, &options, &error, &loader), &error);
    return loader;
}

static const struct onepot_batch *next(struct onepot_loader *loader)
{
    const struct onepot_batch *batch = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_next(loader, 60000, &error, &batch);
    good(r, &error);
    return r ? batch : NULL;
}

/* ---- devices, streams, events ---- */

START_TEST(a_device_is_found_by_its_name)
{
    struct onepot_device *d = NULL;
    struct onepot_error error = {0};
    struct onepot_device_info info = {.size = sizeof(info)};
    uint32_t count = 0;
    ck_assert_int_eq(onepot_device_open("gpu", &error, &d), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "\"gpu\""));
    ck_assert_int_eq(onepot_device_open("host:8", &error, &d), -ENODEV);
    ck_assert_int_eq(onepot_device_open("host:x", &error, &d), -EINVAL);
    ck_assert_int_eq(onepot_device_open("host:", NULL, &d), -EINVAL);
    ck_assert_int_eq(onepot_device_count("host", &error, &count), 0);
    ck_assert_uint_eq(count, 8);
    ck_assert_int_eq(onepot_device_info(device, &error, &info), 0);
    ck_assert_uint_eq(info.is_host, strcmp(device_name, "host") == 0);
    ck_assert_uint_gt(info.free_bytes, 0);
}
END_TEST

START_TEST(without_a_device_the_local_rank_decides)
{
    struct onepot_device *d = NULL;
    struct onepot_error error = {0};
    struct onepot_device_info info = {.size = sizeof(info)};
    uint32_t count;
    char kind[5] = "";
    memcpy(kind, device_name, 4);
    ck_assert_int_eq(onepot_device_count(kind, &error, &count), 0);
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("LOCAL_RANK", "5", 1);
    good(onepot_device_open(kind, &error, &d), &error);
    ck_assert_int_eq(onepot_device_info(d, &error, &info), 0);
    ck_assert_uint_eq(info.index, 5 % count);
    onepot_device_close(d);
    setenv("LOCAL_RANK", "five", 1);
    ck_assert_int_eq(onepot_device_open(kind, &error, &d), -EINVAL);
}
END_TEST

START_TEST(what_is_missing_for_cuda_is_named)
{
    struct onepot_device *d = NULL;
    struct onepot_error error = {0};
    if (strcmp(device_name, "host") != 0)
        return;
    setenv("ONEPOT_CUDA", "/nowhere/libonepot-cuda.so", 1);
    ck_assert_int_eq(onepot_device_open("cuda:0", &error, &d), -ENODEV);
    ck_assert_ptr_nonnull(strstr(error.text, "/nowhere/libonepot-cuda.so"));
    ck_assert_ptr_nonnull(strstr(error.text, "ONEPOT_CUDA"));
}
END_TEST

static void append(void *ctx)
{
    static unsigned at;
    ((char *)ctx)[at] = (char)('a' + at);
    at++;
}

/* Until the test opens the gate, however long it takes. */
static void stand_at(void *gate)
{
    while (sem_wait(gate) < 0)
        ;
}

START_TEST(a_stream_does_one_thing_after_the_other)
{
    char text[16] = "";
    void *stream = new_stream();
    sem_t gate;
    ck_assert_int_eq(sem_init(&gate, 0, 0), 0);
    queue_call(stream, stand_at, &gate);
    for (unsigned i = 0; i < 5; i++)
        queue_call(stream, append, text);
    ck_assert_str_eq(text, "");
    sem_post(&gate);
    wait_stream(stream);
    ck_assert_str_eq(text, "abcde");
    onepot_device_stream_free(device, stream);
}
END_TEST

static void write_one(void *ctx)
{
    __atomic_store_n((int *)ctx, 1, __ATOMIC_SEQ_CST);
}

/* Recording an event again does not move what a stream already follows. */
START_TEST(a_stream_follows_an_event_as_it_was_recorded)
{
    const struct device_type *type = device->type;
    struct onepot_error error = {0};
    void *a = new_stream(), *b = new_stream(), *c = new_stream(), *event;
    int early = 0, late = 0;
    sem_t first, second;
    ck_assert_int_eq(sem_init(&first, 0, 0) | sem_init(&second, 0, 0), 0);
    good(type->event_new(device->device, false, &error, &event), &error);
    ck_assert_int_eq(type->is_done(device->device, event, &error), 1);
    queue_call(a, stand_at, &first);
    queue_call(a, write_one, &early);
    good(type->record(device->device, event, a, &error), &error);
    ck_assert_int_eq(type->is_done(device->device, event, &error), 0);
    good(type->follow(device->device, b, event, &error), &error);
    queue_call(a, stand_at, &second);
    queue_call(a, write_one, &late);
    good(type->record(device->device, event, a, &error), &error);
    sem_post(&first);
    wait_stream(b);
    ck_assert_int_eq(__atomic_load_n(&early, __ATOMIC_SEQ_CST), 1);
    ck_assert_int_eq(__atomic_load_n(&late, __ATOMIC_SEQ_CST), 0);
    good(type->follow(device->device, c, event, &error), &error);
    sem_post(&second);
    wait_stream(c);
    ck_assert_int_eq(__atomic_load_n(&late, __ATOMIC_SEQ_CST), 1);
    type->event_free(device->device, event);
    onepot_device_stream_free(device, a);
    onepot_device_stream_free(device, b);
    onepot_device_stream_free(device, c);
}
END_TEST

/* ---- batches ---- */

/* The batch as it is on the device, against the same one of a loader without a device. */
static void check_arrived(const struct onepot_batch *b, const struct onepot_batch *want,
                          void *stream)
{
    struct onepot_device_batch w = where(b);
    uint64_t n = b->samples;
    uint8_t *data = malloc(want->bytes), *valid = malloc(n);
    uint64_t *tables = malloc(4 * n * sizeof(*tables));
    ck_assert_uint_eq(n, want->samples);
    ck_assert_uint_eq(w.bytes, want->bytes);
    use(b, stream);
    queue_copy(stream, data, w.data, w.bytes);
    queue_copy(stream, tables, w.offsets, n * sizeof(*tables));
    queue_copy(stream, tables + n, w.sizes, n * sizeof(*tables));
    queue_copy(stream, tables + 2 * n, w.indices, n * sizeof(*tables));
    queue_copy(stream, tables + 3 * n, w.labels, n * sizeof(*tables));
    queue_copy(stream, valid, w.valid, n);
    wait_stream(stream);
    ck_assert_mem_eq(data, want->data, want->bytes);
    ck_assert_mem_eq(tables, want->offsets, n * sizeof(*tables));
    ck_assert_mem_eq(tables + n, want->sizes, n * sizeof(*tables));
    ck_assert_mem_eq(tables + 2 * n, want->indices, n * sizeof(*tables));
    ck_assert_mem_eq(tables + 3 * n, want->labels, n * sizeof(*tables));
    ck_assert_mem_eq(valid, want->valid, n);
    ck_assert_mem_eq(b->indices, want->indices, n * sizeof(*tables));
    free(data);
    free(valid);
    free(tables);
}

static void check_epochs(const struct onepot_archive *archive, enum onepot_gather gather)
{
    struct onepot_loader *l =
        make(archive,
             (struct onepot_loader_options){.threads = 2, .device = device, .gather = gather});
    struct onepot_loader *plain = make(archive, (struct onepot_loader_options){.threads = 1});
    const struct onepot_batch *b, *want;
    struct onepot_device_batch w = {.size = sizeof(w)};
    void *stream = new_stream();
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        while ((want = next(plain))) {
            ck_assert_int_eq(onepot_batch_on_device(want, &w), -ENOTSUP);
            ck_assert_int_eq(onepot_batch_use(want, stream, NULL), 0);
            b = next(l);
            ck_assert_ptr_nonnull(b);
            check_arrived(b, want, stream);
            onepot_batch_release(b);
            onepot_batch_release(want);
        }
        ck_assert_ptr_null(next(l));
    }
    onepot_loader_free(l);
    onepot_loader_free(plain);
    onepot_device_stream_free(device, stream);
}

START_TEST(batches_arrive_as_they_are_without_a_device)
{
    check_epochs(ragged_archive, ONEPOT_GATHER_HOST);
    check_epochs(image_archive, ONEPOT_GATHER_AUTO);
}
END_TEST

START_TEST(so_do_those_that_the_device_gathers)
{
    check_epochs(ragged_archive, ONEPOT_GATHER_DEVICE);
    check_epochs(image_archive, ONEPOT_GATHER_DEVICE);
}
END_TEST

/* Each on one of them, in turn; where there is one device alone, nothing is to be seen. */
static void check_several(uint32_t count, enum onepot_gather gather)
{
    struct onepot_device *kept = device, *devices[3];
    struct onepot_error error = {0};
    void *streams[3];
    char name[16];
    for (uint32_t i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "%.4s:%u", device_name, i);
        good(onepot_device_open(name, &error, &devices[i]), &error);
        device = devices[i];
        streams[i] = new_stream();
    }
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){.threads = 2,
                                                            .memory_bytes = 3 << 20,
                                                            .gather = gather,
                                                            .devices = devices,
                                                            .device_count = count});
    struct onepot_loader *plain =
        make(ragged_archive, (struct onepot_loader_options){.threads = 1});
    for (unsigned epoch = 0; epoch < 4; epoch++)
        for (const struct onepot_batch *want = next(plain), *b = next(l); want || b;
             want = next(plain), b = next(l)) {
            uint32_t i = (uint32_t)(want->first / 16 % count);
            ck_assert_uint_eq(where(b).device, i);
            device = devices[i];
            check_arrived(b, want, streams[i]);
            onepot_batch_release(b);
            onepot_batch_release(want);
        }
    onepot_loader_free(l);
    onepot_loader_free(plain);
    for (uint32_t i = 0; i < count; i++) {
        onepot_device_stream_free(devices[i], streams[i]);
        onepot_device_close(devices[i]);
    }
    device = kept;
}

START_TEST(several_devices_have_batches_in_turn)
{
    struct onepot_error error = {0};
    uint32_t there = 0;
    char kind[5] = "";
    memcpy(kind, device_name, 4);
    good(onepot_device_count(kind, &error, &there), &error);
    for (uint32_t count = 2; count <= 3 && count <= there; count++) {
        check_several(count, ONEPOT_GATHER_HOST);
        check_several(count, ONEPOT_GATHER_DEVICE);
    }
}
END_TEST

START_TEST(what_a_device_can_not_gather_is_refused)
{
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = 8,
                                            .world_size = 1,
                                            .gather = ONEPOT_GATHER_DEVICE};
    struct onepot_loader *l = NULL;
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_loader_new(image_archive, &options, &error, &l), -EINVAL);
    options.device = device;
    options.verify = true;
    ck_assert_int_eq(onepot_loader_new(image_archive, &options, &error, &l), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "verify"));
}
END_TEST

START_TEST(archives_beyond_the_room_are_not_locked)
{
    struct locked *locked = NULL;
    struct onepot_error error = {0};
    ck_assert_int_eq(locked_new(device, ragged_archive, 1000, &error, &locked), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(error.text, "1000"));
}
END_TEST

static int refuse_to_lock(void *on, const void *memory, size_t bytes, bool is_stored,
                          struct onepot_error *error)
{
    (void)on, (void)memory, (void)bytes, (void)is_stored, (void)error;
    return -ENOTSUP;
}

/* Not every GPU and kernel can. */
static bool locks_mapping(void)
{
    const struct dataset *d = ragged_archive->dataset;
    size_t bytes = source_size(d->filesets[0]->source);
    if (device->type->lock(device->device, d->maps[0], bytes,
                           !source_is_memory(d->filesets[0]->source), NULL) < 0)
        return false;
    device->type->unlock(device->device, d->maps[0], bytes);
    return true;
}

/* Where the driver can't lock what is mapped, copies are made: memory that the job's caches
 * miss.
 */
START_TEST(others_of_the_job_know_of_copies_that_are_locked)
{
    const struct device_type *type = device->type;
    struct device_type stubborn = *type;
    struct locked *locked = NULL;
    struct onepot_error error = {0};
    char folder[PATH_MAX];
    suite_make_folder("claims", folder, sizeof(folder));
    setenv("ONEPOT_RUNTIME_DIR", folder, 1);
    setenv("SLURM_JOB_ID", "78", 1);

    bool locks = locks_mapping();
    good(locked_new(device, ragged_archive, 1 << 30, &error, &locked), &error);
    ck_assert_uint_eq(claims_of_job("78").count, locks ? 0 : 1); /* locked as they are mapped */
    locked_free(locked);

    stubborn.lock = refuse_to_lock;
    device->type = &stubborn;
    good(locked_new(device, ragged_archive, 1 << 30, &error, &locked), &error);
    const struct claim_others others = claims_of_job("78");
    ck_assert_uint_eq(others.count, 1);
    ck_assert_uint_eq(others.using_bytes, others.fixed_bytes);
    ck_assert_uint_ge(others.fixed_bytes, 10000);
    locked_free(locked);
    device->type = type;
    ck_assert_uint_eq(claims_of_job("78").count, 0);
}
END_TEST

static uint64_t address_of(const void *memory)
{
    struct onepot_error error = {0};
    uint64_t address = 0;
    good(device->type->address(device->device, memory, &error, &address), &error);
    return address;
}

/* What comes from any place goes to any place, of any size, and nothing beside it changes. */
START_TEST(samples_of_any_alignment_are_gathered)
{
    enum { SIZES = 7, PLACES = 17, COUNT = SIZES * PLACES, STEP = 16512, DATA = COUNT * STEP };
    static const uint64_t sizes[SIZES] = {0, 1, 15, 16, 17, 4097, 16384 + 31};
    const struct device_type *type = device->type;
    struct onepot_error error = {0};
    void *host, *memory, *stream = new_stream();
    size_t tables = 3 * COUNT * sizeof(uint64_t), all = DATA + 64 + tables;
    good(type->allocate(device->device, DEVICE_MEMORY_LOCKED, all, &error, &host), &error);
    good(type->allocate(device->device, DEVICE_MEMORY_OWN, all, &error, &memory), &error);
    uint8_t *from = host, *want = calloc(1, DATA), *got = malloc(DATA);
    uint64_t *table = (uint64_t *)(void *)(from + DATA + 64), at = 0;
    const uint64_t *there = (const uint64_t *)(void *)((uint8_t *)memory + DATA + 64);
    for (size_t i = 0; i < DATA + 64; i++)
        from[i] = (uint8_t)(1 + i * 7 % 255);
    for (unsigned i = 0; i < COUNT; i++) {
        uint64_t size = sizes[i % SIZES], place = i * (uint64_t)STEP + i % PLACES * 31 % 128;
        table[i] = address_of(from) + place;
        table[COUNT + i] = at;
        table[2 * COUNT + i] = size;
        memcpy(want + at, from + place, size);
        at += size + i % 5; /* and a gap */
    }
    struct device_gather gather = {memory, at, COUNT, there, there + COUNT, there + 2 * COUNT};
    queue_copy(stream, memory, host, all);
    good(type->gather(device->device, stream, &gather, &error), &error);
    queue_copy(stream, got, memory, DATA);
    wait_stream(stream);
    ck_assert(memcmp(got, want, at) == 0);
    ck_assert(memcmp(got + at, from + at, DATA - at) == 0);
    type->release(device->device, DEVICE_MEMORY_LOCKED, host, all);
    type->release(device->device, DEVICE_MEMORY_OWN, memory, all);
    onepot_device_stream_free(device, stream);
    free(want);
    free(got);
}
END_TEST

/* Samples at both ends of what is locked: there are no pages before and behind it. */
START_TEST(nothing_beside_what_is_locked_is_read)
{
    enum { COUNT = 5, ROOM = 256, TABLES = 3 * COUNT * 8, ALL = ROOM + TABLES };
    const struct device_type *type = device->type;
    struct onepot_error error = {0};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = 0;
    uint8_t *pages = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *from = pages + page, got[ROOM];
    void *host, *memory, *stream;
    ck_assert_ptr_ne(pages, MAP_FAILED);
    ck_assert_int_eq(mprotect(from, page, PROT_READ | PROT_WRITE), 0);
    memset(from, 7, page);
    int r = type->lock(device->device, from, page, false, &error);
    if (r == -ENOTSUP) /* then copies are locked, as above */
        return;
    good(r, &error);
    stream = new_stream();
    good(type->allocate(device->device, DEVICE_MEMORY_LOCKED, ALL, &error, &host), &error);
    good(type->allocate(device->device, DEVICE_MEMORY_OWN, ALL, &error, &memory), &error);
    const size_t places[COUNT] = {0, 1, page - 1, page - 33, page - 47};
    const size_t sizes[COUNT] = {1, 31, 1, 33, 47};
    uint64_t *table = host;
    const uint64_t *there = memory;
    for (unsigned i = 0; i < COUNT; at += sizes[i++]) {
        table[i] = address_of(from) + places[i];
        table[COUNT + i] = at;
        table[2 * COUNT + i] = sizes[i];
    }
    struct device_gather gather = {
        (uint8_t *)memory + TABLES + 8, at, COUNT, there, there + COUNT, there + 2 * COUNT};
    queue_copy(stream, memory, host, TABLES);
    good(type->gather(device->device, stream, &gather, &error), &error);
    queue_copy(stream, got, gather.to, at);
    wait_stream(stream);
    for (size_t i = 0; i < at; i++)
        ck_assert_uint_eq(got[i], 7);
    type->unlock(device->device, from, page);
    type->release(device->device, DEVICE_MEMORY_LOCKED, host, ALL);
    type->release(device->device, DEVICE_MEMORY_OWN, memory, ALL);
    onepot_device_stream_free(device, stream);
    munmap(pages, 3 * page);
}
END_TEST

/* A reader that is slow: it sleeps on its stream, then copies the batch away, into locked
 * memory: for a copy to other memory of the host, a GPU lets the caller wait. */
struct reading {
    void *memory; /* the tables, then data */
    size_t bytes;
    uint8_t *data;
    uint64_t *offsets, *sizes, *indices;
    uint64_t samples;
};

static void read_slowly(struct reading *reading, const struct onepot_batch *b, void *stream,
                        long ms)
{
    struct onepot_device_batch w = where(b);
    struct onepot_error error = {0};
    size_t table = b->samples * sizeof(uint64_t), bytes = 3 * table + w.bytes;
    void *memory;
    good(device->type->allocate(device->device, DEVICE_MEMORY_LOCKED, bytes, &error, &memory),
         &error);
    uint64_t *tables = memory;
    *reading = (struct reading){.memory = memory,
                                .bytes = bytes,
                                .data = (uint8_t *)memory + 3 * table,
                                .offsets = tables,
                                .sizes = tables + b->samples,
                                .indices = tables + 2 * b->samples,
                                .samples = b->samples};
    queue_call(stream, take_time, (void *)ms);
    queue_copy(stream, reading->data, w.data, w.bytes);
    queue_copy(stream, reading->offsets, w.offsets, table);
    queue_copy(stream, reading->sizes, w.sizes, table);
    queue_copy(stream, reading->indices, w.indices, table);
}

/* Sample i holds its number over and over. Adds up how often each was there. */
static void check_reading(struct reading *reading, unsigned *seen)
{
    for (uint64_t i = 0; i < reading->samples; i++) {
        uint32_t number = (uint32_t)reading->indices[i], found;
        ck_assert_uint_lt(number, FILES);
        ck_assert_uint_eq(reading->sizes[i], ragged(number));
        for (uint64_t j = 0; j < reading->sizes[i]; j += 4) {
            memcpy(&found, reading->data + reading->offsets[i] + j, 4);
            ck_assert_uint_eq(found, number);
        }
        seen[number]++;
    }
    device->type->release(device->device, DEVICE_MEMORY_LOCKED, reading->memory,
                          reading->bytes);
}

/*
 * The consumer queues slow work on one or two streams, releases at once, and goes on: the
 * host is ahead of the streams by as much as the loader lets it. There is memory for four
 * slabs or so, so that each is used again while something still reads it. Told is which streams
 * these are, or only `named`, in which the consumer wants the batch.
 */
static void run_ahead(unsigned streams, uint64_t memory_bytes, enum onepot_gather gather,
                      void *named)
{
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){.batch_size = 8,
                                                            .threads = 2,
                                                            .prefetch = 2,
                                                            .memory_bytes = memory_bytes,
                                                            .device = device,
                                                            .gather = gather});
    enum { EPOCHS = 3, READINGS = EPOCHS * FILES / 8 * 2 };
    struct reading readings[READINGS];
    unsigned seen[FILES] = {0}, n = 0;
    void *stream[2] = {new_stream(), new_stream()};
    const struct onepot_batch *b;
    for (unsigned epoch = 0; epoch < EPOCHS; epoch++)
        while ((b = next(l))) {
            for (unsigned s = 0; s < streams; s++) {
                if (named)
                    lend(b, named);
                else
                    use(b, stream[s]);
                read_slowly(&readings[n++], b, stream[s], 1 + s * 4);
            }
            onepot_batch_release(b);
        }
    wait_stream(stream[0]);
    wait_stream(stream[1]);
    ck_assert_uint_eq(n, EPOCHS * FILES / 8 * streams);
    for (unsigned i = 0; i < n; i++)
        check_reading(&readings[i], seen);
    for (unsigned i = 0; i < FILES; i++)
        ck_assert_uint_eq(seen[i], EPOCHS * streams);
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(l, &stats);
    ck_assert_uint_le(stats.slab_bytes, memory_bytes);
    onepot_loader_free(l);
    onepot_device_stream_free(device, stream[0]);
    onepot_device_stream_free(device, stream[1]);
}

START_TEST(a_slab_that_is_used_again_never_changes_under_its_reader)
{
    run_ahead(1, 600 << 10, ONEPOT_GATHER_HOST, NULL);
}
END_TEST

START_TEST(nor_under_readers_on_two_streams)
{
    run_ahead(2, 600 << 10, ONEPOT_GATHER_HOST, NULL);
}
END_TEST

START_TEST(nor_if_the_device_gathers)
{
    run_ahead(2, 600 << 10, ONEPOT_GATHER_DEVICE, NULL);
}
END_TEST

START_TEST(nor_in_a_loader_whose_consumer_names_another_stream)
{
    void *named = new_stream();
    run_ahead(2, 600 << 10, ONEPOT_GATHER_HOST, named);
    run_ahead(1, 600 << 10, ONEPOT_GATHER_DEVICE, named);
    onepot_device_stream_free(device, named);
}
END_TEST

/* One slab, as an engine would treat it; its batch is one sample of SLAB_SAMPLE bytes. */
#define SLAB_SAMPLE 64u

static void begin_slab(struct slab *slab, struct upload **ret_upload)
{
    struct onepot_error error = {0};
    *slab = (struct slab){.capacity = 4096};
    good(upload_new(device, NULL, 1, &error, ret_upload), &error);
    ck_assert_int_eq(upload_memory.allocate(slab, slab->capacity, *ret_upload), 0);
    slab_begin(slab, 1, SLAB_SAMPLE);
}

static void send_slab(struct slab *slab, struct upload *upload, int content)
{
    memset(slab->memory, content, SLAB_SAMPLE);
    ck_assert_int_eq(upload_memory.send(slab, upload), 0);
}

static void end_slab(struct slab *slab, struct upload *upload)
{
    upload_memory.release(slab, upload);
    upload_memory.close(upload);
}

static int fail_to_tell(void *d, void *event, struct onepot_error *error)
{
    (void)d, (void)event;
    return error_set(error, -EIO, "can't be told");
}

/* A consumer that wants the batch in one stream and reads it in another, as DLPack allows. */
static const struct device_type *real;
static bool ordered; /* a stream waits for something that is not done */
static sem_t lent_gate;

static int follow_and_see(void *d, void *stream, void *event, struct onepot_error *error)
{
    ordered = ordered || !real->is_done(d, event, error);
    return real->follow(d, stream, event, error);
}

/* What nothing holds back is done at once. */
static int copy_at_once(void *d, void *stream, void *to, const void *from, size_t bytes,
                        struct onepot_error *error)
{
    int r = real->copy(d, stream, to, from, bytes, error);
    return r < 0 || ordered ? r : real->stream_wait(d, stream, error);
}

static int fail_to_record_all(void *d, void *event, struct onepot_error *error)
{
    (void)d, (void)event;
    return error_set(error, -ENOTSUP, "there is no such event");
}

static int fail_to_wait_all(void *d, struct onepot_error *error)
{
    return fail_to_tell(d, NULL, error);
}

/* The caller waits from here on, so that the consumer may go on. */
static int wait_all_and_see(void *d, struct onepot_error *error)
{
    sem_post(&lent_gate);
    return real->wait_all(d, error);
}

/* What a consumer finds in a stream that it does not name, and that comes to the batch no
 * sooner than its slab has been used again. */
static void check_lent(const struct device_type *type, void *named, bool is_told)
{
    struct slab slab;
    struct upload *upload;
    struct onepot_error error = {0};
    struct onepot_device_batch w = {.size = sizeof(w)};
    uint8_t want[SLAB_SAMPLE];
    void *reads = new_stream(), *got;
    ck_assert_int_eq(sem_init(&lent_gate, 0, 0), 0);
    real = device->type;
    device->type = type;
    good(real->allocate(device->device, DEVICE_MEMORY_LOCKED, SLAB_SAMPLE, &error, &got),
         &error);
    begin_slab(&slab, &upload);
    onepot_batch_on_device(&slab.batch, &w);
    send_slab(&slab, upload, 1);
    if (is_told)
        good(onepot_batch_use(&slab.batch, named, &error), &error);
    good(onepot_batch_lend(&slab.batch, named, &error), &error);
    good(onepot_batch_wait(&slab.batch, &error), &error);
    queue_call(reads, stand_at, &lent_gate);
    good(real->copy(device->device, reads, got, w.data, SLAB_SAMPLE, &error), &error);
    upload_memory.retire(&slab, upload);
    upload_memory.settle(&slab, upload);
    if (named != ONEPOT_NO_STREAM)
        wait_stream(named);
    ordered = false;
    send_slab(&slab, upload, 2);
    sem_post(&lent_gate);
    wait_stream(reads);
    memset(want, is_told ? 2 : 1, sizeof(want));
    ck_assert_mem_eq(got, want, SLAB_SAMPLE);
    end_slab(&slab, upload);
    device->type = real;
    real->release(device->device, DEVICE_MEMORY_LOCKED, got, SLAB_SAMPLE);
    onepot_device_stream_free(device, reads);
}

static struct device_type seeing(void)
{
    struct device_type type = *device->type;
    type.follow = follow_and_see;
    type.copy = copy_at_once;
    return type;
}

/* As one in which a sample was damaged: its slab goes back without having been on the device.
 */
START_TEST(nor_after_a_batch_that_was_never_sent)
{
    struct slab slab;
    struct upload *upload;
    struct onepot_error error = {0};
    struct onepot_device_batch w = {.size = sizeof(w)};
    struct device_type type = seeing();
    uint8_t want[SLAB_SAMPLE];
    void *stream = new_stream(), *got;
    sem_t gate;
    ck_assert_int_eq(sem_init(&gate, 0, 0), 0);
    real = device->type;
    device->type = &type;
    good(real->allocate(device->device, DEVICE_MEMORY_LOCKED, SLAB_SAMPLE, &error, &got),
         &error);
    begin_slab(&slab, &upload);
    onepot_batch_on_device(&slab.batch, &w);
    send_slab(&slab, upload, 1);
    good(onepot_batch_use(&slab.batch, stream, &error), &error);
    queue_call(stream, stand_at, &gate);
    good(real->copy(device->device, stream, got, w.data, SLAB_SAMPLE, &error), &error);
    upload_memory.retire(&slab, upload);
    upload_memory.settle(&slab, upload);
    upload_memory.retire(&slab, upload); /* the one that was not sent */
    ordered = false;
    send_slab(&slab, upload, 2);
    sem_post(&gate);
    wait_stream(stream);
    memset(want, 1, sizeof(want));
    ck_assert_mem_eq(got, want, sizeof(want));
    end_slab(&slab, upload);
    device->type = real;
    real->release(device->device, DEVICE_MEMORY_LOCKED, got, SLAB_SAMPLE);
    onepot_device_stream_free(device, stream);
}
END_TEST

START_TEST(nor_under_a_consumer_that_reads_in_a_stream_it_does_not_name)
{
    struct device_type type = seeing();
    void *named = new_stream();
    check_lent(&type, named, false);
    check_lent(&type, ONEPOT_NO_STREAM, false);
    onepot_device_stream_free(device, named);
}
END_TEST

/* The driver may be older than such events. */
START_TEST(nor_where_only_the_host_can_wait_for_that_one)
{
    struct device_type type = seeing();
    void *named = new_stream();
    type.record_all = fail_to_record_all;
    type.wait_all = wait_all_and_see;
    check_lent(&type, named, false);
    check_lent(&type, ONEPOT_NO_STREAM, false);
    onepot_device_stream_free(device, named);
}
END_TEST

/* Such a consumer says where it reads: nothing else is waited for. */
START_TEST(a_stream_that_was_told_before_is_the_only_one)
{
    struct device_type type = seeing();
    void *named = new_stream();
    check_lent(&type, named, true);
    onepot_device_stream_free(device, named);
}
END_TEST

/* What a lost device does is in no stream. */
START_TEST(what_can_not_be_waited_for_is_an_error_and_not_written_to)
{
    struct device_type type = *device->type;
    struct slab slab;
    struct upload *upload;
    struct onepot_error error = {0};
    type.record_all = fail_to_record_all;
    type.wait_all = fail_to_wait_all;
    real = device->type;
    device->type = &type;
    begin_slab(&slab, &upload);
    send_slab(&slab, upload, 1);
    good(onepot_batch_lend(&slab.batch, ONEPOT_NO_STREAM, &error), &error);
    upload_memory.retire(&slab, upload);
    upload_memory.settle(&slab, upload);
    ck_assert_int_eq(upload_memory.send(&slab, upload), -EIO);
    ck_assert_int_eq(upload_error(upload, &error), -EIO);
    ck_assert_ptr_nonnull(strstr(error.text, ":0: can't be told")); /* by which device */
    end_slab(&slab, upload);
    device->type = real;
}
END_TEST

/* And is written to once it was waited for: there is no more that one could do. */
START_TEST(a_slab_of_which_nothing_is_known_is_waited_for)
{
    struct device_type silent = *device->type;
    const struct device_type *type = device->type;
    struct slab slab;
    struct upload *upload;
    silent.is_done = fail_to_tell;
    device->type = &silent;
    begin_slab(&slab, &upload);
    for (unsigned i = 0; i < 2; i++) {
        send_slab(&slab, upload, 1);
        ck_assert(!upload_memory.is_settled(&slab, upload));
        upload_memory.settle(&slab, upload);
        ck_assert(upload_memory.is_settled(&slab, upload));
    }
    end_slab(&slab, upload);
    device->type = type;
}
END_TEST

START_TEST(kept_batches_are_refused_beyond_the_memory_and_never_waited_for)
{
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){
                                 .batch_size = 8, .memory_bytes = 600 << 10, .device = device});
    const struct onepot_batch *kept[64], *b = NULL;
    struct onepot_error error = {0};
    unsigned n = 0;
    int r;
    while ((r = onepot_loader_next(l, 60000, &error, &b)) >= 0) {
        ck_assert_uint_lt(n, 64);
        if (r > 0)
            kept[n++] = b;
    }
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_ge(n, 3);
    for (unsigned i = 0; i < n; i++)
        onepot_batch_release(kept[i]);
    good(onepot_loader_next(l, 60000, &error, &b), &error);
    onepot_batch_release(b);
    onepot_loader_free(l);
}
END_TEST

START_TEST(a_batch_outlives_loader_and_device)
{
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){.device = device});
    struct reading reading;
    unsigned seen[FILES] = {0};
    const struct onepot_batch *b = next(l);
    onepot_batch_keep(b);
    onepot_loader_free(l);
    onepot_batch_release(b);
    use(b, NULL);
    read_slowly(&reading, b, NULL, 5);
    wait_stream(NULL);
    check_reading(&reading, seen);
    onepot_device_close(device);
    onepot_batch_release(b); /* the last that knew of the device */
    begin();
}
END_TEST

START_TEST(a_wait_on_the_host_is_enough_where_there_is_no_stream)
{
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){.device = device});
    struct onepot_error error = {0};
    const struct onepot_batch *b = next(l);
    struct onepot_device_info info = {.size = sizeof(info)};
    good(onepot_device_info(device, &error, &info), &error);
    good(onepot_batch_wait(b, &error), &error);
    if (info.is_host)
        ck_assert_mem_eq(where(b).data, b->data, b->bytes);
    onepot_batch_release(b);
    onepot_loader_free(l);
}
END_TEST

START_TEST(what_was_copied_is_counted_by_epochs)
{
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){.device = device});
    struct onepot_transfer t = {.size = sizeof(t)};
    struct onepot_error error = {0};
    uint64_t bytes = 0, batches = 0;
    const struct onepot_batch *b;
    while ((b = next(l))) {
        good(onepot_batch_wait(b, &error), &error);
        bytes += b->bytes;
        batches++;
        onepot_batch_release(b);
    }
    good(onepot_loader_transfer(l, false, &error, &t), &error);
    ck_assert_uint_eq(t.epoch, 0);
    ck_assert_uint_eq(t.copy_bytes, bytes);
    ck_assert_uint_eq(t.batches, batches);
    ck_assert_uint_gt(t.copy_ns, 0);
    ck_assert_uint_gt(t.wait_ns, 0);
    ck_assert_uint_gt(t.peak_bytes_per_second, 0);
    b = next(l);
    good(onepot_loader_transfer(l, true, &error, &t), &error);
    ck_assert_uint_eq(t.epoch, 0);
    ck_assert_uint_eq(t.copy_bytes, bytes);
    good(onepot_loader_transfer(l, false, &error, &t), &error);
    ck_assert_uint_eq(t.epoch, 1);
    onepot_batch_release(b);
    onepot_loader_free(l);
    l = make(ragged_archive, (struct onepot_loader_options){.threads = 1});
    ck_assert_int_eq(onepot_loader_transfer(l, false, &error, &t), -ENOTSUP);
    onepot_loader_free(l);
}
END_TEST

static unsigned opened;

static int open_counted(uint32_t index, struct onepot_error *error, void **ret_device)
{
    opened++;
    return device_host.open(index, error, ret_device);
}

/* The child's loader goes on with one device of its own; CUDA has none in a forked child. */
START_TEST(a_forked_child_goes_on_by_itself)
{
    struct onepot_loader *l =
        make(ragged_archive, (struct onepot_loader_options){.device = device});
    const struct onepot_batch *b = next(l);
    if (!FORKS_WITH_THREADS) {
        puts("skipped: under a sanitizer a process with threads can't fork");
        onepot_batch_release(b);
        onepot_loader_free(l);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct onepot_error error = {0};
        const struct onepot_batch *mine = NULL;
        struct device_type counted = *device->type;
        counted.open = open_counted;
        if (strcmp(device_name, "host") == 0)
            device->type = &counted;
        int r = onepot_loader_next(l, 60000, &error, &mine);
        if (strcmp(device_name, "host") != 0)
            _exit(r < 0 && *error.text ? 0 : 1);
        bool fine =
            r == 1 && opened == 1 && mine->first == 16 && onepot_batch_wait(mine, NULL) == 0;
        onepot_batch_release(mine);
        onepot_loader_free(l);
        _exit(fine ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    onepot_batch_release(b);
    b = next(l);
    ck_assert_uint_eq(b->first, 16);
    onepot_batch_release(b);
    onepot_loader_free(l);
}
END_TEST

START_TEST(a_batch_size_fits_or_is_none)
{
    struct onepot_error error = {0};
    uint64_t n = 99;
    good(onepot_device_batch_size(device, ragged_archive, &error, &n), &error);
    ck_assert_uint_eq(n, FILES); /* all of them, surely */
    struct onepot_archive *none = NULL;
    ck_assert_int_eq(onepot_archive_subset(ragged_archive, NULL, 0, &none), 0);
    good(onepot_device_batch_size(device, none, &error, &n), &error);
    ck_assert_uint_eq(n, 0);
    onepot_archive_close(none);
}
END_TEST

/* ---- images ---- */

static uint16_t half_of(float x, enum onepot_float type)
{
    /* One pixel of byte 1 with mean 0: the scale itself. */
    struct onepot_conversion images = {.size = sizeof(images),
                                       .height = 1,
                                       .width = 1,
                                       .channels = 1,
                                       .type = type,
                                       .scale = {x}};
    uint8_t one = 1;
    uint16_t out = 0;
    convert_host(&images, 1, &one, &out);
    return out;
}

START_TEST(half_types_are_rounded_to_nearest_even)
{
    const struct {
        float x;
        uint16_t half, bfloat16;
    } known[] = {
        {0.0f, 0, 0},
        {-0.0f, 0x8000, 0x8000},
        {1.0f, 0x3c00, 0x3f80},
        {-2.5f, 0xc100, 0xc020},
        {0.1f, 0x2e66, 0x3dcd},
        {65504.0f, 0x7bff, 0x4780},
        {65519.0f, 0x7bff, 0x4780},
        {65520.0f, 0x7c00, 0x4780},
        {1e30f, 0x7c00, 0x714a},
        {0x1p-14f, 0x0400, 0x3880},
        {0x1p-24f, 0x0001, 0x3380},
        {0x1p-25f, 0x0000, 0x3300},
        {0x1.8p-25f, 0x0001, 0x3340},
        {0x1.ffcp-15f, 0x0400, 0x3880}, /* rounds up to the least normal one */
        {0x1.002p0f, 0x3c00, 0x3f80},   /* ties: to even, */
        {0x1.006p0f, 0x3c02, 0x3f80},   /* also upwards */
        {0x1.01p0f, 0x3c04, 0x3f80},
        {0x1.03p0f, 0x3c0c, 0x3f82},
    };
    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        ck_assert_uint_eq(half_of(known[i].x, ONEPOT_HALF), known[i].half);
        ck_assert_uint_eq(half_of(known[i].x, ONEPOT_BFLOAT16), known[i].bfloat16);
    }
}
END_TEST

static const struct onepot_conversion small = {.size = sizeof(small),
                                               .height = 4,
                                               .width = 5,
                                               .channels = 3,
                                               .type = ONEPOT_FLOAT,
                                               .mean = {123.675f, 116.28f, 103.53f},
                                               .scale = {1 / 58.395f, 1 / 57.12f, 1 / 57.375f}};

START_TEST(channels_come_before_rows)
{
    uint8_t from[2 * 60];
    float to[2 * 60];
    for (unsigned i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 7);
    convert_host(&small, 2, from, to);
    for (unsigned n = 0; n < 2; n++)
        for (unsigned c = 0; c < 3; c++)
            for (unsigned p = 0; p < 20; p++) {
                float byte = from[n * 60 + p * 3 + c];
                float want = (byte - small.mean[c]) * small.scale[c];
                ck_assert(memcmp(&to[n * 60 + c * 20 + p], &want, 4) == 0);
            }
}
END_TEST

/* The loader's images, against the conversion on the host: bit by bit. */
static void check_images(enum onepot_float type, enum onepot_gather gather)
{
    struct onepot_conversion images = small;
    images.type = type;
    struct onepot_loader *l =
        make(image_archive,
             (struct onepot_loader_options){
                 .batch_size = 32, .device = device, .convert = &images, .gather = gather});
    void *stream = new_stream();
    const struct onepot_batch *b;
    while ((b = next(l))) {
        struct onepot_device_batch w = where(b);
        uint64_t bytes = b->samples * images.height * images.width * images.channels *
                         (images.type == ONEPOT_FLOAT ? 4 : 2);
        uint8_t *got = malloc(bytes), *want = malloc(bytes), *data = malloc(w.bytes);
        ck_assert_uint_eq(w.image_bytes, bytes);
        use(b, stream);
        queue_copy(stream, got, w.images, bytes);
        wait_stream(stream);
        queue_copy(stream, data, w.data, w.bytes);
        wait_stream(stream);
        convert_host(&images, b->samples, data, want);
        ck_assert_mem_eq(got, want, bytes);
        free(data);
        free(got);
        free(want);
        onepot_batch_release(b);
    }
    onepot_loader_free(l);
    onepot_device_stream_free(device, stream);
}

START_TEST(images_are_the_same_bits_on_all_devices)
{
    check_images(ONEPOT_FLOAT, ONEPOT_GATHER_HOST);
    check_images(ONEPOT_HALF, ONEPOT_GATHER_DEVICE);
    check_images(ONEPOT_BFLOAT16, ONEPOT_GATHER_AUTO);
}
END_TEST

START_TEST(images_count_as_the_loaders_memory)
{
    struct onepot_conversion images = small;
    struct onepot_stats stats = {.size = sizeof(stats)};
    const struct onepot_batch *kept[1024];
    struct onepot_error error;
    unsigned count = 0;
    images.type = ONEPOT_FLOAT;
    enum { MEMORY = 6u << 20 };
    struct onepot_loader *l =
        make(image_archive, (struct onepot_loader_options){.batch_size = 1,
                                                           .device = device,
                                                           .convert = &images,
                                                           .memory_bytes = MEMORY,
                                                           .gather = ONEPOT_GATHER_HOST});
    int r;
    while (count < 1024 && (r = onepot_loader_next(l, -1, &error, &kept[count])) >= 0)
        count += r;
    ck_assert_int_eq(r, -ENOBUFS);
    onepot_loader_stats(l, &stats);
    ck_assert_uint_le(stats.slab_bytes, MEMORY);
    ck_assert_uint_le(stats.prefetch, 8);
    /* A slab has 64 KB, and five times as much with its floats; the last ones are smaller. */
    ck_assert_uint_lt(count, MEMORY / (64u << 10) / 2);
    ck_assert_uint_ge(count, 8);
    while (count > 0)
        onepot_batch_release(kept[--count]);
    onepot_loader_free(l);
}
END_TEST

START_TEST(images_that_make_no_sense_are_refused)
{
    struct onepot_conversion images = small;
    struct onepot_loader_options options = {
        .size = sizeof(options), .batch_size = 8, .world_size = 1, .convert = &images};
    struct onepot_loader *l = NULL;
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_loader_new(image_archive, &options, &error, &l), -EINVAL);
    options.device = device;
    ck_assert_int_eq(onepot_loader_new(ragged_archive, &options, &error, &l), -EINVAL);
    images.width = 6;
    ck_assert_int_eq(onepot_loader_new(image_archive, &options, &error, &l), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "72"));
    images.channels = 5;
    ck_assert_int_eq(onepot_loader_new(image_archive, &options, &error, &l), -EINVAL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("device");
    TCase *plain = tcase_create("devices"), *batches = tcase_create("batches");
    TCase *images = tcase_create("images");
    TCase *all[] = {plain, batches, images};
    for (unsigned i = 0; i < 3; i++) {
        tcase_add_unchecked_fixture(all[i], pack_all, NULL);
        tcase_add_checked_fixture(all[i], begin, end);
        tcase_set_timeout(all[i], 120);
        suite_add_tcase(s, all[i]);
    }
    tcase_add_test(plain, a_device_is_found_by_its_name);
    tcase_add_test(plain, without_a_device_the_local_rank_decides);
    tcase_add_test(plain, what_is_missing_for_cuda_is_named);
    tcase_add_test(plain, a_stream_does_one_thing_after_the_other);
    tcase_add_test(plain, a_stream_follows_an_event_as_it_was_recorded);
    tcase_add_test(batches, batches_arrive_as_they_are_without_a_device);
    tcase_add_test(batches, so_do_those_that_the_device_gathers);
    tcase_add_test(batches, several_devices_have_batches_in_turn);
    tcase_add_test(batches, what_a_device_can_not_gather_is_refused);
    tcase_add_test(batches, archives_beyond_the_room_are_not_locked);
    tcase_add_test(batches, others_of_the_job_know_of_copies_that_are_locked);
    tcase_add_test(batches, samples_of_any_alignment_are_gathered);
    tcase_add_test(batches, nothing_beside_what_is_locked_is_read);
    tcase_add_test(batches, nor_if_the_device_gathers);
    tcase_add_test(batches, a_slab_that_is_used_again_never_changes_under_its_reader);
    tcase_add_test(batches, nor_under_readers_on_two_streams);
    tcase_add_test(batches, nor_after_a_batch_that_was_never_sent);
    tcase_add_test(batches, a_slab_of_which_nothing_is_known_is_waited_for);
    tcase_add_test(batches, nor_under_a_consumer_that_reads_in_a_stream_it_does_not_name);
    tcase_add_test(batches, nor_where_only_the_host_can_wait_for_that_one);
    tcase_add_test(batches, a_stream_that_was_told_before_is_the_only_one);
    tcase_add_test(batches, what_can_not_be_waited_for_is_an_error_and_not_written_to);
    tcase_add_test(batches, nor_in_a_loader_whose_consumer_names_another_stream);
    tcase_add_test(batches, kept_batches_are_refused_beyond_the_memory_and_never_waited_for);
    tcase_add_test(batches, a_batch_outlives_loader_and_device);
    tcase_add_test(batches, a_wait_on_the_host_is_enough_where_there_is_no_stream);
    tcase_add_test(batches, what_was_copied_is_counted_by_epochs);
    tcase_add_test(batches, a_forked_child_goes_on_by_itself);
    tcase_add_test(batches, a_batch_size_fits_or_is_none);
    tcase_add_test(images, half_types_are_rounded_to_nearest_even);
    tcase_add_test(images, channels_come_before_rows);
    tcase_add_test(images, images_are_the_same_bits_on_all_devices);
    tcase_add_test(images, images_count_as_the_loaders_memory);
    tcase_add_test(images, images_that_make_no_sense_are_refused);
    return s;
}

/* Asked in a child: a driver that was begun does not survive a fork, and each test is one. */
static bool is_there(void)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct onepot_error error = {0};
        int r = onepot_device_open(device_name, &error, &device);
        if (r < 0)
            printf("skipped: no %s device here: %s\n", device_name, error.text);
        fflush(stdout);
        _exit(r < 0);
    }
    return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        device_name = argv[1];
    if (!is_there())
        return 77;
    int failed = run_suite(suite());
    onepot_archive_close(ragged_archive);
    onepot_archive_close(image_archive);
    return failed;
}
