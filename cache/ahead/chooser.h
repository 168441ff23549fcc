/*
 * A way to choose the next fetches. A plan (plan.h) has up to five of them, in this order:
 *
 *     order      a known order of files, given or recognised     plan.c, recognise.h
 *     sequence   files and pieces of files in a row              plan.c
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

/* ---- order ---- */

/*
 * Keeps ahead of readers along a known order: it says what to fetch next, and whether they
 * still read in that order. It has no threads and does no reads. Its owner reports reads to it,
 * asks it what to fetch, and reports when that is done.
 *
 *     follow_new(&options, &stats, order, shared, &follow);
 *     follow_read(follow, position, task)       a file was asked for
 *     follow_next(follow, &want)                fetch this; then follow_done(follow, want.due)
 *     if (follow_wants_next(follow)) follow_set_next(follow, the order of the next epoch)
 *
 * Readers need not keep the order exactly. Several of them, each with workers at different
 * batches, are out of step by thousands of places. So only the region they are in counts.
 * Places of the order are numbered on through the epochs; such a number is called `due`.
 *
 * How far ahead: until `window_bytes` of fetched data wait for their readers. Data that all
 * readers have left behind does not count, since nobody will ask for it any more.
 */

struct follow;

/*
 * Shares the order. The options, whose window may change, and `stats`, to count in, outlive it.
 * `shared`: a shuffle over all ranks, of which nothing is fetched until it is known which of
 * them are here; otherwise fetching begins before the first read. -ENOMEM.
 */
int follow_new(const struct ahead_options *ahead, struct ahead_stats *stats,
               struct known_reads *order, bool shared, struct follow **ret_follow);
void follow_free(struct follow *follow); /* NULL is fine */

enum follow_verdict {
    FOLLOW_FOREIGN,    /* not a file of this order */
    FOLLOW_UNEXPECTED, /* a file that is not due */
    FOLLOW_MISSED,     /* in order, but was not asked for in time */
    FOLLOW_LATE,       /* asked for, but not there yet */
    FOLLOW_FOUND,      /* there */
};

/* A thread reads a file for the first time in this epoch. */
enum follow_verdict follow_read(struct follow *follow, uint32_t position, uint32_t task);

/* Too many of the last reads were out of order: the readers don't follow this order. */
bool follow_is_lost(const struct follow *follow);

/* False: nothing to fetch for the moment. */
bool follow_next(struct follow *follow, struct reader_want *ret_want);
void follow_done(struct follow *follow, uint64_t due);
/* There was no room to fetch it. It comes again, and nothing comes before some reads. */
void follow_refused(struct follow *follow, uint64_t due);

/* True once an epoch: the readers are so far that the next epoch's order should be made. */
bool follow_wants_next(struct follow *follow);
int follow_set_next(struct follow *follow, struct known_reads *order); /* shares it. -ENOMEM */
/* True once for each epoch: the readers have gone on to the next order. */
bool follow_has_turned(struct follow *follow);

/*
 * Which part of a shuffled order this node reads. Rank r of W reads the places r, r + W,
 * r + 2W, ... Ranks on other nodes are not seen here, and their samples must not be fetched.
 *
 * How W is found. A reader (a rank, or one of its DataLoader workers) reads places of only one
 * residue modulo W. So between two reads of a thread lies a multiple of W, and within a batch W
 * itself. W is the largest number that divides nearly all of these distances. A wrong number
 * divides a distance with a probability of at most one half. With WORLD_DISTANCES_MIN distances
 * or more, it divides nine in ten by less than one chance in a thousand if it is 2, and by next
 * to none from 4 on. Being wrong by a factor costs nothing where all residues are read here.
 * (Batches of one sample make the result W times the number of workers. Then each worker counts
 * as a rank, and the places are the same.)
 *
 * A residue is local if its places were read here at least twice, so that one stray read adds
 * none. A rank that starts late is added when it reads.
 *
 * Too few distances prove nothing: a single rank whose workers have each begun a batch reads
 * the same places as the ranks of one node among many.
 */

#define WORLD_MAX 4096u
#define WORLD_DISTANCES_MIN 16u
#define WORLD_READS_MAX 512u

struct world {
    uint32_t size;                 /* W; 0: not known */
    uint32_t local;                /* residues read here, */
    uint64_t bits[WORLD_MAX / 64]; /* and which */
};

/* All places are read here. */
void world_all(struct world *world);

/*
 * Infer it from the places of the last reads and the threads (tasks) that read them, oldest
 * first, at most WORLD_READS_MAX. -EAGAIN: too few.
 */
int world_infer(const uint64_t *places, const uint32_t *tasks, unsigned count,
                struct world *ret_world);

static inline bool world_reads(const struct world *world, uint64_t place)
{
    uint32_t rest = (uint32_t)(place % world->size);

    return world->bits[rest / 64] >> (rest % 64) & 1;
}

/* All residues that are local in `other` are local in `world`, too (of the same size). */
bool world_holds(const struct world *world, const struct world *other);

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

#define NAMES_CHUNK_BITS 8                /* a chunk is so many entries, as a power of two */
#define NAMES_FIRST 16u                   /* LOOKUPs before it begins */
#define NAMES_PER_LOOKUP 64u              /* entries that each LOOKUP pays for */
#define NAMES_BEGIN_NS UINT64_C(20000000) /* after which all are paid for, if nobody asked */

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
