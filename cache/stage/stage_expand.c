/*
 * Unpacks into a copy that is read meanwhile. One process at a time does it, in a thread that
 * watches a child (archive/sandbox/sandbox.h). The child reports how far it is. The thread
 * compares what the child wrote with the sums of the index, a chunk at a time, and only then
 * marks the chunk as there. So readers never see other bytes than those in which the names were
 * found, whatever became of the archive since. And a stream that is damaged in the middle is
 * right up to there.
 *
 * A stream can't be entered in the middle. If the process that unpacks dies, or its storage was
 * away for a while (stage_again.c), another child begins anew. It leaves the chunks before the
 * first missing one untouched, so that their readers notice nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "clock.h"
#include "futex.h"
#include "stage_private.h"

_Static_assert(STAGE_CHUNK_BYTES == INDEX_WINDOW_BYTES, "a chunk has one sum");

#define TELL_EVERY_NS UINT64_C(10000000000)
#define LOOK_NS 200000000              /* between looks, while waiting for a chunk */
#define NOBODY_NS UINT64_C(5000000000) /* without a process that unpacks: none will come */
#define AWAY_NS UINT64_C(30000000000)  /* as long as a read of the source is tried again */

struct expanding {
    struct stage *stage;
    const _Atomic bool *stop_asked;
    sem_t *begun;
    _Atomic bool stop; /* for the child: stop_asked, or an error */
    uint64_t next;     /* chunk */
    uint64_t begun_ns, told_ns;
    uint64_t bytes_seen, beats_seen;
    uint64_t packed_at; /* the packed file was read up to here */
    struct stage_again again;
    uint8_t *buf; /* STAGE_CHUNK_BYTES */
    struct fault fault;
    int err;
};

/* ---- in the thread that watches the child ---- */

static int read_chunk(const struct expanding *e, size_t len, uint64_t offset)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = pread(e->stage->copy_fd, e->buf + at, len - at, (off_t)(offset + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += (size_t)n;
    }
    return 0;
}

/* Is this chunk the same as when the archive was indexed? */
static int check_chunk(struct expanding *e, uint64_t chunk)
{
    uint64_t sum, offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(e->stage->state, chunk);
    int r = read_chunk(e, len, offset);
    if (r < 0)
        return fault_set(&e->fault, r, NULL, FAULT_NO_OFFSET, "its copy can't be read");
    r = index_window_sum(e->stage->stream.index, WINDOWS_EXPANDED, chunk, &sum);
    if (r < 0)
        return fault_set(&e->fault, r, NULL, FAULT_NO_OFFSET, "its saved index is damaged");
    if (XXH3_64bits(e->buf, len) != sum)
        return fault_set(&e->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "its content differs from its saved index from byte %" PRIu64
                         " of the tar on: it is damaged, or was changed",
                         offset);
    return 0;
}

static void take_chunks(struct expanding *e, uint64_t bytes_out)
{
    struct stage_state *state = e->stage->state;
    while (!e->err && e->next < state->chunks && !atomic_load(e->stop_asked)) {
        size_t len = stage_chunk_len(state, e->next);
        if (e->next * STAGE_CHUNK_BYTES + len > bytes_out)
            break;
        if (!stage_chunk_here(state, e->next)) {
            e->err = check_chunk(e, e->next);
            if (e->err < 0)
                break;
            atomic_fetch_add(&state->stream_bytes, len);
            stage_settle(state, e->next, CHUNK_HERE);
            stage_is_back(e->stage, &e->again);
        }
        e->next++;
    }
}

static void tell(struct expanding *e, uint64_t bytes_out)
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
static void say_begun(struct expanding *e)
{
    sem_t *begun = e->begun;

    e->begun = NULL;
    if (begun)
        sem_post(begun);
}

/* For sandbox_watch. Once the end was asked for, the index may be gone. */
static void look(void *ctx, const struct progress *progress)
{
    struct expanding *e = ctx;
    uint64_t bytes_out = atomic_load(&progress->bytes_out);
    uint64_t beats = atomic_load(&progress->beats);
    say_begun(e);
    if (atomic_load(e->stop_asked)) {
        atomic_store(&e->stop, true);
        return;
    }
    if (bytes_out > e->stage->bytes) /* a child that says so lies */
        bytes_out = e->stage->bytes;
    if (bytes_out != e->bytes_seen || beats != e->beats_seen)
        atomic_store(&e->stage->state->progress_ns, now_ns());
    e->bytes_seen = bytes_out;
    e->beats_seen = beats;
    e->packed_at = atomic_load(&progress->bytes_done);
    take_chunks(e, bytes_out);
    if (e->err < 0)
        atomic_store(&e->stop, true);
    tell(e, bytes_out);
}

/* ---- its end ---- */

static bool is_complete(const struct stage_state *state)
{
    for (uint64_t i = 0; i < state->chunks; i++)
        if (!stage_chunk_here(state, i))
            return false;
    return true;
}

static void finish(struct expanding *e)
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
static void fail(struct expanding *e, int err)
{
    struct stage_state *state = e->stage->state;
    if (err == 0 || err == -EFBIG)
        fault_set(&e->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                  "there are %s bytes in it than its saved index says: it was changed",
                  err == 0 ? "fewer" : "more");
    if (e->err == 0 && err != -ENOSPC && stage_was_changed(e->stage)) {
        e->fault = (struct fault){0};
        fault_set(&e->fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                  "was changed while it was unpacked");
    }
    /* If the child was taken over, these may be an attacker's words. */
    fault_describe(&e->fault, err, NULL, state->reason, sizeof(state->reason));
    atomic_store(&state->failure, err == 0 || err == -EFBIG ? EUCLEAN : -err);
}

/* How many bytes are there without a gap. */
static uint64_t kept_bytes(const struct stage_state *state)
{
    uint64_t chunk = 0;
    while (chunk < state->chunks && stage_chunk_here(state, chunk))
        chunk++;
    return chunk < state->chunks ? chunk * STAGE_CHUNK_BYTES : state->bytes;
}

/* Unpack, again and again as storage fails and comes back. */
static int expand(struct expanding *e)
{
    struct stage *stage = e->stage;
    const struct pot_patience patience = {stage->idle_s, &e->stop};
    const struct pot_patience until_asked = {stage->idle_s, e->stop_asked};
    for (;;) {
        e->fault = (struct fault){0};
        e->bytes_seen = e->beats_seen = 0;
        int r = pot_expand(&stage->stream, stage->copy_fd, kept_bytes(stage->state), &patience,
                           look, e, &e->fault);
        say_begun(e); /* if there was no child, there may be none for long */
        if (e->err < 0 || is_complete(stage->state) || atomic_load(e->stop_asked) ||
            !stage_again(stage, &e->again, r, e->next, e->packed_at, &until_asked))
            return r;
    }
}

static void run(struct expanding *e)
{
    struct stage *stage = e->stage;
    struct stage_state *state = stage->state;
    e->begun_ns = e->told_ns = now_ns();
    atomic_store(&state->progress_ns, e->begun_ns);
    atomic_store(&state->stream_since_ns, e->begun_ns);
    atomic_store(&state->away, 0); /* another process may have set it */
    int r = expand(e);
    atomic_store(&state->stream_since_ns, 0);
    atomic_fetch_add(&state->stream_ns, now_ns() - e->begun_ns);
    if (is_complete(state)) /* even if it ended with an error: all bytes are there */
        finish(e);
    else if (e->err < 0 || (r != -ECANCELED && !atomic_load(e->stop_asked)))
        fail(e, e->err < 0 ? e->err : r);
}

void stage_expand(struct stage *stage, const _Atomic bool *stop, sem_t *begun)
{
    sigset_t all, before;
    struct expanding e = {.stage = stage, .stop_asked = stop, .begun = begun};
    auto_free uint8_t *buf = malloc(STAGE_CHUNK_BYTES);
    e.buf = buf;
    sigfillset(&all); /* a signal would end the child */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (buf)
        run(&e);
    else
        fail(&e, -ENOMEM);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
static bool is_away(const struct stage_state *state)
{
    return atomic_load(&state->away) && now_ns() - atomic_load(&state->progress_ns) > AWAY_NS;
}

/* Is there a process that claims to unpack, or was there progress a moment ago? */
static bool is_under_way(const struct stage_state *state, uint64_t since_ns)
{
    pid_t pid = atomic_load(&state->copier_pid);
    return (pid > 0 && (kill(pid, 0) == 0 || errno == EPERM)) ||
           atomic_load(&state->progress_ns) > since_ns;
}

bool stage_await_stream(struct stage *stage, uint64_t chunk)
{
    const struct timespec a_moment = {.tv_nsec = LOOK_NS};
    struct stage_state *state = stage->state;
    uint64_t since_ns = now_ns();
    bool waited = false;
    while (!stage_chunk_here(state, chunk)) {
        if (atomic_load(&state->failure) || atomic_load(&stage->stopping) || is_away(state))
            return stage_chunk_here(state, chunk);
        if (is_under_way(state, since_ns))
            since_ns = now_ns();
        else if (now_ns() - since_ns > NOBODY_NS)
            return false;
        waited = true;
        futex_wait(&state->chunk[chunk], CHUNK_ABSENT, FUTEX_OF_NODE, &a_moment);
    }
    if (waited)
        atomic_fetch_add(&state->demands, 1);
    return true;
}
