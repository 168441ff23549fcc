/*
 * libonepot: reads samples from packed archives in training order, as batches in memory.
 *
 * Conventions, for every function here:
 *
 * - Functions return 0 or a negative errno. Results come back through trailing `ret_`
 *   parameters, which are written on success only. A `struct onepot_error *` may be NULL; on
 *   failure it receives one line that names file and member.
 * - The first member of an option struct, and of a struct for a result, is its own size. Set it
 *   to sizeof, and leave options that you don't need 0. A program built with an older header
 *   goes on working. One that sets an option unknown to this library gets -E2BIG; one that
 *   leaves the size 0 gets -EINVAL.
 * - The library prints nothing, handles no signal and has no global state.
 * - Several threads may use a handle at once where its section says so. After fork(2) a handle
 *   works on in the child; parent and child each close their own.
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

/* For options whose 0 means a default: wait without a time limit, or never retry. */
#define ONEPOT_NEVER UINT32_MAX

struct onepot_error {
    int code; /* the negative errno that was returned */
    char text[ONEPOT_ERROR_MAX];
};

/* "0.1.0" */
ONEPOT_API const char *onepot_version(void);

/* ---- sampler: which sample comes when ---- */

/*
 * The order of torch.utils.data.DistributedSampler, bit for bit. Element i of a rank is
 *
 *     a[(rank + i * world_size) % samples],  i < length
 *
 * where a is the permutation that torch.randperm makes with seed + epoch (without shuffle: 0,
 * 1, 2...). The length is samples / world_size, rounded up, or down with drop_last. All ranks
 * have the same length. Where rounding up needs more elements than there are samples, the
 * surplus is padding: it repeats earlier samples. Padding is marked as not valid, so that an
 * evaluation can leave it out.
 *
 * Threads: functions that take a const sampler may run at once; set_epoch may not.
 */
struct onepot_sampler;

struct onepot_sampler_options {
    size_t size;
    uint64_t samples;    /* number of samples */
    uint64_t rank;       /* < world_size */
    uint64_t world_size; /* 0: rank and world size by the launcher's environment, else 0 of 1 */
    uint64_t seed;       /* the same on all ranks; seed + epoch seeds the shuffle */
    uint64_t epoch;
    bool no_shuffle;
    bool drop_last;
    /*
     * For several processes that read for one rank: process `worker` of `workers` has every
     * workers-th element of the rank's stream. 0 workers means 1.
     */
    uint64_t worker, workers;
    /*
     * Block shuffle, for data larger than memory on slow storage. 0: a true shuffle. Blocks of
     * `block` neighbours are shuffled, then the samples within each `window` consecutive blocks
     * (0: 64). This is not torch's order.
     */
    uint64_t block, window;
};

/*
 * The rank of this process and the number of ranks, as samplers and loaders take them from the
 * launcher's environment. Returns 0, or 1 if a person should read `note`: Slurm's rank does not
 * count in an interactive shell that Slurm started as one of several tasks (srun -n2 --pty
 * bash). -EINVAL: the environment makes no sense.
 */
ONEPOT_API int onepot_launcher_rank(uint64_t *ret_rank, uint64_t *ret_world_size,
                                    struct onepot_error *note);

/*
 * While it shuffles, this takes 4 bytes for each sample (8 from 2^32 samples on). Afterwards
 * the sampler keeps the rank's own elements alone. -EINVAL: rank or worker out of range, or an
 * environment that makes no sense. -ENOMEM.
 */
ONEPOT_API int onepot_sampler_new(const struct onepot_sampler_options *options,
                                  struct onepot_error *error,
                                  struct onepot_sampler **ret_sampler);
ONEPOT_API void onepot_sampler_free(struct onepot_sampler *sampler); /* NULL is fine */

/* Elements in an epoch of this rank (of this worker, where there are several). */
ONEPOT_API uint64_t onepot_sampler_length(const struct onepot_sampler *sampler);

ONEPOT_API uint64_t onepot_sampler_rank(const struct onepot_sampler *sampler);
ONEPOT_API uint64_t onepot_sampler_world_size(const struct onepot_sampler *sampler);
ONEPOT_API uint64_t onepot_sampler_epoch(const struct onepot_sampler *sampler);

/* Shuffle for another epoch. -ENOMEM: the sampler keeps its present epoch. */
ONEPOT_API int onepot_sampler_set_epoch(struct onepot_sampler *sampler, uint64_t epoch);

/*
 * Elements [first, first + count): their indices, and 1 for valid or 0 for padding. `ret_valid`
 * may be NULL. -ERANGE: past the end.
 */
ONEPOT_API int onepot_sampler_get(const struct onepot_sampler *sampler, uint64_t first,
                                  uint64_t count, uint64_t *ret_indices, uint8_t *ret_valid);

/* ---- archives: which samples there are ---- */

/*
 * Samples are the regular files of one or more archives of any format that onepot mounts, or
 * groups of such files. Their order is stable: by class, then directory, then archive, then
 * name, in byte order. Labels number the sorted directories of the first level, as
 * torchvision's ImageFolder does for the extracted tree. A symbolic link that leads to a file
 * in the archives is a sample with that file's bytes and the link's own path, and a directory
 * that links lead to is one more directory, up to 40 links deep. Other special files are left
 * out.
 *
 * Threads: all functions on an archive may run at once, except close.
 */
struct onepot_archive;

enum onepot_group {
    ONEPOT_GROUP_NONE = 0, /* each file is a sample */
    /*
     * Files of one directory whose names agree up to the first dot, as in WebDataset: the
     * sample "a/x" has the parts "jpg" and "cls" if a/x.jpg and a/x.cls exist. A file without a
     * dot is a separate sample. Files that begin with a dot are left out.
     */
    ONEPOT_GROUP_BASE_NAME = 1,
    ONEPOT_GROUP_DIRECTORY = 2, /* all files of one directory */
    /*
     * One file below each of part_folders, as images and their masks: files are one sample if
     * their paths below these folders agree up to the last dot. That path is the sample's name,
     * and its first directory the class. Files that begin with a dot are left out.
     */
    ONEPOT_GROUP_FOLDERS = 3,
};

struct onepot_archive_options {
    size_t size;
    /*
     * Only files that match one of these globs. A glob with a slash is matched against the
     * path, any other against the name. For single files only, not for groups.
     */
    const char *const *filters;
    size_t filter_count;
    /* Only files whose names end with one of these (".jpg"), in upper or lower case. */
    const char *const *extensions;
    size_t extension_count;
    const char *root; /* only files below this directory; its children are the classes */
    enum onepot_group group;
    uint64_t memory_bytes; /* for unpacking and indexing; 0: the node's */
    /*
     * Cache of each process that reads: for decompressed blocks, and for samples of archives on
     * network filesystems. 0: as much as the data needs, up to what others of the job leave of
     * a quarter of its memory.
     */
    uint64_t cache_bytes;
    /*
     * Copy the archives to this directory of the node in the background, and read from there
     * what has arrived. "": memory, $TMPDIR or /tmp, the first with enough room. NULL: no copy.
     * All processes of the user share one copy of an archive, mounts included (onepot-mount(1),
     * --stage). "job", or "" where the environment has ONEPOT_STAGE=job: --stage=job there.
     * -ENOSPC: it does not fit.
     */
    const char *stage;
    /*
     * How often to retry a read of the storage that failed with an error that may pass. The
     * pauses between tries grow. A stale handle is opened again if the same file is still
     * there. 0: four times, within 2.6 s. ONEPOT_NEVER: not at all.
     */
    uint32_t retries;
    /*
     * Protects memory: an archive of a few kilobytes can hold files of terabytes. A sample with
     * more bytes of holes than this, and more than 16 times its other bytes, is refused
     * (-EFBIG) where all of it would be brought into memory. onepot_archive_read still reads
     * any range of it. 0: 64 MiB. UINT64_MAX: none is refused below 2^63 - 1 bytes.
     */
    uint64_t hole_bytes;
    /*
     * A part of the archives, or members under other names, as onepot-mount(1) has them: globs
     * to leave out and to show, in this order (the first that matches decides; then what none
     * matches is shown only if there are no includes); a file of names; a file of names in the
     * archive and names to show. What one of several archives lacks is no error, but what all
     * of them lack is.
     */
    const char *const *excludes;
    size_t exclude_count;
    const char *const *includes;
    size_t include_count;
    const char *files_from;
    const char *map;
    /*
     * Archives in the archives are directories: if they match this glob; "": if they have an
     * archive's ending, as 'onepot mount --nested' does. NULL: they are files.
     */
    const char *nested;
    /*
     * The part of each sample that has its label, an integer as text: "cls" of WebDataset's
     * x.jpg and x.cls; the name of an integer feature of TFRecords ("image/class/label"). For
     * samples of a single file it is the file whose name agrees with theirs up to the first
     * dot, even where a filter leaves that out. A sample without the part has the label -1.
     * There are no classes then. NULL: classes are the labels.
     */
    const char *label_part;
    const char *list_name; /* what messages call files_from or map; NULL: by its path */
    /*
     * Called a few times a second, by the thread that opens and with signals blocked, while an
     * archive without an index is read for the first time or unpacked: which one, the step
     * ("indexing"), and how many bytes of how many (0: unknown) were read. It returns 0;
     * anything else ends the opening with -ECANCELED. NULL: it is silent.
     */
    int (*progress)(void *ctx, const char *path, const char *doing, uint64_t bytes,
                    uint64_t total_bytes);
    void *progress_ctx;
    /* Of tars that were joined to one file, all, as 'onepot mount --ignore-zeros' shows. */
    bool ignore_zeros;
    bool allow_empty; /* no samples at all are no error */
    /*
     * For ONEPOT_GROUP_FOLDERS: the name of each part, and the directory below `root` that has
     * its files. No directory is in another one. Parts lie in a sample in this order.
     */
    const char *const *part_names, *const *part_folders;
    size_t part_count;
    /*
     * Each path is a folder of few large files, which are the samples, as 'onepot mount
     * --plain' shows them. A file that is changed later fails to be read (-EIO).
     */
    bool plain;
};

/*
 * Each path is an archive, a directory whose files are archives (shards), or a shell pattern
 * ("train-*.tar"). Saved indexes and names that begin with a dot are not taken for archives.
 * Errors name the file: open(2)'s, -ENOMSG (no archive of a known format), -EUCLEAN (damaged),
 * -ENOENT (nothing matches, or there are no samples; see allow_empty), -EEXIST (two files of
 * one folder are the same part of a sample), -ENOTSUP, -ENOMEM, -EOVERFLOW (2^32 files or more,
 * or links that multiply the files).
 */
ONEPOT_API int onepot_archive_open(const char *const *paths, size_t path_count,
                                   const struct onepot_archive_options *options,
                                   struct onepot_error *error,
                                   struct onepot_archive **ret_archive);

/*
 * Pointers that were handed out stay valid until the last archive that shares them is closed
 * (see split). Loaders keep what they need. NULL is fine.
 */
ONEPOT_API void onepot_archive_close(struct onepot_archive *archive);

ONEPOT_API uint64_t onepot_archive_samples(const struct onepot_archive *archive);

/*
 * The path of a sample in its archive, NUL-terminated. For a group: the directory, or the path
 * up to the first dot. -ERANGE: no such sample. -ENAMETOOLONG: longer than the buffer.
 * -EUCLEAN: damaged.
 */
ONEPOT_API int onepot_archive_name(const struct onepot_archive *archive, uint64_t sample,
                                   char *buf, size_t size, size_t *ret_len);

/* The size of a sample in bytes; for a group, of all its parts together, at most 2^63 - 1.
 * -ERANGE. */
ONEPOT_API int onepot_archive_size(const struct onepot_archive *archive, uint64_t sample,
                                   uint64_t *ret_bytes);

/*
 * 0, or -EFBIG for a sample that is refused because nearly all of it is holes (hole_bytes).
 * -ERANGE.
 */
ONEPOT_API int onepot_archive_check(const struct onepot_archive *archive, uint64_t sample,
                                    struct onepot_error *error);

/*
 * The size in bytes that all samples have, if none is refused; 0 if sizes differ. Looks at all
 * samples.
 */
ONEPOT_API uint64_t onepot_archive_common_size(const struct onepot_archive *archive);

/*
 * Members of all opened archives that no directory can show, and that therefore are no samples.
 * They count whatever was selected. 'onepot verify' lists them.
 */
ONEPOT_API uint64_t onepot_archive_left_out(const struct onepot_archive *archive);

/*
 * Symbolic links below the root that lead out of the archives or nowhere, or over more than 40
 * links, and that therefore are no samples. They count whatever filters select. *ret_first is
 * the path of the first, or NULL; it is valid as long as the archive is open.
 */
ONEPOT_API uint64_t onepot_archive_passed_over(const struct onepot_archive *archive,
                                               const char **ret_first);

/*
 * Files below part_folders that are no samples, because another folder has no file for them.
 * *ret_first: as in onepot_archive_passed_over.
 */
ONEPOT_API uint64_t onepot_archive_unpaired(const struct onepot_archive *archive,
                                            const char **ret_first);

/*
 * The number of the sample's class, or -1 if it has none. With label_part, the label that is
 * read from that part: -EDOM if it is no integer, and errors of reading. -ERANGE.
 */
ONEPOT_API int onepot_archive_label(const struct onepot_archive *archive, uint64_t sample,
                                    struct onepot_error *error, int64_t *ret_label);

/* The number of classes: all directories of the first level, also those without a sample. */
ONEPOT_API uint32_t onepot_archive_classes(const struct onepot_archive *archive);
ONEPOT_API const char *onepot_archive_class(const struct onepot_archive *archive,
                                            uint32_t label); /* NULL: no such class */

/* The first sample with this name. Looks through all of them. -ENOENT: there is none. */
ONEPOT_API int onepot_archive_find(const struct onepot_archive *archive, const char *name,
                                   uint64_t *ret_sample);

/*
 * The bytes of a sample where they lie in the mapped archive: read-only, valid as long as the
 * archive is open. -ENOTSUP: the sample does not lie there in one piece (compressed, with
 * holes, in parts, on a network filesystem, or staged and not arrived yet), and has to be read.
 * If the archive is cut short meanwhile, or its storage fails, lost bytes become zeros (NOTES
 * in onepot(3)); a later call then returns -ENOTSUP, and the read itself reports the reason.
 */
ONEPOT_API int onepot_archive_bytes(const struct onepot_archive *archive, uint64_t sample,
                                    const void **ret_bytes, uint64_t *ret_len);

/*
 * Read `len` bytes of a sample from `offset` on, its parts one after another. *ret_len is less
 * at the sample's end. Errors name archive and member: -EIO, -EUCLEAN, -ENODATA (the archive
 * was cut short).
 */
ONEPOT_API int onepot_archive_read(const struct onepot_archive *archive, uint64_t sample,
                                   uint64_t offset, void *buf, size_t len,
                                   struct onepot_error *error, size_t *ret_len);

/*
 * Batches without a loader, for programs with an order, threads or processes of their own.
 * onepot_archive_places lays the samples out in one piece of memory, each at a multiple of
 * `align` (a power of two; 0: 64), and tells how many bytes they take. onepot_archive_gather
 * reads them to these places in `buf`, which must have that many bytes, and puts zeros between
 * them. On slow storage several threads read at once during the call.
 *
 * -ERANGE: no such sample. -EFBIG: a sample is refused (hole_bytes). -EINVAL: no such
 * alignment. -EOVERFLOW. Gathering also fails with -ENOMEM and the errors of
 * onepot_archive_read.
 */
ONEPOT_API int onepot_archive_places(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count, uint32_t align,
                                     uint64_t *ret_offsets, uint64_t *ret_sizes,
                                     uint64_t *ret_bytes);
ONEPOT_API int onepot_archive_gather(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count, uint32_t align,
                                     void *buf, uint64_t size, struct onepot_error *error);

/*
 * The largest number of samples whose batch takes at most `bytes` in the layout of a loader:
 * samples at multiples of `align` (0: 64), and 33 bytes of tables for each. One result is for
 * samples of average size, the other for the largest samples. 0: not even one fits. -ENOMEM.
 */
ONEPOT_API int onepot_archive_batch_for(const struct onepot_archive *archive, uint64_t bytes,
                                        uint32_t align, uint64_t *ret_mean,
                                        uint64_t *ret_worst);

/* A part of a sample. A sample of one file has one part. */
struct onepot_part {
    size_t size;      /* of this struct; set by the caller */
    const char *name; /* what follows the first dot ("jpg"), the name in a directory, or the
                         one that was given with a folder; */
    size_t name_len;  /* not NUL-terminated; lives as long as the archive */
    uint64_t bytes;   /* its size */
    uint64_t offset;  /* where it begins in the sample's bytes */
};

ONEPOT_API int onepot_archive_parts(const struct onepot_archive *archive, uint64_t sample,
                                    uint64_t *ret_count);
/* -ERANGE, -EUCLEAN */
ONEPOT_API int onepot_archive_part(const struct onepot_archive *archive, uint64_t sample,
                                   uint64_t part, struct onepot_part *ret_part);

/*
 * Parts of an archive as archives of their own, which share everything but a list of samples.
 * The order of the archive stays.
 *
 * - split: samples for which a hash of name and seed lies in [low, high) of [0, 1): train 0 to
 *   0.8, test 0.8 to 1. Files added later move no older file from one part to another.
 * - fold: samples of fold k of n (held out), or all others. Sizes of folds differ by one at
 *   most. In the order of the hashes each fold is a range, so that a file added later moves few
 *   others. `stratify`: folds also have equally many samples of each label, to within one;
 *   files added later move others. It may read labels.
 * - subset: the listed samples, in the order of the list.
 *
 * -EINVAL: a fraction or a fold that makes no sense. -ERANGE: no such sample. -ENOMEM. Errors
 * of onepot_archive_label.
 */
ONEPOT_API int onepot_archive_split(const struct onepot_archive *archive, double low,
                                    double high, uint64_t seed,
                                    struct onepot_archive **ret_part);
ONEPOT_API int onepot_archive_fold(const struct onepot_archive *archive, uint32_t folds,
                                   uint32_t fold, bool held_out, uint64_t seed, bool stratify,
                                   struct onepot_error *error,
                                   struct onepot_archive **ret_part);
ONEPOT_API int onepot_archive_subset(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count,
                                     struct onepot_archive **ret_part);

#define ONEPOT_DIGEST_BYTES 16

/*
 * A hash that identifies this selection of samples: of the archives' content (names, and the
 * members' sums where the archive has them, else sizes) and of which samples are chosen. The
 * first call may walk over all members. -EUCLEAN, -ENOMEM.
 */
ONEPOT_API int onepot_archive_digest(const struct onepot_archive *archive,
                                     uint8_t ret_digest[ONEPOT_DIGEST_BYTES]);

/*
 * The digest of the archives' tree, whatever was chosen of it, as 'onepot info --digest' prints
 * it: names, types, modes and contents, the same in any format. Where the index can't make it,
 * the first call reads all files, unless 'onepot index --digest' did so before. Several
 * archives are one tree; if they can't be, because two have one name, or views show parts of
 * them, it is a hash of their digests. Of the options, only progress and progress_ctx have an
 * effect; NULL: it is silent. -EUCLEAN, -ENOMEM, -ECANCELED (by progress), -EINTR (a signal
 * came, and was handled), -ESTALE (an archive was replaced or changed), or errors of reading.
 */
ONEPOT_API int onepot_archive_data_digest(const struct onepot_archive *archive,
                                          const struct onepot_archive_options *options,
                                          struct onepot_error *error,
                                          uint8_t ret_digest[ONEPOT_DIGEST_BYTES]);

/* ---- writer: a new archive, file by file ---- */

/*
 * Makes an onepot archive of files in memory, for preprocessing that would otherwise write
 * millions of small files first. The archive gets its name when it is finished; an unfinished
 * one leaves nothing behind:
 *
 *     onepot_writer_new("train.tar", NULL, &error, &writer);
 *     for each sample:  onepot_writer_add(writer, "class/name.jpg", bytes, len, NULL, &error);
 *     onepot_writer_finish(writer, &error);
 *
 * Samples lie in the archive in the order in which they were added. Directories need not be
 * added.
 *
 * Threads: a writer belongs to one thread at a time; it starts threads that compress. A child
 * process can't use its parent's writer.
 */
struct onepot_writer;

struct onepot_writer_options {
    size_t size;
    bool overwrite; /* replace an existing file; else -EEXIST */
    bool no_sync;   /* don't wait until the archive is on the disk */
    uint32_t zstd;  /* compression level, 1 to 22; 0: store */
    uint32_t block; /* bytes of a compressed block, a power of two of 4 KB to 8 MB; 0: 512 KB */
    uint32_t align; /* of data in the archive, a power of two of 512 to 64 KB; not with zstd */
    uint32_t threads; /* that compress; 0: one for each CPU of this process */
};

/* -EINVAL: options that make no sense. -EEXIST. Errors of open(2). */
ONEPOT_API int onepot_writer_new(const char *path, const struct onepot_writer_options *options,
                                 struct onepot_error *error, struct onepot_writer **ret_writer);

struct onepot_file {
    size_t size;
    uint32_t mode;       /* permissions; 0: 0644 */
    uint32_t uid, gid;   /* 0: root, so that equal content makes equal archives */
    int64_t mtime_sec;   /* 0: the epoch, for the same reason */
    uint32_t mtime_nsec; /* < 10^9 */
};

/*
 * Add `len` bytes, which are copied, as the file `name`, a path with "/" between its parts.
 * `file` may be NULL.
 *
 * -EINVAL: no file can have this name (empty, with "..", ends with "/"). -EEXIST: an earlier
 * file or its directory has the name, or the path leads through an earlier file. After these
 * two the archive is as good as before. After any other error, which is one of write(2),
 * nothing more can be added.
 */
ONEPOT_API int onepot_writer_add(struct onepot_writer *writer, const char *name,
                                 const void *bytes, size_t len, const struct onepot_file *file,
                                 struct onepot_error *error);

/*
 * Write the index and give the archive its name. Frees the writer, also on failure; a failure
 * leaves no file.
 */
ONEPOT_API int onepot_writer_finish(struct onepot_writer *writer, struct onepot_error *error);
ONEPOT_API void onepot_writer_discard(struct onepot_writer *writer); /* NULL is fine */

/* ---- images: pictures in files, decoded to pixels of one size ---- */

/*
 * Samples are JPEG or PNG files, .npy arrays of bytes [height][width] or
 * [height][width][channels], or bytes as they are (raw_*). In a sample of several parts, the
 * first part that is one of these counts. Grey pictures become three equal channels; an alpha
 * channel is left out; CMYK is converted as PIL does it; of 16 bits the upper eight are taken.
 * Orientation by EXIF is not applied, as in torchvision's ImageFolder.
 *
 * Only the part of a picture that is needed gets decoded, then is resampled once, with the
 * filter widened where the picture shrinks (as PIL's and torchvision's antialiased resizing).
 *
 * A random crop and flip depend on the seed, the epoch and the sample's number alone: they are
 * the same on any number of ranks and threads, and after a resume.
 */
enum onepot_crop {
    /* torchvision's RandomResizedCrop: of `scale` of the area, with a ratio of width to height.
     */
    ONEPOT_CROP_RANDOM = 0,
    /* The shorter side is resized to `resize`, and the centre is cut out. */
    ONEPOT_CROP_CENTRE = 1,
    /* The whole picture, whatever its ratio. */
    ONEPOT_CROP_NONE = 2,
};

enum onepot_interpolation {
    ONEPOT_BILINEAR = 0,
    ONEPOT_BICUBIC = 1,
    /*
     * For masks, whose values are classes: each value of the result is one of the file's. Of a
     * PNG with a palette these are the numbers of the colours, of a grey one with 1 to 4 bits
     * its values from 0 on. 16 bits are refused, as they would not fit. JPEG is not shrunk.
     */
    ONEPOT_NEAREST = 2,
};

enum onepot_float {
    ONEPOT_FLOAT = 1,
    ONEPOT_HALF = 2,
    ONEPOT_BFLOAT16 = 3,
};

/* With a sample that is no picture, or a damaged one. Errors of reading are no such errors. */
enum onepot_on_error {
    ONEPOT_ERROR_RAISE = 0, /* the batch is lost, and the error names the sample */
    ONEPOT_ERROR_SKIP = 1,  /* zeros, and not valid; counted in stats.skipped */
    ONEPOT_ERROR_GREY = 2,  /* a grey picture; counted in stats.skipped */
};

struct onepot_images {
    size_t size;
    uint32_t height, width; /* of the result; 0: 224 */
    enum onepot_crop crop;
    float scale[2], ratio[2]; /* of random crops; 0: 0.08 to 1, and 3/4 to 4/3 */
    bool no_flip;             /* random crops are flipped left to right in half of the cases */
    uint32_t resize;          /* 0: 256 for 224, in proportion; at least height and width */
    enum onepot_interpolation interpolation;
    /*
     * 0: bytes. Else floats: byte / 255, minus the channel's mean, divided by its std (all of
     * them 0: mean 0 and std 1).
     */
    enum onepot_float type;
    float mean[3], std[3];
    bool channels_last; /* [height][width][3] in place of [3][height][width] */
    bool exact;         /* JPEG is not shrunk while it is decoded: up to half as fast */
    enum onepot_on_error on_error;
    uint32_t raw_height, raw_width,
        raw_channels; /* of samples that are mere bytes; 1, 3 or 4 */
    /* The part of each sample that is the picture (onepot_part). NULL: the first that is one.
     */
    const char *part;
    /*
     * Further images, of another part of each sample: up to ONEPOT_IMAGES_MAX together. The
     * images of a sample follow each other, each at a multiple of 64 bytes; so do the samples.
     * Pictures of one size get the same random crop if size, scale, ratio and no_flip agree.
     * on_error must agree. NULL: nothing.
     */
    const struct onepot_images *next;
};

#define ONEPOT_IMAGES_MAX 8u

/* The bytes of the images of one sample. -EINVAL: an option makes no sense. */
ONEPOT_API int onepot_images_bytes(const struct onepot_images *images,
                                   struct onepot_error *error, uint64_t *ret_bytes);

/*
 * Decode samples to `buf`, one image after another, on the calling thread. ret_valid may be
 * NULL, else it has a 0 for each sample that was skipped. -EINVAL: an option makes no sense, or
 * `size` is not enough. -ERANGE: no such sample. -ENOTSUP: this library was built without what
 * decodes the format. -EILSEQ: no picture, or a damaged one. Errors of onepot_archive_read.
 */
ONEPOT_API int onepot_archive_images(const struct onepot_archive *archive,
                                     const uint64_t *samples, uint64_t count,
                                     const struct onepot_images *images, uint64_t seed,
                                     uint64_t epoch, void *buf, uint64_t size,
                                     uint8_t *ret_valid, struct onepot_error *error);

/* ---- loader: batches in memory ---- */

/*
 * The threads of a loader gather the samples of a batch into one contiguous piece of memory, a
 * slab. They work ahead of the consumer, which takes one batch after another:
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
 * Released slabs are used again. A consumer that keeps batches makes the loader use more slabs,
 * up to memory_bytes. Beyond that onepot_loader_next does not wait: it fails with -ENOBUFS
 * until something is released. Kept batches are never taken away, not even when other processes
 * of the job start and want their part.
 *
 * Threads: all functions on a loader may run at once, except free. If several threads go to
 * another place, the last one counts. After a fork the child's loader starts its own threads
 * and goes on from the same place.
 */
struct onepot_loader;

/*
 * Decodes one sample: turns the `len` bytes at `bytes` into at most `room` bytes at `out`.
 * Called on the loader's threads, several at once. Returns 0 and the number of bytes, or a
 * negative errno.
 */
typedef int onepot_decode(void *ctx, uint64_t sample, const void *bytes, size_t len, void *out,
                          size_t room, size_t *ret_len);

struct onepot_device;
struct onepot_conversion;
struct onepot_images;

#define ONEPOT_DEVICES_MAX 64u

/* Which side puts the samples of a batch together, if the batch is for a device. */
enum onepot_gather {
    ONEPOT_GATHER_AUTO = 0, /* the host */
    ONEPOT_GATHER_HOST = 1,
    ONEPOT_GATHER_DEVICE = 2, /* fail where a device can't */
};

struct onepot_loader_options {
    size_t size;
    uint64_t batch_size;       /* samples, of this rank */
    uint64_t rank, world_size; /* as for the sampler: world size 0 asks the environment */
    uint64_t seed, epoch;
    bool no_shuffle;
    bool drop_last; /* leave out padding, and the last batch if it is not full */
    uint64_t block, window;
    uint32_t threads;  /* 0: one for each CPU that this process may use beside other loaders of
                          the job, more if storage is slow, until a copy is whole */
    uint32_t prefetch; /* batches ahead; 0: a few, more where storage is slow */
    /*
     * Of slabs. 0: this rank's share of a quarter of the job's memory, as far as nobody else
     * uses that memory and other mounts and loaders of the job on this node leave it.
     */
    uint64_t memory_bytes;
    uint32_t align;   /* of a sample in its slab, a power of two; 0: 64 */
    bool skip_errors; /* leave an unreadable sample empty and not valid */
    bool verify;      /* compare with the archive's sums, where it has some */
    /*
     * Samples are .npy files: headers are removed, and `data` is the dense array of all
     * samples. All samples must have the type and the shape of the first.
     */
    bool npy;
    onepot_decode *decode; /* NULL: bytes as they are */
    void *decode_ctx;
    uint64_t decoded_bytes; /* room for one decoded sample */
    /* Move batches to a device, see onepot_device.h. NULL: they stay in host memory. */
    struct onepot_device *device;
    /* The device turns images of one size, bytes by rows, into this format. */
    const struct onepot_conversion *convert;
    /*
     * If the device gathers, the archives are page-locked, as they are mapped or as a copy, and
     * no CPU touches a sample. This needs samples that are stored in one piece each, without
     * npy, decode or verify, and archives of at most half of the job's memory. `data` of
     * batches is then NULL.
     */
    enum onepot_gather gather;
    /*
     * A read of the storage that takes longer is given up: onepot_loader_next fails with -ETIME
     * and names the sample, and its batch is lost. The next call goes on with the next batch,
     * with a new thread in place of the one that hangs. 0: 60 s. ONEPOT_NEVER: wait.
     */
    uint32_t io_timeout_ms;
    /* Samples are pictures in files, and are decoded to pixels of one size. NULL: they aren't.
     */
    const struct onepot_images *images;
    /*
     * Several devices in place of one, each there once, and all of one kind: batch i of every
     * epoch goes to device i modulo device_count, also after a resume. memory_bytes is for all
     * of them, in equal parts.
     */
    struct onepot_device *const *devices;
    uint32_t device_count; /* at most ONEPOT_DEVICES_MAX */
};

/*
 * A batch: samples in the order of the sampler. It lives until it is released, even if the
 * loader is freed before. Its data may be written to.
 */
struct onepot_batch {
    size_t size;
    uint64_t samples; /* in the batch */
    uint64_t epoch;
    uint64_t first; /* index of the first sample among this rank's elements in the epoch */
    uint8_t *data;  /* page-aligned; NULL: on the device alone */
    uint64_t bytes; /* of data; bytes between samples are zero */
    const uint64_t *offsets; /* [samples]: where each sample begins in data */
    const uint64_t *sizes;   /* [samples] */
    const int64_t *labels;   /* [samples]: class or label, or -1 */
    const uint64_t *indices; /* [samples]: the sample's number in the archive */
    const uint8_t *valid;    /* [samples]: 0 for padding and for skipped samples */
    uint64_t stride; /* all samples have this size and follow each other; 0: they don't */
};

/*
 * -EINVAL: an option makes no sense, or samples are not .npy files of one kind. -ENOMEM.
 * -EAGAIN: no thread could be started. For npy also the errors of reading the first sample.
 */
ONEPOT_API int onepot_loader_new(const struct onepot_archive *archive,
                                 const struct onepot_loader_options *options,
                                 struct onepot_error *error, struct onepot_loader **ret_loader);
/* Leaves a thread that hangs in a read behind after one second. NULL is fine. */
ONEPOT_API void onepot_loader_free(struct onepot_loader *loader);

/*
 * 1 and the next batch, or 0 at the end of an epoch.
 *
 * -ETIMEDOUT: not ready after `timeout_ms` (-1: wait as long as it takes). -ENOBUFS: kept
 * batches use all of memory_bytes. -ETIME: a read took longer than io_timeout_ms, also with
 * skip_errors. -EFBIG (hole_bytes) and errors of reading name the sample. After -ETIME, -EFBIG
 * or an error of reading the batch is lost, and the next call goes on with the next one.
 */
ONEPOT_API int onepot_loader_next(struct onepot_loader *loader, int timeout_ms,
                                  struct onepot_error *error,
                                  const struct onepot_batch **ret_batch);
/* Give a batch back; the last release ends it. Any thread, at any time. NULL is fine. */
ONEPOT_API void onepot_batch_release(const struct onepot_batch *batch);
/* Ask for one more release before the batch ends. Any thread, at any time. */
ONEPOT_API void onepot_batch_keep(const struct onepot_batch *batch);

/* Batches and samples in an epoch of this rank. */
ONEPOT_API uint64_t onepot_loader_batches(const struct onepot_loader *loader);
ONEPOT_API uint64_t onepot_loader_samples(const struct onepot_loader *loader);

/* The epoch of the next batch. *ret_done: elements of this rank that were delivered in it. */
ONEPOT_API uint64_t onepot_loader_epoch(const struct onepot_loader *loader, uint64_t *ret_done);

/* Go to the start of an epoch. Costs nothing if the loader is there already. */
ONEPOT_API int onepot_loader_set_epoch(struct onepot_loader *loader, uint64_t epoch);

/*
 * Deliver these samples in this epoch, in place of the sampler's order: a sample may come
 * often, or not at all. All ranks give the same list, of which each takes its share, as of a
 * shuffle: elements rank, rank + world_size..., with padding or without the rest (drop_last).
 * The loader goes to the start of that epoch, whose length the list decides. After its end
 * onepot_loader_next fails with -ENODATA until the next epoch has its order. The list is
 * copied. To restore a state, first give the order of its epoch. -ERANGE: no such sample.
 * -EINVAL: too many. -ENOMEM: the present order stays.
 */
ONEPOT_API int onepot_loader_order(struct onepot_loader *loader, uint64_t epoch,
                                   const uint64_t *samples, uint64_t count,
                                   struct onepot_error *error);

/* Type and shape of .npy samples. */
struct onepot_npy {
    size_t size;
    char type[16]; /* numpy's name of the type: "<f4" */
    bool fortran_order;
    uint32_t dimensions;
    uint64_t shape[32];
    uint64_t bytes; /* of one sample */
};
/* -ENOTSUP: the loader was made without `npy`. */
ONEPOT_API int onepot_loader_npy(const struct onepot_loader *loader,
                                 struct onepot_npy *ret_npy);

/* ---- where a loader is: to go on in another job ---- */

/*
 * Delivered batches count; batches gathered ahead do not. A loader with another number of ranks
 * can go on from this state if the global batch (batch size times world size) is the same. All
 * numbers may be printed and read back.
 */
struct onepot_state {
    size_t size;
    uint64_t version; /* 1 */
    uint64_t samples; /* of the archive */
    uint64_t seed, epoch;
    uint64_t done; /* elements of the epoch that all ranks together have received */
    uint64_t shuffle, drop_last, block, window;
    char digest[2 * ONEPOT_DIGEST_BYTES + 1]; /* of the archive, hexadecimal */
    uint64_t order; /* identifies the order of onepot_loader_order; 0: the sampler's */
};

/* Where the loader is now. The first call may walk over the archive, for the digest. */
ONEPOT_API int onepot_loader_state(struct onepot_loader *loader, struct onepot_error *error,
                                   struct onepot_state *ret_state);

/*
 * Go to a saved place; its seed is taken over. -ESTALE: the state belongs to another archive.
 * -EINVAL: these ranks or these options can't continue it.
 */
ONEPOT_API int onepot_loader_restore(struct onepot_loader *loader,
                                     const struct onepot_state *state,
                                     struct onepot_error *error);

/*
 * Samples delivered in the present epoch (or since it was entered), without padding: their
 * number, and sums of hashes that don't depend on order. Added up over all ranks they equal the
 * archive's if each sample came exactly once.
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
    uint64_t wait_ns;                 /* time that onepot_loader_next waited */
    uint64_t gather_ns;               /* time that the threads worked, added up */
    uint64_t skipped;                 /* of those delivered, samples that could not be read */
    uint64_t slab_bytes;              /* in use now, at most memory_bytes */
    uint32_t threads, prefetch; /* threads: as many as may work now, beside the job's others */
    uint64_t memory_bytes;
    uint64_t part_bytes; /* of memory_bytes, for slabs now, beside others of the job */
    /*
     * This process's use of the archive, by all its loaders together: reads answered from the
     * cache, other reads, the bytes that the cache holds and may hold, and what was asked of
     * the storage where it is not mapped.
     */
    uint64_t cache_hits, cache_misses, cache_bytes, cache_part_bytes;
    uint64_t reads, read_bytes;
};
ONEPOT_API int onepot_loader_stats(struct onepot_loader *loader,
                                   struct onepot_stats *ret_stats);

#ifdef __cplusplus
}
#endif

#endif
