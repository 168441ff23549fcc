/* Views: which entries of an index they show, and under which names. */
#include "format_numbers.h"
#include "suite.h"
#include "tree_helper.h"
#include "tree_view.h"
#include "tree_view_private.h"

/* A view with these patterns, "+glob" or "-glob", and the text of a list or map. */
static struct view *read_view(const char *const *patterns, const char *list, const char *map,
                              bool is_of_several)
{
    struct view_pattern all[8];
    struct view_options o = {.patterns = all, .is_of_several = is_of_several};
    struct fault fault = {0};
    struct view *view = NULL;
    const char *file;
    char path[32];
    int fd = memfd_create("names", 0);
    for (; patterns && patterns[o.pattern_count]; o.pattern_count++)
        all[o.pattern_count] = (struct view_pattern){patterns[o.pattern_count] + 1,
                                                     patterns[o.pattern_count][0] == '+'};
    const char *text = list ? list : map ? map : "";
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    o.files_from = list ? path : NULL;
    o.map = map ? path : NULL;
    int r = view_read(&o, &fault, &file, &view);
    ck_assert_msg(r == 0, "%d %s", r, fault.what);
    close(fd);
    return view;
}

static struct view *new_view(const char *const *patterns, const char *list, const char *map)
{
    return read_view(patterns, list, map, false);
}

static int try_view(const struct view *view, const struct index *old, struct fault *fault,
                    struct index **ret_index)
{
    struct builder_header header = {.format = FORMAT_TAR, .archive_bytes = UINT64_C(1) << 40};
    struct source *source;
    struct tree *tree;
    int fd = memfd_create("view", MFD_CLOEXEC);
    ck_assert_int_eq(tree_new(&tree), 0);
    int r = view_add(view, old, tree, fault);
    if (r == 0)
        r = tree_write(tree, &header, fd, fault);
    tree_free(tree);
    ck_assert_int_eq(fchmod(fd, 0600), 0);
    ck_assert_int_eq(source_from_fd(fd, "view", &source), 0);
    if (r == 0) {
        ck_assert_int_eq(index_open(source, 0, source_size(source), fault, ret_index), 0);
        ck_assert_int_eq(index_check(*ret_index, NULL), 0);
    }
    source_close(source);
    return r;
}

static struct index *base(void)
{
    struct builder *b = new_builder();
    add_dir(b, ".", 0700);
    add_dir(b, "a", 0711);
    add_file(b, "a/1.jpg", 1000, 1);
    add_file(b, "a/2.txt", 2000, 1);
    add_file(b, "a/b/3.jpg", 3000, 1);
    add_link(b, "a/b/link", "a/1.jpg");
    add_file(b, "a.b/4.jpg", 4000, 1); /* sorts between "a" and "a/..." in other orders */
    add_file(b, "c", 5000, 1);
    add_dir(b, "empty", 0755);
    return build(b, &tar_header);
}

/* All paths but the root's, each with a space behind it. */
static void list_tree(const struct index *index, uint32_t directory, char *text)
{
    uint32_t first, count;
    struct node node;
    char path[256];
    size_t len;
    ck_assert_int_eq(index_children(index, directory, &first, &count), 0);
    for (uint32_t i = first; i < first + count; i++) {
        ck_assert_int_eq(index_path(index, i, path, sizeof(path), &len), 0);
        strcat(strcat(text, path), " ");
        ck_assert_int_eq(index_node(index, i, &node), 0);
        if (S_ISDIR(node.mode))
            list_tree(index, i, text);
    }
}

static void check_view(struct view *view, const char *expected)
{
    struct index *old = base(), *new = NULL;
    struct fault fault = {0};
    char text[1000] = "";
    int r = try_view(view, old, &fault, &new);
    ck_assert_msg(r == 0, "%s: %s", fault.member, fault.what);
    list_tree(new, INDEX_ROOT, text);
    ck_assert_str_eq(text, expected);
    ck_assert_uint_eq(node_of(new, "").mode, S_IFDIR | 0700);
    index_close(new);
    index_close(old);
    view_free(view);
}

#define PATTERNS(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(patterns_decide_in_their_order)
{
    check_view(new_view(PATTERNS("+*.jpg"), NULL, NULL),
               "a a/1.jpg a/b a/b/3.jpg a.b a.b/4.jpg ");
    check_view(new_view(PATTERNS("-*.jpg"), NULL, NULL), "a a/2.txt a/b a/b/link a.b c empty ");
    check_view(new_view(PATTERNS("+a/*"), NULL, NULL),
               "a a/1.jpg a/2.txt a/b a/b/3.jpg a/b/link ");
    check_view(new_view(PATTERNS("+a/b/"), NULL, NULL), "a a/b a/b/3.jpg a/b/link ");
    check_view(new_view(PATTERNS("+/a"), NULL, NULL),
               "a a/1.jpg a/2.txt a/b a/b/3.jpg a/b/link ");
    check_view(new_view(PATTERNS("-*.jpg", "+a"), NULL, NULL), "a a/2.txt a/b a/b/link ");
    check_view(new_view(PATTERNS("+1.jpg", "-*.jpg", "+c"), NULL, NULL), "a a/1.jpg c ");
    check_view(new_view(PATTERNS("+1.jpg", "-*.jpg"), NULL, NULL),
               "a a/1.jpg a/2.txt a/b a/b/link a.b c empty ");
    check_view(new_view(PATTERNS("-a", "+3.jpg", "+c"), NULL, NULL), "c ");
    check_view(new_view(PATTERNS("+empty"), NULL, NULL), "empty ");
    check_view(new_view(PATTERNS("-*"), NULL, NULL), "");
}
END_TEST

START_TEST(lists_have_names_in_any_order)
{
    check_view(new_view(NULL, "a.b/4.jpg\na/b/\nc\na/1.jpg\n", NULL),
               "a a/1.jpg a/b a/b/3.jpg a/b/link a.b a.b/4.jpg c ");
    check_view(new_view(NULL, "/a//b\n./empty\n", NULL), "a a/b empty ");
    check_view(new_view(NULL, "./\n", NULL),
               "a a/1.jpg a/2.txt a/b a/b/3.jpg a/b/link a.b a.b/4.jpg c empty ");
    check_view(new_view(NULL, "", NULL), "");
    check_view(new_view(PATTERNS("-*.jpg"), "a/\nc\na.b/4.jpg\n", NULL),
               "a a/2.txt a/b a/b/link c ");
    check_view(new_view(PATTERNS("+3.*"), "a/\nc\n", NULL), "a a/b a/b/3.jpg ");
}
END_TEST

START_TEST(maps_give_names)
{
    check_view(new_view(NULL, NULL, "a/b\tx/y\nc\tx/c\nc\tz\n"),
               "x x/c x/y x/y/3.jpg x/y/link z ");
    check_view(new_view(NULL, NULL, "c\t.c\na/b\t./.d//e\n"),
               ".c .d .d/e .d/e/3.jpg .d/e/link ");
    check_view(new_view(PATTERNS("-3.jpg"), NULL, "a/b\tx/y\nc\tx/c\n"), "x x/c x/y x/y/link ");
    check_view(new_view(PATTERNS("-a"), NULL, "a/b\tx/y\nc\tx/c\n"), "x x/c ");
    struct index *old = base(), *new = NULL;
    struct view *view = new_view(NULL, NULL, "a/1.jpg\tone\na/b/link\tsub/two\na\tthree\n");
    ck_assert_int_eq(try_view(view, old, NULL, &new), 0);
    ck_assert_uint_eq(node_of(new, "one").position, node_of(new, "sub/two").position);
    ck_assert_uint_eq(node_of(new, "one").nlink, 4);
    ck_assert_uint_eq(node_of(new, "three").mode, S_IFDIR | 0711);
    ck_assert_uint_eq(node_of(new, "sub").mode, S_IFDIR | 0700); /* as the root */
    ck_assert_uint_eq(extent_of(new, "three/b/3.jpg", 0).source_offset, 3000);
    index_close(new);
    index_close(old);
    view_free(view);
}
END_TEST

START_TEST(what_the_archive_lacks_is_counted)
{
    static const struct {
        const char *list, *map, *member;
    } cases[] = {{"c\nnone\nc/x\nzz\n", NULL, "c/x"},
                 {NULL, "c\tx\nnone\ty\n\nc/z\tz\nzz\tw\n", "none"},
                 /* behind the last entry of "a" comes a name of "a.b" */
                 {NULL, "a/b\tx\na/4.jpg\ty\nnone\tz\nzz\tw\n", "a/4.jpg"}};
    struct index *old = base(), *new = NULL;
    for (size_t i = 0; i < 3; i++) {
        struct fault fault = {0};
        struct view *view = new_view(NULL, cases[i].list, cases[i].map);
        ck_assert_int_eq(try_view(view, old, &fault, &new), -ENOENT);
        ck_assert_str_eq(fault.member, cases[i].member);
        ck_assert_ptr_nonnull(strstr(fault.what, "nor 2 more of its names"));
        view_free(view);
    }
    index_close(old);
}
END_TEST

/* An archive with fewer entries than a list has names shows the same as one by one. */
static void check_picked(const struct view *view, const struct index *old,
                         const struct index *shown)
{
    struct view one_by_one = *view;
    struct index *other = NULL;
    char expected[1000] = "", text[1000] = "";
    one_by_one.next_equal = NULL;
    ck_assert_int_eq(try_view(&one_by_one, old, NULL, &other), 0);
    list_tree(other, INDEX_ROOT, expected);
    list_tree(shown, INDEX_ROOT, text);
    ck_assert_str_eq(text, expected);
    index_close(other);
}

START_TEST(what_all_of_several_lack_is_counted)
{
    const struct {
        const char *const *patterns;
        const char *list, *map, *lacking, *what;
    } cases[] = {
        {NULL, "c\nother/deep/x\n", NULL, NULL, NULL},
        {NULL, "./\nother/\na/b\n", NULL, NULL, NULL},
        {NULL, "c\nother/deep/x/y\nother/z\nc/d\n", NULL, "c/d", "nor 2 more of its names"},
        {NULL, NULL, "c\tx/y\nother/deep/x\tx/z\n", NULL, NULL},
        {NULL, NULL, "c\tx/y\n\nother/deep\tx/z\nother/no\tw\n", "other/no", "line 4 of"},
        {PATTERNS("-z*"), "c\nzero\n", NULL, NULL, NULL},
        {PATTERNS("-z*"), "c\nzero\none\n", NULL, "one", "none of the archives"},
        {PATTERNS("+x"), NULL, NULL, NULL, NULL},
        {PATTERNS("+y", "+z"), NULL, NULL, "", "nothing in any of them matches --include 'y'"},
        {PATTERNS("-*"), NULL, NULL, NULL, NULL},
        {NULL, "", NULL, NULL, NULL},
        {NULL, "a/b\na\na/\na/b/\n", NULL, NULL, NULL},
        {NULL, NULL, "c\tx\nother/deep\tx/y\nc\ty\nc\ta/z\n", NULL, NULL},
        {NULL, "/\n", NULL, NULL, NULL},
        {NULL, "a\na/b\na/b/3.jpg\nc\nn1\nn2\nn3\nn4\nn5\nn6\nn7\nother/deep/\n", NULL, "n1",
         "nor 6 more"},
        {NULL, NULL,
         "c\tx/1\na/b\ty\nother\tz\nc\tx/2\nn1\tx/1\na\tw\nc\tx/3\nn2\tv\nn3\tv/1\n"
         "a/b\tx/4\n\nn4\tx/5\nn5\tx/6\n",
         "n2", "line 8 of"},
    };
    struct builder *b = new_builder();
    add_file(b, "other/deep/x", 100, 10);
    struct index *old[] = {base(), build(b, &tar_header)}, *new[2];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault fault = {0};
        struct view *view = read_view(cases[i].patterns, cases[i].list, cases[i].map, true);
        for (int j = 0; j < 2; j++)
            ck_assert_int_eq(try_view(view, old[j], NULL, &new[j]), 0);
        for (int j = 0; j < 2; j++)
            check_picked(view, old[j], new[j]);
        int r = view_check_several(view, (const struct index *const *)new, 2, &fault);
        ck_assert_int_eq(r, cases[i].what ? -ENOENT : 0);
        if (r < 0) {
            ck_assert_str_eq(fault.member, cases[i].lacking);
            ck_assert_msg(strstr(fault.what, cases[i].what) != NULL, "%s", fault.what);
        }
        for (int j = 0; j < 2; j++)
            index_close(new[j]);
        view_free(view);
    }
    index_close(old[0]);
    index_close(old[1]);
}
END_TEST

/* A list finds each name, from whichever one it comes. */
START_TEST(names_are_found_in_any_order)
{
    struct builder *b = new_builder();
    char path[32], text[20 * 400] = "";
    unsigned seed = 5;
    for (unsigned i = 0; i < 3000; i++) {
        snprintf(path, sizeof(path), "%u/%u", i % 3, i);
        add_file(b, path, i * 100, 10);
    }
    struct index *old = build(b, &tar_header), *new = NULL;
    for (unsigned round = 0; round < 20; round++) {
        text[0] = '\0';
        for (unsigned i = 0; i < 300; i++) {
            unsigned file = (unsigned)rand_r(&seed) % 3000;
            sprintf(text + strlen(text), "%u/%u\t%u\n", file % 3, file, file);
        }
        struct view *view = new_view(NULL, NULL, text);
        ck_assert_int_eq(try_view(view, old, NULL, &new), 0);
        for (char *line = text; *line; line = strchr(line, '\n') + 1) {
            unsigned file = (unsigned)strtoul(strchr(line, '\t'), NULL, 10);
            snprintf(path, sizeof(path), "%u", file);
            ck_assert_uint_eq(extent_of(new, path, 0).source_offset, file * 100);
        }
        index_close(new);
        view_free(view);
    }
    index_close(old);
}
END_TEST

static void recipe_of(const char *const *patterns, const char *list, const char *map,
                      char name[RECIPE_NAME_LEN + 1])
{
    struct recipe recipe = {0};
    struct view *view = new_view(patterns, list, map);
    view_describe(view, &recipe);
    ck_assert_int_eq(recipe.err, 0);
    recipe_name(&recipe, name);
    vector_free(&recipe.bytes);
    view_free(view);
}

START_TEST(views_that_differ_have_recipes_that_differ)
{
    const struct {
        const char *const *patterns;
        const char *list, *map;
    } views[] = {{PATTERNS("+a"), NULL, NULL},
                 {PATTERNS("-a"), NULL, NULL},
                 {PATTERNS("+a", "+b"), NULL, NULL},
                 {PATTERNS("+b", "+a"), NULL, NULL},
                 {PATTERNS("+ab"), NULL, NULL},
                 {NULL, "a\nb\n", NULL},
                 {NULL, "a\nb/\n", NULL},
                 {NULL, "ab\n", NULL},
                 {NULL, "", NULL},
                 {NULL, NULL, ""},
                 {NULL, NULL, "a\tb\n"},
                 {NULL, NULL, "b\ta\n"},
                 {NULL, NULL, "c/\td\n\n"},
                 {NULL, NULL, "c\t\\td\n"}};
    enum { COUNT = sizeof(views) / sizeof(views[0]) };
    char names[COUNT][RECIPE_NAME_LEN + 1], again[RECIPE_NAME_LEN + 1];
    for (size_t i = 0; i < COUNT; i++) {
        recipe_of(views[i].patterns, views[i].list, views[i].map, names[i]);
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(names[i], names[j]);
    }
    recipe_of(NULL, "b\n./a\nb\n", NULL, again); /* the same names */
    ck_assert_str_eq(again, names[5]);
}
END_TEST

/* ---- all that is shown ---- */

/* Big enough for runs and gaps of all kinds, also among the names of an inode. */
static struct index *large_index(void)
{
    struct builder *b = new_builder();
    struct builder_header header = tar_header;
    header.sum_kind = SUM_XXH3;
    add_dir(b, ".", 0700);
    for (unsigned i = 0; i < 3000; i++) {
        char path[64];
        snprintf(path, sizeof(path), "d%u/e%u/f%04u", i % 7, i % 31, i);
        if (i % 10 == 3) {
            add_symlink(b, path, path);
            continue;
        }
        if (i % 10 == 7) {
            add_dir(b, path, 0700);
            continue;
        }
        if (i % 10 == 9) {
            uint32_t other = i / 2 - i / 2 % 10 + i % 3; /* a file, mostly of another folder */
            char target[64];
            snprintf(target, sizeof(target), "d%u/e%u/f%04u", other % 7, other % 31, other);
            add_link(b, path, target);
            continue;
        }
        uint32_t inode = add_file(b, path, i * 4096, i);
        ck_assert_int_eq(builder_set_sum(b, inode, i * 77), 0);
        if (i % 5 == 0)
            add_xattr(b, inode, "user.i", path);
    }
    return build(b, &header);
}

/* ---- which entries are to be shown, found one by one ---- */

struct expected {
    const struct view *view;
    const struct index *old;
    struct view_filter filter;
    bool *is_shown; /* by position */
};

static uint32_t path_in(const struct expected *e, uint32_t position, char path[256])
{
    size_t len;
    ck_assert_int_eq(index_path(e->old, position, path, 256, &len), 0);
    return (uint32_t)len;
}

/* Show what the patterns choose below a directory. Is anything shown there? */
static bool expect_below(struct expected *e, uint32_t directory)
{
    uint32_t first, count;
    bool any = false;
    ck_assert_int_eq(index_children(e->old, directory, &first, &count), 0);
    for (uint32_t i = first; i < first + count; i++) {
        char path[256];
        struct node node;
        uint32_t len = path_in(e, i, path);
        ck_assert_int_eq(index_node(e->old, i, &node), 0);
        int verdict = e->view->pattern_count
                          ? view_choose(&e->filter, path, len, S_ISDIR(node.mode))
                          : VIEW_SHOWN;
        bool is_shown = verdict == VIEW_SHOWN;
        if (S_ISDIR(node.mode) && verdict != VIEW_HIDDEN && expect_below(e, i))
            is_shown = true;
        e->is_shown[i] |= is_shown;
        any |= is_shown;
    }
    return any;
}

static void expect_listed(struct expected *e, const char *path, bool whole)
{
    uint32_t position;
    struct node node;
    if (index_resolve(e->old, path, &position) < 0)
        return;
    ck_assert_int_eq(index_node(e->old, position, &node), 0);
    if (e->view->pattern_count && *path &&
        view_choose(&e->filter, path, strlen(path), S_ISDIR(node.mode)) == VIEW_HIDDEN)
        return;
    if (whole && S_ISDIR(node.mode))
        expect_below(e, position);
    while (position != INDEX_ROOT) {
        e->is_shown[position] = true;
        ck_assert_int_eq(index_parent(e->old, position, &position), 0);
    }
}

static void expect(struct expected *e)
{
    size_t count = e->view->names ? name_list_count(e->view->names) : 0;
    e->is_shown = calloc(index_info(e->old)->entries, sizeof(bool));
    e->is_shown[INDEX_ROOT] = true;
    for (size_t i = 0; i < count; i++) {
        bool whole;
        const char *path = name_list_name(e->view->names, i, &whole);
        expect_listed(e, path, whole);
    }
    if (!e->view->names)
        expect_below(e, INDEX_ROOT);
    vector_free(&e->filter.folder);
}

/* An entry is as it was, but for an inode's number of names, of which some may not be shown. */
static void check_shown(const struct expected *e, const struct index *new, uint32_t position,
                        const uint32_t *names)
{
    struct pair pair = {e->old, new, 0, 0};
    struct node a = {0}, b = {0};
    char path[256];
    path_in(e, position, path);
    uint32_t there = position_of(new, path);
    ck_assert_int_eq(index_node(e->old, position, &a), 0);
    ck_assert_int_eq(index_node(new, there, &b), 0);
    if (!S_ISDIR(a.mode))
        ck_assert_uint_eq(b.nlink, names[a.position]);
    a.position = b.position = a.nlink = b.nlink = 0;
    ck_assert_mem_eq(&a, &b, sizeof(a));
    compare_xattrs(&pair, position, there);
    if (S_ISREG(a.mode))
        compare_data(&pair, position, there, a.size_bytes);
}

static void check_copy(const struct index *old, struct view *view)
{
    struct expected e = {.view = view, .old = old, .filter = {.view = view}};
    uint32_t entries = index_info(old)->entries, shown = 0, position;
    uint32_t *names = calloc(entries, sizeof(*names));
    uint8_t digest[INDEX_DIGEST_BYTES];
    enum digest_kind kind;
    struct index *new = NULL;
    struct fault fault = {0};
    int r = try_view(view, old, &fault, &new);
    ck_assert_msg(r == 0, "%s: %s", fault.member, fault.what);
    expect(&e);
    for (uint32_t i = 0; i < entries; i++) {
        ck_assert_int_eq(index_inode_position(old, i, &position), 0);
        names[position] += e.is_shown[i];
        shown += e.is_shown[i];
    }
    ck_assert_uint_eq(index_info(new)->entries, shown);
    for (uint32_t i = 0; i < entries; i++)
        if (e.is_shown[i])
            check_shown(&e, new, i, names);
    ck_assert_uint_eq(walk_all(new).errors, 0);
    if (index_info(new)->digest_kind != DIGEST_NONE) {
        ck_assert_int_eq(index_digest(new, NULL, digest, &kind), 0);
        ck_assert_mem_eq(index_info(new)->digest, digest, sizeof(digest));
    }
    free(names);
    free(e.is_shown);
    index_close(new);
    view_free(view);
}

/* Every `step`th path, in the index's order or backwards. */
static char *list_some(const struct index *index, uint32_t step, bool backwards)
{
    uint32_t entries = index_info(index)->entries;
    char *text = malloc(entries * 64ul + 64), *at = text;
    for (uint32_t i = 1; i < entries; i += step) {
        size_t len;
        ck_assert_int_eq(index_path(index, backwards ? entries - i : i, at, 60, &len), 0);
        at += len;
        *at++ = '\n';
    }
    *at = '\0';
    return text;
}

START_TEST(views_show_what_they_name)
{
    static const char *const patterns[][4] = {
        {"+f*1"}, {"-d3"}, {"+d2/**", "-e1"}, {"-*5", "+/d1"}, {"+d0/e*/f*"}};
    struct index *old = large_index();
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        check_copy(old, new_view(patterns[i], NULL, NULL));
    for (uint32_t step = 1; step < 100; step = step * 3 + 1)
        for (unsigned backwards = 0; backwards < 2; backwards++) {
            char *text = list_some(old, step, backwards);
            check_copy(old, new_view(NULL, text, NULL));
            check_copy(old, new_view(patterns[1], text, NULL));
            free(text);
        }
    check_copy(old, read_view(NULL, "nothing\nd1/nothing\nd2/e2\n", NULL, true));
    check_copy(old, new_view(NULL, "/\n", NULL));
    index_close(old);
    old = base();
    check_copy(old, new_view(NULL, "a/1.jpg\na/b/link\n", NULL));
    check_copy(old, new_view(NULL, "a/b/link\n", NULL));
    index_close(old);
}
END_TEST

START_TEST(patterns_are_matched_in_directories_of_all_sizes)
{
    static const char *const patterns[][4] = {
        {"+*77"}, {"-big/*", "+d1?/**"}, {"-*06", "+e*/*6"}};
    struct builder *b = new_builder();
    char path[64];
    add_dir(b, ".", 0700);
    for (unsigned i = 0; i < 210000; i++) {
        snprintf(path, sizeof(path),
                 i % 2      ? "big/%u"
                 : i < 5000 ? "e%u/%u"
                            : "d%u/%u",
                 i % 2 ? i : i / 700, i);
        add_file(b, path, i * UINT64_C(512), 1);
    }
    struct index *old = build(b, &tar_header);
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        check_copy(old, new_view(patterns[i], NULL, NULL));
    index_close(old);
}
END_TEST

/* Among the names of a map, the line is told of the later one, also of what lies below it. */
START_TEST(conflicts_of_a_map_are_told_by_line)
{
    static const struct {
        const char *map, *member, *what;
    } cases[] = {
        {"c\tx\na/1.jpg\tx\n", "a/1.jpg", "would have the name that 'c' has (line 2 of"},
        {"c\tx\na/1.jpg\tx/y\n", "a/1.jpg", "would have the name that 'c' has (line 2 of"},
        {"a/1.jpg\tx/y\nc\tx\n", "c", "would have the name of a directory that other"},
        {"a\tx\n\nc\tx/b/3.jpg\n", "c", "would have the name that 'a/b/3.jpg' has (line 3 of"},
        {"c\tx/b/3.jpg\na\tx\n", "a/b/3.jpg", "would have the name that 'c' has (line 2 of"},
        {"a\tx\na/b\tx\nempty\tx\nc\tx/link\n", "c", "'a/b/link' has (line 4 of"},
    };
    struct index *old = base(), *new = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault fault = {0};
        struct view *view = new_view(NULL, NULL, cases[i].map);
        ck_assert_int_eq(try_view(view, old, &fault, &new), -EEXIST);
        ck_assert_str_eq(fault.member, cases[i].member);
        ck_assert_msg(strstr(fault.what, cases[i].what) != NULL, "%s", fault.what);
        view_free(view);
    }
    index_close(old);
}
END_TEST

START_TEST(a_pattern_that_finds_nothing_is_an_error)
{
    struct index *old = base(), *new = NULL;
    struct fault fault = {0};
    struct view *view = new_view(PATTERNS("+nothing"), NULL, NULL);
    ck_assert_int_eq(try_view(view, old, &fault, &new), -ENOENT);
    ck_assert_str_eq(fault.what, "nothing in it matches --include 'nothing'");
    view_free(view);
    index_close(old);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tree_view");
    TCase *tc = tcase_create("tree_view");
    tcase_add_test(tc, patterns_decide_in_their_order);
    tcase_add_test(tc, lists_have_names_in_any_order);
    tcase_add_test(tc, maps_give_names);
    tcase_add_test(tc, what_the_archive_lacks_is_counted);
    tcase_add_test(tc, what_all_of_several_lack_is_counted);
    tcase_add_test(tc, names_are_found_in_any_order);
    tcase_add_test(tc, views_that_differ_have_recipes_that_differ);
    tcase_add_test(tc, views_show_what_they_name);
    tcase_add_test(tc, patterns_are_matched_in_directories_of_all_sizes);
    tcase_add_test(tc, conflicts_of_a_map_are_told_by_line);
    tcase_add_test(tc, a_pattern_that_finds_nothing_is_an_error);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
