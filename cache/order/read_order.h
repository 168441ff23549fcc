/*
 * A known order of reads: which file comes at which place. It is torch's shuffle of a
 * folder's files, or a list that somebody gave.
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
 * The files of a folder as torch.randperm with this seed orders them; the folder is shared.
 * -E2BIG if it would take more than `most_bytes` (8 for each file), -ENOMEM.
 */
int read_order_shuffled(struct folder_order *folder, uint64_t seed, uint64_t most_bytes,
                        struct read_order **ret_order);

/*
 * Files by the positions of their inodes; a file may occur several times. Takes over
 * `positions` (of malloc), also when it fails: -ENOMEM.
 */
int read_order_listed(uint32_t *positions, uint64_t count, struct read_order **ret_order);

/* Of the text of an order file. */
struct read_order_lines {
    uint64_t used, left_out;
    struct fault first; /* of those that were left out: what is wrong with it */
};

/*
 * The list in the text of an order file. One file a line, as order_paths.h has lines and
 * paths. A line is the path of a file below `root`, or, where the first is a decimal number and
 * not a name in `root`, a number of FOLDER_CLASSES of `root` (FOLDER_FLAT where it has no
 * directories), counted from 0, of images if there are any, else of all files.
 *
 * Lines that name no file are left out. -EINVAL: those are more than the others; the fault
 * says which was the first. -E2BIG: more than `most` lines.
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
