/*
 * Goes on with a stream when its storage was away. A stream has to be unpacked from its
 * beginning once more, which is too dear to try blindly. So a small child (pot_probe_storage)
 * reads where the last one stopped until storage answers, with pauses that grow to a quarter of
 * a minute.
 *
 * Three things end a stream, since no patience helps: the archive was changed; the error is not
 * one of storage; or storage answers whenever it is asked, but unpacking never gets past the
 * same place.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "source_retry.h"
#include "stage_private.h"

#define PAUSE_FIRST_MS 250u
#define PAUSE_MAX_MS 15000u
#define SLICE_MS 50u /* of a pause; after each it checks for the end */
#define VAIN_MOST 10u

/* False: the end was asked for. */
static bool rest(unsigned ms, const _Atomic bool *stop)
{
    const struct timespec slice = {.tv_nsec = SLICE_MS * 1000000};
    for (unsigned rested = 0; rested < ms && !atomic_load(stop); rested += SLICE_MS)
        nanosleep(&slice, NULL);
    return !atomic_load(stop);
}

static void tell_away(struct stage *stage, struct stage_again *again, int err)
{
    char text[128];
    atomic_store(&stage->state->away, -err);
    if (again->told)
        return;
    again->told = true;
    again->since_ns = now_ns();
    stage_say(stage,
              "its storage fails (%s): what was unpacked is served; unpacking goes on when the "
              "storage answers",
              strerror_r(-err, text, sizeof(text)));
}

bool stage_again(struct stage *stage, struct stage_again *again, int err, uint64_t chunk,
                 uint64_t packed_at, const struct pot_patience *patience)
{
    /* Silent storage would not report the state of the file, either. */
    if (!source_error_may_pass(err) || (err != -ETIMEDOUT && stage_was_changed(stage)))
        return false;
    again->vain = chunk == again->chunk ? again->vain + 1 : 0;
    again->chunk = chunk;
    if (again->vain > VAIN_MOST)
        return false;
    tell_away(stage, again, err);
    unsigned pause_ms = PAUSE_FIRST_MS;
    while (rest(pause_ms, patience->stop)) {
        int r = pot_probe_storage(&stage->stream, packed_at, patience);
        if (r == 0)
            return !stage_was_changed(stage);
        if (r < 0 && !source_error_may_pass(r))
            return false;
        pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
    }
    return false;
}

void stage_is_back(struct stage *stage, struct stage_again *again)
{
    if (!atomic_exchange(&stage->state->away, 0) || !again->told)
        return;
    again->told = false;
    stage_say(stage, "its storage answers again after %.0f s: unpacking goes on",
              (double)(now_ns() - again->since_ns) * 1e-9);
}
