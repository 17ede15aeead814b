//! Prints how fast the linear layer and its gradients run, in GFLOP/s, on one and on two threads.
//!
//! ```text
//! cargo run --release -p plimsoll-exec --example matmul_speed
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement for people to read")]

use std::time::Instant;

use plimsoll_exec::cpu::{Call, Operand, run, workspace};
use plimsoll_graph::{Op, Type};

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

fn main() {
    println!("{:<20} {:>16}   1 thread  2 threads (least workspace)", "op", "(rows, out, in)");
    for (rows, out, input) in LAYERS {
        let (x, y, w) = (Type::f32([rows, input]), Type::f32([rows, out]), Type::f32([out, input]));
        let calls = [
            (Op::Linear { transposed: false, bias: false }, [x, w], y),
            (Op::LinearGradInput { transposed: false }, [w, y], x),
            (Op::LinearGradWeight { transposed: false }, [x, y], w),
        ];
        for (op, inputs, output) in calls {
            let flops = 2.0 * (rows * out * input) as f64;
            let rate = |threads, best| flops / seconds(&op, &inputs, output, threads, best) / 1e9;
            println!(
                "{:<20} {:>16}   {:8.1}   {:8.1} ({:.1})",
                op.name(),
                format!("({rows}, {out}, {input})"),
                rate(1, true),
                rate(2, true),
                rate(2, false)
            );
        }
    }
}

/// The fastest of several calls: the machine is shared.
fn seconds(op: &Op, inputs: &[Type], output: Type, threads: usize, best: bool) -> f64 {
    let room = workspace(op, inputs, &[output], threads);
    let bytes = (if best { room.best } else { room.least }) as usize;
    let mut data: Vec<Vec<f32>> = inputs.iter().map(|ty| vec![0.5; ty.shape.elements()]).collect();
    let mut result = vec![0.0_f32; output.shape.elements()];
    let mut scratch = vec![0.0_f32; bytes / 4];
    let operand =
        |data: &mut Vec<f32>, ty| Operand { pointer: data.as_mut_ptr().cast(), ty, accumulate: false };
    let inputs: Vec<Operand> = data.iter_mut().zip(inputs).map(|(data, ty)| operand(data, *ty)).collect();
    let outputs = [operand(&mut result, output)];
    let scratch = operand(&mut scratch, Type::i32([bytes]));
    let call = Call { op, inputs: &inputs, outputs: &outputs, workspace: scratch };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        while begin.elapsed().as_secs_f64() < 0.15 {
            let start = Instant::now();
            run(&call).unwrap();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    })
}
