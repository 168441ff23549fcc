/*
 * Tars that are one compressed stream, read while they are unpacked: nothing is there before it
 * was compared, waits end, whatever becomes of the stream, and nothing is left. The real back
 * end unpacks real archives here; how a mount looks to its readers is in mount/stream.py.
 */
#include <check.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "forks.h"
#include "fileset.h"
#include "source.h"
#include "stage_private.h"
#include "suite.h"
#ifdef ONEPOT_LOADER
#include "onepot.h"
#endif

#define FILE_BYTES ((5u << 20) + 12345u)
#define LIMIT_MS 100000u

static char folder[64];
static uint8_t *bytes; /* of the only file */

static int command(const char *line)
{
    char full[PATH_MAX + 512];
    snprintf(full, sizeof(full), "cd %s && { %s; } >/dev/null 2>&1", folder, line);
    return system(full);
}

static void set_up(void)
{
    suite_make_folder("stream", folder, sizeof(folder));
    ck_assert_int_eq(chdir(folder), 0);
    setenv("ONEPOT_RUNTIME_DIR", folder, 1);
    bytes = malloc(FILE_BYTES);
    ck_assert_ptr_nonnull(bytes);
    suite_fill_noise(bytes, FILE_BYTES);
    FILE *f = fopen("data", "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, FILE_BYTES, f), FILE_BYTES);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(command("tar -cf - data | zstd -q > a.tar.zst"), 0);
    struct fileset *fileset = NULL;
    ck_assert_int_eq(fileset_open("a.tar.zst",
                                  &(struct fileset_options){.save = FILESET_SAVE_ALWAYS}, NULL,
                                  &fileset),
                     0);
    fileset_close(fileset);
}

static void tear_down(void)
{
    free(bytes);
    ck_assert_int_eq(chdir("/"), 0);
    command("rm -rf \"$PWD\"");
}

/* ---- an opened stream ---- */

struct opened {
    struct stage_store store;
    struct fileset *fileset;
    uint64_t offset; /* of the file in the tar */
};

static void open_stream(struct opened *o, bool is_private)
{
    struct extent extent;
    uint32_t position;
    *o = (struct opened){.store = {.is_private = is_private}};
    const struct fileset_store fileset_store = stage_fileset_store(&o->store);
    ck_assert_int_eq(fileset_open("a.tar.zst",
                                  &(struct fileset_options){.store = &fileset_store}, NULL,
                                  &o->fileset),
                     0);
    ck_assert_ptr_nonnull(o->store.stage);
    ck_assert_int_eq((int)o->fileset->origin, FILESET_INDEX_SAVED);
    ck_assert_int_eq(index_resolve(o->fileset->index, "data", &position), 0);
    ck_assert_int_eq(index_extent(o->fileset->index, position, 0, &extent), 0);
    o->offset = extent.source_offset;
}

static void close_stream(struct opened *o)
{
    int r;
    for (int i = 0; (r = stage_stop(o->store.stage)) == -EBUSY && i < 20; i++)
        ; /* two seconds are few for the disk of a busy machine */
    ck_assert_int_eq(r, 0);
    fileset_close(o->fileset);
    stage_close(o->store.stage);
}

/* A piece of the file: 0, or the error of the read. */
static int read_at(const struct opened *o, uint64_t at)
{
    uint8_t buf[1000];
    int r = source_read(o->fileset->source, buf, sizeof(buf), o->offset + at);
    if (r == 0)
        ck_assert_mem_eq(buf, bytes + at, sizeof(buf));
    return r;
}

static struct stage_report report(const struct opened *o)
{
    struct stage_report r;
    stage_get_report(o->store.stage, &r);
    return r;
}

static void check_nothing_left(void)
{
    ck_assert_int_eq(command("test -z \"$(find . -name '*.copy' -o -name '*.state')\""), 0);
}

/* ---- tests ---- */

static void check_reading(bool is_private)
{
    struct opened o;
    uint8_t byte;
    open_stream(&o, is_private);
    ck_assert_uint_eq(report(&o).bytes_here, 0);
    ck_assert(!source_has(o.fileset->source, 0, 1));
    ck_assert_int_eq(source_read_cached(o.fileset->source, &byte, 1, 0), -EAGAIN);
    ck_assert_int_eq(stage_start(o.store.stage), 0);
    ck_assert_int_eq(read_at(&o, FILE_BYTES - 1000), 0);
    ck_assert_int_eq(read_at(&o, 0), 0);
    ck_assert_int_eq(source_bring(o.fileset->source, 0, source_size(o.fileset->source)), 0);
    ck_assert(stage_wait_whole(o.store.stage, LIMIT_MS));
    ck_assert_mem_eq(source_map(o.fileset->source) + o.offset, bytes, FILE_BYTES);
    ck_assert_uint_eq(report(&o).copied_bytes, source_size(o.fileset->source));
    ck_assert_int_eq(report(&o).failure, 0);
    ck_assert_uint_eq(stage_stream_progress_ns(o.store.stage), 0);
    close_stream(&o);
    check_nothing_left();
}

START_TEST(it_is_read_while_it_is_unpacked)
{
    check_reading(true);
    check_reading(false);
}
END_TEST

START_TEST(several_share_what_one_unpacks)
{
    struct opened a, b;
    open_stream(&a, false);
    open_stream(&b, false);
    ck_assert_int_eq(stage_start(a.store.stage), 0);
    ck_assert_int_eq(stage_start(b.store.stage), 0);
    ck_assert_int_eq(read_at(&b, FILE_BYTES - 1000), 0);
    ck_assert(stage_wait_whole(b.store.stage, LIMIT_MS));
    ck_assert_uint_eq(report(&b).copied_bytes, source_size(b.fileset->source));
    close_stream(&a);
    ck_assert_int_eq(read_at(&b, 0), 0);
    close_stream(&b);
    check_nothing_left();
}
END_TEST

START_TEST(another_one_goes_on_where_a_process_died)
{
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct opened o;
        open_stream(&o, false);
        stage_start(o.store.stage);
        if (read_at(&o, 1000) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    char byte;
    struct opened o;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    open_stream(&o, false);
    ck_assert_int_eq(stage_start(o.store.stage), 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(read_at(&o, FILE_BYTES - 1000), 0);
    ck_assert(stage_wait_whole(o.store.stage, LIMIT_MS));
    ck_assert_mem_eq(source_map(o.fileset->source) + o.offset, bytes, FILE_BYTES);
    close_stream(&o);
    check_nothing_left();
}
END_TEST

/* What it was is told by size and time alone, where no sample of the fingerprint lies. */
static void damage(void)
{
    struct stat st;
    ck_assert_int_eq(stat("a.tar.zst", &st), 0);
    auto_close int fd = open("a.tar.zst", O_RDWR);
    off_t at = st.st_size / 17 * 9 + st.st_size / 34;
    uint8_t byte;
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    ck_assert_int_eq(futimens(fd, times), 0);
}

START_TEST(what_does_not_fit_its_sum_is_never_seen)
{
    struct opened o;
    damage();
    open_stream(&o, true);
    ck_assert_int_eq(stage_start(o.store.stage), 0);
    ck_assert_int_eq(read_at(&o, FILE_BYTES - 1000), -EIO);
    ck_assert_int_eq(read_at(&o, 0), 0);
    ck_assert(!stage_wait_whole(o.store.stage, LIMIT_MS));
    ck_assert_int_eq(report(&o).failure, EUCLEAN);
    ck_assert_str_ne(report(&o).reason, "");
    ck_assert_int_lt(source_bring(o.fileset->source, 0, source_size(o.fileset->source)), 0);
    for (uint64_t at = 0; at + 1000 <= FILE_BYTES; at += 100000)
        ck_assert_int_le(read_at(&o, at), 0); /* compares what it reads */
    close_stream(&o);
}
END_TEST

static void ignore(int number)
{
    (void)number;
}

/* Ctrl-C, and what a batch system sends to all processes of a job. */
START_TEST(signals_to_all_of_a_job_do_not_end_it)
{
    struct opened o;
    ck_assert_int_eq(setpgid(0, 0), 0);
    open_stream(&o, true);
    signal(SIGINT, ignore);
    signal(SIGUSR1, ignore);
    ck_assert_int_eq(stage_start(o.store.stage), 0);
    for (uint64_t at = 0; at + 1000 <= FILE_BYTES; at += 10000) {
        kill(0, at % 20000 ? SIGINT : SIGUSR1);
        ck_assert_int_eq(read_at(&o, at), 0); /* waits until it is unpacked so far */
    }
    ck_assert_int_eq(read_at(&o, FILE_BYTES - 1000), 0);
    ck_assert_int_eq(report(&o).failure, 0);
    close_stream(&o);
}
END_TEST

/* Somebody unpacks it who had no index: what he writes into is not taken from him. */
static int unpack(void *arg, int fd, const char *place, uint64_t room, struct fault *fault)
{
    const struct fileset_stream *stream = arg;
    struct stage_store other = {.options = {.place = folder}};
    struct source *source;
    (void)room, (void)fault;
    ck_assert_int_lt(stage_fileset_store(&other).expand(&other, stream, NULL, &source), 0);
    ck_assert_int_eq(command("test -n \"$(find . -name '*.copy')\""), 0);
    ck_assert_ptr_nonnull(place);
    return ftruncate(fd, (off_t)stream->bytes) < 0 ? -errno : 0;
}

START_TEST(a_copy_that_others_unpack_stays_theirs)
{
    struct fileset *fileset = NULL;
    struct stage_store store = {.options = {.place = folder}};
    struct source *packed = NULL, *source = NULL;
    ck_assert_int_eq(fileset_open("a.tar.zst",
                                  &(struct fileset_options){.save = FILESET_SAVE_ALWAYS}, NULL,
                                  &fileset),
                     0);
    ck_assert_int_eq(source_open("a.tar.zst", NULL, &packed), 0);
    const struct fileset_stream stream = {.backend = fileset->backend,
                                          .packed = packed,
                                          .index = fileset->index,
                                          .bytes = index_info(fileset->index)->archive_bytes};
    const struct fileset_unpacker unpacker = {unpack, (void *)(uintptr_t)&stream};
    ck_assert_int_eq(stage_fileset_store(&store).open(&store, packed, &unpacker, NULL, &source),
                     0);
    source_close(source);
    stage_close(store.stage);
    source_close(packed);
    fileset_close(fileset);
    check_nothing_left();
}
END_TEST

START_TEST(its_end_is_at_any_time)
{
    for (uint64_t i = 0; i <= 14; i++) {
        struct opened o;
        open_stream(&o, i % 2);
        ck_assert_int_eq(stage_start(o.store.stage), 0);
        if (i > 0)
            ck_assert_int_eq(read_at(&o, i * (FILE_BYTES - 1000) / 14), 0);
        close_stream(&o);
    }
    check_nothing_left();
}
END_TEST

static void *read_last(void *arg)
{
    return read_at(arg, FILE_BYTES - 1000) == -EIO ? arg : NULL;
}

START_TEST(who_waits_does_not_do_so_for_ever)
{
    struct opened o;
    _Atomic uint64_t clock_ns = 1;
    open_stream(&o, true);
    o.store.stage->pause.test_ns = &clock_ns;
    ck_assert_int_eq(read_at(&o, 0), -EIO); /* nobody unpacks */
    ck_assert_uint_gt(atomic_load(&clock_ns), UINT64_C(5000000000));
    o.store.stage->pause.test_ns = NULL;
    pthread_t thread;
    void *result;
    ck_assert_int_eq(pthread_create(&thread, NULL, read_last, &o), 0);
    ck_assert_int_eq(stage_stop(o.store.stage), 0); /* or the end comes first */
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_ptr_eq(result, &o);
    close_stream(&o);
}
END_TEST

#ifdef ONEPOT_LOADER
START_TEST(a_loader_reads_it_too)
{
    const char *path = "a.tar.zst";
    for (int i = 0; i < 2; i++) {
        const struct onepot_archive_options options = {.size = sizeof(options),
                                                       .stage = i ? folder : NULL};
        struct onepot_archive *archive = NULL;
        auto_free uint8_t *buf = malloc(FILE_BYTES);
        size_t len = 0;
        ck_assert_int_eq(onepot_archive_open(&path, 1, &options, NULL, &archive), 0);
        ck_assert_uint_eq(onepot_archive_samples(archive), 1);
        ck_assert_int_eq(onepot_archive_read(archive, 0, 0, buf, FILE_BYTES, NULL, &len), 0);
        ck_assert_uint_eq(len, FILE_BYTES);
        ck_assert_mem_eq(buf, bytes, FILE_BYTES);
        onepot_archive_close(archive);
    }
    check_nothing_left();
}
END_TEST
#endif

int main(void)
{
    TCase *tests = tcase_create("stream");
    tcase_set_timeout(tests, 240);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    if (!FORKS_WITH_THREADS) { /* the thread that unpacks forks */
        puts("skipped: a sanitizer's allocator does not survive a fork with threads");
        return 77;
    }
    tcase_add_test(tests, it_is_read_while_it_is_unpacked);
    tcase_add_test(tests, several_share_what_one_unpacks);
    tcase_add_test(tests, another_one_goes_on_where_a_process_died);
    tcase_add_test(tests, what_does_not_fit_its_sum_is_never_seen);
    tcase_add_test(tests, signals_to_all_of_a_job_do_not_end_it);
    tcase_add_test(tests, a_copy_that_others_unpack_stays_theirs);
    tcase_add_test(tests, its_end_is_at_any_time);
    tcase_add_test(tests, who_waits_does_not_do_so_for_ever);
#ifdef ONEPOT_LOADER
    tcase_add_test(tests, a_loader_reads_it_too);
#endif
    Suite *suite = suite_create("stream");
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
