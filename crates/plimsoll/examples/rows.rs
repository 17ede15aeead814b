//! Writes down what a run begins from and sees, so that another program can train the same:
//! `cargo run --release -p plimsoll --example rows -- settings.toml FOLDER`.
//!
//! | in `FOLDER` | what it is |
//! |---|---|
//! | `initial/` | the weights before the first step, as a model's folder, or as an adapter's where one is trained |
//! | `train.i32` | rows of all steps in the order they are trained on, each its tokens, targets and document starts |
//! | `validation.i32` | rows that are evaluated on, likewise |
//! | `rows.json` | positions of a row, rows of each step, rows of the validation |
//!
//! Numbers are little-endian. Everything comes from the same calls `plimsoll train` makes with these settings.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use plimsoll::training::data::{Batches, DataError, Rows, Sequence};
use plimsoll::training::{Config, RawConfig};
use plimsoll::{Run, plan_for};

fn main() -> Result<(), Box<dyn Error>> {
    let [_, settings, folder] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: rows SETTINGS.toml FOLDER".into());
    };
    let folder = Path::new(folder);
    let mut config = Config::check(&RawConfig::gather(Some(Path::new(settings)), &[])?)?;
    let data = config.open_data(&mut |_| {})?;
    save_initial(&config, &folder.join("initial"))?;

    let seq_len = config.model.seq_len;
    let mut row = Sequence::with_positions(seq_len);
    // A micro-batch of one row: how a step is cut does not change what it sees.
    let mut batches = Batches::new(data.train, config.options.global_batch as u64, 1);
    let steps = config.lr(batches.steps_per_epoch())?.max_steps;
    let mut out = BufWriter::new(File::create(folder.join("train.i32"))?);
    let mut rows = Vec::new();
    for _ in 0..steps {
        let group = batches.next_group()?;
        rows.push(group.sequences);
        write_rows(&mut out, &mut row, group.sequences, |which, row| batches.read(&group, which, row))?;
    }
    out.flush()?;

    let source = data.validation.ok_or("the settings name no validation data")?;
    let mut validation = config.validation(source, 1);
    let group = validation.group(|| false)?.ok_or("the validation data was not read to its end")?;
    let mut out = BufWriter::new(File::create(folder.join("validation.i32"))?);
    write_rows(&mut out, &mut row, group.sequences, |which, row| validation.read(&group, which, row))?;
    out.flush()?;

    let shape = serde_json::json!({ "seq_len": seq_len, "rows": rows, "validation_rows": group.sequences });
    Ok(fs::write(folder.join("rows.json"), shape.to_string())?)
}

fn save_initial(config: &Config, folder: &Path) -> Result<(), Box<dyn Error>> {
    let device = config.options.plain_device()?;
    let planned = plan_for(&config.model, &*device, &config.options)?;
    let mut run = Run::start(device, planned, config.options.seed)?;
    config.load(&mut run)?;
    fs::create_dir_all(folder)?;
    run.save_weights(folder, &config.form()?)?;
    Ok(())
}

fn write_rows(
    out: &mut impl Write,
    row: &mut Sequence,
    count: u64,
    mut read: impl FnMut(u64, Rows<'_>) -> Result<(), DataError>,
) -> Result<(), Box<dyn Error>> {
    for which in 0..count {
        read(which, row.rows())?;
        for number in [&row.tokens, &row.targets, &row.doc_start].into_iter().flatten() {
            out.write_all(&number.to_le_bytes())?;
        }
    }
    Ok(())
}
