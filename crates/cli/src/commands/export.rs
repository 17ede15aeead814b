//! `plimsoll export --merge`: a model with its adapter merged in.

use std::path::Path;

use plimsoll::TrainError;
use plimsoll::training::job::NamedModel;
use plimsoll::training::pretrained::Pretrained;
use plimsoll::training::pretrained::{MergedInto, merge};

use crate::args::ExportArgs;
use crate::environment::environment;
use crate::exit::Failure;
use crate::guard;
use crate::say::say;
use crate::watching::Watching;

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let named = environment().model(&args.model, args.adapter.clone(), &mut Watching::default())?;
    let NamedModel { model, adapter } = named;
    let adapter = adapter.ok_or_else(|| {
        let why = format!("{} is no adapter; give the folder of one as --adapter", args.model);
        TrainError::Config(why)
    })?;
    guard::raise(None)?;
    let base = Pretrained::open(Path::new(&model))?;
    let adapter = base.open_adapter(&adapter)?;
    guard::lower();
    let into = match merge(&base, &adapter, &args.out)? {
        MergedInto::Original => "original",
        MergedInto::Dequantised => "dequantised",
    };
    let (out, model) = (args.out.display(), base.folder.display());
    say(&format!("the merged model is in {out}: the adapter was merged into the {into} weights of {model}\n"))
}
