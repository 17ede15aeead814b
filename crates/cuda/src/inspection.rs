//! A GPU as `plimsoll doctor` shows it: figures of the card, the libraries that were found, and measured rates.

use std::fs;
use std::path::PathBuf;

use plimsoll_exec::{Device as _, Draw, ExecError, MemoryPool};
use plimsoll_graph::{DType, Init};
use plimsoll_plan::Space;

use crate::device::CudaDevice;
use crate::driver::{Libraries, Nccl, Nvrtc, version_text};
use crate::lower::{Addend, Place, Product, Signature};
use crate::options::CudaOptions;

/// Rows and columns of the products that are timed.
const SIZE: usize = 8192;
/// Bytes of one operand, and of one copy.
const OPERAND: u64 = 2 * (SIZE * SIZE) as u64;
/// Room for the scratch of a product.
const SCRATCH: u64 = 64 << 20;
const REPEATS: usize = 10;

/// A GPU and its libraries.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The name that the driver gives the GPU.
    pub name: String,
    /// The name of the GPU's architecture.
    pub architecture: String,
    /// Bytes of the GPU's memory.
    pub memory: u64,
    /// Bytes that were free, those of this process included.
    pub free: u64,
    /// Version of CUDA that the driver speaks.
    pub cuda: String,
    /// Libraries in use.
    pub libraries: Vec<FoundLibrary>,
    /// Notes on libraries that are missing or slow, each with the way out.
    pub notes: Vec<String>,
    /// Measured rates, or the reason why there are none, such as too little free memory.
    pub rates: Result<MeasuredRates, String>,
}

/// A library that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    /// The name by which people know the library.
    pub name: &'static str,
    /// The library's version, where it tells one.
    pub version: Option<String>,
    /// The file.
    pub path: Option<PathBuf>,
}

/// Rates by the GPU's own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRates {
    /// Floating-point operations per second of a large product in bf16.
    pub half_flops: f64,
    /// Bytes per second that a copy inside the card reads and writes.
    pub bytes: f64,
}

/// Opens a GPU and examines it.
///
/// # Errors
///
/// As [`CudaDevice::open`].
pub fn inspect(options: &CudaOptions) -> Result<Inspection, ExecError> {
    let mut device = CudaDevice::open(options)?;
    let card = device.card().clone();
    let free = match device.pool()? {
        MemoryPool::Own { free, taken, .. } => free + taken,
        MemoryPool::Process => 0,
    };
    let of_vendor = device.library_versions().into_iter();
    let of_vendor = of_vendor.map(|(name, version)| found(name, Some(version_text(version, 10_000, 100))));
    let compiler = compiler(&options.libraries);
    let notes = device.notes().into_iter().chain(compiler.clone().err()).collect();
    // Only ranks need NCCL, so nothing is said where it is missing.
    let exchanges = Nccl::open(&options.libraries).ok();
    let exchanges = exchanges.map(|nccl| found("NCCL", Some(nccl.version())));
    let libraries = compiler.ok().into_iter().chain(of_vendor).chain(exchanges).collect();
    let rates = measure(&mut device).map_err(|error| error.to_string());
    Ok(Inspection {
        name: card.name.clone(),
        architecture: card.architecture(),
        memory: card.memory,
        free,
        cuda: version_text(card.driver as usize, 1000, 10),
        libraries,
        notes,
        rates,
    })
}

/// The compiler, which a run opens only where kernels are not compiled yet, or why there is none.
fn compiler(libraries: &Libraries) -> Result<FoundLibrary, String> {
    let nvrtc = Nvrtc::open(libraries).map_err(|error| error.to_string())?;
    Ok(found("NVRTC", Some(nvrtc.version())))
}

fn measure(device: &mut CudaDevice) -> Result<MeasuredRates, ExecError> {
    device.reserve(Space { arena: 3 * OPERAND + SCRATCH, ..Space::default() })?;
    device.map()?;
    let places = [0, OPERAND, 2 * OPERAND].map(Place);
    for place in places {
        // Zeros would flatter the GPU, which multiplies them faster than other numbers.
        let numbers = Draw { init: &Init::Normal(1.0), name: "numbers", seed: 1 };
        device.draw_part(&numbers, (place.0, DType::Bf16), (0, SIZE * SIZE))?;
    }
    let signature = Signature {
        m: SIZE,
        n: SIZE,
        k: SIZE,
        batch: 1,
        transpose_a: false,
        transpose_b: true,
        dtypes: [DType::Bf16; 3],
        addend: Addend::None,
        alignment: 256,
    };
    let [a, b, c] = places;
    let product = Product { signature, a, b, c, addend: None, workspace: Place(3 * OPERAND) };
    let product = device.time_product(&product, REPEATS)?;
    let copy = device.time_copy((a, b), OPERAND, REPEATS)?;
    Ok(MeasuredRates {
        half_flops: 2.0 * (SIZE as f64).powi(3) / product,
        bytes: 2.0 * OPERAND as f64 / copy,
    })
}

/// A library by the beginning of its file's name among the files that this process has loaded.
fn found(name: &'static str, version: Option<String>) -> FoundLibrary {
    let file = match name {
        "NVRTC" => "libnvrtc.so",
        "cuDNN" => "libcudnn.so",
        "NCCL" => "libnccl.so",
        _ => "libcublasLt.so",
    };
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    FoundLibrary { name, version, path: loaded(&maps, file) }
}

/// The first file in a list of mappings whose name begins with `file`.
fn loaded(maps: &str, file: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let named = |path: &&str| path.rsplit('/').next().is_some_and(|name| name.starts_with(file));
    paths.into_iter().find(named).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_library_is_found_among_the_mappings_of_a_process() {
        let maps = "7f00-7f10 r--p 00000000 08:01 42      /usr/lib/libcudnn_graph.so.9\n\
                    7f10-7f20 r-xp 00000000 08:01 43      /opt/my libs/libcudnn.so.9\n\
                    7f20-7f30 rw-p 00000000 00:00 0\n";
        assert_eq!(loaded(maps, "libcudnn.so"), Some(PathBuf::from("/opt/my libs/libcudnn.so.9")));
        assert_eq!(loaded(maps, "libnvrtc.so"), None);
    }
}
