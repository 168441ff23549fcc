/*
 * Unpacks into a copy that is read meanwhile. One process at a time does it, in a thread that
 * watches a child (archive/sandbox/sandbox.h). The child reports how far it is. The thread
 * compares the child's bytes with the sums of the index, a chunk at a time, and only then marks
 * the chunk as there. So readers never see other bytes than those in which the names were
 * found, whatever became of the archive since. And a stream that is damaged in the middle is
 * right up to there.
 *
 * A stream can't be entered in the middle. If the process that unpacks dies, or its storage was
 * away for a while, another child begins anew. It leaves the chunks before the first missing
 * one untouched, so that their readers notice nothing.
 *
 * To unpack from the beginning once more is too dear to try blindly. So a small child
 * (pot_probe_storage) reads where the last one stopped until storage answers, with pauses that
 * grow to a quarter of a minute. Three things end a stream, since no patience helps: the
 * archive was changed; the error is not a storage error; or storage answers whenever it is
 * asked, but unpacking never gets past the same place.
 */
#include <errno.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "clock.h"
#include "futex.h"
#include "numbers.h"
#include "source_retry.h"
#include "stage_private.h"
#include "write_at.h"

_Static_assert(STAGE_CHUNK_BYTES == INDEX_WINDOW_BYTES, "a chunk has one sum");

#define TELL_EVERY_NS UINT64_C(10000000000)
#define LOOK_NS 200000000              /* between looks, while waiting for a chunk */
#define NOBODY_NS UINT64_C(5000000000) /* without a process that unpacks: none will come */
#define AWAY_NS UINT64_C(30000000000)  /* as long as a read of the source is tried again */
#define PAUSE_FIRST_NS UINT64_C(250000000)
#define PAUSE_MAX_NS UINT64_C(15000000000)
#define VAIN_MOST 10u

struct expanding {
    struct stage *stage;
    sem_t *begun;
    _Atomic bool stop; /* for the child: the end was asked for, or an error */
    uint64_t next;     /* chunk */
    uint64_t begun_ns, told_ns;
    uint64_t bytes_seen, beats_seen;
    uint64_t packed_at; /* the packed file was read up to here */
    struct stage_retry retry;
    uint8_t *buf; /* STAGE_CHUNK_BYTES */
    struct fault fault;
    int err;
};

/* ---- storage that is away ---- */

static void retry_say_away(struct stage *stage, struct stage_retry *retry, int err)
{
    atomic_store(&stage->state->away, -err);
    if (retry->told)
        return;
    retry->told = true;
    retry->since_ns = pause_now_ns(&stage->pause);
    stage_say(stage,
              "its storage fails (%s): what was unpacked is served; unpacking goes on when the "
              "storage answers",
              fault_errno(err));
}

bool stage_retry(struct stage *stage, struct stage_retry *retry, int err, uint64_t chunk,
                 uint64_t packed_at)
{
    /* Silent storage would not report the state of the file, either. */
    if (!source_error_may_pass(err) ||
        (err != -ETIMEDOUT && source_was_changed(stage->source) > 0))
        return false;
    retry->vain = chunk == retry->chunk ? retry->vain + 1 : 0;
    retry->chunk = chunk;
    if (retry->vain > VAIN_MOST)
        return false;
    retry_say_away(stage, retry, err);
    const struct pot_patience patience = {stage->options.idle_s, &stage->pause.ended};
    uint64_t pause_ns = PAUSE_FIRST_NS;
    while (pause_for(&stage->pause, pause_ns)) {
        int r = pot_probe_storage(&stage->stream, packed_at, &patience);
        if (r == 0)
            return source_was_changed(stage->source) <= 0;
        if (!source_error_may_pass(r))
            return false;
        pause_ns = min_u64(2 * pause_ns, PAUSE_MAX_NS);
    }
    return false;
}

/* Unpacking made progress: storage answers again. */
static void retry_ended(struct stage *stage, struct stage_retry *retry)
{
    if (!atomic_exchange(&stage->state->away, 0) || !retry->told)
        return;
    retry->told = false;
    stage_say(stage, "its storage answers again after %.0f s: unpacking goes on",
              (double)(pause_now_ns(&stage->pause) - retry->since_ns) * 1e-9);
}

/* ---- in the thread that watches the child ---- */

/* Is this chunk the same as when the archive was indexed? */
static int expand_check_chunk(struct expanding *e, uint64_t chunk)
{
    uint64_t sum, offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(e->stage->state, chunk);
    int r = read_at(e->stage->copy_fd, e->buf, len, offset);
    if (r < 0)
        return fault_set(&e->fault, r, NULL, FAULT_NO_OFFSET, "its copy can't be read");
    r = index_window_sum(e->stage->stream.index, chunk, &sum);
    if (r < 0)
        return fault_set(&e->fault, r, NULL, FAULT_NO_OFFSET, "its saved index is damaged");
    if (XXH3_64bits(e->buf, len) != sum)
        return fault_set(&e->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "its content differs from its saved index from byte %" PRIu64
                         " of the tar on: it is damaged, or was changed",
                         offset);
    return 0;
}

static void expand_take_chunks(struct expanding *e, uint64_t bytes_out)
{
    struct stage_state *state = e->stage->state;
    while (!e->err && e->next < state->chunks && !pause_ended(&e->stage->pause)) {
        size_t len = stage_chunk_len(state, e->next);
        if (e->next * STAGE_CHUNK_BYTES + len > bytes_out)
            break;
        if (!stage_chunk_here(state, e->next)) {
            e->err = expand_check_chunk(e, e->next);
            if (e->err < 0)
                break;
            atomic_fetch_add(&state->stream_bytes, len);
            stage_settle(state, e->next, CHUNK_HERE);
            retry_ended(e->stage, &e->retry);
        }
        e->next++;
    }
}

static void expand_tell(struct expanding *e, uint64_t bytes_out)
{
    uint64_t now = now_ns(), bytes = e->stage->bytes;
    if (now - e->told_ns < TELL_EVERY_NS)
        return;
    e->told_ns = now;
    stage_say(e->stage, "unpacked %" PRIu64 " of %" PRIu64 " MiB (%.0f %%) to %s",
              bytes_out >> 20, bytes >> 20, 100.0 * (double)bytes_out / (double)bytes,
              e->stage->folder);
}

/* A thread that waits for the first child need not wait any longer. */
static void expand_say_begun(struct expanding *e)
{
    sem_t *begun = e->begun;

    e->begun = NULL;
    if (begun)
        sem_post(begun);
}

/* For sandbox_watch. Once the end was asked for, the index may be gone. */
static bool expand_look(void *ctx, const struct progress *progress)
{
    struct expanding *e = ctx;
    uint64_t bytes_out = atomic_load(&progress->bytes_out);
    uint64_t beats = atomic_load(&progress->beats);
    expand_say_begun(e);
    if (pause_ended(&e->stage->pause)) {
        atomic_store(&e->stop, true);
        return true;
    }
    if (bytes_out > e->stage->bytes) /* a child that says so lies */
        bytes_out = e->stage->bytes;
    if (bytes_out != e->bytes_seen || beats != e->beats_seen)
        atomic_store(&e->stage->state->progress_ns, now_ns());
    e->bytes_seen = bytes_out;
    e->beats_seen = beats;
    e->packed_at = atomic_load(&progress->bytes_done);
    expand_take_chunks(e, bytes_out);
    if (e->err < 0)
        atomic_store(&e->stop, true);
    expand_tell(e, bytes_out);
    return true;
}

/* ---- its end ---- */

static void expand_finish(struct expanding *e)
{
    struct stage *stage = e->stage;
    double seconds = (double)(now_ns() - e->begun_ns) * 1e-9;
    atomic_store_explicit(&stage->state->whole, 1, memory_order_release);
    stage_say(stage,
              "unpacked %" PRIu64
              " MiB to %s in %.1f s; an archive by 'onepot pack' would make "
              "this unnecessary",
              stage->bytes >> 20, stage->folder, seconds);
}

/* Report why the copy is not complete. */
static void expand_fail(struct expanding *e, int err)
{
    struct stage_state *state = e->stage->state;
    if (err == 0 || err == -EFBIG)
        fault_set(&e->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                  "there are %s bytes in it than its saved index says: it was changed",
                  err == 0 ? "fewer" : "more");
    if (e->err == 0 && err != -ENOSPC && source_was_changed(e->stage->source) > 0) {
        e->fault = (struct fault){0};
        fault_set(&e->fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                  "was changed while it was unpacked");
    }
    /* If the child was taken over, these may be an attacker's words. */
    fault_describe(&e->fault, err, NULL, state->reason, sizeof(state->reason));
    atomic_store(&state->failure, err == 0 || err == -EFBIG ? EUCLEAN : -err);
}

/* Unpack, again and again as storage fails and comes back. */
static int expand_until_complete(struct expanding *e)
{
    struct stage *stage = e->stage;
    const struct pot_patience patience = {stage->options.idle_s, &e->stop};
    for (;;) {
        e->fault = (struct fault){0};
        e->bytes_seen = e->beats_seen = 0;
        int r = pot_expand(&stage->stream, stage->copy_fd, stage_bytes_in_order(stage->state),
                           &patience, expand_look, e, &e->fault);
        expand_say_begun(e); /* if there was no child, there may be none for long */
        if (e->err < 0 || stage_is_complete(stage->state) || pause_ended(&e->stage->pause) ||
            !stage_retry(stage, &e->retry, r, e->next, e->packed_at))
            return r;
    }
}

static void expand_run(struct expanding *e)
{
    struct stage *stage = e->stage;
    struct stage_state *state = stage->state;
    e->begun_ns = e->told_ns = now_ns();
    atomic_store(&state->progress_ns, e->begun_ns);
    atomic_store(&state->stream_since_ns, e->begun_ns);
    atomic_store(&state->away, 0); /* another process may have set it */
    int r = expand_until_complete(e);
    atomic_store(&state->stream_since_ns, 0);
    atomic_fetch_add(&state->stream_ns, now_ns() - e->begun_ns);
    if (stage_is_complete(state)) /* even if it ended with an error: all bytes are there */
        expand_finish(e);
    else if (e->err < 0 || (r != -ECANCELED && !pause_ended(&e->stage->pause)))
        expand_fail(e, e->err < 0 ? e->err : r);
}

void stage_expand(struct stage *stage, sem_t *begun)
{
    struct expanding e = {.stage = stage, .begun = begun};
    auto_free uint8_t *buf = malloc(STAGE_CHUNK_BYTES);
    e.buf = buf;
    if (buf)
        expand_run(&e);
    else
        expand_fail(&e, -ENOMEM);
}

/* ---- readers ---- */

uint64_t stage_stream_progress_ns(const struct stage *stage)
{
    const struct stage_state *state = stage->state;
    if (!stage->expands || atomic_load(&state->whole) || atomic_load(&state->failure))
        return 0;
    return atomic_load(&state->progress_ns);
}

/* Storage was given up and no bytes came since: not worth waiting for. */
static bool stream_is_away(const struct stage *stage)
{
    const struct stage_state *state = stage->state;
    return atomic_load(&state->away) &&
           pause_now_ns(&stage->pause) - atomic_load(&state->progress_ns) > AWAY_NS;
}

/* Is there a process that claims to unpack, or was there progress a moment ago? */
static bool stream_is_under_way(const struct stage_state *state, uint64_t since_ns)
{
    pid_t pid = atomic_load(&state->copier_pid);
    return (pid > 0 && (kill(pid, 0) == 0 || errno == EPERM)) ||
           atomic_load(&state->progress_ns) > since_ns;
}

bool stage_await_stream(struct stage *stage, uint64_t chunk)
{
    const struct timespec a_moment = {.tv_nsec = LOOK_NS};
    struct stage_state *state = stage->state;
    uint64_t since_ns = pause_now_ns(&stage->pause);
    bool waited = false;
    while (!stage_chunk_here(state, chunk)) {
        if (atomic_load(&state->failure) || pause_ended(&stage->pause) || stream_is_away(stage))
            return stage_chunk_here(state, chunk);
        if (stream_is_under_way(state, since_ns))
            since_ns = pause_now_ns(&stage->pause);
        else if (pause_now_ns(&stage->pause) - since_ns > NOBODY_NS)
            return false;
        waited = true;
        if (stage->pause.test_ns)
            pause_for(&stage->pause, LOOK_NS);
        else
            futex_wait(&state->chunk[chunk], CHUNK_ABSENT, FUTEX_OF_NODE, &a_moment);
    }
    if (waited)
        atomic_fetch_add(&state->demands, 1);
    return true;
}
