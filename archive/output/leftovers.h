/*
 * Partial files that a killed process left behind. Who writes one holds a lock on it
 * (flock), which the kernel takes back however the process ends: a partial file that can be
 * locked is nobody's.
 *
 * Locks of some network filesystems hold on one node only, and a file may be written on
 * another. There a file has to have lain still for a while, too; until then it is told.
 */
#ifndef ONEPOT_LEFTOVERS_H
#define ONEPOT_LEFTOVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/* How a partial file of NAME is called: NAME.XXXXXX.partial, six letters of these. */
#define PARTIAL_LETTERS "abcdefghijklmnopqrstuvwxyz234567"
#define PARTIAL_LETTER_COUNT 6u
#define PARTIAL_SUFFIX ".partial"
#define READY_SUFFIX ".ready" /* of a shard that waits for others; not longer */
#define PARTIAL_EXTRA_LEN (1 + PARTIAL_LETTER_COUNT + sizeof(PARTIAL_SUFFIX) - 1)

/* Six letters of a number. */
void partial_letters(uint64_t number, char ret_letters[PARTIAL_LETTER_COUNT + 1]);

/* Is `name` that of a partial file, or of a ready one? Then NAME has *ret_len bytes of it. */
bool partial_name_parse(const char *name, size_t *ret_len);

enum leftover {
    LEFTOVER_REMOVED,
    LEFTOVER_BUSY,    /* somebody holds its lock */
    LEFTOVER_UNKNOWN, /* it can't be told whether somebody writes it */
};

struct leftovers {
    /* Are partial files of this name (`len` bytes) to be removed? */
    bool (*match)(const void *ctx, const char *name, size_t len);
    const void *match_ctx;
    /* Called for each that matches and is this user's; `name` is the partial file's. */
    void (*found)(void *ctx, enum leftover what, const char *name);
    void *ctx;
};

/* Look through a folder. What can't be examined is left alone. */
void leftovers_remove(int folder_fd, const struct leftovers *l);

/*
 * Lock a partial file that was just made: -EAGAIN if somebody took it for a leftover
 * meanwhile, and another has to be made. A filesystem without locks is no error.
 */
int leftovers_claim(int fd);

#endif
