//! Golden files of `testdata` as tensors of the reference kernels.

use std::collections::BTreeMap;

use plimsoll_exec::reference::Tensor;
use plimsoll_graph::{DType, Shape, Type};
use safetensors::Dtype;

#[path = "../../../graph/tests/support/golden.rs"]
mod file;
use file::Golden;

/// All tensors of a file of `testdata`, by name; signed bytes are read as codes.
pub(crate) fn tensors(file: &str) -> BTreeMap<String, Tensor> {
    let golden = Golden::read(file);
    let read = golden.tensors().tensors().into_iter().map(|(name, view)| {
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            Dtype::I32 => DType::I32,
            Dtype::U8 | Dtype::I8 => DType::U8,
            other => panic!("{name} is {other:?}"),
        };
        let ty = Type { shape: Shape::new(view.shape()).unwrap(), dtype };
        (name, Tensor::from_bytes(ty, view.data()))
    });
    read.collect()
}
