/*
 * A known order of reads: the file at each place. It is torch's shuffle of a folder's files, or
 * a list that the user gave.
 *
 * Threads: an order never changes once it is made.
 */
#ifndef ONEPOT_KNOWN_READS_H
#define ONEPOT_KNOWN_READS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "folder_files.h"

struct known_reads;

/*
 * The files of a folder as torch.randperm orders them with this seed. Shares the folder.
 * -E2BIG: it would take more than `most_bytes` (8 for each file). -ENOMEM.
 */
int known_reads_shuffled(struct folder_files *folder, uint64_t seed, uint64_t most_bytes,
                         struct known_reads **ret_order);

/*
 * Files by the positions of their inodes; a file may occur several times. Takes over
 * `positions` (from malloc), also on failure. -ENOMEM.
 */
int known_reads_listed(uint32_t *positions, uint64_t count, struct known_reads **ret_order);

/* The lines of an order file. */
struct read_list_lines {
    uint64_t used, left_out;
    struct fault first; /* what is wrong with the first line that was left out */
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

struct known_reads *known_reads_share(struct known_reads *order);
void known_reads_free(struct known_reads *order); /* NULL is fine */

uint64_t known_reads_count(const struct known_reads *order);

/* The inode position of the file at a place, or FOLDER_NO_FILE. */
uint32_t known_reads_at(const struct known_reads *order, uint64_t place);

/* The first place from `from` on at which the file is read. -ENOENT. */
int known_reads_place(const struct known_reads *order, uint32_t position, uint64_t from,
                      uint64_t *ret_place);

#endif
