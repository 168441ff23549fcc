/* The daemon's side of the short circuit, and what a program has to preload. */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "index_helper.h"
#include "preload.h"
#include "core.h"
#include "feature_list.h"
#include "intercept.h"
#include "source_concat.h"
#include "suite.h"

#define FILE_BYTES 100000u
#define FILES 10

/* A file of noise, as an archive. */
static struct source *make_source(char path[64])
{
    struct source *source;
    snprintf(path, 64, "%s/archive-XXXXXX", getenv(SUITE_FOLDER));
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, FILE_BYTES), 0);
    close(fd);
    ck_assert_int_eq(source_open(path, NULL, &source), 0);
    return source;
}

/* Files f0, f1... of 100 bytes, 1000 bytes apart, from `start` on. */
static struct index *make_index(uint64_t start)
{
    struct builder *b = new_builder();
    for (unsigned i = 0; i < FILES; i++) {
        char name[8];
        snprintf(name, sizeof(name), "f%u", i);
        add_file(b, name, start + 1000 * (i + 1), 100);
    }
    add_file(b, "empty", 0, 0);
    add_dir(b, "folder", 0755);
    return build(b, &tar_header);
}

static struct counters counters;
static struct fileset fileset;
static struct session session = {
    .config = {.fileset = &fileset, .counters = &counters},
    .made = {.tv_sec = 17, .tv_nsec = 4},
};

/* Starts the feature; the counters have its name and key (LAYER_VARIABLE). */
static void *start(struct index *index, struct source *source, struct intercept_id *ret_id)
{
    void *server = NULL;
    *ret_id = (struct intercept_id){0};
    session.index = fileset.index = index;
    fileset.source = source;
    ck_assert_int_eq(intercept_feature.start(&session, &server), 0);
    ck_assert_ptr_nonnull(server);
    ck_assert_int_eq(sscanf(counters.direct_id, "%ld %ld %" SCNu64 " %47s",
                            &ret_id->made.tv_sec, &ret_id->made.tv_nsec, &ret_id->key,
                            ret_id->name),
                     4);
    ck_assert_int_eq(ret_id->made.tv_sec, 17);
    return server;
}

static void stop(void *server)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 60;
    intercept_feature.end(server);
    ck_assert_int_eq(intercept_feature.join(server, &until), 0);
    intercept_feature.free(server);
}

/* As a reader does it. Returns how many descriptors came; 0: no answer. */
static size_t ask(const char *name, struct intercept_offer *ret_offer,
                  int fds[1 + INTERCEPT_FILES_MAX])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char control[CMSG_SPACE(sizeof(int) * (1 + INTERCEPT_FILES_MAX))];
    struct iovec iov = {ret_offer, sizeof(*ret_offer)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};

    memcpy(address.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    ck_assert_int_eq(
        connect(fd, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
        0);
    ssize_t n = recvmsg(fd, &message, 0);
    close(fd);
    if (n == 0)
        return 0;
    ck_assert_int_eq(n, sizeof(*ret_offer));
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    size_t bytes = cmsg->cmsg_len - CMSG_LEN(0);
    memcpy(fds, CMSG_DATA(cmsg), bytes);
    return bytes / sizeof(int);
}

/* The words of the table, once the last one that is known is there. */
static const _Atomic uint64_t *words_of(int fd, uint64_t entries, uint32_t last)
{
    size_t words_at = INTERCEPT_HEAD_BYTES + intercept_marks_bytes(entries);
    uint8_t *table = mmap(NULL, words_at + entries * 8, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(table, MAP_FAILED);
    const _Atomic uint64_t *words = (const void *)(table + words_at);
    while (!atomic_load(&words[last]))
        usleep(1000); /* the suite's limit ends it */
    return words;
}

START_TEST(a_reader_learns_where_files_lie)
{
    char path[64];
    struct source *source = make_source(path);
    struct index *index = make_index(0);
    struct intercept_id id;
    void *server = start(index, source, &id);
    struct intercept_offer offer;
    int fds[1 + INTERCEPT_FILES_MAX];

    ck_assert_uint_eq(ask(id.name, &offer, fds), 2);
    ck_assert_uint_eq(offer.files, 1);
    ck_assert_uint_eq(offer.file[0].size_bytes, FILE_BYTES);
    ck_assert_uint_eq(offer.entries, index_info(index)->entries);
    ck_assert_uint_eq(offer.key, id.key);
    const _Atomic uint64_t *words = words_of(fds[0], offer.entries, position_of(index, "f9"));
    for (unsigned i = 0; i < FILES; i++) {
        char name[8];
        snprintf(name, sizeof(name), "f%u", i);
        ck_assert_uint_eq(words[position_of(index, name)], INTERCEPT_IS_KNOWN | 1000 * (i + 1));
    }
    ck_assert_uint_eq(words[position_of(index, "empty")], 0);
    ck_assert_uint_eq(words[position_of(index, "folder")], 0);
    ck_assert_int_ge(fcntl(fds[0], F_GET_SEALS) & F_SEAL_SHRINK, 1);
    stop(server);
    index_close(index);
    source_close(source);
}
END_TEST

START_TEST(of_several_archives_each_file_has_its_own)
{
    char paths[3][64];
    struct source *members[3], *source;
    for (int i = 0; i < 3; i++)
        members[i] = make_source(paths[i]);
    ck_assert_int_eq(source_concat(members, 3, true, "all", &source), 0);
    struct index *index = make_index(source_concat_base(source, 2));
    struct intercept_id id;
    void *server = start(index, source, &id);
    struct intercept_offer offer;
    int fds[1 + INTERCEPT_FILES_MAX];

    ck_assert_uint_eq(ask(id.name, &offer, fds), 4);
    ck_assert_uint_eq(offer.files, 3);
    const _Atomic uint64_t *words = words_of(fds[0], offer.entries, position_of(index, "f9"));
    ck_assert_uint_eq(words[position_of(index, "f3")],
                      INTERCEPT_IS_KNOWN | UINT64_C(2) << INTERCEPT_FILE_SHIFT | 4000);
    stop(server);
    index_close(index);
    source_close(source);
}
END_TEST

START_TEST(a_file_beyond_the_archive_is_left_to_the_mount)
{
    char path[64];
    struct source *source = make_source(path);
    struct index *index = make_index(FILE_BYTES - 2050); /* f0 lies in it, f1 ends behind it */
    struct intercept_id id;
    void *server = start(index, source, &id);
    struct intercept_offer offer;
    int fds[1 + INTERCEPT_FILES_MAX];

    ck_assert_uint_eq(ask(id.name, &offer, fds), 2);
    const _Atomic uint64_t *words = words_of(fds[0], offer.entries, position_of(index, "f0"));
    struct intercept_offer again; /* by then the rest of the few entries is there, too */
    ck_assert_uint_eq(ask(id.name, &again, fds), 2);
    ck_assert_uint_eq(words[position_of(index, "f1")], 0);
    ck_assert_uint_eq(words[position_of(index, "f9")], 0);
    stop(server);
    index_close(index);
    source_close(source);
}
END_TEST

START_TEST(a_changed_archive_is_not_offered)
{
    char path[64];
    struct source *source = make_source(path);
    struct index *index = make_index(0);
    const struct timespec times[2] = {{.tv_sec = 5}, {.tv_sec = 5}};
    struct intercept_id id;
    void *server = start(index, source, &id);
    struct intercept_offer offer;
    int fds[1 + INTERCEPT_FILES_MAX];

    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    ck_assert_uint_eq(ask(id.name, &offer, fds), 0);
    stop(server);
    index_close(index);
    source_close(source);
}
END_TEST

START_TEST(what_readers_count_is_added_up)
{
    char path[64];
    struct source *source = make_source(path);
    struct index *index = make_index(0);
    struct intercept_id id;
    void *server = start(index, source, &id);
    struct intercept_offer offer;
    int fds[1 + INTERCEPT_FILES_MAX];

    intercept_feature.update_counters(server);
    ck_assert_uint_eq(counters.direct_reads, 0);
    ck_assert_uint_eq(ask(id.name, &offer, fds), 2);
    struct intercept_head *head =
        mmap(NULL, INTERCEPT_HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    ck_assert_ptr_ne(head, MAP_FAILED);
    for (unsigned i = 0; i < INTERCEPT_SLOTS; i++) {
        head->slots[i].starts = 3;
        head->slots[i].files = 4;
        head->slots[i].foreseen = 1;
        head->slots[i].reads = 2;
        head->slots[i].bytes = 10;
        head->slots[i].last_read_ns = i;
    }
    intercept_feature.update_counters(server);
    ck_assert_uint_eq(counters.direct_starts, 3 * INTERCEPT_SLOTS);
    ck_assert_uint_eq(counters.direct_files, 4 * INTERCEPT_SLOTS);
    ck_assert_uint_eq(counters.direct_foreseen, INTERCEPT_SLOTS);
    ck_assert_uint_eq(counters.direct_reads, 2 * INTERCEPT_SLOTS);
    ck_assert_uint_eq(counters.direct_bytes, 10 * INTERCEPT_SLOTS);
    ck_assert_uint_eq(counters.direct_last_ns, INTERCEPT_SLOTS - 1);
    stop(server);
    index_close(index);
    source_close(source);
}
END_TEST

/* In a user namespace without numbers all users have the same one. */
START_TEST(users_without_a_number_get_no_answer)
{
    char path[64];
    struct source *source = make_source(path);
    struct index *index = make_index(0);
    struct intercept_offer offer;
    struct intercept_id id;
    int fds[1 + INTERCEPT_FILES_MAX], ends[2], over[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(pipe(over), 0);
    pid_t daemon = fork();
    if (daemon == 0) {
        close(over[1]);
        if (unshare(CLONE_NEWUSER) == 0) {
            void *server = start(index, source, &id);
            ck_assert(write(ends[1], &id, sizeof(id)) == sizeof(id));
            ck_assert(read(over[0], fds, 1) == 0);
            ck_assert(!intercept_tells(geteuid()));
            stop(server);
        }
        _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], &id, sizeof(id)) == sizeof(id)) /* else there are no such namespaces */
        ck_assert_uint_eq(ask(id.name, &offer, fds), 0);
    close(over[1]);
    int status;
    ck_assert_int_eq(waitpid(daemon, &status, 0), daemon);
    ck_assert_int_eq(status, 0);
    close(ends[0]);
    close(over[0]);
    index_close(index);
    source_close(source);
}
END_TEST

START_TEST(the_key_is_for_the_mounts_own_user)
{
    ck_assert(intercept_tells(geteuid()));
    ck_assert(intercept_tells(0));
    ck_assert(!intercept_tells(geteuid() + 1));
}
END_TEST

/* ---- preloading ---- */

/* Root has a folder of its own beside (mount_ preload); a test's folder is below /tmp. */
START_TEST(a_folder_below_one_of_all_users_is_refused)
{
    char found[PATH_MAX] = "", why[PRELOAD_WHY_MAX] = "";

    ck_assert_int_eq(setenv("XDG_CACHE_HOME", getenv(SUITE_FOLDER), 1), 0);
    int r = preload_find(found, why);
    ck_assert_ptr_null(strstr(found, getenv(SUITE_FOLDER)));
    ck_assert(r == 0 ? found[0] == '/' : why[0] != '\0');
}
END_TEST

START_TEST(it_comes_behind_what_is_preloaded_already)
{
    const char *const cases[][2] = {{NULL, "/a/io.so"},
                                    {"", "/a/io.so"},
                                    {"libx.so", "libx.so:/a/io.so"},
                                    {" x:/b.so ", "x:/b.so:/a/io.so"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *value, *unsafe;
        ck_assert_int_eq(preload_value("/a/io.so", cases[i][0], &value, &unsafe), 0);
        ck_assert_str_eq(value, cases[i][1]);
        ck_assert_ptr_null(unsafe);
        free(value);
    }
}
END_TEST

START_TEST(a_library_of_ours_takes_the_place_of_another)
{
    /* What LD_PRELOAD has; what remains of it; what is said. */
    const char *const cases[][3] = {
        {"/usr/lib/onepot/libonepot-io.so:x", "x", NULL},
        {"/usr/none/libonepot-io-0123.so", "", NULL},
        {"x /tmp/onepot-7/data.tar.so", "x", "/tmp/onepot-7/data.tar.so"},
        {"/tmp/none/libonepot-io.so:/tmp/libonepot-io-1.so", "", "/tmp/none/libonepot-io.so"},
        {"libonepot-io.so", "", "libonepot-io.so"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *value, *unsafe;
        ck_assert_int_eq(preload_value(NULL, cases[i][0], &value, &unsafe), 0);
        ck_assert_str_eq(value, cases[i][1]);
        ck_assert_msg((unsafe == NULL) == (cases[i][2] == NULL), "%s", cases[i][0]);
        if (unsafe)
            ck_assert_str_eq(unsafe, cases[i][2]);
        free(value);
        free(unsafe);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("intercept");
    TCase *server = tcase_create("server"), *preload = tcase_create("preload");

    tcase_add_test(server, a_reader_learns_where_files_lie);
    tcase_add_test(server, of_several_archives_each_file_has_its_own);
    tcase_add_test(server, a_file_beyond_the_archive_is_left_to_the_mount);
    tcase_add_test(server, a_changed_archive_is_not_offered);
    tcase_add_test(server, what_readers_count_is_added_up);
    tcase_add_test(server, users_without_a_number_get_no_answer);
    tcase_add_test(server, the_key_is_for_the_mounts_own_user);
    suite_add_tcase(suite, server);
    tcase_add_test(preload, a_folder_below_one_of_all_users_is_refused);
    tcase_add_test(preload, it_comes_behind_what_is_preloaded_already);
    tcase_add_test(preload, a_library_of_ours_takes_the_place_of_another);
    suite_add_tcase(suite, preload);
    return run_suite(suite);
}
