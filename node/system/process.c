/*
 * Facts about other processes from /proc and pidfds. Nothing here reads a process's memory
 * (cmdline, maps), because that can block behind a page fault on a hung filesystem.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "process.h"
#include "syscalls.h"

#define DISCARD_LIMIT_MS 1000
#define DISCARD_STEP_MS 1
#define HEAR_STEP_US 200
#define ANCESTORS_MAX 1000
/* One of the kernel's flags in /proc/PID/stat (include/linux/sched.h); the same since
 * Linux 2.6. */
#define FLAG_EXITING 0x4
#define FLAG_FORKED_NO_EXEC 0x40

int proc_text(const char *path, char *buf, size_t size)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, buf, size - 1);
    if (n < 0)
        return -errno;
    buf[n] = '\0';
    return 0;
}

long proc_number(const char *path, long otherwise)
{
    char buf[64];
    long number;
    return proc_text(path, buf, sizeof(buf)) == 0 && sscanf(buf, "%ld", &number) == 1
               ? number
               : otherwise;
}

int process_look(pid_t pid, struct process_facts *ret_facts)
{
    struct process_facts facts = {.pid = pid};
    char path[32], buf[1024], state;
    int terminal;
    unsigned flags;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (pid <= 0 || proc_text(path, buf, sizeof(buf)) < 0)
        return -ESRCH;
    /* The name may hold spaces and parentheses; field 3 follows its last one. */
    const char *p = strrchr(buf, ')');
    if (!p || sscanf(p + 1,
                     " %c %d %*d %d %d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                     "%*d %" SCNu64,
                     &state, &facts.parent, &facts.session, &terminal, &flags,
                     &facts.start_ticks) != 6)
        return -ESRCH;
    facts.has_terminal = terminal != 0;
    facts.is_dead = state == 'Z' || state == 'X';
    facts.is_stopped = state == 'T' || state == 't';
    facts.is_exiting = flags & FLAG_EXITING;
    facts.is_fork = flags & FLAG_FORKED_NO_EXEC;
    *ret_facts = facts;
    return 0;
}

bool process_status_number(pid_t pid, const char *name, int base, uint64_t *ret_number)
{
    char path[32], buf[4096];

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    const char *p = proc_text(path, buf, sizeof(buf)) < 0 ? NULL : strstr(buf, name);
    if (p)
        *ret_number = strtoull(p + strlen(name), NULL, base);
    return p != NULL;
}

bool process_is_ours(pid_t pid)
{
    uint64_t uid;
    return process_status_number(pid, "\nUid:", 10, &uid) && uid == getuid();
}

bool process_controls_jobs(pid_t pid)
{
    uint64_t ignored;
    return process_status_number(pid, "\nSigIgn:", 16, &ignored) &&
           (ignored >> (SIGTSTP - 1) & 1);
}

int process_program(pid_t pid, bool above, struct process_facts *ret_program)
{
    struct process_facts facts;
    int r = process_look(pid, &facts);

    for (int i = 0; r == 0 && facts.is_fork && i < ANCESTORS_MAX; i++)
        r = process_look(facts.parent, &facts);
    if (r == 0 && above)
        return process_program(facts.parent, false, ret_program);
    if (r == 0)
        *ret_program = facts;
    return r;
}

uint64_t process_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

bool process_lives(pid_t pid, uint64_t start_ticks)
{
    struct process_facts facts;
    return process_look(pid, &facts) == 0 && facts.start_ticks == start_ticks && !facts.is_dead;
}

bool process_is_killed(pid_t pid, uint64_t start_ticks)
{
    struct process_facts facts;
    uint64_t pending = 0;

    if (!process_status_number(pid, "\nShdPnd:", 16, &pending) ||
        process_look(pid, &facts) < 0 || facts.start_ticks != start_ticks)
        return true;
    return facts.is_dead || facts.is_exiting || (pending >> (SIGKILL - 1) & 1);
}

bool process_is_stopped(pid_t pid, uint64_t start_ticks)
{
    struct process_facts facts;
    return process_look(pid, &facts) == 0 && facts.start_ticks == start_ticks &&
           facts.is_stopped;
}

const char *process_name(pid_t pid, char buf[PROCESS_NAME_MAX])
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    if (proc_text(path, buf, PROCESS_NAME_MAX) < 0 || !buf[0])
        return strcpy(buf, "?");
    buf[strcspn(buf, "\n")] = '\0';
    for (char *p = buf; *p; p++)
        if (!isprint((unsigned char)*p))
            *p = '?';
    return buf;
}

int process_watch_open(pid_t pid, struct process_watch *ret_watch)
{
    struct process_watch watch = {.pid = pid, .fd = syscall_pidfd_open(pid)};
    struct process_facts facts;

    if (watch.fd == -ESRCH)
        return -ESRCH;
    /* Read after the pidfd is open: it is then the same process, or that one has ended. */
    if (process_look(pid, &facts) < 0 || facts.is_dead) {
        process_watch_close(&watch);
        return -ESRCH;
    }
    watch.start_ticks = facts.start_ticks;
    *ret_watch = watch;
    return 0;
}

bool process_watch_ended(const struct process_watch *watch)
{
    if (watch->pid == 0)
        return false;
    if (watch->fd < 0)
        return !process_lives(watch->pid, watch->start_ticks);
    struct pollfd p = {.fd = watch->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

void process_watch_close(struct process_watch *watch)
{
    if (watch->fd >= 0)
        close(watch->fd);
    *watch = PROCESS_WATCH_NONE;
}

int process_reap(pid_t pid, int *ret_status)
{
    while (waitpid(pid, ret_status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

void process_discard(pid_t pid)
{
    kill(pid, SIGKILL);
    for (int waited = 0; waited < DISCARD_LIMIT_MS && waitpid(pid, NULL, WNOHANG) == 0;
         waited += DISCARD_STEP_MS)
        poll(NULL, 0, DISCARD_STEP_MS);
}

static void process_listen(int output, uint64_t end_ms, char *text, size_t size)
{
    size_t len = 0;
    char rest[256];

    for (uint64_t now; (now = now_ms()) < end_ms;) {
        struct pollfd p = {.fd = output, .events = POLLIN};
        if (poll(&p, 1, (int)(end_ms - now)) == 0)
            break;
        bool has_room = len < size - 1;
        ssize_t n = read(output, has_room ? text + len : rest,
                         has_room ? size - 1 - len : sizeof(rest));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += has_room ? (size_t)n : 0;
    }
    text[len] = '\0';
}

int process_hear(pid_t pid, int output, uint64_t end_ms, char *text, size_t size)
{
    int status;
    pid_t got;

    process_listen(output, end_ms, text, size);
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (now_ms() > end_ms) {
            process_discard(pid);
            return -ETIMEDOUT;
        }
        usleep(HEAR_STEP_US);
    }
    return got == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* The result of a child, which its exit status says as a positive number. */
static int process_result(pid_t pid)
{
    int status, r = process_reap(pid, &status);
    if (r < 0)
        return r;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

int process_try(int (*work)(void *ctx), void *ctx, int timeout_ms)
{
    auto_close int ended = -1;
    int fds[2] = {-1, -1}, r;

    if (timeout_ms >= 0 && pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    ended = fds[0];
    pid_t pid = fork();
    if (pid == 0)
        _exit(-work(ctx));
    r = pid < 0 ? -errno : 0;
    if (fds[1] >= 0)
        close(fds[1]); /* the child closes its copy by ending */
    if (r < 0)
        return r;
    if (timeout_ms >= 0) {
        struct pollfd p = {.fd = ended, .events = POLLIN};
        r = poll(&p, 1, timeout_ms);
        r = r < 0 ? -errno : r == 0 ? -ETIMEDOUT : 0;
    }
    if (r < 0) {
        process_discard(pid);
        return r;
    }
    return process_result(pid);
}

int process_fork_orphan(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        pid = fork();
        if (pid == 0)
            return 0;
        _exit(pid < 0 ? errno : 0);
    }
    int r = pid < 0 ? -errno : process_result(pid);
    return r < 0 ? r : 1;
}

int process_find_program(const char *program, char ret_path[PATH_MAX])
{
    static const char usual[] = "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin:/usr/local/sbin";
    const char *path = getenv("PATH");
    auto_free char *all = NULL;
    char *save = NULL;

    if (asprintf(&all, "%s:%s", path ? path : "", usual) < 0) {
        all = NULL;
        return -ENOMEM;
    }
    for (char *dir = strtok_r(all, ":", &save); dir; dir = strtok_r(NULL, ":", &save)) {
        int n = snprintf(ret_path, PATH_MAX, "%s/%s", dir, program);
        if (dir[0] == '/' && n < PATH_MAX && access(ret_path, X_OK) == 0)
            return 0;
    }
    return -ENOENT;
}

size_t process_lock_holders(int fd, int pids[], size_t max)
{
    size_t count = 0;
    char line[256], want[64];
    struct stat st;
    auto_fclose FILE *f = fopen("/proc/locks", "re");

    if (!f || fstat(fd, &st) < 0)
        return 0;
    snprintf(want, sizeof(want), " %02x:%02x:%llu ", major(st.st_dev), minor(st.st_dev),
             (unsigned long long)st.st_ino);
    while (count < max && fgets(line, sizeof(line), f)) {
        int pid;
        size_t i = 0;
        if (!strstr(line, want) || sscanf(line, "%*s FLOCK %*s %*s %d", &pid) != 1 ||
            pid == getpid() || pid <= 0)
            continue;
        while (i < count && pids[i] != pid)
            i++;
        if (i == count) /* a list that grows while it is read has a line twice */
            pids[count++] = pid;
    }
    return count;
}
