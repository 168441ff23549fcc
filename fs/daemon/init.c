#include "init.h"

#include <errno.h>
#include <unistd.h>

#include "reader.h"

#ifndef FUSE_INIT_EXT /* headers before Linux 5.17 */
#define FUSE_INIT_EXT (1u << 30)
#endif

/* Version of the protocol whose requests the daemon knows; the kernel sends no newer ones. */
#define MINOR_SPOKEN 31
#define MINOR_LEAST 13       /* Linux 2.6.32: before it, answers have other lengths */
#define MINOR_LONG_ANSWER 23 /* older kernels expect FUSE_COMPAT_22_INIT_OUT_SIZE bytes */
#define MAX_PAGES_DEFAULT                                                                      \
    32u                         /* of a request, where the kernel can't be told another number \
                                 */
#define BACKGROUND_REQUESTS 512 /* the default of 12 splits read-ahead of small files */

/*
 * Features that help an immutable tree, as far as the kernel has them. AUTO_INVAL_DATA and
 * READDIRPLUS_AUTO are left out because they cost requests, and everything that concerns
 * writing.
 */
static const uint32_t wanted = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_EXPORT_SUPPORT |
                               FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS | FUSE_ASYNC_DIO |
                               FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS |
                               FUSE_INIT_EXT;

int init_answer(const struct fuse_init_in *in, bool access_lists, struct fuse_init_out *ret_out)
{
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);

    if (in->major < FUSE_KERNEL_VERSION ||
        (in->major == FUSE_KERNEL_VERSION && in->minor < MINOR_LEAST))
        return -EPROTO;
    *ret_out = (struct fuse_init_out){.major = FUSE_KERNEL_VERSION, .minor = MINOR_SPOKEN};
    if (in->major > FUSE_KERNEL_VERSION)
        return sizeof(*ret_out);
    ret_out->max_readahead = in->max_readahead;
    /*
     * POSIX_ACL makes the kernel ask for the list of each file that its reader does not own,
     * and turns permission checks on.
     */
    ret_out->flags = in->flags & (wanted | (access_lists ? FUSE_POSIX_ACL : 0));
    ret_out->max_background = ret_out->congestion_threshold = BACKGROUND_REQUESTS;
    /* Nothing is written, but the kernel's limit on pages of a request derives from it. */
    ret_out->max_write = READER_SPAN_MAX;
    if (in->flags & FUSE_MAX_PAGES)
        ret_out->max_pages = (uint16_t)((READER_SPAN_MAX - 1) / page + 1);
    else if (ret_out->max_write > MAX_PAGES_DEFAULT * page)
        ret_out->max_write = MAX_PAGES_DEFAULT * page;
    ret_out->time_gran = 1;
    return in->minor < MINOR_LONG_ANSWER ? FUSE_COMPAT_22_INIT_OUT_SIZE : sizeof(*ret_out);
}
