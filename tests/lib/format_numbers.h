/* The numbers of formats, as they are on disk (test_format.c holds them to it). */
#ifndef ONEPOT_FORMAT_NUMBERS_H
#define ONEPOT_FORMAT_NUMBERS_H

enum {
    FORMAT_TAR = 1,
    FORMAT_SQUASHFS = 2,
    FORMAT_ONEPOT = 3,
    FORMAT_ZIP = 4,
    FORMAT_TFRECORD = 5,
};

#endif
