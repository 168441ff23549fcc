/*
 * The model: a heap of operations by the time they are due, and a queue of those without a
 * place. Two figures carry all state of the link: how far into the future it is booked.
 */
#include "server.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define NS_PER_S UINT64_C(1000000000)

const char *const op_names[OP_KINDS] = {
    [OP_LOOKUP] = "lookup",     [OP_GETATTR] = "getattr",     [OP_READLINK] = "readlink",
    [OP_OPEN] = "open",         [OP_OPENDIR] = "opendir",     [OP_READDIR] = "readdir",
    [OP_GETXATTR] = "getxattr", [OP_LISTXATTR] = "listxattr", [OP_STATFS] = "statfs",
    [OP_READ] = "read",
};

struct server {
    struct server_config config;
    struct server_counts counts;
    uint64_t link_free_ns; /* the link is booked until then */
    struct op **heap;      /* heap[0] is due first; all of them have a place */
    size_t count, room;
    struct op *first, *last; /* those that wait for a place */
};

int server_new(const struct server_config *config, struct server **ret_server)
{
    struct server *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->config = *config;
    *ret_server = s;
    return 0;
}

void server_free(struct server *s)
{
    if (s)
        free(s->heap);
    free(s);
}

static int make_room(struct server *s)
{
    struct op **heap;

    if (s->count < s->room)
        return 0;
    heap = reallocarray(s->heap, s->room ? 2 * s->room : 256, sizeof(struct op *));
    if (!heap)
        return -ENOMEM;
    s->heap = heap;
    s->room = s->room ? 2 * s->room : 256;
    return 0;
}

static void heap_put(struct server *s, struct op *op)
{
    size_t at = s->count++;

    for (; at > 0 && s->heap[(at - 1) / 2]->due_ns > op->due_ns; at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = op;
}

static struct op *heap_take(struct server *s)
{
    struct op *top = s->heap[0], *moved = s->heap[--s->count];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < s->count) {
        if (child + 1 < s->count && s->heap[child + 1]->due_ns < s->heap[child]->due_ns)
            child++;
        if (s->heap[child]->due_ns >= moved->due_ns)
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    if (s->count > 0)
        s->heap[at] = moved;
    return top;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The operation gets a place at start_ns, and with it the time it will be due. */
static void start(struct server *s, struct op *op, uint64_t start_ns)
{
    op->due_ns = start_ns + s->config.latency_ns[op->kind];
    if (op->bytes > 0 && s->config.bytes_per_s > 0) {
        op->due_ns = max_u64(op->due_ns, s->link_free_ns);
        op->due_ns += op->bytes * NS_PER_S / s->config.bytes_per_s;
        s->link_free_ns = op->due_ns;
    }
    heap_put(s, op);
}

static void count_arrival(struct server_counts *c, const struct op *op, bool waits)
{
    c->ops[op->kind]++;
    c->bytes += op->bytes;
    c->waited += waits;
    c->in_flight++;
    c->peak_in_flight = max_u64(c->peak_in_flight, c->in_flight);
}

int server_submit(struct server *s, struct op *op, uint64_t now_ns)
{
    bool waits = s->config.limit > 0 && s->count >= s->config.limit;
    int r = make_room(s);

    if (r < 0)
        return r;
    op->arrival_ns = now_ns;
    op->next = NULL;
    count_arrival(&s->counts, op, waits);
    if (!waits) {
        start(s, op, now_ns);
        return 0;
    }
    if (s->last)
        s->last->next = op;
    else
        s->first = op;
    s->last = op;
    return 0;
}

struct op *server_take(struct server *s, uint64_t now_ns)
{
    struct op *op, *waiting = s->first;

    if (s->count == 0 || s->heap[0]->due_ns > now_ns)
        return NULL;
    op = heap_take(s);
    s->counts.in_flight--;
    if (waiting) {
        s->first = waiting->next;
        if (!s->first)
            s->last = NULL;
        start(s, waiting, max_u64(waiting->arrival_ns, op->due_ns));
    }
    return op;
}

uint64_t server_next_ns(const struct server *s)
{
    return s->count > 0 ? s->heap[0]->due_ns : UINT64_MAX;
}

const struct server_counts *server_counts(const struct server *s)
{
    return &s->counts;
}
