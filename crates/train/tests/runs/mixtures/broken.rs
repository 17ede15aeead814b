//! Mixtures whose files lack an expert, or have one of another shape.

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::*;

/// A copy of a folder in which one file lacks a tensor, or has it under another shape.
fn without(name: &str, file: &str, tensor: &str, shape: Option<&[usize]>) -> TempDir {
    let out = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(path(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), out.path().join(entry.file_name())).unwrap();
    }
    let bytes = std::fs::read(path(name).join(file)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert!(tensors.names().contains(&tensor), "{tensor} is in {file}");
    let kept = tensors.tensors().into_iter().filter(|(name, _)| shape.is_some() || name != tensor);
    let views = kept.map(|(name, view)| {
        let of = shape.filter(|_| name == tensor).unwrap_or(view.shape()).to_vec();
        (name, TensorView::new(view.dtype(), of, view.data()).unwrap())
    });
    std::fs::write(out.path().join(file), safetensors::serialize(views, None).unwrap()).unwrap();
    out
}

/// The error of reading the weights of a folder.
fn refusal(folder: &Folder, from: &Path) -> String {
    let mut run = Run::new(folder, &options(folder.batch.rows(), 2, Strategy::None, 1)).unwrap();
    let files = match ModelFolder::open(from) {
        Ok(files) => files,
        Err(error) => return error.to_string(),
    };
    run.load_weights(&files, &folder.form()).unwrap_err().to_string()
}

#[test]
fn an_expert_that_is_missing_or_of_another_shape_is_named() {
    let folder = Folder::open("olmoe", BalanceGroup::Sequence);
    let expert = "model.layers.1.mlp.experts.6.up_proj.weight";
    for (shape, told) in [
        (None, "holds no tensor `model.layers.1.mlp.experts.6.up_proj.weight`"),
        (Some([32, 24]), "holds `model.layers.1.mlp.experts.6.up_proj.weight` as [32, 24]"),
    ] {
        let shape = shape.as_ref().map(|shape| &shape[..]);
        let broken = without("olmoe", "model.safetensors", expert, shape);
        let error = refusal(&folder, broken.path());
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn an_expert_that_is_missing_or_transposed_in_the_second_of_two_shards_is_named_with_its_file() {
    let folder = Folder::open("mixtral", BalanceGroup::Sequence);
    let shard = "model-00002-of-00002.safetensors";
    let expert = "model.layers.1.block_sparse_moe.experts.3.w2.weight";
    for (shape, told) in [(None, "holds no tensor `"), (Some([24, 32]), "holds `")] {
        let shape = shape.as_ref().map(|shape| &shape[..]);
        let broken = without("mixtral", shard, expert, shape);
        let error = refusal(&folder, broken.path());
        assert!(error.contains(&format!("{told}{expert}`")) && error.contains(shard), "{error}");
        assert!(shape.is_none() || error.contains("as [24, 32]"), "{error}");
    }
}
