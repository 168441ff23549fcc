/*
 * INIT, the first request of a FUSE connection: kernel and daemon agree on what both can do.
 *
 * The daemon answers it, as it answers all requests, without libfuse. That would save no line,
 * and versions before 3.17.1 forget FUSE_PARALLEL_DIROPS, with which the kernel looks names up
 * in parallel. ARCHITECTURE.md has the figures. libfuse's helper, fusermount3, does mount
 * (mountpoint/fusermount.h).
 */
#ifndef ONEPOT_INIT_H
#define ONEPOT_INIT_H

#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Fill in the answer to `in`. Returns how many bytes of it this kernel expects; or -EPROTO: the
 * kernel is too old. An answer to a major version above 7 holds only the version: the kernel
 * then asks again with version 7. `access_lists`: the kernel is to check permissions.
 */
int init_answer(const struct fuse_init_in *in, bool access_lists,
                struct fuse_init_out *ret_out);

#endif
