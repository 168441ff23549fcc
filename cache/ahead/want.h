/*
 * How much of a file is fetched before anybody reads it.
 */
#ifndef ONEPOT_WANT_H
#define ONEPOT_WANT_H

#include <sys/stat.h>

#include "index.h"
#include "numbers.h"

#define WANT_FILE_MOST (8u << 20) /* of a file's start */

/* 0: nothing, as it has no bytes, is no file, or is another name of one. */
static inline uint64_t want_bytes(const struct index *index, uint64_t position)
{
    struct node node;

    if (position >= index_info(index)->entries ||
        index_node(index, (uint32_t)position, &node) < 0 || !S_ISREG(node.mode) ||
        node.data_bytes == 0 || node.position != position)
        return 0;
    return min_u64(node.size_bytes, WANT_FILE_MOST);
}

#endif
