/*
 * Storage that does not answer: a loader says which read it is that does not end, goes on with
 * the next batch, and ends when it is told to; whatever the storage does later.
 */
#include "loader_helper.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "dataset.h"
#include "source_ops.h"
#include "source_retry.h"
#include "suite.h"

#define FILES 96u
#define SAMPLE 4096u
#define BATCH 16u
#define TIMEOUT_MS 1000u
#define WAIT_MS -1 /* time may pass before a thread gets to run */
#define MS UINT64_C(1000000)
#define AHEAD_MAX 1024u /* batches, whatever is asked for */

/*
 * A file whose reads hang while the gate is closed: all, or those of one sample. Others come
 * from memory, so that no disk of a busy machine makes them slow.
 */
static struct slow {
    int fd;
    uint8_t *bytes;
    size_t len;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool closed;
    uint64_t only;        /* the offset whose reads hang; UINT64_MAX: all */
    unsigned hanging;     /* reads */
    _Atomic bool goes_on; /* what reads wait for */
    _Atomic bool is_here; /* as a copy that is whole */
} slow = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

static struct tree tree;
static struct onepot_archive *archive;

/* ---- the time ---- */

static struct played {
    _Atomic uint64_t now_ns;
    uint64_t open_ns; /* when the gate opens by itself; 0: it does not */
} played;

static uint64_t played_now_ns(void)
{
    return atomic_load(&played.now_ns);
}

/* ---- a source that hangs ---- */

static int slow_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset)
{
    (void)source;
    if (offset > slow.len || len > slow.len - offset)
        return -EIO;
    memcpy(buf, slow.bytes + offset, len);
    return 0;
}

static int slow_read(const struct source *source, struct source_cursor *cursor)
{
    int r = 0;
    bool hangs = false;
    pthread_mutex_lock(&slow.lock);
    while (slow.closed && (slow.only == UINT64_MAX || slow.only == cursor->offset)) {
        slow.hanging += !hangs;
        hangs = true;
        pthread_cond_wait(&slow.opened, &slow.lock);
    }
    slow.hanging -= hangs;
    pthread_mutex_unlock(&slow.lock);
    while (r == 0 && cursor->count > 0) {
        size_t n = cursor->iov->iov_len;
        r = slow_read_cached(source, cursor->iov->iov_base, n, cursor->offset);
        source_cursor_step(cursor, n);
    }
    return r;
}

static const uint8_t *slow_map(const struct source *source, uint64_t offset, uint64_t len)
{
    (void)source;
    (void)offset;
    (void)len;
    return NULL;
}

static void slow_state(const struct source *source, struct source_state *ret_state)
{
    (void)source;
    *ret_state =
        (struct source_state){.keeps = true,
                              .is_local = atomic_load(&slow.is_here),
                              .progress_ns = atomic_load(&slow.goes_on) ? played_now_ns() : 0};
}

static bool slow_close(struct source *source)
{
    (void)source;
    return true;
}

static const struct source_ops slow_ops = {.read = slow_read,
                                           .read_cached = slow_read_cached,
                                           .map = slow_map,
                                           .state = slow_state,
                                           .close = slow_close};

static void set_gate(bool closed, uint64_t only)
{
    pthread_mutex_lock(&slow.lock);
    slow.closed = closed;
    slow.only = only;
    pthread_cond_broadcast(&slow.opened);
    pthread_mutex_unlock(&slow.lock);
}

/* ---- a clock that goes on only when nothing else does ---- */

/*
 * All threads of the engine hang, or wait for work: the time has come at once. Otherwise they
 * get on with what they do. The consumer may look for that as often as it likes.
 */
static bool played_wait(pthread_cond_t *ready, pthread_mutex_t *lock, uint64_t until_ns,
                        uint32_t at_work)
{
    struct timespec t;
    pthread_mutex_lock(&slow.lock);
    bool stands = slow.hanging > 0 && slow.closed && at_work == slow.hanging;
    pthread_mutex_unlock(&slow.lock);
    stands = stands && until_ns != UINT64_MAX;
    if (stands)
        atomic_store(&played.now_ns, until_ns);
    if (stands && played.open_ns && until_ns >= played.open_ns)
        set_gate(false, 0);
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(ready, lock, &t); /* others may have the lock */
    return !stands;
}

/* Threads that were left behind hold the dataset until they end; they read what is ours. */
static void wait_until_nobody_is_left(void)
{
    while (atomic_load(&archive->dataset->users) > 1)
        sched_yield();
}

static size_t same(unsigned i)
{
    (void)i;
    return SAMPLE;
}

static void open_slow(void)
{
    struct stat st;
    slow.fd = open(tree.archive, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(slow.fd, 0);
    ck_assert_int_eq(fstat(slow.fd, &st), 0);
    slow.len = (size_t)st.st_size;
    slow.bytes = malloc(slow.len);
    ck_assert_ptr_nonnull(slow.bytes);
    ck_assert_int_eq(pread(slow.fd, slow.bytes, slow.len, 0), (ssize_t)slow.len);
}

static void setup(void)
{
    tree_begin(&tree);
    setenv("ONEPOT_RUNTIME_DIR", tree.path, 1);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    tree_numbered(&tree, FILES, 4, same);
    tree_pack(&tree, PACKING_ONEPOT);
    archive = tree_open(&tree, NULL);
    played = (struct played){.now_ns = 1000 * MS};
    archive->dataset->now_ns = played_now_ns;
    archive->dataset->wait = played_wait;
    open_slow();
    struct source *wrapper = calloc(1, sizeof(*wrapper));
    ck_assert_ptr_nonnull(wrapper);
    source_wrap(wrapper, &slow_ops, &archive->dataset->filesets[0]->source);
}

static void teardown(void)
{
    set_gate(false, 0);
    atomic_store(&slow.goes_on, false);
    atomic_store(&slow.is_here, false);
    wait_until_nobody_is_left();
    onepot_archive_close(archive);
    close(slow.fd);
    free(slow.bytes);
    unsetenv("ONEPOT_ASSUME_REMOTE");
    tree_end(&tree);
}

/* ---- the loader ---- */

static struct onepot_loader *make(uint32_t threads, uint32_t timeout_ms)
{
    struct onepot_loader_options o = {.size = sizeof(o),
                                      .batch_size = BATCH,
                                      .world_size = 1,
                                      .no_shuffle = true,
                                      .threads = threads,
                                      .io_timeout_ms = timeout_ms};
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_new(archive, &o, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    return loader;
}

static void check_bytes(const struct onepot_batch *b)
{
    for (uint64_t i = 0; i < b->samples; i++)
        for (uint64_t j = 0; j < SAMPLE; j += 4) {
            uint32_t number;
            memcpy(&number, b->data + b->offsets[i] + j, 4);
            ck_assert_uint_eq(number, b->indices[i]);
        }
}

/* The rest of the epoch: how many batches it has, and how many stalled. */
static unsigned read_epoch(struct onepot_loader *loader, unsigned *ret_stalled,
                           struct onepot_error *error)
{
    const struct onepot_batch *b;
    unsigned whole = 0;
    int r;
    *ret_stalled = 0;
    while ((r = onepot_loader_next(loader, WAIT_MS, error, &b)) != 0) {
        ck_assert_msg(r == 1 || r == -ETIME, "%d: %s", r, error->text);
        *ret_stalled += r == -ETIME;
        whole += r == 1;
        if (r == 1)
            check_bytes(b);
        if (r == 1)
            onepot_batch_release(b);
    }
    return whole;
}

/* The gate is open: an epoch from its beginning, or one of the next. */
static void check_epochs_are_whole(struct onepot_loader *loader)
{
    struct onepot_error error = {0};
    unsigned whole, stalled;
    whole = read_epoch(loader, &stalled, &error);
    ck_assert_msg(stalled == 0, "%s", error.text);
    ck_assert_uint_eq(whole, FILES / BATCH);
}

START_TEST(a_read_that_does_not_end_is_named_and_its_batch_alone_is_lost)
{
    struct onepot_error error = {0};
    set_gate(true, record_offset(&archive->dataset->records[20]));
    struct onepot_loader *loader = make((uint32_t)_i, TIMEOUT_MS);
    unsigned stalled, whole = read_epoch(loader, &stalled, &error);
    ck_assert_uint_eq(stalled, 1);
    ck_assert_uint_eq(whole, FILES / BATCH - 1);
    ck_assert_ptr_nonnull(strstr(error.text, tree.archive));
    ck_assert_ptr_nonnull(strstr(error.text, "0000020.bin"));
    ck_assert_ptr_nonnull(strstr(error.text, "io_timeout"));
    /* The thread comes back, and so does the batch of the next epoch. */
    set_gate(false, 0);
    check_epochs_are_whole(loader);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(who_waits_for_a_stream_that_comes_further_is_not_given_up)
{
    struct onepot_error error = {0};
    unsigned stalled;
    set_gate(true, record_offset(&archive->dataset->records[20]));
    atomic_store(&slow.goes_on, true);
    struct onepot_loader *loader = make(2, TIMEOUT_MS);
    played.open_ns = played.now_ns + 3 * TIMEOUT_MS * MS;
    ck_assert_uint_eq(read_epoch(loader, &stalled, &error), FILES / BATCH);
    ck_assert_uint_eq(stalled, 0);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(storage_that_is_gone_is_an_error_each_time_and_no_hang)
{
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    set_gate(true, UINT64_MAX);
    struct onepot_loader *loader = make(2, TIMEOUT_MS);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(onepot_loader_next(loader, WAIT_MS, &error, &b), -ETIME);
    ck_assert_ptr_nonnull(strstr(error.text, tree.archive));
    set_gate(false, 0);
    int r;
    while ((r = onepot_loader_next(loader, WAIT_MS, &error, &b)) == -ETIME)
        sched_yield();
    if (r == 1)
        onepot_batch_release(b);
    onepot_loader_set_epoch(loader, 5);
    check_epochs_are_whole(loader);
    onepot_loader_free(loader);
}
END_TEST

/* What has its time-out never, or not yet, ends nevertheless when it is told to. */
START_TEST(a_loader_that_hangs_can_be_freed_and_what_it_left_goes_later)
{
    const struct onepot_batch *b;
    set_gate(true, UINT64_MAX);
    struct onepot_loader *loader = make(3, ONEPOT_NEVER);
    ck_assert_int_eq(onepot_loader_next(loader, 50, NULL, &b), -ETIMEDOUT);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(another_epoch_can_be_begun_while_reads_hang)
{
    set_gate(true, record_offset(&archive->dataset->records[3]));
    struct onepot_loader *loader = make(4, TIMEOUT_MS);
    const struct onepot_batch *b;
    int r = onepot_loader_next(loader, 20, NULL, &b);
    ck_assert_int_eq(r, -ETIMEDOUT);
    ck_assert_int_eq(onepot_loader_set_epoch(loader, 7), 0);
    ck_assert_uint_eq(onepot_loader_epoch(loader, NULL), 7);
    set_gate(false, 0);
    check_epochs_are_whole(loader);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(slow_storage_is_waited_for)
{
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    set_gate(true, UINT64_MAX);
    struct onepot_loader *loader = make(2, ONEPOT_NEVER);
    ck_assert_int_eq(onepot_loader_next(loader, 2 * TIMEOUT_MS, &error, &b), -ETIMEDOUT);
    set_gate(false, 0);
    unsigned stalled;
    ck_assert_uint_eq(read_epoch(loader, &stalled, &error), FILES / BATCH);
    ck_assert_uint_eq(stalled, 0);
    onepot_loader_free(loader);
}
END_TEST

/*
 * A clock for a consumer and a thread that goes elsewhere, which goes on only once the consumer
 * has looked in vain, and waits again. The gate opens when both wait.
 */
static _Thread_local bool goes_elsewhere;
static _Atomic unsigned looks; /* of the consumer */
static _Atomic bool waited_in_vain;
static pthread_cond_t looked = PTHREAD_COND_INITIALIZER;

static bool wait_in_turn(pthread_cond_t *ready, pthread_mutex_t *lock, uint64_t until_ns,
                         uint32_t at_work)
{
    struct timespec until = clock_timespec(until_ns);
    (void)at_work;
    if (!goes_elsewhere) {
        atomic_fetch_add(&looks, 1);
        pthread_cond_broadcast(&looked);
        bool hears = pthread_cond_timedwait(ready, lock, &until) == 0;
        if (!hears)
            atomic_store(&waited_in_vain, true);
        return hears;
    }
    set_gate(false, 0);
    pthread_cond_wait(ready, lock);
    while (atomic_load(&looks) < 2)
        pthread_cond_wait(&looked, lock);
    return true;
}

static void *wait_for_a_batch(void *loader)
{
    const struct onepot_batch *b;
    return (void *)(intptr_t)onepot_loader_next(loader, 10000, NULL, &b);
}

START_TEST(who_waits_hears_that_there_is_no_batch_where_the_loader_went)
{
    pthread_t consumer;
    void *result;
    archive->dataset->now_ns = NULL;
    archive->dataset->wait = wait_in_turn;
    goes_elsewhere = true;
    set_gate(true, UINT64_MAX);
    struct onepot_loader *loader = make(1, ONEPOT_NEVER);
    ck_assert_int_eq(pthread_create(&consumer, NULL, wait_for_a_batch, loader), 0);
    for (bool hangs = false; !hangs || atomic_load(&looks) == 0; sched_yield()) {
        pthread_mutex_lock(&slow.lock);
        hangs = slow.hanging > 0;
        pthread_mutex_unlock(&slow.lock);
    }
    ck_assert_int_eq(onepot_loader_order(loader, 1, NULL, 0, NULL), 0);
    ck_assert_int_eq(pthread_join(consumer, &result), 0);
    ck_assert_int_eq((int)(intptr_t)result, 0);
    ck_assert(!atomic_load(&waited_in_vain));
    goes_elsewhere = false;
    onepot_loader_free(loader);
}
END_TEST

static uint32_t threads_of(struct onepot_loader *loader)
{
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(loader, &stats);
    return stats.threads;
}

/* Batches that were planned before are more than an epoch. */
START_TEST(a_copy_that_is_whole_is_read_by_as_many_threads_as_a_local_archive)
{
    archive->dataset->maps[0] = slow.bytes; /* of a copy, from the start */
    struct onepot_loader *loader = make(0, ONEPOT_NEVER);
    check_epochs_are_whole(loader);
    ck_assert_uint_ge(threads_of(loader), 32);
    atomic_store(&slow.is_here, true);
    for (unsigned i = 0; i < 2 * AHEAD_MAX * BATCH / FILES; i++)
        check_epochs_are_whole(loader);
    uint32_t threads = threads_of(loader);
    onepot_loader_free(loader);
    loader = make(0, ONEPOT_NEVER);
    ck_assert_uint_eq(threads, threads_of(loader));
    onepot_loader_free(loader);
}
END_TEST

/* Reads that fail: memory of this process where nothing is mapped is an EIO. */
START_TEST(a_read_that_fails_is_tried_as_often_as_was_said)
{
    static const struct {
        uint32_t given;
        uint64_t expected;
    } cases[] = {{ONEPOT_NEVER, 0}, {1, 1}, {2, 2}};
    struct onepot_archive_options o = {
        .size = sizeof(o), .cache_bytes = 1, .retries = cases[_i].given};
    struct onepot_archive *failing = tree_open(&tree, &o);
    struct source *source = failing->dataset->filesets[0]->source;
    struct onepot_error error = {0};
    char bytes[SAMPLE];
    size_t got;
    int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(dup3(fd, source_fd(source), O_CLOEXEC), 0);
    close(fd);
    ck_assert_int_eq(onepot_archive_read(failing, 5, 0, bytes, SAMPLE, &error, &got), -EIO);
    ck_assert_ptr_nonnull(strstr(error.text, "0000005.bin"));
    struct source_error_counts errors = source_error_counts(source);
    ck_assert_uint_eq(errors.retried, cases[_i].expected);
    ck_assert_uint_eq(errors.failed, 1);
    onepot_archive_close(failing);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stall");
    TCase *t = tcase_create("stall");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, a_read_that_does_not_end_is_named_and_its_batch_alone_is_lost, 1, 4);
    tcase_add_test(t, who_waits_for_a_stream_that_comes_further_is_not_given_up);
    tcase_add_test(t, storage_that_is_gone_is_an_error_each_time_and_no_hang);
    tcase_add_test(t, a_loader_that_hangs_can_be_freed_and_what_it_left_goes_later);
    tcase_add_test(t, another_epoch_can_be_begun_while_reads_hang);
    tcase_add_test(t, who_waits_hears_that_there_is_no_batch_where_the_loader_went);
    tcase_add_test(t, slow_storage_is_waited_for);
    tcase_add_test(t, a_copy_that_is_whole_is_read_by_as_many_threads_as_a_local_archive);
    tcase_add_loop_test(t, a_read_that_fails_is_tried_as_often_as_was_said, 0, 3);
    suite_add_tcase(s, t);
    return run_suite(s);
}
