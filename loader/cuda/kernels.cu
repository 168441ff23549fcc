/*
 * The kernels. Gathering reads host memory over the link: what counts is how many reads are on
 * their way, so that every thread asks for four times 16 bytes before it stores any.
 */
#include "kernels.h"
#include "images_round.h"

#define THREADS 256u
#define BLOCKS 2048u
#define UNROLL 4u

#ifdef __CUDACC__ /* the tests have another one */
template <typename... A>
static cudaError_t launch(void (*kernel)(A...), dim3 grid, unsigned threads,
                          cudaStream_t stream, A... args)
{
    kernel<<<grid, threads, 0, stream>>>(args...);
    return cudaGetLastError();
}
#endif

/* Thread t of n copies its share, both places at multiples of 16 bytes but for the rest. */
static __device__ void copy_aligned(uint8_t *to, const uint8_t *from, uint64_t bytes,
                                    unsigned t, unsigned n)
{
    uint4 *wide_to = reinterpret_cast<uint4 *>(to);
    const uint4 *wide_from = reinterpret_cast<const uint4 *>(from);
    uint64_t words = bytes / sizeof(uint4), i = t;
    for (; i + (UNROLL - 1) * (uint64_t)n < words; i += UNROLL * (uint64_t)n) {
        uint4 part[UNROLL];
#pragma unroll
        for (unsigned j = 0; j < UNROLL; j++)
            part[j] = wide_from[i + j * (uint64_t)n];
#pragma unroll
        for (unsigned j = 0; j < UNROLL; j++)
            wide_to[i + j * (uint64_t)n] = part[j];
    }
    for (; i < words; i += n)
        wide_to[i] = wide_from[i];
    for (i = words * sizeof(uint4) + t; i < bytes; i += n)
        to[i] = from[i];
}

static __device__ void copy_any(uint8_t *to, const uint8_t *from, uint64_t bytes, unsigned t,
                                unsigned n)
{
    if (((uintptr_t)to | (uintptr_t)from) % sizeof(uint4) == 0) {
        copy_aligned(to, from, bytes, t, n);
        return;
    }
    for (uint64_t i = t; i < bytes; i += n)
        to[i] = from[i];
}

/* Samples by x, pieces of one by y; the first piece's block clears what is behind the sample.
 */
static __global__ void gather_samples(struct device_gather g)
{
    for (uint64_t i = blockIdx.x; i < g.count; i += gridDim.x) {
        uint64_t size = g.sizes[i], end = g.offsets[i] + size;
        uint64_t piece = (size + gridDim.y - 1) / gridDim.y;
        piece = (piece + 15) & ~(uint64_t)15;
        uint64_t first = piece * blockIdx.y;
        if (first < size)
            copy_any(g.to + g.offsets[i] + first,
                     reinterpret_cast<const uint8_t *>((uintptr_t)g.from[i]) + first,
                     size - first < piece ? size - first : piece, threadIdx.x, blockDim.x);
        if (blockIdx.y > 0)
            continue;
        uint64_t next = i + 1 < g.count ? g.offsets[i + 1] : g.bytes;
        for (uint64_t j = end + threadIdx.x; j < next; j += blockDim.x)
            g.to[j] = 0;
    }
}

cudaError_t kernels_gather(cudaStream_t stream, const struct device_gather *gather)
{
    if (gather->count == 0)
        return cudaSuccess;
    unsigned x = gather->count < BLOCKS ? (unsigned)gather->count : BLOCKS;
    return launch(gather_samples, dim3(x, BLOCKS / x), THREADS, stream, *gather);
}

struct plan {
    uint64_t pixels, all; /* of an image, of the batch */
    uint32_t channels;
    float mean[4], scale[4];
};

static __device__ void store(float *to, uint64_t at, float x)
{
    to[at] = x;
}

struct half_bits {
    uint16_t bits;
};

struct bfloat16_bits {
    uint16_t bits;
};

static __device__ void store(half_bits *to, uint64_t at, float x)
{
    to[at].bits = images_half(x);
}

static __device__ void store(bfloat16_bits *to, uint64_t at, float x)
{
    to[at].bits = images_bfloat16(x);
}

/* A thread has all channels of a pixel, so that neighbours write neighbours. */
template <typename T>
static __global__ void convert_pixels(struct plan plan, const uint8_t *from, T *to)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < plan.all;
         i += step) {
        uint64_t image = i / plan.pixels, pixel = i % plan.pixels;
        for (uint32_t c = 0; c < plan.channels; c++)
            store(to, (image * plan.channels + c) * plan.pixels + pixel,
                  images_scale(from[i * plan.channels + c], plan.mean[c], plan.scale[c]));
    }
}

cudaError_t kernels_convert(cudaStream_t stream, const struct onepot_images *images,
                            uint64_t count, const uint8_t *from, void *to)
{
    struct plan plan = {
        (uint64_t)images->height * images->width, 0, images->channels, {0}, {0}};
    plan.all = plan.pixels * count;
    memcpy(plan.mean, images->mean, sizeof(plan.mean));
    memcpy(plan.scale, images->scale, sizeof(plan.scale));
    uint64_t blocks = (plan.all + THREADS - 1) / THREADS;
    unsigned grid = blocks < 16 * BLOCKS ? (unsigned)blocks : 16 * BLOCKS;
    if (grid == 0)
        return cudaSuccess;
    switch (images->type) {
    case ONEPOT_FLOAT:
        return launch(convert_pixels<float>, dim3(grid), THREADS, stream, plan, from,
                      static_cast<float *>(to));
    case ONEPOT_HALF:
        return launch(convert_pixels<half_bits>, dim3(grid), THREADS, stream, plan, from,
                      static_cast<half_bits *>(to));
    case ONEPOT_BFLOAT16:
        return launch(convert_pixels<bfloat16_bits>, dim3(grid), THREADS, stream, plan, from,
                      static_cast<bfloat16_bits *>(to));
    default:
        return cudaErrorInvalidValue;
    }
}
