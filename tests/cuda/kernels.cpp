/*
 * The kernels as the host runs them: each thread of each block in turn, when the stream comes
 * to them. None of them needs what threads of a block do together. A load or store at an
 * address that is not aligned for its type ends the process (meson.build).
 */
#include <cuda_runtime_api.h>

#include <functional>
#include <tuple>
#include <vector>

#include "device_type.h"
#include "kernels.h"
#include "runtime.h"

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

template <typename T> static T here(T value)
{
    return value;
}

template <typename T> static T *here(T *memory)
{
    return static_cast<T *>(played_at(memory, 0));
}

template <typename T> static T *here(T *memory, uint64_t bytes)
{
    return static_cast<T *>(played_at(memory, bytes));
}

static const uint64_t *table(const uint64_t *memory, uint64_t count)
{
    played_need_aligned(memory, sizeof(uint64_t));
    return static_cast<const uint64_t *>(played_at(memory, count * sizeof(uint64_t)));
}

static struct device_gather here(struct device_gather g)
{
    static thread_local std::vector<uint64_t> from;
    const uint64_t *sources = table(g.from, g.count);
    g.to = static_cast<uint8_t *>(played_at(g.to, g.bytes));
    g.offsets = table(g.offsets, g.count);
    g.sizes = table(g.sizes, g.count);
    from.clear();
    for (uint64_t i = 0; i < g.count; i++)
        from.push_back(reinterpret_cast<uintptr_t>(
            played_locked_at(reinterpret_cast<const void *>(sources[i]), g.sizes[i])));
    g.from = from.data();
    return g;
}

template <typename T> static T *seen(T *memory, uint64_t count)
{
    played_need_aligned(memory, sizeof(T) < 8 ? sizeof(T) : 8);
    return static_cast<T *>(played_at(memory, count * sizeof(T)));
}

static struct kernels_taps here(struct kernels_taps taps)
{
    taps.spans = seen(taps.spans, taps.axis.count);
    taps.weights = seen(taps.weights, taps.axis.count * (uint64_t)taps.most);
    return taps;
}

static struct kernels_pictures here(struct kernels_pictures all)
{
    const struct device_images &images = all.images;
    uint64_t values = (uint64_t)images.width * images.height * 3;
    uint64_t bytes = images.type == ONEPOT_FLOAT ? 4 : images.type ? 2 : 1;
    for (uint32_t i = 0; i < all.count; i++) {
        struct kernels_picture &p = all.at[i];
        p.pixels = static_cast<const uint8_t *>(
            played_at(p.pixels, (p.y.axis.high - 1) * p.pitch + 3 * p.x.axis.high));
        played_need_aligned(p.to, bytes);
        p.to = played_at(p.to, values * bytes);
        p.x = here(p.x);
        p.y = here(p.y);
    }
    return all;
}

/* Parts [from, from + bytes) of a piece of memory. */
static void need_inside(const uint64_t *from, const uint64_t *bytes, uint64_t count,
                        uint64_t all)
{
    for (uint64_t i = 0; i < count; i++)
        if (from[i] > all || bytes[i] > all - from[i])
            played_forbid("a kernel beyond its memory", nullptr);
}

static struct kernels_frames here(struct kernels_frames f)
{
    played_need_aligned(f.content, sizeof(uint64_t));
    f.content = here(f.content, f.content_bytes);
    f.from = table(f.from, f.count);
    f.bytes = table(f.bytes, f.count);
    f.sums = seen(f.sums, f.count);
    need_inside(f.from, f.bytes, f.count, f.content_bytes);
    return f;
}

static struct kernels_pieces here(struct kernels_pieces p)
{
    p.content = here(p.content, p.content_bytes);
    p.to = here(p.to, p.to_bytes);
    p.from = table(p.from, p.count);
    p.at = table(p.at, p.count);
    p.bytes = table(p.bytes, p.count);
    need_inside(p.from, p.bytes, p.count, p.content_bytes);
    need_inside(p.at, p.bytes, p.count, p.to_bytes);
    return p;
}

/* One thread runs them all. */
static void atomicAdd(unsigned long long *to, unsigned long long value)
{
    *to += value;
}

static void call(void *ctx)
{
    auto *run = static_cast<std::function<void()> *>(ctx);
    (*run)();
    delete run;
}

template <typename... A>
static cudaError_t launch(void (*kernel)(A...), dim3 grid, unsigned threads,
                          cudaStream_t stream, A... args)
{
    return played_launch(stream, grid, threads, call, new std::function<void()>([=] {
                             auto seen = std::make_tuple(here(args)...);
                             gridDim = grid;
                             blockDim = dim3(threads);
                             for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
                                 for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
                                     for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
                                         std::apply(kernel, seen);
                         }));
}

#include "kernels.cu"
