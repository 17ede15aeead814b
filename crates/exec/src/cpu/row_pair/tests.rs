#![allow(clippy::cast_ptr_alignment, reason = "the addresses are those of words")]

use plimsoll_graph::{Shape, Type, infer};
use proptest::prelude::*;

use super::*;
use crate::cpu::bound::{Bound, BoundCall, BoundSchedule, stages};
use crate::cpu::trial::numbers;
use crate::cpu::{Pool, ScratchMemory, run};

/// Memory of words and actions on it.
#[derive(Debug)]
struct Desk {
    words: Vec<u32>,
    calls: Vec<BoundCall>,
    dtype: DType,
}

impl Desk {
    fn new(words: usize, dtype: DType) -> Desk {
        let both = |x: f32| {
            let half = u32::from(bf16::from_f32(x).to_bits());
            if dtype == DType::Bf16 { half << 16 | half } else { x.to_bits() }
        };
        Desk { words: numbers(words + 16, 1).into_iter().map(both).collect(), calls: Vec::new(), dtype }
    }

    /// Adds an action whose operands begin at these words. Operands of two axes or more are of the desk's type.
    fn action(mut self, op: Op, inputs: &[(usize, &[usize])], outputs: &[usize]) -> Desk {
        let ty = |shape: &[usize]| {
            let dtype = if shape.len() > 1 { self.dtype } else { DType::F32 };
            Type { shape: Shape::new(shape).unwrap(), dtype }
        };
        let types: Vec<Type> = inputs.iter().map(|(_, shape)| ty(shape)).collect();
        let results = infer(&op, &types).unwrap();
        let mut operand = |at: usize, ty: Type| {
            assert!(at + ty.bytes().div_ceil(4) <= self.words.len());
            // The first operand begins at a cache line, as in an arena.
            let first = (self.words.as_ptr() as usize).wrapping_neg() % 64 / 4;
            CpuOperand { pointer: self.words[first + at..].as_mut_ptr().cast(), ty, accumulate: false }
        };
        let inputs = inputs.iter().zip(&types).map(|(&(at, _), &ty)| operand(at, ty)).collect();
        let outputs = outputs.iter().zip(&results).map(|(&at, &ty)| operand(at, ty)).collect();
        self.calls.push(BoundCall { op, inputs, outputs, workspace: ScratchMemory::NONE });
        self
    }

    fn pair(&self) -> [Call<'_>; 2] {
        [self.calls[0].call(), self.calls[1].call()]
    }

    /// The memory after `work`, and again as it was before.
    fn after(&mut self, work: impl Fn([Call; 2])) -> Vec<u32> {
        let before = self.words.clone();
        work(self.pair());
        let after = self.words.clone();
        self.words.copy_from_slice(&before);
        after
    }

    /// The memory after the actions one by one.
    fn apart(&mut self) -> Vec<u32> {
        // SAFETY: the operands lie in `words`.
        self.after(|pair| pair.iter().for_each(|call| unsafe { run(call) }.unwrap()))
    }

    /// The memory after the pair, the last row first.
    fn backwards(&mut self) -> Vec<u32> {
        self.after(|[first, second]| {
            let rows = first.outputs[0].ty.shape.rows();
            // SAFETY: as above.
            (0..rows).rev().for_each(|row| unsafe { run_rows(&first, &second, row..row + 1) });
        })
    }
}

const ROWS: usize = 301;
const WIDTH: usize = 177;
const MATRIX: &[usize] = &[7, 43, WIDTH];
const LEN: usize = ROWS * WIDTH;

/// Pairs as training has them; each matrix has room to itself unless a result takes over a place.
fn pairs(dtype: DType) -> Vec<(&'static str, Desk)> {
    let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|index| index * LEN);
    let [w, bias, mean, rstd] = [0, 1, 2, 3].map(|index| 5 * LEN + index * 512);
    let (row, statistics) = (&[WIDTH][..], &[ROWS][..]);
    let desk = || Desk::new(5 * LEN + 4 * 512, dtype);
    let sum = |to| desk().action(Op::Add, &[(a, MATRIX), (b, MATRIX)], &[to]);
    let (rms, layer) = (Op::RmsNorm { epsilon: 1e-5 }, Op::LayerNorm { epsilon: 1e-5 });
    let grad = || {
        let inputs = [(a, MATRIX), (w, row), (rstd, statistics), (b, MATRIX)];
        desk().action(Op::RmsNormGradInput, &inputs, &[c])
    };
    let centred = || {
        let inputs = [(a, MATRIX), (w, row), (mean, statistics), (rstd, statistics), (b, MATRIX)];
        desk().action(Op::LayerNormGradInput, &inputs, &[c])
    };
    let (made, given) = ((c, MATRIX), (d, MATRIX));
    vec![
        ("sum and rms norm", sum(c).action(rms.clone(), &[made, (w, row)], &[d, rstd])),
        ("sum and layer norm", sum(c).action(layer, &[made, (w, row), (bias, row)], &[d, mean, rstd])),
        ("sum in place and a norm over its operand", {
            sum(a).action(rms, &[(a, MATRIX), (w, row)], &[b, rstd])
        }),
        ("gradient and sum", grad().action(Op::Add, &[given, made], &[e])),
        ("gradient and sum in place", grad().action(Op::Add, &[given, made], &[d])),
        ("gradient and sum over its operand", grad().action(Op::Add, &[made, given], &[b])),
        ("gradient of a layer norm and sum", centred().action(Op::Add, &[made, given], &[c])),
    ]
}

#[test]
fn a_pair_leaves_every_operand_with_the_bits_of_its_actions_one_by_one() {
    for dtype in [DType::F32, DType::Bf16] {
        for (name, mut desk) in pairs(dtype) {
            let [first, second] = desk.pair();
            assert!(is_pair(&first, &second), "{name} in {dtype}");
            let apart = desk.apart();
            for threads in [1, 2, 3] {
                let pool = Pool::new(threads).unwrap();
                // SAFETY: the operands lie in `words`.
                let run = |[first, second]: [Call; 2]| pool.enter(|| unsafe { run_pair(&first, &second) });
                assert!(desk.after(run) == apart, "{name} in {dtype} on {threads} threads");
            }
            assert!(desk.backwards() == apart, "{name} in {dtype}, the last row first");
        }
    }
}

#[test]
fn actions_that_share_no_rows_stay_apart() {
    let sum = || Desk::new(6 * LEN, DType::F32).action(Op::Add, &[(0, MATRIX), (LEN, MATRIX)], &[2 * LEN]);
    let norm = |desk: Desk, x: (usize, &[usize]), w: usize, outputs: &[usize]| {
        let columns = [x.1[x.1.len() - 1]];
        let desk = desk.action(Op::RmsNorm { epsilon: 1e-5 }, &[x, (w, &columns)], outputs);
        let [first, second] = desk.pair();
        is_pair(&first, &second)
    };
    let (made, free) = ((2 * LEN, MATRIX), [3 * LEN, 4 * LEN]);
    assert!(norm(sum(), made, 5 * LEN, &free));
    assert!(!norm(sum(), (0, MATRIX), 5 * LEN, &free), "the sum is not what is normed");
    assert!(!norm(sum(), (2 * LEN, &[WIDTH, ROWS]), 5 * LEN, &free), "the same bytes as other rows");
    assert!(!norm(sum(), made, 2 * LEN + 5, &free), "the sum is written over the weight");
    assert!(!norm(sum(), made, 5 * LEN, &[LEN + 3, 4 * LEN]), "rows are written over other rows");
    assert!(!norm(sum(), made, 5 * LEN, &[3 * LEN, LEN + 7]), "statistics are written over rows");
    let repeated = || {
        let inputs: [(usize, &[usize]); 2] = [(0, MATRIX), (LEN, &[43, WIDTH])];
        Desk::new(6 * LEN, DType::F32).action(Op::Add, &inputs, &[2 * LEN])
    };
    assert!(!norm(repeated(), made, 5 * LEN, &free), "an operand is repeated every 43 rows");
}

#[test]
fn the_time_of_a_pair_is_charged_to_its_actions_by_their_bytes() {
    let desk = pairs(DType::F32).remove(0).1.action(Op::Silu, &[(0, MATRIX)], &[LEN]);
    let actions: Vec<Bound> = desk.calls.into_iter().map(Bound::Call).collect();
    let (name, starts, stages) = (String::new(), Vec::new(), stages(&actions));
    let schedule = BoundSchedule { name, stages, actions, starts };
    let charged: Vec<Vec<(usize, f64)>> =
        schedule.stages.iter().map(|stage| schedule.shares(stage).collect()).collect();
    let (sum, norm) = ((3 * LEN) as f64, (2 * LEN + WIDTH + ROWS) as f64);
    assert_eq!(charged, [vec![(0, sum / (sum + norm)), (1, norm / (sum + norm))], vec![(2, 1.0)]]);
}

/// Words of a small matrix, of 4 rows.
const SMALL: usize = 64;

/// Two actions on small matrices anywhere in memory, each legal alone.
fn anywhere() -> impl Strategy<Value = Desk> {
    // Mostly whole matrices apart, so that places coincide; else shifted by a row, or by a few words.
    let place = || (0usize..5, prop_oneof![6 => Just(0usize), 1 => Just(16), 1 => 1usize..16]);
    let places = prop::collection::vec(place().prop_map(|(matrix, shift)| matrix * SMALL + shift), 8);
    (places, any::<[bool; 3]>()).prop_filter_map(
        "an action overlaps itself",
        |(at, [forward, left, other])| {
            let (matrix, row, statistics) = (&[4, 16][..], &[16][..], &[4][..]);
            let desk = Desk::new(6 * SMALL + 16, DType::F32);
            let made = (at[2], matrix);
            let (given, to) = ((at[3], matrix), if other { at[4] } else { at[5] });
            let desk = if forward {
                let sum = desk.action(Op::Add, &[(at[0], matrix), (at[1], matrix)], &[at[2]]);
                sum.action(Op::RmsNorm { epsilon: 1e-5 }, &[made, (at[3], row)], &[to, at[6]])
            } else {
                let inputs = [(at[0], matrix), (at[1], row), (at[6], statistics), (at[7], matrix)];
                let grad = desk.action(Op::RmsNormGradInput, &inputs, &[at[2]]);
                grad.action(Op::Add, &if left { [made, given] } else { [given, made] }, &[to])
            };
            desk.calls.iter().all(is_legal).then_some(desk)
        },
    )
}

/// Whether the outputs of an action overlap nothing but inputs that they may take over.
fn is_legal(call: &BoundCall) -> bool {
    let range = |operand: &CpuOperand| {
        let start = operand.pointer as usize;
        (start, start + operand.ty.bytes())
    };
    let apart = |a: (usize, usize), b: (usize, usize)| a.1 <= b.0 || b.1 <= a.0;
    call.outputs.iter().enumerate().all(|(output, written)| {
        let place = range(written);
        let read = call.inputs.iter().enumerate().all(|(input, operand)| {
            let over = place == range(operand) && call.op.may_overwrite(output).contains(&input);
            over || apart(place, range(operand))
        });
        read && call.outputs[..output].iter().all(|earlier| apart(place, range(earlier)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn actions_run_as_a_pair_only_if_rows_in_any_order_give_the_same_memory(mut desk in anywhere()) {
        let [first, second] = desk.pair();
        if is_pair(&first, &second) {
            let apart = desk.apart();
            prop_assert!(desk.backwards() == apart, "the last row first");
            // SAFETY: the operands lie in `words`.
            let forwards = desk.after(|[first, second]| unsafe { run_pair(&first, &second) });
            prop_assert!(forwards == apart, "the first row first");
        }
    }
}

fn computed() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure it is given.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

#[test]
#[ignore = "a measurement"]
fn measured() {
    for (rows, width, gap) in [
        (1024, 256, 0),
        (1024, 256, 400),
        (4096, 256, 400),
        (2048, 512, 0),
        (2048, 512, 400),
        (8192, 512, 400),
        (4096, 2048, 400),
    ] {
        let len = rows * width + gap;
        let m = &[rows, width][..];
        let w = 5 * len;
        let rstd = w + width;
        for dtype in [DType::F32, DType::Bf16] {
            let desk = || Desk::new(5 * len + width + rows, dtype);
            let cases = [
                (
                    "add norm",
                    desk().action(Op::Add, &[(0, m), (len, m)], &[2 * len]).action(
                        Op::RmsNorm { epsilon: 1e-5 },
                        &[(2 * len, m), (w, &[width])],
                        &[3 * len, rstd],
                    ),
                ),
                (
                    "grad add",
                    desk()
                        .action(
                            Op::RmsNormGradInput,
                            &[(0, m), (w, &[width]), (rstd, &[rows]), (len, m)],
                            &[2 * len],
                        )
                        .action(Op::Add, &[(3 * len, m), (2 * len, m)], &[3 * len]),
                ),
            ];
            for (name, desk) in cases {
                let mut least = [f64::INFINITY; 2];
                for _ in 0..25 {
                    let [first, second] = desk.pair();
                    let begin = computed();
                    unsafe {
                        run(&first).unwrap();
                        run(&second).unwrap()
                    };
                    least[0] = least[0].min(computed() - begin);
                    let begin = computed();
                    unsafe { run_pair(&first, &second) };
                    least[1] = least[1].min(computed() - begin);
                }
                println!(
                    "{rows}x{width}+{gap} {dtype} {name} apart {:.0} pair {:.0} ratio {:.3}",
                    least[0] * 1e6,
                    least[1] * 1e6,
                    least[1] / least[0]
                );
            }
        }
    }
}
