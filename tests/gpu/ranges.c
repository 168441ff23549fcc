/*
 * Memory of a device lies where nobody may touch it, and a second time where the streams of the
 * device do. Its addresses are multiples of 256 bytes, and of no more. Locked memory has an
 * address of its own for kernels, which the host can't use.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "played.h"
#include "runtime.h"
#include "streams.h"

#define SPACE_BYTES ((size_t)256 << 30) /* addresses of each kind; none is used twice */
#define PAGE ((size_t)1 << 16)
#define ALIGNED ((size_t)256)

struct range {
    struct range *next;
    uint8_t *from;
    size_t bytes;
    uint8_t *alias;      /* of the device's memory; NULL: it is the host's, and locked */
    const uint8_t *seen; /* where kernels see it, if it is the host's */
    void *context;       /* NULL: locked for all */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static uint8_t *space, *window; /* addresses of the device's memory, and of locked memory */
static size_t used, used_window, locked_bytes;
static const uint8_t *last_seen; /* of locked memory */

static uint8_t *reserve(void)
{
    void *p =
        mmap(NULL, SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        played_forbid("no memory to begin", NULL);
    return p;
}

void ranges_begin(void)
{
    space = reserve();
    window = reserve();
}

/* ---- under the lock ---- */

static struct range **find(const void *memory)
{
    const uint8_t *p = memory;
    struct range **at = &ranges;
    while (*at && !(p >= (*at)->from && p < (*at)->from + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

static const struct range *overlapping(const uint8_t *from, size_t bytes)
{
    const struct range *r = ranges;
    while (r && !(from < r->from + r->bytes && r->from < from + bytes))
        r = r->next;
    return r;
}

static bool is_of_device(const void *memory)
{
    const uint8_t *p = memory;
    return p >= space && p < space + SPACE_BYTES;
}

/* Locked memory may be for one context alone. */
static bool is_for(const struct range *r, const void *context)
{
    return !r->context || !context || r->context == context;
}

static void add(const struct range *range)
{
    struct range *r = malloc(sizeof(*r));
    if (!r)
        played_forbid("no memory", NULL);
    *r = *range;
    r->next = ranges;
    ranges = r;
}

/* ---- where it is ---- */

void *played_at(const void *memory, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const struct range *range = *find(memory);
    if (!range || !range->alias)
        played_forbid("this is no memory of the device (or no longer)", memory);
    size_t at = (size_t)((const uint8_t *)memory - range->from);
    if (bytes > range->bytes - at)
        played_forbid("behind the end of memory of the device", memory);
    if (streams_task_context() && streams_task_context() != range->context)
        played_forbid("a task of a stream reaches for memory of another device", memory);
    uint8_t *there = range->alias + at;
    pthread_mutex_unlock(&lock);
    return there;
}

/* Under the lock. */
static const struct range *seen_at(const uint8_t *p)
{
    const struct range *r = ranges;
    while (r && !(r->seen && p >= r->seen && p < r->seen + r->bytes))
        r = r->next;
    return r;
}

const void *played_locked_at(const void *address, size_t bytes)
{
    const uint8_t *p = address, *end = p + bytes;
    pthread_mutex_lock(&lock);
    const struct range *r = seen_at(p);
    const void *there = r ? r->from + (p - r->seen) : NULL;
    while (p < end) {
        if (!r || !is_for(r, streams_task_context()))
            played_forbid("a kernel reads memory of the host that is not locked for it",
                          address);
        p = r->seen + r->bytes;
        r = seen_at(p); /* the next part, if there is one */
    }
    pthread_mutex_unlock(&lock);
    return there;
}

void *played_either(const void *memory, size_t bytes)
{
    return is_of_device(memory) ? played_at(memory, bytes) : (void *)(uintptr_t)memory;
}

bool played_is_pageable(const void *context, const void *memory, size_t bytes)
{
    if (is_of_device(memory))
        return false;
    pthread_mutex_lock(&lock);
    const struct range *r = *find(memory);
    bool locked = r && bytes <= r->bytes - (size_t)((const uint8_t *)memory - r->from) &&
                  is_for(r, context);
    pthread_mutex_unlock(&lock);
    return !locked;
}

void played_need_aligned(const void *memory, size_t bytes)
{
    if ((uintptr_t)memory % bytes)
        played_forbid("a kernel reads at a misaligned address", memory);
}

/* ---- memory of the device ---- */

static size_t room_of(size_t bytes)
{
    return (ALIGNED + bytes + PAGE - 1) & ~(PAGE - 1);
}

static uint8_t *map_room(size_t room)
{
    int fd = memfd_create("played", MFD_CLOEXEC);
    void *alias = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)room) == 0)
        alias = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return alias == MAP_FAILED ? NULL : alias;
}

/* Under the lock. */
static size_t used_by(const void *context)
{
    size_t n = 0;
    for (const struct range *r = ranges; r; r = r->next)
        n += r->alias && r->context == context ? room_of(r->bytes) : 0;
    return n;
}

cudaError_t ranges_allocate(void *context, size_t bytes, void **ret_memory)
{
    size_t room = room_of(bytes);
    cudaError_t e = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    if (room + used_by(context) <= played_driver->memory_bytes && room <= SPACE_BYTES - used) {
        uint8_t *alias = map_room(room), *from = space + used + ALIGNED;
        if (alias) {
            add(&(struct range){
                .from = from, .bytes = bytes, .alias = alias + ALIGNED, .context = context});
            used += room + PAGE; /* and a gap */
            *ret_memory = from;
            e = cudaSuccess;
        }
    }
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t ranges_free(const void *context, void *memory)
{
    pthread_mutex_lock(&lock);
    struct range **at = find(memory), *range = *at;
    if (!range || !range->alias || range->from != memory)
        played_forbid("cudaFree of what was not allocated", memory);
    if (range->context != context)
        played_forbid("memory is given back to another device", memory);
    size_t room = room_of(range->bytes);
    *at = range->next;
    munmap(range->alias - ALIGNED, room);
    free(range);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

size_t ranges_used(const void *context)
{
    pthread_mutex_lock(&lock);
    size_t n = used_by(context);
    pthread_mutex_unlock(&lock);
    return n;
}

void *ranges_context(const void *memory)
{
    pthread_mutex_lock(&lock);
    const struct range *range = *find(memory);
    void *context = range && range->alias ? range->context : NULL;
    pthread_mutex_unlock(&lock);
    return context;
}

unsigned long ranges_count(void)
{
    unsigned long n = 0;
    pthread_mutex_lock(&lock);
    for (const struct range *r = ranges; r; r = r->next)
        n++;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- memory of the host ---- */

/* May the process write there? It gets the byte that it has. */
static bool is_writable(void *memory)
{
    char byte = *(const volatile char *)memory;
    struct iovec from = {&byte, 1}, to = {memory, 1};
    return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 1 || errno != EFAULT;
}

cudaError_t ranges_lock(void *context, void *memory, size_t bytes, unsigned flags)
{
    bool read_only = flags & cudaHostRegisterReadOnly, writable = is_writable(memory);
    struct played *driver = played_driver;
    cudaError_t e = cudaSuccess;
    if (!bytes || is_of_device(memory))
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    if (driver->no_registering || (read_only && driver->no_read_only))
        played_forbid("memory is locked in a way that the device does not have", memory);
    else if (driver->no_locking || bytes > driver->locked_bytes - locked_bytes)
        e = cudaErrorMemoryAllocation;
    else if (!writable && !read_only && !driver->host_tables)
        e = cudaErrorInvalidValue;
    else if (overlapping(memory, bytes))
        e = cudaErrorHostMemoryAlreadyRegistered;
    else {
        const struct range *before = *find((uint8_t *)memory - 1);
        if (before && before->seen == last_seen && !driver->apart) /* beside that */
            used_window = (size_t)(before->seen - window) + before->bytes;
        last_seen = window + used_window;
        add(&(struct range){.from = memory,
                            .bytes = bytes,
                            .seen = last_seen,
                            .context = flags & cudaHostRegisterPortable ? NULL : context});
        used_window = (used_window + bytes + 2 * PAGE - 1) & ~(PAGE - 1);
        locked_bytes += bytes;
        driver->read_only_locks += !writable;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t ranges_unlock(void *memory)
{
    pthread_mutex_lock(&lock);
    struct range **at = find(memory), *range = *at;
    if (!range || range->alias || range->from != memory)
        played_forbid("memory is unlocked that was not locked", memory);
    *at = range->next;
    locked_bytes -= range->bytes;
    free(range);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t ranges_address(const void *context, const void *memory, void **ret_there)
{
    pthread_mutex_lock(&lock);
    const struct range *r = *find(memory);
    bool locked = r && !r->alias && is_for(r, context);
    if (locked)
        *ret_there = (void *)(uintptr_t)(r->seen + ((const uint8_t *)memory - r->from));
    pthread_mutex_unlock(&lock);
    return locked ? cudaSuccess : cudaErrorInvalidValue;
}
