//! A model with its adapter merged in, written as a folder of its own.
//!
//! Tensors pass through one by one, a block of rows at a time; in memory are that block and the two small matrices
//! of one adapter. So a model of any size is merged in the same few MiB.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_model::Lora;
use plimsoll_model::lora::{Adapter, Delta, file_name};

use crate::error::TrainError;
use crate::files::{FileError, ModelFolder, TensorFile, TensorSpec, TensorWriter};
use crate::files::{beside, copy_file, sync_folder, write_text};
use crate::pretrained::{AdapterFolder, Pretrained};

/// Numbers of a block, but for rows that are longer.
const BLOCK: usize = 256 << 10;

/// What happens to a tensor on its way.
enum Change<'a> {
    /// An adapter is added.
    Merged(&'a Adapter),
    /// The adapter's folder has it, trained as a whole, under this name.
    Replaced(String),
}

/// Writes `base` with `adapter` merged in to `out`, which must not hold anything yet. Element types, files and names
/// stay as they are.
///
/// # Errors
///
/// When `out` is not empty or cannot be written, or a file is broken.
pub fn merge(base: &Pretrained, adapter: &AdapterFolder, out: &Path) -> Result<(), TrainError> {
    let unwritable = |fault: std::io::Error| FileError::writing(out, &fault);
    if out.exists() && !out.is_dir() {
        return Err(FileError::wrong(out, "is not a folder; give one that does not exist yet").into());
    }
    if out.exists() && fs::read_dir(out).map_err(unwritable)?.next().is_some() {
        return Err(FileError::wrong(out, "is not empty; give a folder that does not exist yet").into());
    }
    let folder = ModelFolder::open(&base.folder)?;
    let (lora, weights) = (&adapter.config.lora, adapter.weights()?);
    let graph = base.configuration.architecture.training(1, 1)?;
    let adapters = lora.adapters(&graph)?;
    let changes =
        changes(base, lora, &adapters, &folder, graph.states().iter().map(|state| state.name.as_str()));

    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let temporary = out.with_file_name(format!(".tmp-{name}"));
    if temporary.exists() {
        fs::remove_dir_all(&temporary).map_err(unwritable)?;
    }
    fs::create_dir_all(&temporary).map_err(unwritable)?;
    let written = write(base, lora, &folder, &weights, &changes, &temporary).and_then(|()| {
        if out.exists() {
            fs::remove_dir(out).map_err(unwritable)?;
        }
        fs::rename(&temporary, out).map_err(unwritable)?;
        Ok(())
    });
    // What went wrong before matters more than a folder that stays behind.
    let _ = fs::remove_dir_all(&temporary);
    written
}

/// What is done to which stored tensor.
fn changes<'a>(
    base: &Pretrained,
    lora: &Lora,
    adapters: &'a [Adapter],
    folder: &ModelFolder,
    parameters: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, Change<'a>> {
    let architecture = &base.configuration.architecture;
    let stored = |parameter: &str| {
        let stored = architecture.stored(parameter);
        folder.find(stored.names()).map(|(_, name)| name.to_owned())
    };
    let merged = adapters.iter().filter_map(|adapter| {
        Some((stored(&format!("{}.weight", adapter.module))?, Change::Merged(adapter)))
    });
    let replaced = parameters
        .filter(|parameter| lora.saves(parameter))
        .filter_map(|parameter| Some((stored(parameter)?, Change::Replaced(file_name(parameter)))));
    merged.chain(replaced).collect()
}

fn write(
    base: &Pretrained,
    lora: &Lora,
    folder: &ModelFolder,
    weights: &ModelFolder,
    changes: &BTreeMap<String, Change>,
    out: &Path,
) -> Result<(), TrainError> {
    for file in folder.files() {
        let specs = file.tensors().iter().map(|(name, tensor)| TensorSpec {
            name: name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        });
        let name = file.path().file_name().unwrap_or_default();
        let mut writer = TensorWriter::create(&out.join(name), specs.collect())?;
        for spec in writer.tensors().to_vec() {
            match changes.get(&spec.name) {
                None => copy(file, &spec, &mut writer)?,
                Some(Change::Merged(adapter)) => merged(file, &spec, lora, adapter, weights, &mut writer)?,
                Some(Change::Replaced(name)) => replaced(weights, name, &spec, &mut writer)?,
            }
        }
        writer.finish()?;
    }
    write_text(&out.join("config.json"), &base.config)?;
    let index = base.folder.join("model.safetensors.index.json");
    if folder.files().len() > 1 {
        copy_file(&index, &out.join("model.safetensors.index.json"))?;
    }
    for name in beside(&base.folder) {
        copy_file(&base.folder.join(name), &out.join(name))?;
    }
    Ok(sync_folder(out)?)
}

/// First row and number of rows of each block of a tensor, and the length of a row.
fn blocks(spec: &TensorSpec) -> (impl Iterator<Item = (usize, usize)>, usize) {
    let rows = spec.shape.first().copied().unwrap_or(1);
    let columns: usize = spec.shape.iter().skip(1).product();
    let many = (BLOCK / columns.max(1)).max(1);
    ((0..rows).step_by(many).map(move |first| (first, many.min(rows - first))), columns)
}

fn copy(file: &TensorFile, spec: &TensorSpec, writer: &mut TensorWriter) -> Result<(), TrainError> {
    let mut bytes = vec![0; (4 * BLOCK).min(spec.bytes() as usize)];
    let mut first = 0;
    while first < spec.bytes() {
        let count = bytes.len().min((spec.bytes() - first) as usize);
        file.read_bytes(&spec.name, first, &mut bytes[..count])?;
        writer.write_bytes(&bytes[..count])?;
        first += count as u64;
    }
    Ok(())
}

fn merged(
    file: &TensorFile,
    spec: &TensorSpec,
    lora: &Lora,
    adapter: &Adapter,
    weights: &ModelFolder,
    writer: &mut TensorWriter,
) -> Result<(), TrainError> {
    let whole = |parameter: String, elements: usize| {
        let name = file_name(&parameter);
        let (file, _) = weights
            .find([name.as_str()])
            .ok_or_else(|| FileError::wrong(weights.path(), format!("holds no tensor `{name}`")))?;
        let mut numbers = vec![0.0; elements];
        file.read(&name, 0, &mut numbers)?;
        Ok::<_, FileError>(numbers)
    };
    let a = whole(adapter.a(), lora.rank * adapter.input)?;
    let b = whole(adapter.b(), lora.rank * adapter.output)?;
    let delta = Delta::new(lora, adapter, &a, &b)?;
    let (blocks, columns) = blocks(spec);
    let mut block = Vec::new();
    for (first, rows) in blocks {
        block.resize(rows * columns, 0.0);
        file.read(&spec.name, first * columns, &mut block)?;
        delta.merge_rows(first, &mut block)?;
        writer.write(&block)?;
    }
    Ok(())
}

fn replaced(
    weights: &ModelFolder,
    name: &str,
    spec: &TensorSpec,
    writer: &mut TensorWriter,
) -> Result<(), TrainError> {
    let (file, _) = weights
        .find([name])
        .ok_or_else(|| FileError::wrong(weights.path(), format!("holds no tensor `{name}`")))?;
    let (blocks, columns) = blocks(spec);
    let mut block = Vec::new();
    for (first, rows) in blocks {
        block.resize(rows * columns, 0.0);
        file.read(name, first * columns, &mut block)?;
        writer.write(&block)?;
    }
    Ok(())
}
