/*
 * The names from --files-from: which files of a directory to pack, in any order, millions of
 * them. Memory: the text and 8 bytes for each name; 8 more while the names are sorted.
 *
 * A name is a path relative to the directory. It may also begin with the directory's own
 * absolute path, so that `find DIR` of an absolute DIR can make the list. A name selects itself
 * alone, and the directories that lead to it come along. With a slash at its end it selects a
 * directory with everything below it.
 *
 * Threads: a list never changes once it was read; any number may use it.
 */
#ifndef ONEPOT_NAME_LIST_H
#define ONEPOT_NAME_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "folder.h"

struct name_list;

/* Called for each name that can't be right, with a fault that has the name and why. */
typedef int name_list_report(void *ctx, const struct fault *what);

/*
 * Reads the list from a descriptor until its end. `nul`: NUL bytes separate the names.
 * Otherwise that is detected: if the list contains a NUL, NULs separate the names; if not, each
 * line is a name. `root` is the absolute path of the directory, or NULL. Errors: of text_read,
 * -E2BIG (over 4,294,967,000 names), and `report`'s.
 */
int name_list_read(int fd, bool nul, const char *root, name_list_report *report, void *ctx,
                   struct name_list **ret_list);
void name_list_free(struct name_list *list); /* NULL is fine */

uint64_t name_list_count(const struct name_list *list);

/*
 * Name `number` of the list, without the slash at its end; *ret_whole: it had one. Names are in
 * the order of an archive's members, depth first.
 */
const char *name_list_name(const struct name_list *list, size_t number, bool *ret_whole);

/*
 * The listed names in a directory. `number` is the number of the directory's name in a listing
 * (0 for the root), and `path_len` the length of its path. A name with listed names below it is
 * DT_DIR, others are DT_UNKNOWN. Returns 1 and no listing if everything in the directory is
 * packed. -ENOMEM.
 */
int name_list_children(const struct name_list *list, uint32_t number, size_t path_len,
                       struct listing *ret_listing);

#endif
