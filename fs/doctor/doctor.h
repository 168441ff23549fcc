/*
 * Reports this node's limits and faults as findings, which the checks collect line by line and
 * commands/doctor.c prints. Nothing is guessed: what can't be found out is reported as unknown.
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

struct findings { /* a vector */
    struct finding *at;
    size_t count, capacity;
    const char *section; /* of the findings that are added now */
    bool failed;         /* out of memory: some findings are missing */
};

void findings_free(struct findings *findings);

void finding_add(struct findings *findings, enum finding_kind kind, const char *subject,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Advise what to do about the finding that was added last. */
void finding_advise(struct findings *findings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Can programs under `run` read without the mount? */
void doctor_preload(struct findings *findings);

/* Memory, CPUs, limits. */
void doctor_memory(struct findings *findings);
void doctor_cpus(struct findings *findings);

/*
 * Places of this node for copies and mount points. `archive_bytes`: size of an archive that
 * should fit; 0: none. Returns the place where --stage would copy it; NULL: it fits in none.
 */
const char *doctor_storage(struct findings *findings, uint64_t archive_bytes);

/* Limits of the process and of the kernel's FUSE. `archive_bytes`: as above. */
void doctor_limits(struct findings *findings, uint64_t archive_bytes);

/* Copies of archives that this user has on this node. */
void doctor_copies(struct findings *findings);

/* Does `import onepot` find this project's module? Says nothing where it finds none. */
void doctor_python(struct findings *findings);

/* Type of the filesystem that an open file or folder is in, such as "tmpfs". */
void doctor_filesystem(int fd, char type[32]);

/* Dead mounts of this user. */
void doctor_leftovers(struct findings *findings);

struct doctor_archive {
    uint64_t bytes; /* 0: it is none that could be read */
    bool is_local;  /* on this node */
    bool is_packed; /* compressed in one piece */
};

/*
 * In a job of several nodes: how they best come by the archive. `place`: what doctor_storage
 * returned.
 */
void doctor_job(struct findings *findings, const char *path,
                const struct doctor_archive *archive, const char *place);

/* An archive, or a mount point of this user's. */
void doctor_archive(struct findings *findings, const char *path,
                    struct doctor_archive *ret_archive);
bool doctor_mount(struct findings *findings, const char *path);

#endif
