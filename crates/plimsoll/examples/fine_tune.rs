//! Trains a model's folder further on a file of text or samples, as `plimsoll train` does:
//! `cargo run --release -p plimsoll --example fine_tune -- MODEL DATA OUTPUT`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::{Config, Environment, Event, RawConfig, TrainError};

fn main() -> Result<(), TrainError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, data, output] = &arguments[..] else {
        return Err(TrainError::Config("give a model, data and a folder for the result".into()));
    };
    let settings = RawConfig {
        model: Some(model.clone()),
        data: Some(vec![data.clone()]),
        output_dir: Some(output.into()),
        memory: Some("256MiB".into()),
        seq_len: Some(16),
        max_steps: Some(8),
        ..RawConfig::default()
    };
    let environment = Environment::from_variables(|name| std::env::var(name).ok());
    let config = Config::check(&environment.complete(settings, &mut ())?)?;
    let mut job = config.open(&environment)?;
    let planned = job.plan()?;
    println!("planned: {} bytes of memory for the model and its training", planned.choice.plan.arena_bytes);
    let mut session = job.start(planned)?;
    let end = session.train::<TrainError>(&mut [&mut |event: &Event<'_>| {
        if let Event::Log(record) = event {
            println!("step {} of 8: loss {:.4}", record.step, record.loss);
        }
        Ok(())
    }])?;
    session.finish(&end)?;
    session.judge(&end)
}
