//! The binary `plimsoll`: arguments in, output and an exit code out. Everything worth testing without a
//! command line lives in the library.

mod again;
mod args;
mod commands;
mod costs;
mod curve;
mod disks;
mod exit;
mod home;
mod json;
mod keeping;
mod outputs;
mod page;
mod progress;
mod samples;
mod settings;
mod summary;
mod table;
mod tokenising;
mod write_file;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

use args::{Args, Command};
use plimsoll::TrainError;
use plimsoll::training::settings::known_elsewhere;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let Some(instead) = instead(&error) else { error.exit() };
            return exit::code(Err(TrainError::Config(instead).into()));
        }
    };
    // A file that may not grow ends in an error that names it, not in a signal. Where that cannot be had, so be it.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    let result = match &args.command {
        Command::Demo(demo) => commands::demo::run(demo),
        Command::Plan(plan) => commands::plan::run(plan),
        Command::Train(train) => commands::train::run(train),
        Command::Report(report) => commands::report::run(report),
        Command::Doctor(doctor) => commands::doctor::run(doctor),
        Command::Check(check) => commands::check::run(check),
        Command::Layout(layout) => commands::layout::run(layout),
        Command::Bench(bench) => commands::bench::run(bench),
        Command::Generate(generate) => commands::generate::run(generate),
        Command::Export(export) => commands::export::run(export),
    };
    exit::code(result)
}

/// What to write in place of a flag that people know from elsewhere, among those that the command has.
fn instead(error: &clap::Error) -> Option<String> {
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else { return None };
    let mut command = Args::command();
    for word in env::args_os().skip(1) {
        let Some(named) = command.find_subcommand(&word) else { break };
        command = named.clone();
    }
    let longs: Vec<String> =
        command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    known_elsewhere(flag, |offered| longs.iter().any(|long| long == offered))
}
