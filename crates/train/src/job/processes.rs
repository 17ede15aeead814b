//! Ranks of a job that are processes: each reads its own settings and data, and takes the plan of rank 0.
//!
//! ```text
//! rank 0    its identity ─▶ all    all are ready    devices join    weights, checkpoint    the plan ─▶ all    all are ready    steps …
//! others    compare theirs                          devices join                           judge it                           follow
//! ```
//!
//! Devices join before there is a plan to hand out: memory that GPUs take to exchange values must be known to the plan.
//!
//! Ranks that differ in program, settings or data would train a model that nobody asked for, without a warning. So the first
//! rank that differs ends all of them, with an error that states the difference.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::Communicator;
use serde_json::Value;

use super::follower::Follower;
use crate::config::Config;
use crate::data::Source;
use crate::error::TrainError;
use crate::planning::{Planned, plan_of_another_rank};
use crate::settings::Setting;

/// Bytes of a file that are read at a time.
const PIECE: usize = 256 << 10;
/// The most bytes of a text that rank 0 sends, a plan in most cases.
const MOST_TEXT: u64 = 1 << 32;

/// Follows rank 0 until it tells of the end, as one rank of `world`. Settings that could not be read are told to all ranks.
///
/// # Errors
///
/// When this rank or another fails, or when this rank differs from rank 0. Rank 0 has the same error.
pub fn follow(config: Result<Config, TrainError>, world: &Arc<dyn Communicator>) -> Result<(), TrainError> {
    let followed = config.and_then(|config| follow_with(config, world));
    followed.inspect_err(|error| world.leave(&error.with_flags()))
}

fn follow_with(mut config: Config, world: &Arc<dyn Communicator>) -> Result<(), TrainError> {
    config.settle_device()?;
    let source = config.open_data(&mut |_| ())?.train;
    agree(&config, &source, &**world)?;
    let mut device = config.options.following_device()?;
    device.join(Arc::clone(world))?;
    let plan = hear(&**world)?;
    let resumed = Some(hear(&**world)?).filter(|path| !path.is_empty()).map(PathBuf::from);
    let planned = plan_of_another_rank(&config.model, &*device, &config.options, &plan)?;
    drop(plan);
    all_ready(&**world)?;
    Follower { config, planned, source, device, resumed, end: Arc::clone(world) }.run()
}

/// Gives all ranks the plan of rank 0, and the checkpoint that it goes on from.
pub(super) fn hand_out(
    planned: &Planned,
    resumed: Option<&Path>,
    world: &dyn Communicator,
) -> Result<(), TrainError> {
    tell(world, &planned.to_file())?;
    tell(world, &resumed.map_or_else(String::new, |path| path.display().to_string()))?;
    all_ready(world)
}

/// Compares this rank with rank 0.
///
/// # Errors
///
/// When any rank differs from rank 0 or has failed before.
pub(super) fn agree(config: &Config, data: &Source, world: &dyn Communicator) -> Result<(), TrainError> {
    let own = identity(config, data)?;
    if world.rank() == 0 {
        tell(world, &own.join("\n"))?;
    } else if let Some(difference) = difference(&own, &hear(world)?) {
        return Err(TrainError::Config(difference));
    }
    all_ready(world)
}

/// Everything in which ranks must agree: one line for each, a name and a value.
fn identity(config: &Config, data: &Source) -> Result<Vec<String>, TrainError> {
    let settings = serde_json::to_value(config.effective()).unwrap_or_default();
    // Machines may keep their caches where they like.
    let settings = settings.as_object().into_iter().flatten().filter(|(name, _)| *name != "data_cache");
    let flag = |name: &str| Setting::named(name).map_or_else(|| name.to_owned(), Setting::flag);
    let written = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    // Each rank of a machine has a GPU of its own.
    let of_kind = |value: String| value.split(':').next().unwrap_or_default().to_owned();
    let value = |name: &str, value: &Value| match name {
        "device" => of_kind(written(value)),
        _ => written(value),
    };
    let settings = settings.map(|(name, told)| line(&flag(name), &value(name, told)));
    let facts = config.facts(data)?.into_iter().filter(|(name, _)| Setting::named(name).is_none());
    let facts = facts.map(|(name, value)| line(&name, &value));
    Ok([line("program", &program()?)].into_iter().chain(settings).chain(facts).collect())
}

/// A fact as one line: its name, a tab, its value. Line breaks and tabs of the value become spaces.
fn line(name: &str, value: &str) -> String {
    format!("{name}\t{}", value.replace(['\n', '\t'], " "))
}

/// The first line in which a rank differs from rank 0.
fn difference(own: &[String], first: &str) -> Option<String> {
    let first: Vec<&str> = first.lines().collect();
    let parts = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let value_in = |lines: &mut dyn Iterator<Item = &str>, name: &str| {
        lines
            .filter_map(parts)
            .find(|(known, _)| known == name)
            .map_or_else(|| "not set".into(), |(_, value)| value)
    };
    let differing = own
        .iter()
        .map(String::as_str)
        .chain(first.iter().copied())
        .find(|line| !(own.iter().any(|own| own == line) && first.contains(line)));
    let (name, _) = parts(differing?)?;
    let mine = value_in(&mut own.iter().map(String::as_str), &name);
    let theirs = value_in(&mut first.iter().copied(), &name);
    Some(format!("its {name} is {mine}, and that of rank 0 is {theirs}; start all ranks alike"))
}

/// The program that is running: its version and a checksum of its file.
fn program() -> Result<String, TrainError> {
    let refused =
        |error: std::io::Error| TrainError::Output(format!("the program cannot read its own file: {error}"));
    let mut file = File::open("/proc/self/exe").map_err(refused)?;
    let (mut sum, mut piece) = (0, vec![0; PIECE]);
    loop {
        match file.read(&mut piece).map_err(refused)? {
            0 => return Ok(format!("version {} ({sum:08x})", env!("CARGO_PKG_VERSION"))),
            count => sum = crc32c::crc32c_append(sum, &piece[..count]),
        }
    }
}

/// Waits until all ranks have come here. A rank that has failed meanwhile ends the others.
fn all_ready(world: &dyn Communicator) -> Result<(), TrainError> {
    Ok(world.gather(&[1], &mut vec![0; world.ranks()])?)
}

/// Gives all ranks a text of rank 0.
fn tell(world: &dyn Communicator, text: &str) -> Result<(), TrainError> {
    world.broadcast(&mut (text.len() as u64).to_le_bytes())?;
    Ok(world.broadcast(&mut text.as_bytes().to_vec())?)
}

/// The text that rank 0 tells.
fn hear(world: &dyn Communicator) -> Result<String, TrainError> {
    let mut length = [0; 8];
    world.broadcast(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_TEXT {
        return Err(TrainError::Config(format!("rank 0 announced a text of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    world.broadcast(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| TrainError::Config("rank 0 sent bytes that are no text".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_sides() {
        let own =
            ["program\tversion 1 (00)".to_owned(), line("--learning-rate", "0.1"), line("data", "a\nb")];
        assert_eq!(difference(&own, &own.join("\n")), None);
        let theirs = "program\tversion 1 (00)\n--learning-rate\t0.2\ndata\ta b";
        let told = difference(&own, theirs).unwrap();
        assert_eq!(told, "its --learning-rate is 0.1, and that of rank 0 is 0.2; start all ranks alike");
        let told = difference(&own, &own.join("\n").replace("(00)", "(01)")).unwrap();
        let expected =
            "its program is version 1 (00), and that of rank 0 is version 1 (01); start all ranks alike";
        assert_eq!(told, expected);
        let told = difference(&own[..2], &own.join("\n")).unwrap();
        assert_eq!(told, "its data is not set, and that of rank 0 is a b; start all ranks alike");
    }
}
