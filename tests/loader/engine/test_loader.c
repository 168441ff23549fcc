/*
 * The loader: batches hold what the sampler says, whole and in order; across epochs, when
 * batches are kept, after a restart on other ranks, after a fork, and when data is damaged.
 */
#include "loader_helper.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#include "dataset.h"
#include "suite.h"

#define FILES 203u

static size_t ragged(unsigned i)
{
    return 4 * (1 + i % 97);
}

static size_t same(unsigned i)
{
    (void)i;
    return 64;
}

static struct onepot_loader *make(const struct onepot_archive *archive,
                                  struct onepot_loader_options *options)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    options->size = sizeof(*options);
    int r = onepot_loader_new(archive, options, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    return loader;
}

static const struct onepot_batch *next(struct onepot_loader *loader)
{
    const struct onepot_batch *batch = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_next(loader, 60000, &error, &batch);
    ck_assert_msg(r >= 0, "%s", error.text);
    return r ? batch : NULL;
}

/* Sample i of a numbered tree holds i over and over; what lies between samples is zero. */
static void check_content(const struct onepot_batch *b, size_t (*size)(unsigned),
                          unsigned align)
{
    uint64_t end = 0;
    for (uint64_t i = 0; i < b->samples; i++) {
        uint32_t number = (uint32_t)b->indices[i];
        ck_assert_uint_eq(b->sizes[i], size(number));
        ck_assert_uint_eq(b->offsets[i] % align, 0);
        ck_assert_uint_ge(b->offsets[i], end);
        for (; end < b->offsets[i]; end++)
            ck_assert_uint_eq(b->data[end], 0);
        for (uint64_t j = 0; j < b->sizes[i] / 4; j++) {
            uint32_t found;
            memcpy(&found, b->data + b->offsets[i] + 4 * j, 4);
            ck_assert_uint_eq(found, number);
        }
        ck_assert_int_eq(b->labels[i], number / ((FILES + 4) / 5));
        end = b->offsets[i] + b->sizes[i];
    }
    ck_assert_uint_eq(end, b->bytes);
}

static void check_epoch(struct onepot_loader *loader, struct onepot_sampler *sampler,
                        uint64_t epoch, uint64_t batch_size, size_t (*size)(unsigned))
{
    const struct onepot_batch *b;
    uint64_t at = 0, length = onepot_sampler_length(sampler);
    onepot_sampler_set_epoch(sampler, epoch);
    while ((b = next(loader))) {
        ck_assert_uint_eq(b->epoch, epoch);
        ck_assert_uint_eq(b->first, at);
        ck_assert_uint_eq(b->samples, length - at < batch_size ? length - at : batch_size);
        for (uint64_t i = 0; i < b->samples; i++) {
            uint64_t index;
            uint8_t valid;
            ck_assert_int_eq(onepot_sampler_get(sampler, at + i, 1, &index, &valid), 0);
            ck_assert_uint_eq(b->indices[i], index);
            ck_assert_uint_eq(b->valid[i], valid);
        }
        check_content(b, size, size == same ? 4 : 64);
        ck_assert_uint_eq(b->stride, size == same ? 64 : 0);
        at += b->samples;
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(at, length);
}

START_TEST(batches_hold_what_the_sampler_says)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, FILES, 5, _i % 2 ? ragged : same);
    if (tree_pack(&t, (enum packing)(_i / 2))) {
        struct onepot_archive *a = tree_open(&t, NULL);
        for (uint64_t batch = 1; batch < 300; batch = batch * 3 + 4) {
            struct onepot_loader_options o = {.batch_size = batch,
                                              .rank = 1,
                                              .world_size = 3,
                                              .seed = 5,
                                              .threads = 1 + (uint32_t)batch % 3,
                                              .prefetch = 1 + (uint32_t)batch % 4};
            struct onepot_sampler_options so = {
                .size = sizeof(so), .samples = FILES, .rank = 1, .world_size = 3, .seed = 5};
            struct onepot_loader *loader = make(a, &o);
            struct onepot_sampler *sampler;
            ck_assert_int_eq(onepot_sampler_new(&so, NULL, &sampler), 0);
            for (uint64_t epoch = 0; epoch < 3; epoch++)
                check_epoch(loader, sampler, epoch, batch, _i % 2 ? ragged : same);
            onepot_sampler_free(sampler);
            onepot_loader_free(loader);
        }
        onepot_archive_close(a);
    }
    tree_end(&t);
}
END_TEST

START_TEST(drop_last_has_full_batches_only)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 5, same);
    struct onepot_loader_options o = {.batch_size = 16, .world_size = 2, .drop_last = true};
    struct onepot_loader *loader = make(a, &o);
    const struct onepot_batch *b;
    unsigned batches = 0;
    for (; (b = next(loader)); batches++) {
        ck_assert_uint_eq(b->samples, 16);
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(batches, 6);
    ck_assert_uint_eq(onepot_loader_batches(loader), 6);
    ck_assert_uint_eq(onepot_loader_samples(loader), 96);
    onepot_loader_free(loader);

    o.batch_size = 500; /* not one */
    loader = make(a, &o);
    ck_assert_ptr_null(next(loader));
    ck_assert_ptr_null(next(loader));
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(batches_that_are_kept_use_the_budget_and_then_an_error_says_so)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 5, ragged);
    struct onepot_loader_options o = {
        .batch_size = 4, .world_size = 1, .memory_bytes = 1u << 20, .threads = 2};
    struct onepot_loader *loader = make(a, &o);
    const struct onepot_batch *kept[FILES], *b;
    struct onepot_error error = {0};
    unsigned count = 0;
    int r;
    while ((r = onepot_loader_next(loader, -1, &error, &b)) > 0)
        kept[count++] = b;
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_ge(count, 8);
    ck_assert_ptr_nonnull(strstr(error.text, "1048576"));
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -ENOBUFS);
    for (unsigned i = 0; i < count; i++)
        check_content(kept[i], ragged, 64);
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(loader, &stats);
    ck_assert_uint_le(stats.slab_bytes, 1u << 20);
    ck_assert_uint_eq(stats.batches, count);

    /* With one released it goes on, where it was. */
    onepot_batch_release(kept[0]);
    r = onepot_loader_next(loader, 60000, &error, &b);
    ck_assert_msg(r == 1, "%s", error.text);
    ck_assert_uint_eq(b->first, 4 * count);
    /* What is out may be released when the loader is gone. */
    onepot_loader_free(loader);
    for (unsigned i = 1; i < count; i++)
        check_content(kept[i], ragged, 64);
    for (unsigned i = 1; i < count; i++)
        onepot_batch_release(kept[i]);
    onepot_batch_release(b);

    o.memory_bytes = 1000; /* not one batch fits */
    loader = make(a, &o);
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -ENOBUFS);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(epochs_can_be_chosen_at_any_time)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 5, ragged);
    struct onepot_loader_options o = {.batch_size = 10, .world_size = 1, .seed = 2};
    struct onepot_sampler_options so = {
        .size = sizeof(so), .samples = FILES, .world_size = 1, .seed = 2};
    struct onepot_loader *loader = make(a, &o);
    struct onepot_sampler *sampler;
    ck_assert_int_eq(onepot_sampler_new(&so, NULL, &sampler), 0);
    for (uint64_t round = 0; round < 40; round++) {
        uint64_t epoch = round * 7 % 5;
        ck_assert_int_eq(onepot_loader_set_epoch(loader, epoch), 0);
        for (uint64_t i = 0; i < round % 4; i++)
            onepot_batch_release(next(loader));
        ck_assert_int_eq(onepot_loader_set_epoch(loader, epoch), 0);
        if (round % 8 == 0)
            check_epoch(loader, sampler, epoch, 10, ragged);
    }
    onepot_sampler_free(sampler);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

/* Stop after `step` steps of 12 samples on `world` ranks, go on with `other` ranks. */
static void check_resume(const struct onepot_archive *a, uint64_t world, uint64_t other,
                         uint64_t step)
{
    struct onepot_state state = {.size = sizeof(state)};
    struct onepot_delivered sum = {0}, all, part;
    for (uint64_t rank = 0; rank < world; rank++) {
        struct onepot_loader_options o = {
            .batch_size = 12 / world, .rank = rank, .world_size = world, .seed = 3, .epoch = 1};
        struct onepot_loader *loader = make(a, &o);
        for (uint64_t i = 0; i < step; i++)
            onepot_batch_release(next(loader));
        ck_assert_int_eq(onepot_loader_state(loader, NULL, &state), 0);
        ck_assert_uint_eq(state.done, step * 12);
        onepot_loader_delivered(loader, &part);
        onepot_delivered_add(&sum, &part);
        onepot_loader_free(loader);
    }
    for (uint64_t rank = 0; rank < other; rank++) {
        struct onepot_loader_options o = {
            .batch_size = 12 / other, .rank = rank, .world_size = other, .seed = 99};
        struct onepot_loader *loader = make(a, &o);
        const struct onepot_batch *b;
        struct onepot_error error = {0};
        int r = onepot_loader_restore(loader, &state, &error);
        ck_assert_msg(r == 0, "%s", error.text);
        while ((b = next(loader))) {
            ck_assert_uint_eq(b->epoch, 1);
            onepot_batch_release(b);
        }
        onepot_loader_delivered(loader, &part);
        onepot_delivered_add(&sum, &part);
        ck_assert_uint_eq(onepot_loader_epoch(loader, NULL), 2);
        onepot_loader_free(loader);
    }
    onepot_archive_all(a, &all);
    ck_assert_uint_eq(sum.samples, all.samples);
    ck_assert_uint_eq(sum.sum_a, all.sum_a);
    ck_assert_uint_eq(sum.sum_b, all.sum_b);
}

START_TEST(a_state_goes_on_at_every_step_on_any_number_of_ranks)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, 72, 5, same);
    for (uint64_t step = 0; step <= 6; step++)
        for (uint64_t world = 1; world <= 3; world++)
            for (uint64_t other = 1; other <= 3; other++)
                check_resume(a, world, other, step);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(a_state_of_something_else_is_refused)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, 72, 5, same);
    tree_pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL), *part;
    ck_assert_int_eq(onepot_archive_split(a, 0, 0.5, 0, &part), 0);
    struct onepot_loader_options o = {.batch_size = 4, .world_size = 1};
    struct onepot_loader *loader = make(a, &o), *other = make(part, &o);
    struct onepot_state state = {.size = sizeof(state)};
    struct onepot_error error;
    onepot_batch_release(next(loader));
    ck_assert_int_eq(onepot_loader_state(loader, NULL, &state), 0);
    ck_assert_int_eq(onepot_loader_restore(other, &state, &error), -ESTALE);
    state.shuffle = 0;
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), -EINVAL);
    state.shuffle = 1;
    state.version = 2;
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), -EINVAL);
    onepot_loader_free(other);
    o.world_size = 3;
    o.batch_size = 1;
    other = make(a, &o);
    state.version = 1;
    ck_assert_int_eq(onepot_loader_restore(other, &state, &error), -EINVAL); /* 4 by 3 */
    state.done = 6;
    ck_assert_int_eq(onepot_loader_restore(other, &state, &error), 0);
    onepot_loader_free(other);
    onepot_loader_free(loader);
    onepot_archive_close(part);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

static void make_npy(struct tree *t, const char *name, const char *type, unsigned columns,
                     size_t payload, unsigned value)
{
    uint8_t file[512] = "\x93NUMPY\x01";
    int n = snprintf((char *)file + 10, 256,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (2, %u), }\n", type,
                     columns);
    file[8] = (uint8_t)n;
    memset(file + 10 + n, (int)value, payload);
    tree_file(t, name, file, 10 + (size_t)n + payload);
}

START_TEST(npy_samples_are_one_dense_array)
{
    struct tree t;
    tree_begin(&t);
    for (unsigned i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof(name), "x%02u.npy", i);
        make_npy(&t, name, "<f4", 3, 24, i);
    }
    tree_pack(&t, (enum packing)_i);
    struct onepot_archive *a = tree_open(&t, NULL);
    struct onepot_loader_options o = {.batch_size = 7, .world_size = 1, .npy = true};
    struct onepot_loader *loader = make(a, &o);
    struct onepot_npy npy = {.size = sizeof(npy)};
    ck_assert_int_eq(onepot_loader_npy(loader, &npy), 0);
    ck_assert_str_eq(npy.type, "<f4");
    ck_assert_uint_eq(npy.dimensions, 2);
    ck_assert_uint_eq(npy.shape[1], 3);
    ck_assert_uint_eq(npy.bytes, 24);
    const struct onepot_batch *b;
    while ((b = next(loader))) {
        ck_assert_uint_eq(b->stride, 24);
        ck_assert_uint_eq(b->bytes, 24 * b->samples);
        for (uint64_t i = 0; i < b->bytes; i++)
            ck_assert_uint_eq(b->data[i], b->indices[i / 24]);
        onepot_batch_release(b);
    }
    onepot_loader_free(loader);
    onepot_archive_close(a);

    /* One of another shape, of the same size. */
    make_npy(&t, "y.npy", "<f8", 3, 48, 1);
    tree_pack(&t, PACKING_ONEPOT);
    a = tree_open(&t, NULL);
    o.batch_size = 100;
    loader = make(a, &o);
    struct onepot_error error;
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -EPROTOTYPE);
    ck_assert_ptr_nonnull(strstr(error.text, "y.npy"));
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(what_is_no_npy_header_is_refused)
{
    static const char *const bad[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), ",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '",
        "{'descr': '<f4",
        "{",
        ""};
    struct onepot_npy npy;
    size_t data;
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t *file = malloc(12 + strlen(bad[i]));
        memcpy(file, "\x93NUMPY\x01\0", 8);
        file[8] = (uint8_t)strlen(bad[i]);
        file[9] = 0;
        memcpy(file + 10, bad[i], strlen(bad[i]));
        size_t len = 10 + strlen(bad[i]);
        ck_assert_int_eq(npy_parse(file, len < 12 ? 12 : len, &npy, &data), -EUCLEAN);
        ck_assert_int_eq(npy_parse(file, 11, &npy, &data), -EAGAIN);
        free(file);
    }
    ck_assert_int_eq(npy_parse("\x93NUMPX\x01\0\x02\0{}", 12, &npy, &data), -EUCLEAN);
}
END_TEST

/* The first number of a sample, plus one, as often as its size says. */
static int first_number(void *ctx, uint64_t sample, const void *bytes, size_t len, void *out,
                        size_t room, size_t *ret_len)
{
    uint32_t number;
    (void)ctx;
    (void)room;
    memcpy(&number, bytes, 4);
    if (number != sample || len < 4)
        return -EILSEQ;
    number++;
    memcpy(out, &number, 4);
    *ret_len = 4 + sample % 2;
    ((char *)out)[4] = 'x';
    return 0;
}

static int never(void *ctx, uint64_t sample, const void *bytes, size_t len, void *out,
                 size_t room, size_t *ret_len)
{
    (void)ctx, (void)bytes, (void)len, (void)out, (void)room;
    *ret_len = 0;
    return sample == 33 ? -EILSEQ : 0;
}

START_TEST(a_decoder_makes_what_lies_in_the_batch)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, FILES, 5, ragged);
    if (!tree_pack(&t, (enum packing)_i)) {
        tree_end(&t);
        return;
    }
    struct onepot_archive *a = tree_open(&t, NULL);
    struct onepot_loader_options o = {
        .batch_size = 50, .world_size = 1, .decode = first_number, .decoded_bytes = 8};
    struct onepot_loader *loader = make(a, &o);
    const struct onepot_batch *b;
    while ((b = next(loader))) {
        ck_assert_uint_eq(b->stride, 8);
        for (uint64_t i = 0; i < b->samples; i++) {
            uint32_t number;
            memcpy(&number, b->data + b->offsets[i], 4);
            ck_assert_uint_eq(number, b->indices[i] + 1);
            ck_assert_uint_eq(b->sizes[i], 4 + b->indices[i] % 2);
            ck_assert_int_eq(b->data[b->offsets[i] + 4], b->indices[i] % 2 ? 'x' : 0);
        }
        onepot_batch_release(b);
    }
    onepot_loader_free(loader);

    o.decode = never;
    o.no_shuffle = true;
    loader = make(a, &o);
    struct onepot_error error;
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -EILSEQ);
    ck_assert_ptr_nonnull(strstr(error.text, "0000033.bin"));
    b = next(loader); /* goes on behind it */
    ck_assert_uint_eq(b->first, 50);
    onepot_batch_release(b);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

/* Change a byte of the data of sample `number`. */
static void damage(const struct tree *t, uint32_t number)
{
    static uint8_t bytes[1 << 20];
    int fd = open(t->archive, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ssize_t len = pread(fd, bytes, sizeof(bytes), 0);
    for (ssize_t i = 0; i + 64 <= len; i += 4) {
        bool found = true;
        for (ssize_t j = 0; j < 64; j += 4)
            found = found && memcmp(bytes + i + j, &number, 4) == 0;
        if (!found)
            continue;
        uint8_t changed = bytes[i + 40] ^ 1;
        ck_assert_int_eq(pwrite(fd, &changed, 1, i + 40), 1);
        close(fd);
        return;
    }
    ck_abort_msg("sample not found");
}

START_TEST(a_damaged_sample_is_named_or_skipped)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, 60, 5, same);
    tree_pack(&t, PACKING_ONEPOT);
    damage(&t, 42);
    struct onepot_archive *a = tree_open(&t, NULL);
    struct onepot_loader_options o = {.batch_size = 60, .world_size = 1, .verify = true};
    struct onepot_loader *loader = make(a, &o);
    const struct onepot_batch *b;
    struct onepot_error error;
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -EBADMSG);
    ck_assert_ptr_nonnull(strstr(error.text, "0000042.bin"));
    ck_assert_ptr_nonnull(strstr(error.text, "onepot.tar"));
    onepot_loader_free(loader);

    o.skip_errors = true;
    loader = make(a, &o);
    b = next(loader);
    for (uint64_t i = 0; i < 60; i++) {
        ck_assert_uint_eq(b->valid[i], b->indices[i] != 42);
        ck_assert_uint_eq(b->sizes[i], b->indices[i] == 42 ? 0 : 64);
    }
    onepot_batch_release(b);
    struct onepot_stats stats = {.size = sizeof(stats)};
    struct onepot_delivered delivered;
    onepot_loader_stats(loader, &stats);
    ck_assert_uint_eq(stats.skipped, 1);
    onepot_loader_delivered(loader, &delivered);
    ck_assert_uint_eq(delivered.samples, 59);
    onepot_loader_free(loader);

    ck_assert_int_eq(truncate(t.archive, 8192), 0); /* while it is open */
    o = (struct onepot_loader_options){.batch_size = 60, .world_size = 1};
    loader = make(a, &o);
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -ENODATA);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(a_child_goes_on_from_the_same_place)
{
    struct tree t;
    if (!FORKS_WITH_THREADS) {
        puts("skipped: under a sanitizer a process with threads can't fork");
        return;
    }
    tree_begin(&t);
    tree_numbered(&t, FILES, 5, ragged);
    if (!tree_pack(&t, (enum packing)_i)) {
        tree_end(&t);
        return;
    }
    struct onepot_archive *a = tree_open(&t, NULL);
    struct onepot_loader_options o = {.batch_size = 10, .world_size = 1};
    struct onepot_loader *loader = make(a, &o);
    const struct onepot_batch *first = next(loader), *b;
    pid_t child = fork();
    if (child == 0) {
        unsigned count = 0;
        bool good = onepot_loader_epoch(loader, NULL) == 0;
        onepot_batch_release(first);
        while (onepot_loader_next(loader, 60000, NULL, &b) > 0) {
            good = good && b->first == 10 * (count + 1) && b->epoch == 0;
            for (uint64_t i = 0; i < b->samples; i++)
                good = good && memcmp(b->data + b->offsets[i], &b->indices[i], 4) == 0;
            count++;
            onepot_batch_release(b);
        }
        onepot_loader_free(loader);
        onepot_archive_close(a);
        _exit(good && count == 20 ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    unsigned count = 1;
    for (; (b = next(loader)); count++)
        onepot_batch_release(b);
    ck_assert_uint_eq(count, 21);
    onepot_batch_release(first);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

struct consumer {
    struct onepot_loader *loader;
    unsigned batches;
    uint64_t samples;
};

static void *consume(void *arg)
{
    struct consumer *c = arg;
    const struct onepot_batch *b;
    while (onepot_loader_epoch(c->loader, NULL) < 3) {
        struct onepot_error error = {0};
        int r = onepot_loader_next(c->loader, 60000, &error, &b);
        if (r < 0)
            break;
        if (r == 0)
            continue;
        c->batches++;
        c->samples += b->epoch < 3 ? b->samples : 0;
        onepot_batch_release(b);
    }
    return NULL;
}

START_TEST(several_threads_may_consume)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, FILES, 5, ragged);
    if (!tree_pack(&t, PACKING_SQUASHFS))
        tree_pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL);
    struct onepot_loader_options o = {.batch_size = 3, .world_size = 1, .threads = 3};
    struct onepot_loader *loader = make(a, &o);
    struct consumer c[3];
    pthread_t threads[3];
    uint64_t samples = 0;
    for (unsigned i = 0; i < 3; i++) {
        c[i] = (struct consumer){.loader = loader};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, consume, &c[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        samples += c[i].samples;
    }
    ck_assert_uint_eq(samples, 3 * FILES);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(options_that_make_no_sense_are_refused)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, 8, 1, same);
    static const struct onepot_loader_options bad[] = {
        {.batch_size = 0, .world_size = 1},
        {.batch_size = 1, .world_size = 2, .rank = 2},
        {.batch_size = 1, .world_size = 1, .align = 48},
        {.batch_size = 1, .world_size = 1, .threads = 5000},
        {.batch_size = 1, .world_size = 1, .prefetch = 5000},
        {.batch_size = 1, .world_size = 1, .decode = never},
        {.batch_size = 1, .world_size = 1, .decode = never, .decoded_bytes = 8, .npy = true},
        {.batch_size = 1, .world_size = 1, .npy = true},
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct onepot_loader_options o = bad[i];
        struct onepot_loader *none = NULL;
        struct onepot_error error = {0};
        o.size = sizeof(o);
        ck_assert_int_eq(onepot_loader_new(a, &o, &error, &none), -EINVAL);
        ck_assert_str_ne(error.text, "");
        ck_assert_ptr_null(none);
    }
    struct onepot_archive *none;
    ck_assert_int_eq(onepot_archive_subset(a, NULL, 0, &none), 0);
    struct onepot_loader_options o = {.batch_size = 1, .world_size = 1};
    struct onepot_loader *empty = make(none, &o);
    ck_assert_ptr_null(next(empty));
    ck_assert_uint_eq(onepot_loader_batches(empty), 0);
    onepot_loader_free(empty);
    onepot_archive_close(none);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loader");
    TCase *t = tcase_create("loader");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, batches_hold_what_the_sampler_says, 0, 2 * PACKINGS);
    tcase_add_test(t, drop_last_has_full_batches_only);
    tcase_add_test(t, batches_that_are_kept_use_the_budget_and_then_an_error_says_so);
    tcase_add_test(t, epochs_can_be_chosen_at_any_time);
    tcase_add_test(t, a_state_goes_on_at_every_step_on_any_number_of_ranks);
    tcase_add_test(t, a_state_of_something_else_is_refused);
    tcase_add_loop_test(t, npy_samples_are_one_dense_array, 0, 2);
    tcase_add_test(t, what_is_no_npy_header_is_refused);
    tcase_add_loop_test(t, a_decoder_makes_what_lies_in_the_batch, 0, PACKINGS);
    tcase_add_test(t, a_damaged_sample_is_named_or_skipped);
    tcase_add_loop_test(t, a_child_goes_on_from_the_same_place, 0, PACKINGS);
    tcase_add_test(t, several_threads_may_consume);
    tcase_add_test(t, options_that_make_no_sense_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
