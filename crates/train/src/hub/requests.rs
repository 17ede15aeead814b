//! Requests to the hub. Redirects are followed here, one by one: the token stays with the server it is meant for,
//! circles end, and no answer takes longer or is larger than [`HubLimits`] allow.
//!
//! Absent: compressed bodies, which could expand without limit; none is requested and none is accepted.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use ureq::http::{HeaderMap, Uri};
use ureq::tls::{TlsConfig, TlsProvider};
use ureq::{Agent, Body, Error, Timeout};

use super::addresses::{Origin, encoded, redirected};
use super::blobs::Blob;
use super::fault::{Fault, shown};
use super::limits::HubLimits;
use super::names::is_commit;

const PUBLIC: &str = "https://huggingface.co";

/// Sends requests to the hub; a request may be redirected to other servers.
pub(super) struct Client<'a> {
    agent: Agent,
    /// The address that all others begin with.
    endpoint: String,
    home: Origin,
    token: Option<String>,
    limits: &'a HubLimits,
    /// Whether any server ever answered.
    answered: Cell<bool>,
}

/// A request.
#[derive(Clone, Copy)]
pub(super) enum Question<'a> {
    /// A document, read at once.
    Document,
    /// The headers of a file, without following a redirect to the server that only stores it.
    Describe,
    /// The first byte of a file, for the length of the whole.
    FirstByte,
    /// A file from a byte on; the whole file where its tag is another by now.
    From { start: u64, unchanged: Option<&'a str> },
}

/// An answer with the status that was hoped for, or a redirect where [`Question::Describe`] stops at it.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// Whether the answer came from the hub itself, without a redirect.
    pub(super) from_home: bool,
}

/// The files of a model at one commit.
#[derive(Deserialize)]
pub(super) struct Listing {
    pub(super) sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A file as its headers describe it.
pub(super) struct Described {
    pub(super) blob: Blob,
    pub(super) bytes: u64,
    /// The tag to send when the download continues, if the hub sends the file itself and the tag is a strong one.
    pub(super) tag: Option<String>,
}

impl Listing {
    /// The names of all files.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.siblings.iter().map(|file| file.rfilename.as_str()).collect()
    }
}

impl<'a> Client<'a> {
    /// A client of the server at `endpoint`.
    pub(super) fn new(
        endpoint: Option<&str>,
        token: Option<String>,
        limits: &'a HubLimits,
    ) -> Result<Client<'a>, Fault> {
        let endpoint = endpoint.unwrap_or(PUBLIC).trim_end_matches('/').to_owned();
        let home = endpoint.parse().ok().filter(|uri: &Uri| uri.query().is_none());
        let home = home.and_then(|uri| Origin::of(&uri)).ok_or_else(|| {
            Fault::Setting(format!(
                "HF_ENDPOINT `{}` is no address of a server; state one as https://host",
                shown(&endpoint)
            ))
        })?;
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            let why = "the token for the hub holds spaces or other odd characters; state it as HF_TOKEN";
            return Err(Fault::Setting(why.into()));
        }
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().provider(TlsProvider::Rustls).build())
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_per_read(Some(limits.stall))
            .timeout_per_write(Some(limits.stall))
            .timeout_recv_response(Some(limits.metadata));
        let agent = config.build().into();
        Ok(Client { agent, endpoint, home, token, limits, answered: Cell::new(false) })
    }

    /// The files of a model.
    pub(super) fn listing(&self, id: &str, revision: &str) -> Result<Listing, Fault> {
        let url = format!("{}/api/models/{id}/revision/{}", self.endpoint, encoded(revision));
        let listing = self.patiently(|| self.document(&url)).map_err(|fault| match fault {
            Fault::Status(status @ (401 | 403 | 404), _) => Fault::NoModel(status),
            other => other,
        })?;
        let unreadable = |why: &str| Fault::Refused(format!("its list of files cannot be read ({why})"));
        let listing: Listing =
            serde_json::from_slice(&listing).map_err(|fault| unreadable(&fault.to_string()))?;
        if !is_commit(&listing.sha) {
            return Err(unreadable(&format!("`{}` is no commit", shown(&listing.sha))));
        }
        Ok(listing)
    }

    /// The address of a file.
    pub(super) fn file(&self, id: &str, commit: &str, name: &str) -> String {
        let name: Vec<String> = name.split('/').map(encoded).collect();
        format!("{}/{id}/resolve/{commit}/{}", self.endpoint, name.join("/"))
    }

    /// The headers of the file at `url`, checked.
    pub(super) fn describe(&self, url: &str, commit: &str) -> Result<Described, Fault> {
        let answer = self.patiently(|| self.ask(Question::Describe, url))?;
        let header = |name: &str| text(&answer.headers, name);
        if let Some(other) = header("x-repo-commit").filter(|found| found != commit) {
            let other = shown(&other);
            return Err(Fault::Refused(format!(
                "it sends files of commit `{other}` where `{commit}` was asked for"
            )));
        }
        let linked = header("x-linked-etag");
        let Some(tag) = linked.clone().or_else(|| header("etag")) else {
            return Err(Fault::Refused("it gives no tag for a file, so that it cannot be kept".into()));
        };
        let direct = (200..300).contains(&answer.status);
        let length = header("x-linked-size").or_else(|| header("content-length").filter(|_| direct));
        let bytes = match length.and_then(|length| length.parse().ok()) {
            Some(bytes) => bytes,
            None => self.patiently(|| self.length(url))?,
        };
        let strong = direct && linked.is_none() && tag.starts_with('"');
        Ok(Described { blob: Blob::of_tag(&tag), bytes, tag: strong.then_some(tag) })
    }

    /// The length of a file, learned by asking for its first byte.
    fn length(&self, url: &str) -> Result<u64, Fault> {
        let answer = self.ask(Question::FirstByte, url)?;
        let length = match answer.status {
            206 => content_range(&answer.headers).map(|(_, whole)| whole),
            _ => text(&answer.headers, "content-length").and_then(|length| length.parse().ok()),
        };
        length.ok_or_else(|| Fault::Refused("it does not say how long a file is".into()))
    }

    /// A document, whole.
    fn document(&self, url: &str) -> Result<Vec<u8>, Fault> {
        let answer = self.ask(Question::Document, url)?;
        let (most, mut bytes) = (self.limits.listing_bytes, Vec::new());
        let read = answer.body.into_reader().take(most + 1).read_to_end(&mut bytes);
        read.map_err(|fault| self.broken(fault))?;
        if bytes.len() as u64 > most {
            return Err(Fault::Refused(format!("its list of files is longer than {most} bytes")));
        }
        Ok(bytes)
    }

    /// Asks, and follows where the answer leads.
    pub(super) fn ask(&self, question: Question, url: &str) -> Result<Answer, Fault> {
        let mut at: Uri =
            url.parse().map_err(|_| Fault::Refused(format!("`{}` is no address", shown(url))))?;
        let (mut from_home, mut seen) = (true, BTreeSet::from([at.to_string()]));
        let since = Instant::now();
        loop {
            let answer = self.exchange(question, &at, from_home, since)?;
            let Some(location) = location(&answer)? else { return accepted(answer) };
            let next = redirected(&at, &location)?;
            let stays = Origin::of(&next).as_ref() == Some(&self.home);
            let described = !stays || answer.headers.contains_key("x-linked-etag");
            if matches!(question, Question::Describe) && described {
                return Ok(answer);
            }
            if seen.len() > self.limits.redirects as usize || !seen.insert(next.to_string()) {
                let (count, next) = (seen.len(), shown(&next.to_string()));
                return Err(Fault::Refused(format!(
                    "it redirects without end ({count} times, to `{next}` at last)"
                )));
            }
            // A server that was redirected to does not get the token by sending us back either.
            from_home &= stays;
            at = next;
        }
    }

    /// One request and its answer, of any status.
    fn exchange(
        &self,
        question: Question,
        at: &Uri,
        from_home: bool,
        since: Instant,
    ) -> Result<Answer, Fault> {
        let describes = matches!(question, Question::Describe);
        let mut request = if describes { self.agent.head(at.clone()) } else { self.agent.get(at.clone()) };
        if let (Some(token), true) = (&self.token, from_home) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        match question {
            Question::FirstByte => request = request.header("Range", "bytes=0-0"),
            Question::From { start, unchanged } if start > 0 => {
                request = request.header("Range", format!("bytes={start}-"));
                if let (Some(tag), true) = (unchanged, from_home) {
                    request = request.header("If-Range", tag);
                }
            }
            _ => {}
        }
        if !matches!(question, Question::From { .. }) {
            let left = self.limits.metadata.saturating_sub(since.elapsed());
            request = request.config().timeout_per_call(Some(left)).build();
        }
        let response = request.call().map_err(|error| self.fault(error))?;
        self.answered.set(true);
        let (parts, body) = response.into_parts();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body, from_home })
    }

    /// Tries again, with growing pauses, as long as the fault may be temporary.
    pub(super) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        let mut pause = self.limits.pause;
        for _ in 0..self.limits.retries {
            match attempt() {
                Err(fault) if fault.passes(self.answered.get()) => {
                    let wished = fault.wished_pause().unwrap_or_default();
                    thread::sleep(pause.max(wished).min(self.limits.longest_pause));
                    pause = pause.saturating_mul(2);
                }
                done => return done,
            }
        }
        attempt()
    }

    /// The fault of a body that could not be read to its end.
    pub(super) fn broken(&self, fault: io::Error) -> Fault {
        match self.fault(fault.into()) {
            Fault::Refused(why) | Fault::Unreachable(why) => Fault::Broken(why),
            other => other,
        }
    }

    fn fault(&self, error: Error) -> Fault {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        match error {
            Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                Fault::Unreachable(format!("no connection within {:?}", self.limits.connect))
            }
            Error::Timeout(Timeout::PerRead | Timeout::PerWrite) => {
                Fault::Broken(format!("no byte came for {:?}", self.limits.stall))
            }
            Error::Timeout(_) => Fault::Broken(format!("no whole answer within {:?}", self.limits.metadata)),
            Error::HostNotFound => Fault::Unreachable("there is no such host".into()),
            Error::ConnectionFailed => Fault::Unreachable("no connection".into()),
            Error::Io(fault)
                if matches!(fault.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable) =>
            {
                Fault::Unreachable(fault.to_string())
            }
            Error::Io(fault) => Fault::Broken(fault.to_string()),
            other => Fault::Refused(shown(&other.to_string())),
        }
    }
}

/// Where an answer redirects to.
fn location(answer: &Answer) -> Result<Option<String>, Fault> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    match text(&answer.headers, "location") {
        Some(location) => Ok(Some(location)),
        None => Err(Fault::Refused("it redirects to nowhere".into())),
    }
}

/// The answer, if it belongs to the request.
fn accepted(answer: Answer) -> Result<Answer, Fault> {
    if !(200..300).contains(&answer.status) {
        let pause = text(&answer.headers, "retry-after").and_then(|seconds| seconds.parse().ok());
        return Err(Fault::Status(answer.status, pause.map(Duration::from_secs)));
    }
    match text(&answer.headers, "content-encoding") {
        Some(encoding) if encoding != "identity" => {
            Err(Fault::Refused(format!("it compresses its answer (`{}`), unasked", shown(&encoding))))
        }
        _ => Ok(answer),
    }
}

/// The first byte and the whole length in `Content-Range: bytes 3-9/10`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let range = text(headers, "content-range")?;
    let (part, whole) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((part.split_once('-')?.0.parse().ok()?, whole.parse().ok()?))
}

/// A header as text, if it is valid text.
fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}
