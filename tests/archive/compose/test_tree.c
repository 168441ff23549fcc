/* Composing: what an index says of a tree, the new index says of it as well. */
#include "format_numbers.h"
#include "index_records.h"
#include "suite.h"
#include "tree_helper.h"

#define ARCHIVE_BYTES (UINT64_C(1) << 40)

/* ---- the composition ---- */

struct composition {
    struct tree *tree;
    struct fault fault;
};

static struct composition begin(void)
{
    struct composition c = {0};
    ck_assert_int_eq(tree_new(&c.tree), 0);
    return c;
}

static uint32_t add_part(struct composition *c, struct tree_part part)
{
    uint32_t number;
    ck_assert_int_eq(tree_add(c->tree, &part, &number), 0);
    return number;
}

/* Have the index's tree in a directory, "" being the root, or below one that is made. */
static void put_tree(struct composition *c, const struct index *index, const char *under,
                     uint64_t base)
{
    uint32_t part =
        add_part(c, (struct tree_part){.index = index, .base = base, .at_root = !*under});
    if (*under)
        ck_assert_int_eq(tree_put(c->tree, TREE_TOP, under, strlen(under),
                                  (struct tree_place){part, INDEX_ROOT}, 0, NULL),
                         0);
}

static int try_finish(struct composition *c, struct index **ret_index)
{
    struct builder_header header = {.format = FORMAT_TAR, .archive_bytes = ARCHIVE_BYTES};
    return write_tree(c->tree, &header, &c->fault, ret_index);
}

static struct index *finish(struct composition *c)
{
    struct index *index = NULL;
    int r = try_finish(c, &index);
    ck_assert_msg(r == 0, "%d %s: %s", r, c->fault.member, c->fault.what);
    ck_assert_uint_eq(walk_all(index).errors, 0);
    return index;
}

START_TEST(a_tree_comes_along_whole)
{
    struct index *old = rich_index();
    struct composition c = begin();
    put_tree(&c, old, "", 0);
    struct index *new = finish(&c);
    compare_trees(old, new, "", 0);
    ck_assert_uint_eq(index_info(new)->entries, index_info(old)->entries);
    ck_assert_uint_eq(index_info(new)->inodes, index_info(old)->inodes);
    ck_assert_uint_eq(index_info(new)->total_bytes, index_info(old)->total_bytes);
    ck_assert_uint_eq(index_info(new)->data_bytes, index_info(old)->data_bytes);
    ck_assert(index_info(new)->has_hardlinks && index_info(new)->has_xattrs &&
              index_info(new)->has_holes);
    index_close(new);
    index_close(old);
}
END_TEST

START_TEST(trees_lie_side_by_side_at_their_offsets)
{
    struct index *rich = rich_index();
    struct index *zstd = block_index(CODEC_ZSTD, 4096), *zlib = block_index(CODEC_ZLIB, 131072);
    struct composition c = begin();
    put_tree(&c, rich, "one", 1u << 21);
    put_tree(&c, zstd, "two/deeper", UINT64_C(7) << 21);
    put_tree(&c, zlib, "three", UINT64_C(1) << 39);
    struct index *new = finish(&c);
    compare_trees(rich, new, "one", 1u << 21);
    compare_trees(zstd, new, "two/deeper", UINT64_C(7) << 21);
    compare_trees(zlib, new, "three", UINT64_C(1) << 39);
    ck_assert_str_eq(listing(new, ""), "one three two ");
    ck_assert_uint_eq(index_info(new)->block_bytes, 131072);
    ck_assert_uint_eq(index_info(new)->codecs, 1u << CODEC_ZSTD | 1u << CODEC_ZLIB);
    ck_assert_uint_eq(node_of(new, "one").mode, S_IFDIR | 02751);
    index_close(new);
    index_close(rich);
    index_close(zstd);
    index_close(zlib);
}
END_TEST

START_TEST(a_composition_of_a_composition_is_the_same)
{
    struct index *first = block_index(CODEC_ZSTD, 4096), *second = block_index(CODEC_LZ4, 8192);
    struct composition c = begin();
    put_tree(&c, first, "a", 0);
    put_tree(&c, second, "b", 1u << 21);
    struct index *once = finish(&c);
    c = begin();
    put_tree(&c, once, "", 1u << 22);
    struct index *twice = finish(&c);
    compare_trees(once, twice, "", 1u << 22);
    index_close(twice);
    index_close(once);
    index_close(first);
    index_close(second);
}
END_TEST

START_TEST(a_block_of_many_files_is_in_the_index_once)
{
    struct builder *b = new_builder();
    const struct builder_header header = {
        .codec = CODEC_ZSTD, .block_bytes = 1u << 20, .archive_bytes = ARCHIVE_BYTES};
    uint32_t block = add_block(b, 1000, 500, 1u << 20);
    for (uint32_t i = 0; i < 10000; i++) {
        const struct builder_piece piece = packed_at(0, 40, block, i * 40);
        char path[32];
        snprintf(path, sizeof(path), "%u", i);
        add_pieces(b, path, 40, &piece, 1);
    }
    struct index *old = build(b, &header);
    struct composition c = begin();
    put_tree(&c, old, "", 0);
    struct index *new = finish(&c);
    ck_assert_uint_lt(index_info(new)->image_bytes, index_info(old)->image_bytes + 200);
    compare_trees(old, new, "", 0);
    index_close(new);
    index_close(old);
}
END_TEST

/* ---- sums ---- */

START_TEST(sums_come_along)
{
    struct index *a = summed_index("a", SUM_CRC32, 5), *b = summed_index("b", SUM_CRC32, 6);
    struct index *xxh3 = summed_index("c", SUM_XXH3, 7), *none = file_index("d", 0);
    for (unsigned with = 0; with < 3; with++) {
        struct composition c = begin();
        put_tree(&c, a, "a", 0);
        if (with)
            put_tree(&c, with == 1 ? xxh3 : none, "x", 0);
        put_tree(&c, b, "b", 0);
        struct index *new = finish(&c);
        compare_trees(a, new, "a", 0);
        compare_trees(b, new, "b", 0);
        bool known = checksum_available(SUM_CRC32);
        ck_assert_int_eq(index_info(new)->has_sums, known && !with);
        ck_assert_int_eq(index_info(new)->has_some_sums, known);
        if (known)
            ck_assert_int_eq(index_info(new)->sum_kind, with ? SUM_MIXED : SUM_CRC32);
        index_close(new);
    }
    index_close(a);
    index_close(b);
    index_close(xxh3);
    index_close(none);
}
END_TEST

/* ---- parts of a tree ---- */

static struct index *show(const struct index *old, const char *const *paths)
{
    struct composition c = begin();
    uint8_t *bits = calloc(index_info(old)->entries / 8 + 1, 1);
    for (; *paths; paths++) {
        uint32_t position = position_of(old, *paths);
        bits[position / 8] |= (uint8_t)(1u << position % 8);
    }
    add_part(&c, (struct tree_part){.index = old, .at_root = true, .shown = bits});
    return finish(&c);
}

START_TEST(only_shown_entries_come_along)
{
    struct builder *b = new_builder();
    add_dir(b, "one", 0711);
    add_dir(b, "one/two", 0722);
    add_file(b, "one/two/file", 100, 10);
    add_file(b, "one/two/other", 200, 10);
    add_dir(b, "one/empty", 0733);
    add_file(b, "pruned/three/four", 300, 10);
    struct index *old = build(b, &tar_header);
    static const char *const some[] = {"one", "one/two", "one/two/file", "pruned/three/four",
                                       NULL};
    static const char *const empty[] = {"one", "one/empty", NULL};
    struct index *new = show(old, some);
    ck_assert_uint_eq(index_info(new)->entries, 4);
    ck_assert_uint_eq(node_of(new, "one").mode, S_IFDIR | 0711);
    ck_assert_uint_eq(node_of(new, "one/two").mode, S_IFDIR | 0722);
    ck_assert_uint_eq(extent_of(new, "one/two/file", 0).source_offset, 100);
    index_close(new);
    new = show(old, empty);
    ck_assert_uint_eq(index_info(new)->entries, 3);
    ck_assert_uint_eq(node_of(new, "one/empty").mode, S_IFDIR | 0733);
    index_close(new);
    index_close(old);
}
END_TEST

START_TEST(links_that_are_taken_share_their_inode)
{
    struct index *old = rich_index();
    static const char *const paths[] = {"d", "d/f", "d/e", "d/e/deep", "d/fifo", NULL};
    struct index *new = show(old, paths);
    struct node f = node_of(new, "d/f");
    ck_assert_uint_eq(f.nlink, 2);
    ck_assert_uint_eq(f.position, node_of(new, "d/e/deep").position);
    ck_assert_uint_eq(node_of(new, "d/fifo").nlink, 1);
    ck_assert_uint_eq(node_of(new, "d/fifo").mode, S_IFIFO | 0644);
    index_close(new);
    index_close(old);
}
END_TEST

/* Compare the files that both indexes have; how many links they have may differ. */
static unsigned compare_files(const struct index *old, const struct index *new)
{
    struct pair p = {old, new, 0, 0};
    for (uint32_t i = 0, there; i < index_info(old)->entries; i++) {
        char path[512];
        size_t len;
        struct node a, b;
        ck_assert_int_eq(index_path(old, i, path, sizeof(path), &len), 0);
        ck_assert_int_eq(index_node(old, i, &a), 0);
        if (S_ISDIR(a.mode) || index_resolve(new, path, &there) < 0)
            continue;
        ck_assert_int_eq(index_node(new, there, &b), 0);
        if (a.nlink == b.nlink)
            compare_entry(&p, i, there);
        compare_xattrs(&p, i, there);
        if (S_ISREG(a.mode) && a.nlink != b.nlink)
            compare_data(&p, i, there, a.size_bytes);
    }
    return p.entries;
}

/* Of every file, let chance decide whether it is shown. */
static struct index *show_some(const struct index *old, unsigned *seed, unsigned one_in)
{
    struct composition c = begin();
    uint8_t *bits = calloc(index_info(old)->entries / 8 + 1, 1);
    for (uint32_t i = 0; i < index_info(old)->entries; i++) {
        struct node node;
        ck_assert_int_eq(index_node(old, i, &node), 0);
        if (S_ISDIR(node.mode) || (unsigned)rand_r(seed) % one_in == 0)
            bits[i / 8] |= (uint8_t)(1u << i % 8);
    }
    add_part(&c, (struct tree_part){.index = old, .at_root = true, .shown = bits});
    return finish(&c);
}

START_TEST(shown_files_keep_what_they_refer_to)
{
    struct index *all[] = {rich_index(), block_index(CODEC_ZSTD, 4096), point_index("f", true),
                           point_index("f", false)};
    unsigned seed = 1, compared = 0;
    for (size_t i = 0; i < 4; i++) {
        for (unsigned j = 0; j < 200; j++) {
            struct index *new = show_some(all[i], &seed, j % 5 + 1);
            compared += compare_files(all[i], new);
            index_close(new);
        }
        index_close(all[i]);
    }
    ck_assert_uint_gt(compared, 10000);
}
END_TEST

START_TEST(what_nothing_shown_refers_to_is_not_copied)
{
    static const struct {
        const char *path;
        unsigned blocks;
    } cases[] = {
        {"small/7", 1}, {"large/1-0", 1}, {"large/1-1", 2}, {"large/5-1", 3}, {"large/run", 3}};
    struct index *old = block_index(CODEC_ZSTD, 4096), *new;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const paths[] = {cases[i].path[0] == 's' ? "small" : "large", cases[i].path,
                                     NULL};
        new = show(old, paths);
        ck_assert_uint_eq(index_section_bytes(new, SECTION_BLOCKS) / sizeof(struct disk_block),
                          cases[i].blocks);
        ck_assert_uint_eq(compare_files(old, new), 1);
        index_close(new);
    }
    index_close(old);
    old = point_index("f", true);
    new = show(old, (const char *const[]){"f", "f/2", NULL});
    ck_assert_uint_eq(index_info(new)->points, 1);
    ck_assert_uint_lt(index_info(new)->image_bytes + 300, index_info(old)->image_bytes);
    index_close(new);
    index_close(old);
}
END_TEST

static int put(struct composition *c, uint32_t part, uint32_t position,
               struct tree_place directory, const char *name)
{
    c->fault = (struct fault){0};
    return tree_put(c->tree, directory, name, strlen(name), (struct tree_place){part, position},
                    position, &c->fault);
}

START_TEST(one_entry_may_have_several_names)
{
    struct index *old = rich_index(), *new = NULL;
    uint32_t f = position_of(old, "a"), directory = position_of(old, "d");
    for (unsigned conflicts = 0; conflicts < 2; conflicts++) {
        struct composition c = begin();
        uint32_t part = add_part(
            &c,
            (struct tree_part){.index = old, .name = "it", .gives_root = true, .list = "list"});
        char path[INDEX_PATH_MAX + 2];
        ck_assert_int_eq(put(&c, part, directory, TREE_TOP, "y"), 0);
        ck_assert_int_eq(put(&c, part, directory, TREE_TOP, "y"), 0);
        ck_assert_int_eq(put(&c, part, f, TREE_TOP, "x/1"), 0);
        ck_assert_int_eq(put(&c, part, f, TREE_TOP, "2"), 0);
        ck_assert_int_eq(put(&c, part, f, TREE_TOP, "x/1"), 0);
        ck_assert_int_eq(put(&c, part, position_of(old, "d/f"), TREE_TOP, "x/1"),
                         0); /* its inode */
        static const char *const bad[] = {"", ".", "x/..", "x/", "/x", "x//y"};
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
            ck_assert_int_eq(put(&c, part, f, TREE_TOP, bad[i]), -EINVAL);
        memset(path, '/', sizeof(path));
        path[INDEX_PATH_MAX + 1] = '\0';
        ck_assert_int_eq(put(&c, part, f, TREE_TOP, path), -ENAMETOOLONG);
        if (conflicts) {
            uint32_t same = position_of(old, "d/same");
            ck_assert_int_eq(put(&c, part, same, TREE_TOP, "x/1"), 0);
            snprintf(path, sizeof(path), "would have the name that 'a' has (line %u of list)",
                     same);
            ck_assert_int_eq(
                tree_write(c.tree, &(struct builder_header){.archive_bytes = ARCHIVE_BYTES}, -1,
                           &c.fault),
                -EEXIST);
            ck_assert_str_eq(c.fault.member, "d/same");
            ck_assert_str_eq(c.fault.what, path);
            tree_free(c.tree);
            continue;
        }
        new = finish(&c);
        ck_assert_str_eq(listing(new, ""), "2 x y ");
        ck_assert_uint_eq(node_of(new, "2").nlink, 4); /* and y/f, y/e/deep */
        ck_assert_uint_eq(node_of(new, "2").position, node_of(new, "x/1").position);
        ck_assert_uint_eq(node_of(new, "y/f").position, node_of(new, "2").position);
        ck_assert_uint_eq(node_of(new, "x").mode, S_IFDIR | 02751);
        ck_assert_uint_eq(node_of(new, "y").mode, S_IFDIR | 01700);
        ck_assert_str_eq(listing(new, "y"), listing(old, "d"));
        index_close(new);
    }
    index_close(old);
}
END_TEST

START_TEST(names_of_one_file_are_links)
{
    struct index *old = file_index("f", 0);
    for (int merges = 0; merges < 2; merges++) {
        struct composition c = begin();
        uint32_t part = add_part(
            &c, (struct tree_part){.index = old, .name = "it", .at_root = merges, .list = ""});
        uint32_t f = position_of(old, "f");
        if (!merges)
            ck_assert_int_eq(put(&c, part, f, TREE_TOP, "f"), 0);
        ck_assert_int_eq(put(&c, part, f, TREE_TOP, "g"), 0);
        char name[INDEX_NAME_MAX + 2];
        memset(name, 'n', sizeof(name));
        name[INDEX_NAME_MAX + 1] = '\0';
        ck_assert_int_eq(put(&c, part, f, TREE_TOP, name), -ENAMETOOLONG);
        if (!merges)
            ck_assert_int_eq(put(&c, part, f, TREE_TOP, name + 1), 0);
        struct index *new = finish(&c);
        ck_assert_uint_eq(index_info(new)->entries, merges ? 3 : 4);
        ck_assert_uint_eq(node_of(new, "f").nlink, merges ? 2 : 3);
        ck_assert_uint_eq(node_of(new, "g").position, node_of(new, "f").position);
        index_close(new);
    }
    index_close(old);
}
END_TEST

START_TEST(a_directory_may_be_in_several_places)
{
    struct index *old = rich_index();
    struct composition c = begin();
    uint32_t part = add_part(&c, (struct tree_part){.index = old, .at_root = true});
    ck_assert_int_eq(put(&c, part, INDEX_ROOT, TREE_TOP, "y"), 0);
    ck_assert_int_eq(put(&c, part, position_of(old, "d"), TREE_TOP, "x"), 0);
    struct index *new = finish(&c);
    ck_assert_uint_eq(node_of(new, "d/same").nlink, 3);
    ck_assert_uint_eq(node_of(new, "d/same").position, node_of(new, "x/same").position);
    ck_assert_uint_eq(node_of(new, "y/d/same").position, node_of(new, "x/same").position);
    ck_assert_uint_eq(node_of(new, "y/d").nlink, node_of(old, "d").nlink);
    index_close(new);
    index_close(old);
}
END_TEST

/* ---- conflicts ---- */

START_TEST(directories_merge_and_the_first_gives_the_attributes)
{
    struct builder *b = new_builder();
    add_dir(b, ".", 0750);
    add_dir(b, "d", 0711);
    add_file(b, "d/one", 0, 10);
    struct index *first = build(b, &tar_header), *second = file_index("d/two", 0);
    struct composition c = begin();
    put_tree(&c, first, "", 0);
    put_tree(&c, second, "", 1000);
    struct index *new = finish(&c);
    ck_assert_str_eq(listing(new, "d"), "one two ");
    ck_assert_uint_eq(node_of(new, "d").mode, S_IFDIR | 0711);
    ck_assert_uint_eq(node_of(new, "").mode, S_IFDIR | 0750);
    ck_assert_uint_eq(extent_of(new, "d/two", 0).source_offset, 1000);
    index_close(new);
    index_close(first);
    index_close(second);
}
END_TEST

START_TEST(a_name_in_two_archives_is_an_error_that_names_both)
{
    struct index *indexes[] = {file_index("x/1", 0), file_index("x/2", 0),
                               file_index("x/3", 0), file_index("x/2", 0),
                               file_index("x", 0),   file_index("x/1/y", 0),
                               file_index("w/2", 0), file_index("y/2", 0)};
    static const char *const names[] = {"1.tar", "2.tar", "3.tar", "4.tar",
                                        "5.tar", "6.tar", "7.tar", "8.tar"};
    static const struct {
        unsigned parts[5];
        size_t count;
        const char *member, *what;
    } wrong[] = {{{0, 1, 2, 3}, 4, "x/2", "is in '2.tar' and in '4.tar'"},
                 {{0, 1, 2, 4}, 4, "x", "is in '1.tar' and in '5.tar'"},
                 {{0, 1, 2, 5}, 4, "x/1", "is in '1.tar' and in '6.tar'"},
                 {{6, 0, 7, 1, 3}, 5, "x/2", "is in '2.tar' and in '4.tar'"}};
    for (size_t i = 0; i < 4; i++) {
        struct composition c = begin();
        unsigned which = 0;
        for (size_t j = 0; j < wrong[i].count; j++) {
            which = wrong[i].parts[j];
            add_part(&c, (struct tree_part){
                             .index = indexes[which], .name = names[which], .at_root = true});
        }
        ck_assert_int_eq(try_finish(&c, NULL), -EEXIST);
        ck_assert_str_eq(c.fault.member, wrong[i].member);
        ck_assert_str_eq(c.fault.what, wrong[i].what);
        ck_assert_str_eq(c.fault.file, names[which]);
    }
    for (size_t i = 0; i < 8; i++)
        index_close(indexes[i]);
}
END_TEST

START_TEST(what_is_there_may_stay)
{
    struct builder *b = new_builder();
    add_dir(b, "x", 0755);
    add_file(b, "x/1/in", 300, 10); /* below what is a file in the first */
    add_file(b, "x/2", 100, 10);
    add_file(b, "file/a/b", 200, 10);
    struct index *first = file_index("x/1", 0), *second = build(b, &tar_header),
                 *third = file_index("file", 0), *under = file_index("y", 0);
    struct composition c = begin();
    const struct tree_part parts[] = {
        {.index = first, .at_root = true},
        {.index = second, .base = 10000, .at_root = true, .gives_way = true},
        {.index = third, .base = 20000, .at_root = true, .gives_way = true},
        {.index = under, .base = 30000, .gives_way = true}};
    for (uint32_t i = 0; i < 4; i++)
        add_part(&c, parts[i]);
    ck_assert_int_eq(
        tree_put(c.tree, TREE_TOP, "x/2", 3, (struct tree_place){3, INDEX_ROOT}, 0, NULL), 0);
    struct index *new = finish(&c);
    ck_assert_str_eq(listing(new, ""), "file x ");
    ck_assert_str_eq(listing(new, "x"), "1 2 ");
    ck_assert_uint_eq(extent_of(new, "x/1", 0).source_offset, 0);
    ck_assert_uint_eq(extent_of(new, "x/2", 0).source_offset, 10100);
    ck_assert_str_eq(listing(new, "file/a"), "b ");
    index_close(new);
    index_close(first);
    index_close(second);
    index_close(third);
    index_close(under);
}
END_TEST

/* ---- what the tree lacks ---- */

START_TEST(left_out_members_are_told_again)
{
    struct builder *b = rich_builder();
    for (unsigned i = 0; i < 150; i++) {
        struct fault why = {0};
        fault_set(&why, -ENOENT, "gone", i, "is a link to nothing");
        ck_assert_int_eq(builder_leave_out(b, &why), 0);
    }
    struct index *old = build(b, &tar_header);
    struct composition c = begin();
    put_tree(&c, old, "a", 0);
    put_tree(&c, old, "b", 0);
    struct index *new = finish(&c);
    ck_assert_uint_eq(index_left_out(new), 300);
    uint64_t cursor = 0;
    struct fault why;
    for (unsigned i = 0; i < 100; i++) {
        ck_assert_int_eq(index_left_out_next(new, &cursor, &why), 0);
        ck_assert_str_eq(why.member, "gone");
        ck_assert_uint_eq(why.offset, i);
    }
    ck_assert_int_eq(index_left_out_next(new, &cursor, &why), -ENOENT);
    index_close(new);
    index_close(old);
}
END_TEST

START_TEST(a_path_too_long_there_is_left_out)
{
    char path[4001];
    for (size_t i = 0; i < 4000; i++)
        path[i] = i % 200 == 199 ? '/' : 'p';
    path[3999] = 'f';
    path[4000] = '\0';
    struct index *old = file_index(path, 0);
    char under[200];
    memset(under, 'u', sizeof(under));
    under[199] = '\0';
    struct composition c = begin();
    put_tree(&c, old, under, 0);
    struct index *new = finish(&c);
    ck_assert_uint_eq(index_left_out(new), 1);
    index_close(new);
    index_close(old);
}
END_TEST

/* ---- hostile indexes ---- */

/* Compose an image that may say anything: what comes of it is an index or an error. Of a view,
 * every eighth entry is hidden. */
static int compose_image(const uint8_t *image, size_t len, bool is_view, uint64_t *ret_bytes)
{
    struct index *old = NULL, *new = NULL;
    if (open_image(image, len, &old) < 0)
        return -EUCLEAN;
    struct composition c = begin();
    size_t bytes = index_info(old)->entries / 8 + 1;
    uint8_t *bits = is_view ? memset(malloc(bytes), 0xfd, bytes) : NULL;
    add_part(&c, (struct tree_part){.index = old, .base = 1u << 21, .shown = bits});
    ck_assert_int_eq(
        tree_put(c.tree, TREE_TOP, "x", 1, (struct tree_place){0, INDEX_ROOT}, 0, NULL), 0);
    int r = try_finish(&c, &new);
    if (r == 0) {
        *ret_bytes = index_info(new)->image_bytes;
        if (*ret_bytes < 1u << 16)
            (void)walk_all(new);
    } else {
        ck_assert_str_ne(c.fault.what, "");
    }
    index_close(new);
    index_close(old);
    return r;
}

START_TEST(damaged_indexes_are_refused_or_make_good_ones)
{
    unsigned good = 0, bad = 0, seed = 1;
    size_t len;
    uint64_t bytes;
    uint8_t *image = build_image(rich_builder(), &tar_header, &len);
    uint8_t *copy = malloc(len);
    for (unsigned i = 0; i < 6000; i++) {
        memcpy(copy, image, len);
        for (unsigned j = 0; j <= i % 3; j++)
            copy[(unsigned)rand_r(&seed) % len] = (uint8_t)rand_r(&seed);
        reseal(copy, len);
        if (compose_image(copy, len, i % 2, &bytes) == 0)
            good++;
        else
            bad++;
    }
    ck_assert_uint_gt(good, 100);
    ck_assert_uint_gt(bad, 100);
    free(copy);
    free(image);
}
END_TEST

/* Compose an image as it is, and then with every entry saying what the first one does, or
 * `step` bytes of its table further each: what is longer than the index twice is refused. */
static void refuse_shared(struct builder *b, const struct builder_header *header,
                          unsigned entries, unsigned step)
{
    struct disk_entry first, e;
    size_t len;
    uint64_t ignored;
    uint8_t *image = build_image(b, header, &len);
    ck_assert_int_eq(compose_image(image, len, false, &ignored), 0);
    struct disk_section s = section_of(image, SECTION_ENTRIES);
    memcpy(&first, image + s.offset + sizeof(e), sizeof(e));
    for (unsigned i = 2; i <= entries; i++) {
        memcpy(&e, image + s.offset + i * sizeof(e), sizeof(e));
        e.size = first.size - (i - 1) * step;
        e.data = first.data + (i - 1) * step;
        e.name_attr &= DISK_NAME_LIMIT - 1;
        e.name_attr |= first.name_attr & ~(DISK_NAME_LIMIT - 1);
        memcpy(image + s.offset + i * sizeof(e), &e, sizeof(e));
    }
    reseal(image, len);
    for (int is_view = 0; is_view < 2; is_view++)
        ck_assert_int_eq(compose_image(image, len, is_view, &ignored), -EUCLEAN);
    free(image);
}

START_TEST(entries_that_share_a_list_of_ranges_do_not_multiply_it)
{
    struct builder *b = new_builder();
    static struct builder_piece pieces[20000];
    char path[16];
    for (unsigned j = 0; j < 20000; j++)
        pieces[j] = stored_at(j * 2, 1, j * 4);
    for (unsigned i = 0; i < 5000; i++) {
        snprintf(path, sizeof(path), "%04u", i);
        add_pieces(b, path, 100000, pieces, i ? 2 : 20000);
    }
    refuse_shared(b, &tar_header, 5000, 0);
}
END_TEST

START_TEST(links_that_share_a_target_do_not_multiply_it)
{
    for (unsigned step = 0; step < 2; step++) {
        struct builder *b = new_builder();
        char target[4001], path[16];
        memset(target, 't', 4000);
        target[4000] = '\0';
        for (unsigned i = 0; i < 1000; i++) {
            snprintf(path, sizeof(path), "%04u", i);
            add_symlink(b, path, i ? "x" : target);
        }
        refuse_shared(b, &tar_header, 1000, step);
    }
}
END_TEST

START_TEST(files_that_all_have_all_blocks_are_refused)
{
    const struct builder_header header = {
        .codec = CODEC_ZSTD, .block_bytes = 4096, .archive_bytes = ARCHIVE_BYTES};
    struct builder *b = new_builder();
    static struct builder_piece pieces[20000];
    char path[16];
    for (unsigned i = 0; i < 20000; i++)
        pieces[i] = packed_at(i * 4096, 4096, add_block(b, i * 100, 100, 4096), 0);
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(path, sizeof(path), "%04u", i);
        add_pieces(b, path, (i ? 1 : 20000) * 4096, pieces, i ? 1 : 20000);
    }
    refuse_shared(b, &header, 1000, 0);
}
END_TEST

START_TEST(blocks_that_share_a_window_do_not_multiply_it)
{
    const struct builder_header header = {.block_bytes = 4096, .archive_bytes = ARCHIVE_BYTES};
    struct builder *b = new_builder();
    static char window[30000];
    struct disk_point first, point;
    size_t len;
    uint64_t ignored;
    for (unsigned i = 0; i < 100; i++) {
        const struct block_point p = {.sum = 1,
                                      .last_bits = 8,
                                      .window_bytes = 30000,
                                      .window_packed = i ? 100 : 30000,
                                      .window = window};
        const struct builder_block block = {.source_offset = i * 1000,
                                            .packed_bytes = 900,
                                            .block_bytes = 4096,
                                            .codec = CODEC_DEFLATE_POINT,
                                            .point = &p};
        struct builder_piece piece = {.length = 4096};
        char path[16];
        ck_assert_int_eq(builder_add_block(b, &block, &piece.block), 0);
        snprintf(path, sizeof(path), "%04u", i);
        add_pieces(b, path, 4096, &piece, 1);
    }
    uint8_t *image = build_image(b, &header, &len);
    ck_assert_int_eq(compose_image(image, len, false, &ignored), 0);
    struct disk_section s = section_of(image, SECTION_POINTS);
    memcpy(&first, image + s.offset, sizeof(first));
    for (unsigned i = 1; i < 100; i++) {
        memcpy(&point, image + s.offset + i * sizeof(point), sizeof(point));
        point.window = first.window;
        point.window_packed = first.window_packed;
        memcpy(image + s.offset + i * sizeof(point), &point, sizeof(point));
    }
    reseal(image, len);
    ck_assert_int_eq(compose_image(image, len, false, &ignored), -EUCLEAN);
    free(image);
}
END_TEST

/* A value that has a set at every 24 bytes, each with a value that reaches to its end. */
START_TEST(sets_of_attributes_that_overlap_do_not_multiply_them)
{
    enum { SETS = 1000, STEP = 24 };
    struct builder *b = new_builder();
    uint32_t value[SETS * STEP / 4];
    struct disk_extra extra;
    size_t len;
    uint64_t ignored;
    for (uint32_t i = 0; i < SETS; i++) {
        const uint32_t rest = (SETS - i) * STEP, head[] = {1, rest - 8, 6, rest - 22};
        memcpy(value + i * STEP / 4, head, sizeof(head));
        memcpy(value + i * STEP / 4 + 4, "user.y\0", 8);
    }
    for (unsigned i = 0; i < SETS; i++) {
        char path[16];
        snprintf(path, sizeof(path), "%04u", i);
        uint32_t inode = add_file(b, path, 0, 10);
        ck_assert_int_eq(builder_add_xattr(b, inode, "user.x", 6, value, sizeof(value)), 0);
    }
    uint8_t *image = build_image(b, &tar_header, &len);
    ck_assert_int_eq(compose_image(image, len, false, &ignored), 0);
    struct disk_section s = section_of(image, SECTION_EXTRA);
    for (unsigned i = 0; i < SETS; i++) {
        memcpy(&extra, image + s.offset + i * sizeof(extra), sizeof(extra));
        extra.value = 22 + i * STEP; /* behind the real set's head and name */
        memcpy(image + s.offset + i * sizeof(extra), &extra, sizeof(extra));
    }
    reseal(image, len);
    ck_assert_int_eq(compose_image(image, len, false, &ignored), -EUCLEAN);
    free(image);
}
END_TEST

START_TEST(a_large_set_of_attributes_is_in_the_index_once)
{
    struct builder *b = new_builder();
    static char value[60000];
    char path[16];
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(path, sizeof(path), "%04u", i);
        uint32_t inode = add_file(b, path, 0, 10);
        ck_assert_int_eq(builder_add_xattr(b, inode, "user.x", 6, value, sizeof(value)), 0);
    }
    struct index *old = build(b, &tar_header);
    struct composition c = begin();
    put_tree(&c, old, "", 0);
    struct index *new = finish(&c);
    compare_trees(old, new, "", 0);
    ck_assert_uint_eq(index_info(new)->image_bytes, index_info(old)->image_bytes);
    index_close(new);
    index_close(old);
}
END_TEST

START_TEST(data_beyond_the_composed_archive_is_refused)
{
    static const struct {
        uint64_t base;
        const char *member;
    } cases[] = {
        {ARCHIVE_BYTES - 1009, "x/f"}, {UINT64_MAX - 500, "x/f"}, {ARCHIVE_BYTES - 1010, NULL}};
    struct index *old = file_index("x/f", 1000), *new = NULL;
    for (size_t i = 0; i < 3; i++) {
        struct composition c = begin();
        put_tree(&c, old, "", cases[i].base);
        ck_assert_int_eq(try_finish(&c, &new), cases[i].member ? -EUCLEAN : 0);
        if (cases[i].member)
            ck_assert_str_eq(c.fault.member, cases[i].member);
    }
    index_close(new);
    index_close(old);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tree");
    TCase *tc = tcase_create("tree");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_tree_comes_along_whole);
    tcase_add_test(tc, trees_lie_side_by_side_at_their_offsets);
    tcase_add_test(tc, a_composition_of_a_composition_is_the_same);
    tcase_add_test(tc, a_block_of_many_files_is_in_the_index_once);
    tcase_add_test(tc, sums_come_along);
    tcase_add_test(tc, only_shown_entries_come_along);
    tcase_add_test(tc, shown_files_keep_what_they_refer_to);
    tcase_add_test(tc, what_nothing_shown_refers_to_is_not_copied);
    tcase_add_test(tc, links_that_are_taken_share_their_inode);
    tcase_add_test(tc, one_entry_may_have_several_names);
    tcase_add_test(tc, names_of_one_file_are_links);
    tcase_add_test(tc, a_directory_may_be_in_several_places);
    tcase_add_test(tc, directories_merge_and_the_first_gives_the_attributes);
    tcase_add_test(tc, a_name_in_two_archives_is_an_error_that_names_both);
    tcase_add_test(tc, what_is_there_may_stay);
    tcase_add_test(tc, left_out_members_are_told_again);
    tcase_add_test(tc, a_path_too_long_there_is_left_out);
    tcase_add_test(tc, damaged_indexes_are_refused_or_make_good_ones);
    tcase_add_test(tc, entries_that_share_a_list_of_ranges_do_not_multiply_it);
    tcase_add_test(tc, links_that_share_a_target_do_not_multiply_it);
    tcase_add_test(tc, files_that_all_have_all_blocks_are_refused);
    tcase_add_test(tc, blocks_that_share_a_window_do_not_multiply_it);
    tcase_add_test(tc, sets_of_attributes_that_overlap_do_not_multiply_them);
    tcase_add_test(tc, a_large_set_of_attributes_is_in_the_index_once);
    tcase_add_test(tc, data_beyond_the_composed_archive_is_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
