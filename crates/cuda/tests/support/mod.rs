//! A device of the tests: the lowered program, run by kernels that a host compiler built.
//!
//! Everything between a schedule and a kernel's arguments is the code that a GPU runs; only the kernels' threads are
//! fibers instead of a card's. Products are those of our own kernel.
#![allow(unsafe_code, reason = "kernels are called by address, on an arena of bytes")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use libloading::Library;
use plimsoll_cuda::kernels::{KernelSource, SOURCES};
use plimsoll_cuda::lower::{
    Arg, Check, Launch, Limits, LoweredSchedule, NoLibrary, RankExchange, StreamStep,
};
use plimsoll_cuda::{Rates, facts};
use plimsoll_exec::{Communicator, Device, ExchangeKind, ExchangeOperands, ExecError, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_graph::op::Collective;
use plimsoll_plan::{Facts, Runnable, Space};

use super::fetched::not_run;
use super::prototypes::{Preprocessor, compiler_is_there, host_folder, run};

type Call = unsafe extern "C" fn(*mut *mut c_void);

/// Kernels built for the host, by name.
pub(crate) struct HostKernels {
    calls: BTreeMap<String, Call>,
    launch: unsafe extern "C" fn(Call, *const u32, *const u32, *mut *mut c_void),
    _library: Library,
}

/// The kernels, built once for a test program; `None`, with a printed note, where there is no compiler.
pub(crate) fn host_kernels() -> Option<&'static HostKernels> {
    static KERNELS: OnceLock<Option<HostKernels>> = OnceLock::new();
    KERNELS.get_or_init(build).as_ref()
}

fn build() -> Option<HostKernels> {
    if !compiler_is_there() {
        not_run("kernels on the host", "there is no g++ here");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let preprocessor = Preprocessor::new(folder.path());
    let mut objects = vec![compile(&preprocessor, &host_folder().join("fibers.cpp"))];
    let (early, late) = SOURCES.split_at(SOURCES.len() / 2);
    let several = |sources: &[KernelSource]| -> Vec<PathBuf> {
        sources.iter().map(|source| compile_source(&preprocessor, source)).collect()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| several(late));
        objects.extend(several(early));
        objects.extend(other.join().unwrap());
    });
    let library = folder.path().join("kernels.so");
    run(Command::new("g++").arg("-shared").args(&objects).arg("-o").arg(&library));
    Some(load(&library))
}

/// A file of kernels, compiled together with a table of their names and addresses.
fn compile_source(preprocessor: &Preprocessor, source: &KernelSource) -> PathBuf {
    let (kernels, file) = preprocessor.kernels(source);
    let rows: Vec<String> = kernels
        .iter()
        .map(|kernel| &kernel.name)
        .map(|name| format!("    {{\"{name}\", [](void** args) {{ host_call({name}, args); }}}},\n"))
        .collect();
    let table = format!(
        "#include \"cuda_on_host.h\"\n{}\nstatic const HostKernel table[] = {{\n{}    {{nullptr, nullptr}}}};\n\
         extern \"C\" const HostKernel* kernels_of_{}() {{ return table; }}\n",
        source.text,
        rows.concat(),
        source.name
    );
    fs::write(&file, table).unwrap();
    compile(preprocessor, &file)
}

fn compile(preprocessor: &Preprocessor, file: &Path) -> PathBuf {
    let object = preprocessor.folder.join(file.file_name().unwrap()).with_extension("o");
    let mut command = Command::new("g++");
    command.args(Preprocessor::FLAGS).arg("c++").args(preprocessor.includes());
    run(command.arg("-c").arg(file).arg("-o").arg(&object));
    object
}

type Table = unsafe extern "C" fn() -> *const Row;

#[repr(C)]
struct Row {
    name: *const std::ffi::c_char,
    call: Option<Call>,
}

fn load(path: &Path) -> HostKernels {
    // SAFETY: the library was built above; the tables end with an empty row, and names are constants in it.
    unsafe {
        let library = Library::new(path).unwrap();
        let mut calls = BTreeMap::new();
        for source in SOURCES {
            let table = library.get::<Table>(format!("kernels_of_{}", source.name).as_bytes()).unwrap();
            let mut row = table();
            while let Some(call) = (*row).call {
                let name = std::ffi::CStr::from_ptr((*row).name).to_str().unwrap();
                assert!(calls.insert(name.to_owned(), call).is_none(), "{name} twice");
                row = row.add(1);
            }
        }
        let launch = *library.get(b"host_launch").unwrap();
        HostKernels { calls, launch, _library: library }
    }
}

impl HostKernels {
    /// Runs one launch on memory at `base`.
    pub(crate) fn launch(&self, launch: &Launch, base: u64, checks: &mut Vec<(Check, Box<u64>)>) {
        let call = self.calls.get(&launch.kernel).unwrap_or_else(|| panic!("no kernel {}", launch.kernel));
        let mut word = |check: Check| {
            let at = checks.iter().position(|(known, _)| *known == check).unwrap_or_else(|| {
                checks.push((check, Box::new(u64::MAX)));
                checks.len() - 1
            });
            std::ptr::from_mut(&mut *checks[at].1) as u64
        };
        let mut bytes: Vec<Vec<u64>> =
            (launch.args.iter()).map(|arg| aligned(arg, base, &mut word)).collect();
        let mut pointers: Vec<*mut c_void> = bytes.iter_mut().map(|arg| arg.as_mut_ptr().cast()).collect();
        // SAFETY: arguments have the kernel's own types, which the lowering is judged by; places lie in the arena.
        unsafe { (self.launch)(*call, launch.grid.as_ptr(), launch.block.as_ptr(), pointers.as_mut_ptr()) };
    }
}

/// The bytes of an argument in memory aligned for any type.
fn aligned(arg: &Arg, base: u64, word: &mut dyn FnMut(Check) -> u64) -> Vec<u64> {
    let mut bytes = Vec::new();
    arg.write(&mut bytes, &|place| base + place.0, word);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect()
}

/// The device of the tests.
pub(crate) struct HostDevice {
    pub(crate) kernels: &'static HostKernels,
    pub(crate) limits: Limits,
    /// Aligned as a GPU's arena is; every byte 0xff, so that what was not written is no number.
    arena: Vec<Line>,
    checks: Mutex<Vec<(Check, Box<u64>)>>,
    schedules: Vec<LoweredSchedule>,
    ranks: Option<Arc<dyn Communicator>>,
    /// The communicator's number of each exchange of the schedule that runs.
    exchanges: Vec<u64>,
}

impl std::fmt::Debug for HostDevice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("kernels on the host")
    }
}

#[derive(Clone, Copy)]
#[repr(align(256))]
#[allow(dead_code, reason = "read by address")]
struct Line([u8; 256]);

impl HostDevice {
    pub(crate) fn new(kernels: &'static HostKernels, limits: Limits) -> HostDevice {
        let (arena, checks, schedules) = (Vec::new(), Mutex::default(), Vec::new());
        HostDevice { kernels, limits, arena, checks, schedules, ranks: None, exchanges: Vec::new() }
    }

    /// Begins an exchange with the other ranks, whose threads read this arena.
    fn begin(&mut self, exchange: &RankExchange) {
        let ranks = self.ranks.as_ref().unwrap();
        let (kind, share) = match exchange.collective {
            Collective::AllReduce { ranks } => (ExchangeKind::AllReduce, exchange.whole.div_ceil(ranks)),
            Collective::AllGather { .. } => (ExchangeKind::AllGather, exchange.share),
            _ => (ExchangeKind::ReduceScatter, exchange.share),
        };
        let operands = ExchangeOperands {
            kind,
            dtype: exchange.dtype,
            source: (self.base() + exchange.source.0) as *const u8,
            destination: (self.base() + exchange.destination.0) as *mut u8,
            whole: exchange.whole,
            share,
            word: false,
        };
        // SAFETY: the lowering is judged by these tests: no step touches the operands before it awaits the exchange.
        let number = unsafe { ranks.start(operands) }.unwrap();
        self.exchanges.truncate(exchange.number);
        self.exchanges.push(number);
    }

    fn base(&self) -> u64 {
        self.arena.as_ptr() as u64
    }

    fn bytes(&self) -> &[u8] {
        self.arena.as_flattened_bytes()
    }

    pub(crate) fn step(&mut self, step: &StreamStep) {
        let base = self.base();
        match step {
            StreamStep::Launch(launch) => self.kernels.launch(launch, base, &mut self.checks.lock().unwrap()),
            StreamStep::Product(_) | StreamStep::Attention(_) => panic!("{step} without a library"),
            StreamStep::Exchange(exchange) => self.begin(exchange),
            StreamStep::Await { exchange } => {
                self.ranks.as_ref().unwrap().wait(self.exchanges[*exchange]).unwrap();
            }
            // SAFETY: the lowering is judged by these tests; places lie in the arena.
            StreamStep::Copy { from, to, bytes } => unsafe {
                ((base + to.0) as *mut u8).copy_from((base + from.0) as *const u8, *bytes as usize);
            },
            // SAFETY: as above.
            StreamStep::Zero { to, bytes } => unsafe {
                ((base + to.0) as *mut u8).write_bytes(0, *bytes as usize);
            },
        }
    }
}

trait Flat {
    fn as_flattened_bytes(&self) -> &[u8];
}

impl Flat for Vec<Line> {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: a line is 256 bytes with no padding.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), 256 * self.len()) }
    }
}

impl Device for HostDevice {
    fn name(&self) -> String {
        "kernels on the host".into()
    }

    fn facts(&self, graph: &Graph) -> Facts {
        let rates = Rates { flops: 1e12, half_flops: 1e13, bytes: 1e12, launch: 1e-6 };
        facts(graph, rates, &NoLibrary, self.limits)
    }

    fn join(&mut self, ranks: Arc<dyn Communicator>) -> Result<(), ExecError> {
        self.limits.rank = ranks.rank();
        self.ranks = Some(ranks);
        Ok(())
    }

    fn rank(&self) -> usize {
        self.limits.rank
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        self.schedules.clear();
        self.arena = vec![Line([0xff; 256]); space.arena.div_ceil(256) as usize];
        Ok(())
    }

    fn prepare(&mut self, judged: &Runnable) -> Result<ScheduleId, ExecError> {
        let (graph, schedule) = (judged.graph(), judged.schedule());
        self.schedules.push(LoweredSchedule::of(graph, schedule, &NoLibrary, self.limits)?);
        Ok(ScheduleId(self.schedules.len() - 1))
    }

    fn map(&mut self) -> Result<(), ExecError> {
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        assert!(offset as usize + bytes.len() <= self.bytes().len());
        // SAFETY: inside the arena, as just checked.
        unsafe { ((self.base() + offset) as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        for (check, word) in &mut *self.checks.lock().unwrap() {
            if **word != u64::MAX {
                let id = **word as u32 as i32;
                **word = u64::MAX;
                return Err(check.fault(id));
            }
        }
        bytes.copy_from_slice(&self.bytes()[offset as usize..offset as usize + bytes.len()]);
        Ok(())
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        let program = self.schedules[schedule.0].clone();
        program.steps.iter().for_each(|step| self.step(step));
        Ok(())
    }

    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
        let program = self.schedules[schedule.0].clone();
        for (action, seconds) in seconds.iter_mut().enumerate() {
            let begin = Instant::now();
            program.steps[program.range(action)].iter().for_each(|step| self.step(step));
            seconds.push(begin.elapsed().as_secs_f64());
        }
        Ok(())
    }
}
