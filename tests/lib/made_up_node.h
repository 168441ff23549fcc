/*
 * A folder with files that look like a node's /proc and /sys, for what reads limits from them.
 */
#ifndef ONEPOT_TESTS_MADE_UP_NODE_H
#define ONEPOT_TESTS_MADE_UP_NODE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "suite.h"

static char root[64]; /* of the node */

static void setup(void)
{
    suite_make_folder("node", root, sizeof(root));
}

static void put(const char *path, const char *content)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    ck_assert_ptr_nonnull(f);
    fputs(content, f);
    fclose(f);
}

#endif
