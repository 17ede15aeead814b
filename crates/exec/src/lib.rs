//! Devices and the run loop.

pub mod cpu;
pub mod random;
