/*
 * SIF, the file of an Apptainer or Singularity container: a header, a table of descriptors, and
 * the objects that they describe. One of these is the filesystem image.
 */
#ifndef ONEPOT_SIF_H
#define ONEPOT_SIF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "source.h"

bool sif_probe(const uint8_t *head, size_t head_len);

/*
 * Where the SquashFS image lies: the primary system's; else a system's; else one of data. The
 * first of several. -EUCLEAN, -ENOTSUP (it has another filesystem, or none), or a read error,
 * each with a fault.
 */
int sif_find_image(const struct source *source, struct fault *fault, uint64_t *ret_offset,
                   uint64_t *ret_length);

#endif
