/*
 * Errors as values. Functions return 0 or -errno; one that knows more (which member, which
 * offset) fills a struct fault that its caller passes. Only the program's edge (fs/) turns a
 * fault into a line of text.
 *
 * A fault is plain memory without pointers, so the indexing child can leave one in shared
 * memory for its parent. Every `struct fault *` parameter may be NULL.
 */
#ifndef ONEPOT_FAULT_H
#define ONEPOT_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#define FAULT_NO_OFFSET UINT64_MAX

struct fault {
    int err;          /* the errno, positive; 0: nothing was recorded */
    uint64_t offset;  /* byte offset in the file, or FAULT_NO_OFFSET */
    char member[512]; /* raw bytes of the member's path, maybe truncated; "" if none */
    char what[256];   /* the fault, no newline: "size 99 lies past the end of file" */
    char advice[192]; /* what to do about it, or "" */
    char file[512];   /* which file it is about; "": the one that the caller named */
};

/*
 * Record a fault and return `err` (a negative errno), so that a caller can write `return
 * fault_set(f, -EBADMSG, name, off, "...", ...)`. The first fault stands: a fault already set
 * is not overwritten. `member` may be NULL.
 */
int fault_set(struct fault *f, int err, const char *member, uint64_t offset, const char *format,
              ...) __attribute__((format(printf, 5, 6)));

/* The same, with advice on what to do about it, which belongs to the recorded fault alone. */
int fault_set_advised(struct fault *f, int err, const char *member, uint64_t offset,
                      const char *advice, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* fault_set without an offset: `what`, and the name of the error. */
int fault_set_errno(struct fault *f, int err, const char *member, const char *what);

/* The same, of a read that failed with `err`. */
int fault_set_read(struct fault *f, int err, const char *member, uint64_t offset);

/* Set the advice of a fault already set; does nothing if no error is recorded. */
void fault_advise(struct fault *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Name the file that a fault already set is about, unless it is named: for callers that named
 * several at once.
 */
void fault_set_file(struct fault *f, const char *file);

/*
 * Advice on the limit behind an error, such as "; raise the limit of open files ('ulimit
 * -n')", or "" if no limit is the cause.
 */
const char *fault_limit(int err);

/*
 * The name of an error (errno, of either sign): "No such file or directory". Any thread;
 * valid until its next call in this thread.
 */
const char *fault_errno(int err);

/*
 * Format the line for a person: "FILE: MEMBER: reason (offset N); remedy". Control bytes and
 * bytes that are not valid UTF-8 are written as \xNN. Returns the length that snprintf would. A
 * file that the fault names comes before `file`. With nothing recorded, describes `err` by
 * fault_errno.
 */
int fault_describe(const struct fault *f, int err, const char *file, char *buf,
                   unsigned long size);

#endif
