/*
 * Which archives are meant: from the words of a command line, or of a loader's caller, to
 * paths.
 *
 *   a path that exists    itself; of a folder, all files in it but hidden ones, unfinished
 *                         archives and saved indexes, by name
 *   a pattern (* ? []) all matches, by name, but neither unfinished archives nor saved
 *                         indexes; -ENOENT: nothing
 *   @LIST                 the paths in the file LIST, a line each, as they are; where it has a
 *                         NUL byte, NULs separate them; @-: standard input
 *
 * A path is never taken for a pattern or a list if there is a file of that name.
 *
 *     for (each word)
 *         r = archive_list_add(&list, word, &fault);
 *     r = archive_list_join(&list);
 */
#ifndef ONEPOT_ARCHIVE_LIST_H
#define ONEPOT_ARCHIVE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"

struct archive_list { /* a vector; all zero is an empty list */
    char **at;
    size_t count, capacity;
    bool is_set;   /* a folder, a pattern or a list was among the words */
    bool is_whole; /* by archive_list_join, for struct fileset_options */
    bool is_plain; /* set by the caller, for the same: words are folders to show as they are */
};

/*
 * Add what `word` stands for. Errors come with a fault, which names the file that it is about
 * if that is not `word`: -ENOENT (nothing there), -EFBIG (a list of absurd length), -ENOMEM,
 * and the errors of files. A plain path is added whether it exists or not.
 */
int archive_list_add(struct archive_list *list, const char *word, struct fault *fault);

/* Keep the first of several parts of one archive (volumes.h). -ENOMEM. */
int archive_list_join(struct archive_list *list);

/* Is this path no part of an archive, as far as archive_list_join and its neighbour tell? */
bool archive_list_is_whole(const struct archive_list *list, size_t i);

void archive_list_free(struct archive_list *list);

/* Is it a folder, a pattern or a list? */
bool archive_list_is_set(const char *word);

#endif
