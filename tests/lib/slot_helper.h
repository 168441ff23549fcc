/*
 * Slots in a folder of the test's own, and other processes that hold them: for suites of the
 * state that mounts keep, one test a process.
 */
#ifndef ONEPOT_TESTS_SLOT_HELPER_H
#define ONEPOT_TESTS_SLOT_HELPER_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state.h"
#include "suite.h"

static char base[64];
static char folder[PATH_MAX];

static inline void slots_setup(void)
{
    suite_make_folder("state", base, sizeof(base));
    snprintf(folder, sizeof(folder), "%s/onepot-%u", base, (unsigned)geteuid());
    setenv("ONEPOT_RUNTIME_DIR", base, 1);
}

static inline bool exists(const char *name)
{
    char path[PATH_MAX + 256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return lstat(path, &st) == 0;
}

static inline void make_file(const char *name, const char *content)
{
    char path[PATH_MAX + 256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    ck_assert(f && fchmod(fileno(f), 0600) == 0);
    fputs(content, f);
    fclose(f);
}

static inline struct registry lock_registry(void)
{
    struct registry registry;
    ck_assert_int_eq(registry_lock(folder, true, &registry), 0);
    return registry;
}

static inline struct slot *create(const char *name)
{
    struct registry registry = lock_registry();
    struct slot *slot;
    ck_assert_int_eq(slot_create(&registry, name, &slot), 0);
    slots_unlock(&registry);
    return slot;
}

static inline struct slot *reopen(const struct slot *slot)
{
    struct slot *other;
    ck_assert_int_eq(slot_open(slot->folder, slot->folder_fd, slot->name, &other), 0);
    return other;
}

/* A child that does something, says so, and sleeps until it is killed. */
static inline pid_t child(void (*work)(const struct slot *), const struct slot *slot)
{
    int fds[2];
    char byte;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(slot);
        if (write(fds[1], "k", 1) < 0)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    return pid;
}

static inline void kill_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static inline void be_daemon(const struct slot *slot)
{
    int fd;
    if (slot_claim_daemon(slot, &fd) < 0)
        _exit(1);
}

static inline void be_run(const struct slot *slot)
{
    struct slot *mine;
    if (slot_open(slot->folder, slot->folder_fd, slot->name, &mine) < 0 ||
        slot_lock(mine, false, false) < 0)
        _exit(1);
}

#endif
