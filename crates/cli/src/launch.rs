//! Launchers: `mpirun`, `mpiexec`, `srun` and `torchrun` start several processes of one run, each with its number in the
//! environment.
//!
//! `train` is then one rank of several. All other commands work in the first process alone, and the rest end at once: they
//! would write the same files and print the same lines.
//!
//! Ranks find each other by MPI where the program was built with it, else at the address that `torchrun` and scripts for Slurm
//! state for PyTorch too, `MASTER_ADDR` and `MASTER_PORT`. Without either the program refuses to train: its processes would know
//! nothing of each other, and each would train a model of its own into the same folder.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll::TrainError;
use plimsoll::training::{Communicator, Meeting, ProcessPlace, RawConfig, tcp_rank};

use crate::environment::variable;
use crate::exit::Failure;

/// Time for another process to print an error and end.
const TIME_TO_PRINT: Duration = Duration::from_secs(10);

/// A launcher and the variables it sets.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    /// The number among the processes of this machine.
    rank_here: &'static str,
    /// How many processes this machine has. Slurm lists all machines: `2(x3),1`.
    here: &'static str,
    /// Whether the launcher starts processes of MPI.
    mpi: bool,
}

/// How the processes of a run find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Mpi,
    /// The processes meet at the stated address.
    Address,
    /// The processes cannot find each other: no address is stated, and MPI is not used.
    None,
}

/// Where PyTorch's ranks meet, too.
const ADDRESS: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
/// The name that `torchrun` gives a run.
const RUN: &str = "TORCHELASTIC_RUN_ID";
/// Set where `torchrun` keeps a store of its own at the stated port.
const STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// The GPUs that a process may use, as CUDA reads it.
const GPUS: &str = "CUDA_VISIBLE_DEVICES";
/// How long processes wait for each other: rank 0 tokenises and plans before it comes.
const PATIENCE: Duration = Duration::from_hours(1);

/// The variables in which each launcher tells a process its rank. In a batch script Slurm already describes the
/// tasks, though none has started; only `srun` sets the variable of a step.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        rank_here: "OMPI_COMM_WORLD_LOCAL_RANK",
        here: "OMPI_COMM_WORLD_LOCAL_SIZE",
        mpi: true,
    },
    Launcher {
        name: "mpiexec",
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        rank_here: "MPI_LOCALRANKID",
        here: "MPI_LOCALNRANKS",
        mpi: true,
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        ranks: "SLURM_STEP_NUM_TASKS",
        rank_here: "SLURM_LOCALID",
        here: "SLURM_STEP_TASKS_PER_NODE",
        mpi: true,
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        ranks: "WORLD_SIZE",
        rank_here: "LOCAL_RANK",
        here: "LOCAL_WORLD_SIZE",
        mpi: false,
    },
];

/// This process among those that a launcher has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The launcher, as people type it.
    name: &'static str,
    /// The variable with the number of processes.
    variable: &'static str,
    way: Way,
    /// The number of this process.
    pub(crate) rank: usize,
    /// The number of processes, at least two.
    pub(crate) ranks: usize,
    /// The number of processes on this machine.
    pub(crate) here: usize,
    /// The number of this process among those of its machine, where the launcher tells it.
    rank_here: Option<usize>,
    /// Whether this process is the first of its machine.
    pub(crate) first_here: bool,
}

/// This process among several; `None` if it was started alone.
pub(crate) fn launch() -> Option<Launch> {
    launched(variable)
}

fn launched(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    let of = |launcher: &Launcher| {
        let (rank, ranks) = (number(launcher.rank)?, number(launcher.ranks)?);
        let rank_here = number(launcher.rank_here);
        let here = variable(launcher.here).and_then(|text| leading_number(&text));
        // `RANK` and `WORLD_SIZE` are common words; `torchrun` sets all three.
        let known = launcher.mpi || rank_here.is_some();
        let address = variable(ADDRESS).is_some() && number(PORT).is_some();
        let way = match (launcher.mpi && cfg!(feature = "mpi"), address) {
            (true, _) => Way::Mpi,
            (false, true) => Way::Address,
            (false, false) => Way::None,
        };
        (known && ranks > 1 && rank < ranks).then_some(Launch {
            name: launcher.name,
            variable: launcher.ranks,
            way,
            rank,
            ranks,
            here: here.unwrap_or(ranks).clamp(1, ranks),
            rank_here,
            first_here: rank_here.map_or(rank == 0, |here| here == 0),
        })
    };
    LAUNCHERS.iter().find_map(of)
}

/// The number that a text begins with.
fn leading_number(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Whether ranks have found that rank 0 does not come or is gone.
fn is_about_rank_0(failure: &Failure) -> bool {
    failure.to_string().contains("rank 0 has ")
}

impl Launch {
    /// Takes the number of ranks from the launcher.
    pub(crate) fn settle(&self, raw: &mut RawConfig) -> Result<(), TrainError> {
        let Launch { name, ranks, .. } = self;
        if let Some(stated) = raw.ranks.filter(|stated| stated != ranks) {
            return Err(TrainError::Config(format!(
                "--ranks {stated} are threads of one process, and {name} started {ranks} processes; leave --ranks out"
            )));
        }
        raw.ranks = Some(*ranks);
        Ok(())
    }

    /// The place of this process among those of its machine.
    pub(crate) fn place(&self) -> ProcessPlace {
        self.place_among(variable)
    }

    fn place_among(&self, variable: impl Fn(&str) -> Option<String>) -> ProcessPlace {
        // Slurm may show each process its own GPU alone.
        let shown = variable(GPUS).unwrap_or_default();
        let rank_here = match shown.split(',').filter(|name| !name.trim().is_empty()).count() {
            1 => 0,
            // Without a number from the launcher, machines are taken to have equally many processes in the order of ranks.
            _ => self.rank_here.unwrap_or(self.rank % self.here),
        };
        ProcessPlace { here: self.here, rank_here }
    }

    /// Finds the other processes, once all have come so far. From here on this process must not start itself anew.
    pub(crate) fn begin(&self, limit: Duration) -> Result<Arc<dyn Communicator>, Failure> {
        if self.way == Way::Address {
            return Ok(tcp_rank(self.meeting(variable)?, limit)?);
        }
        let world = self.begin_mpi(limit)?;
        let (name, ranks, found) = (self.name, self.ranks, world.ranks());
        if found == ranks {
            return Ok(world);
        }
        world.part();
        Err(Failure::Other(format!(
            "{name} started {ranks} processes, and MPI found {found}: the launcher and the library that plimsoll was built \
             with belong to different installations of MPI"
        )))
    }

    /// Where the processes meet, as the launcher's variables say.
    fn meeting(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Meeting, TrainError> {
        let port = variable(PORT).and_then(|port| port.trim().parse::<u16>().ok());
        let stored = variable(STORE).is_some_and(|set| set == "True");
        let (Some(address), Some(port)) = (variable(ADDRESS), port) else {
            return Err(TrainError::Config(format!(
                "{ADDRESS} and {PORT} must name the machine of rank 0 and a port below 65536 there"
            )));
        };
        Ok(Meeting {
            rank: self.rank,
            ranks: self.ranks,
            arenas_ahead: if self.first_here { self.here } else { 1 },
            address: address.trim().to_owned(),
            port: port.saturating_add(u16::from(stored)),
            run: variable(RUN).unwrap_or_default(),
            patience: PATIENCE,
        })
    }

    #[cfg(feature = "mpi")]
    #[allow(clippy::unused_self, reason = "its twin names the launcher")]
    fn begin_mpi(&self, limit: Duration) -> Result<Arc<dyn Communicator>, Failure> {
        Ok(plimsoll::training::mpi_rank(limit)?)
    }

    #[cfg(not(feature = "mpi"))]
    fn begin_mpi(&self, _: Duration) -> Result<Arc<dyn Communicator>, Failure> {
        Err(self.apart())
    }

    /// The failure of this process, if it is the one to print it. Rank 0 prints all errors, except that it hangs or
    /// is gone itself: rank 1 prints that. The other ranks wait before they end, because launchers end all processes
    /// as soon as one ends with an error.
    pub(crate) fn reported(&self, failure: Failure) -> Failure {
        if self.rank == usize::from(is_about_rank_0(&failure)) {
            return failure;
        }
        thread::sleep(TIME_TO_PRINT);
        Failure::Elsewhere
    }

    /// Refuses to train where the processes cannot find each other.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.way == Way::None { Err(self.apart()) } else { Ok(()) }
    }

    /// The failure of processes that have no way to find each other.
    fn apart(&self) -> Failure {
        let Launch { name, variable, ranks, .. } = self;
        TrainError::Config(format!(
            "{name} started {ranks} processes ({variable}={ranks}), which cannot find each other: set {ADDRESS} and {PORT} to the \
             machine of rank 0 and a free port there, or build with `cargo build --release --features mpi` for MPI, or start one \
             process with `--ranks {ranks}`, whose ranks are threads"
        ))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Launch> {
        launched(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_launcher_tells_a_process_its_number() {
        let mpirun = of(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ])
        .unwrap();
        assert_eq!((mpirun.name, mpirun.rank, mpirun.ranks), ("mpirun", 3, 4));
        assert_eq!((mpirun.here, mpirun.first_here), (2, false));
        let mpiexec = of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!((mpiexec.name, mpiexec.rank, mpiexec.first_here), ("mpiexec", 0, true));
        let srun = of(&[
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "7"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "3(x2),1"),
        ])
        .unwrap();
        assert_eq!((srun.name, srun.rank, srun.here, srun.first_here), ("srun", 3, 3, true));
        let torchrun = of(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")]).unwrap();
        assert_eq!((torchrun.name, torchrun.way), ("torchrun", Way::None));
        let gpu = |launch: &Launch, shown: &str| {
            launch.place_among(|name| Some(shown.to_owned()).filter(|_| name == GPUS)).rank_here
        };
        assert_eq!((gpu(&mpirun, "0,1,2,3"), gpu(&mpiexec, ""), gpu(&torchrun, "")), (1, 0, 1));
        assert_eq!(gpu(&mpirun, "2"), 0, "each process sees its own GPU alone");
    }

    #[test]
    fn processes_meet_at_the_address_that_pytorch_uses_and_beside_the_store_of_the_launcher() {
        let mut variables = vec![
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node-1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "17"),
        ];
        let launch = of(&variables).unwrap();
        assert_eq!(launch.way, Way::Address);
        let meeting = |variables: &[(&str, &str)]| {
            let of = |name: &str| variables.iter().find(|(known, _)| *known == name);
            launch.meeting(|name| of(name).map(|(_, value)| (*value).to_owned()))
        };
        let met = meeting(&variables).unwrap();
        assert_eq!((met.address.as_str(), met.port, met.run.as_str()), ("node-1", 29500, "17"));
        assert_eq!((met.rank, met.ranks, met.arenas_ahead), (2, 4, 2), "the first of the second machine");
        variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
        assert_eq!(meeting(&variables).unwrap().port, 29501);
        assert!(meeting(&variables[..4]).unwrap_err().with_flags().contains("MASTER_PORT"));
    }

    #[test]
    fn the_launcher_decides_how_many_ranks_there_are() {
        let launch = of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        let mut raw = RawConfig::default();
        launch.settle(&mut raw).unwrap();
        assert_eq!(raw.ranks, Some(2));
        let refused = launch.settle(&mut RawConfig { ranks: Some(3), ..raw }).unwrap_err().with_flags();
        assert_eq!(
            refused,
            "--ranks 3 are threads of one process, and mpiexec started 2 processes; leave --ranks out"
        );
    }

    #[test]
    fn an_error_that_rank_0_cannot_print_is_printed_by_rank_1() {
        let about = |text: &str| is_about_rank_0(&Failure::Other(text.into()));
        assert!(about("rank 0 has given no sign of life for 60 s"));
        assert!(about("rank 0 has not come to all_reduce of 8 f32 within 600 s"));
        assert!(!about("rank 0 ended: the disk is full"));
        assert!(!about("rank 2 has given no sign of life for 60 s"));
    }

    #[test]
    fn a_process_alone_is_no_rank() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), None);
        // The script of a batch job, before `srun`.
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), None);
        // Words that other programs use too.
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "2")]), None);
        assert_eq!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]), None);
        assert_eq!(of(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]), None);
    }
}
