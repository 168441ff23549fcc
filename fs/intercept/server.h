/*
 * The daemon's side of the short circuit: a thread that tells processes of this user where the
 * bytes of files lie. See intercept.h.
 *
 *     intercept_server_new(&config, &server);
 *     intercept_server_id(server) the mount's answer to INTERCEPT_IOCTL
 *     intercept_server_count(server) what processes have read that way
 *     intercept_server_marks(server) which files were read, for the daemon to mark others
 *     intercept_server_end(server); intercept_server_join(server, &until);
 *     intercept_server_free(server);
 */
#ifndef ONEPOT_SERVER_H
#define ONEPOT_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "counters.h"
#include "index.h"
#include "intercept.h"
#include "source.h"

struct intercept_server;

struct intercept_server_config {
    const struct index *index;
    const struct source *source; /* outlives the server, as the index does */
    struct intercept_made made;
    struct counters *counters;       /* direct_*: the offer, and what processes have read */
    const _Atomic bool *lists_ahead; /* the mount lists names before readers ask for them */
    /* Called in the server's thread while processes read, and once after that. May be NULL. */
    void (*has_news)(void *ctx);
    void *ctx;
};

/* May be made before all bytes of a copy are there: until then processes get no answer. */
int intercept_server_new(const struct intercept_server_config *config,
                         struct intercept_server **ret_server);

const struct intercept_id *intercept_server_id(const struct intercept_server *server);

/*
 * May this user have the answer to INTERCEPT_IOCTL? Its key is a secret of the mount's own
 * user, also where all may read. `uid` comes from a request. The kernel gives it as the one who
 * mounted numbers users: root of a container's own user namespace, too, is 0.
 */
bool intercept_server_tells(uint32_t uid);

/*
 * Add up in the counters what processes have counted, and tell them whether names are listed.
 * One thread at a time.
 */
void intercept_server_count(const struct intercept_server *server);

/* The marks of the mount's files (bits.h). They live as long as the server. */
_Atomic uint32_t *intercept_server_marks(const struct intercept_server *server);

/* End the thread, without waiting for it; then wait; then free. */
void intercept_server_end(struct intercept_server *server);
int intercept_server_join(struct intercept_server *server, const struct timespec *until);
void intercept_server_free(struct intercept_server *server);

#endif
