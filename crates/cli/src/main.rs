//! The binary `plimsoll`: arguments in, output and an exit code out. Everything that can be tested without a command
//! line lives in the library.

mod args;
mod commands;
mod curve;
mod environment;
mod exit;
mod guard;
mod heartbeat;
mod intrinsic_page;
mod launch;
mod live_page;
mod notes;
mod page;
mod progress;
mod reexec;
mod report_page;
mod samples;
mod say;
mod settings;
mod signals;
mod starting;
mod table;
mod watching;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use args::{Args, Command};
use plimsoll::TrainError;
use plimsoll::training::memory::address_space;
use plimsoll::training::settings::no_such_flag;

fn main() -> ExitCode {
    let launch = launch::launch();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if launch.is_some_and(|launch| launch.rank > 0) => {
            return exit::code(launch.map_or(Ok(()), |launch| commands::follow::refuse(&launch, &error)));
        }
        Err(error) => {
            let Some(why) = unknown_flag(&error) else { error.exit() };
            return exit::code(Err(TrainError::Config(why).into()));
        }
    };
    // If a file may not grow, the run ends in an error that names the file instead of in a signal. A failure to set the
    // handler does no harm.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    if let Err(error) = address_space::check() {
        return exit::code(Err(error.into()));
    }
    if let Some(launch) = launch.filter(|launch| launch.rank > 0) {
        return exit::code(match &args.command {
            Command::Train(train) => commands::follow::run(train, &launch),
            _ => Ok(()),
        });
    }
    heartbeat::start(reexec::silence_before(), environment::longest_silence());
    let result = match &args.command {
        Command::Demo(demo) => commands::demo::run(demo),
        Command::Plan(plan) => commands::plan::run(plan),
        Command::Train(train) => commands::train::run(train, launch),
        Command::Intrinsic(intrinsic) => commands::intrinsic::run(intrinsic),
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

/// The message for a flag that the command does not have; none for other errors.
fn unknown_flag(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else { return None };
    let mut command = Args::command();
    let mut name = vec![command.get_name().to_owned()];
    for word in env::args_os().skip(1) {
        let Some(named) = command.find_subcommand(&word) else { break };
        name.push(named.get_name().to_owned());
        command = named.clone();
    }
    let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let flags: Vec<String> = flags.filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    flag.starts_with('-').then(|| no_such_flag(flag, &flags, &format!("{} --help", name.join(" "))))
}
