/* Shared by the files of the benchmark. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "device.h"
#include "onepot_device.h"

struct job {
    struct onepot_device *device;
    struct onepot_archive *archive;
    struct onepot_loader *loader;
    void *stream;
    uint64_t batch, bytes; /* samples of a batch; bytes of an epoch */
    uint32_t threads;
    double peak, bound; /* bytes a second: of copies to the device, of copies by the threads */
};

extern struct onepot_error error;
void check(int r);
double now(void);
void make_loader(struct job *j, enum onepot_gather gather);

/* Bytes a second that the job's threads copy from the archive to memory of the host. */
double copy_bound(const struct job *j);

/* Something for the device to compute, again and again. */
struct work;
struct work *work_new(struct job *j);
void work_free(struct job *j, struct work *w);
double work_seconds(struct job *j, struct work *w); /* of one */
void work_queue(struct job *j, struct work *w, unsigned times);

#endif
