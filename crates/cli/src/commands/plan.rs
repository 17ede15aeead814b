//! `plimsoll plan`: what a run would need, without running it.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use plimsoll::planning::{Contents, Schedule};
use plimsoll::training::{Config, Target};
use plimsoll::{
    CpuDevice, Device, DeviceSpec, Graph, Model, Planned, Role, differentiate, plan_described, plan_for,
};

use crate::args::{PlanArgs, Stage};
use crate::commands::dag;
use crate::exit::Failure;
use crate::table;

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if let Some(file) = &args.dag {
        return dag::run(file, args.fit.memory.as_deref().unwrap_or_default(), args.fit.json);
    }
    let config = Config::check(&args.fit.raw())?;
    let (planned, device) = plan_on_target(&config)?;
    let mut out = io::stdout().lock();
    let written = match args.show {
        Some(stage) => write!(out, "{}", shown(stage, &config, &planned)?),
        None if args.fit.json => writeln!(out, "{}", json(&planned, &config.target)),
        None => writeln!(out, "{} on {device}", args.fit.model)
            .and_then(|()| table::plan(&mut out, &planned, config.model.seq_len)),
    };
    written.map_err(|error| Failure::output(&error))
}

/// The plan, and what it is for in words.
fn plan_on_target(config: &Config) -> Result<(Planned, String), Failure> {
    let (model, options) = (&config.model, &config.options);
    match &config.target {
        Target::Cpu => {
            let device = CpuDevice::new(options.threads)?;
            Ok((plan_for(model, &device, options)?, device.name()))
        }
        Target::Described { spec, assumed } => {
            Ok((plan_described(model, spec, options)?, description(spec, *assumed)))
        }
    }
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

/// The contract of `plan --json`.
fn json(planned: &Planned, target: &Target) -> Value {
    let (choice, budget) = (&planned.choice, &planned.budget);
    let plan = &choice.plan;
    let by_purpose: Map<String, Value> =
        plan.by_purpose.iter().map(|(purpose, bytes)| (purpose.to_owned(), bytes.into())).collect();
    let device = match target {
        Target::Cpu => "cpu".to_owned(),
        Target::Described { spec, .. } => spec.name(),
    };
    json!({
        "device": device,
        "budget_bytes": budget.total,
        "planned_peak_bytes": plan.arena_bytes,
        "arena_bytes": plan.arena_bytes,
        "outside_bytes": budget.outside,
        "by_purpose": by_purpose,
        "micro_batch": choice.micro_batch,
        "accumulation": choice.accumulation,
        "recompute": plan.strategy.to_string(),
        "liveness_bound_bytes": plan.liveness_bound,
    })
}

/// The text form of one stage.
fn shown(stage: Stage, config: &Config, planned: &Planned) -> Result<String, Failure> {
    let choice = &planned.choice;
    let forward = || config.model.training(choice.micro_batch);
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
