//! Products against a triple loop, and against themselves in other amounts of scratch, on other threads and in parts.

use half::bf16;

use super::*;
use crate::cpu::pack::Numbers;
use crate::cpu::{Instructions, Pool};
use crate::random::Stream;

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let stream = Stream::new(seed, 1, 0);
    (0..count as u32).map(|i| stream.uniform(0, i) - 0.5).collect()
}

fn fastest() -> &'static Microkernel {
    microkernel::choose(Instructions::fastest(), false)
}

fn in_pool<T>(threads: usize, body: impl FnOnce() -> T) -> T {
    Pool::new(threads).unwrap().enter(body)
}

/// A product of random matrices stored in the given types, with the expected result.
struct Trial {
    extents: Extents,
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
    before: Vec<f32>,
    transposes: (bool, bool),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Beginning {
    Zero,
    Kept,
    Bias,
}

impl Trial {
    fn new(m: usize, n: usize, k: usize, transposes: (bool, bool)) -> Trial {
        Trial {
            extents: Extents { m, n, k },
            a: numbers(m * k, 1),
            b: numbers(k * n, 2),
            bias: numbers(n, 3),
            before: numbers(m * n, 4),
            transposes,
        }
    }

    fn strides(&self) -> [usize; 4] {
        let Extents { m, n, k } = self.extents;
        let (row, depth) = if self.transposes.0 { (1, m) } else { (k, 1) };
        let (column, depth_b) = if self.transposes.1 { (k, 1) } else { (1, n) };
        [row, depth, column, depth_b]
    }

    /// The same with factors that bf16 holds.
    fn rounded(self) -> Trial {
        let rounded = |numbers: Vec<f32>| numbers.into_iter().map(|x| bf16::from_f32(x).to_f32()).collect();
        Trial { a: rounded(self.a), b: rounded(self.b), ..self }
    }

    fn run(&self, kernel: &Microkernel, beginning: Beginning, bytes: u64) -> Vec<f32> {
        self.run_on(kernel, [Numbers::F32(&self.a), Numbers::F32(&self.b)], beginning, bytes)
    }

    fn run_on(
        &self,
        kernel: &Microkernel,
        [a, b]: [Numbers; 2],
        beginning: Beginning,
        bytes: u64,
    ) -> Vec<f32> {
        let Extents { m, n, k } = self.extents;
        let [row, depth, column, depth_b] = self.strides();
        let mut c = if beginning == Beginning::Kept { self.before.clone() } else { vec![f32::NAN; m * n] };
        let mut scratch = vec![f32::NAN; bytes as usize / 4];
        let start = match beginning {
            Beginning::Zero => Start::Zero,
            Beginning::Kept => Start::Kept,
            Beginning::Bias => Start::Bias(&self.bias),
        };
        let a = View::of(a, m, k, row, depth);
        let b = View::of(b, n, k, column, depth_b);
        product_with(kernel, Factors { extents: self.extents, a, b }, start, &mut c, &mut scratch, false);
        c
    }

    fn check(&self, beginning: Beginning, got: &[f32]) {
        let Extents { m, n, k } = self.extents;
        let [row, depth, column, depth_b] = self.strides();
        for i in 0..m {
            for j in 0..n {
                let start = match beginning {
                    Beginning::Zero => 0.0,
                    Beginning::Kept => f64::from(self.before[i * n + j]),
                    Beginning::Bias => f64::from(self.bias[j]),
                };
                let want = (0..k).fold(start, |sum, p| {
                    let (a, b) = (self.a[i * row + p * depth], self.b[j * column + p * depth_b]);
                    sum + f64::from(a) * f64::from(b)
                });
                let error = (f64::from(got[i * n + j]) - want).abs();
                // Sums of k numbers below ¼ with a random walk of roundings.
                let bound = 1e-6 * (1.0 + k as f64).sqrt();
                assert!(error <= bound, "({m},{n},{k}) {:?} at ({i},{j}): {error}", self.transposes);
            }
        }
    }
}

const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 5, 3),
    (2, 31, 7),
    (3, 33, 64),
    (4, 16, 16),
    (5, 48, 257),
    (8, 200, 19),
    (11, 13, 17),
    (12, 32, 256),
    (13, 65, 31),
    (25, 47, 300),
    (97, 101, 103),
    (64, 128, 96),
    (130, 530, 70),
];

#[test]
fn products_of_awkward_shapes_match_a_triple_loop_on_every_instruction_set() {
    for kernel in Instructions::available().into_iter().map(|path| microkernel::choose(path, false)) {
        for (m, n, k) in SHAPES {
            for transposes in [(false, false), (false, true), (true, false), (true, true)] {
                let trial = Trial::new(m, n, k, transposes);
                for beginning in [Beginning::Zero, Beginning::Kept, Beginning::Bias] {
                    let got = trial.run(kernel, beginning, workspace(trial.extents).best);
                    trial.check(beginning, &got);
                }
            }
        }
    }
}

#[test]
fn threads_and_workspace_change_no_bit() {
    for (m, n, k) in [(97, 101, 103), (130, 1100, 600), (5, 700, 300), (700, 9, 300)] {
        let trial = Trial::new(m, n, k, (false, true));
        let Workspace { least, best } = workspace(trial.extents);
        let one = in_pool(1, || trial.run(fastest(), Beginning::Bias, best));
        for bytes in [least, least.midpoint(best) / 4 * 4, best] {
            for threads in [1, 2, 3] {
                let other = in_pool(threads, || trial.run(fastest(), Beginning::Bias, bytes));
                assert!(one == other, "({m},{n},{k}) with {bytes} bytes on {threads} threads");
            }
        }
    }
}

#[test]
fn a_sum_continued_in_a_second_call_has_the_bits_of_one_call() {
    let (m, n, k, cut) = (30, 50, 400, 130);
    let trial = Trial::new(m, n, k, (true, false));
    let whole = trial.run(fastest(), Beginning::Zero, workspace(trial.extents).best);
    let mut parts = vec![0.0; m * n];
    let mut scratch = vec![0.0; workspace(trial.extents).best as usize / 4];
    for (from, depth, start) in [(0, cut, Start::Zero), (cut, k - cut, Start::Kept)] {
        let a = View::new(&trial.a, m, k, 1, m).from(0, from);
        let b = View::new(&trial.b, n, k, 1, n).from(0, from);
        product(Extents { m, n, k: depth }, a, b, start, &mut parts, &mut scratch);
    }
    assert!(whole == parts);
}

#[test]
fn a_product_without_products_is_its_beginning() {
    let mut c = [7.0; 6];
    let extents = Extents { m: 2, n: 3, k: 0 };
    let nothing = View::new(&[], 0, 0, 1, 1);
    product(extents, nothing, nothing, Start::Bias(&[1.0, 2.0, 3.0]), &mut c, &mut []);
    assert_eq!(c.map(|x| x as i32), [1, 2, 3, 1, 2, 3]);
}

/// The microkernels for widened and for paired bf16, where this machine has both.
fn widened_and_paired() -> Option<[&'static Microkernel; 2]> {
    let here = Instructions::Avx512Bf16.is_here();
    here.then(|| [false, true].map(|halves| microkernel::choose(Instructions::Avx512Bf16, halves)))
}

#[test]
fn products_of_bf16_pairs_have_the_bits_of_products_of_the_widened_numbers() {
    let Some([widened, paired]) = widened_and_paired() else { return };
    assert_eq!((widened.steps, paired.steps), (1, 2));
    for (m, n, k) in SHAPES.into_iter().chain([(7, 40, 513), (30, 70, 1025), (13, 600, 2)]) {
        for transposes in [(false, false), (false, true), (true, false), (true, true)] {
            let trial = Trial::new(m, n, k, transposes).rounded();
            let halves = [&trial.a, &trial.b]
                .map(|numbers| numbers.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<bf16>>());
            let [a, b] = &halves;
            let Workspace { least, best } = workspace(trial.extents);
            for beginning in [Beginning::Zero, Beginning::Kept, Beginning::Bias] {
                let want = trial.run(widened, beginning, best);
                let forms = [
                    [Numbers::Bf16(a), Numbers::Bf16(b)],
                    [Numbers::Rounded(&trial.a), Numbers::Bf16(b)],
                    [Numbers::Bf16(a), Numbers::Rounded(&trial.b)],
                ];
                for (factors, bytes) in forms.into_iter().zip([best, least, least.midpoint(best) / 4 * 4]) {
                    let got = trial.run_on(paired, factors, beginning, bytes);
                    assert!(got == want, "({m},{n},{k}) {transposes:?} {beginning:?}");
                }
            }
        }
    }
}

#[test]
fn threads_workspace_and_an_odd_cut_change_no_bit_of_a_product_of_pairs() {
    let Some([_, paired]) = widened_and_paired() else { return };
    for (m, n, k) in [(97, 101, 103), (130, 1100, 1201), (5, 700, 300), (700, 9, 301)] {
        let trial = Trial::new(m, n, k, (false, true)).rounded();
        let factors = [Numbers::Rounded(&trial.a), Numbers::Rounded(&trial.b)];
        let Workspace { least, best } = workspace(trial.extents);
        let one = in_pool(1, || trial.run_on(paired, factors, Beginning::Bias, best));
        for bytes in [least, least.midpoint(best) / 4 * 4, best] {
            for threads in [1, 2, 3] {
                let other = in_pool(threads, || trial.run_on(paired, factors, Beginning::Bias, bytes));
                assert!(one == other, "({m},{n},{k}) with {bytes} bytes on {threads} threads");
            }
        }
        let mut parts = vec![f32::NAN; m * n];
        let mut scratch = vec![0.0; best as usize / 4];
        for (from, depth, start) in [(0, 51, Start::Bias(&trial.bias)), (51, k - 51, Start::Kept)] {
            let a = View::of(factors[0], m, k, k, 1).from(0, from);
            let b = View::of(factors[1], n, k, k, 1).from(0, from);
            let factors = Factors { extents: Extents { m, n, k: depth }, a, b };
            product_with(paired, factors, start, &mut parts, &mut scratch, false);
        }
        assert!(one == parts, "({m},{n},{k}) in two parts");
    }
}

/// A number that `vdpbf16ps` reads or has rounded: below 2⁻¹²⁶ it is a zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

#[test]
fn a_product_of_pairs_is_a_chain_of_fused_steps_that_flushes_what_is_below_normal() {
    let Some([widened, paired]) = widened_and_paired() else { return };
    // Products of the smallest numbers are below normal, and so are some of the sums that they cancel to.
    let (m, n, k) = (9, 33, 41);
    let tiny = |numbers: Vec<f32>, by: f32| numbers.into_iter().map(|x| x * by).collect();
    let trial = Trial::new(m, n, k, (false, true));
    let trial =
        Trial { a: tiny(trial.a, 2f32.powi(-62)), b: tiny(trial.b, 2f32.powi(-64)), ..trial }.rounded();
    let factors = [Numbers::Rounded(&trial.a), Numbers::Rounded(&trial.b)];
    let best = workspace(trial.extents).best;
    let got = trial.run_on(paired, factors, Beginning::Zero, best);
    for (at, &got) in got.iter().enumerate() {
        let (a, b) = (&trial.a[at / n * k..][..k], &trial.b[at % n * k..][..k]);
        let step = |sum: f32, (&a, &b): (&f32, &f32)| flushed(flushed(a).mul_add(flushed(b), sum));
        let want = a.iter().zip(b).fold(0.0, step);
        assert!(got.to_bits() << 1 == want.to_bits() << 1, "element {at}: {got:e}, not {want:e}");
    }
    assert!(got != trial.run(widened, Beginning::Zero, best), "the chain reaches numbers below normal");
}

#[test]
fn what_is_packed_serves_a_second_product_if_scratch_holds_it_whole() {
    let trial = Trial::new(40, 70, 90, (false, true));
    let (a, b) = (View::new(&trial.a, 40, 90, 90, 1), View::new(&trial.b, 70, 90, 90, 1));
    let Workspace { least, best } = workspace(trial.extents);
    for (bytes, whole) in [(best, true), (least, false)] {
        let mut scratch = vec![f32::NAN; bytes as usize / 4];
        let [mut first, mut second] = [vec![f32::NAN; 40 * 70], vec![f32::NAN; 40 * 70]];
        let factors = Factors { extents: trial.extents, a, b };
        let packed = factors.product_again(Start::Zero, &mut first, &mut scratch, false);
        assert_eq!(packed, whole);
        // If the whole second factor is packed, no step reads the original again.
        let nothing = vec![f32::NAN; trial.b.len()];
        let b = if packed { View::new(&nothing, 70, 90, 90, 1) } else { b };
        let again = Factors { b, ..factors }.product_again(Start::Zero, &mut second, &mut scratch, packed);
        assert!(again == whole && first == second, "{bytes} bytes");
    }
}
