//! NVRTC, the compiler of kernels: its functions by name, and one source made into machine code.
//!
//! Everything that is called is looked up when the library is opened, so that a wrong library is refused with one error.
#![allow(unsafe_code, reason = "calls the compiler")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libloading::os::unix::Library as Shared;
use plimsoll_exec::ExecError;

use super::libraries::{Refusal, Wanted};
use super::symbols::named;
use super::{Libraries, version_text};
use crate::kernels::KernelSource;

/// The oldest version whose code the drivers that we run on load, as 1000 · major + 10 · minor.
const OLDEST: usize = 12_000;
/// A value of an option that the compiler does not know.
const INVALID_OPTION: Status = 5;

const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    package: "nvidia-cuda-nvrtc",
    file: "libnvrtc.so",
    // NVRTC opens its builtins by name, so they must be loaded first.
    before: Some("libnvrtc-builtins.so"),
    otherwise: "",
};

type Raw = *mut c_void;
type Status = c_int;

/// The functions, by the names they have in the library.
#[derive(Clone, Copy, Debug)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Raw,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Raw, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Raw) -> Status,
    code_size: unsafe extern "C" fn(Raw, *mut usize) -> Status,
    code: unsafe extern "C" fn(Raw, *mut c_char) -> Status,
    log_size: unsafe extern "C" fn(Raw, *mut usize) -> Status,
    log: unsafe extern "C" fn(Raw, *mut c_char) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
}

impl Functions {
    /// The functions of a library, or the name of the first that it lacks.
    fn find(library: &Shared) -> Result<Functions, &'static str> {
        // SAFETY: the types are those of the library's header.
        unsafe {
            Ok(Functions {
                version: named(library, "nvrtcVersion")?,
                create: named(library, "nvrtcCreateProgram")?,
                compile: named(library, "nvrtcCompileProgram")?,
                destroy: named(library, "nvrtcDestroyProgram")?,
                code_size: named(library, "nvrtcGetCUBINSize")?,
                code: named(library, "nvrtcGetCUBIN")?,
                log_size: named(library, "nvrtcGetProgramLogSize")?,
                log: named(library, "nvrtcGetProgramLog")?,
                error_string: named(library, "nvrtcGetErrorString")?,
            })
        }
    }

    fn words(&self, status: Status) -> String {
        // SAFETY: a text that lives as long as the library.
        unsafe { CStr::from_ptr((self.error_string)(status)) }.to_string_lossy().into_owned()
    }
}

/// One file of kernels as machine code.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Name of the file.
    pub name: &'static str,
    /// A cubin.
    pub code: Vec<u8>,
    /// The compiler's log, if the compiler ran.
    pub log: Option<String>,
}

/// The compiler, which stays open until the process ends: cuDNN finds it by its name.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    functions: Functions,
    /// As 1000 · major + 10 · minor.
    version: usize,
}

impl Nvrtc {
    /// The first compiler that can be used.
    ///
    /// # Errors
    ///
    /// When there is none, with the reason and the way out.
    pub(crate) fn open(libraries: &Libraries) -> Result<Nvrtc, ExecError> {
        libraries.first_usable(&NVRTC, usable)
    }

    /// The compiler's version as people write it.
    pub(crate) fn version(&self) -> String {
        version_text(self.version, 1000, 10)
    }

    /// Compiles one source for one architecture.
    pub(super) fn compile(
        &self,
        source: &'static KernelSource,
        headers: &[(&str, String)],
        (architecture, options): (&str, &[String]),
    ) -> Result<Compiled, ExecError> {
        let name = format!("{}.cu", source.name);
        let program = self.program(source.text, &name, headers)?;
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let options = pointers(&options);
        // SAFETY: the program lives; the array is as long as said, and its texts outlive the call.
        let status =
            unsafe { (self.functions.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        let log = program.read(self.functions.log_size, self.functions.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if status != 0 {
            return Err(self.refused(&name, architecture, status, &log));
        }
        let code = program.read(self.functions.code_size, self.functions.code);
        let code = code.ok_or_else(|| ExecError::Device(format!("NVRTC gave no code for {name}")))?;
        Ok(Compiled { name: source.name, code, log: Some(log) })
    }

    fn program(&self, code: &str, name: &str, headers: &[(&str, String)]) -> Result<Program<'_>, ExecError> {
        let (code, name) = (text(code)?, text(name)?);
        let texts = headers.iter().map(|(_, header)| text(header)).collect::<Result<Vec<_>, _>>()?;
        let names = headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let (texts, names) = (pointers(&texts), pointers(&names));
        let mut program = Program { functions: &self.functions, raw: std::ptr::null_mut() };
        // SAFETY: arrays are as long as said, and the compiler copies all texts.
        let status = unsafe {
            (self.functions.create)(
                &raw mut program.raw,
                code.as_ptr(),
                name.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        if status == 0 {
            return Ok(program);
        }
        let words = self.functions.words(status);
        Err(ExecError::Device(format!("NVRTC cannot begin to compile: {words}")))
    }

    /// The fault of a compilation in words. An architecture that the compiler does not know is younger than it.
    fn refused(&self, file: &str, architecture: &str, status: Status, log: &str) -> ExecError {
        if status == INVALID_OPTION && log.contains("--gpu-architecture") {
            let version = self.version();
            return ExecError::Unsupported(format!(
                "NVRTC {version} is too old for this GPU, whose architecture {architecture} it does not know; a newer NVRTC is \
                 wanted: {}",
                NVRTC.way_out()
            ));
        }
        let words = self.functions.words(status);
        ExecError::Device(format!("NVRTC cannot compile {file} for {architecture}: {words}\n{log}"))
    }
}

/// The compiler that a library is.
fn usable(library: &Shared) -> Result<Nvrtc, Refusal> {
    let functions = Functions::find(library).map_err(Refusal::Lacks)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: out-parameters that live here.
    let status = unsafe { (functions.version)(&raw mut major, &raw mut minor) };
    let version = if status == 0 { 1000 * major as usize + 10 * minor as usize } else { 0 };
    if version < OLDEST {
        let text = |version| version_text(version, 1000, 10);
        return Err(Refusal::Old { version: text(version), oldest: text(OLDEST) });
    }
    Ok(Nvrtc { functions, version })
}

/// A program of the compiler, destroyed when it is dropped.
struct Program<'a> {
    functions: &'a Functions,
    raw: Raw,
}

impl Program<'_> {
    /// Bytes of a compiled program, from a pair of functions for size and content.
    fn read(
        &self,
        size: unsafe extern "C" fn(Raw, *mut usize) -> Status,
        fill: unsafe extern "C" fn(Raw, *mut c_char) -> Status,
    ) -> Option<Vec<u8>> {
        let mut length = 0;
        // SAFETY: the program lives; the buffer has the size that the compiler names.
        unsafe {
            if size(self.raw, &raw mut length) != 0 {
                return None;
            }
            let mut bytes = vec![0u8; length];
            (fill(self.raw, bytes.as_mut_ptr().cast()) == 0).then_some(bytes)
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created at most once and not used again; the compiler refuses a program that is none.
        unsafe { (self.functions.destroy)(&raw mut self.raw) };
    }
}

fn text(text: &str) -> Result<CString, ExecError> {
    CString::new(text).map_err(|_| ExecError::Device("a kernel's source holds a zero byte".into()))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols::stand_in;
    use crate::kernels::SOURCES;

    const NAMES: [&str; 4] =
        ["nvrtcCreateProgram", "nvrtcDestroyProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"];

    /// A compiler of a version, which knows no architecture.
    fn compiler(major: usize, names: &[&str]) -> String {
        let version = format!("int nvrtcVersion(int* a, int* b) {{ *a = {major}; *b = 4; return 0; }}\n");
        let words = "const char* nvrtcGetErrorString(void) { return \"no such option\"; }\n";
        let log = "const char LOG[] = \"nvrtc: error: invalid value for --gpu-architecture (-arch)\\n\";
                   int nvrtcGetProgramLogSize(void* p, unsigned long* n) { *n = sizeof LOG; return 0; }
                   int nvrtcGetProgramLog(void* p, char* to) { for (int i = 0; i < sizeof LOG; i++) to[i] = LOG[i]; return 0; }
                   int nvrtcCompileProgram(void) { return 5; }\n";
        let plain = names.iter().map(|name| stand_in::answers(name, 0)).collect::<String>();
        version + words + log + &plain
    }

    /// The result of opening a library that is compiled from this source; an error begins with the path of the file.
    fn said(source: &str) -> Result<Nvrtc, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = stand_in::library(folder.path(), "libnvrtc.so.97", source);
        // SAFETY: the functions above.
        let library = unsafe { Shared::open(Some(&path), libloading::os::unix::RTLD_NOW) }.unwrap();
        let found = usable(&library).map_err(|why| NVRTC.refused(&path, &why).to_string());
        std::mem::forget(library);
        found.map_err(|why| why.replace(&path.display().to_string(), "LIBRARY"))
    }

    #[test]
    fn a_compiler_without_functions_or_of_an_old_version_is_refused_with_the_line_that_updates_it() {
        assert_eq!(
            said("").unwrap_err(),
            "LIBRARY cannot be used as NVRTC: it has no function nvrtcVersion; to install one that works: pip install \
             --upgrade nvidia-cuda-nvrtc"
        );
        assert!(said(&compiler(12, &NAMES[1..])).unwrap_err().contains("no function nvrtcCreateProgram"));
        assert_eq!(
            said(&compiler(11, &NAMES)).unwrap_err(),
            "LIBRARY cannot be used as NVRTC: it is version 11.4, and 12.0 or newer is wanted; to install one that works: \
             pip install --upgrade nvidia-cuda-nvrtc"
        );
        assert_eq!(said(&compiler(12, &NAMES)).unwrap().version(), "12.4");
    }

    #[test]
    fn a_compiler_that_does_not_know_the_gpu_says_that_a_newer_one_is_wanted() {
        let old = said(&compiler(12, &NAMES)).unwrap();
        let why = old.compile(&SOURCES[0], &[], ("sm_999", &[])).unwrap_err();
        assert_eq!(
            why.to_string(),
            "NVRTC 12.4 is too old for this GPU, whose architecture sm_999 it does not know; a newer NVRTC is wanted: pip \
             install --upgrade nvidia-cuda-nvrtc"
        );
    }
}
