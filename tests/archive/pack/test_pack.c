/*
 * The packer: what is in the tree is in the archive, the same bytes from any number of
 * threads, and what goes wrong is told and leaves no wrong archive.
 *
 * What other programs extract from it is the business of tests/command/pack.sh.
 */
#include <check.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>

#include "backend.h"
#include "cleanup.h"
#include "index_helper.h"
#include "pack.h"
#include "suite.h"

static char folder[64]; /* the working directory of each test */

static void setup(void)
{
    suite_make_folder("pack", folder, sizeof(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir("src", 0755), 0);
    umask(022);
}

/* ---- making trees ---- */

static void make_file(const char *path, size_t size)
{
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    auto_free uint8_t *bytes = malloc(size + 1);
    uint64_t state = size * 77 + 1;
    for (size_t i = 0; i < size; i++)
        bytes[i] =
            (uint8_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
}

static void make_sparse(const char *path, uint64_t size, uint64_t at, const char *text)
{
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    if (text)
        ck_assert_int_eq(pwrite(fd, text, strlen(text), (off_t)at), (ssize_t)strlen(text));
}

static void make_socket(const char *path)
{
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

/* One of everything, in src. */
static void make_tree(void)
{
    static const size_t sizes[] = {
        0, 1, 511, 512, 513, 20000, (1 << 20) - 1, 1 << 20, 1048577, (3 << 20) + 5};
    char path[64];
    ck_assert_int_eq(mkdir("src/dir", 0700), 0);
    ck_assert_int_eq(mkdir("src/dir/sub", 02775), 0);
    ck_assert_int_eq(mkdir("src/empty", 0755), 0);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        snprintf(path, sizeof(path), "src/%s%zu", i % 3 ? "dir/" : i % 2 ? "dir/sub/" : "", i);
        make_file(path, sizes[i]);
    }
    make_file("src/new\nline", 9);
    make_file("src/\xff\xfe", 9);
    ck_assert_int_eq(symlink("../nowhere", "src/dir/link"), 0);
    ck_assert_int_eq(symlink("/", "src/root"), 0);
    ck_assert_int_eq(mkfifo("src/fifo", 0600), 0);
    make_sparse("src/sparse", UINT64_C(5) << 30, UINT64_C(1) << 32, "in the middle");
    make_sparse("src/hollow", UINT64_C(1) << 33, 0, NULL);
    make_file("src/dir/a", 3000);
    ck_assert_int_eq(link("src/dir/a", "src/dir/b"), 0);
    ck_assert_int_eq(link("src/dir/a", "src/Z"), 0);
    make_file("src/dir/big", 2 << 20);
    ck_assert_int_eq(link("src/dir/big", "src/zz"), 0);
    ck_assert_int_eq(link("src/fifo", "src/fifo2"), 0);
    struct timespec times[2] = {{0, UTIME_OMIT}, {-5, 123456789}};
    ck_assert_int_eq(utimensat(AT_FDCWD, "src/dir/sub", times, 0), 0);
    /* Not every filesystem takes these; they are compared as they are. */
    (void)!setxattr("src/dir/a", "user.one", "1", 1, 0);
    (void)!setxattr("src/dir/a", "user.none", "", 0, 0);
    (void)!setxattr("src/dir", "user.dir", "dd", 2, 0);
}

/* ---- packing ---- */

struct reports {
    unsigned notes, problems;
    char last[1024];
};

static void take_report(void *ctx, enum pack_report kind, const struct fault *what)
{
    struct reports *reports = ctx;
    if (kind == PACK_NOTE)
        reports->notes++;
    else
        reports->problems++;
    fault_describe(what, 0, NULL, reports->last, sizeof(reports->last));
}

static const char *const one_source[] = {"src"};
static struct reports reports;
static struct fault fault;
static struct pack_result result;

static struct pack_options options_for(unsigned threads)
{
    return (struct pack_options){.sources = one_source,
                                 .source_count = 1,
                                 .output = "out.tar",
                                 .no_sync = true,
                                 .writer.threads = threads,
                                 .report = take_report,
                                 .ctx = &reports};
}

static int pack(const struct pack_options *options)
{
    reports = (struct reports){0};
    fault = (struct fault){0};
    int r = pack_run(options, &fault, &result);
    ck_assert_msg(r == 0 || fault.err == -r || r == -EINTR, "%d, but the fault says %d", r,
                  fault.err);
    return r;
}

static void pack_src(unsigned threads)
{
    struct pack_options options = options_for(threads);
    options.overwrite = true;
    int r = pack(&options);
    ck_assert_msg(r == 0, "%d %s %s", r, fault.member, fault.what);
}

/* Nothing but the source is left in the working directory: no archive, no part of one. */
static void check_nothing_left(void)
{
    DIR *dir = opendir(".");
    const struct dirent *d;
    while ((d = readdir(dir)))
        ck_assert_msg(d->d_name[0] == '.' || strcmp(d->d_name, "src") == 0, "%s is left",
                      d->d_name);
    closedir(dir);
}

/* ---- looking into archives ---- */

static struct source *source;
static struct index *trailer; /* the index that the archive carries */

static void open_archive(const char *path)
{
    struct embedded_index where;
    ck_assert_int_eq(source_open(path, &fault, &source), 0);
    int r = backend_onepot.trailer->find(source, &fault, &where);
    ck_assert_msg(r == 0, "%d %s", r, fault.what);
    r = index_open(source, where.offset, where.length, &fault, &trailer);
    ck_assert_msg(r == 0, "%d %s", r, fault.what);
}

static void close_archive(void)
{
    index_close(trailer);
    source_close(source);
    trailer = NULL;
    source = NULL;
}

/* Compare a file's content with what the extents say, and both with the sum. */
static void check_content(const struct index *index, uint32_t position, const char *path,
                          uint64_t size)
{
    auto_close int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    XXH3_state_t *state = XXH3_createState();
    XXH3_64bits_reset(state);
    uint8_t *ours = malloc(1 << 20), *theirs = malloc(1 << 20);
    for (uint64_t at = 0; at < size;) {
        struct extent e;
        ck_assert_int_eq(index_extent(index, position, at, &e), 0);
        if (e.kind == EXTENT_HOLE) {
            off_t data = lseek(fd, (off_t)at, SEEK_DATA);
            ck_assert_msg(data < 0 || (uint64_t)data >= at + e.length, "%s: no hole", path);
            at += e.length;
            continue;
        }
        size_t n = e.length < (1 << 20) ? (size_t)e.length : 1 << 20;
        ck_assert_int_eq(e.kind, EXTENT_STORED);
        ck_assert_int_eq(source_read(source, ours, n, e.source_offset), 0);
        ck_assert_int_eq(pread(fd, theirs, n, (off_t)at), (ssize_t)n);
        ck_assert_msg(memcmp(ours, theirs, n) == 0, "%s differs at %llu", path,
                      (unsigned long long)at);
        XXH3_64bits_update(state, ours, n);
        at += n;
    }
    uint64_t sum;
    ck_assert_int_eq(index_sum(index, position, &sum), 0);
    ck_assert_uint_eq(sum, XXH3_64bits_digest(state));
    XXH3_freeState(state);
    free(ours);
    free(theirs);
}

static void check_xattrs(const struct index *index, uint32_t position, const char *path)
{
    char list[1024], value[1024];
    ssize_t n = listxattr(path, list, sizeof(list));
    uint64_t cursor = 0;
    struct xattr x;
    ssize_t found = 0, expected = 0;
    while (index_xattr_next(index, position, &cursor, &x) == 0)
        found++;
    for (char *name = list; n > 0 && name < list + n; name += strlen(name) + 1) {
        if (strncmp(name, "user.", 5) != 0)
            continue;
        expected++;
        ssize_t len = getxattr(path, name, value, sizeof(value));
        ck_assert_int_eq(index_xattr_get(index, position, name, strlen(name), &x), 0);
        ck_assert_int_eq((ssize_t)x.value_len, len);
        ck_assert(memcmp(x.value, value, (size_t)len) == 0);
    }
    ck_assert_int_eq(found, expected);
}

/* An entry of the index is what lies at the path. */
static void check_entry(const struct index *index, uint32_t position, const char *path,
                        unsigned *count)
{
    struct stat st;
    struct node node;
    const char *text;
    size_t len;
    char target[4096];
    ck_assert_msg(lstat(path, &st) == 0, "%s is not there", path);
    ck_assert_int_eq(index_node(index, position, &node), 0);
    ck_assert_msg(node.mode == st.st_mode, "%s: mode %o", path, node.mode);
    ck_assert_uint_eq(node.uid, st.st_uid);
    ck_assert_uint_eq(node.gid, st.st_gid);
    ck_assert_int_eq(node.mtime_sec, st.st_mtim.tv_sec);
    ck_assert_int_eq(node.mtime_nsec, st.st_mtim.tv_nsec);
    ++*count;
    if (S_ISREG(st.st_mode)) {
        ck_assert_uint_eq(node.size_bytes, (uint64_t)st.st_size);
        check_content(index, position, path, node.size_bytes);
    }
    if (!S_ISDIR(st.st_mode))
        ck_assert_msg(node.nlink == st.st_nlink, "%s: %u links", path, node.nlink);
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        check_xattrs(index, position, path);
    if (S_ISLNK(st.st_mode)) {
        ck_assert_int_eq(index_symlink(index, position, &text, &len), 0);
        ck_assert_int_eq(readlink(path, target, sizeof(target)), (ssize_t)len);
        ck_assert(memcmp(text, target, len) == 0);
    }
    if (!S_ISDIR(st.st_mode))
        return;
    uint32_t first, children;
    ck_assert_int_eq(index_children(index, position, &first, &children), 0);
    for (uint32_t i = 0; i < children; i++) {
        char below[PATH_MAX];
        ck_assert_int_eq(index_name(index, first + i, &text, &len), 0);
        snprintf(below, sizeof(below), "%s/%.*s", path, (int)len, text);
        check_entry(index, first + i, below, count);
    }
}

static unsigned count_below(const char *path)
{
    char command[PATH_MAX], answer[32] = "";
    snprintf(command, sizeof(command), "find '%s' ! -type s -printf x | wc -c", path);
    FILE *p = popen(command, "r");
    ck_assert_ptr_nonnull(fgets(answer, sizeof(answer), p));
    pclose(p);
    return (unsigned)atoi(answer);
}

static void check_archive(const char *archive, const char *tree)
{
    unsigned count = 0;
    open_archive(archive);
    check_entry(trailer, INDEX_ROOT, tree, &count);
    ck_assert_uint_eq(count, count_below(tree));
    ck_assert_uint_eq(index_info(trailer)->entries, count);
    close_archive();
}

static uint64_t hash_file(const char *path)
{
    struct source *s;
    ck_assert_int_eq(source_open(path, &fault, &s), 0);
    uint8_t *bytes = malloc(source_size(s));
    ck_assert_int_eq(source_read(s, bytes, source_size(s), 0), 0);
    uint64_t hash = XXH3_64bits(bytes, source_size(s));
    free(bytes);
    source_close(s);
    return hash;
}

/* ---- what is packed ---- */

START_TEST(all_that_is_in_the_tree_is_in_the_archive)
{
    make_tree();
    pack_src(1);
    check_archive("out.tar", "src");
    ck_assert_uint_eq(result.problems, 0);
    ck_assert_uint_eq(reports.notes, 1);
    ck_assert_str_eq(reports.last, "root: is a symbolic link that leads out of the tree; what "
                                   "it leads to is not packed, unless by --dereference");
    pack_src(7);
    check_archive("out.tar", "src");
}
END_TEST

START_TEST(an_empty_tree_is_an_archive)
{
    pack_src(1);
    check_archive("out.tar", "src");
}
END_TEST

START_TEST(the_bytes_do_not_depend_on_the_number_of_threads)
{
    make_tree();
    for (int i = 0; i < 300; i++) {
        char path[64];
        snprintf(path, sizeof(path), "src/d%d", i % 40);
        mkdir(path, 0755);
        snprintf(path, sizeof(path), "src/d%d/f%d", i % 40, i);
        make_file(path, (size_t)i * 411);
    }
    pack_src(1);
    uint64_t first = hash_file("out.tar");
    static const unsigned threads[] = {2, 3, 8, 40, 0};
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        pack_src(threads[i]);
        ck_assert_msg(hash_file("out.tar") == first, "%u threads", threads[i]);
    }
}
END_TEST

/* Two entries of two indexes say the same, but for what a tar does not hold. */
static void compare_entries(const struct index *a, uint32_t at, const struct index *b,
                            uint32_t other)
{
    struct node x, y;
    ck_assert_int_eq(index_node(a, at, &x), 0);
    ck_assert_int_eq(index_node(b, other, &y), 0);
    ck_assert_mem_eq(&x.mode, &y.mode, 4 * sizeof(uint32_t));
    ck_assert(x.mtime_sec == y.mtime_sec && x.mtime_nsec == y.mtime_nsec);
    ck_assert(x.size_bytes == y.size_bytes && x.data_bytes == y.data_bytes);
    ck_assert(x.has_xattrs == y.has_xattrs && x.has_holes == y.has_holes);
    uint64_t offset = 0;
    struct extent e, f;
    while (S_ISREG(x.mode) && index_extent(a, at, offset, &e) == 0) {
        ck_assert_int_eq(index_extent(b, other, offset, &f), 0);
        ck_assert(e.kind == f.kind && e.length == f.length);
        ck_assert(e.kind == EXTENT_HOLE || e.source_offset == f.source_offset);
        offset += e.length;
    }
    if (!S_ISDIR(x.mode))
        return;
    uint32_t first, count, first_other, count_other;
    ck_assert_int_eq(index_children(a, at, &first, &count), 0);
    ck_assert_int_eq(index_children(b, other, &first_other, &count_other), 0);
    ck_assert_uint_eq(count, count_other);
    for (uint32_t i = 0; i < count; i++) {
        const char *name, *name_other;
        size_t len, len_other;
        ck_assert_int_eq(index_name(a, first + i, &name, &len), 0);
        ck_assert_int_eq(index_name(b, first_other + i, &name_other, &len_other), 0);
        ck_assert(len == len_other && memcmp(name, name_other, len) == 0);
        compare_entries(a, first + i, b, first_other + i);
    }
}

START_TEST(read_as_a_plain_tar_it_has_the_same_index)
{
    make_tree();
    struct timespec times[2] = {{0, UTIME_OMIT}, {5, 123456789}};
    utimensat(AT_FDCWD, "src/dir/sub", times, 0); /* libarchive misreads it before 1970 */
    pack_src(2);
    open_archive("out.tar");

    struct builder *builder = new_builder();
    struct builder_header header = {.format = FORMAT_TAR, .archive_bytes = source_size(source)};
    struct progress progress = {0};
    int r = backend_onepot.trailer->without_index->index(source, builder, &header, &progress,
                                                         &fault);
    ck_assert_msg(r == 0, "%d %s", r, fault.what);
    struct index *again = build(builder, &header);
    compare_entries(trailer, INDEX_ROOT, again, INDEX_ROOT);
    index_close(again);
    close_archive();
}
END_TEST

START_TEST(several_sources_are_folders_of_the_root)
{
    static const char *const sources[] = {"src/b/", "src/a", "."};
    mkdir("src/a", 0755);
    mkdir("src/b", 0755);
    make_file("src/a/f", 10);
    struct pack_options options = options_for(2);
    options.sources = sources;
    options.source_count = 2;
    ck_assert_int_eq(pack(&options), 0);
    open_archive("out.tar");
    ck_assert_str_eq(listing(trailer, "/"), "a b ");
    ck_assert_uint_eq(node_of(trailer, "a/f").size_bytes, 10);
    close_archive();

    options.source_count = 3; /* "." is called by its real name */
    options.overwrite = true;
    ck_assert_int_eq(pack(&options), 0);
    open_archive("out.tar");
    position_of(trailer, strrchr(folder, '/') + 1);
    close_archive();
}
END_TEST

START_TEST(a_source_that_is_a_link_is_followed_and_a_link_inside_is_not)
{
    mkdir("src/d", 0755);
    make_file("src/d/f", 10);
    ck_assert_int_eq(symlink("d", "src/l"), 0);
    ck_assert_int_eq(symlink("src", "source"), 0);
    static const char *const sources[] = {"source"};
    struct pack_options options = options_for(1);
    options.sources = sources;
    ck_assert_int_eq(pack(&options), 0);
    check_archive("out.tar", "src");
    open_archive("out.tar");
    ck_assert(S_ISLNK(node_of(trailer, "l").mode));
    close_archive();
}
END_TEST

START_TEST(deep_trees_need_few_descriptors)
{
    /* Nearly as deep as a path can name, and four times as deep as there are descriptors. */
    enum { LEVELS = 200 };
    static const char name[] = "a_folder_of_a_name";
    int fd = open("src", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < LEVELS; i++) {
        ck_assert_int_eq(mkdirat(fd, name, 0755), 0);
        int below = openat(fd, name, O_RDONLY | O_DIRECTORY);
        /* Names before and after the folder, so that it is visited on both ways. */
        close(openat(fd, "a", O_CREAT | O_WRONLY, 0644));
        close(openat(fd, "z", O_CREAT | O_WRONLY, 0644));
        close(fd);
        fd = below;
    }
    close(fd);
    struct rlimit before, few = {48, 48};
    getrlimit(RLIMIT_NOFILE, &before);
    few.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    pack_src(3);
    setrlimit(RLIMIT_NOFILE, &before);
    ck_assert_uint_eq(reports.problems, 0);
    ck_assert_uint_eq(result.totals.files, 2 * LEVELS);

    open_archive("out.tar");
    uint32_t at = INDEX_ROOT, found;
    for (int i = 0; i < LEVELS; i++) {
        ck_assert_int_eq(index_lookup(trailer, at, "z", 1, &found), 0);
        ck_assert_int_eq(index_lookup(trailer, at, name, strlen(name), &at), 0);
    }
    close_archive();
}
END_TEST

START_TEST(twenty_thousand_files_lie_in_one_folder)
{
    int fd = open("src", O_RDONLY | O_DIRECTORY);
    char name[16];
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof(name), "%d", i * 7919 % 20000);
        close(openat(fd, name, O_CREAT | O_WRONLY, 0644));
    }
    close(fd);
    pack_src(2);
    ck_assert_uint_eq(result.totals.files, 20000);
    open_archive("out.tar");
    ck_assert_uint_eq(index_info(trailer)->entries, 20001);
    position_of(trailer, "19999");
    close_archive();
}
END_TEST

/* ---- what goes wrong with a file ---- */

START_TEST(a_socket_is_left_out_with_a_note)
{
    make_socket("src/socket");
    make_file("src/f", 10);
    pack_src(1);
    ck_assert_uint_eq(result.problems, 0);
    ck_assert_uint_eq(reports.notes, 1);
    ck_assert_str_eq(reports.last, "socket: left out: it is a socket");
    check_archive("out.tar", "src");
}
END_TEST

START_TEST(what_may_not_be_read_is_told_and_the_rest_is_there)
{
    if (geteuid() != 0) {
        puts("skipped: only root can become a user who may not read");
        return;
    }
    ck_assert_int_eq(mkdir("src/closed", 0700), 0);
    make_file("src/closed/inside", 10);
    make_file("src/secret", 10);
    make_file("src/open", 10);
    ck_assert_int_eq(chmod("src/secret", 0600), 0);
    ck_assert_int_eq(chmod(".", 0777), 0);
    ck_assert_int_eq(seteuid(65534), 0);
    pack_src(1);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_uint_eq(result.problems, 2);
    ck_assert_str_eq(reports.last, "secret: left out: can't be opened: Permission denied");
    open_archive("out.tar");
    ck_assert_str_eq(listing(trailer, "/"), "closed open ");
    ck_assert_str_eq(listing(trailer, "closed"), "");
    close_archive();
}
END_TEST

/*
 * Something happens to src/z while src/big is packed: with one thread that is at a time
 * which is known, when the names of src are listed and z was not opened yet.
 */
static void (*happening)(void);

static void on_progress(void *ctx, const char *doing, const struct progress *progress)
{
    (void)ctx;
    (void)doing;
    (void)progress;
    if (happening)
        happening();
    happening = NULL;
}

static void pack_while(void (*happens)(void))
{
    struct pack_options options = options_for(1);
    make_file("src/big", 5 << 20);
    happening = happens;
    options.progress = on_progress;
    ck_assert_int_eq(pack(&options), 0);
    ck_assert_uint_eq(result.problems, 1);
    ck_assert_uint_eq(reports.problems, 1);
}

static void remove_z(void)
{
    ck_assert_int_eq(unlink("src/z"), 0);
}

START_TEST(a_file_that_vanishes_is_told_by_name)
{
    make_file("src/z", 10);
    pack_while(remove_z);
    ck_assert_str_eq(reports.last, "z: left out: it vanished while it was packed");
    open_archive("out.tar");
    ck_assert_str_eq(listing(trailer, "/"), "big ");
    close_archive();
}
END_TEST

static void replace_z(void)
{
    ck_assert_int_eq(unlink("src/z"), 0);
    ck_assert_int_eq(symlink("/etc/passwd", "src/z"), 0);
}

START_TEST(a_link_that_takes_the_place_of_a_file_is_not_followed)
{
    make_file("src/z", 10);
    pack_while(replace_z);
    ck_assert_str_eq(reports.last, "z: left out: it became another kind of file");
}
END_TEST

static void replace_folder(void)
{
    ck_assert_int_eq(rename("src/z", "src/moved"), 0);
    ck_assert_int_eq(symlink("/etc", "src/z"), 0);
}

START_TEST(a_link_that_takes_the_place_of_a_folder_is_not_followed)
{
    ck_assert_int_eq(mkdir("src/z", 0755), 0);
    pack_while(replace_folder);
    ck_assert_str_eq(reports.last, "z: left out: it became another kind of file");
}
END_TEST

static void shrink_big(void)
{
    ck_assert_int_eq(truncate("src/big", 3000000), 0);
}

START_TEST(a_file_that_shrinks_is_filled_with_zeros)
{
    pack_while(shrink_big);
    ck_assert_str_eq(reports.last,
                     "big: zeros from byte 3000000 on: it shrank while it was packed");
    open_archive("out.tar");
    struct extent e = extent_of(trailer, "big", 0);
    ck_assert_uint_eq(e.length, 5 << 20);
    uint8_t last[2];
    ck_assert_int_eq(source_read(source, last, 2, e.source_offset + 2999999), 0);
    ck_assert_uint_eq(last[1], 0);
    /* The sum is of what the archive holds. */
    uint8_t *all = malloc(e.length);
    uint64_t sum;
    ck_assert_int_eq(source_read(source, all, e.length, e.source_offset), 0);
    ck_assert_int_eq(index_sum(trailer, position_of(trailer, "big"), &sum), 0);
    ck_assert_uint_eq(sum, XXH3_64bits(all, e.length));
    free(all);
    close_archive();
}
END_TEST

static void grow_big(void)
{
    ck_assert_int_eq(truncate("src/big", 6 << 20), 0);
}

START_TEST(a_file_that_grows_is_cut)
{
    pack_while(grow_big);
    ck_assert_str_eq(reports.last, "big: cut at its former size: it grew while it was packed");
    open_archive("out.tar");
    ck_assert_uint_eq(node_of(trailer, "big").size_bytes, 5 << 20);
    close_archive();
}
END_TEST

START_TEST(strict_fails_at_the_first_problem_and_leaves_nothing)
{
    make_file("src/z", 10);
    make_file("src/big", 5 << 20);
    struct pack_options options = options_for(1);
    happening = remove_z;
    options.progress = on_progress;
    options.strict = true;
    ck_assert_int_eq(pack(&options), -ENOENT);
    ck_assert_str_eq(fault.member, "z");
    check_nothing_left();
}
END_TEST

/* ---- the output ---- */

START_TEST(an_archive_that_exists_is_kept)
{
    make_file("out.tar", 100);
    make_file("src/f", 10);
    uint64_t before = hash_file("out.tar");
    struct pack_options options = options_for(1);
    ck_assert_int_eq(pack(&options), -EEXIST);
    ck_assert_uint_eq(hash_file("out.tar"), before);
    options.overwrite = true;
    ck_assert_int_eq(pack(&options), 0);
    check_archive("out.tar", "src");
    ck_assert_int_eq(unlink("out.tar"), 0);
    check_nothing_left();
}
END_TEST

static void make_output(void)
{
    make_file("out.tar", 3);
}

START_TEST(an_archive_that_comes_to_exist_meanwhile_is_kept)
{
    make_file("src/big", 5 << 20);
    struct pack_options options = options_for(1);
    happening = make_output;
    options.progress = on_progress;
    ck_assert_int_eq(pack(&options), -EEXIST);
    struct stat st;
    ck_assert_int_eq(stat("out.tar", &st), 0);
    ck_assert_int_eq(st.st_size, 3);
    ck_assert_int_eq(unlink("out.tar"), 0);
    check_nothing_left();
}
END_TEST

START_TEST(only_files_can_be_replaced)
{
    struct pack_options options = options_for(1);
    options.overwrite = true;
    ck_assert_int_eq(mkdir("src/d", 0755), 0);
    ck_assert_int_eq(mkfifo("src/fifo", 0600), 0);
    static const char *const outputs[] = {"src/d",     "src/d/", "src/fifo", "/dev/null",
                                          "nowhere/x", "",       "src/.."};
    static const int errors[] = {EISDIR, EISDIR, EEXIST, EEXIST, ENOENT, EISDIR, EISDIR};
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        options.output = outputs[i];
        ck_assert_msg(pack(&options) == -errors[i], "%s: %s", outputs[i], fault.what);
    }
    check_nothing_left();
}
END_TEST

START_TEST(a_link_to_the_output_is_followed)
{
    make_file("src/f", 10);
    ck_assert_int_eq(mkdir("src/d", 0755), 0);
    make_file("src/d/real", 3);
    ck_assert_int_eq(symlink("src/d/real", "out.tar"), 0);
    pack_src(1);
    struct stat st;
    ck_assert_int_eq(lstat("out.tar", &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    open_archive("out.tar");
    ck_assert_str_eq(listing(trailer, "/"), "d f ");
    ck_assert_str_eq(listing(trailer, "d"), ""); /* not a former self either */
    close_archive();
}
END_TEST

START_TEST(the_output_does_not_pack_itself)
{
    make_file("src/f", 10);
    make_file("src/out.tar", 5 << 20);
    for (unsigned threads = 1; threads < 4; threads++) {
        struct pack_options options = options_for(threads);
        options.output = "src/out.tar";
        options.overwrite = true;
        ck_assert_int_eq(pack(&options), 0);
        ck_assert_uint_eq(reports.notes, 2); /* the one to be, and the one that was */
        ck_assert_uint_eq(result.problems, 0);
        open_archive("src/out.tar");
        ck_assert_str_eq(listing(trailer, "/"), "f ");
        close_archive();
    }
}
END_TEST

START_TEST(a_name_of_255_bytes_is_an_output)
{
    char name[256] = {0};
    memset(name, 'o', 255);
    struct pack_options options = options_for(1);
    options.output = name;
    ck_assert_int_eq(pack(&options), 0);
    ck_assert_int_eq(unlink(name), 0);
    check_nothing_left();
}
END_TEST

START_TEST(a_full_disk_leaves_nothing)
{
    make_file("src/f", 3 << 20);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small = {1 << 20, 0};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    for (unsigned threads = 1; threads < 4; threads++) {
        struct pack_options options = options_for(threads);
        ck_assert_int_eq(pack(&options), -EFBIG);
        ck_assert_str_eq(fault.member, "");
        check_nothing_left();
    }
    setrlimit(RLIMIT_FSIZE, &before);
}
END_TEST

static _Atomic int stop;

static void set_stop(void)
{
    stop = SIGTERM;
}

START_TEST(a_stop_ends_it_and_leaves_nothing)
{
    make_tree();
    make_file("src/a", 5 << 20);
    for (unsigned threads = 1; threads < 4; threads++) {
        struct pack_options options = options_for(threads);
        stop = 0;
        happening = set_stop;
        options.progress = on_progress;
        options.stop = &stop;
        ck_assert_int_eq(pack(&options), -EINTR);
        check_nothing_left();
    }
    /* Before anything was done. */
    struct pack_options options = options_for(1);
    options.stop = &stop;
    ck_assert_int_eq(pack(&options), -EINTR);
    check_nothing_left();
}
END_TEST

/* ---- sources that are none ---- */

START_TEST(what_is_no_directory_is_refused)
{
    static const char *const file[] = {"src/file"}, *const nothing[] = {"nothing"};
    static const char *const same[] = {"src/a", "src/b/a"};
    make_file("src/file", 3);
    mkdir("src/a", 0755);
    mkdir("src/b", 0755);
    mkdir("src/b/a", 0755);
    struct pack_options options = options_for(1);
    options.sources = file;
    ck_assert_int_eq(pack(&options), -ENOTDIR);
    ck_assert_str_eq(fault.member, "src/file");
    options.sources = nothing;
    ck_assert_int_eq(pack(&options), -ENOENT);
    options.sources = same;
    options.source_count = 2;
    ck_assert_int_eq(pack(&options), -EEXIST);
    check_nothing_left();
}
END_TEST

START_TEST(the_default_name_is_the_sources)
{
    static const char *const cases[][2] = {{"src", "src.onepot.tar"},
                                           {"/a/b/", "b.onepot.tar"},
                                           {"x///", "x.onepot.tar"},
                                           {"src/.", "src.onepot.tar"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *name = NULL;
        ck_assert_int_eq(pack_default_output(cases[i][0], false, &name), 0);
        ck_assert_str_eq(name, cases[i][1]);
        free(name);
    }
    char *name = NULL;
    ck_assert_int_eq(pack_default_output("/", false, &name), -EINVAL);
}
END_TEST

static TCase *new_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, NULL);
    suite_add_tcase(suite, tests);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("pack");
    TCase *tests = new_case(suite, "content");
    tcase_add_test(tests, all_that_is_in_the_tree_is_in_the_archive);
    tcase_add_test(tests, an_empty_tree_is_an_archive);
    tcase_add_test(tests, the_bytes_do_not_depend_on_the_number_of_threads);
    tcase_add_test(tests, read_as_a_plain_tar_it_has_the_same_index);
    tcase_add_test(tests, several_sources_are_folders_of_the_root);
    tcase_add_test(tests, a_source_that_is_a_link_is_followed_and_a_link_inside_is_not);
    tcase_add_test(tests, deep_trees_need_few_descriptors);
    tcase_add_test(tests, twenty_thousand_files_lie_in_one_folder);

    tests = new_case(suite, "problems");
    tcase_add_test(tests, a_socket_is_left_out_with_a_note);
    tcase_add_test(tests, what_may_not_be_read_is_told_and_the_rest_is_there);
    tcase_add_test(tests, a_file_that_vanishes_is_told_by_name);
    tcase_add_test(tests, a_link_that_takes_the_place_of_a_file_is_not_followed);
    tcase_add_test(tests, a_link_that_takes_the_place_of_a_folder_is_not_followed);
    tcase_add_test(tests, a_file_that_shrinks_is_filled_with_zeros);
    tcase_add_test(tests, a_file_that_grows_is_cut);
    tcase_add_test(tests, strict_fails_at_the_first_problem_and_leaves_nothing);

    tests = new_case(suite, "output");
    tcase_add_test(tests, an_archive_that_exists_is_kept);
    tcase_add_test(tests, an_archive_that_comes_to_exist_meanwhile_is_kept);
    tcase_add_test(tests, only_files_can_be_replaced);
    tcase_add_test(tests, a_link_to_the_output_is_followed);
    tcase_add_test(tests, the_output_does_not_pack_itself);
    tcase_add_test(tests, a_name_of_255_bytes_is_an_output);
    tcase_add_test(tests, a_full_disk_leaves_nothing);
    tcase_add_test(tests, a_stop_ends_it_and_leaves_nothing);

    tests = new_case(suite, "sources");
    tcase_add_test(tests, what_is_no_directory_is_refused);
    tcase_add_test(tests, the_default_name_is_the_sources);
    return run_suite(suite);
}
