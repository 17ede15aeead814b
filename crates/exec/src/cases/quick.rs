//! A small choice of cases, which runs in seconds.

use std::collections::BTreeSet;

use plimsoll_graph::DType;

use super::Case;

/// A property of an op that a case covers: an element type among operands and results, or an output that is added to.
type Shown = (&'static str, Option<DType>);

/// The cases that cover a property no earlier case covers. Each op thus runs with every element type that any of its cases
/// has, and adds to its outputs where it can.
pub fn few(cases: &[Case]) -> Vec<Case> {
    let mut shown = BTreeSet::new();
    let mut chosen = Vec::new();
    for case in cases {
        let before = shown.len();
        shown.extend(shows(case));
        if shown.len() > before {
            chosen.push(case.clone());
        }
    }
    chosen
}

fn shows(case: &Case) -> impl Iterator<Item = Shown> {
    let op = case.op.name();
    let types = case.inputs.iter().map(|input| input.ty).chain(case.output_types());
    let types: Vec<Option<DType>> = types.map(|ty| Some(ty.dtype)).collect();
    let adds = case.accumulates().contains(&true).then_some(None);
    types.into_iter().chain(adds).map(move |what| (op, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn few_cases_show_every_op_with_every_element_type_and_adding() {
        let all = cases::all();
        let chosen = few(&all);
        let shown = |cases: &[Case]| cases.iter().flat_map(shows).collect::<BTreeSet<Shown>>();
        assert_eq!(shown(&chosen), shown(&all));
        let half = |case: &&Case| case.inputs.iter().any(|input| input.ty.dtype == DType::Bf16);
        assert!(chosen.iter().filter(half).count() > 50, "bf16 is among them");
        assert!(8 * chosen.len() < all.len(), "{} of {}", chosen.len(), all.len());
    }
}
