//! Golden files of `testdata`, which the scripts in `reference/` write.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// One file of `testdata`.
pub(crate) struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub(crate) fn read(name: &str) -> Golden {
        let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
        Golden { bytes: std::fs::read(testdata.join(format!("{name}.safetensors"))).unwrap() }
    }

    /// All tensors of the file.
    pub(crate) fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// Names of all tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.tensors().names().into_iter().map(str::to_owned).collect()
    }

    /// Reads the tensor of that name, if the file has it.
    fn tensor<T>(&self, name: &str, read: impl FnOnce(&TensorView) -> T) -> Option<T> {
        Some(read(&self.tensors().tensor(name).ok()?))
    }

    fn words(&self, name: &str) -> Option<Vec<[u8; 4]>> {
        self.tensor(name, |tensor| tensor.data().as_chunks::<4>().0.to_vec())
    }

    /// The elements of a tensor of bytes: codes, or a text.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensor(name, |tensor| tensor.data().to_vec()).unwrap()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.find(name).unwrap()
    }

    /// The tensor of that name, if the file has it.
    pub(crate) fn find(&self, name: &str) -> Option<Vec<f32>> {
        Some(self.words(name)?.into_iter().map(f32::from_le_bytes).collect())
    }

    pub(crate) fn ints(&self, name: &str) -> Option<Vec<i32>> {
        Some(self.words(name)?.into_iter().map(i32::from_le_bytes).collect())
    }
}
