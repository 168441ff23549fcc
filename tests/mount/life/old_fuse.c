/*
 * Preloaded: the kernel's first request to a FUSE daemon is as Linux 4.18 sends it (RHEL 8), of
 * FUSE 7.27, without the features that came later.
 */
#include <dlfcn.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define MINOR_THEN 27
#define FEATURES_THEN ((FUSE_ABORT_ERROR << 1) - 1) /* the last one of 7.27 */

ssize_t read(int fd, void *buffer, size_t size)
{
    static ssize_t (*real)(int, void *, size_t);
    struct {
        struct fuse_in_header header;
        struct fuse_init_in init;
    } request;

    if (real == NULL)
        real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    ssize_t n = real(fd, buffer, size);
    if (n < (ssize_t)sizeof(request))
        return n;
    memcpy(&request, buffer, sizeof(request));
    if (request.header.opcode != FUSE_INIT || request.header.len != n ||
        request.init.major != 7 || request.init.minor <= MINOR_THEN)
        return n;
    request.init.minor = MINOR_THEN;
    request.init.flags &= FEATURES_THEN;
    memcpy(buffer, &request, sizeof(request));
    return n;
}
