/*
 * Staging: reads are right before, while and after the copy is made; one copy is shared;
 * whoever dies is replaced; what can't be copied is read from the source; and a folder that
 * is not ours is left alone.
 */
#include <check.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "runtime.h"
#include "source_concat.h"
#include "source_ops.h"
#include "stage_private.h"
#include "suite.h"

#define MIB (1u << 20)
#define BYTES (5u * MIB + 12345u)
#define LIMIT_MS 100000u

static char base[64];         /* of all tests */
static char folder[PATH_MAX]; /* of one */
static char place[PATH_MAX];  /* where copies go */
static char archive[PATH_MAX];
static uint8_t *bytes; /* of the archive */
static char notes[2048];

static void remove_tree(const char *path)
{
    char line[PATH_MAX + 16];
    snprintf(line, sizeof(line), "rm -rf '%s'", path);
    ck_assert_int_ge(system(line), 0);
}

static void make_base(void)
{
    suite_make_folder("stage", base, sizeof(base));
}

static void remove_base(void)
{
    remove_tree(base);
}

static void write_file(const char *path, const void *content, size_t len)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(content, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "%s/XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(place, sizeof(place), "%.*s/place", PATH_MAX - 16, folder);
    ck_assert_int_eq(mkdir(place, 0755), 0);
    snprintf(archive, sizeof(archive), "%.*s/a b.tar", PATH_MAX - 16, folder);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    bytes = malloc(BYTES);
    ck_assert_ptr_nonnull(bytes);
    suite_fill_noise(bytes, BYTES);
    write_file(archive, bytes, BYTES);
    notes[0] = '\0';
}

static void remove_folder(void)
{
    free(bytes);
    remove_tree(folder);
}

static void keep_note(void *ctx, const char *line)
{
    (void)ctx;
    size_t n = strlen(notes);
    snprintf(notes + n, sizeof(notes) - n, "%s\n", line);
}

struct staged {
    struct source *source;
    struct stage *stage;
};

static int try_open(struct staged *s, struct fault *fault)
{
    const struct stage_options options = {.place = place, .note = keep_note};
    memset(fault, 0, sizeof(*fault));
    ck_assert_int_eq(source_open(archive, NULL, &s->source), 0);
    int r = stage_open(s->source, &options, fault, &s->stage);
    if (r < 0)
        source_close(s->source);
    else
        ck_assert_int_eq(stage_attach(s->stage, &s->source, false), 0);
    return r;
}

static struct staged must_open(void)
{
    struct staged s;
    struct fault fault;
    int r = try_open(&s, &fault);
    ck_assert_msg(r == 0, "%d: %s", r, fault.what);
    return s;
}

/* Also ends the threads, so that all notes were taken. */
static void close_staged(struct staged *s)
{
    int r;
    for (int i = 0; (r = stage_stop(s->stage)) == -EBUSY && i < 20; i++)
        ; /* two seconds are few for the disk of a busy machine */
    ck_assert_int_eq(r, 0);
    source_close(s->source);
    stage_close(s->stage);
}

static struct stage_report report(const struct staged *s)
{
    struct stage_report r;
    stage_get_report(s->stage, &r);
    return r;
}

static int read_range(const struct staged *s, uint64_t offset, size_t len)
{
    auto_free uint8_t *buf = malloc(len + 1);
    ck_assert_ptr_nonnull(buf);
    int r = source_read(s->source, buf, len, offset);
    if (r == 0)
        ck_assert_mem_eq(buf, bytes + offset, len);
    return r;
}

static void check_reads(const struct staged *s)
{
    static const struct {
        uint64_t offset;
        size_t len;
    } ranges[] = {{0, 1},           {MIB - 1, 2},       {3 * MIB - 100, MIB + 200},
                  {BYTES - 10, 10}, {2 * MIB, 2 * MIB}, {BYTES, 0}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        ck_assert_int_eq(read_range(s, ranges[i].offset, ranges[i].len), 0);
    ck_assert_int_eq(read_range(s, BYTES - 10, 11), -ENODATA);
}

/* Files that lie in the place, at any depth; its own folder is none. */
static unsigned files_left(void)
{
    char line[PATH_MAX + 64], text[32] = "";
    snprintf(line, sizeof(line), "find '%s' -mindepth 1 | wc -l", place);
    FILE *f = popen(line, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), f));
    pclose(f);
    return (unsigned)atoi(text);
}

/* NAME + suffix of the only copy. */
static void path_of(const char *suffix, char ret_path[PATH_MAX])
{
    char dir_path[PATH_MAX];
    snprintf(dir_path, sizeof(dir_path), "%.*s/onepot-stage-%u", PATH_MAX - 64, place,
             (unsigned)geteuid());
    DIR *dir = opendir(dir_path);
    ret_path[0] = '\0';
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strstr(e->d_name, suffix))
            ck_assert_int_lt(
                snprintf(ret_path, PATH_MAX, "%.*s/%s", PATH_MAX - 300, dir_path, e->d_name),
                PATH_MAX);
    if (dir)
        closedir(dir);
    ck_assert_msg(ret_path[0], "no %s", suffix);
}

/* ---- reading and copying ---- */

START_TEST(all_of_it_is_copied_and_read_from_there)
{
    struct staged s = must_open();
    ck_assert(source_keeps(s.source) && !source_is_local(s.source));
    ck_assert_int_eq(stage_start(s.stage), 0);
    check_reads(&s);
    ck_assert(stage_wait_whole(s.stage, LIMIT_MS));
    struct stage_report r = report(&s);
    ck_assert_uint_eq(r.bytes_here, BYTES);
    ck_assert_uint_eq(r.copied_bytes + r.demand_bytes, BYTES);
    ck_assert(source_is_local(s.source));
    ck_assert_ptr_nonnull(source_map(s.source));
    ck_assert_mem_eq(source_map(s.source), bytes, BYTES);
    ck_assert_int_eq(truncate(archive, 0), 0); /* not needed any more */
    check_reads(&s);
    close_staged(&s);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

START_TEST(the_job_keeps_some_memory)
{
    const uint64_t free_bytes = UINT64_C(1) << 30;
    struct registry its;
    ck_assert_int_eq(stage_folder_lock(place, true, &its), 0);
    /* 26 MiB ended with a kill */
    ck_assert_uint_eq(stage_room_left(free_bytes, 40u << 20, &its), 0);
    ck_assert_uint_ge(stage_room_left(free_bytes, 256u << 20, &its), 128u << 20);
    /* on a disk */
    ck_assert_uint_ge(stage_room_left(free_bytes, UINT64_MAX, &its), 900u << 20);
    registry_remove(&its);
}
END_TEST

START_TEST(what_is_wanted_is_there_before_the_copier)
{
    struct staged s = must_open();
    char byte;
    ck_assert(!source_has(s.source, 3 * MIB, 1));
    ck_assert_int_eq(source_read_cached(s.source, &byte, 1, 3 * MIB), -EAGAIN);
    ck_assert_int_eq(read_range(&s, 3 * MIB + 7, 1000), 0);
    ck_assert(source_has(s.source, 3 * MIB, MIB));
    int r = source_read_cached(s.source, &byte, 1, 4 * MIB - 1);
    ck_assert(r == 0 || r == -EAGAIN); /* whoever drops caches may have been here */
    if (r == 0)
        ck_assert_int_eq(byte, (char)bytes[4 * MIB - 1]);
    ck_assert(!source_has(s.source, 3 * MIB, MIB + 1));
    ck_assert_int_eq(source_bring(s.source, 3 * MIB, MIB + 1), 0);
    ck_assert_mem_eq(source_map(s.source) + 3 * MIB, bytes + 3 * MIB, MIB + 1);
    struct stage_report now = report(&s);
    ck_assert_uint_eq(now.demands, 2);
    ck_assert_uint_eq(now.bytes_here, 2 * MIB);
    ck_assert_uint_eq(now.past_bytes, 0);
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(stage_wait_whole(s.stage, LIMIT_MS));
    ck_assert_uint_eq(report(&s).copied_bytes, BYTES - 2 * MIB);
    close_staged(&s);
}
END_TEST

static struct {
    uint64_t chunk[8]; /* in the order in which they were read */
    unsigned count;
} asked;

static int asking_read(const struct source *source, struct source_cursor *cursor)
{
    if (asked.count < 8)
        asked.chunk[asked.count++] = cursor->offset / MIB;
    return source_read_on(source->wrapped, cursor);
}

static bool asking_close(struct source *source)
{
    (void)source;
    return true;
}

/* By one thread, so that the order is known. */
/* They have no mapping in common, but their copy has one. */
START_TEST(the_copy_of_several_files_is_mapped)
{
    const struct stage_options options = {.place = place, .note = keep_note};
    struct source *members[2];
    struct staged s;
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(source_open(archive, NULL, &members[i]), 0);
    ck_assert_int_eq(source_concat(members, 2, true, "all", &s.source), 0);
    ck_assert(!source_can_map(s.source));
    ck_assert_int_eq(stage_open(s.source, &options, NULL, &s.stage), 0);
    ck_assert_int_eq(stage_attach(s.stage, &s.source, false), 0);
    ck_assert(source_can_map(s.source));
    ck_assert_int_eq(source_bring(s.source, 0, BYTES), 0);
    ck_assert_mem_eq(source_map(s.source), bytes, BYTES);
    close_staged(&s);
}
END_TEST

START_TEST(the_copier_goes_on_where_a_reader_does)
{
    static const struct source_ops ops = {.read = asking_read, .close = asking_close};
    static const uint64_t order[] = {1, 3, 4, 5, 0, 2};
    const struct stage_options options = {.place = place, .threads = 1};
    struct source *wrapper = calloc(1, sizeof(*wrapper));
    struct fault fault = {0};
    struct staged s;
    ck_assert_ptr_nonnull(wrapper);
    ck_assert_int_eq(source_open(archive, NULL, &s.source), 0);
    source_wrap(wrapper, &ops, &s.source);
    ck_assert_int_eq(stage_open(s.source, &options, &fault, &s.stage), 0);
    ck_assert_int_eq(stage_attach(s.stage, &s.source, false), 0);
    asked.count = 0;
    ck_assert_int_eq(read_range(&s, 1 * MIB, 10), 0);
    ck_assert_int_eq(read_range(&s, 3 * MIB, 10), 0); /* somewhere else */
    ck_assert_uint_eq(atomic_load(&s.stage->wanted), 0);
    ck_assert_int_eq(read_range(&s, 4 * MIB, 10), 0);
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(stage_wait_whole(s.stage, LIMIT_MS));
    for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        ck_assert_uint_eq(asked.chunk[i], order[i]);
    close_staged(&s);
}
END_TEST

START_TEST(one_copy_is_shared)
{
    struct staged a = must_open(), b = must_open();
    ck_assert_int_eq(read_range(&a, 0, 100), 0);
    ck_assert(source_has(b.source, 0, MIB));
    ck_assert_int_eq(stage_start(a.stage), 0);
    ck_assert_int_eq(stage_start(b.stage), 0);
    ck_assert(stage_wait_whole(b.stage, LIMIT_MS));
    struct stage_report r = report(&b);
    ck_assert_uint_eq(r.copied_bytes + r.demand_bytes, BYTES);
    close_staged(&a);
    check_reads(&b);
    close_staged(&b);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

/* As one that a daemon forks at its end, to list ahead. */
START_TEST(a_child_that_was_just_forked_does_not_keep_the_copy)
{
    for (int with_children = 0; with_children < 2; with_children++) {
        struct staged s = must_open();
        unsigned files = files_left();
        int go[2];
        ck_assert_int_eq(pipe(go), 0);
        pid_t pid = fork();
        if (pid == 0) {
            char byte;
            close(go[1]);
            _exit(read(go[0], &byte, 1) != 0);
        }
        ck_assert_uint_gt(files, 0);
        stage_abandon(s.stage, with_children);
        ck_assert_uint_eq(files_left(), with_children ? 0 : files);
        close(go[1]);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        close_staged(&s);
    }
}
END_TEST

START_TEST(files_are_private)
{
    struct staged s = must_open();
    static const char *const suffixes[] = {".copy", ".state"};
    struct stat st;
    char path[PATH_MAX];
    for (int i = 0; i < 2; i++) {
        path_of(suffixes[i], path);
        ck_assert_int_eq(lstat(path, &st), 0);
        ck_assert_int_eq(st.st_mode, S_IFREG | 0600);
    }
    *strrchr(path, '/') = '\0';
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert_int_eq(st.st_mode, S_IFDIR | 0700);
    close_staged(&s);
}
END_TEST

/* ---- who dies ---- */

/* A child that opens the copy, reads two chunks of it, and is killed. */
static void run_killed_child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct staged s = must_open();
        ck_assert_int_eq(read_range(&s, 0, 2 * MIB), 0);
        raise(SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WTERMSIG(status), SIGKILL);
}

START_TEST(another_goes_on_where_a_killed_one_was)
{
    struct staged s = must_open();
    run_killed_child();
    ck_assert_uint_eq(report(&s).bytes_here, 2 * MIB);
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(stage_wait_whole(s.stage, LIMIT_MS));
    ck_assert_uint_eq(report(&s).copied_bytes, BYTES - 2 * MIB);
    check_reads(&s);
    close_staged(&s);
}
END_TEST

START_TEST(a_copier_that_is_killed_is_replaced)
{
    struct staged s = must_open();
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    _Atomic uint64_t clock_ns = 1;
    s.stage->pause.test_ns = &clock_ns;
    pid_t pid = fork();
    if (pid == 0) { /* holds the copier's lock and copies nothing */
        char path[PATH_MAX];
        path_of(".copy", path);
        int fd = open(path, O_RDWR);
        if (fd < 0 || flock(fd, LOCK_EX) < 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(stage_start(s.stage), 0);
    check_reads(&s); /* readers don't depend on it */
    uint64_t looks_ns = atomic_load(&clock_ns) + UINT64_C(1000000000);
    while (atomic_load(&clock_ns) < looks_ns) /* it looks in vain, again and again */
        sched_yield();
    ck_assert_uint_eq(report(&s).copied_bytes, 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(stage_wait_whole(s.stage, LIMIT_MS));
    close_staged(&s);
}
END_TEST

/* Its reads may never be answered; those of a reader may. */
START_TEST(what_a_copier_that_hangs_is_at_is_made_by_readers)
{
    struct source *none;
    ck_assert_int_eq(source_from_memory("", 0, "none", &none), 0);
    struct stage_state *state = calloc(1, stage_state_size(2 * MIB));
    ck_assert_ptr_nonnull(state);
    stage_state_init(state, none, 2 * MIB, "archive", "place");
    atomic_store(&state->generation, 1);
    ck_assert(stage_claim_to_copy(state, 0, 1));
    atomic_store(&state->progress_ns, now_ns());
    ck_assert(!stage_claim_demand(state, 0));
    atomic_store(&state->progress_ns, 0); /* that is since the machine was started */
    ck_assert(stage_claim_demand(state, 0));
    ck_assert(!stage_claim_demand(state, 0));
    stage_settle(state, 0, CHUNK_HERE);
    source_close(none);
    stage_settle(state, 0, CHUNK_ABSENT); /* the copier, late and in vain */
    ck_assert(stage_chunk_here(state, 0));
    ck_assert(!stage_claim_to_copy(state, 0, 2));
    free(state);
}
END_TEST

/* Fewer times than one call of runtime_open makes it anew. */
#define REMOVALS 300

/* As the last user of a copy does, while another one comes. */
START_TEST(a_folder_that_others_remove_is_made_anew)
{
    char path[PATH_MAX];
    ck_assert_int_lt(snprintf(path, sizeof(path), "%s/comes-and-goes", folder),
                     (int)sizeof(path));
    pid_t pid = fork(), ended;
    if (pid == 0) {
        for (int i = 0; i < REMOVALS;)
            if (rmdir(path) == 0)
                i++;
            else
                sched_yield(); /* it is not there, and won't come before the other runs */
        _exit(0);
    }
    ck_assert_int_gt(pid, 0);
    while ((ended = waitpid(pid, NULL, WNOHANG)) == 0) {
        int fd = -1;
        ck_assert_int_eq(runtime_open(path, true, &fd), 0);
        close(fd);
    }
    ck_assert_int_eq(ended, pid);
}
END_TEST

START_TEST(the_next_start_removes_what_nobody_uses)
{
    run_killed_child();
    ck_assert_uint_eq(files_left(), 4); /* folder, its lock, copy and state */
    stage_sweep(place);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

/* ---- sources and disks that fail ---- */

START_TEST(a_source_that_is_cut_short_is_told_of)
{
    struct staged s = must_open();
    ck_assert_int_eq(read_range(&s, 4 * MIB, 10), 0);
    ck_assert_int_eq(truncate(archive, 2 * MIB), 0);
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(!stage_wait_whole(s.stage, LIMIT_MS));
    ck_assert_int_ne(report(&s).failure, 0);
    ck_assert_int_eq(read_range(&s, 4 * MIB + 500, 1000), 0); /* kept */
    ck_assert_int_eq(read_range(&s, MIB, 1000), 0);
    ck_assert_int_eq(read_range(&s, 3 * MIB, 1000), -ENODATA);
    ck_assert_int_lt(source_bring(s.source, 3 * MIB, 1000), 0);
    close_staged(&s);
    ck_assert_ptr_nonnull(strstr(notes, "has ended early"));
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

START_TEST(an_archive_that_changes_meanwhile_makes_no_copy_for_others)
{
    struct staged s = must_open();
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    ck_assert_int_eq(utimensat(AT_FDCWD, archive, times, 0), 0);
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(!stage_wait_whole(s.stage, LIMIT_MS));
    ck_assert_int_eq(report(&s).failure, ESTALE);
    close_staged(&s);
}
END_TEST

/* A tmpfs of 8 MiB at `place`, for this process alone. */
static bool mount_small(void)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("small", place, "tmpfs", 0, "size=8m,mode=755") < 0) {
        printf("skipped: only root can mount a small tmpfs\n");
        return false;
    }
    return true;
}

static void fill(unsigned mib)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/fill", place);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(posix_fallocate(fd, 0, (off_t)mib * MIB), 0);
    close(fd);
}

START_TEST(what_does_not_fit_is_refused_with_figures)
{
    struct staged s;
    struct fault fault;
    if (!mount_small())
        return;
    fill(4);
    ck_assert_int_eq(try_open(&s, &fault), -ENOSPC);
    ck_assert_ptr_nonnull(strstr(fault.what, "6 MiB can't be staged"));
    ck_assert_ptr_nonnull(strstr(fault.what, "has 3 MiB"));
    ck_assert_ptr_nonnull(strstr(fault.advice, "--stage=DIR"));
    umount2(place, MNT_DETACH);
}
END_TEST

START_TEST(a_disk_that_fills_up_leaves_the_source)
{
    if (!mount_small())
        return;
    struct staged s = must_open();
    ck_assert_int_eq(read_range(&s, 0, 10), 0);
    fill(6);
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(!stage_wait_whole(s.stage, LIMIT_MS));
    ck_assert_int_eq(report(&s).failure, ENOSPC);
    check_reads(&s);
    ck_assert_uint_gt(report(&s).past_bytes, 0);
    ck_assert_int_eq(source_bring(s.source, 0, 10), 0);
    close_staged(&s);
    ck_assert_ptr_nonnull(strstr(notes, "has ended early"));
    umount2(place, MNT_DETACH);
}
END_TEST

/* ---- whose folder ---- */

static void own_folder(char ret_path[PATH_MAX])
{
    snprintf(ret_path, PATH_MAX, "%.*s/onepot-stage-%u", PATH_MAX - 64, place,
             (unsigned)geteuid());
}

START_TEST(a_folder_that_is_a_link_or_open_is_not_used)
{
    char path[PATH_MAX];
    struct staged s;
    struct fault fault;
    own_folder(path);
    ck_assert_int_eq(symlink(folder, path), 0);
    ck_assert_int_eq(try_open(&s, &fault), -EPERM);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(chmod(path, 0755), 0);
    ck_assert_int_eq(try_open(&s, &fault), -EPERM);
    ck_assert_ptr_nonnull(strstr(fault.what, "closed to others (mode 0755)"));
    ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

/* Sets a part of the state file of a copy that is in use to `to`; what it was goes there. */
static void exchange_state(size_t offset, char *to, size_t len)
{
    char path[PATH_MAX], was[4096];
    path_of(".state", path);
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, was, len, (off_t)offset), (ssize_t)len);
    ck_assert_int_eq(pwrite(fd, to, len, (off_t)offset), (ssize_t)len);
    memcpy(to, was, len);
    close(fd);
}

START_TEST(a_state_of_another_boot_or_version_or_damaged_is_not_used)
{
    static const struct {
        size_t offset, len;
    } fields[] = {
        {offsetof(struct stage_state, magic), 4},
        {offsetof(struct stage_state, version), 4},
        {offsetof(struct stage_state, chunk_bytes), 4},
        {offsetof(struct stage_state, boot_id), 4},
        {offsetof(struct stage_state, identity), sizeof(struct source_identity)},
        {offsetof(struct stage_state, bytes), 4},
        {offsetof(struct stage_state, chunks), 1}, /* more than there are */
        {offsetof(struct stage_state, archive), sizeof(((struct stage_state *)0)->archive)},
        {offsetof(struct stage_state, place), sizeof(((struct stage_state *)0)->place)},
    };
    struct staged s = must_open(), other;
    struct fault fault;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        char text[4096];
        memset(text, '?', sizeof(text));
        exchange_state(fields[i].offset, text, fields[i].len);
        ck_assert_int_eq(try_open(&other, &fault), -EEXIST); /* to be read without */
        exchange_state(fields[i].offset, text, fields[i].len);
    }
    other = must_open();
    check_reads(&other);
    close_staged(&other);
    close_staged(&s);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

START_TEST(a_copy_of_another_size_is_not_used)
{
    char path[PATH_MAX];
    struct staged s = must_open(), other;
    struct fault fault;
    path_of(".copy", path);
    ck_assert_int_eq(truncate(path, 1000), 0);
    ck_assert_int_eq(try_open(&other, &fault), -EEXIST); /* to be read without */
    ck_assert_int_eq(truncate(path, BYTES), 0);
    close_staged(&s);
}
END_TEST

/* ---- what is unpacked ---- */

static unsigned made;     /* times in this process */
static int begun_fd = -1; /* unpacking tells it that it has begun, and awaits company */

static void await_company(int fd)
{
    char path[64], event[4096];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    auto_close int watch = inotify_init1(IN_CLOEXEC);
    ck_assert_int_ge(inotify_add_watch(watch, path, IN_OPEN), 0);
    ck_assert_int_eq(write(begun_fd, "x", 1), 1);
    ck_assert_int_gt(read(watch, event, sizeof(event)), 0);
}

/* "Unpacks" to the bytes of the archive, twice. */
static int unpack(void *arg, int fd, const char *to, uint64_t most, struct fault *fault)
{
    int err = *(const int *)arg;
    made++;
    ck_assert_ptr_nonnull(strstr(to, "onepot-stage-"));
    ck_assert_uint_ge(most, 2 * BYTES);
    if (begun_fd >= 0)
        await_company(fd);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(write(fd, bytes, BYTES), BYTES);
    return err < 0 ? fault_set(fault, err, NULL, FAULT_NO_OFFSET, "is damaged") : 0;
}

static int open_unpacked(int err, struct fault *fault, struct staged *s)
{
    struct stage_store store = {{.place = place}, NULL};
    struct source *packed;
    const struct fileset_unpacker unpacker = {unpack, &err};
    memset(fault, 0, sizeof(*fault));
    ck_assert_int_eq(source_open(archive, NULL, &packed), 0);
    int r = stage_fileset_store(&store).open(&store, packed, &unpacker, fault, &s->source);
    s->stage = store.stage;
    source_close(packed);
    return r;
}

/* A process that unpacks until another one comes, and uses that until *ret_life is closed. */
static pid_t fork_unpacker(int *ret_life)
{
    struct staged s;
    struct fault fault;
    int begun[2], life[2];
    char byte;
    ck_assert_int_eq(pipe(begun), 0);
    ck_assert_int_eq(pipe(life), 0);
    pid_t pid = fork();
    if (pid == 0) {
        begun_fd = begun[1];
        close(life[1]);
        ck_assert_int_eq(open_unpacked(0, &fault, &s), 0);
        ck_assert_int_eq(read(life[0], &byte, 1), 0);
        close_staged(&s);
        _exit((int)made);
    }
    close(begun[1]);
    close(life[0]);
    ck_assert_int_eq(read(begun[0], &byte, 1), 1);
    close(begun[0]);
    *ret_life = life[1];
    return pid;
}

START_TEST(what_is_unpacked_is_made_once_for_all)
{
    struct staged a, b;
    struct fault fault;
    int life;
    pid_t pid = fork_unpacker(&life);
    ck_assert_int_eq(open_unpacked(0, &fault, &a), 0);
    ck_assert_int_eq(open_unpacked(0, &fault, &b), 0);
    ck_assert_uint_eq(source_size(b.source), 2 * BYTES);
    ck_assert_int_eq(read_range(&b, 0, BYTES), 0);
    ck_assert(report(&b).whole);
    int status;
    close(life);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    ck_assert_uint_eq(made, 0);
    close_staged(&a);
    close_staged(&b);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

START_TEST(unpacking_that_fails_leaves_nothing)
{
    struct staged s;
    struct fault fault;
    ck_assert_int_eq(open_unpacked(-EUCLEAN, &fault, &s), -EUCLEAN);
    ck_assert_ptr_null(s.stage);
    ck_assert_str_eq(fault.what, "is damaged");
    ck_assert_uint_eq(files_left(), 0);
    ck_assert_int_eq(open_unpacked(-EAGAIN, &fault, &s), -EAGAIN); /* no process can be had */
    ck_assert_uint_eq(files_left(), 0);
    ck_assert_int_eq(open_unpacked(-ENOSPC, &fault, &s), -ENOSPC);
    ck_assert_ptr_nonnull(strstr(fault.what, "no room"));
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

START_TEST(an_unpacker_that_is_killed_is_replaced)
{
    struct staged s;
    struct fault fault;
    int life;
    pid_t pid = fork_unpacker(&life);
    kill(pid, SIGKILL);
    ck_assert_int_eq(open_unpacked(0, &fault, &s), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    close(life);
    ck_assert_uint_eq(made, 1);
    ck_assert_uint_eq(source_size(s.source), 2 * BYTES);
    close_staged(&s);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

/* ---- copies that stay ---- */

static int count_copies(void *ctx, const struct stage_report *copy)
{
    unsigned *count = ctx;
    ck_assert_str_eq(copy->archive, archive);
    ck_assert(!copy->is_used);
    (*count)++;
    return 0;
}

static int remove_copies(void *ctx, const struct stage_report *copy)
{
    (void)ctx;
    (void)copy;
    return 1;
}

START_TEST(a_copy_may_stay)
{
    struct staged s = must_open();
    unsigned count = 0;
    ck_assert_int_eq(stage_start(s.stage), 0);
    ck_assert(stage_wait_whole(s.stage, LIMIT_MS));
    stage_pin(s.stage, 0, NULL);
    close_staged(&s);
    stage_sweep(place);
    ck_assert_int_eq(stage_each(place, count_copies, &count), 0);
    ck_assert_uint_eq(count, 1);
    s = must_open();
    ck_assert((source_keeps(s.source) && source_is_local(s.source)));
    close_staged(&s);
    ck_assert_int_eq(stage_each(place, remove_copies, NULL), 0);
    ck_assert_uint_eq(files_left(), 0);
}
END_TEST

START_TEST(a_copy_stays_as_long_as_its_owner)
{
    pid_t owner = fork();
    if (owner == 0)
        pause();
    struct staged s = must_open();
    stage_pin(s.stage, owner, NULL);
    close_staged(&s);
    stage_sweep(place);
    ck_assert_uint_gt(files_left(), 0);
    kill(owner, SIGKILL);
    siginfo_t info; /* its zombie is there */
    ck_assert_int_eq(waitid(P_PID, (id_t)owner, &info, WEXITED | WNOWAIT), 0);
    stage_sweep(place);
    ck_assert_uint_eq(files_left(), 0);
    ck_assert_int_eq(waitpid(owner, NULL, 0), owner);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage");
    TCase *tc = tcase_create("stage");
    tcase_set_timeout(tc, 240);
    tcase_add_unchecked_fixture(tc, make_base, remove_base);
    tcase_add_checked_fixture(tc, make_folder, remove_folder);
    tcase_add_test(tc, all_of_it_is_copied_and_read_from_there);
    tcase_add_test(tc, the_job_keeps_some_memory);
    tcase_add_test(tc, what_is_wanted_is_there_before_the_copier);
    tcase_add_test(tc, the_copy_of_several_files_is_mapped);
    tcase_add_test(tc, the_copier_goes_on_where_a_reader_does);
    tcase_add_test(tc, one_copy_is_shared);
    tcase_add_test(tc, a_child_that_was_just_forked_does_not_keep_the_copy);
    tcase_add_test(tc, files_are_private);
    tcase_add_test(tc, another_goes_on_where_a_killed_one_was);
    tcase_add_test(tc, a_copier_that_is_killed_is_replaced);
    tcase_add_test(tc, what_a_copier_that_hangs_is_at_is_made_by_readers);
    tcase_add_test(tc, a_folder_that_others_remove_is_made_anew);
    tcase_add_test(tc, the_next_start_removes_what_nobody_uses);
    tcase_add_test(tc, a_source_that_is_cut_short_is_told_of);
    tcase_add_test(tc, an_archive_that_changes_meanwhile_makes_no_copy_for_others);
    tcase_add_test(tc, what_does_not_fit_is_refused_with_figures);
    tcase_add_test(tc, a_disk_that_fills_up_leaves_the_source);
    tcase_add_test(tc, a_folder_that_is_a_link_or_open_is_not_used);
    tcase_add_test(tc, a_state_of_another_boot_or_version_or_damaged_is_not_used);
    tcase_add_test(tc, a_copy_of_another_size_is_not_used);
    tcase_add_test(tc, what_is_unpacked_is_made_once_for_all);
    tcase_add_test(tc, unpacking_that_fails_leaves_nothing);
    tcase_add_test(tc, an_unpacker_that_is_killed_is_replaced);
    tcase_add_test(tc, a_copy_may_stay);
    tcase_add_test(tc, a_copy_stays_as_long_as_its_owner);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
