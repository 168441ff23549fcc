/*
 * Short circuit: a preloaded library (libonepot-io.so) answers read() in the reader's process,
 * from the archive, where the mount would need a round trip to its daemon. open() goes to the
 * mount, so descriptor, position and attributes are the kernel's own, and whatever the library
 * does not know is right without it. Library and daemon agree on this header.
 *
 *   interpose.c   the functions of the C library that are replaced; those that exec give the
 *                 library to children
 *   reading.c     which bytes a call gets; when the mount has to answer; reads in progress end
 *                 before their descriptor is closed
 *   links.c       the mounts that this process reads from: how they are found and checked;
 *                 lists directories in which opens are slow, where the mount can't
 *   image.c       whether a program that is about to be started can load it
 *   filters.c     whether the process may be ended for system calls of the library
 *   preload.c     the program's side: where the library lies, and how it is named
 *
 * The daemon's side, which hands out where files lie, is a feature (features/intercept.c).
 *
 * A descriptor is known by fstat's answer, at each call: device, inode and time of access. A
 * mount gives all of its files the time at which it was made, so that another mount that got
 * the same device number is no match. No path is compared and no descriptor is remembered as
 * trusted, so it does not matter who opened, duplicated or inherited it, or closed it unseen.
 *
 * Layers. `run --writable` mounts an overlay over the mount, which answers no ioctl of ours, so
 * ONEPOT_LAYER has the answer. The files of such a mount have the time at which it was made as
 * their time of change, too. A file that was looked up keeps inode, device and time of access
 * when the overlay copies it to the upper layer, but nobody can set a time of change: by that a
 * file is known to be unchanged, at each call.
 *
 * Finding. An ioctl on any file of the mount answers with a struct intercept_id. Behind its
 * name listens the daemon (an abstract socket, for this user alone). It sends a struct
 * intercept_offer with the same key: names of sockets are no secret, and another user's
 * filesystem could answer with the name of a mount of ours. There are descriptors with it: a
 * table, which says where each file lies that the archive has in one piece without compression,
 * and the files of the archive. The bytes come by pread from these: a bad pointer is EFAULT and
 * a truncated archive a short read, never a signal. Bytes that are not in memory are left to
 * the daemon, which reads ahead.
 *
 * Left to the mount, as measured with files of 20 KB (microseconds of the reader's CPU time a
 * file, on a busy machine; read() from a tmpfs takes 10, as it is done here 15):
 *
 * - fread: 32 in the first epoch after a listing, then 16, from the kernel's page cache. The C
 *   library's FILE calls no exported read(), one of fopencookie() has no descriptor, and its
 *   fields are not ours to set.
 *
 * - readv, preadv: numpy, h5py, OpenCV, Pillow, TensorFlow, ArrayRecord and torch call neither,
 *   says strace; 3,156 reads were all read or pread64.
 *
 * - stat: 3.2, on a tmpfs 2.4. The kernel has the attributes.
 *
 * - Compressed blocks: 110 in the daemon, nearly all of it decompression, and 36 in the reader;
 *   then 14, as the kernel has the content. Each process would decompress them in each epoch.
 *
 * The table is a memory file, filled in once the first process asks. Its first parts have
 * counters and marks, which each process may write; the words behind them are mapped read-only.
 *
 * Marks. A file counts once for a mount, whoever reads how much of it how often, so each has a
 * mark. Processes mark the files that they read themselves and the ones that they leave to the
 * mount, since the kernel may answer from its cache without a word to the daemon. The daemon
 * marks the others, and the ones that it reads ahead.
 */
#ifndef ONEPOT_INTERCEPT_H
#define ONEPOT_INTERCEPT_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <time.h>

#include "bits.h"

#define INTERCEPT_MAGIC UINT64_C(0x33306f69746f706f) /* "opotio03": also the version */
#define INTERCEPT_NAME_BYTES 48

/* Answer to INTERCEPT_IOCTL, which every file of a mount answers if it can be intercepted. */
struct intercept_id {
    uint64_t magic;
    struct timespec made; /* when the mount was made (CLOCK_REALTIME): st_atim of all files */
    uint64_t key;
    char name[INTERCEPT_NAME_BYTES]; /* of the socket, without its leading zero; terminated */
};
#define INTERCEPT_IOCTL _IOR('O', 0x70, struct intercept_id)

/* A file with bytes of the archive, as it was when the mount was made. Changed: ask the mount.
 */
struct intercept_file {
    uint64_t dev, ino;
    uint64_t size_bytes;
    int64_t ctime_sec; /* it changes with every byte and every attribute */
    uint64_t ctime_nsec;
    uint64_t is_memory; /* 1: its bytes lie in memory, on a tmpfs */
};

#define INTERCEPT_FILES_MAX 32u

/* Comes with 1 + `files` descriptors: the table, then the files. */
struct intercept_offer {
    uint64_t magic;
    uint64_t key; /* of the mount: struct intercept_id has the same */
    uint64_t entries;
    uint64_t files;
    struct intercept_file file[INTERCEPT_FILES_MAX];
};

/* Counters of some threads of some processes, so that few write to the same one. */
#define INTERCEPT_SLOTS 64u
struct intercept_slot {
    _Alignas(64) _Atomic uint64_t starts; /* reads that began at offset 0 */
    _Atomic uint64_t files, foreseen;     /* marked as read; of these, read ahead before */
    _Atomic uint64_t reads, bytes;
    _Atomic uint64_t waited_ns;    /* in the reads of the archive */
    _Atomic uint64_t last_read_ns; /* CLOCK_MONOTONIC */
};

/* How far a directory was listed, so that no two processes list the same (links.c). */
#define INTERCEPT_LISTED 1024u
struct intercept_listed {
    _Atomic uint64_t ino;  /* 0: free */
    _Atomic uint64_t next; /* where getdents goes on */
};
#define INTERCEPT_LISTED_ALL UINT64_MAX

/* The table's first part. */
struct intercept_head {
    struct intercept_slot slots[INTERCEPT_SLOTS];
    struct intercept_listed
        listed[INTERCEPT_LISTED];            /* by inode, the last that had the place */
    _Alignas(64) _Atomic uint32_t has_ended; /* the mount: readers close the archive's files */
    _Atomic uint32_t has_refused;            /* EROFS, to a program that wanted to write */
    _Atomic uint32_t lists_ahead;            /* the mount: readers need not list */
};
#define INTERCEPT_HEAD_BYTES (64u << 10) /* whole pages of any size */
_Static_assert(sizeof(struct intercept_head) <= INTERCEPT_HEAD_BYTES, "the head has room");

/* Bytes of the marks behind the head (bits.h), by st_ino - 1 of each inode, in whole pages. */
static inline uint64_t intercept_marks_bytes(uint64_t entries)
{
    return (entries / 4 + INTERCEPT_HEAD_BYTES) / INTERCEPT_HEAD_BYTES * INTERCEPT_HEAD_BYTES;
}

/*
 * Then a word for each inode, by st_ino - 1. 0: ask the mount. Else where the file begins: bit
 * 63 is set, bits 48 to 62 are the number of the file of the archive, and the others the offset
 * in it. fstat tells the size.
 */
#define INTERCEPT_IS_KNOWN (UINT64_C(1) << 63)
#define INTERCEPT_FILE_SHIFT 48
#define INTERCEPT_OFFSET_MAX ((UINT64_C(1) << INTERCEPT_FILE_SHIFT) - 1)

#endif
