//! The promises of a pool: every piece once, no hang, panics where the caller can see them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Miri takes some thousand times as long.
const TINY_JOBS: usize = if cfg!(miri) { 100 } else { 100_000 };
const ROUNDS: usize = if cfg!(miri) { 10 } else { 500 };

/// How often each piece of a job ran.
fn visits(count: usize) -> Vec<usize> {
    let visits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    for_each(count, |piece| {
        visits[piece].fetch_add(1, Ordering::Relaxed);
    });
    visits.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_piece_runs_exactly_once() {
    for threads in 1..=4 {
        Pool::new(threads).unwrap().enter(|| {
            for count in [0, 1, 2, 3, 7, 64, 2 * ROUNDS] {
                assert_eq!(visits(count), vec![1; count], "{threads} threads");
            }
        });
    }
}

#[test]
fn all_threads_of_a_pool_help() {
    for threads in 1..=4 {
        let (barrier, indices) = (Barrier::new(threads), Mutex::new(BTreeSet::new()));
        Pool::new(threads).unwrap().enter(|| {
            // No thread passes the barrier unless each has taken one piece.
            for_each(threads, |_| {
                barrier.wait();
                indices.lock().unwrap().insert(thread());
                assert_eq!(super::threads(), threads);
            });
        });
        assert_eq!(indices.into_inner().unwrap(), (0..threads).collect());
    }
}

#[test]
fn outside_any_pool_work_stays_on_this_thread() {
    let here = std::thread::current().id();
    for_each(10, |_| assert_eq!(std::thread::current().id(), here));
    assert_eq!((threads(), thread()), (1, 0));
    Pool::new(3).unwrap().enter(|| assert_eq!((threads(), thread()), (3, 0)));
    assert_eq!((threads(), thread()), (1, 0));
}

#[test]
fn a_job_within_a_piece_runs_on_the_thread_of_the_piece() {
    let runs = AtomicUsize::new(0);
    let pool = Pool::new(3).unwrap();
    pool.enter(|| {
        for_each(20, |_| {
            let outer = (std::thread::current().id(), thread());
            pool.enter(|| {
                for_each(5, |_| {
                    assert_eq!((std::thread::current().id(), thread()), outer);
                    runs.fetch_add(1, Ordering::Relaxed);
                });
            });
        });
    });
    assert_eq!(runs.into_inner(), 100);
}

#[test]
fn the_only_piece_of_a_job_may_share_work_out() {
    let barrier = Barrier::new(2);
    Pool::new(2).unwrap().enter(|| {
        for_each(1, |_| {
            for_each(2, |_| {
                barrier.wait();
            });
        });
    });
}

#[test]
fn a_panic_of_any_thread_reaches_the_caller_and_the_pool_lives_on() {
    for threads in 1..=4 {
        let pool = Pool::new(threads).unwrap();
        for culprit in 0..threads {
            let barrier = Barrier::new(threads);
            let body = |_| {
                barrier.wait();
                assert!(thread() != culprit, "thread {culprit} gives up");
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.enter(|| for_each(threads, body))));
            let message = *outcome.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("thread {culprit} gives up"));
            assert_eq!((super::threads(), thread()), (1, 0), "the caller has left the pool");
            assert_eq!(pool.enter(|| visits(50)), vec![1; 50]);
        }
    }
}

#[test]
fn a_panic_of_every_piece_is_one_panic() {
    let pool = Pool::new(4).unwrap();
    for _ in 0..ROUNDS / 10 {
        let outcome =
            catch_unwind(AssertUnwindSafe(|| pool.enter(|| for_each(100, |_| panic!("all at once")))));
        assert!(outcome.is_err());
    }
    assert_eq!(pool.enter(|| visits(100)), vec![1; 100]);
}

#[test]
fn many_pools_serve_one_thread() {
    let pools: Vec<Pool> = (0..12).map(|index| Pool::new(1 + index % 4).unwrap()).collect();
    for _ in 0..ROUNDS.min(20) {
        for pool in &pools {
            assert_eq!(pool.enter(|| visits(9)), vec![1; 9]);
        }
    }
    let [outer, inner] = [3, 2].map(|threads| Pool::new(threads).unwrap());
    outer.enter(|| {
        for_each(6, |_| {
            assert_eq!(inner.enter(|| (threads(), visits(9))), (2, vec![1; 9]));
            inner.enter(|| outer.enter(|| assert_eq!(visits(4), [1; 4])));
            assert_eq!(threads(), 3);
        });
    });
}

#[test]
fn one_pool_serves_several_threads() {
    let pool = Pool::new(3).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for count in 0..ROUNDS {
                    assert_eq!(pool.enter(|| visits(count % 30)), vec![1; count % 30]);
                }
            });
        }
    });
}

#[test]
fn a_hundred_thousand_tiny_jobs_do_what_one_thread_does() {
    for threads in [2, 4] {
        let pool = Pool::new(threads).unwrap();
        let mut sums = [0_usize; 3];
        pool.enter(|| {
            for job in 0..TINY_JOBS {
                // Unsynchronised writes on purpose: the end of a job must make them visible.
                let lent = Lent(sums.as_mut_ptr());
                for_each(3, |piece| lent.add(piece, job));
            }
        });
        assert_eq!(sums, [TINY_JOBS * (TINY_JOBS - 1) / 2; 3]);
    }
}

#[test]
fn workers_that_fell_asleep_are_woken() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..20 {
        while pool.shared.asleep.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let barrier = Barrier::new(2);
        pool.enter(|| {
            for_each(2, |_| {
                barrier.wait();
            });
        });
    }
}

#[test]
fn a_pool_that_never_worked_can_be_dropped() {
    for round in 0..ROUNDS.min(200) {
        drop(Pool::new(1 + round % 4).unwrap());
    }
}

#[derive(Clone, Copy)]
struct Lent(*mut usize);

// SAFETY: each piece of a job writes an element of its own, and jobs follow each other.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    fn add(self, index: usize, number: usize) {
        // SAFETY: there are three pieces and three elements.
        unsafe { *self.0.add(index) += number }
    }
}
