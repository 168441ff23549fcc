/*
 * mount --verify: the bytes that were summed are the bytes that are served.
 *
 * A READ is widened to whole windows. Their bytes come into memory that nobody else changes (a
 * copy, or a pinned block), are hashed there, and the part that was asked for is sent from
 * there. A file up to WINDOW_BYTES is one window, whose sum the archive has. A larger one is
 * read to its end at its first READ, and hashed twice along the way: as a whole, and window by
 * window. If the whole has the archive's sum, the windows' hashes are good, and stay: every
 * READ is compared with them, wherever its bytes come from. So nothing depends on what caches
 * keep between check and READ, and a file may be larger than any memory; its hashes take 64 MB
 * for each TB.
 *
 * Bytes that do not match are kept nowhere (reader_forget), and read from storage once more,
 * since a fault of a link or of memory may be over. If they are wrong again, readers get an
 * error. A file with a wrong sum is refused for a while and then read again: storage may
 * recover, but the kernel repeats each READ that failed, and the check takes as long as reading
 * all of the file.
 *
 * That may be longer than a read may take (--io-timeout). As long as a check makes progress it
 * counts as alive, and so do the readers that wait for it.
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
#include "map.h"
#include "numbers.h"
#include "thread.h"

#define WINDOW_BYTES (128u << 10) /* as much as the kernel asks for at once */
#define REFUSED_NS UINT64_C(5000000000)

enum finding {
    NOT_CHECKED,
    BEING_CHECKED,
    GOOD,
    BAD,
};

/*
 * A file that is larger than a window, or was bad. A GOOD one stays so, and its hashes need no
 * lock.
 */
struct summed {
    enum finding finding;
    bool told;         /* the log names it already */
    uint64_t until_ns; /* BAD: refused until then */
    struct summed *next;
    uint64_t windows[]; /* the hash of each; 0: a hole */
};

struct sums {
    struct session *session;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct map files; /* struct summed, by position */
    struct summed *all;
    _Atomic uint64_t beats; /* progress of all checks */
};

static int sums_start(struct session *s, void **ret_state)
{
    struct sums *sums;

    if (!s->config.verify || !index_info(s->index)->has_some_sums)
        return 0;
    sums = calloc(1, sizeof(*sums));
    if (!sums)
        return -ENOMEM;
    sums->session = s;
    pthread_mutex_init(&sums->lock, NULL);
    thread_cond_init(&sums->changed);
    *ret_state = sums;
    return 0;
}

static void sums_free(void *state)
{
    struct sums *sums = state;

    for (struct summed *next, *summed = sums->all; summed; summed = next) {
        next = summed->next;
        free(summed);
    }
    map_free(&sums->files);
    pthread_cond_destroy(&sums->changed);
    pthread_mutex_destroy(&sums->lock);
    free(sums);
}

static void log_mismatch(struct session *s, uint32_t position)
{
    char path[LOG_PATH_MAX];
    struct extent extent = {0};
    int r = index_extent(s->index, position, 0, &extent);

    if (r == 0)
        source_at(s->config.fileset->source, &extent.source_offset);
    session_trouble(s, TROUBLE_READ,
                    "%s: %s: its bytes do not have the sum that they were packed with (offset "
                    "%llu); readers get an input/output error; copy the archive again",
                    log_archive(s, position), log_path(s, position, path),
                    r == 0 ? (unsigned long long)extent.source_offset : 0);
}

/* With the lock. NULL: nothing is known of the file. */
static struct summed *sums_known(const struct sums *sums, uint32_t position)
{
    uint64_t value;

    return map_get(&sums->files, map_key_of(position), &value) == 0
               ? (struct summed *)(uintptr_t)value
               : NULL;
}

/* With the lock. Begins to know of the file. -ENOMEM. */
static int sums_know(struct sums *sums, const struct node *node, struct summed **ret_summed)
{
    uint64_t windows = node->size_bytes / WINDOW_BYTES + 1;
    struct summed *summed = sums_known(sums, node->position);

    if (!summed) {
        summed = calloc(1, sizeof(*summed) + windows * sizeof(uint64_t));
        if (!summed ||
            map_put(&sums->files, map_key_of(node->position), (uintptr_t)summed) < 0) {
            free(summed);
            return -ENOMEM;
        }
        summed->next = sums->all;
        sums->all = summed;
    }
    *ret_summed = summed;
    return 0;
}

static bool is_refused(const struct summed *summed)
{
    return summed->finding == BAD && now_ns() < summed->until_ns;
}

/*
 * With the lock. Bytes of the file are wrong: refuse it for a while, unless all of it was right
 * before, and tell so once.
 */
static void sums_refuse(struct sums *sums, uint32_t position, struct summed *summed)
{
    if (summed->finding != GOOD)
        summed->finding = BAD;
    summed->until_ns = now_ns() + REFUSED_NS;
    if (!summed->told)
        log_mismatch(sums->session, position);
    summed->told = true;
}

/* ---- the check of a large file ---- */

#define NO_WINDOW UINT64_MAX
#define FORGET_BYTES (64u << 20) /* between two signs of life */

struct check {
    struct sums *sums;
    struct worker *worker;
    struct summed *summed;
    struct checksum *whole, *part;
    uint64_t window; /* that `part` is of */
};

static uint64_t hash_of(const struct checksum *part)
{
    uint64_t hash = checksum_value(part);

    return hash + !hash;
}

static void end_window(struct check *c)
{
    if (c->window != NO_WINDOW)
        c->summed->windows[c->window] = hash_of(c->part);
    c->window = NO_WINDOW;
    checksum_reset(c->part);
}

/* Keeps the watchdog from taking a check that makes progress for a stalled read. */
static void show_life(struct sums *sums, struct worker *w)
{
    atomic_fetch_add_explicit(&sums->beats, 1, memory_order_relaxed);
    atomic_store(&w->since_ns, now_ns());
}

/* content_sink */
static int hash_piece(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct check *c = ctx;
    const uint8_t *from = bytes;

    checksum_add(c->whole, bytes, len);
    for (size_t done = 0, n; done < len; done += n) {
        uint64_t at = offset + done;
        n = (size_t)min_u64(len - done, WINDOW_BYTES - at % WINDOW_BYTES);
        if (at / WINDOW_BYTES != c->window)
            end_window(c);
        c->window = at / WINDOW_BYTES;
        checksum_add(c->part, from + done, n);
    }
    show_life(c->sums, c->worker);
    return atomic_load(&c->sums->session->ended) ? -EIO : 0;
}

/* Reads all of a file. */
static int hash_file(struct check *c, const struct node *node, bool *ret_is_good)
{
    struct session *s = c->sums->session;
    struct content *content = NULL;
    uint64_t where, wanted;
    int r = content_new(s->config.fileset, s->config.reader, CONTENT_SHARED_BLOCKS, &content);

    checksum_reset(c->whole);
    if (r == 0)
        r = content_read(content, node->position, 0, node->size_bytes, hash_piece, c, &where);
    end_window(c);
    content_free(content);
    if (r == 0)
        r = index_sum(s->index, node->position, &wanted);
    if (r == 0)
        *ret_is_good = checksum_is(c->whole, wanted);
    return r;
}

static void forget_file(struct check *c, const struct node *node)
{
    for (uint64_t at = 0; at < node->size_bytes; at += FORGET_BYTES) {
        reader_forget(c->sums->session->config.reader, node->position, at,
                      min_u64(FORGET_BYTES, node->size_bytes - at));
        show_life(c->sums, c->worker);
    }
}

/* A read error is no finding, since the next attempt may succeed. */
static int check_file(struct sums *sums, struct worker *w, const struct node *node,
                      struct summed *summed, bool *ret_is_good)
{
    struct check c = {.sums = sums, .worker = w, .summed = summed, .window = NO_WINDOW};
    int r = checksum_new(index_info(sums->session->index)->sum_kind, &c.whole);

    if (r == 0)
        r = checksum_new(SUM_XXH3, &c.part);
    if (r == 0)
        r = hash_file(&c, node, ret_is_good);
    if (r == 0 && !*ret_is_good) {
        forget_file(&c, node);
        r = hash_file(&c, node, ret_is_good);
    }
    if (r == 0 && !*ret_is_good)
        forget_file(&c, node);
    checksum_free(c.part);
    checksum_free(c.whole);
    return r;
}

/* ---- several readers of one file ---- */

/*
 * With the lock. Another worker checks the file. This one counts as alive as long as any check
 * does.
 */
static void wait_for_finding(struct sums *sums, struct worker *w, const struct summed *summed)
{
    uint64_t beats = atomic_load(&sums->beats);

    while (summed->finding == BEING_CHECKED && !atomic_load(&w->session->ended)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&sums->changed, &sums->lock, &until);
        if (atomic_load(&sums->beats) != beats)
            atomic_store(&w->since_ns, now_ns());
        beats = atomic_load(&sums->beats);
    }
}

/* With the lock, which it leaves while it reads. */
static int check_once(struct sums *sums, struct worker *w, const struct node *node,
                      struct summed *summed)
{
    bool is_good = false;

    summed->finding = BEING_CHECKED;
    pthread_mutex_unlock(&sums->lock);
    int r = check_file(sums, w, node, summed, &is_good);
    pthread_mutex_lock(&sums->lock);
    summed->finding = r == 0 && is_good ? GOOD : NOT_CHECKED;
    if (r == 0 && !is_good)
        sums_refuse(sums, node->position, summed);
    pthread_cond_broadcast(&sums->changed);
    return r;
}

/* With the lock. Returns once all of a large file was read and is good: 0, or an error. */
static int await_good(struct sums *sums, struct worker *w, const struct node *node,
                      struct summed **ret_summed)
{
    int r = sums_know(sums, node, ret_summed);

    while (r == 0 && (*ret_summed)->finding != GOOD) {
        if (atomic_load(&w->session->ended))
            return -EIO;
        if (is_refused(*ret_summed))
            return -EBADMSG;
        loop_about_to_wait(w);
        if ((*ret_summed)->finding == BEING_CHECKED)
            wait_for_finding(sums, w, *ret_summed);
        else
            r = check_once(sums, w, node, *ret_summed);
    }
    return r;
}

/* ---- one READ ---- */

/* Makes a READ one of whole windows, of a file that is not known to be bad. */
static int sums_widen(struct sums *sums, struct read *read, const struct node *node)
{
    const uint64_t end = read->offset + read->size;
    struct summed *summed;
    int r = 0;

    if (read->size > READER_SPAN_MAX - 2 * WINDOW_BYTES)
        return -EINVAL;
    pthread_mutex_lock(&sums->lock);
    if (node->size_bytes > WINDOW_BYTES)
        r = await_good(sums, read->rq->worker, node, &summed);
    else if ((summed = sums_known(sums, node->position)) && is_refused(summed))
        r = -EBADMSG;
    pthread_mutex_unlock(&sums->lock);
    if (r < 0)
        return r;
    read->asked.is_due = true;
    read->asked.offset = read->offset;
    read->asked.size = read->size;
    read->asked.inode = node->position;
    if (node->size_bytes > WINDOW_BYTES) {
        read->asked.hashes = summed->windows;
        read->offset -= read->offset % WINDOW_BYTES;
        read->size =
            (uint32_t)((end - read->offset + WINDOW_BYTES - 1) / WINDOW_BYTES) * WINDOW_BYTES;
    } else {
        read->offset = 0;
        read->size = (uint32_t)node->size_bytes;
    }
    return 0;
}

static int sums_before_read(void *state, struct read *read)
{
    struct sums *sums = state;
    const struct index *index = sums->session->index;
    uint32_t position;
    uint64_t sum;
    struct node node;
    int r = index_inode_position(index, read->position, &position);

    if (r == 0)
        r = index_node(index, position, &node);
    if (r == 0)
        r = index_sum(index, position, &sum);
    if (r == -ENODATA) /* nothing to compare with */
        return 0;
    if (r == 0 && S_ISREG(node.mode))
        r = sums_widen(sums, read, &node);
    if (r < 0 && r != -EBADMSG) /* the fault of a bad file is logged once */
        log_read_error(sums->session, read->position, read->offset, r);
    return r;
}

/* Hashes the bytes [at, at + len) of a span. */
static int hash_part(const struct span *span, uint64_t at, uint64_t len, struct checksum *hash)
{
    for (int i = 0; i < span->iov_count && len > 0; i++) {
        const struct iovec *part = &span->iov[i];
        uint64_t skip = min_u64(at, part->iov_len), n = min_u64(len, part->iov_len - skip);
        checksum_add(hash, (const uint8_t *)part->iov_base + skip, n);
        at -= skip;
        len -= n;
    }
    return len == 0 ? 0 : -EUCLEAN;
}

/* Hashes the data of one window of an answer, without its holes. False: it has none. */
static int hash_window(const struct index *index, const struct read *read, uint64_t from,
                       uint64_t to, struct checksum *hash, bool *ret_has_data)
{
    struct extent extent;
    int r = 0;

    checksum_reset(hash);
    *ret_has_data = false;
    for (uint64_t at = from, n; r == 0 && at < to; at += n) {
        r = index_extent(index, read->position, at, &extent);
        if (r < 0)
            break;
        n = min_u64(extent.length, to - at);
        if (n == 0)
            return -EUCLEAN;
        if (extent.kind == EXTENT_HOLE)
            continue;
        *ret_has_data = true;
        r = hash_part(read->span, at - read->offset, n, hash);
    }
    return r;
}

/* 0, or -EBADMSG: the bytes that were read differ from the packed ones. */
static int check_window(const struct index *index, const struct read *read, uint64_t from,
                        uint64_t to, struct checksum *hash)
{
    const uint64_t *hashes = read->asked.hashes;
    uint64_t sum;
    bool has_data, is_good;
    int r = hash_window(index, read, from, to, hash, &has_data);

    if (r == 0 && !hashes)
        r = index_sum(index, read->asked.inode, &sum);
    if (r < 0)
        return r;
    if (hashes)
        is_good = hashes[from / WINDOW_BYTES] == (has_data ? hash_of(hash) : 0);
    else
        is_good = checksum_is(hash, sum);
    return is_good ? 0 : -EBADMSG;
}

static int check_answer(const struct sums *sums, const struct read *read)
{
    const struct index *index = sums->session->index;
    const uint64_t end = read->offset + read->span->bytes;
    struct checksum *hash;
    int r = checksum_new(read->asked.hashes ? SUM_XXH3 : index_info(index)->sum_kind, &hash);

    if (r < 0)
        return r;
    for (uint64_t at = read->offset; r == 0 && at < end; at += WINDOW_BYTES)
        r = check_window(index, read, at, min_u64(at + WINDOW_BYTES, end), hash);
    checksum_free(hash);
    return r;
}

static void refuse_file(struct sums *sums, uint32_t position)
{
    struct summed *summed;
    struct node node;

    pthread_mutex_lock(&sums->lock);
    if (index_node(sums->session->index, position, &node) == 0 &&
        sums_know(sums, &node, &summed) == 0)
        sums_refuse(sums, position, summed);
    pthread_mutex_unlock(&sums->lock);
}

/* Compares an answer. What is wrong is read once more. */
static int answer_good(struct sums *sums, struct read *read)
{
    struct session *s = sums->session;
    int r = check_answer(sums, read);

    for (int tries = 0; r == -EBADMSG && tries < 2; tries++) {
        reader_put(s->config.reader, read->span);
        loop_about_to_wait(read->rq->worker);
        reader_forget(s->config.reader, read->position, read->offset, read->size);
        if (tries == 1)
            break;
        r = reader_get(s->config.reader, read->rq->worker->scratch, read->position,
                       read->offset, read->size, read->span);
        if (r == 0)
            r = check_answer(sums, read);
        else
            log_read_error(s, read->position, read->offset, r);
    }
    if (r == -EBADMSG)
        refuse_file(sums, read->asked.inode);
    return r;
}

static void sums_after_read(void *state, struct read *read)
{
    if (!read->asked.is_due)
        return;
    if (read->result == 0)
        read->result = answer_good(state, read);
    if (read->result == 0)
        reader_cut(read->span, (size_t)(read->asked.offset - read->offset), read->asked.size);
    read->offset = read->asked.offset;
    read->size = read->asked.size;
}

const struct feature sums_feature = {
    .start = sums_start,
    .before_read = sums_before_read,
    .after_read = sums_after_read,
    .free = sums_free,
};
