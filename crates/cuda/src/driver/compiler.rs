//! Sources to machine code: NVRTC, and a folder that keeps its results.
//!
//! A result is cached under a hash of everything it depends on: source, headers, options, architecture. If all results
//! are cached, the compiler is not even loaded.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_exec::ExecError;
use sha2::{Digest, Sha256};

use super::{Compiled, Libraries, Nvrtc};
use crate::kernels::{KernelSource, SOURCES, headers};

/// The compiler for one architecture.
#[derive(Clone, Debug)]
pub(crate) struct Compiler<'a> {
    pub(crate) libraries: &'a Libraries,
    /// The folder in which compiled programs are kept.
    pub(crate) cache: &'a Path,
    /// The architecture, as the option `--gpu-architecture` takes it.
    pub(crate) architecture: &'a str,
}

impl Compiler<'_> {
    /// The code of every file, as kept or compiled now, several at a time.
    ///
    /// # Errors
    ///
    /// When the cache cannot be written, the compiler is missing or too old, or a kernel does not compile.
    pub(crate) fn all(&self) -> Result<Vec<Compiled>, ExecError> {
        let headers = headers();
        let kept: Vec<Option<Compiled>> = SOURCES.iter().map(|source| self.kept(source, &headers)).collect();
        if kept.iter().all(Option::is_some) {
            return Ok(kept.into_iter().flatten().collect());
        }
        fs::create_dir_all(self.cache).map_err(|error| not_writable(self.cache, &error))?;
        let nvrtc = Nvrtc::open(self.libraries)?;
        std::thread::scope(|scope| {
            let (nvrtc, headers) = (&nvrtc, &headers);
            let jobs: Vec<_> = SOURCES
                .iter()
                .zip(kept)
                .map(|(source, kept)| {
                    kept.ok_or_else(|| scope.spawn(move || self.compile_and_keep(nvrtc, source, headers)))
                })
                .collect();
            let failed = || ExecError::Device("the thread of the kernels' compiler failed".into());
            let done = |job: std::thread::ScopedJoinHandle<_>| job.join().map_err(|_| failed())?;
            jobs.into_iter().map(|job| job.or_else(done)).collect()
        })
    }

    /// The compiled code of a file, if the cache has it.
    fn kept(&self, source: &KernelSource, headers: &[(&str, String)]) -> Option<Compiled> {
        let code = fs::read(self.file(source, headers)).ok()?;
        Some(Compiled { name: source.name, code, log: None })
    }

    fn compile_and_keep(
        &self,
        nvrtc: &Nvrtc,
        source: &'static KernelSource,
        headers: &[(&str, String)],
    ) -> Result<Compiled, ExecError> {
        let options = options(source, self.architecture);
        let compiled = nvrtc.compile(source, headers, (self.architecture, &options))?;
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

impl Libraries {
    /// Makes sure of the compiler.
    ///
    /// # Errors
    ///
    /// When no folder has one that can be used.
    pub fn compiler(&self) -> Result<(), ExecError> {
        Nvrtc::open(self).map(drop)
    }

    /// Compiles every file of kernels for an architecture, with no GPU and no cache.
    ///
    /// # Errors
    ///
    /// When the compiler is missing or a kernel does not compile.
    pub fn compile_all(&self, architecture: &str) -> Result<Vec<Compiled>, ExecError> {
        let (nvrtc, headers) = (Nvrtc::open(self)?, headers());
        let compile = |source: &'static KernelSource| {
            nvrtc.compile(source, &headers, (architecture, &options(source, architecture)))
        };
        SOURCES.iter().map(compile).collect()
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
