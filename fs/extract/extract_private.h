/*
 * Shared by the files of the extraction.
 *
 *   extract.c             the four steps, threads
 *   extract_member.c      one file, link or special file
 *   extract_tree.c        folders: making them, descriptors of them
 *   extract_attributes.c  owner, mode, extended attributes, time
 *   extract_problem.c     words for problems, and which ones end the run
 */
#ifndef ONEPOT_EXTRACT_PRIVATE_H
#define ONEPOT_EXTRACT_PRIVATE_H

#include <sys/types.h>

#include "checksum.h"
#include "workers.h"
#include "extract.h"
#include "file_id.h"
#include "vector.h"

/* Flags of an entry. */
enum {
    ENTRY_WANTED = 1,     /* with everything below it */
    ENTRY_ON_THE_WAY = 2, /* a folder with something wanted below it */
    ENTRY_MADE = 4,       /* it exists, and we may set its attributes */
    ENTRY_NEW = 8,        /* a folder that did not exist before */
    ENTRY_HAS_MODE = 16,  /* a folder made with all its attributes except the time */
};

/* A large file is extracted in pieces, by several threads at once. */
#define PIECE_BYTES (UINT64_C(8) << 20)

struct large {
    uint32_t position;
    uint32_t pieces, left; /* all pieces, and those still to be written */
    int fd;                /* -1: not yet made, or done */
    bool made;             /* made and not finished: removed on failure */
    bool failed;
    bool hashing;           /* a thread is hashing */
    uint32_t hashed;        /* pieces hashed, from the first on */
    uint8_t *written;       /* one flag for each piece */
    struct checksum *state; /* NULL: no sum to compare with */
};

/* By position, for qsort and bsearch. */
int large_compare(const void *a, const void *b);

/* Descriptors of folders that a thread used lately. */
#define FOLDER_SLOTS_MAX 64u
struct folders {
    struct {
        uint32_t position;
        int fd; /* O_PATH; -1: free */
    } slots[FOLDER_SLOTS_MAX];
    unsigned slot_count;
    VECTOR(uint32_t) way; /* from a folder up to one with an open descriptor */
    /* The folder whose children are being extracted. */
    uint32_t directory, first, count;
};

/* A folder that exists. */
struct made_folder {
    uint32_t position;
    uint32_t depth; /* the root's is 0 */
    uint32_t next;  /* as `unvisited`: the folder to visit after all below this one */
};

#define READ_BACK_BYTES (256u << 10) /* the buffer of a thread */

struct link_name {
    uint32_t inode, position;
};

struct extraction {
    const struct extract_options *options;
    struct workers workers; /* its lock is for large files as well */
    const struct index *index;
    bool has_some_sums;

    int root_fd;
    bool root_made;
    bool inherits; /* some existing folder passes modes or groups on to new files */
    mode_t umask;  /* bits that files must not get */
    uid_t uid;     /* owner that new files get */
    gid_t gid;

    uint8_t *flags; /* ENTRY_*, one for each entry; written by one thread at a time */
    VECTOR(struct made_folder) made; /* in the order of creation, the root first */
    uint32_t visited;                /* the folder whose children are being made */
    uint32_t unvisited;              /* the next one + 1; 0: none */
    struct extractor *extractors;
    VECTOR(struct link_name) links; /* names of inodes with several, sorted */
    VECTOR(struct large) large;     /* sorted by position */
    uint64_t large_key;             /* key of the first piece of the last of them */

    _Atomic uint64_t files, lost_xattrs;
    uint64_t unprivileged;
};

/* The data of one thread. */
struct extractor {
    struct extraction *x;
    struct worker *worker;
    struct folders folders;
};

/*
 * Handles a problem with an entry: reports and counts it, unless the error ends the run.
 * `doing` is the step that failed, "" if `err` says it all. Returns `err`.
 */
int extract_problem(struct extraction *x, uint32_t position, int err, uint64_t offset,
                    const char *doing);

/* ---- extract_attributes.c ---- */

/* Does an entry made here have the right owner from the start? */
bool attributes_keep_owner(const struct extraction *x, const struct node *node);
/*
 * Because the run is not `privileged`, will it lack set-id bits or attributes, or be left out?
 */
bool attributes_lack_privileges(const struct extraction *x, const struct node *node);
/* The mode that an inode gets here. */
mode_t attributes_mode(const struct extraction *x, const struct node *node);
/* Set the time of an entry by its name, without following it. */
int attributes_set_time(int folder_fd, const char *name, const struct node *node);
/* Set owner, extended attributes, mode, time; `have_mode` is the current mode. */
int attributes_set(struct extraction *x, int fd, const struct node *node, mode_t have_mode);
/* The same by name, for entries without a descriptor. Links have no mode. */
int attributes_set_by_name(struct extraction *x, int folder_fd, const char *name,
                           const struct node *node);

/* ---- extract_tree.c ---- */

void folders_init(struct folders *folders, unsigned slots);
void folders_free(struct folders *folders);

/*
 * Get the descriptor of the folder that holds an entry, valid until the next call, and the
 * entry's name, terminated.
 */
int folders_find(struct extraction *x, struct folders *folders, uint32_t position, int *ret_fd,
                 char name[INDEX_NAME_MAX + 1]);

/* Open or make the directory of the options. */
int tree_open_root(struct extraction *x, struct fault *fault);
/* Add an existing folder that is not yet visited. -ENOMEM. */
int tree_add_folder(struct extraction *x, uint32_t position);
/* Make the folder at `position` in the visited folder. Problems are reported. -ENOMEM. */
int tree_make_folder(struct extraction *x, struct folders *folders, const struct node *node,
                     uint32_t position);
/*
 * Set the attributes of all folders, the deepest first. Returns the error that stopped the run,
 * or -EINTR.
 */
int tree_finish_folders(struct extraction *x, struct folders *folders);

/*
 * After `name` could not be made, with the errno `err`: remove whatever occupies it, if that is
 * allowed. 0: try again; or why it can't be made. *attempts begins with 0.
 */
int tree_make_way(const struct extraction *x, int folder_fd, const char *name, int err,
                  unsigned *attempts);

/* ---- extract_member.c ---- */

/* Extract an entry that is no directory; problems are reported. */
void member_extract(struct extractor *e, uint32_t position);
/* Extract one piece of a large file. */
void member_extract_piece(struct extractor *e, uint32_t position, uint32_t piece);
/* Make a further name of a file. */
void member_link(struct extractor *e, uint32_t first, uint32_t position);
/* Remove unfinished large files, after the threads have ended. */
void member_discard_large(struct extraction *x, struct folders *folders);

#endif
