//! One file per command.

pub(crate) mod check;
pub(crate) mod dag;
pub(crate) mod demo;
pub(crate) mod layout;
pub(crate) mod plan;
pub(crate) mod train;
