/*
 * Shared by the files of this room:
 *
 *   pour.c            the parent: sandbox, report, output; and the kind of input
 *   pour_stream.c     the bytes of the input, decompressed
 *   pour_member.c     members to the writer
 *   pour_container.c  members of other archives than tars
 */
#ifndef ONEPOT_POUR_PRIVATE_H
#define ONEPOT_POUR_PRIVATE_H

#include <locale.h>
#include <sys/types.h>

#include "pour.h"
#include "selection.h"
#include "tar_members.h"
#include "unknown_format.h"
#include "vector.h"

struct archive;
struct archive_entry;

/* ---- pour_stream.c ---- */

/* The bytes that libarchive gets, block by block, as struct tar_stream wants them. */
struct pour_stream {
    int fd;
    struct progress *progress;
    struct fault *fault;
    int error;               /* sticky */
    const char *compression; /* NULL: none */
    uint64_t given;          /* bytes that came out */
    struct pour_unpacker *unpacker;
    struct pour_block {
        uint8_t *bytes;
        size_t len;
    } blocks[2];
    int last;        /* the block that was read last */
    bool is_waiting; /* it was read to recognize the format, and is to be given again */
    bool is_at_end;
};

/* The next bytes of the input, counted in progress->bytes_done. 0: its end; or -errno. */
ssize_t pour_read_input(int fd, struct progress *progress, void *bytes, size_t len);

/* Reads the first bytes, which *ret_head points to. Ends with pour_stream_close in any case. */
int pour_stream_open(struct pour_stream *s, int fd, struct progress *progress,
                     struct fault *fault, const uint8_t **ret_head, size_t *ret_len);
void pour_stream_close(struct pour_stream *s);

/* For libarchive and struct tar_stream; the context is the stream. */
ssize_t pour_stream_next(struct archive *a, void *stream, const void **ret_bytes);

/*
 * Reads to the end, so that who writes the stream is not cut off, and so that sums at its end
 * are compared.
 */
int pour_stream_drain(struct pour_stream *s);

/* ---- pour_member.c ---- */

typedef VECTOR(char) pour_text;

struct pour {
    const struct pack_options *options;
    const struct pour_input *input;
    struct selection selection; /* members that are left out */
    struct writer *writer;
    struct progress *progress;
    struct fault *fault;
    locale_t locale; /* of UTF-8; 0: this system has none */
    int report_fd;
    struct pack_result result;
    uint64_t reported;
    int output_error; /* of the writer: the fault is not about the input */
    struct tar_oddities odd;
    pour_text path, target; /* of the current member, cleaned */
    pax_xattrs xattrs;
    VECTOR(struct pax_extent) extents;
};

/* The functions of struct tar_taker; the context is the struct pour. */
int pour_add(void *pour, const char *path, const struct builder_member *member,
             struct archive *a, struct archive_entry *entry, struct fault *fault);
int pour_link(void *pour, const char *path, const char *target,
              const struct builder_member *member, struct fault *fault);
int pour_leave_out(void *pour, const struct fault *why);
void pour_free(struct pour *p);

/* ---- pour_container.c ---- */

struct pour_format {
    const char *name;
    int (*enable)(struct archive *a);
    bool seeks; /* its directory is at its end */
};
/* NULL: nothing that is packed. */
const struct pour_format *pour_find_format(const uint8_t *head, size_t len);

/* Does a RAR archive say that it is one of several volumes? libarchive reads the first alone.
 */
bool pour_is_rar_volume(const uint8_t *head, size_t len);

int pour_container(struct pour *p, struct pour_stream *stream,
                   const struct pour_format *format);

/* ---- pour.c ---- */

/* Packs the whole input, in the child. */
int pour_read(struct pour *p);

/* The child's report to the parent, in a file of just this size. */
#define POUR_REPORTS 200u

struct pour_report {
    struct pack_result result;
    uint64_t count; /* of faults below */
    struct fault faults[POUR_REPORTS];
};

#endif
