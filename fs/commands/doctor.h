/*
 * This node's limits and faults as findings, which the checks collect line by line: those of
 * self-test, too. Nothing is guessed: what can't be found out is reported as unknown.
 */
#ifndef ONEPOT_DOCTOR_H
#define ONEPOT_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum finding_kind {
    FINDING_FACT,
    FINDING_GOOD,
    FINDING_WARNING, /* it works, but not as well as it could */
    FINDING_WRONG,   /* it does not work */
};

#define FINDING_TEXT_MAX 768

struct finding {
    enum finding_kind kind;
    const char *section; /* a literal such as "mounting" */
    char subject[256];   /* "/dev/fuse" */
    char text[FINDING_TEXT_MAX];
    char advice[FINDING_TEXT_MAX]; /* "" or what to do */
};

struct findings { /* a vector, for vector_free */
    struct finding *at;
    size_t count, capacity;
    const char *section; /* of the findings that are added now */
    bool failed;         /* out of memory: some findings are missing */
    /* The archive, if one was named: 0 bytes if it is none that could be read. */
    uint64_t archive_bytes;
    bool is_local;  /* it is on this node */
    bool is_packed; /* it is compressed in one piece */
};

void finding_add(struct findings *findings, enum finding_kind kind, const char *subject,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Advise what to do about the finding that was added last. */
void finding_advise(struct findings *findings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * All but mounting: an archive or a mount point of this user's (`path`; NULL: none), memory,
 * CPUs, limits, places and copies of archives on this node, a job of several nodes, Python's
 * module, dead mounts.
 */
void doctor_node(struct findings *findings, const char *path);

/* ---- parts of it, for tests ---- */

void doctor_archive(struct findings *findings, const char *path);

/*
 * Limits of the process and of the kernel's FUSE. `archive_bytes`: size of an archive that
 * should fit; 0: none.
 */
void doctor_limits(struct findings *findings, uint64_t archive_bytes);

/*
 * In a job of several nodes: how they best come by the archive. `place`: where --stage would
 * copy it; NULL: it fits nowhere.
 */
void doctor_job(struct findings *findings, const char *path, const char *place);

#endif
