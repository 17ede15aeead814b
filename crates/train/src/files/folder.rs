//! A model's folder: one `model.safetensors`, or several files and an index of what lies where.
//!
//! Links to files are followed, since the hub's cache is made of them; a name in the index that leads out of the folder
//! is refused. Absent: pickled weights (`pytorch_model.bin`), which are programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{FileError, TensorFile, read_text, stays_inside};

/// The weights of a model and the files beside them.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// The index in `files` of the file that holds each tensor.
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

fn why_no_weights(path: &Path, stem: &str) -> String {
    if !path.is_dir() {
        return "is not a folder; give the folder that holds config.json and the weights".into();
    }
    let (pickled, way) = match stem {
        "model" => ("pytorch_model", "save the model with `safe_serialization=True` and give that"),
        _ => (
            stem,
            "have PEFT write them anew (`PeftModel.from_pretrained(base, adapter).save_pretrained(folder)`) and give that folder",
        ),
    };
    if ["bin", "bin.index.json"].iter().any(|ending| path.join(format!("{pickled}.{ending}")).exists()) {
        return format!("holds pickled weights only; {way}");
    }
    format!("holds no {stem}.safetensors and no {stem}.safetensors.index.json; give a folder that does")
}
