//! A model with its adapter merged in, written as a folder of its own.
//!
//! Tensors pass through one by one, a block of rows at a time; memory holds that block and the two small matrices of
//! one adapter. So a model of any size is merged in the same few MiB. A head from the adapter replaces the model's own.
//!
//! An adapter for the embedding changes the input side only: PEFT leaves the output head as it was. If the head is tied
//! to the embedding, the merged model has two tables, the changed one and the old one.
//!
//! If the folder holds codes, the adapter is merged into the dequantised weights, and floats are written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use half::f16;
use plimsoll_exec::Projection;
use plimsoll_graph::StateKind;
use plimsoll_model::lora::{
    Adapter, Coordinates, Delta, Form, Merging, RowLengths, TokenAdapter, file_name, linear_layers,
    scale_rows,
};
use serde_json::Value;

use crate::error::TrainError;
use crate::files::{self, Dtype, FileError, ModelFolder, QuantisedTensor, TensorFile, TensorSpec};
use crate::files::{
    MORE_TEMPLATES, beside, copy_beside, goes_along, refuse_links_elsewhere, replace_model, write_text,
};
use crate::files::{TensorWriter, UNFINISHED};
use crate::pretrained::adapter::matrix;
use crate::pretrained::expert_deltas::{ExpertDelta, ExpertDeltas, Matrices};
use crate::pretrained::stored_weight::StoredWeight;
use crate::pretrained::{AdapterFolder, Pretrained};

/// Numbers of a block, unless a row is longer.
const BLOCK: usize = 256 << 10;

/// How a tensor is changed while it is written.
enum Change {
    /// An adapter is merged in, in this way.
    Merged(Adapter, Merging),
    /// The part of an adapter of stacked experts is added that belongs to this expert.
    Expert(ExpertDelta),
    /// The adapter's folder has it under this name, trained as a whole.
    Replaced(String),
    /// The tensor is a copy of the original model's tensor of this name.
    Copied(String),
    /// Rows of the tensor were trained.
    Rows(TokenAdapter),
    /// It is moved along these coordinates, from this element of the parameter on.
    Moved(Coordinates, usize),
}

/// The weights that an adapter was added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedInto {
    /// The model's own, as its folder has them.
    Original,
    /// The dequantised weights, since its folder holds only codes.
    Dequantised,
}

/// A model on its way.
struct Merge<'a> {
    base: &'a Pretrained,
    adapter: &'a AdapterFolder,
    folder: ModelFolder,
    weights: ModelFolder,
    /// Changes by the name of the stored tensor.
    changes: BTreeMap<String, Change>,
    /// Tensors of a head that the model lacks.
    added: Vec<TensorSpec>,
    /// Whether the table of words and the output head become two.
    untied: bool,
    /// Weights to be dequantised, as they are written, and whether their model stores them as `(in, out)`.
    dequantised: BTreeMap<String, (TensorSpec, bool)>,
    /// Tensors that belong to codes, and are not written.
    dropped: BTreeSet<String>,
    /// Matrices of experts' adapters.
    matrices: Matrices,
}

/// Writes `base` with `adapter` merged in to `out`, which must be empty, and returns which weights it was added to.
/// Element types, files and names stay as they are, except that quantised weights become floats again.
///
/// # Errors
///
/// When `out` is not empty or cannot be written, or a file is broken.
pub fn merge(base: &Pretrained, adapter: &AdapterFolder, out: &Path) -> Result<MergedInto, TrainError> {
    let unwritable = |fault: std::io::Error| FileError::writing(out, &fault);
    let there = out.exists();
    if there && !out.is_dir() {
        return Err(FileError::wrong(out, "is not a folder; give one that does not exist yet").into());
    }
    if there && !is_empty(out).map_err(unwritable)? {
        return Err(FileError::wrong(out, "is not empty; give a folder that does not exist yet").into());
    }
    refuse_links_elsewhere(&base.folder)?;
    let merge = Merge::new(base, adapter)?;
    let written = replace_model(out, "model", |temporary| merge.write(temporary));
    if written.is_err() && !there {
        let _ = fs::remove_dir(out);
    }
    written?;
    Ok(if merge.dequantised.is_empty() { MergedInto::Original } else { MergedInto::Dequantised })
}

/// Whether a folder holds nothing except the remains of an interrupted merge: its temporary folder, and files of a
/// model that it had moved out of there.
fn is_empty(folder: &Path) -> std::io::Result<bool> {
    let interrupted = folder.join(UNFINISHED).is_dir();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let beside = goes_along(&name) || name == MORE_TEMPLATES;
        let of_a_model = name == "config.json" || name.starts_with("model") || beside;
        if name != UNFINISHED && !(interrupted && of_a_model) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Merge<'_> {
    fn new<'a>(base: &'a Pretrained, adapter: &'a AdapterFolder) -> Result<Merge<'a>, TrainError> {
        let (folder, weights) = (ModelFolder::open(&base.folder)?, adapter.weights()?);
        let (architecture, lora) = (&adapter.configuration.architecture, &adapter.config.lora);
        let graph = architecture.training(1, 1)?;
        let merges = lora.merges(&graph)?.into_iter();
        let mut adapters: BTreeMap<String, (Adapter, Merging)> =
            merges.map(|(parameter, adapter, way)| (parameter, (adapter, way))).collect();
        let mut tokens: BTreeMap<String, TokenAdapter> =
            lora.token_adapters(&graph)?.into_iter().map(|table| (table.weight(), table)).collect();
        let tables = adapters.values().any(|(adapter, _)| adapter.form == Form::Table);
        let untied = tables && !architecture.tied().is_empty();
        let new_dtype = folder.files().iter().flat_map(|file| file.tensors().values()).next();
        let new_dtype = new_dtype.map_or(Dtype::F32, |tensor| tensor.dtype);
        let (mut changes, mut added) = (BTreeMap::new(), Vec::new());
        let (mut dequantised, mut dropped) = (BTreeMap::new(), BTreeSet::new());
        let turned = linear_layers(&graph).into_iter().filter(|layer| layer.transposed);
        let turned: BTreeSet<String> = turned.map(|layer| layer.weight).collect();
        let coordinates = lora.coordinates(&graph)?;
        let experts = ExpertDeltas::new(lora.expert_adapters(&graph)?);
        let parameters = graph.states().iter();
        let parameters = parameters.filter(|state| matches!(state.kind, StateKind::Parameter { .. }));
        let tensors = parameters.flat_map(|state| {
            let pieces = state.pieces().enumerate();
            pieces.map(move |(part, (first, name, shape))| (state, (part, first), name, shape))
        });
        for (state, (part, first), tensor, shape) in tensors {
            let (stored, saved) = (architecture.stored(tensor), lora.saves(tensor));
            let name = match folder.find(stored.names()) {
                Some((_, name)) => name.to_owned(),
                None if saved => {
                    let (name, shape) = (stored.name.clone(), shape.to_vec());
                    added.push(TensorSpec { name, dtype: new_dtype, shape });
                    stored.name
                }
                None => {
                    let why = format!(
                        "holds no tensor `{}`, and the adapter brings none; give the model it was trained on",
                        stored.name
                    );
                    return Err(FileError::wrong(&base.folder, why).into());
                }
            };
            if let Some(spec) = base.dequantised_spec(&folder, &name, &shape)? {
                let codes = QuantisedTensor::find(&folder, &name)?;
                dropped.extend(codes.iter().flat_map(QuantisedTensor::names).filter(|part| *part != name));
                dequantised.insert(name.clone(), (spec, turned.contains(&state.name)));
            }
            if saved {
                changes.insert(name, Change::Replaced(file_name(&state.name)));
            } else if let Some((adapter, way)) = adapters.remove(&state.name) {
                changes.insert(name, Change::Merged(adapter, way));
            } else if let Some(delta) = experts.of(&state.name, part) {
                changes.insert(name, Change::Expert(delta));
            } else if let Some(own) = coordinates.get(&state.name) {
                changes.insert(name, Change::Moved(own.clone(), first));
            } else if let Some(table) = tokens.remove(&state.name) {
                changes.insert(name, Change::Rows(table));
            }
        }
        let matrices = Matrices::default();
        let mut merge =
            Merge { base, adapter, folder, weights, changes, added, untied, dequantised, dropped, matrices };
        if untied {
            merge.keep_second_names();
        }
        Ok(merge)
    }

    /// Gives tensors that were used under two names a second copy, unchanged.
    fn keep_second_names(&mut self) {
        let architecture = &self.adapter.configuration.architecture;
        for (second, parameter) in architecture.tied() {
            let stored = architecture.stored(parameter);
            let Some((file, name)) = self.folder.find(stored.names()) else { continue };
            let Some(tensor) = file.tensors().get(name).filter(|_| self.folder.find([*second]).is_none())
            else {
                continue;
            };
            let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
            self.changes.insert((*second).to_owned(), Change::Copied(name.to_owned()));
            self.added.push(TensorSpec { name: (*second).to_owned(), dtype, shape });
        }
    }

    /// Writes all files and returns their names, the configuration's last: without it, no program takes the folder for
    /// a model.
    fn write(&self, out: &Path) -> Result<Vec<String>, TrainError> {
        let new_head = !self.base.has_head_of(&self.adapter.configuration);
        let (mut names, mut total, mut index) = (Vec::new(), 0, serde_json::Map::new());
        let last = self.folder.files().len() - 1;
        for (which, file) in self.folder.files().iter().enumerate() {
            let kept = file.tensors().iter().filter(|(name, _)| {
                // A head for another task is left out if the adapter has a head of its own.
                !(self.is_stale(name)
                    || self.dropped.contains(*name)
                    || new_head && self.adapter.configuration.architecture.ignores(name))
            });
            let mut specs: Vec<TensorSpec> = kept
                .map(|(name, tensor)| {
                    if let Some((spec, _)) = self.dequantised.get(name) {
                        return spec.clone();
                    }
                    let (name, dtype, shape) = (name.clone(), tensor.dtype, tensor.shape.clone());
                    TensorSpec { name, dtype, shape }
                })
                .collect();
            if which == last {
                specs.extend(self.added.iter().cloned());
            }
            let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            total += specs.iter().map(TensorSpec::bytes).sum::<u64>();
            index.extend(specs.iter().map(|spec| (spec.name.clone(), name.clone().into())));
            self.write_file(file, &out.join(&name), specs)?;
            names.push(name);
        }
        if last > 0 {
            let (name, text) = files::index("model", total, &index);
            write_text(&out.join(&name), &text)?;
            names.push(name);
        }
        for name in beside(&self.base.folder) {
            copy_beside(&self.base.folder, out, &name)?;
            names.push(name);
        }
        let config = if new_head || self.untied || !self.dequantised.is_empty() {
            let mut config = self.base.config_with(&self.adapter.configuration)?;
            config.remove("quantization_config");
            if self.untied {
                config.insert("tie_word_embeddings".into(), false.into());
            }
            format!("{:#}\n", Value::from(config))
        } else {
            self.base.config.clone()
        };
        write_text(&out.join("config.json"), &config)?;
        names.push("config.json".into());
        Ok(names)
    }

    /// Whether a tensor is the second name of one that changes; the copy would be taken for a head of its own.
    fn is_stale(&self, name: &str) -> bool {
        if self.untied {
            return false;
        }
        let architecture = &self.adapter.configuration.architecture;
        let tied = architecture.tied().iter().find(|(second, _)| *second == name);
        tied.is_some_and(|(_, parameter)| {
            architecture.stored(parameter).names().any(|stored| self.changes.contains_key(stored))
        })
    }

    /// The numbers of a tensor, dequantised where they have to be.
    fn weight<'b>(&'b self, file: &'b TensorFile, spec: &TensorSpec) -> Result<StoredWeight<'b>, FileError> {
        let turned = self.dequantised.get(&spec.name).is_some_and(|(_, turned)| *turned);
        StoredWeight::of(&self.folder, file, spec, turned)
    }

    fn write_file(&self, file: &TensorFile, path: &Path, specs: Vec<TensorSpec>) -> Result<(), TrainError> {
        let mut writer = TensorWriter::create(path, specs)?;
        for spec in writer.tensors().to_vec() {
            match self.changes.get(&spec.name) {
                None if self.dequantised.contains_key(&spec.name) => {
                    let weight = self.weight(file, &spec)?;
                    written(&weight, &spec, &mut writer)?;
                }
                None => copy(file, &spec.name, &spec, &mut writer)?,
                Some(Change::Merged(adapter, way)) => {
                    let weight = self.weight(file, &spec)?;
                    merged((&weight, &spec), (adapter, *way), &self.weights, &mut writer)?;
                }
                Some(Change::Expert(ExpertDelta { adapter, part })) => {
                    let a = self.matrices.get(&self.weights, &adapter.a(), adapter.a_elements())?;
                    let b = self.matrices.get(&self.weights, &adapter.b(), adapter.b_elements())?;
                    let (weight, delta) = (self.weight(file, &spec)?, adapter.delta(*part, &a, &b)?);
                    each_block(&weight, &spec, |first, block| {
                        delta.merge_rows(first, block)?;
                        finite(block, &spec, &self.weights)?;
                        Ok(writer.write(block)?)
                    })?;
                }
                Some(Change::Replaced(name)) => replaced(&self.weights, name, &spec, &mut writer)?,
                Some(Change::Moved(own, first)) => {
                    moved((&self.weight(file, &spec)?, &spec), (own, *first), &self.weights, &mut writer)?;
                }
                Some(Change::Rows(table)) => with_rows(file, &spec, table, &self.weights, &mut writer)?,
                Some(Change::Copied(name)) => {
                    let (file, name) = self
                        .folder
                        .find([name.as_str()])
                        .ok_or_else(|| FileError::wrong(self.folder.path(), format!("lost `{name}`")))?;
                    copy(file, name, &spec, &mut writer)?;
                }
            }
        }
        writer.finish()?;
        Ok(())
    }
}

/// First row and number of rows of each block of a tensor, and the length of a row.
fn blocks(spec: &TensorSpec) -> (impl Iterator<Item = (usize, usize)>, usize) {
    let rows = spec.shape.first().copied().unwrap_or(1);
    let columns: usize = spec.shape.iter().skip(1).product();
    let many = (BLOCK / columns.max(1)).max(1);
    ((0..rows).step_by(many).map(move |first| (first, many.min(rows - first))), columns)
}

fn copy(
    file: &TensorFile,
    name: &str,
    spec: &TensorSpec,
    writer: &mut TensorWriter,
) -> Result<(), TrainError> {
    let mut bytes = vec![0; (4 * BLOCK).min(spec.bytes() as usize)];
    let mut first = 0;
    while first < spec.bytes() {
        let count = bytes.len().min((spec.bytes() - first) as usize);
        file.read_bytes(name, first, &mut bytes[..count])?;
        writer.write_bytes(&bytes[..count])?;
        first += count as u64;
    }
    Ok(())
}

/// Writes a tensor that was quantised and has no adapter.
fn written(weight: &StoredWeight, spec: &TensorSpec, writer: &mut TensorWriter) -> Result<(), TrainError> {
    each_block(weight, spec, |_, block| Ok(writer.write(block)?))
}

/// Writes a parameter with its adapter merged in.
fn merged(
    (weight, spec): (&StoredWeight, &TensorSpec),
    (adapter, way): (&Adapter, Merging),
    weights: &ModelFolder,
    writer: &mut TensorWriter,
) -> Result<(), TrainError> {
    let (_, columns) = blocks(spec);
    if let Merging::RowFactors | Merging::ColumnFactors = way {
        let count = if adapter.feedforward { adapter.input } else { adapter.output };
        let factors = matrix(weights, &adapter.factors(), count)?;
        return each_block(weight, spec, |first, block| {
            scale_rows(first, block, columns, &factors, way == Merging::ColumnFactors);
            finite(block, spec, weights)?;
            Ok(writer.write(block)?)
        });
    }
    let a = matrix(weights, &adapter.a(), adapter.rank * adapter.input)?;
    let b = matrix(weights, &adapter.b(), adapter.rank * adapter.output)?;
    let delta = Delta::new(adapter, &a, &b)?;
    let lengths = match way {
        Merging::SumOfLengths => {
            let magnitudes = matrix(weights, &adapter.magnitude(), adapter.output)?;
            Some((lengths(weight, spec, adapter, &delta)?, magnitudes))
        }
        _ => None,
    };
    each_block(weight, spec, |first, block| {
        delta.merge_rows(first, block)?;
        if let Some((lengths, magnitudes)) = &lengths {
            lengths.scale(first, block, columns, magnitudes);
        }
        finite(block, spec, weights)?;
        Ok(writer.write(block)?)
    })
}

/// Writes a parameter moved in its subspace.
fn moved(
    (weight, spec): (&StoredWeight, &TensorSpec),
    (own, first): (&Coordinates, usize),
    weights: &ModelFolder,
    writer: &mut TensorWriter,
) -> Result<(), TrainError> {
    let coordinates = matrix(weights, &own.name, own.count)?;
    let (projection, (_, columns)) = (Projection::new(own.stream, own.count), blocks(spec));
    each_block(weight, spec, |row, block| {
        projection.add(&coordinates, first + row * columns, block);
        finite(block, spec, weights)?;
        Ok(writer.write(block)?)
    })
}

/// The lengths of the rows of a weight with its adapter.
fn lengths(
    weight: &StoredWeight,
    spec: &TensorSpec,
    adapter: &Adapter,
    delta: &Delta<'_>,
) -> Result<RowLengths, TrainError> {
    let (mut lengths, (_, columns)) = (RowLengths::new(adapter), blocks(spec));
    each_block(weight, spec, |first, block| {
        delta.merge_rows(first, block)?;
        lengths.add(first, block, columns);
        Ok(())
    })?;
    Ok(lengths)
}

/// Hands over a weight block by block, each with the number of its first row.
fn each_block(
    weight: &StoredWeight,
    spec: &TensorSpec,
    mut take: impl FnMut(usize, &mut [f32]) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let (blocks, columns) = blocks(spec);
    let mut block = Vec::new();
    for (first, rows) in blocks {
        block.resize(rows * columns, 0.0);
        weight.read(spec, first, columns, &mut block)?;
        take(first, &mut block)?;
    }
    Ok(())
}

/// The table with the rows that were trained in their places.
fn with_rows(
    file: &TensorFile,
    spec: &TensorSpec,
    table: &TokenAdapter,
    weights: &ModelFolder,
    writer: &mut TensorWriter,
) -> Result<(), TrainError> {
    let width = table.width;
    let trained = matrix(weights, &table.parameter(), table.rows.len() * width)?;
    let (blocks, columns) = blocks(spec);
    let mut block = Vec::new();
    for (first, rows) in blocks {
        block.resize(rows * columns, 0.0);
        file.read(&spec.name, first * columns, &mut block)?;
        for (row, numbers) in table.rows.iter().zip(trained.chunks_exact(width)) {
            if (first..first + rows).contains(row) {
                block[(row - first) * columns..][..columns].copy_from_slice(numbers);
            }
        }
        finite(&block, spec, weights)?;
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
        finite(&block, spec, weights)?;
        writer.write(&block)?;
    }
    Ok(())
}

/// Refuses a merged tensor with numbers that the file's type cannot hold.
fn finite(block: &[f32], spec: &TensorSpec, adapter: &ModelFolder) -> Result<(), FileError> {
    let most = if spec.dtype == Dtype::F16 { f16::MAX.to_f32() } else { f32::MAX };
    if block.iter().all(|number| number.abs() <= most) {
        return Ok(());
    }
    let name = &spec.name;
    let why =
        format!("makes numbers of `{name}` that are not finite; merge an adapter of an earlier checkpoint");
    Err(FileError::wrong(adapter.path(), why))
}
