/*
 * A tf.train.Example, as bytes: named features, each a list of texts, of floats or of integers.
 * Nothing here allocates, reads a source or makes files.
 *
 *     Example:  1 Features         Feature:    1 BytesList, 2 FloatList or 3 Int64List
 *     Features: 1 entries          BytesList:  1 values
 *     entry:    1 name, 2 Feature  FloatList:  1 values, one by one or in a row; Int64List, too
 *
 * A message with any other field is none: it may be one of another kind (a SequenceExample has
 * a field 2) that looks alike.
 *
 * Threads: any.
 */
#ifndef ONEPOT_EXAMPLE_H
#define ONEPOT_EXAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protobuf.h"

enum feature_kind {
    FEATURE_NONE, /* without values */
    FEATURE_BYTES,
    FEATURE_FLOATS,
    FEATURE_INTEGERS,
};

struct feature {
    struct cursor name; /* any bytes, and maybe none */
    enum feature_kind kind;
    struct cursor list; /* the message with the values */
    uint64_t values;
    size_t text_bytes; /* of integers: as decimal text */
};

/* The features one by one, from {message, its length}. 1: one; 0: the end; -EUCLEAN. */
struct example {
    struct cursor message, features;
};
int example_next(struct example *example, struct feature *ret_feature);

/* Take the next value of a list of bytes, or the next row of floats. False: the end. */
bool feature_next(struct cursor *list, struct cursor *ret_value);

#endif
