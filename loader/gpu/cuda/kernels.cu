/*
 * The kernels. Gathering reads host memory over the link, whose speed depends on how many bytes
 * are in flight. So each thread loads eight times 16 bytes before it stores any. The blocks
 * have 512 KB in flight that way, as much as the fastest link, of 450 GB/s, carries in 1 us. On
 * an H200 (PCIe 5.0) 8 to 128 blocks gather at the same rate; beside matrix products 16 lose
 * and cost least. A block has 16,384 registers, a quarter of a multiprocessor's. On a busy GPU,
 * CUDA begins an urgent stream's blocks before others that wait, and preempts none.
 */
#include "kernels.h"
#include "convert_round.h"

#define THREADS 256u
#define WARP 32u
#define BLOCKS 32768u
#define GATHER_BLOCKS 16u
#define LINE_BYTES 128u /* one request of the link */
#define UNROLL 8u
#define PIECE_BYTES (UNROLL * WARP * 16) /* what a warp has in flight; a power of two */
#define CHANNELS_MAX 4u
#define ROUNDS 8u /* least number of pieces for each warp, since the last one is not full */

#ifdef __CUDACC__ /* the tests define their own */
static __device__ uint4 load(const uint4 *from)
{
    return *from;
}

template <typename... A>
static cudaError_t launch(void (*kernel)(A...), dim3 grid, unsigned threads,
                          cudaStream_t stream, A... args)
{
    kernel<<<grid, threads, 0, stream>>>(args...);
    return cudaGetLastError();
}
#endif

/*
 * Copy 16 bytes with each lane of a warp, UNROLL times before any is stored: so many bytes one
 * warp has in flight. `from` is a multiple of 16 bytes, `to` a multiple of the size of T. Lane
 * 0 reads the beginnings of lines; the first line's words before `from` are nobody's.
 */
template <typename T>
static __device__ void copy_words(uint8_t *to, const uint8_t *from, uint64_t words,
                                  unsigned lane)
{
    const uint4 *wide = reinterpret_cast<const uint4 *>(from);
    int64_t before = (int64_t)((uintptr_t)from % LINE_BYTES / sizeof(uint4));
    for (int64_t i = lane - before; i < (int64_t)words; i += UNROLL * WARP) {
        uint4 part[UNROLL] = {};
#pragma unroll
        for (unsigned j = 0; j < UNROLL; j++)
            if ((uint64_t)i + j * WARP < words)
                part[j] = load(wide + (i + j * WARP));
#pragma unroll
        for (unsigned j = 0; j < UNROLL; j++) {
            const T *piece = reinterpret_cast<const T *>(&part[j]);
            T *at = reinterpret_cast<T *>(to + (i + j * WARP) * (int64_t)sizeof(uint4));
            if ((uint64_t)i + j * WARP < words)
#pragma unroll
                for (unsigned k = 0; k < sizeof(uint4) / sizeof(T); k++)
                    at[k] = piece[k];
        }
    }
}

/*
 * Read over the link in whole lines of 128 bytes, however source and target are aligned: a warp
 * whose words begin within a line asks for one line more each time, and small reads cost as
 * much there as large ones, while small writes to the device's own memory cost next to nothing.
 */
static __device__ void copy_bytes(uint8_t *to, const uint8_t *from, uint64_t bytes,
                                  unsigned lane)
{
    uint64_t head = (0 - (uintptr_t)from) % sizeof(uint4);
    head = head < bytes ? head : bytes;
    if (lane < head)
        to[lane] = from[lane];
    to += head, from += head, bytes -= head;
    uint64_t words = bytes / sizeof(uint4), tail = words * sizeof(uint4) + lane;
    if ((uintptr_t)to % sizeof(uint4) == 0)
        copy_words<uint4>(to, from, words, lane);
    else if ((uintptr_t)to % sizeof(uint32_t) == 0)
        copy_words<uint32_t>(to, from, words, lane);
    else
        copy_words<uint8_t>(to, from, words, lane);
    if (tail < bytes)
        to[tail] = from[tail];
}

/* Each sample has `pieces` pieces, some of them empty, and a warp copies one at a time. The
 * warp with the first piece also clears the gap after the sample. */
static __global__ void gather_samples(struct device_gather g, uint32_t pieces)
{
    unsigned lane = threadIdx.x % WARP;
    uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / WARP);
    uint64_t warp = (uint64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    for (; warp < g.count * pieces; warp += warps) {
        uint64_t i = warp / pieces, size = g.sizes[i];
        uint64_t piece = (size / pieces + PIECE_BYTES) & ~(uint64_t)(PIECE_BYTES - 1);
        uint64_t first = piece * (warp % pieces);
        if (first < size)
            copy_bytes(g.to + g.offsets[i] + first,
                       reinterpret_cast<const uint8_t *>((uintptr_t)g.from[i]) + first,
                       size - first < piece ? size - first : piece, lane);
        if (first > 0)
            continue;
        uint64_t next = i + 1 < g.count ? g.offsets[i + 1] : g.bytes;
        for (uint64_t j = g.offsets[i] + size + lane; j < next; j += WARP)
            g.to[j] = 0;
    }
}

/* Cut a few samples into as many pieces as it takes to give all warps equal work. */
cudaError_t kernels_gather(cudaStream_t stream, const struct device_gather *gather)
{
    const uint64_t warps = (uint64_t)GATHER_BLOCKS * (THREADS / WARP);
    if (gather->count == 0)
        return cudaSuccess;
    uint64_t pieces = (ROUNDS * warps + gather->count - 1) / gather->count;
    return launch(gather_samples, dim3(GATHER_BLOCKS), THREADS, stream, *gather,
                  (uint32_t)pieces);
}

cudaError_t kernels_find(void)
{
    struct cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(gather_samples));
}

struct plan {
    uint64_t pixels, all; /* of an image, of the batch */
    uint32_t channels;
    float mean[CHANNELS_MAX], scale[CHANNELS_MAX];
};

/* Floats of this type. */
template <enum onepot_float F> static __device__ void store(void *to, uint64_t at, float x)
{
    if (F == ONEPOT_FLOAT)
        static_cast<float *>(to)[at] = x;
    else
        static_cast<uint16_t *>(to)[at] =
            F == ONEPOT_HALF ? convert_half(x) : convert_bfloat16(x);
}

/*
 * A thread converts all channels of a pixel, so that neighbouring threads write neighbours. The
 * loop has as many rounds as there can be, and is unrolled: a channel that only the thread
 * knows would be looked up in a stack.
 */
template <enum onepot_float F>
static __global__ void convert_pixels(struct plan plan, const uint8_t *from, void *to)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < plan.all;
         i += step) {
        uint64_t image = i / plan.pixels, pixel = i % plan.pixels;
#pragma unroll
        for (uint32_t c = 0; c < CHANNELS_MAX; c++)
            if (c < plan.channels)
                store<F>(
                    to, (image * plan.channels + c) * plan.pixels + pixel,
                    convert_scale(from[i * plan.channels + c], plan.mean[c], plan.scale[c]));
    }
}

cudaError_t kernels_convert(cudaStream_t stream, const struct onepot_conversion *images,
                            uint64_t count, const uint8_t *from, void *to)
{
    struct plan plan = {
        (uint64_t)images->height * images->width, 0, images->channels, {0}, {0}};
    plan.all = plan.pixels * count;
    memcpy(plan.mean, images->mean, sizeof(plan.mean));
    memcpy(plan.scale, images->scale, sizeof(plan.scale));
    uint64_t blocks = (plan.all + THREADS - 1) / THREADS;
    unsigned grid = blocks < BLOCKS ? (unsigned)blocks : BLOCKS;
    if (grid == 0)
        return cudaSuccess;
    switch (images->type) {
    case ONEPOT_FLOAT:
        return launch(convert_pixels<ONEPOT_FLOAT>, dim3(grid), THREADS, stream, plan, from,
                      to);
    case ONEPOT_HALF:
        return launch(convert_pixels<ONEPOT_HALF>, dim3(grid), THREADS, stream, plan, from, to);
    case ONEPOT_BFLOAT16:
        return launch(convert_pixels<ONEPOT_BFLOAT16>, dim3(grid), THREADS, stream, plan, from,
                      to);
    default:
        return cudaErrorInvalidValue;
    }
}
