//! Settings of a quantised frozen base, by their names in transformers, and the same settings written out again.
//!
//! Unless the settings say otherwise, scales of 4-bit codes are kept in eight bits, as published (Dettmers et al. 2023);
//! transformers keeps them as f32.

use plimsoll_graph::op::Quantised;
use plimsoll_model::lora::AdapterKind;

use super::bounds::mistake;
use super::{LanguageModel, Origin};
use crate::error::TrainError;
use crate::files::QuantisedBase;
use crate::settings::RawConfig;

/// The weights that are kept in few bits, if any are.
pub(super) fn base(
    raw: &RawConfig,
    origin: &Origin,
    model: &LanguageModel,
) -> Result<Option<QuantisedBase>, TrainError> {
    let stored = match origin {
        Origin::Pretrained(folder) => folder.configuration.quantised,
        Origin::Scratch => None,
    };
    let asked = asked(raw, stored)?;
    let Some(form) = asked.or(stored) else { return refuse_alone(raw).map(|()| None) };
    let Some(lora) = &model.lora else {
        let frozen = frozen(asked, origin);
        return Err(mistake(format!(
            "{frozen}; add --lora-r, the rank of adapters that are trained over them"
        )));
    };
    if let AdapterKind::Intrinsic(_) = lora.kind {
        return Err(mistake(format!(
            "{}, and a subspace moves them; give --lora-r in place of --intrinsic-dimension",
            frozen(asked, origin)
        )));
    }
    let forward = model.architecture.training(1, 1)?;
    let skipped = raw.llm_int8_skip_modules.clone().unwrap_or_default();
    match origin {
        Origin::Pretrained(folder) => {
            folder.quantised_base(asked, &forward, skipped, |name| lora.saves(name))
        }
        Origin::Scratch => {
            QuantisedBase::new(form, &forward, skipped, |name| lora.saves(name)).map(Some).map_err(mistake)
        }
    }
}

/// The form that the settings ask for. Without a setting for scales, the folder's own form of scales is taken.
fn asked(raw: &RawConfig, stored: Option<Quantised>) -> Result<Option<Quantised>, TrainError> {
    let (four, eight) = (raw.load_in_4bit == Some(true), raw.load_in_8bit == Some(true));
    if four && eight {
        return Err(mistake("give either --load-in-4bit or --load-in-8bit, not both"));
    }
    if eight {
        return Ok(Some(Quantised::Int8));
    }
    if !four {
        return Ok(None);
    }
    match raw.bnb_4bit_quant_type.as_deref() {
        None | Some("nf4") => {}
        Some(other) => {
            return Err(mistake(format!("--bnb-4bit-quant-type must be nf4, got `{other}`")));
        }
    }
    Ok(Some(match (raw.bnb_4bit_use_double_quant, stored) {
        (None, Some(Quantised::Nf4)) | (Some(false), _) => Quantised::Nf4,
        _ => Quantised::Nf4Double,
    }))
}

/// Refuses settings of a quantised base where there is none.
fn refuse_alone(raw: &RawConfig) -> Result<(), TrainError> {
    let given = [
        ("--bnb-4bit-quant-type", raw.bnb_4bit_quant_type.is_some()),
        ("--bnb-4bit-use-double-quant", raw.bnb_4bit_use_double_quant.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(mistake(format!("{flag} needs --load-in-4bit"))),
        None if raw.llm_int8_skip_modules.is_some() => {
            Err(mistake("--llm-int8-skip-modules needs --load-in-4bit or --load-in-8bit"))
        }
        None => Ok(()),
    }
}

/// Why weights that are kept in few bits cannot be trained.
fn frozen(asked: Option<Quantised>, origin: &Origin) -> String {
    match (asked, origin) {
        (None, Origin::Pretrained(folder)) => {
            format!("the weights in {} are quantised and cannot be trained", folder.folder.display())
        }
        (Some(Quantised::Int8), _) => "--load-in-8bit freezes the model's weights".to_owned(),
        _ => "--load-in-4bit freezes the model's weights".to_owned(),
    }
}

/// The settings that reproduce this base.
pub(super) fn effective(base: &QuantisedBase, raw: RawConfig) -> RawConfig {
    let four = base.form != Quantised::Int8;
    RawConfig {
        load_in_4bit: four.then_some(true),
        load_in_8bit: (!four).then_some(true),
        bnb_4bit_quant_type: four.then(|| "nf4".to_owned()),
        bnb_4bit_use_double_quant: four.then_some(base.form == Quantised::Nf4Double),
        llm_int8_skip_modules: Some(base.skipped.clone()).filter(|skipped| !skipped.is_empty()),
        ..raw
    }
}
