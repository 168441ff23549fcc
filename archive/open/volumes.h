/*
 * An archive in several files: pieces of one file (split, 7-Zip), by names as in
 * volumes.c, or the volumes of a zip (Info-ZIP, WinRAR): train.z01, train.z02 ..
 * train.zip. Any of them names the set.
 *
 * A tar that is whole is the archive, whatever lies beside it. A part counts only if it is a
 * regular file of the user, the owner of the file that was named, or root, and nobody may write
 * to it who may not write to that file.
 *
 * Names alone decide nothing, since shards are numbered as well. A file with such a name is an
 * archive by itself if it and its neighbour begin in the same format, and the first of them is
 * whole: a tar up to its end marker, a zip with its directory; of another format, or
 * compressed, the beginning is enough. Where small members begin just where the tar was cut,
 * the member that is cut off must go on in the second one. A file numbered ahead of a suffix
 * (train-001.tar) is a shard unless the contents are surely pieces. A file without
 * neighbours is by itself, too.
 */
#ifndef ONEPOT_VOLUMES_H
#define ONEPOT_VOLUMES_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"
#include "source.h"
#include "vector.h"

struct fileset_options;

/*
 * source_open, of the whole archive that the file at `path` is a part of. The source is called
 * by the path of the first piece, or of a zip's last volume. Errors of a set come with a fault
 * that names the file: -ENOENT (one is missing), -EUCLEAN (one is longer or shorter than the
 * others, or the first does not begin like an archive, and another does). A neighbour that does
 * not count, for its owner or kind, is noted (fileset_note; NULL: not).
 *
 * *source is the file at `path` if the caller has it open, which is taken over, else NULL.
 */
int volumes_open(const char *path, const struct fileset_options *options, struct fault *fault,
                 struct source **source);

/*
 * The paths of all parts in order, for callers who have several paths: 0; 1 if `path` is surely
 * by itself. None if it can't be told or opened, or if the set is not complete, which
 * volumes_open reports. -ENOMEM. Free with volumes_free.
 */
typedef VECTOR(char *) volume_paths;
int volumes_find(const char *path, volume_paths *ret_paths);
void volumes_free(volume_paths *paths);

/*
 * Is a path of a list a shard: named like the one before it (NULL: none)? Of a set of parts a
 * list has one (archive_list_join).
 */
bool series_is_shard(const char *before, const char *path);

/*
 * Give a fault of damaged data the advice that a part may be missing (all parts of a set have
 * one length, which the last one hardly ever has, or a file by itself is called like a first
 * part), or another archive's.
 */
void volumes_advise(const struct source *source, struct fault *fault);

#endif
