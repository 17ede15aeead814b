//! Models from the Hugging Face hub, through the cache that Python's library shares.
//!
//! What is in the cache already is taken from there without asking anybody. Everything else is downloaded beside
//! its place and renamed when it is whole; an interrupted download goes on where it stopped. This file reads no
//! environment variable: the caller says where the cache is, which token to show and which server to ask.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::error::TrainError;
use crate::files::{BESIDE, Index, read_bytes};
use crate::pretrained::reads_bytes;

/// Tries after a broken connection; each goes on where the last one stopped.
const RETRIES: usize = 5;

/// The weights in one file, and what lists them where they are in several.
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A hub and the cache of what came from it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The folder `hub` of the cache.
    pub cache: PathBuf,
    /// Address of the server; the public one when not stated.
    pub endpoint: Option<String>,
    /// What to show the server; the token in the cache's home when not stated.
    pub token: Option<String>,
    /// Whether only the cache may be asked.
    pub offline: bool,
}

/// Whether `name` has the form of a hub id, `owner/name`.
pub fn is_id(name: &str) -> bool {
    let word = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && part.chars().all(allowed) && !part.contains("..") && !part.starts_with('.')
    };
    name.split_once('/').is_some_and(|(owner, model)| word(owner) && word(model))
}

/// The id of a model whose folder is in a cache, which names it `models--owner--name/snapshots/<commit>`.
pub fn id_of(folder: &Path) -> Option<String> {
    let snapshots = folder.parent().filter(|snapshots| snapshots.ends_with("snapshots"))?;
    let id = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?.replacen("--", "/", 1);
    is_id(&id).then_some(id)
}

impl Hub {
    /// The folder of a model with its configuration, tokenizer and weights, downloaded where it is not in the
    /// cache yet. `progress` is told of every file: its name and its size.
    ///
    /// # Errors
    ///
    /// When the hub does not know the model, cannot be reached, or stops answering.
    pub fn model(
        &self,
        id: &str,
        revision: &str,
        progress: impl FnMut(&str, u64),
    ) -> Result<PathBuf, TrainError> {
        let repo = Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned());
        if let Some(folder) = self.cached(&repo) {
            return Ok(folder);
        }
        if self.offline {
            return Err(TrainError::Config(format!(
                "`{id}` is not complete in the cache `{}` and HF_HUB_OFFLINE forbids asking for it",
                self.cache.display()
            )));
        }
        let mut builder =
            ApiBuilder::from_cache(Cache::new(self.cache.clone())).with_progress(false).with_retries(RETRIES);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        if self.token.is_some() {
            builder = builder.with_token(self.token.clone());
        }
        let failed = |fault: Fault| self.failure(id, &fault);
        let api: Api = builder.build().map_err(|error| failed(error.into()))?;
        download(&api.repo(repo), progress).map_err(failed)
    }

    /// The folder of a model that is in the cache with all it needs.
    fn cached(&self, repo: &Repo) -> Option<PathBuf> {
        let config = Cache::new(self.cache.clone()).repo(repo.clone()).get("config.json")?;
        let folder = config.parent()?;
        let weights = if folder.join(INDEX).exists() {
            shards(&folder.join(INDEX)).ok()?
        } else {
            BTreeSet::from([SINGLE.to_owned()])
        };
        let tokens = folder.join("tokenizer.json").exists() || reads_bytes(folder);
        (tokens && weights.iter().all(|name| folder.join(name).exists())).then(|| folder.to_owned())
    }

    fn failure(&self, id: &str, fault: &Fault) -> TrainError {
        let server = self.endpoint.as_deref().unwrap_or("the Hugging Face hub");
        TrainError::Config(match fault {
            Fault::Lacks(what) => format!(
                "`{id}` on {server} has no {what}; take a model that has, or save this one with transformers' \
                 `save_pretrained` and give its folder"
            ),
            Fault::Api(error) if matches!(status(error), Some(401 | 403 | 404)) => format!(
                "{server} shows no model `{id}`: check the name, or state HF_TOKEN where it is not public ({error})"
            ),
            Fault::Api(error) => {
                format!(
                    "`{id}` could not be had from {server}: {error}; what came so far is kept, so try again"
                )
            }
        })
    }
}

/// Why a model could not be downloaded.
enum Fault {
    /// The server did not give something.
    Api(ApiError),
    /// It is there, without this.
    Lacks(&'static str),
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Fault {
        Fault::Api(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Api(error.into())
    }
}

/// The status of an answer that was not what had been asked for.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        // Only the words of the library below tell it.
        ApiError::RequestError(error) => error.to_string().strip_prefix("http status: ")?.parse().ok(),
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

/// Downloads what a model needs and returns its folder.
fn download(repo: &ApiRepo, mut progress: impl FnMut(&str, u64)) -> Result<PathBuf, Fault> {
    let there: BTreeSet<String> = repo.info()?.siblings.into_iter().map(|file| file.rfilename).collect();
    if !there.contains("config.json") {
        return Err(Fault::Lacks("config.json"));
    }
    if !there.contains(INDEX) && !there.contains(SINGLE) {
        return Err(Fault::Lacks("weights as safetensors, the form that is read"));
    }
    let mut told = BTreeSet::new();
    // The library tells of a file again for every request it makes.
    let mut progress = |name: &str, bytes: u64| {
        if told.insert(name.to_owned()) {
            progress(name, bytes);
        }
    };
    let mut get = |name: &str| repo.download_with_progress(name, Told(&mut progress));
    let config = get("config.json")?;
    for name in BESIDE.into_iter().filter(|name| there.contains(*name)) {
        get(name)?;
    }
    let weights =
        if there.contains(INDEX) { shards(&get(INDEX)?)? } else { BTreeSet::from([SINGLE.to_owned()]) };
    for name in &weights {
        get(name)?;
    }
    Ok(config.parent().map(Path::to_owned).unwrap_or_default())
}

/// The files an index names. A name that leads to another folder is none of ours.
fn shards(index: &Path) -> io::Result<BTreeSet<String>> {
    let index: Index = serde_json::from_slice(&read_bytes(index)?)?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| name.contains(['/', '\\'])) {
        Some(name) => Err(io::Error::other(format!("the index names `{name}`, which is another folder"))),
        None => Ok(names),
    }
}

/// Tells of a file when its download begins.
struct Told<'a, F>(&'a mut F);

impl<F: FnMut(&str, u64)> Progress for Told<'_, F> {
    fn init(&mut self, size: usize, filename: &str) {
        (self.0)(filename, size as u64);
    }

    fn update(&mut self, _: usize) {}

    fn finish(&mut self) {}
}
