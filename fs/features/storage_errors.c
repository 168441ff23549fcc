/*
 * Failures and retries of the archive's storage (archive/source/source_retry.h) are counted and
 * logged. A read that succeeded after a retry is nobody's error, but it explains why a job is
 * slow. So it gets a line in the log, though not one for each of thousands.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "core.h"
#include "source_retry.h"

#define RETRY_LINE_EVERY_NS UINT64_C(10000000000)

struct storage_errors {
    struct session *session;
    _Atomic uint64_t logged_ns; /* when a retry was last logged; 0: never */
    _Atomic uint64_t silent;    /* retries since then */
};

/* One line in ten seconds, with the number of lines left out. */
static bool may_log_retry(struct storage_errors *e, uint64_t *ret_silent)
{
    uint64_t now = now_ns(), last = atomic_load(&e->logged_ns);

    if ((last && now - last < RETRY_LINE_EVERY_NS) ||
        !atomic_compare_exchange_strong(&e->logged_ns, &last, now)) {
        atomic_fetch_add(&e->silent, 1);
        return false;
    }
    *ret_silent = atomic_exchange(&e->silent, 0);
    return true;
}

static void log_retry(struct storage_errors *e, const char *name, int err, uint64_t offset)
{
    char more[64] = "";
    uint64_t silent;

    if (!may_log_retry(e, &silent))
        return;
    if (silent)
        snprintf(more, sizeof(more), " (as were %llu reads before it)",
                 (unsigned long long)silent);
    session_log(e->session,
                "%s: a read of the archive failed (offset %llu): %s; it is tried again%s", name,
                (unsigned long long)offset, fault_errno(err), more);
}

static void on_source_error(void *ctx, const char *name, enum source_error what, int err,
                            uint64_t offset)
{
    struct storage_errors *e = ctx;

    switch (what) {
    case SOURCE_RETRIED:
        log_retry(e, name, err, offset);
        break;
    case SOURCE_REOPENED:
        session_log(e->session,
                    "%s: its handle was not valid any more (%s); it was opened again", name,
                    fault_errno(err));
        break;
    case SOURCE_REPLACED:
        session_trouble(
            e->session, TROUBLE_CHANGED,
            "%s: its handle is not valid any more (%s), and its path leads to another "
            "file now; mount it anew",
            name, fault_errno(err));
        break;
    case SOURCE_CHANGED:
        session_trouble(e->session, TROUBLE_CHANGED,
                        "%s: it was changed or removed while it is mounted: reads of it fail "
                        "from now on; mount its folder anew",
                        name);
        break;
    }
}

static int storage_errors_start(struct session *s, void **ret_state)
{
    struct storage_errors *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    e->session = s;
    source_on_error(s->config.fileset->source, on_source_error, e);
    *ret_state = e;
    return 0;
}

static void storage_errors_update_counters(void *state)
{
    const struct storage_errors *e = state;
    struct counters *c = e->session->config.counters;
    const struct source_error_counts t =
        source_error_counts(e->session->config.fileset->source);

    atomic_store(&c->source_retries, t.retried);
    atomic_store(&c->source_failures, t.failed);
    atomic_store(&c->source_reopened, t.reopened);
}

static void storage_errors_end(void *state)
{
    const struct storage_errors *e = state;

    source_cancel_retries(e->session->config.fileset->source);
}

static void storage_errors_free(void *state)
{
    const struct storage_errors *e = state;

    source_on_error(e->session->config.fileset->source, NULL, NULL); /* others may read it */
    free(state);
}

const struct feature storage_errors_feature = {
    .start = storage_errors_start,
    .update_counters = storage_errors_update_counters,
    .end = storage_errors_end,
    .free = storage_errors_free,
};
