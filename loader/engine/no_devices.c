/*
 * A library without devices (-Dgpu=disabled): none can be opened, so the functions that take
 * one are never called with any, and all batches lie in host memory.
 */
#include <errno.h>
#include <string.h>

#include "accelerator.h"
#include "error.h"
#include "onepot_device.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

const struct accelerator *const loader_accelerator = NULL;

/* A function that needs a device. */
#define NO_DEVICE(name, ...)                                                                   \
    int name(__VA_ARGS__)                                                                      \
    {                                                                                          \
        return error_set(error, -ENODEV,                                                       \
                         "this onepot was built without devices (-Dgpu=disabled)");            \
    }

NO_DEVICE(onepot_device_open, const char *name, struct onepot_error *error,
          struct onepot_device **ret_device)
NO_DEVICE(onepot_device_info, struct onepot_device *device, struct onepot_error *error,
          struct onepot_device_info *ret_info)
NO_DEVICE(onepot_device_count, const char *kind, struct onepot_error *error,
          uint32_t *ret_count)
NO_DEVICE(onepot_device_stream_new, struct onepot_device *device, struct onepot_error *error,
          void **ret_stream)
NO_DEVICE(onepot_device_stream_wait, struct onepot_device *device, void *stream,
          struct onepot_error *error)
NO_DEVICE(onepot_device_copy, struct onepot_device *device, void *stream, void *to,
          const void *from, size_t bytes, struct onepot_error *error)
NO_DEVICE(onepot_device_call, struct onepot_device *device, void *stream,
          void (*function)(void *ctx), void *ctx, struct onepot_error *error)
NO_DEVICE(onepot_device_convert, struct onepot_device *device, void *stream,
          const struct onepot_conversion *conversion, uint64_t count, const uint8_t *from,
          void *to, struct onepot_error *error)
NO_DEVICE(onepot_device_peak, struct onepot_device *device, struct onepot_error *error,
          uint64_t *ret_bytes_per_second)
NO_DEVICE(onepot_device_batch_size, struct onepot_device *device,
          const struct onepot_archive *archive, struct onepot_error *error,
          uint64_t *ret_samples)

void onepot_device_close(struct onepot_device *device) {}
void onepot_device_stream_free(struct onepot_device *device, void *stream) {}

/* ---- batches ---- */

int onepot_batch_on_device(const struct onepot_batch *batch,
                           struct onepot_device_batch *ret_where)
{
    return -ENOTSUP;
}

int onepot_batch_use(const struct onepot_batch *batch, void *stream, struct onepot_error *error)
{
    return 0;
}

int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                      struct onepot_error *error)
{
    return 0;
}

int onepot_batch_copy(const struct onepot_batch *batch, void *stream, void *to, size_t room,
                      const void *from, size_t bytes, struct onepot_error *error)
{
    if (bytes > room)
        return error_set(error, -EINVAL,
                         "there is room for %zu bytes, and %zu are to be copied", room, bytes);
    memcpy(to, from, bytes);
    memset((uint8_t *)to + bytes, 0, room - bytes);
    return 0;
}

int onepot_batch_duplicate(const struct onepot_batch *batch, bool on_host, void *stream,
                           const void *from, size_t bytes, struct onepot_error *error,
                           struct onepot_duplicate **ret_duplicate, void **ret_memory)
{
    return error_set(error, -ENOTSUP, "the batch is in host memory");
}

void onepot_duplicate_free(struct onepot_duplicate *duplicate) {}

int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error)
{
    return 0;
}
