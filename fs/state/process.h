/*
 * Other processes, identified by PID and start time together, since a PID may be reused. All of
 * it reads /proc or waits on a descriptor; nothing can block.
 */
#ifndef ONEPOT_PROCESS_H
#define ONEPOT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_NAME_MAX 64

struct process_facts {
    pid_t pid, parent, session;
    bool has_terminal;
    char state;           /* 'R', 'T', 'Z', ... */
    uint64_t start_ticks; /* field 22 of /proc/PID/stat */
};

/* Errors: -ESRCH. */
int process_look(pid_t pid, struct process_facts *ret_facts);

/* Does it run as our user? False also if that is unknown. */
bool process_is_ours(pid_t pid);

/* Is it a shell with job control, as on a terminal? It ignores SIGTSTP, as no command does. */
bool process_controls_jobs(pid_t pid);

/* Its start time (field 22 of /proc/PID/stat) and state ('R', 'T', 'Z', ...). -ESRCH. */
int process_stat(pid_t pid, uint64_t *ret_start_ticks, char *ret_state);

/* Is it still the process that started at `start_ticks`, and no zombie? */
bool process_lives(pid_t pid, uint64_t start_ticks);

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

/* Wait up to `timeout_ms` for the process to end: 0, or -ETIMEDOUT. */
int process_wait_end(pid_t pid, uint64_t start_ticks, int timeout_ms);

#endif
