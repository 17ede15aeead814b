//! A hub on loopback: an honest one with the model `owner/model`, and one whose every answer a test writes itself.
#![allow(dead_code, reason = "each test uses the part it needs")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A server that records its requests.
pub(crate) struct Server {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<Request>>>,
}

/// One request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: String,
    pub(crate) if_range: String,
    pub(crate) token: String,
}

/// One answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body after which the server stops sending; all of it otherwise.
    pub(crate) cut: Option<usize>,
    /// Whether the connection stays open, in silence, when the server has stopped sending.
    pub(crate) stalls: bool,
    /// Whether the body comes a byte at a time, with pauses.
    pub(crate) trickles: bool,
}

impl Reply {
    /// An answer with a length. A further header of that name takes its place.
    pub(crate) fn new(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Reply { status: status.to_owned(), headers, body: body.to_owned(), ..Reply::default() }
    }

    fn send(&self, stream: &mut TcpStream, head: bool) {
        let mut lines = vec![format!("HTTP/1.1 {}", self.status), "Connection: close".to_owned()];
        let lengths = ["content-length", "transfer-encoding"];
        if !self.headers.iter().any(|(name, _)| lengths.contains(&name.to_lowercase().as_str())) {
            lines.push(format!("Content-Length: {}", self.body.len()));
        }
        lines.extend(self.headers.iter().map(|(name, value)| format!("{name}: {value}")));
        // A client that has seen enough may be gone.
        let _ = stream.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes());
        let body = &self.body[..self.cut.unwrap_or(self.body.len())];
        for piece in body.chunks(if self.trickles { 1 } else { body.len().max(1) }).filter(|_| !head) {
            if stream.write_all(piece).is_err() {
                return;
            }
            if self.trickles {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Server {
    /// A server of one model that breaks off the first answers of one file.
    pub(crate) fn start(
        files: BTreeMap<&'static str, Vec<u8>>,
        broken: &'static str,
        mut breaks: usize,
    ) -> Server {
        Server::with(move |request| {
            let reply = honest(&files, request);
            let breaks_now = request.method == "GET" && request.name() == broken && breaks > 0;
            breaks -= usize::from(breaks_now);
            Reply { cut: breaks_now.then_some(reply.body.len() / 2), ..reply }
        })
    }

    /// A server that answers as `reply` says.
    pub(crate) fn with(reply: impl FnMut(&Request) -> Reply + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, reply) = (Arc::clone(&asked), Arc::new(Mutex::new(reply)));
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = Request::read(&stream) else { continue };
                log.lock().unwrap().push(request.clone());
                let reply = (reply.lock().unwrap())(&request);
                reply.send(&mut stream, request.method == "HEAD");
                if reply.stalls {
                    silent.push(stream);
                }
            }
        });
        Server { address, asked }
    }

    /// Path, range and token of each request since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        let requests = self.requests();
        requests.iter().map(|r| format!("{} {} {}", r.path, r.range, r.token)).collect()
    }

    /// All requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Request {
    /// Reads a request to the end of its headers; nothing where the client has gone.
    fn read(stream: &TcpStream) -> Option<Request> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let mut request = Request { method: words.next()?, path: words.next()?, ..Request::default() };
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ")?;
            match name.to_lowercase().as_str() {
                "range" => value.clone_into(&mut request.range),
                "if-range" => value.clone_into(&mut request.if_range),
                "authorization" => value.clone_into(&mut request.token),
                _ => {}
            }
        }
        Some(request)
    }

    /// The file that is asked for, or the last part of another path.
    pub(crate) fn name(&self) -> &str {
        let file = self.path.split_once("/resolve/").and_then(|(_, rest)| rest.split_once('/'));
        file.map_or_else(|| self.path.rsplit('/').next().unwrap_or_default(), |(_, name)| name)
    }

    /// First byte of the range that was asked for.
    pub(crate) fn first(&self) -> Option<usize> {
        self.range.strip_prefix("bytes=")?.split_once('-')?.0.parse().ok()
    }
}

/// The list of a model's files.
pub(crate) fn listing<'a>(names: impl Iterator<Item = &'a str>, commit: &str) -> Reply {
    let siblings: Vec<_> = names.map(|name| serde_json::json!({ "rfilename": name })).collect();
    let body = serde_json::json!({ "siblings": siblings, "sha": commit }).to_string();
    Reply::new("200 OK", &[("Content-Type", "application/json")], body.as_bytes())
}

/// The answers of an honest hub with `files`. Its tags are no hashes, as on servers that are not Hugging Face's own.
pub(crate) fn honest(files: &BTreeMap<&'static str, Vec<u8>>, request: &Request) -> Reply {
    if request.path.starts_with("/api/models/owner/model/") {
        return listing(files.keys().copied(), "c0ffee");
    }
    match files.get(request.name()).filter(|_| request.path.contains("/owner/model/")) {
        Some(body) => {
            let tag = format!("\"tag-{}\"", request.name().replace('/', "-"));
            file(body, &tag, "c0ffee", request)
        }
        None => Reply::new("404 Not Found", &[], b""),
    }
}

/// A file, or the range of it that was asked for.
pub(crate) fn file(body: &[u8], tag: &str, commit: &str, request: &Request) -> Reply {
    let headers = [("ETag", tag), ("X-Repo-Commit", commit)];
    let unchanged = request.if_range.is_empty() || request.if_range == tag;
    let Some(first) = request.first().filter(|first| unchanged && *first < body.len()) else {
        return Reply::new("200 OK", &headers, body);
    };
    let last =
        request.range.split_once('-').and_then(|(_, last)| last.parse().ok()).unwrap_or(body.len() - 1);
    let range = format!("bytes {first}-{last}/{}", body.len());
    let headers = [headers.as_slice(), &[("Content-Range", &range)]].concat();
    Reply::new("206 Partial Content", &headers, &body[first..=last])
}
