/*
 * A way to choose the next fetches. A plan (plan.h) has up to five of them, in this order:
 *
 *     order      a known order of files, given or recognised     plan.c, follow.h, recognise.h
 *     sequence   files and pieces of files in a row              plan.c, sequences.c
 *     tree       directories that a walk will reach              tree_walk.c
 *     names      names of files that are opened without a listing   names.c
 *     near       files near the ones that are read           nearby.c
 *
 * The first two fetch into the block cache, the others through the mount itself. Every function
 * is called under the plan's lock, must not wait, and gets the chooser as its first argument.
 */
#ifndef ONEPOT_CHOOSER_H
#define ONEPOT_CHOOSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ahead.h"
#include "index.h"
#include "numbers.h"
#include "observer.h"
#include "reader.h"

struct chooser {
    /* `options` outlive it. -ENOMEM. NULL where the plan itself makes it, and frees it. */
    int (*make)(const struct ahead_options *options, void **ret_chooser);
    void (*free)(void *chooser);
    /* `expected`: an earlier chooser knew that this would come. Returns the same for the next.
     */
    bool (*observe)(void *chooser, const struct observation *o, bool expected);
    /* Readers rest or do something else: nothing is to be taken for now. NULL: never. */
    bool (*is_lost)(void *chooser, uint64_t now_ns);
    /* Returns how many wants; 0: none for now. */
    size_t (*take)(void *chooser, struct reader_want *wants, size_t max);
    /* The wants of one call of `take` were fetched, or could not be. May be NULL. */
    void (*finished)(void *chooser, const struct reader_want *wants, size_t count, int result);
};

/* ---- sequence ---- */

/*
 * Detects readers that go through numbered things in ascending order: the files of a directory
 * or of an archive, or the pieces of a file. Several may do so at once, interleaved; each is a
 * separate sequence.
 *
 * A read belongs to a sequence if it comes soon after the furthest read of that sequence, or a
 * little before it (two workers, or a kernel that asks for the next piece early). A sequence is
 * believed after SEQUENCE_CONFIDENT reads if these cover at least a quarter of the things that
 * it passes, in its own steps: a rank that reads every eighth file has steps of 8. Then things
 * ahead of it are handed out, twice as many each time it comes near the end of them.
 *
 * A reader in random order does no harm. Among n things, 16 sequences with 64 places each are
 * hit by chance once in n/1024 reads. But to be believed a sequence would have to be hit time
 * after time while it is one of the last 16, and densely.
 */

#define SEQUENCES 16u
#define SEQUENCE_NEAR 64u
#define SEQUENCE_CONFIDENT 8u

struct sequence {
    uint64_t first, last; /* places */
    uint64_t next;        /* the place after those handed out */
    uint64_t step;        /* the greatest common divisor of all distances; 0: none yet */
    uint32_t reads;       /* 0: free */
    uint32_t window;      /* steps */
    uint64_t used;        /* on the clock below */
};

/* Empty when all zero. */
struct sequences {
    struct sequence at[SEQUENCES];
    uint64_t clock;
};

/* Report a read. True: it continues a sequence that is believed. */
bool sequences_read(struct sequences *sequences, uint64_t place);

/* The next thing ahead of a sequence. False: there is none. */
bool sequences_next(struct sequences *sequences, uint64_t *ret_place);

/* ---- tree ---- */

/*
 * Directories that a walk through the tree will reach. find, ls -lR, du, os.walk and rsync go
 * through a tree in one order, a directory before its entries, and the index knows that order.
 * Once a reader is seen on such a walk, the next directories are listed ahead of it.
 */

extern const struct chooser tree_walk_chooser;

/* ---- names ---- */

/*
 * Names of files that readers open without listing their directory, because they have them from
 * a list. Each costs a LOOKUP, until a listing has brought its name and attributes into the
 * kernel. (names.c says which are listed, and when.)
 */

#define NAMES_CHUNK_BITS 8   /* a chunk is so many entries, as a power of two */
#define NAMES_FIRST 16u      /* LOOKUPs before it begins */
#define NAMES_PER_LOOKUP 64u /* entries that each LOOKUP pays for */

extern const struct chooser names_chooser;

/* ---- near ---- */

/*
 * Files near the ones that readers read, in the order of the archive (nearby.c says which).
 */

#define NEARBY_CHUNK_BITS 8 /* a chunk is so many entries, as a power of two */

#define NEARBY_READS_FIRST 2048u /* cold reads before it begins, at least */
#define NEARBY_READS_AGAIN 16u   /* cold reads before it resumes after a pause */

extern const struct chooser nearby_chooser;

/* ---- how much of a file is fetched before anybody reads it ---- */

#define WANT_FILE_MOST (8u << 20) /* of a file's start */

/* 0: nothing, as it has no bytes, is no file, or is another name of one. */
static inline uint64_t want_bytes(const struct index *index, uint64_t position)
{
    struct node node;

    if (position >= index_info(index)->entries ||
        index_node(index, (uint32_t)position, &node) < 0 || !S_ISREG(node.mode) ||
        node.data_bytes == 0 || node.position != position)
        return 0;
    return min_u64(node.size_bytes, WANT_FILE_MOST);
}

#endif
