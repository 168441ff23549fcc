/*
 * What the files of the read path share. reader.c puts answers together; fetch.c gets what
 * they are made of from the source, or through the block cache; prefetch.c does that before
 * anybody asks.
 */
#ifndef ONEPOT_READER_PRIVATE_H
#define ONEPOT_READER_PRIVATE_H

#include <stdatomic.h>

#include "codec.h"
#include "reader.h"

struct reader {
    const struct index *index;
    struct source *source;
    uint64_t source_bytes;
    const uint8_t *map; /* NULL: not mapped */
    size_t page;
    bool is_copy;      /* that is made while it is read */
    bool ask_mincore;  /* the filesystem can't tell a cached read from another */
    bool cache_stored; /* stored bytes go through the block cache, not the page cache */
    bool keep_pages;   /* or not the page cache alone */
    enum codec codec;
    uint32_t block_bytes;
    struct block_cache *cache;
    void *zeros; /* READER_SPAN_MAX bytes: every hole */
    _Alignas(64) _Atomic uint64_t source_reads, source_read_bytes;
};

struct reader_scratch {
    struct reader *reader;
    uint8_t *buffer; /* READER_SPAN_MAX bytes; pages are touched when they are needed */
    size_t used;     /* by the current span */
    uint8_t *packed; /* a compressed block */
    size_t packed_size;
    struct codec_context *codec; /* NULL before the first block */
    bool skip_sums;              /* of its blocks */
    void (*on_wait)(void *ctx);
    void *on_wait_ctx;
    bool waited;               /* on_wait was called for the current request */
    enum reader_origin origin; /* of what was got for it so far */
};

/* A stored block that is wanted: a file's range of the archive, or a piece of it. */
struct piece {
    uint64_t source_offset; /* of the block */
    size_t block_bytes;
    size_t start, length; /* what is wanted of it */
    int begun;            /* enum block_begun; or a negative number: nothing to do for it */
    struct block *block;  /* pinned, or NULL: it has to be read without the cache */
};

#define PIECES_MAX READER_IOV_MAX

/* Call on_wait, if that was not done yet for this request. */
void may_wait(struct reader_scratch *scratch);

/* Some of the current answer came from there. */
void came_from(struct reader_scratch *scratch, enum reader_origin origin);

/* What a source can fail with, in the words of the interface. */
int source_error(int err);

/* After a read of the source: it counts, and what we keep the kernel need not keep. */
void count_read(struct reader *reader, size_t len, uint64_t offset);

/* Bytes of the archive into memory of ours. */
int read_source(struct reader *reader, struct reader_scratch *scratch, void *buf, size_t len,
                uint64_t offset);

/* The compressed block of an extent, pinned, and known to hold what the extent says. */
int get_block(struct reader *reader, struct reader_scratch *scratch,
              const struct extent *extent, struct block **ret_block);

/* Bring it to the cache ahead of its use. 0 also when it is there. */
int prefetch_block(struct reader *reader, struct reader_scratch *scratch,
                   const struct extent *extent, uint64_t due);

uint64_t piece_key(const struct piece *piece);

/* The piece in which a stored extent begins, and at most `len` bytes of it. -ENODATA. */
int find_piece(const struct reader *reader, const struct extent *extent, uint64_t len,
               struct piece *ret_piece);

/* Read all pieces that are MINE, by as few reads as possible, and end them. */
void read_pieces(struct reader *reader, struct reader_scratch *scratch, struct piece *pieces,
                 unsigned count);

/*
 * The stored bytes at `offset` of a file, as pinned pieces: at most `max` of them, and `len`
 * bytes. At least one, since the byte at `offset` is known to be stored. On error none is.
 */
int get_pieces(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, unsigned max, struct piece *pieces,
               unsigned *ret_count);

#endif
