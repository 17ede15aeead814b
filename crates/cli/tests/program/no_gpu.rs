//! Drivers and compilers of NVIDIA that are missing, find no GPU or are too old: one sentence each with a way out. They
//! are libraries of a few functions that the test compiles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::support::Home;

/// Answers of a driver: the status of its start, its GPUs, the version of CUDA it speaks and the GPUs' capability.
struct Driver {
    start: i32,
    gpus: i32,
    version: i32,
    capability: i32,
}

const GOOD: Driver = Driver { start: 0, gpus: 1, version: 12_080, capability: 8 };

impl Driver {
    fn source(&self) -> String {
        let Driver { start, gpus, version, capability } = self;
        // Attribute 75 is the first part of the capability; all other figures are 0.
        format!(
            "int cuInit(unsigned flags) {{ return {start}; }}
             int cuDeviceGetCount(int* count) {{ *count = {gpus}; return 0; }}
             int cuDeviceGet(int* device, int index) {{ *device = index; return 0; }}
             int cuDeviceGetName(char* name, int length, int device) {{ name[0] = 'X'; name[1] = 0; return 0; }}
             int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {{ *bytes = 1ul << 34; return 0; }}
             int cuDriverGetVersion(int* version) {{ *version = {version}; return 0; }}
             int cuDeviceGetAttribute(int* number, int attribute, int device) {{
                 *number = attribute == 75 ? {capability} : 0; return 0; }}"
        )
    }

    /// The words of a run on the GPU of this driver, whose other functions are `more`; `compiler` is NVRTC, if there is one.
    fn refuses(&self, device: &str, more: &str, compiler: Option<&str>) -> String {
        let home = Home::new();
        build(&home, "libcuda.so.1", &(self.source() + more));
        if let Some(source) = compiler {
            build(&home, "libnvrtc.so.13", source);
        }
        let mut train =
            home.command(&format!("train --model tiny --data text.txt --max-steps 1 --device {device}"));
        // `PATH` leads to no Python whose packages might bring the libraries.
        let train = train.env("LD_LIBRARY_PATH", home.path("")).env("PATH", "").env_remove("VIRTUAL_ENV");
        let output = train.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn build(home: &Home, library: &str, source: &str) {
    home.write("library.c", source);
    let mut compiler = Command::new("cc");
    let build = ["-w", "-shared", "-fPIC", "-o", library, "library.c"];
    assert!(compiler.current_dir(home.path("")).args(build).status().unwrap().success());
}

/// A driver's functions as far as a context, which the GPU has no memory for.
const FULL: &str = "int cuDevicePrimaryCtxRetain(void** context, int device) { return 2; }";

/// A driver's functions as far as kernels are loaded: each succeeds, handles are any address but zero, and memory of the
/// host is real.
const OPENS: &str = "
    #include <stdlib.h>
    int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)1; return 0; }
    int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
    int cuCtxSetCurrent(void* context) { return 0; }
    int cuCtxSetLimit(int limit, unsigned long bytes) { return 0; }
    int cuCtxSynchronize(void) { return 0; }
    int cuStreamCreate(void** stream, unsigned flags) { *stream = (void*)1; return 0; }
    int cuStreamSynchronize(void* stream) { return 0; }
    int cuStreamDestroy_v2(void* stream) { return 0; }
    int cuEventCreate(void** event, unsigned flags) { *event = (void*)1; return 0; }
    int cuEventDestroy_v2(void* event) { return 0; }
    int cuMemAlloc_v2(unsigned long* address, unsigned long bytes) { *address = 4096; return 0; }
    int cuMemFree_v2(unsigned long address) { return 0; }
    int cuMemsetD8_v2(unsigned long address, unsigned char byte, unsigned long bytes) { return 0; }
    int cuMemHostAlloc(void** memory, unsigned long bytes, unsigned flags) { *memory = malloc(bytes); return 0; }
    int cuMemFreeHost(void* memory) { free(memory); return 0; }
    int cuMemGetAllocationGranularity(unsigned long* bytes, void* of, int which) { *bytes = 2 << 20; return 0; }
    int cuMemAddressReserve(unsigned long* base, unsigned long bytes, unsigned long a, unsigned long b, unsigned long c) {
        *base = 1ul << 40; return 0; }
    int cuMemAddressFree(unsigned long base, unsigned long bytes) { return 0; }
    int cuMemGetInfo_v2(unsigned long* free, unsigned long* total) { *free = *total = 1ul << 34; return 0; }";

/// A compiler that knows no architecture.
const OLD_COMPILER: &str = r#"
    const char LOG[] = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
    int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 1; return 0; }
    int nvrtcCreateProgram(void** program) { *program = (void*)1; return 0; }
    int nvrtcDestroyProgram(void** program) { return 0; }
    int nvrtcCompileProgram(void) { return 5; }
    int nvrtcGetCUBINSize(void) { return 1; }
    int nvrtcGetCUBIN(void) { return 1; }
    int nvrtcGetProgramLogSize(void* program, unsigned long* bytes) { *bytes = sizeof LOG; return 0; }
    int nvrtcGetProgramLog(void* program, char* to) {
        for (int at = 0; at < sizeof LOG; at++) to[at] = LOG[at];
        return 0; }
    const char* nvrtcGetErrorString(int status) { return "invalid option"; }"#;

#[test]
fn a_driver_that_cannot_be_used_is_refused_in_one_sentence_with_a_way_out() {
    for (driver, device, expected) in [
        (
            Driver { start: 100, ..GOOD },
            "cuda",
            "error: the NVIDIA driver found no GPU it can use (the GPU failed: starting the driver: no device); `nvidia-smi` shows what it sees\n",
        ),
        (Driver { gpus: 2, ..GOOD }, "cuda:2", "error: there is no GPU 2 here: they are cuda:0 to cuda:1\n"),
        (
            Driver { version: 11_040, ..GOOD },
            "cuda",
            "error: the NVIDIA driver is too old: it speaks CUDA 11.4, and 12.0 or newer is wanted; install driver 525 or newer\n",
        ),
        (
            Driver { capability: 7, ..GOOD },
            "cuda",
            "error: X is too old: its compute capability is 7.0, and kernels want 8.0 (Ampere) or newer\n",
        ),
        (GOOD, "cuda", "error: the GPU has no memory left: opening the GPU failed\n"),
    ] {
        assert_eq!(driver.refuses(device, FULL, None), expected);
    }
}

#[test]
fn a_compiler_that_cannot_be_used_is_refused_in_one_sentence_with_a_way_out() {
    // A toolkit in this folder would be found as well, and used.
    if std::path::Path::new("/usr/local/cuda/lib64").exists() {
        return;
    }
    for (compiler, expected) in [
        (
            Some(""),
            "error: libnvrtc.so.13 cannot be used as NVRTC: it has no function nvrtcVersion; to install one that works: pip \
             install --upgrade nvidia-cuda-nvrtc\n",
        ),
        (
            Some(OLD_COMPILER),
            "error: NVRTC 12.1 is too old for this GPU, whose architecture sm_80 it does not know; a newer NVRTC is wanted: pip \
             install --upgrade nvidia-cuda-nvrtc\n",
        ),
        (
            None,
            "error: NVRTC is missing: libnvrtc.so was looked for on the loader's path; to install it: pip install \
             nvidia-cuda-nvrtc\n",
        ),
    ] {
        assert_eq!(GOOD.refuses("cuda", OPENS, compiler), expected);
    }
}
