/*
 * The registry of formats: to add one, declare its table here and add its line. A format whose
 * library is missing at build time is left out.
 *
 * The order matters: an onepot archive is also a tar, and a magic at a fixed place is surer
 * than tar's sums.
 *
 * Nothing else is in this file. So a test program can be linked with a registry that has one
 * format more: it compiles this file once more, with ONEPOT_TEST_BACKEND.
 */
#include <stddef.h>

#include "backend.h"

#ifdef ONEPOT_TEST_BACKEND
extern const struct backend ONEPOT_TEST_BACKEND;
#endif

/* One line a format. */
/* clang-format off */
const struct backend *const backend_registry[] = {
#ifdef ONEPOT_TEST_BACKEND
    &ONEPOT_TEST_BACKEND,
#endif
#ifdef HAVE_SQUASHFUSE
    &backend_squashfs,
#endif
    &backend_onepot,
    &backend_tar,
    &backend_tfrecord,
    &backend_zip, /* found by its end, too, which may be the last member of a tar */
    NULL,
};
/* clang-format on */
