/* The index: answers about a sound image, and refusals of every other. */
#include <malloc.h>
#include <pthread.h>

#include "index_helper.h"
#include "suite.h"

static const struct builder_header header = {.format = FORMAT_SQUASHFS,
                                             .codec = CODEC_ZSTD,
                                             .block_bytes = 4096,
                                             .archive_bytes = UINT64_C(1) << 40};

/* Every section and every kind of data, in few bytes. */
static uint8_t *image_of(const struct builder_header *about, size_t *ret_len)
{
    struct builder *b = new_builder();
    uint32_t inode, inodes[8], shared = add_block(b, 1000, 100, 4096);
    uint32_t first = add_block(b, 1000, 100, 4096), second = add_block(b, 9000, 5, 4096);
    ck_assert_uint_eq(second, first + 1);
    const struct builder_piece sparse[] = {stored_at(100, 100, 1000),
                                           stored_at(5000, 100, 5000)};
    const struct builder_piece blocks[] = {packed_at(0, 4096, first, 0),
                                           stored_at(2 * 4096, 2 * 4096, 2000),
                                           packed_at(4 * 4096, 100, second, 0)};
    const struct builder_piece run[] = {packed_at(0, 4096 - 50, first, 50),
                                        packed_at(4096 - 50, 4096, second, 0)};
    const struct builder_piece tail[] = {packed_at(0, 4096, second, 0),
                                         packed_at(4096, 100, shared, 50)};
    const struct builder_piece small = packed_at(0, 100, shared, 500);
    inodes[0] = inode = add_file(b, "dir/file", 512, 100);
    ck_assert_int_eq(builder_add_xattr(b, inode, "user.x", 6, "value", 5), 0);
    ck_assert_int_eq(builder_add_xattr(b, inode, "user.empty", 10, "", 0), 0);
    add_link(b, "link", "dir/file");
    add_link(b, "dir/link", "dir/file");
    inodes[1] = add_file(b, "empty", 0, 0);
    add_symlink(b, "dir/symlink", "../dir/file");
    add(b, "fifo", &(struct node){.mode = S_IFIFO | 0600, .mtime_sec = INT64_MIN});
    add(b, "device", &(struct node){.mode = S_IFCHR, .rdev_major = 1, .rdev_minor = 3});
    inodes[2] = add_pieces(b, "dir/sub/sparse", 9999, sparse, 2);
    inodes[3] = add_pieces(b, "dir/blocks", 4 * 4096 + 100, blocks, 3);
    inodes[4] = add_pieces(b, "dir/tail", 4096 + 100, tail, 2);
    inodes[5] = add_pieces(b, "dir/sub/small", 100, &small, 1);
    inodes[7] = add_pieces(b, "dir/run", 2 * 4096 - 50, run, 2);
    inodes[6] = add_file(b, "dir2/file", 5000, 100);
    add_dir(b, "dir3/nothing", 0700);
    for (size_t i = 0; i < sizeof(inodes) / sizeof(inodes[0]); i++)
        ck_assert_int_eq(builder_set_sum(b, inodes[i], i + 1), 0);
    return build_image(b, about, ret_len);
}

static uint8_t *small_image(size_t *ret_len)
{
    return image_of(&header, ret_len);
}

/* The same, large enough to be mapped. */
static uint8_t *mapped_image(size_t *ret_len)
{
    static const char recipe[20 << 10];
    struct builder_header about = header;
    about.recipe = recipe;
    about.recipe_len = sizeof(recipe);
    return image_of(&about, ret_len);
}

/* ---- questions ---- */

START_TEST(each_entry_of_a_large_directory_is_found)
{
    enum { COUNT = 100000 };
    struct builder *b = new_builder();
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "d/%d.jpg", (i * 7919) % COUNT);
        add_file(b, name, (uint64_t)i, 1);
    }
    struct index *index = build(b, &header);
    uint32_t d = position_of(index, "d"), first, count, found, parent;
    ck_assert_int_eq(index_children(index, d, &first, &count), 0);
    ck_assert_uint_eq(count, COUNT);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "%d.jpg", i);
        ck_assert_int_eq(index_lookup(index, d, name, strlen(name), &found), 0);
        ck_assert_int_eq(index_parent(index, found, &parent), 0);
        ck_assert_uint_eq(parent, d);
        snprintf(name, sizeof(name), "%d.jp", i);
        ck_assert_int_eq(index_lookup(index, d, name, strlen(name), &found), -ENOENT);
        snprintf(name, sizeof(name), "%d.jpgg", i);
        ck_assert_int_eq(index_lookup(index, d, name, strlen(name), &found), -ENOENT);
    }
    struct walk w = walk_all(index);
    ck_assert_uint_eq(w.errors, 0);
    ck_assert_uint_eq(w.visited, COUNT + 2);
    index_close(index);
}
END_TEST

START_TEST(lookups_of_what_is_not_there)
{
    size_t len;
    uint8_t *image = small_image(&len);
    struct index *index = NULL;
    ck_assert_int_eq(open_image(image, len, &index), 0);
    char name[300];
    uint32_t found;
    memset(name, 'x', sizeof(name));
    ck_assert_int_eq(index_lookup(index, 0, name, 300, &found), -ENOENT);
    ck_assert_int_eq(index_lookup(index, 0, "", 0, &found), -ENOENT);
    ck_assert_int_eq(index_lookup(index, 0, ".", 1, &found), -ENOENT);
    ck_assert_int_eq(index_lookup(index, 0, "..", 2, &found), -ENOENT);
    ck_assert_int_eq(index_lookup(index, 0, "\0", 1, &found), -ENOENT);
    ck_assert_int_eq(index_lookup(index, position_of(index, "empty"), "x", 1, &found),
                     -ENOTDIR);
    ck_assert_int_eq(index_lookup(index, position_of(index, "dir3/nothing"), "x", 1, &found),
                     -ENOENT);
    index_close(index);
    free(image);
}
END_TEST

START_TEST(paths_lead_to_positions_and_back)
{
    static const struct {
        const char *path, *same;
        int err;
    } cases[] = {
        {"", "", 0},
        {"/", "", 0},
        {"./.", "", 0},
        {"dir/sub/sparse", "dir/sub/sparse", 0},
        {"//dir/.//sub/./sparse//", "dir/sub/sparse", 0},
        {"dir/", "dir", 0},
        {"dir/none", NULL, -ENOENT},
        {"dir/file/x", NULL, -ENOTDIR},
        {"dir/symlink/x", NULL, -ENOTDIR},
        {"dir/..", NULL, -EINVAL},
        {"..", NULL, -EINVAL},
        {"dir/...", NULL, -ENOENT},
    };
    size_t len;
    uint8_t *image = small_image(&len);
    struct index *index = NULL;
    ck_assert_int_eq(open_image(image, len, &index), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t position = 0;
        char path[64];
        ck_assert_int_eq(index_resolve(index, cases[i].path, &position), cases[i].err);
        if (cases[i].err)
            continue;
        ck_assert_int_eq(index_path(index, position, path, sizeof(path), &len), 0);
        ck_assert_str_eq(path, cases[i].same);
        ck_assert_uint_eq(len, strlen(path));
        ck_assert_int_eq(index_path(index, position, path, len + 1, &len), 0);
        ck_assert_str_eq(path, cases[i].same);
        ck_assert_int_eq(index_path(index, position, path, len, &len), -ENAMETOOLONG);
    }
    index_close(index);
    free(image);
}
END_TEST

START_TEST(positions_past_the_end_are_refused)
{
    size_t len;
    uint8_t *image = small_image(&len);
    struct index *index = NULL;
    ck_assert_int_eq(open_image(image, len, &index), 0);
    const uint32_t bad[] = {index_info(index)->entries, UINT32_MAX};
    for (int i = 0; i < 2; i++) {
        struct node node;
        struct extent extent;
        struct index_file file;
        struct xattr x;
        const char *text;
        char path[64];
        uint32_t a, b;
        uint64_t cursor = 0, sum;
        ck_assert_int_eq(index_node(index, bad[i], &node), -EINVAL);
        ck_assert_int_eq(index_inode_position(index, bad[i], &a), -EINVAL);
        ck_assert_int_eq(index_name(index, bad[i], &text, &len), -EINVAL);
        ck_assert_int_eq(index_children(index, bad[i], &a, &b), -EINVAL);
        ck_assert_int_eq(index_lookup(index, bad[i], "x", 1, &a), -EINVAL);
        ck_assert_int_eq(index_parent(index, bad[i], &a), -EINVAL);
        ck_assert_int_eq(index_path(index, bad[i], path, sizeof(path), &len), -EINVAL);
        ck_assert_int_eq(index_symlink(index, bad[i], &text, &len), -EINVAL);
        ck_assert_int_eq(index_extent(index, bad[i], 0, &extent), -EINVAL);
        ck_assert_int_eq(index_xattr_next(index, bad[i], &cursor, &x), -EINVAL);
        ck_assert_int_eq(index_sum(index, bad[i], &sum), -EINVAL);
        ck_assert_int_eq(index_files(index, bad[i], 1, &file), -EINVAL);
        ck_assert_int_eq(index_files(index, 1, bad[i], &file), -EINVAL);
    }
    index_close(index);
    free(image);
}
END_TEST

START_TEST(a_path_of_500_directories)
{
    struct builder *b = new_builder();
    char path[1100] = "";
    for (int i = 0; i < 500; i++)
        strcat(path, "d/");
    strcat(path, "f");
    add_file(b, path, 0, 1);
    struct index *index = build(b, &header);
    char again[1100];
    size_t len;
    ck_assert_int_eq(index_path(index, position_of(index, path), again, sizeof(again), &len),
                     0);
    ck_assert_str_eq(path, again);
    ck_assert_uint_eq(walk_all(index).visited, 502);
    index_close(index);
}
END_TEST

START_TEST(empty_directories_do_not_disturb_the_search_for_parents)
{
    struct builder *b = new_builder();
    char name[32];
    unsigned seed = 5;
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof(name), "%d/%d", rand_r(&seed) % 50, rand_r(&seed) % 50);
        if (rand_r(&seed) % 3 == 0)
            strcat(name, "/x");
        struct fault fault = {0};
        uint32_t inode;
        try_add(b, name, &(struct node){.mode = S_IFDIR | 0755}, &fault, &inode);
    }
    struct index *index = build(b, &header);
    for (uint32_t d = 0; d < index_info(index)->entries; d++) {
        uint32_t first, count, parent;
        ck_assert_int_eq(index_children(index, d, &first, &count), 0);
        for (uint32_t i = first; i < first + count; i++) {
            ck_assert_int_eq(index_parent(index, i, &parent), 0);
            ck_assert_uint_eq(parent, d);
        }
    }
    index_close(index);
}
END_TEST

/* ---- versions ---- */

static int open_changed(uint8_t *image, size_t len, struct index **ret_index)
{
    reseal(image, len);
    return open_image(image, len, ret_index);
}

START_TEST(a_later_version_is_told_from_damage)
{
    size_t len;
    struct index *index = NULL;
    uint8_t *image = small_image(&len);
    struct disk_header *h = (struct disk_header *)(void *)image;
    h->version = 2;
    ck_assert_int_eq(open_changed(image, len, &index), -ENOTSUP);
    h->version = 1;
    h->incompatible = 8;
    ck_assert_int_eq(open_changed(image, len, &index), -ENOTSUP);
    h->incompatible = 0;
    ck_assert_int_eq(open_changed(image, len, &index), 0);
    index_close(index);
    h->version = 2; /* without a sound sum it is just damage */
    ck_assert_int_eq(open_image(image, len, &index), -EUCLEAN);
    free(image);
}
END_TEST

START_TEST(unknown_sections_and_a_longer_header_are_no_obstacle)
{
    /* Among them the first one that a later version may have, and two that none has. */
    static const uint32_t ids[] = {SECTION_IDS, 4711, 0, SECTION_WINDOW_SUMS + 1};
    size_t len;
    struct index *index = NULL;
    uint8_t *image = small_image(&len);
    struct disk_header *h = (struct disk_header *)(void *)image;
    struct disk_section *s = (struct disk_section *)(void *)(image + h->sections_offset);
    for (uint32_t i = 0; i < h->sections; i++)
        if (s[i].id == SECTION_SUMS)
            s[i] = (struct disk_section){ids[_i], _i < 2 ? 8 : 0, s[i].offset, s[i].length};
    ck_assert_int_eq(open_changed(image, len, &index), 0);
    ck_assert(!index_info(index)->has_sums);
    ck_assert_uint_eq(walk_all(index).errors, 0);
    index_close(index);

    /* One section less leaves room to move the table. */
    memmove((uint8_t *)s + 24, s, (h->sections - 1) * sizeof(*s));
    h->sections--;
    h->sections_offset += 24;
    ck_assert_int_eq(open_changed(image, len, &index), 0);
    index_close(index);
    free(image);
}
END_TEST

/* ---- damage ---- */

START_TEST(a_truncated_image_is_refused)
{
    size_t len;
    struct index *index = NULL;
    uint8_t *image = small_image(&len);
    for (size_t cut = 1; cut < len; cut++)
        ck_assert_int_eq(open_image(image, cut, &index), -EUCLEAN);
    struct source *source = NULL;
    ck_assert_int_eq(source_from_memory(image, len, "x", &source), 0);
    ck_assert_int_eq(index_open(source, 0, len + 1, NULL, &index), -EUCLEAN);
    ck_assert_int_eq(index_open(source, 0, 0, NULL, &index), -EUCLEAN);
    ck_assert_int_eq(index_open(source, 8, len, NULL, &index), -EUCLEAN);
    ck_assert_int_eq(index_open(source, UINT64_MAX - 7, 8, NULL, &index), -EUCLEAN);
    ck_assert_int_eq(index_open(source, 4, len - 4, NULL, &index), -EUCLEAN);
    source_close(source);
    free(image);
}
END_TEST

START_TEST(a_flipped_bit_is_noticed_or_does_not_matter)
{
    size_t len;
    struct index *index = NULL;
    uint8_t *image = small_image(&len);
    ck_assert_int_eq(open_image(image, len, &index), 0);
    struct walk sound = walk_all(index);
    ck_assert_uint_eq(sound.errors, 0);
    index_close(index);
    size_t unnoticed = 0;
    for (size_t at = 0; at < len; at++) {
        image[at] ^= (uint8_t)(1u << at % 8);
        int r = open_image(image, len, &index);
        ck_assert(r == 0 || r == -EUCLEAN);
        if (r == 0) {
            struct walk w = walk_all(index);
            ck_assert(w.errors > 0 || w.digest == sound.digest);
            unnoticed += w.errors == 0;
            index_close(index);
        }
        image[at] ^= (uint8_t)(1u << at % 8);
    }
    /* Padding between the parts, no more. */
    ck_assert_uint_lt(unnoticed, 64);
    free(image);
}
END_TEST

/* Also numbers that no version uses, and whatever is said of them. */
START_TEST(unknown_sections_are_passed_over)
{
    size_t len;
    struct index *index = NULL;
    uint8_t *image = small_image(&len);
    struct disk_header *h = (struct disk_header *)(void *)image;
    struct disk_section *s = (struct disk_section *)(void *)(image + h->sections_offset);
    while (s->id != SECTION_SUMS)
        s++;
    s->record_bytes = 0;
    for (uint32_t id = 0; id <= SECTION_IDS + 1; id++) {
        if (id < SECTION_IDS && disk_record_bytes(id) > 0)
            continue;
        s->id = id;
        ck_assert_int_eq(open_changed(image, len, &index), 0);
        ck_assert(!index_info(index)->has_sums);
        index_close(index);
    }
    free(image);
}
END_TEST

/* Bytes behind the image are not its own, whatever they say. */
START_TEST(page_sums_lie_within_the_image)
{
    size_t len;
    struct index *index = NULL;
    uint8_t *image = small_image(&len);
    struct disk_header *h = (struct disk_header *)(void *)image;
    for (uint64_t left = 0; left <= 8; left += 8) { /* bytes of one page's sum */
        h->image_bytes = h->sums_offset + left;
        ck_assert_int_eq(open_changed(image, len, &index), left == 8 ? 0 : -EUCLEAN);
    }
    index_close(index);
    free(image);
}
END_TEST

static void survive(uint8_t *image, size_t len)
{
    struct index *index = NULL;
    reseal(image, len);
    int r = open_image(image, len, &index);
    ck_assert(r == 0 || r == -EUCLEAN || r == -ENOTSUP || r == -ENOMEM);
    if (r < 0)
        return;
    struct walk w = walk_all(index);
    ck_assert_uint_le(w.visited, index_info(index)->entries);
    /* Also the entries that no directory leads to. */
    for (uint32_t i = 0; i < index_info(index)->entries; i++) {
        uint32_t parent;
        char path[256];
        size_t path_len;
        r = index_parent(index, i, &parent);
        ck_assert(r == -EUCLEAN || (r == 0 && (parent < i || i == 0)));
        r = index_path(index, i, path, sizeof(path), &path_len);
        ck_assert(r == 0 || r == -EUCLEAN || r == -ENAMETOOLONG);
    }
    index_close(index);
}

START_TEST(hostile_bytes_with_right_sums_do_no_harm)
{
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    size_t len;
    uint8_t *image = small_image(&len);
    uint8_t *work = malloc(len);
    for (size_t at = 0; at < len; at++) {
        for (size_t v = 0; v < 2 * sizeof(values); v++) {
            memcpy(work, image, len);
            work[at] = v < sizeof(values) ? values[v] : work[at] ^ values[v - sizeof(values)];
            survive(work, len);
        }
    }
    free(work);
    free(image);
}
END_TEST

START_TEST(hostile_words_with_right_sums_do_no_harm)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      5,
                                      100,
                                      UINT32_MAX,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      INT64_MAX,
                                      UINT64_C(1) << 63,
                                      UINT64_C(1) << 32,
                                      UINT64_C(0xffffffff00000001)};
    size_t len;
    uint8_t *image = small_image(&len);
    uint8_t *work = malloc(len);
    for (size_t at = 0; at + 8 <= len; at += 4) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            memcpy(work, image, len);
            memcpy(work + at, &values[v], v % 2 ? 4 : 8);
            survive(work, len);
        }
    }
    free(work);
    free(image);
}
END_TEST

START_TEST(many_hostile_changes_at_once_do_no_harm)
{
    size_t len;
    uint8_t *image = small_image(&len);
    uint8_t *work = malloc(len);
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    for (unsigned round = 0; round < 8000; round++) {
        unsigned seed = round;
        memcpy(work, image, len);
        for (int n = 1 + rand_r(&seed) % 8; n > 0; n--) {
            /* In the area only, so that most images can be opened. */
            size_t at = h.area_offset + (size_t)rand_r(&seed) % h.area_bytes;
            size_t from = h.area_offset + (size_t)rand_r(&seed) % (h.area_bytes - 8);
            if (rand_r(&seed) % 2)
                work[at] = (uint8_t)rand_r(&seed);
            else
                memmove(work + (at & ~(size_t)7), image + (from & ~(size_t)7), 8);
        }
        survive(work, len);
    }
    free(work);
    free(image);
}
END_TEST

/* ---- hostile trees ---- */

struct parts {
    struct disk_header *h;
    struct disk_entry *entries;
    struct disk_attr *attrs;
    uint32_t *dirs;
};

static struct parts parts_of(uint8_t *image)
{
    struct parts p = {.h = (struct disk_header *)(void *)image};
    struct disk_section *s = (struct disk_section *)(void *)(image + p.h->sections_offset);
    for (uint32_t i = 0; i < p.h->sections; i++) {
        void *at = image + s[i].offset;
        if (s[i].id == SECTION_ENTRIES)
            p.entries = at;
        if (s[i].id == SECTION_ATTRS)
            p.attrs = at;
        if (s[i].id == SECTION_DIRS)
            p.dirs = at;
    }
    return p;
}

START_TEST(directories_that_share_children_are_not_followed_twice)
{
    /* Each directory claims all that lies behind it: 2^30 paths, if they were followed. */
    struct builder *b = new_builder();
    char path[64] = "";
    for (int i = 0; i < 30; i++)
        strcat(path, i ? "/d" : "d");
    add_dir(b, path, 0755);
    size_t len;
    uint8_t *image = build_image(b, &header, &len);
    struct parts p = parts_of(image);
    for (uint64_t i = 0; i < 30; i++)
        p.entries[i].data = (i + 1) | (30 - i) << 32;
    struct index *index = NULL;
    ck_assert_int_eq(open_changed(image, len, &index), 0);
    struct walk w = walk_all(index); /* fails when it meets an entry twice */
    ck_assert_uint_gt(w.errors, 0);
    index_close(index);

    /* And with a list of directories that lies to suit them. */
    for (uint32_t i = 0; i < 31; i++) {
        for (uint32_t j = 0; j < 31; j++)
            p.dirs[j] = j % 2 ? i : j;
        ck_assert_int_eq(open_changed(image, len, &index), 0);
        walk_all(index);
        index_close(index);
    }
    free(image);
}
END_TEST

START_TEST(a_directory_below_itself_is_not_followed)
{
    struct builder *b = new_builder();
    add_dir(b, "a/b/c", 0755);
    size_t len;
    uint8_t *image = build_image(b, &header, &len);
    struct parts p = parts_of(image);
    struct index *index = NULL;
    uint32_t first, count;
    for (uint64_t child = 0; child <= 2; child++) {
        p.entries[2].data = child | UINT64_C(1) << 32;
        ck_assert_int_eq(open_changed(image, len, &index), 0);
        ck_assert_int_eq(index_children(index, 2, &first, &count), -EUCLEAN);
        index_close(index);
    }
    free(image);
}
END_TEST

/* What a walk meets, with a space behind each path; below `closed` it does not go. */
static void check_walk(const struct index *index, const char *from, const char *closed,
                       const char *met)
{
    struct index_walk w = {.index = index,
                           .position = position_of(index, from),
                           .enters = true,
                           .has_paths = true};
    char text[300] = "", below[64];
    int r;
    while ((r = index_walk_next(&w)) > 0) {
        uint32_t position;
        ck_assert_uint_eq(w.path.count, strlen(w.path.at) + 1);
        snprintf(below, sizeof(below), "%s/%s", from, w.path.at);
        ck_assert_int_eq(index_resolve(index, below, &position), 0);
        ck_assert_uint_eq(position, w.position);
        ck_assert_int_eq(index_parent(index, position, &position), 0);
        ck_assert_uint_eq(position, w.directory);
        ck_assert(!w.enters);
        w.enters = strcmp(w.path.at, closed) != 0;
        strcat(strcat(text, w.path.at), " ");
    }
    ck_assert_int_eq(r, 0);
    ck_assert_str_eq(text, met);
    index_walk_free(&w);
}

START_TEST(a_walk_meets_an_entry_before_what_is_in_it)
{
    struct builder *b = new_builder();
    add_file(b, "b/file", 0, 1);
    add_dir(b, "b/empty", 0755);
    add_link(b, "b/c/d/link", "b/file");
    add_symlink(b, "b/c/to", "d");
    add_file(b, "a", 0, 1);
    add_file(b, "c", 0, 1);
    struct index *index = build(b, &header);
    check_walk(index, "", "", "a b b/c b/c/d b/c/d/link b/c/to b/empty b/file c ");
    check_walk(index, "", "b/c", "a b b/c b/empty b/file c ");
    check_walk(index, "", "b", "a b c ");
    check_walk(index, "b/c", "", "d d/link to ");
    check_walk(index, "b/empty", "", "");
    check_walk(index, "b/c/to", "", "");
    check_walk(index, "a", "", "");
    index_close(index);
}
END_TEST

START_TEST(a_walk_goes_on_behind_a_damaged_directory)
{
    struct builder *b = new_builder();
    add_file(b, "a/b/c", 0, 1);
    add_file(b, "a/d", 0, 1);
    size_t len;
    uint8_t *image = build_image(b, &header, &len);
    struct parts p = parts_of(image);
    p.entries[2].data = 4 | UINT64_C(9) << 32; /* more in b than there is */
    struct index *index = NULL;
    ck_assert_int_eq(open_changed(image, len, &index), 0);
    struct index_walk w = {.index = index, .enters = true};
    static const int results[] = {1, 1, -EUCLEAN, 1, 0};
    static const uint32_t positions[] = {1, 2, 2, 3, 3};
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(index_walk_next(&w), results[i]);
        ck_assert_uint_eq(w.position, positions[i]);
        w.enters = results[i] > 0;
    }
    index_walk_free(&w);
    index_close(index);
    free(image);
}
END_TEST

START_TEST(an_alias_leads_to_an_inode_before_it_and_no_further)
{
    struct builder *b = new_builder();
    add_dir(b, "a", 0755);
    add_file(b, "b", 0, 1);
    add_link(b, "c", "b");
    add_link(b, "d", "b");
    size_t len;
    uint8_t *image = build_image(b, &header, &len);
    struct parts p = parts_of(image);
    struct index *index = NULL;
    struct node node;
    static const struct {
        uint64_t target;
        int err;
    } cases[] = {{2, 0},
                 {0, -EUCLEAN},
                 {1, -EUCLEAN},
                 {3, -EUCLEAN},
                 {4, -EUCLEAN},
                 {5, -EUCLEAN},
                 {UINT64_MAX, -EUCLEAN},
                 {UINT64_C(1) << 32 | 2, -EUCLEAN}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        p.entries[4].data = cases[i].target;
        ck_assert_int_eq(open_changed(image, len, &index), 0);
        ck_assert_int_eq(index_node(index, 4, &node), cases[i].err);
        index_close(index);
    }
    free(image);
}
END_TEST

START_TEST(names_that_no_file_may_have_are_refused)
{
    static const char *const bad[] = {"..", "./", "a/", "/x", "\0x", "x\0"};
    size_t len;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct builder *b = new_builder();
        add_file(b, "QQ", 0, 1);
        uint8_t *image = build_image(b, &header, &len);
        uint8_t *name = memmem(image, len, "QQ", 2);
        ck_assert_ptr_nonnull(name);
        memcpy(name, bad[i], 2);
        struct index *index = NULL;
        const char *text;
        uint32_t found;
        ck_assert_int_eq(open_changed(image, len, &index), 0);
        ck_assert_int_eq(index_name(index, 1, &text, &len), -EUCLEAN);
        ck_assert_int_ne(index_lookup(index, 0, bad[i], 2, &found), 0);
        index_close(index);
        free(image);
    }
}
END_TEST

/* Where the first section lies whose bytes may well be zero. */
static size_t zeros_may_begin(const uint8_t *image)
{
    const struct disk_header *h = (const struct disk_header *)(const void *)image;
    const struct disk_section *s =
        (const struct disk_section *)(const void *)(image + h->sections_offset);
    for (uint32_t i = 0; i < h->sections; i++)
        if (s[i].id == SECTION_XATTRS)
            return s[i].offset;
    return SIZE_MAX;
}

START_TEST(zeros_from_anywhere_on_never_pass_for_answers)
{
    /* A mapped file that is cut short, after all of it was used and found right. */
    size_t len;
    uint8_t *image = mapped_image(&len);
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    int fd = memfd_create("cut", MFD_CLOEXEC);
    ck_assert_int_eq(fchmod(fd, 0600), 0);
    ck_assert_int_eq(pwrite(fd, image, len, 0), (ssize_t)len);
    struct source *source = NULL;
    struct index *index = NULL;
    ck_assert_int_eq(source_from_fd(dup(fd), "cut", &source), 0);
    ck_assert_int_eq(index_open(source, 0, len, NULL, &index), 0);
    struct walk sound = walk_all(index);
    uint8_t *zeros = calloc(1, len);
    for (size_t cut = h.area_offset; cut < h.area_offset + h.area_bytes;
         cut += cut < zeros_may_begin(image) ? 1 : 101) {
        ck_assert_int_eq(pwrite(fd, image, len, 0), (ssize_t)len);
        ck_assert_int_eq(pwrite(fd, zeros, len - cut, (off_t)cut), (ssize_t)(len - cut));
        struct walk w = walk_all(index);
        /* Sums and values of attributes may be zero; nothing else was overlooked. */
        if (w.errors == 0 && w.digest != sound.digest)
            ck_assert_msg(cut >= zeros_may_begin(image), "zeros from %zu on", cut);
    }
    free(zeros);
    index_close(index);
    source_close(source);
    close(fd);
    free(image);
}
END_TEST

/*
 * Open an image in a file of this mode and owner, change all of the file while the index is
 * open, and walk. Another half of it is looked at before, so that checks are behind it.
 */
static struct walk walk_while_it_changes(const uint8_t *image, const uint8_t *other, size_t len,
                                         mode_t mode, uid_t owner)
{
    struct source *source = NULL;
    struct index *index = NULL;
    int fd = memfd_create("changes", MFD_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, image, len, 0), (ssize_t)len);
    ck_assert_int_eq(fchmod(fd, mode), 0);
    if (owner != geteuid())
        ck_assert_int_eq(fchown(fd, owner, (gid_t)-1), 0);
    ck_assert_int_eq(source_from_fd(dup(fd), "changes", &source), 0);
    ck_assert_int_eq(index_open(source, 0, len, NULL, &index), 0);
    source_close(source);
    listing(index, "dir");
    ck_assert_int_eq(pwrite(fd, other, len, 0), (ssize_t)len);
    struct walk w = walk_all(index);
    index_close(index);
    close(fd);
    return w;
}

START_TEST(what_others_may_change_is_read_once)
{
    static const mode_t modes[] = {0602, 0620, 0666, 0777};
    size_t len;
    uint8_t *image = mapped_image(&len), *other = malloc(len);
    struct index *index = NULL;
    for (size_t i = 0; i < len; i++)
        other[i] = (uint8_t)~image[i];
    ck_assert_int_eq(open_image(image, len, &index), 0);
    struct walk sound = walk_all(index);
    ck_assert_uint_eq(sound.errors, 0);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        ck_assert_uint_eq(walk_while_it_changes(image, other, len, modes[i], geteuid()).digest,
                          sound.digest);
    if (geteuid() == 0)
        ck_assert_uint_eq(walk_while_it_changes(image, other, len, 0600, 12345).digest,
                          sound.digest);
    else
        puts("skipped in part: only root can give files away");
    /* What only this user may change is mapped, and so shared with all who open it. */
    ck_assert_uint_gt(walk_while_it_changes(image, other, len, 0644, geteuid()).errors, 0);
    index_close(index);
    free(other);
    free(image);
}
END_TEST

/* The image with 8 bytes at `field` of the entry of a path changed, and its sums right. */
static int node_with(const uint8_t *image, size_t len, const char *path, size_t field,
                     uint64_t value, int *ret_files)
{
    struct index *index = NULL;
    struct disk_section s;
    struct node node;
    struct index_file file;
    uint8_t *changed = malloc(len);
    memcpy(changed, image, len);
    ck_assert_int_eq(open_image(image, len, &index), 0);
    uint32_t position = position_of(index, path);
    index_close(index);
    memcpy(&s, image + sizeof(struct disk_header), sizeof(s));
    ck_assert_uint_eq(s.id, SECTION_ENTRIES);
    memcpy(changed + s.offset + position * sizeof(struct disk_entry) + field, &value,
           sizeof(value));
    reseal(changed, len);
    ck_assert_int_eq(open_image(changed, len, &index), 0);
    int r = index_node(index, position, &node);
    *ret_files = index_files(index, position, 1, &file);
    index_close(index);
    free(changed);
    return r;
}

START_TEST(a_size_is_no_more_than_archive_and_index_can_hold)
{
    static const struct {
        const char *path;
        uint64_t sound, most; /* blocks: so many from there on are in the image */
    } files[] = {{"dir/run", 2 * 4096, 2 * 4096},
                 {"dir/sub/small", 3 * 4096, 3 * 4096},
                 {"dir2/file", UINT64_C(1) << 40, UINT64_C(1) << 40}};
    size_t len, field = offsetof(struct disk_entry, size);
    uint8_t *image = small_image(&len);
    int of_many;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        int r = node_with(image, len, files[i].path, field, files[i].most + 1, &of_many);
        ck_assert_msg(r == -EUCLEAN && of_many == -EUCLEAN, "%s: %d", files[i].path, r);
        r = node_with(image, len, files[i].path, field, files[i].sound, &of_many);
        ck_assert_msg(r == 0 && of_many == 0, "%s: %d", files[i].path, r);
    }
    free(image);
}
END_TEST

/* Bytes of a file: all in one, in ranges, or in a block. */
static void add_at(struct builder *b, const char *name, uint32_t kind, uint64_t offset,
                   uint32_t size)
{
    if (kind == DATA_KIND_STORED) {
        add_file(b, name, offset, size);
        return;
    }
    const struct builder_piece ranges[] = {stored_at(0, size, offset), stored_at(size, 1, 0)};
    const struct builder_piece packed = packed_at(0, size, add_block(b, offset, size, 4096), 0);
    if (kind == DATA_KIND_EXTENTS)
        add_pieces(b, name, size + 1, ranges, 2);
    else
        add_pieces(b, name, size, &packed, 1);
}

START_TEST(data_end_where_the_archive_ends)
{
    static const uint32_t kinds[] = {DATA_KIND_STORED, DATA_KIND_EXTENTS, DATA_KIND_PACKED};
    for (size_t i = 0; i < 3; i++) {
        struct builder_header small = header;
        struct extent extent;
        struct builder *b = new_builder(); /* which does not know the archive's size */
        add_at(b, "last", kinds[i], 900, 100);
        add_at(b, "past", kinds[i], 901, 100);
        add_at(b, "away", kinds[i], 1000, 1);
        small.archive_bytes = 1000;
        struct index *index = build(b, &small);
        ck_assert_int_eq(index_extent(index, position_of(index, "last"), 0, &extent), 0);
        ck_assert_int_eq(index_extent(index, position_of(index, "past"), 0, &extent), -EUCLEAN);
        ck_assert_int_eq(index_extent(index, position_of(index, "away"), 0, &extent), -EUCLEAN);
        struct index_file files[3]; /* those after the first are read another way */
        ck_assert_int_eq(index_files(index, position_of(index, "away"), 3, files), 0);
        ck_assert_uint_eq(files[0].offset, INDEX_FILE_IN_PIECES); /* a read of it is refused */
        ck_assert_uint_eq(files[1].offset, i < 1 ? 900 : INDEX_FILE_IN_PIECES);
        ck_assert_uint_eq(files[2].offset, INDEX_FILE_IN_PIECES);
        index_close(index);
    }
}
END_TEST

/* The last block of a file has what the file takes of it, and no other block has less than all.
 */
START_TEST(packed_data_end_where_its_blocks_end)
{
    static const struct {
        uint64_t place, size, at;
        int expected;
    } cases[] = {
        {0, 2 * 4096 + 100, 2 * 4096, 0},
        {0, 2 * 4096 + 101, 2 * 4096, -EUCLEAN}, /* the last one has 100 */
        {UINT64_C(96) << 32, 2 * 4096 + 4, 2 * 4096, 0},
        {UINT64_C(96) << 32, 2 * 4096 + 5, 2 * 4096, -EUCLEAN},
        {2, 100, 0, 0},
        {2, 101, 100, -EUCLEAN},
        {UINT64_C(100) << 32 | 2, 1, 0, -EUCLEAN}, /* goes on in no block */
        {UINT64_C(0x7fffffff) << 32, 1, 0, -EUCLEAN},
        {3, 1, 0, -EUCLEAN},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct builder *b = new_builder();
        const struct builder_piece pieces[] = {
            packed_at(0, 4096, add_block(b, 0, 9, 4096), 0),
            packed_at(4096, 4096, add_block(b, 0, 9, 4096), 0),
            packed_at(2 * 4096, 100, add_block(b, 0, 9, 100), 0)};
        add_pieces(b, "file", 2 * 4096 + 100, pieces, 3);
        size_t len;
        uint8_t *image = build_image(b, &header, &len);
        struct index *index = NULL;
        struct extent extent;
        struct disk_section section;
        memcpy(&section, image + sizeof(struct disk_header), sizeof(section));
        struct disk_entry *file = (struct disk_entry *)(void *)(image + section.offset) + 1;
        ck_assert_uint_eq(file->data, 0);
        file->data = cases[i].place;
        file->size = cases[i].size;
        reseal(image, len);
        ck_assert_int_eq(open_image(image, len, &index), 0);
        int r = index_extent(index, 1, cases[i].at, &extent);
        ck_assert_msg(r == cases[i].expected, "case %zu: %d", i, r);
        if (r == 0)
            ck_assert_uint_eq(extent.length, cases[i].size - cases[i].at);
        index_close(index);
        free(image);
    }
}
END_TEST

/* A directory whose children were found to be its own says later that there are more. */
START_TEST(children_end_where_the_index_ends_whenever_they_are_asked_for)
{
    size_t len;
    uint8_t *image = mapped_image(&len);
    struct source *source = NULL;
    struct index *index = NULL;
    struct disk_section s[SECTION_IDS];
    uint32_t first, count;
    int fd = memfd_create("grows", MFD_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, image, len, 0), (ssize_t)len);
    ck_assert_int_eq(fchmod(fd, 0600), 0);
    ck_assert_int_eq(source_from_fd(dup(fd), "grows", &source), 0);
    ck_assert_int_eq(index_open(source, 0, len, NULL, &index), 0);
    ck_assert_int_eq(index_children(index, INDEX_ROOT, &first, &count), 0);
    memcpy(s, image + sizeof(struct disk_header), sizeof(s));
    ck_assert_uint_eq(s[0].id, SECTION_ENTRIES);
    uint64_t more = (uint64_t)index_info(index)->entries << 32 | first;
    off_t at = (off_t)(s[0].offset + offsetof(struct disk_entry, data));
    ck_assert_int_eq(pwrite(fd, &more, sizeof(more), at), (ssize_t)sizeof(more));
    ck_assert_int_eq(index_children(index, INDEX_ROOT, &first, &count), -EUCLEAN);
    index_close(index);
    source_close(source);
    close(fd);
    free(image);
}
END_TEST

/* ---- parts of streams ---- */

static const struct block_point sound_points[] = {
    {.sum = 1, .last_bits = 3},
    {.sum = 2,
     .first_bit = 3,
     .last_bits = 8,
     .window_bytes = POINT_WINDOW_MAX,
     .window_packed = 6,
     .window = "window",
     .pieces = "sixteen sums of pieces, four bytes each, are sixty-four bytes: "},
    {.sum = 3,
     .first_bit = 7,
     .last_bits = 1,
     .window_bytes = 1,
     .window_packed = 1,
     .window = "x"},
};

/* A file of three parts of a stream, with another block among them. */
static struct builder *builder_of_parts(void)
{
    struct builder *b = new_builder();
    struct builder_piece pieces[4];
    struct builder_block block = {.packed_bytes = 100, .block_bytes = 4096};
    for (uint32_t i = 0; i < 4; i++) {
        block.source_offset = 1000 + i * 100;
        block.codec = i == 1 ? CODEC_DEFLATE : CODEC_DEFLATE_POINT;
        block.point = i == 1 ? NULL : &sound_points[i - (i > 1)];
        pieces[i] = (struct builder_piece){.offset = i * 4096, .length = 4096};
        ck_assert_int_eq(builder_add_block(b, &block, &pieces[i].block), 0);
    }
    add_pieces(b, "file", 16384, pieces, 4);
    return b;
}

START_TEST(a_part_of_a_stream_has_its_point)
{
    struct index *index = build(builder_of_parts(), &header);
    ck_assert_uint_eq(index_info(index)->points, 3);
    for (uint32_t i = 0; i < 4; i++) {
        struct extent e = extent_of(index, "file", i * 4096);
        struct block_point point, expected = sound_points[i - (i > 1)];
        ck_assert_int_eq((int)e.codec, i == 1 ? CODEC_DEFLATE : CODEC_DEFLATE_POINT);
        ck_assert_int_eq(index_point(index, e.block, &point), i == 1 ? -EUCLEAN : 0);
        if (i == 1)
            continue;
        ck_assert_uint_eq(point.sum, expected.sum);
        ck_assert_uint_eq(point.first_bit, expected.first_bit);
        ck_assert_uint_eq(point.last_bits, expected.last_bits);
        ck_assert_uint_eq(point.window_bytes, expected.window_bytes);
        ck_assert_uint_eq(point.window_packed, expected.window_packed);
        ck_assert(!point.window_packed ||
                  memcmp(point.window, expected.window, point.window_packed) == 0);
        ck_assert_int_eq(point.pieces != NULL, expected.pieces != NULL);
        ck_assert(!point.pieces ||
                  memcmp(point.pieces, expected.pieces, POINT_PIECES_BYTES) == 0);
    }
    struct block_point point;
    ck_assert_int_eq(index_point(index, 4, &point), -EUCLEAN);
    ck_assert_int_eq(index_point(index, UINT32_MAX, &point), -EUCLEAN);
    ck_assert_uint_eq(walk_all(index).errors, 0);
    index_close(index);
}
END_TEST

static struct disk_section section_of(const uint8_t *image, enum disk_section_id id)
{
    struct disk_header h;
    struct disk_section s = {0};
    memcpy(&h, image, sizeof(h));
    for (uint32_t i = 0; i < h.sections && s.id != id; i++)
        memcpy(&s, image + h.sections_offset + i * sizeof(s), sizeof(s));
    ck_assert_uint_eq(s.id, id);
    return s;
}

START_TEST(a_header_that_is_longer_than_the_index_is_told)
{
    size_t len;
    struct source *source = NULL;
    struct index *index = NULL;
    struct fault fault = {0};
    uint8_t *image = mapped_image(&len);
    struct disk_header *h = (struct disk_header *)(void *)image;
    ck_assert_uint_lt(len, DISK_HEADER_MAX);
    h->header_bytes = htole32((uint32_t)len + 1);
    ck_assert_int_eq(source_from_memory(image, len, "image", &source), 0);
    ck_assert_int_eq(index_open(source, 0, len, &fault, &index), -EUCLEAN);
    ck_assert_str_eq(fault.what, "the index is damaged: its header has a wrong length");
    source_close(source);
    free(image);
}
END_TEST

START_TEST(there_are_pieces_of_all_points_or_of_none)
{
    size_t len;
    struct disk_header h;
    struct disk_section s;
    struct index *index = NULL;
    uint8_t *image = build_image(builder_of_parts(), &header, &len);
    memcpy(&h, image, sizeof(h));
    for (uint32_t i = 0; i < h.sections; i++) {
        uint8_t *at = image + h.sections_offset + i * sizeof(s);
        memcpy(&s, at, sizeof(s));
        if (s.id != SECTION_PIECES)
            continue;
        ck_assert_uint_eq(s.length, 3 * POINT_PIECES_BYTES);
        s.length = 2 * POINT_PIECES_BYTES;
        memcpy(at, &s, sizeof(s));
    }
    reseal(image, len);
    ck_assert_int_eq(open_image(image, len, &index), -EUCLEAN);
    free(image);
}
END_TEST

START_TEST(each_field_of_a_point_is_checked)
{
    size_t len;
    uint8_t *image = build_image(builder_of_parts(), &header, &len);
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    ck_assert_uint_eq(h.incompatible, DISK_NEEDS_CODECS | DISK_NEEDS_POINTS);
    struct disk_section s = section_of(image, SECTION_POINTS);
    struct disk_point sound;
    memcpy(&sound, image + s.offset + sizeof(sound), sizeof(sound));
    ck_assert_uint_eq(sound.block, 2);
    struct disk_point bad[9];
    for (size_t i = 0; i < 9; i++)
        bad[i] = sound;
    bad[0].window = 2; /* of 7 bytes, it has 6 */
    bad[1].window = UINT64_MAX - 2;
    bad[2].block = 9;
    bad[3].window_packed = UINT32_MAX;
    bad[4].window_packed = 0;
    bad[5].window_bytes = POINT_WINDOW_MAX + 1;
    bad[6].window_bytes = 0;
    bad[7].first_bit = 8;
    bad[8].last_bits = 0;
    for (size_t i = 0; i < 10; i++) {
        struct index *index = NULL;
        struct block_point point;
        if (i < 9)
            memcpy(image + s.offset + sizeof(sound), &bad[i], sizeof(sound));
        else
            memset(image + s.offset, 0, s.length); /* as of a file that was cut short */
        reseal(image, len);
        ck_assert_int_eq(open_image(image, len, &index), 0);
        ck_assert_msg(index_point(index, 2, &point) == -EUCLEAN, "%zu", i);
        ck_assert_uint_gt(walk_all(index).errors, 0);
        index_close(index);
    }
    free(image);
}
END_TEST

/* ---- large images, threads, memory ---- */

static struct builder *large_tree(unsigned count)
{
    struct builder *b = new_builder();
    char name[64];
    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "class%03u/sample%08u.jpg", i % 100, i);
        add_file(b, name, (uint64_t)i * 1024, 1000);
    }
    return b;
}

START_TEST(one_damaged_page_spoils_only_what_lies_in_it)
{
    enum { COUNT = 20000 };
    size_t len;
    uint8_t *image = build_image(large_tree(COUNT), &header, &len);
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    image[h.area_offset + 3 * DISK_PAGE_BYTES + 100] ^= 1;
    struct index *index = NULL;
    ck_assert_int_eq(open_image(image, len, &index), 0);
    unsigned bad = 0;
    for (uint32_t i = 0; i < index_info(index)->entries; i++) {
        struct node node;
        int r = index_node(index, i, &node);
        ck_assert(r == 0 || r == -EUCLEAN);
        bad += r != 0;
    }
    ck_assert_uint_ge(bad, DISK_PAGE_BYTES / sizeof(struct disk_entry));
    ck_assert_uint_le(bad, DISK_PAGE_BYTES / sizeof(struct disk_entry) + 1);
    index_close(index);
    free(image);
}
END_TEST

static void *walk_thread(void *index)
{
    struct walk w = walk_all(index);
    ck_assert_uint_eq(w.errors, 0);
    return (void *)(uintptr_t)w.digest;
}

START_TEST(threads_agree)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    void *digests[THREADS];
    struct index *index = build(large_tree(5000), &header);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, walk_thread, index), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], &digests[i]);
    for (int i = 1; i < THREADS; i++)
        ck_assert_ptr_eq(digests[i], digests[0]);
    index_close(index);
}
END_TEST

START_TEST(an_index_costs_at_most_40_bytes_a_file_and_its_name)
{
    struct index *index = build(large_tree(100000), &header);
    const struct index_info *info = index_info(index);
    ck_assert_uint_le(info->image_bytes - info->name_bytes, 40 * info->files);
    index_close(index);
}
END_TEST

/* What malloc gave out (nothing, where a sanitizer replaced it). */
static size_t allocated_bytes(void)
{
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 info = mallinfo2();
#else
    struct mallinfo info = mallinfo();
#endif
    return (size_t)info.uordblks + (size_t)info.hblkhd;
}

START_TEST(an_open_index_is_no_private_memory)
{
    size_t len;
    uint8_t *image = build_image(large_tree(50000), &header, &len);
    struct source *source = NULL;
    struct index *index = NULL;
    ck_assert_int_eq(source_from_memory(image, len, "x", &source), 0);
    free(image);
    size_t before = allocated_bytes();
    ck_assert_int_eq(index_open(source, 0, len, NULL, &index), 0);
    walk_all(index);
    ck_assert_uint_lt(allocated_bytes(), before + 65536);
    index_close(index);
    source_close(source);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("index");
    TCase *tc = tcase_create("index");
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, each_entry_of_a_large_directory_is_found);
    tcase_add_test(tc, lookups_of_what_is_not_there);
    tcase_add_test(tc, paths_lead_to_positions_and_back);
    tcase_add_test(tc, positions_past_the_end_are_refused);
    tcase_add_test(tc, a_path_of_500_directories);
    tcase_add_test(tc, empty_directories_do_not_disturb_the_search_for_parents);
    tcase_add_test(tc, a_later_version_is_told_from_damage);
    tcase_add_loop_test(tc, unknown_sections_and_a_longer_header_are_no_obstacle, 0, 4);
    tcase_add_test(tc, a_truncated_image_is_refused);
    tcase_add_test(tc, a_flipped_bit_is_noticed_or_does_not_matter);
    tcase_add_test(tc, unknown_sections_are_passed_over);
    tcase_add_test(tc, page_sums_lie_within_the_image);
    tcase_add_test(tc, hostile_bytes_with_right_sums_do_no_harm);
    tcase_add_test(tc, hostile_words_with_right_sums_do_no_harm);
    tcase_add_test(tc, many_hostile_changes_at_once_do_no_harm);
    tcase_add_test(tc, directories_that_share_children_are_not_followed_twice);
    tcase_add_test(tc, a_directory_below_itself_is_not_followed);
    tcase_add_test(tc, a_walk_meets_an_entry_before_what_is_in_it);
    tcase_add_test(tc, a_walk_goes_on_behind_a_damaged_directory);
    tcase_add_test(tc, an_alias_leads_to_an_inode_before_it_and_no_further);
    tcase_add_test(tc, names_that_no_file_may_have_are_refused);
    tcase_add_test(tc, zeros_from_anywhere_on_never_pass_for_answers);
    tcase_add_test(tc, a_size_is_no_more_than_archive_and_index_can_hold);
    tcase_add_test(tc, what_others_may_change_is_read_once);
    tcase_add_test(tc, data_end_where_the_archive_ends);
    tcase_add_test(tc, packed_data_end_where_its_blocks_end);
    tcase_add_test(tc, children_end_where_the_index_ends_whenever_they_are_asked_for);
    tcase_add_test(tc, a_part_of_a_stream_has_its_point);
    tcase_add_test(tc, each_field_of_a_point_is_checked);
    tcase_add_test(tc, there_are_pieces_of_all_points_or_of_none);
    tcase_add_test(tc, one_damaged_page_spoils_only_what_lies_in_it);
    tcase_add_test(tc, a_header_that_is_longer_than_the_index_is_told);
    tcase_add_test(tc, threads_agree);
    tcase_add_test(tc, an_index_costs_at_most_40_bytes_a_file_and_its_name);
    tcase_add_test(tc, an_open_index_is_no_private_memory);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
