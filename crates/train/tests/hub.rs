//! The hub, spoken to over loopback: what comes, what is asked again, what is never asked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use plimsoll_train::hub::{Hub, id_of, is_id};

/// A server of one model that remembers what it was asked, and breaks off the first answers of one file.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(files: BTreeMap<&'static str, Vec<u8>>, broken: &'static str, mut breaks: usize) -> Server {
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

    fn asked(&self) -> Vec<String> {
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

fn files() -> BTreeMap<&'static str, Vec<u8>> {
    let weights: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    BTreeMap::from([
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"version\":\"1.0\"}".to_vec()),
        ("model.safetensors", weights),
        ("pytorch_model.bin", vec![0; 10]),
    ])
}

fn hub(cache: &Path, server: &Server) -> Hub {
    Hub {
        cache: cache.join("hub"),
        endpoint: Some(server.address.clone()),
        token: Some("secret".into()),
        offline: false,
    }
}

#[test]
fn an_interrupted_download_goes_on_where_it_stopped_and_the_cache_asks_nobody() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(files(), "model.safetensors", 2);
    let hub = hub(home.path(), &server);
    let mut told = Vec::new();
    let folder = hub.model("owner/model", "main", |name, size| told.push((name.to_owned(), size))).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), files()["model.safetensors"]);
    assert_eq!(fs::read(folder.join("tokenizer.json")).unwrap(), files()["tokenizer.json"]);
    assert!(!folder.join("pytorch_model.bin").exists(), "only what a model needs is downloaded");
    assert!(told.contains(&("model.safetensors".to_owned(), 400_000)));
    let asked = server.asked();
    let resumed =
        asked.iter().filter(|line| line.contains("safetensors bytes=") && !line.contains("bytes=0-"));
    assert_eq!(resumed.count(), 2, "{asked:#?}");
    assert!(asked.iter().all(|line| line.ends_with("Bearer secret")), "{asked:#?}");

    let again = hub.model("owner/model", "main", |_, _| panic!("nothing is to be downloaded")).unwrap();
    assert_eq!(again, folder);
    let offline = Hub { offline: true, ..hub.clone() };
    assert_eq!(offline.model("owner/model", "main", |_, _| {}).unwrap(), folder);
    assert_eq!(server.asked(), Vec::<String>::new());

    // A model without its tokenizer is no whole one.
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let why = offline.model("owner/model", "main", |_, _| {}).unwrap_err().to_string();
    assert!(why.contains("is not complete in the cache"), "{why}");
    hub.model("owner/model", "main", |_, _| {}).unwrap();
    assert_eq!(fs::read(folder.join("tokenizer.json")).unwrap(), files()["tokenizer.json"]);
    assert_eq!(id_of(&folder).as_deref(), Some("owner/model"));
}

#[test]
fn what_cannot_be_had_is_said_with_the_way_out() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(files(), "", 0);
    let hub = hub(home.path(), &server);
    let why = |hub: &Hub, id: &str| hub.model(id, "main", |_, _| {}).unwrap_err().to_string();
    assert!(
        why(&hub, "owner/other").contains("shows no model `owner/other`: check the name, or state HF_TOKEN")
    );
    let offline = Hub { offline: true, ..hub.clone() };
    assert!(why(&offline, "owner/model").contains("HF_HUB_OFFLINE forbids asking"));
    let nobody = Hub { endpoint: Some("http://127.0.0.1:9".into()), ..hub };
    assert!(why(&nobody, "owner/model").contains("could not be had from http://127.0.0.1:9"));
}

#[test]
fn a_model_without_safetensors_is_told_from_one_that_is_not_there() {
    let home = tempfile::tempdir().unwrap();
    for (lacking, said) in [
        ("model.safetensors", " has no weights as safetensors, the form that is read; take"),
        ("config.json", " has no config.json; take"),
    ] {
        let mut files = files();
        files.remove(lacking);
        let server = Server::start(files, "", 0);
        let why = hub(home.path(), &server).model("owner/model", "main", |_, _| {}).unwrap_err().to_string();
        assert!(why.contains(said) && !why.contains("check the name"), "{why}");
        assert_eq!(server.asked().len(), 1, "nothing is downloaded of a model that cannot be used");
    }
    // The digits of a status elsewhere in a sentence are no status.
    let nobody = Server::start(files(), "", 0);
    let unreachable = Hub { endpoint: Some("http://127.0.0.1:404".into()), ..hub(home.path(), &nobody) };
    let why = unreachable.model("owner/model404", "main", |_, _| {}).unwrap_err().to_string();
    assert!(why.contains("`owner/model404` could not be had from http://127.0.0.1:404"), "{why}");
}

#[test]
fn an_index_cannot_name_files_of_other_folders() {
    let home = tempfile::tempdir().unwrap();
    let mut files = files();
    files.remove("model.safetensors");
    files
        .insert("model.safetensors.index.json", br#"{"weight_map":{"w":"../../evil.safetensors"}}"#.to_vec());
    let server = Server::start(files, "", 0);
    let why = hub(home.path(), &server).model("owner/model", "main", |_, _| {}).unwrap_err().to_string();
    assert!(why.contains("names `../../evil.safetensors`, which is another folder"), "{why}");
}

#[test]
fn ids_have_an_owner_and_a_name() {
    assert!(is_id("Qwen/Qwen3-0.6B") && is_id("HuggingFaceTB/SmolLM2-135M"));
    assert!(!is_id("tiny") && !is_id("./model") && !is_id("a/b/c") && !is_id("../b") && !is_id("a/.."));
    let id = |path: &str| id_of(Path::new(path));
    assert_eq!(id("hub/models--Qwen--Qwen3-0.6B/snapshots/c0ffee").as_deref(), Some("Qwen/Qwen3-0.6B"));
    assert_eq!(
        (id("hub/models--Qwen--Qwen3-0.6B"), id("runs/snapshots/c0ffee"), id("model")),
        (None, None, None)
    );
}
