//! cuDNN's backend interface: descriptors that are made, given attributes and finalised.
//!
//! Eleven functions of its C library, found by name in the file that [`Libraries`] names, so that a missing or an old
//! library is an error and never a crash. Numbers of enumerations are those of `cudnn_backend.h` and `cudnn_graph.h`, which
//! keep them from version to version.
//!
//! Plans are made for the GPU of a handle, which runs them, or for one that text describes. The latter needs no GPU: such
//! plans tell their engine and their scratch, and nothing else can be done with them.
#![allow(unsafe_code, reason = "calls cuDNN")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libloading::os::unix::Library as Shared;
use plimsoll_exec::ExecError;

use super::libraries::{Refusal, Wanted};
use super::symbols::named;
use super::{Context, Libraries, Stream, version_text};

/// The oldest version whose graphs were tried. Forward attention of 9.10.0 and 9.10.1 is known to be wrong.
const OLDEST: usize = 91_400;

const CUDNN: Wanted = Wanted {
    name: "cuDNN",
    package: "nvidia-cudnn-cu13",
    file: "libcudnn.so.9",
    before: None,
    otherwise: ", or uninstall it, and attention runs in slower kernels that need no library",
};

/// Kinds of descriptors.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Kind {
    Pointwise = 0,
    Engine = 2,
    EngineConfig = 3,
    Heuristics = 4,
    Plan = 5,
    PointwiseNode = 13,
    Graph = 15,
    Pack = 16,
    Tensor = 17,
    Matmul = 18,
    MatmulNode = 19,
    Reduction = 21,
    ReductionNode = 22,
    ReshapeNode = 31,
    DeviceProperties = 38,
}

/// Types of attributes.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Of {
    Handle = 0,
    DataType = 1,
    Boolean = 2,
    Int64 = 3,
    Float = 4,
    Pointer = 6,
    HeuristicMode = 8,
    PointwiseMode = 14,
    Descriptor = 15,
    ReductionOperator = 18,
    Character = 24,
}

/// Attributes.
pub(super) mod attribute {
    pub(in super::super) const POINTWISE_MODE: i32 = 0;
    pub(in super::super) const POINTWISE_PRECISION: i32 = 1;
    pub(in super::super) const POINTWISE_AXIS: i32 = 9;
    pub(in super::super) const HEURISTICS_MODE: i32 = 200;
    pub(in super::super) const HEURISTICS_GRAPH: i32 = 201;
    pub(in super::super) const HEURISTICS_RESULTS: i32 = 202;
    pub(in super::super) const HEURISTICS_DEVICE: i32 = 204;
    pub(in super::super) const CONFIG_ENGINE: i32 = 300;
    pub(in super::super) const PLAN_HANDLE: i32 = 400;
    pub(in super::super) const PLAN_CONFIG: i32 = 401;
    pub(in super::super) const PLAN_WORKSPACE: i32 = 402;
    pub(in super::super) const PLAN_DEVICE: i32 = 407;
    pub(in super::super) const POINTWISE_NODE_DESCRIPTOR: i32 = 750;
    pub(in super::super) const POINTWISE_NODE_X: i32 = 751;
    pub(in super::super) const POINTWISE_NODE_B: i32 = 752;
    pub(in super::super) const POINTWISE_NODE_Y: i32 = 753;
    pub(in super::super) const POINTWISE_NODE_ALPHA1: i32 = 754;
    pub(in super::super) const POINTWISE_NODE_ALPHA2: i32 = 755;
    pub(in super::super) const POINTWISE_NODE_T: i32 = 758;
    pub(in super::super) const GRAPH_HANDLE: i32 = 800;
    pub(in super::super) const GRAPH_NODES: i32 = 801;
    pub(in super::super) const TENSOR_ALIGNMENT: i32 = 900;
    pub(in super::super) const TENSOR_TYPE: i32 = 901;
    pub(in super::super) const TENSOR_EXTENTS: i32 = 902;
    pub(in super::super) const TENSOR_STRIDES: i32 = 903;
    pub(in super::super) const TENSOR_ID: i32 = 906;
    pub(in super::super) const TENSOR_VIRTUAL: i32 = 907;
    pub(in super::super) const TENSOR_BY_VALUE: i32 = 908;
    pub(in super::super) const TENSOR_RAGGED_OFFSETS: i32 = 913;
    pub(in super::super) const PACK_IDS: i32 = 1000;
    pub(in super::super) const PACK_POINTERS: i32 = 1001;
    pub(in super::super) const PACK_WORKSPACE: i32 = 1003;
    pub(in super::super) const ENGINE_INDEX: i32 = 1301;
    pub(in super::super) const MATMUL_TYPE: i32 = 1500;
    pub(in super::super) const MATMUL_NODE_A: i32 = 1520;
    pub(in super::super) const MATMUL_NODE_B: i32 = 1521;
    pub(in super::super) const MATMUL_NODE_C: i32 = 1522;
    pub(in super::super) const MATMUL_NODE_DESCRIPTOR: i32 = 1523;
    pub(in super::super) const MATMUL_NODE_ROWS: i32 = 1525;
    pub(in super::super) const MATMUL_NODE_COLUMNS: i32 = 1526;
    pub(in super::super) const MATMUL_NODE_TERMS: i32 = 1527;
    pub(in super::super) const REDUCTION_OPERATOR: i32 = 1600;
    pub(in super::super) const REDUCTION_TYPE: i32 = 1601;
    pub(in super::super) const REDUCTION_IS_DETERMINISTIC: i32 = 1602;
    pub(in super::super) const REDUCTION_NODE_X: i32 = 1610;
    pub(in super::super) const REDUCTION_NODE_Y: i32 = 1611;
    pub(in super::super) const REDUCTION_NODE_DESCRIPTOR: i32 = 1612;
    pub(in super::super) const RESHAPE_NODE_X: i32 = 2200;
    pub(in super::super) const RESHAPE_NODE_Y: i32 = 2201;
    pub(in super::super) const DEVICE_TEXT: i32 = 2702;
}

/// The heuristic that chooses engines by the shape of a graph.
const HEURISTIC_A: i32 = 3;

type Raw = *mut c_void;
type Status = c_int;

/// The functions, by the names they have in the library.
#[derive(Clone, Copy)]
struct Functions {
    get_version: unsafe extern "C" fn() -> usize,
    create: unsafe extern "C" fn(*mut Raw) -> Status,
    destroy: unsafe extern "C" fn(Raw) -> Status,
    set_stream: unsafe extern "C" fn(Raw, Raw) -> Status,
    last_error: unsafe extern "C" fn(*mut c_char, usize),
    create_descriptor: unsafe extern "C" fn(c_int, *mut Raw) -> Status,
    destroy_descriptor: unsafe extern "C" fn(Raw) -> Status,
    set_attribute: unsafe extern "C" fn(Raw, c_int, c_int, i64, *const c_void) -> Status,
    get_attribute: unsafe extern "C" fn(Raw, c_int, c_int, i64, *mut i64, *mut c_void) -> Status,
    finalize: unsafe extern "C" fn(Raw) -> Status,
    execute: unsafe extern "C" fn(Raw, Raw, Raw) -> Status,
}

impl Functions {
    /// The functions of a library, or the name of the first that it lacks.
    fn find(library: &Shared) -> Result<Functions, &'static str> {
        // SAFETY: the types are those of the library's headers.
        unsafe {
            Ok(Functions {
                get_version: named(library, "cudnnGetVersion")?,
                create: named(library, "cudnnCreate")?,
                destroy: named(library, "cudnnDestroy")?,
                set_stream: named(library, "cudnnSetStream")?,
                last_error: named(library, "cudnnGetLastErrorString")?,
                create_descriptor: named(library, "cudnnBackendCreateDescriptor")?,
                destroy_descriptor: named(library, "cudnnBackendDestroyDescriptor")?,
                set_attribute: named(library, "cudnnBackendSetAttribute")?,
                get_attribute: named(library, "cudnnBackendGetAttribute")?,
                finalize: named(library, "cudnnBackendFinalize")?,
                execute: named(library, "cudnnBackendExecute")?,
            })
        }
    }
}

/// The functions of a library and its version, if graphs of that version were tried.
fn usable(library: &Shared) -> Result<(Functions, usize), Refusal> {
    let functions = Functions::find(library).map_err(Refusal::Lacks)?;
    // SAFETY: no operands.
    let version = unsafe { (functions.get_version)() };
    if version < OLDEST {
        let text = |version| version_text(version, 10_000, 100);
        return Err(Refusal::Old { version: text(version), oldest: text(OLDEST) });
    }
    Ok((functions, version))
}

/// The GPU that plans are made for.
enum Target {
    /// An open one, with a stream.
    Open { handle: Raw, context: Arc<Context> },
    /// A GPU that is not open, known by this description, which the library once wrote.
    Described(String),
}

/// The library, open on one stream or on none.
pub(crate) struct Cudnn {
    functions: Functions,
    target: Target,
    version: usize,
}

impl std::fmt::Debug for Cudnn {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "cuDNN {}", self.version)
    }
}

// SAFETY: the handle is used by one thread at a time, as its owner locks the plans it runs; descriptors are plain memory.
unsafe impl Send for Cudnn {}
// SAFETY: as above.
unsafe impl Sync for Cudnn {}

impl Cudnn {
    /// Opens the first library that can be used, if there is one.
    ///
    /// # Errors
    ///
    /// When there are only libraries that cannot be used, or it refuses to open.
    pub(crate) fn open(
        context: &Arc<Context>,
        libraries: &Libraries,
        stream: &Stream,
    ) -> Result<Option<Arc<Cudnn>>, ExecError> {
        let Some((functions, version)) = libraries.optional(&CUDNN, usable)? else { return Ok(None) };
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (functions.create)(&raw mut handle) };
        let target = Target::Open { handle, context: Arc::clone(context) };
        let cudnn = Cudnn { functions, target, version };
        cudnn.ok(status, "opening").map_err(|error| context.perhaps_older_than(CUDNN.name, &error))?;
        // SAFETY: handle and stream live; the device drops this before its stream.
        let status = unsafe { (cudnn.functions.set_stream)(handle, stream.raw().cast()) };
        cudnn.ok(status, "taking the stream")?;
        Ok(Some(Arc::new(cudnn)))
    }

    /// Opens the library for a GPU that `text` describes.
    ///
    /// # Errors
    ///
    /// When there is no library that can be used.
    pub(crate) fn described(libraries: &Libraries, text: &str) -> Result<Arc<Cudnn>, ExecError> {
        let found = if libraries.stand_ins() { libraries.optional(&CUDNN, usable)? } else { None };
        let (functions, version) = found.ok_or_else(|| {
            ExecError::Unsupported(
                "plans without a GPU need folders with cuDNN (libcudnn.so.9) and with stand-ins for driver and compiler; \
                 scripts/attention_plans.sh makes them"
                    .into(),
            )
        })?;
        Ok(Arc::new(Cudnn { functions, target: Target::Described(text.to_owned()), version }))
    }

    /// Version, as 10,000 · major + 100 · minor + patch.
    pub(crate) fn version(&self) -> usize {
        self.version
    }

    /// The handle, if there is a GPU.
    fn handle(&self) -> Option<Raw> {
        match self.target {
            Target::Open { handle, .. } => Some(handle),
            Target::Described(_) => None,
        }
    }

    /// A descriptor with no attributes.
    pub(super) fn describe(self: &Arc<Self>, kind: Kind) -> Result<Descriptor, ExecError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (self.functions.create_descriptor)(kind as c_int, &raw mut raw) };
        self.ok(status, &format!("describing {kind:?}"))?;
        Ok(Descriptor { cudnn: Arc::clone(self), raw, kind })
    }

    /// The first plan that can be made for these nodes.
    ///
    /// # Errors
    ///
    /// When no engine takes the graph.
    pub(super) fn plan(self: &Arc<Self>, nodes: &[Descriptor]) -> Result<Descriptor, ExecError> {
        if let Target::Open { context, .. } = &self.target {
            context.enter()?;
        }
        let mut graph = self.describe(Kind::Graph)?;
        let raw: Vec<Raw> = nodes.iter().map(|node| node.raw).collect();
        graph.set(attribute::GRAPH_NODES, Of::Descriptor, &raw)?;
        if let Some(handle) = self.handle() {
            graph.set(attribute::GRAPH_HANDLE, Of::Handle, &[handle])?;
        }
        graph.finalize()?;
        let device = self.described_device()?;
        let mut refused = ExecError::Unsupported("cuDNN has no engine for this graph".into());
        for config in self.configs(&graph, device.as_ref())? {
            let mut plan = self.describe(Kind::Plan)?;
            if let Some(handle) = self.handle() {
                plan.set(attribute::PLAN_HANDLE, Of::Handle, &[handle])?;
            }
            if let Some(device) = &device {
                plan.link(attribute::PLAN_DEVICE, device)?;
            }
            plan.link(attribute::PLAN_CONFIG, &config)?;
            match plan.finalize() {
                Ok(()) => return Ok(plan),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The described GPU as a descriptor, if plans are made for one.
    fn described_device(self: &Arc<Self>) -> Result<Option<Descriptor>, ExecError> {
        let Target::Described(text) = &self.target else { return Ok(None) };
        let mut device = self.describe(Kind::DeviceProperties)?;
        device.set(attribute::DEVICE_TEXT, Of::Character, text.as_bytes())?;
        device.finalize()?;
        Ok(Some(device))
    }

    /// Engines with their settings for a graph, the best first.
    fn configs(
        self: &Arc<Self>,
        graph: &Descriptor,
        device: Option<&Descriptor>,
    ) -> Result<Vec<Descriptor>, ExecError> {
        let mut heuristics = self.describe(Kind::Heuristics)?;
        heuristics.link(attribute::HEURISTICS_GRAPH, graph)?;
        heuristics.set(attribute::HEURISTICS_MODE, Of::HeuristicMode, &[HEURISTIC_A])?;
        if let Some(device) = device {
            heuristics.link(attribute::HEURISTICS_DEVICE, device)?;
        }
        heuristics.finalize()?;
        let count = heuristics.get::<Raw>(attribute::HEURISTICS_RESULTS, Of::Descriptor, &mut [])?;
        let mut configs =
            (0..count).map(|_| self.describe(Kind::EngineConfig)).collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<Raw> = configs.iter().map(|config| config.raw).collect();
        let given = heuristics.get(attribute::HEURISTICS_RESULTS, Of::Descriptor, &mut raw)?;
        configs.truncate(given);
        Ok(configs)
    }

    /// The number that the library gives the engine of a plan.
    pub(super) fn engine(self: &Arc<Self>, plan: &Descriptor) -> Result<i64, ExecError> {
        let config = self.describe(Kind::EngineConfig)?;
        plan.get(attribute::PLAN_CONFIG, Of::Descriptor, &mut [config.raw])?;
        let engine = self.describe(Kind::Engine)?;
        config.get(attribute::CONFIG_ENGINE, Of::Descriptor, &mut [engine.raw])?;
        let mut index = [0i64];
        engine.get(attribute::ENGINE_INDEX, Of::Int64, &mut index)?;
        Ok(index[0])
    }

    /// Queues a plan on the stream.
    ///
    /// # Safety
    ///
    /// The pack names memory that holds every operand and the workspace, and nothing else uses.
    pub(super) unsafe fn execute(&self, plan: &Descriptor, pack: &Descriptor) -> Result<(), ExecError> {
        let handle = self
            .handle()
            .ok_or_else(|| ExecError::Unsupported("a GPU that is only described runs nothing".into()))?;
        // SAFETY: the caller's promise; both were finalised.
        let status = unsafe { (self.functions.execute)(handle, plan.raw, pack.raw) };
        self.ok(status, "running attention")
    }

    fn ok(&self, status: Status, doing: &str) -> Result<(), ExecError> {
        if status == 0 {
            return Ok(());
        }
        let mut text = [0u8; 1024];
        // SAFETY: the buffer is as long as said.
        unsafe { (self.functions.last_error)(text.as_mut_ptr().cast(), text.len()) };
        let length = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let words = String::from_utf8_lossy(&text[..length]);
        Err(ExecError::Device(format!("cuDNN failed: {doing}: status {status}: {words}")))
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        let Target::Open { handle, context } = &self.target else { return };
        if context.enter().is_ok() && !handle.is_null() {
            // SAFETY: created once; every descriptor holds the library, so none is left.
            unsafe { (self.functions.destroy)(*handle) };
        }
    }
}

/// One descriptor, destroyed when it is dropped.
#[derive(Debug)]
pub(super) struct Descriptor {
    cudnn: Arc<Cudnn>,
    raw: Raw,
    kind: Kind,
}

// SAFETY: a descriptor is plain memory of the library, used by one thread at a time.
unsafe impl Send for Descriptor {}
// SAFETY: as above; shared references only read it.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// Gives an attribute its values.
    pub(super) fn set<T>(&mut self, name: i32, of: Of, values: &[T]) -> Result<(), ExecError> {
        // SAFETY: the slice is as long as said, and its elements have the size of the attribute's type.
        let status = unsafe {
            let from = values.as_ptr().cast();
            (self.cudnn.functions.set_attribute)(self.raw, name, of as c_int, values.len() as i64, from)
        };
        self.cudnn.ok(status, &format!("setting attribute {name} of {:?}", self.kind))
    }

    /// Gives an attribute another descriptor.
    pub(super) fn link(&mut self, name: i32, to: &Descriptor) -> Result<(), ExecError> {
        self.set(name, Of::Descriptor, &[to.raw])
    }

    /// Reads an attribute; returns how many values it has.
    pub(super) fn get<T>(&self, name: i32, of: Of, values: &mut [T]) -> Result<usize, ExecError> {
        let mut count = 0;
        let to = if values.is_empty() { std::ptr::null_mut() } else { values.as_mut_ptr().cast() };
        // SAFETY: as for `set`; with no place for values the library only counts them.
        let status = unsafe {
            let length = values.len() as i64;
            (self.cudnn.functions.get_attribute)(self.raw, name, of as c_int, length, &raw mut count, to)
        };
        self.cudnn.ok(status, &format!("reading attribute {name} of {:?}", self.kind))?;
        Ok(count as usize)
    }

    /// Ends the description.
    pub(super) fn finalize(&mut self) -> Result<(), ExecError> {
        // SAFETY: the descriptor lives.
        let status = unsafe { (self.cudnn.functions.finalize)(self.raw) };
        self.cudnn.ok(status, &format!("finishing {:?}", self.kind))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made once and not used again.
        unsafe { (self.cudnn.functions.destroy_descriptor)(self.raw) };
    }
}

#[cfg(test)]
mod tests;
