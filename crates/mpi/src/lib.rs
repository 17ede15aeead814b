//! Ranks that MPI has started: `mpirun -n 4 plimsoll train …`.
//!
//! This crate is one [`Wire`](plimsoll_exec::Wire) for the ranks of `plimsoll-exec`, and empty without the feature `mpi`. It is a
//! crate of its own, so that the feature compiles little more than itself.
#![cfg(feature = "mpi")]

mod wire;

pub use wire::mpi_rank;
