//! Parameters between a folder and the arena, a piece at a time.
//!
//! A parameter has the same layout in a file and in the arena, except for its element type and perhaps its name: the
//! graphs keep the axes of Hugging Face's files. So nothing is transposed, and a piece of a file is a piece of the
//! arena.
//!
//! A group of state, such as the experts of a layer, is one range of the arena but one tensor per part in a file:
//! [`Engine::pieces`] tells where each part lies.
//!
//! Where ranks divide weights, each reads its own part of a file. Files are written from a [`WholeState`], which collects the
//! parts of all ranks.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::{Engine, ExecError, decode_numbers};
use plimsoll_graph::{DType, Shape, Type};
use plimsoll_model::hf::StoredName;
use safetensors::Dtype;

use super::{Checksum, FileError, ModelFolder, TensorFile, TensorSpec, TensorWriter, WeightError};
use super::{beside, copy_beside, replace_model, write_text};
use crate::optimizer::low_name;

/// Numbers in a piece: a MiB of them.
const PIECE: usize = 256 << 10;
/// Bytes of one file before another is begun, as in other tools.
const SHARD_BYTES: u64 = 5_000_000_000;

/// State that can be read as a whole, on whatever ranks its parts lie.
pub trait WholeState {
    /// The pieces of a state that have names in files; see [`Engine::pieces`].
    fn pieces(&self, name: &str) -> Vec<(usize, String, Shape)>;

    /// Reads bytes of a whole state from byte `first` on, as they are stored.
    ///
    /// # Errors
    ///
    /// When there is no such state, it is shorter, or a rank that keeps a part has ended.
    fn read_bytes(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<(), ExecError>;
}

impl WholeState for Engine {
    fn pieces(&self, name: &str) -> Vec<(usize, String, Shape)> {
        Engine::pieces(self, name)
    }

    fn read_bytes(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.read_state_bytes(name, first, bytes)
    }
}

/// How a model is laid down in a folder.
#[derive(Clone)]
pub struct ModelFormat {
    /// How each parameter is stored.
    pub stored: Arc<dyn Fn(&str) -> StoredName + Send + Sync>,
    /// Name of the weights' file without its ending: `model`, or `adapter_model`.
    pub stem: String,
    /// Whether parameters that are not trained are written too.
    pub frozen: bool,
    /// Element type in the file; as in the arena when absent.
    pub dtype: Option<Dtype>,
    /// Bytes of one file before another is begun.
    pub shard_bytes: u64,
    /// Name and contents of each small file to write, such as `config.json`.
    pub texts: Vec<(String, String)>,
    /// The folder whose tokenizer, chat template and settings of generation are copied.
    pub beside: Option<PathBuf>,
}

impl Default for ModelFormat {
    fn default() -> ModelFormat {
        ModelFormat {
            stored: Arc::new(StoredName::plain),
            stem: "model".into(),
            frozen: true,
            dtype: None,
            shard_bytes: SHARD_BYTES,
            texts: Vec::new(),
            beside: None,
        }
    }
}

impl fmt::Debug for ModelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.texts.iter().map(|(name, _)| name).collect();
        f.debug_struct("ModelFormat").field("stem", &self.stem).field("texts", &names).finish_non_exhaustive()
    }
}

/// Mismatches between a file and a model; not every mismatch is a mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Tensors that belong to no parameter: usually a tied head or a mask of an old version.
    pub unused: Vec<String>,
    /// Parameters that are not in the folder and need not be: a new head, usually.
    pub absent: Vec<String>,
}

/// Reads every one of `parameters` from a folder into its place; for a parameter with a master copy, into both halves.
///
/// # Errors
///
/// When one is missing, has another shape, or cannot be read. Parameters read before stay.
pub fn load_weights<'a>(
    engine: &mut Engine,
    parameters: impl IntoIterator<Item = (&'a str, Type)>,
    folder: &ModelFolder,
    stored: impl Fn(&str) -> StoredName,
) -> Result<Loaded, WeightError> {
    let mut unused: BTreeSet<&str> = folder.names().collect();
    let mut absent = Vec::new();
    let mut piece = vec![0.0; PIECE];
    let pieces_of = |(state, ty)| Piece::all(&*engine, state, ty);
    let parameters: Vec<Piece> = parameters.into_iter().flat_map(pieces_of).collect();
    for Piece { state, first: begin, name: parameter, ty } in parameters {
        let stored = stored(&parameter);
        let Some((file, name)) = folder.find(stored.names()) else {
            if stored.optional {
                absent.push(parameter);
                continue;
            }
            let names = stored.names().collect::<Vec<&str>>().join("` or `");
            let why = format!("holds no tensor `{names}`; its weights are not those of this configuration");
            return Err(FileError::wrong(folder.path(), why).into());
        };
        unused.remove(name);
        check_shape(file, name, ty)?;
        // A master copy begins with the file's own numbers, not with rounded ones.
        let low = Some(low_name(state)).filter(|low| engine.has_state(low));
        for (first, count) in pieces(ty.shape.elements()) {
            if !engine.keeps(state, begin + first, count) {
                continue;
            }
            file.read(name, first, &mut piece[..count])?;
            match &low {
                Some(low) => engine.write_state_halves([state, low], begin + first, &piece[..count])?,
                None => engine.write_state(state, begin + first, &piece[..count])?,
            }
        }
    }
    Ok(Loaded { unused: unused.into_iter().map(str::to_owned).collect(), absent })
}

/// A piece of a parameter that is a tensor of its own in a file.
struct Piece<'a> {
    state: &'a str,
    /// The first element of the tensor in the state.
    first: usize,
    name: String,
    ty: Type,
}

impl<'a> Piece<'a> {
    /// The pieces of a state. An unknown state is one piece too, which is refused when it is read or written.
    fn all(from: &impl WholeState, state: &'a str, ty: Type) -> Vec<Piece<'a>> {
        let pieces = Some(from.pieces(state)).filter(|pieces| !pieces.is_empty());
        let pieces = pieces.unwrap_or_else(|| vec![(0, state.to_owned(), ty.shape)]).into_iter();
        pieces.map(|(first, name, shape)| Piece { state, first, name, ty: Type { shape, ..ty } }).collect()
    }
}

fn check_shape(file: &TensorFile, name: &str, ty: Type) -> Result<(), FileError> {
    let has = &file.tensor(name)?.shape;
    if *has == ty.shape[..] {
        return Ok(());
    }
    let wanted = &ty.shape[..];
    Err(FileError::wrong(
        file.path(),
        format!(
            "holds `{name}` as {has:?} where the configuration has {wanted:?}; \
             weights and configuration must be of the same model"
        ),
    ))
}

/// First element and number of elements of each piece.
fn pieces(elements: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..elements).step_by(PIECE).map(move |first| (first, PIECE.min(elements - first)))
}

/// Writes `parameters` as a model's folder, over any earlier model. All files are complete before the first of them
/// takes its place, so a full disk leaves the old ones; returns the names of the new ones.
///
/// # Errors
///
/// When the folder cannot be written.
pub fn save_weights<'a>(
    from: &impl WholeState,
    parameters: impl IntoIterator<Item = (&'a str, Type)>,
    folder: &Path,
    form: &ModelFormat,
) -> Result<Vec<String>, WeightError> {
    replace_model(folder, &form.stem, |temporary| {
        let written = write_model(from, parameters, temporary, form)?;
        Ok(written.into_iter().map(|(name, _)| name).collect())
    })
}

/// Writes `parameters` and the files beside them into an empty folder, each synced to disk.
pub(crate) fn write_model<'a>(
    from: &impl WholeState,
    parameters: impl IntoIterator<Item = (&'a str, Type)>,
    folder: &Path,
    form: &ModelFormat,
) -> Result<Vec<(String, Checksum)>, WeightError> {
    let pieces_of = |(state, ty)| Piece::all(from, state, ty);
    let parts: Vec<Part> =
        parameters.into_iter().flat_map(pieces_of).map(|piece| Part::new(piece, form)).collect();
    let total: u64 = parts.iter().map(|part| part.spec.bytes()).sum();
    let shards = divide(parts, form.shard_bytes);
    let (count, stem) = (shards.len(), &form.stem);
    let mut written = Vec::new();
    let mut index = serde_json::Map::new();
    for (which, parts) in shards.into_iter().enumerate() {
        let name = match count {
            1 => format!("{stem}.safetensors"),
            _ => format!("{stem}-{:05}-of-{count:05}.safetensors", which + 1),
        };
        index.extend(parts.iter().map(|part| (part.spec.name.clone(), name.clone().into())));
        let checksum = write_shard(from, &folder.join(&name), &parts)?;
        written.push((name, checksum));
    }
    let index = (count > 1).then(|| super::index(stem, total, &index));
    for (name, text) in form.texts.iter().chain(&index) {
        written.push((name.clone(), write_text(&folder.join(name), text)?));
    }
    if let Some(source) = &form.beside {
        for name in beside(source) {
            if !written.iter().any(|(known, _)| *known == name) {
                let sum = copy_beside(source, folder, &name)?;
                written.push((name, sum));
            }
        }
    }
    Ok(written)
}

/// A piece of a parameter on its way into a file.
struct Part<'a> {
    state: &'a str,
    first: usize,
    elements: usize,
    /// Element type of the state.
    dtype: DType,
    spec: TensorSpec,
}

impl<'a> Part<'a> {
    fn new(piece: Piece<'a>, form: &ModelFormat) -> Part<'a> {
        let Piece { state, first, name, ty } = piece;
        let name = (form.stored)(&name).name;
        let dtype = form.dtype.unwrap_or_else(|| in_file(ty.dtype));
        let spec = TensorSpec { name, dtype, shape: ty.shape.to_vec() };
        Part { state, first, elements: ty.shape.elements(), dtype: ty.dtype, spec }
    }
}

/// The name that files have for an element type.
pub(crate) fn in_file(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::U8 => Dtype::U8,
    }
}

/// Cuts the list so that no file exceeds `limit` bytes, unless a single tensor does.
fn divide(parts: Vec<Part<'_>>, limit: u64) -> Vec<Vec<Part<'_>>> {
    let mut shards = vec![Vec::new()];
    let mut room = limit;
    for part in parts {
        let bytes = part.spec.bytes();
        if bytes > room && shards.last().is_some_and(|shard| !shard.is_empty()) {
            shards.push(Vec::new());
            room = limit;
        }
        room = room.saturating_sub(bytes);
        if let Some(shard) = shards.last_mut() {
            shard.push(part);
        }
    }
    shards
}

fn write_shard(from: &impl WholeState, path: &Path, parts: &[Part]) -> Result<Checksum, WeightError> {
    let mut writer = TensorWriter::create(path, parts.iter().map(|part| part.spec.clone()).collect())?;
    let order: Vec<String> = writer.tensors().iter().map(|spec| spec.name.clone()).collect();
    let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
    for name in order {
        let Some(part) = parts.iter().find(|part| part.spec.name == name) else { continue };
        // If file and state have the same element type, bytes are only moved.
        let (as_stored, width) = (in_file(part.dtype) == part.spec.dtype, part.dtype.bytes());
        for (first, count) in pieces(part.elements) {
            bytes.resize(width * count, 0);
            from.read_bytes(part.state, (width * (part.first + first)) as u64, &mut bytes)?;
            if as_stored {
                writer.write_bytes(&bytes)?;
            } else {
                numbers.resize(count, 0.0);
                decode_numbers(part.dtype, &bytes, &mut numbers);
                writer.write(&numbers)?;
            }
        }
    }
    Ok(writer.finish()?)
}
