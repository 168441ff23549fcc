/*
 * The names that --files-from gives: which files of a directory are to be packed, in any
 * order, millions of them. They take their length and 8 bytes each; while they are
 * sorted, 8 more.
 *
 * A name is a path relative to the directory. One that begins with the directory's own
 * absolute path is taken as well, so that `find DIR` of an absolute DIR can make the list.
 * A name stands for itself alone, and the directories that lead to it come along; with a
 * slash at its end it is a directory with everything below it.
 *
 * Threads: a list that was read never changes; any number may use it.
 */
#ifndef ONEPOT_NAME_LIST_H
#define ONEPOT_NAME_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "folder.h"

struct name_list;

/* Called for each name that can't be meant: its fault has the name. */
typedef int name_list_report(void *ctx, const struct fault *what);

/*
 * Read the list from a descriptor until its end. `nul`: names are separated by NUL bytes;
 * else that is found out: a list with a NUL in it is, and one without has a name in each
 * line. `root` is the absolute path of the directory, or NULL. Errors: of read(2), -ENOMEM,
 * -E2BIG (over 4,294,967,000 names), and what `report` returns.
 */
int name_list_read(int fd, bool nul, const char *root, name_list_report *report, void *ctx,
                   struct name_list **ret_list);
void name_list_free(struct name_list *list); /* NULL is fine */

uint64_t name_list_count(const struct name_list *list);

/*
 * The listed names in a directory: `number` is what its own name in a listing had (0 for
 * the root) and `path_len` the length of its path. A name with something listed below it
 * is DT_DIR, others are DT_UNKNOWN. 1 and no listing: everything in it is wanted. -ENOMEM.
 */
int name_list_children(const struct name_list *list, uint32_t number, size_t path_len,
                       struct listing *ret_listing);

#endif
