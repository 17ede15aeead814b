//! `plimsoll generate`: a trained model writes on from a prompt.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use plimsoll::TrainError;
use plimsoll::training::budget::Budget;
use plimsoll::training::data::Tokenizer;
use plimsoll::training::generate::{Generator, Sampling};
use plimsoll::training::memory;
use plimsoll::training::pretrained::{AdapterFolder, Pretrained};
use plimsoll::training::size::Size;

use crate::args::GenerateArgs;
use crate::commands::train::inside;
use crate::exit::Failure;
use crate::home;

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let sampling = sampling(args)?;
    let model = Pretrained::open(Path::new(&home::model(&args.model)?))?;
    let tokenizer = model.tokenizer()?;
    let prompt = prompt(args, &tokenizer)?;
    let longest = model.configuration.architecture.positions().unwrap_or(usize::MAX);
    if prompt.len() >= longest {
        let given = prompt.len();
        let why = format!("the prompt has {given} tokens and the model reads {longest}; shorten it");
        return Err(TrainError::Config(why).into());
    }
    let length = longest.min(prompt.len() + args.max_new_tokens);
    let open = |folder: &PathBuf| AdapterFolder::open(folder, &model.configuration);
    let adapter = args.adapter.as_ref().map(open).transpose()?;
    let memory = args.memory.as_deref().filter(|&text| text != "auto").map(str::parse::<Size>);
    let memory = memory.transpose().map_err(|why| TrainError::Config(why.to_string()))?;
    let budget = Budget::resolve(memory.map(|size| size.bytes))?;
    // The tokenizer is read by now, and has taken what it takes.
    budget.keeps(memory::process().map_err(Failure::memory)?.peak)?;
    let mut generator = Generator::open(&model, adapter.as_ref(), length, &budget, args.threads)?;

    let mut out = io::stdout().lock();
    let mut text = tokenizer.stream();
    let mut written = if args.chat { Ok(()) } else { write!(out, "{}", args.prompt) };
    let end = tokenizer.special().end;
    generator.write(&prompt, args.max_new_tokens, &sampling, |id| {
        if Some(id) == end {
            return false;
        }
        written = write!(out, "{}", text.push(id)).and_then(|()| out.flush());
        written.is_ok()
    })?;
    written.and_then(|()| writeln!(out)).map_err(|error| Failure::output(&error))?;
    inside(memory::process().map_err(Failure::memory)?.peak, budget.total)
}

fn sampling(args: &GenerateArgs) -> Result<Sampling, TrainError> {
    let wrong =
        |flag: &str, rule: &str, given: f32| TrainError::Config(format!("{flag} must {rule}, got {given}"));
    if args.temperature < 0.0 || !args.temperature.is_finite() {
        return Err(wrong("--temperature", "not be negative", args.temperature));
    }
    if args.top_p <= 0.0 || args.top_p > 1.0 || args.top_p.is_nan() {
        return Err(wrong("--top-p", "be above 0 and at most 1", args.top_p));
    }
    if args.top_k == Some(0) || args.max_new_tokens == 0 {
        return Err(TrainError::Config("--top-k and --max-new-tokens must be at least 1".into()));
    }
    Ok(Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed })
}

fn prompt(args: &GenerateArgs, tokenizer: &Tokenizer) -> Result<Vec<i32>, TrainError> {
    let ids = if args.chat {
        let template = tokenizer
            .template()
            .ok_or_else(|| TrainError::Config("the model has no chat template; leave out --chat".into()))?;
        let messages = [json!({ "role": "user", "content": args.prompt })];
        let text = template.render(&messages, None, true).map_err(TrainError::Config)?;
        tokenizer.encode_plain(&text)?
    } else {
        let mut ids = tokenizer.encode(&args.prompt)?;
        // What closes a text must not stand before its continuation.
        ids.truncate(ids.len() - tokenizer.closing().len().min(ids.len()));
        ids
    };
    if ids.is_empty() {
        return Err(TrainError::Config("--prompt is empty, and the model has no token to begin with".into()));
    }
    Ok(ids)
}
