//! Attention as graphs of cuDNN's nodes: scores, masks, softmax and products, which its engines run as one kernel.
//!
//! The graphs are those that its engines recognise, node by node; another order of the same mathematics finds no engine.
//! Keys and values are handed over transposed where a product wants them so, by their strides. Documents are a mask: a
//! query sees keys from the first position of its document on. Scores never reach memory.
#![allow(unsafe_code, reason = "queues plans on addresses that a judged schedule gave out")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_exec::ExecError;

use super::cudnn::{Cudnn, Descriptor, Kind, Of, attribute};
use crate::lower::{Attention, AttentionShape, AttentionTensor, Place};

/// Element types as the library numbers them.
const F32: i32 = 0;
const I32: i32 = 4;
const BF16: i32 = 9;
const BOOLEAN: i32 = 11;
/// Pointwise modes.
const ADD: i32 = 0;
const MUL: i32 = 1;
const DIV: i32 = 6;
const SUB: i32 = 9;
const EXP: i32 = 13;
const LOG: i32 = 15;
const IDENTITY: i32 = 21;
const AT_LEAST: i32 = 303;
const INDEX: i32 = 501;
const SELECT: i32 = 601;
/// Reductions.
const SUM: i32 = 0;
const MAX: i32 = 3;
/// Axes of scores.
const QUERY: i64 = 2;
const KEY: i64 = 3;
/// Bytes that every address is a multiple of; the plan's own are multiples of more.
const ALIGNMENT: i64 = 16;

/// Plans by shape.
#[derive(Debug)]
pub(crate) struct Attentions {
    cudnn: Arc<Cudnn>,
    plans: Mutex<BTreeMap<AttentionShape, Result<Arc<Plan>, ExecError>>>,
}

/// A plan with the scalars it reads from the host.
#[derive(Debug)]
struct Plan {
    descriptor: Descriptor,
    scalars: Vec<(i64, Box<f32>)>,
    workspace: u64,
}

/// A plan with its addresses.
#[derive(Debug)]
pub(crate) struct BoundAttention {
    plan: Arc<Plan>,
    pack: Descriptor,
}

impl Attentions {
    pub(crate) fn new(cudnn: Arc<Cudnn>) -> Attentions {
        Attentions { cudnn, plans: Mutex::default() }
    }

    pub(crate) fn version(&self) -> usize {
        self.cudnn.version()
    }

    /// Scratch bytes of the plan for a shape; `None` when no engine takes it.
    pub(crate) fn workspace(&self, shape: &AttentionShape) -> Option<u64> {
        self.plan(shape).ok().map(|plan| plan.workspace)
    }

    fn plan(&self, shape: &AttentionShape) -> Result<Arc<Plan>, ExecError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.entry(*shape).or_insert_with(|| Plan::new(&self.cudnn, shape).map(Arc::new));
        plan.clone()
    }

    /// Shapes that no engine takes, each with the library's reason.
    pub(crate) fn refused(&self) -> Vec<String> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = plans.iter().filter_map(|(shape, plan)| Some((shape, plan.as_ref().err()?)));
        refused.map(|(shape, why)| format!("{shape}: {why}")).collect()
    }

    /// Binds a plan to addresses, its scratch to `workspace`.
    ///
    /// # Errors
    ///
    /// When there is no plan for the shape.
    pub(crate) fn bind(
        &self,
        attention: &Attention,
        address: &dyn Fn(Place) -> u64,
        workspace: u64,
    ) -> Result<BoundAttention, ExecError> {
        let plan = self.plan(&attention.shape)?;
        let mut ids: Vec<i64> = attention.places.iter().map(|(tensor, _)| *tensor as i64).collect();
        let mut pointers: Vec<*mut c_void> =
            attention.places.iter().map(|(_, place)| address(*place) as *mut c_void).collect();
        for (id, scalar) in &plan.scalars {
            ids.push(*id);
            pointers.push(std::ptr::from_ref::<f32>(scalar).cast_mut().cast());
        }
        let mut pack = self.cudnn.describe(Kind::Pack)?;
        pack.set(attribute::PACK_POINTERS, Of::Pointer, &pointers)?;
        pack.set(attribute::PACK_IDS, Of::Int64, &ids)?;
        pack.set(attribute::PACK_WORKSPACE, Of::Pointer, &[workspace as *mut c_void])?;
        pack.finalize()?;
        Ok(BoundAttention { plan, pack })
    }

    /// Queues a bound plan.
    ///
    /// # Safety
    ///
    /// The addresses it was bound to hold the operands, and nothing else uses them.
    pub(crate) unsafe fn run(&self, bound: &BoundAttention) -> Result<(), ExecError> {
        // SAFETY: the caller's promise.
        unsafe { self.cudnn.execute(&bound.plan.descriptor, &bound.pack) }
    }
}

impl Plan {
    fn new(cudnn: &Arc<Cudnn>, shape: &AttentionShape) -> Result<Plan, ExecError> {
        let mut graph =
            Builder { cudnn, tensors: Vec::new(), nodes: Vec::new(), kept: Vec::new(), scalars: Vec::new() };
        if shape.backward {
            backward(&mut graph, shape)?;
        } else {
            forward(&mut graph, shape)?;
        }
        let descriptor = cudnn.plan(&graph.nodes)?;
        let mut workspace = [0i64];
        descriptor.get(attribute::PLAN_WORKSPACE, Of::Int64, &mut workspace)?;
        Ok(Plan { descriptor, scalars: graph.scalars, workspace: workspace[0].max(0) as u64 })
    }
}

/// Extents and strides, in elements: batch, head, position, column.
#[derive(Clone, Copy)]
struct Form {
    extents: [i64; 4],
    strides: [i64; 4],
}

impl Form {
    /// Elements in the order of the extents, none between them.
    fn packed(extents: [i64; 4]) -> Form {
        let [_, b, c, d] = extents;
        Form { extents, strides: [b * c * d, c * d, d, 1] }
    }

    /// `(B, T, H, D)` in memory, seen by head.
    fn rows([batch, heads, length, width]: [i64; 4]) -> Form {
        let row = heads * width;
        Form { extents: [batch, heads, length, width], strides: [length * row, width, row, 1] }
    }

    /// The last two axes exchanged.
    fn transposed(self) -> Form {
        let swap = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        Form { extents: swap(self.extents), strides: swap(self.strides) }
    }
}

/// The tensors of a shape.
struct Forms {
    query: Form,
    key: Form,
    scores: Form,
    /// One number for each query of each head.
    statistics: Form,
    /// First positions of documents, one for each query.
    starts: Form,
}

impl Forms {
    fn of(shape: &AttentionShape) -> Forms {
        let AttentionShape { batch, length, heads, key_heads, width, .. } = *shape;
        let [b, t, h, k, d] = [batch, length, heads, key_heads, width].map(|extent| extent as i64);
        Forms {
            query: Form::rows([b, h, t, d]),
            key: Form::rows([b, k, t, d]),
            scores: Form::packed([b, h, t, t]),
            statistics: Form::packed([b, h, t, 1]),
            starts: Form { extents: [b, 1, t, 1], strides: [t, t, 1, 1] },
        }
    }
}

/// A tensor of the graph under construction.
#[derive(Clone, Copy)]
struct Tensor(usize);

/// A graph under construction. Descriptors stay until the plan is made.
struct Builder<'a> {
    cudnn: &'a Arc<Cudnn>,
    tensors: Vec<(Form, Descriptor)>,
    nodes: Vec<Descriptor>,
    kept: Vec<Descriptor>,
    scalars: Vec<(i64, Box<f32>)>,
}

/// Ids of tensors that no caller binds begin here.
const FIRST_INNER: i64 = 1000;

impl Builder<'_> {
    fn tensor(&mut self, id: i64, form: Form, dtype: i32, mark: Option<i32>) -> Result<Tensor, ExecError> {
        let mut tensor = self.cudnn.describe(Kind::Tensor)?;
        tensor.set(attribute::TENSOR_TYPE, Of::DataType, &[dtype])?;
        tensor.set(attribute::TENSOR_EXTENTS, Of::Int64, &form.extents)?;
        tensor.set(attribute::TENSOR_STRIDES, Of::Int64, &form.strides)?;
        tensor.set(attribute::TENSOR_ID, Of::Int64, &[id])?;
        tensor.set(attribute::TENSOR_ALIGNMENT, Of::Int64, &[ALIGNMENT])?;
        if let Some(mark) = mark {
            tensor.set(mark, Of::Boolean, &[true])?;
        }
        tensor.finalize()?;
        self.tensors.push((form, tensor));
        Ok(Tensor(self.tensors.len() - 1))
    }

    /// A tensor in memory.
    fn bound(&mut self, tensor: AttentionTensor, form: Form, dtype: i32) -> Result<Tensor, ExecError> {
        self.tensor(tensor as i64, form, dtype, None)
    }

    fn next_id(&self) -> i64 {
        FIRST_INNER + self.tensors.len() as i64
    }

    /// A tensor that never reaches memory.
    fn inner(&mut self, form: Form, dtype: i32) -> Result<Tensor, ExecError> {
        self.tensor(self.next_id(), form, dtype, Some(attribute::TENSOR_VIRTUAL))
    }

    /// A number that the host holds.
    fn scalar(&mut self, number: f32) -> Result<Tensor, ExecError> {
        let id = self.next_id();
        self.scalars.push((id, Box::new(number)));
        self.tensor(id, Form::packed([1; 4]), F32, Some(attribute::TENSOR_BY_VALUE))
    }

    fn descriptor(&self, tensor: Tensor) -> &Descriptor {
        &self.tensors[tensor.0].1
    }

    /// A node whose operands are linked under the names beside them.
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

    fn matmul(&mut self, a: Tensor, b: Tensor, c: Tensor) -> Result<(), ExecError> {
        let mut operator = self.cudnn.describe(Kind::Matmul)?;
        operator.set(attribute::MATMUL_TYPE, Of::DataType, &[F32])?;
        operator.finalize()?;
        let operands =
            [(attribute::MATMUL_NODE_A, a), (attribute::MATMUL_NODE_B, b), (attribute::MATMUL_NODE_C, c)];
        self.node(Kind::MatmulNode, Some((attribute::MATMUL_NODE_DESCRIPTOR, operator)), &operands)
    }

    /// `y = mode(x, others)` in the given precision.
    fn pointwise_to(
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
    fn pointwise(&mut self, mode: i32, x: Tensor, b: Option<Tensor>) -> Result<Tensor, ExecError> {
        let y = self.inner(self.tensors[x.0].0, F32)?;
        let others: Vec<(i32, Tensor)> = b.map(|b| (attribute::POINTWISE_NODE_B, b)).into_iter().collect();
        self.pointwise_to((mode, F32), None, x, &others, y)?;
        Ok(y)
    }

    /// The position of each score along an axis.
    fn index(&mut self, x: Tensor, axis: i64, precision: i32) -> Result<Tensor, ExecError> {
        let y = self.inner(self.tensors[x.0].0, I32)?;
        self.pointwise_to((INDEX, precision), Some(axis), x, &[], y)?;
        Ok(y)
    }

    /// `x` where `a ≥ b`, else −∞.
    fn keep_where(&mut self, x: Tensor, a: Tensor, b: Tensor) -> Result<Tensor, ExecError> {
        let form = self.tensors[x.0].0;
        let keep = self.inner(form, BOOLEAN)?;
        self.pointwise_to((AT_LEAST, BOOLEAN), None, a, &[(attribute::POINTWISE_NODE_B, b)], keep)?;
        let outside = self.scalar(f32::NEG_INFINITY)?;
        let y = self.inner(form, F32)?;
        let others = [(attribute::POINTWISE_NODE_B, outside), (attribute::POINTWISE_NODE_T, keep)];
        self.pointwise_to((SELECT, F32), None, x, &others, y)?;
        Ok(y)
    }

    fn reduce_to(&mut self, operator: i32, x: Tensor, y: Tensor) -> Result<(), ExecError> {
        let mut reduction = self.cudnn.describe(Kind::Reduction)?;
        reduction.set(attribute::REDUCTION_TYPE, Of::DataType, &[F32])?;
        reduction.set(attribute::REDUCTION_OPERATOR, Of::ReductionOperator, &[operator])?;
        if self.cudnn.says_order() {
            reduction.set(attribute::REDUCTION_IS_DETERMINISTIC, Of::Boolean, &[false])?;
        }
        reduction.finalize()?;
        let operands = [(attribute::REDUCTION_NODE_X, x), (attribute::REDUCTION_NODE_Y, y)];
        self.node(Kind::ReductionNode, Some((attribute::REDUCTION_NODE_DESCRIPTOR, reduction)), &operands)
    }

    fn reduce(&mut self, operator: i32, x: Tensor, form: Form) -> Result<Tensor, ExecError> {
        let y = self.inner(form, F32)?;
        self.reduce_to(operator, x, y)?;
        Ok(y)
    }

    /// The same elements under another form.
    fn view(&mut self, x: Tensor, form: Form, dtype: i32) -> Result<Tensor, ExecError> {
        let y = self.inner(form, dtype)?;
        let operands = [(attribute::RESHAPE_NODE_X, x), (attribute::RESHAPE_NODE_Y, y)];
        self.node(Kind::ReshapeNode, None, &operands)?;
        Ok(y)
    }

    /// Scores that nobody may see become −∞: those before the query's document, then those behind the query.
    fn masked(&mut self, mut x: Tensor, shape: &AttentionShape, forms: &Forms) -> Result<Tensor, ExecError> {
        if shape.documents {
            let starts = self.bound(AttentionTensor::Starts, forms.starts, I32)?;
            let key = self.index(x, KEY, I32)?;
            x = self.keep_where(x, key, starts)?;
        }
        if shape.causal {
            let (query, key) = (self.index(x, QUERY, F32)?, self.index(x, KEY, F32)?);
            x = self.keep_where(x, query, key)?;
        }
        Ok(x)
    }
}

fn forward(g: &mut Builder, shape: &AttentionShape) -> Result<(), ExecError> {
    use AttentionTensor::{K, Lse, O, Q, V};
    let forms = Forms::of(shape);
    let q = g.bound(Q, forms.query, BF16)?;
    let k = g.bound(K, forms.key.transposed(), BF16)?;
    let v = g.bound(V, forms.key, BF16)?;
    let o = g.bound(O, forms.query, BF16)?;
    let lse = g.bound(Lse, forms.statistics, F32)?;
    let scores = g.inner(forms.scores, F32)?;
    g.matmul(q, k, scores)?;
    let scale = g.scalar(shape.scale())?;
    let scaled = g.pointwise(MUL, scores, Some(scale))?;
    let x = g.masked(scaled, shape, &forms)?;
    let most = g.reduce(MAX, x, forms.statistics)?;
    let below = g.pointwise(SUB, x, Some(most))?;
    let powers = g.pointwise(EXP, below, None)?;
    let divisor = g.reduce(SUM, powers, forms.statistics)?;
    let log = g.pointwise(LOG, divisor, None)?;
    g.pointwise_to((ADD, F32), None, most, &[(attribute::POINTWISE_NODE_B, log)], lse)?;
    let p = g.inner(forms.scores, BF16)?;
    g.pointwise_to((DIV, F32), None, powers, &[(attribute::POINTWISE_NODE_B, divisor)], p)?;
    g.matmul(p, v, o)
}

fn backward(g: &mut Builder, shape: &AttentionShape) -> Result<(), ExecError> {
    use AttentionTensor::{DK, DO, DQ, DV, Delta, DqSum, K, Lse, O, Q, V};
    let forms = Forms::of(shape);
    let q = g.bound(Q, forms.query, BF16)?;
    let k = g.bound(K, forms.key.transposed(), BF16)?;
    let v = g.bound(V, forms.key.transposed(), BF16)?;
    let o = g.bound(O, forms.query, BF16)?;
    let d_o = g.bound(DO, forms.query, BF16)?;
    let lse = g.bound(Lse, forms.statistics, F32)?;
    let [dq, dk, dv] =
        [g.bound(DQ, forms.query, BF16)?, g.bound(DK, forms.key, BF16)?, g.bound(DV, forms.key, BF16)?];
    let (scale, one) = (g.scalar(shape.scale())?, g.scalar(1.0)?);

    // δ = Σ do · o, kept in memory.
    let packed = Form::packed(forms.query.extents);
    let product = g.inner(packed, F32)?;
    g.pointwise_to((MUL, F32), None, d_o, &[(attribute::POINTWISE_NODE_B, o)], product)?;
    let sums = g.reduce(SUM, product, forms.statistics)?;
    let delta = g.bound(Delta, forms.statistics, F32)?;
    g.pointwise_to((MUL, F32), None, sums, &[(attribute::POINTWISE_NODE_B, one)], delta)?;

    // p = exp(scale · q·kᵀ − lse), masked.
    let scores = g.inner(forms.scores, F32)?;
    g.matmul(q, k, scores)?;
    let scaled = g.pointwise(MUL, scores, Some(scale))?;
    let below = g.pointwise(SUB, scaled, Some(lse))?;
    let x = g.masked(below, shape, &forms)?;
    let p = g.pointwise(EXP, x, None)?;

    // dv = pᵀ·do
    let turned = forms.scores.transposed();
    let turned = Form { extents: forms.scores.extents, strides: turned.strides };
    let p_turned = g.view(p, turned, BF16)?;
    keys_grad(g, &forms, p_turned, d_o, dv)?;

    // ds = scale · p · (do·vᵀ − δ)
    let dp = g.inner(forms.scores, F32)?;
    g.matmul(d_o, v, dp)?;
    let less = g.pointwise(SUB, dp, Some(delta))?;
    let weighted = g.pointwise(MUL, less, Some(p))?;
    let ds = g.pointwise(MUL, weighted, Some(scale))?;

    // dk = dsᵀ·q
    let ds_turned = g.view(ds, turned, BF16)?;
    keys_grad(g, &forms, ds_turned, q, dk)?;

    // dq = ds·k, added up in f32 in memory unless its order is to be fixed.
    let straight = g.view(k, forms.key, F32)?;
    if shape.deterministic {
        return g.matmul(ds, straight, dq);
    }
    let sum = g.bound(DqSum, packed, F32)?;
    g.matmul(ds, straight, sum)?;
    g.pointwise_to((IDENTITY, F32), None, sum, &[], dq)
}

/// `left · right` of every query head, added up over the heads that share a key head.
fn keys_grad(
    g: &mut Builder,
    forms: &Forms,
    left: Tensor,
    right: Tensor,
    out: Tensor,
) -> Result<(), ExecError> {
    if forms.query.extents[1] == forms.key.extents[1] {
        return g.matmul(left, right, out);
    }
    let each = g.inner(Form::packed(forms.query.extents), BF16)?;
    g.matmul(left, right, each)?;
    g.reduce_to(SUM, each, out)
}
