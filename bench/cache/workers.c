/*
 * Reads a tree as the workers of DataLoaders do, those of several ranks at once: processes
 * that each have batches of their own, and are never far from each other, because batches are
 * consumed in order.
 *
 *     workers [OPTIONS] ROOT PLAN
 *
 * PLAN has a line for each file that is read, "worker<TAB>batch<TAB>path<TAB>size", a
 * worker's lines in the order in which it reads; batches count from 0 in each worker. A worker
 * begins a batch when all others have finished those up to the last but one (torch's
 * prefetch_factor of 2). --pace N lets all of them together read N files a second, each
 * its even share: GPUs that use up batches at that rate. Without it they do nothing but read.
 *
 * A file is opened, looked at with fstat, read to its end and closed. A wrong size ends the
 * run; so does an error, but with --keep-going it is counted. --drop lets the kernel forget a
 * file that was read: for the next epoch it is asked for again, as if memory were short.
 *
 * Output is one JSON object: what was read, how long a file took (open to the end), and how
 * many files took less than --there microseconds, which no read of slow storage can.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 512, READ_BYTES = 128 << 10, BATCHES_AHEAD = 2 };

struct sample {
    char *path;
    uint64_t size;
    uint32_t batch;
};

/* A worker's part of the plan; after the fork its own. */
struct plan {
    struct sample *list;
    size_t count, space;
};

/* A worker's results, in memory that all workers share. */
struct report {
    _Alignas(64) _Atomic uint32_t finished; /* batches */
    uint32_t batches;
    uint64_t files, bytes, there, errors;
    uint64_t worst_us;
    char error[256];
};

struct shared {
    pthread_barrier_t start;
    struct report report[WORKERS_MAX];
};

struct options {
    const char *root, *plan;
    double pace;
    uint64_t there_us;
    bool drop, keep_going;
};

static struct options options = {.there_us = 1000};
static struct plan plan[WORKERS_MAX];
static unsigned worker_count;
static struct shared *shared;
static uint32_t *took_us; /* of each file of the plan, for all workers: shared */
static size_t sample_count;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t when_ns)
{
    struct timespec t = {.tv_sec = (time_t)(when_ns / 1000000000),
                         .tv_nsec = (long)(when_ns % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* Loading the plan. */

static void plan_add(unsigned worker, uint32_t batch, const char *path, uint64_t size)
{
    struct plan *p = &plan[worker];

    if (p->count == p->space) {
        p->space = p->space ? 2 * p->space : 1024;
        p->list = reallocarray(p->list, p->space, sizeof(*p->list));
        if (!p->list)
            err(1, "memory");
    }
    struct sample *s = &p->list[p->count++];
    *s = (struct sample){.size = size, .batch = batch};
    if (asprintf(&s->path, "%s/%s", options.root, path) < 0)
        err(1, "memory");
    worker_count = worker >= worker_count ? worker + 1 : worker_count;
    sample_count++;
}

static void plan_line(char *line)
{
    char *field[4];

    for (int i = 0; i < 4; i++) {
        field[i] = strsep(&line, "\t\n");
        if (!field[i])
            errx(1, "%s: a line with less than four fields", options.plan);
    }
    unsigned long worker = strtoul(field[0], NULL, 10);
    if (worker >= WORKERS_MAX)
        errx(1, "%s: too many workers", options.plan);
    plan_add((unsigned)worker, (uint32_t)strtoul(field[1], NULL, 10), field[2],
             strtoull(field[3], NULL, 10));
}

static void load_plan(void)
{
    FILE *f = fopen(options.plan, "re");
    char *line = NULL;
    size_t room = 0;

    if (!f)
        err(1, "%s", options.plan);
    while (getline(&line, &room, f) > 0)
        plan_line(line);
    free(line);
    fclose(f);
    if (sample_count == 0)
        errx(1, "%s: no files", options.plan);
}

/* Reading. */

/* 0 or -errno. */
static int read_sample(const struct sample *s, char *buffer, uint64_t *ret_bytes)
{
    int fd = open(s->path, O_RDONLY | O_CLOEXEC), r = 0;
    uint64_t total = 0;
    struct stat st;
    ssize_t n = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        r = -errno;
    while (r == 0 && (n = read(fd, buffer, READ_BYTES)) > 0)
        total += (uint64_t)n;
    if (n < 0)
        r = -errno;
    if (r == 0 && (total != s->size || (uint64_t)st.st_size != s->size))
        errx(1, "%s: %" PRIu64 " bytes read, expected %" PRIu64, s->path, total, s->size);
    if (options.drop)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    *ret_bytes = total;
    return r;
}

static void note(struct report *report, const struct sample *s, int r, uint64_t bytes,
                 uint64_t us)
{
    report->files++;
    report->bytes += bytes;
    report->there += r == 0 && us < options.there_us;
    report->worst_us = us > report->worst_us ? us : report->worst_us;
    if (r == 0)
        return;
    if (!options.keep_going)
        errx(1, "%s: %s", s->path, strerror(-r));
    if (report->errors++ == 0)
        snprintf(report->error, sizeof(report->error), "%s", strerror(-r));
}

/* Until nobody is so far behind that this batch would be too early. */
static void await_turn(uint32_t batch)
{
    for (unsigned i = 0; i < worker_count; i++) {
        const struct report *other = &shared->report[i];
        while (other->finished < other->batches && other->finished + BATCHES_AHEAD < batch)
            usleep(100);
    }
}

static _Noreturn void work(unsigned worker, size_t first)
{
    struct report *report = &shared->report[worker];
    const struct plan *p = &plan[worker];
    char *buffer = malloc(READ_BYTES);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!buffer)
        err(1, "memory");
    memset(buffer, 0, READ_BYTES); /* page faults before the clock starts */
    pthread_barrier_wait(&shared->start);
    uint64_t began = now_ns();
    double gap_ns = options.pace > 0 ? 1e9 * worker_count / options.pace : 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct sample *s = &p->list[i];
        uint64_t bytes = 0;

        if (s->batch != report->finished)
            report->finished = s->batch;
        await_turn(s->batch);
        if (gap_ns > 0)
            sleep_until(began + (uint64_t)(gap_ns * (double)i));
        uint64_t before = now_ns();
        int r = read_sample(s, buffer, &bytes);
        uint64_t us = (now_ns() - before) / 1000;
        took_us[first + i] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
        note(report, s, r, bytes, us);
    }
    report->finished = report->batches;
    _exit(0);
}

/* The processes. */

static void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        err(1, "memory");
    return p;
}

static void make_shared(void)
{
    pthread_barrierattr_t attr;

    shared = share(sizeof(*shared));
    took_us = share(sample_count * sizeof(*took_us));
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->start, &attr, worker_count + 1);
    for (unsigned i = 0; i < worker_count; i++)
        if (plan[i].count > 0)
            shared->report[i].batches = plan[i].list[plan[i].count - 1].batch + 1;
}

static void start_workers(void)
{
    size_t first = 0;

    for (unsigned i = 0; i < worker_count; i++) {
        pid_t pid = fork();
        if (pid < 0)
            err(1, "fork");
        if (pid == 0)
            work(i, first);
        first += plan[i].count;
    }
}

/* A worker that failed said why; the others would wait for it. */
static void await_workers(void)
{
    int status;

    for (unsigned i = 0; i < worker_count; i++)
        if (wait(&status) < 0 || status != 0)
            errx(1, "a worker failed");
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void print_report(double seconds)
{
    struct report sum = {0};
    struct rusage usage;

    for (unsigned i = 0; i < worker_count; i++) {
        const struct report *r = &shared->report[i];
        sum.files += r->files;
        sum.bytes += r->bytes;
        sum.there += r->there;
        if (sum.errors == 0 && r->errors > 0)
            memcpy(sum.error, r->error, sizeof(sum.error));
        sum.errors += r->errors;
        sum.worst_us = r->worst_us > sum.worst_us ? r->worst_us : sum.worst_us;
    }
    getrusage(RUSAGE_CHILDREN, &usage);
    qsort(took_us, sample_count, sizeof(*took_us), compare);
    printf("{\"seconds\": %.6f, \"files\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"there\": %" PRIu64 ", \"errors\": %" PRIu64 ", \"error\": \"%s\"",
           seconds, sum.files, sum.bytes, sum.there, sum.errors, sum.error);
    printf(", \"median_us\": %" PRIu32 ", \"p99_us\": %" PRIu32 ", \"worst_us\": %" PRIu64,
           took_us[sample_count / 2], took_us[sample_count - 1 - sample_count / 100],
           sum.worst_us);
    printf(", \"reader_cpu\": %.3f}\n",
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: workers [--pace FILES_A_SECOND] [--there MICROSECONDS] [--drop]\n"
                    "               [--keep-going] ROOT PLAN\n");
    exit(2);
}

static void parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"pace", required_argument, NULL, 'p'},
        {"there", required_argument, NULL, 't'},
        {"drop", no_argument, NULL, 'd'},
        {"keep-going", no_argument, NULL, 'k'},
        {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'p')
            options.pace = strtod(optarg, NULL);
        else if (c == 't')
            options.there_us = strtoull(optarg, NULL, 10);
        else if (c == 'd')
            options.drop = true;
        else if (c == 'k')
            options.keep_going = true;
        else
            usage();
    }
    if (argc - optind != 2 || options.pace < 0)
        usage();
    options.root = argv[optind];
    options.plan = argv[optind + 1];
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    load_plan();
    make_shared();
    start_workers();
    pthread_barrier_wait(&shared->start);
    uint64_t began = now_ns();
    await_workers();
    print_report((double)(now_ns() - began) * 1e-9);
    return 0;
}
