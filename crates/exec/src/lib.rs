//! Devices and the run loop.

pub mod cases;
pub mod cpu;
mod error;
pub mod init;
pub mod random;
pub mod reference;

pub use error::ExecError;
