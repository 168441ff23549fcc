/*
 * Content of a zip's members, read while the zip is indexed: targets of symbolic links, and
 * members whose own header says something else than the central directory.
 *
 * Threads: none. It calls libraries with bytes of unknown origin: in a sandbox only.
 */
#ifndef ONEPOT_ZIP_CONTENT_H
#define ONEPOT_ZIP_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "index.h"
#include "source.h"
#include "zip_records.h"

struct codec_context;

/* All zeros to begin with, but for the source. */
struct zip_content {
    const struct source *source;
    struct codec_context *codecs;
    uint64_t proven_bytes; /* that zip_content_prove has read so far */
};

void zip_content_end(struct zip_content *content);

/*
 * The member's content, which begins at `data`, decompressed and compared with its length and
 * sum. The caller frees it. -EUCLEAN: it is damaged, or compressed as nobody here can read it.
 */
int zip_content_read(struct zip_content *content, const struct zip_entry *entry,
                     enum codec codec, uint64_t data, uint8_t **ret_bytes);

/*
 * Does the data have the length and sum that the entry tells? 0; -EUCLEAN: no; -E2BIG: so much
 * was compared already that this archive must be made to take time.
 */
int zip_content_prove(struct zip_content *content, const struct zip_entry *entry,
                      enum codec codec, uint64_t data);

#endif
