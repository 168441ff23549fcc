/*
 * The bare program that a cache is held against: preads of given ranges of one file, so many
 * of them in flight, and nothing else. What it reaches is what the file system gives.
 *
 *     wire [--flight N] [--drop] FILE RANGES
 *
 * RANGES has "offset<TAB>length" lines, which are read in their order by whichever thread is
 * free. The kernel is told that access is random, so that it fetches what is asked for and no
 * more. --drop gives pages back as it goes: memory that a virtual machine has to get from its
 * host first would cost more than the reading.
 *
 * Output is one JSON object on standard output.
 */
#include <err.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FLIGHT_MAX = 1024, RANGE_MAX_BYTES = 64 << 20 };

struct range {
    uint64_t offset, bytes;
};

static struct {
    int fd;
    bool drop;
    struct range *range;
    size_t count;
    size_t longest;
    atomic_size_t next;
    atomic_uint_fast64_t bytes;
} work;

static void read_range(const struct range *r, char *buffer)
{
    uint64_t done = 0;

    while (done < r->bytes) {
        ssize_t n = pread(work.fd, buffer, r->bytes - done, (off_t)(r->offset + done));
        if (n < 0)
            err(1, "offset %" PRIu64, r->offset + done);
        if (n == 0)
            errx(1, "offset %" PRIu64 ": behind the end of the file", r->offset + done);
        done += (uint64_t)n;
    }
    if (work.drop)
        posix_fadvise(work.fd, (off_t)r->offset, (off_t)r->bytes, POSIX_FADV_DONTNEED);
    work.bytes += r->bytes;
}

static void *read_some(void *unused)
{
    char *buffer = malloc(work.longest + 1);

    (void)unused;
    if (!buffer)
        err(1, "memory");
    for (size_t i; (i = work.next++) < work.count;)
        read_range(&work.range[i], buffer);
    free(buffer);
    return NULL;
}

static void load_ranges(const char *path)
{
    FILE *f = fopen(path, "re");
    struct range r;
    size_t space = 0;

    if (!f)
        err(1, "%s", path);
    while (fscanf(f, "%" SCNu64 " %" SCNu64, &r.offset, &r.bytes) == 2) {
        if (r.bytes > RANGE_MAX_BYTES || r.offset > INT64_MAX - RANGE_MAX_BYTES)
            errx(1, "%s: a range that is too large", path);
        if (work.count == space) {
            space = space ? 2 * space : 4096;
            work.range = reallocarray(work.range, space, sizeof(r));
            if (!work.range)
                err(1, "memory");
        }
        work.range[work.count++] = r;
        work.longest = r.bytes > work.longest ? r.bytes : work.longest;
    }
    fclose(f);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double read_all(unsigned flight)
{
    pthread_t thread[FLIGHT_MAX];
    double began = now();

    for (unsigned i = 0; i < flight; i++)
        if (pthread_create(&thread[i], NULL, read_some, NULL) != 0)
            errx(1, "cannot start a thread");
    for (unsigned i = 0; i < flight; i++)
        pthread_join(thread[i], NULL);
    return now() - began;
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: wire [--flight N] [--drop] FILE RANGES\n");
    exit(2);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"flight", required_argument, NULL, 'f'},
        {"drop", no_argument, NULL, 'd'},
        {NULL, 0, NULL, 0},
    };
    unsigned long flight = 32;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'f')
            flight = strtoul(optarg, NULL, 10);
        else if (c == 'd')
            work.drop = true;
        else
            usage();
    }
    if (argc - optind != 2 || flight == 0 || flight > FLIGHT_MAX)
        usage();
    work.fd = open(argv[optind], O_RDONLY | O_CLOEXEC);
    if (work.fd < 0)
        err(1, "%s", argv[optind]);
    posix_fadvise(work.fd, 0, 0, POSIX_FADV_RANDOM);
    load_ranges(argv[optind + 1]);
    printf("{\"seconds\": %.6f, ", read_all((unsigned)flight));
    printf("\"reads\": %zu, \"bytes\": %" PRIu64 "}\n", work.count, (uint64_t)work.bytes);
    free(work.range);
    return 0;
}
