//! `plimsoll train` in a process of a launcher that is not the first: it follows rank 0 and prints nothing.
//!
//! Every error goes to rank 0, which prints it once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use plimsoll::TrainError;
use plimsoll::training::job::follow;
use plimsoll::training::{Config, RANK_LIMIT, RawConfig};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::train::config_of;
use crate::args::TrainArgs;
use crate::exit::Failure;
use crate::launch::Launch;
use crate::{guard, reexec};

pub(crate) fn run(args: &TrainArgs, launch: &Launch) -> Result<(), Failure> {
    // Rank 0 answers for all.
    if args.print_config || launch.check().is_err() {
        return Ok(());
    }
    if launch.first_here {
        // A failure can be ignored here: it occurs again below, where it is reported to rank 0.
        let _ = tokenise(args, launch);
    }
    let stated = args.settings.written().ok().and_then(|raw| raw.ddp_timeout).filter(|&seconds| seconds > 0);
    let limit = stated.map_or(RANK_LIMIT, Duration::from_secs);
    join(launch, limit, || config_of(&mut args.settings.raw_unseen()?, Some(launch)))
}

/// Tells rank 0 that the command line of this process cannot be read. Help is for rank 0 to print.
pub(crate) fn refuse(launch: &Launch, error: &clap::Error) -> Result<(), Failure> {
    if !error.use_stderr() || launch.check().is_err() {
        return Ok(());
    }
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    join(launch, RANK_LIMIT, || Err(TrainError::Config(first)))
}

fn join(
    launch: &Launch,
    limit: Duration,
    config: impl FnOnce() -> Result<Config, TrainError>,
) -> Result<(), Failure> {
    let world = launch.begin(limit)?;
    // Launchers and Slurm send a signal to every process. Rank 0 saves the run, for which it needs the others.
    for signal in [SIGINT, SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    follow(config(), &world).map_err(|error| launch.reported(error.into()))
}

/// Tokenises the data, as the first process of a machine that rank 0 is not on, before MPI begins: afterwards a process
/// cannot start itself anew.
fn tokenise(args: &TrainArgs, launch: &Launch) -> Result<(), Failure> {
    let mut raw: RawConfig = args.settings.raw_unseen()?;
    guard::raise_for(&raw)?;
    let mut config = config_of(&mut raw, Some(launch))?;
    config.settle_device()?;
    let mut tokenised = false;
    config.open_data(&mut |_| tokenised = true)?;
    guard::lower();
    if tokenised {
        reexec::after_tokenising();
    }
    Ok(())
}
