//! Drivers of NVIDIA that are missing, find no GPU or are too old: one sentence each with a way out. The drivers are
//! libraries of a few functions that the test compiles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use std::process::Command;

mod support;
use support::Home;

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
                 *number = attribute == 75 ? {capability} : 0; return 0; }}
             int cuDevicePrimaryCtxRetain(void** context, int device) {{ return 2; }}"
        )
    }

    /// The words of a run on the GPU of this driver.
    fn refuses(&self, device: &str) -> String {
        let home = Home::new();
        home.write("driver.c", self.source());
        let mut compiler = Command::new("cc");
        let build = "-w -shared -fPIC -o libcuda.so.1 driver.c".split(' ');
        assert!(compiler.current_dir(home.path("")).args(build).status().unwrap().success());
        let mut train =
            home.command(&format!("train --model tiny --data text.txt --max-steps 1 --device {device}"));
        let output = train.env("LD_LIBRARY_PATH", home.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

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
        assert_eq!(driver.refuses(device), expected);
    }
}
