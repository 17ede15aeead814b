//! cuBLASLt: its functions by name, and the descriptions that products are made of.
//!
//! As for NVRTC, everything that is called is looked up when the library is opened.
#![allow(unsafe_code, reason = "calls cuBLASLt")]

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::cublaslt::sys;
use libloading::os::unix::Library as Shared;
use plimsoll_exec::ExecError;
use sys::cublasLtMatmulDescAttributes_t as OfProduct;
use sys::cublasLtMatmulPreferenceAttributes_t as OfPreference;
use sys::cublasLtMatrixLayoutAttribute_t as OfLayout;

use super::libraries::{Refusal, Wanted};
use super::symbols::named;
use super::{Context, Libraries, version_text};

/// The oldest version of the generation that the drivers we run on load, as 10,000 · major + 100 · minor.
const OLDEST: usize = 120_000;

const CUBLASLT: Wanted = Wanted {
    name: "cuBLASLt",
    package: "nvidia-cublas",
    file: "libcublasLt.so",
    before: None,
    otherwise: "",
};

pub(super) type Handle = sys::cublasLtHandle_t;
pub(super) type Description = sys::cublasLtMatmulDesc_t;
pub(super) type Layout = sys::cublasLtMatrixLayout_t;
type Preferences = sys::cublasLtMatmulPreference_t;
type Status = c_int;

/// The functions, by the names they have in the library.
#[derive(Clone, Copy, Debug)]
struct Functions {
    version: unsafe extern "C" fn() -> usize,
    status_name: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    create_product:
        unsafe extern "C" fn(*mut Description, sys::cublasComputeType_t, sys::cudaDataType_t) -> Status,
    set_product: unsafe extern "C" fn(Description, OfProduct, *const c_void, usize) -> Status,
    create_layout: unsafe extern "C" fn(*mut Layout, sys::cudaDataType_t, u64, u64, i64) -> Status,
    set_layout: unsafe extern "C" fn(Layout, OfLayout, *const c_void, usize) -> Status,
    create_preferences: unsafe extern "C" fn(*mut Preferences) -> Status,
    destroy_preferences: unsafe extern "C" fn(Preferences) -> Status,
    set_preference: unsafe extern "C" fn(Preferences, OfPreference, *const c_void, usize) -> Status,
    choose: unsafe extern "C" fn(
        Handle,
        Description,
        Layout,
        Layout,
        Layout,
        Layout,
        Preferences,
        c_int,
        *mut sys::cublasLtMatmulHeuristicResult_t,
        *mut c_int,
    ) -> Status,
    multiply: unsafe extern "C" fn(
        Handle,
        Description,
        *const c_void,
        *const c_void,
        Layout,
        *const c_void,
        Layout,
        *const c_void,
        *const c_void,
        Layout,
        *mut c_void,
        Layout,
        *const sys::cublasLtMatmulAlgo_t,
        *mut c_void,
        usize,
        *mut c_void,
    ) -> Status,
}

impl Functions {
    /// The functions of a library, or the name of the first that it lacks.
    fn find(library: &Shared) -> Result<Functions, &'static str> {
        // SAFETY: the types are those of the library's header, whose statuses are numbers.
        unsafe {
            Ok(Functions {
                version: named(library, "cublasLtGetVersion")?,
                status_name: named(library, "cublasLtGetStatusName")?,
                create: named(library, "cublasLtCreate")?,
                destroy: named(library, "cublasLtDestroy")?,
                create_product: named(library, "cublasLtMatmulDescCreate")?,
                set_product: named(library, "cublasLtMatmulDescSetAttribute")?,
                create_layout: named(library, "cublasLtMatrixLayoutCreate")?,
                set_layout: named(library, "cublasLtMatrixLayoutSetAttribute")?,
                create_preferences: named(library, "cublasLtMatmulPreferenceCreate")?,
                destroy_preferences: named(library, "cublasLtMatmulPreferenceDestroy")?,
                set_preference: named(library, "cublasLtMatmulPreferenceSetAttribute")?,
                choose: named(library, "cublasLtMatmulAlgoGetHeuristic")?,
                multiply: named(library, "cublasLtMatmul")?,
            })
        }
    }

    fn ok(&self, status: Status, doing: &str) -> Result<(), ExecError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a text that lives as long as the library.
        let name = unsafe { CStr::from_ptr((self.status_name)(status)) }.to_string_lossy();
        Err(ExecError::Device(format!("cuBLASLt failed: {doing}: {name}")))
    }
}

/// The library of a version. It stays open until the process ends, as its descriptions may.
fn usable(library: &Shared) -> Result<(Functions, usize), Refusal> {
    let functions = Functions::find(library).map_err(Refusal::Lacks)?;
    // SAFETY: no operands.
    let version = unsafe { (functions.version)() };
    if version < OLDEST {
        let text = |version| version_text(version, 10_000, 100);
        return Err(Refusal::Old { version: text(version), oldest: text(OLDEST) });
    }
    Ok((functions, version))
}

/// An algorithm for one product, and its scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Algorithm {
    algorithm: sys::cublasLtMatmulAlgo_t,
    pub(super) workspace: usize,
}

/// A product's operands: their addresses with the layouts of the first two, and that of what is added and of the result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    pub(super) addresses: [u64; 4],
    pub(super) layouts: [Layout; 3],
    /// 1 where something is added, else 0.
    pub(super) beta: f32,
}

/// The library, open on a GPU.
#[derive(Debug)]
pub(super) struct CublasLt {
    functions: Functions,
    handle: Handle,
    pub(super) version: usize,
}

impl CublasLt {
    /// Opens the first library that can be used.
    ///
    /// # Errors
    ///
    /// When there is none, with the reason and the way out, or it refuses to open.
    pub(super) fn open(context: &Context, libraries: &Libraries) -> Result<CublasLt, ExecError> {
        let (functions, version) = libraries.first_usable(&CUBLASLT, usable)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (functions.create)(&raw mut handle) };
        functions.ok(status, "opening").map_err(|error| context.perhaps_older_than(CUBLASLT.name, &error))?;
        Ok(CublasLt { functions, handle, version })
    }

    /// Gives the handle back.
    pub(super) fn close(&self) {
        // SAFETY: its owner calls this once, at its end.
        unsafe { (self.functions.destroy)(self.handle) };
    }

    /// A product in this arithmetic, scaled by f32 numbers.
    pub(super) fn description(&self, arithmetic: sys::cublasComputeType_t) -> Result<Description, ExecError> {
        let mut product = std::ptr::null_mut();
        let scale = sys::cudaDataType_t::CUDA_R_32F;
        // SAFETY: an out-parameter that lives here.
        let status = unsafe { (self.functions.create_product)(&raw mut product, arithmetic, scale) };
        self.functions.ok(status, "describing a product").map(|()| product)
    }

    /// Gives an attribute of a product its value.
    ///
    /// # Safety
    ///
    /// The attribute is of type `T`.
    pub(super) unsafe fn set<T>(
        &self,
        product: Description,
        attribute: OfProduct,
        value: &T,
    ) -> Result<(), ExecError> {
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions.set_product)(product, attribute, value, size_of::<T>()) };
        self.functions.ok(status, "describing a product")
    }

    /// A matrix stored by columns without gaps, or `batch` of them one behind the other.
    pub(super) fn layout(
        &self,
        kind: sys::cudaDataType_t,
        [rows, columns]: [usize; 2],
        batch: usize,
    ) -> Result<Layout, ExecError> {
        let (mut layout, doing) = (std::ptr::null_mut(), "describing a matrix");
        let (count, stride) = (batch as i32, (rows * columns) as i64);
        let Functions { create_layout, set_layout, .. } = self.functions;
        // SAFETY: an out-parameter that lives here; the values are of the types that the attributes have.
        unsafe {
            let created = create_layout(&raw mut layout, kind, rows as u64, columns as u64, rows as i64);
            self.functions.ok(created, doing)?;
            if batch > 1 {
                let set = |attribute, value: *const c_void, bytes| {
                    self.functions.ok(set_layout(layout, attribute, value, bytes), doing)
                };
                let counted = OfLayout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
                set(counted, (&raw const count).cast(), size_of::<i32>())?;
                let strided = OfLayout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                set(strided, (&raw const stride).cast(), size_of::<i64>())?;
            }
        }
        Ok(layout)
    }

    /// The first algorithm that the library offers for a product within that much scratch and for that alignment.
    pub(super) fn choose(
        &self,
        product: Description,
        [b, a, c]: [Layout; 3],
        (workspace, alignment): (usize, usize),
    ) -> Result<Algorithm, ExecError> {
        let (mut preferences, doing) = (std::ptr::null_mut(), "choosing an algorithm");
        let (mut found, mut count) = (std::mem::MaybeUninit::zeroed(), 0);
        let Functions { create_preferences, choose, destroy_preferences, .. } = self.functions;
        // SAFETY: out-parameters that live here; a result of zeros is a valid one.
        let status = unsafe {
            self.functions.ok(create_preferences(&raw mut preferences), doing)?;
            let preferred = self.prefer(preferences, workspace, alignment);
            let status =
                choose(self.handle, product, b, a, c, c, preferences, 1, found.as_mut_ptr(), &raw mut count);
            destroy_preferences(preferences);
            preferred.map(|()| status)?
        };
        self.functions.ok(status, doing)?;
        if count == 0 {
            return Err(ExecError::Unsupported("cuBLASLt has no algorithm for this product".into()));
        }
        // SAFETY: the library has written one result.
        let found: sys::cublasLtMatmulHeuristicResult_t = unsafe { found.assume_init() };
        Ok(Algorithm { algorithm: found.algo, workspace: found.workspaceSize })
    }

    /// States the most scratch, and the alignment of all operands.
    fn prefer(&self, preferences: Preferences, workspace: usize, alignment: usize) -> Result<(), ExecError> {
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preferences live; values are of the types that the attributes have.
            let status = unsafe { (self.functions.set_preference)(preferences, attribute, value, bytes) };
            self.functions.ok(status, "choosing an algorithm")
        };
        let most = OfPreference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        set(most, (&raw const workspace).cast(), size_of::<usize>())?;
        let alignment = alignment as u32;
        [
            OfPreference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            OfPreference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            OfPreference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            OfPreference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ]
        .into_iter()
        .try_for_each(|side| set(side, (&raw const alignment).cast(), size_of::<u32>()))
    }

    /// Queues a product.
    ///
    /// # Safety
    ///
    /// The addresses hold matrices of these layouts, nothing else uses them or the scratch, and the stream lives.
    pub(super) unsafe fn multiply(
        &self,
        product: Description,
        operands: &Operands,
        algorithm: &Algorithm,
        (workspace, stream): (u64, *mut c_void),
    ) -> Result<(), ExecError> {
        let Operands { addresses: [b, a, added, c], layouts, beta } = *operands;
        let one = 1f32;
        // SAFETY: the caller's promise.
        let status = unsafe {
            (self.functions.multiply)(
                self.handle,
                product,
                (&raw const one).cast(),
                b as *const c_void,
                layouts[0],
                a as *const c_void,
                layouts[1],
                (&raw const beta).cast(),
                added as *const c_void,
                layouts[2],
                c as *mut c_void,
                layouts[2],
                &raw const algorithm.algorithm,
                workspace as *mut c_void,
                algorithm.workspace,
                stream,
            )
        };
        self.functions.ok(status, "multiplying")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols::stand_in;

    const NAMES: [&str; 12] = [
        "cublasLtGetStatusName",
        "cublasLtCreate",
        "cublasLtDestroy",
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutSetAttribute",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul",
    ];

    #[test]
    fn a_library_without_functions_or_of_an_old_version_is_refused_with_the_line_that_updates_it() {
        let said = |version, names: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let names = names.iter().chain(&["cublasLtGetVersion"]);
            let source: String = names.map(|name| stand_in::answers(name, version)).collect();
            let path = stand_in::library(folder.path(), "libcublasLt.so.97", &source);
            // SAFETY: the functions above, of which the test calls the one that asks for the version.
            let library = unsafe { Shared::open(Some(&path), libloading::os::unix::RTLD_NOW) }.unwrap();
            usable(&library)
                .map(|(_, version)| version)
                .map_err(|why| CUBLASLT.refused("LIBRARY".as_ref(), &why).to_string())
        };
        let refused = |why: &str| {
            Err(format!(
                "LIBRARY cannot be used as cuBLASLt: {why}; to install one that works: pip install --upgrade nvidia-cublas"
            ))
        };
        assert_eq!(said(111_103, &NAMES), refused("it is version 11.11.3, and 12.0.0 or newer is wanted"));
        assert_eq!(said(OLDEST, &NAMES), Ok(OLDEST));
        assert_eq!(said(OLDEST, &NAMES[..11]), refused("it has no function cublasLtMatmul"));
    }
}
