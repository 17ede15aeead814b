//! The binary `plimsoll`: arguments in, output and an exit code out. Everything worth testing without a
//! command line lives in the library.

mod args;
mod commands;
mod costs;
mod curve;
mod exit;
mod home;
mod json;
mod outputs;
mod page;
mod progress;
mod settings;
mod summary;
mod table;
mod tokenising;
mod write_file;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
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
