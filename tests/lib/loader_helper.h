/*
 * What the suites of the loader share: a small tree of files in a private folder, packed in
 * the ways that there are.
 */
#ifndef ONEPOT_LOADER_HELPER_H
#define ONEPOT_LOADER_HELPER_H

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"
#include "forks.h"
#include "format_numbers.h"
#include "pack.h"
#include "suite.h"
#ifdef ONEPOT_LOADER
#include "onepot.h"
#endif

struct tree {
    char path[64];    /* a private folder, with the files in path/tree */
    char archive[96]; /* of the last pack */
};

static inline void run_shell(const char *format, const char *a, const char *b)
{
    char command[1024];
    snprintf(command, sizeof(command), format, a, b);
    ck_assert_msg(system(command) == 0, "failed: %s", command);
}

static inline void tree_begin(struct tree *t)
{
    char path[128];
    snprintf(t->path, sizeof(t->path), "%s/loader.XXXXXX", getenv(SUITE_FOLDER));
    ck_assert_ptr_nonnull(mkdtemp(t->path));
    snprintf(path, sizeof(path), "%s/tree", t->path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
}

static inline void tree_end(struct tree *t)
{
    run_shell("rm -rf '%s'%s", t->path, "");
}

/* A file with these bytes; the folders above it are made. */
static inline void tree_file(struct tree *t, const char *name, const void *bytes, size_t len)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/tree/%s", t->path, name);
    for (char *c = path + strlen(t->path) + 6; (c = strchr(c, '/')); c++) {
        *c = '\0';
        mkdir(path, 0755);
        *c = '/';
    }
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

/* `count` files of `classes` classes; file i holds its number over and over. */
static inline void tree_numbered(struct tree *t, unsigned count, unsigned classes,
                                 size_t (*size)(unsigned i))
{
    for (unsigned i = 0; i < count; i++) {
        char name[64];
        size_t len = size(i);
        uint32_t *bytes = malloc(len + 4);
        for (size_t j = 0; j * 4 < len; j++)
            bytes[j] = i;
        /* Classes hold neighbours, so that the numbers are the indices. */
        snprintf(name, sizeof(name), "c%03u/%07u.bin", i / ((count + classes - 1) / classes),
                 i);
        tree_file(t, name, bytes, len);
        free(bytes);
    }
}

enum packing { PACKING_ONEPOT, PACKING_TAR, PACKING_SQUASHFS, PACKINGS };

/* False, with a line that says why, where a program is missing. */
static inline bool tree_pack(struct tree *t, enum packing packing)
{
    char tree[96];
    snprintf(tree, sizeof(tree), "%s/tree", t->path);
    const char *const sources[] = {tree};
    struct fault fault = {0};
    struct pack_result result;
    struct pack_options options = {
        .sources = sources, .source_count = 1, .output = t->archive, .writer.threads = 1};
    switch (packing) {
    case PACKING_ONEPOT:
        snprintf(t->archive, sizeof(t->archive), "%s/onepot.tar", t->path);
        unlink(t->archive);
        int r = pack_run(&options, &fault, &result);
        ck_assert_msg(r == 0, "%s", fault.what);
        return true;
    case PACKING_TAR:
        snprintf(t->archive, sizeof(t->archive), "%s/plain.tar", t->path);
        run_shell("tar -C '%s' -cf '%s' .", tree, t->archive);
        return true;
    case PACKING_SQUASHFS:
        snprintf(t->archive, sizeof(t->archive), "%s/image.sqfs", t->path);
        if (system("command -v mksquashfs >/dev/null") != 0) {
            puts("SquashFS left out: no mksquashfs");
            return false;
        }
        run_shell("mksquashfs '%s' '%s' -quiet -no-progress -noappend -processors 1 >/dev/null",
                  tree, t->archive);
        if (!backend_of_number(FORMAT_SQUASHFS)) {
            puts("SquashFS left out: this onepot was built without it");
            return false;
        }
        return true;
    default:
        return false;
    }
}

#ifdef ONEPOT_LOADER
static inline struct onepot_archive *tree_open(const struct tree *t,
                                               const struct onepot_archive_options *options)
{
    const char *const paths[] = {t->archive};
    struct onepot_archive *archive = NULL;
    struct onepot_error error = {0};
    int r = onepot_archive_open(paths, 1, options, &error, &archive);
    ck_assert_msg(r == 0, "%s", error.text);
    return archive;
}

/* The files of tree_numbered in an archive of onepot's own. */
static inline struct onepot_archive *
tree_open_numbered(struct tree *t, unsigned count, unsigned classes, size_t (*size)(unsigned i))
{
    tree_begin(t);
    tree_numbered(t, count, classes, size);
    tree_pack(t, PACKING_ONEPOT);
    return tree_open(t, NULL);
}
#endif

#endif
