//! Plans of cuDNN for attention, one for each shape, and plans bound to addresses.
#![allow(unsafe_code, reason = "queues plans on addresses that a judged schedule gave out")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_exec::ExecError;

use super::attention_graph;
use super::cudnn::{Cudnn, Descriptor, Kind, Of, attribute};
use super::graph_builder::Builder;
use crate::lower::{Attention, AttentionShape, AttentionTensor, Place};

/// Plans by shape.
#[derive(Debug)]
pub(crate) struct Attentions {
    cudnn: Arc<Cudnn>,
    plans: Mutex<BTreeMap<AttentionShape, Result<Arc<Plan>, ExecError>>>,
}

/// The identity of a plan of the library, and the scratch that the plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionPlan {
    /// The number of the engine. It means nothing beyond one version of the library.
    pub engine: i64,
    /// Bytes of scratch.
    pub workspace: u64,
}

/// A plan with the scalars it reads from the host.
#[derive(Debug)]
struct Plan {
    descriptor: Descriptor,
    scalars: Vec<(i64, Box<f32>)>,
    workspace: u64,
}

/// A plan for attention with the addresses of its tensors.
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

    /// Every shape that was asked for, with its plan or the reason for which there is none.
    pub(crate) fn asked(&self) -> Vec<(AttentionShape, Result<AttentionPlan, ExecError>)> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let in_numbers = |plan: &Plan| {
            let engine = self.cudnn.engine(&plan.descriptor)?;
            Ok(AttentionPlan { engine, workspace: plan.workspace })
        };
        plans.iter().map(|(shape, plan)| (*shape, plan.clone().and_then(|plan| in_numbers(&plan)))).collect()
    }

    /// Shapes that no engine takes, each with the library's reason.
    pub(crate) fn refused(&self) -> Vec<String> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = plans.iter().filter_map(|(shape, plan)| Some((shape, plan.as_ref().err()?)));
        refused.map(|(shape, why)| format!("{shape}: {why}")).collect()
    }

    /// Binds a plan to addresses, its scratch to `workspace`; `tables` are those of its documents.
    ///
    /// # Errors
    ///
    /// When there is no plan for the shape.
    pub(crate) fn bind(
        &self,
        attention: &Attention,
        address: &dyn Fn(Place) -> u64,
        workspace: u64,
        tables: &[(AttentionTensor, u64)],
    ) -> Result<BoundAttention, ExecError> {
        let plan = self.plan(&attention.shape)?;
        let mut ids: Vec<i64> = attention.places.iter().map(|(tensor, _)| *tensor as i64).collect();
        let mut pointers: Vec<*mut c_void> =
            attention.places.iter().map(|(_, place)| address(*place) as *mut c_void).collect();
        for (tensor, address) in tables {
            ids.push(*tensor as i64);
            pointers.push(*address as *mut c_void);
        }
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
        let mut graph = Builder::new(cudnn);
        if shape.backward {
            attention_graph::backward(&mut graph, shape)?;
        } else {
            attention_graph::forward(&mut graph, shape)?;
        }
        let descriptor = graph.plan()?;
        let mut workspace = [0i64];
        descriptor.get(attribute::PLAN_WORKSPACE, Of::Int64, &mut workspace)?;
        Ok(Plan { descriptor, scalars: graph.into_scalars(), workspace: workspace[0].max(0) as u64 })
    }
}
