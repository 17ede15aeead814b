//! A tensor of a model that is being merged, as floats: read directly, or dequantised.

use super::Pretrained;
use crate::files::{Dtype, FileError, ModelFolder, QuantisedTensor, TensorFile, TensorSpec};

/// Where the numbers of a tensor come from.
pub(super) enum StoredWeight<'a> {
    /// A file holds the numbers.
    Whole(&'a TensorFile),
    /// A file holds codes of the numbers, in the order of the tensor.
    Coded(QuantisedTensor<'a>),
    /// They were dequantised and turned, since the model stores `(in, out)` and codes are `(out, in)`.
    Turned(Vec<f32>),
}

impl<'a> StoredWeight<'a> {
    /// The numbers of the tensor that `spec` describes. Its model stores it as `(in, out)` if `turned` is set; such a
    /// weight is transposed and held in memory as a whole.
    pub(super) fn of(
        folder: &'a ModelFolder,
        file: &'a TensorFile,
        spec: &TensorSpec,
        turned: bool,
    ) -> Result<StoredWeight<'a>, FileError> {
        let Some(codes) = QuantisedTensor::find(folder, &spec.name)? else {
            return Ok(StoredWeight::Whole(file));
        };
        if !turned {
            return Ok(StoredWeight::Coded(codes));
        }
        let [rows, columns] = codes.shape;
        let (mut turned, mut row) = (vec![0.0; rows * columns], vec![0.0; columns]);
        for output in 0..rows {
            codes.rows(output, &mut row)?;
            for (input, number) in row.iter().enumerate() {
                turned[input * rows + output] = *number;
            }
        }
        Ok(StoredWeight::Turned(turned))
    }

    /// Whole rows of `columns` numbers, from row `first` on.
    pub(super) fn read(
        &self,
        spec: &TensorSpec,
        first: usize,
        columns: usize,
        into: &mut [f32],
    ) -> Result<(), FileError> {
        match self {
            StoredWeight::Whole(file) => file.read(&spec.name, first * columns, into),
            StoredWeight::Coded(codes) => codes.rows(first, into),
            StoredWeight::Turned(numbers) => {
                into.copy_from_slice(&numbers[first * columns..][..into.len()]);
                Ok(())
            }
        }
    }
}

impl Pretrained {
    /// How a tensor is written once it is dequantised; `None` if its numbers are stored as floats. `shape` is the
    /// model's.
    pub(super) fn dequantised_spec(
        &self,
        folder: &ModelFolder,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<TensorSpec>, FileError> {
        let Some(codes) = QuantisedTensor::find(folder, name)? else { return Ok(None) };
        let dtype = match (self.configuration.quantised, self.configuration.dtype.as_deref()) {
            (Some(plimsoll_graph::op::Quantised::Int8), Some("float32")) => Dtype::F32,
            (Some(plimsoll_graph::op::Quantised::Int8), Some("bfloat16")) => Dtype::BF16,
            _ => codes.dtype,
        };
        Ok(Some(TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }))
    }
}
