//! `plimsoll plan`: the memory and time of a run, without running it.

use std::io::{self, Write};

use serde_json::Value;

use plimsoll::planning::{Compared, Contents, Schedule};
use plimsoll::training::files::write_whole;
use plimsoll::training::job::{
    DeviceFacts, OpenedDevice, Questions, ScalingRow, Summary, methods, propose_methods, scaling, watched,
};
use plimsoll::training::memory::Budget;
use plimsoll::training::{Config, DataConfig, Length, OpenedData, Target, check_room_to_plan, program};
use plimsoll::{
    DeviceSpec, Graph, GraphError, Model, Options, Planned, Precision, Role, TrainError, differentiate, tile,
};

use crate::args::{PlanArgs, Stage};
use crate::commands::max::{self, Answer, BudgetOf};
use crate::commands::{compare, dag, html, methods as methods_table, scaling as scaling_table};
use crate::environment::environment;
use crate::exit::Failure;
use crate::say::say;
use crate::{guard, heartbeat, notes, reexec, table, watching};

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if let Some(file) = &args.dag {
        return dag::run(file, args.settings.raw()?.memory.as_deref().unwrap_or_default(), args.json);
    }
    let raw = args.settings.raw()?;
    guard::raise_for(&raw)?;
    let mut config = Config::check(&raw)?;
    for note in &config.configuration.notes {
        say(&format!("note: {note}\n"))?;
    }
    // The data stays open, as in a run: its memory reduces the arena.
    let data = open_data(args, &mut config)?;
    guard::lower();
    let steps = steps(&config, data.as_ref())?;
    let text = match &config.target {
        Target::Cpu | Target::Gpu(_) => {
            config.settle_device()?;
            let waiting = watching::opening_the_device();
            let OpenedDevice { device, name, notes, measured, .. } = environment().device(&config)?;
            drop(waiting);
            notes::tell(&notes)?;
            if measured {
                reexec::after_measuring();
            }
            let of = |config: &Config| {
                let Options { micro_batch, .. } = config.options;
                program(&config.model, &*device, &config.options, micro_batch.unwrap_or(1))
            };
            // Memory is measured at the same point as in a run: after a program was built, and before planning takes
            // more.
            check_room_to_plan(&config.model, &*device, &config.options)?;
            let beside = Budget::bytes_beside(&of(&config)?);
            let whole = config.options.budget_on(&*device)?;
            // Other settings have other programs.
            let others = args.max.is_some() || args.methods;
            let budget = |config: &Config| {
                Ok(whole.beside_bytes(if others { Budget::bytes_beside(&of(config)?) } else { beside }))
            };
            answer(args, config.clone(), steps, &name, &|graph| device.facts(graph), &budget)?
        }
        Target::Described { spec, assumed } => {
            let budget = Budget::of_device(spec, config.options.memory)?;
            let timings = environment().times_of(&config, spec);
            let mut name = description(spec, *assumed, config.options.precision);
            name.push_str(if timings.is_empty() {
                "; times are modelled from those figures"
            } else {
                "; times were measured on such a GPU, others are modelled from those figures"
            });
            let facts = config.options.facts_of(spec, &timings);
            answer(args, config.clone(), steps, &name, &facts, &|_| Ok(budget))?
        }
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}

/// Opens the given data, as a run would. With `--max` the data may not suit the default length of a sequence, so it is
/// then opened only if the model depends on it.
fn open_data(args: &PlanArgs, config: &mut Config) -> Result<Option<OpenedData>, Failure> {
    match config.data {
        DataConfig::Synthetic => Ok(None),
        _ if args.max.is_some() => watching::settle(config).map(|()| None),
        _ => watching::open_data(config).map(Some),
    }
}

/// Steps of the run; unknown for epochs of data that was not opened.
fn steps(config: &Config, data: Option<&OpenedData>) -> Result<Option<u64>, Failure> {
    let sequences = data.and_then(|data| data.train.sequences_per_epoch());
    let per_epoch = sequences.map(|sequences| sequences.div_ceil(config.options.global_batch as u64));
    let unopened = data.is_none() && config.data != DataConfig::Synthetic;
    Ok(match config.length {
        Length::Epochs(_) if unopened => None,
        _ => Some(config.lr(per_epoch)?.max_steps),
    })
}

/// All answers of the command, for a device that `facts` describes.
fn answer(
    args: &PlanArgs,
    mut config: Config,
    steps: Option<u64>,
    device: &str,
    facts: DeviceFacts<'_>,
    budget: BudgetOf<'_>,
) -> Result<String, Failure> {
    let _waiting = heartbeat::waiting_for("planning");
    let facts: DeviceFacts<'_> = &watched(facts, |stage| watching::considering(&stage));
    let answer = args.max.map(|what| max::find(args, what, &config, facts, budget)).transpose()?;
    if let Some(answer) = &answer {
        config = answer.config.clone();
    }
    if args.methods {
        return beside_each_other(args, &config, device, facts, budget);
    }
    let mut questions = Questions::new(&config, facts, budget(&config)?);
    if let Some(stage) = args.show {
        return shown(stage, &config, &questions.search()?);
    }
    let title = format!("{} on {device}", config.name);
    let planned = questions.plan();
    let mut summary = planned.map_err(|error| propose_methods(error, &config, facts))?;
    summary.steps = steps;
    let choice = &summary.planned.choice;
    let shares = [choice.micro_batch, choice.accumulation];
    let scaled = match config.options.rank_links {
        Some(_) => scaling(&config, facts, budget(&config)?, shares)?,
        None => Vec::new(),
    };
    answered(args, &title, &config.target.name(), &mut questions, &summary, (answer.as_ref(), &scaled))
}

/// The table of methods, or its JSON.
fn beside_each_other(
    args: &PlanArgs,
    config: &Config,
    device: &str,
    facts: DeviceFacts<'_>,
    budget: BudgetOf<'_>,
) -> Result<String, Failure> {
    let rows = methods(&args.settings.raw()?, config, facts, budget)?;
    let total = budget(config)?.total;
    if args.json {
        let rows: Vec<Value> = rows.iter().map(methods_table::json).collect();
        let fields =
            serde_json::json!({ "device": config.target.name(), "budget_bytes": total.0, "methods": rows });
        return Ok(format!("{fields}\n"));
    }
    let tokens = config.options.global_batch * config.model.seq_len;
    Ok(format!("{} on {device}\n{}", config.name, methods_table::table(&rows, total, tokens)))
}

/// The figures of a device that is not here, and the precision that it is priced in.
fn description(spec: &DeviceSpec, assumed: bool, precision: Precision) -> String {
    let name = spec.name();
    let memory = table::size(spec.memory_bytes);
    let terabytes = spec.bandwidth / 1e12;
    let (teraflops, policy) = match precision {
        Precision::F32 => (spec.fp32_flops, "values are stored and multiplied in fp32"),
        Precision::Bf16 => {
            (spec.bf16_flops, "values are stored and multiplied in bf16 (--bf16 false for fp32)")
        }
    };
    let (teraflops, precision) =
        (teraflops / 1e12, if precision == Precision::F32 { "fp32" } else { "bf16" });
    let why =
        if assumed { " (`cuda` is taken to be this one; `cuda:0` is a GPU of this machine)" } else { "" };
    format!(
        "{name}{why}: {memory}, {teraflops:.1} TFLOP/s {precision}, {terabytes:.2} TB/s\n\
         figures: {}\n{policy}",
        spec.source
    )
}

/// The table or the JSON, and the page if one is requested.
fn answered(
    args: &PlanArgs,
    title: &str,
    target: &str,
    questions: &mut Questions,
    summary: &Summary,
    (answer, scaled): (Option<&Answer>, &[ScalingRow]),
) -> Result<String, Failure> {
    let rows =
        if args.compare || args.html.is_some() { compare::rows(questions, summary)? } else { Vec::new() };
    if let Some(path) = &args.out {
        let written = write_whole(path, summary.planned.to_file().as_bytes());
        written.map_err(|error| TrainError::output(path, &error))?;
    }
    if let Some(path) = &args.html {
        html::write(path, title, summary, &rows, questions)?;
    }
    let rows = if args.compare { &rows[..] } else { &[] };
    if args.json {
        return Ok(as_json(target, summary, rows, (answer, scaled)));
    }
    let mut out = format!("{title}\n").into_bytes();
    if let Some(answer) = answer {
        out.extend(answer.sentence(&table::size(summary.planned.budget.total.0)).into_bytes());
    }
    table::plan(&mut out, summary).map_err(|error| Failure::output(&error))?;
    let mut text = String::from_utf8_lossy(&out).into_owned();
    if !scaled.is_empty() {
        let tokens = summary.global_batch() * summary.seq_len / summary.planned.choice.program.ranks();
        text.push('\n');
        text.push_str(&scaling_table::table(scaled, tokens));
    }
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&compare::table(summary, rows));
    }
    Ok(text)
}

fn as_json(
    target: &str,
    summary: &Summary,
    rows: &[Compared],
    (answer, scaled): (Option<&Answer>, &[ScalingRow]),
) -> String {
    let mut fields = summary.to_json();
    fields.insert("device".into(), target.into());
    if !rows.is_empty() {
        let rows = rows.iter().map(|row| compare::json(summary, row)).collect();
        fields.insert("compare".into(), Value::Array(rows));
    }
    if !scaled.is_empty() {
        fields.insert("scaling".into(), Value::Array(scaled.iter().map(scaling_table::json).collect()));
    }
    if let Some(answer) = answer {
        fields.insert("max".into(), answer.json(summary.planned.choice.plan.arena_bytes));
    }
    format!("{}\n", Value::Object(fields))
}

/// The text form of one stage.
fn shown(stage: Stage, config: &Config, planned: &Planned) -> Result<String, Failure> {
    let choice = &planned.choice;
    let tiled = choice.program.train.graph.tile_rows().is_some();
    let forward = || {
        let graph = config.model.training(choice.micro_batch)?;
        let tiles = if tiled { tile(&graph)? } else { None };
        Ok::<_, GraphError>(tiles.unwrap_or(graph))
    };
    Ok(match stage {
        Stage::Graph => forward()?.to_string(),
        Stage::Backward => {
            let graph = forward()?;
            match graph.output_named("loss") {
                Some(loss) => differentiate(&graph, loss)?.to_string(),
                None => graph.to_string(),
            }
        }
        Stage::Fused => choice.program.train.graph.to_string(),
        Stage::Schedule => each(planned, |schedule, graph| schedule.display(graph).to_string()),
        Stage::Layout => each(planned, layout),
    })
}

/// The text of every schedule of the plan.
fn each(planned: &Planned, text: impl Fn(&Schedule, &Graph) -> String) -> String {
    let schedules = planned.choice.plan.schedules.iter();
    let part = |role: Role| planned.choice.program.part(role);
    schedules.filter_map(|(&role, schedule)| Some(text(schedule, &part(role)?.graph))).collect()
}

/// One line per buffer: offset, size, lifetime, purpose and contents.
fn layout(schedule: &Schedule, graph: &Graph) -> String {
    let mut buffers: Vec<_> = schedule.buffers.iter().collect();
    buffers.sort_by_key(|buffer| (buffer.offset, buffer.start));
    let line = |buffer: &&plimsoll::planning::Buffer| {
        let contents = match buffer.contents {
            Contents::Value(value) => value.to_string(),
            Contents::State(state) => graph.state(state).name.clone(),
            Contents::Scratch => "scratch".to_owned(),
        };
        let (offset, bytes, start, end) = (buffer.offset, buffer.bytes, buffer.start, buffer.end);
        format!("{offset:>12} {bytes:>12} {start:>6}..{end:<6} {:<12} {contents}\n", buffer.purpose.name())
    };
    let head = format!("layout {}: offset, bytes, lifetime, purpose, contents\n", schedule.name);
    std::iter::once(head).chain(buffers.iter().map(line)).collect()
}
