//! Drivers and libraries of NVIDIA that are missing, find no GPU or are of a wrong version, and a GPU that is lost in the
//! middle of a run: one sentence each, most with a way out. They are libraries of a few functions that the test compiles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use std::path::Path;
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
        // Attributes 75 and 76 are the parts of the capability; all other figures, which give rates, are any number but 0.
        format!(
            "int cuInit(unsigned flags) {{ return {start}; }}
             int cuDeviceGetCount(int* count) {{ *count = {gpus}; return 0; }}
             int cuDeviceGet(int* device, int index) {{ *device = index; return 0; }}
             int cuDeviceGetName(char* name, int length, int device) {{ name[0] = 'X'; name[1] = 0; return 0; }}
             int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {{ *bytes = 1ul << 34; return 0; }}
             int cuDriverGetVersion(int* version) {{ *version = {version}; return 0; }}
             int cuDeviceGetAttribute(int* number, int attribute, int device) {{
                 *number = attribute == 75 ? {capability} : attribute == 76 ? 0 : 1000; return 0; }}"
        )
    }

    /// The words of a run on the GPU of this driver, whose other functions are `more`, with these libraries by their files.
    fn refuses(&self, device: &str, more: &str, libraries: &[(&str, &str)]) -> String {
        let home = self.home(more, libraries);
        let train = format!("train --model tiny --data text.txt --max-steps 1 --device {device}");
        let output = found(&home, &train).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A folder with the driver and the libraries.
    fn home(&self, more: &str, libraries: &[(&str, &str)]) -> Home {
        let home = Home::new();
        build(&home, "libcuda.so.1", &(self.source() + more));
        for (file, source) in libraries {
            build(&home, file, source);
        }
        home
    }
}

/// The program, which finds libraries in its home alone: `PATH` leads to no Python whose packages might bring them.
fn found(home: &Home, arguments: &str) -> Command {
    let mut command = home.command(arguments);
    command.env("LD_LIBRARY_PATH", home.path("")).env("PATH", "").env_remove("VIRTUAL_ENV");
    command
}

/// Whether a toolkit is in the folder where its libraries are found as well, and used.
fn toolkit() -> bool {
    Path::new("/usr/local/cuda/lib64").exists()
}

fn build(home: &Home, library: &str, source: &str) {
    home.write("library.c", source);
    let mut compiler = Command::new("cc");
    let build = ["-w", "-shared", "-fPIC", "-o", library, "library.c"];
    assert!(compiler.current_dir(home.path("")).args(build).status().unwrap().success());
}

/// A driver's functions as far as a context, which the GPU has no memory for.
const FULL: &str = "int cuDevicePrimaryCtxRetain(void** context, int device) { return 2; }";

/// All functions of a driver on a GPU that computes nothing.
const OPENS: &str = include_str!("no_gpu/gpu.c");
const COMPILER: (&str, &str) = ("libnvrtc.so.13", include_str!("no_gpu/compiler.c"));
const PRODUCTS: &str = include_str!("no_gpu/products.c");

/// cuBLASLt, which opens or fails to.
fn products(status: i32) -> (&'static str, String) {
    ("libcublasLt.so.13", format!("#define OPENS {status}\n{PRODUCTS}"))
}

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
        (
            GOOD,
            "cuda",
            "error: the GPU has no memory left: opening the GPU failed; end what else uses the GPU (nvidia-smi lists it)\n",
        ),
    ] {
        assert_eq!(driver.refuses(device, FULL, &[]), expected);
    }
}

#[test]
fn a_compiler_that_cannot_be_used_is_refused_in_one_sentence_with_a_way_out() {
    if toolkit() {
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
        let compiler = compiler.map(|source| ("libnvrtc.so.13", source));
        assert_eq!(GOOD.refuses("cuda", OPENS, compiler.as_slice()), expected);
    }
}

#[test]
fn a_machine_without_a_driver_says_what_is_missing_and_that_the_processor_works() {
    if Path::new("/proc/driver/nvidia").exists() {
        return;
    }
    let home = Home::new();
    for command in
        ["train --model tiny --data text.txt", "check", "bench step --model tiny", "plan --model tiny"]
    {
        let output = found(&home, &format!("{command} --device cuda:0")).output().unwrap();
        let expected = "error: there is no NVIDIA driver here (libcuda.so.1 is missing); install the driver of your GPU, or leave out \
                        --device to run on the CPU\n";
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected, "{command}");
        assert_eq!(output.status.code(), Some(1), "{command}");
    }
}

#[test]
fn libraries_of_a_wrong_version_are_refused_in_one_sentence_with_a_way_out() {
    if toolkit() {
        return;
    }
    let old = [
        "cudnnCreate",
        "cudnnDestroy",
        "cudnnSetStream",
        "cudnnGetLastErrorString",
        "cudnnBackendCreateDescriptor",
        "cudnnBackendDestroyDescriptor",
        "cudnnBackendSetAttribute",
        "cudnnBackendGetAttribute",
        "cudnnBackendFinalize",
        "cudnnBackendExecute",
    ];
    let old = old.map(|name| format!("int {name}(void) {{ return 0; }}\n")).concat();
    let old = old + "unsigned long cudnnGetVersion(void) { return 91002; }";
    let [good, newer] = [0, 1].map(products);
    for (libraries, expected) in [
        (
            vec![COMPILER],
            "error: cuBLASLt is missing: libcublasLt.so was looked for on the loader's path; to install it: pip install nvidia-cublas\n",
        ),
        (
            vec![COMPILER, (newer.0, newer.1.as_str())],
            "error: cuBLASLt failed: opening: CUBLAS_STATUS_NOT_INITIALIZED; the driver speaks CUDA 12.8: if cuBLASLt is newer, \
             update the driver\n",
        ),
        (
            vec![COMPILER, (good.0, good.1.as_str()), ("libcudnn.so.9", old.as_str())],
            "error: libcudnn.so.9 cannot be used as cuDNN: it is version 9.10.2, and 9.14.0 or newer is wanted; to install one \
             that works: pip install --upgrade nvidia-cudnn-cu13, or uninstall it, and attention runs in slower kernels \
             that need no library\n",
        ),
    ] {
        assert_eq!(GOOD.refuses("cuda", OPENS, &libraries), expected);
    }
}

#[test]
fn a_driver_from_before_cuda_12_8_tells_the_time_by_the_function_that_it_has() {
    if toolkit() {
        return;
    }
    let products = products(0);
    let home = Driver { version: 12_000, ..GOOD }.home(OPENS, &[COMPILER, (products.0, products.1.as_str())]);
    let output = found(&home, "bench step --model tiny --device cuda --memory 1GiB").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("a step takes"));
}

#[test]
fn memory_that_another_process_holds_is_not_given_out() {
    if toolkit() {
        return;
    }
    let held = "\n#define HELD (10ul << 30)\n";
    let (driver, nvml) = (format!("{held}{OPENS}"), format!("{held}{}", include_str!("no_gpu/nvml.c")));
    let products = products(0);
    let libraries = [COMPILER, (products.0, products.1.as_str()), ("libnvidia-ml.so.1", nvml.as_str())];
    let home = GOOD.home(&driver, &libraries);
    let train = "train --model tiny --data text.txt --seq-len 16 --global-batch 4 --max-steps 1 --report-to none --device cuda";
    let refused = found(&home, &format!("{train} --memory 12GiB")).output().unwrap();
    let expected = "error: --memory 12.0 GiB is more than the 6.00 GiB that are free of the GPU's 16.0 GiB; state less, or end what \
                    else runs there\n";
    assert_eq!(String::from_utf8(refused.stderr).unwrap(), expected);
    let free = found(&home, train).output().unwrap();
    let said = String::from_utf8(free.stderr).unwrap();
    assert!(free.status.success() && said.contains("budget 5."), "a margin of the 6 GiB stays free: {said}");
}

#[test]
fn a_gpu_that_is_lost_in_mid_run_ends_it_with_one_error_and_the_last_checkpoint_goes_on() {
    if toolkit() {
        return;
    }
    let products = products(0);
    let home = GOOD.home(OPENS, &[COMPILER, (products.0, products.1.as_str())]);
    let train = "train --model tiny --data text.txt --seq-len 16 --global-batch 4 --max-steps 12 --save-steps 2 --memory 1GiB \
                 --report-to none --output-dir out";
    let lost = found(&home, &format!("{train} --device cuda"))
        .env("LOST_WITH", "out/checkpoint-4")
        .output()
        .unwrap();
    let said = String::from_utf8(lost.stderr).unwrap();
    assert_eq!(lost.status.code(), Some(1), "{said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors, ["error: the GPU failed: copying to the GPU: illegal address"], "{said}");
    assert!(!said.contains("panicked"), "{said}");
    // The checkpoint is whole: the processor goes on from it.
    let (_, steps) = home.done(&format!("{train} --resume latest"));
    assert!(steps.contains("step     5 of 12") && !steps.contains("step     4 of 12"), "{steps}");
    assert!(home.path("out/checkpoint-12").exists());
}
