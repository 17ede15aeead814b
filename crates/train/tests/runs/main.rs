//! Properties of training runs, a file for each. They are linked as one program, because linking one for each file takes longer
//! than running them all; tests that need a process of their own stand beside this folder.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/arena.rs"]
mod arena;
#[path = "../../../devices/tests/late/device.rs"]
mod late;
#[path = "../support/resume.rs"]
mod running;
#[path = "../support/mod.rs"]
mod support;

mod accumulation;
mod added_losses;
mod bf16;
mod bound;
mod budgets;
mod changed_files;
mod chat_templates;
mod evaluation;
mod expert_adapters;
mod files;
mod grouped_llama;
mod groups;
mod hf;
mod identity;
mod in_backward;
mod kept_checkpoints;
mod kill;
mod late_device;
mod lora;
mod lost_device;
mod methods;
mod mixtures;
mod mixtures_offload;
mod not_a_chain;
mod not_finite;
mod offload;
mod optimizers;
mod packing;
mod padded_experts;
mod plan_file;
mod presets;
mod pretrained;
mod pytorch;
mod quantised;
mod ranks;
mod replan;
mod rescue;
mod resume;
mod snapshot;
mod state_away;
mod steered_experts;
mod subspace;
mod tiles;
mod train_only;
mod zeroth_order;
