//! The library's table of settings as flags: one flag for each line of the table, none of them written here.
//!
//! `--learning-rate` and `--learning_rate` are the same flag. `--settings` names a file of the same settings, which
//! flags override. The library reads the values, so that a file and a flag are judged alike.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use plimsoll::TrainError;
use plimsoll::training::RawConfig;
use plimsoll::training::settings::{Flag, Kind, SETTINGS, Section, Setting};

use crate::environment::environment;
use crate::exit::Failure;
use crate::watching::Watching;

/// Settings of a command: those it needs as flags, and all of them in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings<const PLANS: bool, const TRAINS: bool> {
    file: Option<PathBuf>,
    flags: Vec<Flag>,
}

/// Settings of a command that examines only the training step.
pub(crate) type FitSettings = Settings<false, false>;
/// Settings of a command that plans a run.
pub(crate) type PlanSettings = Settings<true, false>;
/// Settings of a command that trains.
pub(crate) type TrainSettings = Settings<true, true>;

/// Settings of the loop that a plan depends on: how many ranks share a step, whether there is a schedule for evaluation, and
/// how long the run takes.
const COURSE_OF_A_PLAN: [&str; 10] = [
    "ranks",
    "zero_stage",
    "rank_link",
    "node_link",
    "ranks_per_node",
    "max_steps",
    "num_train_epochs",
    "eval_steps",
    "eval_data",
    "eval_split",
];

impl<const PLANS: bool, const TRAINS: bool> Settings<PLANS, TRAINS> {
    /// The settings as they were written, with the names of models completed.
    pub(crate) fn raw(&self) -> Result<RawConfig, Failure> {
        Ok(environment().complete(self.written()?, &mut Watching::default())?)
    }

    /// As [`raw`](Self::raw), for a process that shows nothing.
    pub(crate) fn raw_unseen(&self) -> Result<RawConfig, TrainError> {
        environment().complete(self.written()?, &mut ())
    }

    /// The settings exactly as they were written.
    pub(crate) fn written(&self) -> Result<RawConfig, TrainError> {
        RawConfig::gather(self.file.as_deref(), &self.flags)
    }

    /// The flags a command has.
    fn offered() -> impl Iterator<Item = &'static Setting> {
        let of_a_plan = |setting: &Setting| PLANS && COURSE_OF_A_PLAN.contains(&setting.name);
        let offered = move |setting: &Setting| setting.section != Section::Course || of_a_plan(setting);
        SETTINGS.iter().filter(move |setting| TRAINS || offered(setting))
    }
}

fn flag(setting: &'static Setting) -> Arg {
    // Flags are named once for the life of the process, and clap wants their names to last as long.
    let dashed: &'static str = setting.name.replace('_', "-").leak();
    let arg = Arg::new(setting.name)
        .long(dashed)
        .value_name(setting.value_name)
        .help(setting.help.trim())
        .help_heading(heading(setting.section));
    let arg = if setting.name.contains('_') { arg.alias(setting.name) } else { arg };
    match setting.kind {
        Kind::Text => arg,
        // The library refuses negative numbers where they make no sense.
        Kind::Whole | Kind::Number => arg.allow_negative_numbers(true),
        // Given twice, the last counts: scripts are put together from parts.
        Kind::Switch => arg.num_args(0..=1).default_missing_value("true").overrides_with(setting.name),
        Kind::List | Kind::Numbers | Kind::Pairs => arg.action(ArgAction::Append),
    }
}

fn heading(section: Section) -> &'static str {
    match section {
        Section::Fit => "The model and its budget",
        Section::Adapter => "Adapters in place of the model's own weights",
        Section::Learning => "How it learns",
        Section::Course => "How long, how often, and where results go",
    }
}

impl<const PLANS: bool, const TRAINS: bool> Args for Settings<PLANS, TRAINS> {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("settings")
            .long("settings")
            .value_name("FILE.toml")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file with settings by the names of the flags below; a flag overrides the file");
        Self::offered().map(flag).fold(command.arg(file), Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const PLANS: bool, const TRAINS: bool> FromArgMatches for Settings<PLANS, TRAINS> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let values = |setting: &'static Setting| {
            let values = matches.get_many::<String>(setting.name)?.cloned().collect();
            Some(Flag { name: setting.name, values })
        };
        let flags = Self::offered().filter_map(values).collect();
        Ok(Settings { file: matches.get_one("settings").cloned(), flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
