//! Settings of an open GPU.

use std::path::PathBuf;

use crate::driver::{CudaTarget, Libraries};
use crate::lower::Limits;

/// Kernels or libraries that multiply matrices and compute attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Products {
    /// cuBLASLt and, where it is installed, cuDNN; our own kernels where they have no such op.
    #[default]
    Library,
    /// As `Library`, with products of f32 operands in tf32.
    Tf32,
    /// Our own kernel alone.
    Own,
}

/// How a GPU is opened.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// The GPU to open.
    pub target: CudaTarget,
    /// Where libraries are looked for.
    pub libraries: Libraries,
    /// Folder that keeps compiled kernels.
    pub cache: PathBuf,
    /// Kernels or libraries for products and attention.
    pub products: Products,
    /// Sizes of chunks.
    pub limits: Limits,
}
