//! One GPU: its figures, and the primary context on it.
#![allow(unsafe_code, reason = "calls the driver")]

use cuda::CUdevice_attribute as Attribute;
use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::nvml::{self, ManagedCard};
use super::{Libraries, ok, version_text};
use crate::counting::Reading;

/// Compute capability from which the matrix units know bf16.
const OLDEST: (i32, i32) = (8, 0);
/// The first version of CUDA whose kernels any driver of this generation loads.
const OLDEST_DRIVER: i32 = 12_000;

/// The device that an operator names with `cuda:n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaTarget {
    /// Index of the GPU, as CUDA counts.
    pub index: usize,
}

/// A GPU in figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// The name that the driver gives the GPU.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: i32,
    /// Clock of the multiprocessors in Hz.
    pub clock: f64,
    /// Peak bandwidth in bytes per second, from the memory's clock and width.
    pub bandwidth: f64,
    /// Bytes of the memory.
    pub memory: u64,
    /// The most shared memory that a block may ask for.
    pub shared: i32,
    /// Version of CUDA that the driver speaks, as 1000 · major + 10 · minor.
    pub driver: i32,
}

impl Card {
    /// The name of the architecture for the compiler.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        // Hopper's own instructions need this name.
        let own = if self.capability == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{own}")
    }
}

/// The primary context of a GPU, current on the threads that ask.
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "the driver's own words")]
pub(crate) struct Context {
    device: cuda::CUdevice,
    context: cuda::CUcontext,
    pub(crate) card: Card,
    /// The card as NVML knew it before this process took any memory, where it tells.
    managed: Option<ManagedCard>,
}

// SAFETY: a context may be used from any thread that makes it current; every use begins with `enter`.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a GPU with the least memory a context can take.
    ///
    /// # Errors
    ///
    /// When there is no driver, no such GPU, or the GPU is too old.
    pub(crate) fn open(target: CudaTarget) -> Result<Context, ExecError> {
        let managed = nvml::cards();
        Libraries::driver()?;
        set_environment();
        // SAFETY: plain calls with out-parameters that live here.
        unsafe {
            ok(cuda::cuInit(0), "starting the driver").map_err(|error| no_gpu(&error))?;
            let mut count = 0;
            ok(cuda::cuDeviceGetCount(&raw mut count), "counting GPUs")?;
            if target.index >= count as usize {
                return Err(ExecError::Unsupported(no_such_gpu(target.index, count)));
            }
            let mut device = 0;
            ok(cuda::cuDeviceGet(&raw mut device, target.index as i32), "naming a GPU")?;
            let card = describe(device)?;
            if let Some(why) = too_old(&card) {
                return Err(ExecError::Unsupported(why));
            }
            let managed = managed_at(device, managed)?;
            let mut context = std::ptr::null_mut();
            ok(cuda::cuDevicePrimaryCtxRetain(&raw mut context, device), "opening the GPU")?;
            let opened = Context { device, context, card, managed };
            opened.enter()?;
            // No kernel here has a stack; the default one costs 264 MB on an H200.
            let stack = cuda::CUlimit::CU_LIMIT_STACK_SIZE;
            ok(cuda::cuCtxSetLimit(stack, 0), "giving up the stack")?;
            Ok(opened)
        }
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<(), ExecError> {
        // SAFETY: the context was retained and is not released before `self` is dropped.
        unsafe { ok(cuda::cuCtxSetCurrent(self.context), "entering the GPU's context") }
    }

    /// The error of a library that did not open, which may be newer than the driver.
    pub(super) fn perhaps_older_than(&self, library: &str, error: &ExecError) -> ExecError {
        let version = version_text(self.card.driver as usize, 1000, 10);
        ExecError::Device(format!(
            "{error}; the driver speaks CUDA {version}: if {library} is newer, update the driver"
        ))
    }

    /// The GPU's number.
    pub(crate) fn device(&self) -> cuda::CUdevice {
        self.device
    }

    /// Sixteen bytes that no other GPU has, or no other part of one.
    pub(crate) fn identity(&self) -> Result<[u8; 16], ExecError> {
        let mut id = cuda::CUuuid { bytes: [0; 16] };
        // SAFETY: an out-parameter that lives here.
        unsafe { ok(cuda::cuDeviceGetUuid_v2(&raw mut id, self.device), "asking for the GPU's identity")? };
        Ok(id.bytes.map(|byte| byte as u8))
    }

    /// Free bytes now, by the driver.
    pub(crate) fn free(&self) -> Result<u64, ExecError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-parameters that live here.
        unsafe { ok(cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total), "asking for free memory")? };
        Ok(free as u64)
    }

    /// Driver's and NVML's counts of the card's memory now, of which `free` bytes are free, with the host's pinned bytes.
    pub(crate) fn reading(&self, free: u64, pinned: u64) -> Reading {
        Reading {
            total: self.card.memory,
            free,
            before: self.managed.as_ref().map(|card| card.free),
            shares: self.managed.as_ref().and_then(ManagedCard::shares),
            pinned,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`. A fault at this point has no one to be told.
        unsafe { cuda::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Variables that NCCL reads when a world begins, whatever the user has set. All connections are made then: a plan must
/// know their memory, and rank 0 runs before the others have the plan. No buffer is registered: while a schedule is
/// recorded, other memory stands for the arena.
const NCCL_ENVIRONMENT: [(&str, &str); 2] = [("NCCL_RUNTIME_CONNECT", "0"), ("NCCL_GRAPH_REGISTER", "0")];

/// Has libraries load a kernel when it is first used, and NCCL take its memory when ranks join.
fn set_environment() {
    for (name, value) in [("CUDA_MODULE_LOADING", "LAZY")].into_iter().chain(NCCL_ENVIRONMENT) {
        // SAFETY: the device is opened before any thread that reads the environment is started.
        unsafe { std::env::set_var(name, value) };
    }
}

/// # Safety
///
/// The driver was started.
unsafe fn describe(device: cuda::CUdevice) -> Result<Card, ExecError> {
    // SAFETY: the caller's promise; buffers are as long as said.
    unsafe {
        let mut name = [0u8; 128];
        ok(cuda::cuDeviceGetName(name.as_mut_ptr().cast(), 127, device), "naming a GPU")?;
        let mut memory = 0;
        ok(cuda::cuDeviceTotalMem_v2(&raw mut memory, device), "asking for the GPU's memory")?;
        let mut driver = 0;
        ok(cuda::cuDriverGetVersion(&raw mut driver), "asking for the driver's version")?;
        let ask = |attribute| attribute_of(device, attribute);
        let bits = ask(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        let memory_clock = ask(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        Ok(Card {
            name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
            capability: (
                ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            processors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock: 1e3 * f64::from(ask(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?),
            // Two transfers a cycle.
            bandwidth: 2e3 * f64::from(memory_clock) * f64::from(bits) / 8.0,
            memory: memory as u64,
            shared: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            driver,
        })
    }
}

fn attribute_of(device: cuda::CUdevice, attribute: Attribute) -> Result<i32, ExecError> {
    let mut number = 0;
    // SAFETY: an out-parameter that lives here.
    unsafe { ok(cuda::cuDeviceGetAttribute(&raw mut number, attribute, device), "asking about the GPU")? };
    Ok(number)
}

/// NVML's card at the same place on the bus.
fn managed_at(device: cuda::CUdevice, cards: Vec<ManagedCard>) -> Result<Option<ManagedCard>, ExecError> {
    let bus = [
        attribute_of(device, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)? as u32,
        attribute_of(device, Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)? as u32,
        attribute_of(device, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)? as u32,
    ];
    Ok(cards.into_iter().find(|card| card.bus == bus))
}

fn no_gpu(error: &ExecError) -> ExecError {
    ExecError::Unsupported(format!(
        "the NVIDIA driver found no GPU it can use ({error}); `nvidia-smi` shows what it sees"
    ))
}

fn no_such_gpu(index: usize, count: i32) -> String {
    match count {
        1 => format!("there is no GPU {index} here: the only one is cuda:0"),
        _ => format!("there is no GPU {index} here: they are cuda:0 to cuda:{}", count - 1),
    }
}

/// Reasons why a card or its driver cannot run our kernels.
fn too_old(card: &Card) -> Option<String> {
    let (major, minor) = card.capability;
    if card.capability < OLDEST {
        return Some(format!(
            "{} is too old: its compute capability is {major}.{minor}, and kernels want {}.{} (Ampere) or newer",
            card.name, OLDEST.0, OLDEST.1
        ));
    }
    let version = |number: i32| version_text(number as usize, 1000, 10);
    (card.driver < OLDEST_DRIVER).then(|| {
        format!(
            "the NVIDIA driver is too old: it speaks CUDA {}, and {} or newer is wanted; install driver 525 or newer",
            version(card.driver),
            version(OLDEST_DRIVER)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(capability: (i32, i32)) -> Card {
        Card {
            name: "NVIDIA X".into(),
            capability,
            processors: 1,
            clock: 1e9,
            bandwidth: 1e12,
            memory: 1 << 30,
            shared: 48 << 10,
            driver: 13000,
        }
    }

    #[test]
    fn architectures_have_the_compilers_names() {
        assert_eq!(card((8, 0)).architecture(), "sm_80");
        assert_eq!(card((9, 0)).architecture(), "sm_90a");
        assert_eq!(card((12, 0)).architecture(), "sm_120");
    }

    #[test]
    fn errors_name_the_card_and_the_way_out() {
        let why = |card: &Card| too_old(card).unwrap_or_default();
        let expected =
            "NVIDIA X is too old: its compute capability is 7.5, and kernels want 8.0 (Ampere) or newer";
        assert_eq!(why(&card((7, 5))), expected);
        let expected = "the NVIDIA driver is too old: it speaks CUDA 11.4, and 12.0 or newer is wanted; install driver 525 or newer";
        assert_eq!(why(&Card { driver: 11_040, ..card((8, 0)) }), expected);
        assert_eq!(too_old(&card((8, 0))), None);
        assert_eq!(no_such_gpu(3, 2), "there is no GPU 3 here: they are cuda:0 to cuda:1");
        assert_eq!(no_such_gpu(1, 1), "there is no GPU 1 here: the only one is cuda:0");
    }
}
