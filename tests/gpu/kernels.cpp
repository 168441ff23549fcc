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

/* A GPU would do as well with other addresses, and ask for more lines. */
static uint4 load(const uint4 *from)
{
    if ((reinterpret_cast<uintptr_t>(from) / sizeof(*from) - threadIdx.x) % (128 / sizeof(*from)))
        played_forbid("a warp reads host memory from the middle of a line on", from);
    return *from;
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
