//! From the second step on, no thread allocates: not while actions run, not while inputs are written or results
//! read, not while work is handed to the thread pool.
//!
//! This file has a process of its own and one test, so every allocation that is counted belongs to the run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a global allocator is unsafe to write, and only one sees every allocation")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use plimsoll_graph::{Graph, tile};
use plimsoll_plan::Strategy;
use plimsoll_train::{Run, plan_for};

mod support;
use support::{Batch, Size, families, options};

/// The system's allocator behind a counter, which is off until a test switches it on.
struct Counting;

static WATCHING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if WATCHING.load(Ordering::SeqCst) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: every call is handed on to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is the one `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `pointer` came from `System` with this layout, since this allocator hands out nothing else.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of all threads while `body` runs.
fn allocations(body: impl FnOnce()) -> usize {
    ALLOCATIONS.store(0, Ordering::SeqCst);
    WATCHING.store(true, Ordering::SeqCst);
    body();
    WATCHING.store(false, Ordering::SeqCst);
    ALLOCATIONS.load(Ordering::SeqCst)
}

const STEPS: usize = 25;

#[test]
fn no_thread_allocates_from_the_second_step_on() {
    assert_eq!(allocations(|| drop(vec![0u8; 100])), 1, "the counter counts");
    let size = Size { vocab: 96, seq: 80, width: 64, layers: 3, ffn: 136, dropout: 0.1 };
    for (name, model) in families(size) {
        for threads in [1, 2, 3] {
            let device = plimsoll_devices::cpu(threads).unwrap();
            let options = options(4, 2, Strategy::Sqrt, threads);
            // With two threads the networks run in tiles, otherwise whole.
            let tiled = |graph: &Graph| if threads == 2 { tile(graph) } else { Ok(None) };
            let model = |rows: usize| {
                let graph = model.training(rows, size.seq)?;
                Ok(tiled(&graph)?.unwrap_or(graph))
            };
            let planned = plan_for(&model, &*device, &options).unwrap();
            assert_eq!(planned.choice.program.train.graph.tile_rows().is_some(), threads == 2);
            let mut run = Run::start(device, planned, 0).unwrap();
            let batch = Batch::synthetic(4, size.seq, size.vocab, name == "bert", 0);
            let micro_batches: Vec<_> = batch.micro_batches(2).collect();
            let mut step = || {
                run.step(1e-3, &micro_batches).unwrap();
            };
            step();
            let later = allocations(|| (1..STEPS).for_each(|_| step()));
            assert_eq!(later, 0, "{name} on {threads} threads");
            assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
        }
    }
}
