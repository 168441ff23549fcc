/*
 * The threads around a plan: as many fetch as there is work for, one that hangs is replaced,
 * and the fetcher learns how far readers are. Time is a number here, and a fetch ends when the
 * test lets it.
 */
#include "ahead.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "clock.h"
#include "index_helper.h"
#include "suite.h"

#define FILES 400u
#define FILE_BYTES 1000u
#define LOGGED 4096u

static struct index *tree;
static uint32_t positions[FILES]; /* in an order that is not that of the names */

static void make_tree(void)
{
    struct builder *b = new_builder();
    char path[32];

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "d/%05u", i);
        add_file(b, path, 512 + 2048 * (uint64_t)i, FILE_BYTES);
    }
    tree = build(b, &tar_header);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "d/%05u", i * 77 % FILES);
        positions[i] = position_of(tree, path);
    }
}

static void free_tree(void)
{
    index_close(tree);
}

static _Atomic uint64_t time_ns;

static uint64_t the_time(void)
{
    return atomic_load(&time_ns);
}

/* A fetcher that keeps a log, and holds as many fetches as it is told to. */
struct fake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct reader_want log[LOGGED];
    unsigned logged, fetching, most_fetching;
    unsigned begun, ended;
    unsigned to_hold, to_refuse;
    bool released, cannot_begin;
    uint64_t passed, passes; /* the last, and how often it was told */
    unsigned orders;
};

static int fake_begin(void *ctx, void **ret_scratch)
{
    struct fake *f = ctx;

    pthread_mutex_lock(&f->lock);
    f->begun++;
    *ret_scratch = f;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return f->cannot_begin ? -ENOMEM : 0;
}

static int fake_fetch(void *ctx, void *scratch, const struct reader_want *wants, size_t count)
{
    struct fake *f = ctx;
    int r = 0;

    ck_assert_ptr_eq(scratch, f);
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < count && f->logged < LOGGED; i++)
        f->log[f->logged++] = wants[i];
    if (++f->fetching > f->most_fetching)
        f->most_fetching = f->fetching;
    pthread_cond_broadcast(&f->changed);
    if (f->to_refuse > 0) {
        f->to_refuse--;
        r = -ENOBUFS;
    }
    if (f->to_hold > 0) {
        f->to_hold--;
        while (!f->released)
            pthread_cond_wait(&f->changed, &f->lock);
    }
    f->fetching--;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return r;
}

static void fake_end(void *scratch)
{
    struct fake *f = scratch;

    pthread_mutex_lock(&f->lock);
    f->ended++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void fake_passed(void *ctx, uint64_t due, bool is_new_order)
{
    struct fake *f = ctx;

    pthread_mutex_lock(&f->lock);
    f->passed = due;
    f->passes++;
    f->orders += is_new_order;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static const struct fetcher fake_fetcher = {
    .begin = fake_begin, .fetch = fake_fetch, .end = fake_end, .passed = fake_passed};

/* Wait until something holds of the fake. */
#define AWAIT(f, condition)                                                                    \
    do {                                                                                       \
        pthread_mutex_lock(&(f)->lock);                                                        \
        while (!(condition))                                                                   \
            pthread_cond_wait(&(f)->changed, &(f)->lock);                                      \
        pthread_mutex_unlock(&(f)->lock);                                                      \
    } while (0)

struct fixture {
    struct fake fake;
    struct ahead_options options;
    struct ahead *ahead;
    struct observer *observer;
    _Atomic uint64_t replaced;
};

static void begin(struct fixture *f, unsigned fetchers, uint64_t window_files)
{
    atomic_store(&time_ns, 1000000000);
    *f = (struct fixture){0};
    pthread_mutex_init(&f->fake.lock, NULL);
    pthread_cond_init(&f->fake.changed, NULL);
    f->options = (struct ahead_options){.index = tree,
                                        .root = INDEX_ROOT,
                                        .window_bytes = window_files * FILE_BYTES,
                                        .most_bytes = 1u << 20,
                                        .fetcher = &fake_fetcher,
                                        .fetcher_ctx = &f->fake,
                                        .fetchers = fetchers,
                                        .now_ns = the_time,
                                        .replaced = &f->replaced};
}

static void start(struct fixture *f)
{
    ck_assert_int_eq(ahead_new(&f->options, &f->ahead), 0);
    ck_assert_int_eq(ahead_observer(f->ahead, &f->observer), 0);
}

/* All positions are the order that readers are told to keep to. */
static void start_with_order(struct fixture *f)
{
    uint32_t *list = malloc(sizeof(positions));

    memcpy(list, positions, sizeof(positions));
    ck_assert_int_eq(known_reads_listed(list, FILES, &f->options.given), 0);
    start(f);
}

static void read_file(struct fixture *f, uint32_t position)
{
    const struct observation o = {
        .time_ns = the_time(), .position = position, .len = 4096, .task = 1};

    observer_note(f->observer, &o);
}

/* Read a file, and wait until the planner has noticed and done what follows from it. */
static void read_and_await(struct fixture *f, uint32_t position)
{
    read_file(f, position);
    pthread_mutex_lock(&f->fake.lock);
    for (uint64_t before = f->fake.passes; f->fake.passes < before + 3;)
        pthread_cond_wait(&f->fake.changed, &f->fake.lock);
    pthread_mutex_unlock(&f->fake.lock);
}

static struct ahead_stats stats_of(struct fixture *f)
{
    struct ahead_stats stats;

    ahead_stats(f->ahead, &stats);
    return stats;
}

static void release(struct fixture *f)
{
    pthread_mutex_lock(&f->fake.lock);
    f->fake.released = true;
    pthread_cond_broadcast(&f->fake.changed);
    pthread_mutex_unlock(&f->fake.lock);
}

static int stop(struct fixture *f)
{
    struct timespec until;
    int recorded;

    release(f);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 100;
    ahead_end(f->ahead);
    ck_assert_int_eq(ahead_join(f->ahead, &until, &recorded), 0);
    ahead_free(f->ahead);
    known_reads_free(f->options.given);
    return recorded;
}

static bool was_fetched(const struct fake *f, uint32_t position)
{
    for (unsigned i = 0; i < f->logged; i++)
        if (f->log[i].position == position)
            return true;
    return false;
}

START_TEST(what_comes_next_is_fetched)
{
    struct fixture f;
    uint32_t first, count;

    ck_assert_int_eq(index_children(tree, position_of(tree, "d"), &first, &count), 0);
    begin(&f, 4, 100);
    start(&f);
    for (unsigned i = 0; i < 10; i++)
        read_file(&f, first + i);
    AWAIT(&f.fake, was_fetched(&f.fake, first + 10));
    ck_assert_int_eq(stop(&f), 0);
    ck_assert(!was_fetched(&f.fake, first));
    ck_assert_uint_eq(f.fake.begun, f.fake.ended);
}
END_TEST

START_TEST(as_many_threads_fetch_as_there_is_work_for)
{
    struct fixture f;

    begin(&f, 4, 20);
    f.fake.to_hold = UINT32_MAX;
    start_with_order(&f);
    AWAIT(&f.fake, f.fake.fetching == 4);
    release(&f);
    AWAIT(&f.fake, f.fake.logged == 20 && f.fake.fetching == 0);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.fake.logged, 20); /* the window */
    ck_assert_uint_eq(f.fake.most_fetching, 4);
    for (unsigned i = 0; i < 20; i++)
        ck_assert(was_fetched(&f.fake, positions[i]));
    ck_assert_uint_eq(f.fake.begun, f.fake.ended);
}
END_TEST

START_TEST(a_thread_that_hangs_is_replaced_when_its_time_is_over)
{
    struct fixture f;

    begin(&f, 1, 100);
    f.options.stuck_ms = 1000;
    f.fake.to_hold = 1;
    start_with_order(&f);
    AWAIT(&f.fake, f.fake.fetching == 1);
    atomic_fetch_add(&time_ns, 999 * UINT64_C(1000000));
    read_and_await(&f, positions[0]);
    ck_assert_uint_eq(f.replaced, 0);
    atomic_fetch_add(&time_ns, 200 * UINT64_C(1000000));
    read_file(&f, positions[1]);
    AWAIT(&f.fake, f.fake.logged >= 50);
    ck_assert_uint_eq(f.replaced, 1);
    ck_assert_uint_eq(f.fake.begun, 2);
    release(&f); /* the first thread is one too many now, and ends */
    AWAIT(&f.fake, f.fake.ended == 1);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.fake.ended, 2);
}
END_TEST

START_TEST(without_a_time_limit_nothing_is_replaced)
{
    struct fixture f;

    begin(&f, 1, 100);
    f.fake.to_hold = 1;
    start_with_order(&f);
    AWAIT(&f.fake, f.fake.fetching == 1);
    atomic_fetch_add(&time_ns, UINT64_C(1000000000000));
    for (unsigned i = 0; i < 200; i++)
        read_file(&f, positions[i]);
    AWAIT(&f.fake, f.fake.passed > 0);
    ck_assert_uint_eq(f.fake.logged, 1);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.replaced, 0);
}
END_TEST

START_TEST(what_is_refused_comes_again_after_a_read)
{
    struct fixture f;

    begin(&f, 1, 100);
    f.fake.to_refuse = 1;
    start_with_order(&f);
    AWAIT(&f.fake, f.fake.logged == 1);
    while (stats_of(&f).waiting_bytes > 0)
        sched_yield(); /* until the plan has heard of it */
    read_file(&f, positions[1]);
    AWAIT(&f.fake, f.fake.logged >= 20);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.fake.log[0].due, 0);
    unsigned times = 0;
    for (unsigned i = 0; i < f.fake.logged; i++)
        times += f.fake.log[i].due == 0;
    ck_assert_uint_eq(times, 2);
}
END_TEST

START_TEST(the_fetcher_learns_what_readers_have_passed)
{
    struct fixture f;
    struct ahead_stats stats;

    begin(&f, 2, 50);
    start_with_order(&f);
    for (unsigned i = 0; i < 300; i++)
        read_file(&f, positions[i]);
    do
        stats = stats_of(&f);
    while (stats.in_order < 300 && sched_yield() == 0);
    AWAIT(&f.fake, f.fake.passed >= 100);
    ck_assert_uint_eq(stats.kind, AHEAD_GIVEN);
    ck_assert_uint_eq(stats.in_order, 300);
    ck_assert_uint_eq(stats.order_files, FILES);
    ck_assert_uint_eq(stats.observations_lost, 0);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.fake.orders, 1); /* when it began to follow the order */
}
END_TEST

START_TEST(a_fetcher_that_cannot_begin_fetches_nothing)
{
    struct fixture f;

    begin(&f, 4, 100);
    f.fake.cannot_begin = true;
    start_with_order(&f);
    AWAIT(&f.fake, f.fake.begun == 1);
    for (unsigned i = 0; i < 200; i++)
        read_file(&f, positions[i]);
    AWAIT(&f.fake, f.fake.passed > 0);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.fake.logged, 0);
    ck_assert_uint_eq(f.fake.ended, 0);
}
END_TEST

START_TEST(a_window_can_shrink)
{
    struct fixture f;

    begin(&f, 1, 100);
    f.fake.to_hold = 1;
    start_with_order(&f);
    AWAIT(&f.fake, f.fake.fetching == 1);
    ahead_set_window(f.ahead, 10 * FILE_BYTES);
    release(&f);
    AWAIT(&f.fake, f.fake.logged >= 10 && f.fake.fetching == 0);
    ck_assert_int_eq(stop(&f), 0);
    ck_assert_uint_eq(f.fake.logged, 10);
}
END_TEST

static uint64_t much(void *ctx)
{
    (void)ctx;
    return UINT64_C(1) << 40;
}

/* Those that fetch through the mount; each has a process, which should not stay for nothing. */
START_TEST(a_thread_that_has_nothing_to_fetch_ends)
{
    struct fixture f;
    unsigned files = 0;

    begin(&f, 0, 0);
    f.options.mount = &fake_fetcher;
    f.options.mount_ctx = &f.fake;
    f.options.mount_fetchers = 2;
    f.options.nearby_bytes = UINT64_C(1) << 30;
    f.options.room_bytes = much;
    start(&f);
    for (unsigned i = 0; i < 2048; i++)
        read_file(&f, positions[i % FILES]);
    AWAIT(&f.fake, f.fake.ended > 0 && f.fake.ended == f.fake.begun);
    for (unsigned i = 0; i < f.fake.logged; i++)
        files += f.fake.log[i].len == FILE_BYTES;
    ck_assert_uint_eq(files, FILES);
    ck_assert_uint_le(f.fake.most_fetching, 2);
    ck_assert_int_eq(stop(&f), 0);
}
END_TEST

static uint64_t later_at_each_look(void)
{
    return atomic_fetch_add(&time_ns, UINT64_C(2000000));
}

/* Nothing is observed, and still the planner comes. */
START_TEST(names_are_fetched_before_anybody_asks)
{
    struct fixture f;

    begin(&f, 0, 0);
    f.options.mount = &fake_fetcher;
    f.options.mount_ctx = &f.fake;
    f.options.mount_fetchers = 2;
    f.options.names = f.options.all_names = true;
    f.options.now_ns = later_at_each_look;
    start(&f);
    AWAIT(&f.fake, f.fake.ended > 0 && f.fake.ended == f.fake.begun);
    ck_assert_uint_gt(f.fake.logged, 0);
    ck_assert_int_eq(stop(&f), 0);
}
END_TEST

/* All that was noted before the end is in it, whenever the planner came to take it. */
START_TEST(a_record_is_whole_when_all_threads_have_ended)
{
    char directory[64], path[72], text[64 * FILES];
    struct fixture f;
    unsigned lines = 0;

    suite_make_folder("ahead", directory, sizeof(directory));
    snprintf(path, sizeof(path), "%s/record", directory);
    begin(&f, 1, 0);
    ck_assert_int_eq(recorder_new(path, tree, INDEX_ROOT, &f.options.recorder), 0);
    start(&f);
    for (unsigned i = 0; i < FILES; i++)
        read_file(&f, positions[i]);
    ck_assert_int_eq(stop(&f), 0);
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof(text));
    for (ssize_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    ck_assert_uint_eq(lines, FILES);
    ck_assert_uint_eq(f.fake.begun, 0);
    close(fd);
    unlink(path);
    rmdir(directory);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ahead");
    TCase *c = tcase_create("ahead");
    tcase_add_unchecked_fixture(c, make_tree, free_tree);
    tcase_add_test(c, what_comes_next_is_fetched);
    tcase_add_test(c, as_many_threads_fetch_as_there_is_work_for);
    tcase_add_test(c, a_thread_that_hangs_is_replaced_when_its_time_is_over);
    tcase_add_test(c, without_a_time_limit_nothing_is_replaced);
    tcase_add_test(c, what_is_refused_comes_again_after_a_read);
    tcase_add_test(c, the_fetcher_learns_what_readers_have_passed);
    tcase_add_test(c, a_fetcher_that_cannot_begin_fetches_nothing);
    tcase_add_test(c, a_window_can_shrink);
    tcase_add_test(c, a_thread_that_has_nothing_to_fetch_ends);
    tcase_add_test(c, names_are_fetched_before_anybody_asks);
    tcase_add_test(c, a_record_is_whole_when_all_threads_have_ended);
    suite_add_tcase(s, c);
    return run_suite(s);
}
