//! Prints how fast the linear layer, its gradients and the language-model head run, in GFLOP/s, on one and on
//! two threads.
//!
//! ```text
//! cargo run --release -p plimsoll-exec --example matmul_speed [rows out in]
//! ```
#![allow(unsafe_code, reason = "a kernel trusts its operands, which are made here")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement for people to read")]

use std::time::Instant;

use plimsoll_exec::cpu::{Call, CpuOperand, Pool, ScratchMemory, run, workspace};
use plimsoll_graph::op::Head;
use plimsoll_graph::{DType, Op, Type};

/// `(rows, out, in)` of layers of small language models.
const LAYERS: [(usize, usize, usize); 7] = [
    (1024, 688, 256),
    (1024, 256, 688),
    (2048, 1376, 512),
    (256, 128, 128),
    (512, 4096, 256),
    (64, 64, 64),
    (1, 1376, 512),
];

/// `(rows, words, width)` of heads.
const HEADS: [(usize, usize, usize); 3] = [(1024, 4096, 256), (1024, 32000, 256), (512, 32000, 768)];

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    let (layers, heads) = match asked[..] {
        [rows, out, input] => (vec![(rows, out, input)], vec![]),
        _ => (LAYERS.to_vec(), HEADS.to_vec()),
    };
    println!("{:<20} {:>18}   1 thread  2 threads (least workspace)", "op", "(rows, out, in)");
    for (rows, out, input) in layers {
        let (x, y, w) = (Type::f32([rows, input]), Type::f32([rows, out]), Type::f32([out, input]));
        let calls = [
            (Op::Linear { transposed: false, bias: false }, [x, w], y),
            (Op::LinearGradInput { transposed: false }, [w, y], x),
            (Op::LinearGradWeight { transposed: false }, [x, y], w),
        ];
        for (op, inputs, output) in calls {
            report(&op, &inputs, &[output], (rows, out, input), 2);
        }
    }
    for (rows, words, width) in heads {
        let (x, w) = (Type::f32([rows, width]), Type::f32([words, width]));
        let (inputs, loss) = ([x, w, Type::i32([rows]), Type::f32([])], Type::f32([]));
        let head = Head { ignore_index: -100, bias: false, second: false };
        report(&Op::HeadLoss(head), &inputs, &[loss], (rows, words, width), 2);
        let op = Op::HeadLossGrad { head, weight: true, bias: false };
        report(&op, &inputs, &[loss, x, w], (rows, words, width), 6);
    }
}

fn report(op: &Op, inputs: &[Type], outputs: &[Type], extents: (usize, usize, usize), factor: usize) {
    let flops = (factor * extents.0 * extents.1 * extents.2) as f64;
    let rate = |threads, best| flops / seconds(op, inputs, outputs, threads, best) / 1e9;
    let (one, two, least) = (rate(1, true), rate(2, true), rate(2, false));
    println!("{:<20} {:>18}   {one:8.1}   {two:8.1} ({least:.1})", op.name(), format!("{extents:?}"));
}

/// The fastest of several calls: the machine is shared.
fn seconds(op: &Op, inputs: &[Type], outputs: &[Type], threads: usize, best: bool) -> f64 {
    let room = workspace(op, inputs, outputs, threads);
    let bytes = (if best { room.best } else { room.least }) as usize;
    let number = |ty: &Type| if ty.dtype == DType::F32 { 0.01 } else { 0.0 };
    let memory = |types: &[Type]| -> Vec<Vec<f32>> {
        types.iter().map(|ty| vec![number(ty); ty.shape.elements()]).collect()
    };
    let (mut read, mut written, mut scratch) = (memory(inputs), memory(outputs), vec![0.0_f32; bytes / 4]);
    let operand = |(data, ty): (&mut Vec<f32>, &Type)| CpuOperand {
        pointer: data.as_mut_ptr().cast(),
        ty: *ty,
        accumulate: false,
    };
    let inputs: Vec<CpuOperand> = read.iter_mut().zip(inputs).map(operand).collect();
    let outputs: Vec<CpuOperand> = written.iter_mut().zip(outputs).map(operand).collect();
    let workspace = ScratchMemory { pointer: scratch.as_mut_ptr().cast(), bytes };
    let call = Call { op, inputs: &inputs, outputs: &outputs, workspace };
    Pool::new(threads).unwrap().enter(|| {
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        while begin.elapsed().as_secs_f64() < 0.15 {
            let start = Instant::now();
            // SAFETY: the operands are whole vectors of their own, alive until the function ends.
            unsafe { run(&call) }.unwrap();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    })
}
