/* The driver's calls of memory and streams: the played runtime has them (calls.c). */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void find(const char *name, void *ret_function)
{
    const char *path = getenv("ONEPOT_CUDA");
    void *object = path ? dlopen(path, RTLD_NOW) : NULL;
    void *function = object ? dlsym(object, name) : NULL;
    if (!function)
        abort();
    memcpy(ret_function, &function, sizeof(function));
}

#define CALL(name, parameters, arguments)                                                      \
    CUresult name parameters                                                                   \
    {                                                                                          \
        CUresult(*function) parameters;                                                        \
        find("played_" #name, &function);                                                      \
        return function arguments;                                                             \
    }

CALL(cuMemGetInfo_v2, (size_t * ret_free, size_t *ret_total), (ret_free, ret_total))
CALL(cuMemAlloc_v2, (CUdeviceptr * ret_memory, size_t bytes), (ret_memory, bytes))
CALL(cuMemFree_v2, (CUdeviceptr memory), (memory))
CALL(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags), (memory, bytes, flags))
CALL(cuMemHostUnregister, (void *memory), (memory))
CALL(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
CALL(cuStreamCreate, (CUstream * ret_stream, unsigned flags), (ret_stream, flags))
CALL(cuStreamDestroy_v2, (CUstream stream), (stream))
CALL(cuStreamSynchronize, (CUstream stream), (stream))
CALL(cuLaunchHostFunc, (CUstream stream, CUhostFn called, void *ctx), (stream, called, ctx))
CALL(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CALL(cuStreamEndCapture, (CUstream stream, CUgraph *ret_graph), (stream, ret_graph))
CALL(cuGraphDestroy, (CUgraph graph), (graph))
