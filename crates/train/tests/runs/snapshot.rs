//! Plans and losses that a change of form must not change: a table of hashes, one line for each request.
//!
//! A line names the request, the plan in words (micro-batch, strategy, bytes, step time) and a hash of the whole plan
//! file. Times are modelled and budgets are those of the arena, so the table holds on every machine. A request that
//! nothing fits is a line too: the smallest plan and the hints.
//!
//! A change that is meant to alter plans writes the table again: every test leaves the lines it found under
//! `target/tmp`, and the message of a failure says what to copy where. Without such an intention a difference is a
//! fault.
//!
//! Losses depend on the width of the processor's vectors, so their bits are compared where AVX-512 is, as on the
//! machine that wrote the table; elsewhere they agree to four digits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_graph::{DType, Graph, GraphError, Init, Value, name_hash};
use plimsoll_model::{Lora, Preset};
use plimsoll_plan::{
    ArenaBytes, Build, Choice, DeviceSpec, Facts, Link, NodeFacts, ProcessBytes, Request, SearchError,
    Searcher, Strategy, Tier, Tried, Workspace, file,
};
use plimsoll_train::{LanguageModel, Model, Optimizer, Options, Programs, Update};

use crate::support::{Batch, STRATEGIES, Size, families, options, start};

/// A disk of a stated speed.
const DISK: Link = Link {
    tier: Tier::Disk,
    room: 1 << 40,
    block: 4096,
    out_rate: 1.5e9,
    in_rate: 2e9,
    latency: 1e-4,
    toll: 2e-11,
};

/// The lines of one table.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, answer: &str) {
        writeln!(self.0, "{name}: {answer}").unwrap();
    }

    /// Asks for a plan and records the answer; returns the size of the arena if a plan fits.
    fn ask<B: Build>(&mut self, name: &str, searcher: &mut Searcher<B>, request: Request) -> Option<u64> {
        let (line, bytes) = match searcher.search(request) {
            Ok(choice) => (planned(&choice, request.budget), Some(choice.plan.arena_bytes.0)),
            Err(SearchError::Budget { smallest, hints, .. }) => (refused(&smallest, &hints), None),
            Err(other) => (other.to_string(), None),
        };
        self.add(name, &line);
        bytes
    }

    /// Asks without a budget, with one byte, and with budgets between the two answers.
    fn ask_between<B: Build>(
        &mut self,
        name: &str,
        searcher: &mut Searcher<B>,
        request: Request,
        shares: &[u64],
    ) {
        let at = |budget| Request { budget: ArenaBytes(budget), ..request };
        let most = self.ask(&format!("{name}, all"), searcher, at(u64::MAX)).unwrap();
        let Err(SearchError::Budget { smallest, hints, .. }) = searcher.search(at(1)) else {
            panic!("{name}: a plan in one byte")
        };
        self.add(&format!("{name}, one byte"), &refused(&smallest, &hints));
        let least = smallest.arena_bytes.0.min(most);
        for share in shares {
            let budget = least + (most - least) * share / 100;
            self.ask(&format!("{name}, {share} %"), searcher, at(budget));
        }
    }

    /// Compares with the table of that name, and leaves the new lines under `target/tmp`.
    fn compare(&self, table: &str) {
        let found = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{table}.txt"));
        std::fs::write(&found, &self.0).unwrap();
        let known =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runs/snapshot").join(format!("{table}.txt"));
        let expected = std::fs::read_to_string(&known).unwrap_or_default();
        let different: Vec<String> = differences(&expected, &self.0);
        assert!(
            different.is_empty(),
            "{} lines differ from {}:\n{}\nIf plans were meant to change, copy {} over it.",
            different.len(),
            known.display(),
            different.join("\n"),
            found.display()
        );
    }
}

/// Lines that only one of two texts has.
fn differences(expected: &str, found: &str) -> Vec<String> {
    let gone = expected.lines().filter(|line| !found.lines().any(|other| other == *line));
    let new = found.lines().filter(|line| !expected.lines().any(|other| other == *line));
    gone.map(|line| format!("- {line}")).chain(new.map(|line| format!("+ {line}"))).collect()
}

/// A plan in words, and the hash of its file.
fn planned(choice: &Choice, budget: ArenaBytes) -> String {
    let text = file::write(choice, ProcessBytes(budget.0));
    let bound = choice.lower_bound_seconds.map_or(0, f64::to_bits);
    format!(
        "{} x {}, {}, {} bytes, {:.6} s, bound {:016x}, file {:016x}",
        choice.accumulation,
        choice.micro_batch,
        choice.plan.strategy,
        choice.plan.arena_bytes.0,
        choice.step_seconds(),
        bound,
        name_hash(&text)
    )
}

fn refused(smallest: &Tried, hints: &[Tried]) -> String {
    let hints: Vec<String> = hints.iter().map(tried).collect();
    format!("nothing fits; smallest {}; hints [{}]", tried(smallest), hints.join("; "))
}

fn tried(tried: &Tried) -> String {
    format!(
        "{}{} {} {:?} {} bytes {:016x}",
        tried.micro_batch,
        if tried.tiled { " tiled" } else { "" },
        tried.strategy,
        tried.scratch,
        tried.arena_bytes.0,
        tried.step_seconds.to_bits()
    )
}

fn request(global_batch: usize, micro_batch: Option<usize>) -> Request {
    Request { global_batch, micro_batch, strategy: None, budget: ArenaBytes::MAX, slack: 0.0 }
}

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec::from_name(&format!("cuda:{name}")).unwrap()
}

/// Facts of kernels that can do with less scratch and are slower then, with small alignment and no launches.
fn lean_facts(graph: &Graph) -> Facts {
    let facts = spec("3090").facts(graph);
    let lean = |node: &NodeFacts| NodeFacts {
        seconds: node.seconds - 4e-6,
        lean_seconds: 1.25 * node.seconds,
        workspace: Workspace { least: node.workspace.best >> 14, best: node.workspace.best >> 10 },
    };
    let nodes = facts.nodes.iter().map(|node| if node.seconds > 0.0 { lean(node) } else { *node });
    Facts { alignment: 64, nodes: nodes.collect(), link: None }
}

fn preset(name: &str) -> LanguageModel {
    let Preset { model, seq, .. } = Preset::from_name(name).unwrap();
    LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None }
}

/// A small model of one of the three families.
fn small(family: usize, layers: usize) -> LanguageModel {
    let size = Size { vocab: 512, seq: 64, width: 64, layers, ffn: 160, dropout: 0.0 };
    let architecture = families(size)[family].1.clone();
    LanguageModel { architecture, seq_len: size.seq, generate: false, lora: None }
}

/// Layers of different widths, each of which also reads the one three before it: no chain.
fn skips(rows: usize) -> Result<Graph, GraphError> {
    const WIDTH: usize = 96;
    let mut g = Graph::new();
    let x = g.input("x", [rows, WIDTH], DType::F32);
    let targets = g.input("class", [rows], DType::I32);
    let scale = g.loss_scale();
    let mut values: Vec<Value> = vec![x; 3];
    for layer in 0..10 {
        let (last, earlier) = (values[values.len() - 1], values[values.len() - 3]);
        let hidden = WIDTH * (1 + layer % 3);
        let up = g.param(&format!("up{layer}"), [hidden, WIDTH], Init::Normal(0.1));
        let down = g.param(&format!("down{layer}"), [WIDTH, hidden], Init::Normal(0.1));
        let h = g.linear(last, up, None);
        let h = g.silu(h);
        let h = g.linear(h, down, None);
        values.push(g.add(h, earlier));
    }
    let head = g.param("head", [16, WIDTH], Init::Normal(0.1));
    let logits = g.linear(values[values.len() - 1], head, None);
    let loss = g.cross_entropy(logits, targets, scale, -100);
    g.output("loss", loss);
    g.finish()
}

fn searcher<'a, M: Model, F: Fn(&Graph) -> Facts + Copy>(
    model: &'a M,
    options: &'a Options,
    facts: F,
) -> Searcher<Programs<'a, M, F>> {
    Searcher::new(Programs { model, facts, options })
}

#[test]
fn plans_of_every_preset_are_those_of_the_table() {
    let h100 = spec("h100");
    let mut lines = Lines::default();
    for Preset { name, .. } in Preset::all() {
        let (model, options) = (preset(name), Options::default());
        let mut searcher = searcher(&model, &options, |graph| h100.facts(graph));
        let shares: &[u64] = if name == "llama-3.1-70b" { &[10] } else { &[0, 8, 40] };
        lines.ask_between(name, &mut searcher, request(1, Some(1)), shares);
    }
    lines.compare("presets");
}

#[test]
fn searches_that_leave_more_or_less_open_find_the_plans_of_the_table() {
    let mut lines = Lines::default();
    let (l4, ada) = (spec("l4"), spec("4090"));
    for (name, batch, shares) in [("tiny", 12, &[0, 3, 20, 60][..]), ("gpt2", 4, &[5, 50])] {
        let (model, options) = (preset(name), Options { global_batch: batch, ..Options::default() });
        let mut searcher = searcher(&model, &options, |graph| ada.facts(graph));
        lines.ask_between(&format!("{name} free"), &mut searcher, request(batch, None), shares);
        let spared = Request { slack: 0.01, budget: ArenaBytes(8 << 30), ..request(batch, None) };
        lines.ask(&format!("{name} spared"), &mut searcher, spared);
    }
    // One question, for which nothing is kept.
    let (model, options) = (preset("s"), Options { global_batch: 6, ..Options::default() });
    for gibibytes in [1, 3] {
        let mut once =
            Searcher::once(Programs { model: &model, facts: |g: &Graph| l4.facts(g), options: &options });
        lines.ask("s once", &mut once, Request { budget: ArenaBytes(gibibytes << 30), ..request(6, None) });
    }
    let mut named = searcher(&model, &options, |graph| l4.facts(graph));
    for strategy in STRATEGIES {
        let asked = Request { strategy: Some(strategy), ..request(6, None) };
        lines.ask(&format!("s {strategy}, all"), &mut named, asked);
        lines.ask(
            &format!("s {strategy}, tight"),
            &mut named,
            Request { budget: ArenaBytes(240 << 20), ..asked },
        );
        let pinned = Request { micro_batch: Some(3), budget: ArenaBytes(222 << 20), ..asked };
        lines.ask(&format!("s {strategy}, pinned"), &mut named, pinned);
    }
    lines.compare("searches");
}

#[test]
fn kinds_of_training_have_the_plans_of_the_table() {
    let mut lines = Lines::default();
    let adapted = |model: LanguageModel| LanguageModel { lora: Some(Lora::default()), ..model };
    let unlimited = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    let in_backward =
        Options { global_batch: 4, update: Update::Auto, optimizer: unlimited, ..Options::default() };
    let two_pass = Options { global_batch: 2, update: Update::TwoPass, ..Options::default() };
    let evaluated = Options { global_batch: 4, evaluate: true, ..Options::default() };
    let plain = Options { global_batch: 4, ..Options::default() };
    let generating = LanguageModel { generate: true, ..small(0, 6) };
    for (name, model, options) in [
        ("lean llama", small(0, 8), &plain),
        ("lean gpt2", small(1, 5), &plain),
        ("lean bert", small(2, 5), &plain),
        ("adapted llama", adapted(small(0, 8)), &plain),
        ("adapted gpt2", adapted(small(1, 5)), &plain),
        ("adapted qwen2.5-0.5b", adapted(preset("qwen2.5-0.5b")), &plain),
        ("evaluated bert", small(2, 6), &evaluated),
        ("generating llama", generating, &evaluated),
        ("updates in backward", small(0, 6), &in_backward),
        ("two passes", small(1, 6), &two_pass),
    ] {
        let mut searcher = searcher(&model, options, lean_facts);
        let batch = options.global_batch;
        let micro_batch = (options.update == Update::TwoPass).then_some(batch);
        lines.ask_between(name, &mut searcher, request(batch, micro_batch), &[0, 5, 30]);
    }
    lines.compare("kinds");
}

#[test]
fn plans_with_a_tier_are_those_of_the_table() {
    let mut lines = Lines::default();
    let ada = spec("4090");
    let host = Options { global_batch: 2, ..Options::default() };
    let with_host = |graph: &Graph| Facts { link: Some(ada.host_link(None)), ..ada.facts(graph) };
    let with_disk = |graph: &Graph| Facts { link: Some(DISK), alignment: 4096, ..lean_facts(graph) };
    let little = |graph: &Graph| Facts { link: Some(Link { room: 1 << 21, ..DISK }), ..with_disk(graph) };
    let tiny = preset("tiny");
    let mut on_host = searcher(&tiny, &host, with_host);
    lines.ask_between("tiny, host", &mut on_host, request(2, None), &[0, 12]);
    let full = Request { strategy: Some(Strategy::Full), ..request(2, None) };
    lines.ask_between("tiny full, host", &mut on_host, full, &[25]);
    let model = small(1, 3);
    lines.ask_between("gpt2, disk", &mut searcher(&model, &host, with_disk), request(2, None), &[0, 10, 50]);
    let model = small(0, 4);
    lines.ask_between("llama, small disk", &mut searcher(&model, &host, little), request(2, Some(2)), &[5]);
    let mut skipping = searcher(&skips, &host, with_disk);
    lines.ask_between("skips, disk", &mut skipping, request(2, Some(2)), &[0, 20, 60]);
    lines.compare("tiers");
}

#[test]
fn plans_of_a_graph_that_is_no_chain_are_those_of_the_table() {
    let mut lines = Lines::default();
    let options = Options { global_batch: 64, ..Options::default() };
    let mut lean = searcher(&skips, &options, lean_facts);
    lines.ask_between("skips, lean", &mut lean, request(64, Some(64)), &[0, 10, 35, 70]);
    let l40s = spec("l40s");
    let mut gpu = searcher(&skips, &options, |graph| l40s.facts(graph));
    lines.ask_between("skips, l40s", &mut gpu, request(64, Some(32)), &[0, 30]);
    lines.compare("graphs");
}

#[test]
fn curves_and_comparisons_are_those_of_the_table() {
    let mut lines = Lines::default();
    let (model, options) = (small(0, 8), Options { global_batch: 4, ..Options::default() });
    for (name, link) in [("no tier", None), ("disk", Some(DISK))] {
        let facts = |graph: &Graph| Facts { link, ..lean_facts(graph) };
        let mut searcher = searcher(&model, &options, facts);
        let unbudgeted = plimsoll_plan::unbudgeted(&mut searcher, request(4, None)).unwrap();
        let asked = Request { budget: ArenaBytes(unbudgeted.arena_bytes.0 / 2), ..request(4, None) };
        let choice = searcher.search(asked).unwrap();
        lines.add(&format!("{name}: chosen"), &planned(&choice, asked.budget));
        let budgets =
            plimsoll_plan::spread(ArenaBytes(unbudgeted.arena_bytes.0 / 6), unbudgeted.arena_bytes, 8);
        let chosen = plimsoll_plan::Point::of(&choice);
        let curve = plimsoll_plan::curve(&mut searcher, asked, &budgets).unwrap();
        let faster = plimsoll_plan::faster(&mut searcher, asked, chosen, unbudgeted).unwrap();
        for (kind, points) in [("curve", curve), ("faster", faster)] {
            for point in points {
                let bound = point.lower_bound_seconds.map_or(0, f64::to_bits);
                let (bytes, bits) = (point.arena_bytes.0, point.step_seconds.to_bits());
                let text = format!("{bytes} bytes {bits:016x} bound {bound:016x} of {}", point.micro_batch);
                lines.add(&format!("{name}: {kind}"), &text);
            }
        }
        for row in plimsoll_plan::compare(&mut searcher, asked, &choice).unwrap() {
            let (bytes, bits) = (row.arena_bytes.0, row.step_seconds.to_bits());
            lines.add(&format!("{name}: {}", row.name), &format!("{} {bytes} {bits:016x}", row.micro_batch));
        }
        let fits: Vec<bool> = (10..20)
            .map(|part| {
                let budget = unbudgeted.arena_bytes.0 * part / 40;
                searcher.fits(Request { budget: ArenaBytes(budget), ..asked }).unwrap()
            })
            .collect();
        lines.add(&format!("{name}: fits"), &format!("{fits:?}"));
    }
    lines.compare("curves");
}

fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// The numbers of a line of losses.
fn numbers_of(line: &str) -> Vec<f32> {
    let (_, bits) = line.split_once(": ").unwrap();
    bits.split(' ').map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).unwrap())).collect()
}

#[test]
fn losses_of_seeded_runs_are_those_of_the_table() {
    const STEPS: usize = 4;
    let mut lines = Lines::default();
    let size = Size { vocab: 128, seq: 32, width: 32, layers: 3, ffn: 80, dropout: 0.1 };
    let mut losses: Vec<f32> = Vec::new();
    for (name, architecture) in families(size) {
        let mut run = start(&architecture, size.seq, &options(4, 2, Strategy::Full, 1));
        for step in 0..STEPS {
            let batch = Batch::synthetic(4, size.seq, size.vocab, name == "bert", step);
            let (parts, norm) = batch.step(&mut run, 1e-2);
            losses.extend(&parts);
            let bits: Vec<String> =
                parts.iter().chain([&norm]).map(|x| format!("{:08x}", x.to_bits())).collect();
            lines.add(&format!("{name}, step {step}"), &bits.join(" "));
        }
    }
    assert!(losses.iter().all(|loss| loss.is_finite()));
    if has_avx512() {
        lines.compare("losses");
    } else {
        let table = include_str!("snapshot/losses.txt");
        let numbers = |text: &str| -> Vec<f32> { text.lines().flat_map(numbers_of).collect() };
        let (known, found) = (numbers(table), numbers(&lines.0));
        assert_eq!(known.len(), found.len());
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs();
        assert!(known.iter().zip(&found).all(near), "{known:?} and {found:?}");
    }
}
