/*
 * Counts an archive's contents in one walk over its index; no member is touched.
 */
#ifndef ONEPOT_SURVEY_H
#define ONEPOT_SURVEY_H

#include <stdint.h>

#include "index.h"

/* Class 0: empty files; class i: sizes from 2^(i-1) bytes to 2^i - 1. */
#define SURVEY_CLASSES 65

struct survey {
    uint64_t files; /* regular, each inode once */
    uint64_t directories;
    uint64_t symlinks;
    uint64_t hardlinks; /* further names of an inode */
    uint64_t specials;  /* fifos, sockets, devices */
    uint64_t size_files[SURVEY_CLASSES];
    uint64_t size_bytes[SURVEY_CLASSES];
    uint64_t smallest_bytes, largest_bytes; /* 0 without files */
};

/* Errors: -EUCLEAN. */
int survey_index(const struct index *index, struct survey *ret_survey);

/* The size class of `bytes`. */
unsigned survey_class(uint64_t bytes);

#endif
