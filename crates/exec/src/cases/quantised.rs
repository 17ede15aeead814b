//! Cases of weights in few bits.

use plimsoll_graph::op::{Dequantise, Quantised};
use plimsoll_graph::{DType, Op};

use super::building::{EXACT, case};
use super::{Case, Fill, Input};

pub(super) fn all() -> Vec<Case> {
    let blocks = [[1, 64], [3, 128], [130, 192], [67, 320]];
    let rows = [[1, 1], [5, 33], [130, 67], [3, 1000]];
    let sizes = [(Quantised::Nf4, blocks), (Quantised::Nf4Double, blocks), (Quantised::Int8, rows)];
    let mut cases = Vec::new();
    for (form, shapes) in sizes {
        for shape in shapes {
            for to in [DType::F32, DType::Bf16] {
                let ranges = form.ranges(shape).into_iter();
                let inputs = ranges.map(|(_, ty)| {
                    let fill = if ty.dtype == DType::U8 { Fill::Below(256) } else { Fill::Squares(0.3) };
                    Input { ty, fill }
                });
                let op = Op::Dequantise(Dequantise { form, shape, to });
                cases.push(case(op, inputs.collect(), EXACT));
            }
        }
    }
    cases
}
