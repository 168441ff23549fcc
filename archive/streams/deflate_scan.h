/*
 * Cuts a stream of deflate into parts that can be decompressed alone (codec
 * CODEC_DEFLATE_POINT): it is decompressed once, from its start, and cut between two of its
 * blocks where a point pays. Each part needs up to 32 KB of what came before it, its window,
 * and that is what an index of the parts costs: about one byte for each hundred of the stream.
 * So a part decompresses to DEFLATE_PART_LEAST bytes or more, whatever keeps the windows within
 * that.
 *
 *     deflate_scan_new(source, "gzip", &scan);
 *     deflate_scan_begin(scan, offset, end);
 *     do deflate_scan_next(scan, &buffer, &fault, &part); while (!part.is_last);
 *     behind = deflate_scan_offset(scan);
 *     deflate_scan_free(scan);
 *
 * Of a part, only the bytes of the window that it refers to are kept; the others are zeros, and
 * take no room when they are compressed.
 *
 * Threads: none. It calls zlib and ISA-L with bytes of unknown origin: in a sandbox only.
 */
#ifndef ONEPOT_DEFLATE_SCAN_H
#define ONEPOT_DEFLATE_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "source.h"
#include "stream.h"

#define DEFLATE_PART_LEAST (512u << 10)
#define DEFLATE_PART_LARGE (8u << 20) /* a part that is longer ends where it can */
#define DEFLATE_PART_MAX (64u << 20)  /* if its stream can't be cut before, it can't be used */

struct deflate_scan;

/* `name` is the format's, for messages: "gzip". -ENOMEM. */
int deflate_scan_new(struct source *source, const char *name, struct deflate_scan **ret_scan);
void deflate_scan_free(struct deflate_scan *scan); /* NULL is fine */

/* A stream begins at `offset`, and has to end at `end` or before. */
int deflate_scan_begin(struct deflate_scan *scan, uint64_t offset, uint64_t end);

/*
 * Decompresses the next part into the buffer. -ENOTSUP: the stream can't be cut often enough;
 * -EUCLEAN: it is damaged (the fault says where, and names no member); errors of reading.
 */
int deflate_scan_next(struct deflate_scan *scan, struct stream_buffer *buffer,
                      struct fault *fault, struct stream_part *ret_part);

/*
 * From now on cuts the stream wherever that is possible, whatever the windows take: for tests,
 * whose streams are short.
 */
void deflate_scan_cut_often(struct deflate_scan *scan);

/* Leaves ISA-L out: for tests, which compare. Before the first stream. */
void deflate_scan_with_zlib(struct deflate_scan *scan);

/* How far the source was used: after the last part, where the stream ends. */
uint64_t deflate_scan_offset(const struct deflate_scan *scan);

/* The CRC-32 and the length of the stream's content so far. */
uint32_t deflate_scan_crc(const struct deflate_scan *scan);
uint64_t deflate_scan_bytes(const struct deflate_scan *scan);

#endif
