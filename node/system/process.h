/*
 * Other processes, identified by PID and start time together, since a PID may be reused. All of
 * it reads /proc or waits on a descriptor; nothing can block.
 */
#ifndef ONEPOT_PROCESS_H
#define ONEPOT_PROCESS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_NAME_MAX 64

/* Read the whole of a small file of the kernel, terminated: 0 or -errno. Allocates nothing. */
int proc_text(const char *path, char *buf, size_t size);

/* The number in a file of /proc, or `otherwise`. */
long proc_number(const char *path, long otherwise);

struct process_facts {
    pid_t pid, parent, session;
    bool has_terminal;
    bool is_dead; /* a zombie: its parent has not asked for its status yet */
    bool is_stopped;
    bool is_exiting;
    bool is_fork;         /* runs its parent's program: a shell's subshell, say */
    uint64_t start_ticks; /* field 22 of /proc/PID/stat */
};

/* Errors: -ESRCH. */
int process_look(pid_t pid, struct process_facts *ret_facts);

/*
 * Read a number of /proc/PID/status, after "\nName:"; a thread's number is a PID as well.
 * False: there is none. Allocates nothing.
 */
bool process_status_number(pid_t pid, const char *name, int base, uint64_t *ret_number);

/*
 * List other PIDs that hold or await a lock (flock) of the file, from /proc/locks; returns how
 * many, at most `max`.
 */
size_t process_lock_holders(int fd, int pids[], size_t max);

/* Does it run as our user? False also if that is unknown. */
bool process_is_ours(pid_t pid);

/* Is it a shell with job control, as on a terminal? It ignores SIGTSTP, as no command does. */
bool process_controls_jobs(pid_t pid);

/*
 * The program that this process is of: itself or, above processes that were forked and called
 * no exec, as subshells are, the one that did; or the program `above`, on whose behalf that was
 * started. -ESRCH: not to be seen.
 */
int process_program(pid_t pid, bool above, struct process_facts *ret_program);

/* The PID namespace of this process, in which its numbers of processes mean something. */
uint64_t process_namespace(void);

/* Is it still the process that started at `start_ticks`, and no zombie? */
bool process_lives(pid_t pid, uint64_t start_ticks);

/* Has that process been killed, whether or not all of its threads have ended? */
bool process_is_killed(pid_t pid, uint64_t start_ticks);

/* Is it that process, and stopped, by a signal or a debugger? */
bool process_is_stopped(pid_t pid, uint64_t start_ticks);

/* The name that ps shows, safe to print; "?" if the process is gone. Returns buf. */
const char *process_name(pid_t pid, char buf[PROCESS_NAME_MAX]);

/* A process whose end is awaited. */
struct process_watch {
    pid_t pid; /* 0: nobody */
    uint64_t start_ticks;
    int fd; /* pidfd, readable at its end; -1: the kernel has none (before Linux 5.3) */
};
#define PROCESS_WATCH_NONE ((struct process_watch){.fd = -1})

/* -ESRCH if there is no such process, or only its zombie. */
int process_watch_open(pid_t pid, struct process_watch *ret_watch);
bool process_watch_ended(const struct process_watch *watch);
void process_watch_close(struct process_watch *watch);

/* Wait for a child's end, whatever signals come: 0 and its status, or -errno. */
int process_reap(pid_t pid, int *ret_status);

/*
 * Read what a child writes to `output` until it closes that, keep the first bytes, terminated,
 * and wait for its end, all of it until `end_ms` of now_ms: its exit status, which is 255 after
 * a signal, or -ETIMEDOUT after it was killed.
 */
int process_hear(pid_t pid, int output, uint64_t end_ms, char *text, size_t size);

/* fork(2) of a process that is nobody's child: 0 in it; 1, or -errno, in the caller. */
int process_fork_orphan(void);

/* Kill a child. One that hangs in the kernel for longer than a second is left as a zombie. */
void process_discard(pid_t pid);

/*
 * Do something that may hang, or that changes the process, in a child: what `work` returns, 0
 * or -errno. -ETIMEDOUT: the child has been killed, and goes when the kernel permits. Without
 * a limit (-1) signals don't end the wait, with one they do: -EINTR.
 */
int process_try(int (*work)(void *ctx), void *ctx, int timeout_ms);

/*
 * Where a program lies: in an absolute folder of $PATH, or in a usual one of a system. 0, or
 * -ENOENT.
 */
int process_find_program(const char *program, char ret_path[PATH_MAX]);

#endif
