//! Every device there is, opened by its name: the one place that names their types.
//!
//! ```
//! use plimsoll_devices::{DeviceKind, Setup, open};
//!
//! let device = open("cpu".parse()?, &Setup { threads: 2, ..Setup::default() })?;
//! assert_eq!((device.name().as_str(), DeviceKind::Cpu.to_string().as_str()), ("cpu, 2 threads", "cpu"));
//! # Ok::<(), plimsoll_exec::ExecError>(())
//! ```

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use plimsoll_cuda::lower::Limits;
use plimsoll_cuda::{CudaDevice, CudaTarget, Libraries, Products};
pub use plimsoll_cuda::{FoundLibrary, Inspection, MeasuredRates, library_folders};
use plimsoll_exec::cases::{self, Case};
use plimsoll_exec::{CpuDevice, Device, ExecError, Instructions};
use plimsoll_plan::{Link, Scratch};

/// A device by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// This machine's processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU of this machine, by its index.
    Cuda(usize),
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DeviceKind::Cpu => formatter.write_str("cpu"),
            DeviceKind::Cuda(index) => write!(formatter, "cuda:{index}"),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = ExecError;

    fn from_str(name: &str) -> Result<DeviceKind, ExecError> {
        let index = match name.split_once(':') {
            None if name == "cpu" => return Ok(DeviceKind::Cpu),
            None if name == "cuda" => Some(0),
            Some(("cuda", index)) => index.parse().ok(),
            _ => None,
        };
        index.map(DeviceKind::Cuda).ok_or_else(|| {
            ExecError::Unsupported(format!(
                "no device is called `{name}`; known are cpu, cuda, and cuda:0, cuda:1, … for one of several GPUs"
            ))
        })
    }
}

/// The way a device is set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Threads of the processor, or one for each core when 0.
    pub threads: usize,
    /// Instructions of the processor; the fastest that it has when none are named.
    pub instructions: Option<Instructions>,
    /// A folder to offload to, and the rates of the way there and back.
    pub offload: Option<(PathBuf, Link)>,
    /// Files of a GPU.
    pub gpu: GpuFiles,
    /// Whether two runs agree to the bit, where a device has faster sums without that. The processor always does.
    pub deterministic: bool,
    /// Whether a GPU multiplies f32 operands in tf32.
    pub tf32: bool,
}

/// Files that a GPU needs beside its driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFiles {
    /// Folders where CUDA's libraries are looked for, before the system's own.
    pub libraries: Vec<PathBuf>,
    /// Folder that keeps compiled kernels.
    pub cache: PathBuf,
}

/// Opens a device.
///
/// # Errors
///
/// When it is not here, or something that it needs is missing.
pub fn open(kind: DeviceKind, setup: &Setup) -> Result<Box<dyn Device>, ExecError> {
    Ok(match kind {
        DeviceKind::Cpu => Box::new(processor(setup)?),
        DeviceKind::Cuda(index) => {
            if setup.offload.is_some() {
                return Err(ExecError::Unsupported("a GPU offloads nothing yet; leave --offload out".into()));
            }
            Box::new(CudaDevice::open(&card(index, setup))?)
        }
    })
}

/// Looks at a GPU by its index: figures, libraries, measured rates.
///
/// # Errors
///
/// When it cannot be opened, with the reason.
pub fn inspect(index: usize, setup: &Setup) -> Result<Inspection, ExecError> {
    plimsoll_cuda::inspect(&card(index, setup))
}

/// This machine's processor with a number of threads, or one for each core when 0.
///
/// # Errors
///
/// When the system refuses the threads.
pub fn cpu(threads: usize) -> Result<Box<dyn Device>, ExecError> {
    open(DeviceKind::Cpu, &Setup { threads, ..Setup::default() })
}

/// Threads that are meant by a number of threads: itself, or one for each core when it is 0.
pub fn threads(asked: usize) -> usize {
    if asked == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { asked }
}

/// The cases that a kind of device is judged by, the ways it is opened for them, and the amounts of scratch.
///
/// # Errors
///
/// As [`open`].
pub fn trial(kind: DeviceKind, setup: &Setup) -> Result<Trial, ExecError> {
    Ok(match kind {
        DeviceKind::Cpu => {
            // Every instruction path is a way of its own to compute.
            let paths = setup.instructions.map_or_else(Instructions::available, |path| vec![path]);
            let on = |path| processor(&Setup { instructions: Some(path), ..setup.clone() });
            let devices = paths.into_iter().map(|path| Ok(Box::new(on(path)?) as Box<dyn Device>));
            Trial {
                devices: devices.collect::<Result<_, ExecError>>()?,
                cases: all_cases(kind),
                scratches: vec![Scratch::Least, Scratch::Best],
            }
        }
        DeviceKind::Cuda(index) => {
            let library = card(index, setup);
            let deterministic = Limits { deterministic: true, ..Limits::default() };
            let ordered = plimsoll_cuda::CudaOptions { limits: deterministic, ..library.clone() };
            // Products of our own, and every head in chunks, are judged beside the library's.
            let limits = Limits { head_bytes: 0, head_rows: 40, ..deterministic };
            let own = plimsoll_cuda::CudaOptions { products: Products::Own, limits, ..library.clone() };
            Trial {
                devices: vec![
                    Box::new(CudaDevice::open(&library)?),
                    Box::new(CudaDevice::open(&ordered)?),
                    Box::new(CudaDevice::open(&own)?),
                ],
                cases: all_cases(kind),
                scratches: vec![Scratch::Best],
            }
        }
    })
}

/// A trial of seconds: the device as runs open it, and a few of its cases, each op with every element type.
///
/// # Errors
///
/// As [`open`].
pub fn quick_trial(kind: DeviceKind, setup: &Setup) -> Result<Trial, ExecError> {
    let (devices, cases) = (vec![open(kind, setup)?], cases::few(&all_cases(kind)));
    Ok(Trial { devices, cases, scratches: vec![Scratch::Best] })
}

fn all_cases(kind: DeviceKind) -> Vec<Case> {
    match kind {
        DeviceKind::Cpu => cases::all(),
        DeviceKind::Cuda(_) => [cases::all(), plimsoll_cuda::half_cases()].concat(),
    }
}

/// Devices of one kind and the cases they are judged by.
#[derive(Debug)]
pub struct Trial {
    /// The device, opened in each of its modes.
    pub devices: Vec<Box<dyn Device>>,
    /// The cases.
    pub cases: Vec<Case>,
    /// The amounts of scratch that each case is run with.
    pub scratches: Vec<Scratch>,
}

fn processor(setup: &Setup) -> Result<CpuDevice, ExecError> {
    let instructions = setup.instructions.unwrap_or_else(Instructions::fastest);
    let device = CpuDevice::of(setup.threads, instructions)?;
    Ok(match &setup.offload {
        Some((folder, link)) => device.with_offload(folder.clone(), *link),
        None => device,
    })
}

fn card(index: usize, setup: &Setup) -> plimsoll_cuda::CudaOptions {
    plimsoll_cuda::CudaOptions {
        target: CudaTarget { index },
        libraries: Libraries { folders: setup.gpu.libraries.clone() },
        cache: setup.gpu.cache.clone(),
        products: if setup.tf32 { Products::Tf32 } else { Products::Library },
        limits: Limits { deterministic: setup.deterministic, ..Limits::default() },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_quick_trial_is_one_way_to_compute_on_few_of_the_cases_and_shows_every_op() {
        let setup = Setup { threads: 1, ..Setup::default() };
        let [all, quick] = [trial, quick_trial].map(|of| of(DeviceKind::Cpu, &setup).unwrap());
        let ops = |trial: &Trial| trial.cases.iter().map(|case| case.op.name()).collect::<BTreeSet<_>>();
        assert_eq!(ops(&quick), ops(&all));
        assert_eq!((quick.devices.len(), quick.scratches.len()), (1, 1));
        assert!(8 * quick.cases.len() < all.cases.len());
    }

    #[test]
    fn devices_are_found_by_their_names_and_unknown_names_get_a_list() {
        for (name, kind) in
            [("cpu", DeviceKind::Cpu), ("cuda", DeviceKind::Cuda(0)), ("cuda:3", DeviceKind::Cuda(3))]
        {
            assert_eq!(name.parse::<DeviceKind>().unwrap(), kind);
        }
        for name in ["gpu", "cuda:", "cuda:x", "CPU", ""] {
            let why = name.parse::<DeviceKind>().unwrap_err().to_string();
            assert!(why.contains(&format!("`{name}`")) && why.contains("cuda:1"), "{why}");
        }
    }
}
