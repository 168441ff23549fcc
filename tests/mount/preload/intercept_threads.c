/*
 * The short circuit's own code, linked into a program, for the sanitizers: they can't look into
 * a preloaded library. Threads read files of a mount and share descriptors, which others
 * replace at the same time. Each word of a file tells which file it is of, and where it stands.
 *
 * Usage: intercept_threads FOLDER FILES CALLS
 *        intercept_threads FOLDER 0 ROUNDS ARCHIVE
 * The second form reads one descriptor with all threads, while pages of the archive leave
 * memory: each word once.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "io_private.h"

#define THREADS 4u
#define SHARED 3u
#define WORDS 600u
#define SEEN_WORDS 200000u /* as intercept_threads.py has it */

static const char *folder;
static unsigned file_count, call_count;
static int shared[SHARED];

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "intercept_threads: %s\n", what);
    exit(1);
}

/* Words of one file, one after the other, the first of which is `at` (-1: any)? */
static void check_words(const uint64_t *words, size_t count, int64_t at)
{
    for (size_t i = 0; i < count; i++)
        if (words[i] != words[0] + i)
            fail("bytes that do not belong together");
    if (count > 0 && at >= 0 && (words[0] & UINT32_MAX) != (uint64_t)at)
        fail("bytes of another place");
}

static int open_file(unsigned number)
{
    char path[4096];
    uint64_t begun_ns = io_now_ns();

    snprintf(path, sizeof(path), "%s/in/f%u", folder, number);
    int fd = (int)io_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail("a file can't be opened");
    known_set(fd, KNOWN_PLAIN);
    link_saw_open(AT_FDCWD, path, fd, io_now_ns() - begun_ns);
    return fd;
}

static void close_file(int fd)
{
    flight_closing(fd);
    io_call(SYS_close, fd);
    flight_closed(fd);
}

static size_t read_words(int fd, uint64_t *words, size_t count)
{
    ssize_t n = reading_read(fd, words, count * sizeof(*words));
    if (n <= 0)
        n = io_call(SYS_read, fd, words, count * sizeof(*words));
    if (n < 0 || n % (ssize_t)sizeof(*words) != 0)
        fail("a read that failed");
    return (size_t)n / sizeof(*words);
}

static void read_whole(unsigned number)
{
    static _Thread_local uint64_t words[WORDS];
    int fd = open_file(number);
    int64_t at = 0;
    size_t n;

    if (!reading_is_mounted(fd) && known_fd(fd) == KNOWN_FOREIGN)
        fail("the mount is taken for something else");
    while ((n = read_words(fd, words, WORDS)) > 0) {
        check_words(words, n, at);
        if (words[0] >> 32 != number)
            fail("bytes of another file");
        at += (int64_t)n;
    }
    if (at * (int64_t)sizeof(*words) != io_call(SYS_lseek, fd, (off_t)0, SEEK_END))
        fail("bytes are missing");
    close_file(fd);
}

static void read_shared(int fd, size_t count)
{
    static _Thread_local uint64_t words[WORDS];
    size_t n = read_words(fd, words, count);

    check_words(words, n, -1);
    if (n == 0)
        io_call(SYS_lseek, fd, (off_t)0, SEEK_SET);
}

static void pread_shared(int fd, size_t at)
{
    static _Thread_local uint64_t words[WORDS];
    ssize_t n = reading_pread(fd, words, sizeof(words), (off_t)(at * sizeof(*words)));
    if (n > 0)
        check_words(words, (size_t)n / sizeof(*words), (int64_t)at);
}

static void replace_shared(int place, unsigned number)
{
    int fd = open_file(number);

    flight_closing(place);
    io_call(SYS_dup3, fd, place, O_CLOEXEC);
    flight_closed(place);
    close_file(fd);
}

static void *run_thread(void *arg)
{
    unsigned seed = *(unsigned *)arg;

    for (unsigned i = 0; i < call_count; i++) {
        unsigned number = (unsigned)rand_r(&seed) >> 4, fd = number / 8 % SHARED;
        switch (number % 8) {
        case 0:
            read_whole(number % file_count);
            break;
        case 1:
            replace_shared(shared[fd], number % file_count);
            break;
        case 2:
        case 3:
            pread_shared(shared[fd], number % 5000);
            break;
        default:
            read_shared(shared[fd], 1 + number % WORDS);
        }
    }
    return NULL;
}

/* A child that was forked while nothing is read. */
static void run_child(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        reading_forked();
        link_forked();
        read_whole(1);
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("a child's reads");
}

static _Atomic uint8_t seen[SEEN_WORDS];
static _Atomic bool is_over;

static void *run_sharer(void *arg)
{
    const int *fd = arg;
    uint64_t words[100];
    size_t n;

    while ((n = read_words(*fd, words, 100)) > 0)
        for (size_t i = 0; i < n; i++)
            if (words[i] >= SEEN_WORDS || atomic_fetch_add(&seen[words[i]], 1) != 0)
                fail("a word that was read twice");
    return NULL;
}

static void *run_evictor(void *arg)
{
    const int *fd = arg;

    while (!atomic_load(&is_over))
        posix_fadvise(*fd, 0, 0, POSIX_FADV_DONTNEED);
    return NULL;
}

static void share_one(void)
{
    pthread_t threads[THREADS];
    int fd = open_file(0);

    for (size_t i = 0; i < SEEN_WORDS; i++)
        atomic_store_explicit(&seen[i], 0, memory_order_relaxed);
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run_sharer, &fd) != 0)
            fail("no thread");
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < SEEN_WORDS; i++)
        if (atomic_load_explicit(&seen[i], memory_order_relaxed) != 1)
            fail("a word that nobody has read");
    close_file(fd);
}

static int share_while_evicted(const char *archive)
{
    pthread_t evictor;
    int fd = open(archive, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) < 0 || pthread_create(&evictor, NULL, run_evictor, &fd) != 0)
        fail("the archive");
    for (unsigned i = 0; i < call_count; i++)
        share_one();
    atomic_store(&is_over, true);
    pthread_join(evictor, NULL);
    puts("same");
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];

    if (argc < 4)
        return 2;
    folder = argv[1];
    file_count = (unsigned)atoi(argv[2]);
    call_count = (unsigned)atoi(argv[3]);
    atomic_store(&reading_is_on, true);
    if (argc == 5)
        return share_while_evicted(argv[4]);
    for (unsigned i = 0; i < SHARED; i++)
        shared[i] = open_file(i);
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i;
        if (pthread_create(&threads[i], NULL, run_thread, &seeds[i]) != 0)
            fail("no thread");
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    run_child();
    puts("same");
    return 0;
}
