//! A hub that lies, stalls and breaks off, spoken to over loopback: it gets no file, no token and no run to wait for ever.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::Duration;

use plimsoll_train::hub::Hub;

use crate::home::{
    COMMIT, Home, changed, files, gets_weights, good, is_weights, names, redirect, set, sha256,
};
use crate::server::{Reply, Request, Server, listing};

#[test]
fn a_tag_that_is_a_path_overwrites_no_file() {
    for header in ["ETag", "X-Linked-ETag"] {
        let home = Home::new();
        let path = format!("\"{}\"", home.victim().display());
        let server = changed(move |_, reply| set(reply, header, &path));
        let folder = home.get(&server).unwrap();
        home.untouched();
        // All three files have this one tag, and therefore one content.
        assert!(fs::canonicalize(folder.join("config.json")).unwrap().starts_with(home.blobs()));
    }
}

#[test]
fn a_commit_that_is_a_path_is_refused() {
    let home = Home::new();
    let server = changed(|_, reply| set(reply, "X-Repo-Commit", "../../x"));
    home.refused(&server, "it sends files of commit `../../x` where `0123");
    for sha in ["../../x", "/tmp", "", "a/b"] {
        let server = changed(move |request, reply| {
            if request.path.starts_with("/api/") {
                listing(["config.json", "model.safetensors"].into_iter(), sha)
            } else {
                reply
            }
        });
        home.refused(&server, "is no commit");
    }
    assert_eq!(names(&home.model().join("snapshots")), [COMMIT]);
}

#[test]
fn redirects_without_end_end() {
    let circle = changed(|request, _| redirect(&request.path));
    Home::new().refused(&circle, "it redirects without end");
    assert_eq!(circle.requests().len(), 1, "the first answer leads back to itself");
    let mut count = 0;
    let chain = changed(move |request, reply| {
        count += 1;
        if is_weights(request) || request.path.starts_with("/hop") {
            redirect(&format!("/hop{count}"))
        } else {
            reply
        }
    });
    Home::new().refused(&chain, "it redirects without end");
    assert!(chain.requests().len() < 20);
}

#[test]
fn a_redirect_to_another_server_takes_no_token_with_it() {
    let home = Home::new();
    let elsewhere = changed(|_, reply| reply);
    let address = elsewhere.address.clone();
    let server = changed(move |request, reply| {
        if !is_weights(request) {
            return reply;
        }
        let tag = format!("\"{}\"", sha256(&files()["model.safetensors"]));
        let reply = redirect(&format!("{address}{}", request.path));
        set(set(reply, "X-Linked-ETag", &tag), "X-Linked-Size", "400000")
    });
    home.whole(&home.get(&server).unwrap());
    assert!(server.requests().iter().all(|request| request.token == "Bearer secret"));
    let asked = elsewhere.requests();
    assert!(!asked.is_empty() && asked.iter().all(|request| request.token.is_empty()), "{asked:?}");
}

#[test]
fn a_server_that_was_redirected_to_gets_no_token_sent_back_home() {
    let home = Home::new();
    let there = changed(|_, reply| reply);
    let back = there.address.clone();
    let away = Server::with(move |request| redirect(&format!("{back}/private{}", request.path)));
    let address = away.address.clone();
    // The first server sends its listing to the second, which sends the client back to a page of its choice.
    let home_server = Server::with(move |request| match request.path.strip_prefix("/private") {
        Some(path) => good(&Request { path: path.to_owned(), ..request.clone() }),
        None => redirect(&format!("{address}{}", request.path)),
    });
    let _ = home.get(&home_server);
    assert!(
        !there
            .requests()
            .iter()
            .any(|request| request.path.contains("/private") && !request.token.is_empty())
    );
    assert!(away.requests().iter().all(|request| request.token.is_empty()));
}

#[test]
fn silence_ends_after_its_limit_and_the_download_goes_on_later() {
    let home = Home::new();
    let stalled = changed(|request, reply| {
        let stalls = gets_weights(request);
        Reply { cut: stalls.then_some(1000), stalls, ..reply }
    });
    home.fails(&home.impatient(&stalled), "no byte came for 200ms; what came so far is kept");
    assert_eq!(home.partials().len(), 1);
    let server = changed(|_, reply| reply);
    home.whole(&home.get(&server).unwrap());
    let first = server.requests().iter().find(|request| gets_weights(request)).and_then(Request::first);
    assert!(first.is_some_and(|first| first >= 1000), "{first:?}");

    let home = Home::new();
    let no_list = changed(|_, reply| Reply { cut: Some(5), stalls: true, ..reply });
    home.fails(&home.impatient(&no_list), "no byte came for 200ms");
    // A body that trickles is never silent, so only the limit on the time of a whole list ends it.
    let trickles = changed(|_, reply| Reply { trickles: true, ..reply });
    let mut hub = home.hub(&trickles);
    hub.limits.metadata = Duration::from_millis(200);
    home.fails(&hub, "no whole answer within 200ms");
}

#[test]
fn a_file_that_trickles_is_given_up_and_kept() {
    let home = Home::new();
    let server = changed(|request, reply| Reply { trickles: gets_weights(request), ..reply });
    let mut hub = home.hub(&server);
    (hub.limits.least, hub.limits.window) = (10_000, Duration::from_millis(200));
    home.fails(&hub, "bytes came in 200ms; what came so far is kept");
    let asked: Vec<_> = server.requests().into_iter().filter(gets_weights).collect();
    assert_eq!(asked.len(), 6, "one try and five more");
    assert!(fs::metadata(home.blobs().join(&home.partials()[0])).unwrap().len() > 0);
}

#[test]
fn a_body_that_is_always_cut_off_is_given_up_and_kept() {
    let home = Home::new();
    let server = changed(|request, reply| Reply { cut: gets_weights(request).then_some(10), ..reply });
    home.refused(&server, "could not be had");
    let asked: Vec<_> = server.requests().into_iter().filter(gets_weights).collect();
    assert_eq!(asked.len(), 6, "one try and five more");
    assert_eq!(asked.last().unwrap().range, "bytes=50-");
    assert_eq!(fs::metadata(home.blobs().join(&home.partials()[0])).unwrap().len(), 60);
}

#[test]
fn no_more_is_taken_than_was_announced_and_no_less() {
    let home = Home::new();
    let longer = changed(|request, reply| {
        let body = [&reply.body[..], &[7; 10]].concat();
        if gets_weights(request) { Reply::new("200 OK", &[], &body) } else { reply }
    });
    home.refused(&longer, "it sends more than the 400000 bytes that it announced");
    let endless = changed(|request, reply| {
        let chunks = [b"10000\r\n".to_vec(), vec![7; 0x10000], b"\r\n".to_vec()].concat().repeat(10);
        let endless = Reply::new("200 OK", &[("Transfer-Encoding", "chunked")], &chunks);
        if gets_weights(request) { endless } else { reply }
    });
    home.refused(&endless, "it sends more than the 400000 bytes that it announced");
    let shorter =
        changed(
            |request, reply| {
                if gets_weights(request) { Reply::new("200 OK", &[], &reply.body[..1000]) } else { reply }
            },
        );
    home.refused(&shorter, "it broke off with 399000 bytes to come");
    assert!(!home.snapshot().join("model.safetensors").exists());
    home.whole(&home.get(&changed(|_, reply| reply)).unwrap());
}

#[test]
fn content_with_another_hash_is_removed() {
    for name in ["model.safetensors", "config.json"] {
        let home = Home::new();
        let server = changed(move |request, mut reply| {
            if request.name() == name && !reply.body.is_empty() {
                reply.body[1] ^= 1;
            }
            reply
        });
        home.refused(&server, "has another hash; what came was removed");
        assert_eq!(home.partials(), Vec::<String>::new());
        assert!(!home.snapshot().join(name).exists());
    }
}

#[test]
fn lists_headers_and_small_files_have_a_largest_size() {
    let long = changed(|_, _| Reply::new("200 OK", &[], &vec![b' '; 2 << 20]));
    Home::new().refused(&long, "its list of files is longer than 1048576 bytes");
    let deep = changed(|_, _| Reply::new("200 OK", &[], "[".repeat(1 << 19).as_bytes()));
    Home::new().refused(&deep, "its list of files cannot be read");
    let header = changed(|_, reply| set(reply, "X-Long", &"x".repeat(1 << 20)));
    Home::new().refused(&header, "eader");
    let home = Home::new();
    let server = changed(|_, reply| reply);
    let mut hub = home.hub(&server);
    hub.limits.text_bytes = 10;
    home.fails(&hub, "`tokenizer.json` has 17 bytes, and more than 10 are not taken");
}

#[test]
fn compressed_answers_are_refused_unread() {
    let home = Home::new();
    home.refused(
        &changed(|_, reply| set(reply, "Content-Encoding", "gzip")),
        "it compresses its answer (`gzip`)",
    );
    let body = changed(
        |request, reply| {
            if gets_weights(request) { set(reply, "Content-Encoding", "gzip") } else { reply }
        },
    );
    home.refused(&body, "it compresses its answer (`gzip`)");
}

#[test]
fn a_busy_server_is_asked_again_and_may_not_ask_for_hours() {
    let mut busy = 0;
    let server = changed(move |_, reply| {
        busy += 1;
        match busy % 3 {
            1 => Reply::new("429 Too Many Requests", &[("Retry-After", "100000")], b""),
            2 => Reply::new("503 Service Unavailable", &[], b""),
            _ => reply,
        }
    });
    let home = Home::new();
    home.whole(&home.get(&server).unwrap());
    let always = changed(|_, _| Reply::new("500 Internal Server Error", &[], b""));
    Home::new().refused(&always, "it answers with status 500; what came so far is kept");
    assert_eq!(always.requests().len(), 6);
}

#[test]
fn settings_that_are_no_addresses_and_tokens_that_are_none_are_said() {
    let home = Home::new();
    let server = changed(|_, reply| reply);
    let why = |hub: Hub| hub.model("owner/model", "main", |_, _| {}).unwrap_err().to_string();
    for endpoint in ["hub.example", "ftp://hub.example", "https://user:pass@hub.example", "https://"] {
        let said = why(Hub { endpoint: Some(endpoint.into()), ..home.hub(&server) });
        assert!(said.contains("is no address of a server; state one as https://host"), "{said}");
    }
    let said = why(Hub { token: Some("two words\n".into()), ..home.hub(&server) });
    assert!(said.contains("the token for the hub holds spaces") && !said.contains("two words"), "{said}");
    for id in ["owner/../x", "owner", "/etc/passwd"] {
        let said = home.hub(&server).model(id, "main", |_, _| {}).unwrap_err().to_string();
        assert!(said.contains("is no model of a hub"), "{said}");
    }
    assert!(home.hub(&server).model("owner/model", "../../x", |_, _| {}).is_err());
    assert_eq!(server.requests().len(), 0);
    // A token that was left in the cache's home is used where none is stated.
    fs::create_dir_all(home.folder.path().join("hf")).unwrap();
    fs::write(home.folder.path().join("hf/token"), " filed \n").unwrap();
    Hub { token: None, ..home.hub(&server) }.model("owner/model", "main", |_, _| {}).unwrap();
    assert!(server.requests().iter().all(|request| request.token == "Bearer filed"));
}
