/*
 * Finds devices by their names; the public functions go through each device's table. Measures
 * the peak of a device's link. The table for CUDA comes from a shared object that is loaded
 * once. It stays loaded, because threads of the driver may run in it.
 *
 * The program links this file: nothing here needs archives, or what decodes their samples.
 */
#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "launcher.h"
#include "numbers.h"

#define CUDA_FILE "libonepot-cuda.so"

#define PEAK_BYTES (32u << 20)
#define PEAK_COPIES 8u
#define PEAK_ROUNDS 3u /* an idle link is slow at first */

/* ---- the shared object ---- */

/* The path of the file beside the one that this code is in. False: that is not known. */
static bool beside_us(char *path, size_t size)
{
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)&beside_us, &info) || !info.dli_fname)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash + 1 - info.dli_fname) : 0;
    return snprintf(path, size, "%.*s" CUDA_FILE, folder, info.dli_fname) < (int)size;
}

/* If the file exists, only its dlopen counts, and no other place is tried. */
static void *try_file(const char *path, bool *ret_there)
{
    *ret_there = access(path, F_OK) == 0;
    return *ret_there ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_object(void)
{
    const char *named = secure_getenv("ONEPOT_CUDA");
    char path[4096];
    bool there = false;
    if (named && *named)
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    void *object = beside_us(path, sizeof(path)) ? try_file(path, &there) : NULL;
    if (!object && !there)
        object = try_file(ONEPOT_LIBDIR "/" CUDA_FILE, &there);
    return object || there ? object : dlopen(CUDA_FILE, RTLD_NOW | RTLD_LOCAL);
}

/* The table of "cuda". The first call loads the shared object. */
static int device_load_cuda(struct onepot_error *error, const struct device_type **ret_type)
{
    static _Atomic(const struct device_type *) loaded;
    const struct device_type *type = atomic_load(&loaded);
    if (!type) {
        void *object = open_object();
        if (!object) {
            const char *why = dlerror();
            return error_set(error, -ENODEV,
                             "CUDA: %s; is onepot's part for CUDA installed? (ONEPOT_CUDA may "
                             "name it)",
                             why ? why : "no " CUDA_FILE);
        }
        device_entry *entry = (device_entry *)(uintptr_t)dlsym(object, DEVICE_ENTRY);
        type = entry ? entry(DEVICE_VERSION) : NULL;
        if (!type) {
            dlclose(object);
            return error_set(error, -ENODEV,
                             "CUDA: " CUDA_FILE " belongs to another version of onepot");
        }
        atomic_store(&loaded, type);
    }
    *ret_type = type;
    return 0;
}

/* ---- names ---- */

static int device_type_of(const char *kind, size_t len, struct onepot_error *error,
                          const struct device_type **ret_type)
{
    if (len == 4 && memcmp(kind, "host", 4) == 0) {
        *ret_type = &device_host;
        return 0;
    }
    if (len == 4 && memcmp(kind, "cuda", 4) == 0)
        return device_load_cuda(error, ret_type);
    return error_set(error, -EINVAL,
                     "no such device: \"%.*s\"; there are cuda, cuda:N and host", (int)len,
                     kind);
}

/* The number after the colon, or the local rank's. */
static int index_of(const char *number, uint32_t count, struct onepot_error *error,
                    uint32_t *ret_index)
{
    struct fault fault = {0};
    struct launcher l;
    const char *rest;
    uint64_t n;
    if (!number) {
        int r = launcher_find(&fault, &l);
        if (r < 0)
            return error_from_fault(error, r, &fault, "environment");
        *ret_index = l.local_rank < 0 ? 0 : (uint32_t)l.local_rank % count;
        return 0;
    }
    if (digits_parse(number, &n, &rest) < 0 || *rest)
        return error_set(error, -EINVAL, "\"%s\" is not a device number", number);
    if (n >= count)
        return error_set(error, -ENODEV, "there is no device %s; this process sees %u", number,
                         count);
    *ret_index = (uint32_t)n;
    return 0;
}

static int open_index(const struct device_type *type, uint32_t index,
                      struct onepot_error *error, struct onepot_device **ret_device)
{
    struct onepot_device *device = calloc(1, sizeof(*device));
    if (!device)
        return error_set(error, -ENOMEM, "no memory for a device");
    int r = type->open(index, error, &device->device);
    if (r < 0) {
        free(device);
        return r;
    }
    device->type = type;
    device->index = index;
    snprintf(device->name, sizeof(device->name), "%s:%u", type->kind, index);
    device->pid = getpid();
    device->users = 1;
    *ret_device = device;
    return 0;
}

int onepot_device_open(const char *name, struct onepot_error *error,
                       struct onepot_device **ret_device)
{
    const struct device_type *type = NULL;
    const char *colon = strchr(name, ':');
    uint32_t count, index = 0;
    int r = device_type_of(name, colon ? (size_t)(colon - name) : strlen(name), error, &type);
    if (r == 0)
        r = type->count(error, &count);
    if (r < 0)
        return r;
    if (count == 0)
        return error_set(error, -ENODEV, "this process sees no %s device", type->kind);
    r = index_of(colon ? colon + 1 : NULL, count, error, &index);
    return r < 0 ? r : open_index(type, index, error, ret_device);
}

int device_share(struct onepot_device *device, struct onepot_error *error,
                 struct onepot_device **ret_device)
{
    if (device->pid != getpid())
        return open_index(device->type, device->index, error, ret_device);
    atomic_fetch_add(&device->users, 1);
    *ret_device = device;
    return 0;
}

void onepot_device_close(struct onepot_device *device)
{
    if (!device || device->pid != getpid() || atomic_fetch_sub(&device->users, 1) > 1)
        return;
    device->type->close(device->device);
    free(device);
}

int onepot_device_count(const char *kind, struct onepot_error *error, uint32_t *ret_count)
{
    const struct device_type *type = NULL;
    int r = device_type_of(kind, strlen(kind), error, &type);
    return r < 0 ? r : type->count(error, ret_count);
}

/* ---- functions of the table, for the public interface ---- */

/* The handle may be used: it is this process's own. */
static int check_own(const struct onepot_device *device, struct onepot_error *error)
{
    if (device->pid == getpid())
        return 0;
    return error_set(error, -ENODEV,
                     "the device was opened before a fork; open it in the child");
}

int onepot_device_info(struct onepot_device *device, struct onepot_error *error,
                       struct onepot_device_info *ret_info)
{
    struct onepot_device_info info = {.index = device->index};
    int r = check_own(device, error);
    if (r == 0)
        r = device->type->info(device->device, error, &info);
    return r == 0 ? result_write(ret_info, &info, sizeof(info), error) : r;
}

int onepot_device_stream_new(struct onepot_device *device, struct onepot_error *error,
                             void **ret_stream)
{
    int r = check_own(device, error);
    return r < 0 ? r : device->type->stream_new(device->device, false, error, ret_stream);
}

void onepot_device_stream_free(struct onepot_device *device, void *stream)
{
    if (stream && device->pid == getpid())
        device->type->stream_free(device->device, stream);
}

int onepot_device_stream_wait(struct onepot_device *device, void *stream,
                              struct onepot_error *error)
{
    int r = check_own(device, error);
    return r < 0 ? r : device->type->stream_wait(device->device, stream, error);
}

int onepot_device_copy(struct onepot_device *device, void *stream, void *to, const void *from,
                       size_t bytes, struct onepot_error *error)
{
    int r = check_own(device, error);
    return r < 0 ? r : device->type->copy(device->device, stream, to, from, bytes, error);
}

int onepot_device_call(struct onepot_device *device, void *stream, void (*function)(void *ctx),
                       void *ctx, struct onepot_error *error)
{
    int r = check_own(device, error);
    return r < 0 ? r : device->type->call(device->device, stream, function, ctx, error);
}

int onepot_device_convert(struct onepot_device *device, void *stream,
                          const struct onepot_conversion *images, uint64_t count,
                          const uint8_t *from, void *to, struct onepot_error *error)
{
    struct onepot_conversion known = {0};
    int r = options_read(&known, sizeof(known), images, error);
    if (r == 0)
        r = check_own(device, error);
    if (r == 0)
        r = convert_check(&known, error);
    if (r < 0 || count == 0)
        return r;
    if (!device->type->convert)
        return error_set(error, -ENOTSUP,
                         "%s: this libonepot-cuda.so was built without nvcc: it has no kernels",
                         device->name);
    return device->type->convert(device->device, stream, &known, count, from, to, error);
}

/* ---- the peak ---- */

/* A stream, two events in it, and memory on both sides. */
struct bench {
    const struct device_type *type;
    void *device, *stream, *begun, *ended;
    void *host, *memory; /* page-locked; the device's */
};

static int bench_make(struct bench *b, const struct onepot_device *device,
                      struct onepot_error *error)
{
    *b = (struct bench){.type = device->type, .device = device->device};
    int r = b->type->stream_new(b->device, false, error, &b->stream);
    if (r == 0)
        r = b->type->event_new(b->device, true, error, &b->begun);
    if (r == 0)
        r = b->type->event_new(b->device, true, error, &b->ended);
    if (r == 0)
        r = b->type->allocate(b->device, DEVICE_MEMORY_LOCKED, PEAK_BYTES, error, &b->host);
    if (r == 0)
        r = b->type->allocate(b->device, DEVICE_MEMORY_OWN, PEAK_BYTES, error, &b->memory);
    if (r == 0)
        memset(b->host, 1, PEAK_BYTES); /* so that the pages exist */
    return r;
}

/* Frees also a bench that was made in part, after its queued copies, even if one failed. */
static void bench_free(struct bench *b)
{
    if (b->stream) {
        b->type->stream_wait(b->device, b->stream, NULL);
        b->type->stream_free(b->device, b->stream);
    }
    if (b->begun)
        b->type->event_free(b->device, b->begun);
    if (b->ended)
        b->type->event_free(b->device, b->ended);
    if (b->host)
        b->type->release(b->device, DEVICE_MEMORY_LOCKED, b->host, PEAK_BYTES);
    if (b->memory)
        b->type->release(b->device, DEVICE_MEMORY_OWN, b->memory, PEAK_BYTES);
}

/* One copy to warm up, then PEAK_COPIES between two events. */
static int run_copies(struct bench *b, struct onepot_error *error, uint64_t *ret_ns)
{
    int r = b->type->copy(b->device, b->stream, b->memory, b->host, PEAK_BYTES, error);
    if (r == 0)
        r = b->type->record(b->device, b->begun, b->stream, error);
    for (unsigned i = 0; i < PEAK_COPIES && r == 0; i++)
        r = b->type->copy(b->device, b->stream, b->memory, b->host, PEAK_BYTES, error);
    if (r == 0)
        r = b->type->record(b->device, b->ended, b->stream, error);
    if (r == 0)
        r = b->type->stream_wait(b->device, b->stream, error);
    return r < 0 ? r : b->type->elapsed(b->device, b->begun, b->ended, error, ret_ns);
}

int onepot_device_peak(struct onepot_device *device, struct onepot_error *error,
                       uint64_t *ret_bytes_per_second)
{
    uint64_t ns = UINT64_MAX, took = 0;
    *ret_bytes_per_second = atomic_load(&device->peak);
    if (*ret_bytes_per_second)
        return 0;
    struct bench b;
    int r = bench_make(&b, device, error);
    for (unsigned i = 0; i < PEAK_ROUNDS && r == 0; i++) {
        r = run_copies(&b, error, &took);
        ns = took < ns ? took : ns;
    }
    bench_free(&b);
    if (r < 0)
        return r;
    *ret_bytes_per_second =
        (uint64_t)((double)PEAK_BYTES * PEAK_COPIES * 1e9 / (double)(ns ? ns : 1));
    atomic_store(&device->peak, *ret_bytes_per_second);
    return 0;
}
