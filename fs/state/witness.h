/*
 * Who else got a signal? A process can't see whether a signal was sent to it alone, to its
 * process group, or to every process of a job, one after the other, as batch systems do. But
 * it decides whether the signal has to be passed on: to a command that has it already it would
 * come twice.
 *
 * A witness shows it: a child that blocks every signal, so that every signal to it stays
 * pending. The sender itself makes it so; the witness need not run for that, however busy the
 * node is. It lies in the group of its maker, and gets every signal to the group, or in
 * another, and gets only signals to each process.
 *
 * Threads: none.
 */
#ifndef ONEPOT_WITNESS_H
#define ONEPOT_WITNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct witness {
    bool in_group;
    /*
     * Arguments of this process that the witness does not show (or NULL): it is found by the
     * words by which the rest is found, as `pkill -f` does.
     */
    char *hidden;
    size_t hidden_len;

    pid_t pid;        /* 0: there is none, and nothing is seen */
    uint64_t earlier; /* signals that those before it got */
};

/* Start it. It ends with the calling thread. */
void witness_start(struct witness *witness);
void witness_end(struct witness *witness);

/* Did it get this signal since it was started, or since that was forgotten? */
bool witness_saw(const struct witness *witness, int number);
void witness_forget(struct witness *witness, int number);

#endif
