//! Models by their hub id: the server that the program asks, the token it sends, and the cache it fills.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use crate::server::Server;
use crate::support::{Home, texts};

#[test]
fn a_model_is_downloaded_from_the_stated_server_into_the_stated_home_and_then_taken_from_there() {
    let home = Home::with_model();
    let names = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    let files = names.map(|name| (name, home.read(&format!("model/{name}"))));
    let server = Server::start(BTreeMap::from(files), "model.safetensors", 1);
    let generate = |home_variable: &str, offline: &str| {
        let rest = "--prompt ship --temperature 0 --max-new-tokens 4 --memory 64MiB --threads 1";
        let mut command = home.command(&format!("generate --model owner/model {rest}"));
        command.env("HF_ENDPOINT", &server.address).env("HF_TOKEN", "secret").env("HF_HUB_OFFLINE", offline);
        command.env_remove("HF_HUB_CACHE").env("HF_HOME", home.path(home_variable));
        let output = command.output().unwrap();
        let (out, err) = texts(&output);
        (output.status.success(), out, err)
    };
    let (done, text, said) = generate("hf", "0");
    assert!(done, "{said}");
    for name in names {
        let lines = said.lines().filter(|line| line.starts_with(&format!("downloading {name}, ")));
        assert_eq!(lines.count(), 1, "{said}");
    }
    let asked = server.asked();
    assert!(
        asked.len() > names.len() && asked.iter().all(|line| line.ends_with("Bearer secret")),
        "{asked:#?}"
    );
    let kept = home.path("hf/hub/models--owner--model/snapshots/c0ffee/model.safetensors");
    assert_eq!(std::fs::read(kept).unwrap(), home.read("model/model.safetensors"));

    assert_eq!(generate("hf", "1"), (true, text, String::new()), "from the cache");
    let (done, _, said) = generate("elsewhere", "1");
    assert!(!done && said.contains("is not complete in the cache"), "{said}");
    assert_eq!(server.asked(), Vec::<String>::new());
}

#[test]
fn a_hub_id_of_an_adapter_is_answered_with_the_way_to_use_it() {
    let home = Home::new();
    let files = [("adapter_config.json", b"{}".to_vec()), ("adapter_model.safetensors", b"x".to_vec())];
    let server = Server::start(BTreeMap::from(files), "", 0);
    let mut command = home.command("generate --model owner/model --prompt a --memory 64MiB");
    command.env("HF_ENDPOINT", &server.address).env("HF_HUB_OFFLINE", "0").env_remove("HF_HUB_CACHE");
    let (_, said) = texts(&command.env("HF_HOME", home.path("hf")).output().unwrap());
    let words = "is an adapter, and adapters are not downloaded here; run `hf download owner/model --local-dir FOLDER` \
                 and give that folder as --model";
    assert!(said.contains(words), "{said}");
}
