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

struct known_reads *known_reads_share(struct known_reads *order);
void known_reads_free(struct known_reads *order); /* NULL is fine */

uint64_t known_reads_count(const struct known_reads *order);

/* The inode position of the file at a place, or FOLDER_NO_FILE. */
uint32_t known_reads_at(const struct known_reads *order, uint64_t place);

/* The first place from `from` on at which the file is read. -ENOENT. */
int known_reads_place(const struct known_reads *order, uint32_t position, uint64_t from,
                      uint64_t *ret_place);

#endif
