//! The cache of the hub. It is laid out as Python's, continues interrupted downloads, is shared between processes,
//! and never writes through a link.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_train::hub::Hub;

use crate::home::{
    COMMIT, CONFIG_TAG, Home, changed, files, gets_weights, good, is_weights, names, set, sha256,
};
use crate::server::{Reply, Request, file};

/// A home where the weights were cut off after `length` bytes.
fn interrupted(length: usize) -> Home {
    let home = Home::new();
    let server = changed(move |request, reply| Reply {
        cut: gets_weights(request).then_some(length - request.first().unwrap_or(0)),
        ..reply
    });
    home.refused(&server, "could not be had");
    home
}

#[test]
fn a_download_goes_on_in_another_process_and_never_mixes_two_versions() {
    let home = interrupted(1000);
    let server = changed(|_, reply| reply);
    home.whole(&home.get(&server).unwrap());
    let asked: Vec<_> = server.requests().into_iter().filter(gets_weights).collect();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].range.as_str(), asked[0].if_range.len()), ("bytes=1000-", 66));

    let ignores = changed(|request, _| good(&Request { range: String::new(), ..request.clone() }));
    let home = interrupted(1000);
    home.whole(&home.get(&ignores).unwrap());

    let mut first = true;
    let elsewhere = changed(move |request, reply| {
        let lies = gets_weights(request) && std::mem::take(&mut first);
        if lies { set(reply, "Content-Range", "bytes 0-399999/400000") } else { reply }
    });
    let home = interrupted(1000);
    home.whole(&home.get(&elsewhere).unwrap());

    // Tags that say nothing of the content: only an unchanged tag lets the download go on.
    let tagged = |tag: &'static str, fill: u8, cut: Option<usize>| {
        changed(move |request, _| {
            let mut reply = good(request);
            if is_weights(request) {
                reply = file(&vec![fill; 5000], tag, COMMIT, request);
                reply.cut = cut.filter(|_| gets_weights(request));
            }
            reply
        })
    };
    let home = Home::new();
    home.refused(&tagged("\"odd\"", 1, Some(100)), "could not be had");
    let same = tagged("\"odd\"", 1, None);
    let folder = home.get(&same).unwrap();
    assert!(
        same.requests().iter().any(|request| request.range == "bytes=600-" && request.if_range == "\"odd\"")
    );
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), vec![1; 5000]);
    let home = Home::new();
    home.refused(&tagged("W/\"odd\"", 1, Some(100)), "could not be had");
    let folder = home.get(&tagged("W/\"odd\"", 2, None)).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), vec![2; 5000]);
}

#[test]
fn links_inside_the_cache_lead_no_write_out_of_it() {
    let server = changed(|_, reply| reply);
    let tag = sha256(&files()["model.safetensors"]);
    // Files: each link is replaced, and what it pointed to stays.
    let home = Home::new();
    for folder in ["blobs", "refs", &format!("snapshots/{COMMIT}")] {
        fs::create_dir_all(home.model().join(folder)).unwrap();
    }
    let links = [
        format!("blobs/{tag}"),
        format!("blobs/{tag}.incomplete"),
        "refs/main".into(),
        format!("snapshots/{COMMIT}/config.json"),
        format!("snapshots/{COMMIT}/model.safetensors"),
    ];
    for link in &links {
        symlink(home.victim(), home.model().join(link)).unwrap();
    }
    home.whole(&home.get(&server).unwrap());
    // A second name of another file is no partial file of ours.
    let home = Home::new();
    fs::create_dir_all(home.blobs()).unwrap();
    fs::hard_link(home.victim(), home.blobs().join(format!("{tag}.incomplete"))).unwrap();
    home.whole(&home.get(&server).unwrap());
    // Folders: the link is refused.
    for folder in ["", "blobs", "snapshots", &format!("snapshots/{COMMIT}"), "refs", "../.locks"] {
        let home = Home::new();
        let outside = home.folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let link = home.model().join(folder);
        let link = PathBuf::from(
            link.to_str().unwrap().trim_end_matches('/').replace("models--owner--model/../", ""),
        );
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&outside, &link).unwrap();
        home.refused(&server, "is a link or a file where the cache has a folder of its own");
        assert_eq!(names(&outside), Vec::<String>::new(), "{}", link.display());
    }
}

#[test]
fn a_good_server_fills_the_cache_as_pythons_library_lays_it_out() {
    let home = Home::new();
    let folder = home.get(&changed(|_, reply| reply)).unwrap();
    assert_eq!(folder, home.snapshot());
    home.whole(&folder);
    assert_eq!(fs::read_to_string(home.model().join("refs/main")).unwrap(), COMMIT);
    let tag = sha256(&files()["model.safetensors"]);
    let link = fs::read_link(folder.join("model.safetensors")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(&tag));
    let blobs = [CONFIG_TAG.trim_matches('"').to_owned(), sha256(&files()["tokenizer.json"]), tag];
    let mut expected = blobs.to_vec();
    expected.sort();
    assert_eq!(names(&home.blobs()), expected);
    assert_eq!(names(&home.model()), ["blobs", "refs", "snapshots"]);
    assert_eq!(names(&home.model().join("refs")), ["main"]);
}

#[test]
fn two_processes_that_want_one_model_download_it_once() {
    let home = Home::new();
    let server = changed(|_, reply| reply);
    let hubs: Vec<Hub> = (0..4).map(|_| home.hub(&server)).collect();
    let threads: Vec<_> = hubs
        .into_iter()
        .map(|hub| std::thread::spawn(move || hub.model("owner/model", "main", |_, _| {}).unwrap()))
        .collect();
    for thread in threads {
        home.whole(&thread.join().unwrap());
    }
    assert_eq!(server.requests().iter().filter(|request| gets_weights(request)).count(), 1);
}

#[test]
fn a_lock_that_is_never_given_back_is_named() {
    let home = Home::new();
    let tag = sha256(&files()["model.safetensors"]);
    let locks = home.folder.path().join("hf/hub/.locks/models--owner--model");
    fs::create_dir_all(&locks).unwrap();
    let held = fs::File::create(locks.join(format!("{tag}.lock"))).unwrap();
    held.lock().unwrap();
    let server = changed(|_, reply| reply);
    home.fails(&home.impatient(&server), "is held by another process that downloads the same file");
    drop(held);
    home.whole(&home.get(&changed(|_, reply| reply)).unwrap());
}

#[test]
fn partial_files_of_killed_runs_are_gone_on_with_or_cleared() {
    let home = Home::new();
    let server = changed(|_, reply| reply);
    let weights = &files()["model.safetensors"];
    let tag = sha256(weights);
    fs::create_dir_all(home.blobs()).unwrap();
    let put = |name: &str, days: u64| {
        let file = fs::File::create(home.blobs().join(name)).unwrap();
        let age = Duration::from_secs(days * 24 * 3600);
        file.set_modified(std::time::SystemTime::now() - age).unwrap();
    };
    // The library that was used before has left the beginning of the weights, from which the download continues.
    fs::write(home.blobs().join(format!("{tag}.part")), &weights[..777]).unwrap();
    fs::write(home.blobs().join(CONFIG_TAG.trim_matches('"')), "{}").unwrap();
    put(&format!("{}.1a2b3c4d.incomplete", CONFIG_TAG.trim_matches('"')), 0);
    put("aaaa.incomplete", 30);
    put("bbbb.incomplete", 1);
    put("cccc.incomplete", 30);
    let locks = home.folder.path().join("hf/hub/.locks/models--owner--model");
    fs::create_dir_all(&locks).unwrap();
    let held = fs::File::create(locks.join("cccc.lock")).unwrap();
    held.lock().unwrap();
    let folder = home.get(&server).unwrap();
    assert!(server.requests().iter().any(|request| request.range == "bytes=777-"));
    assert_eq!(&fs::read(folder.join("model.safetensors")).unwrap(), weights);
    assert_eq!(
        home.partials(),
        ["bbbb.incomplete", "cccc.incomplete"],
        "another's work of yesterday, another's lock"
    );
}

#[test]
fn a_cache_that_cannot_be_written_is_one_clear_error() {
    let home = Home::new();
    let server = changed(|request, reply| {
        if is_weights(request) { set(reply, "X-Linked-Size", &(1u64 << 60).to_string()) } else { reply }
    });
    home.refused(&server, "bytes free, and `model.safetensors` takes 1152921504606846976 more; make room");
    let server = changed(|_, reply| reply);
    let hub = Hub { cache: home.victim().join("hub"), ..home.hub(&server) };
    home.fails(&hub, "bashrc/hub cannot be written");
}
