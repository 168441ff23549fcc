/*
 * The files of a directory, numbered as training code numbers them. There are two ways:
 *
 *   FOLDER_CLASSES  torchvision's ImageFolder and DatasetFolder: each directory in it is a
 *                   class, and classes come in the order of their names. A class has the files
 *                   of all directories below it: directories in the order of their paths, the
 *                   files in each in the order of their names.
 *   FOLDER_FLAT     the files directly in the directory, in the order of their names
 *
 * Each way takes images alone (by torchvision's list of extensions) or all files. Symbolic
 * links are followed within the archive: to a file, which is numbered once more, and to a
 * directory, which is walked.
 *
 * Threads: a folder order never changes once it is made.
 */
#ifndef ONEPOT_FOLDER_FILES_H
#define ONEPOT_FOLDER_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "index.h"

struct folder_files;

enum folder_kind { FOLDER_FLAT, FOLDER_CLASSES };

/* In place of a position: a number without bytes, of a link that leads nowhere or a device. */
#define FOLDER_NO_FILE UINT32_MAX

/*
 * -E2BIG: more than `most` files, or links that multiply directories. The memory is 4 bytes a
 * file, or 8 where hard links or directories in a class keep the numbers from following the
 * index. -ENOTDIR, -ENOMEM, -EUCLEAN.
 */
int folder_files_new(const struct index *index, uint32_t directory, enum folder_kind kind,
                     bool images_only, uint64_t most, struct folder_files **ret_folder);

/*
 * Files that a list names, by the positions of their inodes; one may occur several times. Takes
 * over `positions` (from malloc), also on failure. -ENOMEM.
 */
int folder_files_listed(uint32_t *positions, uint64_t count, struct folder_files **ret_folder);

/* Adds an owner. Each owner calls folder_files_free. */
struct folder_files *folder_files_share(struct folder_files *folder);
void folder_files_free(struct folder_files *folder); /* NULL is fine */

uint32_t folder_files_count(const struct folder_files *folder);

/* The inode position of file number i < count, or FOLDER_NO_FILE. */
uint32_t folder_files_at(const struct folder_files *folder, uint32_t i);

/* A file that links lead to has several numbers. Callers need not look at more than these. */
#define FOLDER_NUMBERS_MOST 64u

/* The first number from `from` on of a file, by the position of its inode. -ENOENT. */
int folder_files_number(const struct folder_files *folder, uint32_t position, uint64_t from,
                        uint32_t *ret_number);

#endif
