/* The builder: an index shows what extraction of the members would have left behind. */
#include <fcntl.h>

#include "checksum.h"
#include "index_helper.h"
#include "index_records.h"
#include "suite.h"

/* ---- paths ---- */

START_TEST(an_empty_archive_is_an_empty_root)
{
    struct index *index = build(new_builder(), &tar_header);
    struct node root = node_of(index, "");
    ck_assert_uint_eq(root.mode, S_IFDIR | 0755);
    ck_assert_uint_eq(root.nlink, 2);
    ck_assert_int_eq(root.mtime_sec, 0);
    ck_assert_uint_eq(root.uid + root.gid, 0);
    ck_assert_str_eq(listing(index, ""), "");
    ck_assert_uint_eq(index_info(index)->entries, 1);
    ck_assert_uint_eq(index_info(index)->directories, 1);
    ck_assert_uint_eq(index_info(index)->inodes, 1);
    index_close(index);
}
END_TEST

START_TEST(paths_are_made_safe)
{
    static const char *const same[] = {
        "d/f", "./d/f", "/d/f", "//d//f", "d/./f", "d/f/", "./././/d/././f/./"};
    struct builder *b = new_builder();
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        add_file(b, same[i], 1000 * i, i + 1);
    add_file(b, "d/.hidden", 0, 0);
    add_file(b, "d/...", 0, 0);
    add_file(b, "d/..x", 0, 0);
    add_file(b, "d/x..", 0, 0);
    add_file(b, "d/.x", 0, 0);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), "d ");
    ck_assert_str_eq(listing(index, "d"), "... ..x .hidden .x f x.. ");
    ck_assert_uint_eq(node_of(index, "d/f").size_bytes, sizeof(same) / sizeof(same[0]));
    index_close(index);
}
END_TEST

static void check_refused(struct builder *b, const char *path, size_t len, const struct node *m,
                          int err)
{
    struct fault fault = {0};
    uint32_t inode = 77;
    ck_assert_int_eq(builder_add(b, path, len, m, &fault, &inode), err);
    ck_assert_uint_eq(inode, 77);
    ck_assert_int_eq(fault.err, -err);
    ck_assert_uint_eq(fault.offset, m->header_offset);
    ck_assert_int_eq(strncmp(fault.member, path, strlen(fault.member)), 0);
    ck_assert_str_ne(fault.what, "");
}

START_TEST(unsafe_names_are_refused_with_member_and_offset)
{
    struct builder *b = new_builder();
    const struct node m = {.mode = S_IFREG, .header_offset = 4711};
    char name[300];
    memset(name, 'a', sizeof(name));
    check_refused(b, "..", 2, &m, -EINVAL);
    check_refused(b, "../x", 4, &m, -EINVAL);
    check_refused(b, "a/../b", 6, &m, -EINVAL);
    check_refused(b, "a/..", 4, &m, -EINVAL);
    check_refused(b, "/..//", 5, &m, -EINVAL);
    check_refused(b, "a\0b", 3, &m, -EINVAL);
    check_refused(b, "a\0/b", 4, &m, -EINVAL);
    check_refused(b, name, 256, &m, -ENAMETOOLONG);
    memcpy(name + 260, "/f", 2);
    check_refused(b, name, 262, &m, -ENAMETOOLONG);
    check_refused(b, "way/there/../b", 14, &m, -EINVAL);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), ""); /* no directories for them either */
    index_close(index);
}
END_TEST

/* "d/d/...d/NAME" of so many bytes. */
static const char *deep_path(char path[INDEX_PATH_MAX + 3], size_t bytes, const char *name)
{
    size_t way = bytes - strlen(name);
    for (size_t i = 0; i < way; i++)
        path[i] = i % 2 ? '/' : 'd';
    strcpy(path + way, name);
    return path;
}

START_TEST(a_path_may_have_4095_bytes)
{
    struct builder *b = new_builder();
    const struct node file = {.mode = S_IFREG};
    char path[INDEX_PATH_MAX + 3], *long_path = malloc(200001);
    add_file(b, deep_path(path, INDEX_PATH_MAX, "f"), 0, 1);
    check_refused(b, deep_path(path, INDEX_PATH_MAX + 1, "fg"), INDEX_PATH_MAX + 1, &file,
                  -ENAMETOOLONG);
    for (size_t i = 0; i < 200000; i++)
        long_path[i] = i % 2 ? '/' : 'x';
    check_refused(b, long_path, 199999, &file, -ENAMETOOLONG);
    free(long_path);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, deep_path(path, INDEX_PATH_MAX, "f")).size_bytes, 1);
    ck_assert_str_eq(listing(index, ""), "d ");
    index_close(index);
}
END_TEST

START_TEST(a_way_through_links_is_no_deeper)
{
    struct builder *b = new_builder();
    char path[INDEX_PATH_MAX + 3];
    add_file(b, deep_path(path, 4001, "f"), 0, 1);
    path[strlen(path) - 2] = '\0';
    add(b, "link", &(struct node){.mode = S_IFLNK, .link = path, .link_len = strlen(path)});
    add_file(b, "link/x/y", 0, 2);
    char further[105] = "link/";
    for (size_t i = strlen(further); i < 104; i++)
        further[i] = i % 2 ? 'e' : '/';
    check_refused(b, further, 104, &(struct node){.mode = S_IFREG}, -ENAMETOOLONG);
    builder_free(b);
}
END_TEST

START_TEST(a_name_may_have_255_bytes_and_any_but_zero_and_slash)
{
    struct builder *b = new_builder();
    char longest[256], odd[256];
    memset(longest, 'x', 255);
    longest[255] = '\0';
    size_t n = 0;
    for (int c = 255; c > 0; c--)
        if (c != '/')
            odd[n++] = (char)c;
    odd[n] = '\0';
    add_file(b, longest, 0, 1);
    add_file(b, odd, 0, 2);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, longest).size_bytes, 1);
    ck_assert_uint_eq(node_of(index, odd).size_bytes, 2);
    index_close(index);
}
END_TEST

START_TEST(the_root_takes_attributes)
{
    struct builder *b = new_builder();
    add(b, "./",
        &(struct node){
            .mode = S_IFDIR | 01700, .uid = 5, .gid = 6, .mtime_sec = 7, .mtime_nsec = 8});
    add_file(b, "f", 0, 0);
    struct fault fault = {0};
    uint32_t inode;
    ck_assert_int_eq(try_add(b, ".", &(struct node){.mode = S_IFREG}, &fault, &inode), -EISDIR);
    struct index *index = build(b, &tar_header);
    struct node root = node_of(index, ".");
    ck_assert_uint_eq(root.mode, S_IFDIR | 01700);
    ck_assert_uint_eq(root.uid, 5);
    ck_assert_uint_eq(root.gid, 6);
    ck_assert_int_eq(root.mtime_sec, 7);
    ck_assert_uint_eq(root.mtime_nsec, 8);
    ck_assert_str_eq(listing(index, ""), "f ");
    index_close(index);
}
END_TEST

START_TEST(directories_that_no_member_announced_exist)
{
    struct builder *b = new_builder();
    add(b, "a/b/c/f",
        &(struct node){
            .mode = S_IFREG | 0600, .uid = 1, .gid = 2, .mtime_sec = 3, .mtime_nsec = 4});
    add_dir(b, "a/b", 0700);
    struct index *index = build(b, &tar_header);
    struct node a = node_of(index, "a"), ab = node_of(index, "a/b");
    ck_assert_uint_eq(a.mode, S_IFDIR | 0755);
    ck_assert_uint_eq(a.uid, 1);
    ck_assert_uint_eq(a.gid, 2);
    ck_assert_int_eq(a.mtime_sec, 3);
    ck_assert_uint_eq(a.mtime_nsec, 4);
    ck_assert_uint_eq(a.nlink, 3);
    ck_assert_uint_eq(ab.mode, S_IFDIR | 0700);
    ck_assert_str_eq(listing(index, "a/b"), "c ");
    ck_assert_uint_eq(node_of(index, "a/b/c").nlink, 2);
    index_close(index);
}
END_TEST

/* ---- members of one name ---- */

START_TEST(the_last_of_two_members_of_one_name_wins)
{
    struct builder *b = new_builder();
    add_file(b, "f", 0, 10);
    add_symlink(b, "l", "target");
    add_file(b, "f", 1000, 20);
    add_file(b, "l", 2000, 30);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), "f l ");
    ck_assert_uint_eq(node_of(index, "f").size_bytes, 20);
    ck_assert_uint_eq(extent_of(index, "f", 0).source_offset, 1000);
    ck_assert_uint_eq(node_of(index, "l").mode, S_IFREG | 0644);
    ck_assert_uint_eq(index_info(index)->files, 2);
    ck_assert_uint_eq(index_info(index)->total_bytes, 50);
    ck_assert_uint_eq(index_info(index)->inodes, 3);
    index_close(index);
}
END_TEST

START_TEST(a_directory_that_comes_again_keeps_its_children)
{
    struct builder *b = new_builder();
    uint32_t first = add_dir(b, "d", 0700);
    add_file(b, "d/f", 0, 1);
    uint32_t again = add_dir(b, "d", 0755);
    ck_assert_uint_eq(first, again);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, "d").mode, S_IFDIR | 0755);
    ck_assert_str_eq(listing(index, "d"), "f ");
    index_close(index);
}
END_TEST

START_TEST(a_directory_with_members_is_not_replaced)
{
    struct builder *b = new_builder();
    const struct node file = {.mode = S_IFREG, .header_offset = 9};
    add_file(b, "full/f", 0, 1);
    add_dir(b, "empty", 0755);
    check_refused(b, "full", 4, &file, -EISDIR);
    add(b, "empty", &file);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, "empty").mode, S_IFREG);
    ck_assert_uint_eq(node_of(index, "").nlink, 3);
    ck_assert_uint_eq(index_info(index)->directories, 2);
    index_close(index);
}
END_TEST

START_TEST(nothing_lies_below_what_is_no_directory)
{
    struct builder *b = new_builder();
    const struct node file = {.mode = S_IFREG, .header_offset = 9};
    add_file(b, "f", 0, 1);
    add_symlink(b, "l", "f");
    check_refused(b, "f/x", 3, &file, -ENOTDIR);
    check_refused(b, "l/x", 3, &file, -ENOTDIR);
    check_refused(b, "f/x/y", 5, &file, -ENOTDIR);
    /* The directory that was remembered is a file meanwhile. */
    add_dir(b, "d", 0755);
    add_dir(b, "d/e", 0755);
    add_dir(b, "g", 0755);
    check_refused(b, "g/..", 4, &file, -EINVAL);
    struct fault fault = {0};
    uint32_t inode;
    const struct node link = {.is_hardlink = true, .link = "g/none", .link_len = 6};
    ck_assert_int_eq(builder_add(b, "x", 1, &link, &fault, &inode), -ENOENT);
    add_file(b, "g", 0, 1);
    check_refused(b, "g/none", 6, &file, -ENOTDIR);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), "d f g l ");
    index_close(index);
}
END_TEST

/* ---- symbolic links on the way ---- */

START_TEST(a_path_goes_through_links_of_the_archive)
{
    struct builder *b = new_builder();
    add_dir(b, "usr/lib", 0755);
    add_symlink(b, "lib", "usr/lib");
    add_symlink(b, "usr/up", ".././lib//");
    add_symlink(b, "dangling", "made/on/the/way");
    add_file(b, "lib/a", 0, 1);
    add_file(b, "usr/up/b", 512, 2);
    add_file(b, "usr/up/d/c", 1024, 3);
    add_file(b, "dangling/x", 2048, 4);
    add_link(b, "lib/h", "usr/up/d/c");
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), "dangling lib made usr ");
    ck_assert_str_eq(listing(index, "usr/lib"), "a b d h ");
    ck_assert_uint_eq(node_of(index, "usr/lib/h").nlink, 2);
    ck_assert_uint_eq(node_of(index, "made/on/the/way/x").size_bytes, 4);
    ck_assert_uint_eq(node_of(index, "lib").mode & S_IFMT, S_IFLNK);
    index_close(index);
}
END_TEST

START_TEST(a_link_that_changes_leads_elsewhere)
{
    struct builder *b = new_builder();
    add_symlink(b, "l", "one");
    add_file(b, "l/a", 0, 1);
    add_symlink(b, "l", "two");
    add_file(b, "l/a", 512, 2);
    add_dir(b, "l", 0755); /* in the place of the link, not through it */
    add_file(b, "l/a", 1024, 3);
    add_file(b, "m", 0, 1);
    add_symlink(b, "m", "one/sub");
    add_file(b, "m/a", 2048, 4);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, "one/a").size_bytes, 1);
    ck_assert_uint_eq(node_of(index, "two/a").size_bytes, 2);
    ck_assert_uint_eq(node_of(index, "l/a").size_bytes, 3);
    ck_assert_uint_eq(node_of(index, "one/sub/a").size_bytes, 4);
    index_close(index);
}
END_TEST

START_TEST(links_that_lead_out_or_in_circles_are_not_followed)
{
    struct builder *b = new_builder();
    const struct node file = {.mode = S_IFREG, .header_offset = 9};
    char path[32], target[32];
    add_dir(b, "d/e", 0755);
    add_symlink(b, "absolute", "/d");
    add_symlink(b, "above", "..");
    add_symlink(b, "d/e/far", "../../../d");
    add_symlink(b, "self", "self");
    add_symlink(b, "ping", "d/../pong");
    add_symlink(b, "pong", "./ping");
    add_symlink(b, "deep", "deep/deep");
    add_symlink(b, "to_file", "d/f");
    add_file(b, "d/f", 0, 1);
    check_refused(b, "absolute/x", 10, &file, -ENOTDIR);
    check_refused(b, "above/x", 7, &file, -ENOTDIR);
    check_refused(b, "d/e/far/x", 9, &file, -ENOTDIR);
    check_refused(b, "to_file/x", 9, &file, -ENOTDIR);
    check_refused(b, "self/x", 6, &file, -ELOOP);
    check_refused(b, "ping/x", 6, &file, -ELOOP);
    check_refused(b, "deep/x", 6, &file, -ELOOP);
    check_refused(b, "d/../x", 6, &file, -EINVAL);
    /* As many as the system follows, and one more. */
    for (int i = 0; i < 41; i++) {
        snprintf(path, sizeof(path), "n%d", i);
        snprintf(target, sizeof(target), i ? "n%d" : "d", i - 1);
        add_symlink(b, path, target);
    }
    add_file(b, "n39/x", 0, 1);
    check_refused(b, "n40/x", 5, &file, -ELOOP);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, "d"), "e f x ");
    ck_assert_str_eq(listing(index, "d/e"), "far ");
    index_close(index);
}
END_TEST

START_TEST(what_is_left_out_is_told_up_to_a_bound)
{
    struct builder *b = new_builder();
    for (unsigned i = 0; i < 1000; i++) {
        struct fault why = {0};
        char member[40];
        snprintf(member, sizeof(member), "member %u", i);
        fault_set(&why, -ENOENT, member, i * 512, "is a hard link to 'nothing'");
        ck_assert_int_eq(builder_leave_out(b, &why), 0);
    }
    struct fault longest = {.offset = 1};
    memset(longest.member, 'm', sizeof(longest.member));
    memset(longest.what, 'w', sizeof(longest.what));
    ck_assert_int_eq(builder_leave_out(b, &longest), 0);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(index_left_out(index), 1001);
    uint64_t cursor = 0;
    struct fault why;
    for (unsigned i = 0; i < 100; i++) {
        char member[40];
        snprintf(member, sizeof(member), "member %u", i);
        ck_assert_int_eq(index_left_out_next(index, &cursor, &why), 0);
        ck_assert_str_eq(why.member, member);
        ck_assert_str_eq(why.what, "is a hard link to 'nothing'");
        ck_assert_uint_eq(why.offset, i * 512);
    }
    ck_assert_int_eq(index_left_out_next(index, &cursor, &why), -ENOENT);
    index_close(index);
    ck_assert(!builder_may_leave_out(-EUCLEAN) && !builder_may_leave_out(-EOVERFLOW) &&
              !builder_may_leave_out(-EMLINK) && !builder_may_leave_out(0));
}
END_TEST

START_TEST(a_file_becomes_a_directory)
{
    struct builder *b = new_builder();
    add_file(b, "x", 0, 1);
    add_dir(b, "x", 0755);
    add_file(b, "x/f", 0, 1);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, "x"), "f ");
    index_close(index);
}
END_TEST

/* ---- hard links ---- */

START_TEST(linked_names_share_one_inode)
{
    struct builder *b = new_builder();
    add_file(b, "z/first", 512, 10);
    add_link(b, "a", "z/first");
    add_link(b, "./m/", "./z//first");
    struct index *index = build(b, &tar_header);
    struct node one = node_of(index, "z/first"), two = node_of(index, "a");
    ck_assert_uint_eq(one.position, two.position);
    ck_assert_uint_eq(one.position, node_of(index, "m").position);
    ck_assert_uint_eq(one.position, position_of(index, "a"));
    ck_assert_uint_eq(two.nlink, 3);
    ck_assert_uint_eq(extent_of(index, "m", 3).source_offset, 515);
    uint32_t inode_position = 0;
    ck_assert_int_eq(
        index_inode_position(index, position_of(index, "z/first"), &inode_position), 0);
    ck_assert_uint_eq(inode_position, one.position);
    ck_assert(index_info(index)->has_hardlinks);
    ck_assert_uint_eq(index_info(index)->files, 3);
    ck_assert_uint_eq(index_info(index)->inodes, 3);
    ck_assert_uint_eq(index_info(index)->total_bytes, 10);
    index_close(index);
}
END_TEST

START_TEST(a_link_keeps_the_inode_that_its_target_had)
{
    struct builder *b = new_builder();
    add_file(b, "f", 0, 10);
    add_link(b, "l", "f");
    add_file(b, "f", 1000, 20);
    add_link(b, "m", "f");
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, "l").size_bytes, 10);
    ck_assert_uint_eq(node_of(index, "l").nlink, 1);
    ck_assert_uint_eq(node_of(index, "f").size_bytes, 20);
    ck_assert_uint_eq(node_of(index, "m").nlink, 2);
    index_close(index);
}
END_TEST

START_TEST(a_link_to_itself_changes_nothing)
{
    struct builder *b = new_builder();
    add_file(b, "f", 0, 10);
    add_link(b, "f", "f");
    add_link(b, "g", "f");
    add_link(b, "g", "f");
    add_link(b, "g", "g");
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, "f").nlink, 2);
    index_close(index);
}
END_TEST

START_TEST(a_link_replaces_what_had_its_name)
{
    struct builder *b = new_builder();
    add_file(b, "f", 0, 10);
    add_file(b, "g", 100, 20);
    add_link(b, "g", "f");
    add_dir(b, "d", 0755);
    add_link(b, "d", "f");
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(node_of(index, "g").size_bytes, 10);
    ck_assert_uint_eq(node_of(index, "d").nlink, 3);
    ck_assert_uint_eq(index_info(index)->inodes, 2);
    index_close(index);
}
END_TEST

START_TEST(bad_links_are_refused)
{
    struct builder *b = new_builder();
    uint32_t inode = 77;
    add_file(b, "d/f", 0, 10);
    static const struct {
        const char *path, *target;
        int err;
    } cases[] = {
        {"l", "none", -ENOENT},   {"l", "d/none", -ENOENT},   {"l", "none/x", -ENOENT},
        {"l", "d/f/x", -ENOENT},  {"l", "../d/f", -ENOENT},   {"l", "d", -EPERM},
        {"l", ".", -EPERM},       {"l", "", -EPERM},          {"d", "d/f", -EISDIR},
        {"../l", "d/f", -EINVAL}, {"d/f/l", "d/f", -ENOTDIR}, {"", "d/f", -EISDIR},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault fault = {0};
        const struct node link = {.header_offset = 512,
                                  .is_hardlink = true,
                                  .link = cases[i].target,
                                  .link_len = strlen(cases[i].target)};
        int r = builder_add(b, cases[i].path, strlen(cases[i].path), &link, &fault, &inode);
        ck_assert_msg(r == cases[i].err, "%s -> %s: %d", cases[i].path, cases[i].target, r);
        ck_assert_uint_eq(fault.offset, 512);
        ck_assert_str_eq(fault.member, cases[i].path);
    }
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), "d ");
    ck_assert_str_eq(listing(index, "d"), "f ");
    index_close(index);
}
END_TEST

/* By an inode of a directory and a name in it; a member of type 0 is another name of *inode. */
static int add_in(struct builder *b, uint32_t directory, const char *name, uint32_t mode,
                  uint32_t *inode)
{
    const struct node member = {.mode = mode, .mtime_sec = INT64_C(1) << 40};
    struct fault fault = {0};
    int r =
        builder_add_in(b, directory, name, strlen(name), mode ? &member : NULL, &fault, inode);
    ck_assert(r != -ENAMETOOLONG || fault.err == ENAMETOOLONG);
    return r;
}

START_TEST(names_in_directories_replace_nothing)
{
    struct builder *b = new_builder();
    char name[INDEX_NAME_MAX + 1];
    uint32_t d, again = 0, file, ignored, deep = 0, levels = 0;
    ck_assert_int_eq(add_in(b, 0, "d", S_IFDIR | 0711, &d), 0);
    ck_assert_int_eq(add_in(b, 0, "d", S_IFDIR | 0700, &again), 1);
    ck_assert_uint_eq(again, d);
    ck_assert_int_eq(add_in(b, d, "f", S_IFREG | 0644, &file), 0);
    ck_assert_int_eq(add_in(b, d, "f", S_IFREG | 0600, &ignored), -EEXIST);
    ck_assert_int_eq(add_in(b, d, "f", S_IFDIR | 0700, &ignored), -EEXIST);
    ck_assert_int_eq(add_in(b, 0, "d", S_IFREG | 0600, &ignored), -EEXIST);
    ck_assert_int_eq(add_in(b, 0, "d", 0, &file), -EEXIST);
    ck_assert_int_eq(add_in(b, 0, "link", 0, &file), 0);
    ck_assert_int_eq(add_in(b, 0, "link", 0, &file), 1);
    ck_assert_int_eq(add_in(b, file, "x", S_IFREG, &ignored), -EINVAL);
    ck_assert_int_eq(add_in(b, 1000, "x", S_IFREG, &ignored), -EINVAL);
    add_symlink(b, "way", "d");
    ck_assert_int_eq(add_in(b, 0, "way", S_IFDIR | 0700, &ignored), -EEXIST);
    add_file(b, "d/g", 0, 1);
    memset(name, 'n', INDEX_NAME_MAX);
    name[INDEX_NAME_MAX] = '\0';
    while (add_in(b, deep, name, S_IFDIR | 0700, &deep) == 0)
        levels++;
    ck_assert_uint_eq(levels, (INDEX_PATH_MAX + 1) / (INDEX_NAME_MAX + 1));
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, "d"), "f g ");
    ck_assert_uint_eq(node_of(index, "d").mode, S_IFDIR | 0711);
    ck_assert_int_eq(node_of(index, "d").mtime_sec, INT64_C(1) << 40);
    ck_assert_uint_eq(node_of(index, "d/f").nlink, 2);
    ck_assert_uint_eq(node_of(index, "d/f").mode, S_IFREG | 0644);
    ck_assert_uint_eq(node_of(index, "link").position, node_of(index, "d/f").position);
    index_close(index);
}
END_TEST

/* ---- attributes ---- */

START_TEST(all_types_and_attributes_are_kept)
{
    struct builder *b = new_builder();
    add(b, "c",
        &(struct node){.mode = S_IFCHR | 06777,
                       .uid = UINT32_MAX,
                       .gid = UINT32_MAX - 1,
                       .rdev_major = 0xfffffff1,
                       .rdev_minor = 0xfffffff2});
    add(b, "b", &(struct node){.mode = S_IFBLK, .rdev_major = 8, .rdev_minor = 1});
    add(b, "s", &(struct node){.mode = S_IFSOCK | 0755});
    add_symlink(b, "l", "../to/nowhere");
    struct fault fault = {0};
    uint32_t inode;
    ck_assert_int_eq(try_add(b, "x", &(struct node){.mode = 0644}, &fault, &inode), -EINVAL);
    struct index *index = build(b, &tar_header);
    struct node c = node_of(index, "c");
    ck_assert_uint_eq(c.mode, S_IFCHR | 06777);
    ck_assert_uint_eq(c.uid, UINT32_MAX);
    ck_assert_uint_eq(c.gid, UINT32_MAX - 1);
    ck_assert_uint_eq(c.rdev_major, 0xfffffff1);
    ck_assert_uint_eq(c.rdev_minor, 0xfffffff2);
    ck_assert_uint_eq(node_of(index, "b").rdev_major, 8);
    ck_assert_uint_eq(node_of(index, "s").mode, S_IFSOCK | 0755);
    ck_assert_uint_eq(node_of(index, "l").size_bytes, 13);
    const char *target;
    size_t len;
    ck_assert_int_eq(index_symlink(index, position_of(index, "l"), &target, &len), 0);
    ck_assert_uint_eq(len, 13);
    ck_assert_mem_eq(target, "../to/nowhere", 13);
    ck_assert_int_eq(index_symlink(index, position_of(index, "b"), &target, &len), -EINVAL);
    index_close(index);
}
END_TEST

START_TEST(times_are_kept_to_the_nanosecond_from_any_century)
{
    static const int64_t seconds[] = {
        0,           -1,          1700000000, -(INT64_C(1) << 31), -(INT64_C(1) << 31) - 1,
        15032385535, 15032385536, INT64_MAX,  INT64_MIN,           -62135596800};
    enum { COUNT = sizeof(seconds) / sizeof(seconds[0]) };
    struct builder *b = new_builder();
    char name[16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        add(b, name,
            &(struct node){.mode = S_IFREG,
                           .mtime_sec = seconds[i],
                           .mtime_nsec = 999999999u - (uint32_t)i});
    }
    /* A directory whose time comes twice, once of each kind. */
    add(b, "d", &(struct node){.mode = S_IFDIR, .mtime_sec = INT64_MAX});
    add(b, "d", &(struct node){.mode = S_IFDIR, .mtime_sec = INT64_MIN});
    add(b, "e", &(struct node){.mode = S_IFDIR, .mtime_sec = INT64_MAX});
    add(b, "e", &(struct node){.mode = S_IFDIR, .mtime_sec = 5});
    struct index *index = build(b, &tar_header);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        struct node node = node_of(index, name);
        ck_assert_int_eq(node.mtime_sec, seconds[i]);
        ck_assert_uint_eq(node.mtime_nsec, 999999999u - (uint32_t)i);
    }
    ck_assert_int_eq(node_of(index, "d").mtime_sec, INT64_MIN);
    ck_assert_int_eq(node_of(index, "e").mtime_sec, 5);
    index_close(index);

    b = new_builder();
    check_refused(b, "x", 1, &(struct node){.mode = S_IFREG, .mtime_nsec = 1000000000},
                  -EUCLEAN);
    builder_free(b);
}
END_TEST

START_TEST(symbolic_links_have_a_target_that_linux_can_hold)
{
    struct builder *b = new_builder();
    char target[4096];
    memset(target, 't', sizeof(target));
    struct node m = {.mode = S_IFLNK | 0777, .link = target, .link_len = 4095};
    add(b, "longest", &m);
    m.link_len = 4096;
    check_refused(b, "longer", 6, &m, -ENAMETOOLONG);
    m.link_len = 0;
    check_refused(b, "empty", 5, &m, -EINVAL);
    m.link = "a\0b";
    m.link_len = 3;
    check_refused(b, "zero", 4, &m, -EINVAL);
    struct index *index = build(b, &tar_header);
    ck_assert_str_eq(listing(index, ""), "longest ");
    ck_assert_uint_eq(node_of(index, "longest").size_bytes, 4095);
    index_close(index);
}
END_TEST

static void xattr(struct builder *b, uint32_t inode, const char *name, const char *value)
{
    ck_assert_int_eq(builder_add_xattr(b, inode, name, strlen(name), value, strlen(value)), 0);
}

static const char *xattrs_of(const struct index *index, const char *path)
{
    static char text[1024];
    uint64_t cursor = 0;
    struct xattr x;
    uint32_t position = position_of(index, path);
    text[0] = '\0';
    while (index_xattr_next(index, position, &cursor, &x) == 0) {
        strncat(text, x.name, x.name_len);
        strcat(text, "=");
        strncat(text, x.value, x.value_len);
        strcat(text, " ");
        struct xattr same;
        ck_assert_int_eq(index_xattr_get(index, position, x.name, x.name_len, &same), 0);
        ck_assert_ptr_eq(same.value, x.value);
    }
    ck_assert_int_eq(index_xattr_next(index, position, &cursor, &x), -ENOENT);
    ck_assert_int_eq(index_xattr_get(index, position, "user.none", 9, &x), -ENODATA);
    return text;
}

START_TEST(extended_attributes_are_kept_shared_and_replaced)
{
    struct builder *b = new_builder();
    uint32_t f = add_file(b, "f", 0, 0), g = add_file(b, "g", 0, 0), d = add_dir(b, "d", 0755);
    add_file(b, "none", 0, 0);
    xattr(b, f, "user.b", "2");
    xattr(b, f, "user.a", "1");
    xattr(b, g, "user.a", "1");
    xattr(b, d, "user.empty", "");
    xattr(b, g, "user.b", "2");
    xattr(b, f, "user.a", "9"); /* comes back to an inode whose set was made */
    xattr(b, f, "user.a", "1");
    add_dir(b, "d", 0700);
    add_link(b, "l", "f");
    ck_assert_int_eq(builder_add_xattr(b, 1000, "user.a", 6, "", 0), -EINVAL);
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(index_xattrs_left_out(index), 0);
    ck_assert_str_eq(xattrs_of(index, "f"), "user.a=1 user.b=2 ");
    ck_assert_str_eq(xattrs_of(index, "g"), "user.a=1 user.b=2 ");
    ck_assert_str_eq(xattrs_of(index, "l"), "user.a=1 user.b=2 ");
    ck_assert_str_eq(xattrs_of(index, "d"), "user.empty= ");
    ck_assert_str_eq(xattrs_of(index, "none"), "");
    ck_assert(node_of(index, "f").has_xattrs && !node_of(index, "none").has_xattrs);
    ck_assert(index_info(index)->has_xattrs);
    struct xattr x, y;
    ck_assert_int_eq(index_xattr_get(index, position_of(index, "f"), "user.a", 6, &x), 0);
    ck_assert_int_eq(index_xattr_get(index, position_of(index, "g"), "user.a", 6, &y), 0);
    ck_assert_ptr_eq(x.value, y.value);
    index_close(index);
}
END_TEST

START_TEST(attributes_that_linux_has_no_place_for_are_left_out_and_counted)
{
    static const char *const names[] = {"com.apple.provenance",
                                        "",
                                        "user",
                                        "user.",
                                        "users.a",
                                        "USER.a",
                                        "system.",
                                        "lustre.lov"};
    static char large[65537];
    struct builder *b = new_builder();
    uint32_t f = add_file(b, "f", 0, 0), d = add_dir(b, "d", 0755),
             l = add_symlink(b, "l", "f");
    uint64_t count = sizeof(names) / sizeof(names[0]);
    for (size_t i = 0; i < count; i++)
        xattr(b, f, names[i], "value");
    xattr(b, f, "user.a", "1");
    xattr(b, d, "trusted.a", "2");
    xattr(b, l, "security.a", "3");
    xattr(b, l, "user.a", "no link has it");
    ck_assert_int_eq(builder_add_xattr(b, f, "user.large", 10, large, 65537), 0);
    ck_assert_int_eq(builder_add_xattr(b, f, "user.large", 10, large, 65536), 0);
    ck_assert_int_eq(builder_add_xattr(b, f, "user.a\0b", 8, "", 0), 0);
    memset(large, 'n', sizeof(large));
    memcpy(large, "user.", 5);
    ck_assert_int_eq(builder_add_xattr(b, f, large, 256, "", 0), 0);
    count += 4;
    for (unsigned i = 0; i < 300; i++) { /* 256 names of 255 bytes fit in one list */
        snprintf(large + 6, 5, "%04u", i);
        large[10] = 'n';
        ck_assert_int_eq(builder_add_xattr(b, d, large, 255, "", 0), 0);
    }
    struct index *index = build(b, &tar_header);
    ck_assert_uint_eq(index_xattrs_left_out(index), count + 300 + 1 - 256);
    struct xattr x;
    ck_assert_int_eq(index_xattr_get(index, position_of(index, "f"), "user.a", 6, &x), 0);
    ck_assert_int_eq(index_xattr_get(index, position_of(index, "f"), "user.large", 10, &x), 0);
    ck_assert_uint_eq(x.value_len, 65536);
    ck_assert_str_eq(xattrs_of(index, "l"), "security.a=3 ");
    index_close(index);
}
END_TEST

START_TEST(many_sets_of_attributes)
{
    enum { COUNT = 3000 };
    struct builder *b = new_builder();
    static char value[65536];
    char name[32];
    memset(value, 'v', sizeof(value));
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        uint32_t inode = add_file(b, name, 0, 0);
        snprintf(name, sizeof(name), "%d", i % 1000);
        xattr(b, inode, "user.n", name);
        if (i == 7)
            ck_assert_int_eq(builder_add_xattr(b, inode, "user.large", 10, value, 65536), 0);
    }
    uint32_t inode = add_file(b, "full", 0, 0);
    for (unsigned i = 0; i < BUILDER_XATTRS_MAX; i++) {
        snprintf(name, sizeof(name), "user.%u", i);
        xattr(b, inode, name, "");
    }
    ck_assert_int_eq(builder_add_xattr(b, inode, "user.more", 9, "", 0), 0);
    struct index *index = build(b, &tar_header);
    for (int i = 8; i < COUNT; i++) {
        struct xattr x;
        snprintf(name, sizeof(name), "f%d", i);
        ck_assert_int_eq(index_xattr_get(index, position_of(index, name), "user.n", 6, &x), 0);
        ck_assert_int_eq(strtol(x.value, NULL, 10) % 1000, i % 1000);
    }
    struct xattr x;
    ck_assert_int_eq(index_xattr_get(index, position_of(index, "f7"), "user.large", 10, &x), 0);
    ck_assert_uint_eq(x.value_len, 65536);
    ck_assert_mem_eq(x.value, value, 65536);
    index_close(index);
}
END_TEST

/* ---- data ---- */

START_TEST(data_past_the_end_of_the_archive_is_refused)
{
    struct builder *b = new_builder();
    builder_set_archive_size(b, 1000);
    struct node m = {
        .mode = S_IFREG, .data_offset = 600, .size_bytes = 400, .header_offset = 88};
    add(b, "fits", &m);
    m.size_bytes = 401;
    check_refused(b, "cut", 3, &m, -EUCLEAN);
    m.data_offset = UINT64_MAX - 5;
    check_refused(b, "wraps", 5, &m, -EUCLEAN);
    m.data_offset = 0;
    m.size_bytes = UINT64_C(1) << 63;
    check_refused(b, "huge", 4, &m, -EUCLEAN);
    m.size_bytes = 1000;
    uint32_t number, inode = add_unset(b, "ranges", 1000);
    struct builder_piece piece = stored_at(0, 1, 1000);
    ck_assert_int_eq(builder_set_pieces(b, inode, &piece, 1), -EUCLEAN);
    piece.source_offset = UINT64_MAX;
    ck_assert_int_eq(builder_set_pieces(b, inode, &piece, 1), -EUCLEAN);
    piece.source_offset = 999;
    ck_assert_int_eq(builder_set_pieces(b, inode, &piece, 1), 0);
    struct builder_block block = {.source_offset = 999, .packed_bytes = 2, .block_bytes = 1000};
    ck_assert_int_eq(builder_add_block(b, &block, &number), -EUCLEAN);
    block.packed_bytes = 1;
    ck_assert_int_eq(builder_add_block(b, &block, &number), 0);
    builder_free(b);
}
END_TEST

START_TEST(an_empty_file_needs_no_place)
{
    struct builder *b = new_builder();
    builder_set_archive_size(b, 10);
    add_file(b, "f", 10, 0);
    add_unset(b, "unset", 0);
    uint32_t inode = add_pieces(b, "pieces", 0, NULL, 0);
    ck_assert_int_eq(builder_set_pieces(b, inode, NULL, 0), -EINVAL); /* once */
    struct index *index = build(b, &tar_header);
    struct extent extent;
    static const char *const names[] = {"f", "unset", "pieces"};
    for (int i = 0; i < 3; i++) {
        uint32_t position = position_of(index, names[i]);
        ck_assert_int_eq(index_extent(index, position, 0, &extent), -ENXIO);
        ck_assert_uint_eq(node_of(index, names[i]).data_bytes, 0);
        ck_assert(!node_of(index, names[i]).has_holes);
    }
    index_close(index);
}
END_TEST

START_TEST(ranges_and_holes_make_a_sparse_file)
{
    struct builder *b = new_builder();
    const uint64_t size = UINT64_C(5) << 30;
    const struct builder_piece ranges[] = {stored_at(4096, 4096, 10000),
                                           stored_at(8192, 100, 14096), /* goes on */
                                           stored_at(size - 1, 1, 20000)};
    const struct builder_piece refused[][2] = {
        {stored_at(4096, 4096, 10000), stored_at(8191, 1, 0)}, /* overlaps */
        {stored_at(4096, 4096, 10000), stored_at(10, 1, 0)},   /* comes late */
        {stored_at(0, 1, 0), stored_at(size - 1, 2, 0)},
        {stored_at(0, 1, 0), stored_at(9000, 0, 0)},
        {stored_at(0, 1, 0), stored_at(2, 1, UINT64_C(1) << 63)}};
    const struct builder_piece halves[] = {stored_at(0, 30, 700), stored_at(30, 20, 730)};
    const struct builder_piece parts[] = {stored_at(0, 30, 700), stored_at(30, 20, 100)};
    uint32_t sparse = add_unset(b, "sparse", size);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        ck_assert_int_eq(builder_set_pieces(b, sparse, refused[i], 2), -EUCLEAN);
    ck_assert_int_eq(builder_set_pieces(b, sparse, ranges, 3), 0);
    add_pieces(b, "hole", size, NULL, 0);
    add_pieces(b, "another hole", size, NULL, 0);
    add_pieces(b, "whole", 50, halves, 2);
    add_pieces(b, "pieces", 50, parts, 2);
    ck_assert_int_eq(builder_set_pieces(b, 0, ranges, 1), -EINVAL);

    struct index *index = build(b, &tar_header);
    struct extent e = extent_of(index, "sparse", 0);
    ck_assert(e.kind == EXTENT_HOLE && e.length == 4096);
    e = extent_of(index, "sparse", 4100);
    ck_assert(e.kind == EXTENT_STORED && e.length == 4192 && e.source_offset == 10004);
    e = extent_of(index, "sparse", 8292);
    ck_assert(e.kind == EXTENT_HOLE && e.length == (UINT64_C(5) << 30) - 1 - 8292);
    e = extent_of(index, "sparse", (UINT64_C(5) << 30) - 1);
    ck_assert(e.kind == EXTENT_STORED && e.length == 1 && e.source_offset == 20000);
    ck_assert_uint_eq(node_of(index, "sparse").data_bytes, 4197);
    ck_assert(node_of(index, "sparse").has_holes);
    e = extent_of(index, "hole", 5);
    ck_assert(e.kind == EXTENT_HOLE && e.length == (UINT64_C(5) << 30) - 5);
    ck_assert_uint_eq(node_of(index, "hole").data_bytes, 0);
    ck_assert(node_of(index, "hole").has_holes);
    e = extent_of(index, "whole", 10);
    ck_assert(e.kind == EXTENT_STORED && e.length == 40 && e.source_offset == 710);
    ck_assert(!node_of(index, "whole").has_holes);
    e = extent_of(index, "pieces", 10);
    ck_assert(e.kind == EXTENT_STORED && e.length == 20 && e.source_offset == 710);
    e = extent_of(index, "pieces", 30);
    ck_assert(e.kind == EXTENT_STORED && e.length == 20 && e.source_offset == 100);
    ck_assert_uint_eq(node_of(index, "pieces").data_bytes, 50);
    ck_assert(index_info(index)->has_holes);
    ck_assert_uint_eq(index_info(index)->data_bytes, 4197 + 50 + 50);
    index_close(index);
}
END_TEST

static const struct builder_header squash_header = {.format = FORMAT_SQUASHFS,
                                                    .codec = CODEC_ZSTD,
                                                    .block_bytes = 4096,
                                                    .archive_bytes = 1 << 20};

START_TEST(blocks_holes_and_tails)
{
    struct builder *b = new_builder();
    uint32_t shared = add_block(b, 500, 77, 4096), first = add_block(b, 1000, 100, 4096);
    const struct builder_piece big[] = {
        packed_at(0, 4096, first, 0), stored_at(3 * 4096, 4096, 2000),
        stored_at(4 * 4096, 4096, 6096), stored_at(5 * 4096, 9, 10192)};
    const struct builder_piece tail[] = {packed_at(0, 4096, first, 0),
                                         packed_at(4096, 20, shared, 100)};
    const struct builder_piece small = packed_at(0, 40, shared, 300);
    add_pieces(b, "big", 5 * 4096 + 9, big, 4);
    add_pieces(b, "tail", 4096 + 20, tail, 2);
    add_pieces(b, "small", 40, &small, 1);

    struct index *index = build(b, &squash_header);
    struct extent e = extent_of(index, "big", 7);
    ck_assert(e.kind == EXTENT_BLOCK && e.source_offset == 1000 && e.packed_bytes == 100 &&
              e.block_bytes == 4096 && e.block_offset == 7 && e.length == 4089);
    e = extent_of(index, "big", 4097);
    ck_assert(e.kind == EXTENT_HOLE && e.length == 8191);
    e = extent_of(index, "big", 3 * 4096 + 5);
    ck_assert(e.kind == EXTENT_STORED && e.source_offset == 2005 && e.length == 8196);
    ck_assert_uint_eq(node_of(index, "big").data_bytes, 3 * 4096 + 9);
    ck_assert(node_of(index, "big").has_holes);

    e = extent_of(index, "tail", 4090);
    ck_assert(e.kind == EXTENT_BLOCK && e.length == 6 && e.source_offset == 1000);
    e = extent_of(index, "tail", 4099);
    ck_assert(e.kind == EXTENT_BLOCK && e.source_offset == 500 && e.packed_bytes == 77 &&
              e.block_offset == 103 && e.length == 17);
    ck_assert_uint_eq(node_of(index, "tail").data_bytes, 4116);
    e = extent_of(index, "small", 1);
    ck_assert(e.kind == EXTENT_BLOCK && e.block_offset == 301 && e.length == 39);
    ck_assert(!node_of(index, "tail").has_holes);
    index_close(index);
}
END_TEST

/* The bytes of EXTENTS in an image of one file that is these pieces, whose extents are checked.
 */
static uint64_t ranges_of(const uint32_t *block_bytes, const struct builder_piece *pieces,
                          size_t count)
{
    struct builder *b = new_builder();
    const struct builder_piece *last = &pieces[count - 1];
    for (; *block_bytes; block_bytes++)
        add_block(b, *block_bytes, 9, *block_bytes);
    add_pieces(b, "f", last->offset + last->length, pieces, count);
    size_t len;
    struct source *source = NULL;
    struct index *index = NULL;
    uint8_t *image = build_image(b, &squash_header, &len);
    ck_assert_int_eq(source_from_memory(image, len, "index", &source), 0);
    ck_assert_int_eq(index_open(source, 0, len, NULL, &index), 0);
    for (size_t i = 0; i < count; i++) {
        struct extent e = extent_of(index, "f", pieces[i].offset);
        ck_assert_uint_eq(e.length, pieces[i].length);
        ck_assert_uint_eq(e.block, pieces[i].block);
        ck_assert_uint_eq(e.block_offset, pieces[i].block_offset);
    }
    uint64_t bytes = index_section_bytes(index, SECTION_EXTENTS);
    index_close(index);
    source_close(source);
    free(image);
    return bytes;
}

/* No other neighbours: a reader counts with the size of the first block. */
START_TEST(full_blocks_that_follow_each_other_need_no_list)
{
    static const uint32_t same[] = {4096, 4096, 300, 0}, shorter[] = {4096, 300, 4096, 0};
    static const uint32_t longer[] = {300, 4096, 4096, 0};
    const struct builder_piece run[] = {packed_at(0, 96, 0, 4000), packed_at(96, 4096, 1, 0),
                                        packed_at(4192, 300, 2, 0)};
    const struct builder_piece gap[] = {packed_at(0, 4096, 0, 0), packed_at(4096, 10, 2, 0)};
    const struct builder_piece skips[] = {packed_at(0, 4096, 0, 0), packed_at(4096, 10, 1, 1)};
    const struct builder_piece short_one[] = {
        packed_at(0, 4096, 0, 0), packed_at(4096, 300, 1, 0), packed_at(4396, 5, 2, 0)};
    const struct builder_piece long_one[] = {packed_at(0, 300, 0, 0),
                                             packed_at(300, 301, 1, 0)};
    const struct builder_piece begins[] = {packed_at(0, 300, 0, 0), packed_at(300, 300, 1, 0)};
    const struct builder_piece not_full[] = {packed_at(0, 300, 0, 0), packed_at(300, 300, 1, 0),
                                             packed_at(600, 5, 2, 0)};
    ck_assert_uint_eq(ranges_of(same, run, 3), 0);
    ck_assert_uint_eq(ranges_of(same, gap, 2), 16 + 2 * 24);
    ck_assert_uint_eq(ranges_of(same, skips, 2), 16 + 2 * 24);
    ck_assert_uint_eq(ranges_of(shorter, short_one, 3), 16 + 2 * 24);
    ck_assert_uint_eq(ranges_of(longer, long_one, 2), 16 + 2 * 24);
    ck_assert_uint_eq(ranges_of(longer, begins, 2), 0);
    ck_assert_uint_eq(ranges_of(longer, not_full, 3), 16 + 2 * 24);
}
END_TEST

START_TEST(pieces_that_do_not_make_the_file_are_refused)
{
    struct builder *b = new_builder();
    uint32_t number, block = add_block(b, 0, 9, 4096);
    const struct {
        struct builder_piece piece;
        int expected;
    } cases[] = {{packed_at(0, 4097, block, 0), -EUCLEAN},
                 {packed_at(0, 904, block, 4096 - 903), -EUCLEAN},
                 {packed_at(0, 1, block, 4097), -EUCLEAN},
                 {packed_at(0, 1, block, 1u << 31), -EUCLEAN},
                 {packed_at(0, 1, block + 1, 0), -EUCLEAN},
                 {packed_at(5000, 1, block, 0), -EUCLEAN},
                 {packed_at(4999, 2, block, 0), -EUCLEAN},
                 {packed_at(0, 904, block, 4096 - 904), 0},
                 {packed_at(4999, 1, block, 0), -EINVAL}}; /* once */
    uint32_t inode = add_unset(b, "f", 5000);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_int_eq(builder_set_pieces(b, inode, &cases[i].piece, 1), cases[i].expected);
    const struct builder_piece whole = packed_at(0, 1, block, 0);
    ck_assert_int_eq(builder_set_pieces(b, add_file(b, "s", 0, 1), &whole, 1), -EINVAL);
    const struct builder_block zero = {.source_offset = 0, .packed_bytes = 9};
    const struct builder_block hole = {.source_offset = 0, .block_bytes = 9};
    ck_assert_int_eq(builder_add_block(b, &zero, &number), -EUCLEAN);
    ck_assert_int_eq(builder_add_block(b, &hole, &number), -EUCLEAN);
    struct builder_header header = squash_header;
    uint64_t len;
    header.block_bytes = 2048;
    ck_assert_int_eq(builder_write(b, &header, -1, 0, NULL, &len), -EINVAL);
    struct index *index = build(b, &squash_header);
    index_close(index);
}
END_TEST

START_TEST(pieces_never_told_are_an_error_at_the_end)
{
    struct builder *b = new_builder();
    struct fault fault = {0};
    uint64_t len = 0;
    add_unset(b, "f", 5000);
    int fd = memfd_create("x", MFD_CLOEXEC);
    ck_assert_int_eq(builder_write(b, &squash_header, fd, 0, &fault, &len), -EINVAL);
    ck_assert_str_ne(fault.what, "");
    close(fd);
    builder_free(b);
}
END_TEST

START_TEST(sums_are_for_all_files_or_for_none)
{
    struct builder *b = new_builder();
    uint32_t f = add_file(b, "f", 0, 1), g = add_file(b, "g", 0, 1);
    add_dir(b, "d", 0755);
    add_link(b, "d/l", "g");
    ck_assert_int_eq(builder_set_sum(b, g, 0), 0);
    ck_assert_int_eq(builder_set_sum(b, f, 0x1234567890abcdef), 0);
    ck_assert_int_eq(builder_set_sum(b, 99, 1), -EINVAL);
    struct index *index = build(b, &tar_header);
    uint64_t sum = 1;
    ck_assert_int_eq(index_sum(index, position_of(index, "d/l"), &sum), 0);
    ck_assert_uint_eq(sum, 0);
    ck_assert_int_eq(index_sum(index, position_of(index, "f"), &sum), 0);
    ck_assert_uint_eq(sum, 0x1234567890abcdef);
    ck_assert_int_eq(index_sum(index, position_of(index, "d"), &sum), -EINVAL);
    ck_assert(index_info(index)->has_sums);
    index_close(index);

    b = new_builder();
    uint64_t len;
    f = add_file(b, "f", 0, 1);
    add_file(b, "g", 0, 1);
    ck_assert_int_eq(builder_set_sum(b, f, 1), 0);
    int fd = memfd_create("x", MFD_CLOEXEC);
    ck_assert_int_eq(builder_write(b, &tar_header, fd, 0, NULL, &len), -EINVAL);
    close(fd);
    builder_free(b);

    b = new_builder();
    add_file(b, "f", 0, 1);
    index = build(b, &tar_header);
    ck_assert_int_eq(index_sum(index, position_of(index, "f"), &sum), -ENODATA);
    index_close(index);
}
END_TEST

START_TEST(sums_of_mixed_kinds_tell_theirs)
{
    static const char text[] = "123456789";
    uint64_t crc32 = checksum_mixed(SUM_CRC32, checksum_of(SUM_CRC32, text, 9));
    uint64_t xxh3 = checksum_mixed(SUM_XXH3, checksum_of(SUM_XXH3, text, 9));
    struct checksum *running;
    if (!checksum_available(SUM_MIXED))
        return;
    ck_assert_uint_eq(checksum_mixed(SUM_MIXED, crc32), crc32);
    ck_assert(checksum_is_missing(0) && !checksum_is_missing(crc32) &&
              !checksum_is_missing(xxh3));
    ck_assert_int_eq(checksum_new(SUM_MIXED, &running), 0);
    checksum_add(running, text, 9);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t sum = i ? crc32 : xxh3;
        ck_assert(checksum_is(running, sum) && !checksum_is(running, sum ^ 1));
        ck_assert(checksum_matches(SUM_MIXED, sum, text, 9));
        ck_assert(!checksum_matches(SUM_MIXED, sum ^ 1, text, 9));
        ck_assert(!checksum_matches(SUM_MIXED, sum, text, 8));
    }
    checksum_free(running);
}
END_TEST

START_TEST(sums_may_be_of_another_kind)
{
    struct builder_header header = tar_header;
    struct builder *b = new_builder();
    uint32_t f = add_file(b, "f", 0, 9);
    uint64_t sum, of_text = checksum_of(SUM_CRC32, "123456789", 9);
    header.sum_kind = SUM_CRC32;
    ck_assert_int_eq(builder_set_sum(b, f, of_text), 0);
    struct index *index = build(b, &header);
    const struct index_info *info = index_info(index);
    ck_assert_int_eq(info->sum_kind, SUM_CRC32);
    ck_assert_int_eq(info->has_sums, checksum_available(SUM_CRC32));
    ck_assert_int_eq(info->digest_kind, DIGEST_NONE);
    if (checksum_available(SUM_CRC32)) {
        struct checksum *running;
        ck_assert_int_eq(index_sum(index, position_of(index, "f"), &sum), 0);
        ck_assert_uint_eq(sum, 0xcbf43926);
        ck_assert_int_eq(checksum_new(SUM_CRC32, &running), 0);
        checksum_add(running, "x", 1);
        checksum_reset(running);
        checksum_add(running, "1234", 4);
        checksum_add(running, "56789", 5);
        ck_assert(checksum_is(running, sum));
        ck_assert(!checksum_is(running, sum + 1));
        checksum_free(running);
    }
    index_close(index);
}
END_TEST

/* ---- the image ---- */

#define GOLDEN_BYTES 1200u
#define GOLDEN_SUM UINT64_C(9460572384382094077)

/* A bit of everything. */
static struct builder *everything(void)
{
    struct builder *b = new_builder();
    const struct builder_piece sparse = stored_at(100, 100, 1000);
    uint32_t block = add_block(b, 5, 9, 4096);
    const struct builder_piece packed[] = {packed_at(0, 4096, add_block(b, 5, 9, 4096), 0),
                                           packed_at(4096, 4, block, 7)};
    uint32_t inode = add_file(b, "dir/file", 512, 100);
    xattr(b, inode, "user.x", "value");
    add_link(b, "link", "dir/file");
    add_symlink(b, "dir/symlink", "file");
    add_pieces(b, "dir/sparse", 9999, &sparse, 1);
    add_pieces(b, "packed", 4100, packed, 2);
    add(b, "old", &(struct node){.mode = S_IFDIR | 0755, .mtime_sec = INT64_MIN});
    return b;
}

START_TEST(the_same_members_give_the_same_bytes)
{
    size_t len = 0, again = 1;
    struct builder_header header = squash_header;
    memset(header.identifier, 7, 16);
    uint8_t *one = build_image(everything(), &header, &len);
    uint8_t *two = build_image(everything(), &header, &again);
    ck_assert_uint_eq(len, again);
    ck_assert_uint_eq(len % 8, 0);
    ck_assert_mem_eq(one, two, len);
    /* The format itself: a change here is a change of what is on disk. */
    ck_assert_uint_eq(len, GOLDEN_BYTES);
    ck_assert_uint_eq(XXH3_64bits(one, len), GOLDEN_SUM);
    free(one);
    free(two);
}
END_TEST

START_TEST(the_header_tells_what_it_was_told)
{
    struct builder_header header = {
        .format = FORMAT_ONEPOT,
        .codec = CODEC_NONE,
        .archive_bytes = 123456,
        .archive_mtime_sec = -5,
        .archive_mtime_nsec = 6,
        .archive_fingerprint = 7,
        .identifier = "0123456789abcde",
        .end_marker_offset = 8,
    };
    struct builder *b = new_builder();
    add_file(b, "d/f", 0, 100);
    struct index *index = build(b, &header);
    const struct index_info *info = index_info(index);
    ck_assert(info->format == FORMAT_ONEPOT && info->codec == CODEC_NONE);
    ck_assert_uint_eq(info->archive_bytes, 123456);
    ck_assert_int_eq(info->archive_mtime_sec, -5);
    ck_assert_uint_eq(info->archive_mtime_nsec, 6);
    ck_assert_uint_eq(info->archive_fingerprint, 7);
    ck_assert_str_eq((const char *)info->identifier, "0123456789abcde");
    ck_assert_uint_eq(info->end_marker_offset, 8);
    ck_assert_uint_eq(info->entries, 3);
    ck_assert_uint_eq(info->name_bytes, 2);
    ck_assert(!info->has_xattrs && !info->has_holes && !info->has_hardlinks && !info->has_sums);
    index_close(index);
}
END_TEST

START_TEST(a_full_disk_is_reported)
{
    struct builder *b = everything();
    struct fault fault = {0};
    uint64_t len = 0;
    int fd = open("/dev/full", O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(builder_write(b, &squash_header, fd, 0, &fault, &len), -ENOSPC);
    ck_assert_int_eq(fault.err, ENOSPC);
    ck_assert_str_ne(fault.advice, "");
    close(fd);
    /* It was used up by that. */
    uint32_t inode;
    ck_assert_int_eq(try_add(b, "x", &(struct node){.mode = S_IFREG}, NULL, &inode), -EINVAL);
    builder_free(b);
}
END_TEST

START_TEST(an_image_can_lie_at_an_offset)
{
    struct fault fault = {0};
    uint64_t len = 0;
    struct source *source = NULL;
    struct index *index = NULL;
    struct builder *b = everything();
    int fd = memfd_create("x", MFD_CLOEXEC);
    ck_assert_int_eq(builder_write(b, &squash_header, fd, 10241, &fault, &len), -EINVAL);
    ck_assert_int_eq(builder_write(b, &squash_header, fd, 10248, &fault, &len), 0);
    builder_free(b);
    ck_assert_int_eq(ftruncate(fd, (off_t)(10248 + len + 999)), 0);
    for (int remote = 0; remote < 2; remote++) {
        setenv("ONEPOT_ASSUME_REMOTE", remote ? "1" : "0", 1);
        ck_assert_int_eq(source_from_fd(dup(fd), "x", &source), 0);
        ck_assert_int_eq(source_is_local(source), !remote);
        ck_assert_int_eq(index_open(source, 10248, len + 999, &fault, &index), 0);
        source_close(source);
        ck_assert_uint_eq(node_of(index, "dir/file").nlink, 2);
        ck_assert_uint_eq(walk_all(index).errors, 0);
        index_close(index);
    }
    unsetenv("ONEPOT_ASSUME_REMOTE");
    close(fd);
}
END_TEST

/* ---- against a naive model ---- */

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of a few letters and long common parts, so that all branches of sorting run. */
static char *random_name(unsigned *seed)
{
    static const char *const prefixes[] = {
        "", "n01440764_", "a-very-long-common-prefix-of-names-", "img", "\xff\xfe"};
    char name[64];
    size_t n = (size_t)snprintf(name, sizeof(name), "%s", prefixes[rand_r(seed) % 5]);
    for (unsigned len = 1 + (unsigned)rand_r(seed) % 20; len > 0 && n < 60; len--)
        name[n++] = "01ab\x80"[rand_r(seed) % 5];
    name[n] = '\0';
    return strdup(name);
}

START_TEST(names_are_sorted_as_bytes_whatever_they_are)
{
    static const unsigned counts[] = {1, 2, 3, 31, 32, 33, 100, 1000, 30000};
    for (size_t round = 0; round < sizeof(counts) / sizeof(counts[0]); round++) {
        unsigned seed = (unsigned)round + 1, n = counts[round], distinct = 0;
        char **names = calloc(n, sizeof(*names));
        struct builder *b = new_builder();
        for (unsigned i = 0; i < n; i++) {
            names[i] = random_name(&seed);
            add_file(b, names[i], i, 1);
        }
        struct index *index = build(b, &tar_header);
        qsort(names, n, sizeof(*names), compare_strings);
        for (unsigned i = 0; i < n; i++) {
            if (i > 0 && strcmp(names[i - 1], names[i]) == 0)
                continue;
            const char *name;
            size_t len;
            ck_assert_int_eq(index_name(index, ++distinct, &name, &len), 0);
            ck_assert_uint_eq(len, strlen(names[i]));
            ck_assert_mem_eq(name, names[i], len);
            ck_assert_uint_eq(position_of(index, names[i]), distinct);
        }
        ck_assert_uint_eq(index_info(index)->entries, distinct + 1);
        index_close(index);
        for (unsigned i = 0; i < n; i++)
            free(names[i]);
        free(names);
    }
}
END_TEST

/* A tree as a list of paths, each with an object; the same rules, written down plainly. */
enum { MODEL_MAX = 400 };
struct model {
    char path[MODEL_MAX][16];
    int object[MODEL_MAX]; /* of files: the member's number; of directories: -1 */
    int count;
};

static int model_find(const struct model *m, const char *path)
{
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->path[i], path) == 0)
            return i;
    return -1;
}

static bool model_has_children(const struct model *m, const char *path)
{
    size_t len = strlen(path);
    for (int i = 0; i < m->count; i++)
        if (strncmp(m->path[i], path, len) == 0 && m->path[i][len] == '/')
            return true;
    return false;
}

static bool model_put(struct model *m, const char *path, int object)
{
    char parent[16];
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
        int i = model_find(m, parent);
        if (i >= 0 && m->object[i] != -1)
            return false;
        if (i < 0) {
            strcpy(m->path[m->count], parent);
            m->object[m->count++] = -1;
        }
    }
    int i = model_find(m, path);
    if (i >= 0 && m->object[i] == -1 && object != -1 && model_has_children(m, path))
        return false;
    if (i < 0)
        strcpy(m->path[i = m->count++], path);
    m->object[i] = object;
    return true;
}

static void model_step(struct model *m, struct builder *b, unsigned *seed, int number)
{
    char path[16], target[16];
    snprintf(path, sizeof(path), "%c/%c/%c", 'a' + rand_r(seed) % 4, 'a' + rand_r(seed) % 4,
             'a' + rand_r(seed) % 4);
    path[1 + 2 * (rand_r(seed) % 3)] = '\0';
    struct node file = {.mode = S_IFREG, .size_bytes = 1, .data_offset = (uint64_t)number};
    uint32_t inode;
    int kind = rand_r(seed) % 4;
    if (kind == 3) {
        int t = rand_r(seed) % (m->count + 1);
        strcpy(target, t < m->count ? m->path[t] : "none");
        bool good = t < m->count && m->object[t] != -1 && model_put(m, path, m->object[t]);
        const struct node link = {
            .is_hardlink = true, .link = target, .link_len = strlen(target)};
        int r = builder_add(b, path, strlen(path), &link, NULL, &inode);
        ck_assert_int_eq(r == 0, good);
    } else {
        bool good = model_put(m, path, kind == 0 ? -1 : number);
        file.mode = kind == 0 ? S_IFDIR : S_IFREG;
        ck_assert_int_eq(try_add(b, path, &file, NULL, &inode) == 0, good);
    }
}

START_TEST(random_members_leave_what_a_naive_model_leaves)
{
    for (unsigned round = 0; round < 300; round++) {
        unsigned seed = round;
        static struct model m;
        m = (struct model){0};
        struct builder *b = new_builder();
        for (int i = 1; i <= 60; i++)
            model_step(&m, b, &seed, i);
        struct index *index = build(b, &tar_header);
        ck_assert_uint_eq(index_info(index)->entries, (uint32_t)m.count + 1);
        for (int i = 0; i < m.count; i++) {
            struct node node = node_of(index, m.path[i]);
            uint32_t same = 0;
            for (int j = 0; j < m.count; j++)
                same += m.object[j] == m.object[i];
            if (m.object[i] == -1) {
                ck_assert(S_ISDIR(node.mode));
                continue;
            }
            ck_assert_uint_eq(extent_of(index, m.path[i], 0).source_offset,
                              (uint64_t)m.object[i]);
            ck_assert_uint_eq(node.nlink, same);
        }
        struct walk w = walk_all(index);
        ck_assert_uint_eq(w.errors, 0);
        ck_assert_uint_eq(w.visited, (uint32_t)m.count + 1);
        index_close(index);
    }
}
END_TEST

/* ---- whatever comes ---- */

static uint64_t some_number(unsigned *seed)
{
    static const uint64_t odd[] = {0,    1,       511,        4095,      4096,      4097,
                                   8192, 1 << 20, UINT32_MAX, INT64_MAX, UINT64_MAX};
    uint64_t any = (uint64_t)rand_r(seed) % 10000;
    return rand_r(seed) % 4 ? any : odd[rand_r(seed) % (sizeof(odd) / sizeof(odd[0]))];
}

static size_t some_path(unsigned *seed, char *path)
{
    static const char *const parts[] = {"a", "b", "c", ".", "..", "", "\xff\n", "aa"};
    size_t len = 0;
    for (int n = 1 + rand_r(seed) % 4; n > 0; n--) {
        const char *part = parts[rand_r(seed) % (rand_r(seed) % 8 ? 3 : 8)];
        len += (size_t)sprintf(path + len, "%s%s", len ? "/" : "", part);
    }
    return len;
}

static void some_member(struct builder *b, unsigned *seed)
{
    static const mode_t types[] = {S_IFREG, S_IFREG, S_IFREG,  S_IFDIR, S_IFLNK,
                                   S_IFCHR, S_IFIFO, S_IFSOCK, S_IFBLK, 0170000};
    char path[64];
    size_t len = some_path(seed, path);
    uint32_t inode;
    struct node m = {
        .mode = types[rand_r(seed) % 10] | ((mode_t)rand_r(seed) & 07777),
        .uid = (uint32_t)rand_r(seed) % 3,
        .mtime_sec = (int64_t)some_number(seed),
        .mtime_nsec = (uint32_t)some_number(seed),
        .size_bytes = some_number(seed),
        .has_pieces = rand_r(seed) % 2,
        .data_offset = some_number(seed),
        .link = path,
        .link_len = len,
    };
    int r = builder_add(b, path, len, &m, NULL, &inode);
    if (r == 0 && m.has_pieces && S_ISREG(m.mode)) {
        struct builder_piece pieces[4];
        uint32_t count = (uint32_t)rand_r(seed) % 5;
        uint64_t at = 0;
        for (uint32_t i = 0; i < count; at += pieces[i++].length) {
            uint64_t length = some_number(seed) % 5000;
            at += rand_r(seed) % 4 ? 0 : some_number(seed) % 5000;
            pieces[i] = rand_r(seed) % 2
                            ? stored_at(at, length, some_number(seed))
                            : packed_at(at, length, (uint32_t)rand_r(seed) % 4,
                                        rand_r(seed) % 2 ? 0 : (uint32_t)some_number(seed));
        }
        r = builder_set_pieces(b, inode, pieces, count);
        if (r < 0) /* it has to have some: take its name away */
            builder_add(b, path, len, &(struct node){.mode = S_IFIFO}, NULL, &inode);
    }
}

static void some_call(struct builder *b, unsigned *seed)
{
    char path[64], target[64];
    size_t len = some_path(seed, path), target_len = some_path(seed, target);
    uint32_t inode = (uint32_t)rand_r(seed) % 100;
    switch (rand_r(seed) % 4) {
    case 0:
        builder_add(b, path, len,
                    &(struct node){.is_hardlink = true, .link = target, .link_len = target_len},
                    NULL, &inode);
        break;
    case 1:
        builder_add_xattr(b, inode, path, len, target, target_len);
        break;
    default:
        some_member(b, seed);
    }
}

START_TEST(what_the_builder_accepts_the_index_shows)
{
    unsigned kept = 0;
    for (unsigned round = 0; round < 2000; round++) {
        unsigned seed = round;
        struct builder *b = new_builder();
        builder_set_archive_size(b, squash_header.archive_bytes);
        for (int i = rand_r(&seed) % 3; i > 0; i--)
            add_block(b, 7, 8, 4096);
        for (int i = rand_r(&seed) % 120; i > 0; i--)
            some_call(b, &seed);
        struct index *index = NULL;
        uint64_t len = 0;
        int fd = memfd_create("x", MFD_CLOEXEC);
        int r = builder_write(b, &squash_header, fd, 0, NULL, &len);
        builder_free(b);
        /* An inode whose blocks were refused may have other names. */
        ck_assert(r == 0 || r == -EINVAL);
        struct source *source = NULL;
        ck_assert_int_eq(source_from_fd(fd, "x", &source), 0);
        if (r == 0) {
            ck_assert_int_eq(index_open(source, 0, len, NULL, &index), 0);
            struct walk w = walk_all(index);
            ck_assert_uint_eq(w.visited, index_info(index)->entries);
            ck_assert_uint_eq(w.errors, 0);
            kept += w.visited > 5;
            index_close(index);
        }
        source_close(source);
    }
    ck_assert_uint_gt(kept, 500);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("builder");
    TCase *tc = tcase_create("builder");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, an_empty_archive_is_an_empty_root);
    tcase_add_test(tc, paths_are_made_safe);
    tcase_add_test(tc, unsafe_names_are_refused_with_member_and_offset);
    tcase_add_test(tc, a_path_may_have_4095_bytes);
    tcase_add_test(tc, a_way_through_links_is_no_deeper);
    tcase_add_test(tc, a_name_may_have_255_bytes_and_any_but_zero_and_slash);
    tcase_add_test(tc, the_root_takes_attributes);
    tcase_add_test(tc, directories_that_no_member_announced_exist);
    tcase_add_test(tc, the_last_of_two_members_of_one_name_wins);
    tcase_add_test(tc, a_directory_that_comes_again_keeps_its_children);
    tcase_add_test(tc, a_directory_with_members_is_not_replaced);
    tcase_add_test(tc, nothing_lies_below_what_is_no_directory);
    tcase_add_test(tc, a_file_becomes_a_directory);
    tcase_add_test(tc, a_path_goes_through_links_of_the_archive);
    tcase_add_test(tc, a_link_that_changes_leads_elsewhere);
    tcase_add_test(tc, links_that_lead_out_or_in_circles_are_not_followed);
    tcase_add_test(tc, what_is_left_out_is_told_up_to_a_bound);
    tcase_add_test(tc, linked_names_share_one_inode);
    tcase_add_test(tc, a_link_keeps_the_inode_that_its_target_had);
    tcase_add_test(tc, a_link_to_itself_changes_nothing);
    tcase_add_test(tc, a_link_replaces_what_had_its_name);
    tcase_add_test(tc, bad_links_are_refused);
    tcase_add_test(tc, names_in_directories_replace_nothing);
    tcase_add_test(tc, all_types_and_attributes_are_kept);
    tcase_add_test(tc, times_are_kept_to_the_nanosecond_from_any_century);
    tcase_add_test(tc, symbolic_links_have_a_target_that_linux_can_hold);
    tcase_add_test(tc, extended_attributes_are_kept_shared_and_replaced);
    tcase_add_test(tc, attributes_that_linux_has_no_place_for_are_left_out_and_counted);
    tcase_add_test(tc, many_sets_of_attributes);
    tcase_add_test(tc, data_past_the_end_of_the_archive_is_refused);
    tcase_add_test(tc, an_empty_file_needs_no_place);
    tcase_add_test(tc, ranges_and_holes_make_a_sparse_file);
    tcase_add_test(tc, blocks_holes_and_tails);
    tcase_add_test(tc, full_blocks_that_follow_each_other_need_no_list);
    tcase_add_test(tc, pieces_that_do_not_make_the_file_are_refused);
    tcase_add_test(tc, pieces_never_told_are_an_error_at_the_end);
    tcase_add_test(tc, sums_are_for_all_files_or_for_none);
    tcase_add_test(tc, sums_may_be_of_another_kind);
    tcase_add_test(tc, sums_of_mixed_kinds_tell_theirs);
    tcase_add_test(tc, the_same_members_give_the_same_bytes);
    tcase_add_test(tc, the_header_tells_what_it_was_told);
    tcase_add_test(tc, a_full_disk_is_reported);
    tcase_add_test(tc, an_image_can_lie_at_an_offset);
    tcase_add_test(tc, names_are_sorted_as_bytes_whatever_they_are);
    tcase_add_test(tc, random_members_leave_what_a_naive_model_leaves);
    tcase_add_test(tc, what_the_builder_accepts_the_index_shows);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
