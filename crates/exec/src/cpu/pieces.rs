//! Splitting work over threads without the result depending on their number.
//!
//! The caller cuts the work into pieces by its shape alone; threads take pieces as they come. Where
//! pieces produce partial sums, the caller adds them in the order of the pieces.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// Runs `body` for every piece, on the thread pool the caller is in. Allocates nothing.
pub(super) fn for_each(pieces: usize, body: impl Fn(usize) + Sync + Send) {
    match pieces {
        0 => {}
        1 => body(0),
        _ => (0..pieces).into_par_iter().with_max_len(1).for_each(body),
    }
}

/// Threads of the pool the caller is in: the number of private scratch areas a kernel may need.
pub(super) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Index of the calling thread in its pool, below [`threads`].
pub(super) fn thread() -> usize {
    rayon::current_thread_index().unwrap_or(0)
}
