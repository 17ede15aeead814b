//! A graph of cuDNN's nodes under construction: tensors with a form in memory, and nodes between them.

use std::sync::Arc;

use plimsoll_exec::ExecError;

use super::cudnn::{Cudnn, Descriptor, Kind, Of, attribute};
use crate::lower::AttentionTensor;

/// Element types as the library numbers them.
pub(super) const F32: i32 = 0;
pub(super) const I32: i32 = 4;
pub(super) const BF16: i32 = 9;
pub(super) const BOOLEAN: i32 = 11;
pub(super) const I64: i32 = 10;
/// Pointwise modes.
pub(super) const ADD: i32 = 0;
pub(super) const MUL: i32 = 1;
pub(super) const DIV: i32 = 6;
pub(super) const SUB: i32 = 9;
pub(super) const EXP: i32 = 13;
pub(super) const LOG: i32 = 15;
pub(super) const IDENTITY: i32 = 21;
pub(super) const AT_LEAST: i32 = 303;
pub(super) const INDEX: i32 = 501;
pub(super) const SELECT: i32 = 601;
/// Reductions.
pub(super) const SUM: i32 = 0;
pub(super) const MAX: i32 = 3;
/// Bytes that every address is a multiple of; the plan's own are multiples of more.
const ALIGNMENT: i64 = 16;

/// Extents and strides, in elements: batch, head, position, column.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub(super) extents: [i64; 4],
    pub(super) strides: [i64; 4],
}

impl Form {
    /// Elements in the order of the extents, none between them.
    pub(super) fn packed(extents: [i64; 4]) -> Form {
        let [_, b, c, d] = extents;
        Form { extents, strides: [b * c * d, c * d, d, 1] }
    }

    /// `(B, T, H, D)` in memory, seen by head.
    pub(super) fn rows([batch, heads, length, width]: [i64; 4]) -> Form {
        let row = heads * width;
        Form { extents: [batch, heads, length, width], strides: [length * row, width, row, 1] }
    }

    /// The last two axes exchanged.
    pub(super) fn transposed(self) -> Form {
        let swap = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        Form { extents: swap(self.extents), strides: swap(self.strides) }
    }
}

/// How many rows, columns and terms a product has in each sequence, where that is not all.
#[derive(Clone, Copy, Default)]
pub(super) struct Lengths {
    pub(super) rows: Option<Tensor>,
    pub(super) columns: Option<Tensor>,
    pub(super) terms: Option<Tensor>,
}

/// A tensor of the graph under construction.
#[derive(Clone, Copy)]
pub(super) struct Tensor(usize);

/// A graph under construction. Descriptors stay until the plan is made.
pub(super) struct Builder<'a> {
    cudnn: &'a Arc<Cudnn>,
    tensors: Vec<(Form, Descriptor)>,
    nodes: Vec<Descriptor>,
    kept: Vec<Descriptor>,
    scalars: Vec<(i64, Box<f32>)>,
}

/// Ids of tensors that no caller binds begin here.
const FIRST_INNER: i64 = 1000;

impl<'a> Builder<'a> {
    pub(super) fn new(cudnn: &'a Arc<Cudnn>) -> Builder<'a> {
        Builder { cudnn, tensors: Vec::new(), nodes: Vec::new(), kept: Vec::new(), scalars: Vec::new() }
    }

    /// A plan for the graph.
    pub(super) fn plan(&self) -> Result<Descriptor, ExecError> {
        self.cudnn.plan(&self.nodes)
    }

    /// The numbers that a plan reads from the host, by id.
    pub(super) fn into_scalars(self) -> Vec<(i64, Box<f32>)> {
        self.scalars
    }

    fn tensor(
        &mut self,
        id: i64,
        form: Form,
        dtype: i32,
        mark: Option<i32>,
        offsets: Option<Tensor>,
    ) -> Result<Tensor, ExecError> {
        let mut tensor = self.cudnn.describe(Kind::Tensor)?;
        tensor.set(attribute::TENSOR_TYPE, Of::DataType, &[dtype])?;
        tensor.set(attribute::TENSOR_EXTENTS, Of::Int64, &form.extents)?;
        tensor.set(attribute::TENSOR_STRIDES, Of::Int64, &form.strides)?;
        tensor.set(attribute::TENSOR_ID, Of::Int64, &[id])?;
        tensor.set(attribute::TENSOR_ALIGNMENT, Of::Int64, &[ALIGNMENT])?;
        if let Some(mark) = mark {
            tensor.set(mark, Of::Boolean, &[true])?;
        }
        if let Some(offsets) = offsets {
            tensor.link(attribute::TENSOR_RAGGED_OFFSETS, self.descriptor(offsets))?;
        }
        tensor.finalize()?;
        self.tensors.push((form, tensor));
        Ok(Tensor(self.tensors.len() - 1))
    }

    /// A tensor in memory; `offsets` say where its sequences begin, unless they are all as long as each other.
    pub(super) fn bound(
        &mut self,
        tensor: AttentionTensor,
        form: Form,
        dtype: i32,
        offsets: Option<Tensor>,
    ) -> Result<Tensor, ExecError> {
        self.tensor(tensor as i64, form, dtype, None, offsets)
    }

    fn next_id(&self) -> i64 {
        FIRST_INNER + self.tensors.len() as i64
    }

    /// A tensor that never reaches memory.
    pub(super) fn inner(&mut self, form: Form, dtype: i32) -> Result<Tensor, ExecError> {
        self.tensor(self.next_id(), form, dtype, Some(attribute::TENSOR_VIRTUAL), None)
    }

    /// A number that the host holds.
    pub(super) fn scalar(&mut self, number: f32) -> Result<Tensor, ExecError> {
        let id = self.next_id();
        self.scalars.push((id, Box::new(number)));
        self.tensor(id, Form::packed([1; 4]), F32, Some(attribute::TENSOR_BY_VALUE), None)
    }

    fn descriptor(&self, tensor: Tensor) -> &Descriptor {
        &self.tensors[tensor.0].1
    }

    /// Adds a node to the graph, with each operand linked under the name given with it.
    fn node(
        &mut self,
        kind: Kind,
        operator: Option<(i32, Descriptor)>,
        operands: &[(i32, Tensor)],
    ) -> Result<(), ExecError> {
        let mut node = self.cudnn.describe(kind)?;
        if let Some((name, operator)) = operator {
            node.link(name, &operator)?;
            self.kept.push(operator);
        }
        for &(name, operand) in operands {
            node.link(name, self.descriptor(operand))?;
        }
        if matches!(kind, Kind::PointwiseNode) {
            node.set(attribute::POINTWISE_NODE_ALPHA1, Of::Float, &[1f32])?;
            node.set(attribute::POINTWISE_NODE_ALPHA2, Of::Float, &[1f32])?;
        }
        node.finalize()?;
        self.nodes.push(node);
        Ok(())
    }

    /// `c = a·b`, each sequence as far as its lengths say.
    pub(super) fn matmul(
        &mut self,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        lengths: Lengths,
    ) -> Result<(), ExecError> {
        let mut operator = self.cudnn.describe(Kind::Matmul)?;
        operator.set(attribute::MATMUL_TYPE, Of::DataType, &[F32])?;
        operator.finalize()?;
        let mut operands =
            vec![(attribute::MATMUL_NODE_A, a), (attribute::MATMUL_NODE_B, b), (attribute::MATMUL_NODE_C, c)];
        let limits = [
            (attribute::MATMUL_NODE_ROWS, lengths.rows),
            (attribute::MATMUL_NODE_COLUMNS, lengths.columns),
            (attribute::MATMUL_NODE_TERMS, lengths.terms),
        ];
        operands.extend(limits.into_iter().filter_map(|(name, length)| Some((name, length?))));
        self.node(Kind::MatmulNode, Some((attribute::MATMUL_NODE_DESCRIPTOR, operator)), &operands)
    }

    /// `y = mode(x, others)` in the given precision.
    pub(super) fn pointwise_to(
        &mut self,
        (mode, precision): (i32, i32),
        axis: Option<i64>,
        x: Tensor,
        others: &[(i32, Tensor)],
        y: Tensor,
    ) -> Result<(), ExecError> {
        let mut operator = self.cudnn.describe(Kind::Pointwise)?;
        operator.set(attribute::POINTWISE_MODE, Of::PointwiseMode, &[mode])?;
        operator.set(attribute::POINTWISE_PRECISION, Of::DataType, &[precision])?;
        if let Some(axis) = axis {
            operator.set(attribute::POINTWISE_AXIS, Of::Int64, &[axis])?;
        }
        operator.finalize()?;
        let mut operands = vec![(attribute::POINTWISE_NODE_X, x), (attribute::POINTWISE_NODE_Y, y)];
        operands.extend(others);
        self.node(Kind::PointwiseNode, Some((attribute::POINTWISE_NODE_DESCRIPTOR, operator)), &operands)
    }

    /// `mode(x)`, or `mode(x, b)`, of the form of `x`.
    pub(super) fn pointwise(&mut self, mode: i32, x: Tensor, b: Option<Tensor>) -> Result<Tensor, ExecError> {
        let y = self.inner(self.tensors[x.0].0, F32)?;
        let others: Vec<(i32, Tensor)> = b.map(|b| (attribute::POINTWISE_NODE_B, b)).into_iter().collect();
        self.pointwise_to((mode, F32), None, x, &others, y)?;
        Ok(y)
    }

    /// The position of each score along an axis.
    pub(super) fn index(&mut self, x: Tensor, axis: i64, precision: i32) -> Result<Tensor, ExecError> {
        let y = self.inner(self.tensors[x.0].0, I32)?;
        self.pointwise_to((INDEX, precision), Some(axis), x, &[], y)?;
        Ok(y)
    }

    /// `x` where `a ≥ b`, else −∞.
    pub(super) fn keep_where(&mut self, x: Tensor, a: Tensor, b: Tensor) -> Result<Tensor, ExecError> {
        let form = self.tensors[x.0].0;
        let keep = self.inner(form, BOOLEAN)?;
        self.pointwise_to((AT_LEAST, BOOLEAN), None, a, &[(attribute::POINTWISE_NODE_B, b)], keep)?;
        let outside = self.scalar(f32::NEG_INFINITY)?;
        let y = self.inner(form, F32)?;
        let others = [(attribute::POINTWISE_NODE_B, outside), (attribute::POINTWISE_NODE_T, keep)];
        self.pointwise_to((SELECT, F32), None, x, &others, y)?;
        Ok(y)
    }

    pub(super) fn reduce_to(&mut self, operator: i32, x: Tensor, y: Tensor) -> Result<(), ExecError> {
        let mut reduction = self.cudnn.describe(Kind::Reduction)?;
        reduction.set(attribute::REDUCTION_TYPE, Of::DataType, &[F32])?;
        reduction.set(attribute::REDUCTION_OPERATOR, Of::ReductionOperator, &[operator])?;
        reduction.set(attribute::REDUCTION_IS_DETERMINISTIC, Of::Boolean, &[false])?;
        reduction.finalize()?;
        let operands = [(attribute::REDUCTION_NODE_X, x), (attribute::REDUCTION_NODE_Y, y)];
        self.node(Kind::ReductionNode, Some((attribute::REDUCTION_NODE_DESCRIPTOR, reduction)), &operands)
    }

    pub(super) fn reduce(&mut self, operator: i32, x: Tensor, form: Form) -> Result<Tensor, ExecError> {
        let y = self.inner(form, F32)?;
        self.reduce_to(operator, x, y)?;
        Ok(y)
    }

    /// The same elements under another form, in sequences that begin at `offsets`.
    pub(super) fn view(
        &mut self,
        x: Tensor,
        form: Form,
        dtype: i32,
        offsets: Option<Tensor>,
    ) -> Result<Tensor, ExecError> {
        let y = self.tensor(self.next_id(), form, dtype, Some(attribute::TENSOR_VIRTUAL), offsets)?;
        let operands = [(attribute::RESHAPE_NODE_X, x), (attribute::RESHAPE_NODE_Y, y)];
        self.node(Kind::ReshapeNode, None, &operands)?;
        Ok(y)
    }
}
