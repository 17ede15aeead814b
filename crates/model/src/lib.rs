//! Language models as graph builders, whose parameters have the names and shapes of Hugging Face.
//!
//! ```
//! use plimsoll_graph::differentiate;
//! use plimsoll_model::Preset;
//!
//! let preset = Preset::from_name("tiny")?;
//! let forward = preset.model.training(8, preset.seq)?;
//! let loss = forward.output_named("loss").ok_or("no loss")?;
//! let training = differentiate(&forward, loss)?;
//! assert!(training.state_named("grad.model.layers.0.self_attn.q_proj.weight").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every graph has the same surface:
//!
//! | graph | inputs | output |
//! |---|---|---|
//! | `training(B, T)` | `tokens` i32 `[B,T]`, `targets` i32 `[B,T]` (shifted; [`IGNORED`] carries no loss), `scale` f32 `[]`, `doc_start` i32 `[B,T]` (BERT, and where `documents` is set), `positions` i32 `[B,T]` (GPT-2 where `documents` is set), `present` i32 `[B,T]` (mixtures of experts; 1 for a token, 0 for padding), `rng` i32 `[4]` (where `dropout` is not 0) | `loss` |
//! | `training(B, T)` with labels | the same, but `targets` i32 `[B]`: one label per row | `loss` |
//! | `evaluation(B, T)` | as `training`, without `rng` | `loss`; with labels also `logits` f32 `[B,L]` |
//! | `generation(T)` | `tokens` i32 `[1,T]`, `position` i32 `[1]` | `logits` f32 `[1,V]` |
//!
//! Each layer is one block of the graph, and all layers of a model are built alike, so that a planner may plan one and
//! repeat it. Nothing here decides parallelism, offload, recompute or precision: a model defines the computation, a
//! plan decides where and when it runs.

mod architecture;
mod bert;
mod gpt2;
pub mod hf;
mod language;
mod llama;
pub mod lora;
mod mixture;
mod preset;
mod rope;

pub use architecture::Architecture;
pub use bert::{Bert, Labels};
pub use gpt2::Gpt2;
pub use language::IGNORED;
pub use llama::Llama;
pub use lora::{Lora, Targets};
pub use mixture::{BalanceGroup, ExpertNames, Mixture, RouterLosses};
pub use preset::{Preset, UnknownPreset};
pub use rope::{Rope, Stretch};
