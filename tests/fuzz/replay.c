/*
 * A driver without libFuzzer: the seeds as they are, files that are named, and mutations of
 * the seeds that are the same in every run.
 *
 * Usage: fuzz_X_replay [--mutations N] [--keep FILE] [--write DIR] [FILE|DIR...]
 *     --keep    writes each input to FILE before it is tried: what is in it after a crash
 *               is what crashed
 *     --write   writes the seeds into DIR, which libFuzzer takes as its corpus, and ends
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

#define LIMIT_S 60 /* for one input: then it hangs */
#define GROWTH_MAX 4096

static const char *keep;
static unsigned long tried;

static void write_file(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        perror(path);
        exit(2);
    }
}

static void try_input(const uint8_t *data, size_t size)
{
    /* Of just this size, so that a sanitizer sees a read behind its end. */
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        exit(2);
    memcpy(exact, data, size);
    if (keep)
        write_file(keep, data, size);
    alarm(LIMIT_S);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    tried++;
    free(exact);
}

/* ---- mutations ---- */

static uint64_t state;

static uint64_t next(void) /* splitmix64 */
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static size_t below(size_t limit)
{
    return limit ? (size_t)(next() % limit) : 0;
}

static size_t mutate_once(uint8_t *data, size_t size)
{
    static const uint64_t odd[] = {0,
                                   1,
                                   0x7f,
                                   0xff,
                                   0x7fff,
                                   0xffff,
                                   0x7fffffff,
                                   0xffffffff,
                                   INT64_MAX,
                                   UINT64_MAX,
                                   UINT64_C(1) << 63,
                                   UINT64_C(1) << 32};
    size_t at = below(size), len = 1 + below(16), from;
    if (size == 0)
        return 0;
    switch (next() % 7) {
    case 0:
        data[at] ^= (uint8_t)(1u << next() % 8);
        return size;
    case 1:
        data[at] = (uint8_t)next();
        return size;
    case 2: /* a number that is often special */
        len = (size_t)1 << next() % 4;
        if (len > size - at)
            len = size - at;
        memcpy(data + at, &odd[next() % (sizeof(odd) / sizeof(odd[0]))], len);
        return size;
    case 3: /* one place as another */
        from = below(size);
        if (len > size - at)
            len = size - at;
        if (len > size - from)
            len = size - from;
        memmove(data + at, data + from, len);
        return size;
    case 4: /* something less */
        if (len > size - at)
            len = size - at;
        memmove(data + at, data + at + len, size - at - len);
        return size - len;
    case 5: /* something more */
        memmove(data + at + len, data + at, size - at);
        return size + len;
    default: /* cut, but rarely */
        return next() % 8 ? size : at;
    }
}

static void mutate(const uint8_t *seed, size_t size, unsigned long count)
{
    uint8_t *data = malloc(size + GROWTH_MAX);
    if (!data)
        exit(2);
    for (unsigned long i = 0; i < count; i++) {
        size_t len = size;
        memcpy(data, seed, size);
        for (size_t steps = 1 + below(4); steps > 0; steps--)
            len = mutate_once(data, len);
        try_input(data, len);
    }
    free(data);
}

/* ---- files ---- */

static void try_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) < 0) {
        perror(path);
        exit(2);
    }
    uint8_t *data = malloc((size_t)st.st_size + 1);
    if (!data)
        exit(2);
    size_t size = fread(data, 1, (size_t)st.st_size, f);
    fclose(f);
    try_input(data, size);
    free(data);
}

static void try_path(const char *path)
{
    char name[4096];
    DIR *dir = opendir(path);
    if (!dir) {
        try_file(path);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        try_file(name);
    }
    closedir(dir);
}

static void write_seeds(const char *folder)
{
    char name[4096];
    uint8_t *seed;
    size_t size;
    mkdir(folder, 0755);
    for (unsigned i = 0; (seed = fuzz_seed(i, &size)); i++) {
        snprintf(name, sizeof(name), "%s/seed-%u", folder, i);
        write_file(name, seed, size);
        free(seed);
    }
}

int main(int argc, char **argv)
{
    unsigned long mutations = 200;
    uint8_t *seed;
    size_t size;
    unsigned seeds = 0;

    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--mutations") == 0 && has_value) {
            mutations = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--keep") == 0 && has_value) {
            keep = argv[++i];
        } else if (strcmp(argv[i], "--write") == 0 && has_value) {
            write_seeds(argv[++i]);
            return 0;
        } else {
            try_path(argv[i]);
        }
    }
    try_input((const uint8_t *)"", 0);
    for (; (seed = fuzz_seed(seeds, &size)); seeds++) {
        state = seeds;
        try_input(seed, size);
        mutate(seed, size, mutations);
        free(seed);
    }
    if (seeds == 0) {
        printf("skipped: there is nothing to begin with (is a program missing?)\n");
        return 77;
    }
    printf("%lu inputs\n", tried);
    return 0;
}
