//! State that outlives a step and is no parameter. It is stored as bytes, because a run that resumes must find every
//! one of them again, whatever the element type.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_graph::{StateKind, Type};

use crate::error::TrainError;
use crate::files::{Checksum, FileError, TensorFile, TensorSpec, TensorWriter, in_file};
use crate::run::Run;

/// Name of the file.
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
/// Bytes that pass through memory at a time.
const PIECE: usize = 1 << 20;

// Files are little-endian, and bytes go from the arena to them as they are.
const _: () = assert!(cfg!(target_endian = "little"));

/// The state that lasts, except parameters, which the model's files hold, and tables, which every run makes. Types are those
/// of the whole, whatever part of it this rank keeps.
fn kept(run: &Run) -> BTreeMap<String, Type> {
    let elsewhere = |kind| matches!(kind, StateKind::Parameter { .. } | StateKind::Constant);
    let kept = run.states_of(|kind| kind.outlives_a_step() && !elsewhere(kind));
    kept.map(|(name, ty)| (name.to_owned(), run.whole_type(name).unwrap_or(ty))).collect()
}

pub(super) fn write(run: &Run, folder: &Path) -> Result<Checksum, TrainError> {
    let kept = kept(run);
    let specs = kept.iter().map(|(name, ty)| TensorSpec {
        name: name.clone(),
        dtype: in_file(ty.dtype),
        shape: ty.shape.to_vec(),
    });
    let mut writer = TensorWriter::create(&folder.join(OPTIMIZER), specs.collect())?;
    let order: Vec<(String, u64)> =
        writer.tensors().iter().map(|spec| (spec.name.clone(), spec.bytes())).collect();
    let mut piece = vec![0; PIECE];
    for (name, bytes) in order {
        for (first, count) in pieces(bytes) {
            run.read_whole(&name, first, &mut piece[..count])?;
            writer.write_bytes(&piece[..count])?;
        }
    }
    Ok(writer.finish()?)
}

/// Reads this rank's part of the state.
pub(crate) fn read(run: &mut Run, folder: &Path) -> Result<(), TrainError> {
    let (file, kept) = (TensorFile::open(&folder.join(OPTIMIZER))?, kept(run));
    if let Some(why) = difference(&file, &kept) {
        return Err(FileError::wrong(file.path(), why).into());
    }
    let mut piece = vec![0; PIECE];
    for name in kept.keys() {
        let (begin, bytes) = run.own_part(name);
        for (first, count) in pieces(bytes) {
            file.read_bytes(name, begin + first, &mut piece[..count])?;
            run.engine_mut().write_state_bytes(name, first, &piece[..count])?;
        }
    }
    Ok(())
}

/// The difference between the file and this run.
fn difference(file: &TensorFile, kept: &BTreeMap<String, Type>) -> Option<String> {
    let end = "resume with the same model and optimizer";
    for (name, ty) in kept {
        let Some(tensor) = file.tensors().get(name) else {
            return Some(format!("holds no `{name}`, which this run needs; {end}"));
        };
        if tensor.shape != ty.shape[..] || tensor.dtype != in_file(ty.dtype) {
            let (dtype, shape) = (tensor.dtype, &tensor.shape);
            return Some(format!("holds `{name}` as {dtype} {shape:?} where this run has {ty}; {end}"));
        }
    }
    let unknown = file.tensors().keys().find(|name| !kept.contains_key(*name))?;
    Some(format!("holds `{unknown}`, which this run does not have; {end}"))
}

/// First byte and number of bytes of each piece.
fn pieces(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes).step_by(PIECE).map(move |first| (first, (bytes - first).min(PIECE as u64) as usize))
}
