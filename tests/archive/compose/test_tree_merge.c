/* Several trees in one: each entry is as in its index, or the name in two is an error. */
#include "format_numbers.h"
#include "suite.h"
#include "tree_helper.h"

struct part {
    const struct index *index;
    uint64_t base;
    const char *under; /* NULL: the root */
    bool hides_some;   /* every eighth entry */
};

enum { PARTS_MAX = 40 };

struct parts {
    struct part at[PARTS_MAX];
    size_t count;
};

static void add_part(struct parts *p, struct index *index, const char *under)
{
    ck_assert_uint_lt(p->count, PARTS_MAX);
    p->at[p->count] = (struct part){index, (uint64_t)p->count << 41, under, false};
    p->count++;
}

static void close_parts(struct parts *p)
{
    for (size_t i = 0; i < p->count; i++)
        index_close((struct index *)(uintptr_t)p->at[i].index);
    p->count = 0;
}

static struct builder_header header_of_parts(const struct parts *p)
{
    return (struct builder_header){.format = FORMAT_TAR,
                                   .archive_bytes = (uint64_t)p->count << 41};
}

static int try_merge(const struct parts *p, struct index **ret_index)
{
    struct builder_header header = header_of_parts(p);
    struct fault fault = {0};
    struct tree *tree;
    int r = tree_new(&tree);
    for (size_t i = 0; r == 0 && i < p->count; i++) {
        const char *under = p->at[i].under;
        struct tree_part part = {
            .index = p->at[i].index, .base = p->at[i].base, .at_root = !under};
        struct tree_place root = {.position = INDEX_ROOT};
        size_t bytes = index_info(part.index)->entries / 8 + 1;
        if (p->at[i].hides_some)
            part.shown = memset(malloc(bytes), 0xbf, bytes);
        r = tree_add(tree, &part, &root.part);
        if (r == 0 && under)
            r = tree_put(tree, TREE_TOP, under, strlen(under), root, 0, &fault);
    }
    if (r == 0)
        return write_tree(tree, &header, &fault, ret_index);
    tree_free(tree);
    return r;
}

static struct index *merge(const struct parts *p)
{
    struct index *index = NULL;
    ck_assert_int_eq(try_merge(p, &index), 0);
    ck_assert_uint_eq(walk_all(index).errors, 0);
    return index;
}

/* The path that an entry of a part has in the new tree. */
static void new_path(const struct part *part, uint32_t position, char path[512])
{
    size_t len = 0;
    path[0] = '\0';
    if (part->under)
        len = (size_t)sprintf(path, "%s/", part->under);
    ck_assert_int_eq(index_path(part->index, position, path + len, 512 - len, &len), 0);
}

/* The entry of a part that would have this path in the new tree. */
static bool has_path(const struct part *part, const char *path, uint32_t *ret_position)
{
    size_t len = part->under ? strlen(part->under) : 0;
    if (strncmp(path, part->under ? part->under : "", len) != 0 ||
        (len && path[len] && path[len] != '/'))
        return false;
    return index_resolve(part->index, path + len, ret_position) == 0;
}

/* Is there a name that an earlier part has as well? 1, or 2 if the trees can't be merged. */
static int is_taken(const struct parts *p, size_t number, const char *path, bool is_directory)
{
    uint32_t position;
    struct node node;
    for (size_t i = 0; i < number; i++)
        if (has_path(&p->at[i], path, &position)) {
            ck_assert_int_eq(index_node(p->at[i].index, position, &node), 0);
            return S_ISDIR(node.mode) && is_directory ? 1 : 2;
        }
    return 0;
}

struct totals {
    uint64_t entries, files, directories, inodes, total_bytes, data_bytes;
};

/* Compare a part's entries with the new index; NULL: look for conflicts alone. */
static bool check_part(const struct parts *p, size_t number, const struct index *new,
                       struct totals *t)
{
    const struct part *part = &p->at[number];
    struct pair pair = {part->index, new, part->base, 0};
    for (uint32_t i = 0; i < index_info(part->index)->entries; i++) {
        char path[512];
        struct node node;
        new_path(part, i, path);
        ck_assert_int_eq(index_node(part->index, i, &node), 0);
        int taken = is_taken(p, number, path, S_ISDIR(node.mode));
        if (taken == 2)
            return false;
        t->entries += taken == 0;
        t->directories += taken == 0 && S_ISDIR(node.mode);
        t->inodes += taken == 0 && node.position == i;
        t->files += S_ISREG(node.mode);
        if (new && !S_ISDIR(node.mode))
            compare_entry(&pair, i, position_of(new, path));
        if (new &&S_ISDIR(node.mode) && taken == 0) {
            struct node there = node_of(new, path);
            ck_assert_uint_eq(node.mode, there.mode);
            ck_assert_int_eq(node.mtime_sec, there.mtime_sec);
            compare_xattrs(&pair, i, position_of(new, path));
        }
    }
    t->total_bytes += index_info(part->index)->total_bytes;
    t->data_bytes += index_info(part->index)->data_bytes;
    return true;
}

static void check_info(const struct parts *p, const struct index *new, const struct totals *t)
{
    const struct index_info *info = index_info(new);
    uint8_t digest[INDEX_DIGEST_BYTES];
    enum digest_kind kind;
    uint64_t left_out = 0;
    for (size_t i = 0; i < p->count; i++)
        left_out += index_left_out(p->at[i].index);
    ck_assert_uint_eq(info->entries, t->entries + (p->at[0].under != NULL));
    ck_assert_uint_eq(info->directories, t->directories + (p->at[0].under != NULL));
    ck_assert_uint_eq(info->inodes, t->inodes + (p->at[0].under != NULL));
    ck_assert_uint_eq(info->files, t->files);
    ck_assert_uint_eq(info->total_bytes, t->total_bytes);
    ck_assert_uint_eq(info->data_bytes, t->data_bytes);
    ck_assert_uint_eq(index_left_out(new), left_out);
    ck_assert_uint_eq(walk_all(new).errors, 0);
    if (info->digest_kind == DIGEST_NONE)
        return;
    ck_assert_int_eq(index_digest(new, NULL, digest, &kind), 0);
    ck_assert_int_eq(info->digest_kind, kind);
    ck_assert_mem_eq(info->digest, digest, sizeof(digest));
}

/* The new index has each entry as it was; or a name is in two parts, and that is an error. */
static bool check_merged(const struct parts *p)
{
    struct index *merged = NULL;
    struct totals ignored = {0}, totals = {0};
    bool is_good = true;
    for (size_t i = 0; i < p->count; i++)
        is_good = check_part(p, i, NULL, &ignored) && is_good;
    ck_assert_int_eq(try_merge(p, &merged), is_good ? 0 : -EEXIST);
    if (!is_good)
        return false;
    for (size_t i = 0; i < p->count; i++)
        check_part(p, i, merged, &totals);
    check_info(p, merged, &totals);
    index_close(merged);
    return true;
}

START_TEST(all_kinds_of_members_come_along)
{
    struct parts p = {0};
    add_part(&p, rich_index(), NULL);
    check_merged(&p);
    add_part(&p, file_index("d/between", 4096), NULL);
    check_merged(&p);
    add_part(&p, block_index(CODEC_ZSTD, 4096), NULL);
    check_merged(&p);
    close_parts(&p);
}
END_TEST

/* In each order of those with sums of pieces, those without, and those without points. */
START_TEST(parts_of_streams_keep_their_points)
{
    for (unsigned order = 0; order < 8; order++) {
        struct parts p = {0};
        for (unsigned i = 0; i < 3; i++) {
            char folder[8];
            snprintf(folder, sizeof(folder), "%u", i);
            add_part(&p, point_index(folder, order >> i & 1), NULL);
            if (i == 0)
                add_part(&p, block_index(CODEC_ZSTD, 8192), NULL);
        }
        check_merged(&p);
        struct index *index = merge(&p);
        ck_assert_uint_eq(index_info(index)->points, 12);
        index_close(index);
        close_parts(&p);
    }
}
END_TEST

START_TEST(each_may_have_a_directory)
{
    struct parts p = {0};
    add_part(&p, rich_index(), "one");
    check_merged(&p);
    add_part(&p, block_index(CODEC_ZSTD, 4096), "b");
    add_part(&p, block_index(CODEC_ZLIB, 8192), "a");
    check_merged(&p);
    add_part(&p, file_index("more", 4096), "one");
    check_merged(&p);
    add_part(&p, file_index("more", 4096), "one");
    check_merged(&p);
    close_parts(&p);
}
END_TEST

START_TEST(sums_and_digest_come_along)
{
    static const struct {
        enum sum_kind kinds[3];
    } sets[] = {{{SUM_XXH3, SUM_XXH3, SUM_XXH3}},
                {{SUM_CRC32, SUM_CRC32, SUM_CRC32}},
                {{SUM_XXH3, SUM_CRC32, SUM_XXH3}}};
    static const char *const paths[] = {"d/a", "b", "d/c"}, *const under[] = {"y", "x", "z"};
    for (size_t i = 0; i < 3; i++) {
        struct parts p = {0};
        for (size_t j = 0; j < 3; j++)
            add_part(&p, summed_index(paths[j], sets[i].kinds[j], 5 + j), under[j]);
        check_merged(&p);
        add_part(&p, file_index("none", 0), "x");
        check_merged(&p);
        close_parts(&p);
    }
}
END_TEST

/* Of different sizes, with names that interleave. */
static struct index *shuffled_index(unsigned *seed, unsigned number, bool clashes)
{
    struct builder *b = new_builder();
    unsigned files = (unsigned)rand_r(seed) % 60;
    for (unsigned i = 0; i < files; i++) {
        char path[64], target[80];
        unsigned x = (unsigned)rand_r(seed), y = (unsigned)rand_r(seed);
        unsigned suffix = clashes && y % 20 == 0 ? 0 : number * 1000 + i;
        snprintf(path, sizeof(path),
                 x % 3 == 0   ? "n%.0u%c%c%u"
                 : x % 3 == 1 ? "dir%u/long-common-name-%c%c%u"
                              : "dir%u/%c/deep%c-%u",
                 x / 3 % 4, 'a' + x / 12 % 3, 'a' + x / 36 % 5, suffix);
        switch (y % 7) {
        case 0:
            add_symlink(b, path, "../somewhere");
            break;
        case 1:
            snprintf(target, sizeof(target), "%s-link", path);
            add_file(b, path, i * 4096, 100 + i);
            add_link(b, target, path);
            break;
        case 2:
            snprintf(target, sizeof(target), "%s.d", path);
            add_dir(b, target, y % 01000);
            break;
        default:
            add_file(b, path, i * 4096, y % 4096);
        }
    }
    return build(b, &tar_header);
}

START_TEST(shuffled_trees_are_merged)
{
    unsigned seed = 1, refused = 0;
    for (unsigned round = 0; round < 80; round++) {
        struct parts p = {0};
        unsigned count = 1 + (unsigned)rand_r(&seed) % 12;
        for (unsigned i = 0; i < count; i++)
            add_part(&p, shuffled_index(&seed, i, round % 2), NULL);
        refused += !check_merged(&p);
        close_parts(&p);
    }
    ck_assert_uint_gt(refused, 3);
    ck_assert_uint_lt(refused, 40);
}
END_TEST

START_TEST(many_entries_are_merged)
{
    struct parts p = {0};
    for (unsigned i = 0; i < 4; i++) {
        struct builder *b = new_builder();
        for (unsigned j = 0; j < 17000; j++) {
            char path[64];
            snprintf(path, sizeof(path), "d%03u/f%u-%06u", j / 500, i, j);
            builder_set_sum(b, add_file(b, path, 0, j), j);
        }
        add_part(&p, build(b, &tar_header), NULL);
    }
    check_merged(&p);
    close_parts(&p);
}
END_TEST

START_TEST(a_name_in_two_parts_is_an_error)
{
    static const struct {
        const char *a, *b;
    } pairs[] = {{"f", "f"}, {"d/f", "d/f"}, {"d/f", "d"}, {"d", "d/f"}};
    struct index *index = NULL;
    struct parts p = {0};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        add_part(&p, file_index(pairs[i].a, 0), NULL);
        add_part(&p, file_index(pairs[i].b, 0), NULL);
        ck_assert(!check_merged(&p));
        close_parts(&p);
    }
    /* Names that the directories can't have. */
    static const char *const bad[] = {"", ".", "..", "a//b"};
    for (size_t i = 0; i < 4; i++) {
        add_part(&p, file_index("f", 0), bad[i]);
        ck_assert_int_eq(try_merge(&p, &index), -EINVAL);
        close_parts(&p);
    }
}
END_TEST

START_TEST(left_out_members_are_told_again)
{
    struct parts p = {0};
    for (unsigned i = 0; i < 3; i++) {
        struct builder *b = new_builder();
        struct fault why = {0};
        fault_set(&why, -ENOENT, "gone", i, "is a link to nothing");
        ck_assert_int_eq(builder_leave_out(b, &why), 0);
        add_part(&p, build(b, &tar_header), NULL);
    }
    check_merged(&p);
    struct index *index = merge(&p);
    ck_assert_uint_eq(index_left_out(index), 3);
    index_close(index);
    close_parts(&p);
}
END_TEST

/* Whatever an image says, the other archive's tree is as it should be. */
static bool merge_hostile(const uint8_t *image, size_t len, bool hides_some,
                          const struct index *good)
{
    struct parts p = {0};
    struct index *hostile = NULL, *merged = NULL;
    if (open_image(image, len, &hostile) < 0)
        return false;
    p.at[0] = (struct part){hostile, 0, "hostile", hides_some};
    p.at[1] = (struct part){good, UINT64_C(1) << 41, "good", false};
    p.count = 2;
    int r = try_merge(&p, &merged);
    ck_assert_msg(r == 0 || r == -EUCLEAN, "%d", r);
    if (r == 0) {
        (void)walk_all(merged);
        compare_trees(good, merged, "good", p.at[1].base);
    }
    index_close(merged);
    index_close(hostile);
    return r == 0;
}

static void try_hostile(struct builder *b, const struct builder_header *header,
                        const struct index *good, unsigned *merged, unsigned *refused)
{
    unsigned seed = 1;
    size_t len;
    uint8_t *image = build_image(b, header, &len);
    uint8_t *copy = malloc(len);
    for (unsigned i = 0; i < 800; i++) {
        memcpy(copy, image, len);
        for (unsigned j = 0; j <= i % 3; j++)
            copy[(unsigned)rand_r(&seed) % len] = (uint8_t)rand_r(&seed);
        reseal(copy, len);
        if (merge_hostile(copy, len, i % 2, good))
            (*merged)++;
        else
            (*refused)++;
    }
    free(copy);
    free(image);
}

START_TEST(damaged_indexes_are_refused_or_hurt_no_other)
{
    unsigned merged = 0, refused = 0;
    struct index *good = rich_index();
    try_hostile(rich_builder(), &tar_header, good, &merged, &refused);
    struct builder_header header;
    struct builder *b = block_builder(CODEC_ZSTD, 4096, &header);
    try_hostile(b, &header, good, &merged, &refused);
    b = point_builder("f", true, &header);
    try_hostile(b, &header, good, &merged, &refused);
    ck_assert_uint_gt(merged, 40);
    ck_assert_uint_gt(refused, 200);
    index_close(good);
}
END_TEST

/* Open an image in which a number of 8 bytes is another, and merge it with a sound part. */
static int merge_changed(uint8_t *image, size_t len, enum disk_section_id id, uint64_t at,
                         uint64_t value)
{
    struct index *index = NULL, *merged = NULL;
    struct parts p = {0};
    struct disk_section s = section_of(image, id);
    memcpy(image + s.offset + at, &value, sizeof(value));
    reseal(image, len);
    ck_assert_int_eq(open_image(image, len, &index), 0);
    add_part(&p, index, "a");
    add_part(&p, point_index("f", true), "b"); /* whose blocks and windows come next */
    int r = try_merge(&p, &merged);
    index_close(merged);
    close_parts(&p);
    return r;
}

START_TEST(packed_data_end_with_their_archives_blocks)
{
    static const struct {
        uint32_t bytes; /* of a block */
        uint64_t size;
        int expected;
    } cases[] = {{4096, 2 * 4096 - 1, 0},
                 {4096, 2 * 4096, -EUCLEAN},
                 {4096, UINT64_MAX, -EUCLEAN},
                 {4, UINT64_C(1) << 62, -EUCLEAN}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct builder *b = new_builder();
        uint32_t bytes = cases[i].bytes;
        const struct builder_header header = {
            .codec = CODEC_ZSTD, .block_bytes = bytes, .archive_bytes = UINT64_C(1) << 40};
        const struct builder_piece run[] = {
            packed_at(0, bytes - 1, add_block(b, 0, 9, bytes), 1),
            packed_at(bytes - 1, bytes, add_block(b, 0, 9, bytes), 0)};
        add_pieces(b, "f", 2 * bytes - 1, run, 2);
        size_t len, field = sizeof(struct disk_entry) + offsetof(struct disk_entry, size);
        uint8_t *image = build_image(b, &header, &len);
        ck_assert_int_eq(merge_changed(image, len, SECTION_ENTRIES, field, cases[i].size),
                         cases[i].expected);
        free(image);
    }
}
END_TEST

START_TEST(windows_end_with_their_archives)
{
    for (uint64_t more = 0; more < 2; more++) {
        size_t len, field = 3 * sizeof(struct disk_point) + offsetof(struct disk_point, window);
        struct builder_header header;
        uint8_t *image = build_image(point_builder("f", true, &header), &header, &len);
        uint64_t bytes = section_of(image, SECTION_WINDOWS).length;
        int r = merge_changed(image, len, SECTION_POINTS, field, bytes - 300 + more);
        ck_assert_int_eq(r, more ? -EUCLEAN : 0);
        free(image);
    }
}
END_TEST

START_TEST(names_that_are_none_are_refused)
{
    static const struct {
        const char *names; /* of one byte each */
        int expected;
    } cases[] = {{"abcdefgh", 0},        {"aacdefgh", -EUCLEAN}, {"bacdefgh", -EUCLEAN},
                 {".bcdefgh", -EUCLEAN}, {"/bcdefgh", -EUCLEAN}, {"\0bcdefgh", -EUCLEAN}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct builder *b = new_builder();
        for (char name[] = "a"; name[0] <= 'h'; name[0]++)
            add_file(b, name, 0, 10);
        size_t len;
        uint64_t names;
        uint8_t *image = build_image(b, &tar_header, &len);
        memcpy(&names, cases[i].names, sizeof(names));
        ck_assert_int_eq(merge_changed(image, len, SECTION_NAMES, 0, names), cases[i].expected);
        free(image);
    }
}
END_TEST

/* Entries that say they are directories, of which the index lists none. */
START_TEST(directories_that_are_none_are_refused)
{
    size_t len;
    struct index *index = NULL, *merged = NULL;
    struct disk_attr attr;
    struct parts p = {0};
    struct builder *b = new_builder();
    for (unsigned i = 0; i < 40000; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%06u", i);
        builder_set_sum(b, add_file(b, name, 0, 1), i);
    }
    uint8_t *image = build_image(b, &tar_header, &len);
    struct disk_section s = section_of(image, SECTION_ATTRS);
    for (uint64_t at = s.offset; at < s.offset + s.length; at += sizeof(attr)) {
        memcpy(&attr, image + at, sizeof(attr));
        if (S_ISREG(attr.mode))
            attr.mode = S_IFDIR | 0755;
        memcpy(image + at, &attr, sizeof(attr));
    }
    reseal(image, len);
    ck_assert_int_eq(open_image(image, len, &index), 0);
    add_part(&p, index, NULL);
    ck_assert_int_eq(try_merge(&p, &merged), -EUCLEAN);
    close_parts(&p);
    free(image);
}
END_TEST

START_TEST(a_page_without_its_sum_is_refused)
{
    size_t len;
    struct index *index = NULL, *merged = NULL;
    uint8_t *image = build_image(rich_builder(), &tar_header, &len);
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    image[h.area_offset + h.area_bytes - 1] ^= 1;
    if (open_image(image, len, &index) == 0) { /* its first entry was not looked at */
        struct parts p = {0};
        add_part(&p, index, NULL);
        ck_assert_int_eq(try_merge(&p, &merged), -EUCLEAN);
        close_parts(&p);
    }
    free(image);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tree_merge");
    TCase *tc = tcase_create("tree_merge");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, all_kinds_of_members_come_along);
    tcase_add_test(tc, parts_of_streams_keep_their_points);
    tcase_add_test(tc, each_may_have_a_directory);
    tcase_add_test(tc, sums_and_digest_come_along);
    tcase_add_test(tc, shuffled_trees_are_merged);
    tcase_add_test(tc, many_entries_are_merged);
    tcase_add_test(tc, a_name_in_two_parts_is_an_error);
    tcase_add_test(tc, left_out_members_are_told_again);
    tcase_add_test(tc, damaged_indexes_are_refused_or_hurt_no_other);
    tcase_add_test(tc, packed_data_end_with_their_archives_blocks);
    tcase_add_test(tc, windows_end_with_their_archives);
    tcase_add_test(tc, names_that_are_none_are_refused);
    tcase_add_test(tc, directories_that_are_none_are_refused);
    tcase_add_test(tc, a_page_without_its_sum_is_refused);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
