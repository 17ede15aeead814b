//! Links between ranks that are not here, as people write them: `50GB/s`, `400Gb/s,5us`.
//!
//! Makers of networks count bits, and those of memory bytes. So a small `b` is a bit here, and where the case does not tell
//! one from the other, the rate is refused.

use plimsoll_plan::{RankLink, RankLinks};

use super::bounds::mistake;
use crate::error::TrainError;
use crate::memory::Size;
use crate::settings::RawConfig;

/// The links that the settings state, if they state any.
pub(super) fn rank_links(raw: &RawConfig) -> Result<Option<RankLinks>, TrainError> {
    let of = |flag: &str, text: &Option<String>| text.as_deref().map(|text| link(flag, text)).transpose();
    let [within, between] = [of("--rank-link", &raw.rank_link)?, of("--node-link", &raw.node_link)?];
    match (within, between, raw.ranks_per_node) {
        (_, _, Some(0)) => Err(mistake("--ranks-per-node must be at least 1")),
        (None, None, None) => Ok(None),
        (None, _, _) => {
            Err(mistake("--node-link and --ranks-per-node go with --rank-link, the link inside a node"))
        }
        (Some(within), None, None) => Ok(Some(RankLinks { within, between: None })),
        (Some(within), Some(between), Some(per_node)) => {
            Ok(Some(RankLinks { within, between: Some((between, per_node)) }))
        }
        (Some(_), _, _) => Err(mistake("--node-link and --ranks-per-node go together")),
    }
}

/// `RATE/s[,LATENCY]`.
fn link(flag: &str, text: &str) -> Result<RankLink, TrainError> {
    let unclear =
        || mistake(format!("{flag} is written like 50GB/s, 400Gb/s (bits) or 50GB/s,5us, got `{text}`"));
    let (rate, latency) = text.split_once(',').unwrap_or((text, "0s"));
    let rate = rate.trim().strip_suffix("/s").and_then(bytes).filter(|&rate| rate > 0.0);
    let latency = seconds(latency.trim());
    rate.zip(latency).map(|(rate, latency)| RankLink { rate, latency }).ok_or_else(unclear)
}

/// Bytes of `50GB` or `1.5GiB`, or of `400Gb` and `400Gbit`, which are bits.
fn bytes(text: &str) -> Option<f64> {
    let bits = text.strip_suffix("bit").or_else(|| text.strip_suffix('b'));
    let size: Size = match bits {
        Some(rest) if rest.ends_with(|c: char| c.is_ascii_uppercase()) => format!("{rest}B").parse().ok()?,
        Some(_) => return None,
        None => text.parse().ok()?,
    };
    Some(size.bytes as f64 / if bits.is_some() { 8.0 } else { 1.0 })
}

fn seconds(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 5] = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (unit, factor) = UNITS.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_a_rate_and_may_have_a_latency() {
        let raw = |rank: &str| RawConfig { rank_link: Some(rank.into()), ..RawConfig::default() };
        let of = |text: &str| rank_links(&raw(text)).unwrap().unwrap().within;
        assert_eq!(of("50GB/s"), RankLink { rate: 50e9, latency: 0.0 });
        assert_eq!(of("1.5GiB/s, 20us").rate.to_bits(), (1.5 * f64::from(1 << 30)).to_bits());
        assert!((of("1.5GiB/s, 20us").latency - 20e-6).abs() < 1e-12);
        assert_eq!(of("400Gb/s,0s"), RankLink { rate: 50e9, latency: 0.0 }, "bits");
        assert_eq!(of("400Gbit/s").rate.to_bits(), 50e9f64.to_bits());
        for wrong in
            ["50", "50GB", "GB/s", "50GB/s,5", "50GB/s,-1us", "0GB/s", "50gb/s", "50gbit/s", "50GiBb/s"]
        {
            assert!(rank_links(&raw(wrong)).unwrap_err().to_string().contains("like 50GB/s"), "{wrong}");
        }
    }

    #[test]
    fn nodes_need_a_size_and_both_links() {
        let raw = RawConfig { node_link: Some("50GB/s".into()), ..RawConfig::default() };
        assert!(rank_links(&raw).is_err());
        let raw = RawConfig { rank_link: Some("400GB/s".into()), ..raw };
        assert!(rank_links(&raw).unwrap_err().to_string().contains("go together"));
        let raw = RawConfig { ranks_per_node: Some(8), ..raw };
        let (between, per_node) = rank_links(&raw).unwrap().unwrap().between.unwrap();
        assert_eq!((between.rate as u64, per_node), (50_000_000_000, 8));
        assert_eq!(rank_links(&RawConfig::default()).unwrap(), None);
    }
}
