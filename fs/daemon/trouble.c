/*
 * Failures and retries of the archive's storage (archive/source/source_retry.h) are counted and
 * logged. A read that succeeded after a retry is nobody's error, but it explains why a job is
 * slow. So it gets a line in the log, though not one for each of thousands.
 */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "internal.h"
#include "source_retry.h"

#define TELL_EVERY_NS UINT64_C(10000000000)

/* One line in ten seconds, with the number of lines left out. */
static bool may_tell(struct session *s, uint64_t *ret_silent)
{
    uint64_t now = now_ns(), last = atomic_load(&s->retry_told_ns);

    if ((last && now - last < TELL_EVERY_NS) ||
        !atomic_compare_exchange_strong(&s->retry_told_ns, &last, now)) {
        atomic_fetch_add(&s->retries_silent, 1);
        return false;
    }
    *ret_silent = atomic_exchange(&s->retries_silent, 0);
    return true;
}

static void tell_retry(struct session *s, int err, unsigned long long offset)
{
    char more[64] = "";
    uint64_t silent;

    if (!may_tell(s, &silent))
        return;
    if (silent)
        snprintf(more, sizeof(more), " (as were %llu reads before it)",
                 (unsigned long long)silent);
    session_log(s, "%s: a read of the archive failed (offset %llu): %s; it is tried again%s",
                s->config.pot->path, offset, strerror(-err), more);
}

static void on_trouble(void *ctx, enum source_error what, int err, uint64_t offset)
{
    struct session *s = ctx;

    switch (what) {
    case SOURCE_RETRIED:
        tell_retry(s, err, offset);
        break;
    case SOURCE_REOPENED:
        session_log(s, "%s: its handle was not valid any more (%s); it was opened again",
                    s->config.pot->path, strerror(-err));
        break;
    case SOURCE_REPLACED:
        session_log(s,
                    "%s: its handle is not valid any more (%s), and its path leads to another "
                    "file now; mount it anew",
                    s->config.pot->path, strerror(-err));
        break;
    }
}

void trouble_start(struct session *s)
{
    source_on_error(s->config.pot->source, on_trouble, s);
}

void trouble_update_counters(struct session *s)
{
    struct counters *c = s->config.counters;
    const struct source_error_counts t = source_error_counts(s->config.pot->source);

    atomic_store(&c->source_retries, t.retried);
    atomic_store(&c->source_failures, t.failed);
    atomic_store(&c->source_reopened, t.reopened);
}

void trouble_end(struct session *s)
{
    source_cancel_retries(s->config.pot->source);
}
