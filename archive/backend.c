/*
 * The registry of formats, and the one question that it answers: who knows this file?
 *
 * The order matters: an onepot archive is a tar as well, and a magic at a fixed place
 * is surer than tar's sums.
 */
#include "backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

static const struct backend *const backends[] = {
#ifdef HAVE_SQUASHFUSE
    &backend_squashfs,
#endif
#ifdef HAVE_ONEPOT_FORMAT
    &backend_onepot,
#endif
    &backend_tar,
};
enum {
    BACKEND_COUNT = sizeof(backends) / sizeof(backends[0]),
    HEAD_BYTES = 64 << 10,
};

static int fits(const struct backend *backend, const struct source *source, const uint8_t *head,
                size_t head_len)
{
    int r = backend->probe(source, head, head_len);
    if (r != 0 || !backend->is_packed)
        return r;
    const char *compression;
    return backend->is_packed(head, head_len, &compression);
}

static int unknown(uint64_t size, struct fault *fault)
{
    if (size == 0) {
        fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is empty");
        fault_advise(fault, "whatever wrote it did not finish: make it again");
    } else {
        fault_set(fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is no archive of a known format");
        fault_advise(fault, "give a tar, a SquashFS image or an onepot archive");
    }
    return -ENOMSG;
}

int backend_find(const struct source *source, struct fault *fault,
                 const struct backend **ret_backend)
{
    uint64_t size = source_size(source);
    size_t len = size < HEAD_BYTES ? (size_t)size : (size_t)HEAD_BYTES;
    auto_free uint8_t *head = malloc(HEAD_BYTES);
    if (!head)
        return -ENOMEM;
    int r = source_read(source, head, len, 0);
    if (r < 0)
        return fault_set(fault, r, NULL, 0, "read error: %s", strerror(-r));

    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        r = fits(backends[i], source, head, len);
        if (r < 0)
            return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "could not be examined: %s",
                             strerror(-r));
        if (r > 0) {
            *ret_backend = backends[i];
            return 0;
        }
    }
    return unknown(size, fault);
}
