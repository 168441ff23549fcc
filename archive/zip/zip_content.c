/*
 * Reads whole members into memory: a compressed one is one block of at most 64 MiB, which the
 * caller has checked. Stored members may be longer, and are read in steps.
 */
#include "zip_content.h"

#include <errno.h>
#include <stdlib.h>

#include "checksum.h"
#include "cleanup.h"
#include "codec.h"
#include "numbers.h"

#define STEP_BYTES (1u << 20)
#define PROOF_RATIO 64u /* of all proven content to the archive: text has 10 */
#define PROOF_FLOOR_BYTES (UINT64_C(256) << 20)

void zip_content_end(struct zip_content *content)
{
    codec_context_free(content->codecs);
    content->codecs = NULL;
}

static int content_unpack(struct zip_content *c, const struct zip_entry *e, enum codec codec,
                          uint64_t data, uint8_t *bytes)
{
    auto_free uint8_t *packed = malloc(e->packed_bytes ? e->packed_bytes : 1);
    size_t len;
    int r = packed ? source_read(c->source, packed, e->packed_bytes, data) : -ENOMEM;
    if (r == 0 && !c->codecs)
        r = codec_context_new(&c->codecs);
    if (r == 0)
        r = codec_unpack(c->codecs, codec, packed, e->packed_bytes, bytes, e->size_bytes, &len);
    return r == -ENOTSUP || (r == 0 && len != e->size_bytes) ? -EUCLEAN : r;
}

int zip_content_read(struct zip_content *c, const struct zip_entry *e, enum codec codec,
                     uint64_t data, uint8_t **ret_bytes)
{
    auto_free uint8_t *bytes = malloc(e->size_bytes ? e->size_bytes : 1);
    int r = !bytes                    ? -ENOMEM
            : e->method == ZIP_STORED ? source_read(c->source, bytes, e->size_bytes, data)
                                      : content_unpack(c, e, codec, data, bytes);
    if (r == 0 && checksum_available(SUM_CRC32) &&
        checksum_of(SUM_CRC32, bytes, e->size_bytes) != e->crc32)
        r = -EUCLEAN;
    if (r == 0)
        *ret_bytes = steal_ptr(&bytes);
    return r;
}

static int content_prove_stored(struct zip_content *c, const struct zip_entry *e, uint64_t data)
{
    auto_free uint8_t *bytes = malloc(STEP_BYTES);
    struct checksum *sum = NULL;
    int r = bytes ? checksum_new(SUM_CRC32, &sum) : -ENOMEM;
    if (r == 0)
        checksum_reset(sum);
    for (uint64_t at = 0; r == 0 && at < e->size_bytes; at += STEP_BYTES) {
        size_t len = (size_t)min_u64(e->size_bytes - at, STEP_BYTES);
        r = source_read(c->source, bytes, len, data + at);
        if (r == 0)
            checksum_add(sum, bytes, len);
    }
    if (r == 0 && !checksum_is(sum, e->crc32))
        r = -EUCLEAN;
    checksum_free(sum);
    return r;
}

int zip_content_prove(struct zip_content *c, const struct zip_entry *e, enum codec codec,
                      uint64_t data)
{
    uint64_t most = max_u64(source_size(c->source), PROOF_FLOOR_BYTES / PROOF_RATIO);
    if (!checksum_available(SUM_CRC32))
        return -EUCLEAN;
    if (__builtin_add_overflow(c->proven_bytes, e->size_bytes, &c->proven_bytes) ||
        c->proven_bytes / PROOF_RATIO > most)
        return -E2BIG;
    if (e->method == ZIP_STORED)
        return content_prove_stored(c, e, data);
    auto_free uint8_t *bytes = NULL;
    return zip_content_read(c, e, codec, data, &bytes);
}
