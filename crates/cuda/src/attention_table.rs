//! The table of cuDNN's plans: engine and scratch of every form of attention that a run may ask for.
//!
//! A memory plan counts the scratch of these plans to the byte, so the bytes that the library asks for are facts to keep an
//! eye on. The shapes are those that [`needs`] asks a library for, where it lowers the conformance cases and the models
//! below; so the table has the forms that are in use, and no others.
//!
//! cuDNN plans for a GPU that is described to it as it does for one that is there. The description is text that it wrote
//! on such a card (`described/h200.json`). Beside it lie stand-ins for the driver and the compiler, which it opens and which
//! do nothing: scratch is known before a kernel is compiled.

use std::fmt;

use plimsoll_exec::ExecError;
use plimsoll_graph::op::Mask;
use plimsoll_graph::{DType, Op, Shape, Type, infer};

use crate::device::CudaDevice;
use crate::driver::{AttentionPlan, Libraries, Vendor};
use crate::lower::{AttentionShape, Limits, needs};
use crate::trials::half_cases;

/// Attention of known models: sequences, positions, heads of queries and of keys, columns, and whether it is causal.
const MODELS: [([usize; 5], bool); 18] = [
    ([16, 256, 8, 4, 32], true),    // the preset `s`
    ([1, 2048, 32, 8, 64], true),   // Llama-3.2-1B
    ([8, 2048, 32, 8, 64], true),   // …
    ([1, 4096, 32, 8, 128], true),  // Llama-3.1-8B
    ([2, 4096, 32, 8, 128], true),  // …
    ([1, 8192, 64, 8, 128], true),  // Llama-3.1-70B
    ([2, 1024, 14, 2, 64], true),   // Qwen2.5-0.5B
    ([32, 1024, 14, 2, 64], true),  // …
    ([2, 333, 14, 2, 64], true),    // …, rows of a length that no tile divides
    ([1, 4096, 28, 4, 128], true),  // Qwen2.5-7B
    ([1, 4096, 32, 4, 128], true),  // Qwen3-30B-A3B
    ([1, 4096, 16, 16, 128], true), // OLMoE-1B-7B
    ([16, 1024, 12, 12, 64], true), // GPT-2
    ([4, 1024, 25, 25, 64], true),  // GPT-2 XL
    ([1, 2048, 32, 32, 80], true),  // Phi-2, for the width of its heads
    ([1, 2048, 32, 32, 96], true),  // Phi-3-mini, as above
    ([16, 512, 12, 12, 64], false), // BERT
    ([32, 128, 12, 12, 64], false), // …
];

/// Plans of one version of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionTable {
    /// The version, as 10,000 · major + 100 · minor + patch.
    pub version: usize,
    /// A row for each shape, in the order of shapes.
    pub rows: Vec<PlannedAttention>,
}

/// A shape of attention with the plan for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAttention {
    /// The shape.
    pub shape: AttentionShape,
    /// The plan for the shape, or the reason why there is none.
    pub plan: Result<AttentionPlan, String>,
}

impl AttentionTable {
    /// Plans of the cuDNN in `libraries` for a GPU that `text` describes. One of the folders holds the stand-ins.
    ///
    /// # Errors
    ///
    /// When there is no such library.
    pub fn described(libraries: &Libraries, text: &str) -> Result<AttentionTable, ExecError> {
        AttentionTable::of(&Vendor::described(libraries, text.trim_end())?)
    }

    /// Plans for a GPU that is open.
    ///
    /// # Errors
    ///
    /// When it has no cuDNN.
    pub fn on(device: &CudaDevice) -> Result<AttentionTable, ExecError> {
        AttentionTable::of(&device.library)
    }

    /// The columns of a row that tell the shape.
    pub fn row_name(shape: &AttentionShape) -> String {
        let AttentionShape { batch, length, heads, key_heads, width, causal, documents, slots, .. } = *shape;
        let direction = match (shape.backward, shape.deterministic) {
            (false, _) => "forward",
            (true, false) => "backward",
            (true, true) => "backward-deterministic",
        };
        let mask = match (causal, documents, slots) {
            (_, _, Some(slots)) => format!("ragged-{slots}"),
            (true, true, None) => "documents".into(),
            (true, false, None) => "causal".into(),
            (false, ..) => "full".into(),
        };
        format!("{direction:<22} {mask:<11} {batch:>3} x {length:<5} {heads:>3} / {key_heads:<3} {width:>4}")
    }

    fn of(vendor: &Vendor) -> Result<AttentionTable, ExecError> {
        let attentions = vendor.attentions()?;
        for (op, inputs) in ops() {
            let outputs = infer(&op, &inputs).map_err(ExecError::Mismatch)?;
            for deterministic in [false, true] {
                let limits = Limits { deterministic, ..Limits::default() };
                needs(&op, &inputs, &outputs, vendor, limits)?;
            }
        }
        let asked = attentions.asked().into_iter();
        let row = |(shape, plan): (_, Result<_, ExecError>)| PlannedAttention {
            shape,
            plan: plan.map_err(|why| why.to_string()),
        };
        Ok(AttentionTable { version: attentions.version(), rows: asked.map(row).collect() })
    }
}

/// Attention in every form, with the types of its inputs.
fn ops() -> Vec<(Op, Vec<Type>)> {
    let attention = |op: &Op| matches!(op, Op::Attention { .. } | Op::AttentionGrad { .. });
    let cases = half_cases().into_iter().filter(|case| attention(&case.op));
    let of_cases = cases.map(|case| (case.op.clone(), case.inputs.iter().map(|input| input.ty).collect()));
    let of_models = MODELS.into_iter().flat_map(|(extents, causal)| {
        let documents: &[bool] = if causal { &[false, true] } else { &[false] };
        documents.iter().flat_map(move |&documents| pair(extents, Mask { causal, window: None, documents }))
    });
    of_cases.chain(of_models).collect()
}

/// Attention and its derivative.
fn pair([batch, length, heads, key_heads, width]: [usize; 5], mask: Mask) -> [(Op, Vec<Type>); 2] {
    let half = |extents: [usize; 4]| Type { shape: Shape::from(extents), dtype: DType::Bf16 };
    let (queries, keys) = (half([batch, length, heads, width]), half([batch, length, key_heads, width]));
    let statistics = Type::f32([batch, heads, length]);
    let starts = Type { shape: Shape::from([batch, length]), dtype: DType::I32 };
    let starts = mask.documents.then_some(starts);
    let scale = 1.0 / (width as f32).sqrt();
    let forward = [queries, keys, keys].into_iter().chain(starts).collect();
    let backward = [queries, keys, keys, queries, statistics, queries].into_iter().chain(starts).collect();
    [(Op::Attention { mask, scale }, forward), (Op::AttentionGrad { mask, scale }, backward)]
}

impl fmt::Display for PlannedAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = AttentionTable::row_name(&self.shape);
        match &self.plan {
            Ok(AttentionPlan { engine, workspace }) => write!(f, "{name}  {engine:>3} {workspace:>12}"),
            Err(why) => write!(f, "{name}  refused: {why}"),
        }
    }
}

impl fmt::Display for AttentionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version;
        writeln!(f, "# cuDNN {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)?;
        writeln!(
            f,
            "# direction, mask, sequences x positions, heads of queries / of keys, columns, engine, scratch bytes"
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}
