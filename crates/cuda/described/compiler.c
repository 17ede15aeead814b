// A compiler of CUDA that compiles nothing, for plans that are made without a GPU.
//
// An engine of cuDNN compiles its kernels when its plan is finished, half a second for each plan. Its scratch is known
// without them, and the driver beside this file takes any code. So every program compiles at once, to a few bytes.

#include <stddef.h>
#include <string.h>

enum { BYTES = 64 };

static char anything;

int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

int nvrtcCreateProgram(void** program) {
    *program = &anything;
    return 0;
}

int nvrtcCompileProgram(void) {
    return 0;
}

// The same under a name that cuDNN uses.
int __nvrtcCPEx(void) {
    return 0;
}

int nvrtcDestroyProgram(void** program) {
    *program = NULL;
    return 0;
}

const char* nvrtcGetErrorString(void) {
    return "";
}

static int size(void* program, size_t* bytes) {
    (void)program;
    *bytes = BYTES;
    return 0;
}

static int fill(void* program, char* bytes) {
    (void)program;
    memset(bytes, 0, BYTES);
    return 0;
}

int nvrtcGetCUBINSize(void* program, size_t* bytes) { return size(program, bytes); }
int nvrtcGetPTXSize(void* program, size_t* bytes) { return size(program, bytes); }
int nvrtcGetProgramLogSize(void* program, size_t* bytes) { return size(program, bytes); }
int nvrtcGetCUBIN(void* program, char* bytes) { return fill(program, bytes); }
int nvrtcGetPTX(void* program, char* bytes) { return fill(program, bytes); }
int nvrtcGetProgramLog(void* program, char* bytes) { return fill(program, bytes); }
