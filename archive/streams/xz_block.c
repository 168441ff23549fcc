/*
 * A dictionary larger than the content is of no use. So the header's claim is reduced to that,
 * and no limit on memory is needed.
 */
#include "xz_block.h"

#include <errno.h>
#include <stdlib.h>

#include <lzma.h>

static int xz_error(lzma_ret r)
{
    return r == LZMA_MEM_ERROR ? -ENOMEM : r == LZMA_OPTIONS_ERROR ? -ENOTSUP : -EUCLEAN;
}

static void limit_dictionary(lzma_filter *filters, size_t len)
{
    for (lzma_filter *f = filters; f->id != LZMA_VLI_UNKNOWN; f++) {
        lzma_options_lzma *options = f->options;
        if (f->id == LZMA_FILTER_LZMA2 && options->dict_size > len)
            options->dict_size = len > LZMA_DICT_SIZE_MIN ? (uint32_t)len : LZMA_DICT_SIZE_MIN;
    }
}

/* Decodes what follows the header, which is read already. */
static int unpack_body(lzma_block *block, const uint8_t *packed, size_t packed_len,
                       uint8_t *out, size_t len)
{
    size_t in_at = block->header_size, out_at = 0;
    if (block->uncompressed_size != LZMA_VLI_UNKNOWN && block->uncompressed_size != len)
        return -EUCLEAN;
    block->uncompressed_size = len;
    limit_dictionary(block->filters, len);
    lzma_ret r =
        lzma_block_buffer_decode(block, NULL, packed, &in_at, packed_len, out, &out_at, len);
    if (r != LZMA_OK)
        return xz_error(r);
    return in_at == packed_len && out_at == len ? 0 : -EUCLEAN;
}

int xz_block_unpack(const uint8_t *packed, size_t packed_len, unsigned check, uint8_t *out,
                    size_t len)
{
    lzma_filter filters[LZMA_FILTERS_MAX + 1];
    lzma_block block = {.version = 0, .check = (lzma_check)check, .filters = filters};
    if (packed_len == 0 || packed[0] == 0)
        return -EUCLEAN;
    block.header_size = lzma_block_header_size_decode(packed[0]);
    if (block.header_size > packed_len)
        return -EUCLEAN;
    lzma_ret r = lzma_block_header_decode(&block, NULL, packed);
    if (r != LZMA_OK)
        return xz_error(r);
    int err = unpack_body(&block, packed, packed_len, out, len);
    for (size_t i = 0; i < LZMA_FILTERS_MAX && filters[i].id != LZMA_VLI_UNKNOWN; i++)
        free(filters[i].options);
    return err;
}
