/*
 * How chunks come into a copy: readers fetch the ones that they miss, the copier's threads
 * fetch all, or a stream is unpacked into it. And the source that reads through the copy.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "clock.h"
#include "futex.h"
#include "numbers.h"
#include "source_ops.h"
#include "source_retry.h"
#include "stage_job.h"
#include "stage_private.h"
#include "syscalls.h"
#include "thread.h"
#include "write_at.h"

/* ---- reading through the copy ---- */

/*
 * Reads an archive while a copy of it is made. A chunk that is there is read from the copy. The
 * reader itself fetches a missing chunk, without regard to the copier. It fetches all of it: on
 * a slow filesystem that takes hardly longer, and the neighbouring bytes will be wanted, too.
 * If somebody else is fetching the chunk, the reader waits, but not for long. Then it takes the
 * few bytes that it wants from the source and leaves the copy alone.
 */

#define WAIT_MS 200u
#define WAITS 10 /* two seconds in all */

/*
 * Fetch a chunk that this thread has claimed into `buf` (STAGE_CHUNK_BYTES) and into the copy,
 * and settle it. Returns 0; or an error of the source (the chunk is absent again); or, with the
 * bytes in `buf`, the positive errno that kept them out of the copy.
 */
static int stage_fetch(struct stage *stage, uint64_t chunk, void *buf)
{
    uint64_t begun_ms = now_ms();
    int r = stage_read_chunk(stage, chunk, buf);
    if (r < 0) {
        stage_settle(stage->state, chunk, CHUNK_ABSENT);
        return r;
    }
    return stage_keep_chunk(stage, chunk, buf, begun_ms);
}

/*
 * Fetch a chunk for a reader. 0: it is in `buf`; else -errno. A reader that has fetched two in
 * a row goes through a large file ahead of the copier, which goes on from there.
 */
static int staged_fetch(struct stage *stage, uint64_t chunk, uint8_t *buf)
{
    struct stage_state *state = stage->state;
    if (atomic_exchange(&stage->demanded, chunk + 1) == chunk)
        atomic_store(&stage->wanted, chunk + 1);
    int r = stage_fetch(stage, chunk, buf);
    if (r < 0)
        return r;
    atomic_fetch_add(&state->demands, 1);
    atomic_fetch_add(&state->demand_bytes, stage_chunk_len(state, chunk));
    return 0;
}

/* Have a chunk made, by this reader or another process. False: it won't be there soon. */
static bool staged_await(struct stage *stage, uint64_t chunk, uint8_t **buf, bool *ret_in_buf)
{
    struct stage_state *state = stage->state;
    *ret_in_buf = false;
    if (stage->expands)
        return stage_await_stream(stage, chunk);
    for (int tries = 0; !stage_chunk_here(state, chunk); tries++) {
        if (stage_may_keep(stage) && stage_claim_demand(state, chunk)) {
            if (!*buf)
                *buf = malloc(STAGE_CHUNK_BYTES);
            if (!*buf)
                stage_settle(state, chunk, CHUNK_ABSENT);
            return *ret_in_buf = *buf && staged_fetch(stage, chunk, *buf) == 0;
        }
        if (tries == WAITS || atomic_load(&state->failure) ||
            atomic_load(&state->chunk[chunk]) <= CHUNK_HERE)
            return stage_chunk_here(state, chunk);
        stage_wait(state, chunk, WAIT_MS);
    }
    return true;
}

static int staged_read_past(const struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    atomic_fetch_add_explicit(&stage->state->past_bytes, len, memory_order_relaxed);
    return source_read(stage->source, to, len, offset);
}

/* If the copy itself fails, as a disk may, read the source, if that has the same bytes. */
static int staged_read_here(struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    int r = read_at(stage->copy_fd, to, len, offset);
    return r < 0 && !stage->unpacked ? staged_read_past(stage, to, len, offset) : r;
}

static int staged_read_wanted(struct stage *stage, uint8_t *to, size_t len, uint64_t offset,
                              uint8_t **buf)
{
    uint64_t chunk = offset / STAGE_CHUNK_BYTES;
    bool in_buf;
    if (!staged_await(stage, chunk, buf, &in_buf))
        return stage->unpacked ? -EIO : staged_read_past(stage, to, len, offset);
    if (!in_buf)
        return staged_read_here(stage, to, len, offset);
    memcpy(to, *buf + offset % STAGE_CHUNK_BYTES, len);
    return 0;
}

/* ---- the source ---- */

struct stage_source {
    struct source source;
    struct stage *stage;
    bool owns_stage; /* and closes it */
};

static struct stage *stage_of(const struct source *source)
{
    return ((const struct stage_source *)source)->stage;
}

static bool staged_has_all(const struct stage *stage)
{
    return atomic_load_explicit(&stage->state->whole, memory_order_acquire) != 0;
}

static bool staged_has(const struct stage *stage, uint64_t offset, uint64_t len)
{
    if (staged_has_all(stage) || len == 0)
        return true;
    for (uint64_t i = offset / STAGE_CHUNK_BYTES; i <= (offset + len - 1) / STAGE_CHUNK_BYTES;
         i++)
        if (!stage_chunk_here(stage->state, i))
            return false;
    return true;
}

/* Read bytes of a copy on a disk only if they are in memory. -EAGAIN: they may not be. */
static int staged_read_cached(const struct source *source, void *buf, size_t len,
                              uint64_t offset)
{
    struct stage *stage = stage_of(source);
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    if (!staged_has(stage, offset, len))
        return -EAGAIN;
    if (stage->in_memory)
        return staged_read_here(stage, buf, len, offset);
    ssize_t n = preadv2(stage->copy_fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
    if (n < 0 && (errno == EOPNOTSUPP || syscall_is_missing(errno) || errno == EINVAL))
        return staged_read_here(stage, buf, len, offset); /* no way to know */
    return n == (ssize_t)len ? 0 : -EAGAIN;
}

static int staged_read(const struct source *source, struct source_cursor *cursor)
{
    struct stage *stage = stage_of(source);
    auto_free uint8_t *chunk = NULL; /* not from a pool, whose lock a fork could inherit */
    while (cursor->count > 0) {
        uint64_t offset = cursor->offset;
        size_t n = cursor->iov->iov_len;
        int r;
        if (staged_has(stage, offset, n)) {
            r = staged_read_here(stage, cursor->iov->iov_base, n, offset);
        } else {
            n = min_u64(n, STAGE_CHUNK_BYTES - offset % STAGE_CHUNK_BYTES);
            r = staged_read_wanted(stage, cursor->iov->iov_base, n, offset, &chunk);
        }
        if (r < 0)
            return r;
        source_cursor_step(cursor, n);
    }
    return 0;
}

static int staged_bring(const struct source *source, uint64_t offset, uint64_t len,
                        bool may_wait)
{
    struct stage *stage = stage_of(source);
    if (staged_has(stage, offset, len))
        return 0;
    if (!may_wait)
        return -EAGAIN;
    auto_free uint8_t *buf = NULL;
    bool ignored;
    for (uint64_t i = offset / STAGE_CHUNK_BYTES; i <= (offset + len - 1) / STAGE_CHUNK_BYTES;
         i++)
        if (!staged_await(stage, i, &buf, &ignored) || !stage_chunk_here(stage->state, i))
            return stage_may_keep(stage) ? -EIO : -ENOSPC;
    return 0;
}

static const uint8_t *staged_map(const struct source *source, uint64_t offset, uint64_t len)
{
    const uint8_t *map = stage_of(source)->map;
    (void)len;
    return map ? map + offset : NULL;
}

/* The archive may be cut short while it is copied; then only its copier notices. */
static bool staged_is_whole(const struct source *source)
{
    struct stat st;
    return fstat(stage_of(source)->copy_fd, &st) == 0 &&
           (uint64_t)st.st_size >= source->size_bytes;
}

static void staged_state(const struct source *source, struct source_state *ret_state)
{
    const struct stage *stage = stage_of(source);
    *ret_state = (struct source_state){
        .is_local = staged_has_all(stage),
        .keeps = true,
        .kept_fd = staged_has_all(stage) ? stage->copy_fd : -1,
        /* Kept after the stream's end, as a thread that waited for it may not have read yet. */
        .progress_ns = stage->expands ? atomic_load(&stage->state->progress_ns) : 0};
}

/*
 * Reads a chunk of the copy from storage again. It is written over the old bytes, and its mark
 * stays: other processes may rely on a whole copy having all its chunks.
 */
static void staged_renew(const struct stage *stage, uint64_t chunk, void *buf)
{
    uint64_t offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(stage->state, chunk);
    if (!stage_chunk_here(stage->state, chunk) || source_was_changed(stage->source) != 0)
        return;
    source_advise(stage->source, SOURCE_WRONG, offset, len);
    if (source_read(stage->source, buf, len, offset) < 0 ||
        source_was_changed(stage->source) != 0)
        return;
    write_at(stage->copy_fd, buf, len, offset); /* if that fails, its sum tells again */
    source_advise(stage->source, SOURCE_DROP, offset, len);
}

static void staged_advise(const struct source *source, enum source_advice advice,
                          uint64_t offset, uint64_t len)
{
    const struct stage *stage = stage_of(source);
    if (advice != SOURCE_WRONG || stage->unpacked || stage->expands || len == 0)
        return;
    auto_free uint8_t *buf = malloc(STAGE_CHUNK_BYTES);
    for (uint64_t i = offset / STAGE_CHUNK_BYTES;
         buf && i <= (offset + len - 1) / STAGE_CHUNK_BYTES; i++)
        staged_renew(stage, i, buf);
}

static bool staged_close(struct source *source)
{
    struct stage *stage = stage_of(source);
    if (!((struct stage_source *)source)->owns_stage)
        return true;
    if (stage_stop(stage) < 0) {
        stage_abandon(stage, false);
        return false;
    }
    stage_close(stage);
    return true;
}

static const struct source_ops staged_ops = {
    .read = staged_read,
    .read_cached = staged_read_cached,
    .map = staged_map,
    .bring = staged_bring,
    .is_whole = staged_is_whole,
    .state = staged_state,
    .advise = staged_advise,
    .close = staged_close,
};

int stage_attach(struct stage *stage, struct source **source, bool closes_stage)
{
    if ((*source)->ops != &staged_ops) {
        struct stage_source *staged = calloc(1, sizeof(*staged));
        if (!staged)
            return -ENOMEM;
        staged->stage = stage;
        source_wrap(&staged->source, &staged_ops, source);
    }
    ((struct stage_source *)*source)->owns_stage = closes_stage;
    return 0;
}

int stage_stream_source(struct stage *stage, const char *name, struct source **ret_source)
{
    struct stage_source *staged = calloc(1, sizeof(*staged));
    char *copied = staged ? strdup(name) : NULL;
    if (!copied) {
        free(staged);
        return -ENOMEM;
    }
    staged->stage = stage;
    staged->source = (struct source){
        .ops = &staged_ops, .name = copied, .size_bytes = stage->bytes, .fd = stage->copy_fd};
    *ret_source = &staged->source;
    return 0;
}

/* ---- a stream ---- */

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
 * (fileset_probe_storage) reads where the last one stopped until storage answers, with pauses
 * that grow to a quarter of a minute. Three things end a stream, since no patience helps: the
 * archive was changed; the error is not a storage error; or storage answers whenever it is
 * asked, but unpacking never gets past the same place.
 */

_Static_assert(STAGE_CHUNK_BYTES == INDEX_WINDOW_BYTES, "a chunk has one sum");

#define TELL_EVERY_NS UINT64_C(10000000000)
#define STREAM_LOOK_NS 200000000       /* between looks, while waiting for a chunk */
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
    uint8_t *buf;       /* STAGE_CHUNK_BYTES */
    struct fault fault;
    int err;
};

/* ---- storage that is away ---- */

static void retry_say_away(struct stage *stage, int err)
{
    atomic_store(&stage->state->away, -err);
    if (stage->told_away)
        return;
    stage->told_away = true;
    stage->away_since_ns = pause_now_ns(&stage->pause);
    stage_say(stage,
              "its storage fails (%s): what was unpacked is served; unpacking goes on when the "
              "storage answers",
              fault_errno(err));
}

bool stage_retry(struct stage *stage, int err, uint64_t chunk, uint64_t packed_at)
{
    /* Silent storage would not report the state of the file, either. */
    if (!source_error_may_pass(err) ||
        (err != -ETIMEDOUT && source_was_changed(stage->source) > 0))
        return false;
    stage->retries = chunk == stage->retry_chunk ? stage->retries + 1 : 0;
    stage->retry_chunk = chunk;
    if (stage->retries > VAIN_MOST)
        return false;
    retry_say_away(stage, err);
    const struct sandbox_limits patience = {.idle_seconds = stage->options.idle_s,
                                            .stop = &stage->pause.ended};
    uint64_t pause_ns = PAUSE_FIRST_NS;
    while (pause_for(&stage->pause, pause_ns)) {
        int r = fileset_probe_storage(&stage->stream, packed_at, &patience);
        if (r == 0)
            return source_was_changed(stage->source) <= 0;
        if (!source_error_may_pass(r))
            return false;
        pause_ns = min_u64(2 * pause_ns, PAUSE_MAX_NS);
    }
    return false;
}

/* Unpacking made progress: storage answers again. */
static void retry_ended(struct stage *stage)
{
    if (!atomic_exchange(&stage->state->away, 0) || !stage->told_away)
        return;
    stage->told_away = false;
    stage_say(stage, "its storage answers again after %.0f s: unpacking goes on",
              (double)(pause_now_ns(&stage->pause) - stage->away_since_ns) * 1e-9);
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
            atomic_fetch_add(&state->copied_bytes, len);
            stage_settle(state, e->next, CHUNK_HERE);
            retry_ended(e->stage);
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
    const struct sandbox_limits patience = {.idle_seconds = stage->options.idle_s,
                                            .stop = &e->stop};
    for (;;) {
        e->fault = (struct fault){0};
        e->bytes_seen = e->beats_seen = 0;
        int r =
            fileset_expand(&stage->stream, stage->copy_fd, stage_bytes_in_order(stage->state),
                           &patience, expand_look, e, &e->fault);
        expand_say_begun(e); /* if there was no child, there may be none for long */
        if (e->err < 0 || stage_is_complete(stage->state) || pause_ended(&e->stage->pause) ||
            !stage_retry(stage, r, e->next, e->packed_at))
            return r;
    }
}

static void expand_run(struct expanding *e)
{
    struct stage *stage = e->stage;
    struct stage_state *state = stage->state;
    e->begun_ns = e->told_ns = now_ns();
    atomic_store(&state->progress_ns, e->begun_ns);
    atomic_store(&state->copying_since_ns, e->begun_ns);
    atomic_store(&state->away, 0); /* another process may have set it */
    int r = expand_until_complete(e);
    atomic_store(&state->copying_since_ns, 0);
    atomic_fetch_add(&state->copying_ns, now_ns() - e->begun_ns);
    if (stage_is_complete(state)) /* even if it ended with an error: all bytes are there */
        expand_finish(e);
    else if (e->err < 0 || (r != -ECANCELED && !pause_ended(&e->stage->pause)))
        expand_fail(e, e->err < 0 ? e->err : r);
}

/*
 * Copy a stream by unpacking it. `begun` is posted once the child that unpacks has been forked.
 */
static void stage_expand(struct stage *stage, sem_t *begun)
{
    struct expanding e = {.stage = stage, .begun = begun};
    stage->retry_chunk = stage->retries = 0;
    stage->told_away = false;
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
    const struct timespec a_moment = {.tv_nsec = STREAM_LOOK_NS};
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
            pause_for(&stage->pause, STREAM_LOOK_NS);
        else
            futex_wait(&state->chunk[chunk], CHUNK_ABSENT, FUTEX_OF_NODE, &a_moment);
    }
    if (waited)
        atomic_fetch_add(&state->demands, 1);
    return true;
}

/* ---- the copier ---- */

/*
 * The copier: threads that go through the archive in order, or on from where a reader fetched
 * two chunks in a row, and fetch chunks that are not there.
 * There are as many as a parallel filesystem needs to be fast, but few enough to leave room for
 * readers. One process at a time copies. It holds a lock on the copy, which is free again
 * however the process ends; other processes look for that now and then.
 *
 * Chunks that can't be read are tried again in later passes. If some still can't, or so many in
 * a row that the source must be gone, the copy stays as it is: its chunks are served, and the
 * rest is read from the source.
 */

#define SECOND_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(100000000)   /* between two looks for a copier that died */
#define PASSES 4u                     /* over chunks that could not be read */
#define FAILURES_IN_A_ROW 64          /* of chunks: then the source is gone */
#define FAILED_NS UINT64_C(250000000) /* before failed chunks are tried again */
#define MISSED_NS UINT64_C(10000000)  /* before chunks are looked at that readers make */
#define STACK_BYTES (128u << 10)
#define EXPAND_STACK_BYTES (1u << 20) /* of the thread whose child unpacks, on a copy of it */
#define STOP_LIMIT_S 2
#define AWAIT_JOB_S 60u
#define GENTLE_THREADS 4u
#define SCATTER_NS (10 * SECOND_NS) /* at most; for little that is missing less: */
#define SCATTER_CHUNK_NS UINT64_C(100000000)

/* ---- copying ---- */

struct copying {
    struct stage *stage;
    uint32_t generation;
    _Atomic uint64_t next; /* chunk of this pass */
    _Atomic int failures;  /* in a row */
    _Atomic int last_error;
};

/* Other nodes bring missing chunks, and did so a moment ago. */
static bool copying_yields(const struct stage *stage)
{
    uint64_t since_ns = atomic_load(&stage->state->job_ns);
    return since_ns > STAGE_JOB_LOST &&
           pause_now_ns(&stage->pause) - since_ns < STAGE_JOB_SILENT_S * SECOND_NS;
}

/* A job has broken, perhaps on all its nodes at once: storage must not feel it. */
static bool copying_is_gentle(const struct stage *stage)
{
    return atomic_load(&stage->state->job_ns) >= STAGE_JOB_LOST;
}

static bool copying_goes_on(const struct copying *c)
{
    return !pause_ended(&c->stage->pause) && !atomic_load(&c->stage->state->failure);
}

static void copying_failed(struct copying *c, int err)
{
    atomic_store(&c->last_error, err);
    if (err == EREMCHG) /* of one file (source_folder.h): the others are there */
        return;
    if (atomic_fetch_add(&c->failures, 1) + 1 >= FAILURES_IN_A_ROW)
        stage_fail(c->stage, err);
}

static void copying_chunk(struct copying *c, uint64_t chunk, void *buf)
{
    struct stage_state *state = c->stage->state;
    if (stage_chunk_here(state, chunk))
        return;
    /* A reader that takes this claim for an old one must be right: see stage_fetch. */
    atomic_store_explicit(&state->progress_ns, now_ns(), memory_order_relaxed);
    if (!stage_claim_to_copy(state, chunk, c->generation))
        return; /* a reader makes it */
    int r = stage_fetch(c->stage, chunk, buf);
    if (r < 0) {
        copying_failed(c, -r);
        return;
    }
    atomic_store_explicit(&c->failures, 0, memory_order_relaxed);
    atomic_store_explicit(&state->progress_ns, now_ns(), memory_order_relaxed);
    atomic_fetch_add(&state->copied_bytes, stage_chunk_len(state, chunk));
}

static void *copying_thread(void *arg)
{
    struct copying *c = arg;
    auto_free void *buf = malloc(STAGE_CHUNK_BYTES);
    uint64_t demands = atomic_load(&c->stage->state->demands);
    while (buf && copying_goes_on(c) && !copying_yields(c->stage)) {
        uint64_t now = atomic_load(&c->stage->state->demands);
        if (now != demands && copying_is_gentle(c->stage)) /* readers first */
            pause_for(&c->stage->pause, MISSED_NS);
        demands = now;
        uint64_t wanted = atomic_exchange(&c->stage->wanted, 0);
        if (wanted)
            atomic_store(&c->next, wanted);
        uint64_t chunk = atomic_fetch_add(&c->next, 1);
        if (chunk >= c->stage->state->chunks)
            break;
        copying_chunk(c, chunk, buf);
    }
    return NULL;
}

/* One pass over all missing chunks, with as many threads as can be started. */
static void copying_pass(struct copying *c)
{
    struct stage_state *state = c->stage->state;
    uint64_t start_ns = now_ns();
    atomic_store(&state->copying_since_ns, start_ns);
    atomic_store(&state->progress_ns, start_ns);
    atomic_store(&c->next, 0);
    atomic_store(&c->last_error, 0);
    unsigned threads = c->stage->options.threads;
    if (copying_is_gentle(c->stage) && threads > GENTLE_THREADS)
        threads = GENTLE_THREADS;
    thread_team(threads, STACK_BYTES, copying_thread, c);
    atomic_store(&state->copying_since_ns, 0);
    atomic_fetch_add(&state->copying_ns, now_ns() - start_ns);
}

/* The nodes of a job that has broken begin one after another. */
static void copying_scatter(struct stage *stage)
{
    uint64_t chance = 0;
    if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) < 0)
        chance = now_ns() / 1000 * (uint64_t)getpid();
    uint64_t missing = stage->bytes - min_u64(stage->bytes, stage_bytes_here(stage->state));
    uint64_t window_ns =
        min_u64(SCATTER_NS, (missing / STAGE_CHUNK_BYTES + 1) * SCATTER_CHUNK_NS);
    uint64_t until_ns = pause_now_ns(&stage->pause) + chance % window_ns;
    while (copying_is_gentle(stage) && !copying_yields(stage) &&
           pause_now_ns(&stage->pause) < until_ns && !stage_is_complete(stage->state) &&
           pause_for(&stage->pause, LOOK_NS))
        ;
}

/* Chunks that still can't be read are left to readers, which may have more luck. */
void stage_copy(struct stage *stage)
{
    struct stage_state *state = stage->state;
    struct copying c = {.stage = stage,
                        .generation =
                            (atomic_fetch_add(&state->generation, 1) + 1) & 0x7fffffff};
    unsigned fruitless = 0;
    bool waited = false;
    while (copying_goes_on(&c)) {
        if (copying_yields(stage) && !stage_is_complete(state)) {
            pause_for(&stage->pause, LOOK_NS);
            waited = false; /* the job may break once more */
            continue;
        }
        if (!waited) {
            copying_scatter(stage);
            waited = true;
        }
        copying_pass(&c);
        int err = atomic_load(&c.last_error);
        if (stage_is_complete(state))
            break;
        if (err && ++fruitless >= PASSES && copying_goes_on(&c))
            stage_fail(stage, err);
        if (copying_goes_on(&c))
            pause_for(&stage->pause, err ? FAILED_NS : MISSED_NS);
    }
    stage_finish(stage);
}

/* ---- whose turn it is ---- */

static bool copier_is_needed(const struct stage *stage)
{
    return !atomic_load(&stage->state->whole) && !atomic_load(&stage->state->failure);
}

/* The lock belongs to an open file, so it needs another one. */
static int copier_open_copy(const struct stage *stage)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", stage->copy_fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void copier_work(struct stage *stage)
{
    if (!copier_is_needed(stage) || pause_ended(&stage->pause)) /* another one has ended */
        return;
    atomic_store(&stage->state->copier_pid, (int32_t)getpid());
    if (stage->expands)
        stage_expand(stage, &stage->begun);
    else
        stage_copy(stage);
    atomic_store(&stage->state->copier_pid, 0);
}

/* A reader comes before the nodes of its job begin to copy, but must not wait for them long. */
static void copier_await_job(struct stage *stage)
{
    uint64_t since_ns = pause_now_ns(&stage->pause);
    while (copier_is_needed(stage) && !atomic_load(&stage->state->job_ns) &&
           !pause_ended(&stage->pause)) {
        if (pause_now_ns(&stage->pause) - since_ns > AWAIT_JOB_S * SECOND_NS) {
            stage_say(stage,
                      "the nodes of the job have not begun to copy it together within %u s: "
                      "this one reads all of it",
                      AWAIT_JOB_S);
            break;
        }
        pause_for(&stage->pause, LOOK_NS);
    }
}

static void *copier_run(void *arg)
{
    struct stage *stage = arg;
    if (stage->options.in_job && !stage->expands)
        copier_await_job(stage);
    auto_close int fd = copier_open_copy(stage);
    bool is_mine = fd >= 0 && registry_take(fd);
    while (fd >= 0 && !is_mine && copier_is_needed(stage)) {
        sem_post(&stage->begun);
        if (!pause_for(&stage->pause, LOOK_NS))
            break;
        is_mine = registry_take(fd);
    }
    if (is_mine)
        copier_work(stage);
    sem_post(&stage->begun);
    return NULL;
}

int stage_start(struct stage *stage)
{
    if (stage->copier_process == getpid() || !copier_is_needed(stage))
        return 0;
    sem_init(&stage->begun, 0, 0);
    atomic_store(&stage->pause.ended, false);
    int r = thread_start(&stage->copier, stage->expands ? EXPAND_STACK_BYTES : STACK_BYTES,
                         copier_run, stage);
    if (r < 0)
        return r;
    stage->copier_process = getpid();
    /* The child is a fork, and could inherit locks that threads started meanwhile hold. */
    while (stage->expands && sem_wait(&stage->begun) < 0)
        ; /* a signal came */
    return 0;
}

int stage_stop(struct stage *stage)
{
    if (stage->copier_process != getpid()) { /* a child has none of its parent's threads */
        stage->copier_process = 0;
        atomic_store(&stage->pause.ended, true);
        return 0;
    }
    pause_end(&stage->pause);
    const struct timespec until = clock_in_ms(CLOCK_MONOTONIC, STOP_LIMIT_S * 1000L);
    if (thread_join_until(stage->copier, &until) != 0)
        return -EBUSY;
    stage->copier_process = 0;
    sem_destroy(&stage->begun);
    return 0;
}
