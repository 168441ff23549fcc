/*
 * What a fuzz target is: one function that takes bytes as they come from a hostile archive,
 * and bytes to begin with. It must neither crash nor hang nor say what can't be; what can't
 * be is abort().
 *
 * Without libFuzzer, replay.c runs the seeds and a fixed number of mutations of them: that
 * is what the ordinary tests do. `tests/fuzz/soak 10` builds all targets with libFuzzer and
 * runs each for ten minutes.
 */
#ifndef ONEPOT_FUZZ_H
#define ONEPOT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold. */
#define require(condition) ((condition) ? (void)0 : fuzz_fail(#condition, __FILE__, __LINE__))
_Noreturn void fuzz_fail(const char *condition, const char *file, int line);

/* Seed number 0, 1, ... from malloc; NULL after the last. */
uint8_t *fuzz_seed(unsigned number, size_t *ret_size);

/* An unlinked file in memory of these bytes; sealing one, as source_from_memory does, takes
 * milliseconds. */
struct source *fuzz_source(const uint8_t *data, size_t size);

struct index;

/* Ask an index everything that it can be asked, about all of its entries. */
void fuzz_walk(const struct index *index);

struct builder;
struct builder_header;

/* Write the index, open and walk it, as the parent of an indexing child does. */
void fuzz_walk_built(struct builder *builder, const struct builder_header *header);

struct backend;

/*
 * Index bytes that the back end takes for its own, in this process, and walk what it built. An
 * error must come with a fault.
 */
void fuzz_index(const struct backend *backend, const uint8_t *data, size_t size);

/* Bytes to begin with: a tar of all kinds of members, in a format of libarchive's ("pax"). */
uint8_t *fuzz_make_tar(const char *format, size_t *ret_size);

/* The index of such a tree, with compressed blocks too; freed by the caller. */
uint8_t *fuzz_make_image(size_t *ret_size);

/* Set all sums in an index image right again, or leave it alone where it has none. */
void fuzz_resum(uint8_t *image, size_t size);

#endif
