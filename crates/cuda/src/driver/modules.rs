//! Kernels in the GPU, and launches bound to addresses.
#![allow(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cuda::CUfunction_attribute as Attribute;
use cudarc::driver::sys as cuda;
use plimsoll_exec::ExecError;

use super::{Compiled, Context, Stream, ok};
use crate::lower::{Check, Launch, Place};

/// Shared memory that a kernel may use without asking.
const PLAIN_SHARED: u32 = 48 << 10;
/// From this version on the driver loads a kernel before its first launch.
const LOADS_FUNCTIONS: i32 = 12_040;
/// The most arguments of a kernel.
const MOST_ARGUMENTS: usize = 16;

/// All modules of the crate, loaded.
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "the driver's own words")]
pub(crate) struct Modules {
    context: Arc<Context>,
    modules: Vec<cuda::CUmodule>,
    functions: Mutex<BTreeMap<String, Function>>,
}

// SAFETY: modules and functions belong to the context and may be used from any thread that has entered it.
unsafe impl Send for Modules {}
// SAFETY: as above.
unsafe impl Sync for Modules {}

/// A kernel in the GPU.
#[derive(Clone, Copy, Debug)]
struct Function {
    handle: cuda::CUfunction,
    /// Shared memory that the kernel has been allowed so far.
    shared: u32,
}

// SAFETY: as for `Modules`.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A launch with its arguments as bytes.
#[derive(Debug)]
pub(crate) struct Bound {
    function: Function,
    grid: [u32; 3],
    block: [u32; 2],
    shared: u32,
    /// All arguments, each at a multiple of eight bytes.
    bytes: Vec<u64>,
    /// Where each argument begins in `bytes`.
    starts: Vec<usize>,
}

impl Modules {
    pub(crate) fn load(context: &Arc<Context>, compiled: &[Compiled]) -> Result<Modules, ExecError> {
        context.enter()?;
        let load = |compiled: &Compiled| {
            let mut module = std::ptr::null_mut();
            // SAFETY: a whole cubin, which the driver copies.
            let loaded = unsafe { cuda::cuModuleLoadData(&raw mut module, compiled.code.as_ptr().cast()) };
            ok(loaded, &format!("loading the kernels of {}.cu", compiled.name))
                .map_err(|error| context.perhaps_older_than("NVRTC", &error))?;
            Ok(module)
        };
        let modules = compiled.iter().map(load).collect::<Result<Vec<_>, ExecError>>()?;
        Ok(Modules { context: Arc::clone(context), modules, functions: Mutex::default() })
    }

    /// Binds a launch: looks its kernel up and writes its arguments.
    ///
    /// # Errors
    ///
    /// When there is no such kernel, or it needs more than the GPU has.
    pub(crate) fn bind(
        &self,
        launch: &Launch,
        address: &dyn Fn(Place) -> u64,
        check: &mut dyn FnMut(Check) -> u64,
    ) -> Result<Bound, ExecError> {
        let function = self.function(&launch.kernel, launch.shared)?;
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for arg in &launch.args {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            starts.push(bytes.len() / 8);
            arg.write(&mut bytes, address, check);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let (words, _) = bytes.as_chunks::<8>();
        let bytes = words.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        if starts.len() > MOST_ARGUMENTS {
            return Err(ExecError::Device(format!("{} has too many arguments", launch.kernel)));
        }
        let (grid, block, shared) = (launch.grid, launch.block, launch.shared);
        Ok(Bound { function, grid, block, shared, bytes, starts })
    }

    fn function(&self, name: &str, shared: u32) -> Result<Function, ExecError> {
        self.context.enter()?;
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut function = match functions.get(name) {
            Some(known) => *known,
            None => Function { handle: self.look_up(name)?, shared: PLAIN_SHARED },
        };
        if shared > function.shared {
            // SAFETY: the function belongs to a loaded module.
            let allowed = unsafe {
                let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                cuda::cuFuncSetAttribute(function.handle, attribute, shared as i32)
            };
            let what = format!("{name}: {shared} bytes of shared memory of {}", self.context.card.shared);
            ok(allowed, &what)?;
            function.shared = shared;
        }
        functions.insert(name.to_owned(), function);
        Ok(function)
    }

    fn look_up(&self, name: &str) -> Result<cuda::CUfunction, ExecError> {
        let missing = || ExecError::Device(format!("there is no kernel `{name}`"));
        let text = CString::new(name).map_err(|_| missing())?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: modules are loaded; the name ends with a zero byte.
        let found = self.modules.iter().any(|&module| unsafe {
            cuda::cuModuleGetFunction(&raw mut handle, module, text.as_ptr()) == cuda::CUresult::CUDA_SUCCESS
        });
        if !found {
            return Err(missing());
        }
        // The function is loaded now, so that no launch takes memory later.
        if self.context.card.driver >= LOADS_FUNCTIONS {
            // SAFETY: the function was just found.
            ok(unsafe { cuda::cuFuncLoad(handle) }, &format!("loading {name}"))?;
        }
        Ok(handle)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded once; the device has waited for its stream.
            self.modules.iter().for_each(|&module| unsafe {
                cuda::cuModuleUnload(module);
            });
        }
    }
}

impl Bound {
    /// Queues the launch.
    ///
    /// # Safety
    ///
    /// The addresses among the arguments are those of memory that is mapped, as the kernel expects it.
    pub(crate) unsafe fn launch(&self, stream: &Stream) -> Result<(), ExecError> {
        let mut arguments = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        for (argument, &start) in arguments.iter_mut().zip(&self.starts) {
            *argument = self.bytes[start..].as_ptr().cast_mut().cast();
        }
        let ([x, y, z], [a, b]) = (self.grid, self.block);
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        let queued = unsafe {
            cuda::cuLaunchKernel(
                self.function.handle,
                x,
                y,
                z,
                a,
                b,
                1,
                self.shared,
                stream.raw(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        ok(queued, "launching a kernel")
    }
}
