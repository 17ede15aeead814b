// NVRTC, whose code is four bytes.
int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 1; return 0; }
int nvrtcCreateProgram(void** program) { *program = (void*)1; return 0; }
int nvrtcDestroyProgram(void** program) { return 0; }
int nvrtcCompileProgram(void) { return 0; }
int nvrtcGetCUBINSize(void* program, unsigned long* bytes) { *bytes = 4; return 0; }
int nvrtcGetCUBIN(void* program, char* to) { for (int at = 0; at < 4; at++) to[at] = 0; return 0; }
int nvrtcGetProgramLogSize(void* program, unsigned long* bytes) { *bytes = 1; return 0; }
int nvrtcGetProgramLog(void* program, char* to) { *to = 0; return 0; }
const char* nvrtcGetErrorString(int status) { return "invalid option"; }
