/*
 * onepot info --gpu: the GPUs that this process sees.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cli.h"
#include "commands.h"
#include "onepot_device.h"

/* Print a GPU's line; return its free memory. */
static int print_gpu(uint32_t index, struct onepot_error *error, uint64_t *ret_free)
{
    struct onepot_device_info gpu = {.size = sizeof(gpu)};
    struct onepot_device *device = NULL;
    char name[32];
    snprintf(name, sizeof(name), "cuda:%" PRIu32, index);
    int r = onepot_device_open(name, error, &device);
    if (r < 0)
        return r;
    r = onepot_device_info(device, error, &gpu);
    onepot_device_close(device);
    if (r < 0)
        return r;
    printf("%s: %s, %s free of %s", name, gpu.name, cli_bytes(gpu.free_bytes),
           cli_bytes(gpu.total_bytes));
    if (gpu.numa_node >= 0)
        printf(", NUMA node %" PRId32, gpu.numa_node);
    putchar('\n');
    *ret_free = gpu.free_bytes;
    return 0;
}

uint64_t command_info_gpus(void)
{
    struct onepot_error error = {0};
    uint64_t least = UINT64_MAX, free_bytes = 0;
    uint32_t count = 0;
    int r = onepot_device_count("cuda", &error, &count);
    for (uint32_t i = 0; i < count && r == 0; i++) {
        r = print_gpu(i, &error, &free_bytes);
        if (r == 0 && free_bytes < least)
            least = free_bytes;
    }
    if (r < 0)
        printf("no GPU: %s\n", error.text);
    else if (count == 0)
        puts("no GPU: this process sees none");
    return r < 0 || count == 0 ? 0 : least / ONEPOT_DEVICE_BATCHES;
}
