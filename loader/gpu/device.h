/*
 * Devices inside the library: an opened device, and the conversion of images.
 */
#ifndef ONEPOT_LOADER_DEVICE_H
#define ONEPOT_LOADER_DEVICE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "device_type.h"

extern const struct device_type device_host;

struct onepot_device {
    const struct device_type *type;
    void *device;
    uint32_t index;
    char name[24]; /* "cuda:1" */
    pid_t pid;     /* that opened it, since no device survives a fork */
    _Atomic unsigned users;
    _Atomic uint64_t peak; /* bytes a second; 0: not measured */
};

/* Share the device. A forked child gets a new one, if that can be opened. */
int device_share(struct onepot_device *device, struct onepot_error *error,
                 struct onepot_device **ret_device);

/* -EINVAL with the reason in *error. */
int convert_check(const struct onepot_conversion *images, struct onepot_error *error);

/* Convert on the host. */
void convert_host(const struct onepot_conversion *images, uint64_t count, const uint8_t *from,
                  void *to);

#endif
