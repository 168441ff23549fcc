/*
 * mount --verify: a file is served only after all of it matched the sum that it was packed
 * with.
 *
 * A file that fits one READ is compared just before it is sent, so the bytes hashed are the
 * bytes sent. A larger one is read to its end at its first READ, whichever part that asks for;
 * other readers wait meanwhile. Hashing along with a reader would be cheaper, but a reader that
 * goes in another order, or not to the end, would get unchecked bytes. The finding is kept, in
 * one byte a file, so that this is paid once; a bad file stays bad until the mount ends.
 *
 * The check of a large file may take longer than a read may (--io-timeout). As long as it makes
 * progress it counts as alive, and so do the readers that wait for it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "checksum.h"
#include "clock.h"
#include "content.h"
#include "core.h"

enum finding {
    NOT_CHECKED,
    BEING_CHECKED,
    GOOD,
    BAD,
};

struct sums {
    struct session *session;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic uint64_t beats;     /* progress of all checks */
    _Atomic uint8_t findings[]; /* enum finding, by position */
};

static int sums_start(struct session *s, void **ret_state)
{
    const struct index_info *info = index_info(s->index);
    pthread_condattr_t attr;
    struct sums *sums;

    if (!s->config.verify || !info->has_some_sums)
        return 0;
    sums = calloc(1, sizeof(*sums) + info->entries);
    if (!sums)
        return -ENOMEM;
    sums->session = s;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&sums->lock, NULL);
    pthread_cond_init(&sums->changed, &attr);
    pthread_condattr_destroy(&attr);
    *ret_state = sums;
    return 0;
}

static void sums_free(void *state)
{
    struct sums *sums = state;

    pthread_cond_destroy(&sums->changed);
    pthread_mutex_destroy(&sums->lock);
    free(sums);
}

static enum finding finding_of(const struct sums *sums, uint32_t position)
{
    return (enum finding)atomic_load_explicit(&sums->findings[position], memory_order_acquire);
}

/* ---- one check ---- */

struct check {
    struct sums *sums;
    struct worker *worker;
    struct checksum *hash;
};

/* Keeps the watchdog from taking a check that makes progress for a stalled read. */
static void show_life(struct worker *w)
{
    atomic_store(&w->since_ns, now_ns());
}

static int hash_piece(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct check *c = ctx;

    (void)offset;
    checksum_add(c->hash, bytes, len);
    atomic_fetch_add_explicit(&c->sums->beats, 1, memory_order_relaxed);
    show_life(c->worker);
    return atomic_load(&c->sums->session->ended) ? -EIO : 0;
}

static void log_mismatch(struct session *s, uint32_t position)
{
    char path[LOG_PATH_MAX];
    struct extent extent = {0};
    int r = index_extent(s->index, position, 0, &extent);

    if (r == 0)
        source_at(s->config.pot->source, &extent.source_offset);
    session_log(s,
                "%s: %s: its bytes do not have the sum that they were packed with (offset "
                "%llu); readers get an input/output error",
                log_archive(s, position), log_path(s, position, path),
                r == 0 ? (unsigned long long)extent.source_offset : 0);
}

/* Does the file have the sum that it should have? */
static enum finding compare(struct session *s, uint32_t position, const struct checksum *sum)
{
    uint64_t wanted;
    int r = index_sum(s->index, position, &wanted);
    if (r == -ENODATA || (r == 0 && checksum_is(sum, wanted)))
        return GOOD;
    log_mismatch(s, position);
    return BAD;
}

/* Read all of a file. A read error is no finding, since the next attempt may succeed. */
static int check_all(struct sums *sums, struct worker *w, const struct node *node,
                     enum finding *ret_finding)
{
    struct session *s = w->session;
    struct check check = {sums, w, NULL};
    struct content *content = NULL;
    uint64_t where;
    int r = checksum_new(index_info(s->index)->sum_kind, &check.hash);

    if (r == 0)
        r = content_new(s->config.pot, s->config.reader, CONTENT_SHARED_BLOCKS, &content);
    if (r == 0)
        r = content_read(content, node->position, 0, node->size_bytes, hash_piece, &check,
                         &where);
    if (r == 0)
        *ret_finding = compare(s, node->position, check.hash);
    content_free(content);
    checksum_free(check.hash);
    return r;
}

/* ---- several readers of one file ---- */

/* Another worker checks the file. This one counts as alive as long as any check does. */
static void wait_for_finding(struct sums *sums, struct worker *w, uint32_t position)
{
    uint64_t beats = atomic_load(&sums->beats);
    loop_about_to_wait(w);
    pthread_mutex_lock(&sums->lock);
    while (finding_of(sums, position) == BEING_CHECKED && !atomic_load(&w->session->ended)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&sums->changed, &sums->lock, &until);
        if (atomic_load(&sums->beats) != beats)
            show_life(w);
        beats = atomic_load(&sums->beats);
    }
    pthread_mutex_unlock(&sums->lock);
}

static void settle(struct sums *sums, uint32_t position, enum finding finding)
{
    pthread_mutex_lock(&sums->lock);
    atomic_store_explicit(&sums->findings[position], (uint8_t)finding, memory_order_release);
    pthread_cond_broadcast(&sums->changed);
    pthread_mutex_unlock(&sums->lock);
}

static int check_once(struct sums *sums, struct worker *w, const struct node *node)
{
    enum finding finding = NOT_CHECKED;
    uint8_t expected = NOT_CHECKED;

    if (!atomic_compare_exchange_strong(&sums->findings[node->position], &expected,
                                        BEING_CHECKED))
        return expected == BEING_CHECKED ? -EAGAIN : 0;
    loop_about_to_wait(w);
    int r = check_all(sums, w, node, &finding);
    settle(sums, node->position, finding);
    return r;
}

/*
 * 0, -EBADMSG if the file is not what was packed, or a read error. May take as long as reading
 * the whole file. If sum_is_due is set, the bytes that are read are compared afterwards.
 */
static int sums_check(struct sums *sums, struct read *read)
{
    struct worker *w = read->rq->worker;
    const struct session *s = sums->session;
    uint32_t position;
    uint64_t sum;
    struct node node;
    int r = index_inode_position(s->index, read->position, &position);

    while (r == 0) {
        enum finding finding = finding_of(sums, position);
        if (finding == GOOD || finding == BAD || atomic_load(&s->ended))
            return finding == GOOD ? 0 : -EBADMSG;
        r = index_node(s->index, position, &node);
        if (r < 0 || !S_ISREG(node.mode))
            return r;
        if (index_sum(s->index, position, &sum) == -ENODATA) { /* nothing to compare with */
            settle(sums, position, GOOD);
            return 0;
        }
        if (read->offset == 0 && read->size >= node.size_bytes && !node.has_holes) {
            read->sum_is_due = true;
            return 0;
        }
        r = check_once(sums, w, &node);
        if (r == -EAGAIN) {
            wait_for_finding(sums, w, position);
            r = 0;
        }
    }
    return r;
}

static int sums_before_read(void *state, struct read *read)
{
    int r = sums_check(state, read);

    if (r < 0 && r != -EBADMSG) /* what is wrong with a bad file is logged once */
        log_read_error(read->rq->worker->session, read->position, read->offset, r);
    return r;
}

static int sums_check_span(struct sums *sums, uint32_t position, const struct span *span)
{
    const struct index *index = sums->session->index;
    struct checksum *hash;
    int r = checksum_new(index_info(index)->sum_kind, &hash);

    if (r < 0)
        return r;
    for (int i = 0; i < span->iov_count; i++)
        checksum_add(hash, span->iov[i].iov_base, span->iov[i].iov_len);
    r = index_inode_position(index, position, &position);
    if (r == 0) {
        enum finding finding = compare(sums->session, position, hash);
        settle(sums, position, finding);
        r = finding == GOOD ? 0 : -EBADMSG;
    }
    checksum_free(hash);
    return r;
}

static void sums_after_read(void *state, struct read *read)
{
    if (read->result == 0 && read->sum_is_due)
        read->result = sums_check_span(state, read->position, read->span);
}

const struct feature sums_feature = {
    .start = sums_start,
    .before_read = sums_before_read,
    .after_read = sums_after_read,
    .free = sums_free,
};
