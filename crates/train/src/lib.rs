//! Around the step: data, learning rate, metrics, and what the machine has to give.
//!
//! Everything here is a library: it prints nothing, reads no environment variable and knows no
//! device by name. A user's fault comes back as an error whose sentence names a way out.

pub mod data;
pub mod lr;
pub mod memory;
pub mod metrics;
pub mod size;

#[cfg(test)]
mod scratch;
