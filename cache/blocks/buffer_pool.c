/*
 * Buffers in classes of nearly equal size: each power of two and fifteen steps up to the next,
 * in whole pages. Each class carves its buffers out of larger mappings and keeps two stacks of
 * free ones: warm (pages in place) and cold (pages given back). While the pool lives, addresses
 * are unmapped only when they run out. The number of mappings of a process is limited, and
 * unmapping stops all other threads.
 */
#include "buffer_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "vector.h"

#define STEPS 16u /* classes between two powers of two */
#define STEPS_LOG 4u
#define CLASS_COUNT 512u /* enough for SIZE_LIMIT in pages of 4 KiB */
#define SIZE_LIMIT ((size_t)1 << 40)
#define HUGE_BYTES ((size_t)2 << 20) /* nothing is lost if they are larger or unknown */
#define CARVE_BYTES (4u << 20)
#define CARVE_SCARCE_BYTES (64u << 10) /* if addresses are scarce */

struct stack {
    void **at;
    size_t count, capacity;
};

struct size_class {
    pthread_mutex_t lock;
    struct stack warm, cold;
    size_t capacity; /* set with the first buffer */
    size_t total;    /* buffers carved so far: each stack has room for all */
    struct mapping *mappings;
};

struct mapping {
    struct mapping *next;
    void *start;
    size_t len;
    size_t count; /* of buffers */
};

struct buffer_pool {
    size_t page;
    size_t huge_min, huge_max; /* capacities that may lie on huge pages */
    bool not_for_children;
    bool scarce;          /* addresses are limited */
    struct account spare; /* bytes of warm buffers */
    struct size_class classes[CLASS_COUNT];
};

/*
 * The class of a size and its capacity, in pages. Up to STEPS pages, each count is a class of
 * its own; above, a power of two is cut in STEPS steps.
 */
static unsigned class_of(const struct buffer_pool *pool, size_t size, size_t *ret_capacity)
{
    size_t pages = size / pool->page + (size % pool->page != 0);
    if (pages <= STEPS) {
        pages += pages == 0;
        *ret_capacity = pages * pool->page;
        return (unsigned)pages - 1;
    }
    unsigned log = 63u - (unsigned)__builtin_clzll(pages - 1); /* 2^log < pages <= 2^(log+1) */
    size_t step = ((size_t)1 << log) / STEPS;
    size_t steps = (pages - ((size_t)1 << log) + step - 1) / step; /* 1 to STEPS */
    *ret_capacity = (((size_t)1 << log) + steps * step) * pool->page;
    return STEPS + (log - STEPS_LOG) * STEPS + (unsigned)steps - 1;
}

size_t buffer_pool_capacity(const struct buffer_pool *pool, size_t size)
{
    size_t capacity;
    class_of(pool, size, &capacity);
    return capacity;
}

/*
 * Are addresses or data limited (ulimit -v, -d)? Then memory is mapped and unmapped in small
 * pieces.
 */
static bool is_limited(int resource)
{
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)resource, &limit) == 0 &&
           limit.rlim_cur != RLIM_INFINITY;
}

int buffer_pool_new(uint64_t spare_bytes, size_t huge_min, size_t huge_max,
                    bool not_for_children, struct buffer_pool **ret_pool)
{
    struct buffer_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return -ENOMEM;
    pool->page = (size_t)sysconf(_SC_PAGESIZE);
    pool->not_for_children = not_for_children;
    pool->spare.limit = spare_bytes;
    pool->scarce = is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA);
    if (huge_max > 0) {
        pool->huge_min = buffer_pool_capacity(pool, huge_min);
        pool->huge_max = buffer_pool_capacity(pool, huge_max);
    }
    for (unsigned i = 0; i < CLASS_COUNT; i++)
        pthread_mutex_init(&pool->classes[i].lock, NULL);
    *ret_pool = pool;
    return 0;
}

void buffer_pool_free(struct buffer_pool *pool)
{
    if (!pool)
        return;
    for (unsigned i = 0; i < CLASS_COUNT; i++) {
        struct size_class *class = &pool->classes[i];
        while (class->mappings) {
            struct mapping *mapping = class->mappings;
            class->mappings = mapping->next;
            munmap(mapping->start, mapping->len);
            free(mapping);
        }
        vector_free(&class->warm);
        vector_free(&class->cold);
        pthread_mutex_destroy(&class->lock);
    }
    free(pool);
}

/* May a class of which all buffers are in use get huge pages for the next ones? */
static bool wants_huge(const struct buffer_pool *pool, const struct size_class *class,
                       size_t capacity)
{
    return class->total > 0 && capacity >= pool->huge_min && capacity <= pool->huge_max &&
           !pool->scarce;
}

/*
 * Maps whole huge pages if wanted. They are filled buffer by buffer, and one fault instead of
 * 512 pays more than anything else here. Otherwise none, and none for the first buffers of a
 * class: a huge page would be charged for one buffer, in as many classes as blocks have sizes.
 */
static int pool_map(const struct buffer_pool *pool, bool huge, size_t len,
                    struct mapping *mapping, char **ret_start)
{
    mapping->len = huge ? len + HUGE_BYTES : len; /* room for alignment */
    mapping->start = mmap(NULL, mapping->len, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping->start == MAP_FAILED)
        return -ENOMEM;
    madvise(mapping->start, mapping->len, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (pool->not_for_children)
        madvise(mapping->start, mapping->len, MADV_DONTFORK);
    uintptr_t start = (uintptr_t)mapping->start;
    *ret_start = (char *)(huge ? (start + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1) : start);
    return 0;
}

/* Maps more buffers for a class whose stacks are empty. With its lock. */
static int pool_carve(const struct buffer_pool *pool, struct size_class *class, size_t capacity)
{
    size_t bytes = pool->scarce ? CARVE_SCARCE_BYTES : CARVE_BYTES;
    size_t count = bytes / capacity + (capacity > bytes);
    /* Room for all, so that giving a buffer back can't fail. */
    if (vector_reserve(&class->warm, class->total + count - class->warm.count) < 0 ||
        vector_reserve(&class->cold, class->total + count - class->cold.count) < 0)
        return -ENOMEM;
    struct mapping *mapping = malloc(sizeof(*mapping));
    if (!mapping)
        return -ENOMEM;
    char *start;
    if (pool_map(pool, wants_huge(pool, class, capacity), count * capacity, mapping, &start) <
        0) {
        free(mapping);
        return -ENOMEM;
    }
    mapping->count = count;
    mapping->next = class->mappings;
    class->mappings = mapping;
    class->total += count;
    class->capacity = capacity;
    for (size_t i = count; i-- > 0;)
        class->cold.at[class->cold.count++] = start + i * capacity;
    return 0;
}

int buffer_pool_get(struct buffer_pool *pool, size_t size, void **ret_buffer)
{
    if (size > SIZE_LIMIT)
        return -ENOMEM;
    size_t capacity;
    struct size_class *class = &pool->classes[class_of(pool, size, &capacity)];
    int r = 0;
    pthread_mutex_lock(&class->lock);
    if (class->warm.count > 0) {
        *ret_buffer = class->warm.at[--class->warm.count];
        atomic_fetch_sub_explicit(&pool->spare.used, capacity, memory_order_relaxed);
    } else {
        if (class->cold.count == 0)
            r = pool_carve(pool, class, capacity);
        if (r == 0)
            *ret_buffer = class->cold.at[--class->cold.count];
    }
    pthread_mutex_unlock(&class->lock);
    return r;
}

void buffer_pool_put(struct buffer_pool *pool, void *buffer, size_t size)
{
    size_t capacity;
    struct size_class *class = &pool->classes[class_of(pool, size, &capacity)];
    bool warm = account_take(&pool->spare, capacity);
    if (!warm)
        madvise(buffer, capacity, MADV_DONTNEED);
    pthread_mutex_lock(&class->lock);
    struct stack *stack = warm ? &class->warm : &class->cold;
    stack->at[stack->count++] = buffer;
    pthread_mutex_unlock(&class->lock);
}

/* Gives back warm buffers of a class while there is too much spare memory. */
static void pool_cool(struct buffer_pool *pool, struct size_class *class)
{
    pthread_mutex_lock(&class->lock);
    while (class->warm.count > 0 &&
           atomic_load(&pool->spare.used) > atomic_load(&pool->spare.limit)) {
        void *buffer = class->warm.at[--class->warm.count];
        madvise(buffer, class->capacity, MADV_DONTNEED);
        atomic_fetch_sub_explicit(&pool->spare.used, class->capacity, memory_order_relaxed);
        class->cold.at[class->cold.count++] = buffer;
    }
    pthread_mutex_unlock(&class->lock);
}

static bool is_in(const struct mapping *mapping, const void *buffer)
{
    return (uintptr_t)buffer - (uintptr_t)mapping->start < mapping->len;
}

static size_t count_in(const struct stack *stack, const struct mapping *mapping)
{
    size_t count = 0;
    for (size_t i = 0; i < stack->count; i++)
        count += is_in(mapping, stack->at[i]);
    return count;
}

/* Takes the buffers of a mapping off a stack; returns their number. */
static size_t remove_from(struct stack *stack, const struct mapping *mapping)
{
    size_t left = 0, before = stack->count;
    for (size_t i = 0; i < before; i++)
        if (!is_in(mapping, stack->at[i]))
            stack->at[left++] = stack->at[i];
    stack->count = left;
    return before - left;
}

/* Unmaps the mappings of a class without a buffer in use. */
static bool unmap_unused(struct buffer_pool *pool, struct size_class *class)
{
    bool any = false;
    pthread_mutex_lock(&class->lock);
    for (struct mapping **link = &class->mappings; *link;) {
        struct mapping *mapping = *link;
        if (count_in(&class->warm, mapping) + count_in(&class->cold, mapping) <
            mapping->count) {
            link = &mapping->next;
            continue;
        }
        atomic_fetch_sub(&pool->spare.used,
                         remove_from(&class->warm, mapping) * class->capacity);
        remove_from(&class->cold, mapping);
        class->total -= mapping->count;
        *link = mapping->next;
        munmap(mapping->start, mapping->len);
        free(mapping);
        any = true;
    }
    pthread_mutex_unlock(&class->lock);
    return any;
}

bool buffer_pool_unmap_unused(struct buffer_pool *pool)
{
    bool any = false;
    for (unsigned i = 0; i < CLASS_COUNT; i++)
        any |= unmap_unused(pool, &pool->classes[i]);
    return any;
}

void buffer_pool_set_spare(struct buffer_pool *pool, uint64_t spare_bytes)
{
    atomic_store(&pool->spare.limit, spare_bytes);
    for (unsigned i = 0; i < CLASS_COUNT; i++)
        pool_cool(pool, &pool->classes[i]);
}
