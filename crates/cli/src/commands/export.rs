//! `plimsoll export --merge`: a model with its adapter merged in.

use std::path::Path;

use plimsoll::training::export::merge;
use plimsoll::training::pretrained::{AdapterFolder, Pretrained};

use crate::args::ExportArgs;
use crate::commands::train::say;
use crate::exit::Failure;
use crate::{guard, home};

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let folder = home::model(&args.model)?;
    guard::raise(None)?;
    let base = Pretrained::open(Path::new(&folder))?;
    let adapter = AdapterFolder::open(&args.adapter, &base.configuration)?;
    guard::lower();
    merge(&base, &adapter, &args.out)?;
    say(&format!("the merged model is in {}\n", args.out.display()))
}
