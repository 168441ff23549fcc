/*
 * The tar back end: telling a tar by its first bytes, then all members, into an index.
 */
#include <stdlib.h>

#include "backend.h"
#include "fuzz.h"

#define HEAD_BYTES 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source *source = fuzz_source(data, size);
    struct progress progress = {0};
    struct fault fault = {0};
    struct builder *builder;
    const char *compression;
    size_t head = size < HEAD_BYTES ? size : HEAD_BYTES;
    struct builder_header header = {.format = FORMAT_TAR, .archive_bytes = size};

    backend_tar.probe(source, data, head);
    backend_tar.is_packed(data, head, &compression);
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
