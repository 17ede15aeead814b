//! Steps without a gradient: how losses at points near the weights become a step (Spall 1992; Malladi et al. 2023; Salimans
//! et al. 2017).
//!
//! ```text
//! loss of w + size·z_d, loss of w − size·z_d     two probes for each direction d
//! w ← w − lr·(Σ factor_d·z_d + decay·w)           the factors follow from all losses
//! ```
//!
//! A direction `z_d` is a function of (seed, step, `d`, the parameter's name, the element). Nothing of it is stored.

use super::Stored;
use crate::{Shape, Type};

/// How losses of probes become factors of directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Distance of a probe from the weights, for each element on average.
    pub size: f32,
    /// Whether a loss counts only by its rank among all losses, from −½ for the least to ½ for the largest (evolution
    /// strategies). Any fitness will then do, and outliers weigh no more than others. Otherwise differences of losses
    /// are divided by distances, which gives the mean slope along each direction (SPSA, as `MeZO` takes it).
    pub ranked: bool,
}

impl Estimate {
    /// Writes the factor of each direction. `losses` has two for each: that of the probe in the direction, and that
    /// of the probe against it. Returns false if too many of the losses are not finite: any of them for slopes, all
    /// of them for ranks. The step must then change nothing.
    pub fn factors(self, losses: &[f32], factors: &mut [f32]) -> bool {
        let lost = |loss: &f32| !loss.is_finite();
        let refused = if self.ranked { losses.iter().all(lost) } else { losses.iter().any(lost) };
        if refused {
            return false;
        }
        let distance = if self.ranked { 1.0 } else { f64::from(self.size) };
        let place = |loss: f32| if self.ranked { rank(losses, loss) } else { f64::from(loss) };
        for (factor, pair) in factors.iter_mut().zip(losses.chunks(2)) {
            *factor = ((place(pair[0]) - place(pair[1])) / (distance * losses.len() as f64)) as f32;
        }
        true
    }
}

/// The place of a loss among all, as −½ … ½; equal ones share theirs, and one that is not finite is among the last.
fn rank(losses: &[f32], loss: f32) -> f64 {
    let key = |loss: f32| if loss.is_finite() { loss } else { f32::INFINITY };
    let below = losses.iter().filter(|&&other| key(other) < key(loss)).count();
    let equal = losses.iter().filter(|&&other| key(other).total_cmp(&key(loss)).is_eq()).count();
    (below as f64 + 0.5 * equal.saturating_sub(1) as f64) / losses.len().saturating_sub(1).max(1) as f64 - 0.5
}

/// Parameters of [`Op::ProbeStep`](super::Op::ProbeStep).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeStep {
    /// Extents of the parameter.
    pub shape: Shape,
    /// Hash of the parameter's name.
    pub stream: u64,
    /// How losses become factors.
    pub estimate: Estimate,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f32,
    /// How the parameter is kept.
    pub stored: Stored,
}

impl ProbeStep {
    /// The same with every stream of random numbers set to 0, so that parameters can be compared.
    #[must_use]
    pub fn without_stream(self) -> ProbeStep {
        ProbeStep { stream: 0, stored: self.stored.without_stream(), ..self }
    }

    /// Types of the ranges that the step writes.
    pub fn types(self) -> Vec<Type> {
        self.stored.types(self.shape, 0)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the very numbers are meant")]
mod tests {
    use super::*;

    const RANKS: Estimate = Estimate { size: 0.5, ranked: true };

    #[test]
    fn a_slope_is_the_mean_difference_over_the_distance_of_two_probes() {
        let mut factors = [0.0; 2];
        assert!(Estimate { size: 0.5, ranked: false }.factors(&[3.0, 1.0, 1.0, 1.5], &mut factors));
        assert_eq!(factors, [1.0, -0.25]);
        assert!(!Estimate { size: 0.5, ranked: false }.factors(&[3.0, f32::NAN, 1.0, 1.5], &mut factors));
    }

    #[test]
    fn ranks_depend_on_the_order_of_losses_alone_and_what_is_not_finite_is_last() {
        let mut factors = [0.0; 2];
        assert!(RANKS.factors(&[3.0, 1.0, 1.5, 100.0], &mut factors));
        let places = [2.0 / 3.0 - 0.5, -0.5, 1.0 / 3.0 - 0.5, 0.5];
        assert_eq!(factors, [((places[0] - places[1]) / 4.0) as f32, ((places[2] - places[3]) / 4.0) as f32]);
        let mut lost = [0.0; 2];
        assert!(RANKS.factors(&[3.0, 1.0, 1.5, f32::NAN], &mut lost));
        assert_eq!(lost, factors);
        assert!(!RANKS.factors(&[f32::NAN; 4], &mut lost));
        assert!(RANKS.factors(&[2.0; 4], &mut lost));
        assert_eq!(lost, [0.0; 2], "equal losses show no direction");
    }
}
