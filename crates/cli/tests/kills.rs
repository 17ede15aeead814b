//! A random rank is killed at a random time: all processes end, with one error that names the rank, and the same command
//! resumes from the last checkpoint and ends in the weights of an undisturbed run.
//!
//! Without the feature `mpi` ranks are threads, and the process that dies is all of them. With it they are processes of MPI.
//! Here the kills are few. `scripts/kills` asks for more through `PLIMSOLL_KILLS` and `PLIMSOLL_KILL_SEED`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{Home, awaited, mpirun, names, process_of_rank, texts, wait_until};

/// A run that saves often, so that many kills strike while a checkpoint is written.
const RUN: &str = "train --model model --data text.txt --seq-len 16 --global-batch 8 --micro-batch 1 --memory 128MiB \
                   --max-steps 48 --save-steps 3 --save-total-limit 2 --threads 1 --report-to none --max-grad-norm 0.25 \
                   --learning-rate 0.01 --output-dir out --resume latest";
/// Whether ranks are processes.
const PROCESSES: bool = cfg!(feature = "mpi");
/// The number of ranks and the stage of `ZeRO` in each case.
const WORLDS: [[usize; 2]; 6] = [[4, 3], [2, 1], [4, 2], [2, 0], [2, 3], [4, 1]];

/// Numbers that follow from a seed (`splitmix64`).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number from 0 to below 1.
    fn part(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// An undisturbed run: its weights, and its time.
struct Undisturbed {
    weights: Vec<u8>,
    files: Vec<String>,
    taken: Duration,
}

fn command(home: &Home, [ranks, stage]: [usize; 2]) -> Command {
    let run = format!("{RUN} --zero-stage {stage}");
    if PROCESSES { mpirun(home, ranks, &run) } else { home.command(&format!("{run} --ranks {ranks}")) }
}

fn done(home: &Home, world: [usize; 2], what: &str) {
    let output = command(home, world).output().unwrap();
    assert!(output.status.success(), "{what}: {}", texts(&output).1);
}

/// Files of the last checkpoint.
fn files(home: &Home) -> Vec<String> {
    names(&home.path("out/checkpoint-48"))
}

fn undisturbed(world: [usize; 2]) -> Undisturbed {
    let (home, begin) = (Home::with_model(), Instant::now());
    done(&home, world, "undisturbed");
    let taken = begin.elapsed();
    Undisturbed { weights: home.read("out/model.safetensors"), files: files(&home), taken }
}

/// The process of a rank, once it has started; none if the run ended before.
fn process(home: &Home, child: &mut Child, rank: usize) -> Option<String> {
    awaited("a rank begins, or the run ends", || {
        let found = if PROCESSES { process_of_rank(home, rank) } else { Some(child.id().to_string()) };
        let ended = child.try_wait().unwrap().is_some();
        (found.is_some() || ended).then_some(found.filter(|_| !ended))
    })
}

/// Starts a run, kills one rank after a time, and waits for the end; none if the run ended before.
fn struck(home: &Home, world: [usize; 2], rank: usize, after: Duration) -> Option<Output> {
    let mut starting = command(home, world);
    let mut child = starting.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let process = process(home, &mut child, rank)?;
    sleep(after);
    if child.try_wait().unwrap().is_some() {
        return None;
    }
    let killed = Command::new("kill").args(["-KILL", &process]).status().unwrap().success();
    wait_until(&format!("rank {rank} is gone, and the run ends"), || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    (killed && !output.status.success()).then_some(output)
}

/// No process of the run is left, and the error names the rank once.
fn ended_in_words(home: &Home, [ranks, _]: [usize; 2], rank: usize, output: &Output) {
    let left = || (0..ranks).find_map(|rank| process_of_rank(home, rank));
    wait_until("the other ranks end", || left().is_none());
    let (_, said) = texts(output);
    let own: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(own.len() <= 1 && own.iter().all(|line| line.contains(&format!("rank {rank} "))), "{said}");
    // A killed process cannot report its end; the launcher does.
    assert!(!PROCESSES || said.contains(&format!("rank {rank} ")), "nobody names rank {rank}: {said}");
}

/// One kill, and the resumed run. Returns a description of the kill, or nothing if the run ended before it.
fn trial(world: [usize; 2], whole: &Undisturbed, random: &mut Random) -> Option<String> {
    let home = Home::with_model();
    let rank = random.draw() as usize % world[0];
    let after = whole.taken.mul_f64(random.part());
    let output = struck(&home, world, rank, after)?;
    ended_in_words(&home, world, rank, &output);
    let steps = home.path("out/metrics.jsonl").exists().then(|| home.losses("out").len());
    let last = names(&home.path("out")).into_iter();
    let last = last.filter_map(|name| name.strip_prefix("checkpoint-")?.parse::<u64>().ok());
    let [ranks, stage] = world;
    let what = format!(
        "{ranks} ranks, stage {stage}: rank {rank} killed after {:.2} s, {} steps recorded, last checkpoint {}",
        after.as_secs_f64(),
        steps.unwrap_or(0),
        last.max().map_or_else(|| "none".to_owned(), |step| step.to_string())
    );
    done(&home, world, &what);
    assert!(home.read("out/model.safetensors") == whole.weights, "weights differ: {what}");
    assert_eq!(files(&home), whole.files, "{what}");
    Some(what)
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn a_run_whose_rank_is_killed_at_a_random_time_goes_on_to_the_same_weights() {
    let (kills, seed) = (number("PLIMSOLL_KILLS", 2), number("PLIMSOLL_KILL_SEED", 7));
    println!("{kills} kills, seed {seed}, ranks are {}", if PROCESSES { "processes" } else { "threads" });
    let (mut random, mut whole) = (Random(seed), BTreeMap::new());
    for kill in 0..kills {
        let world = WORLDS[kill as usize % WORLDS.len()];
        let whole = whole.entry(world).or_insert_with(|| undisturbed(world));
        // Times vary, so that a run may end before its kill; another time is drawn then.
        let what = (0..20).find_map(|_| trial(world, whole, &mut random));
        println!("{:>3}  {}", kill + 1, what.expect("some run is struck"));
    }
}
