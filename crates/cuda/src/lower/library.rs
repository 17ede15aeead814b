//! Requests to libraries for products and attention: shapes, places and scratch.

use std::fmt;

use plimsoll_graph::DType;
use plimsoll_graph::op::Collective;

use super::place::Place;

/// The addend of a product, before the sum is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addend {
    /// Nothing.
    None,
    /// The numbers that the result's place holds.
    Result,
    /// A matrix of the result's shape and type.
    Matrix,
    /// One row for all rows, of this type.
    Row(DType),
}

/// All that an algorithm may depend on. Matrices lie row by row: `c (m, n) = a·b`, `a` being `(m, k)`, or `(k, m)` when
/// transposed, and `b` `(k, n)`, or `(n, k)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Matrices in a batch, each right behind the other.
    pub batch: usize,
    /// Whether `aᵀ` is meant.
    pub transpose_a: bool,
    /// Whether `bᵀ` is meant.
    pub transpose_b: bool,
    /// Element types of `a`, `b` and `c`.
    pub dtypes: [DType; 3],
    /// The addend.
    pub addend: Addend,
    /// The largest power of two that divides every address, at most [`ALIGNMENT`](super::ALIGNMENT).
    pub alignment: u64,
}

/// One product of the library.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Shape and types.
    pub signature: Signature,
    /// First factor.
    pub a: Place,
    /// Second factor.
    pub b: Place,
    /// Result.
    pub c: Place,
    /// The matrix or row that is added, if there is one.
    pub addend: Option<Place>,
    /// Scratch of the algorithm.
    pub workspace: Place,
}

/// Libraries beside our own kernels.
pub trait Library: fmt::Debug {
    /// Scratch bytes of the algorithm chosen for such a product; `None` when there is none.
    fn workspace(&self, signature: &Signature) -> Option<u64>;

    /// Scratch bytes of the plan for such attention, beside the values that the graph keeps in memory; `None` if the
    /// library has no plan.
    fn attention(&self, _: &AttentionShape) -> Option<u64> {
        None
    }
}

/// No library: every product is our own.
#[derive(Clone, Copy, Debug)]
pub struct NoLibrary;

impl Library for NoLibrary {
    fn workspace(&self, _: &Signature) -> Option<u64> {
        None
    }
}

/// All that a plan of the library may depend on. Values are bf16, `(B, T, H, D)`; statistics are f32, `(B, H, T)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, and all combinations are asked for"
)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Positions of a sequence.
    pub length: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Whether a query sees no key behind it.
    pub causal: bool,
    /// Whether a query sees no key before its document.
    pub documents: bool,
    /// Documents that the ragged form has room for; `None` if documents are a mask.
    pub slots: Option<usize>,
    /// Whether the derivative is meant.
    pub backward: bool,
    /// Whether every sum has one order.
    pub deterministic: bool,
    /// The factor of scores, as bits, so that shapes can be ordered.
    pub scale_bits: u32,
}

impl AttentionShape {
    /// The factor of scores.
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_bits)
    }
}

impl fmt::Display for AttentionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionShape { batch, length, heads, key_heads, width, .. } = self;
        let what = if self.backward { "the derivative of attention" } else { "attention" };
        write!(
            f,
            "{what} over {batch} × {length} positions, {heads} heads and {key_heads} of keys, {width} wide"
        )
    }
}

/// A value of attention in memory; the numbers are ids in the library's graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the op's equation")]
pub enum AttentionTensor {
    Q = 1,
    K = 2,
    V = 3,
    O = 4,
    Lse = 5,
    DO = 6,
    DQ = 7,
    DK = 8,
    DV = 9,
    /// `Σ do · o` of each query.
    Delta = 10,
    /// The sum of `dq` in f32.
    DqSum = 11,
    /// First positions of documents.
    Starts = 12,
    /// Gradients of keys and values for each query head, before those that share a key head are summed.
    WideDK = 13,
    WideDV = 14,
    /// Lengths of documents, as queries and as keys.
    QueryLengths = 15,
    KeyLengths = 16,
    /// First elements of documents: in queries, in keys, and in numbers for each query.
    QueryOffsets = 17,
    KeyOffsets = 18,
    StatisticOffsets = 19,
}

/// Attention by the library.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The shape of the attention.
    pub shape: AttentionShape,
    /// Where its operands and results lie.
    pub places: Vec<(AttentionTensor, Place)>,
    /// Scratch of the plan.
    pub workspace: Place,
    /// Where the input `doc_start` lies, if the plan is of the ragged form: a kernel makes the plan's tables from it.
    pub ragged: Option<Place>,
}

/// An exchange with its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankExchange {
    /// The kind, and the ranks that take part.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: DType,
    /// The elements that this rank gives.
    pub source: Place,
    /// The place of the result.
    pub destination: Place,
    /// Elements of the whole.
    pub whole: usize,
    /// Elements of a shard; of a sum that all ranks get, the whole.
    pub share: usize,
    /// The number among the exchanges of a schedule, in the order in which they begin.
    pub number: usize,
}

impl RankExchange {
    /// Bytes read and written.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let [whole, share] = [self.whole, self.share].map(|elements| (elements * self.dtype.bytes()) as u64);
        match self.collective {
            Collective::AllReduce { .. } => (whole, whole),
            Collective::ReduceScatter { .. } | Collective::OwnShard { .. } => (whole, share),
            Collective::AllGather { .. } => (share, whole),
        }
    }

    /// First element and number of elements of a rank's shard that are elements of the whole.
    pub(crate) fn part(&self, rank: usize) -> (usize, usize) {
        let first = (rank * self.share).min(self.whole);
        (first, self.share.min(self.whole - first))
    }
}
