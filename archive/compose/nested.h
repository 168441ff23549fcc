/*
 * Archives inside an archive become directories: the tree of each takes the place of the
 * member that it is, under the member's name without the ending. Nothing is copied. An inner
 * archive must lie in one stored range of the outer one; its own parts are ranges of the outer
 * archive then, too.
 *
 * Without a pattern, a member is one if its name ends as archives' names do; else if it matches
 * (selection_matches). In both cases a format must take it for its own. A member that can't be
 * read in place (compressed in the outer archive, or itself compressed without parts that can
 * be read alone), whose directory's name is taken, or which lies more than NESTED_DEPTH
 * archives deep, stays a file, and a note counts it. So does a compressed one when the ones
 * before it unpacked to as much as all of them may. A damaged one is an error: a data set that
 * silently lacks a class is worse than none.
 *
 * The archives of one level lie beside each other, or share bytes because they are equal. So
 * one level's archives can't have many more bytes than the archive that holds them all, and one
 * that makes them overlap, in order to be read again and again, is refused.
 *
 * Back ends parse the members: call this in the sandbox.
 */
#ifndef ONEPOT_NESTED_H
#define ONEPOT_NESTED_H

#include "backend.h"
#include "fault.h"
#include "index.h"
#include "source.h"
#include "tree.h"

#define NESTED_DEPTH 4u

struct nested {
    struct source *source; /* of the outer archive, */
    const struct index *index;
    const char *name;          /* and its name for messages */
    const char *glob;          /* NULL: by the endings of names */
    bool ignores_zeros;        /* as of the options of a fileset */
    uint64_t most_bytes;       /* that compressed ones may unpack to, all together */
    struct source *scratch;    /* a file without a name, for one image at a time */
    struct progress *progress; /* its note tells of members that stay files */
};

/* A source that `scratch` may be, made before the sandbox. */
int nested_scratch_new(struct source **ret_source);

/*
 * Merge the archive's root, with the trees of archives in it, into the tree's. Errors: -EUCLEAN
 * for a damaged inner archive, with a fault that names it; errors of back ends and of reading;
 * -ENOMEM.
 */
int nested_add(const struct nested *nested, struct tree *tree, struct fault *fault);

#endif
