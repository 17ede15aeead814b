//! Ranks that offload: what waits on each rank's own disk changes no bit, no planned byte and no checkpoint.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use plimsoll_plan::{Action, ArenaBytes, Choice, Link, Request, Searcher, Tier, search, traffic};
use plimsoll_train::job::{Environment, Session};
use plimsoll_train::trainer::Event;
use plimsoll_train::{Config, Offload, Options, Planned, RawConfig, TrainError, program};

use super::stages::{kept, stage, unlimited};
use super::{STEPS, Trained, bits, folder, train, train_session};

/// A disk of a stated speed, so that the same plans are made on every machine.
const DISK: Link = Link {
    tier: Tier::Disk,
    room: 1 << 30,
    block: 4096,
    out_rate: 1e9,
    in_rate: 1e9,
    latency: 1e-4,
    toll: 0.0,
};

/// How much of the memory between the smallest plan and one that offloads nothing a run gets, in tenths.
#[derive(Clone, Copy, Debug)]
struct Tenths(u64);

/// The plan of a job in an arena that is too small without a disk.
fn small_plan(config: &Config, Tenths(tenths): Tenths) -> Choice {
    let offload = config.options.offload.clone().map(|offload| Offload { link: Some(DISK), ..offload });
    let options = Options { offload, ..config.options.clone() };
    let device = options.device().unwrap();
    let build = |rows: usize| program(&config.model, &*device, &options, rows);
    let request =
        |budget: u64| Request { budget: ArenaBytes(budget), ..options.request(&options.budget().unwrap()) };
    let least = Searcher::once(build).smallest(request(0)).unwrap().arena_bytes.0;
    let most = search(request(1 << 40), build).unwrap().plan.arena_bytes.0;
    search(request(least + (most - least) * tenths / 10), build).unwrap()
}

/// A session of ranks whose arenas are small.
fn begin(raw: &RawConfig, tenths: Tenths) -> Session {
    let config = Config::check(raw).unwrap();
    let choice = small_plan(&config, tenths);
    let mut job = config.open(&Environment::default()).unwrap();
    let Planned { budget, .. } = job.plan().unwrap();
    job.start(Planned { choice, budget }).unwrap()
}

/// The settings, with a disk in a folder of its own.
fn beside_a_disk(raw: RawConfig, folder: &Path) -> RawConfig {
    let disk = folder.join("disk");
    fs::create_dir_all(&disk).unwrap();
    RawConfig { offload: Some("disk".into()), offload_folder: Some(disk), ..raw }
}

/// Transfers that the schedules of a run start.
fn transfers(session: &Session) -> usize {
    let schedules = &session.summary().planned.choice.plan.schedules;
    let actions = schedules.values().flat_map(|schedule| &schedule.actions);
    actions.filter(|action| matches!(action, Action::Start { .. })).count()
}

fn same_run(one: &Trained, other: &Trained, about: &str) {
    assert_eq!(bits(&one.losses), bits(&other.losses), "{about}");
    assert_eq!(bits(&one.norms), bits(&other.norms), "{about}");
    let [one, other] = [one, other].map(|of| kept(of.session.trainer().run()));
    assert_eq!(one, other, "{about}");
}

#[test]
fn a_disk_for_each_rank_changes_no_bit_at_any_stage_and_the_peak_is_as_planned() {
    let folder = folder();
    for (name, ranks) in [("0", 2), ("1", 4), ("2", 2), ("3", 2), ("3", 4)] {
        let raw = stage(name, RawConfig { max_grad_norm: Some(0.25), ..unlimited(folder.path(), ranks) });
        let whole = train(&raw);
        for tenths in [Tenths(0), Tenths(4)] {
            let about = format!("stage {name}, {ranks} ranks, {tenths:?}");
            let offloaded = train_session(begin(&beside_a_disk(raw.clone(), folder.path()), tenths));
            assert!(transfers(&offloaded.session) > 0, "{about}");
            same_run(&whole, &offloaded, &about);
            let planned = offloaded.session.summary().planned.choice.plan.arena_bytes.0;
            let without = whole.session.summary().planned.choice.plan.arena_bytes.0;
            assert!(planned < without, "{about}: {planned} of {without}");
            assert_eq!(offloaded.end.ranks.len(), ranks, "{about}");
            assert!(offloaded.end.ranks.iter().all(|rank| rank.peak_bytes == planned), "{about}");
            // What waits on a disk costs nothing on the wire.
            let sent = offloaded.session.trainer().run().sent_bytes();
            let told = traffic(&offloaded.session.summary().planned.choice).unwrap();
            assert_eq!(told.ranks, ranks);
            assert!(
                told.exposed_seconds <= told.seconds * (1.0 + 1e-9),
                "waits for the disk are not counted here"
            );
            assert!(sent > 0 && (name > "1" || sent == STEPS * told.wire_bytes), "{about}");
        }
    }
}

/// Files without a name in a folder that this process has open, by their number.
fn open_files(folder: &Path) -> BTreeSet<u64> {
    let folder = folder.display().to_string();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mine = open.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.display().to_string().starts_with(&folder))
    });
    mine.filter_map(|entry| Some(fs::metadata(entry.path()).ok()?.ino())).collect()
}

#[test]
fn every_rank_has_a_disk_file_of_its_own_which_is_gone_at_the_end() {
    let folder = folder();
    let raw = beside_a_disk(stage("1", unlimited(folder.path(), 4)), folder.path());
    let disk = folder.path().join("disk");
    let mut session = begin(&raw, Tenths(0));
    session.train::<TrainError>(&mut []).unwrap();
    assert_eq!(open_files(&disk).len(), 4);
    drop(session);
    assert_eq!(open_files(&disk).len(), 0);
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
}

#[test]
fn a_checkpoint_of_ranks_that_offload_goes_on_with_or_without_a_disk_at_any_ranks_and_stage() {
    let folder = folder();
    let of = |ranks: usize, name: &str, out: &str| {
        let raw = RawConfig {
            global_batch: Some(12),
            output_dir: Some(folder.path().join(out)),
            report_to: Some(vec!["none".into()]),
            ..unlimited(folder.path(), ranks)
        };
        beside_a_disk(stage(name, raw), folder.path())
    };
    for saved_at in ["0", "3"] {
        let out = format!("begun-{saved_at}");
        let raw = of(4, saved_at, &out);
        let config = Config::check(&raw).unwrap();
        let choice = small_plan(&config, Tenths(0));
        let mut job = config.open(&Environment::default()).unwrap();
        let Planned { budget, .. } = job.plan().unwrap();
        let mut paused = job.pause_after(Some(3)).start(Planned { choice, budget }).unwrap();
        assert!(transfers(&paused) > 0);
        paused.train::<TrainError>(&mut []).unwrap();
        let saved = kept(paused.trainer().run());
        drop(paused);
        let checkpoint = folder.path().join(&out).join("checkpoint-3").display().to_string();
        let mut last = Vec::new();
        for (ranks, name, disk) in [(4, saved_at, true), (4, saved_at, false), (2, "3", true), (3, "1", true)]
        {
            let raw = RawConfig {
                resume: Some(checkpoint.clone()),
                ..of(ranks, name, &format!("{out}-{ranks}-{name}-{disk}"))
            };
            let about = format!("{ranks} ranks, stage {name}, disk {disk}");
            let session = if disk {
                begin(&raw, Tenths(2))
            } else {
                super::open(&RawConfig { offload: None, offload_folder: None, ..raw })
            };
            assert_eq!(kept(session.trainer().run()), saved, "{about}");
            let again = train_session(session);
            assert_eq!(again.losses.len() as u64, STEPS - 3, "{about}");
            last.push(kept(again.session.trainer().run()));
        }
        assert!(last[0] == last[1], "the disk changes no bit of a resumed run");
    }
}

#[test]
fn an_evaluation_of_ranks_that_offload_has_the_losses_of_ranks_that_do_not() {
    let folder = folder();
    let raw = stage(
        "3",
        RawConfig {
            eval_data: Some(vec![folder.path().join("text.txt").display().to_string()]),
            eval_steps: Some(4),
            ..unlimited(folder.path(), 2)
        },
    );
    let losses = |mut session: Session| {
        let mut losses = Vec::new();
        let mut listener = |event: &Event<'_>| -> Result<(), TrainError> {
            if let Event::Evaluation(record) = event {
                losses.push(record.eval_loss);
            }
            Ok(())
        };
        session.train::<TrainError>(&mut [&mut listener]).unwrap();
        losses
    };
    let whole = losses(super::open(&raw));
    let offloaded = losses(begin(&beside_a_disk(raw, folder.path()), Tenths(0)));
    assert_eq!((whole.len(), bits(&whole)), (3, bits(&offloaded)));
}

#[test]
fn ranks_of_one_machine_share_the_speed_and_the_room_of_its_disk() {
    let folder = folder();
    let link = |ranks: usize, change: fn(&mut RawConfig)| {
        let mut raw = beside_a_disk(unlimited(folder.path(), ranks), folder.path());
        change(&mut raw);
        let environment =
            Environment { caches: Some(folder.path().join("speeds")), ..Environment::default() };
        let mut job = Config::check(&raw).unwrap().open(&environment).unwrap();
        job.plan().unwrap().choice.program.train.facts.link.unwrap()
    };
    let stated = |raw: &mut RawConfig| (raw.offload, raw.disk_space) = (None, Some("64MiB".into()));
    let [one, four] = [1, 4].map(|ranks| link(ranks, stated));
    assert_eq!((one.room, four.room), (64 << 20, 64 << 20), "what is stated is for each rank");
    assert!(
        (one.out_rate / four.out_rate - 4.0).abs() < 1e-9 && (one.in_rate / four.in_rate - 4.0).abs() < 1e-9
    );
    assert!(link(4, |_| ()).room < link(1, |_| ()).room / 3, "room that is free is divided");
}
