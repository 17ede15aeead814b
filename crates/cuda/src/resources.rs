//! Registers and shared memory of each kernel, from the compiler's log.

use std::fmt;

/// Registers and memory of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources {
    /// Name of the kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory that the kernel declares.
    pub shared: u32,
    /// Bytes of a thread's stack, spilled registers included.
    pub stack: u32,
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Resources { kernel, registers, shared, stack } = self;
        write!(f, "{kernel:<36} {registers:>3} registers {shared:>6} shared {stack:>4} stack")
    }
}

/// The kernels of one file, by name, from the log of NVRTC with `--ptxas-options=-v`.
pub fn resources(log: &str) -> Vec<Resources> {
    let mut found: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Resources { kernel, registers: 0, shared: 0, stack: 0 });
        }
        let Some(last) = found.last_mut() else { continue };
        last.stack = last.stack.max(before(line, " bytes stack frame"));
        last.registers = last.registers.max(before(line, " registers"));
        last.shared = last.shared.max(before(line, " bytes smem"));
    }
    found.sort();
    found
}

/// The number right before some words, 0 where they are missing.
fn before(line: &str, words: &str) -> u32 {
    let number = line.split_once(words).and_then(|(before, _)| before.split_whitespace().last());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_read_kernel_by_kernel() {
        let log = "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n\
                   ptxas info    : Function properties for b\n\
                   ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n\
                   ptxas info    : Used 31 registers, used 1 barriers, 256 bytes smem\n\
                   ptxas info    : Compiling entry function 'a' for 'sm_90a'\n\
                   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                   ptxas info    : Used 12 registers, used 0 barriers\n";
        let of = |kernel: &str, registers, shared, stack| Resources {
            kernel: kernel.into(),
            registers,
            shared,
            stack,
        };
        assert_eq!(resources(log), [of("a", 12, 0, 0), of("b", 31, 256, 8)]);
    }
}
