/*
 * What a loader is told, and where it is: options that make no sense are named, and a state
 * goes on in another loader, with the same order or not at all.
 */
#include "loader_helper.h"

#include "onepot_device.h"
#include "suite.h"

#define FILES 60u
#define BATCH 4u

static struct tree tree;
static struct onepot_archive *archive;

static size_t same(unsigned i)
{
    (void)i;
    return 16;
}

static void begin(void)
{
    tree_begin(&tree);
    tree_numbered(&tree, FILES, 3, same);
    tree_pack(&tree, PACKING_ONEPOT);
    archive = tree_open(&tree, NULL);
}

static void end(void)
{
    onepot_archive_close(archive);
    tree_end(&tree);
}

static struct onepot_loader *make(struct onepot_loader_options o)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    o.size = sizeof(o);
    o.threads = 1;
    o.batch_size = o.batch_size ? o.batch_size : BATCH;
    o.world_size = o.world_size ? o.world_size : 1;
    ck_assert_msg(onepot_loader_new(archive, &o, &error, &loader) == 0, "%s", error.text);
    return loader;
}

static struct onepot_state state_of(struct onepot_loader *loader)
{
    struct onepot_state state = {.size = sizeof(state)};
    ck_assert_int_eq(onepot_loader_state(loader, NULL, &state), 0);
    return state;
}

#define ALL FILES

/* The samples of so many batches, if the epoch has them. */
static unsigned take(struct onepot_loader *loader, unsigned batches, uint64_t *ret_indices)
{
    const struct onepot_batch *b;
    unsigned n = 0;
    for (unsigned i = 0; i < batches; i++) {
        if (onepot_loader_next(loader, -1, NULL, &b) != 1)
            break;
        for (uint64_t k = 0; k < b->samples; k++)
            ret_indices[n++] = b->indices[k];
        onepot_batch_release(b);
    }
    return n;
}

START_TEST(an_option_that_makes_no_sense_is_named)
{
    static const struct onepot_conversion images = {.size = sizeof(images)};
    static const struct {
        struct onepot_loader_options options;
        const char *words;
    } cases[] = {
        {{.batch_size = 0}, "1 to 4294967295 samples"},
        {{.batch_size = UINT64_C(1) << 32}, "1 to 4294967295 samples"},
        {{.batch_size = 1, .threads = 1025}, "more than 1024 threads"},
        {{.batch_size = 1, .prefetch = 1025}, "more than 1024 batches ahead"},
        {{.batch_size = 1, .align = 24}, "alignment of 24"},
        {{.batch_size = 1, .align = 2u << 20}, "alignment of 2097152"},
        {{.batch_size = 1, .rank = 2, .world_size = 2}, "rank 2 is not below"},
        {{.batch_size = 1, .world_size = 1, .convert = &images}, "need a device"},
        {{.batch_size = 1, .world_size = 1, .gather = ONEPOT_GATHER_DEVICE}, "need a device"},
        {{.batch_size = 1, .world_size = 1, .npy = true}, "not a .npy file"},
    };
    struct onepot_loader_options o = cases[_i].options;
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_loader_new(archive, &o, &error, &loader), -EINVAL); /* no size */
    ck_assert_ptr_nonnull(strstr(error.text, "'size' was not set"));
    o.size = sizeof(o);
    ck_assert_int_eq(onepot_loader_new(archive, &o, &error, &loader), -EINVAL);
    ck_assert_msg(strstr(error.text, cases[_i].words) != NULL, "%s", error.text);
    ck_assert_ptr_null(loader);
}
END_TEST

START_TEST(a_state_is_what_another_loader_restores)
{
    struct onepot_loader *one = make((struct onepot_loader_options){.seed = 7, .epoch = 3});
    struct onepot_loader *other = make((struct onepot_loader_options){0});
    uint64_t rest[FILES], again[FILES];
    take(one, (unsigned)_i, rest);
    struct onepot_state state = state_of(one), restored;
    ck_assert_uint_eq(state.version, 1);
    ck_assert_uint_eq(state.epoch, 3);
    ck_assert_uint_eq(state.done, (unsigned)_i * BATCH);
    ck_assert_uint_eq(state.seed, 7);
    ck_assert_uint_eq(state.samples, FILES);
    ck_assert_int_eq(onepot_loader_restore(other, &state, NULL), 0);
    restored = state_of(other);
    ck_assert_mem_eq(&restored, &state, sizeof(state));
    unsigned n = take(one, ALL, rest);
    ck_assert_uint_eq(take(other, ALL, again), n);
    ck_assert_uint_eq(n, FILES - (unsigned)_i * BATCH);
    ck_assert_mem_eq(rest, again, n * sizeof(*rest));
    onepot_loader_free(one);
    onepot_loader_free(other);
}
END_TEST

START_TEST(two_ranks_go_on_where_one_was)
{
    struct onepot_loader *one = make((struct onepot_loader_options){.batch_size = 8});
    uint64_t rest[FILES], part[FILES];
    take(one, 2, rest);
    struct onepot_state state = state_of(one);
    unsigned n = take(one, ALL, rest);
    for (unsigned rank = 0; rank < 2; rank++) {
        struct onepot_loader *l =
            make((struct onepot_loader_options){.rank = rank, .world_size = 2});
        ck_assert_int_eq(onepot_loader_restore(l, &state, NULL), 0);
        ck_assert_uint_eq(take(l, ALL, part), n / 2);
        for (unsigned i = 0; i < n / 2; i++)
            ck_assert_uint_eq(part[i], rest[2 * i + rank]);
        onepot_loader_free(l);
    }
    onepot_loader_free(one);
}
END_TEST

START_TEST(what_can_not_go_on_is_refused_and_changes_nothing)
{
    struct onepot_loader *loader = make((struct onepot_loader_options){.seed = 5});
    uint64_t unused[FILES];
    struct onepot_error error = {0};
    take(loader, 3, unused);
    struct onepot_state good = state_of(loader), now;
    struct {
        struct onepot_state state;
        int err;
        const char *words;
    } cases[] = {{good, -EINVAL, "version 2"},
                 {good, -ESTALE, "another archive"},
                 {good, -ESTALE, "another selection"},
                 {good, -EINVAL, "other options"},
                 {good, -EINVAL, "other options"}};
    cases[0].state.version = 2;
    cases[1].state.digest[0] ^= 1;
    cases[2].state.samples++;
    cases[3].state.shuffle = 0;
    cases[4].state.block = 16;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(onepot_loader_restore(loader, &cases[i].state, &error), cases[i].err);
        ck_assert_msg(strstr(error.text, cases[i].words) != NULL, "%s", error.text);
        now = state_of(loader);
        ck_assert_mem_eq(&now, &good, sizeof(now));
    }
    onepot_loader_free(loader);
}
END_TEST

static void check_order(struct onepot_loader *loader, uint64_t rank, uint64_t world,
                        const uint64_t *list, uint64_t count, uint64_t done)
{
    uint64_t got[2 * FILES];
    unsigned n = take(loader, ALL, got);
    uint64_t length = (count + world - 1) / world;
    ck_assert_uint_eq(onepot_loader_samples(loader), length);
    ck_assert_uint_eq(onepot_loader_batches(loader), (length + BATCH - 1) / BATCH);
    ck_assert_uint_eq(n, length - done);
    for (unsigned i = 0; i < n; i++)
        ck_assert_uint_eq(got[i], list[(rank + (done + i) * world) % count]);
}

/* Epochs have any length, also more than the archive has samples. */
START_TEST(the_callers_order_is_dealt_to_the_ranks)
{
    uint64_t list[2 * FILES], world = 1 + (uint64_t)_i % 3, rank = (uint64_t)_i % world;
    static const uint64_t counts[] = {FILES, 7, 2 * FILES, 1, 3 * BATCH};
    struct onepot_loader *loader =
        make((struct onepot_loader_options){.rank = rank, .world_size = world, .epoch = 5});
    const struct onepot_batch *b;
    struct onepot_error error;
    for (unsigned e = 0; e < sizeof(counts) / sizeof(counts[0]); e++) {
        for (uint64_t i = 0; i < counts[e]; i++)
            list[i] = (i * i + 3 * e) % FILES;
        if (e == 2) {
            take(loader, 1, (uint64_t[BATCH]){0}); /* one that has no order fails */
            ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -ENODATA);
            ck_assert_msg(strstr(error.text, "no order") != NULL, "%s", error.text);
        }
        ck_assert_int_eq(onepot_loader_order(loader, 9 + e, list, counts[e], &error), 0);
        ck_assert_uint_eq(onepot_loader_epoch(loader, NULL), 9 + e);
        check_order(loader, rank, world, list, counts[e], 0);
    }
    list[3] = FILES;
    ck_assert_int_eq(onepot_loader_order(loader, 3, list, 4, &error), -ERANGE);
    ck_assert_int_eq(onepot_loader_order(loader, 3, NULL, 0, &error), 0);
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), 0);
    ck_assert_uint_eq(onepot_loader_epoch(loader, NULL), 4);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(a_state_goes_on_in_the_callers_order_alone)
{
    uint64_t list[FILES], other[FILES], some[FILES];
    struct onepot_loader *loader = make((struct onepot_loader_options){0});
    struct onepot_error error;
    for (unsigned i = 0; i < FILES; i++) {
        list[i] = i * 7 % FILES;
        other[i] = i * 11 % FILES;
    }
    ck_assert_int_eq(onepot_loader_order(loader, 2, list, FILES, NULL), 0);
    ck_assert_uint_eq(take(loader, 3, some), 3 * BATCH);
    struct onepot_state state = state_of(loader);
    ck_assert_uint_ne(state.order, 0);
    ck_assert_uint_eq(state.samples, FILES);
    take(loader, ALL, some);
    struct onepot_state ended = state_of(loader);
    ck_assert_uint_eq(ended.epoch, 3);
    ck_assert_uint_eq(ended.order + ended.done, 0);
    onepot_loader_free(loader);

    loader = make((struct onepot_loader_options){.batch_size = BATCH / 2, .world_size = 2});
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), -EINVAL);
    ck_assert_int_eq(onepot_loader_order(loader, 2, other, FILES, NULL), 0);
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "another order of epoch 2") != NULL, "%s", error.text);
    ck_assert_int_eq(onepot_loader_order(loader, 3, list, FILES, NULL), 0);
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), -EINVAL);
    ck_assert_int_eq(onepot_loader_restore(loader, &ended, &error), 0);
    ck_assert_int_eq(onepot_loader_order(loader, 2, list, FILES, NULL), 0);
    ck_assert_int_eq(onepot_loader_restore(loader, &state, &error), 0);
    unsigned n = take(loader, ALL, some);
    ck_assert_uint_eq(n, (FILES - 3 * BATCH) / 2);
    for (unsigned i = 0; i < n; i++)
        ck_assert_uint_eq(some[i], list[3 * BATCH + 2 * i]);
    onepot_loader_free(loader);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loader state");
    TCase *t = tcase_create("state");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_loop_test(t, an_option_that_makes_no_sense_is_named, 0, 10);
    tcase_add_loop_test(t, a_state_is_what_another_loader_restores, 0, FILES / BATCH);
    tcase_add_test(t, two_ranks_go_on_where_one_was);
    tcase_add_test(t, what_can_not_go_on_is_refused_and_changes_nothing);
    tcase_add_loop_test(t, the_callers_order_is_dealt_to_the_ranks, 0, 3);
    tcase_add_test(t, a_state_goes_on_in_the_callers_order_alone);
    suite_add_tcase(s, t);
    return run_suite(s);
}
