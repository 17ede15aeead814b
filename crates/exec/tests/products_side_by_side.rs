//! Measures products with the same left operand, one by one and as one product over their weights side by side. It is a
//! measurement and no test: run it with `cargo test -p plimsoll-exec --test products_side_by_side -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "it prints what it measures")]
#![allow(unsafe_code, reason = "calls are made of addresses")]

use plimsoll_exec::cpu::{Call, CpuOperand, Pool, ScratchMemory, run, workspace};
use plimsoll_graph::{Op, Type, infer};

/// A call with memory of its own.
struct Own {
    op: Op,
    types: (Vec<Type>, Vec<Type>),
    data: Vec<Vec<f32>>,
    scratch: Vec<f32>,
}

impl Own {
    fn new(op: Op, shapes: &[[usize; 2]]) -> Own {
        let inputs: Vec<Type> = shapes.iter().map(|&shape| Type::f32(shape)).collect();
        let outputs = infer(&op, &inputs).unwrap();
        let numbers =
            |ty: &Type| (0..ty.shape.elements()).map(|at| (at * 31 % 23) as f32 / 23.0 - 0.5).collect();
        let data = inputs.iter().chain(&outputs).map(numbers).collect();
        let room = workspace(&op, &inputs, &outputs, 1).best as usize / 4;
        Own { op, types: (inputs, outputs), data, scratch: vec![0.0; room] }
    }

    fn run(&mut self) {
        let (inputs, outputs) = &self.types;
        let operands: Vec<CpuOperand> = (self.data.iter_mut().zip(inputs.iter().chain(outputs)))
            .map(|(data, &ty)| CpuOperand { pointer: data.as_mut_ptr().cast(), ty, accumulate: false })
            .collect();
        let (inputs, outputs) = operands.split_at(inputs.len());
        let workspace =
            ScratchMemory { pointer: self.scratch.as_mut_ptr().cast(), bytes: 4 * self.scratch.len() };
        // SAFETY: the operands are whole vectors that live here.
        unsafe { run(&Call { op: &self.op, inputs, outputs, workspace }) }.unwrap();
    }
}

/// Seconds that this thread has computed. Other load of the machine does not count.
fn computed() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure it is given.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// The least seconds of each list of calls over interleaved rounds.
fn least(pool: &Pool, lists: &mut [Vec<Own>; 2]) -> [f64; 2] {
    let mut least = [f64::INFINITY; 2];
    for _ in 0..30 {
        for (calls, least) in lists.iter_mut().zip(&mut least) {
            let begin = computed();
            pool.enter(|| calls.iter_mut().for_each(Own::run));
            *least = least.min(computed() - begin);
        }
    }
    least
}

#[test]
#[ignore = "a measurement"]
fn products_one_by_one_and_side_by_side() {
    let pool = Pool::new(1).unwrap();
    let linear = |rows, width, outs: &[usize]| -> Vec<Own> {
        let op = Op::Linear { transposed: false, bias: false };
        outs.iter().map(|&out| Own::new(op.clone(), &[[rows, width], [out, width]])).collect()
    };
    let input = |rows, width, outs: &[usize]| -> Vec<Own> {
        let op = Op::LinearGradInput { transposed: false };
        let products = outs.iter().map(|&out| Own::new(op.clone(), &[[out, width], [rows, out]]));
        let added = (1..outs.len()).map(|_| Own::new(Op::Add, &[[rows, width], [rows, width]]));
        products.chain(added).collect()
    };
    let weight = |rows, width, outs: &[usize]| -> Vec<Own> {
        let op = Op::LinearGradWeight { transposed: false };
        outs.iter().map(|&out| Own::new(op.clone(), &[[rows, width], [rows, out]])).collect()
    };
    for (name, rows, width, parts) in [
        ("s q k v", 2048, 256, &[256, 128, 128][..]),
        ("s gate up", 2048, 256, &[688, 688]),
        ("m q k v", 2048, 512, &[512, 256, 256]),
        ("m gate up", 2048, 512, &[1376, 1376]),
        ("s q k v, 256 rows", 256, 256, &[256, 128, 128]),
        ("s gate up, 256 rows", 256, 256, &[688, 688]),
    ] {
        let whole = [parts.iter().sum()];
        for (what, calls) in [
            ("forward", [linear(rows, width, parts), linear(rows, width, &whole)]),
            ("gradient of input", [input(rows, width, parts), input(rows, width, &whole)]),
            ("gradient of weight", [weight(rows, width, parts), weight(rows, width, &whole)]),
        ] {
            let mut calls = calls;
            let [apart, one] = least(&pool, &mut calls);
            println!(
                "{name:20} {what:20} apart {:7.0} µs   one {:7.0} µs   ratio {:.3}",
                1e6 * apart,
                1e6 * one,
                one / apart
            );
        }
    }
}
