//! Cases of copies sorted by expert, and of products of each expert's rows.

use plimsoll_graph::op::Sorting;
use plimsoll_graph::{Op, Shape, infer};

use super::balance::present;
use super::building::{EXACT, ROUNDED, SUMMED, both_ways, case, floats, integers, named, normal};
use super::{Case, Fill, Input};

pub(super) fn all() -> Vec<Case> {
    routings().iter().flat_map(of_routing).collect()
}

/// Indices that are sorted, and where they go.
struct Routing {
    indices: Shape,
    sorting: Sorting,
    /// Every token goes to the same experts.
    same: bool,
    /// `(C, F)`: widths of rows before and behind a product.
    widths: [usize; 2],
}

fn routings() -> Vec<Routing> {
    let routing = |indices: Shape, (experts, tile), capacity, same, widths| Routing {
        indices,
        sorting: Sorting { experts, tile, capacity },
        same,
        widths,
    };
    vec![
        routing([1, 1].into(), (1, 1), None, false, [1, 1]),
        routing([7, 2].into(), (3, 1), None, false, [5, 3]),
        routing([2, 9, 2].into(), (5, 4), None, false, [13, 19]),
        routing([2, 9, 2].into(), (5, 4), None, true, [13, 19]),
        routing([3, 8, 1].into(), (4, 1), Some(2), false, [9, 6]),
        routing([2, 10, 1].into(), (3, 8), Some(3), true, [33, 17]),
        routing([130, 4].into(), (16, 16), None, false, [40, 65]),
        routing([1, 300, 2].into(), (3, 1), None, false, [129, 70]),
        // Rows of whole packs, in several tiles of a GPU's products.
        routing([2, 150, 2].into(), (3, 128), None, false, [256, 136]),
        routing([4, 90, 1].into(), (2, 1), Some(40), false, [136, 512]),
    ]
}

impl Routing {
    /// Output `output` of the sort.
    fn sorted(&self, output: usize) -> Input {
        let indices = plimsoll_graph::Type::i32(self.indices);
        let types = infer(&Op::SortByExpert(self.sorting), &[indices]).unwrap_or_default();
        let ty = types.get(output).copied().unwrap_or(indices);
        let fill = Fill::Sorted { sorting: self.sorting, indices: self.indices, same: self.same, output };
        Input { ty, fill }
    }

    fn named(&self, case: Case) -> Case {
        let Sorting { experts, tile, capacity } = self.sorting;
        let most = capacity.map_or_else(String::new, |most| format!(" at most {most}"));
        let same = if self.same { " all alike" } else { "" };
        named(case, &format!("of {} to {experts} in tiles of {tile}{most}{same}", self.indices))
    }
}

fn of_routing(routing: &Routing) -> Vec<Case> {
    let Routing { indices, sorting, same, widths: [width, hidden] } = *routing;
    let fill = if same { Fill::Number(0.0) } else { Fill::Distinct(sorting.experts) };
    let [places, slots, ranges] = [0, 1, 2].map(|output| routing.sorted(output));
    let (rows, experts) = (slots.ty.shape[0], sorting.experts);
    let tokens = normal(indices.with(indices.len() - 1, width));
    let (x, h, dh) = (normal([rows, width]), normal([rows, width]), normal([rows, hidden]));
    let weights = floats(indices, Fill::Squares(0.5));
    let w = floats([experts, hidden, width], Fill::Normal(0.3));
    let gradient = case(Op::GroupedLinearGradWeight, vec![x.clone(), dh.clone(), ranges.clone()], SUMMED);
    let mut cases = vec![
        case(Op::SortByExpert(sorting), vec![integers(indices, fill.clone())], EXACT),
        case(Op::Dispatch, vec![tokens.clone(), slots.clone(), places.clone()], EXACT),
        case(Op::Combine { weighted: false }, vec![h.clone(), slots.clone(), places.clone()], ROUNDED),
        case(
            Op::Combine { weighted: true },
            vec![h.clone(), slots.clone(), places.clone(), weights.clone()],
            ROUNDED,
        ),
        case(Op::CombineGradRows, vec![tokens.clone(), slots, places.clone(), weights], ROUNDED),
        case(Op::CombineGradWeights, vec![h, tokens, places.clone()], SUMMED),
        case(Op::GroupedLinear, vec![x, w.clone(), ranges.clone()], SUMMED),
        case(Op::GroupedLinearGradInput, vec![w, dh, ranges], SUMMED),
    ];
    cases.extend(both_ways(gradient));
    // Padding is counted by sequence.
    if let [rows, length, _] = indices[..] {
        let inputs = vec![integers(indices, fill), places, present(rows, length)];
        cases.push(case(Op::CountCopies { experts }, inputs, EXACT));
    }
    cases.into_iter().map(|case| routing.named(case)).collect()
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let sorting = |capacity| Op::SortByExpert(Sorting { experts: 4, tile: 2, capacity });
    vec![
        ("sort_by_expert.dropless", sorting(None)),
        ("sort_by_expert.capacity", sorting(Some(1))),
        ("dispatch.rows", Op::Dispatch),
        ("combine.plain", Op::Combine { weighted: false }),
        ("combine.weighted", Op::Combine { weighted: true }),
        ("combine_grad_rows.weighted", Op::CombineGradRows),
        ("combine_grad_weights.rows", Op::CombineGradWeights),
        ("grouped_linear.rows", Op::GroupedLinear),
        ("grouped_linear_grad_input.rows", Op::GroupedLinearGradInput),
        ("grouped_linear_grad_weight.rows", Op::GroupedLinearGradWeight),
        ("grouped_linear_grad_weight.adding", Op::GroupedLinearGradWeight),
    ]
}
