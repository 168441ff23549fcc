/*
 * Partial files left behind by killed processes. The writer of a partial file holds a lock on
 * it (flock), which the kernel releases however the process ends. So a partial file that can
 * be locked has no writer.
 *
 * On some network filesystems a lock holds on one node only, and the writer may be on another.
 * There a partial file must also have been unmodified for a while; until then it is only
 * reported. Ready and kept files are complete, and nobody writes to them.
 */
#ifndef ONEPOT_LEFTOVERS_H
#define ONEPOT_LEFTOVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/* A partial file of NAME is called NAME.XXXXXX.partial, with six of these letters. */
#define PARTIAL_LETTERS "abcdefghijklmnopqrstuvwxyz234567"
#define PARTIAL_LETTER_COUNT 6u
#define PARTIAL_SUFFIX ".partial"
#define READY_SUFFIX ".ready" /* of a waiting shard; no longer than PARTIAL_SUFFIX */
#define KEPT_SUFFIX ".kept"   /* of what an interrupted run has written (output_keep) */
#define PARTIAL_EXTRA_LEN (1 + PARTIAL_LETTER_COUNT + sizeof(PARTIAL_SUFFIX) - 1)

/* Encode a number as six letters. */
void partial_letters(uint64_t number, char ret_letters[PARTIAL_LETTER_COUNT + 1]);

/* Does `name` belong to a partial, ready or kept file? If so, NAME is its first *ret_len bytes.
 */
bool partial_name_parse(const char *name, size_t *ret_len);

enum leftover {
    LEFTOVER_REMOVED,
    LEFTOVER_BUSY,    /* another process holds its lock */
    LEFTOVER_UNKNOWN, /* may still be written */
};

/* Which files, by the ends of their names. */
enum leftovers_kind {
    LEFTOVERS_ALL,
    LEFTOVERS_TO_RESUME, /* partial ones; kept files stay, and ready ones become kept files */
    LEFTOVERS_KEPT,
};

struct leftovers {
    enum leftovers_kind kind;
    /* Should partial files of this name (`len` bytes) be removed? */
    bool (*match)(const void *ctx, const char *name, size_t len);
    const void *match_ctx;
    /* Called for each match that belongs to this user; `name` is the partial file's. */
    void (*found)(void *ctx, enum leftover what, const char *name);
    void *ctx;
};

/* Search a folder and remove leftovers. Files that can't be examined are left alone. */
void leftovers_remove(int folder_fd, const struct leftovers *l);

/*
 * Lock a partial file just created. -EAGAIN: another process took it for a leftover meanwhile,
 * and the caller must create another. A filesystem without locks is no error.
 */
int leftovers_claim(int fd);

#endif
