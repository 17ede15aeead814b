//! Splitting work over threads without the result depending on their number.
//!
//! The caller cuts the work into pieces by its shape alone; threads take pieces as they come. Where
//! pieces produce partial sums, the caller adds them in the order of the pieces.

use super::pool;

/// Runs `body` for every piece, on the thread pool the caller is in, or on this thread outside any pool and
/// inside another piece. Allocates nothing.
pub(super) fn for_each(pieces: usize, body: impl Fn(usize) + Sync + Send) {
    pool::for_each(pieces, body);
}

/// Threads of the pool the caller is in: the number of private scratch areas a kernel may need.
pub(super) fn threads() -> usize {
    pool::threads()
}

/// Index of the calling thread in its pool, below [`threads`].
pub(super) fn thread() -> usize {
    pool::thread()
}
