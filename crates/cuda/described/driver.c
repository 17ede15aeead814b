// A driver of CUDA that does nothing, for plans that are made without a GPU.
//
// cuDNN opens libcuda.so.1 before it looks at a graph, and names no engine where one of its functions is missing. While it plans,
// it asks for the version and hands over compiled code; it runs nothing. So every function succeeds, the version is 13.0, and
// a handle is any address but zero. The real functions have operands, which these leave alone.

static char anything;

#define SUCCEEDS(name) \
    int name(void) { return 0; }

// Writes a handle to its first operand.
#define HANDS_OUT(name)       \
    int name(void** handle) { \
        *handle = &anything;  \
        return 0;             \
    }

int cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}

SUCCEEDS(cuGetErrorName)
SUCCEEDS(cuGetErrorString)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuDeviceGetCount)
SUCCEEDS(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuStreamGetCtx)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLibraryLoadFromFile)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLaunchCooperativeKernel)

HANDS_OUT(cuLibraryLoadData)
HANDS_OUT(cuLibraryGetKernel)
