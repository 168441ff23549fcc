/*
 * libonepot: samples of packed archives, in the order of training, as batches in memory.
 *
 * Conventions, for every function here:
 *
 * - Functions return 0 or a negative errno; results come back through trailing `ret_`
 *   parameters, which are written on success only. Where a function takes a `struct
 *   onepot_error *`, that may be NULL; on failure it is filled with one line that names
 *   file and member.
 * - Options are structs whose first member is their own size: set it to sizeof, leave
 *   what you don't need 0. A program that was built with an older header goes on working;
 *   one that sets what this library does not know yet gets -E2BIG.
 * - Nothing is printed, no signal is handled, there is no global state.
 * - Handles may be used by several threads at once where their section says so. After
 *   fork(2) a handle works on in the child; both processes close their own.
 *
 * Sizes are bytes; indices count samples from 0.
 */
#ifndef ONEPOT_H
#define ONEPOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONEPOT_API __attribute__((visibility("default")))

#define ONEPOT_ERROR_MAX 1024

/* For options whose 0 is a default: no time is too long, no second try. */
#define ONEPOT_NEVER UINT32_MAX

struct onepot_error {
    int code; /* the negative errno that was returned */
    char text[ONEPOT_ERROR_MAX];
};

/* "0.1.0" */
ONEPOT_API const char *onepot_version(void);

/* ---- sampler: which sample comes when ---- */

/*
 * The order of torch.utils.data.DistributedSampler, bit for bit: element i of a rank is
 *
 *     a[(rank + i * world_size) % samples],  i < length
 *
 * where a is the permutation that torch.randperm makes with seed + epoch (or 0, 1, 2...
 * without shuffle), and the length is samples / world_size, rounded up, or down with
 * drop_last. Where rounding up made some ranks' streams longer than there are samples,
 * the surplus is padding: samples that came before. It is marked as not valid, so that an
 * evaluation can leave it out. Every rank has the same length, always.
 *
 * Threads: functions that take a const sampler may run at once, set_epoch may not.
 */
struct onepot_sampler;

struct onepot_sampler_options {
    size_t size;
    uint64_t samples;    /* how many there are */
    uint64_t rank;       /* < world_size */
    uint64_t world_size; /* 0: rank and size by the launcher's environment, else 0 of 1 */
    uint64_t seed;       /* the same on all ranks; seed + epoch seeds the shuffle */
    uint64_t epoch;
    bool no_shuffle;
    bool drop_last;
    /*
     * For several processes that read for one rank: process `worker` of `workers` has
     * every workers-th element of the rank's stream. 0 workers: one.
     */
    uint64_t worker, workers;
    /*
     * Block shuffle, for data larger than memory on slow storage; 0: a true shuffle.
     * Blocks of `block` neighbours are shuffled, then the samples within each `window`
     * (0: 64) blocks that follow one another. Not torch's order.
     */
    uint64_t block, window;
};

/*
 * Which rank of how many this process is, as samplers and loaders take it from the launcher's
 * environment: 0; 1 where a person should be told what is in `note`: in a shell on a terminal
 * that Slurm started as one of several tasks (srun -n2 --pty bash), Slurm's rank does not
 * count. -EINVAL: an environment that makes no sense.
 */
ONEPOT_API int onepot_launcher_rank(uint64_t *ret_rank, uint64_t *ret_world_size,
                                    struct onepot_error *note);

/*
 * -EINVAL: rank or worker out of range, or an environment that makes no sense; -ENOMEM.
 * Costs 4 bytes for each sample (8 from 2^32 on) while it shuffles, and keeps those of
 * the rank's own elements.
 */
ONEPOT_API int onepot_sampler_new(const struct onepot_sampler_options *options,
                                  struct onepot_error *error,
                                  struct onepot_sampler **ret_sampler);
ONEPOT_API void onepot_sampler_free(struct onepot_sampler *sampler); /* NULL is fine */

/* Elements in an epoch of this rank (and worker). */
ONEPOT_API uint64_t onepot_sampler_length(const struct onepot_sampler *sampler);

ONEPOT_API uint64_t onepot_sampler_rank(const struct onepot_sampler *sampler);
ONEPOT_API uint64_t onepot_sampler_world_size(const struct onepot_sampler *sampler);
ONEPOT_API uint64_t onepot_sampler_epoch(const struct onepot_sampler *sampler);

/* Shuffle for another epoch. -ENOMEM: then the epoch is the one before. */
ONEPOT_API int onepot_sampler_set_epoch(struct onepot_sampler *sampler, uint64_t epoch);

/*
 * Elements [first, first + count): their indices, and 1 or 0 for valid or padding (NULL:
 * not wanted). -ERANGE past the end.
 */
ONEPOT_API int onepot_sampler_get(const struct onepot_sampler *sampler, uint64_t first,
                                  uint64_t count, uint64_t *ret_indices, uint8_t *ret_valid);

/* ---- archives: which samples there are ---- */

/*
 * Samples are the regular files of one or more archives (whatever onepot mounts), or groups
 * of them. Their order is stable: by class, then by directory, then by archive, then by name,
 * in byte order. Labels are the first directory level, sorted: what torchvision's
 * ImageFolder gives to the extracted tree. Symbolic links and other special files are left
 * out.
 *
 * Threads: all functions on an archive may run at once, but for close.
 */
struct onepot_archive;

enum onepot_group {
    ONEPOT_GROUP_NONE = 0, /* each file is a sample */
    /* Files of one directory that agree up to the first dot, as in WebDataset: the sample
     * "a/x" has the parts "jpg" and "cls" if there are a/x.jpg and a/x.cls. Files without
     * a dot are samples of their own; those that begin with one are left out. */
    ONEPOT_GROUP_BASE_NAME = 1,
    ONEPOT_GROUP_DIRECTORY = 2, /* all files of one directory */
};

struct onepot_archive_options {
    size_t size;
    /* Only files that match one of these globs; one with a slash in it is matched against
     * the path, others against the name. Not in groups, only files count. */
    const char *const *filters;
    size_t filter_count;
    /* Only files that end with one of these (".jpg"), in upper or lower case. */
    const char *const *extensions;
    size_t extension_count;
    const char *root; /* only what is below this directory; classes are its children */
    enum onepot_group group;
    uint64_t memory_bytes; /* for unpacking and indexing; 0: what the node has */
    /*
     * For decompressed blocks, and for samples of archives on network filesystems, in each
     * process that reads; 0: as much as the data have, but not more than others of the job
     * leave of a quarter of its memory.
     */
    uint64_t cache_bytes;
    /*
     * Copy the archives to this node in the background, and read what has arrived from there: a
     * directory of this node; "" is memory, $TMPDIR or /tmp, the first with room; NULL: don't.
     * All processes of the user share one copy of an archive, mounts too (onepot-mount(1),
     * --stage). -ENOSPC where it does not fit.
     */
    const char *stage;
    /*
     * How often a read of the storage that fails, with an error that may pass, is tried again,
     * after pauses that grow; a handle that went stale is opened again, if the same file is
     * there. 0: four times, within 2.6 s; ONEPOT_NEVER.
     */
    uint32_t retries;
    /*
     * A sample with more bytes of holes than this, and more than 16 times what it has of
     * others, is refused where all of it would be brought into memory (-EFBIG): an archive of a
     * few kilobytes can hold files of terabytes. onepot_archive_read reads any range of it. 0:
     * 64 MiB; UINT64_MAX: none is refused.
     */
    uint64_t hole_bytes;
};

/*
 * Each path is an archive, a directory whose files are archives (shards), or a pattern as a
 * shell has it ("train-*.tar"). Names that begin with a dot, and saved indexes, are not
 * taken for archives. Errors name the file: of open(2), -EUCLEAN (damaged), -ENOENT
 * (nothing matches), -ENOTSUP, -ENOMEM, -EOVERFLOW (2^32 files or more).
 */
ONEPOT_API int onepot_archive_open(const char *const *paths, size_t path_count,
                                   const struct onepot_archive_options *options,
                                   struct onepot_error *error,
                                   struct onepot_archive **ret_archive);

/* Pointers that were handed out end with the last archive that shares them (see split);
 * loaders keep what they need. NULL is fine. */
ONEPOT_API void onepot_archive_close(struct onepot_archive *archive);

ONEPOT_API uint64_t onepot_archive_samples(const struct onepot_archive *archive);

/*
 * The path of a sample in its archive (of a group: the directory, or the path up to the first
 * dot), terminated. -ERANGE: no such sample; -ENAMETOOLONG; -EUCLEAN.
 */
ONEPOT_API int onepot_archive_name(const struct onepot_archive *archive, uint64_t sample,
                                   char *buf, size_t size, size_t *ret_len);

/* Bytes of a sample; of a group: of all its parts together. -ERANGE. */
ONEPOT_API int onepot_archive_size(const struct onepot_archive *archive, uint64_t sample,
                                   uint64_t *ret_bytes);

/* 0, or -EFBIG for a sample that is refused as nearly all of it are holes (hole_bytes).
 * -ERANGE. */
ONEPOT_API int onepot_archive_check(const struct onepot_archive *archive, uint64_t sample,
                                    struct onepot_error *error);

/* Bytes of each sample, where all have the same size and none is refused; else 0. Looks at all
 * of them. */
ONEPOT_API uint64_t onepot_archive_common_size(const struct onepot_archive *archive);

/*
 * Members that no directory can show, and that are therefore no samples: of all archives that
 * were opened, whatever was selected. 'onepot verify' lists them.
 */
ONEPOT_API uint64_t onepot_archive_left_out(const struct onepot_archive *archive);

/* The number of its class, or -1 if it has none. -ERANGE. */
ONEPOT_API int onepot_archive_label(const struct onepot_archive *archive, uint64_t sample,
                                    int64_t *ret_label);

/* Classes are all directories of the first level, also those without a sample. */
ONEPOT_API uint32_t onepot_archive_classes(const struct onepot_archive *archive);
ONEPOT_API const char *onepot_archive_class(const struct onepot_archive *archive,
                                            uint32_t label); /* NULL: no such class */

/* The first sample that is called `name`. -ENOENT. Looks through all of them. */
ONEPOT_API int onepot_archive_find(const struct onepot_archive *archive, const char *name,
                                   uint64_t *ret_sample);

/*
 * The bytes of a sample where they lie in the mapped archive, not to be written to, for as long
 * as the archive is open; of an archive that is being staged, once they have arrived. -ENOTSUP
 * where they don't (compressed, with holes, in parts, on a network filesystem): then they have
 * to be read. Should the archive be cut short meanwhile, or its storage fail, what is lost
 * becomes zeros (see NOTES of onepot(3)); asked once more, it is -ENOTSUP, and reading tells
 * what is wrong.
 */
ONEPOT_API int onepot_archive_bytes(const struct onepot_archive *archive, uint64_t sample,
                                    const void **ret_bytes, uint64_t *ret_len);

/*
 * Read `len` bytes of a sample from `offset` on (parts one after another); *ret_len is less at
 * its end. Errors name archive and member: -EIO, -EUCLEAN, -ENODATA (archive cut short).
 */
ONEPOT_API int onepot_archive_read(const struct onepot_archive *archive, uint64_t sample,
                                   uint64_t offset, void *buf, size_t len,
                                   struct onepot_error *error, size_t *ret_len);

/*
 * Batches without a loader, for who has an order, threads or processes of their own: first
 * the places of samples in one piece of memory, one behind the other, each at a multiple of
 * `align` (a power of two; 0: 64), and how many bytes all of them take; then their bytes to
 * these places, zeros between them. `buf` has to have that many bytes. Where the archive lies
 * on slow storage several threads read at once, for as long as the call takes.
 * -ERANGE: no such sample; -EFBIG: one is refused (hole_bytes); -EINVAL: no such alignment;
 * -EOVERFLOW; those of reading.
 */
ONEPOT_API int onepot_archive_places(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count, uint32_t align,
                                     uint64_t *ret_offsets, uint64_t *ret_sizes,
                                     uint64_t *ret_bytes);
ONEPOT_API int onepot_archive_gather(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count, uint32_t align,
                                     void *buf, uint64_t size, struct onepot_error *error);

/*
 * How many samples a batch may have so that it takes at most `bytes`, as a loader lays it out
 * (samples at multiples of `align`, 0: 64, and 33 bytes of tables for each): on average, and
 * in the worst case, with the largest samples in it. 0: not even one. -ENOMEM.
 */
ONEPOT_API int onepot_archive_batch_for(const struct onepot_archive *archive, uint64_t bytes,
                                        uint32_t align, uint64_t *ret_mean,
                                        uint64_t *ret_worst);

/* A part of a sample; a file is the only part of itself. */
struct onepot_part {
    size_t size;      /* of this struct; set by the caller */
    const char *name; /* what follows the first dot ("jpg"), or the name in a directory; */
    size_t name_len;  /* not terminated; lives as long as the archive */
    uint64_t bytes;   /* its size */
    uint64_t offset;  /* where it begins in the sample's bytes */
};

ONEPOT_API int onepot_archive_parts(const struct onepot_archive *archive, uint64_t sample,
                                    uint64_t *ret_count);
/* -ERANGE, -EUCLEAN */
ONEPOT_API int onepot_archive_part(const struct onepot_archive *archive, uint64_t sample,
                                   uint64_t part, struct onepot_part *ret_part);

/*
 * Parts of an archive as archives of their own, which share all but a list of samples. They
 * are chosen by a hash of the sample's name and the seed: files that are added later move
 * none of the old ones from one part to another. The order stays that of the archive.
 *
 * split: samples whose hash lies in [low, high) of [0, 1): train 0 to 0.8, test 0.8 to 1.
 * fold: those of fold k of n (held out), or all others.
 * subset: the ones that are listed, in the order of the list.
 *
 * -EINVAL: a fraction or a fold that makes no sense; -ERANGE: no such sample; -ENOMEM.
 */
ONEPOT_API int onepot_archive_split(const struct onepot_archive *archive, double low,
                                    double high, uint64_t seed,
                                    struct onepot_archive **ret_part);
ONEPOT_API int onepot_archive_fold(const struct onepot_archive *archive, uint32_t folds,
                                   uint32_t fold, bool held_out, uint64_t seed,
                                   struct onepot_archive **ret_part);
ONEPOT_API int onepot_archive_subset(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count,
                                     struct onepot_archive **ret_part);

#define ONEPOT_DIGEST_BYTES 16

/*
 * Names this selection of samples: a hash of the content of the archives (names, and sums of
 * the members where the archive has them, else sizes) and of which samples are chosen.
 * The first call may walk over all members. -EUCLEAN, -ENOMEM.
 */
ONEPOT_API int onepot_archive_digest(const struct onepot_archive *archive,
                                     uint8_t ret_digest[ONEPOT_DIGEST_BYTES]);

/* ---- writer: a new archive, file by file ---- */

/*
 * Makes an onepot archive of files that are in memory, for preprocessing that would otherwise
 * write millions of small files first. The archive gets its name when it is finished, and
 * nothing is left of one that is not:
 *
 *     onepot_writer_new("train.tar", NULL, &error, &writer);
 *     for each sample:  onepot_writer_add(writer, "class/name.jpg", bytes, len, NULL, &error);
 *     onepot_writer_finish(writer, &error);
 *
 * Samples lie in the archive as they were added. Directories need not be added.
 *
 * Threads: a writer belongs to one thread at a time; it compresses with threads of its own.
 * A child process can't use its parent's.
 */
struct onepot_writer;

struct onepot_writer_options {
    size_t size;
    bool overwrite; /* replace a file of that name; else -EEXIST */
    bool no_sync;   /* don't wait until it is on the disk */
    uint32_t zstd;  /* compress: 1 to 22; 0: don't */
    uint32_t block; /* bytes of a compressed block, a power of two of 4 KB to 8 MB; 0: 512 KB */
    uint32_t align; /* of data in the archive, a power of two of 512 to 64 KB; not with zstd */
    uint32_t threads; /* that compress; 0: as many as there are CPUs for this process */
};

/* -EINVAL: options that make no sense; of open(2); -EEXIST. */
ONEPOT_API int onepot_writer_new(const char *path, const struct onepot_writer_options *options,
                                 struct onepot_error *error, struct onepot_writer **ret_writer);

struct onepot_file {
    size_t size;
    uint32_t mode;       /* permissions; 0: 0644 */
    uint32_t uid, gid;   /* 0: of root, so that equal content makes equal archives */
    int64_t mtime_sec;   /* 0: the epoch, for the same reason */
    uint32_t mtime_nsec; /* < 10^9 */
};

/*
 * `len` bytes as the file `name`, a path with "/" between its parts; they are copied. `file`
 * may be NULL. -EINVAL: a name that no file can have (empty, with "..", ends with "/");
 * -EEXIST: one that an earlier file or its directory has, or that leads through an earlier
 * file. After these the archive is as good as before; after others, which are those of
 * write(2), nothing more can be added.
 */
ONEPOT_API int onepot_writer_add(struct onepot_writer *writer, const char *name,
                                 const void *bytes, size_t len, const struct onepot_file *file,
                                 struct onepot_error *error);

/* The index, and its name for the archive. Frees the writer, also on failure: then there is no
 * file. */
ONEPOT_API int onepot_writer_finish(struct onepot_writer *writer, struct onepot_error *error);
ONEPOT_API void onepot_writer_discard(struct onepot_writer *writer); /* NULL is fine */

/* ---- loader: batches in memory ---- */

/*
 * A loader's threads gather the samples of a batch into one contiguous piece of memory, a
 * slab, ahead of its consumer, who takes one batch after the other:
 *
 *     struct onepot_loader_options options = {.size = sizeof(options), .batch_size = 256};
 *     onepot_loader_new(archive, &options, &error, &loader);
 *     while (training) {
 *         while ((r = onepot_loader_next(loader, -1, &error, &batch)) > 0) {
 *             ...
 *             onepot_batch_release(batch);
 *         }
 *     }                                       0: the epoch is over; the next call begins
 *     onepot_loader_free(loader);             the one after it, without a gap
 *
 * Slabs are used again once they are released. A consumer that keeps batches makes the
 * loader use more of them, up to memory_bytes; beyond that onepot_loader_next fails
 * with -ENOBUFS until something is released. It never waits for that. What is kept is never
 * taken away, also when others of the job come and want their part.
 *
 * Threads: all functions on a loader may run at once, but for free; of several that go to
 * another place the last one counts. After a fork the child's loader goes on from the same
 * place with threads of its own.
 */
struct onepot_loader;

/*
 * Called on the loader's threads, several at once: make of the `len` bytes of a sample what
 * goes to `out`, at most `room` bytes; 0 and how many there are, or a negative errno.
 */
typedef int onepot_decode(void *ctx, uint64_t sample, const void *bytes, size_t len, void *out,
                          size_t room, size_t *ret_len);

struct onepot_device;
struct onepot_images;

/* Says who puts the samples of a batch together, if it is for a device. */
enum onepot_gather {
    /* A GPU, where it does that nearly as fast as it copies; else the host. */
    ONEPOT_GATHER_AUTO = 0,
    ONEPOT_GATHER_HOST = 1,
    ONEPOT_GATHER_DEVICE = 2, /* or it is an error */
};

struct onepot_loader_options {
    size_t size;
    uint64_t batch_size;       /* samples, of this rank */
    uint64_t rank, world_size; /* as the sampler's: world size 0 asks the environment */
    uint64_t seed, epoch;
    bool no_shuffle;
    bool drop_last; /* leave out padding, and the last batch if it is not full */
    uint64_t block, window;
    uint32_t threads;  /* 0: as many as this process may use CPUs, beside other loaders of the
                          job; more if storage is slow */
    uint32_t prefetch; /* batches ahead; 0: a few, more where storage is slow */
    /*
     * Of slabs; 0: a quarter of what the job has, by ranks of the node, as far as the job's
     * other mounts and loaders on the node leave it, and nobody else uses it.
     */
    uint64_t memory_bytes;
    uint32_t align;   /* of a sample in its slab, a power of two; 0: 64 */
    bool skip_errors; /* a sample that can't be read is left empty and not valid */
    bool verify;      /* compare with the archive's sums, where it has some */
    /*
     * Samples are .npy files: headers are taken off, and data is the dense array that the
     * samples make. All must have the type and the shape of the first.
     */
    bool npy;
    onepot_decode *decode; /* NULL: bytes as they are */
    void *decode_ctx;
    uint64_t decoded_bytes; /* room for what decode makes of one sample */
    /* Batches go over to a device: see onepot_device.h. NULL: they stay with the host. */
    struct onepot_device *device;
    /* The device turns images of one size, bytes by rows, into this. */
    const struct onepot_images *images;
    /*
     * By the device: the archives are page-locked, as they are mapped or as a copy, and no
     * CPU touches a sample. They have to be stored in one piece each, without npy, decode or
     * verify, and take at most half of the job's memory (an eighth if it is not asked for).
     * `data` of batches is NULL then.
     */
    enum onepot_gather gather;
    /*
     * A read of the storage that takes longer is given up: onepot_loader_next fails with -ETIME
     * and names the sample, its batch is lost, and the next call goes on behind it, with
     * another thread in place of the one that hangs. 0: 60 s; ONEPOT_NEVER.
     */
    uint32_t io_timeout_ms;
};

/* A batch: samples in the order of the sampler. All of it lives until it is released, also
 * if the loader is freed before. Data may be written to. */
struct onepot_batch {
    size_t size;
    uint64_t samples; /* in the batch */
    uint64_t epoch;
    uint64_t first;          /* of the elements of this rank in the epoch */
    uint8_t *data;           /* page-aligned; NULL: on the device alone; */
    uint64_t bytes;          /* so many; bytes between samples are zero */
    const uint64_t *offsets; /* [samples]: where each begins in data */
    const uint64_t *sizes;   /* [samples] */
    const int64_t *labels;   /* [samples]: class, or -1 */
    const uint64_t *indices; /* [samples]: in the archive */
    const uint8_t *valid;    /* [samples]: 0 for padding, and for what was skipped */
    uint64_t stride;         /* all samples have this size and follow each other; else 0 */
};

/* -EINVAL: an option makes no sense, samples are no .npy files of one kind; -ENOMEM;
 * -EAGAIN: no thread could be started; and read errors of the first sample for npy. */
ONEPOT_API int onepot_loader_new(const struct onepot_archive *archive,
                                 const struct onepot_loader_options *options,
                                 struct onepot_error *error, struct onepot_loader **ret_loader);
/* A thread that hangs in a read is left behind after a second. NULL is fine. */
ONEPOT_API void onepot_loader_free(struct onepot_loader *loader);

/*
 * 1 and the next batch; 0 at the end of an epoch. -ETIMEDOUT: not ready after
 * `timeout_ms` (-1: wait as long as it takes). -ENOBUFS: the batches that are kept use all
 * of memory_bytes. -ETIME: a read takes longer than io_timeout_ms; with skip_errors, too.
 * Errors of a sample name it, -EFBIG (hole_bytes) as those of reading; the batch is lost then,
 * and the next call goes on behind it.
 */
ONEPOT_API int onepot_loader_next(struct onepot_loader *loader, int timeout_ms,
                                  struct onepot_error *error,
                                  const struct onepot_batch **ret_batch);
ONEPOT_API void onepot_batch_release(const struct onepot_batch *batch); /* NULL is fine */
/* One more release is needed. Any thread may call both, at any time. */
ONEPOT_API void onepot_batch_keep(const struct onepot_batch *batch);

/* Batches and samples in an epoch of this rank. */
ONEPOT_API uint64_t onepot_loader_batches(const struct onepot_loader *loader);
ONEPOT_API uint64_t onepot_loader_samples(const struct onepot_loader *loader);

/* The epoch of the next batch, and where in it: elements of this rank already delivered. */
ONEPOT_API uint64_t onepot_loader_epoch(const struct onepot_loader *loader, uint64_t *ret_done);

/* Go to the start of an epoch. Costs nothing where the loader is there already. */
ONEPOT_API int onepot_loader_set_epoch(struct onepot_loader *loader, uint64_t epoch);

/* The kind of .npy samples. */
struct onepot_npy {
    size_t size;
    char type[16]; /* numpy's name: "<f4" */
    bool fortran_order;
    uint32_t dimensions;
    uint64_t shape[32];
    uint64_t bytes; /* of one sample */
};
/* -ENOTSUP: the loader was not made for them. */
ONEPOT_API int onepot_loader_npy(const struct onepot_loader *loader,
                                 struct onepot_npy *ret_npy);

/* ---- where a loader is: to go on in another job ---- */

/*
 * Batches that were delivered count, those gathered ahead do not. A loader with another
 * number of ranks goes on where this one was, as long as the global batch (batch size times
 * world size) is the same. All numbers may be printed and read back.
 */
struct onepot_state {
    size_t size;
    uint64_t version; /* 1 */
    uint64_t samples; /* of the archive */
    uint64_t seed, epoch;
    uint64_t done; /* elements of the epoch that all ranks together have had */
    uint64_t shuffle, drop_last, block, window;
    char digest[2 * ONEPOT_DIGEST_BYTES + 1]; /* of the archive, hexadecimal */
};

/* The digest may take a walk over the archive, once. */
ONEPOT_API int onepot_loader_state(struct onepot_loader *loader, struct onepot_error *error,
                                   struct onepot_state *ret_state);

/* -ESTALE: the state is another archive's; -EINVAL: it can't be continued by these ranks, or
 * not with these options. The seed is taken over. */
ONEPOT_API int onepot_loader_restore(struct onepot_loader *loader,
                                     const struct onepot_state *state,
                                     struct onepot_error *error);

/*
 * Samples delivered in the present epoch (or since it was entered), without padding:
 * a number and sums of hashes, which don't depend on order. Those of all ranks, added up, are
 * those of the archive if each sample came once.
 */
struct onepot_delivered {
    uint64_t samples, sum_a, sum_b;
};
ONEPOT_API void onepot_loader_delivered(struct onepot_loader *loader,
                                        struct onepot_delivered *ret_delivered);
ONEPOT_API void onepot_archive_all(const struct onepot_archive *archive,
                                   struct onepot_delivered *ret_delivered);
ONEPOT_API void onepot_delivered_add(struct onepot_delivered *to,
                                     const struct onepot_delivered *more);

struct onepot_stats {
    size_t size;
    uint64_t batches, samples, bytes; /* delivered */
    uint64_t wait_ns;                 /* that next waited for a batch */
    uint64_t gather_ns;               /* that the threads worked, added up */
    uint64_t skipped;                 /* samples that could not be read */
    uint64_t slab_bytes;              /* in use now, at most memory_bytes */
    uint32_t threads, prefetch;       /* threads: that may work now, beside others of the job */
    uint64_t memory_bytes;
    uint64_t part_bytes; /* of these, what slabs may have now, beside others of the job */
    /* This process's use of the archive, all its loaders together: reads that were answered
     * from the cache and that were not, the bytes that it holds and may hold, and what was
     * asked of the storage, where it is not mapped. */
    uint64_t cache_hits, cache_misses, cache_bytes, cache_part_bytes;
    uint64_t reads, read_bytes;
};
ONEPOT_API void onepot_loader_stats(struct onepot_loader *loader,
                                    struct onepot_stats *ret_stats);

#ifdef __cplusplus
}
#endif

#endif
