/*
 * All bytes of a member, in order, for callers that must see each of them once: an extraction,
 * or a check of sums. Unlike reader_get it hands out memory that does not change (a copy, or a
 * pinned block, never a mapping). So a hash of the memory holds for the bytes written from it.
 * If small members lie close together, one read of the archive serves several.
 *
 *     content_new(fileset, reader, CONTENT_THREAD_BLOCKS, &content);
 *     content_read(content, position, 0, node.size_bytes, sink, ctx, &where);
 *
 * Threads: a content belongs to one thread.
 */
#ifndef ONEPOT_CONTENT_H
#define ONEPOT_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "fileset.h"
#include "reader.h"

struct content;

#define CONTENT_NEAR_BYTES (256u << 10) /* most bytes in one read of the archive */

/* Where to decompress blocks. */
enum content_blocks {
    CONTENT_SHARED_BLOCKS, /* in the reader's cache: if others read at random */
    CONTENT_THREAD_BLOCKS, /* in memory of the content: to go through the whole archive */
};

/* Fileset and reader must outlive it. -ENOMEM. */
int content_new(struct fileset *fileset, struct reader *reader, enum content_blocks blocks,
                struct content **ret_content);
void content_free(struct content *content); /* NULL is fine */

/*
 * From now on, does not compare the sums inside compressed blocks, for callers that compare the
 * files' sums. It saves time, and a damaged block does not make its undamaged files unreadable.
 * With CONTENT_THREAD_BLOCKS, call it before the first content_read.
 */
void content_skip_sums(struct content *content);

/* Announces that the bytes of the archive up to this offset will be wanted soon; 0: none. */
void content_expect(struct content *content, uint64_t end);

/* Takes bytes that lie at `offset` in the file. A result other than 0 ends the read. */
typedef int content_sink(void *ctx, const void *bytes, size_t len, uint64_t offset);

/*
 * The DIGEST_TREE of the fileset (index.h): its index's, or else made by reading the files
 * whose sums the index lacks, in so many threads. `how` may have a progress, which one of the
 * threads calls at a time, and `cancelled`. -ECANCELED, -ENOMEM, or errors of reading, with a
 * fault.
 */
int content_digest(struct fileset *fileset, unsigned threads, const struct fileset_options *how,
                   struct fault *fault, uint8_t ret_digest[INDEX_DIGEST_BYTES]);

/*
 * Reads the bytes [from, to) of the regular file at `position`, except its holes and anything
 * behind its end. Returns 0, the sink's result, or an error of reading, as from reader_get.
 * Only after an error of reading, *ret_where is set: to the offset in the archive, or to
 * FAULT_NO_OFFSET if that is not known.
 */
int content_read(struct content *content, uint32_t position, uint64_t from, uint64_t to,
                 content_sink *sink, void *ctx, uint64_t *ret_where);

#endif
