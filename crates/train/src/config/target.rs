//! The device that a run is planned for, and the settings that follow from it alone: the tiers for offload, and the
//! precision of a described device.

use std::path::PathBuf;

use plimsoll_devices::DeviceKind;
use plimsoll_plan::{DeviceSpec, Tier};

use super::bounds::mistake;
use crate::error::TrainError;
use crate::memory::Size;
use crate::planning::Offload;
use crate::settings::RawConfig;

/// The device that a run is planned for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This machine's processor.
    Cpu,
    /// A GPU of this machine, by its index.
    Gpu(usize),
    /// A device known by its data sheet only.
    Described {
        /// The device's figures.
        spec: DeviceSpec,
        /// Whether the user named only a kind of device, so that plimsoll chooses one.
        assumed: bool,
    },
}

impl Target {
    pub(super) fn from_name(name: Option<&str>) -> Result<Target, TrainError> {
        match name {
            None | Some("cpu") => Ok(Target::Cpu),
            Some(name) => {
                let index = name.strip_prefix("cuda:").and_then(|index| index.parse().ok());
                if let Some(index) = index.filter(|_| DeviceSpec::from_name(name).is_err()) {
                    return Ok(Target::Gpu(index));
                }
                let spec = DeviceSpec::from_name(name).map_err(mistake)?;
                Ok(Target::Described { spec, assumed: spec.name() != name })
            }
        }
    }

    /// The name of the target, as the user types it.
    pub fn name(&self) -> String {
        match self {
            Target::Cpu => "cpu".to_owned(),
            Target::Gpu(index) => DeviceKind::Cuda(*index).to_string(),
            Target::Described { spec, .. } => spec.name(),
        }
    }

    /// The device of this machine that is meant. A GPU of no particular kind is the first that is here, or for a rank the one
    /// with its number among the ranks of this machine.
    ///
    /// # Errors
    ///
    /// When the target is only described.
    pub fn here(&self, rank_here: usize) -> Result<DeviceKind, TrainError> {
        match self {
            Target::Cpu => Ok(DeviceKind::Cpu),
            Target::Gpu(index) => Ok(DeviceKind::Cuda(*index)),
            Target::Described { assumed: true, .. } => Ok(DeviceKind::Cuda(rank_here)),
            Target::Described { spec, .. } => Err(mistake(format!(
                "{} is a description to plan for; to train on a GPU of this machine write --device cuda or cuda:0, and \
                 to train on the CPU leave --device out",
                spec.name()
            ))),
        }
    }
}

/// The tier that values may be offloaded to, if the target has one. Stating a budget for a tier selects it.
pub(super) fn offload(raw: &RawConfig, target: &Target) -> Result<Option<Offload>, TrainError> {
    let Some(tier) = offered_tier(raw)? else {
        return match raw.offload_folder {
            Some(_) => Err(mistake("--offload-folder needs --offload disk or --disk-space")),
            None => Ok(None),
        };
    };
    suits(tier, target)?;
    let (stated, other) = match tier {
        Tier::Disk => {
            (&raw.disk_space, raw.host_memory.as_ref().map(|_| "--host-memory is for --offload host"))
        }
        Tier::Host => {
            (&raw.host_memory, raw.disk_space.as_ref().map(|_| "--disk-space is for --offload disk"))
        }
    };
    if let Some(why) = other {
        return Err(mistake(format!("{why}; leave it out: values wait in one place")));
    }
    let budget = stated.as_deref().map(str::parse::<Size>).transpose().map_err(mistake)?;
    let folder = raw.offload_folder.clone().unwrap_or_else(|| PathBuf::from("."));
    Ok(Some(Offload { tier, folder, budget: budget.map(|size| size.bytes), link: None }))
}

/// The tier that `--offload` names, or else the one for which a budget is stated.
fn offered_tier(raw: &RawConfig) -> Result<Option<Tier>, TrainError> {
    Ok(match raw.offload.as_deref() {
        Some("disk") => Some(Tier::Disk),
        Some("host") => Some(Tier::Host),
        Some(other) => {
            return Err(mistake(format!("unknown tier `{other}` for --offload; choose disk or host")));
        }
        None if raw.host_memory.is_some() => Some(Tier::Host),
        None => raw.disk_space.as_ref().map(|_| Tier::Disk),
    })
}

/// Refuses a place that the target does not have.
fn suits(tier: Tier, target: &Target) -> Result<(), TrainError> {
    match (tier, target) {
        (Tier::Disk, Target::Cpu) | (Tier::Host, Target::Described { .. }) => Ok(()),
        (_, Target::Gpu(_)) => Err(mistake(
            "a GPU offloads nothing yet; leave --offload, --host-memory and --disk-space out, or state a larger --memory",
        )),
        (Tier::Host, Target::Cpu) => Err(mistake(
            "on the CPU the host's memory is what --memory limits; use --offload disk and --disk-space",
        )),
        (Tier::Disk, Target::Described { assumed: true, .. }) => Err(mistake(
            "a GPU has no disk to offload to: to plan for one with memory of the host, use --offload host; to train on \
             one, leave --offload and --disk-space out",
        )),
        (Tier::Disk, Target::Described { spec, .. }) => {
            let name = spec.name();
            Err(mistake(format!(
                "{name} offloads to memory of the host; use --offload host and --host-memory"
            )))
        }
    }
}

/// The settings with the precision assumed for a described device: bf16 unless another is stated. `cuda` may be a GPU
/// of this machine, which computes in the precision that the settings state.
pub(super) fn in_precision_of(raw: RawConfig, target: &Target) -> RawConfig {
    let described = matches!(target, Target::Described { assumed: false, .. });
    RawConfig { bf16: raw.bf16.or(described.then_some(true)), ..raw }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Precision;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_described_device_is_planned_for_and_not_trained_on() {
        let target = |name: &str| Target::from_name(Some(name));
        assert_eq!(target("cpu").unwrap(), Target::Cpu);
        let Target::Described { spec, assumed } = target("cuda").unwrap() else { panic!("described") };
        assert_eq!((spec.name().as_str(), assumed), ("cuda:h100", true));
        let h200 = target("cuda:h200").unwrap();
        assert!(matches!(h200, Target::Described { assumed: false, .. }));
        let error = h200.here(0).unwrap_err().to_string();
        assert!(error.starts_with("cuda:h200 is a description to plan for"), "{error}");
        assert_eq!(target("cuda:1").unwrap(), Target::Gpu(1));
        assert!(
            matches!(target("cuda:4090").unwrap(), Target::Described { .. }),
            "a kind of GPU, and no index"
        );
        let here = |name: &str, rank| target(name).unwrap().here(rank).unwrap();
        assert_eq!((here("cuda", 0), here("cuda:1", 0)), (DeviceKind::Cuda(0), DeviceKind::Cuda(1)));
        assert_eq!((here("cuda", 3), here("cuda:1", 3)), (DeviceKind::Cuda(3), DeviceKind::Cuda(1)));
    }

    #[test]
    fn offload_goes_where_the_target_has_room_for_it() {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let offload = |tier: &str, device: &str, [host_memory, disk_space]: [&str; 2]| {
            let raw = RawConfig {
                offload: text(tier),
                host_memory: text(host_memory),
                disk_space: text(disk_space),
                device: text(device),
                ..RawConfig::default()
            };
            Config::check(&raw).map(|config| config.options.offload).map_err(|error| error.to_string())
        };
        let tier = |offload: Option<Offload>| offload.map(|offload| (offload.tier, offload.budget));
        let (disk, host) = (["", "2GiB"], ["2GiB", ""]);
        for (name, device, budgets, expected) in [
            ("", "", ["", ""], None),
            ("disk", "", ["", ""], Some((Tier::Disk, None))),
            ("disk", "", disk, Some((Tier::Disk, Some(2 << 30)))),
            ("", "", disk, Some((Tier::Disk, Some(2 << 30)))),
            ("host", "cuda:h200", host, Some((Tier::Host, Some(2 << 30)))),
            ("", "cuda:h200", host, Some((Tier::Host, Some(2 << 30)))),
        ] {
            assert_eq!(tier(offload(name, device, budgets).unwrap()), expected, "{name} {device}");
        }
        for (name, device, budgets, expected) in [
            (
                "host",
                "",
                ["", ""],
                "on the CPU the host's memory is what memory limits; use offload disk and disk_space",
            ),
            (
                "",
                "",
                host,
                "on the CPU the host's memory is what memory limits; use offload disk and disk_space",
            ),
            ("disk", "", host, "host_memory is for offload host; leave it out: values wait in one place"),
            (
                "host",
                "cuda:h200",
                disk,
                "disk_space is for offload disk; leave it out: values wait in one place",
            ),
            (
                "disk",
                "cuda:l4",
                ["", ""],
                "cuda:l4 offloads to memory of the host; use offload host and host_memory",
            ),
            (
                "disk",
                "cuda",
                ["", ""],
                "a GPU has no disk to offload to: to plan for one with memory of the host, use offload host; to train on \
                 one, leave offload and disk_space out",
            ),
            ("tape", "", ["", ""], "unknown tier `tape` for offload; choose disk or host"),
        ] {
            assert_eq!(offload(name, device, budgets).unwrap_err(), expected);
        }
        let raw = RawConfig { offload_folder: Some("here".into()), ..RawConfig::default() };
        let error = Config::check(&raw).unwrap_err().to_string();
        assert_eq!(error, "offload_folder needs offload disk or disk_space");
    }

    #[test]
    fn a_described_device_is_priced_in_bf16_unless_another_precision_is_stated() {
        let precision = |device: &str, bf16| {
            let raw = RawConfig { device: Some(device.into()), bf16, ..RawConfig::default() };
            Config::check(&raw).unwrap().options.precision
        };
        assert_eq!(precision("cuda:h200", None), Precision::Bf16);
        assert_eq!(precision("cuda:h200", Some(false)), Precision::F32);
        // This may be a GPU of this machine, so the plan must describe its real run.
        assert_eq!((precision("cuda", None), precision("cpu", None)), (Precision::F32, Precision::F32));
    }
}
