/*
 * An order from a text that a person or a program wrote, perhaps for another version of the
 * data (--order).
 */
#ifndef ONEPOT_READ_LIST_H
#define ONEPOT_READ_LIST_H

#include "fault.h"
#include "known_reads.h"

struct read_list_lines {
    uint64_t used, left_out;
    struct fault first; /* why the first such line was left out */
};

/*
 * The list in the text of an order file: one file a line, with lines and paths as in
 * list_paths.h. A line is the path of a file below `root`. But where the first line is a
 * decimal number and no name in `root`, each line is the number of a file, counted from 0, in
 * FOLDER_CLASSES of `root` (FOLDER_FLAT where it has no directories). Only images have numbers
 * if there are any, else all files do.
 *
 * Lines that name no file are left out. -EINVAL: they outnumber the others; the fault reports
 * the first of them. -E2BIG: more than `most` lines.
 */
int read_list_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                    uint64_t most, struct fault *fault, struct read_list_lines *ret_lines,
                    struct known_reads **ret_order);

#endif
