/*
 * Memory and streams by the driver's calls, for programs that have no runtime
 * (onepot.verify_gpu). They are the runtime's; the driver finds them here (driver_calls.c).
 */
#include <cuda.h>

#include "played.h"
#include "runtime.h"
#include "streams.h"

#define FOR_DRIVER __attribute__((visibility("default"))) CUresult

static CUresult result_of(cudaError_t e)
{
    return (CUresult)e; /* most have the same number */
}

FOR_DRIVER played_cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total);
FOR_DRIVER played_cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
    return result_of(cudaMemGetInfo(ret_free, ret_total));
}

FOR_DRIVER played_cuMemAlloc_v2(CUdeviceptr *ret_memory, size_t bytes);
FOR_DRIVER played_cuMemAlloc_v2(CUdeviceptr *ret_memory, size_t bytes)
{
    void *memory = NULL;
    cudaError_t e = cudaMalloc(&memory, bytes);
    *ret_memory = (CUdeviceptr)memory;
    return result_of(e);
}

FOR_DRIVER played_cuMemFree_v2(CUdeviceptr memory);
FOR_DRIVER played_cuMemFree_v2(CUdeviceptr memory)
{
    return result_of(cudaFree((void *)memory));
}

FOR_DRIVER played_cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
FOR_DRIVER played_cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    return result_of(cudaHostRegister(memory, bytes, flags));
}

FOR_DRIVER played_cuMemHostUnregister(void *memory);
FOR_DRIVER played_cuMemHostUnregister(void *memory)
{
    return result_of(cudaHostUnregister(memory));
}

FOR_DRIVER played_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                CUstream stream);
FOR_DRIVER played_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return result_of(
        cudaMemcpyAsync((void *)to, (void *)from, bytes, cudaMemcpyDefault, stream));
}

FOR_DRIVER played_cuStreamCreate(CUstream *ret_stream, unsigned flags);
FOR_DRIVER played_cuStreamCreate(CUstream *ret_stream, unsigned flags)
{
    return result_of(cudaStreamCreateWithPriority(ret_stream, flags, 0));
}

FOR_DRIVER played_cuStreamDestroy_v2(CUstream stream);
FOR_DRIVER played_cuStreamDestroy_v2(CUstream stream)
{
    return result_of(cudaStreamDestroy(stream));
}

FOR_DRIVER played_cuLaunchHostFunc(CUstream stream, CUhostFn function, void *ctx);
FOR_DRIVER played_cuLaunchHostFunc(CUstream stream, CUhostFn function, void *ctx)
{
    return result_of(cudaLaunchHostFunc(stream, function, ctx));
}

FOR_DRIVER played_cuStreamSynchronize(CUstream stream);
FOR_DRIVER played_cuStreamSynchronize(CUstream stream)
{
    cudaEvent_t event;
    cudaError_t e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (e != cudaSuccess)
        return result_of(e);
    e = cudaEventRecord(event, stream);
    if (e == cudaSuccess)
        e = cudaEventSynchronize(event);
    cudaEventDestroy(event);
    return result_of(e);
}

FOR_DRIVER played_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
FOR_DRIVER played_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        return CUDA_ERROR_INVALID_VALUE;
    played_begin_capture(stream);
    return CUDA_SUCCESS;
}

FOR_DRIVER played_cuStreamEndCapture(CUstream stream, CUgraph *ret_graph);
FOR_DRIVER played_cuStreamEndCapture(CUstream stream, CUgraph *ret_graph)
{
    *ret_graph = NULL;
    return played_end_capture(stream) < 0 ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                          : CUDA_SUCCESS;
}

FOR_DRIVER played_cuGraphDestroy(CUgraph graph);
FOR_DRIVER played_cuGraphDestroy(CUgraph graph)
{
    (void)graph;
    return CUDA_SUCCESS;
}
