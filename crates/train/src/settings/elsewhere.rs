//! Settings that people know from elsewhere: Hugging Face's Trainer, TRL, PEFT, `DeepSpeed`, Unsloth and their kin.
//!
//! Each has an answer: the setting to write here, or why none is needed. A name that is spelled alike is offered only where
//! it can be a slip of the finger; a wrong tip is worse than none.

use super::{Kind, SETTINGS, Setting, nearest};

/// Names with their answer. A setting stands in braces, since a file and a command line write it differently. An answer
/// with a flag that is no setting applies only to the command that has this flag.
const ELSEWHERE: &[(&[&str], &str)] = &[
    // Model and method.
    (
        &[
            "model_name_or_path",
            "model_name",
            "base_model",
            "model_path",
            "model_id",
            "pretrained_model_name_or_path",
        ],
        "write {model}",
    ),
    (&["config_name"], "write {config}"),
    (&["tokenizer_name", "tokenizer_name_or_path"], "write {tokenizer}"),
    (&["model_revision", "revision"], "the revision `main` is taken; name a folder as {model} for another"),
    (&["trust_remote_code"], "leave it out: no code of a model is run"),
    (&["lora_task_type", "task_type"], "write {task}"),
    // Data.
    (
        &["dataset", "dataset_name", "dataset_path", "data_path", "data_files", "train_file", "train_data"],
        "write {data}",
    ),
    (
        &["dataset_config", "dataset_config_name", "dataset_train_split", "dataset_streaming", "streaming"],
        "data is given as files: write {data}",
    ),
    (&["validation_file", "eval_file", "eval_dataset", "validation_data", "val_data"], "write {eval_data}"),
    (&["dataset_test_split"], "write {eval_data} or {eval_split}"),
    (&["val_set_size", "test_size", "validation_split_percentage"], "write {eval_split}"),
    (
        &["dataset_text_field", "text_column", "dataset_kwargs", "remove_unused_columns", "label_names"],
        "leave it out: the fields of the data are text, messages, prompt and completion, and label",
    ),
    (
        &["length_column_name", "group_by_length", "train_sampling_strategy"],
        "leave it out: {packing} fills rows with short documents",
    ),
    (&["packing_strategy", "eval_packing", "sample_packing", "padding_free"], "write {packing}"),
    (
        &["completion_only_loss", "assistant_only_loss", "train_on_inputs"],
        "leave it out: of prompts and chats the answers alone are learned",
    ),
    (&["pad_token", "eos_token", "pad_to_multiple_of"], "leave it out: the tokenizer's files decide"),
    (
        &["chat_template", "chat_template_path"],
        "leave it out: the template is chat_template.jinja, or in tokenizer_config.json, beside tokenizer.json",
    ),
    (
        &[
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
            "dataset_num_proc",
            "preprocessing_num_workers",
            "num_workers",
            "workers",
        ],
        "leave it out: the run reads its tokens itself, in the order of {seed}",
    ),
    (&["dataloader_drop_last"], "leave it out: the last step of an epoch takes what is left"),
    (&["ignore_data_skip"], "leave it out: a run that goes on begins where its data was"),
    // Lengths and batches.
    (
        &[
            "max_length",
            "max_seq_length",
            "max_seq_len",
            "block_size",
            "model_max_length",
            "sequence_len",
            "context_length",
            "cutoff_len",
        ],
        "write {seq_len}",
    ),
    (&["max_length", "max_tokens", "max_gen_toks"], "write --max-new-tokens"),
    (&["do_sample"], "write --temperature, where 0 takes the likeliest token"),
    (
        &["batch_size", "train_batch_size", "batch", "bs"],
        "write {per_device_train_batch_size} or {global_batch}",
    ),
    (
        &["train_micro_batch_size_per_gpu", "micro_batch_size", "per_gpu_train_batch_size"],
        "write {micro_batch}",
    ),
    (&["auto_find_batch_size"], "leave it out: the micro-batch is the fastest that fits in {memory}"),
    (
        &["gradient_accumulation", "grad_accum", "grad_accum_steps", "accumulation_steps"],
        "write {gradient_accumulation_steps}",
    ),
    (&["average_tokens_across_devices"], "leave it out: the loss is the mean over all tokens of a step"),
    (&["epochs", "epoch", "num_epochs", "n_epochs"], "write {num_train_epochs}"),
    (
        &["steps", "num_steps", "max_train_steps", "num_train_steps", "total_steps", "max_iters"],
        "write {max_steps}",
    ),
    // Learning.
    (&["lr"], "write {learning_rate}"),
    (&["scheduler", "lr_scheduler", "lr_schedule"], "write {lr_scheduler_type}"),
    (&["lr_scheduler_kwargs"], "leave it out: those of {lr_scheduler_type} take no arguments"),
    (&["warmup", "num_warmup_steps", "lr_warmup_steps"], "write {warmup_steps}"),
    (&["warmup_proportion"], "write {warmup_ratio}"),
    (&["optimizer", "optimizer_type", "optimizer_name", "adafactor"], "write {optim}"),
    (
        &["optim_target_modules"],
        "leave it out: {optim} apollo_adamw projects every matrix that only products read",
    ),
    (&["betas", "adam_betas"], "write {adam_beta1} and {adam_beta2}"),
    (&["beta1"], "write {adam_beta1}"),
    (&["beta2"], "write {adam_beta2}"),
    (&["epsilon", "eps", "adam_eps"], "write {adam_epsilon}"),
    (&["wd", "decay"], "write {weight_decay}"),
    (&["grad_clip", "clip_grad", "clip_grad_norm", "gradient_clipping", "max_norm"], "write {max_grad_norm}"),
    (&["label_smoothing_factor", "label_smoothing"], "the loss does not smooth labels"),
    (&["neftune_noise_alpha"], "embeddings get no noise"),
    (&["random_state"], "write {seed}"),
    (&["data_seed"], "write {seed}: it decides the order of the data too"),
    (&["deterministic", "use_deterministic_algorithms"], "write {full_determinism}"),
    // Element types and kernels.
    (&["fp16", "half"], "write {bf16}: half precision overflows"),
    (&["bf16_full_eval", "fp16_full_eval"], "leave it out: evaluation computes as training does"),
    (&["fp8"], "leave it out: arithmetic is fp32 or bf16"),
    (&["dtype", "torch_dtype", "precision", "mixed_precision"], "write {weights_dtype} or {bf16}"),
    (
        &["quantization_config", "quantization_bit", "quantization_method", "load_4bit", "load_8bit"],
        "write {load_in_4bit} or {load_in_8bit}",
    ),
    (&["use_bnb_nested_quant", "double_quantization"], "write {bnb_4bit_use_double_quant}"),
    (
        &["bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"],
        "leave it out: weights are dequantised to f32, or to bf16 with {bf16}",
    ),
    (
        &[
            "torch_compile",
            "torch_compile_backend",
            "torch_compile_mode",
            "use_liger_kernel",
            "liger_kernel_config",
            "attn_implementation",
            "use_flash_attention_2",
            "use_flash_attn",
            "flash_attn",
            "jit_mode_eval",
        ],
        "leave it out: there is one set of kernels",
    ),
    (&["use_cache"], "leave it out: training keeps no keys and values"),
    // Memory.
    (
        &["use_gradient_checkpointing", "activation_checkpointing", "checkpoint_activations"],
        "write {gradient_checkpointing} or {recompute}",
    ),
    (&["gradient_checkpointing_kwargs", "gradient_checkpointing_use_reentrant"], "write {recompute}"),
    (&["max_memory", "memory_limit", "gpu_memory_utilization"], "write {memory}"),
    (&["torch_empty_cache_steps"], "leave it out: memory is taken once, at the start"),
    (&["skip_memory_metrics"], "leave it out: the peak is always measured"),
    (
        &["deepspeed", "deepspeed_config", "fsdp", "fsdp_config"],
        "leave it out: the plan fits the run into {memory} and {offload} says where the rest may wait",
    ),
    (&["zero_optimization", "zero_optimization_stage"], "write {zero_stage}"),
    (
        &[
            "offload_optimizer",
            "offload_param",
            "offload_optimizer_device",
            "offload_param_device",
            "cpu_offload",
        ],
        "write {offload}",
    ),
    (
        &["offload_budget"],
        "it is now {disk_space} for a disk and {host_memory} for memory of the host; write that one",
    ),
    // Machines.
    (&["gpu", "gpus"], "write {device}"),
    (&["use_cpu", "no_cuda", "use_mps_device"], "leave it out or write {device}"),
    (&["num_threads", "n_threads"], "write {threads}"),
    (
        &[
            "local_rank",
            "nproc_per_node",
            "num_processes",
            "num_gpus",
            "world_size",
            "nnodes",
            "node_rank",
            "ddp_find_unused_parameters",
            "ddp_bucket_cap_mb",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
            "ddp_backend",
            "accelerator_config",
            "parallelism_config",
            "tensor_parallel_size",
            "save_on_each_node",
            "log_on_each_node",
            "log_level_replica",
        ],
        "leave it out: {ranks} starts threads, and mpirun starts processes",
    ),
    // Adapters.
    (&["lora_rank", "lora_dim"], "write {lora_r}"),
    (&["rank"], "write {lora_r} for the rank of adapters, or {ranks} for ranks that train together"),
    (&["use_peft", "use_lora", "lora"], "write {lora_r}: with a rank, adapters are trained"),
    (&["full_finetuning"], "leave it out: without {lora_r} all weights are trained"),
    (&["target_modules", "lora_target", "lora_targets"], "write {lora_target_modules}"),
    (&["target_parameters"], "write {lora_target_parameters}"),
    (&["exclude_modules"], "write {lora_exclude_modules}"),
    (&["layers_to_transform", "lora_layers"], "write {lora_layers_to_transform}"),
    (&["layers_pattern"], "write {lora_layers_pattern}"),
    (&["rank_pattern"], "write {lora_rank_pattern}"),
    (&["alpha_pattern"], "write {lora_alpha_pattern}"),
    (&["lora_modules_to_save", "additional_target"], "write {modules_to_save}"),
    (&["adapter_name_or_path", "peft_model_id", "lora_path"], "write {adapter}"),
    // Evaluation.
    (&["do_eval", "eval_strategy", "evaluation_strategy"], "write {eval_steps}"),
    (&["eval_delay", "eval_on_start"], "leave it out: an evaluation comes every {eval_steps} and at the end"),
    (
        &["per_device_eval_batch_size", "per_gpu_eval_batch_size"],
        "evaluation takes the micro-batch of training; leave it out",
    ),
    (
        &[
            "eval_accumulation_steps",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "batch_eval_metrics",
            "prediction_loss_only",
            "include_for_metrics",
            "include_inputs_for_metrics",
        ],
        "leave it out: an evaluation measures the loss and of classes accuracy and F1, and keeps no predictions",
    ),
    (
        &["metric_for_best_model", "greater_is_better"],
        "the best has the smallest validation loss; leave it out",
    ),
    (&["early_stopping"], "write {early_stopping_patience}"),
    (&["do_train"], "leave it out"),
    (&["do_predict"], "leave it out: `plimsoll generate` asks a trained model"),
    // Logs.
    (&["logging_dir", "log_dir"], "write {output_dir}"),
    (
        &["logging_strategy", "log_steps", "log_every", "log_interval", "logging_interval", "log_freq"],
        "write {logging_steps}",
    ),
    (&["logging_first_step"], "leave it out: {logging_steps} 1 shows every step"),
    (&["logging_nan_inf_filter"], "leave it out: a loss that is not finite ends the run"),
    (&["log_level", "debug", "verbose", "verbosity", "quiet"], "leave it out: messages have no levels"),
    (&["disable_tqdm"], "leave it out: a bar is drawn in a terminal only"),
    (
        &["include_num_input_tokens_seen", "include_tokens_per_second"],
        "leave it out: records have tokens and tokens per second",
    ),
    (&["run_name", "experiment_name", "job_name"], "write {output_dir}: a run is known by its folder"),
    (
        &[
            "project",
            "wandb",
            "use_wandb",
            "wandb_project",
            "wandb_run_name",
            "trackio_space_id",
            "trackio_bucket_id",
            "trackio_static_space_id",
        ],
        "records go to files alone, which {report_to} names",
    ),
    // Saving.
    (&["save_dir", "output", "out", "out_dir", "outdir", "output_path"], "write {output_dir}"),
    (&["overwrite_output_dir"], "name an empty {output_dir}"),
    (&["save_strategy", "save_every", "checkpointing_steps"], "write {save_steps}"),
    (
        &["save_only_model"],
        "leave it out: a run goes on from whole checkpoints; {output_dir} has the model alone at the end",
    ),
    (&["save_safetensors"], "leave it out: weights are always safetensors"),
    (&["enable_jit_checkpoint"], "leave it out: a run that is terminated saves first"),
    (&["resume_from_checkpoint", "resume_from"], "write {resume}"),
    (&["restore_callback_states_from_checkpoint"], "leave it out: a checkpoint has all that a run needs"),
    (
        &[
            "push_to_hub",
            "push_to_hub_token",
            "push_to_hub_model_id",
            "push_to_hub_organization",
            "hub_token",
            "hub_private_repo",
            "hub_model_id",
            "hub_strategy",
            "hub_always_push",
            "hub_revision",
        ],
        "nothing is uploaded; {output_dir} holds what the hub's own tools can upload",
    ),
];

/// The answers to a name.
fn answers(name: &str) -> impl Iterator<Item = &'static str> {
    ELSEWHERE.iter().filter(move |(names, _)| names.contains(&name)).map(|(_, answer)| *answer)
}

/// An answer with its settings as they are `written`.
fn with_settings(answer: &str, written: impl Fn(&'static Setting) -> String) -> String {
    let mut text = answer.to_owned();
    for setting in SETTINGS {
        let place = format!("{{{}}}", setting.name);
        if text.contains(&place) {
            text = text.replace(&place, &written(setting));
        }
    }
    text
}

/// Flags that an answer tells to write.
fn flags_of(answer: &str) -> impl Iterator<Item = &str> {
    let words = answer.split([' ', ',', ':', ';', '`']);
    words.filter(|word| word.starts_with("--"))
}

/// The switch that a name such as `no_packing` turns off.
fn negated(name: &str) -> Option<&'static Setting> {
    Setting::named(name.strip_prefix("no_")?).filter(|setting| setting.kind == Kind::Switch)
}

/// The answer to a flag, as typed, that the command does not have; `offered` are the flags it has, and `help` lists
/// them.
pub fn no_such_flag(flag: &str, offered: &[String], help: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_");
    let has = |flag: &str| offered.iter().any(|offered| offered == flag);
    let answers = answers(&name).map(|answer| with_settings(answer, Setting::flag));
    if let Some(answer) = answers.into_iter().find(|answer| flags_of(answer).all(has)) {
        return format!("there is no flag `{flag}` here: {answer}");
    }
    if let Some(switch) = negated(&name).filter(|switch| has(&switch.flag())) {
        return format!("there is no flag `{flag}` here: write {} false", switch.flag());
    }
    let names: Vec<String> =
        offered.iter().map(|flag| flag.trim_start_matches('-').replace('-', "_")).collect();
    match nearest(&name, names.iter().map(String::as_str)) {
        Some(near) => format!("there is no flag `{flag}`; did you mean `--{}`?", near.replace('_', "-")),
        None => format!("there is no flag `{flag}`; `{help}` lists them all"),
    }
}

/// The answer to a name in a file that is no setting.
pub(super) fn no_such_setting(name: &str) -> String {
    let answers = answers(name).map(|answer| with_settings(answer, |setting| setting.name.to_owned()));
    if let Some(answer) = answers.into_iter().find(|answer| flags_of(answer).next().is_none()) {
        return format!("there is no setting `{name}` here: {answer}");
    }
    match nearest(name, SETTINGS.iter().map(|setting| setting.name)) {
        Some(near) => format!("there is no setting `{name}`; did you mean `{near}`?"),
        None => format!("there is no setting `{name}`; `plimsoll train --help` lists them all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(flag: &str, offered: &[&str]) -> String {
        let offered: Vec<String> = offered.iter().map(|&flag| flag.to_owned()).collect();
        no_such_flag(flag, &offered, "plimsoll train --help")
    }

    /// The message of `train` for a flag.
    fn said_by_train(flag: &str) -> String {
        let flags: Vec<String> = SETTINGS.iter().map(Setting::flag).collect();
        no_such_flag(flag, &flags, "plimsoll train --help")
    }

    #[test]
    fn what_is_known_from_elsewhere_is_no_setting_of_ours_and_answered_with_settings_of_ours() {
        for (names, answer) in ELSEWHERE {
            for name in *names {
                assert!(Setting::named(name).is_none(), "{name} is in both tables");
            }
            let filled = with_settings(answer, |setting| setting.name.to_owned());
            assert!(!filled.contains(['{', '}']), "{answer}");
        }
    }

    #[test]
    fn every_argument_of_transformers_trainer_is_a_setting_or_has_an_answer() {
        let list = include_str!("../../../../testdata/training_arguments.txt");
        let names = list.lines().filter(|line| !line.starts_with('#'));
        let unanswered: Vec<&str> = names
            .clone()
            .filter(|name| Setting::named(name).is_none() && answers(name).next().is_none())
            .collect();
        assert_eq!(unanswered, Vec::<&str>::new());
        assert!(names.count() > 100);
    }

    #[test]
    fn a_flag_that_is_known_from_elsewhere_is_answered_with_what_the_command_offers() {
        assert_eq!(said_by_train("--lr"), "there is no flag `--lr` here: write --learning-rate");
        assert_eq!(
            said_by_train("--batch-size"),
            "there is no flag `--batch-size` here: write --per-device-train-batch-size or --global-batch"
        );
        assert_eq!(
            said_by_train("--fp16"),
            "there is no flag `--fp16` here: write --bf16: half precision overflows"
        );
        assert_eq!(
            said_by_train("--run-name"),
            "there is no flag `--run-name` here: write --output-dir: a run is known by its folder"
        );
        assert_eq!(
            said_by_train("--rank"),
            "there is no flag `--rank` here: write --lora-r for the rank of adapters, or --ranks for ranks that train \
             together"
        );
        assert_eq!(
            said_by_train("--no-packing"),
            "there is no flag `--no-packing` here: write --packing false"
        );
        assert!(
            said("--no-packing", &["--model"]).ends_with("lists them all"),
            "a command without that switch"
        );
        assert_eq!(
            said("--lr", &["--model"]),
            "there is no flag `--lr`; `plimsoll train --help` lists them all"
        );
        assert_eq!(
            said("--max_length", &["--max-new-tokens"]),
            "there is no flag `--max_length` here: write --max-new-tokens"
        );
    }

    #[test]
    fn a_name_that_is_spelled_alike_is_offered_only_where_it_can_be_a_slip() {
        assert_eq!(
            said_by_train("--learning-rte"),
            "there is no flag `--learning-rte`; did you mean `--learning-rate`?"
        );
        assert_eq!(said_by_train("--Max_Step"), "there is no flag `--Max_Step`; did you mean `--max-steps`?");
        for flag in ["--banana", "--name", "--tags", "--use-pissa", "--state", "-x", "--data-dir", "--mode-l"]
        {
            let said = said_by_train(flag);
            let tip = said.split_once("did you mean").map(|(_, tip)| tip.to_owned());
            let expected = (flag == "--mode-l").then(|| " `--model`?".to_owned());
            assert_eq!(tip, expected, "{flag}");
        }
    }
}
