//! A GPU as a device: schedules become programs bound to addresses, run on one stream.
//!
//! Work is queued and returns at once; [`Device::read`] waits for it and then says what kernels have reported meanwhile,
//! such as an id outside its table.
#![allow(unsafe_code, reason = "queues launches on addresses that a judged plan gave out")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_exec::random::name_hash;
use plimsoll_exec::{Device, ExecError};
use plimsoll_graph::{DType, Graph, Init};
use plimsoll_plan::{Facts, Schedule, Space};

use crate::driver::{
    Blas, Bound, Card, Compiler, Context, Libraries, Mapping, Modules, Reserved, Stream, Target,
};
use crate::facts::{Rates, facts};
use crate::lower::{Arg, Check, Launch, Library, Limits, NoLibrary, Place, Product, Program, Step};

/// Fills memory that nobody has written: no float of this is a number.
const POISON: u8 = 0xff;

/// The kernel or library that multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Products {
    /// cuBLASLt, and our own kernel where it has no such product.
    #[default]
    Library,
    /// Our own kernel alone.
    Own,
}

/// How a GPU is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which one.
    pub target: Target,
    /// Where libraries are looked for.
    pub libraries: Libraries,
    /// Folder that keeps compiled kernels.
    pub cache: PathBuf,
    /// The kernel or library that multiplies matrices.
    pub products: Products,
    /// Sizes of chunks.
    pub limits: Limits,
}

/// A GPU with its arena.
#[derive(Debug)]
pub struct CudaDevice {
    stream: Stream,
    modules: Modules,
    blas: Option<Blas>,
    mapping: Option<Arc<Mapping>>,
    range: Arc<Reserved>,
    context: Arc<Context>,
    limits: Limits,
    /// Which check reports to which word.
    checks: Mutex<Vec<Check>>,
}

impl CudaDevice {
    /// Opens a GPU: context, kernels, library.
    ///
    /// # Errors
    ///
    /// When the driver, a library or the GPU is missing or too old, or the cache cannot be written.
    pub fn open(options: &Options) -> Result<CudaDevice, ExecError> {
        let context = Arc::new(Context::open(options.target)?);
        let stream = Stream::new(&context)?;
        let range = Arc::new(Reserved::new(&context)?);
        let compiler = Compiler {
            libraries: &options.libraries,
            cache: &options.cache,
            architecture: &context.card.architecture(),
        };
        let modules = Modules::load(&context, &compiler.all()?)?;
        let blas = match options.products {
            Products::Library => Some(Blas::new(&context, &options.libraries)?),
            Products::Own => None,
        };
        let limits = options.limits;
        Ok(CudaDevice {
            stream,
            modules,
            blas,
            mapping: None,
            range,
            context,
            limits,
            checks: Mutex::default(),
        })
    }

    /// The GPU in figures.
    pub fn card(&self) -> &Card {
        &self.context.card
    }

    /// Version of cuBLASLt as it counts, if it is in use.
    pub fn library_version(&self) -> Option<usize> {
        self.blas.as_ref().map(|_| Blas::version())
    }

    /// Bytes that this process has taken of the card, arena included: free before it began less free now. Only NVML knows
    /// the former, and only while no other process takes or gives any.
    ///
    /// # Errors
    ///
    /// When the driver fails.
    pub fn taken(&self) -> Result<Option<u64>, ExecError> {
        let now = self.context.free()?;
        Ok(self.context.free_before.map(|before| before.saturating_sub(now)))
    }

    /// Draws elements `offset … offset + count` of a state into the arena, with the CPU's bits.
    ///
    /// # Errors
    ///
    /// When the range lies outside the arena.
    pub fn draw(
        &mut self,
        init: &Init,
        (name, seed): (&str, u64),
        (to, dtype): (u64, DType),
        (offset, count): (usize, usize),
    ) -> Result<(), ExecError> {
        self.arena()?.address(to, (count * dtype.bytes()) as u64)?;
        let pointer = Arg::Pointer(Place(to));
        let kind = crate::lower::kind(dtype);
        let random = |kernel: &str, size: f32| {
            let place =
                [Arg::U64(seed), Arg::U64(name_hash(name)), Arg::I64(offset as i64), Arg::I64(count as i64)];
            let mut args = vec![pointer.clone(), kind.clone()];
            args.extend(place);
            args.push(Arg::F32(size));
            // A group of four may begin before the first element.
            self.launch_now(kernel, count.div_ceil(4) + 1, args)
        };
        match init {
            Init::Normal(deviation) => random("draw_normal", *deviation),
            Init::Uniform(bound) => random("draw_uniform", *bound),
            Init::Fill(number) => {
                let args = vec![pointer, kind, Arg::I64(count as i64), Arg::F32(*number)];
                self.launch_now("draw_constant", count, args)
            }
            Init::Table(_) | Init::OneHot(_) => {
                Err(ExecError::Unsupported("a table is written, not drawn".into()))
            }
        }
    }

    /// Seconds of one library product, the mean of `repeats` after a warm-up, on operands that hold whatever the arena does.
    ///
    /// # Errors
    ///
    /// When the library has no such product.
    pub fn time_product(&mut self, product: &Product, repeats: usize) -> Result<f64, ExecError> {
        let blas = self.blas.as_ref().ok_or_else(|| ExecError::Unsupported("there is no library".into()))?;
        if blas.workspace(&product.signature).is_none() {
            return Err(ExecError::Unsupported(format!("cuBLASLt has no product {:?}", product.signature)));
        }
        let base = self.range.base();
        let run = |count: usize| {
            // SAFETY: the caller keeps the operands inside the arena; the product reads and writes nothing else.
            (0..count).try_for_each(|_| unsafe { blas.run(product, |place| base + place.0, &self.stream) })
        };
        run(3)?;
        Ok(self.stream.time(|| run(repeats))? / repeats as f64)
    }

    /// Scratch bytes of a library product, if there is one.
    pub fn product_workspace(&self, product: &Product) -> Option<u64> {
        self.library().workspace(&product.signature)
    }

    fn launch_now(&self, kernel: &str, threads: usize, args: Vec<Arg>) -> Result<(), ExecError> {
        let grid = [threads.div_ceil(256) as u32, 1, 1];
        let launch = Launch { kernel: kernel.into(), grid, block: [256, 1], shared: 0, args };
        let bound = self.bind(&Step::Launch(launch))?;
        self.queue(&bound)
    }

    fn library(&self) -> &dyn Library {
        self.blas.as_ref().map_or(&NoLibrary, |blas| blas)
    }

    fn arena(&self) -> Result<&Arc<Mapping>, ExecError> {
        self.mapping.as_ref().ok_or_else(|| ExecError::Memory("the arena has not been taken yet".into()))
    }

    fn bind(&self, step: &Step) -> Result<Ready, ExecError> {
        let base = self.range.base();
        Ok(match step {
            Step::Launch(launch) => {
                let mut refused = None;
                let mut word = |check| {
                    self.word(check).unwrap_or_else(|error| {
                        refused = Some(error);
                        0
                    })
                };
                let bound = self.modules.bind(launch, &|place| base + place.0, &mut word)?;
                refused.map_or(Ok(Ready::Launch(bound)), Err)?
            }
            Step::Product(product) => Ready::Product(product.clone()),
            Step::Copy { from, to, bytes } => {
                Ready::Copy { from: base + from.0, to: base + to.0, bytes: *bytes }
            }
            Step::Zero { to, bytes } => Ready::Zero { to: base + to.0, bytes: *bytes },
        })
    }

    /// Address of the word where a check reports.
    fn word(&self, check: Check) -> Result<u64, ExecError> {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let index = checks.iter().position(|known| *known == check).unwrap_or_else(|| {
            checks.push(check);
            checks.len() - 1
        });
        self.stream.word(index)
    }

    fn queue(&self, step: &Ready) -> Result<(), ExecError> {
        let base = self.range.base();
        // SAFETY: operands lie in the mapping, which whoever asks holds; `replay` proved that no other action that is
        // under way touches them against the rules, and one stream keeps their order.
        unsafe {
            match step {
                Ready::Launch(bound) => bound.launch(&self.stream),
                Ready::Product(product) => match &self.blas {
                    Some(blas) => blas.run(product, |place| base + place.0, &self.stream),
                    None => Err(ExecError::Device("a product of a library that is not there".into())),
                },
                Ready::Copy { from, to, bytes } => self.stream.copy(*from, *to, *bytes),
                Ready::Zero { to, bytes } => self.stream.fill(*to, *bytes, 0),
            }
        }
    }
}

/// A step with its addresses.
#[derive(Debug)]
enum Ready {
    Launch(Bound),
    Product(Product),
    Copy { from: u64, to: u64, bytes: u64 },
    Zero { to: u64, bytes: u64 },
}

/// A schedule bound to the addresses of an arena, which it keeps mapped.
#[derive(Debug)]
pub struct Prepared {
    _arena: Arc<Mapping>,
    steps: Vec<Ready>,
    program: Program,
}

impl Device for CudaDevice {
    type Prepared = Prepared;

    fn name(&self) -> String {
        let products = if self.blas.is_some() { "cuBLASLt" } else { "own products" };
        format!("{}, {products}", self.context.card.name)
    }

    fn facts(&self, graph: &Graph) -> Facts {
        facts(graph, rates(&self.context.card), self.library(), self.limits)
    }

    fn allocate(&mut self, space: Space) -> Result<(), ExecError> {
        if space.host > 0 || space.disk > 0 {
            return Err(ExecError::Unsupported(
                "the CUDA device does not offload yet; leave out --offload".into(),
            ));
        }
        if let Some(held) = self.mapping.take()
            && Arc::strong_count(&held) > 1
        {
            self.mapping = Some(held);
            return Err(ExecError::Memory("schedules still use the arena that was taken before".into()));
        }
        let mapping = Mapping::new(&self.range, space.arena)?;
        self.stream.fill(mapping.address(0, space.arena)?, space.arena, POISON)?;
        self.mapping = Some(Arc::new(mapping));
        Ok(())
    }

    fn prepare(&self, graph: &Graph, schedule: &Schedule) -> Result<Prepared, ExecError> {
        let arena = Arc::clone(self.arena()?);
        arena.address(0, schedule.peak())?;
        let mut program = Program::of(graph, schedule, self.library(), self.limits)?;
        let steps = program.steps.iter().map(|step| self.bind(step)).collect::<Result<Vec<_>, _>>()?;
        program.steps.clear(); // bound above; only the ranges are needed
        Ok(Prepared { _arena: arena, steps, program })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.stream.write(self.arena()?.address(offset, bytes.len() as u64)?, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = vec![u64::MAX; checks.len()];
        self.stream.read(self.arena()?.address(offset, bytes.len() as u64)?, bytes, &mut words)?;
        match checks.iter().zip(words).find(|(_, word)| *word != u64::MAX) {
            Some((check, word)) => {
                self.stream.clear_words()?;
                Err(ExecError::Data(check.fault(word as u32 as i32)))
            }
            None => Ok(()),
        }
    }

    fn run(&mut self, prepared: &Prepared, action: usize) -> Result<(), ExecError> {
        self.context.enter()?;
        prepared.steps[prepared.program.range(action)].iter().try_for_each(|step| self.queue(step))
    }

    fn enter<T: Send>(&mut self, body: impl FnOnce(&mut Self) -> T + Send) -> T {
        body(self)
    }
}

/// Rates by the card's own figures, at the share of them that products and streams reach.
fn rates(card: &Card) -> Rates {
    let per_processor = match card.capability.0 {
        9 => 4096.0,
        10 => 8192.0,
        8 if card.capability.1 == 0 => 2048.0,
        _ => 512.0,
    };
    let cycles = f64::from(card.processors) * card.clock;
    Rates {
        flops: 0.8 * 256.0 * cycles,
        half_flops: 0.75 * per_processor * cycles,
        bytes: 0.85 * card.bandwidth,
        launch: 3e-6,
    }
}
