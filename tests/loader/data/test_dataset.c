/*
 * Archives as samples: which there are, in what order, with which labels, and their bytes.
 */
#include "loader_helper.h"
#include "suite.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char *const names[] = {
    /* The order in which they are samples. */
    "top.txt",        "a/1.jpg",   "a/2.jpg",     "a/sub/0.jpg", "a/sub-x/9.jpg",
    "a/sub/in/1.jpg", "a-b/1.jpg", "b/10.jpg",    "b/9.JPG",     "b/9.json",
    "c.d/x.y.jpg",    "c.d/x.z",   "c.d/y/z/w.q",
};
#define NAMES (sizeof(names) / sizeof(names[0]))

static void make_tree(struct tree *t)
{
    tree_begin(t);
    for (size_t i = NAMES; i-- > 0;)
        tree_file(t, names[i], names[i], strlen(names[i]));
}

static void check_name(const struct onepot_archive *a, uint64_t i, const char *expected)
{
    char name[256];
    size_t len;
    ck_assert_int_eq(onepot_archive_name(a, i, name, sizeof(name), &len), 0);
    ck_assert_str_eq(name, expected);
    ck_assert_uint_eq(len, strlen(expected));
}

/* As torchvision: by class, then by the path of the directory, then by name. */
static int position_of(const char *name)
{
    static const char *const sorted[] = {"top.txt",     "a/1.jpg",       "a/2.jpg",
                                         "a/sub/0.jpg", "a/sub-x/9.jpg", "a/sub/in/1.jpg"};
    for (int i = 0; i < 6; i++)
        if (strcmp(sorted[i], name) == 0)
            return i;
    return -1;
}

START_TEST(samples_are_in_imagefolders_order_with_its_labels)
{
    struct tree t;
    make_tree(&t);
    if (tree_pack(&t, (enum packing)_i)) {
        struct onepot_archive *a = tree_open(&t, NULL);
        ck_assert_uint_eq(onepot_archive_samples(a), NAMES);
        ck_assert_uint_eq(onepot_archive_classes(a), 4);
        ck_assert_str_eq(onepot_archive_class(a, 0), "a");
        ck_assert_str_eq(onepot_archive_class(a, 1), "a-b");
        ck_assert_str_eq(onepot_archive_class(a, 3), "c.d");
        ck_assert_ptr_null(onepot_archive_class(a, 4));
        for (size_t i = 0; i < NAMES; i++) {
            char name[256], bytes[256];
            size_t len, got;
            uint64_t size, found;
            int64_t label;
            ck_assert_int_eq(onepot_archive_name(a, i, name, sizeof(name), &len), 0);
            /* directories of a class by their path: "a/sub" < "a/sub-x" < "a/sub/in" */
            if (i < 6)
                ck_assert_int_eq(position_of(name), (int)i);
            else
                ck_assert_str_eq(name, names[i]);
            ck_assert_int_eq(onepot_archive_size(a, i, &size), 0);
            ck_assert_uint_eq(size, len);
            ck_assert_int_eq(onepot_archive_read(a, i, 0, bytes, sizeof(bytes), NULL, &got), 0);
            ck_assert_uint_eq(got, len);
            ck_assert_mem_eq(bytes, name, len);
            ck_assert_int_eq(onepot_archive_find(a, name, &found), 0);
            ck_assert_uint_eq(found, i);
            ck_assert_int_eq(onepot_archive_label(a, i, NULL, &label), 0);
            if (strchr(name, '/')) {
                const char *class = onepot_archive_class(a, (uint32_t)label);
                ck_assert_int_eq(strncmp(class, name, strlen(class)), 0);
                ck_assert_int_eq(name[strlen(class)], '/');
            } else {
                ck_assert_int_eq(label, -1);
            }
            const void *place;
            int r = onepot_archive_bytes(a, i, &place, &size);
            if (_i != PACKING_SQUASHFS)
                ck_assert_int_eq(r, 0);
            if (r == 0)
                ck_assert_mem_eq(place, name, len);
        }
        uint64_t none;
        char name[4];
        size_t len;
        ck_assert_int_eq(onepot_archive_find(a, "a/nothing", &none), -ENOENT);
        ck_assert_int_eq(onepot_archive_find(a, "a", &none), -ENOENT);
        ck_assert_int_eq(onepot_archive_size(a, NAMES, &none), -ERANGE);
        ck_assert_int_eq(onepot_archive_name(a, 0, name, sizeof(name), &len), -ENAMETOOLONG);
        onepot_archive_close(a);
    }
    tree_end(&t);
}
END_TEST

START_TEST(filters_extensions_and_a_root_choose_files)
{
    struct tree t;
    make_tree(&t);
    tree_pack(&t, PACKING_ONEPOT);
    struct onepot_archive_options o = {.size = sizeof(o)};
    o.extensions = (const char *const[]){".jpg"};
    o.extension_count = 1;
    struct onepot_archive *a = tree_open(&t, &o);
    ck_assert_uint_eq(onepot_archive_samples(a), 9); /* 9.JPG too */
    ck_assert_uint_eq(onepot_archive_classes(a), 4);
    onepot_archive_close(a);

    o = (struct onepot_archive_options){.size = sizeof(o)};
    o.filters = (const char *const[]){"b/*", "x.*"};
    o.filter_count = 2;
    a = tree_open(&t, &o);
    ck_assert_uint_eq(onepot_archive_samples(a), 5);
    check_name(a, 3, "c.d/x.y.jpg");
    onepot_archive_close(a);

    o = (struct onepot_archive_options){.size = sizeof(o), .root = "a"};
    a = tree_open(&t, &o);
    ck_assert_uint_eq(onepot_archive_samples(a), 5);
    ck_assert_uint_eq(onepot_archive_classes(a), 2);
    ck_assert_str_eq(onepot_archive_class(a, 0), "sub");
    check_name(a, 2, "a/sub/0.jpg");
    onepot_archive_close(a);

    struct onepot_error error;
    const char *const paths[] = {t.archive};
    o.root = "nowhere";
    ck_assert_int_eq(onepot_archive_open(paths, 1, &o, &error, &a), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error.text, "nowhere"));
    tree_end(&t);
}
END_TEST

START_TEST(files_group_by_base_name_and_by_directory)
{
    static const char *const files[] = {"s/a.cls", "s/a.jpg",   "s/a-b.jpg", "s/a.seg.png",
                                        "s/b",     "s/.hidden", "s/c.x",     "t/c.x"};
    struct tree t;
    tree_begin(&t);
    for (unsigned i = 0; i < 8; i++)
        tree_file(&t, files[i], files[i], strlen(files[i]));
    tree_pack(&t, PACKING_TAR);
    struct onepot_archive_options o = {.size = sizeof(o), .group = ONEPOT_GROUP_BASE_NAME};
    struct onepot_archive *a = tree_open(&t, &o);
    ck_assert_uint_eq(onepot_archive_samples(a), 5);
    check_name(a, 0, "s/a-b");
    check_name(a, 1, "s/a");
    check_name(a, 2, "s/b");
    check_name(a, 4, "t/c");
    uint64_t parts, size, found;
    ck_assert_int_eq(onepot_archive_parts(a, 1, &parts), 0);
    ck_assert_uint_eq(parts, 3);
    static const char *const part_names[] = {"cls", "jpg", "seg.png"};
    uint64_t offset = 0;
    for (unsigned p = 0; p < 3; p++) {
        struct onepot_part part = {.size = sizeof(part)};
        ck_assert_int_eq(onepot_archive_part(a, 1, p, &part), 0);
        ck_assert_uint_eq(part.name_len, strlen(part_names[p]));
        ck_assert_mem_eq(part.name, part_names[p], part.name_len);
        ck_assert_uint_eq(part.offset, offset);
        offset += part.bytes;
    }
    struct onepot_part part = {.size = sizeof(part)};
    ck_assert_int_eq(onepot_archive_part(a, 1, 3, &part), -ERANGE);
    ck_assert_int_eq(onepot_archive_size(a, 1, &size), 0);
    ck_assert_uint_eq(size, offset);
    char bytes[64];
    size_t got;
    ck_assert_int_eq(onepot_archive_read(a, 1, 3, bytes, sizeof(bytes), NULL, &got), 0);
    ck_assert_uint_eq(got, size - 3);
    ck_assert_mem_eq(bytes, ".cls", 4);
    ck_assert_mem_eq(bytes + 4, "s/a.jpgs/a.seg.png", got - 4);
    ck_assert_int_eq(onepot_archive_find(a, "t/c", &found), 0);
    ck_assert_uint_eq(found, 4);
    onepot_archive_close(a);

    o.group = ONEPOT_GROUP_DIRECTORY;
    a = tree_open(&t, &o);
    ck_assert_uint_eq(onepot_archive_samples(a), 2);
    check_name(a, 0, "s");
    check_name(a, 1, "t");
    ck_assert_int_eq(onepot_archive_parts(a, 0, &parts), 0);
    ck_assert_uint_eq(parts, 7);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

static size_t four(unsigned i)
{
    (void)i;
    return 4;
}

static void tree_link(struct tree *t, const char *name, const char *target)
{
    char path[1024];
    tree_file(t, name, "", 0); /* for the folders above it */
    snprintf(path, sizeof(path), "%s/tree/%s", t->path, name);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(symlink(target, path), 0);
}

static void check_link(const struct onepot_archive *a, uint64_t i, const char *name,
                       int64_t label, const char *bytes)
{
    char got[64];
    size_t len;
    uint64_t found, size;
    int64_t is;
    check_name(a, i, name);
    ck_assert_int_eq(onepot_archive_label(a, i, NULL, &is), 0);
    ck_assert_int_eq(is, label);
    ck_assert_int_eq(onepot_archive_find(a, name, &found), 0);
    ck_assert_uint_eq(found, i);
    ck_assert_int_eq(onepot_archive_size(a, i, &size), 0);
    ck_assert_uint_eq(size, strlen(bytes));
    ck_assert_int_eq(onepot_archive_read(a, i, 0, got, sizeof(got), NULL, &len), 0);
    ck_assert_uint_eq(len, strlen(bytes));
    ck_assert_mem_eq(got, bytes, len);
}

/* Also across archives, where links are some of the files. */
START_TEST(folders_keep_the_parts_of_samples_apart)
{
    static const char *const files[] = {
        "d/images/b/1.x.jpg", "d/images/b/1.y.jpg", "d/images/b/2.jpg",  "d/images/b/2-a.png",
        "d/images/top.jpg",   "d/images/a/0.jpg",   "d/masks/b/1.x.png", "d/masks/b/1.y.png",
        "d/masks/b/2-a.png",  "d/masks/top",        "d/masks/a/9.png",   "d/masks/b/.2.png"};
    static const char *const keys[] = {"top", "b/1.x", "b/1.y", "b/2-a"};
    struct tree t;
    char folder[128];
    tree_begin(&t);
    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        tree_file(&t, files[i], files[i], strlen(files[i]));
    tree_link(&t, "m", "d/masks");
    snprintf(folder, sizeof(folder), "%s/shards", t.path);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    run_shell("cd '%s' && tar -C tree -cf shards/0.tar d/images && %s", t.path,
              "tar -C tree -cf shards/1.tar d/masks m && tar -C tree -cf all.tar .");
    for (unsigned i = 0; i < 4; i++) {
        const char *paths[] = {folder}, *first;
        snprintf(folder, sizeof(folder), "%s/%s", t.path, i % 2 ? "shards" : "all.tar");
        struct onepot_archive_options o = {
            .size = sizeof(o),
            .root = i < 2 ? "d" : NULL,
            .group = ONEPOT_GROUP_FOLDERS,
            .part_names = (const char *const[]){"mask", "image"},
            .part_folders = i < 2 ? (const char *const[]){"masks/", "./images"}
                                  : (const char *const[]){"m", "d/images"},
            .part_count = 2};
        struct onepot_archive *a, *other;
        struct onepot_error error = {0};
        uint64_t found, parts;
        uint8_t digest[2][ONEPOT_DIGEST_BYTES];
        int r = onepot_archive_open(paths, 1, &o, &error, &a);
        ck_assert_msg(r == 0, "%s", error.text);
        ck_assert_uint_eq(onepot_archive_samples(a), 4);
        ck_assert_uint_eq(onepot_archive_classes(a), 2);
        for (unsigned s = 0; s < 4; s++) {
            struct onepot_part part = {.size = sizeof(part)};
            char bytes[64];
            size_t got;
            int64_t label;
            check_name(a, s, keys[s]);
            ck_assert_int_eq(onepot_archive_find(a, keys[s], &found), 0);
            ck_assert_uint_eq(found, s);
            ck_assert_int_eq(onepot_archive_label(a, s, NULL, &label), 0);
            ck_assert_int_eq(label, s ? 1 : -1);
            ck_assert_int_eq(onepot_archive_parts(a, s, &parts), 0);
            ck_assert_uint_eq(parts, 2);
            ck_assert_int_eq(onepot_archive_part(a, s, 1, &part), 0);
            ck_assert_mem_eq(part.name, "image", part.name_len);
            ck_assert_int_eq(onepot_archive_read(a, s, 0, bytes, sizeof(bytes), NULL, &got), 0);
            ck_assert_mem_eq(bytes, "d/masks/", 8);
            ck_assert_mem_eq(bytes + 8, keys[s], strlen(keys[s]));
            ck_assert_mem_eq(bytes + part.offset, "d/images/", 9);
            ck_assert_mem_eq(bytes + part.offset + 9, keys[s], strlen(keys[s]));
        }
        ck_assert_uint_eq(onepot_archive_unpaired(a, &first), 3);
        ck_assert_str_eq(first, "d/images/a/0.jpg");
        ck_assert_int_eq(onepot_archive_digest(a, digest[0]), 0);
        o.part_count = 1; /* the same masks, but alone */
        ck_assert_int_eq(onepot_archive_open(paths, 1, &o, NULL, &other), 0);
        ck_assert_uint_eq(onepot_archive_samples(other), 5);
        ck_assert_int_eq(onepot_archive_digest(other, digest[1]), 0);
        ck_assert_int_ne(memcmp(digest[0], digest[1], sizeof(digest[0])), 0);
        onepot_archive_close(other);
        onepot_archive_close(a);
    }
    tree_end(&t);
}
END_TEST

START_TEST(folders_that_make_no_pairs_are_errors)
{
    static const struct {
        const char *names[2], *folders[2];
        size_t count;
        int err;
        const char *words;
    } cases[] = {{{"a", "b"}, {"images", "images/c"}, 2, -EINVAL, "'images' and 'images/c'"},
                 {{"a", "b"}, {"images", "./images/"}, 2, -EINVAL, "'images' and 'images'"},
                 {{"a", "b"}, {"", "images"}, 2, -EINVAL, "'' and 'images'"},
                 {{"a", "a"}, {"images", "masks"}, 2, -EINVAL, "different names, not 'a'"},
                 {{"", "b"}, {"images", "masks"}, 2, -EINVAL, "different names, not ''"},
                 {{"a", "b"}, {"images", "../x"}, 2, -EINVAL, "'../x' has '..'"},
                 {{"a", "b"}, {"images", "nothing"}, 2, -ENOENT, "no directory 'nothing'"},
                 {{"a", "b"}, {"images", "empty"}, 2, -ENOENT, "5 files without a partner"},
                 {{"a", "b"}, {"images", "twice"}, 2, -EEXIST, "twice/1.png: another file"},
                 {{"a", "b"}, {"images", "masks"}, 0, -EINVAL, "at least one folder"}};
    struct tree t;
    tree_begin(&t);
    for (unsigned i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof(name), "images/%u", i);
        tree_file(&t, name, "x", 1);
    }
    tree_file(&t, "images/c/1", "x", 1);
    tree_file(&t, "masks/0", "x", 1);
    tree_file(&t, "empty/.hidden", "x", 1);
    tree_file(&t, "twice/1.jpg", "x", 1);
    tree_file(&t, "twice/1.png", "x", 1);
    tree_pack(&t, PACKING_TAR);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const paths[] = {t.archive};
        struct onepot_archive_options o = {.size = sizeof(o),
                                           .group = ONEPOT_GROUP_FOLDERS,
                                           .part_names = cases[i].names,
                                           .part_folders = cases[i].folders,
                                           .part_count = cases[i].count};
        struct onepot_error error = {0};
        struct onepot_archive *a;
        ck_assert_int_eq(onepot_archive_open(paths, 1, &o, &error, &a), cases[i].err);
        ck_assert_msg(strstr(error.text, cases[i].words) != NULL, "%s", error.text);
    }
    tree_end(&t);
}
END_TEST

START_TEST(links_are_samples_as_in_imagefolder)
{
    static const struct {
        const char *name;
        int64_t label;
        const char *bytes;
    } expected[] = {
        {"top.png", -1, "c/0"},        {"a/0.png", 0, "c/0"},     {"a/1.png", 0, "c/1"},
        {"a/sub/2.png", 0, "c/2"},     {"b/0.png", 1, "b/0"},     {"b/linked.png", 1, "c/0"},
        {"b/twice.png", 1, "c/0"},     {"b/all/0.png", 1, "c/0"}, {"b/all/1.png", 1, "c/1"},
        {"b/all/sub/2.png", 1, "c/2"}, {"c/0.png", 2, "c/0"},     {"c/1.png", 2, "c/1"},
        {"c/sub/2.png", 2, "c/2"},
    };
    const uint64_t count = sizeof(expected) / sizeof(expected[0]);
    struct tree t;
    tree_begin(&t);
    tree_file(&t, "c/0.png", "c/0", 3);
    tree_file(&t, "c/1.png", "c/1", 3);
    tree_file(&t, "c/sub/2.png", "c/2", 3);
    tree_file(&t, "b/0.png", "b/0", 3);
    tree_link(&t, "a", "c");
    tree_link(&t, "top.png", "./b/../c/0.png");
    tree_link(&t, "b/linked.png", "../c/0.png");
    tree_link(&t, "b/twice.png", "linked.png");
    tree_link(&t, "b/all", "../a/");
    tree_link(&t, "b/1.png", "/etc/passwd");
    tree_link(&t, "b/2.png", "../../outside.png");
    tree_link(&t, "b/3.png", "nowhere.png");
    tree_link(&t, "b/4.png", "4.png");
    tree_link(&t, "b/5.png", "0.png/x");
    tree_link(&t, "d", "nowhere");
    if (tree_pack(&t, (enum packing)_i)) {
        struct onepot_archive *a = tree_open(&t, NULL);
        const char *first;
        ck_assert_uint_eq(onepot_archive_classes(a), 3);
        ck_assert_uint_eq(onepot_archive_samples(a), count);
        for (uint64_t i = 0; i < count; i++)
            check_link(a, i, expected[i].name, expected[i].label, expected[i].bytes);
        ck_assert_uint_eq(onepot_archive_passed_over(a, &first), 6);
        ck_assert_str_eq(first, "d");
        uint64_t none;
        ck_assert_int_eq(onepot_archive_find(a, "b/3.png", &none), -ENOENT);
        onepot_archive_close(a);

        struct onepot_archive_options o = {.size = sizeof(o), .root = "b/all//sub"};
        o.filters = (const char *const[]){"*.png"};
        o.filter_count = 1;
        a = tree_open(&t, &o);
        ck_assert_uint_eq(onepot_archive_samples(a), 1);
        check_link(a, 0, "b/all/sub/2.png", -1, "c/2");
        ck_assert_uint_eq(onepot_archive_passed_over(a, &first), 0);
        ck_assert_ptr_null(first);
        onepot_archive_close(a);
    }
    tree_end(&t);
}
END_TEST

START_TEST(parts_and_labels_may_be_links)
{
    struct tree t;
    tree_begin(&t);
    tree_file(&t, "real/x.jpg", "picture", 7);
    tree_file(&t, "real/n", "17", 2);
    tree_link(&t, "real/x.cls", "n");
    tree_link(&t, "linked", "real");
    tree_link(&t, "s/y.jpg", "../real/x.jpg");
    tree_link(&t, "s/y.cls", "../linked/x.cls");
    tree_pack(&t, PACKING_TAR);
    struct onepot_archive_options o = {
        .size = sizeof(o), .group = ONEPOT_GROUP_BASE_NAME, .label_part = "cls"};
    struct onepot_archive *a = tree_open(&t, &o);
    ck_assert_uint_eq(onepot_archive_samples(a), 5);
    check_link(a, 0, "linked/n", -1, "17");
    check_link(a, 1, "linked/x", 17, "17picture");
    check_link(a, 3, "real/x", 17, "17picture");
    check_link(a, 4, "s/y", 17, "17picture");
    struct onepot_part part = {.size = sizeof(part)};
    ck_assert_int_eq(onepot_archive_part(a, 4, 1, &part), 0);
    ck_assert_mem_eq(part.name, "jpg", part.name_len);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

/* As the kernel, whose 41st link is an error, so that os.walk ends there. */
START_TEST(directories_that_contain_themselves_end)
{
    struct onepot_error error;
    struct onepot_archive *a;
    const char *first;
    struct tree t;
    tree_begin(&t);
    tree_file(&t, "c/0", "0", 1);
    tree_link(&t, "c/self", "../c");
    tree_pack(&t, PACKING_TAR);
    a = tree_open(&t, NULL);
    ck_assert_uint_eq(onepot_archive_samples(a), 41);
    check_name(a, 0, "c/0");
    check_name(a, 1, "c/self/0");
    ck_assert_uint_eq(onepot_archive_passed_over(a, &first), 1);
    ck_assert_uint_eq(strlen(first), 1 + 41 * 5);
    onepot_archive_close(a);

    tree_link(&t, "c/again", ".");
    tree_pack(&t, PACKING_TAR);
    const char *const paths[] = {t.archive};
    ck_assert_int_eq(onepot_archive_open(paths, 1, NULL, &error, &a), -EOVERFLOW);
    ck_assert_ptr_nonnull(strstr(error.text, "multiply"));
    ck_assert_ptr_nonnull(strstr(error.text, "c/"));
    tree_end(&t);
}
END_TEST

/* The shards of one tree: links and what they lead to may lie in different ones. */
START_TEST(links_lead_from_shard_to_shard)
{
    struct tree t;
    char folder[128];
    tree_begin(&t);
    snprintf(folder, sizeof(folder), "%s/shards", t.path);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    tree_file(&t, "c/0", "0", 1);
    tree_file(&t, "c/1", "1", 1);
    tree_file(&t, "c/sub/2", "2", 1);
    tree_link(&t, "a", "c");
    tree_link(&t, "b/x", "../c/1");
    tree_link(&t, "b/y", "../c/3");
    run_shell("cd '%s' && tar -C tree -cf shards/0.tar c/0 b/x b/y && %s", t.path,
              "tar -C tree -cf shards/1.tar a c/1 && tar -C tree -cf shards/2.tar a c/sub");
    const char *const paths[] = {folder};
    struct onepot_archive *a;
    const char *first;
    ck_assert_int_eq(onepot_archive_open(paths, 1, NULL, NULL, &a), 0);
    ck_assert_uint_eq(onepot_archive_samples(a), 7);
    check_link(a, 0, "a/0", 0, "0");
    check_link(a, 1, "a/1", 0, "1");
    check_link(a, 2, "a/sub/2", 0, "2");
    check_link(a, 3, "b/x", 1, "1");
    check_link(a, 6, "c/sub/2", 2, "2");
    ck_assert_uint_eq(onepot_archive_passed_over(a, &first), 1);
    ck_assert_str_eq(first, "b/y");
    onepot_archive_close(a);
    struct onepot_archive_options o = {.size = sizeof(o), .root = "a"};
    ck_assert_int_eq(onepot_archive_open(paths, 1, &o, NULL, &a), 0);
    ck_assert_uint_eq(onepot_archive_samples(a), 3);
    check_link(a, 2, "a/sub/2", 0, "2");
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(no_samples_are_an_error_that_says_what_is_there)
{
    struct onepot_archive_options o = {.size = sizeof(o)};
    struct onepot_error error;
    struct onepot_archive *a;
    const char *first;
    char fifo[128];
    struct tree t;
    tree_begin(&t);
    tree_link(&t, "a/k1", "/data/full/k1");
    tree_link(&t, "a/k2", "/data/full/k2");
    tree_file(&t, "b/note.txt", "x", 1);
    snprintf(fifo, sizeof(fifo), "%s/tree/b/fifo", t.path);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    tree_pack(&t, PACKING_TAR);
    const char *const paths[] = {t.archive};
    o.extensions = (const char *const[]){".jpg"};
    o.extension_count = 1;
    ck_assert_int_eq(onepot_archive_open(paths, 1, &o, &error, &a), -ENOENT);
    static const char *const words[] = {"2 directories", "2 symbolic links", "1 file ",
                                        "1 entry of another kind", "allow_empty"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        ck_assert_msg(strstr(error.text, words[i]) != NULL, "%s", error.text);
    o.allow_empty = true;
    ck_assert_int_eq(onepot_archive_open(paths, 1, &o, &error, &a), 0);
    ck_assert_uint_eq(onepot_archive_samples(a), 0);
    ck_assert_uint_eq(onepot_archive_classes(a), 2);
    ck_assert_uint_eq(onepot_archive_passed_over(a, &first), 2);
    ck_assert_str_eq(first, "a/k1");
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(shards_in_a_folder_or_by_a_pattern_are_one_dataset)
{
    struct tree t;
    char path[128];
    tree_begin(&t);
    run_shell("mkdir '%s/shards'%s", t.path, "");
    for (unsigned i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "class%u/f%u", i % 2, i);
        tree_file(&t, name, &i, sizeof(i));
        tree_pack(&t, PACKING_TAR);
        snprintf(path, sizeof(path), "%s/shards/s%u.tar", t.path, i);
        ck_assert_int_eq(rename(t.archive, path), 0);
        run_shell("rm -r '%s/tree' && mkdir '%s/tree'", t.path, t.path);
    }
    run_shell("touch '%s/shards/.hidden' '%s/shards/s0.tar.onepot-index'", t.path, t.path);
    snprintf(path, sizeof(path), "%s/shards", t.path);
    const char *paths[] = {path};
    for (int round = 0; round < 2; round++) {
        struct onepot_archive *a;
        struct onepot_error error;
        ck_assert_int_eq(onepot_archive_open(paths, 1, NULL, &error, &a), 0);
        ck_assert_uint_eq(onepot_archive_samples(a), 3);
        check_name(a, 0, "class0/f0");
        check_name(a, 1, "class0/f2");
        check_name(a, 2, "class1/f1");
        onepot_archive_close(a);
        strcat(path, "/s*.tar");
    }
    struct onepot_archive *none;
    struct onepot_error error;
    strcat(path, "x");
    ck_assert_int_eq(onepot_archive_open(paths, 1, NULL, &error, &none), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error.text, "s*.tarx"));
    ck_assert_int_eq(onepot_archive_open(paths, 0, NULL, &error, &none), -EINVAL);
    tree_end(&t);
}
END_TEST

/* The fold of each of `count` numbered samples. */
static void find_folds(const struct onepot_archive *a, uint32_t folds, bool stratify,
                       uint32_t *ret_folds)
{
    for (uint32_t fold = 0; fold < folds; fold++) {
        struct onepot_archive *out;
        ck_assert_int_eq(onepot_archive_fold(a, folds, fold, true, 3, stratify, NULL, &out), 0);
        for (uint64_t i = 0; i < onepot_archive_samples(out); i++) {
            uint32_t number;
            size_t got;
            ck_assert_int_eq(onepot_archive_read(out, i, 0, &number, 4, NULL, &got), 0);
            ret_folds[number] = fold;
        }
        onepot_archive_close(out);
    }
}

START_TEST(folds_have_equal_sizes_also_of_each_label)
{
    enum { COUNT = 301, CLASSES = 7 };
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, COUNT, CLASSES, four);
    tree_pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL), *fewer;
    static const uint32_t folds[] = {2, 5, 8, 300, 301, 400};
    uint32_t of[COUNT], before[COUNT], stratified[COUNT];
    uint64_t numbers[COUNT - 1];
    for (unsigned i = 0; i < sizeof(folds) / sizeof(folds[0]); i++) {
        uint32_t n = folds[i], sizes[2][400] = {0}, of_label[400][CLASSES] = {0};
        find_folds(a, n, false, of);
        find_folds(a, n, true, stratified);
        for (uint64_t s = 0; s < COUNT; s++) {
            uint32_t number;
            size_t got;
            int64_t label;
            ck_assert_int_eq(onepot_archive_read(a, s, 0, &number, 4, NULL, &got), 0);
            ck_assert_int_eq(onepot_archive_label(a, s, NULL, &label), 0);
            sizes[0][of[number]]++;
            sizes[1][stratified[number]]++;
            of_label[stratified[number]][label]++;
        }
        for (uint32_t f = 0; f < n; f++) {
            for (unsigned which = 0; which < 2; which++) {
                ck_assert_uint_ge(sizes[which][f], COUNT / n);
                ck_assert_uint_le(sizes[which][f], COUNT / n + 1);
            }
            for (unsigned label = 0; label < CLASSES; label++) {
                ck_assert_uint_ge(of_label[f][label] + 1, of_label[0][label]);
                ck_assert_uint_le(of_label[f][label], of_label[0][label] + 1);
            }
        }
    }
    /* Without one sample, few others move. */
    find_folds(a, 5, false, before);
    for (unsigned i = 0; i < COUNT - 1; i++)
        numbers[i] = i < 100 ? i : i + 1;
    ck_assert_int_eq(onepot_archive_subset(a, numbers, COUNT - 1, &fewer), 0);
    find_folds(fewer, 5, false, of);
    unsigned moved = 0;
    for (unsigned i = 0; i < COUNT; i++)
        moved += of[i] != before[i];
    ck_assert_uint_lt(moved, 5 + 1);
    onepot_archive_close(fewer);
    onepot_archive_close(a);
    tree_end(&t);
}
END_TEST

START_TEST(splits_and_folds_go_by_name_alone)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, 1000, 3, four);
    tree_pack(&t, PACKING_ONEPOT);
    struct onepot_archive *a = tree_open(&t, NULL), *train, *test, *none;
    ck_assert_int_eq(onepot_archive_split(a, 0, 0.8, 1, &train), 0);
    ck_assert_int_eq(onepot_archive_split(a, 0.8, 1, 1, &test), 0);
    uint64_t n = onepot_archive_samples(train);
    ck_assert_uint_eq(n + onepot_archive_samples(test), 1000);
    ck_assert_uint_gt(n, 740);
    ck_assert_uint_lt(n, 860);
    ck_assert_int_eq(onepot_archive_split(a, 0.5, 0.5, 1, &none), 0);
    ck_assert_uint_eq(onepot_archive_samples(none), 0);
    onepot_archive_close(none);
    ck_assert_int_eq(onepot_archive_split(a, 0.5, 1.5, 1, &none), -EINVAL);

    /* A fifth of the files goes; all others stay where they were. */
    uint8_t digest_a[16], digest_b[16];
    ck_assert_int_eq(onepot_archive_digest(train, digest_a), 0);
    ck_assert_int_eq(onepot_archive_digest(test, digest_b), 0);
    ck_assert_mem_ne(digest_a, digest_b, 16);
    struct onepot_archive_options o = {
        .size = sizeof(o), .filters = (const char *const[]){"*[1-9].bin"}, .filter_count = 1};
    struct onepot_archive *fewer = tree_open(&t, &o), *fewer_train;
    ck_assert_int_eq(onepot_archive_split(fewer, 0, 0.8, 1, &fewer_train), 0);
    for (uint64_t i = 0; i < onepot_archive_samples(fewer_train); i++) {
        char name[64];
        size_t len;
        uint64_t found;
        ck_assert_int_eq(onepot_archive_name(fewer_train, i, name, sizeof(name), &len), 0);
        ck_assert_int_eq(onepot_archive_find(train, name, &found), 0);
        ck_assert_int_eq(onepot_archive_find(test, name, &found), -ENOENT);
    }
    onepot_archive_close(fewer_train);
    onepot_archive_close(fewer);
    onepot_archive_close(test);
    onepot_archive_close(train);

    uint8_t seen[1000] = {0};
    for (uint32_t fold = 0; fold < 5; fold++) {
        struct onepot_archive *out, *rest;
        ck_assert_int_eq(onepot_archive_fold(a, 5, fold, true, 7, false, NULL, &out), 0);
        ck_assert_int_eq(onepot_archive_fold(a, 5, fold, false, 7, false, NULL, &rest), 0);
        ck_assert_uint_eq(onepot_archive_samples(out), 200);
        ck_assert_uint_eq(onepot_archive_samples(out) + onepot_archive_samples(rest), 1000);
        for (uint64_t i = 0; i < onepot_archive_samples(out); i++) {
            uint32_t number;
            size_t got;
            ck_assert_int_eq(onepot_archive_read(out, i, 0, &number, 4, NULL, &got), 0);
            seen[number]++;
        }
        onepot_archive_close(out);
        onepot_archive_close(rest);
    }
    for (unsigned i = 0; i < 1000; i++)
        ck_assert_uint_eq(seen[i], 1);
    ck_assert_int_eq(onepot_archive_fold(a, 1, 0, true, 7, false, NULL, &none), -EINVAL);

    struct onepot_archive *some;
    const uint64_t list[] = {999, 5, 5}, wrong[] = {1000};
    ck_assert_int_eq(onepot_archive_subset(a, list, 3, &some), 0);
    ck_assert_int_eq(onepot_archive_subset(a, wrong, 1, &none), -ERANGE);
    onepot_archive_close(a); /* the view lives on */
    check_name(some, 0, "c002/0000999.bin");
    check_name(some, 2, "c000/0000005.bin");
    onepot_archive_close(some);
    tree_end(&t);
}
END_TEST

START_TEST(an_archive_works_on_after_a_fork)
{
    struct tree t;
    if (!FORKS_WITH_THREADS && _i == PACKING_SQUASHFS) { /* its cache has one that shares */
        puts("skipped: under a sanitizer a process with threads can't fork");
        return;
    }
    tree_begin(&t);
    tree_numbered(&t, 50, 2, four);
    if (tree_pack(&t, (enum packing)_i)) {
        struct onepot_archive *a = tree_open(&t, NULL);
        uint32_t number;
        size_t got;
        ck_assert_int_eq(onepot_archive_read(a, 7, 0, &number, 4, NULL, &got), 0);
        pid_t child = fork();
        if (child == 0) {
            bool good = true;
            for (uint64_t i = 0; i < 50; i++)
                good = good && onepot_archive_read(a, i, 0, &number, 4, NULL, &got) == 0 &&
                       number == i;
            onepot_archive_close(a);
            _exit(good ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
        ck_assert_int_eq(onepot_archive_read(a, 9, 0, &number, 4, NULL, &got), 0);
        ck_assert_uint_eq(number, 9);
        onepot_archive_close(a);
    }
    tree_end(&t);
}
END_TEST

START_TEST(errors_name_archive_and_member)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, 50, 2, four);
    tree_pack(&t, PACKING_TAR);
    struct onepot_archive *a = tree_open(&t, NULL), *none;
    ck_assert_int_eq(truncate(t.archive, 2048), 0);
    char bytes[16];
    size_t got;
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_archive_read(a, 40, 0, bytes, sizeof(bytes), &error, &got),
                     -ENODATA);
    ck_assert_int_eq(error.code, -ENODATA);
    ck_assert_ptr_nonnull(strstr(error.text, "plain.tar"));
    ck_assert_ptr_nonnull(strstr(error.text, "c001/0000040.bin"));
    onepot_archive_close(a);
    const char *const paths[] = {"/nowhere/x.tar"};
    ck_assert_int_eq(onepot_archive_open(paths, 1, NULL, &error, &none), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error.text, "/nowhere/x.tar"));
    tree_end(&t);
}
END_TEST

/* From now on this process starts none, as one at its user's limit (ulimit -u). */
static bool forbid_processes(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

START_TEST(shards_without_a_process_to_index_them_are_an_error)
{
    struct tree t;
    int status;
    tree_begin(&t);
    tree_file(&t, "a", "a", 1);
    tree_pack(&t, PACKING_TAR);
    run_shell("cd '%s' && mkdir shards && cp '%s' shards", t.path, t.archive);
    char folder[96], pattern[96];
    snprintf(folder, sizeof(folder), "%s/shards", t.path);
    snprintf(pattern, sizeof(pattern), "%s/shards/*.tar", t.path);
    const char *const paths[] = {folder, pattern};
    pid_t child = fork();
    if (child == 0) {
        struct onepot_archive *none;
        if (!forbid_processes())
            _exit(77);
        for (int i = 0; i < 2; i++)
            if (onepot_archive_open(paths + i, 1, NULL, NULL, &none) != -EAGAIN)
                _exit(1);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        puts("left out: no filter of system calls can be had");
    else
        ck_assert_int_eq(status, 0);
    tree_end(&t);
}
END_TEST

START_TEST(a_thousand_times_open_and_close_keeps_nothing)
{
    struct tree t;
    tree_begin(&t);
    tree_numbered(&t, 20, 2, four);
    tree_pack(&t, PACKING_ONEPOT);
    int before = open("/dev/null", O_RDONLY);
    close(before);
    for (unsigned i = 0; i < 1000; i++) {
        struct onepot_archive *a = tree_open(&t, NULL), *part;
        char bytes[4];
        size_t got;
        ck_assert_int_eq(onepot_archive_split(a, 0, 0.5, i, &part), 0);
        ck_assert_int_eq(onepot_archive_read(a, 3, 0, bytes, 4, NULL, &got), 0);
        onepot_archive_close(a);
        onepot_archive_close(part);
    }
    int after = open("/dev/null", O_RDONLY);
    close(after);
    ck_assert_int_eq(before, after);
    tree_end(&t);
}
END_TEST

/* In the folder of the tree; the archive is taken for one on a network. */
START_TEST(staged_archives_have_the_same_bytes)
{
    struct tree t;
    char folder[128];
    struct stat st;
    if (!FORKS_WITH_THREADS && _i != PACKING_ONEPOT) {
        puts("skipped: under a sanitizer a process that copies can't fork to index another");
        return;
    }
    make_tree(&t);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    if (tree_pack(&t, (enum packing)_i)) {
        struct onepot_archive_options o = {.size = sizeof(o), .stage = t.path};
        struct onepot_archive *a = tree_open(&t, &o), *other = tree_open(&t, &o);
        snprintf(folder, sizeof(folder), "%s/onepot-stage-%u", t.path, (unsigned)geteuid());
        ck_assert_int_eq(stat(folder, &st), 0);
        for (size_t i = 0; i < NAMES; i++) {
            char name[256], bytes[256];
            size_t len, got;
            const void *place;
            uint64_t size;
            ck_assert_int_eq(onepot_archive_name(a, i, name, sizeof(name), &len), 0);
            ck_assert_int_eq(onepot_archive_read(a, i, 0, bytes, sizeof(bytes), NULL, &got), 0);
            ck_assert_uint_eq(got, len);
            ck_assert_mem_eq(bytes, name, len);
            int r = onepot_archive_bytes(other, i, &place, &size);
            if (_i != PACKING_SQUASHFS)
                ck_assert_int_eq(r, 0);
            if (r == 0)
                ck_assert_mem_eq(place, name, len);
        }
        onepot_archive_close(a);
        ck_assert_int_eq(stat(folder, &st), 0);
        onepot_archive_close(other);
        ck_assert_int_eq(stat(folder, &st), -1);
    }
    unsetenv("ONEPOT_ASSUME_REMOTE");
    tree_end(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dataset");
    TCase *t = tcase_create("dataset");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, samples_are_in_imagefolders_order_with_its_labels, 0, PACKINGS);
    tcase_add_test(t, filters_extensions_and_a_root_choose_files);
    tcase_add_test(t, files_group_by_base_name_and_by_directory);
    tcase_add_test(t, folders_keep_the_parts_of_samples_apart);
    tcase_add_test(t, folders_that_make_no_pairs_are_errors);
    tcase_add_loop_test(t, links_are_samples_as_in_imagefolder, 0, PACKINGS);
    tcase_add_test(t, parts_and_labels_may_be_links);
    tcase_add_test(t, directories_that_contain_themselves_end);
    tcase_add_test(t, links_lead_from_shard_to_shard);
    tcase_add_test(t, no_samples_are_an_error_that_says_what_is_there);
    tcase_add_test(t, shards_in_a_folder_or_by_a_pattern_are_one_dataset);
    tcase_add_test(t, folds_have_equal_sizes_also_of_each_label);
    tcase_add_test(t, splits_and_folds_go_by_name_alone);
    tcase_add_loop_test(t, an_archive_works_on_after_a_fork, 0, PACKINGS);
    tcase_add_loop_test(t, staged_archives_have_the_same_bytes, 0, PACKINGS);
    tcase_add_test(t, errors_name_archive_and_member);
    tcase_add_test(t, shards_without_a_process_to_index_them_are_an_error);
    tcase_add_test(t, a_thousand_times_open_and_close_keeps_nothing);
    suite_add_tcase(s, t);
    return run_suite(s);
}
