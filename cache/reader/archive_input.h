/*
 * An opened archive as a source of the packer. Many threads may read its files, whatever their
 * compression.
 *
 *     archive_input_new(fileset, 64 << 20, &fault, &input);
 *     options.inputs[0] = input;
 *     pack_run(...);
 *     archive_input_free(input);
 */
#ifndef ONEPOT_ARCHIVE_INPUT_H
#define ONEPOT_ARCHIVE_INPUT_H

#include "input.h"
#include "fileset.h"

/*
 * The fileset must outlive it. `cache_bytes`: budget for decompressed blocks. Errors:
 * reader_new's.
 */
int archive_input_new(struct fileset *fileset, uint64_t cache_bytes, struct fault *fault,
                      const struct input **ret_input);
void archive_input_free(const struct input *input); /* NULL is fine */

#endif
