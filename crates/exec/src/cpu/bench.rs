//! A workbench for kernel tests: operands of one call, and the call made on one and on two threads, with the
//! least and with the best workspace. All four must agree to the bit.

use plimsoll_graph::{Op, Shape, Type};

use super::{Call, Operand, Pool, run, workspace};
use crate::ExecError;
use crate::random::Stream;

/// One call with its data.
pub(super) struct Bench {
    op: Op,
    inputs: Vec<(Type, Vec<u32>)>,
    outputs: Vec<(Type, Vec<f32>, bool)>,
}

impl Bench {
    /// All operands are floats between −½ and ½; outputs hold such numbers before the call, too.
    pub(super) fn floats(op: &Op, inputs: &[&[usize]], outputs: &[&[usize]]) -> Bench {
        let float = |shape: &[usize]| Type::f32(Shape::new(shape).unwrap());
        let inputs: Vec<Type> = inputs.iter().map(|shape| float(shape)).collect();
        let outputs: Vec<Type> = outputs.iter().map(|shape| float(shape)).collect();
        let numbers = |seed: usize, ty: &Type| -> Vec<f32> {
            let stream = Stream::new(seed as u64, 7, 0);
            (0..ty.shape.elements() as u32).map(|i| stream.uniform(0, i) - 0.5).collect()
        };
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect();
        Bench {
            op: op.clone(),
            inputs: inputs.iter().enumerate().map(|(i, ty)| (*ty, bits(numbers(i, ty)))).collect(),
            outputs: outputs.iter().enumerate().map(|(i, ty)| (*ty, numbers(100 + i, ty), false)).collect(),
        }
    }

    /// Makes input `index` integers.
    pub(super) fn integers(&mut self, index: usize, numbers: &[i32]) {
        let (ty, data) = &mut self.inputs[index];
        *ty = Type::i32(ty.shape);
        *data = numbers.iter().map(|&number| number as u32).collect();
    }

    /// Gives input `index` these floats.
    pub(super) fn set(&mut self, index: usize, numbers: &[f32]) {
        self.inputs[index].1 = numbers.iter().map(|number| number.to_bits()).collect();
    }

    /// Whether output `index` is added to.
    pub(super) fn accumulate(&mut self, index: usize, accumulate: bool) {
        self.outputs[index].2 = accumulate;
    }

    /// Input `index` as floats.
    pub(super) fn input(&self, index: usize) -> Vec<f32> {
        self.inputs[index].1.iter().map(|&bits| f32::from_bits(bits)).collect()
    }

    /// What output `index` holds before the call.
    pub(super) fn before(&self, index: usize) -> &[f32] {
        &self.outputs[index].1
    }

    /// The outputs, once they have come out the same for all threads and workspaces.
    pub(super) fn run_everywhere(&self) -> Vec<Vec<f32>> {
        let first = self.run(1, false).unwrap();
        for (threads, best) in [(1, true), (2, false), (2, true)] {
            let again = self.run(threads, best).unwrap();
            let same =
                first.iter().flatten().zip(again.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{} differs on {threads} threads, best workspace: {best}", self.op.name());
        }
        first
    }

    /// One call.
    pub(super) fn run(&self, threads: usize, best: bool) -> Result<Vec<Vec<f32>>, ExecError> {
        let input_types: Vec<Type> = self.inputs.iter().map(|(ty, _)| *ty).collect();
        let output_types: Vec<Type> = self.outputs.iter().map(|(ty, ..)| *ty).collect();
        let room = workspace(&self.op, &input_types, &output_types, threads);
        let bytes = if best { room.best } else { room.least } as usize;
        let mut scratch = vec![f32::NAN; bytes.div_ceil(4)];
        let mut inputs: Vec<Vec<u32>> = self.inputs.iter().map(|(_, data)| data.clone()).collect();
        let mut outputs: Vec<Vec<f32>> = self.outputs.iter().map(|(_, data, _)| data.clone()).collect();
        let operand = |pointer: *mut u8, ty: Type, accumulate| Operand { pointer, ty, accumulate };
        let input_operands: Vec<Operand> = inputs
            .iter_mut()
            .zip(&input_types)
            .map(|(data, ty)| operand(data.as_mut_ptr().cast(), *ty, false))
            .collect();
        let output_operands: Vec<Operand> = outputs
            .iter_mut()
            .zip(&self.outputs)
            .map(|(data, (ty, _, accumulate))| operand(data.as_mut_ptr().cast(), *ty, *accumulate))
            .collect();
        let workspace = operand(scratch.as_mut_ptr().cast(), Type::i32([bytes]), false);
        let call = Call { op: &self.op, inputs: &input_operands, outputs: &output_operands, workspace };
        Pool::new(threads).unwrap().enter(|| run(&call))?;
        Ok(outputs)
    }
}
