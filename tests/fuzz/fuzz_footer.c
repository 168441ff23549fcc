/*
 * onepot's own archive: the footer, the place of the index that it names, that index. The
 * footer's sum is set right first.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "backend.h"
#include "fuzz.h"
#include "onepot_format.h"

#define FOOTER_BYTES 512u
#define HEAD_BYTES 65536u

static void resum(uint8_t *bytes, size_t size)
{
    if (size < FOOTER_BYTES)
        return;
    uint8_t *footer = bytes + size - FOOTER_BYTES;
    uint64_t sum = XXH3_64bits(footer, FOOTER_BYTES - 8), place[2];
    memcpy(footer + FOOTER_BYTES - 8, &sum, sizeof(sum));
    memcpy(place, footer + 56, sizeof(place)); /* offset and length of the index */
    if (place[0] <= size && place[1] <= size - place[0] && place[0] % 8 == 0)
        fuzz_resum(bytes + place[0], place[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct embedded_index where;
    struct index *index;
    struct fault fault = {0};
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes)
        abort();
    memcpy(bytes, data, size);
    resum(bytes, size);
    struct source *source = fuzz_source(bytes, size);
    backend_onepot.probe(source, bytes, size < HEAD_BYTES ? size : HEAD_BYTES);
    free(bytes);
    if (backend_onepot.trailer->find(source, &fault, &where) == 0) {
        if (where.offset > size || where.length > size - where.offset)
            abort();
        if (index_open(source, where.offset, where.length, &fault, &index) == 0) {
            fuzz_walk(index);
            index_close(index);
        }
    }
    source_close(source);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    struct builder *builder;
    struct builder_header header = {.archive_bytes = 10240, .end_marker_offset = 8192};
    struct node member = {.mode = 0100644, .size_bytes = 100, .data_offset = 512};
    uint64_t bytes;
    uint32_t inode;
    int fd = memfd_create("seed", MFD_CLOEXEC);

    if (number > 0) {
        close(fd);
        return NULL;
    }
    if (fd < 0 || builder_new(&builder) < 0 ||
        builder_add(builder, "file", 4, &member, NULL, &inode) < 0 ||
        onepot_format_append(builder, &header, 10240, fd, NULL, &bytes) < 0)
        abort();
    builder_free(builder);
    uint8_t *seed = malloc(bytes);
    if (!seed || pread(fd, seed, bytes, 0) != (ssize_t)bytes)
        abort();
    close(fd);
    *ret_size = bytes;
    return seed;
}
