//! A hub on loopback with one model, `owner/model`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server of one model that remembers what it was asked, and breaks off the first answers of one file.
pub(crate) struct Server {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(
        files: BTreeMap<&'static str, Vec<u8>>,
        broken: &'static str,
        mut breaks: usize,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (path, range, token) = request(&stream);
                log.lock().unwrap().push(format!("{path} {range} {token}"));
                let name = path.rsplit('/').next().unwrap().to_owned();
                if path.starts_with("/api/models/owner/model/") {
                    let siblings: Vec<_> =
                        files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
                    let body = serde_json::json!({"siblings": siblings, "sha": "c0ffee"}).to_string();
                    answer(
                        &mut stream,
                        "200 OK",
                        "Content-Type: application/json\r\n",
                        body.as_bytes(),
                        None,
                    );
                } else if let Some(body) = files.get(name.as_str()).filter(|_| path.contains("/owner/model/"))
                {
                    let (first, last) = bounds(&range, body.len());
                    let headers = format!(
                        "ETag: \"tag-{name}\"\r\nX-Repo-Commit: c0ffee\r\nContent-Range: bytes {first}-{last}/{}\r\n",
                        body.len()
                    );
                    let breaks_now = name == broken && last > first && breaks > 0;
                    breaks -= usize::from(breaks_now);
                    let cut = breaks_now.then_some((last - first) / 2);
                    answer(&mut stream, "206 Partial Content", &headers, &body[first..=last], cut);
                } else {
                    answer(&mut stream, "404 Not Found", "", b"", None);
                }
            }
        });
        Server { address, asked }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// Path, range and token of a request.
fn request(stream: &TcpStream) -> (String, String, String) {
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let (mut range, mut token) = (String::new(), String::new());
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        match name.to_lowercase().as_str() {
            "range" => value.clone_into(&mut range),
            "authorization" => value.clone_into(&mut token),
            _ => {}
        }
    }
    (path, range, token)
}

fn bounds(range: &str, length: usize) -> (usize, usize) {
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap_or(length - 1))
}

fn answer(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8], cut: Option<usize>) {
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n")
        .unwrap();
    // Who has broken off once may find nobody listening.
    let _ = stream.write_all(&body[..cut.unwrap_or(length)]);
}
