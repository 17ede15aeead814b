//! Recompute on abstract graphs: the frontier of kept bytes against recompute time.

pub(crate) mod labels;
