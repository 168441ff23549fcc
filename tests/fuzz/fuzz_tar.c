/*
 * The tar back end: telling a tar by its first bytes, then all members, into an index. The sums
 * of headers are set right first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "format_numbers.h"
#include "fuzz.h"

#define HEAD_BYTES 65536u
#define BLOCK_BYTES 512u

/* For each block that says that it is a header ("ustar"). */
static void resum(uint8_t *tar, size_t size)
{
    for (size_t at = 0; at + BLOCK_BYTES <= size; at += BLOCK_BYTES) {
        uint8_t *header = tar + at;
        unsigned sum = 0;
        if (memcmp(header + 257, "ustar", 5) != 0)
            continue;
        memset(header + 148, ' ', 8);
        for (size_t i = 0; i < BLOCK_BYTES; i++)
            sum += header[i];
        snprintf((char *)header + 148, 8, "%06o", sum);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *tar = malloc(size ? size : 1);
    if (!tar)
        abort();
    memcpy(tar, data, size);
    resum(tar, size);
    struct source *source = fuzz_source(tar, size);
    struct progress progress = {0};
    struct fault fault = {0};
    struct builder *builder;
    const char *compression;
    size_t head = size < HEAD_BYTES ? size : HEAD_BYTES;
    struct builder_header header = {
        .format = FORMAT_TAR, .archive_bytes = size, .ignores_zeros = size & 1};

    backend_tar.probe(source, tar, head);
    backend_tar.stream->is_packed(NULL, tar, head, &compression);
    free(tar);
    if (builder_new(&builder) < 0)
        abort();
    builder_set_archive_size(builder, size);
    if (backend_tar.index(source, builder, &header, &progress, &fault) == 0)
        fuzz_walk_built(builder, &header);
    else if (!fault.err)
        abort(); /* a person must be told what is wrong */
    builder_free(builder);
    source_close(source);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static const char *const formats[] = {"pax", "gnutar", "ustar", "v7tar"};
    return number < 4 ? fuzz_make_tar(formats[number], ret_size) : NULL;
}
