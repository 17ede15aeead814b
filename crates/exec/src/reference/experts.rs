//! Copies of tokens sorted by expert, products of each expert's rows with its own weight, and the sum back.

use plimsoll_graph::Op;
use plimsoll_graph::op::Sorting;

use super::Operands;
use super::array::{Array, add_scaled, dot};
use crate::ExecError;

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Result<Vec<Array>, ExecError> {
    let (x, integers) = (|index| operands.x(index), |index| operands.integers(index));
    Ok(match op {
        Op::SortByExpert(sorting) => sort(x(0), integers(0), *sorting)?.into(),
        Op::Dispatch => vec![dispatch(x(0), integers(1), x(2), None)],
        Op::Combine { weighted } => vec![combine(x(0), x(2), weighted.then(|| x(3)))],
        Op::CombineGradRows => vec![dispatch(x(0), integers(1), x(2), Some(x(3)))],
        Op::CombineGradWeights => vec![combine_grad_weights(x(0), x(1), x(2))],
        Op::GroupedLinear => vec![grouped_linear(x(0), x(1), integers(2))],
        Op::GroupedLinearGradInput => vec![grouped_linear_grad_input(x(0), x(1), integers(2))],
        Op::GroupedLinearGradWeight => vec![grouped_linear_grad_weight(x(0), x(1), integers(2))],
        other => unreachable!("`{}` is of another family", other.name()),
    })
}

/// `(places, slots, ranges)`.
fn sort(indices: &Array, experts: &[i32], sorting: Sorting) -> Result<[Array; 3], ExecError> {
    let mut places = Array::zeros(indices.shape).map(|_| -1.0);
    let mut slots = Array::zeros([sorting.rows(indices.shape)]).map(|_| -1.0);
    let mut ranges = Array::zeros([sorting.experts, 2]);
    if let Some(&index) = experts.iter().find(|&&index| index < 0 || index as usize >= sorting.experts) {
        let why = format!("expert {index} is outside the {} experts", sorting.experts);
        return Err(ExecError::Data(why));
    }
    let sequence = (experts.len() / sorting.sequences(indices.shape)).max(1);
    let mut row = 0;
    for expert in 0..sorting.experts {
        row = usize::next_multiple_of(row, sorting.tile);
        let first = row;
        for (at, copies) in experts.chunks(sequence).enumerate() {
            let chosen = (0..copies.len()).filter(|&copy| copies[copy] as usize == expert);
            for copy in chosen.take(sorting.capacity.unwrap_or(usize::MAX)) {
                places.data[at * sequence + copy] = row as f64;
                slots.data[row] = (at * sequence + copy) as f64;
                row += 1;
            }
        }
        ranges.data[2 * expert] = first as f64;
        ranges.data[2 * expert + 1] = (row - first) as f64;
    }
    Ok([places, slots, ranges])
}

/// The row of each copy's token, times the copy's weight.
fn dispatch(x: &Array, slots: &[i32], places: &Array, weights: Option<&Array>) -> Array {
    let (width, copies) = (x.shape.columns(), places.shape.columns());
    let mut y = Array::zeros([slots.len(), width]);
    for (row, &slot) in slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
        let slot = slot as usize;
        let weight = weights.map_or(1.0, |weights| weights.data[slot]);
        add_scaled(y.row_mut(&[row]), weight, &x.data[slot / copies * width..][..width]);
    }
    y
}

fn combine(h: &Array, places: &Array, weights: Option<&Array>) -> Array {
    let (width, copies) = (h.shape.columns(), places.shape.columns());
    let mut y = Array::zeros(places.shape.with(places.shape.len() - 1, width));
    for (copy, &place) in places.data.iter().enumerate().filter(|(_, place)| **place >= 0.0) {
        let weight = weights.map_or(1.0, |weights| weights.data[copy]);
        add_scaled(&mut y.data[copy / copies * width..][..width], weight, h.row(&[place as usize]));
    }
    y
}

fn combine_grad_weights(h: &Array, dy: &Array, places: &Array) -> Array {
    let (width, copies) = (h.shape.columns(), places.shape.columns());
    let mut dweights = Array::zeros(places.shape);
    for (copy, &place) in places.data.iter().enumerate().filter(|(_, place)| **place >= 0.0) {
        dweights.data[copy] = dot(h.row(&[place as usize]), &dy.data[copy / copies * width..][..width]);
    }
    dweights
}

/// The expert of each row that has one.
fn rows(ranges: &[i32]) -> impl Iterator<Item = (usize, usize)> {
    let of_expert = |(expert, range): (usize, &[i32])| {
        let (first, count) = (range[0] as usize, range[1] as usize);
        (first..first + count).map(move |row| (expert, row))
    };
    ranges.chunks_exact(2).enumerate().flat_map(of_expert)
}

fn grouped_linear(x: &Array, w: &Array, ranges: &[i32]) -> Array {
    let mut y = Array::zeros([x.shape[0], w.shape[1]]);
    for (expert, row) in rows(ranges) {
        for out in 0..w.shape[1] {
            y.add_at(&[row, out], dot(x.row(&[row]), w.row(&[expert, out])));
        }
    }
    y
}

fn grouped_linear_grad_input(w: &Array, dy: &Array, ranges: &[i32]) -> Array {
    let mut dx = Array::zeros([dy.shape[0], w.shape[2]]);
    for (expert, row) in rows(ranges) {
        for out in 0..w.shape[1] {
            add_scaled(dx.row_mut(&[row]), dy.at(&[row, out]), w.row(&[expert, out]));
        }
    }
    dx
}

fn grouped_linear_grad_weight(x: &Array, dy: &Array, ranges: &[i32]) -> Array {
    let mut dw = Array::zeros([ranges.len() / 2, dy.shape[1], x.shape[1]]);
    for (expert, row) in rows(ranges) {
        for out in 0..dy.shape[1] {
            add_scaled(dw.row_mut(&[expert, out]), dy.at(&[row, out]), x.row(&[row]));
        }
    }
    dw
}
