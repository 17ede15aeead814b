//! A model's folder: one `model.safetensors`, or several files and an index of what lies where.
//!
//! Links to files are followed, since the hub's cache is made of them; a name in the index that leads out of the folder
//! is refused. A file that is copied into the output must lie with the model: a link could otherwise copy the user's
//! private files into it. Absent: pickled weights (`pytorch_model.bin`), which are programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{FileError, TensorFile, read_text, stays_inside};

/// Files that go with a model and pass through training unchanged.
pub(crate) const BESIDE: [&str; 11] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The weights of a model and the files beside them.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// Which of `files` holds a tensor.
    places: BTreeMap<String, usize>,
}

/// The index of a model whose weights lie in several files.
#[derive(Deserialize)]
pub(crate) struct Index {
    /// The file of each tensor.
    pub(crate) weight_map: BTreeMap<String, String>,
}

impl ModelFolder {
    /// Opens the model in a folder.
    ///
    /// # Errors
    ///
    /// When there is none, or a file of it is missing or broken.
    pub fn open(path: &Path) -> Result<ModelFolder, FileError> {
        ModelFolder::open_named(path, "model")
    }

    /// Opens the weights called `stem.safetensors`, or split into the files that
    /// `stem.safetensors.index.json` lists.
    ///
    /// # Errors
    ///
    /// When there are none, or a file of them is missing or broken.
    pub fn open_named(path: &Path, stem: &str) -> Result<ModelFolder, FileError> {
        let whole = path.join(format!("{stem}.safetensors"));
        if whole.exists() {
            let file = TensorFile::open(&whole)?;
            let places = file.tensors().keys().map(|name| (name.clone(), 0)).collect();
            return Ok(ModelFolder { path: path.to_owned(), files: vec![file], places });
        }
        let index = path.join(format!("{stem}.safetensors.index.json"));
        if index.exists() {
            return ModelFolder::open_index(path, &index);
        }
        Err(FileError::wrong(path, why_no_weights(path, stem)))
    }

    fn open_index(path: &Path, index: &Path) -> Result<ModelFolder, FileError> {
        let Index { weight_map } = serde_json::from_str(&read_text(index)?).map_err(|fault| {
            FileError::wrong(index, format!("is no index of weights ({fault}); fetch it again"))
        })?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        if let Some(name) = names.iter().find(|name| !stays_inside(name)) {
            let why = format!("names `{name}`, which lies outside its folder; only files beside it are read");
            return Err(FileError::wrong(index, why));
        }
        let names: Vec<&String> = names.into_iter().collect();
        let files = names.iter().map(|name| TensorFile::open(&path.join(name)));
        let files = files.collect::<Result<Vec<TensorFile>, FileError>>()?;
        let mut places = BTreeMap::new();
        for (tensor, name) in &weight_map {
            let which = names.binary_search(&name).unwrap_or_default();
            files[which].tensor(tensor)?;
            places.insert(tensor.clone(), which);
        }
        Ok(ModelFolder { path: path.to_owned(), files, places })
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of `config.json`.
    ///
    /// # Errors
    ///
    /// When it is missing or cannot be read.
    pub fn config(&self) -> Result<String, FileError> {
        read_text(&self.path.join("config.json"))
    }

    /// The file that holds the first existing one of `names`, and that name.
    pub fn find<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<(&TensorFile, &'a str)> {
        names.into_iter().find_map(|name| Some((&self.files[*self.places.get(name)?], name)))
    }

    /// The files, one or several.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether there is a tokenizer that can be read.
    pub fn has_tokenizer(&self) -> bool {
        self.path.join("tokenizer.json").is_file()
    }
}

/// Names of the files in a folder that pass through training unchanged: tokenizer, chat template,
/// settings of generation. Links that lead away from the model are left out.
pub(crate) fn beside(folder: &Path) -> impl Iterator<Item = &'static str> {
    BESIDE.into_iter().filter(move |name| folder.join(name).is_file() && elsewhere(folder, name).is_none())
}

/// Refuses a folder with a link that leads outside, if the file behind the link would be copied into the output.
///
/// # Errors
///
/// When there is such a link.
pub(crate) fn refuse_links_elsewhere(folder: &Path) -> Result<(), FileError> {
    for name in BESIDE.into_iter().chain(["config.json"]) {
        if let Some(real) = elsewhere(folder, name) {
            let real = real.display();
            let why = format!(
                "is a link to {real}, outside the model's folder; put the file itself there, or remove the link"
            );
            return Err(FileError::wrong(&folder.join(name), why));
        }
    }
    Ok(())
}

/// Where the file called `name` really is, if that is not with the model in `folder`.
fn elsewhere(folder: &Path, name: &str) -> Option<PathBuf> {
    let real = folder.join(name).canonicalize().ok()?;
    (!real.starts_with(own_place(&folder.canonicalize().ok()?))).then_some(real)
}

/// The folder that holds all of a model's files. In the hub's cache, `models--owner--name/snapshots/<commit>` holds links into
/// `models--owner--name/blobs`.
fn own_place(folder: &Path) -> &Path {
    let model = folder.parent().filter(|snapshots| snapshots.ends_with("snapshots")).and_then(Path::parent);
    let named =
        |model: &&Path| model.file_name().is_some_and(|name| name.to_string_lossy().starts_with("models--"));
    model.filter(named).unwrap_or(folder)
}

fn why_no_weights(path: &Path, stem: &str) -> String {
    if !path.is_dir() {
        return "is not a folder; give the folder that holds config.json and the weights".into();
    }
    if path.join("pytorch_model.bin").exists() {
        return "holds pickled weights only; save the model with `safe_serialization=True` and give that"
            .into();
    }
    format!("holds no {stem}.safetensors and no {stem}.safetensors.index.json; give a folder that does")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn only_files_that_lie_with_the_model_are_copied_along() {
        let folder = Scratch::new();
        let secret = folder.write("secret", "password");
        let model = folder.write("model/tokenizer.json", "{}").parent().unwrap().to_owned();
        folder.write("model/data/vocab.json", "{}");
        symlink("data/vocab.json", model.join("vocab.json")).unwrap();
        let names = |folder: &Path| beside(folder).collect::<Vec<_>>();
        assert_eq!(names(&model), ["tokenizer.json", "vocab.json"]);
        refuse_links_elsewhere(&model).unwrap();
        for target in [secret.clone(), "../secret".into(), "../model/../secret".into()] {
            symlink(&target, model.join("tokenizer.model")).unwrap();
            assert_eq!(names(&model), ["tokenizer.json", "vocab.json"]);
            let why = refuse_links_elsewhere(&model).unwrap_err().to_string();
            assert!(
                why.contains("tokenizer.model is a link to ") && why.contains("outside the model's folder"),
                "{why}"
            );
            fs::remove_file(model.join("tokenizer.model")).unwrap();
        }
    }

    #[test]
    fn links_of_the_hubs_cache_stay_with_their_model() {
        let folder = Scratch::new();
        folder.write("hub/models--a--b/blobs/0123", "{}");
        folder.write("hub/models--a--private/blobs/4567", "{}");
        let snapshot = folder.write("hub/models--a--b/snapshots/c0ffee/x", "").parent().unwrap().to_owned();
        symlink("../../blobs/0123", snapshot.join("tokenizer.json")).unwrap();
        refuse_links_elsewhere(&snapshot).unwrap();
        assert_eq!(beside(&snapshot).collect::<Vec<_>>(), ["tokenizer.json"]);
        symlink("../../../models--a--private/blobs/4567", snapshot.join("vocab.json")).unwrap();
        assert!(refuse_links_elsewhere(&snapshot).is_err());
        assert_eq!(beside(&snapshot).collect::<Vec<_>>(), ["tokenizer.json"]);
        // The cache, or the model in it, may itself be a link to another disk.
        fs::remove_file(snapshot.join("vocab.json")).unwrap();
        fs::create_dir_all(folder.path().join("other")).unwrap();
        symlink(folder.path().join("hub/models--a--b"), folder.path().join("other/models--a--b")).unwrap();
        refuse_links_elsewhere(&folder.path().join("other/models--a--b/snapshots/c0ffee")).unwrap();
    }
}
