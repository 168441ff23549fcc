/*
 * Batches in the memory of a device: a CUDA GPU, or the host playing one.
 *
 *     onepot_device_open("cuda", &error, &device);      this rank's GPU
 *     struct onepot_loader_options options = {..., .device = device};
 *     onepot_loader_new(archive, &options, &error, &loader);
 *     while ((r = onepot_loader_next(loader, -1, &error, &batch)) > 0) {
 *         onepot_batch_use(batch, stream, &error);      the stream waits, not the host
 *         onepot_batch_on_device(batch, &on_device);
 *         kernel<<<..., stream>>>(on_device.data, on_device.offsets, ...);
 *         onepot_batch_release(batch);                  at once: the kernel may still run
 *     }
 *
 * A slab of such a loader is page-locked memory and memory of the device, of the same
 * size. As soon as a batch is gathered it goes over in one asynchronous copy, its tables
 * included, on a stream of the loader's own. A batch that was released is used again once
 * what its streams had been given until then is done; only the device waits for that.
 *
 * The host device has all of this, with threads as streams, so that programs and tests run
 * without a GPU.
 *
 * The part for CUDA is a shared object of its own, libonepot-cuda.so, which is loaded when a
 * "cuda" device is opened: the file that the environment's ONEPOT_CUDA names, else the one
 * beside the library or the program, else by the usual search. It needs the driver only.
 *
 * A stream is a cudaStream_t of CUDA's runtime (or the driver's CUstream), or what
 * onepot_device_stream_new made; NULL is the default stream. All functions may be called
 * by several threads at once. They leave the calling thread's current CUDA device as it is.
 */
#ifndef ONEPOT_DEVICE_H
#define ONEPOT_DEVICE_H

#include "onepot.h"

#ifdef __cplusplus
extern "C" {
#endif

struct onepot_device;

/*
 * "cuda:1"; "cuda": the local rank that the launcher tells, modulo the visible devices;
 * "host". -EINVAL: no such name; -ENODEV: no such device, no driver, no libonepot-cuda.so;
 * -ENOMEM; -EIO: CUDA's own errors.
 */
ONEPOT_API int onepot_device_open(const char *name, struct onepot_error *error,
                                  struct onepot_device **ret_device);

/* Loaders and batches keep what they need. NULL is fine. */
ONEPOT_API void onepot_device_close(struct onepot_device *device);

struct onepot_device_info {
    size_t size;
    char name[256];    /* "NVIDIA H100 80GB HBM3" */
    uint32_t is_host;  /* its memory is the host's: 1 */
    uint32_t index;    /* of the visible devices */
    int32_t numa_node; /* next to it; -1: not known */
    uint32_t kernels;  /* it can gather and convert: 1 */
    uint64_t free_bytes, total_bytes;
};
ONEPOT_API int onepot_device_info(struct onepot_device *device, struct onepot_error *error,
                                  struct onepot_device_info *ret_info);

/* How many devices of the kind "cuda" or "host" this process sees. */
ONEPOT_API int onepot_device_count(const char *kind, struct onepot_error *error,
                                   uint32_t *ret_count);

/* ---- streams: for who has none of his own ---- */

ONEPOT_API int onepot_device_stream_new(struct onepot_device *device,
                                        struct onepot_error *error, void **ret_stream);
ONEPOT_API void onepot_device_stream_free(struct onepot_device *device, void *stream);
/* Until all that the stream was given is done. Errors of that show here. */
ONEPOT_API int onepot_device_stream_wait(struct onepot_device *device, void *stream,
                                         struct onepot_error *error);

/* Queue a copy; either side may be memory of the host or of the device. */
ONEPOT_API int onepot_device_copy(struct onepot_device *device, void *stream, void *to,
                                  const void *from, size_t bytes, struct onepot_error *error);
/* Queue a call of a function on a thread of the device's; it may not use the device. */
ONEPOT_API int onepot_device_call(struct onepot_device *device, void *stream,
                                  void (*function)(void *ctx), void *ctx,
                                  struct onepot_error *error);

/* ---- batches ---- */

/* Where a batch lies on its device. */
struct onepot_device_batch {
    size_t size;
    uint8_t *data; /* as the samples are; */
    uint64_t bytes;
    const uint64_t *offsets, *sizes, *indices; /* [samples] each */
    const int64_t *labels;
    const uint8_t *valid;
    void *images; /* what `images` of the loader's options made of data, or NULL */
    uint64_t image_bytes;
};

/* -ENOTSUP: it lies in host memory alone. */
ONEPOT_API int onepot_batch_on_device(const struct onepot_batch *batch,
                                      struct onepot_device_batch *ret_where);

/*
 * From here on the stream may read the batch (it waits for the copy, not the caller), and
 * what it will have been given when the batch is released for the last time is waited for
 * before the memory is used again. The stream has to live until then. Every stream that
 * touches the batch is told by this call, also one that was waited for otherwise.
 * 0 for a batch in host memory.
 */
ONEPOT_API int onepot_batch_use(const struct onepot_batch *batch, void *stream,
                                struct onepot_error *error);

/*
 * The same for a consumer that names the stream in which it wants the batch, and may read it in
 * others, as DLPack allows: all that the whole device had been given, by anybody, when the
 * batch is released for the last time is waited for before the memory is used again, by the
 * device where the driver can record that (CUDA 12.5 and later), else by a thread of the
 * loader's. Until its last release the batch takes of the loader's memory. With a stream that
 * onepot_batch_use was told of before it is that stream alone. With ONEPOT_NO_STREAM nothing
 * waits for the batch here.
 */
#define ONEPOT_NO_STREAM ((void *)(intptr_t)-1)
ONEPOT_API int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                                 struct onepot_error *error);

/* Wait on the host until the batch has arrived. */
ONEPOT_API int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error);

/* ---- images ---- */

enum onepot_float {
    ONEPOT_FLOAT = 1,
    ONEPOT_HALF = 2,
    ONEPOT_BFLOAT16 = 3,
};

/*
 * From bytes [count][height][width][channels] to floats [count][channels][height][width]:
 *
 *     to = (from - mean[channel]) * scale[channel]
 *
 * in single precision, each step rounded to nearest, then rounded to nearest (ties to even)
 * once more for the half types. The same bits on all devices.
 */
struct onepot_images {
    size_t size;
    uint32_t height, width, channels; /* 1 to 4 channels */
    enum onepot_float type;
    float mean[4], scale[4];
};

/* -EINVAL; -ENOTSUP: this libonepot-cuda.so was built without kernels. */
ONEPOT_API int onepot_device_convert(struct onepot_device *device, void *stream,
                                     const struct onepot_images *images, uint64_t count,
                                     const uint8_t *from, void *to, struct onepot_error *error);

/* ---- how well it goes ---- */

/* The copies of a loader for an epoch until now. */
struct onepot_transfer {
    size_t size;
    uint64_t epoch;
    uint64_t wait_ns; /* that onepot_loader_next waited */
    uint64_t batches;
    uint64_t copy_bytes, copy_ns;   /* of copies that are done; */
    uint64_t peak_bytes_per_second; /* see onepot_device_peak; 0: no memory for that */
    uint64_t gathers; /* 1: the device collects the samples itself, in this time */
};

/*
 * Of the present epoch, or, with `previous`, of the one before. -ENOTSUP: the loader has no
 * device. Measures the device's peak when it is asked for first.
 */
ONEPOT_API int onepot_loader_transfer(struct onepot_loader *loader, bool previous,
                                      struct onepot_error *error,
                                      struct onepot_transfer *ret_transfer);

/* The rate of copies of 32 MiB from page-locked memory: measured at the first call, some
 * tens of milliseconds, and remembered. */
ONEPOT_API int onepot_device_peak(struct onepot_device *device, struct onepot_error *error,
                                  uint64_t *ret_bytes_per_second);

/* A batch may have this part of a device's free memory: slabs take a quarter of it, and a
 * loader has eight or less. */
#define ONEPOT_DEVICE_BATCHES 32u

/*
 * How many samples of the archive a batch may have (a multiple of 8 beyond that) so that a
 * loader's slabs take at most a quarter of what the device has free, also where the largest
 * samples meet in one batch. 0: not one fits.
 */
ONEPOT_API int onepot_device_batch_size(struct onepot_device *device,
                                        const struct onepot_archive *archive,
                                        struct onepot_error *error, uint64_t *ret_samples);

#ifdef __cplusplus
}
#endif

#endif
