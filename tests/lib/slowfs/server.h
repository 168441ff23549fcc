/*
 * The server of a slow file system, as a model: what an operation costs, and how many are
 * worked on at once. Pure arithmetic on time stamps; who calls it owns the clock.
 *
 * An operation that arrives takes one of `limit` places, or waits for one, first come first
 * served. It keeps its place for the latency of its kind and, if it carries data, for as long
 * as the one link needs that all share, at bytes_per_s. Then it is due: its owner takes it with
 * server_take and answers.
 *
 *     struct server *s;
 *     server_new(&config, &s);
 *     server_submit(s, op, now);              // op.kind and op.bytes are set
 *     while ((op = server_take(s, now)))
 *         answer(op);
 *     wait_until(server_next_ns(s));
 *
 * Time within is the model's, not the machine's: a place is free again when its operation was
 * due, however late the owner looks. So a busy machine blurs the latency of single operations
 * and leaves rates as they were set.
 */
#ifndef ONEPOT_BENCH_SERVER_H
#define ONEPOT_BENCH_SERVER_H

#include <stddef.h>
#include <stdint.h>

enum op_kind {
    OP_LOOKUP,
    OP_GETATTR,
    OP_READLINK,
    OP_OPEN,
    OP_OPENDIR,
    OP_READDIR,
    OP_GETXATTR,
    OP_LISTXATTR,
    OP_STATFS,
    OP_READ,
    OP_KINDS,
};

extern const char *const op_names[OP_KINDS];

struct server_config {
    uint64_t latency_ns[OP_KINDS];
    uint64_t bytes_per_s; /* 0: no limit */
    size_t limit;         /* operations worked on at once; 0: no limit */
};

/* Embedded in what the owner knows about a request. */
struct op {
    enum op_kind kind;
    uint64_t bytes; /* that the link carries */
    uint64_t arrival_ns;
    uint64_t due_ns;
    struct op *next;
};

struct server_counts {
    uint64_t ops[OP_KINDS];
    uint64_t bytes;
    uint64_t in_flight; /* arrived and not yet taken */
    uint64_t peak_in_flight;
    uint64_t waited; /* operations that found no place free */
};

struct server;

/* 0 or -ENOMEM. */
int server_new(const struct server_config *config, struct server **ret_server);

/* Operations that were submitted and not taken stay with their owner. */
void server_free(struct server *s);

/* The operation belongs to the server until it is taken. -ENOMEM: it was not accepted. */
int server_submit(struct server *s, struct op *op, uint64_t now_ns);

/* The next operation that is due, or NULL. UINT64_MAX as the time takes all, one by one. */
struct op *server_take(struct server *s, uint64_t now_ns);

/* When the next operation is due; UINT64_MAX if there is none. */
uint64_t server_next_ns(const struct server *s);

const struct server_counts *server_counts(const struct server *s);

#endif
