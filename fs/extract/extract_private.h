/*
 * What the files of the extraction share.
 *
 *   extract.c         the four steps, threads, problems
 *   extract_tree.c    folders: making them, descriptors of them, their attributes
 *   extract_member.c  one file, link or special file
 *   extract_bytes.c   the bytes of a file: from the archive into a descriptor
 */
#ifndef ONEPOT_EXTRACT_PRIVATE_H
#define ONEPOT_EXTRACT_PRIVATE_H

#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#include <xxhash.h>

#include "extract.h"
#include "content.h"
#include "worklist.h"

/* Flags of an entry. */
enum {
    ENTRY_WANTED = 1,     /* and what is below it */
    ENTRY_ON_THE_WAY = 2, /* a folder with something wanted below it */
    ENTRY_MADE = 4,       /* it is there, and ours to give attributes to */
    ENTRY_NEW = 8,        /* a folder that was not there before */
    ENTRY_HAS_MODE = 16,  /* a folder that was made with all its attributes but the time */
};

/* A large file is extracted in pieces, by several threads at once. */
#define PIECE_BYTES (UINT64_C(8) << 20)

struct large {
    uint32_t position;
    uint32_t pieces, left; /* to be written */
    int fd;                /* -1: not yet made, or done */
    bool made;             /* and not finished: to be removed on failure */
    bool failed;
    bool hashing;        /* a thread is at it */
    uint32_t hashed;     /* pieces, from the first on */
    uint8_t *written;    /* one for each piece */
    XXH3_state_t *state; /* NULL: there is no sum to compare with */
};

/* Descriptors of folders that a thread has used lately. */
#define FOLDER_SLOTS_MAX 64u
struct folders {
    struct {
        uint32_t position;
        int fd; /* O_PATH; -1: free */
    } slots[FOLDER_SLOTS_MAX];
    unsigned slot_count;
    uint32_t *way; /* from a folder up to one whose descriptor is there */
    size_t way_size;
    /* Whose children are being extracted. */
    uint32_t directory, first, count;
};

/* A folder that is there. */
struct made_folder {
    uint32_t position;
    uint32_t depth; /* the root's is 0 */
    uint32_t next;  /* as `unvisited`: the one to visit when all below this one are done */
};

#define READ_BACK_BYTES (256u << 10)

struct extraction {
    const struct extract_options *options;
    struct pot *pot;
    const struct index *index;
    struct reader *reader;
    struct source_identity archive; /* the file, which is never replaced */
    bool has_sums;

    int root_fd;
    bool root_made;
    bool inherits; /* folders were found that hand down modes or groups */
    mode_t umask;  /* bits that files don't get */
    uid_t uid;     /* what new files have */
    gid_t gid;

    uint8_t *flags;           /* ENTRY_*, one for each entry; written by one thread at a time */
    struct made_folder *made; /* in the order in which they were made, the root first */
    size_t made_size;
    uint32_t made_count;
    uint32_t visited;   /* the one whose children are being made */
    uint32_t unvisited; /* the next one + 1; 0: none */
    struct worklist *list;
    struct link_name *links; /* names of inodes with several, by inode and position */
    size_t link_count, link_size;
    struct large *large; /* by position */
    size_t large_count, large_size;
    uint64_t large_key; /* of the first piece of the last of them */

    pthread_mutex_t lock;      /* of large files and of reports */
    _Atomic uint32_t quitting; /* an error that ends the run came up */
    int error;
    struct fault fault;
    unsigned running;
    pthread_cond_t done;

    struct progress progress;
    _Atomic uint64_t files, others, problems, lost_xattrs;
    uint64_t directories, unprivileged;
};

struct link_name {
    uint32_t inode, position;
};

/* One thread's own. */
struct extractor {
    struct extraction *x;
    unsigned number;
    pthread_t thread;
    struct content *content;
    struct folders folders;
    XXH3_state_t *hash;
    uint8_t *read_back;
};

static inline bool extract_stopped(const struct extraction *x)
{
    return atomic_load_explicit(&x->quitting, memory_order_relaxed) ||
           (x->options->stop && atomic_load_explicit(x->options->stop, memory_order_relaxed));
}

/*
 * Something went wrong with an entry: reported, counted; or an error that ends the run.
 * `doing` is what could not be done, "" if `err` says it all. Returns `err`.
 */
int extract_problem(struct extraction *x, uint32_t position, int err, uint64_t offset,
                    const char *doing);

/* ---- extract_tree.c ---- */

int folders_init(struct folders *folders, unsigned slots);
void folders_free(struct folders *folders);

/* The descriptor of the folder at `directory`, valid until the next call. */
int folders_get(struct extraction *x, struct folders *folders, uint32_t directory, int *ret_fd);

/* The same of the folder that holds an entry, and the entry's name, terminated. */
int folders_find(struct extraction *x, struct folders *folders, uint32_t position, int *ret_fd,
                 char name[INDEX_NAME_MAX + 1]);

/* Open or make the directory of the options. */
int tree_open_root(struct extraction *x, struct fault *fault);
/* Add a folder to those that are there and not yet visited. -ENOMEM. */
int tree_add_folder(struct extraction *x, uint32_t position);
/* Make the folder at `position` in the one that is visited. Problems are reported. -ENOMEM. */
int tree_make_folder(struct extraction *x, struct folders *folders, const struct node *node,
                     uint32_t position);
/* Attributes of all folders, the deepest first. The error that stopped the run, or -EINTR. */
int tree_finish_folders(struct extraction *x, struct folders *folders);

/* Remove what is in the way of `name`, if that is allowed. 0, or why it stays. */
int tree_clear_the_way(const struct extraction *x, int folder_fd, const char *name);

/* ---- extract_member.c ---- */

/* Does what is made here have the right owner at once? */
bool member_keeps_owner(const struct extraction *x, const struct node *node);
/* Does it come without set-id bits or attributes, or not at all, as it is not `privileged`? */
bool member_lacks_privileges(const struct extraction *x, const struct node *node);
/* The mode that an inode gets here. */
mode_t member_mode(const struct extraction *x, const struct node *node);
/* Owner, extended attributes, mode, time; `have_mode` is what it has now. */
int member_finish(struct extraction *x, int fd, const struct node *node, mode_t have_mode);

/* Extract an entry that is no directory; problems are reported. */
void member_extract(struct extractor *e, uint32_t position);
/* One piece of a large file. */
void member_extract_piece(struct extractor *e, uint32_t position, uint32_t piece);
/* A further name. */
void member_link(struct extractor *e, uint32_t first, uint32_t position);
/* Remove what is unfinished, after the threads ended. */
void member_discard_large(struct extraction *x, struct folders *folders);

/* ---- extract_bytes.c ---- */

/* What failed. */
struct trouble {
    const char *doing; /* "can't be written" */
    uint64_t offset;   /* in the archive, or FAULT_NO_OFFSET */
};

/*
 * Write bytes [from, to) of the file at `position` to the same place in `fd`; holes are
 * left out. `hash` (or NULL) is updated with all that is no hole.
 */
int bytes_copy(struct extractor *e, uint32_t position, uint64_t from, uint64_t to, int fd,
               XXH3_state_t *hash, struct trouble *trouble);
/* Hash bytes [from, to) again, as they were written. */
int bytes_hash_written(struct extractor *e, uint32_t position, uint64_t from, uint64_t to,
                       int fd, XXH3_state_t *hash);

#endif
