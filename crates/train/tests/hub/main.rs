//! The hub, spoken to over loopback: an honest one, its cache, and hubs that lie.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/hub_home.rs"]
mod home;
#[path = "../support/hub.rs"]
mod server;

mod cache;
mod downloads;
mod hostile;
