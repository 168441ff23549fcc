/*
 * Files that are cut short while they are mapped: whatever reads them is told so, and the
 * process lives. Signals of others are left to them.
 */
#include "loader_helper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "extract.h"
#include "lost_pages.h"
#include "fileset.h"
#include "suite.h"
#include "thread.h"

#define PAGES 4u
#define FILES 400u

static size_t page;

/* A file of some pages of 'x', mapped, and cut short after the first one. */
static const char *map_file(void)
{
    char path[] = "/tmp/onepot-lost.XXXXXX";
    page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    unlink(path);
    char *bytes = malloc(PAGES * page);
    memset(bytes, 'x', PAGES * page);
    ck_assert_int_eq(write(fd, bytes, PAGES * page), (ssize_t)(PAGES * page));
    free(bytes);
    const char *map = mmap(NULL, PAGES * page, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    ck_assert_int_eq(ftruncate(fd, (off_t)page), 0);
    close(fd);
    return map;
}

static char look(const char *at)
{
    return *(const volatile char *)at;
}

START_TEST(lost_pages_are_zeros_and_the_mapping_is_marked)
{
    const char *map = map_file(), *other = map_file();
    struct lost_pages *guard = lost_pages_guard(map, PAGES * page);
    struct lost_pages *another = lost_pages_guard(other, PAGES * page);
    ck_assert_int_eq(look(map), 'x');
    ck_assert(!lost_pages_any(guard));
    ck_assert_int_eq(look(map + 2 * page + 5), 0);
    ck_assert(lost_pages_any(guard));
    ck_assert(!lost_pages_any(another));
    ck_assert_int_eq(look(map + page), 0);
    ck_assert_int_eq(look(map), 'x');
    lost_pages_release(guard);
    guard = lost_pages_guard(map_file(), PAGES * page);
    ck_assert(!lost_pages_any(guard)); /* though it is the same one, used again */
    lost_pages_release(guard);
    ck_assert_int_eq(look(other + PAGES * page - 1), 0);
    ck_assert(lost_pages_any(another));
    lost_pages_release(another);
    ck_assert(!lost_pages_any(NULL));
}
END_TEST

/* How a child ends that guards one mapping and looks at another. */
static int look_elsewhere(void (*before)(void), void (*after)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        const char *map = map_file(), *unguarded = map_file();
        if (before)
            before();
        lost_pages_guard(map, PAGES * page);
        if (after)
            after();
        if (look(map + page) != 0)
            _exit(1);
        look(unguarded + page);
        _exit(2);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static void end_with_three(int number)
{
    (void)number;
    _exit(3);
}

static void install_plain(void)
{
    signal(SIGBUS, end_with_three);
}

static void end_with_four(int number, siginfo_t *info, void *context)
{
    (void)number;
    _exit(info->si_code > 0 && context ? 4 : 5);
}

static void install_with_information(void)
{
    struct sigaction action = {.sa_sigaction = end_with_four, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
}

START_TEST(what_is_not_guarded_is_left_to_who_was_there_before)
{
    int status = look_elsewhere(NULL, NULL);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGBUS);
    ck_assert_int_eq(look_elsewhere(install_plain, NULL), 3 << 8);
    ck_assert_int_eq(look_elsewhere(install_with_information, NULL), 4 << 8);
}
END_TEST

static struct sigaction ours;

/* As Python's faulthandler does: it reports, puts back what was there, and raises again. */
static void report(int number)
{
    sigaction(SIGBUS, &ours, NULL);
    raise(number);
}

static void install_later(void)
{
    struct sigaction action = {.sa_handler = report, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, &ours);
}

START_TEST(a_handler_that_reports_and_hands_on_is_no_end)
{
    int status = look_elsewhere(NULL, install_later);
    ck_assert(WIFSIGNALED(status)); /* at the mapping that is not guarded, and not before */
    ck_assert_int_eq(WTERMSIG(status), SIGBUS);
}
END_TEST

START_TEST(a_signal_that_is_sent_ends_the_process_as_before)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        lost_pages_guard(map_file(), PAGES * page);
        for (;;)
            pause();
    }
    /* Before the handler is there it ends it, too. */
    ck_assert_int_eq(kill(pid, SIGBUS), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGBUS);
}
END_TEST

static void *look_in_thread(void *at)
{
    return look(at) == 0 ? at : NULL;
}

START_TEST(threads_of_the_library_and_children_are_guarded)
{
    const char *map = map_file();
    struct lost_pages *guard = lost_pages_guard(map, PAGES * page);
    pthread_t thread;
    void *result;
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(look(map + page) == 0 && lost_pages_any(guard) ? 0 : 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert(!lost_pages_any(guard));
    ck_assert_int_eq(
        thread_start(&thread, 1 << 16, look_in_thread, (void *)(uintptr_t)(map + 2 * page)), 0);
    pthread_join(thread, &result);
    ck_assert_ptr_nonnull(result);
    ck_assert(lost_pages_any(guard));
    lost_pages_release(guard);
}
END_TEST

/* ---- archives ---- */

static size_t some_bytes(unsigned i)
{
    return 4000 + 4 * (i % 100);
}

static void pack(struct tree *t, enum packing packing)
{
    tree_begin(t);
    tree_numbered(t, FILES, 4, some_bytes);
    ck_assert(tree_pack(t, packing));
}

#ifdef ONEPOT_LOADER
START_TEST(names_of_an_archive_that_is_cut_short_are_errors)
{
    struct tree t;
    char name[256];
    size_t len;
    int r = 0;
    pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL);
    ck_assert_int_eq(onepot_archive_name(a, 0, name, sizeof(name), &len), 0);
    ck_assert_int_eq(truncate(t.archive, 8192), 0);
    for (unsigned i = 0; i < FILES && r == 0; i++)
        r = onepot_archive_name(a, i, name, sizeof(name), &len);
    ck_assert_int_eq(r, -EIO);
    ck_assert_int_eq(onepot_archive_find(a, "c000/0000000.bin", &(uint64_t){0}), -EIO);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST
#endif

START_TEST(a_saved_index_that_is_cut_short_is_an_error)
{
    struct tree t;
    struct fileset *fileset;
    struct fault fault = {0};
    char name[256];
    size_t len;
    int r = 0;
    pack(&t, PACKING_TAR);
    const struct fileset_options options = {.save = FILESET_SAVE_ALWAYS};
    for (unsigned i = 0; i < 2; i++) { /* made and saved, then found */
        ck_assert_msg(fileset_open(t.archive, &options, &fault, &fileset) == 0, "%s",
                      fault.what);
        if (i == 0)
            fileset_close(fileset);
    }
    ck_assert_ptr_nonnull(fileset->index_path);
    ck_assert_int_eq(truncate(fileset->index_path, 100), 0);
    for (uint32_t i = 0; i < FILES && !index_is_lost(fileset->index); i++)
        r = index_path(fileset->index, i, name, sizeof(name), &len);
    ck_assert(index_is_lost(fileset->index));
    ck_assert_int_lt(r, 0);
    ck_assert_int_eq(fileset_check_whole(fileset, &fault), -EIO);
    fileset_close(fileset);
    tree_end(&t);
}
END_TEST

/* Cut short after it was opened; `bytes` of it are left. */
static int extract_cut(enum packing packing, off_t bytes, struct fault *fault,
                       struct extract_result *ret_result)
{
    struct tree t;
    struct fileset *fileset;
    char directory[96];
    pack(&t, packing);
    snprintf(directory, sizeof(directory), "%s/out", t.path);
    const struct extract_options options = {.work = {.threads = 2}, .directory = directory};
    ck_assert_int_eq(fileset_open(t.archive, NULL, fault, &fileset), 0);
    ck_assert_int_eq(truncate(t.archive, bytes), 0);
    int r = extract_run(fileset, &options, fault, ret_result);
    fileset_close(fileset);
    tree_end(&t);
    return r;
}

START_TEST(extract_of_an_archive_that_is_cut_short_fails)
{
    struct fault fault = {0};
    struct extract_result result;
    ck_assert_int_eq(extract_cut(PACKING_ONEPOT, 100000, &fault, &result), -ENODATA);
    ck_assert_ptr_nonnull(strstr(fault.what, "cut short"));
    ck_assert_int_eq(extract_cut(PACKING_TAR, 100000, &fault, &result), -ENODATA);
    ck_assert_uint_gt(result.problems, 0);
}
END_TEST

#ifdef ONEPOT_LOADER
static const char *cut_path;

/* Within the run of which this is the first sample. */
static int cut_and_copy(void *ctx, uint64_t sample, const void *bytes, size_t len, void *to,
                        size_t room, size_t *ret_len)
{
    unsigned *calls = ctx;
    (void)sample;
    if (__atomic_fetch_add(calls, 1, __ATOMIC_RELAXED) == 0)
        ck_assert_int_eq(truncate(cut_path, 500000), 0);
    *ret_len = len < room ? len : room;
    memcpy(to, bytes, *ret_len);
    return 0;
}

/* What is still there comes as it was, and what is not is never zeros. */
START_TEST(a_loader_whose_archive_is_cut_short_meanwhile_hands_out_no_zeros)
{
    struct tree t;
    const struct onepot_batch *b;
    struct onepot_error error = {0};
    unsigned calls = 0;
    uint64_t valid = 0;
    pack(&t, PACKING_TAR);
    cut_path = t.archive;
    struct onepot_archive *a = tree_open(&t, NULL);
    struct onepot_loader *loader = NULL;
    struct onepot_loader_options o = {.size = sizeof(o),
                                      .batch_size = FILES,
                                      .world_size = 1,
                                      .threads = 1,
                                      .skip_errors = _i,
                                      .decode = cut_and_copy,
                                      .decode_ctx = &calls,
                                      .decoded_bytes = 4400};
    ck_assert_msg(onepot_loader_new(a, &o, &error, &loader) == 0, "%s", error.text);
    int r = onepot_loader_next(loader, 60000, &error, &b);
    if (_i == 0) {
        ck_assert_int_eq(r, -ENODATA);
        ck_assert_ptr_nonnull(strstr(error.text, ".bin"));
        ck_assert_ptr_nonnull(strstr(error.text, "plain.tar"));
    } else {
        ck_assert_int_eq(r, 1);
        for (uint64_t i = 0; i < b->samples; i++)
            for (uint64_t j = 0; b->valid[i] && j < b->sizes[i]; j += 4)
                ck_assert_mem_eq(b->data + b->offsets[i] + j,
                                 &(uint32_t){(uint32_t)b->indices[i]}, 4);
        for (uint64_t i = 0; i < b->samples; i++)
            valid += b->valid[i];
        ck_assert_uint_gt(valid, 50);
        ck_assert_uint_lt(valid, 200);
        onepot_batch_release(b);
    }
    onepot_loader_free(loader);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

/* Of the bytes that a caller was pointed to nothing can be told, but the next call can. */
START_TEST(bytes_of_a_sample_are_not_pointed_to_once_they_are_lost)
{
    struct tree t;
    const void *bytes;
    uint64_t len;
    pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL);
    ck_assert_int_eq(onepot_archive_bytes(a, FILES - 1, &bytes, &len), 0);
    ck_assert_int_eq(truncate(t.archive, 8192), 0);
    ck_assert_int_eq(look(bytes), 0);
    ck_assert_int_eq(onepot_archive_bytes(a, FILES - 1, &bytes, &len), -ENOTSUP);
    ck_assert_int_eq(onepot_archive_bytes(a, 0, &bytes, &len), -ENOTSUP);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST
#endif

int main(void)
{
    Suite *s = suite_create("lost_pages");
    TCase *c = tcase_create("lost_pages");
    tcase_add_test(c, lost_pages_are_zeros_and_the_mapping_is_marked);
    tcase_add_test(c, what_is_not_guarded_is_left_to_who_was_there_before);
    tcase_add_test(c, a_handler_that_reports_and_hands_on_is_no_end);
    tcase_add_test(c, a_signal_that_is_sent_ends_the_process_as_before);
    tcase_add_test(c, threads_of_the_library_and_children_are_guarded);
    tcase_add_test(c, a_saved_index_that_is_cut_short_is_an_error);
    tcase_add_test(c, extract_of_an_archive_that_is_cut_short_fails);
#ifdef ONEPOT_LOADER
    tcase_add_test(c, names_of_an_archive_that_is_cut_short_are_errors);
    tcase_add_loop_test(c, a_loader_whose_archive_is_cut_short_meanwhile_hands_out_no_zeros, 0,
                        2);
    tcase_add_test(c, bytes_of_a_sample_are_not_pointed_to_once_they_are_lost);
#endif
    suite_add_tcase(s, c);
    signal(SIGBUS,
           SIG_DFL); /* sanitizers bring a handler, which would be the one before ours */
    return run_suite(s);
}
