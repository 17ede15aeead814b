//! Plans attention with cuDNN for a GPU that is not here and prints engine and scratch: `attention_plans DESCRIPTION FOLDER…`,
//! where folders hold cuDNN and a driver. `scripts/attention_plans.sh` fetches the one, compiles the other and calls this.
#![allow(clippy::print_stdout, reason = "an example that reports")]

use plimsoll_cuda::{AttentionTable, Libraries};
use plimsoll_exec::ExecError;

fn main() -> Result<(), ExecError> {
    let mut arguments = std::env::args().skip(1);
    let usage = || ExecError::Mismatch("usage: attention_plans DESCRIPTION FOLDER…".into());
    let description = arguments.next().ok_or_else(usage)?;
    let text = std::fs::read_to_string(&description)
        .map_err(|error| ExecError::Mismatch(format!("{description}: {error}")))?;
    let libraries = Libraries { folders: arguments.map(Into::into).collect() };
    print!("{}", AttentionTable::described(&libraries, &text)?);
    Ok(())
}
