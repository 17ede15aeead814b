//! Every kernel compiles for every architecture and takes what the committed table says. Runs where NVRTC is found: on
//! the loader's path, or fetched by `scripts/kernel_table.sh`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fetched;

use fetched::{cached, not_run};
use plimsoll_cuda::{Libraries, Resources, resources};

const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_89", "sm_90a", "sm_120"];

fn libraries() -> Option<Libraries> {
    let libraries = Libraries { folders: cached("nvrtc-13.0.88").into_iter().collect() };
    match libraries.compiler() {
        Ok(()) => Some(libraries),
        Err(why) => {
            let way_out = "or run scripts/kernel_table.sh --fetch-only";
            not_run("kernels by NVRTC", &format!("{why} ({way_out})"));
            None
        }
    }
}

/// Whether two lines describe one kernel with equal resources, its registers within a tenth: for the largest kernels NVRTC
/// counts 150 in one run and 164 in the next.
fn alike(a: &str, b: &str) -> bool {
    let parts = |line: &str| -> Option<(String, f64, String)> {
        let (kernel, rest) = line.split_once(' ')?;
        let (registers, rest) = rest.trim_start().split_once(' ')?;
        Some((kernel.to_owned(), registers.parse().ok()?, rest.to_owned()))
    };
    let (Some(a), Some(b)) = (parts(a), parts(b)) else { return false };
    a.0 == b.0 && a.2 == b.2 && (a.1 - b.1).abs() <= 0.1 * a.1.max(b.1)
}

/// The committed table: the kernels below each line `# architecture`.
fn committed(architecture: &str) -> Vec<String> {
    let table = include_str!("../kernels/resources.txt");
    let heading = format!("# {architecture}");
    let lines = table.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn kernels_compile_everywhere_without_a_stack_and_take_what_the_table_says() {
    let Some(libraries) = libraries() else { return };
    let compile = |architecture: &'static str| {
        let compiled = libraries.compile_all(architecture).unwrap();
        let kernels = compiled.iter().flat_map(|file| resources(file.log.as_deref().unwrap_or_default()));
        (architecture, kernels.collect::<Vec<Resources>>())
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let jobs = ARCHITECTURES.map(|architecture| scope.spawn(move || compile(architecture)));
        jobs.into_iter().map(|job| job.join().unwrap()).collect()
    });
    for (architecture, kernels) in all {
        assert!(kernels.len() > 100, "{architecture}: {} kernels", kernels.len());
        let deep: Vec<_> = kernels.iter().filter(|kernel| kernel.stack > 0).collect();
        assert!(deep.is_empty(), "{architecture}: a context has no stack to give: {deep:?}");
        let found: Vec<String> = kernels.iter().map(ToString::to_string).collect();
        let table = committed(architecture);
        let fresh: Vec<&String> =
            found.iter().filter(|line| !table.iter().any(|known| alike(line, known))).collect();
        let gone: Vec<&String> =
            table.iter().filter(|line| !found.iter().any(|now| alike(line, now))).collect();
        assert!(
            fresh.is_empty() && gone.is_empty(),
            "{architecture}: write the table again with scripts/kernel_table.sh\nnow {fresh:#?}\nbefore {gone:#?}"
        );
    }
}
