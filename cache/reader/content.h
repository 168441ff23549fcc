/*
 * All bytes of a member, in order, for who has to see each of them once: an extraction, a
 * check of sums. Unlike reader_get it hands out memory that stays what it is (a copy, or a
 * pinned block, never a mapping), so that a hash of it holds for what is written from it;
 * and where small members lie close together, one read of the archive serves several.
 *
 *     content_new(pot, reader, CONTENT_OWN_BLOCKS, &content);
 *     content_read(content, position, 0, node.size_bytes, sink, ctx, &where);
 *
 * Threads: a content belongs to one thread.
 */
#ifndef ONEPOT_CONTENT_H
#define ONEPOT_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "pot.h"
#include "reader.h"

struct content;

#define CONTENT_NEAR_BYTES (256u << 10) /* what one read of the archive takes in at most */

/* Where compressed blocks are decompressed to. */
enum content_blocks {
    CONTENT_SHARED_BLOCKS, /* the reader's cache: where others read at random */
    CONTENT_OWN_BLOCKS,    /* memory of the content: where it goes through the whole archive */
};

/* Pot and reader must outlive it. -ENOMEM. */
int content_new(struct pot *pot, struct reader *reader, enum content_blocks blocks,
                struct content **ret_content);
void content_free(struct content *content); /* NULL is fine */

/* See reader_scratch_skip_sums. With blocks of its own, before the first content_read. */
void content_skip_sums(struct content *content);

/* Bytes of the archive up to this offset will be wanted soon: 0 for none. */
void content_expect(struct content *content, uint64_t end);

/* Some bytes, that lie at `offset` in the file. Other than 0 ends the read. */
typedef int content_sink(void *ctx, const void *bytes, size_t len, uint64_t offset);

/*
 * Bytes [from, to) of the regular file at `position`, but for its holes; none of them lies
 * behind its end. 0; what the sink returned; or an error of reading, as reader_get has
 * them: then *ret_where is the offset in the archive, or FAULT_NO_OFFSET if that is not
 * known. (It is not touched otherwise.)
 */
int content_read(struct content *content, uint32_t position, uint64_t from, uint64_t to,
                 content_sink *sink, void *ctx, uint64_t *ret_where);

#endif
