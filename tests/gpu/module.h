/* What the part for CUDA has otherwise in the tests: where it finds the version of the kernel's
 * part, and how much it locks at once. */
#ifndef ONEPOT_TESTS_CUDA_MODULE_H
#define ONEPOT_TESTS_CUDA_MODULE_H

const char *played_module(void);
#define GPU_MODULE_VERSION played_module()
#define LOCK_BYTES ((size_t)1 << 20)

#endif
