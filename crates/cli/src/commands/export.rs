//! `plimsoll export --merge`: a model with its adapter merged in.

use std::path::Path;

use plimsoll::TrainError;
use plimsoll::training::export::merge;
use plimsoll::training::pretrained::Pretrained;

use crate::args::ExportArgs;
use crate::commands::train::say;
use crate::exit::Failure;
use crate::{guard, home};

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let (model, adapter) = home::with_adapter(&args.model, args.adapter.clone())?;
    let adapter = adapter.ok_or_else(|| {
        let why = format!("{} is no adapter; give the folder of one as --adapter", args.model);
        TrainError::Config(why)
    })?;
    guard::raise(None)?;
    let base = Pretrained::open(Path::new(&model))?;
    let adapter = base.open_adapter(&adapter)?;
    guard::lower();
    merge(&base, &adapter, &args.out)?;
    say(&format!("the merged model is in {}\n", args.out.display()))
}
