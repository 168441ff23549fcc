/*
 * Reads a tree as training code does and says how fast that went: threads open, fstat,
 * read to the end and close every file of a list once per epoch, in random order, each
 * thread its stripe of the permutation. A file whose bytes read, or whose size, differs
 * from the list ends the run: a figure from short reads would be worthless.
 *
 * It reads clocks where the work happens: around each epoch it takes wall time, its own
 * CPU time, that of the processes that serve the mount (--daemon), and what anybody else
 * on the machine used, so that a figure disturbed by others can be told from a good one.
 * CPU time of another process comes from its process clock: to the nanosecond, all threads,
 * those that ended too; that of its children is added, in hundredths of a second.
 *
 * --busy N keeps N processes spinning, bound to one CPU each; --limit reads only so many
 * files of each epoch, where all would take hours. --reference DIR compares
 * every byte with the original tree, in place of a timing.
 *
 * Output is one JSON object on standard output.
 */
#include "random.h"

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 128 << 10, THREADS_MAX = 256, PIDS_MAX = 64, BUSY_MAX = 64 };

struct sample {
    char *path;      /* below the root of the tree under test */
    char *reference; /* the same file of the original tree, or NULL */
    uint64_t size;
};

struct samples {
    struct sample *list;
    uint32_t *order;
    uint32_t count;
    uint32_t epoch_count; /* files read in an epoch: all, or the first of its order */
};

struct options {
    const char *root;
    const char *list;
    const char *reference;
    uint64_t seed;
    uint32_t threads;
    uint32_t epochs;
    uint32_t busy;
    uint32_t limit;
    bool walk;
    pid_t daemon[PIDS_MAX];
    uint32_t daemons;
};

/* One thread's share of an epoch. */
struct share {
    pthread_t thread;
    const struct samples *samples;
    pthread_barrier_t *start;
    uint32_t index;
    uint32_t stride;
    uint64_t bytes;
};

/* Seconds on each clock, as readings or as their differences. */
struct clocks {
    double wall;
    double reader;
    double daemon;
    double machine;
};

static pid_t busy_pid[BUSY_MAX];

static double seconds(struct timespec t)
{
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double clock_seconds(clockid_t id)
{
    struct timespec t;

    if (clock_gettime(id, &t) < 0)
        return 0;
    return seconds(t);
}

static double own_seconds(pid_t pid)
{
    clockid_t id;

    return clock_getcpuclockid(pid, &id) == 0 ? clock_seconds(id) : 0;
}

/* The parent of a process, and the time of its children that it waited for. */
static pid_t parent_of(const char *name, double *ret_children)
{
    char path[64], line[1024];
    long user = 0, system = 0;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", name);
    FILE *f = fopen(path, "re");
    const char *rest = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    if (rest)
        sscanf(rest, ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %ld %ld", &parent,
               &user, &system);
    if (f)
        fclose(f);
    *ret_children = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    return parent;
}

/* A process, its children that have ended, and those that live. */
static double process_seconds(pid_t pid)
{
    double sum = own_seconds(pid), children;
    char name[16];

    snprintf(name, sizeof(name), "%d", (int)pid);
    parent_of(name, &children);
    sum += children;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));)
        if (atoi(e->d_name) > 0 && parent_of(e->d_name, &children) == pid)
            sum += own_seconds(atoi(e->d_name));
    if (proc)
        closedir(proc);
    return sum;
}

/* CPU time of everybody since boot: user, nice, system, irq, softirq, steal. */
static double machine_seconds(void)
{
    FILE *f = fopen("/proc/stat", "re");
    uint64_t t[8] = {0};
    int n;

    if (!f)
        return 0;
    n = fscanf(f,
               "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
               " %" SCNu64 " %" SCNu64,
               &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]);
    fclose(f);
    if (n != 8)
        return 0;
    return (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
}

static struct clocks clocks_now(const struct options *o)
{
    struct clocks c = {0};

    for (uint32_t i = 0; i < o->busy; i++)
        c.machine -= process_seconds(busy_pid[i]);
    for (uint32_t i = 0; i < o->daemons; i++)
        c.daemon += process_seconds(o->daemon[i]);
    c.machine += machine_seconds();
    c.reader = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    c.wall = clock_seconds(CLOCK_MONOTONIC);
    return c;
}

static struct clocks clocks_since(const struct options *o, struct clocks start)
{
    struct clocks now = clocks_now(o);

    return (struct clocks){
        .wall = now.wall - start.wall,
        .reader = now.reader - start.reader,
        .daemon = now.daemon - start.daemon,
        .machine = now.machine - start.machine,
    };
}

/* "others" is what neither reader nor daemon nor the busy processes used. */
static void print_clocks(struct clocks c)
{
    double others = c.machine - c.reader - c.daemon;

    printf(
        "\"seconds\": %.6f, \"reader_cpu\": %.6f, \"daemon_cpu\": %.6f, \"others_cpu\": %.3f",
        c.wall, c.reader, c.daemon, others > 0 ? others : 0);
}

static char *join(const char *dir, const char *name)
{
    char *path;

    if (asprintf(&path, "%s/%s", dir, name) < 0)
        err(1, "memory");
    return path;
}

static struct samples samples_load(const struct options *o)
{
    FILE *f = fopen(o->list, "re");
    struct samples s = {0};
    char *line = NULL;
    size_t room = 0, space = 0;

    if (!f)
        err(1, "%s", o->list);
    while (getline(&line, &room, f) > 0) {
        char *tab = strchr(line, '\t');
        if (!tab)
            errx(1, "%s: no tab in line %" PRIu32, o->list, s.count + 1);
        *tab = 0;
        if (s.count == space) {
            space = space ? 2 * space : 4096;
            s.list = reallocarray(s.list, space, sizeof(*s.list));
            if (!s.list)
                err(1, "memory");
        }
        s.list[s.count++] = (struct sample){
            .path = join(o->root, line),
            .reference = o->reference ? join(o->reference, line) : NULL,
            .size = strtoull(tab + 1, NULL, 10),
        };
    }
    free(line);
    fclose(f);
    if (s.count == 0)
        errx(1, "%s: no files", o->list);
    s.epoch_count = o->limit && o->limit < s.count ? o->limit : s.count;
    s.order = calloc(s.count, sizeof(*s.order));
    if (!s.order)
        err(1, "memory");
    return s;
}

static void samples_shuffle(struct samples *s, uint64_t seed, uint32_t epoch)
{
    struct random_stream r = random_stream_of(seed, epoch);

    for (uint32_t i = 0; i < s->count; i++)
        s->order[i] = i;
    for (uint32_t i = s->count - 1; i > 0; i--) {
        uint32_t j = random_below(&r, i + 1);
        uint32_t other = s->order[j];
        s->order[j] = s->order[i];
        s->order[i] = other;
    }
}

static int open_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        err(1, "%s", path);
    return fd;
}

/* The timed work: what a C program does to load one sample. */
static uint64_t read_sample(const struct sample *s, char *buffer)
{
    int fd = open_file(s->path);
    uint64_t total = 0;
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) < 0)
        err(1, "%s", s->path);
    while ((n = read(fd, buffer, READ_BYTES)) > 0)
        total += (uint64_t)n;
    if (n < 0)
        err(1, "%s", s->path);
    close(fd);
    if (total != s->size || (uint64_t)st.st_size != s->size)
        errx(1, "%s: %" PRIu64 " bytes read, size %" PRIu64 ", expected %" PRIu64, s->path,
             total, (uint64_t)st.st_size, s->size);
    return total;
}

/* Untimed: every byte as in the original tree. */
static uint64_t compare_sample(const struct sample *s, char *buffer)
{
    static _Thread_local char expected[READ_BYTES];
    int fd = open_file(s->path), original = open_file(s->reference);
    uint64_t total = 0;
    ssize_t n;

    while ((n = read(fd, buffer, READ_BYTES)) > 0) {
        if (pread(original, expected, (size_t)n, (off_t)total) != n ||
            memcmp(buffer, expected, (size_t)n) != 0)
            errx(1, "%s: content differs near byte %" PRIu64, s->path, total);
        total += (uint64_t)n;
    }
    if (n < 0)
        err(1, "%s", s->path);
    if (total != s->size)
        errx(1, "%s: %" PRIu64 " bytes, expected %" PRIu64, s->path, total, s->size);
    close(original);
    close(fd);
    return total;
}

static void *run_share(void *arg)
{
    struct share *share = arg;
    const struct samples *s = share->samples;
    char *buffer = malloc(READ_BYTES);

    if (!buffer)
        err(1, "memory");
    memset(buffer, 0, READ_BYTES); /* page faults before the clock starts */
    pthread_barrier_wait(share->start);
    for (uint32_t i = share->index; i < s->epoch_count; i += share->stride) {
        const struct sample *sample = &s->list[s->order[i]];
        share->bytes +=
            sample->reference ? compare_sample(sample, buffer) : read_sample(sample, buffer);
    }
    free(buffer);
    return NULL;
}

static void run_epoch(const struct options *o, struct samples *s, uint32_t epoch)
{
    struct share share[THREADS_MAX];
    pthread_barrier_t start;
    struct clocks before;
    uint64_t bytes = 0;

    samples_shuffle(s, o->seed, epoch);
    pthread_barrier_init(&start, NULL, o->threads + 1);
    for (uint32_t i = 0; i < o->threads; i++) {
        share[i] =
            (struct share){.samples = s, .start = &start, .index = i, .stride = o->threads};
        if (pthread_create(&share[i].thread, NULL, run_share, &share[i]) != 0)
            errx(1, "cannot start a thread");
    }
    before = clocks_now(o);
    pthread_barrier_wait(&start);
    for (uint32_t i = 0; i < o->threads; i++) {
        pthread_join(share[i].thread, NULL);
        bytes += share[i].bytes;
    }
    printf("%s{", epoch ? ", " : "");
    print_clocks(clocks_since(o, before));
    printf(", \"files\": %" PRIu32 ", \"bytes\": %" PRIu64 "}", s->epoch_count, bytes);
    pthread_barrier_destroy(&start);
}

/* Lists like find -size or ls -lR: every entry is looked at as it comes. */
static uint64_t walk(int dir)
{
    DIR *d = fdopendir(dir);
    struct dirent *e;
    uint64_t files = 0;

    if (!d)
        err(1, "listing");
    while ((e = readdir(d))) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            err(1, "%s", e->d_name);
        files += S_ISREG(st.st_mode);
        if (S_ISDIR(st.st_mode)) {
            int child = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (child < 0)
                err(1, "%s", e->d_name);
            files += walk(child);
        }
    }
    closedir(d);
    return files;
}

static void run_walk(const struct options *o, const struct samples *s)
{
    struct clocks before = clocks_now(o);
    int dir = open(o->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t files;

    if (dir < 0)
        err(1, "%s", o->root);
    files = walk(dir);
    printf("\"walk\": {");
    print_clocks(clocks_since(o, before));
    printf(", \"files\": %" PRIu64 "}, ", files);
    if (files != s->count)
        errx(1, "%s: %" PRIu64 " files listed, expected %" PRIu32, o->root, files, s->count);
}

static void spin_on(uint32_t cpu)
{
    cpu_set_t set;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set); /* where it may not be bound it spins anywhere */
    for (volatile uint64_t n = 0;; n++)
        ;
}

static void start_busy(const struct options *o)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    for (uint32_t i = 0; i < o->busy; i++) {
        busy_pid[i] = fork();
        if (busy_pid[i] < 0)
            err(1, "fork");
        if (busy_pid[i] == 0)
            spin_on(i % (uint32_t)cpus);
    }
}

static void stop_busy(const struct options *o)
{
    for (uint32_t i = 0; i < o->busy; i++) {
        kill(busy_pid[i], SIGKILL);
        waitpid(busy_pid[i], NULL, 0);
    }
}

static void usage(void)
{
    fprintf(stderr,
            "usage: readers [--threads N] [--epochs N] [--seed N] [--walk] [--busy N]\n"
            "               [--limit FILES] [--daemon PID]... [--reference DIR] ROOT LIST\n");
    exit(2);
}

static uint32_t number(const char *text, uint32_t max)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (*text == 0 || *end != 0 || n > max)
        usage();
    return (uint32_t)n;
}

static void parse_option(struct options *o, int c)
{
    switch (c) {
    case 't':
        o->threads = number(optarg, THREADS_MAX);
        break;
    case 'e':
        o->epochs = number(optarg, UINT32_MAX);
        break;
    case 's':
        o->seed = strtoull(optarg, NULL, 10);
        break;
    case 'w':
        o->walk = true;
        break;
    case 'b':
        o->busy = number(optarg, BUSY_MAX);
        break;
    case 'l':
        o->limit = number(optarg, UINT32_MAX);
        break;
    case 'd':
        if (o->daemons == PIDS_MAX)
            usage();
        o->daemon[o->daemons++] = (pid_t)number(optarg, INT32_MAX);
        break;
    case 'r':
        o->reference = optarg;
        break;
    default:
        usage();
    }
}

static struct options parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"threads", required_argument, NULL, 't'},
        {"epochs", required_argument, NULL, 'e'},
        {"seed", required_argument, NULL, 's'},
        {"walk", no_argument, NULL, 'w'},
        {"busy", required_argument, NULL, 'b'},
        {"daemon", required_argument, NULL, 'd'},
        {"reference", required_argument, NULL, 'r'},
        {"limit", required_argument, NULL, 'l'},
        {NULL, 0, NULL, 0},
    };
    struct options o = {.seed = 1, .threads = 1, .epochs = 1};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        parse_option(&o, c);
    if (argc - optind != 2 || o.threads == 0)
        usage();
    o.root = argv[optind];
    o.list = argv[optind + 1];
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    struct samples s = samples_load(&o);

    start_busy(&o);
    printf("{");
    if (o.walk)
        run_walk(&o, &s);
    printf("\"epochs\": [");
    for (uint32_t epoch = 0; epoch < o.epochs; epoch++)
        run_epoch(&o, &s, epoch);
    printf("]}\n");
    stop_busy(&o);
    for (uint32_t i = 0; i < s.count; i++) {
        free(s.list[i].path);
        free(s.list[i].reference);
    }
    free(s.list);
    free(s.order);
    return 0;
}
