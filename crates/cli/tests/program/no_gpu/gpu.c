// A GPU on which every call succeeds and no kernel does anything. Memory of the card is memory of the host, which begins
// as zeros; so every loss is 0. Where LOST_WITH names a path, the GPU is lost from the moment the path exists: each call
// that uses it then fails, as after an illegal address. Other processes hold HELD bytes of it.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef HELD
#define HELD 0
#endif

typedef unsigned long bytes;
static bytes taken = HELD;
static int status(void) {
    const char* path = getenv("LOST_WITH");
    return path && access(path, F_OK) == 0 ? 700 : 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)1; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return status(); }
int cuCtxSetCurrent(void* context) { return 0; }
int cuCtxSetLimit(int limit, bytes size) { return 0; }
int cuCtxSynchronize(void) { return status(); }
int cuMemGetInfo_v2(bytes* free, bytes* total) { *total = 1ul << 34; *free = *total - taken; return status(); }

int cuStreamCreate(void** stream, unsigned flags) { *stream = (void*)1; return 0; }
int cuStreamSynchronize(void* stream) { return status(); }
int cuStreamDestroy_v2(void* stream) { return status(); }
int cuEventCreate(void** event, unsigned flags) { *event = (void*)1; return 0; }
int cuEventRecord(void* event, void* stream) { return status(); }
int cuEventQuery(void* event) { return status(); }
int cuEventSynchronize(void* event) { return status(); }
int cuEventDestroy_v2(void* event) { return status(); }
// The name that drivers before CUDA 12.8 have.
int cuEventElapsedTime(float* milliseconds, void* from, void* to) { *milliseconds = 1; return status(); }

int cuMemAlloc_v2(bytes* address, bytes size) { *address = (bytes)calloc(1, size); return status(); }
int cuMemFree_v2(bytes address) { free((void*)address); return status(); }
int cuMemHostAlloc(void** memory, bytes size, unsigned flags) { *memory = calloc(1, size); return 0; }
int cuMemFreeHost(void* memory) { free(memory); return status(); }
int cuMemsetD8_v2(bytes address, unsigned char byte, bytes size) { memset((void*)address, byte, size); return 0; }
// The marks of memory that was not written are left out, or losses would be NaN.
int cuMemsetD8Async(bytes address, unsigned char byte, bytes size, void* stream) { return status(); }
int cuMemcpyHtoDAsync_v2(bytes to, const void* from, bytes size, void* stream) {
    memcpy((void*)to, from, size); return status(); }
int cuMemcpyDtoHAsync_v2(void* to, bytes from, bytes size, void* stream) { memcpy(to, (void*)from, size); return status(); }
int cuMemcpyDtoDAsync_v2(bytes to, bytes from, bytes size, void* stream) { return status(); }

int cuMemGetAllocationGranularity(bytes* size, void* of, int which) { *size = 2 << 20; return 0; }
int cuMemAddressReserve(bytes* base, bytes size, bytes alignment, bytes wanted, bytes flags) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(0, size, PROT_READ | PROT_WRITE, how, -1, 0);
    *base = (bytes)memory;
    return memory == MAP_FAILED ? 2 : 0; }
int cuMemAddressFree(bytes base, bytes size) { munmap((void*)base, size); return status(); }
// A handle is the number of bytes behind it.
int cuMemCreate(bytes* handle, bytes size, void* of, bytes flags) { taken += *handle = size; return status(); }
int cuMemRelease(bytes handle) { taken -= handle; return status(); }
int cuMemMap(bytes address, bytes size, bytes offset, bytes handle, bytes flags) { return status(); }
int cuMemUnmap(bytes address, bytes size) { return status(); }
int cuMemSetAccess(bytes address, bytes size, void* access, bytes count) { return status(); }

int cuModuleLoadData(void** module, const void* code) { *module = (void*)1; return status(); }
int cuModuleUnload(void* module) { return status(); }
int cuModuleGetFunction(void** function, void* module, const char* name) { *function = (void*)1; return status(); }
int cuFuncSetAttribute(void* function, int attribute, int value) { return status(); }
int cuFuncLoad(void* function) { return status(); }
int cuLaunchKernel(void* function) { return status(); }
// Not supported, so that schedules are queued step by step.
int cuStreamBeginCapture_v2(void* stream, int mode) { return 801; }
