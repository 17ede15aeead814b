//! A lower bound over all schedules of a chain: no order, no number of recomputations, does better.
//!
//! When the first gradient node runs, some forward values are resident. A value that the backward pass
//! reads and that is not resident must run again, and so must all it needs: its closure. So the time is at least
//! that of everything once, plus the least closure over all resident sets that fit beside the turn. For
//! equal layers the least closure is the lower convex hull of one layer's frontier, `L` times:
//!
//! ```text
//! seconds
//!    │╲ •          points: a kept set with the layer's output kept, or with the output recomputed too
//!    │ ╲  •        g: their lower hull      bound(M) = base + L · g((M − h) / L)
//!    │  ╲___•__
//!    └───────────── bytes of one layer
//! ```
//!
//! A second bound follows from the moments at which nodes of the last layer's backward pass run. All other layers wait
//! then, and the operands of the running node lie beside their values. Those operands may take more bytes than the
//! operands at the turn, so the larger of the two bounds counts.
//!
//! The hull allows a fraction of a layer to be kept, so the bound also covers layers treated differently. It is loose
//! where the same layer must be recomputed several times (budgets of a few percent of the memory).
//!
//! With another tier, `q` more bytes are available after the turn. They went out before it and come in after it, so
//! each part takes at least as long as its transfers. The bound is the minimum over all `q`.

use super::options::Frontiers;
use crate::device::Link;

/// Time of forward nodes, each once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    /// Forward time of the layers, all of it before the turn.
    pub(crate) layers: f64,
    /// Forward time of the whole graph.
    pub(crate) all: f64,
}

/// The bound as a function of bytes.
#[derive(Clone, Debug)]
pub(crate) struct LowerBound {
    layers: usize,
    /// Everything once: forward, backward and turn.
    base_seconds: f64,
    forward: Passes,
    /// Corners of the hull: bytes rising, seconds falling.
    hull: Vec<(f64, f64)>,
}

/// Enough halvings to resolve single bytes of any memory.
const HALVINGS: usize = 100;

impl LowerBound {
    /// The bound for `layers` layers with these frontiers.
    pub(crate) fn new(
        frontiers: &Frontiers,
        layers: usize,
        base_seconds: f64,
        forward: Passes,
    ) -> LowerBound {
        let mut points: Vec<(f64, f64)> =
            frontiers.iter().flatten().map(|&(bytes, seconds)| (bytes as f64, seconds)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        LowerBound { layers, base_seconds, forward, hull: lower_hull(&points) }
    }

    /// Least time of any schedule whose forward values at the turn take at most `bytes`.
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        let share = bytes as f64 / self.layers as f64;
        self.base_seconds + self.layers as f64 * self.at(share)
    }

    /// Least time of any schedule that has at most `bytes` of forward values at the turn, and others in a tier.
    pub(crate) fn seconds_with(&self, bytes: u64, link: &Link) -> f64 {
        let seconds = |sent: f64| {
            let recomputed = self.layers as f64 * self.at((bytes as f64 + sent) / self.layers as f64);
            // Each transfer slows the runs beside it by its toll.
            let lost = link.toll * sent;
            let before = (self.forward.layers + lost).max(sent / link.out_rate);
            let behind = (self.base_seconds - self.forward.all + recomputed + lost).max(sent / link.in_rate);
            (self.base_seconds + recomputed + 2.0 * lost).max(before + behind)
        };
        let whole = self.hull.last().map_or(0.0, |corner| corner.0) * self.layers as f64;
        let (mut low, mut high) = (0.0, whole.min(link.room as f64));
        // Recomputation is convex in the bytes that are there, so the time is convex in the bytes that are sent.
        for _ in 0..HALVINGS {
            let third = (high - low) / 3.0;
            if seconds(low + third) <= seconds(high - third) { high -= third } else { low += third }
        }
        // The search ends close to the minimum, not at it, so a little is taken off to keep this a bound.
        seconds(f64::midpoint(low, high)) * (1.0 - 1e-9)
    }

    fn at(&self, bytes: f64) -> f64 {
        let Some(&(first, most)) = self.hull.first() else {
            return 0.0;
        };
        if bytes <= first {
            // Fewer bytes than the smallest set: the cost is at least that of the smallest set.
            return most;
        }
        for pair in self.hull.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            if bytes <= x1 {
                return y0 + (y1 - y0) * (bytes - x0) / (x1 - x0);
            }
        }
        self.hull.last().map_or(0.0, |&(_, seconds)| seconds)
    }
}

/// The lower left hull of points sorted by bytes: the corners with falling seconds and rising slope.
fn lower_hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &point in points {
        if hull.last().is_some_and(|last| point.1 >= last.1) {
            continue;
        }
        while hull.len() >= 2 {
            let (a, b) = (hull[hull.len() - 2], hull[hull.len() - 1]);
            let turns_up = (b.1 - a.1) * (point.0 - a.0) < (point.1 - a.1) * (b.0 - a.0);
            if turns_up {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hull_lies_under_every_point() {
        let points = [(0.0, 10.0), (1.0, 9.0), (2.0, 4.0), (3.0, 3.9), (4.0, 0.0)];
        let hull = lower_hull(&points);
        let bound = LowerBound {
            layers: 1,
            base_seconds: 0.0,
            forward: Passes { layers: 0.0, all: 0.0 },
            hull: hull.clone(),
        };
        for (bytes, seconds) in points {
            assert!(bound.at(bytes) <= seconds + 1e-12, "{hull:?} at {bytes}");
        }
        assert_eq!(hull, [(0.0, 10.0), (2.0, 4.0), (4.0, 0.0)]);
    }
}
