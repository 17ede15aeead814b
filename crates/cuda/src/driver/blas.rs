//! Products by cuBLASLt: any mix of types it knows, an addend, one algorithm for each signature.
//!
//! An algorithm is requested once, with the signature's own alignment and a bound on scratch, and kept; so a plan's
//! scratch and a product's bits depend on the signature alone. f32 products are f32 throughout, unless the
//! caller asks for tf32: operands are then rounded to 10 bits behind the point, and sums are f32.
#![allow(unsafe_code, reason = "calls cuBLASLt")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result as lt, sys};
use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use sys::cublasLtMatrixLayoutAttribute_t as LayoutAttribute;

use super::{Context, Libraries, Stream};
use crate::lower::{Addend, Library, Product, Signature};

/// The most scratch of an algorithm.
const WORKSPACE: usize = 32 << 20;

/// The library with the algorithms chosen so far.
#[derive(Debug)]
pub(crate) struct Blas {
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
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
    description: sys::cublasLtMatmulDesc_t,
    /// Layouts of `b`, `a` and `c`: the library takes a matrix stored by rows as its transpose stored by columns.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Blas {
    pub(crate) fn new(context: &Arc<Context>, libraries: &Libraries, tf32: bool) -> Result<Blas, ExecError> {
        libraries.products()?;
        context.enter()?;
        let handle = lt::create_handle().map_err(|error| fault("opening cuBLASLt", error))?;
        let whole =
            if tf32 { Arithmetic::CUBLAS_COMPUTE_32F_FAST_TF32 } else { Arithmetic::CUBLAS_COMPUTE_32F };
        Ok(Blas { context: Arc::clone(context), handle, whole, chosen: Mutex::default() })
    }

    /// Version of the library, as it counts.
    pub(crate) fn version() -> usize {
        // SAFETY: no operands; the library is loaded.
        unsafe { sys::cublasLtGetVersion() }
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
        let (one, beta) = (1f32, f32::from(u8::from(product.signature.adds())));
        // The matrix that is added, or the result itself.
        let added = if product.signature.addend == Addend::Matrix { addend.unwrap_or(c) } else { c };
        // SAFETY: the caller's promise for the addresses; descriptions are those of this signature.
        let queued = unsafe {
            if let (Addend::Row(_), Some(row)) = (product.signature.addend, addend) {
                set(known.description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &row)
                    .map_err(|error| fault("naming a bias", error))?;
            }
            lt::matmul(
                self.handle,
                known.description,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                b as *const c_void,
                known.layouts[0],
                a as *const c_void,
                known.layouts[1],
                added as *const c_void,
                known.layouts[2],
                c as *mut c_void,
                known.layouts[2],
                &raw const known.algorithm,
                workspace as *mut c_void,
                known.workspace,
                stream.raw().cast(),
            )
        };
        queued.map_err(|error| fault(&format!("multiplying {:?}", product.signature), error))
    }
}

impl Library for Blas {
    fn workspace(&self, signature: &Signature) -> Option<u64> {
        self.context.enter().ok()?;
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = chosen.entry(*signature).or_insert_with(|| choose(self.handle, signature, self.whole));
        known.as_ref().map(|known| known.workspace as u64)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created once; descriptions are plain host memory and go with the process.
            let _ = unsafe { lt::destroy_handle(self.handle) };
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
fn choose(handle: sys::cublasLtHandle_t, s: &Signature, whole: Arithmetic) -> Option<Chosen> {
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
    describe(handle, s, kinds, arithmetic).ok()
}

use sys::cublasComputeType_t as Arithmetic;
use sys::cudaDataType_t as Kind;

fn describe(
    handle: sys::cublasLtHandle_t,
    s: &Signature,
    kinds: [Kind; 3],
    arithmetic: Arithmetic,
) -> Result<Chosen, CublasError> {
    // Row by row (r, c) is column by column (c, r), so the library is asked for cᵀ = bᵀ·aᵀ.
    let order = |rows: usize, columns: usize, transposed: bool| {
        if transposed { (rows, columns) } else { (columns, rows) }
    };
    let ((b_rows, b_columns), (a_rows, a_columns)) =
        (order(s.k, s.n, s.transpose_b), order(s.m, s.k, s.transpose_a));
    let layout = |kind, rows: usize, columns: usize| {
        let layout = lt::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)?;
        if s.batch > 1 {
            let (count, stride) = (s.batch as i32, (rows * columns) as i64);
            // SAFETY: the layout was just made; the values are of the types that the attributes have.
            unsafe {
                set_layout(layout, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count)?;
                set_layout(layout, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride)?;
            }
        }
        Ok(layout)
    };
    let layouts = [
        layout(kinds[1], b_rows, b_columns)?,
        layout(kinds[0], a_rows, a_columns)?,
        layout(kinds[2], s.n, s.m)?,
    ];
    let description = lt::create_matmul_desc(arithmetic, Kind::CUDA_R_32F)?;
    let preference = lt::create_matmul_pref()?;
    // SAFETY: everything was made above and lives; values are of the types that the attributes have.
    unsafe {
        let turned = |transposed: bool| i32::from(transposed); // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1
        set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &turned(s.transpose_b))?;
        set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &turned(s.transpose_a))?;
        if matches!(s.addend, Addend::Row(_)) {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        prefer(preference, Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        for side in [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            prefer(preference, side, &(s.alignment as u32))?;
        }
        let [b, a, c] = layouts;
        let found = lt::get_matmul_algo_heuristic(handle, description, b, a, c, c, preference);
        let _ = lt::destroy_matmul_pref(preference);
        let found = found?;
        Ok(Chosen { description, layouts, algorithm: found.algo, workspace: found.workspaceSize })
    }
}

/// # Safety
///
/// The attribute is of type `T`.
unsafe fn set<T>(to: sys::cublasLtMatmulDesc_t, attribute: Attribute, value: &T) -> Result<(), CublasError> {
    // SAFETY: the caller's promise.
    unsafe { lt::set_matmul_desc_attribute(to, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// # Safety
///
/// As for [`set`].
unsafe fn set_layout<T>(
    to: sys::cublasLtMatrixLayout_t,
    attribute: LayoutAttribute,
    value: &T,
) -> Result<(), CublasError> {
    // SAFETY: the caller's promise.
    unsafe {
        lt::set_matrix_layout_attribute(to, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    }
}

/// # Safety
///
/// As for [`set`].
unsafe fn prefer<T>(
    to: sys::cublasLtMatmulPreference_t,
    attribute: Preference,
    value: &T,
) -> Result<(), CublasError> {
    // SAFETY: the caller's promise.
    unsafe { lt::set_matmul_pref_attribute(to, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn fault(doing: &str, error: CublasError) -> ExecError {
    ExecError::Device(format!("cuBLASLt failed: {doing}: {:?}", error.0))
}
