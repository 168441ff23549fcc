/*
 * The words of chunks, and how they change hands. A copier's claim is its generation with the
 * top bit set. A reader's claim is the time when it was made.
 */
#include "stage_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "futex.h"
#include "numbers.h"

#define MAGIC "onepotS"
#define CLAIM_STREAM (UINT32_C(1) << 31)
#define CLAIM_FIRST 16u /* smaller words have meanings of their own */
#define DEMAND_OLD_MS (STAGE_CLAIM_OLD_S * 1000u)

/* ---- the file ---- */

static void state_boot_id(char ret_id[40])
{
    memset(ret_id, 0, 40);
    auto_close int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, ret_id, 39) < 0)
        ret_id[0] = '\0';
}

size_t stage_state_size(uint64_t bytes)
{
    uint64_t chunks = bytes / STAGE_CHUNK_BYTES + (bytes % STAGE_CHUNK_BYTES != 0);
    return sizeof(struct stage_state) + (size_t)chunks * sizeof(uint32_t);
}

void stage_state_init(struct stage_state *state, const struct source *source, uint64_t bytes,
                      const char *archive, const char *place)
{
    state->version = STAGE_STATE_VERSION;
    state->chunk_bytes = STAGE_CHUNK_BYTES;
    state_boot_id(state->boot_id);
    source_identity(source, &state->identity);
    state->bytes = bytes;
    state->chunks =
        (stage_state_size(state->bytes) - sizeof(struct stage_state)) / sizeof(uint32_t);
    snprintf(state->archive, sizeof(state->archive), "%s", archive);
    snprintf(state->place, sizeof(state->place), "%s", place);
    atomic_thread_fence(memory_order_release);
    memcpy(state->magic, MAGIC, sizeof(MAGIC));
}

static bool state_is_sane(const struct stage_state *state, uint64_t file_bytes)
{
    char boot_id[40];
    state_boot_id(boot_id);
    return memcmp(state->magic, MAGIC, sizeof(MAGIC)) == 0 &&
           state->version == STAGE_STATE_VERSION && state->chunk_bytes == STAGE_CHUNK_BYTES &&
           memcmp(state->boot_id, boot_id, sizeof(boot_id)) == 0 &&
           state->bytes <= (uint64_t)INT64_MAX &&
           stage_state_size(state->bytes) == file_bytes &&
           state->chunks == (file_bytes - sizeof(struct stage_state)) / sizeof(uint32_t) &&
           memchr(state->archive, 0, sizeof(state->archive)) &&
           memchr(state->place, 0, sizeof(state->place)) &&
           memchr(state->job, 0, sizeof(state->job));
}

int stage_state_map(int fd, struct stage_state **ret_state)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)sizeof(struct stage_state))
        return -EUCLEAN;
    struct stage_state *state =
        mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED)
        return -errno;
    if (!state_is_sane(state, (uint64_t)st.st_size)) {
        munmap(state, (size_t)st.st_size);
        return -EUCLEAN;
    }
    *ret_state = state;
    return 0;
}

void stage_state_unmap(struct stage_state *state)
{
    if (state)
        munmap(state, stage_state_size(state->bytes));
}

/* ---- chunks ---- */

size_t stage_chunk_len(const struct stage_state *state, uint64_t chunk)
{
    uint64_t at = chunk * STAGE_CHUNK_BYTES;
    return (size_t)min_u64(state->bytes - at, STAGE_CHUNK_BYTES);
}

static uint32_t claim_now(void)
{
    uint32_t stamp = (uint32_t)now_ms() & (CLAIM_STREAM - 1);
    return stamp < CLAIM_FIRST ? CLAIM_FIRST : stamp;
}

static bool claim_is_old(uint32_t stamp)
{
    return ((claim_now() - stamp) & (CLAIM_STREAM - 1)) > DEMAND_OLD_MS;
}

static bool claim_take(struct stage_state *state, uint64_t chunk, uint32_t seen, uint32_t claim)
{
    return atomic_compare_exchange_strong(&state->chunk[chunk], &seen, claim);
}

bool stage_claim_stream(struct stage_state *state, uint64_t chunk, uint32_t generation)
{
    uint32_t claim = CLAIM_STREAM | generation;
    uint32_t seen = atomic_load_explicit(&state->chunk[chunk], memory_order_relaxed);
    if (seen == CHUNK_HERE || seen == claim) /* another thread of this copier has it */
        return false;
    if (seen >= CLAIM_FIRST && !(seen & CLAIM_STREAM) && !claim_is_old(seen))
        return false;
    return claim_take(state, chunk, seen, claim);
}

static bool copier_is_stuck(const struct stage_state *state)
{
    uint64_t since_ns = atomic_load(&state->progress_ns), now = now_ns();
    return now > since_ns && now - since_ns > DEMAND_OLD_MS * UINT64_C(1000000);
}

bool stage_claim_demand(struct stage_state *state, uint64_t chunk)
{
    uint32_t seen = atomic_load_explicit(&state->chunk[chunk], memory_order_relaxed);
    uint32_t current = CLAIM_STREAM | atomic_load(&state->generation);
    if (seen == CHUNK_HERE || (seen == current && !copier_is_stuck(state)))
        return false;
    if (seen >= CLAIM_FIRST && !(seen & CLAIM_STREAM) && !claim_is_old(seen))
        return false;
    return claim_take(state, chunk, seen, claim_now());
}

void stage_settle(struct stage_state *state, uint64_t chunk, uint32_t outcome)
{
    _Atomic uint32_t *word = &state->chunk[chunk];
    uint32_t seen = atomic_load(word);
    /* Another process may have thought that we were gone, and made the chunk meanwhile. */
    while ((outcome == CHUNK_HERE || seen != CHUNK_HERE) &&
           !atomic_compare_exchange_weak(word, &seen, outcome))
        ;
    futex_wake(word, INT32_MAX, FUTEX_OF_NODE);
}

void stage_wait(struct stage_state *state, uint64_t chunk, unsigned timeout_ms)
{
    struct timespec timeout = clock_timespec(timeout_ms * UINT64_C(1000000));
    uint32_t seen = atomic_load(&state->chunk[chunk]);
    if (seen >= CLAIM_FIRST)
        futex_wait(&state->chunk[chunk], seen, FUTEX_OF_NODE, &timeout);
}

uint64_t stage_bytes_here(const struct stage_state *state)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < state->chunks; i++)
        if (stage_chunk_here(state, i))
            bytes += stage_chunk_len(state, i);
    return bytes;
}

uint64_t stage_bytes_in_order(const struct stage_state *state)
{
    uint64_t chunk = 0;
    while (chunk < state->chunks && stage_chunk_here(state, chunk))
        chunk++;
    return min_u64(chunk * STAGE_CHUNK_BYTES, state->bytes);
}
