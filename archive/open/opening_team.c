/*
 * The caller's thread opens nothing: it waits for the others, and for signals, which they
 * block.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "numbers.h"
#include "opening_team.h"
#include "sandbox.h"
#include "thread.h"

#define TEAM_STACK_BYTES (8u << 20) /* children parse archives on it */

struct team_state {
    const struct opening_team *team;
    pthread_mutex_t lock; /* for all below, and the user's functions */
    struct progress progress;
    _Atomic bool is_cancelled;
    int done_fd; /* each thread adds one at its end */
};

/* A thread, which opens one archive after the other. */
struct team_member {
    struct team_state *state;
    struct pot_options options;
    uint64_t bytes, members; /* that this archive has added to the progress */
    pthread_t thread;
};

static void team_note(void *ctx, const char *line)
{
    struct team_member *m = ctx;
    const struct pot_options *user = m->state->team->options;
    pthread_mutex_lock(&m->state->lock);
    if (user->note)
        user->note(user->ctx, line);
    pthread_mutex_unlock(&m->state->lock);
}

/*
 * How much a counter has grown since the last look. A smaller value belongs to the next
 * archive.
 */
static uint64_t team_gain(uint64_t *last, uint64_t now)
{
    uint64_t gain = now >= *last ? now - *last : now;
    *last = now;
    return gain;
}

static void team_progress(void *ctx, const char *doing, const struct progress *progress)
{
    struct team_member *m = ctx;
    struct team_state *state = m->state;
    const struct pot_options *user = state->team->options;
    pthread_mutex_lock(&state->lock);
    uint64_t bytes = state->progress.bytes_done + team_gain(&m->bytes, progress->bytes_done);
    state->progress.bytes_done =
        state->team->bytes_total ? min_u64(bytes, state->team->bytes_total) : bytes;
    state->progress.members += team_gain(&m->members, progress->members);
    if (user->progress)
        user->progress(user->ctx, doing, &state->progress);
    if (user->cancelled && *user->cancelled)
        state->is_cancelled = true;
    pthread_mutex_unlock(&state->lock);
}

static void *team_member_run(void *arg)
{
    struct team_member *m = arg;
    const uint64_t one = 1;
    m->state->team->run(m->state->team->arg, &m->options);
    (void)!write(m->state->done_fd, &one, sizeof(one)); /* of an eventfd: it can't fail */
    return NULL;
}

/* Wait until this many threads have ended. -EINTR: a signal came that `blocked` lacks. */
static int team_wait(struct team_state *state, uint64_t threads, const sigset_t *blocked)
{
    struct pollfd p = {.fd = state->done_fd, .events = POLLIN};
    int r = 0;
    while (r == 0 && threads > 0) {
        uint64_t ended;
        r = ppoll(&p, 1, NULL, blocked) < 0 ? -errno : 0;
        if (r == 0 && read(state->done_fd, &ended, sizeof(ended)) == sizeof(ended))
            threads -= ended;
    }
    if (r < 0)
        atomic_store(&state->is_cancelled, true);
    return r;
}

static int team_start(struct team_state *state, struct team_member *m)
{
    *m = (struct team_member){.state = state, .options = *state->team->options};
    m->options.note = team_note;
    m->options.progress = team_progress;
    m->options.cancelled = &state->is_cancelled;
    m->options.ctx = m;
    return thread_start(&m->thread, TEAM_STACK_BYTES, team_member_run, m);
}

int opening_team_run(const struct opening_team *team)
{
    struct team_state state = {.team = team,
                               .lock = PTHREAD_MUTEX_INITIALIZER,
                               .progress.bytes_total = team->bytes_total};
    auto_free struct team_member *members = calloc(team->threads, sizeof(*members));
    auto_close int done_fd = eventfd(0, EFD_CLOEXEC);
    sigset_t all, before, waiting;
    unsigned started = 0;
    int r = !members ? -ENOMEM : done_fd < 0 ? -errno : 0;
    state.done_fd = done_fd;
    /* Signals that would end the wait stay pending until it begins. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    sandbox_waiting_signals(&before, &waiting);
    while (r == 0 && started < team->threads) {
        r = team_start(&state, &members[started]);
        started += r == 0;
    }
    if (started > 0)
        r = team_wait(&state, started, &waiting);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (unsigned i = 0; i < started; i++)
        pthread_join(members[i].thread, NULL);
    return r;
}
