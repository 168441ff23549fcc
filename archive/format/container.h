/*
 * Archives that lie inside another file: the image in a container (SIF), or the bytes behind a
 * script or a program, as in an installer or an AppImage.
 */
#ifndef ONEPOT_CONTAINER_H
#define ONEPOT_CONTAINER_H

#include "fault.h"
#include "source.h"

struct container {
    const char *name; /* "a SIF"; NULL: the file is no container */
    uint64_t offset;  /* of the archive, and its length */
    uint64_t length;
};

/*
 * Look at the first bytes of the file, and if they begin a container, for the archive in it.
 * Behind a script or a program there need not be one; then name is NULL. A SIF without an image
 * is an error, with a fault.
 */
int container_find(const struct source *source, struct fault *fault,
                   struct container *ret_container);

#endif
