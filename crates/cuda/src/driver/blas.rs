//! Products by cuBLASLt: any mix of types it knows, an addend, one algorithm for each signature.
//!
//! An algorithm is requested once, with the signature's own alignment and a bound on scratch, and kept; so a plan's
//! scratch and a product's bits depend on the signature alone. f32 products are f32 throughout, unless the
//! caller asks for tf32: operands are then rounded to 10 bits behind the point, and sums are f32.
#![allow(unsafe_code, reason = "calls cuBLASLt")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::sys;
use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use sys::cublasComputeType_t as Arithmetic;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cudaDataType_t as Kind;

use super::cublaslt::{Algorithm, CublasLt, Description, Layout, Operands};
use super::{Context, Libraries, Stream};
use crate::lower::{Addend, Library, Product, Signature};

/// The most scratch of an algorithm.
const WORKSPACE: usize = 32 << 20;

/// The library with the algorithms chosen so far.
#[derive(Debug)]
pub(crate) struct Blas {
    context: Arc<Context>,
    library: CublasLt,
    /// Arithmetic of products whose operands are f32.
    whole: Arithmetic,
    chosen: Mutex<BTreeMap<Signature, Option<Chosen>>>,
}

// SAFETY: the handle may be used from any thread; descriptions are used under the lock.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// A product made ready.
#[derive(Debug)]
struct Chosen {
    description: Description,
    /// Layouts of `b`, `a` and `c`: the library takes a matrix stored by rows as its transpose stored by columns.
    layouts: [Layout; 3],
    algorithm: Algorithm,
}

impl Blas {
    pub(crate) fn new(context: &Arc<Context>, libraries: &Libraries, tf32: bool) -> Result<Blas, ExecError> {
        context.enter()?;
        let library = CublasLt::open(context, libraries)?;
        let whole =
            if tf32 { Arithmetic::CUBLAS_COMPUTE_32F_FAST_TF32 } else { Arithmetic::CUBLAS_COMPUTE_32F };
        Ok(Blas { context: Arc::clone(context), library, whole, chosen: Mutex::default() })
    }

    /// Version of the library, in its own numbering.
    pub(crate) fn version(&self) -> usize {
        self.library.version
    }

    /// Queues a product with its scratch at the address `workspace`.
    ///
    /// # Safety
    ///
    /// `address` gives addresses of memory that holds the operands; nothing else uses that or the scratch.
    pub(crate) unsafe fn run(
        &self,
        product: &Product,
        address: impl Fn(crate::lower::Place) -> u64,
        workspace: u64,
        stream: &Stream,
    ) -> Result<(), ExecError> {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = chosen.get_mut(&product.signature).and_then(Option::as_mut);
        let known = known.ok_or_else(|| ExecError::Device("a product that was never chosen".into()))?;
        let [a, b, c] = [product.a, product.b, product.c].map(&address);
        let addend = product.addend.map(&address);
        let beta = f32::from(u8::from(product.signature.adds()));
        // The matrix that is added, or the result itself.
        let added = if product.signature.addend == Addend::Matrix { addend.unwrap_or(c) } else { c };
        let operands = Operands { addresses: [b, a, added, c], layouts: known.layouts, beta };
        // SAFETY: the caller's promise for the addresses; descriptions are those of this signature.
        let queued = unsafe {
            if let (Addend::Row(_), Some(row)) = (product.signature.addend, addend) {
                self.library.set(known.description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &row)?;
            }
            let stream = stream.raw().cast();
            self.library.multiply(known.description, &operands, &known.algorithm, (workspace, stream))
        };
        queued.map_err(|error| ExecError::Device(format!("{error}: {:?}", product.signature)))
    }
}

impl Library for Blas {
    fn workspace(&self, signature: &Signature) -> Option<u64> {
        self.context.enter().ok()?;
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = chosen.entry(*signature).or_insert_with(|| choose(&self.library, signature, self.whole));
        known.as_ref().map(|known| known.algorithm.workspace as u64)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // Descriptions are plain host memory and go with the process.
            self.library.close();
        }
    }
}

impl Signature {
    /// Whether a matrix is added, which the library calls beta.
    fn adds(&self) -> bool {
        matches!(self.addend, Addend::Result | Addend::Matrix)
    }
}

/// The first algorithm that the library offers; `None` if it has no such product.
fn choose(library: &CublasLt, s: &Signature, whole: Arithmetic) -> Option<Chosen> {
    let kinds = match s.dtypes {
        [DType::F32, DType::F32, DType::F32] => [Kind::CUDA_R_32F; 3],
        [DType::Bf16, DType::Bf16, DType::F32] => [Kind::CUDA_R_16BF, Kind::CUDA_R_16BF, Kind::CUDA_R_32F],
        [DType::Bf16, DType::Bf16, DType::Bf16] => [Kind::CUDA_R_16BF; 3],
        _ => return None,
    };
    if matches!(s.addend, Addend::Row(dtype) if dtype != s.dtypes[2]) {
        return None;
    }
    let arithmetic = if s.dtypes[0] == DType::F32 { whole } else { Arithmetic::CUBLAS_COMPUTE_32F };
    describe(library, s, kinds, arithmetic).ok()
}

fn describe(
    library: &CublasLt,
    s: &Signature,
    kinds: [Kind; 3],
    arithmetic: Arithmetic,
) -> Result<Chosen, ExecError> {
    // Row by row (r, c) is column by column (c, r), so the library is asked for cᵀ = bᵀ·aᵀ.
    let order = |rows: usize, columns: usize, transposed: bool| {
        if transposed { [rows, columns] } else { [columns, rows] }
    };
    let (b, a) = (order(s.k, s.n, s.transpose_b), order(s.m, s.k, s.transpose_a));
    let layouts = [
        library.layout(kinds[1], b, s.batch)?,
        library.layout(kinds[0], a, s.batch)?,
        library.layout(kinds[2], [s.n, s.m], s.batch)?,
    ];
    let description = library.description(arithmetic)?;
    // SAFETY: values are of the types that the attributes have.
    unsafe {
        let turned = |transposed: bool| i32::from(transposed); // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1
        library.set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &turned(s.transpose_b))?;
        library.set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &turned(s.transpose_a))?;
        if matches!(s.addend, Addend::Row(_)) {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            library.set(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
    }
    let algorithm = library.choose(description, layouts, (WORKSPACE, s.alignment as usize))?;
    Ok(Chosen { description, layouts, algorithm })
}
