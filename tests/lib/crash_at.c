/*
 * Run a command and send it a signal right before the N-th call by which its first thread
 * changes a folder, or says what has to be on the disk: each such moment can be tried, and
 * again.
 *
 * Usage: crash_at N SIGNAL COMMAND ARGUMENT...
 *
 * Prints the call. The exit status is 99 if there is no N-th one, and the command's otherwise
 * (0 if a signal ended it); 77: processes can't be traced here.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_SUCH_CALL 99
#define SKIPPED 77

#ifdef PTRACE_GET_SYSCALL_INFO

static const struct {
    const char *name;
    long number;
    int flags_at; /* argument that has to have O_CREAT; -1: none has to */
} calls[] = {
    {"openat", SYS_openat, 2},        {"renameat2", SYS_renameat2, -1},
    {"unlinkat", SYS_unlinkat, -1},   {"linkat", SYS_linkat, -1},
    {"fsync", SYS_fsync, -1},         {"pwrite", SYS_pwrite64, -1},
    {"ftruncate", SYS_ftruncate, -1}, {"flock", SYS_flock, -1},
#ifdef SYS_renameat
    {"renameat", SYS_renameat, -1},
#endif
#ifdef SYS_rename
    {"rename", SYS_rename, -1},       {"unlink", SYS_unlink, -1},
#endif
};

/* Its name if it is a call that counts, else NULL. */
static const char *call_name(pid_t pid)
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, (void *)sizeof(info), &info) <= 0) {
        fprintf(stderr, "this kernel does not tell of system calls\n");
        kill(pid, SIGKILL);
        exit(SKIPPED);
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return NULL;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if ((long)info.entry.nr == calls[i].number &&
            (calls[i].flags_at < 0 || info.entry.args[calls[i].flags_at] & O_CREAT))
            return calls[i].name;
    return NULL;
}

static int exit_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static int follow(pid_t pid, long n, int signal_number)
{
    int status;
    if (waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status)) {
        fprintf(stderr, "processes can't be traced here\n");
        return SKIPPED;
    }
    ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (int deliver = 0;;) {
        ptrace(PTRACE_SYSCALL, pid, 0, deliver);
        if (waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status))
            return NO_SUCH_CALL;
        bool at_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
        deliver = at_call || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        const char *name = at_call ? call_name(pid) : NULL;
        if (!name || --n > 0)
            continue;
        puts(name);
        kill(pid, signal_number);
        ptrace(PTRACE_DETACH, pid, 0, 0);
        waitpid(pid, &status, 0);
        return exit_status(status);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    pid_t pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) < 0)
            _exit(SKIPPED);
        execv(argv[3], argv + 3);
        _exit(2);
    }
    return follow(pid, strtol(argv[1], NULL, 10), (int)strtol(argv[2], NULL, 10));
}

#else

int main(void)
{
    fprintf(stderr, "this C library does not know PTRACE_GET_SYSCALL_INFO\n");
    return SKIPPED;
}

#endif
