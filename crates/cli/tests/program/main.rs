//! The program as its users meet it, a file for each subject. They are linked as one test program, because linking one for each
//! file takes longer than many of them run; tests that must not run beside others stand beside this folder.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../train/tests/support/hub.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod bad_input;
mod contract;
mod costs;
mod dag;
mod experts;
mod faults;
mod generate;
mod hostile_files;
mod hub;
mod intrinsic;
mod labels;
mod layout;
mod library;
mod life;
mod logs;
mod methods;
mod model_files;
mod no_gpu;
mod planfile;
mod quantised;
mod ranks;
mod run_folder;
mod samples;
mod settings;
mod tokens;
mod view;
