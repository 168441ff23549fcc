/*
 * Opening archives: which index is used when, what is saved where, what is unpacked,
 * and what a person is told. Everything happens in a private folder, which is also the
 * home, the cache and the temporary folder.
 */
#include <check.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "forks.h"
#include "format_numbers.h"
#include "onepot_format.h"
#include "fileset.h"
#include "suite.h"

static char base[64];         /* of all tests */
static char folder[PATH_MAX]; /* of one, within it */
static char notes[8192];      /* lines of the last fileset_open */

static int command(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int command(const char *format, ...)
{
    char line[4 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void make_base(void)
{
    suite_make_folder("fileset", base, sizeof(base));
}

/* In the process that runs all tests: also when one of them failed. */
static void remove_base(void)
{
    command("rm -rf '%s'", base);
}

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "%s/XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    setenv("HOME", folder, 1);
    setenv("TMPDIR", folder, 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("ONEPOT_ASSUME_REMOTE");
    ck_assert_int_eq(command("mkdir tree && echo one > tree/one && mkdir tree/sub && "
                             "seq 100000 > tree/sub/numbers && tar -cf a.tar -C tree ."),
                     0);
    notes[0] = '\0';
}

static void remove_folder(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    command("rm -rf '%s'", folder);
}

static void keep_note(void *ctx, const char *line)
{
    (void)ctx;
    size_t len = strlen(notes);
    snprintf(notes + len, sizeof(notes) - len, "%s\n", line);
}

static int open_with(const char *path, struct fileset_options options, struct fault *fault,
                     struct fileset **ret_fileset)
{
    memset(fault, 0, sizeof(*fault));
    notes[0] = '\0';
    options.note = keep_note;
    int r = fileset_open(path, &options, fault, ret_fileset);
    ck_assert_msg(r == 0 || r == -ENOMEM || fault->err == -r, "%s: %d, fault %d", path, r,
                  fault->err);
    /* Nothing is left running. */
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    return r;
}

static struct fileset *must_open(const char *path, struct fileset_options options)
{
    struct fault fault;
    struct fileset *fileset = NULL;
    char line[1024];
    int r = open_with(path, options, &fault, &fileset);
    fault_describe(&fault, r, path, line, sizeof(line));
    ck_assert_msg(r == 0, "%s", line);
    return fileset;
}

/* The two files of the tree are there, with their content. */
static void check_content(const struct fileset *fileset)
{
    uint32_t position;
    struct node node;
    struct extent extent;
    struct stat st;
    ck_assert_int_eq(index_resolve(fileset->index, "sub/numbers", &position), 0);
    ck_assert_int_eq(index_node(fileset->index, position, &node), 0);
    ck_assert_int_eq(stat("tree/sub/numbers", &st), 0);
    ck_assert_uint_eq(node.size_bytes, (uint64_t)st.st_size);
    ck_assert_int_eq(index_extent(fileset->index, position, 0, &extent), 0);
    ck_assert_uint_eq(extent.length, (uint64_t)st.st_size);
    auto_free char *ours = malloc((size_t)st.st_size), *theirs = malloc((size_t)st.st_size);
    ck_assert_int_eq(
        source_read(fileset->source, ours, (size_t)st.st_size, extent.source_offset), 0);
    auto_close int fd = open("tree/sub/numbers", O_RDONLY);
    ck_assert_int_eq(read(fd, theirs, (size_t)st.st_size), st.st_size);
    ck_assert_int_eq(memcmp(ours, theirs, (size_t)st.st_size), 0);
    ck_assert_int_eq(index_resolve(fileset->index, "one", &position), 0);
}

static void open_and_check(const char *path, struct fileset_options options,
                           enum fileset_index_origin origin)
{
    struct fileset *fileset = must_open(path, options);
    check_content(fileset);
    ck_assert_int_eq((int)fileset->origin, (int)origin);
    fileset_close(fileset);
}

static const struct fileset_options always = {.save = FILESET_SAVE_ALWAYS};
static const struct fileset_options never = {.save = FILESET_SAVE_NEVER};
static const struct fileset_options defaults = {.save = FILESET_SAVE_AUTO};

/* ---- indexes ---- */

START_TEST(tar_is_indexed)
{
    struct fileset *fileset = must_open("a.tar", never);
    struct stat st;
    check_content(fileset);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    ck_assert_ptr_eq(fileset->backend, &backend_tar);
    ck_assert_str_eq(fileset->path, "a.tar");
    ck_assert_ptr_null(fileset->index_path);
    ck_assert_ptr_null(fileset->compression);
    ck_assert_int_eq(stat("a.tar", &st), 0);
    const struct index_info *info = index_info(fileset->index);
    ck_assert_uint_eq(fileset->identity.ino, st.st_ino);
    ck_assert_uint_eq(info->archive_bytes, (uint64_t)st.st_size);
    ck_assert_int_eq(info->archive_mtime_sec, st.st_mtim.tv_sec);
    ck_assert_int_eq(info->format, FORMAT_TAR);
    ck_assert_uint_eq(info->entries, 4);
    ck_assert_str_eq(notes, "");
    fileset_close(fileset);
    ck_assert_int_ne(access("a.tar.onepot-index", F_OK), 0);
    ck_assert_int_ne(access(".cache", F_OK), 0);
}
END_TEST

START_TEST(quick_index_is_not_saved)
{
    open_and_check("a.tar", defaults, FILESET_INDEX_BUILT);
    ck_assert_int_ne(access("a.tar.onepot-index", F_OK), 0);
}
END_TEST

START_TEST(saved_index_is_used_again)
{
    struct stat st;
    chmod("a.tar", 0604);
    struct fileset *fileset = must_open("a.tar", always);
    ck_assert_str_eq(fileset->index_path, "a.tar.onepot-index");
    check_content(fileset);
    fileset_close(fileset);
    ck_assert_int_eq(stat("a.tar.onepot-index", &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0604);
    ck_assert_int_eq(command("test $(ls | wc -l) = 3"), 0); /* no temporary file */

    fileset = must_open("a.tar", never);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_SAVED);
    ck_assert_str_eq(fileset->index_path, "a.tar.onepot-index");
    check_content(fileset);
    fileset_close(fileset);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
    open_and_check("a.tar", (struct fileset_options){.rebuild = true}, FILESET_INDEX_BUILT);
}
END_TEST

/* tests/meson.build has the linker put the first in the place of budget_memory_bytes. */
uint64_t __wrap_budget_memory_bytes(const char *root);
uint64_t __real_budget_memory_bytes(const char *root);

static unsigned looks_at_memory;

uint64_t __wrap_budget_memory_bytes(const char *root)
{
    looks_at_memory++;
    return __real_budget_memory_bytes(root);
}

static unsigned count_looks(const char *const *paths, size_t count)
{
    const struct fileset_options options = {.rebuild = true, .save = FILESET_SAVE_NEVER};
    struct fileset *fileset = NULL;
    struct fault fault = {0};
    looks_at_memory = 0;
    ck_assert_int_eq(fileset_open_many(paths, count, "some", &options, &fault, &fileset), 0);
    fileset_close(fileset);
    return looks_at_memory;
}

START_TEST(memory_is_looked_up_once_and_only_where_it_matters)
{
    static const char *const paths[] = {"a.tar", "b.tar", "c.tar", "d.tar.gz", "e.tar.gz"};
    static const char *const small[] = {"small.tar", "small.zip"};
    ck_assert_int_eq(
        command("for i in b c d e; do mv tree/one tree/$i && mv tree/sub tree/$i$i &&"
                " tar -cf $i.tar -C tree . && mv tree/$i tree/one && "
                "mv tree/$i$i tree/sub; done && gzip -1 d.tar e.tar && "
                "tar -cf small.tar -C tree one && python3 -m zipfile -c small.zip tree/one"),
        0);
    ck_assert_uint_eq(count_looks(paths, 1), 1);
    ck_assert_uint_eq(count_looks(paths + 3, 1), 1);
    ck_assert_uint_eq(count_looks(paths, 5), 1);
    ck_assert_uint_eq(count_looks(small, 1), 0);
    ck_assert_uint_eq(count_looks(small + 1, 1), 0);
}
END_TEST

/* The largest number of directories that so few bytes can name. */
START_TEST(small_tar_of_many_directories_needs_no_more_memory_than_any_child_gets)
{
    struct fault fault;
    struct fileset *fileset = NULL;
    ck_assert_int_eq(command("python3 -c 'import tarfile\nt = tarfile.open(\"deep.tar\", "
                             "\"w\", format=tarfile.GNU_FORMAT)\nfor i in range(45): "
                             "t.addfile(tarfile.TarInfo(\"%%02x/\" %% i + \"a/\" * 2000))'"),
                     0);
    ck_assert_int_eq(open_with("deep.tar", (struct fileset_options){0}, &fault, &fileset), 0);
    ck_assert_uint_eq(index_info(fileset->index)->directories, 1 + 45 * 2001);
    fileset_close(fileset);
}
END_TEST

/* A neighbour with the next number is looked at only if the archive may not be whole. */
START_TEST(whole_tar_is_opened_by_as_many_requests_with_a_neighbour_as_without)
{
    uint64_t requests[2];
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    ck_assert_int_eq(command("cp a.tar x01.tar"), 0);
    for (int i = 0; i < 2; i++) {
        uint64_t before = source_requests().count;
        struct fileset *fileset = must_open(
            "x01.tar", (struct fileset_options){.rebuild = true, .save = FILESET_SAVE_NEVER});
        fileset_close(fileset);
        requests[i] = source_requests().count - before;
        ck_assert_int_eq(command("cp a.tar x02.tar"), 0);
    }
    ck_assert_uint_eq(requests[1], requests[0]);
}
END_TEST

/* Each request is a round trip: of thousands of shards they count. */
START_TEST(format_of_a_tar_is_told_by_four_requests)
{
    const struct fileset_options options = {.rebuild = true, .only_ready = true};
    struct fileset *fileset = NULL;
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    uint64_t before = source_requests().count;
    ck_assert_int_eq(fileset_open("a.tar", &options, NULL, &fileset), -EAGAIN);
    /* The opening, an onepot archive's footer, the first bytes, the last ones. */
    ck_assert_uint_eq(source_requests().count - before, 4);
}
END_TEST

START_TEST(saved_index_works_for_archives_on_a_network)
{
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
}
END_TEST

START_TEST(changed_archive_is_indexed_anew)
{
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    ck_assert_int_eq(command("touch -d 2001-01-01 a.tar"), 0); /* the time */
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
    ck_assert_int_eq(command("echo >> a.tar && touch -d 2001-01-01 a.tar"), 0); /* the size */
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
    /* The content alone: the last member's name, and the header's sum with it. */
    ck_assert_int_eq(command("sed -i 's/the-old/the-new/' a.tar; echo 2 > tree/one; "
                             "tar -cf b.tar -C tree . && test $(stat -c %%s a.tar) -gt "
                             "$(stat -c %%s b.tar) && echo >> b.tar && cat b.tar > a.tar && "
                             "touch -d 2001-01-01 a.tar"),
                     0);
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
}
END_TEST

START_TEST(damaged_saved_index_is_made_anew)
{
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    ck_assert_int_eq(command("printf '\\377\\377' | dd of=a.tar.onepot-index bs=1 seek=70 "
                             "conv=notrunc 2>/dev/null"),
                     0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
    ck_assert_ptr_nonnull(strstr(notes, "damaged"));
    ck_assert_int_eq(command("truncate -s 100 a.tar.onepot-index"), 0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
    ck_assert_int_eq(command("truncate -s 0 a.tar.onepot-index"), 0);
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
    ck_assert_int_eq(command("rm a.tar.onepot-index && mkfifo a.tar.onepot-index"), 0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT); /* and does not wait for it */
}
END_TEST

START_TEST(index_of_another_archive_is_not_used)
{
    ck_assert_int_eq(command("mkdir t2 && echo x > t2/x && tar -cf b.tar -C t2 ."), 0);
    struct fileset *fileset = must_open("b.tar", always);
    fileset_close(fileset);
    ck_assert_int_eq(command("cp b.tar.onepot-index a.tar.onepot-index"), 0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
}
END_TEST

START_TEST(index_of_somebody_else_is_not_used)
{
    if (geteuid() != 0) {
        puts("skipped: only root can give files away");
        return;
    }
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    ck_assert_int_eq(chown("a.tar.onepot-index", 12345, 12345), 0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
    ck_assert_ptr_nonnull(strstr(notes, "somebody else"));
    ck_assert_int_eq(chown("a.tar", 12345, 12345), 0); /* his archive, his index */
    open_and_check("a.tar", never, FILESET_INDEX_SAVED);
}
END_TEST

START_TEST(index_goes_to_the_cache_where_it_can_not_lie_beside)
{
    ck_assert_int_eq(mkdir("a.tar.onepot-index", 0700), 0); /* stops root, too */
    struct fileset *fileset = must_open("a.tar", always);
    char expected[PATH_MAX + 100];
    snprintf(expected, sizeof(expected), "%s/.cache/onepot/a.tar-", folder);
    ck_assert_ptr_nonnull(fileset->index_path);
    ck_assert_int_eq(strncmp(fileset->index_path, expected, strlen(expected)), 0);
    fileset_close(fileset);
    open_and_check("a.tar", never, FILESET_INDEX_SAVED);
    struct stat st;
    ck_assert_int_eq(stat(".cache/onepot", &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0700);

    setenv("XDG_CACHE_HOME", "/nonexistent-folder-of-onepot/x", 1);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
    char other[PATH_MAX + 10];
    snprintf(other, sizeof(other), "%s/other", folder);
    setenv("XDG_CACHE_HOME", other, 1);
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
    ck_assert_int_eq(access("other/onepot", F_OK), 0);
}
END_TEST

static struct fileset *open_union(const struct fileset_options *options)
{
    static const char *const paths[] = {"a.tar", "b.tar"};
    struct fault fault = {0};
    struct fileset *fileset = NULL;
    ck_assert_msg(fileset_open_many(paths, 2, "both", options, &fault, &fileset) == 0, "%s",
                  fault.what);
    return fileset;
}

START_TEST(composed_index_is_saved_when_that_is_asked_for)
{
    static const struct fileset_options later = {.save = FILESET_SAVE_ALWAYS,
                                                 .saves_later = true};
    const char *name;
    size_t len;
    uint32_t other;
    ck_assert_int_eq(command("mkdir other && echo two > other/two && tar -cf b.tar other"), 0);
    struct fileset *fileset = open_union(&later);
    ck_assert_ptr_nonnull(fileset->unsaved);
    ck_assert_ptr_nonnull(fileset->index_path);
    ck_assert_int_ne(access(fileset->index_path, F_OK), 0);
    ck_assert_int_eq(index_resolve(fileset->index, "other/two", &other), 0);
    ck_assert_int_eq(index_name(fileset->index, other, &name, &len), 0);

    ck_assert_int_eq(fileset_save(fileset, NULL), 0);
    ck_assert_ptr_null(fileset->unsaved);
    ck_assert_int_eq(access(fileset->index_path, F_OK), 0);
    ck_assert_mem_eq(name, "two", 3); /* where it was */
    check_content(fileset);
    ck_assert_int_eq(fileset_save(fileset, NULL), 0);
    fileset_close(fileset);

    fileset = open_union(&never);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_SAVED);
    check_content(fileset);
    fileset_close(fileset);
}
END_TEST

enum { SHARDS = 20 };

/* Has a thread that is not the test's reported progress? */
static void note_other_thread(void *ctx, const char *doing, const struct progress *progress)
{
    (void)doing, (void)progress;
    if (gettid() != getpid())
        *(bool *)ctx = true;
}

static int open_shards(const struct fileset_options *options, struct fault *fault,
                       struct fileset **fileset)
{
    char names[SHARDS][24];
    const char *paths[SHARDS];
    for (int i = 0; i < SHARDS; i++) {
        snprintf(names[i], sizeof(names[i]), "s%02d.tar", i);
        paths[i] = names[i];
    }
    *fault = (struct fault){0};
    return fileset_open_many(paths, SHARDS, "shards", options, fault, fileset);
}

START_TEST(several_archives_are_indexed_at_once)
{
    static bool by_others;
    static const struct fileset_options options = {
        .save = FILESET_SAVE_NEVER, .progress = note_other_thread, .ctx = &by_others};
    struct fileset_options skip = {
        .save = FILESET_SAVE_NEVER, .note = keep_note, .together = {.skip_damaged = true}};
    struct fault fault;
    struct fileset *fileset = NULL;
    uint32_t node;
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1); /* so many threads, however few CPUs */
    ck_assert_int_eq(command("for i in $(seq -w 0 %d); do echo $i > f$i && echo $i > g$i && "
                             "tar -cf s$i.tar f$i g$i || exit 1; done",
                             SHARDS - 1),
                     0);
    ck_assert_msg(open_shards(&options, &fault, &fileset) == 0, "%s", fault.what);
    ck_assert(by_others || !FORKS_WITH_THREADS);
    ck_assert_int_eq(index_resolve(fileset->index, "f00", &node), 0);
    ck_assert_int_eq(index_resolve(fileset->index, "f19", &node), 0);
    fileset_close(fileset);

    /* Whichever of the damaged ones is met first, the first in order is reported. */
    ck_assert_int_eq(
        command("for i in 05 06 07 19; do "
                "printf XXXX | dd of=s$i.tar bs=1 seek=1044 conv=notrunc status=none "
                "|| exit 1; done"),
        0);
    ck_assert_int_eq(open_shards(&options, &fault, &fileset), -EUCLEAN);
    ck_assert_str_eq(fault.file, "s05.tar");
    notes[0] = '\0';
    ck_assert_msg(open_shards(&skip, &fault, &fileset) == 0, "%s", fault.what);
    ck_assert_int_eq(index_resolve(fileset->index, "f19", &node), -ENOENT);
    ck_assert_int_eq(index_resolve(fileset->index, "f18", &node), 0);
    ck_assert_ptr_nonnull(strstr(notes, "s05.tar"));
    ck_assert_ptr_nonnull(strstr(notes, "s19.tar"));
    fileset_close(fileset);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

/* Bytes that this process has read, for an open of the union by its saved index. */
static uint64_t bytes_read_to_open(const struct fileset_options *options)
{
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        FILE *io = fopen("/proc/self/io", "r");
        ck_assert_ptr_nonnull(io);
        ck_assert_int_eq(fscanf(io, "rchar: %" SCNu64, &bytes[i]), 1);
        fclose(io);
        if (i == 1)
            break;
        struct fileset *fileset = open_union(options);
        ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_SAVED);
        fileset_close(fileset);
    }
    return bytes[1] - bytes[0];
}

static bool data_is_local(void)
{
    int fd = open(TEST_DATA_DIR, O_RDONLY | O_DIRECTORY);
    bool is_local = fd >= 0 && storage_of(fd).is_local;
    close(fd);
    return is_local;
}

/* Files of the project, as the test's own are too young for their times of change to tell. */
START_TEST(archives_that_were_left_alone_are_not_read_for_a_saved_union)
{
    static const struct fileset_options each = {.save = FILESET_SAVE_ALWAYS,
                                                .together = {.each = true}};
    if (!data_is_local()) {
        printf("skipped: %s is not on a local filesystem\n", TEST_DATA_DIR);
        return;
    }
    ck_assert_int_eq(command("ln -sf '%s/released/0.1/foreign.tar' a.tar && "
                             "ln -sf '%s/released/0.1/plain.tar' b.tar",
                             TEST_DATA_DIR, TEST_DATA_DIR),
                     0);
    struct fileset *fileset = open_union(&each);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    fileset_close(fileset);
    uint64_t bytes = bytes_read_to_open(&each);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1); /* whose times of change are not relied upon */
    ck_assert_uint_ge(bytes_read_to_open(&each), bytes + 4096);
    unsetenv("ONEPOT_ASSUME_REMOTE");

    /* Another file of the same size and time: the samples differ. */
    ck_assert_int_eq(command("cp -pL a.tar c && printf X | dd of=c conv=notrunc bs=1 "
                             "seek=$(($(stat -c %%s c) - 1)) status=none && "
                             "touch -r \"$(readlink a.tar)\" c && mv c a.tar"),
                     0);
    fileset = open_union(&each);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    fileset_close(fileset);
}
END_TEST

START_TEST(composed_index_that_can_not_be_saved_stays_and_says_so)
{
    static const struct fileset_options later = {.save = FILESET_SAVE_ALWAYS,
                                                 .saves_later = true};
    struct fault fault = {0};
    ck_assert_int_eq(command("mkdir other && echo two > other/two && tar -cf b.tar other"), 0);
    struct fileset *fileset = open_union(&later);
    ck_assert_int_eq(command("rm -r .cache && touch .cache"), 0);
    ck_assert_int_eq(fileset_save(fileset, &fault), -ENOTDIR);
    ck_assert_ptr_nonnull(strstr(fault.what, "could not be saved"));
    ck_assert_ptr_nonnull(strstr(fault.advice, "stays in memory"));
    ck_assert_int_eq(fileset_save(fileset, &fault), 0); /* said once */
    check_content(fileset);
    fileset_close(fileset);
}
END_TEST

START_TEST(composed_index_that_is_never_saved_leaves_nothing)
{
    static const struct fileset_options later = {.save = FILESET_SAVE_ALWAYS,
                                                 .saves_later = true};
    ck_assert_int_eq(command("mkdir other && echo two > other/two && tar -cf b.tar other"), 0);
    fileset_close(open_union(&later));
    ck_assert_int_eq(command("test -z \"$(find .cache -type f)\""), 0);
    struct fileset *fileset = open_union(&never);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    fileset_close(fileset);
}
END_TEST

START_TEST(index_that_can_not_be_saved_is_an_error_only_if_asked_for)
{
    struct fault fault;
    struct fileset *fileset = NULL;
    ck_assert_int_eq(mkdir("a.tar.onepot-index", 0700), 0);
    ck_assert_int_eq(command("touch file"), 0);
    char cache[PATH_MAX + 10];
    snprintf(cache, sizeof(cache), "%s/file", folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    ck_assert_int_eq(open_with("a.tar", always, &fault, &fileset), -ENOTDIR);
    ck_assert_ptr_nonnull(strstr(fault.what, "beside it (Is a directory), in "));
    ck_assert_ptr_nonnull(strstr(fault.what, "/file/onepot: Not a directory"));
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    ck_assert_int_eq(open_with("a.tar", always, &fault, &fileset), -EISDIR);
    ck_assert_ptr_nonnull(strstr(fault.what, "beside it (Is a directory); there is no cache"));
    ck_assert_int_eq(command("test $(ls -A | wc -l) = 4"), 0); /* nothing half done */
}
END_TEST

/* What somebody puts in the place of a file at the moment in which it gets its name. */
static const char *swapped_for;
static bool killed_there;

/* Of the C library's; output.c calls it. */
int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    if (killed_there)
        raise(SIGKILL);
    long r = syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    if (r == 0 && swapped_for)
        r = syscall(SYS_renameat2, AT_FDCWD, swapped_for, to_dir, to, 0);
    return (int)r;
}

START_TEST(the_file_that_was_written_is_used_whatever_lies_at_its_path)
{
    ck_assert_int_eq(command("mkdir t2 && echo x > t2/x && tar -cf b.tar -C t2 ."), 0);
    fileset_close(must_open("b.tar", always));
    swapped_for = "b.tar.onepot-index";
    struct fileset *fileset = must_open("a.tar", always);
    swapped_for = NULL;
    ck_assert_int_ne(access("b.tar.onepot-index", F_OK), 0); /* it was done */
    ck_assert_uint_eq(index_info(fileset->index)->archive_bytes, source_size(fileset->source));
    check_content(fileset);
    fileset_close(fileset);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
}
END_TEST

START_TEST(index_that_others_may_write_to_is_not_used)
{
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    ck_assert_int_eq(chmod("a.tar.onepot-index", 0664), 0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
    ck_assert_ptr_nonnull(strstr(notes, "by others"));
    ck_assert_int_eq(chmod("a.tar", 0664), 0); /* they may write to the archive as well */
    open_and_check("a.tar", never, FILESET_INDEX_SAVED);
    ck_assert_int_eq(chmod("a.tar.onepot-index", 0666), 0);
    open_and_check("a.tar", never, FILESET_INDEX_BUILT);
}
END_TEST

START_TEST(what_a_killed_run_left_of_an_index_is_removed)
{
    int fd = open("a.tar.onepot-index.bbbbbb.partial", O_CREAT | O_RDWR, 0600), status;
    ck_assert_int_eq(flock(fd, LOCK_EX), 0); /* somebody writes it */
    ck_assert_int_eq(
        command("touch b.tar.onepot-index.aaaaaa.partial; ln -s tree/one a.tar.onepot-index"),
        0);
    if (geteuid() == 0) /* where root works for the archive's owner */
        ck_assert_int_eq(chown("a.tar", 12345, 12345), 0);
    pid_t child = fork();
    if (child == 0) {
        killed_there = true;
        must_open("a.tar", always);
        _exit(1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ck_assert_int_eq(command("test $(ls a.tar.onepot-index.*.partial | wc -l) = 2"), 0);
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    ck_assert_int_eq(command("test $(ls a.tar.onepot-index.*.partial | wc -l) = 1"), 0);
    ck_assert_int_eq(access("b.tar.onepot-index.aaaaaa.partial", F_OK), 0);
    ck_assert_int_eq(access("a.tar.onepot-index.bbbbbb.partial", F_OK), 0);
    close(fd);
    /* A link in its way is replaced, and not what it leads to. */
    ck_assert_int_eq(command("test ! -L a.tar.onepot-index && test $(cat tree/one) = one"), 0);
}
END_TEST

START_TEST(index_is_its_owners_whoever_made_it)
{
    struct stat st;
    ck_assert_int_eq(mkdir("a.tar.onepot-index", 0700), 0); /* to the cache */
    mode_t before = umask(0777);
    struct fileset *fileset = must_open("a.tar", always);
    umask(before);
    ck_assert_int_eq(stat(fileset->index_path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0700, 0600);
    fileset_close(fileset);
    ck_assert_int_eq(stat(".cache/onepot", &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    if (geteuid() != 0) {
        puts("skipped in part: only root can give files away");
        return;
    }
    ck_assert_int_eq(rmdir("a.tar.onepot-index"), 0);
    ck_assert_int_eq(command("chmod 600 a.tar && chown 12345:12345 a.tar && rm -r .cache"), 0);
    open_and_check("a.tar", always, FILESET_INDEX_BUILT);
    ck_assert_int_eq(stat("a.tar.onepot-index", &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_uint_eq(st.st_uid, 12345);
    open_and_check("a.tar", always, FILESET_INDEX_SAVED);
}
END_TEST

/* ---- archives with an index of their own ---- */

static int index_into(struct source *source, struct builder *builder,
                      struct builder_header *header)
{
    static struct progress progress;
    return backend_tar.index(source, builder, header, &progress, NULL);
}

/* a.tar, with a trailer as 'onepot pack' writes it. */
static void make_onepot(const char *path)
{
    struct source *source = NULL;
    struct builder *builder = NULL;
    struct builder_header header = {.format = FORMAT_ONEPOT};
    uint64_t file_bytes;
    ck_assert_int_eq(command("cp a.tar %s", path), 0);
    ck_assert_int_eq(source_open(path, NULL, &source), 0);
    ck_assert_int_eq(builder_new(&builder), 0);
    ck_assert_int_eq(index_into(source, builder, &header), 0);
    uint64_t tar_bytes = source_size(source);
    uint8_t block[512];
    header.archive_bytes = header.end_marker_offset = tar_bytes;
    do {
        header.end_marker_offset -= 512;
        ck_assert_int_eq(source_read(source, block, 512, header.end_marker_offset), 0);
    } while (block[0] == 0 && memcmp(block, block + 1, 511) == 0);
    header.end_marker_offset += 512;
    memcpy(header.identifier, "identifier of it", sizeof(header.identifier));
    auto_close int fd = open(path, O_RDWR);
    ck_assert_int_eq(onepot_format_append(builder, &header, tar_bytes, fd, NULL, &file_bytes),
                     0);
    builder_free(builder);
    source_close(source);
}

START_TEST(embedded_index_is_used)
{
    make_onepot("p.tar");
    struct fileset *fileset = must_open("p.tar", always);
    check_content(fileset);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_EMBEDDED);
    ck_assert_str_eq(fileset->backend->name, "onepot");
    ck_assert_str_eq(notes, "");
    fileset_close(fileset);
    ck_assert_int_ne(access("p.tar.onepot-index", F_OK), 0);
}
END_TEST

START_TEST(archive_that_tar_appended_to_is_indexed_anew)
{
    make_onepot("p.tar");
    ck_assert_int_eq(command("echo new > added && tar -rf p.tar added"), 0);
    struct fileset *fileset = must_open("p.tar", never);
    uint32_t position;
    check_content(fileset);
    ck_assert_int_eq(index_resolve(fileset->index, "added", &position), 0);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    ck_assert_int_eq(index_info(fileset->index)->format, FORMAT_TAR);
    ck_assert_ptr_nonnull(strstr(notes, "appended"));
    ck_assert_ptr_nonnull(strstr(notes, "'onepot index', or pack it anew"));
    fileset_close(fileset);
}
END_TEST

START_TEST(archive_that_was_indexed_after_tar_appended_to_it_is_well)
{
    static const struct fileset_options rebuild = {.save = FILESET_SAVE_NEVER, .rebuild = true};
    static const struct {
        const struct fileset_options *options;
        enum fileset_index_origin origin;
    } opens[] = {{&always, FILESET_INDEX_BUILT},
                 {&never, FILESET_INDEX_SAVED},
                 {&rebuild, FILESET_INDEX_BUILT}};
    make_onepot("p.tar");
    ck_assert_int_eq(command("echo new > added && tar -rf p.tar added"), 0);
    for (size_t i = 0; i < 3; i++) {
        struct fileset *fileset = must_open("p.tar", *opens[i].options);
        check_content(fileset);
        ck_assert_int_eq((int)fileset->origin, (int)opens[i].origin);
        ck_assert_int_eq(fileset->was_reindexed, i > 0);
        ck_assert_str_eq(notes, "");
        fileset_close(fileset);
    }
    ck_assert_int_eq(command("touch -d '1 hour ago' p.tar"), 0); /* it does not fit any more */
    struct fileset *fileset = must_open("p.tar", never);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    ck_assert(!fileset->was_reindexed);
    ck_assert_ptr_nonnull(strstr(notes, "appended"));
    fileset_close(fileset);
}
END_TEST

START_TEST(damaged_embedded_index_is_made_anew_with_a_note)
{
    struct stat st;
    make_onepot("p.tar");
    ck_assert_int_eq(stat("p.tar", &st), 0);
    struct stat plain;
    ck_assert_int_eq(stat("a.tar", &plain), 0);
    unsigned rebuilt = 0;
    for (off_t at = plain.st_size; at < st.st_size; at += 97) {
        uint8_t byte, changed;
        auto_close int fd = open("p.tar", O_RDWR);
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        changed = byte ^ 0x55;
        ck_assert_int_eq(pwrite(fd, &changed, 1, at), 1);
        struct fileset *fileset = must_open("p.tar", never);
        if (fileset->origin == FILESET_INDEX_BUILT) {
            rebuilt++;
            check_content(fileset);
            ck_assert_ptr_nonnull(strstr(notes, "p.tar: "));
        }
        fileset_close(fileset);
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    ck_assert_uint_gt(rebuilt, 0);
}
END_TEST

/* ---- compressed archives ---- */

static void check_unpacked(const char *path, const char *compression, const char *where,
                           struct fileset_options options)
{
    char expected[PATH_MAX + 200];
    struct fileset *fileset = must_open(path, options);
    check_content(fileset);
    ck_assert_str_eq(fileset->compression, compression);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(fileset->identity.ino, st.st_ino); /* of the file that was named */
    ck_assert_int_eq(fstat(source_fd(fileset->source), &st), 0);
    ck_assert_uint_eq(st.st_nlink, 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    snprintf(expected, sizeof(expected), "%s: is one %s stream: unpacked %llu bytes to %s;",
             path, compression, (unsigned long long)source_size(fileset->source), where);
    ck_assert_msg(strstr(notes, expected) != NULL, "'%s' is not in '%s'", expected, notes);
    fileset_close(fileset);
}

START_TEST(compressed_tar_is_unpacked_into_memory)
{
    ck_assert_int_eq(command("zstd -q a.tar && xz -k a.tar && lz4 -q a.tar a.tar.lz4 && "
                             "lz4 -q -l a.tar old.tar.lz4"),
                     0);
    check_unpacked("a.tar.zst", "zstd", "/dev/shm", defaults);
    check_unpacked("a.tar.xz", "xz", "/dev/shm", defaults); /* of one block */
    check_unpacked("a.tar.lz4", "lz4", "/dev/shm", defaults);
    check_unpacked("old.tar.lz4", "lz4", "/dev/shm", defaults);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    check_unpacked("a.tar.zst", "zstd", "/dev/shm", defaults);
}
END_TEST

static bool lies_in_memory(const char *path)
{
    struct statfs fs;
    ck_assert_int_eq(statfs(path, &fs), 0);
    return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
}

START_TEST(compressed_tar_that_does_not_fit_in_memory_goes_to_disk)
{
    if (lies_in_memory(folder))
        return; /* where there is no disk to go to */
    ck_assert_int_eq(command("zstd -q a.tar"), 0);
    /* By the guess; then only when it is being written. */
    check_unpacked("a.tar.zst", "zstd", folder, (struct fileset_options){.memory_bytes = 4096});
    ck_assert_int_eq(
        command("head -c 3000000 /dev/zero > tree/zeros && tar -cf z.tar -C tree . "
                "&& zstd -q z.tar"),
        0);
    check_unpacked("z.tar.zst", "zstd", folder,
                   (struct fileset_options){.memory_bytes = 4000000});
    if (lies_in_memory("/tmp"))
        return;
    setenv("TMPDIR", "/nonexistent-folder-of-onepot", 1);
    check_unpacked("z.tar.zst", "zstd", "/tmp",
                   (struct fileset_options){.memory_bytes = 4000000});
    unsetenv("TMPDIR");
    check_unpacked("z.tar.zst", "zstd", "/tmp",
                   (struct fileset_options){.memory_bytes = 4000000});
}
END_TEST

static void flip(const char *path, off_t at)
{
    uint8_t byte;
    auto_close int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
}

static void check_damage_is_named(const char *path, off_t at, const char *what)
{
    struct fault fault;
    struct fileset *fileset = NULL;
    flip(path, at);
    int r = open_with(path, never, &fault, &fileset);
    ck_assert_msg(r == -EUCLEAN || r == -ENOMSG, "%s, offset %lld: %d", path, (long long)at, r);
    ck_assert_msg(strstr(fault.what, what) != NULL || r == -ENOMSG, "'%s' is not in '%s'", what,
                  fault.what);
    flip(path, at);
}

#if defined(HAVE_ZLIB) && defined(HAVE_STREAMS)
/* Larger than what is read by its members; the first one ends in the middle of the file. */
START_TEST(each_sum_of_a_large_gzip_file_is_compared)
{
    struct stat st;
    ck_assert_int_eq(command("head -c 70000000 /dev/zero > tree/zeros && "
                             "tar -cf z.tar -C tree . && "
                             "head -c 69000000 z.tar | gzip -1 > one.gz && "
                             "tail -c +69000001 z.tar | gzip -1 | cat one.gz - > z.tar.gz"),
                     0);
    ck_assert_int_eq(stat("one.gz", &st), 0);
    check_damage_is_named("z.tar.gz", st.st_size - 8, "its checksum does not fit");
    check_damage_is_named("z.tar.gz", st.st_size - 1, "its length does not fit");
    ck_assert_int_eq(stat("z.tar.gz", &st), 0);
    check_damage_is_named("z.tar.gz", st.st_size - 8, "its checksum does not fit");
    check_damage_is_named("z.tar.gz", st.st_size - 3, "its length does not fit");
    ck_assert_int_eq(truncate("z.tar.gz", st.st_size - 1), 0);
    check_damage_is_named("z.tar.gz", 4, "it ends too early"); /* of the time: no damage */
    ck_assert_int_eq(command("gzip -1 -c z.tar > z.tar.gz && echo behind it >> z.tar.gz"), 0);
    fileset_close(must_open("z.tar.gz", never));
    ck_assert_ptr_nonnull(strstr(notes, "10 bytes behind the end of its gzip data"));
}
END_TEST
#endif

START_TEST(each_form_that_has_sums_has_them_compared)
{
    static const char *const paths[] = {"a.tar.bz2", "a.tar.xz", "a.tar.zst", "a.tar.lz4"};
    ck_assert_int_eq(command("bzip2 -k a.tar && xz -k a.tar && zstd -q a.tar && "
                             "lz4 -q a.tar a.tar.lz4"),
                     0);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct stat st;
        ck_assert_int_eq(stat(paths[i], &st), 0);
        fileset_close(must_open(paths[i], never));
        for (int part = 1; part < 8; part++)
            check_damage_is_named(paths[i], st.st_size * part / 8, "damaged ");
    }
}
END_TEST

/* ---- indexes of streams ---- */

struct expansion {
    unsigned count;
    uint64_t bytes, sums;
    int err;
};

/* fileset_store.expand: "unpacks" to what it should be. */
static int expand(void *ctx, const struct fileset_stream *stream, struct fault *fault,
                  struct source **ret_source)
{
    struct expansion *e = ctx;
    (void)fault;
    e->count++;
    e->bytes = stream->bytes;
    e->sums = index_windows(stream->index);
    return e->err ? e->err : source_open("a.tar", NULL, ret_source);
}

static struct fileset *open_stream(const char *path, struct expansion *e)
{
    const struct fileset_store store = {.expand = expand, .ctx = e};
    return must_open(path,
                     (struct fileset_options){.store = &store, .save = FILESET_SAVE_NEVER});
}

START_TEST(index_of_a_stream_is_saved_for_who_can_use_it)
{
    struct stat st;
    struct expansion e = {0};
    ck_assert_int_eq(command("zstd -q a.tar"), 0);
    ck_assert_int_eq(stat("a.tar", &st), 0);
    fileset_close(open_stream("a.tar.zst", &e));
    ck_assert_uint_eq(e.count, 0); /* there is no index yet */

    struct fileset *fileset = must_open("a.tar.zst", always);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    ck_assert_str_eq(fileset->index_path, "a.tar.zst.onepot-index");
    fileset_close(fileset);
    fileset = must_open("a.tar.zst", always);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_SAVED);
    fileset_close(fileset);

    fileset = open_stream("a.tar.zst", &e);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_SAVED);
    ck_assert_str_eq(fileset->compression, "zstd");
    ck_assert_uint_eq(e.count, 1);
    ck_assert_uint_eq(e.bytes, (uint64_t)st.st_size);
    ck_assert_uint_eq(e.sums, ((uint64_t)st.st_size - 1) / INDEX_WINDOW_BYTES + 1);
    check_content(fileset);
    fileset_close(fileset);

    fileset = must_open("a.tar.zst", never); /* who can't is not led astray */
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    check_content(fileset);
    fileset_close(fileset);
}
END_TEST

START_TEST(a_stream_without_room_is_unpacked_as_ever)
{
    struct expansion e = {.err = -ENOSPC};
    ck_assert_int_eq(command("zstd -q a.tar"), 0);
    fileset_close(must_open("a.tar.zst", always));
    struct fileset *fileset = open_stream("a.tar.zst", &e);
    ck_assert_uint_eq(e.count, 1);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    check_content(fileset);
    fileset_close(fileset);
}
END_TEST

START_TEST(index_of_a_stream_is_of_that_stream)
{
    struct expansion e = {0};
    ck_assert_int_eq(command("zstd -q a.tar && xz -k a.tar"), 0);
    fileset_close(must_open("a.tar.zst", always));
    ck_assert_int_eq(command("mv a.tar.zst.onepot-index a.tar.xz.onepot-index"), 0);
    fileset_close(open_stream("a.tar.xz", &e));
    ck_assert_int_eq(command("cp -p a.tar.xz.onepot-index a.tar.onepot-index"), 0);
    struct fileset *fileset = must_open("a.tar", never);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_BUILT);
    fileset_close(fileset);
    ck_assert_int_eq(command("mv a.tar.xz.onepot-index a.tar.zst.onepot-index && "
                             "touch -d @1 a.tar.zst"),
                     0);
    fileset_close(open_stream("a.tar.zst", &e));
    ck_assert_uint_eq(e.count, 0);
}
END_TEST

START_TEST(compressed_onepot_archive_brings_its_index)
{
    make_onepot("p.tar");
    ck_assert_int_eq(command("zstd -q p.tar"), 0);
    struct fileset *fileset = must_open("p.tar.zst", defaults);
    check_content(fileset);
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_EMBEDDED);
    fileset_close(fileset);
}
END_TEST

START_TEST(member_called_like_a_magic_is_no_compression)
{
    ck_assert_int_eq(command("cp tree/one BZh9 && tar -cf b.tar BZh9"), 0);
    struct fileset *fileset = must_open("b.tar", never);
    ck_assert_ptr_null(fileset->compression);
    fileset_close(fileset);
}
END_TEST

/* ---- errors ---- */

START_TEST(what_is_no_archive_is_refused_with_a_reason)
{
    static const struct {
        const char *path;
        int err;
        const char *what;
    } cases[] = {
        {"nothing", ENOENT, "no such file"},
        {"tree", EISDIR, "directory"},
        {"tree/sub/numbers", ENOMSG, "not an archive"},
        {"empty", ENOMSG, "empty"},
        {"fifo", EINVAL, "regular"},
        {"numbers.gz", ENOMSG, "no tar"},
    };
    ck_assert_int_eq(command("touch empty && mkfifo fifo && gzip -c tree/sub/numbers > "
                             "numbers.gz"),
                     0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault fault;
        struct fileset *fileset = NULL;
        ck_assert_int_eq(open_with(cases[i].path, defaults, &fault, &fileset), -cases[i].err);
        ck_assert_msg(strstr(fault.what, cases[i].what) != NULL, "%s: %s", cases[i].path,
                      fault.what);
        ck_assert_ptr_null(fileset);
    }
}
END_TEST

START_TEST(a_compressed_tar_of_nothing_is_an_empty_tree)
{
    static const struct {
        const char *program, *ending;
        int end; /* bytes from the end to one that counts */
    } forms[] = {
#ifdef HAVE_ZLIB
        {"gzip", "gz", 3},
#endif
#ifdef HAVE_BZ2
        {"bzip2", "bz2", 3},
#endif
#ifdef HAVE_XZ
        {"xz", "xz", 3},
#endif
        {"zstd", "zst", 3}}; /* libarchive alone can't tell whether nothing is all there was */
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct fault fault;
        struct fileset *fileset = NULL;
        char path[40];
        const char *program = forms[i].program;
        snprintf(path, sizeof(path), "n.tar.%s", forms[i].ending);
        ck_assert_int_eq(command("%s -c < /dev/null > %s && cp %s n.%s", program, path, path,
                                 forms[i].ending),
                         0);
        ck_assert_int_eq(open_with(path, defaults, &fault, &fileset), 0);
        ck_assert_uint_eq(index_info(fileset->index)->entries, 1);
        fileset_close(fileset);
        fileset = NULL;
        ck_assert_int_eq(command("printf X | dd of=%s bs=1 seek=$(($(stat -c %%s %s) - %d)) "
                                 "conv=notrunc 2> /dev/null",
                                 path, path, forms[i].end),
                         0);
        ck_assert_int_lt(open_with(path, defaults, &fault, &fileset), 0);
        ck_assert_msg(strstr(fault.what, "damaged"), "%s: %s", program, fault.what);
        snprintf(path, sizeof(path), "n.%s", forms[i].ending);
        ck_assert_int_lt(open_with(path, defaults, &fault, &fileset), 0);
        ck_assert_msg(strstr(fault.what, "no tar"), "%s: %s", program, fault.what);
    }
}
END_TEST

START_TEST(files_of_other_formats_are_called_by_their_name)
{
    static const struct {
        off_t at;
        const char *bytes;
        size_t len;
        const char *what;
    } cases[] = {
        {0, "hsqs", 4, "not an archive"}, /* and version 0.0 */
        {28, "\3\0\1\0", 4, "SquashFS image of version 3.1"},
        {0, "sqsh", 4, "not an archive"}, /* the other byte order: of version 768 */
        {28, "\0\2\0\1", 4, "SquashFS image of version 2.1"},
        {0, "none", 4, "not an archive"},
        {32769, "CD001", 5, "ISO 9660"},
        {1080, "\x53\xef", 2, "ext4"},
        {1024, "\xe2\xe1\xf5\xe0", 4, "EROFS"},
        {1024, "none", 4, "ext4"},
        {1080, "\0\0", 2, "ISO 9660"},
        {0, "7z\xbc\xaf\x27\x1c", 6, "7z"},
        {0, "Rar!\x1a\7\1", 7, "RAR"},
        {32769, "none", 4, "RAR"},
        {0, "070701", 6, "cpio"},
        {0, "!<arch>\n", 8, "ar archive"},
    };
    auto_close int fd = open("foreign", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(ftruncate(fd, 100000), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault fault;
        struct fileset *fileset = NULL;
        ck_assert_int_eq(pwrite(fd, cases[i].bytes, cases[i].len, cases[i].at),
                         (ssize_t)cases[i].len);
        ck_assert_int_eq(open_with("foreign", defaults, &fault, &fileset), -ENOMSG);
        ck_assert_msg(strstr(fault.what, cases[i].what) != NULL, "%zu: %s", i, fault.what);
        ck_assert_str_ne(fault.advice, "");
    }
}
END_TEST

START_TEST(truncated_archives_are_errors)
{
    struct stat st;
    ck_assert_int_eq(command("gzip -k a.tar"), 0);
    ck_assert_int_eq(stat("a.tar.gz", &st), 0);
    for (int percent = 5; percent < 100; percent += 19) {
        struct fault fault;
        struct fileset *fileset = NULL;
        ck_assert_int_eq(
            command("cp a.tar.gz t.gz && truncate -s %lld t.gz && head -c %d a.tar "
                    "> t.tar",
                    (long long)st.st_size * percent / 100, 500000 * percent / 100),
            0);
        ck_assert_int_eq(open_with("t.gz", defaults, &fault, &fileset), -EUCLEAN);
        ck_assert_int_eq(open_with("t.tar", always, &fault, &fileset), -EUCLEAN);
        ck_assert_int_ne(access("t.tar.onepot-index", F_OK), 0);
    }
}
END_TEST

START_TEST(what_is_left_out_is_a_note_each_time)
{
    ck_assert_int_eq(
        command("mkdir l && echo x > l/a && ln l/a l/b && tar -cf l.tar -C l a b && "
                "tail -c +1025 l.tar > m.tar"),
        0);
    for (int saved = 0; saved < 2; saved++) {
        struct fileset *fileset = must_open("m.tar", saved ? defaults : always);
        ck_assert_int_eq(fileset->origin, saved ? FILESET_INDEX_SAVED : FILESET_INDEX_BUILT);
        ck_assert_msg(strstr(notes, "m.tar: b: is a hard link to 'a'") &&
                          strstr(notes, "(offset 0); it is left out"),
                      "%s", notes);
        ck_assert_uint_eq(index_left_out(fileset->index), 1);
        fileset_close(fileset);
    }
    struct fileset_options own = always;
    own.lists_left_out = true;
    fileset_close(must_open("m.tar", own));
    ck_assert_str_eq(notes, "");
}
END_TEST

START_TEST(notes_can_not_write_to_the_terminal)
{
    ck_assert_int_eq(command("cp a.tar \"$(printf 'x\\033[31m.tar')\" && zstd -q x*.tar"), 0);
    struct fileset *fileset = must_open("x\033[31m.tar.zst", defaults);
    ck_assert_str_ne(notes, "");
    ck_assert_ptr_null(strchr(notes, '\033'));
    fileset_close(fileset);
}
END_TEST

START_TEST(remarks_on_an_archive_are_notes)
{
    ck_assert_int_eq(command("head -c 1024 a.tar > cut.tar"), 0); /* "./" and "./one" */
    ck_assert_int_eq(command("tar -cf one.tar -C tree one && head -c 1024 one.tar > cut.tar"),
                     0);
    struct fileset *fileset = must_open("cut.tar", never);
    ck_assert_ptr_nonnull(strstr(notes, "cut.tar: it has no end-of-archive marker"));
    fileset_close(fileset);
}
END_TEST

static void on_signal(int signal)
{
    (void)signal;
}

static void interrupt(void *ctx, const char *doing, const struct progress *progress)
{
    (void)progress;
    /* First it is looked through for frames, which it has not. */
    ck_assert(strcmp(doing, "indexing") == 0 || strcmp(doing, "unpacking to /dev/shm") == 0);
    ++*(int *)ctx;
    raise(SIGTERM);
}

/* Converting names wants files that the sandbox does not let libarchive open. */
START_TEST(names_survive_the_sandbox)
{
    static const char *const names[] = {"caf\u00e9", "cafe\u0301", "\xe9\xff",
                                        "\u20ac/\U0001d11e"};
    ck_assert_int_eq(mkdir("names", 0700), 0);
    ck_assert_int_eq(mkdir("names/\u20ac", 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[300];
        snprintf(path, sizeof(path), "names/%s", names[i]);
        auto_close int fd = open(path, O_CREAT | O_WRONLY, 0600);
        ck_assert_int_ge(fd, 0);
    }
    ck_assert_int_eq(command("tar --format=posix -cf n.tar -C names ."), 0);
    static const char *const locales[] = {"C", "C.UTF-8"};
    for (size_t k = 0; k < 2; k++) {
        ck_assert_ptr_nonnull(setlocale(LC_ALL, locales[k]));
        struct fileset *fileset = must_open("n.tar", never);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            uint32_t position;
            ck_assert_msg(index_resolve(fileset->index, names[i], &position) == 0, "name %zu",
                          i);
        }
        ck_assert_uint_eq(index_info(fileset->index)->entries, 6);
        fileset_close(fileset);
    }
    setlocale(LC_ALL, "C");
}
END_TEST

/* A frame of zstd: what is in `head`, and zeros, each 128 KiB of them as a block of four bytes.
 */
static void write_zstd_of_zeros(const char *path, const char *head, size_t head_len,
                                unsigned blocks)
{
    static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3};
    const uint8_t literal[] = {(uint8_t)(head_len << 3), (uint8_t)(head_len >> 5), 0};
    const uint32_t size = 1 << 17, same = size << 3 | 1 << 1;
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fwrite(frame, sizeof(frame), 1, file);
    fwrite(literal, sizeof(literal), 1, file);
    fwrite(head, head_len, 1, file);
    for (unsigned i = 0; i < blocks; i++) {
        uint32_t block = same | (i + 1 == blocks);
        const uint8_t bytes[] = {(uint8_t)block, (uint8_t)(block >> 8), (uint8_t)(block >> 16),
                                 0};
        fwrite(bytes, sizeof(bytes), 1, file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(signal_ends_a_long_step)
{
    /* 16 GiB of zeros: several looks of the watch at its work, and no memory. */
    char head[512];
    ck_assert_int_eq(command("truncate -s 16G tree/zeros && "
                             "tar -cf - -C tree zeros 2>/dev/null | head -c 512 > head"),
                     0);
    auto_close int fd = open("head", O_RDONLY);
    ck_assert_int_eq(read(fd, head, sizeof(head)), (ssize_t)sizeof(head));
    write_zstd_of_zeros("z.tar.zst", head, sizeof(head), 16u << (30 - 17));
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGTERM, &action, &before);
    int calls = 0;
    struct fault fault = {0};
    struct fileset *fileset = NULL;
    struct fileset_options options = {
        .progress = interrupt, .ctx = &calls, .max_ratio = UINT32_MAX};
    int r = fileset_open("z.tar.zst", &options, &fault, &fileset);
    sigaction(SIGTERM, &before, NULL);
    ck_assert_int_eq(r, -EINTR);
    ck_assert_str_eq(fault.what, "interrupted");
    ck_assert_int_ge(calls, 1);
    ck_assert_ptr_null(fileset);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

static void *open_in_thread(void *arg)
{
    struct fault fault = {0};
    struct fileset_options options = {.save = FILESET_SAVE_ALWAYS, .rebuild = true};
    for (int i = 0; i < 10 && *(int *)arg == 0; i++) {
        struct fileset *fileset = NULL;
        *(int *)arg = fileset_open("a.tar", &options, &fault, &fileset);
        fileset_close(fileset);
    }
    return NULL;
}

START_TEST(several_may_index_one_archive_at_once)
{
    if (!FORKS_WITH_THREADS) {
        puts("skipped: under a sanitizer a process with threads can't fork and allocate");
        return;
    }
    pthread_t threads[4];
    int results[4] = {0};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, open_in_thread, &results[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(results[i], 0);
    }
    open_and_check("a.tar", never, FILESET_INDEX_SAVED);
    ck_assert_int_eq(command("test $(ls | wc -l) = 3"), 0);
}
END_TEST

/* After each test: no descriptor of a fileset is left open, nothing lies in /dev/shm. */
START_TEST(nothing_is_left_open)
{
    ck_assert_int_eq(command("gzip -k a.tar"), 0);
    int before = dup(0), after;
    close(before);
    for (int i = 0; i < 3; i++) {
        struct fault fault;
        struct fileset *fileset = NULL;
        fileset_close(must_open("a.tar", always));
        fileset_close(must_open("a.tar.gz", defaults));
        open_with("tree", defaults, &fault, &fileset);
        fileset_close(must_open("a.tar.gz", always));
    }
    after = dup(0);
    close(after);
    ck_assert_int_eq(before, after);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("fileset");
    tcase_set_timeout(tests, 500);
    tcase_add_unchecked_fixture(tests, make_base, remove_base);
    tcase_add_checked_fixture(tests, make_folder, remove_folder);
    tcase_add_test(tests, tar_is_indexed);
    tcase_add_test(tests, quick_index_is_not_saved);
    tcase_add_test(tests, saved_index_is_used_again);
    tcase_add_test(tests, saved_index_works_for_archives_on_a_network);
    tcase_add_test(tests, memory_is_looked_up_once_and_only_where_it_matters);
    tcase_add_test(tests,
                   small_tar_of_many_directories_needs_no_more_memory_than_any_child_gets);
    tcase_add_test(tests, whole_tar_is_opened_by_as_many_requests_with_a_neighbour_as_without);
    tcase_add_test(tests, format_of_a_tar_is_told_by_four_requests);
    tcase_add_test(tests, changed_archive_is_indexed_anew);
    tcase_add_test(tests, damaged_saved_index_is_made_anew);
    tcase_add_test(tests, index_of_another_archive_is_not_used);
    tcase_add_test(tests, index_of_somebody_else_is_not_used);
    tcase_add_test(tests, index_that_others_may_write_to_is_not_used);
    tcase_add_test(tests, the_file_that_was_written_is_used_whatever_lies_at_its_path);
    tcase_add_test(tests, what_a_killed_run_left_of_an_index_is_removed);
    tcase_add_test(tests, index_is_its_owners_whoever_made_it);
    tcase_add_test(tests, index_goes_to_the_cache_where_it_can_not_lie_beside);
    tcase_add_test(tests, composed_index_is_saved_when_that_is_asked_for);
    tcase_add_test(tests, several_archives_are_indexed_at_once);
    tcase_add_test(tests, archives_that_were_left_alone_are_not_read_for_a_saved_union);
    tcase_add_test(tests, composed_index_that_can_not_be_saved_stays_and_says_so);
    tcase_add_test(tests, composed_index_that_is_never_saved_leaves_nothing);
    tcase_add_test(tests, index_that_can_not_be_saved_is_an_error_only_if_asked_for);
    tcase_add_test(tests, embedded_index_is_used);
    tcase_add_test(tests, archive_that_tar_appended_to_is_indexed_anew);
    tcase_add_test(tests, archive_that_was_indexed_after_tar_appended_to_it_is_well);
    tcase_add_test(tests, damaged_embedded_index_is_made_anew_with_a_note);
    tcase_add_test(tests, compressed_tar_is_unpacked_into_memory);
#if defined(HAVE_ZLIB) && defined(HAVE_STREAMS)
    tcase_add_test(tests, each_sum_of_a_large_gzip_file_is_compared);
#endif
    tcase_add_test(tests, each_form_that_has_sums_has_them_compared);
    tcase_add_test(tests, compressed_tar_that_does_not_fit_in_memory_goes_to_disk);
    tcase_add_test(tests, index_of_a_stream_is_saved_for_who_can_use_it);
    tcase_add_test(tests, a_stream_without_room_is_unpacked_as_ever);
    tcase_add_test(tests, index_of_a_stream_is_of_that_stream);
    tcase_add_test(tests, compressed_onepot_archive_brings_its_index);
    tcase_add_test(tests, member_called_like_a_magic_is_no_compression);
    tcase_add_test(tests, what_is_no_archive_is_refused_with_a_reason);
    tcase_add_test(tests, files_of_other_formats_are_called_by_their_name);
    tcase_add_test(tests, truncated_archives_are_errors);
    tcase_add_test(tests, what_is_left_out_is_a_note_each_time);
    tcase_add_test(tests, notes_can_not_write_to_the_terminal);
    tcase_add_test(tests, remarks_on_an_archive_are_notes);
    tcase_add_test(tests, names_survive_the_sandbox);
    tcase_add_test(tests, a_compressed_tar_of_nothing_is_an_empty_tree);
    tcase_add_test(tests, signal_ends_a_long_step);
    tcase_add_test(tests, several_may_index_one_archive_at_once);
    tcase_add_test(tests, nothing_is_left_open);

    Suite *suite = suite_create("fileset");
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
