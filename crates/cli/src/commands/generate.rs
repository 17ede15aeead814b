//! `plimsoll generate`: a trained model writes on from a prompt.

use std::io::{self, Write};
use std::path::Path;

use serde_json::json;

use plimsoll::devices::DeviceKind;
use plimsoll::planning::ProcessBytes;
use plimsoll::training::Config;
use plimsoll::training::data::Tokenizer;
use plimsoll::training::generate::GenerationConfig;
use plimsoll::training::generate::{Generator, Sampling};
use plimsoll::training::job::NamedModel;
use plimsoll::training::memory::Budget;
use plimsoll::training::memory::Size;
use plimsoll::training::pretrained::{Pretrained, Quantised};
use plimsoll::{Device, Options, TrainError};

use crate::args::GenerateArgs;
use crate::environment::environment;
use crate::exit::Failure;
use crate::guard;
use crate::watching::Watching;

/// The sampling settings where neither a flag nor the model states them.
const USUAL: Sampling = Sampling { temperature: 0.7, top_k: None, top_p: 1.0, seed: 0 };
const USUAL_COUNT: usize = 64;

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    check(args)?;
    let named = environment().model(&args.model, args.adapter.clone(), &mut Watching::default())?;
    let NamedModel { model: folder, adapter } = named;
    guard::raise(args.memory.as_deref().filter(|_| args.device == "cpu"))?;
    let mut model = Pretrained::open(Path::new(&folder))?;
    model.quantise = match (args.load_in_4bit, args.load_in_8bit) {
        (true, _) => Some(model.configuration.quantised.unwrap_or(Quantised::Nf4Double)),
        (_, true) => Some(Quantised::Int8),
        _ => None,
    };
    let stated = GenerationConfig::read(&model.folder).map_err(TrainError::from)?;
    let sampling = sampling(args, stated.as_ref());
    let tokenizer = model.tokenizer()?;
    let prompt = prompt(args, &tokenizer)?;
    let longest = model.configuration.architecture.positions().unwrap_or(Config::MOST);
    if prompt.len() >= longest {
        let given = prompt.len();
        let why = format!("the prompt has {given} tokens and the model reads {longest}; shorten it");
        return Err(TrainError::Config(why).into());
    }
    if let Some(count) = args.max_new_tokens.filter(|&count| count > Config::MOST) {
        let (given, most) = (prompt.len(), longest.saturating_sub(prompt.len()));
        let why =
            format!("--max-new-tokens must be at most {most} after a prompt of {given} tokens, got {count}");
        return Err(TrainError::Config(why).into());
    }
    let count =
        args.max_new_tokens.or(stated.and_then(|stated| stated.max_new_tokens)).unwrap_or(USUAL_COUNT);
    let length = longest.min(prompt.len().saturating_add(count));
    let adapter = adapter.map(|folder| model.open_adapter(&folder)).transpose()?;
    let memory = args.memory.as_deref().filter(|&text| text != "auto").map(str::parse::<Size>);
    let memory = memory.transpose().map_err(|why| TrainError::Config(why.to_string()))?;
    let (device, budget) = device(args, memory.map(|size| size.bytes))?;
    guard::lower();
    let mut generator = Generator::open(&model, adapter.as_ref(), length, &budget, device)?;

    let mut out = io::stdout().lock();
    let mut text = tokenizer.stream();
    let mut written = if args.chat { Ok(()) } else { write!(out, "{}", args.prompt) };
    let end = tokenizer.special().end;
    generator.write(&prompt, count, &sampling, |id| {
        if Some(id) == end {
            return false;
        }
        // The decoder comes from a file too, and may expand a token to a very long text.
        guard::raise_again();
        let new = text.push(id);
        guard::lower();
        written = write!(out, "{new}").and_then(|()| out.flush());
        written.is_ok()
    })?;
    written.and_then(|()| writeln!(out)).map_err(|error| Failure::output(&error))?;
    Ok(budget.stayed_inside(ProcessBytes(generator.held()?))?)
}

/// The device that computes, and how the memory that it computes in divides.
fn device(args: &GenerateArgs, memory: Option<u64>) -> Result<(Box<dyn Device>, Budget), TrainError> {
    let kind: DeviceKind = args.device.parse()?;
    let gpu = environment().files_of(kind)?;
    let options = Options { device: kind, gpu, threads: args.threads, memory, ..Options::default() };
    let device = options.plain_device()?;
    let budget = options.budget_on(&*device)?;
    Ok((device, budget))
}

/// Refuses flags that make no sense.
fn check(args: &GenerateArgs) -> Result<(), TrainError> {
    let wrong =
        |flag: &str, rule: &str, given: f32| TrainError::Config(format!("{flag} must {rule}, got {given}"));
    if let Some(given) = args.temperature.filter(|given| *given < 0.0 || !given.is_finite()) {
        return Err(wrong("--temperature", "not be negative", given));
    }
    if let Some(given) = args.top_p.filter(|given| *given <= 0.0 || *given > 1.0 || given.is_nan()) {
        return Err(wrong("--top-p", "be above 0 and at most 1", given));
    }
    if args.top_k == Some(0) || args.max_new_tokens == Some(0) {
        return Err(TrainError::Config("--top-k and --max-new-tokens must be at least 1".into()));
    }
    Ok(())
}

/// The flags, and the model's own settings where a flag is left out.
fn sampling(args: &GenerateArgs, stated: Option<&GenerationConfig>) -> Sampling {
    let asked = args.temperature.is_some() || args.top_k.is_some() || args.top_p.is_some();
    let usual = stated.map_or(USUAL, |stated| stated.sampling(asked));
    Sampling {
        temperature: args.temperature.unwrap_or(usual.temperature),
        top_k: args.top_k.or(usual.top_k),
        top_p: args.top_p.unwrap_or(usual.top_p),
        seed: args.seed,
    }
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
        // Ids that close a text must not precede its continuation.
        ids.truncate(ids.len() - tokenizer.closing().len().min(ids.len()));
        ids
    };
    if ids.is_empty() {
        return Err(TrainError::Config("--prompt is empty, and the model has no token to begin with".into()));
    }
    Ok(ids)
}
