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
 * A slab of such a loader is page-locked host memory and device memory of the same size. As
 * soon as a batch is gathered, one asynchronous copy moves it and its tables to the device, on
 * a stream of the loader's own. A released batch's memory is used again when its streams have
 * done everything they were given before the release; only the device waits for that.
 *
 * A loader may have several devices (`devices` in its options): one gathering, and each batch
 * to one of them in turn. onepot_batch_on_device tells to which.
 *
 * The host device offers all of this, with threads as streams, so that programs and tests run
 * without a GPU.
 *
 * CUDA support is a shared object, libonepot-cuda.so, which needs the driver only. It is loaded
 * when a "cuda" device is opened: from the path in the environment variable ONEPOT_CUDA, else
 * from beside the library or the program, else by the usual search.
 *
 * A stream is a cudaStream_t of CUDA's runtime (or the driver's CUstream), or a stream that
 * onepot_device_stream_new made; NULL is the default stream. Several threads may call any
 * function at once. The calling thread's current CUDA device stays as it is.
 */
#ifndef ONEPOT_DEVICE_H
#define ONEPOT_DEVICE_H

#include "onepot.h"

#ifdef __cplusplus
extern "C" {
#endif

struct onepot_device;

/*
 * Open a device by name: "cuda:1"; "cuda", which takes the launcher's local rank modulo the
 * number of visible devices; or "host" ("host:1": another one). -EINVAL: no such name. -ENODEV:
 * no such device, no driver, no libonepot-cuda.so, or a library that was built without devices
 * (-Dgpu=disabled). -ENOMEM. -EIO: CUDA's own errors.
 */
ONEPOT_API int onepot_device_open(const char *name, struct onepot_error *error,
                                  struct onepot_device **ret_device);

/* Loaders and batches keep what they need. NULL is fine. */
ONEPOT_API void onepot_device_close(struct onepot_device *device);

struct onepot_device_info {
    size_t size;
    char name[256];    /* as the driver calls it: "NVIDIA H100 80GB HBM3" */
    uint32_t is_host;  /* 1: its memory is the host's */
    uint32_t index;    /* among the visible devices */
    int32_t numa_node; /* the NUMA node next to it; -1: unknown */
    uint32_t kernels;  /* 1: it can gather and convert */
    uint64_t free_bytes, total_bytes;
};
ONEPOT_API int onepot_device_info(struct onepot_device *device, struct onepot_error *error,
                                  struct onepot_device_info *ret_info);

/* How many devices of the kind "cuda" or "host" this process sees. */
ONEPOT_API int onepot_device_count(const char *kind, struct onepot_error *error,
                                   uint32_t *ret_count);

/* ---- streams: for programs that have none of their own ---- */

ONEPOT_API int onepot_device_stream_new(struct onepot_device *device,
                                        struct onepot_error *error, void **ret_stream);
ONEPOT_API void onepot_device_stream_free(struct onepot_device *device, void *stream);
/* Wait until the stream has done all it was given. Reports errors of that work. */
ONEPOT_API int onepot_device_stream_wait(struct onepot_device *device, void *stream,
                                         struct onepot_error *error);

/* Queue a copy of `bytes`. Either side may be memory of the host or of the device. */
ONEPOT_API int onepot_device_copy(struct onepot_device *device, void *stream, void *to,
                                  const void *from, size_t bytes, struct onepot_error *error);
/* Queue a call of a function on a thread of the device. The function may not use the device. */
ONEPOT_API int onepot_device_call(struct onepot_device *device, void *stream,
                                  void (*function)(void *ctx), void *ctx,
                                  struct onepot_error *error);

/* ---- batches ---- */

/* Where a batch lies on its device. */
struct onepot_device_batch {
    size_t size;
    uint8_t *data; /* the samples, laid out as in struct onepot_batch */
    uint64_t bytes;
    const uint64_t *offsets, *sizes, *indices; /* [samples] each */
    const int64_t *labels;
    const uint8_t *valid;
    void *images; /* data as converted by the loader's `convert` option, or NULL */
    uint64_t image_bytes;
    uint32_t device; /* which of the loader's `devices` it is on; 0 of one */
    uint32_t index;  /* and that one's number among the visible devices */
};

/* -ENOTSUP: the batch lies in host memory alone. */
ONEPOT_API int onepot_batch_on_device(const struct onepot_batch *batch,
                                      struct onepot_device_batch *ret_where);

/*
 * Let a stream read the batch. The stream waits for the copy; the caller does not. The batch's
 * memory is not used again before the stream has done all it was given until the last release,
 * so the stream must live until then. Call this for every stream that touches the batch, even
 * one that was made to wait in another way. Does nothing for a batch in host memory.
 *
 * -EBUSY: the stream captures a CUDA graph. Nothing is recorded on it, and the capture goes on.
 * If it captures at the last release, the memory is used again after the capture; a batch that
 * has waited for its end for ten seconds fails with -EBUSY. The stream is asked again for that,
 * so it must live until the loader and its batches are gone. -EINVAL: the stream is another
 * device's.
 */
ONEPOT_API int onepot_batch_use(const struct onepot_batch *batch, void *stream,
                                struct onepot_error *error);

/*
 * Like onepot_batch_use, for a consumer that names one stream and may read the batch in others,
 * as DLPack allows. The memory is not used again before the whole device has done all that
 * anybody gave it until the last release. The device waits for that where the driver can record
 * such an event (CUDA 12.5 and later), else a thread of the loader does. The batch counts as
 * the loader's memory until its last release. If onepot_batch_use was called with this stream
 * before, only that stream is waited for; otherwise the stream is not touched again, and may be
 * destroyed. ONEPOT_NO_STREAM makes no stream wait for the copy.
 *
 * While a stream of the device that was not named captures a graph, don't end such a batch: as
 * CUDA has it, an event behind all streams breaks the capture.
 */
#define ONEPOT_NO_STREAM ((void *)(intptr_t)-1)
ONEPOT_API int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                                 struct onepot_error *error);

/*
 * Queue a copy of `bytes` of the batch, on its device, to memory of the caller's there, of
 * which the rest up to `room` becomes 0. `from` is one of the pointers of
 * onepot_batch_on_device, and the stream counts as by onepot_batch_use. This is how a batch
 * gets into memory that a CUDA graph reads each time. A batch in host memory is copied at once.
 * -EINVAL: there is no room.
 */
ONEPOT_API int onepot_batch_copy(const struct onepot_batch *batch, void *stream, void *to,
                                 size_t room, const void *from, size_t bytes,
                                 struct onepot_error *error);

/*
 * New memory with a copy of `bytes` of the batch, in the order of the stream, which is not
 * touched again after the call; `from` is as for onepot_batch_copy. The memory is the device's,
 * or the host's, and outlives batch and loader. ONEPOT_NO_STREAM, or the host's memory: the
 * copy is done at the return. -EBUSY: the stream captures a CUDA graph. -ENOTSUP: the batch is
 * in host memory.
 */
struct onepot_duplicate;
ONEPOT_API int onepot_batch_duplicate(const struct onepot_batch *batch, bool on_host,
                                      void *stream, const void *from, size_t bytes,
                                      struct onepot_error *error,
                                      struct onepot_duplicate **ret_duplicate,
                                      void **ret_memory);
/* May wait for everything that the device was given. NULL is fine. */
ONEPOT_API void onepot_duplicate_free(struct onepot_duplicate *duplicate);

/* Wait on the host until the batch has arrived. */
ONEPOT_API int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error);

/* ---- images ---- */

/*
 * Converts bytes [count][height][width][channels] to floats [count][channels][height][width]:
 *
 *     to = (from - mean[channel]) * scale[channel]
 *
 * Each step is in single precision and rounds to nearest. The half types are rounded once more,
 * to nearest, ties to even. All devices produce the same bits.
 */
struct onepot_conversion {
    size_t size;
    uint32_t height, width, channels; /* 1 to 4 channels */
    enum onepot_float type;
    float mean[4], scale[4];
};

/*
 * Queue a conversion of `count` images. -EINVAL. -ENOTSUP: this libonepot-cuda.so was built
 * without kernels.
 */
ONEPOT_API int onepot_device_convert(struct onepot_device *device, void *stream,
                                     const struct onepot_conversion *conversion, uint64_t count,
                                     const uint8_t *from, void *to, struct onepot_error *error);

/* ---- measurements ---- */

/* The copies of a loader in one epoch, so far. Sums over several devices. */
struct onepot_transfer {
    size_t size;
    uint64_t epoch;
    uint64_t wait_ns; /* time that onepot_loader_next waited */
    uint64_t batches;
    uint64_t copy_bytes, copy_ns; /* of finished copies */
    /* Of the slowest device, see onepot_device_peak; 0: no memory to measure it. */
    uint64_t peak_bytes_per_second;
    uint64_t gathers; /* 1: the device collects the samples itself, in copy_ns */
};

/*
 * Transfers of the present epoch or, with `previous`, of the one before. The first call
 * measures the devices' peaks. -ENOTSUP: the loader has no device.
 */
ONEPOT_API int onepot_loader_transfer(struct onepot_loader *loader, bool previous,
                                      struct onepot_error *error,
                                      struct onepot_transfer *ret_transfer);

/*
 * The rate of copies of 32 MiB from page-locked memory. The first call measures it in some tens
 * of milliseconds; later calls return the same value.
 */
ONEPOT_API int onepot_device_peak(struct onepot_device *device, struct onepot_error *error,
                                  uint64_t *ret_bytes_per_second);

/*
 * A batch may have this fraction (1/32) of a device's free memory, since slabs take a quarter
 * of that memory, and a loader has at most eight.
 */
#define ONEPOT_DEVICE_BATCHES 32u

/*
 * How many samples of the archive a batch may have so that a loader's slabs take at most a
 * quarter of the device's free memory (of one of several devices likewise), even if the largest
 * samples meet in one batch. Above 8, a multiple of 8. 0: not even one fits.
 */
ONEPOT_API int onepot_device_batch_size(struct onepot_device *device,
                                        const struct onepot_archive *archive,
                                        struct onepot_error *error, uint64_t *ret_samples);

#ifdef __cplusplus
}
#endif

#endif
