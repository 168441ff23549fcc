/*
 * A feature is something that a mount does beside answering requests from the index: one file
 * with one const table and a private state. The session calls the tables of its list
 * (session_config.features) and knows nothing else of them. To add a feature, write such a file
 * in fs/features and name it in the list, feature_list.c.
 *
 * Order. Features start in the order of the list, before there are workers. A read passes
 * through them in that order, and its answer in reverse; join and free also go in reverse.
 *
 * Every member may be missing. If `start` left no state, because the mount has no use for the
 * feature, none is called.
 */
#ifndef ONEPOT_FEATURE_H
#define ONEPOT_FEATURE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct request;
struct session;
struct span;
struct worker;

/* One READ on its way through the features. */
struct read {
    struct request *rq;
    uint32_t position;
    uint64_t offset;
    uint32_t size;
    struct span *span; /* the answer, once `result` is 0 after the read */
    int result;        /* 0 or -errno */
    /* Used by sums.c: what was asked for, while `offset` and `size` are whole windows. */
    struct {
        bool is_due;
        uint64_t offset;
        uint32_t size;
        uint32_t inode;
        const uint64_t *hashes;
    } asked;
};

struct feature {
    /*
     * Sets *ret_state as soon as there is something to free, even if it fails then. May start
     * threads; they must not update counters before all features have started.
     */
    int (*start)(struct session *session, void **ret_state);
    /*
     * The mount is announced, and this process forks no more programs for it: threads that may
     * hang in a write, or hold a file that such a program would inherit, start here.
     */
    void (*serve)(void *state);
    /* Before a worker's thread starts. */
    int (*add_worker)(void *state, struct worker *worker);
    /*
     * A request has come, or is about to wait. Called for each one: it must be quick. Only
     * features with this or one of the next two members are asked while a READ is answered.
     */
    void (*on_request)(void *state);
    /* Before bytes are read. The first error is the result of the read. */
    int (*before_read)(void *state, struct read *read);
    /* Before the answer is sent, whatever the result; may turn it into an error. */
    void (*after_read)(void *state, struct read *read);
    /* A directory is about to be listed: may the names come with attributes? */
    void (*before_listing)(void *state, bool *attributes);
    /*
     * The kernel receives the names of the entries [from, to) of the directory rq->position.
     * `attributes`: these, too.
     */
    void (*after_listing)(void *state, const struct request *rq, uint32_t from, uint32_t to,
                          bool attributes);
    /* The kernel received the name and attributes of a regular file that it asked for. */
    void (*after_lookup)(void *state, const struct request *rq, uint32_t position);
    /*
     * Answer a request for which the archive has no answer: a look-up in the root of a name
     * that does not exist, an ioctl, or a node id beyond the entries. True: it is answered.
     */
    bool (*answer)(void *state, struct request *rq);
    /* Under the session's counters_lock. */
    void (*update_counters)(void *state);
    /* The mount has ended: leave everything shared. May be called twice. */
    void (*leave)(void *state);
    /* End threads and waits, without waiting for them. From any thread, once. */
    void (*end)(void *state);
    /* Wait for all threads, at most until `until`. Not 0: some are left. */
    int (*join)(void *state, const struct timespec *until);
    void (*free)(void *state);
};

#define FEATURES_MAX 16u

struct features {
    struct started_feature {
        const struct feature *feature;
        void *state;
    } at[FEATURES_MAX];
    unsigned count;
};

/* NOLINTBEGIN(bugprone-macro-parentheses): they declare a variable, and name a member */

/* `f` is each started feature that has the member, in order. */
#define EACH_FEATURE(f, features, member)                                                      \
    for (const struct started_feature *f = (features)->at;                                     \
         f < (features)->at + (features)->count; f++)                                          \
        if (f->feature->member)

/* The same in reverse. */
#define EACH_FEATURE_BACK(f, features, member)                                                 \
    for (const struct started_feature *f = (features)->at + (features)->count;                 \
         f > (features)->at && f--;)                                                           \
        if (f->feature->member)

/* NOLINTEND(bugprone-macro-parentheses) */

int features_start(struct session *session);
int features_before_read(const struct features *features, struct read *read);
void features_after_read(const struct features *features, struct read *read);
void features_free(const struct features *features);

#endif
