//! Downloading a model: its list of files, then each file that training needs, checked against size and hash.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use plimsoll_exec::cpu::free_disk_bytes;

use super::Hub;
use super::blobs::Content;
use super::cache::{CachedModel, INDEX, SINGLE, shards};
use super::fault::Fault;
use super::limits::HubLimits;
use super::partial::Partial;
use super::requests::{Answer, Client, Described, Question, content_range};
use super::store::Store;
use crate::files::{FileError, MOST_TEMPLATES, goes_along, is_template};

/// Downloads the files that a model needs and returns their folder.
pub(super) fn model(
    hub: &Hub,
    model: &CachedModel,
    (id, revision): (&str, &str),
    progress: &mut dyn FnMut(&str, u64),
) -> Result<PathBuf, Fault> {
    let token = hub.token.clone().or_else(|| filed_token(&model.root));
    let client = Client::new(hub.endpoint.as_deref(), token, &hub.limits)?;
    let listing = client.listing(id, revision)?;
    let there = listing.names();
    if there.contains("adapter_config.json") && !there.contains(INDEX) && !there.contains(SINGLE) {
        return Err(Fault::Adapter);
    }
    if !there.contains("config.json") {
        return Err(Fault::Lacks("config.json"));
    }
    if !there.contains(INDEX) && !there.contains(SINGLE) {
        return Err(Fault::Lacks("weights as safetensors, the form that is read"));
    }
    let store = Store::open(model, &listing.sha)?;
    store.clear_litter();
    let mut files = Files { hub, client: &client, store: &store, id, commit: &listing.sha, progress };
    let most = hub.limits.text_bytes;
    files.get("config.json", most)?;
    let (templates, others): (Vec<&str>, Vec<&str>) =
        there.iter().copied().filter(|name| goes_along(name)).partition(|name| is_template(name));
    for name in others.into_iter().chain(templates.into_iter().take(MOST_TEMPLATES)) {
        files.get(name, most)?;
    }
    let weights = if there.contains(INDEX) {
        files.get(INDEX, most)?;
        shards(&store.snapshot().join(INDEX)).map_err(|fault| Fault::Refused(fault.to_string()))?
    } else {
        BTreeSet::from([SINGLE.to_owned()])
    };
    for name in &weights {
        files.get(name, u64::MAX)?;
    }
    store.set_ref(revision)?;
    Ok(store.snapshot().to_owned())
}

/// The files of one model at one commit.
struct Files<'a> {
    hub: &'a Hub,
    client: &'a Client<'a>,
    store: &'a Store,
    id: &'a str,
    commit: &'a str,
    progress: &'a mut dyn FnMut(&str, u64),
}

impl Files<'_> {
    /// Makes sure that a file of at most `most` bytes is in the cache.
    fn get(&mut self, name: &str, most: u64) -> Result<(), Fault> {
        let url = self.client.file(self.id, self.commit, name);
        let refused = |fault: Fault| match fault {
            Fault::Status(status @ (401 | 403 | 404), _) => Fault::NoFile(name.to_owned(), status),
            other => other,
        };
        let described = self.client.describe(&url, self.commit).map_err(refused)?;
        if described.bytes > most {
            let bytes = described.bytes;
            return Err(Fault::Refused(format!(
                "`{name}` has {bytes} bytes, and more than {most} are not taken"
            )));
        }
        if !self.store.holds(&described.blob, described.bytes) {
            self.blob(name, &url, &described).map_err(refused)?;
        }
        self.store.link(name, &described.blob)
    }

    /// Downloads the content of a file, unless another process has just done so.
    fn blob(&mut self, name: &str, url: &str, described: &Described) -> Result<(), Fault> {
        let (blob, bytes) = (&described.blob, described.bytes);
        let lock = self.store.lock(blob, self.hub.limits.stall)?;
        if self.store.holds(blob, bytes) {
            return Ok(());
        }
        let mut partial = Partial::open(&self.store.partial(blob, &lock)?, blob, bytes)?;
        if blob.content == Content::Unknown && described.tag.is_none() {
            // Without a tag one cannot tell whether both parts are of one version.
            partial.restart()?;
        }
        self.check_room(name, partial.missing())?;
        (self.progress)(name, bytes);
        let goes_on = partial.length() > 0;
        let mut done = self.client.patiently(|| self.go_on(url, described, &mut partial));
        if done.is_ok() && goes_on && !partial.is_right() {
            // The bytes of an earlier run were wrong: a power cut can do that.
            partial.restart()?;
            done = self.client.patiently(|| self.go_on(url, described, &mut partial));
        }
        match done {
            Ok(()) => partial.finish(&self.store.path(blob)),
            Err(fault) => {
                if matches!(fault, Fault::Excess(_)) || !lock.holds() {
                    partial.discard();
                }
                Err(fault)
            }
        }
    }

    /// Refuses a file that the disk has no room for, before it is full.
    fn check_room(&self, name: &str, missing: u64) -> Result<(), Fault> {
        match free_disk_bytes(self.store.blobs()) {
            Ok(free) if free < missing => {
                let why = format!(
                    "has {free} bytes free, and `{name}` takes {missing} more; make room, or name another cache with \
                     HF_HUB_CACHE"
                );
                Err(Fault::Cache(FileError::wrong(self.store.blobs(), why)))
            }
            _ => Ok(()),
        }
    }

    /// Requests the rest of a file and writes it as it comes.
    fn go_on(&self, url: &str, described: &Described, partial: &mut Partial) -> Result<(), Fault> {
        if partial.missing() == 0 {
            return Ok(());
        }
        let unchanged = described.tag.as_deref();
        let question = Question::From { start: partial.length(), unchanged };
        let answer = match self.client.ask(question, url) {
            Err(Fault::Status(416, _)) if partial.length() > 0 => {
                partial.restart()?;
                return Err(Fault::Broken("it has no such part of the file".into()));
            }
            other => other?,
        };
        place(&answer, described, partial)?;
        self.copy(answer, described.bytes, partial)
    }

    fn copy(&self, answer: Answer, bytes: u64, partial: &mut Partial) -> Result<(), Fault> {
        if answer.body.content_length().is_some_and(|length| length > partial.missing()) {
            return Err(Fault::Excess(bytes));
        }
        let (mut body, mut piece) = (answer.body.into_reader(), vec![0; 256 << 10]);
        let mut pace = Pace::new(&self.hub.limits);
        loop {
            let count = match body.read(&mut piece) {
                Ok(count) => count,
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => continue,
                Err(fault) => return Err(self.client.broken(fault)),
            };
            if count as u64 > partial.missing() {
                return Err(Fault::Excess(bytes));
            }
            if count > 0 {
                partial.append(&piece[..count])?;
                pace.count(count)?;
            } else if partial.missing() > 0 {
                return Err(Fault::Broken(format!("it broke off with {} bytes to come", partial.missing())));
            } else {
                return Ok(());
            }
        }
    }
}

/// The bytes that came in the present window of time.
struct Pace<'a> {
    limits: &'a HubLimits,
    since: Instant,
    bytes: u64,
}

impl Pace<'_> {
    fn new(limits: &HubLimits) -> Pace<'_> {
        Pace { limits, since: Instant::now(), bytes: 0 }
    }

    /// Counts bytes that came. At the end of a window in which too few came, the connection is given up.
    fn count(&mut self, came: usize) -> Result<(), Fault> {
        let HubLimits { least, window, .. } = *self.limits;
        self.bytes += came as u64;
        if self.since.elapsed() < window {
            return Ok(());
        }
        if self.bytes < least {
            return Err(Fault::Broken(format!("only {} bytes came in {window:?}", self.bytes)));
        }
        *self = Pace::new(self.limits);
        Ok(())
    }
}

/// Brings the partial file to where the answer begins.
fn place(answer: &Answer, described: &Described, partial: &mut Partial) -> Result<(), Fault> {
    if answer.status != 206 {
        return partial.restart();
    }
    let same = described.blob.content != Content::Unknown
        || (answer.from_home && described.tag.is_some())
        || partial.length() == 0;
    if same && content_range(&answer.headers) == Some((partial.length(), described.bytes)) {
        return Ok(());
    }
    partial.restart()?;
    Err(Fault::Broken("it sends another part of the file than the one asked for".into()))
}

/// The token that `hf auth login` left in the cache's home.
fn filed_token(cache: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(cache.parent()?.join("token")).ok()?.take(64 << 10).read_to_string(&mut text).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}
