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
#ifndef ONEPOT_KNOWN_READS_H
#define ONEPOT_KNOWN_READS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
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

/* ---- a known order of reads ---- */

/*
 * A known order of reads: the file at each place. It is torch's shuffle of a folder's files, or
 * a list that the user gave.
 *
 * Threads: an order never changes once it is made.
 */

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

/* ---- an order from a text ---- */

/*
 * An order from a text that a person or a program wrote, perhaps for another version of the
 * data (--order): one file per line. A line is the path of a file below `root`. But where the
 * first line is a decimal number and no name in `root`, each line is the number of a file,
 * counted from 0, in FOLDER_CLASSES of `root` (FOLDER_FLAT where it has no directories). Only
 * images have numbers if there are any, else all files do.
 *
 * Paths may start with the directories that led to the data before it was packed, or further
 * down than the mount does. Names may be quoted, and lines may end as on Windows.
 *
 * Lines that name no file are left out and counted, and the fault reports the first of them.
 * -EINVAL: they outnumber the others. -E2BIG: more than `most` lines.
 */
int read_list_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                    uint64_t most, struct fault *fault, uint64_t *ret_left_out,
                    struct known_reads **ret_order);

/* ---- recording an order ---- */

/*
 * Records the order in which files are read, one path a line, so that a later job can follow it
 * (read_list_parse). Until it is finished a record is called PATH.part, and that is what a
 * killed process leaves. Each file is recorded up to RECORDER_TIMES times: a record holds the
 * orders of several epochs, but does not grow for ever. A path with a newline is quoted.
 *
 * Threads: one at a time.
 */

#define RECORDER_TIMES 8u

struct recorder;

/*
 * `path` is absolute; the paths of files are written relative to `root`. The index must outlive
 * the recorder. Errors of open(2), -ENAMETOOLONG, -ENOMEM.
 */
int recorder_new(const char *path, const struct index *index, uint32_t root,
                 struct recorder **ret_recorder);

void recorder_note(struct recorder *recorder, uint32_t position);

/* Write the reads noted so far. recorder_finish reports errors of write(2). */
void recorder_flush(struct recorder *recorder);

/*
 * Give the record its name, and free the recorder. Returns the first error of all. Where
 * nothing was read, the record of an earlier job stays as it is.
 */
int recorder_finish(struct recorder *recorder);

/* Free it; another process has the record. NULL is fine. */
void recorder_forget(struct recorder *recorder);

/* Free it and remove what was written, since it was never used. NULL is fine. */
void recorder_abandon(struct recorder *recorder);

#endif
