//! Sums, scalar products and maxima of slices, as several running lanes that are folded at the end.
//!
//! The compiler may not reorder a floating-point sum, so a plain loop would add one number at a time;
//! lanes state an order that vectors can follow, and are more exact as well. The order depends on the
//! length alone. Long sums go block by block into f64.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use super::element::Element;
use super::exp::exp;

const LANES: usize = 32;

/// Elements whose sum is trusted to f32: at most 32 terms in each lane.
const BLOCK: usize = 1024;

/// `Σ x`.
#[inline(always)]
pub(super) fn sum<E: Element>(x: &[E]) -> f32 {
    blocks(x, x, |x, _| x)
}

/// `Σ a·b`.
#[inline(always)]
pub(super) fn dot<A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    blocks(a, b, |a, b| a * b)
}

/// `Σ (a − centre)·(b·c)`.
#[inline(always)]
pub(super) fn dot_around<E: Element>(a: &[E], centre: f32, b: &[f32], c: &[E]) -> f32 {
    blocks_of_three(a, b, c, |a, b, c| (a - centre) * (b * c))
}

/// `Σ (x − centre)²`.
#[inline(always)]
pub(super) fn squares_around<E: Element>(x: &[E], centre: f32) -> f32 {
    blocks(x, x, |x, _| (x - centre) * (x - centre))
}

/// `Σ exp(x − shift)`.
#[inline(always)]
pub(super) fn sum_exp<E: Element>(x: &[E], shift: f32) -> f32 {
    blocks(x, x, |x, _| exp(x - shift))
}

/// The largest element; NaN where there is one.
#[inline(always)]
pub(super) fn max<E: Element>(x: &[E]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x.wide());
        }
    }
    let mut most = f32::NEG_INFINITY;
    for x in rest {
        most = larger(most, x.wide());
    }
    lanes.into_iter().fold(most, larger)
}

/// Unlike `f32::max`, propagates NaN, so that a broken row is noticed.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn blocks<A: Element, B: Element>(a: &[A], b: &[B], term: impl Fn(f32, f32) -> f32 + Copy) -> f32 {
    if a.len() <= BLOCK {
        return lanes(a, b, term);
    }
    // A loop rather than an iterator's sum, whose closure would be compiled for the oldest machine.
    let mut total = 0.0;
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        total += f64::from(lanes(a, b, term));
    }
    total as f32
}

#[inline(always)]
fn blocks_of_three<E: Element>(
    a: &[E],
    b: &[f32],
    c: &[E],
    term: impl Fn(f32, f32, f32) -> f32 + Copy,
) -> f32 {
    if a.len() <= BLOCK {
        return lanes_of_three(a, b, c, term);
    }
    let mut total = 0.0;
    for ((a, b), c) in a.chunks(BLOCK).zip(b.chunks(BLOCK)).zip(c.chunks(BLOCK)) {
        total += f64::from(lanes_of_three(a, b, c, term));
    }
    total as f32
}

#[inline(always)]
fn lanes_of_three<E: Element>(
    a: &[E],
    b: &[f32],
    c: &[E],
    term: impl Fn(f32, f32, f32) -> f32 + Copy,
) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((a_chunks, a_rest), (c_chunks, c_rest)) = (a.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for ((a, b), c) in a_chunks.iter().zip(b_chunks).zip(c_chunks) {
        for (lane, ((&a, &b), &c)) in lanes.iter_mut().zip(a.iter().zip(b).zip(c)) {
            *lane += term(a.wide(), b, c.wide());
        }
    }
    for (lane, ((&a, &b), &c)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest).zip(c_rest)) {
        *lane += term(a.wide(), b, c.wide());
    }
    folded(lanes)
}

#[inline(always)]
fn lanes<A: Element, B: Element>(a: &[A], b: &[B], term: impl Fn(f32, f32) -> f32 + Copy) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += term(a.wide(), b.wide());
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += term(a.wide(), b.wide());
    }
    folded(lanes)
}

/// The lanes, halved and added until one is left.
#[inline(always)]
fn folded(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::numbers;

    #[test]
    fn long_and_ragged_sums_are_exact_to_a_few_ulp() {
        for len in [0, 1, 31, 32, 33, 1024, 1025, 50_257] {
            let x: Vec<f32> = numbers(len, 3).iter().map(|x| x + 3.0).collect();
            let exact: f64 = x.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum(&x)) - exact).abs() <= 3e-7 * exact, "{len}: {} {exact}", sum(&x));
            let exact: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            assert!((f64::from(dot(&x, &x)) - exact).abs() <= 3e-7 * exact, "{len}");
        }
    }

    #[test]
    fn the_maximum_is_found_in_the_tail_and_hands_nan_on() {
        let mut x = numbers(70, 3);
        x[69] = 9.0;
        assert_eq!(max(&x).to_bits(), 9.0f32.to_bits());
        x[3] = f32::NAN;
        assert!(max(&x).is_nan());
    }
}
