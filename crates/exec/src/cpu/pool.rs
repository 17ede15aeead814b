//! A small thread pool: the calling thread and its workers take pieces of one job from a shared counter.
//!
//! ```text
//!  caller   open ─▶ piece ─ piece ─ piece ─▶ none left: shut ─▶ wait for those inside ─▶ return
//!  worker      └▶ enter ─ piece ─ piece ─▶ none left: shut, leave
//!  worker         (asleep: comes too late, finds the door shut, has cost nothing)
//! ```
//!
//! A job is a door. The caller opens it and begins at once; a worker that finds it open enters, and the first thread
//! that finds no piece left shuts it. The caller waits only for workers that entered, never for one that sleeps or was
//! not given a core, so a job of a few microseconds costs no more than on one thread. Workers spin for some
//! microseconds for the next job before they sleep: the actions of a schedule follow each other closely.
//!
//! Nothing allocates after [`Pool::new`], which waits until every worker has started. Absent on purpose:
//! queues, stealing, jobs within jobs (they run on the thread that asks) and results.
#![allow(unsafe_code, reason = "workers borrow the closure of a caller that waits for them")]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Instructions;

/// How long a worker spins for the next job, or the caller for the end of this one, before it sleeps. Sleeping and
/// waking take some 10 µs; the gaps between the jobs of a step are mostly shorter than this.
const LOOK_OUT: Duration = Duration::from_micros(50);
/// Number of spins between two yields of the core.
const LOOKS: usize = 32;
/// Stack of a worker. Kernels keep their tiles in scratch, so little is needed.
const STACK_BYTES: usize = 512 << 10;

/// The door is open: workers may still enter, since pieces may be left.
const OPEN: usize = 1 << (usize::BITS - 1);
/// The caller sleeps until the last worker has left.
const AWAITED: usize = OPEN >> 1;
/// The pool is being dropped.
const CLOSING: usize = OPEN >> 2;
/// A piece has panicked.
const PANICKED: usize = OPEN >> 3;
/// The other bits of a door count the workers inside.
const INSIDE: usize = PANICKED - 1;

/// Threads that wait for work.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads`, one of which is the caller's, whose kernels run this machine's fastest instructions.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        Pool::of(threads, Instructions::fastest())
    }

    /// A pool whose kernels run `instructions`, which this machine must have.
    pub(super) fn of(threads: usize, instructions: Instructions) -> std::io::Result<Pool> {
        assert!(instructions.is_here(), "the processor has no {instructions}");
        let threads = threads.max(1);
        let mut pool = Pool { shared: Arc::new(Shared::new(threads, instructions)), workers: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name(format!("plimsoll-{index}"))
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work(index))?;
            pool.workers.push(worker);
        }
        let mut beds = pool.shared.beds();
        while beds.started < threads - 1 {
            beds = wait(&pool.shared.caller, beds);
        }
        drop(beds);
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `body` on this thread; jobs that it starts are shared with the pool.
    pub fn enter<T>(&self, body: impl FnOnce() -> T) -> T {
        let here = PLACE.get();
        if std::ptr::eq(here.pool, &raw const *self.shared) {
            return body();
        }
        // The pool outlives the body, and the guard takes the address back however the body ends.
        let _back = Back::after(self.shared.place(0, false));
        body()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.door.0.fetch_or(CLOSING, Ordering::SeqCst);
        // A thread that is about to sleep first checks whether the pool closes, and holds the lock until it sleeps.
        drop(self.shared.beds());
        self.shared.workers.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of pieces and has none of its own.
            let _ = worker.join();
        }
    }
}

/// Runs `body` for every number below `count`, on the pool of this thread. If a piece panics, pieces that have not
/// begun do not run, and the panic continues in the caller once all threads have left.
pub(super) fn for_each(count: usize, body: impl Fn(usize) + Sync) {
    let place = PLACE.get();
    if count < 2 || place.in_piece || place.pool.is_null() {
        return (0..count).for_each(body);
    }
    // SAFETY: `enter` borrows the pool for as long as its address stands in `PLACE`, and a worker keeps it
    // alive for as long as it works.
    let shared = unsafe { &*place.pool };
    shared.share(count, &body);
}

/// Threads of the pool this thread is in.
pub(super) fn threads() -> usize {
    let pool = PLACE.get().pool;
    // SAFETY: as in `for_each`.
    if pool.is_null() { 1 } else { unsafe { (*pool).threads } }
}

/// Index of this thread in its pool: 0 for the caller and outside any pool.
pub(super) fn thread() -> usize {
    PLACE.get().index
}

/// The instructions that kernels run on this thread: those of its pool, or the fastest outside any.
pub(super) fn instructions() -> Instructions {
    PLACE.get().instructions.unwrap_or_else(Instructions::fastest)
}

/// The pool that a thread works for, and its index there.
#[derive(Clone, Copy)]
struct Place {
    /// Null outside any pool.
    pool: *const Shared,
    instructions: Option<Instructions>,
    index: usize,
    /// Whether a piece of a shared job is running: jobs that it starts run on this thread alone.
    in_piece: bool,
}

thread_local! {
    static PLACE: Cell<Place> =
        const { Cell::new(Place { pool: std::ptr::null(), instructions: None, index: 0, in_piece: false }) };
}

/// Puts a thread back to where it was, also when it unwinds.
struct Back(Place);

impl Back {
    fn after(place: Place) -> Back {
        Back(PLACE.replace(place))
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        PLACE.set(self.0);
    }
}

/// Keeps data that several threads write on cache lines of its own (two, which are fetched together).
#[repr(align(128))]
struct Lines<T>(T);

/// State that all threads of a pool see.
struct Shared {
    threads: usize,
    instructions: Instructions,
    look_out: Duration,
    /// [`OPEN`], [`AWAITED`], [`CLOSING`], [`PANICKED`] and the number of workers inside.
    door: Lines<AtomicUsize>,
    /// The next piece that no thread has taken.
    next: Lines<AtomicUsize>,
    /// Whether a job is under way; a thread that finds it set works alone.
    taken: AtomicBool,
    job: UnsafeCell<Job>,
    /// Workers asleep or about to be, less those that have been called. Changed under the lock, read without.
    asleep: AtomicUsize,
    beds: Mutex<Beds>,
    /// Workers wait for work here.
    workers: Condvar,
    /// The caller waits for the workers here.
    caller: Condvar,
}

/// State behind the lock.
struct Beds {
    /// Workers that have begun to run.
    started: usize,
    /// Calls to sleeping workers that none has answered yet.
    calls: usize,
    /// The first panic of a job.
    panic: Option<Box<dyn Any + Send>>,
}

/// The closure of the caller, valid while the door is open or a worker is inside.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    count: usize,
}

// SAFETY: `job` is written by the one thread that has set `taken`, while the door is shut and nobody is
// inside, and read by those who are inside. The closure it points to is `Sync`, and `share` does not return
// while anybody is inside.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(threads: usize, instructions: Instructions) -> Shared {
        // With more threads than cores, a spinning thread would keep another from working.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let nothing: *const (dyn Fn(usize) + Sync) = &|_: usize| {};
        Shared {
            threads,
            instructions,
            look_out: if threads > cores { Duration::ZERO } else { LOOK_OUT },
            door: Lines(AtomicUsize::new(0)),
            next: Lines(AtomicUsize::new(0)),
            taken: AtomicBool::new(false),
            job: UnsafeCell::new(Job { body: nothing, count: 0 }),
            asleep: AtomicUsize::new(0),
            beds: Mutex::new(Beds { started: 0, calls: 0, panic: None }),
            workers: Condvar::new(),
            caller: Condvar::new(),
        }
    }

    /// A place of this pool.
    fn place(&self, index: usize, in_piece: bool) -> Place {
        Place { pool: self, instructions: Some(self.instructions), index, in_piece }
    }

    fn beds(&self) -> MutexGuard<'_, Beds> {
        // Nothing panics under the lock, so its contents are always valid.
        self.beds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all pieces, with the help of the workers that are awake or wake up in time.
    fn share(&self, count: usize, body: &(dyn Fn(usize) + Sync)) {
        // Each thread counts one piece too far, and the counter must not wrap round to the first piece.
        assert!(count <= usize::MAX / 2, "too many pieces");
        if self.threads == 1 || self.taken.swap(true, Ordering::Acquire) {
            return (0..count).for_each(body);
        }
        // SAFETY: only the lifetime is changed. The reference is kept as a pointer, which is followed by this
        // thread and by workers between entering and leaving; `wait_until_left` sees all of them leave, and
        // nothing in between can unwind, because pieces are run under `catch_unwind`.
        let body =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body) };
        let job = Job { body, count };
        // SAFETY: `taken` was ours to set, and the last job ended with the door shut and nobody inside.
        unsafe { *self.job.get() = job };
        self.next.0.store(0, Ordering::Relaxed);
        self.door.0.fetch_or(OPEN, Ordering::SeqCst);
        self.wake(count - 1);
        self.run_pieces(job, 0);
        self.wait_until_left();
        let panicked = self.door.0.load(Ordering::Relaxed) & PANICKED != 0;
        let panic = if panicked { self.forget_panic() } else { None };
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn forget_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.door.0.fetch_and(!PANICKED, Ordering::Relaxed);
        self.beds().panic.take()
    }

    /// Calls up to `most` sleeping workers.
    fn wake(&self, most: usize) {
        if self.asleep.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut beds = self.beds();
        let called = most.min(self.asleep.load(Ordering::Relaxed));
        self.asleep.fetch_sub(called, Ordering::Relaxed);
        beds.calls += called;
        drop(beds);
        for _ in 0..called {
            self.workers.notify_one();
        }
    }

    /// Takes pieces until none is left, then shuts the door.
    fn run_pieces(&self, job: Job, index: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _back = Back::after(self.place(index, true));
            // SAFETY: this thread is the caller, or entered through the open door and has not left: the
            // caller has not returned from `share`, so its closure is there.
            let body = unsafe { &*job.body };
            loop {
                let piece = self.next.0.fetch_add(1, Ordering::Relaxed);
                if piece >= job.count {
                    break;
                }
                body(piece);
            }
        }));
        self.door.0.fetch_and(!OPEN, Ordering::SeqCst);
        if let Err(panic) = outcome {
            self.next.0.store(job.count, Ordering::Relaxed);
            let mut beds = self.beds();
            if beds.panic.is_none() {
                beds.panic = Some(panic);
                self.door.0.fetch_or(PANICKED, Ordering::Relaxed);
            } else {
                // Dropping it could panic again, and nothing could report that.
                std::mem::forget(panic);
            }
        }
    }

    /// Returns when no worker is inside. Their writes are then visible here.
    fn wait_until_left(&self) {
        let left = || self.door.0.load(Ordering::Acquire) & INSIDE == 0;
        if self.look_out_for(left) {
            return;
        }
        let mut beds = self.beds();
        self.door.0.fetch_or(AWAITED, Ordering::SeqCst);
        while !left() {
            beds = wait(&self.caller, beds);
        }
        self.door.0.fetch_and(!AWAITED, Ordering::SeqCst);
    }

    /// A worker's life.
    fn work(&self, index: usize) {
        PLACE.set(self.place(index, true));
        self.beds().started += 1;
        self.caller.notify_all();
        loop {
            let door = || self.door.0.load(Ordering::Acquire);
            if !self.look_out_for(|| door() & (OPEN | CLOSING) != 0) {
                self.sleep();
            }
            if door() & CLOSING != 0 {
                return;
            }
            if self.step_inside() {
                // SAFETY: nobody writes the job while somebody is inside, and entering read what the caller
                // released by opening.
                self.run_pieces(unsafe { *self.job.get() }, index);
                self.leave();
            }
        }
    }

    /// Enters if the door is open.
    fn step_inside(&self) -> bool {
        let enter = |door: usize| (door & OPEN != 0).then_some(door + 1);
        self.door.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    fn leave(&self) {
        let before = self.door.0.fetch_sub(1, Ordering::AcqRel);
        if before & AWAITED != 0 && before & INSIDE == 1 {
            // The caller has checked the door and sleeps, or is about to and holds the lock.
            drop(self.beds());
            self.caller.notify_all();
        }
    }

    /// Sleeps until called or until the pool closes. A thread that was called spins again, even if it comes too late
    /// for its job: the next one is near.
    fn sleep(&self) {
        let mut beds = self.beds();
        // Either the caller sees this count, or this thread sees the door open: both are ordered by SeqCst.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        if self.door.0.load(Ordering::SeqCst) & OPEN != 0 {
            self.asleep.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        while beds.calls == 0 && self.door.0.load(Ordering::SeqCst) & CLOSING == 0 {
            beds = wait(&self.workers, beds);
        }
        beds.calls = beds.calls.saturating_sub(1);
    }

    /// Spins for a while until `sight` is true; returns whether it became true.
    fn look_out_for(&self, sight: impl Fn() -> bool) -> bool {
        if sight() {
            return true;
        }
        if self.look_out.is_zero() {
            return false;
        }
        let begin = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if sight() {
                    return true;
                }
                std::hint::spin_loop();
            }
            // A spinning thread is idle, so any thread that wants this core goes first.
            std::thread::yield_now();
            if begin.elapsed() > self.look_out {
                return false;
            }
        }
    }
}

fn wait<'a>(bed: &Condvar, beds: MutexGuard<'a, Beds>) -> MutexGuard<'a, Beds> {
    bed.wait(beds).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
