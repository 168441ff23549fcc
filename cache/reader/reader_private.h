/*
 * Shared by the files of the read path. reader.c puts answers together, whose parts it gets
 * from the source, or through the block cache, also before anybody asks. content.c reads whole
 * members by the same means.
 */
#ifndef ONEPOT_READER_PRIVATE_H
#define ONEPOT_READER_PRIVATE_H

#include <stdatomic.h>

#include "codec.h"
#include "reader.h"
#include "permits.h"

struct reader {
    const struct index *index;
    struct source *source;
    uint64_t source_bytes;
    bool is_mapped;      /* by ranges: source_map_at */
    bool answers_mapped; /* with places in the mapping */
    size_t page;
    bool is_kept;              /* the source keeps what was read of it (source_keeps) */
    bool ask_mincore;          /* the filesystem does not report whether a read is cached */
    bool cache_stored;         /* stored bytes go through the block cache, not the page cache */
    bool keep_pages;           /* or through both */
    bool lets_go;              /* of compressed blocks that were read whole */
    uint32_t block_bytes;      /* of the largest */
    struct block_cache *cache; /* NULL: nothing is read in blocks */
    _Atomic uint64_t cache_bytes; /* its budget */
    struct permits permits;       /* for unpacking large blocks */
    void *zeros;                  /* READER_SPAN_MAX bytes, for every hole */
    _Alignas(64) _Atomic uint64_t source_reads, source_read_bytes;
};

struct reader_scratch {
    struct reader *reader;
    uint8_t *buffer; /* READER_SPAN_MAX bytes; pages are touched only when needed */
    size_t used;     /* by the current span */
    uint8_t *packed; /* for a compressed block */
    size_t packed_size;
    struct codec_context *codec; /* NULL before the first block */
    bool skip_sums;              /* of its blocks */
    void (*on_wait)(void *ctx);
    void *on_wait_ctx;
    void (*on_unpack)(void *ctx, bool begins);
    void *on_unpack_ctx;
    bool unpacks;              /* on_unpack was told so */
    bool waited;               /* on_wait was called for the current request */
    enum reader_origin origin; /* of the parts of the current request so far */
};

/* A stored block to read: a file's range of the archive, or a piece of it. */
struct piece {
    uint64_t source_offset; /* of the block */
    size_t block_bytes;
    size_t start, length; /* the wanted part of it */
    int begun;            /* enum block_begun; negative: there is nothing to do */
    struct block *block;  /* pinned; NULL: read it without the cache */
};

#define PIECES_MAX READER_IOV_MAX

/* Translates an error of a source to one of this interface. */
int reader_source_error(int err);

/*
 * Decompresses the block of an extent of kind BLOCK into the caller's buffer, which has room
 * for the largest, without the block cache. Errors: reader_get's.
 */
int reader_unpack(struct reader *reader, struct reader_scratch *scratch,
                  const struct extent *extent, void *buf, size_t *ret_len);

#endif
