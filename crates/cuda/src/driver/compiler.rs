//! Sources to machine code: NVRTC, and a folder that keeps its results.
//!
//! A result is cached under a hash of everything it depends on: source, headers, options, architecture. If all results
//! are cached, the compiler is not even loaded.
#![allow(unsafe_code, reason = "calls the compiler")]

use std::ffi::{CString, c_char};
use std::fs;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::sys as nvrtc;
use plimsoll_exec::ExecError;
use sha2::{Digest, Sha256};

use super::Libraries;
use crate::kernels::{KernelSource, SOURCES, headers};

/// One file of kernels as machine code.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Name of the file.
    pub name: &'static str,
    /// A cubin.
    pub code: Vec<u8>,
    /// The compiler's log, if it was called now.
    pub log: Option<String>,
}

/// The compiler for one architecture.
#[derive(Clone, Debug)]
pub(crate) struct Compiler<'a> {
    pub(crate) libraries: &'a Libraries,
    /// Where results are kept.
    pub(crate) cache: &'a Path,
    /// As `--gpu-architecture` takes it.
    pub(crate) architecture: &'a str,
}

impl Compiler<'_> {
    /// The code of every file, as kept or compiled now, several at a time.
    ///
    /// # Errors
    ///
    /// When the cache cannot be written, the compiler is missing, or a kernel does not compile.
    pub(crate) fn all(&self) -> Result<Vec<Compiled>, ExecError> {
        let headers = headers();
        let kept: Vec<Option<Vec<u8>>> =
            SOURCES.iter().map(|source| fs::read(self.file(source, &headers)).ok()).collect();
        if kept.iter().any(Option::is_none) {
            fs::create_dir_all(self.cache).map_err(|error| not_writable(self.cache, &error))?;
            self.libraries.compiler()?;
        }
        std::thread::scope(|scope| {
            let headers = &headers;
            let jobs: Vec<_> = SOURCES
                .iter()
                .zip(kept)
                .map(|(source, kept)| match kept {
                    Some(code) => Ok(Compiled { name: source.name, code, log: None }),
                    None => Err(scope.spawn(move || self.compile_and_keep(source, headers))),
                })
                .collect();
            let failed = || ExecError::Device("the thread of the kernels' compiler failed".into());
            let done = |job: std::thread::ScopedJoinHandle<_>| job.join().map_err(|_| failed())?;
            jobs.into_iter().map(|job| job.or_else(done)).collect()
        })
    }

    fn compile_and_keep(
        &self,
        source: &'static KernelSource,
        headers: &[(&str, String)],
    ) -> Result<Compiled, ExecError> {
        let compiled = compile(source, headers, self.architecture)?;
        let file = self.file(source, headers);
        let beside = file.with_extension(format!("{}.part", std::process::id()));
        fs::write(&beside, &compiled.code)
            .and_then(|()| fs::rename(&beside, &file))
            .map_err(|error| not_writable(self.cache, &error))?;
        Ok(compiled)
    }

    /// Where the code of a source is kept.
    fn file(&self, source: &KernelSource, headers: &[(&str, String)]) -> PathBuf {
        let mut hash = Sha256::new();
        let texts = headers.iter().map(|(_, text)| text.as_str()).chain([source.text, self.architecture]);
        for text in texts.chain(options(source, self.architecture).iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let hash = hash.finalize();
        let (high, low) = hash.split_at(8);
        let number =
            |bytes: &[u8]| bytes.iter().take(8).fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let name = format!("{:016x}{:08x}", number(high), number(&low[..4]));
        self.cache.join(format!("{}-{}-{name}.cubin", source.name, self.architecture))
    }
}

fn not_writable(folder: &Path, error: &std::io::Error) -> ExecError {
    ExecError::Device(format!(
        "the folder for compiled kernels, {}, cannot be written: {error}; set XDG_CACHE_HOME to one that can",
        folder.display()
    ))
}

fn options(source: &KernelSource, architecture: &str) -> Vec<String> {
    let fused = if source.fused { "true" } else { "false" };
    vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".into(),
        format!("--fmad={fused}"),
        "--ptxas-options=-v".into(),
    ]
}

/// A program of the compiler, destroyed when it goes.
struct Program(nvrtc::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once and not used again.
        unsafe { nvrtc::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// Compiles one source for one architecture.
fn compile(
    source: &'static KernelSource,
    headers: &[(&str, String)],
    architecture: &str,
) -> Result<Compiled, ExecError> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| ExecError::Device("a kernel's source holds a zero byte".into()))
    };
    let (code, name) = (text(source.text)?, text(&format!("{}.cu", source.name))?);
    let texts = headers.iter().map(|(_, header)| text(header)).collect::<Result<Vec<_>, _>>()?;
    let names = headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
    let options =
        options(source, architecture).iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all texts outlive the calls; counts are those of the arrays; the log and the code are read into buffers of
    // the sizes that the compiler names.
    unsafe {
        let created = nvrtc::nvrtcCreateProgram(
            &raw mut program.0,
            code.as_ptr(),
            name.as_ptr(),
            texts.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        );
        let compiled = created.result().and_then(|()| {
            nvrtc::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()).result()
        });
        let log = log_of(&program);
        if let Err(error) = compiled {
            let what = format!("{}.cu for {architecture}", source.name);
            return Err(ExecError::Device(format!("NVRTC cannot compile {what}: {error}\n{log}")));
        }
        let failed = |_| ExecError::Device(format!("NVRTC gave no code for {}.cu", source.name));
        let mut bytes = 0;
        nvrtc::nvrtcGetCUBINSize(program.0, &raw mut bytes).result().map_err(failed)?;
        let mut code = vec![0u8; bytes];
        nvrtc::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()).result().map_err(failed)?;
        Ok(Compiled { name: source.name, code, log: Some(log) })
    }
}

/// # Safety
///
/// The program was compiled, with whatever success.
unsafe fn log_of(program: &Program) -> String {
    // SAFETY: the caller's promise; the buffer has the size that the compiler names.
    unsafe {
        let mut bytes = 0;
        if nvrtc::nvrtcGetProgramLogSize(program.0, &raw mut bytes).result().is_err() {
            return String::new();
        }
        let mut log = vec![0u8; bytes];
        let read = nvrtc::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast()).result();
        read.map_or_else(
            |_| String::new(),
            |()| String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned(),
        )
    }
}

impl Libraries {
    /// Compiles every file of kernels for an architecture, with no GPU and no cache.
    ///
    /// # Errors
    ///
    /// When the compiler is missing or a kernel does not compile.
    pub fn compile_all(&self, architecture: &str) -> Result<Vec<Compiled>, ExecError> {
        self.compiler()?;
        let headers = headers();
        SOURCES.iter().map(|source| compile(source, &headers, architecture)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_result_is_found_by_all_it_depends_on() {
        let libraries = Libraries::default();
        let compiler = Compiler { libraries: &libraries, cache: Path::new("/cache"), architecture: "sm_90a" };
        let headers = headers();
        let file = |compiler: &Compiler, source: &KernelSource, headers: &[(&str, String)]| {
            compiler.file(source, headers)
        };
        let first = file(&compiler, &SOURCES[0], &headers);
        assert_eq!(first, file(&compiler, &SOURCES[0], &headers));
        let other = Compiler { architecture: "sm_80", ..compiler.clone() };
        let mut edited = headers.clone();
        edited[0].1.push(' ');
        let source = KernelSource { text: "// other", ..SOURCES[0] };
        let fused = KernelSource { fused: false, ..SOURCES[0] };
        for changed in [
            file(&other, &SOURCES[0], &headers),
            file(&compiler, &SOURCES[0], &edited),
            file(&compiler, &source, &headers),
            file(&compiler, &fused, &headers),
        ] {
            assert_ne!(first, changed);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let libraries = Libraries::default();
        let cache = file.join("cubin");
        let compiler = Compiler { libraries: &libraries, cache: &cache, architecture: "sm_90a" };
        let why = compiler.all().unwrap_err().to_string();
        assert!(
            why.starts_with("the folder for compiled kernels, ") && why.contains("XDG_CACHE_HOME"),
            "{why}"
        );
    }
}
