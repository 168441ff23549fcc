/*
 * Random sequences of calls on the files of a folder, and a line for each sequence: its number
 * and a hash of all results, values of errno and bytes. The lines of two runs are equal, with
 * and without the short circuit, or something is wrong; --tell shows every call.
 *
 * Usage: intercept_calls FOLDER SEED FIRST COUNT [--tell]
 *
 * For root the mount is writable in every other group of sequences, so that descriptors can be
 * had that are open for writing alone.
 *
 * Whatever a call may leave to chance is left out: numbers of descriptors above 30, and the
 * bytes behind what was read are those from before.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define FDS 6
#define CALLS 24
#define ELSEWHERE 29 /* a number that is mostly free */
#define GROUP 8      /* sequences on a mount that stays as it is */
#define BUF_BYTES (64u << 10)

static uint64_t state, hash;
static bool tells;
static bool is_writable; /* the mount, now */
static char **files;
static size_t file_count;
static const char *folder;
static int folder_fd;
static int fds[FDS];
static uint8_t *buf;       /* BUF_BYTES, then a page that is not there */
static uint8_t *read_only; /* a page */
static volatile sig_atomic_t alarms;
static int alarm_fd = -1;
static uint8_t alarm_bytes[64];

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static void mix(const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
}

__attribute__((format(printf, 2, 3))) static long note(long result, const char *format, ...)
{
    int err = result < 0 ? errno : 0;
    va_list args;

    mix(&result, sizeof(result));
    mix(&err, sizeof(err));
    if (tells) {
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf(" = %ld %s\n", result, err ? strerror(err) : "");
    }
    return result;
}

/* ---- one call each ---- */

static void note_buf(void)
{
    mix(buf, BUF_BYTES);
    if (tells) {
        uint64_t before = hash;
        hash = 0;
        mix(buf, BUF_BYTES);
        printf("  bytes %016llx\n", (unsigned long long)hash);
        hash = before;
    }
}

static int a_fd(void)
{
    uint32_t which = draw(40), at = draw(FDS);
    for (int i = 0; i < FDS && fds[at] < 0; i++)
        at = (at + 1) % FDS;
    return which == 0 ? -1 : which == 1 ? ELSEWHERE : fds[at];
}

static size_t a_length(void)
{
    static const size_t lengths[] = {0, 1, 2, 100, 511, 4095, 4096, 4097, 20480, BUF_BYTES};
    return draw(3) ? lengths[draw(sizeof(lengths) / sizeof(lengths[0]))] : draw(BUF_BYTES);
}

/* Mostly the buffer; sometimes one that ends too early, or none. */
static void *a_buffer(size_t *len)
{
    switch (draw(24)) {
    case 0:
        return NULL;
    case 1:
        return (void *)-4096L;
    case 2:
        return read_only;
    case 3:
        return buf + BUF_BYTES - draw(9000);
    case 4:
        *len = (size_t)-1 / 2 + draw(3);
        return buf;
    case 5:
        *len = 0x7ffff000u + draw(3); /* the file is shorter */
        return buf;
    default:
        return buf;
    }
}

static off_t an_offset(void)
{
    static const off_t offsets[] = {0,     1,     100,     4096,      20479,
                                    20480, 20481, 1 << 20, INT64_MAX, -1};
    return draw(2) ? offsets[draw(sizeof(offsets) / sizeof(offsets[0]))] : (off_t)draw(30000);
}

static void keep(int fd)
{
    int *place = &fds[draw(FDS)];
    if (fd < 0)
        return;
    if (*place >= 0)
        close(*place);
    *place = fd;
}

static void call_open(void)
{
    static const int flags[] = {
        0,         O_CLOEXEC, O_NONBLOCK,          O_RDWR,    O_WRONLY,   O_WRONLY | O_APPEND,
        O_PATH,    O_DIRECT,  O_DIRECT | O_RDWR,   O_APPEND,  O_NOATIME,  O_NOATIME | O_DIRECT,
        O_TRUNC,   O_CREAT,   O_EXCL | O_CREAT,    O_SYNC,    O_NOFOLLOW, O_RDWR | O_TRUNC,
        O_ACCMODE, O_ASYNC,   O_PATH | O_NOFOLLOW, O_TMPFILE, O_NOCTTY,   O_DIRECTORY};
    const char *name = files[draw((uint32_t)file_count)];
    int flag = draw(2) ? flags[draw(sizeof(flags) / sizeof(flags[0]))] : 0, fd;

    /* The kernel would take the file for empty, until its attributes are asked for. */
    if (is_writable)
        flag &= ~O_TRUNC;
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s%s/%s", folder, draw(4) ? "" : "/.", name);
    switch (draw(4)) {
    case 0:
        fd = openat(folder_fd, name, flag, 0600);
        break;
    case 1:
        fd = openat(-1, path, flag, 0600);
        break;
    case 2:
        fd = draw(5) ? open(name, flag, 0600) : open("no such file", flag & ~O_CREAT);
        break;
    default:
        fd = open(path, flag, 0600);
    }
    note(fd, "open %s %#o", name, (unsigned)flag);
    keep(fd);
}

static void call_read(void)
{
    size_t len = a_length();
    void *to = a_buffer(&len);
    int fd = a_fd();
    note(read(fd, to, len), "read %d %zu", fd, len);
    note_buf();
}

static void call_pread(void)
{
    size_t len = a_length();
    void *to = a_buffer(&len);
    int fd = a_fd();
    off_t at = an_offset();
    note(pread(fd, to, len, at), "pread %d %zu at %ld", fd, len, (long)at);
    note_buf();
}

static void call_readv(void)
{
    static struct iovec iov[IOV_MAX + 1];
    int count = draw(3) ? (int)draw(5) : IOV_MAX - 1 + (int)draw(3), fd = a_fd();
    off_t at = an_offset();
    size_t used = 0;

    for (int i = 0; i <= IOV_MAX; i++) {
        iov[i] = (struct iovec){buf + used, draw(60)};
        used += iov[i].iov_len;
    }
    if (draw(10) == 0)
        iov[draw(4)].iov_base = NULL;
    switch (draw(12)) {
    case 0: /* each can be read, but not all together */
        iov[0].iov_len = iov[1].iov_len = SIZE_MAX / 4 + 1;
        break;
    case 1:
        iov[draw(4)].iov_len = BUF_BYTES;
        break;
    case 2:
        iov[draw(4)].iov_base = read_only;
        break;
    default:
        break;
    }
    const struct iovec *vector = draw(20) ? iov : NULL;
    switch (draw(5)) {
    case 0:
        note(readv(fd, vector, count), "readv %d %d", fd, count);
        break;
    case 1:
        note(preadv(fd, vector, count, at), "preadv %d %d at %ld", fd, count, (long)at);
        break;
    case 2: /* a flag that means nothing here, and one that is none */
        note(preadv2(fd, vector, count, at, draw(3) ? RWF_HIPRI : 1 << 30),
             "preadv2 with a flag, %d %d at %ld", fd, count, (long)at);
        break;
    default:
        note(preadv2(fd, vector, count, draw(2) ? -1 : at, 0), "preadv2 %d %d at %ld", fd,
             count, (long)at);
    }
    note_buf();
}

static void call_lseek(void)
{
    static const int whences[] = {SEEK_SET,  SEEK_SET,  SEEK_CUR, SEEK_END,
                                  SEEK_DATA, SEEK_HOLE, 77};
    int whence = whences[draw(7)], fd = a_fd();
    off_t at = an_offset();
    note(lseek(fd, draw(3) ? at : -at, whence), "lseek %d %ld %d", fd, (long)at, whence);
}

/* In the place of one that is closed unseen. */
static void dup_unseen(int fd, int *place)
{
    if (*place < 0 || *place == fd)
        return;
    syscall(SYS_close, *place);
    *place = draw(2) ? dup(fd) : fcntl(fd, F_DUPFD, 3);
    note(*place, "dup %d unseen", fd);
}

static void call_dup(void)
{
    int fd = a_fd(), other = a_fd(), made;
    switch (draw(5)) {
    case 0:
        made = dup(fd);
        break;
    case 1:
        made = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        break;
    case 2:
        made = dup2(fd, other);
        note(made, "dup2 %d %d", fd, other);
        return;
    case 3:
        dup_unseen(fd, &fds[draw(FDS)]);
        return;
    default:
        made = dup3(fd, other, O_CLOEXEC);
        note(made, "dup3 %d %d", fd, other);
        return;
    }
    note(made, "dup %d", fd);
    keep(made);
}

static void call_close(void)
{
    int which = (int)draw(FDS), fd = fds[which];
    if (fd < 0)
        return;
    switch (draw(5)) {
    case 0: /* unseen, so that the number is another file's without notice */
        note(syscall(SYS_close, fd), "raw close %d", fd);
        break;
    case 1: {
        FILE *file = fdopen(fd, "r");
        note(file ? (long)fread(buf, 1, a_length(), file) : -1, "fdopen, fread %d", fd);
        note_buf();
        note(file ? fclose(file) : close(fd), "fclose %d", fd);
        break;
    }
    case 2:
        note(syscall(SYS_close_range, fd, fd, 0), "close_range %d", fd);
        break;
    default:
        note(close(fd), "close %d", fd);
    }
    fds[which] = -1;
}

static void block_alarm(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(how, &set, NULL);
}

/* Descriptors that are no files, where files were. */
static void call_other(void)
{
    int pair[2];
    if (pipe(pair) < 0)
        return;
    if (write(pair[1], "some bytes", 10) == 10)
        note(read(pair[0], buf, 100), "read of a pipe");
    note(isatty(pair[0]), "isatty of a pipe");
    close(pair[1]);
    keep(pair[0]);
}

static void call_terminal(void)
{
    struct termios t;
    int fd = a_fd(), n = 0;
    note(isatty(fd) ? 1 : -1, "isatty %d", fd);
    note(tcgetattr(fd, &t), "tcgetattr %d", fd);
    note(ioctl(fd, TCGETS, &t), "TCGETS %d", fd);
    note(ioctl(fd, FIONREAD, &n), "FIONREAD %d", fd);
}

static void call_kernel(void)
{
    int fd = a_fd(), out = memfd_create("out", 0);
    struct stat st;
    off_t at = draw(100);

    block_alarm(SIG_BLOCK); /* it may cut a sendfile short */
    note(sendfile(out, fd, draw(2) ? &at : NULL, a_length()), "sendfile %d", fd);
    block_alarm(SIG_UNBLOCK);
    note(syscall(SYS_read, fd, buf, a_length()), "raw read %d", fd);
    note_buf();
    if (note(fstat(fd, &st), "fstat %d", fd) == 0) {
        if (S_ISREG(st.st_mode)) /* ".." is no folder of the mount */
            mix(&st.st_size, sizeof(st.st_size));
        mix(&st.st_mode, sizeof(st.st_mode));
    }
    void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    note(map == MAP_FAILED ? -1 : 0, "mmap %d", fd);
    if (map != MAP_FAILED && st.st_size >= 4096)
        mix(map, 4096);
    if (map != MAP_FAILED)
        munmap(map, 4096);
    note(write(fd, "x", 1), "write %d", fd);
    note(pwrite(fd, "x", 1, at), "pwrite %d", fd);
    note(ftruncate(fd, 1), "ftruncate %d", fd);
    close(out);
}

/* A child shares the position. */
static void call_fork(void)
{
    int fd = a_fd(), status = 0;
    volatile size_t len = draw(3000); /* vfork returns twice */
    bool is_vfork = draw(3) == 0;
    fflush(stdout);
    pid_t pid = is_vfork ? vfork() : fork();
    if (pid == 0) {
        ssize_t n = read(fd, buf, len);
        _exit(n < 0 ? errno : (int)(n % 100) + 100);
    }
    waitpid(pid, &status, 0);
    note(WEXITSTATUS(status), "%s: child reads %d", is_vfork ? "vfork" : "fork", fd);
    note(lseek(fd, 0, SEEK_CUR), "position %d", fd);
    note_buf();
}

static void call_exec(void)
{
    int fd = a_fd(), status = 0, out = memfd_create("out", 0);
    fflush(stdout);
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(out, 1);
        close(2);
        if (dup2(fd, 0) < 0)
            _exit(1);
        execlp("head", "head", "-c", "5000", (char *)NULL);
        _exit(2);
    }
    waitpid(pid, &status, 0);
    note(WEXITSTATUS(status), "exec: head reads %d", fd);
    note(pread(out, buf, BUF_BYTES, 0), "its output");
    note_buf();
    close(out);
}

static const struct {
    void (*call)(void);
    unsigned share;
} calls[] = {
    {call_open, 20},  {call_read, 30},  {call_pread, 12}, {call_readv, 6},
    {call_lseek, 10}, {call_dup, 8},    {call_close, 8},  {call_terminal, 3},
    {call_other, 2},  {call_kernel, 4}, {call_fork, 1},
};

static void make_writable(bool shall_be)
{
    unsigned long flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOATIME;

    if (shall_be == is_writable || geteuid() != 0)
        return;
    if (mount(NULL, folder, NULL, flags | (shall_be ? 0 : MS_RDONLY), NULL) < 0)
        abort();
    is_writable = shall_be;
}

static void run_sequence(uint64_t seed, unsigned number)
{
    make_writable(number / GROUP % 2);
    state = seed * 0x9e3779b97f4a7c15u + number;
    hash = 14695981039346656037u;
    memset(buf, 0x5a, BUF_BYTES);
    for (int i = 0; i < 4; i++)
        call_open();
    for (int i = 0; i < CALLS; i++) {
        uint32_t at = draw(104), which = 0;
        while (at >= calls[which].share)
            at -= calls[which++].share;
        calls[which].call();
    }
    if (number % 200 == 0)
        call_exec();
    for (int i = 0; i < FDS; i++)
        if (fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
    close(ELSEWHERE);
    printf("%u %016llx\n", number, (unsigned long long)hash);
}

/* ---- the rest ---- */

/* A signal in the middle of a call reads, too. */
static void on_alarm(int number)
{
    int saved = errno;
    uint8_t bytes[64];
    (void)number;
    alarms++;
    if (pread(alarm_fd, bytes, sizeof(bytes), 10) != sizeof(bytes) ||
        memcmp(bytes, alarm_bytes, sizeof(bytes)) != 0)
        abort();
    errno = saved;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_files(void)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        files = realloc(files, (file_count + 1) * sizeof(*files));
        files[file_count++] = strdup(e->d_name);
    }
    closedir(dir);
    qsort(files, file_count, sizeof(*files), compare_names);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 3000}, {0, 3000}};
    uint8_t *pages = mmap(NULL, BUF_BYTES + 4096, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (argc < 5)
        return 2;
    folder = argv[1];
    tells = argc > 5;
    munmap(pages + BUF_BYTES, 4096);
    buf = pages;
    read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < FDS; i++)
        fds[i] = -1;
    list_files();
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY);
    if (chdir(folder) < 0 || folder_fd < 0)
        return 2;
    int fd = open("alarm", O_RDONLY); /* a name that sorts nowhere in particular */
    alarm_fd = fcntl(fd, F_DUPFD, 40);
    close(fd);
    if (pread(alarm_fd, alarm_bytes, sizeof(alarm_bytes), 10) != sizeof(alarm_bytes))
        return 2;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    signal(SIGPIPE, SIG_IGN);
    unsigned first = (unsigned)atoi(argv[3]), count = (unsigned)atoi(argv[4]);
    for (unsigned i = first; i < first + count; i++)
        run_sequence(strtoull(argv[2], NULL, 10), i);
    return 0;
}
