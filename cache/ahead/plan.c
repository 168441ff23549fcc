#include "plan_private.h"

#include <errno.h>
#include <stdlib.h>

int plan_new(const struct plan_options *options, struct plan **ret_plan)
{
    struct plan *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return -ENOMEM;
    p->options = *options;
    r = plan_scan_start(p);
    if (r == 0)
        r = plan_order_start(p);
    if (r < 0) {
        plan_free(p);
        return r;
    }
    *ret_plan = p;
    return 0;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    plan_order_end(p);
    plan_scan_end(p);
    free(p);
}

void plan_set_window(struct plan *p, uint64_t window_bytes)
{
    if (!p->options.window_bytes || !window_bytes)
        return;
    p->options.window_bytes = window_bytes;
    if (p->follow)
        follow_set_window(p->follow, window_bytes);
}

void plan_observe(struct plan *p, const struct observation *o)
{
    if (!p->options.window_bytes)
        return;
    plan_scan_file(p, o);
    if (o->offset != 0)
        return;
    p->reads++;
    plan_scan_settle(p, o->position);
    if (!plan_order_read(p, o))
        plan_scan_read(p, o);
}

size_t plan_take(struct plan *p, struct plan_want *wants, size_t max)
{
    size_t count = 0;

    if (!p->options.window_bytes || max == 0)
        return 0;
    if (plan_order_take(p, &wants[0]))
        count = 1;
    else
        count = plan_scan_take(p, wants, max);
    for (size_t i = 0; i < count; i++) {
        p->stats.requests++;
        p->stats.bytes += wants[i].len;
        p->stats.kind = wants[i].kind;
    }
    return count;
}

void plan_finished(struct plan *p, const struct plan_want *wants, size_t count, int result)
{
    for (size_t i = 0; i < count; i++) {
        if (wants[i].due == UINT64_MAX || !p->follow || wants[i].kind != p->order_kind)
            continue;
        if (result == -ENOBUFS)
            follow_refused(p->follow, wants[i].due);
        else
            follow_done(p->follow, wants[i].due);
    }
}

void plan_stats(const struct plan *p, struct plan_stats *ret_stats)
{
    struct follow_stats f = {0};

    *ret_stats = p->stats;
    if (!p->follow)
        return;
    follow_stats(p->follow, &f);
    ret_stats->order_epoch = p->epoch;
    ret_stats->world = f.world;
    ret_stats->local = f.local;
    ret_stats->in_order += f.read;
    ret_stats->found += f.found;
    ret_stats->used += f.found + f.late;
    ret_stats->late += f.late;
    ret_stats->unused += f.unused;
}
