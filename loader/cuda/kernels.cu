/*
 * The kernels. Gathering reads host memory over the link, whose speed depends on how many bytes
 * are in flight. So each thread loads eight times 16 bytes before it stores any. A few dozen
 * blocks keep a link busy that way, and leave the rest of the GPU to other kernels.
 */
#include "kernels.h"
#include "convert_round.h"
#include "frame_sum.h"

#define THREADS 256u
#define WARP 32u
#define BLOCKS 32768u
#define GATHER_BLOCKS 64u
#define UNROLL 8u
#define PIECE_BYTES (UNROLL * WARP * 16) /* what a warp has in flight; a power of two */
#define CHANNELS_MAX 4u
#define ROUNDS 8u /* least number of pieces for each warp, since the last one is not full */

#ifdef __CUDACC__ /* the tests define their own */
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
 * warp has in flight. `from` is a multiple of 16 bytes, `to` a multiple of the size of T.
 */
template <typename T>
static __device__ void copy_words(uint8_t *to, const uint8_t *from, uint64_t words,
                                  unsigned lane)
{
    const uint4 *wide = reinterpret_cast<const uint4 *>(from);
    for (uint64_t i = lane; i < words; i += UNROLL * WARP) {
        uint4 part[UNROLL] = {};
#pragma unroll
        for (unsigned j = 0; j < UNROLL; j++)
            if (i + j * WARP < words)
                part[j] = wide[i + j * WARP];
#pragma unroll
        for (unsigned j = 0; j < UNROLL; j++) {
            const T *piece = reinterpret_cast<const T *>(&part[j]);
            T *at = reinterpret_cast<T *>(to + (i + j * WARP) * sizeof(uint4));
            if (i + j * WARP < words)
#pragma unroll
                for (unsigned k = 0; k < sizeof(uint4) / sizeof(T); k++)
                    at[k] = piece[k];
        }
    }
}

/*
 * Read over the link in aligned units of 16 bytes, however source and target are aligned: small
 * reads cost as much there as large ones, while small writes to the device's own memory cost
 * next to nothing.
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
    unsigned blocks = gather->width ? gather->width : GATHER_BLOCKS;
    uint64_t warps = (uint64_t)blocks * (THREADS / WARP);
    if (gather->count == 0)
        return cudaSuccess;
    uint64_t pieces = (ROUNDS * warps + gather->count - 1) / gather->count;
    return launch(gather_samples, dim3(blocks), THREADS, stream, *gather, (uint32_t)pieces);
}

/* ---- frames ---- */

/* A block for each frame; no thread waits for another, as sums are added up in memory. */
static __global__ void sum_frames(struct kernels_frames f)
{
    const uint8_t *content = f.content + f.from[blockIdx.x];
    const uint64_t *words = reinterpret_cast<const uint64_t *>(content);
    uint64_t bytes = f.bytes[blockIdx.x], count = bytes / sizeof(uint64_t), sum = 0;
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += frame_sum_word(words[i], i);
    if (threadIdx.x == 0 && bytes % sizeof(uint64_t)) {
        uint64_t last = 0;
        for (unsigned j = 0; j < bytes % sizeof(uint64_t); j++)
            last |= static_cast<uint64_t>(content[count * sizeof(uint64_t) + j]) << 8 * j;
        sum += frame_sum_word(last, count);
    }
    atomicAdd(f.sums + blockIdx.x, static_cast<unsigned long long>(sum));
}

cudaError_t kernels_sum(cudaStream_t stream, const struct kernels_frames *frames)
{
    return launch(sum_frames, dim3(static_cast<unsigned>(frames->count)), THREADS, stream,
                  *frames);
}

/* A block for each piece, of which each warp copies a part at a time. */
static __global__ void place_pieces(struct kernels_pieces p)
{
    unsigned lane = threadIdx.x % WARP;
    uint64_t size = p.bytes[blockIdx.x];
    const uint8_t *from = p.content + p.from[blockIdx.x];
    uint8_t *to = p.to + p.at[blockIdx.x];
    for (uint64_t first = threadIdx.x / WARP * PIECE_BYTES; first < size;
         first += blockDim.x / WARP * PIECE_BYTES)
        copy_bytes(to + first, from + first,
                   size - first < PIECE_BYTES ? size - first : PIECE_BYTES, lane);
}

cudaError_t kernels_place(cudaStream_t stream, const struct kernels_pieces *pieces)
{
    return launch(place_pieces, dim3(static_cast<unsigned>(pieces->count)), THREADS, stream,
                  *pieces);
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
    to[at].bits = convert_half(x);
}

static __device__ void store(bfloat16_bits *to, uint64_t at, float x)
{
    to[at].bits = convert_bfloat16(x);
}

/*
 * A thread converts all channels of a pixel, so that neighbouring threads write neighbours. The
 * loop has as many rounds as there can be, and is unrolled: a channel that only the thread
 * knows would be looked up in a stack.
 */
template <typename T>
static __global__ void convert_pixels(struct plan plan, const uint8_t *from, T *to)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < plan.all;
         i += step) {
        uint64_t image = i / plan.pixels, pixel = i % plan.pixels;
#pragma unroll
        for (uint32_t c = 0; c < CHANNELS_MAX; c++)
            if (c < plan.channels)
                store(to, (image * plan.channels + c) * plan.pixels + pixel,
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

/* ---- pictures ---- */

static_assert(sizeof(struct kernels_pictures) <= 4096, "arguments of a launch");

/* A thread makes the weights of one row or column of an image. */
static __global__ void weigh_pictures(const __grid_constant__ struct kernels_pictures all)
{
    uint64_t each = all.images.width + all.images.height;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < each * all.count;
         i += step) {
        const struct kernels_picture &picture = all.at[i / each];
        uint32_t result = (uint32_t)(i % each);
        bool is_row = result >= all.images.width;
        const struct kernels_taps &taps = is_row ? picture.y : picture.x;
        result -= is_row ? all.images.width : 0;
        uint32_t to = taps.axis.reversed ? taps.axis.count - 1 - result : result;
        taps.spans[to] = taps_one(&taps.axis, result, all.images.interpolation, taps.most,
                                  taps.weights + (uint64_t)to * taps.most);
    }
}

/* As the host does it, in whole numbers of 16 bits; see resample.c. */
static __device__ int32_t weighed(int32_t value, int32_t weight, bool many)
{
    return many ? value * weight : ((value * weight >> TAPS_BITS) + 1) >> 1;
}

static __device__ int32_t summed(int32_t sum, bool many)
{
    return (int16_t)(many ? (sum + TAPS_ONE) >> (TAPS_BITS + 1) : sum);
}

static __device__ void store_pixel(const struct device_images &images, void *to, uint64_t at,
                                   uint32_t channel, int32_t sum)
{
    int32_t value = (sum + (1 << (TAPS_OUT_BITS - 1))) >> TAPS_OUT_BITS;
    uint8_t byte = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    float x = convert_scale(byte, images.mean[channel], images.scale[channel]);
    if (images.type == ONEPOT_FLOAT)
        store(static_cast<float *>(to), at, x);
    else if (images.type == ONEPOT_HALF)
        store(static_cast<half_bits *>(to), at, x);
    else if (images.type == ONEPOT_BFLOAT16)
        store(static_cast<bfloat16_bits *>(to), at, x);
    else
        static_cast<uint8_t *>(to)[at] = byte;
}

/*
 * A thread makes a pixel of an image: of each column the sum of its rows, then the sum of
 * these. Neighbours make some of these sums again, which saves the memory that would keep them.
 */
static __global__ void resample_pictures(const __grid_constant__ struct kernels_pictures all)
{
    uint64_t pixels = (uint64_t)all.images.width * all.images.height;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pixels * all.count;
         i += step) {
        const struct kernels_picture &picture = all.at[i / pixels];
        uint64_t pixel = i % pixels, row = pixel / all.images.width;
        uint64_t column = pixel % all.images.width;
        struct taps_span x = picture.x.spans[column], y = picture.y.spans[row];
        const int16_t *across = picture.x.weights + column * picture.x.most;
        const int16_t *down = picture.y.weights + row * picture.y.most;
        bool many = picture.many;
        int32_t red = 0, green = 0, blue = 0;
        for (uint32_t n = 0; n < x.number; n++) {
            const uint8_t *from =
                picture.pixels + y.first * picture.pitch + (uint64_t)(x.first + n) * 3;
            int32_t r = 0, g = 0, b = 0;
            for (uint32_t m = 0; m < y.number; m++, from += picture.pitch) {
                r += weighed(from[0] << TAPS_IN_BITS, down[m], many);
                g += weighed(from[1] << TAPS_IN_BITS, down[m], many);
                b += weighed(from[2] << TAPS_IN_BITS, down[m], many);
            }
            red += weighed(summed(r, many), across[n], many);
            green += weighed(summed(g, many), across[n], many);
            blue += weighed(summed(b, many), across[n], many);
        }
        uint64_t at = all.images.channels_last ? pixel * 3 : pixel;
        uint64_t apart = all.images.channels_last ? 1 : pixels;
        store_pixel(all.images, picture.to, at, 0, summed(red, many));
        store_pixel(all.images, picture.to, at + apart, 1, summed(green, many));
        store_pixel(all.images, picture.to, at + 2 * apart, 2, summed(blue, many));
    }
}

static unsigned grid_for(uint64_t threads)
{
    uint64_t blocks = (threads + THREADS - 1) / THREADS;
    return blocks < BLOCKS ? (unsigned)blocks : BLOCKS;
}

cudaError_t kernels_resample(cudaStream_t stream, const struct device_images *images,
                             const struct kernels_picture *pictures, uint32_t count)
{
    uint64_t pixels = (uint64_t)images->width * images->height;
    for (uint32_t from = 0; from < count; from += KERNELS_PICTURES) {
        struct kernels_pictures all = {
            *images, count - from < KERNELS_PICTURES ? count - from : KERNELS_PICTURES, {}};
        memcpy(all.at, pictures + from, all.count * sizeof(*pictures));
        uint64_t each = images->width + images->height;
        cudaError_t e =
            launch(weigh_pictures, dim3(grid_for(each * all.count)), THREADS, stream, all);
        if (e == cudaSuccess)
            e = launch(resample_pictures, dim3(grid_for(pixels * all.count)), THREADS, stream,
                       all);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}
