//! Compiles every kernel with no GPU and prints what each takes: `kernel_table ARCHITECTURE… -- FOLDER…`, where folders
//! hold NVRTC. `scripts/kernel_table.sh` fetches the library and calls this.
#![allow(clippy::print_stdout, reason = "an example that reports")]

use plimsoll_cuda::{Libraries, resources};
use plimsoll_exec::ExecError;

fn main() -> Result<(), ExecError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let cut = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let folders = arguments[cut..].iter().skip(1).map(Into::into).collect();
    let libraries = Libraries { folders };
    for architecture in &arguments[..cut] {
        println!("# {architecture}");
        for compiled in libraries.compile_all(architecture)? {
            for kernel in &resources(&compiled.log.unwrap_or_default()) {
                println!("{kernel}");
            }
        }
    }
    Ok(())
}
