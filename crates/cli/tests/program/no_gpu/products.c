// cuBLASLt, which multiplies nothing and opens with the status OPENS.
typedef unsigned long bytes;
bytes cublasLtGetVersion(void) { return 120000; }
const char* cublasLtGetStatusName(int status) { return "CUBLAS_STATUS_NOT_INITIALIZED"; }
int cublasLtCreate(void** handle) { *handle = (void*)1; return OPENS; }
int cublasLtDestroy(void* handle) { return 0; }
int cublasLtMatmulDescCreate(void** product, int arithmetic, int scale) { *product = (void*)1; return 0; }
int cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, bytes size) { return 0; }
int cublasLtMatrixLayoutCreate(void** layout, int kind, bytes rows, bytes columns, long stride) {
    *layout = (void*)1; return 0; }
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, bytes size) { return 0; }
int cublasLtMatmulPreferenceCreate(void** preferences) { *preferences = (void*)1; return 0; }
int cublasLtMatmulPreferenceDestroy(void* preferences) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void* preferences, int attribute, const void* value, bytes size) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d, void* preferences,
                                   int asked, void* found, int* count) { *count = 1; return 0; }
int cublasLtMatmul(void) { return 0; }
