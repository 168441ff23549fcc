/*
 * An archive as a source of the packer. Its index lists the members. A function of the layer
 * above reads the bytes, which may have to be decompressed.
 *
 * cache/reader/archive_input.h makes an input from any archive that onepot opens.
 */
#ifndef ONEPOT_INPUT_H
#define ONEPOT_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "index.h"

struct input {
    const struct index *index;

    /*
     * Reads up to `len` bytes of the regular file at inode position `position`. *ret_len is
     * less than `len` only at the file's end. Many threads may call it at once. Errors: those
     * of reader_copy.
     */
    int (*read)(void *ctx, uint32_t position, uint64_t offset, void *bytes, size_t len,
                size_t *ret_len);
    /* The file with the data of the one at `position`: one of those that make the archive. */
    const char *(*file)(void *ctx, uint32_t position);
    void *ctx;
};

#endif
