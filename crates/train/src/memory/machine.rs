//! The machine's means, read from the kernel's files: processor, memory, disk, graphics cards.
//!
//! Nothing here fails: a fact that cannot be determined is absent, and the caller reports that.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_exec::cpu::{DiskTier, free_disk_bytes};
use serde::Serialize;

use crate::memory;

/// The machine as it was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// The processor.
    pub cpu: Cpu,
    /// Bytes that can be had now without swapping; limits of containers included.
    pub memory_free_bytes: Option<u64>,
    /// Bytes in all; limits of containers included.
    pub memory_total_bytes: Option<u64>,
    /// The disk of a folder.
    pub disk: Disk,
    /// Graphics cards.
    pub gpu: Gpu,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The name that the maker gives the processor.
    pub model: Option<String>,
    /// The vector instructions that it has and kernels use.
    pub features: Vec<&'static str>,
    /// Cores, if the kernel tells them from threads.
    pub cores: Option<usize>,
    /// Threads that this process may run at once.
    pub threads: usize,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// The folder whose disk was examined.
    pub folder: PathBuf,
    /// Bytes that can still be written.
    pub free_bytes: Option<u64>,
    /// Whether files can be read and written past the page cache, as offload wants; absent where no file can
    /// be made.
    pub direct: Option<bool>,
}

/// Graphics cards and the library that drives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Names, as NVIDIA's driver tells them.
    pub cards: Vec<String>,
    /// The driver's version.
    pub driver: Option<String>,
    /// Where the driver's library lies.
    pub library: Option<PathBuf>,
    /// NVIDIA's cards on the bus, which are visible without a driver too.
    pub on_bus: usize,
}

/// Where Linux distributions put libraries.
const LIBRARY_FOLDERS: [&str; 5] =
    ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/wsl/lib", "usr/local/cuda/compat"];

/// Vector instructions that kernels are compiled for.
const FEATURES: [&str; 5] = ["avx2", "fma", "avx512f", "avx512_bf16", "neon"];

impl Machine {
    /// Examines this machine and the disk of `folder`.
    pub fn look(folder: &Path) -> Machine {
        Machine {
            cpu: Cpu::look(),
            memory_free_bytes: memory::available().ok(),
            memory_total_bytes: memory::total().ok(),
            disk: Disk {
                folder: folder.to_owned(),
                free_bytes: free_disk_bytes(folder).ok(),
                direct: DiskTier::create(folder, 4096, 1).ok().map(|tier| tier.bypasses_page_cache()),
            },
            gpu: gpu_under(Path::new("/")),
        }
    }
}

impl Cpu {
    /// Examines this machine's processor.
    pub fn look() -> Cpu {
        cpu_under(Path::new("/"))
    }
}

fn cpu_under(root: &Path) -> Cpu {
    let text = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let field = |line: &str, name: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    let first = |name: &str| text.lines().find_map(|line| field(line, name));
    // ARM calls them features, and all its 64-bit processors have neon under the name asimd.
    let flags = first("flags").or_else(|| first("Features")).unwrap_or_default().replace("asimd", "neon");
    let has = |name: &&&str| flags.split_whitespace().any(|flag| flag == **name);
    Cpu {
        model: first("model name"),
        features: FEATURES.iter().filter(has).copied().collect(),
        cores: cores(&text),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Different pairs of socket and core.
fn cores(cpuinfo: &str) -> Option<usize> {
    let values = |name: &str| -> Vec<&str> {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).collect()
    };
    let mut pairs: Vec<(&str, &str)> = values("physical id").into_iter().zip(values("core id")).collect();
    pairs.sort_unstable();
    pairs.dedup();
    (!pairs.is_empty()).then_some(pairs.len())
}

fn gpu_under(root: &Path) -> Gpu {
    let folders = fs::read_dir(root.join("proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = folders.map(|entry| entry.path().join("information")).collect();
    paths.sort();
    let model = |path: &PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()))
    };
    let version = fs::read_to_string(root.join("proc/driver/nvidia/version")).unwrap_or_default();
    // The version is the first word that begins with a digit and has a point.
    let driver = version
        .split_whitespace()
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'));
    let libraries = LIBRARY_FOLDERS.iter().map(|folder| root.join(folder).join("libcuda.so.1"));
    Gpu {
        cards: paths.iter().filter_map(model).collect(),
        driver: driver.map(str::to_owned),
        library: libraries.into_iter().find(|path| path.exists()),
        on_bus: nvidia_on_bus(root),
    }
}

/// Devices whose maker is NVIDIA and whose class is that of displays or their accelerators.
fn nvidia_on_bus(root: &Path) -> usize {
    let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let is = |folder: &Path, file: &str, begin: &str| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| text.starts_with(begin))
    };
    let cards = devices.map(|entry| entry.path());
    cards.filter(|card| is(card, "vendor", "0x10de") && is(card, "class", "0x03")).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_processor_is_described_by_its_kernel() {
        let root = Scratch::new();
        let thread = |core| {
            format!(
                "processor\t: 0\nmodel name\t: A Fast One\nphysical id\t: 0\ncore id\t\t: {core}\nflags\t\t: fpu avx avx2 fma avx512fp16\n\n"
            )
        };
        root.write("proc/cpuinfo", [thread(0), thread(0), thread(1), thread(1)].concat());
        let cpu = cpu_under(root.path());
        assert_eq!((cpu.model.as_deref(), cpu.cores), (Some("A Fast One"), Some(2)));
        assert_eq!(cpu.features, ["avx2", "fma"]);
    }

    #[test]
    fn cards_are_named_by_the_driver_and_its_library_is_found() {
        let root = Scratch::new();
        assert_eq!(gpu_under(root.path()), Gpu::default());
        root.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n");
        root.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu\n",
        );
        let library = root.write("usr/lib64/libcuda.so.1", "");
        // A graphics card, that card's audio device, and a graphics card of another maker.
        let devices = [
            ("01:00.0", "0x10de", "0x030200"),
            ("01:00.1", "0x10de", "0x040300"),
            ("02:00.0", "0x1002", "0x030000"),
        ];
        for (place, vendor, class) in devices {
            root.write(&format!("sys/bus/pci/devices/0000:{place}/vendor"), format!("{vendor}\n"));
            root.write(&format!("sys/bus/pci/devices/0000:{place}/class"), format!("{class}\n"));
        }
        let expected = Gpu {
            cards: vec!["NVIDIA H200".into()],
            driver: Some("570.86.10".into()),
            library: Some(library),
            on_bus: 1,
        };
        assert_eq!(gpu_under(root.path()), expected);
    }

    #[test]
    fn this_machine_has_memory_and_a_disk() {
        let machine = Machine::look(&std::env::temp_dir());
        assert!(machine.memory_free_bytes <= machine.memory_total_bytes);
        assert!(machine.disk.free_bytes.is_some() && machine.cpu.threads > 0);
    }
}
