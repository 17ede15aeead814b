//! Models from the Hugging Face hub, through the cache that Python's library shares.
//!
//! A model that is already in the cache is taken from there without any request. Every other file is downloaded under a
//! temporary name, checked, and renamed; an interrupted download continues where it stopped. The server is not trusted:
//! its answers are bounded in size, time and number ([`HubLimits`]), every name from it is checked before it becomes
//! part of a path, and the token goes to the stated server alone.
//!
//! Reading order: `names` and `blobs` (checks), `cache` (the layout), `store` (writing into it), `addresses` and `requests` (HTTP),
//! `partial` and `download`. Absent: environment variables. The caller says where the cache is, which token to show and
//! which server to ask. Without the feature `hub` the cache is read and nothing is downloaded.

#[cfg(feature = "hub")]
mod addresses;
#[cfg(feature = "hub")]
mod blobs;
mod cache;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod fault;
mod limits;
#[cfg(feature = "hub")]
mod locks;
mod names;
#[cfg(feature = "hub")]
mod partial;
#[cfg(feature = "hub")]
mod requests;
#[cfg(feature = "hub")]
mod store;

use std::path::PathBuf;

use crate::error::TrainError;
use cache::CachedModel;
pub use limits::HubLimits;
pub use names::{id_of, is_id};

/// A hub and the cache of its files.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The folder `hub` of the cache.
    pub cache: PathBuf,
    /// Address of the server; the public one when not stated.
    pub endpoint: Option<String>,
    /// The token to show the server; the one in the cache's home when not stated.
    pub token: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// Limits on the server's time, bytes and redirects.
    pub limits: HubLimits,
}

impl Hub {
    /// The folder of a model with its configuration, tokenizer and weights, downloaded if it is not in the cache yet.
    /// `progress` is called for every file whose download begins, with its name and its size.
    ///
    /// # Errors
    ///
    /// When the hub does not know the model, cannot be reached, stops answering or answers nonsense, and when the
    /// cache cannot be written.
    pub fn model(
        &self,
        id: &str,
        revision: &str,
        progress: impl FnMut(&str, u64),
    ) -> Result<PathBuf, TrainError> {
        if !is_id(id) || !names::is_revision(revision) {
            let shown = format!("`{}` at `{}`", id.escape_debug(), revision.escape_debug());
            return Err(TrainError::Config(format!("{shown} is no model of a hub; give it as owner/name")));
        }
        let model = CachedModel::new(&self.cache, id);
        if let Some(folder) = model.complete(revision) {
            return Ok(folder);
        }
        if self.offline {
            return Err(self.incomplete(id, "and HF_HUB_OFFLINE forbids asking for it"));
        }
        self.download(&model, id, revision, progress)
    }

    #[cfg(feature = "hub")]
    fn download(
        &self,
        model: &CachedModel,
        id: &str,
        revision: &str,
        mut progress: impl FnMut(&str, u64),
    ) -> Result<PathBuf, TrainError> {
        let server = self.endpoint.as_deref().unwrap_or("the Hugging Face hub");
        let downloaded = download::model(self, model, (id, revision), &mut progress);
        downloaded.map_err(|fault| fault.explain(id, server))
    }

    #[cfg(not(feature = "hub"))]
    fn download(
        &self,
        _: &CachedModel,
        id: &str,
        _: &str,
        _: impl FnMut(&str, u64),
    ) -> Result<PathBuf, TrainError> {
        let way = format!(
            "and this build cannot download: build plimsoll with the feature `hub`, or run `hf download {id}`"
        );
        Err(self.incomplete(id, &way))
    }

    fn incomplete(&self, id: &str, why: &str) -> TrainError {
        TrainError::Config(format!("`{id}` is not complete in the cache `{}` {why}", self.cache.display()))
    }
}
