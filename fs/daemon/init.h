/*
 * INIT, the first request of a FUSE connection: kernel and daemon agree on what both can do.
 *
 * The answer is filled in here and not by libfuse, which would be linked for this one request:
 * its versions ask for different things (3.16 and older ones forget FUSE_PARALLEL_DIROPS, with
 * which the kernel looks names up in parallel), and only versions from 3.14 on let a daemon
 * that reads the device itself use it without tricks.
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
