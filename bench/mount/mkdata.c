/*
 * Writes a data set for the mount benchmark: COUNT files in DIRS directories below a new
 * directory, with sizes from a lognormal distribution, and a list of "path<TAB>size" lines
 * that the readers follow and check sizes against. The same arguments give the same bytes.
 *
 * Two kinds of content. "noise": every file is a stream of its own that no compressor
 * shrinks and no deduplicator finds twice. "records": lines of numbers and Zipf-distributed
 * words, made so that zstd shrinks them to 0.3-0.5, as it does logs, JSON or CSV; words
 * come from one vocabulary, lines from each file's own stream.
 *
 * In C because a gigabyte of records from Python takes longer than the benchmark.
 */
#include "random.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VOCABULARY = 4096, WORD_MAX = 12, FILE_MAX_BYTES = 1 << 20, LINE_MAX_BYTES = 256 };

struct options {
    const char *dir;
    const char *list;
    bool records;
    uint64_t seed;
    uint32_t files;
    uint32_t dirs;
    double mean_bytes;
    double sigma;
};

struct vocabulary {
    char word[VOCABULARY][WORD_MAX + 1];
    double cumulative[VOCABULARY]; /* of the Zipf distribution, last one 1.0 */
};

static void vocabulary_init(struct vocabulary *v, uint64_t seed)
{
    static const char letters[] = "etaoinshrdlucmfwypvbgkjqxz";
    struct random_stream r = random_stream_of(seed, UINT64_MAX);
    double sum = 0;

    for (size_t i = 0; i < VOCABULARY; i++) {
        size_t len = 3 + random_below(&r, WORD_MAX - 2);
        for (size_t j = 0; j < len; j++)
            v->word[i][j] = letters[random_below(&r, sizeof(letters) - 1)];
        v->word[i][len] = 0;
        sum += 1.0 / (double)(i + 3);
        v->cumulative[i] = sum;
    }
    for (size_t i = 0; i < VOCABULARY; i++)
        v->cumulative[i] /= sum;
}

static const char *vocabulary_draw(const struct vocabulary *v, struct random_stream *r)
{
    double u = random_unit(r);
    size_t low = 0, high = VOCABULARY - 1;

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (v->cumulative[mid] < u)
            low = mid + 1;
        else
            high = mid;
    }
    return v->word[low];
}

/* Half of a line is keys and words, half is figures that hardly compress. The draws are
 * statements of their own: the order of a call's arguments is the compiler's choice. */
static size_t record_line(const struct vocabulary *v, struct random_stream *r, uint32_t n,
                          char line[LINE_MAX_BYTES])
{
    uint64_t key = random_next(r) & UINT64_C(0xffffffffff);
    uint32_t score = random_below(r, 1000000000);
    uint32_t box[4];
    const char *word[3];

    for (size_t i = 0; i < 4; i++)
        box[i] = random_below(r, 100000);
    for (size_t i = 0; i < 3; i++)
        word[i] = vocabulary_draw(v, r);
    return (size_t)snprintf(
        line, LINE_MAX_BYTES,
        "{\"id\": %" PRIu32 ", \"key\": \"%010" PRIx64 "\", \"box\": [%" PRIu32 ", %" PRIu32
        ", %" PRIu32 ", %" PRIu32 "], \"score\": 0.%09" PRIu32 ", \"text\": \"%s %s %s\"}\n",
        n, key, box[0], box[1], box[2], box[3], score, word[0], word[1], word[2]);
}

static void fill_records(const struct vocabulary *v, struct random_stream *r, char *data,
                         size_t size)
{
    char line[LINE_MAX_BYTES];
    uint32_t n = 0;

    for (size_t at = 0; at < size;) {
        size_t len = record_line(v, r, n++, line);
        if (len > size - at)
            len = size - at;
        memcpy(data + at, line, len);
        at += len;
    }
}

static void fill_noise(struct random_stream *r, char *data, size_t size)
{
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word = random_next(r);
        size_t len = size - at < sizeof(word) ? size - at : sizeof(word);
        memcpy(data + at, &word, len);
    }
}

/* Lognormal with the given arithmetic mean (Box and Muller's normal deviate). */
static size_t draw_size(const struct options *o, struct random_stream *r)
{
    const double pi = 3.14159265358979323846;
    double normal = sqrt(-2 * log(random_unit(r))) * cos(2 * pi * random_unit(r));
    double size = o->mean_bytes * exp(o->sigma * normal - o->sigma * o->sigma / 2);

    if (size < 1)
        return 1;
    return size < FILE_MAX_BYTES ? (size_t)size : FILE_MAX_BYTES;
}

static void write_file(int dir, const char *path, const char *data, size_t size)
{
    static const struct timespec epoch[2] = {{.tv_sec = 1600000000}, {.tv_sec = 1600000000}};
    int fd = openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    if (fd < 0)
        err(1, "%s", path);
    for (size_t at = 0; at < size;) {
        ssize_t n = write(fd, data + at, size - at);
        if (n < 0)
            err(1, "%s", path);
        at += (size_t)n;
    }
    if (futimens(fd, epoch) < 0 || close(fd) < 0)
        err(1, "%s", path);
}

static void generate(const struct options *o, int dir, FILE *list)
{
    struct vocabulary *v = malloc(sizeof(*v));
    char *data = malloc(FILE_MAX_BYTES);
    char path[64];

    if (!v || !data)
        err(1, "memory");
    vocabulary_init(v, o->seed);
    for (uint32_t i = 0; i < o->files; i++) {
        struct random_stream r = random_stream_of(o->seed, i);
        uint32_t class = (uint32_t)((uint64_t)i * o->dirs / o->files);
        size_t size = draw_size(o, &r);

        snprintf(path, sizeof(path), "class%04" PRIu32, class);
        if (mkdirat(dir, path, 0755) < 0 && errno != EEXIST)
            err(1, "%s", path);
        snprintf(path, sizeof(path), "class%04" PRIu32 "/sample_%08" PRIu32 ".dat", class, i);
        if (o->records)
            fill_records(v, &r, data, size);
        else
            fill_noise(&r, data, size);
        write_file(dir, path, data, size);
        fprintf(list, "%s\t%zu\n", path, size);
    }
    free(data);
    free(v);
}

static void usage(void)
{
    fprintf(stderr, "usage: mkdata [--kind noise|records] [--seed N] [--files N] [--dirs N]\n"
                    "              [--mean BYTES] [--sigma S] DIR LIST\n");
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"kind", required_argument, NULL, 'k'},
        {"seed", required_argument, NULL, 's'},
        {"files", required_argument, NULL, 'n'},
        {"dirs", required_argument, NULL, 'd'},
        {"mean", required_argument, NULL, 'm'},
        {"sigma", required_argument, NULL, 'g'},
        {NULL, 0, NULL, 0},
    };
    struct options o = {
        .seed = 1, .files = 50000, .dirs = 200, .mean_bytes = 20000, .sigma = 0.5};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'k':
            o.records = strcmp(optarg, "records") == 0;
            if (!o.records && strcmp(optarg, "noise") != 0)
                usage();
            break;
        case 's':
            o.seed = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            o.files = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'd':
            o.dirs = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            o.mean_bytes = strtod(optarg, NULL);
            break;
        case 'g':
            o.sigma = strtod(optarg, NULL);
            break;
        default:
            usage();
        }
    }
    if (argc - optind != 2 || o.files == 0 || o.dirs == 0)
        usage();
    o.dir = argv[optind];
    o.list = argv[optind + 1];
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    int dir;
    FILE *list;

    if (mkdir(o.dir, 0755) < 0)
        err(1, "%s", o.dir);
    dir = open(o.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    list = fopen(o.list, "w");
    if (dir < 0 || !list)
        err(1, "%s", dir < 0 ? o.dir : o.list);
    generate(&o, dir, list);
    if (fclose(list) != 0)
        err(1, "%s", o.list);
    close(dir);
    return 0;
}
