//! The table against trying everything, on thousands of small chains.
//!
//! Two judges that know nothing of the recurrence. The first lists all persistent plans (a tree: each layer by an
//! option, or several layers dropped together and treated again inside) and runs each on a machine that counts bytes
//! step by step; the table must find the best of them. The second searches all schedules, persistent or not (forward
//! passes in any order, any number of times, values dropped at any time); the table must never be better.

#![allow(clippy::float_cmp, reason = "times are small whole numbers")]

use std::collections::BTreeMap;

use crate::optimum::chain::options::{LayerOption, Options};
use crate::optimum::chain::table::{Decision, Family, Table, Turn};

/// A chain with small whole numbers for sizes and times.
#[derive(Debug)]
struct Instance {
    layers: usize,
    options: Options,
    turn_peak: u64,
    turn_seconds: f64,
}

/// A stream of small numbers (a linear congruence: the tests need variety, not quality).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

impl Instance {
    /// Layers that make up to `most_pinned − 1` bytes once.
    fn random(seed: u64, most_layers: u64, most_options: u64, most_pinned: u64) -> Instance {
        let mut numbers = Numbers(seed);
        numbers.below(2);
        let pinned = numbers.below(most_pinned);
        let boundary = 1 + numbers.below(4);
        let forward = 1 + numbers.below(8);
        let count = 1 + numbers.below(most_options);
        let (mut kept, mut again) = (boundary + pinned, forward);
        let list = (0..count).map(|index| {
            if index > 0 {
                kept += numbers.below(5);
                again = again.saturating_sub(numbers.below(4));
            }
            let forward_peak = kept + numbers.below(6);
            LayerOption {
                keep: Vec::new(),
                kept_bytes: kept,
                forward_peak,
                again_peak: forward_peak - numbers.below(pinned + 1),
                backward_peak: kept + numbers.below(8),
                backward_seconds: (again + 2 * forward) as f64,
                on_passage: index == 0 || pinned == 0 || numbers.below(2) == 0,
            }
        });
        Instance {
            options: Options {
                list: list.collect(),
                forward_seconds: forward as f64,
                passage_seconds: forward.saturating_sub(pinned / 2) as f64,
                pinned_bytes: pinned,
                boundary_bytes: boundary,
                frontiers: [Vec::new(), Vec::new()],
            },
            layers: 1 + numbers.below(most_layers) as usize,
            turn_peak: numbers.below(10),
            turn_seconds: 1.0,
        }
    }

    fn most(&self) -> u64 {
        let largest = |o: &LayerOption| o.kept_bytes + o.backward_peak + o.forward_peak;
        let each = self.options.list.iter().map(largest).max().unwrap_or(0);
        self.layers as u64 * each + self.turn_peak
    }

    fn table(&self) -> Table {
        let (most, slots) = (self.most(), 100_000);
        let turn = Turn { peak: self.turn_peak, seconds: self.turn_seconds };
        Table::fill(&self.options, self.layers, turn, most, slots, u64::MAX)
    }
}

/// A persistent plan.
#[derive(Clone, Debug)]
enum Part {
    Layer(usize),
    Dropped(Vec<Part>),
}

fn length(parts: &[Part]) -> usize {
    let one = |part: &Part| match part {
        Part::Layer(_) => 1,
        Part::Dropped(inside) => length(inside),
    };
    parts.iter().map(one).sum()
}

/// All plans of `layers` layers; inside a dropped segment the last layer is recomputed without a forward pass of its
/// own.
fn all_plans(layers: usize, options: &[LayerOption], inside: bool) -> Vec<Vec<Part>> {
    if inside && layers == 1 {
        return vec![vec![Part::Layer(0)]];
    }
    if layers == 0 {
        return vec![Vec::new()];
    }
    let mut plans = Vec::new();
    for rest in all_plans(layers - 1, options, inside) {
        let with = |option| [vec![Part::Layer(option)], rest.clone()].concat();
        let offered = |&option: &usize| !inside || options[option].on_passage;
        plans.extend((0..options.len()).filter(offered).map(with));
    }
    for dropped in 2..=layers - usize::from(inside) {
        for rest in all_plans(layers - dropped, options, inside) {
            for segment in all_plans(dropped, options, true) {
                plans.push([vec![Part::Dropped(segment)], rest.clone()].concat());
            }
        }
    }
    plans
}

/// Runs a plan, counting bytes and seconds.
struct Machine<'a> {
    instance: &'a Instance,
    live: u64,
    peak: u64,
    seconds: f64,
}

impl Machine<'_> {
    fn run(instance: &Instance, plan: &[Part]) -> (u64, f64) {
        let mut machine = Machine { instance, live: 0, peak: 0, seconds: 0.0 };
        for part in plan {
            machine.forward(part);
        }
        machine.touch(instance.turn_peak);
        machine.seconds += instance.turn_seconds;
        for part in plan.iter().rev() {
            machine.backward(part);
        }
        assert_eq!(machine.live, 0, "what was kept was given back");
        (machine.peak, machine.seconds)
    }

    fn touch(&mut self, bytes: u64) {
        self.peak = self.peak.max(self.live + bytes);
    }

    /// The first forward pass: pinned values stay from here on.
    fn forward(&mut self, part: &Part) {
        let options = &self.instance.options;
        match part {
            Part::Layer(option) => {
                self.seconds += options.forward_seconds;
                self.touch(options.list[*option].forward_peak);
                self.live += options.list[*option].kept_bytes;
            }
            Part::Dropped(inside) => {
                let mut input = 0;
                for _ in 0..length(inside) {
                    self.seconds += options.forward_seconds;
                    self.live += input;
                    self.touch(options.list[0].forward_peak);
                    self.live += options.pinned_bytes;
                    self.live -= input;
                    input = options.boundary_bytes;
                }
                self.live += options.boundary_bytes;
            }
        }
    }

    /// A forward pass inside a segment: pinned values already exist.
    fn forward_again(&mut self, part: &Part) {
        let options = &self.instance.options;
        match part {
            Part::Layer(option) => {
                self.seconds += options.passage_seconds;
                self.touch(options.list[*option].again_peak);
                self.live += options.list[*option].kept_bytes - options.pinned_bytes;
            }
            Part::Dropped(inside) => {
                let mut input = 0;
                for _ in 0..length(inside) {
                    self.seconds += options.passage_seconds;
                    self.live += input;
                    self.touch(options.list[0].again_peak);
                    self.live -= input;
                    input = options.boundary_bytes;
                }
                self.live += options.boundary_bytes;
            }
        }
    }

    /// The incoming gradient is part of each backward peak, and is alive beside each forward pass.
    fn backward(&mut self, part: &Part) {
        let options = &self.instance.options;
        match part {
            Part::Layer(option) => {
                self.live -= options.list[*option].kept_bytes;
                self.lazy(*option);
            }
            Part::Dropped(inside) => {
                self.live -= options.boundary_bytes;
                self.segment(inside);
            }
        }
    }

    fn segment(&mut self, inside: &[Part]) {
        let gradient = self.instance.options.boundary_bytes;
        let (last, before) = inside.split_last().unwrap();
        self.live += gradient;
        for part in before {
            self.forward_again(part);
        }
        self.live -= gradient;
        let Part::Layer(option) = last else { panic!("a segment ends with a layer") };
        self.live -= self.instance.options.pinned_bytes;
        self.lazy(*option);
        for part in before.iter().rev() {
            self.backward(part);
        }
    }

    fn lazy(&mut self, option: usize) {
        let option = &self.instance.options.list[option];
        self.touch(option.backward_peak);
        self.seconds += option.backward_seconds;
    }
}

/// The plan the table decides on.
fn decided(table: &Table, family: Family, mut length: usize, mut slot: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    while length > 0 {
        let (decision, fewest) = table.decision(family, length, slot).unwrap();
        match decision {
            Decision::Option(option) => {
                parts.push(Part::Layer(option));
                if length > 1 || family == Family::Turn {
                    slot = table.after_option(fewest, option);
                }
                length -= 1;
            }
            Decision::Drop(dropped) => {
                parts.push(Part::Dropped(decided(table, Family::Inner, dropped, fewest)));
                slot = table.after_dropped(fewest, dropped);
                length -= dropped;
            }
        }
    }
    parts
}

#[test]
fn the_table_is_the_best_persistent_plan_at_every_budget_also_where_layers_make_something_once() {
    for seed in 0..2000 {
        let instance = Instance::random(seed, 5, 3, 1 + seed % 4);
        let table = instance.table();
        let plans = all_plans(instance.layers, &instance.options.list, false);
        let costs: Vec<(u64, f64)> = plans.iter().map(|plan| Machine::run(&instance, plan)).collect();
        for bytes in 0..=instance.most() {
            let fitting = costs.iter().filter(|(peak, _)| *peak <= bytes).map(|&(_, seconds)| seconds);
            let best = fitting.fold(f64::INFINITY, f64::min);
            assert_eq!(table.seconds(bytes), best, "seed {seed}, {bytes} bytes: {instance:?}");
            if best.is_finite() {
                let plan = decided(&table, Family::Turn, instance.layers, table.slot(bytes));
                let (peak, seconds) = Machine::run(&instance, &plan);
                assert!(peak <= bytes, "seed {seed}, {bytes} bytes: {plan:?} takes {peak}");
                assert_eq!(seconds, best, "seed {seed}, {bytes} bytes: {plan:?}");
            }
        }
    }
}

/// The state of a schedule: for each layer whether its output is resident, and the option whose values are resident.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    output: Vec<bool>,
    kept: Vec<usize>,
    /// Layers whose backward pass is still to come.
    left: usize,
    turned: bool,
}

impl State {
    fn bytes(&self, instance: &Instance) -> u64 {
        let options = &instance.options;
        let outputs = self.output.iter().filter(|there| **there).count() as u64 * options.boundary_bytes;
        let kept = self.kept.iter().map(|&k| options.list[k].kept_bytes - options.boundary_bytes);
        outputs + kept.sum::<u64>()
    }

    /// States one step away, with the bytes and seconds of the step.
    fn steps(&self, instance: &Instance) -> Vec<(State, u64, f64)> {
        let options = &instance.options;
        let boundary = options.boundary_bytes;
        let bytes = self.bytes(instance);
        let mut found = Vec::new();
        for layer in 0..self.left {
            if self.output[layer] {
                let mut next = self.clone();
                next.output[layer] = false;
                found.push((next, bytes, 0.0));
            }
            if self.kept[layer] > 0 {
                let mut next = self.clone();
                next.kept[layer] = 0;
                found.push((next, bytes, 0.0));
            }
            let ready = layer == 0 || self.output[layer - 1];
            if ready && !self.output[layer] && self.kept[layer] == 0 {
                for (index, option) in options.list.iter().enumerate() {
                    let mut next = self.clone();
                    next.output[layer] = true;
                    next.kept[layer] = index;
                    let waiting = if self.turned { boundary } else { 0 };
                    found.push((next, bytes + waiting + option.forward_peak, options.forward_seconds));
                }
            }
        }
        if !self.turned && self.output[self.left - 1] {
            let next = State { turned: true, ..self.clone() };
            found.push((next, bytes + instance.turn_peak, instance.turn_seconds));
        }
        if self.turned && self.left > 0 {
            let layer = self.left - 1;
            let ready = layer == 0 || self.output[layer - 1];
            if ready && !self.output[layer] {
                let option = &options.list[self.kept[layer]];
                let others = bytes - (option.kept_bytes - boundary);
                let mut next = State { left: layer, ..self.clone() };
                next.kept[layer] = 0;
                found.push((next, others + option.backward_peak, option.backward_seconds));
            }
        }
        found
    }
}

/// Least time of any schedule in `bytes`: the shortest path through all states.
fn unrestricted(instance: &Instance, bytes: u64) -> f64 {
    let layers = instance.layers;
    let start = State { output: vec![false; layers], kept: vec![0; layers], left: layers, turned: false };
    // Times are whole numbers, so a map from time to states is the queue.
    let mut queue: BTreeMap<u64, Vec<State>> = BTreeMap::from([(0, vec![start])]);
    let mut done = std::collections::BTreeSet::new();
    while let Some((seconds, states)) = queue.pop_first() {
        let mut states = states;
        while let Some(state) = states.pop() {
            if state.turned && state.left == 0 {
                return seconds as f64;
            }
            if !done.insert(state.clone()) {
                continue;
            }
            for (next, peak, cost) in state.steps(instance) {
                if peak <= bytes && !done.contains(&next) {
                    if cost == 0.0 {
                        states.push(next);
                    } else {
                        queue.entry(seconds + cost as u64).or_default().push(next);
                    }
                }
            }
        }
    }
    f64::INFINITY
}

#[test]
fn no_plan_of_the_table_is_better_than_the_best_of_all_schedules() {
    let (mut equal, mut all) = (0, 0);
    for seed in 0..120 {
        let instance = Instance::random(seed, 4, 2, 1);
        let table = instance.table();
        for bytes in (0..=instance.most()).step_by(3) {
            let (ours, best) = (table.seconds(bytes), unrestricted(&instance, bytes));
            assert!(ours >= best, "seed {seed}, {bytes} bytes: {ours} s against {best} s: {instance:?}");
            if best.is_finite() {
                all += 1;
                equal += usize::from(ours == best);
            }
        }
    }
    println!("equal to the best of all schedules in {equal} of {all} cases");
    assert!(equal * 10 > all * 8, "{equal} of {all}");
}
