//! Devices and the run loop.

pub mod cpu;
mod error;
pub mod random;

pub use error::ExecError;
