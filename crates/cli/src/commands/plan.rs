//! `plimsoll plan`: what a run would need, without running it.

use std::io::{self, Write};

use serde_json::Value;

use plimsoll::planning::{Build, Compared, Contents, Facts, Schedule};
use plimsoll::training::budget::Budget;
use plimsoll::training::{Config, DataConfig, Target, budget_for, hint_at_no_limit};
use plimsoll::{
    Device, DeviceSpec, Graph, GraphError, Model, Planned, Role, TrainError, differentiate, tile,
};

use crate::args::{PlanArgs, Stage};
use crate::commands::max::{self, Answer};
use crate::commands::{compare, dag, html, planfile};
use crate::exit::Failure;
use crate::summary::{Questions, Summary, questions};
use crate::{costs, json, table, tokenising};

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if let Some(file) = &args.dag {
        return dag::run(file, args.settings.raw()?.memory.as_deref().unwrap_or_default(), args.json);
    }
    let mut config = Config::check(&args.settings.raw()?)?;
    let text = match &config.target {
        Target::Cpu => {
            let (device, name) = costs::device(&config)?;
            let budget = budget_for(&config.model, &device, &config.options)?;
            if config.data != DataConfig::Synthetic {
                tokenising::open_data(&mut config)?;
            }
            answer(args, config.clone(), &name, &|graph| device.facts(graph), budget)?
        }
        Target::Described { spec, assumed } => {
            let budget = Budget::of_device(spec, config.options.memory)?;
            let name = description(spec, *assumed);
            let link = config.options.offload.as_ref().map(|offload| spec.host_link(offload.budget));
            let facts = |graph: &Graph| Facts { link, ..spec.facts(graph) };
            answer(args, config.clone(), &name, &facts, budget)?
        }
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}

/// All that is asked, for a device that `facts` speaks for.
fn answer(
    args: &PlanArgs,
    mut config: Config,
    device: &str,
    facts: &dyn Fn(&Graph) -> Facts,
    budget: Budget,
) -> Result<String, Failure> {
    let answer = args.max.map(|what| max::find(args, what, facts, budget)).transpose()?;
    if let Some(answer) = &answer {
        config = answer.config.clone();
    }
    let mut questions = questions(&config, facts, budget);
    if let Some(stage) = args.show {
        let choice =
            questions.searcher.search(questions.request).map_err(|error| questions.failure(error))?;
        return shown(stage, &config, &Planned { choice, budget });
    }
    let title = format!("{} on {device}", config.name);
    let target = config.target.name();
    let mut answered = answered(args, &title, &target, &mut questions, answer.as_ref());
    let two_passes = config.options.in_two_passes();
    if let (Err(Failure::Train(TrainError::Budget { .. })), Some(options)) = (&answered, two_passes) {
        let config = Config { options, ..config.clone() };
        let mut questions = self::questions(&config, facts, budget);
        let again = self::answered(args, &title, &target, &mut questions, answer.as_ref());
        answered = match (answered, again) {
            (Err(Failure::Train(first)), Err(Failure::Train(second))) => Err(first.closer(second).into()),
            (_, again) => again,
        };
    }
    answered.map_err(|failure| match failure {
        Failure::Train(error) => hint_at_no_limit(error, &config.model, facts, &config.options).into(),
        other => other,
    })
}

/// What is assumed of a device that is not here.
fn description(spec: &DeviceSpec, assumed: bool) -> String {
    let name = spec.name();
    let memory = table::size(spec.memory_bytes);
    let (teraflops, terabytes) = (spec.fp32_flops / 1e12, spec.bandwidth / 1e12);
    let why = if assumed { " (this build drives no GPU, so `cuda` is taken to be this one)" } else { "" };
    format!(
        "{name}{why}: {memory}, {teraflops:.1} TFLOP/s fp32, {terabytes:.2} TB/s by its data sheet\n\
         values are stored and multiplied in fp32; times are modelled from those figures"
    )
}

/// The table or the JSON, and the page where one is asked for.
fn answered<B: Build>(
    args: &PlanArgs,
    title: &str,
    target: &str,
    questions: &mut Questions<B>,
    answer: Option<&Answer>,
) -> Result<String, Failure> {
    let summary = questions.plan()?;
    let rows =
        if args.compare || args.html.is_some() { compare::rows(questions, &summary)? } else { Vec::new() };
    if let Some(path) = &args.out {
        planfile::save(path, &summary.planned)?;
    }
    if let Some(path) = &args.html {
        html::write(path, title, &summary, &rows, questions)?;
    }
    let rows = if args.compare { &rows[..] } else { &[] };
    if args.json {
        return Ok(as_json(target, &summary, rows, answer));
    }
    let mut out = format!("{title}\n").into_bytes();
    if let Some(answer) = answer {
        out.extend(answer.sentence(&table::size(summary.planned.budget.total)).into_bytes());
    }
    table::plan(&mut out, &summary).map_err(|error| Failure::output(&error))?;
    let mut text = String::from_utf8_lossy(&out).into_owned();
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&compare::table(&summary, rows));
    }
    Ok(text)
}

fn as_json(target: &str, summary: &Summary, rows: &[Compared], answer: Option<&Answer>) -> String {
    let mut fields = json::plan(summary);
    fields.insert("device".into(), target.into());
    if !rows.is_empty() {
        let rows = rows.iter().map(|row| json::compared(summary, row)).collect();
        fields.insert("compare".into(), Value::Array(rows));
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
