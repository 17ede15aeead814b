//! Every setting in one table: its name, its type and its meaning.
//!
//! One line of the table is all that a setting needs to be read from a file, taken from a flag, shown in `--help`,
//! spelled right in an error and printed again. Names are those of Hugging Face's `TrainingArguments` if it has one.
//! [`Config::check`](crate::Config::check) decides how settings combine.
//!
//! If a value is given twice, the command line overrides the file. Absent on purpose: environment variables, files that
//! include others, and more than one level of nesting.

mod elsewhere;
mod file;
mod nearest;
mod resumed;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use elsewhere::no_such_flag;
pub use file::Flag;
pub use nearest::nearest;
pub(crate) use resumed::{changeable, differ, remembered, value_of};

/// Kinds of values that a setting can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Words, a name, a size or a path.
    Text,
    /// A whole number that is not negative.
    Whole,
    /// A number.
    Number,
    /// Yes or no.
    Switch,
    /// Words: an array in a file; several times or with commas between them on the command line.
    List,
    /// Whole numbers, given as words are.
    Numbers,
    /// Patterns with a number each, `PATTERN=NUMBER`, given as words are; a table in a file.
    Pairs,
}

/// Patterns with a number each, as they were written: `PATTERN=NUMBER`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pairs(pub Vec<String>);

/// Which part of a run a setting is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The model and its budget; planning needs only these.
    Fit,
    /// Adapters in place of the model's own weights.
    Adapter,
    /// How parameters are updated.
    Learning,
    /// How long, how often, and where results go.
    Course,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in a file; as a flag, dashes may take the place of its underscores.
    pub name: &'static str,
    /// The kind of the setting's value.
    pub kind: Kind,
    /// Placeholder of its value in a list of flags.
    pub value_name: &'static str,
    /// The setting's meaning, with its default.
    pub help: &'static str,
    /// The section of the help that the setting belongs to.
    pub section: Section,
}

/// The kind of value that a Rust type holds.
trait Held {
    const KIND: Kind;
}

macro_rules! held {
    ($($ty:ty: $kind:ident),*) => { $(impl Held for $ty { const KIND: Kind = Kind::$kind; })* };
}
held!(String: Text, PathBuf: Text, usize: Whole, u64: Whole, f64: Number, bool: Switch, Vec<String>: List);
held!(Vec<usize>: Numbers, Pairs: Pairs);

macro_rules! settings {
    ($($section:ident { $($(#[doc = $help:literal])+ $name:ident: $ty:ty, $value_name:literal;)* })*) => {
        /// Settings as they were written; an absent one takes its default in [`Config::check`](crate::Config::check).
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(clippy::doc_markdown, reason = "the words are shown in a terminal too")]
        pub struct RawConfig {
            $($(
                $(#[doc = $help])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$ty>,
            )*)*
        }

        /// The table, in the order in which settings are shown.
        pub const SETTINGS: &[Setting] = &[$($(Setting {
            name: stringify!($name),
            kind: <$ty as Held>::KIND,
            value_name: $value_name,
            help: concat!($($help),+),
            section: Section::$section,
        },)*)*];
    };
}

settings! {
    Fit {
        /// A folder with config.json and weights; the folder of an adapter, which names its model; a hub id such as
        /// Qwen/Qwen3-0.6B; or a shape to train from scratch: tiny, s, m, s-moe, llama-3.2-1b, qwen2.5-0.5b, gpt2,
        /// bert-base, … [default: tiny]
        model: String, "NAME";
        /// config.json of a model to begin from scratch, in place of --model
        config: PathBuf, "FILE";
        /// Begin with random weights although --model is a folder with weights; its tokenizer is kept
        /// [default: false]
        init: bool, "BOOL";
        /// Number of layers of a model that begins from scratch, instead of the number that its shape has
        layers: usize, "N";
        /// Folder with tokenizer.json [default: the model's; without one, a token is a byte]
        tokenizer: PathBuf, "PATH";
        /// Task: causal, masked or classify [default: the one the model is made for]
        task: String, "NAME";
        /// Tokens per sequence [default: the length that a named shape has; for other models 512, or their number of positions
        /// if that is smaller]
        seq_len: usize, "N";
        /// Sequences per optimizer step [default: 8]
        global_batch: usize, "N";
        /// Sequences per micro-batch [default: the fastest that fits]
        micro_batch: usize, "N";
        /// Another name of --micro-batch; if neither --global-batch nor --gradient-accumulation-steps is given, a step has one
        /// micro-batch
        per_device_train_batch_size: usize, "N";
        /// Micro-batches per optimizer step; stated alone, each micro-batch has 8 sequences [default: global batch ÷
        /// micro-batch]
        gradient_accumulation_steps: usize, "N";
        /// cpu, cuda or cuda:1 for a GPU of this machine; plan also takes GPUs by name: cuda:h200, cuda:a100-80,
        /// cuda:4090, … [default: cpu]
        device: String, "NAME";
        /// Memory of the whole process, or of a GPU, such as 64MiB or 16GB; auto is the free memory less 256 MiB, or less 5 %
        /// if that is more, or all memory of a described device [default: auto]
        memory: String, "SIZE";
        /// Values kept for the backward pass; the rest runs again: none (keeps all), selective (products and inputs of layers), full
        /// (inputs of layers), sqrt or every:K (those of every √n-th or K-th layer), minimal (nothing), manual (by the model's
        /// own marks) or auto [default: auto, the fastest that fits]
        recompute: String, "STRATEGY";
        /// true is --recompute full and false is --recompute none; where both are given, --recompute decides
        gradient_checkpointing: bool, "BOOL";
        /// Place for values and state that do not fit: disk, or host for a described device [default: nowhere]
        offload: String, "TIER";
        /// Folder in which --offload disk reserves its space, as a file without a name [default: the current folder]
        offload_folder: PathBuf, "PATH";
        /// Host memory to which values and state of a described device may be offloaded, such as 64GiB; implies
        /// --offload host [default: no limit]
        host_memory: String, "SIZE";
        /// Room on the disk that --offload disk may take, such as 100GiB; implies --offload disk [default: nine tenths
        /// of the free space]
        disk_space: String, "SIZE";
        /// Times of ops: `modelled`, or a file of measured times [default: times measured on this machine, for a second at
        /// first use and then by every run]
        costs: String, "COSTS";
        /// Threads, which ranks share [default: one for each core]
        threads: usize, "N";
        /// Instructions of the processor: portable, avx2, avx512 or avx512-bf16; results may differ in the last bits
        /// [default: the fastest that it has]
        instructions: String, "NAME";
        /// Seed of weights, data order and dropout [default: 0]
        seed: u64, "N";
        /// Whether a GPU sums in a fixed order, so that two runs and every way to recompute agree bit for bit;
        /// attention then takes more time and scratch. The CPU always does [default: false]
        full_determinism: bool, "BOOL";
        /// Whether a GPU rounds f32 operands of products to tf32, which is several times as fast and has the digits of
        /// half precision [default: false]
        tf32: bool, "BOOL";
        /// Files or folders of text, .jsonl or .parquet; may be given several times, and PATH@2 is seen twice as often
        data: Vec<String>, "PATHS";
        /// Whether several documents share a row, without attention between them; otherwise each has a row of its own
        /// [default: true]
        packing: bool, "BOOL";
        /// Whether samples that cannot be used are skipped and counted instead of refused [default: false]
        skip_bad_lines: bool, "BOOL";
        /// Folder for tokenised data [default: plimsoll/data in the user's cache]
        data_cache: PathBuf, "PATH";
        /// Made-up data with something to learn in it [default when there is no --data]
        synthetic: bool, "BOOL";
    }
    Adapter {
        /// Kind of adapters: lora, ia3 (factors of columns), bottleneck (small networks behind attention and feed-forward),
        /// prompt_tuning (trained vectors before the text) or prefix_tuning (trained keys and values before it) [default:
        /// lora, where --lora-r is given]
        peft_type: String, "KIND";
        /// Rank of adapters (LoRA), which are trained in place of the model's own weights
        lora_r: usize, "N";
        /// Alpha of adapters: what an adapter adds is scaled by alpha ÷ rank [default: twice the rank]
        lora_alpha: f64, "NUMBER";
        /// Dropout probability of the adapters' input [default: 0]
        lora_dropout: f64, "PART";
        /// Whether alpha is divided by the square root of the rank, not by the rank [default: false]
        use_rslora: bool, "BOOL";
        /// Whether the norm of each row of a weight is trained too (DoRA) [default: false]
        use_dora: bool, "BOOL";
        /// Modules that get an adapter: names such as q_proj,v_proj,embed_tokens, a regular expression for whole names
        /// such as '.*\.(q|v)_proj', or all-linear [default: all-linear; ia3: keys, values and the last product of the
        /// feed-forward network; bottleneck: the last products of attention and of the feed-forward network]
        lora_target_modules: Vec<String>, "NAMES";
        /// Parameters that get an adapter, such as the stacked experts: names such as mlp.experts.gate_up_proj,mlp.experts.down_proj
        /// [default: none; all-linear includes experts where PEFT does]
        lora_target_parameters: Vec<String>, "NAMES";
        /// Targets that get no adapter: names, or a regular expression for whole names
        lora_exclude_modules: Vec<String>, "NAMES";
        /// Numbers of the layers whose modules get adapters, from 0 [default: all]
        lora_layers_to_transform: Vec<usize>, "NUMBERS";
        /// The word before the layer's number in module names, such as layers; needed where these names contain other numbers
        /// too
        lora_layers_pattern: Vec<String>, "NAMES";
        /// Ranks of modules whose names end in a pattern, such as q_proj=16; the first pattern that matches counts
        lora_rank_pattern: Pairs, "PAIRS";
        /// Alphas of modules whose names end in a pattern, such as q_proj=32; the first pattern that matches counts
        lora_alpha_pattern: Pairs, "PAIRS";
        /// For --peft-type ia3: modules whose input is scaled, not their output; names, or a regular expression for whole
        /// names [default: the last product of feed-forward networks]
        feedforward_modules: Vec<String>, "NAMES";
        /// Inner columns of --peft-type bottleneck [default: 64]
        bottleneck_size: usize, "N";
        /// Function between the products of --peft-type bottleneck: tanh, gelu or silu [default: tanh]
        non_linearity: String, "NAME";
        /// Trained vectors of --peft-type prompt_tuning or prefix_tuning; they take positions in addition to --seq-len
        num_virtual_tokens: usize, "N";
        /// Train all weights in a subspace of this many dimensions, which is drawn at random by --seed; the adapter's file
        /// holds only the coordinates
        intrinsic_dimension: usize, "N";
        /// Whether every layer has coordinates of its own, an even share of --intrinsic-dimension [default: false]
        intrinsic_per_layer: bool, "BOOL";
        /// Modules that are trained as a whole beside the adapters
        modules_to_save: Vec<String>, "NAMES";
        /// Ids of tokens whose embedding vectors are trained beside the adapters, also in a tied output head
        trainable_token_indices: Vec<usize>, "NUMBERS";
        /// Folder of an adapter to train further; it states its own rank and layers
        adapter: PathBuf, "PATH";
        /// Whether the frozen weights of linear layers are kept in 4 bits under adapters (QLoRA); embedding, norms and
        /// head are not quantised [default: as the model's folder has them]
        load_in_4bit: bool, "BOOL";
        /// Whether the frozen weights of linear layers are kept in 8 bits, with a scale for each row [default: as the
        /// model's folder has them]
        load_in_8bit: bool, "BOOL";
        /// Kind of 4-bit codes: nf4 [default: nf4]
        bnb_4bit_quant_type: String, "NAME";
        /// Whether scales of 4-bit blocks are kept in 8 bits [default: true]
        bnb_4bit_use_double_quant: bool, "BOOL";
        /// Linear layers whose weights are not quantised, such as down_proj
        llm_int8_skip_modules: Vec<String>, "NAMES";
    }
    Learning {
        /// Peak learning rate [default: 5e-5, for adapters 2e-4, ia3 0.008, prompts 0.03; from scratch 0.001; mezo
        /// 1e-6, es 0.001]
        learning_rate: f64, "RATE";
        /// linear, cosine, constant or constant_with_warmup [default: linear; from scratch cosine]
        lr_scheduler_type: String, "NAME";
        /// Steps in which the learning rate rises linearly [default: 0; from scratch a tenth of the steps, at most 100]
        warmup_steps: u64, "N";
        /// Linear rise as a part of all steps; --warmup-steps decides where both are given
        warmup_ratio: f64, "PART";
        /// Parameters that are trained: regular expressions that are found in their names, such as norm,bias,lm_head or
        /// 'layers\.(30|31)\.'; all others are frozen [default: all]
        train_only: Vec<String>, "NAMES";
        /// adamw_torch, adamw_8bit (moments in 8 bits), sgd, lion_32bit, lion_8bit, adafactor, muon or apollo_adamw (moments
        /// of projected gradients); the last two take adamw for embeddings, head and vectors. paged_ before a name changes
        /// nothing. Without a backward pass: mezo (steps along random directions, by the slope of the loss) or es (the same, by
        /// the order of the losses) [default: adamw_torch]
        optim: String, "NAME";
        /// For --optim apollo_adamw: rank is the rank of the random projection, update_proj_gap the steps after which a new
        /// projection is drawn; a step is multiplied by the root of scale; scale_type says whether each channel or the whole
        /// tensor has one factor [default: rank=128,update_proj_gap=200,scale=1,scale_type=channel]
        optim_args: String, "ARGS";
        /// Momentum: decay rate of sgd's running sum of gradients, or of muon's running mean [default: 0; muon 0.95]
        momentum: f64, "RATE";
        /// Whether --optim sgd or muon uses Nesterov momentum [default: false; muon true]
        nesterov: bool, "BOOL";
        /// For --optim mezo and es: distance of a probe from the weights [default: 0.001]
        zo_eps: f64, "SIZE";
        /// For --optim es: constant keeps --zo-eps as it is; linear and cosine let it fall to 0 by the end of the run [default:
        /// constant]
        zo_eps_scheduler_type: String, "NAME";
        /// Random directions of a step of --optim mezo, each probed on both sides [default: 1]
        zo_directions: usize, "N";
        /// Members of the population of --optim es, two for each random direction [default: 16]
        population: usize, "N";
        /// The ranking of the members of --optim es: loss; accuracy (the share of learned tokens that are the likeliest
        /// after the true text before them); or exact-match (the share of answers generated to the letter at temperature 0)
        /// [default: loss]
        es_fitness: String, "NAME";
        /// How weights are kept: f32, bf16 (stochastic rounding), or bf16-master (bf16 with an f32 master copy)
        /// [default: f32]
        weights_dtype: String, "TYPE";
        /// Whether values between ops are bf16: half the bytes of activations; sums and statistics stay f32. Weights are then
        /// bf16-master unless --weights-dtype says otherwise [default: false; true for a described device]
        bf16: bool, "BOOL";
        /// How gradients are kept: f32 or bf16 [default: f32]
        gradients_dtype: String, "TYPE";
        /// How moments are kept: f32 or bf16 [default: f32]
        moments_dtype: String, "TYPE";
        /// Decay rate of AdamW's first moment; for Lion, the weight of the moment in a step [default: 0.9]
        adam_beta1: f64, "RATE";
        /// Decay rate of AdamW's second moment, or of Lion's moment [default: 0.999; from scratch 0.95]
        adam_beta2: f64, "RATE";
        /// Added to the root of AdamW's second moment [default: 1e-8]
        adam_epsilon: f64, "NUMBER";
        /// Decoupled weight decay of matrices [default: 0; from scratch 0.1]
        weight_decay: f64, "RATE";
        /// Largest gradient norm, 0 for no limit [default: 1]
        max_grad_norm: f64, "NORM";
        /// Experts that each token goes to, of a model that has experts; with 1, the router's probability scales its
        /// expert, as in Switch [default: the model's]
        num_experts_per_tok: usize, "N";
        /// Most tokens of each sequence that an expert takes, as a multiple of its even share; further tokens skip the
        /// expert and continue through the residual stream [default: no limit, no token is dropped]
        expert_capacity_factor: f64, "FACTOR";
        /// In training, multiply what router and experts read by numbers drawn from 1 − NOISE to 1 + NOISE [default: the
        /// model's]
        router_jitter_noise: f64, "NOISE";
        /// How experts are balanced: sequence (by a loss over the tokens of each sequence), micro-batch (by a loss over those
        /// of a micro-batch, as in transformers; needs --micro-batch), bias (by biases in the choice of experts, without a
        /// loss) or none [default: sequence]
        router_aux_loss: String, "GROUP";
        /// For --router-aux-loss bias: how far a step moves a bias [default: 0.001]
        router_bias_update_rate: f64, "RATE";
        /// Weight of the loss that balances experts [default: the model's]
        router_aux_loss_coef: f64, "WEIGHT";
        /// Weight of the z-loss, the mean square of the log-sum-exp of a router's logits [default: 0]
        router_z_loss_coef: f64, "WEIGHT";
        /// When parameters are updated: separate (after the backward pass), in-backward (inside it), two-pass (inside a second
        /// backward pass; the first finds the gradient norm) or auto [default: auto, inside the backward pass where one
        /// micro-batch a step and no limit on the norm allow it]
        update: String, "WHEN";
    }
    Course {
        /// Ranks that train together as threads of this process, each with an equal part of the global batch, an arena of its
        /// own and the stated --memory; gradients are summed over them. 1 with a named --zero-stage keeps the exchanges of that
        /// stage in the graph, to try them [default: 1, or the number of processes that a launcher such as mpirun started]
        ranks: usize, "N";
        /// Stage of ZeRO: 0 (every rank keeps everything), 1 (moments are divided over ranks), 2 (gradients too), 3 (weights too)
        /// or auto, the lowest that fits into --memory [default: auto]
        zero_stage: String, "STAGE";
        /// Seconds that a rank waits for another rank in an exchange before the run ends with an error that names it
        /// [default: 600]
        ddp_timeout: u64, "SECONDS";
        /// Plan for ranks on devices that you do not have, one device each. RATE is the bytes a second that one rank can send,
        /// LATENCY the time that a message takes in addition, such as 50GB/s,5us; a table from 1 to 1024 ranks follows the plan
        rank_link: String, "RATE[,LATENCY]";
        /// RATE and LATENCY of the network card of each rank; --rank-link is then the link inside a node
        node_link: String, "RATE[,LATENCY]";
        /// Ranks of one node, with --node-link
        ranks_per_node: usize, "N";
        /// Optimizer steps; decides where --num-train-epochs is given too, and -1 counts as not given [default from scratch:
        /// 100]
        max_steps: u64, "N";
        /// Passes over the data, which may be a part of one such as 0.5 [default: 3; from scratch see --max-steps]
        num_train_epochs: f64, "N";
        /// Show the first N samples before training, as text with the learned tokens marked; the report page has
        /// them too [default: 0]
        show_samples: u64, "N";
        /// Steps between two records, each the mean of the steps since the last [default: 1]
        logging_steps: u64, "N";
        /// Steps between two evaluations on validation data [default: no evaluation]
        eval_steps: u64, "N";
        /// Validation data, given as --data is [default for synthetic data: more of it]
        eval_data: Vec<String>, "PATHS";
        /// Part of the data that is validated on and not trained on, in place of --eval-data
        eval_split: f64, "PART";
        /// The most validation sequences to evaluate on [default: all, or 64 of synthetic data]
        max_eval_samples: u64, "N";
        /// Stop after this many evaluations without a better loss than the best before
        early_stopping_patience: u64, "N";
        /// By how much a loss must be better to count as better [default: 0]
        early_stopping_threshold: f64, "LOSS";
        /// Folder for the trained model, checkpoints, metrics.jsonl, report.html and TensorBoard's files [default:
        /// plimsoll-out/NAME for a model in a folder NAME; from scratch none is written]
        output_dir: PathBuf, "PATH";
        /// Steps between two checkpoints in --output-dir; the best evaluation and the end of the run also save one
        /// [default: 500]
        save_steps: u64, "N";
        /// Number of checkpoints to keep, beside the best [default: all]
        save_total_limit: u64, "N";
        /// Whether the final model is that of the best evaluation instead of the last step [default: false]
        load_best_model_at_end: bool, "BOOL";
        /// Resume from a checkpoint: its folder, or latest for the newest whole one in --output-dir; with latest, the
        /// run starts from the beginning if there is none yet
        resume: String, "CHECKPOINT";
        /// Files beside metrics.jsonl: tensorboard, html, or none [default: tensorboard,html]
        report_to: Vec<String>, "NAMES";
    }
}

impl Setting {
    /// The line of the table for a name as written in a file.
    pub fn named(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The setting's flag, such as `--max-steps`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_carries_its_words_and_its_kind() {
        let setting = Setting::named("warmup_ratio").unwrap();
        assert_eq!((setting.kind, setting.section), (Kind::Number, Section::Learning));
        assert_eq!(setting.flag(), "--warmup-ratio");
        assert!(setting.help.trim_start().starts_with("Linear rise as a part"));
    }
}
