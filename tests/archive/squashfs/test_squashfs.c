/*
 * SquashFS images as mksquashfs makes them, compared entry by entry with what
 * unsquashfs extracts and with the kernel's own mount; then images that are damaged.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "backend.h"
#include "builder.h"
#include "codec.h"
#include "format_numbers.h"
#include "reader.h"
#include "suite.h"

/*
 * libsquashfuse forgets a table when the next one is damaged; the program's child in which that
 * happens ends at once.
 */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));
const char *__lsan_default_suppressions(void)
{
    return "leak:sqfs_table_init";
}

static char base[64];    /* everything happens below here */
static char folder[128]; /* of one test */
static bool is_root;

static void sh(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void sh(const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    if (system(command) != 0)
        ck_abort_msg("failed: %s", command);
}

static void begin_folder(void)
{
    snprintf(folder, sizeof(folder), "%s/test-XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void end_folder(void)
{
    ck_assert_int_eq(chdir(base), 0);
    sh("chmod -R u+rwX %s 2>/dev/null; rm -rf %s", folder, folder);
}

static bool begin_base(void)
{
    const char *memory = getenv("ONEPOT_TESTS_MEMORY"), *tmp = getenv("TMPDIR");
    snprintf(base, sizeof(base), "%.30s/onepot-test-XXXXXX",
             memory ? memory
             : tmp  ? tmp
                    : "/tmp");
    return mkdtemp(base) && chdir(base) == 0;
}

/* Also what tests left that failed. */
static void end_base(void)
{
    char command[512];
    snprintf(command, sizeof(command),
             "for m in %s/*/mounted; do umount \"$m\" 2>/dev/null; done; "
             "chmod -R u+rwX %s 2>/dev/null; rm -rf %s",
             base, base, base);
    if (chdir("/") < 0 || system(command) != 0)
        printf("could not remove %s\n", base);
}

/* ---- trees to pack ---- */

/* What compresses is runs and noise in turn, which no compressor takes long for. */
static void write_file(const char *path, size_t size, unsigned seed, bool compressible)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < size; i++)
        fputc(compressible && i / 64 % 4 ? "abc"[i / 64 % 3] : (int)(rand_r(&seed) >> 4) & 0xff,
              file);
    ck_assert_int_eq(fclose(file), 0);
}

/* Islands of `len` bytes, one at each `gap`, in a file of `size` that is a hole otherwise. */
static void write_sparse(const char *path, off_t size, off_t gap, size_t len)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    char *bytes = malloc(len);
    ck_assert_int_ge(fd, 0);
    memset(bytes, 'x', len);
    for (off_t at = gap; at + (off_t)len < size; at += gap)
        ck_assert_int_eq(pwrite(fd, bytes, len, at), (ssize_t)len);
    ck_assert_int_eq(ftruncate(fd, size), 0);
    free(bytes);
    close(fd);
}

static void set_time(const char *path, time_t sec)
{
    struct timespec times[2] = {{.tv_sec = sec}, {.tv_sec = sec}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void make_files(void)
{
    static const size_t sizes[] = {0,     1,     4095,   4096,   4097,   8192,   65535,
                                   65536, 70000, 131071, 131072, 131073, 262144, 1100000};
    char path[64];
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        snprintf(path, sizeof(path), "tree/text-%zu", sizes[i]);
        write_file(path, sizes[i], i, true);
        snprintf(path, sizeof(path), "tree/random-%zu", sizes[i]);
        write_file(path, sizes[i], i + 100, false);
    }
    for (unsigned i = 0; i < 300; i++) {
        snprintf(path, sizeof(path), "tree/many/file-%u", i);
        write_file(path, i * 37 % 9000, i, i % 2);
    }
    write_sparse("tree/sparse", 5000000, 700000, 5000);
    write_sparse("tree/sparse-aligned", 4 << 20, 1 << 20, 1 << 17);
    write_sparse("tree/hole", 3000001, 1 << 30, 1);
    sh("cp tree/text-70000 tree/duplicate; cp tree/random-1100000 tree/duplicate-large");
}

static void make_names(void)
{
    char path[600] = "tree/names/";
    memset(path + 11, 'n', 255);
    write_file(path, 10, 1, true);
    write_file("tree/names/new\nline", 10, 2, true);
    write_file("tree/names/\xff\xfe\x80 no UTF-8", 10, 3, true);
    write_file("tree/names/back\\slash \"quote\" 'tick' \x01", 10, 4, true);
    write_file("tree/names/ ", 10, 5, true);
    write_file("tree/names/...", 10, 6, true);
    strcpy(path, "tree/deep");
    for (unsigned i = 0; i < 80; i++) {
        strcat(path, "/d");
        ck_assert_int_eq(mkdir(path, 0755), 0);
    }
    strcat(path, "/bottom");
    write_file(path, 10, 7, true);
}

static void make_links(void)
{
    char target[4000];
    memset(target, 't', sizeof(target) - 1);
    target[sizeof(target) - 1] = '\0';
    ck_assert_int_eq(symlink("text-4096", "tree/symlink"), 0);
    ck_assert_int_eq(symlink("/no/such\nfile", "tree/symlink-dangling"), 0);
    ck_assert_int_eq(symlink(target, "tree/symlink-long"), 0);
    ck_assert_int_eq(link("tree/text-4097", "tree/many/hardlink-1"), 0);
    ck_assert_int_eq(link("tree/text-4097", "tree/hardlink-2"), 0);
    ck_assert_int_eq(link("tree/symlink-dangling", "tree/many/symlink-hardlink"), 0);
    ck_assert_int_eq(mkfifo("tree/fifo", 0640), 0);
    ck_assert_int_eq(link("tree/fifo", "tree/fifo-hardlink"), 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "tree/socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    if (!is_root)
        return;
    ck_assert_int_eq(mknod("tree/char", S_IFCHR | 0600, makedev(5, 1)), 0);
    ck_assert_int_eq(mknod("tree/block", S_IFBLK | 0660, makedev(259, 70000)), 0);
}

static bool has_xattrs; /* the filesystem takes them */

static void make_xattrs(void)
{
    char value[3000];
    memset(value, 'v', sizeof(value));
    has_xattrs = setxattr("tree/text-4096", "user.comment", "hello", 5, 0) == 0;
    if (!has_xattrs) {
        printf("skipped: the filesystem of %s takes no extended attributes\n", folder);
        return;
    }
    ck_assert_int_eq(setxattr("tree/text-4096", "user.empty", "", 0, 0), 0);
    ck_assert_int_eq(setxattr("tree/text-4096", "user.large", value, sizeof(value), 0), 0);
    ck_assert_int_eq(setxattr("tree/many", "user.empty", "", 0, 0), 0);
    ck_assert_int_eq(setxattr("tree/empty", "user.bytes", "a\0b", 3, 0), 0);
    /* The same long value often: kept once, out of line. */
    for (unsigned i = 0; i < 20; i++) {
        char path[64];
        snprintf(path, sizeof(path), "tree/many/file-%u", i);
        ck_assert_int_eq(setxattr(path, "user.large", value, sizeof(value), 0), 0);
        ck_assert_int_eq(setxattr(path, "user.number", &i, sizeof(i), 0), 0);
    }
    if (!is_root)
        return;
    ck_assert_int_eq(setxattr("tree/text-4096", "trusted.secret", "s", 1, 0), 0);
    ck_assert_int_eq(setxattr("tree/text-4097", "security.label", "l\0", 2, 0), 0);
    ck_assert_int_eq(lsetxattr("tree/symlink", "trusted.link", "l", 1, 0), 0);
    ck_assert_int_eq(setxattr("tree/fifo", "trusted.fifo", "", 0, 0), 0);
    ck_assert_int_eq(setxattr("tree/char", "trusted.char", "c", 1, 0), 0);
}

static void make_tree(void)
{
    sh("mkdir -p tree/many tree/names tree/deep tree/empty");
    make_files();
    make_names();
    make_links();
    make_xattrs();
    if (is_root) {
        ck_assert_int_eq(lchown("tree/text-1", 12345, 54321), 0);
        ck_assert_int_eq(lchown("tree/symlink", 70000, 4000000000u), 0);
        ck_assert_int_eq(lchown("tree/many", 1, 2), 0);
    }
    if (is_root) /* to others unsquashfs gives no setuid bit, nor could they read it */
        sh("chmod 04755 tree/text-1; chmod 0 tree/text-8192");
    sh("chmod 01777 tree/empty; chmod 0600 tree/fifo");
    set_time("tree/text-65535", 0);
    set_time("tree/text-65536", 4294967295);
    set_time("tree/symlink", 1000000000);
    set_time("tree/empty", 1234567890);
}

static void pack_tree(const char *tree, const char *image, const char *options)
{
    sh("rm -f %s; mksquashfs %s %s -processors 1 -quiet -no-progress %s >/dev/null", image,
       tree, image, options);
}

static void pack(const char *image, const char *options)
{
    pack_tree("tree", image, options);
}

/* ---- opening an image ---- */

struct opened {
    struct fileset fileset;
    struct reader *reader;
    struct reader_scratch *scratch;
    struct fault fault;
};

/* Index a source as fileset_open's child does, and write the index to a descriptor. */
static int index_image(struct source *source, int fd, struct fault *fault)
{
    struct progress progress = {0};
    struct builder *builder;
    struct builder_header header = {.format = FORMAT_SQUASHFS,
                                    .archive_bytes = source_size(source)};
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    builder_set_archive_size(builder, header.archive_bytes);
    r = backend_squashfs.index(source, builder, &header, &progress, fault);
    uint64_t ignored;
    if (r == 0)
        r = builder_write(builder, &header, fd, 0, fault, &ignored);
    builder_free(builder);
    return r;
}

static void close_image(struct opened *o)
{
    reader_scratch_free(o->scratch);
    reader_free(o->reader);
    index_close(o->fileset.index);
    source_close(o->fileset.source);
}

static int open_source(struct source *source, struct opened *o)
{
    struct source *image = NULL;
    struct reader_options options = {.cache_bytes = 4u << 20};
    int fd = memfd_create("index", MFD_CLOEXEC);
    memset(o, 0, sizeof(*o));
    o->fileset.source = source;
    int r = index_image(source, fd, &o->fault);
    if (r == 0)
        r = source_from_fd(fd, "index", &image);
    else
        close(fd);
    if (r == 0)
        r = index_open(image, 0, source_size(image), &o->fault, &o->fileset.index);
    if (r == 0)
        r = reader_new(&o->fileset, &options, &o->fault, &o->reader);
    if (r == 0)
        r = reader_scratch_new(o->reader, &o->scratch);
    source_close(image);
    return r;
}

static void open_image(const char *path, struct opened *o)
{
    struct source *source;
    ck_assert_int_eq(source_open(path, NULL, &source), 0);
    int r = open_source(source, o);
    if (r < 0)
        ck_abort_msg("%s: error %d, %s: %s", path, r, o->fault.member, o->fault.what);
}

/* ---- comparison with files ---- */

/* What the reference may lack or show otherwise. */
struct comparison {
    bool skip_owners, kernel;
    unsigned entries, differences;
};

static void differs(struct comparison *c, const char *path, const char *what)
{
    if (c->differences++ < 10)
        printf("%s: %s differs\n", path, what);
}

static bool same_content(struct opened *o, uint32_t position, const char *path, uint64_t size)
{
    enum { PIECE = 1 << 20 };
    char *a = malloc(PIECE), *b = malloc(PIECE);
    int fd = open(path, O_RDONLY);
    bool same = fd >= 0;
    for (uint64_t at = 0; same && at < size; at += PIECE) {
        size_t len = 0;
        int r = reader_copy(o->reader, o->scratch, position, at, a, PIECE, &len);
        same = r == 0 && pread(fd, b, PIECE, (off_t)at) == (ssize_t)len &&
               memcmp(a, b, len) == 0 && (len == PIECE || at + len == size);
    }
    close(fd);
    free(a);
    free(b);
    return same;
}

static bool same_xattrs(struct opened *o, uint32_t position, const char *path)
{
    char names[65536], value[65536];
    ssize_t size = llistxattr(path, names, sizeof(names));
    unsigned there = 0, here = 0;
    struct xattr xattr;
    for (char *name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
        ssize_t len = lgetxattr(path, name, value, sizeof(value));
        if (index_xattr_get(o->fileset.index, position, name, strlen(name), &xattr) < 0 ||
            len < 0 || xattr.value_len != (size_t)len ||
            memcmp(xattr.value, value, (size_t)len) != 0)
            return false;
        there++;
    }
    uint64_t cursor = 0;
    while (index_xattr_next(o->fileset.index, position, &cursor, &xattr) == 0)
        here++;
    return here == there;
}

static bool same_symlink(struct opened *o, uint32_t position, const char *path)
{
    char there[4096];
    const char *here;
    size_t len;
    ssize_t n = readlink(path, there, sizeof(there));
    return n >= 0 && index_symlink(o->fileset.index, position, &here, &len) == 0 &&
           len == (size_t)n && memcmp(here, there, len) == 0;
}

static void compare_entry(struct comparison *c, struct opened *o, uint32_t position,
                          const char *path)
{
    struct node node;
    struct stat st;
    c->entries++;
    if (index_node(o->fileset.index, position, &node) < 0 || lstat(path, &st) < 0) {
        differs(c, path, "existence");
        return;
    }
    if (node.mode != st.st_mode)
        differs(c, path, "mode");
    if (!c->skip_owners && (node.uid != st.st_uid || node.gid != st.st_gid))
        differs(c, path, "owner");
    if (node.mtime_sec != st.st_mtim.tv_sec || node.mtime_nsec != 0)
        differs(c, path, "time");
    if (!S_ISDIR(st.st_mode) && node.nlink != st.st_nlink)
        differs(c, path, "nlink");
    if ((S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) &&
        makedev(node.rdev_major, node.rdev_minor) != st.st_rdev)
        differs(c, path, "device");
    if (S_ISREG(st.st_mode) && (node.size_bytes != (uint64_t)st.st_size ||
                                !same_content(o, node.position, path, node.size_bytes)))
        differs(c, path, "content");
    /* The kernel adds one where it knows of holes, and counts attributes as well. */
    uint64_t blocks = (node.data_bytes + 511) / 512;
    if (S_ISREG(st.st_mode) && c->kernel && !node.has_xattrs &&
        blocks != (uint64_t)st.st_blocks && blocks + 1 != (uint64_t)st.st_blocks)
        differs(c, path, "st_blocks");
    if (S_ISLNK(st.st_mode) && !same_symlink(o, position, path))
        differs(c, path, "target");
    if (has_xattrs && (is_root || S_ISREG(st.st_mode)) && !same_xattrs(o, position, path))
        differs(c, path, "an extended attribute");
}

static void compare_tree(struct comparison *c, struct opened *o, const char *reference)
{
    struct node node;
    char path[4200];
    for (uint32_t i = 0; index_node(o->fileset.index, i, &node) == 0; i++) {
        size_t len;
        int n = snprintf(path, sizeof(path), "%s/", reference);
        ck_assert_int_eq(
            index_path(o->fileset.index, i, path + n, sizeof(path) - (size_t)n, &len), 0);
        compare_entry(c, o, i, path);
    }
}

static unsigned count_files(const char *reference)
{
    char command[128];
    unsigned count = 0;
    snprintf(command, sizeof(command), "find %s -printf x | wc -c", reference);
    FILE *pipe = popen(command, "r");
    ck_assert_int_eq(fscanf(pipe, "%u", &count), 1);
    pclose(pipe);
    return count;
}

static void check_against(struct opened *o, const char *reference, bool kernel)
{
    struct comparison c = {.skip_owners = !is_root, .kernel = kernel};
    compare_tree(&c, o, reference);
    ck_assert_uint_eq(c.differences, 0);
    ck_assert_uint_eq(c.entries, count_files(reference));
}

static void check_against_unsquashfs(struct opened *o, const char *image)
{
    sh("rm -rf reference; unsquashfs -no-progress -quiet -d reference %s >/dev/null", image);
    check_against(o, "reference", false);
    sh("chmod -R u+rwX reference; rm -rf reference");
}

/* False: not here. */
static bool check_against_kernel(struct opened *o, const char *image)
{
    char command[256];
    snprintf(command, sizeof(command),
             "mkdir -p mounted && mount -t squashfs -o loop,ro %s mounted 2>/dev/null", image);
    if (!is_root || system(command) != 0) {
        printf("skipped: the kernel's SquashFS can't be mounted here, or not this one\n");
        return false;
    }
    struct comparison c = {.kernel = true};
    compare_tree(&c, o, "mounted");
    unsigned entries = count_files("mounted");
    sh("umount mounted");
    ck_assert_uint_eq(c.differences, 0);
    ck_assert_uint_eq(c.entries, entries);
    return true;
}

/* ---- fidelity ---- */

static const struct {
    const char *options;
    enum codec codec;
} variants[] = {
    {"-comp gzip", CODEC_ZLIB},
    {"-comp xz -b 1M", CODEC_XZ},
    {"-comp xz -Xbcj x86 -Xdict-size 8K", CODEC_XZ},
    {"-comp lzo", CODEC_LZO},
    {"-comp lz4 -Xhc", CODEC_LZ4},
    {"-comp zstd -Xcompression-level 1", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -b 4K", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -b 64K -no-fragments", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -always-use-fragments", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -noF", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -noD", CODEC_ZSTD},
    {"-comp gzip -noD -noF", CODEC_NONE},
    {"-comp zstd -Xcompression-level 1 -noI -noId -noD -noF -noX", CODEC_NONE},
    {"-comp zstd -Xcompression-level 1 -noI -noD -noF -noX -no-fragments", CODEC_NONE},
    {"-comp zstd -Xcompression-level 1 -noI", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -all-root -no-duplicates -no-exports", CODEC_ZSTD},
    {"-comp zstd -Xcompression-level 1 -no-sparse -b 8K", CODEC_ZSTD},
    {"-comp gzip -Xcompression-level 1 -no-xattrs", CODEC_ZLIB},
};
#define VARIANTS ((int)(sizeof(variants) / sizeof(*variants)))

START_TEST(image_shows_what_extraction_and_kernel_show)
{
    struct opened o;
    if (!codec_available(variants[_i].codec)) {
        printf("skipped: no %s in this build\n", codec_name(variants[_i].codec));
        return;
    }
    begin_folder();
    pack_tree("../tree", "image", variants[_i].options);
    open_image("image", &o);
    const struct index_info *info = index_info(o.fileset.index);
    ck_assert_int_eq(info->codec, variants[_i].codec);
    ck_assert_uint_eq(info->entries, count_files("../tree"));
    /* Extraction, which takes longer, with one variant of each codec. */
    bool is_first = _i == 0 || variants[_i].codec != variants[_i - 1].codec;
    if (!check_against_kernel(&o, "image") || is_first)
        check_against_unsquashfs(&o, "image");
    close_image(&o);
    end_folder();
}
END_TEST

START_TEST(empty_tree_and_small_trees)
{
    struct opened o;
    begin_folder();
    sh("mkdir tree");
    pack("image", "");
    open_image("image", &o);
    ck_assert_uint_eq(index_info(o.fileset.index)->entries, 1);
    check_against_unsquashfs(&o, "image");
    close_image(&o);
    sh("mkdir -m 700 tree/d; touch tree/f");
    pack("image", "");
    open_image("image", &o);
    ck_assert_uint_eq(index_info(o.fileset.index)->entries, 3);
    check_against_unsquashfs(&o, "image");
    close_image(&o);
    end_folder();
}
END_TEST

START_TEST(listing_of_more_than_64_kib)
{
    struct opened o;
    uint32_t first, count, position;
    begin_folder();
    /* Real ones: what mksquashfs makes up itself takes it minutes, for so many. */
    sh("mkdir -p tree/d && cd tree/d && seq -f entry-%%07.0f 8000 | xargs touch");
    pack("image", "");
    open_image("image", &o);
    ck_assert_int_eq(index_resolve(o.fileset.index, "d", &position), 0);
    ck_assert_int_eq(index_children(o.fileset.index, position, &first, &count), 0);
    ck_assert_uint_eq(count, 8000);
    ck_assert_int_eq(index_resolve(o.fileset.index, "d/entry-0007777", &position), 0);
    ck_assert_int_eq(index_resolve(o.fileset.index, "d/entry-0008001", &position), -ENOENT);
    close_image(&o);
    end_folder();
}
END_TEST

START_TEST(depth_of_500_directories)
{
    struct opened o;
    uint32_t position;
    char path[1100] = "";
    begin_folder();
    for (unsigned i = 0; i < 500; i++)
        strcat(path, i ? "/d" : "d");
    sh("mkdir -p tree/%s && echo bottom > tree/%s/file", path, path);
    pack("image", "");
    open_image("image", &o);
    strcat(path, "/file");
    ck_assert_int_eq(index_resolve(o.fileset.index, path, &position), 0);
    check_against_unsquashfs(&o, "image");
    close_image(&o);
    end_folder();
}
END_TEST

/* The one of 5 GiB lies ready, see tests/data/make_sparse.py. The other is stored. */
START_TEST(sparse_file_of_5_gib)
{
    struct opened o;
    struct node node;
    uint32_t position;
    size_t len;
    char buf[6000];
    uint64_t gap = _i ? 60000000 : (uint64_t)1 << 30, size = 5 * gap;
    begin_folder();
    if (_i) {
        sh("mkdir tree");
        write_sparse("tree/huge", (off_t)size, (off_t)gap, 5000);
        pack("image", "-noD -noF");
    }
    open_image(_i ? "image" : TEST_DATA_DIR "/sparse_5_gib.squashfs", &o);
    ck_assert_int_eq(index_resolve(o.fileset.index, "huge", &position), 0);
    ck_assert_int_eq(index_node(o.fileset.index, position, &node), 0);
    ck_assert_uint_eq(node.size_bytes, size);
    ck_assert(node.has_holes);
    ck_assert_uint_lt(node.data_bytes, 8u << 20);
    for (uint64_t at = gap; at < node.size_bytes; at += gap) {
        ck_assert_int_eq(
            reader_copy(o.reader, o.scratch, position, at - 500, buf, sizeof(buf), &len), 0);
        ck_assert_uint_eq(len, sizeof(buf));
        for (size_t i = 0; i < len; i++)
            if (buf[i] != (i >= 500 && i < 5500 ? 'x' : 0))
                ck_abort_msg("wrong byte at %zu", i);
    }
    ck_assert_int_eq(
        reader_copy(o.reader, o.scratch, position, node.size_bytes - 10, buf, 100, &len), 0);
    ck_assert_uint_eq(len, 10);
    close_image(&o);
    end_folder();
}
END_TEST

START_TEST(stored_images_are_ranges_without_blocks)
{
    struct opened o;
    struct extent extent;
    uint32_t position;
    begin_folder();
    sh("mkdir tree");
    write_file("tree/large", 1000000, 1, false);
    write_file("tree/small", 5000, 2, false);
    pack("image", "-noD -noF");
    open_image("image", &o);
    ck_assert_int_eq(index_resolve(o.fileset.index, "small", &position), 0);
    ck_assert_int_eq(index_extent(o.fileset.index, position, 0, &extent), 0);
    ck_assert_int_eq(extent.kind, EXTENT_STORED);
    ck_assert_uint_eq(extent.length, 5000);
    ck_assert_int_eq(index_resolve(o.fileset.index, "large", &position), 0);
    ck_assert_int_eq(index_extent(o.fileset.index, position, 0, &extent), 0);
    ck_assert_int_eq(extent.kind, EXTENT_STORED);
    ck_assert_uint_ge(extent.length, 1000000 / 131072 * 131072);
    close_image(&o);
    end_folder();
}
END_TEST

/* ---- what is no image, or a damaged one ---- */

static uint8_t *load(const char *path, size_t *ret_size)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    ck_assert(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *bytes = malloc((size_t)st.st_size);
    ck_assert_int_eq(read(fd, bytes, (size_t)st.st_size), st.st_size);
    close(fd);
    *ret_size = (size_t)st.st_size;
    return bytes;
}

static int probe(const uint8_t *bytes, size_t len)
{
    return backend_squashfs.probe(NULL, bytes, len);
}

START_TEST(probe_knows_the_format_by_magic_and_version)
{
    size_t size;
    begin_folder();
    sh("mkdir tree");
    pack("image", "");
    uint8_t *image = load("image", &size);
    ck_assert_int_eq(probe(image, size), 1);
    ck_assert_int_eq(probe(image, 96), 1);
    for (size_t len = 0; len < 96; len++)
        ck_assert_int_eq(probe(image, len), 0);
    image[28] = 3;
    ck_assert_int_eq(probe(image, size), 0);
    image[28] = 4;
    image[0] = 'S';
    ck_assert_int_eq(probe(image, size), 0);
    free(image);
    end_folder();
}
END_TEST

/* Index the bytes and read everything. No crash is the test: a sandbox would hide one. */
static int try_image(const uint8_t *bytes, size_t size, struct fault *fault)
{
    static uint8_t buf[1 << 16];
    struct source *source;
    struct opened o;
    struct node node;
    ck_assert_int_eq(source_from_memory(bytes, size, "image", &source), 0);
    int r = open_source(source, &o);
    for (uint32_t i = 0; r == 0 && index_node(o.fileset.index, i, &node) == 0; i++) {
        uint64_t step = node.size_bytes / 50 + sizeof(buf);
        for (uint64_t at = 0; S_ISREG(node.mode) && at < node.size_bytes; at += step) {
            size_t len;
            if (reader_copy(o.reader, o.scratch, i, at, buf, sizeof(buf), &len) < 0)
                break;
        }
    }
    *fault = o.fault;
    close_image(&o);
    return r;
}

static void make_small_tree(void)
{
    sh("mkdir -p tree/sub/loopdir tree/empty; ln -s target tree/symlnk; mkfifo tree/fifo");
    sh("echo hello > tree/hello; ln tree/hello tree/sub/hardlink");
    write_file("tree/text", 30000, 1, true);
    write_file("tree/random", 5000, 2, false);
    write_sparse("tree/sparse", 200000, 60000, 100);
    if (setxattr("tree/hello", "user.a", "value", 5, 0) == 0)
        setxattr("tree/hello", "user.b", "", 0, 0);
}

static const char *const small_variants[] = {
    "-comp gzip -b 8K",
    "-comp xz -b 8K",
    "-comp lzo -b 8K",
    "-comp lz4 -b 8K",
    "-comp zstd -Xcompression-level 1 -b 8K",
    "-comp gzip -noI -noId -noD -noF -noX -b 8K",
};

START_TEST(truncated_images_are_refused)
{
    size_t size;
    struct fault fault;
    begin_folder();
    make_small_tree();
    pack("image", small_variants[_i]);
    uint8_t *image = load("image", &size);
    uint64_t used;
    memcpy(&used, image + 40, sizeof(used));
    ck_assert_int_eq(try_image(image, used, &fault), 0);
    for (size_t len = 0; len < used; len += len < 96 ? 7 : used / 60 + 1) {
        ck_assert_int_lt(try_image(image, len, &fault), 0);
        ck_assert_str_ne(fault.what, "");
    }
    ck_assert_int_eq(try_image(image, used - 1, &fault), -EUCLEAN);
    ck_assert_ptr_nonnull(strstr(fault.what, "cut off"));
    free(image);
    end_folder();
}
END_TEST

START_TEST(flipped_bytes_crash_nobody)
{
    size_t size;
    struct fault fault;
    unsigned seed = (unsigned)_i, refused = 0;
    begin_folder();
    make_small_tree();
    pack("image", small_variants[_i]);
    uint8_t *image = load("image", &size);
    uint64_t used, inodes;
    memcpy(&used, image + 40, sizeof(used));
    memcpy(&inodes, image + 64, sizeof(inodes));
    /* Half of them in the metadata, the rest anywhere; the superblock bit by bit. */
    for (unsigned i = 0; i < 400; i++) {
        size_t at = i < 96  ? i
                    : i % 2 ? inodes + (size_t)rand_r(&seed) % (used - inodes)
                            : (size_t)rand_r(&seed) % used;
        uint8_t old = image[at];
        unsigned changed = (unsigned)rand_r(&seed);
        if (rand_r(&seed) % 2)
            changed = old ^ 1u << rand_r(&seed) % 8;
        image[at] = (uint8_t)changed;
        int r = try_image(image, used, &fault);
        ck_assert_int_ne(r, -EINVAL); /* a mistake of ours */
        refused += r < 0;
        image[at] = old;
    }
    ck_assert_uint_gt(refused, 50);
    ck_assert_int_eq(try_image(image, used, &fault), 0);
    free(image);
    end_folder();
}
END_TEST

START_TEST(unknown_compression_is_not_supported)
{
    static const uint16_t methods[] = {CODEC_LZMA, 0, 7, 0xffff};
    size_t size;
    struct fault fault;
    begin_folder();
    make_small_tree();
    pack("image", "");
    uint8_t *image = load("image", &size);
    memcpy(image + 20, &methods[_i], 2);
    ck_assert_int_eq(try_image(image, size, &fault), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(fault.what, "not supported"));
    free(image);
    end_folder();
}
END_TEST

/* An image whose metadata lies open, to be changed in one place. */
static uint8_t *make_open_image(size_t *ret_size)
{
    begin_folder();
    make_small_tree();
    pack("image", "-noI -noId -noD -noF -noX -no-exports -b 8K");
    return load("image", ret_size);
}

/* The directory entry called `name`: offset, number, type, size, then the name. */
static uint8_t *find_entry(uint8_t *image, size_t size, const char *name)
{
    uint64_t table;
    memcpy(&table, image + 72, sizeof(table));
    uint8_t *at = memmem(image + table, size - table, name, strlen(name));
    ck_assert_ptr_nonnull(at);
    return at - 8;
}

static void check_refused(uint8_t *image, size_t size, const char *member)
{
    struct fault fault;
    ck_assert_int_eq(try_image(image, size, &fault), -EUCLEAN);
    ck_assert_str_eq(fault.member, member);
    ck_assert_str_ne(fault.what, "");
    free(image);
    end_folder();
}

START_TEST(directory_that_contains_itself_is_refused)
{
    size_t size;
    uint8_t *image = make_open_image(&size);
    memcpy(find_entry(image, size, "loopdir"), image + 32, 2); /* the root's offset */
    check_refused(image, size, "sub/loopdir");
}
END_TEST

START_TEST(name_with_a_slash_is_refused)
{
    static const char names[][8] = {"hell/", "a\0b\0c", "/ello"};
    size_t size;
    uint8_t *image = make_open_image(&size);
    memcpy(find_entry(image, size, "hello") + 8, names[_i], 5);
    check_refused(image, size, "");
}
END_TEST

START_TEST(name_of_dots_is_refused)
{
    static const char *const names[] = {".", ".."};
    size_t size;
    begin_folder();
    sh("mkdir -p tree/sub/aa tree/sub/b");
    pack("image", "-noI -noId -noD -noF -noX -no-exports");
    uint8_t *image = load("image", &size);
    uint8_t *entry = find_entry(image, size, _i ? "aa" : "b");
    memcpy(entry + 8, names[_i], strlen(names[_i]));
    check_refused(image, size, "sub");
}
END_TEST

START_TEST(name_that_occurs_twice_is_refused)
{
    static const char *const trees[] = {"touch tree/sub/ab tree/sub/ac",
                                        "mkdir tree/sub/ab tree/sub/ac; touch tree/sub/ac/d",
                                        "mkdir tree/sub/ab; touch tree/sub/ac",
                                        "touch tree/sub/ab; ln tree/sub/ab tree/sub/ac"};
    size_t size;
    begin_folder();
    sh("mkdir -p tree/sub; %s", trees[_i]);
    pack("image", "-noI -noId -noD -noF -noX -no-exports");
    uint8_t *image = load("image", &size);
    find_entry(image, size, "ac")[9] = 'b';
    check_refused(image, size, "sub/ab");
}
END_TEST

START_TEST(name_that_is_too_long_is_refused)
{
    static const uint16_t lengths[] = {255, 256, 1000, 0xffff};
    size_t size;
    uint8_t *image = make_open_image(&size);
    memcpy(find_entry(image, size, "hello") + 6, &lengths[_i], 2);
    check_refused(image, size, "");
}
END_TEST

START_TEST(type_that_is_not_the_inodes_is_refused)
{
    size_t size;
    uint8_t *image = make_open_image(&size);
    find_entry(image, size, "hello")[4] = 1; /* a directory, it says */
    check_refused(image, size, "hello");
}
END_TEST

/* The inode of an entry: all of them lie in the first metadata block. */
static uint8_t *find_inode(uint8_t *image, size_t size, const char *name)
{
    uint64_t table;
    uint16_t offset;
    memcpy(&table, image + 64, sizeof(table));
    memcpy(&offset, find_entry(image, size, name), sizeof(offset));
    return image + table + 2 + offset;
}

START_TEST(inode_that_lies_is_refused)
{
    static const struct {
        const char *name;
        size_t at; /* in its inode */
        uint32_t value;
        size_t len;
    } lies[] = {
        {"hello", 4, 999, 2},        /* owner number */
        {"text", 28, 0x7fffffff, 4}, /* size */
        {"text", 16, 0x7fffffff, 4}, /* first block */
        {"random", 20, 77, 4},       /* fragment */
        {"random", 24, 0x20000, 4},  /* offset in it */
        {"symlnk", 20, 0x10000, 4},  /* length of the target */
        {"symlnk", 20, 0, 4},        /* the same */
        {"fifo", 0, 99, 2},          /* type */
    };
    size_t size;
    uint8_t *image = make_open_image(&size);
    uint8_t *inode = find_inode(image, size, lies[_i].name);
    memcpy(inode + lies[_i].at, &lies[_i].value, lies[_i].len);
    check_refused(image, size, lies[_i].name);
}
END_TEST

static void add_fidelity(Suite *suite)
{
    TCase *tests = tcase_create("fidelity");
    tcase_set_timeout(tests, 240);
    tcase_add_unchecked_fixture(tests, make_tree, NULL);
    tcase_add_loop_test(tests, image_shows_what_extraction_and_kernel_show, 0, VARIANTS);
    tcase_add_test(tests, empty_tree_and_small_trees);
    tcase_add_test(tests, listing_of_more_than_64_kib);
    tcase_add_test(tests, depth_of_500_directories);
    tcase_add_loop_test(tests, sparse_file_of_5_gib, 0, 2);
    tcase_add_test(tests, stored_images_are_ranges_without_blocks);
    suite_add_tcase(suite, tests);
}

static void add_damage(Suite *suite)
{
    TCase *tests = tcase_create("damage");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, probe_knows_the_format_by_magic_and_version);
    tcase_add_loop_test(tests, truncated_images_are_refused, 0, 6);
    tcase_add_loop_test(tests, flipped_bytes_crash_nobody, 0, 6);
    tcase_add_loop_test(tests, unknown_compression_is_not_supported, 0, 4);
    tcase_add_test(tests, directory_that_contains_itself_is_refused);
    tcase_add_loop_test(tests, name_with_a_slash_is_refused, 0, 3);
    tcase_add_loop_test(tests, name_of_dots_is_refused, 0, 2);
    tcase_add_loop_test(tests, name_that_occurs_twice_is_refused, 0, 4);
    tcase_add_loop_test(tests, name_that_is_too_long_is_refused, 0, 4);
    tcase_add_test(tests, type_that_is_not_the_inodes_is_refused);
    tcase_add_loop_test(tests, inode_that_lies_is_refused, 0, 8);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    if (system("mksquashfs -version >/dev/null && unsquashfs -version >/dev/null 2>&1; "
               "command -v unsquashfs >/dev/null") != 0) {
        printf("skipped: mksquashfs and unsquashfs (squashfs-tools) are not installed\n");
        return 77;
    }
    if (!begin_base()) {
        perror(base);
        return 1;
    }
    is_root = geteuid() == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    Suite *suite = suite_create("squashfs");
    add_fidelity(suite);
    add_damage(suite);
    int failed = run_suite(suite);
    end_base();
    return failed;
}
