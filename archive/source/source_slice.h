/*
 * A slice is a part of another source, such as an image within a container's file. All readers
 * see its bytes alone, from offset 0; so the index of a slice never knows what lies around it.
 *
 * Its identity is the file's, with its place. Its descriptor is the file's, in which it begins
 * at source_start.
 */
#ifndef ONEPOT_SOURCE_SLICE_H
#define ONEPOT_SOURCE_SLICE_H

#include "source.h"

/*
 * Put the bytes [offset, offset + length) of *source in its place; source_close closes both.
 * -ENODATA: they don't lie in it.
 */
int source_slice(struct source **source, uint64_t offset, uint64_t length);

/* Take the slice off, and put the wrapped source in its place again: for one that is not
 * its owner.
 */
void source_unslice(struct source **source);

#endif
