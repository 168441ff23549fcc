/*
 * Foreign streams (gzip, bzip2, xz; deflate in a zip) that can be entered in the middle: a scan
 * cuts one into parts, each of which can be decompressed alone. Each kind is a table, listed in
 * archive/meson.build; without the room `streams` there is none, and a compressed tar is
 * unpacked.
 *
 *     stream_scan_new(source, "gzip", helpers, &scan);
 *     stream_scan_begin(scan, offset, end, &fault);
 *     do stream_scan_next(scan, &buffer, &fault, &part); while (!part.is_last);
 *     behind = scan->offset;
 *     stream_scan_free(scan);
 *
 * Threads: one at a time. Libraries get bytes of unknown origin here: in a sandbox only.
 */
#ifndef ONEPOT_STREAM_H
#define ONEPOT_STREAM_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "builder.h"
#include "fault.h"
#include "helpers.h"
#include "source.h"

/* Memory that grows with the parts: of the caller, who frees `at`. All zero is empty. */
struct stream_buffer {
    uint8_t *at;
    size_t room;
};

/* Makes room for `len` bytes; where there was too little, what was there is dropped. -ENOMEM.
 */
static inline int stream_buffer_room(struct stream_buffer *buffer, size_t len)
{
    if (len <= buffer->room)
        return 0;
    free(buffer->at);
    buffer->at = malloc(len);
    buffer->room = buffer->at ? len : 0;
    return buffer->at ? 0 : -ENOMEM;
}

struct stream_part {
    struct builder_block
        block;                /* with its codec and point; block_bytes is its content's length,
                                 which may be 0 for the last part: leave that one out */
    struct block_point point; /* valid until the next call */
    bool is_last;             /* of its stream */
};

/* The head of each kind's scan. */
struct stream_scan {
    const struct stream *stream;
    const char *name; /* of the compression, for messages */
    struct source *source;
    struct helpers *helpers; /* that decompress ahead; or NULL */
    uint64_t start, end;     /* what was asked for */
    /*
     * How far the source was used. After the last part: where the last stream ends, or what
     * follows is no stream.
     */
    uint64_t offset;
    size_t count; /* of the parts; 0: none, or only the scan finds out (all but xz) */
    /* deflate: the CRC-32 and the length of the content so far */
    uint32_t crc;
    uint64_t bytes;
};

/* State of unpacking between two parts; the kind's own. */
struct stream_memory {
    void (*free)(struct stream_memory *memory);
};

struct stream {
    const char *name; /* of the compression */
    enum codec codec; /* what an index says of it */

    size_t scan_bytes; /* of its scan, which begins with the head; the rest is zero at first */

    /* stream_scan_begin, after start, end and offset were set. */
    int (*begin)(struct stream_scan *scan, struct fault *fault);
    /* stream_scan_next; the part is all zero. */
    int (*next)(struct stream_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                struct stream_part *ret_part);
    /* Frees what the scan has, but not itself. */
    void (*end)(struct stream_scan *scan);

    /* codec_unpack_part, without comparing sums. *memory is NULL at first. NULL: the parts have
     * no points. */
    int (*unpack)(struct stream_memory **memory, const struct block_point *point,
                  const void *packed, size_t packed_len, void *block, size_t size);
    /* codec_unpack_start, likewise: damage need not be noticed. NULL: it can't do that. */
    int (*unpack_start)(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t len);
};

/*
 * -ENOTSUP: streams of this compression can't be entered, or this program can't. `helpers`,
 * which may be NULL, decompress ahead. -ENOMEM.
 */
int stream_scan_new(struct source *source, const char *compression, struct helpers *helpers,
                    struct stream_scan **ret_scan);

/*
 * The first stream begins at `offset`; all is read up to `end`. -ENOTSUP: its blocks are too
 * long, or can't be found; -EUCLEAN; errors of reading. The fault names no member.
 */
int stream_scan_begin(struct stream_scan *scan, uint64_t offset, uint64_t end,
                      struct fault *fault);

/*
 * Decompresses the next part into the buffer, whose memory may be exchanged. -ENOTSUP: it is
 * too long, or its end can't be found; -EUCLEAN; errors of reading.
 */
int stream_scan_next(struct stream_scan *scan, struct stream_buffer *buffer,
                     struct fault *fault, struct stream_part *ret_part);
void stream_scan_free(struct stream_scan *scan); /* NULL is fine */

#endif
