/*
 * Reads all of an archive in an order that is not its own.
 *
 * The packer asks in the order of names, which need not be the archive's, so small members
 * would be small reads all over the file. Therefore the first read in each piece of some
 * megabytes makes the kernel read the whole piece ahead. The archive is then read once, in
 * large reads, as long as the page cache holds a piece until the rest of it is wanted.
 */
#include "archive_input.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "numbers.h"
#include "reader.h"
#include "vector.h"

#define PIECE_BYTES (UINT64_C(4) << 20)

struct archive_input {
    struct input input;
    struct fileset *fileset;
    struct reader *reader;
    pthread_mutex_t lock;                   /* for the spares */
    VECTOR(struct reader_scratch *) spares; /* that no thread uses at the moment */
    uint64_t pieces;
    _Atomic uint8_t *asked; /* a bit for each piece that the kernel was asked to read */
};

/* ---- scratches ---- */

static int input_take_scratch(struct archive_input *in, struct reader_scratch **ret_scratch)
{
    pthread_mutex_lock(&in->lock);
    bool has_spare = in->spares.count > 0;
    if (has_spare)
        *ret_scratch = in->spares.at[--in->spares.count];
    pthread_mutex_unlock(&in->lock);
    return has_spare ? 0 : reader_scratch_new(in->reader, ret_scratch);
}

static void put_scratch(struct archive_input *in, struct reader_scratch *scratch)
{
    pthread_mutex_lock(&in->lock);
    int r = vector_push(&in->spares, scratch);
    pthread_mutex_unlock(&in->lock);
    if (r < 0)
        reader_scratch_free(scratch);
}

/* ---- reading ---- */

static void ask_for(struct archive_input *in, uint64_t piece)
{
    uint8_t bit = (uint8_t)(1u << piece % 8);
    if (piece >= in->pieces ||
        atomic_fetch_or_explicit(&in->asked[piece / 8], bit, memory_order_relaxed) & bit)
        return;
    uint64_t offset = piece * PIECE_BYTES, size = source_size(in->fileset->source);
    source_advise(in->fileset->source, SOURCE_SOON, offset,
                  min_u64(PIECE_BYTES, size - offset));
}

/* Reads ahead the pieces that a read touches. */
static void read_ahead(struct archive_input *in, uint32_t position, uint64_t offset, size_t len)
{
    struct extent e;
    if (index_extent(in->input.index, position, offset, &e) < 0 || e.kind == EXTENT_HOLE)
        return;
    uint64_t bytes = e.kind == EXTENT_BLOCK ? e.packed_bytes : e.length < len ? e.length : len;
    uint64_t first = e.source_offset / PIECE_BYTES;
    uint64_t last = (e.source_offset + bytes) / PIECE_BYTES;
    for (uint64_t piece = first; piece <= last; piece++)
        ask_for(in, piece);
}

static int input_read_file(void *ctx, uint32_t position, uint64_t offset, void *bytes,
                           size_t len, size_t *ret_len)
{
    struct archive_input *in = ctx;
    struct reader_scratch *scratch;
    int r = input_take_scratch(in, &scratch);
    if (r < 0)
        return r;
    read_ahead(in, position, offset, len);
    r = reader_copy(in->reader, scratch, position, offset, bytes, len, ret_len);
    put_scratch(in, scratch);
    return r;
}

static const char *input_file(void *ctx, uint32_t position)
{
    const struct archive_input *in = ctx;
    struct extent e = {0};
    uint64_t at = 0;
    while (index_extent(in->input.index, position, at, &e) == 0 && e.kind == EXTENT_HOLE &&
           e.length)
        at += e.length;
    return source_name(source_at(in->fileset->source, &e.source_offset));
}

/* ---- life ---- */

int archive_input_new(struct fileset *fileset, uint64_t cache_bytes, struct fault *fault,
                      const struct input **ret_input)
{
    struct archive_input *in = calloc(1, sizeof(*in));
    if (!in)
        return -ENOMEM;
    pthread_mutex_init(&in->lock, NULL);
    in->fileset = fileset;
    in->input = (struct input){
        .index = fileset->index, .read = input_read_file, .file = input_file, .ctx = in};
    in->pieces = source_size(fileset->source) / PIECE_BYTES + 1;
    in->asked = calloc(in->pieces / 8 + 1, sizeof(*in->asked));
    struct reader_options options = {.cache_bytes = cache_bytes};
    int r = in->asked ? reader_new(fileset, &options, fault, &in->reader) : -ENOMEM;
    if (r < 0)
        archive_input_free(&in->input);
    else
        *ret_input = &in->input;
    return r;
}

void archive_input_free(const struct input *input)
{
    if (!input)
        return;
    struct archive_input *in = input->ctx;
    for (size_t i = 0; i < in->spares.count; i++)
        reader_scratch_free(in->spares.at[i]);
    vector_free(&in->spares);
    reader_free(in->reader);
    pthread_mutex_destroy(&in->lock);
    free((void *)in->asked);
    free(in);
}
