/*
 * The names of an archive's parts: what comes before and after a name.
 *
 *     train.tar.partaa, train.tar.partab ..  letters of split, more of them from partyz on
 *     train.tar.000, x.zip.001, part1 ..     numbers from 0 or 1, padded or not
 *     x08, x09, x0a ..                       numbers to the base of 16
 *     train-aa.tar, train.tar.aa.part ..     any of these ahead of a suffix
 *
 * split makes its names longer when it runs out of them, so that they stay sorted: after x89
 * comes x9000, and after xyz xzaaa. Numbers that are not padded go from 9 to 10.
 *
 * The functions take stems: names without the suffix, whose bytes behind `same` are of the
 * series' alphabet. Nothing here asks storage.
 */
#ifndef ONEPOT_VOLUME_NAMES_H
#define ONEPOT_VOLUME_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#define STEM_BYTES 256 /* a file's name and its end */

enum numbering { NUMBERING_DIGITS, NUMBERING_HEX, NUMBERING_LETTERS };

enum suffix { SUFFIX_NONE, SUFFIX_OF_ARCHIVE /* such as .tar.gz */, SUFFIX_OTHER };

struct series {
    enum numbering numbering;
    enum suffix suffix;
    size_t same; /* bytes ahead of the number; letters may have more that are the same */
    size_t stem; /* bytes up to the suffix */
};

/* How a file's name may be read, the likeliest first. */
#define SERIES_READINGS 2u

/* The stems that may be the next one or the one before. */
struct neighbours {
    char at[3][STEM_BYTES];
    size_t count;
};

/*
 * Is a path of a list a shard: named like the one before it (NULL: none)? Of a set of parts a
 * list has one (archive_list_join).
 */
bool series_is_shard(const char *before, const char *path);

#endif
