//! A frozen base in few bits: its linear layers' weights as codes and scales, from a folder or drawn.
//!
//! A weight is quantised as it is read, some rows at a time, and only its codes and scales go into the arena. Memory
//! holds those rows and, if scales are in eight bits, the scales of one weight, because their offset is known last. A
//! weight that its model stores as `(in, out)` is read in stripes of columns.
//!
//! Weights that bitsandbytes has quantised before are copied as they are.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use plimsoll_exec::init;
use plimsoll_exec::quantised::{
    decode_int8, decode_nf4, decode_scale, encode_int8, encode_nf4, encode_scales,
};
use plimsoll_exec::{Engine, ExecError};
use plimsoll_graph::Graph;
use plimsoll_graph::op::{NF4_BLOCK, NF4_SECOND_BLOCK, Quantised};
use plimsoll_model::hf::StoredName;
use plimsoll_model::lora::{LinearLayer, linear_layers};

use crate::reading;

use super::{FileError, ModelFolder, QuantisedTensor, TensorFile, WeightError};

/// Numbers that are quantised at a time (a MiB of them), unless a row is longer.
const PIECE: usize = 256 << 10;

/// The frozen weights that are kept in few bits, and their form.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedBase {
    /// The form.
    pub form: Quantised,
    /// The layers.
    pub layers: Vec<LinearLayer>,
    /// Modules that stay unquantised on request.
    pub skipped: Vec<String>,
}

impl QuantisedBase {
    /// The linear layers of a forward graph, except those that `keeps` selects and those whose name, or its end after a
    /// dot, is in `skipped`.
    ///
    /// # Errors
    ///
    /// When none is left, a name in `skipped` is none of the model's, or a layer's width has no whole blocks.
    pub fn new(
        form: Quantised,
        forward: &Graph,
        skipped: Vec<String>,
        keeps: impl Fn(&str) -> bool,
    ) -> Result<QuantisedBase, String> {
        let all = linear_layers(forward);
        let named = |layer: &LinearLayer, name: &str| {
            let before = layer.weight.trim_end_matches(".weight").strip_suffix(name);
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        if let Some(name) = skipped.iter().find(|name| !all.iter().any(|layer| named(layer, name))) {
            return Err(format!(
                "--llm-int8-skip-modules names `{name}`, which is no linear layer of the model"
            ));
        }
        let skips = |layer: &LinearLayer| skipped.iter().any(|name| named(layer, name));
        let layers = all.into_iter().filter(|layer| !keeps(&layer.weight) && !skips(layer));
        let layers: Vec<LinearLayer> = layers.collect();
        for layer in &layers {
            if let Some(why) = form.refuses(layer.input) {
                return Err(format!(
                    "`{}` {why}; write --load-in-8bit, or leave it as it is with --llm-int8-skip-modules",
                    layer.weight
                ));
            }
        }
        if layers.is_empty() {
            return Err("no linear layer is left to quantise".into());
        }
        Ok(QuantisedBase { form, layers, skipped })
    }

    /// Names of the weights.
    pub fn weights(&self) -> BTreeSet<String> {
        self.layers.iter().map(|layer| layer.weight.clone()).collect()
    }

    /// Whether a range of state holds part of a quantised weight.
    pub fn holds(&self, state: &str) -> bool {
        let suffixes = self.form.ranges([1, NF4_BLOCK]);
        let is = |layer: &LinearLayer| {
            let rest = state.strip_prefix(layer.weight.as_str());
            rest.is_some_and(|rest| suffixes.iter().any(|(suffix, _)| *suffix == rest))
        };
        self.layers.iter().any(is)
    }

    /// Bytes that quantising takes beside the arena.
    pub fn loading_bytes(&self) -> u64 {
        let room = |layer: &LinearLayer| {
            let numbers = PIECE.max(layer.input);
            let scales = layer.input * layer.output / NF4_BLOCK;
            4 * (numbers + numbers / layer.input.max(1)) + numbers + 6 * scales
        };
        self.layers.iter().map(room).max().unwrap_or(0) as u64
    }

    /// Reads the weights from a folder into their ranges; returns the names of the tensors that were read.
    ///
    /// # Errors
    ///
    /// When one is missing, has another shape, holds a number that is not finite, or cannot be read.
    pub fn load(
        &self,
        engine: &mut Engine,
        folder: &ModelFolder,
        stored: impl Fn(&str) -> StoredName,
    ) -> Result<BTreeSet<String>, WeightError> {
        let mut read = BTreeSet::new();
        for layer in &self.layers {
            let stored = stored(&layer.weight);
            let (file, name) = folder.find(stored.names()).ok_or_else(|| {
                let name = &stored.name;
                let why =
                    format!("holds no tensor `{name}`; its weights are not those of this configuration");
                FileError::wrong(folder.path(), why)
            })?;
            if let Some(codes) = QuantisedTensor::find(folder, name)? {
                self.copy(engine, layer, &codes, file.path())?;
                read.extend(codes.names());
            } else {
                self.quantise_file(engine, layer, file, name)?;
                read.insert(name.to_owned());
            }
        }
        Ok(read)
    }

    /// Quantises a weight that a file has as floats.
    fn quantise_file(
        &self,
        engine: &mut Engine,
        layer: &LinearLayer,
        file: &TensorFile,
        name: &str,
    ) -> Result<(), WeightError> {
        check_shape(file, name, layer)?;
        self.quantise(engine, layer, |first, into| {
            file.read(name, first, into)?;
            let finite = into.iter().all(|number| number.is_finite());
            if finite { Ok(()) } else { Err(not_finite(file, name).into()) }
        })
    }

    /// Draws the weights of a model that begins from scratch: the same numbers as without codes.
    ///
    /// # Errors
    ///
    /// When the engine has no such ranges.
    pub fn draw(&self, engine: &mut Engine, seed: u64) -> Result<(), WeightError> {
        for layer in &self.layers {
            self.quantise(engine, layer, |first, into| {
                init::fill(&layer.init, &layer.weight, seed, first, into);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Copies codes and scales that are there already.
    fn copy(
        &self,
        engine: &mut Engine,
        layer: &LinearLayer,
        codes: &QuantisedTensor,
        path: &Path,
    ) -> Result<(), WeightError> {
        let (shape, form) = ([layer.output, layer.input], self.form);
        if codes.shape != shape || codes.form != form {
            let why = format!(
                "holds `{}` as {:?} in {}, where {shape:?} in {form} is wanted",
                layer.weight, codes.shape, codes.form
            );
            return Err(FileError::wrong(path, why).into());
        }
        let mut bytes = vec![0; PIECE];
        for (suffix, ty) in form.ranges(shape) {
            let state = format!("{}{suffix}", layer.weight);
            if suffix == ".nested_offset" {
                engine.write_state(&state, 0, &[codes.offset])?;
                continue;
            }
            for first in (0..ty.bytes()).step_by(PIECE) {
                let bytes = &mut bytes[..PIECE.min(ty.bytes() - first)];
                codes.bytes(suffix, first as u64, bytes)?;
                engine.write_state_bytes(&state, first as u64, bytes)?;
            }
        }
        Ok(())
    }

    /// Quantises a weight whose numbers `read` gives, from an element on, in the order they are stored.
    fn quantise(
        &self,
        engine: &mut Engine,
        layer: &LinearLayer,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), WeightError>,
    ) -> Result<(), WeightError> {
        let (rows, columns) = (layer.output, layer.input);
        let many = (PIECE / columns.max(1)).clamp(1, rows.max(1));
        let (mut numbers, mut codes) = (vec![0.0; many * columns], vec![0; many * columns]);
        let per_row = if self.form == Quantised::Int8 { columns } else { columns / 2 };
        let mut scales = Vec::with_capacity(rows * columns / NF4_BLOCK);
        for first in (0..rows).step_by(many) {
            let count = many.min(rows - first);
            let numbers = &mut numbers[..count * columns];
            read_rows(layer, first, numbers, &mut read)?;
            let codes = &mut codes[..count * per_row];
            self.encode(numbers, codes, columns, &mut scales);
            engine.write_state_bytes(&layer.weight, (first * per_row) as u64, codes)?;
            // A base of billions of numbers takes minutes, and no file is at fault.
            reading::step();
        }
        self.write_scales(engine, layer, &scales)
    }

    /// Numbers of whole rows of a weight `(out, columns)` in the arena, from row `first` on, as its readers get them.
    ///
    /// # Errors
    ///
    /// When the engine has no such ranges.
    pub(crate) fn read_rows(
        &self,
        engine: &Engine,
        weight: &str,
        columns: usize,
        first: usize,
        numbers: &mut [f32],
    ) -> Result<(), ExecError> {
        let (int8, rows) = (self.form == Quantised::Int8, numbers.len() / columns.max(1));
        let mut codes = vec![0; if int8 { numbers.len() } else { numbers.len() / 2 }];
        let per_row = codes.len() / rows.max(1);
        engine.read_state_bytes(weight, (first * per_row) as u64, &mut codes)?;
        if int8 {
            let mut scales = vec![0.0; rows];
            engine.read_state(&format!("{weight}.SCB"), first, &mut scales)?;
            let rows = codes.chunks_exact(columns).zip(numbers.chunks_exact_mut(columns));
            rows.zip(scales).for_each(|((codes, numbers), scale)| decode_int8(codes, scale, numbers));
            return Ok(());
        }
        let blocks = first * columns / NF4_BLOCK..(first + rows) * columns / NF4_BLOCK;
        decode_nf4(&codes, self.read_scales(engine, weight, blocks)?, numbers);
        Ok(())
    }

    /// The scales of some blocks of 4-bit codes in the arena.
    fn read_scales(
        &self,
        engine: &Engine,
        weight: &str,
        blocks: Range<usize>,
    ) -> Result<Vec<f32>, ExecError> {
        let absmax = format!("{weight}.absmax");
        let mut scales = vec![0.0; blocks.len()];
        if self.form == Quantised::Nf4 {
            engine.read_state(&absmax, blocks.start, &mut scales)?;
            return Ok(scales);
        }
        let mut codes = vec![0; blocks.len()];
        engine.read_state_bytes(&absmax, blocks.start as u64, &mut codes)?;
        let begin = blocks.start / NF4_SECOND_BLOCK;
        let mut second = vec![0.0; blocks.end.div_ceil(NF4_SECOND_BLOCK) - begin];
        engine.read_state(&format!("{weight}.nested_absmax"), begin, &mut second)?;
        let mut offset = [0.0];
        engine.read_state(&format!("{weight}.nested_offset"), 0, &mut offset)?;
        for ((block, scale), code) in blocks.zip(&mut scales).zip(codes) {
            *scale = decode_scale(code, second[block / NF4_SECOND_BLOCK - begin], offset[0]);
        }
        Ok(scales)
    }

    /// Codes of whole rows; their scales are added to `scales`.
    fn encode(&self, numbers: &[f32], codes: &mut [u8], columns: usize, scales: &mut Vec<f32>) {
        if self.form == Quantised::Int8 {
            let rows = numbers.chunks_exact(columns).zip(codes.chunks_exact_mut(columns));
            scales.extend(rows.map(|(row, codes)| encode_int8(row, codes)));
            return;
        }
        let known = scales.len();
        scales.resize(known + numbers.len() / NF4_BLOCK, 0.0);
        encode_nf4(numbers, codes, &mut scales[known..]);
    }

    fn write_scales(
        &self,
        engine: &mut Engine,
        layer: &LinearLayer,
        scales: &[f32],
    ) -> Result<(), WeightError> {
        let weight = &layer.weight;
        match self.form {
            Quantised::Int8 => engine.write_state(&format!("{weight}.SCB"), 0, scales)?,
            Quantised::Nf4 => engine.write_state(&format!("{weight}.absmax"), 0, scales)?,
            Quantised::Nf4Double => {
                let mut codes = vec![0; scales.len()];
                let mut second = vec![0.0; scales.len().div_ceil(NF4_SECOND_BLOCK)];
                let offset = encode_scales(scales, &mut codes, &mut second);
                engine.write_state_bytes(&format!("{weight}.absmax"), 0, &codes)?;
                engine.write_state(&format!("{weight}.nested_absmax"), 0, &second)?;
                engine.write_state(&format!("{weight}.nested_offset"), 0, &[offset])?;
            }
        }
        Ok(())
    }
}

/// Rows of a weight as `(out, in)`, from row `first` on.
fn read_rows(
    layer: &LinearLayer,
    first: usize,
    numbers: &mut [f32],
    read: &mut impl FnMut(usize, &mut [f32]) -> Result<(), WeightError>,
) -> Result<(), WeightError> {
    let (rows, columns) = (layer.output, layer.input);
    if !layer.transposed {
        return read(first * columns, numbers);
    }
    let mut stripe = vec![0.0; numbers.len() / columns.max(1)];
    for column in 0..columns {
        read(column * rows + first, &mut stripe)?;
        for (row, number) in stripe.iter().enumerate() {
            numbers[row * columns + column] = *number;
        }
    }
    Ok(())
}

fn check_shape(file: &TensorFile, name: &str, layer: &LinearLayer) -> Result<(), FileError> {
    let (has, mut wanted) = (&file.tensor(name)?.shape, [layer.output, layer.input]);
    if layer.transposed {
        wanted.reverse();
    }
    if has[..] == wanted {
        return Ok(());
    }
    let why = format!(
        "holds `{name}` as {has:?} where the configuration has {wanted:?}; \
         weights and configuration must be of the same model"
    );
    Err(FileError::wrong(file.path(), why))
}

fn not_finite(file: &TensorFile, name: &str) -> FileError {
    let why =
        format!("holds `{name}` with a number that is not finite, which has no code; fetch the file again");
    FileError::wrong(file.path(), why)
}
