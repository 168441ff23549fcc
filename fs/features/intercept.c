/*
 * The short circuit: processes with the preloaded library read files of the archive by
 * themselves (intercept.h). Here the mount tells them how.
 *
 * Not where sums are compared as files are read, nor from network filesystems, nor from a copy
 * until all of it is there: a process can't do the daemon's work there for itself. Nor where
 * the daemon has to see all reads, to write them down or to follow an order.
 */
#include "core.h"
#include "server.h"

static void update_session(void *session)
{
    session_update_counters(session);
}

/* Processes may read for themselves, at least once a copy is complete. */
static int intercept_start(struct session *s, void **ret_state)
{
    const struct session_config *config = &s->config;
    const struct intercept_server_config options = {
        .index = s->index,
        .source = config->pot->source,
        .made = {s->made.tv_sec, (uint64_t)s->made.tv_nsec},
        .counters = config->counters,
        .lists_ahead = &s->lists_ahead,
        .has_news = update_session,
        .ctx = s,
    };

    if (config->verify || config->recorder || config->order ||
        !(config->stage || source_is_local(config->pot->source)))
        return 0;
    struct intercept_server *server;
    if (intercept_server_new(&options, &server) < 0)
        return 0; /* the mount works without */
    s->file_marks = intercept_server_marks(server);
    *ret_state = server;
    return 0;
}

static bool intercept_answer(void *state, struct request *rq)
{
    const struct session *s = rq->worker->session;
    const struct fuse_ioctl_in *arg = rq->arg;
    struct {
        struct fuse_ioctl_out out;
        struct intercept_id id;
    } answer = {0};

    if (rq->header->opcode != FUSE_IOCTL || rq->arg_len < sizeof(*arg) ||
        arg->cmd != INTERCEPT_IOCTL || arg->out_size < sizeof(answer.id) ||
        !intercept_server_tells(rq->header->uid) || !source_is_local(s->config.pot->source) ||
        atomic_load_explicit(&s->distrusted, memory_order_relaxed))
        return false;
    answer.id = *intercept_server_id(state);
    reply_bytes(rq, &answer, sizeof(answer));
    return true;
}

static void intercept_update(void *state)
{
    intercept_server_count(state);
}

static void intercept_end(void *state)
{
    intercept_server_end(state);
}

static int intercept_join(void *state, const struct timespec *until)
{
    return intercept_server_join(state, until);
}

static void intercept_free(void *state)
{
    intercept_server_free(state);
}

const struct feature intercept_feature = {
    .start = intercept_start,
    .serve = intercept_update,
    .answer = intercept_answer,
    .update_counters = intercept_update,
    .end = intercept_end,
    .join = intercept_join,
    .free = intercept_free,
};
