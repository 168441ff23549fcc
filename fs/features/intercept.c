/*
 * The short circuit: processes with the preloaded library read files of the archive by
 * themselves (intercept.h). Here the mount tells them how.
 *
 * Not where sums are compared as files are read, nor from network filesystems, nor from a copy
 * until all of it is there: a process can't do the daemon's work there for itself. Nor where
 * the daemon has to see all reads, to write them down or to follow an order.
 */
#include <errno.h>
#include <stdlib.h>

#include "core.h"
#include "server.h"

struct intercept {
    struct session *session;
    struct intercept_server *server;
};

static void update_session(void *session)
{
    session_update_counters(session);
}

/* Processes may read for themselves, at least once a copy is complete. */
static int intercept_start(struct session *s, void **ret_state)
{
    const struct session_config *config = &s->config;
    const struct intercept_server_config server = {
        .index = s->index,
        .source = config->pot->source,
        .made = {s->made.tv_sec, (uint64_t)s->made.tv_nsec},
        .has_news = update_session,
        .ctx = s,
    };

    if (config->verify || config->recorder || config->order ||
        !(config->stage || source_is_local(config->pot->source)))
        return 0;
    struct intercept *in = calloc(1, sizeof(*in));
    if (!in)
        return -ENOMEM;
    in->session = s;
    if (intercept_server_new(&server, &in->server) < 0) { /* the mount works without */
        free(in);
        return 0;
    }
    *ret_state = in;
    intercept_id_text(intercept_server_id(in->server), config->counters->direct_id,
                      sizeof(config->counters->direct_id));
    atomic_store(&config->counters->direct_is_offered, true);
    s->file_marks = intercept_server_marks(in->server);
    return 0;
}

static bool intercept_answer(void *state, struct request *rq)
{
    const struct intercept *in = state;
    const struct fuse_ioctl_in *arg = rq->arg;
    struct {
        struct fuse_ioctl_out out;
        struct intercept_id id;
    } answer = {0};

    if (rq->header->opcode != FUSE_IOCTL || rq->arg_len < sizeof(*arg) ||
        arg->cmd != INTERCEPT_IOCTL || arg->out_size < sizeof(answer.id) ||
        !intercept_server_tells(rq->header->uid) ||
        !source_is_local(in->session->config.pot->source) ||
        atomic_load_explicit(&in->session->distrusted, memory_order_relaxed))
        return false;
    answer.id = *intercept_server_id(in->server);
    reply_bytes(rq, &answer, sizeof(answer));
    return true;
}

static void intercept_update(void *state)
{
    const struct intercept *in = state;
    struct counters *c = in->session->config.counters;
    struct intercept_sums sums;

    intercept_server_sum(in->server, &sums);
    atomic_store(&c->direct_starts, sums.starts);
    atomic_store(&c->direct_files, sums.files);
    atomic_store(&c->direct_foreseen, sums.foreseen);
    atomic_store(&c->direct_reads, sums.reads);
    atomic_store(&c->direct_bytes, sums.bytes);
    atomic_store(&c->direct_ns, sums.waited_ns);
    atomic_store(&c->direct_last_ns, sums.last_read_ns);
    atomic_store(&c->direct_refused, sums.has_refused);
}

static void intercept_end(void *state)
{
    const struct intercept *in = state;

    intercept_server_end(in->server);
}

static int intercept_join(void *state, const struct timespec *until)
{
    const struct intercept *in = state;

    return intercept_server_join(in->server, until);
}

static void intercept_free(void *state)
{
    struct intercept *in = state;

    intercept_server_free(in->server);
    free(in);
}

const struct feature intercept_feature = {
    .start = intercept_start,
    .answer = intercept_answer,
    .update_counters = intercept_update,
    .end = intercept_end,
    .join = intercept_join,
    .free = intercept_free,
};
