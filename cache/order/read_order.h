/*
 * A known order of reads: the file at each place. It is torch's shuffle of a folder's files, or
 * a list that the user gave.
 *
 * Threads: an order never changes once it is made.
 */
#ifndef ONEPOT_READ_ORDER_H
#define ONEPOT_READ_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "folder_order.h"

struct read_order;

/*
 * The files of a folder as torch.randperm orders them with this seed. Shares the folder.
 * -E2BIG: it would take more than `most_bytes` (8 for each file). -ENOMEM.
 */
int read_order_shuffled(struct folder_order *folder, uint64_t seed, uint64_t most_bytes,
                        struct read_order **ret_order);

/*
 * Files by the positions of their inodes; a file may occur several times. Takes over
 * `positions` (from malloc), also on failure. -ENOMEM.
 */
int read_order_listed(uint32_t *positions, uint64_t count, struct read_order **ret_order);

/* The lines of an order file. */
struct read_order_lines {
    uint64_t used, left_out;
    struct fault first; /* what is wrong with the first line that was left out */
};

/*
 * The list in the text of an order file: one file a line, with lines and paths as in
 * order_paths.h. A line is the path of a file below `root`. But where the first line is a
 * decimal number and no name in `root`, each line is the number of a file, counted from 0, in
 * FOLDER_CLASSES of `root` (FOLDER_FLAT where it has no directories). Only images have numbers
 * if there are any, else all files do.
 *
 * Lines that name no file are left out. -EINVAL: they outnumber the others; the fault reports
 * the first of them. -E2BIG: more than `most` lines.
 */
int read_order_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                     uint64_t most, struct fault *fault, struct read_order_lines *ret_lines,
                     struct read_order **ret_order);

struct read_order *read_order_share(struct read_order *order);
void read_order_free(struct read_order *order); /* NULL is fine */

uint64_t read_order_count(const struct read_order *order);

/* The inode position of the file at a place, or FOLDER_NO_FILE. */
uint32_t read_order_at(const struct read_order *order, uint64_t place);

/* The first place from `from` on at which the file is read. -ENOENT. */
int read_order_place(const struct read_order *order, uint32_t position, uint64_t from,
                     uint64_t *ret_place);

#endif
