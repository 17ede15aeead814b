//! For tests: operands in ordinary memory, a call, and the results; on any number of threads, in the least or
//! the best workspace.
#![allow(unsafe_code, reason = "calls are made of addresses")]
#![allow(clippy::cast_ptr_alignment, reason = "the addresses are those of words")]

use plimsoll_graph::{Op, Shape, Type, infer};

use super::{Call, CpuOperand, Pool, ScratchMemory, run, workspace};
use crate::ExecError;

/// One call to be made, operand by operand.
pub(super) struct Trial {
    op: Op,
    inputs: Vec<(Type, Vec<u32>)>,
    begin: Vec<Option<Vec<f32>>>,
    over: Vec<(usize, usize)>,
    threads: usize,
    best: bool,
}

impl Trial {
    pub(super) fn new(op: Op) -> Trial {
        Trial { op, inputs: Vec::new(), begin: vec![None; 7], over: Vec::new(), threads: 1, best: false }
    }

    /// A call whose inputs are floats between −½ and ½.
    pub(super) fn random(op: Op, shapes: &[&[usize]]) -> Trial {
        shapes.iter().enumerate().fold(Trial::new(op), |trial, (index, shape)| {
            let shape = Shape::new(shape).unwrap();
            let data: Vec<f32> =
                numbers(shape.elements(), index as u64).iter().map(|number| number / 4.0).collect();
            trial.f32(shape, &data)
        })
    }

    /// The next input.
    pub(super) fn f32(mut self, shape: impl Into<Shape>, data: &[f32]) -> Trial {
        self.inputs.push((Type::f32(shape), data.iter().map(|x| x.to_bits()).collect()));
        self
    }

    /// The next input.
    pub(super) fn i32(mut self, shape: impl Into<Shape>, data: &[i32]) -> Trial {
        self.inputs.push((Type::i32(shape), data.iter().map(|&x| x as u32).collect()));
        self
    }

    /// Output `output` is added to these numbers (or updates them).
    pub(super) fn onto(mut self, output: usize, data: &[f32]) -> Trial {
        self.begin[output] = Some(data.to_vec());
        self
    }

    /// Output `output` takes the place of input `input`.
    pub(super) fn over(mut self, output: usize, input: usize) -> Trial {
        assert!(self.op.may_overwrite(output).contains(&input));
        self.over.push((output, input));
        self
    }

    pub(super) fn threads(mut self, threads: usize) -> Trial {
        self.threads = threads;
        self
    }

    /// With as much scratch as the kernel can use, instead of the least it needs.
    pub(super) fn best_workspace(mut self, best: bool) -> Trial {
        self.best = best;
        self
    }

    /// Input `index` as floats.
    pub(super) fn input(&self, index: usize) -> Vec<f32> {
        self.inputs[index].1.iter().map(|&bits| f32::from_bits(bits)).collect()
    }

    /// The outputs; elements that no kernel writes are NaN.
    pub(super) fn run(&self) -> Vec<Vec<f32>> {
        self.attempt().unwrap()
    }

    /// The outputs, once they have come out the same on one and two threads, in the least and the best workspace.
    pub(super) fn run_everywhere(mut self) -> Vec<Vec<f32>> {
        let first = self.run();
        for (threads, best) in [(1, true), (2, false), (2, true)] {
            self = self.threads(threads).best_workspace(best);
            let again = self.run();
            let same =
                first.iter().flatten().zip(again.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{} differs on {threads} threads, best workspace: {best}", self.op.name());
        }
        first
    }

    pub(super) fn attempt(&self) -> Result<Vec<Vec<f32>>, ExecError> {
        let types: Vec<Type> = self.inputs.iter().map(|input| input.0).collect();
        let results = infer(&self.op, &types).unwrap();
        let mut outputs: Vec<Vec<u32>> =
            results.iter().map(|ty| vec![f32::NAN.to_bits(); ty.shape.elements()]).collect();
        for (output, begin) in outputs.iter_mut().zip(&self.begin) {
            if let Some(begin) = begin {
                *output = begin.iter().map(|x| x.to_bits()).collect();
            }
        }
        let mut inputs: Vec<(Type, Vec<u32>)> = self.inputs.clone();
        let inputs: Vec<CpuOperand> = inputs
            .iter_mut()
            .map(|(ty, data)| CpuOperand { pointer: data.as_mut_ptr().cast(), ty: *ty, accumulate: false })
            .collect();
        let places: Vec<CpuOperand> = (0..outputs.len())
            .map(|index| {
                let pointer = match self.over.iter().find(|over| over.0 == index) {
                    Some(&(_, input)) => inputs[input].pointer,
                    None => outputs[index].as_mut_ptr().cast(),
                };
                CpuOperand { pointer, ty: results[index], accumulate: self.begin[index].is_some() }
            })
            .collect();
        let room = workspace(&self.op, &types, &results, self.threads);
        let bytes = if self.best { room.best } else { room.least } as usize;
        let mut scratch = vec![f32::NAN; bytes.div_ceil(4)];
        let workspace = ScratchMemory { pointer: scratch.as_mut_ptr().cast(), bytes };
        let call = Call { op: &self.op, inputs: &inputs, outputs: &places, workspace };
        // SAFETY: the operands are whole vectors that live here; an output lies over an input only where the op
        // allows it, which `over` has checked.
        Pool::new(self.threads).unwrap().enter(|| unsafe { run(&call) })?;
        Ok(places
            .iter()
            // SAFETY: the place is one of the vectors above, which are alive.
            .map(|place| unsafe {
                std::slice::from_raw_parts(place.pointer.cast::<f32>(), place.ty.shape.elements()).to_vec()
            })
            .collect())
    }
}

/// `count` numbers between −2 and 2 that depend on `seed`.
pub(super) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let stream = crate::random::Stream::new(seed, 1, 0);
    (0..count).map(|i| 4.0 * stream.uniform(0, i as u32) - 2.0).collect()
}

/// Panics unless every number is within `tolerance` of the largest expected one.
pub(super) fn assert_near(actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    let largest = expected.iter().fold(1e-30, |largest, x| f64::max(largest, x.abs()));
    for (index, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(a) - e).abs() / largest;
        assert!(error <= tolerance, "element {index}: {a}, not {e} (off by {error:.1e} of the largest)");
    }
}
