/*
 * Every variety of tar, as GNU tar, bsdtar, Python and nobody writes it: the index
 * has to show what extraction leaves behind, and hostile ones are refused.
 *
 * tests/data/make_tars.py makes the archives and extracts them; here the index of each
 * is compared with the extracted tree, through the public functions alone.
 */
#include <check.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "backend.h"
#include "cleanup.h"
#include "format_numbers.h"
#include "suite.h"

static char folder[PATH_MAX]; /* of the archives */

static void run_command(const char *command)
{
    int status = system(command);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "failed: %s", command);
}

static void make_archives(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/onepot-tar-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char command[PATH_MAX + 200];
    snprintf(command, sizeof(command), "python3 '%s/make_tars.py' '%s'", TEST_DATA_DIR, folder);
    run_command(command);
}

static void remove_archives(void)
{
    char command[PATH_MAX + 40];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    run_command(command);
}

/* ---- indexing ---- */

struct opened {
    struct source *source;
    struct index *index;
    struct progress progress;
};

static bool ignores_zeros; /* a wish of the test */

static int index_source(struct source *source, struct fault *fault, struct opened *ret_opened)
{
    struct builder *builder = NULL;
    struct builder_header header = {.format = FORMAT_TAR,
                                    .archive_bytes = source_size(source),
                                    .ignores_zeros = ignores_zeros};
    uint64_t len = 0;
    ck_assert_int_eq(builder_new(&builder), 0);
    builder_set_archive_size(builder, source_size(source));
    auto_close int fd = memfd_create("index", MFD_CLOEXEC);
    memset(&ret_opened->progress, 0, sizeof(ret_opened->progress));
    int r = backend_tar.index(source, builder, &header, &ret_opened->progress, fault);
    if (r == 0)
        r = builder_write(builder, &header, fd, 0, fault, &len);
    builder_free(builder);
    if (r < 0)
        return r;
    struct source *image = NULL;
    ck_assert_int_eq(source_from_fd(steal_fd(&fd), "index", &image), 0);
    r = index_open(image, 0, len, fault, &ret_opened->index);
    source_close(image);
    ret_opened->source = source;
    return r;
}

static int open_path(const char *path, struct fault *fault, struct opened *ret_opened)
{
    struct source *source = NULL;
    int r = source_open(path, fault, &source);
    ck_assert_int_eq(r, 0);
    r = index_source(source, fault, ret_opened);
    if (r < 0)
        source_close(source);
    return r;
}

static void close_opened(struct opened *o)
{
    index_close(o->index);
    source_close(o->source);
}

static void must_open(const char *name, struct opened *o)
{
    char path[PATH_MAX + 300], line[1024];
    struct fault fault = {0};
    snprintf(path, sizeof(path), "%s/%s.tar", folder, name);
    int r = open_path(path, &fault, o);
    fault_describe(&fault, r, path, line, sizeof(line));
    ck_assert_msg(r == 0, "%s", line);
}

/* ---- comparison with a tree ---- */

struct comparison {
    const struct opened *opened;
    const char *name; /* of the archive, for messages */
    ino_t *inodes;    /* of the tree, by position in the index */
    unsigned entries;
    bool root_is_told;     /* the archive has the root's attributes */
    bool folders_are_told; /* and those of all other directories */
};

#define EQUAL(c, path, a, b)                                                                   \
    ck_assert_msg((long long)(a) == (long long)(b), "%s: %s: %s: %lld instead of %lld",        \
                  (c)->name, path, #a, (long long)(a), (long long)(b))

static void read_range(const struct opened *o, const struct extent *e, uint8_t *buf, size_t len)
{
    if (e->kind == EXTENT_HOLE)
        memset(buf, 0, len);
    else
        ck_assert_int_eq(source_read(o->source, buf, len, e->source_offset), 0);
}

/* Holes of the index against zeros (or holes) of the file, bytes against bytes. */
static void compare_content(struct comparison *c, const char *path, uint32_t position,
                            const struct node *node)
{
    static uint8_t ours[1 << 16], theirs[1 << 16];
    auto_close int fd = open(path, O_RDONLY);
    ck_assert_msg(fd >= 0, "%s: %s", c->name, path);
    uint64_t data_bytes = 0;
    for (uint64_t at = 0; at < node->size_bytes;) {
        struct extent e;
        ck_assert_int_eq(index_extent(c->opened->index, position, at, &e), 0);
        ck_assert_uint_gt(e.length, 0);
        if (e.kind == EXTENT_STORED)
            data_bytes += e.length;
        for (uint64_t done = 0; done < e.length;) {
            uint64_t left = e.length - done;
            off_t data = lseek(fd, (off_t)(at + done), SEEK_DATA);
            if (e.kind == EXTENT_HOLE && (data < 0 || (uint64_t)data >= at + e.length))
                break; /* a hole there too */
            if (e.kind == EXTENT_HOLE && (uint64_t)data > at + done) {
                done = (uint64_t)data - at;
                continue;
            }
            size_t len = left < sizeof(ours) ? (size_t)left : sizeof(ours);
            struct extent part = e;
            part.source_offset += done;
            read_range(c->opened, &part, ours, len);
            ck_assert_int_eq(pread(fd, theirs, len, (off_t)(at + done)), (ssize_t)len);
            ck_assert_msg(memcmp(ours, theirs, len) == 0, "%s: %s: content at %llu", c->name,
                          path, (unsigned long long)(at + done));
            done += len;
        }
        at += e.length;
    }
    EQUAL(c, path, node->data_bytes, data_bytes);
    EQUAL(c, path, node->has_holes, data_bytes < node->size_bytes);
}

static void compare_xattrs(struct comparison *c, const char *path, uint32_t position)
{
    char list[8192], value[8192];
    ssize_t len = llistxattr(path, list, sizeof(list));
    unsigned theirs = 0, ours = 0;
    for (char *name = list; len > 0 && name < list + len; name += strlen(name) + 1) {
        if (strncmp(name, "user.", 5) != 0)
            continue;
        struct xattr x = {0};
        ssize_t value_len = lgetxattr(path, name, value, sizeof(value));
        ck_assert_int_ge(value_len, 0);
        int r = index_xattr_get(c->opened->index, position, name, strlen(name), &x);
        ck_assert_msg(r == 0, "%s: %s: no attribute %s", c->name, path, name);
        EQUAL(c, path, x.value_len, value_len);
        ck_assert_int_eq(memcmp(x.value, value, x.value_len), 0);
        theirs++;
    }
    struct xattr x;
    for (uint64_t cursor = 0; index_xattr_next(c->opened->index, position, &cursor, &x) == 0;)
        ours++;
    EQUAL(c, path, ours, theirs);
}

static void compare_node(struct comparison *c, const char *path, uint32_t position)
{
    struct node node;
    struct stat st;
    ck_assert_int_eq(index_node(c->opened->index, position, &node), 0);
    ck_assert_msg(lstat(path, &st) == 0, "%s: %s is not in the tree", c->name, path);
    EQUAL(c, path, node.mode & S_IFMT, st.st_mode & S_IFMT);
    bool told = position == INDEX_ROOT ? c->root_is_told : c->folders_are_told;
    if (told || !S_ISDIR(node.mode)) {
        EQUAL(c, path, node.mode, st.st_mode);
        EQUAL(c, path, node.mtime_sec, st.st_mtim.tv_sec);
        EQUAL(c, path, node.mtime_nsec, st.st_mtim.tv_nsec);
        if (geteuid() == 0) {
            EQUAL(c, path, node.uid, st.st_uid);
            EQUAL(c, path, node.gid, st.st_gid);
        }
    }
    if (S_ISCHR(node.mode) || S_ISBLK(node.mode)) {
        EQUAL(c, path, node.rdev_major, major(st.st_rdev));
        EQUAL(c, path, node.rdev_minor, minor(st.st_rdev));
    }
    EQUAL(c, path, node.nlink, st.st_nlink);
    if (!S_ISDIR(node.mode)) {
        /* Names that share an inode there share one here, and the other way round. */
        ino_t *known = &c->inodes[node.position];
        EQUAL(c, path, *known == 0 || *known == st.st_ino, true);
        *known = st.st_ino;
    }
    compare_xattrs(c, path, position);
    if (S_ISREG(node.mode)) {
        EQUAL(c, path, node.size_bytes, st.st_size);
        compare_content(c, path, position, &node);
    }
    if (S_ISLNK(node.mode)) {
        char theirs[PATH_MAX];
        const char *ours = NULL;
        size_t len = 0;
        ssize_t n = readlink(path, theirs, sizeof(theirs));
        ck_assert_int_eq(index_symlink(c->opened->index, position, &ours, &len), 0);
        EQUAL(c, path, len, n);
        ck_assert_int_eq(memcmp(ours, theirs, len), 0);
    }
}

/* Compares the directory at `path`; the working directory is the tree's root. */
static void compare_directory(struct comparison *c, const char *path, uint32_t directory)
{
    uint32_t first = 0, count = 0;
    compare_node(c, path, directory);
    ck_assert_int_eq(index_children(c->opened->index, directory, &first, &count), 0);
    unsigned theirs = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *d; (d = readdir(dir));)
        theirs += strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
    closedir(dir);
    EQUAL(c, path, count, theirs);

    for (uint32_t i = first; i < first + count; i++) {
        const char *name = NULL;
        size_t len = 0;
        struct node node;
        char child[PATH_MAX];
        uint32_t found;
        ck_assert_int_eq(index_name(c->opened->index, i, &name, &len), 0);
        ck_assert_int_eq(index_lookup(c->opened->index, directory, name, len, &found), 0);
        ck_assert_uint_eq(found, i);
        snprintf(child, sizeof(child), "%s/%.*s", path, (int)len, name);
        ck_assert_int_eq(index_node(c->opened->index, i, &node), 0);
        c->entries++;
        if (S_ISDIR(node.mode))
            compare_directory(c, child, i);
        else
            compare_node(c, child, i);
    }
}

static void compare_with_tree(const char *name, const struct opened *o)
{
    char tree[PATH_MAX + 300];
    const struct index_info *info = index_info(o->index);
    struct comparison c = {
        .opened = o,
        .name = name,
        .root_is_told = strcmp(name, "gnu_dot") == 0 || strcmp(name, "dots") == 0,
        /* tar loses the times of those that the others have */
        .folders_are_told = strncmp(name, "gnu_", 4) == 0 || strncmp(name, "bsd_", 4) == 0 ||
                            strncmp(name, "python_", 7) == 0 ||
                            strcmp(name, "parent_later") == 0,
    };
    c.inodes = calloc(info->entries, sizeof(*c.inodes));
    snprintf(tree, sizeof(tree), "%s/%s.x", folder, name);
    ck_assert_int_eq(chdir(tree), 0);
    compare_directory(&c, ".", INDEX_ROOT);
    ck_assert_uint_eq(c.entries + 1, info->entries);
    free(c.inodes);
    ck_assert_int_eq(chdir("/"), 0);
}

/* Calls fn for each NAME.tar; those that tar did not extract only if asked for. */
static void for_each_archive(bool bad, void (*fn)(const char *name))
{
    DIR *dir = opendir(folder);
    ck_assert_ptr_nonnull(dir);
    unsigned count = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        size_t len = strlen(d->d_name);
        char name[256];
        if (len < 5 || strcmp(d->d_name + len - 4, ".tar") != 0 ||
            (strncmp(d->d_name, "bad_", 4) == 0) != bad)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(len - 4), d->d_name);
        fn(name);
        count++;
    }
    closedir(dir);
    ck_assert_uint_gt(count, 5);
}

static void check_good(const char *name)
{
    struct opened o = {0};
    char tree[PATH_MAX + 300];
    snprintf(tree, sizeof(tree), "%s/%s.x", folder, name);
    must_open(name, &o);
    if (access(tree, F_OK) == 0)
        compare_with_tree(name, &o);
    close_opened(&o);
}

START_TEST(index_shows_what_extraction_leaves_behind)
{
    for_each_archive(false, check_good);
}
END_TEST

START_TEST(names_are_raw_bytes_in_any_locale)
{
    static const char *const locales[] = {"C.UTF-8", "en_US.UTF-8", "C", ""};
    setenv("LANG", "C.UTF-8", 1);
    for (size_t i = 0; i < sizeof(locales) / sizeof(locales[0]); i++) {
        if (!setlocale(LC_ALL, locales[i]))
            continue; /* C.UTF-8 and C are everywhere */
        check_good("gnu_pax");
        check_good("bsd_pax");
        check_good("python_pax");
        check_good("pax_binary_name");
    }
    setlocale(LC_ALL, "C");
}
END_TEST

START_TEST(archives_on_a_network_are_read_in_pieces)
{
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    for_each_archive(false, check_good);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

/* ---- single properties ---- */

static void lookup(const struct opened *o, const char *path, uint32_t *position,
                   struct node *node)
{
    ck_assert_int_eq(index_resolve(o->index, path, position), 0);
    ck_assert_int_eq(index_node(o->index, *position, node), 0);
}

static void check_xattr(const struct opened *o, const char *path, const char *name,
                        const void *value, size_t len)
{
    uint32_t position;
    struct node node;
    struct xattr x = {0};
    lookup(o, path, &position, &node);
    ck_assert_int_eq(index_xattr_get(o->index, position, name, strlen(name), &x), 0);
    ck_assert_uint_eq(x.value_len, len);
    ck_assert_int_eq(memcmp(x.value, value, len), 0);
}

START_TEST(attributes_of_both_forms_are_shown_once)
{
    struct opened o = {0};
    must_open("libarchive_xattr", &o);
    check_xattr(&o, "f", "user.a=b", "value", 5);
    check_xattr(&o, "f", "user.c", "later", 5);
    check_xattr(&o, "f", "user.empty", "", 0);
    struct xattr x;
    unsigned count = 0;
    uint32_t position;
    struct node node;
    lookup(&o, "f", &position, &node);
    for (uint64_t cursor = 0; index_xattr_next(o.index, position, &cursor, &x) == 0;)
        count++;
    ck_assert_uint_eq(count, 3);
    close_opened(&o);
}
END_TEST

/* What is too much for one file is left out and told of; it costs nobody the archive. */
START_TEST(more_attributes_than_a_list_of_names_holds_are_left_out)
{
    struct opened o = {0};
    must_open("many_xattrs", &o);
    check_xattr(&o, "f", "user.00000", "0", 1);
    check_xattr(&o, "f", "user.05956", "5956", 4);
    check_xattr(&o, "g", "user.x", "1", 1);
    uint32_t position;
    struct node node;
    struct xattr x;
    lookup(&o, "f", &position, &node);
    ck_assert_int_eq(index_xattr_get(o.index, position, "user.05957", 10, &x), -ENODATA);
    ck_assert_uint_gt(index_xattrs_left_out(o.index), 0);
    close_opened(&o);
}
END_TEST

START_TEST(access_lists_are_shown_as_the_kernel_has_them)
{
    static const uint8_t access[] = {
        2, 0,    0,   0,   0x01, 0,    6,    0, 255, 255, 255, 255, 0x02, 0,    4,
        0, 0xe8, 3,   0,   0,    0x04, 0,    0, 0,   255, 255, 255, 255,  0x10, 0,
        4, 0,    255, 255, 255,  255,  0x20, 0, 0,   0,   255, 255, 255,  255,
    };
    static const uint8_t inherited[] = {
        2, 0,   0,   0,   0x01, 0,    7,    0, 255, 255, 255, 255, 0x04, 0,    5,
        0, 255, 255, 255, 255,  0x08, 0,    7, 0,   7,   0,   0,   0,    0x10, 0,
        7, 0,   255, 255, 255,  255,  0x20, 0, 0,   0,   255, 255, 255,  255,
    };
    struct opened o = {0};
    must_open("acl", &o);
    check_xattr(&o, "f", "system.posix_acl_access", access, sizeof(access));
    check_xattr(&o, "d", "system.posix_acl_default", inherited, sizeof(inherited));
    uint32_t position;
    struct node node;
    lookup(&o, "f", &position, &node);
    ck_assert_uint_eq(node.mode, S_IFREG | 0640); /* the group's bits are the mask */
    close_opened(&o);
}
END_TEST

START_TEST(owners_that_do_not_fit_are_nobody)
{
    struct opened o = {0};
    uint32_t position;
    struct node node;
    must_open("large_owner", &o);
    lookup(&o, "f", &position, &node);
    ck_assert_uint_eq(node.uid, 65534);
    ck_assert_ptr_nonnull(strstr(o.progress.note, "65534"));
    close_opened(&o);
}
END_TEST

/* One behind a member's own header is not asked for, whether that header is read again or not.
 */
START_TEST(a_global_header_behind_an_extended_one_does_not_count)
{
    struct opened o = {0};
    must_open("pax_global_behind", &o);
    for (size_t i = 0; i < 2; i++) {
        uint32_t position;
        struct node node;
        lookup(&o, i ? "g" : "f", &position, &node);
        ck_assert_uint_ne(node.uid, 1234);
        ck_assert_int_eq(node.mtime_sec < 0, i == 0);
    }
    close_opened(&o);
}
END_TEST

START_TEST(remarks_tell_of_odd_ends)
{
    static const struct {
        const char *name;
        const char *remark;
    } cases[] = {
        {"no_end", "no end-of-archive marker"},
        {"lone_zero_block", NULL}, /* which count as left out */
        {"concatenated", NULL},
        {"pax_global_path", "are not applied"},
        {"pax_global_behind", NULL},
        {"pax_global_times", NULL},
        {"pax_global", NULL},
        {"rubbish_behind", NULL},
        {"empty", NULL},
        {"empty_block", NULL},
        {"empty_odd", NULL},
        {"empty_long", "nothing but zeros"},
        {"empty_file", "it is empty"},
        {"empty_label", NULL},
        {"empty_global", NULL},
        {"volume_gnu", NULL},
        {"gnu_pax", NULL},
        {"gnu_gnu", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct opened o = {0};
        must_open(cases[i].name, &o);
        if (cases[i].remark)
            ck_assert_msg(strstr(o.progress.note, cases[i].remark) != NULL, "%s: '%s'",
                          cases[i].name, o.progress.note);
        else
            ck_assert_str_eq(o.progress.note, "");
        close_opened(&o);
    }
}
END_TEST

START_TEST(members_behind_an_end_marker_are_counted_or_added)
{
    static const char *const names[] = {"lone_zero_block", "concatenated"};
    static const uint64_t offsets[] = {1536, 2048};
    for (size_t i = 0; i < 2; i++) {
        struct opened o = {0};
        struct fault why;
        uint64_t kinds[LEFT_OUT_KINDS], cursor = 0;
        uint32_t position;
        struct node node;
        ignores_zeros = false;
        must_open(names[i], &o);
        index_left_out_kinds(o.index, kinds);
        ck_assert_uint_eq(kinds[LEFT_OUT_BEHIND], 1);
        ck_assert_uint_eq(index_left_out(o.index), 1);
        ck_assert_int_eq(index_left_out_next(o.index, &cursor, &why), 0);
        ck_assert_str_eq(why.member, "ignored");
        ck_assert_uint_eq(why.offset, offsets[i]);
        ck_assert(!index_info(o.index)->has_joined);
        ck_assert_int_eq(index_resolve(o.index, "ignored", &position), -ENOENT);
        close_opened(&o);
        ignores_zeros = true;
        must_open(names[i], &o);
        ck_assert_uint_eq(index_left_out(o.index), 0);
        ck_assert(index_info(o.index)->has_joined);
        lookup(&o, "ignored", &position, &node);
        ck_assert_uint_eq(node.size_bytes, 1);
        close_opened(&o);
        ignores_zeros = false;
    }
}
END_TEST

/* ---- probing ---- */

static int probe(const char *name)
{
    char path[PATH_MAX + 300];
    struct fault fault = {0};
    struct source *source = NULL;
    const struct backend *backend = NULL;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(source_open(path, &fault, &source), 0);
    int r = backend_find(source, &fault, &backend, NULL);
    ck_assert_int_eq(r < 0, fault.err != 0);
    source_close(source);
    return r < 0 ? r : backend == &backend_tar;
}

static void check_probe(const char *name)
{
    char file[300];
    snprintf(file, sizeof(file), "%s.tar", name);
    ck_assert_msg(probe(file) == 1, "%s is not taken for a tar", name);
}

START_TEST(tars_are_known_and_others_are_not)
{
    for_each_archive(false, check_probe);
    ck_assert_int_eq(probe("packed.tar.gz"), 1);
    ck_assert_int_eq(probe("packed.tar.xz"), 1);
    ck_assert_int_eq(probe("frames.tar.zst"), 1);
    ck_assert_int_eq(probe("src/plain/large"), -ENOMSG);
    ck_assert_int_eq(probe("src/plain/empty"), -ENOMSG);
    ck_assert_int_eq(probe("src/plain/one"), -ENOMSG);
    ck_assert_int_eq(probe("src/sparse/all_hole"), 1); /* as GNU tar has it, and bsdtar */

    /* A header with a byte changed anywhere is none, but for unused bytes' sake. */
    uint8_t head[1024] = {0};
    char path[PATH_MAX + 300];
    snprintf(path, sizeof(path), "%s/twice.tar", folder);
    auto_close int fd = open(path, O_RDONLY);
    ck_assert_int_eq(pread(fd, head, 512, 0), 512);
    for (size_t i = 0; i < 512; i++) {
        head[i] ^= 0x15;
        struct source *source = NULL;
        ck_assert_int_eq(source_from_memory(head, sizeof(head), "flipped", &source), 0);
        ck_assert_int_eq(backend_tar.probe(source, head, sizeof(head)),
                         i == 155); /* behind the sum */
        source_close(source);
        head[i] ^= 0x15;
    }
}
END_TEST

START_TEST(names_of_archives_lose_their_endings)
{
    static const struct {
        const char *name, *stem;
    } names[] = {{"a.tar", "a"},
                 {"a.tar.gz", "a"},
                 {"a.b.tar.lzma", "a.b"},
                 {"a.onepot.tar", "a"},
                 {"a.onepot.tar.zst", "a"},
                 {"a.tgz", "a"},
                 {"a.zip", "a"},
                 {"a.onepot", "a.onepot"},
                 {"a.gz", "a.gz"},
                 {"a.tar.new", "a.tar.new"},
                 {"tar", "tar"},
                 {".tar", ".tar"},
                 {".tar.gz", ".tar.gz"},
                 {".onepot.tar", ".onepot"},
                 {"..tar", "..tar"},
                 {"...zip", "...zip"},
                 {"....zip", "..."},
                 {"", ""},
                 {"a.", "a."}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ck_assert_msg(backend_stem(names[i].name, strlen(names[i].name)) ==
                          strlen(names[i].stem),
                      "%s", names[i].name);
    ck_assert_uint_eq(backend_stem("a.tar.gz", 5), 1); /* no NUL is needed */
}
END_TEST

/* ---- hostile archives ---- */

static void check_bad(const char *name)
{
    char path[PATH_MAX + 300], line[1024];
    struct fault fault = {0};
    struct opened o = {0};
    snprintf(path, sizeof(path), "%s/%s.tar", folder, name);
    int r = open_path(path, &fault, &o);
    ck_assert_msg(r < 0, "%s was accepted", name);
    fault_describe(&fault, r, name, line, sizeof(line));
    ck_assert_msg(fault.err == -r && fault.what[0] && fault.member[0] &&
                      fault.offset != FAULT_NO_OFFSET,
                  "%s: no member or offset in: %s", name, line);
}

/* The second of the members can't be shown; all others are as tar extracts them. */
static void check_part(const char *name)
{
    struct opened o = {0};
    struct fault why = {0};
    uint64_t cursor = 0;
    uint32_t position;
    struct node node;
    if (strncmp(name, "part_", 5) != 0)
        return;
    must_open(name, &o);
    ck_assert_msg(index_left_out(o.index) == 1, "%s: %llu are left out", name,
                  (unsigned long long)index_left_out(o.index));
    ck_assert_int_eq(index_left_out_next(o.index, &cursor, &why), 0);
    ck_assert_msg(why.what[0], "%s: no reason", name);
    ck_assert_int_eq(!why.member[0], strcmp(name, "part_no_name") == 0);
    ck_assert_msg(why.offset == 512 || why.offset == 1024, "%s: its header is at %llu", name,
                  (unsigned long long)why.offset);
    ck_assert_int_eq(index_left_out_next(o.index, &cursor, &why), -ENOENT);
    lookup(&o, "z", &position, &node);
    ck_assert_uint_eq(node.size_bytes, 4);
    close_opened(&o);
}

START_TEST(members_that_cannot_be_shown_are_left_out)
{
    for_each_archive(false, check_part);
    struct opened o = {0};
    struct fault why;
    uint64_t cursor = 0;
    must_open("twice", &o);
    ck_assert_uint_eq(index_left_out(o.index), 0);
    ck_assert_int_eq(index_left_out_next(o.index, &cursor, &why), -ENOENT);
    close_opened(&o);
}
END_TEST

START_TEST(first_volumes_are_shown_without_the_member_that_goes_on)
{
    static const char *const names[] = {"volume_gnu", "volume_posix"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct opened o = {0};
        struct fault why = {0};
        uint64_t cursor = 0;
        uint32_t position;
        struct node node;
        must_open(names[i], &o);
        lookup(&o, "volume/a", &position, &node);
        ck_assert_uint_eq(node.size_bytes, 5000);
        ck_assert_uint_eq(index_left_out(o.index), 1);
        ck_assert_int_eq(index_left_out_next(o.index, &cursor, &why), 0);
        ck_assert_str_eq(why.member, "volume/b");
        ck_assert_ptr_nonnull(strstr(why.what, "of its 30000 bytes: this is the first volume"));
        close_opened(&o);
    }
}
END_TEST

START_TEST(a_time_that_is_no_number_is_0)
{
    struct opened o = {0};
    uint32_t position;
    struct node node;
    must_open("text_mtime", &o);
    lookup(&o, "f", &position, &node);
    ck_assert_int_eq(node.mtime_sec, 0);
    lookup(&o, "g", &position, &node);
    ck_assert_int_eq(node.mtime_sec, 0);
    ck_assert_uint_eq(node.size_bytes, 1);
    close_opened(&o);
}
END_TEST

START_TEST(a_file_whose_name_ends_in_a_slash_does_not_hide_what_follows)
{
    struct opened o = {0};
    uint32_t position;
    struct node node;
    must_open("file_with_slash", &o);
    ck_assert_uint_eq(index_info(o.index)->entries, 4);
    lookup(&o, "g", &position, &node);
    ck_assert(S_ISDIR(node.mode));
    lookup(&o, "z", &position, &node);
    ck_assert_uint_eq(node.size_bytes, 1);
    close_opened(&o);
}
END_TEST

START_TEST(the_size_of_a_folder_is_no_data)
{
    struct opened o = {0};
    uint32_t position;
    struct node node;
    must_open("folder_quota", &o);
    ck_assert_uint_eq(index_info(o.index)->entries, 5);
    lookup(&o, "e", &position, &node);
    ck_assert(S_ISDIR(node.mode));
    lookup(&o, "e/f", &position, &node);
    ck_assert_uint_eq(node.size_bytes, 1);
    close_opened(&o);
}
END_TEST

START_TEST(members_below_links_are_where_the_links_lead)
{
    static const struct {
        const char *name, *path;
        uint64_t size;
    } cases[] = {
        {"through", "usr/lib/d/z", 1},
        {"through_missing", "usr/lib/x", 1},
        {"through_missing", "usr/lib/y", 1},
        {"through_dots", "usr/lib/x", 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct opened o = {0};
        uint32_t position;
        struct node node;
        must_open(cases[i].name, &o);
        lookup(&o, cases[i].path, &position, &node);
        ck_assert_uint_eq(node.size_bytes, cases[i].size);
        ck_assert_uint_eq(index_left_out(o.index), 0);
        close_opened(&o);
    }
}
END_TEST

START_TEST(hostile_archives_are_refused_by_member_and_offset)
{
    for_each_archive(true, check_bad);
}
END_TEST

/* Read all that an index has: whatever it says, nothing may crash. */
static void walk_everything(const struct opened *o)
{
    const struct index_info *info = index_info(o->index);
    for (uint32_t i = 0; i < info->entries; i++) {
        struct node node;
        struct extent e;
        struct xattr x;
        char path[8192];
        size_t len;
        const char *target;
        ck_assert_int_eq(index_node(o->index, i, &node), 0);
        ck_assert_int_eq(index_path(o->index, i, path, sizeof(path), &len), 0);
        if (S_ISLNK(node.mode))
            ck_assert_int_eq(index_symlink(o->index, i, &target, &len), 0);
        for (uint64_t at = 0; S_ISREG(node.mode) && at < node.size_bytes; at += e.length) {
            ck_assert_int_eq(index_extent(o->index, i, at, &e), 0);
            ck_assert_uint_gt(e.length, 0);
            if (e.kind == EXTENT_STORED)
                ck_assert_uint_le(e.source_offset + e.length, source_size(o->source));
        }
        for (uint64_t cursor = 0; index_xattr_next(o->index, i, &cursor, &x) == 0;)
            ;
    }
}

static int try_bytes(const uint8_t *bytes, size_t len, struct fault *fault, char *ret_note)
{
    struct source *source = NULL;
    struct opened o = {0};
    memset(fault, 0, sizeof(*fault));
    int fd = memfd_create("test", MFD_CLOEXEC); /* not sealed: that takes long */
    ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
    ck_assert_int_eq(source_from_fd(fd, "test", &source), 0);
    int r = index_source(source, fault, &o);
    if (r == 0) {
        walk_everything(&o);
        memcpy(ret_note, o.progress.note, sizeof(o.progress.note));
        index_close(o.index);
    } else {
        char line[1024];
        fault_describe(fault, r, "test", line, sizeof(line));
    }
    source_close(source);
    return r;
}

static uint8_t *read_archive(const char *name, size_t *ret_len)
{
    char path[PATH_MAX + 300];
    struct fault fault = {0};
    struct source *source = NULL;
    snprintf(path, sizeof(path), "%s/%s.tar", folder, name);
    ck_assert_int_eq(source_open(path, &fault, &source), 0);
    size_t len = (size_t)source_size(source);
    uint8_t *bytes = malloc(len);
    ck_assert_int_eq(source_read(source, bytes, len, 0), 0);
    source_close(source);
    *ret_len = len;
    return bytes;
}

/* Small archives that have all kinds of headers between them. */
static const char *const small[] = {
    "twice",
    "hard_link_with_data",
    "hard_link_to_replaced",
    "pax_path",
    "pax_size",
    "binary_size",
    "libarchive_xattr",
    "acl",
    "bad_sparse_past_data",
    "pax_global",
};

START_TEST(truncated_archives_are_errors_or_say_so)
{
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
        size_t len;
        auto_free uint8_t *bytes = read_archive(small[i], &len);
        for (size_t cut = 1; cut < len; cut += cut % 512 == 511 ? 1 : 2) {
            struct fault fault;
            char note[256] = "";
            int r = try_bytes(bytes, cut, &fault, note);
            if (r == 0) /* between members, or in the end marker */
                ck_assert_msg(cut % 512 == 0 || cut > len - 1024, "%s cut to %zu", small[i],
                              cut);
            if (r == 0 && cut <= len - 1024)
                ck_assert_msg(strstr(note, "no end-of-archive marker") != NULL,
                              "%s cut to %zu of %zu: '%s'", small[i], cut, len, note);
            if (r < 0)
                ck_assert_msg(fault.err != 0, "%s cut to %zu", small[i], cut);
        }
    }
}
END_TEST

START_TEST(truncation_names_the_last_member_and_the_offset)
{
    size_t len;
    struct fault fault;
    char note[256];
    auto_free uint8_t *bytes = read_archive("twice", &len);
    /* d/ 0-511, d/f 512-1535, g 1536-2559, d/f again */
    ck_assert_int_eq(try_bytes(bytes, 512 + 100, &fault, note), -EUCLEAN);
    ck_assert_str_eq(fault.member, "d/");
    ck_assert_uint_eq(fault.offset, 612);
    ck_assert_int_eq(try_bytes(bytes, 1024 + 3, &fault, note), -EUCLEAN);
    ck_assert_str_eq(fault.member, "d/f");
    ck_assert_ptr_nonnull(strstr(fault.what, "and 3 are left"));
    ck_assert_int_eq(try_bytes(bytes, 2048 + 5, &fault, note), -EUCLEAN); /* in the padding */
    ck_assert_str_eq(fault.member, "g");
    ck_assert_ptr_nonnull(strstr(fault.what, "truncated"));
}
END_TEST

START_TEST(zeros_before_something_else_are_no_empty_tar)
{
    auto_free uint8_t *bytes = calloc(1, 200000);
    struct fault fault = {0};
    char note[256];
    ck_assert_int_eq(try_bytes(bytes, 200000, &fault, note), 0);
    bytes[150000] = 1;
    ck_assert_int_eq(try_bytes(bytes, 200000, &fault, note), -EUCLEAN);
    ck_assert_ptr_nonnull(strstr(fault.what, "other bytes follow"));
}
END_TEST

START_TEST(flipped_bytes_are_errors_or_harmless)
{
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
        size_t len;
        auto_free uint8_t *bytes = read_archive(small[i], &len);
        for (size_t at = 0; at < len; at++) {
            if (bytes[at] == 0 && at % 7 != 0)
                continue; /* padding, mostly */
            static const uint8_t flips[] = {0x01, 0x80, 0x10, 0xff};
            struct fault fault;
            char note[256];
            uint8_t before = bytes[at];
            /* Another flip of the same field in each header. */
            bytes[at] = before ^ flips[(at + at / 512) % sizeof(flips)];
            int r = try_bytes(bytes, len, &fault, note);
            ck_assert(r == 0 || fault.err != 0);
            bytes[at] = before;
        }
    }
}
END_TEST

/* The header's sum made right again, so that the change reaches the parser. */
static void fix_sum(uint8_t *block)
{
    uint32_t sum = 0;
    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum);
}

/* The next byte of a header to change: one of nine in names, each of all other fields. */
static size_t next_in_header(size_t at)
{
    bool in_name = at < 100 || (at > 156 && at < 257) || (at >= 265 && at < 329);
    return at + (in_name ? 9 : 1);
}

START_TEST(changed_headers_with_right_sums_are_errors_or_harmless)
{
    static const uint8_t values[] = {0, ' ', '0', '7', '9', 'x', '/', '.', 0x80, 0xff};
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
        size_t len;
        auto_free uint8_t *bytes = read_archive(small[i], &len);
        for (size_t block = 0; block + 1024 < len; block += 512) {
            uint8_t before[512];
            memcpy(before, bytes + block, 512);
            if (before[257] != 'u' && before[100] != '0')
                continue; /* data */
            for (size_t at = 0; at < 345; at = next_in_header(at)) {
                for (size_t k = 0; k < sizeof(values); k++) {
                    struct fault fault;
                    char note[256];
                    bytes[block + at] = values[k];
                    fix_sum(bytes + block);
                    int r = try_bytes(bytes, len, &fault, note);
                    ck_assert_msg(r == 0 || fault.err != 0, "%s: %02x at %zu of block %zu: %d",
                                  small[i], values[k], at, block, r);
                    memcpy(bytes + block, before, 512);
                }
            }
        }
    }
}
END_TEST

/* ---- compressed ones ---- */

static int unpack(const char *name, int fd, struct fault *fault)
{
    char path[PATH_MAX + 300];
    struct source *source = NULL;
    struct progress progress = {0};
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (access(path, F_OK) < 0)
        return -ENOENT;
    ck_assert_int_eq(source_open(path, fault, &source), 0);
    int r = backend_tar.stream->unpack(source, fd, 0, UINT64_MAX, &progress, fault);
    if (r == 0)
        ck_assert_uint_eq(progress.bytes_done, progress.bytes_total);
    source_close(source);
    return r;
}

/* Reads a gzip file as opening does first: unpacking it would not check its sums. */
static int index_gzip(const char *name, struct fault *fault)
{
    char path[PATH_MAX + 300];
    struct source *source = NULL;
    struct builder *builder = NULL;
    struct builder_header header = {.format = FORMAT_TAR};
    struct progress progress = {0};
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(source_open(path, fault, &source), 0);
    ck_assert_int_eq(builder_new(&builder), 0);
    builder_set_archive_size(builder, source_size(source));
    int r = backend_tar.stream->index_packed(source, "gzip", NULL, NULL, builder, &header,
                                             &progress, fault);
    builder_free(builder);
    source_close(source);
    return r;
}

START_TEST(compressed_tars_unpack_to_the_same_bytes)
{
    static const char *const names[] = {
        "packed.tar.gz",  "packed.tar.bz2",      "packed.tar.xz", "packed.tar.zst",
        "packed.tar.lz4", "packed.tar.lzma",     "packed.tar.lz", "packed.tar.Z",
        "frames.tar.zst", "packed.tar.odd.lzma",
    };
    size_t len;
    auto_free uint8_t *expected = read_archive("gnu_gnu", &len);
    auto_free uint8_t *got = malloc(len);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct fault fault = {0};
        struct stat st;
        auto_close int fd = memfd_create("unpacked", MFD_CLOEXEC);
        int r = unpack(names[i], fd, &fault);
        if (r == -ENOENT || r == -ENOTSUP)
            continue; /* no such program or library here; gz to zst are tested below */
        ck_assert_msg(r == 0, "%s: %s", names[i], fault.what);
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_uint_eq((size_t)st.st_size, len);
        ck_assert_int_eq(pread(fd, got, len, 0), (ssize_t)len);
        ck_assert_msg(memcmp(got, expected, len) == 0, "%s", names[i]);
    }
    struct fault fault = {0};
    auto_close int fd = memfd_create("unpacked", MFD_CLOEXEC);
    ck_assert_int_eq(unpack("packed.tar.gz", fd, &fault), 0);
    ck_assert_int_eq(unpack("packed.tar.xz", fd, &fault), 0);
}
END_TEST

/* A libarchive that reads it is fine, too. */
START_TEST(large_dictionary_of_lzma_is_said_to_be_too_large)
{
    struct fault fault = {0};
    auto_close int fd = memfd_create("unpacked", MFD_CLOEXEC);
    int r = unpack("packed.tar.large.lzma", fd, &fault);
    ck_assert_msg(r == 0 || r == -ENOENT || r == -ENOTSUP, "%d %s", r, fault.what);
    if (r == -ENOTSUP)
        ck_assert_ptr_nonnull(strstr(fault.what, "unusual dictionary"));
}
END_TEST

START_TEST(compressed_files_without_a_tar_are_refused)
{
    static const char *const names[] = {
#ifdef HAVE_LIBDEFLATE /* else nothing tells it from damage */
        "nothing.gz",
#endif
        "not_tar.gz", "not_tar.zst"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct fault fault = {0};
        auto_close int fd = memfd_create("unpacked", MFD_CLOEXEC);
        int r = unpack(names[i], fd, &fault);
        if (r == -ENOENT)
            continue;
        ck_assert_msg(r == -ENOMSG, "%s: %d %s", names[i], r, fault.what);
        ck_assert_ptr_nonnull(strstr(fault.what, "no tar"));
    }
}
END_TEST

/* Zeros take no room, but time: there may be ten times as many. */
START_TEST(no_more_is_unpacked_than_is_allowed)
{
    static const struct {
        const char *name;
        uint64_t most;
        int expected;
    } cases[] = {
        {"packed.tar.gz", 100000, -E2BIG},
        {"zeros.tar.gz", 300000, 0},
        {"zeros.tar.gz", 100000, -E2BIG},
        {"zeros.tar.gz", UINT64_MAX, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[PATH_MAX + 300];
        struct fault fault = {0};
        struct progress progress = {0};
        struct source *source = NULL;
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].name);
        ck_assert_int_eq(source_open(path, &fault, &source), 0);
        auto_close int fd = memfd_create("unpacked", MFD_CLOEXEC);
        int r = backend_tar.stream->unpack(source, fd, 0, cases[i].most, &progress, &fault);
        ck_assert_int_eq(r, cases[i].expected);
        if (r < 0) {
            ck_assert_ptr_nonnull(strstr(fault.what, "unpacks to more than"));
            ck_assert_ptr_nonnull(strstr(fault.advice, "--max-ratio"));
            struct stat st;
            ck_assert_int_eq(fstat(fd, &st), 0);
            ck_assert_int_le(st.st_size, (off_t)cases[i].most);
        }
        source_close(source);
    }
}
END_TEST

START_TEST(damaged_compression_is_an_error)
{
    static const char *const names[] = {
#if defined(HAVE_LIBDEFLATE) && defined(HAVE_STREAMS) /* else nobody checks its sums */
        "packed.tar.gz",
#endif
        "packed.tar.xz",
        "packed.tar.zst",
        "packed.tar.bz2",
        "packed.tar.lz4"
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[PATH_MAX + 300], damaged[PATH_MAX + 300];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        snprintf(damaged, sizeof(damaged), "%s/damaged.%s", folder, names[i]);
        struct source *source = NULL;
        struct fault fault = {0};
        if (access(path, F_OK) < 0)
            continue;
        ck_assert_int_eq(source_open(path, &fault, &source), 0);
        size_t len = (size_t)source_size(source);
        auto_free uint8_t *bytes = malloc(len);
        ck_assert_int_eq(source_read(source, bytes, len, 0), 0);
        source_close(source);
        for (int kind = 0; kind < 2; kind++) {
            /*
             * Of gzip's sum, here: a change of its data may change the length as well, and then
             * it might be several streams. Those are told apart where they are read one by one.
             */
            bool is_gzip = strstr(names[i], ".gz") != NULL;
            if (kind == 0)
                bytes[is_gzip ? len - 8 : len / 2] ^= 0xff;
            auto_close int out = open(damaged, O_WRONLY | O_CREAT | O_TRUNC, 0600);
            size_t keep = kind == 1 ? len / 2 : len; /* the second time: truncated */
            ck_assert_int_eq(write(out, bytes, keep), (ssize_t)keep);
            auto_close int fd = memfd_create("unpacked", MFD_CLOEXEC);
            char name[64];
            snprintf(name, sizeof(name), "damaged.%s", names[i]);
            memset(&fault, 0, sizeof(fault));
            int r = is_gzip ? index_gzip(name, &fault) : unpack(name, fd, &fault);
            /* bzip2's blocks are known to be damaged only after their data was used. */
            bool is_late = strstr(name, ".bz2") != NULL && r == -ENOMSG;
            ck_assert_msg(r == -EUCLEAN || is_late, "%s kind %d: %d %s", name, kind, r,
                          fault.what);
            ck_assert_str_ne(fault.what, "");
        }
    }
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("tar");
    tcase_set_timeout(tests, 250);
    tcase_add_unchecked_fixture(tests, make_archives, remove_archives);
    tcase_add_test(tests, index_shows_what_extraction_leaves_behind);
    tcase_add_test(tests, names_are_raw_bytes_in_any_locale);
    tcase_add_test(tests, archives_on_a_network_are_read_in_pieces);
    tcase_add_test(tests, attributes_of_both_forms_are_shown_once);
    tcase_add_test(tests, more_attributes_than_a_list_of_names_holds_are_left_out);
    tcase_add_test(tests, access_lists_are_shown_as_the_kernel_has_them);
    tcase_add_test(tests, owners_that_do_not_fit_are_nobody);
    tcase_add_test(tests, a_global_header_behind_an_extended_one_does_not_count);
    tcase_add_test(tests, remarks_tell_of_odd_ends);
    tcase_add_test(tests, members_behind_an_end_marker_are_counted_or_added);
    tcase_add_test(tests, tars_are_known_and_others_are_not);
    tcase_add_test(tests, names_of_archives_lose_their_endings);
    tcase_add_test(tests, members_that_cannot_be_shown_are_left_out);
    tcase_add_test(tests, first_volumes_are_shown_without_the_member_that_goes_on);
    tcase_add_test(tests, a_time_that_is_no_number_is_0);
    tcase_add_test(tests, a_file_whose_name_ends_in_a_slash_does_not_hide_what_follows);
    tcase_add_test(tests, the_size_of_a_folder_is_no_data);
    tcase_add_test(tests, members_below_links_are_where_the_links_lead);
    tcase_add_test(tests, hostile_archives_are_refused_by_member_and_offset);
    tcase_add_test(tests, truncated_archives_are_errors_or_say_so);
    tcase_add_test(tests, truncation_names_the_last_member_and_the_offset);
    tcase_add_test(tests, zeros_before_something_else_are_no_empty_tar);
    tcase_add_test(tests, flipped_bytes_are_errors_or_harmless);
    tcase_add_test(tests, changed_headers_with_right_sums_are_errors_or_harmless);
    tcase_add_test(tests, compressed_tars_unpack_to_the_same_bytes);
    tcase_add_test(tests, large_dictionary_of_lzma_is_said_to_be_too_large);
    tcase_add_test(tests, compressed_files_without_a_tar_are_refused);
    tcase_add_test(tests, no_more_is_unpacked_than_is_allowed);
    tcase_add_test(tests, damaged_compression_is_an_error);

    Suite *suite = suite_create("tar");
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
