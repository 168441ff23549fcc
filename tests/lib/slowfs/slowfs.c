/*
 * A file system that is as slow as it is told to be: it stands for a parallel file system in
 * benchmarks. It shows a directory, read-only, or a made-up tree, and charges for each
 * operation what a network and a busy server would: latency by kind, one shared bandwidth, and
 * a limit to what is worked on at once. See ../README.md.
 *
 * This file is the command line and the life cycle: mount, serve, unmount.
 */
#define FUSE_USE_VERSION 34
#include "serve.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BACKGROUND = 1024, READAHEAD_KB = 16384, SECONDS_KEPT = 60 };

struct options {
    const char *source; /* NULL: a synthetic tree */
    char *at;
    uint64_t files, file_bytes; /* of the synthetic tree */
    unsigned readahead_kb;
    bool foreground, allow_other;
    struct serve_config serve;
    struct server_config server;
};

static const char usage_text[] =
    "usage: slowfs [OPTIONS] DIRECTORY MOUNTPOINT\n"
    "       slowfs [OPTIONS] --synthetic=FILES [--file-bytes=SIZE] MOUNTPOINT\n"
    "Shows a directory, read-only, as slowly as a busy parallel file system would.\n"
    "\n"
    "      --meta=TIME         latency of every metadata operation: 1ms, 250us (default 0)\n"
    "      --read=TIME         latency of every read\n"
    "      --latency=KIND=TIME[,...]\n"
    "                          of one kind: lookup getattr readlink open opendir readdir\n"
    "                          getxattr listxattr statfs read\n"
    "      --bandwidth=RATE    bytes a second of all reads together: 1G is 10^9 (default:\n"
    "                          no limit)\n"
    "      --limit=N           operations that are worked on at once; others wait\n"
    "      --entry-timeout=S   seconds for which the kernel trusts a name (default 60)\n"
    "      --attr-timeout=S    and attributes (default 60)\n"
    "      --pages=HOW         what is read stays in the page cache: keep (default); drop, "
    "when\n"
    "                          the file is opened again; none, every read is a request\n"
    "      --readahead=KIB     the kernel's read-ahead (default 16384; only root can set it)\n"
    "      --max-background=N  read-ahead requests in flight (default 1024)\n"
    "      --fail-every=N      every Nth read fails\n"
    "      --fail-after=N      all reads after the first N fail\n"
    "      --fail-error=NAME   how they fail: EIO (default), ESTALE, ETIMEDOUT, ENOTCONN\n"
    "      --toggle=WHAT       SIGUSR2 begins it and ends it: fail, each read does (default);\n"
    "                          stall, none is answered until then; lose, those of that time\n"
    "                          never are; stale, files that are open answer ESTALE for good\n"
    "                          (every signal); flip, a bit of each 4 KiB is wrong\n"
    "      --hold              the toggle is on from the start, for the reads of one stretch\n"
    "                          a quarter into each file of 1 MiB and more; before 'stale',\n"
    "                          these stall\n"
    "      --stats=FILE        counts, at the end and on SIGUSR1 (default: standard error)\n"
    "      --synthetic=FILES   a made-up tree, a thousand files to a directory\n"
    "      --file-bytes=SIZE   the size of its files (default 100)\n"
    "      --allow-other       other users may read it\n"
    "  -f, --foreground        don't go to the background when it is mounted\n"
    "\n"
    "The counts can be asked for at any time, too: getfattr -n user.slowfs.stats MOUNTPOINT\n";

enum option_code {
    CODE_META = 256,
    CODE_READ,
    CODE_LATENCY,
    CODE_BANDWIDTH,
    CODE_LIMIT,
    CODE_ENTRY,
    CODE_ATTR,
    CODE_PAGES,
    CODE_READAHEAD,
    CODE_BACKGROUND,
    CODE_FAIL,
    CODE_FAIL_AFTER,
    CODE_FAIL_ERROR,
    CODE_TOGGLE,
    CODE_HOLD,
    CODE_STATS,
    CODE_SYNTHETIC,
    CODE_FILE_BYTES,
    CODE_OTHER,
};

static const struct option longs[] = {
    {"meta", required_argument, NULL, CODE_META},
    {"read", required_argument, NULL, CODE_READ},
    {"latency", required_argument, NULL, CODE_LATENCY},
    {"bandwidth", required_argument, NULL, CODE_BANDWIDTH},
    {"limit", required_argument, NULL, CODE_LIMIT},
    {"entry-timeout", required_argument, NULL, CODE_ENTRY},
    {"attr-timeout", required_argument, NULL, CODE_ATTR},
    {"pages", required_argument, NULL, CODE_PAGES},
    {"readahead", required_argument, NULL, CODE_READAHEAD},
    {"max-background", required_argument, NULL, CODE_BACKGROUND},
    {"fail-every", required_argument, NULL, CODE_FAIL},
    {"fail-after", required_argument, NULL, CODE_FAIL_AFTER},
    {"fail-error", required_argument, NULL, CODE_FAIL_ERROR},
    {"toggle", required_argument, NULL, CODE_TOGGLE},
    {"hold", no_argument, NULL, CODE_HOLD},
    {"stats", required_argument, NULL, CODE_STATS},
    {"synthetic", required_argument, NULL, CODE_SYNTHETIC},
    {"file-bytes", required_argument, NULL, CODE_FILE_BYTES},
    {"allow-other", no_argument, NULL, CODE_OTHER},
    {"foreground", no_argument, NULL, 'f'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static _Noreturn void refuse(const char *what, const char *word)
{
    warnx("%s: '%s'", what, word);
    exit(2);
}

/* A number with a decimal fraction and one of the units, or exit. */
static double number_of(const char *word, const char *const unit[], const double factor[])
{
    char *end;
    double value = strtod(word, &end);

    if (end == word || !(value >= 0))
        refuse("no number", word);
    for (size_t i = 0; unit[i]; i++)
        if (strcmp(end, unit[i]) == 0 && value * factor[i] < 1e18)
            return value * factor[i];
    refuse("unknown unit, or too much", word);
}

static uint64_t time_ns_of(const char *word)
{
    static const char *const unit[] = {"s", "ms", "us", "ns", NULL};
    static const double factor[] = {1e9, 1e6, 1e3, 1};

    return strcmp(word, "0") == 0 ? 0 : (uint64_t)number_of(word, unit, factor);
}

static uint64_t count_of(const char *word)
{
    static const char *const unit[] = {"", "K", "M", "G", "T", NULL};
    static const double factor[] = {1, 1e3, 1e6, 1e9, 1e12};

    return (uint64_t)number_of(word, unit, factor);
}

static unsigned small_count_of(const char *word)
{
    uint64_t n = count_of(word);

    if (n > UINT16_MAX)
        refuse("too much", word);
    return (unsigned)n;
}

static double seconds_of(const char *word)
{
    static const char *const unit[] = {"", NULL};
    static const double factor[] = {1};

    return number_of(word, unit, factor);
}

static void set_meta(struct server_config *c, uint64_t ns)
{
    for (int kind = 0; kind < OP_KINDS; kind++)
        if (kind != OP_READ)
            c->latency_ns[kind] = ns;
}

/* KIND=TIME, several of them with commas between. */
static void set_latencies(struct server_config *c, char *words)
{
    for (char *word = strtok(words, ","); word; word = strtok(NULL, ",")) {
        char *is = strchr(word, '=');
        int kind = 0;

        if (!is)
            refuse("no KIND=TIME", word);
        *is = 0;
        while (kind < OP_KINDS && strcmp(word, op_names[kind]) != 0)
            kind++;
        if (kind == OP_KINDS)
            refuse("unknown kind of operation", word);
        c->latency_ns[kind] = time_ns_of(is + 1);
    }
}

static int error_of(const char *word)
{
    static const struct {
        const char *name;
        int number;
    } errors[] = {
        {"EIO", EIO}, {"ESTALE", ESTALE}, {"ETIMEDOUT", ETIMEDOUT}, {"ENOTCONN", ENOTCONN}};

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (strcmp(word, errors[i].name) == 0)
            return errors[i].number;
    refuse("--fail-error is EIO, ESTALE, ETIMEDOUT or ENOTCONN", word);
}

static enum toggle toggle_of(const char *word)
{
    static const char *const names[] = {"fail", "stall", "lose", "stale", "flip"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(word, names[i]) == 0)
            return (enum toggle)i;
    refuse("--toggle is fail, stall, lose, stale or flip", word);
}

static enum page_cache pages_of(const char *word)
{
    static const char *const how[] = {"keep", "drop", "none"};

    for (unsigned i = 0; i < 3; i++)
        if (strcmp(word, how[i]) == 0)
            return (enum page_cache)i;
    refuse("--pages is keep, drop or none", word);
}

static void take_server_option(struct server_config *c, int code, char *word)
{
    switch (code) {
    case CODE_META:
        set_meta(c, time_ns_of(word));
        break;
    case CODE_READ:
        c->latency_ns[OP_READ] = time_ns_of(word);
        break;
    case CODE_LATENCY:
        set_latencies(c, word);
        break;
    case CODE_BANDWIDTH:
        c->bytes_per_s = count_of(word);
        break;
    case CODE_LIMIT:
        c->limit = count_of(word);
        break;
    }
}

static void take_serve_option(struct serve_config *c, int code, const char *word)
{
    switch (code) {
    case CODE_ENTRY:
        c->entry_s = seconds_of(word);
        break;
    case CODE_ATTR:
        c->attr_s = seconds_of(word);
        break;
    case CODE_PAGES:
        c->pages = pages_of(word);
        break;
    case CODE_BACKGROUND:
        c->max_background = small_count_of(word);
        break;
    case CODE_FAIL:
        c->fail_every = count_of(word);
        break;
    case CODE_FAIL_AFTER:
        c->fail_after = count_of(word);
        break;
    case CODE_FAIL_ERROR:
        c->fail_error = error_of(word);
        break;
    case CODE_TOGGLE:
        c->toggle = toggle_of(word);
        break;
    case CODE_HOLD:
        c->hold = true;
        break;
    case CODE_STATS:
        c->stats = word;
        break;
    }
}

static void take_option(struct options *o, int code)
{
    switch (code) {
    case CODE_READAHEAD:
        o->readahead_kb = (unsigned)(count_of(optarg) & INT_MAX);
        break;
    case CODE_SYNTHETIC:
        o->files = count_of(optarg);
        break;
    case CODE_FILE_BYTES:
        o->file_bytes = count_of(optarg);
        break;
    case CODE_OTHER:
        o->allow_other = true;
        break;
    case 'f':
        o->foreground = true;
        break;
    case 'h':
        fputs(usage_text, stdout);
        exit(0);
    case '?':
        fputs(usage_text, stderr);
        exit(2);
    default:
        take_server_option(&o->server, code, optarg);
        take_serve_option(&o->serve, code, optarg);
    }
}

static struct options parse(int argc, char **argv)
{
    struct options o = {
        .file_bytes = 100,
        .readahead_kb = READAHEAD_KB,
        .serve = {.entry_s = SECONDS_KEPT,
                  .attr_s = SECONDS_KEPT,
                  .max_background = MAX_BACKGROUND},
    };
    int code, wanted;

    while ((code = getopt_long(argc, argv, "fh", longs, NULL)) != -1)
        take_option(&o, code);
    wanted = o.files > 0 ? 1 : 2;
    if (argc - optind != wanted || o.files > UINT64_C(1) << 40) {
        fputs(usage_text, stderr);
        exit(2);
    }
    o.source = o.files > 0 ? NULL : argv[optind];
    o.at = argv[argc - 1];
    return o;
}

/* Without root, a mount goes by its helper alone. */
static bool unmount_by_helper(const char *at)
{
    char *const argv[] = {(char *)"fusermount3", (char *)"-u", (char *)"-z",
                          (char *)"--",          (char *)at,   NULL};
    pid_t child;
    int status;

    return posix_spawnp(&child, argv[0], NULL, NULL, argv, environ) == 0 &&
           waitpid(child, &status, 0) == child && status == 0;
}

/* A mount whose server was killed is in the way of the next one. (Attributes of its root may
 * still be cached: stat would not notice.) */
static void heal(const char *at)
{
    int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0)
        close(fd);
    if (fd >= 0 || errno != ENOTCONN)
        return;
    if (umount2(at, MNT_DETACH) < 0 && !unmount_by_helper(at))
        errx(1, "%s: a dead mount is there and can't be unmounted", at);
    warnx("%s: a dead mount was unmounted", at);
}

/* Names that are used after the working directory has changed. */
static char *absolute(const char *path)
{
    char *folder, *full;

    if (path[0] == '/')
        return strdup(path);
    folder = getcwd(NULL, 0);
    if (!folder || asprintf(&full, "%s/%s", folder, path) < 0)
        err(1, "%s", path);
    free(folder);
    return full;
}

static struct tree make_tree(const struct options *o, int source)
{
    struct tree tree;
    int r = o->source ? tree_of_directory(source, &tree)
                      : tree_synthetic(o->files, o->file_bytes, &tree);

    if (r < 0)
        errx(1, "%s: %s", o->source ? o->source : "synthetic tree", strerror(-r));
    return tree;
}

/* The device number of a mount, by the kernel's table: the mount itself can't answer yet. */
static int device_of(const char *at, char device[32])
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, where[PATH_MAX];
    size_t room = 0;
    int r = -ENOENT;

    if (!f)
        return -errno;
    while (getline(&line, &room, f) > 0) { /* the last one is on top */
        char number[32];
        if (sscanf(line, "%*s %*s %31s %*s %4095s", number, where) == 2 &&
            strcmp(where, at) == 0) {
            memcpy(device, number, sizeof(number));
            r = 0;
        }
    }
    free(line);
    fclose(f);
    return r;
}

/* The kernel takes 128 KB at most from FUSE itself. */
static void set_readahead(const struct options *o, const char *at)
{
    char device[32], path[128];
    FILE *f = NULL;

    if (device_of(at, device) == 0) {
        snprintf(path, sizeof(path), "/sys/class/bdi/%s/read_ahead_kb", device);
        f = fopen(path, "we");
    }
    if (!f || fprintf(f, "%u\n", o->readahead_kb) < 0 || fflush(f) != 0)
        warnx("%s: read-ahead stays at the kernel's 128 KiB: streams are slow", at);
    if (f)
        fclose(f);
}

static struct fuse_session *make_session(const struct options *o, struct serve *serve)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct fuse_session *session;

    if (fuse_opt_add_arg(&args, "slowfs") < 0 ||
        fuse_opt_add_arg(&args, "-oro,fsname=slowfs,subtype=slowfs,max_read=1048576") < 0 ||
        (o->allow_other && fuse_opt_add_arg(&args, "-oallow_other") < 0))
        err(1, "memory");
    session = fuse_session_new(&args, &serve_ops, sizeof(serve_ops), serve);
    fuse_opt_free_args(&args);
    if (!session)
        errx(1, "FUSE can't be set up");
    return session;
}

static int catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t set;
    int fd;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        err(1, "signalfd");
    return fd;
}

/* A lock or a pipe of the script that started it shall not live as long as the mount. */
static void close_inherited(void)
{
    enum { SOME = 1024 };

    for (int fd = STDERR_FILENO + 1; fd < SOME; fd++)
        close(fd);
}

/* Every open file is a descriptor here. */
static void raise_limits(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* a latency of 100 us shall not become 150 */
}

static void go_to_background(const struct options *o, struct fuse_session *session, int source)
{
    int fd = fuse_session_fd(session);

    if (fuse_daemonize(o->foreground) < 0)
        err(1, "background");
    if (source >= 0 && fchdir(source) < 0) /* daemons start in the root */
        err(1, "%s", o->source);
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
        err(1, "/dev/fuse");
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    struct fuse_session *session;
    struct serve *serve;
    int source = -1, signals, r;
    char *at, *stats;

    close_inherited();
    if (o.source && (source = open(o.source, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        err(1, "%s", o.source);
    heal(o.at);
    at = realpath(o.at, NULL);
    if (!at)
        err(1, "%s", o.at);
    o.serve.stats = stats = o.serve.stats ? absolute(o.serve.stats) : NULL;
    raise_limits();
    if (serve_new(&o.serve, &o.server, make_tree(&o, source), &serve) < 0)
        errx(1, "no memory");
    session = make_session(&o, serve);
    if (fuse_session_mount(session, at) < 0)
        return 1; /* it said why */
    if (serve_prepare(serve, session) < 0)
        errx(1, "no memory");
    set_readahead(&o, at);
    signals = catch_signals();
    go_to_background(&o, session, source);

    r = serve_loop(serve, session, signals);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    if (serve_write_stats(serve) < 0)
        r = -EIO;
    serve_free(serve);
    free(stats);
    free(at);
    return r < 0 ? 1 : 0;
}
