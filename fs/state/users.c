/*
 * The search runs in a child, because one file it reads can block: /proc/PID/maps waits for a
 * process's memory lock, which that process may hold in a page fault on the very mount that
 * hangs. After two seconds the child is left alone, and its findings so far count.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "users.h"

#define SEARCH_LIMIT_MS 2000

/* Does a link of /proc point into the mount? */
static bool link_leads_in(const char *link, const char *mountpoint)
{
    char target[PATH_MAX + 32];
    size_t len = strlen(mountpoint);
    ssize_t n = readlink(link, target, sizeof(target) - 1);

    if (n < (ssize_t)len)
        return false;
    target[n] = '\0';
    return strncmp(target, mountpoint, len) == 0 && (target[len] == '\0' || target[len] == '/');
}

static bool has_open_file(int pid, const char *mountpoint)
{
    char path[64 + 256];

    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    auto_closedir DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, e->d_name);
        if (link_leads_in(path, mountpoint))
            return true;
    }
    return false;
}

static bool has_mapping(int pid, const struct mount_entry *entry)
{
    char path[64];
    auto_free char *line = NULL;
    unsigned dev_major, dev_minor;
    size_t size = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", pid);
    auto_fclose FILE *f = fopen(path, "re");
    while (f && getline(&line, &size, f) > 0)
        if (sscanf(line, "%*s %*s %*s %x:%x", &dev_major, &dev_minor) == 2 &&
            dev_major == entry->dev_major && dev_minor == entry->dev_minor)
            return true;
    return false;
}

/* The cheap and harmless checks come first. */
static bool user_has_it_open(int pid, const struct mount_entry *entry)
{
    static const char *const links[] = {"cwd", "root", "exe"};
    char path[64];

    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        snprintf(path, sizeof(path), "/proc/%d/%s", pid, links[i]);
        if (link_leads_in(path, entry->path))
            return true;
    }
    return has_open_file(pid, entry->path) || has_mapping(pid, entry);
}

/* Is the filesystem mounted anywhere in that process's namespace? */
static bool user_sees_it(int pid, const struct mount_entry *entry)
{
    char path[64], where[PATH_MAX];

    snprintf(path, sizeof(path), "/proc/%d/mountinfo", pid);
    return mountinfo_device_in(path, entry->dev_major, entry->dev_minor, NULL, where) == 0;
}

/* Is one of its threads in a FUSE request, by the name of the kernel function? */
static bool user_waits(int pid, const struct mount_entry *entry)
{
    char path[64 + 256], where[64];

    (void)entry;
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    auto_closedir DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/wchan", pid, e->d_name);
        if (proc_text(path, where, sizeof(where)) == 0 &&
            (strcmp(where, "request_wait_answer") == 0 || strstr(where, "fuse_request_send") ||
             strstr(where, "fuse_simple_request")))
            return true;
    }
    return false;
}

/* Write the PIDs into the pipe, each as soon as it is found. */
static _Noreturn void users_search_child(bool (*has)(int pid, const struct mount_entry *entry),
                                         const struct mount_entry *entry, int self, int except,
                                         int out)
{
    DIR *dir = opendir("/proc");

    signal(SIGPIPE, SIG_DFL); /* the reader has enough */
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int pid = atoi(e->d_name);
        if (pid <= 0 || pid == self || pid == except || pid == getpid() || !has(pid, entry))
            continue;
        if (write(out, &pid, sizeof(pid)) < 0)
            break;
    }
    _exit(0);
}

static size_t users_collect(int in, struct mount_user users[], size_t max)
{
    uint64_t now, end = now_ms() + SEARCH_LIMIT_MS;
    size_t count = 0;

    while (count < max && (now = now_ms()) < end) {
        struct pollfd p = {.fd = in, .events = POLLIN};
        if (poll(&p, 1, (int)(end - now)) == 0)
            break;
        ssize_t n = read(in, &users[count].pid, sizeof(int));
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof(int))
            break;
        process_name(users[count].pid, users[count].name);
        count++;
    }
    return count;
}

static size_t users_search(bool (*has)(int pid, const struct mount_entry *entry),
                           const struct mount_entry *entry, int except,
                           struct mount_user users[], size_t max)
{
    auto_close int in = -1;
    int fds[2], self = getpid();

    if (pipe2(fds, O_CLOEXEC) < 0)
        return 0;
    in = fds[0];
    pid_t pid = fork();
    if (pid == 0)
        users_search_child(has, entry, self, except, fds[1]);
    close(fds[1]);
    if (pid < 0)
        return 0;
    size_t count = users_collect(in, users, max);
    process_discard(pid); /* it may hang */
    return count;
}

size_t users_find(const struct mount_entry *entry, int except, struct mount_user users[],
                  size_t max)
{
    return users_search(user_has_it_open, entry, except, users, max);
}

size_t users_waiting(int except, struct mount_user users[], size_t max)
{
    return users_search(user_waits, NULL, except, users, max);
}

size_t users_elsewhere(unsigned dev_major, unsigned dev_minor, int except,
                       struct mount_user users[], size_t max)
{
    struct mount_entry entry = {.dev_major = dev_major, .dev_minor = dev_minor};
    return dev_major || dev_minor ? users_search(user_sees_it, &entry, except, users, max) : 0;
}

const char *users_describe(const struct mount_user users[], size_t count, char *buf,
                           size_t size)
{
    size_t len = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        int n = snprintf(buf + len, size - len, "%s%s (%d)", i ? ", " : "", users[i].name,
                         users[i].pid);
        if (n < 0 || (size_t)n >= size - len - 5) {
            snprintf(buf + len, size - len, "...");
            break;
        }
        len += (size_t)n;
    }
    return buf;
}
