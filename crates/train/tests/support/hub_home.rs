//! A user's folder with a cache in it, and servers that differ from a good hub in one thing.
#![allow(dead_code, reason = "each test uses the part it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_train::hub::{Hub, HubLimits};
use sha2::{Digest, Sha256};

#[path = "folder.rs"]
mod folder;
pub(crate) use folder::names;

use crate::server::{Reply, Request, Server, file, listing};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// `printf '{}' | git hash-object --stdin`
pub(crate) const CONFIG_TAG: &str = "\"9e26dfeeb6e641a33dae4961196235bdb965b21b\"";

pub(crate) fn files() -> BTreeMap<&'static str, Vec<u8>> {
    let weights: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let tokenizer = b"{\"version\":\"1.0\"}".to_vec();
    BTreeMap::from([
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", tokenizer),
        ("model.safetensors", weights),
    ])
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// Answers as the hub does, with hashes as tags.
pub(crate) fn good(request: &Request) -> Reply {
    let files = files();
    if request.path.starts_with("/api/models/owner/model/") {
        return listing(files.keys().copied(), COMMIT);
    }
    match files.get(request.name()) {
        Some(body) if request.name() == "config.json" => file(body, CONFIG_TAG, COMMIT, request),
        Some(body) => file(body, &format!("\"{}\"", sha256(body)), COMMIT, request),
        None => Reply::new("404 Not Found", &[], b""),
    }
}

pub(crate) fn is_weights(request: &Request) -> bool {
    request.name() == "model.safetensors"
}

pub(crate) fn gets_weights(request: &Request) -> bool {
    request.method == "GET" && is_weights(request)
}

/// A good server whose replies `change` alters.
pub(crate) fn changed(mut change: impl FnMut(&Request, Reply) -> Reply + Send + 'static) -> Server {
    Server::with(move |request| change(request, good(request)))
}

pub(crate) fn set(mut reply: Reply, name: &str, value: &str) -> Reply {
    reply.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    reply.headers.push((name.to_owned(), value.to_owned()));
    reply
}

pub(crate) fn redirect(to: &str) -> Reply {
    Reply::new("302 Found", &[("Location", to)], b"")
}

/// A user's folder with a cache and a file that is none of a server's business.
pub(crate) struct Home {
    pub(crate) folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let home = Home { folder: tempfile::tempdir().unwrap() };
        fs::write(home.victim(), "precious").unwrap();
        home
    }

    pub(crate) fn victim(&self) -> PathBuf {
        self.folder.path().join("bashrc")
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.folder.path().join("hf/hub/models--owner--model")
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.model().join("snapshots").join(COMMIT)
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.model().join("blobs")
    }

    pub(crate) fn hub(&self, server: &Server) -> Hub {
        let limits = HubLimits {
            pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(5),
            listing_bytes: 1 << 20,
            ..HubLimits::default()
        };
        Hub {
            cache: self.folder.path().join("hf/hub"),
            endpoint: Some(server.address.clone()),
            token: Some("secret".into()),
            offline: false,
            limits,
        }
    }

    /// A client that gives up soon, for silent servers; all other tests have longer limits.
    pub(crate) fn impatient(&self, server: &Server) -> Hub {
        let mut hub = self.hub(server);
        hub.limits.stall = Duration::from_millis(200);
        hub
    }

    pub(crate) fn get(&self, server: &Server) -> Result<PathBuf, String> {
        got(&self.hub(server))
    }

    pub(crate) fn refused(&self, server: &Server, words: &str) {
        self.fails(&self.hub(server), words);
    }

    pub(crate) fn fails(&self, hub: &Hub, words: &str) {
        let why = got(hub).unwrap_err();
        assert!(why.contains(words), "{why}");
        assert_eq!(why.lines().count(), 1, "{why}");
        self.untouched();
    }

    pub(crate) fn untouched(&self) {
        assert_eq!(fs::read_to_string(self.victim()).unwrap(), "precious");
    }

    pub(crate) fn whole(&self, folder: &Path) {
        for (name, content) in files() {
            assert!(fs::read(folder.join(name)).unwrap() == content, "{name}");
        }
        assert_eq!(self.partials(), Vec::<String>::new());
        self.untouched();
    }

    /// Names of files in `blobs` that are no blobs.
    pub(crate) fn partials(&self) -> Vec<String> {
        names(&self.blobs()).into_iter().filter(|name| name.contains('.')).collect()
    }
}

pub(crate) fn got(hub: &Hub) -> Result<PathBuf, String> {
    hub.model("owner/model", "main", |_, _| {}).map_err(|error| error.to_string())
}
