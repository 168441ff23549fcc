/*
 * Memory of the device, and memory of the host that it reads.
 *
 * Page-locked memory is mapped first, bound to the node next to the device, and then
 * registered. Memory that CUDA allocates itself could lie on any node.
 *
 * A process can lock an archive's mapping only once, for all devices. So several loaders of one
 * archive, on one device or several, share the lock. The lock holds the context in which it was
 * made, since it would end with that context.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"

#define HUGE_BYTES (2u << 20)
#ifndef LOCK_BYTES /* the tests lock less at once */
#define LOCK_BYTES ((size_t)64 << 20)
#endif
#define LOCK_PAUSE_NS 1000000
#define BITS (8 * (int)sizeof(unsigned long))

/* ---- locking existing memory ---- */

struct lock {
    struct lock *next;
    const void *from;
    size_t bytes;
    unsigned users;
    struct gpu in; /* a device and its context */
};

static pthread_mutex_t locks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lock *locks;

/* Registers whole pages: the mapping has them, even where a file ends within a page. */
static int register_pages(const struct gpu *g, const void *memory, size_t bytes, unsigned more,
                          struct onepot_error *error)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) & ~(page - 1);
    more |= cudaHostRegisterPortable | cudaHostRegisterMapped;
    return gpu_call(g, cudaHostRegister((void *)(uintptr_t)memory, bytes, more),
                    "memory can't be page-locked", error);
}

/* False: the device does not answer any more, and its tasks may still read the pages. */
static bool unregister_pages(const struct gpu *g, const void *memory)
{
    if (gpu_enter(g, NULL) < 0)
        return false;
    gpu_left(gpu_checked(cudaHostUnregister((void *)(uintptr_t)memory), "unlock", NULL));
    return true;
}

/*
 * Existing memory is locked in parts, as one call for all fails from 512 GiB on, and from 512
 * MiB the kernel's module may stop other processes. Launches of other threads wait for the
 * driver's lock, which whoever asks for it again at once keeps from them: on an H200 a launch
 * waited 190 ms while 4 GiB were locked, whatever the size of a part, hence the pauses. Kernels
 * have to see the parts as one piece; no copy reaches over two of them.
 */
static int register_parts(const struct gpu *g, const void *memory, size_t bytes, unsigned more,
                          struct onepot_error *error)
{
    const uint8_t *from = memory;
    uint64_t first = 0, there = 0;
    size_t at = 0;
    int r = 0;
    while (r == 0 && at < bytes) {
        size_t left = bytes - at;
        if (at > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        r = register_pages(g, from + at, left < LOCK_BYTES ? left : LOCK_BYTES, more, error);
        if (r < 0)
            break;
        r = gpu_address((void *)(uintptr_t)g, from + at, error, &there);
        first = at ? first : there;
        if (r == 0 && there - first != at)
            r = gpu_say(error, -ENOTSUP, "CUDA: the device sees parts of locked memory apart");
        at += LOCK_BYTES;
    }
    while (r < 0 && at > 0)
        unregister_pages(g, from + (at -= LOCK_BYTES));
    return r;
}

/* Where the lock is in the list, or would be. */
static struct lock **find_lock(const void *memory, size_t bytes)
{
    struct lock **at = &locks;
    while (*at && ((*at)->from != memory || (*at)->bytes != bytes))
        at = &(*at)->next;
    return at;
}

static int new_lock(const struct gpu *g, const void *memory, size_t bytes,
                    struct onepot_error *error)
{
    struct lock *l = calloc(1, sizeof(*l));
    if (!l)
        return gpu_say(error, -ENOMEM, "no memory for a lock");
    *l = (struct lock){.next = locks, .from = memory, .bytes = bytes, .users = 1, .in = *g};
    int r = gpu_driver_checked(gpu_driver.retain(&l->in.context, g->device),
                               "the device can't be opened", error);
    if (r == 0) {
        r = register_parts(&l->in, memory, bytes,
                           g->read_only == GPU_READ_ONLY_BY_FLAG ? cudaHostRegisterReadOnly : 0,
                           error);
        if (r < 0)
            gpu_give_back(g->device);
    }
    if (r < 0)
        free(l);
    else
        locks = l;
    return r;
}

int gpu_lock(void *device, const void *memory, size_t bytes, bool is_stored,
             struct onepot_error *error)
{
    const struct gpu *g = device;
    int r = 0;
    if (g->read_only == GPU_READ_ONLY_NOT)
        return gpu_say(error, -ENOTSUP,
                       "CUDA: the device can't lock memory that is there and that nobody may "
                       "write to");
    if (is_stored && !g->locks_files)
        return gpu_say(error, -ENOTSUP,
                       "CUDA: drivers before 570 mark all pages of a file that they lock as "
                       "changed");
    pthread_mutex_lock(&locks_lock);
    struct lock *l = *find_lock(memory, bytes);
    if (l)
        l->users++;
    else
        r = new_lock(g, memory, bytes, error);
    pthread_mutex_unlock(&locks_lock);
    return r;
}

void gpu_unlock(void *device, const void *memory, size_t bytes)
{
    (void)device;
    pthread_mutex_lock(&locks_lock);
    struct lock **at = find_lock(memory, bytes), *l = *at;
    if (l && --l->users == 0) {
        *at = l->next;
        for (size_t part = 0; part < bytes; part += LOCK_BYTES)
            unregister_pages(&l->in, (const uint8_t *)memory + part);
        gpu_give_back(l->in.device);
        free(l);
    }
    pthread_mutex_unlock(&locks_lock);
}

int gpu_address(void *device, const void *memory, struct onepot_error *error,
                uint64_t *ret_address)
{
    void *there = NULL;
    int r = gpu_call(device, cudaHostGetDevicePointer(&there, (void *)(uintptr_t)memory, 0),
                     "memory of the host can't be seen by the device", error);
    if (r == 0)
        *ret_address = (uintptr_t)there;
    return r;
}

/* ---- new memory ---- */

/* A preference only, since a full node is no error. */
static void bind_to_node(void *memory, size_t bytes, int node)
{
    enum { MPOL_PREFERRED_NODE = 1 };
    unsigned long mask[GPU_NODES_MAX / BITS + 1] = {0};
    if (node < 0)
        return;
    mask[node / BITS] |= 1ul << (node % BITS);
    syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED_NODE, mask,
            (unsigned long)sizeof(mask) * 8, 0u);
}

static int allocate_locked(struct gpu *g, size_t bytes, struct onepot_error *error,
                           void **ret_memory)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return gpu_say(error, -ENOMEM, "no memory for %zu bytes", bytes);
    bind_to_node(p, bytes, g->node);
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    /* A forked child must neither take over pages by its writes nor keep them. */
    madvise(p, bytes, MADV_DONTFORK);
    int r = register_pages(g, p, bytes, 0, error);
    if (r < 0) {
        munmap(p, bytes);
        return r;
    }
    *ret_memory = p;
    return 0;
}

int gpu_allocate(void *device, enum device_memory where, size_t bytes,
                 struct onepot_error *error, void **ret_memory)
{
    if (where == DEVICE_MEMORY_LOCKED)
        return allocate_locked(device, bytes, error, ret_memory);
    int r = gpu_call(device, cudaMalloc(ret_memory, bytes), "memory of the device", error);
    if (r == -ENOMEM)
        gpu_say(error, r,
                "CUDA: the device has no room for %zu bytes more; smaller batches, or less "
                "memory for the loader, may help",
                bytes);
    return r;
}

void gpu_release(void *device, enum device_memory where, void *memory, size_t bytes)
{
    if (where == DEVICE_MEMORY_OWN) {
        gpu_call(device, cudaFree(memory), "release", NULL);
    } else if (unregister_pages(device, memory)) {
        munmap(memory, bytes);
    }
}
