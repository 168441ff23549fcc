/*
 * Population: when readers go through many files of an archive, the files near those they read
 * (nearby.h) are brought into the kernel's page cache before readers ask for them.
 *
 * A file that is read cold costs its reader a round trip or two, with two changes of process
 * each. Files that one process requests in a row, without waiting for each, cost half of that,
 * and reads from the page cache then cost no request at all. So a process of our own goes
 * through the mount like any reader: it lists a directory, opens its files and announces to the
 * kernel that it will need them (posix_fadvise). It works in the order of the archive, which
 * also suits a device or a decompressor best.
 *
 * There are two such processes, so that they get a fair share of the CPUs beside several
 * readers (why processes: helper.h).
 */
#include <errno.h>
#include <stdlib.h>

#include "budget.h"
#include "helper.h"
#include "nearby.h"
#include "numbers.h"

struct populate {
    struct helper helper;
    struct nearby nearby;
    _Atomic uint64_t wanted; /* total of cold reads at which it should wake */
    uint64_t child_allowance;
};

static enum mount_fetch populate_work(struct helper *h, void *ctx)
{
    const struct populate *p = (struct populate *)(void *)h;

    return nearby_run(&p->nearby, p->child_allowance, &helper_fetcher, ctx);
}

/* Sleep until there are so many more reads. False: the session has ended. */
static bool populate_sleep(struct populate *p, uint64_t more)
{
    atomic_store(&p->wanted, helper_cold_reads(p->helper.session) + more);
    return helper_sleep(&p->helper);
}

static void *populate_run(void *arg)
{
    struct populate *p = arg;
    const struct session *s = p->helper.session;
    uint64_t more = nearby_reads_needed(&p->nearby);

    while (populate_sleep(p, more)) {
        if (!source_is_local(s->config.pot->source)) {
            more = NEARBY_READS_FIRST; /* a copy is in progress: the rest is still far away */
            continue;
        }
        unsigned children = min_u32(s->loop.running_max, HELPER_POPULATE_MAX);
        p->child_allowance =
            nearby_allowance(&p->nearby, s->config.readahead_bytes, budget_room_bytes("")) /
            children;
        if (!p->child_allowance ||
            helper_run(&p->helper, children, populate_work) < MOUNT_FETCH_FULL)
            break;
        more = NEARBY_READS_AGAIN;
    }
    return NULL;
}

/*
 * While a stream is unpacked, population would keep as many requests waiting as the kernel
 * allows.
 */
static bool is_unpacking(const struct session *s)
{
    return s->config.stage && stage_stream_progress_ns(s->config.stage) != 0;
}

static void populate_after_read(void *state, struct read *read)
{
    struct populate *p = state;
    const struct session *s = p->helper.session;
    const struct counter_slot *slot = read->rq->worker->slot;

    if (read->result < 0 || read->offset > 0 || read->rq->own)
        return;
    nearby_saw_read(&p->nearby, read->position);
    if (atomic_load_explicit(&slot->read_files, memory_order_relaxed) % NEARBY_READS_AGAIN ==
            0 &&
        helper_is_asleep(&p->helper) &&
        helper_cold_reads(s) >= atomic_load_explicit(&p->wanted, memory_order_relaxed) &&
        !is_unpacking(s))
        helper_wake(&p->helper);
}

static void populate_after_listing(void *state, uint32_t from, uint32_t to)
{
    const struct populate *p = state;

    nearby_saw_listing(&p->nearby, from, to);
}

static int populate_start(struct session *s, void **ret_state)
{
    const struct session_config *config = &s->config;
    struct populate *p;

    if (!config->readahead_bytes || !helper_is_possible(config) || config->order ||
        !(config->stage || source_is_local(config->pot->source)) ||
        index_info(s->index)->files < 2 * NEARBY_READS_FIRST)
        return 0;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    *ret_state = p;
    int r = helper_init(&p->helper, s, HELPER_POPULATE, HELPER_POPULATE_MAX,
                        nearby_bytes(s->index));
    if (r < 0)
        return r;
    nearby_init(&p->nearby, s->index, p->helper.shared);
    return helper_start(&p->helper, populate_run);
}

const struct feature populate_feature = {
    .start = populate_start,
    .after_read = populate_after_read,
    .after_listing = populate_after_listing,
    .answer = helper_answer,
    .end = helper_end,
    .join = helper_join,
    .free = helper_free,
};
