//! `plimsoll doctor`: the machine's cores, memory, disk and speed, and anything that is missing.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use plimsoll::Options;
use plimsoll::devices::{self, FoundLibrary, Inspection, Setup};
use plimsoll::training::measure::matmul_rate;
use plimsoll::training::memory::{Gpu, Machine};

use crate::args::DoctorArgs;
use crate::environment::environment;
use crate::exit::Failure;
use crate::table;

/// Rows of the products that are timed, and how long.
const SIZE: usize = 1024;
const SECONDS: f64 = 1.0;

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let folder = std::env::current_dir().unwrap_or_else(|_| Path::new(".").to_owned());
    let machine = Machine::look(&folder);
    let rate = matmul_rate(&Options::default(), SIZE, SECONDS)?;
    let gpus = inspected(&machine.gpu);
    let text = if args.json {
        format!("{}\n", as_json(&machine, rate, &gpus))
    } else {
        in_words(&machine, rate, &gpus)
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}

/// Every GPU, opened as a run would open it, or the reason why it cannot be.
fn inspected(gpu: &Gpu) -> Vec<Result<Inspection, String>> {
    let inspect = |index| -> Result<Inspection, String> {
        let gpu = environment().gpu().map_err(|error| error.to_string())?;
        let setup = Setup { gpu, ..Setup::default() };
        devices::inspect(index, &setup).map_err(|error| error.to_string())
    };
    (0..gpu.cards.len()).map(inspect).collect()
}

fn as_json(machine: &Machine, rate: f64, gpus: &[Result<Inspection, String>]) -> Value {
    let mut value = json!(machine);
    if let Value::Object(fields) = &mut value {
        fields.insert("matmul_flops_per_second".into(), rate.into());
        let cards = gpus.iter().enumerate().filter(|(_, gpu)| gpu.is_ok());
        let cards = cards.map(|(index, _)| format!("cuda:{index}"));
        let trains_on: Vec<String> = ["cpu".to_owned()].into_iter().chain(cards).collect();
        fields.insert("trains_on".into(), json!(trains_on));
        fields.insert("gpus".into(), gpus.iter().map(gpu_as_json).collect());
    }
    value
}

fn gpu_as_json(gpu: &Result<Inspection, String>) -> Value {
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(why) => return json!({ "error": why }),
    };
    let library = |library: &FoundLibrary| json!({ "name": library.name, "version": library.version, "path": library.path });
    json!({
        "name": gpu.name,
        "architecture": gpu.architecture,
        "memory_total_bytes": gpu.memory,
        "memory_free_bytes": gpu.free,
        "cuda": gpu.cuda,
        "libraries": gpu.libraries.iter().map(library).collect::<Vec<_>>(),
        "notes": gpu.notes,
        "bf16_flops_per_second": gpu.rates.as_ref().ok().map(|rates| rates.half_flops),
        "memory_bytes_per_second": gpu.rates.as_ref().ok().map(|rates| rates.bytes),
    })
}

/// The lines of one GPU.
fn gpu_in_words(index: usize, gpu: &Result<Inspection, String>) -> Vec<String> {
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(why) => return vec![format!("cannot be used: {why}")],
    };
    let rates = match &gpu.rates {
        Ok(rates) => format!(
            "{:.0} TFLOP/s in bf16, {:.1} TB/s of memory, measured",
            rates.half_flops / 1e12,
            rates.bytes / 1e12
        ),
        Err(why) => format!("rates not measured: {why}"),
    };
    let mut lines = vec![
        format!("{}, {}, CUDA {}", gpu.name, gpu.architecture, gpu.cuda),
        format!("{} free of {}", table::size(gpu.free), table::size(gpu.memory)),
        rates,
    ];
    lines.extend(gpu.libraries.iter().map(|library| {
        let version = library.version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
        let path = library.path.as_ref().map_or_else(String::new, |path| format!(", {}", path.display()));
        format!("{}{version}{path}", library.name)
    }));
    lines.extend(gpu.notes.iter().cloned());
    lines.push(format!("to train on it: --device cuda:{index}"));
    lines
}

fn in_words(machine: &Machine, rate: f64, gpus: &[Result<Inspection, String>]) -> String {
    let mut text = String::new();
    let Machine { cpu, disk, gpu, .. } = machine;
    let unknown = || "not known".to_owned();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(unknown, table::size);
    let cores = cpu.cores.map_or_else(String::new, |cores| format!("{cores} cores, "));
    let features = if cpu.features.is_empty() {
        "no wide vectors: matrix products will be slow".to_owned()
    } else {
        cpu.features.join(", ")
    };
    let direct = match disk.direct {
        Some(true) => "past the page cache",
        Some(false) => "through the page cache only, so offload would be slow",
        None => "no file can be made here; change to a folder that you may write to",
    };
    let mut line = |name: &str, words: &str| {
        let _ = writeln!(text, "{name:<9}{words}");
    };
    line("cpu", &cpu.model.clone().unwrap_or_else(unknown));
    line("", &format!("{cores}{} threads; {features}", cpu.threads));
    line("matmul", &format!("{:.0} GFLOP/s in fp32, measured", rate / 1e9));
    line(
        "memory",
        &format!("{} free of {}", bytes(machine.memory_free_bytes), bytes(machine.memory_total_bytes)),
    );
    line("disk", &format!("{} free in {}; {direct}", bytes(disk.free_bytes), disk.folder.display()));
    line("gpu", &cards(gpu));
    for (index, gpu) in gpus.iter().enumerate() {
        for (row, words) in gpu_in_words(index, gpu).iter().enumerate() {
            line(&if row == 0 { format!("cuda:{index}") } else { String::new() }, words);
        }
    }
    if gpus.is_empty() {
        line("", "for a GPU that is not here: plimsoll plan --device cuda:h200");
    }
    text
}

fn cards(gpu: &Gpu) -> String {
    let Gpu { cards, driver, library, on_bus } = gpu;
    // Packages of the driver are named by the first part of its version.
    let major = driver.as_deref().and_then(|version| version.split('.').next());
    let driver = driver.as_ref().map_or_else(String::new, |version| format!(", driver {version}"));
    match (cards.is_empty(), library) {
        (true, _) if *on_bus > 0 => {
            format!(
                "{on_bus} of NVIDIA without its driver; to install it: sudo ubuntu-drivers install (Ubuntu), \
                 sudo apt install nvidia-driver (Debian)"
            )
        }
        (true, None) => "none found".to_owned(),
        (true, Some(path)) => format!("none found, though {} is there", path.display()),
        (false, None) => {
            let ubuntu = major.map_or_else(
                || "sudo ubuntu-drivers install".to_owned(),
                |major| format!("sudo apt install libnvidia-compute-{major}"),
            );
            format!(
                "{}{driver}; libcuda is missing; to install it: {ubuntu} (Ubuntu), sudo apt install libcuda1 (Debian)",
                cards.join(", ")
            )
        }
        (false, Some(_)) => format!("{}{driver}", cards.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_told_with_what_they_lack_and_the_line_that_installs_it() {
        let card =
            Gpu { cards: vec!["NVIDIA L4".into()], driver: Some("570.1".into()), library: None, on_bus: 1 };
        assert_eq!(
            cards(&card),
            "NVIDIA L4, driver 570.1; libcuda is missing; to install it: sudo apt install libnvidia-compute-570 (Ubuntu), sudo apt install libcuda1 (Debian)"
        );
        assert_eq!(
            cards(&Gpu { library: Some("/x/libcuda.so.1".into()), ..card }),
            "NVIDIA L4, driver 570.1"
        );
        assert_eq!(
            cards(&Gpu { on_bus: 2, ..Gpu::default() }),
            "2 of NVIDIA without its driver; to install it: sudo ubuntu-drivers install (Ubuntu), sudo apt install nvidia-driver (Debian)"
        );
        assert_eq!(cards(&Gpu::default()), "none found");
    }
}
