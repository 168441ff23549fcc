/* Grafting: what an index says of a tree, the new index says of it as well. */
#include "format_numbers.h"
#include "graft.h"
#include "graft_helper.h"
#include "suite.h"

#define ARCHIVE_BYTES (UINT64_C(1) << 40)

/* ---- the composition ---- */

struct composition {
    struct builder *builder;
    struct grafter *grafter;
    struct fault fault;
};

static struct composition begin(void)
{
    struct composition c = {.builder = new_builder()};
    builder_set_archive_size(c.builder, ARCHIVE_BYTES);
    ck_assert_int_eq(grafter_new(c.builder, &c.grafter), 0);
    return c;
}

static int try_graft(struct composition *c, const struct graft *graft)
{
    c->fault = (struct fault){0};
    return graft_add(c->grafter, graft, &c->fault);
}

static void graft(struct composition *c, const struct index *index, const char *under,
                  uint64_t base)
{
    int r = try_graft(c, &(struct graft){.index = index, .under = under, .base = base});
    ck_assert_msg(r == 0, "%d %s: %s", r, c->fault.member, c->fault.what);
}

static struct index *finish(struct composition *c)
{
    struct builder_header header = {.format = FORMAT_TAR, .archive_bytes = ARCHIVE_BYTES};
    grafter_finish(c->grafter, &header);
    grafter_free(c->grafter);
    struct index *index = build(c->builder, &header);
    ck_assert_uint_eq(walk_all(index).errors, 0);
    return index;
}

static void discard(struct composition *c)
{
    grafter_free(c->grafter);
    builder_free(c->builder);
}

START_TEST(a_tree_comes_along_whole)
{
    struct index *old = rich_index();
    struct composition c = begin();
    graft(&c, old, "", 0);
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
    graft(&c, rich, "one", 1u << 21);
    graft(&c, zstd, "two/deeper", UINT64_C(7) << 21);
    graft(&c, zlib, "/three//", UINT64_C(1) << 39);
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
    graft(&c, first, "a", 0);
    graft(&c, second, "b", 1u << 21);
    struct index *once = finish(&c);
    c = begin();
    graft(&c, once, "", 1u << 22);
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
    graft(&c, old, "", 0);
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
        graft(&c, a, "a", 0);
        if (with)
            graft(&c, with == 1 ? xxh3 : none, "x", 0);
        graft(&c, b, "b", 0);
        struct index *new = finish(&c);
        compare_trees(a, new, "a", 0);
        compare_trees(b, new, "b", 0);
        bool known = checksum_available(SUM_CRC32);
        ck_assert_int_eq(index_info(new)->has_sums, known && !with);
        ck_assert_int_eq(index_info(new)->has_some_sums, known);
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

struct wish {
    const char *const *pairs; /* path, letter: - leave out, + take, ? if needed */
    unsigned asked;
};

static int place_wish(void *ctx, const char *path, size_t len, uint32_t position, uint32_t mode)
{
    struct wish *wish = ctx;
    ck_assert_uint_eq(strlen(path), len);
    ck_assert_uint_gt(position, 0);
    ck_assert_uint_ne(mode & S_IFMT, 0);
    wish->asked++;
    for (size_t i = 0; wish->pairs[i]; i += 2)
        if (strcmp(wish->pairs[i], path) == 0)
            return wish->pairs[i + 1][0] == '-'   ? GRAFT_LEAVE_OUT
                   : wish->pairs[i + 1][0] == '+' ? GRAFT_TAKE
                                                  : GRAFT_IF_NEEDED;
    return S_ISDIR(mode) ? GRAFT_IF_NEEDED : GRAFT_LEAVE_OUT;
}

static struct index *graft_wish(const struct index *old, const char *const *pairs,
                                unsigned *ret_asked)
{
    struct wish wish = {pairs, 0};
    struct composition c = begin();
    const struct graft graft = {.index = old, .place = place_wish, .ctx = &wish};
    ck_assert_int_eq(try_graft(&c, &graft), 0);
    *ret_asked = wish.asked;
    return finish(&c);
}

START_TEST(directories_come_along_if_they_are_needed)
{
    struct builder *b = new_builder();
    add_dir(b, "one", 0711);
    add_dir(b, "one/two", 0722);
    add_file(b, "one/two/file", 100, 10);
    add_file(b, "one/two/other", 200, 10);
    add_dir(b, "one/empty", 0733);
    add_file(b, "pruned/three/four", 300, 10);
    struct index *old = build(b, &tar_header);
    static const char *const pairs[] = {"one/two/file", "+", "pruned", "-", NULL};
    static const char *const empty[] = {"one/empty", "+", "pruned", "-", NULL};
    unsigned asked;
    struct index *new = graft_wish(old, pairs, &asked);
    ck_assert_uint_eq(asked, 6);
    ck_assert_uint_eq(index_info(new)->entries, 4);
    ck_assert_uint_eq(node_of(new, "one").mode, S_IFDIR | 0711);
    ck_assert_uint_eq(node_of(new, "one/two").mode, S_IFDIR | 0722);
    ck_assert_uint_eq(extent_of(new, "one/two/file", 0).source_offset, 100);
    index_close(new);
    new = graft_wish(old, empty, &asked);
    ck_assert_uint_eq(index_info(new)->entries, 3);
    ck_assert_uint_eq(node_of(new, "one/empty").mode, S_IFDIR | 0733);
    index_close(new);
    index_close(old);
}
END_TEST

START_TEST(links_that_are_taken_share_their_inode)
{
    struct index *old = rich_index();
    static const char *const pairs[] = {"d/f", "+", "d/e/deep", "+", "d/fifo", "+", NULL};
    unsigned asked;
    struct index *new = graft_wish(old, pairs, &asked);
    struct node f = node_of(new, "d/f");
    ck_assert_uint_eq(f.nlink, 2);
    ck_assert_uint_eq(f.position, node_of(new, "d/e/deep").position);
    ck_assert_uint_eq(node_of(new, "d/fifo").nlink, 1);
    ck_assert_uint_eq(node_of(new, "d/fifo").mode, S_IFIFO | 0644);
    index_close(new);
    index_close(old);
}
END_TEST

START_TEST(one_entry_may_have_several_names)
{
    struct index *old = rich_index();
    struct composition c = begin();
    struct grafting *s;
    struct builder_entry d, e;
    const struct graft graft = {.index = old, .name = "it"};
    ck_assert_int_eq(grafting_begin(c.grafter, &graft, &c.fault, &s), 0);
    ck_assert_int_eq(grafting_put_root(s), 0);
    uint32_t f = position_of(old, "a"), directory = position_of(old, "d");
    ck_assert_int_eq(grafting_put(s, directory, BUILDER_ROOT, "x", 1, &d), 0);
    ck_assert_int_eq(grafting_put(s, directory, BUILDER_ROOT, "x", 1, &e), 1);
    ck_assert_uint_eq(d.number, e.number);
    ck_assert_int_eq(grafting_put(s, f, d.number, "1", 1, &e), 0);
    ck_assert_int_eq(grafting_put(s, f, BUILDER_ROOT, "2", 1, &e), 0);
    ck_assert_int_eq(grafting_put(s, f, d.number, "1", 1, &e), 1);
    ck_assert_int_eq(grafting_put(s, position_of(old, "d/same"), d.number, "1", 1, &e),
                     -EEXIST);
    ck_assert_str_eq(c.fault.member, "d/same");
    ck_assert_str_eq(c.fault.what, "would have the name that 'a' has");
    static const char *const bad[] = {"", ".", "..", "a/b"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(grafting_put(s, f, d.number, bad[i], strlen(bad[i]), &e), -EINVAL);
    ck_assert_int_eq(grafting_put(s, f, e.number + 100, "y", 1, &e), -EINVAL);
    ck_assert_int_eq(grafting_put(s, 1000, d.number, "y", 1, &e), -EINVAL);
    grafting_end(s);
    struct index *new = finish(&c);
    ck_assert_str_eq(listing(new, ""), "2 x ");
    ck_assert_uint_eq(node_of(new, "2").nlink, 2);
    ck_assert_uint_eq(node_of(new, "2").position, node_of(new, "x/1").position);
    ck_assert_uint_eq(node_of(new, "x").mode, S_IFDIR | 01700);
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
    graft(&c, first, "", 0);
    graft(&c, second, "", 1000);
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
                               file_index("x", 0),   file_index("x/1/y", 0)};
    static const char *const names[] = {"1.tar", "2.tar", "3.tar", "4.tar", "5.tar", "6.tar"};
    static const struct {
        const char *member, *what;
    } wrong[] = {{"x/2", "is in '2.tar' and in '4.tar'"},
                 {"x", "is in '1.tar' and in '5.tar'"},
                 {"x/1", "is in '1.tar' and in '6.tar'"}};
    for (size_t i = 0; i < 3; i++) {
        struct composition c = begin();
        for (size_t j = 0; j < 3; j++)
            ck_assert_int_eq(
                try_graft(&c, &(struct graft){.index = indexes[j], .name = names[j]}), 0);
        ck_assert_int_eq(
            try_graft(&c, &(struct graft){.index = indexes[3 + i], .name = names[3 + i]}),
            -EEXIST);
        ck_assert_str_eq(c.fault.member, wrong[i].member);
        ck_assert_str_eq(c.fault.what, wrong[i].what);
        discard(&c);
    }
    for (size_t i = 0; i < 6; i++)
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
    const struct graft grafts[] = {{.index = first},
                                   {.index = second},
                                   {.index = third},
                                   {.index = under, .under = "x/2"}};
    for (size_t i = 0; i < 4; i++) {
        struct graft g = grafts[i];
        g.on_conflict = GRAFT_KEEP;
        g.base = i * 10000;
        ck_assert_int_eq(try_graft(&c, &g), 0);
    }
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

START_TEST(a_directory_that_is_not_needed_yet_can_be_in_conflict)
{
    struct index *first = file_index("d", 0), *second = file_index("d/e/f", 0);
    static const char *const pairs[] = {"d/e/f", "+", NULL};
    struct wish wish = {pairs, 0};
    struct composition c = begin();
    graft(&c, first, "", 0);
    struct graft g = {.index = second, .place = place_wish, .ctx = &wish};
    ck_assert_int_eq(try_graft(&c, &g), -EEXIST);
    g.on_conflict = GRAFT_KEEP;
    ck_assert_int_eq(try_graft(&c, &g), 0);
    struct index *new = finish(&c);
    ck_assert_str_eq(listing(new, ""), "d ");
    ck_assert_uint_eq(node_of(new, "d").mode & S_IFMT, S_IFREG);
    index_close(new);
    index_close(first);
    index_close(second);
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
    graft(&c, old, "a", 0);
    graft(&c, old, "b", 0);
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
    graft(&c, old, under, 0);
    struct index *new = finish(&c);
    ck_assert_uint_eq(index_left_out(new), 1);
    index_close(new);
    index_close(old);
}
END_TEST

/* ---- hostile indexes ---- */

/* Grafts an image that may say anything: what comes of it is an index or an error. */
static int graft_image(const uint8_t *image, size_t len)
{
    struct index *old = NULL;
    if (open_image(image, len, &old) < 0)
        return -EUCLEAN;
    struct composition c = begin();
    int r = try_graft(&c, &(struct graft){.index = old, .under = "x", .base = 1u << 21});
    if (r == 0)
        index_close(finish(&c));
    else
        discard(&c);
    if (r < 0)
        ck_assert_str_ne(c.fault.what, "");
    index_close(old);
    return r;
}

START_TEST(damaged_indexes_are_refused_or_make_good_ones)
{
    unsigned good = 0, bad = 0, seed = 1;
    size_t len;
    uint8_t *image = build_image(rich_builder(), &tar_header, &len);
    uint8_t *copy = malloc(len);
    for (unsigned i = 0; i < 6000; i++) {
        memcpy(copy, image, len);
        for (unsigned j = 0; j <= i % 3; j++)
            copy[(unsigned)rand_r(&seed) % len] = (uint8_t)rand_r(&seed);
        reseal(copy, len);
        if (graft_image(copy, len) == 0)
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

/* Make each regular file's entry say what the first one's does. */
static void share_data(uint8_t *image, unsigned files)
{
    struct disk_header h;
    struct disk_section s;
    memcpy(&h, image, sizeof(h));
    memcpy(&s, image + h.sections_offset, sizeof(s));
    ck_assert_uint_eq(s.id, SECTION_ENTRIES);
    uint64_t size = 0, data = 0;
    for (unsigned i = 1; i <= files; i++) {
        struct disk_entry e;
        memcpy(&e, image + s.offset + i * sizeof(e), sizeof(e));
        size = i == 1 ? e.size : size;
        data = i == 1 ? e.data : data;
        e.size = size;
        e.data = data;
        memcpy(image + s.offset + i * sizeof(e), &e, sizeof(e));
    }
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
    size_t len;
    uint8_t *image = build_image(b, &tar_header, &len);
    ck_assert_int_eq(graft_image(image, len), 0);
    share_data(image, 5000);
    reseal(image, len);
    ck_assert_int_eq(graft_image(image, len), -EUCLEAN);
    free(image);
}
END_TEST

START_TEST(links_that_share_a_target_do_not_multiply_it)
{
    struct builder *b = new_builder();
    char target[4001], path[16];
    memset(target, 't', 4000);
    target[4000] = '\0';
    for (unsigned i = 0; i < 5000; i++) {
        snprintf(path, sizeof(path), "%04u", i);
        add_symlink(b, path, i ? "x" : target);
    }
    size_t len;
    uint8_t *image = build_image(b, &tar_header, &len);
    ck_assert_int_eq(graft_image(image, len), 0);
    share_data(image, 5000);
    reseal(image, len);
    ck_assert_int_eq(graft_image(image, len), -EUCLEAN);
    free(image);
}
END_TEST

START_TEST(data_beyond_the_composed_archive_is_refused)
{
    struct index *old = file_index("f", 1000);
    struct composition c = begin();
    struct graft g = {.index = old, .base = ARCHIVE_BYTES - 1009};
    ck_assert_int_lt(try_graft(&c, &g), 0);
    ck_assert_str_eq(c.fault.member, "f");
    g.base = UINT64_MAX - 500;
    g.under = "again";
    ck_assert_int_lt(try_graft(&c, &g), 0);
    g.base = ARCHIVE_BYTES - 1010;
    g.under = "good";
    ck_assert_int_eq(try_graft(&c, &g), 0);
    discard(&c);
    index_close(old);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graft");
    TCase *tc = tcase_create("graft");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_tree_comes_along_whole);
    tcase_add_test(tc, trees_lie_side_by_side_at_their_offsets);
    tcase_add_test(tc, a_composition_of_a_composition_is_the_same);
    tcase_add_test(tc, a_block_of_many_files_is_in_the_index_once);
    tcase_add_test(tc, sums_come_along);
    tcase_add_test(tc, directories_come_along_if_they_are_needed);
    tcase_add_test(tc, links_that_are_taken_share_their_inode);
    tcase_add_test(tc, one_entry_may_have_several_names);
    tcase_add_test(tc, directories_merge_and_the_first_gives_the_attributes);
    tcase_add_test(tc, a_name_in_two_archives_is_an_error_that_names_both);
    tcase_add_test(tc, what_is_there_may_stay);
    tcase_add_test(tc, a_directory_that_is_not_needed_yet_can_be_in_conflict);
    tcase_add_test(tc, left_out_members_are_told_again);
    tcase_add_test(tc, a_path_too_long_there_is_left_out);
    tcase_add_test(tc, damaged_indexes_are_refused_or_make_good_ones);
    tcase_add_test(tc, entries_that_share_a_list_of_ranges_do_not_multiply_it);
    tcase_add_test(tc, links_that_share_a_target_do_not_multiply_it);
    tcase_add_test(tc, data_beyond_the_composed_archive_is_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
