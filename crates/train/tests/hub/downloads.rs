//! The hub, spoken to over loopback: what comes, what is asked again, what is never asked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use plimsoll_train::hub::{Hub, HubLimits, id_of, is_id};

use crate::server::Server;

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
        limits: HubLimits { pause: Duration::from_millis(1), ..HubLimits::default() },
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
    let expected = [("config.json", 2), ("tokenizer.json", 17), ("model.safetensors", 400_000)];
    assert_eq!(
        told,
        expected.map(|(name, size)| (name.to_owned(), size)),
        "each once, also when it breaks off"
    );
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
fn chat_templates_of_other_names_are_downloaded_into_their_folder() {
    let home = tempfile::tempdir().unwrap();
    let mut files = files();
    let names = ["tool_use.jinja", "rag.jinja", "../../../evil.jinja", "notes.txt"];
    let paths = names.map(|name| format!("additional_chat_templates/{name}").leak() as &str);
    files.extend(paths.map(|path| (path, path.as_bytes().to_vec())));
    let server = Server::start(files, "", 0);
    let hub = hub(home.path(), &server);
    let folder = hub.model("owner/model", "main", |_, _| {}).unwrap();
    for path in &paths[..2] {
        let link = fs::read_link(folder.join(path)).unwrap();
        assert!(link.starts_with("../../../blobs"), "{}", link.display());
        assert_eq!(fs::read(folder.join(path)).unwrap(), path.as_bytes());
    }
    let inner = fs::read_dir(folder.join("additional_chat_templates")).unwrap();
    assert_eq!(inner.count(), 2);
    assert!(!home.path().join("evil.jinja").exists() && !home.path().join("hub/evil.jinja").exists());
    hub.model("owner/model", "main", |_, _| panic!("all of it is here")).unwrap();
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
