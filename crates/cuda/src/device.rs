//! A GPU as a device: schedules become programs bound to addresses, run on one stream, with exchanges between ranks on another.
//!
//! Work is queued and returns at once; [`Device::read`] waits for it and then returns the errors that kernels have
//! reported meanwhile, such as an id outside its table.
#![allow(unsafe_code, reason = "queues launches on addresses that a judged plan gave out")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_exec::random::name_hash;
use plimsoll_exec::{
    Communicator, Device, Draw, ExecError, MemoryPool, ScheduleId, Timings, no_schedule, unsuitable,
};
use plimsoll_graph::{DType, Graph, Init, Type};
use plimsoll_plan::{Facts, Runnable, Schedule, Space};

use crate::bound_schedule::{BoundProgram, BoundSchedule, Ready};
use crate::counting::Readings;
use crate::documents::{DocumentTables, TableKey};
use crate::driver::{
    Borrowed, Card, Compiler, Context, Folded, Libraries, Mapping, Modules, Points, Reserved, Stream, Vendor,
    World,
};
use crate::facts::{Rates, facts};
use crate::lower::{
    Arg, Attention, AttentionShape, AttentionTensor, Check, DocumentForm, Launch, Library, Limits,
    LoweredSchedule, Place, Product, Signature, StreamStep,
};
use crate::options::{CudaOptions, Products};

mod exchanging;
mod recording;
mod timed;

/// Fills memory that has not been written: every float of this pattern is NaN.
const POISON: u8 = 0xff;
/// How many checks get a word of their own, of the 256 words for reports. Routers after that share one word, so their
/// reports name no layer.
const NAMED_CHECKS: usize = 224;

/// A GPU with its arena.
#[derive(Debug)]
pub struct CudaDevice {
    // Fields stand in the order in which they must be dropped: unmapping waits for the GPU, and a library needs the stream
    // until the library is closed.
    schedules: Vec<BoundSchedule>,
    mapping: Option<Mapping>,
    world: Option<World>,
    libraries: Libraries,
    pub(crate) library: Vendor,
    modules: Modules,
    /// Points for the times of actions.
    points: Mutex<Points>,
    stream: Stream,
    range: Arc<Reserved>,
    context: Arc<Context>,
    /// Bytes that the arena has or will have.
    arena_bytes: u64,
    limits: Limits,
    products: Products,
    /// Which check reports to which word.
    checks: Mutex<Vec<Check>>,
    documents: DocumentTables,
    /// Why some schedule could not be recorded.
    unrecorded: Option<String>,
    /// Measured times of ops.
    timings: Timings,
    /// Readings of the card's memory.
    readings: Mutex<Readings>,
}

impl CudaDevice {
    /// Opens a GPU: context, kernels, library.
    ///
    /// # Errors
    ///
    /// When the driver, a library or the GPU is missing or too old, or the cache cannot be written.
    pub fn open(options: &CudaOptions) -> Result<CudaDevice, ExecError> {
        let context = Arc::new(Context::open(options.target)?);
        let stream = Stream::new(&context)?;
        let range = Arc::new(Reserved::new(&context)?);
        let compiler = Compiler {
            libraries: &options.libraries,
            cache: &options.cache,
            architecture: &context.card.architecture(),
        };
        let modules = Modules::load(&context, &compiler.all()?)?;
        let library = match options.products {
            Products::Own => Vendor::default(),
            of_library => Vendor::open(&context, &options.libraries, &stream, of_library == Products::Tf32)?,
        };
        let limits = options.limits;
        Ok(CudaDevice {
            points: Mutex::new(Points::new(&context)),
            stream,
            modules,
            library,
            mapping: None,
            world: None,
            libraries: options.libraries.clone(),
            arena_bytes: 0,
            schedules: Vec::new(),
            range,
            context,
            limits,
            products: options.products,
            checks: Mutex::default(),
            documents: DocumentTables::default(),
            unrecorded: None,
            timings: Timings::default(),
            readings: Mutex::default(),
        })
    }

    /// The GPU in figures.
    pub fn card(&self) -> &Card {
        &self.context.card
    }

    /// Versions of the libraries in use, as each counts.
    pub fn library_versions(&self) -> Vec<(&'static str, usize)> {
        self.library.versions()
    }

    /// Draws elements `offset … offset + count` of a state into the arena, with the CPU's bits.
    ///
    /// # Errors
    ///
    /// When the range lies outside the arena, or the numbers come from a table.
    pub fn draw_part(
        &mut self,
        &Draw { init, name, seed }: &Draw,
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

    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn points(&self) -> MutexGuard<'_, Points> {
        self.points.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch_now(&self, kernel: &str, threads: usize, args: Vec<Arg>) -> Result<(), ExecError> {
        let grid = [threads.div_ceil(256) as u32, 1, 1];
        let launch = Launch { kernel: kernel.into(), grid, block: [256, 1], shared: 0, args };
        let bound = self.bind(&StreamStep::Launch(launch))?;
        self.queue(&bound)
    }

    fn bound(&self, schedule: ScheduleId) -> Result<&BoundSchedule, ExecError> {
        self.schedules.get(schedule.0).ok_or_else(|| no_schedule(schedule))
    }

    fn arena(&self) -> Result<&Mapping, ExecError> {
        self.mapping.as_ref().ok_or_else(|| ExecError::Memory("the arena has not been taken yet".into()))
    }

    fn bind(&self, step: &StreamStep) -> Result<Ready, ExecError> {
        let base = self.range.base();
        Ok(match step {
            StreamStep::Launch(launch) => {
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
            StreamStep::Product(product) => Ready::Product(product.clone()),
            StreamStep::Attention(attention) => {
                let plans = self.library.attentions();
                let workspace = base + attention.workspace.0;
                let tables = self.tables(attention);
                Ready::Attention(plans?.bind(attention, &|place| base + place.0, workspace, &tables)?)
            }
            StreamStep::Exchange(exchange) => Ready::Exchange(*exchange),
            StreamStep::Await { exchange } => Ready::Await { exchange: *exchange },
            StreamStep::Copy { from, to, bytes } => {
                Ready::Copy { from: base + from.0, to: base + to.0, bytes: *bytes }
            }
            StreamStep::Zero { to, bytes } => Ready::Zero { to: base + to.0, bytes: *bytes },
        })
    }

    /// Address of the word where a check reports.
    fn word(&self, check: Check) -> Result<u64, ExecError> {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        // The device has a limited number of words for checks, so with hundreds of layers the routers share one word.
        let check = if checks.len() < NAMED_CHECKS { check } else { check.nameless() };
        let index = checks.iter().position(|known| *known == check).unwrap_or_else(|| {
            checks.push(check);
            checks.len() - 1
        });
        self.stream.word(index)
    }

    /// The first fault that a kernel had reported when the stream was last waited for.
    fn checked(&self) -> Result<(), ExecError> {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        match checks.iter().zip(self.stream.reports()).find(|(_, word)| *word != u64::MAX) {
            Some((check, word)) => {
                self.stream.clear_words()?;
                Err(check.fault(word as u32 as i32))
            }
            None => Ok(()),
        }
    }

    fn queue_all(&self, steps: &[Ready]) -> Result<(), ExecError> {
        steps.iter().try_for_each(|step| self.queue(step))
    }

    /// The addresses of the tables that a call reads.
    fn tables(&self, attention: &Attention) -> Vec<(AttentionTensor, u64)> {
        TableKey::of(attention).map(|key| self.documents.addresses(&key)).unwrap_or_default()
    }

    /// Lowers a schedule and binds it to addresses.
    fn program(
        &mut self,
        graph: &Graph,
        schedule: &Schedule,
        documents: DocumentForm,
    ) -> Result<BoundProgram, ExecError> {
        let limits = Limits { documents, ..self.limits };
        let mut program = LoweredSchedule::of(graph, schedule, &self.library, limits)?;
        let attention = |step: &StreamStep| {
            if let StreamStep::Attention(attention) = step { Some(attention.clone()) } else { None }
        };
        let attentions: Vec<Attention> = program.steps.iter().filter_map(attention).collect();
        self.admit(&program)?;
        for key in attentions.iter().filter_map(TableKey::of) {
            self.documents.add(key, &self.context, &self.stream)?;
        }
        let steps = program.steps.iter().map(|step| self.bind(step)).collect::<Result<Vec<_>, _>>()?;
        // The steps are bound to addresses by now; only their ranges are needed.
        program.steps.clear();
        Ok(BoundProgram { steps, program, attentions, captured: None })
    }

    /// The form of a schedule that the documents written last allow.
    fn chosen(&self, schedule: ScheduleId) -> Result<(&BoundProgram, usize), ExecError> {
        let bound = self.bound(schedule)?;
        let ragged = bound.ragged.as_ref().filter(|_| self.documents.fit(&bound.tables));
        Ok((ragged.unwrap_or(&bound.masked), bound.actions))
    }

    fn queue(&self, step: &Ready) -> Result<(), ExecError> {
        let base = self.range.base();
        // SAFETY: operands lie in the arena or, while the device warms up, in what stands for it; `replay` proved that no other action that is
        // under way touches them against the rules, and one stream keeps their order, beside exchanges until they are awaited.
        unsafe {
            match step {
                Ready::Launch(bound) => bound.launch(&self.stream),
                Ready::Product(product) => {
                    let workspace = base + product.workspace.0;
                    self.library.products()?.run(product, |place| base + place.0, workspace, &self.stream)
                }
                Ready::Attention(bound) => self.library.attentions()?.run(bound),
                Ready::Exchange(exchange) => {
                    let ends = (base + exchange.source.0, base + exchange.destination.0);
                    self.world()?.begin(exchange, ends, &self.stream)
                }
                Ready::Await { exchange } => self.world()?.wait(*exchange, &self.stream),
                Ready::Copy { from, to, bytes } => self.stream.copy(*from, *to, *bytes),
                Ready::Zero { to, bytes } => self.stream.fill(*to, *bytes, 0),
            }
        }
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        let sums = if self.limits.deterministic { "deterministic" } else { "fast" };
        let tf32 = if self.products == Products::Tf32 { ", tf32" } else { "" };
        format!("{}, {}, {sums}{tf32}", self.context.card.name, self.library.name())
    }

    fn pool(&self) -> Result<MemoryPool, ExecError> {
        let free = self.context.free()?;
        let reading = self.readings().read(free, || self.context.reading(free, Stream::PINNED));
        Ok(MemoryPool::Own { total: reading.total, free, taken: reading.taken() })
    }

    fn facts(&self, graph: &Graph) -> Facts {
        let rates = Rates::of(&self.context.card);
        let mut facts = facts(graph, rates, &self.library, self.limits);
        self.timings.refine(graph, &mut facts, rates.launch);
        facts
    }

    fn join(&mut self, ranks: Arc<dyn Communicator>) -> Result<(), ExecError> {
        self.limits.rank = ranks.rank();
        self.world = Some(World::join(&self.context, &self.libraries, ranks)?);
        Ok(())
    }

    fn rank(&self) -> usize {
        self.limits.rank
    }

    fn use_timings(&mut self, timings: Timings) {
        self.timings = timings;
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        if space.host > 0 || space.disk > 0 {
            return Err(ExecError::Unsupported(
                "the CUDA device does not offload yet; leave out --offload".into(),
            ));
        }
        self.schedules.clear();
        self.documents.clear();
        self.mapping = None;
        self.readings().settle(false);
        self.range.holds(space.arena)?;
        self.arena_bytes = space.arena;
        Ok(())
    }

    fn prepare(&mut self, judged: &Runnable) -> Result<ScheduleId, ExecError> {
        let (graph, schedule) = (judged.graph(), judged.schedule());
        judged.suits(&self.facts(graph)).map_err(|fault| unsuitable(judged, &fault))?;
        if schedule.peak() > self.arena_bytes {
            return Err(ExecError::Mismatch(format!(
                "the schedule reaches byte {} of an arena of {}",
                schedule.peak(),
                self.arena_bytes
            )));
        }
        let masked = self.program(graph, schedule, DocumentForm::Masked)?;
        let ragged = if masked.attentions.iter().any(|attention| attention.shape.documents) {
            Some(self.program(graph, schedule, DocumentForm::Ragged)?)
        } else {
            None
        };
        let tables = ragged.as_ref().map(BoundProgram::tables).unwrap_or_default();
        let ragged = ragged.filter(|_| !tables.is_empty());
        self.schedules.push(BoundSchedule { masked, ragged, tables, actions: schedule.actions.len() });
        Ok(ScheduleId(self.schedules.len() - 1))
    }

    /// Runs each library op once, on memory that exists only in part: every block of the arena's addresses maps to the
    /// same few bytes. The numbers are nonsense and are never read, but the driver has then loaded and allocated
    /// everything it will need. Scratch is real memory, since libraries wait for flags in it. Our own kernels need no
    /// run: they were loaded when they were bound and have no stack, and some follow ids to real addresses.
    fn warm_up(&mut self) -> Result<(), ExecError> {
        let folded = Folded::new(&self.range, self.arena_bytes)?;
        self.stream.fill(self.range.base(), folded.bytes(), 0)?;
        let products: BTreeMap<Signature, &Product> = self
            .schedules
            .iter()
            .flat_map(BoundSchedule::products)
            .map(|product| (product.signature, product))
            .collect();
        let attentions: BTreeMap<AttentionShape, &Attention> = self
            .schedules
            .iter()
            .flat_map(BoundSchedule::attentions)
            .map(|attention| (attention.shape, attention))
            .collect();
        let scratch = products.keys().filter_map(|signature| self.library.workspace(signature));
        let scratch = scratch.chain(attentions.keys().filter_map(|shape| self.library.attention(shape)));
        let scratch = Borrowed::new(&self.context, scratch.max().unwrap_or(0))?;
        let base = self.range.base();
        for product in products.values() {
            let blas = self.library.products()?;
            // SAFETY: all of the range leads to memory, and numbers in it mean nothing.
            unsafe { blas.run(product, |place| base + place.0, scratch.address(), &self.stream)? };
        }
        for attention in attentions.values() {
            let plans = self.library.attentions()?;
            let tables = self.tables(attention);
            let bound = plans.bind(attention, &|place| base + place.0, scratch.address(), &tables)?;
            // SAFETY: as above.
            unsafe { plans.run(&bound)? };
            self.stream.wait()?;
        }
        self.stream.wait()?;
        self.capture();
        let actions = self.schedules.iter().map(|schedule| schedule.actions).max();
        self.points().make(actions.unwrap_or(0), &self.stream)?;
        self.stream.wait()
    }

    fn map(&mut self) -> Result<(), ExecError> {
        let mapping = Mapping::new(&self.range, self.arena_bytes)?;
        self.stream.fill(mapping.address(0, self.arena_bytes)?, self.arena_bytes, POISON)?;
        self.mapping = Some(mapping);
        self.readings().settle(true);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.stream.write(self.arena()?.address(offset, bytes.len() as u64)?, bytes)?;
        self.documents.written(offset, bytes, &self.stream)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        let from = self.arena()?.address(offset, bytes.len() as u64)?;
        self.waited(|| self.stream.read(from, bytes))?;
        self.checked()
    }

    fn observe(&mut self, offset: u64) -> Result<Option<f32>, ExecError> {
        self.stream.observe(self.arena()?.address(offset, 4)?)?;
        Ok(None)
    }

    fn observed(&mut self, floats: &mut Vec<f32>) -> Result<(), ExecError> {
        self.waited(|| self.stream.observed(floats))?;
        self.checked()
    }

    fn draw(&mut self, offset: u64, ty: Type, draw: Draw) -> Result<bool, ExecError> {
        if matches!(draw.init, Init::Table(_) | Init::OneHot(_)) {
            return Ok(false);
        }
        self.draw_part(&draw, (offset, ty.dtype), (0, ty.shape.elements()))?;
        Ok(true)
    }

    fn notes(&self) -> Vec<String> {
        // If the reading fails, the next call that needs one reports the error.
        let _ = self.pool();
        let notes = self.library.notes().into_iter().chain(self.exchanging()).chain(self.not_recorded());
        notes.chain(self.readings().counted()).collect()
    }

    fn take_remarks(&self) -> Vec<String> {
        self.readings().take_remarks()
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.context.enter()?;
        self.check_world()?;
        let (form, _) = self.chosen(schedule)?;
        match &form.captured {
            // SAFETY: as for single steps.
            Some(captured) => unsafe { captured.launch(self.stream.raw()) },
            None => self.queue_all(&form.steps),
        }
    }

    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
        let (form, actions) = self.chosen(schedule)?;
        let queue = |action: usize| self.queue_all(&form.steps[form.program.range(action)]);
        self.points().time(actions, &self.stream, queue, |action, taken| seconds[action].push(taken))
    }
}
