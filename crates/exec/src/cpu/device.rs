//! The CPU as a device: the arena in main memory, one thread pool, kernels on bound operands.

use std::sync::Arc;

use plimsoll_graph::{Graph, Op, Type, work};
use plimsoll_plan::{Action, BufferId, Facts, NodeFacts, Schedule};

use crate::arena::Arena;
use crate::cpu::{Call, Operand, Pool, Scratch, run, workspace};
use crate::device::Device;
use crate::error::ExecError;

/// Offsets are multiples of a cache line, which is also the widest vector.
const ALIGNMENT: u64 = 64;

/// Rates that turn work into seconds until somebody has measured them: per thread, typical of a server
/// core with wide vectors. Only ratios between plans depend on them.
const FLOPS_PER_THREAD: f64 = 50e9;
const BYTES_PER_THREAD: f64 = 6e9;
const SECONDS_PER_ACTION: f64 = 3e-6;
/// How much longer a product takes in the least scratch, where it is packed in smaller pieces: a step of
/// the presets `tiny` and `s` took 1.2 to 1.7 times as long.
const LEAN_FACTOR: f64 = 1.5;

/// The CPU with its arena and threads.
#[derive(Debug)]
pub struct CpuDevice {
    /// Shared with the body of [`Device::enter`], which borrows the device while its threads are in use.
    pool: Arc<Pool>,
    threads: usize,
    arena: Option<Arena>,
}

impl CpuDevice {
    /// A device of `threads` threads, or one for each core when 0.
    ///
    /// # Errors
    ///
    /// When the system refuses the threads.
    pub fn new(threads: usize) -> Result<CpuDevice, ExecError> {
        let threads =
            if threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let pool = Pool::new(threads)
            .map_err(|error| ExecError::Memory(format!("cannot start {threads} threads: {error}")))?;
        Ok(CpuDevice { pool: Arc::new(pool), threads, arena: None })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The arena, once it is taken.
    pub fn arena(&self) -> Option<&Arena> {
        self.arena.as_ref()
    }

    /// The arena, for tests that fill it with poison.
    pub fn arena_mut(&mut self) -> Option<&mut Arena> {
        self.arena.as_mut()
    }

    fn taken(&self) -> Result<&Arena, ExecError> {
        self.arena.as_ref().ok_or_else(|| ExecError::Memory("the arena has not been taken yet".into()))
    }
}

/// A node with its operands bound to addresses.
#[derive(Debug)]
pub struct BoundCall {
    op: Op,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    workspace: Scratch,
}

impl Device for CpuDevice {
    type Prepared = Vec<BoundCall>;

    fn name(&self) -> String {
        format!("cpu, {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })
    }

    fn facts(&self, graph: &Graph) -> Facts {
        let threads = self.threads as f64;
        let facts = |node: &plimsoll_graph::Node| {
            let (inputs, outputs) = (graph.input_types(node), graph.output_types(node));
            let work = work(&node.op, &inputs, &outputs);
            let compute = work.matmul_flops / (FLOPS_PER_THREAD * threads);
            let traffic = work.bytes / (BYTES_PER_THREAD * threads);
            let workspace = workspace(&node.op, &inputs, &outputs, self.threads);
            let lean = if workspace.least < workspace.best { LEAN_FACTOR } else { 1.0 };
            let fixed = traffic + SECONDS_PER_ACTION;
            NodeFacts { seconds: compute + fixed, lean_seconds: lean * compute + fixed, workspace }
        };
        Facts { alignment: ALIGNMENT, nodes: graph.nodes().iter().map(facts).collect() }
    }

    fn allocate(&mut self, bytes: u64) -> Result<(), ExecError> {
        self.arena = Some(Arena::new(bytes)?);
        Ok(())
    }

    fn prepare(&self, graph: &Graph, schedule: &Schedule) -> Result<Vec<BoundCall>, ExecError> {
        let arena = self.taken()?;
        let bind = |id: &BufferId, ty: Type, accumulate: bool| {
            let buffer = schedule.buffer(*id);
            Ok(Operand { pointer: arena.address(buffer.offset, buffer.bytes)?, ty, accumulate })
        };
        let call = |action: &Action| {
            let Action::Run { node, inputs, outputs, workspace, accumulate } = action else {
                return Err(ExecError::Unsupported("the CPU has no tier to copy to".into()));
            };
            let node = graph.node(*node);
            let inputs = node.inputs.iter().zip(inputs).map(|(&value, id)| bind(id, graph.ty(value), false));
            let outputs = (node.outputs.iter().zip(outputs).enumerate())
                .map(|(output, (&value, id))| bind(id, graph.ty(value), accumulate >> output & 1 == 1));
            let scratch = |id: &BufferId| {
                let buffer = schedule.buffer(*id);
                let pointer = arena.address(buffer.offset, buffer.bytes)?;
                Ok(Scratch { pointer, bytes: buffer.bytes as usize })
            };
            Ok(BoundCall {
                op: node.op.clone(),
                inputs: inputs.collect::<Result<_, _>>()?,
                outputs: outputs.collect::<Result<_, _>>()?,
                workspace: workspace.as_ref().map_or(Ok(Scratch::NONE), scratch)?,
            })
        };
        schedule.actions.iter().map(call).collect()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let arena = self
            .arena
            .as_mut()
            .ok_or_else(|| ExecError::Memory("the arena has not been taken yet".into()))?;
        arena.range_mut(offset, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        bytes.copy_from_slice(self.taken()?.range(offset, bytes.len() as u64)?);
        Ok(())
    }

    fn run(&mut self, prepared: &Vec<BoundCall>, action: usize) -> Result<(), ExecError> {
        let BoundCall { op, inputs, outputs, workspace } = &prepared[action];
        run(&Call { op, inputs, outputs, workspace: *workspace })
    }

    fn enter<T: Send>(&mut self, body: impl FnOnce(&mut Self) -> T + Send) -> T {
        Arc::clone(&self.pool).enter(|| body(self))
    }
}
