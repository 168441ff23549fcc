/*
 * All functions of a loader at once, by several threads; and in a child, where the first of
 * them makes the loader's threads anew.
 */
#include "loader_helper.h"
#include "suite.h"

#include <pthread.h>
#include <sys/wait.h>

#define FILES 120u
#define BATCH 8u
#define WAIT_MS 60000

struct user {
    struct onepot_loader *loader;
    unsigned rounds, failed, batches;
    bool orders; /* another thread gives them: an epoch may have none yet */
};

static size_t some(unsigned i)
{
    return 4 * (1 + i % 50);
}

static void *take(void *arg)
{
    struct user *user = arg;
    const struct onepot_batch *b;
    for (unsigned i = 0; i < user->rounds; i++) {
        int r = onepot_loader_next(user->loader, WAIT_MS, NULL, &b);
        user->failed += r < 0 && !(user->orders && r == -ENODATA);
        user->batches += r == 1;
        for (uint64_t k = 0; r == 1 && k < b->samples; k++)
            user->failed += memcmp(b->data + b->offsets[k], &b->indices[k], 4) != 0;
        if (r == 1)
            onepot_batch_release(b);
    }
    return NULL;
}

static void *turn(void *arg)
{
    struct user *user = arg;
    struct onepot_state state = {.size = sizeof(state)};
    struct onepot_stats stats = {.size = sizeof(stats)};
    struct onepot_delivered delivered;
    for (unsigned i = 0; i < user->rounds; i++) {
        user->failed += onepot_loader_state(user->loader, NULL, &state) != 0;
        user->failed += onepot_loader_set_epoch(user->loader, i % 5) != 0;
        user->failed += onepot_loader_restore(user->loader, &state, NULL) != 0;
        user->failed += onepot_loader_epoch(user->loader, NULL) > FILES * user->rounds;
        onepot_loader_delivered(user->loader, &delivered);
        user->failed += delivered.samples > FILES;
        onepot_loader_stats(user->loader, &stats);
    }
    return NULL;
}

/* Orders of any length, and none. */
static void *order(void *arg)
{
    struct user *user = arg;
    uint64_t list[2 * FILES];
    for (unsigned i = 0; i < user->rounds; i++) {
        uint64_t count = i * 7 % (2 * FILES);
        for (uint64_t k = 0; k < count; k++)
            list[k] = k * i % FILES;
        user->failed += onepot_loader_order(user->loader, i % 5, list, count, NULL) != 0;
        user->failed += i % 3 == 0 && onepot_loader_set_epoch(user->loader, i % 4) != 0;
        user->failed += onepot_loader_samples(user->loader) > 2 * FILES;
    }
    return NULL;
}

/* Two threads take batches while two others do something else. */
static unsigned run_all(struct onepot_loader *loader, unsigned rounds, void *(*other)(void *))
{
    struct user users[4];
    pthread_t threads[4];
    unsigned failed = 0;
    for (unsigned i = 0; i < 4; i++) {
        users[i] = (struct user){.loader = loader, .rounds = rounds, .orders = other == order};
        failed += pthread_create(&threads[i], NULL, i % 2 ? other : take, &users[i]) != 0;
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        failed += users[i].failed;
    }
    return failed;
}

static struct onepot_loader *make(const struct onepot_archive *archive)
{
    struct onepot_loader_options o = {
        .size = sizeof(o), .batch_size = BATCH, .world_size = 1, .threads = 2};
    struct onepot_loader *loader = NULL;
    ck_assert_int_eq(onepot_loader_new(archive, &o, NULL, &loader), 0);
    return loader;
}

START_TEST(may_take_batches_and_go_elsewhere_at_once)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 3, some);
    struct onepot_loader *loader = make(a);
    ck_assert_uint_eq(run_all(loader, 200, turn), 0);
    onepot_loader_set_epoch(loader, 9);
    struct user alone = {.loader = loader, .rounds = FILES / BATCH + 1};
    take(&alone);
    ck_assert_uint_eq(alone.batches, FILES / BATCH);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(may_take_batches_while_orders_come_and_go)
{
    struct tree t;
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 3, some);
    struct onepot_loader *loader = make(a);
    ck_assert_uint_eq(run_all(loader, 200, order), 0);
    ck_assert_int_eq(onepot_loader_order(loader, 9, (uint64_t[]){7, 7, 3}, 3, NULL), 0);
    struct user alone = {.loader = loader, .rounds = 2};
    take(&alone);
    ck_assert_uint_eq(alone.batches, 1);
    ck_assert_uint_eq(onepot_loader_epoch(loader, NULL), 10);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(of_a_child_find_one_loader)
{
    struct tree t;
    if (!FORKS_WITH_THREADS) {
        puts("skipped: under a sanitizer a process with threads can't fork");
        return;
    }
    struct onepot_archive *a = tree_open_numbered(&t, FILES, 3, some);
    struct onepot_loader *loader = make(a);
    struct user parent = {.loader = loader, .rounds = 3};
    take(&parent);
    pid_t child = fork();
    if (child == 0) {
        unsigned failed = run_all(loader, 20, turn);
        onepot_loader_free(loader);
        onepot_archive_close(a);
        _exit(failed ? 1 : 0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    take(&parent);
    ck_assert_uint_eq(parent.batches, 6);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("threads");
    TCase *t = tcase_create("threads");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, may_take_batches_and_go_elsewhere_at_once);
    tcase_add_test(t, may_take_batches_while_orders_come_and_go);
    tcase_add_test(t, of_a_child_find_one_loader);
    suite_add_tcase(s, t);
    return run_suite(s);
}
