//! `plimsoll export --merge`: a model with its adapter merged in.

use std::path::Path;

use plimsoll::training::export::merge;
use plimsoll::training::pretrained::{AdapterFolder, Pretrained};

use crate::args::ExportArgs;
use crate::commands::train::say;
use crate::exit::Failure;
use crate::home;

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let base = Pretrained::open(Path::new(&home::model(&args.model)?))?;
    let adapter = AdapterFolder::open(&args.adapter, &base.configuration)?;
    merge(&base, &adapter, &args.out)?;
    say(&format!("the merged model is in {}\n", args.out.display()))
}
