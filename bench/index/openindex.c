/*
 * Measures what it costs to open a saved index and to look things up: one line of JSON.
 *
 *     openindex INDEX
 *
 * Opening is timed with nothing of the index mapped yet; the private memory is what
 * opening and a walk of everything added to the process. Lookups are of random files,
 * by their full path.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "index.h"
#include "source.h"

enum { OPENINGS = 21, LOOKUPS = 200000, PATH_BYTES = 512 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what, int r)
{
    fprintf(stderr, "openindex: %s: %s\n", what, strerror(-r));
    exit(1);
}

/* Private memory of this process, in bytes. */
static long private_bytes(void)
{
    char line[256];
    long kilobytes = 0, n;
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "Private_Dirty: %ld", &n) == 1)
            kilobytes = n;
    if (f)
        fclose(f);
    return kilobytes * 1024;
}

static double open_once(const char *path, struct index **ret_index)
{
    struct source *source;
    double begin = now();
    int r = source_open(path, NULL, &source);
    if (r < 0)
        fail(path, r);
    r = index_open(source, 0, source_size(source), NULL, ret_index);
    if (r < 0)
        fail(path, r);
    source_close(source);
    return now() - begin;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_open(const char *path)
{
    double times[OPENINGS];
    for (int i = 0; i < OPENINGS; i++) {
        struct index *index;
        times[i] = open_once(path, &index);
        index_close(index);
    }
    qsort(times, OPENINGS, sizeof(times[0]), compare);
    return times[OPENINGS / 2];
}

/* List every directory, with names and attributes: seconds an entry. */
static double list_all(const struct index *index)
{
    uint32_t entries = index_info(index)->entries;
    uint64_t bytes = 0;
    double begin = now();
    for (uint32_t directory = 0; directory < entries; directory++) {
        uint32_t first, count;
        if (index_children(index, directory, &first, &count) < 0)
            continue;
        for (uint32_t i = first; i < first + count; i++) {
            struct node node;
            const char *name;
            size_t len = 0;
            int r = index_node(index, i, &node);
            if (r == 0)
                r = index_name(index, i, &name, &len);
            if (r < 0)
                fail("entry", r);
            bytes += len + node.size_bytes;
        }
    }
    double each = (now() - begin) / entries;
    if (bytes == 0)
        fail("index", -ENODATA);
    return each;
}

/* Seconds a lookup of a whole path. */
static double look_up(const struct index *index)
{
    uint32_t entries = index_info(index)->entries;
    char(*paths)[PATH_BYTES] = calloc(LOOKUPS, sizeof(*paths));
    uint64_t x = 1;
    if (!paths)
        fail("paths", -ENOMEM);
    for (int i = 0; i < LOOKUPS; i++) {
        size_t len;
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int r = index_path(index, (uint32_t)((x >> 32) * entries >> 32), paths[i], PATH_BYTES,
                           &len);
        if (r < 0)
            fail("path", r);
    }
    double begin = now();
    for (int i = 0; i < LOOKUPS; i++) {
        uint32_t position;
        int r = index_resolve(index, paths[i], &position);
        if (r < 0)
            fail(paths[i], r);
    }
    double each = (now() - begin) / LOOKUPS;
    free(paths);
    return each;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: openindex INDEX\n", stderr);
        return 2;
    }
    double open_seconds = median_open(argv[1]);
    struct index *index;
    long before = private_bytes();
    open_once(argv[1], &index);
    double first = list_all(index), again = list_all(index);
    long private = private_bytes() - before;
    const struct index_info *info = index_info(index);
    printf(
        "{\"open_seconds\": %.9f, \"private_bytes\": %ld, \"list_first_seconds\": %.3e, "
        "\"list_seconds\": %.3e, \"lookup_seconds\": %.3e, \"entries\": %u, \"files\": %llu, "
        "\"image_bytes\": %llu, \"name_bytes\": %llu}\n",
        open_seconds, private, first, again, look_up(index), info->entries,
        (unsigned long long)info->files, (unsigned long long)info->image_bytes,
        (unsigned long long)info->name_bytes);
    index_close(index);
    return 0;
}
