/*
 * A reader of cached files causes one request a second, because the kernel asks for the
 * directories of the root again. So less than two seconds of silence mean nothing.
 */
#include "ending.h"

#include "numbers.h"

#define IMPATIENT_LIMIT_NS (3 * SECOND_NS) /* after a second Ctrl-C */
#define RETRY_NS SECOND_NS                 /* to unmount, while draining */
#define IDLE_RETRY_NS (10 * SECOND_NS)     /* unused for long, but a file is open */
#define STEP_MS 200                        /* while draining */
#define LOOK_MS 1000                       /* between looks at what can't be polled */

bool ending_begin(struct ending *e, uint64_t now, uint64_t limit_ns)
{
    uint64_t deadline = limit_ns ? now + limit_ns : 0;

    if (e->phase == ENDING_UNMOUNTED)
        return false;
    if (deadline && (!e->deadline_ns || deadline < e->deadline_ns))
        e->deadline_ns = deadline;
    if (e->phase == ENDING_DRAINING)
        return false;
    e->phase = ENDING_DRAINING;
    e->retry_ns = 0;
    return true;
}

bool ending_interrupt(struct ending *e, uint64_t grace_ns, uint64_t *ret_limit_ns)
{
    *ret_limit_ns = e->interrupts == 0 ? grace_ns : IMPATIENT_LIMIT_NS;
    return ++e->interrupts <= 2;
}

static uint64_t ending_since(uint64_t now, uint64_t last)
{
    return now > last ? now - last : 0;
}

static uint64_t idle_limit_ns(const struct ending *e)
{
    return e->idle_ns ? max_u64(e->idle_ns, ENDING_QUIET_NS) : UINT64_MAX;
}

enum ending_step ending_next(const struct ending *e, uint64_t now, uint64_t last)
{
    uint64_t limit = e->phase == ENDING_DRAINING ? ENDING_QUIET_NS : idle_limit_ns(e);

    if (e->phase == ENDING_UNMOUNTED)
        return ENDING_WAIT;
    if (e->phase == ENDING_DRAINING && e->deadline_ns && now >= e->deadline_ns)
        return ENDING_DETACH;
    return now >= e->retry_ns && ending_since(now, last) >= limit ? ENDING_TRY : ENDING_WAIT;
}

void ending_tried(struct ending *e, uint64_t now)
{
    e->retry_ns = now + (e->phase == ENDING_DRAINING ? RETRY_NS : IDLE_RETRY_NS);
}

int ending_patience_ms(const struct ending *e, uint64_t now, uint64_t last, bool must_look)
{
    uint64_t left_ms = must_look ? LOOK_MS : UINT64_MAX;

    if (e->phase == ENDING_DRAINING)
        return STEP_MS;
    if (e->phase == ENDING_SERVING && e->idle_ns) {
        uint64_t next = max_u64(now - ending_since(now, last) + idle_limit_ns(e), e->retry_ns);
        left_ms = min_u64(left_ms, ending_since(next, now) / 1000000 + 1);
    }
    return left_ms < INT32_MAX ? (int)left_ms : -1;
}
